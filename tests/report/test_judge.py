"""A verdict from logged numbers: every way they may be written down, and every way they may be wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import walkback as wb
from walkback import cli
from walkback.notes import Note, coded
from walkback.verdict.checks import DiagnosticThresholds

NAN, INF = float("nan"), float("inf")
BAD = {"h_norm": [9.0, 2e3], "g_norm": [3e-9, 4e-9]}
GOOD = {"h_norm": [9.0, 10.0], "g_norm": [3e-3, 4e-3]}
BATCHES = wb.selftest.batches(3)


def verdict(report: wb.Report) -> tuple[object, ...]:
    return report.verdict, report.failed, report.measurement_valid, report.depth_used, report.submode


# -- dicts ---------------------------------------------------------------------------------------------------------


def test_a_dict_in_the_shape_of_a_report():
    report = wb.judge(
        {
            "method": "DFA",
            "notes": "logged in JAX",
            "per_layer": {**BAD, "cosine": [0.4, 0.0]},
            "values": {"stability": 0.9},
            "headline_acc": 0.31,
            "frozen_baseline_acc": 0.35,
        }
    )
    assert verdict(report) == ("walked back", ("D1", "D2", "D3"), False, False, "drift-dominated")
    assert (report.method, report.remark, report.advisories) == ("DFA", "logged in JAX", ())
    assert report.values["growth"] == pytest.approx(2e3 / 9)
    assert report.values["growth_total"] == pytest.approx(2e3 / 9)
    assert report.values["g_norm_deepest"] == 4e-9
    assert report.values["gamma"] == 0.4
    assert report.values["depth_margin_pp"] == pytest.approx(-4.0)
    assert "judged from logged numbers" in report.details()


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({"h_norm": [1, 2]}, ("undecided", (), None, None, None)),
        ({"g_norm": [1e-3]}, ("undecided", (), True, None, None)),
        ({"values": {"growth": 2.0, "g_norm_deepest": 1e-9}}, ("undecided", (), False, None, None)),
        ({"growth": 51.0, "g_norm_deepest": 1e-9}, ("walked back", ("D1", "D2"), False, None, None)),
        ({"headline_acc": 0.6, "frozen_baseline_acc": 0.3}, ("undecided", (), None, True, None)),
        ({**GOOD, "acc": 0.6, "frozen_acc": 0.3}, ("passes", (), True, True, None)),
        ({"acc": 0.3, "frozen_acc": 0.3}, ("walked back", ("D3",), None, False, None)),
        ({"headline_acc": 0.6}, ("undecided", (), None, None, None)),
        ({"h_norm": [1.0, 100.0]}, ("undecided", (), None, None, None)),
    ],
)
def test_any_of_the_numbers_may_be_missing(numbers, expected):
    assert verdict(wb.judge(numbers)) == expected


def test_arguments_stand_above_what_was_logged():
    logged = {**GOOD, "headline_acc": 0.6, "frozen_baseline_acc": 0.3, "method": "logged", "notes": "logged"}
    report = wb.judge(logged, headline_acc=0.31, bp_acc=0.9, method_name="given", notes="given")
    assert (report.failed, report.method, report.remark) == (("D3",), "given", "given")
    assert wb.judge(logged, headline_acc=0.31, bp_acc=0.31).depth_used is None


@pytest.mark.parametrize(
    "convert",
    [np.array, torch.tensor, tuple, lambda v: [np.float32(x) for x in v], lambda v: [torch.tensor(x) for x in v]],
)
def test_lists_come_from_any_library(convert):
    report = wb.judge({name: convert(values) for name, values in BAD.items()})
    assert report.failed == ("D1", "D2")
    report.to_json()


def test_the_deepest_gradient_alone_is_shown_at_the_deepest_site():
    report = wb.judge({"h_norm": [1, 2, 3], "g_norm_deepest": 2e-3})
    assert report.per_layer["g_norm"] == [None, None, 2e-3]


@pytest.mark.parametrize("place", ["conditions", "top"])
def test_gradient_norms_of_another_batch_size_are_converted(place):
    size = {"conditions": {"g_norm_batch_size": 1024}} if place == "conditions" else {"g_norm_batch_size": 1024}
    plain = wb.judge({"h_norm": [1, 2], "g_norm": [8e-8, 2e-8]})
    report = wb.judge({"h_norm": [1, 2], "g_norm": [8e-8, 2e-8], **size})
    assert (plain.measurement_valid, report.measurement_valid) == (False, True)
    assert report.per_layer["g_norm"] == pytest.approx([64e-8, 16e-8])
    assert report.conditions["g_norm_batch_size"] == 128
    assert report.conditions["g_norm_logged_batch_size"] == 1024
    again = wb.judge(report)
    assert again.per_layer["g_norm"] == report.per_layer["g_norm"]


@pytest.mark.parametrize("dtype", ["float16", "torch.float16"])
def test_the_logged_dtype_moves_the_floor(dtype):
    at = {"h_norm": [1, 100], "g_norm": [1e-3, 3e-7]}
    assert wb.judge(at).measurement_valid is True
    assert wb.judge({**at, "conditions": {"dtype": dtype}}).failed == ("D1", "D2")
    assert wb.judge({**at, "dtype": dtype}).failed == ("D1", "D2")


@pytest.mark.parametrize("edition", ["three-check", "four-diagnostic"])
def test_measurements_are_judged_as_diagnose_does(edition):
    for case in wb.selftest.cases():
        claim = {"headline_acc": case.headline_acc, "frozen_baseline_acc": case.frozen_acc}
        expected = wb.diagnose(case.model, BATCHES, **claim, edition=edition)
        assert wb.judge(wb.measure(case.model, BATCHES), edition, **claim) == expected


# -- numbers that are not finite -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "failed", "words"),
    [
        ({"h_norm": [1, NAN, 3], "g_norm": [1, 1, 1]}, ("D1", "D2"), "state not finite at site 1, as logged"),
        ({"h_norm": [1, 2, INF], "g_norm": [1, 1, 1]}, ("D1", "D2"), "state not finite at site 2, as logged"),
        ({"h_norm": [1, 2, 3], "g_norm": [1, 1, NAN]}, ("D2",), "gradient not finite at site 2, as logged"),
        ({"h_norm": [1, "NaN"]}, ("D1", "D2"), "state not finite at site 1, as logged"),
        ({"h_norm": [1, "Infinity"]}, ("D1", "D2"), "state not finite at site 1, as logged"),
        ({"growth": INF, "g_norm_deepest": 1e-3}, ("D1", "D2"), "state not finite (growth = inf), as logged"),
        ({"g_norm_deepest": NAN, "growth": 1.0}, ("D2",), "gradient not finite (g_norm_deepest = nan), as logged"),
    ],
)
def test_what_is_not_finite_is_a_finding(numbers, failed, words):
    report = wb.judge(numbers)
    assert (report.verdict, report.failed, report.measurement_valid) == ("walked back", failed, False)
    assert words in report.advisories
    kind, site = words.split()[0], next((i for i in range(3) if f"site {i}" in words), None)
    assert [(one["kind"], one["site"]) for one in report.nonfinite] == [(kind, site)]
    json.loads(report.to_json(), parse_constant=pytest.fail)


def test_other_numbers_that_are_not_finite_are_null_with_a_reason():
    report = wb.judge({**GOOD, "cosine": [0.1, NAN], "stability": NAN, "run": {"loss": NAN}, "aggregates": {"x": INF}})
    assert report.per_layer["cosine"] == [0.1, None]
    assert report.reasons["cosine"] == "not finite at site 1, as logged"
    assert (report.values["stability"], report.run, report.aggregates) == (None, {"loss": None}, {"x": None})
    report.to_json()


# -- a report judged again -----------------------------------------------------------------------------------------


class Poisoned(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, h):
        return self.inner(h) * NAN


def poisoned() -> torch.nn.Module:
    net = wb.selftest.healthy()
    net.blocks[1] = Poisoned(net.blocks[1])
    return net


ROUND = {
    "plain": {},
    "claim": {"headline_acc": 0.6, "frozen_baseline_acc": 0.35},
    "seeds": {"headline_acc": [0.36, 0.40, 0.37], "frozen_baseline_acc": [0.35] * 3},
    "BP": {"credit": lambda t: t.grads, "probes": ("nudging",)},
    "thresholds": {
        "thresholds": DiagnosticThresholds(1.0, 0.5, 0.0, 50.0),
        "headline_acc": 0.6,
        "frozen_baseline_acc": 0.3,
    },
}


@pytest.mark.parametrize("edition", ["three-check", "four-diagnostic"])
@pytest.mark.parametrize("name", ROUND)
@pytest.mark.parametrize("network", ["healthy", "exploded", "poisoned"])
def test_a_report_judged_again_is_the_same_report(tmp_path, edition, name, network):
    net = poisoned() if network == "poisoned" else getattr(wb.selftest, network)()
    report = wb.diagnose(net, BATCHES, edition=edition, method_name=name, notes="n", **ROUND[name])
    for numbers in (report, report.to_dict(), report.save(tmp_path / "r.json"), str(tmp_path / "r.json")):
        again = wb.judge(numbers)
        assert again == report
        assert str(again) == str(report)


class Resizing(torch.nn.Module):
    """A stream of another width, and a hundred times larger, after every block in `widths`."""

    def __init__(self, *widths: int):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = torch.nn.Linear(16, widths[0]), torch.nn.Linear(widths[-1], 10)
        self.blocks = torch.nn.ModuleList(Tanh(a, b) for a, b in pairwise(widths))

    def forward(self, x):
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


class Tanh(torch.nn.Linear):
    def forward(self, h):
        return 100 * torch.tanh(super().forward(h))


@pytest.mark.parametrize("edition", ["three-check", "four-diagnostic"])
@pytest.mark.parametrize("widths", [(2, 80, 40, 20), (2, 80, 80, 20)], ids=["at every site", "at some"])
def test_norms_of_a_stream_that_changes_shape_are_judged_as_diagnose_does(tmp_path, edition, widths):
    report = wb.diagnose(Resizing(*widths), BATCHES, edition=edition, anatomy={"branch": False})
    assert max(report.per_layer["h_norm"]) > 50 * report.per_layer["h_norm"][0], "of different shapes: no growth"
    for numbers in (report, report.to_dict(), report.save(tmp_path / "r.json")):
        assert wb.judge(numbers) == report
    bare = {"h_norm": report.per_layer["h_norm"], "conditions": {"state_shapes": [[w] for w in widths]}}
    assert wb.judge(bare).values["growth"] == report.values["growth"]
    assert wb.judge({"h_norm": bare["h_norm"]}).values["growth"] > 50, "shapes that were not logged are not guessed"
    with pytest.raises(wb.InputError, match="state_shapes has 2 sites and the numbers 4"):
        wb.judge({**bare, "conditions": {"state_shapes": [[2], [80]]}})


def test_a_report_is_judged_by_another_edition_or_other_thresholds_when_asked():
    report = wb.diagnose(wb.selftest.exploded_without_norm(), BATCHES, 0.6, 0.3)
    assert report.failed == ()
    assert wb.judge(report, "four-diagnostic").failed == ("a",)
    assert wb.judge(report, thresholds=DiagnosticThresholds(g_norm_floor=1.0)).failed == ("D1", "D2")


def test_changing_a_report_changes_its_verdict():
    report = wb.diagnose(wb.selftest.healthy(), BATCHES, 0.6, 0.3)
    assert wb.judge(replace(report, frozen_baseline_acc=0.6)).failed == ("D3",)


# -- files ---------------------------------------------------------------------------------------------------------


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


EPOCHS = [
    {"epoch": 0, "h_norm": [9.0, 9.5], "g_norm": [7e-3, 7e-3], "test_acc": 0.20},
    {"epoch": 5, "h_norm": [9.0, 900.0], "g_norm": [7e-3, 1e-5], "test_acc": 0.30},
    {"epoch": 10, "h_norm": [9.0, 9e5], "g_norm": [7e-3, 1e-8], "test_acc": 0.31},
    {"epoch": 15, "h_norm": [9.0, 9e6], "g_norm": [7e-3, 1e-9], "test_acc": 0.36},
]


def jsonl(tmp_path: Path) -> Path:
    return write(tmp_path / "log.jsonl", "\n".join(json.dumps(row) for row in EPOCHS) + "\n\n")


def as_json(tmp_path: Path) -> Path:
    return write(tmp_path / "log.json", json.dumps(EPOCHS))


def as_csv(tmp_path: Path, form: str = "{}_{}", suffix: str = ".csv", mark: str = "", end: str = "\n") -> Path:
    columns = [form.format(name, site) for name in ("h_norm", "g_norm") for site in (0, 1)]
    lines = [",".join(["epoch", *columns, "test_acc", "run name"])]
    for row in EPOCHS:
        cells = [row["epoch"], *row["h_norm"], *row["g_norm"], row["test_acc"]]
        lines.append(", ".join([*map(str, cells), '"seed 1, plain"']))
    path = tmp_path / f"log{suffix}"
    path.write_bytes((mark + end.join(lines) + end).encode("utf-8"))
    return path


@pytest.mark.parametrize(
    "make",
    [
        lambda p: EPOCHS,
        as_json,
        jsonl,
        as_csv,
        lambda p: str(as_csv(p)),
        lambda p: as_csv(p, "{}[{}]"),
        lambda p: as_csv(p, "{}.{}"),
        lambda p: as_csv(p, "{}{}"),
        lambda p: as_csv(p, suffix=".CSV", mark="\ufeff", end="\r\n"),
    ],
    ids=["list", "json", "jsonl", "csv", "csv as str", "h_norm[0]", "h_norm.0", "h_norm0", "from a spreadsheet"],
)
def test_rows_per_epoch_are_judged_by_the_last_and_say_what_fired_when(tmp_path, make):
    report = wb.judge(make(tmp_path), frozen_baseline_acc=0.33)
    assert report.failed == ("D1", "D2")
    assert report.values["depth_margin_pp"] == pytest.approx(3.0)
    assert (report.run["epochs"], report.run["fired"]) == (4, {"D1": 5, "D2": 10})
    assert (report.run["unit"], report.run["total"], report.run["layer"]) == ("epoch", 15, {"D1": 1, "D2": 1})
    assert (report.run["left"], report.run["lost"], report.run["lost_left"]) == ({"D1": 10, "D2": 5}, 10, 5)
    text = "first flagged: D1 at epoch 5 in layer 1 (67% left), D2 at epoch 10 in layer 1 (33% left); 15 epochs in all"
    assert text in report.details()
    assert "trust lost at epoch 10: 5 of 15 epochs were left, 33% of the compute" in str(report)


def test_rows_without_epochs_are_counted():
    rows = [{k: v for k, v in row.items() if k != "epoch"} for row in EPOCHS]
    assert wb.judge(rows).run["fired"] == {"D1": 1, "D2": 2}
    assert wb.judge([{**row, "epoch": None} for row in EPOCHS]).run["fired"]["D2"] == 2


def test_a_csv_of_one_row_with_batch_size_and_dtype(tmp_path):
    header = "h_norm_0,h_norm_1,g_norm_0,g_norm_1,"
    plain = write(tmp_path / "a.csv", f"{header}stability\n1,100,1e-3,3e-7,0.9\n")
    assert wb.judge(plain).failed == ()
    half = write(tmp_path / "b.csv", f"{header}dtype\n1,100,1e-3,3e-7,float16\n")
    assert wb.judge(half).failed == ("D1", "D2")
    small = write(tmp_path / "c.csv", f"{header}g_norm_batch_size\n1,100,1e-3,3e-7,16\n")
    assert wb.judge(small).failed == ("D1", "D2")


def test_empty_cells_and_nan_in_a_csv(tmp_path):
    empty = wb.judge(write(tmp_path / "a.csv", "h_norm_0,h_norm_1,g_norm_1\n1,,1e-3\n"))
    assert (empty.values["growth"], empty.reasons["growth"]) == (None, "a state norm is missing: ‖h_1‖")
    nan = wb.judge(write(tmp_path / "b.csv", "h_norm_0,h_norm_1,g_norm_1\n1,nan,1e-3\n"))
    assert nan.failed == ("D1", "D2")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("none.json", None, r"Expected a file at .*none\.json, but there is none"),
        ("none.csv", None, r"Expected a file at .*none\.csv, but there is none"),
        ("a.json", "{", r"Expected .*a\.json to be readable as \.json, but: "),
        ("a.json", "", r"Expected .*a\.json to be readable as \.json, but: "),
        ("a.json", "3", r"Expected .*a\.json to hold one object, or one per epoch, but it does not"),
        ("a.json", '[{"h_norm": [1, 2]}, 3]', "to hold one object, or one per epoch"),
        (
            "a.jsonl",
            '{"h_norm": [1, 2]}\n{"h_n\n{"h_norm": [1, 2]}\n',
            r"Expected line 2 of .*a\.jsonl to be JSON, but: ",
        ),
        ("a.jsonl", '{"h_norm": [1, 2]}\n{"h_norm": [1, 2]]}\n', r"Expected line 2 of .*a\.jsonl to be JSON, but: "),
        ("a.jsonl", '{"h_norm": [1, 2]}\nthe end', r"Expected line 2 of .*a\.jsonl to be JSON, but: "),
        ("a.jsonl", '{"h_n', r"Expected line 1 of .*a\.jsonl to be JSON, but it is incomplete, and there is no other"),
        ("a.jsonl", "", r"Expected .*a\.jsonl to hold one object, or one per epoch"),
        ("a.csv", "", "to hold one object, or one per epoch"),
        ("a.csv", "h_norm_0,h_norm_1\n", "to hold one object, or one per epoch"),
        (
            "a.csv",
            "h_norm_0,h_norm_1\n1,2\n\n1\n",
            r"Expected line 4 of .*a\.csv to have as many cells .*, 2, but it has 1",
        ),
        ("a.csv", "h_norm_0,h_norm_1\n1,2,3\n", "as many cells as the header, 2, but it has 3"),
        ("a.csv", "h_norm_0,h_norm_1\n1,abc\n", r"Expected a number in column 'h_norm_1', line 2 of .*, but got 'abc'"),
        ("a.csv", "h_norm_0,test_acc\n1,high\n", "Expected a number in column 'test_acc'"),
        ("a.csv", "h_norm_0,h_norm_0\n1,2\n", "but 'h_norm_0' stands twice"),
    ],
)
def test_files_that_can_not_be_read(tmp_path, name, text, words):
    if text is not None:
        write(tmp_path / name, text)
    with pytest.raises(wb.FormatError, match=words):
        wb.judge(tmp_path / name)


@pytest.mark.parametrize("depth", [600, 100_000])
@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
@pytest.mark.parametrize("key", ["conditions", "run", "h_norm"])
def test_numbers_that_are_nested_without_end_are_refused(tmp_path, name, depth, key):
    inside = f"{'[' * depth}{']' * depth}"
    row = f'{{"g_norm": [1, 2], "{key}": {inside if key == "h_norm" else f"""{{"a": {inside}}}"""}}}'
    with pytest.raises(wb.WalkbackError, match=r"nested too deep|Expected h_norm\[0\] .* to be a number"):
        wb.judge(write(tmp_path / name, row + "\n"))


def test_a_dict_that_holds_itself_is_refused():
    odd: dict = {}
    odd["me"] = odd
    with pytest.raises(wb.FormatError, match=r"Expected the numbers to hold numbers and lists .* nested too deep"):
        wb.judge({"h_norm": [1, 2], "conditions": odd})


@pytest.mark.parametrize("unit", ["epoch", "step"])
def test_rows_of_a_watch_stand_at_a_number(tmp_path, unit):
    rows = [{"schema": "walkback.watch/1", "h_norm": [1, 2], unit: at} for at in (1, "last")]
    words = rf"Expected {unit} in {{}} to be a number or null, but got 'last'\. Rows of a Watch"
    with pytest.raises(wb.InputError, match=words.format("row 1")):
        wb.judge(rows)
    path = write(tmp_path / "watch.jsonl", "\n".join(map(json.dumps, rows)))
    with pytest.raises(wb.InputError, match=words.format(r".*watch\.jsonl row 2")):
        wb.judge(path)
    assert wb.judge([{**rows[0], unit: None}, rows[0]]).run["epochs"] == 2


@pytest.mark.parametrize("name", ["a.json", "a.csv", "a.jsonl"])
def test_binary_files_and_folders_are_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(wb.FormatError, match=rf"Expected .*{name} to be .*, but: 'utf-8' codec"):
        wb.judge(tmp_path / name)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(wb.FormatError, match="is a folder without one"):
        wb.judge(tmp_path / "folder.csv")


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\0\0\0"], ids=["no newline", "newline", "crlf", "zeros"])
def test_a_last_line_that_was_cut_off_anywhere_is_left_out_with_a_note(tmp_path, capsys, end):
    whole = json.dumps(EPOCHS[-2]) + "\n"
    row = {"h_norm": [1.0, -2.5e-7], "notes": 'Γ "\\ \u2028', "more": {"a": [True, None]}, "b": False}
    last = json.dumps(row, ensure_ascii=False).encode()
    expected = wb.judge([EPOCHS[-2]])
    path = tmp_path / "log.jsonl"
    for cut in range(1, len(last)):  # also in the middle of a letter, a number, an escape
        path.write_bytes(whole.encode() + last[:cut] + end.encode())
        report = wb.judge(path)
        assert report.notes.count(Note("torn-line", None, {"file": "log.jsonl"})) == 1, last[:cut]
        assert (report.verdict, report.per_layer) == (expected.verdict, expected.per_layer)
    assert cli.run(["judge", str(path)]) == cli.run(["judge", str(write(tmp_path / "whole.jsonl", whole))]) != 2
    assert "is incomplete" in capsys.readouterr().out


def test_errors_name_the_row_they_come_from(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"h_norm": [1, 2]}\n{"h_norm": [1, "two"]}\n')
    with pytest.raises(
        wb.InputError, match=r"Expected h_norm\[1\] in .*a\.jsonl row 2 to be a number or null, but got 'two'"
    ):
        wb.judge(path)


# -- rows without norms, and rows in another order ------------------------------------------------------------------

HEADER = "epoch,h_norm_0,h_norm_1,g_norm_0,g_norm_1,test_acc,frozen_baseline_acc"


def older(kinds: str, row: str) -> Note:
    return Note("older-norms", None, {"kinds": kinds, "row": row})


COURSE = ["1,9,20,1e-3,1e-3,0.30,0.20", "2,9,9000,1e-9,1e-9,0.31,0.20", "3,,,,,0.32,0.20"]


def test_norms_are_those_of_the_last_row_that_has_some(tmp_path, capsys):
    path = write(tmp_path / "log.csv", "\n".join([HEADER, *COURSE]))
    report = wb.judge(path)
    assert (report.failed, report.per_layer["h_norm"], report.headline_acc) == (("D1", "D2"), [9.0, 9000.0], 0.32)
    assert report.notes == (older("state and gradient", "epoch 2"),)
    assert report.advisories == ("the state and gradient norms judged are those of epoch 2: no later row has any",)
    assert f"judged from the last numbers in {report.run['epochs']} rows" in report.details()
    assert cli.run(["judge", str(path)]) == 1
    assert "are those of epoch 2" in capsys.readouterr().out
    whole = wb.judge(write(tmp_path / "whole.csv", "\n".join([HEADER, *COURSE[:2]])))
    assert (whole.failed, whole.notes) == (("D1", "D2"), ())


@pytest.mark.parametrize(
    ("last", "kept", "failed"),
    [({"h_norm": [9, 900]}, "gradient", ("a", "b")), ({"g_norm": [1e-3, 1e-3]}, "state", ("a",)), ({}, None, ("a",))],
)
def test_a_row_with_norms_of_one_kind_takes_the_other_from_an_earlier_one(last, kept, failed):
    rows = [{"step": 5, "h_norm": [9, 9000], "g_norm": [1e-3, 1e-9]}, {"step": 6, "test_acc": 0.3, **last}]
    if kept is None:
        rows[0]["g_norm"], rows[1]["growth"] = None, 60.0
    report = wb.judge(rows, "four-diagnostic")
    assert report.failed == failed
    assert report.notes == ((older(kept, "step 5"),) if kept else ())


def test_norms_that_are_not_finite_are_norms():
    rows = [{"epoch": 1, "h_norm": [1, 2], "g_norm": [1e-3, 1e-3]}, {"epoch": 2, "h_norm": [NAN, NAN]}]
    report = wb.judge(rows)
    assert report.failed == ("D1", "D2")
    assert older("gradient", "epoch 1") in report.notes


@pytest.mark.parametrize("order", [(3, 2, 1, 0), (1, 3, 0, 2)], ids=["newest first", "shuffled"])
@pytest.mark.parametrize("unit", ["epoch", "step", "both"])
def test_rows_that_do_not_ascend_are_sorted_with_a_note(order, unit):
    named = {"epoch": ("epoch",), "step": ("step",), "both": ("epoch", "step")}[unit]
    whole = [{**{k: v for k, v in row.items() if k != "epoch"}, **dict.fromkeys(named, row["epoch"])} for row in EPOCHS]
    expected, report = wb.judge(whole), wb.judge([whole[i] for i in order])
    (note,) = [note for note in report.notes if note not in expected.notes]
    assert (note.code, note.values["unit"]) == ("rows-sorted", " and ".join(named))
    assert replace(report, notes=expected.notes) == expected


def test_rows_of_several_steps_per_epoch_are_in_order_and_can_be_sorted():
    at = [(1, 10), (1, 20), (2, 10), (2, 20)]  # steps counted anew in every epoch
    rows = [{**row, "epoch": e, "step": s} for row, (e, s) in zip(EPOCHS, at)]
    assert not coded(wb.judge(rows).notes, "rows-sorted")
    assert wb.judge(rows[::-1]).per_layer == wb.judge(rows).per_layer


@pytest.mark.parametrize("epochs", [(1, 2, 3, 2), (3, 3, 2, 1), (2, 1, 1, 0)])
def test_rows_that_can_not_be_sorted_are_refused(epochs):
    words = r"in ascending order of epoch, .* the last one is of epoch \d, not the largest, and there is more than one"
    with pytest.raises(wb.InputError, match=words):
        wb.judge([{**row, "epoch": e} for row, e in zip(EPOCHS, epochs)])


@pytest.mark.parametrize("epochs", [(1, 2, 1, 2), (1, 1, 2, 2), ("a", "c", "b", "a"), (3, None, 2, 1)])
def test_rows_of_a_resumed_run_and_rows_with_other_names_stay_as_they_are(epochs):
    report = wb.judge([{**row, "epoch": e} for row, e in zip(EPOCHS, epochs)])
    assert report.per_layer["h_norm"] == EPOCHS[-1]["h_norm"]
    assert not coded(report.notes, "rows-sorted")


# -- numbers that are missing or contradict each other --------------------------------------------------------------


@pytest.mark.parametrize(
    ("h", "g", "edition", "line", "site"),
    [
        ([0, 1, 1000], 1e-3, "four-diagnostic", "walked back: a", "zero: ‖h_0‖"),
        ([None, 1, 1000], 1e-9, "three-check", "walked back: D1, D2", "missing: ‖h_0‖"),
        (
            [0, 1, 2],
            1e-3,
            "four-diagnostic",
            "undecided: a not tested: a state norm is zero: ‖h_0‖, so growth from there has no value",
            "zero: ‖h_0‖",
        ),
        (
            [1, None, 2],
            1e-9,
            "three-check",
            "undecided: D1 not tested: a state norm is missing: ‖h_1‖; D2 flagged (1.00e-09; it decides only together "
            "with D1)",
            "missing: ‖h_1‖",
        ),
    ],
)
def test_growth_that_is_hidden_in_part_flags_or_is_not_tested(tmp_path, h, g, edition, line, site):
    row = {"per_layer": {"h_norm": h, "g_norm": [g] * 3}, "headline_acc": 0.6, "frozen_baseline_acc": 0.3}
    report = wb.judge(row, edition)
    assert report.verdict_line == f"VERDICT: {line}"
    assert report.findings[0]["cause"] == ("partial" if 1000 in h else "not-measured")
    assert (report.values["growth"], site in report.reasons["growth"]) == (None, True)
    assert (report.findings[0]["value"], site in report.findings[0]["reason"]) == (1e3 if 1000 in h else None, True)
    assert ("growth 1e+03x per block is above 50x (at least: a state norm" in str(report.chain)) is (1000 in h)
    again = wb.judge(report.save(tmp_path / "r.json"))
    assert (verdict(again), again.values, again.findings[0]) == (verdict(report), report.values, report.findings[0])


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"per_layer": {"h_norm": [1, 1, 1000]}, "values": {"growth": 1.0}}, "growth .* of h_norm .*, 1000, but got 1"),
        ({"h_norm": [1, 60], "growth": 60.1}, r"growth .* of h_norm beside it, 60, but got 60\.1\."),
        ({"h_norm": [1, 2], "growth": INF}, "growth .* of h_norm beside it, 2, but got inf"),
        ({"h_norm": [None, 1, 60], "growth": 2.0}, "growth .* of h_norm beside it, 60, but got 2"),
        (
            {"h_norm": [1, 2, 4], "growth_total": 3.0},
            "growth_total .* of h_norm beside it, 4, but got 3.*state_shapes",
        ),
        (
            {"g_norm": [1e-3] * 3, "values": {"g_norm_deepest": 1e-9}},
            r"g_norm_deepest .* of g_norm .* 0\.001, but got 1e-09",
        ),
        ({"g_norm": [1e-3] * 3, "g_norm_deepest": NAN}, r"g_norm_deepest .* of g_norm beside it, 0\.001, but got nan"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(numbers, words):
    with pytest.raises(wb.InputError, match=rf"Expected {words}"):
        wb.judge(numbers)


@pytest.mark.parametrize(
    ("numbers", "growth"),
    [
        ({"h_norm": [1, 60, 61], "growth": 60.05, "growth_total": 61.0}, 60.05),  # as rounded in a log
        ({"h_norm": [None, 1, 60], "growth": 70.0}, 70.0),  # of the block whose norm is missing
        ({"h_norm": [1, 100, 200], "growth": 2.0, "conditions": {"state_shapes": [[3], [6], [6]]}}, 2.0),
        (
            {
                "h_norm": [1, 100, 200],
                "growth": 2.0,
                "reasons": {"growth_total": "the stream changes shape; growth is taken within stages"},
            },
            2.0,
        ),
    ],
)
def test_numbers_that_agree_are_taken(numbers, growth):
    assert wb.judge(numbers).values["growth"] == growth


def test_the_deepest_gradient_is_taken_where_the_list_does_not_have_it():
    row = {"h_norm": [1, 1, 100], "g_norm": [1e-3, 1e-3, None], "g_norm_deepest": 1e-9}
    report = wb.judge(row)
    assert (report.failed, report.per_layer["g_norm"]) == (("D1", "D2"), [1e-3, 1e-3, 1e-9])
    assert wb.judge({**row, "g_norm_batch_size": 256}).per_layer["g_norm"] == pytest.approx([2e-3, 2e-3, 2e-9])
    assert wb.judge({**row, "g_norm_deepest": NAN}).failed == ("D1", "D2")
    assert wb.judge({**row, "g_norm": [1e-3, 1e-3, NAN]}).per_layer["g_norm"] == [1e-3, 1e-3, None]


# -- wrong numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        (None, "Expected measurements, a dict, .*, but got NoneType"),
        (3.0, "but got float"),
        ([], "but got list with nothing in it"),
        ([1, 2], "but got list"),
        ({}, "found none of them among: nothing"),
        ({"hnorm": [1, 2]}, "found none of them among: hnorm"),
        ({"h_norm": 3}, r"Expected h_norm in the numbers to be a list over sites 0…L, but got int"),
        ({"h_norm": "1, 2"}, r"Expected h_norm in the numbers to be a list over sites 0…L, but got str"),
        ({"h_norm": ["1", 2]}, r"Expected h_norm\[0\] in the numbers to be a number or null, but got '1'"),
        ({"h_norm": [True, 2]}, r"Expected h_norm\[0\] .* but got True"),
        ({"h_norm": [[1], 2]}, r"Expected h_norm\[0\] .* but got \[1\]"),
        ({"h_norm": [1, 10**400]}, r"Expected h_norm\[1\] .* to be a number or null, but got 1000"),
        ({"h_norm": [-1, 2]}, r"Expected h_norm\[0\] in the numbers to be at least 0, but got -1"),
        ({"g_norm_deepest": -1e-3}, r"Expected g_norm_deepest .* to be at least 0, but got -0\.001"),
        ({"h_norm": [1, 2], "cosine": [1.5, 0]}, r"Expected cosine\[0\] .* between -1 and 1, but got 1\.5"),
        ({"h_norm": [1, 2], "stability": 5}, "Expected stability in the numbers between -1 and 1, but got 5"),
        ({"h_norm": [1, 2], "below_eps": [0, 50]}, r"Expected below_eps\[1\] .* between 0 and 1, but got 50"),
        ({"h_norm": [1, 2], "g_norm": [1, 2, 3]}, "lists of one length .*, one entry per site, but got .*'g_norm': 3"),
        ({"per_layer": [1, 2]}, "Expected per_layer in the numbers to be an object, but got list"),
        ({"h_norm": [1, 2], "values": 3}, "Expected values in the numbers to be an object, but got int"),
        ({"h_norm": [1, 2], "conditions": []}, "Expected conditions in the numbers to be an object, but got list"),
        ({"h_norm": [1, 2], "reasons": ["x"]}, "Expected reasons in the numbers to be an object, but got list"),
        ({"h_norm": [1, 2], "aggregates": 3}, "Expected aggregates in the numbers to be an object, but got int"),
        ({"h_norm": [1, 2], "aggregates": {"x": "y"}}, "Expected x in the numbers to be a number or null, but got 'y'"),
        ({"h_norm": [1, 2], "controls": {"x": 3}}, "Expected x in the numbers to be a list over sites"),
        ({"h_norm": [1, 2], "run": "seed 1"}, "Expected run in the numbers to be an object, but got str"),
        ({"g_norm": [1e-8], "g_norm_batch_size": 0}, "Expected g_norm_batch_size .* to be 1 to 16777216, but got 0"),
        ({"g_norm": [1e-8], "g_norm_batch_size": -128}, "to be 1 to .*, but got -128"),
        ({"g_norm": [1e-8], "g_norm_batch_size": NAN}, "to be 1 to .*, but got nan"),
        ({"g_norm": [1e-8], "g_norm_batch_size": "128"}, "Expected g_norm_batch_size .* but got '128'"),
        ({"g_norm": [1e-8], "dtype": "float17"}, "Expected the logged dtype to be a floating point type .* 'float17'"),
        ({"g_norm": [1e-8], "dtype": "int64"}, "Expected the logged dtype to be a floating point type .* 'int64'"),
        ({"headline_acc": 61.5, "frozen_baseline_acc": 0.3}, r"but got 61\.5\. It looks like per cent: pass 0\.615"),
        ({"headline_acc": "0.6"}, "Expected headline_acc as a fraction between 0 and 1, but got '0.6'"),
        ({"headline_acc": [0.6, 0.5], "frozen_baseline_acc": [0.3]}, "Pair them seed by seed"),
    ],
)
def test_numbers_of_a_wrong_kind_are_refused(numbers, words):
    with pytest.raises(wb.InputError, match=words):
        wb.judge(numbers)


def test_a_wrong_edition_or_wrong_thresholds_are_refused():
    with pytest.raises(
        wb.InputError, match="Expected edition to be one of three-check, four-diagnostic, intrinsic, but got 'five'"
    ):
        wb.judge(GOOD, "five")
    with pytest.raises(wb.InputError, match="Expected thresholds to be DiagnosticThresholds, but got dict"):
        wb.judge(GOOD, thresholds={"g_norm_floor": 1.0})  # type: ignore[arg-type]


def test_odd_conditions_do_not_break_the_print():
    report = wb.judge(
        {**GOOD, "conditions": {"samples": 3, "state_shape": "wide", "when": object()}, "run": {"fired": 3}}
    )
    assert "judged from logged numbers" in report.details()
    report.to_json()


def test_a_lone_gradient_norm_is_not_moved_to_the_last_site():
    with pytest.raises(wb.InputError, match=r"one length.*\{'h_norm': 2, 'g_norm': 1\}.* call it g_norm_deepest"):
        wb.judge({"h_norm": [1.0, 2.0], "g_norm": [1e-3]})
    assert wb.judge({"h_norm": [1.0, 2.0], "g_norm_deepest": 1e-3}).per_layer["g_norm"] == [None, 1e-3]
    assert wb.judge({"g_norm": [1e-3]}).per_layer["g_norm"] == [1e-3]


def test_a_text_in_place_of_a_path():
    with pytest.raises(wb.FormatError, match=r"Expected a file at 'xxx.*, but: File name too long") as told:
        wb.judge("x" * 5000)
    assert len(str(told.value)) < 200
