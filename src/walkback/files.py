"""Files written whole or not at all, and the sums that tell whether one is still what was written."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TextIO

# A name nobody can foresee: what a killed process leaves behind ends in it.
LEFT_OVER = ".tmp"


def write_whole(path: str | Path, content: str | bytes) -> Path:
    r"""Write a file, and the folders above it: all of it or nothing, also when the power goes. Returns its path.

    The scratch file beside it has a random name and is made anew, so that nothing planted there is written to. What
    UTF-8 can't hold is written as an escape. A device or a pipe is written to as it is. Errors are plain OSErrors.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder) / "new" / "note.txt", "café").read_bytes()
    b'caf\xc3\xa9'
    """
    path = Path(path)
    data = encoded(content) if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    target = Path(os.path.realpath(path))  # a link stays, what it points to is replaced
    if target.exists() and not target.is_file() and not target.is_dir():
        with target.open("wb") as file:
            file.write(data)
        return path
    write_together(target.parent, {target.name: data})
    return path


def write_together(folder: Path, files: Mapping[str, bytes | None]) -> None:
    """Write the files of a folder, by name: all are on disk before the first takes its name. None removes one.

    A full disk or a kill while they are written leaves the folder as it was.
    """
    staged: dict[Path, Path] = {}
    try:
        for name, data in files.items():
            if data is not None:
                staged[folder / name] = _staged(folder / name, data)
        for target in list(staged):
            staged[target].replace(target)
            del staged[target]
    finally:
        for scratch in staged.values():
            with suppress(OSError):
                scratch.unlink(missing_ok=True)
    for name in (name for name, data in files.items() if data is None):
        (folder / name).unlink(missing_ok=True)
    sync_folder(folder)


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


def append_to(path: Path) -> TextIO:
    """Open a text file to write at its end, made if missing; a link of that name is refused, not followed."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    return os.fdopen(os.open(path, flags, 0o666), "a", encoding="utf-8", buffering=1)


def encoded(text: str) -> bytes:
    """Return text in UTF-8, and what that can't hold, as half of a surrogate pair, as an escape."""
    return text.encode("utf-8", "backslashreplace")


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on disk before anything that relies on them is done."""
    with suppress(OSError):  # some file systems can't, and Windows does not open folders
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def sha256(content: str | bytes | Path) -> str:
    """Return the SHA-256 of a file, or of what one would hold, as 64 hex digits.

    >>> sha256("")[:8]
    'e3b0c442'
    """
    if isinstance(content, Path):
        with content.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    return hashlib.sha256(encoded(content) if isinstance(content, str) else content).hexdigest()
