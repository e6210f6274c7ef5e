"""A Watch inside other people's trainers, and its rows in other people's loggers.

Each class and function imports its library when it is called, so that none of them is needed for anything else.
"""

from __future__ import annotations

from walkback.integrations.lightning import LightningWatch, lightning_callback
from walkback.integrations.loggers import mlflow_logger, tensorboard_logger, wandb_logger
from walkback.integrations.transformers import TransformersWatch, trainer_callback

__all__ = [
    "LightningWatch", "TransformersWatch", "lightning_callback", "mlflow_logger", "tensorboard_logger",
    "trainer_callback", "wandb_logger",
]  # fmt: skip
