"""Steps that are made outside of the blocks: states that all ways lead through, against autograd by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import walkback as wb
from walkback.errors import AnatomyError
from walkback.tracing.rerun import double_weights

D = 10
Forward = Callable[[Any, Tensor, Callable[[Tensor], Tensor]], Tensor]


class Branch(nn.Module):
    def __init__(self, wide: int = D, out: int | None = None) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(wide), nn.Linear(wide, out or wide)

    def forward(self, h: Tensor) -> Tensor:
        return torch.tanh(self.fc(self.norm(h)))


class State(Branch):
    def forward(self, h: Tensor) -> Tensor:
        return h + super().forward(h)


class Widen(Branch):
    def __init__(self, wide: int, out: int) -> None:
        super().__init__(wide, out)
        self.skip = nn.Linear(wide, out)

    def forward(self, h: Tensor) -> Tensor:
        return self.skip(h) + super().forward(h)


class AddNorm(nn.Module):
    """Takes and returns (branch, residual)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(D), nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, branch: Tensor, residual: Tensor | None, site: Callable[[Tensor], Tensor]) -> Any:
        residual = branch if residual is None else site(branch + residual)
        z = self.norm(residual)
        a, b = self.up(z).chunk(2, -1)
        z = z + torch.sigmoid(a) * b  # a sum inside, which is no state
        return self.down(torch.cat([z, a], -1)), residual


class Net(nn.Module):
    """Modules by name, and the forward pass as a function of them; `sites` is called on every state."""

    def __init__(self, forward: Forward, **lists: list[nn.Module]) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(6, D), nn.Linear(D, 4)
        for name, modules in lists.items():
            setattr(self, name, nn.ModuleList(modules))
        self.run, self.states = forward, list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        self.states = states = []

        def site(h: Tensor) -> Tensor:
            states.append(h)
            return h

        h = self.run(self, site(self.enter(x)), site)
        self.states = []
        self.__dict__["seen"] = states
        return self.leave(h)


def _scaled(net: Any, h: Tensor, site: Any) -> Tensor:
    for i, block in enumerate(net.blocks):
        h = site(block(h))
        h = 3 * h if i < 2 else h
    return h


def _activated(net: Any, h: Tensor, site: Any) -> Tensor:
    for block in net.blocks:
        h = site(torch.relu(block(h)))
    return h


def _injected(net: Any, h: Tensor, site: Any) -> Tensor:
    first = h
    for block in net.blocks:
        h = site(h + 0.5 * block(h) + 0.1 * first)
    return h


def _gcnii(net: Any, h: Tensor, site: Any) -> Tensor:
    first = h
    for block in net.blocks:
        h = site(torch.relu(block(0.9 * h + 0.1 * first)))
    return h


def _appnp(net: Any, h: Tensor, site: Any) -> Tensor:
    first = h
    for block in net.blocks:
        h = site(0.9 * block(h) + 0.1 * first)
    return h


def _pairs(net: Any, h: Tensor, site: Any) -> Tensor:
    residual: Any = None
    for block in net.blocks:
        h, residual = block(h, residual, site)
    return site(h + residual)


def _midpoint(net: Any, h: Tensor, site: Any) -> Tensor:
    for block in net.blocks:
        h = site(h + block(h + 0.5 * block(h)))
    return h


def _parallel(net: Any, h: Tensor, site: Any) -> Tensor:
    for first, second in zip(net.blocks, net.others):
        h = site(0.5 * h + first(h) + second(h))
    return h


def _keel(net: Any, h: Tensor, site: Any) -> Tensor:
    h = site(h + net.blocks[0](h)) if len(net.blocks) % 2 else h
    for block in net.blocks[len(net.blocks) % 2 :]:
        h = site(F.layer_norm(4 * h + block(F.layer_norm(h, (D,))), (D,)))
    return h


def branches(n: int = 4) -> list[nn.Module]:
    return [Branch() for _ in range(n)]


