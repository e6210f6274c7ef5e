"""MLflow: rows of a Watch as metrics of a run."""

from __future__ import annotations

import time
from collections.abc import Callable

from walkback.errors import InputError
from walkback.integrations.library import library
from walkback.training.watch import Row, scalars, where


def mlflow_logger(run_id: str | None = None, tracking_uri: str | None = None) -> Callable[[Row], None]:
    """For `Watch(to=[…])`: every number of a row as a metric under walkback/….

    Args:
        run_id: the run to log to; by default the one that is active.
        tracking_uri: where it is, such as sqlite:///mlflow.db; by default what MLflow is set to.
    """
    mlflow = library("mlflow", "mlflow")
    if run_id is None:
        active = mlflow.active_run()
        if active is None:
            raise InputError("Expected an active run of MLflow, but there is none. Call mlflow.start_run() first.")
        run_id = active.info.run_id
    client = mlflow.MlflowClient(tracking_uri)

    def log(row: Row) -> None:
        now, at = int(1000 * time.time()), where(row)
        metrics = [mlflow.entities.Metric(name, value, now, at) for name, value in scalars(row).items()]
        client.log_batch(run_id, metrics=metrics)

    return log
