"""How every figure looks: sizes, colours, markers, thresholds, and the line that says what is missing."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from math import ceil, floor, isfinite, log10
from pathlib import Path
from string import ascii_lowercase
from typing import Any, Literal

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.axis import Axis, Tick
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Annotation, Text
from matplotlib.ticker import LogLocator, NullFormatter

from walkback.audit.records import Records
from walkback.audit.settings import RULES
from walkback.errors import FormatError, InputError, WalkbackError, shown
from walkback.files import write_whole
from walkback.replication.tables import evidence
from walkback.report.table import Table
from walkback.verdict.checks import DiagnosticThresholds

Width = Literal["single", "double"]
WIDTHS: dict[Width, float] = {"single": 3.25, "double": 6.75}  # inches: a column, and both, of a two-column paper
FORMATS, DPI = ("pdf", "svg", "png"), 300
LIMITS = DiagnosticThresholds()

# Okabe and Ito's palette, which colour-blind readers can tell apart; marker and line style do it in greyscale.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, RED, PINK = "#0072B2", "#D55E00", "#CC79A7"
GREY, PALE = "#767676", "#E6E6E6"
DASHED = (0, (2, 1))
NOTE, LETTER, HEADING = "missing-note", "panel-letter", "heading"  # how these texts are found in a figure
_LOOKS: dict[str, tuple[str, str, Any]] = {
    "BP": (BLACK, "o", "-"),
    "FA": (BLUE, "s", (0, (5, 1.5))),
    "DFA": (RED, "^", (0, (5, 1.2, 1.2, 1.2))),
    "State Bridge": (GREEN, "D", (0, (1.2, 1.2))),
    "Credit Bridge": (PINK, "v", (0, (3, 1, 1, 1, 1, 1))),
    "EP": (ORANGE, "<", (0, (8, 2))),
}
_OTHER = (SKY, "X", (0, (2, 2)))  # rules that are not ours


def styled() -> AbstractContextManager[None]:
    """Set our look, of `paper.mplstyle`, whatever the user's matplotlibrc says; everything is as it was afterwards."""
    return matplotlib.style.context(["default", "walkback.replication.figures.paper"])


@dataclass(frozen=True)
class Drawing:
    """One figure of the papers: Records -> Figure, in our look whoever calls it. `place` orders the figures."""

    name: str
    about: str
    place: int
    draw: Callable[[Records, Width], Figure]

    def __call__(self, records: Records, width: Width = "double", notes: bool = True) -> Figure:
        """Return the figure of these runs, for one column or two; `notes` is the line about what is missing."""
        with styled():
            try:
                fig = self._drawn(records, width)
            except WalkbackError:
                raise
            except ValueError:  # of a run's name that is no mathematics: all labels as they are written
                with matplotlib.rc_context({"text.parse_math": False}):
                    fig = self._drawn(records, width)
            return fig if notes else _without_note(fig)

    def _drawn(self, records: Records, width: Width) -> Figure:
        fig = self.draw(records, width)
        panels = [ax for ax in fig.axes if ax.get_visible() and ax.spines["left"].get_visible()]
        _headings(fig, panels)
        _letters(fig, panels)
        return fig


SIZES, FREE, LIFTED = (7.0, 6.5, 6.0), 20.0, 12.5  # points: headings, what a letter needs, a heading over letters
# Where a panel's letter may stand: above its left edge, beside it, inside its corner; the first that is free.
_PLACES = (((-3.5, 2.5), "right", "bottom"), ((-3.5, 0.0), "right", "top"), ((2.5, -2.5), "left", "top"))


def _headings(fig: Figure, panels: Sequence[Axes]) -> None:
    """Set all headings so large that none reaches the letter of the next panel, or lift them over it."""
    fig.draw_without_rendering()  # for their places
    found: list[tuple[Axes, Annotation, float]] = []  # with where each has to end
    for ax in panels:
        row = [p.bbox for p in panels if p.bbox.y0 < ax.bbox.y1 and ax.bbox.y0 < p.bbox.y1]
        beside = [box.x0 - FREE * fig.dpi / 72 for box in row if box.x0 > ax.bbox.x1]
        end = min(beside, default=fig.bbox.x1)
        found += [(ax, text, end) for text in ax.texts if text.get_gid() == HEADING and isinstance(text, Annotation)]
    for size in SIZES:
        for _, text, _ in found:
            text.set_fontsize(size)
        if all(text.get_window_extent().x1 <= end for _, text, end in found):
            return
    for ax, text, _ in found:
        ax.set_title(f"{ax.get_title('left')}\n ", loc="left")  # room for the letters under it
        text.set_position((0, LIFTED))


