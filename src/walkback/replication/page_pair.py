"""The reporting pair as a picture: accuracy, Γ and the gain over frozen blocks of the rules of one task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from walkback.verdict.checks import DiagnosticThresholds
from walkback.verdict.findings import WALKED_BACK

MARGIN = DiagnosticThresholds().frozen_acc_margin_pp
ROWS = 8  # what a first screen holds


def pair_picture(settings: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the rows of the picture, with places in per cent of each panel's width; None where nothing has a control.

    A task is a setting without the conventions of a rule's credit, which stand beside the rule. Shown is the one with
    the most rules that have a control, among those where a rule is walked back if there are any.
    """
    known = [s for s in settings if s["d3"]["value"] is not None]
    counts = Counter(s["task"] for s in known)
    if not counts:
        return None
    fallen = {s["task"] for s in known if s["verdict"]["word"] == WALKED_BACK}
    order = list(counts)
    chosen = max(counts, key=lambda task: (task in fallen and counts[task] > 1, counts[task], -order.index(task)))
    rows = [s for s in known if s["task"] == chosen][:ROWS]
    acc = _Axis([end for s in rows for key in ("acc", "frozen") for end in _ends(s[key])])
    gamma = _Axis([0.0, 0.2, *(end for s in rows for end in _ends(s["gamma"]))])
    gain = _Axis([0.0, 2 * MARGIN, *(x for s in rows for x in (s["d3"]["value"], *(s["d3"]["interval"] or ())))])
    return {
        "setting": chosen,
        "others": len(counts) - 1,
        "falls": chosen in fallen,
        "zero": {"gamma": gamma.at(0.0), "gain": gain.at(0.0), "margin": gain.at(MARGIN)},
        "rows": [
            {
                "rule": " · ".join([s["rule"], *s["conventions"]]),
                "verdict": s["verdict"],
                "acc": {"text": s["acc"]["text"], **_bar(acc, s["acc"])},
                "frozen": {"text": s["frozen"]["text"], "x": acc.at(s["frozen"]["mean"])},
                "gamma": {"text": s["gamma"]["text"], **_bar(gamma, s["gamma"])},
                "gain": {"text": s["d3"]["text"], **_interval(gain, s["d3"])},
            }
            for s in rows
        ],
    }


class _Axis:
    """From values to per cent, with some room at both ends."""

    def __init__(self, values: Sequence[float]) -> None:
        low, high = min(values), max(values)
        room = 0.08 * (high - low) or 0.05
        self.low, self.high = low - room, high + room

    def at(self, value: float | None) -> float | None:
        return None if value is None else round(100 * (value - self.low) / (self.high - self.low), 2)


def _ends(cell: Mapping[str, Any]) -> list[float]:
    if cell["mean"] is None:
        return []
    return [cell["mean"] - (cell["std"] or 0.0), cell["mean"] + (cell["std"] or 0.0)]


def _bar(axis: _Axis, cell: Mapping[str, Any]) -> dict[str, Any]:
    low, high = _ends(cell) or (None, None)
    return {"x": axis.at(cell["mean"]), "low": axis.at(low), "high": axis.at(high)}


def _interval(axis: _Axis, cell: Mapping[str, Any]) -> dict[str, Any]:
    low, high = cell["interval"] or (cell["value"], cell["value"])
    return {"x": axis.at(cell["value"]), "low": axis.at(low), "high": axis.at(high)}
