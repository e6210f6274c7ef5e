"""Measurements judged: Measurements, Claim -> Report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from walkback.errors import InputError, shown
from walkback.measures.measurements import Measurements, deep_of
from walkback.measures.over_sites import cosine_error, mean
from walkback.measures.quantities import PER_SITE, PROBE_LISTS, SCALARS
from walkback.measures.worth import Depth
from walkback.notes import Note
from walkback.registry import texts
from walkback.report.numbers import NOT_MEASURED
from walkback.report.report import Report
from walkback.verdict.checks import DiagnosticThresholds
from walkback.verdict.claim import CONTROL, Accuracy, Claim, accuracies
from walkback.verdict.editions import decide
from walkback.verdict.findings import Verdict
from walkback.verdict.notes import clamped_readable, credit_exact, notes_on, unclamped_exact
from walkback.verdict.statistics import one_per_seed, paired_counts


def make_report(
    m: Measurements,
    claim: Claim,
    thresholds: DiagnosticThresholds,
    edition: str,
    method: str = "",
    notes: str = "",
    run: Mapping[str, Any] | None = None,
) -> Report:
    """Judge measurements and put everything a reader needs into a Report."""
    v = decide(m, claim, thresholds, edition)
    judged = _judged(m, v)
    values = {q.name: getattr(m, q.name) if q.measured else judged[q.name] for q in SCALARS}
    per_layer = {q.name: (getattr(m, q.name) or None) if q.measured else m.probes.get(q.name) for q in PER_SITE}
    missing = {name for name, value in {**values, **per_layer}.items() if value is None}
    reasons = dict.fromkeys(sorted(missing), NOT_MEASURED) | m.reasons
    if v["depth"].reason and v["depth"].value is None:
        reasons["depth_margin_pp"] = v["depth"].reason
    asked = m.conditions.get("intrinsic")
    if credit_exact(m) is None and isinstance(asked, Mapping) and asked.get("credit"):
        reasons["credit_exact"] = str(asked["credit"])
    remark = [Note("remark", None, {"text": str(notes)})] if notes else []
    return Report(
        edition=v.edition,
        verdict=v.verdict,
        failed=v.failed,
        measurement_valid=v.measurement_valid,
        clamped_readable=clamped_readable(m, thresholds),
        unclamped_exact=unclamped_exact(m, thresholds),
        credit_exact=credit_exact(m),
        depth_used=v.depth_used,
        submode=v.submode,
        nonfinite=tuple({**note.values, "site": note.site} for note in m.nonfinite),
        altered=None if m.altered is None else dict(m.altered.values),
        doubted=None if m.doubted is None else dict(m.doubted.values),
        values=values,
        per_layer=per_layer,
        thresholds=asdict(thresholds),
        chain=tuple(asdict(step) for step in v.chain),
        findings=tuple({**asdict(f), "interval": None if f.interval is None else list(f.interval)} for f in v.findings),
        method=method,
        notes=(*remark, *notes_on(v, m, claim, thresholds)),
        headline_acc=_plain(claim.accuracy),
        frozen_baseline_acc=_plain(claim.frozen),
        bp_acc=_plain(claim.bp),
        aggregates=m.aggregates,
        controls={k: v for k, v in m.probes.items() if k not in per_layer},
        run=dict(run or {}),
        depth=None if claim.depth is None else _depth_of_one(claim.depth).to_dict(),
        conditions=_conditions(m, claim),
        reasons=reasons,
    )


def named(method: str, method_name: str, notes: str) -> str:
    """Return what a report calls the method, by either of its keywords; both at once are an InputError."""
    texts(method=method, method_name=method_name, notes=notes)
    if method and method_name:
        raise InputError(f"Expected method= or method_name=, but got both: {shown(method)} and {shown(method_name)}.")
    return method or method_name


def _judged(m: Measurements, v: Verdict) -> dict[str, float | None]:
    """Return the scalars that are no fields of Measurements."""
    deep = deep_of(m.cosine, m.conditions)
    probes = {name: m.probes.get(name) for name in PROBE_LISTS}
    return {
        "g_norm_deepest": m.g_norm[-1] if m.g_norm else None,
        "depth_margin_pp": v["depth"].value,
        "cosine_error": cosine_error(m.float64_disagreement, m.float64_shift)[0],
        **{f"deep_{name}": mean([values[i] for i in deep]) if values else None for name, values in probes.items()},
    }


def _conditions(m: Measurements, claim: Claim) -> dict[str, Any]:
    """Return the measurement's conditions and what judges D3 beside the accuracies: a report can be judged again."""
    others = {name: _plain(value) for name, value in claim.controls.items()}
    judging = {
        "paired": _counts(claim),
        "bp_frozen_acc": _plain(claim.bp_frozen),
        "primary": None if claim.primary == CONTROL else claim.primary,
        "test_samples": claim.test_samples,
        "controls": others or None,
        "control": claim.control if others else None,
    }
    measured = {k: v for k, v in m.conditions.items() if k not in judging}  # of a report they are those of its claim
    return measured | {k: v for k, v in judging.items() if v is not None}


def _counts(claim: Claim) -> Any:
    """Return paired predictions as counts: of one seed, or one per seed; None without any."""
    if claim.correct is None:
        return None
    seeds = len(accuracies("headline_acc", claim.accuracy)) if claim.accuracy is not None else 1
    each = [paired_counts(pair) for pair in one_per_seed(claim.correct, seeds)]
    return each[0] if seeds == 1 else each


def _depth_of_one(depth: Depth | tuple[Depth, ...]) -> Depth:
    """Return the depth of the one network that a report is of."""
    if isinstance(depth, Depth):
        return depth
    raise InputError(
        f"Expected depth of the one network that the report is of, but got those of {len(depth)} seeds. Several seeds "
        "are judged together from their runs: walkback report STORE."
    )


def _plain(value: Accuracy) -> float | list[float] | None:
    return value if value is None else float(value) if isinstance(value, (int, float)) else [float(v) for v in value]