def _letters(fig: Figure, panels: Sequence[Axes]) -> None:
    """Write a, b, c, … at the upper left corner of every panel, where no other text is."""
    fig.draw_without_rendering()  # for the places of all texts
    unseen = {id(tick.label1) for ax in fig.axes for axis in (ax.xaxis, ax.yaxis) for tick in _out_of_view(axis)}
    texts = [text for text in fig.findobj(Text) if text.get_visible() and text.get_text().strip()]
    texts = [text for text in texts if id(text) not in unseen]
    boxes, page = [text.get_window_extent() for text in texts], fig.bbox
    bold = {"fontsize": 7.5, "fontweight": "bold", "annotation_clip": False, "zorder": 6, "gid": LETTER}
    for name, ax in zip(ascii_lowercase, panels if len(panels) > 1 else ()):
        letter = words(ax, name, (0, 1), (0, 0), "axes fraction", **bold)
        letter.set_in_layout(False)
        for place, across, down in _PLACES:
            letter.set(ha=across, va=down)
            letter.set_position(place)
            box = letter.get_window_extent()
            if page.x0 <= box.x0 and box.y1 <= page.y1 and not any(box.overlaps(other) for other in boxes):
                break
        letter.set_bbox(white(0.3, alpha=0.75))


def _out_of_view(axis: Axis) -> list[Tick]:
    """Return the ticks beyond the limits of an axis: matplotlib keeps their labels, and does not draw them."""
    low, high = sorted(axis.get_view_interval())
    return [tick for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high]


def _without_note(fig: Figure) -> Figure:
    """Take the line about what is missing off a figure, and the room it had."""
    for note in [text for text in fig.texts if text.get_gid() == NOTE]:
        share = _strip(note.get_text().split("\n")) / fig.get_figheight()
        note.remove()
        engine = fig.get_layout_engine()
        assert engine is not None
        x, y, w, h = engine.get()["rect"]  # type: ignore[index]
        fig.set_figheight(fig.get_figheight() * (1 - share))
        engine.set(rect=(x, max(0.0, y - share) / (1 - share), w, h / (1 - share)))  # type: ignore[call-arg]
        for text in fig.texts:
            text.set_y((text.get_position()[1] - share) / (1 - share))
    return fig


def paper_figure(place: int) -> Callable[[Callable[[Records, Width], Figure]], Drawing]:
    """Make a function a figure, named after it and described by the first line of its docstring.

    Args:
        place: where it stands among the figures; they count in tens.
    """

    def made(draw: Callable[[Records, Width], Figure]) -> Drawing:
        about = (draw.__doc__ or "").strip().splitlines()[0]
        return Drawing(draw.__name__.replace("_", "-"), about, place, draw)

    return made


def look(rule: str, **more: Any) -> dict[str, Any]:
    """Return the keywords of a rule's line: colour, marker, line style.

    >>> look("BP")["marker"], look("a rule of yours")["marker"]
    ('o', 'X')
    """
    color, marker, line = _LOOKS.get(rule, _OTHER)
    return {"color": color, "marker": marker, "linestyle": line, **more}


def key(rule: str, **more: Any) -> Line2D:
    """Return a rule's entry in a legend."""
    return handle(rule, **look(rule, **more))


def handle(text: str, **style: Any) -> Line2D:
    """Return a line or mark in a legend."""
    return Line2D([], [], label=text, **style)


def small_legend(ax: Axes, handles: Sequence[Any] | None = None, **options: Any) -> None:
    """Draw a legend inside a panel."""
    given = {} if handles is None else {"handles": list(handles)}
    ax.legend(**given, **{"loc": "upper center", "borderaxespad": 0.1, "fontsize": 5.2, **options})


