"""A folder is its own registry: what its modules hold of one type, in the order of its `place`."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol, TypeVar


class Placed(Protocol):
    """Something with a name and a place among its like."""

    @property
    def name(self) -> str: ...

    @property
    def place(self) -> int: ...


Kind = TypeVar("Kind", bound=Placed)


def in_folder(package: str, path: Iterable[str], kind: type[Kind]) -> dict[str, Kind]:
    """Return name -> object of all objects of a type in the modules of a package, by place, then by name."""
    modules = [import_module(f"{package}.{module.name}") for module in iter_modules(path)]
    objects = {id(value): value for module in modules for value in vars(module).values() if isinstance(value, kind)}
    return {each.name: each for each in sorted(objects.values(), key=lambda each: (each.place, each.name))}
