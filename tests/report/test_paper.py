"""`walkback judge` on a table of a paper: a verdict per method, what could not be judged, three questions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import walkback as wb
from walkback import cli
from walkback.report.paper import judge_paper

TABLE = """method,accuracy,gamma,growth,g_norm_last
BP,0.615,1.0,1.3,4e-4
DFA,0.306,0.10,237,4.2e-9
SB,0.360,0.005,,
frozen,0.349,,,
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "paper.csv"
    path.write_text(TABLE)
    return path


def test_every_method_has_its_verdict_against_the_row_of_frozen_blocks(table):
    paper = judge_paper(table)
    assert [(r.method, r.verdict, r.failed) for r in paper.reports] == [
        ("BP", "passes", ()),
        ("DFA", "walked back", ("D1", "D2", "D3")),
        ("SB", "walked back", ("D3",)),
    ]
    assert {r.frozen_baseline_acc for r in paper.reports} == {0.349}
    assert {r.bp_acc for r in paper.reports} == {0.615}
    assert paper.verdict == "walked back"


def test_one_method_is_judged_as_in_the_whole_table(table):
    for report in judge_paper(table).reports:
        assert wb.judge(table, method_name=report.method) == report


def test_what_a_row_says_itself_stands_above_the_row_of_frozen_blocks(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("method,accuracy,frozen_acc\nA,0.5,0.2\nB,0.5,\nfrozen,0.45,\n")
    assert [r.frozen_baseline_acc for r in judge_paper(path).reports] == [0.2, 0.45]
    assert [r.frozen_baseline_acc for r in judge_paper(path, frozen_baseline_acc=0.1).reports] == [0.1, 0.1]


def test_the_screen_says_what_could_not_be_judged_and_what_to_ask(table, capsys):
    assert cli.run(["judge", str(table)]) == 1
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert out.startswith("paper.csv: 3 methods: 2 walked back, 1 passes\n")
    text = " ".join(out.split())
    assert "SB: D1 (no state norms were given); D2 (no gradient norms were given)" in text
    assert "1. What accuracy does the same network reach with its blocks frozen" in text
    assert "same epochs, optimiser and seeds? (in the table)" in text
    assert "batch size is the loss a mean? (not in the table for SB)" in text
    assert "(or of fresh feedback)? (not in the table for BP, DFA, SB)" in text


def test_json_has_every_report_and_the_questions(table, capsys):
    assert cli.run(["judge", str(table), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert [one["method"] for one in data["methods"]] == ["BP", "DFA", "SB"]
    assert [one["open for"] for one in data["questions"]] == [[], ["SB"], ["BP", "DFA", "SB"]]


@pytest.mark.parametrize("option", [["--out", "r.md"], ["--junit", "j.xml"], ["--require", "D1"]])
def test_what_is_of_one_method_asks_for_it(table, capsys, option):
    assert cli.run(["judge", str(table), *option]) == 2
    assert f"Expected {option[0]} with one method" in capsys.readouterr().err
    assert cli.run(["judge", str(table), "--method", "DFA", "--json"]) == 1


def test_a_table_is_read_as_papers_print_it(table, tmp_path):
    printed = tmp_path / "printed.csv"
    heads = {"method": "Method", "accuracy": "Test accuracy", "gamma": "Γ", "growth": "ρ", "g_norm_last": "||g_L||"}
    text = TABLE.replace(",,\n", ",–,n/a\n").replace("frozen", "Frozen-blocks baseline")
    for name, head in heads.items():
        text = text.replace(name, head, 1)
    printed.write_text(text, encoding="utf-8")
    assert [(r.method, r.values, r.failed) for r in judge_paper(printed).reports] == [
        (r.method, r.values, r.failed) for r in judge_paper(table).reports
    ]


def test_a_column_that_was_not_read_is_said(tmp_path):
    path = tmp_path / "more.csv"
    path.write_text("method,accuracy,grwoth\nBP,0.6,1.3\nDFA,0.5,99\n")
    assert str(judge_paper(path)).count("note: columns that were not used: grwoth") == 1


def test_the_control_may_be_a_column_that_is_headed_as_in_a_paper(tmp_path):
    path = tmp_path / "column.csv"
    path.write_text("method,Accuracy,Frozen,BP\nDFA,0.30,0.35,0.6\nFA,0.50,0.36,0.6\n")
    paper = judge_paper(path)
    assert [(r.frozen_baseline_acc, r.bp_acc) for r in paper.reports] == [(0.35, 0.6), (0.36, 0.6)]
    assert "not used" not in str(paper)


def test_the_last_norm_alone_is_not_said_to_mean_itself(tmp_path):
    path = tmp_path / "last.csv"
    path.write_text("method,accuracy,h_norm_last\nBP,0.6,200\nDFA,0.5,4e8\n")
    text = " ".join(str(judge_paper(path)).split())
    assert "h_norm_last (growth over the whole depth needs h_norm_first too)" in text
    assert "did you mean" not in text


def test_another_kind_of_file_says_which_are_read(tmp_path, capsys):
    path = tmp_path / "paper.md"
    path.write_text("| Method | Acc |\n|---|---|\n| BP | 0.6 |\n")
    assert cli.run(["judge", str(path)]) == 2
    assert f"Expected numbers as .json, .jsonl or .csv, but got {path}" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("method,accuracy,seed\nBP,0.6,1\nBP,0.5,2\nFA,0.5,1\n", "'BP' has rows of 2 seeds. Give one row"),
        ("method,accuracy,h_norm\nBP,0.6,200\nFA,0.5,9\n", "Where only the last site is known, call it h_norm_last"),
        ("method;accuracy\nBP;0.6\nFA;0.5\n", "Expected commas between the columns"),
    ],
)
def test_a_table_that_can_not_be_judged_says_what_to_write(tmp_path, capsys, text, said):
    path = tmp_path / "wrong.csv"
    path.write_text(text)
    assert cli.run(["judge", str(path)]) == 2
    assert said in capsys.readouterr().err


def test_the_exit_code_is_that_of_the_worst_method(tmp_path, capsys):
    path = tmp_path / "good.csv"
    path.write_text("method,accuracy,growth,g_norm_last\nBP,0.6,1.3,4e-4\nFA,0.5,1.4,4e-4\nfrozen,0.3,,\n")
    assert cli.run(["judge", str(path)]) == 0
    path.write_text("method,accuracy\nBP,0.6\nFA,0.5\n")
    assert cli.run(["judge", str(path)]) == 3
    assert "not in the table for BP, FA" in " ".join(capsys.readouterr().out.split())
