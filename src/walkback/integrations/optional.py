"""Libraries that are only needed by those who use them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from walkback.errors import InputError


def library(module: str, extra: str) -> Any:
    """Return the module, or raise an InputError that says how to install it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        top = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != top:
            raise  # it is there, and lacks something itself
        raise InputError(f"Expected {top} to be installed, but it is not: pip install 'walkback[{extra}]'.") from None


def mlflow_run(run_id: str | None, tracking_uri: str | None) -> tuple[Any, Any, Any]:
    """Return MLflow, a client of it, and the run to log to: by default the one that is active."""
    mlflow = library("mlflow", "mlflow")
    if run_id is None:
        active = mlflow.active_run()
        if active is None:
            raise InputError("Expected an active run of MLflow, but there is none. Call mlflow.start_run() first.")
        run_id = active.info.run_id
    return mlflow, mlflow.MlflowClient(tracking_uri), run_id


def wandb_run(run: Any) -> Any:
    """Return the run of Weights & Biases to log to: by default the one that is active."""
    active = library("wandb", "wandb").run if run is None else run
    if active is None:
        raise InputError("Expected an active run of Weights & Biases, but there is none. Call wandb.init(...) first.")
    return active


def tensorboard_writer(to: Any) -> Any:
    """Return a SummaryWriter: `to` itself, or one of that folder."""
    library("tensorboard", "tensorboard")
    return library("torch.utils.tensorboard", "tensorboard").SummaryWriter(to) if isinstance(to, (str, Path)) else to
