"""What is measured: pure functions, tensors in, numbers out, everything in float64. Nothing here adds up over batches.

Site l of a residual stream has per sample a state h_l, the gradient g_l of that sample's loss by it (the reference),
and the credit a_l that the rule under test gives it. Site 0 is written by the stem, site l by block l; L is read out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from walkback.measures.over_sites import PUBLISHED_BATCH as PUBLISHED_BATCH
from walkback.measures.over_sites import Numbers as Numbers
from walkback.measures.over_sites import averaged as averaged
from walkback.measures.over_sites import block_growth as block_growth
from walkback.measures.over_sites import concentration as concentration
from walkback.measures.over_sites import cosine_error as cosine_error
from walkback.measures.over_sites import deep_sites as deep_sites
from walkback.measures.over_sites import growth as growth
from walkback.measures.over_sites import mean as mean
from walkback.measures.rounding import SQUARABLE, by_largest, cosine_eps, least_norm
from walkback.measures.vectors import WHOLE, fits, readers, site_vectors
from walkback.tracing.trace import Trace

# -- norms: one vector per sample and site ------------------------------------------------------------------


def site_norms(
    state: Tensor, pool: int | str | None, reader: Tensor | None = None, mask: Tensor | None = None
) -> Float[Tensor, " batch"]:
    """Return ‖·‖ of `site_vectors` per sample; where the readout pools tokens, the mean of per-token norms.

    >>> site_norms(torch.tensor([[3.0, 4.0]]), None)
    tensor([5.], dtype=torch.float64)
    """
    if state.ndim == 2:
        return torch.linalg.vector_norm(state, dim=-1, dtype=torch.float64)
    if state.ndim == 3 and pool != WHOLE and not isinstance(pool, int) and (pool != "readout" or reader is None):
        norms = torch.linalg.vector_norm(state, dim=-1, dtype=torch.float64)
        if fits(mask, state):
            return (norms * mask).sum(1) / mask.sum(1).clamp(min=1)
        return norms.mean(1)
    return torch.linalg.vector_norm(site_vectors(state, pool, reader), dim=-1, dtype=torch.float64)


# -- cosines of credit and reference, per site and sample ---------------------------------------------------


@dataclass(frozen=True)
class Pairs:
    """Credits beside references: (sites, B) tensors, NaN where a site has no such neighbour or one of another shape."""

    own: Tensor  # cos(a_l, g_l), 0 where one of them is zero
    above: Tensor  # cos(a_l, g_{l+1})
    below: Tensor  # cos(a_l, g_{l-1})
    beside: Tensor  # cos(g_l, g_{l+1})
    credit_norm: Tensor
    grad_norm: Tensor
    alike: tuple[bool, ...]  # by site: has site l + 1 the shape of site l?
    dtype: torch.dtype

    @cached_property
    def usable(self) -> Bool[Tensor, "sites batch"]:
        """Has g_l a direction? NaN has: it is not finite, which is another finding than an underflow."""
        return ~(self.grad_norm < least_norm(self.dtype))

    @cached_property
    def directed(self) -> Bool[Tensor, "sites batch"]:
        """Has a_l one?"""
        return ~(self.credit_norm < SQUARABLE)

    @cached_property
    def valid(self) -> Bool[Tensor, "sites batch"]:
        return self.usable & self.directed  # these samples have a cosine

    @cached_property
    def next_alike(self) -> Bool[Tensor, "sites 1"]:
        return torch.tensor(self.alike)[:, None].to(self.own.device)

    @staticmethod
    def joined(parts: Sequence[Pairs]) -> Pairs:
        """Return the pairs of several batches as those of one."""
        if len(parts) == 1:
            return parts[0]
        return replace(parts[-1], **{name: torch.cat([getattr(part, name) for part in parts], 1) for name in NUMBERS})


NUMBERS = ("own", "above", "below", "beside", "credit_norm", "grad_norm")


def compare(credits: Sequence[Tensor], grads: Sequence[Tensor]) -> Pairs:
    """Compare the credits of one batch with the references, site by site and with the neighbours of each site."""
    alike = [lower.shape == upper.shape for lower, upper in pairwise(credits)]
    nowhere = torch.full((len(grads[0]),), torch.nan, dtype=torch.float64, device=grads[0].device)
    products = nowhere
    dots: list[list[Tensor]] = []  # by site: ⟨a_l, g_l⟩, ⟨a_l, g_{l+1}⟩, ⟨a_l, g_{l−1}⟩, ⟨g_l, g_{l+1}⟩
    sizes: list[list[Tensor]] = []  # by site: ‖a_l‖, ‖g_l‖, and what they were divided by
    before: list[Tensor] = []  # rows of the site before: two sites at a time are held in float64
    for site, (given, reference) in enumerate(zip(credits, grads)):
        (a, top_a), (g, top_g) = by_largest(given), by_largest(reference)
        if products.shape != a.shape:
            products = torch.empty_like(a)  # written over and over: memory that was just used is the fastest
        dots.append([torch.mul(a, g, out=products).sum(1), nowhere, nowhere, nowhere])
        if site and alike[site - 1]:
            a_before, g_before = before
            dots[-2][1] = torch.mul(a_before, g, out=products).sum(1)
            dots[-2][3] = torch.mul(g_before, g, out=products).sum(1)
            dots[-1][2] = torch.mul(a, g_before, out=products).sum(1)
        before = [a, g]
        sizes.append([torch.linalg.vector_norm(a, dim=1), torch.linalg.vector_norm(g, dim=1), top_a, top_g])
    na, ng, top_a, top_g = torch.stack([torch.stack(of) for of in sizes], 1)
    own, above, below, beside = torch.stack([torch.stack(of) for of in dots], 1)
    own = torch.where((na == 0) | (ng == 0), 0.0, own / (na * ng))
    after, prior = ng.roll(-1, 0), ng.roll(1, 0)
    above, below, beside = above / (na * after), below / (na * prior), beside / (ng * after)
    return Pairs(own, above, below, beside, na * top_a, ng * top_g, (*alike, False), grads[-1].dtype)


class View:
    """One trace, and what several formulas read of it, worked out once."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    @cached_property
    def reader(self) -> Tensor | None:
        return readers(self.trace)

    @cached_property
    def pairs(self) -> Pairs:
        assert self.trace.credits is not None
        return compare(self.trace.credits, self.trace.grads)


