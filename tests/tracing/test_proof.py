"""Recorded credits are proven: read past every hook and cut, held against the weights, the samples and the mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import walkback as wb
from foreign import FALinear, Net, example, made
from stand_ins import CLASSES, DEPTH, WIDTH, Cut, Hooked, Replaced, Residual, branch, residual
from walkback.tracing.makers import Makers
from walkback.tracing.proof import apart, by_weights
from walkback.tracing.quiet import quiet_training
from walkback.tracing.session import Tracer
from walkback.tracing.signals import Listener
from walkback.tracing.writers import Writers


def recorded(net: nn.Module, x: Tensor, y: Tensor, **options: Any) -> tuple[wb.Trace, list[Any]]:
    """The trace of a batch with recorded credits, and the notes on them."""
    credit = wb.recorded(net, **options)
    with Tracer(net, reference="derived") as tracer:
        trace = tracer.trace(x, y, credit)
    assert trace.credits is not None
    return trace, credit.notes


def gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).double().norm() / b.double().norm())


def codes(notes: list[Any]) -> list[str]:
    return [note.code for note in notes]


def beside_fa(notes: list[Any]) -> list[Any]:
    """What is said of a network beside the feedback matrices inside its blocks."""
    assert codes(notes).count("altered-inside") == 1
    return [note for note in notes if note.code != "altered-inside"]


# -- read where it flows on into the module --------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["between", "end", "state"])
@pytest.mark.parametrize("manner", [Cut, Hooked, Replaced])
def test_feedback_layers_of_every_manner_in_every_place(manner: Any, place: str):
    net, (x, y) = residual(manner, place), example(1)[0]
    trace, notes = recorded(net, x, y)
    assert notes == []
    # Below a network whose skips are not cut, the stem's own layer replaces everything: e B_0.
    for site, (ours, theirs) in enumerate(zip(trace.credits, net.known(trace), strict=True)):
        assert gap(ours, theirs) < 1e-5, site
    cosines = wb.measure(net, [(x, y)], credit=wb.recorded(net)).cosine
    assert abs(cosines[-1]) < 0.9


class Scaled(nn.Module):
    """Linear blocks f = h Wᵀ; a hook multiplies what comes to each f by k, registered inside the block or after it."""

    def __init__(self, where: str, k: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.where, self.k = where, k
        self.embed, self.head = nn.Linear(8, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False)) for _ in range(DEPTH))
        if where == "inside":
            for block in self.blocks:
                block.register_forward_hook(lambda module, args, made: self.hook(made))
        self.double()

    def hook(self, f: Tensor) -> Tensor:
        if f.requires_grad:
            f.register_hook(lambda grad: self.k * grad)
        return f

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            f = block(h)
            h = h + (self.hook(f) if self.where == "after" else f)
        return self.head(h)


@pytest.mark.parametrize("k", [2.0, -0.5])
@pytest.mark.parametrize("where", ["inside", "after"])
def test_tensor_hooks_in_either_order(where: str, k: float):
    """a_l = k s_l with s_L = g_L and s_{l−1} = s_l + k s_l W_l; the stem's own output has no hook: a_0 = s_0."""
    net, (x, y) = Scaled(where, k), example(1)[0]
    trace, notes = recorded(net, x.double(), y)
    assert notes == []
    s = trace.grads[-1].numpy()
    for site in range(DEPTH, 0, -1):
        assert np.allclose(trace.credits[site].numpy(), k * s, rtol=1e-10, atol=1e-14), site
        s = s + k * s @ net.blocks[site - 1][0].weight.detach().numpy()
    assert np.allclose(trace.credits[0].numpy(), s, rtol=1e-10, atol=1e-14)


def test_a_hook_on_the_graph_node_is_read_too():
    net, (x, y) = made("plain"), example(1)[0]
    net.blocks[2].register_forward_hook(
        lambda module, args, f: None if f.grad_fn is None else f.grad_fn.register_prehook(lambda g: (-g[0],)) and None
    )
    trace, _ = recorded(net, x, y)
    assert gap(trace.credits[-1], -trace.grads[-1]) < 1e-6


@pytest.mark.parametrize("k", [0.0, 2.0])
def test_a_hook_on_the_graph_node_that_comes_after_ours(k: float):
    """It can't be read; where it replaces the signal the weights show that."""

    class Late(Net):
        def forward(self, x: Tensor) -> Tensor:
            h = self.embed(x)
            for block in self.blocks:
                f = block(h)
                if f.grad_fn is not None:
                    f.grad_fn.register_prehook(lambda g, x=x: (k * g[0] + (x @ torch.ones(8, WIDTH) if not k else 0),))
                h = h + f
            return self.out_head(self.out_ln(h))

    net, (x, y) = Late("plain"), example(1)[0]
    if k:
        trace, _ = recorded(net, x, y)  # of one direction with what the weights get
        assert gap(trace.credits[-1], trace.grads[-1]) < 1e-6
        return
    with pytest.raises(wb.CreditError, match="to train the module that writes it, blocks"):
        recorded(net, x, y)


@pytest.mark.parametrize("place", ["end", "state"])
@pytest.mark.parametrize("manner", [Cut, Replaced])
def test_a_signal_that_is_read_at_the_wrong_place_is_refused(monkeypatch: Any, manner: Any, place: str):
    """The proof stands without the reading: here every signal is read at what the module returned."""
    monkeypatch.setattr(Makers, "source", lambda self, tensor: (tensor, False))
    monkeypatch.setattr(Writers, "is_trained", lambda self, key: False)
    with pytest.raises(wb.CreditError, match=r"Expected the credit of site 1 to train .*, blocks\.0, but all 4"):
        recorded(residual(manner, place), *example(1)[0])


