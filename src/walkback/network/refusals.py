"""What is said of a network whose blocks can't be found: its modules, the candidates, and the line to write."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from walkback.network.stacks import Stack, around, lone_blocks, type_name
from walkback.network.values import children_of, named_modules_of


def _counted(container: nn.Module) -> str:
    children = [child for _, child in children_of(container)]
    return f"{len(children)} x {' or '.join(dict.fromkeys(type_name(c) for c in children))}"


def tree_of(model: nn.Module, stacks: Iterable[Stack] = (), limit: int = 40) -> str:
    """Return the modules of a network as an indented list, with what may be blocks marked."""
    marked = {stack.name() for stack in stacks}
    lines = [f"  {type_name(model)}"]
    for name, module in named_modules_of(model):
        if not name:
            continue
        depth = name.count(".") + 1
        mark = f"   <- {_counted(module)}: blocks?" if name in marked else ""
        lines.append(f"  {'  ' * depth}{name.rpartition('.')[2]}: {type_name(module)}{mark}")
    if len(lines) > limit:
        lines = [*lines[:limit], f"  … {len(lines) - limit} more modules"]
    return "\n".join(lines)


def _keywords(model: nn.Module, first: str, last: str, blocks: str) -> str:
    """Return what to write in `Anatomy.of` for blocks `first` to `last` and what is around them."""
    before, after = around(model, first, last)
    named = (("stem", before), ("readout", after))
    parts = {role: f'"{paths[0]}"' if len(paths) == 1 else str(list(paths)) for role, paths in named if paths}
    order = {"stem": parts.get("stem"), "blocks": blocks, "readout": parts.get("readout")}
    return ", ".join(f"{role}={text}" for role, text in order.items() if text)


def cannot_read(model: nn.Module, stacks: list[Stack]) -> str:
    """Return why no stack of blocks was found, or which could not be told apart."""
    alone = [] if stacks else lone_blocks(model)
    offered = [*map(str, stacks[:5]), *(f"{path} ({type_name(model.get_submodule(path))})" for path in alone[:5])]
    saw = f"Candidates for the blocks: {', '.join(offered) or 'none'}."
    if not stacks:
        why = "has no stack of blocks: no list of modules with weights, and no siblings of one type that have parts"
        keywords = 'blocks="path.to.blocks"'
        if alone:
            keywords = _keywords(model, alone[0], alone[0], f'["{alone[0]}"]')
            saw += (
                " A network of one block is measured when that is named. A block that is called again and again "
                "(shared layers, as in ALBERT) writes several sites that can't be told apart: give each call its own "
                "module, a copy."
            )
    else:
        equal = [s for s in stacks if (s.spelled, len(s)) == (stacks[0].spelled, len(stacks[0]))]
        why = f"has {len(equal)} stacks of {len(stacks[0])}, and nothing tells which of them carries the stream"
        keywords = _keywords(model, stacks[0].paths[0], stacks[0].paths[-1], stacks[0].keyword())
    return (
        f"Expected a network with one stack of blocks, but {type_name(model)} {why}.\n{tree_of(model, stacks)}\n{saw}\n"
        f"Name the parts:\n  anatomy = walkback.Anatomy.of(model, {keywords})\n"
        "  walkback.diagnose(model, batches, anatomy=anatomy)"
    )
