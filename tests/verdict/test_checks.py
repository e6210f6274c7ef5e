"""Checks and editions: each check trips on one network and not on another; every combination has its verdict."""

from __future__ import annotations

from itertools import product
from math import nextafter

import numpy as np
import pytest
import torch
from scipy import stats

import walkback as wb
from walkback.measures.accumulate import Measurements
from walkback.notes import Note
from walkback.verdict.chain import is_concentrated
from walkback.verdict.checks import (
    DiagnosticThresholds,
    depth_utility,
    direction_stability,
    dtype_floor,
    paired_margin,
    reference_validity,
    scale_stability,
)
from walkback.verdict.claim import accuracies
from walkback.verdict.editions import EDITIONS, Claim, Verdict, decide
from walkback.verdict.findings import CAUSES
from walkback.verdict.statistics import Estimate

T = DiagnosticThresholds()
BATCHES = wb.selftest.batches(3)


def numbers(growth: float | None = 1.0, g: float | None = 1e-3, stability: float | None = None, **more) -> Measurements:
    return Measurements(growth=growth, g_norm=[g], stability=stability, **more)


def verdict(m: Measurements, headline=0.6, frozen=0.3, edition: str = "three-check", t=T, bp=None) -> Verdict:
    return decide(m, Claim(headline, frozen, bp), t, edition)


# -- each check on a network that trips it and on one that does not ------------------------------------------------


@pytest.mark.parametrize(
    ("network", "d1", "d2", "drift"),
    [
        ("healthy", False, False, None),
        ("exploded", True, True, None),
        ("exploded_without_norm", True, False, None),
        ("creeping", False, True, None),
        ("drifting", True, True, True),
        ("noisy", True, True, False),
    ],
)
def test_networks_that_trip_a_check_and_networks_that_do_not(network, d1, d2, drift):
    m = wb.measure(getattr(wb.selftest, network)(), BATCHES)
    assert scale_stability("D1", m, T).flagged is d1
    assert reference_validity("D2", m, dtype_floor(m, T)).flagged is d2
    if drift is not None:
        assert direction_stability("c", m, T).flagged is drift


@pytest.mark.parametrize(("headline", "flagged"), [(0.60, False), (0.35, True), (0.30, True)])
def test_depth_utility_trips_on_a_network_that_does_not_beat_frozen_blocks(headline, flagged):
    finding = depth_utility("D3", headline, 0.35, T)
    assert finding.flagged is flagged
    assert finding.value == pytest.approx(100 * (headline - 0.35))


# -- boundaries: a limit itself passes -----------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "flagged"), [(50.0, False), (nextafter(50, 51), True), (49.999, False)])
def test_growth_flags_strictly_above_its_limit(value, flagged):
    assert scale_stability("D1", numbers(growth=value), T).flagged is flagged


@pytest.mark.parametrize(("value", "flagged"), [(1e-7, False), (nextafter(1e-7, 0), True), (0.0, True)])
def test_the_reference_flags_strictly_under_its_floor(value, flagged):
    assert reference_validity("b", numbers(g=value), T.g_norm_floor).flagged is flagged


@pytest.mark.parametrize(("value", "flagged"), [(0.30, False), (0.3000001, True), (-1.0, False)])
def test_drift_is_strictly_above_its_ceiling(value, flagged):
    assert direction_stability("c", numbers(stability=value), T).flagged is flagged


@pytest.mark.parametrize(
    ("headline", "frozen", "flagged"),
    [(0.37, 0.35, False), (0.3699, 0.35, True), (0.369, 0.349, False), (0.570, 0.550, False), (1.0, 0.98, False)],
)
def test_a_margin_of_two_points_passes_whatever_binary_fractions_do_to_it(headline, frozen, flagged):
    assert depth_utility("D3", headline, frozen, T).flagged is flagged


