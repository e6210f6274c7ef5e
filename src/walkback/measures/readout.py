"""A linear readout fitted anew to the features of samples: exact, on features in memory or in a file.

It is a logistic regression with a small ridge on standardised features, solved by L-BFGS to its optimum. Whether the
features (N, d) fit into memory or are read from a file, part by part, changes nothing of the problem that is solved.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from walkback.errors import InputError

STRENGTHS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)  # of the ridge on standardised features
HELD_OUT = 0.1
CHOOSE = 10_000  # samples that the ridge is chosen on: more say no more about it
LARGE = 2**20  # entries of features above which float32 does, with sums in float64
RESIDENT = 2**28  # entries above which features live in a file, and are standardised part by part
PART = 2**21  # entries that are looked at together: they stay in the cache between their two uses
STEPS = 300  # of the solver at most
# How far above its minimum (nats per sample) the loss may end, as the gradient tells it.
EXCESS = {torch.float64: 1e-12, torch.float32: 4e-6}


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


@dataclass(frozen=True)
class Readout:
    """A linear map of features, fitted: logits are weight · (x − mean) / std + bias, all in float64."""

    weight: Tensor  # (C, d), of standardised features
    bias: Tensor  # (C,)
    mean: Tensor  # (d,)
    std: Tensor  # (d,)

    def logits(self, x: Tensor) -> Tensor:
        """Return (N, C) in float64."""
        parts = (((rows.double() - self.mean) / self.std) @ self.weight.T + self.bias for rows in _split(x))
        return torch.cat([*parts])

    def __call__(self, x: Tensor) -> Tensor:
        """Return (N,) the classes that features are put into."""
        return self.logits(x).argmax(1)


class ReadoutFit:
    """The cross-entropy of a linear readout with a ridge, as a function of its weights, and what makes it easy.

    Features (N, d) are standardised; where they fit into memory that is done once.
    """

    def __init__(self, x: Tensor, y: Tensor, classes: int) -> None:
        self.kind = torch.float32 if x.numel() > LARGE else torch.float64
        self.mean, self.std = _moments(x, self.kind)
        self.count, self.classes = len(x), classes
        self._x = x
        self._held = [*map(self._standardised, _split(x))] if x.numel() <= RESIDENT else None
        # What is linear in the weights is summed once: Σ_n logit of the sample's own class.
        self.sums = torch.zeros(classes, x.shape[1], dtype=torch.float64)
        for rows, labels in zip(self.parts(), _split(y, like=x)):
            self.sums += (F.one_hot(labels, classes).to(self.kind).T @ rows).double()
        self.sums /= self.count
        self.shares = y.bincount(minlength=classes).double() / self.count

    def parts(self) -> Iterator[Tensor]:
        """Yield the standardised features part by part."""
        yield from self._held or map(self._standardised, _split(self._x))

    def _standardised(self, rows: Tensor) -> Tensor:
        return rows.to(self.kind).sub(self.mean.to(self.kind)).div_(self.std.to(self.kind))

    def slopes(self, weight: Tensor, bias: Tensor) -> tuple[float, Tensor, Tensor]:
        """Return the mean cross-entropy and its slopes (C, d) and (C,), without the ridge."""
        narrow, shift = weight.to(self.kind), bias.to(self.kind)[:, None]
        total, by_weight, by_bias = 0.0, torch.zeros_like(weight), torch.zeros_like(bias)
        for rows in self.parts():
            chances = torch.mm(narrow, rows.T).add_(shift)  # (C, part): classes first is twice as fast
            top = chances.amax(0)
            sums = chances.sub_(top).exp_().sum(0)
            chances.div_(sums)
            by_weight += torch.mm(chances, rows)
            by_bias += chances.sum(1, dtype=torch.float64)
            total += float(sums.log_().add_(top).sum(dtype=torch.float64))
        linear = float((weight * self.sums).sum() + (bias * self.shares).sum())
        return total / self.count - linear, by_weight / self.count - self.sums, by_bias / self.count - self.shares

    def doubt(self, weight: Tensor, bias: Tensor) -> float:
        """Return the mean of p (1 − p) over samples and classes: the curvature that the softmax has there."""
        narrow, shift = weight.to(self.kind), bias.to(self.kind)[:, None]
        squares = sum(float(torch.mm(narrow, rows.T).add_(shift).softmax(0).pow_(2).sum()) for rows in self.parts())
        return (1 - squares / self.count) / self.classes

    def spread(self, fitted: int) -> Tensor | None:
        """Return the features' covariance (d, d), of some of them, to fit a readout to so many samples.

        None where that would take longer than the hundred evaluations of the loss that it may save.
        """
        width, most = self.sums.shape[1], min(self.count, CHOOSE)
        if most * width > 100 * 2 * fitted * self.classes:
            return None
        some = torch.cat([rows[:: max(1, self.count // most)] for rows in self.parts()])
        return torch.mm(some.T, some).double() / len(some)


@dataclass(frozen=True)
class Start:
    """Where the solver begins, and what it knows of the curvature: neither changes what it ends at."""

    weight: Tensor
    bias: Tensor
    spread: Tensor | None

    @staticmethod
    def of(problem: ReadoutFit, fitted: int) -> Start:
        """Return the readout that knows how often each class is, and no more; so many samples are fitted from it."""
        return Start(torch.zeros_like(problem.sums), problem.shares.clamp(min=1e-9).log(), problem.spread(fitted))


def solve(problem: ReadoutFit, strength: float, start: Start) -> Readout:
    """Return the readout of least cross-entropy + strength · ‖weight‖², by L-BFGS.

    Where predictions have become sure the loss is flatter than at the start: then it goes on from there.
    """
    even = float((problem.shares * (1 - problem.shares)).mean().clamp(min=1e-6))  # the curvature of the softmax
    while True:
        found = _solve(problem, strength, start, even)
        now = max(1e-6, problem.doubt(found.weight, found.bias))
        if now > even / 2:
            return found
        start, even = Start(found.weight, found.bias, start.spread), now


def _solve(problem: ReadoutFit, strength: float, start: Start, even: float) -> Readout:
    """Solve in unknowns that are the weights times a root of the loss's curvature, as far as it is known.

    So the curvature is about 1 in all directions, and half the squared length of the gradient about what is left to
    gain.
    """
    root = _root(start.spread, even, strength, problem)
    weight, bias = root.times(start.weight).requires_grad_(), (even**0.5 * start.bias).requires_grad_()
    enough = (2 * EXCESS[problem.kind] / (weight.numel() + bias.numel())) ** 0.5
    solver = torch.optim.LBFGS(
        [weight, bias], max_iter=STEPS, tolerance_grad=enough, history_size=20, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        plain = root.over(weight.detach())
        value, by_weight, by_bias = problem.slopes(plain, bias.detach() / even**0.5)
        weight.grad = root.over_transposed(by_weight + 2 * strength * plain).contiguous()
        bias.grad = by_bias / even**0.5
        return torch.tensor(value + strength * float(plain.pow(2).sum()), dtype=torch.float64)

    solver.step(loss)  # type: ignore[arg-type]
    return Readout(root.over(weight.detach()), bias.detach() / even**0.5, problem.mean, problem.std)


@dataclass(frozen=True)
class _Root:
    """A lower triangle R with R Rᵀ the curvature, or one number for all directions."""

    triangle: Tensor | float

    def times(self, weight: Tensor) -> Tensor:
        return weight @ self.triangle if isinstance(self.triangle, Tensor) else weight * self.triangle

    def over(self, weight: Tensor) -> Tensor:
        """Return weight · R⁻¹: `times` undone."""
        if not isinstance(self.triangle, Tensor):
            return weight / self.triangle
        return torch.linalg.solve_triangular(self.triangle, weight, upper=False, left=False)

    def over_transposed(self, slope: Tensor) -> Tensor:
        """Return slope · R⁻ᵀ: the slope along what `times` gives."""
        if not isinstance(self.triangle, Tensor):
            return slope / self.triangle
        return torch.linalg.solve_triangular(self.triangle.T, slope, upper=True, left=False)


def _root(spread: Tensor | None, even: float, strength: float, problem: ReadoutFit) -> _Root:
    if spread is None:
        return _Root((even + 2 * strength) ** 0.5)
    rounding = torch.finfo(problem.kind).eps * len(spread)  # of sums: without it there may be no root
    curvature = even * spread
    curvature.diagonal().add_(2 * strength + rounding)
    return _Root(torch.linalg.cholesky(curvature))


def fit(x: Tensor, y: Tensor, strength: float) -> Readout:
    """Fit a readout to features (N, d) and classes (N,): called, it predicts classes from other features.

    >>> x = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    >>> fit(x, torch.tensor([0, 0, 1, 1]), 1e-4)(torch.tensor([[-5.0], [9.0]]))
    tensor([0, 1])
    """
    problem = ReadoutFit(x, y, int(y.max()) + 1)
    return solve(problem, strength, Start.of(problem, len(x)))


def _split(rows: Tensor, like: Tensor | None = None) -> tuple[Tensor, ...]:
    """Cut rows into parts of about PART entries of `like`."""
    width = max(1, (rows if like is None else like)[0].numel())
    return rows.split(max(1, PART // width))


def _moments(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation (d,) in float64; a feature that does not vary gets a tiny one, not zero.

    The mean is one of `kind`, so that what is centred in it and what is centred in float64 is the same.
    """
    mean = (sum(part.sum(0, dtype=torch.float64) for part in _split(x)) / len(x)).to(kind)  # type: ignore[union-attr]
    squares, rest, largest = torch.zeros_like(mean).double(), torch.zeros_like(mean).double(), 0.0
    for part in _split(x):
        centred = part.to(kind) - mean
        squares = squares + torch.linalg.vector_norm(centred, dim=0, dtype=torch.float64).pow(2)
        rest = rest + centred.sum(0, dtype=torch.float64)
        largest = max(largest, float(part.abs().max()))
    variance = (squares - rest**2 / len(x)) / max(1, len(x) - 1)
    std = variance.clamp(min=0).sqrt()
    return mean.double(), std.clamp(min=1e-12 * (1 + largest))


