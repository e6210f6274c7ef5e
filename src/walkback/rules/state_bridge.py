"""State Bridge: a learned predictor of the last state carries the loss back to every site."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from walkback.errors import InputError, shown
from walkback.network.loss import cross_entropy
from walkback.registry import positive, true_or_false
from walkback.rules.rule import Parts, Rule, buffers_kept, feature_dim, inherits
from walkback.tracing.trace import TrainingPass


class Predictor(nn.Module):
    """G(h, t) = rms(h)·MLP(LN h, t) with one hidden layer: scale-free, and no shortcut from h, so it has to learn."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.enter, self.time = nn.Linear(width, hidden), nn.Linear(1, hidden)
        self.leave = nn.Linear(hidden, width)

    def forward(self, h: Tensor, t: Tensor) -> Tensor:
        """Map states (N, …, d) and their times (N, …, 1) to predicted last states (N, …, d)."""
        rms = h.pow(2).mean(-1, keepdim=True).clamp(min=torch.finfo(h.dtype).tiny).sqrt()  # 0 has no slope there
        return rms * self.leave(nn.functional.gelu(self.enter(self.norm(h)) + self.time(t)))


class PlainPredictor(nn.Module):
    """G(h, t) = MLP(h, t) with one hidden layer, of the state as it is: it follows an explosion of the stream."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.enter, self.time, self.leave = nn.Linear(width, hidden), nn.Linear(1, hidden), nn.Linear(hidden, width)

    def forward(self, h: Tensor, t: Tensor) -> Tensor:
        """Map states (N, …, d) and their times (N, …, 1) to predicted last states (N, …, d)."""
        return self.leave(nn.functional.gelu(self.enter(h) + self.time(t)))


PREDICTORS = {"scale-free": Predictor, "plain": PlainPredictor}


class StateBridge(Rule):
    """a_l = ∇_{h_l} CE(readout(G(h_l, l/L)), y), with G regressed on h_L.

    Args:
        hidden: width of G's hidden layer, in units of d.
        train: False leaves G at its initialisation (the ablation).
        form: "scale-free" (ours) normalises what G reads and regresses it by a relative squared error; "plain" is an
            MLP of the state as it is, regressed by the mean squared error.

    >>> import torch, walkback as wb
    >>> net, x, y = wb.nets.build("resmlp", (8,), 3, width=16), torch.randn(256, 8), torch.randint(3, (256,))
    >>> rule = StateBridge()
    >>> wb.rules.set_up(rule, net, x, 3, torch.Generator())
    >>> [type(part).__name__ for part in rule.children()], len(wb.measure(net, [(x, y)], credit=rule).cosine)
    (['Predictor'], 5)
    """

    def __init__(self, hidden: float = 1.0, train: bool = True, form: str = "scale-free") -> None:
        super().__init__()
        positive(hidden=hidden)
        true_or_false(train=train)
        if form not in PREDICTORS:
            raise InputError(f"Expected form to be one of {', '.join(PREDICTORS)}, but got {shown(form)}.")
        self.hidden, self.learns, self.form = hidden, train, form

    def setup(self, parts: Parts, states: Sequence[Tensor], classes: int, generator: torch.Generator) -> None:
        """Make G; positions of an image share it, as tokens do."""
        width = feature_dim(states[0])
        self.parts, self.sites = parts, len(states)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
            self.predictor = PREDICTORS[self.form](width, max(1, round(self.hidden * width)))
        self.predictor.requires_grad_(self.learns)

    def credits(self, trace: TrainingPass) -> Sequence[Tensor]:
        """Run one backward pass through G and the readout for all sites at once; return a credit per site."""
        states = torch.cat([h.detach() for h in trace.states]).requires_grad_()
        labels = trace.labels.repeat(self.sites, *[1] * (trace.labels.ndim - 1))
        with torch.enable_grad(), buffers_kept(self.parts.readout_modules):
            predicted = self.predict(states)
            losses = cross_entropy(self.parts.readout(predicted), labels)
            shares = self._shares(trace)
            (found,) = torch.autograd.grad(losses.sum(), [states], retain_graph=shares)
        if shares and trace.shared is not None:
            trace.shared["predicted"] = predicted
        return found.split(len(trace.labels))

    def _shares(self, trace: TrainingPass) -> bool:
        """Return whether G learns of the very prediction that gives the credit: in a step of training."""
        return isinstance(trace, TrainingPass) and trace.shared is not None and self.learns and self._is_own()

    def _is_own(self) -> bool:
        """Return whether no subclass computes otherwise what is learned: a second run may then be another one."""
        return type(self.predictor) is PREDICTORS[self.form] and inherits(
            self, StateBridge, "credits", "predict", "auxiliary_loss"
        )

    def predict(self, states: Tensor) -> Tensor:
        """Map h_0…h_L, stacked along the batch, to predictions of h_L."""
        times = torch.linspace(0, 1, self.sites, device=states.device, dtype=states.dtype)
        t = times.repeat_interleave(len(states) // self.sites)
        if states.ndim == 4:
            last = states.movedim(1, -1)
            return self.predictor(last, t.view(-1, 1, 1, 1).expand(*last.shape[:-1], 1)).movedim(-1, 1)
        return self.predictor(states, t.view(-1, *[1] * (states.ndim - 1)).expand(*states.shape[:-1], 1))

    def auxiliary_loss(self, trace: TrainingPass) -> Tensor | None:
        """Return the mean over sites of ‖G(h_l) − h_L‖² / ‖h_L‖²; of ‖G(h_l) − h_L‖² / d in the plain form."""
        if not self.learns:
            return None
        target = trace.states[-1].detach()
        predicted = trace.shared.pop("predicted", None) if self._shares(trace) and trace.shared else None
        if predicted is None:
            predicted = self.predict(torch.cat([h.detach() for h in trace.states]))
        squares = (predicted - target.repeat(self.sites, *[1] * (target.ndim - 1))).flatten(1).pow(2)
        if self.form == "plain":
            return squares.mean()
        scale = target.flatten(1).pow(2).sum(1).mean()
        return squares.sum(1).mean() / scale.clamp(min=torch.finfo(scale.dtype).tiny)

    def trains(self) -> list[nn.Parameter] | None:
        """Return what the rule holds: the graph leads to the states as well, which learn nothing of it."""
        return [p for p in self.parameters() if p.requires_grad] if self._is_own() else None

    def describe(self) -> dict[str, object]:
        """Return the size of G, whether it learns, and where credit goes."""
        settings = {"hidden": self.hidden, "trained": self.learns, "target": "every token or position, each its own"}
        return settings if self.form == "scale-free" else {**settings, "form": self.form}


ORDER = 4
RULES = {"state-bridge": StateBridge}
