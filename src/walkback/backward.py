"""Is the reference the derivative of the loss? Asked of the loss itself, by finite differences.

A network whose own backward pass is altered (custom autograd Functions, backward hooks, straight-through tricks) makes
`torch.autograd.grad` return something else than ∂loss/∂h_l, without a word. A step along a known direction at every
site must change the loss by what the reference says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from walkback.batch import Inputs, mapped, split
from walkback.probes import double_weights, is_sharded
from walkback.trace import Trace, Tracer
from walkback.values import buffers_of, has_float64, logits_of, no_autocast, parameters_of, places, widened

SAMPLES = 16
SEED = 0
# (limit, step), the next where rounding or kinks drown the one before. The step is a share of ‖h_l‖, over all sites
# together. In float64 the reference's own rounding (float32) is what is left; in float32, that of the loss.
_ROUNDED = ((5e-2, 1e-2), (5e-2, 1e-3))
LADDERS = {
    torch.float64: ((1e-3, 1e-6), (1e-3, 1e-4), *_ROUNDED),  # a layer may round to float32 by itself
    torch.float32: _ROUNDED,
}
COPY_LIMIT = 2**28  # bytes a float64 copy of the weights may take; larger networks are checked in float32
OUTLIERS = 0.1  # a sample may sit at a kink
DOUBT = 10  # times the noise: an error below it accuses nobody


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
    (which shows what the reference leaves out). Four forward passes of 16 samples where all is well. A loss that
    returns a mean is asked for one sample after the other, see `_Parts`. In half precision and under autocast the
    rounding of g_l would drown an answer: there 32 samples are traced once more in a wider type, and that is checked.

    >>> import walkback as wb
    >>> with wb.Tracer(wb.selftest.healthy()) as tracer:
    ...     check_backward(tracer, tracer.trace(*wb.selftest.batches(1)[0])).agrees
    True
    """
    device, model = trace.losses.device, tracer.model
    native = {t.dtype for t in (*trace.states, *trace.grads)}
    low = ", ".join(sorted(str(d).removeprefix("torch.") for d in native - set(LADDERS)))
    narrow = "under autocast" if torch.is_autocast_enabled(device.type) else f"in {low}" if low else ""
    size = 8 * sum(t.numel() for t in (*parameters_of(model), *buffers_of(model)))
    copies = has_float64(device) and size <= COPY_LIMIT and not is_sharded(model)
    dtypes = [torch.float64] if torch.float64 in native or copies else []
    if not narrow or all(p.dtype == torch.float32 for p in parameters_of(model)):
        dtypes.append(torch.float32)
    why = f"its weights can't be copied to float64: {_no_copy(device, model, size)}"
    for dtype in dtypes:
        wider = dtype == torch.float64 and any(h.dtype != dtype for h in trace.states)
        weights = double_weights(model) if wider else None
        try:
            with no_autocast(device):
                return _compare(tracer, _again(tracer, trace, weights, dtype) if narrow else trace, weights, dtype)
        except _UntoldError as error:
            return BackwardCheck(None, why=str(error))
        # Whatever a network raises in another dtype, or on 16 samples: it is said.
        except Exception as error:
            said = (str(error).strip() or repr(error)).splitlines()[0]
            why = f"the network can't be run again from its sites: {said}"
    needs = f"finite differences need float32 or float64, but this pass runs {narrow}, and " if narrow else ""
    return BackwardCheck(None, why=needs + why)


def _no_copy(device: torch.device, model: nn.Module, size: int) -> str:
    if not has_float64(device):
        return f"{device.type} has no float64"
    if is_sharded(model):
        return "that would gather a sharded network"
    return f"they would take {size / 2**20:.0f} MB, and the limit is {COPY_LIMIT / 2**20:.0f}"


def _again(tracer: Tracer, trace: Trace, weights: dict[str, Tensor] | None, dtype: torch.dtype) -> Trace:
    """Twice as many samples as are checked, in `dtype`: those that see each other show it when half of them is run."""
    x, y = _first(trace, 2 * SAMPLES, dtype)
    with torch.enable_grad():
        again = tracer.again(x, y, weights or dict(places(tracer.model)))
    other = {t.dtype for t in (*again.states, *again.grads)} - {dtype}
    if other:
        raise TypeError(f"it computes in {str(other.pop()).removeprefix('torch.')} whatever its weights are")
    return again


def _first(trace: Trace, count: int, dtype: torch.dtype) -> tuple[Inputs, Tensor]:
    x, y = next(split(trace.inputs, trace.labels, count))
    return mapped(x, lambda t: _as(t, dtype)), _as(y, dtype)


def _as(t: Tensor, dtype: torch.dtype) -> Tensor:
    return t.to(dtype) if t.is_floating_point() else t


