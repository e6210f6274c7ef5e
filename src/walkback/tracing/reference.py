"""Where g_l comes from: the network's own backward pass, its forward pass alone, or a plain twin of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import allow_mutation_on_saved_tensors

from walkback.errors import AnatomyError, InputError
from walkback.network.values import largest, no_autocast
from walkback.tracing.derived import Tape
from walkback.tracing.explained import refuse_own_error
from walkback.tracing.streams import last_stream, stream_edges
from walkback.tracing.trace import Trace

if TYPE_CHECKING:
    from walkback.tracing.capture import Capture
    from walkback.tracing.session import Tracer


class Own:
    """The network's own backward pass."""

    name = "own"

    def tape(self) -> Tape | None:
        """Return what a forward pass is recorded with, for `gradients` to run again; None: it is not."""
        return None

    def applied(self, trace: Trace, alone: bool) -> Trace:
        """Return a trace of the network with the gradients of this reference; `alone`: see `Asked`."""
        return trace

    def applied_again(self, trace: Trace, weights: Mapping[str, Tensor] | None) -> Trace:
        """Return the same of a pass with other weights."""
        return trace


class Derived(Own):
    """The derivative of what the forward pass computes, whatever the backward pass of the network says."""

    name = "derived"

    def tape(self) -> Tape | None:
        """Return a new tape."""
        return Tape()


class Twin(Own):
    """A plain network that computes the same, with a tracer of its own."""

    name = "twin"

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer

    def applied(self, trace: Trace, alone: bool) -> Trace:
        """Return a trace with the twin's gradients; InputError where it computes other states."""
        self.tracer.asked.alone = alone
        other = self.tracer.trace(trace.inputs, trace.labels)
        names = [*(f"site {site}" for site in range(len(trace.states))), "the logits"]
        for where, ours, theirs in zip(names, (*trace.states, trace.logits), (*other.states, other.logits)):
            same = ours.shape == theirs.shape
            if not same or not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4 * largest(ours), equal_nan=True):
                how = f"they differ at {where}" if same else f"{where} has shape {tuple(theirs.shape)}"
                raise InputError(
                    f"Expected the reference to compute the states the network computes, but {how}. Give it the same "
                    "weights: reference.load_state_dict(model.state_dict())."
                )
        return replace(trace, grads=other.grads)

    def applied_again(self, trace: Trace, weights: Mapping[str, Tensor] | None) -> Trace:
        """Return the same of a pass with other weights, which are not compared."""
        return replace(trace, grads=self.tracer.again(trace.inputs, trace.labels, weights).grads)


class Gradients(NamedTuple):
    """The losses of a pass and their gradients: at its sites, at streams by site, and whether the graph is kept."""

    losses: Tensor
    sites: tuple[Tensor | None, ...]
    streams: dict[int, Tensor | None]
    kept: bool


def gradients(capture: Capture, losses: Tensor, rewritten: bool = False) -> Gradients:
    """Differentiate the losses of a captured pass: on its own graph, or on that of its tape.

    `rewritten`: the forward pass writes what its derivative needs, as code does that steps weights on the way.
    """
    given = losses
    with allow_mutation_on_saved_tensors() if rewritten else nullcontext():
        if capture.tape is not None:
            losses = _rerun(capture, capture.tape, losses)
        if not losses.requires_grad:
            raise InputError(
                "Expected a loss that depends on the network, but it carries no gradient. "
                "Return it as a tensor computed from the logits, without detach() or item()."
            )
        edges = [capture.edges[site] for site in range(capture.depth + 1)]
        streams = stream_edges(capture)
        kept = capture.look and 1 not in streams and not rewritten
        if capture.look and capture.depth not in streams:
            streams |= last_stream(capture, losses)
        with no_autocast(losses.device):
            try:
                grads = torch.autograd.grad(
                    losses.sum(), [*edges, *streams.values()], allow_unused=True, retain_graph=kept
                )
                sites = tuple(g if g is None else g.detach() for g in grads[: len(edges)])
                return Gradients(losses, sites, dict(zip(streams, grads[len(edges) :])), kept)
            except Exception as error:
                refuse_own_error(error, losses)
                if "inplace operation" not in str(error):
                    raise
                if capture.tape is None or rewritten:
                    raise AnatomyError(
                        "Expected a network that can be differentiated, but it overwrites in place what its "
                        f"own backward pass needs: {str(error).splitlines()[0]} "
                        "Write h = h + f instead of h += f there."
                    ) from None
    return gradients(capture, given, rewritten=True)


def _rerun(capture: Capture, tape: Tape, losses: Tensor) -> Tensor:
    """Return the losses again, and set the edges of all sites, on a graph that follows the forward pass alone."""
    twin, marks = tape.reference()
    capture.edges = {site: marks[site][1] for site in range(capture.depth + 1)}
    capture.streams = {key[1]: mark[1] for key, mark in marks.items() if isinstance(key, tuple)}
    capture.first_made = marks[1][0]
    return twin(losses)
