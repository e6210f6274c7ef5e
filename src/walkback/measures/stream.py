"""Accumulators of the stream itself: samples, norms of states and gradients, stability of the reference."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from math import exp, inf, isfinite, nan, sqrt
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from walkback.measures.dtypes import dtype_name
from walkback.measures.formulas import PUBLISHED_BATCH, Numbers, View, growth, site_norms
from walkback.measures.measurements import Found, comparable
from walkback.measures.nulls import student
from walkback.measures.sums import AT_ONCE, REPEATED, Directions, some
from walkback.measures.vectors import WHOLE, fits, pool_at, shown, site_vectors
from walkback.network.prints import DataHash, prints_of
from walkback.notes import Note

LAYER_INDEX = {
    False: "site 0 is written by the stem, site l by block l",
    True: "site l is written by hidden layer l, from 0 on",
}
# One sample may carry this share of a mean norm before it is said.
OUTLIER = 0.1
# Under this share of the other tokens' norm, the norm of the token that is read divides by next to nothing.
NEARLY_ZERO = 0.05
# Seven bytes, which sort as they stand: of a million different samples two share them once in 140,000 data sets.
KEPT, MIXES = np.dtype("V7"), -7046029254386353131


class Prints:
    """A number for every sample, seven of its eight bytes kept on the CPU, and the sum of those of each batch."""

    def __init__(self) -> None:
        self.samples = 0
        self.sizes: Counter[int] = Counter()  # how many batches have how many samples
        self._waiting: list[tuple[int, Tensor]] = []  # index of the batch, and its samples, wherever they are
        self._waits = 0
        self._flat, self._filled = np.empty(0, KEPT), 0  # longer than it is filled
        self._sums, self._last = array("q"), (-1, 0)  # of batches; the last one, and how many samples of it there were
        self._distinct = 0, 0  # of so many samples, how many are different

    def add(self, index: int, prints: Int[Tensor, " batch"]) -> None:
        """Take a batch, or a part of one."""
        self.samples += len(prints)
        self._waiting.append((index, prints))
        self._waits += len(prints)
        if self._waits >= AT_ONCE:
            self.store()

    def store(self) -> None:
        """Put down what waits: many batches cost one transfer from a device."""
        if not self._waiting:
            return
        numbers = torch.cat([prints for _, prints in self._waiting]).cpu().numpy()
        end = self._filled + len(numbers)
        if end > len(self._flat):
            self._flat.resize(max(end, len(self._flat) * 17 // 16), refcheck=False)  # large memory grows in place
        mixed = (numbers * MIXES).astype("<i8")  # modulo 2⁶⁴: what differs in one byte differs in the upper seven
        self._flat.view(np.uint8).reshape(-1, 7)[self._filled : end] = mixed.view(np.uint8).reshape(-1, 8)[:, 1:]
        start = 0
        for index, prints in self._waiting:
            stop = start + len(prints)
            total, (last, size) = int(numbers[start:stop].sum()), self._last
            if index == last:
                total += self._sums.pop()
                self.sizes[size] -= 1
            self._sums.append((total + 2**63) % 2**64 - 2**63)
            self._last = index, len(prints) + (size if index == last else 0)
            self.sizes[self._last[1]] += 1
            start = stop
        self._filled, self._waits = end, 0
        self._waiting.clear()

    def distinct(self) -> int:
        """Return how many samples are different; sorts them in place, which forgets their order."""
        if self._distinct[0] != self.samples:
            self.store()
            flat = self._flat[: self._filled]
            flat.sort()
            each = flat.view(np.uint8).reshape(-1, 7)
            changes = (np.count_nonzero((part[1:] != part[:-1]).any(1)) for part in windows(each, AT_ONCE))
            self._distinct = self.samples, 1 + sum(map(int, changes))
        return self._distinct[1]

    def repeats(self) -> str:
        """Name the first batch that holds the samples of another; "" where none does."""
        self.store()
        sums = np.asarray(self._sums)
        order = np.argsort(sums, kind="stable")  # batches of one sum stand beside each other, the first one first
        again = order[1:][sums[order[1:]] == sums[order[:-1]]]
        return f"batch {(b := int(again.min()))} repeats batch {self._sums.index(sums[b])}" if len(again) else ""


def windows(flat: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Yield parts of an array that overlap by one, so that every pair of neighbours is in one of them.

    >>> [part.tolist() for part in windows(np.arange(4), 2)]
    [[0, 1, 2], [2, 3]]
    """
    return (flat[start : start + size + 1] for start in range(0, len(flat), size))


