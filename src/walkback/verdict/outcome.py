"""D3-outcome: what the trained blocks are worth, judged; and which of the two checks of depth decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from walkback.measures.measurements import Measurements
from walkback.measures.worth import Depth
from walkback.verdict.checks import DiagnosticThresholds
from walkback.verdict.claim import OUTCOME, Claim
from walkback.verdict.findings import Finding
from walkback.verdict.statistics import mean_gain, mean_worth

TITLE = "depth outcome"


def depth_outcome(check: str, _: Measurements, t: DiagnosticThresholds, claim: Claim) -> Finding | None:
    """Judge D3-outcome: do trained blocks beat random draws of themselves? Flags under frozen_acc_margin_pp.

    None where `walkback.depth` was not asked. An interval that straddles the margin decides nothing, and neither does a
    task on which BP itself does not gain the margin over frozen blocks.
    """
    if claim.depth is None:
        return None
    limit = t.frozen_acc_margin_pp
    of = mean_worth([claim.depth] if isinstance(claim.depth, Depth) else claim.depth)
    frozen = claim.frozen if claim.bp_frozen is None else claim.bp_frozen
    gain = None if claim.bp is None or frozen is None else mean_gain(claim.bp, frozen)
    flagged, why, cause, more = of.value < limit, "", "", None
    if gain is not None and gain < limit:
        why = f"BP itself gains only {gain:z.1f} pp over frozen blocks: this task can't show depth"
        flagged, cause = None, "task"
    elif of.straddles(limit):
        flagged, why, cause, more = None, of.undecided(limit, "pp"), "straddles", of.more(limit)
    when = f"< {limit:g} pp"
    return Finding(check, TITLE, of.value, limit, when, flagged, why, of.interval, cause, of.parts, of.p(limit), more)


def one_decides(found: Mapping[str, Finding], primary: str) -> tuple[dict[str, Finding], str]:
    """Return the findings, with the check of depth that decides nothing marked `beside`, and the name of the other.

    The primary check decides where it was given, whatever it says; else the other one. Which is primary is named before
    anything is measured, so that nobody takes the more pleasant of the two.
    """
    if "outcome" not in found:
        return dict(found), "depth"
    decides = "outcome" if primary == OUTCOME or found["depth"].cause == "not-given" else "depth"
    other = {"outcome": "depth", "depth": "outcome"}[decides]
    return {**found, other: replace(found[other], beside=True)}, decides


def disagree(found: Mapping[str, Finding]) -> bool:
    """Return whether both checks of depth were decided, and differently."""
    answers = {found[name].flagged for name in ("depth", "outcome") if name in found}
    return answers == {True, False}
