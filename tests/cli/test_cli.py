"""The command line: results on standard output, errors in words on standard error, exit codes that mean something."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

import walkback as wb
from patience import PATIENCE
from walkback import cli, selftest
from walkback.__main__ import Interrupt
from walkback.registry import call_entry, is_entry

SOURCE = """
import sys
import torch
import walkback as wb

def batches():
    return wb.selftest.batches(3)

def healthy():
    return wb.selftest.healthy(), batches()

def as_list():
    return [wb.selftest.healthy(), batches()]

def exploded():
    return {"model": wb.selftest.exploded(), "eval_batches": batches(), "headline_acc": 0.31,
            "frozen_baseline_acc": 0.35, "method_name": "DFA", "notes": "from the function"}

def four():
    return {**exploded(), "edition": "four-diagnostic"}

def passing():
    return {"model": wb.selftest.healthy(), "eval_batches": batches(), "headline_acc": 0.6, "frozen_baseline_acc": 0.3}

def straddles():
    return {"model": wb.selftest.healthy(), "eval_batches": batches(),
            "headline_acc": [0.36, 0.40, 0.37], "frozen_baseline_acc": [0.35, 0.35, 0.35]}

def chatty():
    print("loading the checkpoint")
    class Net(wb.selftest.ResidualNet):
        def forward(self, x):
            print("forward")
            return super().forward(x)
    return Net(16, 8, 2, 10), batches()

def net(width=32):
    return wb.selftest.ResidualNet(16, width, 4, 10)

def raises():
    raise ValueError("no checkpoint here")

def exits():
    sys.exit(0)

def nothing():
    return None

def too_much():
    return {**exploded(), "modle": 1}

def crashes():
    class Net(wb.selftest.ResidualNet):
        def forward(self, x):
            raise RuntimeError("boom in forward")
    return Net(16, 8, 2, 10), batches()

def unreadable():
    return torch.nn.Linear(16, 10), batches()

def empty():
    return wb.selftest.healthy(), []

number = 3

class Group:
    @staticmethod
    def healthy():
        return healthy()