@pytest.mark.parametrize("wrong", ["above", "other"])
def test_a_signal_that_is_another_one_is_refused(monkeypatch: Any, wrong: str):
    """What was heard is changed on its way: as if it were read before a hook, or on another pass."""
    arrived = Listener.arrived
    change = {"above": lambda a: a + a.norm() / a.numel() ** 0.5, "other": lambda a: a.flip(0)}[wrong]
    monkeypatch.setattr(Listener, "arrived", lambda self: {k: list(map(change, v)) for k, v in arrived(self).items()})
    with pytest.raises(wb.CreditError, match=r"Expected the credit of site 0 to give the gradients .* by \d+\.\d%"):
        recorded(made("fa"), *example(1)[0])


def test_full_backward_hooks_on_the_last_layer_of_a_block():
    """What the hook of an inner module returns goes further down; the credit is what came to the module above it."""
    net, (x, y) = made("plain"), example(1)[0]
    net.blocks[2][-1].register_full_backward_hook(lambda module, given, out: (-given[0],))
    trace, notes = recorded(net, x, y)
    assert [(note.code, note.site) for note in notes] == [("altered-inside", 3)]
    assert gap(trace.credits[-1], trace.grads[-1]) < 1e-6
    assert gap(trace.credits[-2], trace.grads[-2]) > 0.1


