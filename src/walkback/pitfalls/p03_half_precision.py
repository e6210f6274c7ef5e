"""fp16 ends at 6e-8: a gradient of 5e-10 is zero in it. bf16 has fp32's range."""

from __future__ import annotations

import torch
from torch import Tensor

from walkback.measures.accumulate import smallest_subnormal
from walkback.pitfalls.shown import Shown
from walkback.selftest import batches, network


def gradient(seed: int) -> Tensor:
    """(128, 32) g_L of a mean loss on a network whose stream exploded under a terminal norm, in fp32."""
    net = network(depth=4, gain=100.0, seed=seed).eval()
    x, y = batches(1, seed=seed + 1)[0]
    _, hidden = net(x, return_hidden=True)
    h = hidden[-1].detach().requires_grad_()
    loss = torch.nn.functional.cross_entropy(net.out_head(net.out_ln(h)), y)
    return torch.autograd.grad(loss, h)[0]


def show(seed: int = 0) -> Shown:
    """The mean gradient norm after a trip through fp16."""
    g = gradient(seed)

    def norm(stored: Tensor) -> float:
        return float(stored.double().norm(dim=1).mean())

    bf16 = norm(g.to(torch.bfloat16))
    return Shown(
        "‖g_L‖ stored in fp16",
        norm(g.to(torch.float16)),  # walkback: ignore[P03]
        norm(g),
        f"the smallest number of fp16 is {smallest_subnormal(torch.float16):.1e}: smaller ones become zero. bf16 keeps "
        f"{bf16:.3g} of {norm(g):.3g}.",
    )
