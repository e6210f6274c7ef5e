"""D3-outcome beside D3: neither, one or both given, in every edition; which one decides, and what the line says."""

from __future__ import annotations

import json
from dataclasses import replace

import jsonschema
import numpy as np
import pytest
from scipy import stats

import protocol
import walkback as wb
from places import ROOT
from walkback.verdict.claim import Claim
from walkback.verdict.editions import EDITIONS, decide
from walkback.verdict.outcome import one_decides

T = wb.DiagnosticThresholds()
M = wb.Measurements(h_norm=[1.0, 1.1], g_norm=[1e-3, 1e-3], growth=1.1, float64_disagreement=[0.0, 0.0],
                    float64_shift=[0.0, 0.0], stability=0.1)  # fmt: skip
GOOD, BAD, OPEN = (6.4, (5.0, 7.8)), (-1.1, (-2.0, -0.2)), (2.1, (0.5, 3.7))


def worth(value: float = 6.4, interval: tuple[float, float] = (5.0, 7.8)) -> wb.Depth:
    probes = {"trained": [0.4, 0.5], "re-randomised": [0.4, 0.45]}
    trained = 0.435 + value / 100
    return wb.Depth(value, interval, trained, (0.44, 0.43), probes, [0.45], 0.4, 0.3, {"train": 100, "test": 100},
                    {"samples": 0.5, "draws": 0.4}, {"trained": [1e-4], "re-randomised": [1e-4, 1e-3]})  # fmt: skip


def claim(frozen: float | None = None, outcome: tuple | None = None, primary: str = "D3", **more: float) -> Claim:
    found = None if outcome is None else worth(*outcome)
    return Claim(accuracy=0.5, frozen=frozen, depth=found, primary=primary, **more)


@pytest.fixture(params=sorted(EDITIONS))
def edition(request: pytest.FixtureRequest) -> str:
    return request.param


# -- several seeds -------------------------------------------------------------------------------------------------


def test_the_mean_over_seeds_has_the_errors_of_seeds_samples_and_draws(edition: str) -> None:
    """By numpy: the spread of seeds, and both errors that they share, each with its own quantile."""
    worths = [6.4, 9.0, 4.1]
    found = decide(M, Claim(accuracy=[0.5] * 3, depth=tuple(map(worth, worths))), T, edition)["outcome"]
    each = stats.t.ppf(0.975, 2) * stats.sem(worths), stats.norm.ppf(0.975) * 0.5, stats.t.ppf(0.975, 1) * 0.4
    half = np.sqrt(np.square(each).sum())
    assert found.value == pytest.approx(np.mean(worths))
    assert found.interval == pytest.approx((np.mean(worths) - half, np.mean(worths) + half))
    assert found.parts == pytest.approx({"seeds": stats.sem(worths), "samples": 0.5, "draws": 0.4})
    assert (found.flagged, found.cause) == (None, "straddles")
    assert "more seeds together with" in found.reason


def test_a_report_is_of_one_network() -> None:
    with pytest.raises(wb.InputError, match="one network that the report is of, but got those of 2 seeds"):
        wb.judge(M, depth=(worth(), worth()))  # type: ignore[arg-type]


# -- one check at a time -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "interval", "flagged", "cause"),
    [
        (2.0, (2.0, 2.0), False, ""),
        (1.999, (1.9, 1.999), True, ""),
        (2.1, (0.5, 3.7), None, "straddles"),
        (1.0, (0.0, 2.0), None, "straddles"),
        (6.4, (5.0, 7.8), False, ""),
        (-1.1, (-2.0, -0.2), True, ""),
    ],
)
def test_the_interval_decides_against_the_margin(value, interval, flagged, cause, edition):
    found = decide(M, claim(None, (value, interval)), T, edition)["outcome"]
    assert (found.check, found.flagged, found.cause, found.value) == ("D3-outcome", flagged, cause, value)
    assert found.interval == interval
    assert bool(found.reason) is (flagged is None)


def test_the_margin_is_that_of_d3(edition):
    strict = replace(T, frozen_acc_margin_pp=7.9)
    assert decide(M, claim(None, GOOD), strict, edition)["outcome"].flagged is True


