"""A store whose file system has no locks, or false ones, is refused; what a dead owner left behind blocks nobody."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

import walkback as wb
from walkback.training import folder as folders
from walkback.training.folder import LOCK, owned


@pytest.fixture(autouse=True)
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_LOCKS", set())


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_refused(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", missing)
    with pytest.raises(wb.FormatError, match=r"Expected the file system of .* to have locks .* but it has none"):
        owned(tmp_path / "run").__enter__()
    assert not list((tmp_path / "run").iterdir())


def test_a_file_system_that_gives_one_lock_to_two_owners_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    with pytest.raises(wb.FormatError, match="it gives one lock to two owners"):
        owned(tmp_path / "run").__enter__()
    assert not list((tmp_path / "run").iterdir())


def test_the_file_that_a_dead_owner_left_blocks_nobody(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).write_text("1234\nanother-machine\n")
    with owned(tmp_path / "run", wait=False):
        assert folders.is_locked(tmp_path / "run")
