"""Equilibrium propagation: nudge the output, let the states relax, read the credit off the energy's residuals."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from walkback.network.loss import cross_entropy
from walkback.registry import positive, whole_numbers
from walkback.rules.rule import Parts, Rule, buffers_kept
from walkback.tracing.trace import TrainingPass


class EP(Rule):
    """Energy Σ ½‖h_l − h_{l-1} − f_l(h_{l-1})‖² + β·CE; a_l = −(h_l − h_{l-1} − f_l(h_{l-1}))/β after relaxing.

    States start at the forward pass, where every residual is zero. The first step of gradient descent moves h_L alone,
    and every further one carries the nudge one site down. So a network of L blocks needs at least **L + 1 steps**:
    with fewer, sites 0…L − steps get exactly zero credit, and the stem and the blocks that write them do not learn.
    Fewer are allowed, as an ablation and for the runs that were trained so; `describe` and training say it.

    Args:
        beta: strength of the nudge; the credit tends to the BP gradient as it goes to 0 with enough steps.
        steps: of relaxation, at least L + 1 for credit at every site. 0 gives zero credit everywhere (the ablation).
        step_size: of relaxation; 0.5 diverges, and so does less where the blocks are steep.

    >>> import torch, walkback as wb
    >>> net, x, y = wb.nets.build("resmlp", (8,), 3, width=16), torch.randn(256, 8), torch.randint(3, (256,))
    >>> rule = EP(beta=0.01, steps=30)
    >>> wb.rules.set_up(rule, net, x, 3, torch.Generator())
    >>> all(cosine > 0.9 for cosine in wb.measure(net, [(x, y)], credit=rule).cosine)
    True
    """

    relaxes = True

    def __init__(self, beta: float = 0.5, steps: int = 10, step_size: float = 0.2) -> None:
        super().__init__()
        positive(beta=beta, step_size=step_size)
        whole_numbers(0, steps=steps)
        self.beta, self.steps, self.step_size = beta, steps, step_size

    def setup(self, parts: Parts, states: Sequence[Tensor], classes: int, generator: torch.Generator) -> None:
        """Keep the network: relaxation runs its blocks and its readout."""
        self.parts = parts

    def credits(self, trace: TrainingPass) -> Sequence[Tensor]:
        """Run `steps` passes down the energy; return the residuals."""
        with buffers_kept((*self.parts.blocks, *self.parts.readout_modules)):
            return self._relaxed(trace)

    def _relaxed(self, trace: TrainingPass) -> Sequence[Tensor]:
        start, last = trace.states[0].detach(), len(trace.states) - 1
        states = [h.detach().clone() for h in trace.states]
        with torch.no_grad():
            at_rest = not bool(torch.stack([r.any() for r in self._residuals(start, states)]).any())
        with torch.enable_grad():
            for step in range(self.steps):
                # From rest, step k moves site L − k and those above: what is below has no residual, so no slope.
                low = max(0, last - step) if at_rest else 0
                moved = states[low:] = [h.requires_grad_() for h in states[low:]]
                residuals = self._residuals(start, states, low)
                energy = sum(0.5 * r.pow(2).sum() for r in residuals)
                nudge = self.beta * cross_entropy(self.parts.readout(states[-1]), trace.labels).sum()
                slopes = torch.autograd.grad(energy + nudge, moved)
                states[low:] = [(h - self.step_size * s).detach() for h, s in zip(moved, slopes)]
        low = max(0, last - self.steps) if at_rest else 0
        with torch.no_grad():
            zeros = [torch.zeros_like(h) for h in states[: low + 1 if low else 0]]
            return [-r / self.beta for r in (*zeros, *self._residuals(start, states, low))]

    def _residuals(self, start: Tensor, states: Sequence[Tensor], low: int = 0) -> list[Tensor]:
        """Return the residuals of the sites above `low`; of all where it is 0."""
        some = list(zip(states, self.parts.blocks))[low:]
        predicted = [*([] if low else [start]), *(h + block(h) for h, block in some)]
        return [h - p for h, p in zip(states[-len(predicted) :] if predicted else [], predicted)]

    def describe(self) -> dict[str, object]:
        """Return β, steps, step size, where credit goes, and once set up the sites that so few steps can't reach."""
        settings = {"beta": self.beta, "steps": self.steps, "step_size": self.step_size}
        settings["target"] = "every token or position, each its own"
        parts: Parts | None = getattr(self, "parts", None)
        needed = 0 if parts is None else len(parts.blocks) + 1
        if self.steps < needed:
            settings |= {"zero_credit_sites": list(range(needed - self.steps)), "steps_needed": needed}
        return settings


ORDER = 6
RULES = {"ep": EP}
