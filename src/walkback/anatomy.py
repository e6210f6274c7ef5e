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
        pool: where a (B, T, d) state is read: a token index, "mean", "readout" (the token each
            sample's own gradient shows), or None to find it from the gradient of the first batch.
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
            stem: module or dotted path; where only this is given, the rest is still looked for.
            blocks: a container (module or dotted path), or a sequence of blocks.
            readout: module or dotted path, or a sequence of them.
            pool: see `Anatomy`.
            branch: see `Anatomy`.
        """
        parts = (readout,) if isinstance(readout, (nn.Module, str)) else _sequence(readout, "readout")
        if blocks is not None:
            many = blocks if isinstance(blocks, (nn.Module, str)) else _sequence(blocks, "blocks")
            return Anatomy(stem, _unfold(many), parts, pool, branch).resolve(model)
        core = unwrap(model)
        found_stem = next((name for name in STEMS if isinstance(getattr(core, name, None), nn.Module)), None)
        found_readout = next((pair for pair in READOUTS if isinstance(getattr(core, pair[1], None), nn.Module)), ())
        present = tuple(n for n in found_readout if isinstance(getattr(core, n, None), nn.Module))
        container = getattr(core, "blocks", None)
        has_blocks = isinstance(container, nn.ModuleDict) or (
            isinstance(container, Iterable) and all(isinstance(b, nn.Module) for b in list(container))
        )
        the_stem = found_stem if stem is None else stem
        if not (has_blocks and the_stem is not None and (parts or present)):
            raise AnatomyError(_cannot_read(core, found_stem, has_blocks, present))
        return Anatomy(the_stem, "blocks", parts or present, pool, branch).resolve(model)

    def resolve(self, model: nn.Module) -> Anatomy:
        """The same anatomy with every dotted path looked up in `model`."""
        core = unwrap(model)
        known = {id(module): name for name, module in core.named_modules()}
        raw = _unfold(_find(core, self.blocks)) if isinstance(self.blocks, str) else self.blocks
        if len(raw) == 1 and isinstance(raw[0], (nn.ModuleList, nn.ModuleDict)):
            raw = _unfold(raw[0])  # a list with the container in it; a lone nn.Sequential is one block
        blocks = tuple(_find(core, b) for b in raw)
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
        blocks = (self.blocks,) if isinstance(self.blocks, str) else self.blocks
        roles = [
            *(["stem"] if self.stem is not None else []),
            *(["blocks"] if isinstance(self.blocks, str) else [f"block {i}" for i in range(1, len(blocks) + 1)]),
            *("readout" for _ in self.readout),
        ]
        parts = (*([self.stem] if self.stem is not None else []), *blocks, *self.readout)
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


def _sequence(parts: Iterable[Part], role: str) -> tuple[Part, ...]:
    if not isinstance(parts, Iterable):
        raise AnatomyError(f"Expected {role} to be modules or dotted paths, but got {type(parts).__name__}.")
    return tuple(parts)


def _find(model: nn.Module, part: Part) -> nn.Module:
    if isinstance(part, nn.Module):
        return part
    if not isinstance(part, str):
        raise AnatomyError(f"Expected each part to be a module or a dotted path, but got {part!r}.")
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
    """Containers that look like a stack of residual blocks: a list of modules, or children that share a type."""
    seen = []
    for name, module in model.named_modules():
        children = list(module.children())
        alike = len(children) >= 2 and len({type(c) for c in children}) == 1
        if name and (alike or (children and isinstance(module, nn.ModuleList))):
            seen.append((name, module))
    return sorted(seen, key=lambda item: -len(list(item[1].children())))


def _counted(container: nn.Module) -> str:
    children = list(container.children())
    kinds = sorted({type(c).__name__ for c in children})
    return f"{len(children)} x {' or '.join(kinds)}"


def _tree(model: nn.Module, limit: int = 40) -> str:
    marked = {id(module) for _, module in _candidates(model)}
    lines = [f"  {type(model).__name__}"]
    for name, module in model.named_modules():
        if not name:
            continue
        depth = name.count(".") + 1
        mark = f"   <- {_counted(module)}: blocks?" if id(module) in marked else ""
        lines.append(f"  {'  ' * depth}{name.rpartition('.')[2]}: {type(module).__name__}{mark}")
    if len(lines) > limit:
        lines = [*lines[:limit], f"  … {len(lines) - limit} more modules"]
    return "\n".join(lines)


def _longest_run(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The most neighbouring children of one type, where no container holds the blocks."""
    best: list[tuple[str, nn.Module]] = []
    for path, module in model.named_modules():
        run: list[tuple[str, nn.Module]] = []
        for name, child in module.named_children():
            alike = run if run and type(run[0][1]) is type(child) else []
            run = [*alike, (f"{path}.{name}" if path else name, child)]
            best = max(best, run, key=len)
    return best if len(best) > 1 else []


def _cannot_read(model: nn.Module, stem: str | None, has_blocks: bool, readout: tuple[str, ...]) -> str:
    missing = [
        *([] if stem else ["no stem (`embed` or `patch_embed`)"]),
        *([] if has_blocks else ["no `blocks`"]),
        *([] if readout else ["no head (`out_head` or `head`)"]),
    ]
    candidates, run = _candidates(model), _longest_run(model)
    saw = ", ".join(f"{name} ({_counted(m)})" for name, m in candidates[:5])
    if not candidates and run:
        saw = f"{run[0][0]} to {run[-1][0]} ({len(run)} x {type(run[0][1]).__name__})"
    first, last = ("blocks", "blocks") if has_blocks else ("", "")
    if not has_blocks and candidates:
        first = last = candidates[0][0]
    elif not has_blocks and run:
        first, last = run[0][0], run[-1][0]
    blocks = f'"{first or "path.to.blocks"}"' if first == last else str([name for name, _ in run])
    before, after = _siblings(model, first, last) if first else (None, None)
    named = {"stem": stem or before, "readout": readout[-1] if readout else after}
    quoted = {"stem": "", "blocks": blocks, "readout": ""} | {k: f'"{path}"' for k, path in named.items() if path}
    keywords = ", ".join(f"{role}={path}" for role, path in quoted.items() if path)
    return (
        f"Expected a network with a stem, blocks and a readout, but {type(model).__name__} has "
        f"{' and '.join(missing)}.\n{_tree(model)}\nCandidates for the blocks: {saw or 'none'}.\nName the parts:\n"
        f"  anatomy = walkback.Anatomy.of(model, {keywords})\n"
        "  walkback.diagnose(model, batches, anatomy=anatomy)"
    )


def _siblings(model: nn.Module, first: str, last: str) -> tuple[str | None, str | None]:
    """The first child before `first` and the last one after `last`, in the module that holds them."""
    above = first.rpartition(".")[0]
    names = [name for name, _ in (model.get_submodule(above) if above else model).named_children()]
    own, end = first.rpartition(".")[2], last.rpartition(".")[2]
    if own not in names or end not in names:
        return None, None
    before, after = names[: names.index(own)], names[names.index(end) + 1 :]
    path = f"{above}.{{}}" if above else "{}"
    return (path.format(before[0]) if before else None), (path.format(after[-1]) if after else None)