class _Through(torch.autograd.Function):
    """A linear layer and nothing else, so that no torch function sees what it made."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.T @ x


class Through(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return _Through.apply(x, self.weight)


def test_a_function_right_behind_a_function():
    net, (x, y) = residual(Replaced, "end"), example(1)[0]
    for block in net.blocks:
        block[2] = Through(WIDTH, WIDTH, bias=False)
    trace, notes = recorded(net, x, y)
    assert notes == []
    for ours, theirs in zip(trace.credits, net.known(trace), strict=True):
        assert gap(ours, theirs) < 1e-5


class Local(nn.Module):
    """Every block hands on a detached copy, without asking for a gradient; signals are sent to what it computed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Linear(8, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.blocks = nn.ModuleList(Detaching() for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


class Detaching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.f, self.kept = nn.Linear(WIDTH, WIDTH), None

    def forward(self, h: Tensor) -> Tensor:
        self.kept = torch.tanh(self.f(h))  # tanh keeps its output for the backward pass: it must not be written
        return self.kept.detach()


@pytest.mark.parametrize("trained", [True, False])
def test_copies_that_carry_no_gradient(trained: bool):
    net, (x, y) = Local(), example(1)[0]
    sent = [torch.randn(len(x), WIDTH) for _ in range(DEPTH + 1)]
    order = {}

    def backward(model: Local, x: Tensor, y: Tensor) -> None:
        stem = []
        handle = model.embed.register_forward_hook(lambda module, args, made: stem.append(made))
        model(x)
        handle.remove()
        rows = [int(i) for i in order.get("rows", range(len(x)))]
        torch.autograd.backward(stem[0], sent[0][rows], retain_graph=True)
        if trained:
            for block, signal in zip(model.blocks, sent[1:]):
                block.kept.backward(signal[rows], inputs=list(block.parameters()))

    if not trained:
        with pytest.raises(
            wb.CreditError, match=r"cut off its graph \(detach, no_grad\), and nothing was sent into what it"
        ):
            recorded(net, x, y, backward=backward)
        return
    # Signals that do not follow the samples: refused; those that do are recorded as they are.
    with pytest.raises(wb.CreditError, match="with the same batch in another order that of site"):
        recorded(net, x, y, backward=backward)
    matrices = [torch.randn(8, WIDTH) for _ in range(DEPTH + 1)]

    def of_inputs(model: Local, x: Tensor, y: Tensor) -> None:
        sent[:] = [x @ m for m in matrices]
        backward(model, x, y)

    trace, notes = recorded(net, x, y, backward=of_inputs)
    assert notes == []
    for ours, m in zip(trace.credits, matrices, strict=True):
        assert gap(ours, x @ m) < 1e-6


# -- feedback inside a module ----------------------------------------------------------------------------------------


class TrainsItself(nn.Module):
    """Local losses: in training mode the block takes a step of its own in its forward, and hands on what has no graph.

    Args:
        seen: whether another tensor of the block has the value that it returns.
        asks: whether what it returns asks for a gradient.
    """

    def __init__(self, seen: bool, asks: bool) -> None:
        super().__init__()
        self.f, self.decoder = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.seen, self.asks = seen, asks
        self.optimiser = torch.optim.SGD(self.parameters(), lr=0.1)

    def forward(self, h: Tensor) -> Tensor:
        f = self.f(h.detach() if self.training else h).relu_()
        if self.training:
            self.decoder(f.view(len(f), -1) if self.seen else f).square().mean().backward()
            self.optimiser.step()
            self.optimiser.zero_grad()
            f.detach_().requires_grad_(self.asks)
        return f


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("seen", [False, True])
def test_blocks_that_train_themselves_have_no_credit(seen: bool, asks: bool):
    """Eval mode is BP. In training mode the output error arrives at the block, cosine 1 at the last, and ends there."""
    net, (x, y) = residual(Hooked, "between"), example(1)[0]
    net.layers = [nn.Identity() for _ in net.layers]
    net.blocks = nn.ModuleList(TrainsItself(seen, asks) for _ in range(DEPTH)).eval()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    words = r"reach site \d, .* It returns a copy cut off its graph \(detach, no_grad\), and nothing was sent into what"
    with pytest.raises(
        wb.CreditError, match=f"what was recorded is of eval mode, and training mode sends no .* {words}"
    ):
        recorded(net, x, y)
    with pytest.raises(wb.CreditError, match=words):
        recorded(net, x, y, train=True)
    trace, _ = recorded(net, x, y, train=False)
    assert all(gap(a, g) < 1e-6 for a, g in zip(trace.credits, trace.grads, strict=True))
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    assert not any(block.optimiser.state or any(p.grad is not None for p in block.parameters()) for block in net.blocks)


def test_a_stem_that_is_run_without_gradients_is_frozen_only_by_its_flags():
    net, (x, y) = made("plain"), example(1)[0]
    net.embed.forward = torch.no_grad()(net.embed.forward)
    with pytest.raises(wb.CreditError, match=r"reach site 0, .*if it is frozen, say so with requires_grad_\(False\)"):
        recorded(net, x, y)
    net.embed.requires_grad_(False)
    trace, notes = recorded(net, x, y)
    assert [(note.code, note.site, note.values["why"]) for note in notes] == [("unproven-credit", 0, "frozen")]
    assert gap(trace.credits[0], trace.grads[0]) < 1e-6


@pytest.mark.parametrize("manner", [Cut, Hooked, Replaced])
def test_feedback_inside_a_block_is_said(manner: Any):
    """The credit of the site trains what lies above the inner layer: two of the block's four parameters."""
    net, (x, y) = residual(manner, "inner"), example(1)[0]
    trace, notes = recorded(net, x, y)
    assert [(note.code, note.site) for note in notes] == [("inner-feedback", site) for site in (1, 2, 3)]
    for note in notes:
        assert (note.values["fed"], note.values["of"]) == (2, 4)
        assert sorted(note.values["parameters"]) == ["0.bias", "0.weight"]
    for ours, theirs in zip(trace.credits[1:], net.known(trace)[1:], strict=True):
        assert gap(ours, theirs) < 1e-5
    found = wb.measure(net, [(x, y)], credit=wb.recorded(net))
    assert sum("feedback is sent into blocks.0 below what it returns: 2 of its 4" in str(n) for n in found.notes) == 1


class Dimmed(nn.Module):
    """h + f(h), and what comes back to f is changed on its way, by a hook or by a Function."""

    def __init__(self, change: Any, by: str) -> None:
        super().__init__()
        self.f, self.change, self.by = branch(), change, by

    def forward(self, h: Tensor) -> Tensor:
        f = self.f(h)
        if self.by == "function":
            f = _Dimmed.apply(f, self.change)
        elif f.requires_grad:
            f.register_hook(self.change)
        return h + f


class _Dimmed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Any) -> Tensor:
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return ctx.change(grad), None


@pytest.mark.parametrize("by", ["hook", "function"])
@pytest.mark.parametrize(
    ("change", "off"),
    [
        (lambda g: 0.1 * g, 0.9),
        (lambda g: -g, 2.0),
        (lambda g: 1.02 * g, 0.02 / 1.02),
        (lambda g: g * (torch.arange(WIDTH) % 2), None),
        (lambda g: g, 0.0),
    ],
)
def test_what_a_branch_does_to_its_credit_on_the_way_is_said(change: Any, off: float | None, by: str):
    """The credit is read at h + f, which reaches f only scaled or masked: no other proof sees that."""
    net, (x, y) = residual(Hooked, "between"), example(1)[0]
    net.layers = [nn.Identity() for _ in net.layers]
    torch.manual_seed(0)
    net.blocks = nn.ModuleList(Dimmed(change, by) for _ in range(DEPTH))
    _, notes = recorded(net, x, y)
    if off == 0.0:
        assert notes == []
        return
    assert [(note.code, note.site) for note in notes] == [("altered-inside", None)]
    values = notes[0].values
    assert (values["sites"], values["modules"]) == ([1, 2, 3], ["blocks.0", "blocks.1", "blocks.2"])
    assert (values["altered"], values["of"]) == (12, 12)
    assert values["difference"] == pytest.approx(off, rel=1e-4) if off else 0.3 < values["difference"] < 1
    assert "the backward pass is not the derivative of what is computed: 12 of 12 parameters" in notes[0].text


class Partly(nn.Module):
    """h + f(h), where only the upper layer of f gets the credit."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self.lower, self.upper, self.by = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), by

    def forward(self, h: Tensor) -> Tensor:
        f = torch.tanh(self.lower(h))
        return h + self.upper(f.detach() if self.by == "cut" else _Dimmed.apply(f, lambda g: 0 * g))


@pytest.mark.parametrize(("by", "frozen"), [("cut", False), ("zeros", False), ("cut", True), ("zeros", True)])
def test_weights_inside_that_get_none_of_the_credit_are_said(by: str, frozen: bool):
    """The cosine of the site is that of a credit that half of its module never sees."""
    net, (x, y) = residual(Hooked, "between"), example(1)[0]
    net.layers = [nn.Identity() for _ in net.layers]
    torch.manual_seed(0)
    net.blocks = nn.ModuleList(Partly(by) for _ in range(DEPTH))
    for block in net.blocks:
        block.lower.requires_grad_(not frozen)
    _, notes = recorded(net, x, y)
    if frozen:
        assert notes == []
        return
    (note,) = notes
    assert (note.code, note.values["sites"]) == ("altered-inside", [1, 2, 3])
    assert (note.values["difference"], note.values["altered"], note.values["of"]) == (1.0, 6, 12)


@pytest.mark.parametrize("manner", [Hooked, Replaced])
def test_feedback_under_the_last_operation_leaves_the_site_without_a_credit(manner: Any):
    net, (x, y) = residual(manner, "under"), example(1)[0]
    with pytest.raises(wb.CreditError, match=r"credit of site 1 to train .* blocks\.0, but all 4 parameters that get"):
        recorded(net, x, y)


@pytest.mark.parametrize("manner", [Cut, Hooked, Replaced])
def test_feedback_between_the_stem_and_a_relu(manner: Any):
    net, (x, y) = residual(manner, "stem-relu"), example(1)[0]
    with pytest.raises(wb.CreditError, match="credit of site 0 to train the module that writes it, embed, but all 2"):
        recorded(net, x, y)
    # Read at the stem all the same: then it is said that this is another value.
    trace, notes = recorded(net, x, y, writers=["embed", *(f"blocks.{i}.f" for i in range(DEPTH))])
    assert [(note.code, note.site) for note in notes] == [("other-writer", 0)]
    assert gap(trace.credits[0], net.known(trace)[0]) < 1e-5


@pytest.mark.parametrize("manner", [Cut, Hooked, Replaced])
def test_the_same_where_the_network_calls_the_layers_of_its_stem_and_not_the_stem(manner: Any):
    class Opened(Residual):
        def forward(self, x: Tensor) -> Tensor:
            self.embed, stem = self.embed[0], self.embed
            try:
                return super().forward(x)
            finally:
                self.embed = stem

    torch.manual_seed(0)
    net, (x, y) = Opened(manner, "stem-relu"), example(1)[0]
    net.embed = nn.Sequential(net.embed)
    with pytest.raises(wb.CreditError, match="credit of site 0 to train the module that writes it, embed, but all 2"):
        recorded(net, x, y)


@pytest.mark.parametrize("manner", [Cut, Hooked, Replaced])
def test_a_named_layer_without_weights_is_held_against_what_it_trains(manner: Any):
    """At the output of a layer that cuts or replaces, the last site would read as BP; a hook has run by then."""
    net, (x, y) = residual(manner, "state"), example(1)[0]
    writers = ["embed", *(f"blocks.{i}.feedback" for i in range(DEPTH))]
    if manner is not Hooked:
        words = {
            Cut: "reach site 1, .* cut off its graph .* named in writers is read at its very output, where what",
            Replaced: r"site 1 to train .* blocks\.0, but all 4 .* named in writers is read at its very output, above",
        }[manner]
        with pytest.raises(wb.CreditError, match=words):
            recorded(net, x, y, writers=writers)
        return
    trace, notes = recorded(net, x, y, writers=writers)
    assert notes == []
    for ours, theirs in zip(trace.credits, net.known(trace), strict=True):
        assert gap(ours, theirs) < 1e-5


@pytest.mark.parametrize("manner", [Cut, Hooked, Replaced])
@pytest.mark.parametrize("stem", [("embed", "first"), ("first",)])
def test_a_stem_without_weights_is_held_against_what_lies_below_it(manner: Any, stem: tuple[str, ...]):
    net, (x, y) = residual(manner, "state"), example(1)[0]
    net.first = net.layers[0]
    parts = {"stem": list(stem), "blocks": "blocks", "readout": "head"}
    if manner is not Hooked and stem == ("first",):
        with pytest.raises(wb.CreditError, match="credit of site 0 to train the module that writes it, embed, but all"):
            recorded(net, x, y, anatomy=parts)
        return
    trace, notes = recorded(net, x, y, anatomy=parts)  # the lowest stem that holds the state is read
    assert notes == []
    assert gap(trace.credits[0], net.known(trace)[0]) < 1e-5


def test_weights_of_two_blocks_do_not_show_what_a_layer_without_weights_hands_on():
    net, (x, y) = residual(Hooked, "state"), example(1)[0]
    net.blocks[1].f = net.blocks[0].f
    writers = ["embed", *(f"blocks.{i}.feedback" for i in range(DEPTH))]
    trace, notes = recorded(net, x, y, writers=writers)
    assert [(n.code, n.values["why"], n.values["sites"]) for n in notes] == [
        ("unproven-credit", "shared", [1]),
        ("unproven-credit", "tied", [2]),  # what lies inside is not compared there either
    ]  # from block 2 it flows on
    for ours, theirs in zip(trace.credits, net.known(trace), strict=True):
        assert gap(ours, theirs) < 1e-5


class _ByError(torch.autograd.Function):
    """A layer whose weights take the output error directly; what comes from above is only handed on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: Replaced) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        return grad @ weight, ctx.layer.sent().T @ x, None


