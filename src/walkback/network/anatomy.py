"""Find the stem, blocks and readout of a network: nn.Module -> Anatomy.

The stream is read from the blocks while the network runs its own forward pass, so only `blocks` decides
what is measured. Stem and readout are named for the reader, and for rules that train them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from torch import nn

from walkback.errors import AnatomyError, shown
from walkback.network.stacks import (
    BY_ORDER,
    Stack,
    around,
    beside,
    find_stacks,
    guess,
    is_tie,
    lone_blocks,
    matching,
    type_name,
)
from walkback.network.values import children_of, named_modules_of

# The two spellings of the published interface: stem, terminal norm, head.
STEMS = ("embed", "patch_embed")
READOUTS = (("out_ln", "out_head"), ("norm", "head"))

Part = nn.Module | str

_FOLD = 8  # longer rows of blocks of one type are printed as first … last


@dataclass(frozen=True)
class Anatomy:
    """Where the residual stream of a network is read and written.

    Parts are modules or dotted paths; paths are looked up when the anatomy meets a model.

    Args:
        stem: the module that writes h_0, or several (None: not named; h_0 is what block 1 receives).
        blocks: the L blocks in the order they are called; block l writes h_l. A path may have wildcards:
            "layer?.*", "stages.*.layers.*".
        readout: terminal norm and head, in order.
        pool: where a (B, T, d) state is read: a token index, "mean", "readout" (the token each
            sample's own gradient shows), or None to find it from the gradient of the first batch.
        branch: True when a block returns the residual branch f, False when it returns the new state h + f,
            None to find out by running one batch.
        guesses: what `Anatomy.of` had to guess, in words; shown in the picture and in reports.

    >>> import torch, walkback as wb
    >>> net = torch.nn.Module()
    >>> net.enter, net.tower = torch.nn.Linear(4, 8), torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in "ab")
    >>> net.leave = torch.nn.Linear(8, 3)
    >>> print(wb.Anatomy.of(net, stem="enter", blocks="tower", readout="leave"))
    stem     enter    Linear  writes h_0
    block 1  tower.0  Linear  writes h_1
    block 2  tower.1  Linear  writes h_2
    readout  leave    Linear  reads h_2
    """

    stem: Part | tuple[Part, ...] | None
    blocks: tuple[Part, ...] | str
    readout: tuple[Part, ...] = ()
    pool: int | str | None = None
    branch: bool | None = None
    names: tuple[str, ...] = ()
    guesses: tuple[str, ...] = ()

    @staticmethod
    def of(
        model: nn.Module,
        *,
        stem: Part | Iterable[Part] | None = None,
        blocks: Part | Iterable[Part] | None = None,
        readout: Part | Iterable[Part] = (),
        pool: int | str | None = None,
        branch: bool | None = None,
    ) -> Anatomy:
        """Find the parts of a network; parts the caller names are used as they are.

        The published interface is recognised first (`embed` or `patch_embed`, `blocks`, and `out_head` or `head`,
        with `out_ln` or `norm` where there is a terminal norm), then the stacks of common libraries by their
        spelling, then the longest run of siblings of one type. AnatomyError where that is not enough.

        Args:
            model: any network, also compiled, data-parallel, sharded or with adapters.
            stem: module or dotted path, or a sequence of them.
            blocks: a container (module, dotted path, or a path with wildcards), or a sequence of blocks.
            readout: module or dotted path, or a sequence of them.
            pool: see `Anatomy`.
            branch: see `Anatomy`.
        """
        if not isinstance(model, nn.Module):
            raise AnatomyError(f"Expected model to be a torch.nn.Module, but got {type(model).__name__}.")
        before = _one_or_many(stem)
        after = (readout,) if isinstance(readout, (nn.Module, str)) else _sequence(readout, "readout")
        if blocks is not None:
            many = blocks if isinstance(blocks, (nn.Module, str)) else _sequence(blocks, "blocks")
            return Anatomy(before, _unfold(many), after, pool, branch).resolve(model)
        core = unwrap(model)
        if (found := _published(core)) is not None:
            the_stem, the_readout = found
            return Anatomy(before or the_stem, "blocks", after or the_readout, pool, branch).resolve(model)
        stacks = find_stacks(core)
        if not stacks or is_tie(stacks):
            raise AnatomyError(_cannot_read(core, stacks))
        paths = stacks[0].paths
        outer = around(core, paths[0], paths[-1])
        named = before is not None and after
        said = tuple(
            text
            for text in (guess(stacks, beside(core, stacks[0])), "" if named or not any(outer) else BY_ORDER)
            if text
        )
        found_stem = outer[0] if len(outer[0]) > 1 else outer[0][0] if outer[0] else None
        return Anatomy(before or found_stem, paths, after or outer[1], pool, branch, guesses=said).resolve(model)

    def resolve(self, model: nn.Module) -> Anatomy:
        """Return the same anatomy with every dotted path looked up in `model`."""
        core = unwrap(model)
        known = {id(module): name for name, module in named_modules_of(core)}
        raw = _unfold(_find(core, self.blocks)) if isinstance(self.blocks, str) else self.blocks
        if len(raw) == 1 and isinstance(raw[0], (nn.ModuleList, nn.ModuleDict)):
            raw = _unfold(raw[0])  # a list with the container in it; a lone nn.Sequential is one block
        blocks = tuple(_find(core, b) for b in raw)
        stems = tuple(_find(core, s) for s in self.stems)
        readout = tuple(_find(core, r) for r in self.readout)
        if not blocks:
            raise AnatomyError(
                "Expected at least one block, but the blocks given are empty. "
                'Name the container that holds them: Anatomy.of(model, blocks="path.to.blocks").'
            )
        for part in (*blocks, *readout, *stems):
            if id(part) not in known:
                raise AnatomyError(
                    f"Expected every part of the anatomy to belong to the model, but {type(part).__name__} "
                    "is not one of its modules. Take it from the model itself, or name it by its dotted path (a plain "
                    "Python list does not make its modules part of a model: use nn.ModuleList)."
                )
        twice = [known[id(b)] for i, b in enumerate(blocks) if any(b is other for other in blocks[:i])]
        if twice:
            raise AnatomyError(
                f"Expected distinct blocks, but {twice[0]} stands in the list twice. A block that is called "
                "several times writes several sites that hooks can't tell apart; give each site its own module."
            )
        if not (self.pool is None or self.pool in ("mean", "readout") or isinstance(self.pool, int)):
            raise AnatomyError(f'Expected pool to be a token index, "mean" or None, but got {shown(self.pool)}.')
        parts = (*stems, *blocks, *readout)
        return replace(
            self,
            stem=stems if len(stems) > 1 else stems[0] if stems else None,
            blocks=blocks,
            readout=readout,
            names=tuple(known[id(p)] or "(model)" for p in parts),
        )

    @property
    def stems(self) -> tuple[Part, ...]:
        """The stem as a tuple, whether it is none, one or several modules."""
        return () if self.stem is None else self.stem if isinstance(self.stem, tuple) else (self.stem,)

    def called(self, i: int) -> str:
        """Return what errors call the block at index i, once resolved: "block 3 (layers.2)"."""
        return f"block {i + 1} ({self.names[i + len(self.stems)]})"

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield (role, dotted path, type) of every part, in the order of the stream."""
        blocks = (self.blocks,) if isinstance(self.blocks, str) else self.blocks
        roles = [
            *("stem" for _ in self.stems),
            *(["blocks"] if isinstance(self.blocks, str) else [f"block {i}" for i in range(1, len(blocks) + 1)]),
            *("readout" for _ in self.readout),
        ]
        parts = (*self.stems, *blocks, *self.readout)
        for role, name, part in zip(roles, self.names or [""] * len(roles), parts):
            yield role, name, type_name(part) if isinstance(part, nn.Module) else str(part)

    def __str__(self) -> str:
        rows = _folded([(*row, site) for row, site in zip(self.rows(), self._sites())])
        if self.names and not self.stems:
            rows.insert(0, ("stem", "(none named)", "", "h_0 is what block 1 receives"))
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, (*widths, 0))).rstrip() for row in rows]
        return "\n".join([*lines, *(f"guessed: {text}" for text in self.guesses)])

    def _sites(self) -> list[str]:
        """Return what each part has to do with the stream; nothing is known of paths that wait for their model."""
        if isinstance(self.blocks, str):
            return [""] * (len(self.stems) + 1 + len(self.readout))
        depth = len(self.blocks)
        before = [""] * (len(self.stems) - 1) + ["writes h_0"] * bool(self.stems)
        after = [f"reads h_{depth}"] * bool(self.readout) + [""] * (len(self.readout) - 1)
        return [*before, *(f"writes h_{i}" for i in range(1, depth + 1)), *after]


