"""Formulas added up over batches: Traces -> Measurements. Everything here is float64.

An accumulator takes one View after another (`update`) and says what it found (`compute`). Every sample counts once,
whatever batch it came in, and memory does not grow with the number of batches (but for seven bytes per sample, by
which repeated samples are recognised).
"""

from __future__ import annotations

from dataclasses import replace

import torch

from walkback.measures.alignment import Cosine, Gamma, Interval, Neighbour, Null, SameAsReference
from walkback.measures.formulas import Pairs, View, averaged, deep_sites, mean
from walkback.measures.measurements import Found, Measurements
from walkback.measures.over_sites import DEEP_OVER, GAMMA_OVER
from walkback.measures.quantities import NEED_CREDIT, PER_SITE, SHIFTED
from walkback.measures.stream import Norms, Samples, Stability
from walkback.measures.sums import AT_ONCE, Accumulator, Mean, Means
from walkback.measures.vectors import WHOLE
from walkback.network.values import has_float64, no_autocast
from walkback.registry import one_of
from walkback.tracing.trace import Trace


class Meter:
    """Takes traces and gives Measurements: the accumulators of everything that needs no further pass.

    >>> import walkback as wb
    >>> meter = Meter()
    >>> with wb.Tracer(wb.selftest.healthy()) as tracer:
    ...     for x, y in wb.selftest.batches(2):
    ...         meter.update(tracer.trace(x, y))
    >>> len(meter.result().h_norm), meter.samples
    (5, 256)
    """

    def __init__(self, gamma_over: str = GAMMA_OVER[0], deep_over: str = DEEP_OVER[0]) -> None:
        one_of(GAMMA_OVER, gamma_over=gamma_over)
        one_of(DEEP_OVER, deep_over=deep_over)
        seen, means = Samples(), [q for q in PER_SITE if q.accumulator == "mean" and q.name != "cosine"]
        cosine = Cosine(seen)
        self._seen, self._credited = seen, False
        sums = Means([cosine, *((Neighbour if q.name in SHIFTED else Mean)(q.name) for q in means)])
        null, interval = Null(cosine, seen), Interval(seen)
        gamma, same = Gamma(cosine, gamma_over, deep_over), SameAsReference()
        self._of_vectors, self._of_pairs = (null, gamma, same), (sums, interval, gamma)
        self._of_credit: list[Accumulator] = [sums, null, interval, gamma, same]
        self._of_stream = [Norms(), Stability(seen)]
        self._waiting: list[Pairs] = []  # of batches whose numbers are not added up yet

    @property
    def samples(self) -> int:
        """How many there were so far."""
        return self._seen.samples

    @torch.no_grad()
    def update(self, trace: Trace) -> None:
        """Take one batch, or a part of one: parts have the index of their batch."""
        self._credited = trace.credits is not None
        with no_autocast(trace.losses.device):
            view = View(to_float64_device(trace))
            for taker in (self._seen, *(self._of_vectors if self._credited else ()), *self._of_stream):
                taker.update(view)
            if self._credited:
                self._waiting.append(view.pairs)
                if sum(pairs.own.numel() for pairs in self._waiting) >= 2 * AT_ONCE:
                    self._add_waiting()

    def _add_waiting(self) -> None:
        """Add up the numbers of several batches at once: it takes hardly longer than those of one."""
        if self._waiting:
            pairs = Pairs.joined(self._waiting)
            self._waiting.clear()
            for accumulator in self._of_pairs:
                accumulator.add(pairs)

    @torch.no_grad()
    def compute(self, found: Found) -> None:
        """Give every quantity that needs no further pass."""
        self._add_waiting()
        for accumulator in (self._seen, *(self._of_credit if self._credited else ()), *self._of_stream):
            accumulator.compute(found)
        if not self._credited:
            found.reasons |= dict.fromkeys((*NEED_CREDIT, "aggregates"), "no credit was given")

    def result(self) -> Measurements:
        """Return the Measurements of everything taken so far."""
        found = Found()
        self.compute(found)
        return found.measurements()


class MeanCosine:
    """Takes traces and gives Γ and the deep cosine alone: the numbers of a Meter, without its other sums."""

    def __init__(self) -> None:
        self._cosine, self._layers = Mean("cosine"), False
        self._means = Means([self._cosine])

    @torch.no_grad()
    def update(self, trace: Trace) -> None:
        """Take one batch with its credits."""
        self._layers = trace.pool == WHOLE
        with no_autocast(trace.losses.device):
            self._means.add(View(to_float64_device(trace)).pairs)

    def result(self) -> dict[str, float | None]:
        """Return Γ and the deep cosine of everything taken so far."""
        found = Found()
        self._cosine.compute(found)
        cosine = found.values["cosine"]
        deep = [cosine[site] for site in deep_sites(cosine)]
        return {"gamma": mean(averaged(cosine, self._layers)), "deep_cosine": mean(deep)}


def to_float64_device(trace: Trace) -> Trace:
    """Return the trace where float64 is: MPS has none, so its statistics are taken on the CPU, as conditions say."""
    if has_float64(trace.losses.device):
        return trace
    states, grads = tuple(t.cpu() for t in trace.states), tuple(t.cpu() for t in trace.grads)
    credits = None if trace.credits is None else tuple(t.cpu() for t in trace.credits)
    return replace(trace, states=states, grads=grads, credits=credits, losses=trace.losses.cpu())
