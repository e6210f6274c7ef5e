"""The first batch shows how a network is read: at which modules, in which order. Session, batch -> NetworkReading.

What looked like the blocks of a residual stream may be plain layers; blocks may be called several times, never, or as
`block.forward(h)`; a layout that the batch shows may ask for it to be run again. `Tracer.reading` says the outcome.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from walkback.errors import AnatomyError, WalkbackError, cut
from walkback.network.batch import LABELS, Inputs, mapped, real_tokens, takes_labels
from walkback.network.layers import Sites
from walkback.network.values import hidden_of, logits_of, modules_of, named_modules_of, random_state
from walkback.notes import Note
from walkback.tracing.calls import overheard
from walkback.tracing.capture import Capture, attach_receivers, seeing_modules
from walkback.tracing.chosen import has_no_stream, has_no_stream_past_cuts
from walkback.tracing.cuts import CutGraph, refuse_cut_answer
from walkback.tracing.derived import Spy, has_custom_backward
from walkback.tracing.explained import complete
from walkback.tracing.inner import COARSE, begin_with_weights, read_finer
from walkback.tracing.layers import layer_pass, watched_layers
from walkback.tracing.layout import as_called, find_axis, find_branch, infer_layout
from walkback.tracing.links import (
    NO_STREAM,
    are_layers,
    is_plain_chain,
    read_past,
    refuse_broken_links,
    refuse_second_ways,
    refuse_several_streams,
    refuse_ways_past,
    without_skips,
)
from walkback.tracing.outside import steps_outside, with_line
from walkback.tracing.passes import captured, forward, new_capture, traced, with_skip
from walkback.tracing.reference import Derived, gradients
from walkback.tracing.steps import find_steps
from walkback.tracing.streams import refuse_unlike_streams
from walkback.tracing.sums import axis_of_sums
from walkback.tracing.tail import Tail
from walkback.tracing.trace import Trace
from walkback.tracing.trials import read_otherwise

if TYPE_CHECKING:
    from walkback.tracing.rerun import Weights
    from walkback.tracing.session import Tracer


class _NoStream(Exception):
    """What looked like the blocks of a residual stream are plain layers."""


def read_past_cuts(session: Tracer, x: Inputs, y: Tensor) -> Trace:
    """Run a batch as the reading says. Where the first one shows a cut graph, derive the reference, and note it.

    So it is only where nobody said what the reference is, and where that is the one obstacle.
    """
    start = session.reading
    try:
        return session.read(x, y)
    except CutGraph as found:
        if not start.may_derive or start.layout.known or start.layer_sites:
            raise
        own = session.refer(Derived(), start)
        try:
            trace = session.read(x, y)
        except CutGraph as still:
            session.refer(own, start)
            raise AnatomyError(
                f"Expected the loss to depend on every site, but no gradient reaches {', '.join(still.sites)}, also "
                "where what the network detaches is followed: it does not use it. Name other sites."
            ) from None
        except WalkbackError as error:
            session.refer(own, start)
            if not found.sites:  # no part of the network reaches its answer, or what is said of that is enough
                raise
            raise AnatomyError(f"{found.what}. Past that it can't be read either: {cut(str(error), 400)}") from None
        session.notes.append(Note("derived-reference", None, {"cut": ", ".join(found.sites) or "any layer"}))
        return trace


def guessed_pass(session: Tracer, x: Inputs, y: Tensor) -> Trace:
    """Run a batch as was guessed; try other candidates for the blocks where it can't be read at these."""
    try:
        trace = read_past_cuts(session, x, y)
    except AnatomyError as error:
        session.learn(may_try=False)
        session.take(read_otherwise(session, error, x, y))
        trace = session.read(x, y)
    session.learn(may_try=False)
    with_line(session, x, y)
    return trace


def named_pass(session: Tracer, x: Inputs, y: Tensor) -> Trace:
    """Run the first batch at blocks that a caller named; at the states between them where their steps are outside.

    In the order in which they were named: blocks that are called in another are refused, not put in order.
    """
    named, notes = session.anatomy, [*session.notes]
    try:
        trace = read_past_cuts(session, x, y)
        with_line(session, x, y)
        return trace
    except AnatomyError:
        try:
            session.take(named)
            found = find_steps(session, x, y) if named.branch is None else None
            if found is not None and found.depth_modules(session.model) == named.depth_modules(session.model):
                session.take(found)
                return session.read(x, y)
        except Exception:  # what the network raises where no hook stops it before: what was wrong first is said
            pass
        session.take(named)
        session.notes[:] = notes
        raise


