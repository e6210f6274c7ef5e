"""Null bands, effective dimensions and intervals of cosines, against simulation and numpy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
import torch.nn.functional as F
from torch import Tensor

import walkback as wb
from nets import SmoothNet, batched
from walkback import rules
from walkback.measures.nulls import Coupling, null_half, reads_as
from walkback.nets import ResMLP
from walkback.report.html import card
from walkback.report.page_view import null_words
from walkback.rules.rule import set_up

N = 300


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def made(kind: str, d: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(latent (N, k), references (N, d)) of known structure; a credit is a random map of the latent."""
    if kind == "one direction":
        return np.ones((N, 1)), np.abs(rng.normal(size=(N, 1))) @ rng.normal(size=(1, d))
    if kind == "classes":  # an error signal of 5 classes and the gradient a readout makes of it
        e = rng.dirichlet(np.ones(5), size=N) - np.eye(5)[rng.integers(5, size=N)]
        return e, e @ rng.normal(size=(5, d))
    if kind == "uneven":  # three dimensions, of which one carries most
        z = rng.normal(size=(N, 3)) * np.array([4.0, 1.0, 0.5])
        return z, z @ rng.normal(size=(3, d))
    return np.eye(N), rng.normal(size=(N, d))  # every sample has a credit and a reference of its own


def mapped(z: np.ndarray, d: int, rng: np.random.Generator) -> np.ndarray:
    """A credit: the latent through a fresh random matrix."""
    b = rng.normal(size=(z.shape[1], d))
    return b if z.shape[0] == z.shape[1] else z @ b


def measured(a: np.ndarray, g: np.ndarray) -> float:
    """The effective dimension, as the meter adds it up, in three batches."""
    coupling = Coupling()
    for part in np.array_split(np.arange(len(a)), 3):
        inverse = np.stack([1 / np.linalg.norm(x[part].reshape(len(part), -1), axis=1) for x in (a, g)])
        coupling.add(torch.tensor(a[part]), torch.tensor(g[part]), torch.tensor(inverse))
    found = coupling.dimension(len(a))
    assert found is not None
    return found


KINDS = ("one direction", "classes", "uneven", "independent")


@pytest.mark.parametrize("d", [24, 96])
@pytest.mark.parametrize("kind", KINDS)
def test_the_band_holds_95_of_100_random_feedbacks(kind: str, d: int):
    """The band of one draw of B, against the cosines of 400 others."""
    rng = np.random.default_rng(0)
    z, g = made(kind, d, rng)
    half = null_half(measured(mapped(z, d, rng), g))
    ghat = unit(g)
    cosines = [np.mean(np.sum(unit(mapped(z, d, rng)) * ghat, 1)) for _ in range(400)]
    assert 0.90 < np.mean(np.abs(cosines) < half) < 0.985
    assert abs(np.mean(cosines)) < 4 * np.std(cosines) / np.sqrt(400), "the null has mean 0"


def test_neither_textbook_band_would_do():
    """1/√d is far too wide where credit and reference move in several dimensions, 1/√(d·n) far too narrow."""
    rng = np.random.default_rng(1)
    z, g = made("classes", 96, rng)
    spread = np.std([np.mean(np.sum(unit(z @ rng.normal(size=(5, 96))) * unit(g), 1)) for _ in range(400)])
    assert 1 / np.sqrt(96) > 1.5 * spread
    assert 1 / np.sqrt(96 * N) < spread / 4
    assert 1 / np.sqrt(measured(z @ rng.normal(size=(5, 96)), g)) == pytest.approx(spread, rel=0.2)


def test_the_variance_is_exact_under_rotations():
    """Var c = ‖N‖²/d for even rotations (QR of Gaussian matrices with the signs fixed)."""
    rng = np.random.default_rng(2)
    a, g = unit(rng.normal(size=(20, 6)) + 1.0), unit(rng.normal(size=(20, 6)) - 0.5)
    found = []
    for _ in range(4000):
        q, r = np.linalg.qr(rng.normal(size=(6, 6)))
        found.append(np.mean(np.sum((a @ (q * np.sign(np.diag(r))).T) * g, 1)))
    assert np.var(found) == pytest.approx(1 / measured(a, g), rel=0.1)


