"""The folder of a run: one owner at a time, every file whole or absent, and words for a folder that is neither.

A run is finished when report.json is there: it is written last. Until then checkpoint.safetensors holds the last
finished epoch, and whoever takes the lock goes on from it. The lock is the operating system's, so it dies with its
owner.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from walkback.errors import FormatError, WalkbackError, cut, shown
from walkback.files import LEFT_OVER, has_other_names, make_folder, read_file, write_whole
from walkback.progress import say
from walkback.report.formats.sums import RECORD, SUMS, WEIGHTS, check_sums
from walkback.report.report import Report
from walkback.training.bundle import SCHEMA, Bundle, load_bundle, run_fields, schema_of
from walkback.training.spec import RunSpec
from walkback.verdict.files import read_table

CHECKPOINT, PROGRESS, LOCK = "checkpoint.safetensors", "progress.json", ".lock"

AGAIN = "To train it again (the same spec gives the same run), move the folder away first."
_ROOM = "make room, then run the same command again; it goes on from the last epoch saved."
_HELP = {
    errno.ENOSPC: f"The disk is full: {_ROOM}",
    errno.EDQUOT: f"Your quota is used up: {_ROOM}",
    errno.EROFS: "The store is read-only: give another one, or make it writable.",
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM), "The store is not yours to write: give another one, or change its permissions."
    ),
    errno.EEXIST: "There is a file of this name: give a folder.",
    errno.ENOTDIR: "There is a file where a folder should be: give another one.",
}


def unwritable(path: Path, error: OSError) -> FormatError:
    """Return the error for a file that could not be written: what, why, and what to do."""
    advice = _HELP.get(error.errno or 0, "Run the same command again once that is mended.")
    return FormatError(f"Expected to write {path}, but: {error}. {advice} Finished runs are as they were.")


def write(path: Path, content: str | bytes) -> None:
    """Write all of a file or nothing, also when the power goes; a link that stands there is replaced, not followed."""
    try:
        write_whole(path, content, links=False)
    except OSError as error:
        raise unwritable(path, error) from None


class BusyError(WalkbackError):
    """Another process is in the folder."""


@contextmanager
def owned(folder: Path, quiet: bool = True, wait: bool = True) -> Iterator[None]:
    """Make the folder and keep every other process out of it; our own may come in again.

    Waits while another one is in, or with `wait` False raises BusyError.
    """
    refuse_link(folder)
    try:
        make_folder(folder)
        _check_locks(folder)
        if not _is_own(folder / LOCK):  # opening it could empty another file
            raise OSError(errno.ELOOP, "a link, which no run makes: remove it", str(folder / LOCK))
        lock = FileLock((folder / LOCK).absolute(), is_singleton=True)  # the same object for whoever comes in again
        try:
            lock.acquire(blocking=False)
        except Timeout:
            if not wait:
                raise BusyError(f"Expected {folder} to be free, but another process is training there.") from None
            if not quiet:
                say(f"{folder.name} is being trained by another process: waiting for it")
            lock.acquire()
    except OSError as error:
        raise unwritable(folder, error) from None
    try:
        if not (folder / "report.json").is_file():  # of a finished run they may be needed: see `check_sums`
            _remove(folder, f"*{LEFT_OVER}")
        yield
    finally:
        lock.release()


def refuse_link(folder: Path) -> None:
    """Refuse to train where the folder of a run is a link: its files would be written, and removed, elsewhere."""
    if folder.is_symlink():
        raise FormatError(
            f"Expected {folder} to be a folder of its own, but it is a link to {cut(str(folder.readlink()), 200)}, "
            "where nothing is written. Put the folder itself there, or give the store that it is in; a store may be a "
            "link."
        )


def _is_own(lock: Path) -> bool:
    return not lock.is_symlink() and not has_other_names(lock)


_LOCKS: set[int] = set()  # the file systems whose locks were tried and hold


def _check_locks(folder: Path) -> None:
    """Refuse a file system that has no locks, or that gives one lock to two owners: runs would write over each other.

    A lock by the presence of a file is no way out: that of an owner who died on another machine would stay for ever.
    """
    try:
        import fcntl
    except ImportError:  # Windows, whose locks are another thing
        return
    if (device := folder.stat().st_dev) in _LOCKS:
        return
    probe = folder / f"{LOCK}.{secrets.token_hex(8)}{LEFT_OVER}"
    first = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        second = os.open(probe, os.O_RDWR)
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
                why = "it gives one lock to two owners"
            except BlockingIOError:
                _LOCKS.add(device)
                return
        except OSError as error:
            why = f"it has none ({error.strerror})"
        finally:
            os.close(second)
    finally:
        os.close(first)
        probe.unlink(missing_ok=True)
    raise FormatError(
        f"Expected the file system of {folder} to have locks (flock), so that two processes do not train one run, but "
        f"{why}. Give a store on another one, such as a local disk, or mount this one with locks."
    )


def is_locked(folder: Path) -> bool:
    """Return whether some process is training there right now."""
    if not (folder / LOCK).is_file() or not _is_own(folder / LOCK):
        return False
    try:
        with FileLock(folder / LOCK).acquire(blocking=False):
            return False
    except Timeout:
        return True
    except OSError:  # it can't be told; training there will say why
        return False


def tidy(folder: Path) -> None:
    """Remove what a finished run no longer needs; nothing through a link."""
    if folder.is_symlink():
        return
    _remove(folder, CHECKPOINT, PROGRESS, LOCK, f"*{LEFT_OVER}")


def _remove(folder: Path, *patterns: str) -> None:
    for pattern in patterns:
        for path in folder.glob(pattern):
            with suppress(OSError):  # a store may be read-only
                path.unlink(missing_ok=True)


def spec_text(spec: RunSpec, input_shape: tuple[int, ...], classes: int) -> str:
    """Return the text of spec.json: what was asked for, and what the network was built for."""
    fields = {"schema": SCHEMA, **spec.model_dump(), "input_shape": input_shape, "classes": classes}
    return json.dumps(fields, indent=2, allow_nan=False)


def reopen(folder: Path, spec: RunSpec) -> Bundle | None:
    """Return the bundle of a finished run, None of one yet to be trained; raise FormatError where it is neither."""
    try:
        if not finished(folder, spec):
            return None
    except OSError as error:
        raise FormatError(f"Expected to read {folder}, but: {error}.") from None
    try:
        bundle = load_bundle(folder, spec.modules)  # the caller's spec names them
    except FormatError as error:
        raise FormatError(
            f"{folder.name} is finished, and its record (spec, trajectory, report) is whole, but its network can't be "
            f"loaded. {error} {AGAIN}"
        ) from None
    tidy(folder)
    return bundle


def finished(folder: Path, spec: RunSpec) -> bool:
    """Return whether `folder` holds the whole record of `spec`; its weights may have been left out.

    Raises FormatError, and touches nothing, where the folder belongs to another spec or another version, or where a
    file of a finished run is missing or cut short.
    """
    _same_spec(folder, spec)
    present = {path.name for path in folder.iterdir() if path.is_file()} if folder.is_dir() else set()
    if "report.json" not in present:
        refuse_link(folder)
        last = sorted({"weights.safetensors", "trajectory.jsonl"} & present)  # written after the last epoch
        if last and CHECKPOINT not in present:
            raise FormatError(
                f"Expected {folder} to hold a report.json, because {' and '.join(last)} there "
                f"{'is' if len(last) == 1 else 'are'} of a run that reached its last epoch, but it has none. Put it "
                f"back. {AGAIN}"
            )
        _refuse_folders(folder)
        return False
    missing = sorted({"spec.json", "trajectory.jsonl"} - present)
    if missing:
        raise FormatError(
            f"Expected {folder} to hold a finished run, because report.json is there, but {' and '.join(missing)} "
            f"{'was' if len(missing) == 1 else 'were'} removed. Put it back. {AGAIN}"
        )
    try:
        report = Report.load(folder / "report.json")
        epochs = report.run.get("epochs") if isinstance(report.run, dict) else None
    except FormatError as error:
        raise FormatError(f"{error} {AGAIN}") from None
    rows = read_file(folder / "trajectory.jsonl").decode(errors="replace").splitlines()
    if len(rows) != epochs:
        raise FormatError(
            f"Expected {folder / 'trajectory.jsonl'} to have the {epochs} epochs that report.json speaks of, but it "
            f"has {len(rows)}: it was cut short or belongs to another run. Put the right file back. {AGAIN}"
        )
    try:
        check_sums(folder, RECORD, spec.digest)
    except FormatError as error:
        raise FormatError(f"{error} {AGAIN}") from None
    return True


def _refuse_folders(folder: Path) -> None:
    """Refuse a folder where a run will write a file, before it is trained."""
    names = (CHECKPOINT, PROGRESS, LOCK, SUMS, WEIGHTS, *RECORD)
    if wrong := [name for name in names if (folder / name).is_dir()]:
        raise FormatError(f"Expected {folder / wrong[0]} to be a file or not there, but it is a folder. Move it away.")


def _same_spec(folder: Path, spec: RunSpec) -> None:
    path = folder / "spec.json"
    if not path.is_file():  # a pipe would be waited for
        return
    try:
        found: Any = read_table(path)
    except FormatError as error:
        raise FormatError(f"{error} {AGAIN}") from None
    if (schema := schema_of(found)) != SCHEMA:
        raise FormatError(
            f"Expected {path} to be of schema {SCHEMA}, but got {schema}: the folder was written by another version of "
            "walkback. Read it with that version, or give another store. " + AGAIN
        )
    fields = run_fields(found)
    unknown = sorted(set(fields) - set(RunSpec.model_fields))
    if unknown:
        raise FormatError(
            f"Expected {path} to have the fields of a spec, but got {', '.join(unknown)} too: the folder was written "
            "by a later version of walkback. Read it with that version, or give another store."
        )
    here, asked = RunSpec(**fields).model_dump(mode="json"), spec.model_dump(mode="json")
    other = [key for key in asked if asked[key] != here[key]]
    if other:
        differences = "; ".join(f"{key} is {shown(here[key])} there and {shown(asked[key])} here" for key in other)
        raise FormatError(
            f"Expected {folder} to belong to the spec asked for, but another spec has the same name: {differences}. "
            "Two runs can't share a folder: give another store, or move that folder away."
        )


@contextmanager
def reading_checkpoint(folder: Path) -> Iterator[None]:
    """Raise an error for a checkpoint that can't be read inside the `with` block, in place of a silent new start."""
    try:
        yield
    except (SafetensorError, OSError, RuntimeError, KeyError, ValueError) as error:
        raise FormatError(
            f"Expected {folder / CHECKPOINT} to hold the last finished epoch, but it is damaged or of another version: "
            f"{type(error).__name__}: {error}. Move the folder away to train this run from its start; no other "
            "run is touched."
        ) from None
