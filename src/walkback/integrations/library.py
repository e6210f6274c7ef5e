"""Libraries that are only needed by those who use them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import nn

from walkback.errors import AnatomyError, InputError, shown


def library(module: str, extra: str) -> Any:
    """The module, or an InputError that says how to install it.

    >>> library("json", "nothing").dumps([1])
    '[1]'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        top = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != top:
            raise  # it is there, and lacks something itself
        raise InputError(f"Expected {top} to be installed, but it is not: pip install 'walkback[{extra}]'.") from None


def part(model: nn.Module, network: str | None) -> nn.Module:
    """The network itself inside a module that wraps it for a trainer, by its dotted path."""
    if network is None:
        return model
    try:
        return model.get_submodule(network)
    except AttributeError:
        names = ", ".join(name for name, _ in model.named_children()) or "nothing"
        raise AnatomyError(
            f"Expected network to be the dotted path of a module inside {type(model).__name__}, which holds {names}, "
            f"but got {shown(network)}."
        ) from None
