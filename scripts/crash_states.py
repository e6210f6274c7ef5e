"""Every state that a power cut may leave a folder in, by what POSIX promises of its file calls.

A file's bytes are on disk once it was synced; before that it may be empty or cut short. A name that was made, moved or
removed is on disk once its folder was synced; before that any of the changes may be there and any may be lost, in
whatever order they were made, but a rename is there or not. `recorded` writes the calls of a function down, `states`
lists the trees of files that each moment may leave, and `restore` puts one of them on disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch

Tree = dict[str, bytes]  # what is on disk: path below the root -> bytes


@dataclass(frozen=True)
class Call:
    """One change: `names` in a folder (name -> file number, None where it goes), bytes of a file, or a sync."""

    kind: str  # names, data, sync, done
    folder: str = ""
    names: tuple[tuple[str, int | None], ...] = ()
    file: int = 0
    data: bytes = b""


@dataclass
class Recorder:
    """The calls below a root, in their order."""

    root: Path
    calls: list[Call] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)  # path -> file number, as things are now

    def place(self, path: Any) -> str | None:
        """Return a path below the root, or None."""
        full = Path(path).absolute()
        return str(full.relative_to(self.root)) if full.is_relative_to(self.root) else None

    def change(self, **names: int | None) -> None:
        """Write down that names changed, of one folder."""
        folder = {str(Path(name).parent) for name in names}.pop()
        for name, number in names.items():
            self.files.pop(name, None) if number is None else self.files.update({name: number})
        self.calls.append(Call("names", folder, tuple(names.items())))

    def number(self, path: str) -> int:
        return self.files.setdefault(path, len(self.files) + len(self.calls) + 1)


@contextmanager
def recorded(root: Path) -> Iterator[Recorder]:
    """Write the file calls of this process down, those below `root`."""
    found = Recorder(root.resolve())
    real = {name: getattr(os, name) for name in ("open", "fsync", "replace", "unlink", "mkdir")}

    def opened(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        place = found.place(path) if not isinstance(path, int) else None
        new = place is not None and flags & os.O_CREAT and not os.path.lexists(path)
        handle = real["open"](path, flags, *args, **kwargs)
        if new:
            found.change(**{str(place): len(found.calls) + 1})
        return handle

    def synced(handle: int) -> None:
        real["fsync"](handle)
        path = Path(f"/proc/self/fd/{handle}").readlink()
        place = found.place(path)
        if place is not None and path.is_dir():
            found.calls.append(Call("sync", place))
        elif place is not None:
            found.calls.append(Call("data", file=found.number(place), data=path.read_bytes()))

    def moved(source: Any, target: Any, **kwargs: Any) -> None:
        real["replace"](source, target, **kwargs)
        if (here := found.place(source)) is not None and (there := found.place(target)) is not None:
            found.change(**{here: None, there: found.files[here]})

    def removed(path: Any, **kwargs: Any) -> None:
        real["unlink"](path, **kwargs)
        if (place := found.place(path)) is not None:
            found.change(**{place: None})

    def made(path: Any, *args: Any, **kwargs: Any) -> None:
        real["mkdir"](path, *args, **kwargs)
        if (place := found.place(path)) is not None:
            found.change(**{place: 0})  # a folder

    ours = {"open": opened, "fsync": synced, "replace": moved, "unlink": removed, "mkdir": made}
    with patch.multiple(os, **ours):
        yield found


def states(calls: list[Call], before: Tree | None = None) -> Iterator[tuple[int, Tree]]:
    """Yield (how many calls were made, what is then on disk), each once for every number of calls.

    Args:
        calls: see `recorded`.
        before: what was there, all of it on disk.
    """
    data: dict[int, list[bytes]] = {-n: [text] for n, text in enumerate((before or {}).values(), 1)}
    whole = {call.file: call.data for call in calls if call.kind == "data"}
    disk = {path: -n for n, path in enumerate(before or {}, 1)}
    waiting: dict[str, list[Call]] = {}
    for made in range(len(calls) + 1):
        for tree in _trees(disk, waiting, data, whole):
            yield made, tree
        if made == len(calls):
            return
        call = calls[made]
        if call.kind == "names":
            waiting.setdefault(call.folder, []).append(call)
        elif call.kind == "data":
            data[call.file] = [call.data]
        elif call.kind == "sync":
            for one in waiting.pop(call.folder, ()):
                _apply(disk, one)


def _apply(disk: dict[str, int], call: Call) -> None:
    for name, number in call.names:
        disk.pop(name, None) if number is None else disk.update({name: number})


def _trees(
    disk: dict[str, int], waiting: dict[str, list[Call]], data: dict[int, list[bytes]], whole: dict[int, bytes]
) -> Iterator[Tree]:
    """What may be on disk: any of the changes that wait, and of unsynced files nothing, half, or all."""
    open_changes = [call for calls in waiting.values() for call in calls]
    seen = set()
    for some in (some for n in range(len(open_changes) + 1) for some in combinations(open_changes, n)):
        names = dict(disk)
        for call in some:
            _apply(names, call)
        folders = {name for name, number in names.items() if number == 0}
        made = {name for call in open_changes for name, number in call.names if number == 0}
        files = {n: f for n, f in names.items() if f != 0 and not _lost(n, made - folders)}
        for cut in (0.0, 0.5, 1.0):
            text = {n: data[f][0] if f in data else _cut(whole.get(f, b""), cut) for n, f in files.items()}
            key = tuple(sorted(text.items()))
            if key not in seen:
                seen.add(key)
                yield text


def _lost(name: str, missing: set[str]) -> bool:
    return any(str(up) in missing for up in Path(name).parents)


def _cut(text: bytes, share: float) -> bytes:
    return text[: int(len(text) * share)]


def restore(tree: Tree, folder: Path) -> Path:
    """Put a tree of files on disk; return its folder."""
    for name, text in tree.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text)
    return folder


def taken(folder: Path) -> Tree:
    """Return the files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def tried(root: Path, act: Callable[[], object], holds: Callable[[Tree, bool], str], before: Tree | None = None) -> int:
    """Act below `root`, and return how many states it may leave; AssertionError of the first that does not hold.

    Args:
        root: a folder.
        act: what makes the file calls.
        holds: (what is on disk, had `act` returned?) -> what is wrong with it, "" for nothing.
        before: what was there.
    """
    with recorded(root) as found:
        act()
    count, seen = 0, set()
    for made, tree in states(found.calls, before):
        ended = made == len(found.calls)
        key = (ended, tuple(sorted(tree.items())))
        if key in seen:
            continue
        seen.add(key)
        count += 1
        if why := holds(tree, ended):
            raise AssertionError(f"after {made} of {len(found.calls)} calls: {why}; on disk: {sorted(tree)}")
    return count
