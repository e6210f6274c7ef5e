"""The one writer of LaTeX, for reports and for tables: booktabs, and nothing that an engine could not set.

A table is made to fit a page: what is published stands in a table of its own below ours, and rows without a run are
left out. Wide tables are set sideways, with long text in lines, and where that is not enough scaled down; long ones
come in parts.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Sequence
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from walkback.errors import visible
from walkback.measures.quantities import PER_SITE
from walkback.report import view
from walkback.report.depth_view import depth_table
from walkback.report.numbers import NONE

if TYPE_CHECKING:
    from walkback.report.report import Report
    from walkback.report.table import Table

PACKAGES = r"\usepackage{array,booktabs,graphicx,rotating}"


# -- text and numbers -----------------------------------------------------------------------------------------------

_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$", "‖": r"$\|$", "÷": r"$\div$",
    "ε": r"$\varepsilon$", "–": "--", "—": "---", "…": r"\ldots{}", "−": r"$-$", "·": r"$\cdot$", "×": r"$\times$",
    "±": r"$\pm$", "≈": r"$\approx$", "≤": r"$\leq$", "≥": r"$\geq$", "→": r"$\to$", "∞": r"$\infty$", "†": r"\dag{}",
    "²": "$^2$", "₀": "$_0$", "|": r"\textbar{}",
}  # fmt: skip
_TEX |= {
    letter: rf"$\{name}$"
    for letters, names in (
        ("αβγδζηθκλμν", "alpha beta gamma delta zeta eta theta kappa lambda mu nu"),
        ("ξπρστφχψω", "xi pi rho sigma tau phi chi psi omega"),
        ("ΓΔΘΛΞΠΣΦΨΩ", "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"),
    )
    for letter, name in zip(letters, names.split(), strict=True)
}


def tex(text: str) -> str:
    """Return text that any LaTeX engine sets as it is; a paragraph break would end a caption."""
    return "".join(_TEX.get(c, c) for c in visible(" ".join(text.split())))


# A number with a sign or an exponent, which LaTeX sets well only in mathematics.
_NUMBER = re.compile(r"(?<![\w.-])([+-]?)(\d+(?:\.\d+)?)(?:e([+-]?\d+))?(?!\w)")
_NUMERIC = re.compile(r"[+-]?\d[\d.e+-]*( ± [\d.e+-]+)?( \(\d+/\d+\))?")
_SYMBOLS = {
    tex("‖h_L‖"): r"$\|h_L\|$",
    tex("‖g_L‖"): r"$\|g_L\|$",
    tex("‖f_l‖²"): r"$\|f_l\|^2$",
    tex("g_L"): "$g_L$",
    tex("ρ_pert"): r"$\rho_{\mathrm{pert}}$",
    tex("…"): r"\ldots\allowbreak{}",
}


def cell(text: str) -> str:
    r"""Return escaped text with its numbers in mathematics.

    >>> print(cell("4.2e-9 ± 1e-9"), cell("-0.022"), cell("d=256 & 50 %"))
    $4.2{\times}10^{-9}$ $\pm$ $10^{-9}$ $-0.022$ d=256 \& 50 \%
    """

    def number(found: re.Match[str]) -> str:
        sign, digits, exponent = found.groups()
        if exponent is None:
            return f"${sign}{digits}$" if sign else digits
        front = "" if digits == "1" else rf"{digits}{{\times}}"
        return f"${sign}{front}10^{{{int(exponent)}}}$"

    escaped = tex(text)
    for name, symbol in _SYMBOLS.items():
        escaped = escaped.replace(name, symbol)
    return _NUMBER.sub(number, escaped)


def row(cells: Iterable[str]) -> str:
    """Return the cells as one row."""
    # Braces: after the \\ of the row before, a bracket would open its optional argument.
    return "    {}" + " & ".join(cells) + r" \\"


def tabular(columns: str, head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a booktabs table of cells that are LaTeX already; `columns` is its preamble."""
    lines = [r"    \toprule", row(head), r"    \midrule", *map(row, rows), r"    \bottomrule"]
    return [rf"  \begin{{tabular}}{{{columns}}}", *lines, r"  \end{tabular}"]


def document(body: Iterable[str], packages: str = PACKAGES) -> str:
    """Return an article that compiles, with the lines of `body` in it."""
    return "\n".join([r"\documentclass{article}", packages, r"\begin{document}", *body, r"\end{document}"])


# -- a report -------------------------------------------------------------------------------------------------------


