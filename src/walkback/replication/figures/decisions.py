"""What a decision rests on: which strategy catches what, how far thresholds can move, what the cosine ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from walkback.audit.records import Records
from walkback.audit.settings import RULES, Setting, select
from walkback.replication.figures import style as st
from walkback.replication.figures.remarks import missing_note, nothing, off_axis
from walkback.replication.tables.decisions import THRESHOLDS, Threshold, threshold_points
from walkback.report.table import number

# What a strategy says -> face, hatch, letter, colour of the letter: dark, light and hatched differ in greyscale.
_MARKS = {
    "walked back": (st.RED, "", "back", "white"),
    "passes": ("#F4F4F4", "", "passes", "#444444"),
    "undecided": ("#FFFFFF", "////", "?", st.BLACK),
}


# Said in the picture: the strategies are the papers' words, not the field's.
STRATEGIES = (
    "Each strategy has all before it. S0 reports accuracy alone; S1 adds Γ, the mean cosine with the BP gradient; S2 "
    "adds D1 (growth of the stream) and D2 (norm of the BP gradient), which walk back together; S3 adds D3 (gain over "
    "frozen blocks). S1+(a)…(d) add one check of the four-diagnostic edition: growth, reference, stability, depth."
)


def _cells(ax: Axes, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], tall: int, word: bool) -> None:
    """Draw a grid of marks with names left and above, `tall` lines high."""
    for y, (_, marks) in enumerate(rows):
        for x, mark in enumerate(marks):
            face, hatch, text, color = _MARKS[mark]
            ax.add_patch(Rectangle((x + 0.03, y + 0.06), 0.94, 0.88, fc=face, hatch=hatch, ec="#999999", lw=0.4))
            if word:
                box = st.white(0.8) if mark == "undecided" else None
                ax.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=5.2, color=color, bbox=box)
    ax.set(xlim=(0, len(columns)), ylim=(tall, 0))
    ax.set_xticks([x + 0.5 for x in range(len(columns))], columns)
    ax.set_yticks([y + 0.5 for y in range(len(rows))], [name for name, _ in rows])
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


@st.paper_figure(70)
def decision_utility(records: Records, width: st.Width) -> Figure:
    """Which reporting strategy walks which result back, in both editions of the protocol."""
    three, four = st.numbers("ablation", records), st.numbers("ablation-four", records)
    rows = sorted(st.ours(three), key=st.variant)
    rows_four = [r for r in st.ours(four) if r["rule"] in RULES.values()]
    if not rows:
        raise nothing("decision utility", three.missing)
    heads = ("S0 acc", "S1 + Γ", "S2 + D1 and D2", "S3 + D3")
    shown = st.variants(rows)
    left = [(_case(r, shown), [_mark(r[h]) for h in heads]) for r in rows]
    names = ("S0", "S1", "+(a)", "+(b)", "+(c)", "+(d)", "full")
    words = {True: "walked back", False: "passes", None: "undecided"}
    right = [(f"{r['rule']}{_variant_suffix(r, shown)}", [words[r[n]] for n in names]) for r in rows_four]
    known = {r["network"] for r in rows}
    absent = [
        (f"{r['network']}, {st.variant(r)}", r["rule"]) if r["network"] in known else (r["network"], "")
        for r in three.data
        if not r["n"]
    ]
    seeds = [(f"{r['network']}, {st.variant(r)}", r["rule"], r["n"]) for r in rows]
    wide, tall = width == "double", 0.155
    note = missing_note(absent, seeds)
    lines = max(len(left), len(right))
    if wide:
        fig = st.canvas(width, 0.75 + tall * lines, note, STRATEGIES)
        ((first, second),) = st.grid(fig, 1, 2, width_ratios=(4.6, 7))
    else:
        fig = st.canvas(width, 1.25 + tall * (len(left) + len(right)), note, STRATEGIES)
        (first,), (second,) = st.grid(fig, 2, 1, height_ratios=(len(left) + 1, len(right) + 1))
    _cells(first, ("S0\nacc", "S1\n+ Γ", "S2\n+ D1, D2", "S3\n+ D3"), left, lines if wide else len(left), True)
    four_heads = ("S0\nacc", "S1\n+ Γ", "S1\n+(a)", "S1\n+(b)", "S1\n+(c)", "S1\n+(d)", "full")
    _cells(second, four_heads, right, lines if wide else len(right), wide)
    first.set_title(r"$\bf{a}$  three-check")
    second.set_title(r"$\bf{b}$  four-diagnostic, d=256 L=4")
    patches = [
        Patch(fc=face, hatch=hatch, ec="#999999", lw=0.4, label=name) for name, (face, hatch, *_) in _MARKS.items()
    ]
    st.legend(fig, patches, 3)
    return fig


def _variant_suffix(row: dict[str, Any], shown: Sequence[str]) -> str:
    return f", {st.variant(row)}" if len(shown) > 1 else ""


def _case(row: dict[str, Any], shown: Sequence[str]) -> str:
    return f"{row['rule']}, {row['network'].removeprefix('ResMLP ')}{_variant_suffix(row, shown)}"


def _mark(text: str) -> str:
    """Return passes, walked back, or undecided."""
    return text if text in ("passes", "walked back") else "undecided"


# -- thresholds ------------------------------------------------------------------------------------------------

_LABELS = {
    "growth": r"(a), D1: growth $\rho$",
    "g_norm": r"(b), D2: $\|g_L\|$",
    "stability": "(c): stability of $g_L$",
    "margin": "(d), D3: gain (pp)",
}


SAID = (
    "A mark is a run, and of D3 a rule over its seeds; its filling is the verdict of the four-diagnostic edition. "
    "‖g_L‖ is the per-sample norm ÷ 128."
)


@st.paper_figure(80)
def sensitivity(records: Records, width: st.Width) -> Figure:
    """Each threshold among the runs (filled: walked back), the gap that separates them, how far it can be moved."""
    table = st.numbers("sensitivity", records)
    rows = [r for r in table.data if r["runs"] == "primary" and r["n"]]
    shown = [v for v in st.variants(rows) if any(st.variant(r) == v for r in rows)]
    if not rows:
        raise nothing("threshold sensitivity", table.missing)
    panels_of = [(v, t) for v in shown for t in THRESHOLDS if t.edition == "four-diagnostic"]
    at = {v: [Setting(rule, augment=v == "augmented") for rule in RULES] for v in shown}
    found = {(v, t.key): threshold_points(records, at[v], t) for v, t in panels_of}
    known = {v: sorted({_rule(p.name) for t in THRESHOLDS for p in found[v, t.key]}, key=st.rule_order) for v in shown}
    counts = [(v, RULES[s.rule], len(select(records, s))) for v in shown for s in at[v]]
    absent = [(v, name) for v, name, n in counts if not n]
    seeds = [(v, name, n) for v, name, n in counts if n]
    wide = width == "double"
    lines = max(map(len, known.values()))  # all panels are of one height: that of the fullest
    height = len(shown) * (0.34 * (lines + 4.9) + 0.24) + (0.35 if wide else 0.6)
    lowest = {
        key: [
            (v, rule, min((p.value for p in found[v, key] if _rule(p.name) == rule), default=None))
            for v, rule, _ in seeds
        ]
        for key in ("growth", "g_norm")
    }
    off = (off_axis("ρ", lowest["growth"]), off_axis("‖g_L‖", lowest["g_norm"]))
    fig = st.canvas(width, height, missing_note(absent, seeds, *off), SAID)
    flat = [ax for row in st.grid(fig, len(panels_of) // 2, 2, sharey="row") for ax in row]
    for (v, t), ax in zip(panels_of, flat):
        checks = {o.check: o.edition for o in THRESHOLDS if o.key == t.key}
        here = {checks[r["check"]]: r for r in rows if st.variant(r) == v and r["check"] in checks}
        _strip(ax, found[v, t.key], known[v], t, here, wide)
        if t.key == "growth":
            ax.set_title(f"ResMLP d=256 L=4, {v}", loc="left", pad=10)
    st.legend(
        fig,
        [
            st.handle("threshold", color=st.GREY, lw=0.7, ls=st.DASHED),
            Patch(color=st.PALE, lw=0, label="threshold ± 50 %"),
            st.handle("separation gap", color=st.BLACK, marker="|", lw=0.8, ms=5),
            st.handle("thresholds that change no verdict", color=st.SKY, lw=3),
            *(
                st.handle(word, color=st.GREY, marker="o", ls="", **_FACES[failed])
                for failed, word in ((True, "walked back"), (False, "passes"), (None, "undecided"))
                if failed is not None or any(p.failed is None for points in found.values() for p in points)
            ),
        ],
        4 if wide else 2,
    )
    return fig


def _rule(name: str) -> str:
    """Return the rule of a run's name, DFA of "DFA seed 42"."""
    return name.partition(" seed ")[0]


