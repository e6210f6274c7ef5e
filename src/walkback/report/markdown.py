"""The one writer of GitHub Markdown, for reports and for tables."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from walkback.errors import visible
from walkback.report import view

if TYPE_CHECKING:
    from walkback.report.report import Report
    from walkback.report.table import Table


_LINK = re.compile(r"\[(?![-+−.\d])")  # but for the brackets of an interval


def harmless(text: str) -> str:
    r"""Return a line whose names and remarks make no tag, link or picture; its emphasis stays.

    >>> print(harmless("dfa <img src=x> [x](y) at 0.3 [0.2, 0.4] < 1"))
    dfa \<img src=x> \[x](y) at 0.3 [0.2, 0.4] < 1
    """
    text = visible(" ".join(text.split())).replace("\\", "\\\\")
    return _LINK.sub(r"\\[", re.sub(r"<(?=[A-Za-z/!?])", r"\\<", text))


def escape(text: str) -> str:
    """Return text that Markdown shows as it is, also in a table."""
    text = _LINK.sub(r"\\[", re.sub(r"([\\|*`<])", r"\\\1", " ".join(visible(text).split())))
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)


def grid(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    bold: Collection[tuple[int, int]] = (),
    left: Sequence[bool] | None = None,
) -> str:
    r"""Return a table: `bold` are (row, column) of cells; `left` says which columns stand left, all where not given.

    >>> print(grid(["rule", "acc"], [["a|b", "0.3"]], {(0, 1)}, [True, False]))
    | rule | acc |
    |---|--:|
    | a\|b | **0.3** |
    """
    rule = "|".join("---" if there else "--:" for there in left or [True] * len(head))
    cells = [
        [f"**{escape(cell)}**" if (r, c) in bold else escape(cell) for c, cell in enumerate(row)]
        for r, row in enumerate(rows)
    ]
    lines = [f"| {' | '.join(row)} |" for row in ([escape(cell) for cell in head], *cells)]
    return "\n".join([lines[0], f"|{rule}|", *lines[1:]])


def report_markdown(report: Report) -> str:
    """Return the report, its verdict in the last line."""
    grids = view.tables(report)
    parts = [
        f"### {harmless(view.title(report))}",
        harmless(view.remark(report)),
        harmless(view.conditions_line(report)),
        harmless(view.weights_line(report)),
        *(grid(head, rows, left=view.stands_left(head)) for head, rows in grids),
        "\n".join(f"- {harmless(line)}" for lines in view.paragraphs(report) for line in lines),
        "\n".join(
            f"{s['step']}. **{harmless(view.as_question(s['title']))}** {harmless(s['text'])}." for s in report.chain
        ),
        " ".join(f"{question.capitalize()}: {answer}." for question, answer in report.answers()),
        f"**{harmless(report.verdict_line)}**",
    ]
    return "\n\n".join(filter(None, parts))


def table_markdown(table: Table, bold: Collection[tuple[int, int]] = (), caption: str = "") -> str:
    """Return the table under its title and the sentences of `caption`, with its notes and what it lacks."""
    parts = [f"## {escape(table.title)}", *([escape(caption)] if caption else [])]
    parts.append(grid(table.columns, table.rows, bold))
    if table.notes:
        parts.append("\n".join(f"- {escape(note)}" for note in table.notes))
    if table.missing:
        parts += ["Missing:", "\n".join(f"- {_missing(line)}" for line in table.missing)]
    return "\n\n".join(parts)


def _missing(line: str) -> str:
    what, sep, command = line.partition(": ")
    return f"{escape(what)}: `{command}`" if sep and "`" not in command else escape(line)