def canvas(width: Width, height: float, note: str = "", says: str = "") -> Figure:
    """Return an empty figure of a column's width; `says` and `note` go into lines of their own at the bottom.

    Args:
        height: of what is drawn, in inches; the lines are added to it.
        note: what is missing, which can be left out.
        says: what a reader needs to understand the picture, which can not.
    """
    if width not in WIDTHS:
        raise InputError(f'Expected width to be "single" or "double", but got {shown(width)}.')
    inches = WIDTHS[width]
    lines, fixed = (textwrap.wrap(text, round(24.5 * inches)) for text in (note, says))
    total = height + _strip(lines) + _strip(fixed)
    share = 1 - height / total
    fig = Figure((inches, total), layout="constrained")
    engine = fig.get_layout_engine()
    assert engine is not None
    engine.set(rect=(0, share, 1, 1 - share), w_pad=0.03, h_pad=0.03, wspace=0.02, hspace=0.03)  # type: ignore[call-arg]
    small = {"fontsize": 5.2, "color": "#555555", "va": "bottom"}
    if lines:
        fig.text(0.01, 0.012 / total, _typeset(lines), gid=NOTE, **small)
    if fixed:
        fig.text(0.01, (0.012 + _strip(lines)) / total, _typeset(fixed), **small)
    return fig


def _typeset(lines: Sequence[str]) -> str:
    """Return lines with their norms as the axes have them: ‖g_L‖ with its index set low."""
    return re.sub(r"‖(\w)_(\w)‖", r"$\\|\1_\2\\|$", "\n".join(lines))


def _strip(lines: Sequence[str]) -> float:
    """Return how many inches lines at the bottom take."""
    return 0.095 * len(lines) + 0.03 if lines else 0.0


def grid(fig: Figure, rows: int, columns: int, **options: Any) -> list[list[Axes]]:
    """Return axes by row and column, always as nested lists."""
    return [list(row) for row in fig.subplots(rows, columns, squeeze=False, **options)]


def legend(fig: Figure, handles: Sequence[Any], columns: int) -> None:
    """Draw one legend for all panels, above them: it hides no data."""
    if handles:
        fig.legend(handles=list(handles), loc="outside upper center", ncols=min(columns, len(handles)))


def heading(ax: Axes, text: str) -> None:
    """Write a title over a row of panels: it may run over its neighbours, which a plain title would push away."""
    ax.set_title("\n".join(" " for _ in text.split("\n")), loc="left")
    look = {"va": "bottom", "fontsize": SIZES[0], "annotation_clip": False, "gid": HEADING}
    words(ax, text, (0, 1), (0, 3.5), "axes fraction", **look).set_in_layout(False)


def words(ax: Axes, text: str, at: Any, offset: tuple[float, float], coords: Any = "data", **more: Any) -> Annotation:
    """Write a text some points away from a place."""
    return ax.annotate(text, at, xycoords=coords, xytext=offset, textcoords="offset points", **more)


def over(ax: Axes, text: str, x: float, offset: float) -> None:
    """Write a small text above the frame, over x."""
    style = {"ha": "center", "va": "bottom", "fontsize": 5.2, "color": "#555555"}
    words(ax, text, (x, 1), (0, offset), ("data", "axes fraction"), **style)


def white(pad: float, **more: Any) -> dict[str, Any]:
    """Return a white box behind a text."""
    return {"facecolor": "white", "edgecolor": "none", "pad": pad, **more}


def on_log(values: Iterable[float]) -> list[float]:
    """Return the values that a log axis can hold.

    >>> on_log([0.0, 2.0, float("inf"), -1.0])
    [2.0]
    """
    return [v for v in values if isfinite(v) and v > 0]