def test_thresholds_move_every_check():
    t = DiagnosticThresholds(1e-2, 0.5, 0.9, 40.0)
    m = numbers(growth=1.0, g=1e-3, stability=0.8)
    assert verdict(m, t=t).failed == ("D1", "D2", "D3")
    assert verdict(m, t=t, edition="four-diagnostic").failed == ("a", "b", "d")
    assert verdict(m, t=t, edition="four-diagnostic").submode == "noise-dominated"
    assert verdict(m).failed == ()


# -- the floor of D2 belongs to the dtype --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "floor"),
    [(torch.float32, 1e-7), (torch.float64, 1e-7), (torch.bfloat16, 1e-7), (torch.float16, 10 * 2.0**-24)],
)
def test_the_floor_is_ten_times_what_the_dtype_can_hold(dtype, floor):
    assert dtype_floor(numbers(dtype=dtype), T) == floor
    at, under = numbers(g=floor, dtype=dtype), numbers(g=floor * 0.999, dtype=dtype)
    assert verdict(at).measurement_valid is True
    assert verdict(under).measurement_valid is False


def test_the_older_edition_keeps_its_fixed_floor_in_half_precision():
    m = numbers(g=3e-7, dtype=torch.float16)
    assert verdict(m).measurement_valid is False
    assert verdict(m, edition="four-diagnostic").measurement_valid is True


def test_a_higher_floor_of_the_user_stands_above_the_dtype():
    assert dtype_floor(numbers(dtype=torch.float16), DiagnosticThresholds(g_norm_floor=1e-3)) == 1e-3


# -- the truth tables ----------------------------------------------------------------------------------------------

GROWTH = {False: 1.0, True: 51.0, None: None}
G = {False: 1e-3, True: 1e-9, None: None}
DEPTH = {False: (0.6, 0.3), True: (0.3, 0.3), None: (None, None)}


@pytest.mark.parametrize(("d1", "d2", "d3"), list(product([False, True], [False, True], [False, True, None])))
def test_three_check_fails_on_d1_and_d2_or_d3(d1, d2, d3):
    v = verdict(numbers(GROWTH[d1], G[d2], 0.1), *DEPTH[d3])
    failed = (("D1", "D2") if d1 and d2 else ()) + (("D3",) if d3 else ())
    assert v.failed == failed
    assert v.verdict == ("walked back" if failed else "undecided" if d3 is None else "passes")
    assert v.measurement_valid is (not d2)
    assert v.depth_used is (None if d3 is None else not d3)
    assert v.submode == ("noise-dominated" if d2 else None)
    assert [f.flagged for f in v.findings] == [d1, d2, d3]


@pytest.mark.parametrize(
    ("a", "b", "c", "d"), list(product([False, True], [False, True], [False, True, None], [False, True, None]))
)
def test_four_diagnostic_fails_on_a_or_b_or_d_and_c_only_names_the_submode(a, b, c, d):
    stability = {False: 0.1, True: 0.9, None: None}[c]
    v = verdict(numbers(GROWTH[a], G[b], stability), *DEPTH[d], edition="four-diagnostic")
    failed = tuple(name for name, flagged in (("a", a), ("b", b), ("d", d)) if flagged)
    assert v.failed == failed
    assert v.verdict == ("walked back" if failed else "undecided" if d is None else "passes")
    assert v.measurement_valid is (not (a or b))
    assert v.depth_used is (None if d is None else not d)
    named = {False: "noise-dominated", True: "drift-dominated", None: None}[c]
    assert v.submode == (named if a or b else None)
    assert [f.flagged for f in v.findings] == [a, b, c, d]


def test_growth_alone_passes_and_is_still_shown():
    v = verdict(numbers(growth=1e4))
    assert (v.verdict, v.failed, v.measurement_valid) == ("passes", (), True)
    assert v.findings[0].flagged is True
    line = wb.judge(numbers(growth=1330.0), headline_acc=0.6, frozen_baseline_acc=0.3).verdict_line
    assert line == "VERDICT: passes, with D1 flagged (1.33e+03x; it decides only together with D2)"


