"""The gradient of a mean loss is divided by the batch: eight times the batch, an eighth of the norm."""

from __future__ import annotations

import torch
from torch import Tensor

from walkback.pitfalls.shown import Shown
from walkback.selftest import batches, healthy

BATCH, PUBLISHED = 1024, 128


def norm(x: Tensor, y: Tensor, size: int) -> float:
    """Mean over samples of ‖g_L‖, as a script takes it that averages the loss over batches of `size`."""
    net, found = healthy(), []
    for part, labels in zip(x.split(size), y.split(size)):
        logits, hidden = net(part, return_hidden=True)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        (g,) = torch.autograd.grad(loss, hidden[-1:])
        found.append(g.double().norm(dim=1))  # walkback: ignore[P13]
    return float(torch.cat(found).mean())


def show(seed: int = 0) -> Shown:
    """‖g_L‖ of the same network on the same samples, in batches of 1024 and of 128."""
    x, y = batches(1, BATCH, seed=seed + 1)[0]
    return Shown(
        "‖g_L‖",
        norm(x, y, BATCH),
        norm(x, y, PUBLISHED),
        f"in batches of {BATCH}, against the {PUBLISHED} that the published floor of 1e-7 belongs to. Nothing but the "
        "batch differs. Take the norm per sample, and say what it was divided by.",
    )
