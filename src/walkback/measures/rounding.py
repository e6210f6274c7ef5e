"""What a dtype can hold: the floors below which norms and cosines are what rounding left of them."""

from __future__ import annotations

from math import inf

import torch
from jaxtyping import Float
from torch import Tensor

# F.cosine_similarity's default denominator floor.
COSINE_EPS = 1e-8
# Squares of smaller norms, and products of two of them, leave the range of float64.
SQUARABLE = 1e-140


def smallest_subnormal(dtype: torch.dtype) -> float:
    """Return the smallest positive number of a dtype: 2⁻²⁴ in float16, 1.4e-45 in float32."""
    info = torch.finfo(dtype)
    return info.smallest_normal * info.eps


def cosine_eps(dtype: torch.dtype) -> float:
    """Return the floor of a cosine's denominator: 1e-8, or a dtype's smallest number where that is larger.

    >>> cosine_eps(torch.float32), cosine_eps(torch.float16) == 2.0**-24
    (1e-08, True)
    """
    return max(COSINE_EPS, smallest_subnormal(dtype))


def least_norm(dtype: torch.dtype) -> float:
    """Return the norm below which a vector has lost its direction to rounding (float64: in its squares)."""
    return max(torch.finfo(dtype).smallest_normal, SQUARABLE)


def by_largest(x: Tensor) -> tuple[Float[Tensor, "batch width"], Float[Tensor, " batch"]]:
    """Divide float64 rows by their largest entry, so that no square over- or underflows: (B, n) and (B,) the entries.

    Rows whose squares fit float64 come as they are, over 1: those of narrower types, and those of usual size.
    """
    rows = x.flatten(1)
    one = torch.ones(len(rows), dtype=torch.float64, device=rows.device)
    if x.dtype != torch.float64:
        return rows.double(), one
    top = torch.linalg.vector_norm(rows, inf, dim=1)
    if bool(((top > SQUARABLE) & (top < 1 / SQUARABLE)).all()):
        return rows, one
    top = torch.where(top == 0, 1.0, top)
    return rows / top[:, None], top


def unit_rows(x: Tensor, least: float) -> tuple[Float[Tensor, "batch width"], Tensor]:
    """Return (B, n) rows of length one, and (B,) which have a direction: a norm of at least `least`, or NaN."""
    rows, top = by_largest(x)
    size = torch.linalg.vector_norm(rows, dim=1)
    return rows / size.clamp(min=least)[:, None], ~(size * top < least)
