"""Data sets by name, in memory: uint8 images or float vectors, normalised on the device they are used on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from walkback.errors import InputError


@dataclass(frozen=True)
class Split:
    """Inputs (N, …), uint8 for images, and labels (N,) int64."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Dataset:
    """A train and a test split. `mean` and `std` per channel belong to inputs in 0…1; empty for float inputs."""

    name: str
    train: Split
    test: Split
    classes: int
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return tuple(self.train.x.shape[1:])

    def prepare(self, x: Tensor) -> Tensor:
        """Raw inputs (B, …) to float32, normalised, on the device they are on."""
        if not self.mean:
            return x.float()
        shape = (1, -1, *[1] * (x.ndim - 2))
        mean, std = (torch.tensor(v, device=x.device).view(shape) for v in (self.mean, self.std))
        return x.float().div_(255.0).sub_(mean).div_(std)


def load(name: str, root: str | Path | None = None) -> Dataset:
    """A data set by name, looked for under `root` (its folder or the folder's parent) and the usual places."""
    from walkback.data import cifar

    loaders = {"cifar10": cifar.load_cifar10}
    if name not in loaders:
        raise InputError(f"Expected data to be one of {', '.join(loaders)}, but got {name!r}.")
    return loaders[name](root)
