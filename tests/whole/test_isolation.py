"""The tests themselves: none depends on whose shell, which order, or how busy a machine it runs in."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import seeding
from patience import PATIENCE
from places import FOLDERS, HELPERS, ROOT, TESTS

THEIRS = {
    "HOME": "/nowhere", "RAY_ADDRESS": "10.0.0.1:6379", "SLURM_NTASKS": "4", "WORLD_SIZE": "2", "COLUMNS": "40",
    "FORCE_COLOR": "1", "http_proxy": "http://127.0.0.1:9", "WALKBACK_DATA": "/nowhere", "WALKBACK_TRACEBACK": "1",
    "OMP_NUM_THREADS": "7", "PYTHONIOENCODING": "latin1", "TZ": "Pacific/Kiritimati", "CI": "1",
}  # fmt: skip


def draw() -> list[float]:
    return [random.random(), np.random.rand(), torch.rand(()).item()]


@pytest.fixture(scope="module", params=["first", "second"])
def shared(request: pytest.FixtureRequest) -> list[float]:
    return draw()


def test_settings_of_whoever_starts_the_tests_are_gone() -> None:
    code = (
        "import json, os, time, conftest; "
        "print(json.dumps([dict(os.environ), os.listdir(os.environ['HOME']), time.tzname]))"
    )
    env = {**os.environ, **THEIRS, "WALKBACK_NEEDS_LATEX": "1", "PYTHONPATH": os.pathsep.join([str(TESTS), "src"])}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, timeout=PATIENCE
    )
    found, home, zone = json.loads(done.stdout)
    assert {name for name, value in THEIRS.items() if found.get(name) == value} == set()
    assert (home, zone[0], found["WALKBACK_NEEDS_LATEX"]) == ([], "UTC", "1")
    given = [str(TESTS), str(ROOT / "src")]
    assert found["PYTHONPATH"].split(os.pathsep) == [*given, *(folder for folder in FOLDERS if folder not in given)]


@pytest.mark.parametrize("run", range(3))
def test_random_numbers_do_not_depend_on_the_tests_before(run: int) -> None:
    expected = [random.Random(0).random(), np.random.RandomState(0).rand()]
    expected.append(torch.rand((), generator=torch.Generator().manual_seed(0)).item())
    assert draw() == expected


def test_products_in_half_precision_use_instructions_that_every_machine_has() -> None:
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_BF16"  # read when torch multiplies first
    one = torch.ones(64, 64, dtype=torch.bfloat16)
    assert bool((one @ one == 64).all())


def test_nor_on_who_is_the_first_to_need_a_shared_fixture(shared: list[float]) -> None:
    assert draw() == shared


def test_nothing_is_timed_and_nothing_waits_for_a_number_of_seconds() -> None:
    """`make bench` times. A test that waits asks `patience.until`, and whatever else waits gets `patience.PATIENCE`."""
    clocks = r"\btime\.(?:time|monotonic|perf_counter|process_time)\("
    waits = r"\btimeout\s*=\s*\d|\.(?:wait|join)\(\d|WebDriverWait\(\w+, \d|\btime\.sleep\((?!PATIENCE\))"
    for path in set(TESTS.rglob("*.py")) - {HELPERS / "patience.py", Path(__file__)}:
        assert re.findall(f".*(?:{clocks}|{waits}).*", path.read_text(encoding="utf-8")) == [], path.name


def test_examples_in_docstrings_are_seeded_as_tests_are(request: pytest.FixtureRequest) -> None:
    assert request.config.pluginmanager.is_registered(seeding)
    torch.rand(3)
    seeding.pytest_runtest_setup()
    drawn = torch.rand(3)
    seeding.pytest_runtest_setup()
    assert torch.equal(torch.rand(3), drawn)
