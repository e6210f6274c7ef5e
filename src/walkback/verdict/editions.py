"""Findings to verdict: the two published editions of the protocol and the intrinsic one, each a table of checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from walkback.errors import InputError, shown
from walkback.measures.measurements import Measurements
from walkback.verdict import checks
from walkback.verdict.chain import walk_back_chain
from walkback.verdict.checks import DiagnosticThresholds
from walkback.verdict.claim import CONTROL, OUTCOME, Claim
from walkback.verdict.doubt import on_value
from walkback.verdict.findings import PASSES, UNDECIDED, WALKED_BACK, Finding, Verdict, all_clear
from walkback.verdict.outcome import depth_outcome, one_decides


@dataclass(frozen=True)
class Check:
    """A check in an edition: its published name, its function, and what its flag decides.

    A flag `walks_back` the claim, `only_with` another check's flag where one is named. The verdict waits for a check
    that is `needed`. A flag of one that is `of_reference` says that the cosine should not be read.
    """

    name: str
    of: Callable[[str, Measurements, DiagnosticThresholds, Claim], Finding | None]
    walks_back: bool = True
    only_with: str = ""
    needed: bool = True
    of_reference: bool = False


EDITIONS: dict[str, dict[str, Check]] = {
    # Walks back if (D1 and D2) or D3. D1 alone is growth with a reference that can still be measured. In all editions
    # one of the two checks of depth decides, see `one_decides`; D3-outcome is there where it was measured.
    "three-check": {
        "growth": Check("D1", checks.scale_stability, only_with="reference"),
        "reference": Check("D2", checks.reference_above_epsilon, only_with="growth", of_reference=True),
        "depth": Check(CONTROL, checks.depth_of_claim),
        "outcome": Check(OUTCOME, depth_outcome),
    },
    # (a), (b), (d) each walk back on their own; (c) names the sub-mode of an (a) or (b) failure. (a) and (b) are judged
    # on their values, as published; intervals are shown.
    "four-diagnostic": {
        "growth": Check("a", on_value(checks.scale_stability), of_reference=True),
        "reference": Check("b", on_value(checks.reference_above_floor), of_reference=True),
        "stability": Check("c", checks.direction_stability, walks_back=False, needed=False),
        "depth": Check("d", checks.depth_of_claim),
        "outcome": Check(OUTCOME, depth_outcome),
    },
    # Walks back if D2 or D3, with D2 on how far rounding puts the reported cosine off, in no unit of loss or stream:
    # the failure itself and not a sign of it, so it needs no second witness. D1 flags, but growth alone does not fail.
    "intrinsic": {
        "growth": Check("D1", checks.scale_stability, walks_back=False),
        "reference": Check("D2", checks.reference_precision, of_reference=True),
        "depth": Check(CONTROL, checks.depth_of_claim),
        "outcome": Check(OUTCOME, depth_outcome),
    },
}


def decide(m: Measurements, claim: Claim, t: DiagnosticThresholds, edition: str) -> Verdict:
    """Return the verdict of a named edition."""
    if not isinstance(t, DiagnosticThresholds):
        raise InputError(
            f"Expected thresholds to be DiagnosticThresholds, but got {type(t).__name__}. Write "
            "DiagnosticThresholds(g_norm_floor=...), or DiagnosticThresholds.load(path)."
        )
    if not isinstance(edition, str) or edition not in EDITIONS:
        raise InputError(f"Expected edition to be one of {', '.join(EDITIONS)}, but got {shown(edition)}.")
    rules = EDITIONS[edition]
    asked = {name: rule.of(rule.name, m, t, claim) for name, rule in rules.items()}
    findings, depth = one_decides({name: f for name, f in asked.items() if f is not None}, claim.primary)
    failed = tuple(f.check for name, f in findings.items() if f.flagged and _walks_back(rules[name], f, findings))
    valid = all_clear(*(findings[name] for name, rule in rules.items() if rule.of_reference))
    depth_used = all_clear(findings[depth])
    waits = any(f.flagged is None and rules[name].needed and not f.beside for name, f in findings.items())
    outcome = WALKED_BACK if failed else UNDECIDED if waits else PASSES
    # Over different samples in the intrinsic edition, so that repeated data change nothing.
    stability, submode = m.stability_distinct if edition == "intrinsic" else m.stability, None
    if valid is False and stability is not None and not m.nonfinite_kinds and not m.altered:
        submode = "drift-dominated" if stability > t.stability_drift_ceiling else "noise-dominated"
    precise = rules["reference"].of is checks.reference_precision
    chain = walk_back_chain(m, claim, findings, valid, depth_used, submode, precise)
    return Verdict(
        edition, outcome, failed, valid, depth_used, submode, tuple(findings.values()), chain, tuple(findings)
    )


def _walks_back(rule: Check, finding: Finding, found: dict[str, Finding]) -> bool:
    """Return whether a check that flags walks the claim back."""
    # Outside the published rule: what is not a number, or not the gradient, is no reference whatever else flags.
    no_reference = rule.of_reference and finding.cause in ("nonfinite", "altered")
    alone = not rule.only_with or no_reference or bool(found[rule.only_with].flagged)
    return rule.walks_back and alone and not finding.beside
