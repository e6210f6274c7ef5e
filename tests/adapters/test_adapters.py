"""Adapters on stand-ins in the manner of each library's layers, with the credit in closed form."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import walkback as wb
from walkback.adapters.biotorch import biotorch
from walkback.adapters.by_hand import by_hand
from walkback.adapters.tinydfa import tinydfa

BATCHES = wb.selftest.batches(4)
WIDTH, CLASSES, DEPTH = 32, 10, 3


def matrices(seed: int = 0) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(CLASSES, WIDTH, generator=draw) for _ in range(DEPTH + 1)]


def closed_form(trace) -> list[Tensor]:
    """e B_l, with e the gradient of each sample's cross-entropy by its logits."""
    error = trace.logits.softmax(1) - nn.functional.one_hot(trace.labels, CLASSES)
    return [error @ b for b in matrices()]


def same(model: nn.Module, credit, last_exact: bool = False) -> None:
    expected = wb.diagnose(model, BATCHES, credit=closed_form, reference="derived").per_layer["cosine"]
    found = wb.diagnose(model, BATCHES, credit=credit, reference="derived").per_layer["cosine"]
    assert found == pytest.approx(expected, abs=1e-5)
    assert max(map(abs, expected)) < 0.9  # it is not backpropagation


class Plain(nn.Module):
    """A residual network; a subclass puts feedback behind what the stem and every block write."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(16, WIDTH)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h)
        return self.head(h)


# -- BioTorch: a backward hook on each layer, which reads an error that is set in training mode ------------------------


class Broadcast(nn.Module):
    """Identity whose gradient is the error kept in training mode, carried by B."""

    def __init__(self, b: Tensor, kept: dict) -> None:
        super().__init__()
        self.register_buffer("weight_backward", b)
        self.kept = kept

    def forward(self, x: Tensor) -> Tensor:
        made = x.clone()
        if made.requires_grad:
            made.register_hook(lambda _: self.kept["loss_gradient"] @ self.weight_backward)
        return made


class BioTorchLike(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.kept: dict = {"loss_gradient": torch.zeros(1, CLASSES)}
        first, *rest = matrices()
        self.embed = nn.Sequential(self.embed, Broadcast(first, self.kept))
        self.blocks = nn.ModuleList(
            nn.Sequential(block, Broadcast(b, self.kept)) for block, b in zip(self.blocks, rest)
        )

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        if self.training and logits.requires_grad:
            logits.register_hook(lambda grad: self.kept.update(loss_gradient=grad.clone()))
        return logits


def test_biotorch_is_recorded_in_training_mode():
    model = BioTorchLike().eval()
    same(model, biotorch(model))
    assert not model.training


# -- TinyDFA: cut graphs, and feedback sent into the points before the cuts --------------------------------------------


class Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, top):
        ctx.top = top
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[override]
        for i, layer in enumerate(ctx.top.dfa_layers):
            layer.point.backward(grad @ ctx.top.feedback_matrix[i])
        return grad, None


class Cut(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not x.requires_grad:
            return x
        self.point = x
        return x.detach().requires_grad_()


class Top(nn.Module):
    def __init__(self, layers: list[Cut]) -> None:
        super().__init__()
        self.dfa_layers, self.feedback_matrix = layers, None

    def forward(self, x: Tensor) -> Tensor:
        return Send.apply(x, self)


class TinyDFALike(Plain):
    def __init__(self) -> None:
        super().__init__()
        cuts = [Cut() for _ in range(DEPTH + 1)]
        self.embed = nn.Sequential(self.embed, cuts[0])
        self.blocks = nn.ModuleList(nn.Sequential(b, cut) for b, cut in zip(self.blocks, cuts[1:]))
        self.head = nn.Sequential(self.head, Top(cuts))


def test_tinydfa_is_recorded_behind_its_cuts():
    model = TinyDFALike()
    model.head[1].feedback_matrix = torch.stack(matrices())
    same(model, tinydfa(model))


def test_tinydfa_without_its_feedback_is_refused():
    with pytest.raises(wb.InputError, match="the feedback matrix that the network was trained with"):
        tinydfa(TinyDFALike())
    with pytest.raises(wb.InputError, match="a DFA module at its output"):
        tinydfa(Plain())


# -- by hand -----------------------------------------------------------------------------------------------------------


class ByHand(Plain):
    """Feedback as buffers, one of them turned; the training loop multiplies with it."""

    def __init__(self) -> None:
        super().__init__()
        for site, b in enumerate(matrices()):
            self.register_buffer(f"B{site}", b.T.contiguous() if site == 1 else b)


def test_matrices_by_hand():
    model = ByHand()
    same(model, by_hand(model, [f"B{site}" for site in range(DEPTH + 1)]))


def test_matrices_that_do_not_fit_are_refused():
    model = ByHand()
    with pytest.raises(wb.InputError, match=r"B9 to be a feedback matrix .* not there"):
        by_hand(model, ["B9"])
    with pytest.raises(wb.InputError, match="one feedback matrix per site, 4, but got 2"):
        wb.diagnose(model, BATCHES, credit=by_hand(model, ["B0", "B1"]))
    model.B2 = torch.zeros(3, 3)
    with pytest.raises(wb.InputError, match=r"B2 to be \(10, 32\)"):
        wb.diagnose(model, BATCHES, credit=by_hand(model, ["B0", "B1", "B2", "B3"]))
