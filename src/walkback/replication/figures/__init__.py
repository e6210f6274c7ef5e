"""The papers' figures from finished runs, ready for print, one function per figure: Records -> matplotlib Figure.

Nothing is computed here: the numbers are those of `walkback.replication.tables`. A figure draws what there is and says
in a small line what it has no runs of; with nothing to draw it raises an error that names what to train. The folder is
the list of figures: every function under `style.paper_figure` in one of its files is one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from walkback.audit.records import Records
from walkback.errors import InputError, WalkbackError, shown, visible

if find_spec("matplotlib") is None:
    raise InputError(
        "Expected matplotlib, which draws the figures, but it is not installed: pip install 'walkback[report]'"
    )

from walkback.replication.figures.style import DPI, FORMATS, WIDTHS, Drawing, Width, save_figure
from walkback.replication.found import in_folder

FIGURES: dict[str, Drawing] = in_folder(__name__, Drawing)


class Saved(NamedTuple):
    """What `save_figures` wrote, and which figures it could not draw: name -> why."""

    files: tuple[Path, ...]
    not_drawn: dict[str, str]


def save_figures(
    records: Records,
    folder: str | Path,
    names: Iterable[str] = tuple(FIGURES),
    widths: Iterable[Width] = tuple(WIDTHS),
    formats: Iterable[str] = FORMATS,
    dpi: int = DPI,
    notes: bool = True,
) -> Saved:
    """Write the figures as `folder/NAME-WIDTH.FORMAT`. The same records give the same bytes.

    What can't be drawn is named on standard error, with the reason and what to train.

    Args:
        records: see `walkback.audit.records.read_records`.
        folder: made if missing.
        names: of FIGURES.
        widths: "single" is a column of a two-column paper (3.25 in), "double" both (6.75 in).
        formats: pdf, svg, png.
        dpi: of png.
        notes: whether a figure says in a line under it what it has no runs of.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:  # this one is drawn from no run
    ...     saved = save_figures(Records(Path("runs")), folder, ["backward-paths"], ["single"], ["svg"])
    >>> [file.name for file in saved.files], saved.not_drawn
    (['backward-paths-single.svg'], {})
    """
    names, widths, formats = list(names), list(widths), list(formats)
    unknown = [name for name in names if name not in FIGURES]
    if unknown:
        raise InputError(f"Expected figures of {', '.join(FIGURES)}, but got {shown(unknown[0])}.")
    files, not_drawn = [], {}
    for name in names:
        for width in widths:
            try:
                fig = FIGURES[name](records, width, notes)
            except WalkbackError as error:
                not_drawn[name] = str(error)
                print(visible(f"not drawn: {name}: {error}"), file=sys.stderr)
                break
            files += [save_figure(fig, Path(folder) / f"{name}-{width}.{kind}", dpi) for kind in formats]
    return Saved(tuple(files), not_drawn)


__all__ = ["FIGURES", "FORMATS", "WIDTHS", "Saved", "save_figure", "save_figures"]
