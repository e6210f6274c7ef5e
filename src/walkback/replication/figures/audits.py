"""Judged settings as pictures: the reporting pair, the state of every layer, the networks side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from walkback.audit.records import Records
from walkback.replication.drawn import own_tasks
from walkback.replication.figures import style as st
from walkback.replication.figures.remarks import missing_note, not_measured, nothing, off_axis, told_apart
from walkback.replication.tables.build import failed_words

Row = dict[str, Any]
PAIR = (("primary", "ResMLP d=256 L=4"), ("wide-shallow", "ResMLP d=512 L=2"))
FROZEN = "frozen, "
TALLEST = 7.4  # inches
# Marks of the controls: the same keywords draw them and stand in the legend.
MATCHED = {"marker": "|", "ms": 6, "mew": 1.4, "ls": "", "color": st.GREY}
STRONGER = {"marker": "x", "ms": 3.5, "mew": 0.8, "ls": "", "color": st.GREY}
OVER_STRONGER = {"marker": "o", "ms": 2.4, "mew": 0.6, "ls": "", "color": st.GREY, "mfc": "white"}
SMALL = {"markerfacecolor": "white", "markersize": 2.4, "elinewidth": 0.5, "markeredgewidth": 0.6}


def point(ax: Axes, cell: Any, y: float, rule: str, **more: Any) -> None:
    """Draw mean ± standard deviation of a cell of a table on the line `y`; nothing where nothing was measured."""
    if cell is not None:
        ax.errorbar(cell["mean"], y, xerr=cell["std"], **st.look(rule, **{"linestyle": "", "elinewidth": 0.8, **more}))


def gain(ax: Axes, cell: Any, y: float, rule: str, **more: Any) -> None:
    """Draw D3: the gain over frozen blocks with its interval."""
    if cell is not None:
        low, high = cell["interval"] or (cell["value"], cell["value"])
        error = [[cell["value"] - low], [high - cell["value"]]]
        ax.errorbar(cell["value"], y, xerr=error, **st.look(rule, **{"linestyle": "", "elinewidth": 0.8, **more}))


def verdict(cell: Any) -> str:
    r"""Return a verdict in as few words as fit beside a row; checks that fail on some seeds only say on how many.

    >>> cell = {"verdict": "walked back", "failed": {"D1": 1, "D2": 1, "D3": 3}, "n": 3}
    >>> verdict(cell), verdict({**cell, "failed": {"D3": 3}})
    ('walked back:\nD1 and D2 (1/3) D3', 'walked back:\nD3')
    """
    if cell is None:
        return ""
    if cell["verdict"] == "walked back":
        return f"walked back:\n{failed_words(cell['failed'], cell['n'])}"
    return cell["verdict"] + "*" * _is_starred(cell)


def _is_starred(cell: Any) -> bool:
    """Return whether a verdict stands without D3."""
    return cell is not None and cell["verdict"] != "walked back" and not cell["depth_tested"]


def _by_rule(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: st.rule_order(row["rule"]))


def _is_control(row: Row) -> bool:
    return row["rule"].startswith(FROZEN)


@st.paper_figure(10)
def reporting_pair(records: Records, width: st.Width) -> Figure:
    """Accuracy and Γ, the standard pair, beside what the pair does not say: the gain over frozen blocks."""
    groups, absent = _published_settings(records)
    says = ""
    if max((len(rows) for _, rows in groups), default=0) < 2:  # a store of one's own, or of other conventions
        says, own = _own_settings(records)
        groups, absent = (own, []) if own else (groups, absent)
    if not groups:
        raise nothing("the reporting pair", st.numbers(PAIR[0][0], records).missing)
    drawn = [(label, row) for label, rows in groups for row in rows]
    wide, heights = width == "double", [len(rows) for _, rows in groups]
    without = not_measured("Γ", [(label, row["rule"], row["Γ"]) for label, row in drawn])
    seeds = [(label, row["rule"], row["n"]) for label, row in drawn]
    note = missing_note(absent, seeds, without)
    says = " ".join(filter(None, (says, _untested(row for _, row in drawn))))
    fig = st.canvas(width, (0.65 if wide else 1.05) + 0.19 * len(drawn) + 0.36 * len(groups), note, says)
    shares = {"height_ratios": [n + 1 for n in heights], "width_ratios": (1, 1, 1.15)}
    panels = st.grid(fig, len(groups), 3, sharey="row", sharex="col", **shares)
    limits = _gain_limits([row[c] for _, row in drawn for c in ("D3 pp", "D3 pp, BP stem")])
    for i, ((label, rows), (left, middle, right)) in enumerate(zip(groups, panels)):
        for y, row in enumerate(rows):
            rule = row["rule"]
            point(left, row["acc"], y, rule, zorder=3)
            for control, mark in zip(row["controls"], (MATCHED, STRONGER)):
                if control is not None:
                    left.plot(control, y, **mark, zorder=2)
            point(middle, row["Γ"], y, rule)
            gain(right, row["D3 pp, BP stem"], y + 0.25, rule, **SMALL)
            gain(right, row["D3 pp"], y - 0.1, rule)
        names = [st.short(row.get("name", row["rule"]), wide) for row in rows]
        left.set_yticks(range(len(rows)), [name if wide else name.replace(", ", ",\n", 1) for name in names])
        left.set_ylim(len(rows) - 0.4, -0.6)
        left.margins(x=0.12)
        st.heading(left, textwrap.fill(label, 90 if wide else 44))
        middle.axvline(0, color=st.GREY, lw=0.5)
        right.set_xlim(limits)
        st.threshold(right, "x", st.LIMITS.frozen_acc_margin_pp, "below", "" if i else "D3 flags below 2")
        _beside(right, [(y, verdict(row["three-check"])) for y, row in enumerate(rows)])
    last = panels[-1]
    last[1].set_xlim(left=min(-0.1, last[1].get_xlim()[0]), right=1.1)
    for ax, text in zip(last, _PAIR_LABELS[wide]):
        ax.set_xlabel(text)
    keys = [
        st.handle("frozen blocks, stem by the same rule", **MATCHED),
        st.handle("frozen blocks, stem by BP", **STRONGER),
        st.handle("gain over the control with the BP stem", **OVER_STRONGER),
    ]
    st.legend(fig, keys, 3 if wide else 1)
    return fig


Group = tuple[str, list[Row]]


def _published_settings(records: Records) -> tuple[list[Group], list[tuple[str, str]]]:
    """Return the settings of the papers' tables, each with a row per rule, and (setting, rule) of what has no run."""
    groups: list[Group] = []
    absent: list[tuple[str, str]] = []
    for name, network in PAIR:
        table = st.numbers(name, records)
        rows = st.ours(table)
        for v in st.variants(rows):
            label, here = f"{network}, {v}", [row for row in rows if st.variant(row) == v]
            frozen = {row["rule"]: row["acc"]["mean"] for row in here if _is_control(row)}
            trained = _by_rule(row for row in here if not _is_control(row))
            if trained:
                stems = [[frozen.get(f"{FROZEN}{stem} stem") for stem in (row["rule"], "BP")] for row in trained]
                groups.append((label, [{**row, "controls": pair} for row, pair in zip(trained, stems)]))
            lacking = [r for r in table.data if r["figures"] == f"ours, {v}" and not r["n"] and not _is_control(r)]
            absent += [(label, row["rule"]) for row in lacking]
        if not rows:
            absent.append((network, ""))
    return groups, absent


