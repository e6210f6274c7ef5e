"""The protocol on one page: anatomy, traces, measurements, checks, verdict, report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import nn

from walkback.errors import InputError, shown
from walkback.measures.accumulate import Measurements, Meter, cosine_error, deep_sites, mean
from walkback.measures.precision import Intrinsic, IntrinsicMeter
from walkback.measures.probes import Probe, Probing, wanted
from walkback.network.anatomy import Anatomy
from walkback.network.batch import pairs
from walkback.network.loss import Loss
from walkback.notes import Note
from walkback.progress import track
from walkback.registry import whole_numbers
from walkback.report.report import Report
from walkback.tracing.backward import BackwardCheck, check_backward
from walkback.tracing.recorded import Recorded
from walkback.tracing.session import Credit, Trace, Tracer
from walkback.verdict.advisories import Witness, on_claim
from walkback.verdict.checks import (
    Accuracy,
    Correct,
    DiagnosticThresholds,
    dtype_floor,
    paired_counts,
    reference_precision,
    reference_validity,
)
from walkback.verdict.editions import Claim, decide, is_concentrated

# Per-layer fields of Measurements beyond the published ones, by where they come from.
PUBLISHED = ("h_norm", "g_norm", "cosine", "cosine_clamped", "below_eps")
SHIFTED = ("cosine_above", "cosine_below", "gradient_next")
PAIRINGS = ("site", "shifted")
NULLS = ("cosine_low", "cosine_high", "null_low", "null_high", "null_dimension")
PRECISION = ("float64_disagreement", "float64_shift", "epsilon_share", "absorption")


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


def make_report(
    m: Measurements,
    claim: Claim,
    thresholds: DiagnosticThresholds,
    edition: str,
    method: str = "",
    notes: str = "",
    run: Mapping[str, Any] | None = None,
) -> Report:
    """Judge measurements and put everything a reader needs into a Report."""
    v = decide(m, claim, thresholds, edition)
    depth = v.findings[-1]
    values = {
        "growth": m.growth,
        "growth_total": m.growth_total,
        "g_norm_deepest": m.g_norm[-1] if m.g_norm else None,
        "stability": m.stability,
        "depth_margin_pp": depth.value,
        "gamma": m.gamma,
        "gamma_concentration": m.gamma_concentration,
        "deep_cosine": m.deep_cosine,
        "cosine_error": cosine_error(m.float64_disagreement, m.float64_shift)[0],
        "stability_distinct": m.stability_distinct,
        **{f"deep_{name}": _deep(m, name) for name in ("perturbation", "nudging", "nudging_relative", "nudging_rms")},
    }
    per_layer = {
        **{name: getattr(m, name) or None for name in (*PUBLISHED, "zero_credit")},
        **{name: m.probes.get(name) for name in ("perturbation", "nudging", "nudging_relative", "nudging_rms")},
        **{name: getattr(m, name) or None for name in (*SHIFTED, *NULLS, *PRECISION)},
    }
    reasons = dict(m.reasons)
    for name, value in {**values, **per_layer}.items():
        if value is None and name not in reasons:
            reasons[name] = "not measured"
    if depth.reason and depth.value is None:
        reasons["depth_margin_pp"] = depth.reason
    of_reference = [note for note in (m.altered, m.doubted) if note is not None]
    told = [*m.nonfinite, *of_reference, *m.notes, *on_claim(m, claim, thresholds)]
    if v.measurement_valid is False and not v.failed:
        told.append(Note("reference-under-floor"))
    told += [*editions_differ(m, thresholds, edition), *_clamp_decides(m, edition)]
    if is_concentrated(m):
        told.append(Note("concentrated", _loudest(m), {"share": m.gamma_concentration}))
    remark = [Note("remark", None, {"text": str(notes)})] if notes else []
    return Report(
        edition=v.edition,
        verdict=v.verdict,
        failed=v.failed,
        measurement_valid=v.measurement_valid,
        clamped_readable=clamped_readable(m, thresholds),
        unclamped_exact=unclamped_exact(m, thresholds),
        depth_used=v.depth_used,
        submode=v.submode,
        nonfinite=tuple({**note.values, "site": note.site} for note in m.nonfinite),
        altered=None if m.altered is None else dict(m.altered.values),
        doubted=None if m.doubted is None else dict(m.doubted.values),
        values=values,
        per_layer=per_layer,
        thresholds=asdict(thresholds),
        chain=tuple(asdict(step) for step in v.chain),
        findings=tuple({**asdict(f), "interval": None if f.interval is None else list(f.interval)} for f in v.findings),
        method=method,
        notes=(*remark, *told),
        headline_acc=_plain(claim.headline),
        frozen_baseline_acc=_plain(claim.frozen),
        bp_acc=_plain(claim.bp),
        aggregates=m.aggregates,
        controls={k: v for k, v in m.probes.items() if k not in per_layer},
        run=dict(run or {}),
        conditions=_conditions(m, claim),
        reasons=reasons,
    )


def _conditions(m: Measurements, claim: Claim) -> dict[str, Any]:
    """Those of the measurement, and what judges D3 beside the accuracies, so that a report can be judged again."""
    paired = None if claim.correct is None else paired_counts(claim.correct)
    judging = {"paired": paired, "bp_frozen_acc": _plain(claim.bp_frozen)}
    measured = {k: v for k, v in m.conditions.items() if k not in judging}  # of a report they are those of its claim
    return measured | {k: v for k, v in judging.items() if v is not None}


def editions_differ(m: Measurements, thresholds: DiagnosticThresholds, edition: str) -> list[Note]:
    """Where the published reading of the reference and the intrinsic one differ, and both were taken."""
    if m.nonfinite or m.altered:
        return []
    floor = thresholds.g_norm_floor if edition == "four-diagnostic" else dtype_floor(m, thresholds)
    published = reference_validity("D2", m, floor)
    exact = reference_precision("D2", m, thresholds)
    if None in (published.flagged, exact.flagged) or published.flagged == exact.flagged:
        return []
    values = {"edition": edition, "exact": not exact.flagged, "error": exact.value}
    return [Note("editions-differ", None, {**values, "g_norm": published.value, "floor": floor})]


def _clamp_decides(m: Measurements, edition: str) -> list[Note]:
    """What a clamped cosine would have said, in the edition that does not judge by its floor."""
    both = enumerate(zip(m.cosine, m.cosine_clamped))
    off = [(abs(a - b), site) for site, (a, b) in both if a is not None and b is not None]
    error, site = max(off, default=(0.0, 0))
    if edition != "intrinsic" or m.nonfinite or error <= 0.005:
        return []
    return [Note("clamp-decides", site, {"error": error})]


def clamped_readable(m: Measurements, thresholds: DiagnosticThresholds) -> bool | None:
    """Is the cosine as scripts compute it, with ε in its denominator, readable in this dtype? None: not measured."""
    finding = reference_validity("D2", m, dtype_floor(m, thresholds))
    return None if finding.flagged is None else not finding.flagged


def unclamped_exact(m: Measurements, thresholds: DiagnosticThresholds) -> bool | None:
    """Is the cosine without a clamp the one that float64 gives? None where that was not asked."""
    finding = reference_precision("D2", m, thresholds)
    return None if finding.flagged is None else not finding.flagged


def _loudest(m: Measurements) -> int:
    """The site that carries most of Γ."""
    return max(range(len(m.cosine) - 1), key=lambda site: abs(m.cosine[site] or 0.0))


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


def _deep(m: Measurements, probe: str) -> float | None:
    values = m.probes.get(probe)
    return None if values is None else mean([values[site] for site in deep_sites(m.cosine)])


def _plain(value: Accuracy) -> float | list[float] | None:
    return value if value is None else float(value) if isinstance(value, (int, float)) else [float(v) for v in value]
