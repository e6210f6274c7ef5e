"""Parts of a network by module or by dotted path, as a caller names them."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from walkback.errors import AnatomyError, shown
from walkback.network.refusals import tree_of
from walkback.network.stacks import find_stacks, matching

Part = nn.Module | str


def unfold(blocks: Part | tuple[Part, ...]) -> tuple[Part, ...] | str:
    """Unfold a container to its children; a path waits for a model; a lone block stays one block."""
    if isinstance(blocks, (nn.ModuleList, nn.Sequential)):
        return tuple(blocks)
    if isinstance(blocks, nn.ModuleDict):
        return tuple(blocks.values())
    if isinstance(blocks, nn.Module):
        return (blocks,)
    return blocks


def one_or_many(stem: Part | Iterable[Part] | None) -> Part | tuple[Part, ...] | None:
    """Return what was given for the stem: nothing, one part, or several."""
    if stem is None or isinstance(stem, (nn.Module, str)):
        return stem
    if not isinstance(stem, Iterable):
        raise AnatomyError(f"Expected each part to be a module or a dotted path, but got {shown(stem)}.")
    return tuple(stem)


def sequence(parts: Iterable[Part], role: str) -> tuple[Part, ...]:
    """Return parts that were given in a row."""
    if not isinstance(parts, Iterable):
        raise AnatomyError(f"Expected {role} to be modules or dotted paths, but got {type(parts).__name__}.")
    return tuple(parts)


def find_part(model: nn.Module, part: Part) -> nn.Module:
    """Return the module that a part is, or that a dotted path names."""
    if isinstance(part, nn.Module):
        return part
    if not isinstance(part, str):
        raise AnatomyError(f"Expected each part to be a module or a dotted path, but got {shown(part)}.")
    part = part.partition("#")[0]  # which of several calls it is
    if any(c in part for c in "*?[") and (found := matching(model, part)):
        return nn.ModuleList(module for _, module in found)
    try:
        return model.get_submodule(part)
    except AttributeError:
        pass
    value: object = model  # `blocks` may be a plain list of modules that are registered elsewhere
    for step in part.split("."):
        value = getattr(value, step, None)
    if isinstance(value, Iterable) and all(isinstance(b, nn.Module) for b in list(value)):
        return nn.ModuleList(list(value))
    raise AnatomyError(
        f"Expected {shown(part)} to be the dotted path of a module, but the model has none there. It has:\n"
        f"{tree_of(model, find_stacks(model))}"
    )
