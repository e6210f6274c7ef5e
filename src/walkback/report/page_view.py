"""A report as a page shows it: plain values with marks, ready for a template. Report -> dict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from walkback.report import depth_view as dv
from walkback.report.numbers import NONE, NOT_MEASURED, number
from walkback.report.view import YES, about_lines, answers, count_sites, finding_value, layer_rows, remark, result_of
from walkback.verdict.findings import DEPTH, about

if TYPE_CHECKING:
    from walkback.report.report import Report

# Word of a finding or verdict -> its mark: never by colour alone.
MARKS = {
    **dict.fromkeys(("ok", "yes", "passes", "trustworthy", "no drift"), "✓"),  # trustworthy: of a DiagnosticReport
    **dict.fromkeys(("flags", "flagged", "no", "walked back", "drift"), "✗"),
    "undecided": "≈",
    "not tested": NONE,
    "control": "◇",
}
_KINDS = {"✓": "good", "✗": "bad", "≈": "open", NONE: "none", "◇": "none"}


def mark(word: str) -> dict[str, str]:
    """Return a word with its mark and kind; a count behind it ("flags (1/3)") does not matter.

    >>> mark("flags (1/3)")
    {'word': 'flags (1/3)', 'mark': '✗', 'kind': 'bad'}
    """
    sign = MARKS[word.partition(" (")[0]]
    return {"word": word, "mark": sign, "kind": _KINDS[sign]}


def distance(values: Sequence[float | None], finding: Mapping[str, Any]) -> str:
    """Return how far values are from the limit of their check: a factor, percentage points, or a difference.

    >>> distance([237.0], {"limit": 50.0, "check": "D1"})
    '4.74× above 50'
    >>> distance([4e-9, 2e-7], {"limit": 1e-7, "check": "D2"})
    '25× below to 2× above 1e−7'
    >>> distance([-4.3], {"limit": 2.0, "check": "D3"})
    '6.3 pp below 2 pp'
    """
    known = [v for v in values if v is not None]
    if not known:
        return ""
    limit = finding["limit"]
    ends = sorted({min(known), max(known)})
    sides = ["below" if v < limit else "above" for v in ends]
    if about(finding) in DEPTH:
        unit, apart = " pp", [f"{abs(v - limit):.1f}" for v in ends]
    elif about(finding) == "stability":  # a cosine: its sign makes a factor meaningless
        unit, apart = "", [f"{abs(v - limit):.2f}" for v in ends]
    else:
        unit, apart = "×", ["∞" if min(v, limit) <= 0 else number(max(v / limit, limit / v), "norm") for v in ends]
    where = number(limit, "norm").replace("-", "−") + (" pp" if unit == " pp" else "")
    if len(set(sides)) == 2:
        return f"{apart[0]}{unit} below to {apart[1]}{unit} above {where}"
    span = "–".join(dict.fromkeys(apart if sides[0] == "above" else apart[::-1]))
    return f"{span}{unit} {sides[0]} {where}"


def view(report: Report) -> dict[str, Any]:
    """Return what a page shows of a report, as text; numbers for drawing stay in `report.per_layer`."""
    head, rows = layer_rows(report) if count_sites(report) else ([], [])
    return {
        "verdict": mark(report.verdict),
        "line": report.verdict_line.removeprefix("VERDICT: "),
        "edition": report.edition,
        "notes": remark(report),
        "questions": [
            *([f"{question.capitalize()}?", mark(word)] for question, word in answers(report)[:3]),
            *([["Sub-mode", {"word": report.submode, "mark": "", "kind": "none"}]] if report.submode else []),
        ],
        "checks": [_check(finding) for finding in report.findings],
        "chain": [{**step, "mark": {True: "✓", False: "✗", None: ""}[step["holds"]]} for step in report.chain],
        "layers": {"head": head, "rows": rows},
        "depths": [{"head": heads, "rows": lines} for heads, lines in dv.depth_table(report)],
        "about": [line for lines in about_lines(report) for line in lines],
        "remarks": [f"note: {text}" for text in report.advisories],
        "null": null_words(report),
        "conditions": pairs(report.conditions),
    }


def _check(f: Mapping[str, Any]) -> dict[str, Any]:
    ends = ", ".join(map(("{:+z.1f}" if about(f) in DEPTH else "{:.3g}").format, f.get("interval") or ()))
    # An interval that straddles the margin is told by the result and the verdict already.
    why = "" if f["cause"] == "straddles" else f["reason"]
    return {
        "check": f["check"],
        "title": f["title"],
        "value": finding_value(f) + (f" [{ends}]" if ends else ""),
        "flags": f["flags_when"],
        "result": mark(result_of(f)),
        "distance": "; ".join(filter(None, (distance([f["value"]], f), why))),
    }


def null_words(report: Report) -> str:
    """Return what is said of the null band: nothing where it was measured and is drawn."""
    if report.per_layer.get("null_low") and report.per_layer.get("null_high"):
        return ""
    why = report.reasons.get("null_low", NOT_MEASURED)
    return "Null band not measured" + ("" if why == NOT_MEASURED else f": {why}")


def pairs(fields: Mapping[str, Any]) -> list[list[str]]:
    """Return fields as [name, text].

    >>> pairs({"batch_size": 128, "nudging": {"eta": 0.01}, "pool": None, "state_shape": [256]})
    [['batch size', '128'], ['nudging', 'eta 0.01'], ['pool', '–'], ['state shape', '256']]
    """
    return [[str(name).replace("_", " "), _words(value)] for name, value in fields.items()]


def _words(value: Any) -> str:
    if value is None or value == [] or value == {}:
        return NONE
    if isinstance(value, bool):
        return YES[value]
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_words(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_words(v) for v in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
