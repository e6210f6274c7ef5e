"""Numbers from traces, streamed: Traces -> Measurements. Everything here is float64.

The formulas are functions, tensor in, tensor out. `Meter` only adds them up over batches: every sample
counts once, whatever batch it came in, and memory does not grow with the number of batches (but for eight
bytes per sample, by which repeated samples are recognised).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from walkback.trace import Trace, fingerprints, no_autocast

# The published gradient norms are those of a mean loss over 128 samples: per-sample norms ÷ 128.
PUBLISHED_BATCH = 128
# F.cosine_similarity's default denominator floor.
COSINE_EPS = 1e-8

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


def site_vectors(state: Tensor, pool: int | str | None, reader: Tensor | None = None) -> Float[Tensor, "batch width"]:
    """One vector per sample: (B, d) as it is, (B, T, d) at the readout token or token-averaged, else flattened.

    Args:
        state: (B, ...).
        pool: token index, "mean", or "readout" with `reader`.
        reader: (B,) the token each sample reads.
    """
    if state.ndim == 3:
        if pool == "readout" and reader is not None and state.shape[1] > int(reader.max()):
            return state[torch.arange(len(state), device=state.device), reader]
        if isinstance(pool, int) and -state.shape[1] <= pool < state.shape[1]:
            return state[:, pool]
        return state.mean(1)
    return state.flatten(1)


def site_norms(state: Tensor, pool: int | str | None, reader: Tensor | None = None) -> Float[Tensor, "batch"]:
    """Per-sample L2 norm of `site_vectors`; where the readout pools tokens, the mean of per-token norms.

    >>> site_norms(torch.tensor([[3.0, 4.0]]), None)
    tensor([5.], dtype=torch.float64)
    """
    if state.ndim == 3 and not isinstance(pool, int) and (pool != "readout" or reader is None):
        return torch.linalg.vector_norm(state, dim=-1, dtype=torch.float64).mean(1)
    return torch.linalg.vector_norm(site_vectors(state, pool, reader), dim=-1, dtype=torch.float64)


def growth(norms: Numbers, shapes: list[tuple[int, ...]] | None = None) -> tuple[float | None, float | None, str]:
    """(max over l of ‖h_{l+1}‖/‖h_l‖, ‖h_L‖/‖h_0‖, why one is None). Sites of different shape are not compared.

    >>> growth([1.0, 3.0, 6.0])
    (3.0, 6.0, '')
    """
    if len(norms) < 2 or any(n is None for n in norms):
        return None, None, "a state norm is missing" if norms else "no state norms"
    known = [float(n) for n in norms if n is not None]
    same = [shapes is None or shapes[i] == shapes[i + 1] for i in range(len(known) - 1)]
    if any(n == 0.0 for n in known[:-1]):
        return None, None, f"‖h_{known.index(0.0)}‖ is zero, so growth from it has no value"
    ratios = [b / a for a, b, ok in zip(known, known[1:], same) if ok]
    total = known[-1] / known[0] if all(same) else None
    if not ratios:
        return None, total, "no two neighbouring sites have the same shape"
    return max(ratios), total, "" if all(same) else "the stream changes shape; growth is taken within stages"


def pairwise_cosine(total: Float[Tensor, "width"], n: int) -> float:
    """Mean cosine over all pairs of n unit vectors, from their sum: (‖Σu‖² − n) / (n(n−1)).

    >>> pairwise_cosine(torch.tensor([1.0, 1.0]), 2)
    0.0
    """
    return (float(total @ total) - n) / (n * (n - 1))


def concentration(cosines: Numbers) -> float | None:
    """The share of Σ|cos_l| that its largest site carries; 1/n when all n sites agree.

    >>> concentration([0.3, -0.1, 0.0])
    0.75
    """
    known = [abs(c) for c in cosines if c is not None]
    if not known or len(known) < len(cosines) or sum(known) == 0.0:
        return None
    return max(known) / sum(known)


def mean(values: Numbers) -> float | None:
    """The mean, or None when anything is missing (a mean over what is left would be another quantity)."""
    return None if not values or any(v is None for v in values) else sum(v for v in values if v is not None) / len(values)


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
    """

    h_norm: Numbers = field(default_factory=list)
    g_norm: Numbers = field(default_factory=list)
    cosine: Numbers = field(default_factory=list)
    cosine_clamped: Numbers = field(default_factory=list)
    below_eps: Numbers = field(default_factory=list)
    growth: float | None = None
    growth_total: float | None = None
    stability: float | None = None
    gamma: float | None = None
    gamma_concentration: float | None = None
    deep_cosine: float | None = None
    aggregates: dict[str, float | None] = field(default_factory=dict)
    probes: dict[str, Numbers] = field(default_factory=dict)
    nonfinite: tuple[str, ...] = ()
    nonfinite_kinds: frozenset[str] = frozenset()
    dtype: torch.dtype = torch.float32
    conditions: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


