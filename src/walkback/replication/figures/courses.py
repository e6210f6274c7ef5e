"""Along training: stream, reference and accuracy on every network, and what the penalty changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite, log10
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from walkback.audit.records import Record, Records
from walkback.audit.settings import RULES, Setting, select
from walkback.audit.wording import commands, lacking
from walkback.replication.drawn import first_flag, frozen_accuracy, least
from walkback.replication.figures import style as st
from walkback.replication.figures.remarks import missing_note, nothing, off_axis
from walkback.replication.tables.audits import networks
from walkback.replication.tables.build import VECTORS
from walkback.replication.tables.courses import Moment, course
from walkback.replication.tables.interventions import RESCUE, SHORT, SWEEP

STAR: dict[str, Any] = {"marker": "*", "linestyle": "", "markersize": 6, "markerfacecolor": "white"}
FIRES = st.handle("first seed that D1 (left), D2 (middle) flags", color=st.BLACK, **STAR)


def _line(ax: Axes, moments: Sequence[Moment], what: str, every: int, **style: Any) -> None:
    """Draw the mean over seeds, and the range of the seeds as a band."""
    known = [(m.epoch, getattr(m, what)) for m in moments if getattr(m, what) is not None]
    epochs = [epoch for epoch, _ in known]
    ax.plot(epochs, [s.mean for _, s in known], markevery=every, **style)
    if any(s.n > 1 for _, s in known):
        low, high = zip(*(s.ends for _, s in known))
        ax.fill_between(epochs, low, high, color=style["color"], alpha=0.18, lw=0)


def _stars(ax: Axes, runs: Sequence[Record], check: str, what: str, color: str) -> None:
    """Mark where a check first flags: the earliest seed's epoch, on that seed's own value."""
    fired = first_flag(runs, check, what)
    if fired is None:
        return
    (epoch, y), style = fired, {"color": color, "markeredgewidth": 0.7, "zorder": 4, **STAR}
    if y is not None and isfinite(y) and y > 0:
        ax.plot(epoch, y, **style)
    else:  # flagged for a value that no log axis holds: at the edge beyond which it lies
        edge = 1.0 if what == "h_norm" else 0.0
        ax.plot(epoch, edge, transform=ax.get_xaxis_transform(), clip_on=False, **style)


@st.paper_figure(30)
def temporal_augmented(records: Records, width: st.Width) -> Figure:
    """‖h_L‖, ‖g_L‖ and accuracy along training with flips and crops by network; a star where a check first flags."""
    return _temporal(records, width, True)


@st.paper_figure(40)
def temporal_plain(records: Records, width: st.Width) -> Figure:
    """‖h_L‖, ‖g_L‖ and accuracy along training without augmentation by network; a star where a check first flags."""
    return _temporal(records, width, False)


def _temporal(records: Records, width: st.Width, augment: bool) -> Figure:
    groups: list[tuple[str, list[tuple[str, tuple[Record, ...]]]]] = []
    absent: list[tuple[str, str]] = []
    for label, base, norm, _ in networks(records):
        if augment and base.data in VECTORS:
            continue
        name = f"{label}, {'terminal LN' if norm == 'yes' else 'no terminal LN'}"
        name += f", {base.data}" if base.data in VECTORS else f", {'augmented' if augment else 'plain'}"
        runs = {RULES[rule]: select(records, replace(base, rule=rule, augment=augment)) for rule in RULES}
        here = [(rule, found) for rule, found in runs.items() if found]
        if here:
            groups.append((name, here))
            absent += [(name, rule) for rule in ("BP", "FA", "DFA") if not runs[rule]]
        else:
            absent.append((name, ""))
    if not groups:
        missing = commands(lacking(records, Setting("dfa", augment=augment), controls=False), records.store)
        raise nothing(f"the course of training {'with' if augment else 'without'} augmentation", missing)
    wide = width == "double"
    seeds = [(label, rule, len(runs)) for label, here in groups for rule, runs in here]
    moments = {(label, rule): course(runs) for label, here in groups for rule, runs in here}
    means = {what: [(*at, least(ms, what)) for at, ms in moments.items()] for what in ("h_norm", "g_norm")}
    off = (off_axis("‖h_L‖", means["h_norm"]), off_axis("‖g_L‖", means["g_norm"]))
    says = "‖g_L‖ is the per-sample norm ÷ 128; lines: mean, bands: range of the seeds."
    note = missing_note(absent, seeds, *off)
    fig = st.canvas(width, (0.5 if wide else 0.75) + 1.05 * len(groups), note, says)
    panels = st.grid(fig, len(groups), 3, sharey="col")
    norms = {
        what: [v for ms in moments.values() for m in ms if getattr(m, what) for v in getattr(m, what).values]
        for what in ("h_norm", "g_norm")
    }
    top = max([m.acc.mean for ms in moments.values() for m in ms if m.acc] or [1.0])
    for (label, here), (h, g, acc) in zip(groups, panels):
        last = 1
        for rule, runs in here:
            at = moments[label, rule]
            last = max(last, at[-1].epoch)
            every = max(1, len(at) // 5)
            for ax, what in ((h, "h_norm"), (g, "g_norm"), (acc, "acc")):
                _line(ax, at, what, every, **st.look(rule, markersize=2.5))
            _stars(h, runs, "a", "h_norm", st.look(rule)["color"])
            _stars(g, runs, "b", "g_norm", st.look(rule)["color"])
        st.heading(h, label)
        st.logarithmic(h, "y", r"$\|h_L\|$", norms["h_norm"])
        floor = st.LIMITS.g_norm_floor
        st.logarithmic(g, "y", r"$\|g_L\|$", [*norms["g_norm"], floor / 3, floor * 3])
        st.threshold(g, "y", floor, "below")
        acc.set(ylabel="accuracy", ylim=(0, min(1.0, 1.08 * top)))
        for ax in (h, g, acc):
            ax.set_xlim(-0.02 * last, 1.04 * last)
            ax.set_xticks([0, last // 2, last] if last > 1 else [0, 1])
    for ax in panels[-1]:
        ax.set_xlabel("epoch")
    rules = sorted({rule for _, here in groups for rule, _ in here}, key=st.rule_order)
    handles = [
        *(st.key(rule, markersize=2.5) for rule in rules),
        FIRES,
        st.threshold_key(r"D2 flags $\|g_L\|$ below 1e-7"),
    ]
    st.legend(fig, handles, 8 if wide and len(rules) < 5 else 4 if wide else 2)
    return fig


# Strength of the penalty -> its line: purple, which is no rule's, darker with λ; markers that are no rule's either.
_LAMBDA = {
    0.0: ("#BBA8D8", "P", "-"),
    1e-4: ("#9C7FC6", "p", (0, (5, 1.5))),
    1e-3: ("#7C55B0", "h", (0, (1.2, 1.2))),
    1e-2: ("#562B90", "d", (0, (5, 1.2, 1.2, 1.2))),
    1e-1: ("#2D0A5B", "H", (0, (8, 2))),
}


def _power(value: float) -> str:
    return "0" if not value else f"$10^{{{round(log10(value))}}}$"


@st.paper_figure(50)
def penalty(records: Records, width: st.Width) -> Figure:
    """What λ‖f‖² does: it contains the stream, lifts the deep cosine only in part, and costs BP some accuracy."""
    sweep, fresh = st.numbers("lambda-sweep", records), st.numbers("fresh-feedback", records)
    rows = st.ours(sweep)
    if not rows:
        raise nothing("the penalty intervention", sweep.missing)
    shown = st.variants(rows)
    absent = [
        (st.variant(r), f"{r['rule']} λ={r['λ']}") for r in sweep.data if r["figures"] != "published" and not r["n"]
    ]
    seeds = [(st.variant(r), f"{r['rule']} λ={r['λ']}", r["n"]) for r in rows]
    wide = width == "double"
    fig = st.canvas(width, (0.45 + 1.75 * len(shown)) if wide else 0.4 + 3.8 * len(shown), missing_note(absent, seeds))
    panels = st.grid(fig, len(shown), 3) if wide else st.grid(fig, 3 * len(shown), 1)
    if not wide:
        flat = [row[0] for row in panels]
        panels = [flat[3 * i : 3 * i + 3] for i in range(len(shown))]
    for v, (left, middle, right) in zip(shown, panels):
        here = [r for r in rows if st.variant(r) == v]
        _dose(left, records, v == "augmented")
        st.heading(left, f"ResMLP d=256 L=4, {v}, {SHORT} epochs")
        nulls = [
            r["fresh feedback"]
            for r in fresh.data
            if r["rule"] == "DFA"
            and r["λ"] == f"{RESCUE:g}"
            and st.variant(r) == v
            and r["quantity"] == "deep cos"
            and r["fresh feedback"]
        ]
        _deep_cosine(middle, here, nulls)
        _capacity(right, records, here, v == "augmented")
    return fig


def _dose(ax: Axes, records: Records, augment: bool) -> None:
    """Draw ‖h_L‖ of DFA along training for every strength."""
    ends = []
    for value in SWEEP["dfa"]:
        runs = select(records, Setting("dfa", penalty=value, epochs=SHORT, augment=augment))
        at = course(runs)
        held = st.on_log(m.h_norm.mean for m in at if m.h_norm)
        if held:
            color, marker, line = _LAMBDA[value]
            ends += held
            style = {"color": color, "marker": marker, "linestyle": line, "markersize": 2.5}
            _line(ax, at, "h_norm", 6, **style, label=rf"$\lambda$ = {_power(value)}")
    if ends:
        above = max(ends) * (max(ends) / min(ends)) ** 0.4  # for the legend
        st.logarithmic(ax, "y", r"DFA's $\|h_L\|$", [*ends, above])
        st.small_legend(ax, ncols=3, handlelength=2, columnspacing=0.8)
    else:
        _nothing_here(ax, "no ‖h_L‖ of a DFA run of 30 epochs")
    ax.set_xlabel("epoch")
    ax.set_xlim(-0.5, SHORT + 1)


def _nothing_here(ax: Axes, text: str) -> None:
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", fontsize=5.5, color=st.GREY)


def _deep_cosine(ax: Axes, rows: Sequence[dict[str, Any]], nulls: Sequence[dict[str, float]]) -> None:
    """Draw the deep cosine by strength, with the band of DFA's networks under fresh feedback."""
    strengths = SWEEP["dfa"]
    handles: list[Any] = []
    for null in nulls:
        ax.axhspan(null["mean"] - 2 * null["std"], null["mean"] + 2 * null["std"], color=st.PALE, lw=0, zorder=0)
    for rule in sorted({r["rule"] for r in rows}, key=st.rule_order):
        points = [(strengths.index(float(r["λ"])), r["deep cos"]) for r in rows if r["rule"] == rule and r["deep cos"]]
        if points:
            line = [x for x, _ in points], [c["mean"] for _, c in points]
            ax.errorbar(*line, yerr=[c["std"] or 0 for _, c in points], **st.look(rule, elinewidth=0.7))
            handles.append(st.key(rule))
    if nulls:
        handles.append(Patch(color=st.PALE, lw=0, label="fresh feedback ± 2 std"))
    ax.axhline(0, color=st.GREY, lw=0.5, zorder=1)
    ax.set_xticks(range(len(strengths)), [_power(s) for s in strengths])
    ax.set(xlabel=r"$\lambda$", ylabel="deep cosine", xlim=(-0.4, len(strengths) - 0.6), ylim=(-0.15, 1.65))
    ax.set_yticks([0, 0.5, 1])
    if handles:
        st.small_legend(ax, handles, ncols=2, handlelength=2.4, columnspacing=0.8)


