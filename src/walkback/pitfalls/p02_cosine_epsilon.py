"""`F.cosine_similarity` divides by norms that an ε holds up: at the floor the cosine shrinks with the gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from walkback.pitfalls.shown import Shown

NORM = 1e-10  # of the gradient: what DFA leaves of it under a terminal norm


@dataclass(frozen=True)
class Epsilon:
    """How the installed `F.cosine_similarity` behaves: its ε, and whether it holds up each norm or their product."""

    value: float
    each_norm: bool


def measured_epsilon(dtype: torch.dtype = torch.float32) -> Epsilon:
    """Asked of the function itself: the cosine of parallel vectors is 1, so what it says is ‖b‖/ε at the floor.

    >>> 0.9e-8 < measured_epsilon().value < 1.1e-8
    True
    """
    unit = torch.zeros(1, 4, dtype=dtype)
    unit[0, 0] = 1.0
    tiny = 1e-12 * unit
    held = [float(F.cosine_similarity(scale * unit, tiny)) for scale in (1.0, 100.0)]  # walkback: ignore[P02]
    # With ε on the product a hundredfold credit lifts the cosine a hundredfold; with ε on each norm it does nothing.
    return Epsilon(1e-12 / held[0], each_norm=held[1] < 2 * held[0])


def vectors(seed: int) -> tuple[Tensor, Tensor]:
    """(512, 64) credits of norm 1 and gradients of norm 1e-10, with a cosine of about 0.7."""
    draw = torch.Generator().manual_seed(seed)
    g, other = (torch.randn(512, 64, generator=draw) for _ in range(2))
    a = F.normalize(g + other, dim=1)
    return a, NORM * F.normalize(g, dim=1)


def show(seed: int = 0) -> Shown:
    """The mean cosine, by torch and in float64 without a floor."""
    a, g = vectors(seed)
    wrong = float(F.cosine_similarity(a, g).mean())  # walkback: ignore[P02]
    a, g = a.double(), g.double()
    right = float(((a * g).sum(1) / (a.norm(dim=1) * g.norm(dim=1))).mean())
    epsilon = measured_epsilon()
    how = "each norm" if epsilon.each_norm else "the product of the norms"
    return Shown(
        "cosine at ‖g‖ = 1e-10",
        wrong,
        right,
        f"torch {torch.__version__} holds {how} up at ε = {epsilon.value:.1e} (measured), so the cosine comes out "
        f"‖g‖/ε as large as it is. float64 does not help: its ε is {measured_epsilon(torch.float64).value:.1e} too.",
    )
