"""The table of the demo's seeds, from reports that are made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

import demo_seeds
import walkback as wb
from test_demo import judged
from walkback.audit.demo import specs


def test_every_seed_has_its_row_and_the_last_line_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trained: list[wb.RunSpec] = []

    def reports(out: Path, seed: int, workers: int) -> list[wb.Report]:
        return [judged("BP", 3.1, 1e-3, 0.8, 0.7, 1.0), judged("DFA", 1.1e5, 1.1e-8, 0.25 * seed, 0.6)]

    monkeypatch.setattr(demo_seeds, "demo", reports)
    monkeypatch.setattr(wb, "train", lambda spec, out, quiet: trained.append(spec))
    text = demo_seeds.table([1, 2], tmp_path)
    assert trained == [*specs(1), *specs(2)]
    assert "| 1 | 0.800 | 0.700 | passes | 0.250 | +0.210 | 0.600 | -1.1 [-2.0, -0.2] | 1.1e5 | 1.1e-8 | no |" in text
    assert "| 2 | 0.800 | 0.700 | passes | 0.500 |" in text
    end = "Of 2 seeds: BP passes 2, DFA is walked back by D1, D2 and D3 2, accuracy and Γ of DFA look fine 1."
    assert text.splitlines()[-1] == end
