"""How far float32 is off, as a run keeps it: gradients against float64, and what the residual sum absorbs."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from walkback.api import measure
from walkback.measures.precision import FLOAT64


def float64_check(net: nn.Module, probe: list[tuple[Tensor, Tensor]]) -> dict[str, Any] | None:
    """Per site 1 − cos(g, g in float64), and per block the share of f_l that h + f_l loses to rounding.

    Returns None where the network can't run in float64.
    """
    m = measure(net, probe, probes=("intrinsic",))
    if m.conditions["intrinsic"]["method"] != FLOAT64:
        return None
    return {"gradient_off": m.float64_disagreement, "absorbed": m.absorption[1:]}
