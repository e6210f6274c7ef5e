"""`tensor.norm(-1)`: −1 is taken for p, not for the axis."""

from __future__ import annotations

import torch
from torch import Tensor

from walkback.pitfalls.shown import Shown


def states(seed: int) -> Tensor:
    """(128, 256) standard normal states: every row has a norm of about 16."""
    return torch.randn(128, 256, generator=torch.Generator().manual_seed(seed))


def show(seed: int = 0) -> Shown:
    """The norm of a state, taken both ways."""
    h = states(seed)
    wrong = float(h.norm(-1))  # walkback: ignore[P01]
    right = float(h.norm(dim=-1).mean())
    return Shown(
        "norm of a state",
        wrong,
        right,
        "norm(-1) is (Σ 1/|x|)⁻¹ over all "
        f"{h.numel()} entries: one number near zero for the whole tensor, the smaller the more entries there are. "
        "norm(dim=-1) gives one L2 norm per row.",
    )
