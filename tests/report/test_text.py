"""What `print` shows of a report: the verdict and its reason first, one table, what to do next; the rest on demand."""

from __future__ import annotations

import re

import pytest

import walkback as wb
from places import ROOT
from test_outcome import worth
from test_report import BATCHES, reports, tables
from walkback.report.advice import next_steps, reason
from walkback.report.numbers import figure, number
from walkback.verdict.findings import CAUSES

NAMES = sorted(reports())
ALTERED = {"error": 0.4, "limit": 0.01, "sites": [1]}


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("name", NAMES)
def test_a_report_is_one_screen_wide_and_begins_with_its_verdict(name):
    text = str(reports()[name])
    assert max(map(len, text.splitlines())) <= 80
    first, second = text.split("\n\n")[:2]
    assert flat(first).startswith(flat(reports()[name].verdict_line))
    assert flat(first).endswith(flat(reason(reports()[name])))
    assert second.startswith("Walk-back chain\n  1. The claim: ")


@pytest.mark.parametrize("name", NAMES)
def test_there_is_one_table_and_nothing_that_was_not_asked_first(name):
    report = reports()[name]
    found = tables(str(report))
    assert len(found) <= 1
    if found:
        assert set(found[0][0].split()) <= {"site", "‖h‖", "growth", "‖g‖", "cosine", "null", "reads"}
    assert "averaged in other orders" not in str(report)
    for note in report.advisories:
        assert f"note: {flat(note)}" in flat(str(report)), "doubts are not hidden"


@pytest.mark.parametrize("name", NAMES)
def test_repr_is_one_line_with_the_verdict(name):
    report = reports()[name]
    assert "\n" not in repr(report)
    assert report.verdict in repr(report)
    assert report.edition in repr(report)


@pytest.mark.parametrize("name", NAMES)
def test_every_check_that_flags_or_is_open_ends_with_what_to_do(name):
    report = reports()[name]
    steps = dict(next_steps(report))
    for f in report.findings:
        if f["title"] != "direction stability" and f["flagged"] is not False and not f.get("beside"):
            assert f"{f['check']}: {flat(steps[f['check']])}" in flat(str(report))
    clear = all(f["flagged"] is False for f in report.findings if f["title"] != "direction stability")
    assert clear != ("What to do next" in str(report)) or report.doubted


def test_what_to_do_depends_on_why_it_is_open():
    norms = {"per_layer": {"h_norm": [1.0, 2.0], "g_norm": [1e-3, 1e-3]}}
    (untested,) = next_steps(wb.judge(norms))
    assert "walkback train --scope frozen" in untested[1]
    assert "wb.depth(model, train, test)" in untested[1]
    for name in re.findall(r"(\w+)=…", untested[1]):  # as it is called in Python
        assert wb.judge(norms, headline_acc=0.4, **{name: 0.3}).verdict == "passes"
    assert "frozen_baseline_acc=…, or --frozen-acc" in untested[1]
    (few,) = next_steps(wb.judge(norms, headline_acc=[0.40, 0.45, 0.42], frozen_baseline_acc=[0.40, 0.40, 0.40]))
    assert re.search(r"\d+ more seeds would decide it", few[1])
    (never,) = next_steps(wb.judge(norms, headline_acc=[0.41, 0.42, 0.44], frozen_baseline_acc=[0.40, 0.41, 0.40]))
    assert never[1].startswith("report it with its interval and claim neither")
    (task,) = next_steps(wb.judge(norms, headline_acc=0.4, frozen_baseline_acc=0.4, bp_acc=0.41))
    assert "BP beats frozen blocks" in task[1]
    altered = dict(next_steps(wb.judge({**norms, "nonfinite": [], "altered": ALTERED})))
    assert "credit=wb.recorded(model)" in altered["D2"]
    nothing = dict(next_steps(wb.judge({"values": {"gamma": 0.1}})))
    assert "h_norm_0" in nothing["D1"]
    assert "g_norm_deepest" in nothing["D2"]
    passes = wb.judge(norms, headline_acc=0.6, frozen_baseline_acc=0.3)
    assert next_steps(passes) == []
    assert set(CAUSES) >= {"altered", "nonfinite", "straddles", "task", "not-given", "not-measured", "partial"}


