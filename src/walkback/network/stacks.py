"""Which modules look like blocks: nn.Module -> candidates, best first; long, since it has each way of storing them.

Two readings, in this order. *Spellings*: the dotted patterns by which libraries name their stacks. *Runs*: siblings of
one kind, which is what a stack of blocks is whatever its name. Only the structure is looked at; the first batch shows
whether the network really calls them one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from walkback.network.values import children_of, named_modules_of, parameters_of

# A container may hang anywhere in a model; `*` is any child, `?` one character. Stages come before plain stacks, since
# a stage looks like a block from outside.
SPELLINGS = (
    "stages.*.blocks.*",  # timm ConvNeXt, RegNet
    "stages.*.layers.*",  # Hugging Face ResNet, ConvNext, RegNet
    "layers.*.blocks.*",  # Swin
    "layer[0-9].*",  # torchvision and timm ResNet: layer1 … layer4
    "blocks.*",  # timm ViT and Mixer
    "layers.*",  # nn.TransformerEncoder, torchvision ViT, Llama, Hugging Face ViT
    "layer.*",  # BERT
    "block.*",  # T5
    "h.*",  # GPT-2
)
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
UNCALLED = (nn.ModuleList, nn.ModuleDict)  # they have no forward, so they can't be blocks

_FOLD = 8  # longer rows of numbered blocks are written as a range


@dataclass(frozen=True)
class Stack:
    """Modules that may be the blocks, in the order they are registered."""

    paths: tuple[str, ...]  # the dotted path of each
    kind: str  # what they are, for the reader
    pattern: str  # the dotted pattern that names them all; "" where there is none
    spelled: bool  # found by a known spelling, not as a run of siblings

    def __len__(self) -> int:
        return len(self.paths)

    def __str__(self) -> str:
        return f"{self.name()} ({len(self)} x {self.kind})"

    @property
    def uniform(self) -> bool:
        """Blocks of one type?"""
        return " or " not in self.kind

    def name(self) -> str:
        """Return where the blocks are: their container, their pattern, or the first and the last."""
        if not self.pattern:
            return f"{self.paths[0]} to {self.paths[-1]}"
        container = self.pattern.removesuffix(".*")
        return container if not set("*?[") & set(container) else self.pattern

    def keyword(self) -> str:
        """Return what to write after `blocks=`."""
        if self.pattern:
            return f'"{self.name()}"'
        above, _, first = self.paths[0].rpartition(".")
        dot = f"{above}." if above else ""
        if len(self) > _FOLD and first.isdigit():
            last = int(first) + len(self)
            if self.paths == tuple(f"{dot}{i}" for i in range(int(first), last)):
                return f'[f"{dot}{{i}}" for i in range({first}, {last})]'
        return str(list(self.paths))


def matching(model: nn.Module, pattern: str) -> list[tuple[str, nn.Module]]:
    """Return (path, module) of everything a dotted pattern names, in the order of registration.

    >>> net = nn.ModuleDict({"layer1": nn.Sequential(nn.ReLU()), "layer2": nn.Sequential(nn.ReLU(), nn.ReLU())})
    >>> [path for path, _ in matching(net, "layer?.*")]
    ['layer1.0', 'layer2.0', 'layer2.1']
    """
    modules = [("", model)]
    for step in pattern.split("."):
        modules = [
            (below, child)
            for path, module in modules
            for below, child in _children(path, module)
            if fnmatchcase(below.rpartition(".")[2], step)
        ]
    return modules


def original(module: nn.Module) -> nn.Module:
    """Return the module inside `torch.compile`."""
    inner = getattr(module, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else module


def type_name(module: nn.Module) -> str:
    """Return the class a user wrote: `fully_shard` puts its own, FSDP…, on top, and compile a module around it."""
    return next(c.__name__ for c in type(original(module)).__mro__ if not c.__module__.startswith(_SHARDING))


_SHARDING = "torch.distributed.fsdp"


def find_stacks(model: nn.Module) -> list[Stack]:
    """Return candidates for the blocks of `model`, best first: spelled ones, then runs; longer ones first."""
    spelled, runs = list(_spelled(model)), list(_runs(model))
    stacks = _distinct([*spelled, *runs])
    nested = list(_nested(stacks))
    holders = {outer for inner, outer, within in nested if _holds_the_stack(outer, inner, within)}
    details = {inner for inner, outer, within in nested if outer not in holders and within == 1}
    kept = [s for s in stacks if s not in holders | details]
    weights = {s: sum(p.numel() for path in s.paths for p in parameters_of(model.get_submodule(path))) for s in kept}
    kept = [s for s in kept if not any(_outweighs(other, s, weights) for other in kept)]
    longest = max((len(s) for s in kept), default=0)
    return sorted(kept, key=lambda s: (not s.spelled or len(s) == 1 < longest, -len(s)))


def _outweighs(other: Stack, stack: Stack, weights: Mapping[Stack, int]) -> bool:
    """Return whether another spelled stack is as good a candidate, but with most of the weights: a position encoding
    may be a longer stack than the network.
    """
    return other.spelled and 2 * len(other) > len(stack) and len(other) > 1 and weights[other] > 4 * weights[stack]


def is_tie(stacks: list[Stack]) -> bool:
    """Return whether the two best candidates are equally good."""
    return len(stacks) > 1 and len({(stack.spelled, len(stack)) for stack in stacks[:2]}) == 1


def beside(model: nn.Module, stack: Stack) -> list[str]:
    """Return modules next to a stack, in its container, that could be blocks too: of a class that is there twice."""
    above = stack.paths[0].rpartition(".")[0]
    parent = model.get_submodule(above)
    if stack.pattern or not isinstance(parent, nn.Sequential):
        return []
    children = _children(above, parent)
    kinds = [_kind(child) for _, child in children]
    others = [(path, child) for path, child in children if path not in stack.paths and _may_be_block(child)]
    return [f"{path} ({type_name(child)})" for path, child in others if kinds.count(_kind(child)) > 1]


def lone_blocks(model: nn.Module) -> list[str]:
    """Return paths of what may be the only block of a network without a stack: lists of one, or what is between layers.

    >>> lone_blocks(nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 2)))
    ['1']
    """
    lists = [_children(path, m) for path, m in named_modules_of(model) if isinstance(m, UNCALLED)]
    single = [path for children in lists if len(children) == 1 for path, m in children if _may_be_block(m)]
    if single:
        return single
    path, module = "", model
    while True:
        children = [(p, m) for p, m in _children(path, module) if any(True for _ in parameters_of(m))]
        if len(children) != 1:
            return [p for p, m in children if _may_be_block(m) and not isinstance(m, UNCALLED)]
        path, module = children[0]


def candidates(model: nn.Module) -> list[tuple[str, ...]]:
    """Return the paths of all that may be the blocks and is worth a try, the largest first.

    Beside stacks and lone blocks: lists of single layers, what stands at one place in each list of a list, and stacks
    of one length together, since a run shows in which order they are called.
    """
    groups = [stack.paths for stack in find_stacks(model)]
    groups += [(path,) for path in lone_blocks(model)]
    for path, module in named_modules_of(model):
        children = _children(path, module) if isinstance(module, UNCALLED) else []
        if len(children) > 1 and all(_has_weights(m) and type(m) not in UNCALLED for _, m in children):
            groups.append(tuple(p for p, _ in children))
        if len(children) > 1 and all(type(m) in UNCALLED for _, m in children):
            rows = [_children(p, m) for p, m in children]
            columns = [tuple(row[k][0] for row in rows) for k in range(min(map(len, rows)))]
            groups += columns
    single = [paths for paths in dict.fromkeys(groups) if all(_has_weights(model.get_submodule(p)) for p in paths)]
    for length in {len(paths) for paths in single} - {1}:
        equal = [
            paths
            for paths in single
            if len(paths) == length and all(_may_be_block(model.get_submodule(p)) for p in paths)
        ]
        if len(equal) > 1 and len({path for paths in equal for path in paths}) == length * len(equal):
            single.append(tuple(path for row in zip(*equal) for path in row))
    weights = {
        paths: sum(p.numel() for path in paths for p in parameters_of(model.get_submodule(path))) for paths in single
    }
    return sorted(single, key=lambda paths: -weights[paths])


def keyword_of(paths: tuple[str, ...]) -> str:
    """Return what to write after `blocks=` for blocks at these paths."""
    return Stack(paths, "", "", False).keyword()


def _has_weights(module: nn.Module) -> bool:
    return any(p.ndim > 1 for p in parameters_of(module))


def guess(stacks: list[Stack], around_it: list[str]) -> str:
    """Return what was guessed in taking the first of `stacks`, "" if nothing was; `around_it` could be blocks too."""
    first, others = stacks[0], [s for s in stacks[1:] if s.spelled or len(s) >= len(stacks[0])]
    if first.spelled and not others:
        return ""
    instead = f"; there are also {', '.join(map(str, others))}" if others else ""
    if around_it:
        instead += f"; {', '.join(around_it)} beside them went to stem and readout"
    how = "the longest stack" if first.spelled else f"the longest run of {'one type' if first.uniform else 'modules'}"
    return f"the blocks are {how}, {first}{instead}. To name them: Anatomy.of(model, blocks={first.keyword()})"


BY_ORDER = "stem and readout are what is registered before and after the blocks (no number depends on them)"


def around(model: nn.Module, paths: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return paths of the modules with parameters registered before the first block and after the last, in order.

    What stands before the first in a ModuleList where others stand between the blocks is part of a step: a norm.
    """
    first, last = paths[0], paths[-1]
    before, after = list[str](), list[str]()
    for block, names, behind in ((first, before, False), (last, after, True)):
        steps = block.split(".")
        levels: list[list[str]] = []
        for depth, step in enumerate(steps):
            above = ".".join(steps[:depth])
            siblings = [name for name, _ in children_of(model.get_submodule(above))]
            at = siblings.index(step)
            part = siblings[at + 1 :] if behind else siblings[:at]
            levels.append([f"{above}.{name}" if above else name for name in part])
        for level in reversed(levels) if behind else levels:
            names += [path for path in level if any(True for _ in parameters_of(model.get_submodule(path)))]
    holder = first.rpartition(".")[0]
    within = [path for path, _ in _children(holder, model.get_submodule(holder))]
    if isinstance(model.get_submodule(holder), nn.ModuleList) and last in within:
        gaps = {*within[within.index(first) : within.index(last)]} - {*paths}
        before = [path for path in before if not gaps or path not in within]
    return tuple(before), tuple(after)


