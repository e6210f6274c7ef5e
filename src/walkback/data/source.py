"""Data sets on disk: where they are looked for, and what a file must hold to be believed.

A Source describes a data set as published, its Layouts the ways it is handed around. Nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from walkback.data.dataset import Dataset, Split
from walkback.errors import FormatError


class SplitFiles(NamedTuple):
    """What the files of a split are expected to hold."""

    size: int
    classes: int
    shape: tuple[int, ...]


# (files of the split in order, what they must hold) -> images (N, C, H, W) uint8 and labels (N,) of any integer type
Reader = Callable[[list[Path], SplitFiles], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class FileLayout:
    """One way the files lie around: in one of `folders`, every pattern of `train` and `test` matches some file."""

    folders: tuple[str, ...]
    train: tuple[str, ...]
    test: tuple[str, ...]
    reader: Reader
    md5: Mapping[str, str] = field(default_factory=dict)  # of whole files, where they were published
    needs: tuple[str, ...] = ()  # modules of the extra walkback[data]


@dataclass(frozen=True)
class Source:
    """A published data set: its facts, its layouts in order of preference, and how to get it."""

    name: str
    title: str
    classes: int
    shape: tuple[int, ...]
    train_size: int
    test_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    layouts: tuple[FileLayout, ...]
    how_to_get: tuple[str, ...]
    hub: tuple[str, ...] = ()  # names on the Hugging Face hub
    system: tuple[str, ...] = ()  # folders of a distribution's package


def read(source: Source, root: str | Path | None = None) -> Dataset:
    """Find a data set, read it and check it against its published facts."""
    found = look(source, root)
    if found is None:
        raise FormatError(_explain(source, bases(source, root)))
    layout, folder = found
    splits: list[Split] = []
    for part, patterns, size in (("train", layout.train, source.train_size), ("test", layout.test, source.test_size)):
        paths = [path for pattern in patterns for path in _matches(folder, pattern)]
        for path in (path for path in paths if path.name in layout.md5):
            _check_md5(path, layout.md5[path.name])
        x, y = layout.reader(paths, SplitFiles(size, source.classes, source.shape))
        splits.append(_checked(x, y, source, size, f"{part} split in {folder}"))
    return Dataset(source.name, splits[0], splits[1], source.classes, source.mean, source.std)


def bases(source: Source, root: str | Path | None) -> list[Path]:
    """Return the folders that may hold the data set or its folder, in the order they are looked at."""
    if root is not None:
        return [Path(root).expanduser()]
    home, named = Path("~").expanduser(), os.environ.get("WALKBACK_DATA")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or cache / "huggingface") / "hub")
    found = [Path(named).expanduser()] if named else []
    found += [cache / "walkback", Path("data")]
    for repository in source.hub:
        # A repository has one folder per downloaded revision; the newest name is as good as any.
        found += sorted(hub.glob(f"datasets--{repository.replace('/', '--')}/snapshots/*"))
    return found + [Path(path) for path in source.system]


def look(source: Source, root: str | Path | None = None) -> tuple[FileLayout, Path] | None:
    """Return the first layout whose files are all there, and its folder. Only names are looked at."""
    for base in bases(source, root):
        for layout in source.layouts:
            for folder in _folders(base, source, layout):
                if not _missing(folder, layout):
                    return layout, folder
    return None


def _folders(base: Path, source: Source, layout: FileLayout) -> Iterator[Path]:
    for parent in (base, base / source.name):
        yield parent
        for folder in layout.folders:
            yield parent / folder


def _matches(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.glob(pattern) if path.is_file())


def _missing(folder: Path, layout: FileLayout) -> list[str]:
    return [pattern for pattern in (*layout.train, *layout.test) if not _matches(folder, pattern)]


def _explain(source: Source, places: list[Path]) -> str:
    """Return the files looked for, the places, what was incomplete, and how to get them."""
    lines = [f"Expected the files of {source.title}, but found no complete set. Looked for one of:"]
    for layout in source.layouts:
        folders = ", ".join(f"{folder}/" for folder in layout.folders)
        lines.append(f"  {', '.join((*layout.train, *layout.test))}  (in {folders} or directly)")
    lines.append("in these folders:")
    for base in places:
        lines += [f"  {base}", f"  {base / source.name}"]
    for base in places:
        for layout in source.layouts:
            for folder in dict.fromkeys(_folders(base, source, layout)):
                missing = _missing(folder, layout)
                if len(missing) < len(layout.train) + len(layout.test):
                    lines.append(f"{folder} is incomplete: it lacks {', '.join(missing)}.")
    lines += ["To get it:", *(f"  {how}" for how in source.how_to_get)]
    return "\n".join([*lines, "For files that are elsewhere, give the root or set WALKBACK_DATA."])


def _check_md5(path: Path, expected: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != expected:
        raise damaged(path, f"the published file with the md5 {expected}", f"one with {found}")


def damaged(where: Path | str, expected: str, found: str) -> FormatError:
    """Return the error for a file that is not what was published."""
    return FormatError(f"{where}: expected {expected}, but found {found}. Get a fresh copy of the data set.")


def _checked(x: np.ndarray, y: np.ndarray, source: Source, size: int, where: str) -> Split:
    shape = (size, *source.shape)
    if x.shape != shape or x.dtype != np.uint8:
        raise damaged(where, f"images {shape} uint8", f"{x.shape} {x.dtype}")
    if y.shape != (size,) or y.dtype.kind not in "iu":
        raise damaged(where, f"{size} integer labels", f"{y.shape} {y.dtype}")
    if int(y.min()) < 0 or int(y.max()) >= source.classes:
        raise damaged(where, f"labels from 0 to {source.classes - 1}", f"{int(y.min())} to {int(y.max())}")
    counts = np.bincount(y.astype(np.int64), minlength=source.classes)
    if counts.min() != counts.max():  # all three data sets have classes of exactly the same size
        raise damaged(
            where, f"{size // source.classes} samples of each class", f"between {counts.min()} and {counts.max()}"
        )
    return Split(torch.from_numpy(np.require(x, requirements=["C", "W"])), torch.from_numpy(y.astype(np.int64)))
