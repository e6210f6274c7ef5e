"""The protocol on one page: anatomy, traces, measurements, checks, verdict, report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from walkback.anatomy import Anatomy
from walkback.checks import Accuracy, DiagnosticThresholds, dtype_floor, reference_validity
from walkback.editions import Claim, decide, is_concentrated
from walkback.errors import InputError
from walkback.intrinsic import Intrinsic, IntrinsicMeter
from walkback.measure import Measurements, Meter, cosine_error, deep_sites, mean
from walkback.probes import Probe, run_probes, wanted
from walkback.progress import track
from walkback.report import Report
from walkback.trace import Credit, Loss, Trace, Tracer

# Per-layer fields of Measurements beyond the published ones, by where they come from.
NULLS = ("cosine_low", "cosine_high", "null_low", "null_high", "null_dimension")
PRECISION = ("float64_disagreement", "float64_shift", "epsilon_share", "absorption")


def diagnose(
    model: nn.Module,
    eval_batches: Iterable[tuple[Tensor, Tensor]],
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
) -> Report:
    """Measure a trained network and say which claims must be walked back. The model is left as found.

    Args:
        model: a residual network that `Anatomy.of` can read, on the device of the batches.
        eval_batches: (inputs (B, ...), labels) pairs; at least 8 disjoint, shuffled batches of about 128.
            Labels are classes (B,), probabilities (B, C), or tokens (B, T).
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

    >>> import walkback as wb
    >>> report = diagnose(wb.selftest.exploded(), wb.selftest.batches(8), 0.31, 0.35, method_name="DFA")
    >>> report.failed, report.measurement_valid, report.depth_used
    (('D1', 'D2', 'D3'), False, False)
    """
    claim = Claim(headline_acc, frozen_baseline_acc, bp_acc)
    chosen = thresholds or DiagnosticThresholds()
    decide(Measurements(), claim, chosen, edition)  # a wrong edition should not cost a measurement
    asked = wanted(probes)
    if edition == "intrinsic" and not any(isinstance(probe, Intrinsic) for probe in asked):
        asked.append(Intrinsic())
    measurements = measure(model, eval_batches, credit=credit, anatomy=anatomy, loss=loss, probes=asked)
    return make_report(measurements, claim, chosen, edition, method_name, notes)


def measure(
    model: nn.Module,
    eval_batches: Iterable[tuple[Tensor, Tensor]],
    *,
    credit: Credit | None = None,
    anatomy: Anatomy | Mapping[str, Any] | None = None,
    loss: Loss | None = None,
    probes: Sequence[str | Probe] = (),
) -> Measurements:
    """All numbers of the protocol, before any threshold. Arguments as in `diagnose`."""
    precise = next((probe for probe in wanted(probes) if isinstance(probe, Intrinsic)), None)
    asked = [probe for probe in wanted(probes) if not isinstance(probe, Intrinsic)]
    kept: list[Trace] = []
    meter = Meter()
    with Tracer(model, anatomy, loss) as tracer:
        second = None if precise is None else IntrinsicMeter(tracer, precise)
        for x, y in track(pairs(eval_batches), "measuring", _length(eval_batches)):
            trace = tracer.trace(x, y, credit)
            meter.add(trace)
            if second is not None:
                second.add(trace)
            if asked and sum(len(t.losses) for t in kept) < max(p.samples for p in asked):
                kept.append(trace)
        if not meter.batches:
            raise InputError(
                "Expected at least one batch, but eval_batches is empty. A generator that was used up before "
                "gives nothing: pass a list or a fresh loader."
            )
        found = run_probes(asked, tracer, kept, credit) if asked else {}
        extra = {} if second is None else second.result()
    m = meter.result()
    conditions = {
        **m.conditions,
        "blocks_return": {True: "branch", False: "state", None: "unknown"}[tracer.branch],
        "anatomy": [" ".join(row) for row in tracer.anatomy.rows()],
        "loss": "cross-entropy" if loss is None else getattr(loss, "__name__", type(loss).__name__),
        "autocast": torch.is_autocast_enabled(meter.device.partition(":")[0]),
        "torch": torch.__version__,
        **found.pop("conditions", {}),
        **extra.pop("conditions", {}),
    }
    reasons = {**m.reasons, **found.pop("reasons", {}), **extra.pop("reasons", {})}
    notes = (*tracer.notes, *m.notes, *extra.pop("notes", ()))
    return replace(m, conditions=conditions, reasons=reasons, probes=found, notes=notes, **extra)


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
        **{f"deep_{name}": _deep(m, name) for name in ("perturbation", "nudging", "nudging_relative")},
    }
    per_layer = {
        **{name: getattr(m, name) or None for name in ("h_norm", "g_norm", "cosine", "cosine_clamped", "below_eps")},
        **{name: m.probes.get(name) for name in ("perturbation", "nudging", "nudging_relative")},
        **{name: getattr(m, name) or None for name in (*NULLS, *PRECISION)},
    }
    reasons = dict(m.reasons)
    for name, value in {**values, **per_layer}.items():
        if value is None and name not in reasons:
            reasons[name] = "not measured"
    if depth.reason and depth.value is None:
        reasons["depth_margin_pp"] = depth.reason
    advisories = [*m.nonfinite, *m.notes]
    if v.measurement_valid is False and not v.failed:
        advisories.append(
            "the reference is under the floor, so Γ should not be read, although the published rule asks for D1 too"
        )
    if edition == "intrinsic":
        advisories += _beside_published(m, thresholds)
    if is_concentrated(m):
        advisories.append(f"one site carries {m.gamma_concentration:.0%} of Γ: report the cosine per layer")
    return Report(
        edition=v.edition,
        verdict=v.verdict,
        failed=v.failed,
        measurement_valid=v.measurement_valid,
        depth_used=v.depth_used,
        submode=v.submode,
        values=values,
        per_layer=per_layer,
        thresholds=asdict(thresholds),
        chain=tuple(asdict(step) for step in v.chain),
        findings=tuple({**asdict(f), "interval": None if f.interval is None else list(f.interval)} for f in v.findings),
        method=method,
        notes=notes,
        headline_acc=_plain(claim.headline),
        frozen_baseline_acc=_plain(claim.frozen),
        bp_acc=_plain(claim.bp),
        aggregates=m.aggregates,
        controls={k: v for k, v in m.probes.items() if k not in per_layer},
        run=dict(run or {}),
        conditions=m.conditions,
        reasons=reasons,
        advisories=tuple(advisories),
    )


def _beside_published(m: Measurements, thresholds: DiagnosticThresholds) -> list[str]:
    """Where the intrinsic reading and the published one differ, and what a clamped cosine would have said."""
    said: list[str] = []
    d2 = reference_validity("D2", m, dtype_floor(m, thresholds))
    if m.nonfinite_kinds or d2.value is None:
        return said
    error, _ = cosine_error(m.float64_disagreement, m.float64_shift)
    off = None if error is None else error > thresholds.cosine_error_limit
    if d2.flagged and off is False:
        said.append(
            f"the published D2 would flag (‖g_L‖ = {d2.value:.2g} < {d2.limit:.2g}), but no cosine is off by more than "
            f"{error:.1g}: the reference is small, not wrong"
        )
    if d2.flagged is False and off:
        said.append(f"the published D2 would not flag (‖g_L‖ = {d2.value:.2g}), but rounding decides the reference")
    both = enumerate(zip(m.cosine, m.cosine_clamped))
    off_by_clamp = [(abs(a - b), site) for site, (a, b) in both if a is not None and b is not None]
    clamp, site = max(off_by_clamp, default=(0.0, 0))
    if clamp > 0.005:
        said.append(
            f"F.cosine_similarity would report a cosine off by {clamp:.2g} at site {site}, from its ε alone: multiply "
            "the loss by a constant, or leave ε out"
        )
    return said


def pairs(batches: Iterable[Any]) -> Iterable[tuple[Tensor, Tensor]]:
    """Batches as (inputs, labels), with an error that shows what arrived instead."""
    if isinstance(batches, (Tensor, str, Path)) or not isinstance(batches, Iterable):
        raise InputError(
            f"Expected eval_batches to be an iterable of (inputs, labels) pairs, but got {type(batches).__name__}. "
            "Wrap a single batch in a list: [(x, y)]."
        )
    for index, batch in enumerate(batches):
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            got = (
                f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, (tuple, list)) else type(batch).__name__
            )
            hint = " Wrap a single batch in a list: [(x, y)]." if isinstance(batch, Tensor) else ""
            raise InputError(f"Expected batch {index} to be a pair (inputs, labels), but got a {got}.{hint}")
        yield batch[0], batch[1]


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
