"""What every data set is: two splits in memory, and how its raw inputs become float."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from walkback.errors import InputError, shown


@dataclass(frozen=True)
class Split:
    """Inputs (N, …), uint8 for images, and labels (N,) int64."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Dataset:
    """A train and a test split. `mean` and `std` per channel belong to inputs in 0…1; empty for float inputs.

    >>> images = Split(torch.zeros(4, 3, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]))
    >>> data = Dataset("mine", images, images, classes=2, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    >>> data.input_shape, data.prepare(images.x)[0, 0, 0, 0].item()
    ((3, 2, 2), -2.0)
    """

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
        """Turn raw inputs (B, …) into float32, normalised, on the device they are on."""
        if not self.mean:
            return x.float()
        shape = (1, -1, *[1] * (x.ndim - 2))
        mean, std = (torch.tensor(v, device=x.device).view(shape) for v in (self.mean, self.std))
        return x.float().div_(255.0).sub_(mean).div_(std)


def checked(data: Dataset) -> Dataset:
    """Return the same data set, or raise an InputError that says what in it can't be trained on."""
    for part, split in (("train", data.train), ("test", data.test)):
        if not isinstance(split, Split) or not isinstance(split.x, Tensor) or not isinstance(split.y, Tensor):
            two = f"{type(split.x).__name__} and {type(split.y).__name__}" if isinstance(split, Split) else ""
            got = two or f"a {type(split).__name__}"
            raise InputError(f"Expected {part} to be a Split of two tensors, but got {got}.")
        x, y = split.x, split.y
        if y.dtype != torch.int64 or y.ndim != 1:
            raise InputError(f"Expected {part} labels (N,) int64, but got {tuple(y.shape)} {y.dtype}.")
        if not len(y) or len(x) != len(y):
            raise InputError(f"Expected as many {part} inputs as labels, but got {len(x)} and {len(y)}.")
        if int(y.min()) < 0 or int(y.max()) >= data.classes:
            raise InputError(
                f"Expected {part} labels from 0 to {data.classes - 1}, but got {int(y.min())} to {int(y.max())}."
            )
        if x.shape[1:] != data.train.x.shape[1:]:
            raise InputError(
                f"Expected test inputs of the training inputs' shape {data.input_shape}, but got {tuple(x.shape[1:])}."
            )
        if x.is_floating_point() and not bool(torch.isfinite(x).all()):
            raise InputError(f"Expected finite {part} inputs, but some are NaN or infinite.")
    if len(data.test) < 2:
        raise InputError("Expected at least two test samples, since two halves of them are compared, but got one.")
    channels = data.input_shape[0] if data.input_shape else 0
    if len(data.mean) != len(data.std) or len(data.mean) not in (0, channels):
        raise InputError(
            f"Expected a mean and a std for each of the {channels} channels, or neither, "
            f"but got {len(data.mean)} and {len(data.std)}."
        )
    for part, x in (("train", data.train.x), ("test", data.test.x)):
        if (x.dtype == torch.uint8) != bool(data.mean):
            raise InputError(
                "Expected mean and std for uint8 inputs, which are divided by 255, and for no others, but got "
                f"{part} inputs of {x.dtype} {'with' if data.mean else 'without'} them."
            )
    if not all(map(isfinite, (*data.mean, *data.std))) or any(s <= 0 for s in data.std):
        raise InputError(f"Expected finite means and stds > 0, but got {shown(data.mean)} and {shown(data.std)}.")
    return data
