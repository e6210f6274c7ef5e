"""What must not change a measurement: how samples are batched, the loss's unit, the names of hidden units."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import walkback as wb

quick = settings(max_examples=20)

WIDTH, CLASSES, SAMPLES = 12, 5, 512


class Net(nn.Module):
    """A pre-norm residual MLP in float64 with the published interface, exploding with `gain`."""

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        self.embed = nn.Linear(7, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
            for _ in range(3)
        )
        self.out_ln, self.out_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)
        with torch.no_grad():
            for level, block in enumerate(self.blocks, 1):
                block[3].weight.mul_(gain**level)
                block[0].weight.add_(0.3 * torch.randn(WIDTH))
            self.out_ln.weight.add_(0.3 * torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h)
        return self.out_head(self.out_ln(h))


@cache
def network(name: str) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Net({"healthy": 2.0, "exploded": 1000.0}[name]).double().eval()


@cache
def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, 7, generator=generator, dtype=torch.float64)
    return x, torch.randint(CLASSES, (SAMPLES,), generator=generator)


@cache
def feedback() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, CLASSES, WIDTH, generator=generator, dtype=torch.float64)


def credit(trace: wb.Trace) -> list[Tensor]:
    """DFA's: a fixed random projection of the output error, so it is the same however samples are batched."""
    e = trace.logits.softmax(1) - F.one_hot(trace.labels, CLASSES)
    return [e @ b.to(e.dtype) for b in feedback()]


def report(net: nn.Module, batches: list[tuple[Tensor, Tensor]], **options) -> wb.Report:
    return wb.diagnose(net, batches, 0.5, 0.4, credit=options.pop("credit", credit), **options)


def cut(sizes: list[int]) -> list[tuple[Tensor, Tensor]]:
    x, y = data()
    return list(zip(x.split(sizes), y.split(sizes)))


@cache
def reference(name: str) -> wb.Report:
    return report(network(name), cut([128] * 4))


def agree(a: wb.Report, b: wb.Report, rel: float = 1e-9, norms: bool = True, stability: bool = True) -> None:
    assert (a.verdict, a.failed, a.measurement_valid) == (b.verdict, b.failed, b.measurement_valid)
    near = {"rel": rel, "abs": rel}
    for name in ("cosine", *(("h_norm", "g_norm", "cosine_clamped", "below_eps") if norms else ())):
        assert a.per_layer[name] == pytest.approx(b.per_layer[name], rel=rel, abs=1e-300), name
    names = ["gamma", "deep_cosine", "gamma_concentration"]
    names += ["stability"] if stability else []
    names += ["growth", "growth_total"] if norms else []
    for name in names:
        assert a.values[name] == pytest.approx(b.values[name], **near), name
    orders = a.aggregates.keys() - (set() if stability else {"batches"})
    assert {k: a.aggregates[k] for k in orders} == pytest.approx({k: b.aggregates[k] for k in orders}, **near)


NETWORKS = st.sampled_from(["healthy", "exploded"])


def test_the_two_networks_are_judged_differently():
    assert reference("healthy").failed == ()
    assert reference("exploded").failed == ("D1", "D2")
    assert reference("healthy").values["stability"] is not None


@st.composite
def sizes(draw: st.DrawFn) -> list[int]:
    """Two or more batch sizes that add up to all samples: even, uneven, down to single samples."""
    if draw(st.booleans()):
        size = draw(st.integers(16, 400))
        return [size] * (SAMPLES // size) + ([SAMPLES % size] if SAMPLES % size else [])
    cuts = sorted(draw(st.sets(st.integers(1, SAMPLES - 1), min_size=1, max_size=6)))
    return [b - a for a, b in zip([0, *cuts], [*cuts, SAMPLES])]


@quick
@given(NETWORKS, sizes())
def test_batch_size(name: str, parts: list[int]):
    agree(report(network(name), cut(parts)), reference(name))


@quick
@given(NETWORKS, st.permutations(range(4)))
def test_order_of_batches(name: str, order: list[int]):
    batches = cut([128] * 4)
    agree(report(network(name), [batches[i] for i in order]), reference(name))


@quick
@given(NETWORKS, st.integers(0, 2**31), st.sampled_from([128, 100, 37]))
def test_order_of_samples(name: str, seed: int, size: int):
    """All but what is taken over groups of samples: stability, and the cosine of batch means."""
    x, y = data()
    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(seed))
    agree(
        report(network(name), list(zip(x[order].split(size), y[order].split(size)))), reference(name), stability=False
    )


