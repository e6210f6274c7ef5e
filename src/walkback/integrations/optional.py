"""Libraries that are only needed by those who use them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from walkback.errors import InputError


def library(module: str, extra: str) -> Any:
    """Return the module, or raise an InputError that says how to install it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        top = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != top:
            raise  # it is there, and lacks something itself
        raise InputError(f"Expected {top} to be installed, but it is not: pip install 'walkback[{extra}]'.") from None
