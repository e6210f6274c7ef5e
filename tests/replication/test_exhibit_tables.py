"""All tables for a paper: what is best, what a caption says, and LaTeX that compiles and fits its pages."""

from __future__ import annotations

import csv
import io
import re
import shutil
from pathlib import Path

import pytest

from made_latex import compiled
from made_runs import EXPLODED, HEALTHY, write_run
from made_worlds import full_store
from walkback.audit.records import Records, read_records
from walkback.errors import FormatError
from walkback.replication.forms import BOLD, best, save_tables, thresholds, to_csv
from walkback.replication.tables import TABLES, evidence
from walkback.report.latex import cell
from walkback.report.table import NONE, Cell, Stat, Table, spread, table
from walkback.training.control import control_spec
from walkback.training.spec import RunSpec

EMPTY = Records(Path("runs"))
ODD = r"my_rules:50%&$x$#{odd}~^\rule<b>|*[0]"


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Records:
    """Something in every table, with and without augmentation, and a rule with a name LaTeX would choke on."""
    store = full_store(tmp_path_factory.mktemp("world") / "runs", (42, 123), (True, False))
    write_run(store, RunSpec(rule=ODD), 0.3, **EXPLODED)
    return read_records(store)


@pytest.fixture(scope="module")
def folder(world, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tables")
    save_tables(world, path)
    return path


def made(*rows: tuple[str, str, float | None], head: str = "acc") -> Table:
    """A table of (rule, variant, value)."""
    cells = [[rule, f"ours, {v}", Cell(NONE) if x is None else spread(Stat((x,)), "acc")] for rule, v, x in rows]
    return table("made", "Made", ["rule", "figures", head], cells)


# -- best ----------------------------------------------------------------------------------------------------------


def test_the_best_is_not_bp_nor_a_control():
    found = made(("BP", "plain", 0.6), ("FA", "plain", 0.4), ("DFA", "plain", 0.3), ("frozen, BP stem", "plain", 0.5))
    assert best(found) == {(1, 2)}


def test_the_best_is_of_one_variant():
    rows = [("FA", "plain", 0.4), ("DFA", "plain", 0.3), ("FA", "augmented", 0.2), ("DFA", "augmented", 0.25)]
    assert best(made(*rows)) == {(0, 2), (3, 2)}


def test_less_of_a_loss_is_better_and_cosines_are_never_best():
    rows = [("FA", "plain", -0.1), ("DFA", "plain", -0.3)]
    assert best(made(*rows, head="Δ train loss")) == {(1, 2)}
    assert best(made(*rows, head="Γ")) == best(made(*rows, head="deep cos")) == set()


def test_nothing_is_best_of_one_and_ties_are_both_best():
    assert best(made(("FA", "plain", 0.4), ("DFA", "plain", None))) == set()
    assert best(made(("FA", "plain", 0.4), ("DFA", "plain", 0.4))) == {(0, 2), (1, 2)}


def test_a_gain_that_flags_is_never_best():
    def gains(*flags: bool | None) -> Table:
        cells = [Cell("gain", {"value": 1.0 - i, "flagged": flag}) for i, flag in enumerate(flags)]
        return table("made", "Made", ["rule", "figures", "D3 pp"], [["FA", "ours, plain", c] for c in cells])

    assert best(gains(True, True)) == best(gains(True, None)) == best(gains(True, False)) == set()
    assert best(gains(False, True)) == {(0, 2)}


def test_published_figures_and_rankings_are_not_compared(world):
    found = evidence("matched-penalty", world)
    for row, column in best(found):
        assert found.rows[row][1].startswith("ours")
        assert found.data[row]["n"] == 2
        assert found.columns[column] in ("acc", "nudge", "nudge, relative", "Δ train loss")


# -- files ---------------------------------------------------------------------------------------------------------


def test_every_table_in_three_formats(folder):
    names = {p.name for p in folder.iterdir()}
    assert names == {f"{name}.{kind}" for name in TABLES for kind in ("md", "tex", "csv")} | {"index.md", "all.tex"}


def test_captions_state_thresholds_and_what_is_bold(folder):
    text = (folder / "primary.md").read_text()
    assert thresholds() in text
    assert BOLD in text
    assert "growth above 50; D2 and (b) ‖g_L‖ below 1e-7; (c) stability above 0.3; D3 and (d) a gain under 2 pp" in text
    assert BOLD not in (folder / "sub-modes.md").read_text(), "nothing is bold there"
    latex = (folder / "primary.tex").read_text()
    assert r"D2 and (b) $\|g_L\|$ below $10^{-7}$" in latex
    assert "Bold: the best" in latex


def test_the_best_is_bold_in_markdown_and_latex(folder, world):
    primary = evidence("primary", world)
    (acc,) = [
        primary.rows[r][c]
        for r, c in best(primary)
        if primary.columns[c] == "acc" and primary.rows[r][1] == "ours, plain"
    ]
    assert re.search(rf"\| FA \| ours, plain \| 2 \| \*\*{re.escape(acc)}\*\* \|", (folder / "primary.md").read_text())
    assert rf"FA & plain & 2 & \textbf{{\boldmath {cell(acc)}}}" in (folder / "primary.tex").read_text()


def test_csv_has_full_numbers_and_the_best(world):
    primary = evidence("primary", world)
    rows = list(csv.DictReader(io.StringIO(to_csv(primary))))
    assert len(rows) == len(primary.rows)
    (fa,) = [r for r in rows if (r["rule"], r["figures"]) == ("FA", "ours, plain")]
    accuracies = [r.accuracy for r in world if r.spec in (RunSpec(rule="fa", seed=42), RunSpec(rule="fa", seed=123))]
    assert float(fa["acc, mean"]) == pytest.approx(sum(accuracies) / 2, abs=1e-15)
    assert float(fa["acc, std"]) == pytest.approx(abs(accuracies[0] - accuracies[1]) / 2**0.5)
    assert fa["best in"] == "acc", "its gain is the highest, and flags"
    assert ODD in [r["rule"] for r in rows]


def test_the_same_records_give_the_same_bytes(tmp_path):
    store = tmp_path / "runs"
    for rule in ("bp", "dfa"):
        write_run(store, RunSpec(rule=rule), 0.4, **HEALTHY)
        write_run(store, control_spec(RunSpec(rule=rule)), 0.3, **HEALTHY)
    names = ("primary", "cross-arch", "mechanism")
    for name in "ab":
        save_tables(read_records(store), tmp_path / name, names)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FormatError, match="Expected to write tables to"):
        save_tables(EMPTY, tmp_path / "file", ["capacity"])


