"""What is said of a network whose blocks can't be found: its modules, the candidates, and the line to write."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from walkback.network.stacks import Stack, lone_blocks, type_name
from walkback.network.values import children_of, named_modules_of

_SHOWN = 40  # lines of a tree


def _counted(container: nn.Module) -> str:
    children = [child for _, child in children_of(container)]
    return f"{len(children)} x {' or '.join(dict.fromkeys(type_name(c) for c in children))}"


def tree_of(model: nn.Module, stacks: Iterable[Stack] = ()) -> str:
    """Return the modules of a network as an indented list, with what may be blocks marked."""
    marked = {stack.name() for stack in stacks}
    lines = [f"  {type_name(model)}"]
    for name, module in named_modules_of(model):
        if not name:
            continue
        depth = name.count(".") + 1
        mark = f"   <- {_counted(module)}: blocks?" if name in marked else ""
        lines.append(f"  {'  ' * depth}{name.rpartition('.')[2]}: {type_name(module)}{mark}")
    if len(lines) > _SHOWN:
        lines = [*lines[:_SHOWN], f"  … {len(lines) - _SHOWN} more modules"]
    return "\n".join(lines)


def cannot_read(model: nn.Module, stacks: list[Stack]) -> str:
    """Return why no stack of blocks was found, or which could not be told apart."""
    alone = [] if stacks else lone_blocks(model)
    offered = [*map(str, stacks[:5]), *(f"{path} ({type_name(model.get_submodule(path))})" for path in alone[:5])]
    saw = f"Candidates for the blocks: {', '.join(offered) or 'none'}."
    if not stacks:
        why = "has no stack of blocks: no list of modules with weights, and no siblings of one type that have parts"
        if alone:
            saw += " A network of one block is measured when that is named; of shared layers every call is a site."
    else:
        equal = [s for s in stacks if (s.spelled, len(s)) == (stacks[0].spelled, len(stacks[0]))]
        why = f"has {len(equal)} stacks of {len(stacks[0])}, and nothing tells which of them carries the stream"
    return (
        f"Expected a network with one stack of blocks, but {type_name(model)} {why}.\n{tree_of(model, stacks)}\n{saw}\n"
        "With a batch every candidate is tried. Or name the blocks yourself: Anatomy.of(model, blocks=…), by module, "
        "by dotted path, or as a list."
    )
