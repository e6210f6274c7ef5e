"""The states of a network whose steps are made outside of its blocks: session, batch -> Anatomy.

Where between the blocks there is more than a sum (a scale, a norm, the input once more, a branch and a stream that are
handed on side by side), a state is what all ways lead through: the lowest tensor that everything the blocks made so far
passes on its way to the loss. Cutting it cuts all of them, so its gradient is that of the stream. The stem's output
alone may go past it, into later steps. Where blocks end in the same operations each, and the last one too, the state
is what those make.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from walkback.network.anatomy import Anatomy
from walkback.network.batch import Inputs, mapped
from walkback.network.share import share_of
from walkback.network.steps import Steps
from walkback.network.values import handed_tensors, logits_of, members, stream_of
from walkback.tracing.calls import overheard
from walkback.tracing.derived import unseen_edge
from walkback.tracing.dominators import Ways, reached
from walkback.tracing.graph import between, goes_through_weight, is_residual, nodes_between
from walkback.tracing.links import edges_of
from walkback.tracing.numbered import Places

if TYPE_CHECKING:
    from walkback.tracing.session import Tracer

_MOST = 50_000  # nodes of a graph that is looked at


@dataclass(frozen=True)
class _Call:
    """One call of a block: what it was given, and the nodes of all that it made and the loss depends on."""

    module: nn.Module
    stream: Any  # None: without a graph
    made: frozenset[Any]
    state: Any  # what it returned first


def met(tracer: Tracer, first: Sequence[nn.Module], second: Sequence[nn.Module], x: Inputs, y: Tensor) -> str:
    """Return how a second stack of blocks meets a first, with the blocks of both in `tracer.anatomy`.

    "apart": neither depends on the other; "turns": the two take turns; "follows": it runs after the first, and its
    first block is given what comes from there; "attends": it runs after the first, and only other inputs of its blocks
    come from there; "": otherwise.
    """
    seen = _Seen.of(tracer, x, y)
    if seen is None:
        return ""
    one, two = ([c for c in seen.calls if any(c.module is m for m in stack)] for stack in (first, second))
    made, beyond = one[-1].state, two[-1].state
    if made not in reached(beyond, ()):
        return "" if beyond in reached(made, ()) else "apart"
    turns = [any(call.module is m for m in second) for call in seen.calls]
    if turns != sorted(turns):
        return "turns"
    under = set() if two[0].stream is None else {two[0].stream} | reached(two[0].stream, ())
    if made in under:
        return "follows"
    return "" if any(call.made & under for call in one) else "attends"


def find_steps(tracer: Tracer, x: Inputs, y: Tensor) -> Anatomy | None:
    """Return where the states between the blocks of `tracer.anatomy` are read; None where these are no chain."""
    seen = _Seen.of(tracer, x, y)
    if seen is None or any(call.stream is None for call in seen.calls):
        return None
    found = [chain for stem in seen.stems() if (chain := seen.chain(stem)) is not None]
    shaped = [chain for chain in found if seen.shape(chain.states[0]) == seen.shape(chain.states[1])]
    if not found:
        return None
    chain = (shaped or found)[0]
    old = tracer.anatomy
    names = dict(zip(map(id, old.blocks), old.names[len(old.stems) :]))
    paths = tuple(names[id(call.module)].partition("#")[0] for call in chain.last)
    modules = tuple({id(call.module): call.module for call in seen.calls}.values())
    named = Anatomy(old.stem, paths, old.readout, old.pool, branch=False, guesses=old.guesses)
    steps = Steps(modules, chain.injected, chain.gaps, seen.count)
    numbers = tuple(seen.numbers[spot] for spot in map(seen.spot, chain.states))
    resolved = replace(named, sums=numbers, steps=steps).resolve(tracer.model)
    return replace(resolved, share=share_of(tracer.model, modules))


@dataclass(frozen=True)
class _Chain:
    """States in the order of the stream, the last call of each step, and what is said of them."""

    states: tuple[Any, ...]  # nodes
    last: tuple[_Call, ...]
    injected: bool
    gaps: tuple[int, ...]


@dataclass(frozen=True)
class _Seen:
    """One pass: its calls of blocks, the ways down from its loss, and the tensors that it made."""

    calls: tuple[_Call, ...]
    ways: Ways
    numbers: dict[tuple[Any, int], int]  # place in the graph -> number of the tensor
    shapes: dict[int, torch.Size]
    count: int  # of tensors that have a number

    @staticmethod
    def of(tracer: Tracer, x: Inputs, y: Tensor) -> _Seen | None:
        """Run a batch, and look at its calls of the blocks of `tracer.anatomy`; None where they show no graph."""
        begun: list[tuple[Any, set[Any]]] = []
        runs: list[tuple[nn.Module, Any, set[Any], list[Any]]] = []

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            stream = stream_of(module, args, kwargs)
            edge = unseen_edge(stream).node if stream is not None and stream.requires_grad else None
            begun.append((edge, {e.node for e in edges_of(handed_tensors(args, kwargs))}))

        def after(module: nn.Module, output: Any) -> None:
            stream, given = begun.pop()
            runs.append((module, stream, given, [e.node for e in edges_of(members(output))]))

        places = Places()
        blocks = [block for block in tracer.anatomy.blocks if isinstance(block, nn.Module)]
        with torch.enable_grad():
            with overheard(blocks, after, before), places:
                output = tracer.run_once(mapped(x, lambda t: t.detach().clone()), None)
            losses = tracer.losses(logits_of(output), y)
        if losses.grad_fn is None or {id(run[0]) for run in runs} != {id(b) for b in blocks} or len(runs) < 2:
            return None
        ways = Ways(losses.grad_fn)
        if len(ways) > _MOST:
            return None
        calls: list[_Call] = []
        for module, stream, given, made in runs:
            leading = [node for node in made if node in ways]
            if not leading or leading[0] is not made[0]:
                return None
            inside = {n for n in between(leading, given) if n in ways and not hasattr(n, "variable")}
            if made[0] not in inside:
                return None
            calls.append(_Call(module, stream, frozenset(inside), made[0]))
        return _Seen(tuple(calls), ways, places.made, places.shapes, places.count)

    def spot(self, node: Any) -> tuple[Any, int]:
        """Return the place in the graph of the one result of a node that is read."""
        return node, next(iter(self.ways.read(node)))

    def shape(self, node: Any) -> torch.Size:
        """Return the shape of a state."""
        return self.shapes[self.numbers[self.spot(node)]]

    def is_seen(self, node: Any) -> bool:
        """Return whether a node is one tensor that the forward pass shows."""
        return node in self.ways and len(self.ways.read(node)) == 1 and self.spot(node) in self.numbers

    def stems(self) -> list[Any]:
        """Return what may be the state before the first block: what that is given, or what this was made of."""
        top = self.calls[0].stream
        below = Ways(top)
        weighted = [n for n in reached(top, ()) if goes_through_weight(n)]
        if not weighted:
            return [top] if self.is_seen(top) else []
        path = below.above(below.common(weighted))
        return [node for node in path[::-1] if self.is_seen(node)]

    def chain(self, stem: Any) -> _Chain | None:
        """Return the states after the calls, where each is what all before it leads through, but for the stem."""
        if stem in set().union(*(call.made for call in self.calls)):
            return None
        lowest = self._lowest({stem})
        groups = [[*group] for _, group in groupby(range(len(self.calls)), lambda i: lowest[i])]
        injected = len(groups) < 2 or len({len(group) for group in groups}) > 1
        if injected:
            groups = [[i] for i in range(len(self.calls))]
            lowest = self._lowest(())
            if len({*lowest[1:]}) < len(lowest) - 1:
                return None
            after = self._names(self._from_call(1), lowest[1])
            path = self._from_call(0)
            if after is None or self._names(path, path[min(len(after), len(path) - 1)]) != after:
                return None
            lowest[0] = path[len(after)]
        kinds = {tuple(type(self.calls[i].module) for i in group) for group in groups if len(group) > 1}
        if len({len(group) for group in groups}) > 1 or len(kinds) > 1:
            return None
        steps = [group[-1] for group in groups]
        states = self._ended([lowest[i] for i in steps], steps)
        if states is None or not self._is_chain([stem, *states], groups, injected):
            return None
        gaps = [site for site, i in enumerate(steps[:-1], 1) if self._has_weights(states[site - 1], i + 1)]
        if 2 * len(gaps) >= len(steps):
            return None
        alike = tuple(site for site in gaps if not self._changes_shape(states[site - 1], steps[site - 1] + 1))
        return _Chain((stem, *states), tuple(self.calls[i] for i in steps), injected, alike)

    def _lowest(self, beside: Iterable[Any]) -> list[Any]:
        """Return after every call the lowest node that all calls so far, and what is `beside`, lead through."""
        found: list[Any] = []
        for call in self.calls:
            found.append(self.ways.common([*(found[-1:] or beside), *call.made]))
        return found

    def _from_call(self, i: int) -> list[Any]:
        return self.ways.above(self.ways.common(self.calls[i].made))

    def _names(self, path: Sequence[Any], end: Any) -> list[str] | None:
        """Return the names of the nodes on a path behind its first, up to one of them."""
        return [node.name() for node in path[1 : path.index(end) + 1]] if end in path else None

    def _ended(self, lowest: Sequence[Any], steps: Sequence[int]) -> list[Any] | None:
        """Return what the next blocks are given, or what the blocks returned behind all that they end with alike."""
        paths: list[list[Any]] = []
        for node, i in zip(lowest, steps):
            following = self.calls[i + 1] if i + 1 < len(self.calls) else None
            below = None if following is None else reached(following.state, ()) | {following.stream}
            path = [node]
            for above in self.ways.above(node)[1:]:
                if path[-1] is (following and following.stream) or (below is not None and above not in below):
                    break
                if goes_through_weight(above):  # of what lies before it nothing tells where the step ends
                    path = path if following is None else [node]
                    break
                path.append(above)
            paths.append(path)
        if all(node is not self.calls[i].state for node, i in zip(lowest, steps)):  # they meet the stream outside
            *links, last = paths
            ending = [node.name() for node in links[-1][1:]] if links else []
            same = [node.name() == name for node, name in zip(last[1:], ending)]
            paths = [*links, last[: 1 + (same.index(False) if False in same else len(same))]]
            ends = [[node for node in path if self.is_seen(node)] for path in paths]
            return [path[-1] for path in ends] if all(ends) else None
        alike = 0
        while all(len(path) > alike + 1 for path in paths) and len({p[alike + 1].name() for p in paths}) == 1:
            alike += 1
        for behind in range(alike, -1, -1):
            states = [path[behind] for path in paths]
            if all(map(self.is_seen, states)):
                return states
        return None

    def _is_chain(self, states: Sequence[Any], groups: Sequence[Sequence[int]], injected: bool) -> bool:
        """Return whether every step adds to the state before it, and only the stem's output goes past a state."""
        if len({*states}) < len(states) or not all(map(self.is_seen, states)):
            return False
        first = self.calls[0].stream
        for before, group in pairwise(groups):  # else a cell is handed a new input in every call
            made, stream = set().union(*(self.calls[i].made for i in before)), self.calls[group[0]].stream
            if stream is not first and not made & reached(stream, ()):
                return False
        depends = [lower in reached(self.calls[group[0]].state, ()) for lower, group in zip(states, groups)]
        adds = [is_residual(upper, lower) for lower, upper in pairwise(states)]
        if injected and len(states) > 3:  # a step may take up the stem in place of the state before it
            enters = [_reads(upper, lower, states[0]) for lower, upper in pairwise(states)]
            adds = adds if all(adds) else [True, *enters[1:]]
        if not all(depends) or not all(adds):
            return False
        past = reached(self.ways.top, {states[0], states[1]})
        under = {n for n in reached(states[0], ()) if not hasattr(n, "variable")}
        return not past & under

    def _changes_shape(self, state: Any, i: int) -> bool:
        """Return whether the call of a block is given another shape than a state before it has."""
        given = self.calls[i].stream
        return self.is_seen(given) and self.shape(given) != self.shape(state)

    def _has_weights(self, state: Any, i: int) -> bool:
        """Return whether a product with a weight lies between a state and the call of a block after it."""
        call = self.calls[i]
        if call.stream is state or state in call.made:
            return False
        return any(map(goes_through_weight, nodes_between(call.stream, state)))


def _reads(upper: Any, lower: Any, stem: Any) -> bool:
    """Return whether a state was made of the stem's output on a way past the state before it."""
    nodes = reached(upper, {lower})
    return any(child is stem for node in nodes for child, _ in node.next_functions)
