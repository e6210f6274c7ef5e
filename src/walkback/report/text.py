"""What `print` shows of a report and of a table, in plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tabulate import tabulate

from walkback.errors import visible
from walkback.report import view

if TYPE_CHECKING:
    from walkback.report.report import Report
    from walkback.report.table import Table


def report_text(report: Report) -> str:
    """Return the whole report, its verdict in the last line."""
    parts = [
        view.title(report),
        *filter(None, [view.remark(report)]),
        view.conditions_line(report),
        *(f"\n{_grid(*grid)}" for grid in view.tables(report)),
        *("\n" + "\n".join(lines) for lines in view.paragraphs(report)),
        "\nWalk-back chain",
        *(_wrap(f"{s['step']}. {view.asked(s['title'])} {s['text']}.") for s in report.chain),
        "",
        " · ".join(f"{question}: {answer}" for question, answer in report.answers()),
        report.verdict_line,
    ]
    return visible("\n".join(parts))


def table_text(table: Table) -> str:
    """Return the table with its notes and with what it lacks."""
    parts = [table.title, "", tabulate(table.rows, table.columns, tablefmt="simple", disable_numparse=True)]
    for head, lines in (("Notes", table.notes), ("Missing", table.missing)):
        if lines:
            parts += ["", head, *(f"  - {line}" for line in lines)]
    return visible("\n".join(line.rstrip() for part in parts for line in part.split("\n")))


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    align = ["left" if left else "right" for left in view.stands_left(head)]
    return tabulate(rows, head, tablefmt="simple", colalign=align, disable_numparse=True)


def _wrap(text: str) -> str:
    return textwrap.fill(text, 100, initial_indent="  ", subsequent_indent="     ")
