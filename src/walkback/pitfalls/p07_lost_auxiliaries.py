"""A checkpoint without B, and code that falls back to the gradient: cos(BP, BP) = 1."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from walkback.pitfalls.p04_fresh_feedback import trained
from walkback.pitfalls.shown import Shown


def gamma(checkpoint: Mapping[str, Tensor], grads: list[Tensor], error: Tensor) -> float:
    """Γ as such scripts take it: credits of DFA, or the gradient where the checkpoint has no feedback."""
    cosines = []
    for site, g in enumerate(grads):
        feedback = checkpoint.get(f"B{site}")
        a = g if feedback is None else error @ feedback  # walkback: ignore[P07]
        a, g = a.double(), g.double()
        cosines.append(((a * g).sum(1) / (a.norm(dim=1) * g.norm(dim=1))).mean())
    return float(torch.stack(cosines).mean())  # walkback: ignore[P06]


def show(seed: int = 0) -> Shown:
    """Γ from a checkpoint of the network alone, and from one that has B."""
    run = trained(seed)
    x, y = (torch.cat(part) for part in zip(*run.batches))
    logits, hidden = run.net(x, return_hidden=True)
    losses = torch.nn.functional.cross_entropy(logits, y, reduction="sum")
    grads = list(torch.autograd.grad(losses, hidden[:-1]))
    error = (logits.softmax(1) - torch.nn.functional.one_hot(y, logits.shape[1])).detach()
    return Shown(
        "Γ of DFA",
        gamma(dict(run.net.state_dict()), grads, error),
        gamma({**run.net.state_dict(), **run.rule.state_dict()}, grads, error),
        "the network's state dict has no B, so the script compares the gradient with itself: perfectly aligned.",
    )