def test_weights_that_are_trained_past_the_signal():
    net, (x, y) = residual(Hooked, "between"), example(1)[0]

    class ByError(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return _ByError.apply(x, self.weight, net.layers[0])

    for block in net.blocks:
        block[0] = ByError(WIDTH, WIDTH, bias=False)
        block[2] = ByError(WIDTH, WIDTH, bias=False)
    with pytest.raises(wb.CreditError, match="but all 2 parameters that get a gradient there get one with the credit"):
        recorded(net, x, y)


# -- by weights ------------------------------------------------------------------------------------------------------


def plain_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="sum")


def test_gradients_that_are_written_by_hand():
    """`backward()` for the readout, then the rule's own updates into .grad: what was heard is BP, and is not used."""
    net, (x, y) = made("plain"), example(1)[0]

    def backward(model: Any, x: Tensor, y: Tensor) -> None:
        plain_loss(model, x, y).backward()
        for p in model.blocks[1].parameters():
            p.grad = torch.randn_like(p)

    with pytest.raises(wb.CreditError, match=r"writes it, blocks\.1, but all 4 .* or \.grad is written by hand"):
        recorded(net, x, y, backward=backward)


def test_a_second_signal_that_is_only_looked_at():
    """BP gradients taken on the side for a log are heard too, and are no credit."""
    net, (x, y) = residual(Hooked, "between"), example(1)[0]

    def backward(model: Residual, x: Tensor, y: Tensor) -> None:
        written: list[Tensor] = []
        handle = model.embed.register_forward_hook(lambda module, args, made: written.append(made))
        logits = model(x)
        handle.remove()
        torch.autograd.grad(plain_of(logits, y), written, retain_graph=True)
        plain_of(logits, y).mul(2).backward()

    def plain_of(logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y, reduction="sum")

    trace, _ = recorded(net, x, y, backward=backward)  # the same direction, three times as long
    assert gap(trace.credits[2], 3 * net.known(trace)[2]) < 1e-5

    def other(model: Residual, x: Tensor, y: Tensor) -> None:
        written: list[Tensor] = []
        handle = model.embed.register_forward_hook(lambda module, args, made: written.append(made))
        logits = model(x)
        handle.remove()
        torch.autograd.grad(logits.square().sum(), written, retain_graph=True)
        plain_of(logits, y).backward()

    with pytest.raises(wb.CreditError, match=r"they differ by \d+\.\d% .* Another signal may come to it"):
        recorded(net, x, y, backward=other)


