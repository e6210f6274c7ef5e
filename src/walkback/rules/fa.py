"""Feedback alignment: the gradient of h_L, or of what the head reads, carried down by fixed random matrices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from walkback.errors import InputError
from walkback.registry import one_of
from walkback.rules.feedback import RandomFeedback
from walkback.rules.rule import Parts, error_signal, gather, place
from walkback.tracing.trace import TrainingPass


class FA(RandomFeedback):
    """a_L = g_L, a_l = B_l a_{l+1} with B_l fixed, d×d.

    Args:
        top: what is carried down. "state" is the exact gradient of h_L. "head" is that of what the head reads, Wᵀ e,
            as code has it that leaves the terminal norm out: it neither shrinks as h_L grows, nor is it orthogonal
            to h_L. a_L is then not exact.
        scale, target, fresh, unit, draw_seed: see RandomFeedback.

    >>> import torch, walkback as wb
    >>> net, x, y = wb.nets.build("resmlp", (8,), 3, width=16), torch.randn(256, 8), torch.randint(3, (256,))
    >>> rule = FA()
    >>> wb.rules.set_up(rule, net, x, 3, torch.Generator())
    >>> round(wb.measure(net, [(x, y)], credit=rule).cosine[-1], 6), rule.matrices()[0].shape
    (1.0, torch.Size([16, 16]))
    """

    exact_top = True
    head: tuple[nn.Linear]  # in a tuple: its weights are the network's, and are not saved with the feedback

    def __init__(
        self,
        scale: float = 1.0,
        target: str = "all",
        fresh: bool = False,
        unit: bool = False,
        draw_seed: int | None = None,
        top: str = "state",
    ) -> None:
        super().__init__(scale, target, fresh, unit, draw_seed)
        one_of(("state", "head"), top=top)
        self.top, self.exact_top = top, top == "state"

    def setup(self, parts: Parts, states: Sequence[Tensor], classes: int, generator: torch.Generator) -> None:
        """Draw B_0…B_{L-1}."""
        if self.top == "head":
            self.head = (_linear(parts.readout_modules[-1]),)
        self.draw([(upper, lower, upper) for lower, upper in pairwise(self.widths(states))], generator)

    def credits(self, trace: TrainingPass) -> Sequence[Tensor]:
        """Return one product per site, from the top down."""
        if self.top == "state":
            credits = [trace.grads[-1]]
            vector = gather(trace.grads[-1])
        else:
            vector = error_signal(trace) @ self.head[0].weight.detach()
            credits = [place(vector, trace.states[-1], self.target)]
        for matrix, state in zip(reversed(self.matrices()), reversed(trace.states[:-1])):
            vector = vector @ matrix
            credits.insert(0, place(vector, state, self.target))
        return self.sized(credits)

    def describe(self) -> dict[str, object]:
        """Return what is carried down where it is not the exact gradient, and what RandomFeedback says."""
        return super().describe() | ({} if self.exact_top else {"top": self.top})


def _linear(head: nn.Module) -> nn.Linear:
    if not isinstance(head, nn.Linear):
        raise InputError(
            f'Expected a readout that ends in a Linear layer with top="head", but it ends in a {type(head).__name__}. '
            "Leave top out: then the exact gradient of h_L is carried down."
        )
    return head


ORDER = 2
RULES = {"fa": FA}
