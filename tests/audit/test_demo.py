"""The demo at a small scale: real runs, real controls, a table of what they measured."""

from __future__ import annotations

from pathlib import Path

import pytest

import walkback as wb
from walkback.audit.demo import demo, specs, table

TINY = {"net": "resmlp", "net_options": {"width": 16, "depth": 2}, "data": "test_training:tiny", "epochs": 2}


@pytest.mark.slow
def test_every_rule_is_judged_against_its_own_control(tmp_path: Path) -> None:
    reports = demo(tmp_path, workers=2, recipe=TINY)
    assert [r.method for r in reports] == ["BP", "FA", "DFA"]
    accuracy = {spec: wb.load_bundle(tmp_path / spec.name).report().headline_acc for spec in specs(0, TINY)}
    runs = specs(0, TINY)
    for i, report in enumerate(reports):
        assert report.headline_acc == accuracy[runs[i]]
        assert report.frozen_baseline_acc == accuracy[runs[i + 3]]
        assert report.run["frozen_bp_stem_acc"] == accuracy[runs[3]]
        assert wb.Report.load(tmp_path / f"{runs[i].rule}.report.json") == report
    lines = table(reports).splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["BP", "FA", "DFA"]
    assert f"{reports[2].headline_acc:.3f}" in lines[4]


def test_a_rule_that_can_not_be_trained_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(wb.InputError, match="Expected net_options that resmlp knows"):
        demo(tmp_path, workers=1, recipe={**TINY, "net_options": {"hidden": 1}})
