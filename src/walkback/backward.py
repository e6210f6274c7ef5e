"""Is the reference the derivative of the loss? Asked of the loss itself, by finite differences.

A network whose own backward pass is altered (custom autograd Functions, backward hooks, straight-through tricks) makes
`torch.autograd.grad` return something else than ∂loss/∂h_l, without a word. A step along a known direction at every
site must change the loss by what the reference says.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from walkback.batch import mapped, split
from walkback.probes import double_weights, is_sharded
from walkback.trace import Trace, Tracer
from walkback.values import has_float64, no_autocast, widened

SAMPLES = 16
SEED = 0
# In float64 the reference's own rounding (float32) is what is left; in float32, that of the loss.
TOLERANCE = {torch.float64: 1e-3, torch.float32: 5e-2}
# As a share of ‖h_l‖, over all sites together; the next where rounding or kinks drown the one before.
STEPS = {torch.float64: (1e-6, 1e-4), torch.float32: (1e-2, 1e-3)}
COPY_LIMIT = 2**28  # bytes a float64 copy of the weights may take; larger networks are checked in float32
OUTLIERS = 0.1  # a sample may sit at a kink


@dataclass(frozen=True)
class BackwardCheck:
    """What finite differences say of the reference.

    Args:
        error: |change of the loss − what the reference predicts| in units of the largest change there could be; the
            value that nine samples in ten stay under. None: could not be told.
        limit: above this the reference is not the derivative of the loss.
        sites: the sites that disagree, where the check failed.
        why: the reason of a None.
        dtype: what the loss was computed in.
    """

    error: float | None
    limit: float = 0.0
    sites: tuple[int, ...] = ()
    why: str = ""
    dtype: str = ""

    @property
    def agrees(self) -> bool | None:
        """True, False, or None when it could not be told."""
        return None if self.error is None else self.error <= self.limit


@torch.no_grad()
def check_backward(tracer: Tracer, trace: Trace) -> BackwardCheck:
    """Compare `trace.grads` with central differences of the loss, on the first 16 samples of an open tracer's trace.

    One direction per sample at every site at once: half along the reference (which shows a wrong length), half random
    (which shows what the reference leaves out). Four forward passes of 16 samples where all is well.

    >>> import walkback as wb
    >>> with wb.Tracer(wb.selftest.healthy()) as tracer:
    ...     check_backward(tracer, tracer.trace(*wb.selftest.batches(1)[0])).agrees
    True
    """
    device = trace.losses.device
    dtypes = {t.dtype for t in (*trace.states, *trace.grads)}
    if not dtypes <= set(TOLERANCE):
        lower = ", ".join(sorted(str(d).removeprefix("torch.") for d in dtypes - set(TOLERANCE)))
        return BackwardCheck(None, why=f"finite differences need float32 or float64, but this pass runs in {lower}")
    if torch.is_autocast_enabled(device.type):
        return BackwardCheck(None, why="finite differences need float32 or float64, but autocast is on")
    if not tracer.per_sample:
        return BackwardCheck(None, why="the loss returns a mean; finite differences need one loss per sample")
    size = 8 * sum(t.numel() for t in (*tracer.model.parameters(), *tracer.model.buffers()))
    copies = has_float64(device) and size <= COPY_LIMIT and not is_sharded(tracer.model)
    wide = torch.float64 in dtypes or copies
    why = ""
    for dtype in (torch.float64, torch.float32) if wide else (torch.float32,):
        try:
            with no_autocast(device):
                return _compare(tracer, trace, dtype)
        except RuntimeError as error:  # a network that fixes its dtype, or can't be run on 16 samples
            why = f"the network can't be run again from its sites: {str(error).splitlines()[0]}"
    return BackwardCheck(None, why=why)


def _compare(tracer: Tracer, trace: Trace, dtype: torch.dtype) -> BackwardCheck:
    few = slice(SAMPLES)
    convert = dtype == torch.float64 and any(h.dtype != dtype for h in trace.states)
    weights = double_weights(tracer.model) if convert else None
    x, y = next(split(trace.inputs, trace.labels, SAMPLES))
    x = mapped(x, lambda t: t.to(dtype) if t.is_floating_point() else t)
    states, grads = ([t[few].to(dtype) for t in tensors] for tensors in (trace.states, trace.grads))
    generator = torch.Generator(states[0].device).manual_seed(SEED)
    ways = [
        _shaped(_norms(h) / len(states), h) * (_unit(g) + _unit(_normal(h, generator))) for h, g in zip(states, grads)
    ]

    limit, name = TOLERANCE[dtype], str(dtype).removeprefix("torch.")
    every = tuple(range(len(states)))

    def losses(share: float, sites: tuple[int, ...]) -> Float[Tensor, " batch"]:
        return tracer.replay(x, y, {site: share * ways[site] for site in sites}, weights)

    def error(sites: tuple[int, ...], step: float) -> float | None:
        up, down = losses(step, sites), losses(-step, sites)
        if not torch.allclose((up + down) / 2, widened(trace.losses[few]), rtol=1e-2, atol=1e-2, equal_nan=True):
            raise _OtherLossError
        near = (up - down) / (2 * step)
        far = (losses(2 * step, sites) - losses(-2 * step, sites)) / (4 * step)
        said = torch.stack([widened((grads[s] * ways[s]).flatten(1).sum(1)) for s in sites]).sum(0)
        scale = torch.stack([widened(_norms(grads[s]) * _norms(ways[s])) for s in sites]).sum(0)
        usable = (near - far).abs() <= limit * scale  # a kink, noise or rounding makes the two steps disagree
        if 2 * int(usable.sum()) < len(scale) or not bool((scale[usable] > 0).any()):
            return None
        return float(((near - said).abs() / scale)[usable].nan_to_num().quantile(1 - OUTLIERS))

    for step in STEPS[dtype]:
        try:
            found = error(every, step)
        except _OtherLossError:
            return BackwardCheck(
                None,
                why="the first samples alone get another loss than within their batch: the forward pass is random, or "
                "couples its samples",
            )
        if found is not None:
            sites = tuple(s for s in every if (error((s,), step) or 0.0) > limit) if found > limit else ()
            return BackwardCheck(found, limit, sites, dtype=name)
    return BackwardCheck(None, why="finite differences are too noisy here: no change of the loss that can be read")


class _OtherLossError(Exception):
    """The loss of the few samples is not the one they had in their batch."""


def _norms(x: Tensor) -> Float[Tensor, " batch"]:
    return torch.linalg.vector_norm(x.flatten(1), dim=1)


def _shaped(per_sample: Tensor, like: Tensor) -> Tensor:
    return per_sample.view(-1, *[1] * (like.ndim - 1))


def _unit(x: Tensor) -> Tensor:
    norms = _norms(x)
    return x / _shaped(torch.where(norms > 0, norms, 1.0), x)


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)