# -- adding up --------------------------------------------------------------------------------------------


class _Groups:
    """Sums of consecutive rows in groups of 128, so that batch-level numbers don't depend on the batch size."""

    def __init__(self, size: int = PUBLISHED_BATCH) -> None:
        self.size, self.filled = size, 0
        self.sum: Tensor | None = None

    def add(self, rows: Tensor) -> Iterator[Tensor]:
        """Take (B, width) rows; yield the (width,) sum of every group they complete."""
        start = 0
        while start < len(rows):
            part = rows[start : start + self.size - self.filled]
            part_sum = part.sum(0, dtype=torch.float64)
            self.sum = part_sum if self.sum is None else self.sum + part_sum
            self.filled += len(part)
            start += len(part)
            if self.filled == self.size:
                yield self.sum
                self.sum, self.filled = None, 0


class Meter:
    """Adds traces up and gives Measurements.

    >>> import walkback as wb
    >>> meter = Meter()
    >>> with wb.Tracer(wb.selftest.healthy()) as tracer:
    ...     for x, y in wb.selftest.batches(2):
    ...         meter.add(tracer.trace(x, y))
    >>> [round(h, 1) for h in meter.result().h_norm][:1] == [round(meter.result().h_norm[0], 1)]
    True
    """

    def __init__(self) -> None:
        self.samples = self.batches = 0
        self.sizes: set[int] = set()
        self.shapes: list[tuple[int, ...]] = []
        self._h: Tensor | float = 0.0
        self._g: Tensor | float = 0.0
        self._bad: dict[tuple[str, int], int] = {}
        self._groups = _Groups()
        self._directions: Tensor | float = 0.0
        self._n_directions = self._n_empty = 0
        self._prints: list[Tensor] = []
        self._batch_prints: list[int] = []
        self._credit = _CreditMeter()

    @torch.no_grad()
    def add(self, trace: Trace) -> None:
        """Take one batch into account."""
        with no_autocast(trace.losses.device):
            self._add(_to_float64_device(trace))

    def _add(self, trace: Trace) -> None:
        if not self.batches:
            self.shapes = [tuple(h.shape[1:]) for h in trace.states]
            self.dtype, self.state_dtype = trace.grads[-1].dtype, trace.states[-1].dtype
            self.pool, self.device = trace.pool, str(trace.inputs.device)
            self.where = str(trace.losses.device)
        reader = None
        if trace.pool == "readout":
            reader = torch.linalg.vector_norm(trace.grads[-1], dim=-1, dtype=torch.float64).argmax(1)
        h = torch.stack([site_norms(s, trace.pool, reader) for s in trace.states])
        g = torch.stack([site_norms(s, trace.pool, reader) for s in trace.grads])
        self._h = self._h + h.sum(1)
        self._g = self._g + g.sum(1)
        if not bool(torch.isfinite(h.sum() + g.sum())):
            self._note_nonfinite("state", h)
            self._note_nonfinite("gradient", g)
        for group in self._groups.add(site_vectors(trace.grads[-1], trace.pool, reader)):
            norm = group.norm()
            if bool(torch.isfinite(norm)) and float(norm) > 0.0:
                self._directions = self._directions + group / norm
                self._n_directions += 1
            else:
                self._n_empty += 1
        prints = fingerprints(trace.inputs)
        self._prints.append(prints)
        self._batch_prints.append(int(prints.sum()))
        if trace.credits is not None:
            self._credit.add(trace, g if trace.grads[0].ndim == 2 else None)
        self.samples += len(trace.losses)
        self.batches += 1
        self.sizes.add(len(trace.losses))

    def _note_nonfinite(self, kind: str, norms: Tensor) -> None:
        for site in (~torch.isfinite(norms)).any(1).nonzero().flatten().tolist():
            self._bad.setdefault((kind, site), self.batches)

    def result(self) -> Measurements:
        """The Measurements of everything added so far."""
        reasons: dict[str, str] = {}
        h = _finite(self._h / self.samples)  # type: ignore[operator]
        g = _finite(self._g / self.samples / PUBLISHED_BATCH)  # type: ignore[operator]
        nonfinite = tuple(
            f"{kind} not finite at site {site}, first in batch {batch}"
            for (kind, site), batch in sorted(self._bad.items(), key=lambda item: (item[1], item[0][1], item[0][0]))
        )
        for name, values, kind in (("h_norm", h, "state"), ("g_norm", g, "gradient")):
            if None in values:
                reasons[name] = "; ".join(text for text in nonfinite if text.startswith(kind))
        rho, total, why = growth(h, self.shapes)
        if why:
            reasons.update({k: why for k, v in (("growth", rho), ("growth_total", total)) if v is None})
        stability, why = self._stability()
        if why:
            reasons["stability"] = why
        credit = self._credit.result(len(self.shapes), self.dtype, reasons)
        unique = torch.cat(self._prints).unique().numel()
        return Measurements(
            h_norm=h,
            g_norm=g,
            growth=rho,
            growth_total=total,
            stability=stability,
            nonfinite=nonfinite,
            nonfinite_kinds=frozenset(kind for kind, _ in self._bad),
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
                "distinct_samples": unique,
                "probe_hash": f"{int(torch.cat(self._prints).sum()) & (2**64 - 1):016x}",
                "state_shape": list(self.shapes[-1]),
                "pool": self.pool,
                "g_norm_batch_size": PUBLISHED_BATCH,
                "stability_group": PUBLISHED_BATCH,
                "layer_index": "site 0 is written by the stem, site l by block l",
                "credit_site": "writer",
                "checkpoint": "the model as given",
            },
            **credit,
        )

    def _stability(self) -> tuple[float | None, str]:
        if self.batches < 2:
            return None, f"needs at least 2 disjoint batches, got {self.batches}"
        repeated = len(self._batch_prints) - len(set(self._batch_prints))
        if repeated:
            first = next(
                (self._batch_prints.index(p), i)
                for i, p in enumerate(self._batch_prints)
                if p in self._batch_prints[:i]
            )
            return None, f"needs disjoint batches, but batch {first[1]} repeats batch {first[0]}"
        samples = torch.cat(self._prints)
        share = 1 - samples.unique().numel() / len(samples)
        if share > 0.05:
            return None, f"needs disjoint batches, but {share:.0%} of the samples occur more than once"
        if self._n_empty:
            return None, f"the batch-mean reference at the last site is zero or not finite in {self._n_empty} groups"
        if self._n_directions < 2:
            return None, (
                f"needs at least 2 groups of {PUBLISHED_BATCH} samples (the ceiling belongs to that size), got "
                f"{self.samples} samples"
            )
        return pairwise_cosine(self._directions, self._n_directions), ""  # type: ignore[arg-type]


