"""Numbers held against others: ours against the published ones, and a site's cosine against its neighbours'."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from walkback.audit.records import Record, Records
from walkback.audit.settings import RULES, Setting, alike
from walkback.audit.wording import commands, how_long, lacking, penalty_words, setting_words, worded
from walkback.replication.agree import agrees_any
from walkback.replication.figures import style as st
from walkback.replication.figures.remarks import missing_note, nothing, told_apart
from walkback.replication.published import figures
from walkback.report.table import stat
from walkback.training.spec import RunSpec

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
    points = {column: _pairs(rows, column) for column in COMPARED}
    if not any(points.values()):
        raise nothing("published against ours", tables[SETTINGS[0]].missing)
    wide = width == "double"
    count = sum(len(compared) for compared in points.values())
    agree = sum(point[-1] for compared in points.values() for point in compared)
    says = f"{agree} of {count} points agree: accuracy and Γ within 0.02 or two published deviations, norms within 3x. "
    says += "Ours: the default recipe."
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


def _pairs(rows: Sequence[tuple[str, dict[str, Any]]], column: str) -> list[tuple[str, str, float, float, float, bool]]:
    """Return (rule, variant, published, ours, standard deviation of ours, whether they agree).

    The first firm figure that is published without other conditions stands for all.
    """
    codes, found = {label: code for code, label in RULES.items()}, []
    for where, row in rows:
        cell, code = row.get(column), codes.get(row["rule"])
        given = figures(where, code, what=COMPARED[column][0]) if code and cell else ()
        firm = [f for f in given if isinstance(f.value, float) and not (f.unlike or f.bound or f.rough or f.penalty)]
        if firm and cell:
            same = agrees_any(cell["mean"], given) is True
            found.append((row["rule"], st.variant(row), firm[0].number, cell["mean"], cell["std"] or 0.0, same))
    return found


def _scatter(ax: Axes, points: Sequence[tuple[str, str, float, float, float, bool]], label: str, log: bool) -> None:
    for rule, variant, published, ours, std, _ in points:
        low = min(std, 0.99 * ours) if log else std
        style = st.look(rule, linestyle="", elinewidth=0.6, markersize=4, **FACES[variant])
        ax.errorbar(published, ours, yerr=[[low], [std]], **style)
    values = [x for _, _, published, ours, *_ in points for x in (published, ours)]
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
    groups = alike(records).items()
    known = {spec: measured for spec, runs in groups if spec.scope == "all" and (measured := _with_neighbours(runs))}
    rules = Counter(_task(spec) for spec in known)  # a task with many rules comes first, and its rules together
    order = sorted(known, key=lambda s: (-rules[_task(s)], _task(s), st.rule_order(RULES.get(s.rule, s.rule))))
    settings = {spec: known[spec] for spec in order}
    if not settings:
        missing = commands(lacking(records, Setting("dfa"), controls=False), records.store)
        raise nothing("the cosine with neighbouring sites (older records do not have it)", missing)
    names = [(RULES.get(s.rule, s.rule), setting_words(s, *worded(s.rule_options))) for s in settings]
    says, headings = told_apart(names[:MOST])
    drawn = list(zip(settings.values(), headings))
    across = min(len(drawn), {"single": 2, "double": 3}[width])
    lines = -(-len(drawn) // across)
    seeds = [(heading, "", len(runs)) for runs, heading in drawn]
    more = f"{len(settings) - MOST} more settings are not drawn." if len(settings) > MOST else ""
    fig = st.canvas(width, 0.4 + 1.5 * lines, missing_note((), seeds, more), says)
    panels = [ax for row in st.grid(fig, lines, across, sharey=True) for ax in row]
    for ax, (runs, heading) in zip(panels, drawn):
        for name, look in PAIRINGS.items():
            lists = [values for run in runs if (values := run.report.per_layer.get(name))]
            cells = [(site, stat(column)) for site, column in enumerate(zip(*lists))]
            known = [(site, cell) for site, cell in cells if cell is not None]
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


def _task(spec: RunSpec) -> str:
    """Return what a rule is trained on: its network, data, penalty and length."""
    return " ".join([spec.net, *worded(spec.net_options), spec.data, *penalty_words(spec), *how_long(spec)])


def _with_neighbours(runs: Sequence[Record]) -> tuple[Record, ...]:
    """Return the runs whose cosines with neighbouring sites were measured."""
    return tuple(run for run in runs if any(run.report.per_layer.get("cosine_above") or ()))
