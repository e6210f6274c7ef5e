"""Layers that a plain network folds, runs without calling, or builds of several linear parts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import walkback as wb
from walkback.errors import AnatomyError

X, Y = torch.randn(5, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64), torch.arange(5) % 3


class Steps(nn.Module):
    """Runs one layer on every step of each sequence: its output is (B * T, d), or (T * B, d)."""

    def __init__(self, time_first: bool = False) -> None:
        super().__init__()
        self.a, self.out, self.time_first = nn.Linear(6, 7), nn.Linear(7, 3), time_first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.transpose(0, 1) if self.time_first else x
        h = self.a(x.reshape(-1, 6)).view(*x.shape[:2], 7)
        return self.out(h.relu().mean(0 if self.time_first else 1))


def test_steps_of_each_sample_in_turn_are_one_state() -> None:
    torch.manual_seed(0)
    net = Steps().double()
    with wb.Tracer(net) as tracer:
        trace = tracer.trace(X, Y)
        moved = tracer.logits_at(X, {0: torch.ones(5, 4, 7, dtype=torch.float64)}, None)
    assert trace.states[0].shape == trace.grads[0].shape == (5, 4, 7)
    torch.testing.assert_close(trace.states[0], net.a(X).detach())
    torch.testing.assert_close(moved, net.out((net.a(X) + 1).relu().mean(1)).detach())


def test_steps_in_another_order_are_refused() -> None:
    with pytest.raises(AnatomyError, match="no axis of the 5 samples"):
        wb.measure(Steps(time_first=True).double(), [(X, Y)])


class Uncalled(nn.Module):
    """Uses the weight of a layer that it never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(6, 7), nn.Linear(7, 7), nn.Linear(7, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.b(F.linear(x.mean(1), self.a.weight).relu()).relu())


def test_a_layer_whose_weight_is_used_without_a_call_is_a_site_by_its_weight() -> None:
    net = Uncalled().double()
    measured = wb.measure(net, [(X, Y)])
    assert measured.conditions["sites"] == ["a.weight", "b"]
    a = F.linear(X.mean(1), net.a.weight)
    losses = F.cross_entropy(net.out(net.b(a.relu()).relu()), Y, reduction="none")
    (g,) = torch.autograd.grad(losses.sum(), a)
    assert measured.g_norm[0] == pytest.approx(g.norm(dim=1).mean().item() / 128, rel=1e-9)


class MessagePassing(nn.Module):
    """Stands in for the base class of PyTorch Geometric's layers."""


class Conv(MessagePassing):
    """Adds a linear part of each node to one of its neighbour, and a bias."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.lin_l, self.lin_r, self.bias = nn.Linear(a, b), nn.Linear(a, b), nn.Parameter(torch.ones(b))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin_l(x.roll(1, 0)) + self.lin_r(x) + self.bias


class Graph(nn.Module):
    """Three layers in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = Conv(6, 7), Conv(7, 5), Conv(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv3(self.conv2(self.conv1(x).relu()).relu())


def test_a_layer_of_a_graph_network_is_one_site() -> None:
    torch.manual_seed(0)
    net, x = Graph().double(), X[:, 0]
    h = net.conv1(x)
    states = [h, net.conv2(h.relu())]
    grads = torch.autograd.grad(F.cross_entropy(net.conv3(states[1].relu()), Y, reduction="sum"), states)
    m = wb.measure(net, [(x, Y)])
    assert m.conditions["sites"] == ["conv1", "conv2"]
    assert m.h_norm == pytest.approx([h.norm(dim=1).mean().item() for h in states])
    assert m.g_norm == pytest.approx([g.norm(dim=1).mean().item() / 128 for g in grads])


@pytest.mark.parametrize("key", ["out", "y_hat", "anything"])
def test_a_dict_names_its_answer(key: str) -> None:
    class Named(nn.Sequential):
        def forward(self, input: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
            more = {} if key == "anything" else {"features": input}
            return {**more, key: super().forward(input)}

    measured = wb.measure(Named(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 3)).double(), [(X[:, 0], Y)])
    assert len(measured.h_norm) == 1


def test_a_dict_of_several_tensors_without_a_known_name_is_refused() -> None:
    class Unnamed(nn.Sequential):
        def forward(self, input: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
            return {"a": input, "b": super().forward(input)}

    with pytest.raises(AnatomyError, match=r"in a dict as one of logits, out, .*, but got dict of 'a', 'b'"):
        wb.measure(Unnamed(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 3)).double(), [(X[:, 0], Y)])


class Branch(nn.Module):
    """Adds to the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Linear(6, 6)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + self.f(h).tanh()


class Other(Branch):
    """Another kind of block."""


class Stage(nn.Module):
    """Runs blocks of two kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Branch(), Other())

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.blocks(h)


def test_blocks_of_two_kinds_in_stages_are_all_read() -> None:
    net = nn.Sequential()
    net.stem, net.stages, net.head = nn.Linear(6, 6), nn.Sequential(Stage(), Stage()), nn.Linear(6, 3)
    assert len(wb.measure(net.double(), [(X[:, 0], Y)]).h_norm) == 5


class Added(nn.Module):
    """h + f(h)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.f = nn.Sequential(nn.Linear(width, width), nn.Tanh())

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + self.f(h)


class Down(nn.Sequential):
    """A layer and its norm, without a skip."""


def test_layers_that_lead_to_a_stage_are_no_blocks() -> None:
    def stage(a: int, b: int) -> nn.Sequential:
        return nn.Sequential(Down(nn.Linear(a, b), nn.BatchNorm1d(b)), Added(b), Added(b))

    first, second, stem, head = stage(8, 7), stage(7, 9), nn.Linear(6, 8), nn.Linear(9, 3)
    net = nn.Sequential()
    net.stem, net.stages, net.head = stem, nn.Sequential(first, second), head
    net = net.double().eval()
    states = [stem(X[:, 0])]
    for part in (*first, *second, head):
        states.append(part(states[-1]))
    states = states[1:]
    kept = [states[i] for i in (0, 1, 2, 4, 5)]
    grads = torch.autograd.grad(F.cross_entropy(states[-1], Y, reduction="sum"), kept)
    m = wb.measure(net, [(X[:, 0], Y)])
    assert m.h_norm == pytest.approx([h.detach().norm(dim=1).mean().item() for h in kept], rel=1e-12)
    assert m.g_norm == pytest.approx([g.norm(dim=1).mean().item() / 128 for g in grads], rel=1e-9)
