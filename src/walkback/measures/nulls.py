"""What a cosine would be by chance, and how sure it is: its null band and its interval.

The null. The credit stays as it is, but its features are turned by one random rotation R, the same for every sample
and every position: whatever the credit's own structure is (norms, how alike samples are, classes, positions), it is
kept, and only where it points is left to chance. With unit vectors â_i and ĝ_i the mean cosine is then linear in R,

    c(R) = 1/n Σ_i ⟨R â_i, ĝ_i⟩ = ⟨R, N⟩,    N = 1/n Σ_i Σ_p ĝ_ip â_ipᵀ    (d × d, p runs over positions),

and since E[R_jk R_lm] = δ_jl δ_km / d for a rotation drawn evenly, E[c] = 0 and Var[c] = ‖N‖²/d, exactly. Gaussian
feedback matrices are as likely as their rotations, so for FA and DFA this is the law of drawing B anew.

d_eff = 1/Var[c] = d/‖N‖² is the effective dimension: one random direction in d_eff dimensions would have cosines as
large. It is d when all samples share one direction of gradient and one of credit; d·k when credit and gradient move
together in k dimensions, evenly; d·n when the samples have nothing to do with each other. So neither 1/√d nor 1/√(d·n)
is assumed: where between them a layer lies is measured.

‖N‖² is added up as N Z with Z a fixed set of orthonormal columns: all d of them up to d = 32, where it is exact, and 32
random ones beyond, where (d/32)·‖N Z‖² estimates it without bias. Memory is 32 numbers per feature and site. Only the
first 512 samples are looked at: with m of them ‖N‖² = D/m + (1 − 1/m)·s, D the mean over samples of ‖N_i‖² (1 where
a sample has one position), s the mean over pairs of different samples of Σ ⟨â_ip, â_jq⟩⟨ĝ_ip, ĝ_jq⟩. D and s are what
carries over to n samples.
"""

from __future__ import annotations

from functools import cache
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from walkback.measures.over_sites import reads_as as reads_as
from walkback.measures.over_sites import student as student

COLUMNS = 32
SAMPLES = 512


class Coupling:
    """Adds up N Z of one site over batches: how credit and reference move together over samples.

    >>> coupling = Coupling()
    >>> u = torch.eye(4)[:2]  # two samples, orthogonal, the credit is the gradient
    >>> coupling.add(u, u, torch.ones(2, 2))
    >>> coupling.dimension(2)  # d·k: 4 features, 2 directions that move together
    8.0
    """

    def __init__(self) -> None:
        self.total: Tensor | float = 0.0
        self.width, self.samples, self.own = 0, 0.0, 0.0

    def add(self, credit: Tensor, grad: Tensor, inverse: Float[Tensor, "2 batch"]) -> None:
        """Take one batch: (B, ...) credits and gradients, with 1/‖a‖ and 1/‖g‖ of its samples, 0 to leave one out."""
        dtype = torch.promote_types(grad.dtype, torch.float32)
        # Made to length one in float64: a credit of 1e-60 is a direction, and 0 in float32.
        unit = credit.double() * inverse[0].view(-1, *[1] * (credit.ndim - 1))
        a, g = _features(unit.to(dtype)), _features(grad.to(dtype))
        self.width = g.shape[-1]
        z = _columns(self.width, dtype, str(g.device))
        batch, used = inverse.shape[1], float((inverse[0] > 0).sum())
        scaled = (a @ z).mul_(inverse[1].to(dtype).repeat_interleave(len(g) // batch)[:, None])
        if len(g) == batch:
            self.total, self.own = self.total + (g.T @ scaled).double(), self.own + used
        else:
            each = (g.view(batch, -1, self.width).mT @ scaled.view(batch, -1, z.shape[1])).double()
            self.total = self.total + each.sum(0)
            self.own += float(each.square().sum()) * self.width / z.shape[1]
        self.samples += used

    def dimension(self, samples: float) -> float | None:
        """Return d_eff of a mean cosine over this many samples; None where it can't be told."""
        m = self.samples
        if not isinstance(self.total, Tensor) or not m:
            return None
        share = float((self.total / m).square().sum()) * self.width / self.total.shape[1]
        if m > 1 and m < samples:
            own = self.own / m
            share = own / samples + (1 - 1 / samples) * max(0.0, (share - own / m) / (1 - 1 / m))
        return self.width / share if share > 0 else None


def _features(x: Tensor) -> Float[Tensor, "rows width"]:
    """Return every position of every sample as a row of features: the last axis of (B, d) and (B, T, d), the channels
    of (B, C, H, W), else the whole sample.
    """
    if x.ndim == 4:
        return x.flatten(2).transpose(1, 2).flatten(0, 1)
    return x.flatten(0, -2) if x.ndim in (2, 3) else x.flatten(1)


@cache
def _columns(width: int, dtype: torch.dtype, device: str) -> Float[Tensor, "width columns"]:
    if width <= COLUMNS:
        return torch.eye(width, dtype=dtype, device=device)
    generator = torch.Generator().manual_seed(width)
    drawn = torch.randn(width, COLUMNS, generator=generator, dtype=torch.float64)
    return torch.linalg.qr(drawn).Q.to(dtype).to(device)


def null_half(dimension: float) -> float:
    """Return half the width of the 95 % band of a random direction's cosine in this many dimensions.

    With k dimensions cos·√(k−1)/√(1−cos²) has Student's t distribution of k − 1 degrees of freedom.

    >>> round(null_half(3), 6), round(null_half(256), 3), null_half(1.0)
    (0.95, 0.122, 1.0)
    """
    if dimension <= 1:
        return 1.0
    t = student(dimension - 1)
    return t / sqrt(dimension - 1 + t * t)
