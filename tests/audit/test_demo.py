"""The demo at a small scale: real runs, real controls, a table of what they measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import walkback as wb
from walkback import cli
from walkback.audit.demo import all_numbers, demo, looks_fine, screen, specs

TINY = {"net": "resmlp", "net_options": {"width": 16, "depth": 2}, "data": "test_training:tiny", "epochs": 2}


@pytest.mark.slow
def test_every_rule_is_judged_against_its_own_control(tmp_path: Path) -> None:
    reports = demo(tmp_path, workers=2, recipe=TINY)
    assert [r.method for r in reports] == ["BP", "DFA"]
    accuracy = {spec: wb.load_bundle(tmp_path / spec.name).report().headline_acc for spec in specs(0, TINY)}
    runs = specs(0, TINY)
    for i, report in enumerate(reports):
        assert report.headline_acc == accuracy[runs[i]]
        assert report.frozen_baseline_acc == accuracy[runs[i + 2]]
        assert report.run["frozen_bp_stem_acc"] == accuracy[runs[2]]
        assert wb.Report.load(tmp_path / f"{runs[i].rule}.report.json") == report
    lines = all_numbers(reports).splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["BP", "DFA"]
    assert f"{reports[1].headline_acc:.3f}" in lines[3]


def test_a_rule_that_can_not_be_trained_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(wb.InputError, match="Expected net_options that resmlp knows"):
        demo(tmp_path, workers=1, recipe={**TINY, "net_options": {"hidden": 1}})


def test_dfa_is_the_published_one_and_its_control_is_matched() -> None:
    bp, dfa, bp_frozen, dfa_frozen = specs(3)
    assert (dfa.credit_site, dfa.credit_length, bp.credit_length) == ("reader", "unit", "raw")
    assert (dfa_frozen.scope, dfa_frozen.rule, dfa_frozen.credit_length) == ("frozen", "dfa", "unit")
    assert (bp_frozen.scope, bp_frozen.rule) == ("frozen", "bp")
    assert {spec.seed for spec in specs(3)} == {3}


# -- the screen ----------------------------------------------------------------------------------------------------


def judged(method: str, growth: float, g_norm: float, acc: float, frozen: float, gamma: float = 0.21) -> wb.Report:
    norms = {"per_layer": {"h_norm": [1.0, growth], "g_norm": [g_norm, g_norm], "cosine": [gamma, 0.0]}}
    found = wb.judge(norms, headline_acc=acc, frozen_baseline_acc=frozen, bp_acc=0.8, bp_frozen_acc=0.7,
                     method_name=method)  # fmt: skip
    worth = wb.Depth(-1.1, (-2.0, -0.2), 0.424, (0.44, 0.43), {"trained": [0.4, 0.5]}, None, None, None,
                     {"train": 100, "test": 100}, {"samples": 0.5, "draws": 0.4}, {"trained": [1e-4]})  # fmt: skip
    found = replace(found, conditions={**found.conditions, "classes": 10}, depth=worth.to_dict())
    return replace(found, run={"frozen_bp_stem_acc": 0.7})


def pair() -> list[wb.Report]:
    return [judged("BP", 3.1, 1e-3, 0.8, 0.7, 1.0), judged("DFA", 1.1e5, 1.1e-8, 0.552, 0.605)]


def test_the_screen_is_small_and_says_why_the_rule_that_looks_fine_falls() -> None:
    lines = screen(pair()).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 21, "with the page and what comes next, 25"
    assert lines[0].split("  ")[-1] == "what they leave out"
    assert lines[1].split() == ["rule", "accuracy", "Γ", "frozen", "worth", "of", "blocks", "growth", "verdict"]
    assert lines[2].split() == ["BP", "0.800", "+1.000", "0.700", "-1.1", "pp", "3.1x", "passes"]
    text = " ".join(" ".join(lines).split())
    assert "DFA 0.552 +0.210 0.605 -1.1 pp 1.1e5x walked back: frozen blocks are 5.3 pp better" in text
    assert "DFA looks fine: 5.5 times chance, and Γ = +0.21. It is walked back by D1, D2, D3: one block" in text


@pytest.mark.parametrize(("acc", "gamma", "fine"), [(0.3, 0.1, True), (0.29, 0.1, False), (0.3, 0.09, False)])
def test_what_looks_fine_is_three_times_chance_and_a_gamma_of_a_tenth(acc: float, gamma: float, fine: bool) -> None:
    report = judged("DFA", 1e5, 1e-8, acc, 0.6, gamma)
    assert looks_fine(report) is fine
    assert ("looks fine" in screen([report])) is fine


def test_what_diverged_or_gains_too_little_is_said() -> None:
    report = judged("DFA", 2.0, 1e-3, 0.61, 0.6)
    assert "trained blocks gain only 1.0 pp" in " ".join(screen([report]).split())
    assert "diverged" in screen([replace(report, run={**report.run, "diverged": "epoch 2"})])


def test_the_command_names_the_page_and_what_comes_next(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("walkback.audit.demo.demo", lambda *_: pair())
    monkeypatch.setattr("walkback.audit.records.read_records", lambda folder: folder)
    monkeypatch.setattr("walkback.replication.page.page_data", lambda records: {})
    monkeypatch.setattr("walkback.replication.page.render", lambda data: "<html>")
    monkeypatch.chdir(tmp_path)
    assert cli.run(["demo"]) == 0
    short = capsys.readouterr().out
    assert short.endswith(
        "\n\npage: runs/demo/report.html\n"
        "next: walkback report runs/demo --open      everything: walkback demo --verbose\n"
    )
    assert len(short.splitlines()) <= 25
    assert max(map(len, short.splitlines())) <= 80
    assert Path("runs/demo/report.html").read_text() == "<html>\n"
    assert cli.run(["demo", "--verbose"]) == 0
    assert "averaged" not in short
    assert "BP-stem frozen" in capsys.readouterr().out
