"""The published figures as data, and the rule by which ours agree with them."""

from __future__ import annotations

import pytest

from walkback.audit.records import Records
from walkback.replication.agree import RULES, agrees, agrees_any, answer, published
from walkback.replication.found import in_folder, markdown_list
from walkback.replication.published import FIGURES, KINDS, SOURCES, Figure, figures
from walkback.replication.tables.build import Evidence


def test_every_figure_has_a_known_kind_and_source():
    assert len(FIGURES) == len(set(FIGURES))
    for figure in FIGURES:
        assert figure.kind in RULES
        assert figure.source.split()
        assert set(figure.source.split()) <= set(SOURCES)
        assert figure.std is None or figure.std > 0
        if figure.kind == "acc" and not isinstance(figure.value, tuple):
            assert 0 < figure.number < 1
        assert figure.batch == 128 or figure.what.partition(".")[0] == "g_norm"
    assert {f.what.partition(".")[0] for f in FIGURES} == set(KINDS)


def test_the_other_convention_is_eight_times_smaller():
    (small,) = figures("primary", "dfa", what="g_norm", batch=1024, rough=False)
    (large,) = figures("primary", "dfa", what="g_norm", source="004", rough=False, batch=128)
    assert small.value == 5e-10
    assert small.number == pytest.approx(large.number) == 4e-9
    # The same state in both conventions: 001 and 004 on the penalty of 1e-4.
    one, other = figures("lambda-sweep", "dfa", what="g_norm", penalty=1e-4)
    assert one.number == pytest.approx(other.number, rel=0.02)
    assert published([one]) == "5e-6† seed 42 [001]"


def test_every_variant_is_kept():
    assert published(figures("primary", "bp", what="acc")) == "0.615 ± 0.003 [002]; 0.609 ± 0.004 [001]; ~0.610 [001]"
    assert published(figures("primary", "state-bridge", what="growth")) == "1.2e4 [002]; 2.4 [001]"
    assert published(()) == "–"


ACC = Figure("x", "y", "acc", 0.30, "002", 0.03)


@pytest.mark.parametrize(
    ("figure", "yes", "no"),
    [
        (ACC, [0.36, 0.24], [0.361, 0.239]),
        (Figure("x", "y", "acc", 0.30, "002"), [0.32, 0.28], [0.321]),
        (Figure("x", "y", "gamma", 0.1, "002"), [0.12, 0.08], [0.121, 0.079]),
        (Figure("x", "y", "margin", 26.6, "002"), [24.6], [24.5]),
        (Figure("x", "y", "h_norm", 4e8, "002"), [1.2e9, 1.34e8], [1.21e9, 1.3e8]),
        (Figure("x", "y", "h_norm", 1e8, "002", rough=True), [1e9, 1e7], [1.1e9]),
        (Figure("x", "y", "g_norm", 1e-10, "002", batch=1024), [8e-10, 2.4e-9], [1e-10]),
        (Figure("x", "y", "growth", 50.0, "004", bound=">"), [50.1, 1e6], [50.0]),
        (Figure("x", "y", "g_norm", 1e-4, "004", rough=True, bound=">"), [1.1e-4, 1.0], [1e-4, 1.1e-5]),
        (Figure("x", "y", "nudging", -1e-3, "004"), [-2e-3], [1e-3, -4e-3]),
        (Figure("x", "y", "train_loss_delta", -0.1, "004"), [-0.29], [-0.31, 0.1]),
        (Figure("x", "y", "fired.b", (3, 4), "000"), [1.5, 8.0], [1.4, 8.1, "never"]),
        (Figure("x", "y", "fired.b", "never", "000"), ["never"], [3.0, "mixed"]),
        (Figure("x", "y", "cosine", (-0.03, 0.0), "002"), [0.02, -0.05], [0.021, -0.051]),
        (Figure("x", "y", "growth", (0.0, 10.0), "004"), [9.0], [11.0]),
        (Figure("x", "y", "saved", 0.96, "000"), [0.91], [0.90]),
        (Figure("x", "y", "verdict.three", "walked back", "004"), ["walked back"], ["passes", "undecided"]),
    ],
)
def test_the_rule_of_each_kind(figure, yes, no):
    assert [agrees(value, figure) for value in yes] == [True] * len(yes)
    assert [agrees(value, figure) for value in no] == [False] * len(no)
    assert agrees(None, figure) is None


def test_counts_agree_when_they_are_the_same() -> None:
    figure = Figure("x", "", "count.full", 3.0, "000")
    assert [agrees(value, figure) for value in (3.0, 2.0, 0.0)] == [True, False, False]
    assert agrees(0.0, Figure("x", "", "count.S0", 0.0, "000")) is True


def test_about_is_not_compared_where_the_same_is_given_exactly() -> None:
    """DFA's "31 %" must not let in what 0.306 and 0.308 leave out."""
    known = figures("primary", "dfa", what="acc")
    assert agrees(0.329, next(f for f in known if f.rough)) is True
    assert agrees_any(0.3365, known) is False
    assert published([Figure("x", "y", "acc", 0.372, "000", seed=0)]) == "0.372 one seed [000]"


def test_one_variant_is_enough_and_none_is_nothing():
    other = Figure("x", "y", "acc", 0.5, "001")
    assert agrees_any(0.5, [ACC, other]) is True
    assert agrees_any(0.4, [ACC, other]) is False
    assert agrees_any(0.4, []) is None
    assert agrees_any(None, [ACC]) is None
    assert answer({"a": False, "b": None}) == "no"


def test_a_table_is_one_new_file_and_no_other_edit(tmp_path, monkeypatch):
    folder = tmp_path / "made_tables"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    head = "from walkback.replication.tables.build import count, evidence_table\n"
    for name, place in (("late", 20), ("early", 10)):
        (folder / f"{name}.py").write_text(
            f'{head}@evidence_table({place}, "Runs", "n")\ndef {name}_runs(t):\n'
            f'    """How many runs."""\n    t.row(count(len(t.records)))\n'
        )
    (folder / "again.py").write_text("from made_tables.late import late_runs as again\n")  # one table under two names
    monkeypatch.syspath_prepend(tmp_path)
    tables = in_folder("made_tables", Evidence)
    assert list(tables) == ["early-runs", "late-runs"]
    listed = [
        line.split(" | ")[0]
        for line in markdown_list({name: table.about for name, table in tables.items()}).splitlines()[2:]
    ]
    assert listed == ["| early-runs", "| late-runs"]
    assert tables["late-runs"](Records(tmp_path)).rows == (("0",),)
