"""‖h‖, ‖g‖, cosine and accuracy by site, as they are drawn: one source for the card of a report and for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from walkback.measures.worth import RANDOM, TRAINED, Depth
from walkback.verdict.findings import about

if TYPE_CHECKING:
    from walkback.report.report import Report

Numbers = Sequence[float | None]
ACCURACY = "accuracy"


class SitePanel(NamedTuple):
    """One quantity by site, with what is drawn around it.

    Args:
        name: of the quantity.
        values: one per site, None where it was not measured.
        log: whether its axis is logarithmic.
        limit: of its check, None where the edition has none.
        dashes: where the check flags, one per site; empty without a limit.
        band: (low, high) of the null, empty where it was not measured.
        marks: the same quantity as scripts compute it, empty where that was not measured.
        others: name -> what is drawn beside the values, one number per site each.
    """

    name: str
    values: Numbers
    log: bool = True
    limit: float | None = None
    dashes: Numbers = ()
    band: tuple[Numbers, Numbers] | tuple[()] = ()
    marks: Numbers = ()
    others: Mapping[str, Numbers] = MappingProxyType({})


def limits_of(report: Report) -> dict[str, float]:
    """Return where D1 and D2 flag, as "growth" and "reference"; the intrinsic edition has no floor of a norm."""
    drawn = ("growth",) if report.edition == "intrinsic" else ("growth", "reference")
    return {about(f): f["limit"] for f in report.findings if about(f) in drawn}


def site_panels(
    per_layer: Mapping[str, Numbers | None],
    limits: Mapping[str, float | None],
    depth: Mapping[str, Any] | None = None,
) -> tuple[SitePanel, ...]:
    """Return the panels of a report of which something was measured.

    Args:
        per_layer: of the report.
        limits: what `limits_of` returns.
        depth: of the report, where it was measured.

    >>> panels = site_panels({"h_norm": [1.0, 3.0], "g_norm": [None, None]}, {"growth": 50.0})
    >>> [(panel.name, panel.dashes) for panel in panels]
    [('‖h‖', [None, 50.0])]
    """
    h, g, cosine, clamped, low, high = (
        per_layer.get(name) or [] for name in ("h_norm", "g_norm", "cosine", "cosine_clamped", "null_low", "null_high")
    )
    steep, floor = limits.get("growth"), limits.get("reference")
    before = [None, *(None if x is None or steep is None else steep * x for x in h[:-1])]
    panels = (
        SitePanel("‖h‖", h, limit=steep, dashes=before),
        SitePanel("‖g‖", g, limit=floor, dashes=[] if floor is None else [floor] * len(g)),
        SitePanel("cosine", cosine, log=False, band=(low, high) if low and high else (), marks=clamped),
        *(() if depth is None else (depth_panel(Depth.of(depth)),)),
    )
    return tuple(panel for panel in panels if measured(panel.values))


def depth_panel(found: Depth) -> SitePanel:
    """Return accuracy by depth: probes of the trained sites and of the random ones, the stem and the inputs alone."""
    trained, random = found.by_depth[TRAINED], found.by_depth.get(RANDOM)
    alone = {"stem alone": found.without_all, "inputs alone": found.pixels}
    lines = {name: [a] * len(trained) for name, a in alone.items() if a is not None}
    return SitePanel(ACCURACY, trained, log=False, others={RANDOM: random, **lines} if random else lines)


def measured(values: Numbers) -> bool:
    """Return whether there is a number among the values."""
    return any(x is not None for x in values)
