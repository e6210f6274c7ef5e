"""One pass of one batch: sites, gradients and credit, against finite differences and hand derivations."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import walkback as wb
from nets import Linear, SmoothNet, autograd_gradients, batched, difference_gradient, softmax_error
from walkback.notes import Note, coded

SHAPES = [("flat", "cls"), ("tokens", "cls"), ("tokens", "last"), ("tokens", "mean"), ("tokens", "own"), ("maps", "")]


def one(net: nn.Module, x: Tensor, y: Tensor, **kwargs: object) -> wb.Trace:
    with wb.Tracer(net, **kwargs) as tracer:
        return tracer.trace(x, y)


def agree(a: wb.Trace, b: wb.Trace, bitwise: bool = False) -> None:
    for name in ("states", "grads"):
        for site, (u, v) in enumerate(zip(getattr(a, name), getattr(b, name), strict=True)):
            if bitwise:
                assert torch.equal(u, v), f"{name} of site {site}"
            else:
                torch.testing.assert_close(u, v, rtol=1e-12, atol=1e-14, msg=f"{name} of site {site}")
    torch.testing.assert_close(a.losses, b.losses, rtol=1e-12, atol=0)


# -- gradients by finite differences ------------------------------------------------------------------------


@pytest.mark.parametrize("returns", ["branch", "state", "inplace"])
@pytest.mark.parametrize(("kind", "reads"), SHAPES)
def test_states_and_gradients_of_every_site(kind: str, reads: str, returns: str):
    net = SmoothNet(kind, reads, returns, depth=2, width=4)
    x, y = net.example(5)
    trace = one(net, x, y)
    stream = net.stream(x)
    assert len(trace.states) == len(trace.grads) == len(stream) == 3
    for site, h in enumerate(stream):
        torch.testing.assert_close(trace.states[site], h, rtol=1e-12, atol=1e-14)
        want = difference_gradient(net, x, y, site)
        assert trace.grads[site].numpy() == pytest.approx(want, rel=1e-5, abs=1e-9)
        assert np.abs(want).max() > 1e-3


def test_gradients_of_neighbouring_sites_differ():
    """Finite differences can tell sites apart only if their gradients differ."""
    net = SmoothNet()
    x, y = net.example(5)
    g = autograd_gradients(net, x, y)
    for a, b in pairwise(g):
        assert np.abs(a - b).max() > 0.05


@pytest.mark.parametrize("identity", [False, True])
@pytest.mark.parametrize("norm", [False, True])
def test_one_block_alone(identity: bool, norm: bool):
    net = SmoothNet(depth=1, identity=identity, norm=norm)
    x, y = net.example(5)
    trace = one(net, x, y)
    for site in (0, 1):
        assert trace.grads[site].numpy() == pytest.approx(difference_gradient(net, x, y, site), rel=1e-5, abs=1e-9)


# -- site indices -------------------------------------------------------------------------------------------


class Adds(nn.Module):
    """Block l adds 10^l to unit l, so that a state says which blocks wrote it."""

    def __init__(self, level: int) -> None:
        super().__init__()
        self.level = level

    def forward(self, h: Tensor) -> Tensor:
        return 0 * h + 10.0**self.level * F.one_hot(torch.tensor(self.level), h.shape[1])


class Signed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Identity()
        self.blocks = nn.ModuleList(Adds(level) for level in (1, 2, 3))
        self.head = nn.Linear(4, 2, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h)
        return self.head(h)


def test_site_l_is_what_block_l_wrote():
    trace = one(Signed(), torch.zeros(2, 4, dtype=torch.float64), torch.tensor([0, 1]))
    wrote = [[0, 0, 0, 0], [0, 10, 0, 0], [0, 10, 100, 0], [0, 10, 100, 1000]]
    assert [h[0].tolist() for h in trace.states] == wrote
    for g in trace.grads[:-1]:  # every block hands the gradient on as it is
        assert torch.equal(g, trace.grads[-1])


def test_traces_are_numbered():
    net = SmoothNet()
    with wb.Tracer(net) as tracer:
        assert [tracer.trace(x, y).index for x, y in batched(*net.example(9), 3)] == [0, 1, 2]


def test_outside_of_its_with_block_a_tracer_says_so():
    net = SmoothNet()
    x, y = net.example(4)
    words = r"Expected Tracer\.{} to be called inside `with Tracer\(model\) as tracer:`, but this tracer is not open"
    tracer = wb.Tracer(net)
    for _ in range(2):  # before it was entered, and after it was left
        with pytest.raises(wb.InputError, match=words.format("trace")):
            tracer.trace(x, y)
        with pytest.raises(wb.InputError, match=words.format("replay")):
            tracer.replay(x, y, {0: torch.zeros_like(net.stream(x)[0])}, None)
        with tracer:
            assert tracer.trace(x, y).index in (0, 1)
    with pytest.raises(ZeroDivisionError), tracer:
        raise ZeroDivisionError
    with pytest.raises(wb.InputError, match=words.format("trace")):
        tracer.trace(x, y)


# -- one pass for everything --------------------------------------------------------------------------------


class Noisy(SmoothNet):
    """Draws new noise in every forward pass: numbers of two passes can't be mixed unnoticed."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.randn(x.shape, dtype=x.dtype))


