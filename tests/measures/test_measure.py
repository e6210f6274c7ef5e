"""Every measured number against a second derivation: closed forms of linear networks, in numpy float64."""

from __future__ import annotations

import copy
import dataclasses
import tracemalloc
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor

import walkback as wb
from nets import (
    Linear,
    SmoothNet,
    autograd_gradients,
    batched,
    cos,
    groups,
    mean_cosine,
    mean_norm,
    mean_pairwise,
)
from walkback.measures import formulas
from walkback.measures.accumulate import Meter
from walkback.measures.formulas import PUBLISHED_BATCH, growth, pairwise_cosine
from walkback.measures.quantities import NEED_CREDIT, PER_SITE, QUANTITIES, SCALAR_FIELDS, SITE_FIELDS
from walkback.measures.stream import Prints
from walkback.notes import Note, coded

EXACT = 1e-10  # float64 against float64: only the order of additions differs


def close(want: object, rel: float = EXACT):
    return pytest.approx(want, rel=rel, abs=1e-13)


class Feedback:
    """a_l = e B_l with e = ∂loss/∂logits: torch for the package, numpy for the test. `exact` gives a_L = g_L (FA)."""

    def __init__(self, spec: Linear, exact: bool = False, seed: int = 5) -> None:
        rng = np.random.default_rng(seed)
        shape = spec.head.shape
        self.spec = spec
        # Partly aligned, each site differently, so that no two sites and no two orders of averaging agree.
        self.matrices = [
            rng.normal(size=shape) + tilt * spec.head for tilt in np.linspace(1.5, -0.4, len(spec.layers) + 1)
        ]
        if exact:
            self.matrices[-1] = spec.head

    def __call__(self, trace: wb.Trace) -> list[Tensor]:
        onehot = F.one_hot(trace.labels, trace.logits.shape[1])
        e = self.spec.scale * (trace.logits.softmax(1) - onehot)
        return [e @ torch.from_numpy(b).to(e.dtype) for b in self.matrices]

    def numpy(self, x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
        e = self.spec.error(x, y)
        return [e @ b for b in self.matrices]


@pytest.fixture(params=[(3, 8, 384, (128,)), (1, 4, 300, (100,)), (5, 6, 421, (7, 300, 50)), (2, 16, 256, (255, 1))])
def case(request: pytest.FixtureRequest):
    depth, width, n, sizes = request.param
    spec = Linear.random(depth, width, seed=depth, gain=3.0)
    x, y = spec.data(n)
    credit = Feedback(spec)
    m = wb.measure(spec.net(), batched(x, y, *sizes), credit=credit, loss=spec.loss)
    return spec, x, y, credit, m


# -- closed forms -----------------------------------------------------------------------------------------


def test_state_and_gradient_norms(case):
    spec, x, y, _, m = case
    assert m.h_norm == close([mean_norm(h) for h in spec.states(x)])
    assert m.g_norm == close([mean_norm(g) / 128 for g in spec.grads(x, y)])


def test_growth_is_the_largest_ratio_and_the_product_of_all(case):
    spec, x, _, _, m = case
    norms = [mean_norm(h) for h in spec.states(x)]
    ratios = [b / a for a, b in pairwise(norms)]
    assert m.growth == close(max(ratios))
    assert m.growth_total == close(float(np.prod(ratios)))


def test_stability_is_the_mean_pairwise_cosine_of_group_means(case):
    spec, x, y, _, m = case
    deepest = spec.grads(x, y)[-1]
    vectors = groups(deepest)
    assert len(vectors) == len(x) // 128
    assert m.stability == close(mean_pairwise(vectors))
    if len(x) % 128:  # the remainder would have changed it
        assert m.stability != pytest.approx(mean_pairwise([*vectors, deepest[len(vectors) * 128 :].mean(0)]), abs=1e-6)


def test_cosine_per_layer(case):
    spec, x, y, credit, m = case
    want = [mean_cosine(a, g) for a, g in zip(credit.numpy(x, y), spec.grads(x, y))]
    assert m.cosine == close(want)
    assert len(m.cosine) == len(spec.layers) + 1


def test_gamma_leaves_out_the_last_site(case):
    spec, x, y, credit, m = case
    want = [mean_cosine(a, g) for a, g in zip(credit.numpy(x, y), spec.grads(x, y))]
    assert m.gamma == close(float(np.mean(want[:-1])))
    assert m.deep_cosine == close(float(np.mean(want[1:])))
    parts = np.abs(want[:-1])
    assert m.gamma_concentration == close(float(parts.max() / parts.sum()))


def test_deep_cosine_leaves_out_an_exact_last_site():
    spec = Linear.random(3, 8, gain=3.0)
    x, y = spec.data(256)
    credit = Feedback(spec, exact=True)
    m = wb.measure(spec.net(), batched(x, y, 128), credit=credit, loss=spec.loss)
    want = [mean_cosine(a, g) for a, g in zip(credit.numpy(x, y), spec.grads(x, y))]
    assert want[-1] == pytest.approx(1.0, abs=1e-12)
    assert m.deep_cosine == close(float(np.mean(want[1:-1])))
    assert m.gamma == close(float(np.mean(want[:-1])))


def test_the_four_orders_of_averaging(case):
    spec, x, y, credit, m = case
    a, g = credit.numpy(x, y)[:-1], spec.grads(x, y)[:-1]
    by_group = [[cos(u, v) for u, v in zip(groups(p), groups(q))] for p, q in zip(a, g)]
    want = {
        "layers": float(np.mean([mean_cosine(p, q) for p, q in zip(a, g)])),
        "samples": mean_cosine(np.concatenate(a, 1), np.concatenate(g, 1)),
        "batches": float(np.mean(by_group)),
        "flattened": cos(np.concatenate([v.ravel() for v in a]), np.concatenate([v.ravel() for v in g])),
    }
    assert m.aggregates == close(want)
    if len(a) > 1:
        values = sorted(want.values())
        assert min(b - a for a, b in pairwise(values)) > 1e-4, "the orders must differ for this test to mean anything"


def test_orders_of_averaging_when_samples_have_very_different_lengths():
    spec = Linear.random(3, 8, gain=3.0)
    x, y = spec.data(384)
    x[::7] *= 4.0  # a few confident samples: an average over everything is theirs
    rng = np.random.default_rng(3)
    noise = [rng.normal(size=(384, 8)) * rng.lognormal(sigma=2, size=(384, 1)) for _ in range(4)]
    start = 0

    def credit(trace: wb.Trace) -> list[Tensor]:
        nonlocal start
        part = slice(start, start + len(trace.labels))
        start = part.stop
        return [torch.from_numpy(v[part]) + 0.5 * g for v, g in zip(noise, trace.grads)]

    m = wb.measure(spec.net(), batched(x, y, 96), credit=credit)
    g = spec.grads(x, y)
    a = [v + 0.5 * w for v, w in zip(noise, g)]
    assert m.cosine == close([mean_cosine(p, q) for p, q in zip(a, g)])
    assert m.aggregates == close(
        {
            "layers": float(np.mean([mean_cosine(p, q) for p, q in zip(a[:-1], g[:-1])])),
            "samples": mean_cosine(np.concatenate(a[:-1], 1), np.concatenate(g[:-1], 1)),
            "batches": float(np.mean([[cos(*uv) for uv in zip(groups(p), groups(q))] for p, q in zip(a[:-1], g[:-1])])),
            "flattened": cos(np.stack(a[:-1]).ravel(), np.stack(g[:-1]).ravel()),
        }
    )


# -- what torch's cosine would have said --------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("level", ["over ε", "at ε", "under ε"])
def test_clamped_cosine_is_what_torch_says(dtype: torch.dtype, level: str):
    plain = Linear.random(3, 8)
    x, y = plain.data(256)
    median = float(np.median([np.linalg.norm(g, axis=1) for g in plain.grads(x, y)]))
    spec = replace(plain, scale={"over ε": 1.0, "at ε": 128e-8 / median, "under ε": 1e-8}[level])
    credit = Feedback(plain)  # its own size, not the loss's
    a, g = credit.numpy(x, y), spec.grads(x, y)
    pairs = [(torch.tensor(p / 128, dtype=dtype), torch.tensor(q / 128, dtype=dtype)) for p, q in zip(a, g)]
    torch_says = [float(F.cosine_similarity(p, q).mean()) for p, q in pairs]  # walkback: ignore[P02]
    m = wb.measure(spec.net(dtype), batched(torch.from_numpy(x).to(dtype), y, 128), credit=credit, loss=spec.loss)
    near = {"abs": 1e-12 if dtype == torch.float64 else 1e-6}
    true = [mean_cosine(p, q) for p, q in zip(a, g)]
    assert m.cosine_clamped == pytest.approx(torch_says, **near)
    assert m.cosine == pytest.approx(true, **near)
    below = [float(np.mean(np.linalg.norm(q, axis=1) / 128 < 1e-8)) for q in g]
    assert m.below_eps == pytest.approx(below, abs=0 if dtype == torch.float64 else 1 / 256)
    distortion = max(abs(p - q) for p, q in zip(torch_says, true))
    if level == "over ε":
        assert below == [0.0] * 4
        assert distortion < 1e-6
    elif level == "at ε":
        assert all(0.1 < share < 0.9 for share in below), "both sides of ε must be there"
        assert distortion > 0.01
    else:
        assert below == [1.0] * 4
        assert abs(torch_says[0]) < 0.02 * abs(true[0])


def test_a_clamped_credit_counts_too():
    """F.cosine_similarity floors both norms: a tiny credit shrinks the cosine as a tiny reference does."""
    spec = Linear.random(2, 4)
    x, y = spec.data(128)
    tiny = Feedback(spec)
    tiny.matrices = [1e-7 * b for b in tiny.matrices]
    a, g = tiny.numpy(x, y), spec.grads(x, y)
    m = wb.measure(spec.net(), batched(x, y, 64), credit=tiny)
    pairs = [(torch.tensor(p / 128), torch.tensor(q / 128)) for p, q in zip(a, g)]
    want = [float(F.cosine_similarity(p, q).mean()) for p, q in pairs]  # walkback: ignore[P02]
    assert m.cosine_clamped == close(want)
    assert m.below_eps == [0.0] * 3
    assert m.cosine == close([mean_cosine(p, q) for p, q in zip(a, g)])


def test_a_credit_whose_squares_overflow_has_the_cosines_of_its_direction():
    spec = Linear.random(3, 8, gain=3.0)
    x, y = spec.data(256)
    credit = Feedback(spec)
    a, g = credit.numpy(x, y), spec.grads(x, y)
    m = wb.measure(spec.net(), batched(x, y, 64), credit=lambda t: [1e160 * v for v in credit(t)], probes=["intrinsic"])
    cosines = [mean_cosine(p, q) for p, q in zip(a, g)]
    assert m.cosine == close(cosines)
    assert m.cosine_clamped == close(cosines)
    assert m.gamma == close(float(np.mean(cosines[:-1])))
    assert m.aggregates["samples"] == close(mean_cosine(np.concatenate(a[:-1], 1), np.concatenate(g[:-1], 1)))
    by_group = [cos(u, v) for p, q in zip(a[:-1], g[:-1]) for u, v in zip(groups(p), groups(q))]
    assert m.aggregates["batches"] == close(float(np.mean(by_group)))
    assert m.aggregates["flattened"] is None
    assert "squares beyond float64" in m.reasons["aggregates"]
    plain = wb.measure(spec.net(), batched(x, y, 64), credit=credit, probes=["intrinsic"])
    assert m.null_dimension == close(plain.null_dimension)
    assert m.epsilon_share == close(plain.epsilon_share)
    assert m.float64_shift == pytest.approx(plain.float64_shift, abs=1e-13)


# -- shapes -----------------------------------------------------------------------------------------------


def read_at(v: np.ndarray, reads: str, net: SmoothNet, x: Tensor) -> np.ndarray:
    if reads == "own":
        return v[np.arange(len(v)), net.own(x).numpy()]
    return {"cls": v[:, 0], "last": v[:, -1]}[reads]


@pytest.mark.parametrize("reads", ["cls", "last", "own"])
def test_tokens_are_measured_where_the_readout_reads(reads: str):
    net = SmoothNet("tokens", reads)
    x, y = net.example(256)
    m = wb.measure(net, batched(x, y, 64))
    h, g = [v.numpy() for v in net.stream(x)], autograd_gradients(net, x, y)
    assert m.h_norm == close([mean_norm(read_at(v, reads, net, x)) for v in h])
    assert m.g_norm == close([mean_norm(read_at(v, reads, net, x)) / 128 for v in g])
    assert m.stability == close(mean_pairwise(groups(read_at(g[-1], reads, net, x))))
    assert m.conditions["pool"] == {"cls": 0, "last": -1, "own": "readout"}[reads]


def without(label: int, scale: float = 1.0):
    """Cross-entropy in which samples of one label have no gradient."""
    return lambda z, t: F.cross_entropy(z, t, reduction="none") * (t != label) * scale


@pytest.mark.parametrize("scale", [1.0, 1e-170])
def test_samples_whose_token_is_unknown_are_left_out_of_the_norms_of_states(scale: float):
    """Each sample is read at its own token, which a gradient of zero does not show; 1e-170 does, squared it is 0."""
    net = SmoothNet("tokens", "own")
    x, y = net.example(256)
    m = wb.measure(net, batched(x, y, 64), loss=without(0, scale), probes=["intrinsic"])
    h = [read_at(v.numpy(), "own", net, x) for v in net.stream(x)]
    known = (y != 0).numpy()
    assert m.conditions["pool"] == "readout"
    assert m.h_norm == close([mean_norm(v[known]) for v in h])
    assert m.h_norm != pytest.approx([mean_norm(v) for v in h], rel=1e-3), "they would have counted"
    assert coded(m.notes, "unread-samples") == [
        Note("unread-samples", None, {"samples": int(256 - known.sum()), "of": 256})
    ]
    if scale == 1:
        g = [read_at(v, "own", net, x) * known[:, None] for v in autograd_gradients(net, x, y)]
        assert m.g_norm == close([mean_norm(v) / 128 for v in g]), "without a gradient ‖g‖ is 0, and counts"
        assert m.stability == close(mean_pairwise(groups(g[-1])))
        assert m.stability_distinct == close(mean_pairwise(groups(g[-1])))


def test_a_token_that_all_others_share_is_that_of_samples_without_a_gradient():
    net = SmoothNet("tokens", "cls")
    x, y = net.example(256)
    m = wb.measure(net, batched(x, y, 64), loss=without(0))
    assert m.h_norm == close([mean_norm(v[:, 0].numpy()) for v in net.stream(x)])
    assert not coded(m.notes, "unread-samples")


def test_a_token_that_looked_shared_until_a_later_batch_is_not_kept_for_samples_without_a_gradient():
    net = SmoothNet("tokens", "own")
    x, y = net.example(130)
    own = net.own(x)
    order = torch.cat([(own == t).nonzero()[:1, 0] for t in (1, 2)])  # read at 1; at 2, but without a gradient
    order = torch.cat([order, torch.tensor([i for i in range(130) if i not in order])])
    x, y = x[order], y[order].clamp(min=1)
    y[1] = 0
    m = wb.measure(net, batched(x, y, 1, 1, 64), loss=without(0))
    rest = np.arange(130) != 1
    assert m.h_norm == close([mean_norm(read_at(v.numpy(), "own", net, x)[rest]) for v in net.stream(x)])
    assert [note.values for note in coded(m.notes, "unread-samples")] == [{"samples": 1, "of": 130}]


def test_without_any_gradient_the_token_to_read_is_not_known():
    net = SmoothNet("tokens", "own")
    data = batched(*net.example(256), 64)
    m = wb.measure(net, data, anatomy={"pool": "readout"}, loss=without(0, 0.0))
    assert (m.h_norm, m.g_norm, m.growth) == ([None] * 4, [0.0] * 4, None)
    assert m.reasons["h_norm"].startswith("256 of 256 samples have no gradient at the last site")
    flat = SmoothNet()
    data = batched(*flat.example(64), 64)
    assert wb.measure(flat, data, anatomy={"pool": "readout"}).h_norm == wb.measure(flat, data).h_norm


def test_pooled_tokens_give_the_mean_of_their_norms():
    net = SmoothNet("tokens", "mean")
    x, y = net.example(256)
    m = wb.measure(net, batched(x, y, 64))
    h, g = [v.numpy() for v in net.stream(x)], autograd_gradients(net, x, y)
    assert m.h_norm == close([float(np.linalg.norm(v, axis=2).mean()) for v in h])
    assert m.g_norm == close([float(np.linalg.norm(v, axis=2).mean()) / 128 for v in g])
    assert m.stability == close(mean_pairwise(groups(g[-1].mean(1))))


def test_maps_are_flattened():
    net = SmoothNet("maps")
    x, y = net.example(256)
    m = wb.measure(net, batched(x, y, 64), credit=lambda t: [h + g for h, g in zip(t.states, t.grads)])
    h, g = [v.numpy() for v in net.stream(x)], autograd_gradients(net, x, y)
    assert m.h_norm == close([mean_norm(v) for v in h])
    assert m.g_norm == close([mean_norm(v) / 128 for v in g])
    assert m.cosine == close([mean_cosine(u + v, v) for u, v in zip(h, g)])
    assert m.stability == close(mean_pairwise(groups(g[-1])))


@pytest.mark.parametrize("reads", ["cls", "mean"])
def test_cosines_of_tokens_take_the_whole_state(reads: str):
    net = SmoothNet("tokens", reads)
    x, y = net.example(256)
    m = wb.measure(net, batched(x, y, 64), credit=lambda t: [h + g for h, g in zip(t.states, t.grads)])
    h, g = [v.numpy() for v in net.stream(x)], autograd_gradients(net, x, y)
    assert m.cosine == close([mean_cosine(u + v, v) for u, v in zip(h, g)])


# -- labels and losses --------------------------------------------------------------------------------------


def same(a: wb.Measurements, b: wb.Measurements, rel: float = EXACT) -> None:
    assert a.h_norm == close(b.h_norm, rel)
    assert a.g_norm == close(b.g_norm, rel)
    assert a.stability == close(b.stability, rel)
    assert a.cosine == close(b.cosine, rel)


def scaled_state(trace: wb.Trace) -> list[Tensor]:
    return [h + g for h, g in zip(trace.states, trace.grads)]


def test_a_loss_may_return_its_mean():
    net = SmoothNet()
    x, y = net.example(300)
    data = batched(x, y, 100, 128, 72)
    per_sample = wb.measure(net, data, loss=lambda z, t: F.cross_entropy(z, t, reduction="none"), credit=scaled_state)
    mean = wb.measure(net, data, loss=F.cross_entropy, credit=scaled_state)
    same(mean, per_sample)
    same(wb.measure(net, data, credit=scaled_state), per_sample)
    want = [mean_norm(g) / 128 for g in autograd_gradients(net, x, y)]
    assert mean.g_norm == close(want)


def test_soft_labels_equal_to_one_hot_change_nothing():
    net = SmoothNet()
    x, y = net.example(256)
    hard = wb.measure(net, batched(x, y, 128), credit=scaled_state)
    same(wb.measure(net, batched(x, F.one_hot(y).double(), 128), credit=scaled_state), hard)
    softer = wb.measure(net, batched(x, 0.9 * F.one_hot(y).double() + 0.025, 128))
    assert softer.g_norm[0] != pytest.approx(hard.g_norm[0], rel=1e-3)


def test_token_labels_average_the_loss_over_a_samples_tokens():
    """(B, T) labels: per sample the mean over its labelled tokens; −100 marks tokens that don't count."""
    spec = Linear.random(2, 6, gain=3.0)
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(256, 3, 5)), rng.integers(4, size=(256, 3))
    y[::2, 1] = -100
    counted = y != -100
    flat_error = spec.error(x.reshape(-1, 5), np.where(counted, y, 0).ravel()).reshape(256, 3, 4)
    error = flat_error * counted[..., None] / counted.sum(1)[:, None, None]
    g = [error @ spec.head]
    for w in reversed(spec.layers):
        g.insert(0, g[0] + g[0] @ w)
    m = wb.measure(spec.net(), batched(x, y, 64))
    assert m.g_norm == close([float(np.linalg.norm(v, axis=2).mean()) / 128 for v in g])
    assert m.h_norm == close([float(np.linalg.norm(v, axis=1).mean()) for v in spec.states(x.reshape(-1, 5))])
    assert m.stability == close(mean_pairwise(groups(g[-1].mean(1))))


