"""The intrinsic form of D2: second derivations, networks that trip it and that do not, and what must not change it."""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

import walkback as wb
from nets import SmoothNet, batched, cos, rows
from walkback import cli
from walkback.measures.accumulate import Measurements
from walkback.measures.formulas import cosine_error
from walkback.measures.precision import mean_ends
from walkback.notes import coded
from walkback.training.loop import probe_batches
from walkback.verdict.editions import decide

quick = settings(max_examples=12)


def intrinsic(net: nn.Module, batches, **options) -> wb.Report:
    return wb.diagnose(net, batches, edition="intrinsic", **options)


def roll(trace: wb.Trace) -> list[Tensor]:
    return [g + 0.3 * torch.roll(g, 1, -1) for g in trace.grads]


# -- the numbers, derived a second time ------------------------------------------------------------------------------


class Masked(nn.Module):
    """Tokens, of which the readout averages those the attention mask names."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(6, 8), nn.Linear(8, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        h, m = self.embed(x), attention_mask[..., None].float()
        for block in self.blocks:
            h = h + block(h)
        return self.head((h * m).sum(1) / m.sum(1))


def test_padding_does_not_count_in_the_stability_of_different_samples():
    torch.manual_seed(0)
    net, groups, batches = Masked(), [], []
    for _ in range(4):
        lengths = torch.randint(1, 10, (128,))
        mask = (torch.arange(10) < lengths[:, None]).long()
        batches.append(({"x": torch.randn(128, 10, 6), "attention_mask": mask}, torch.randint(4, (128,))))
        x, y = batches[-1]
        states = net.embed(x["x"])
        for block in net.blocks:
            states = states + block(states)
        states = states.detach().requires_grad_()
        pooled = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        (g,) = torch.autograd.grad(F.cross_entropy(net.head(pooled), y, reduction="sum"), states)
        groups.append((g.double().sum(1) / lengths[:, None]).mean(0))  # zero on padding
    unit = torch.stack([g / g.norm() for g in groups])
    pairs = (unit @ unit.T)[~torch.eye(4, dtype=torch.bool)].mean()
    report = wb.diagnose(net, batches, probes=["intrinsic"])
    assert report.values["stability_distinct"] == pytest.approx(float(pairs), rel=1e-4)
    assert report.values["stability"] == pytest.approx(report.values["stability_distinct"], rel=1e-9)


@pytest.mark.parametrize("kind", ["flat", "tokens", "maps"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_disagreement_and_shift_against_a_float64_copy(kind: str, dtype: torch.dtype):
    net = SmoothNet(kind).to(dtype)
    x, y = net.example(48)
    x = x.to(dtype)
    m = wb.measure(net, batched(x, y, 20), credit=roll, probes=("intrinsic",))
    wide = copy.deepcopy(net).double()
    for site in range(4):
        low, high = [], []
        for twin, data, out in ((net, x, low), (wide, x.double(), high)):
            leaf = twin.stream(data)[site].clone().requires_grad_()
            logits = twin.from_site(leaf * 1.0, site, data)
            loss = F.cross_entropy(logits if twin is wide else logits.float(), y, reduction="sum")
            out.append(torch.autograd.grad(loss, leaf)[0])
        g, e = rows(low[0].double().numpy()), rows(high[0].numpy())
        a = rows((low[0] + 0.3 * torch.roll(low[0], 1, -1)).double().numpy())
        # Autograd sums tokens and pixels in another order here, so the two passes agree up to the dtype's rounding.
        off = np.mean([1 - cos(u, v) for u, v in zip(g, e)])
        assert m.float64_disagreement[site] == pytest.approx(off, rel=0.3, abs=1e-12)
        shift = np.mean([cos(u, v) for u, v in zip(a, e)]) - np.mean([cos(u, v) for u, v in zip(a, g)])
        assert m.float64_shift[site] == pytest.approx(shift, rel=0.3, abs=1e-6 if dtype == torch.float32 else 2e-3)
    assert m.conditions["intrinsic"]["method"] == "float64"


def test_the_share_of_epsilon_is_what_torch_takes_away():
    """F.cosine_similarity itself, on gradients in the scale of a mean loss over 128, and a cosine of 1."""
    net, batches = wb.selftest.network(gain=40.0), wb.selftest.batches(2)
    m = wb.measure(net, batches, credit=lambda t: t.grads, probes=("intrinsic",))
    shares = []
    with wb.Tracer(net) as tracer:
        for x, y in batches:
            grads = tracer.trace(x, y).grads
            scaled = [g.double() / 128 for g in grads]
            shares.append([1 - F.cosine_similarity(g, g) for g in scaled])  # walkback: ignore[P02]
    for site in range(5):
        assert m.epsilon_share[site] == pytest.approx(float(torch.cat([s[site] for s in shares]).mean()), abs=1e-9)
    assert m.epsilon_share[0] < 1e-9
    assert m.epsilon_share[4] > 0.1
    assert [1 - e for e in m.epsilon_share] == pytest.approx(m.cosine_clamped, abs=1e-9)
    without = wb.measure(net, batches, probes=("intrinsic",))
    assert without.epsilon_share[4] < m.epsilon_share[4], "without a credit only the reference is clamped"
    assert without.float64_shift == []
    assert without.reasons["float64_shift"] == "no credit was given"


def both_directions(net: nn.Module, batches) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By site and sample, in NumPy: the cosine of g with its float64 twin, and of the credit `roll` with either."""
    found = []
    for twin, cast in ((net, lambda x: x), (copy.deepcopy(net).double(), torch.Tensor.double)):
        with wb.Tracer(twin) as tracer:
            traces = [tracer.trace(cast(x), y) for x, y in batches]
        grads = [np.concatenate([rows(t.grads[site].double().numpy()) for t in traces]) for site in range(5)]
        credits = [np.concatenate([rows(roll(t)[site].double().numpy()) for t in traces]) for site in range(5)]
        found.append((grads, credits))
    (low, credit), (high, _) = found
    pairs = ((low, high), (credit, low), (credit, high))
    with_twin, with_low, with_high = (
        np.array([[cos(u, v) for u, v in zip(*site)] for site in zip(a, b)]) for a, b in pairs
    )
    return with_twin, with_low, with_high


