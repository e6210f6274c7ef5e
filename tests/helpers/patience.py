"""Waiting for something to be so, without a guess how long that takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

# Seconds after which a test that waits for anything has failed: it only keeps a test that hangs from hanging for ever.
# Nothing that is waited for takes a tenth of it on two cores that have four other processes to run.
PATIENCE = 1200.0


def until(true: Callable[[], object]) -> None:
    """Return once a condition holds."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether there is a process of this number that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
