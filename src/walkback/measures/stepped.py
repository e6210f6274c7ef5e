"""Does a credit look like rounding? Told from its numbers alone, so of every credit, whoever computes it."""

from __future__ import annotations

import torch
from torch import Tensor

from walkback.measures.measurements import Found
from walkback.network.values import widened
from walkback.notes import Note
from walkback.tracing.trace import Trace

ZEROS = 0.5  # share of exact zeros from which steps are too coarse for what they carry
FEW = 8  # numbers that may be multiples of one by chance
LARGEST = 2**17  # more steps than that are float32's own


class Stepped:
    """Notes, on the first batch, every site whose credit is mostly zero and else made of steps, as rounding makes it.

    A difference of rounded numbers is a whole number of the last digit of what was subtracted: the larger the state,
    the coarser the step. A rule that gives signs or levels on purpose has the same steps wherever states are small.
    """

    def __init__(self) -> None:
        self._notes: list[Note] | None = None

    @torch.no_grad()
    def update(self, trace: Trace) -> None:
        """Look at one batch."""
        if self._notes is None and trace.credits is not None:
            shares = enumerate(map(zeros_beside_steps, trace.credits, trace.states))
            self._notes = [Note("stepped-credit", site, {"zeros": share}) for site, share in shares if share]

    def compute(self, found: Found) -> None:
        """Say which sites."""
        found.notes += self._notes or []


def zeros_beside_steps(credit: Tensor, state: Tensor) -> float | None:
    """Return the share of zeros of a credit whose other numbers are steps, coarser under large states; None of others.

    Samples and features that are zero throughout are left out: those get no credit.

    >>> h, small = torch.randn(64, 16), 2e-8 * torch.randn(64, 16)
    >>> zeros_beside_steps((h + small) - h, h) is None, zeros_beside_steps(small, h) is None
    (False, True)
    """
    a, h = credit.flatten(1), state.flatten(1).abs()
    some = a != 0
    live = int(some.any(1).sum()) * int(some.any(0).sum())
    share = 1 - int(some.sum()) / live if live else 0.0
    if not ZEROS < share < 1:
        return None
    sizes, h = widened(a.abs())[some], h.to(a.device)[some]
    coarse = sizes[h >= h.median()]
    if len(coarse) < FEW:
        return None
    steps = coarse / coarse.min()
    even = bool(((steps - steps.round()).abs() <= 1e-6 * steps).all()) and float(steps.max()) < LARGEST
    return share if even and float(sizes.min()) <= float(coarse.min()) / 2 else None