# -- per-site quantities that are means over samples: a formula has the name of its quantity ------------------
#
# It gives (sites, B) values; or those, which samples count in the mean, and which of them have a value (others are 0).

Counted = tuple[Float[Tensor, "sites batch"], Bool[Tensor, "sites batch"], Bool[Tensor, "sites batch"]]


def cosine(p: Pairs) -> Counted:
    """Return cos(a_l, g_l): 0 for a sample without credit; one whose reference underflowed is left out."""
    return p.own, p.usable, p.valid


def zero_credit(p: Pairs) -> Float[Tensor, "sites batch"]:
    """Return 1 for a sample without credit."""
    return (p.usable & ~p.directed).double()


def cosine_clamped(p: Pairs) -> Float[Tensor, "sites batch"]:
    """Return cos(a_l, g_l) as F.cosine_similarity gives it (ε in its denominator) on a mean loss over 128 samples."""
    eps = cosine_eps(p.dtype)
    return p.own * unclamped(p.credit_norm, eps) * unclamped(p.grad_norm, eps)


def below_eps(p: Pairs) -> Float[Tensor, "sites batch"]:
    """Return 1 for a sample whose reference is under that ε."""
    norms, eps = p.grad_norm, cosine_eps(p.dtype)
    return torch.where(torch.isnan(norms), torch.nan, (norms / PUBLISHED_BATCH < eps).double())


def cosine_above(p: Pairs) -> Counted:
    """Return cos(a_l, g_{l+1}): would the credit fit the next site better?"""
    there = p.usable.roll(-1, 0) & p.next_alike
    return p.above, there, there & p.directed


def cosine_below(p: Pairs) -> Counted:
    """Return cos(a_l, g_{l-1}): would the credit fit the previous site better?"""
    there = p.usable.roll(1, 0) & p.next_alike.roll(1, 0)
    return p.below, there, there & p.directed


def gradient_next(p: Pairs) -> Counted:
    """Return cos(g_l, g_{l+1}): how alike the references of the two sites are."""
    both = p.usable & p.usable.roll(-1, 0) & p.next_alike
    return p.beside, both, both


def unclamped(norms: Tensor, eps: float | Tensor) -> Tensor:
    """Return the share of a cosine that ε leaves, ‖x‖/max(‖x‖, ε), of per-sample norms at the published scale."""
    size = norms / PUBLISHED_BATCH
    return size / size.clamp(min=eps)


# -- over sites and groups of samples -------------------------------------------------------------------------


def pairwise_cosine(total: Float[Tensor, " width"], n: int) -> float:
    """Return the mean cosine over all pairs of n unit vectors, from their sum: (‖Σu‖² − n) / (n(n−1)).

    Stability is that of the mean references at site L of groups of 128 samples: 1 where they are one global direction.
    """
    return (float(total @ total) - n) / (n * (n - 1))