@pytest.mark.parametrize("clip", [False, True])
def test_what_a_function_may_do_with_the_gradients(clip: bool):
    """One factor for all of them changes no direction; one for each number does."""
    net, (x, y) = made("fa"), example(1)[0]

    def backward(model: nn.Module, x: Tensor, y: Tensor) -> None:
        plain_loss(model, x, y).backward()
        if clip:
            nn.utils.clip_grad_value_(model.parameters(), 0.1)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    if clip:
        with pytest.raises(wb.CreditError, match="leave weight decay and clipping by value out of it"):
            recorded(net, x, y, backward=backward)
        return
    trace, notes = recorded(net, x, y, backward=backward)
    assert beside_fa(notes) == []
    assert gap(trace.credits[0], recorded(made("fa"), x, y)[0].credits[0]) < 1e-6


def test_weight_decay_in_the_loss_is_no_credit_and_no_hindrance():
    net, (x, y) = made("fa"), example(1)[0]

    def backward(model: nn.Module, x: Tensor, y: Tensor) -> None:
        (plain_loss(model, x, y) + sum(p.square().sum() for p in model.parameters())).backward()

    trace, notes = recorded(net, x, y, backward=backward)
    assert beside_fa(notes) == []
    for a, b in zip(trace.credits, recorded(made("fa"), x, y)[0].credits, strict=True):
        assert gap(a, b) < 1e-6


