"""Weights & Biases: rows of a Watch as metrics of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from walkback.errors import InputError
from walkback.integrations.library import library
from walkback.training.watch import Row, scalars, where


def wandb_logger(run: Any = None) -> Callable[[Row], None]:
    """For `Watch(to=[…])`: every number of a row as a metric under walkback/…, over an axis walkback/at of its own.

    Args:
        run: what `wandb.init` returned; by default the run that is active.
    """
    active = library("wandb", "wandb").run if run is None else run
    if active is None:
        raise InputError("Expected an active run of Weights & Biases, but there is none. Call wandb.init(...) first.")
    # An axis of its own: W&B drops what is logged at a step before its last, and the user's loop counts its own steps.
    active.define_metric("walkback/at", hidden=True)
    active.define_metric("walkback/*", step_metric="walkback/at")
    return lambda row: active.log({**scalars(row), "walkback/at": where(row)})
