"""a_{l+1} paired with g_l: neighbouring gradients of a residual stream are nearly parallel, so it looks aligned."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from walkback.pitfalls.p05_averaging_order import trained
from walkback.pitfalls.shown import Shown
from walkback.pitfalls.trained import Trained, train


def signals(run: Trained) -> tuple[list[Tensor], list[Tensor]]:
    """a_0…a_L of FA and g_0…g_L, each (1024, 64) in float64: a_L is g_L itself, carried down by the matrices B."""
    x, y = (torch.cat(part) for part in zip(*run.batches))
    logits, hidden = run.net(x, return_hidden=True)
    loss = torch.nn.functional.cross_entropy(logits, y, reduction="sum")
    grads = [g.double() for g in torch.autograd.grad(loss, hidden)]
    credits = [grads[-1]]
    for matrix in reversed(run.rule.matrices()):  # type: ignore[operator]
        credits.insert(0, credits[0] @ matrix.double())
    return credits, grads


def cosines(credits: Sequence[Tensor], grads: Sequence[Tensor]) -> list[float]:
    """Mean over samples, one per pair."""
    return [float(((a * g).sum(1) / (a.norm(dim=1) * g.norm(dim=1))).mean()) for a, g in zip(credits, grads)]


def pairings(run: Trained) -> tuple[list[float], list[float]]:
    """Cosines at sites 0…L−1 with the credit of the site above, and with each site's own."""
    credits, grads = signals(run)
    return cosines(credits[1:], grads[:-1]), cosines(credits[:-1], grads[:-1])


def show(seed: int = 0) -> Shown:
    """Γ of FA over sites 0…L−1, paired one site off and paired right."""
    wrong, right = pairings(trained(seed))
    untrained, _ = pairings(train("fa", epochs=0, seed=seed))
    above, own = (", ".join(f"{c:+.3f}" for c in found) for found in (wrong, right))
    return Shown(
        "Γ of FA",
        sum(wrong) / len(wrong),
        sum(right) / len(right),
        f"by site, paired with the credit of the site above: {above}; with its own: {own}. FA's last credit is g_L, "
        "so the first list ends in the cosine of g_L with g_{L-1}. It says that the last block changes the gradient "
        f"little, and nothing about feedback: in the untrained network it is {untrained[-1]:+.3f}.",
    )
