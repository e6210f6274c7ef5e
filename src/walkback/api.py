"""The protocol on one page: traces, measurements, checks, verdict, report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import length_hint
from typing import Any

from torch import nn

from walkback.measures.accumulate import Meter
from walkback.measures.measurements import Found, Measurements
from walkback.measures.precision import Intrinsic, IntrinsicMeter
from walkback.measures.probes import Probe, Probing, wanted
from walkback.measures.session import Session, paired_by
from walkback.measures.stepped import Stepped
from walkback.measures.witness import Witness
from walkback.measures.worth import Depth
from walkback.network.anatomy import Anatomy
from walkback.network.batch import at_least_one, pairs
from walkback.network.layers import Sites
from walkback.network.loss import Loss
from walkback.progress import track
from walkback.report.formats.logged import judge as judge
from walkback.report.make import make_report, named
from walkback.report.report import Report
from walkback.tracing.recorded import Recorded
from walkback.tracing.session import Tracer
from walkback.tracing.trace import Credit
from walkback.verdict.checks import DiagnosticThresholds
from walkback.verdict.claim import Accuracy, Claim, Correct
from walkback.verdict.editions import decide


def diagnose(
    model: nn.Module,
    eval_batches: Iterable[Any],
    headline_acc: Accuracy = None,
    frozen_baseline_acc: Accuracy = None,
    credit: Credit | None = None,
    method_name: str = "",
    notes: str = "",
    thresholds: DiagnosticThresholds | None = None,
    edition: str = "three-check",
    anatomy: Anatomy | Mapping[str, Any] | None = None,
    loss: Loss | None = None,
    probes: Sequence[str | Probe] = (),
    bp_acc: Accuracy = None,
    chunk: int | None = None,
    reference: nn.Module | str | None = None,
    correct: Correct | None = None,
    bp_frozen_acc: Accuracy = None,
    pairing: str = "site",
    *,
    claim: Claim | None = None,
    method: str = "",
    depth: Depth | None = None,
    sites: Sites | None = None,
    gamma_over: str = "0..L-1",
    deep_over: str = "1..L",
) -> Report:
    """Measure a trained network and say which claims must be walked back. The model is left as found.

    Args:
        model: a residual network that `Anatomy.of` can read, or a plain one, on the device of the batches.
        eval_batches: (inputs (B, ...), labels) pairs; at least 8 disjoint, shuffled batches of about 128. Labels are
            classes (B,), probabilities (B, C), or tokens (B, T). Inputs may be a dict of the model's keywords, and a
            dict with "labels" in it is a pair too.
        headline_acc, frozen_baseline_acc, bp_acc, bp_frozen_acc, correct: what `claim` holds, by its published names.
        credit: trace -> one tensor per site, shaped like `trace.states`: the rule's credit a_l.
        notes: shown in the report.
        thresholds: other limits than the published ones.
        edition: "three-check", "four-diagnostic", or "intrinsic", which runs every batch once more in float64.
        anatomy: parts to use instead of those `Anatomy.of` finds (an Anatomy, or its keywords as a dict).
        loss: (logits, labels) -> per-sample losses (B,) or their mean; cross-entropy by default.
        probes: "perturbation", "nudging", "fresh-b", "intrinsic", or their objects with options: extra passes.
        chunk: run each batch in parts of at most this many samples: the same numbers, with the memory of one part.
        reference: where g_l comes from when the network's own backward pass is altered (custom autograd Functions,
            backward hooks): "derived" from its forward pass alone, or a plain twin of the same names and weights. None:
            "own", or "derived" with `credit=recorded(…)` and (noted) where the graph is cut. Finite differences check.
        pairing: "site" compares the credit of every site with the gradient of the same site. "shifted" compares the
            credit of site l + 1 with the gradient of site l, as published figures of FA seem to do: see pitfall 15.
        claim: the accuracies to be judged; or give them by their published names.
        method, method_name: what is measured, shown in the report (the second is the published name).
        depth: what `walkback.depth` returned; beside a control D3 decides, unless `Claim.primary` is "D3-outcome".
        sites: "layers" reads the output of every hidden layer, as is done by itself where there is no residual stream;
            a list of dotted names, or module -> bool, reads the outputs of those modules. In place of `anatomy`.
        gamma_over: the sites whose cosines Γ averages: "0..L-1", or "0..L".
        deep_over: those of the deep mean: "1..L", without L where its credit is exact, or "1..L-1".

    >>> import walkback as wb
    >>> net, batches, claim = wb.selftest.exploded(), wb.selftest.batches(8), wb.Claim(accuracy=0.31, frozen=0.35)
    >>> report = diagnose(net, batches, claim=claim, method="DFA")
    >>> report.failed, report.measurement_valid, report.depth_used
    (('D1', 'D2', 'D3'), False, False)
    """
    published = {"headline_acc": headline_acc, "frozen_baseline_acc": frozen_baseline_acc, "bp_acc": bp_acc}
    claim = Claim.given(claim, **published, bp_frozen_acc=bp_frozen_acc, correct=correct, depth=depth)
    method = named(method, method_name, notes)
    limits = DiagnosticThresholds() if thresholds is None else thresholds
    decide(Measurements(), claim, limits, edition)  # a wrong edition should not cost a measurement
    asked = wanted(probes, edition)
    options = {"anatomy": anatomy, "loss": loss, "chunk": chunk, "reference": reference, "pairing": pairing}
    options |= {"sites": sites, "gamma_over": gamma_over, "deep_over": deep_over}
    measurements = measure(model, eval_batches, credit=credit, probes=asked, **options)
    return make_report(measurements, claim, limits, edition, method, notes)


def measure(
    model: nn.Module,
    eval_batches: Iterable[Any],
    *,
    credit: Credit | None = None,
    anatomy: Anatomy | Mapping[str, Any] | None = None,
    loss: Loss | None = None,
    probes: Sequence[str | Probe] = (),
    chunk: int | None = None,
    reference: nn.Module | str | None = None,
    pairing: str = "site",
    gamma_over: str = "0..L-1",
    deep_over: str = "1..L",
    sites: Sites | None = None,
) -> Measurements:
    """Return all numbers of the protocol, before any threshold. Arguments as in `diagnose`.

    >>> import walkback as wb
    >>> m = measure(wb.selftest.exploded(), wb.selftest.batches(2))
    >>> m.growth > 50, len(m.g_norm), m.cosine, m.reasons["cosine"]
    (True, 5, [], 'no credit was given')
    """
    asked, recorded, paired = wanted(probes), isinstance(credit, Recorded), paired_by(pairing)
    reference = "derived" if recorded and reference is None else reference
    with Tracer(model, anatomy, loss, reference, sites) as tracer:
        tracer.asked.alone = True
        if isinstance(credit, Recorded):
            credit = credit.bound(lambda: tracer.anatomy, tracer.losses, tracer.notes)
        over = {"gamma_over": gamma_over, "deep_over": deep_over}
        takers: list[Any] = [Session(tracer, recorded, {"chunk": chunk, "pairing": pairing, **over})]
        takers += [Probing(asked, tracer, credit), Meter(**over), Witness(tracer, loss is not None, anatomy), Stepped()]
        takers += [IntrinsicMeter(tracer, probe, credit, paired) for probe in asked if isinstance(probe, Intrinsic)]
        batches = at_least_one(pairs(eval_batches, tracer.model))
        for x, y in track(batches, "measuring", length_hint(eval_batches) or None):
            for trace in map(paired, tracer.parts(x, y, credit, chunk)):
                for taker in takers:
                    taker.update(trace)
                del trace  # the next part is traced without this one in memory
        found = Found()
        for taker in takers:
            taker.compute(found)
    return found.measurements()
