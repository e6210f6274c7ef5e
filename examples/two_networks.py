"""Diagnose two small residual networks: one healthy, one made to fail.

Both have the same architecture and the same direct feedback (DFA) credit. In the second, every block writes a
hundred times more than the one before, as unpenalised local losses end up doing. Its accuracy and its mean
cosine look no worse. Run it with `python examples/two_networks.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

import walkback as wb


class Block(nn.Module):
    """Returns the residual branch f(h), `factor` times larger than at initialisation."""

    def __init__(self, width: int, factor: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.factor = factor

    def forward(self, h: Tensor) -> Tensor:
        """(B, d) to (B, d)."""
        return self.factor * self.layers(h)


class ResMLP(nn.Module):
    """Anything with `embed`, `blocks`, `out_ln` and `out_head` is recognised without further words."""

    def __init__(self, gain: float, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(32, width)
        self.blocks = nn.ModuleList(Block(width, gain**level) for level in range(1, depth + 1))
        self.out_ln, self.out_head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 32) to logits (B, 10)."""
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h)
        return self.out_head(self.out_ln(h))


def main() -> None:
    """Print both reports."""
    generator = torch.Generator().manual_seed(1)
    batches = [
        (torch.randn(128, 32, generator=generator), torch.randint(10, (128,), generator=generator)) for _ in range(8)
    ]
    feedback = [torch.randn(10, 64, generator=generator) for _ in range(5)]

    def dfa(trace: wb.Trace) -> list[Tensor]:
        error = trace.logits.softmax(1) - one_hot(trace.labels, 10)
        return [error @ b for b in feedback]

    for name, gain in (("healthy", 1.0), ("made to fail", 100.0)):
        torch.manual_seed(0)
        # The accuracies are made up for this example; the measurements are not.
        report = wb.diagnose(
            ResMLP(gain), batches, headline_acc=0.41, frozen_baseline_acc=0.35, credit=dfa, method_name=name
        )
        print(report, end="\n\n")


if __name__ == "__main__":
    main()
