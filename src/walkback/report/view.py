"""A report as plain text cells, ready to be put on a page: Report -> dict. The one place where it is worded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from walkback.report.report import Report
from walkback.report.table import NONE, number

# Word of a finding or verdict -> its mark: never by colour alone.
MARKS = {
    "ok": "✓",
    "yes": "✓",
    "passes": "✓",
    "trustworthy": "✓",  # the published word, of a DiagnosticReport
    "no drift": "✓",
    "flags": "✗",
    "flagged": "✗",
    "no": "✗",
    "walked back": "✗",
    "drift": "✗",
    "undecided": "≈",
    "not tested": "–",
    "control": "◇",
}
_KINDS = {"✓": "good", "✗": "bad", "≈": "open", "–": "none", "◇": "none"}


def mark(word: str) -> dict[str, str]:
    """A word with its mark and kind; a count behind it ("flags (1/3)") does not matter.

    >>> mark("flags (1/3)")
    {'word': 'flags (1/3)', 'mark': '✗', 'kind': 'bad'}
    """
    sign = MARKS[word.partition(" (")[0]]
    return {"word": word, "mark": sign, "kind": _KINDS[sign]}


def distance(values: Sequence[float | None], finding: Mapping[str, Any]) -> str:
    """How far values are from the limit of their check: a factor, percentage points, or a difference.

    >>> distance([237.0], {"limit": 50.0, "flags_when": "> 50", "title": "scale stability"})
    '4.74× above 50'
    >>> distance([4e-9, 2e-7], {"limit": 1e-7, "flags_when": "< 1e-07", "title": "reference validity"})
    '25× below to 2× above 1e−7'
    >>> distance([-4.3], {"limit": 2.0, "flags_when": "< 2 pp", "title": "depth utility"})
    '6.3 pp below 2 pp'
    """
    known = [v for v in values if v is not None]
    if not known:
        return ""
    limit = finding["limit"]
    ends = sorted({min(known), max(known)})
    sides = ["below" if v < limit else "above" for v in ends]
    if "pp" in finding["flags_when"]:
        unit, apart = " pp", [f"{abs(v - limit):.1f}" for v in ends]
    elif finding["title"] == "direction stability":  # a cosine: its sign makes a factor meaningless
        unit, apart = "", [f"{abs(v - limit):.2f}" for v in ends]
    else:
        unit, apart = "×", [_factor(v, limit) for v in ends]
    where = number(limit, "norm").replace("-", "−") + (" pp" if unit == " pp" else "")
    if len(set(sides)) == 2:
        return f"{apart[0]}{unit} below to {apart[1]}{unit} above {where}"
    span = "–".join(dict.fromkeys(apart if sides[0] == "above" else apart[::-1]))
    return f"{span}{unit} {sides[0]} {where}"


def _factor(value: float, limit: float) -> str:
    if value <= 0:
        return "∞"
    return number(max(value / limit, limit / value), "norm")


def view(report: Report) -> dict[str, Any]:
    """What a page shows of a report, as text; numbers for drawing stay in `report.per_layer`."""
    head, rows = report._layer_rows() if report._sites() else ([], [])
    return {
        "verdict": mark(report.verdict),
        "line": report.verdict_line.removeprefix("VERDICT: "),
        "edition": report.edition,
        "notes": report.remark,
        "questions": [
            *([f"{question.capitalize()}?", mark(word)] for question, word in report.answers()[:3]),
            *([["Sub-mode", {"word": report.submode, "mark": "", "kind": "none"}]] if report.submode else []),
        ],
        "checks": [
            {
                "check": cells[0],
                "title": cells[1],
                "value": cells[2] + _interval(finding.get("interval")),
                "flags": cells[3],
                "result": mark(cells[4].lower()),
                "distance": "; ".join(filter(None, (distance([finding["value"]], finding), _why(finding)))),
            }
            for finding, cells in zip(report.findings, report._finding_rows()[1])
        ],
        "chain": [{**step, "mark": {True: "✓", False: "✗", None: ""}[step["holds"]]} for step in report.chain],
        "layers": {"head": head, "rows": rows},
        "about": [*report._about_stream(), *report._about_gamma(), *report._about_run()],
        "remarks": [f"note: {text}" for text in report.advisories],
        "null": null_words(report),
        "conditions": pairs(report.conditions),
    }


def _why(finding: Mapping[str, Any]) -> str:
    """An interval that straddles the margin is said by the result and the verdict already."""
    return "" if finding["cause"] == "straddles" else finding["reason"]


def _interval(interval: Sequence[float] | None) -> str:
    return "" if interval is None else f" [{interval[0]:+.1f}, {interval[1]:+.1f}]"


def null_words(report: Report) -> str:
    """What is said of the null band: empty where it was measured and is drawn."""
    if report.per_layer.get("null_low") and report.per_layer.get("null_high"):
        return ""
    why = report.reasons.get("null_low", "not measured")
    return "Null band not measured" + ("" if why == "not measured" else f": {why}")


def pairs(fields: Mapping[str, Any]) -> list[list[str]]:
    """Fields as [name, text].

    >>> pairs({"batch_size": 128, "nudging": {"eta": 0.01}, "pool": None, "state_shape": [256]})
    [['batch size', '128'], ['nudging', 'eta 0.01'], ['pool', '–'], ['state shape', '256']]
    """
    return [[str(name).replace("_", " "), _words(value)] for name, value in fields.items()]


def _words(value: Any) -> str:
    if value is None or value == [] or value == {}:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_words(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_words(v) for v in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
