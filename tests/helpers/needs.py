"""Libraries of extras: where one is missing its tests are skipped, and in CI (`make test` sets this) they fail."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import pytest


def needed(name: str) -> Any:
    """Return the module; without it skip, or fail where WALKBACK_NEEDS_EXTRAS is set."""
    if os.environ.get("WALKBACK_NEEDS_EXTRAS"):
        return import_module(name)
    return pytest.importorskip(name)
