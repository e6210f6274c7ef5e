"""Start the global generators anew before every test, example and shared fixture."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch


def seed() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.default_generator.manual_seed(0)  # torch.manual_seed also notes a traceback for each kind of device not begun


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """What a test draws without a seed of its own does not depend on which tests this process ran before."""
    seed()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
    """Nor does what a shared fixture draws, or the first test to need it."""
    if fixturedef.scope == "function":
        return (yield)
    state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    seed()
    try:
        return (yield)
    finally:
        random.setstate(state[0])
        np.random.set_state(state[1])
        torch.set_rng_state(state[2])
