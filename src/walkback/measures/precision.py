"""How much of a cosine is rounding: the reference once more in float64, on the same batches.

The published D2 asks how small ‖g_L‖ is. That moves with the loss's unit, the batch size, the width of the stream. What
it stands for does not: is the reference still the gradient, or what rounding left of it? So the same batch is run
again with weights and inputs in float64, and per site it is added up

- `float64_disagreement`: mean over samples of 1 − cos(g, g in float64). A credit that *is* the gradient would be
  reported that much under its true cosine of 1. A sample whose reference has a direction in one of the two only counts
  as 1; in neither, it is left out.
- `float64_shift`: the mean cosine with the credit, with the float64 reference minus as reported.
- `epsilon_share`: the share of a cosine that the ε of `F.cosine_similarity` takes away, at the published scale ÷ 128:
  mean of 1 − (‖g‖/max(‖g‖, ε))·(‖a‖/max(‖a‖, ε)). This one belongs to the tool and moves with the loss's unit.
- `absorption`: the share of f_l that h + f_l loses to rounding, ‖(h ⊕ f) − h − f‖/‖f‖, in float64 arithmetic.
- `cosine_error_low`, `cosine_error_high`: the 95 % interval over samples of the largest disagreement or |shift|, by
  Student's t: the largest lower end and the largest upper end of any of them, as growth's. A disagreement is a mean of
  errors ≥ 0, few of which may be large, so its interval is on a log scale. A shift may be of either sign, so its own is
  plain, and that of |shift| ends at 0. A mean of 1 − cos is 2 at most.

The credit of the first batch is computed again as well, where a rule or function can be asked in float64: a credit that
is a small difference of large states, as EP's can be, is rounding long before the gradient is. A note names the sites,
and `conditions["intrinsic"]` says whether it was asked. Everything above is about the gradient alone.

A network that is float64 already, or can't run in it, is compared with itself after one rounding error in every weight
and input (each multiplied by 1 ± its dtype's epsilon). That shows how rounding is amplified, but not a cancellation
that comes out the same both times: it is a lower bound, and `conditions["intrinsic"]` says which method it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from walkback.errors import InputError, shown
from walkback.measures.accumulate import to_float64_device
from walkback.measures.credit_rounding import CreditRounding
from walkback.measures.formulas import PUBLISHED_BATCH, unclamped
from walkback.measures.measurements import Found
from walkback.measures.over_sites import student
from walkback.measures.rounding import SQUARABLE, by_largest, cosine_eps, least_norm
from walkback.measures.sums import Directions, some
from walkback.measures.vectors import WHOLE, readers, site_vectors
from walkback.network.batch import mapped
from walkback.network.values import has_float64, no_autocast, places
from walkback.notes import Note
from walkback.tracing.session import Tracer
from walkback.tracing.trace import Credit, Trace

NO_ABSORPTION = {
    False: "blocks return the new state, and float64 is out of reach",
    True: "the layers of a plain network add to no stream",
}
# What is added up with its squares, by what it is a mean of.
SUMMED = {"float64_disagreement": "off", "float64_shift": "shift"}
FLOAT64, PERTURBED = "float64", "perturbed rounding"


@dataclass(frozen=True)
class Intrinsic:
    """Ask for the reference in float64 beside the one measured: one more pass per batch.

    The credit of the first batch is asked for twice more, once in float64, to see whether it is rounding.

    Args:
        seed: of the rounding errors, where float64 is out of reach.

    >>> import walkback as wb
    >>> report = wb.diagnose(wb.selftest.healthy(), wb.selftest.batches(2), probes=[Intrinsic()])
    >>> max(report.per_layer["float64_disagreement"]) < 1e-9
    True
    """

    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise InputError(f"Expected seed to be a whole number, but got {shown(self.seed)}.")


class IntrinsicMeter:
    """Adds up, batch by batch, how far the measured reference is from the one in float64.

    >>> import walkback as wb
    >>> with wb.Tracer(wb.selftest.exploded()) as tracer:  # ‖g_L‖ = 1e-11: far under the published floor
    ...     meter = IntrinsicMeter(tracer)
    ...     for x, y in wb.selftest.batches(2):
    ...         meter.update(tracer.trace(x, y))
    >>> meter.compute(found := Found())
    >>> max(found.values["float64_disagreement"]) < 1e-9
    True
    """

    def __init__(
        self,
        tracer: Tracer,
        probe: Intrinsic | None = None,
        credit: Credit | None = None,
        paired: Callable[[Trace], Trace] = lambda trace: trace,
    ) -> None:
        self.tracer, self.seed = tracer, (probe or Intrinsic()).seed
        self._rounding = None if credit is None else CreditRounding(tracer, credit, paired)
        tracer.learn(branches=True)
        self.method = self.why = ""  # chosen on the first batch; why float64 was not, or nothing could be
        self.samples = 0
        self._sum: dict[str, Any] = defaultdict(float)  # name -> by site the total, the count and the sum of squares
        self._weights: dict[int, tuple[Tensor, Tensor]] = {}  # by id: a parameter, and what stands for it
        self._given_up = False
        self._absorption = ""
        self._seen: set[int] = set()
        self._directions = Directions()

    def update(self, trace: Trace) -> None:
        """Take one batch into account: what the tracer just gave."""
        with no_autocast(trace.losses.device), no_autocast(torch.device("cpu")):
            exact = None if self._given_up else self._exact(trace)
            if self._rounding is not None and exact is not None and self.method == FLOAT64:
                self._rounding.see(trace, exact)
            trace = to_float64_device(trace)
            with torch.no_grad():
                if exact is None:
                    self._add_epsilon(trace, *(_norms(side) for side in (trace.grads, trace.credits or ())))
                else:
                    self._add_epsilon(trace, *self._add_precision(trace, to_float64_device(exact)))
                    self._add_absorption(trace, exact)
                self._add_direction(trace)
        self.samples += len(trace.losses)

    # -- the second pass -----------------------------------------------------------------------------

    def _exact(self, trace: Trace) -> Trace | None:
        if self.method:
            return self._again(trace)
        methods = (FLOAT64, PERTURBED)
        if trace.grads[-1].dtype == torch.float64:
            self.why, methods = "the network is float64 already", (PERTURBED,)
        for self.method in methods:
            try:
                again = self._again(trace)
                low = {t.dtype for t in (*again.states, *again.grads, again.logits)} - {torch.float64}
                if self.method == FLOAT64 and low:
                    raise TypeError(f"the network computes in {low.pop()} whatever its weights are")
                return again
            # Whatever a network raises in another dtype, on another device or for want of memory: it is said.
            except Exception as error:
                self._weights = {}
                self.why += f"{'; ' if self.why else ''}{self.method}: {str(error).strip().splitlines()[0]}"
        self.method, self._given_up = "", True
        return None

    def _again(self, trace: Trace) -> Trace:
        x, y = trace.inputs, trace.labels
        if self.method == FLOAT64:
            x, y = mapped(x, _float64), y if has_float64(y.device) else y.cpu()
            y = _float64(y) if y.is_floating_point() else y
        else:
            x = mapped(x, lambda t: _nudged(t, self.seed))
        return self.tracer.again(x, y, self._other_weights())

    def _other_weights(self) -> dict[str, Tensor]:
        change = _float64 if self.method == FLOAT64 else lambda t: _nudged(t, self.seed)
        named = list(places(self.tracer.model))
        # A network may make a parameter anew in every pass; those of the last are kept, so that an id is their own.
        parameters = {id(p): p for _, p in named if isinstance(p, nn.Parameter)}
        self._weights = {key: self._weights.get(key) or (p, change(p.detach())) for key, p in parameters.items()}
        # Buffers anew for every batch: a network may write them.
        buffers = {id(b): change(b.detach()).clone() for _, b in named if not isinstance(b, nn.Parameter)}
        changed = {key: other for key, (_, other) in self._weights.items()} | buffers
        return {name: changed[id(t)] for name, t in named}

    # -- what is added up ----------------------------------------------------------------------------

    def _add_precision(self, trace: Trace, exact: Trace) -> tuple[Tensor, Tensor]:
        """Add up disagreement and shift; return (sites, B) norms of the reference and of the credit."""
        made: list[list[Tensor]] = []  # by site: what is wrong, cosines as reported and exact, norms of g, e and a
        nothing = torch.zeros(len(trace.losses), dtype=torch.float64, device=trace.losses.device)
        for site, (low, high) in enumerate(zip(trace.grads, exact.grads)):
            (g, top_g), (e, top_e) = by_largest(low), by_largest(high)
            size_g, size_e = (torch.linalg.vector_norm(rows, dim=1) for rows in (g, e))
            reported = shown = size_a = nothing
            if trace.credits is not None:
                a, top_a = by_largest(trace.credits[site])
                size_a = torch.linalg.vector_norm(a, dim=1)
                products = a * g
                reported = products.sum(1) / (size_a * size_g)
                shown = torch.mul(a, e, out=products).sum(1) / (size_a * size_e)
                size_a = size_a * top_a
            # ½‖u − v‖² is 1 − cos without its cancellation: 1e-13 can be told from 0. Here u and v are ‖e‖ long.
            apart = torch.linalg.vector_norm((g * (size_e / size_g)[:, None]).sub_(e), dim=1) / size_e
            made.append([0.5 * apart.square(), reported, shown, size_g * top_g, size_e * top_e, size_a])
        off, reported, shown, size_g, size_e, size_a = map(torch.stack, zip(*made))
        least = torch.tensor([[least_norm(g.dtype)] for g in trace.grads], dtype=torch.float64).to(size_g.device)
        has_g, has_e, has_a = ~(size_g < least), ~(size_e < SQUARABLE), ~(size_a < SQUARABLE)
        either = has_g | has_e
        off = torch.where(has_g & has_e, off, 1.0)
        self._add("off", torch.where(either, off, 0.0), either)
        if trace.credits is not None:
            shift = torch.zeros_like(off)
            for name, v, has, sign in (("reported", reported, has_g & has_a, -1), ("exact", shown, has_e & has_a, 1)):
                cosines = torch.where(has, v, 0.0)
                self._add(name, cosines, has)
                shift += sign * cosines
            self._add("shift", shift, either & has_a)
        return size_g, size_a

    def _add(self, name: str, values: Float[Tensor, "sites batch"], counted: Tensor) -> None:
        """Add up, by site, values, how many samples count, and squares."""
        self._sum[name] += torch.stack([values.sum(1), counted.sum(1), values.square().sum(1)], 1)

    def _add_absorption(self, trace: Trace, exact: Trace) -> None:
        if trace.pool == WHOLE:
            return  # layers add to no stream
        branches: Any = trace.branches
        self._absorption = "f as the blocks returned it"
        if branches is None and self.method != FLOAT64:
            self._absorption = ""
            return
        if branches is None:
            self._absorption = "f from the blocks run in float64 on the measured states: their own rounding counts too"
            states = [_float64(h) for h in trace.states]
            branches = self.tracer.branches_at(exact.inputs, states, self._other_weights())
        nothing = trace.losses.new_zeros(len(trace.losses), dtype=torch.float64)
        lost, some_f = [nothing], [nothing.bool()]  # site 0 is written by the stem, which adds to nothing
        for h, new, f in zip(trace.states, trace.states[1:], branches):
            if f is None or h.shape != new.shape:
                lost.append(nothing)
                some_f.append(some_f[0])
                continue
            size = torch.linalg.vector_norm(f.to(h.device).flatten(1), dim=1, dtype=torch.float64)
            off = (new.double() - h).sub_(f.to(h.device)).flatten(1)
            # Written so that NaN stays in.
            some_f.append(~(size == 0))
            lost.append(torch.where(some_f[-1], torch.linalg.vector_norm(off, dim=1) / size, 0.0))
        self._add("absorbed", torch.stack(lost), torch.stack(some_f))

    def _add_epsilon(self, trace: Trace, size_g: Tensor, size_a: Tensor) -> None:
        eps = torch.tensor([cosine_eps(g.dtype) for g in trace.grads], dtype=torch.float64)[:, None].to(size_g.device)
        left = unclamped(size_g, eps)
        if trace.credits is not None:
            left = left * unclamped(size_a, eps)
        self._add("epsilon", 1 - left, torch.ones_like(left))

    def _add_direction(self, trace: Trace) -> None:
        """Add samples to the direction's stability; one seen before is left out, so repeating data changes nothing."""
        assert trace.prints is not None
        found = trace.prints.tolist()
        marks = dict(zip(reversed(found), reversed(range(len(found)))))  # of each number its first row
        fresh = sorted(row for mark, row in marks.items() if mark not in self._seen)
        self._seen.update(marks)
        if not fresh:
            return
        vectors = site_vectors(trace.grads[-1], trace.pool, readers(trace), trace.mask)
        self._directions.add(vectors if len(fresh) == len(vectors) else vectors[torch.tensor(fresh)])

    # -- the answer ----------------------------------------------------------------------------------

    def compute(self, found: Found) -> None:
        """Give the lists of the precision table and stability_distinct."""
        sites = range(len(self.tracer.blocks) + 1)
        again = None if self._rounding is None else self._rounding.answer(f"the reference was not either ({self.why})")
        found.conditions["intrinsic"] = {
            "method": self.method or None, "samples": self.samples, "absorption": self._absorption or None,
            **({"instead of float64 because": self.why} if self.why else {}),
            **(again.conditions if again else {}),
        }  # fmt: skip
        found.notes += again.notes if again else ()
        out = f"the reference could not be computed again ({self.why})" if self._given_up else ""
        no_credit = "exact" not in self._sum
        for name, values, missing in (
            ("float64_disagreement", [self._mean("off", site) for site in sites],
             out or "credit and reference are zero or not finite"),
            ("float64_shift", [self._shift(site) for site in sites],
             out or ("no credit was given" if no_credit else "a cosine is missing")),
            ("epsilon_share", [self._mean("epsilon", site) for site in sites], "a reference is not finite"),
            ("absorption", [self._mean("absorbed", site) for site in sites],
             out or NO_ABSORPTION[found.conditions.get("pool") == WHOLE]),
        ):  # fmt: skip
            found.values[name] = values
            if all(v is None for v in values):
                found.values[name], found.reasons[name] = [], missing
            elif None in values[name == "absorption" :]:
                found.reasons[name] = "not measured at every site: a value is zero or not finite there"
        self._interval(found)
        of, why = self._directions, ""
        if of.empty:
            why = f"the batch-mean reference is zero or not finite in {of.empty} groups"
        elif of.groups < 2:
            why = f"needs at least 2 groups of {PUBLISHED_BATCH} different samples, got {len(self._seen)}"
        found.values["stability_distinct"] = None if why else of.stability()
        found.reasons |= {"stability_distinct": why} if why else {}
        if self.method == PERTURBED:
            found.notes.append(Note("perturbed-rounding", None, {"why": self.why}))

    def _mean(self, name: str, site: int) -> float | None:
        if name not in self._sum:
            return None
        total, n, _ = self._sum[name][site].tolist()
        return some(total / n) if n else None

    def _interval(self, found: Found) -> None:
        """Give the 95 % interval of cosine_error: the largest lower end and the largest upper end of any site."""
        names, of = ("cosine_error_low", "cosine_error_high"), ("float64_disagreement", "float64_shift")
        distinct, samples = (found.conditions.get(name, self.samples) for name in ("distinct_samples", "samples"))
        known = [(name, site, v) for name in of for site, v in enumerate(found.values[name]) if v is not None]
        ends = [
            mean_ends(self._sum[SUMMED[name]][site], abs(value), distinct / samples, plain=name == "float64_shift")
            for name, site, value in known
        ]
        found.values |= dict.fromkeys(names)
        if ends and None not in ends:
            low, high = (max(end) for end in zip(*filter(None, ends)))
            found.values |= {"cosine_error_low": low, "cosine_error_high": high}
        else:
            why = "needs at least 2 samples with a direction at every site"
            found.reasons |= dict.fromkeys(names, why if ends else found.reasons["float64_disagreement"])

    def _shift(self, site: int) -> float | None:
        exact, reported = self._mean("exact", site), self._mean("reported", site)
        if exact is None:
            return None
        # A reference that is nowhere above underflow gives no cosine at all: what is lost is all of it.
        return exact - (reported or 0.0)