# -- the two readings --------------------------------------------------------------------------------------


def _spelled(model: nn.Module) -> Iterator[Stack]:
    for prefix, parent in named_modules_of(model):
        for spelling in SPELLINGS:
            matches = matching(parent, spelling)
            while matches and all(isinstance(m, UNCALLED) for _, m in matches):
                spelling += ".*"
                matches = matching(parent, spelling)
            blocks = [m for _, m in matches]
            holders = [m for _, m in matching(parent, spelling.removesuffix(".*"))]
            if (
                not blocks
                or not all(_may_be_block(m) for m in blocks)
                or not _is_stack(holders, blocks, ".*." in spelling)
            ):
                continue
            dot = f"{prefix}." if prefix else ""
            yield Stack(tuple(dot + path for path, _ in matches), _kinds(blocks), dot + spelling, True)
            break


def _is_stack(holders: list[nn.Module], blocks: list[nn.Module], staged: bool) -> bool:
    """Return whether blocks are of one kind in containers, or of several in lists or stages: these are one stack."""
    alike = len({_kind(b) for b in blocks}) == 1 or (staged and all(map(_has_weights, blocks)))
    return all(isinstance(holder, CONTAINERS if alike else UNCALLED) for holder in holders)


def _runs(model: nn.Module) -> Iterator[Stack]:
    for prefix, parent in named_modules_of(model):
        groups: dict[object, list[tuple[str, nn.Module]]] = {}
        for path, child in _children(prefix, parent):
            groups.setdefault(_kind(child), []).append((path, child))
        if isinstance(parent, (nn.Sequential, nn.ModuleList)):
            yield from _mixed(prefix, _children(prefix, parent))
            yield from _in_lists(prefix, parent)
            yield from _in_stages(prefix, parent)
        for members in groups.values():
            yield from _in_siblings(parent, members)
            unfolded = [block for path, module in members for block in _unfolded(path, module)]
            blocks = [m for _, m in unfolded]
            if len(unfolded) > 1 and all(_may_be_block(m) for m in blocks):
                whole = prefix and isinstance(parent, CONTAINERS) and unfolded == members == _children(prefix, parent)
                yield Stack(tuple(path for path, _ in unfolded), _kinds(blocks), f"{prefix}.*" if whole else "", False)