def test_states_gradients_and_credit_belong_to_one_pass():
    net = Noisy()
    x, y = net.example(6)
    given: list[wb.Trace] = []

    def credit(trace: wb.Trace) -> list[Tensor]:
        given.append(trace)
        return list(trace.states)

    with wb.Tracer(net) as tracer:
        trace = tracer.trace(x, y, credit)
        other = tracer.trace(x, y)
    assert not torch.equal(trace.states[0], other.states[0])
    assert trace.credits is not None
    for site, h in enumerate(trace.states):
        assert given[0].states[site] is h
        assert given[0].grads[site] is trace.grads[site]
        assert torch.equal(trace.credits[site], h)
        leaf = h.clone().requires_grad_()
        logits = net.from_site(leaf, site, x)
        torch.testing.assert_close(logits, trace.logits, rtol=1e-12, atol=1e-13, check_device=False)
        want = torch.autograd.grad(F.cross_entropy(logits, y, reduction="sum"), leaf)[0]
        torch.testing.assert_close(trace.grads[site], want, rtol=1e-11, atol=1e-13)


def test_states_are_bit_for_bit_what_the_blocks_received():
    net = SmoothNet().float()
    x, y = net.example(6)
    received: list[Tensor] = []
    for block in net.blocks:
        block.register_forward_pre_hook(lambda _, args: received.append(args[0].detach().clone()))
    net.norm.register_forward_pre_hook(lambda _, args: received.append(args[0].detach().clone()))
    trace = one(net, x.float(), y)
    assert len(received) == len(trace.states)
    for h, seen in zip(trace.states, received):
        assert torch.equal(h, seen)


# -- the same network written another way -------------------------------------------------------------------


def twins(**other: object) -> tuple[SmoothNet, SmoothNet]:
    plain, changed = SmoothNet(), SmoothNet(**other)
    changed.load_state_dict(plain.state_dict(), strict=False)
    return plain, changed


IN_PLACE = ["h += block(h)", "f += h", "block writes h"]


@pytest.mark.parametrize("returns", ["branch", "state"])
def test_checkpointed_blocks(returns: str):
    plain, changed = twins(returns=returns, checkpointed=True)
    x, y = plain.example(7)
    with wb.Tracer(plain) as a, wb.Tracer(changed) as b:
        for start in (0, 3):
            part = x[start : start + 3], y[start : start + 3]
            agree(a.trace(*part), b.trace(*part))


@pytest.mark.parametrize("identity", [False, True])
@pytest.mark.parametrize("kind", ["flat", "tokens", "maps"])
def test_checkpointed_blocks_without_a_gradient_to_carry(kind: str, identity: bool):
    """Checkpointing keeps the stream as it enters block 1; nothing may be done to it there."""
    plain, changed = SmoothNet(kind, identity=identity), SmoothNet(kind, identity=identity, checkpointed=True)
    x, y = plain.example(6)
    agree(one(plain, x, y), one(changed.requires_grad_(False), x, y))
    agree(one(plain, x, y), one(changed.requires_grad_(True), x, y))


