"""What the documents leave open about the two bridges, one thing at a time: nine runs of four epochs on CIFAR-10.

    python scripts/bridge_forms.py --root DIR

Writes results/bridge-forms.md, which docs/default-recipe.md includes. About eight minutes on one core; runs are kept in
runs/bridge-forms, so it resumes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor, nn

import walkback as wb
from feedback_draws import ROOT, set_up, spec
from walkback.rules import CreditBridge, StateBridge
from walkback.rules.rule import Parts, Rule
from walkback.tracing.trace import Trace

HERE = "bridge_forms"
RUNS: dict[str, dict[str, Any]] = {
    "State Bridge, ours": {"rule": "state-bridge"},
    "credit of unit length": {"rule": f"{HERE}:UnitStateBridge"},
    "G(h) = MLP(h), squared error": {"rule": f"{HERE}:RawStateBridge"},
    "G(h) = MLP(h), squared error, unit length": {"rule": f"{HERE}:RawUnitStateBridge"},
    "Credit Bridge, ours": {"rule": "credit-bridge"},
    "V without the label": {"rule": f"{HERE}:BlindCreditBridge"},
    "V without LayerNorm": {"rule": f"{HERE}:RawCreditBridge"},
    "V's credit of unit length": {"rule": f"{HERE}:UnitCreditBridge"},
    "V without the label, unit length": {"rule": f"{HERE}:BlindUnitCreditBridge"},
}


class RawPredictor(nn.Module):
    """G(h, t) = MLP(h, t) with one hidden layer, of the state as it is."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.enter, self.time, self.leave = nn.Linear(width, hidden), nn.Linear(1, hidden), nn.Linear(hidden, width)

    def forward(self, h: Tensor, t: Tensor) -> Tensor:
        """States (N, d) and their times (N, 1) to predicted last states (N, d)."""
        return self.leave(nn.functional.gelu(self.enter(h) + self.time(t)))


def of_length_one(credits: Sequence[Tensor]) -> list[Tensor]:
    """Credits (B, …), each sample's divided by its length."""
    return [nn.functional.normalize(a.flatten(1), dim=1, eps=1e-30).view_as(a) for a in credits]


class RawStateBridge(StateBridge):
    """State Bridge whose G sees the state as it is and learns by the plain mean squared error."""

    def setup(self, parts: Parts, states: Sequence[Tensor], classes: int, generator: torch.Generator) -> None:
        """Put the raw G in the place of the scale-free one."""
        super().setup(parts, states, classes, generator)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
            self.predictor = RawPredictor(states[0].shape[1], self.predictor.enter.out_features)

    def auxiliary_loss(self, trace: Trace) -> Tensor:
        """Mean over sites, samples and entries of (G(h_l) − h_L)²."""
        target = trace.states[-1].detach()
        predicted = self.predict(torch.cat([h.detach() for h in trace.states]))
        return nn.functional.mse_loss(predicted, target.repeat(self.sites, 1))


class BlindCreditBridge(CreditBridge):
    """Credit Bridge whose V(h, t) has to do without the label, as the documents write it."""

    def _values(self, trace: Trace, states: Tensor) -> Tensor:
        """Values of h_0…h_L with zeros where the label would be."""
        times = torch.linspace(0, 1, self.depth + 1, device=states.device, dtype=states.dtype)
        t = times.repeat_interleave(len(trace.labels))[:, None]
        return self.value(states, t, states.new_zeros(len(states), self.classes))


class RawCreditBridge(CreditBridge):
    """Credit Bridge whose V sees the state as it is."""

    def setup(self, parts: Parts, states: Sequence[Tensor], classes: int, generator: torch.Generator) -> None:
        """Take the LayerNorm out of V."""
        super().setup(parts, states, classes, generator)
        self.value.add_module("norm", nn.Identity())


class OfLengthOne(Rule):
    """Put before a rule: its credit, each sample's divided by its length."""

    def credits(self, trace: Trace) -> Sequence[Tensor]:
        """As the rule after it gives them, of length one."""
        return of_length_one(super().credits(trace))


class UnitStateBridge(OfLengthOne, StateBridge):
    """State Bridge whose credit has length one."""


class RawUnitStateBridge(OfLengthOne, RawStateBridge):
    """Raw G and credit of length one."""


class UnitCreditBridge(OfLengthOne, CreditBridge):
    """Credit Bridge whose credit has length one."""


class BlindUnitCreditBridge(OfLengthOne, BlindCreditBridge):
    """V without the label, and credit of length one."""


def row(name: str, last: dict[str, Any]) -> list[str]:
    """A line of the table from the last row of a run's trajectory."""
    h, g, cosine = (last["per_layer"][k] for k in ("h_norm", "g_norm", "cosine"))
    gamma, growth = sum(cosine[:-1]) / len(cosine[:-1]), last["values"]["growth"]
    return [
        name,
        f"{h[0]:.1e}",
        f"{h[-1]:.1e}",
        f"{g[-1]:.1e}",
        f"{growth:.1f}",
        f"{gamma:+.3f}",
        f"{last['test_acc']:.3f}",
    ]


def main() -> None:
    data = wb.data.load("cifar10", set_up(str(__doc__)))
    kept = ROOT / "runs" / "bridge-forms"
    rows = [row(name, wb.train(spec(**f), kept, data=data).trajectory()[-1]) for name, f in RUNS.items()]
    heads = ["run", "‖h_0‖", "‖h_L‖", "‖g_L‖", "ρ", "Γ", "acc"]
    table = tabulate(rows, heads, tablefmt="github", disable_numparse=True)
    text = f"""# The bridges after four epochs, by what the documents leave open

{table}

- each row differs from the row "ours" above it in what its name says
- seed 42; ResMLP d=256 L=4 on CIFAR-10, no augmentation, AdamW at a constant 1e-3, batches of 128; made by
  `python scripts/bridge_forms.py --root DIR`
"""
    (ROOT / "results" / "bridge-forms.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
