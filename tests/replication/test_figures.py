"""Every figure on full, partial and no data: what is drawn is what the records hold, and all of it is on the page."""

from __future__ import annotations

import json
import re
import sys
from itertools import combinations, pairwise
from pathlib import Path
from string import ascii_lowercase

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import AxLine
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from made_runs import EXPLODED, HEALTHY, write_run
from made_worlds import LAST, SWEEP, full_store
from places import ROOT
from walkback.audit.plans import RULE_OPTIONS
from walkback.audit.records import Record, Records, read_records
from walkback.errors import FormatError, InputError
from walkback.replication import summaries
from walkback.replication.figures import FIGURES, save_figure, save_figures
from walkback.replication.figures.courses import _LAMBDA as STRENGTHS
from walkback.replication.figures.depth import most_runs
from walkback.replication.figures.remarks import missing_note
from walkback.replication.figures.style import HEADING, LETTER, NOTE, RED, SKY, WIDTHS, look
from walkback.replication.found import markdown_list
from walkback.replication.published import figures
from walkback.replication.tables import evidence
from walkback.training.control import control_spec
from walkback.training.spec import RunSpec

SEEDS = (42, 123)
EMPTY = Records(Path("runs"))
WITH_DATA = [name for name in FIGURES if name not in ("backward-paths", "accuracy-by-depth")]
# The world has no augmented runs, and none whose blocks were put back to random.
FULL = [name for name in FIGURES if name not in ("temporal-augmented", "accuracy-by-depth")]


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Records:
    return read_records(full_store(tmp_path_factory.mktemp("world") / "runs", SEEDS))


@pytest.fixture(scope="module")
def some(tmp_path_factory) -> Records:
    """BP and DFA with their controls, one seed."""
    store = tmp_path_factory.mktemp("some") / "runs"
    for rule, acc, numbers in (("bp", 0.6, HEALTHY), ("dfa", 0.3, EXPLODED)):
        write_run(store, RunSpec(rule=rule), acc, **numbers)
        write_run(store, control_spec(RunSpec(rule=rule)), 0.35, **HEALTHY)
    return read_records(store)


@pytest.fixture(scope="module")
def drawn(world) -> dict[tuple[str, str], Figure]:
    """Every figure in both widths, laid out."""
    found = {(name, width): FIGURES[name](world, width) for name in FULL for width in WIDTHS}
    for figure in found.values():
        figure.draw_without_rendering()
    return found


def runs(records: Records, **fields) -> list[Record]:
    """The runs of exactly these fields of the spec, whatever their seed."""
    wanted = RunSpec(**fields)
    return [r for r in records if RunSpec(**{**r.spec.model_dump(), "seed": wanted.seed}) == wanted]


def points(ax, rule: str) -> np.ndarray:
    """(N, 2) of every marker of a rule in a panel: lines and the markers of error bars."""
    style = look(rule)
    lines = [ln for ln in ax.get_lines() if ln.get_marker() == style["marker"] and ln.get_color() == style["color"]]
    return np.concatenate([np.column_stack(ln.get_data()).astype(float) for ln in lines])


def mean(values) -> float:
    return float(np.mean(list(values)))


# -- what is drawn is what was recorded ----------------------------------------------------------------------------


def test_reporting_pair(drawn, world):
    figure = drawn["reporting-pair", "double"]
    accuracy, gamma, gain = figure.axes[:3]
    dfa = runs(world, rule="dfa")
    frozen = runs(world, rule="dfa", scope="frozen")
    assert [label.get_text() for label in accuracy.get_yticklabels()] == [
        *("BP", "FA", "DFA", "State Bridge", "Credit Bridge", "EP")
    ]
    (point,) = points(accuracy, "DFA")
    assert point == pytest.approx([mean(r.accuracy for r in dfa), 2])
    controls = [float(np.squeeze(ln.get_xdata())) for ln in accuracy.get_lines() if ln.get_marker() == "|"]
    assert controls[2] == pytest.approx(mean(r.accuracy for r in frozen))
    assert points(gamma, "DFA")[0, 0] == pytest.approx(mean(np.mean(r.report.per_layer["cosine"][:-1]) for r in dfa))
    gains = 100 * np.array([a.accuracy - b.accuracy for a, b in zip(dfa, frozen)])
    assert points(gain, "DFA")[1, 0] == pytest.approx(gains.mean())
    assert drawn_threshold(gain) == 2.0
    beside = {round(float(t.xy[1])): t.get_text() for t in gain.texts if t.get_text().startswith(("passes", "walked"))}
    assert (beside[0], beside[2]) == ("passes", "walked back:\nD1 D2 D3")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["reporting-pair", "cross-arch"])