def report_latex(report: Report) -> str:
    """Return two to four tables with the thresholds in the caption, ready to be put into a paper."""
    name = tex(report.method or "the network")
    heads = {q.title: q.latex for q in PER_SITE if q.latex}
    limits = ", ".join(f"{f['check']} flags at {f['flags_when']}" for f in report.findings)
    captions = (
        f"Per-layer state of {name}: {tex(view.conditions_line(report))}",
        f"Precision of {name}'s reference, by site",
    )
    tables = [(caption, head, rows[:-1]) for caption, (head, rows) in zip(captions, view.layer_tables(report))]
    tables += [(f"Accuracy of {name} by depth, readouts refitted", *grid) for grid in depth_table(report)]
    checks = f"Checks of {name} ({tex(f'edition {report.edition}')}; {tex(limits)}). {tex(report.verdict_line)}"
    lines = []
    for caption, head, rows in (*tables, (checks, *view.finding_rows(report))):
        columns = "".join("l" if left else "r" for left in view.stands_left(head))
        cells = [[tex(cell) for cell in cells] for cells in rows]
        lines += [r"\begin{table}", r"  \centering", rf"  \caption{{{caption}.}}"]
        lines += [*tabular(columns, [heads.get(h, tex(h)) for h in head], cells), r"\end{table}"]
    return "\n".join(lines)


# -- a table --------------------------------------------------------------------------------------------------------

# Columns that say what a row is of.
LABELS = (
    *("network", "terminal LN", "rule", "credit site", "λ", "epoch", "epochs", "seed", "site", "data", "model"),
    *("quantity", "condition", "strategy", "runs", "check", "validation"),
)


class Page(NamedTuple):
    """What a page of an article takes: characters across, lines down; and how narrow a column of text may get."""

    across: int
    down: int
    least: int


UPRIGHT, SIDEWAYS = Page(80, 38, 22), Page(128, 24, 12)
SMALL = 0.8  # the scale under which another layout is tried


class Part(NamedTuple):
    """Some rows and columns of a table, by index, and how they are set."""

    suffix: str
    words: str
    rows: list[int]
    columns: list[int]
    page: Page = UPRIGHT
    widths: tuple[int, ...] = ()
    scale: float = 1.0


def table_latex(table: Table, bold: Collection[tuple[int, int]] = (), caption: str = "") -> str:
    """Return all tables that a Table becomes; the preamble needs PACKAGES.

    Args:
        bold: (row, column) of the cells to be set in bold.
        caption: sentences after the title of ours.
    """
    whole, notes = _ours(table), table.notes
    if any(row.get("n") == 0 for i, row in enumerate(table.data) if i not in whole.rows):
        notes = (*notes, "rows without a run are left out")
    ours = _pages(table, _laid_out(table, whole), ceil(sum(len(note) for note in notes) / 110))
    theirs = [page for part in _published(table) for page in _pages(table, _laid_out(table, part))]
    floats = [_float(table, part, bold, caption, notes if part is ours[-1] else ()) for part in ours]
    floats += [_float(table, part) for part in theirs]
    missing = [f"% Missing: {tex(line)}" for line in table.missing]
    return "\n".join([f"% Needs {PACKAGES}", *missing, *floats])


# -- which rows and columns -----------------------------------------------------------------------------------------


def _ours(table: Table) -> Part:
    columns = [i for i, head in enumerate(table.columns) if not head.startswith("published")]
    rows = [i for i, row in enumerate(table.data) if row.get("figures") != "published"]
    with_runs = [i for i in rows if table.data[i].get("n") != 0]
    return Part("", "", with_runs or rows, columns)


def _published(table: Table) -> list[Part]:
    """Return what is published, either in rows or in columns of its own; nothing where nothing is."""
    rows = [i for i, row in enumerate(table.data) if row.get("figures") == "published"]
    beside = [i for i, head in enumerate(table.columns) if head.startswith("published")]
    if rows:
        columns = [i for i, head in enumerate(table.columns) if head not in ("figures", "n", "agrees?")]
    else:
        rows = [i for i, row in enumerate(table.rows) if any(row[c] != NONE for c in beside)]
        columns = [i for i, head in enumerate(table.columns) if head in LABELS or i in beside]
    columns = [c for c in columns if any(table.rows[r][c] != NONE for r in rows)]
    # Both of our variants have the same beside them.
    once = {tuple(table.rows[r][c] for c in columns): r for r in reversed(rows)}
    return [Part("-published", ", published", sorted(once.values()), columns)] if rows else []


# -- how it fits ----------------------------------------------------------------------------------------------------


def _laid_out(table: Table, part: Part) -> Part:
    """Return the part set upright if it fits, else sideways, its widest columns of text made narrower until it does."""
    for page in (UPRIGHT, SIDEWAYS):
        widths = [_width(table, part, c) for c in part.columns]
        least = [_least(table, part, c, page) for c in part.columns]
        while sum(widths) + 2 * len(widths) > page.across / SMALL:
            widest = max((i for i in range(len(widths)) if widths[i] > least[i]), key=widths.__getitem__, default=None)
            if widest is None:
                break
            widths[widest] -= 1
        scale = min(1.0, page.across / (sum(widths) + 2 * len(widths)))
        part = part._replace(page=page, widths=tuple(widths), scale=scale)
        if scale >= SMALL:
            break
    return part