def test_a_dead_reference_alone_passes_but_the_measurement_is_not_valid():
    report = wb.diagnose(wb.selftest.creeping(), BATCHES, 0.6, 0.3)
    assert (report.verdict, report.failed, report.measurement_valid) == ("passes", (), False)
    assert report.clamped_readable is False
    assert [note.code for note in report.notes].count("reference-under-floor") == 1
    g = report.values["g_norm_deepest"]
    assert report.verdict_line == f"VERDICT: passes, with D2 flagged ({g:.2e}; it decides only together with D1)"


# -- what was not tested is not passed -----------------------------------------------------------------------------


@pytest.mark.parametrize("edition", ["three-check", "four-diagnostic"])
def test_nothing_tested_is_nothing_passed(edition):
    v = verdict(Measurements(stability=0.1), 0.9, None, edition)
    assert (v.verdict, v.failed, v.measurement_valid, v.depth_used) == ("undecided", (), None, None)


NO_D1, NO_D2 = "D1 not tested: no state norms were given", "D2 not tested: no gradient norms were given"
NO_D3 = "depth not tested (give frozen_acc, or --depth)"


@pytest.mark.parametrize(
    ("m", "text"),
    [
        (Measurements(growth=51.0), f"{NO_D2}; {NO_D3}; D1 flagged (51x; it decides only together with D2)"),
        (Measurements(g_norm=[1e-9]), f"{NO_D1}; {NO_D3}; D2 flagged (1.00e-09; it decides only together with D1)"),
        (Measurements(growth=2.0), f"{NO_D2}; {NO_D3}"),
        (Measurements(g_norm=[1e-3]), f"{NO_D1}; {NO_D3}"),
        (Measurements(), f"{NO_D1}; {NO_D2}; {NO_D3}"),
    ],
)
def test_one_of_d1_and_d2_decides_nothing(m, text):
    assert wb.judge(m).verdict_line == f"VERDICT: undecided: {text}"
    assert wb.judge(m, headline_acc=0.6, frozen_baseline_acc=0.3).verdict == "undecided"
    assert wb.judge(m, headline_acc=0.3, frozen_baseline_acc=0.3).failed == ("D3",)


@pytest.mark.parametrize("edition", EDITIONS)
@pytest.mark.parametrize("missing", [(), ("D1",), ("D2",), ("D3",), ("D1", "D2", "D3")])
def test_a_claim_passes_only_where_every_check_was_tested(edition, missing):
    """Whichever check is missing, the line names it; direction stability decides nothing and may be missing."""
    m = Measurements(
        growth=None if "D1" in missing else 2.0,
        g_norm=[] if "D2" in missing else [1e-3],
        float64_disagreement=[] if "D2" in missing else [1e-6],
        float64_shift=[] if "D2" in missing else [0.0],
    )
    report = wb.judge(m, edition, headline_acc=0.6, frozen_baseline_acc=None if "D3" in missing else 0.3)
    assert report.verdict == ("undecided" if missing else "passes")
    named = dict(zip(("D1", "D2", "D3"), (f["check"] for f in report.findings if f["title"] != "direction stability")))
    for check, name in named.items():
        said = "depth not tested" if check == "D3" else f"{name} not tested: "
        assert (said in report.verdict_line) is (check in missing)


@pytest.mark.parametrize(
    ("h", "shapes", "value", "flagged"),
    [
        ([0.0, 1.0, 51.0], None, 51.0, True),
        ([None, 1.0, 51.0], None, 51.0, True),
        ([1.0, None, 51.0], None, None, None),
        ([0.0, 1.0, 50.0], None, None, None),
        ([0.0, 1.0, 51.0], [[2], [2], [3]], None, None),
        ([1e-300, 1e300], None, np.finfo(float).max, True),
    ],
)
def test_ratios_that_are_left_flag_but_do_not_pass(h, shapes, value, flagged):
    m = Measurements(h_norm=h, g_norm=[1e-3] * len(h), conditions={"state_shapes": shapes})
    finding = scale_stability("a", m, T)
    assert (finding.value, finding.flagged) == (value, flagged)
    v = verdict(m, edition="four-diagnostic")
    assert (v.verdict, v.failed) == (("walked back", ("a",)) if flagged else ("undecided", ()))