# -- small helpers -----------------------------------------------------------------------------------------


def mean_ends(sums: Tensor, value: float, distinct: float = 1.0, plain: bool = False) -> tuple[float, float] | None:
    """Return the 95 % interval of a mean of 1 − cos, or where `plain` of the absolute value of a mean.

    Args:
        sums: over samples, of the values, of the samples that count, and of the squares.
        value: the mean, or its absolute value.
        distinct: the share of different samples: one that occurs twice says nothing new.

    >>> mean_ends(torch.tensor([4.0, 4.0, 4.0]), 1.0)  # four samples that agree
    (1.0, 1.0)
    """
    total, n, squares = sums.tolist()
    if n < 2:
        return None
    once = max(2.0, n * distinct)
    half = student(once - 1) * sqrt(max(0.0, squares - total**2 / n) / (n - 1) / once)
    if plain or not value:
        return max(0.0, value - half), min(2.0, value + half)
    times = exp(min(half / value, 700.0))
    return value / times, min(2.0, value * times)


def _float64(t: Tensor) -> Tensor:
    """Return values in float64, on the CPU where the device has none; whole numbers stay what they are."""
    t = t if has_float64(t.device) else t.cpu()
    return t.double() if t.is_floating_point() else t


def _nudged(t: Tensor, seed: int) -> Tensor:
    """Return each number times 1 ± epsilon of its dtype, up or down by chance."""
    if not t.is_floating_point():
        return t
    signs = torch.randint(2, t.shape, generator=torch.Generator().manual_seed(seed)).mul_(2).sub_(1)
    return t * (1 + torch.finfo(t.dtype).eps * signs.to(t.device, t.dtype))


def _norms(tensors: Sequence[Tensor]) -> Tensor:
    """Return (sites, B) norms, whatever their size; nothing of no tensors."""
    sizes = [torch.linalg.vector_norm(rows, dim=1) * top for rows, top in map(by_largest, tensors)]
    return torch.stack(sizes) if sizes else torch.empty(0)