def test_a_token_sample_without_labels_has_no_gradient():
    spec = Linear.random(2, 6)
    x, y = np.random.default_rng(4).normal(size=(2, 3, 5)), np.array([[-100, -100, -100], [0, 1, 2]])
    with wb.Tracer(spec.net()) as tracer:
        trace = tracer.trace(*batched(x, y, 2)[0])
    assert float(trace.grads[0][0].norm()) == 0.0
    assert float(trace.losses[0]) == 0.0
    assert float(trace.grads[0][1].norm()) > 0.0


# -- the masked alignment of a widely read implementation ---------------------------------------------------


def masked_alignment(a: Tensor, g: Tensor) -> float:
    """Entries with |g| ≤ 1e-8 are set to zero, and a sample with nothing left counts as aligned."""
    g = torch.where(g.abs() <= 1e-8, 0.0, g)
    empty = (g == 0).all(1)
    return float(torch.where(empty, 1.0, F.cosine_similarity(a, g)).mean())  # walkback: ignore[P02]


def against_masked(net: SmoothNet, scale: float, tolerance: float = 1e-5) -> tuple[list[float], wb.Measurements]:
    """(what the masked alignment says of a random credit per site, the Measurements), checked against float64."""
    x, y = net.example(512)
    wide = copy.deepcopy(net).double()
    generator = torch.Generator().manual_seed(3)
    seen: list[tuple[list[Tensor], list[Tensor]]] = []

    def credit(trace: wb.Trace) -> list[Tensor]:
        made = [torch.randn(h.shape, generator=generator) for h in trace.states]
        seen.append((made, [g / len(trace.labels) for g in trace.grads]))  # of a mean loss, as scripts have it
        return made

    data = batched(x.float(), y, 128)
    m = wb.measure(net.float(), data, credit=credit, loss=lambda z, t: scale * F.cross_entropy(z, t, reduction="none"))
    a, g = ([torch.cat(site) for site in zip(*part)] for part in zip(*seen))
    true = [mean_cosine(p.numpy(), q) for p, q in zip(a, autograd_gradients(wide, x.float().double(), y))]
    assert m.cosine == pytest.approx(true, abs=tolerance)
    return [masked_alignment(p, q) for p, q in zip(a, g)], m