@pytest.mark.parametrize(
    ("m", "outcome", "causes"),
    [
        (Measurements(h_norm=[0.0, 1.0], g_norm=[1e-3, 1e-3]), "undecided", ["not-measured", ""]),
        (Measurements(growth=1.0, g_norm=[1e-3, None]), "undecided", ["", "not-measured"]),
        (Measurements(h_norm=[0.0, 1.0], g_norm=[1e-3, 1e-9]), "walked back", ["not-measured", ""]),
        (Measurements(growth=1.0), "undecided", ["", "not-given"]),
        (Measurements(g_norm=[1e-3]), "undecided", ["not-given", ""]),
        (Measurements(h_norm=[None, None], g_norm=[None, None]), "undecided", ["not-given", "not-given"]),
    ],
)
def test_norms_that_decide_nothing_are_no_pass_where_each_check_fails_alone(m, outcome, causes):
    v = verdict(m, edition="four-diagnostic")
    assert (v.verdict, [f.cause for f in v.findings[:2]]) == (outcome, causes)
    assert verdict(m, 0.3, 0.3, "four-diagnostic").verdict == "walked back"


@pytest.mark.parametrize(
    ("m", "text"),
    [
        (Measurements(stability=0.9), f"{NO_D1}; {NO_D2}; {NO_D3}"),
        (
            Measurements(h_norm=[0.0, 1.0], g_norm=[1.0] * 2, stability=0.9),
            f"a not tested: a state norm is zero: ‖h_0‖, so growth from there has no value; {NO_D3}",
        ),
    ],
)
def test_a_drift_decides_nothing_alone(m, text):
    said = text.replace("D1 ", "a ").replace("D2 ", "b ")
    assert wb.judge(m, "four-diagnostic").verdict_line == f"VERDICT: undecided: {said}"


def test_untested_findings_say_why():
    v = verdict(Measurements(), 0.6, None, "four-diagnostic")
    assert [f.reason for f in v.findings] == [
        "no state norms were given",
        "no gradient norms were given",
        "no stability was given",
        "not tested: frozen_baseline_acc not given",
    ]
    assert [f.cause for f in v.findings] == ["not-given", "not-given", "not-measured", "not-given"]
    assert {f.cause for f in v.findings} <= set(CAUSES)


@pytest.mark.parametrize(
    ("kinds", "failed", "four"),
    [({"state", "gradient"}, ("D1", "D2"), ("a", "b")), ({"gradient"}, ("D2",), ("b",))],
)
def test_numbers_that_are_not_finite_walk_the_claim_back_and_name_their_place(kinds, failed, four):
    m = numbers(1.0, 1e-3, 0.9, nonfinite=tuple(Note("nonfinite", 2, {"kind": k, "batch": 3}) for k in sorted(kinds)))
    assert m.nonfinite_kinds == kinds
    v, older = verdict(m), verdict(m, edition="four-diagnostic")
    assert (v.verdict, v.failed, v.measurement_valid) == ("walked back", failed, False)
    assert (older.verdict, older.failed, older.measurement_valid) == ("walked back", four, False)
    assert v.submode is None  # a NaN has no direction to be stable
    assert v.findings[1].reason == "gradient not finite at site 2, first in batch 3"
    assert v.findings[1].cause == "nonfinite"
    if "state" in kinds:
        assert v.findings[0].reason == "state not finite at site 2, first in batch 3"
        assert v.findings[0].value is None


# -- several seeds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 5, 12])
def test_the_interval_is_scipys_paired_t_interval(n):
    rng = np.random.default_rng(n)
    headline, frozen = rng.uniform(0.4, 0.6, n), rng.uniform(0.3, 0.4, n)
    margin, interval, *_ = paired_margin(headline.tolist(), frozen.tolist())
    expected = stats.ttest_1samp(100 * (headline - frozen), 0.0).confidence_interval(0.95)
    assert margin == pytest.approx(100 * float((headline - frozen).mean()), rel=1e-9)
    assert interval == pytest.approx((expected.low, expected.high), rel=1e-7)


