"""What a report says of depth: which check decided it, what the other says, and accuracy by site."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from walkback.measures.worth import RANDOM, TRAINED, WITHIN_DRAWS, Depth
from walkback.report.numbers import NONE
from walkback.verdict.findings import DEPTH, about

if TYPE_CHECKING:
    from walkback.report.report import Report


def deciding(report: Report) -> list[dict[str, Any]]:
    """Return the findings that a verdict can rest on: all but the sub-mode's and those beside another one."""
    return [f for f in report.findings if about(f) != "stability" and not f.get("beside")]


def deciding_depth(report: Report) -> dict[str, Any]:
    """Return the finding that decides depth: D3, or (d), or D3-outcome."""
    return next(f for f in deciding(report) if about(f) in DEPTH)


def depth_words(report: Report) -> str:
    """Return which check depth was judged on where that is D3-outcome, and what the one beside it says otherwise."""
    used = deciding_depth(report)
    named = about(used) == "outcome" and used["check"] not in report.failed and used["flagged"] is not None
    line = f", depth judged on {used['check']} ({used['value']:+z.1f} pp)" if named else ""
    for f in report.findings:
        if f.get("beside") and f["flagged"] is not None and f["flagged"] != used["flagged"]:
            what = "flags" if f["flagged"] else "passes"
            how = "beside it" if used["flagged"] is None else "disagrees:"
            line += f"; {f['check']} {how} {what} at {f['value']:+z.1f} pp ({used['check']} decides)"
    return line


def open_depth(finding: dict[str, Any]) -> str:
    """Return what would decide a check of depth that decided nothing."""
    if finding["cause"] == "not-given":
        return "depth not tested (give frozen_acc, or --depth)"
    if finding["cause"] == "task":
        return f"depth not tested: {finding['reason']}"
    named = f"depth ({finding['check']})" if about(finding) == "outcome" else "depth"
    return f"{named}: {finding['reason']}"


def depth_table(report: Report) -> list[tuple[list[str], list[list[str]]]]:
    """Return accuracy by depth as a table of heads and rows, one row per site; [] where it was not measured."""
    if report.depth is None:
        return []
    depth = Depth.of(report.depth)
    left_out = None if depth.without is None else [None, *depth.without]  # block l writes site l
    rows = [
        [str(site), *(_fraction(x, site) for x in (depth.by_depth[TRAINED], depth.by_depth.get(RANDOM), left_out))]
        for site in range(len(depth.by_depth[TRAINED]))
    ]
    return [(["site", "probe, trained", "probe, re-randomised", "acc without block"], rows)]


def _fraction(values: Any, site: int) -> str:
    value = values[site] if values and site < len(values) else None
    return NONE if value is None else f"{value:.3f}"


def depth_lines(report: Report) -> list[str]:
    """Return what blocks are worth in words, with what it was measured on; [] where it was not measured."""
    if report.depth is None:
        return []
    depth = Depth.of(report.depth)
    (low, high), count = depth.interval, depth.samples
    floors = (("stem alone", depth.without_all, "without_all"), ("inputs alone", depth.pixels, "pixels"))
    alone = [f"{name} {a:.3f}" for name, a, _ in floors if a is not None]
    alone += [f"{name} not measured: {depth.reasons.get(key, 'no reason')}" for name, a, key in floors if a is None]
    lines = [
        f"trained blocks are worth {depth.worth_pp:+z.1f} pp [{low:+z.1f}, {high:+z.1f}]: accuracy {depth.trained:.3f} "
        f"with them, {depth.random:.3f} with random ones ({len(depth.rerandomised)} draws); {', '.join(alone)}",
        f"all readouts refitted on {count['train']} training samples, compared on {count['test']} test samples; "
        f"standard error {depth.parts['samples']:.2f} pp from samples, {depth.parts['draws']:.2f} pp from draws",
    ]
    return [*lines, WITHIN_DRAWS] if depth.within_draws else lines


def seeds_lines(report: Report) -> list[str]:
    """Return by which rule several seeds were judged, how many flag alone, and the parts of D3's error; [] of one."""
    return [
        f"{f['check']} of several seeds: the 95 % interval of their mean decides, as fixed beforehand; "
        f"{_alone(report, f['limit'])}standard error "
        + ", ".join(f"{error:.2f} pp from {name}" for name, error in f["parts"].items())
        + (
            ""
            if "samples" in f["parts"]
            else "; the error of the test set is not in it (give test_samples, or correct)"
        )
        for f in report.findings
        if about(f) == "depth" and "seeds" in (f.get("parts") or {})
    ]


def _alone(report: Report, limit: float) -> str:
    """Say on how many seeds of how many the gain over the control is under a limit, "" where a file does not tell."""
    control = report.conditions.get("control", "rule-stem")
    others = {**(report.conditions.get("controls") or {}), "rule-stem": report.frozen_baseline_acc}
    both = (report.headline_acc, others.get(control))
    ours, theirs = ([a for a in (acc if isinstance(acc, Sequence) else [acc]) if a is not None] for acc in both)
    theirs = theirs * len(ours) if len(theirs) == 1 else theirs
    if not ours or len(ours) != len(theirs):
        return ""
    under = sum(round(100 * (a - b), 10) < limit for a, b in zip(ours, theirs))
    return f"alone {under} of {len(ours)} flag; "
