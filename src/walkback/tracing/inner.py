"""The residual steps that modules make, seen in one pass: finer blocks inside of coarse ones, and steps beside blocks.

A stage of a convolution and two residual blocks is no step of a stream: it begins with weights, and what adds stands
inside of it. Where such stages were guessed to be the blocks, the steps inside are the blocks, in the order of their
calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from walkback.errors import WalkbackError
from walkback.network.anatomy import Anatomy
from walkback.network.batch import Inputs, mapped
from walkback.network.stacks import BY_ORDER, around, keyword_of
from walkback.network.values import (
    children_of,
    first_tensor,
    logits_of,
    members,
    modules_of,
    named_modules_of,
    parameters_of,
    stream_of,
)
from walkback.tracing.calls import overheard
from walkback.tracing.derived import unseen_edge
from walkback.tracing.dominators import Ways
from walkback.tracing.graph import goes_past_weights, goes_through_weight, is_residual, is_sum, nodes_between

if TYPE_CHECKING:
    from walkback.tracing.capture import Capture
    from walkback.tracing.session import Tracer
    from walkback.tracing.trace import Trace


COARSE = (
    "Expected {block} to be a residual step, but it is given the input of the network, and begins with trained weights:"
    " site 0 would be the input. Name the blocks inside: Anatomy.of(model, blocks=[…])."
)
# What is said of readings that hold only in part: none of these is taken unasked.
DOUBTS = frozenset(("read-past", "unseen-sum"))


@dataclass(frozen=True)
class Run:
    """One call of a module: the nodes of what it was given and made (None: without a gradient)."""

    path: str
    module: nn.Module
    begun: int  # which call it was, of all that were heard
    given: Any
    made: Any

    @property
    def is_step(self) -> bool:
        """Whether the call adds what weights made of its input to that input."""
        return self.given is not None and self.made is not None and is_step(self.made, self.given)


@dataclass
class Heard:
    """One pass: what its answer was made of, every call in the order of their ends, and the steps among them."""

    top: Any = None
    runs: list[Run] = field(default_factory=list)
    steps: list[Run] = field(default_factory=list)  # no step lies in another, in the order of their calls


def hear(session: Tracer, steps: Iterable[nn.Module], others: Iterable[nn.Module], x: Inputs) -> Heard:
    """Run a batch, and look at the calls of modules; `others` are no steps, whatever they add."""
    paths = {id(m): path for path, m in named_modules_of(session.model)}
    may_be = {id(m): m for m in steps}
    heard, begun, count = Heard(), list[tuple[int, Any]](), [0]

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        begun.append((count[0], _node(stream_of(module, args, kwargs))))
        count[0] += 1

    def after(module: nn.Module, output: Any) -> None:
        number, given = begun.pop()
        run = Run(paths[id(module)], module, number, given, _node(first_tensor(members(output))))
        heard.runs.append(run)
        inside = [step for step in heard.steps if step.begun > number]
        if id(module) in may_be and not _is_row(run, inside) and run.is_step:
            heard.steps = [*(step for step in heard.steps if step.begun < number), run]

    with torch.enable_grad(), overheard([*may_be.values(), *others], after, before):
        output = session.run_once(mapped(x, lambda t: t.detach().clone()), None)
    heard.top = logits_of(output).grad_fn
    return heard


def read_finer(session: Tracer, capture: Capture, x: Inputs, y: Tensor) -> Trace | None:
    """Run a batch at the steps inside of guessed blocks; None, and nothing is changed, where it can't be read there."""
    reading, notes = session.reading, [*session.notes]
    try:
        if (found := finer_blocks(session, capture, x)) is not None:
            session.take(found)
            trace = session.read(x, y)
            if not any(note.code in DOUBTS for note in session.notes):
                return trace
    except WalkbackError:
        pass
    session.learn(**vars(reading))
    session.notes[:] = notes
    session.attach()
    return None