@pytest.mark.parametrize("other", [{"add": "in"}, {"add": "onto"}, {"returns": "inplace"}], ids=IN_PLACE)
@pytest.mark.parametrize("kind", ["flat", "tokens", "maps"])
@pytest.mark.parametrize("frozen", [False, True])
def test_streams_written_in_place(other: dict[str, str], kind: str, frozen: bool):
    plain, changed = SmoothNet(kind), SmoothNet(kind, **other)
    changed.load_state_dict(plain.state_dict())
    changed.requires_grad_(not frozen)
    x, y = plain.example(6)
    with wb.Tracer(plain) as a, wb.Tracer(changed) as b:
        for start in (0, 3):
            part = x[start : start + 3], y[start : start + 3]
            agree(a.trace(*part), b.trace(*part))


def test_a_view_written_in_place_by_the_next_block():
    """Writing a view takes its old node out of the skip path: the gradient there would miss that part."""
    plain, changed = SmoothNet(), SmoothNet(returns="view")
    changed.load_state_dict(plain.state_dict())
    changed.blocks[1].returns = changed.blocks[2].returns = "inplace"
    x, y = plain.example(5)
    agree(one(plain, x, y), one(changed, x, y))


@pytest.mark.parametrize("returns", ["branch", "state"])
@pytest.mark.parametrize("kind", ["flat", "tokens", "maps"])
def test_frozen_parameters_change_nothing(kind: str, returns: str):
    net = SmoothNet(kind, returns=returns)
    frozen = copy.deepcopy(net).requires_grad_(False)
    x, y = net.example(5)
    agree(one(net, x, y), one(frozen, x, y), bitwise=kind == "flat")  # torch picks other kernels for frozen tokens
    assert not any(p.requires_grad for p in frozen.parameters())


@pytest.mark.parametrize("part", ["embed", "blocks", "head"])
def test_one_frozen_part_changes_nothing(part: str):
    net = SmoothNet()
    frozen = copy.deepcopy(net)
    getattr(frozen, part).requires_grad_(False)
    x, y = net.example(5)
    agree(one(net, x, y), one(frozen, x, y), bitwise=True)


@pytest.mark.parametrize("other", [{}, {"add": "in"}, {"returns": "state"}, {"returns": "inplace"}])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_an_identity_stem_leaves_the_users_input_as_it_was(other: dict[str, str], frozen: bool, dtype: torch.dtype):
    net = SmoothNet(identity=True, **other).to(dtype).requires_grad_(not frozen)
    x, y = net.example(6)
    x[0, :3] = torch.tensor([-0.0, 0.0, 5e-324])
    x = x.to(dtype)
    bits = x.view(torch.uint8).clone()
    version = x._version
    with wb.Tracer(net) as tracer:
        first, second = tracer.trace(x, y), tracer.trace(x, y)
    assert torch.equal(x.view(torch.uint8), bits)
    assert torch.equal(first.states[0].view(torch.uint8), bits)
    assert (x.requires_grad, x.grad_fn, x._version) == (False, None, version)
    agree(first, second, bitwise=True)
    if dtype == torch.float64:
        want = autograd_gradients(net, x, y)
        for site, g in enumerate(first.grads):
            assert g.numpy() == pytest.approx(want[site], rel=1e-9, abs=1e-13)


class Shifts(SmoothNet):
    """Normalises the batch it is given in place, as some scripts do."""

    def forward(self, x: Tensor) -> Tensor:
        x.sub_(0.5)
        return super().forward(x)


@pytest.mark.parametrize("other", [{}, {"add": "in"}, {"identity": True}])
def test_a_network_that_writes_its_input_sees_it_once(other: dict[str, object]):
    """The users's batch stays as it was, and a second pass would have shifted it twice."""
    net, plain = Shifts(**other), SmoothNet(**{**other, "add": "out"})
    x, y = net.example(6)
    before = x.clone()
    with wb.Tracer(net) as a, wb.Tracer(plain) as b:
        for start in (0, 3):
            part = slice(start, start + 3)
            agree(a.trace(x[part], y[part]), b.trace(before[part] - 0.5, y[part]))
    assert torch.equal(x, before)


def test_a_network_that_writes_its_input_in_a_later_batch_only():
    class Late(SmoothNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.mul_(2.0) if len(x) > 4 else x)

    net, plain = Late(), SmoothNet()
    x, y = net.example(12)
    before = x.clone()
    with wb.Tracer(net) as a, wb.Tracer(plain) as b:
        a.trace(x[:4], y[:4])
        b.trace(x[:4], y[:4])
        agree(a.trace(x[4:], y[4:]), b.trace(2 * before[4:], y[4:]))
    assert torch.equal(x, before)