def test_masking_small_gradients_reports_alignment_where_there_is_none():
    masked, m = against_masked(SmoothNet(width=24), scale=1e-7)
    assert masked == [1.0] * 4
    assert all(abs(c) < 0.05 for c in m.cosine)


def test_masking_small_gradients_is_wrong_in_part_before_it_is_wrong_in_full():
    masked, m = against_masked(SmoothNet(width=24), scale=1e-6)
    assert max(abs(p - c) for p, c in zip(masked, m.cosine)) > 0.05
    assert all(abs(c) < 0.05 for c in m.cosine)


def test_masking_small_gradients_on_an_exploded_network():
    net = SmoothNet(width=24)
    with torch.no_grad():
        for level, block in enumerate(net.blocks, 1):
            block.body.second.weight.mul_(300.0**level)
    masked, m = against_masked(net, scale=1.0, tolerance=1e-3)  # float32 rounds a stream of 1e8
    assert m.growth > 50
    assert m.g_norm[-1] < 1e-7
    assert masked[-1] == 1.0
    assert abs(m.cosine[-1]) < 0.05


def test_masking_is_harmless_where_gradients_are_large():
    """The check above must not depend on the masked formula being wrong everywhere."""
    masked, m = against_masked(SmoothNet(width=24), scale=1.0)
    assert masked == pytest.approx(m.cosine, abs=1e-4)


