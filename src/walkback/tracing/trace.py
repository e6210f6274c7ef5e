"""What one pass of one batch shows: to a measurement (`Trace`), and to a learning rule (`TrainingPass`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor

from walkback.errors import InputError, shown
from walkback.network.batch import Inputs


# Many fields, since a rule may need whatever a pass showed.
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
        branches: f_1 … f_L where blocks return them and a probe asks for them, else None.

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


class LastGradient(Sequence[Tensor]):
    """The gradients of all sites as a training step has them: item −1 is there, any other one is an error.

    Args:
        last: g_L, (B, …).
        sites: L+1.

    >>> import torch
    >>> grads = LastGradient(torch.ones(2, 3), 5)
    >>> grads[-1].shape, len(grads)
    (torch.Size([2, 3]), 5)
    """

    def __init__(self, last: Tensor, sites: int) -> None:
        self._last, self._sites = last, sites

    def __len__(self) -> int:
        return self._sites

    def __getitem__(self, site: Any) -> Any:
        if site in (-1, self._sites - 1):
            return self._last
        raise InputError(
            "Expected a rule to read the gradient of the last site alone, trace.grads[-1], but it asked for "
            f"{shown(site)}: a training step knows no other, except under backpropagation. A function as credit= may "
            "read them all."
        )


@dataclass(frozen=True)
class TrainingPass:
    """What a training step knows when it asks a rule for credits. Measuring shows a rule no more than this.

    Args:
        states: h_0 … h_L, each (B, ...), detached.
        grads: g_L, the exact gradient of the sum of per-sample losses at the last site, as `grads[-1]`; of every
            site where the rule is exact (BP).
        losses, logits, labels, inputs: as in Trace.
        shared: what `credits` has worked out and `auxiliary_loss` goes on with, by name, in a step of training, which
            asks for both; None where nothing but the credits is asked for.

    >>> import walkback as wb
    >>> class FirstGradient(wb.rules.Rule):
    ...     def credits(self, trace):
    ...         return [trace.grads[0] for _ in trace.states]
    >>> wb.measure(wb.selftest.healthy(), wb.selftest.batches(1), credit=FirstGradient())
    Traceback (most recent call last):
    walkback.errors.InputError: Expected a rule to read the gradient of the last site alone, trace.grads[-1], but it ...
    """

    states: tuple[Tensor, ...]
    grads: Sequence[Tensor]
    losses: Float[Tensor, " batch"]
    logits: Tensor
    labels: Tensor
    inputs: Inputs
    shared: dict[str, Tensor] | None = None

    @staticmethod
    def of(trace: Trace, exact: bool) -> TrainingPass:
        """Return what a training step of an exact rule, or of another one, would have known of this batch."""
        grads = trace.grads if exact else LastGradient(trace.grads[-1], len(trace.states))
        return TrainingPass(trace.states, grads, trace.losses, trace.logits, trace.labels, trace.inputs)


Credit = Callable[[Trace], Sequence[Tensor]]