def first_pass(session: Tracer, x: Inputs, y: Tensor, weights: Weights) -> Trace:
    """Run a batch forward and backward and learn the layout from it, again where that asks for it."""
    may_be_plain, spy = session.reading.may_be_plain, None
    while True:
        first, seen = not session.layout.known, session.layout
        if first:
            try:
                capture, output, spy = _forward(session, x, y, weights)
            except _NoStream as found:
                return _layers_instead(session, x, y, weights, refusal=str(found))
            _find_axis(session, capture, x, y, weights)
            _see_own_loss(session, x, y, weights, logits_of(output))
        else:
            capture, output = forward(session, x, weights, look=True)
        logits = logits_of(output)
        refuse_cut_answer(session, logits)
        with capture.tape or nullcontext():
            losses = session.losses(logits, y)
        if first and spy is not None:
            session.learn(suspect=session.reading.suspect or spy.saw or has_custom_backward(losses))
            session.asked.see(spy.read)
        losses, grads, streams, kept = gradients(capture, losses)
        if capture.handed_copy and capture.layout.branch is None:
            branch = find_branch(capture, hidden_of(output))
            capture.layout = replace(capture.layout, branch=branch)
            session.learn(layout=capture.layout)
        grads = complete(capture, with_skip(capture, grads))
        if first:
            _learn(session, capture, grads, output, x, y, unsure=kept and not capture.handed_copy)
        if (session.layout.widens, session.layout.received) == (capture.layout.widens, seen.received):
            break
    # Where the backward pass may be another function's, it can't be compared with itself.
    if session.layout.branch and (capture.tape is not None or not session.reading.suspect):
        unseen = refuse_unlike_streams(capture, streams, grads)
        session.notes[:0] = [] if unseen is None else [unseen]
    if session.layout.known:
        _refuse_other_streams(session, capture, losses)
        if session.reading.guessed and is_plain_chain(capture):
            if not may_be_plain:
                raise AnatomyError(NO_STREAM)
            return _layers_instead(session, x, y, weights)
        if session.reading.guesses and may_be_plain and (between := without_skips(capture)):
            parts = session.anatomy
            names = (name.partition("#")[0] for name in session.reading.block_names)
            blocks = tuple(dict.fromkeys(path for i, path in enumerate(names) if i not in between))
            left = replace(parts, blocks=blocks, names=(), share=None).resolve(session.model)
            session.take(left)
            return first_pass(session, x, y, weights)
        if session.reading.guessed and may_be_plain and are_layers(capture, logits):
            return _layers_instead(session, x, y, weights, session.reading.block_names[:-1])
        if session.reading.guessed and begin_with_weights(capture):
            finer = read_finer(session, capture, x, y) if session.reading.may_try else None
            if finer is not None:
                return finer
            if capture.bare:
                raise AnatomyError(COARSE.format(block=session.anatomy.called(0)))
        beyond = steps_outside(session, capture, logits, x)
        session.notes += [] if beyond is None else [beyond]
    return traced(session, capture, grads, losses, logits, x, y)


def _layers_instead(
    session: Tracer, x: Inputs, y: Tensor, weights: Weights, sites: Sites = "layers", refusal: str = ""
) -> Trace:
    """Go on with the layers as sites: what looked like blocks has no residual stream; `refusal`: unless it has one."""
    session.read_layers(sites, refusal)
    return layer_pass(session, x, y, weights)


def _forward(session: Tracer, x: Inputs, y: Tensor, weights: Weights) -> tuple[Capture, Any, Spy]:
    """Run one captured forward pass, with a look at all that can only be seen while the network runs."""
    while True:
        capture = new_capture(session, weights, look=True)
        drawn = random_state(session.device)
        layers = watched_layers(session.model) if session.reading.may_be_plain else None
        tail = session.layout.tail is not None or not session.layout.received
        modes = [spy := Spy(), *([Tail(capture)] if tail else [])]
        if not session.layout.received:
            modes.append(seeing_modules(capture, _modules(session)))
        with nullcontext() if layers is None else overheard(layers.modules, layers.look, layers.before):
            output = captured(session, capture, x, weights, modes, first=True)
        if not torch.equal(drawn, random_state(session.device)):
            draws = Note("random-forward")
            session.notes += [] if draws in session.notes else [draws]
        if layers is not None:
            plain = has_no_stream(layers.counted(), session.model, logits_of(output))
            if plain or (plain is None and has_no_stream_past_cuts(session, x, y, weights)):
                raise _NoStream
        again = _follow(session, capture)
        if not again and session.reading.guessed and session.reading.may_be_plain and not capture.calls:
            try:
                capture.refuse_other_calls()
            except AnatomyError as error:  # what was guessed is never called as such: a layer is taken out of each, say
                raise _NoStream(str(error)) from None
        if not again:
            capture.refuse_other_calls()
            if not capture.was_written():
                return capture, output, spy
        session.learn(layout=replace(session.layout, copies=session.layout.copies or not again))


