"""Measurements judged: Measurements, Claim -> Report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from walkback.measures.accumulate import Measurements, cosine_error, deep_sites, mean
from walkback.notes import Note
from walkback.report.report import Report
from walkback.verdict.advisories import on_claim
from walkback.verdict.checks import (
    Accuracy,
    DiagnosticThresholds,
    dtype_floor,
    paired_counts,
    reference_precision,
    reference_validity,
)
from walkback.verdict.editions import Claim, decide, is_concentrated

# Per-layer fields of Measurements beyond the published ones, by where they come from.
PUBLISHED = ("h_norm", "g_norm", "cosine", "cosine_clamped", "below_eps")
SHIFTED = ("cosine_above", "cosine_below", "gradient_next")
NULLS = ("cosine_low", "cosine_high", "null_low", "null_high", "null_dimension")
PRECISION = ("float64_disagreement", "float64_shift", "epsilon_share", "absorption")


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
    depth = v.findings[-1]
    values = {
        "growth": m.growth,
        "growth_total": m.growth_total,
        "g_norm_deepest": m.g_norm[-1] if m.g_norm else None,
        "stability": m.stability,
        "depth_margin_pp": depth.value,
        "gamma": m.gamma,
        "gamma_concentration": m.gamma_concentration,
        "deep_cosine": m.deep_cosine,
        "cosine_error": cosine_error(m.float64_disagreement, m.float64_shift)[0],
        "stability_distinct": m.stability_distinct,
        **{f"deep_{name}": _deep(m, name) for name in ("perturbation", "nudging", "nudging_relative", "nudging_rms")},
    }
    per_layer = {
        **{name: getattr(m, name) or None for name in (*PUBLISHED, "zero_credit")},
        **{name: m.probes.get(name) for name in ("perturbation", "nudging", "nudging_relative", "nudging_rms")},
        **{name: getattr(m, name) or None for name in (*SHIFTED, *NULLS, *PRECISION)},
    }
    reasons = dict(m.reasons)
    for name, value in {**values, **per_layer}.items():
        if value is None and name not in reasons:
            reasons[name] = "not measured"
    if depth.reason and depth.value is None:
        reasons["depth_margin_pp"] = depth.reason
    of_reference = [note for note in (m.altered, m.doubted) if note is not None]
    told = [*m.nonfinite, *of_reference, *m.notes, *on_claim(m, claim, thresholds)]
    if v.measurement_valid is False and not v.failed:
        told.append(Note("reference-under-floor"))
    told += [*editions_differ(m, thresholds, edition), *_clamp_decides(m, edition)]
    if is_concentrated(m):
        told.append(Note("concentrated", _loudest(m), {"share": m.gamma_concentration}))
    remark = [Note("remark", None, {"text": str(notes)})] if notes else []
    return Report(
        edition=v.edition,
        verdict=v.verdict,
        failed=v.failed,
        measurement_valid=v.measurement_valid,
        clamped_readable=clamped_readable(m, thresholds),
        unclamped_exact=unclamped_exact(m, thresholds),
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
        notes=(*remark, *told),
        headline_acc=_plain(claim.headline),
        frozen_baseline_acc=_plain(claim.frozen),
        bp_acc=_plain(claim.bp),
        aggregates=m.aggregates,
        controls={k: v for k, v in m.probes.items() if k not in per_layer},
        run=dict(run or {}),
        conditions=_conditions(m, claim),
        reasons=reasons,
    )


def _conditions(m: Measurements, claim: Claim) -> dict[str, Any]:
    """Those of the measurement, and what judges D3 beside the accuracies, so that a report can be judged again."""
    paired = None if claim.correct is None else paired_counts(claim.correct)
    judging = {"paired": paired, "bp_frozen_acc": _plain(claim.bp_frozen)}
    measured = {k: v for k, v in m.conditions.items() if k not in judging}  # of a report they are those of its claim
    return measured | {k: v for k, v in judging.items() if v is not None}


def editions_differ(m: Measurements, thresholds: DiagnosticThresholds, edition: str) -> list[Note]:
    """Where the published reading of the reference and the intrinsic one differ, and both were taken."""
    if m.nonfinite or m.altered:
        return []
    floor = thresholds.g_norm_floor if edition == "four-diagnostic" else dtype_floor(m, thresholds)
    published = reference_validity("D2", m, floor)
    exact = reference_precision("D2", m, thresholds)
    if None in (published.flagged, exact.flagged) or published.flagged == exact.flagged:
        return []
    values = {"edition": edition, "exact": not exact.flagged, "error": exact.value}
    return [Note("editions-differ", None, {**values, "g_norm": published.value, "floor": floor})]


def _clamp_decides(m: Measurements, edition: str) -> list[Note]:
    """What a clamped cosine would have said, in the edition that does not judge by its floor."""
    both = enumerate(zip(m.cosine, m.cosine_clamped))
    off = [(abs(a - b), site) for site, (a, b) in both if a is not None and b is not None]
    error, site = max(off, default=(0.0, 0))
    if edition != "intrinsic" or m.nonfinite or error <= 0.005:
        return []
    return [Note("clamp-decides", site, {"error": error})]


def clamped_readable(m: Measurements, thresholds: DiagnosticThresholds) -> bool | None:
    """Is the cosine as scripts compute it, with ε in its denominator, readable in this dtype? None: not measured."""
    finding = reference_validity("D2", m, dtype_floor(m, thresholds))
    return None if finding.flagged is None else not finding.flagged


def unclamped_exact(m: Measurements, thresholds: DiagnosticThresholds) -> bool | None:
    """Is the cosine without a clamp the one that float64 gives? None where that was not asked."""
    finding = reference_precision("D2", m, thresholds)
    return None if finding.flagged is None else not finding.flagged


def _loudest(m: Measurements) -> int:
    """The site that carries most of Γ."""
    return max(range(len(m.cosine) - 1), key=lambda site: abs(m.cosine[site] or 0.0))


def _deep(m: Measurements, probe: str) -> float | None:
    values = m.probes.get(probe)
    return None if values is None else mean([values[site] for site in deep_sites(m.cosine)])


def _plain(value: Accuracy) -> float | list[float] | None:
    return value if value is None else float(value) if isinstance(value, (int, float)) else [float(v) for v in value]