def test_a_check_that_fails_on_some_seeds_says_on_how_many(tmp_path, name, width):
    """D1 and D2 on one of three, D3 over all; the label is on the page, and there is room left for the panel."""
    for seed, numbers in ((42, EXPLODED), (123, HEALTHY), (456, HEALTHY)):
        spec = RunSpec(rule="dfa", seed=seed)
        write_run(tmp_path, spec, 0.3, **numbers)
        write_run(tmp_path, control_spec(spec), 0.35, **HEALTHY)
    figure = FIGURES[name](read_records(tmp_path), width)
    figure.draw_without_rendering()
    panel = figure.axes[2]
    (label,) = [t for t in panel.texts if t.get_text().startswith("walked back")]
    assert label.get_text() == ("walked back:\nD3" if name == "reporting-pair" else "walked back")  # one line there
    assert label.get_window_extent().x1 <= figure.bbox.padded(1).x1
    assert panel.get_window_extent().width > 0.15 * figure.bbox.width


@pytest.mark.parametrize("width", WIDTHS)
def test_the_reporting_pair_of_a_store_of_ones_own(tmp_path, width):
    """Other data, epochs and conventions than the papers' tables: tasks with several rules, those with more first."""
    for rule, acc, conventions in (("bp", 0.8, {}), ("dfa", 0.5, {"credit_site": "reader", "credit_length": "unit"})):
        for epochs, seeds in ((4, (0,)), (8, (0, 1))):
            for seed in seeds:
                spec = RunSpec(rule=rule, data="teacher-products", epochs=epochs, seed=seed, **conventions)
                write_run(tmp_path, spec, acc + 0.01 * seed, **(HEALTHY if rule == "bp" else EXPLODED))
                write_run(tmp_path, control_spec(spec), 0.6, **HEALTHY)
    figure = FIGURES["reporting-pair"](read_records(tmp_path), width)
    figure.draw_without_rendering()
    accuracy, _, gain = figure.axes[:3]
    assert [t.get_text() for t in figure.findobj(Text) if t.get_gid() == HEADING] == [
        "resmlp, teacher-products, 8 epochs, plain", "resmlp, teacher-products, 4 epochs, plain"
    ]  # fmt: skip
    assert [label.get_text() for label in accuracy.get_yticklabels()] == ["BP", "DFA"]
    assert points(accuracy, "DFA")[0] == pytest.approx([0.505, 1])
    assert points(gain, "DFA")[-1, 0] == pytest.approx(-9.5)
    assert [line.get_xdata()[0] for line in accuracy.get_lines() if line.get_marker() == "|"] == [0.6, 0.6]
    assert any(t.get_text() == "DFA: reader, unit credit." for t in figure.texts)
    assert "Fewer than 3 seeds: resmlp, teacher-products, 8 epochs, plain (2)" in note_of(figure)


def test_a_point_alone_on_a_log_axis_stands_between_two_decades(tmp_path):
    write_run(tmp_path, RunSpec(augment=True), 0.6, **HEALTHY)
    figure = FIGURES["published-against-ours"](read_records(tmp_path), "double")
    figure.draw_without_rendering()
    for axis in (figure.axes[2].xaxis, figure.axes[3].yaxis):
        low, high = axis.get_view_interval()
        assert sum(low <= tick.get_loc() <= high for tick in axis.get_major_ticks()) >= 2


def test_norms_in_the_lines_under_a_figure_are_set_as_on_its_axes(drawn):
    for name in ("sensitivity", "temporal-plain"):
        said = " ".join(text.get_text() for text in drawn[name, "double"].texts)
        assert r"$\|g_L\|$ is the per-sample norm" in said.replace("\n", " ")


def drawn_threshold(ax) -> float:
    """Where the dashed line of a panel is."""
    (line,) = [ln for ln in ax.get_lines() if ln.is_dashed() and ln.get_marker() == "None"]
    x, y = line.get_data()
    return float(x[0] if x[0] == x[1] else y[0])


def test_per_layer(drawn, world):
    cosine, norm, growth = drawn["per-layer", "double"].axes
    per_layer = [r.report.per_layer for r in runs(world, rule="dfa")]
    for ax, name in ((cosine, "cosine"), (norm, "g_norm")):
        assert points(ax, "DFA") == pytest.approx(
            np.column_stack([range(5), np.mean([p[name] for p in per_layer], axis=0)])
        )
    h = np.array([p["h_norm"] for p in per_layer])
    assert points(growth, "DFA")[:, 1] == pytest.approx((h[:, 1:] / h[:, :-1]).mean(axis=0))
    assert (drawn_threshold(norm), drawn_threshold(growth)) == (1e-7, 50.0)
    assert norm.get_yscale() == growth.get_yscale() == "log"
    single = drawn["per-layer", "single"].axes
    assert points(single[0], "DFA") == pytest.approx(points(cosine, "DFA"))


