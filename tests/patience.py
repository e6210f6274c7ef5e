"""Waiting for something to be so, without a guess how long that takes."""

from __future__ import annotations

import time
from collections.abc import Callable

# Seconds after which a test that waits for anything has failed: it only keeps a test that hangs from hanging for ever.
# Nothing that is waited for takes a tenth of it on two cores that have four other processes to run.
PATIENCE = 1200.0


def until(true: Callable[[], object]) -> None:
    """Return once a condition holds."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
