"""One measurement for all processes of a training: rank 0 decides and measures, every rank gets its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist
from torch import nn

from walkback.errors import WalkbackError
from walkback.network.values import modules_of, parameters_of

T = TypeVar("T")


def sharded(model: nn.Module) -> bool:
    """Return whether every rank must take part in a forward pass, because each holds a part of the weights."""
    wrapped = any(type(m).__name__ == "FullyShardedDataParallel" for m in modules_of(model))
    return wrapped or any(type(p.data).__name__ == "DTensor" for p in parameters_of(model))


def together(work: Callable[[], T], everyone: bool = False) -> T:
    """Do `work` on rank 0 (`everyone`: on all), and return its result, or raise its error, on every rank."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return work()
    box, mine = [None, None], None
    if everyone or dist.get_rank() == 0:
        try:
            box = [work(), None]
        except Exception as error:
            mine, box = error, [None, f"{type(error).__name__}: {error}"]
    dist.broadcast_object_list(box, src=0)
    result, error = box
    if mine is not None:
        raise mine
    if error is not None:
        raise WalkbackError(f"Expected rank 0 to measure, but there: {error}")
    return result  # type: ignore[return-value]