@pytest.mark.parametrize("shape", [(7,), (3, 7), (7, 2, 2)])
def test_the_effective_dimension_pair_by_pair(shape: tuple[int, ...]):
    """d/‖N‖² with ‖N‖² as the mean over all pairs of samples and positions, written out."""
    rng = np.random.default_rng(3)
    a, g = (rng.normal(size=(9, *shape)) + 0.5 for _ in range(2))
    last = [np.moveaxis(x.reshape(9, 7, -1), 1, 2) if len(shape) == 3 else x.reshape(9, -1, 7) for x in (a, g)]
    ahat, ghat = (x / np.linalg.norm(x.reshape(9, -1), axis=1)[:, None, None] for x in last)
    share = 0.0
    for i in range(9):
        for j in range(9):
            share += np.sum((ahat[i] @ ahat[j].T) * (ghat[i] @ ghat[j].T)) / 81
    assert measured(a, g) == pytest.approx(7 / share, rel=1e-9)


@pytest.mark.parametrize("scale", [1e-60, 1e-42, 1e60])
def test_a_credit_beyond_the_range_of_float32_has_the_band_of_its_direction(scale: float):
    """Credits in float64 beside gradients in float32."""
    net = SmoothNet().float()
    x, y = net.example(256)
    data = batched(x.float(), y, 128)

    def credit(trace: wb.Trace, size: float = 1.0) -> list[Tensor]:
        return [size * (g + torch.roll(g, 1, -1)).double() for g in trace.grads]

    with wb.Tracer(net) as tracer:
        traces = [tracer.trace(*batch) for batch in data]
    a = [np.concatenate(site) for site in zip(*(credit(t) for t in traces))]
    g = [np.concatenate(site).astype(float) for site in zip(*(t.grads for t in traces))]
    m = wb.measure(net, data, credit=lambda t: credit(t, scale))
    assert m.null_dimension == pytest.approx([measured(p, q) for p, q in zip(a, g)], rel=1e-5)
    assert "null_low" not in m.reasons


def test_only_the_first_samples_are_looked_at_and_the_rest_is_extrapolated():
    rng = np.random.default_rng(4)
    e = rng.dirichlet(np.ones(4), size=4096) - np.eye(4)[rng.integers(4, size=4096)]
    a, g = e @ rng.normal(size=(4, 16)), e @ rng.normal(size=(4, 16))
    some = Coupling()
    inverse = np.stack([1 / np.linalg.norm(x[:512], axis=1) for x in (a, g)])
    some.add(torch.tensor(a[:512]), torch.tensor(g[:512]), torch.tensor(inverse))
    assert some.dimension(4096) == pytest.approx(measured(a, g), rel=0.1)
    z, own = made("independent", 16, rng)
    alone = Coupling()
    ones = torch.ones(2, N, dtype=torch.float64)
    alone.add(torch.tensor(unit(mapped(z, 16, rng))), torch.tensor(unit(own)), ones)
    dimension = alone.dimension(10 * N)
    assert dimension is not None
    assert dimension > 3 * N * 16, "more samples narrow the band of unrelated samples"


@pytest.mark.parametrize("k", [2, 3, 5, 40, 1000])
def test_the_band_of_one_direction_in_k_dimensions(k: int):
    rng = np.random.default_rng(5)
    v = unit(rng.normal(size=(5000, k)))[:, 0]
    assert np.mean(np.abs(v) < null_half(k)) == pytest.approx(0.95, abs=0.012)


# -- in a report -----------------------------------------------------------------------------------------------------


def dfa(seed: int, d: int, sites: int, classes: int = 10):
    feedback = [torch.randn(classes, d, generator=torch.Generator().manual_seed(100 * seed + s)) for s in range(sites)]

    def credit(trace: wb.Trace) -> list[Tensor]:
        e = trace.logits.softmax(1) - F.one_hot(trace.labels, classes)
        return [e @ b.to(e.dtype) for b in feedback]

    return credit


def test_measured_bands_cover_fresh_feedback_and_call_it_noise():
    net, batches = wb.selftest.healthy(), wb.selftest.batches(4)
    found = [wb.measure(net, batches, credit=dfa(seed, 32, 5)) for seed in range(25)]
    high = found[0].null_high
    inside = [abs(c) < h for m in found[1:] for c, h in zip(m.cosine, high)]
    assert 0.88 < np.mean(inside) < 1.0
    assert found[0].null_low == [-h for h in high]
    assert all(0 < h < 0.5 for h in high)