# -- what can't be measured says why ------------------------------------------------------------------------


def zero_head(net: SmoothNet) -> SmoothNet:
    with torch.no_grad():
        net.head.weight.zero_()
    return net


def test_a_zero_reference_has_no_cosine():
    net = zero_head(SmoothNet())
    x, y = net.example(256)
    m = wb.measure(net, batched(x, y, 128), credit=lambda t: t.states)
    assert m.cosine == [None] * 4
    assert "site 0: the reference is zero or underflowed" in m.reasons["cosine"]
    assert "for every sample" in m.reasons["cosine"]
    assert (m.gamma, m.deep_cosine, m.gamma_concentration) == (None, None, None)
    assert {"gamma", "deep_cosine", "gamma_concentration", "aggregates"} <= set(m.reasons)
    assert set(m.aggregates.values()) == {None}
    assert m.stability is None
    assert "zero or not finite in 2 groups" in m.reasons["stability"]
    assert m.g_norm == [0.0] * 4


def test_a_zero_credit_has_no_cosine():
    net = SmoothNet()
    x, y = net.example(256)
    m = wb.measure(net, batched(x, y, 128), credit=lambda t: [t.states[0] * 0, *t.states[1:]])
    assert m.cosine[0] is None
    assert None not in m.cosine[1:]
    assert m.reasons["cosine"] == "site 0: the credit is zero for every sample"
    assert m.gamma is None
    assert m.deep_cosine is not None
    assert [(note.site, note.values["cause"]) for note in coded(m.notes, "no-cosine")] == [(0, "credit")]
    assert m.zero_credit == [1.0, 0.0, 0.0, 0.0]
    assert not coded(m.notes, "zero-credit", "zero-credit-site"), "the other sites have one, of every sample"