def test_pairing_matters():
    together = paired_margin([0.40, 0.50, 0.60], [0.30, 0.40, 0.50])[1]
    crossed = paired_margin([0.40, 0.50, 0.60], [0.50, 0.40, 0.30])[1]
    assert together == pytest.approx((10.0, 10.0))
    assert crossed is not None
    assert crossed[1] - crossed[0] > 50


@pytest.mark.parametrize(
    ("gains", "outcome", "flagged"),
    [
        ([0.010, 0.050, 0.020], "undecided", None),
        ([0.100, 0.101, 0.102], "passes", False),
        ([0.001, 0.002, 0.000], "walked back", True),
        ([0.02, 0.02, 0.02], "passes", False),
    ],
    ids=["straddles", "above", "below", "at the margin without spread"],
)
@pytest.mark.parametrize("edition", ["three-check", "four-diagnostic"])
def test_seeds_are_judged_on_their_interval(gains, outcome, flagged, edition):
    v = verdict(numbers(), [0.3 + g for g in gains], [0.3] * 3, edition)
    assert v.verdict == outcome
    assert v.findings[-1].flagged is flagged
    assert v.depth_used is (None if flagged is None else not flagged)
    if outcome == "undecided":
        low, high = v.findings[-1].interval
        assert low < 2.0 < high
        assert v.findings[-1].straddles
        assert f"the 95 % interval {low:+.1f}…{high:+.1f} pp straddles the margin of 2 pp" in v.findings[-1].reason


@pytest.mark.parametrize(
    ("interval", "flagged"),
    [((0.0, 2.0), None), ((0.0, nextafter(2, 0)), True), ((2.0, 4.0), False), ((nextafter(2, 0), 4.0), None)],
)
def test_an_interval_that_ends_at_the_margin(monkeypatch, interval, flagged):
    """The margin itself passes, so an interval that reaches up to it leaves it open."""
    monkeypatch.setattr(
        "walkback.verdict.checks.paired_margin", lambda *a: Estimate(sum(interval) / 2, interval, {}, {})
    )
    assert depth_utility("D3", [0.5, 0.5], [0.5, 0.5], T).flagged is flagged


def test_another_failure_outweighs_an_interval_that_straddles():
    v = verdict(numbers(51.0, 1e-9), [0.31, 0.35, 0.32], [0.30, 0.30, 0.30])
    assert (v.verdict, v.failed, v.depth_used) == ("walked back", ("D1", "D2"), None)


def test_one_seed_has_no_interval_in_a_list_either():
    assert paired_margin([0.6], [0.3])[:2] == (30.0, None)


# -- a task that can't show depth ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("bp", "tested"), [(0.37, True), (0.369, False), (0.30, False), (0.9, True), (None, True)])
def test_where_bp_does_not_beat_frozen_blocks_d3_is_not_tested(bp, tested):
    finding = depth_utility("D3", 0.35, 0.35, T, bp)
    assert finding.flagged is (True if tested else None)
    if not tested:
        assert f"BP itself gains only {100 * (bp - 0.35):.1f} pp over frozen blocks" in finding.reason
        v = verdict(numbers(), 0.35, 0.35, bp=bp)
        assert (v.verdict, v.failed, v.depth_used) == ("undecided", (), None)
        assert (v.findings[-1].cause, v.findings[-1].straddles) == ("task", False)
        assert "this task can't show depth" in v.chain[2].text


def test_bp_is_compared_by_its_mean_so_it_needs_no_pairing():
    assert depth_utility("D3", [0.6, 0.61], [0.3, 0.31], T, 0.305).flagged is None
    assert depth_utility("D3", [0.6, 0.61], [0.3, 0.31], T, 0.7).flagged is False


