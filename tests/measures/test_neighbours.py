"""Cosines of a credit with the gradients of the sites above and below, derived once more in loops over samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import walkback as wb
from nets import Linear, SmoothNet, autograd_gradients, batched, softmax_error
from walkback.measures.accumulate import Meter

Array = np.ndarray
Numbers = list[float | None]


# -- the definition, written out ------------------------------------------------------------------------------------


def cosine(u: Array, v: Array) -> float | None:
    """Of two vectors, one product at a time; None where one of them has no direction."""
    dot = left = right = 0.0
    for x, y in zip(u.ravel().tolist(), v.ravel().tolist()):
        dot, left, right = dot + x * y, left + x * x, right + y * y
    return None if left == 0 or right == 0 else dot / math.sqrt(left) / math.sqrt(right)


def neighbour(credits: Sequence[Array], grads: Sequence[Array], step: int) -> Numbers:
    """Mean over the samples that have a g_{l+step} of cos(a_l, g_{l+step}), 0 for those without a credit.

    None where there is no such site, or no sample has both.
    """
    out: Numbers = []
    for site, a in enumerate(credits):
        other = site + step
        if not 0 <= other < len(grads) or grads[other].shape != a.shape:
            out.append(None)
            continue
        known = [cosine(u, v) for u, v in zip(a, grads[other]) if np.any(v)]
        out.append(sum(c or 0.0 for c in known) / len(known) if any(c is not None for c in known) else None)
    return out


def same(found: Numbers, want: Numbers, tolerance: float = 1e-12) -> bool:
    """Numbers to rounding, and None in the same places."""
    assert len(found) == len(want)
    assert [v is None for v in found] == [v is None for v in want], (found, want)
    return [v for v in found if v is not None] == pytest.approx([v for v in want if v is not None], abs=tolerance)


def agree(m: wb.Measurements, credits: Sequence[Array], grads: Sequence[Array], tolerance: float = 1e-12) -> None:
    """Both neighbours, the site itself, and how alike neighbouring gradients are."""
    assert same(m.cosine, neighbour(credits, grads, 0), tolerance)
    assert same(m.cosine_above, neighbour(credits, grads, 1), tolerance)
    assert same(m.cosine_below, neighbour(credits, grads, -1), tolerance)
    beside = [
        [c for u, v in zip(a, b) if (c := cosine(u, v)) is not None] for a, b in pairwise(grads) if a.shape == b.shape
    ]
    found = [c for c in m.gradient_next[:-1] if c is not None]
    assert found == pytest.approx([sum(c) / len(c) for c in beside if c], abs=tolerance)


# -- networks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(128,), (7, 100, 50), (256,)])
@pytest.mark.parametrize("depth", [1, 4])
def test_a_residual_mlp_with_random_feedback(depth: int, sizes: tuple[int, ...]) -> None:
    """Gradients are matrix products; a_l = e B_l. However the samples are cut into batches, it is the same mean."""
    spec = Linear.random(depth, 8, seed=depth, gain=3.0)
    x, y = spec.data(256)
    rng = np.random.default_rng(3)
    matrices = [rng.normal(size=(4, 8)) + tilt * spec.head for tilt in np.linspace(1.0, -0.5, depth + 1)]

    def credit(trace: wb.Trace) -> list[Tensor]:
        error = trace.logits.softmax(1) - F.one_hot(trace.labels, 4)
        return [error @ torch.from_numpy(b) for b in matrices]

    m = wb.measure(spec.net(), batched(x, y, *sizes), credit=credit, loss=spec.loss)
    agree(m, [spec.error(x, y) @ b for b in matrices], spec.grads(x, y))
    assert m.cosine_above[-1] is None, "there is no site above the last"
    assert m.cosine_below[0] is None, "and none below the first"


def shifted_about(trace: wb.Trace) -> list[Tensor]:
    """A credit that is partly its neighbour's gradient: no two of the three cosines agree."""
    return [
        g + 0.5 * trace.grads[max(site - 1, 0)] + 0.1 * h for site, (g, h) in enumerate(zip(trace.grads, trace.states))
    ]


