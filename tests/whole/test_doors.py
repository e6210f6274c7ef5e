"""Whatever stands where a file should be, a pipe, a device, a file of any size or a link: it is refused by name."""

from __future__ import annotations

import ast
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import walkback as wb
from crash_states import taken
from made_runs import EXPLODED, HEALTHY, write_run
from test_sums import finished as finished  # a trained run, in a fixture
from test_training import run as trained
from walkback.audit import store
from walkback.audit.linear_probe import read_linear_probe
from walkback.audit.records import read_records
from walkback.data.pickled import read_arrays
from walkback.files import read_file
from walkback.replication.public_record import read_public_record
from walkback.training import folder as folders
from walkback.training.folder import LOCK, PROGRESS, is_locked, owned
from walkback.training.spec import RunSpec

SPEC = RunSpec(rule="dfa", epochs=1)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    """Make a file of a terabyte that takes no room."""
    path.touch()
    os.truncate(path, 2**40)


WRONG: dict[str, Callable[[Path], None]] = {"pipe": pipe, "device": device, "sparse": sparse}


@pytest.fixture(params=WRONG)
def wrong(request: pytest.FixtureRequest) -> Callable[[Path], Path]:
    def put(path: Path) -> Path:
        path.unlink(missing_ok=True)
        WRONG[request.param](path)
        return path

    return put


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert read_file(tmp_path / "x", 5) == b"12345"
    with pytest.raises(OSError, match="the most that is read"):
        read_file(tmp_path / "x", 4)
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path)
    read, written = os.pipe()
    os.write(written, b"of a pipe that the shell made")
    os.close(written)
    assert read_file(f"/dev/fd/{read}") == b"of a pipe that the shell made"
    os.close(read)
    read, written = os.pipe()
    os.write(written, b"123456")
    with pytest.raises(OSError, match="the most that is read"):
        read_file(f"/dev/fd/{read}", 5)
    os.close(read)
    os.close(written)


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "judge json": ("log.json", wb.judge),
    "judge jsonl": ("log.jsonl", wb.judge),
    "judge csv": ("log.csv", wb.judge),
    "thresholds": ("t.toml", wb.DiagnosticThresholds.load),
    "plan": ("p.toml", wb.audit.plan),
    "report": ("report.json", wb.Report.load),
    "pickle": ("data_batch_1", read_arrays),
    "linear probe": ("linear_probe.json", lambda path: read_linear_probe(path.parent)),
}


@pytest.mark.parametrize("reader", READERS)
def test_no_reader_waits_for_a_pipe_or_takes_all_memory(
    reader: str, wrong: Callable[[Path], Path], tmp_path: Path
) -> None:
    name, read = READERS[reader]
    with pytest.raises(wb.WalkbackError):
        read(wrong(tmp_path / name))


