"""The measurements of `diagnose` while any loop trains: what is lost, when, and in which layer."""

from __future__ import annotations

from walkback.training.watch.history import Fired, History, Lost, Row, scalars, where
from walkback.training.watch.watch import Watch, planned

__all__ = ["Fired", "History", "Lost", "Row", "Watch", "planned", "scalars", "where"]