READ: dict[str, Callable[[], nn.Module]] = {
    "a scale between states": lambda: Net(_scaled, blocks=[State() for _ in range(4)]),
    "a scale between widths": lambda: Net(_scaled, blocks=[Widen(D, 14), Widen(14, 12), Widen(12, D)]),
    "an activation after each, of other widths": lambda: Net(_activated, blocks=[Widen(D, 14), Widen(14, D)]),
    "the stem's output in every step": lambda: Net(_injected, blocks=branches()),
    "GCNII": lambda: Net(_gcnii, blocks=branches()),
    "APPNP": lambda: Net(_appnp, blocks=branches()),
    "branch and residual, handed on": lambda: Net(_pairs, blocks=[AddNorm() for _ in range(4)]),
    "each block twice a step": lambda: Net(_midpoint, blocks=branches(3)),
    "two lists side by side in a step": lambda: Net(_parallel, blocks=branches(3), others=branches(3)),
    "norms before and after, scaled": lambda: Net(_keel, blocks=branches()),
}


def by_hand(net: Any, x: Tensor, y: Tensor) -> tuple[list[float], list[float]]:
    loss = F.cross_entropy(net.eval()(x), y, reduction="sum")
    states = net.seen
    grads = torch.autograd.grad(loss, states)
    norms = [[t.detach().norm(dim=1).mean().item() for t in many] for many in (states, grads)]
    return norms[0], [g / 128 for g in norms[1]]


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 6, dtype=torch.float64), torch.arange(8) % 4


@pytest.mark.parametrize("named", [False, True], ids=["found", "named"])
@pytest.mark.parametrize("kind", READ)
def test_states_that_no_block_takes_or_returns_are_read(kind: str, named: bool) -> None:
    net = READ[kind]().double()
    x, y = batch()
    h, g = by_hand(net, x, y)
    anatomy = {"blocks": "blocks"} if named else None
    if named and kind == "two lists side by side in a step":
        anatomy = {"blocks": [f"{name}.{i}" for i in range(3) for name in ("blocks", "others")]}
    m = wb.measure(net, [(x, y), (x + 0, y)], anatomy=anatomy)
    assert m.h_norm == pytest.approx(h, rel=1e-9)
    assert m.g_norm == pytest.approx(g, rel=1e-9)
    assert {"stepped-sites", "received-sites", "guessed"} & {note.code for note in m.notes}


def test_the_stem_that_goes_into_later_steps_is_said() -> None:
    for kind in ("the stem's output in every step", "GCNII", "APPNP"):
        m = wb.measure(READ[kind]().double(), [batch()])
        assert "stem-injected" in {note.code for note in m.notes}, kind
    m = wb.measure(READ["a scale between states"]().double(), [batch()])
    assert "stem-injected" not in {note.code for note in m.notes}


@pytest.mark.parametrize("kind", ["GCNII", "branch and residual, handed on", "norms before and after, scaled"])
def test_other_references_and_weights_read_the_same_states(kind: str) -> None:
    net, (x, y) = READ[kind](), batch()
    x = x.float()
    derived = wb.measure(net, [(x, y)], reference="derived")
    own = wb.measure(net, [(x, y)])
    assert derived.g_norm == pytest.approx(own.g_norm, rel=1e-5)
    with wb.Tracer(net) as tracer:
        first = tracer.trace(x, y)
        again = tracer.again(x.double(), y, double_weights(net))
        forward = tracer.states(x, y)
    for a, b, c in zip(first.states, again.states, forward.states):
        assert b.dtype == torch.float64
        assert torch.allclose(a.double(), b, rtol=1e-4, atol=1e-5)
        assert torch.equal(a, c)
    for a, b in zip(first.grads, again.grads):
        assert torch.allclose(a.double(), b, rtol=1e-3, atol=1e-5)


def test_what_a_frozen_control_leaves_at_random_are_the_blocks_of_all_steps() -> None:
    net, (x, y) = READ["two lists side by side in a step"]().double(), batch()
    with wb.Tracer(net) as tracer:
        tracer.trace(x, y)
        modules = tracer.anatomy.depth_modules(net)
        assert tracer.anatomy.share is not None
        assert tracer.anatomy.share.outside == ("enter", "leave")
    assert {*modules} == {*net.get_submodule("blocks").children(), *net.get_submodule("others").children()}


