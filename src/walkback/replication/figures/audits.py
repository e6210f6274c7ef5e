"""Judged settings as pictures: the reporting pair, the state of every layer, the networks side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from walkback.audit.records import Records
from walkback.replication.figures.style import (
    GREY,
    LIMITS,
    Width,
    canvas,
    grid,
    heading,
    in_style,
    key,
    legend,
    logarithmic,
    look,
    missing_note,
    not_measured,
    nothing,
    numbers,
    off_axis,
    ours,
    rule_order,
    short,
    threshold,
    threshold_key,
    variant,
    variants,
)
from walkback.replication.tables.build import failed_words

Row = dict[str, Any]
PAIR = (("primary", "ResMLP d=256 L=4"), ("wide-shallow", "ResMLP d=512 L=2"))
FROZEN = "frozen, "
TALLEST = 7.4  # inches
MATCHED = Line2D([], [], marker="|", ls="", ms=6, mew=1.4, color=GREY, label="frozen blocks, stem by the same rule")
OVER_STRONGER = Line2D(
    [], [], marker="o", ls="", mfc="white", ms=2.4, mew=0.6, color=GREY, label="gain over the control with the BP stem"
)
STRONGER = Line2D([], [], marker="x", ls="", ms=3.5, mew=0.8, color=GREY, label="frozen blocks, stem by BP")


def point(ax: Axes, cell: Any, y: float, rule: str, **more: Any) -> None:
    """Mean ± standard deviation of a cell of a table on the line `y`; nothing where nothing was measured."""
    if cell is not None:
        ax.errorbar(cell["mean"], y, xerr=cell["std"], **look(rule, **{"linestyle": "", "elinewidth": 0.8, **more}))


def gain(ax: Axes, cell: Any, y: float, rule: str, **more: Any) -> None:
    """D3: the gain over frozen blocks with its interval."""
    if cell is not None:
        low, high = cell["interval"] or (cell["value"], cell["value"])
        error = [[cell["value"] - low], [high - cell["value"]]]
        ax.errorbar(cell["value"], y, xerr=error, **look(rule, **{"linestyle": "", "elinewidth": 0.8, **more}))


def verdict(cell: Any) -> str:
    """A verdict in as few words as fit beside a row; checks that fail on some seeds only say on how many.

    >>> cell = {"verdict": "walked back", "failed": {"D1": 1, "D2": 1, "D3": 3}, "n": 3}
    >>> verdict(cell), verdict({**cell, "failed": {"D1": 1, "D2": 1}}), verdict({**cell, "failed": {"D3": 3}})
    ('fails D1 and D2 (1/3) D3', 'fails D1 and D2 (1/3)', 'fails D3')
    """
    if cell is None:
        return ""
    if cell["verdict"] == "walked back":
        return f"fails {failed_words(cell['failed'], cell['n'])}"
    return cell["verdict"] if cell["depth_tested"] else f"{cell['verdict']}*"


@in_style
def reporting_pair(records: Records, width: Width = "double") -> Figure:
    """Accuracy and Γ, the standard pair, beside what the pair does not say: the gain over frozen blocks."""
    groups: list[tuple[str, list[Row], dict[str, Row]]] = []
    absent: list[tuple[str, str]] = []
    tables = [(numbers(name, records), label) for name, label in PAIR]
    for table, label in tables:
        rows = ours(table)
        for v in variants(rows):
            here = [row for row in rows if variant(row) == v]
            trained = sorted((r for r in here if not r["rule"].startswith(FROZEN)), key=lambda r: rule_order(r["rule"]))
            if trained:
                groups.append((f"{label}, {v}", trained, {r["rule"]: r for r in here if r["rule"].startswith(FROZEN)}))
            absent += [
                (f"{label}, {v}", r["rule"])
                for r in table.data
                if r["figures"] == f"ours, {v}" and not r["n"] and not r["rule"].startswith(FROZEN)
            ]
        if not rows:
            absent.append((label, ""))
    if not groups:
        raise nothing("the reporting pair", tables[0][0].missing)
    seeds = [(label, r["rule"], r["n"]) for label, rows, _ in groups for r in rows]
    wide = width == "double"
    heights = [len(rows) for _, rows, _ in groups]
    without = not_measured("Γ", [(label, r["rule"], r["Γ"]) for label, rows, _ in groups for r in rows])
    note = missing_note(absent, seeds, _untested(r for _, rows, _ in groups for r in rows), without)
    fig = canvas(width, (0.65 if wide else 1.05) + sum(0.16 * n + 0.36 for n in heights), note)
    panels = grid(
        fig,
        len(groups),
        3,
        sharey="row",
        sharex="col",
        height_ratios=[n + 1 for n in heights],
        width_ratios=(1, 1, 1.15),
    )
    limits = _gain_limits([r[c] for _, rows, _ in groups for r in rows for c in ("D3 pp", "D3 pp, BP stem")])
    for i, ((label, rows, frozen), (left, middle, right)) in enumerate(zip(groups, panels)):
        for y, row in enumerate(rows):
            rule = row["rule"]
            point(left, row["acc"], y, rule, zorder=3)
            for name, mark in ((f"{FROZEN}{rule} stem", MATCHED), (f"{FROZEN}BP stem", STRONGER)):
                if name in frozen:
                    left.plot(
                        frozen[name]["acc"]["mean"],
                        y,
                        marker=mark.get_marker(),
                        ms=mark.get_markersize(),
                        mew=mark.get_markeredgewidth(),
                        color=GREY,
                        ls="",
                        zorder=2,
                    )
            point(middle, row["Γ"], y, rule)
            gain(
                right,
                row["D3 pp, BP stem"],
                y + 0.25,
                rule,
                markerfacecolor="white",
                markersize=2.4,
                elinewidth=0.5,
                markeredgewidth=0.6,
            )
            gain(right, row["D3 pp"], y - 0.1, rule)
        left.set_yticks(range(len(rows)), [r["rule"] if wide else short(r["rule"]) for r in rows])
        left.set_ylim(len(rows) - 0.4, -0.6)
        left.margins(x=0.12)
        heading(left, label)
        middle.axvline(0, color=GREY, lw=0.5)
        right.set_xlim(limits)
        threshold(right, "x", LIMITS.frozen_acc_margin_pp, "below", "" if i else "D3 flags below 2")
        _beside(right, [(y, verdict(r["three-check"])) for y, r in enumerate(rows)])
    last = panels[-1]
    last[1].set_xlim(left=min(-0.1, last[1].get_xlim()[0]), right=1.1)
    for ax, text in zip(last, _PAIR_LABELS if wide else _PAIR_LABELS_SHORT):
        ax.set_xlabel(text)
    legend(fig, [MATCHED, STRONGER, OVER_STRONGER], 3 if wide else 1)
    return fig


_PAIR_LABELS = ("test accuracy", r"$\Gamma$, mean cosine", "gain over frozen blocks (pp)")
_PAIR_LABELS_SHORT = ("test\naccuracy", "$\\Gamma$, mean\ncosine", "gain over\nfrozen (pp)")


def _untested(rows: Iterable[Row]) -> str:
    return "* D3 not tested." if any(verdict(row["three-check"]).endswith("*") for row in rows) else ""


def _gain_limits(cells: Sequence[Any]) -> tuple[float, float]:
    ends = [end for c in cells if c for end in (c["value"], *(c["interval"] or ()))]
    low, high = min([*ends, 0.0]), max([*ends, 4.0])
    room = 0.06 * (high - low)
    return low - room, high + room


def _beside(ax: Axes, words: Iterable[tuple[float, str]]) -> None:
    """Words to the right of a panel, each on its line."""
    for y, word in words:
        ax.annotate(
            word,
            (1, y),
            xycoords=("axes fraction", "data"),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=5.5,
            annotation_clip=False,
        )


@in_style
def per_layer(records: Records, width: Width = "double") -> Figure:
    """Cosine, gradient norm and growth of every site: what an average over layers hides."""
    table = numbers("per-layer", records)
    rows = ours(table)
    if not rows:
        raise nothing("the state of every layer", table.missing)
    shown, rules = variants(rows), sorted({r["rule"] for r in rows}, key=rule_order)
    absent = [(variant(r), r["rule"]) for r in table.data if not r["n"]]
    norms = [(variant(r), r["rule"], _mean(r["‖g‖"])) for r in rows]
    ratios = [(variant(r), r["rule"], _mean(r["growth"])) for r in rows if r["site"]]
    part = [
        (variant(r), f"{r['rule']} ({r['cos']['n']} of {r['n']})") for r in rows if r["cos"] and r["cos"]["n"] < r["n"]
    ]
    some = "; ".join(dict.fromkeys(f"{where}: {told}" for where, told in part))
    off = (off_axis("‖g_l‖", norms), off_axis("Growth", ratios), some and f"Cosines of some seeds only: {some}.")
    note = missing_note(absent, dict.fromkeys((variant(r), r["rule"], r["n"]) for r in rows), *off)
    wide = width == "double"
    fig = canvas(width, (0.35 + 1.75 * len(shown)) if wide else 4.9, note)
    panels = (
        grid(fig, len(shown), 3, sharex=True, sharey="col")
        if wide
        else grid(fig, 3, len(shown), sharex=True, sharey="row")
    )
    if not wide:
        panels = [list(column) for column in zip(*panels)]
    floor = LIMITS.g_norm_floor
    for v, (cosine, norm, growth) in zip(shown, panels):
        for name, ax in (("cos", cosine), ("‖g‖", norm), ("growth", growth)):
            for rule in rules:
                found = [r for r in rows if r["rule"] == rule and variant(r) == v and r[name]]
                if found:
                    ax.errorbar(
                        [r["site"] for r in found],
                        [r[name]["mean"] for r in found],
                        yerr=_within(found, name),
                        **look(rule, elinewidth=0.6),
                    )
        heading(cosine, f"ResMLP d=256 L=4, {v}" if wide or len(shown) == 1 else v)
        cosine.axhline(0, color=GREY, lw=0.5)
        cosine.set(ylabel="cosine with $g_l$", ylim=(min(-0.15, cosine.get_ylim()[0]), 1.08))
        logarithmic(norm, "y", r"$\|g_l\|$ (per sample ÷ 128)", [*_known(norms), floor / 3, floor * 3])
        threshold(norm, "y", floor, "below")
        logarithmic(growth, "y", r"growth $\|h_l\|/\|h_{l-1}\|$", [*_known(ratios), 1.0, 200.0])
        threshold(growth, "y", LIMITS.h_norm_explosion_ratio, "above")
        for ax in (cosine, norm, growth) if wide and v == shown[-1] else (growth,) if not wide else ():
            ax.set_xlabel("site $l$ (0: stem)")
        cosine.set_xticks(sorted({r["site"] for r in rows}))
    if not wide:
        for column in panels[1:]:
            for ax in column:
                ax.set_ylabel("")
    limits = [threshold_key(r"D2 flags $\|g_L\|$ below 1e-7"), threshold_key("D1 flags growth above 50")]
    legend(fig, [*(key(rule) for rule in rules), *limits], 4 if wide and len(rules) > 4 else 6 if wide else 2)
    return fig


def _mean(cell: Any) -> float | None:
    return None if cell is None else cell["mean"]


def _known(values: Iterable[tuple[str, str, float | None]]) -> list[float]:
    return [v for *_, v in values if v is not None]


def _within(found: Sequence[Row], name: str) -> list[list[float]]:
    """Error bars that stay on a log axis: a standard deviation as large as its mean ends just above zero."""
    down = [
        min(r[name]["std"] or 0.0, 0.99 * abs(r[name]["mean"])) if name != "cos" else r[name]["std"] or 0.0
        for r in found
    ]
    return [down, [r[name]["std"] or 0.0 for r in found]]


@in_style
def cross_arch(records: Records, width: Width = "double") -> Figure:
    """Growth, reference and depth on every network: which checks carry over to which architecture."""
    table = numbers("cross-arch", records)
    rows = [r for r in ours(table) if not r["rule"].startswith("frozen")]
    if not rows:
        raise nothing("the networks side by side", table.missing)
    groups: dict[str, list[Row]] = {}
    empty: list[tuple[str, str, str]] = []
    for row in table.data:
        if row["figures"] != "published" and not row["rule"].startswith("frozen"):
            name = f"{row['network']}, {'terminal LN' if row['terminal LN'] == 'yes' else 'no terminal LN'}"
            said = name if "teacher" in name else f"{name}, {variant(row)}"
            if row["n"]:
                groups.setdefault(said, []).append(row)
            else:
                empty.append((name, said, row["rule"]))
    absent = [(said, rule) if any(n.startswith(name) for n in groups) else (name, "") for name, said, rule in empty]
    seeds = [(name, r["rule"], r["n"]) for name, members in groups.items() for r in members]
    ratios, norms = (
        [(name, r["rule"], _mean(r[what])) for name, members in groups.items() for r in members]
        for what in ("ρ", "‖g_L‖")
    )
    note = missing_note(absent, seeds, off_axis("ρ", ratios), off_axis("‖g_L‖", norms), _untested(rows))
    lines: list[tuple[float, Row]] = []
    heads: list[tuple[float, str]] = []
    y = 0.0
    for name, members in groups.items():
        heads.append((y, name))
        for row in sorted(members, key=lambda r: rule_order(r["rule"])):
            y += 1
            lines.append((y, row))
        y += 1.4
    wide = width == "double"
    fig = canvas(width, 0.5 + min(0.13 * (y + 1), TALLEST), note)  # both variants of all networks fit a page
    ((growth, norm, depth),) = grid(fig, 1, 3, sharey=True)
    for at, row in lines:
        point(growth, row["ρ"], at, row["rule"])
        point(norm, row["‖g_L‖"], at, row["rule"])
        gain(depth, row["D3 pp"], at, row["rule"])
    logarithmic(growth, "x", r"growth $\rho$", [*_known(ratios), 1.0, 200.0], 5 if wide else 3)
    logarithmic(
        norm,
        "x",
        r"$\|g_L\|$ (per sample ÷ 128)" if wide else "$\\|g_L\\|$ (per\nsample ÷ 128)",
        [*_known(norms), LIMITS.g_norm_floor / 3, LIMITS.g_norm_floor * 3],
        5 if wide else 2,
    )
    depth.set(
        xlabel="gain over frozen blocks (pp)" if wide else "gain over\nfrozen (pp)",
        xlim=_gain_limits([r["D3 pp"] for _, r in lines]),
    )
    growth.set_yticks([at for at, _ in lines], [r["rule"] if wide else short(r["rule"]) for _, r in lines])
    growth.set_ylim(y - 0.6, -0.9)
    said = (" flags above 50", " flags below 1e-7", " flags below 2") if wide else (" > 50", " < 1e-7", " < 2")
    threshold(growth, "x", LIMITS.h_norm_explosion_ratio, "above", f"D1{said[0]}")
    threshold(norm, "x", LIMITS.g_norm_floor, "below", f"D2{said[1]}")
    threshold(depth, "x", LIMITS.frozen_acc_margin_pp, "below", f"D3{said[2]}")
    growth.set_zorder(1)  # names may run over the next panel
    growth.patch.set_visible(False)
    for at, text in heads:
        for ax in (growth, norm, depth):
            ax.axhspan(at - 0.55, at + 0.55, color="white", lw=0, zorder=1.5)
        growth.annotate(
            text,
            (0, at),
            xycoords=("axes fraction", "data"),
            xytext=(2, 0),
            textcoords="offset points",
            va="center",
            fontsize=5.8,
            fontweight="bold",
            annotation_clip=False,
            zorder=4,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
        ).set_in_layout(False)
    _beside(depth, [(at, verdict(row["three-check"])) for at, row in lines])
    return fig
