"""Dropout left on: the states that are measured are not those of the network that is used."""

from __future__ import annotations

import torch
from torch import nn

from walkback.pitfalls.shown import Shown
from walkback.selftest import batches, network

P = 0.9  # of dropout: what it keeps is scaled by 1/(1 − p)


def exploding_with_dropout(seed: int) -> nn.Module:
    """A network whose stream its branches make up, with dropout at the end of each."""
    net = network(gain=10.0, seed=seed)
    for block in net.blocks:
        block.append(nn.Dropout(P))  # type: ignore[operator]
    return net


@torch.no_grad()
def stream_norm(net: nn.Module, seed: int) -> float:
    """‖h_L‖, averaged over samples."""
    x, _ = batches(1, 1024, seed=seed + 1)[0]
    _, hidden = net(x, return_hidden=True)
    return float(hidden[-1].double().norm(dim=1).mean())


def show(seed: int = 0) -> Shown:
    """‖h_L‖ in both modes."""
    net = exploding_with_dropout(seed)
    torch.manual_seed(seed)
    return Shown(
        "‖h_L‖",
        stream_norm(net.train(), seed),
        stream_norm(net.eval(), seed),
        f"dropout keeps {1 - P:.0%} of a branch and scales it by {1 / (1 - P):.0f}: the same on average, but "
        f"√{1 / (1 - P):.0f} times as long. Batch norm differs too: call model.eval() and say so.",
    )