def test_a_task_that_bp_does_not_need_depth_for_decides_nothing(edition):
    v = decide(M, claim(0.4, BAD, "D3-outcome", bp=0.41), T, edition)
    assert (v["outcome"].flagged, v["outcome"].cause, v.verdict) == (None, "task", "undecided")
    assert decide(M, claim(None, BAD, bp=0.41), T, edition)["outcome"].flagged is True, "no control of BP is known"


# -- neither, one, both --------------------------------------------------------------------------------------------


def test_neither_given_is_undecided_and_there_is_no_finding(edition):
    v = decide(M, claim(), T, edition)
    assert (v.verdict, v.depth_used, "outcome" in v.names) == ("undecided", None, False)
    assert wb.judge(M, edition, headline_acc=0.5).verdict_line.endswith(
        "depth not tested (give frozen_acc, or --depth)"
    )


@pytest.mark.parametrize(
    ("outcome", "verdict", "line"),
    [
        (GOOD, "passes", "VERDICT: passes, depth judged on D3-outcome (+6.4 pp)"),
        (BAD, "walked back", "VERDICT: walked back: D3-outcome"),
        (
            OPEN,
            "undecided",
            "VERDICT: undecided: depth (D3-outcome): the 95 % interval +0.5…+3.7 pp straddles",
        ),
    ],
)
def test_one_given_is_judged_on_it_and_named(outcome, verdict, line, edition):
    report = wb.judge(M, edition, headline_acc=0.5, depth=worth(*outcome))
    assert report.verdict == verdict
    assert report.verdict_line.startswith(line)
    assert report.depth_used is {"passes": True, "walked back": False, "undecided": None}[verdict]
    decided = decide(M, claim(None, outcome), T, edition)
    assert decided["depth"].beside
    assert not decided["outcome"].beside


@pytest.mark.parametrize("primary", ["D3", "D3-outcome"])
@pytest.mark.parametrize("frozen", [0.40, 0.49])
@pytest.mark.parametrize("outcome", [GOOD, BAD, OPEN])
def test_both_given_the_primary_one_decides_whatever_it_says(frozen, outcome, primary, edition):
    v = decide(M, claim(frozen, outcome, primary), T, edition)
    first = v["outcome"] if primary == "D3-outcome" else v["depth"]
    assert v.depth_used is (None if first.flagged is None else not first.flagged)
    assert v.verdict == {True: "walked back", False: "passes", None: "undecided"}[first.flagged]
    assert v.failed == ((first.check,) if first.flagged else ())
    assert [f.check for f in v.findings if f.beside] == [({"D3-outcome", v["depth"].check} - {first.check}).pop()]


def test_where_they_disagree_the_line_the_notes_and_the_chain_say_so(edition):
    name = "d" if edition == "four-diagnostic" else "D3"
    report = wb.judge(M, edition, headline_acc=0.5, frozen_baseline_acc=0.436, depth=worth(*BAD))
    assert report.verdict_line == f"VERDICT: passes; D3-outcome disagrees: flags at -1.1 pp ({name} decides)"
    (note,) = [n for n in report.notes if n.code == "depth-differs"]
    assert (note.values["decides"], note.values["other"], note.values["flagged"]) == (name, "D3-outcome", True)
    assert "-1.1 pp over their own random draws" in report.chain[2]["text"]
    other = wb.judge(M, edition, headline_acc=0.5, frozen_baseline_acc=0.436, depth=worth(*BAD), primary="D3-outcome")
    assert (
        other.verdict_line
        == f"VERDICT: walked back: D3-outcome; {name} disagrees: passes at +6.4 pp (D3-outcome decides)"
    )


def test_where_they_agree_nothing_more_is_said(edition):
    report = wb.judge(M, edition, headline_acc=0.5, frozen_baseline_acc=0.436, depth=worth(*GOOD))
    assert report.verdict_line == "VERDICT: passes"
    assert "depth-differs" not in [n.code for n in report.notes]


def test_a_primary_check_that_is_open_stays_open():
    """The pleasant answer of the other one does not close it."""
    v = decide(M, claim(0.40, OPEN, "D3-outcome"), T, "three-check")
    assert (v.verdict, v["depth"].flagged) == ("undecided", False)
    report = wb.judge(M, headline_acc=0.5, frozen_baseline_acc=0.4, depth=worth(*OPEN), primary="D3-outcome")
    assert report.verdict_line.endswith("; D3 beside it passes at +10.0 pp (D3-outcome decides)")


