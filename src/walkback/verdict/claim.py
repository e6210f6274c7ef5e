"""What is claimed for a network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from walkback.errors import InputError, shown
from walkback.measures.worth import Depth
from walkback.registry import whole_numbers

Accuracy = float | Sequence[float] | None
# Which test samples are right, (N,) of the network and (N,) of its control, in the same order; or their counts.
Correct = tuple[Sequence[bool] | np.ndarray, Sequence[bool] | np.ndarray] | Mapping[str, int]

# The two checks of depth: against a trained control, and against the network's own blocks drawn anew.
CONTROL, OUTCOME = "D3", "D3-outcome"

# Fields of a claim -> the published keywords.
KEYWORDS = {
    "accuracy": "headline_acc",
    "frozen": "frozen_baseline_acc",
    "bp": "bp_acc",
    "bp_frozen": "bp_frozen_acc",
    "correct": "correct",
}


# What trained blocks can be compared with, from the control of D3 to the simplest: the same network with frozen random
# blocks and its stem trained by the same rule; its stem trained by BP; the trained network with its blocks drawn anew
# and its readout refitted; and a linear model of the inputs.
CONTROLS = ("rule-stem", "bp-stem", "re-randomised", "linear-probe")


@dataclass(frozen=True)
class Claim:
    """What is claimed for a network: accuracies as fractions, one or one per seed.

    Args:
        accuracy: the accuracy that is published.
        frozen: of the same network with its blocks frozen at random initialisation, for the same seeds.
        bp: of backpropagation on the same task. Where BP does not beat frozen blocks, the task can't show depth and D3
            is not tested.
        bp_frozen: of BP's own frozen control, where `frozen` has a stem trained otherwise.
        correct: (N,) which test samples the network gets right and (N,) which its control does; of several seeds a list
            of such pairs.
        depth: what `walkback.depth` returned for the network, or for the network of each seed: D3-outcome judges it.
        primary: which of the two decides where both are there, "D3" or "D3-outcome"; to be named beforehand.
        test_samples: how many test samples the accuracies are of, where `correct` is not given: the interval of D3 then
            has the binomial error of so many.
        controls: accuracies of other controls, by their names in CONTROLS; "rule-stem" is `frozen`.
        control: the one that D3 is judged on. Name it before you look: the others are shown beside it.

    >>> claim = Claim(accuracy=0.31, frozen=0.35, controls={"linear-probe": 0.39})
    >>> claim.control, {name: round(gain, 1) for name, gain in claim.gains().items()}
    ('rule-stem', {'rule-stem': -4.0, 'linear-probe': -8.0})
    """

    accuracy: Accuracy = None
    frozen: Accuracy = None
    bp: Accuracy = None
    bp_frozen: Accuracy = None
    correct: Correct | Sequence[Correct] | None = None
    depth: Depth | tuple[Depth, ...] | None = None
    primary: str = CONTROL
    test_samples: int | None = None
    controls: Mapping[str, Accuracy] = field(default_factory=dict)
    control: str = "rule-stem"

    def __post_init__(self) -> None:
        several = self.depth if isinstance(self.depth, (list, tuple)) and self.depth else [self.depth]
        if self.depth is not None and not all(isinstance(one, Depth) for one in several):
            raise InputError(
                f"Expected depth to be what walkback.depth(model, train, test) returned, but got {shown(self.depth)}."
            )
        if not isinstance(self.primary, str) or self.primary not in (CONTROL, OUTCOME):
            raise InputError(f"Expected primary to be {CONTROL} or {OUTCOME}, but got {shown(self.primary)}.")
        if self.test_samples is not None:
            whole_numbers(test_samples=self.test_samples)
        if not isinstance(self.controls, Mapping):
            raise InputError(f"Expected controls as a dict of accuracies by name, but got {shown(self.controls)}.")
        others = [*self.controls, self.control]
        if odd := [name for name in others if not isinstance(name, str) or name not in CONTROLS]:
            raise InputError(f"Expected controls among {', '.join(CONTROLS)}, but got {shown(odd[0])}.")
        if "rule-stem" in self.controls:
            raise InputError('Expected the control "rule-stem" as frozen=, but got it among controls=.')
        known = {name: accuracies(name, value) for name, value in self.controls.items() if value is not None}
        object.__setattr__(self, "controls", known)
        if self.bp is None and self.bp_frozen is not None:
            raise InputError(
                "Expected bp_acc beside bp_frozen_acc, its frozen control, but got none. Pass both, or neither."
            )
        for own, name in KEYWORDS.items():
            value = getattr(self, own)
            if value is not None and own != "correct":
                plain = accuracies(name, value)
                several = isinstance(value, Iterable) and getattr(value, "ndim", 1) > 0
                object.__setattr__(self, own, plain if several else plain[0])

    @cached_property
    def depth_by(self) -> dict[Any, Any]:
        """What D3 says of this claim by thresholds: worked out once for all seeds and editions that ask."""
        return {}

    @property
    def control_accuracy(self) -> Accuracy:
        """The accuracy of the control that D3 is judged on; one number stands for all seeds."""
        return self._of(self.control)

    def _of(self, control: str) -> Accuracy:
        if control == "rule-stem":
            return self.frozen
        given = self.controls.get(control)
        seeds = len(accuracies("headline_acc", self.accuracy)) if self.accuracy is not None else 1
        return None if given is None else [*given] * seeds if len(accuracies(control, given)) == 1 else given  # type: ignore[misc]

    def gains(self) -> dict[str, float]:
        """Return the mean gain over every control that is given, in percentage points, in the order of CONTROLS."""
        if self.accuracy is None:
            return {}
        ours = accuracies("headline_acc", self.accuracy)
        known = {name: accuracies(name, acc) for name in CONTROLS if (acc := self._of(name)) is not None}
        return {name: 100 * (sum(ours) / len(ours) - sum(row) / len(row)) for name, row in known.items()}

    @property
    def headline(self) -> Accuracy:
        """The accuracy, by its published name."""
        return self.accuracy

    @staticmethod
    def given(claim: Claim | None, *, depth: Depth | None = None, **published: Any) -> Claim:
        """Return the claim, or that of the published keywords, with `depth`; both at once are an InputError.

        >>> Claim.given(None, headline_acc=0.31).accuracy
        0.31
        """
        named = [name for name, value in published.items() if value is not None]
        if claim is None:
            given: dict[str, Any] = {field: published.get(name) for field, name in KEYWORDS.items()}
            return Claim(**given, depth=depth)
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
        if depth is not None and claim.depth is not None:
            raise InputError("Expected depth once, but got claim.depth and depth=. Leave one of them out.")
        return claim if depth is None else replace(claim, depth=depth)


def accuracies(name: str, value: Any) -> list[float]:
    """Return a fraction, or one per seed, as a list; anything outside 0…1 is an InputError.

    >>> accuracies("headline_acc", np.array([0.5, 0.25]))
    [0.5, 0.25]
    """
    if type(value) is float and 0.0 <= value <= 1.0:
        return [value]
    listed = getattr(value, "tolist", None)  # of NumPy, torch, JAX
    value = value if listed is None else listed()
    several = isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))
    values: list[Any] = list(value) if several else [value]
    if not values:
        raise InputError(f"Expected {name} to hold at least one accuracy, but it is empty.")
    out = []
    for v in values:
        try:
            number = None if isinstance(v, (str, bytes, bool)) else float(v)
        except (TypeError, ValueError, OverflowError):
            number = None
        if number is None or not 0.0 <= number <= 1.0:
            per_cent = number is not None and 1.0 < number <= 100.0
            hint = f" It looks like per cent: pass {number / 100:g}." if per_cent and number else ""
            raise InputError(f"Expected {name} as a fraction between 0 and 1, but got {shown(v)}.{hint}")
        out.append(number)
    return out
