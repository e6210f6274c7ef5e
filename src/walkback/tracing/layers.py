"""One pass of a plain network: states and gradients at the outputs of its layers. Layers, batch -> Trace.

Nothing is assumed of what lies between two sites, and nothing is added up: a state is what its layer returned in one
of its calls, and g_l is ∂loss/∂ that tensor. What the first batch shows is kept in the anatomy: which calls are sites,
where the batch is in what they return, and which layers read the last site.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, allow_mutation_on_saved_tensors

from walkback.errors import AnatomyError
from walkback.network.anatomy import Layers
from walkback.network.batch import Inputs
from walkback.network.layers import weighted_modules
from walkback.network.values import named_modules_of, no_autocast
from walkback.tracing.chosen import learn
from walkback.tracing.cuts import CutGraph
from walkback.tracing.explained import refuse_own_error
from walkback.tracing.heard import LayerCapture, heard_pass
from walkback.tracing.trace import Trace

if TYPE_CHECKING:
    from walkback.tracing.rerun import Weights
    from walkback.tracing.session import Tracer


def layer_pass(tracer: Tracer, x: Inputs, y: Tensor, weights: Weights) -> Trace:
    """Run a batch forward and backward; the first one shows which calls are sites."""
    if not tracer.layer_sites:
        learn(tracer, x, y, weights)
    sites = tracer.layer_sites
    modules = [site.call.module for site in sites if site.number is None]
    products = tracer.anatomy.products if isinstance(tracer.anatomy, Layers) else None
    with allow_mutation_on_saved_tensors() if tracer.layout.copies else nullcontext():
        capture, logits, losses = heard_pass(tracer, modules, x, y, weights, products=products)
        found = {(run.call.path, run.call.turn): run for run in capture.counted()}
        runs = [found.get((site.call.path, site.call.turn)) for site in sites]
        for site, run in zip(sites, runs):
            if run is None or run.call.turns != site.call.turns or site.leaf not in run.edges:
                turns = 0 if run is None else run.call.turns
                raise AnatomyError(
                    f"Expected every batch to call the layers as the first one did, but {site.call.path} was called "
                    f"{turns} times instead of {site.call.turns}. Give sequences one length, or name other sites."
                )
        known = [run for run in runs if run is not None]
        grads = _differentiated(tracer, losses, [run.edges[site.leaf] for site, run in zip(sites, known)])
    if grads is None:  # it writes in place what its backward pass needs, as code does that steps weights on the way
        tracer.learn(layout=replace(tracer.layout, copies=True))
        return layer_pass(tracer, x, y, weights)
    if missing := [site.call.name for site, g in zip(sites, grads) if g is None]:
        raise CutGraph(missing)
    states = tuple(site.batch_first(run.states[site.leaf]) for site, run in zip(sites, known))
    wide = tuple(site.batch_first(g.detach()) for site, g in zip(sites, grads) if g is not None)
    for site, h in zip(sites, states):
        if h.ndim < 1 or h.shape[0] != len(y):
            raise AnatomyError(
                f"Expected {site.call.name} to return {len(y)} samples, as in the first batch, but its output has the "
                f"shape {tuple(h.shape)}."
            )
    return Trace(states, wide, None, losses.detach(), logits.detach(), y, x, pool=tracer.layout.pool)


def _differentiated(tracer: Tracer, losses: Tensor, edges: Sequence[GradientEdge]) -> tuple[Tensor | None, ...] | None:
    """Return the gradients, or None where the pass has to be run once more with what it writes kept."""
    with no_autocast(losses.device):
        try:
            return torch.autograd.grad(losses.sum(), edges, allow_unused=True)
        except Exception as error:
            refuse_own_error(error, losses)
            if "inplace operation" not in str(error):
                raise
            if tracer.layout.copies:
                raise AnatomyError(
                    "Expected a network that can be differentiated, but it overwrites in place what its own backward "
                    f"pass needs: {str(error).splitlines()[0]} Write h = h + f instead of h += f there."
                ) from None
            return None


def watched_layers(model: nn.Module) -> LayerCapture:
    """Return what takes down the layers of a pass, to see whether there is a way past them: a residual stream."""
    names = {id(module): path for path, module in named_modules_of(model)}
    return LayerCapture(names, tuple(module for _, module in weighted_modules(model)))


def attach_layers(session: Tracer, modules: Sequence[nn.Module], stack: ExitStack) -> None:
    """Note, for as long as `stack` lasts, when the network runs outside of a pass: a credit may run it."""

    def ran(*_: object) -> None:
        session.asked.ran = session.asked.ran or session.capture is None

    for module in modules:
        stack.callback(module.register_forward_pre_hook(ran).remove)
