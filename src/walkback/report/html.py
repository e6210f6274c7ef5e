"""One report as HTML that needs neither scripts nor a network: a fragment for notebooks, or a whole document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import pairwise
from math import ceil, floor, isfinite, log10
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from walkback.report.page_view import view
from walkback.report.panels import ACCURACY, limits_of, site_panels
from walkback.report.view import conditions_line, title, weights_line

if TYPE_CHECKING:
    from walkback.report.report import Report

Numbers = Sequence[float | None]


def asset(name: str) -> str:
    """Return a file that ships with the page."""
    return (files("walkback.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def templates() -> Environment:
    """Return the templates; everything one is given is escaped unless it is Markup."""
    return Environment(loader=FunctionLoader(asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True)


def card(report: Report) -> str:
    """Return a fragment of HTML, styled inside its own element."""
    v = view(report)
    measured = "; ".join(filter(None, (conditions_line(report), weights_line(report))))
    drawn = {"v": v, "title": title(report), "measured": measured, "panels": _panels(report, v)}
    return templates().get_template("card.html").render(css=Markup(asset("base.css")), **drawn)


def document(report: Report) -> str:
    """Return the same as a file of its own."""
    return templates().get_template("document.html").render(title=title(report), card=Markup(card(report)))


def _panels(report: Report, v: dict[str, Any]) -> list[dict[str, Any]]:
    limits = limits_of(report)
    drawn = site_panels(report.per_layer, limits, report.depth)
    how = {
        "‖h‖": f"dashes: {limits['growth']:g} × the site before, where D1 flags",
        "‖g‖": "dashes: the floor" if limits.get("reference") is not None else "without a floor",
        "cosine": v["null"] or "band: null",
        ACCURACY: "linear probes of trained sites; beside them",
    }
    return [
        {
            "svg": panel(p.name, p.values, p.log, p.dashes, p.band or ((), ()), p.others),
            "caption": f"{p.name} by site; {how[p.name]}{_key(p.others)}",
        }
        for p in drawn
    ]


# -- drawing -------------------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _RIGHT = 300, 180, 52, 12, 28, 12


# Lines beside the one of the panel: a colour and dashes each, never a colour alone; and how a caption names them.
_OTHERS = (("#0072b2", "7 3", "long dashes"), ("#d55e00", "4 3", "short dashes"), ("#009e73", "1 4", "dots"))


def _key(others: Mapping[str, Numbers]) -> str:
    """Return how the lines beside the panel's own are told apart."""
    named = [f" {name} ({look}, {values[-1]:.3f})" for (name, values), (*_, look) in zip(others.items(), _OTHERS)]
    return ",".join(named)


def panel(
    name: str,
    values: Numbers,
    log: bool = False,
    limits: Numbers = (),
    band: tuple[Numbers, Numbers] = ((), ()),
    others: Mapping[str, Numbers] | None = None,
) -> Markup:
    """Return a line over sites as SVG, with dashes at `limits`, a band between two lists, and `others` beside it; None
    and what a logarithm does not have are gaps.

    >>> panel("‖g‖", [1e-3, None, 1e-5], log=True).count("<circle")
    2
    """
    beside = list((others or {}).values())
    lists = [[_scaled(x, log) for x in row] for row in (values, limits, *band, *beside)]
    known = [x for row in lists for x in row if x is not None]
    low, high = (floor(min(known)), ceil(max(known))) if known else (0, 1)
    if not log:
        low, high = min([-0.05, *known]), max([0.05, *known])
    elif low == high:
        low, high = low - 1, high + 1

    def x(site: int) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * (site + 0.5) / len(values), 1)

    def y(value: float) -> float:
        return round(_TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - value) / (high - low), 1)

    points = [[None if v is None else (x(i), y(v)) for i, v in enumerate(row)] for row in lists]
    line, dashes, lower, upper, *more = points
    parts = [*_grid(low, high, log, y), *(_text(x(i), _HEIGHT - 10, str(i), "middle") for i in range(len(values)))]
    if all(p is not None for p in (*lower, *upper)) and lower and upper:
        corners = " ".join(f"{p[0]},{p[1]}" for p in (*lower, *reversed(upper)) if p is not None)
        parts.append(f'<polygon points="{corners}" fill="#56b4e9" fill-opacity=".3"/>')
    styles = [(dashes, 'stroke="#d55e00" stroke-dasharray="5 4"'), (line, 'stroke="currentColor"')]
    styles += [(row, f'stroke="{c}" stroke-dasharray="{d}"') for row, (c, d, _) in zip(more, _OTHERS)]
    for drawn, style in styles:
        for a, b in pairwise(drawn):
            if a is not None and b is not None:
                parts.append(f'<line x1="{a[0]}" y1="{a[1]}" x2="{b[0]}" y2="{b[1]}" stroke-width="2" {style}/>')
    for point, value in zip(line, values):
        if point is not None:
            parts.append(f'<circle cx="{point[0]}" cy="{point[1]}" r="4" fill="currentColor">')
            parts.append(f"<title>{value:z.4g}</title></circle>")
    label = f"{name}: {', '.join('not measured' if v is None else f'{v:z.3g}' for v in values)}"
    head = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}" font-size="11">'
    return Markup(f"{head}{''.join(parts)}</svg>")


def _scaled(value: float | None, log: bool) -> float | None:
    if value is None or not isfinite(value) or (log and value <= 0):  # a limit times a norm may overflow
        return None
    return log10(value) if log else value


def _grid(low: float, high: float, log: bool, y: Any) -> list[str]:
    """Return labelled lines: powers of ten, or the ends and zero."""
    if log:
        step = max(1, ceil((high - low) / 5))
        ticks = [(t, f"1e{t}") for t in range(int(low), int(high) + 1, step)]
    else:
        ticks = [(t, f"{t:+z.2f}" if t else "0") for t in (low, 0.0, high) if not t or abs(t) > (high - low) / 8]
    lines = [
        f'<line x1="{_LEFT}" y1="{y(t)}" x2="{_WIDTH - _RIGHT}" y2="{y(t)}" stroke="currentColor" '
        f'stroke-opacity="{0.5 if not log and t == 0 else 0.18}"/>'
        for t, _ in ticks
    ]
    return lines + [_text(_LEFT - 6, y(t) + 4, label, "end") for t, label in ticks]


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">{escape(text)}</text>'
