"""Where a state is read: one vector per sample, at the token of the readout, averaged over tokens, or whole."""

from __future__ import annotations

from typing import TypeGuard

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from walkback.network.layers import WHOLE
from walkback.tracing.trace import Trace


def readers(trace: Trace) -> Int[Tensor, " batch"] | None:
    """Find (B,) the token that each sample's readout looks at, where that differs between samples.

    0 for a sample that is not `shown`: its gradient is zero there as at every token, its state is another.
    """
    deepest = trace.grads[-1]
    if trace.pool != "readout" or deepest.ndim != 3:
        return None
    sizes = torch.linalg.vector_norm(deepest, dim=-1, dtype=torch.float64)
    # Squares of entries under 1e-162 are 0 in float64.
    return torch.where(sizes.amax(1, keepdim=True) > 0, sizes, deepest.abs().amax(-1).double()).argmax(1)


def shown(trace: Trace) -> Bool[Tensor, " batch"] | None:
    """Find (B,) the samples whose gradient shows at which token they are read; None: all, since all tokens count."""
    deepest = trace.grads[-1]
    if deepest.ndim != 3 or trace.pool in (None, "mean", WHOLE):
        return None
    return (deepest != 0).flatten(1).any(1)


def pool_at(trace: Trace, state: Tensor) -> int | str | None:
    """Return where a state is read: as the last one, or averaged where its stage has other tokens.

    A token of the last stage is none of another stage.
    """
    last = trace.states[-1]
    other = state.ndim == 3 and last.ndim == 3 and state.shape[1] != last.shape[1]
    return "mean" if other and trace.pool not in (None, WHOLE) else trace.pool


def fits(mask: Tensor | None, state: Tensor) -> TypeGuard[Tensor]:
    """Return whether this masks these states' tokens: the stream may have others than the inputs (cls, patches)."""
    return mask is not None and mask.shape == state.shape[:2]


def site_vectors(
    state: Tensor, pool: int | str | None, reader: Tensor | None = None, mask: Tensor | None = None
) -> Float[Tensor, "batch width"]:
    """Take one vector per sample: (B, d) as it is, (B, T, d) at the readout's token or averaged, else flattened.

    `pool` is a token, "mean", or "readout" with `reader` (B,); `mask` (B, T) says which tokens count in an average.
    """
    if state.ndim == 3 and pool != WHOLE:
        if pool == "readout" and reader is not None and state.shape[1] > int(reader.max()):
            return state[torch.arange(len(state), device=state.device), reader]
        if isinstance(pool, int) and -state.shape[1] <= pool < state.shape[1]:
            return state[:, pool]
        if fits(mask, state):
            return (state.double() * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        return state.mean(1, dtype=torch.float64)
    return state.flatten(1)