def test_findings_without_an_outcome_stay_as_they_are():
    found = {"depth": decide(M, claim(), T, "three-check")["depth"]}
    assert one_decides(found, "D3-outcome") == (found, "depth")


# -- words of the README -------------------------------------------------------------------------------------------


def test_the_published_words_and_logic_do_not_know_it():
    net, batches = wb.selftest.healthy(), wb.selftest.batches(8)
    report = protocol.diagnose(model=net, eval_batches=batches, headline_acc=0.5, depth=worth(*BAD))
    assert (report.verdict, report.verdict_line) == ("trustworthy", "VERDICT: trustworthy")
    assert report.failed == ("D3-outcome",)
    assert report.to_dict()["verdict"] == "walked back"
    assert protocol.diagnose(model=net, eval_batches=batches, headline_acc=0.5).to_dict()["verdict"] == "undecided"


# -- kept and read back --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("primary", ["D3", "D3-outcome"])
def test_a_report_keeps_it_and_is_judged_again_alike(tmp_path, primary, edition):
    report = wb.judge(M, edition, headline_acc=0.5, frozen_baseline_acc=0.436, depth=worth(*BAD), primary=primary)
    schema = json.loads((ROOT / "src/walkback/schemas/report-2.json").read_text())
    jsonschema.validate(json.loads(report.to_json()), schema)
    path = report.save(tmp_path / "report.json")
    again = wb.judge(path)
    assert again.to_dict() == report.to_dict() == wb.Report.load(path).to_dict()
    assert again.depth == worth(*BAD).to_dict()


def test_a_report_without_it_is_still_read(tmp_path):
    data = wb.judge(M, headline_acc=0.5, frozen_baseline_acc=0.4).to_dict()
    del data["depth"]
    data["findings"] = [{k: v for k, v in f.items() if k != "beside"} for f in data["findings"]]
    assert wb.Report.from_dict(data).verdict_line == "VERDICT: passes"
    assert wb.judge(data).verdict == "passes"


def test_a_column_that_is_called_depth_is_another_thing():
    assert wb.judge({"h_norm": [1.0, 1.1], "g_norm": [1e-3, 1e-3], "depth": 4}).depth is None


@pytest.mark.parametrize("form", ["details", "to_markdown", "to_latex", "to_html"])
def test_every_form_shows_accuracy_by_depth(form):
    text = getattr(wb.judge(M, headline_acc=0.5, depth=worth()), form)()
    for part in ("0.450", "0.400", "D3-outcome", "re-randomised"):
        assert part in text
    if form != "to_latex":
        assert "trained blocks are worth +6.4 pp [+5.0, +7.8]" in text
        assert "stem alone 0.400, inputs alone 0.300" in text


def test_what_could_not_be_measured_is_said_with_its_reason():
    found = replace(worth(), without=None, without_all=None, reasons={"without_all": "the stream changes its shape"})
    text = wb.judge(M, headline_acc=0.5, depth=found).details()
    assert "stem alone not measured: the stream changes its shape" in text


# -- wrong input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"depth": 3.0}, "what walkback.depth"),
        ({"primary": "D4"}, "primary to be D3 or D3-outcome"),
    ],
)
def test_a_wrong_claim_is_a_clear_error(change, words):
    with pytest.raises(wb.InputError, match=words):
        Claim(accuracy=0.5, **change)


def test_depth_is_given_once():
    with pytest.raises(wb.InputError, match=r"claim\.depth and depth="):
        wb.diagnose(wb.selftest.healthy(), [], claim=claim(None, GOOD), depth=worth())


@pytest.mark.parametrize(
    "change", [{"worth_pp": "x"}, {"interval": [1.0]}, {"rerandomised": []}, {"trained": float("nan")}]
)
def test_a_depth_block_that_is_none_is_refused(change):
    with pytest.raises(wb.InputError, match="Expected depth in the numbers"):
        wb.judge({"headline_acc": 0.5, "depth": {**worth().to_dict(), **change}})
    with pytest.raises(wb.InputError, match="but got no samples"):
        wb.Depth.of({k: v for k, v in worth().to_dict().items() if k != "samples"})
