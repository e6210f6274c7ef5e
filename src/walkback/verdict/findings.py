"""What a check answers, and what an edition makes of the answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from walkback.errors import InputError

PASSES, WALKED_BACK, UNDECIDED = "passes", "walked back", "undecided"

# Checks by their published names -> what they are about. Code asks this; titles are for people.
ABOUT = {
    **dict.fromkeys(("D1", "a"), "growth"),
    **dict.fromkeys(("D2", "b"), "reference"),
    **dict.fromkeys(("D3", "d"), "depth"),
    "c": "stability",
    "D3-outcome": "outcome",
}
DEPTH = ("depth", "outcome")  # the two checks of depth


# Many fields, since they are what a report keeps of a check.
@dataclass(frozen=True)
class Finding:
    """One check's answer. `flagged` is None when it could not be decided; then `cause` says why as a code (CAUSES),
    and `reason` in words. A flag that rests on something else than its value has a cause too. One that is `beside`
    is shown next to the check that decides the same question, and decides nothing itself.
    """

    check: str
    title: str
    value: float | None
    limit: float
    flags_when: str
    flagged: bool | None
    reason: str = ""
    interval: tuple[float, float] | None = None
    cause: str = ""
    # Where the interval's width comes from: standard errors by "seeds" and "samples", of a norm those of its logarithm.
    parts: dict[str, float] | None = None
    p: float | None = None  # how likely a value so far from the limit would be at the limit
    more: dict[str, int] | None = None  # how many more seeds, or samples, would decide what the interval leaves open
    beside: bool = False  # shown next to the check that decides the same question

    @property
    def straddles(self) -> bool:
        """Was it tested, with an interval that has the limit inside?"""
        return self.cause == "straddles"


def about(finding: Finding | Mapping[str, Any]) -> str:
    """Return what a finding, or one that a report stores, is about: a value of ABOUT, "" for a check of no edition.

    >>> about({"check": "b", "title": "any words"})
    'reference'
    """
    return ABOUT.get(finding.check if isinstance(finding, Finding) else finding["check"], "")


def all_clear(*findings: Finding) -> bool | None:
    """Return False where one flags, None where one was not decided, else True."""
    flags = [f.flagged for f in findings]
    return False if True in flags else None if None in flags else True


CAUSES = {
    "not-given": "what it needs was not given",
    "not-measured": "what it needs could not be measured",
    "straddles": "its interval has the limit inside",
    "task": "BP itself does not beat frozen blocks on this task",
    "nonfinite": "a state or gradient is not finite",
    "altered": "the reference is not the derivative of the loss",
    "partial": "the value is a lower bound: some of it is missing",
}


@dataclass(frozen=True)
class ChainStep:
    """One step of the walk-back chain: a question, its answer, and whether the claim survives it."""

    step: int
    title: str
    text: str
    holds: bool | None


@dataclass(frozen=True)
class Verdict:
    """What an edition makes of the findings. True / False / None (not tested) for the two questions.

    `failed` names the checks that walk the claim back; a finding can be flagged without doing so. A finding is had by
    what it is about, `verdict["depth"]`, or by its check, `verdict["D3"]`.
    """

    edition: str
    verdict: str
    failed: tuple[str, ...]
    measurement_valid: bool | None
    depth_used: bool | None
    submode: str | None
    findings: tuple[Finding, ...]
    chain: tuple[ChainStep, ...]
    names: tuple[str, ...]

    def __getitem__(self, name: str) -> Finding:
        known = dict(zip(self.names, self.findings)) | {f.check: f for f in self.findings}
        if name not in known:
            raise InputError(f"Expected the name of a finding, one of {', '.join(known)}, but got {name!r}.")
        return known[name]