def test_signal_and_noise_are_told_apart():
    net, batches = wb.selftest.healthy(), wb.selftest.batches(4)
    noise = dfa(0, 32, 5)

    def tilted(trace: wb.Trace) -> list[Tensor]:
        return [a / a.norm(dim=1, keepdim=True) + 0.5 * g / g.norm(dim=1, keepdim=True)
                for a, g in zip(noise(trace), trace.grads)]  # fmt: skip

    report = wb.diagnose(net, batches, credit=tilted)
    assert [report.reads_as(site) for site in range(5)] == ["signal"] * 5
    assert "signal" in str(report)
    assert "signal" in report.to_markdown()
    assert "signal" in report.to_latex()
    report = wb.diagnose(net, batches, credit=noise)
    assert "noise" in [report.reads_as(site) for site in range(5)]
    without = wb.diagnose(net, batches)
    assert without.reads_as(0) is None
    assert without.per_layer["null_low"] is None
    assert without.reasons["null_low"] == "no credit was given"
    assert "polygon" in card(report)
    assert null_words(report) == ""
    assert "polygon" not in card(without)
    assert "no credit was given" in null_words(without)


def test_a_cosine_whose_interval_reaches_into_the_band_is_noise():
    assert reads_as(0.06, -0.05, 0.05, (0.04, 0.08)) == "noise"
    assert reads_as(-0.06, -0.05, 0.05, (-0.07, -0.055)) == "signal"
    assert reads_as(None, -0.05, 0.05, (None, None)) is None
    assert reads_as(0.5, None, None, (0.4, 0.6)) is None


@pytest.mark.parametrize("size", [128, 100, 37])
def test_the_interval_is_that_of_group_means(size: int):
    net, (x, y) = wb.selftest.healthy(), (torch.cat(t) for t in zip(*wb.selftest.batches(5)))
    credit = dfa(1, 32, 5)
    m = wb.measure(net, batched(x, y, size), credit=credit)
    with wb.Tracer(net) as tracer:
        trace = tracer.trace(x, y, credit)
    assert trace.credits is not None
    for site in range(5):
        a, g = (t[site].double().numpy() for t in (trace.credits, trace.grads))
        cosines = np.sum(unit(a) * unit(g), 1)
        groups = cosines.reshape(5, 128).mean(1)
        low, high = scipy.stats.t.interval(0.95, 4, loc=cosines.mean(), scale=groups.std(ddof=1) / np.sqrt(5))
        assert (m.cosine_low[site], m.cosine_high[site]) == pytest.approx((low, high), abs=1e-7)


def test_no_interval_from_one_group_or_from_repeated_samples():
    net, batches = wb.selftest.healthy(), wb.selftest.batches(2)
    few = wb.diagnose(net, batches[:1], credit=dfa(1, 32, 5))
    assert few.per_layer["cosine_low"] is None
    assert "needs at least 2 groups of 128 samples, got 128 samples" in few.reasons["cosine_low"]
    twice = wb.diagnose(net, batches * 2, credit=dfa(1, 32, 5))
    assert "50% of them occur more than once" in twice.reasons["cosine_high"]
    assert twice.per_layer["null_high"] == pytest.approx(
        wb.diagnose(net, batches, credit=dfa(1, 32, 5)).per_layer["null_high"], rel=0.1
    )


@pytest.mark.parametrize(("kind", "width"), [("tokens", 6), ("maps", 6)])
def test_bands_of_tokens_and_maps_turn_features_only(kind: str, width: int):
    """DFA gives every position the same credit: fresh B stays in those, and so must its null."""
    net = SmoothNet(kind, reads="mean").float()
    x, y = net.example(256)
    batches = batched(x.float(), y, 64)

    def credit(seed: int):
        inner = dfa(seed, width, 4, classes=4)

        def place(trace: wb.Trace) -> list[Tensor]:
            flat = inner(trace)
            if kind == "tokens":
                return [a[:, None].expand_as(h) for a, h in zip(flat, trace.states)]
            return [a[:, :, None, None].expand_as(h) for a, h in zip(flat, trace.states)]

        return place

    found = [wb.measure(net, batches, credit=credit(seed)) for seed in range(20)]
    bands = np.median([m.null_high for m in found], axis=0)
    spread = np.std([m.cosine for m in found], axis=0)
    assert np.all(bands > 1.2 * spread)
    assert np.all(bands < 3.2 * spread)


# -- fresh feedback ------------------------------------------------------------------------------------------------


