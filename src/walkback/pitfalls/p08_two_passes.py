"""Credit from one pass, reference from another: other dropout masks, another gradient."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from walkback.pitfalls.shown import Shown
from walkback.selftest import batches, network


def with_dropout(seed: int) -> nn.Module:
    """A healthy network with dropout in every block."""
    net = network(seed=seed)
    for block in net.blocks:
        block.append(nn.Dropout(0.5))  # type: ignore[operator]
    return net


def gradients(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """(B, d) the gradient at site 0: BP's credit, and the reference it is compared with."""
    logits, hidden = net(x, return_hidden=True)  # walkback: ignore[P10]
    (g,) = torch.autograd.grad(nn.functional.cross_entropy(logits, y, reduction="sum"), hidden[:1])
    return g.double()


def cosine(a: Tensor, g: Tensor) -> float:
    """The mean over samples."""
    return float(((a * g).sum(1) / (a.norm(dim=1) * g.norm(dim=1))).mean())


def show(seed: int = 0) -> Shown:
    """BP compared with itself, from two passes with dropout and from one pass."""
    net = with_dropout(seed).train()
    x, y = batches(1, 512, seed=seed + 1)[0]
    torch.manual_seed(seed)
    first, second = gradients(net, x, y), gradients(net, x, y)
    return Shown(
        "cosine of BP with itself",
        cosine(first, second),
        cosine(first, first),
        "each pass draws its own dropout masks (or crops, or batch), so even BP does not agree with BP; a rule's "
        "shortfall then says as much about the masks as about the rule. Take both from one pass.",
    )