@quick
@given(NETWORKS, st.floats(-12, 12))
def test_scale_of_the_loss(name: str, exponent: float):
    """Directions stay, and ‖g‖ follows. (The verdict may not: D2 asks how small the gradient is.)"""
    scale = 10.0**exponent
    batches = cut([128] * 4)
    base = wb.measure(network(name), batches, credit=credit)
    m = wb.measure(
        network(name), batches, credit=credit, loss=lambda z, y: scale * F.cross_entropy(z, y, reduction="none")
    )
    assert m.cosine == pytest.approx(base.cosine, rel=1e-9)
    assert m.aggregates["layers"] == pytest.approx(base.aggregates["layers"], rel=1e-9)
    assert m.aggregates == pytest.approx(base.aggregates, rel=1e-9)
    assert m.stability == pytest.approx(base.stability, rel=1e-9, abs=1e-12)
    assert m.g_norm == pytest.approx([scale * g for g in base.g_norm], rel=1e-9)
    assert m.h_norm == base.h_norm


@quick
@given(st.floats(-12, 12), st.floats(-12, 12))
def test_scale_of_the_loss_and_the_credit_in_float32(exponent: float, size: float):
    net = copy.deepcopy(network("healthy")).float()
    batches = [(x.float(), y) for x, y in cut([128] * 4)]
    base = wb.measure(net, batches, credit=credit)
    m = wb.measure(
        net,
        batches,
        credit=lambda t: [10.0**size * a for a in credit(t)],
        loss=lambda z, y: 10.0**exponent * F.cross_entropy(z, y, reduction="none"),
    )
    assert m.cosine == pytest.approx(base.cosine, rel=1e-4, abs=1e-6)
    assert m.stability == pytest.approx(base.stability, rel=1e-4, abs=1e-6)


def permuted(net: Net, order: list[int]) -> Net:
    """The same function with the units of the residual stream renamed."""
    out = copy.deepcopy(net)
    with torch.no_grad():
        for module in (out.embed, *(part for block in out.blocks for part in (block[0], block[3])), out.out_ln):
            module.weight.copy_(module.weight[order])
            module.bias.copy_(module.bias[order])
        for module in (*(block[1] for block in out.blocks), out.out_head):
            module.weight.copy_(module.weight[:, order])
    return out


@quick
@given(NETWORKS, st.permutations(range(WIDTH)))
def test_permutation_of_hidden_units(name: str, order: list[int]):
    net = permuted(network(name), order)
    x, _ = data()
    torch.testing.assert_close(net(x), network(name)(x), rtol=1e-7, atol=1e-9)
    made = report(net, cut([128] * 4), credit=lambda t: [a[:, order] for a in credit(t)])
    agree(made, reference(name), rel=1e-6)


@quick
@given(NETWORKS, st.integers(2, 3), sizes())
def test_evaluating_twice_changes_no_norm_and_no_cosine(name: str, times: int, parts: list[int]):
    """Stability needs disjoint batches and says so instead."""
    again = report(network(name), cut(parts) * times)
    once = reference(name)
    assert again.per_layer["h_norm"] == pytest.approx(once.per_layer["h_norm"], rel=1e-9)
    assert again.per_layer["g_norm"] == pytest.approx(once.per_layer["g_norm"], rel=1e-9)
    assert again.per_layer["cosine"] == pytest.approx(once.per_layer["cosine"], rel=1e-9)
    assert (again.verdict, again.failed) == (once.verdict, once.failed)
    assert again.values["stability"] is None
    assert f"batch {len(parts)} repeats batch 0" in again.reasons["stability"]


@quick
@given(sizes(), st.permutations(range(4)))
def test_the_probe_hash_names_the_samples_and_not_their_batches(parts: list[int], order: list[int]):
    base = reference("healthy").conditions["probe_hash"]
    assert report(network("healthy"), cut(parts)).conditions["probe_hash"] == base
    batches = cut([128] * 4)
    assert report(network("healthy"), [batches[i] for i in order]).conditions["probe_hash"] == base
    assert report(network("healthy"), batches[:3]).conditions["probe_hash"] != base
