"""Feedback alignment: the exact gradient at the top, carried down by fixed random matrices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from walkback.rules.feedback import RandomFeedback
from walkback.rules.rule import Parts, gather, place
from walkback.tracing.trace import TrainingPass


class FA(RandomFeedback):
    """a_L = g_L, a_l = B_l a_{l+1} with B_l fixed, d×d. Options: see RandomFeedback.

    >>> import torch, walkback as wb
    >>> net, x, y = wb.nets.build("resmlp", (8,), 3, width=16), torch.randn(256, 8), torch.randint(3, (256,))
    >>> rule = FA()
    >>> wb.rules.set_up(rule, net, x, 3, torch.Generator())
    >>> round(wb.measure(net, [(x, y)], credit=rule).cosine[-1], 6), rule.matrices()[0].shape
    (1.0, torch.Size([16, 16]))
    """

    exact_top = True

    def setup(self, parts: Parts, states: Sequence[Tensor], classes: int, generator: torch.Generator) -> None:
        """Draw B_0…B_{L-1}."""
        self.draw([(upper, lower, upper) for lower, upper in pairwise(self.widths(states))], generator)

    def credits(self, trace: TrainingPass) -> Sequence[Tensor]:
        """Return one product per site, from the top down."""
        credits = [trace.grads[-1]]
        vector = gather(trace.grads[-1])
        for matrix, state in zip(reversed(self.matrices()), reversed(trace.states[:-1])):
            vector = vector @ matrix
            credits.insert(0, place(vector, state, self.target))
        return self.sized(credits)


ORDER = 2
RULES = {"fa": FA}