def _mixed(prefix: str, children: list[tuple[str, nn.Module]]) -> Iterator[Stack]:
    """Yield blocks of several types in turn: neighbours, each with a sibling of the same type and shapes of weights."""
    marks = [(_kind(m), tuple(p.shape for p in parameters_of(m))) if _may_be_block(m) else None for _, m in children]
    run: list[int] = []
    for i, mark in enumerate([*marks, None]):
        if mark is not None and marks.count(mark) > 1:
            run.append(i)
            continue
        blocks = [children[j] for j in run]
        if len({marks[j] for j in run}) > 1:
            pattern = f"{prefix}.*" if prefix and blocks == children else ""
            yield Stack(tuple(path for path, _ in blocks), _kinds(m for _, m in blocks), pattern, False)
        run = []


def _in_lists(prefix: str, parent: nn.Module) -> Iterator[Stack]:
    """Yield blocks that stand in each list of a list, as many in all, beside modules that are none (norms, sums)."""
    lists = _children(prefix, parent)
    if len(lists) < 2 or not all(type(m) in UNCALLED for _, m in lists):
        return
    inside = [[(path, m) for path, m in _children(name, m) if _may_be_block(m)] for name, m in lists]
    if inside[0] and len({len(row) for row in inside}) == 1:
        blocks = [block for row in inside for block in row]
        yield Stack(tuple(path for path, _ in blocks), _kinds(m for _, m in blocks), "", False)


