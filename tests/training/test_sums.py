"""Files of a run are written whole, and one that is not what the run wrote is refused by name."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
import torch

import walkback as wb
from test_training import run as trained
from walkback.audit.records import read_records
from walkback.audit.store import checked_runs
from walkback.cli import run as cli
from walkback.files import append_to, write_together, write_whole
from walkback.training.folder import CHECKPOINT
from walkback.training.sums import tensors_sum


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
