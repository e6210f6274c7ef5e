"""Probes: extra passes, run only when asked. Does the credit predict and lower the loss? Is it better than chance?

Perturbation and nudging change the stream at one site and run the rest of the network, in float64 where the device has
it. Fresh feedback asks the rule for its credit with new random matrices. (The intrinsic form of D2 is asked for like a
probe, but measured batch by batch: see `intrinsic.py`.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from walkback.errors import InputError
from walkback.intrinsic import Intrinsic
from walkback.measure import Measurements, Meter, Numbers
from walkback.nulls import student
from walkback.progress import track
from walkback.trace import Credit, Trace, Tracer, no_autocast


@dataclass(frozen=True)
class Perturbation:
    """ρ_pert: over random directions v, the correlation of ⟨a_l, εv⟩ with loss(h_l + εv) − loss(h_l).

    With isotropic directions and a small step this estimates the same angle as the cosine, so it is no
    independent check; `directions="data"` (from the covariance of the states) and a finite `step` ask other
    questions. Two controls come with it: the BP gradient (≈ 1) and a random vector (≈ 0) in place of a_l.

    Args:
        directions: "isotropic" or "data".
        count: directions per sample.
        step: ε as a share of ‖h_l‖.
        samples: at least this many samples are used (whole batches).
        seed: of the directions and the random control.
    """

    directions: str = "isotropic"
    count: int = 64
    step: float = 1e-3
    samples: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        if self.directions not in ("isotropic", "data"):
            raise InputError(f'Expected directions "isotropic" or "data", but got {self.directions!r}.')
        if self.count < 3 or self.step <= 0:
            raise InputError(f"Expected count >= 3 and step > 0, but got {self.count} and {self.step}.")


@dataclass(frozen=True)
class Nudging:
    """The change of the loss after a step along −a_l/‖a_l‖ at one site: η long, and η‖h_l‖ long.

    Args:
        eta: the step.
        samples: at least this many samples are used (whole batches).
    """

    eta: float = 0.01
    samples: int = 1024

    def __post_init__(self) -> None:
        if self.eta <= 0:
            raise InputError(f"Expected eta > 0, but got {self.eta}.")


@dataclass(frozen=True)
class FreshFeedback:
    """The null of a rule with feedback matrices: the cosines of the same network and batches with B drawn anew.

    The credit must be a rule with `redraw(generator)`, such as a bundle's; its own B is put back afterwards.

    Args:
        draws: how many times.
        samples: at least this many samples are used (whole batches).
        seed: of the draws.
    """

    draws: int = 20
    samples: int = 1024
    seed: int = 0

    def __post_init__(self) -> None:
        if self.draws < 2:
            raise InputError(f"Expected draws >= 2, since their spread is the answer, but got {self.draws}.")


Probe = Perturbation | Nudging | FreshFeedback | Intrinsic
PROBES: dict[str, type[Probe]] = {
    "perturbation": Perturbation,
    "nudging": Nudging,
    "fresh-b": FreshFeedback,
    "intrinsic": Intrinsic,
}


def wanted(probes: Sequence[str | Probe]) -> list[Probe]:
    """Names and objects to probe objects.

    >>> wanted(["nudging"])
    [Nudging(eta=0.01, samples=1024)]
    """
    if isinstance(probes, str | Probe):
        probes = [probes]
    if not isinstance(probes, Iterable):
        raise InputError(f"Expected probes among {', '.join(PROBES)}, but got {probes!r}.")
    out: list[Probe] = []
    for probe in probes:
        if isinstance(probe, str) and probe in PROBES:
            out.append(PROBES[probe]())
        elif isinstance(probe, Probe):
            out.append(probe)
        else:
            raise InputError(f"Expected probes among {', '.join(PROBES)}, but got {probe!r}.")
    return out


def run_probes(
    probes: Sequence[Perturbation | Nudging | FreshFeedback],
    tracer: Tracer,
    traces: Sequence[Trace],
    credit: Credit | None = None,
) -> dict[str, Any]:
    """Per-site lists by name, with `reasons` for what is missing and the `conditions` of the probes."""
    found: dict[str, Any] = {"reasons": {}, "conditions": {}}
    replayer = None
    for probe in probes:
        part = _first(traces, probe.samples)
        if isinstance(probe, FreshFeedback):
            _fresh_feedback(probe, part, credit, found)
            continue
        if replayer is None:
            replayer = _Replayer(tracer, traces[0])
            found["conditions"]["probe_dtype"] = replayer.dtype
        if not tracer.per_sample:
            why = "the loss returns a mean; probes need one loss per sample"
            names = ("perturbation",) if isinstance(probe, Perturbation) else ("nudging", "nudging_relative")
            found["reasons"].update(dict.fromkeys(names, why))
            continue
        with torch.no_grad(), no_autocast(traces[0].losses.device):
            if isinstance(probe, Perturbation):
                _perturbation(probe, replayer, part, found)
            else:
                _nudging(probe, replayer, part, found)
        found["conditions"][type(probe).__name__.lower()] = {
            **vars(probe), "samples": sum(len(t.losses) for t in part)
        }  # fmt: skip
    return found


def _perturbation(probe: Perturbation, replayer: _Replayer, traces: Sequence[Trace], found: dict[str, Any]) -> None:
    sites = range(len(traces[0].states))
    with_credit = traces[0].credits is not None
    sums: dict[str, list[list[Tensor]]] = {name: [[] for _ in sites] for name in ("credit", "bp", "random")}
    generator = torch.Generator(traces[0].losses.device).manual_seed(probe.seed)
    work = [(trace, site) for trace in traces for site in sites]
    for trace, site in track(work, "perturbation", len(work)):
        state, grad = replayer.wide(trace.states[site]), replayer.wide(trace.grads[site])
        signals = {"bp": grad, "random": _normal(grad, generator)}
        if trace.credits is not None:
            signals["credit"] = replayer.wide(trace.credits[site])
        base = replayer.losses(trace, site, torch.zeros_like(state))
        length = probe.step * _norms(state)
        predicted: dict[str, list[Tensor]] = {name: [] for name in signals}
        actual = []
        for _ in range(probe.count):
            v = _normal(state, generator) if probe.directions == "isotropic" else _from_data(state, generator)
            v = v / _shaped(_norms(v).clamp(min=1e-300 if v.dtype == torch.float64 else 1e-30), v)
            delta = v * _shaped(length, v)
            actual.append(replayer.losses(trace, site, delta) - base)
            for name, signal in signals.items():
                # Unit signals: a correlation does not depend on their length, and 1e-40 squared would be lost.
                unit = signal / _shaped(_norms(signal), signal)
                predicted[name].append((unit * v).flatten(1).sum(1) * length)
        for name in signals:
            sums[name][site].append(_pearson(torch.stack(predicted[name], 1), torch.stack(actual, 1)))
    means = {name: [_mean_of(parts) for parts in per_site] for name, per_site in sums.items()}
    found["perturbation_bp"], found["perturbation_random"] = means["bp"], means["random"]
    if with_credit:
        found["perturbation"] = means["credit"]
        if None in means["credit"]:
            found["reasons"]["perturbation"] = "the credit is zero, or the loss does not change, at some sites"
    else:
        found["reasons"]["perturbation"] = "no credit was given"


def _nudging(probe: Nudging, replayer: _Replayer, traces: Sequence[Trace], found: dict[str, Any]) -> None:
    if traces[0].credits is None:
        found["reasons"].update(nudging="no credit was given", nudging_relative="no credit was given")
    sites = range(len(traces[0].states))
    totals: dict[str, list[list[Tensor]]] = {}
    work = [(trace, site) for trace in traces for site in sites]
    for trace, site in track(work, "nudging", len(work)):
        state = replayer.wide(trace.states[site])
        base = replayer.losses(trace, site, torch.zeros_like(state))
        signals = {"nudging_bp": replayer.wide(trace.grads[site])}
        if trace.credits is not None:
            signals["nudging"] = replayer.wide(trace.credits[site])
        for name, signal in signals.items():
            unit = -signal / _shaped(_norms(signal), signal)
            for suffix, length in (("", probe.eta), ("_relative", probe.eta * _shaped(_norms(state), state))):
                change = replayer.losses(trace, site, unit * length) - base
                totals.setdefault(name + suffix, [[] for _ in sites])[site].append(change)
    for name, per_site in totals.items():
        found[name] = [_mean_of(parts) for parts in per_site]
        if None in found[name]:
            found["reasons"][name] = "the signal is zero at some sites, so a step has no direction"


def _fresh_feedback(
    probe: FreshFeedback, traces: Sequence[Trace], credit: Credit | None, found: dict[str, Any]
) -> None:
    told: dict[str, Any] = {**vars(probe), "samples": sum(len(t.losses) for t in traces)}
    found["conditions"]["fresh_feedback"] = told
    if credit is None:
        told["not measured because"] = "no credit was given"
        return
    drawn = _redrawn(probe, traces, credit)
    if not drawn:
        told["not measured because"] = "the credit has no feedback matrices to draw anew"
        return
    spreads = [_spread(list(values)) for values in zip(*(m.cosine for m in drawn))]
    half = student(probe.draws - 1) * (1 + 1 / probe.draws) ** 0.5  # of where one more draw would lie
    found["fresh_mean"] = [s and s[0] for s in spreads]
    found["fresh_low"] = [s and s[0] - half * s[1] for s in spreads]
    found["fresh_high"] = [s and s[0] + half * s[1] for s in spreads]
    for name in ("gamma", "deep_cosine"):
        spread = _spread([getattr(m, name) for m in drawn])
        told[name] = None if spread is None else {"mean": spread[0], "std": spread[1]}


def _redrawn(probe: FreshFeedback, traces: Sequence[Trace], credit: Any) -> list[Measurements]:
    """What is measured with each new draw, none for a credit that has nothing to draw. The rule is left as found."""
    if not all(hasattr(credit, name) for name in ("redraw", "state_dict", "load_state_dict")):
        return []
    # On the CPU whatever the device, so that a seed gives the same matrices everywhere.
    generator = torch.Generator().manual_seed(probe.seed)
    own = {name: value.clone() for name, value in credit.state_dict().items()}
    drawn: list[Measurements] = []
    try:
        for _ in track(range(probe.draws), "fresh feedback", probe.draws):
            with torch.no_grad():
                if not credit.redraw(generator):
                    return []
            meter = Meter()
            for trace in traces:
                meter.add(replace(trace, credits=tuple(a.detach() for a in credit(trace))))
            drawn.append(meter.result())
    finally:
        credit.load_state_dict(own)
    return drawn


def _spread(values: Numbers) -> tuple[float, float] | None:
    """Mean and standard deviation, None when one is missing."""
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return None
    of = torch.tensor(known, dtype=torch.float64)
    return float(of.mean()), float(of.std())


class _Replayer:
    """Losses with a changed stream, in float64 where the device and the network allow it."""

    def __init__(self, tracer: Tracer, trace: Trace) -> None:
        self.tracer = tracer
        self.weights: dict[str, Tensor] | None = None
        native = trace.states[0].dtype
        self.dtype = str(native).removeprefix("torch.")
        if trace.losses.device.type != "mps" and native != torch.float64:
            model = tracer.model
            self.weights = {
                name: t.detach().double() if t.is_floating_point() else t.detach()
                for name, t in (*model.named_parameters(), *model.named_buffers())
            }
            try:
                with torch.no_grad(), no_autocast(trace.losses.device):
                    self.losses(trace, 0, torch.zeros_like(self.wide(trace.states[0])))
                self.dtype = "float64"
            except RuntimeError as error:  # a network that fixes its dtype is measured in its own, and a note says so
                self.weights = None
                tracer.notes.append(f"probes run in {self.dtype}, not float64: {str(error).splitlines()[0]}")

    def wide(self, tensor: Tensor) -> Tensor:
        """As float64 where the network can take it."""
        return tensor if self.weights is None else tensor.double()

    def losses(self, trace: Trace, site: int, delta: Tensor) -> Float[Tensor, " batch"]:
        """Per-sample losses with `delta` added to the stream at `site`."""
        x = trace.inputs
        if self.weights is not None and x.is_floating_point():
            x = x.double()
        return self.tracer.replay(x, trace.labels, site, delta, self.weights)


def _first(traces: Sequence[Trace], samples: int) -> list[Trace]:
    out: list[Trace] = []
    for trace in traces:
        if sum(len(t.losses) for t in out) >= samples:
            break
        out.append(trace)
    return out


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)


def _from_data(state: Tensor, generator: torch.Generator) -> Tensor:
    """Random directions with the covariance of the batch's states: random mixtures of centred samples."""
    rows = state.flatten(1)
    mix = torch.randn(len(rows), len(rows), dtype=rows.dtype, device=rows.device, generator=generator)
    return (mix @ (rows - rows.mean(0))).view_as(state)


def _norms(x: Tensor) -> Float[Tensor, " batch"]:
    return torch.linalg.vector_norm(x.flatten(1), dim=1)


def _shaped(per_sample: Tensor, like: Tensor) -> Tensor:
    return per_sample.view(-1, *[1] * (like.ndim - 1))


def _pearson(a: Float[Tensor, "batch n"], b: Float[Tensor, "batch n"]) -> Float[Tensor, " batch"]:
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


def _mean_of(parts: Sequence[Tensor]) -> float | None:
    """The mean over samples that have a value; a sample whose signal is zero has no direction and no value."""
    if not parts:
        return None
    values = torch.cat(list(parts)).cpu().double()
    values = values[torch.isfinite(values)]
    return float(values.mean()) if len(values) else None