def _own_settings(records: Records) -> tuple[str, list[Group]]:
    """Return what the rules' names leave out, in words, and the tasks of a store, each with a row per rule."""
    several = own_tasks(records)
    if not several:
        return "", []
    rules = list(dict.fromkeys(name for _, rows in several for name, _ in rows))
    says, names = told_apart(rules)
    named = dict(zip(rules, names))
    return says, [(task, _by_rule({**row, "name": named[name]} for name, row in rows)) for task, rows in several]


_PAIR_LABELS = {
    True: ("test accuracy", r"$\Gamma$, mean cosine", "gain over frozen blocks (pp)"),
    False: ("test\naccuracy", "$\\Gamma$, mean\ncosine", "gain over\nfrozen (pp)"),
}


def _untested(rows: Iterable[Row]) -> str:
    return "* D3 not tested." if any(_is_starred(row["three-check"]) for row in rows) else ""


def _gain_limits(cells: Sequence[Any]) -> tuple[float, float]:
    ends = [end for c in cells if c for end in (c["value"], *(c["interval"] or ()))]
    low, high = min([*ends, 0.0]), max([*ends, 4.0])
    room = 0.06 * (high - low)
    return low - room, high + room


def _beside(ax: Axes, words: Iterable[tuple[float, str]]) -> None:
    """Write words to the right of a panel, each on its line."""
    for y, word in words:
        at = (1, y), (3, 0), ("axes fraction", "data")
        st.words(ax, word, *at, va="center", fontsize=5.5, annotation_clip=False)


