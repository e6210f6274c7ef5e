"""A Table as LaTeX whose rows are chosen later: LaTeX itself breaks it into pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from walkback.report.latex import cell
from walkback.report.table import Table


def longtable(shown: Table, shares: Sequence[float]) -> list[list[str]]:
    """Return [lines before the rows, the rows, lines after them]: a page that filters puts them together again.

    Args:
        shares: of the width of a page in landscape, by column.
    """
    columns = [rf">{{\raggedright\arraybackslash}}p{{\dimexpr {share:g}\linewidth-2\tabcolsep}}" for share in shares]
    heads = [r"  \toprule", _row(shown.columns), r"  \midrule"]
    before = [
        r"% Needs \usepackage{array,booktabs,longtable,pdflscape} and a document of one column",
        r"\begin{landscape}\footnotesize\setlength{\tabcolsep}{3pt}\setlength{\extrarowheight}{2pt}",
        rf"\begin{{longtable}}{{{''.join(columns)}}}",
        rf"  \caption{{{cell(shown.title)}.}}\label{{tab:{shown.name}}}\\",
        *(*heads, r"  \endfirsthead", *heads, r"  \endhead", r"  \bottomrule", r"  \endfoot"),
    ]
    notes = ". ".join(map(cell, shown.notes))
    after = [r"\end{longtable}", rf"\noindent {notes}.", r"\end{landscape}"]
    return [before, [_row(row) for row in shown.rows], after]


def _row(cells: Iterable[str]) -> str:
    r"""Return cells as a row of LaTeX; long names may be broken, since they have no spaces to break them at.

    >>> print(_row(["my_rules:sign", "[-4.8, -3.2]"]))
      {}my\_\allowbreak{}rules:\allowbreak{}sign & [$-4.8$, $-3.2$] \\
    """
    broken = [re.sub(r"(:|/|\.|\\_)(?=[A-Za-z\\])", r"\1\\allowbreak{}", cell(text)) for text in cells]
    # Braces: after the \\ of the row before, a bracket would open its optional argument.
    return "  {}" + " & ".join(broken) + r" \\"
