"""A folder is its own registry: what its modules hold of one type, in the order of its `place`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol, TypeVar


class Placed(Protocol):
    """Something with a name, a line about it, and a place among its like."""

    @property
    def name(self) -> str: ...

    @property
    def about(self) -> str: ...

    @property
    def place(self) -> int: ...


Kind = TypeVar("Kind", bound=Placed)


def in_folder(package: str, path: Iterable[str], kind: type[Kind]) -> dict[str, Kind]:
    """Return name -> object of all objects of a type in the modules of a package, by place, then by name."""
    modules = [import_module(f"{package}.{module.name}") for module in iter_modules(path)]
    objects = {id(value): value for module in modules for value in vars(module).values() if isinstance(value, kind)}
    return {each.name: each for each in sorted(objects.values(), key=lambda each: (each.place, each.name))}


def markdown_list(things: Mapping[str, Placed]) -> str:
    """Return the Markdown table of names and what each shows, as the documentation lists them."""
    return "\n".join(["| name | what it shows |", "|---|---|", *(f"| {n} | {t.about} |" for n, t in things.items())])
