"""Numbers from traces, streamed: Traces -> Measurements. Everything here is float64.

The formulas are functions, tensor in, tensor out. `Meter` only adds them up over batches: every sample
counts once, whatever batch it came in, and memory does not grow with the number of batches (but for eight
bytes per sample, by which repeated samples are recognised).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf, isfinite, sqrt
from typing import Any, TypeGuard

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from walkback.measures.nulls import SAMPLES as NULL_SAMPLES
from walkback.measures.nulls import Coupling, null_half, student
from walkback.network.prints import prints_of
from walkback.network.values import has_float64, no_autocast
from walkback.notes import Note, why_no_cosine
from walkback.tracing.session import Trace

# The published gradient norms are those of a mean loss over 128 samples: per-sample norms ÷ 128.
PUBLISHED_BATCH = 128
# F.cosine_similarity's default denominator floor.
COSINE_EPS = 1e-8
# One sample may carry this share of a mean norm before it is said.
OUTLIER = 0.1
STAGES = "the stream changes shape; growth is taken within stages"
# Squares of smaller norms, and products of two of them, leave the range of float64.
_SQUARABLE = 1e-140

# With a larger share of repeated samples, groups of samples are not independent.
_REPEATED = 0.05

Numbers = list[float | None]


# -- formulas ---------------------------------------------------------------------------------------------


def cosine_eps(dtype: torch.dtype) -> float:
    """The floor of a cosine's denominator in a dtype: 1e-8, or its smallest subnormal where that is larger.

    >>> cosine_eps(torch.float32), cosine_eps(torch.float16) > 5e-8
    (1e-08, True)
    """
    return max(COSINE_EPS, smallest_subnormal(dtype))


def smallest_subnormal(dtype: torch.dtype) -> float:
    """The smallest positive number of a dtype.

    >>> smallest_subnormal(torch.float16) == 2.0**-24
    True
    """
    info = torch.finfo(dtype)
    return info.smallest_normal * info.eps


def least_norm(dtype: torch.dtype) -> float:
    """A vector of this dtype with a smaller norm has lost its direction to rounding (float64: in its squares).

    >>> least_norm(torch.float16) == 2.0**-14
    True
    """
    return max(torch.finfo(dtype).smallest_normal, _SQUARABLE)


def site_vectors(
    state: Tensor, pool: int | str | None, reader: Tensor | None = None, mask: Tensor | None = None
) -> Float[Tensor, "batch width"]:
    """One vector per sample: (B, d) as it is, (B, T, d) at the readout token or token-averaged, else flattened.

    Args:
        state: (B, ...).
        pool: token index, "mean", or "readout" with `reader`.
        reader: (B,) the token each sample reads.
        mask: (B, T) the tokens that count in an average; all without it.
    """
    if state.ndim == 3:
        if pool == "readout" and reader is not None and state.shape[1] > int(reader.max()):
            return state[torch.arange(len(state), device=state.device), reader]
        if isinstance(pool, int) and -state.shape[1] <= pool < state.shape[1]:
            return state[:, pool]
        if _fits(mask, state):
            return (state.double() * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        return state.mean(1, dtype=torch.float64)
    return state.flatten(1)


def readers(trace: Trace) -> Int[Tensor, " batch"] | None:
    """(B,) the token that each sample's readout looks at, where that differs between samples.

    0 for a sample that is not `shown`: its gradient is zero there as at every token, its state is another.
    """
    deepest = trace.grads[-1]
    if trace.pool != "readout" or deepest.ndim != 3:
        return None
    sizes = torch.linalg.vector_norm(deepest, dim=-1, dtype=torch.float64)
    # Squares of entries under 1e-162 are 0 in float64.
    return torch.where(sizes.amax(1, keepdim=True) > 0, sizes, deepest.abs().amax(-1).double()).argmax(1)


def shown(trace: Trace) -> Bool[Tensor, " batch"]:
    """(B,) the samples whose gradient shows at which token they are read; all, where all tokens count."""
    deepest = trace.grads[-1]
    if deepest.ndim != 3 or trace.pool in (None, "mean"):
        return torch.ones(len(deepest), dtype=torch.bool, device=deepest.device)
    return (deepest != 0).flatten(1).any(1)


def _fits(mask: Tensor | None, state: Tensor) -> TypeGuard[Tensor]:
    """A mask of the tokens of these states: the stream may have other tokens than the inputs (cls, patches)."""
    return mask is not None and mask.shape == state.shape[:2]


def site_norms(
    state: Tensor, pool: int | str | None, reader: Tensor | None = None, mask: Tensor | None = None
) -> Float[Tensor, " batch"]:
    """Per-sample L2 norm of `site_vectors`; where the readout pools tokens, the mean of per-token norms.

    >>> site_norms(torch.tensor([[3.0, 4.0]]), None)
    tensor([5.], dtype=torch.float64)
    """
    if state.ndim == 3 and not isinstance(pool, int) and (pool != "readout" or reader is None):
        norms = torch.linalg.vector_norm(state, dim=-1, dtype=torch.float64)
        if _fits(mask, state):
            return (norms * mask).sum(1) / mask.sum(1).clamp(min=1)
        return norms.mean(1)
    return torch.linalg.vector_norm(site_vectors(state, pool, reader), dim=-1, dtype=torch.float64)


def growth(norms: Numbers, shapes: list[tuple[Any, ...]] | None = None) -> tuple[float | None, float | None, str]:
    """(max over l of ‖h_{l+1}‖/‖h_l‖, ‖h_L‖/‖h_0‖, why one is None). Sites of different shape are not compared.

    >>> growth([1.0, 3.0, 6.0])
    (3.0, 6.0, '')
    """
    if len(norms) < 2:
        return None, None, f"growth needs at least 2 sites, got {len(norms)}"
    if None in norms:
        return None, None, f"a state norm is missing: {_sites(norms, None)}"
    known = [float(n) for n in norms if n is not None]
    same = [shapes is None or shapes[i] == shapes[i + 1] for i in range(len(known) - 1)]
    if 0.0 in known[:-1]:
        return None, None, f"a state norm is zero: {_sites(known[:-1], 0.0)}, so growth from there has no value"
    steps, whole = [b / a for a, b in pairwise(known)], known[-1] / known[0]
    if not all(isfinite(ratio) for ratio in (*steps, whole)):
        return None, None, "the ratio of two state norms overflows float64"
    ratios, total = [r for r, ok in zip(steps, same) if ok], whole if all(same) else None
    if not ratios:
        return None, total, "no two neighbouring sites have the same shape"
    return max(ratios), total, "" if all(same) else STAGES


def block_growth(norms: Numbers, shapes: list[tuple[Any, ...]] | None = None) -> dict[int, float]:
    """Site l -> ‖h_l‖/‖h_{l-1}‖, where there is such a ratio: its largest is the least that growth can be.

    >>> block_growth([0.0, 1.0, 3.0, None, 4.0])
    {2: 3.0}
    """
    return {
        site: after / before
        for site, (before, after) in enumerate(pairwise(norms), 1)
        if before and after is not None and (shapes is None or shapes[site - 1] == shapes[site])
    }


def stream_shapes(conditions: Mapping[str, Any], sites: int) -> list[tuple[Any, ...]] | None:
    """The shape of the stream at every site, where it was logged: norms of different shapes are not compared."""
    shapes = conditions.get("state_shapes")
    if not isinstance(shapes, list) or len(shapes) != sites:
        return None
    return [tuple(shape) if isinstance(shape, list) else (shape,) for shape in shapes]


def _sites(norms: Sequence[float | None], value: float | None) -> str:
    return ", ".join(f"‖h_{site}‖" for site, norm in enumerate(norms) if norm == value)


def pairwise_cosine(total: Float[Tensor, " width"], n: int) -> float:
    """Mean cosine over all pairs of n unit vectors, from their sum: (‖Σu‖² − n) / (n(n−1)).

    >>> pairwise_cosine(torch.tensor([1.0, 1.0]), 2)
    0.0
    """
    return (float(total @ total) - n) / (n * (n - 1))


def concentration(cosines: Numbers) -> float | None:
    """The share of Σ|cos_l| that its largest site carries; 1/n when all n sites agree.

    >>> concentration([0.75, -0.25, 0.0])
    0.75
    """
    known = [abs(c) for c in cosines if c is not None]
    if not known or len(known) < len(cosines) or sum(known) == 0.0:
        return None
    return max(known) / sum(known)


def cosine_error(disagreement: Numbers, shift: Numbers) -> tuple[float | None, int | None]:
    """(how far a reported cosine is off at the worst site, which one): the larger of disagreement and |shift|.

    >>> cosine_error([1e-12, 0.3], [0.0, -0.1])
    (0.3, 1)
    """
    worst = [
        max([abs(v) for v in pair if v is not None], default=None)
        for pair in zip(disagreement, shift or [None] * len(disagreement))
    ]
    known = [(v, site) for site, v in enumerate(worst) if v is not None]
    return max(known, key=lambda one: one[0]) if known else (None, None)


def mean(values: Numbers) -> float | None:
    """The mean, or None when anything is missing (a mean over what is left would be another quantity)."""
    return (
        None if not values or any(v is None for v in values) else sum(v for v in values if v is not None) / len(values)
    )


def deep_sites(cosines: Numbers) -> range:
    """Sites 1…L, without L where its credit is the exact gradient by construction (as in FA).

    >>> list(deep_sites([0.1, 0.2, 0.9])), list(deep_sites([0.1, 0.2, 1.0]))
    ([1, 2], [1])
    """
    last = cosines[-1] if cosines else None
    exact = last is not None and last > 1 - 1e-6
    return range(1, len(cosines) - 1 if exact else len(cosines))


# -- what travels -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measurements:
    """The numbers of one network on one probe set. Lists run over sites 0…L; None was not measured.

    `reasons` says why a field is None; `conditions` says under what it was measured.

    >>> import walkback as wb
    >>> m = wb.measure(wb.selftest.healthy(), wb.selftest.batches(2))
    >>> len(m.h_norm), m.gamma, m.reasons["gamma"]
    (5, None, 'no credit was given')
    """

    h_norm: Numbers = field(default_factory=list)
    g_norm: Numbers = field(default_factory=list)
    cosine: Numbers = field(default_factory=list)
    cosine_clamped: Numbers = field(default_factory=list)
    below_eps: Numbers = field(default_factory=list)
    zero_credit: Numbers = field(default_factory=list)  # share of samples without credit: counted as cosine 0
    cosine_above: Numbers = field(default_factory=list)  # of a_l with g_{l+1}: would a shift by one fit better?
    cosine_below: Numbers = field(default_factory=list)  # of a_l with g_{l-1}
    gradient_next: Numbers = field(default_factory=list)  # of g_l with g_{l+1}: how alike the two are
    cosine_low: Numbers = field(default_factory=list)  # 95 % interval over samples and batches
    cosine_high: Numbers = field(default_factory=list)
    null_low: Numbers = field(default_factory=list)  # 95 % band of the same credit, turned at random: see nulls.py
    null_high: Numbers = field(default_factory=list)
    null_dimension: Numbers = field(default_factory=list)
    float64_disagreement: Numbers = field(default_factory=list)  # these five only where asked: see intrinsic.py
    float64_shift: Numbers = field(default_factory=list)
    epsilon_share: Numbers = field(default_factory=list)
    absorption: Numbers = field(default_factory=list)
    stability_distinct: float | None = None
    growth: float | None = None
    growth_total: float | None = None
    stability: float | None = None
    gamma: float | None = None
    gamma_concentration: float | None = None
    deep_cosine: float | None = None
    aggregates: dict[str, float | None] = field(default_factory=dict)
    probes: dict[str, Numbers] = field(default_factory=dict)
    nonfinite: tuple[Note, ...] = ()  # where states or gradients are not finite, first batch first
    altered: Note | None = None  # how the reference was found not to be the derivative of the loss
    doubted: Note | None = None  # why it could not be checked, where something could have altered it
    dtype: torch.dtype = torch.float32
    conditions: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()

    @property
    def nonfinite_kinds(self) -> frozenset[str]:
        """What is not finite: "state", "gradient", both or nothing."""
        return frozenset(note.values["kind"] for note in self.nonfinite)


# -- adding up --------------------------------------------------------------------------------------------


class Groups:
    """Sums over consecutive samples in groups of 128, so that batch-level numbers don't depend on the batch size."""

    def __init__(self, size: int = PUBLISHED_BATCH) -> None:
        self.size, self.filled = size, 0
        self.sum: Any = 0.0

    def add(self, rows: Float[Tensor, "batch width"]) -> Iterator[Float[Tensor, " width"]]:
        """Take the samples of one batch; yield the sum of every group they complete."""
        start = 0
        while start < len(rows):
            part = rows[start : start + self.size - self.filled]
            self.sum = self.sum + part.sum(0, dtype=torch.float64)
            self.filled += len(part)
            start += len(part)
            if self.filled == self.size:
                done, self.sum, self.filled = self.sum, 0.0, 0
                yield done