"""

_names = count()


@pytest.fixture
def mod(tmp_path, monkeypatch) -> str:
    """A module of entries in the current folder; its name."""
    name = f"cli_entries_{next(_names)}"
    (tmp_path / f"{name}.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("WALKBACK_TRACEBACK", raising=False)
    yield name
    sys.modules.pop(name, None)


def call(capsys, *tokens: str) -> tuple[int, str, str]:
    code = cli.run(tokens)
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return code, out, err


# -- diagnose ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "code", "line"),
    [
        ("passing", 0, "VERDICT: passes"),
        ("healthy", 3, "VERDICT: undecided: depth not tested (give frozen_acc, or --depth)"),
        ("as_list", 3, "VERDICT: undecided: depth not tested (give frozen_acc, or --depth)"),
        ("Group.healthy", 3, "VERDICT: undecided: depth not tested (give frozen_acc, or --depth)"),
        ("exploded", 1, "VERDICT: walked back: D1, D2, D3"),
        ("four", 1, "VERDICT: walked back: a, b, d"),
        (
            "straddles",
            3,
            "VERDICT: undecided: depth: the 95 % interval -2.5…+7.8 pp straddles the margin of 2 pp "
            "(at this spread 37 more seeds would decide it)",
        ),
    ],
)
def test_diagnose_prints_the_report_and_exits_by_its_verdict(mod, capsys, entry, code, line):
    got, out, err = call(capsys, "diagnose", f"{mod}:{entry}")
    assert (got, err) == (code, "")
    assert " ".join(out.partition("\n\n")[0].split()).startswith(line)


def test_options_stand_above_what_the_function_says(mod, capsys):
    line = "--headline-acc 0.9 --frozen-acc 0.3 --edition three-check --method SB --notes none --json"
    code, out, _ = call(capsys, "diagnose", f"{mod}:four", *line.split())
    report = json.loads(out)
    assert (code, report["edition"], report["failed"]) == (1, "three-check", ["D1", "D2"])
    assert (report["method"], report["headline_acc"]) == ("SB", 0.9)
    assert report["notes"][0] == {"code": "remark", "site": None, "values": {"text": "none"}, "text": "none"}


def test_several_seeds_and_probes_and_thresholds(mod, capsys, tmp_path):
    (tmp_path / "t.toml").write_text("frozen_acc_margin_pp = 50\n")
    line = "--headline-acc 0.6 0.61 0.62 --frozen-acc 0.3 0.3 0.31 --probes nudging --thresholds t.toml --json"
    code, out, _ = call(capsys, "diagnose", f"{mod}:healthy", *line.split())
    report = json.loads(out)
    assert (code, report["failed"]) == (1, ["D3"])
    assert report["headline_acc"] == [0.6, 0.61, 0.62]
    assert report["thresholds"]["frozen_acc_margin_pp"] == 50
    assert set(report["controls"]) == {"nudging_bp", "nudging_bp_relative", "nudging_bp_rms"}


def test_what_the_users_code_prints_does_not_end_up_in_the_json(mod, capsys):
    code, out, err = call(capsys, "diagnose", f"{mod}:chatty", "--json")
    assert code == 3
    assert json.loads(out)["schema"] == "walkback.report/2"
    assert "loading the checkpoint" in err
    assert "forward" in err


@pytest.mark.parametrize("suffix", [".json", ".md", ".tex", ".txt"])
def test_out_writes_the_report_too(mod, capsys, tmp_path, suffix):
    path = tmp_path / "new" / f"report{suffix}"
    code, out, _ = call(capsys, "diagnose", f"{mod}:exploded", "--out", str(path))
    text = path.read_text(encoding="utf-8")
    assert code == 1
    assert "VERDICT" in out
    if suffix == ".json":
        assert str(wb.Report.load(path)) + "\n" == out
    else:
        assert "walked back: D1, D2, D3" in text


def test_a_bundle_is_diagnosed_on_given_data(mod, capsys, tmp_path):
    model = wb.selftest.exploded()
    spec = {"net": f"{mod}:net", "headline_acc": 0.31, "frozen_baseline_acc": 0.35, "method_name": "DFA"}
    wb.save_bundle(tmp_path / "run", model, spec)
    code, out, _ = call(capsys, "diagnose", "run", "--data", f"{mod}:batches", "--trust", mod, "--json")
    assert (code, json.loads(out)["failed"]) == (1, ["D1", "D2", "D3"])
    assert json.loads(out)["method"] == "DFA"
    code, _, err = call(capsys, "diagnose", "run", "--data", f"{mod}:batches")
    assert (code, f"it would import {mod} and call net" in err, f"--trust {mod}" in err) == (2, True, True)
    code, _, err = call(capsys, "diagnose", "run")
    assert (code, "Expected --data module:function" in err) == (2, True)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["{mod}:raises"], "error: Expected {mod}:raises to run, but it raised ValueError: no checkpoint here."),
        (["{mod}:exits"], "error: Expected {mod}:exits to run, but it raised SystemExit: 0."),
        (["{mod}:nothing"], "to return (model, batches) or a dict with model and eval_batches, but got NoneType."),
        (["{mod}:too_much"], "but got modle."),
        (["{mod}:crashes"], "error: RuntimeError: boom in forward (while measuring batch 0)"),
        (["{mod}:unreadable"], "error: Expected a network with one stack of blocks, but Linear has no stack"),
        (["{mod}:empty"], "error: Expected at least one batch, but eval_batches is empty."),
        (["{mod}:number"], "error: Expected {mod}:number to be a function, but it is a int."),
        (["{mod}:absent"], "error: Expected {mod} to have 'absent', but it has not."),
        (["no_such_module:f"], "error: Expected to import no_such_module, but: ModuleNotFoundError"),
        (["broken_source:f"], "error: Expected to import broken_source, but: SyntaxError"),
        (["exits_on_import:f"], "error: Expected to import exits_on_import, but: SystemExit: 5."),
        (["neither"], "error: Expected a bundle folder or module:function, but 'neither' is neither."),
        (["."], "error: Expected a bundle at ., a folder with spec.json and weights.safetensors"),
        (["{mod}:healthy", "--data", "{mod}:batches"], "error: Expected --data only with a bundle"),
        (["{mod}:healthy", "--out", "report.pdf"], "error: Expected --out to end in .json, .html, .md, .tex or .txt"),
        (["{mod}:healthy", "--out", "{mod}.py/r.md"], "error: Expected to write {mod}.py/r.md, but: "),
        (
            ["{mod}:healthy", "--out", "{mod}.py/r.json"],
            "error: Expected to write the report to {mod}.py/r.json, but: ",
        ),
        (["{mod}:healthy", "--thresholds", "none.json"], "error: Expected a file at none.json, but there is none."),
        (["{mod}:healthy", "--headline-acc", "98.2"], "It looks like per cent: pass 0.982."),
        (["{mod}:healthy", "--headline-acc", "0.9", "--frozen-acc", "0.3", "0.4"], "Pair them seed by seed."),
        (["{mod}:healthy", "--headline-acc", "high"], "high"),
        (["{mod}:healthy", "--edition", "five"], "three-check"),
        (["{mod}:healthy", "--probes", "nudge"], "nudging"),
        (["{mod}:healthy", "--bogus"], "--bogus"),
        ([], "requires an argument"),
    ],
)
def test_every_error_is_in_words_with_exit_code_2(mod, capsys, tmp_path, tokens, words):
    (tmp_path / "broken_source.py").write_text("def f(:\n")
    (tmp_path / "exits_on_import.py").write_text("import sys\nsys.exit(5)\n")
    code, out, err = call(capsys, "diagnose", *(t.format(mod=mod) for t in tokens))
    assert (code, out) == (2, "")
    assert words.format(mod=mod) in " ".join(err.split())


def test_a_wrong_file_name_costs_no_measurement(mod, capsys, monkeypatch):
    monkeypatch.setattr(sys.modules["walkback.api"], "measure", lambda *a, **k: pytest.fail("measured"))
    assert call(capsys, "diagnose", f"{mod}:healthy", "--out", "report.pdf")[0] == 2


def test_an_interrupt_is_no_traceback(mod, capsys, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["walkback.api"], "measure", interrupt)
    assert call(capsys, "diagnose", f"{mod}:healthy") == (130, "", "stopped\n")


def test_an_interrupt_that_an_import_swallowed_is_heard(capsys, monkeypatch):
    """torch's C++ tries to import NumPy and drops whatever is raised; the next import of it is an ImportError."""
    handler = Interrupt()
    monkeypatch.setattr(cli.signal, "getsignal", lambda number: handler)

    def swallows(*args, **kwargs):
        with contextlib.suppress(KeyboardInterrupt):
            handler(2, None)
        raise ImportError("cannot load module more than once per process")

    monkeypatch.setattr(cli, "app", swallows)
    assert call(capsys, "demo") == (130, "", "stopped\n")
    handler.heard = False
    monkeypatch.setattr(cli, "app", lambda *args, **kwargs: exec("raise ImportError('missing')"))
    assert call(capsys, "demo")[0] == 2


