"""Data sets by name, in memory: uint8 images or float vectors, normalised on the device they are used on."""

from __future__ import annotations

from pathlib import Path

from walkback.data.cifar import CIFAR10, CIFAR100
from walkback.data.dataset import Dataset, Split, checked
from walkback.data.fashion_mnist import FASHION_MNIST
from walkback.data.source import read
from walkback.data.teacher import teacher, teacher_linear
from walkback.entry import call_entry, is_entry
from walkback.errors import InputError

EMBEDDED = {"teacher": teacher, "teacher-linear": teacher_linear}
SOURCES = {source.name: source for source in (CIFAR10, CIFAR100, FASHION_MNIST)}

__all__ = ["EMBEDDED", "SOURCES", "Dataset", "Split", "load"]


def load(name: str, root: str | Path | None = None) -> Dataset:
    """A data set by name.

    Rows keep the order of the files, which may be sorted by class.

    Args:
        name: `teacher` and `teacher-linear` need no files; `cifar10`, `cifar100`, `fashion-mnist` are read from disk;
            `module:function` is called (with `root=` where one is given) and returns a Dataset.
        root: the data set's folder or its parent. Without it: the environment variable WALKBACK_DATA, then the
            usual cache folders.

    >>> load("teacher-linear").input_shape
    (64,)

    """
    if is_entry(name):
        data = call_entry(name) if root is None else call_entry(name, root=root)
        if not isinstance(data, Dataset):
            raise InputError(f"Expected {name} to return a walkback.data.Dataset, but got a {type(data).__name__}.")
        return checked(data)
    if name in EMBEDDED:
        return EMBEDDED[name]()
    if name in SOURCES:
        return read(SOURCES[name], root)
    known = ", ".join([*EMBEDDED, *SOURCES])
    raise InputError(f"Expected data to be one of {known} or module:function, but got {name!r}.")
