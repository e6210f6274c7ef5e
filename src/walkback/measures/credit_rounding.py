"""Whether a credit is more than rounding: on the first batch, with everything it is computed from in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from walkback.errors import cut
from walkback.measures.rounding import least_norm, unit_rows
from walkback.notes import Note
from walkback.tracing.recorded import Recorded
from walkback.tracing.session import Tracer
from walkback.tracing.trace import Credit, Trace

CLEAR = 0.05  # of a cosine: as large as the error from which a reference counts as rounding
AGAIN = "once more in float64, on the first batch"
RECORDED = "a recorded credit is what the network's own code gives, and that was not run in float64"


@dataclass(frozen=True)
class CreditAgain:
    """Whether the credit was computed again in float64, or why not, with a note for every site where that differs."""

    asked: bool
    why: str = ""
    notes: tuple[Note, ...] = ()

    @property
    def conditions(self) -> dict[str, Any]:
        """What a report keeps of it: whether it was asked, and in words how or why not."""
        return {"credit_again": self.asked, "credit": AGAIN if self.asked else f"not in float64: {self.why}"}


class CreditRounding:
    """Asks for the credit of the first batch once more, in float64.

    A rule (an nn.Module) is copied with the network, and its copy is asked at once. A plain function can't be copied.
    It is asked after all batches, so that one which counts its calls gives every batch the credit it would have given.

    Args:
        tracer: the session the traces come from.
        credit: what gave `trace.credits`.
        paired: what put the credits beside the gradients that they are compared with.
    """

    def __init__(self, tracer: Tracer, credit: Credit, paired: Callable[[Trace], Trace]) -> None:
        self._tracer, self._credit, self._paired = tracer, credit, paired
        self._later: tuple[Trace, Trace] | None = None
        self._answer: CreditAgain | None = None

    def see(self, trace: Trace, exact: Trace) -> None:
        """Take the first batch, as measured and in float64; later ones change nothing."""
        if self._answer is not None or self._later is not None:
            return
        known = {name: getattr(trace, name) for name in ("index", "prints", "pool", "mask")}
        exact = replace(exact, **known)  # a batch that is run again is not counted
        if isinstance(self._credit, Recorded):
            self._answer = CreditAgain(False, RECORDED)
        elif isinstance(self._credit, nn.Module):
            self._answer = self._ask(self._of_copies(self._credit), trace, exact)
        else:
            self._later = trace, exact

    def answer(self, otherwise: str) -> CreditAgain:
        """Return what was found; `otherwise` is why no batch could be computed in float64."""
        if self._later is not None:
            self._answer = self._ask(self._of_function, *self._later)
            self._later = None
        return self._answer or CreditAgain(False, otherwise)

    def _ask(self, ask: Callable[[Trace, Trace], tuple[Any, Any]], trace: Trace, exact: Trace) -> CreditAgain:
        assert trace.credits is not None
        try:
            with torch.random.fork_rng(devices=[trace.losses.device] if trace.losses.is_cuda else []):
                repeated, credits = (self._beside(made, of) for made, of in zip(ask(trace, exact), (trace, exact)))
        except _CannotAsk as reason:
            return CreditAgain(False, str(reason))
        except Exception as error:  # whatever a credit raises in another dtype, or a network that can't be copied
            return CreditAgain(False, cut((str(error).strip() or type(error).__name__).splitlines()[0], 160))
        if not all(torch.equal(a, b) for a, b in zip(repeated, trace.credits)):
            return CreditAgain(False, "it is another credit when it is asked for twice")
        low = {a.dtype for a in credits} - {torch.float64}
        if low:
            return CreditAgain(False, f"it is computed in {low.pop()} whatever the trace is")
        notes = []
        for site, (a, b) in enumerate(zip(trace.credits, credits)):
            reported, exactly = _cosine(a, trace.grads[site]), _cosine(b, exact.grads[site])
            if exactly is not None and abs(exactly - (reported or 0.0)) > CLEAR:
                notes.append(Note("rounded-credit", site, {"reported": reported, "float64": exactly}))
        return CreditAgain(True, notes=tuple(notes))

    def _of_copies(self, rule: nn.Module) -> Callable[[Trace, Trace], tuple[Any, Any]]:
        """Return what asks a copy of a rule, made together with the network: one that runs its blocks runs copies."""

        def ask(trace: Trace, exact: Trace) -> tuple[Any, Any]:
            network, copied = deepcopy((self._tracer.model, rule))
            repeated = copied(_unpaired(trace))
            network.double()
            copied.double()
            return repeated, copied(_unpaired(exact))

        return ask

    def _of_function(self, trace: Trace, exact: Trace) -> tuple[Any, Any]:
        """Ask a function as a measurement does, so that weights it changes are put back."""
        with _Draws() as draws:
            repeated = self._tracer.asked.credits(self._credit, _unpaired(trace))
        if draws.seen:  # torch draws other numbers in float64, from the same seed too
            raise _CannotAsk("it draws random numbers, which are others in float64")
        return repeated, self._tracer.asked.credits(self._credit, _unpaired(exact))

    def _beside(self, made: Sequence[Tensor], trace: Trace) -> Sequence[Tensor]:
        credits = self._paired(replace(trace, credits=tuple(a.detach() for a in made))).credits
        assert credits is not None
        return credits


class _CannotAsk(Exception):
    """Why a credit can't be asked for in float64."""


class _Draws(TorchDispatchMode):
    """Notices whether torch draws random numbers, from whatever generator."""

    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def _unpaired(trace: Trace) -> Trace:
    """Return the trace as a credit is shown it: without credits."""
    return replace(trace, credits=None)


def _cosine(credit: Tensor, gradient: Tensor) -> float | None:
    """Return the mean cosine over samples, in float64; a sample without a direction counts as 0, None if all are."""
    least = least_norm(torch.float64)
    (a, has_a), (g, has_g) = unit_rows(credit, least), unit_rows(gradient, least)
    cosines = torch.where(has_a & has_g, (a * g.to(a.device)).sum(1), 0.0)
    return float(cosines.mean()) if bool((has_a & has_g).any()) and bool(cosines.isfinite().all()) else None