# -- LaTeX ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_no_cell_is_lost(folder, world, name):
    """Ours and published, upright or sideways, in parts or not: every cell is somewhere, in as many columns as said."""
    latex, found = (folder / f"{name}.tex").read_text(), evidence(name, world)
    empty = [row.get("n") == 0 for row in found.data if row.get("figures") != "published"]
    left_out = any(empty) and not all(empty)
    for row, data in zip(found.rows, found.data):
        for text in () if left_out and data.get("n") == 0 else row:
            assert cell(text.removeprefix("ours, ")) in latex
    assert ("Rows without a run are left out" in latex) == left_out
    bodies = re.findall(r"\\begin\{tabular\}\{([^\n]*)\}\n(.*?)\\end\{tabular\}", latex, re.DOTALL)
    assert len(bodies) == latex.count(r"\caption{") == latex.count(r"\label{")
    for columns, body in bodies:
        count = len(re.sub(r">\{[^}]*\}p\{[^}]*\}", "p", columns))
        rows = re.findall(r"^    \{\}(.*) \\\\$", body, re.MULTILINE)
        assert {len(re.split(r"(?<!\\) & ", row)) for row in rows} == {count}
    labels = re.findall(r"\\label\{(.*)\}", latex)
    assert len(labels) == len(set(labels))
    assert latex.isascii()


def test_ours_and_what_is_published_are_two_tables(folder):
    latex = (folder / "wide-shallow.tex").read_text()
    ours, theirs = latex.split(r"\label{tab:wide-shallow-published}")
    assert "[004]" not in ours.partition(r"\begin{sideways")[2].partition("Notes")[0].partition(r"\parbox")[0]
    assert "+25.7" in theirs
    assert theirs.count("BP &") == 1, "once, although we have two variants"


def test_long_tables_come_in_parts(folder):
    latex = (folder / "mechanism.tex").read_text()
    parts = re.findall(r"part (\d+) of (\d+)", latex)
    assert len(parts) > 2
    assert [int(i) for i, _ in parts] == [*range(1, len(parts) + 1)]
    assert latex.count(r"\parbox") == 1, "the notes stand below the last part"


def test_numbers_are_set_in_mathematics():
    assert cell("1.2e4") == r"$1.2{\times}10^{4}$"
    assert cell("-13.3 [-13.8, +12.8] flags") == "$-13.3$ [$-13.8$, $+12.8$] flags"
    assert cell("RM-d256-L4, 3–4") == "RM-d256-L4, 3--4"
    assert cell("ρ_pert") == r"$\rho_{\mathrm{pert}}$"


@pytest.mark.parametrize("which", ["full", "empty"])
def test_everything_compiles_and_fits(folder, tmp_path, which):
    if which == "full":
        shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    else:
        save_tables(EMPTY, tmp_path)
    log = compiled(tmp_path)
    assert "Overfull" not in log, "something sticks out"
    assert "Float too large" not in log, "a part is longer than its page"
    pages = int(re.findall(r"Output written on all.pdf \((\d+) pages", log)[0])
    assert pages >= len(TABLES)
