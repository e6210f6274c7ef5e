"""Seed the global generators before every example in a docstring, as tests/conftest.py does before every test."""

from __future__ import annotations

import pytest
import torch


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Start each example from the same state: what it draws does not depend on what this process ran before."""
    torch.manual_seed(0)