class Samples:
    """Which samples there were, in what batches, and under what they were measured."""

    def __init__(self) -> None:
        self.prints = Prints()
        self._hash = DataHash()
        self._pool: int | str | None = None
        self._masked = False

    @property
    def samples(self) -> int:
        """How many there were so far."""
        return self.prints.samples

    def update(self, view: View) -> None:
        trace = view.trace
        if not self.samples:
            self.shapes = [tuple(h.shape[1:]) for h in trace.states]
            self.dtype, self._state_dtype = trace.grads[-1].dtype, trace.states[-1].dtype
            self._device, self._where = str(trace.logits.device), str(trace.losses.device)
        self._pool = trace.pool
        self._masked = self._masked or (trace.pool == "mean" and fits(trace.mask, trace.states[-1]))
        prints = prints_of(trace.inputs, len(trace.losses)) if trace.prints is None else trace.prints
        self.prints.add(trace.index, prints)
        self._hash.add(trace.inputs, len(prints))

    @property
    def repeated(self) -> float:
        """The share of samples that had been there before."""
        return 1 - self.prints.distinct() / self.samples

    def compute(self, found: Found) -> None:
        distinct = self.prints.distinct()
        sizes = sorted(size for size, batches in self.prints.sizes.items() if batches)
        found.values["dtype"] = dtype_name(self.dtype)
        found.conditions |= {
            "mode": "eval",
            "device": self._device,
            "dtype": str(self._state_dtype).removeprefix("torch."),
            "gradient_dtype": str(self.dtype).removeprefix("torch."),
            "statistics": f"float64 on {self._where}",
            "batches": self.prints.sizes.total(),
            "batch_size": sizes[0] if len(sizes) == 1 else sizes,
            "samples": self.samples,
            "distinct_samples": distinct,
            "probe_hash": f"{self._hash.number():016x}",
            "state_shape": list(self.shapes[-1]),
            "state_shapes": [list(shape) for shape in self.shapes],
            "pool": self._pool,
            "token_averages": "over the tokens that count" if self._masked else None,
            "g_norm_batch_size": PUBLISHED_BATCH,
            "stability_group": PUBLISHED_BATCH,
            "layer_index": LAYER_INDEX[self._pool == WHOLE],
            "credit_site": "writer",
            "checkpoint": "the model as given",
        }


class _Sums:
    """Sum and largest of (sites, B) norms over samples, of which there may be none."""

    def __init__(self) -> None:
        self.n = 0
        self.sum: Any = 0.0
        self.largest: Any = torch.zeros(())

    def add(self, norms: Float[Tensor, "sites batch"]) -> None:
        self.n += norms.shape[1]
        self.sum = self.sum + norms.sum(1)
        largest = norms.amax(1) if norms.shape[1] else norms.new_zeros(len(norms))
        self.largest = torch.maximum(self.largest.to(norms), largest)


class LogErrors:
    """Standard errors, over samples, of the logarithms of mean norms and of their ratios.

    With n samples x_i, y_i the logarithm of the ratio of their means has the variance
    (Var x/x̄² + Var y/ȳ² − 2 Cov(x, y)/(x̄ ȳ))/n: samples are the same at every site, so a sample that is large at both
    does not count twice. Norms are divided by those of the first batch, so that no square overflows.
    """

    def __init__(self) -> None:
        self.n = 0
        self._scale: Any = None
        self._sum: Any = 0.0
        self._products: Any = 0.0

    def add(self, norms: Float[Tensor, "rows batch"]) -> None:
        if norms.shape[1]:
            if self._scale is None:
                self._scale = norms.mean(1, keepdim=True)
            off = norms / self._scale - 1
            self.n += norms.shape[1]
            self._sum, self._products = self._sum + off.sum(1), self._products + off @ off.T

    def relative(self) -> Tensor | None:
        """Return the covariances of the rows' means, each divided by its mean: those of their logarithms."""
        if self.n < 2:
            return None
        mean = self._sum / self.n
        covariance = (self._products / self.n - torch.outer(mean, mean)) / (self.n - 1)
        return covariance / torch.outer(1 + mean, 1 + mean)


