"""Accuracy by depth: what a linear probe reads at every site, with trained blocks and with random ones."""

from __future__ import annotations

import textwrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from walkback.audit.records import Records
from walkback.replication.figures import style as st
from walkback.replication.figures.remarks import missing_note, nothing, told_apart

Groups = dict[tuple[str, str], list[dict[str, Any]]]  # rows of each network and rule
ACROSS = {"single": 2, "double": 4}
PANELS = 12  # at most: of more, those with most runs
RANDOM: dict[str, Any] = {"color": st.GREY, "marker": "s", "linestyle": "--", "markersize": 3, "mfc": "white"}
FLOORS: dict[str, dict[str, Any]] = {
    "stem alone": {"color": st.GREY, "ls": "-.", "lw": 0.8},
    "inputs alone": {"color": st.GREY, "ls": ":", "lw": 0.8},
}


@st.paper_figure(65)
def accuracy_by_depth(records: Records, width: st.Width) -> Figure:
    """Accuracy of linear probes by site, with trained and with re-randomised blocks: do the blocks add to the stem?"""
    table = st.numbers("accuracy-by-depth", records)
    groups: Groups = {}
    for row in st.ours(table):
        groups.setdefault((row["network"], row["rule"]), []).append(row)
    if not groups:
        raise nothing("accuracy by depth", table.missing)
    every, groups = groups, most_runs(groups, PANELS)
    across = min(ACROSS[width], len(groups))
    lines = -(-len(groups) // across)
    settings, headings = told_apart([(rule, network.split(" · ")) for network, rule in groups])
    seeds = [(heading, "", rows[0]["n"]) for heading, rows in zip(headings, groups.values())]
    says = f"Readouts refitted; blocks: trained over re-randomised ones under the same stem. {settings}"
    more = f"{len(every) - len(groups)} more are in the table accuracy-by-depth." if len(every) > len(groups) else ""
    fig = st.canvas(width, 0.45 + 1.5 * lines, missing_note((), seeds, more), says)
    panels = [ax for row in st.grid(fig, lines, across, sharey=True) for ax in row]
    for ax, heading, ((_, rule), rows) in zip(panels, headings, groups.items()):
        _draw(ax, rule, rows)
        worth = f"{rows[0]['D3-outcome pp']['mean']:+z.1f} pp".replace("-", "−")
        st.heading(ax, f"{textwrap.fill(heading, 26)}:\nblocks {worth}")
    for ax in panels[len(groups) :]:
        ax.set_visible(False)
    for ax in panels[::across]:
        ax.set_ylabel("test accuracy")
    keys = [
        st.handle("trained (mark of the rule)", color=st.BLACK, marker="o", ms=3),
        st.handle("re-randomised", **RANDOM),
    ]
    st.legend(fig, [*keys, *(st.handle(name, **look) for name, look in FLOORS.items())], 4 if width == "double" else 2)
    return fig


def most_runs(groups: Groups, most: int) -> Groups:
    """Return the groups with most runs, `most` of them, in the order in which they come."""
    kept = sorted(groups, key=lambda key: -int(groups[key][0]["n"]))[:most]
    return {key: rows for key, rows in groups.items() if key in kept}


def _draw(ax: Axes, rule: str, rows: list[dict[str, Any]]) -> None:
    sites = [row["site"] for row in rows]
    for name, look in (("trained", st.look(rule, markersize=3, linestyle="-")), ("re-randomised", RANDOM)):
        cells = [row[name] for row in rows]
        ax.errorbar(sites, [c["mean"] for c in cells], yerr=[c["std"] or 0.0 for c in cells], elinewidth=0.6, **look)
    for name, look in FLOORS.items():
        if rows[0][name] is not None:
            ax.axhline(rows[0][name]["mean"], **look)
    ax.set_xticks(sites)
    ax.set_xlabel("site $l$ (0: stem)")
