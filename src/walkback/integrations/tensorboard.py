"""TensorBoard: rows of a Watch as scalars."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from walkback.integrations.library import library
from walkback.training.watch import Row, scalars, where


def tensorboard_logger(to: Any) -> Callable[[Row], None]:
    """For `Watch(to=[…])`: every number of a row as a scalar under walkback/….

    Args:
        to: a folder, or a SummaryWriter that is open.
    """
    library("tensorboard", "tensorboard")
    writer = library("torch.utils.tensorboard", "tensorboard").SummaryWriter(to) if isinstance(to, (str, Path)) else to

    def log(row: Row) -> None:
        for name, value in scalars(row).items():
            writer.add_scalar(name, value, where(row))
        writer.flush()

    return log