def test_a_credit_that_float32_rounds_away_is_told_apart_from_a_bad_one():
    """EP's credit is a difference of states: on a stream of 1e6 it is zero in float32, and there in float64."""
    torch.manual_seed(0)
    net = wb.nets.build("resmlp", (8,), 3, width=16, depth=2).eval()
    x, y = torch.randn(256, 8), torch.randint(3, (256,))

    def measured(net, x):
        rule = wb.rules.EP(steps=2)
        wb.rules.set_up(rule, net, x, 3, torch.Generator())
        return wb.measure(net, batched(x, y, 128), credit=rule)

    assert not coded(measured(net, x).notes, "zero-credit")
    with torch.no_grad():
        net.blocks[-1].w2.bias.normal_(std=1e6)
    assert measured(net, x).cosine == [None] * 3
    assert measured(net, x).zero_credit == [1.0] * 3
    assert len(coded(measured(net, x).notes, "zero-credit")) == 1
    exact = measured(net.double(), x.double())
    assert exact.cosine[0] is None
    assert min(exact.cosine[1:]) > 0.3
    assert not coded(exact.notes, "zero-credit")


def test_samples_without_a_reference_are_left_out_and_counted():
    spec = Linear.random(2, 6, gain=3.0)
    x, y = spec.data(256)
    silent = np.arange(256) % 4 == 0

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, reduction="none") * torch.from_numpy(~silent[: len(labels)])

    credit = Feedback(spec)
    m = wb.measure(spec.net(), batched(x, y, 128), credit=credit, loss=loss)
    want = [mean_cosine(a[~silent], g[~silent]) for a, g in zip(credit.numpy(x, y), spec.grads(x, y))]
    assert m.cosine == close(want)
    assert [(n.site, n.values["samples"], n.values["cause"]) for n in coded(m.notes, "cosine-left-out")] == [
        (site, 64, "reference") for site in range(3)
    ]
    assert coded(m.notes, "cosine-left-out")[0].text.startswith("cosine at site 0 leaves out 64 of 256 samples: ")


