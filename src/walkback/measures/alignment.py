"""Accumulators of credit beside reference: the cosine, its neighbours, its null, its interval, Γ."""

from __future__ import annotations

from itertools import pairwise
from math import inf, sqrt
from typing import Any

import torch
from torch import Tensor

from walkback.errors import InputError
from walkback.measures.formulas import PUBLISHED_BATCH, Numbers, Pairs, View, averaged, concentration, deep_sites, mean
from walkback.measures.measurements import Found
from walkback.measures.nulls import SAMPLES as NULL_SAMPLES
from walkback.measures.nulls import Coupling, null_half, student
from walkback.measures.over_sites import GAMMA_OVER
from walkback.measures.rounding import SQUARABLE, by_largest, least_norm
from walkback.measures.stream import Samples
from walkback.measures.sums import AT_ONCE, REPEATED, Groups, Mean, some
from walkback.measures.vectors import WHOLE
from walkback.notes import Note
from walkback.sentence_parts import why_no_cosine


class Cosine(Mean):
    """The cosine, and for which samples it has no value."""

    def __init__(self, samples: Samples) -> None:
        super().__init__("cosine")
        self._samples = samples

    def compute(self, found: Found) -> None:
        super().compute(found)
        of, dtype, why = self._samples.samples, self._samples.dtype, []
        values = {"floor": f"{least_norm(dtype):.1e}", "dtype": str(dtype), "of": of}
        counts = self.counts()
        for site, (cosine, (counted, given)) in enumerate(zip(found.values["cosine"], counts)):
            lost, zero = of - counted, counted - given
            cause = "nonfinite" if given and cosine is None else "reference" if lost else "credit"
            if cosine is None:
                none = {"samples": zero} if cause == "credit" else {}
                found.notes.append(Note("no-cosine", site, {**values, "cause": cause, **none}))
                every = "" if cause == "nonfinite" else " for every sample"
                why.append(f"site {site}: {why_no_cosine({**values, 'cause': cause})}{every}")
                continue
            if lost:
                found.notes.append(Note("cosine-left-out", site, {**values, "cause": cause, "samples": lost}))
            if zero:
                found.notes.append(Note("zero-credit-site", site, {"samples": zero, "of": of}))
        if all(counted == of and not given for counted, given in counts):
            found.notes.append(Note("zero-credit"))
        if why:
            found.reasons["cosine"] = "; ".join(why)


class Neighbour(Mean):
    """A cosine with the next or the previous site, which may have another shape."""

    def compute(self, found: Found) -> None:
        super().compute(found)
        shapes = found.conditions["state_shapes"]
        alike = [lower == upper for lower, upper in pairwise(shapes)]
        changes = [site for site, same in enumerate(alike) if not same]
        missing = [f"the stream changes shape between sites {site} and {site + 1}" for site in changes]
        values = found.values[self.name]
        values = values[1:] if self.name == "cosine_below" else values[:-1]
        if any(value is None and same for value, same in zip(values, alike)):
            missing.append(found.reasons.get("cosine", "no sample has a direction at both of two neighbouring sites"))
        if missing:
            found.reasons[self.name] = "; ".join(missing)


class Null:
    """The band of the same credit turned at random, and the effective dimension it comes from, by site."""

    def __init__(self, cosine: Cosine, samples: Samples) -> None:
        self._cosine, self._samples = cosine, samples
        self._couplings: list[Coupling] = []

    def update(self, view: View) -> None:
        pairs, trace = view.pairs, view.trace
        assert trace.credits is not None
        self._couplings = self._couplings or [Coupling() for _ in trace.credits]
        if self._samples.samples - len(trace.losses) < NULL_SAMPLES:
            inverse = torch.where(pairs.valid, torch.stack([1 / pairs.credit_norm, 1 / pairs.grad_norm]), 0.0)
            for coupling, a, g, by in zip(self._couplings, trace.credits, trace.grads, inverse.unbind(1)):
                coupling.add(a, g, by)

    def compute(self, found: Found) -> None:
        sizes: Numbers = []
        for coupling, cosine, (counted, given) in zip(self._couplings, found.values["cosine"], self._cosine.counts()):
            k = None if cosine is None else coupling.dimension(given)
            # Samples without credit count as 0 in the mean, whatever way it is turned: its band is as much smaller.
            sizes.append(None if k is None else k * (counted / given) ** 2)
        half = [None if k is None else null_half(k) for k in sizes]
        low = [None if x is None else -x for x in half]
        found.values |= {"null_low": low, "null_high": half, "null_dimension": sizes}
        if None in half:
            why = found.reasons.get("cosine", "credit and reference never move together")
            found.reasons |= dict.fromkeys(("null_low", "null_high", "null_dimension"), why)


