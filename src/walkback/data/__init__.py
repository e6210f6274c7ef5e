"""Data sets by name, in memory: uint8 images or float vectors, normalised on the device they are used on."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from walkback.data.dataset import Dataset, Split, checked
from walkback.data.source import Source, bases, look, read
from walkback.errors import InputError, shown
from walkback.registry import call_entry, gathered, is_entry, known_name
from walkback.tracing.untouched import drawn_from

EMBEDDED: dict[str, Callable[[], Dataset]] = gathered(__name__, "EMBEDDED")
SOURCES: dict[str, Source] = gathered(__name__, "SOURCES")

__all__ = ["EMBEDDED", "SOURCES", "Dataset", "Split", "inventory", "load", "root_of"]


def load(name: str, root: str | Path | None = None) -> Dataset:
    """Return a data set by name.

    Rows keep the order of the files, which may be sorted by class.

    Args:
        name: `teacher`, `teacher-products` and `teacher-linear` need no files; `cifar10`, `cifar100` and
            `fashion-mnist` are read from disk; `module:function` is called (with `root=` where one is given, from
            seed 0) and returns a Dataset.
        root: the data set's folder or its parent. Without it: the environment variable WALKBACK_DATA, then the
            usual cache folders. Embedded data sets take none.

    >>> load("teacher-linear").input_shape
    (64,)

    """
    if is_entry(name):
        with drawn_from(0):  # a run and its control load it in two processes, and must get the same
            data = call_entry(name) if root is None else call_entry(name, root=root)
        if not isinstance(data, Dataset):
            raise InputError(f"Expected {name} to return a walkback.data.Dataset, but got a {type(data).__name__}.")
        return checked(data)
    if known_name("data", name, (*EMBEDDED, *SOURCES)) in EMBEDDED:
        if root is not None:
            got = shown(str(root))
            raise InputError(f"Expected no root for {name}, which is embedded, but got {got}. Leave it out.")
        return EMBEDDED[name]()
    return read(SOURCES[name], root)


def root_of(name: str, root: str | Path | None) -> str | Path | None:
    """Return the root for this one of several data sets that share it: None for an embedded one.

    >>> root_of("teacher", "files"), root_of("cifar10", "files")
    (None, 'files')
    """
    return None if name in EMBEDDED else root


def inventory(root: str | Path | None = None) -> dict[str, dict[str, Any]]:
    """Return which data sets are here, by name: `found`, `where`, and `needs`, the modules that are not installed.

    Those that are not have `looked_in` and `how_to_get`. Only file names are looked at; `load` checks the contents.
    A folder of parquet files, given directly, is so taken for CIFAR-10 and CIFAR-100 alike.

    Args:
        root: as for `load`.

    >>> inventory()["teacher"]
    {'found': True, 'where': 'embedded', 'needs': []}
    """
    out: dict[str, dict[str, Any]] = {name: {"found": True, "where": "embedded", "needs": []} for name in EMBEDDED}
    for name, source in SOURCES.items():
        found = look(source, root)
        if found is None:
            places = [str(base) for base in bases(source, root)]
            out[name] = {"found": False, "where": None, "needs": [], "looked_in": places}
            out[name]["how_to_get"] = list(source.how_to_get)
        else:
            layout, folder = found
            missing = [module for module in layout.needs if find_spec(module) is None]
            out[name] = {"found": True, "where": str(folder), "needs": missing}
    return out
