"""Fresh feedback: the cosines of a rule whose random matrices are drawn anew, the null of feedback alignment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from walkback.measures.accumulate import Meter
from walkback.measures.formulas import Numbers
from walkback.measures.measurements import Found, of_cosines
from walkback.measures.nulls import student
from walkback.registry import whole_numbers
from walkback.tracing.trace import Trace


@dataclass(frozen=True)
class FreshFeedback:
    """The null of a rule with feedback matrices: the cosines of the same network and batches with B drawn anew.

    The credit must be a rule with `redraw(generator)`, such as a bundle's; its own B is put back afterwards.

    Args:
        draws: how many times.
        samples: at least this many samples are used (whole batches).
        seed: of the draws.

    >>> import walkback as wb
    >>> net, dfa, batches = wb.selftest.healthy(), wb.rules.DFA(), wb.selftest.batches(2)
    >>> wb.rules.set_up(dfa, net, batches[0][0], 10, torch.Generator().manual_seed(0))
    >>> report = wb.diagnose(net, batches, credit=dfa, probes=[FreshFeedback(draws=5)])
    >>> len(report.controls["fresh_mean"])
    5
    """

    draws: int = 20
    samples: int = 1024
    seed: int = 0

    def __post_init__(self) -> None:
        whole_numbers(2, draws=self.draws)  # their spread is the answer
        whole_numbers(samples=self.samples)
        whole_numbers(0, seed=self.seed)


class Redraws:
    """The same traces with the feedback of their credit drawn anew, one Meter per draw. The rule is left as found."""

    def __init__(self, probe: FreshFeedback, credit: Any) -> None:
        self.probe, self.credit, self.samples = probe, credit, 0
        self.meters = [Meter() for _ in range(probe.draws)]
        # On the CPU whatever the device, so that a seed gives the same matrices everywhere, and for every batch.
        self.generator, self.starts = torch.Generator().manual_seed(probe.seed), []
        self.why = "no credit was given" if credit is None else ""
        if credit is not None and not all(hasattr(credit, n) for n in ("redraw", "state_dict", "load_state_dict")):
            self.why = "the credit has no feedback matrices to draw anew"

    def update(self, trace: Trace) -> None:
        if self.why or self.samples >= self.probe.samples:
            return
        own = {name: value.clone() for name, value in self.credit.state_dict().items()}
        try:
            for draw, meter in enumerate(self.meters):
                if self.samples:
                    self.generator.set_state(self.starts[draw])
                else:
                    self.starts.append(self.generator.get_state())
                with torch.no_grad():
                    if not self.credit.redraw(self.generator):
                        self.why = "the credit has no feedback matrices to draw anew"
                        return
                meter.update(replace(trace, credits=tuple(a.detach() for a in self.credit(trace))))
        finally:
            self.credit.load_state_dict(own)
        self.samples += len(trace.losses)

    def compute(self, found: Found) -> None:
        options: dict[str, Any] = {**vars(self.probe), "samples": self.samples}
        found.conditions["fresh_feedback"] = options
        if self.why:
            options["not measured because"] = self.why
            return
        drawn = [meter.result() for meter in self.meters]
        spreads = [_spread(list(values)) for values in zip(*(m.cosine for m in drawn))]
        half = student(self.probe.draws - 1) * (1 + 1 / self.probe.draws) ** 0.5  # of where one more draw would lie
        for name, side in (("fresh_mean", 0.0), ("fresh_low", -half), ("fresh_high", half)):
            found.values["probes"][name] = [s and s[0] + side * s[1] for s in spreads]
        for name in ("gamma", "deep_cosine"):
            spread = _spread([of_cosines(m.cosine, found.conditions)[name] for m in drawn])
            options[name] = None if spread is None else {"mean": spread[0], "std": spread[1]}


def _spread(values: Numbers) -> tuple[float, float] | None:
    """Return mean and standard deviation, None when one is missing."""
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return None
    of = torch.tensor(known, dtype=torch.float64)
    return float(of.mean()), float(of.std())
