"""Blocks drawn anew by their own initialisation, or left out of the stream: what `depth` compares trained ones with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from walkback.errors import InputError, cut
from walkback.network.anatomy import unwrap
from walkback.network.batch import call, pairs
from walkback.network.values import children_of, modules_of, named_modules_of, parameters_of
from walkback.tracing.session import Tracer
from walkback.tracing.untouched import set_modes

Build = Callable[[], nn.Module]


def marks(blocks: Sequence[nn.Module]) -> tuple[float, ...]:
    """Return a number of every weight that is no constant: other draws have others."""
    every = (p.detach().double() for block in blocks for p in parameters_of(block))
    return tuple(float(p.sum()) for p in every if p.numel() and bool((p != p.flatten()[0]).any()))


def randomise(
    model: nn.Module, blocks: Sequence[nn.Module], build: Build | None, anatomy: Any, seen: set[tuple[float, ...]]
) -> None:
    """Give every block a new draw of its initialisation; one that was `seen` before is none, and an InputError."""
    _draw(model, blocks, build, anatomy)
    drawn = marks(blocks)
    if drawn and drawn in seen:
        raise InputError(
            "Expected blocks that are drawn anew every time, but they have the same values twice: build() loads "
            "weights, or sets a seed of its own. Build without either; `seed` sees to it that draws can be repeated."
        )
    seen.add(drawn)


def _draw(model: nn.Module, blocks: Sequence[nn.Module], build: Build | None, anatomy: Any) -> None:
    """Write numbers of a new network to the blocks, or those of their modules' own reset."""
    if build is not None:
        for block, new in zip(blocks, _fresh(model, blocks, build, anatomy), strict=True):
            try:
                block.load_state_dict(new.state_dict())
            except RuntimeError as error:
                raise InputError(
                    f"Expected build() to make blocks like those of the model, but: {cut(str(error), 300)}"
                ) from None
        return
    for block in blocks:
        parts = list(_inside_out(block, set()))
        weights = [(m, name, p) for m in parts for name, p in m._parameters.items() if p is not None]
        with torch.no_grad():
            for *_, p in weights:
                if p.is_floating_point() or p.is_complex():
                    p.fill_(math.nan)  # it still is, where no reset writes to it
            for reset in filter(callable, map(_reset_of, parts)):
                reset()
        if left := [(m, name) for m, name, p in weights if bool(p.isnan().any())]:
            module, name = left[0]
            does = f"writes no numbers to its {name}" if callable(_reset_of(module)) else "none"
            raise InputError(
                f"Expected every part of a block to have reset_parameters(), but {type(module).__name__} has "
                f"parameters of its own and {does}. Give build=, a function that makes a new network."
            )


def _reset_of(module: nn.Module) -> Any:
    """Return what draws a module's own parameters anew, None where it has nothing of the kind."""
    return getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)  # torch's attention


def _inside_out(module: nn.Module, seen: set[int]) -> Iterator[nn.Module]:
    """Yield the modules of a block as they are built: parts before what holds them, which may draw them otherwise."""
    if id(module) not in seen:
        seen.add(id(module))
        for _, child in children_of(module):
            yield from _inside_out(child, seen)
        yield module


def _fresh(model: nn.Module, blocks: Sequence[nn.Module], build: Build, anatomy: Any) -> Sequence[nn.Module]:
    """Return the blocks of a new network: those it has, or where an anatomy names parts, those under the same paths."""
    other = build()
    if not isinstance(other, nn.Module):
        raise InputError(f"Expected build() to return a torch.nn.Module, but got {type(other).__name__}.")
    if anatomy is None:
        with Tracer(other) as tracer:
            fresh = tracer.anatomy.depth_modules(tracer.model)
    else:
        paths, there = ({id(m): p for p, m in named_modules_of(model)}), dict(named_modules_of(unwrap(other)))
        fresh = [there[path] for path in (paths[id(block)] for block in blocks) if path in there]
    if len(fresh) != len(blocks):
        raise InputError(f"Expected build() to make {len(blocks)} blocks, but it makes {len(fresh)}.")
    return fresh


@torch.no_grad()
def settle(model: nn.Module, parts: Sequence[nn.Module], batches: Iterable[Any]) -> None:
    """Let batch norms of random blocks, and of what reads them, take the statistics of the training samples."""
    norms = [m for part in parts for m in modules_of(part) if getattr(m, "running_mean", None) is not None]
    if not norms:
        return
    before = [(m, m.momentum) for m in norms]  # type: ignore[attr-defined]
    for module in norms:
        module.reset_running_stats()  # type: ignore[operator]
        module.momentum = None  # type: ignore[assignment]  # the plain average over all batches
    set_modes((m, True) for m in norms)
    try:
        for x, _ in pairs(batches, model):
            call(model, x)
    finally:
        set_modes((m, False) for m in norms)
        for module, momentum in before:
            module.momentum = momentum  # type: ignore[assignment]


class NoStream(Exception):
    """A block that can't be left out."""


@contextmanager
def skipped(blocks: Sequence[nn.Module], branch: bool) -> Iterator[None]:
    """Let these blocks add nothing to the stream inside the `with` block."""

    def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        made = out[0] if isinstance(out, tuple) else out
        stream = next((v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)), None)
        if not isinstance(made, Tensor) or stream is None or stream.shape != made.shape:
            raise NoStream
        left = torch.zeros_like(made) if branch else stream.clone()  # a tensor of its own, as every block makes one
        return (left, *out[1:]) if isinstance(out, tuple) else left

    with ExitStack() as stack:
        for block in blocks:
            stack.callback(block.register_forward_hook(hook, with_kwargs=True).remove)
        yield
