"""Sites by call: shared blocks, blocks run as block.forward(h), and what is refused; against autograd in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import walkback as wb

D, CLASSES = 8, 5


class Step(nn.Module):
    """h + f(h)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(D), nn.Linear(D, D)

    def forward(self, h: Tensor) -> Tensor:
        return h + torch.tanh(self.fc(self.norm(h)))


class Net(nn.Module):
    """Runs its blocks in an order, and keeps its states."""

    def __init__(self, order, blocks: int = 2, direct: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter, self.leave = nn.Linear(6, D), nn.Linear(D, CLASSES)
        self.tower = nn.ModuleList(Step() for _ in range(blocks))
        self.order, self.direct, self.states = list(order), direct, []

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        states = [h]
        for i in self.order:
            h = self.tower[i].forward(h) if self.direct else self.tower[i](h)
            states.append(h)
        object.__setattr__(self, "states", states)
        return self.leave(h)


def batch(seed: int = 1) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(9, 6, generator=draw, dtype=torch.float64), torch.randint(CLASSES, (9,), generator=draw)


def by_hand(net: Net, x: Tensor, y: Tensor) -> tuple[list[float], list[float]]:
    losses = F.cross_entropy(net(x), y, reduction="none")
    grads = torch.autograd.grad(losses.sum(), net.states)
    return [h.detach().norm(dim=1).mean().item() for h in net.states], [
        g.norm(dim=1).mean().item() / 128 for g in grads
    ]


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("order", [[0, 0, 0], [0, 1, 0, 1], [0, 0, 1, 1], [1, 0], [0, 1]])
def test_every_call_is_a_site(order: list[int], direct: bool) -> None:
    net = Net(order, blocks=max(order) + 1, direct=direct).double()
    m = wb.measure(net, [batch()])
    h, g = by_hand(net, *batch())
    assert m.h_norm == pytest.approx(h, rel=1e-12)
    assert m.g_norm == pytest.approx(g, rel=1e-9)
    names = [row.split()[2] for row in m.conditions["anatomy"] if row.startswith("block")]
    assert [name.partition("#")[0] for name in names] == [f"tower.{i}" for i in order]
    assert len(set(names)) == len(order)
    assert "forward" not in vars(net.tower[0])


@pytest.mark.parametrize("direct", [False, True])
def test_sites_of_calls_are_moved_one_by_one(direct: bool) -> None:
    """Adding a small step at one call changes the loss as its gradient says: finite differences in float64."""
    net = Net([0, 1, 0], direct=direct).double()
    x, y = batch()
    with wb.Tracer(net) as tracer:
        trace = tracer.trace(x, y)
        for site in range(4):
            delta = 1e-6 * torch.randn(9, D, generator=torch.Generator().manual_seed(site), dtype=torch.float64)
            change = tracer.replay(x, y, {site: delta}, None) - tracer.replay(x, y, {site: -delta}, None)
            assert change.tolist() == pytest.approx(
                (2 * delta * trace.grads[site]).sum(1).tolist(), rel=1e-4, abs=1e-13
            )
        before = [h.clone() for h in trace.states]
        branches = tracer.branches_at(x, before, None)
        assert all(torch.allclose(h + f, new) for h, f, new in zip(before, branches, before[1:]) if f is not None)


def test_a_batch_with_other_calls_is_refused() -> None:
    net = Net([0, 0], blocks=1).double()

    def batches():
        yield batch()
        net.order = [0, 0, 0]
        yield batch(2)

    with pytest.raises(wb.AnatomyError, match=r"as the first one did, 2 calls.*tower\.0#2.*adaptive depth"):
        wb.measure(net, batches())


def test_two_towers_of_one_encoder_are_refused_in_words() -> None:
    class Siamese(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * super().forward(-x)

    with pytest.raises(wb.AnatomyError, match=r"(?s)tower\.1#1.*no chain.*sites=\"layers\""):
        wb.measure(Siamese([0, 1]).double(), [batch()])
    assert len(wb.measure(Siamese([0, 1]).double(), [batch()], sites="layers").h_norm) == 6


@pytest.mark.parametrize("direct", [False, True])
def test_a_recorded_credit_asks_for_sites_and_works_there(direct: bool) -> None:
    net = Net([0, 1, 0], direct=direct).double()

    def backward(net: nn.Module, x: Tensor, y: Tensor) -> None:
        F.cross_entropy(net(x), y).backward()

    with pytest.raises(wb.InputError, match="called once each, as modules") as info:
        wb.measure(net, [batch()], credit=wb.recorded(net, backward))
    names = eval(str(info.value).rpartition("sites=")[2].rstrip("."))  # the line that a user would copy
    m = wb.measure(net, [batch()], credit=wb.recorded(net, backward), sites=names)
    assert m.cosine == pytest.approx([1.0] * 3)


def test_what_depth_is_worth_draws_a_shared_block_once() -> None:
    data = [(torch.randn(32, 6), torch.randint(CLASSES, (32,))) for _ in range(4)]
    worth = wb.depth(Net([0, 1, 0]), data[:2], data[2:], draws=2)
    assert worth.without is None
    assert "called several times" in worth.reasons["without"]
    assert len(worth.by_depth["trained"]) == 4


def test_a_frozen_control_freezes_a_shared_block() -> None:
    anatomy = wb.Anatomy.of(Net([0, 0], blocks=1), blocks=["tower.0", "tower.0"])
    assert len(anatomy.depth_modules(nn.Module())) == 1
    assert anatomy.names == ("tower.0#1", "tower.0#2")


# -- candidates that are tried -------------------------------------------------------------------------------


class Lists(nn.Module):
    """Attention and MLP in lists of their own, with the norms outside."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter, self.leave = nn.Linear(6, D), nn.Linear(D, CLASSES)
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(4))
        self.mixers = nn.ModuleList(nn.Sequential(nn.Linear(D, D), nn.Tanh()) for _ in range(2))
        self.mlps = nn.ModuleList(nn.Sequential(nn.Linear(D, D), nn.GELU(), nn.Linear(D, D)) for _ in range(2))
        self.states: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        states = [h]
        for i in range(4):
            h = h + 0.5 * (self.mixers, self.mlps)[i % 2][i // 2](self.norms[i](h))
            states.append(h)
        object.__setattr__(self, "states", states)
        return self.leave(h.relu())


def test_stacks_of_one_length_are_read_in_the_order_of_their_calls() -> None:
    net = Lists().double()
    m = wb.measure(net, [batch()] * 2)
    h, g = by_hand(net, *batch())  # type: ignore[arg-type]
    assert m.h_norm == pytest.approx(h, rel=1e-12)
    assert m.g_norm == pytest.approx(g, rel=1e-9)
    line = m.conditions["guessed"][0].rpartition("To name them: ")[2]
    assert eval(line, {"Anatomy": wb.Anatomy, "model": net}).blocks == (
        net.mixers[0], net.mlps[0], net.mixers[1], net.mlps[1]
    )  # fmt: skip


def test_a_stack_that_is_not_the_whole_stream_is_not_taken() -> None:
    class Stages(nn.Module):
        """The first stage hands on two tensors; the second alone could be read."""

        def __init__(self) -> None:
            super().__init__()
            self.enter, self.leave = nn.Linear(6, D), nn.Linear(D, CLASSES)
            self.first = nn.ModuleList(Pair() for _ in range(2))
            self.second = nn.ModuleList(Step() for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            a = b = self.enter(x)
            for block in self.first:
                a, b = block(a, b)
            h = a + b
            for block in self.second:
                h = block(h)
            return self.leave(h)

    class Pair(Step):
        def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            a = super().forward(a + b)
            return a, b + a

    with pytest.raises(wb.AnatomyError, match=r"not the whole stream|several"):
        wb.measure(Stages().double(), [batch()])


class Graph(nn.Module):
    """Mixes neighbours between a norm and its layer: h + relu(W A norm(h))."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter, self.leave = nn.Linear(6, D), nn.Linear(D, CLASSES)
        self.layers = nn.ModuleList(nn.Linear(D, D) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(3))
        self.states = []

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        states = [self.enter(nodes)]
        for layer, norm in zip(self.layers, self.norms, strict=True):
            states.append(states[-1] + torch.relu(layer(adjacency @ norm(states[-1]))))
        object.__setattr__(self, "states", states)
        return self.leave(states[-1].mean(1))


def test_what_is_mixed_between_a_norm_outside_and_its_block() -> None:
    draw = torch.Generator().manual_seed(1)
    x = {"nodes": torch.randn(9, 4, 6, generator=draw).double(), "adjacency": torch.rand(9, 4, 4, generator=draw)}
    x["adjacency"], y = x["adjacency"].double(), torch.randint(CLASSES, (9,), generator=draw)
    net = Graph().double()
    m = wb.measure(net, [(x, y)])
    grads = torch.autograd.grad(F.cross_entropy(net(**x), y, reduction="sum"), net.states)
    assert m.h_norm == pytest.approx([h.detach().norm(dim=-1).mean().item() for h in net.states], rel=1e-12)
    assert m.g_norm == pytest.approx([g.norm(dim=-1).mean().item() / 128 for g in grads], rel=1e-9)
