"""Feedback alignment: the exact gradient at the top, carried down by fixed random matrices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from walkback.rules.feedback import RandomFeedback
from walkback.rules.rule import Parts, gather, place
from walkback.trace import Trace


class FA(RandomFeedback):
    """a_L = g_L, a_l = B_l a_{l+1} with B_l fixed, d×d. Options: see RandomFeedback."""

    def setup(self, parts: Parts, states: Sequence[Tensor], classes: int, generator: torch.Generator) -> None:
        """Draw B_0…B_{L-1}."""
        self.draw([(upper, lower, upper) for lower, upper in pairwise(self.widths(states))], generator)

    def credits(self, trace: Trace) -> Sequence[Tensor]:
        """From the top down, one product per site."""
        credits = [trace.grads[-1]]
        vector = gather(trace.grads[-1])
        for matrix, state in zip(reversed(self.matrices()), reversed(trace.states[:-1])):
            vector = vector @ matrix
            credits.insert(0, place(vector, state, self.target))
        return credits