def each(a: np.ndarray, g: np.ndarray) -> np.ndarray:
    """The cosine of each sample."""
    return np.array([cos(u, v) for u, v in zip(a, g)])


def silenced(spec: Linear, silent: np.ndarray, sites: tuple[int, ...], seed: int = 5) -> tuple[Feedback, object]:
    """Random feedback, and the same with no credit at some sites for some of the samples of every batch of 128."""
    credit, keep = Feedback(spec, seed=seed), torch.from_numpy(~silent[:128])

    def made(trace: wb.Trace) -> list[Tensor]:
        return [a * keep[:, None] if site in sites else a for site, a in enumerate(credit(trace))]

    return credit, made


def test_samples_without_credit_count_as_no_alignment():
    """A rule that teaches a quarter of the samples nothing is aligned for three quarters of them at most."""
    spec = Linear.random(2, 6, gain=3.0)
    x, y = spec.data(1024)
    silent = np.arange(1024) % 4 == 0
    credit, made = silenced(spec, silent, (0, 1))
    m = wb.measure(spec.net(), batched(x, y, 128), credit=made)
    a, g = credit.numpy(x, y), spec.grads(x, y)
    per_sample = [np.where(silent & (site < 2), 0.0, each(p, q)) for site, (p, q) in enumerate(zip(a, g))]
    assert m.cosine == close([c.mean() for c in per_sample])
    assert m.zero_credit == [0.25, 0.25, 0.0]
    assert m.gamma == close(np.mean([c.mean() for c in per_sample[:-1]]))
    whole = [np.concatenate(part[:-1], 1) for part in (a, g)]
    assert m.aggregates["samples"] == close(np.where(silent, 0.0, each(*whole)).mean())
    for name, shift in (("cosine_above", 1), ("cosine_below", -1)):
        for site, value in enumerate(getattr(m, name)):
            if not 0 <= site + shift <= 2:
                assert value is None
                continue
            zero = silent if site < 2 else np.zeros(1024, bool)
            assert value == close(np.where(zero, 0.0, each(a[site], g[site + shift])).mean()), (name, site)
    assert coded(m.notes, "zero-credit-site") == [
        Note("zero-credit-site", site, {"samples": 256, "of": 1024}) for site in (0, 1)
    ]
    assert not coded(m.notes, "cosine-left-out", "no-cosine", "zero-credit")
    report = wb.judge(m, headline_acc=0.6, frozen_baseline_acc=0.3)
    assert "zero credit" in report.details()
    assert wb.judge(report) == report
    assert "zero credit" not in wb.judge(wb.measure(spec.net(), batched(x, y, 128), credit=credit)).details()


def test_samples_without_credit_are_in_the_band_of_chance_and_in_the_interval():
    """Turned at random a zero stays zero: the mean over all samples is as much smaller as over those with credit."""
    spec = Linear.random(2, 6, gain=3.0)
    x, y = spec.data(512)
    silent = np.arange(512) % 4 == 0
    credit, made = silenced(spec, silent, (0, 1, 2))
    every = wb.measure(spec.net(), batched(x, y, 128), credit=made)
    rest = wb.measure(spec.net(), batched(x[~silent], y[~silent], 128), credit=credit)
    assert every.cosine == close([0.75 * c for c in rest.cosine])
    assert every.null_dimension == close([k / 0.75**2 for k in rest.null_dimension])
    pairs = zip(credit.numpy(x, y), spec.grads(x, y))
    means = [np.where(silent, 0.0, each(a, g)).reshape(4, 128).mean(1) for a, g in pairs]
    half = [float(stats.t.ppf(0.975, 3)) * np.std(c, ddof=1) / 2 for c in means]
    assert every.cosine_low == close([c - h for c, h in zip(every.cosine, half)])
    assert every.cosine_high == close([c + h for c, h in zip(every.cosine, half)])


def test_a_sample_with_neither_reference_nor_credit_is_left_out_and_not_counted():
    spec = Linear.random(2, 6, gain=3.0)
    x, y = spec.data(256)
    silent = np.arange(256) % 4 == 0
    credit, made = silenced(spec, silent, (0, 1, 2))

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, reduction="none") * torch.from_numpy(~silent[: len(labels)])

    m = wb.measure(spec.net(), batched(x, y, 128), credit=made, loss=loss)
    want = [mean_cosine(a[~silent], g[~silent]) for a, g in zip(credit.numpy(x, y), spec.grads(x, y))]
    assert m.cosine == close(want)
    assert m.zero_credit == [0.0] * 3
    assert not coded(m.notes, "zero-credit-site")
    assert [note.values["samples"] for note in coded(m.notes, "cosine-left-out")] == [64] * 3


