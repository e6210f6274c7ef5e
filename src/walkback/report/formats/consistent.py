"""Does a report agree with itself? Its verdict with its findings, these with its numbers and limits.

Its numbers are not judged again, which `judge` does: what is asked here holds of every version that wrote the format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isclose
from typing import Any

from walkback.errors import shown
from walkback.verdict.editions import EDITIONS, Check
from walkback.verdict.findings import ABOUT, DEPTH, PASSES, UNDECIDED, WALKED_BACK

# Of the checks, by what they are about: the number in `values` that each judges, and its limit in `thresholds`.
_VALUES = {"growth": "growth", "stability": "stability", "depth": "depth_margin_pp"}
_LIMITS = {"growth": "h_norm_explosion_ratio", "stability": "stability_drift_ceiling"}
_LIMITS |= dict.fromkeys(DEPTH, "frozen_acc_margin_pp")
_ANSWERS = {True: "flagged", False: "not flagged", None: "not decided"}


def contradiction(report: Mapping[str, Any]) -> str:
    """Return where a report of walkback.report/2 disagrees with itself; "" where it does not."""
    rules = {rule.name: rule for rule in EDITIONS[report["edition"]].values()}
    findings = {f["check"]: f for f in report["findings"]}
    if len(findings) < len(report["findings"]):
        return "a check stands there twice"
    if other := [check for check in findings if check not in rules]:
        return f"{other[0]} is no check of the {report['edition']} edition"
    found = (why for part in (_of_findings, _of_numbers) for why in part(report, findings))
    return next(found, "") or _of_verdict(report, findings, rules)


def _of_findings(report: Mapping[str, Any], findings: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A finding without a cause was decided by its value and its limit."""
    for check, f in findings.items():
        if f["value"] is None or f.get("cause"):
            continue
        about = ABOUT[check]
        above = about in ("growth", "stability") or (about == "reference" and report["edition"] == "intrinsic")
        flags = f["value"] > f["limit"] if above else f["value"] < f["limit"]
        if flags != f["flagged"]:
            sign = ">" if above else "<"
            yield f"{check} is {_ANSWERS[f['flagged']]} at {f['value']:g}, and flags when {sign} {f['limit']:g}"


def _of_numbers(report: Mapping[str, Any], findings: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A finding judges a number of the report by a limit of its thresholds; D2's own may be higher, as the dtype is."""
    for check, f in findings.items():
        about, value = ABOUT[check], f["value"]
        limit = report["thresholds"].get(_LIMITS.get(about), f["limit"])
        if f["limit"] != limit:
            yield f"{check} has the limit {f['limit']:g}, where thresholds.{_LIMITS[about]} is {limit:g}"
        name = _VALUES.get(about)
        if about == "reference":
            name = "cosine_error" if report["edition"] == "intrinsic" else "g_norm_deepest"
        number = None if name is None else report["values"].get(name)
        if value is None or number is None or f.get("cause"):
            continue
        if not isclose(value, number, rel_tol=1e-6, abs_tol=1e-6 if about in DEPTH else 0.0):
            yield f"{check} judges {value:g}, where values.{name} is {number:g}"


def _of_verdict(
    report: Mapping[str, Any], findings: Mapping[str, Mapping[str, Any]], rules: Mapping[str, Check]
) -> str:
    by_name = {name: findings[rule.name] for name, rule in _named(report) if rule.name in findings}
    failed = {f["check"] for f in findings.values() if f["flagged"] and _walks_back(rules[f["check"]], f, by_name)}
    if set(report["failed"]) != failed:
        return f"failed is {_listed(report['failed'])}, and its findings walk back {_listed(sorted(failed))}"
    waits = any(f["flagged"] is None and rules[c].needed and not f.get("beside") for c, f in findings.items())
    verdict = WALKED_BACK if failed else UNDECIDED if waits else PASSES
    if report["verdict"] != verdict:
        return f"its verdict is {shown(report['verdict'])}, and its findings give {shown(verdict)}"
    reference = [f["flagged"] for c, f in findings.items() if rules[c].of_reference]
    depth = [f["flagged"] for c, f in findings.items() if ABOUT[c] in DEPTH and not f.get("beside")]
    for name, flags in (("measurement_valid", reference), ("depth_used", depth)):
        clear = False if True in flags else None if None in flags else True
        if report[name] is not clear:
            return f"{name} is {report[name]}, and its findings give {clear}"
    return ""


def _named(report: Mapping[str, Any]) -> Sequence[tuple[str, Check]]:
    return [*EDITIONS[report["edition"]].items()]


def _walks_back(rule: Check, finding: Mapping[str, Any], found: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether a check that flags walks the claim back, as `decide` asks it of findings."""
    no_reference = rule.of_reference and finding.get("cause") in ("nonfinite", "altered")
    alone = not rule.only_with or no_reference or bool(found.get(rule.only_with, {}).get("flagged"))
    return rule.walks_back and alone and not finding.get("beside")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "empty"