@pytest.mark.parametrize("name", ["absorbing", "healthy"])
def test_the_interval_of_the_error_is_numpys(name: str):
    """Of the first network the disagreement is what is worst, of the second the shift."""
    net, batches = getattr(wb.selftest, name)(), wb.selftest.batches(2)
    m = wb.measure(net, batches, credit=roll, probes=("intrinsic",))
    with_twin, with_low, with_high = both_directions(net, batches)
    ends = []
    for off, shift in zip(1 - with_twin, with_high - with_low):
        t = stats.t.ppf(0.975, len(off) - 1)
        ends.append(off.mean() * np.exp(np.array([-1, 1]) * t * stats.sem(off) / off.mean()))
        ends.append(np.maximum(0, abs(shift.mean()) + np.array([-1, 1]) * t * stats.sem(shift)))
    low, high = np.max(ends, axis=0)
    assert m.cosine_error_low == pytest.approx(low, rel=1e-6, abs=1e-14)  # NumPy's 1 - cos is off by 1e-16 itself
    assert m.cosine_error_high == pytest.approx(high, rel=1e-5)
    error, _ = cosine_error(m.float64_disagreement, m.float64_shift)
    assert m.cosine_error_low < error < m.cosine_error_high
    repeated = wb.measure(net, [*batches, *batches], credit=roll, probes=("intrinsic",))
    assert repeated.cosine_error_high == pytest.approx(m.cosine_error_high, rel=1e-2), "repeated data say nothing new"


def test_the_interval_of_a_mean_in_closed_form():
    """Of 1, 2, 3, 4: mean 2.5, standard error √(5/12), t of 3 degrees of freedom 3.182446."""
    sums, half = torch.tensor([10.0, 4.0, 30.0]) / torch.tensor([10.0, 1.0, 100.0]), 0.1 * 3.182446 * (5 / 12) ** 0.5
    times = np.exp(half / 0.25)
    assert mean_ends(sums.double(), 0.25) == pytest.approx((0.25 / times, 0.25 * times), rel=1e-6)
    assert mean_ends(sums.double(), 0.25, plain=True) == pytest.approx((0.25 - half, 0.25 + half), rel=1e-6)
    assert mean_ends(sums.double(), 0.1, plain=True) == pytest.approx((0.0, 0.1 + half), rel=1e-6)
    assert mean_ends(torch.tensor([0.5, 1.0, 0.25]), 0.5) is None
    assert mean_ends(torch.tensor([0.0, 4.0, 0.0]), 0.0) == (0.0, 0.0)
    spread = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64)  # 0 and 1: t of one degree of freedom is 12.7
    assert mean_ends(spread, 0.5)[1] == 2.0, "a mean of 1 - cos is 2 at most"


def test_one_sample_gives_the_error_no_interval():
    x, y = wb.selftest.batches(1)[0]
    report = intrinsic(wb.selftest.absorbing(), [(x[:1], y[:1])])
    assert report.values["cosine_error"] is not None
    assert report.values["cosine_error_low"] is report.values["cosine_error_high"] is None
    assert "at least 2 samples" in report.reasons["cosine_error_low"]
    assert report.findings[1]["interval"] is None
    assert report.findings[1]["flagged"] is not None