def test_a_cosine_that_some_seeds_lack_says_of_how_many_it_is(tmp_path):
    for seed in (42, 123, 456):
        path = write_run(tmp_path, RunSpec(rule="fa", seed=seed), 0.5, **HEALTHY) / "report.json"
        report = json.loads(path.read_text())
        if seed != 42:
            report["per_layer"]["cosine"] = [None] * 5
            path.write_text(json.dumps(report))
        write_run(tmp_path, RunSpec(rule="dfa", seed=seed), 0.5, **HEALTHY)
    records = read_records(tmp_path)
    figure = FIGURES["per-layer"](records, "double")
    said = " ".join(" ".join(t.get_text() for t in figure.texts).split())
    assert "Cosines of some seeds only: plain: FA (1 of 3)." in said
    rows = [c for row in evidence("per-layer", records).rows for c in row if "(1/3)" in c]
    assert rows == [f"{c:+.3f} (1/3)" for c in HEALTHY["cosine"]]


def test_temporal(drawn, world):
    figure = drawn["temporal-plain", "double"]
    titles = [t.get_text() for ax in figure.axes[::3] for t in ax.texts if ", " in t.get_text()]
    assert titles[0] == "ResMLP d=256 L=4, terminal LN, plain"
    assert len(titles) == len(set(titles)) == 7
    h, g, acc = figure.axes[:3]
    dfa = runs(world, rule="dfa")
    rows = [[r.initial, *r.rows] for r in dfa]
    for ax, value in (
        (h, lambda row: row["per_layer"]["h_norm"][-1]),
        (g, lambda row: row["per_layer"]["g_norm"][-1]),
        (acc, lambda row: row["test_acc"]),
    ):
        expected = [mean(value(run[e]) for run in rows) for e in range(101)]
        assert points(ax, "DFA") == pytest.approx(np.column_stack([range(101), expected]))
    stars = [ln for ln in g.get_lines() if ln.get_marker() == "*" and ln.get_color() == look("DFA")["color"]]
    first = [next(e for e, row in enumerate(run) if row["per_layer"]["g_norm"][-1] < 1e-7) for run in rows]
    own = [run[e]["per_layer"]["g_norm"][-1] for run, e in zip(rows, first) if e == min(first)]
    (star,) = stars
    assert int(star.get_xdata()[0]) == min(first)
    assert float(star.get_ydata()[0]) in own
    assert drawn_threshold(g) == 1e-7


def test_a_star_is_on_the_seed_that_flags(tmp_path):
    """One of two seeds falls under the floor: the star is in the zone where D2 flags, the mean is not."""
    for seed, g in ((42, 1e-9), (123, 1e-3)):
        write_run(tmp_path, RunSpec(rule="dfa", seed=seed), 0.3, **{**HEALTHY, "g": (g,) * 5})
    axis = FIGURES["temporal-plain"](read_records(tmp_path), "double").axes[1]
    (star,) = [ln for ln in axis.get_lines() if ln.get_marker() == "*"]
    assert float(star.get_ydata()[0]) < 1e-7
    assert points(axis, "DFA")[int(star.get_xdata()[0]), 1] > 1e-7
    low, high = axis.get_ylim()
    assert low < float(star.get_ydata()[0]) < high


def test_penalty(drawn, world):
    dose, cosine, accuracy = drawn["penalty", "double"].axes
    lines = [ln for ln in dose.get_lines() if len(ln.get_xdata()) == 31]
    assert [ln.get_ydata()[-1] for ln in lines] == pytest.approx(
        [SWEEP["dfa", p][1] for p in (0, 1e-4, 1e-3, 1e-2, 1e-1)]
    )
    deep = points(cosine, "DFA")
    at = [mean(np.mean(r.report.per_layer["cosine"][1:]) for r in runs(world, rule="dfa", penalty=p, epochs=30))
          for p in (0, 1e-4, 1e-3, 1e-2, 1e-1)]  # fmt: skip
    assert deep == pytest.approx(np.column_stack([range(5), at]))
    bands = {(round(float(p.get_y()), 6), round(float(p.get_height()), 6)) for p in cosine.patches}
    assert bands == {(round(-0.005 - 2 * 0.018, 6), 0.072)}, "mean ± 2 std of fresh feedback"
    bp = points(accuracy, "BP")
    assert bp[:, 1] == pytest.approx([
        mean(r.accuracy for r in runs(world, rule="bp", penalty=p, epochs=30)) for p in (0.0, 1e-2)
    ])  # fmt: skip
    frozen = [
        ln.get_ydata()[0] for ln in accuracy.get_lines() if ln.get_marker() == "None" and len(ln.get_xdata()) == 2
    ]
    assert mean(r.accuracy for r in runs(world, rule="dfa", scope="frozen", epochs=30)) in [
        pytest.approx(y) for y in frozen
    ]


