"""Find the stem, blocks and readout of a network: nn.Module -> Anatomy.

The stream is read from the blocks while the network runs its own forward pass, so only `blocks` decides
what is measured. Stem and readout are named for the reader, and for rules that train them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from torch import nn

from walkback.errors import AnatomyError

# The two spellings of the published interface: stem, terminal norm, head.
STEMS = ("embed", "patch_embed")
READOUTS = (("out_ln", "out_head"), ("norm", "head"))

Part = nn.Module | str


@dataclass(frozen=True)
class Anatomy:
    """Where the residual stream of a network is read and written.

    Parts are modules or dotted paths; paths are looked up when the anatomy meets a model.

    Args:
        stem: the module that writes h_0 (None: not named; h_0 is what block 1 receives).
        blocks: the L blocks in the order they are called; block l writes h_l.
        readout: terminal norm and head, in order.
        pool: where a (B, T, d) state is read: a token index, "mean", or None to find it from the gradient.
        branch: True when a block returns the residual branch f, False when it returns the new state h + f,
            None to find out by running one batch.

    >>> import torch, walkback as wb
    >>> net = torch.nn.Module()
    >>> net.enter, net.tower = torch.nn.Linear(4, 8), torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in "ab")
    >>> net.leave = torch.nn.Linear(8, 3)
    >>> print(wb.Anatomy.of(net, stem="enter", blocks="tower", readout="leave"))
    stem     enter    Linear
    block 1  tower.0  Linear
    block 2  tower.1  Linear
    readout  leave    Linear

    """

    stem: Part | None
    blocks: tuple[Part, ...] | str
    readout: tuple[Part, ...] = ()
    pool: int | str | None = None
    branch: bool | None = None
    names: tuple[str, ...] = ()

    @staticmethod
    def of(
        model: nn.Module,
        *,
        stem: Part | None = None,
        blocks: Part | Iterable[Part] | None = None,
        readout: Part | Iterable[Part] = (),
        pool: int | str | None = None,
        branch: bool | None = None,
    ) -> Anatomy:
        """Recognise the published interface, or take the parts the caller names.

        Args:
            model: has `embed` or `patch_embed`, `blocks`, and `out_head` or `head` (with `out_ln` or `norm`
                where there is a terminal norm), unless `blocks` is given.
            stem: module or dotted path.
            blocks: a container (module or dotted path), or a sequence of blocks.
            readout: module or dotted path, or a sequence of them.
            pool: see `Anatomy`.
            branch: see `Anatomy`.

        """
        if blocks is not None:
            many = blocks if isinstance(blocks, (nn.Module, str)) else tuple(blocks)
            parts = (readout,) if isinstance(readout, (nn.Module, str)) else tuple(readout)
            anatomy = Anatomy(stem, _unfold(many), parts, pool, branch)
            return anatomy.resolve(model)
        core = unwrap(model)
        found_stem = next((name for name in STEMS if isinstance(getattr(core, name, None), nn.Module)), None)
        found_readout = next((pair for pair in READOUTS if isinstance(getattr(core, pair[1], None), nn.Module)), None)
        container = getattr(core, "blocks", None)
        has_blocks = isinstance(container, Iterable) and all(isinstance(b, nn.Module) for b in list(container))
        if not (has_blocks and found_stem and found_readout):
            raise AnatomyError(_cannot_read(core, found_stem, has_blocks, found_readout))
        present = tuple(n for n in found_readout if isinstance(getattr(core, n, None), nn.Module))
        return Anatomy(found_stem, "blocks", present, pool, branch).resolve(model)

    def resolve(self, model: nn.Module) -> Anatomy:
        """The same anatomy with every dotted path looked up in `model`."""
        core = unwrap(model)
        known = {id(module): name for name, module in core.named_modules()}
        raw = (_find(core, self.blocks),) if isinstance(self.blocks, str) else self.blocks
        blocks = _unfold(raw[0]) if len(raw) == 1 and isinstance(raw[0], nn.Module) else tuple(raw)
        blocks = tuple(_find(core, b) for b in blocks)
        stem = None if self.stem is None else _find(core, self.stem)
        readout = tuple(_find(core, r) for r in self.readout)
        if not blocks:
            raise AnatomyError(
                "Expected at least one block, but the blocks given are empty. "
                'Name the container that holds them: Anatomy.of(model, blocks="path.to.blocks").'
            )
        for part in (*blocks, *readout, *(() if stem is None else (stem,))):
            if id(part) not in known:
                raise AnatomyError(
                    f"Expected every part of the anatomy to belong to the model, but {type(part).__name__} "
                    "is not one of its modules. Take it from the model itself, or name it by its dotted path."
                )
        twice = [known[id(b)] for i, b in enumerate(blocks) if any(b is other for other in blocks[:i])]
        if twice:
            raise AnatomyError(
                f"Expected distinct blocks, but {twice[0]} stands in the list twice. A block that is called "
                "several times writes several sites that hooks can't tell apart; give each site its own module."
            )
        if not (self.pool is None or self.pool == "mean" or isinstance(self.pool, int)):
            raise AnatomyError(f'Expected pool to be a token index, "mean" or None, but got {self.pool!r}.')
        parts = (*(() if stem is None else (stem,)), *blocks, *readout)
        return replace(
            self,
            stem=stem,
            blocks=blocks,
            readout=readout,
            names=tuple(known[id(p)] or "(model)" for p in parts),
        )

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """(role, dotted path, type) of every part, in the order of the stream."""
        roles = [
            *(["stem"] if self.stem is not None else []),
            *(f"block {i}" for i in range(1, len(self.blocks) + 1)),
            *("readout" for _ in self.readout),
        ]
        parts = (*([self.stem] if self.stem is not None else []), *self.blocks, *self.readout)
        for role, name, part in zip(roles, self.names or [""] * len(roles), parts):
            yield role, name, type(part).__name__ if isinstance(part, nn.Module) else str(part)

    def __str__(self) -> str:
        rows = list(self.rows())
        widths = [max(len(row[i]) for row in rows) for i in range(2)]
        return "\n".join(f"{a:{widths[0]}}  {b:{widths[1]}}  {c}".rstrip() for a, b, c in rows)


def unwrap(model: nn.Module) -> nn.Module:
    """The network inside compile and data-parallel wrappers (same weights, no copy)."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DataParallel", "DistributedDataParallel"):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def _unfold(blocks: Part | tuple[Part, ...]) -> tuple[Part, ...] | str:
    """A container becomes its children; a path waits for a model; a lone block stays one block."""
    if isinstance(blocks, (nn.ModuleList, nn.Sequential)):
        return tuple(blocks)
    if isinstance(blocks, nn.ModuleDict):
        return tuple(blocks.values())
    if isinstance(blocks, nn.Module):
        return (blocks,)
    return blocks


