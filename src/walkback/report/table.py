"""A table as plain values: what every piece of evidence comes as, in text, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from math import isfinite, log10, sqrt
from typing import Any, NamedTuple

from tabulate import tabulate

NONE = "–"


class Cell(NamedTuple):
    """What a reader sees, and the number behind it."""

    text: str
    raw: Any = None


@dataclass(frozen=True)
class Stat:
    """One number per seed.

    >>> Stat((0.25, 0.75)).mean, round(Stat((0.25, 0.75)).std, 3)
    (0.5, 0.354)
    """

    values: tuple[float, ...]
    asked: int = 0  # seeds looked at, where not all had a value

    @property
    def n(self) -> int:
        """How many seeds."""
        return len(self.values)

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return sum(self.values) / self.n

    @property
    def std(self) -> float | None:
        """Sample standard deviation (n − 1), None for one seed."""
        if self.n < 2:
            return None
        return sqrt(sum((v - self.mean) ** 2 for v in self.values) / (self.n - 1))


def stat(values: Iterable[float | None]) -> Stat | None:
    """What was measured of the values, None if nothing was."""
    every = tuple(values)
    known = tuple(v for v in every if v is not None and isfinite(v))
    return Stat(known, len(every) if len(known) < len(every) else 0) if known else None


def number(value: float, kind: str) -> str:
    """A number the way its kind is read: acc, cos, norm, pp, int.

    >>> number(0.3064, "acc"), number(0.0996, "cos"), number(4.23e8, "norm"), number(-4.3, "pp")
    ('0.306', '+0.100', '4.2e8', '-4.3')
    >>> number(999.4, "norm"), number(-999.7, "norm"), number(1000.4, "norm")
    ('999', '-1000', '1000')
    """
    if kind == "acc":
        return f"{value:.3f}"
    if kind == "cos":
        return f"{value:+.3f}"
    if kind == "pp":
        return f"{value:+.1f}"
    if kind == "int":
        return f"{value:.0f}"
    if value == 0 or -1.5 <= log10(abs(value)) < 4:
        return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def spread(value: Stat | None, kind: str) -> Cell:
    """Mean ± standard deviation over the seeds, and over how many of them where not all had a value.

    >>> spread(Stat((0.25, 0.75)), "acc").text, spread(None, "acc").text, spread(stat([None, 0.5, None]), "acc").text
    ('0.500 ± 0.354', '–', '0.500 (1/3)')
    """
    if value is None:
        return Cell(NONE)
    raw = {"mean": value.mean, "std": value.std, "n": value.n}
    text = number(value.mean, kind)
    if value.std is not None:
        text += f" ± {number(value.std, kind).lstrip('+')}"
    return Cell(f"{text} ({value.n}/{value.asked})" if value.asked else text, raw)


@dataclass(frozen=True)
class Table:
    """One piece of evidence.

    Args:
        name: what the command line calls it.
        title: one line.
        columns: the heads.
        rows: as read, one text per column.
        notes: how to read it, with the rule behind "agrees?".
        missing: the runs it lacks, each with the command that would train them.
        data: the rows once more, as numbers by column.

    >>> print(Table("demo", "A table", ("rule", "acc"), (("dfa", "0.306"),), missing=("bp: walkback train",)))
    A table
    <BLANKLINE>
    rule    acc
    ------  -----
    dfa     0.306
    <BLANKLINE>
    Missing
      - bp: walkback train
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    data: tuple[dict[str, Any], ...] = ()

    def __str__(self) -> str:
        body = tabulate(self.rows, self.columns, tablefmt="simple", disable_numparse=True)
        parts = [self.title, "", body]
        for head, lines in (("Notes", self.notes), ("Missing", self.missing)):
            if lines:
                parts += ["", head, *(f"  - {line}" for line in lines)]
        return "\n".join(line.rstrip() for part in parts for line in part.split("\n"))

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def to_markdown(self, bold: Collection[tuple[int, int]] = (), caption: str = "") -> str:
        """GitHub Markdown.

        Args:
            bold: (row, column) of cells.
            caption: sentences after the title.
        """
        lines = [f"## {markdown(self.title)}", "", *([markdown(caption), ""] if caption else [])]
        lines += [_md_row(self.columns), "|" + "---|" * len(self.columns)]
        lines += [_md_row(row, {c for r, c in bold if r == i}) for i, row in enumerate(self.rows)]
        if self.notes:
            lines += ["", *(f"- {markdown(note)}" for note in self.notes)]
        if self.missing:
            lines += ["", "Missing:", "", *(f"- {_md_missing(line)}" for line in self.missing)]
        return "\n".join(lines)

    def to_latex(self, bold: Collection[tuple[int, int]] = (), caption: str = "") -> str:
        """Booktabs tables that fit a page, with the notes below: see `walkback.audit.latex`.

        Args:
            bold: (row, column) of cells.
            caption: sentences after the title.
        """
        from walkback.report.latex import latex

        return latex(self, bold, caption)

    def to_csv(self) -> str:
        """The rows as read, with a head, commas and quotes as RFC 4180 has them."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.rows])
        return text.getvalue().rstrip("\n")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "name": self.name,
            "title": self.title,
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "notes": list(self.notes),
            "missing": list(self.missing),
            "data": [_plain(row) for row in self.data],
        }


def table(
    name: str,
    title: str,
    columns: str | Sequence[str],
    rows: Iterable[Sequence[Cell | str]],
    notes: Iterable[str] = (),
    missing: Iterable[str] = (),
) -> Table:
    """A Table from cells, each with its number; a text is its own. Columns may be given as "rule | acc"."""
    columns = columns.split(" | ") if isinstance(columns, str) else columns
    filled = [[c if isinstance(c, Cell) else Cell(c, None if c == NONE else c) for c in row] for row in rows]
    return Table(
        name,
        title,
        tuple(columns),
        tuple(tuple(c.text for c in row) for row in filled),
        tuple(dict.fromkeys(notes)),
        tuple(dict.fromkeys(missing)),
        tuple({head: c.raw for head, c in zip(columns, row, strict=True)} for row in filled),
    )


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def markdown(text: str) -> str:
    """Text that Markdown shows as it is, also in a table."""
    text = re.sub(r"([\\|*`<])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)


def _md_row(cells: Sequence[str], bold: Collection[int] = ()) -> str:
    return (
        "| "
        + " | ".join(f"**{markdown(cell)}**" if i in bold else markdown(cell) for i, cell in enumerate(cells))
        + " |"
    )


def _md_missing(line: str) -> str:
    what, sep, command = line.partition(": ")
    return f"{markdown(what)}: `{command}`" if sep and "`" not in command else markdown(line)
