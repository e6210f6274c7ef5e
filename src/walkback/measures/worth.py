"""What trained blocks are worth, as a value: what `depth` measures, a report keeps and D3-outcome judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from walkback.errors import InputError, shown

TRAINED, RANDOM = "trained", "re-randomised"
WITHIN_DRAWS = "one of the random draws does as well: this may be the luck of a draw, not training"


# Many fields, since they are what a report and a run record keep under "depth".
@dataclass(frozen=True)
class Depth:
    """What the trained blocks are worth. Accuracies are fractions of the test samples; all readouts are refitted.

    Args:
        worth_pp: accuracy of the trained blocks minus that of random ones, in percentage points.
        interval: 95 %, from the paired test samples and from the draws together.
        trained: accuracy with the trained blocks.
        rerandomised: accuracy with the blocks drawn anew, one per draw.
        by_depth: accuracy of a linear probe of every site, "trained" and "re-randomised" (mean over draws).
        without: accuracy with one block left out, by block; None where the stream does not allow it.
        without_all: accuracy with all blocks left out: the stem alone.
        pixels: accuracy of a linear model of the inputs, None where they are no numbers of one shape.
        samples: how many were used to fit, and to compare.
        parts: the standard error from the test samples and from the draws, in percentage points.
        strength: the ridge of each readout, chosen on held-out training samples: "trained", "re-randomised" per draw.
        drawn_by: how blocks were drawn: "reset_parameters" or "build".
        reasons: why a field is None.

    >>> found = Depth(3.0, (1.0, 5.0), 0.5, (0.46, 0.48), {"trained": [0.4, 0.5]}, None, None, None,
    ...     {"train": 100, "test": 100}, {"samples": 0.8, "draws": 0.6}, {"trained": [1e-4]})
    >>> str(found).splitlines()[0]
    'trained blocks are worth +3.0 pp [+1.0, +5.0]'
    >>> Depth.of(found.to_dict()) == found
    True
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(allow_inf_nan=False)

    worth_pp: float
    interval: tuple[float, float]
    trained: float
    rerandomised: tuple[float, ...]
    by_depth: dict[str, list[float]]
    without: list[float] | None
    without_all: float | None
    pixels: float | None
    samples: dict[str, int]
    parts: dict[str, float]
    strength: dict[str, list[float]]
    drawn_by: str = "reset_parameters"
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def random(self) -> float:
        """The mean accuracy with random blocks."""
        return sum(self.rerandomised) / len(self.rerandomised)

    @property
    def within_draws(self) -> bool:
        """Are the trained blocks better than random ones on average, but not better than the best draw of them?"""
        return self.random < self.trained <= max(self.rerandomised)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: what `of` reads."""
        return {**asdict(self), "interval": list(self.interval), "rerandomised": list(self.rerandomised)}

    @staticmethod
    def of(data: object, where: str = "depth") -> Depth:
        """Return what `to_dict` gave; what is no such thing is an InputError."""
        if isinstance(data, Depth):
            return data
        names = [f.name for f in fields(Depth)]
        given = data if isinstance(data, Mapping) else {}
        needed = [name for name in names if name not in ("drawn_by", "reasons")]
        if missing := [name for name in needed if name not in given]:
            got = f"no {missing[0]}" if given else shown(data)
            raise InputError(f"Expected {where} to be what walkback.depth returned, but got {got}.")
        try:
            found = TypeAdapter(Depth).validate_python({name: given[name] for name in names if name in given})
        except ValidationError as error:
            wrong = error.errors()[0]
            place = ".".join(map(str, wrong["loc"]))
            raise InputError(
                f"Expected {where}.{place}: {wrong['msg'].lower()}, got {shown(wrong['input'])}."
            ) from None
        if why := found._nonsense():
            raise InputError(f"Expected {where} to be what walkback.depth returned, but {why}.")
        return found

    def _nonsense(self) -> str:
        """Say what can't be true of these numbers together; "" where nothing is wrong."""
        shares = [self.trained, *self.rerandomised, *(self.without or ())]
        shares += [share for site in self.by_depth.values() for share in site]
        if not self.rerandomised or TRAINED not in self.by_depth or not {"train", "test"} <= set(self.samples):
            return "it has no draws, no sites or no numbers of samples"
        if set(self.parts) != {"samples", "draws"}:
            return f"its parts are {shown(sorted(self.parts))} where they should be of samples and draws"
        if not all(0 <= share <= 1 for share in (*shares, self.without_all or 0.0, self.pixels or 0.0)):
            return "an accuracy in it is not between 0 and 1"
        if min(self.samples.values()) < 1:
            return f"it is of {min(self.samples.values())} samples"
        if self.interval[0] > self.interval[1]:
            return f"its interval ends, {self.interval[1]:g}, before it begins, {self.interval[0]:g}"
        gain = 100 * (self.trained - self.random)
        return (
            "" if abs(gain - self.worth_pp) < 0.1 else f"worth_pp is {self.worth_pp:g} where accuracies give {gain:g}"
        )

    def __str__(self) -> str:
        low, high = self.interval
        lines = [
            f"trained blocks are worth {self.worth_pp:+z.1f} pp [{low:+z.1f}, {high:+z.1f}]",
            f"accuracy {self.trained:.3f} with them, {self.random:.3f} with random ones "
            f"({len(self.rerandomised)} draws), all readouts refitted on {self.samples['train']} samples",
            "site            " + " ".join(f"{site:>6}" for site in range(len(self.by_depth[TRAINED]))),
        ]
        lines += [f"{name:15} " + " ".join(f"{a:6.3f}" for a in values) for name, values in self.by_depth.items()]
        if self.without is not None:
            lines.append("without block " + " " * 9 + " ".join(f"{a:6.3f}" for a in self.without))
        if self.within_draws:
            lines.insert(2, WITHIN_DRAWS)
        floors = [("stem alone", self.without_all), ("inputs alone", self.pixels)]
        return "\n".join([*lines, *(f"{name}: {a:.3f}" for name, a in floors if a is not None)])
