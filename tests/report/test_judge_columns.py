"""Columns by the names that Walkback logs, rows by method, first and last norms, and none dropped without a word."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import walkback as wb
from walkback.training.watch import scalars


def table(path: Path, rows: list[dict]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def unused(report: wb.Report) -> dict:
    return next((n.values for n in report.notes if n.code == "unused-columns"), {"columns": [], "meant": {}})


def test_what_a_watch_logs_is_judged_as_its_row(tmp_path):
    watch = wb.Watch(wb.selftest.exploded(), wb.selftest.batches(2), every=1, credit=lambda t: t.grads)
    watch.step()
    (row,) = watch.history
    ours = wb.judge(table(tmp_path / "log.csv", [scalars(row)]))
    assert ours.per_layer["h_norm"] == pytest.approx(row["per_layer"]["h_norm"])
    assert ours.per_layer["cosine"] == pytest.approx(row["per_layer"]["cosine"])
    assert ours.failed == wb.judge(row).failed == ("D1", "D2")
    assert wb.judge(scalars(row)).failed == ours.failed


def test_columns_that_are_not_used_are_named_with_what_they_may_mean(tmp_path):
    path = table(
        tmp_path / "log.csv", [{"h_norm_0": 1.0, "h_norm_1": 90.0, "hnorm2": 3.0, "lr": 0.1, "frozen_ac": 0.3}]
    )
    report = wb.judge(path)
    assert unused(report)["columns"] == ["hnorm2", "lr", "frozen_ac"]
    assert unused(report)["meant"] == {"hnorm2": "h_norm_2", "frozen_ac": "frozen_acc"}
    assert any("hnorm2: did you mean h_norm_2?" in text for text in report.advisories)
    assert wb.Report.from_dict(report.to_dict()) == report


def test_a_log_without_strange_columns_says_nothing(tmp_path):
    path = table(
        tmp_path / "log.csv", [{"epoch": 1, "h_norm_0": 1.0, "h_norm_1": 2.0, "g_norm_0": 1e-3, "g_norm_1": 1e-3}]
    )
    assert unused(wb.judge(path))["columns"] == []


def test_one_row_per_method(tmp_path):
    rows = [
        {"method": m, "h_norm_0": 1.0, "h_norm_1": h, "g_norm_1": g} for m, h, g in (("BP", 2, 1e-3), ("DFA", 90, 1e-9))
    ]
    path = table(tmp_path / "methods.csv", rows)
    assert wb.judge(path, method_name="DFA").failed == ("D1", "D2")
    assert wb.judge(path, method_name="BP").failed == ()
    with pytest.raises(wb.InputError, match="those of BP, DFA, but no method was named"):
        wb.judge(path)
    with pytest.raises(wb.InputError, match="there is no 'FA'"):
        wb.judge(path, method_name="FA")


def test_first_and_last_norms():
    report = wb.judge({"h_norm_first": 2.0, "h_norm_last": 500.0, "g_norm_last": 1e-9})
    assert report.values["growth_total"] == 250.0
    assert report.values["g_norm_deepest"] == 1e-9
    assert unused(wb.judge({"h_norm_last": 500.0, "acc": 0.5}))["columns"] == ["h_norm_last"]