def _find(model: nn.Module, part: Part) -> nn.Module:
    if isinstance(part, nn.Module):
        return part
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
        f"Expected {part!r} to be the dotted path of a module, but the model has none there. It has:\n{_tree(model)}"
    )


def _candidates(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Containers whose children share a type: what a stack of residual blocks looks like."""
    seen = []
    for name, module in model.named_modules():
        children = list(module.children())
        if name and len(children) >= 2 and len({type(c) for c in children}) == 1:
            seen.append((name, module))
    return sorted(seen, key=lambda item: -len(list(item[1].children())))


def _tree(model: nn.Module, limit: int = 40) -> str:
    marked = {id(module) for _, module in _candidates(model)}
    lines = [f"  {type(model).__name__}"]
    for name, module in model.named_modules():
        if not name:
            continue
        depth = name.count(".") + 1
        mark = f"   <- {len(list(module.children()))} alike: blocks?" if id(module) in marked else ""
        lines.append(f"  {'  ' * depth}{name.rpartition('.')[2]}: {type(module).__name__}{mark}")
    if len(lines) > limit:
        lines = [*lines[:limit], f"  … {len(lines) - limit} more modules"]
    return "\n".join(lines)


def _cannot_read(model: nn.Module, stem: str | None, has_blocks: bool, readout: tuple[str, str] | None) -> str:
    missing = [
        *([] if stem else ["a stem (`embed` or `patch_embed`)"]),
        *([] if has_blocks else ["`blocks`, an iterable of modules"]),
        *([] if readout else ["a head (`out_head` or `head`)"]),
    ]
    candidates = _candidates(model)
    blocks = "blocks" if has_blocks else candidates[0][0] if candidates else "path.to.blocks"
    children = [name for name, _ in model.named_children() if name != blocks.partition(".")[0]]
    first = stem or (children[0] if children else "path.to.stem")
    last = readout[1] if readout else (children[-1] if children else "path.to.head")
    saw = (
        ", ".join(
            f"{name} ({len(list(m.children()))} x {type(next(iter(m.children()))).__name__})"
            for name, m in candidates[:5]
        )
        or "none"
    )
    return (
        f"Expected a network with a stem, blocks and a readout, but {type(model).__name__} has no "
        f"{' and no '.join(missing)}.\n{_tree(model)}\nCandidates for the blocks: {saw}.\nName the parts:\n"
        f'  anatomy = walkback.Anatomy.of(model, stem="{first}", blocks="{blocks}", readout="{last}")\n'
        "  walkback.diagnose(model, batches, anatomy=anatomy)"
    )