def test_batches_made_in_inference_mode():
    net = SmoothNet()
    x, y = net.example(6)
    want = one(net, x, y)
    with torch.inference_mode():
        agree(one(net, x + 0, y + 0), want, bitwise=True)
        m = wb.measure(net, [(x + 0, y + 0)], credit=lambda t: t.states, probes=["nudging"])
    assert (
        m.probes["nudging"]
        == wb.measure(net, [(x, y)], credit=lambda t: t.states, probes=["nudging"]).probes["nudging"]
    )


# -- cost ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_credit", [False, True])
def test_one_forward_pass_per_batch(with_credit: bool):
    spec = Linear.random()
    net = spec.net()
    x, y = spec.data(512)
    counts = []

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for batch in batched(x, y, 128):
            before = net.calls
            yield batch
            counts.append(net.calls - before)

    wb.measure(net, batches(), credit=(lambda t: t.states) if with_credit else None)
    assert counts == [1, 1, 1, 1]


@pytest.mark.parametrize("kind", ["flat", "tokens", "maps"])
@pytest.mark.parametrize("returns", ["branch", "state"])
@pytest.mark.parametrize(("identity", "frozen"), [(False, False), (False, True), (True, False), (True, True)])
def test_one_forward_pass_per_batch_of_any_network(kind: str, returns: str, identity: bool, frozen: bool):
    net = SmoothNet(kind, returns=returns, identity=identity).requires_grad_(not frozen)
    assert passes(net) == [1, 2, 3]


@pytest.mark.parametrize("kind", ["flat", "tokens", "maps"])
@pytest.mark.parametrize("other", [{"add": "in"}, {"add": "onto"}, {"returns": "inplace"}], ids=IN_PLACE)
def test_a_stream_written_in_place_costs_one_more_pass_once(kind: str, other: dict[str, str]):
    assert passes(SmoothNet(kind, **other)) == [2, 3, 4]


def passes(net: SmoothNet) -> list[int]:
    """Forward passes after each of three batches."""
    calls = []
    net.register_forward_pre_hook(lambda *_: calls.append(1))
    counts = []
    with wb.Tracer(net) as tracer:
        for x, y in batched(*net.example(12), 4):
            tracer.trace(x, y)
            counts.append(len(calls))
    return counts


def test_one_backward_pass_and_no_parameter_gradient():
    """Counted in multiplications: forward all layers, backward through blocks and head, to inputs only."""
    spec = Linear.random(depth=3, width=8)
    net = spec.net()
    fired = []
    for p in net.parameters():
        p.register_hook(lambda g: fired.append(g))
    x, y = (torch.from_numpy(v) for v in spec.data(32))
    for _ in range(2):
        with wb.Tracer(net) as tracer, FlopCounterMode(display=False) as counter:
            tracer.trace(x, y)
        stem, block, head = 2 * 32 * 5 * 8, 2 * 32 * 8 * 8, 2 * 32 * 8 * 4
        assert counter.get_total_flops() == stem + 2 * (3 * block + head)
    assert fired == []
    assert all(p.grad is None for p in net.parameters())


def test_traces_are_freed_as_the_batches_stream():
    class Kept(SmoothNet):
        def readout(self, h: Tensor, x: Tensor) -> Tensor:
            graphs.append(weakref.ref(h))  # alive as long as its graph is
            return super().readout(h, x)

    graphs: list[weakref.ref] = []
    seen: list[list[weakref.ref]] = []
    alive: list[int] = []
    net = Kept(width=16)
    x, y = net.example(128)

    def credit(trace: wb.Trace) -> list[Tensor]:
        seen.append([weakref.ref(t) for t in (*trace.states, *trace.grads, trace.logits)])
        return [h.clone() for h in trace.states]

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for i in range(6):
            alive.append(sum(any(r() is not None for r in refs) for refs in seen))
            yield x + i, y

    gc.disable()  # freed by reference counts, not by luck
    try:
        wb.measure(net, batches(), credit=credit)
    finally:
        gc.enable()
    assert len(seen) == 6
    assert max(alive) <= 1, "only the last batch's trace may be alive when the next one is asked for"
    assert not any(r() is not None for refs in seen for r in refs)
    assert not any(r() is not None for r in graphs)


