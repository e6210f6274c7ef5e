"""The protocol on one page: anatomy, traces, measurements, checks, verdict, report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from walkback.errors import InputError, shown
from walkback.measures.accumulate import Measurements, Meter
from walkback.measures.precision import Intrinsic, IntrinsicMeter
from walkback.measures.probes import Probe, Probing, wanted
from walkback.network.anatomy import Anatomy
from walkback.network.batch import pairs
from walkback.network.loss import Loss
from walkback.notes import Note
from walkback.options import whole_numbers
from walkback.progress import track
from walkback.report.formats.logged import judge as judge
from walkback.report.make import NULLS as NULLS
from walkback.report.make import PRECISION as PRECISION
from walkback.report.make import SHIFTED as SHIFTED
from walkback.report.make import make_report
from walkback.report.report import Report
from walkback.tracing.backward import BackwardCheck, check_backward
from walkback.tracing.recorded import Recorded
from walkback.tracing.session import Credit, Trace, Tracer
from walkback.verdict.advisories import Witness
from walkback.verdict.checks import (
    Accuracy,
    Correct,
    DiagnosticThresholds,
)
from walkback.verdict.editions import Claim, decide

PAIRINGS = ("site", "shifted")


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
) -> Report:
    """Measure a trained network and say which claims must be walked back. The model is left as found.

    Args:
        model: a residual network that `Anatomy.of` can read, on the device of the batches.
        eval_batches: (inputs (B, ...), labels) pairs; at least 8 disjoint, shuffled batches of about 128.
            Labels are classes (B,), probabilities (B, C), or tokens (B, T). Inputs may be a dict of the model's
            keywords, and a dict with "labels" in it is a pair too.
        headline_acc: the accuracy you would publish, a fraction; one per seed judges D3 on an interval.
        frozen_baseline_acc: the same network with its blocks frozen at random initialisation, same seeds.
        credit: trace -> one tensor per site, shaped like `trace.states`: the rule's credit a_l.
        method_name: shown in the report.
        notes: shown in the report.
        thresholds: other limits than the published ones.
        edition: "three-check", "four-diagnostic", or "intrinsic", which runs every batch once more in float64.
        anatomy: parts to use instead of those `Anatomy.of` finds (an Anatomy, or its keywords as a dict).
        loss: (logits, labels) -> per-sample losses (B,) or their mean; cross-entropy by default.
        probes: "perturbation", "nudging", "fresh-b", "intrinsic", or their objects with options: extra passes, only
            when asked.
        bp_acc: BP's accuracy on the same task; where it does not beat frozen blocks, D3 is not tested.
        chunk: run each batch in parts of at most this many samples, for long sequences and large batches: the same
            numbers, since each belongs to one sample, with the memory of one part.
        reference: where g_l comes from when the network's own backward pass is altered (custom autograd Functions,
            backward hooks): "derived" from its forward pass alone, or a plain twin with the same weights and module
            names. None: its own backward pass, or "derived" with `credit=recorded(…)`. Finite differences check it.
        correct: for one seed, (N,) which test samples the network gets right and (N,) which its frozen control does:
            D3 is then judged on the binomial error of the pair.
        bp_frozen_acc: of BP's own frozen control, where `frozen_baseline_acc` has a stem trained otherwise.
        pairing: "site" compares the credit of every site with the gradient of the same site. "shifted" compares the
            credit of site l + 1 with the gradient of site l, as published figures of FA seem to do, and is there for
            comparing with them: see pitfall 15.

    >>> import walkback as wb
    >>> report = diagnose(wb.selftest.exploded(), wb.selftest.batches(8), 0.31, 0.35, method_name="DFA")
    >>> report.failed, report.measurement_valid, report.depth_used
    (('D1', 'D2', 'D3'), False, False)
    """
    claim = Claim(headline_acc, frozen_baseline_acc, bp_acc, bp_frozen_acc, correct)
    chosen = thresholds or DiagnosticThresholds()
    decide(Measurements(), claim, chosen, edition)  # a wrong edition should not cost a measurement
    asked = wanted(probes)
    if edition == "intrinsic" and not any(isinstance(probe, Intrinsic) for probe in asked):
        asked.append(Intrinsic())
    measurements = measure(
        model,
        eval_batches,
        credit=credit,
        anatomy=anatomy,
        loss=loss,
        probes=asked,
        chunk=chunk,
        reference=reference,
        pairing=pairing,
    )
    return make_report(measurements, claim, chosen, edition, method_name, notes)


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
) -> Measurements:
    """All numbers of the protocol, before any threshold. Arguments as in `diagnose`.

    >>> import walkback as wb
    >>> m = measure(wb.selftest.exploded(), wb.selftest.batches(2))
    >>> m.growth > 50, len(m.g_norm), m.cosine, m.reasons["cosine"]
    (True, 5, [], 'no credit was given')
    """
    precise = next((probe for probe in wanted(probes) if isinstance(probe, Intrinsic)), None)
    asked = [probe for probe in wanted(probes) if not isinstance(probe, Intrinsic)]
    if chunk is not None:
        whole_numbers(chunk=chunk)
    if pairing not in PAIRINGS:
        raise InputError(f"Expected pairing to be one of {', '.join(PAIRINGS)}, but got {shown(pairing)}.")
    recorded = isinstance(credit, Recorded)
    if recorded and reference is None:
        reference = "derived"
    meter, witness = Meter(), Witness(custom_loss=loss is not None)
    checks: list[BackwardCheck] = []
    with Tracer(model, anatomy, loss, reference) as tracer:
        tracer.asked.alone = True
        if isinstance(credit, Recorded):
            credit = credit.bound(tracer.anatomy, tracer.losses, tracer.notes)
        probing = Probing(asked, tracer, credit)
        second = None if precise is None else IntrinsicMeter(tracer, precise)
        for x, y in track(pairs(eval_batches, tracer.model), "measuring", _length(eval_batches)):
            parts = _checked(tracer.parts(x, y, credit, chunk), tracer, recorded, checks)
            if pairing == "shifted":
                parts = map(_shifted, parts)
            meter.add(_seen(parts, probing, witness, *([] if second is None else [second])))
        if not meter.batches:
            raise InputError(
                "Expected at least one batch, but eval_batches is empty. A generator that was used up before "
                "gives nothing: pass a list or a fresh loader."
            )
        found = probing.result()
        extra = {} if second is None else second.result()
        m = meter.result()
        odd = witness.notes(tracer, anatomy, m.conditions["distinct_samples"])
    backward = checks[0]
    conditions = {
        **m.conditions,
        "blocks_return": {True: "branch", False: "state", None: "unknown"}[tracer.branch],
        "anatomy": [" ".join(row) for row in tracer.anatomy.rows()],
        "guessed": tracer.guesses,
        "tokens_read": tracer.read_tokens,
        "chunk": chunk,
        "pairing": pairing,
        "loss": tracer.loss_name,
        "reference": _REFERENCES[tracer.reference],
        "backward_error": backward.error,
        "probe_accuracy": witness.accuracy,
        "classes": witness.classes,
        "autocast": torch.is_autocast_enabled(meter.device.partition(":")[0]),
        "torch": torch.__version__,
        **found.pop("conditions", {}),
        **extra.pop("conditions", {}),
    }
    reasons = {**m.reasons, **found.pop("reasons", {}), **extra.pop("reasons", {})}
    if backward.error is None:
        reasons["backward_error"] = backward.why
    altered = _altered(backward) if backward.agrees is False else None
    doubted = _unchecked(tracer, backward)
    said = [Note("unchecked-reference", None, values) for values in _unchecked_reference(tracer, backward)]
    # Where g_l may be another signal than the gradient, a credit that equals it is not BP for that.
    own = [note for note in m.notes if note.code != "bp-itself" or not (altered or doubted)]
    notes = (*said, *tracer.notes, *own, *odd, *extra.pop("notes", ()))
    return replace(
        m,
        conditions=conditions,
        reasons=reasons,
        probes=found,
        notes=notes,
        altered=altered,
        doubted=doubted,
        **extra,
    )


_UNSUSPECTED = BackwardCheck("cannot-tell", "not-needed")
_REFERENCES = {
    "own": "the network's own backward pass",
    "derived": "derived from the forward pass alone",
    "twin": "a plain twin of the network",
}


def _unchecked(tracer: Tracer, check: BackwardCheck) -> Note | None:
    """The network's own backward pass, where it should have been checked and could not be."""
    doubtful = tracer.suspect and check.answer == "cannot-tell" and tracer.reference == "own"
    return Note("unchecked-backward", None, {"cause": check.cause, "why": check.why}) if doubtful else None