Row = tuple[str, str, str, str]


def _folded(rows: list[Row]) -> list[Row]:
    """Long rows of blocks of one type in one container as the first, how many more, and the last."""
    out: list[Row] = []
    for _, run in groupby(rows, key=lambda row: (row[0].partition(" ")[0], row[1].rpartition(".")[0], row[2])):
        alike = list(run)
        if alike[0][0].startswith("block ") and len(alike) > _FOLD:
            (_, first, kind, start), (_, last, _, end) = alike[1], alike[-2]
            more = f"{len(alike) - 2} more: {first} … {last.rpartition('.')[2]}"
            alike = [alike[0], ("…", more, kind, f"{start} … {end.removeprefix('writes ')}"), alike[-1]]
        out += alike
    return out


def unwrap(model: nn.Module) -> nn.Module:
    """Return the network inside compile and data-parallel wrappers (same weights, no copy)."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DataParallel", "DistributedDataParallel"):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def _unfold(blocks: Part | tuple[Part, ...]) -> tuple[Part, ...] | str:
    """Unfold a container to its children; a path waits for a model; a lone block stays one block."""
    if isinstance(blocks, (nn.ModuleList, nn.Sequential)):
        return tuple(blocks)
    if isinstance(blocks, nn.ModuleDict):
        return tuple(blocks.values())
    if isinstance(blocks, nn.Module):
        return (blocks,)
    return blocks


def _one_or_many(stem: Part | Iterable[Part] | None) -> Part | tuple[Part, ...] | None:
    if stem is None or isinstance(stem, (nn.Module, str)):
        return stem
    if not isinstance(stem, Iterable):
        raise AnatomyError(f"Expected each part to be a module or a dotted path, but got {shown(stem)}.")
    return tuple(stem)


def _sequence(parts: Iterable[Part], role: str) -> tuple[Part, ...]:
    if not isinstance(parts, Iterable):
        raise AnatomyError(f"Expected {role} to be modules or dotted paths, but got {type(parts).__name__}.")
    return tuple(parts)


def _find(model: nn.Module, part: Part) -> nn.Module:
    if isinstance(part, nn.Module):
        return part
    if not isinstance(part, str):
        raise AnatomyError(f"Expected each part to be a module or a dotted path, but got {shown(part)}.")
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
        f"{_tree(model, find_stacks(model))}"
    )


def _counted(container: nn.Module) -> str:
    children = [child for _, child in children_of(container)]
    return f"{len(children)} x {' or '.join(dict.fromkeys(type_name(c) for c in children))}"


def _tree(model: nn.Module, stacks: Iterable[Stack] = (), limit: int = 40) -> str:
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


def _published(model: nn.Module) -> tuple[str, tuple[str, ...]] | None:
    """(stem, readout) of a network that has the published interface, else None."""
    stem = next((name for name in STEMS if isinstance(getattr(model, name, None), nn.Module)), None)
    readout = next((pair for pair in READOUTS if isinstance(getattr(model, pair[1], None), nn.Module)), ())
    present = tuple(name for name in readout if isinstance(getattr(model, name, None), nn.Module))
    container = getattr(model, "blocks", None)
    has_blocks = isinstance(container, nn.ModuleDict) or (
        isinstance(container, Iterable) and all(isinstance(b, nn.Module) for b in list(container))
    )
    return (stem, present) if has_blocks and stem is not None and present else None


def _keywords(model: nn.Module, first: str, last: str, blocks: str) -> str:
    """Return what to write in `Anatomy.of` for blocks `first` to `last` and what is around them."""
    before, after = around(model, first, last)
    named = (("stem", before), ("readout", after))
    parts = {role: f'"{paths[0]}"' if len(paths) == 1 else str(list(paths)) for role, paths in named if paths}
    order = {"stem": parts.get("stem"), "blocks": blocks, "readout": parts.get("readout")}
    return ", ".join(f"{role}={text}" for role, text in order.items() if text)


def _cannot_read(model: nn.Module, stacks: list[Stack]) -> str:
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
        f"Expected a network with one stack of blocks, but {type_name(model)} {why}.\n{_tree(model, stacks)}\n{saw}\n"
        f"Name the parts:\n  anatomy = walkback.Anatomy.of(model, {keywords})\n"
        "  walkback.diagnose(model, batches, anatomy=anatomy)"
    )