class Between(nn.Module):
    """Blocks and layers that change the width, in one list of no known name."""

    def __init__(self) -> None:
        super().__init__()

        class Change(nn.Module):
            def __init__(self, a: int, b: int) -> None:
                super().__init__()
                self.norm, self.fc = nn.LayerNorm(a), nn.Linear(a, b)

            def forward(self, h: Tensor) -> Tensor:
                return self.fc(self.norm(h))

        self.enter, self.leave = nn.Linear(6, D), nn.Linear(D, 4)
        self.tower = nn.ModuleList([State(D), Change(D, 12), State(12), Change(12, D), State(D)])

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for module in self.tower:
            h = module(h)
        return self.leave(h)


def test_guessed_modules_that_add_to_nothing_between_those_that_do_are_no_blocks() -> None:
    net, (x, y) = Between().double(), batch()
    m = wb.measure(net, [(x, y)])
    h = net.enter(x)
    kept = [h.norm(dim=1).mean().item()]
    for i, module in enumerate(net.tower):
        h = module(h)
        kept += [h.norm(dim=1).mean().item()] if i % 2 == 0 else []
    assert m.h_norm == pytest.approx(kept, rel=1e-9)


# -- no chain --------------------------------------------------------------------------------------------------------


def _momentum(net: Any, h: Tensor, site: Any) -> Tensor:
    v = torch.zeros_like(h)
    for block in net.blocks:
        v = 0.9 * v + 0.1 * block(h)
        h = h + v
    return h


def _mean_of_all(net: Any, h: Tensor, site: Any) -> Tensor:
    past = [h]
    for i, block in enumerate(net.blocks):
        h = h + block(h)
        past.append(h)
        h = torch.stack([(k + 1) * p for k, p in enumerate(past)]).sum(0) / (i + 2)
    return h


def _long_skips(net: Any, h: Tensor, site: Any) -> Tensor:
    kept = []
    for i, block in enumerate(net.blocks):
        h = 2 * block(h + kept.pop() if i > 1 else h)
        kept += [h] if i < 2 else []
    return h


def _kept_for_later(net: Any, h: Tensor, site: Any) -> Tensor:
    first = h
    for i, block in enumerate(net.blocks):
        h = 2 * block(h)
        first = h if i == 0 else first
        h = h + first if i == 2 else h
    return h


def _skips_to_the_end(net: Any, h: Tensor, site: Any) -> Tensor:
    out = torch.zeros_like(h)
    for block in net.blocks:
        f = block(h)
        out = out + torch.relu(f)
        h = 2 * (h + f)
    return out


def _down_up_once(net: Any, h: Tensor, site: Any) -> Tensor:
    return 2 * (h + net.blocks[1](net.blocks[0](h)))


def _momentum_pairs(net: Any, h: Tensor, site: Any) -> Tensor:
    a = b = h
    for block in net.blocks:
        a, b = b, a + block(b)
    return a * b


NO_CHAIN: dict[str, Callable[[], nn.Module]] = {
    "momentum": lambda: Net(_momentum, blocks=branches()),
    "a weighted mean of all states": lambda: Net(_mean_of_all, blocks=branches()),
    "long skips": lambda: Net(_long_skips, blocks=[State() for _ in range(4)]),
    "a state kept for later": lambda: Net(_kept_for_later, blocks=[State() for _ in range(4)]),
    "skips to the end": lambda: Net(_skips_to_the_end, blocks=branches()),
    "one step of two modules": lambda: Net(_down_up_once, blocks=[Branch(D, 16), Branch(16, D)]),
    "two halves in turn": lambda: Net(_momentum_pairs, blocks=branches()),
}


@pytest.mark.parametrize("kind", NO_CHAIN)
def test_what_is_no_chain_is_refused(kind: str) -> None:
    with pytest.raises(AnatomyError):
        wb.measure(NO_CHAIN[kind]().double(), [batch()], anatomy={"blocks": "blocks"})
    with pytest.raises(AnatomyError):
        wb.measure(NO_CHAIN[kind]().double(), [batch()])


# -- two stacks ------------------------------------------------------------------------------------------------------


def _neck(net: Any, h: Tensor, site: Any) -> Tensor:
    for block in net.early:
        h = site(block(h))
    h = net.necks[0](h)
    for block in net.late:
        h = site(block(h))
    return h


def _towers(net: Any, h: Tensor, site: Any) -> Tensor:
    a, b = 2 * h, 3 * h.flip(1)
    for block in net.early:
        a = block(a)
    for block in net.late:
        b = block(b)
    return a + b


