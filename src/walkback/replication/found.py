"""A folder is its own registry: what its modules hold of one type, in the order of its `place`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from walkback.registry import modules_of
from walkback.report.markdown import grid

Kind = TypeVar("Kind")  # something with a name, a line `about` it, and a `place` among its like


def in_folder(package: str, kind: type[Kind]) -> dict[str, Kind]:
    """Return name -> object of all objects of a type in the modules of a package, by place, then by name."""
    held = [value for module in modules_of(package) for value in vars(module).values() if isinstance(value, kind)]
    objects: Any = {id(value): value for value in held}  # one that another module imports is in both
    return {each.name: each for each in sorted(objects.values(), key=lambda each: (each.place, each.name))}


def markdown_list(shows: Mapping[str, str]) -> str:
    """Return the Markdown table of names and what each shows, as the documentation lists them."""
    return grid(("name", "what it shows"), list(shows.items()))
