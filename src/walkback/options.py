"""Checks of what networks and rules are given as options: each says what was expected and what arrived."""

from __future__ import annotations

from math import isfinite
from numbers import Integral, Real
from typing import Any

from walkback.errors import InputError


def whole_numbers(least: int = 1, /, **values: Any) -> None:
    """Refuse what is not a whole number of at least `least`.

    >>> whole_numbers(width=0)
    Traceback (most recent call last):
    walkback.errors.InputError: Expected width to be a whole number >= 1, but got 0.
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
            raise InputError(f"Expected {name} to be a whole number >= {least}, but got {value!r}.")


def positive(**values: Any) -> None:
    """Refuse what is not a finite number above 0."""
    for name, value in values.items():
        if not _is_number(value) or value <= 0:
            raise InputError(f"Expected {name} to be a finite number > 0, but got {value!r}.")


def not_negative(**values: Any) -> None:
    """Refuse what is not a finite number of at least 0."""
    for name, value in values.items():
        if not _is_number(value) or value < 0:
            raise InputError(f"Expected {name} to be a finite number >= 0, but got {value!r}.")


def true_or_false(**values: Any) -> None:
    """Refuse what is not a bool: any text, "no" too, would count as true."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise InputError(f"Expected {name} to be true or false, but got {value!r}.")


def images(net: str, shape: tuple[int, ...]) -> None:
    """Refuse inputs that are not images (C, H, W)."""
    if len(shape) != 3:
        raise InputError(
            f"Expected images (C, H, W) for {net}, but the data has inputs of shape {tuple(shape)}. "
            "Use resmlp or student for vectors, or data of images."
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)