def test_a_penalty_inside_a_block_is_said():
    class Penalised(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            z = self[0](x)
            self.penalty = 0.3 * z.square().sum()
            return self[2](self[1](z))

    net, (x, y) = made("plain"), example(1)[0]
    truth = recorded(net, x, y)[0]
    net.blocks = nn.ModuleList(Penalised(*block) for block in net.blocks)

    def backward(model: Any, x: Tensor, y: Tensor) -> None:
        loss = plain_loss(model, x, y)
        (loss + model.blocks[2].penalty).backward()

    trace, notes = recorded(net, x, y, backward=backward)
    assert [(note.code, note.site) for note in notes] == [("added-gradient", 3)]
    assert 0 < notes[0].values["share"] <= 1.5
    assert "does not come from the credit of site 3" in notes[0].text
    assert gap(trace.credits[3], truth.grads[3]) < 1e-6


class Tied(nn.Module):
    """A head that is the stem's table, used there as a function: no module says so."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, WIDTH)
        self.blocks = nn.ModuleList(nn.Sequential(FALinear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids)
        for block in self.blocks:
            h = h + block(h)
        return F.linear(h.mean(1), self.embed.weight[:CLASSES])


def test_tied_weights_are_proven_with_what_they_get_at_the_other_end():
    net, (x, y) = Tied(), example(1, tokens=True)[0]
    _, (note,) = recorded(net, x, y)  # and what lies inside the stem is not looked at, which is said
    values = {"proof": "inside", "why": "tied", "detail": "1 of them: embed.weight", "sites": [0]}
    assert (note.code, note.site, note.values) == ("unproven-credit", 0, values)
    assert note.text == (
        "it could not be proven that the backward pass inside each module hands its credit on unaltered: weights that "
        "are used outside their module too were not looked at (1 of them: embed.weight)"
    )


def test_weights_of_two_blocks_at_once_can_not_show_it():
    net, (x, y) = made("fa"), example(1)[0]
    net.blocks[1], net.blocks[0] = nn.Sequential(*net.blocks[1]), nn.Sequential(*net.blocks[1])
    _, notes = recorded(net, x, y)
    assert [(n.code, n.values["why"], n.values["sites"]) for n in beside_fa(notes)] == [
        ("unproven-credit", "shared", [1, 2])
    ]
    assert beside_fa(notes)[0].text == (
        "it could not be proven that the recorded credit of sites 1, 2 is what trains the weights there: the "
        "parameters of the module that writes it are used outside it too"
    )


def test_frozen_and_empty_modules_can_not_show_it():
    net, (x, y) = made("dfa"), example(1)[0]
    net.blocks[0].requires_grad_(False)
    net.blocks[1] = nn.Tanh()
    _, notes = recorded(net, x, y)
    assert [(n.values["why"], n.site, n.values["sites"]) for n in notes] == [
        ("frozen", 1, [1]),
        ("no-parameters", 2, [2]),
    ]


def test_an_optimiser_that_clears_the_gradients_leaves_nothing_to_compare():
    net, (x, y) = made("fa"), example(1)[0]

    def step(p: Tensor) -> None:
        p.data.sub_(0.1 * p.grad)
        p.grad = None

    for p in net.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(step)
    trace, notes = recorded(net, x, y)
    assert [(n.code, n.values["why"], n.values["sites"]) for n in notes] == [
        ("unproven-credit", "no-gradient", [0, 1, 2, 3])
    ]
    assert gap(trace.credits[0], recorded(made("fa"), x, y)[0].credits[0]) < 1e-6


class _Stop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return torch.zeros_like(grad)


class Stopped(nn.Module):
    """h + f(h), and nothing comes back to f; or, with the sum inside, to h either."""

    def __init__(self, everything: bool) -> None:
        super().__init__()
        self.f, self.everything = branch(), everything

    def forward(self, h: Tensor) -> Tensor:
        return _Stop.apply(h + self.f(h)) if self.everything else h + _Stop.apply(self.f(h))


@pytest.mark.parametrize("everything", [False, True])
def test_a_signal_that_gives_the_weights_nothing_is_said_and_no_signal_needs_no_proof(everything: bool):
    torch.manual_seed(0)
    net = nn.Module()
    net.embed, net.blocks, net.head = nn.Linear(8, WIDTH), nn.ModuleList(), nn.Linear(WIDTH, CLASSES)
    net.blocks.extend(Stopped(everything) for _ in range(DEPTH))
    net.forward = lambda x: net.head(net.blocks[2](net.blocks[1](net.blocks[0](net.embed(x)))))
    trace, notes = recorded(net, torch.randn(6, 8), torch.arange(6) % CLASSES)
    assert [bool(a.any()) for a in trace.credits] == [not everything] * (DEPTH + 1)
    said = [(n.values["proof"], n.values["why"], n.values["sites"]) for n in notes]
    assert said == ([] if everything else [("weights", "stopped", [1, 2, 3])])


def test_layers_that_bear_to_be_run_only_once():
    class _Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.left = 1
            return 2 * x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            ctx.left -= 1
            if ctx.left < 0:
                raise RuntimeError("used up\nand more")
            return 2 * grad

    class Once(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return _Once.apply(x)

    net, (x, y) = made("fa"), example(1)[0]
    net.blocks[1].append(Once())
    _, notes = recorded(net, x, y)
    assert [(n.code, n.values["why"], n.values["sites"]) for n in notes] == [
        ("unproven-credit", "failed", [0, 1, 2, 3])
    ]
    assert notes[0].values["detail"] == "RuntimeError: used up and more"


def test_a_length_that_a_hook_divides_by():
    """g / ‖g‖ is NaN where the credit is replaced by zeros: that comes of the credit, and of nothing else."""
    net, (x, y) = made("plain"), example(1)[0]
    net.blocks[1][0].register_full_backward_pre_hook(lambda module, g: (g[0] / g[0].norm(dim=1, keepdim=True),))
    _, notes = recorded(net, x, y)
    assert [(note.code, note.site) for note in notes] == [("altered-inside", 2)]


@pytest.mark.parametrize("inside", [False, True])
def test_checkpointed_blocks_are_proven(inside: bool):
    class Checkpointed(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(super().forward, x, use_reentrant=False)  # type: ignore[return-value]

    net, (x, y) = made("fa"), example(1)[0]
    truth = recorded(made("fa"), x, y)[0]
    if inside:
        net.blocks = nn.ModuleList(Checkpointed(*block) for block in net.blocks)
    else:
        outer = net.forward

        def forward(x: Tensor) -> Tensor:
            h = net.embed(x)
            for block in net.blocks:
                h = h + checkpoint(block, h, use_reentrant=False)
            return net.out_head(net.out_ln(h))

        assert torch.equal(forward(x), outer(x))
        net.forward = forward  # type: ignore[method-assign]
    trace, notes = recorded(net, x, y)
    assert beside_fa(notes) == []
    for a, b in zip(trace.credits, truth.credits, strict=True):
        assert gap(a, b) < 1e-6


class Remade(nn.Linear):
    """Makes its parameter anew in every forward pass, scaled to the length it had."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.length = float(self.weight.detach().norm())

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight = nn.Parameter(self.weight * self.length / self.weight.norm())
        return F.linear(x, self.weight, self.bias)


def test_parameters_that_are_made_anew_are_looked_up_after_the_run():
    net, (x, y) = made("plain"), example(1)[0]
    for block in net.blocks:
        block[0], block[2] = Remade(WIDTH, WIDTH), Remade(WIDTH, WIDTH)
    with Tracer(net, reference="derived") as tracer:
        trace = tracer.trace(x, y)
        credit = wb.recorded(net)
        credits = credit(trace)
    assert credit.notes == []
    for a, g in zip(credits, trace.grads, strict=True):
        assert gap(a, g) < 1e-5


def test_the_gradients_of_a_module_in_numbers():
    g, half = torch.ones(3), torch.full((3,), 0.5)
    assert by_weights({"w": g}, {"w": 3 * g}, {}).difference == 0.0  # one factor
    assert by_weights({"w": g, "v": g}, {"w": g, "v": 3 * g}, {}).difference > 0.3  # two
    assert by_weights({"w": g}, {"w": -g}, {}).difference == 2.0
    assert by_weights({"w": g}, {}, {}).difference == 1.0  # no way leads there
    assert by_weights({"w": g}, {"w": half}, {"w": half}).added == 0.5
    assert by_weights({"w": g}, {"w": g}, {"w": g}).fed == ("w",)  # not g + g
    assert by_weights({"w": g}, {"w": half}, {}, {"w"}).why == "shared"
    assert by_weights({"w": g}, {"w": half}, {"w": half}, {"w"}).added == 0.0
    assert by_weights({"w": None, "v": torch.zeros(3)}, {"w": g}, {}).why == "no-gradient"
    assert by_weights({"w": None, "v": torch.zeros(3)}, {"v": 0 * g}, {}).why == "stopped"
    assert by_weights({"w": None}, {}, {}).why == "no-gradient"
    assert by_weights({"w": g}, {"w": g[:2]}, {}).why == "sharded"
    assert by_weights({"w": g / 0}, {"w": g}, {}).why == "nonfinite"
    table = torch.eye(3).to_sparse()
    assert by_weights({"w": table}, {"w": table}, {}).difference == 0.0
    assert apart(torch.zeros(2), torch.zeros(2)) == 0.0


# -- by samples ------------------------------------------------------------------------------------------------------


class Broadcast(nn.Module):
    """Layers that replace what they send down by the output error; it is taken down in training mode only."""

    def __init__(self, drop: float = 0.0, norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.drop = drop
        self.embed, self.head = nn.Linear(8, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm1d(WIDTH) if norm else nn.LayerNorm(WIDTH),
                nn.Linear(WIDTH, WIDTH),
                nn.Tanh(),
                nn.Dropout(drop),
                nn.Linear(WIDTH, WIDTH),
            )
            for _ in range(DEPTH)
        )
        self.matrices = [torch.randn(CLASSES, WIDTH) for _ in range(DEPTH)]
        self.error: Tensor | None = None
        for block, back in zip(self.blocks, self.matrices):
            block.register_full_backward_hook(lambda module, given, out, back=back: (self.error @ back,))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        h = F.dropout(self.embed(x), self.drop, self.training)
        for block in self.blocks:
            h = h + block(h)
        logits = self.head(h)
        if self.training:
            assert y is not None, "targets are missing"
            self.error = (logits.softmax(1) - F.one_hot(y, CLASSES)).detach()
        return logits

    def known(self, trace: wb.Trace) -> list[Tensor]:
        """a_L = g_L, and below it a_{l−1} = a_l + e B_l."""
        error = trace.logits.softmax(1) - F.one_hot(trace.labels, CLASSES)
        credits = [trace.grads[-1]]
        for back in reversed(self.matrices):
            credits.append(credits[-1] + error @ back)
        return credits[::-1]


def with_targets(model: nn.Module, x: Tensor, y: Tensor) -> None:
    F.cross_entropy(model(x, y), y, reduction="sum").backward()


@pytest.mark.parametrize("norm", [False, True])
def test_the_error_of_the_last_training_batch_is_no_credit_for_this_one(norm: bool):
    net, (old, new) = Broadcast(0.3, norm), example(2)
    with_targets(net.train(), *old)
    modes = [i % 2 == 0 for i, _ in enumerate(net.modules())]
    for module, mode in zip(net.modules(), modes):
        module.training = mode
    state = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(wb.CreditError, match=r"with the same batch in another order that of site \d is .* train=True"):
        recorded(net, *new)
    trace, notes = recorded(net, *new, backward=with_targets, train=True)
    assert "stale" not in codes(notes)
    for ours, theirs in zip(trace.credits, net.known(trace), strict=True):
        assert gap(ours, theirs) < 1e-5
    assert [module.training for module in net.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())


def test_a_function_that_turns_training_mode_on_itself():
    """`model.train()` in it would switch dropout and batch statistics on: with train=True they stay off."""
    net, batch = Broadcast(0.3, norm=True).eval(), example(1)[0]

    def backward(model: nn.Module, x: Tensor, y: Tensor) -> None:
        model.train()
        with_targets(model, x, y)

    with pytest.raises(wb.CreditError, match="Expected the recorded pass to compute the states that are measured"):
        recorded(net, *batch, backward=backward)
    trace, _ = recorded(net, *batch, backward=backward, train=True)
    for ours, theirs in zip(trace.credits, net.known(trace), strict=True):
        assert gap(ours, theirs) < 1e-5
    assert not any(module.training for module in net.modules())


def test_an_error_without_training_mode_points_to_it():
    net, batch = Broadcast().eval(), example(1)[0]
    with pytest.raises(TypeError) as caught:
        recorded(net, *batch)
    assert caught.value.__notes__[0] == (
        "(while recording the network's backward pass, in eval mode (train=True: in training mode); a step that takes "
        "more than the inputs goes into `backward`)"
    )


class Late(nn.Module):
    """Feedback that is one run late: the error is kept outside the network and used in the next run."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Linear(8, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.blocks = nn.ModuleList(branch() for _ in range(DEPTH))
        self.kept = {"error": torch.randn(128, CLASSES), "next": None}
        self.back = torch.randn(CLASSES, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        error = self.kept["error"]
        h = self.embed(x)
        for block in self.blocks:
            f = block(h)
            if f.requires_grad:
                f.register_hook(lambda grad: error @ self.back)
            h = h + f
        logits = self.head(h)
        if logits.requires_grad:
            logits.register_hook(lambda grad: self.kept.update(error=grad))
        return logits


def test_feedback_that_comes_one_run_late():
    with pytest.raises(wb.CreditError, match="what was kept of an earlier batch is in it"):
        recorded(Late(), *example(1)[0])


@pytest.mark.parametrize("own", [False, True])
def test_random_credits_can_not_be_told_from_their_place(own: bool):
    net, (x, y) = made("plain"), example(1)[0]
    generator = torch.Generator().manual_seed(0) if own else None
    net.blocks[1].register_full_backward_hook(
        lambda module, given, out: (given[0] + torch.randn(given[0].shape, generator=generator),)
    )
    _, notes = recorded(net, x, y)
    assert [(n.code, n.values["proof"], n.values["why"]) for n in notes if n.values["proof"] == "samples"] == [
        ("unproven-credit", "samples", "random")
    ]


def test_a_rule_that_pairs_samples_by_their_place_is_refused():
    net, (x, y) = made("plain"), example(1)[0]
    net.blocks[1].register_full_backward_hook(lambda module, given, out: (given[0].roll(1, 0),))
    with pytest.raises(wb.CreditError, match="if your rule pairs samples by their place, give the credits as a func"):
        recorded(net, x, y)


def test_a_single_sample_can_not_show_it():
    net, (x, y) = made("dfa"), example(1)[0]
    _, notes = recorded(net, x[:1], y[:1])
    assert [(n.values["proof"], n.values["why"]) for n in notes] == [("samples", "one-sample")]
    found = wb.measure(net, [(x[:9], y[:9])], credit=wb.recorded(net), chunk=4)
    assert not any("one sample" in str(note) for note in found.notes), "the larger parts have shown it"


def test_a_credit_that_all_samples_share_comes_in_every_order():
    net, (x, y) = made("plain"), example(1)[0]
    kept = torch.randn(WIDTH)  # of an earlier batch, perhaps
    net.embed.register_forward_hook(lambda module, x, h: h.register_hook(kept.expand_as) and None)
    trace, notes = recorded(net, x, y)
    assert [(n.values["proof"], n.values["why"], n.values["sites"]) for n in notes] == [("samples", "same", [0])]
    assert "credits of site 0 belong to the samples of the batch: all samples have the same one" in notes[0].text
    assert torch.equal(trace.credits[0], kept.expand_as(trace.credits[0]))


def test_states_that_hang_on_the_place_of_a_sample():
    class Placed(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + torch.linspace(0, 1, 128)[:, None])

    _, notes = recorded(Placed("fa"), *example(1)[0])
    assert [(n.values["proof"], n.values["why"]) for n in beside_fa(notes)] == [("samples", "placed")]


# -- by mode ---------------------------------------------------------------------------------------------------------


class Noisy(nn.Module):
    """Everything that training mode changes, of what torch has."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=0.5, batch_first=True)
        self.lstm = nn.LSTM(WIDTH, WIDTH, 2, dropout=0.5, batch_first=True)
        self.layers = nn.Sequential(
            nn.Dropout(0.5),
            nn.AlphaDropout(0.5),
            nn.FeatureAlphaDropout(0.5),
            nn.Dropout1d(0.5),
            nn.RReLU(),
            nn.BatchNorm1d(4),
            nn.InstanceNorm1d(4, track_running_stats=True),
            nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.5, batch_first=True),
            DropPath(),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.lstm(self.layers(x))[0]
        x = self.attention(x, x, x)[0]
        x = F.dropout(F.dropout(x, training=self.training), 0.5, self.training)
        x = torch.dropout(F.alpha_dropout(x, 0.5, self.training), 0.5, self.training)
        x = F.scaled_dot_product_attention(x, x, x, dropout_p=0.5 if self.training else 0.0)
        x = torch.dropout(x, p=0.5, train=self.training)
        x = F.batch_norm(x, self.layers[5].running_mean, self.layers[5].running_var, training=self.training)
        return F.batch_norm(x, None, None, training=True)  # the batch's own in either mode


class DropPath(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.empty(len(x), 1, 1).bernoulli_(0.5) if self.training else x


@pytest.mark.parametrize("call", [False, True])
def test_quiet_training_computes_what_eval_mode_computes(call: bool):
    torch.manual_seed(0)
    net, x = Noisy().eval(), torch.randn(6, 4, WIDTH)
    truth = net(x)
    kept = {name: value.clone() for name, value in net.state_dict().items()}
    with quiet_training(net):
        assert net.training
        assert net.attention.training
        assert not net.layers[0].training
        assert torch.allclose(net(x), truth, rtol=1e-5, atol=1e-6)
        assert all(torch.equal(value, kept[name]) for name, value in net.state_dict().items())
        if call:
            net[0].train() if isinstance(net, nn.Sequential) else net.layers[:8].train()
            assert torch.allclose(net(x), truth, rtol=1e-5, atol=1e-6)
    assert not any(module.training for module in net.modules())


def test_training_mode_that_computes_something_else_is_said():
    class Shifted(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + float(self.training)

    net, (x, y) = made("fa"), example(1)[0]
    net.blocks = nn.ModuleList(Shifted(*block) for block in net.blocks)
    _, notes = recorded(net, x, y)
    assert [(n.values["proof"], n.values["why"]) for n in beside_fa(notes)] == [("mode", "other-states")]
    assert beside_fa(recorded(net, x, y, train=False)[1]) == []
    with pytest.raises(wb.InputError, match="Expected train to be True, False or None, but got 'yes'"):
        wb.recorded(net, train="yes")  # type: ignore[arg-type]


# -- no trace --------------------------------------------------------------------------------------------------------


def test_a_credit_that_is_refused_leaves_the_network_as_it_was():
    net, (x, y) = residual(Replaced, "under").train(), example(1)[0]
    plain_loss(net, x, y).backward()
    grads = {name: p.grad for name, p in net.named_parameters()}
    copies = {name: None if g is None else g.clone() for name, g in grads.items()}
    state, random = {k: v.clone() for k, v in net.state_dict().items()}, torch.get_rng_state()
    with pytest.raises(wb.CreditError, match="feedback is sent in below what the module returns"):
        recorded(net, x, y)
    assert all(module.training for module in net.modules())
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    assert all(p.grad is grads[name] for name, p in net.named_parameters())
    assert all(g is None or torch.equal(g, copies[name]) for name, g in grads.items())
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in net.modules())


def test_a_stream_that_is_a_parameter_keeps_no_hook():
    class Learned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.table, self.head = nn.Parameter(torch.randn(12, WIDTH)), nn.Linear(WIDTH, CLASSES)
            self.blocks = nn.ModuleList(branch() for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            h = self.table
            for block in self.blocks:
                h = h + block(h)
            return self.head(h)

    net = Learned()
    loss = net(torch.arange(12)).square().sum()  # a graph of the user's own, whose end is the same parameter
    _, notes = recorded(net, torch.arange(12), torch.randint(CLASSES, (12,)))
    assert {(n.values["proof"], n.values["why"]) for n in notes} == {
        ("weights", "no-parameters"),
        ("samples", "placed"),
    }
    heard: list[Tensor] = []
    net.table.register_hook(lambda grad: heard.append(grad.clone()))
    loss.backward()
    assert torch.equal(net.table.grad, heard[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("writers", ["embed", 5, {"embed": 1}, "x" * 5000])
def test_writers_are_a_list(writers: Any):
    with pytest.raises(wb.InputError, match="Expected writers to be a list of modules or dotted paths") as told:
        wb.recorded(made("dfa"), writers=writers)
    assert len(str(told.value)) < 300


@pytest.mark.parametrize("writer", ["nowhere", None, list(range(5000))])
def test_a_writer_that_is_no_module(writer: Any):
    net, (x, y) = made("dfa"), example(1)[0]
    with pytest.raises(
        wb.WalkbackError, match=r"Expected .* (to be the dotted path of a module|or a dotted path)"
    ) as told:
        recorded(net, x, y, writers=[writer] * (len(net.blocks) + 1))
    assert len(str(told.value)) < 1000
