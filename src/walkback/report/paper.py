"""The table of a paper, judged: a verdict per method, what could not be judged, and what to ask the authors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from walkback.report import depth_view as dv
from walkback.report.advice import reason
from walkback.report.formats.logged import judge
from walkback.report.formats.logged_columns import methods, stands_for
from walkback.report.formats.logged_files import named_rows
from walkback.report.numbers import NONE, figure
from walkback.report.report import Report
from walkback.report.text import wrap
from walkback.verdict.checks import DiagnosticThresholds
from walkback.verdict.findings import PASSES, UNDECIDED, WALKED_BACK, about

DEPTH, NORMS, COSINES = "depth", "norms", "cosines"
QUESTIONS = {
    DEPTH: "What accuracy does the same network reach with its blocks frozen at their random initialisation, with the "
    "same epochs, optimiser and seeds?",
    NORMS: "How large are ‖h_l‖ at every site and ‖g_L‖ at the last one in the network that was published, in which "
    "dtype, and over which batch size is the loss a mean?",
    COSINES: "What is the cosine at every layer, without a clamp in its denominator, beside that of the same credit "
    "turned at random (or of fresh feedback)?",
}


@dataclass(frozen=True)
class Paper:
    """Reports of the methods of one table, in its order."""

    name: str
    reports: tuple[Report, ...]

    @property
    def verdict(self) -> str:
        """The worst verdict of all methods: walked back, undecided, passes."""
        words = [report.verdict for report in self.reports]
        return next(word for word in (WALKED_BACK, UNDECIDED, PASSES) if word in words)

    def questions(self) -> list[tuple[str, list[str]]]:
        """Return the three questions to ask the authors, each with the methods whose answer the table lacks."""
        return [(text, [r.method for r in self.reports if _lacks(r, what)]) for what, text in QUESTIONS.items()]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: every report, and the questions."""
        asked = [{"question": text, "open for": methods} for text, methods in self.questions()]
        return {"verdict": self.verdict, "methods": [r.to_dict() for r in self.reports], "questions": asked}

    def __str__(self) -> str:
        counts = [(sum(r.verdict == word for r in self.reports), word) for word in (WALKED_BACK, UNDECIDED, PASSES)]
        counted = ", ".join(f"{n} {word}" for n, word in counts if n)
        rows = [[r.method, *_claim(r), r.verdict, ", ".join(r.failed)] for r in self.reports]
        head = ["method", "accuracy", "Γ", "frozen", "verdict", "by"]
        align = ("left", "right", "right", "right", "left", "left")
        whys = [f"{r.method}: {_without(reason(r), r)}" for r in self.reports if r.failed]
        unjudged = [f"{r.method}: {'; '.join(_open(r))}" for r in self.reports if _open(r)]
        unread = dict.fromkeys(note.text for r in self.reports for note in r.notes if note.code == "unused-columns")
        parts = [
            [wrap(f"{self.name}: {len(self.reports)} method{'s' * (len(self.reports) != 1)}: {counted}")],
            [tabulate(rows, head, "simple", colalign=align, disable_numparse=True)],
            ["Why", *(wrap(line, "  ", "    ") for line in whys)] if whys else [],
            ["What could not be judged", *(wrap(line, "  ", "    ") for line in unjudged)] if unjudged else [],
            [wrap(f"note: {text}", "", "  ") for text in unread],
            ["Ask the authors", *(_question_line(i, *one) for i, one in enumerate(self.questions(), 1))],
            [wrap("One method in full: --method NAME. Three-check: walked back if (D1 and D2) or D3.")],
        ]
        return "\n\n".join("\n".join(part) for part in parts if part)


def methods_of(numbers: str | Path) -> list[str]:
    """Return the methods that a file has rows of; [] where its rows are the epochs of one."""
    names = methods(named_rows(numbers)[0])
    return names if len(names) > 1 else []


def judge_paper(
    path: Path, edition: str | None = None, thresholds: DiagnosticThresholds | None = None, **given: Any
) -> Paper:
    """Judge every method of a table but a row of frozen blocks, which is the control of the others.

    Args:
        path: a .csv, .json or .jsonl file with a column `method`.
        edition: as in `judge`.
        thresholds: as in `judge`.
        given: accuracies for all methods, as in `judge`.
    """
    names = [name for name in methods_of(path) if stands_for(name) != "frozen_baseline_acc"]
    return Paper(path.name, tuple(judge(path, edition, thresholds, method_name=name, **given) for name in names))


def _claim(r: Report) -> list[str]:
    means = [NONE if a is None else f"{_mean(a):.3f}" for a in (r.headline_acc, r.frozen_baseline_acc)]
    gamma = r.values.get("gamma")
    return [means[0], figure(gamma, "signed"), means[1]]


def _mean(value: Any) -> float:
    return value if isinstance(value, float) else sum(value) / len(value)


def _open(r: Report) -> list[str]:
    """Return the checks that were not decided, each with why."""
    return [f"{f['check']} ({f['reason']})" for f in dv.deciding(r) if f["flagged"] is None]


def _lacks(r: Report, what: str) -> bool:
    asked = {DEPTH: ("depth", "outcome"), NORMS: ("growth", "reference")}
    if what == COSINES:
        return not any(c is not None for c in r.per_layer.get("cosine") or ())
    return any(f["value"] is None and f["flagged"] is None for f in dv.deciding(r) if about(f) in asked[what])


def _question_line(place: int, question: str, methods: Sequence[str]) -> str:
    whom = f"(not in the table for {', '.join(methods)})" if methods else "(in the table)"
    return wrap(f"{place}. {question} {whom}", "  ", "     ")


def _without(text: str, r: Report) -> str:
    return text.removeprefix(f"{r.method}: ")
