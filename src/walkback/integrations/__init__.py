"""A Watch inside other people's trainers, and its rows in other people's loggers.

Each function imports its library when it is called, so that none of them is needed for anything else.

>>> import walkback.integrations
>>> sorted(walkback.integrations.__all__)
['lightning_callback', 'mlflow_logger', 'tensorboard_logger', 'trainer_callback', 'wandb_logger']
"""

from __future__ import annotations

from walkback.integrations.lightning import lightning_callback
from walkback.integrations.mlflow import mlflow_logger
from walkback.integrations.tensorboard import tensorboard_logger
from walkback.integrations.transformers import trainer_callback
from walkback.integrations.wandb import wandb_logger

__all__ = ["lightning_callback", "mlflow_logger", "tensorboard_logger", "trainer_callback", "wandb_logger"]