def test_an_error_whose_interval_has_the_limit_inside_is_undecided():
    clear = intrinsic(wb.selftest.absorbing(), wb.selftest.batches(2), headline_acc=0.6, frozen_baseline_acc=0.3)
    assert (clear.verdict, clear.findings[1]["flagged"]) == ("walked back", True)
    ends = [clear.values[f"cosine_error_{end}"] for end in ("low", "high")]
    assert clear.findings[1]["interval"] == ends
    limit = wb.DiagnosticThresholds(cosine_error_limit=0.99 * clear.values["cosine_error"])
    report = wb.judge(clear, "intrinsic", limit)
    found = report.findings[1]
    assert (report.verdict, report.measurement_valid, found["flagged"]) == ("undecided", None, None)
    assert (found["cause"], found["interval"]) == ("straddles", ends)
    n = 256
    factor = (np.log(ends[1] / ends[0]) / 2 / abs(np.log(0.99))) ** 2
    assert found["more"] == {"samples": pytest.approx(n * (factor - 1), rel=0.03)}
    assert "more samples would decide it" in found["reason"]
    assert "unclamped cosine exact: undecided" in str(report)
    for again in (wb.Report.from_dict(json.loads(report.to_json())), wb.judge(report, "intrinsic", limit)):
        assert again.findings[1] == found
        assert again.values == report.values
    old = report.to_dict()
    del old["values"]["cosine_error_low"], old["values"]["cosine_error_high"]
    assert wb.judge(old, "intrinsic", limit).failed == ("D2",), "a report without the interval is judged on the value"


def test_a_shift_that_may_be_none_at_all_says_on_a_plain_scale_what_would_decide():
    m = Measurements(float64_disagreement=[1e-4], float64_shift=[-0.04], cosine_error_low=0.0, cosine_error_high=0.06,
                     conditions={"samples": 1000})  # fmt: skip
    for low in (0.0, 1e-4):  # where the disagreement's own interval is the one that ends above 0
        found = decide(replace(m, cosine_error_low=low), wb.Claim(), wb.DiagnosticThresholds(), "intrinsic")["D2"]
        assert found.straddles
        assert found.more == {"samples": pytest.approx(3000, rel=0.02)}, "0.02 has to become 0.01"
    sure = decide(replace(m, cosine_error_high=0.049), wb.Claim(), wb.DiagnosticThresholds(), "intrinsic")["D2"]
    assert (sure.flagged, sure.interval) == (False, (0.0, 0.049))


@pytest.mark.parametrize("returns", ["branch", "state", "inplace"])
def test_absorption_against_numpy(returns: str):
    net = SmoothNet("flat", returns=returns).float()
    with torch.no_grad():
        net.embed.bias.add_(3e4)
        for block in net.blocks:
            block.body.first.weight.mul_(1e-5)  # tanh must not saturate
    x, y = net.example(64)
    m = wb.measure(net, batched(x.float(), y, 32), probes=("intrinsic",))
    h = net.stream(x.float())
    assert m.absorption[0] is None
    for site, block in enumerate(net.blocks, 1):
        with torch.no_grad():
            f = block.body(h[site - 1]).double().numpy()
        lost = np.linalg.norm((h[site].double() - h[site - 1].double()).numpy() - f, axis=1) / np.linalg.norm(f, axis=1)
        assert m.absorption[site] == pytest.approx(lost.mean(), rel=0.02 if returns == "branch" else 0.2)
        assert m.absorption[site] > 1e-4
    told = m.conditions["intrinsic"]["absorption"]
    assert told.startswith("f as the blocks returned it" if returns == "branch" else "f from the blocks run in float64")


def test_an_absorbed_branch_is_lost_whole():
    report = intrinsic(wb.selftest.absorbing(), wb.selftest.batches(2))
    assert max(report.per_layer["absorption"][1:]) > 0.9
    assert "h + f loses up to" in report.chain[1]["text"]


def test_samples_without_a_direction_in_one_precision_count_as_lost():
    """float16 gradients of 1e-9: all of them underflow, and nothing is left to compare with."""
    net = wb.selftest.healthy().half()  # walkback: ignore[P03]
    batches = [(x.half(), y) for x, y in wb.selftest.batches(2)]

    def tiny(z: Tensor, y: Tensor) -> Tensor:
        return (1e-9 * F.cross_entropy(z.float(), y, reduction="none")).to(z.dtype) + 0 * z.sum(1)

    report = intrinsic(net, batches, loss=tiny)
    assert report.per_layer["float64_disagreement"] == [1.0] * 5
    assert report.failed == ("D2",)


# -- what trips it and what does not ---------------------------------------------------------------------------------


def outcome(report: wb.Report) -> tuple[bool, bool]:
    """(published D2, intrinsic D2) flagged."""
    return wb.judge(report, "three-check").findings[1]["flagged"], report.findings[1]["flagged"]