# -- accuracies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (0.5, 0.5),
        (1, 1.0),
        (0, 0.0),
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.array(0.5), 0.5),
        (torch.tensor(0.5), 0.5),
        ([0.5, 0.25], [0.5, 0.25]),
        ((0.5,), [0.5]),
        (np.array([0.5, 0.25]), [0.5, 0.25]),
        (torch.tensor([0.5, 0.25]), [0.5, 0.25]),
        ([torch.tensor(0.5), np.float32(0.25)], [0.5, 0.25]),
        ((v for v in (0.5, 0.25)), [0.5, 0.25]),
    ],
)
def test_accuracies_come_as_numbers_of_any_library(value, plain):
    claim = Claim(value)
    assert claim.headline == plain
    assert type(claim.headline) is type(plain)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (98.2, r"but got 98\.2\. It looks like per cent: pass 0\.982\."),
        (100, r"but got 100\. It looks like per cent: pass 1\."),
        ([0.9, 34.9], r"but got 34\.9\. It looks like per cent: pass 0\.349\."),
        (150, r"but got 150\.$"),
        (-0.1, r"but got -0\.1\.$"),
        (float("nan"), r"but got nan\.$"),
        (float("inf"), r"but got inf\.$"),
        ("0.5", "but got '0.5'"),
        ([0.5, "0.6"], "but got '0.6'"),
        ([0.5, None], "but got None"),
        (True, "but got True"),
        ({"seed 1": 0.5}, "but got {'seed 1': 0.5}"),
        (object(), "but got <object"),
        ([[0.5]], r"but got \[0\.5\]"),
    ],
)
def test_accuracies_that_are_no_fractions_are_refused(value, words):
    with pytest.raises(wb.InputError, match=rf"Expected headline_acc as a fraction between 0 and 1, {words}"):
        accuracies("headline_acc", value)


def test_no_accuracies_at_all_are_refused():
    with pytest.raises(
        wb.InputError, match="Expected frozen_baseline_acc to hold at least one accuracy, but it is empty"
    ):
        Claim(0.5, [])


@pytest.mark.parametrize(("headline", "frozen"), [([0.5, 0.6], [0.3]), ([0.5, 0.6], 0.3), (0.5, [0.3, 0.3])])
def test_seeds_that_do_not_pair_are_refused(headline, frozen):
    with pytest.raises(
        wb.InputError, match=r"Expected the same seeds .* but got [12] and [12] .*Pair them seed by seed"
    ):
        verdict(numbers(), headline, frozen)


# -- thresholds and editions ---------------------------------------------------------------------------------------


def test_the_defaults_are_the_published_ones():
    assert (
        DiagnosticThresholds(
            g_norm_floor=1e-7, h_norm_explosion_ratio=50.0, stability_drift_ceiling=0.30, frozen_acc_margin_pp=2.0
        )
        == T
    )


@pytest.mark.parametrize(
    "name", ["g_norm_floor", "h_norm_explosion_ratio", "stability_drift_ceiling", "frozen_acc_margin_pp"]
)
@pytest.mark.parametrize("value", ["1e-7", None, True, float("nan"), float("inf"), [1.0]])
def test_thresholds_must_be_finite_numbers(name, value):
    with pytest.raises(wb.InputError, match=f"Expected {name} to be a finite number, but got "):
        DiagnosticThresholds(**{name: value})


@pytest.mark.parametrize("name", ["g_norm_floor", "h_norm_explosion_ratio"])
@pytest.mark.parametrize("value", [0, -1.0])
def test_thresholds_of_norms_must_be_positive(name, value):
    with pytest.raises(wb.InputError, match=f"Expected {name} to be positive, but got "):
        DiagnosticThresholds(**{name: value})


