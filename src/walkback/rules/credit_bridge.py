"""Credit Bridge: a learned value of every state, anchored where loss and gradient are known, gives the credit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from walkback.registry import not_negative, positive, true_or_false
from walkback.rules.rule import Parts, Rule, feature_dim, inherits
from walkback.tracing.trace import TrainingPass


class Value(nn.Module):
    """V(h, t, y): LN of the (pooled) state, the time and the label, one hidden layer, a scalar."""

    def __init__(self, width: int, classes: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.enter, self.other = nn.Linear(width, hidden), nn.Linear(1 + classes, hidden)
        self.leave = nn.Linear(hidden, 1)

    def forward(self, h: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """Map (N, d) states, (N, 1) times, (N, C) labels to (N,) values."""
        return self.leave(nn.functional.gelu(self.enter(self.norm(h)) + self.other(torch.cat([t, y], 1)))).squeeze(1)


class CreditBridge(Rule):
    """a_l = ∇_{h_l} V(h_l, l/L, y): V learns the loss to go.

    At the last site V's value is regressed on the loss and its input gradient on the exact gradient (relative);
    every other value is bootstrapped from the next site's. V sees the label, as the loss does.

    Args:
        hidden: width of V's hidden layer, in units of d.
        anchor: weight of the gradient anchor at the last site.
        train: False leaves V at its initialisation (the ablation).
        label: False hides the label from V, which then has to do with the state, as the documents write V(h, t).

    >>> import torch, walkback as wb
    >>> net, x, y = wb.nets.build("resmlp", (8,), 3, width=16), torch.randn(256, 8), torch.randint(3, (256,))
    >>> rule = CreditBridge()
    >>> wb.rules.set_up(rule, net, x, 3, torch.Generator())
    >>> [type(part).__name__ for part in rule.children()], len(wb.measure(net, [(x, y)], credit=rule).cosine)
    (['Value'], 5)
    """

    def __init__(self, hidden: float = 1.0, anchor: float = 1.0, train: bool = True, label: bool = True) -> None:
        super().__init__()
        positive(hidden=hidden)
        not_negative(anchor=anchor)
        true_or_false(train=train, label=label)
        self.hidden, self.anchor, self.learns, self.label = hidden, anchor, train, label

    def setup(self, parts: Parts, states: Sequence[Tensor], classes: int, generator: torch.Generator) -> None:
        """Make V; token and image states are averaged before it."""
        width = feature_dim(states[0])
        self.classes, self.depth = classes, len(states) - 1
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
            self.value = Value(width, classes, max(1, round(self.hidden * width)))
        self.value.requires_grad_(self.learns)

    def _values(self, trace: TrainingPass, states: Tensor) -> Tensor:
        """Return (sites·B,) values of h_0…h_L stacked along the batch."""
        sites, batch = self.depth + 1, len(trace.labels)
        t = torch.arange(sites, device=states.device, dtype=states.dtype).repeat_interleave(batch) / self.depth
        y = trace.labels
        y = y if y.is_floating_point() else nn.functional.one_hot(y, self.classes)
        y = y if self.label else torch.zeros_like(y)
        pooled = states if states.ndim == 2 else states.mean(1) if states.ndim == 3 else states.mean((2, 3))
        return self.value(pooled, t[:, None], y.to(states.dtype).repeat(sites, 1))

    def credits(self, trace: TrainingPass) -> Sequence[Tensor]:
        """Run one backward pass through V for all sites at once; return a credit per site."""
        states = torch.cat([h.detach() for h in trace.states]).requires_grad_()
        shares = self._shares(trace)
        with torch.enable_grad():
            values = self._values(trace, states)
            (found,) = torch.autograd.grad(values.sum(), [states], create_graph=shares)
        if shares and trace.shared is not None:
            trace.shared.update(values=values, gradient=found)
        return found.detach().split(len(trace.labels))

    def _shares(self, trace: TrainingPass) -> bool:
        """Return whether V learns of the very values that give the credit: in a step of training."""
        return isinstance(trace, TrainingPass) and trace.shared is not None and self.learns and self._is_own()

    def _is_own(self) -> bool:
        """Return whether no subclass computes otherwise what is learned: a second run may then be another one."""
        return type(self.value) is Value and inherits(self, CreditBridge, "credits", "_values", "auxiliary_loss")

    def auxiliary_loss(self, trace: TrainingPass) -> Tensor | None:
        """Return the loss of terminal value and gradient, and of the bootstrap of the other sites."""
        if not self.learns:
            return None
        batch = len(trace.labels)
        if self._shares(trace) and trace.shared:
            values, gradient = trace.shared.pop("values"), trace.shared.pop("gradient")
        else:
            states = torch.cat([h.detach() for h in trace.states]).requires_grad_()
            values = self._values(trace, states)
            # By the last site alone: no value reads another site's state.
            (gradient,) = torch.autograd.grad(values[-batch:].sum(), [states], create_graph=True)
        exact = trace.grads[-1].flatten(1)
        scale = exact.pow(2).sum(1).mean().clamp(min=torch.finfo(exact.dtype).tiny)
        slope = (gradient[-batch:].flatten(1) - exact).pow(2).sum(1).mean() / scale
        terminal = (values[-batch:] - trace.losses.detach()).pow(2).mean()
        bootstrap = (values[:-batch] - values[batch:].detach()).pow(2).mean()
        return terminal + bootstrap + self.anchor * slope

    def trains(self) -> list[nn.Parameter] | None:
        """Return what the rule holds: the graph leads to the states as well, which learn nothing of it."""
        return [p for p in self.parameters() if p.requires_grad] if self._is_own() else None

    def describe(self) -> dict[str, object]:
        """Return the size of V, its anchor, whether it learns, that it sees the label, and where credit goes."""
        settings = {"hidden": self.hidden, "anchor": self.anchor, "trained": self.learns, "sees_label": self.label}
        return {**settings, "target": "every token or position alike"}  # V sees their mean


ORDER = 5
RULES = {"credit-bridge": CreditBridge}
