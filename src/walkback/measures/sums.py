"""Sums over samples and over groups of them, which the accumulators are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, isfinite
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from walkback.measures import formulas
from walkback.measures.formulas import PUBLISHED_BATCH, Counted, Pairs, pairwise_cosine
from walkback.measures.measurements import Found

# With a larger share of repeated samples, groups of samples are not independent.
REPEATED = 0.05
# Numbers of samples at sites that wait until they are added up: small enough for the cache.
AT_ONCE = 2**13
FEW = 8  # groups that wait until they are added up


@runtime_checkable
class Accumulator(Protocol):
    """Adds up something over batches: by `update` with each trace, or by `add` with the pairs of one or several."""

    def compute(self, found: Found) -> None:
        """Add what there is so far to what the accumulators before this one found."""
        ...


def some(x: float) -> float | None:
    """Return a finite number, else None."""
    return x if isfinite(x) else None


class Mean:
    """The mean over samples of a quantity's formula, per site."""

    def __init__(self, name: str) -> None:
        self.name, self.formula = name, getattr(formulas, name)
        self.sums: Any = torch.zeros(())  # by site: of the values, of samples that count, and of those with a value

    def compute(self, found: Found) -> None:
        found.values[self.name] = [some(total / n) if given else None for total, n, given in self.sums.T.tolist()]

    def counts(self) -> list[tuple[int, int]]:
        """Return by site how many samples count in the mean, and how many of them have a value."""
        return [(int(n), int(given)) for _, n, given in self.sums.T.tolist()]


class Means:
    """Adds up several means at once; each of them says what it found."""

    def __init__(self, means: Sequence[Mean]) -> None:
        self._means = means
        self._sums: Any = 0.0

    def add(self, pairs: Pairs) -> None:
        """Take the samples of one batch or several."""
        made: list[Tensor | Counted] = [mean.formula(pairs) for mean in self._means]
        every = torch.ones((), dtype=torch.bool, device=pairs.own.device)
        parts = [(m, *[every.expand(m.shape)] * 2) if isinstance(m, Tensor) else m for m in made]
        value, counted, given = (torch.stack(part) for part in zip(*parts))
        sums = torch.stack([torch.where(given, value, 0.0).sum(-1), counted.sum(-1), given.sum(-1)], 1)
        self._sums = self._sums + sums
        for mean, of_mean in zip(self._means, self._sums):
            mean.sums = of_mean

    def compute(self, found: Found) -> None:
        for mean in self._means:
            mean.compute(found)


class Groups:
    """Sums over consecutive samples in groups of 128, so that batch-level numbers don't depend on the batch size."""

    def __init__(self) -> None:
        self.filled = 0
        self.sum: Any = 0.0

    def add(self, *rows: Float[Tensor, "batch width"]) -> Iterator[Float[Tensor, "sites width"]]:
        """Take (B, n) rows of one or several sites; yield (sites, n) sums of every group that is full."""
        start, batch = 0, len(rows[0])
        while start < batch:
            stop = min(batch, start + PUBLISHED_BATCH - self.filled)
            parts = rows if stop - start == batch else [of_site[start:stop] for of_site in rows]
            self.sum = self.sum + torch.stack([part.sum(0, dtype=torch.float64) for part in parts])
            self.filled += stop - start
            start = stop
            if self.filled == PUBLISHED_BATCH:
                done, self.sum, self.filled = self.sum, 0.0, 0
                yield done


class Directions:
    """The mean cosine between the directions of groups of samples."""

    def __init__(self) -> None:
        self._groups, self._sum = Groups(), 0.0
        self._waiting: list[Tensor] = []  # groups that are not added up yet
        self._counts = [0, 0]  # without a direction, and with one

    def add(self, vectors: Float[Tensor, "batch width"]) -> None:
        self._waiting += [group for (group,) in self._groups.add(vectors)]
        if len(self._waiting) == FEW:
            self._add_waiting()

    def _add_waiting(self) -> None:
        """Add up several groups at once: it takes hardly longer than one."""
        if self._waiting:
            groups = torch.stack(self._waiting)
            self._waiting.clear()
            lengths = torch.linalg.vector_norm(groups, dim=1)
            directed = (lengths > 0) & (lengths < inf)
            self._sum = self._sum + torch.where(directed[:, None], groups / lengths[:, None], 0.0).sum(0)
            for has in directed.tolist():
                self._counts[has] += 1

    @property
    def groups(self) -> int:
        """How many have a direction."""
        self._add_waiting()
        return self._counts[True]

    @property
    def empty(self) -> int:
        """How many have none."""
        self._add_waiting()
        return self._counts[False]

    def stability(self) -> float:
        self._add_waiting()
        assert isinstance(self._sum, Tensor)
        return pairwise_cosine(self._sum, self.groups)