class _Parts:
    """What each of the first samples has of a mean loss over B, (few,): the mean, and B times the change of it when
    the logits of that sample alone are put into the batch.

    The network is run on the few only, and the loss still sees the whole batch: it may weigh its samples by what else
    is there (class weights, tokens that are left out, negatives), and g_l was taken with that.
    """

    def __init__(self, tracer: Tracer, trace: Trace, dtype: torch.dtype) -> None:
        self.tracer, self.labels, self.logits = tracer, _as(trace.labels, dtype), trace.logits.to(dtype, copy=True)
        self.mean = self._mean()

    def _mean(self) -> Tensor:
        return widened(self.tracer.losses(self.logits, self.labels)[0])

    def replay(self, x: Inputs, y: Tensor, deltas: Mapping[int, Tensor], weights: dict[str, Tensor] | None) -> Tensor:
        """As `Tracer.replay`, for a loss that returns a mean."""
        seen: list[Tensor] = []
        handle = self.tracer.model.register_forward_hook(lambda module, args, made: seen.append(logits_of(made)))
        try:
            self.tracer.replay(x, y, deltas, weights)
        finally:
            handle.remove()
        batch, few = len(self.labels), seen[-1]
        if few.shape != (len(y), *self.logits.shape[1:]) or len(self.logits) != batch:
            raise _UntoldError("the loss returns a mean, and what the network returns has no axis of samples in front")
        changed = [self._with(i, row) for i, row in enumerate(few)]
        return self.mean + batch * (torch.stack(changed) - self.mean)

    def _with(self, i: int, row: Tensor) -> Tensor:
        kept = self.logits[i].clone()
        self.logits[i] = row
        mean = self._mean()
        self.logits[i] = kept
        return mean


def _compare(tracer: Tracer, trace: Trace, weights: dict[str, Tensor] | None, dtype: torch.dtype) -> BackwardCheck:
    # With a mean never the whole batch: what has the samples first is then seen by its shape.
    count = SAMPLES if tracer.per_sample else min(SAMPLES, len(trace.labels) - 1)
    few = slice(count)
    replay = tracer.replay if tracer.per_sample else _Parts(tracer, trace, dtype).replay
    x, y = _first(trace, count, dtype)
    states, grads = ([t[few].to(dtype) for t in tensors] for tensors in (trace.states, trace.grads))
    generator = torch.Generator(states[0].device).manual_seed(SEED)
    ways = [
        _shaped(_norms(h) / len(states), h) * (_unit(g) + _unit(_normal(h, generator))) for h, g in zip(states, grads)
    ]

    every = tuple(range(len(states)))

    def losses(share: float, sites: tuple[int, ...]) -> Float[Tensor, " batch"]:
        return replay(x, y, {site: share * ways[site] for site in sites}, weights)

    def error(sites: tuple[int, ...], step: float, limit: float) -> float | None:
        up, down = losses(step, sites), losses(-step, sites)
        if not torch.allclose((up + down) / 2, widened(trace.losses[few]), rtol=1e-2, atol=1e-2, equal_nan=True):
            raise _UntoldError(
                "the first samples alone get another loss than within their batch: the forward pass is random, or "
                "couples its samples"
            )
        near = (up - down) / (2 * step)
        far = (losses(2 * step, sites) - losses(-2 * step, sites)) / (4 * step)
        said = torch.stack([widened((grads[s] * ways[s]).flatten(1).sum(1)) for s in sites]).sum(0)
        scale = torch.stack([widened(_norms(grads[s]) * _norms(ways[s])) for s in sites]).sum(0)
        noise = (near - far).abs()
        usable = noise <= limit * scale  # a kink, noise or rounding makes the two steps disagree
        if 2 * int(usable.sum()) < len(scale) or not bool((scale[usable] > 0).any()):
            return None
        found = float(((near - said).abs() / scale)[usable].nan_to_num().quantile(1 - OUTLIERS))
        return None if limit < found < DOUBT * float((noise / scale).nan_to_num().median()) else found

    rounded = tracer.losses(_as(trace.logits, dtype), _as(trace.labels, dtype)).dtype  # a loss may cast by itself
    if rounded not in LADDERS:
        raise _UntoldError(f"the loss computes in {str(rounded).removeprefix('torch.')}")
    for limit, step in LADDERS[min(dtype, rounded, key=lambda d: d.itemsize)]:
        found = error(every, step, limit)
        if found is not None:
            sites = tuple(s for s in every if (error((s,), step, limit) or 0.0) > limit) if found > limit else ()
            return BackwardCheck(found, limit, sites, dtype=str(dtype).removeprefix("torch."))
    raise _UntoldError("finite differences are too noisy here: no change of the loss that can be read")


class _UntoldError(Exception):
    """Why it can't be told, whatever the dtype."""


def _norms(x: Tensor) -> Float[Tensor, " batch"]:
    return torch.linalg.vector_norm(x.flatten(1), dim=1)


def _shaped(per_sample: Tensor, like: Tensor) -> Tensor:
    return per_sample.view(-1, *[1] * (like.ndim - 1))


def _unit(x: Tensor) -> Tensor:
    norms = _norms(x)
    return x / _shaped(torch.where(norms > 0, norms, 1.0), x)


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)