@st.paper_figure(20)
def per_layer(records: Records, width: st.Width) -> Figure:
    """Cosine, gradient norm and growth of every site: what an average over layers hides."""
    table = st.numbers("per-layer", records)
    rows = st.ours(table)
    if not rows:
        raise nothing("the state of every layer", table.missing)
    shown, rules = st.variants(rows), sorted({r["rule"] for r in rows}, key=st.rule_order)
    absent = [(st.variant(r), r["rule"]) for r in table.data if not r["n"]]
    norms = [(st.variant(r), r["rule"], _mean(r["‖g‖"])) for r in rows]
    ratios = [(st.variant(r), r["rule"], _mean(r["growth"])) for r in rows if r["site"]]
    part = [r for r in rows if r["cos"] and r["cos"]["n"] < r["n"]]
    some = "; ".join(dict.fromkeys(f"{st.variant(r)}: {r['rule']} ({r['cos']['n']} of {r['n']})" for r in part))
    off = (off_axis("‖g_l‖", norms), off_axis("Growth", ratios), some and f"Cosines of some seeds only: {some}.")
    note = missing_note(absent, dict.fromkeys((st.variant(r), r["rule"], r["n"]) for r in rows), *off)
    wide = width == "double"
    fig = st.canvas(width, (0.35 + 1.75 * len(shown)) if wide else 4.9, note)
    shape = (len(shown), 3) if wide else (3, len(shown))
    panels = st.grid(fig, *shape, sharex=True, sharey="col" if wide else "row")
    if not wide:
        panels = [list(column) for column in zip(*panels)]
    floor = st.LIMITS.g_norm_floor
    for v, (cosine, norm, growth) in zip(shown, panels):
        for name, ax in (("cos", cosine), ("‖g‖", norm), ("growth", growth)):
            for rule in rules:
                points = [r for r in rows if r["rule"] == rule and st.variant(r) == v and r[name]]
                if points:
                    line = [r["site"] for r in points], [r[name]["mean"] for r in points]
                    ax.errorbar(*line, yerr=_within(points, name), **st.look(rule, elinewidth=0.6))
        st.heading(cosine, f"ResMLP d=256 L=4, {v}" if wide or len(shown) == 1 else v)
        cosine.axhline(0, color=st.GREY, lw=0.5)
        cosine.set(ylabel="cosine with $g_l$", ylim=(min(-0.15, cosine.get_ylim()[0]), 1.08))
        st.logarithmic(norm, "y", r"$\|g_l\|$ (per sample ÷ 128)", [*_known(norms), floor / 3, floor * 3])
        st.threshold(norm, "y", floor, "below")
        st.logarithmic(growth, "y", r"growth $\|h_l\|/\|h_{l-1}\|$", [*_known(ratios), 1.0, 200.0])
        st.threshold(growth, "y", st.LIMITS.h_norm_explosion_ratio, "above")
        for ax in (cosine, norm, growth) if wide and v == shown[-1] else (growth,) if not wide else ():
            ax.set_xlabel("site $l$ (0: stem)")
        cosine.set_xticks(sorted({r["site"] for r in rows}))
    for ax in [] if wide else [ax for column in panels[1:] for ax in column]:
        ax.set_ylabel("")
    limits = [st.threshold_key(r"D2 flags $\|g_L\|$ below 1e-7"), st.threshold_key("D1 flags growth above 50")]
    st.legend(fig, [*map(st.key, rules), *limits], 4 if wide and len(rules) > 4 else 6 if wide else 2)
    return fig


def _mean(cell: Any) -> float | None:
    return None if cell is None else cell["mean"]


def _known(values: Iterable[tuple[str, str, float | None]]) -> list[float]:
    return [v for *_, v in values if v is not None]


def _within(found: Sequence[Row], name: str) -> list[list[float]]:
    """Return error bars that stay on a log axis: a standard deviation as large as its mean ends just above zero."""
    up = [row[name]["std"] or 0.0 for row in found]
    ends = [float("inf") if name == "cos" else 0.99 * abs(row[name]["mean"]) for row in found]
    return [[min(std, end) for std, end in zip(up, ends)], up]