class Interval:
    """The 95 % t interval of each cosine, from its means over groups of 128 consecutive samples."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._groups, self._n = Groups(), 0
        self._sum: Any = 0.0
        self._squares: Any = 0.0

    def add(self, pairs: Pairs) -> None:
        """Take the samples of one batch or several."""
        cosines = torch.where(pairs.valid, pairs.own, 0.0)
        for (group,) in self._groups.add(torch.cat([cosines, pairs.usable]).T):
            total, n = group.chunk(2)
            self._sum = self._sum + total / n
            self._squares = self._squares + (total / n) ** 2
            self._n += 1

    def compute(self, found: Found) -> None:
        n, seen = self._n, self._samples
        why = f"needs at least 2 groups of {PUBLISHED_BATCH} samples, got {seen.samples} samples" if n < 2 else ""
        if seen.repeated > REPEATED:
            why = f"needs different samples, but {seen.repeated:.0%} of them occur more than once"
        half: Numbers = []
        if not why:
            spread = (self._squares - self._sum**2 / n).clamp(min=0) / (n - 1)
            half = [some(student(n - 1) * sqrt(v / n)) for v in spread.tolist()]
        if None in half:
            why = found.reasons.get("cosine", "the reference is zero for a whole group of samples")
        if why:
            found.reasons |= {"cosine_low": why, "cosine_high": why}
        for name, sign in (("cosine_low", -1), ("cosine_high", 1)):
            both = zip(found.values["cosine"], half)
            found.values[name] = [None if c is None or x is None else c + sign * x for c, x in both]


ONE = "there is only one site, and deep ones are those above the first"
NONE_DEEP = {
    "1..L": "the only deep site has the exact gradient by construction",
    "1..L-1": "there is no site between the first and the last",
}


class Gamma:
    """Γ, which is the mean over sites of means over samples, and the same in every other order of averaging."""

    def __init__(self, cosine: Cosine, gamma_over: str, deep_over: str) -> None:
        self._cosine, self._gamma_over, self._deep_over = cosine, gamma_over, deep_over
        self._orders: Any = 0.0
        # By the numbers of a sample at their sites: groups, and the sums of those that are full.
        self._groups: dict[int, tuple[Groups, list[Tensor]]] = {}
        self._by_batch, self._n_groups, self._sites = 0.0, 0, 0

    def update(self, view: View) -> None:
        trace = view.trace
        assert trace.credits is not None
        if trace.pool == WHOLE and self._gamma_over != GAMMA_OVER[0]:
            raise InputError("Expected gamma_over only of a residual stream: of a plain network Γ takes all layers.")
        self._sites = len(averaged([None] * len(trace.states), trace.pool == WHOLE, self._gamma_over))
        alike: dict[int, list[int]] = {}  # sites by the numbers of a sample there: those are added up as one
        for site, credit in enumerate(trace.credits[: self._sites]):
            alike.setdefault(credit.shape[1:].numel(), []).append(site)
        for size, sites in alike.items():
            groups, full = self._groups.setdefault(size, (Groups(), []))
            full += groups.add(*(side[site].flatten(1) for side in (trace.credits, trace.grads) for site in sites))
        if sum(group.numel() for _, full in self._groups.values() for group in full) >= AT_ONCE:
            self._add_full()

    def _add_full(self) -> None:
        """Add up the groups that are full: several take hardly longer than one."""
        made: list[Tensor] = []  # by size: cosines of (groups, sites)
        for _, full in self._groups.values():
            if full:
                a, g = torch.stack(full).chunk(2, 1)
                made.append(_cosine(a.flatten(0, 1), g.flatten(0, 1)).view(a.shape[:2]))
                full.clear()
        if made:
            of_groups = torch.cat(made, 1).mean(1)
            self._by_batch = self._by_batch + of_groups.sum()
            self._n_groups += len(of_groups)

    def add(self, pairs: Pairs) -> None:
        """Take the samples of one batch or several."""
        cos, na, ng = (t[: self._sites] for t in (pairs.own, pairs.credit_norm, pairs.grad_norm))
        (a, top_a), (g, top_g) = by_largest(na.T), by_largest(ng.T)
        size_a, size_g = a.norm(dim=1), g.norm(dim=1)
        whole = ~(size_g * top_g < SQUARABLE)
        given = whole & ~(size_a * top_a < SQUARABLE)
        by_sample = torch.where(given, (cos.T * a * g).sum(1) / (size_a * size_g), 0.0)
        flat = (cos * na * ng).sum(), na.square().sum(), ng.square().sum()
        self._orders = self._orders + torch.stack([by_sample.sum(), whole.sum(), given.sum(), *flat])

    def compute(self, found: Found) -> None:
        self._add_full()
        cosine, reasons = found.values["cosine"], found.reasons
        counted = cosine[: self._sites]
        gamma, share = mean(counted), concentration(counted)
        deep = mean([cosine[site] for site in deep_sites(cosine, self._deep_over)])
        for name, value, otherwise in (
            ("gamma", gamma, "a cosine is missing"),
            ("gamma_concentration", share, "every cosine is zero"),
            ("deep_cosine", deep, NONE_DEEP[self._deep_over] if cosine[1:] else ONE),
        ):
            found.values[name] = value
            if value is None:
                reasons[name] = reasons.get("cosine", otherwise)
        by_sample, whole, given, d, aa, gg = self._orders.tolist()
        aggregates = {
            "layers": gamma,
            "samples": some(by_sample / whole) if given else None,
            "batches": some(float(self._by_batch) / self._n_groups) if self._n_groups else None,
            "flattened": some(d / (aa**0.5 * gg**0.5)) if 0 < aa < inf and 0 < gg < inf else None,
        }
        if any(not counted for counted, _ in self._cosine.counts()[: self._sites]):
            aggregates = dict.fromkeys(aggregates)  # a site whose reference has no direction has none in any order
        missing = [name for name, value in aggregates.items() if value is None]
        if missing:
            otherwise = f"fewer than {PUBLISHED_BATCH} samples, a batch mean that is zero, or squares beyond float64"
            reasons["aggregates"] = f"{', '.join(missing)}: {reasons.get('cosine', otherwise)}"
        found.values["aggregates"] = aggregates


class SameAsReference:
    """Whether the credit is the reference bit for bit."""

    def __init__(self) -> None:
        self._same = True

    def update(self, view: View) -> None:
        assert view.trace.credits is not None
        self._same = self._same and all(torch.equal(a, g) for a, g in zip(view.trace.credits, view.trace.grads))

    def compute(self, found: Found) -> None:
        """Say it, unless g_l may be another signal than the gradient: a credit that equals it is not BP for that."""
        if self._same and not found.values.get("altered") and not found.values.get("doubted"):
            found.notes.append(Note("bp-itself"))


def _cosine(a: Tensor, g: Tensor) -> Tensor:
    """Return the cosine of a and g per row, whatever their size."""
    a, g = by_largest(a)[0], by_largest(g)[0]
    return (a * g).sum(1) / (torch.linalg.vector_norm(a, dim=1) * torch.linalg.vector_norm(g, dim=1))