def _pages(table: Table, part: Part, below: int = 0) -> list[Part]:
    """Return the part in pieces that each fit a page, the last with `below` more lines."""
    room = part.page.down / part.scale
    pieces: list[list[int]] = [[]]
    filled = 0
    for row in part.rows:
        cells = [table.rows[row][c] for c in part.columns]
        lines = max(ceil(_length(text) / width) for text, width in zip(cells, part.widths))
        if filled + lines > room and pieces[-1]:
            pieces.append([])
            filled = 0
        pieces[-1].append(row)
        filled += lines
    if len(pieces[-1]) > 1 and filled + below / part.scale > room:
        middle = (len(pieces[-1]) + 1) // 2
        pieces[-1:] = [pieces[-1][:middle], pieces[-1][middle:]]
    if len(pieces) == 1:
        return [part]
    return [
        part._replace(suffix=f"{part.suffix}-{i}", words=f"{part.words}, part {i} of {len(pieces)}", rows=rows)
        for i, rows in enumerate(pieces, 1)
    ]


def _numeric(table: Table, part: Part, column: int) -> bool:
    known = [table.rows[r][column] for r in part.rows if table.rows[r][column] != NONE]
    return bool(known) and all(_NUMERIC.fullmatch(text) for text in known)


def _least(table: Table, part: Part, column: int, page: Page) -> int:
    """Return the least width: numbers and words are not broken."""
    if _numeric(table, part, column):
        return _width(table, part, column)
    words = [word for r in part.rows for word in table.rows[r][column].split()]
    return max([page.least, *map(_length, words)])


def _width(table: Table, part: Part, column: int) -> int:
    """Return the characters of the longest cell; heads are broken into short lines."""
    head = [len(word) for word in table.columns[column].split()]
    return max([_length(table.rows[r][column]) for r in part.rows] + head)


def _length(text: str) -> int:
    """Return the length as set: ×10 and an exponent take more room than an e."""
    return max(1, len(text) + 2 * len(re.findall(r"\de[+-]?\d", text)))


# -- setting it -----------------------------------------------------------------------------------------------------


def _float(
    table: Table, part: Part, bold: Collection[tuple[int, int]] = (), caption: str = "", notes: Sequence[str] = ()
) -> str:
    kind = "sidewaystable" if part.page is SIDEWAYS else "table"
    columns = "".join(_column(table, part, c, w) for c, w in zip(part.columns, part.widths))
    heads = [_head(table.columns[c], w) for c, w in zip(part.columns, part.widths)]
    body = [[_cell(table.rows[r][c], (r, c) in bold) for c in part.columns] for r in part.rows]
    title = ". ".join(cell(text.rstrip(".")) for text in (table.title + part.words, caption) if text)
    lines = [
        rf"\begin{{{kind}}}",
        r"  \centering\small\setlength{\tabcolsep}{4pt}",
        rf"  \caption{{{title}.}}",
        rf"  \label{{tab:{table.name}{part.suffix}}}",
        r"  \resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        *tabular(columns, heads, body),
    ]
    lines[-1] += "}"
    if notes:
        text = ". ".join(cell(_sentence(note)) for note in notes)
        lines.append(rf"  \par\smallskip\parbox{{\linewidth}}{{\footnotesize\raggedright {text}.}}")
    return "\n".join([*lines, rf"\end{{{kind}}}"])


def _column(table: Table, part: Part, column: int, width: int) -> str:
    if _numeric(table, part, column):
        return "r"
    if _width(table, part, column) > width:
        return rf">{{\raggedright\arraybackslash}}p{{{0.5 * width:g}em}}"
    return "l"


def _head(text: str, width: int) -> str:
    """Return a head in short lines where it is longer than what stands below it."""
    lines = [cell(line) for line in textwrap.wrap(text, max(width, 9), break_long_words=False)]
    return lines[0] if len(lines) == 1 else r"\shortstack[l]{" + r"\\".join(lines) + "}"


def _cell(text: str, bold: bool) -> str:
    text = text.removeprefix("ours, ")  # ours has a table of its own
    return rf"\textbf{{\boldmath {cell(text)}}}" if bold else cell(text)


def _sentence(note: str) -> str:
    symbol = not note[:1].isascii() or not note[1:2].isalpha()  # n, ρ
    first = note[:1] if symbol else note[:1].upper()
    return first + note[1:].rstrip(".")
