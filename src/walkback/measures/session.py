"""The reference of a measuring session: where it comes from, and whether finite differences confirm it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from walkback.errors import InputError, shown
from walkback.measures.measurements import Found
from walkback.network.anatomy import Layers
from walkback.notes import Note
from walkback.tracing.backward import BackwardCheck, check_backward
from walkback.tracing.session import Tracer
from walkback.tracing.trace import Trace

REFERENCES = {
    "own": "the network's own backward pass",
    "derived": "derived from the forward pass alone",
    "twin": "a plain twin of the network",
}
_UNSUSPECTED = BackwardCheck("cannot-tell", "not-needed")


class Session:
    """Checks the backward pass on the first trace, and tells what the tracer found out about the network.

    Args:
        tracer: of the measurement.
        recorded: do the credits come from a backward pass that may be altered, so that the check must have an answer?
        options: what was asked for, shown among the conditions.
    """

    def __init__(self, tracer: Tracer, recorded: bool, options: dict[str, Any]) -> None:
        self._tracer, self._recorded, self._options = tracer, recorded, options
        self._check: BackwardCheck | None = None

    def update(self, trace: Trace) -> None:
        """Check the first trace; an InputError where a reference that was asked for is not the derivative."""
        if self._check is None:
            doubtful = self._tracer.reading.suspect or self._tracer.reference != "own"
            self._check = check_backward(self._tracer, trace) if doubtful else _UNSUSPECTED
            self._device = trace.logits.device.type
            _refuse_wrong_reference(self._tracer, self._check, self._recorded)

    def compute(self, found: Found) -> None:
        """Give altered and doubted, with the conditions and notes of the tracer."""
        tracer, check = self._tracer, self._check
        assert check is not None
        read: dict[str, Any] = {"blocks_return": {True: "branch", False: "state", None: "unknown"}[tracer.branch]}
        if isinstance(tracer.anatomy, Layers):
            read = {"sites": list(tracer.anatomy.site_names)}
        found.conditions |= {
            **read,
            "anatomy": [" ".join(row) for row in tracer.anatomy.rows()],
            "guessed": tracer.reading.guesses,
            **_share(tracer),
            "tokens_read": tracer.read_tokens,
            **self._options,
            "loss": tracer.loss_name,
            "reference": REFERENCES[tracer.reference],
            "backward_error": check.error,
            "autocast": torch.is_autocast_enabled(self._device),
            "torch": torch.__version__,
        }
        if check.error is None:
            found.reasons["backward_error"] = check.why
        unchecked = {"cause": check.cause, "why": check.why}
        open_ = tracer.reading.suspect and check.answer == "cannot-tell"
        if open_ and tracer.reference == "own":
            found.values["doubted"] = Note("unchecked-backward", None, unchecked)
        elif open_:
            values = {"reference": REFERENCES[tracer.reference], **unchecked}
            found.notes.append(Note("unchecked-reference", None, values))
        if check.agrees is False:
            values = {"error": check.error, "limit": check.limit, "sites": list(check.sites), "cause": check.cause}
            found.values["altered"] = Note("altered-backward", None, values)
        found.notes += tracer.notes


def _share(tracer: Tracer) -> dict[str, Any]:
    """Return what share of the weights is measured, and where the others are."""
    share = tracer.anatomy.share
    return {} if share is None else {"weights_in_sites": share.inside, "weights_outside": list(share.outside)}


def _refuse_wrong_reference(tracer: Tracer, check: BackwardCheck, recorded: bool) -> None:
    """Refuse a reference that was asked for and is not the derivative; of recorded credits this must have been seen."""
    if tracer.reference != "own" and check.agrees is False:
        which, remedy = {
            "derived": (
                "the derived reference",
                "The forward pass leaves torch on its way (numpy, .data, a kernel of its own). Pass a plain twin of "
                "the network with the same weights: reference=twin.",
            ),
            "twin": ("the twin's gradient", "Its backward pass is altered too: build it from plain layers."),
        }[tracer.reference]
        raise InputError(
            f"Expected {which} to predict how the loss changes, but finite differences disagree by {check.error:.2%} "
            f"(limit {check.limit:.2%}). {remedy}"
        )
    if recorded and check.agrees is None:
        raise InputError(
            "Expected a reference that finite differences can confirm, since recorded credits come from a backward "
            f"pass that may be altered, but {check.why}. {check.remedy}, or give the credits as a function of the "
            "trace."
        )


def paired_by(pairing: str) -> Callable[[Trace], Trace]:
    """Return what puts the credits beside the gradients that they are compared with."""
    if not isinstance(pairing, str) or pairing not in PAIRINGS:
        raise InputError(f"Expected pairing to be one of {', '.join(PAIRINGS)}, but got {shown(pairing)}.")
    return PAIRINGS[pairing]


def _shifted(trace: Trace) -> Trace:
    """Return the trace with the credit of site l + 1 at site l; the last site, which has none above, keeps its own."""
    if trace.credits is None:
        raise InputError('Expected a credit with pairing="shifted", but none was given.')
    if any(a.shape != trace.credits[0].shape for a in trace.credits):
        raise InputError('Expected a stream of one shape with pairing="shifted", but it changes its shape on the way.')
    return replace(trace, credits=(*trace.credits[1:], trace.credits[-1]))


PAIRINGS: dict[str, Callable[[Trace], Trace]] = {"site": lambda trace: trace, "shifted": _shifted}
