"""Several seeds, one verdict: the mean's interval decides, by a rule that is fixed before any of them is seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp
from typing import Any

from walkback.measures.measurements import Measurements
from walkback.verdict.findings import UNDECIDED, WALKED_BACK, Verdict
from walkback.verdict.statistics import mean_ratio

RULE = (
    "several seeds: the 95 % interval of their mean decides, of growth and ‖g_L‖ that of the geometric mean; (k/n) "
    "says on how many of the seeds alone a check flags, and decides nothing"
)


def last(values: Sequence[Any]) -> Any:
    """Return the value of the last site, None where there is none."""
    return values[-1] if values else None


def over_seeds(every: Sequence[Measurements]) -> Measurements:
    """Return the measurements of several seeds as one: geometric means of growth and ‖g_L‖, with their intervals.

    One seed is returned as it was measured. One that is not finite, or whose reference is altered, speaks for all: then
    the mean has no value.
    """
    if len(every) == 1:
        return every[0]
    first = every[0]
    nonfinite = tuple(note for m in every for note in m.nonfinite)
    altered = next((m.altered for m in every if m.altered), None)
    pooled, errors = {}, {}
    for name, of in (("growth", lambda m: m.growth), ("g_norm_deepest", lambda m: last(m.g_norm))):
        known = [(value, _interval(m, name)) for m in every if (value := of(m))]
        if len(known) < len(every):
            continue  # a mean over the others would leave the odd one out
        mean, logs = mean_ratio(*zip(*known))
        low, high = map(exp, logs.interval or (logs.value, logs.value))
        pooled |= {name: mean, f"{name}_low": low, f"{name}_high": high}
        errors[name] = {part: [error, logs.counts[part]] for part, error in logs.parts.items()}
    deepest = pooled.pop("g_norm_deepest", None)
    stability = [m.stability for m in every if m.stability is not None]
    return Measurements(
        **pooled,
        g_norm=[] if deepest is None else [deepest],
        h_norm=first.h_norm if "growth" not in pooled else [],
        stability=sum(stability) / len(stability) if stability else None,
        nonfinite=nonfinite,
        altered=altered,
        dtype=first.dtype,
        conditions={**first.conditions, "seeds": len(every), "log_errors": errors},
        reasons=first.reasons,
    )


def _interval(m: Measurements, name: str) -> tuple[float, float, int] | None:
    low, high, samples = getattr(m, f"{name}_low"), getattr(m, f"{name}_high"), m.conditions.get("samples")
    return None if low is None or high is None or not samples else (low, high, int(samples))


def reopened(verdict: Verdict, name: str, reason: str, more: dict[str, int] | None = None) -> Verdict:
    """Return a verdict whose depth is undecided after all, by a named finding, and what more would decide it."""
    depth = verdict[name]
    after_all = replace(depth, flagged=None, reason=reason, cause="straddles", more=more)
    findings = tuple(after_all if f is depth else f for f in verdict.findings)
    failed = tuple(check for check in verdict.failed if check != depth.check)
    word = WALKED_BACK if failed else UNDECIDED
    return replace(verdict, verdict=word, failed=failed, depth_used=None, findings=findings)
