"""Numbers against limits: Measurements, Claim -> Findings. One function per check; `editions.py` says what they decide.

Every check has the signature (name, measurements, thresholds, claim), so that any of them can stand in any edition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from sys import float_info

from walkback.errors import InputError, shown
from walkback.measures.dtypes import SMALLEST, dtype_name
from walkback.measures.measurements import Measurements, comparable
from walkback.measures.over_sites import block_growth, cosine_error, growth
from walkback.registry import is_number
from walkback.verdict.claim import Accuracy, Claim, Correct
from walkback.verdict.doubt import in_doubt
from walkback.verdict.files import Stored
from walkback.verdict.findings import Finding
from walkback.verdict.statistics import mean_gain, paired_margin


@dataclass(frozen=True)
class DiagnosticThresholds(Stored):
    """Where the checks flag. The defaults are the published ones.

    Args:
        g_norm_floor: D2 and (b) flag under this ‖g_L‖ (per-sample norm ÷ 128).
        h_norm_explosion_ratio: D1 and (a) flag above this growth of one block.
        stability_drift_ceiling: (c) calls a failed reference drift-dominated above this.
        frozen_acc_margin_pp: D3, (d) and D3-outcome flag under this gain over random blocks, in percentage points.
        cosine_error_limit: D2 of the intrinsic edition flags where rounding puts a reported cosine further off.

    >>> DiagnosticThresholds(h_norm_explosion_ratio=20.0).g_norm_floor
    1e-07
    """

    g_norm_floor: float = 1e-7
    h_norm_explosion_ratio: float = 50.0
    stability_drift_ceiling: float = 0.30
    frozen_acc_margin_pp: float = 2.0
    cosine_error_limit: float = 0.05

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not is_number(value):
                raise InputError(f"Expected {name} to be a finite number, but got {shown(value)}.")
            object.__setattr__(self, name, float(value))  # NumPy's scalars too: they don't go into JSON
        for name in ("g_norm_floor", "h_norm_explosion_ratio", "cosine_error_limit"):
            if getattr(self, name) <= 0:
                raise InputError(f"Expected {name} to be positive, but got {shown(getattr(self, name))}.")


NOT_THE_GRADIENT = "the reference is not the derivative of the loss: the network's own backward pass is altered"


def scale_stability(check: str, m: Measurements, t: DiagnosticThresholds, _: Claim | None = None) -> Finding:
    """Judge D1 and (a): does one block multiply the stream? Flags where growth is above h_norm_explosion_ratio.

    Where growth has no value because some norm is missing or zero, the ratios that are left can still flag, but not
    pass: the largest may be hidden.
    """
    limit, sizes = t.h_norm_explosion_ratio, comparable(m.h_norm_all or m.h_norm, m.conditions)
    value, flagged, why, cause = m.growth, None if m.growth is None else m.growth > limit, "", ""
    least = max(block_growth(*sizes).values(), default=0.0) if m.growth is None else 0.0
    if "state" in m.nonfinite_kinds:
        value, flagged, why, cause = None, True, _first_nonfinite(m, "state"), "nonfinite"
    elif least > limit:
        # A ratio that overflows can't be written in JSON.
        value, flagged, cause = min(least, float_info.max), True, "partial"
        why = f"at least: {growth(*sizes)[2]}"
    elif flagged is None:
        cause = _missing(m.h_norm)
        why = "no state norms were given" if cause == "not-given" else growth(*sizes)[2]
        why = m.reasons.get("growth", why)
    found = Finding(check, "scale stability", value, limit, f"> {limit:g}", flagged, why, cause=cause)
    return found if cause else in_doubt(found, m, "growth", "x")


def reference_validity(check: str, m: Measurements, floor: float) -> Finding:
    """Judge D2 and (b): is ‖g_L‖, which credit is compared with, above the floor of the cosine?"""
    deepest = m.g_norm[-1] if m.g_norm else None
    why, cause = _no_reference(m)
    flagged = True if cause else None if deepest is None else deepest < floor
    if flagged is None:
        why, cause = m.reasons.get("g_norm", "no gradient norms were given"), _missing(m.g_norm)
    found = Finding(check, "reference validity", deepest, floor, f"< {floor:.3g}", flagged, why, cause=cause)
    return found if cause else in_doubt(found, m, "g_norm_deepest")


def reference_above_epsilon(check: str, m: Measurements, t: DiagnosticThresholds, _: Claim | None = None) -> Finding:
    """Judge D2: flags under 10·ε, which is g_norm_floor where ε is the cosine's 1e-8, and higher where dtypes end."""
    return reference_validity(check, m, dtype_floor(m, t))


def reference_above_floor(check: str, m: Measurements, t: DiagnosticThresholds, _: Claim | None = None) -> Finding:
    """Judge (b): flags under g_norm_floor, whatever the dtype."""
    return reference_validity(check, m, t.g_norm_floor)