def _in_stages(prefix: str, parent: nn.Module) -> Iterator[Stack]:
    """Yield blocks of several types in stages, as in MobileNets: Sequentials of blocks, and nothing else is there."""
    stages = [_children(name, m) for name, m in _children(prefix, parent) if type(m) is nn.Sequential]
    rows = [[_is_layers_in_a_row(m) for _, m in stage] for stage in stages]
    led = all(len(row) > 1 and row[0] and not any(row[1:]) for row in rows)  # by what leads from stage to stage
    blocks = [block for stage in stages for block in stage[led:]]
    only = prefix and len(stages) > 1 and len(stages) == len(_children(prefix, parent)) and all(stages)
    if only and all(_may_be_block(m) and _has_weights(m) and type(m) not in CONTAINERS for _, m in blocks):
        pattern = "" if led else f"{prefix}.*.*"
        yield Stack(tuple(path for path, _ in blocks), _kinds(m for _, m in blocks), pattern, False)


def _is_layers_in_a_row(module: nn.Module) -> bool:
    """Return whether a module runs layers of torch's own one after the other: it has no skip."""
    row = isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward
    return row and all(type(m).__module__.startswith("torch.nn.modules") for _, m in children_of(module))


def _in_siblings(parent: nn.Module, siblings: list[tuple[str, nn.Module]]) -> Iterator[Stack]:
    """Yield blocks of stages that are attributes and hold nothing else, as in wide ResNets: block1.layer.0, …"""
    if isinstance(parent, CONTAINERS) or len(siblings) < 2 or any(type(m) in CONTAINERS for _, m in siblings):
        return
    inside = [_children(path, m) for path, m in siblings]
    if not all(len(parts) == 1 and type(parts[0][1]) in (nn.Sequential, nn.ModuleList) for parts in inside):
        return
    rows = [_children(*parts[0]) for parts in inside]
    blocks = [m for row in rows for _, m in row]
    if all(len(row) > 1 for row in rows) and len(set(map(_kind, blocks))) == 1 and all(map(_may_be_block, blocks)):
        yield Stack(tuple(path for row in rows for path, _ in row), _kinds(blocks), "", True)


