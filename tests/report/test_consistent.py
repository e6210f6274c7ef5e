"""A report that disagrees with itself is no report: its verdict would be believed where nobody looks at the rest."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

import walkback as wb
from places import ROOT

DFA = wb.Report.load(wb.selftest.BUNDLES / "dfa" / "report.json").to_dict()


def finding(number: int, **fields: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda data: data["findings"][number].update(fields)


def part(name: str, **fields: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda data: data[name].update(fields)


CASES: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda d: d.update(verdict="passes", failed=[]), "failed is empty, and its findings walk back D1, D2, D3"),
    (lambda d: d.update(verdict="passes"), "its verdict is 'passes', and its findings give 'walked back'"),
    (lambda d: d.update(failed=["D3"]), "failed is D3, and its findings walk back D1, D2, D3"),
    (finding(0, flagged=False), "D1 is not flagged at 134308, and flags when > 50"),
    (finding(0, value=1.0), "D1 is flagged at 1, and flags when > 50"),
    (finding(0, value=1e6), "D1 judges 1e+06, where values.growth is 134308"),
    (finding(1, value=6e-9), "D2 judges 6e-09, where values.g_norm_deepest is 5.47787e-09"),
    (finding(0, limit=60.0), "D1 has the limit 60, where thresholds.h_norm_explosion_ratio is 50"),
    (part("thresholds", frozen_acc_margin_pp=-9.0), "D3 has the limit 2, where thresholds.frozen_acc_margin_pp is -9"),
    (part("values", depth_margin_pp=-50.0), "D3 judges -3.6, where values.depth_margin_pp is -50"),
    (lambda d: d.update(measurement_valid=True), "measurement_valid is True, and its findings give False"),
    (lambda d: d.update(depth_used=None), "depth_used is None, and its findings give False"),
    (lambda d: d["findings"].append(copy.deepcopy(d["findings"][0])), "a check stands there twice"),
    (lambda d: d.update(edition="four-diagnostic"), "D1 is no check of the four-diagnostic edition"),
    (part("values", growth_low=5e9, growth_high=6e9), "growth is 134308, outside of its interval"),
    (part("values", gamma=0.99), "gamma is 0.99, which no values"),
    (part("conditions", distinct_samples=30_000), "conditions.distinct_samples is 30000, of 1024 samples"),
    (part("aggregates", layers=7.0), "orders of averaging Γ should be between -1 and 1, but layers is not"),
    (
        lambda d: d.update(controls={"fresh": [0.5]}),
        "should have one value for each of 5 sites",
    ),
    (lambda d: d.update(nonfinite=[{"kind": "state", "site": 77}]), "sites should be those of the numbers, below 5"),
]


@pytest.mark.parametrize(("change", "words"), CASES)
def test_a_report_that_disagrees_with_itself_is_refused(change: Callable[[dict[str, Any]], Any], words: str) -> None:
    data = copy.deepcopy(DFA)
    change(data)
    with pytest.raises(wb.FormatError, match=re.escape(words)):
        wb.Report.from_dict(data)


def test_a_report_of_the_first_format_that_disagrees_with_itself_is_refused_too() -> None:
    data = json.loads((wb.selftest.BUNDLES / "dfa" / "report.json").read_text())
    assert data["schema"] == "walkback.report/1"
    with pytest.raises(wb.FormatError, match="failed is empty, and its findings walk back"):
        wb.Report.from_dict({**data, "failed": []})


def test_every_report_that_ships_agrees_with_itself() -> None:
    for path in sorted(ROOT.glob("results/*/*/report.json"))[::10]:
        wb.Report.load(path)


@pytest.mark.parametrize("edition", ["three-check", "four-diagnostic", "intrinsic"])
@pytest.mark.parametrize("h", [[1.0, 2.0], [1.0, 90.0], [1.0, None], [None, 1.0], [0.0, 1.0], [1.0, float("inf")]])
@pytest.mark.parametrize("g", [[1e-3, 1e-3], [1e-3, 1e-9], [None, None], [1.0, float("nan")]])
@pytest.mark.parametrize("claim", [(), (0.6, 0.3), (0.3, 0.29, 0.3)])
def test_what_judge_writes_agrees_with_itself(edition: str, h: Any, g: Any, claim: tuple[float, ...]) -> None:
    given: Any = dict(zip(("headline_acc", "frozen_baseline_acc", "bp_acc"), claim))
    report = wb.judge({"h_norm": h, "g_norm": g, "cosine": [0.1, 0.2]}, edition, **given)
    assert wb.Report.from_dict(report.to_dict()).verdict == report.verdict
