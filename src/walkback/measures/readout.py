"""A linear readout fitted anew to the features of samples: exact, on features in memory or in a file.

It is a logistic regression with a small ridge on standardised features, solved by L-BFGS to its optimum. Whether the
features (N, d) fit into memory or are read from a file, row by row, changes nothing of the problem that is solved.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import IO

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from walkback.errors import InputError

STRENGTHS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)  # of the ridge on standardised features
HELD_OUT = 0.1
CHOOSE = 10_000  # samples that the ridge is chosen on: more say no more about it
LARGE = 2**24  # entries of features above which float32 does
RESIDENT = 2**28  # entries above which features live in a file, and are standardised part by part
WIDE = 1024  # features above which finding their principal axes takes longer than it saves
PART = 2**22  # entries that are looked at together then


class Rows:
    """Features that arrive batch by batch; in memory, or from RESIDENT entries on in a file that nobody else sees."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []
        self._file: IO[bytes] | None = None
        self._entries, self._width, self._kind = 0, 0, torch.float32

    def add(self, rows: Tensor) -> None:
        """Take rows (B, d); half precision is kept as float32, which holds it exactly."""
        rows = rows.detach().flatten(1).cpu()
        rows = rows if rows.dtype in (torch.float32, torch.float64) else rows.float()
        if not bool(rows.isfinite().all()):
            raise InputError(
                "Expected finite states, to which a readout can be fitted, but some are not: the network has diverged, "
                "or its random blocks do. Depth can't be measured on it."
            )
        self._entries += rows.numel()
        if self._file is None and self._entries > RESIDENT:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `whole`
            for part in self._parts:
                self._write(part)
            self._parts = []
        self._write(rows) if self._file is not None else self._parts.append(rows)

    def _write(self, rows: Tensor) -> None:
        assert self._file is not None
        self._width, self._kind = rows.shape[1], rows.dtype
        rows.contiguous().numpy().tofile(self._file)  # type: ignore[arg-type]

    def whole(self) -> Tensor:
        """Return all rows (N, d): a tensor, or one that reads its numbers from the file as they are asked for."""
        if self._file is None:
            return torch.cat(self._parts)
        self._file.flush()
        kind = np.float32 if self._kind == torch.float32 else np.float64
        mapped = np.memmap(self._file, dtype=kind, mode="r+").reshape(-1, self._width)
        self._file.close()  # the mapping holds it
        return torch.from_numpy(mapped)


def fit(x: Tensor, y: Tensor, strength: float) -> Callable[[Tensor], Tensor]:
    """Fit a readout to features (N, d) and classes (N,), and return what predicts classes from other features.

    >>> x = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    >>> fit(x, torch.tensor([0, 0, 1, 1]), 1e-4)(torch.tensor([[-5.0], [9.0]]))
    tensor([0, 1])
    """
    logits = _fit_logits(x, y, strength, int(y.max()) + 1)
    return lambda other: logits(other).argmax(1)


def _fit_logits(x: Tensor, y: Tensor, strength: float, classes: int) -> Callable[[Tensor], Tensor]:
    """Fit a readout of so many classes, and return what makes logits (N, C) of other features."""
    mean, std = _moments(x)
    kind = torch.float32 if x.numel() > LARGE else torch.float64
    count = len(x)

    def standardised(rows: Tensor) -> Tensor:
        return (rows.double() - mean) / std

    # Along their principal axes features are alike, so L-BFGS needs half of the steps. The problem is the same one:
    # `axes` only names its unknowns anew, and the ridge is laid on the weights of the standardised features.
    axes = _axes((standardised(rows) for rows in _split(x)), x.shape[1], count, strength)

    def turned(rows: Tensor) -> Tensor:
        return (standardised(rows) @ axes).to(kind)

    basis = axes.T.to(kind)
    weight = torch.zeros(classes, x.shape[1], dtype=kind, requires_grad=True)
    bias = torch.zeros(classes, dtype=kind, requires_grad=True)
    solver = torch.optim.LBFGS(
        [weight, bias], max_iter=300, tolerance_grad=1e-6, history_size=20, line_search_fn="strong_wolfe"
    )
    held = [*map(turned, _split(x))] if x.numel() <= RESIDENT else None

    def loss() -> Tensor:
        solver.zero_grad()
        ridge = strength * (weight @ basis).pow(2).sum()
        ridge.backward()
        value = ridge.detach()
        for rows, labels in zip(held or map(turned, _split(x)), _split(y, like=x)):
            part = F.cross_entropy(F.linear(rows, weight, bias), labels, reduction="sum") / count
            part.backward()
            value = value + part.detach()
        return value

    with torch.enable_grad():
        solver.step(loss)  # type: ignore[arg-type]
    final, shift = weight.detach(), bias.detach()
    return lambda other: torch.cat([F.linear(turned(rows), final, shift) for rows in _split(other)])


def _split(rows: Tensor, like: Tensor | None = None) -> tuple[Tensor, ...]:
    """Cut rows into parts of about PART entries of `like`."""
    width = max(1, (rows if like is None else like)[0].numel())
    return rows.split(max(1, PART // width))


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation (d,) in float64; a feature that does not vary gets a tiny one, not zero."""
    mean = sum(part.double().sum(0) for part in _split(x)) / len(x)
    squares = sum((part.double() - mean).pow(2).sum(0) for part in _split(x))
    largest = max(float(part.abs().max()) for part in _split(x))
    std = (squares / max(1, len(x) - 1)).sqrt()  # type: ignore[union-attr]
    return mean, std.clamp(min=1e-12 * (1 + largest))  # type: ignore[return-value]


def _axes(parts: Iterator[Tensor], width: int, count: int, strength: float) -> Tensor:
    """Return (d, d) principal axes of standardised features, scaled to unit variance; the identity where d is large."""
    if width > WIDE:
        return torch.eye(width, dtype=torch.float64)
    spread = sum(rows.T @ rows for rows in parts) / count
    values, vectors = torch.linalg.eigh(spread)
    # An axis of little variance is held by the ridge: it is scaled by both, as the curvature of the loss is.
    return vectors / (values.clamp(min=0) + 8 * strength + 1e-9).sqrt()


def choose(x: Tensor, y: Tensor, seed: int) -> float:
    """Return the ridge under which held-out training samples have the least cross-entropy; of equal ones the strongest.

    Not the one with the best accuracy: of a few hundred samples that is mostly chance, and where all are right it says
    nothing.
    """
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:CHOOSE]
    out, kept = order.split([held := max(1, int(HELD_OUT * len(order))), len(order) - held])
    if not len(kept):
        raise InputError(f"Expected training samples to fit a readout on and some to choose its ridge, but got {held}.")
    classes = int(y.max()) + 1
    losses = {
        s: float(F.cross_entropy(_fit_logits(x[kept], y[kept], s, classes)(x[out]).double(), y[out])) for s in STRENGTHS
    }
    return min(losses, key=lambda s: (losses[s], -s))


def score(x: Tensor, y: Tensor, other: Tensor, labels: Tensor, strength: float) -> Tensor:
    """Return (N,) which of the other samples a readout fitted on (x, y) gets right."""
    return fit(x, y, strength)(other) == labels


def accuracy(right: Tensor) -> float:
    """Return the share of samples that are right."""
    return float(right.double().mean())
