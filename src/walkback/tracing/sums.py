"""The stream of a network whose steps are no modules, seen as a chain of sums: session, batch -> Anatomy.

Where `h = h + f(norm(h))` is written out in the forward pass, no module takes or returns the stream. In the graph it is
a chain all the same: sums, each of the sum before it and of what weights made of that. It is read so only where every
such sum lies in one chain, so where there is one stream and nothing beside it.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from walkback.network.anatomy import Anatomy
from walkback.network.batch import Inputs, mapped, split
from walkback.network.layers import own_weights
from walkback.network.share import share_of
from walkback.network.values import logits_of, named_modules_of
from walkback.tracing.calls import overheard
from walkback.tracing.graph import VIEWS, goes_past_weights, goes_through_weight, nodes_between
from walkback.tracing.heard import LayerCapture, LayerRun
from walkback.tracing.numbered import Places

if TYPE_CHECKING:
    from walkback.tracing.rerun import Weights
    from walkback.tracing.session import Tracer

Spot = tuple[Any, int]  # a node of the graph, and which of its results

_MOST = 20_000  # nodes of a graph that is looked at


def axis_of_sums(tracer: Tracer, shape: torch.Size, x: Inputs, y: Tensor, weights: Weights) -> int:
    """Return the axis of the batch in states of `shape`; a smaller batch shows it where it could be two."""
    batch = len(y)
    if len(shape) != 3 or shape[1] != batch:
        return 0
    if batch == 1:
        return int(shape[0] != 1)
    places = Places()
    fewer, _ = next(split(x, y, batch - 1))
    with torch.enable_grad(), places:
        tracer.run_once(mapped(fewer, lambda t: t.detach().clone()), weights)
    few = places.shapes[tracer.anatomy.sums[0]]
    return int(few[0] == shape[0] and few[1] == batch - 1)


def find_sums(tracer: Tracer, x: Inputs) -> Anatomy | None:
    """Return the stream of a network as a chain of sums, where it has one and no other; None where it has not."""
    with_weights = [(path, m) for path, m in named_modules_of(tracer.model) if any(True for _ in _own(m))]
    capture = LayerCapture({id(m): path for path, m in with_weights}, [m for _, m in with_weights])
    places = Places()
    listening = overheard(capture.modules, capture.look, capture.before)
    with torch.enable_grad(), listening, tracer.tape() or nullcontext(), places:
        output = tracer.run_once(mapped(x, lambda t: t.detach().clone()), None)
    chain = _chain(logits_of(output))
    if chain is None or any(spot not in places.made for spot in chain):
        return None
    ways = [nodes_between(upper[0], lower[0]) for lower, upper in pairwise(chain)]
    last = [[run for run in capture.counted() if own_weights(run.call.module) and _made_in(run, way)] for way in ways]
    if not all(last):
        return None
    inside = set().union(*ways)
    within = [run.call.module for run in capture.runs if _made_in(run, inside)]
    below = nodes_between(chain[0][0], None)
    around = [run for run in capture.runs if run.call.module not in within]
    stem = [run.call.path for run in around if _made_in(run, below)]
    readout = [run.call.path for run in around if run.call.path not in stem]
    blocks = [runs[-1].call.path for runs in last]
    named = Anatomy(tuple(dict.fromkeys(stem)) or None, tuple(blocks), tuple(dict.fromkeys(readout)), branch=False)
    guess = (
        f"the stream is a chain of {len(blocks)} sums, since no modules are its blocks; every site has the name of the "
        "last layer in what was added there"
    )
    found = replace(named, sums=tuple(places.made[spot] for spot in chain), guesses=(guess,)).resolve(tracer.model)
    return replace(found, share=share_of(tracer.model, within))


def _own(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module._parameters.values() if p is not None]


def _made_in(run: LayerRun, nodes: set[Any]) -> bool:
    return any(edge.node in nodes for edge in run.edges.values())


def _chain(top: Tensor) -> list[Spot] | None:
    """Return the places of h_0 … h_L where every sum of a state and of what weights make of it lies in one chain.

    >>> h, w = torch.ones(1, 2, requires_grad=True) * 1, torch.nn.Parameter(torch.ones(2, 2))
    >>> g = h + (h @ w).relu()
    >>> out = g + (g @ w).relu()
    >>> [node.name() for node, _ in _chain(out)], _chain(g)  # one sum is no chain
    (['MulBackward0', 'AddBackward0', 'AddBackward0'], None)
    """
    nodes = [] if top.grad_fn is None else _ordered(top.grad_fn)
    before: dict[Spot, Spot] = {}  # a sum -> the state before it
    for node in nodes if len(nodes) < _MOST else ():
        parts = [(child, nr) for child, nr in node.next_functions if child is not None]
        if not node.name().startswith("AddBackward") or len(parts) != 2:
            continue
        for state, branch in (parts, parts[::-1]):
            first = before.get(state)
            if adds(branch, state):
                before[node, 0] = state
            elif first is not None and adds(branch, first):  # two branches of one state, side by side
                before[node, 0] = first
                del before[state]
    # What a state was made of: a sum itself, or a sum and what comes after it, say an activation.
    ends = {state: _sum_below(state, before) for state in before.values()}
    roots = [state for state, (made, _) in ends.items() if made is None]
    steps = {tuple(names) for made, names in ends.values() if made is not None}
    if len(before) < 2 or len(roots) != 1 or len(steps) != 1 or len(ends) < len(before):
        return None
    after = {state: made for made, state in before.items()}
    as_read = {made: state for state, (made, _) in ends.items() if made is not None}
    chain = roots
    while (made := after.get(chain[-1])) is not None and made in as_read:
        chain.append(as_read[made])
    if made is None or len(chain) != len(before):
        return None
    (names,) = steps
    last = [(node, 0) for node in nodes if _sum_below((node, 0), {made: made}) == (made, [*names])]
    return [*chain, last[-1]] if last else None


def _sum_below(state: Spot, sums: dict[Spot, Spot]) -> tuple[Spot | None, list[str]]:
    """Return the sum that a state was made of by operations of one input each (None: of none), and their names."""
    names: list[str] = []
    while state not in sums:
        below = [(c, nr) for c, nr in state[0].next_functions if c is not None and not hasattr(c, "variable")]
        if len(below) != 1 or state[0].name().startswith(VIEWS) or goes_through_weight(state[0]):
            return None, []
        names.append(state[0].name())
        state = below[0]
    return state, names


def adds(branch: Spot, state: Spot) -> bool:
    """Return whether a branch was made of a state by weights alone."""
    return bool(nodes_between(branch[0], state[0])) and not goes_past_weights([branch[0]], {state[0]})


def _ordered(top: Any) -> list[Any]:
    """Return the nodes of a graph, what is below first."""
    done: dict[Any, bool] = {}
    todo: list[tuple[Any, bool]] = [(top, False)]
    while todo:
        node, ready = todo.pop()
        if ready:
            done[node] = True
        elif node not in done:
            done[node] = False
            todo += [(node, True), *((child, False) for child, _ in node.next_functions if child is not None)]
    return list(done)