def test_where_the_two_agree_and_where_the_published_one_is_wrong():
    batches = wb.selftest.batches(4)
    sure, own = wb.selftest.confident()
    cases = {
        "healthy": (intrinsic(wb.selftest.healthy(), batches), (False, False)),
        "exploded": (intrinsic(wb.selftest.exploded(), batches), (True, False)),
        "scaled loss": (
            intrinsic(wb.selftest.healthy(), batches, loss=lambda z, y: 1e-6 * F.cross_entropy(z, y, reduction="none")),
            (True, False),
        ),
        "absorbing": (intrinsic(wb.selftest.absorbing(), batches), (False, True)),
        "confident": (intrinsic(sure, own), (False, True)),
        "absorbing in float64": (
            intrinsic(wb.selftest.absorbing().double(), [(x.double(), y) for x, y in batches]),
            (False, False),
        ),
    }
    assert {name: outcome(report) for name, (report, _) in cases.items()} == {k: v for k, (_, v) in cases.items()}
    for name, (report, (published, exact)) in cases.items():
        notes = coded(report.notes, "editions-differ")
        assert [note.values["exact"] for note in notes] == [not exact] * (published != exact), name
        assert (report.clamped_readable, report.unclamped_exact) == (not published, not exact), name
        other = wb.judge(report, "three-check")
        assert (other.clamped_readable, other.unclamped_exact) == (not published, not exact), "facts of no edition"
    small, wrong = (coded(cases[name][0].notes, "editions-differ")[0].text for name in ("exploded", "absorbing"))
    assert small.startswith("the published D2 would flag")
    assert small.endswith("small, not wrong")
    assert wrong.startswith("the published D2 would not flag")
    line = cases["exploded"][0].verdict_line
    assert line.endswith(f"; the published D2 flags (‖g_L‖ {cases['exploded'][0].values['g_norm_deepest']:.2g})")
    judged = wb.judge(cases["absorbing"][0], "three-check")
    assert judged.verdict_line.endswith(
        f"the intrinsic D2 flags (gradient off float64 by {judged.values['cosine_error']:.1g})"
    )


def test_a_huge_batch_sinks_the_raw_norm_and_not_the_intrinsic_verdict():
    net = wb.selftest.network(gain=10.0)
    ((x, y),) = wb.selftest.batches(1, 4096)
    with wb.Tracer(net) as tracer:
        raw = [float((g / len(y)).norm(dim=1).mean()) for g in tracer.trace(x, y).grads]
    assert wb.judge({"g_norm": raw}).findings[1]["flagged"] is True
    for size in (128, 4096):
        report = intrinsic(net, list(zip(x.split(size), y.split(size))), headline_acc=0.6, frozen_baseline_acc=0.3)
        assert (report.verdict, report.findings[1]["flagged"]) == ("passes", False)


@pytest.mark.parametrize(("d1", "d2", "d3"), list(product([False, True, None], repeat=3)))
def test_the_verdict_rule(d1: bool | None, d2: bool | None, d3: bool | None):
    m = Measurements(
        growth={False: 1.0, True: 100.0, None: None}[d1],
        float64_disagreement={False: [1e-9, 1e-9], True: [1e-9, 0.2], None: []}[d2],
    )
    frozen = {False: 0.3, True: 0.6, None: None}[d3]
    report = wb.judge(m, "intrinsic", headline_acc=0.6, frozen_baseline_acc=frozen)
    failed = tuple(name for name, flagged in (("D2", d2), ("D3", d3)) if flagged)
    assert report.failed == failed
    assert report.verdict == ("walked back" if failed else "undecided" if None in (d1, d2, d3) else "passes")
    assert report.measurement_valid is (None if d2 is None else not d2)
    assert report.unclamped_exact is report.measurement_valid
    assert report.clamped_readable is None, "no gradient norm was given"
    assert ("D1 flagged (100x; it decides nothing alone)" in report.verdict_line) is (d1 is True)


def test_the_limit_is_a_threshold():
    m = Measurements(float64_disagreement=[0.03], float64_shift=[-0.04])
    assert cosine_error([0.03], [-0.04]) == (0.04, 0)
    assert wb.judge(m, "intrinsic").findings[1]["flagged"] is False
    strict = wb.DiagnosticThresholds(cosine_error_limit=0.035)
    assert wb.judge(m, "intrinsic", strict).findings[1]["flagged"] is True
    with pytest.raises(wb.InputError, match="Expected cosine_error_limit to be positive"):
        wb.DiagnosticThresholds(cosine_error_limit=0.0)


def test_states_that_are_not_finite_walk_back():
    net = wb.selftest.healthy()
    with torch.no_grad():
        net.blocks[1][3].bias.fill_(float("nan"))
    report = intrinsic(net, wb.selftest.batches(2))
    assert "D2" in report.failed
    assert report.measurement_valid is False
    assert "rounding" not in report.chain[3]["text"]
    bad = {"g_norm": [1e-3, float("nan")], "float64_disagreement": [1e-9, None]}
    assert wb.judge(bad, "intrinsic").failed == ("D2",), "also where some sites are known and exact"


# -- where float64 is out of reach -----------------------------------------------------------------------------------


class Stubborn(nn.Module):
    """Casts to float32 in its head, or in a block, whatever it is given."""

    def __init__(self, where: str) -> None:
        super().__init__()
        inner = wb.selftest.healthy()
        self.embed, self.blocks, self.out_ln, self.out_head = inner.embed, inner.blocks, inner.out_ln, inner.out_head
        self.where = where
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.where == "second call" and self.calls > 1:
            raise ValueError("only once")
        h = self.embed(x)
        for block in self.blocks:
            f = block(h)
            h = h + (f.float() if self.where == "block" else f)
        if self.where == "constant":
            h = h @ torch.eye(h.shape[1])
        return self.out_head(self.out_ln(h.float() if self.where == "head" else h))