class Norms:
    """‖h‖, ‖g‖ and growth with their intervals, where they are not finite, and where one sample carries a mean."""

    def __init__(self) -> None:
        # Apart, the norms of samples whose gradient does not show where they are read: that is where all others are,
        # unless a later batch shows that each has a token of its own.
        self._norms, self._apart = _Sums(), _Sums()
        self._all, self._errors = _Sums(), LogErrors()  # over all tokens; and of read, all, and gradient
        self._typical = _Sums()  # the norm of the median token, which no sink among the tokens moves
        # Of batches that wait: norms where they are read, apart, over all tokens, and of the samples that are counted.
        self._waiting: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self._nonfinite: dict[tuple[str, int], int] = {}  # (kind, site) -> first batch with a non-finite value

    def update(self, view: View) -> None:
        t = view.trace
        self._pool = t.pool
        norms = torch.stack([site_norms(s, pool_at(t, s), view.reader, t.mask) for s in (*t.states, *t.grads)])
        sure = shown(t)
        counted = slice(None) if sure is None or t.pool != "readout" else sure
        self._tokens = [s.shape[1] if s.ndim == 3 and t.pool not in (None, "mean") else 1 for s in t.states]
        everywhere = norms[: len(t.states)]
        if max(self._tokens) > 1:
            everywhere = torch.stack([site_norms(s, "mean", None, t.mask) for s in t.states])
            self._typical.add(torch.stack([_median_token(s, t.mask) for s in t.states])[:, counted])
        here, apart = (norms, norms[:, :0]) if sure is None else (norms[:, sure], norms[:, ~sure])
        self._waiting.append((here, apart, everywhere[:, counted], norms[:, counted]))
        if sum(read.numel() for *_, read in self._waiting) >= 2 * AT_ONCE:
            self._add_waiting()
        if not isfinite(norms.sum().item()):
            for kind, of_kind in zip(("state", "gradient"), norms.chunk(2)):
                for site in (~torch.isfinite(of_kind)).any(1).nonzero().flatten().tolist():
                    self._nonfinite.setdefault((kind, site), t.index)

    def _add_waiting(self) -> None:
        """Add up the norms of several batches at once: it takes hardly longer than those of one."""
        if self._waiting:
            here, apart, everywhere, read = (torch.cat(parts, 1) for parts in zip(*self._waiting))
            self._waiting.clear()
            for sums, norms in ((self._norms, here), (self._apart, apart), (self._all, everywhere)):
                sums.add(norms)
            self._errors.add(torch.cat([read[: len(everywhere)], everywhere, read[-1:]]))

    def compute(self, found: Found) -> None:
        self._add_waiting()
        (h, n, _), (g, samples, _) = self._totals()
        h = [some(v / n) if n else None for v in h.tolist()]
        g = [some(v / samples / PUBLISHED_BATCH) for v in g.tolist()]
        first = sorted(self._nonfinite.items(), key=lambda item: (item[1], item[0][1], item[0][0]))
        nonfinite = tuple(Note("nonfinite", site, {"kind": kind, "batch": batch}) for (kind, site), batch in first)
        for name, values, kind in (("h_norm", h, "state"), ("g_norm", g, "gradient")):
            if None in values:
                found.reasons[name] = "; ".join(note.text for note in nonfinite if note.values["kind"] == kind)
        if not n:
            found.reasons["h_norm"] = (
                f"{samples} of {samples} samples have no gradient at the last site, so the token they are "
                "read at is unknown. Name it: Anatomy.of(model, ..., pool=0)"
            )
        shapes = [tuple(shape) for shape in found.conditions["state_shapes"]]
        everywhere = self._everywhere(h, shapes, found)
        largest, total, why = growth(*comparable(everywhere or h, found.conditions))
        found.values |= {"h_norm": h, "g_norm": g, "growth": largest, "growth_total": total, "nonfinite": nonfinite}
        found.values["h_norm_all"] = everywhere
        if why:
            found.reasons |= {name: why for name in ("growth", "growth_total") if found.values[name] is None}
        if not everywhere:
            found.reasons["h_norm_all"] = "the token that is read has a norm like the others', or all tokens are read"
        self._intervals(found, len(h) if everywhere else 0)
        if 0 < n < samples:
            found.notes.append(Note("unread-samples", None, {"samples": samples - n, "of": samples}))
        found.notes += self._outliers()

    def _everywhere(self, read: Numbers, shapes: list[tuple[int, ...]], found: Found) -> Numbers:
        """Return ‖h‖ over all tokens where the token that is read has nearly none at some site, else nothing."""
        if not self._typical.n:
            return []
        every, typical = ([some(v / s.n) for v in s.sum.tolist()] for s in (self._all, self._typical))
        found_at = None
        for site, (one, others, tokens) in enumerate(zip(read[:-1], typical, self._tokens)):
            if one is None or others is None or tokens < 2:
                continue
            if one < NEARLY_ZERO * others and found_at is None:
                found_at = site, one / others
        if found_at is None or None in every:
            return []
        values = {"share": found_at[1], "read": growth(read, shapes)[0], "all": growth(every, shapes)[0]}
        found.notes.append(Note("token-denominator", found_at[0], values))
        return every

    def _intervals(self, found: Found, first: int) -> None:
        """Give the 95 % intervals of growth and of ‖g_L‖. Rows of the errors from `first` on are those of growth."""
        names = ("growth_low", "growth_high", "g_norm_deepest_low", "g_norm_deepest_high")
        found.values |= dict.fromkeys(names)
        covariance, n = self._errors.relative(), self._errors.n
        if covariance is None:
            found.reasons |= dict.fromkeys(names, f"needs at least 2 samples, got {n}")
            return
        # A sample that occurs twice says nothing new.
        distinct = max(2.0, n * found.conditions["distinct_samples"] / found.conditions["samples"])
        times = student(distinct - 1) * sqrt(n / distinct)
        norms, shapes = comparable(found.values["h_norm_all"] or found.values["h_norm"], found.conditions)
        low = high = 0.0
        for site in range(1, len(norms)):
            a, b = first + site - 1, first + site
            before, after = norms[site - 1], norms[site]
            apart = shapes is not None and shapes[site - 1] != shapes[site]
            if found.values["growth"] is None or apart or not before or after is None:
                continue
            variance = covariance[a, a] + covariance[b, b] - 2 * covariance[a, b]
            ratio, half = after / before, times * _root(variance)
            low, high = max(low, _scaled(ratio, -half)), max(high, _scaled(ratio, half))
        deepest, half = found.values["g_norm"][-1], times * _root(covariance[-1, -1])
        ends = {"growth": (low, high), "g_norm_deepest": (inf, inf)}
        if deepest:
            ends["g_norm_deepest"] = _scaled(deepest, -half), _scaled(deepest, half)
        for name, (down, up) in ends.items():
            if isfinite(down) and isfinite(up) and up > 0:
                found.values |= {f"{name}_low": down, f"{name}_high": up}
            else:
                of = {"growth": "growth", "g_norm_deepest": "g_norm"}[name]
                why = found.reasons.get(of, "the norm, or its spread over samples, is zero or not finite")
                found.reasons |= {f"{name}_low": why, f"{name}_high": why}

    def _totals(self) -> Iterator[tuple[Tensor, int, Tensor]]:
        """Return, of ‖h‖, then of ‖g‖, by site: the sum over samples that count, how many do, and the largest."""
        for side in range(2):
            # Without a gradient ‖g‖ is 0 at whichever token it is read; ‖h‖ is another at each.
            unknown = side == 0 and self._pool == "readout"
            parts = [self._norms] if unknown else [self._norms, self._apart]
            total, largest = (torch.stack([getattr(p, k).chunk(2)[side] for p in parts]) for k in ("sum", "largest"))
            yield total.sum(0), sum(part.n for part in parts), largest.amax(0)

    def _outliers(self) -> Iterator[Note]:
        """Return where one sample makes up much of a mean norm, and with it growth or the reference's size."""
        for what, (total, n, largest) in zip(("‖h‖", "‖g‖"), self._totals()):
            share, site = (largest / total).nan_to_num(0.0).max(0)
            if n >= 1 / OUTLIER**2 and float(share) > OUTLIER:
                yield Note("outlier", int(site), {"of": n, "share": float(share), "what": what})


