"""Whether a rule's credit is more than rounding: on one batch, with network, rule and states in float64."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from walkback.measures.rounding import least_norm, unit_rows
from walkback.notes import Note
from walkback.tracing.trace import Trace

CLEAR = 0.05  # of a cosine: as large as the error from which a reference counts as rounding
AGAIN = "once more in float64, on the first batch"


def credit_again(model: nn.Module, rule: nn.Module, trace: Trace, exact: Trace) -> tuple[str, list[Note]]:
    """Return how the credit was computed again, or why it was not, and a note for every site where that differs.

    Network and rule are copied together, so that a rule which runs the network's blocks runs their copies. The user's
    own are not touched.

    Args:
        model: the network, whose states and gradients in float64 are in `exact`.
        rule: what gave `trace.credits`.
        trace: a batch as measured.
        exact: the same batch in float64.
    """
    if trace.credits is None:
        return "", []
    try:
        network, copied = deepcopy((model, rule))
        with torch.random.fork_rng(devices=[trace.losses.device] if trace.losses.is_cuda else []):
            repeated = copied(trace)
            same = all(torch.equal(a, b) for a, b in zip(repeated, trace.credits))
            network.double(), copied.double()
            credits = copied(exact) if same else ()
    except Exception as error:  # whatever a rule raises in another dtype, or a network that can't be copied
        said = str(error).strip() or type(error).__name__
        return f"not in float64: {said.splitlines()[0]}", []
    if not same:
        return "not in float64: the rule gives another credit when it is asked twice", []
    notes = []
    for site, (a, b) in enumerate(zip(trace.credits, credits)):
        reported, exactly = _cosine(a, trace.grads[site]), _cosine(b, exact.grads[site])
        if exactly is not None and abs(exactly - (reported or 0.0)) > CLEAR:
            notes.append(Note("rounded-credit", site, {"reported": reported, "float64": exactly}))
    return AGAIN, notes


def _cosine(credit: Tensor, gradient: Tensor) -> float | None:
    """Return the mean cosine over samples, in float64; a sample without a direction counts as 0, None if all are."""
    least = least_norm(torch.float64)
    (a, has_a), (g, has_g) = unit_rows(credit, least), unit_rows(gradient, least)
    cosines = torch.where(has_a & has_g, (a * g.to(a.device)).sum(1), 0.0)
    return float(cosines.mean()) if bool((has_a & has_g).any()) and bool(cosines.isfinite().all()) else None