@pytest.mark.parametrize(("where", "words"), [("head", ""), ("constant", "same dtype")])
def test_networks_that_fix_their_dtype_are_perturbed_instead(where: str, words: str):
    report = intrinsic(Stubborn(where), wb.selftest.batches(2), credit=roll)
    told = report.conditions["intrinsic"]
    assert told["method"] == "perturbed rounding"
    assert words in told["instead of float64 because"]
    assert 0 < max(report.per_layer["float64_disagreement"]) < 1e-8
    assert [note.values["why"] for note in coded(report.notes, "perturbed-rounding")] == [
        told["instead of float64 because"]
    ]
    assert report.findings[1]["flagged"] is False


def test_perturbed_rounding_sees_what_float64_sees_in_an_absorbing_network():
    inner = wb.selftest.absorbing()
    net = Stubborn("constant")
    net.embed = inner.embed
    report = intrinsic(net, wb.selftest.batches(2))
    assert report.findings[1]["flagged"] is True


def test_a_network_in_float64_is_perturbed():
    report = intrinsic(wb.selftest.healthy().double(), [(x.double(), y) for x, y in wb.selftest.batches(2)])
    assert report.conditions["intrinsic"]["method"] == "perturbed rounding"
    assert report.conditions["intrinsic"]["instead of float64 because"] == "the network is float64 already"
    assert 0 < max(report.per_layer["float64_disagreement"]) < 1e-25


def test_a_network_that_runs_only_once_gives_no_verdict():
    net = Stubborn("second call")
    report = intrinsic(net, wb.selftest.batches(1), headline_acc=0.6, frozen_baseline_acc=0.3)
    assert (report.verdict, report.measurement_valid) == ("undecided", None)
    assert "only once" in report.reasons["float64_disagreement"]
    assert "VERDICT: undecided: D2 not tested: " in str(report)
    assert report.per_layer["epsilon_share"] is not None


