"""What `print` shows of a report and of a table, in plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tabulate import tabulate

from walkback.errors import visible
from walkback.measures.quantities import PER_SITE
from walkback.report import advice, view
from walkback.report import depth_view as dv

if TYPE_CHECKING:
    from walkback.report.report import Report
    from walkback.report.table import Table


WIDTH = 80  # columns of a terminal
SITE_COLUMNS = ("h_norm", "g_norm", "cosine", "null_high")  # of the one table that `print` shows


def report_text(report: Report) -> str:
    """Return the report on one screen: the verdict and its reason, the chain, one table by site, what to do next."""
    heads, rows = view.layer_rows(report, [q for q in PER_SITE if q.name in SITE_COLUMNS])
    steps = [wrap(f"{check}: {words}", "  ", "    ") for check, words in advice.next_steps(report)]
    notes = [wrap(f"note: {text}", "", "  ") for text in report.advisories]
    asked = " · ".join(f"{question}: {answer}" for question, answer in report.answers())
    parts = [
        [wrap(report.verdict_line, "", "  "), wrap(advice.reason(report))],
        ["Walk-back chain", *_chain(report, WIDTH)],
        [_grid(heads, rows)] if len(heads) > 1 else [],
        ["What to do next", *steps] if steps else [],
        [*map(wrap, (*dv.seeds_lines(report), *view.run_lines(report))), *notes],
        [wrap(asked), *map(wrap, filter(None, [view.remark(report)]))],
        [
            wrap(f"{view.title(report)}; {view.conditions_line(report)}. All numbers: report.details(), --verbose."),
            *map(wrap, filter(None, [view.weights_line(report)])),
        ],
    ]
    return visible("\n\n".join("\n".join(part) for part in parts if part))


def details_text(report: Report) -> str:
    """Return everything that was measured, the verdict in the last line."""
    parts = [
        view.title(report),
        *filter(None, [view.remark(report)]),
        view.conditions_line(report),
        *filter(None, [view.weights_line(report)]),
        *(f"\n{_grid(*grid)}" for grid in view.tables(report)),
        *("\n" + "\n".join(lines) for lines in view.paragraphs(report)),
        "\nWalk-back chain",
        *_chain(report, 100),
        "",
        " · ".join(f"{question}: {answer}" for question, answer in report.answers()),
        report.verdict_line,
    ]
    return visible("\n".join(parts))


def _chain(report: Report, width: int) -> list[str]:
    return [
        wrap(f"{step['step']}. {view.as_question(step['title'])} {step['text']}.", "  ", "     ", width)
        for step in report.chain
    ]


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


def wrap(text: str, first: str = "", rest: str = "", width: int = WIDTH) -> str:
    """Return a text broken into lines, the first and the others behind what is given for them."""
    return textwrap.fill(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
