"""What results/ep-rounding.md is made of: rows without credit are found, and float64 finds what float32 lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ep_rounding
import walkback as wb
from places import ROOT


def test_the_first_row_without_credit_is_the_one_from_which_on_there_is_none() -> None:
    def rows(*has: bool) -> list[dict]:
        return [{"epoch": i, "per_layer": {"cosine": [None, 0.5 if h else None]}} for i, h in enumerate(has, 1)]

    assert ep_rounding.first_without(rows(True, True)) is None
    assert ep_rounding.first_without(rows(True, False, True)) is None
    assert ep_rounding.first_without(rows(True, False, True, False, False))["epoch"] == 4
    assert ep_rounding.first_without(rows(False, False))["epoch"] == 1


def test_cosines_of_a_run_in_both_precisions(tmp_path: Path) -> None:
    data = wb.data.load("teacher")
    run = wb.train(wb.RunSpec(net="resmlp", net_options={"width": 16, "depth": 2}, data="teacher", rule="ep",
                              rule_options={"steps": 2}, epochs=1), tmp_path, data=data)  # fmt: skip
    single, double = (ep_rounding.cosines(run.path, data, dtype) for dtype in (torch.float32, torch.float64))
    assert [c is None for c in single] == [c is None for c in double] == [True, False, False]
    assert single[1:] == pytest.approx(double[1:], abs=1e-3)
    assert single != double
    assert ep_rounding.told([None, None]) == "none: zero credit"
    assert ep_rounding.told([None, -0.5]) == "-0.50 (site 1)"


def test_the_page_on_replication_says_what_the_table_says() -> None:
    lines = (ROOT / "results" / "ep-rounding.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    found = {row[0]: dict(zip(cells[0], row)) for row in cells[2:]}
    page = " ".join((ROOT / "docs" / "default-recipe.md").read_text(encoding="utf-8").split())
    lost = [found[seed]["no credit from epoch"] for seed in ("42", "123")]
    assert f"from epoch {lost[0]} (seed 42) and {lost[1]} (seed 123) on the credit is exactly zero" in page
    assert all(found[seed]["cosines in float32"] == "none: zero credit" for seed in ("42", "123"))
    assert all("+1.00 (site 3)" in found[seed]["in float64"] for seed in found), "a cosine of +1.00 at site 3"
    assert float(found["42"]["last ‖h_L‖"]) / float(found["456"]["last ‖h_L‖"]) == pytest.approx(100, rel=0.1)
    assert "(site 3)" in found["456"]["cosines in float32"], "its credit at site 3 survives"
