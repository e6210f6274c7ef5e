"""A report as a gate: the exit code of what is required, a readable difference, JUnit XML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from tabulate import tabulate

from walkback.errors import InputError, shown
from walkback.report.page_view import distance
from walkback.report.view import finding_rows
from walkback.verdict.findings import PASSES, UNDECIDED, WALKED_BACK

if TYPE_CHECKING:
    from walkback.report.report import Report


@dataclass(frozen=True)
class Gate:
    """What a gate says of a report: one of the three words, and the checks that were required."""

    word: str
    required: tuple[str, ...]
    flagged: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The gate in one line."""
        what = f"{', '.join(self.required)} required"
        open_ = f"{', '.join(self.undecided)} not decided" if self.undecided else ""
        flags = f"{', '.join(self.flagged)} flagged" if self.flagged else ""
        return f"GATE: {self.word}: {'; '.join(filter(None, (what, flags, open_)))}"


def gate(report: Report, required: Iterable[str] = ()) -> Gate:
    """Judge a report by checks that must have been tested and not flag; without any, by its verdict.

    A claim that is walked back stays so whatever is required. One whose verdict is undecided for want of a check that
    is not required passes.

    >>> import walkback as wb
    >>> report = wb.judge({"per_layer": {"h_norm": [1.0, 2.0], "g_norm": [1e-3, 1e-3]}})
    >>> gate(report).word, gate(report, ["D1", "D2"]).word, gate(report, ["D3"]).word
    ('undecided', 'passes', 'undecided')
    """
    findings = {finding["check"]: finding for finding in report.findings}
    names = tuple(dict.fromkeys(required))
    if wrong := [name for name in names if name not in findings]:
        raise InputError(
            f"Expected the checks that are required to be of the {report.edition} edition, {', '.join(findings)}, but "
            f"got {shown(wrong[0])}."
        )
    asked = {name: findings[name] for name in names or findings}
    flagged = tuple(name for name, f in asked.items() if f["flagged"] and (names or name in report.failed))
    undecided = tuple(name for name, f in asked.items() if f["flagged"] is None)
    if not names:
        return Gate(_word(report), tuple(findings), report.failed, undecided)
    lost = bool(flagged) or _word(report) == WALKED_BACK
    failed = tuple(dict.fromkeys((*flagged, *report.failed)))
    return Gate(WALKED_BACK if lost else UNDECIDED if undecided else PASSES, names, failed, undecided)


def _word(report: Report) -> str:
    """Return the verdict in the three words, also of a report that prints the published ones."""
    return str(report.to_dict()["verdict"])


def difference(report: Report, required: Iterable[str] = ()) -> str:
    """Return what was expected of every check beside what was measured; "" where the gate passes."""
    required = tuple(required)
    gated = gate(report, required)
    if gated.word == PASSES:
        return ""
    rows = []
    for f, (_, _, value, _, result) in zip(report.findings, finding_rows(report)[1]):
        counts = f["check"] in (*gated.required, *gated.flagged)
        mark = "-" if counts and f["check"] in gated.flagged else "?" if counts and f["flagged"] is None else " "
        why = f["reason"] if f["flagged"] is None else distance([f["value"]], f) if f["flagged"] else ""
        rows.append([mark, f["check"], f["title"], f"not {f['flags_when']}", value, result.lower(), why])
    head = ["", "check", "", "expected", "measured", "result", ""]
    name = report.method or "the claim"
    asked = "" if not required else f", with {', '.join(gated.required)} required"
    return "\n".join(
        [
            f"Expected {name} to pass the {report.edition} protocol{asked}, but it is {gated.word}.",
            *("", tabulate(rows, head, tablefmt="simple", disable_numparse=True), ""),
            report.verdict_line,
        ]
    )


# -- JUnit ---------------------------------------------------------------------------------------------------------

# What XML 1.0 can't hold, which a method's name may.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: Report, required: Iterable[str] = ()) -> str:
    """Return JUnit XML: one test case per check and one for the gate, as CI systems show them.

    A check fails where it walks the claim back or was required and flags, or was required and not decided; one that was
    not tested and not required is skipped.
    """
    required = tuple(required)
    gated = gate(report, required)
    needed = required or (gated.required if gated.word == UNDECIDED else ())  # what is open does not walk a claim back
    name = f"walkback {report.method}".strip()
    suite = ET.Element("testsuite", {"name": _xml(name)})
    properties = ET.SubElement(suite, "properties")
    for key, value in _properties(report, gated).items():
        ET.SubElement(properties, "property", {"name": key, "value": _xml(value)})
    for f, (_, _, value, _, result) in zip(report.findings, finding_rows(report)[1]):
        case = _case(suite, report, f"{f['check']} {f['title']}")
        text = f"{value}, flags when {f['flags_when']}: {result.lower()}" + (f"; {f['reason']}" if f["reason"] else "")
        if f["check"] in gated.flagged:
            _add(case, "failure", text, "flagged")
        elif f["flagged"] is None and f["check"] in needed:
            _add(case, "failure", text, "undecided")
        elif f["flagged"] is None:
            _add(case, "skipped", text)
        ET.SubElement(case, "system-out").text = _xml(text)
    case = _case(suite, report, "gate")
    if gated.word != PASSES:
        _add(case, "failure", gated.line, gated.word, difference(report, required))
    ET.SubElement(case, "system-out").text = _xml(report.details())
    cases = suite.findall("testcase")
    for kind, tag in (("tests", None), ("failures", "failure"), ("skipped", "skipped")):
        suite.set(kind, str(sum(tag is None or case.find(tag) is not None for case in cases)))
    suite.set("errors", "0")
    ET.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suite, encoding="unicode")


def _properties(report: Report, found: Gate) -> Mapping[str, str]:
    limits = {f"threshold.{name}": f"{value:g}" for name, value in report.thresholds.items()}
    what = {"edition": report.edition, "verdict": _word(report), "required": " ".join(found.required)}
    return {**what, **limits, "data": str(report.conditions.get("probe_hash") or "")}


def _case(suite: ET.Element, report: Report, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", {"classname": f"walkback.{report.edition}", "name": name, "time": "0"})


def _add(case: ET.Element, tag: str, message: str, kind: str = "", text: str = "") -> None:
    attributes = {"message": _xml(message), **({"type": kind} if kind else {})}
    ET.SubElement(case, tag, attributes).text = _xml(text or message)


def _xml(value: Any) -> str:
    return _NOT_XML.sub("\ufffd", str(value))