def the_same(states: Sequence[Array], grads: Sequence[Array]) -> list[Array]:
    return [g + 0.5 * grads[max(site - 1, 0)] + 0.1 * h for site, (g, h) in enumerate(zip(grads, states))]


@pytest.mark.parametrize(
    ("kind", "reads"), [("flat", "cls"), ("tokens", "cls"), ("tokens", "mean"), ("tokens", "own"), ("maps", "cls")]
)
@pytest.mark.parametrize("chunk", [None, 30])
def test_networks_of_vectors_tokens_and_maps(kind: str, reads: str, chunk: int | None) -> None:
    """Every gradient by its own backward pass from a fresh leaf. Of tokens, all that a site has make one vector."""
    net = SmoothNet(kind, reads)
    x, y = net.example(150)
    m = wb.measure(net, batched(x, y, 70), credit=shifted_about, chunk=chunk)
    grads = autograd_gradients(net, x, y)
    agree(m, the_same([h.numpy() for h in net.stream(x)], grads), grads, 1e-10)


class Stages(nn.Module):
    """h_1 = (I + A) h_0 in 4 dimensions, h_2 = C h_1 in 6, h_3 = (I + D) h_2, logits = V h_3."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        self.matrices = [rng.normal(size=shape) / 3 for shape in ((4, 5), (4, 4), (6, 4), (6, 6), (3, 6))]
        self.matrices[1] += np.eye(4)
        self.matrices[3] += np.eye(6)
        layers = [nn.Linear(w.shape[1], w.shape[0], bias=False, dtype=torch.float64) for w in self.matrices]
        with torch.no_grad():
            for layer, w in zip(layers, self.matrices):
                layer.weight.copy_(torch.from_numpy(w))
        self.embed, self.head, self.blocks = layers[0], layers[4], nn.ModuleList(layers[1:4])

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)

    def numpy(self, x: Array, y: Array) -> tuple[list[Array], list[Array]]:
        """h_0…h_3 and g_0…g_3."""
        states = [x @ self.matrices[0].T]
        for w in self.matrices[1:4]:
            states.append(states[-1] @ w.T)
        grads = [softmax_error(states[-1] @ self.matrices[4].T, y) @ self.matrices[4]]
        for w in reversed(self.matrices[1:4]):
            grads.insert(0, grads[0] @ w)
        return states, grads


def staged(n: int = 200) -> tuple[Stages, Array, Array, list[tuple[Tensor, Tensor]]]:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(n, 5)), rng.integers(3, size=n)
    return Stages(), x, y, batched(x, y, 64)


def test_a_stream_that_changes_shape_has_no_neighbour_there() -> None:
    net, x, y, batches = staged()
    m = wb.measure(net, batches, credit=lambda t: [g + h for g, h in zip(t.grads, t.states)])
    states, grads = net.numpy(x, y)
    credits = [g + h for g, h in zip(grads, states)]
    agree(m, credits, grads)
    assert [v is None for v in m.cosine_above] == [False, True, False, True]
    assert [v is None for v in m.cosine_below] == [True, False, True, False]
    for name in ("cosine_above", "cosine_below"):
        assert "changes shape" in m.reasons[name]


def test_the_reason_at_a_change_of_shape_is_not_that_of_another_site() -> None:
    """No credit at site 3 says nothing about site 1, whose neighbour has another shape."""
    net, _, _, batches = staged()
    m = wb.measure(net, batches, credit=lambda t: [g * (site < 3) for site, g in enumerate(t.grads)])
    assert m.cosine_above[1] is None
    assert "changes shape between sites 1 and 2" in m.reasons["cosine_above"]
    assert "site 3: the credit is zero" in m.reasons["cosine_below"]
    assert "changes shape between sites 1 and 2" in m.reasons["cosine_below"]


class Folding(nn.Module):
    """(1, 4, 4) maps become (4, 2, 2) maps: sixteen numbers before and after, in other places."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Conv2d(1, 1, 1).double(), nn.Linear(16, 3).double()
        self.blocks = nn.ModuleList([nn.PixelUnshuffle(2), Step(4, 4, 1).double()])

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks[1](self.blocks[0](self.embed(x))).flatten(1))