def test_a_process_that_ends_does_not_look_through_its_memory(mod, capsys, monkeypatch):
    frozen = []
    monkeypatch.setattr(cli.gc, "freeze", lambda: frozen.append(1))
    with pytest.raises(SystemExit) as ended:
        cli.main(["diagnose", f"{mod}:raises"])
    assert (ended.value.code, frozen) == (2, [1])


def test_the_traceback_is_there_for_those_who_ask(mod, capsys, monkeypatch):
    _, _, err = call(capsys, "diagnose", f"{mod}:crashes")
    assert "Set WALKBACK_TRACEBACK=1 to see where it comes from." in err
    _, _, err = call(capsys, "diagnose", f"{mod}:raises")
    assert "Set WALKBACK_TRACEBACK=1 to see where it comes from." in err
    _, _, err = call(capsys, "diagnose", f"{mod}:empty")
    assert "WALKBACK_TRACEBACK" not in err
    monkeypatch.setenv("WALKBACK_TRACEBACK", "1")
    with pytest.raises(RuntimeError, match="boom in forward"):
        cli.run(["diagnose", f"{mod}:crashes"])


DEPTH = ["--headline-acc", "0.6", "--frozen-acc", "0.3"]

# -- judge ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "tokens", "code"),
    [
        ({"h_norm": [1, 2], "g_norm": [1e-3, 1e-3]}, [], 3),
        ({"h_norm": [1, 2], "g_norm": [1e-3, 1e-3], "acc": 0.6}, ["--frozen-acc", "0.3"], 0),
        ({"h_norm": [1, 200], "g_norm": [1e-3, 1e-9]}, [], 1),
        ({"h_norm": [1, 200], "g_norm": [1e-3, 1e-3]}, [], 3),
        ({"h_norm": [1, 200], "g_norm": [1e-3, 1e-3], "acc": 0.6, "frozen_acc": 0.3}, [], 0),
        ({"h_norm": [1, 200], "g_norm": [1e-3, 1e-3]}, ["--edition", "four-diagnostic"], 1),
        ({"headline_acc": 0.6}, [], 3),
        ({"headline_acc": 0.6}, ["--frozen-acc", "0.3"], 3),
        ({"headline_acc": 0.6}, ["--frozen-acc", "0.6"], 1),
        ({"headline_acc": 0.6}, ["--headline-acc", "0.36", "0.40", "0.37", "--frozen-acc", "0.35", "0.35", "0.35"], 3),
        ({"h_norm": 3}, [], 2),
        ({"headline_acc": 61.5}, [], 2),
    ],
)
def test_judge_exits_by_the_verdict(mod, capsys, tmp_path, numbers, tokens, code):
    (tmp_path / "n.json").write_text(json.dumps(numbers))
    got, out, err = call(capsys, "judge", "n.json", *tokens)
    assert got == code
    assert (out == "") is (code == 2)
    assert err.startswith("error: Expected ") if code == 2 else err == ""