def refit(x: Tensor, y: Tensor, seed: int) -> tuple[Readout, float]:
    """Return a readout of features (N, d) and classes (N,), and its ridge, chosen by `choose`."""
    classes = int(y.max()) + 1
    strength, start = _chosen(x, y, seed, classes)
    return solve(ReadoutFit(x, y, classes), strength, start), strength


def choose(x: Tensor, y: Tensor, seed: int) -> float:
    """Return the ridge under which held-out training samples have the least cross-entropy.

    Ridges are tried from the strongest on, until a weaker one does worse. Not the one with the best accuracy is taken:
    of a few hundred samples that is mostly chance, and where all are right it says nothing.
    """
    return _chosen(x, y, seed, int(y.max()) + 1)[0]


def _chosen(x: Tensor, y: Tensor, seed: int, classes: int) -> tuple[float, Start]:
    """Return the ridge, and where a fit to all samples can start."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:CHOOSE]
    out, kept = order.split([held := max(1, int(HELD_OUT * len(order))), len(order) - held])
    if not len(kept):
        raise InputError(f"Expected training samples to fit a readout on and some to choose its ridge, but got {held}.")
    problem = ReadoutFit(x[kept], y[kept], classes)
    start, best, least = Start.of(problem, len(x)), max(STRENGTHS), float("inf")
    for strength in sorted(STRENGTHS, reverse=True):
        found = solve(problem, strength, start)
        loss = float(F.cross_entropy(found.logits(x[out]), y[out]))
        if loss >= least:
            break
        best, least, start = strength, loss, Start(found.weight, found.bias, start.spread)
    return best, start


def accuracy(right: Tensor) -> float:
    """Return the share of samples that are right."""
    return float(right.double().mean())