class Step(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


def test_maps_that_are_folded_are_not_compared_because_they_are_equally_large() -> None:
    torch.manual_seed(0)
    net, batches = Folding(), batched(torch.randn(160, 1, 4, 4).double(), torch.randint(3, (160,)), 80)
    m = wb.measure(net, batches, credit=lambda t: t.grads)
    assert m.conditions["state_shapes"] == [[1, 4, 4], [4, 2, 2], [4, 2, 2]]
    assert [v is None for v in m.cosine_above] == [True, False, True]
    assert [v is None for v in m.cosine_below] == [True, True, False]
    assert "changes shape between sites 0 and 1" in m.reasons["cosine_above"]


# -- what has no direction ------------------------------------------------------------------------------------------


def traced(change: Callable[[wb.Trace], wb.Trace]) -> tuple[wb.Measurements, list[Array], list[Array]]:
    """A healthy network in float64 whose trace is changed before it is measured."""
    net, meter, kept = wb.selftest.healthy().double(), Meter(), []
    with wb.Tracer(net) as tracer:
        for x, y in wb.selftest.batches(2, 60):
            kept.append(change(tracer.trace(x.double(), y, shifted_about)))
            meter.update(kept[-1])
    assert kept[0].credits is not None
    sides = [[np.concatenate([t.numpy() for t in site]) for site in zip(*part)] for part in (
        [trace.credits for trace in kept], [trace.grads for trace in kept])]  # fmt: skip
    return meter.result(), sides[0], sides[1]


def test_samples_without_a_credit_count_as_no_alignment_and_a_site_without_any_has_none() -> None:
    """Every third sample at site 2, all of them at site 3."""

    def change(trace: wb.Trace) -> wb.Trace:
        assert trace.credits is not None
        credits = [a.clone() for a in trace.credits]
        credits[2][::3] = 0
        credits[3][:] = 0
        return replace(trace, credits=tuple(credits))

    m, credits, grads = traced(change)
    agree(m, credits, grads)
    assert m.cosine_above[3] is m.cosine_below[3] is None
    for name in ("cosine_above", "cosine_below"):
        assert m.reasons[name] == "site 3: the credit is zero for every sample"


def test_samples_whose_neighbour_has_no_gradient_are_left_out() -> None:
    """Half of the samples at site 2, all of them at site 4: what has no direction there has no cosine with it."""

    def change(trace: wb.Trace) -> wb.Trace:
        grads = [g.clone() for g in trace.grads]
        grads[2][::2] = 0
        grads[4][:] = 0
        return replace(trace, grads=tuple(grads))

    m, credits, grads = traced(change)
    agree(m, credits, grads)
    assert m.cosine_above[3] is None
    assert m.cosine_below[4] is not None, "the credit of the last site and the gradient below it are there"
    assert "site 4: the reference is zero" in m.reasons["cosine_above"]


def test_no_sample_that_has_both_is_said() -> None:
    """One half of the samples has a credit at site 1, the other half a gradient at site 2."""

    def change(trace: wb.Trace) -> wb.Trace:
        assert trace.credits is not None
        credits, grads = [a.clone() for a in trace.credits], [g.clone() for g in trace.grads]
        credits[1][::2] = 0
        grads[2][1::2] = 0
        return replace(trace, credits=tuple(credits), grads=tuple(grads))

    m, credits, grads = traced(change)
    agree(m, credits, grads)
    assert m.cosine[1] is not None
    assert m.cosine[2] is not None
    assert m.cosine_above[1] is None
    assert m.reasons["cosine_above"] == "no sample has a direction at both of two neighbouring sites"
    assert "cosine_below" not in m.reasons


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_leaves_no_cosine_with_it(value: float) -> None:
    """One sample of 120: a mean over the others would be another number, given for it."""

    def change(trace: wb.Trace) -> wb.Trace:
        grads = [g.clone() for g in trace.grads]
        grads[2][5, 0] = value
        return replace(trace, grads=tuple(grads))

    m, _, _ = traced(change)
    assert [v is None for v in m.cosine] == [False, False, True, False, False]
    assert [v is None for v in m.cosine_above] == [False, True, False, False, True]
    assert [v is None for v in m.cosine_below] == [True, False, False, True, False]
    for name in ("cosine_above", "cosine_below"):
        assert m.reasons[name] == "site 2: credit or reference is not finite"


def test_a_loss_that_is_nan_for_one_sample_leaves_no_cosine_at_all() -> None:
    def loss(logits: Tensor, y: Tensor) -> Tensor:
        weights = torch.ones(len(y))
        weights[3] = math.nan
        return weights * F.cross_entropy(logits, y, reduction="none")

    m = wb.measure(wb.selftest.healthy(), wb.selftest.batches(2), credit=lambda t: t.states, loss=loss)
    assert m.cosine == m.cosine_above == m.cosine_below == [None] * 5
    assert "not finite" in m.reasons["cosine_above"]


# -- what it is for -------------------------------------------------------------------------------------------------


def test_bp_is_one_and_its_neighbours_mirror_each_other() -> None:
    m = wb.measure(wb.selftest.healthy(), wb.selftest.batches(2), credit=lambda t: t.grads)
    assert m.cosine == pytest.approx([1.0] * 5, abs=1e-12)
    assert m.cosine_above[:-1] == pytest.approx(m.cosine_below[1:], abs=1e-12)
    assert all(0.9 < c < 0.99 for c in m.cosine_above[:-1])


@pytest.mark.parametrize("step", [1, -1])
def test_a_credit_one_site_off_is_exact_at_its_neighbour(step: int) -> None:
    """It looks aligned where it stands, at 0.9 and more: only the neighbour tells."""

    def credit(trace: wb.Trace) -> list[Tensor]:
        return [trace.grads[min(max(site + step, 0), 4)] for site in range(5)]

    m = wb.measure(wb.selftest.healthy(), wb.selftest.batches(2), credit=credit)
    better = m.cosine_above[:-1] if step == 1 else m.cosine_below[1:]
    own = m.cosine[:-1] if step == 1 else m.cosine[1:]
    assert better == pytest.approx([1.0] * 4, abs=1e-12)
    assert all(0.9 < c < 0.99 for c in own)


@pytest.mark.parametrize(("loss", "size"), [(1e-30, 1.0), (1.0, 1e-30), (1e20, 1e-20)])
def test_neither_the_scale_of_the_loss_nor_that_of_the_credit_matters(loss: float, size: float) -> None:
    net, batches = wb.selftest.healthy().double(), [(x.double(), y) for x, y in wb.selftest.batches(2)]
    base = wb.measure(net, batches, credit=shifted_about)
    m = wb.measure(
        net,
        batches,
        credit=lambda t: [
            size * (g / loss + 0.5 * t.grads[max(s - 1, 0)] / loss + 0.1 * t.states[s]) for s, g in enumerate(t.grads)
        ],
        loss=lambda z, y: loss * F.cross_entropy(z, y, reduction="none"),
    )
    assert m.cosine_above[:-1] == pytest.approx(base.cosine_above[:-1], abs=1e-9)
    assert m.cosine_below[1:] == pytest.approx(base.cosine_below[1:], abs=1e-9)


def test_without_a_credit_there_are_none_and_a_report_says_why() -> None:
    m = wb.measure(wb.selftest.healthy(), wb.selftest.batches(2))
    assert m.cosine_above == m.cosine_below == []
    assert m.reasons["cosine_above"] == m.reasons["cosine_below"] == "no credit was given"
    report = wb.diagnose(wb.selftest.healthy(), wb.selftest.batches(2), credit=lambda t: t.grads)
    assert len(report.per_layer["cosine_above"]) == len(report.per_layer["cosine_below"]) == 5
