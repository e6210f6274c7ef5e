"""Feedback alignment: the exact gradient at the top, carried down by fixed random matrices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from walkback.rules.rule import Parts, Rule, check_target, feature_dim, gather, place
from walkback.trace import Trace


class FA(Rule):
    """a_L = g_L, a_l = B_l a_{l+1} with B_l fixed, d×d.

    Args:
        scale: B's entries have standard deviation scale/√d; 1 keeps the norm of the credit on average.
        target: for token states, "all" tokens get the credit of the sample, "readout" only the first.
    """

    def __init__(self, scale: float = 1.0, target: str = "all") -> None:
        super().__init__()
        self.scale, self.target = scale, check_target(target)
        self.feedback: list[str] = []

    def setup(self, parts: Parts, states: Sequence[Tensor], classes: int, generator: torch.Generator) -> None:
        """Draw B_0…B_{L-1}."""
        self.widths = [feature_dim(h) for h in states]
        self.feedback = [f"B{site}" for site in range(len(states) - 1)]
        for site, name in enumerate(self.feedback):
            self.register_buffer(name, torch.empty(self.widths[site + 1], self.widths[site]))
        self.redraw(generator)

    def redraw(self, generator: torch.Generator) -> bool:
        """Draw all feedback anew."""
        for site, name in enumerate(self.feedback):
            shape = (self.widths[site + 1], self.widths[site])
            drawn = torch.randn(shape, generator=generator) * self.scale / self.widths[site + 1] ** 0.5
            self.get_buffer(name).copy_(drawn)
        return True

    def credits(self, trace: Trace) -> Sequence[Tensor]:
        """From the top down, one product per site."""
        credits = [trace.grads[-1]]
        vector = gather(trace.grads[-1])
        for name, state in zip(reversed(self.feedback), reversed(trace.states[:-1])):
            vector = vector @ self.get_buffer(name)
            credits.insert(0, place(vector, state, self.target))
        return credits

    def describe(self) -> dict[str, object]:
        """Scale and target of the feedback."""
        return {"feedback_std": f"{self.scale:g}/sqrt(d)", "target": self.target}
