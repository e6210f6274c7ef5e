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
