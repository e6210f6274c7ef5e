"""Runs that wait for a test, so that no test has to hope that it is in time to disturb them."""

from __future__ import annotations

import os
from pathlib import Path

from patience import until
from walkback.rules.dfa import DFA

DOORS = "WALKBACK_TEST_DOORS"  # the folder in which runs and tests meet


def arrived(name: str) -> bool:
    """Whether a run stands at the door of this name, or has passed it."""
    return (Path(os.environ[DOORS]) / f"{name}.arrived").exists()


def open_door(name: str) -> None:
    (Path(os.environ[DOORS]) / f"{name}.open").touch()


class Halts(DFA):
    """DFA that waits before its credits number `at` until the door `name` is open; the weights are those of DFA."""

    def __init__(self, name: str, at: int, **options) -> None:
        super().__init__(**options)
        self.door, self.left = name, at

    def credits(self, trace):
        self.left -= 1
        if not self.left:
            folder = Path(os.environ[DOORS])
            (folder / f"{self.door}.arrived").touch()
            until((folder / f"{self.door}.open").exists)
        return super().credits(trace)