def test_nothing_of_a_pass_is_kept_by_the_tracer():
    net = SmoothNet()
    x, y = net.example(8)
    with wb.Tracer(net) as tracer:
        refs = [weakref.ref(t) for t in tracer.trace(x, y).states]
        gc.collect()
        assert not any(r() is not None for r in refs)


# -- losses and labels --------------------------------------------------------------------------------------


def test_a_mean_loss_gives_the_gradients_of_the_sum():
    net = SmoothNet()
    x, y = net.example(6)
    each = one(net, x, y, loss=lambda z, t: F.cross_entropy(z, t, reduction="none"))
    mean = one(net, x, y, loss=F.cross_entropy)
    for a, b in zip(each.grads, mean.grads):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-15)


def test_a_mean_loss_stays_known_as_one_after_a_batch_of_one():
    net = SmoothNet()
    x, y = net.example(4)
    with wb.Tracer(net, loss=F.cross_entropy) as tracer:
        tracer.trace(x[:3], y[:3])
        assert not tracer.per_sample
        tracer.trace(x[3:], y[3:])
        assert not tracer.per_sample


def test_a_loss_of_another_kind():
    """Squared error: g_L = Vᵀ 2(V h − t), by hand."""
    spec = Linear.random(2, 6)
    x, _ = spec.data(5)
    target = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    trace = one(spec.net(), torch.from_numpy(x), target, loss=lambda z, t: ((z - t) ** 2).sum(1))
    g = 2 * (spec.states(x)[-1] @ spec.head.T - target.numpy()) @ spec.head
    for site in (2, 1, 0):
        assert trace.grads[site].numpy() == pytest.approx(g, rel=1e-10, abs=1e-13)
        if site:
            g = g + g @ spec.layers[site - 1]


def test_soft_labels_by_hand():
    spec = Linear.random(2, 6)
    x, y = spec.data(5)
    soft = 0.8 * np.eye(4)[y] + 0.05
    trace = one(spec.net(), torch.from_numpy(x), torch.from_numpy(soft))
    logits = spec.states(x)[-1] @ spec.head.T
    g = (softmax_error(logits, y) + np.eye(4)[y] - soft) @ spec.head
    assert trace.grads[-1].numpy() == pytest.approx(g, rel=1e-10, abs=1e-14)


def test_a_single_block_that_gives_nan_is_a_finding_not_an_error():
    net = wb.nets.build("resmlp", (16,), 10, width=8, depth=1)
    with torch.no_grad():
        net.blocks[0].w2.weight.fill_(float("nan"))
    report = wb.diagnose(net, wb.selftest.batches(2))
    assert report.failed
    assert report.verdict == "walked back"


# -- a stream that is the network's own memory ----------------------------------------------------------------


class Branch(nn.Module):
    """tanh of a linear map; the new state where `whole`."""

    def __init__(self, whole: bool, width: int = 8) -> None:
        super().__init__()
        self.map, self.whole = nn.Linear(width, width), whole

    def forward(self, h: Tensor) -> Tensor:
        f = torch.tanh(self.map(h))
        return h + f if self.whole else f


class Learned(nn.Module):
    """h_0 is a parameter (node embeddings), or one row for all samples (learned queries)."""

    def __init__(self, whole: bool, shared: bool) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(1 if shared else 12, 8))
        self.blocks = nn.ModuleList(Branch(whole) for _ in range(3))
        self.head, self.whole = nn.Linear(8, 4), whole

    def stream(self) -> list[Tensor]:
        states = [self.table.expand(12, -1) if len(self.table) == 1 else self.table]
        for block in self.blocks:
            states.append(block(states[-1]) if self.whole else states[-1] + block(states[-1]))
        return states

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stream()[-1])


