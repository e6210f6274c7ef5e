"""Forward passes that cut their own graph, as local learning and DFA code does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from walkback.errors import AnatomyError

if TYPE_CHECKING:
    from walkback.tracing.session import Tracer

CUTS = "the network detaches it on the way (as local learning and DFA code does)"


class CutGraph(AnatomyError):
    """No gradient reaches some sites, or none leaves the network, in its own graph."""

    def __init__(self, sites: Sequence[str]) -> None:
        self.sites = tuple(sites)
        reached = ", ".join(self.sites) or "any layer"
        self.what = f"Expected the loss to depend on every site, but no gradient reaches {reached}: {CUTS}"
        super().__init__(f'{self.what}. Pass reference="derived", which follows the forward pass alone.')


def refuse_cut_answer(session: Tracer, logits: Tensor) -> None:
    """Raise CutGraph where what the network answers carries no gradient, as under `torch.no_grad`."""
    if session.tape() is None and not logits.requires_grad:
        raise CutGraph(())