def test_cross_arch(drawn, world):
    growth, norm, depth = drawn["cross-arch", "double"].axes
    (vit,) = runs(world, rule="dfa", net="vit-mini", epochs=30)
    h = vit.report.per_layer["h_norm"]
    assert max(b / a for a, b in pairwise(h)) in points(growth, "DFA")[:, 0]
    assert vit.report.per_layer["g_norm"][-1] in points(norm, "DFA")[:, 0]
    (control,) = runs(world, rule="dfa", net="vit-mini", epochs=30, scope="frozen")
    gains = points(depth, "DFA")[:, 0]
    assert np.isclose(gains, 100 * (vit.accuracy - control.accuracy)).any()
    assert [drawn_threshold(ax) for ax in (growth, norm, depth)] == [50.0, 1e-7, 2.0]
    heads = [t for t in growth.texts if t.get_fontweight() == "bold" and t.get_gid() != LETTER]
    assert len(heads) == 7
    assert len(points(growth, "DFA")) == 7, "one of every network"


def test_decision_utility(drawn):
    three, four = drawn["decision-utility", "double"].axes

    def fails(ax) -> list[list[bool]]:
        cells = [p for p in ax.patches if isinstance(p, Rectangle)]
        columns = len(ax.get_xticks())
        red = [to_hex(c.get_facecolor()).upper() == RED for c in cells]
        return [red[i : i + columns] for i in range(0, len(red), columns)]

    names = [label.get_text() for label in three.get_yticklabels()]
    # BP passes; FA falls short of D3 alone; DFA, SB and CB explode; EP is under its frozen blocks.
    expected = {"BP": 4, "FA": 3, "DFA": 2, "State Bridge": 2, "Credit Bridge": 2, "EP": 3}
    for name, marks in zip(names, fails(three)):
        first = expected[name.partition(",")[0]]
        assert marks == [i >= first for i in range(4)], name
    by_rule = dict(zip((label.get_text() for label in four.get_yticklabels()), fails(four)))
    # S0, S1, (a), (b), (c), (d), full
    assert by_rule["FA"] == [False, False, True, False, False, True, True]
    assert by_rule["State Bridge"] == [False, False, True, True, True, True, True]
    assert by_rule["BP"] == [False] * 7


def test_sensitivity(drawn, world):
    growth, norm, stability, margin = drawn["sensitivity", "double"].axes
    for ax, limit in ((growth, 50.0), (norm, 1e-7), (stability, 0.3), (margin, 2.0)):
        assert drawn_threshold(ax) == limit
    values = {r.spec.rule: [] for r in world}
    ep = {"rule": "ep", "rule_options": RULE_OPTIONS["ep"]}
    for run in (run for of in ({"rule": "dfa"}, {"rule": "bp"}, ep) for run in runs(world, **of)):
        values[run.spec.rule].append(run.report.per_layer["g_norm"][-1])
    assert sorted(points(norm, "DFA")[:, 0]) == pytest.approx(sorted(values["dfa"]))
    (gap,) = [ln for ln in norm.get_lines() if ln.get_marker() == "|"]
    # The healthiest failure is of EP, which (d) walks back; of the rules only BP is healthy.
    assert sorted(gap.get_xdata()) == pytest.approx([max(values["ep"]), min(values["bp"])])
    assert f"{min(values['bp']) / max(values['ep']):.3g}×" in [t.get_text() for t in norm.texts]
    for rule, face in (("BP", "white"), ("FA", look("FA")["color"])):
        found = {ln.get_markerfacecolor() for ln in norm.get_lines() if ln.get_marker() == look(rule)["marker"]}
        assert found == {face}, "what passes is drawn open"


@pytest.mark.parametrize("width", WIDTHS)
def test_sensitivity_bars_are_the_ranges_of_the_table(drawn, world, width):
    """One bar for each edition, labelled; a range without an end runs to the frame with an arrow."""
    checks = [("(a)", "D1"), ("(b)", "D2"), ("(c)",), ("(d)", "D3")]
    rows = {r["check"]: r for r in evidence("sensitivity", world).data if r["runs"] == "primary"}
    held = {c: (r["verdicts hold from"], r["to"]) for c, r in rows.items()}
    assert held["(a)"] != held["D1"], "the editions differ, or this shows nothing"
    assert held["(b)"] != held["D2"]
    figure = drawn["sensitivity", width]
    for ax, names in zip(figure.axes, checks):
        bars = [ln for ln in ax.get_lines() if ln.get_label() == "_bar"]
        arrows = {(ln.get_marker(), float(ln.get_ydata()[0])) for ln in ax.get_lines() if ln.get_color() == SKY}
        assert len(bars) == len(names)
        for name, bar, edition in zip(names, bars, ("four-diag.", "three-check")):
            y = float(bar.get_ydata()[0])
            expected = [edge if end is None else end for end, edge in zip(held[name], ax.get_xlim())]
            assert list(bar.get_xdata()) == pytest.approx(expected), name
            assert [(m, y) in arrows for m in "<>"] == [end is None for end in held[name]]
            label = {t.get_loc(): t.label1.get_text() for t in figure.axes[0].yaxis.get_major_ticks()}
            assert label[y] == edition


