"""How credit travels back in BP, FA and DFA: a diagram, the same for every store."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from walkback.audit.records import Records
from walkback.replication.figures.style import BLACK, GREY, Width, canvas, grid, legend, look, paper_figure

Place = tuple[float, float]
SITES = (1.0, 3.0, 5.0)  # heights of h_0, h_1, h_2
READOUT, LOSS = 6.3, 7.6
FORWARD, BACK = 0.0, 1.15  # where the forward path and the credits stand
RADIUS = 6.5  # of a site, in points
LIGHT = "#F4F4F4"
SAID = {"BP": r"$a_l = (I + J_{l+1})^\top a_{l+1}$", "FA": r"$a_l = B_l\, a_{l+1}$", "DFA": r"$a_l = B_l^\top e$"}


@paper_figure(100)
def backward_paths(records: Records, width: Width) -> Figure:
    """The backward paths of BP, FA and DFA over a residual stream of two blocks; needs no runs."""
    del records  # nothing in it depends on results
    wide = width == "double"
    size = 6.0 if wide else 5.0
    fig = canvas(width, 2.8)
    for letter, name, ax in zip("abc", SAID, grid(fig, 1, 3)[0]):
        color = look(name)["color"]
        ax.set_title(f"{letter}   {name}", color=color, fontweight="bold")
        ax.set_xlabel(SAID[name], fontsize=7 if wide else 5.6)
        ax.set(xlim=(-1.5, 3.1) if wide else (-0.9, 2.5), ylim=(-1.5, 8.0), xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
        _forward(ax)
        for site, y in enumerate(SITES):
            ax.text(BACK, y, f"$a_{site}$", ha="center", va="center", color=color)
            _arrow(ax, (BACK - 0.25, y), (FORWARD, y), color=GREY, lw=0.7, ls=":", shrinkB=RADIUS)
        _direct(ax, color, size) if name == "DFA" else _chain(ax, name, color, size)
    keys = [
        Line2D([], [], color=BLACK, lw=0.7, label="forward"),
        Line2D([], [], color=look("FA")["color"], lw=1.3, label="credit, backward"),
        Line2D([], [], color=GREY, lw=0.7, ls=":", label="trains what writes $h_l$"),
        Line2D([], [], marker="s", ls="", mfc=LIGHT, color=GREY, ms=6, label="fixed random matrix"),
    ]
    legend(fig, keys, 4 if wide else 2)
    return fig


def _forward(ax: Axes) -> None:
    """Draw input, stem, two residual blocks, readout, loss: from the bottom up."""
    ax.text(FORWARD, -0.95, "$x$", ha="center", va="top")
    _arrow(ax, (FORWARD, -0.75), (FORWARD, SITES[0]), shrinkB=RADIUS)
    _box(ax, (FORWARD, 0.05), "stem", 1.1)
    for block, (low, high) in enumerate(pairwise(SITES), 1):
        _arrow(ax, (FORWARD, low), (FORWARD, high), shrinkB=RADIUS)
        _arrow(ax, (FORWARD, low), (FORWARD, high), shrinkB=RADIUS, connectionstyle="arc3,rad=-0.75")  # + h_{l-1}
        _box(ax, (FORWARD, (low + high) / 2), f"$f_{block}$", 0.5)
    _arrow(ax, (FORWARD, SITES[-1]), (FORWARD, LOSS - 0.3))
    _box(ax, (FORWARD, READOUT), "readout", 1.1)
    ax.text(FORWARD, LOSS, "loss, $e$", ha="center", va="center")
    for site, y in enumerate(SITES):
        ax.plot(FORWARD, y, marker="o", ms=2 * RADIUS, mfc="white", mec=BLACK, mew=0.8, zorder=3)
        ax.text(FORWARD, y, f"$h_{site}$", ha="center", va="center", zorder=4)


def _chain(ax: Axes, name: str, color: str, size: float) -> None:
    """Draw credit from site to site: BP through the blocks' own Jacobians, FA through fixed random matrices."""
    bold = {"color": color, "lw": 1.3}
    _arrow(ax, (FORWARD + 0.6, LOSS), (BACK, SITES[-1] + 0.42), connectionstyle="arc3,rad=-0.35", **bold)
    ax.text(BACK + 0.14, READOUT + 0.15, r"$\partial L/\partial h_2$", fontsize=size, va="center")
    for site in (1, 0):
        _arrow(ax, (BACK, SITES[site + 1] - 0.42), (BACK, SITES[site] + 0.42), **bold)
        if name == "FA":
            _box(ax, (BACK, SITES[site] + 1), f"$B_{site}$", 0.52, color, size)
        else:
            ax.text(BACK + 0.14, SITES[site] + 1, rf"$(I + J_{site + 1})^\top$", fontsize=size, va="center")


def _direct(ax: Axes, color: str, size: float) -> None:
    """Draw credit from the error straight to every site."""
    rail = BACK + 1.2
    ax.plot([FORWARD + 0.6, rail, rail], [LOSS, LOSS, SITES[0]], color=color, lw=1.3, solid_joinstyle="round")
    for site, y in enumerate(SITES):
        _arrow(ax, (rail, y), (BACK + 0.22, y), color=color, lw=1.3)
        _box(ax, (BACK + 0.78, y), rf"$B_{site}^\top$", 0.52, color, size)


def _box(ax: Axes, center: Place, text: str, wide: float, color: str = BLACK, size: float = 5.5) -> None:
    x, y = center
    corner = (x - wide / 2, y - 0.26)
    ax.add_patch(FancyBboxPatch(corner, wide, 0.52, boxstyle="square,pad=0.02", fc=LIGHT, ec=color, lw=0.7, zorder=3))
    ax.text(x, y, text, ha="center", va="center", fontsize=size, zorder=4)


def _arrow(ax: Axes, start: Place, end: Place, **style: Any) -> None:
    style = {"color": BLACK, "lw": 0.7, "shrinkA": 0, "shrinkB": 0, **style}
    ax.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=5, **style))