class _Norms:
    """Sum and largest of (sites, B) norms over samples, of which there may be none."""

    def __init__(self) -> None:
        self.n = 0
        self.sum: Any = 0.0
        self.largest: Any = torch.zeros(())

    def add(self, norms: Float[Tensor, "sites batch"]) -> None:
        self.n += norms.shape[1]
        self.sum = self.sum + norms.sum(1)
        self.largest = torch.maximum(self.largest.to(norms), pad(norms, (1, 0)).amax(1))


class Meter:
    """Adds traces up and gives Measurements.

    >>> import walkback as wb
    >>> meter = Meter()
    >>> with wb.Tracer(wb.selftest.healthy()) as tracer:
    ...     for x, y in wb.selftest.batches(2):
    ...         meter.add(tracer.trace(x, y))
    >>> len(meter.result().h_norm), meter.samples
    (5, 256)
    """

    def __init__(self) -> None:
        self.samples = self.batches = 0
        self.sizes: set[int] = set()
        self._sum: dict[str, Any] = defaultdict(float)  # running sums, on the device of the statistics
        # Norms of states and gradients; apart, those of samples whose gradient does not show where they are read: that
        # is where all others are, unless a later batch shows that each has a token of its own.
        self._norms, self._apart = _Norms(), _Norms()
        self._bad: dict[tuple[str, int], int] = {}  # (kind, site) -> first batch with a non-finite value
        self._groups = Groups()
        self._n_directions = self._n_empty = 0
        self._prints: list[Tensor] = []
        self._credit: _CreditMeter | None = None

    def add(self, batch: Trace | Iterable[Trace]) -> None:
        """Take one batch into account: its trace, or those of its parts, which may be made one at a time."""
        prints: list[Tensor] = []
        for trace in (batch,) if isinstance(batch, Trace) else batch:
            with no_autocast(trace.losses.device):
                prints.append(self._add(to_float64_device(trace)))
            del trace  # the next part is traced without this one in memory
        self._prints.append(torch.cat(prints))
        self.batches += 1
        self.sizes.add(len(self._prints[-1]))

    @torch.no_grad()
    def _add(self, trace: Trace) -> Tensor:
        if not self.samples:
            self.shapes = [tuple(h.shape[1:]) for h in trace.states]
            self.dtype, self.state_dtype = trace.grads[-1].dtype, trace.states[-1].dtype
            self.device, self.where = str(trace.logits.device), str(trace.losses.device)
            self.masked = False
        self.pool = trace.pool
        reader = readers(trace)
        norms = torch.stack([site_norms(s, trace.pool, reader, trace.mask) for s in (*trace.states, *trace.grads)])
        self.masked = self.masked or (trace.pool == "mean" and _fits(trace.mask, trace.states[-1]))
        sure = shown(trace)
        self._norms.add(norms[:, sure])
        self._apart.add(norms[:, ~sure])
        if not isfinite(float(norms.sum())):
            h, g = norms.chunk(2)
            self._note_nonfinite("state", h)
            self._note_nonfinite("gradient", g)
        for group in self._groups.add(site_vectors(trace.grads[-1], trace.pool, reader, trace.mask)):
            length = float(group.norm())
            if isfinite(length) and length > 0.0:
                self._sum["directions"] += group / length
                self._n_directions += 1
            else:
                self._n_empty += 1
        if trace.credits is not None:
            self._credit = self._credit or _CreditMeter()
            self._credit.add(trace.credits, trace.grads)
        self.samples += len(trace.losses)
        return prints_of(trace.inputs, len(trace.losses)) if trace.prints is None else trace.prints

    def _note_nonfinite(self, kind: str, norms: Float[Tensor, "sites batch"]) -> None:
        for site in (~torch.isfinite(norms)).any(1).nonzero().flatten().tolist():
            self._bad.setdefault((kind, site), self.batches)

    def result(self) -> Measurements:
        """The Measurements of everything added so far."""
        reasons: dict[str, str] = {}
        (h, n, _), (g, samples, _) = self._totals()
        h = [some(v / n) if n else None for v in h.tolist()]
        g = [some(v / samples / PUBLISHED_BATCH) for v in g.tolist()]
        nonfinite = tuple(
            Note("nonfinite", site, {"kind": kind, "batch": batch})
            for (kind, site), batch in sorted(self._bad.items(), key=lambda item: (item[1], item[0][1], item[0][0]))
        )
        for name, values, kind in (("h_norm", h, "state"), ("g_norm", g, "gradient")):
            if None in values:
                reasons[name] = "; ".join(note.text for note in nonfinite if note.values["kind"] == kind)
        if not n:
            reasons["h_norm"] = (
                f"{self.samples} of {self.samples} samples have no gradient at the last site, so the token they are "
                "read at is unknown. Name it: Anatomy.of(model, ..., pool=0)"
            )
        rho, total, why = growth(h, self.shapes)
        if why:
            reasons.update({k: why for k, v in (("growth", rho), ("growth_total", total)) if v is None})
        stability, why = self._stability()
        if why:
            reasons["stability"] = why
        if self._credit is None:
            names = ("cosine", "cosine_clamped", "below_eps", "gamma", "gamma_concentration", "deep_cosine")
            names += ("cosine_above", "cosine_below", "gradient_next", "zero_credit")
            names += ("cosine_low", "cosine_high", "null_low", "null_high", "null_dimension")
            reasons.update(dict.fromkeys((*names, "aggregates"), "no credit was given"))
        prints = torch.cat(self._prints)
        found = {} if self._credit is None else self._credit.result(self.dtype, reasons, self._repeated())
        unread = {"samples": samples - n, "of": self.samples}
        left_out = [Note("unread-samples", None, unread)] if 0 < n < samples else []
        notes = (*found.pop("notes", ()), *left_out, *self._outliers())
        return Measurements(
            h_norm=h,
            notes=notes,
            g_norm=g,
            growth=rho,
            growth_total=total,
            stability=stability,
            nonfinite=nonfinite,
            dtype=self.dtype,
            reasons=reasons,
            conditions={
                "mode": "eval",
                "device": self.device,
                "dtype": str(self.state_dtype).removeprefix("torch."),
                "gradient_dtype": str(self.dtype).removeprefix("torch."),
                "statistics": f"float64 on {self.where}",
                "batches": self.batches,
                "batch_size": next(iter(self.sizes)) if len(self.sizes) == 1 else sorted(self.sizes),
                "samples": self.samples,
                "distinct_samples": self._distinct(),
                "probe_hash": f"{int(prints.sum()) & (2**64 - 1):016x}",
                "state_shape": list(self.shapes[-1]),
                "state_shapes": [list(shape) for shape in self.shapes],
                "pool": self.pool,
                "token_averages": "over the tokens that count" if self.masked else None,
                "g_norm_batch_size": PUBLISHED_BATCH,
                "stability_group": PUBLISHED_BATCH,
                "layer_index": "site 0 is written by the stem, site l by block l",
                "credit_site": "writer",
                "checkpoint": "the model as given",
            },
            **found,
        )

    def _totals(self) -> Iterator[tuple[Tensor, int, Tensor]]:
        """Of ‖h‖, then of ‖g‖: sums by site over the samples that count, how many do, and the largest by site."""
        for side in range(2):
            # Without a gradient ‖g‖ is 0 at whichever token it is read; ‖h‖ is another at each.
            unknown = side == 0 and self.pool == "readout"
            parts = [self._norms] if unknown else [self._norms, self._apart]
            total, largest = (torch.stack([getattr(p, k).chunk(2)[side] for p in parts]) for k in ("sum", "largest"))
            yield total.sum(0), sum(part.n for part in parts), largest.amax(0)

    def _repeated(self) -> float:
        """The share of samples that had been added before."""
        return 1 - self._distinct() / self.samples

    def _outliers(self) -> Iterator[Note]:
        """Where one sample makes up much of a mean norm, and with it growth or the reference's size."""
        for what, (total, n, largest) in zip(("‖h‖", "‖g‖"), self._totals()):
            share, site = (largest / total).nan_to_num(0.0).max(0)
            if n >= 1 / OUTLIER**2 and float(share) > OUTLIER:
                yield Note("outlier", int(site), {"of": n, "share": float(share), "what": what})

    def _distinct(self) -> int:
        """How many different samples were added."""
        return torch.cat(self._prints).unique().numel()

    def _repeats(self) -> str:
        """The first batch that holds the samples of another; "" where none does."""
        seen: dict[int, int] = {}
        for batch, total in enumerate(torch.stack([prints.sum() for prints in self._prints]).tolist()):
            first = seen.setdefault(total, batch)
            if first != batch:
                return f"batch {batch} repeats batch {first}"
        return ""

    def _stability(self) -> tuple[float | None, str]:
        share = self._repeated()
        if share > _REPEATED:
            again = self._repeats() or f"{share:.0%} of the samples occur more than once"
            return None, f"needs disjoint batches, but {again}"
        if self._n_empty:
            return (
                None,
                f"the batch-mean reference at the last site is zero or not finite in {self._n_empty} groups",
            )
        if self._n_directions < 2 and self.batches < 2:
            return None, f"needs at least 2 disjoint batches, got {self.batches}"
        if self._n_directions < 2:
            return None, (
                f"needs at least 2 groups of {PUBLISHED_BATCH} samples (the ceiling belongs to that size), got "
                f"{self.samples} samples"
            )
        return pairwise_cosine(self._sum["directions"], self._n_directions), ""