def test_published_against_ours(drawn, world):
    axes = drawn["published-against-ours", "double"].axes
    dfa = runs(world, rule="dfa")
    wide = runs(world, rule="dfa", net_options={"width": 512, "depth": 2})
    ours = sorted(mean(r.accuracy for r in some) for some in (dfa, wide))
    at = points(axes[0], "DFA")
    assert sorted(at[:, 1]) == pytest.approx(ours)
    published = {f.value for where in ("primary", "wide-shallow") for f in figures(where, "dfa", what="acc")}
    assert set(at[:, 0]) <= published
    norms = points(axes[2], "BP")
    assert norms[0, 0] == 200.0, "the first firm figure of the documents"
    for ax in axes:
        assert ax.get_xlim() == pytest.approx(ax.get_ylim()), "the identity is the diagonal"
        (line,) = [ln for ln in ax.get_lines() if isinstance(ln, AxLine)]
        assert line.get_xy1()[0] == line.get_xy1()[1]


def test_the_points_that_agree_are_counted_by_the_rule_of_the_tables(drawn, world):
    figure = drawn["published-against-ours", "double"]
    text = next(t.get_text() for t in figure.texts if "points agree" in t.get_text())
    agree, count = map(int, re.match(r"(\d+) of (\d+) points", text).groups())
    assert count == sum(
        len(line.get_xdata()) for ax in figure.axes for line in ax.get_lines() if line.get_marker() not in ("None", "")
    )
    assert 0 < agree <= count
    assert text.endswith("Ours: the default recipe.")


def test_cosine_pairing(drawn, world):
    figure = drawn["cosine-pairing", "double"]
    ax = next(ax for ax in figure.axes if any(t.get_text().split(",")[0] == "DFA" for t in ax.texts))
    per_layer = [r.report.per_layer for r in runs(world, rule="dfa")]
    lines = {ln.get_marker(): ln.get_data() for ln in ax.get_lines() if ln.get_marker() in ("o", "^", "v")}
    for marker, name in (("o", "cosine"), ("^", "cosine_above"), ("v", "cosine_below")):
        columns = [column for column in zip(*(p[name] for p in per_layer)) if None not in column]
        assert list(lines[marker][1]) == pytest.approx([mean(column) for column in columns])
    assert list(lines["^"][0]) == [0, 1, 2, 3]
    assert list(lines["v"][0]) == [1, 2, 3, 4]


def test_strengths_have_colours_and_markers_of_their_own():
    rules = {name: look(name) for name in ("BP", "FA", "DFA", "State Bridge", "Credit Bridge", "EP", "another")}
    for color, marker, _ in STRENGTHS.values():
        assert color.upper() not in {str(style["color"]).upper() for style in rules.values()}
        assert marker not in {style["marker"] for style in rules.values()}
    assert len({color for color, *_ in STRENGTHS.values()}) == len(STRENGTHS)


@pytest.mark.parametrize("width", WIDTHS)
def test_strategies_are_defined_in_the_picture(drawn, width):
    texts = " ".join(" ".join(t.get_text() for t in drawn["decision-utility", width].texts).split())
    for strategy in ("S0 reports accuracy alone", "S1 adds Γ", "S2 adds D1", "S3 adds D3"):
        assert strategy in texts


@pytest.mark.parametrize("name", FULL)
def test_panels_have_letters_in_their_order(drawn, name):
    figure = drawn[name, "double"]
    panels = [ax for ax in figure.axes if ax.get_visible()]
    marked = [t.get_text() for ax in panels for t in ax.texts if t.get_gid() == LETTER]
    titled = [m[1] for ax in panels if (m := re.match(r"(?:\$\\bf\{)?([a-z])(?:\}\$)?  ", ax.get_title()))]
    expected = list(ascii_lowercase[: len(panels)]) if len(panels) > 1 else []
    assert (marked or titled) == expected


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", FULL)
def test_letters_and_headings_cover_no_data_and_no_other_text(drawn, name, width):
    figure = drawn[name, width]
    texts = [t for ax in figure.axes for t in ax.texts if t.get_gid() in (LETTER, HEADING) and ax.get_visible()]
    others = [*figure.axes, *figure.legends, *(t for t in figure.texts if t.get_text())]
    boxes = [other.get_window_extent() for other in others]
    for text in texts:
        box = text.get_window_extent()
        assert not any(box.overlaps(other) for other in boxes), text.get_text()
    assert not [(a.get_text(), b.get_text()) for a, b in combinations(texts, 2)
                if a.get_window_extent().overlaps(b.get_window_extent())]  # fmt: skip