@st.paper_figure(60)
def cross_arch(records: Records, width: st.Width) -> Figure:
    """Growth, reference and depth on every network: which checks carry over to which architecture."""
    table = st.numbers("cross-arch", records)
    rows = [r for r in st.ours(table) if not _is_control(r)]
    if not rows:
        raise nothing("the networks side by side", table.missing)
    groups: dict[str, list[Row]] = {}
    empty: list[tuple[str, str, str]] = []
    for row in table.data:
        if row["figures"] != "published" and not row["rule"].startswith("frozen"):
            name = f"{row['network']}, {'terminal LN' if row['terminal LN'] == 'yes' else 'no terminal LN'}"
            limits = name if "teacher" in name else f"{name}, {st.variant(row)}"
            if row["n"]:
                groups.setdefault(limits, []).append(row)
            else:
                empty.append((name, limits, row["rule"]))
    absent = [(limits, rule) if any(n.startswith(name) for n in groups) else (name, "") for name, limits, rule in empty]
    drawn = [(name, row) for name, members in groups.items() for row in members]
    ratios, norms = ([(name, row["rule"], _mean(row[what])) for name, row in drawn] for what in ("ρ", "‖g_L‖"))
    off = (off_axis("ρ", ratios), off_axis("‖g_L‖", norms))
    note = missing_note(absent, [(name, row["rule"], row["n"]) for name, row in drawn], *off)
    lines: list[tuple[float, Row]] = []
    heads: list[tuple[float, str]] = []
    y = 0.0
    for name, members in groups.items():
        heads.append((y, name))
        lines += [(y + i, row) for i, row in enumerate(_by_rule(members), 1)]
        y += len(members) + 1.4
    wide = width == "double"
    fig = st.canvas(
        width, 0.5 + min(0.13 * (y + 1), TALLEST), note, _untested(rows)
    )  # both variants of all networks fit a page
    ((growth, norm, depth),) = st.grid(fig, 1, 3, sharey=True)
    for at, row in lines:
        point(growth, row["ρ"], at, row["rule"])
        point(norm, row["‖g_L‖"], at, row["rule"])
        gain(depth, row["D3 pp"], at, row["rule"])
    floor = st.LIMITS.g_norm_floor
    label = r"$\|g_L\|$ (per sample ÷ 128)" if wide else "$\\|g_L\\|$ (per\nsample ÷ 128)"
    st.logarithmic(growth, "x", r"growth $\rho$", [*_known(ratios), 1.0, 200.0], 5 if wide else 3)
    st.logarithmic(norm, "x", label, [*_known(norms), floor / 3, floor * 3], 5 if wide else 2)
    depth.set(xlabel=_PAIR_LABELS[wide][2], xlim=_gain_limits([row["D3 pp"] for _, row in lines]))
    growth.set_yticks([at for at, _ in lines], [st.short(row["rule"], wide) for _, row in lines])
    growth.set_ylim(y - 0.6, -0.8)
    growth.set_title(" ", loc="left")  # room for the panel letters
    limits = (" flags above 50", " flags below 1e-7", " flags below 2") if wide else (" > 50", " < 1e-7", " < 2")
    st.threshold(growth, "x", st.LIMITS.h_norm_explosion_ratio, "above", f"D1{limits[0]}")
    st.threshold(norm, "x", floor, "below", f"D2{limits[1]}")
    st.threshold(depth, "x", st.LIMITS.frozen_acc_margin_pp, "below", f"D3{limits[2]}")
    growth.set_zorder(1)  # names may run over the next panel
    growth.patch.set_visible(False)
    bold = {"va": "center", "fontsize": 5.8, "fontweight": "bold", "annotation_clip": False, "zorder": 4}
    for at, text in heads:
        for ax in (growth, norm, depth):
            ax.axhspan(at - 0.55, at + 0.55, color="white", lw=0, zorder=1.5)
        head = st.words(growth, text, (0, at), (2, 0), ("axes fraction", "data"), bbox=st.white(0.6), **bold)
        head.set_in_layout(False)
    _beside(depth, [(at, verdict(row["three-check"]).partition(":")[0]) for at, row in lines])  # panels show the checks
    return fig
