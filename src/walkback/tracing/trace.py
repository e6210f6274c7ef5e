"""What one measured pass of one batch gives: states, gradients and credits of every site."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from walkback.network.batch import Inputs


@dataclass(frozen=True)
class Trace:
    """What one pass of one batch showed. Site l is index l of every tuple; tensors are detached.

    Args:
        states: h_0 … h_L, each (B, ...).
        grads: g_0 … g_L, the gradients of the *sum* of per-sample losses, shaped like `states`.
        credits: a_0 … a_L of the rule under test, or None.
        losses: (B,) per-sample losses.
        logits: what the network answered, (B, C) or (B, T, C).
        labels: (B,) classes or (B, C) probabilities, as given.
        inputs: (B, ...) as given, or the model's keywords as a dict.
        pool: where (B, T, d) states are read: token index, "mean", or "readout" (the token each sample reads).
        index: the batch's number.
        prints: (B,) a number that identifies each input, see `fingerprints`.
        mask: (B, T) which tokens are no padding, where the inputs have an `attention_mask`.
        reference: where `grads` come from: the network's "own" backward pass, "derived" from its forward pass
            alone, or a "twin".
        branches: f_1 … f_L where blocks return them and `Tracer.keep_branches` is set, else None.

    >>> import walkback as wb
    >>> with wb.Tracer(wb.selftest.healthy()) as tracer:
    ...     trace = tracer.trace(*wb.selftest.batches(1)[0])
    >>> len(trace.states), trace.grads[-1].shape == trace.states[-1].shape
    (5, True)
    """

    states: tuple[Tensor, ...]
    grads: tuple[Tensor, ...]
    credits: tuple[Tensor, ...] | None
    losses: Float[Tensor, " batch"]
    logits: Tensor
    labels: Tensor
    inputs: Inputs
    prints: Int[Tensor, " batch"] | None = None
    pool: int | str | None = None
    index: int = 0
    mask: Bool[Tensor, "batch tokens"] | None = None
    reference: str = "own"
    branches: tuple[Tensor, ...] | None = None


Credit = Callable[[Trace], Sequence[Tensor]]