@pytest.mark.parametrize("width", WIDTHS)
def test_the_note_can_be_left_out_and_nothing_else_moves(some, width):
    full, bare = (FIGURES["reporting-pair"](some, width, notes=notes) for notes in (True, False))
    for figure in (full, bare):
        figure.draw_without_rendering()
    assert any("No runs yet" in t.get_text() for t in full.texts)
    assert not any("No runs yet" in t.get_text() for t in bare.texts)
    assert bare.get_figheight() < full.get_figheight()
    heights = [figure.axes[0].get_window_extent().height for figure in (full, bare)]
    assert heights[0] == pytest.approx(heights[1], abs=1)


def test_backward_paths_needs_no_runs():
    figure = FIGURES["backward-paths"](EMPTY, "double")
    bp, fa, dfa = ([t.get_text() for t in ax.texts] for ax in figure.axes)
    assert "$B_0$" in fa
    assert r"$B_2^\top$" in dfa
    assert not any("B_" in text for text in bp)


# -- on the page ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", FULL)
def test_nothing_is_cut_and_labels_do_not_overlap(drawn, name, width):
    figure = drawn[name, width]
    assert figure.get_figwidth() == WIDTHS[width]
    assert figure.get_figheight() < 9.2, "fits a page"
    page = figure.bbox.padded(1)
    all_ticks, shown = set(), []
    for axis in (axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)):
        low, high = sorted(axis.get_view_interval())
        ticks = axis.get_major_ticks()
        all_ticks |= {label for tick in ticks for label in (tick.label1, tick.label2)}
        labels = [lb for t in ticks if low <= t.get_loc() <= high for lb in (t.label1, t.label2)]
        labels = [label for label in labels if label.get_visible() and label.get_text()]
        boxes = [label.get_window_extent() for label in labels]
        assert not any(a.overlaps(b) for a, b in combinations(boxes, 2)), [label.get_text() for label in labels]
        assert len(labels) >= 2 or axis.get_scale() != "log" or not any(t.label1.get_visible() for t in ticks)
        shown += labels
    for text in [*shown, *(t for t in figure.findobj(Text) if t not in all_ticks)]:
        if text.get_visible() and text.get_text().strip():
            box = text.get_window_extent()
            assert page.x0 <= box.x0 < box.x1 <= page.x1, text.get_text()
            assert page.y0 <= box.y0 < box.y1 <= page.y1, text.get_text()
            assert text.get_fontsize() >= 5, text.get_text()
    for legend in figure.legends:
        box = legend.get_window_extent()
        assert not any(box.overlaps(ax.get_window_extent()) for ax in figure.axes), "the legend hides data"


def test_rules_differ_without_colour():
    looks = [look(rule) for rule in ("BP", "FA", "DFA", "State Bridge", "Credit Bridge", "EP", "a rule of yours")]
    for key in ("marker", "linestyle", "color"):
        assert len({str(one[key]) for one in looks}) == len(looks)


# -- partial and no data -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_DATA)
def test_partial_data(some, name):
    if name in ("temporal-augmented", "penalty"):
        with pytest.raises(
            InputError, match=r"but there are none. Train .* with: for s in 42 123 456; do walkback train"
        ):
            FIGURES[name](some, "single")
        return
    figure = FIGURES[name](some, "single")
    note = note_of(figure)
    assert "Fewer than 3 seeds: " in note
    assert "FA" in note
    assert ("No runs yet: " in note) == (name != "cosine-pairing")  # it draws every setting that has the numbers


def test_a_network_that_is_drawn_is_not_said_to_have_no_runs(tmp_path):
    write_run(tmp_path, RunSpec(rule="dfa", augment=True), 0.3, **EXPLODED)
    note = note_of(FIGURES["cross-arch"](read_records(tmp_path), "double"))
    assert "ResMLP d=256 L=4, terminal LN, augmented: BP, FA; ResMLP d=512" in note


@pytest.mark.parametrize("name", WITH_DATA)
def test_no_data_is_an_error_that_says_what_to_train(name):
    with pytest.raises(
        InputError, match=r"Expected finished runs to draw .*, but there are none. Train .*walkback train"
    ):
        FIGURES[name](EMPTY, "double")


def test_what_is_not_drawn_is_named(some, tmp_path, capsys):
    saved = save_figures(some, tmp_path, ["per-layer", "penalty"], ["single"], ["svg"])
    assert [p.name for p in saved.files] == ["per-layer-single.svg"]
    assert list(saved.not_drawn) == ["penalty"]
    assert "not drawn: penalty: Expected finished runs" in capsys.readouterr().err