@pytest.mark.parametrize("verb", ["judge", "diagnose"])
def test_seeds_without_predictions_have_the_error_of_so_many_test_samples(mod, capsys, tmp_path, verb):
    """Three seeds that agree say nothing about their one test set of 50 samples."""
    (tmp_path / "n.json").write_text(json.dumps({"h_norm": [1, 2], "g_norm": [1e-3, 1e-3]}))
    accuracies = ["--headline-acc", "0.40", "0.40", "0.42", "--frozen-acc", "0.34", "0.34", "0.36"]
    target = ["judge", "n.json"] if verb == "judge" else ["diagnose", f"{mod}:healthy"]
    alone = json.loads(call(capsys, *target, *accuracies, "--json")[1])
    found = json.loads(call(capsys, *target, *accuracies, "--test-samples", "50", "--json")[1])
    assert [alone["findings"][2]["flagged"], found["findings"][2]["flagged"]] == [False, None]
    shares = [(50 * a + 1) / 52 for a in (0.40, 0.40, 0.42, 0.34, 0.34, 0.36)]
    bound = 100 * (sum(a * (1 - a) for a in shares) / 3 / 52) ** 0.5
    assert found["findings"][2]["parts"] == pytest.approx({"seeds": 0.0, "samples": bound}, abs=1e-9)
    assert found["conditions"]["test_samples"] == 50


def test_judge_reads_a_csv_as_the_readme_shows(mod, capsys, tmp_path):
    (tmp_path / "history.csv").write_text(
        "epoch,h_norm_0,h_norm_1,g_norm_0,g_norm_1,test_acc\n1,9,10,7e-3,6e-3,0.2\n2,9,9e5,7e-3,1e-9,0.36\n"
    )
    code, out, _ = call(capsys, "judge", "history.csv", "--frozen-acc", "0.349", "--json", "--method", "DFA")
    report = json.loads(out)
    assert (code, report["failed"]) == (1, ["D1", "D2", "D3"])
    assert report["run"]["fired"] == {"D1": 2, "D2": 2}
    assert report["method"] == "DFA"


def test_judge_keeps_the_edition_of_a_report(mod, capsys, tmp_path):
    report = wb.judge({"h_norm": [1, 200], "g_norm": [1e-3, 1e-3]}, "four-diagnostic")
    report.save(tmp_path / "r.json")
    assert call(capsys, "judge", "r.json")[0] == 1
    assert call(capsys, "judge", "r.json", "--edition", "three-check")[0] == 3, "depth was not tested"
    assert call(capsys, "judge", "r.json", "--edition", "three-check", *DEPTH)[0] == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', "\x00"])
