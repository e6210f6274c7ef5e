"""Numbers held against others: ours against the published ones, and a site's cosine against its neighbours'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from walkback.audit.records import Records
from walkback.audit.settings import RULES, Setting
from walkback.audit.wording import commands, lacking, setting_words, worded
from walkback.replication.drawn import Compared, beside_published, by_site, with_neighbours
from walkback.replication.figures import style as st
from walkback.replication.figures.remarks import missing_note, nothing, told_apart

# Of the tables: column -> published quantity, label, whether its axis is logarithmic.
COMPARED = {
    "acc": ("acc", "test accuracy", False),
    "Γ": ("gamma", r"$\Gamma$", False),
    "‖h_L‖": ("h_norm", r"$\|h_L\|$", True),
    "‖g_L‖": ("g_norm", r"$\|g_L\|$ (÷ 128)", True),
}
SETTINGS = ("primary", "wide-shallow")
FACES: dict[str, dict[str, str]] = {"augmented": {}, "plain": {"markerfacecolor": "white"}}


@st.paper_figure(15)
def published_against_ours(records: Records, width: st.Width) -> Figure:
    """Published against ours: accuracy, Γ, ‖h_L‖ and ‖g_L‖ of every rule, with the identity line and what agrees."""
    tables = {name: st.numbers(name, records) for name in SETTINGS}
    rows = [(name, row) for name, table in tables.items() for row in st.ours(table)]
    points = {
        column: [
            (row["rule"], st.variant(row), pair)
            for where, row in rows
            if (pair := beside_published(where, row, column, what)) is not None
        ]
        for column, (what, *_) in COMPARED.items()
    }
    if not any(points.values()):
        raise nothing("published against ours", tables[SETTINGS[0]].missing)
    wide = width == "double"
    pairs = [pair for compared in points.values() for *_, pair in compared]
    agree = len([pair for pair in pairs if pair.agree])
    says = f"{agree} of {len(pairs)} points agree: accuracy and Γ within 0.02 or two published deviations, norms "
    says += "within 3x. Ours: the default recipe."
    known = {name: set(st.variants(st.ours(table))) for name, table in tables.items()}
    absent = [
        (f"{name}, {st.variant(row)}", row["rule"])
        for name, table in tables.items()
        for row in table.data
        if row["rule"] in RULES.values() and not row["n"] and st.variant(row) in known[name]
    ]
    seeds = [
        (f"{name}, {st.variant(row)}", row["rule"], row["n"]) for name, row in rows if row["rule"] in RULES.values()
    ]
    fig = st.canvas(width, 1.95 if wide else 3.6, missing_note(absent, seeds), says)
    shape = (1, 4) if wide else (2, 2)
    panels = [ax for row in st.grid(fig, *shape) for ax in row]
    for ax, (column, (_, label, log)) in zip(panels, COMPARED.items()):
        _scatter(ax, points[column], label, log)
    rules = sorted({rule for compared in points.values() for rule, *_ in compared}, key=st.rule_order)
    shown = sorted({variant for compared in points.values() for _, variant, *_ in compared})
    keys = [st.handle(v, marker="o", ls="", color=st.GREY, **({"mfc": "white"} if FACES[v] else {})) for v in shown]
    identity = st.handle("identity", color=st.GREY, lw=0.7)
    st.legend(fig, [*(st.key(rule, linestyle="") for rule in rules), *keys, identity], 9 if wide else 3)
    return fig


def _scatter(ax: Axes, points: Sequence[tuple[str, str, Compared]], label: str, log: bool) -> None:
    for rule, variant, (published, ours, std, _) in points:
        low = min(std, 0.99 * ours) if log else std
        style = st.look(rule, linestyle="", elinewidth=0.6, markersize=4, **FACES[variant])
        ax.errorbar(published, ours, yerr=[[low], [std]], **style)
    values = [x for *_, (published, ours, *_) in points for x in (published, ours)]
    if log:
        for which in ("x", "y"):
            st.logarithmic(ax, which, "", values, 4)
    else:
        low, high = min([*values, 0.0]), max([*values, 0.1])
        room = 0.06 * (high - low)
        ax.set(xlim=(low - room, high + room), ylim=(low - room, high + room))
    ax.axline((1, 1), (10, 10), color=st.GREY, lw=0.7, zorder=1) if log else ax.axline(
        (0, 0), slope=1, color=st.GREY, lw=0.7, zorder=1
    )
    ax.set(xlabel=f"published {label}", ylabel=f"our {label}")
    ax.set_title(" ", loc="left")  # room for the panel letter
    ax.set_box_aspect(1)


MOST = 8  # panels: they fit a page in either width
WIDEST: dict[st.Width, int] = {"single": 24, "double": 38}  # characters of a heading on one line
PAIRINGS: dict[str, dict[str, Any]] = {
    "cosine": {"color": st.BLACK, "marker": "o", "linestyle": "-"},
    "cosine_above": {"color": "#7C55B0", "marker": "^", "linestyle": (0, (5, 1.5)), "mfc": "white"},
    "cosine_below": {"color": "#9C7FC6", "marker": "v", "linestyle": (0, (1.2, 1.2)), "mfc": "white"},
}
PAIRED = {
    "cosine": "$a_l$ with $g_l$, its own site",
    "cosine_above": "$a_l$ with $g_{l+1}$, one site above",
    "cosine_below": "$a_l$ with $g_{l-1}$, one site below",
}


@st.paper_figure(25)
def cosine_pairing(records: Records, width: st.Width) -> Figure:
    """Cosine by site with the off-by-one pairing beside it: a shifted index is seen where a neighbour's is higher."""
    settings = with_neighbours(records)
    if not settings:
        missing = commands(lacking(records, Setting("dfa"), controls=False), records.store)
        raise nothing("the cosine with neighbouring sites (older records do not have it)", missing)
    names = [(RULES.get(s.rule, s.rule), setting_words(s, *worded(s.rule_options))) for s, _ in settings]
    says, headings = told_apart(names[:MOST])
    drawn = list(zip((runs for _, runs in settings), headings))
    across = min(len(drawn), {"single": 2, "double": 3}[width])
    lines = -(-len(drawn) // across)
    seeds = [(heading, "", len(runs)) for runs, heading in drawn]
    more = f"{len(settings) - MOST} more settings are not drawn." if len(settings) > MOST else ""
    fig = st.canvas(width, 0.4 + 1.5 * lines, missing_note((), seeds, more), says)
    panels = [ax for row in st.grid(fig, lines, across, sharey=True) for ax in row]
    for ax, (runs, heading) in zip(panels, drawn):
        for name, look in PAIRINGS.items():
            known = by_site(runs, name)
            line = [site for site, _ in known], [cell.mean for _, cell in known]
            ax.errorbar(*line, yerr=[cell.std or 0.0 for _, cell in known], elinewidth=0.6, markersize=3, **look)
        ax.axhline(0, color=st.GREY, lw=0.5, zorder=1)
        ax.set_xticks(range(len(runs[0].report.per_layer["cosine"] or ())))
        ax.set_xlabel("site $l$ (0: stem)")
        st.heading(ax, heading.replace(", ", ",\n", 1) if len(heading) > WIDEST[width] else heading)
    for ax in panels[len(drawn) :]:
        ax.set_visible(False)
    for ax in panels[::across]:
        ax.set_ylabel("cosine")
    st.legend(fig, [st.handle(PAIRED[name], **look) for name, look in PAIRINGS.items()], 3 if width == "double" else 1)
    return fig
