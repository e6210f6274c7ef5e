"""A Watch inside other people's trainers, its rows in their loggers, a report in their trackers, and a pytest plugin.

Each class and function imports its library when it is called, so that none of them is needed for anything else; and
the names load when they are asked for, so that pytest can load its plugin without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from walkback.integrations.lightning import LightningWatch as LightningCallback  # noqa: F401
    from walkback.integrations.lightning import LightningWatch as LightningWatch
    from walkback.integrations.lightning import lightning_callback as lightning_callback
    from walkback.integrations.loggers import mlflow_logger as mlflow_logger
    from walkback.integrations.loggers import tensorboard_logger as tensorboard_logger
    from walkback.integrations.loggers import wandb_logger as wandb_logger
    from walkback.integrations.trackers import report_to_mlflow as report_to_mlflow
    from walkback.integrations.trackers import report_to_tensorboard as report_to_tensorboard
    from walkback.integrations.trackers import report_to_wandb as report_to_wandb
    from walkback.integrations.transformers import TransformersWatch as TransformersWatch
    from walkback.integrations.transformers import trainer_callback as trainer_callback

_HOMES = {
    **dict.fromkeys(("LightningCallback", "LightningWatch", "lightning_callback"), "lightning"),
    **dict.fromkeys(("mlflow_logger", "tensorboard_logger", "wandb_logger"), "loggers"),
    **dict.fromkeys(("report_to_mlflow", "report_to_tensorboard", "report_to_wandb"), "trackers"),
    **dict.fromkeys(("TransformersWatch", "trainer_callback"), "transformers"),
}

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