_FACES: dict[bool | None, dict[str, str]] = {
    True: {}, False: {"markerfacecolor": "white"}, None: {"fillstyle": "left", "markerfacecoloralt": "white"}
}  # fmt: skip
_EDITIONS = {"four-diagnostic": "four-diag.", "three-check": "three-check"}


def _strip(
    ax: Axes, points: Sequence, names: Sequence[str], t: Threshold, rows: dict[str, dict[str, Any]], wide: bool
) -> None:
    """Draw all values on one axis, a line per rule; below the gap and, by edition, the thresholds that change nothing.

    `rows` are those of the table, by edition.
    """
    limit = getattr(st.LIMITS, t.field)
    row = rows.get(t.edition)
    for p in points:
        ax.plot(p.value, names.index(_rule(p.name)), **st.look(_rule(p.name), linestyle="", **_FACES[p.failed]))
    ends = [r[c] for r in rows.values() for c in ("verdicts hold from", "to") if r[c] is not None]
    values = [*(p.value for p in points), *ends]
    if t.kind == "norm":
        st.logarithmic(ax, "x", _LABELS[t.key], [*values, limit / 3, limit * 3], 5 if wide else 3)
    else:
        low, high = min([*values, 0.0]), max([*values, 2 * limit])
        ax.set(xlabel=_LABELS[t.key], xlim=(low - 0.08 * (high - low), high + 0.08 * (high - low)))
    ax.axvspan(0.5 * limit, 1.5 * limit, color=st.PALE, lw=0, zorder=0)
    ax.axvline(limit, color=st.GREY, lw=0.7, ls=st.DASHED, zorder=1)
    st.over(ax, number(limit, "norm"), limit, 1)
    bottom = len(names) + 0.5
    worst, best = (row and row[c] for c in ("worst healthy", "healthiest failure"))
    if row and worst and best and row["gap"] is not None:  # no ratio to zero
        ends = sorted((worst["value"], best["value"]))
        ax.plot(ends, [bottom] * 2, color=st.BLACK, marker="|", lw=0.8, ms=5)
        unit = "×" if t.kind == "norm" else " pp" if t.kind == "pp" else ""
        text = f"{number(row['gap'], 'norm' if t.kind == 'norm' else 'pp' if t.kind == 'pp' else 'acc')}{unit}"
        text = text.lstrip("+") if row["gap"] > (1 if t.kind == "norm" else 0) else f"overlap {text}"
        middle = (ends[0] * ends[1]) ** 0.5 if t.kind == "norm" and ends[0] > 0 else (ends[0] + ends[1]) / 2
        style = {"ha": "center", "va": "bottom", "fontsize": 5.2, "bbox": st.white(0.5)}
        st.words(ax, text, (middle, bottom), (0, 1.5), **style)
    bars = [bottom + 1.0, bottom + 1.9]
    for edition, y in zip(_EDITIONS, bars):
        if edition in rows:
            _bar(ax, rows[edition]["verdicts hold from"], rows[edition]["to"], y)
    ax.set_yticks([*range(len(names)), *bars], [*(st.short(n, wide) for n in names), *_EDITIONS.values()])
    ax.set_ylim(bars[-1] + 0.6, -0.7)


def _bar(ax: Axes, low: float | None, high: float | None, y: float) -> None:
    """Draw a bar from `low` to `high`; a side without an end runs to the frame, with an arrow there."""
    left, right = ax.get_xlim()
    ends = (left if low is None else low, right if high is None else high)
    ax.plot(ends, [y] * 2, color=st.SKY, lw=3, solid_capstyle="butt", label="_bar")
    for end, x, arrow in ((low, left, "<"), (high, right, ">")):
        if end is None:
            ax.plot(x, y, color=st.SKY, marker=arrow, ms=4.5, ls="", clip_on=False, zorder=3)
    ax.set_xlim(left, right)
