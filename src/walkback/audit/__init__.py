"""Many runs: plans of what to train, a store that survives anything, executors, and the evidence they leave."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from walkback.audit.plans import Plan as Plan
    from walkback.audit.plans import names as names
    from walkback.audit.plans import plan as plan
    from walkback.audit.run import Failure as Failure
    from walkback.audit.run import Outcome as Outcome
    from walkback.audit.run import audit as audit

# torch loads with what trains, so that finished runs are read without it.
_HOMES = dict.fromkeys(("Plan", "names", "plan"), "plans") | dict.fromkeys(("Failure", "Outcome", "audit"), "run")

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
