"""Small networks trained in a second or two, for the pitfalls that only a trained network shows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

    from walkback.measures.accumulate import Measurements
    from walkback.rules import Rule

CLASSES, TRAIN, TEST = 8, 4096, 1024


@dataclass(frozen=True)
class Trained:
    """A trained network, its rule with the feedback it was trained with, test batches, and its test accuracy."""

    net: nn.Module
    rule: Rule
    batches: list[tuple[Tensor, Tensor]]
    accuracy: float

    def measure(self, rule: Rule | None = None) -> Measurements:
        """Return the numbers of the protocol, with the network's own rule or another."""
        from walkback.api import measure

        return measure(self.net, self.batches, credit=rule or self.rule)

    def signals(self) -> tuple[Tensor, list[Tensor]]:
        """Return softmax − onehot (N, C) of all test samples, and g_0…g_L of their summed loss."""
        import torch.nn.functional as F
        from torch import autograd, cat

        x, y = (cat(part) for part in zip(*self.batches))
        logits, hidden = self.net(x, return_hidden=True)
        grads = autograd.grad(F.cross_entropy(logits, y, reduction="sum"), hidden)
        return (logits.softmax(1) - F.one_hot(y, logits.shape[1])).detach(), list(grads)


def cosine(a: Tensor, g: Tensor) -> float:
    """Return the mean over samples of the cosine of two (B, n), in float64 and without an ε."""
    a, g = a.double(), g.double()
    return float(((a * g).sum(1) / (a.norm(dim=1) * g.norm(dim=1))).mean())


@lru_cache(maxsize=16)
def train(
    rule: str, scope: str = "all", epochs: int = 6, penalty: float = 0.0, lr: float = 4e-3, seed: int = 0
) -> Trained:
    """Train a ResMLP (d = 64, L = 4) on the embedded task with eight classes, AdamW, batches of 128, once."""
    import torch

    from walkback.data import load
    from walkback.nets import build
    from walkback.rules import Parts, declares, make, set_up
    from walkback.training.step import TrainingStep

    data = load("teacher")
    x, y = data.train.x[:TRAIN], data.train.y[:TRAIN] * CLASSES // data.classes
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = build("resmlp", data.input_shape, CLASSES, width=64, depth=4)
    generator = torch.Generator().manual_seed(seed + 1)
    learner = make(rule)
    set_up(learner, net, x[:2], CLASSES, generator)
    frozen = scope == "frozen"
    step = TrainingStep(
        Parts.of(net), learner, declares(learner, "exact") and not frozen, frozen, penalty, reader=False
    )
    optimiser = torch.optim.AdamW(net.parameters(), lr=lr)
    for _ in range(epochs):
        for chosen in torch.randperm(TRAIN, generator=generator).split(128):
            optimiser.zero_grad()
            step(x[chosen], y[chosen])
            optimiser.step()
    net.eval()
    x, y = data.test.x[:TEST], data.test.y[:TEST] * CLASSES // data.classes
    with torch.no_grad():
        accuracy = float((net(x).argmax(1) == y).double().mean())
    return Trained(net, learner, list(zip(x.split(128), y.split(128))), accuracy)
