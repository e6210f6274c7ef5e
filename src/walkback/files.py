"""Files written whole or not at all, and the sums that tell whether one is still what was written."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

# A name nobody can foresee: what a killed process leaves behind ends in it.
LEFT_OVER = ".tmp"
LARGEST = 2**28  # bytes of a table or log; the files of a run have kilobytes, and a sparse file can have any size
LARGEST_WEIGHTS = 2**32  # bytes of weights, unless the user says otherwise

_GIVEN = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")


def read_file(path: str | Path, most: int = LARGEST) -> bytes:
    """Read a whole file; one of more than `most` bytes, a pipe or a device is an OSError, and none is waited for.

    A pipe that the shell gives by number is the user's own, and is read to its end: standard input, or `<(...)`.
    """
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        status = os.fstat(number)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            if not os.fspath(path).startswith(_GIVEN):
                raise OSError(errno.EINVAL, "a pipe or device, not a file", str(path))
            os.set_blocking(number, True)
        parts, left = [], most + 1 if status.st_size <= most else 0
        while left and (part := os.read(number, min(left, max(status.st_size + 1, 2**16)))):
            parts.append(part)
            left -= len(part)
    finally:
        os.close(number)
    if not left:
        raise OSError(errno.EFBIG, f"over {most >> 20} MiB, the most that is read", str(path))
    return b"".join(parts)


def parse_json(text: str | bytes) -> Any:
    """Return what JSON holds; a key that stands twice in one object is a ValueError: which of the two counts?

    >>> parse_json('{"h_norm": [1.0, 2.0]}')
    {'h_norm': [1.0, 2.0]}
    """
    return json.loads(text, object_pairs_hook=_each_once)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        name = next(key for key in keys if keys.count(key) > 1)[:80]
        raise ValueError(f"the key {name!r} stands twice in one object")
    return found


def write_whole(path: str | Path, content: str | bytes, links: bool = True) -> Path:
    r"""Write a file, and the folders above it: all of it or nothing, also when the power goes. Returns its path.

    The scratch file beside it has a random name and is made anew, so that nothing planted there is written to. What
    UTF-8 can't hold is written as an escape. A device or a pipe is written to as it is, and where a link stands what
    it points to is replaced; without `links` the file takes the place of either. Errors are plain OSErrors.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder) / "new" / "note.txt", "café").read_bytes()
    b'caf\xc3\xa9'
    """
    path = Path(path)
    data = encoded(content) if isinstance(content, str) else content
    make_folder(path.parent)
    target = Path(os.path.realpath(path)) if links else path
    if links and target.exists() and not target.is_file() and not target.is_dir():
        with target.open("wb") as file:
            file.write(data)
        return path
    write_together(target.parent, {target.name: data})
    return path


def write_together(folder: Path, files: Mapping[str, bytes | None]) -> None:
    """Write the files of a folder, by name: all are on disk before the first takes its name. None removes one.

    A full disk or a kill while they are written leaves the folder as it was. Later only the first is sure to be the
    new one: where it holds the sums of the others, `complete` does the rest.
    """
    staged: dict[Path, Path] = {}
    try:
        for name, data in files.items():
            if data is not None:
                staged[folder / name] = _staged(folder / name, data)
        if len(files) > 1:
            sync_folder(folder)
        (target, scratch), *others = staged.items()
        scratch.replace(target)
    except BaseException:
        if any(scratch.exists() for scratch in [*staged.values()][:1]):
            for scratch in staged.values():
                with suppress(OSError):
                    scratch.unlink(missing_ok=True)
        raise
    sync_folder(folder)
    if len(files) > 1:
        _take_names(folder, others, [name for name, data in files.items() if data is None])


def _take_names(folder: Path, staged: Iterable[tuple[Path, Path]], removed: Sequence[str]) -> None:
    for name in removed:
        (folder / name).unlink(missing_ok=True)
    if removed:
        sync_folder(folder)  # before the last scratch file, which tells that something is left to do, is gone
    for target, scratch in staged:
        try:
            scratch.replace(target)
        except FileNotFoundError:  # a reader was faster: see `complete`
            if not target.exists():
                raise
    sync_folder(folder)


def complete(folder: Path, sums: Mapping[str, str], removed: Sequence[str]) -> None:
    """Do what a killed `write_together` left undone, told by the sums of its files; else change nothing."""
    left = [(folder / name, scratch) for name in sums for scratch in folder.glob(f"{name}.*{LEFT_OVER}")]
    left = [(target, s) for target, s in left if s.is_file() and not s.is_symlink() and sha256(s) == sums[target.name]]
    if left:
        _take_names(folder, left, removed)


def _staged(target: Path, data: bytes) -> Path:
    """Write data to disk under a name of its own beside `target`, with the permissions of what is there."""
    scratch = target.with_name(f"{target.name[:100]}.{secrets.token_hex(8)}{LEFT_OVER}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    with os.fdopen(os.open(scratch, flags, 0o666), "wb") as file:
        try:
            file.write(data)
            file.flush()
            with suppress(OSError):
                scratch.chmod(stat.S_IMODE(target.stat().st_mode))
            os.fsync(file.fileno())
        except BaseException:
            with suppress(OSError):
                scratch.unlink(missing_ok=True)
            raise
    return scratch


def has_other_names(path: Path) -> bool:
    """Return whether a file stands under another name too: a hard link, through which another file would be changed."""
    try:
        return stat.S_ISREG((status := path.lstat()).st_mode) and status.st_nlink > 1
    except OSError:
        return False


def append_to(path: Path) -> TextIO:
    """Open a text file to write at its end, made if missing; a link, pipe or device of that name is refused."""
    if has_other_names(path):
        raise OSError(errno.EMLINK, "a file with another name too (a hard link), which no run makes", str(path))
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    number = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "a pipe or device, not a file", str(path))
    return os.fdopen(number, "a", encoding="utf-8", buffering=1)


def encoded(text: str) -> bytes:
    """Return text in UTF-8, and what that can't hold, as half of a surrogate pair, as an escape."""
    return text.encode("utf-8", "backslashreplace")


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, each on disk under its name."""
    missing = [path for path in (folder, *folder.parents) if not path.is_dir()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_folder(path.parent)


# What file systems answer that can't sync a folder, and Windows, which does not open one.
_CANT_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM, errno.EISDIR, errno.EROFS}


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on disk before anything that relies on them is done."""
    try:
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
    except OSError as error:
        if error.errno not in _CANT_SYNC:
            raise


def sha256(content: str | bytes | Path) -> str:
    """Return the SHA-256 of a file, or of what one would hold, as 64 hex digits.

    >>> sha256("")[:8]
    'e3b0c442'
    """
    if isinstance(content, Path):
        with content.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    return hashlib.sha256(encoded(content) if isinstance(content, str) else content).hexdigest()