class _CreditMeter:
    """Cosines of credit and reference, per site and in every order of averaging."""

    def __init__(self) -> None:
        self.batches = 0

    def _start(self, sites: int) -> None:
        self._cos: Tensor | float = 0.0
        self._clamped: Tensor | float = 0.0
        self._below: Tensor | float = 0.0
        self._valid: Tensor | float = 0.0
        self._zero: Tensor | float = 0.0
        self._zero_credit: Tensor | float = 0.0
        self._by_sample: Tensor | float = 0.0
        self._n_by_sample: Tensor | float = 0.0
        self._sums: Tensor | float = 0.0
        self._samples = 0
        self._same = True
        self._groups_a = [_Groups() for _ in range(sites)]
        self._groups_g = [_Groups() for _ in range(sites)]
        self._by_batch: Tensor | float = 0.0
        self._n_by_batch = 0
        self._no_by_batch = False

    def add(self, trace: Trace, g_norms: Tensor | None) -> None:
        assert trace.credits is not None
        if not self.batches:
            self._start(len(trace.states) - 1)
        self.batches += 1
        dots, a2, rows_a, rows_g = [], [], [], []
        for a, g in zip(trace.credits, trace.grads):
            a, g = a.flatten(1).double(), g.flatten(1).double()
            dots.append(torch.linalg.vecdot(a, g))
            a2.append(torch.linalg.vector_norm(a, dim=1))
            rows_a.append(a)
            rows_g.append(g)
        dot, na = torch.stack(dots), torch.stack(a2)
        ng = torch.stack([torch.linalg.vector_norm(g, dim=1) for g in rows_g]) if g_norms is None else g_norms
        eps = cosine_eps(trace.grads[-1].dtype)
        # A reference whose norm is under the smallest normal number has lost its direction to rounding.
        usable = ng >= torch.finfo(trace.grads[-1].dtype).smallest_normal
        valid = usable & (na > 0)
        cos = torch.where(valid, dot / (na * ng), 0.0)
        scale = 1.0 / PUBLISHED_BATCH
        clamped = dot * scale**2 / ((na * scale).clamp(min=eps) * (ng * scale).clamp(min=eps))
        self._cos = self._cos + cos.sum(1)
        self._valid = self._valid + valid.sum(1)
        self._zero = self._zero + (~usable).sum(1)
        self._zero_credit = self._zero_credit + (na == 0).sum(1)
        self._clamped = self._clamped + clamped.sum(1)
        self._below = self._below + (ng * scale < eps).sum(1)
        self._samples += dot.shape[1]
        self._same = self._same and all(torch.equal(a, g) for a, g in zip(trace.credits, trace.grads))
        # The other orders, over the sites of Γ: 0…L−1.
        d, aa, gg = dot[:-1].sum(0), (na[:-1] ** 2).sum(0), (ng[:-1] ** 2).sum(0)
        whole = (aa > 0) & (gg > 0)
        self._by_sample = self._by_sample + torch.where(whole, d / (aa * gg).sqrt(), 0.0).sum()
        self._n_by_sample = self._n_by_sample + whole.sum()
        self._sums = self._sums + torch.stack([d.sum(), aa.sum(), gg.sum()])
        means = []
        for groups_a, groups_g, a, g in zip(self._groups_a, self._groups_g, rows_a[:-1], rows_g[:-1]):
            means.append([
                (sa @ sg) / (sa.norm() * sg.norm()) for sa, sg in zip(groups_a.add(a), groups_g.add(g))
            ])
        for k in range(len(means[0])):
            self._by_batch = self._by_batch + torch.stack([site[k] for site in means]).mean()
            self._n_by_batch += 1

    def result(self, sites: int, dtype: torch.dtype, reasons: dict[str, str]) -> dict[str, Any]:
        """Fields of Measurements; what can't be given is None, with its reason added to `reasons`."""
        if not self.batches:
            why = "no credit was given"
            for name in ("cosine", "cosine_clamped", "below_eps", "gamma", "gamma_concentration", "deep_cosine"):
                reasons[name] = why
            reasons["aggregates"] = why
            return {}
        valid, zero = self._valid.tolist(), self._zero.tolist()  # type: ignore[union-attr]
        zero_credit = self._zero_credit.tolist()  # type: ignore[union-attr]
        cosine: Numbers = []
        why, notes = [], []
        for site, (total, n) in enumerate(zip(self._cos.tolist(), valid)):  # type: ignore[union-attr]
            cosine.append(total / n if n and _is_finite(total) else None)
            lost = f"the reference is zero or below {torch.finfo(dtype).smallest_normal:.1e} (underflow in {dtype})"
            if not n:
                why.append(f"site {site}: " + (lost if zero[site] else "the credit is zero") + " for every sample")
            elif not _is_finite(total):
                why.append(f"site {site}: credit or reference is not finite")
            elif n < self._samples:
                part = lost if zero[site] else "the credit is zero"
                notes.append(f"cosine at site {site} leaves out {self._samples - n} of {self._samples} samples: {part}")
        if why:
            reasons["cosine"] = "; ".join(why)
        gamma = mean(cosine[:-1])
        deep = mean([cosine[site] for site in deep_sites(cosine)])
        share = concentration(cosine[:-1])
        if gamma is None:
            reasons["gamma"] = reasons.get("cosine", "a cosine is missing")
        if share is None:
            reasons["gamma_concentration"] = reasons.get("cosine", "every cosine is zero")
        if deep is None:
            only = "the only deep site has the exact gradient by construction"
            reasons["deep_cosine"] = reasons.get("cosine", only)
        sums = self._sums.tolist()  # type: ignore[union-attr]
        n_by_sample = float(self._n_by_sample)
        aggregates: dict[str, float | None] = {
            "layers": gamma,
            "samples": _some(float(self._by_sample) / n_by_sample) if n_by_sample else None,
            "batches": _some(float(self._by_batch) / self._n_by_batch) if self._n_by_batch else None,
            "flattened": _some(sums[0] / (sums[1] * sums[2]) ** 0.5) if sums[1] > 0 and sums[2] > 0 else None,
        }
        if None in aggregates.values():
            missing = [k for k, v in aggregates.items() if v is None]
            reasons["aggregates"] = f"{', '.join(missing)}: " + (
                reasons.get("cosine") or f"fewer than {PUBLISHED_BATCH} samples, or a batch mean that is zero"
            )
        if self._same:
            notes.append(
                "the credit is the BP gradient bit for bit at every site: this is BP itself, or a rule that fell "
                "back to it"
            )
        clamped = [c / self._samples for c in self._clamped.tolist()]  # type: ignore[union-attr]
        below = [c / self._samples for c in self._below.tolist()]  # type: ignore[union-attr]
        return {
            "cosine": cosine,
            "cosine_clamped": [_some(c) for c in clamped],
            "below_eps": below,
            "gamma": gamma,
            "gamma_concentration": share,
            "deep_cosine": deep,
            "aggregates": aggregates,
            "notes": tuple(notes),
        }


# -- small helpers ----------------------------------------------------------------------------------------


def _is_finite(x: float) -> bool:
    return x == x and abs(x) != float("inf")


def _some(x: float) -> float | None:
    return x if _is_finite(x) else None


def _finite(values: Tensor) -> Numbers:
    return [_some(v) for v in values.tolist()]


def _to_float64_device(trace: Trace) -> Trace:
    """MPS has no float64: statistics of its tensors are taken on the CPU, and the conditions say so."""
    if trace.losses.device.type != "mps":
        return trace
    move = lambda tensors: None if tensors is None else tuple(t.cpu() for t in tensors)  # noqa: E731
    return Trace(
        move(trace.states), move(trace.grads), move(trace.credits), trace.losses.cpu(), trace.logits, trace.labels,
        trace.inputs, trace.pool, trace.index,
    )
