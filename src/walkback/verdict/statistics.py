"""How sure a gain over frozen blocks is: paired margins and their 95 % intervals, over seeds or over test samples."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import numpy as np

from walkback.errors import InputError, shown
from walkback.measures.nulls import student
from walkback.verdict.claim import Accuracy, Correct, accuracies


def paired_margin(
    headline: Accuracy, frozen: Accuracy, correct: Correct | None = None
) -> tuple[float, tuple[float, float] | None]:
    """Return the mean gain in pp and its 95 % interval. Several seeds: paired t. One seed: binomial, with predictions.

    Args:
        headline: accuracies of the network.
        frozen: accuracies of its control, for the same seeds.
        correct: for one seed, (N,) which test samples the network gets right and (N,) which its control does.

    >>> paired_margin(0.615, 0.349)
    (26.6, None)
    >>> paired_margin(0.75, 0.5, ([1, 1, 1, 0] * 100, [1, 1, 0, 0] * 100))
    (25.0, (20.7..., 29.2...))
    >>> paired_margin([0.61, 0.62, 0.63], [0.35, 0.34, 0.36])[1]
    (24.5..., 29.4...)
    """
    ours, theirs = accuracies("headline_acc", headline), accuracies("frozen_baseline_acc", frozen)
    if len(ours) != len(theirs):
        raise InputError(
            f"Expected the same seeds for headline_acc and frozen_baseline_acc, but got {len(ours)} and "
            f"{len(theirs)} accuracies. Pair them seed by seed."
        )
    gains = [round(100 * (a - b), 10) for a, b in zip(ours, theirs)]
    margin = round(sum(gains) / len(gains), 10)
    if len(gains) == 1:
        return margin, None if correct is None else _binomial(margin, ours[0], theirs[0], correct)
    spread = sqrt(sum((g - margin) ** 2 for g in gains) / (len(gains) - 1))
    half = student(len(gains) - 1) * spread / sqrt(len(gains))
    return margin, (margin - half, margin + half)


def mean_gain(ours: Accuracy, frozen: Accuracy) -> float:
    """Return the difference of two mean accuracies in pp, of seeds that need not be the same."""
    a, b = accuracies("bp_acc", ours), accuracies("frozen_baseline_acc", frozen)
    return round(100 * (sum(a) / len(a) - sum(b) / len(b)), 10)


def _binomial(margin: float, ours: float, theirs: float, correct: Correct) -> tuple[float, float]:
    """The normal 95 % interval of a difference of paired proportions.

    Only samples that one of the two alone gets right count: with n10 and n01 of them, the difference is
    (n10 − n01)/N and its variance (n10 + n01 − (n10 − n01)²/N)/N².
    """
    count = paired_counts(correct)
    n, better, worse = count["samples"], count["only_ours"], count["only_frozen"]
    for name, said, alone in (("headline_acc", ours, better), ("frozen_baseline_acc", theirs, worse)):
        right = count["both"] + alone
        if abs(right / n - said) > 1e-6:
            raise InputError(f"Expected predictions with {name} {said:g}, but {right} of {n} are right.")
    spread = sqrt(better + worse - (better - worse) ** 2 / n) / n
    half = 100 * 1.959963984540054 * spread
    return margin - half, margin + half


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