def dtype_floor(m: Measurements, t: DiagnosticThresholds) -> float:
    """Return D2's floor, 10·ε: as published where ε is the cosine's 1e-8, higher where the dtype ends before it."""
    return max(t.g_norm_floor, 10 * SMALLEST[dtype_name(m.dtype)])


def reference_precision(check: str, m: Measurements, t: DiagnosticThresholds, _: Claim | None = None) -> Finding:
    """Judge D2, intrinsic: how far does rounding put a cosine off at the worst site? Flags above cosine_error_limit."""
    limit, (error, _site) = t.cosine_error_limit, cosine_error(m.float64_disagreement, m.float64_shift)
    why, cause = _no_reference(m)
    flagged = True if cause else None if error is None else error > limit
    if flagged is None:
        why = m.reasons.get("float64_disagreement", "the reference was not computed again in float64")
        cause = "not-measured"
    found = Finding(check, "reference precision", error, limit, f"> {limit:g}", flagged, why, cause=cause)
    return found if cause else in_doubt(found, m, "cosine_error")


def direction_stability(check: str, m: Measurements, t: DiagnosticThresholds, _: Claim | None = None) -> Finding:
    """Judge (c): is the reference one global direction? Flag above stability_drift_ceiling; name the sub-mode only."""
    limit = t.stability_drift_ceiling
    flagged = None if m.stability is None else m.stability > limit
    why = "" if flagged is not None else m.reasons.get("stability", "no stability was given")
    cause = "" if flagged is not None else "not-measured"
    return Finding(check, "direction stability", m.stability, limit, f"> {limit:g}", flagged, why, cause=cause)


def depth_of_claim(check: str, _: Measurements, t: DiagnosticThresholds, claim: Claim) -> Finding:
    """Judge D3 and (d): `depth_utility` of what is claimed."""
    if t not in claim.depth_by:
        given = claim.control_accuracy, t, claim.bp, claim.bp_frozen, claim.correct, claim.test_samples
        claim.depth_by[t] = depth_utility(check, claim.accuracy, *given)
    return replace(claim.depth_by[t], check=check)


def depth_utility(
    check: str,
    headline: Accuracy,
    frozen: Accuracy,
    t: DiagnosticThresholds,
    bp: Accuracy = None,
    bp_frozen: Accuracy = None,
    correct: Correct | Sequence[Correct] | None = None,
    test_samples: int | None = None,
) -> Finding:
    """Judge D3 and (d): do the trained blocks beat frozen random ones? Flags under frozen_acc_margin_pp.

    The 95 % interval of the mean gain decides, over seeds and over test samples together as far as they are given
    (`paired_margin`); one that straddles the margin decides nothing. Where BP does not gain the margin over its own
    frozen control (`frozen` without one), the task can't show depth.
    """
    limit = t.frozen_acc_margin_pp
    title, when = "depth utility", f"< {limit:g} pp"
    if headline is None or frozen is None:
        missing = [n for n, v in (("headline_acc", headline), ("frozen_baseline_acc", frozen)) if v is None]
        why = f"not tested: {' and '.join(missing)} not given"
        return Finding(check, title, None, limit, when, None, why, cause="not-given")
    of = paired_margin(headline, frozen, correct, test_samples)
    margin, interval, more = of.value, of.interval, None
    gain = None if bp is None else mean_gain(bp, frozen if bp_frozen is None else bp_frozen)
    if gain is not None and gain < limit:
        why = f"BP itself gains only {gain:z.1f} pp over frozen blocks: this task can't show depth"
        return Finding(check, title, margin, limit, when, None, why, interval, "task", of.parts or None)
    flagged, why, cause = margin < limit, "", ""
    if of.straddles(limit):
        flagged, why, cause, more = None, of.undecided(limit, "pp"), "straddles", of.more(limit)
    return Finding(
        check, title, margin, limit, when, flagged, why, interval, cause, of.parts or None, of.p(limit), more
    )


def _no_reference(m: Measurements) -> tuple[str, str]:
    """Return why there is no gradient to compare with, in words and as a cause; ("", "") where there is one."""
    if m.nonfinite_kinds:
        return _first_nonfinite(m, "gradient"), "nonfinite"
    return (NOT_THE_GRADIENT, "altered") if m.altered else ("", "")


def _first_nonfinite(m: Measurements, kind: str) -> str:
    return next((note for note in m.nonfinite if note.values["kind"] == kind), m.nonfinite[0]).text


def _missing(given: Sequence[float | None]) -> str:
    """Return why a check of norms could not be tested: they were not given, or they can't be read."""
    return "not-measured" if any(n is not None for n in given) else "not-given"