def _unchecked_reference(tracer: Tracer, check: BackwardCheck) -> list[dict[str, str]]:
    """The same of a reference that was derived or given."""
    if not tracer.suspect or check.answer != "cannot-tell" or tracer.reference == "own":
        return []
    return [{"reference": _REFERENCES[tracer.reference], "cause": check.cause, "why": check.why}]


def _altered(check: BackwardCheck) -> Note:
    values = {"error": check.error, "limit": check.limit, "sites": list(check.sites), "cause": check.cause}
    return Note("altered-backward", None, values)


def _checked(parts: Iterable[Trace], tracer: Tracer, recorded: bool, checks: list[BackwardCheck]) -> Iterator[Trace]:
    """The same traces, after the backward pass of the first has been checked."""
    for trace in parts:
        if not checks:
            doubtful = tracer.suspect or tracer.reference != "own"
            checks.append(check_backward(tracer, trace) if doubtful else _UNSUSPECTED)
            _refuse_wrong_reference(tracer, checks[0], recorded)
        yield trace
        del trace


def _refuse_wrong_reference(tracer: Tracer, check: BackwardCheck, recorded: bool) -> None:
    """A reference that was asked for must be the derivative; with recorded credits this must have been seen."""
    if tracer.reference != "own" and check.agrees is False:
        which = "the derived reference" if tracer.reference == "derived" else "the twin's gradient"
        remedy = (
            "The forward pass leaves torch on its way (numpy, .data, a kernel of its own). Pass a plain twin of the "
            "network with the same weights: reference=twin."
            if tracer.reference == "derived"
            else "Its backward pass is altered too: build it from plain layers."
        )
        raise InputError(
            f"Expected {which} to predict how the loss changes, but finite differences disagree by {check.error:.2%} "
            f"(limit {check.limit:.2%}). {remedy}"
        )
    if recorded and check.agrees is None:
        raise InputError(
            "Expected a reference that finite differences can confirm, since recorded credits come from a backward "
            f"pass that may be altered, but {check.why}. {check.remedy}, or give the credits as a function of the "
            "trace."
        )


def _shifted(trace: Trace) -> Trace:
    """The same trace with the credit of site l + 1 at site l; the last site, which has none above, keeps its own."""
    if trace.credits is None:
        raise InputError('Expected a credit with pairing="shifted", but none was given.')
    if any(a.shape != trace.credits[0].shape for a in trace.credits):
        raise InputError('Expected a stream of one shape with pairing="shifted", but it changes its shape on the way.')
    return replace(trace, credits=(*trace.credits[1:], trace.credits[-1]))


def _seen(parts: Iterable[Trace], *lookers: Probing | Witness | IntrinsicMeter) -> Iterator[Trace]:
    """The same traces, after each of those who look on has seen them."""
    for trace in parts:
        for looker in lookers:
            looker.add(trace)
        yield trace
        del trace


def _length(batches: Iterable[Any]) -> int | None:
    try:
        return len(batches)  # type: ignore[arg-type]
    except TypeError:
        return None