def _decoder(net: Any, h: Tensor, site: Any) -> Tensor:
    context = h.flip(1)
    for block in net.early:
        context = block(context)
    for block in net.late:
        h = site(block(h, context))
    return h


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.f = Branch()

    def forward(self, h: Tensor, context: Tensor) -> Tensor:
        return h + self.f(h * torch.sigmoid(context))


def test_weights_between_two_stacks_of_one_width_are_not_guessed_past_but_read_where_both_are_named() -> None:
    net = Net(_neck, early=[State() for _ in range(3)], late=[State() for _ in range(3)], necks=[nn.Linear(D, D)])
    net, (x, y) = net.double(), batch()
    with pytest.raises(AnatomyError, match="with weights between") as refused:
        wb.measure(net, [(x, y)])
    assert "anatomy = " not in str(refused.value)
    blocks = [*(f"early.{i}" for i in range(3)), *(f"late.{i}" for i in range(3))]
    m = wb.measure(net, [(x, y)], anatomy={"blocks": blocks})
    h, g = by_hand(net, x, y)
    assert m.h_norm == pytest.approx(h, rel=1e-9)
    assert m.g_norm == pytest.approx(g, rel=1e-9)
    (said,) = [note for note in m.notes if note.code == "between-blocks"]
    assert said.values == {"sites": [3]}


def test_towers_side_by_side_are_refused_without_a_line_for_one_of_them() -> None:
    net = Net(_towers, early=[State() for _ in range(3)], late=[State() for _ in range(3)]).double()
    with pytest.raises(AnatomyError, match="side by side") as refused:
        wb.measure(net, [batch()])
    assert "anatomy = " not in str(refused.value)


def test_of_a_stack_and_one_that_reads_it_the_reader_is_taken_and_said_to_be() -> None:
    net = Net(_decoder, early=[State() for _ in range(3)], late=[Attending() for _ in range(3)]).double()
    x, y = batch()
    m = wb.measure(net, [(x, y)])
    h, g = by_hand(net, x, y)
    assert m.h_norm == pytest.approx(h, rel=1e-9)
    assert m.g_norm == pytest.approx(g, rel=1e-9)
    assert any("reads another stack" in note.values["what"] for note in m.notes if note.code == "guessed")


# -- states among the tensors of a pass ------------------------------------------------------------------------------


class Recurrent(nn.Module):
    """Scales between blocks; the stem runs as many steps as the sequence is long."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.blocks = nn.Linear(6 + D, D), nn.ModuleList(State() for _ in range(4))
        self.leave = nn.Linear(D, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(len(x), D)
        for t in range(x.shape[1]):
            h = torch.tanh(self.cell(torch.cat([x[:, t], h], 1)))
        for i, block in enumerate(self.blocks):
            h = block(h)
            h = 2 * h if i < 3 else h
        return self.leave(h)


def test_a_pass_of_another_length_is_refused_where_states_are_found_by_their_number() -> None:
    batches = [(torch.randn(8, t, 6, dtype=torch.float64), torch.arange(8) % 4) for t in (5, 5, 6)]
    assert wb.measure(Recurrent().double(), batches[:2]).h_norm
    with pytest.raises(AnatomyError, match="batches of one length"):
        wb.measure(Recurrent().double(), batches)


class TimeFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(6, D), nn.Linear(D, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(D), nn.Linear(D, D), nn.GELU()) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = first = self.enter(x).transpose(0, 1)
        for block in self.blocks:
            h = h + block(h) + first
        return self.leave(h[-1])


@pytest.mark.parametrize("steps", [8, 5])
def test_a_stream_with_the_batch_second_is_told_from_its_samples(steps: int) -> None:
    net = TimeFirst().double()
    x, y = torch.randn(8, steps, 6, dtype=torch.float64), torch.arange(8) % 4
    h = first = net.enter(x).transpose(0, 1)
    by_hand = [h]
    for block in net.blocks:
        h = h + block(h) + first
        by_hand.append(h)
    m = wb.measure(net, [(x, y)])
    assert m.h_norm == pytest.approx([h.detach()[-1].norm(dim=1).mean().item() for h in by_hand], rel=1e-9)