def _follow(session: Tracer, capture: Capture) -> bool:
    """Take the blocks as the network runs them: each as often as it is called, also as `block.forward(h)`.

    Return whether another pass has to be read.
    """
    anatomy, guessed = session.anatomy, session.reading.guessed
    calls, depth = capture.calls, capture.depth
    if anatomy.sums:
        return False
    once = len({id(block) for block in session.blocks}) == depth and {*calls} == {*range(depth)}
    if once and (len(calls) > depth or (guessed and calls != [*range(depth)])):
        anatomy = anatomy.in_order(calls)
    elif not anatomy.by_forward and {*calls} < {*range(depth)}:
        anatomy = replace(anatomy, by_forward=True)
    elif guessed and calls and {*calls} < {*range(depth)}:
        never = [anatomy.called(i) for i in range(depth) if i not in calls]
        session.notes.append(Note("uncalled-blocks", None, {"blocks": never}))
        anatomy = anatomy.in_order(calls)
    else:
        return False
    session.learn(anatomy=anatomy)
    session.attach()
    return True


def _find_axis(session: Tracer, capture: Capture, x: Inputs, y: Tensor, weights: Weights) -> None:
    """Keep where the batch is in the stream."""
    if session.anatomy.sums:
        axis = axis_of_sums(session, capture.given[0].shape, x, y, weights)
        capture.layout = replace(session.layout, axis=axis)
        session.learn(layout=capture.layout)
        return
    axis = find_axis(capture, lambda few: session.run_once(few, weights), x, y)
    capture.layout = replace(session.layout, axis=axis)
    session.learn(layout=capture.layout)


def _see_own_loss(session: Tracer, x: Inputs, y: Tensor, weights: Weights, logits: Tensor) -> None:
    """Run a model once with `labels=`, where it takes them: its own loss says whether it learns the next token."""
    if not session.losses.wants_own(y) or isinstance(x, Tensor) or not takes_labels(session.model):
        return
    kept = session.layout
    try:
        with torch.no_grad():
            inputs = mapped({**x, LABELS: y}, lambda t: t.detach().clone())
            own = getattr(session.run_once(inputs, weights), "loss", None)
    except Exception:  # what it makes of labels is its own: then its name decides
        own = None
    session.learn(layout=kept)
    session.losses.compare(own, logits, y)


def _learn(
    session: Tracer, capture: Capture, grads: tuple[Tensor, ...], output: Any, x: Inputs, y: Tensor, unsure: bool
) -> None:
    """Keep what the batch shows of the layout."""
    before = session.layout
    layout, notes = infer_layout(capture, grads, output, len(y), unsure)
    session.learn(layout=layout)
    if layout.receivers != before.receivers:
        attach_receivers(session, session.hooks)
    session.notes += notes
    session.learn(anatomy=as_called(session.anatomy, capture.misplaced, session.model), reader=capture.reader)
    mask = real_tokens(x, len(y))
    if session.losses.next_token and mask is not None and mask.shape == y.shape and bool((y[~mask] != -100).any()):
        session.notes.append(Note("padding-labels"))  # they count, as they do in the model's own loss


def _refuse_other_streams(session: Tracer, capture: Capture, losses: Tensor) -> None:
    """Raise AnatomyError unless the blocks carry one stream, and say what the readout reads beside its end."""
    capture.layout = layout = session.layout
    if layout.received:
        past = refuse_ways_past(capture, losses)
        session.notes += [] if past is None else [past]
        if (steps := session.anatomy.steps) is not None:
            session.notes.append(Note("stepped-sites"))
            session.notes += [Note("stem-injected")] if steps.injected else []
            session.notes += [Note("between-blocks", None, {"sites": [*steps.gaps]})] if steps.gaps else []
        return
    if capture.tape is None:  # on the tape only the stream itself is marked
        refuse_several_streams(capture, losses)
        if not layout.branch:
            refuse_second_ways(capture, losses)
    refuse_broken_links(capture)
    past = None if layout.branch else read_past(capture, losses)
    session.notes += [] if past is None else [past]


def _modules(session: Tracer) -> dict[str, nn.Module]:
    """Return the modules outside of the anatomy's parts and blocks by their paths: norms may stand there."""
    inside = {id(m) for block in session.blocks for m in modules_of(block)}
    parts = {id(part) for part in (*session.anatomy.stems, *session.anatomy.readout)}
    others = named_modules_of(session.model)
    scripted = torch.jit.ScriptModule  # which takes no hooks
    return {p: m for p, m in others if p and id(m) not in inside | parts and not isinstance(m, scripted)}
