"""The first batches of a test set sorted by class are all of one class: a reference that seems to drift."""

from __future__ import annotations

import torch
from torch import Tensor

from walkback.api import measure
from walkback.pitfalls.shown import Shown
from walkback.selftest import batches, noisy

COUNT = 8  # batches of 128 that are measured, as the protocol asks


def samples(seed: int) -> tuple[Tensor, Tensor]:
    """(10240, 16) inputs in random order, and labels of ten classes of equal size."""
    return batches(1, 10 * COUNT * 128, seed=seed + 1)[0]


def stability(x: Tensor, y: Tensor) -> float:
    """Mean pairwise cosine of the batch-mean g_L over the first eight batches of 128."""
    taken = list(zip(x.split(128), y.split(128)))[:COUNT]
    return measure(noisy(), taken).stability or 0.0


def show(seed: int = 0) -> Shown:
    """Direction stability of one network, from sorted and from shuffled samples."""
    x, y = samples(seed)
    order = torch.argsort(y, stable=True)  # walkback: ignore[P14]
    seen = len(y[order][: COUNT * 128].unique())
    return Shown(
        "direction stability of g_L",
        stability(x[order], y[order]),
        stability(x, y),
        f"sorted, the first {COUNT} batches hold {seen} of {len(y.unique())} classes, whose mean gradients agree: over "
        "0.30 that is called drift-dominated. Shuffled, only sampling noise is left of this network's mean gradient.",
    )
