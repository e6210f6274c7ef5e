"""The examples run and say what their first lines promise."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_two_networks_one_trusted_and_one_walked_back(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "two_networks.py"), run_name="__main__")
    verdicts = [line for line in capsys.readouterr().out.splitlines() if line.startswith("VERDICT")]
    assert verdicts == ["VERDICT: trustworthy", "VERDICT: needs walk-back: D1, D2"]


def test_own_rule_is_certified_and_walked_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))  # as `python examples/own_rule.py` does: the spec names it as a module
    runpy.run_path(str(EXAMPLES / "own_rule.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "no hidden backpropagation found" in out
    assert "VERDICT: needs walk-back: D1, D2, D3" in out


def test_vit_with_a_random_feedback_head_is_audited(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "vit_random_feedback.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "Autograd's gradient as reference: Γ = 1.000\n  but the network's own backward pass is not" in out
    cosines = [float(row.split()[-3]) for row in out.splitlines() if row[:1].isdigit() and row.endswith("%")]
    assert len(cosines) == 4
    assert max(cosines) < 0.95
    assert out.count("VERDICT: ") == 1
