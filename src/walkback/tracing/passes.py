"""One pass of a network whose blocks are read, forward and backward: session, batch -> Capture -> Trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from walkback.network.batch import Inputs, mapped
from walkback.network.values import logits_of
from walkback.tracing import rerun
from walkback.tracing.capture import Capture
from walkback.tracing.explained import complete
from walkback.tracing.layout import refuse_shapes
from walkback.tracing.numbered import Numbered
from walkback.tracing.reference import gradients
from walkback.tracing.tail import Tail
from walkback.tracing.trace import Trace

if TYPE_CHECKING:
    from walkback.tracing.rerun import Weights
    from walkback.tracing.session import Tracer


def block_pass(session: Tracer, x: Inputs, y: Tensor, weights: Weights) -> Trace:
    """Run a batch forward and backward, as the batches before it have shown the network to be read."""
    capture, output = forward(session, x, weights)
    logits = logits_of(output)
    with capture.tape or nullcontext():
        losses = session.losses(logits, y)
    losses, grads, _, _ = gradients(capture, losses)
    grads = complete(capture, with_skip(capture, grads))
    return traced(session, capture, grads, losses, logits, x, y)


def forward(session: Tracer, x: Inputs, weights: Weights, look: bool = False) -> tuple[Capture, Any]:
    """Run one captured forward pass; a second one where the network writes its stream in place."""
    while True:
        capture = new_capture(session, weights, look)
        tail = () if session.layout.tail is None else (Tail(capture),)
        output = captured(session, capture, x, weights, tail)
        capture.refuse_other_calls()
        if not capture.was_written():
            return capture, output
        session.learn(layout=replace(session.layout, copies=True))


def new_capture(session: Tracer, weights: Weights, look: bool) -> Capture:
    """Return what takes down one pass, as much as is known of the network."""
    return Capture(session.anatomy, session.layout, lambda: session.own(weights), session.tape(), look)


def captured(
    session: Tracer,
    capture: Capture,
    x: Inputs,
    weights: Weights,
    modes: Iterable[AbstractContextManager[Any]],
    first: bool = False,
) -> Any:
    """Run the network with its hooks reading for `capture`, inside `modes`; return what it returned."""
    with capture.tape or nullcontext(), ExitStack() as inside:
        numbered = _at_sums(capture, session.anatomy.sums)
        for mode in (*modes, *numbered):
            inside.enter_context(mode)
        # A copy, always: a network may write its input in any batch, and no look afterwards would bring it back.
        inputs = mapped(x, lambda t: t.detach().clone())
        session.capture = capture
        try:
            return rerun.run(session.model, inputs, weights, **session.reading.asking(first))
        finally:
            session.capture = None
            capture.numbered = sum(mode.count for mode in numbered)


def _at_sums(capture: Capture, sums: Sequence[int]) -> list[Numbered]:
    """Return what shows a capture the sums that are sites, by their numbers in the pass."""

    def at(number: int, state: Tensor) -> Tensor:
        site = sums.index(number)
        if site == 0 and not state.requires_grad:  # with weights that need no gradient
            state = capture.seeded(state)
        if state.requires_grad:
            capture.at_sum(site, state)
        return state

    return [Numbered(at, sums)] if sums else []


def with_skip(capture: Capture, grads: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """Return `grads` with g_0 = J_f1ᵀ g_1 + g_1 where a skip outside block 1 goes past the copy it was handed."""
    if not capture.handed_copy or not capture.layout.branch or grads[0] is None or grads[1] is None:
        return grads
    return (grads[0] + grads[1], *grads[1:])


def states_of(session: Tracer, capture: Capture, batch: int) -> tuple[Tensor, ...]:
    """Return h_0 … h_L of a pass, the batch first."""
    states = tuple(map(session.layout.batch_first, capture.states(session.layout.branch)))
    refuse_shapes(states, batch)
    return states


def traced(
    session: Tracer, capture: Capture, grads: Iterable[Tensor], losses: Tensor, logits: Tensor, x: Inputs, y: Tensor
) -> Trace:
    """Return the trace of a pass."""
    layout = session.layout
    states = states_of(session, capture, len(y))
    branches = None
    if session.reading.branches and layout.branch:
        branches = tuple(map(layout.batch_first, capture.made.values()))
    grads = tuple(map(layout.batch_first, grads))
    return Trace(states, grads, None, losses.detach(), logits.detach(), y, x, pool=layout.pool, branches=branches)