def test_a_diverged_run_is_drawn_as_far_as_it_went(tmp_path):
    spec = RunSpec(rule="dfa", epochs=100)
    folder = write_run(tmp_path, spec, 0.3, **EXPLODED)
    rows = (folder / "trajectory.jsonl").read_text().splitlines()[:7]
    (folder / "trajectory.jsonl").write_text("\n".join(rows) + "\n")
    report = (folder / "report.json").read_text()
    report = report.replace('"epochs": 100', '"epochs": 7').replace('"diverged": null', '"diverged": "state 4"')
    (folder / "report.json").write_text(report)
    records = read_records(tmp_path)
    assert records.problems == ()
    h = FIGURES["temporal-plain"](records, "single").axes[0]
    assert points(h, "DFA")[-1, 0] == 7


def diverged(folder: Path) -> None:
    """What a run leaves that diverged in its first epoch: nothing measured but its accuracy."""

    def unknown(fields: dict) -> dict:
        return {k: [None] * len(v) if isinstance(v, list) else None for k, v in fields.items()}

    report = json.loads((folder / "report.json").read_text())
    row = json.loads((folder / "trajectory.jsonl").read_text().partition("\n")[0])
    for where in (report, row):
        where |= {name: unknown(where[name]) for name in ("per_layer", "values", "aggregates")}
    row["diverged"] = "state not finite at site 0, first in batch 0"
    report["controls"] = unknown(report["controls"])
    report["run"] |= {"epochs": 1, "diverged": row["diverged"], "train_loss_delta": None}
    (folder / "trajectory.jsonl").write_text(json.dumps(row) + "\n")
    (folder / "report.json").write_text(json.dumps(report))


def note_of(figure: Figure) -> str:
    (note,) = [t.get_text().replace("\n", " ") for t in figure.texts if t.get_gid() == NOTE]
    return re.sub(r"\$\\\|(\w_\w)\\\|\$", r"‖\1‖", note)


def test_a_store_whose_only_run_diverged_is_drawn_and_the_note_says_so(tmp_path):
    diverged(write_run(tmp_path / "runs", RunSpec(rule="dfa"), 0.1, **EXPLODED))
    records = read_records(tmp_path / "runs")
    saved = save_figures(records, tmp_path, WITH_DATA, ["single"], ["svg"])
    assert set(saved.not_drawn) == {"temporal-augmented", "penalty", "sensitivity", "cosine-pairing"}
    assert all(why.startswith("Expected finished runs") for why in saved.not_drawn.values())
    assert note_of(FIGURES["per-layer"](records, "double")).startswith(
        "‖g_l‖ was not measured: plain: DFA. Growth was not measured: plain: DFA. No runs yet: plain: BP,"
    )


def test_a_rule_whose_runs_all_diverged_is_not_said_to_have_no_runs(tmp_path):
    write_run(tmp_path, RunSpec(rule="bp"), 0.6, **HEALTHY)
    diverged(write_run(tmp_path, RunSpec(rule="dfa"), 0.1, **EXPLODED))
    note = note_of(FIGURES["sensitivity"](read_records(tmp_path), "double"))
    assert "‖g_L‖ was not measured: plain: DFA." in note
    assert "No runs yet: plain: FA, State Bridge, Credit Bridge, EP." in note


def test_the_reporting_pair_says_of_whom_there_is_no_alignment(tmp_path):
    write_run(tmp_path, RunSpec(rule="bp"), 0.6, **HEALTHY)
    write_run(tmp_path, RunSpec(rule="dfa"), 0.3, **EXPLODED)
    folder = write_run(tmp_path, RunSpec(rule="ep", rule_options=RULE_OPTIONS["ep"]), 0.3, **EXPLODED)
    report = json.loads((folder / "report.json").read_text())
    report["per_layer"]["cosine"][0] = report["values"]["gamma"] = None  # a site without credit
    (folder / "report.json").write_text(json.dumps(report))
    note = note_of(FIGURES["reporting-pair"](read_records(tmp_path), "double"))
    assert note.count("was not measured") == note.count("Γ was not measured: ResMLP d=256 L=4, plain: EP.") == 1


@pytest.mark.parametrize("with_bp", [True, False])
@pytest.mark.parametrize("name", ["per-layer", "temporal-plain", "cross-arch", "sensitivity"])
def test_a_gradient_of_exactly_zero_is_named_where_a_log_axis_can_not_show_it(tmp_path, name, with_bp):
    write_run(tmp_path, RunSpec(rule="dfa"), 0.3, **{**EXPLODED, "g": (0.0,) * 5})
    if with_bp:
        write_run(tmp_path, RunSpec(rule="bp"), 0.6, **HEALTHY)
    figure = FIGURES[name](read_records(tmp_path), "single")
    figure.draw_without_rendering()
    note = note_of(figure)
    what, _, where = note.partition(" is 0, which a log axis does not show: ")
    assert what.endswith(("‖g_l‖", "‖g_L‖"))
    assert where.partition(".")[0].endswith("plain: DFA")
    on_a_log_axis = [ax for ax in figure.axes if "log" in (ax.get_xscale(), ax.get_yscale())]
    assert len(on_a_log_axis) >= 2
    if with_bp:
        axis = next(ax for ax in on_a_log_axis if "g_" in ax.get_xlabel() + ax.get_ylabel())
        low, high = axis.get_ylim() if axis.get_yscale() == "log" else axis.get_xlim()
        assert 0 < low < 1e-7 < HEALTHY["g"][-1] < high