@pytest.mark.parametrize("who", ["reference", "credit"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_named_as_such(who: str, value: float):
    """Also when only one sample has it: a mean over the others would be another quantity."""
    spec = Linear.random(2, 6)
    x, y = spec.data(256)

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        weight = torch.ones(len(labels), dtype=torch.float64)
        if who == "reference":
            weight[3] = value
        return F.cross_entropy(logits, labels, reduction="none") * weight

    def credit(trace: wb.Trace) -> list[Tensor]:
        made = [h.clone() for h in trace.states]
        if who == "credit":
            made[1][3] = value
        return made

    m = wb.measure(spec.net(), batched(x, y, 128), credit=credit, loss=loss)
    assert m.cosine[1] is None
    assert "site 1: credit or reference is not finite" in m.reasons["cosine"]
    assert (1, "nonfinite") in [(note.site, note.values["cause"]) for note in coded(m.notes, "no-cosine")]
    assert not coded(m.notes, "cosine-left-out", "zero-credit-site")
    if who == "reference":
        assert m.g_norm[1] is None
        assert "gradient not finite at site 1, first in batch 0" in m.reasons["g_norm"]


def test_float64_gradients_too_small_to_square_are_left_out_and_counted():
    """Confident samples of a float64 network have gradients of 1e-150; 1e-150² is not a float64."""
    spec = Linear.random(2, 6, gain=3.0)
    x, y = spec.data(256)
    tiny = np.arange(256) % 4 == 0
    weight = torch.from_numpy(np.where(tiny[:128], 1e-150, 1.0))
    credit = Feedback(spec)
    m = wb.measure(
        spec.net(),
        batched(x, y, 128),
        credit=lambda t: [a * weight[:, None] for a in credit(t)],
        loss=lambda z, t: F.cross_entropy(z, t, reduction="none") * weight,
    )
    a, g = ([v[~tiny] for v in part] for part in (credit.numpy(x, y), spec.grads(x, y)))
    assert m.cosine == close([mean_cosine(p, q) for p, q in zip(a, g)])
    assert m.aggregates["samples"] == close(mean_cosine(np.concatenate(a[:-1], 1), np.concatenate(g[:-1], 1)))
    first = coded(m.notes, "cosine-left-out")[0]
    assert (first.site, first.values["samples"], first.values["cause"]) == (0, 64, "reference")
    assert "underflowed" in first.text
    assert not coded(m.notes, "zero-credit-site"), "what is left out is not counted as no alignment"


@pytest.mark.parametrize("size", [1, 2, 100, 128, 512])
def test_stability_belongs_to_the_samples_and_not_to_their_batches(size: int):
    """One of 512 samples occurs twice: that is no repeated batch, in whatever batches the samples come."""
    net = SmoothNet()
    x, y = net.example(512)
    x[300], y[300] = x[3], y[3]
    m = wb.measure(net, batched(x, y, size))
    assert m.stability == close(mean_pairwise(groups(autograd_gradients(net, x, y)[-1])))
    assert m.conditions["distinct_samples"] == 511


def test_one_batch_of_less_than_two_groups_has_no_stability():
    net = SmoothNet()
    m = wb.measure(net, [net.example(255)])
    assert m.stability is None
    assert m.reasons["stability"] == "needs at least 2 disjoint batches, got 1"


def test_fewer_than_256_samples_have_no_stability():
    net = SmoothNet()
    x, y = net.example(255)
    m = wb.measure(net, batched(x, y, 64))
    assert m.stability is None
    assert "needs at least 2 groups of 128 samples" in m.reasons["stability"]
    assert "got 255 samples" in m.reasons["stability"]
    assert wb.measure(net, batched(*net.example(256), 64)).stability is not None


def test_a_repeated_batch_is_named():
    net = SmoothNet()
    data = batched(*net.example(512), 128)
    shuffled = torch.randperm(128, generator=torch.Generator().manual_seed(0))
    x, y = data[1]
    for again in (data[1], (x[shuffled], y[shuffled])):
        m = wb.measure(net, [*data, again])
        assert m.stability is None
        assert m.reasons["stability"] == "needs disjoint batches, but batch 4 repeats batch 1"


def test_overlapping_batches_are_told_by_their_share():
    net = SmoothNet()
    x, y = net.example(512)
    m = wb.measure(net, [*batched(x, y, 128), (x[64:192], y[64:192])])
    assert m.stability is None
    assert "20% of the samples occur more than once" in m.reasons["stability"]
    assert m.conditions["distinct_samples"] == 512


def test_fewer_than_128_samples_have_no_batch_aggregate():
    net = SmoothNet()
    m = wb.measure(net, batched(*net.example(100), 50), credit=scaled_state)
    assert m.aggregates["batches"] is None
    assert "batches: fewer than 128 samples" in m.reasons["aggregates"]
    assert m.aggregates["layers"] is not None


def test_no_credit_is_a_reason_and_not_a_cosine_of_one():
    net = SmoothNet()
    m = wb.measure(net, batched(*net.example(256), 128))
    assert m.cosine == []
    assert m.gamma is None
    assert m.reasons["cosine"] == m.reasons["gamma"] == "no credit was given"


def test_the_gradient_as_credit_is_one_and_is_said_to_be_bp():
    net = SmoothNet()
    m = wb.measure(net, batched(*net.example(256), 128), credit=lambda t: t.grads)
    assert m.cosine == close([1.0] * 4)
    assert coded(m.notes, "bp-itself")


# -- the formulas on their own ------------------------------------------------------------------------------


def test_the_published_batch_is_128():
    assert PUBLISHED_BATCH == 128


def test_growth_is_taken_within_stages_of_one_shape():
    """3 -> 6 is a change of shape, not growth."""
    rho, total, why = growth([1.0, 3.0, 60.0, 66.0], [(3,), (3,), (6,), (6,)])
    assert rho == pytest.approx(3.0)
    assert total is None
    assert "changes shape" in why
    assert growth([1.0, 9.0], [(3,), (6,)])[0] is None


@pytest.mark.parametrize("norms", [[0.0, 1.0], [1.0, 0.0, 2.0]])
def test_growth_from_nothing_has_no_value(norms: list[float]):
    rho, total, why = growth(norms)
    assert (rho, total) == (None, None)
    assert "is zero" in why


def test_pairwise_cosine_from_the_sum_of_unit_vectors():
    units = np.random.default_rng(0).normal(size=(7, 5))
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    got = pairwise_cosine(torch.from_numpy(units.sum(0)), 7)
    assert got == close(mean_pairwise(list(units)))


def test_a_meter_may_be_read_before_the_last_batch():
    spec = Linear.random()
    x, y = spec.data(384)
    meter = Meter()
    with wb.Tracer(spec.net()) as tracer:
        for done, (xb, yb) in enumerate(batched(x, y, 128), 1):
            meter.update(tracer.trace(xb, yb))
            assert meter.result().h_norm == close([mean_norm(h) for h in spec.states(x[: 128 * done])])


def test_one_sample_that_carries_the_mean_is_said():
    """A single huge input hides growth: relative to it no block adds anything."""
    batches = [(x.clone(), y) for x, y in wb.selftest.batches(2)]
    assert not coded(wb.measure(wb.selftest.network(gain=60.0), batches).notes, "outlier")
    batches[0][0][7] *= 1e6
    m = wb.measure(wb.selftest.network(gain=60.0), batches)
    (note,) = coded(m.notes, "outlier")
    with wb.Tracer(wb.selftest.network(gain=60.0)) as tracer:
        norms = torch.cat([tracer.trace(x, y).states[0].double().norm(dim=1) for x, y in batches])
    assert (note.site, note.values["of"], note.values["what"]) == (0, 256, "‖h‖")
    assert note.values["share"] == pytest.approx(float(norms.max() / norms.sum()))
    assert f"one of 256 samples carries {float(norms.max() / norms.sum()):.0%} of ‖h‖ at site 0" in note.text


# -- the table of quantities -----------------------------------------------------------------------------------------


def test_measurements_hold_the_quantities_of_the_table_and_nothing_changes_them():
    m = wb.measure(wb.selftest.healthy(), wb.selftest.batches(3), credit=wb.rules.BP(), probes=["intrinsic"])
    beside = {"aggregates", "probes", "nonfinite", "altered", "doubted", "dtype", "conditions", "reasons", "notes"}
    assert {f.name for f in dataclasses.fields(m)} - beside == {*SITE_FIELDS, *SCALAR_FIELDS}
    values = {name: [getattr(m, name)] for name in SCALAR_FIELDS} | {name: getattr(m, name) for name in SITE_FIELDS}
    assert {len(values[name]) for name in SITE_FIELDS if name != "h_norm_all"} == {5}  # only of tokens
    for name, numbers in values.items():
        low, high = QUANTITIES[name].low - 1e-9, QUANTITIES[name].high + 1e-9
        assert all(v is None or low <= v <= high for v in numbers), name
    with pytest.raises(dataclasses.FrozenInstanceError):
        m.gamma = 1.0


def test_every_mean_over_samples_has_its_formula():
    for q in PER_SITE:
        assert (q.accumulator == "mean") == callable(getattr(formulas, q.name, None)), q.name


def test_without_credit_every_quantity_that_needs_one_says_so():
    m = wb.measure(wb.selftest.healthy(), wb.selftest.batches(2))
    without = {name for name, why in m.reasons.items() if why == "no credit was given"}
    assert without == {*NEED_CREDIT, "aggregates"}


@pytest.mark.parametrize("batch", [128, 1024])
def test_a_sample_takes_less_than_eight_bytes(batch: int) -> None:
    """Also while samples are compared, and batches: what grows per batch counts too."""
    samples, prints = 2**20, Prints()
    tracemalloc.start()
    try:
        for index in range(samples // batch):
            prints.add(index, torch.arange(batch * index, batch * (index + 1)) % (samples // 2))
        assert prints.distinct() == samples // 2
        assert prints.repeats() == f"batch {samples // batch // 2} repeats batch 0"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 7 * samples < peak < 8 * samples


def test_samples_that_differ_in_one_bit_of_their_number_are_different() -> None:
    prints = Prints()
    prints.add(0, torch.tensor([0, *(1 << bit for bit in range(63)), -(2**63)]))
    assert prints.distinct() == 65


def test_the_first_batch_that_repeats_one_is_named() -> None:
    prints = Prints()
    for index, number in enumerate((5, 3, 9, 3, 5, 3)):
        prints.add(index, torch.tensor([number, 1]))
    assert prints.repeats() == "batch 3 repeats batch 1"


@pytest.mark.parametrize("sizes", [[3, 4, 2], [4096, 1, 9000], [20000]])
def test_prints_are_those_of_batches_however_they_come(sizes: list[int]) -> None:
    """Parts of a batch have its index, and `store` may come between them."""
    drawn = torch.randint(50, (sum(sizes),), generator=torch.Generator().manual_seed(0))
    prints = Prints()
    for index, batch in enumerate(drawn.split(sizes)):
        for part in batch.split(1500):
            prints.add(index, part)
        assert prints.distinct() == len(drawn[: sum(sizes[: index + 1])].unique())
    prints.store()
    assert list(prints._sums) == [int(batch.sum()) for batch in drawn.split(sizes)]
    assert +prints.sizes == Counter(sizes)
    assert prints.repeats() == ""
