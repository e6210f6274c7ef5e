"""How sure a number is: 95 % intervals over seeds and over samples together, and what it would take to decide.

A mean over seeds has two errors. Other seeds would give another mean: variance over seeds ÷ number of seeds. Other test
samples would too, and all seeds were tested on the same ones: more seeds don't make that error smaller. Both parts are
given beside every interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, exp, isclose, log, sqrt
from typing import NamedTuple

import numpy as np

from walkback.errors import InputError, shown
from walkback.measures.intervals import NORMAL as NORMAL
from walkback.measures.intervals import half_width, two_more
from walkback.measures.measurements import Measurements
from walkback.measures.over_sites import student
from walkback.measures.worth import Depth
from walkback.verdict.claim import Accuracy, Correct, accuracies

RATE = 0.05  # of false discoveries, in tables of many settings
MOST = 1000  # more seeds, or draws, than that are not proposed


class Estimate(NamedTuple):
    """A number with its 95 % interval, None where there is nothing to take one from.

    `parts` are the standard errors that make it, by where they come from: "seeds", "samples", "draws" of blocks.
    `counts` says of how many of each.
    """

    value: float
    interval: tuple[float, float] | None
    parts: dict[str, float]
    counts: dict[str, int]

    def straddles(self, limit: float) -> bool:
        """Return whether the limit lies inside the interval."""
        return self.interval is not None and self.interval[0] < limit <= self.interval[1]

    def p(self, limit: float) -> float | None:
        """Return the two-sided p-value of the limit: 1 minus the level of the interval that just reaches it.

        >>> round(estimate(0.0, samples=(1.0, 1000)).p(NORMAL) or 0, 6)
        0.05
        """
        if self.interval is None:
            return None
        if self.interval[0] == self.interval[1]:
            return float(self.value == limit)
        variances, low, high = {k: v**2 for k, v in self.parts.items()}, 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            wide = half_width(variances, self.counts, middle) > abs(self.value - limit)
            low, high = (middle, high) if wide else (low, middle)
        return (low + high) / 2

    def more(self, limit: float, level: float = 0.05) -> dict[str, int]:
        """Return how many more seeds, samples or draws would decide at this spread; one that never would is left out.

        With another `level` than 0.05: at which the p-value has to be, of a decision beside many others.

        >>> estimate(2.5, seeds=(1.0, 3), samples=(0.01, 1000)).more(2.0)
        {'seeds': 54}
        """
        found = {}
        for what in self.parts:
            n = self.counts[what]
            # Doubling, then halving: the half-width falls with n.
            few, many = n, 2 * n
            most = 10**9 if what == "samples" else MOST
            while many < 2 * most and not self._decided(limit, what, many, level):
                few, many = many, 2 * many
            if many >= 2 * most:
                continue
            while many - few > 1:
                middle = (few + many) // 2
                few, many = (few, middle) if self._decided(limit, what, middle, level) else (middle, many)
            found[what] = many - n
        return found

    def _decided(self, limit: float, what: str, count: int, level: float) -> bool:
        return self._within(limit, {**self.counts, what: count}, level)

    def _within(self, limit: float, counts: Mapping[str, int], level: float) -> bool:
        """Return whether the interval of so many seeds, samples and draws would end before the limit."""
        variances = {k: v**2 * self.counts[k] / counts[k] for k, v in self.parts.items()}
        return half_width(variances, counts, level) < abs(self.value - limit)

    def together(self, limit: float, level: float = 0.05) -> dict[str, int]:
        """Return how many more of every kind, in equal proportion, would decide; empty where a thousandfold would not.

        >>> estimate(2.5, seeds=(1.0, 3), samples=(0.09, 1000)).together(2.0)
        {'seeds': 50, 'samples': 16500}
        """
        for times in (1 + n / 2 for n in range(1, 2 * MOST)):
            counts = {k: ceil(times * n) for k, n in self.counts.items()}
            if self._within(limit, counts, level):
                return {k: n - self.counts[k] for k, n in counts.items()}
        return {}

    def undecided(self, limit: float, unit: str) -> str:
        """Say that the interval straddles the limit, which part of its width is whose, and what would decide it."""
        assert self.interval is not None
        low, high = self.interval
        sign = "+" if unit == "pp" else ""
        number = f"{{:{sign}z.1f}}" if unit == "pp" else "{:.3g}"
        ends = f"{number.format(low)}…{number.format(high)}{_unit(unit)}"
        what = "margin" if unit == "pp" else "limit"
        text = f"the 95 % interval {ends} straddles the {what} of {limit:.3g}{_unit(unit)}"
        return f"{text} ({self.what_decides(limit)})"

    def what_decides(self, limit: float, level: float = 0.05) -> str:
        """Say how many more seeds, samples or draws would decide."""
        found = self.more(limit, level)
        least = found or self.together(limit, level)
        words = [f"{n:,} more {name if n > 1 else name[:-1]}" for name, n in least.items()]
        if not words:
            return f"even {MOST:,} times as many {' and '.join(self.parts)} would not decide it"
        return f"at this spread {(' or ' if found else ' together with ').join(words)} would decide it"


def _unit(unit: str) -> str:
    return f" {unit}" if unit == "pp" else unit


def estimate(
    value: float, seeds: tuple[float, int] | None = None, samples: tuple[float, int] | None = None
) -> Estimate:
    """Return an Estimate from the variance of the mean and the count behind it, over seeds and over samples."""
    given = {k: v for k, v in (("seeds", seeds), ("samples", samples)) if v is not None and v[1] > 1}
    counts = {k: n for k, (_, n) in given.items()}
    variances = {k: v for k, (v, _) in given.items()}
    if not given:
        return Estimate(value, None, {}, {})
    half = half_width(variances, counts)
    return Estimate(value, (value - half, value + half), {k: sqrt(v) for k, v in variances.items()}, counts)


# -- gains over a control ------------------------------------------------------------------------------------------


def paired_margin(
    headline: Accuracy,
    frozen: Accuracy,
    correct: Correct | Sequence[Correct] | None = None,
    test_samples: int | None = None,
) -> Estimate:
    """Return the mean gain in pp with its 95 % interval, over seeds and over test samples together.

    Args:
        headline: accuracies of the network.
        frozen: accuracies of its control, for the same seeds.
        correct: which test samples are right, (N,) of the network and (N,) of its control, or their counts; of several
            seeds one pair each, in their order.
        test_samples: how many there are, where predictions are not given: then the error is that of two networks whose
            mistakes have nothing to do with each other, which it does not exceed where they share some.

    >>> paired_margin(0.615, 0.349)[:2]
    (26.6, None)
    >>> paired_margin(0.75, 0.5, ([1, 1, 1, 0] * 100, [1, 1, 0, 0] * 100)).interval
    (20.7..., 29.2...)
    >>> paired_margin([0.61, 0.62, 0.63], [0.35, 0.34, 0.36]).interval
    (24.5..., 29.4...)
    >>> paired_margin([0.61, 0.62, 0.63], [0.35, 0.34, 0.36], test_samples=10_000).parts
    {'seeds': 0.57..., 'samples': 0.68...}
    """
    ours, theirs = accuracies("headline_acc", headline), accuracies("frozen_baseline_acc", frozen)
    if len(ours) != len(theirs):
        raise InputError(
            f"Expected the same seeds for headline_acc and frozen_baseline_acc, but got {len(ours)} and "
            f"{len(theirs)} accuracies. Pair them seed by seed."
        )
    gains = [round(100 * (a - b), 10) for a, b in zip(ours, theirs)]
    margin, n = round(sum(gains) / len(gains), 10), len(gains)
    seeds = (sum((g - margin) ** 2 for g in gains) / (n - 1) / n, n) if n > 1 else None
    samples = None
    if correct is not None:
        samples = _of_predictions(one_per_seed(correct, n), ours, theirs)
    elif test_samples is not None:
        more = test_samples + 2  # one right and one wrong, as `two_more`
        shares = [(a * test_samples + 1) / more for a in (*ours, *theirs)]
        samples = 100**2 * sum(a * (1 - a) for a in shares) / n / more, test_samples
    return estimate(margin, seeds, samples)


def _of_predictions(pairs: Sequence[Correct], ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, int]:
    """Return the variance over test samples in pp² that the mean gain has beside its variance over seeds, and their N.

    A sample's gain is 1, 0 or −1; with n10 and n01 samples that one alone gets right, its variance is
    (n10 + n01 − (n10 − n01)²/N)/N, with one more sample of either kind counted in (`two_more`). What a sample does to
    one seed and not to the others is in the variance over seeds already and taken off (two crossed random effects). Of
    counts alone it is not known on which samples seeds agree: the mean of their variances is the most that the variance
    of their mean can be.
    """
    counted = [paired_counts(pair) for pair in pairs]
    sizes = {count["samples"] for count in counted}
    if len(sizes) > 1:
        raise InputError(f"Expected the same test samples for all seeds, but got {sorted(sizes)} of them.")
    for count, *pair in zip(counted, ours, theirs):
        n = count["samples"]
        for name, accuracy, alone in zip(("headline_acc", "frozen_baseline_acc"), pair, ("only_ours", "only_frozen")):
            right = count["both"] + count[alone]
            if abs(right / n - accuracy) > 1e-6:
                raise InputError(f"Expected predictions with {name} {accuracy:g}, but {right} of {n} are right.")
    (n,), seeds = sizes, len(pairs)
    if seeds == 1 or any(isinstance(pair, Mapping) for pair in pairs):
        ends = [(c["only_ours"], c["only_frozen"], n + 2) for c in counted]
        each = [(a + b + 2 - (a - b) ** 2 / more) / more**2 for a, b, more in ends]
        return 100**2 * sum(each) / seeds, n
    known = np.stack([np.asarray(a, float).ravel() - np.asarray(b, float).ravel() for a, b in pairs])  # type: ignore[misc]
    gains = two_more(known)
    rest = gains - gains.mean(0) - gains.mean(1, keepdims=True) + gains.mean()
    own = float((rest**2).sum()) / ((n + 1) * (seeds - 1)) / ((n + 2) * seeds)
    return 100**2 * max(0.0, float(gains.mean(0).var()) / (n + 2) - own), n


def mean_worth(depths: Sequence[Depth]) -> Estimate:
    """Return what trained blocks are worth in pp, of one network as it was measured, or the mean over seeds.

    Seeds are compared on the same test samples, and their blocks may be drawn from the same random numbers. So neither
    error averages out: the mean of their variances is taken, which is the most that it can be.
    """
    worths, n = [d.worth_pp for d in depths], len(depths)
    counts = {"samples": min(d.samples["test"] for d in depths), "draws": min(len(d.rerandomised) for d in depths)}
    variances = {k: sum(d.parts.get(k, 0.0) ** 2 for d in depths) / n for k, count in counts.items() if count > 1}
    if n == 1:
        return Estimate(worths[0], depths[0].interval, {k: sqrt(v) for k, v in variances.items()}, counts)
    mean = sum(worths) / n
    variances = {"seeds": sum((w - mean) ** 2 for w in worths) / (n - 1) / n, **variances}
    counts = {"seeds": n, **counts}
    half = half_width(variances, counts)
    return Estimate(mean, (mean - half, mean + half), {k: sqrt(v) for k, v in variances.items()}, counts)


def variance_shares(values: Sequence[Sequence[float]]) -> dict[str, float] | None:
    """Return the shares of variance from rows, from columns, and from the rest, of a table with one number per cell.

    Two crossed random effects: mean squares of n rows, m columns and the rest have the expectations m·σ²_rows +
    σ²_rest, n·σ²_columns + σ²_rest and σ²_rest. A component that comes out negative counts as none. None where nothing
    varies.

    >>> variance_shares([[1.0, 2.0], [3.0, 4.0]])
    {'rows': 0.8, 'columns': 0.2, 'rest': 0.0}
    """
    x = np.asarray(values, float)
    (n, m), mean = x.shape, x.mean()
    rows, columns = x.mean(1, keepdims=True) - mean, x.mean(0, keepdims=True) - mean
    rest = float(((x - mean - rows - columns) ** 2).sum()) / ((n - 1) * (m - 1))
    found = {
        "rows": max(0.0, float((rows**2).sum()) / (n - 1) - rest / m),
        "columns": max(0.0, float((columns**2).sum()) / (m - 1) - rest / n),
        "rest": rest,
    }
    total = sum(found.values())
    return {name: part / total for name, part in found.items()} if total else None


def surviving(ps: Sequence[float], rate: float = RATE) -> list[bool]:
    """Return which of many decisions stand with the false discovery rate held at `rate` (Benjamini and Hochberg).

    >>> surviving([0.001, 0.04, 0.03, 0.2])
    [True, False, False, False]
    """
    from scipy.stats import false_discovery_control

    return [bool(p <= rate) for p in false_discovery_control(list(ps))] if ps else []


def one_per_seed(correct: Correct | Sequence[Correct], seeds: int) -> list[Correct]:
    """Return predictions as one pair per seed; another number of them is an InputError."""
    if not isinstance(correct, Mapping) and (isinstance(correct, (str, bytes)) or not hasattr(correct, "__len__")):
        raise InputError(f"Expected correct to be a pair of predictions, or their counts, but got {shown(correct)}.")
    one = isinstance(correct, Mapping) or (seeds == 1 and len(correct) == 2)
    pairs = [correct] if one else list(correct)
    if len(pairs) != seeds:
        raise InputError(f"Expected predictions for each of {seeds} seeds, but got {len(pairs)}.")
    return pairs  # type: ignore[return-value]


def mean_gain(ours: Accuracy, frozen: Accuracy) -> float:
    """Return the difference of two mean accuracies in pp, of seeds that need not be the same."""
    a, b = accuracies("bp_acc", ours), accuracies("frozen_baseline_acc", frozen)
    return round(100 * (sum(a) / len(a) - sum(b) / len(b)), 10)


def paired_counts(correct: Correct) -> dict[str, int]:
    """Count the test samples, and those that the network, its control and both get right.

    >>> counts = paired_counts(([1, 1, 1, 0], [1, 0, 0, 1]))
    >>> counts
    {'samples': 4, 'both': 1, 'only_ours': 2, 'only_frozen': 1}
    >>> paired_counts(counts) == counts
    True
    """
    if isinstance(correct, Mapping):
        names = ("samples", "both", "only_ours", "only_frozen")
        n, *parts = (correct.get(name) for name in names)
        whole = all(isinstance(count, int) and count >= 0 for count in (n, *parts))
        if set(correct) != set(names) or not whole or not sum(parts) <= n or not n:  # type: ignore[arg-type, operator]
            raise InputError(
                f"Expected paired predictions as counts of {', '.join(names)}, but got {shown(dict(correct))}."
            )
        return dict(correct)
    a, b = (np.asarray(row, dtype=bool).ravel() for row in correct)
    if not len(a) or len(a) != len(b):
        raise InputError(f"Expected the same test samples in the same order, but got {len(a)} and {len(b)} of them.")
    found = {"both": a & b, "only_ours": a & ~b, "only_frozen": b & ~a}
    return {"samples": len(a), **{name: int(row.sum()) for name, row in found.items()}}


# -- norms, on a log scale -----------------------------------------------------------------------------------------


class Ratio(NamedTuple):
    """A positive number whose interval is taken on a log scale; `logs` is the Estimate of its logarithm."""

    interval: tuple[float, float]
    logs: Estimate

    def straddles(self, limit: float) -> bool:
        """Return whether the limit lies inside the interval."""
        return self.interval[0] < limit <= self.interval[1]

    @property
    def parts(self) -> dict[str, float]:
        """The standard errors of its logarithm."""
        return self.logs.parts

    def more(self, limit: float) -> dict[str, int]:
        """Return how many more would decide, as of an Estimate."""
        return self.logs.more(log(limit))

    def undecided(self, limit: float, unit: str = "") -> str:
        """Say so, and what would decide it."""
        low, high = self.interval
        text = f"the 95 % interval {low:.3g}…{high:.3g}{unit} straddles the limit of {limit:.3g}{unit}"
        return f"{text} ({self.logs.what_decides(log(limit))})"


def of_norms(m: Measurements, name: str, value: float | None) -> Ratio | Estimate | None:
    """Return the interval that was measured of "growth", "g_norm_deepest" or "cosine_error", None where none was.

    One that begins at 0, and one of a shift, which is no mean of positive numbers, is taken as it is and not on a log
    scale.
    """
    low, high = getattr(m, f"{name}_low"), getattr(m, f"{name}_high")
    if not value or low is None or not high:
        return None
    plain = not low or (name == "cosine_error" and not isclose(low * high, value**2, rel_tol=1e-4))
    known = (m.conditions.get("log_errors") or {}).get(name)
    if known is None:  # of one network: all of it comes from the samples
        n = int(m.conditions.get("samples") or 0)
        half = high - value if plain else log(high / low) / 2
        known = {"samples": [half / student(n - 1), n]} if n > 1 else {}
    parts, counts = ({k: v[i] for k, v in known.items()} for i in (0, 1))
    if plain:
        return Estimate(value, (low, high), parts, counts)
    return Ratio((low, high), Estimate(log(value), (log(low), log(high)), parts, counts))


def mean_ratio(values: Sequence[float], intervals: Sequence[tuple[float, float, int] | None]) -> tuple[float, Estimate]:
    """Return the geometric mean over seeds, and the Estimate of its logarithm.

    Args:
        values: one per seed, positive.
        intervals: of each seed over samples, (low, high, how many samples), where it was measured. Seeds were measured
            on the same samples, so their errors don't average out: the mean of their variances is taken.

    >>> round(mean_ratio([1.0, 4.0], [None, None])[0], 6)
    2.0
    """
    logs = [log(v) for v in values]
    mean, n = sum(logs) / len(logs), len(logs)
    seeds = (sum((x - mean) ** 2 for x in logs) / (n - 1) / n, n) if n > 1 else None
    known = [i for i in intervals if i is not None and i[0] > 0 and i[2] > 1]
    samples = None
    if known:
        errors = [log(high / low) / 2 / student(count - 1) for low, high, count in known]
        samples = sum(e**2 for e in errors) / len(errors), min(count for *_, count in known)
    return exp(mean), estimate(mean, seeds, samples)
