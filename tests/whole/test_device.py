"""Another device than the CPU: the same numbers, nothing copied away unasked, and none of the types it lacks."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from places import HELPERS
from run_far import TRAINED


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    script = HELPERS / "run_far.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def numbers(value: Any, path: str = "") -> dict[str, float | None]:
    if isinstance(value, dict):
        return {k: v for key, part in value.items() for k, v in numbers(part, f"{path}.{key}").items()}
    if isinstance(value, list):
        return {k: v for i, part in enumerate(value) for k, v in numbers(part, f"{path}[{i}]").items()}
    return {path: value} if value is None or isinstance(value, (int, float)) else {}


def same(ours: dict[str, float | None], theirs: dict[str, float | None], rel: float, absolute: float) -> None:
    given = {k: v for k, v in ours.items() if v is not None}
    assert given
    assert {k: v for k, v in theirs.items() if v is not None} == pytest.approx(given, rel=rel, abs=absolute)


@pytest.mark.parametrize("part", ["report", "probes", "along data", "intrinsic"])
@pytest.mark.parametrize("device", ["float64", "no float64"])
def test_a_report_is_the_same_there(found: dict[str, Any], device: str, part: str) -> None:
    ours, theirs = (numbers({k: found[d][part][k] for k in ("values", "per_layer")}) for d in ("cpu", device))
    if device == "no float64" and part in ("probes", "along data"):
        # Differences of float32 losses, and other directions.
        for numbers_of in (ours, theirs):
            drawn = [k for k in numbers_of if "perturbation" in k]
            assert drawn
            assert all(-1 <= (numbers_of.pop(k) or 2) <= 1 for k in drawn)
        same(ours, theirs, 1e-4, 1e-6)
    else:
        same(ours, theirs, 1e-6, 1e-9)
    assert found[device][part]["verdict"] == found["cpu"][part]["verdict"]


def test_a_report_says_where_it_was_measured(found: dict[str, Any]) -> None:
    assert found["float64"]["report"]["conditions"]["statistics"] == "float64 on far:0"
    assert found["no float64"]["report"]["conditions"]["statistics"] == "float64 on cpu"


def test_only_sums_leave_a_device_that_has_float64(found: dict[str, Any]) -> None:
    samples, sites = 256, 3
    assert 0 < found["float64"]["left"] < 3 * samples  # a print and a label of each sample, and answers
    assert found["no float64"]["left"] > 2 * samples * sites * 16  # there the states and gradients have to


@pytest.mark.parametrize("device", ["float64", "no float64"])
def test_a_certificate_is_the_same_there(found: dict[str, Any], device: str) -> None:
    assert found[device]["certificate"] == found["cpu"]["certificate"]


@pytest.mark.parametrize(("device", "rule"), [(name, rule) for name, rules in TRAINED.items() for rule in rules])
def test_training_is_the_same_there(found: dict[str, Any], device: str, rule: str) -> None:
    ours, theirs = (found[d]["trained"][rule] for d in ("cpu", device))
    keys = ("train_loss", "test_loss", "test_acc", "per_layer")
    row, other = (numbers({k: run["row"][k] for k in keys}) for run in (ours, theirs))
    same(row, other, 1e-4, 1e-6)
    assert theirs["report"]["verdict"] == ours["report"]["verdict"]