def finer_blocks(session: Tracer, capture: Capture, x: Inputs) -> Anatomy | None:
    """Return the steps inside of guessed blocks that begin with weights, as blocks; None where there are none.

    A block with no step inside stays one, as what leads from stage to stage, but before the first step: it is the stem.
    """
    blocks = list({id(b): b for b in session.blocks}.values())
    inside = [m for block in blocks for m in modules_of(block) if may_be_step(m)]
    heard = hear(session, inside, blocks, x)
    own = {id(b) for b in blocks}
    ends = [*heard.steps]
    ends += [
        run
        for run in heard.runs
        if id(run.module) in own and not any(_within(step, run, heard) for step in heard.steps)
    ]
    ends.sort(key=lambda run: run.begun)
    while capture.bare and ends and ends[0] not in heard.steps:
        ends.pop(0)
    paths = tuple(dict.fromkeys(run.path for run in ends))
    if len(heard.steps) < 2 or {id(run.module) for run in ends} == own:
        return None
    stem, readout = around(session.model, paths)
    coarse = ", ".join(dict.fromkeys(name.partition("#")[0] for name in session.reading.block_names))
    guess = (
        f"the blocks are the residual steps inside of {coarse}, which begin with weights. To name them: "
        f"Anatomy.of(model, blocks={keyword_of(paths)})"
    )
    return Anatomy(stem, paths, readout, guesses=(guess, BY_ORDER)).resolve(session.model)


def begin_with_weights(capture: Capture) -> bool:
    """Return whether blocks are no steps: the first is given the input, or none is passed by a skip.

    For blocks that return the new state.
    """
    if capture.layout.branch or capture.layout.received or capture.tape is not None:
        return False
    sites = [capture.edges[site].node for site in range(capture.depth + 1)]
    some = sites[:2] if capture.bare else sites
    return all(enters_by_weight(made, given) for given, made in pairwise(some))


def enters_by_weight(made: Any, given: Any) -> bool:
    """Return whether all ways from what a module was given lead through a weight before they meet in a sum.

    >>> h, w = torch.ones(2, 2, requires_grad=True) * 1, torch.nn.Parameter(torch.ones(2, 2))
    >>> f = h @ w
    >>> [enters_by_weight(made.grad_fn, h.grad_fn) for made in (h + f, f + (h @ w).relu(), f + f @ w)]
    [False, False, True]
    """
    if goes_past_weights([made], {given}):
        return False
    ways = Ways(made)
    if given not in ways:
        return False
    first = next((node for node in ways.above(given)[1:] if goes_through_weight(node)), None)
    return first is not None and not is_residual(first, given)


def is_step(made: Any, given: Any) -> bool:
    """Return whether a module adds: what it was given and what weights made of it, or two things they made of it.

    A gate is no sum, and what cells and attention add inside is none of the state.

    >>> h, w = torch.ones(2, 2, requires_grad=True) * 1, torch.nn.Parameter(torch.ones(2, 2))
    >>> made = (h + h @ w, (h @ w + h @ w).relu(), h * (h @ w), (h @ w + h @ w) * (h @ w), h + 1)
    >>> [is_step(m.grad_fn, h.grad_fn) for m in made]
    [True, True, False, False, False]
    """
    nodes = nodes_between(made, given)
    if not any(goes_through_weight(node) for node in nodes):
        return False
    reading = {*nodes, given}

    def joins(node: Any) -> bool:
        return is_sum(node) and sum(child in reading for child, _ in node.next_functions) > 1

    node = made
    while node in nodes and not goes_through_weight(node):
        if joins(node):
            return not enters_by_weight(made, given)
        below = {child for child, _ in node.next_functions if child in reading}
        if len(below) != 1:
            break
        (node,) = below
    seen: set[Any] = set()
    todo = [made]
    while todo:
        node = todo.pop()
        if node not in nodes or node in seen or goes_through_weight(node):
            continue
        seen.add(node)
        if joins(node) and goes_past_weights([node], {given}):
            return True
        todo += [child for child, _ in node.next_functions]
    return False


def may_be_step(module: nn.Module) -> bool:
    """Return whether a module has weights and children, and a forward pass that may add: a list or a row has none."""
    lists = isinstance(module, (nn.ModuleList, nn.ModuleDict)) or type(module).forward is nn.Sequential.forward
    return not lists and any(True for _ in children_of(module)) and any(p.ndim > 1 for p in parameters_of(module))


def _is_row(run: Run, steps: list[Run]) -> bool:
    """Return whether a call is a row of steps of one type, and nothing else."""
    if len(steps) < 2 or len({type(step.module) for step in steps}) > 1:
        return False
    handed = [run.given, *(step.made for step in steps)]
    return handed == [*(step.given for step in steps), run.made]


def _within(step: Run, run: Run, heard: Heard) -> bool:
    """Return whether a step was called within a call, or is this call."""
    ended = heard.runs.index(run)
    return step.begun >= run.begun and heard.runs.index(step) <= ended


def _node(value: Tensor | None) -> Any:
    return unseen_edge(value).node if value is not None and value.requires_grad else None