class _CreditMeter:
    """Cosines of credit and reference, per site and in every order of averaging."""

    def __init__(self) -> None:
        self._sum: dict[str, Any] = defaultdict(float)
        self._groups: list[tuple[Groups, Groups]] = []
        self._couplings: list[Coupling] = []
        self._means, self._n_means = Groups(), 0
        self._samples = self._n_groups = 0
        self._same = True
        self._alike: list[bool] = []  # of sites l and l + 1: have they one shape?

    def add(self, credits: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        self._same = self._same and all(torch.equal(a, g) for a, g in zip(credits, grads))
        dtype = grads[-1].dtype
        cos, above, below, beside, na, ng = neighbouring_cosines(credits, grads)
        cos = torch.where((na == 0) | (ng == 0), 0.0, cos)
        # Written so that NaN stays in: it is not finite, which is another finding than an underflow.
        usable = ~(ng < least_norm(dtype))
        directed = ~(na < _SQUARABLE)
        valid = usable & directed
        self._alike = [lower.shape == upper.shape for lower, upper in pairwise(credits)]
        beside_above, beside_below = [*self._alike, False], [False, *self._alike]
        for name, shifted, by in (("above", above, -1), ("below", below, 1)):
            # A sample without credit counts as no alignment; where there is no such neighbour, nothing is counted.
            there = _where_alike(usable.roll(by, 0), beside_above if by < 0 else beside_below)
            given = there & directed
            self._sum[name] += torch.stack([torch.where(given, shifted, 0.0).sum(1), there.sum(1), given.sum(1)])
        both = usable & _where_alike(usable.roll(-1, 0), beside_above)
        self._sum["next"] += torch.stack([torch.where(both, beside, 0.0).sum(1), both.sum(1), both.sum(1)])
        eps, scale = cosine_eps(dtype), 1.0 / PUBLISHED_BATCH
        clamped = cos * (na * scale / (na * scale).clamp(min=eps)) * (ng * scale / (ng * scale).clamp(min=eps))
        cosines = torch.where(valid, cos, 0.0)
        self._samples += cos.shape[1]
        self._sum["per_site"] += torch.stack([
            cosines.sum(1),
            clamped.sum(1),
            valid.sum(1),
            (~usable).sum(1),
            torch.where(torch.isnan(ng), torch.nan, (ng * scale < eps).double()).sum(1),
            usable.sum(1),
            (usable & ~directed).sum(1),
        ])  # fmt: skip
        for total, n in (group.chunk(2) for group in self._means.add(torch.cat([cosines, usable]).T)):
            self._sum["mean"] += total / n
            self._sum["square"] += (total / n) ** 2
            self._n_means += 1
        self._couplings = self._couplings or [Coupling() for _ in credits]
        if self._samples - cos.shape[1] < NULL_SAMPLES:
            inverse = torch.where(valid, torch.stack([1 / na, 1 / ng]), 0.0)
            for coupling, a, g, by in zip(self._couplings, credits, grads, inverse.unbind(1)):
                coupling.add(a, g, by)
        # The other orders of averaging, over the sites of Γ: 0…L−1.
        (a, top_a), (g, top_g) = by_largest(na[:-1].T), by_largest(ng[:-1].T)
        whole = ~(g.norm(dim=1) * top_g < _SQUARABLE)
        given = whole & ~(a.norm(dim=1) * top_a < _SQUARABLE)
        by_sample = torch.where(given, (cos[:-1].T * a * g).sum(1) / (a.norm(dim=1) * g.norm(dim=1)), 0.0)
        d, aa, gg = (cos * na * ng)[:-1].sum(), (na[:-1] ** 2).sum(), (ng[:-1] ** 2).sum()
        self._sum["orders"] += torch.stack([by_sample.sum(), whole.sum(), given.sum(), d, aa, gg])
        if not self._groups:
            self._groups = [(Groups(), Groups()) for _ in credits[:-1]]
        per_site = [
            list(zip(list(for_a.add(a.flatten(1))), list(for_g.add(g.flatten(1)))))
            for (for_a, for_g), a, g in zip(self._groups, credits, grads)
        ]
        for group in zip(*per_site):
            self._sum["by_batch"] += torch.cat([_cosine_and_norms(a[None], g[None])[0] for a, g in group]).mean()
            self._n_groups += 1

    def result(self, dtype: torch.dtype, reasons: dict[str, str], repeated: float) -> dict[str, Any]:
        """Fields of Measurements; what can't be given is None, with its reason added to `reasons`."""
        totals, clamped, valid, lost, below, counted, zero = self._sum["per_site"].tolist()
        cosine: Numbers = []
        why: list[str] = []
        notes: list[Note] = []
        values = {"floor": f"{least_norm(dtype):.1e}", "dtype": str(dtype), "of": self._samples}
        for site, (total, n, all_) in enumerate(zip(totals, valid, counted)):
            cosine.append(some(total / all_) if n else None)
            cause = "nonfinite" if n and cosine[site] is None else "reference" if lost[site] else "credit"
            if cosine[site] is None:
                notes.append(Note("no-cosine", site, {**values, "cause": cause}))
                every = "" if cause == "nonfinite" else " for every sample"
                why.append(f"site {site}: {why_no_cosine({**values, 'cause': cause})}{every}")
                continue
            if lost[site]:
                left = {**values, "cause": cause, "samples": int(lost[site])}
                notes.append(Note("cosine-left-out", site, left))
            if zero[site]:
                notes.append(Note("zero-credit-site", site, {"samples": int(zero[site]), "of": self._samples}))
        if not any(valid) and not any(lost):
            notes.append(Note("zero-credit"))
        if why:
            reasons["cosine"] = "; ".join(why)
        shifted = {
            name: [some(total / n) if given else None for total, n, given in self._sum[which].T.tolist()]
            for name, which in (("cosine_above", "above"), ("cosine_below", "below"), ("gradient_next", "next"))
        }
        for name, values in shifted.items():
            missing = [
                f"the stream changes shape between sites {site} and {site + 1}"
                for site, alike in enumerate(self._alike)
                if not alike
            ]
            found = zip(values[1:] if name == "cosine_below" else values[:-1], self._alike)
            if any(value is None and alike for value, alike in found):
                missing.append(reasons.get("cosine", "no sample has a direction at both of two neighbouring sites"))
            if missing:
                reasons[name] = "; ".join(missing)
        gamma, share = mean(cosine[:-1]), concentration(cosine[:-1])
        deep = mean([cosine[site] for site in deep_sites(cosine)])
        by_sample, n_by_sample, given, d, aa, gg = self._sum["orders"].tolist()
        aggregates: dict[str, float | None] = {
            "layers": gamma,
            "samples": some(by_sample / n_by_sample) if given else None,
            "batches": some(float(self._sum["by_batch"]) / self._n_groups) if self._n_groups else None,
            "flattened": some(d / (aa**0.5 * gg**0.5)) if 0 < aa < inf and 0 < gg < inf else None,
        }
        if self._samples in lost[:-1]:  # a site whose reference has no direction has none in any order
            aggregates = dict.fromkeys(aggregates)
        for name, value, otherwise in (
            ("gamma", gamma, "a cosine is missing"),
            ("gamma_concentration", share, "every cosine is zero"),
            ("deep_cosine", deep, "the only deep site has the exact gradient by construction"),
        ):
            if value is None:
                reasons[name] = reasons.get("cosine", otherwise)
        missing = [name for name, value in aggregates.items() if value is None]
        if missing:
            otherwise = f"fewer than {PUBLISHED_BATCH} samples, a batch mean that is zero, or squares beyond float64"
            reasons["aggregates"] = f"{', '.join(missing)}: {reasons.get('cosine', otherwise)}"
        if self._same:
            notes.append(Note("bp-itself"))
        return {
            "cosine": cosine,
            "cosine_clamped": [some(c / self._samples) for c in clamped],
            "below_eps": [some(c / self._samples) for c in below],
            "zero_credit": [some(c / self._samples) for c in zero],
            **shifted,
            **self._nulls(cosine, valid, counted, reasons),
            **self._intervals(cosine, reasons, repeated),
            "gamma": gamma,
            "gamma_concentration": share,
            "deep_cosine": deep,
            "aggregates": aggregates,
            "notes": tuple(notes),
        }

    def _nulls(
        self, cosine: Numbers, valid: Sequence[float], counted: Sequence[float], reasons: dict[str, str]
    ) -> dict[str, Numbers]:
        """The band of the same credit turned at random, and the effective dimension it comes from, by site."""
        known = [c is not None for c in cosine]
        sizes = [one.dimension(n) if ok else None for one, n, ok in zip(self._couplings, valid, known)]
        # Samples without credit count as 0 in the mean, whatever way the credit is turned: its band is as much smaller.
        sizes = [None if k is None else k * (all_ / n) ** 2 for k, n, all_ in zip(sizes, valid, counted)]
        half = [None if k is None else null_half(k) for k in sizes]
        if None in half:
            why = reasons.get("cosine", "credit and reference never move together")
            reasons.update(dict.fromkeys(("null_low", "null_high", "null_dimension"), why))
        return {"null_low": [None if x is None else -x for x in half], "null_high": half, "null_dimension": sizes}

    def _intervals(self, cosine: Numbers, reasons: dict[str, str], repeated: float) -> dict[str, Numbers]:
        """95 % t interval of each cosine, from its means over groups of 128 consecutive samples."""
        n = self._n_means
        why = f"needs at least 2 groups of {PUBLISHED_BATCH} samples, got {self._samples} samples" if n < 2 else ""
        if repeated > _REPEATED:
            why = f"needs different samples, but {repeated:.0%} of them occur more than once"
        if why:
            reasons.update(cosine_low=why, cosine_high=why)
            return {"cosine_low": [], "cosine_high": []}
        spread = (self._sum["square"] - self._sum["mean"] ** 2 / n).clamp(min=0) / (n - 1)
        half = [some(student(n - 1) * sqrt(v / n)) for v in spread.tolist()]
        if None in half:
            why = reasons.get("cosine", "the reference is zero for a whole group of samples")
            reasons.update(cosine_low=why, cosine_high=why)
        both = list(zip(cosine, half))
        return {
            "cosine_low": [None if c is None or x is None else c - x for c, x in both],
            "cosine_high": [None if c is None or x is None else c + x for c, x in both],
        }


# -- small helpers ----------------------------------------------------------------------------------------


def some(x: float) -> float | None:
    """A finite number, else None."""
    return x if isfinite(x) else None


def _where_alike(usable: Bool[Tensor, "sites batch"], alike: Sequence[bool]) -> Bool[Tensor, "sites batch"]:
    """What is usable at the sites whose neighbour has their shape."""
    return torch.stack([row & same for row, same in zip(usable, alike)])


def by_largest(x: Tensor) -> tuple[Float[Tensor, "batch width"], Float[Tensor, " batch"]]:
    """(B, n) float64 rows over their largest entry and (B,) that entry, so that no square overflows or underflows.

    Squares of narrower types fit float64: those rows come as they are, over 1.

    >>> by_largest(torch.tensor([[3e200, -4e200]], dtype=torch.float64))[0]
    tensor([[ 0.7500, -1.0000]], dtype=torch.float64)
    """
    rows = x.flatten(1).double()
    if x.dtype != torch.float64:
        return rows, rows.new_ones(len(rows))
    top = rows.abs().amax(1)
    top = torch.where(top == 0, 1.0, top)
    return rows / top[:, None], top


def neighbouring_cosines(credits: Sequence[Tensor], grads: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Per site and sample cos(a_l, g_l), cos(a_l, g_{l+1}), cos(a_l, g_{l-1}), cos(g_l, g_{l+1}), ‖a_l‖, ‖g_l‖.

    Six (sites, B) tensors; NaN where there is no such neighbour, or one of another shape. Two sites at a time are held
    in float64.
    """
    own, above, below, beside, norms_a, norms_g = [], [], [], [], [], []
    last: tuple[Tensor, Tensor] | None = None
    for a, g in zip(credits, grads):
        (rows_a, top_a), (rows_g, top_g) = by_largest(a), by_largest(g)
        na, ng = torch.linalg.vector_norm(rows_a, dim=1), torch.linalg.vector_norm(rows_g, dim=1)
        unit_a, unit_g = rows_a / na[:, None], rows_g / ng[:, None]
        own.append((rows_a * rows_g).sum(1) / (na * ng))
        nowhere = torch.full_like(na, torch.nan)
        alike = last is not None and last[0].shape == unit_a.shape
        if last is not None:
            above.append((last[0] * unit_g).sum(1) if alike else nowhere)
            beside.append((last[1] * unit_g).sum(1) if alike else nowhere)
        below.append((unit_a * last[1]).sum(1) if last is not None and alike else nowhere)
        last = unit_a, unit_g
        norms_a.append(na * top_a)
        norms_g.append(ng * top_g)
    for upward in (above, beside):
        upward.append(torch.full_like(norms_a[-1], torch.nan))
    return tuple(map(torch.stack, (own, above, below, beside, norms_a, norms_g)))


def _cosine_and_norms(a: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Per sample cos(a, g), ‖a‖ and ‖g‖, over everything but the batch: three (B,) float64 tensors."""
    (a, top_a), (g, top_g) = by_largest(a), by_largest(g)
    na, ng = torch.linalg.vector_norm(a, dim=1), torch.linalg.vector_norm(g, dim=1)
    return (a * g).sum(1) / (na * ng), na * top_a, ng * top_g


def to_float64_device(trace: Trace) -> Trace:
    """MPS has no float64: statistics of its tensors are taken on the CPU, and the conditions say so."""
    if has_float64(trace.losses.device):
        return trace
    states, grads = tuple(t.cpu() for t in trace.states), tuple(t.cpu() for t in trace.grads)
    credits = None if trace.credits is None else tuple(t.cpu() for t in trace.credits)
    return replace(trace, states=states, grads=grads, credits=credits, losses=trace.losses.cpu())