def logarithmic(ax: Axes, which: Literal["x", "y"], label: str, values: Iterable[float], most: int = 5) -> None:
    """Make a labelled log axis over the values it can hold with some room, and about `most` ticks on whole decades."""
    held = on_log(values) or [1.0, 10.0]
    first, last = log10(min(held)), log10(max(held))
    room = 0.06 * max(last - first, 1.0)
    if floor(last + room) - ceil(first - room) < 1:  # a point alone: the decades around it give the axis two ticks
        first, last = floor(first), max(ceil(last), floor(first) + 1)
    step = max(1, ceil((last - first) / most))
    axis = ax.xaxis if which == "x" else ax.yaxis
    limits = (10 ** (first - room), 10 ** (last + room))
    # Limits first: without them a log scale looks for positive data, of which there may be none.
    ax.set(**{f"{which}lim": limits, f"{which}scale": "log", f"{which}label": label})
    axis.set_major_locator(LogLocator(10.0**step, numticks=20))
    axis.set_minor_locator(LogLocator(10.0, numticks=40))
    axis.set_minor_formatter(NullFormatter())


def threshold(ax: Axes, which: Literal["x", "y"], at: float, flags: Literal["above", "below"], text: str = "") -> None:
    """Draw a threshold, and shading on the side where its check flags; `text` stands above a vertical one."""
    low, high = ax.get_xlim() if which == "x" else ax.get_ylim()
    ends = (at, high) if flags == "above" else (low, at)
    span, line = (ax.axvspan, ax.axvline) if which == "x" else (ax.axhspan, ax.axhline)
    span(*ends, color=PALE, lw=0, zorder=0)
    line(at, color=GREY, lw=0.7, ls=DASHED, zorder=1)
    if text:
        over(ax, text, at, 1.5)


def threshold_key(text: str) -> Patch:
    """Return a threshold's entry in a legend."""
    return Patch(fc=PALE, ec=GREY, ls=DASHED, lw=0.7, label=text)


# -- what is there, and what is not ----------------------------------------------------------------------------


@lru_cache(maxsize=16)
def numbers(name: str, records: Records) -> Table:
    """Return a table of the evidence, made once for both widths."""
    return evidence(name, records)


def ours(table: Table) -> list[dict[str, Any]]:
    """Return the rows of our own runs, as numbers by column; rows without a run are left out."""
    return [row for row in table.data if str(row.get("figures")).startswith("ours") and row.get("n")]


def variant(row: dict[str, Any]) -> str:
    """Return whether a row is of augmented or of plain runs."""
    return str(row["figures"]).removeprefix("ours, ")


def variants(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return which of "augmented" and "plain" there are runs of, in this order."""
    found = {variant(row) for row in rows}
    return [v for v in ("augmented", "plain") if v in found]


def short(rule: str, wide: bool = False) -> str:
    """Return a rule's name for a narrow figure; as it is for a wide one.

    >>> short("State Bridge"), short("State Bridge", wide=True)
    ('SB', 'State Bridge')
    """
    return rule if wide else {"State Bridge": "SB", "Credit Bridge": "CB"}.get(rule, rule)


def rule_order(rule: str) -> int:
    """Return rules in the order of the tables, others after them."""
    names = list(RULES.values())
    return names.index(rule) if rule in names else len(names)


# -- writing ---------------------------------------------------------------------------------------------------


def save_figure(fig: Figure, path: str | Path, dpi: int = DPI) -> Path:
    """Write a figure as .pdf, .svg or .png; the same figure gives the same bytes.

    Args:
        dpi: of .png.
    """
    path = Path(path)
    kind = path.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise InputError(f"Expected a figure to end in .{', .'.join(FORMATS)}, but got {path.name!r}.")
    # No date and no version of matplotlib in the file.
    empty = {"pdf": {"CreationDate": None, "Creator": None, "Producer": None}, "svg": {"Date": None, "Creator": None}}
    asked: Any = {"format": kind, "dpi": dpi, "metadata": empty.get(kind, {"Software": None})}
    try:
        drawn = BytesIO()
        with styled():
            try:
                fig.savefig(drawn, **asked)
            except ValueError:  # of a run's name that is no mathematics: all labels as they are written
                for text in fig.findobj(Text):
                    text.set_parse_math(False)  # type: ignore[attr-defined]
                fig.savefig(drawn := BytesIO(), **asked)
        return write_whole(path, drawn.getvalue())
    except OSError as error:
        raise FormatError(f"Expected to write {path}, but: {error}.") from None