def test_judge_on_a_bad_file(mod, capsys, tmp_path, text):
    (tmp_path / "n.json").write_text(text)
    code, out, err = call(capsys, "judge", "n.json")
    assert (code, out) == (2, "")
    assert err.startswith("error: Expected n.json to ")


# -- doctor and the rest -------------------------------------------------------------------------------------------


def test_doctor_checks_the_instrument(capsys):
    code, out, err = call(capsys, "doctor", "--json")
    found = json.loads(out)
    assert (code, err, found["ok"], found["walkback"]) == (0, "", True, wb.__version__)
    assert max(found["closed_form_error"].values()) < 1e-9
    assert all(found["known_networks"].values())


@pytest.fixture
def no_data(tmp_path, monkeypatch) -> Path:
    """A home and a current folder without any data set."""
    for name in ("WALKBACK_DATA", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(selftest, "cases", lambda: [])  # the instrument has its own tests
    return tmp_path


def touch(folder: Path, *names: str) -> Path:
    """Empty files: only their names are looked at."""
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).touch()
    return folder


CIFAR100_FILES = ("train.bin", "test.bin")
PARQUET_FILES = ("train-00000-of-00001.parquet", "test-00000-of-00001.parquet")


def doctor_rows(capsys, *tokens: str) -> tuple[dict[str, str], list[str]]:
    code, out, err = call(capsys, "doctor", *tokens)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    rows = [re.split("  +", line, maxsplit=1) for line in lines if line.startswith("data: ")]
    return {name.removeprefix("data: "): text for name, text in rows}, lines


def test_doctor_says_where_each_data_set_is_and_how_to_get_the_others(no_data, capsys):
    from walkback.data import SOURCES

    folder = touch(no_data / ".cache/walkback/cifar-100-binary", *CIFAR100_FILES)
    rows, lines = doctor_rows(capsys)
    assert list(rows) == ["teacher", "teacher-products", "teacher-linear", "cifar10", "cifar100", "fashion-mnist"]
    assert rows["teacher"] == rows["teacher-linear"] == "embedded"
    assert rows["cifar100"] == str(folder)
    assert rows["cifar10"] == f"not found in {no_data / '.cache/walkback'}, data"
    start = lines.index("To get cifar10:")
    assert lines[start + 1 : start + 4] == [f"  {how}" for how in SOURCES["cifar10"].how_to_get]
    assert "To get cifar100:" not in lines
    assert lines[-1] == "The instrument is sound."


def test_doctor_lists_data_sets_as_json(no_data, capsys):
    folder = touch(no_data / "data/cifar10/plain_text", *PARQUET_FILES)
    code, out, _ = call(capsys, "doctor", "--json")
    data = json.loads(out)["data"]
    assert code == 0
    assert data["teacher"] == {"found": True, "where": "embedded", "needs": []}
    assert data["cifar10"] == {"found": True, "where": str(folder.relative_to(no_data)), "needs": []}
    absent = data["cifar100"]
    assert (absent["found"], absent["where"]) == (False, None)
    assert absent["looked_in"] == [str(no_data / ".cache/walkback"), "data"]
    assert any("cifar-100-binary.tar.gz" in how for how in absent["how_to_get"])


def test_doctor_looks_in_the_given_root_alone(no_data, capsys):
    touch(no_data / "data/cifar-100-binary", *CIFAR100_FILES)
    folder = touch(no_data / "mine/cifar10/plain_text", *PARQUET_FILES)
    rows, _ = doctor_rows(capsys, "--root", "mine")
    assert rows["cifar10"] == str(folder.relative_to(no_data))
    assert rows["cifar100"] == rows["fashion-mnist"] == "not found in mine"


def test_doctor_sees_an_incomplete_set_as_not_found_and_what_reading_needs(no_data, capsys, monkeypatch):
    touch(no_data / "mine/cifar-100-binary", *CIFAR100_FILES[:1])
    touch(no_data / "mine/plain_text", *PARQUET_FILES)
    monkeypatch.setattr("walkback.data.find_spec", lambda name: None if name == "PIL" else name)
    rows, _ = doctor_rows(capsys, "--root", "mine")
    assert rows["cifar100"] == "not found in mine"
    assert rows["cifar10"] == "mine/plain_text; to read it: pip install 'walkback[data]'"


