"""Rows of a Watch as metrics in MLflow, TensorBoard and Weights & Biases: each a function for `Watch(to=[…])`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from walkback.integrations.optional import mlflow_run, tensorboard_writer, wandb_run
from walkback.training.watch import Row, scalars, where


def mlflow_logger(run_id: str | None = None, tracking_uri: str | None = None) -> Callable[[Row], None]:
    """Return a sink for `Watch(to=[…])`: every number of a row as a metric under walkback/….

    Args:
        run_id: the run to log to; by default the one that is active.
        tracking_uri: where it is, such as sqlite:///mlflow.db; by default what MLflow is set to.
    """
    mlflow, client, run_id = mlflow_run(run_id, tracking_uri)

    def log(row: Row) -> None:
        now, at = int(1000 * time.time()), where(row)
        metrics = [mlflow.entities.Metric(name, value, now, at) for name, value in scalars(row).items()]
        client.log_batch(run_id, metrics=metrics)

    return log


def tensorboard_logger(to: Any) -> Callable[[Row], None]:
    """Return a sink for `Watch(to=[…])`: numbers of a row as scalars under walkback/…; `to`: a folder or writer."""
    writer = tensorboard_writer(to)

    def log(row: Row) -> None:
        for name, value in scalars(row).items():
            writer.add_scalar(name, value, where(row))
        writer.flush()

    return log


def wandb_logger(run: Any = None) -> Callable[[Row], None]:
    """Return a sink for `Watch(to=[…])`: a row's numbers as metrics under walkback/…, over an axis walkback/at.

    `run` is what `wandb.init` returned; by default the run that is active.
    """
    active = wandb_run(run)
    # An axis of its own: W&B drops what is logged at a step before its last, and the user's loop counts its own steps.
    active.define_metric("walkback/at", hidden=True)
    active.define_metric("walkback/*", step_metric="walkback/at")
    return lambda row: active.log({**scalars(row), "walkback/at": where(row)})
