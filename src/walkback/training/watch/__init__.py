"""The measurements of `diagnose` while any loop trains: what is lost, when, and in which layer."""

from __future__ import annotations

from walkback.training.watch.history import Fired, History, Lost, Row, append, reopen, repair, scalars, where
from walkback.training.watch.schedule import cadence
from walkback.training.watch.watch import Watch, planned

__all__ = [
    "Fired", "History", "Lost", "Row", "Watch", "append", "cadence", "planned", "reopen", "repair", "scalars",
    "where",
]  # fmt: skip