def trained(name: str, **options) -> tuple[ResMLP, rules.Rule, list[tuple[Tensor, Tensor]]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = ResMLP((16,), 10, width=24, depth=2).eval()
    rule = rules.make(name, **options)
    set_up(rule, net, torch.zeros(2, 16), 10, torch.Generator().manual_seed(3))
    return net, rule, wb.selftest.batches(4)


@pytest.mark.parametrize("name", ["fa", "dfa"])
def test_fresh_feedback_agrees_with_the_null_and_leaves_the_rule_alone(name: str):
    net, rule, batches = trained(name)
    before = {k: v.clone() for k, v in rule.state_dict().items()}
    report = wb.diagnose(net, batches, credit=rule, probes=(wb.FreshFeedback(draws=40, seed=1),))
    assert all(torch.equal(v, before[k]) for k, v in rule.state_dict().items())
    low, high, mean = (report.controls[f"fresh_{k}"] for k in ("low", "high", "mean"))
    sites = range(2 if name == "fa" else 3)  # FA's last site has the exact gradient
    for site in sites:
        assert low[site] < mean[site] < high[site]
        # 2.02·√(1 + 1/40) of a spread over 40 draws against 1.96 of the predicted one.
        assert (high[site] - low[site]) / 2 == pytest.approx(report.per_layer["null_high"][site], rel=0.5)
    told = report.conditions["fresh_feedback"]
    assert (told["draws"], told["samples"]) == (40, 512)
    # A second derivation: draw, measure, take mean and standard deviation.
    generator = torch.Generator().manual_seed(1)
    gammas = []
    for _ in range(40):
        rule.redraw(generator)
        gammas.append(wb.measure(net, batches, credit=rule).gamma)
    assert told["gamma"] == pytest.approx({"mean": np.mean(gammas), "std": np.std(gammas, ddof=1)}, rel=1e-9)
    assert "with fresh feedback" in report.details()
    assert "σ from ours" in report.details()
    assert wb.judge(report.to_dict()).controls == report.controls


@pytest.mark.parametrize(("name", "words"), [("bp", "no feedback matrices"), ("ep", "no feedback matrices")])
def test_rules_without_feedback_say_so(name: str, words: str):
    net, rule, batches = trained(name)
    report = wb.diagnose(net, batches[:1], credit=rule, probes=("fresh-b",))
    assert words in report.conditions["fresh_feedback"]["not measured because"]
    assert f"fresh feedback not measured: the credit has {words}" in report.details()
    plain = wb.diagnose(net, batches[:1], credit=lambda t: t.grads, probes=("fresh-b",))
    assert words in plain.conditions["fresh_feedback"]["not measured because"]
    assert "no credit was given" in wb.diagnose(net, batches[:1], probes=("fresh-b",)).details()


def test_fresh_feedback_is_put_back_when_the_rule_fails():
    net, rule, batches = trained("dfa")
    before = rule.get_buffer("B0").clone()
    calls = []

    def failing(trace: wb.Trace):
        calls.append(1)
        if len(calls) > 6:
            raise ValueError("rule")
        return type(rule).credits(rule, trace)

    rule.credits = failing  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="rule"):
        wb.diagnose(net, batches, credit=rule, probes=("fresh-b",))
    assert torch.equal(rule.get_buffer("B0"), before)


def test_wrong_options_are_refused():
    with pytest.raises(wb.InputError, match="Expected draws to be a whole number >= 2"):
        wb.FreshFeedback(draws=1)
    with pytest.raises(wb.InputError, match="Expected probes among perturbation, nudging, fresh-b, intrinsic"):
        wb.diagnose(wb.selftest.healthy(), wb.selftest.batches(1), probes=("fresh",))


@pytest.mark.parametrize("width", [16, 64])
def test_token_states_carry_over_to_more_samples(width):
    """The own term of a sample with positions is not 1; in numpy: Σ_pq ⟨â_p, â_q⟩⟨ĝ_p, ĝ_q⟩, and s over pairs."""
    rng = np.random.default_rng(0)
    n, m, tokens = 1024, 256, 9
    shared = rng.standard_normal((4, width))
    credit = np.repeat(((rng.standard_normal((n, 4)) + 1) @ shared)[:, None], tokens, 1)  # every token alike
    grad = np.zeros((n, tokens, width))
    grad[:, 0] = (rng.standard_normal((n, 4)) + 1) @ rng.standard_normal((4, width))  # read at the first
    unit = [x / np.linalg.norm(x.reshape(n, -1), axis=1)[:, None, None] for x in (credit, grad)]
    each = np.einsum("npd,npe->nde", unit[1], unit[0])
    exact = width / (each.mean(0) ** 2).sum()
    coupling = Coupling()
    part = [torch.from_numpy(x[:m]) for x in unit]
    coupling.add(*part, torch.ones(2, m, dtype=torch.float64))
    own = (each[:m] ** 2).sum() / m
    assert coupling.own / m == pytest.approx(own, rel=1e-9 if width <= 32 else 0.2)
    assert coupling.own / m < 0.5, "a sample's own term is far from 1"
    assert coupling.dimension(n) == pytest.approx(exact, rel=0.3)