def test_doctor_opens_no_file_of_a_data_set(no_data, capsys, monkeypatch):
    touch(no_data / "mine/cifar-100-binary", *CIFAR100_FILES)
    opened, real = [], Path.open
    monkeypatch.setattr(Path, "open", lambda self, *a, **k: (opened.append(self), real(self, *a, **k))[1])
    monkeypatch.setattr("numpy.fromfile", lambda *a, **k: pytest.fail("read"))
    assert doctor_rows(capsys, "--root", "mine")[0]["cifar100"] == "mine/cifar-100-binary"
    assert [path for path in opened if path.absolute().is_relative_to(no_data)] == []  # packages may open their own


def test_doctor_says_when_the_instrument_is_not_sound(capsys, monkeypatch):
    monkeypatch.setattr(selftest, "cases", lambda: [])
    monkeypatch.setattr(selftest, "closed_form_errors", lambda: {"h_norm": 1e-3})
    code, out, _ = call(capsys, "doctor")
    assert code == 1
    assert "relative error 1.0e-03" in out
    assert out.splitlines()[-1] == "The instrument is NOT sound on this machine: do not use it."
    monkeypatch.setattr(selftest, "closed_form_errors", lambda: {"h_norm": 0.0})
    wrong = selftest.Case("healthy", selftest.healthy(), 0.6, 0.35, ("D1",), ())
    monkeypatch.setattr(selftest, "cases", lambda: [wrong])
    code, out, _ = call(capsys, "doctor")
    assert code == 1
    assert "WRONG VERDICT" in out


@pytest.mark.parametrize("tokens", [["--help"], ["diagnose", "--help"], ["judge", "-h"], ["doctor", "--help"]])
def test_help_explains_every_verb(capsys, tokens):
    code, out, _ = call(capsys, *tokens)
    assert code == 0
    assert "Usage: walkback" in out


def test_help_states_the_exit_codes(capsys):
    _, out, _ = call(capsys, "--help")
    text = " ".join(out.replace("│", " ").split())
    assert "exit with 0 (passes), 1 (walked back), 3 (undecided); 2 is a wrong call or input" in text


@pytest.mark.parametrize("tokens", [["bogus"], ["--bogus"], ["judge"], ["doctor", "extra"]])
def test_wrong_calls_exit_with_2(capsys, tokens):
    code, out, err = call(capsys, *tokens)
    assert (code, out) == (2, "")
    assert "Error" in err


def test_version(capsys):
    assert call(capsys, "--version")[:2] == (0, f"{wb.__version__}\n")


# -- entries -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "yes"),
    [
        ("m:f", True),
        ("a.b.c:f.g", True),
        ("runs/abc", False),
        ("m:", False),
        (":f", False),
        ("a b:f", False),
        ("m", False),
    ],
)
def test_what_looks_like_an_entry(text, yes):
    assert is_entry(text) is yes
    if not yes:
        with pytest.raises(wb.InputError, match="Expected an entry like mymodule:function, but got "):
            call_entry(text)


def test_entries_take_arguments_and_keep_our_own_errors(mod):
    assert call_entry(f"{mod}:net", width=12).embed.out_features == 12
    with pytest.raises(wb.InputError, match=r"it raised TypeError: .*unexpected keyword argument 'depth'"):
        call_entry(f"{mod}:net", depth=3)
    with pytest.raises(wb.FormatError, match="there is none"):
        call_entry("walkback.verdict.files:read_table", "nowhere.json")


# -- as a process --------------------------------------------------------------------------------------------------

MODULE = [sys.executable, "-m", "walkback"]
SCRIPT = [str(Path(sys.executable).with_name("walkback"))]


def process(command: list[str], **more) -> subprocess.CompletedProcess[str]:
    how = {"capture_output": True, "text": True, "encoding": "utf-8", "timeout": PATIENCE}
    return subprocess.run(command, check=False, **how, **more)


