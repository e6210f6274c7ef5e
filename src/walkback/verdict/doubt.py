"""Findings with their intervals: undecided where one straddles its limit, or judged on the value alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from walkback.measures.measurements import Measurements
from walkback.verdict.findings import Finding
from walkback.verdict.statistics import of_norms


def in_doubt(found: Finding, m: Measurements, name: str, unit: str = "") -> Finding:
    """Return a finding of "growth", "g_norm_deepest" or "cosine_error" with its interval, over samples or over seeds.

    It is undecided where the interval straddles the limit. Without an interval it is returned as it is.
    """
    of = of_norms(m, name, found.value)
    if of is None:
        return found
    found = replace(found, interval=of.interval, parts=of.parts or None)
    if not of.straddles(found.limit):
        return found
    why, more = of.undecided(found.limit, unit), of.more(found.limit)
    return replace(found, flagged=None, reason=why, cause="straddles", more=more)


def on_value(of: Callable[..., Finding]) -> Callable[..., Finding]:
    """Return a check by the published logic: its value decides, and the interval is shown beside it."""

    def check(name: str, m: Measurements, t: Any, claim: Any = None) -> Finding:
        found = of(name, m, t, claim)
        bare = of(name, replace(m, growth_low=None, g_norm_deepest_low=None), t, claim)
        return replace(bare, interval=found.interval, parts=found.parts)

    return check
