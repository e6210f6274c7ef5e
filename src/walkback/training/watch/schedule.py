"""When a watch measures: after so many steps or epochs, and within a share of the time. No clock, no network."""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal

from walkback.errors import InputError, shown
from walkback.progress import say

DEFAULT_OVERHEAD = 0.02
UNHEARD = 1000  # steps without an epoch after which it is said that only epoch() measures
Count = Literal["steps", "epochs"]


def cadence(every: str | int) -> tuple[str, int]:
    """Return ("epoch" or "step", how many) or ("auto", 1).

    >>> cadence("epoch"), cadence("5 epochs"), cadence(100), cadence("auto")
    (('epoch', 1), ('epoch', 5), ('step', 100), ('auto', 1))
    """
    if isinstance(every, int) and not isinstance(every, bool) and every > 0:
        return "step", every
    if isinstance(every, str) and every == "auto":
        return "auto", 1
    words = re.fullmatch(r"(?:([1-9]\d*) )?(epoch|step)s?", every) if isinstance(every, str) else None
    if words is None:
        known = '"epoch", "5 epochs", a number of steps, or "auto"'
        raise InputError(f"Expected every to be {known}, but got {shown(every)}.")
    return words[2], int(words[1] or 1)


@dataclass
class Schedule:
    """Counts steps, epochs and seconds, and says when a measurement is due and when it fits into the budget."""

    unit: str  # "epoch", "step" or "auto", as `cadence` reads it
    n: int = 1  # how many of them lie between two measurements
    share: float | None = None  # of the time that measuring may take; None is no limit
    start: float = 0.0  # the time at which the watch began
    cost: float = 0.0  # seconds that the next measurement is expected to take
    spent: float = 0.0  # seconds that measuring has taken
    last: float = 0.0  # the time at which the last measurement ended
    steps: int = 0
    epochs: int = 0
    least: dict[str, int] = field(default_factory=lambda: {"steps": 0, "epochs": 0})  # counts never go back behind it
    calls: dict[str, int] = field(default_factory=lambda: {"steps": 0, "epochs": 0})
    look: int = 1  # the call of step() at which "auto" looks at its budget again

    @staticmethod
    def of(every: str | int, max_overhead: float | None = None, now: float = 0.0) -> Schedule:
        """Return the schedule of `Watch(every=, max_overhead=)`, or raise an InputError where they are wrong."""
        unit, n = cadence(every)
        if max_overhead is not None and (not isinstance(max_overhead, Real) or not 0 < max_overhead <= 1):
            raise InputError(
                f"Expected max_overhead as a share of wall time, over 0 to 1, but got {shown(max_overhead)}."
            )
        share = DEFAULT_OVERHEAD if max_overhead is None and unit == "auto" else max_overhead
        return Schedule(unit, n, share, start=now, last=now)

    def step(self, number: int | None = None) -> bool:
        """Count a step, or set the count; return whether a measurement is due."""
        # Trainers with several optimisers take more than one step at a time, so multiples of n may be jumped over.
        before = self._count("steps", number)
        if self.unit == "epoch" and self.calls["steps"] == UNHEARD and not self.calls["epochs"]:
            say(f"note: {UNHEARD:,} steps, and nothing measured yet: {self.unheard()}")
        passed = self.unit == "step" and self.steps // self.n > before // self.n
        return passed or (self.unit == "auto" and self.calls["steps"] >= self.look)

    def epoch(self, number: int | None = None) -> bool:
        """Count an epoch, or set the count; return whether a measurement is due."""
        before = self._count("epochs", number)
        return self.unit == "auto" or (self.unit == "epoch" and self.epochs // self.n > before // self.n)

    def _count(self, name: Count, number: int | None) -> int:
        """Return how many there were before."""
        before, least = getattr(self, name), self.least[name]
        now = before + 1 if number is None else number
        if isinstance(now, bool) or not isinstance(now, int) or (number is not None and now < least):
            raise InputError(f"Expected the number of {name} as a whole number from {least} on, but got {shown(now)}.")
        self.least[name] = now
        self.calls[name] += 1
        setattr(self, name, now)
        return before if now >= before else now - 1  # back: training went on from an older checkpoint

    def affordable(self, now: float) -> tuple[bool, int]:
        """Return whether a measurement fits into the budget now, and the call of step() at which to look again."""
        if self.share is None:
            return True, self.look
        # It must fit into the time that will have passed when it is done, in all and since the last one: what was
        # saved so far is not spent on many measurements in a row.
        calls, elapsed = self.calls["steps"], now - self.start
        in_all, since = (self.spent + self.cost) / self.share - elapsed, self.cost / self.share - (now - self.last)
        wait = max(in_all, since) - self.cost
        if wait <= 0:
            return True, calls + 1
        each = (elapsed - self.spent) / calls if calls else 0.0
        guess = math.ceil(wait / each) if each > 0 else 1
        return False, calls + max(1, min(guess, calls))  # not far ahead on the pace of the first steps

    def overhead(self, now: float, running: float = 0.0) -> float:
        """Return the share of the time that measuring has taken, with `running` seconds of a measurement under way."""
        return (self.spent + running) / (now - self.start) if now > self.start else 0.0

    def unheard(self) -> str:
        """Return what is wrong where only the other of step() and epoch() is called than the one that `every` needs."""
        needed, other = ("epoch", "step") if self.unit == "epoch" else ("step", "epoch")
        calls = self.calls[f"{other}s"]
        if self.unit == "auto" or self.calls[f"{needed}s"] or not calls:
            return ""
        every = f'"{needed}"' if needed == "epoch" and self.n == 1 else f'"{self.n} {needed}s"'
        often = f"{calls} call{'s' if calls > 1 else ''} of {other}()"
        return f"every={every} measures when {needed}() is called, but it was never called in {often}"

    def warn_unheard(self) -> None:
        """Warn of it, where a watch ends."""
        if unheard := self.unheard():
            warnings.warn(f"Nothing was measured on the way: {unheard}.", stacklevel=3)

    def state_dict(self, now: float) -> dict[str, Any]:
        """Return the counts, and the seconds as they are counted from `now` on."""
        counts = {"steps": self.steps, "epochs": self.epochs, "least": dict(self.least), "calls": dict(self.calls)}
        seconds = {"elapsed": now - self.start, "since": now - self.last, "spent": self.spent, "cost": self.cost}
        return counts | seconds | {"look": self.look}

    def load_state_dict(self, state: dict[str, Any], now: float) -> None:
        """Go on from a state: the time since it was saved does not count."""
        self.start, self.last = now - state["elapsed"], now - state["since"]
        self.least, self.calls = dict(state["least"]), dict(state["calls"])
        for name in ("steps", "epochs", "spent", "cost", "look"):
            setattr(self, name, state[name])