@pytest.mark.parametrize("name", ["spec.json", "weights.safetensors", "trajectory.jsonl", "report.json", "sums.json"])
def test_a_bundle_with_something_else_in_the_place_of_a_file(
    name: str, wrong: Callable[[Path], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "b"
    shutil.copytree(wb.selftest.BUNDLES / "dfa", folder)
    (folder / "sums.json").unlink(missing_ok=True)
    wrong(folder / name)
    with pytest.raises(wb.FormatError):  # noqa: PT012  any of the three may be the first to look
        bundle = wb.load_bundle(folder)
        bundle.trajectory()
        bundle.report()


@pytest.mark.parametrize("name", ["spec.json", "trajectory.jsonl", "report.json", "machine.json", "sums.json"])
def test_a_run_with_something_else_in_the_place_of_a_file_is_left_out(
    name: str, wrong: Callable[[Path], Path], tmp_path: Path
) -> None:
    folder = write_run(tmp_path, SPEC, 0.3, **EXPLODED)
    other = write_run(tmp_path, RunSpec(rule="bp", epochs=1), 0.5, **HEALTHY)
    wrong(folder / name)
    wrong(folder / PROGRESS)
    found = read_records(tmp_path)
    assert [run.path for run in found] == [other]
    assert [problem.path for problem in found.problems] == [folder]
    assert store.progress(tmp_path, SPEC) == {}
    assert {run.path: run.state for run in store.checked_runs(tmp_path)}[folder] in ("damaged", "unfinished")


def test_weights_of_a_run_that_are_a_pipe_are_none(tmp_path: Path) -> None:
    folder = write_run(tmp_path, SPEC, 0.3, **EXPLODED)
    os.mkfifo(folder / "weights.safetensors")
    assert not store.state(tmp_path, SPEC).weights


def test_an_entry_that_is_no_file_is_named(wrong: Callable[[Path], Path], tmp_path: Path) -> None:
    wrong(tmp_path / "dfa-s1.json")
    ((name, _),) = read_public_record(tmp_path).problems
    assert name == "dfa-s1.json"


# -- links -----------------------------------------------------------------------------------------------------------

WRITTEN = ("spec.json", "trajectory.jsonl", "report.json", "machine.json", "weights.safetensors", "sums.json")


@pytest.mark.parametrize("name", [*WRITTEN, PROGRESS, "checkpoint.safetensors", LOCK])
def test_training_writes_through_no_planted_link(name: str, finished: Path, tmp_path: Path) -> None:
    """A stranger's store that is trained on may have links in it, to files of the user's."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("precious")
    before = taken(tmp_path / "mine")
    for target in ("file", "nothing"):
        folder = tmp_path / target / finished.name
        folder.mkdir(parents=True)
        (folder / name).symlink_to(tmp_path / "mine" / target)
        try:
            trained(folder.parent)
        except wb.FormatError:
            assert name == LOCK or target == "file"
        assert taken(tmp_path / "mine") == before


def test_a_lock_that_is_a_link_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: object, **__: object) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr(folders, "FileLock", opened)
    (tmp_path / "file").touch()
    (tmp_path / LOCK).symlink_to(tmp_path / "file")
    with pytest.raises(wb.FormatError, match="a link, which no run makes"):
        owned(tmp_path).__enter__()
    assert not is_locked(tmp_path)


# -- sums ------------------------------------------------------------------------------------------------------------


def test_sums_that_lack_a_file_that_is_there_are_damage(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / finished.name
    shutil.copytree(finished, folder)
    table = json.loads((folder / "sums.json").read_text())
    del table["sha256"]["report.json"]
    (folder / "sums.json").write_text(json.dumps(table))
    with pytest.raises(wb.FormatError, match=r"to have the sum of report\.json"):
        wb.load_bundle(folder)
    (problem,) = read_records(tmp_path).problems
    assert "the sum of report.json" in problem.reason
    assert [run.state for run in store.checked_runs(tmp_path)] == ["damaged"]


# -- what a small file asks for ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"input_shape": [2**20, 2**20]}, "input_shape in .* to list sizes"),
        (
            {"input_shape": [2**24]},
            "to fit the weights beside it, 139680 numbers, but its network would have 2147621280",
        ),
        ({"classes": 2**24}, "to fit the weights beside it"),
        ({"rule": "state-bridge", "rule_options": {"hidden": 1e9}}, "hidden in .* to be 100 at most"),
        ({"rule": "weight-mirror", "rule_options": {"samples": 10**12}}, "samples in .* to be 1000000 at most"),
        ({"rule": "ep", "rule_options": {"steps": 10**12}}, "steps in .* to be 100000 at most"),
    ],
)
def test_a_bundle_that_asks_for_more_memory_or_time_than_there_is(
    fields: dict[str, Any], words: str, tmp_path: Path
) -> None:
    folder = tmp_path / "b"
    shutil.copytree(wb.selftest.BUNDLES / "dfa", folder)
    (folder / "sums.json").unlink(missing_ok=True)
    spec = json.loads((folder / "spec.json").read_text())
    (folder / "spec.json").write_text(json.dumps({**spec, **fields}))
    with pytest.raises(wb.FormatError, match=words):  # noqa: PT012
        bundle = wb.load_bundle(folder)
        bundle.rule(bundle.model())


def test_a_grid_of_more_runs_than_anybody_trains_is_not_counted_out(tmp_path: Path) -> None:
    many = f"{list(range(1, 200))}"
    grid = f"[[grid]]\nseed = {many}\nepochs = {many}\n[grid.optimiser]\nbatch_size = {many}\n"
    (tmp_path / "mine.toml").write_text(grid)
    with pytest.raises(wb.InputError, match="at most 100000 runs, but its lists combine to 7880599"):
        wb.audit.plan(tmp_path / "mine.toml")


@pytest.mark.parametrize("place", ["h_norm", "growth", "epoch", "headline_acc", "g_norm_batch_size", "h_norm_last"])
def test_a_number_of_hundreds_of_digits_is_refused_or_no_number(place: str, tmp_path: Path) -> None:
    numbers = {"h_norm": [1.0, 2.0], "g_norm": [1.0, 1.0], "h_norm_first": 1.0, "h_norm_last": 2.0}
    row = {**numbers, place: [1.0, 10**400] if place == "h_norm" else 10**400}
    (tmp_path / "log.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row))
    with suppress(wb.WalkbackError):
        str(wb.judge(tmp_path / "log.jsonl"))


def test_a_plan_nested_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("x = " + "[" * 5000)
    with pytest.raises(wb.WalkbackError, match="plan"):
        wb.audit.plan(tmp_path / "mine.toml")


def test_rows_nested_without_end_are_refused(tmp_path: Path) -> None:
    shutil.copytree(wb.selftest.BUNDLES / "dfa", tmp_path / "b")
    (tmp_path / "b" / "sums.json").unlink(missing_ok=True)
    (tmp_path / "b" / "trajectory.jsonl").write_text("[" * 100_000)
    with pytest.raises(wb.FormatError, match="to hold one JSON object per line"):
        wb.load_bundle(tmp_path / "b").trajectory()


# -- the doors are the only ones ---------------------------------------------------------------------------------------

SOURCES = Path(wb.__file__).parent
# What is not a stranger's: the package itself, the machine, what the user names as code, and files that are asked
# before whether they are files and how large.
OWN = {
    *("files.py", "registry.py", "report/html.py", "replication/published.py", "replication/template.py"),
    *("pitfalls/__init__.py", "training/rows.py", "audit/target.py", "calibration/rows.py", "lint/__init__.py"),
}


def test_files_are_read_through_one_door_and_printed_through_another() -> None:
    """`read_text` waits for a pipe, and a bare `print` to the terminal sends it what a file's name commands."""
    for path in SOURCES.rglob("*.py"):
        name = path.relative_to(SOURCES).as_posix()
        for call in (
            node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)
        ):
            text = ast.unparse(call.func)
            if text.endswith((".read_text", ".read_bytes")):
                assert name in OWN, (
                    f"{name}:{call.lineno} reads a file: use files.read_file or verdict.files.read_table"
                )
            to_terminal = text == "print" and "file=sys.stderr" in ast.unparse(call)
            if (to_terminal or text == "console.print") and not isinstance(call.args[0], ast.Constant):
                said = ast.unparse(call.args[0])
                safe = said.startswith("visible(") or said in ("text", "_event_line(board, event)", "waits[0]")
                assert safe, f"{name}:{call.lineno} prints {said}: use progress.say, cli.output.warn or visible()"
