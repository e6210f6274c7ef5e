"""A batch once more: with other weights, in float64, from sites that are moved, or block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from walkback.errors import InputError
from walkback.network.anatomy import Layers
from walkback.network.batch import Inputs, call, mapped
from walkback.network.values import first_tensor, fragile, logits_of, members, parameters_of, places, stream_of, swapped
from walkback.tracing.calls import listen
from walkback.tracing.capture import called_at, with_stream
from walkback.tracing.products import Products
from walkback.tracing.sites import moved_layers

if TYPE_CHECKING:
    from walkback.tracing.session import Tracer

Weights = Mapping[str, Tensor] | None  # every parameter and buffer by name; None: the network's own
Deltas = Mapping[int, Tensor]  # site -> what is added to the stream there, shaped like its state


def run(model: nn.Module, x: Inputs, weights: Weights, **kwargs: Any) -> Any:
    """Run the network's own forward pass, with other weights by name where they are given."""
    if weights is None:
        return call(model, x, **kwargs)
    args, named = ((x,), kwargs) if isinstance(x, Tensor) else ((), {**x, **kwargs})
    # `weights` name every place once (see `places`). Left to tie them itself, torch would not put back a module
    # that stands in the network under two names.
    return torch.func.functional_call(model, dict(weights), args, named, tie_weights=False)


def double_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of all parameters and buffers, in float64 where they are floating point."""
    wide: dict[int, Tensor] = {}  # tied weights are copied once
    for _, t in places(model):
        wide.setdefault(id(t), t.detach().double() if t.is_floating_point() else t.detach())
    return {name: wide[id(t)] for name, t in places(model)}


def without_gradients(model: nn.Module, run: Callable[[Weights], Tensor], weights: Weights) -> Tensor:
    """Return what `run` returns without gradients, or with them where that fails: a pass may put hooks on tensors."""
    try:
        with torch.no_grad():
            return run(weights)
    except RuntimeError:
        with torch.enable_grad():
            return run(_trained(model, weights)).detach()


def _trained(model: nn.Module, weights: Weights) -> Weights:
    """Return the weights with those of them that are trained in need of gradients, as the network's own are."""
    if weights is None:
        return None
    needs = {name for name, p in places(model) if isinstance(p, nn.Parameter) and p.requires_grad}
    return {name: t.detach().requires_grad_() if name in needs else t for name, t in weights.items()}


def is_sharded(model: nn.Module) -> bool:
    """Return whether a module's weights are spread over processes, so that a copy would gather them."""
    return any(type(p).__name__ == "DTensor" for p in parameters_of(model))


def _refuse_received(tracer: Tracer) -> None:
    if tracer.layout.received:
        raise InputError(
            "Expected blocks that return the residual branch or the new state, to move the stream at their outputs, "
            "but this network makes its steps outside of the blocks, so its sites can be measured and not moved. Wrap "
            "each step in a module that returns the new state, and name those as blocks."
        )


@contextmanager
def moved(tracer: Tracer, deltas: Deltas, weights: Weights) -> Iterator[None]:
    """Add `deltas[site]` to the stream of one pass inside, with or without gradients."""
    if isinstance(tracer.anatomy, Layers) and tracer.layer_sites:
        with moved_layers(tracer.model, tracer.layer_sites, deltas, tracer.anatomy.products or Products()):
            yield
        return
    _refuse_received(tracer)
    past: list[Tensor] = []  # what a skip outside block 1 has to carry, where the stream can't be written
    done: list[int] = []  # activation checkpointing runs block 1 again, on the stream as it was changed

    def at_stem(delta: Tensor) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            stream = stream_of(module, args, kwargs)
            assert stream is not None
            if not fragile(stream, tracer.own(weights)):
                if not done:
                    done.append(0)
                    # In place: the skip connection must carry it too, and what checkpointing has kept of it.
                    stream.data.add_(delta)
                return None
            if tracer.branch and tracer.capture is not None:
                raise InputError(
                    "Expected a stream that can be moved while gradients are taken, but it starts as a parameter "
                    "or buffer of the network and goes past block 1."
                )
            if tracer.branch:
                past.append(delta)
            return with_stream(args, kwargs, stream, stream + delta)

        return hook

    def at_block(turns: Sequence[int]) -> tuple[Callable[..., Any], Callable[..., Any]]:
        ran: list[int] = []  # calls of this module that have begun

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if len(ran) == len(turns) > 1:
                raise InputError(
                    "Expected a block that is called several times to run as often as in the first batch, but it runs "
                    "again (activation checkpointing?), and its calls can't be told apart. Turn checkpointing off."
                )
            ran.append(turns[min(len(ran), len(turns) - 1)])
            return at_stem(parts[0])(module, args, kwargs) if ran[-1] == 0 and 0 in parts else None

        def after(module: nn.Module, output: Any) -> Any:
            made = first_tensor(members(output))
            assert made is not None
            moved = made + past.pop() if past else made
            moved = moved + parts[ran[-1] + 1] if ran[-1] + 1 in parts else moved
            return None if moved is made else swapped(output, made, moved)

        return before, after

    parts = {site: tracer.layout.batch_first(change) for site, change in deltas.items()}
    with ExitStack() as hooks:
        for block, turns in called_at(tracer.anatomy):
            if any(i + 1 in parts for i in turns) or (0 in turns and 0 in parts):
                listen(hooks, block, *at_block(turns), tracer.anatomy.by_forward)
        yield


@torch.no_grad()
def branches_at(tracer: Tracer, x: Inputs, states: Sequence[Tensor], weights: Weights) -> list[Tensor | None]:
    """Return f_1 … f_L with every block l given states[l - 1] in place of what it would receive, run with `weights`.

    None for a block that changes the shape of the stream: it writes a new one rather than add to it.
    """
    _refuse_received(tracer)
    made: list[Tensor] = []
    batch_first = tracer.layout.batch_first

    def run(weights: Weights) -> Tensor:
        made.clear()
        return logits_of(tracer.run(mapped(x, torch.clone), weights))

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        stream = stream_of(module, args, kwargs)
        assert stream is not None
        return with_stream(args, kwargs, stream, batch_first(states[len(made)]).clone())

    def after(module: nn.Module, output: Any) -> None:
        branch = first_tensor(members(output))
        assert branch is not None
        made.append(batch_first(branch).detach().clone())

    with ExitStack() as stack:
        for block, _ in called_at(tracer.anatomy):
            listen(stack, block, before, after, tracer.anatomy.by_forward)
        without_gradients(tracer.model, run, weights)
    if tracer.branch:
        return list(made)
    return [new - h if new.shape == h.shape else None for h, new in zip(states, made)]