def test_a_stream_of_exactly_zero_leaves_its_panel_empty_and_says_so(tmp_path):
    for rule in ("bp", "dfa"):
        write_run(tmp_path, RunSpec(rule=rule, epochs=30), 0.3, **{**HEALTHY, "h": (1.0, 1.0, 1.0, 1.0, 0.0)})
    left = FIGURES["penalty"](read_records(tmp_path), "double").axes[0]
    assert "no ‖h_L‖ of a DFA run of 30 epochs" in [t.get_text() for t in left.texts]
    assert not left.get_lines()


def test_seeds_and_gaps_in_words():
    assert missing_note([("a", ""), ("b", "FA")], [("c", "BP", 1), ("c", "FA", 1)]) == (
        "No runs yet: a; b: FA. Fewer than 3 seeds: c (1)."
    )
    assert missing_note([], [("c", "BP", 3)]) == ""


# -- files ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(some, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    save_figures(some, folder, ["per-layer", "backward-paths"], ["single"])
    return folder


def test_three_formats_and_their_fonts(files):
    assert len(list(files.iterdir())) == 6
    for path in files.glob("*.pdf"):
        data = path.read_bytes()
        assert data.startswith(b"%PDF")
        assert b"/FontFile2" in data, "TrueType is in the file"
        assert b"/Type3" not in data
    for path in files.glob("*.svg"):
        assert "<text" not in path.read_text(), "glyphs are outlines"
        assert f'width="{72 * 3.25:g}pt"' in path.read_text()
    for path in files.glob("*.png"):
        width = int.from_bytes(path.read_bytes()[16:20], "big")
        assert width == 975, "3.25 in at 300 dpi"


def test_same_records_same_bytes_whatever_the_users_settings(files, some, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"font.size": 20, "axes.grid": True, "svg.fonttype": "none", "savefig.dpi": 50}):
        save_figures(some, tmp_path, ["per-layer", "backward-paths"], ["single"])
    for path in files.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name
        assert b"202" not in re.findall(rb"CreationDate[^\n]*|<dc:date>[^<]*", path.read_bytes()), path.name
    assert dict(matplotlib.rcParams) == before


def test_wrong_names_are_errors(some, tmp_path):
    with pytest.raises(InputError, match=r"Expected figures of reporting-pair, .*, but got 'pie'"):
        save_figures(some, tmp_path, ["pie"])
    with pytest.raises(InputError, match='Expected width to be "single" or "double", but got \'triple\''):
        FIGURES["per-layer"](some, "triple")  # type: ignore[arg-type]
    figure = FIGURES["backward-paths"](EMPTY, "single")
    with pytest.raises(InputError, match=r"Expected a figure to end in .pdf, .svg, .png, but got 'x.bmp'"):
        save_figure(figure, tmp_path / "x.bmp")
    (tmp_path / "file").write_text("")
    with pytest.raises(FormatError, match=r"Expected to write .*file"):
        save_figure(figure, tmp_path / "file" / "x.svg")


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("walkback.replication.figures")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"Expected matplotlib.*pip install 'walkback\[report\]'"):
        import walkback.replication.figures  # noqa: F401


def test_the_page_on_figures_names_every_figure():
    text = (ROOT / "docs" / "figures.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| ([a-z, -]+) \|", text, re.MULTILINE)[1:]
    assert [name for row in named for name in row.split(", ")] == list(FIGURES)


def test_the_pages_list_what_the_folders_hold():
    drawn = {name: figure.about for name, figure in FIGURES.items()}
    for page, shows in (("evidence.md", summaries.names()), ("figures.md", drawn)):  # `make evidence` writes both
        assert f"\n{markdown_list(shows)}\n" in (ROOT / "docs" / page).read_text(encoding="utf-8")


def test_all_rules_of_the_world_are_known():
    assert set(LAST) == {"bp", "fa", "dfa", "state-bridge", "credit-bridge", "ep"}


def test_accuracy_by_depth_keeps_the_settings_with_most_runs_in_their_order():
    groups = {("net", rule): [{"n": n}] for rule, n in (("a", 1), ("b", 3), ("c", 1), ("d", 2))}
    assert [rule for _, rule in most_runs(groups, 2)] == ["b", "d"]
    assert [rule for _, rule in most_runs(groups, 3)] == ["a", "b", "d"]  # of equals, the first
    assert most_runs(groups, 4) == groups
