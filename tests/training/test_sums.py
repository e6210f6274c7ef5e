"""Files of a run are written whole, and one that is not what the run wrote is refused by name."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import walkback as wb
from test_training import run as trained
from walkback.audit.records import read_records
from walkback.audit.store import checked_runs, state
from walkback.cli import run as cli
from walkback.files import append_to, write_together, write_whole
from walkback.training.bundle import tensors_sum
from walkback.training.folder import CHECKPOINT


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("store")).path


@pytest.fixture
def store(finished: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "store" / finished.name
    folder.mkdir(parents=True)
    for file in finished.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder.parent


def flip(path: Path, at: int = -10) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def test_sums_are_those_of_the_files(finished: Path) -> None:
    sums = json.loads((finished / "sums.json").read_text())["sha256"]
    assert sums == {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in finished.iterdir()
        if file.name != "sums.json"
    }
    assert json.loads((finished / "sums.json").read_text())["spec"] == finished.name.rpartition("-")[2]


@pytest.mark.parametrize("name", ["spec.json", "weights.safetensors", "trajectory.jsonl", "report.json"])
def test_one_flipped_bit_is_found(store: Path, name: str) -> None:
    (folder,) = store.iterdir()
    flip(folder / name)
    with pytest.raises(wb.FormatError, match=name.replace(".", r"\.")):
        wb.load_bundle(folder)
    (found,) = checked_runs(store)
    assert (found.state, name in found.why) == ("damaged", True)
    if name != "weights.safetensors":  # of which evidence reads nothing
        (problem,) = read_records(store).problems
        assert problem.path == folder


def test_fsck_says_what_is_whole(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder,) = store.iterdir()
    assert cli(["fsck", str(store)]) == 0
    assert capsys.readouterr().out == f"{store}: 1 whole\n"
    (folder / "weights.safetensors").unlink()  # records are kept without them
    assert cli(["fsck", str(store)]) == 0
    flip(folder / "report.json")
    capsys.readouterr()
    assert cli(["fsck", str(store), "--json"]) == 1
    assert [run["state"] for run in json.loads(capsys.readouterr().out)["runs"]] == ["damaged"]
    (folder / "sums.json").unlink()
    (folder / "report.json").unlink()
    assert cli(["fsck", str(store)]) == 0
    assert "1 unfinished" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["spec.json", "trajectory.jsonl", "report.json", "machine.json"])
@pytest.mark.parametrize("harm", ["flipped", "removed", "a folder"])
def test_every_file_of_a_record_is_checked_wherever_it_is_read(store: Path, name: str, harm: str) -> None:
    (folder,) = store.iterdir()
    if harm == "flipped":
        flip(folder / name)
    else:
        (folder / name).unlink()
        if harm == "a folder":
            (folder / name).mkdir()
    with pytest.raises(wb.FormatError):
        wb.load_bundle(folder)
    if name != "report.json" or harm == "flipped":  # without one it is no finished run
        with pytest.raises(wb.FormatError):
            trained(store)
    with pytest.raises(wb.FormatError):
        wb.judge(folder)
    assert not read_records(store).runs


@pytest.mark.parametrize("name", ["report.json", "trajectory.jsonl"])
def test_a_file_of_a_run_is_checked_also_where_it_is_named_alone(store: Path, name: str) -> None:
    (folder,) = store.iterdir()
    wb.judge(folder / name)
    flip(folder / name)
    with pytest.raises(wb.FormatError, match="its SHA-256 is another"):
        wb.judge(folder / name)
    if name == "report.json":
        with pytest.raises(wb.FormatError, match="its SHA-256 is another"):
            wb.Report.load(folder / name)


def test_weights_that_were_altered_are_none_to_an_audit(store: Path) -> None:
    (folder,) = store.iterdir()
    spec = wb.RunSpec(**{k: wb.load_bundle(folder).spec[k] for k in wb.RunSpec.model_fields})
    assert state(store, spec).weights
    flip(folder / "weights.safetensors")
    assert (state(store, spec).kind, state(store, spec).weights) == ("finished", False)


def edited(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    sums = json.loads((folder / "sums.json").read_text())
    change(sums)
    (folder / "sums.json").write_text(json.dumps(sums))


@pytest.mark.parametrize("name", ["machine.json", "weights.safetensors"])
def test_sums_that_leave_a_file_out_are_damage(store: Path, name: str) -> None:
    (folder,) = store.iterdir()
    edited(folder, lambda sums: sums["sha256"].pop(name))
    (found,) = checked_runs(store)
    assert (found.state, f"to have the sum of {name}" in found.why) == ("damaged", True)


@pytest.mark.parametrize("name", ["**", "..", "", ".", "a/b", "a\nb", "\ud800", "*", "[x]"])
def test_sums_name_files_and_nothing_else(store: Path, name: str) -> None:
    (folder,) = store.iterdir()
    edited(folder, lambda sums: sums.update(spec="", sha256={**sums["sha256"], name: "0"}))
    with pytest.raises(wb.FormatError, match="with a sum for each file"):
        wb.load_bundle(folder)


def test_sums_of_no_spec_are_not_those_of_a_run(store: Path) -> None:
    (folder,) = store.iterdir()
    edited(folder, lambda sums: sums.update(spec=""))
    with pytest.raises(wb.FormatError, match="but its sums are of no spec"):
        trained(store)


def test_a_key_that_stands_twice_is_refused(store: Path, tmp_path: Path) -> None:
    """Readers take the last one; what a person sees first may be another."""
    (folder,) = store.iterdir()
    text = (folder / "sums.json").read_text()
    (folder / "sums.json").write_text(text.replace('"sha256": {', '"sha256": {"report.json": "0",'))
    with pytest.raises(wb.FormatError, match=r"the key 'report\.json' stands twice in one object"):
        wb.load_bundle(folder)
    for log, rows in (("log.json", '{"h_norm": [1, 9], "h_norm": [1, 2]}'), ("log.jsonl", '{"h": 1, "h": 2}')):
        (tmp_path / log).write_text(rows)
        with pytest.raises(wb.FormatError, match="stands twice in one object"):
            wb.judge(tmp_path / log)


def halfway(folder: Path, monkeypatch: pytest.MonkeyPatch, **fields: object) -> Path:
    """Train until the first checkpoint; return its file."""
    from walkback.training import loop

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_progress", stop)
        with pytest.raises(KeyboardInterrupt):
            trained(folder, **fields)
    (path,) = folder.glob(f"*/{CHECKPOINT}")
    return path


def test_a_checkpoint_with_a_flipped_bit_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = halfway(tmp_path, monkeypatch)
    whole = path.read_bytes()
    for at in (-5, len(whole) // 2, len(whole) // 3 * 2):
        path.write_bytes(whole)
        flip(path, at)
        with pytest.raises(wb.FormatError, match="to hold the last finished epoch, but it is damaged"):
            trained(tmp_path)
    path.write_bytes(whole)
    assert trained(tmp_path).report() is not None


@pytest.mark.parametrize("key", [b'"sha256"', b'"spec"', b'"schema"', b'"rows"', b'"epoch"'])
def test_a_flipped_bit_in_the_name_of_a_sum_does_not_hide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: bytes
) -> None:
    path = halfway(tmp_path, monkeypatch)
    flip(path, path.read_bytes().index(key) + 2)
    with pytest.raises(wb.FormatError, match="to hold the last finished epoch, but it is damaged"):
        trained(tmp_path)


def test_the_checkpoint_of_another_seed_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = halfway(tmp_path / "a", monkeypatch, seed=1)
    ours.write_bytes(halfway(tmp_path / "b", monkeypatch, seed=2).read_bytes())
    with pytest.raises(wb.FormatError, match="expected a checkpoint of the spec"):
        trained(tmp_path / "a", seed=1)


def test_the_sum_of_tensors_knows_names_types_shapes_and_values() -> None:
    base = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(1, dtype=torch.int64), "c": torch.zeros(0)}
    others = [
        {**base, "a": base["a"].reshape(3, 2)},
        {**base, "a": base["a"].double()},
        {**base, "b": torch.tensor(2)},
        {"x": base["a"], "b": base["b"], "c": base["c"]},
    ]
    sums = {tensors_sum(tensors, "[]") for tensors in (base, *others)} | {tensors_sum(base, "[1]")}
    assert len(sums) == 6
    assert tensors_sum(dict(reversed(base.items())), "[]") == tensors_sum(base, "[]")


def test_links_are_followed_to_runs_and_not_all_over_the_disk(store: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "theirs").symlink_to(store)
    (tmp_path / "mine" / "disk").symlink_to("/")
    found = read_records(tmp_path / "mine")
    assert len(found) == 1
    (problem,) = found.problems
    assert problem.path == tmp_path / "mine" / "disk"
    assert problem.reason == "not readable: a link that leads to no run, not followed"


# -- files ----------------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_whole(tmp_path / "page.html", "old")
    path.chmod(0o640)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            write_whole(path, "new")
    assert (path.read_text(), [p.name for p in tmp_path.iterdir()]) == ("old", ["page.html"])
    write_whole(path, "half a pair \udc80")
    assert path.read_bytes() == b"half a pair \\udc80"
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_log_is_not_written_through_a_link(tmp_path: Path) -> None:
    with append_to(tmp_path / "log.txt") as log:
        print("one", file=log)
    with append_to(tmp_path / "log.txt") as log:
        print("two", file=log)
    assert (tmp_path / "log.txt").read_text() == "one\ntwo\n"
    (tmp_path / "link").symlink_to(tmp_path / "log.txt")
    with pytest.raises(OSError, match="symbolic link"):
        append_to(tmp_path / "link")


def test_a_link_stays_and_a_pipe_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_whole(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "text"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_whole(tmp_path / "pipe", "text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)


def test_files_of_one_folder_are_replaced_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_together(tmp_path, {"a": b"1", "b": b"1", "c": b"1"})
    calls = iter([None, OSError(28, "No space left on device")])

    def fails_at_the_second(_: int) -> None:
        if error := next(calls):
            raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails_at_the_second)
        with pytest.raises(OSError, match="No space"):
            write_together(tmp_path, {"a": b"2", "b": b"2", "c": None})
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"a": b"1", "b": b"1", "c": b"1"}
    write_together(tmp_path, {"a": b"2", "b": b"2", "c": None})
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"a": b"2", "b": b"2"}
