"""Whatever state of the disk POSIX lets a power cut leave: the run, bundle or file is the old or the new one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import walkback as wb
from crash_states import Tree, restore, taken, tried
from test_audit_store import SPEC, content, run
from walkback import files
from walkback.audit import store
from walkback.files import write_whole
from walkback.training.folder import CHECKPOINT


@pytest.fixture
def on_disk(tmp_path: Path) -> Callable[[Tree], Path]:
    """Put a tree into a folder that is empty each time."""

    def put(tree: Tree) -> Path:
        shutil.rmtree(tmp_path / "disk", ignore_errors=True)
        (tmp_path / "disk").mkdir()
        return restore(tree, tmp_path / "disk")

    return put


def check_run(root: Path, on_disk: Callable[[Tree], Path]) -> int:
    """Train below root; every state is new, begun with a whole checkpoint, or finished with the right bytes."""
    written: list[bytes] = []
    reference: dict[str, bytes] = {}

    def act() -> None:
        from walkback.training import loop

        real = loop.write

        def write(path: Path, text: str | bytes) -> None:
            real(path, text)
            if path.name == CHECKPOINT:
                written.append(path.read_bytes())

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "write", write)
            reference.update(content(run(root).path))

    def holds(tree: Tree, ended: bool) -> str:
        out = on_disk(tree)
        state = store.state(out, SPEC)
        if state.kind == "damaged":
            return state.detail
        if state.kind == "finished":
            return "" if content(out / SPEC.name) == reference else "finished with other bytes"
        if ended:
            return f"lost: {state.kind}"
        if state.kind == "begun" and (out / SPEC.name / CHECKPOINT).read_bytes() not in written:
            return "a checkpoint that was not written whole"
        return ""

    return tried(root, act, holds)


def test_a_run_is_recovered_from_every_state(tmp_path: Path, on_disk: Callable[[Tree], Path]) -> None:
    (tmp_path / "store").mkdir()
    assert check_run(tmp_path / "store", on_disk) > 50


def bundle_of(folder: Path, value: float, **more: object) -> wb.Bundle:
    model = nn.Linear(2, 3)
    nn.init.constant_(model.weight, value)
    return wb.save_bundle(folder, model, {"net": "torch.nn:Linear", "net_options": {}, "of": value}, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [(), ({"epoch": 1},)])
def test_a_bundle_over_an_older_one_is_the_old_or_the_new_one(
    rows: tuple, tmp_path: Path, on_disk: Callable[[Tree], Path]
) -> None:
    root = tmp_path / "root"
    bundle_of(root, 1.0, trajectory=[{"epoch": 1}, {"epoch": 2}])
    seen = set()

    def holds(tree: Tree, ended: bool) -> str:
        found = wb.load_bundle(on_disk(tree))
        value = float(found.weights["weight"][0, 0])
        seen.add(value)
        wanted = 2 if value == 1.0 else len(rows)
        if (found.spec["of"], len(found.trajectory())) != (value, wanted) or (ended and value != 2.0):
            return f"weights of {value}, spec of {found.spec['of']}, {len(found.trajectory())} rows"
        return ""

    tried(root, lambda: bundle_of(root, 2.0, trajectory=rows), holds, taken(root))
    assert seen == {1.0, 2.0}


def test_a_new_bundle_is_there_or_not(tmp_path: Path, on_disk: Callable[[Tree], Path]) -> None:
    def holds(tree: Tree, ended: bool) -> str:
        out = on_disk(tree)
        try:
            return "" if torch.equal(wb.load_bundle(out / "b").weights["weight"], torch.ones(3, 2)) else "other weights"
        except wb.FormatError as error:
            return str(error) if ended or "there is no spec.json" not in str(error) else ""

    (tmp_path / "root").mkdir()
    tried(tmp_path / "root", lambda: bundle_of(tmp_path / "root" / "b", 1.0), holds)


@pytest.mark.parametrize("synced", [True, False])
def test_a_file_over_an_older_one_is_the_old_or_the_new_one(
    synced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard is shown to fail: a folder that is not synced may have the old file when all was said to be written."""
    path = write_whole(tmp_path / "new" / "page.html", "old")
    before = taken(tmp_path)

    def holds(tree: Tree, ended: bool) -> str:
        text = tree.get("new/page.html")
        return "" if text == b"new" or (text == b"old" and not ended) else f"{text!r}"

    if synced:
        assert tried(tmp_path, lambda: write_whole(path, "new"), holds, before) > 3
        return
    monkeypatch.setattr(files, "sync_folder", lambda _: None)
    with pytest.raises(AssertionError, match="after 3 of 3 calls: b'old'"):
        tried(tmp_path, lambda: write_whole(path, "new"), holds, before)


def test_what_a_killed_save_left_is_completed_and_nothing_else(tmp_path: Path) -> None:
    bundle_of(tmp_path, 1.0)
    stray = tmp_path / f"weights.safetensors.0{files.LEFT_OVER}"
    stray.write_bytes(b"of nobody")
    (tmp_path / f"spec.json.0{files.LEFT_OVER}").symlink_to(tmp_path / "spec.json")
    assert float(wb.load_bundle(tmp_path).weights["weight"][0, 0]) == 1.0
    assert stray.exists()
    assert not (tmp_path / "spec.json").is_symlink()
