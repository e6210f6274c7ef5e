"""A table as plain values: what every piece of evidence comes as, in text, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from math import isfinite, sqrt
from typing import Any, NamedTuple

from walkback.report.latex import table_latex
from walkback.report.markdown import escape as markdown
from walkback.report.markdown import table_markdown
from walkback.report.numbers import NONE, number
from walkback.report.text import table_text

__all__ = ["NONE", "Cell", "Stat", "Table", "csv_text", "markdown", "number", "spread", "stat", "table"]


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

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest seed."""
        return min(self.values), max(self.values)


def stat(values: Iterable[float | None]) -> Stat | None:
    """Return what was measured of the values, None if nothing was."""
    every = tuple(values)
    known = tuple(v for v in every if v is not None and isfinite(v))
    return Stat(known, len(every) if len(known) < len(every) else 0) if known else None


def spread(value: Stat | None, kind: str) -> Cell:
    """Return mean ± standard deviation over the seeds, and over how many of them where not all had a value.

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
        return table_text(self)

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def to_markdown(self, bold: Collection[tuple[int, int]] = (), caption: str = "") -> str:
        """Return GitHub Markdown; `bold` are (row, column) of cells, `caption` sentences after the title."""
        return table_markdown(self, bold, caption)

    def to_latex(self, bold: Collection[tuple[int, int]] = (), caption: str = "") -> str:
        """Return booktabs tables that fit a page, with the notes below; `bold` and `caption` as in `to_markdown`."""
        return table_latex(self, bold, caption)

    def to_csv(self) -> str:
        """Return the rows as read, with a head, commas and quotes as RFC 4180 has them."""
        return csv_text([self.columns, *self.rows]).rstrip("\n")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return _plain(asdict(self))


# A spreadsheet runs what begins so; a figure with a sign, as +0.3 ± 0.1 or -4.0 pp [-5, -3], stays as it is.
_FORMULA = re.compile(r"[=@\t\r]|[+-](?!$|\s|[\d.](?!.*([|!=@'\"&]|[A-Za-z]\()))")


def csv_text(rows: Iterable[Sequence[Any]], end: str = "\n") -> str:
    r"""Return rows as RFC 4180 has them; texts that a spreadsheet would run as formulas begin with an apostrophe.

    >>> csv_text([["=1+1", "+0.3 ± 0.1", 2]])
    "'=1+1,+0.3 ± 0.1,2\n"
    """
    text = io.StringIO()
    safe = [[f"'{v}" if isinstance(v, str) and _FORMULA.match(v) else v for v in row] for row in rows]
    csv.writer(text, lineterminator=end).writerows(safe)
    return text.getvalue()


def table(
    name: str,
    title: str,
    columns: str | Sequence[str],
    rows: Iterable[Sequence[Cell | str]],
    notes: Iterable[str] = (),
    missing: Iterable[str] = (),
) -> Table:
    """Return a Table of cells, each with its number; a text is its own. Columns may be given as "rule | acc"."""
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
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value
