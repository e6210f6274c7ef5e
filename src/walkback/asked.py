"""Asking for the credit under test, and refusing what can't be one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from walkback.batch import tensors
from walkback.errors import CreditError
from walkback.prints import fingerprints
from walkback.untouched import Kept, same_buffers, same_parameters, unwritten

if TYPE_CHECKING:
    from walkback.trace import Credit, Trace

LOOKS = 2  # calls after which weights are compared by value whatever their version counter says
CHANGED = (
    "Expected credit(trace) to leave the network as it is, but it changed its weights. They were put back. Leave "
    "updates out of it, or make them on a copy of the network."
)


class Asked:
    """The credit of one batch after the other, on one network."""

    def __init__(self, model: nn.Module) -> None:
        self._modules, self._parameters = tuple(model.modules()), tuple(model.parameters())
        self._calls = 0
        self._kept: Kept | None = None  # the weights as they were at the first call
        self.alone = False  # nothing but the credit runs between batches
        self._previous: tuple[Tensor, Tensor] | None = None  # fingerprints of a batch's credit, and its labels

    def credits(self, credit: Credit, trace: Trace) -> tuple[Tensor, ...]:
        """a_0 … a_L, detached, each shaped like its state."""
        if not callable(credit) or isinstance(credit, type):
            got = (
                f"the class {credit.__name__}: give an instance" if isinstance(credit, type) else type(credit).__name__
            )
            raise CreditError(
                f"Expected credit to be a callable that takes a Trace and returns one tensor per site, but got {got}."
            )
        made = self._ask(credit, trace)
        if isinstance(made, Tensor) or not isinstance(made, Sequence):
            raise CreditError(
                f"Expected credit(trace) to return a sequence of {len(trace.states)} tensors, one per site "
                f"0…{len(trace.states) - 1}, but got {type(made).__name__}."
            )
        if len(made) != len(trace.states):
            raise CreditError(
                f"Expected {len(trace.states)} credits, one per site 0…{len(trace.states) - 1}, but got "
                f"{len(made)}. Site 0 is what the stem writes, site l what block l writes."
            )
        for site, (a, h) in enumerate(zip(made, trace.states)):
            if not isinstance(a, Tensor) or a.shape != h.shape:
                got = tuple(a.shape) if isinstance(a, Tensor) else type(a).__name__
                hint = (
                    " It has another batch size: was it taken on another batch?"
                    if isinstance(a, Tensor) and a.ndim and a.shape[1:] == h.shape[1:]
                    else ""
                )
                raise CreditError(
                    f"Expected the credit of site {site} to have the shape of its state, {tuple(h.shape)}, but got "
                    f"{got}.{hint}"
                )
            if not a.is_floating_point():
                raise CreditError(
                    f"Expected the credit of site {site} to be of a floating point type, but got {a.dtype}."
                )
            if a.device != h.device:
                raise CreditError(
                    f"Expected the credit of site {site} on {h.device} with its state, but it is on {a.device}. "
                    "Compute it from the tensors of the trace."
                )
        credits = tuple(a.detach() for a in made)
        self._refuse_stale(trace, credits)
        return credits

    def _ask(self, credit: Credit, trace: Trace) -> Sequence[Tensor]:
        """Call the credit, and see that it changed nothing it was shown; what it changed is put back.

        The user's data are compared by value with copies that last as long as the call, and so are weights. Where
        nothing but the credit runs between batches (`alone`), one copy of them lasts as long as the session. It is
        looked at after the first calls, later where a version counter has moved, and by `finish`, which finds what was
        written past it.
        """
        weights = () if getattr(credit, "restores_weights", False) else self._parameters
        kept = self._keep(weights)
        made_here = (trace.logits, trace.losses, trace.prints, trace.mask, *(trace.branches or ()))
        ours = [t for t in (*trace.states, *trace.grads, *made_here) if t is not None]
        # By value what is the user's, and what has no version counter.
        shown = (trace.labels, *tensors(trace.inputs).values(), *(t for t in ours if t.is_inference()))
        counted = [(t, t._version) for t in ours if not t.is_inference()]
        versions = [p._version for p in weights]
        buffers = [b for m in self._modules for b in m._buffers.values() if b is not None]
        with ExitStack() as stack:
            stack.enter_context(same_buffers(self._modules))
            replaced = stack.enter_context(same_parameters(self._modules))
            written = stack.enter_context(unwritten((*buffers, *shown)))
            try:
                made = credit(trace)
            except Exception as error:
                error.add_note(f"(raised by credit(trace), on batch {trace.index})")
                raise
            finally:
                look = self._calls <= LOOKS or versions != [p._version for p in weights]
                rewritten = kept.put_back() if look or not self.alone else []
        changed = {id(t) for t in written}
        if any(t._version != version for t, version in counted) or any(id(t) in changed for t in shown):
            raise CreditError(
                "Expected credit(trace) to leave the trace as it is, but it wrote into its tensors in place. Work on a "
                "copy: t.clone()."
            )
        if replaced or rewritten:
            raise CreditError(CHANGED)
        for module in self._modules:
            if module.training:  # the next batch is measured in eval mode too
                module.training = False
        return made

    def _keep(self, weights: Sequence[Tensor]) -> Kept:
        """The copy of the weights that this call is held against."""
        self._calls += 1
        if self.alone and self._calls == 2 and self._kept is not None and self._kept.changed():
            self.alone = False  # the network writes to its weights by itself, in its forward pass
        if self._kept is None or not self.alone:
            self._kept = Kept(weights)
        return self._kept

    def finish(self, put_back_only: bool = False) -> None:
        """At the end of a session: put back weights that were written past the version counter, and complain."""
        kept, self._kept = self._kept, None
        if kept is not None and self.alone and kept.put_back() and not put_back_only:
            raise CreditError(CHANGED)

    def _refuse_stale(self, trace: Trace, credits: tuple[Tensor, ...]) -> None:
        """Two batches with the same per-sample credit: it was recorded once, on another batch."""
        if trace.index > 1:
            return  # what was recorded once shows in the first two batches
        ours = torch.stack([fingerprints(a) for a in credits])
        # A rule may see labels only (target projection): two batches with the same labels may get the same credit.
        before, self._previous = self._previous, (ours, trace.labels)
        if before is None or before[0].shape != ours.shape or torch.equal(before[1], trace.labels):
            return
        same, varies = (before[0] == ours).all(1), (ours != ours[:, :1]).any(1)
        if bool((same & varies).any()):
            raise CreditError(
                "Expected a credit computed from the trace it is given, but the same credit came back for two "
                "different batches: it was taken on another batch. Compute it inside credit(trace)."
            )
