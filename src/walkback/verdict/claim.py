"""What is claimed for a network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from walkback.errors import InputError, shown

Accuracy = float | Sequence[float] | None
# Which test samples are right, (N,) of the network and (N,) of its control, in the same order; or their counts.
Correct = tuple[Sequence[bool] | np.ndarray, Sequence[bool] | np.ndarray] | Mapping[str, int]

# Fields of a claim -> the published keywords.
KEYWORDS = {
    "accuracy": "headline_acc",
    "frozen": "frozen_baseline_acc",
    "bp": "bp_acc",
    "bp_frozen": "bp_frozen_acc",
    "correct": "correct",
}


@dataclass(frozen=True)
class Claim:
    """What is claimed for a network: accuracies as fractions, one or one per seed.

    Args:
        accuracy: the accuracy that is published.
        frozen: of the same network with its blocks frozen at random initialisation, for the same seeds.
        bp: of backpropagation on the same task. Where BP does not beat frozen blocks, the task can't show depth and D3
            is not tested.
        bp_frozen: of BP's own frozen control, where `frozen` has a stem trained otherwise.
        correct: for one seed, (N,) which test samples the network gets right and (N,) which its control does.

    >>> Claim(accuracy=0.31, frozen=[0.35])
    Claim(accuracy=0.31, frozen=[0.35], bp=None, bp_frozen=None, correct=None)
    """

    accuracy: Accuracy = None
    frozen: Accuracy = None
    bp: Accuracy = None
    bp_frozen: Accuracy = None
    correct: Correct | None = None

    def __post_init__(self) -> None:
        if self.bp is None and self.bp_frozen is not None:
            raise InputError(
                "Expected bp_acc beside bp_frozen_acc, its frozen control, but got none. Pass both, or neither."
            )
        for field, name in KEYWORDS.items():
            value = getattr(self, field)
            if value is not None and field != "correct":
                plain = accuracies(name, value)
                several = isinstance(value, Iterable) and getattr(value, "ndim", 1) > 0
                object.__setattr__(self, field, plain if several else plain[0])

    @property
    def headline(self) -> Accuracy:
        """The accuracy, by its published name."""
        return self.accuracy

    @staticmethod
    def given(claim: Claim | None, **published: Any) -> Claim:
        """Return the claim, or that of the published keywords; both at once are an InputError.

        >>> Claim.given(None, headline_acc=0.31).accuracy
        0.31
        """
        named = [name for name, value in published.items() if value is not None]
        if claim is None:
            return Claim(**{field: published.get(name) for field, name in KEYWORDS.items()})
        if not isinstance(claim, Claim):
            raise InputError(
                f"Expected claim to be a Claim, but got {type(claim).__name__}. Write "
                "claim=walkback.Claim(accuracy=..., frozen=...)."
            )
        if named:
            raise InputError(
                f"Expected the claim once, but got claim= and {', '.join(f'{name}=' for name in named)}. "
                f"Put {named[0]} into the Claim, or leave claim= out."
            )
        return claim


def accuracies(name: str, value: Any) -> list[float]:
    """Return a fraction, or one per seed, as a list; anything outside 0…1 is an InputError.

    >>> accuracies("headline_acc", np.array([0.5, 0.25]))
    [0.5, 0.25]
    """
    value = value.tolist() if hasattr(value, "tolist") else value  # NumPy, torch, JAX
    several = isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))
    values: list[Any] = list(value) if several else [value]
    if not values:
        raise InputError(f"Expected {name} to hold at least one accuracy, but it is empty.")
    out = []
    for v in values:
        try:
            number = None if isinstance(v, (str, bytes, bool)) else float(v)
        except (TypeError, ValueError):
            number = None
        if number is None or not 0.0 <= number <= 1.0:
            per_cent = number is not None and 1.0 < number <= 100.0
            hint = f" It looks like per cent: pass {number / 100:g}." if per_cent and number else ""
            raise InputError(f"Expected {name} as a fraction between 0 and 1, but got {shown(v)}.{hint}")
        out.append(number)
    return out
