"""Findings to verdict: the two published editions of the protocol and the intrinsic one, each one readable rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import prod

from walkback.errors import InputError
from walkback.measures.accumulate import Measurements, cosine_error
from walkback.verdict.checks import (
    CONCENTRATED,
    Accuracy,
    Correct,
    DiagnosticThresholds,
    Finding,
    accuracies,
    depth_utility,
    direction_stability,
    dtype_floor,
    reference_precision,
    reference_validity,
    scale_stability,
)

PASSES, WALKED_BACK, UNDECIDED = "passes", "walked back", "undecided"


@dataclass(frozen=True)
class Claim:
    """What is claimed for a network: accuracies as fractions, one or one per seed.

    `bp` is the accuracy of backpropagation on the same task, if known, and `bp_frozen` that of its own control:
    where BP does not beat frozen blocks either, the task can't show depth and D3 is not tested. `correct` says, for
    one seed, which test samples the network and its control get right.
    """

    headline: Accuracy = None
    frozen: Accuracy = None
    bp: Accuracy = None
    bp_frozen: Accuracy = None
    correct: Correct | None = None

    def __post_init__(self) -> None:
        names = {"headline": "headline_acc", "frozen": "frozen_baseline_acc", "bp": "bp_acc"}
        names["bp_frozen"] = "bp_frozen_acc"
        if self.bp is None and self.bp_frozen is not None:
            raise InputError(
                "Expected bp_acc beside bp_frozen_acc, its frozen control, but got none. Pass both, or neither."
            )
        for field, name in names.items():
            value = getattr(self, field)
            if value is not None:
                plain = accuracies(name, value)
                several = isinstance(value, Iterable) and getattr(value, "ndim", 1) > 0
                object.__setattr__(self, field, plain if several else plain[0])


@dataclass(frozen=True)
class Step:
    """One step of the walk-back chain: a question, its answer, and whether the claim survives it."""

    step: int
    title: str
    text: str
    holds: bool | None


@dataclass(frozen=True)
class Verdict:
    """What an edition makes of the findings. True / False / None (not tested) for the two questions.

    `failed` names the checks that walk the claim back; a finding can be flagged without doing so.
    """

    edition: str
    verdict: str
    failed: tuple[str, ...]
    measurement_valid: bool | None
    depth_used: bool | None
    submode: str | None
    findings: tuple[Finding, ...]
    chain: tuple[Step, ...]


def three_check(m: Measurements, claim: Claim, t: DiagnosticThresholds) -> Verdict:
    """Fails if (D1 and D2) or D3. D1 alone is growth with a reference that can still be measured."""
    d1 = scale_stability("D1", m, t)
    d2 = reference_validity("D2", m, dtype_floor(m, t))
    d3 = _depth("D3", claim, t)
    failed = []
    if d1.flagged and d2.flagged:
        failed += ["D1", "D2"]
    elif d2.flagged and (m.nonfinite_kinds or m.altered):
        failed += ["D2"]  # outside the published rule: what is not a number, or not the gradient, is no reference
    if d3.flagged:
        failed += ["D3"]
    valid = None if d2.flagged is None else not d2.flagged
    return _verdict("three-check", m, claim, t, (d1, d2, d3), failed, valid)


def four_diagnostic(m: Measurements, claim: Claim, t: DiagnosticThresholds) -> Verdict:
    """(a), (b), (d) each fail on their own; (c) names the sub-mode of an (a) or (b) failure."""
    a = scale_stability("a", m, t)
    b = reference_validity("b", m, t.g_norm_floor)
    c = direction_stability("c", m, t)
    d = _depth("d", claim, t)
    failed = [f.check for f in (a, b, d) if f.flagged]
    valid = False if a.flagged or b.flagged else None if None in (a.flagged, b.flagged) else True
    return _verdict("four-diagnostic", m, claim, t, (a, b, c, d), failed, valid)


def intrinsic(m: Measurements, claim: Claim, t: DiagnosticThresholds) -> Verdict:
    """Fails if D2 or D3, with D2 on how far rounding puts the reported cosine off, in no unit of loss or stream.

    That is the failure itself and not a sign of it, so D2 needs no second witness. D1 is flagged, but growth alone does
    not fail. The sub-mode is taken over different samples, so that repeated data change nothing.
    """
    d1 = scale_stability("D1", m, t)
    d2 = reference_precision("D2", m, t)
    d3 = _depth("D3", claim, t)
    failed = [f.check for f in (d2, d3) if f.flagged]
    valid = None if d2.flagged is None else not d2.flagged
    m = replace(m, stability=m.stability_distinct)
    return _verdict("intrinsic", m, claim, t, (d1, d2, d3), failed, valid)


def _depth(check: str, claim: Claim, t: DiagnosticThresholds) -> Finding:
    return depth_utility(check, claim.headline, claim.frozen, t, claim.bp, claim.bp_frozen, claim.correct)


EDITIONS: dict[str, Callable[[Measurements, Claim, DiagnosticThresholds], Verdict]] = {
    "three-check": three_check,
    "four-diagnostic": four_diagnostic,
    "intrinsic": intrinsic,
}


def decide(m: Measurements, claim: Claim, t: DiagnosticThresholds, edition: str) -> Verdict:
    """The verdict of a named edition."""
    if not isinstance(t, DiagnosticThresholds):
        raise InputError(
            f"Expected thresholds to be DiagnosticThresholds, but got {type(t).__name__}. Write "
            "DiagnosticThresholds(g_norm_floor=...), or DiagnosticThresholds.load(path)."
        )
    if not isinstance(edition, str) or edition not in EDITIONS:
        raise InputError(f"Expected edition to be one of {', '.join(EDITIONS)}, but got {edition!r}.")
    return EDITIONS[edition](m, claim, t)


def _verdict(
    edition: str,
    m: Measurements,
    claim: Claim,
    t: DiagnosticThresholds,
    findings: tuple[Finding, ...],
    failed: list[str],
    valid: bool | None,
) -> Verdict:
    growth, reference, depth = findings[0], findings[1], findings[-1]
    depth_used = None if depth.flagged is None else not depth.flagged
    # (c) names the sub-mode and decides nothing; every other check that was not decided leaves the verdict open.
    undecided = any(f.flagged is None for f in findings if f.title != "direction stability")
    outcome = WALKED_BACK if failed else UNDECIDED if undecided else PASSES
    submode = None
    if valid is False and m.stability is not None and not m.nonfinite_kinds and not m.altered:
        submode = "drift-dominated" if m.stability > t.stability_drift_ceiling else "noise-dominated"
    chain = (
        _step_claim(m, claim),
        _step_reference(m, growth, reference, valid),
        _step_depth(depth, depth_used),
        _step_mode(m, growth, reference, valid, depth_used, submode),
    )
    return Verdict(edition, outcome, tuple(failed), valid, depth_used, submode, findings, chain)


# -- the walk-back chain, in its four steps ------------------------------------------------------------------


def _step_claim(m: Measurements, claim: Claim) -> Step:
    said = []
    if claim.headline is not None:
        values = accuracies("headline_acc", claim.headline)
        seeds = f" (mean of {len(values)} seeds)" if len(values) > 1 else ""
        said.append(f"accuracy {sum(values) / len(values):.3f}{seeds}")
    if m.gamma is not None:
        said.append(f"Γ = {m.gamma:+.3f} over sites 0…{len(m.cosine) - 2}")
    if m.gamma is None and m.cosine:
        said.append("a cosine that could not be measured at every site")
    text = " and ".join(said) if said else "no accuracy and no cosine were given"
    return Step(1, "The claim", text, None)


def _step_reference(m: Measurements, growth: Finding, reference: Finding, valid: bool | None) -> Step:
    parts = []
    if reference.title == "reference precision":
        parts += _said_of_precision(m, reference)
    elif reference.value is not None:
        relation = "under" if reference.value < reference.limit else "above"
        parts.append(f"‖g_L‖ = {reference.value:.2g} is {relation} the floor of {reference.limit:.2g}")
    if reference.reason:
        parts.append(reference.reason)
    if growth.value is not None:
        relation = "above" if growth.flagged else "within"
        least = f" ({growth.reason})" if growth.reason else ""
        parts.append(f"growth {growth.value:.3g}x per block is {relation} {growth.limit:.3g}x{least}")
    if m.growth_total is not None and m.growth_total > growth.limit and not growth.flagged:
        parts.append(f"but {m.growth_total:.3g}x over the whole depth")
    worst = max((b for b in m.below_eps if b is not None), default=0.0)
    if worst > 0:
        parts.append(f"up to {worst:.0%} of samples have a reference under the cosine's ε")
    return Step(2, "Is the reference measurable?", "; ".join(parts) or "not measured", valid)


def _said_of_precision(m: Measurements, reference: Finding) -> list[str]:
    said = []
    error, site = cosine_error(m.float64_disagreement, m.float64_shift)
    if error is not None:
        relation = "above" if error > reference.limit else "within"
        said.append(
            f"rounding puts a cosine off by {error:.2g} at most (site {site}), {relation} {reference.limit:.2g}"
        )
    clamp = max((e for e in m.epsilon_share if e is not None), default=0.0)
    if clamp > 0.005:
        said.append(f"the ε of F.cosine_similarity would take away up to {clamp:.0%} of it at some site")
    lost = max((a for a in m.absorption if a is not None), default=0.0)
    if lost > 0.005:
        said.append(f"h + f loses up to {lost:.0%} of f to rounding at some site")
    return said


def _step_depth(depth: Finding, used: bool | None) -> Step:
    if depth.value is None:
        return Step(3, "Do trained blocks beat frozen ones?", depth.reason, used)
    interval = "" if depth.interval is None else f" (95 % interval {depth.interval[0]:+.1f}…{depth.interval[1]:+.1f})"
    why = "undecided" if depth.straddles else depth.reason
    text = f"{depth.value:+.1f} pp over frozen blocks{interval}, margin {depth.limit:.3g} pp"
    return Step(3, "Do trained blocks beat frozen ones?", f"{text}; {why}" if why else text, used)


def _step_mode(
    m: Measurements, growth: Finding, reference: Finding, valid: bool | None, used: bool | None, submode: str | None
) -> Step:
    title = "Which failure is it?"
    concentrated = is_concentrated(m)
    sound = "clear of rounding" if reference.title == "reference precision" else "above its floor"
    if valid is False and not reference.flagged:
        text = "scale pathology: a block multiplies the stream"
        text += "" if reference.flagged is None else ", although the reference is still above its floor"
        return Step(4, title, text, False)
    if m.altered:
        text = 'none can be told: every g_l is an altered gradient; measure with reference="derived" or a plain twin'
        return Step(4, title, text, False)
    if valid is False:
        named = f", {submode}" if submode else ""
        what = "that is not finite" if m.nonfinite_kinds else "under the floor"
        if reference.title == "reference precision" and not m.nonfinite_kinds:
            what = "that rounding has changed"
        text = f"Mode 1, measurement degeneracy{named}: Γ compares the credit with a reference {what}"
        if growth.flagged is False:
            text += " (without an exploding block)"
        text += "; a run with a per-block penalty shows whether credit is poor as well (Mode 2)"
        return Step(4, title, text, False)
    if concentrated:
        site = max(range(len(m.cosine) - 1), key=lambda i: abs(m.cosine[i] or 0.0))
        text = (
            f"Mode 2, aggregation collapse: site {site} carries {m.gamma_concentration:.0%} of Γ while the reference "
            f"is {sound}; the average hides it"
        )
        return Step(4, title, text, False if used is False else None)
    if used is False and valid is None:
        return Step(4, title, "unused depth; whether the reference is measurable was not tested", False)
    if used is False:
        text = f"unused depth with a reference {sound}: Mode 2 (poor credit) if the per-layer cosines are low"
        if m.deep_cosine is not None:
            text += f" (deep mean {m.deep_cosine:+.3f})"
        return Step(4, title, text, False)
    if valid is None and used is None:
        return Step(4, title, "can't be told: neither the reference nor depth was tested", None)
    if growth.flagged:
        return Step(4, title, f"growth with a reference still {sound}: flagged, but no failure on its own", None)
    missing = [name for name, known in (("the reference", valid), ("depth", used)) if known is None]
    if missing:
        return Step(4, title, f"none of the audited failures shows, but {missing[0]} was not decided", None)
    return Step(4, title, "none of the audited failures shows", True)


def is_concentrated(m: Measurements) -> bool:
    """Advisory: one site carries more than half of Γ, clearly more than an even share, and is no noise itself."""
    sites = len(m.cosine) - 1
    share = m.gamma_concentration
    if share is None or sites < 2:
        return False
    # Two random directions in d dimensions have a cosine of about 1/√d: a share of such noise means nothing.
    width = _width(m.conditions.get("state_shape"))
    noise = 0.1 if width is None else 2 / width**0.5
    loudest = max(abs(c) for c in m.cosine[:-1] if c is not None)
    return share > max(CONCENTRATED, 1.5 / sites) and loudest > noise


def _width(shape: object) -> int | None:
    if not isinstance(shape, list) or not shape or not all(isinstance(n, int) and n > 0 for n in shape):
        return None
    return prod(shape)
