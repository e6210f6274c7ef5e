"""Checks of what networks and rules are given as options: each says what was expected and what arrived."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from inspect import signature
from math import isfinite
from numbers import Integral, Real
from typing import Any

from walkback.errors import InputError, shown


def whole_numbers(least: int = 1, /, **values: Any) -> None:
    """Refuse what is not a whole number of at least `least`.

    >>> whole_numbers(width=0)
    Traceback (most recent call last):
    walkback.errors.InputError: Expected width to be a whole number >= 1, but got 0.
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
            raise InputError(f"Expected {name} to be a whole number >= {least}, but got {shown(value)}.")


def positive(**values: Any) -> None:
    """Refuse what is not a finite number above 0."""
    for name, value in values.items():
        if not _is_number(value) or value <= 0:
            raise InputError(f"Expected {name} to be a finite number > 0, but got {shown(value)}.")


def not_negative(**values: Any) -> None:
    """Refuse what is not a finite number of at least 0."""
    for name, value in values.items():
        if not _is_number(value) or value < 0:
            raise InputError(f"Expected {name} to be a finite number >= 0, but got {shown(value)}.")


def true_or_false(**values: Any) -> None:
    """Refuse what is not a bool: any text, "no" too, would count as true."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise InputError(f"Expected {name} to be true or false, but got {shown(value)}.")


def images(net: str, shape: tuple[int, ...]) -> None:
    """Refuse inputs that are not images (C, H, W)."""
    if len(shape) != 3:
        raise InputError(
            f"Expected images (C, H, W) for {net}, but the data has inputs of shape {tuple(shape)}. "
            "Use resmlp or student for vectors, or data of images."
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)


def closest(word: str, known: Iterable[str]) -> str:
    """A hint for a typo, with a space before it; empty when nothing is close.

    >>> closest("primry", ["primary", "wide"])
    " Did you mean 'primary'?"
    """
    found = get_close_matches(word, list(known), 1)
    return f" Did you mean {found[0]!r}?" if found else ""


def options_of(made: Callable[..., Any]) -> list[str]:
    """The options of a network or rule: what its class takes, but for what the data decides.

    >>> options_of(lambda input_shape, classes, width=1: None)
    ['width']
    """
    parameters = signature(made).parameters.values()
    kinds = [p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD]
    return [name for name in kinds if name not in ("input_shape", "classes")]


def known_options(what: str, name: str, made: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Refuse an option that a network or rule does not have, and say which one was probably meant."""
    options = options_of(made)
    for key in given:
        if key not in options:
            told = f"only {', '.join(options)}" if options else "nor any other"
            raise InputError(
                f"Expected {what} that {name} knows, but: it has no {shown(key)}, {told}.{closest(key, options)}"
            )
