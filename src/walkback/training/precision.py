"""How far float32 is off: gradients against a float64 copy of the network, and what the residual sum absorbs."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from walkback.trace import Tracer


def float64_check(net: nn.Module, probe: list[tuple[Tensor, Tensor]]) -> dict[str, Any] | None:
    """Per site 1 − cos(g, g in float64), and per block the share of f_l that h + f_l loses to rounding.

    Returns None on devices without float64.
    """
    if probe[0][0].device.type == "mps":
        return None
    twin = copy.deepcopy(net).double()
    off: Tensor | float = 0.0
    lost: Tensor | float = 0.0
    count = 0
    with Tracer(net) as ours, Tracer(twin) as exact:
        for x, y in probe:
            a, b = ours.trace(x, y), exact.trace(x.double(), y)
            cosines = []
            for g, e in zip(a.grads, b.grads):
                g, e = g.flatten(1).double(), e.flatten(1)
                cosines.append((1 - (g * e).sum(1) / (g.norm(dim=1) * e.norm(dim=1))).sum())
            absorbed = []
            with torch.no_grad():
                for h, new, block in zip(a.states, a.states[1:], ours.blocks):
                    f = block(h)
                    f = (f if ours.branch else f - h).flatten(1).double()
                    kept = new.flatten(1).double() - h.flatten(1).double()
                    absorbed.append(((kept - f).norm(dim=1) / f.norm(dim=1)).sum())
            off, lost = off + torch.stack(cosines), lost + torch.stack(absorbed)
            count += len(y)

    def plain(values: Tensor | float) -> list[float | None]:
        numbers = (values / count).tolist()  # type: ignore[union-attr]
        return [v if v == v and abs(v) != float("inf") else None for v in numbers]

    return {"gradient_off": plain(off), "absorbed": plain(lost)}