def _children(prefix: str, parent: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(f"{prefix}.{name}" if prefix else name, child) for name, child in children_of(parent)]


def _unfolded(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Return the blocks of a stage: of a list always, of a Sequential if all its children are blocks of one kind."""
    children = _children(path, module)
    stage = isinstance(module, nn.Sequential) and len({_kind(c) for _, c in children}) == 1
    if isinstance(module, UNCALLED) or (stage and all(_may_be_block(c) for _, c in children)):
        for name, child in children:
            yield from _unfolded(name, child)
    else:
        yield path, module


def _may_be_block(module: nn.Module) -> bool:
    """Return whether a module has weights and is more than one layer of torch's own."""
    if type(module) in UNCALLED:
        return False
    primitive = type(module).__module__.startswith("torch.nn.modules") and not any(children_of(module))
    return not primitive and any(True for _ in parameters_of(module))


def _kind(module: nn.Module) -> object:
    """Return what siblings in one stack have in common: the class, and for containers the kinds inside."""
    module = original(module)
    if type(module) in CONTAINERS:
        return type(module), frozenset(_kind(child) for _, child in children_of(module))
    return next(c for c in type(module).__mro__ if not c.__module__.startswith(_SHARDING))


def _kinds(blocks: Iterable[nn.Module]) -> str:
    return " or ".join(dict.fromkeys(type_name(b) for b in blocks))


# -- which candidates are left -----------------------------------------------------------------------------


def _distinct(stacks: list[Stack]) -> list[Stack]:
    """Return the stacks without those whose blocks are all in one that is spelled or longer."""
    out: list[Stack] = []
    having: dict[str, list[frozenset[str]]] = {}
    for stack in sorted(stacks, key=lambda s: (-len(s), not s.spelled, not s.pattern)):
        own = frozenset(stack.paths)
        if not any(own <= other for other in having.get(stack.paths[0], ())):
            out.append(stack)
            for path in own:
                having.setdefault(path, []).append(own)
    return out


def _nested(stacks: list[Stack]) -> Iterator[tuple[Stack, Stack, int]]:
    """Return (inner, outer, in how many blocks of the outer one) for stacks that lie in blocks of another."""
    owners: dict[str, list[Stack]] = {}
    for stack in stacks:
        for path in stack.paths:
            owners.setdefault(path, []).append(stack)
    for inner in stacks:
        homes: dict[Stack, list[str]] = {}
        for path in inner.paths:
            while path := path.rpartition(".")[0]:
                for outer in owners.get(path, ()):
                    homes.setdefault(outer, []).append(path)
        for outer, found in homes.items():
            if len(found) == len(inner):
                yield inner, outer, len(set(found))


def _holds_the_stack(outer: Stack, inner: Stack, within: int) -> bool:
    """Return whether `outer`, of no known name, holds a spelled stack: as stages, if it reaches over several, or whole.

    What else lies in one block of another stack are experts, heads, the layers of a block.
    """
    return not outer.spelled and inner.spelled and (within > 1 or len(inner) > len(outer))
