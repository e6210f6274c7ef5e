"""A Watch inside other people's trainers, and its rows in other people's loggers.

Each class and function imports its library when it is called, so that none of them is needed for anything else.

>>> import walkback.integrations
>>> [name for name in walkback.integrations.__all__ if name.endswith("Watch")]
['LightningWatch', 'TransformersWatch']
"""

from __future__ import annotations

from walkback.integrations.lightning import LightningWatch, lightning_callback
from walkback.integrations.mlflow import mlflow_logger
from walkback.integrations.tensorboard import tensorboard_logger
from walkback.integrations.transformers import TransformersWatch, trainer_callback
from walkback.integrations.wandb import wandb_logger

__all__ = [
    "LightningWatch", "TransformersWatch", "lightning_callback", "mlflow_logger", "tensorboard_logger",
    "trainer_callback", "wandb_logger",
]  # fmt: skip
