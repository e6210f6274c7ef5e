"""Backpropagation: the credit is the gradient itself."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from walkback.rules.rule import Rule
from walkback.tracing.trace import TrainingPass


class BP(Rule):
    """a_l = g_l. Training differentiates the loss end to end, which is the same (a test shows it).

    >>> import walkback as wb
    >>> round(wb.diagnose(wb.selftest.healthy(), wb.selftest.batches(1), credit=BP()).values["gamma"], 6)
    1.0

    A subclass is exact too, as long as its credits are the gradients; one that gives others says `exact = False`.
    """

    exact = True

    def credits(self, trace: TrainingPass) -> Sequence[Tensor]:
        """Return the traced gradients."""
        return trace.grads


ORDER = 1
RULES = {"bp": BP}