def test_the_reason_names_what_fails():
    lost = {"per_layer": {"h_norm": [1.0, 200.0], "g_norm": [1e-9, 1e-9]}}
    said = reason(wb.judge(lost, headline_acc=0.3, frozen_baseline_acc=0.34, method_name="DFA"))
    assert said.startswith("DFA: one block multiplies the stream by 200 (limit 50), ‖g_L‖ = 1.00e-09 is under")
    assert said.endswith("and frozen blocks are 4.0 pp better than trained ones.")
    fine = {"per_layer": {"h_norm": [1.0, 2.0], "g_norm": [1e-3, 1e-3]}}
    assert "gain +1.0 pp over frozen ones, less than 2 pp" in reason(
        wb.judge(fine, headline_acc=0.35, frozen_baseline_acc=0.34)
    )
    assert reason(wb.judge(fine)) == "nothing that was tested fails: growth 2x, ‖g_L‖ 1.00e-03."
    passes = reason(wb.judge(fine, headline_acc=0.6, frozen_baseline_acc=0.4))
    assert passes.endswith("growth 2x, ‖g_L‖ 1.00e-03, +20.0 pp over frozen blocks.")


def test_the_reason_names_what_the_gain_is_over():
    fine = {"per_layer": {"h_norm": [1.0, 2.0], "g_norm": [1e-3, 1e-3]}}
    control = reason(wb.judge(fine, headline_acc=0.6, frozen_baseline_acc=0.4))
    assert control.endswith("growth 2x, ‖g_L‖ 1.00e-03, +20.0 pp over frozen blocks.")
    drawn = reason(wb.judge(fine, headline_acc=0.6, depth=worth(6.4, (5.0, 7.8))))
    assert drawn.endswith("+6.4 pp over random draws of the blocks.")


def test_details_have_every_column_and_the_verdict_last():
    report = reports()["credit"]
    for words in ("clamped", "under ε", "averaged in other orders", "check"):
        assert words in report.details()
    assert report.details().splitlines()[-1] == report.verdict_line


def test_the_published_words_are_printed_as_before():
    report = wb.report.report.DiagnosticReport.of(wb.diagnose(wb.selftest.exploded(), BATCHES))
    assert str(report) == report.details()
    assert str(report).splitlines()[-1] == "VERDICT: needs walk-back: D1, D2"


@pytest.mark.parametrize(
    ("cosine", "null", "words"),
    [
        ([0.4, 0.01, -0.02, 0.01], 0.05, "Mode 2, poor credit: no cosine of the deep sites is above its null band"),
        ([0.4, 0.3, 0.3, 0.3], 0.05, "for every deep site read above the null band"),
        ([0.4, 0.4, 0.3, 0.01], 0.05, "for 2 of 3 deep sites read above the null band"),
        ([0.4, 0.3, 0.3, 0.3], None, "can't be told without a null band at every deep site"),
        (None, None, "can't be told, since no credit was given"),
    ],
)
def test_mode_2_is_decided_by_the_null_bands(cosine, null, words):
    band = {} if null is None else {"null_low": [-null] * 4, "null_high": [null] * 4}
    lists = {"h_norm": [1.0, 1.1, 1.2, 1.3], "g_norm": [1e-3] * 4, **({"cosine": cosine} if cosine else {}), **band}
    report = wb.judge({"per_layer": lists}, headline_acc=0.3, frozen_baseline_acc=0.34)
    assert report.failed == ("D3",)
    concentrated = [note for note in report.notes if note.code == "concentrated"]
    assert concentrated or words in report.chain[3]["text"]


def test_poor_credit_is_named_also_where_depth_was_not_tested():
    lists = {"h_norm": [1.0, 1.1, 1.2], "g_norm": [1e-3] * 3, "null_low": [-0.1] * 3, "null_high": [0.1] * 3}
    poor, good = (wb.judge({"per_layer": {**lists, "cosine": [c] * 3}}).chain[3]["text"] for c in (0.02, 0.5))
    assert poor.startswith("Mode 2, poor credit: no cosine of the deep sites is above its null band")
    assert 'is measured with probes=("nudging",)' in poor, "what to do next"
    assert poor.endswith("whether depth is used was not decided")
    assert good == "none of the audited failures shows, but depth was not decided"


@pytest.mark.parametrize("value", [-0.0, -1e-9, -0.04, 0.0, 0.04])
def test_nothing_is_printed_as_minus_nothing(value: float) -> None:
    written = [number(value, kind) for kind in ("acc", "cos", "norm", "pp", "int")]
    written += [figure(value, form) for form in ("number", "signed", "share")]
    claim = {"headline_acc": 0.5 + value / 100, "frozen_baseline_acc": 0.5}
    report = wb.judge({"h_norm": [1.0, 2.0], "g_norm": [1.0, 1.0], "cosine": [-0.0, -0.0]}, **claim)
    for text in (*written, str(report), report.details(), report.to_markdown(), report.to_latex(), report.to_html()):
        assert not re.search(r"(?<![\w.])[-−]0(\.0+)?(?![\d.e])", text), text


def test_every_signed_number_is_written_without_minus_nothing() -> None:
    """The z of a format makes 0.0 of what would be -0.0 when it is rounded."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        assert not re.findall(r"[:\"'](\+\.\d[f%])", path.read_text(encoding="utf-8")), path
