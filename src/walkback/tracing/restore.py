"""Putting holders back as they were: each is written only where something else stands in it by now."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from copyreg import _slotnames  # type: ignore[attr-defined]  # what copy and pickle ask for __slots__
from operator import is_
from typing import Any

import numpy as np


class Attributes(dict[str, Any]):
    """The attributes that an object had."""


class Slots(dict[str, Any]):
    """Those that it had in `__slots__`."""


def _same(now: Iterable[Any], was: Iterable[Any]) -> bool:
    return all(map(is_, now, was))


def is_same(known: dict[Any, Any], held: dict[Any, Any]) -> bool:
    """Return whether a dict has the very keys and values that it held, in their order."""
    return len(known) == len(held) and (not held or (_same(known, held) and _same(dict.values(known), held.values())))


def put_dict(known: dict[Any, Any], held: dict[Any, Any]) -> None:
    """Give a dict the keys and values that it held, in their order."""
    if is_same(known, held):
        return
    # Not the methods of a class of one's own, which may do more; an OrderedDict has its order elsewhere.
    own: Any = OrderedDict if isinstance(known, OrderedDict) else dict
    own.clear(known)
    for key, value in held.items():
        own.__setitem__(known, key, value)


def put_attributes(thing: Any, held: Attributes) -> None:
    """Give an object the attributes that it had."""
    put_dict(vars(thing), held)


def put_slots(thing: Any, held: Slots) -> None:
    """Give an object what it had in its slots."""
    for name in _slotnames(type(thing)):
        if name in held and getattr(thing, name, held) is not held[name]:
            object.__setattr__(thing, name, held[name])
        elif name not in held and hasattr(thing, name):
            object.__delattr__(thing, name)


def put_class(thing: Any, held: type) -> None:
    """Give an object its class."""
    if type(thing) is not held:
        thing.__class__ = held


def put_shared(cls: type, held: dict[str, Any]) -> None:
    """Give a class the attributes that its objects share."""
    for name, value in held.items():
        if vars(cls).get(name, held) is not value:
            setattr(cls, name, value)


def put_items(known: Any, held: tuple[Any, ...]) -> None:
    """Give a list or a deque its items, by the methods of that class and not of one made of it."""
    if len(known) != len(held) or not _same(known, held):
        own: Any = next(cls for cls in type(known).__mro__ if cls.__module__ in ("builtins", "collections"))
        own.clear(known)
        own.extend(known, held)


def put_set(known: set[Any], held: frozenset[Any]) -> None:
    """Give a set its members."""
    if len(known) != len(held) or {id(v) for v in known} != {id(v) for v in held}:
        set.clear(known)
        set.update(known, held)


def put_array(array: np.ndarray, held: np.ndarray) -> None:
    """Give an array its numbers."""
    if array.shape == held.shape and array.tobytes() != held.tobytes():
        array[...] = held


def put_nothing(holders: list[Any], _: Any) -> None:
    """Empty several holders that were empty."""
    if any(holders):
        for holder in holders:
            holder.clear()