def _capacity(ax: Axes, records: Records, rows: Sequence[dict[str, Any]], augment: bool) -> None:
    """Draw the accuracy without and with the penalty, and that of frozen blocks."""
    tops: list[float] = []
    drawn: set[str] = set()
    names = [rule for rule in ("BP", "FA", "DFA") if any(r["rule"] == rule and r["acc"] for r in rows)]
    for x, rule in enumerate(names):
        for offset, strength, face in ((-0.15, "0", None), (0.15, f"{RESCUE:g}", "white")):
            cell = next((r["acc"] for r in rows if r["rule"] == rule and r["λ"] == strength), None)
            if cell:
                fill = {} if face is None else {"markerfacecolor": face}
                style = st.look(rule, linestyle="", elinewidth=0.7, **fill)
                ax.errorbar(x + offset, cell["mean"], yerr=cell["std"], **style)
                tops.append(cell["mean"])
                drawn.add(strength)
        code = next(k for k, v in RULES.items() if v == rule)
        frozen = frozen_accuracy(records, code, SHORT, augment)
        if frozen is not None:
            ax.plot([x - 0.32, x + 0.32], [frozen] * 2, color=st.GREY, lw=1.2, solid_capstyle="butt", zorder=1)
            tops.append(frozen)
            drawn.add("frozen")
    if not names:
        _nothing_here(ax, "no run of 30 epochs")
        return
    ax.set_xticks(range(len(names)), names)
    span = max(tops) - min(tops) or 0.1
    ax.set(ylabel="test accuracy", xlim=(-0.6, len(names) - 0.4))
    ax.set_ylim(min(tops) - 0.15 * span, max(tops) + 0.75 * span)
    mark = {"marker": "o", "ls": "", "color": st.GREY}
    keys = {
        "0": st.handle(r"$\lambda$ = 0", **mark),
        f"{RESCUE:g}": st.handle(rf"$\lambda$ = {_power(RESCUE)}", **mark, mfc="white"),
        "frozen": st.handle("frozen blocks, same stem rule", color=st.GREY, lw=1.2),
    }
    st.small_legend(ax, [keys[what] for what in keys if what in drawn], loc="upper right", handlelength=1.6)