@pytest.mark.parametrize("reference", [None, "derived"])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_a_stream_that_starts_as_a_parameter_is_measured_and_never_written(whole, shared, frozen, reference):
    torch.manual_seed(0)
    net = Learned(whole, shared).double().requires_grad_(not frozen)
    x, y = torch.arange(12), torch.randint(4, (12,))
    before = net.table.detach().clone()
    report = wb.diagnose(net, [(x, y)], probes=["perturbation", "nudging"], reference=reference)
    assert torch.equal(net.table, before)
    assert net.table.is_leaf
    assert net.table.requires_grad is not frozen
    assert report.controls["perturbation_bp"] == pytest.approx([1.0] * 4, abs=1e-3)
    h = before.expand(12, -1).clone().requires_grad_()  # the truth, at site 0 and at the last one
    states = [h]
    for block in net.blocks:
        states.append(block(states[-1]) if whole else states[-1] + block(states[-1]))
    grads = torch.autograd.grad(F.cross_entropy(net.head(states[-1]), y, reduction="sum"), states)
    assert report.per_layer["g_norm"] == pytest.approx([g.norm(dim=1).mean().item() / 128 for g in grads], rel=1e-9)


# -- what is added to the stream is what blocks return ----------------------------------------------------------


class Around(nn.Module):
    """Blocks that return the branch, and a network that does something with it: `how` of (h, f) is the new state."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.embed, self.how = nn.Linear(6, 8), how
        self.blocks = nn.ModuleList(Branch(False) for _ in range(3))
        self.norm, self.head, self.second = nn.LayerNorm(8), nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h, total = 5e3 * self.embed(x), torch.zeros(())
        for block in self.blocks:
            f = block(h)
            h, total = h + (1e-3 * f if self.how == "scaled" else f), total + f
        logits = self.head(self.norm(h))
        return logits + self.second(total) if self.how == "read twice" else logits


@pytest.mark.parametrize("reference", [None, "derived"])
def test_a_branch_that_is_read_elsewhere_is_refused(reference):
    """The network adds up to the last digits that are looked at: f is a thousandth of h."""
    torch.manual_seed(0)
    with pytest.raises(wb.AnatomyError, match=r"Expected what block 1 \(blocks\.0\) returns to be added to the stream"):
        one(Around("read twice"), torch.randn(16, 6), torch.randint(4, (16,)), reference=reference)


def scaled_by_hand(net: nn.Module, x: Tensor, y: Tensor) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    h = [5e3 * net.embed(x)]
    for block in net.blocks:
        h.append(h[-1] + 1e-3 * block(h[-1]))
    return h, torch.autograd.grad(F.cross_entropy(net.head(net.norm(h[-1])), y, reduction="sum"), h)


@pytest.mark.parametrize("reference", [None, "derived"])
def test_a_branch_that_is_scaled_outside_is_read_at_the_sums(reference):
    torch.manual_seed(0)
    net, x, y = Around("scaled"), torch.randn(16, 6), torch.randint(4, (16,))
    trace = one(net, x, y, reference=reference)
    states, grads = scaled_by_hand(net, x, y)
    for ours, right in zip((*trace.states, *trace.grads), (*states, *grads), strict=True):
        assert torch.allclose(ours, right, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("reference", [None, "derived"])
def test_a_plain_branch_is_not(reference):
    torch.manual_seed(0)
    net, x, y = Around("plain"), torch.randn(16, 6), torch.randint(4, (16,))
    trace = one(net, x, y, reference=reference)
    h = [5e3 * net.embed(x)]
    for block in net.blocks:
        h.append(h[-1] + block(h[-1]))
    want = torch.autograd.grad(F.cross_entropy(net.head(net.norm(h[-1])), y, reduction="sum"), h)
    for got, right in zip(trace.grads, want):
        torch.testing.assert_close(got, right, rtol=1e-5, atol=0)


class Tail(nn.Module):
    """No module receives the last state: `how` of (h, f) is what the last block adds, and a function normalises it."""

    def __init__(self, how: str, depth: int) -> None:
        super().__init__()
        self.embed, self.how = nn.Linear(6, 8), how
        self.blocks = nn.ModuleList(Branch(False) for _ in range(depth))
        self.head, self.second = nn.Linear(8, 4), nn.Linear(16, 4)

    def stream(self, x: Tensor) -> list[Tensor]:
        h = [self.embed(x)]
        for block in self.blocks[:-1]:
            h.append(h[-1] + block(h[-1]))
        low, f = h[-1], self.blocks[-1](h[-1])
        ways = {
            "scaled": lambda: low + 1e-5 * f,
            "alpha": lambda: torch.add(low, f, alpha=1e-5),
            "mixed": lambda: 0.5 * low + 0.5 * f,
            "alone": lambda: f,
            "stacked": lambda: torch.stack([low, f]).sum(0),
        }
        return [*h, ways.get(self.how, lambda: low + f)()]

    def rest(self, h: list[Tensor]) -> Tensor:
        if self.how == "skip":  # the state before the last is read too, which changes g_{L-1} and not g_L
            return self.second(F.layer_norm(torch.cat(h[-2:], 1), (16,)))
        return self.head(F.layer_norm(h[-1] + h[-2] if self.how == "sum" else h[-1], (8,)))

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.stream(x))


def tail(how: str, depth: int, reference: str | None) -> tuple[Tail, Tensor, Tensor, dict[str, object]]:
    torch.manual_seed(0)
    net = Tail(how, depth).double()
    anatomy = {"stem": "embed", "blocks": "blocks", "readout": ("head",), "branch": True}
    x, y = torch.randn(16, 6, dtype=torch.float64), torch.randint(4, (16,))
    return net, x, y, {"anatomy": anatomy, "reference": reference}


@pytest.mark.parametrize("reference", [None, "derived"])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("how", ["scaled", "alpha", "mixed"])
def test_a_scale_outside_the_last_block_is_refused_where_no_module_receives_the_last_state(how, depth, reference):
    net, x, y, options = tail(how, depth, reference)
    with pytest.raises(wb.AnatomyError, match=rf"Expected what block {depth} .* returns to be added to the stream as"):
        one(net, x, y, **options)


def test_a_scale_outside_the_blocks_is_seen_under_autocast_too():
    """The stream is float32 and the branches are bfloat16."""

    class Wide(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).float()

    torch.manual_seed(0)
    net = Around("scaled")
    net.embed = Wide(6, 8)
    x, y = torch.randn(16, 6), torch.randint(4, (16,))
    with torch.autocast("cpu", torch.bfloat16):
        trace = one(net, x, y)
        states, grads = scaled_by_hand(net, x, y)
    for ours, right in zip((*trace.states, *trace.grads), (*states, *grads), strict=True):
        assert torch.allclose(ours, right, rtol=2e-2, atol=1e-6)


@pytest.mark.parametrize("reference", [None, "derived"])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("how", ["plain", "skip", "sum"])
def test_a_plain_sum_is_not_and_neither_is_a_skip_into_the_readout(how, depth, reference):
    net, x, y, options = tail(how, depth, reference)
    with wb.Tracer(net, **options) as tracer:
        trace = tracer.trace(x, y)
    assert not coded(tracer.notes, "unseen-sum")
    h = net.stream(x)
    (want,) = torch.autograd.grad(F.cross_entropy(net.rest(h), y, reduction="sum"), h[-1:])
    torch.testing.assert_close(trace.grads[-1], want, rtol=1e-12, atol=0)


@pytest.mark.parametrize("how", ["alone", "stacked"])
def test_a_last_state_that_is_not_seen_as_a_sum_is_the_first_thing_said(how):
    net, x, y, _ = tail(how, 3, None)
    report = wb.diagnose(net, [(x, y)])
    assert report.notes[0] == Note("unseen-sum", 3, {"before": 2, "block": "blocks.2"})
    assert report.advisories[0].startswith("h_3 is taken for h_2 + what block 3 (blocks.2) returns, but no sum")


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("other", [{}, {"add": "in"}, {"add": "onto"}, {"checkpointed": True}, {"identity": True}])
@pytest.mark.parametrize(("kind", "reads"), SHAPES)
@pytest.mark.parametrize("depth", [1, 3])
def test_sums_of_every_kind_are_seen(kind, reads, other, norm, depth):
    net = SmoothNet(kind, reads, norm=norm, depth=depth, **other)
    with wb.Tracer(net, {"blocks": "blocks", "branch": True}) as tracer:
        tracer.trace(*net.example(5))
    assert not coded(tracer.notes, "unseen-sum")


class Conditioned(nn.Module):
    """A block that takes the condition first."""

    def __init__(self) -> None:
        super().__init__()
        self.map, self.condition = nn.Linear(8, 8), nn.Linear(5, 8)

    def forward(self, c: Tensor, h: Tensor) -> Tensor:
        return h + torch.tanh(self.map(h) + self.condition(c))


def test_a_condition_that_all_blocks_receive_first_is_not_taken_for_the_stream():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Linear(6, 8), nn.Linear(8, 4)
            self.blocks = nn.ModuleList(Conditioned() for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            h, c = self.embed(x), x[:, :5]
            for block in self.blocks:
                h = block(c, h)
            return self.head(h)

    with pytest.raises(wb.AnatomyError, match=r"all of them receive the same one first, of shape \(16, 5\)"):
        one(Net(), torch.randn(16, 6), torch.randint(4, (16,)))


class Folded(nn.Module):
    """Channels folded into the batch, as some models of several series do: the stream is (B·C, T, d)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(1, 8), nn.Linear(8, 4)
        self.blocks = nn.ModuleList(Branch(True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:  # (B, C, T)
        h = self.embed(x.flatten(0, 1)[..., None])
        for block in self.blocks:
            h = block(h)
        return self.head(h.mean(1).view(len(x), x.shape[1], -1).mean(1))


@pytest.mark.parametrize("tokens", [5, 6])
def test_a_batch_with_channels_folded_in_is_refused_also_where_it_has_as_many_tokens_as_samples(tokens):
    with pytest.raises(wb.AnatomyError, match=rf"site 0 has shape \(18, {tokens}, 8\)"):
        one(Folded(), torch.randn(6, 3, tokens), torch.randint(4, (6,)))


def test_a_sum_over_samples_is_refused_on_the_first_batch_that_shows_it():
    net = wb.selftest.healthy()
    (x, y), *_ = wb.selftest.batches(1)
    with wb.Tracer(net, loss=lambda z, t: F.cross_entropy(z, t, reduction="sum")) as tracer:
        tracer.trace(x[:1], y[:1])  # of one sample sum and mean are the same
        with pytest.raises(wb.InputError, match="it returns a sum"):
            tracer.trace(x, y)


def test_a_loss_that_wants_more_than_the_logits_is_told_what_it_is_given():
    class Heads(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.one, self.two = (torch.nn.Linear(6, n) for n in (6, 6, 4, 4))

        def forward(self, x):
            h = self.a(x).relu()
            return [self.one(h), self.two(self.b(h).relu())]

    x, y = torch.randn(8, 6), torch.randint(4, (8,))
    every = lambda out, t: sum(F.cross_entropy(o, t, reduction="none") for o in out)  # noqa: E731
    with pytest.raises(
        wb.InputError, match=r"logits of shape \(8, 4\), but it raised ValueError.*given the logits alone"
    ):
        wb.measure(Heads(), [(x, y)], loss=every)


def test_parts_of_each_step_are_not_offered_as_blocks():
    class Gate(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = torch.nn.Linear(12, 1)

        def forward(self, branch, h):
            gate = self.proj(torch.cat([branch, h], -1)).sigmoid()
            return gate * branch + (1 - gate) * h

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            part = lambda: torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 6))  # noqa: E731
            pair = lambda: torch.nn.ModuleList([part(), Gate()])  # noqa: E731
            self.layers = torch.nn.ModuleList([torch.nn.ModuleList([pair(), pair()]) for _ in range(3)])
            self.head = torch.nn.Linear(6, 4)

        def forward(self, h):
            for first, second in self.layers:
                h = first[1](first[0](h), h)
                h = second[1](second[0](h), h)
            return self.head(h)

    with pytest.raises(wb.AnatomyError) as refused:
        wb.measure(Net(), [(torch.randn(8, 6), torch.randint(4, (8,)))])
    assert "layers.0.0.0', 'layers.0.1.0'" not in str(refused.value)


def test_how_a_session_reads_its_network_is_one_frozen_value():
    first, second = wb.selftest.batches(2)
    with wb.Tracer(wb.selftest.healthy()) as tracer:
        before = tracer.reading
        assert not before.layout.known
        tracer.trace(*first)
        after = tracer.reading
        assert after.layout.known
        tracer.trace(*second)
    assert tracer.reading is after
    assert not before.layout.known
    with pytest.raises(FrozenInstanceError):
        after.layout = before.layout  # type: ignore[misc]
    assert len(vars(tracer)) <= 13  # hooks, the model, and what they need: no flag of what a batch showed