@pytest.mark.parametrize("command", [MODULE, SCRIPT], ids=["python -m walkback", "walkback"])
def test_help_answers_from_both_commands(command):
    """How fast is printed by `make bench`; that nothing heavy is loaded is the next test."""
    done = process([*command, "--help"])
    assert (done.returncode, done.stderr) == (0, "")
    assert "diagnose" in done.stdout


def test_help_and_wrong_calls_load_no_torch():
    code = (
        "import sys; from walkback.cli import run; "
        "codes = [run(['--help']), run(['judge', '--help']), run(['bogus'])]; "
        "heavy = [m for m in ('torch', 'numpy', 'scipy') if m in sys.modules]; print(codes, heavy)"
    )
    done = process([sys.executable, "-c", code])
    assert done.stdout.splitlines()[-1] == "[0, 0, 2] []"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["train", "--data", "cifar"], "Did you mean 'cifar10'?"),
        (["train", "--data", "teacher-linear", "--rule", "dfaa"], "Did you mean 'dfa'?"),
        (["train", "--data", "teacher-linear", "--net", "resmpl"], "Did you mean 'resmlp'?"),
    ],
)
def test_a_name_that_is_nearly_one_is_suggested(tmp_path, capsys, words, hint):
    code, _, err = call(capsys, *words, "--out", str(tmp_path))
    assert (code, hint in err) == (2, True)


@pytest.mark.parametrize("target", ["mydfa.py", "mydfa"])
@pytest.mark.parametrize(
    ("script", "hint"),
    [
        ("def net():\n    pass\n", "that returns (model, batches): mydfa:net."),
        ("def net(): pass\ndef _own(): pass\ndef train(): pass\n", "mydfa:function; it has net, train."),
        ("def (", "mydfa:function."),
    ],
)
def test_a_script_is_not_a_target_but_a_function_of_it_is(tmp_path, capsys, monkeypatch, target, script, hint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mydfa.py").write_text(script)
    code, _, err = call(capsys, "diagnose", target)
    assert (code, hint in err) == (2, True), err


def test_verbose_prints_everything(mod, capsys):
    _, short, _ = call(capsys, "diagnose", f"{mod}:exploded")
    _, whole, _ = call(capsys, "diagnose", f"{mod}:exploded", "--verbose")
    assert "flags when" in whole
    assert "flags when" not in short
    assert whole.splitlines()[-1] == "VERDICT: walked back: D1, D2, D3"


def test_the_process_exits_with_the_code():
    done = process([*MODULE, "diagnose", "neither"])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: Expected a bundle folder or module:function, but 'neither' is neither.\n"


def test_a_terminal_without_greek_gets_text_and_valid_json(tmp_path):
    (tmp_path / "n.json").write_text('{"h_norm": [1, 2], "method": "λ=0.1", "cosine": [0.1, 0.2]}', encoding="utf-8")
    code = "from walkback.cli import run; run(['judge', 'n.json']); run(['judge', 'n.json', '--json'])"
    done = process([sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.stderr == ""
    text, brace, data = done.stdout.partition("\n{\n")
    assert text.startswith("VERDICT: undecided: ")
    assert "?h?" in text
    assert json.loads(brace + data)["method"] == "λ=0.1"


def test_text_that_is_caught_keeps_its_greek(tmp_path):
    (tmp_path / "n.json").write_text('{"h_norm": [1, 2]}', encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()) as caught:  # which has no encoding
        cli.run(["judge", str(tmp_path / "n.json")])
    assert "‖h‖" in caught.getvalue()


@pytest.mark.skipif(sys.platform == "win32", reason="pipes")
def test_a_reader_that_leaves_early_is_no_error(tmp_path):
    (tmp_path / "n.json").write_text('{"h_norm": [1, 200], "g_norm": [1e-9, 1e-9]}')
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*MODULE, "judge", "n.json"], cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    "tokens", [["train", "--seed", "2.5"], ["train", "--epochs", "1e3"], ["demo", "--workers", "x"]]
)
def test_numbers_are_not_rounded_without_a_word(capsys, tokens):
    code, _, err = call(capsys, *tokens)
    assert (code, "expected a whole number, but got" in err) == (2, True)