def _median_token(state: Tensor, mask: Tensor | None) -> Tensor:
    """Return (B,) the norm of the median token; of a state without tokens its own."""
    if state.ndim != 3:
        return torch.linalg.vector_norm(state.flatten(1), dim=1, dtype=torch.float64)
    norms = torch.linalg.vector_norm(state, dim=-1, dtype=torch.float64)
    return (norms.masked_fill(~mask.bool(), nan) if fits(mask, state) else norms).nanmedian(1).values


def _root(variance: Tensor) -> float:
    """Return a standard error; rounding can put a variance of nothing a little under zero."""
    value = float(variance)
    return sqrt(max(0.0, value)) if isfinite(value) else inf


def _scaled(value: float, logarithm: float) -> float:
    """Return value·e^logarithm, infinite where it overflows."""
    return value * exp(logarithm) if logarithm < 700 else inf


class Stability:
    """The stability of the reference's direction at the last site."""

    def __init__(self, samples: Samples) -> None:
        self._samples, self._directions = samples, Directions()

    def update(self, view: View) -> None:
        t = view.trace
        self._directions.add(site_vectors(t.grads[-1], t.pool, view.reader, t.mask))

    def compute(self, found: Found) -> None:
        seen, of = self._samples, self._directions
        batches = found.conditions["batches"]
        why = ""
        if seen.repeated > REPEATED:
            again = seen.prints.repeats() or f"{seen.repeated:.0%} of the samples occur more than once"
            why = f"needs disjoint batches, but {again}"
        elif of.empty:
            why = f"the batch-mean reference at the last site is zero or not finite in {of.empty} groups"
        elif of.groups < 2 and batches < 2:
            why = f"needs at least 2 disjoint batches, got {batches}"
        elif of.groups < 2:
            why = (
                f"needs at least 2 groups of {PUBLISHED_BATCH} samples (the ceiling belongs to that size), got "
                f"{seen.samples} samples"
            )
        found.values["stability"] = None if why else of.stability()
        if why:
            found.reasons["stability"] = why