def test_thresholds_take_numpy_numbers_and_hold_plain_ones():
    t = DiagnosticThresholds(np.float32(0.5), np.int64(3))
    assert (type(t.g_norm_floor), t.h_norm_explosion_ratio) == (float, 3.0)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.json", '{"g_norm_floor": 1e-6, "frozen_acc_margin_pp": 1}'),
        ("t.toml", "g_norm_floor = 1e-6\nfrozen_acc_margin_pp = 1\n"),
        ("bom.json", '\ufeff{"g_norm_floor": 1e-6, "frozen_acc_margin_pp": 1}'),
    ],
)
def test_thresholds_are_read_from_files(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert DiagnosticThresholds.load(tmp_path / name) == DiagnosticThresholds(1e-6, frozen_acc_margin_pp=1.0)


@pytest.mark.parametrize(
    ("name", "text", "error", "words"),
    [
        ("t.json", '{"floor": 1}', wb.InputError, r"t\.json to hold any of g_norm_floor, .*, but got floor"),
        ("t.json", "[1]", wb.InputError, "but got list"),
        ("t.json", '{"g_norm_floor": "x"}', wb.InputError, "Expected g_norm_floor to be a finite number, but got 'x'"),
        ("t.json", "{", wb.FormatError, r"t\.json to be readable as \.json, but: "),
        ("t.toml", "a = ", wb.FormatError, r"t\.toml to be readable as \.toml, but: "),
        ("t.json", "\xff", wb.FormatError, r"t\.json to be readable as \.json, but: 'utf-8' codec"),
    ],
)
def test_threshold_files_that_are_wrong(tmp_path, name, text, error, words):
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(error, match=words):
        DiagnosticThresholds.load(tmp_path / name)


def test_a_threshold_file_that_is_not_there(tmp_path):
    with pytest.raises(wb.FormatError, match=r"Expected a file at .*none\.json, but there is none"):
        DiagnosticThresholds.load(tmp_path / "none.json")


@pytest.mark.parametrize("edition", ["five", "Three-check", "", None, ["three-check"]])
def test_other_editions_are_refused_before_anything_is_measured(edition):
    words = "Expected edition to be one of three-check, four-diagnostic, intrinsic, but got "
    with pytest.raises(wb.InputError, match=words):
        decide(numbers(), Claim(), T, edition)
    with pytest.raises(wb.InputError, match=words):
        wb.diagnose(None, None, edition=edition)  # type: ignore[arg-type]


@pytest.mark.parametrize("thresholds", [{"g_norm_floor": 1e-6}, 3, "strict"])
def test_thresholds_of_another_type_are_refused(thresholds):
    with pytest.raises(
        wb.InputError, match=r"Expected thresholds to be DiagnosticThresholds, but got .*\.load\(path\)"
    ):
        wb.diagnose(wb.selftest.healthy(), BATCHES, thresholds=thresholds)


# -- the walk-back chain -------------------------------------------------------------------------------------------


def test_the_chain_tells_its_four_steps_in_order():
    v = verdict(numbers(238.0, 1e-9, 0.9, gamma=0.1, cosine=[0.4, 0.0, 0.0, 0.0, 0.0]), 0.31, 0.35)
    assert [s.step for s in v.chain] == [1, 2, 3, 4]
    assert [s.holds for s in v.chain] == [None, False, False, False]
    assert v.chain[0].text == "accuracy 0.310 and Γ = +0.100 over sites 0…3"
    assert v.chain[1].text == "‖g_L‖ = 1e-09 is under the floor of 1e-07; growth 238x per block is above 50x"
    assert v.chain[2].text == "-4.0 pp over frozen blocks, margin 2 pp"
    assert v.chain[3].text.startswith("Mode 1, measurement degeneracy, drift-dominated: ")


def test_the_chain_rounds_limits_like_values():
    """Limits fitted to data have all the digits of a float."""
    t = DiagnosticThresholds(h_norm_explosion_ratio=81.24532, g_norm_floor=1.23456e-7, frozen_acc_margin_pp=1.98765)
    v = verdict(numbers(238.123, 1e-9, 0.9), 0.31, 0.35, t=t)
    assert v.chain[1].text == "‖g_L‖ = 1e-09 is under the floor of 1.2e-07; growth 238x per block is above 81.2x"
    assert v.chain[2].text == "-4.0 pp over frozen blocks, margin 1.99 pp"


@pytest.mark.parametrize(
    ("m", "accs", "edition", "text"),
    [
        (numbers(), (0.6, 0.3), "three-check", "none of the audited failures shows"),
        (numbers(), (0.3, 0.3), "three-check", "unused depth with a reference above its floor"),
        (numbers(2.0, 1e-9), (0.6, 0.3), "three-check", "(without an exploding block)"),
        (numbers(1e3, 1e-3, 0.1), (0.6, 0.3), "four-diagnostic", "although the reference is still above its floor"),
        (Measurements(), (None, None), "three-check", "can't be told"),
        (
            numbers(cosine=[0.9, 0.0, 0.0, 0.0, 0.0], gamma=0.225, gamma_concentration=1.0),
            (0.6, 0.3),
            "three-check",
            "Mode 2, aggregation collapse: site 0 carries 100% of Γ",
        ),
    ],
)
def test_the_last_step_names_the_failure(m, accs, edition, text):
    assert text in verdict(m, *accs, edition).chain[3].text


@pytest.mark.parametrize(
    ("cosine", "shape", "said"),
    [
        ([0.9, 0.0, 0.0, 0.0, 0.0], [256], True),
        ([0.4, 0.4, 0.4, 0.4, 0.0], [256], False),
        ([0.02, 0.0, 0.0, 0.0, 0.0], [256], False),  # noise of two random directions
        ([0.02, 0.0, 0.0, 0.0, 0.0], [10**6], True),
        ([0.9, 0.3], [256], False),  # one site alone carries all of it always
        ([0.9, 0.0, 0.0, 0.0, 0.0], "wide", True),
        ([0.9, 0.0, 0.0, 0.0, 0.0], [0], True),
    ],
)
def test_concentration_is_noted_when_it_is_more_than_noise(cosine, shape, said):
    share = abs(cosine[0]) / sum(map(abs, cosine[:-1]))
    m = numbers(cosine=cosine, gamma_concentration=share, conditions={"state_shape": shape})
    assert is_concentrated(m) is said


# -- claims, findings by name, editions as tables --------------------------------------------------------------------


def test_a_claim_says_what_the_published_keywords_say():
    net, batches = wb.selftest.exploded(), wb.selftest.batches(3)
    ours = wb.diagnose(net, batches, claim=wb.Claim(accuracy=0.31, frozen=0.35, bp=0.6), method="DFA")
    theirs = wb.diagnose(net, batches, 0.31, 0.35, bp_acc=0.6, method_name="DFA")
    assert ours.to_dict() == theirs.to_dict()
    assert (ours.method, ours.headline_acc, ours.frozen_baseline_acc, ours.bp_acc) == ("DFA", 0.31, 0.35, 0.6)


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        (
            {"claim": Claim(0.3), "headline_acc": 0.3},
            r"once, but got claim= and headline_acc=\. Put headline",
        ),
        ({"claim": Claim(0.3), "bp_acc": 0.3, "correct": {}}, "claim= and bp_acc=, correct="),
        ({"claim": 0.3}, r"claim to be a Claim, but got float\. Write claim=walkback\.Claim\("),
        ({"method": "DFA", "method_name": "FA"}, "method= or method_name=, but got both"),
    ],
)
def test_a_claim_or_method_given_twice_is_refused_before_anything_is_measured(keywords, words):
    with pytest.raises(wb.InputError, match=words):
        wb.diagnose(None, [], **keywords)


@pytest.mark.parametrize("edition", EDITIONS)
def test_findings_are_had_by_name(edition):
    v = verdict(numbers(), edition=edition)
    given = [name for name in EDITIONS[edition] if name != "outcome"]  # where it was measured: test_outcome.py
    assert [v[name] for name in given] == [v[f.check] for f in v.findings] == list(v.findings)
    assert v["depth"].title == "depth utility"
    with pytest.raises(wb.InputError, match="one of growth, reference"):
        v["width"]


def test_a_check_that_decides_only_with_another_names_one_of_its_edition():
    for checks in EDITIONS.values():
        assert {check.only_with for check in checks.values()} <= {"", *checks}