def test_under_autocast_the_second_pass_is_float64_all_the_same():
    net, batches = wb.selftest.healthy(), wb.selftest.batches(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = intrinsic(net, batches)
    full = intrinsic(net, batches)
    assert low.conditions["intrinsic"]["method"] == "float64"
    assert max(low.per_layer["float64_disagreement"]) > 1e4 * max(full.per_layer["float64_disagreement"])


# -- only when asked, and carried on ----------------------------------------------------------------------------------


def test_not_measured_unless_asked():
    report = wb.diagnose(wb.selftest.healthy(), wb.selftest.batches(1))
    for name in ("float64_disagreement", "float64_shift", "epsilon_share", "absorption"):
        assert report.per_layer[name] is None
        assert report.reasons[name] == "not measured"
    assert report.values["cosine_error"] is None
    asked = wb.diagnose(wb.selftest.healthy(), wb.selftest.batches(1), probes=("intrinsic",))
    assert asked.edition == "three-check"
    assert asked.values["cosine_error"] is not None
    with pytest.raises(wb.InputError, match="Expected seed to be a whole number"):
        wb.Intrinsic(seed="x")  # type: ignore[arg-type]


@pytest.mark.parametrize("net", [wb.selftest.healthy(), wb.selftest.absorbing()], ids=["healthy", "absorbing"])
def test_reports_are_judged_again_alike(net: nn.Module, tmp_path):
    report = intrinsic(net, wb.selftest.batches(2), headline_acc=0.6, frozen_baseline_acc=0.3, credit=roll)
    again = wb.judge(wb.Report.load(report.save(tmp_path / "r.json")))
    assert (again.edition, again.verdict, again.failed) == ("intrinsic", report.verdict, report.failed)
    assert again.notes == report.notes
    assert again.per_layer == report.per_layer
    asked = wb.diagnose(net, wb.selftest.batches(2), 0.6, 0.3, credit=roll, probes=("intrinsic",))
    assert wb.judge(asked, "intrinsic").failed == report.failed
    for form in (report.details(), report.to_markdown(), report.to_latex(), report.to_html()):
        assert "off float64" in form
        assert "absorbed" in form


def test_numbers_logged_elsewhere(tmp_path):
    row = {"h_norm": [1, 2], "float64_disagreement": [0.0, 0.3], "headline_acc": 0.6, "frozen_baseline_acc": 0.3}
    assert wb.judge(row, "intrinsic").failed == ("D2",)
    (tmp_path / "log.csv").write_text("epoch,float64_disagreement_0,float64_shift_0\n1,0.001,-0.2\n")
    assert wb.judge(tmp_path / "log.csv", "intrinsic").values["cosine_error"] == 0.2
    old = wb.diagnose(wb.selftest.healthy(), wb.selftest.batches(1)).to_dict()
    for name in (
        "float64_disagreement",
        "float64_shift",
        "epsilon_share",
        "absorption",
        "cosine_low",
        "null_dimension",
    ):
        del old["per_layer"][name]
    del old["values"]["cosine_error"], old["thresholds"]["cosine_error_limit"]
    assert wb.Report.from_dict(old).verdict == "undecided"
    assert "VERDICT" in str(wb.Report.from_dict(old))
    assert wb.judge(old, "intrinsic").verdict == "undecided"


def entry() -> dict:
    return {"model": wb.selftest.absorbing(), "eval_batches": wb.selftest.batches(2), "headline_acc": 0.6}


def test_the_command_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert cli.run(["diagnose", "test_intrinsic:entry", "--edition", "intrinsic", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["failed"] == ["D2"]
    assert told["values"]["cosine_error"] > 0.05
    assert cli.run(["diagnose", "test_intrinsic:entry", "--probes", "intrinsic", "--json"]) == 3, "depth was not tested"
    assert json.loads(capsys.readouterr().out)["per_layer"]["absorption"][1] > 0.5


# -- what must not change the verdict -------------------------------------------------------------------------------

WIDTH, CLASSES, SAMPLES = 16, 4, 384


class Branch(nn.Module):
    """LayerNorm, two layers, and with `mix` the mean over tokens added. It begins with its norm and has no ε there."""

    def __init__(self, mix: bool) -> None:
        super().__init__()
        self.norm, self.first, self.last = (
            nn.LayerNorm(WIDTH, eps=0.0),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )
        self.mix = mix

    def forward(self, h: Tensor) -> Tensor:
        f = self.last(torch.tanh(self.first(self.norm(h))))
        return f + f.mean(1, keepdim=True) if self.mix else f


class Net(nn.Module):
    """A pre-norm network over (B, T, d) that pools its tokens; `offset` moves the stream away from zero.

    Its LayerNorms have no ε: only so is it exactly indifferent to the scale of its stream.
    """

    def __init__(self, gain: float, offset: float, mix: bool = False) -> None:
        super().__init__()
        self.embed = nn.Linear(6, WIDTH)
        self.blocks = nn.ModuleList(Branch(mix) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH, eps=0.0), nn.Linear(WIDTH, CLASSES)
        with torch.no_grad():
            self.embed.bias.add_(offset)
            for level, block in enumerate(self.blocks, 1):
                block.last.weight.mul_(gain**level)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h)
        return self.head(self.norm(h).mean(1))


# Trustworthy, growing under a tiny gradient, and with a reference that float32 loses.
MADE = {"healthy": (2.0, 0.0), "exploded": (3e4, 0.0), "absorbing": (2.0, 6e6)}
NAMES = st.sampled_from(list(MADE))


@cache
def net_of(name: str, dtype: torch.dtype = torch.float32, mix: bool = False) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Net(*MADE[name], mix=mix).to(dtype).eval()


@cache
def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, 2, 6, generator=generator)
    return x, torch.randint(CLASSES, (SAMPLES,), generator=generator)


def feedback(trace: wb.Trace) -> list[Tensor]:
    e = trace.logits.softmax(1) - F.one_hot(trace.labels, CLASSES)
    generator = torch.Generator().manual_seed(5)
    maps = [torch.randn(CLASSES, WIDTH, generator=generator).to(e.dtype) for _ in trace.states]
    return [(e @ b)[:, None].expand_as(h) for b, h in zip(maps, trace.states)]


def judged(net: nn.Module, x: Tensor, y: Tensor, size: int = 128, **options) -> wb.Report:
    options = {"edition": "intrinsic", "credit": feedback, **options}
    return wb.diagnose(net, list(zip(x.split(size), y.split(size))), 0.5, 0.4, **options)


@cache
def reference(name: str, mix: bool = False) -> wb.Report:
    return judged(net_of(name, mix=mix), *data())


def same(a: wb.Report, b: wb.Report, tolerance: float = 0.01) -> None:
    for field in ("verdict", "failed", "measurement_valid", "depth_used", "submode"):
        assert getattr(a, field) == getattr(b, field), field
    assert [f["flagged"] for f in a.findings] == [f["flagged"] for f in b.findings]
    if b.measurement_valid:
        assert a.per_layer["cosine"] == pytest.approx(b.per_layer["cosine"], abs=tolerance)
        assert a.values["stability_distinct"] == pytest.approx(b.values["stability_distinct"], abs=tolerance)


def test_the_three_networks_are_judged_differently():
    assert reference("healthy").failed == reference("exploded").failed == ()
    assert reference("exploded").findings[0]["flagged"] is True
    assert reference("absorbing").failed == ("D2",)
    assert reference("absorbing").submode is not None
    assert wb.judge(reference("exploded"), "three-check").failed == ("D1", "D2")


@quick
@given(NAMES, st.floats(-12, 12))
def test_scale_of_the_loss(name: str, exponent: float):
    def loss(z: Tensor, y: Tensor) -> Tensor:
        return 10.0**exponent * F.cross_entropy(z, y, reduction="none")

    same(judged(net_of(name), *data(), loss=loss), reference(name))


def test_the_published_verdict_does_change_with_the_loss():
    tiny = judged(net_of("healthy"), *data(), loss=lambda z, y: 1e-9 * F.cross_entropy(z, y, reduction="none"))
    assert wb.judge(tiny, "four-diagnostic").failed == ("b",)
    assert wb.judge(reference("healthy"), "four-diagnostic").failed == ()


@quick
@given(NAMES, st.integers(1, SAMPLES))
def test_batch_size(name: str, size: int):
    same(judged(net_of(name), *data(), size=max(size, 7)), reference(name))


def stream_times(name: str, c: float) -> wb.Report:
    """Stem and every branch times c: the terminal norm, and the norm every branch begins with, take it off again."""
    net = copy.deepcopy(net_of(name))
    with torch.no_grad():
        for layer in (net.embed, *(block.last for block in net.blocks)):
            layer.weight.mul_(c)
            layer.bias.mul_(c)
    return judged(net, *data())


@quick
@given(st.sampled_from(["healthy", "exploded"]), st.floats(-6, 6))
def test_scale_of_the_stream(name: str, exponent: float):
    scaled = stream_times(name, 10.0**exponent)
    same(scaled, reference(name))
    assert scaled.values["growth"] == pytest.approx(reference(name).values["growth"], rel=1e-3)
    norm = reference(name).values["g_norm_deepest"]
    assert scaled.values["g_norm_deepest"] == pytest.approx(norm * 10.0**-exponent, rel=1e-2), "‖g‖ does move"


@quick
@given(NAMES, st.integers(-20, 20))
def test_scale_of_the_stream_in_powers_of_two(name: str, exponent: int):
    """Rounds every number alike, so it changes nothing at all, not even where rounding decides the reference."""
    scaled = stream_times(name, 2.0**exponent)
    same(scaled, reference(name))
    for field in ("cosine", "float64_disagreement", "absorption"):
        assert scaled.per_layer[field][1:] == pytest.approx(reference(name).per_layer[field][1:], rel=1e-6), field


@quick
@given(st.floats(0, 4), st.floats(-3, 3))
def test_float32_and_float64(gain: float, exponent: float):
    """As long as float32 does not decide the reference: where it does, saying so is the point."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        net = Net(10.0**gain, 10.0**exponent)
    x, y = data()
    same(judged(net, x, y), judged(copy.deepcopy(net).double(), x.double(), y), tolerance=1e-3)


def test_where_float32_decides_the_two_differ_and_that_is_said():
    x, y = data()
    wide = judged(net_of("absorbing", torch.float64), x.double(), y)
    assert (reference("absorbing").failed, wide.failed) == (("D2",), ())


@quick
@given(NAMES, st.integers(2, 3), st.booleans(), st.sampled_from([128, 50, 384]))
def test_duplicated_data(name: str, times: int, within: bool, size: int):
    """Copies behind one another, or every sample twice in a row. The published editions lose their sub-mode."""
    x, y = data()
    x, y = (t.repeat_interleave(times, 0) if within else torch.cat([t] * times) for t in (x, y))
    report = judged(net_of(name), x, y, size=size)
    same(report, reference(name))
    assert report.values["stability"] is None
    assert report.values["stability_distinct"] is not None


@quick
@given(NAMES, st.integers(2, 4), st.booleans())
def test_number_of_tokens(name: str, times: int, mix: bool):
    """Every token repeated: the same function of the input, with a gradient that is spread over more tokens."""
    x, y = data()
    more = judged(net_of(name, mix=mix), x.repeat_interleave(times, 1), y)
    same(more, reference(name, mix))
    if name != "absorbing":
        ratio = reference(name, mix).values["g_norm_deepest"] / more.values["g_norm_deepest"]
        assert ratio == pytest.approx(times, rel=0.01), "‖g‖ does move"


# -- a credit that is rounding ----------------------------------------------------------------------------------------


class Difference(wb.rules.Rule):
    """The gradient of the last site as a difference of numbers `size` times as large."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.register_buffer("offset", torch.tensor(size))

    def credits(self, trace):
        last = trace.grads[-1]
        far = self.offset.to(last.dtype) * last.abs().max()
        return [(last + far) - far for _ in trace.states]


def difference(size: float):
    """The same as a plain function."""
    return lambda trace: Difference(size).credits(trace)


def rounded(rule: Any) -> tuple[wb.Report, list[int | None]]:
    report = wb.diagnose(wb.selftest.healthy(), wb.selftest.batches(2), credit=rule, probes=["intrinsic"])
    return report, [note.site for note in coded(report.notes, "rounded-credit")]


def test_a_credit_that_is_rounding_is_named_and_one_that_is_not_is_not():
    report, sites = rounded(Difference(1e7))
    assert sites[-1] == 4  # where the cosine is 1 in float64
    note = coded(report.notes, "rounded-credit")[-1]
    assert note.values["float64"] == pytest.approx(1, abs=1e-6)
    assert note.values["reported"] == pytest.approx(report.per_layer["cosine"][4], abs=0.05)
    assert report.conditions["intrinsic"]["credit"] == "once more in float64, on the first batch"
    assert rounded(Difference(1.0))[1] == []


def test_a_credit_that_is_drawn_anew_is_not_compared():
    class Drawn(wb.rules.Rule):
        def credits(self, trace):
            return [torch.randn_like(h) for h in trace.states]

    report, sites = rounded(Drawn())
    assert sites == []
    assert report.conditions["intrinsic"]["credit"] == (
        "not in float64: it is another credit when it is asked for twice"
    )


def test_a_plain_function_is_asked_in_float64_too():
    report, sites = rounded(difference(1e7))
    assert sites == rounded(Difference(1e7))[1]
    assert (report.credit_exact, report.unclamped_exact) == (False, False)
    assert dict(report.answers())["unclamped cosine exact"].startswith("no (the credit is rounding at site")
    plain = rounded(difference(1.0))[0]
    assert (plain.credit_exact, plain.unclamped_exact) == (True, True)
    assert dict(plain.answers())["unclamped cosine exact"].startswith("yes (off float64 by ")
    assert "credit_exact" not in plain.reasons


def of_float32(trace):
    return [g.float() for g in trace.grads]


def with_float32_weights(trace):
    return [g @ torch.eye(g.shape[1]) for g in trace.grads]


def drawn_with_a_seed(trace):
    generator = torch.Generator().manual_seed(int(trace.labels.sum()))
    return [g + torch.randn(h.shape, generator=generator, dtype=h.dtype) for g, h in zip(trace.grads, trace.states)]


NOT_ASKED = {
    of_float32: "it is computed in torch.float32 whatever the trace is",
    with_float32_weights: "expected m1 and m2 to have the same dtype, but got: double != float",
    drawn_with_a_seed: "it draws random numbers, which are others in float64",
}


@pytest.mark.parametrize("credit", NOT_ASKED)
def test_where_the_credit_was_not_asked_exactness_is_said_of_the_gradient_alone(credit: Any, tmp_path: Path):
    report, sites = rounded(credit)
    assert (sites, report.credit_exact, report.unclamped_exact) == ([], None, True)
    assert report.reasons["credit_exact"] == f"not in float64: {NOT_ASKED[credit]}"
    assert report.conditions["intrinsic"]["credit_again"] is False
    _says_of_the_gradient_alone(report)
    _says_of_the_gradient_alone(wb.judge(report.save(tmp_path / "report.json")))


def _says_of_the_gradient_alone(report: wb.Report) -> None:
    assert report.credit_exact is None
    for text in (report.details(), report.to_markdown(), report.to_html(), report.to_model_card()):
        assert "yes (of the gradient alone, off float64 by " in text
    assert "of the gradient alone" in " ".join(str(report).split())
    assert report.to_dict()["credit_exact"] is None


def test_recorded_credits_and_none_at_all_are_said_to_be_of_the_gradient_alone():
    net = wb.selftest.healthy()
    for credit, why in ((wb.recorded(net), "own code"), (None, "")):
        report = wb.diagnose(net, wb.selftest.batches(2), credit=credit, probes=["intrinsic"])
        _says_of_the_gradient_alone(report)
        assert why in report.reasons.get("credit_exact", "")


def test_a_report_without_the_field_is_read_as_one_of_the_gradient_alone():
    data = rounded(Difference(1.0))[0].to_dict()
    del data["credit_exact"], data["conditions"]["intrinsic"]["credit_again"]
    _says_of_the_gradient_alone(wb.Report.from_dict(data))


def test_a_function_is_asked_again_only_after_all_batches():
    """One that counts its calls gives each batch what it gives without the probe."""
    batches = wb.selftest.batches(3)

    def counting():
        calls = iter(range(100))

        def credit(trace: wb.Trace) -> list[Tensor]:
            sign = (-1) ** next(calls)
            return [sign * g for g in trace.grads]

        return credit

    plain, asked = (
        wb.diagnose(wb.selftest.healthy(), batches, credit=counting(), probes=probes) for probes in ([], ["intrinsic"])
    )
    assert asked.per_layer["cosine"] == plain.per_layer["cosine"] == pytest.approx([1 / 3] * 5)
    assert asked.credit_exact is None


def test_shifted_credits_are_compared_with_shifted_ones():
    for credit in (wb.rules.BP(), lambda trace: list(trace.grads)):
        batches = wb.selftest.batches(2)
        report = wb.diagnose(wb.selftest.healthy(), batches, credit=credit, probes=["intrinsic"], pairing="shifted")
        assert report.credit_exact is True


def test_the_ep_network_that_ships_has_a_credit_of_rounding_at_its_first_site():
    bundle = wb.load_bundle(Path(wb.__file__).parent / "bundles" / "ep")
    model = bundle.model()
    batches = probe_batches(wb.data.load(bundle.spec["data"]), torch.device("cpu"))[:1]
    report = wb.diagnose(model, batches, credit=bundle.rule(model), probes=["intrinsic"])
    notes = {note.site: note.values["float64"] for note in coded(report.notes, "rounded-credit")}
    assert notes[0] < -0.2  # in float32: +0.28 to +0.38, by the library that multiplies
    assert all(type(p) is torch.nn.Parameter and p.dtype == torch.float32 for p in model.parameters())
