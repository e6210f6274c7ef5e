"""Direct feedback alignment: the output error, carried to every site by its own fixed random matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from walkback.rules.rule import Parts, Rule, check_target, error_signal, feature_dim, place
from walkback.trace import Trace


class DFA(Rule):
    """a_l = B_lᵀ e with e = softmax(logits) − onehot and B_l fixed, C×d.

    Args:
        scale: B's entries have standard deviation scale/√d; 1 gives a credit about as long as the error.
        target: for token states, "all" tokens get the credit of the sample, "readout" only the first.
        fresh: draw B anew at every call: the ablation to which no network can align.
    """

    def __init__(self, scale: float = 1.0, target: str = "all", fresh: bool = False) -> None:
        super().__init__()
        self.scale, self.target, self.fresh = scale, check_target(target), fresh
        self.feedback: list[str] = []

    def setup(self, parts: Parts, states: Sequence[Tensor], classes: int, generator: torch.Generator) -> None:
        """Draw B_0…B_L."""
        self.feedback = [f"B{site}" for site in range(len(states))]
        self.generator = generator
        for name, state in zip(self.feedback, states):
            self.register_buffer(name, torch.empty(classes, feature_dim(state)))
        self.redraw(generator)

    def redraw(self, generator: torch.Generator) -> bool:
        """Draw all feedback anew."""
        for name in self.feedback:
            buffer = self.get_buffer(name)
            drawn = torch.randn(tuple(buffer.shape), generator=generator) * self.scale / buffer.shape[1] ** 0.5
            buffer.copy_(drawn)
        return True

    def credits(self, trace: Trace) -> Sequence[Tensor]:
        """One product per site."""
        if self.fresh:
            self.redraw(self.generator)
        error = error_signal(trace)
        return [place(error @ self.get_buffer(name), h, self.target) for name, h in zip(self.feedback, trace.states)]

    def describe(self) -> dict[str, object]:
        """Scale and target of the feedback."""
        return {"feedback_std": f"{self.scale:g}/sqrt(d)", "target": self.target, "fresh": self.fresh}
