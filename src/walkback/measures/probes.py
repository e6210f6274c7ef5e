"""Probes: extra passes, run only when asked. Does the credit predict and lower the loss? Is it better than chance?

Perturbation and nudging change the stream at one site and run the rest of the network, in float64 where the device has
it. Fresh feedback asks the rule for its credit with new random matrices. (The intrinsic form of D2 is asked for like a
probe, but measured batch by batch: see `precision.py`.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from walkback.errors import InputError, shown
from walkback.measures.fresh import FreshFeedback, Redraws
from walkback.measures.measurements import Found
from walkback.measures.precision import Intrinsic
from walkback.network.batch import mapped
from walkback.network.values import has_float64, no_autocast
from walkback.notes import Note
from walkback.registry import one_of, positive, whole_numbers
from walkback.tracing.rerun import double_weights, is_sharded
from walkback.tracing.session import Tracer
from walkback.tracing.trace import Trace


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

    >>> import walkback as wb
    >>> net, batches = wb.selftest.healthy(), wb.selftest.batches(2)
    >>> report = wb.diagnose(net, batches, credit=wb.rules.BP(), probes=[Perturbation(count=16)])
    >>> all(rho > 0.99 for rho in report.per_layer["perturbation"])
    True
    """

    quantities: ClassVar = ("perturbation",)
    directions: str = "isotropic"
    count: int = 64
    step: float = 1e-3
    samples: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        one_of(("isotropic", "data"), directions=self.directions)
        whole_numbers(3, count=self.count)
        positive(step=self.step)
        whole_numbers(samples=self.samples)
        whole_numbers(0, seed=self.seed)


@dataclass(frozen=True)
class Nudging:
    """The change of the loss after a step along −a_l/‖a_l‖ at one site: η long, η‖h_l‖ long, and η√d long.

    A sample whose credit is zero makes no step and counts as no change, also where that is every sample of a site.

    Args:
        eta: the step.
        samples: at least this many samples are used (whole batches).

    >>> import walkback as wb
    >>> net, batches = wb.selftest.healthy(), wb.selftest.batches(2)
    >>> report = wb.diagnose(net, batches, credit=wb.rules.BP(), probes=[Nudging(eta=0.01)])
    >>> all(change < 0 for change in report.per_layer["nudging"])
    True
    """

    quantities: ClassVar = ("nudging", "nudging_relative", "nudging_rms")
    eta: float = 0.01
    samples: int = 1024

    def __post_init__(self) -> None:
        positive(eta=self.eta)
        whole_numbers(samples=self.samples)


Probe = Perturbation | Nudging | FreshFeedback | Intrinsic
PROBES: dict[str, type[Probe]] = {
    "perturbation": Perturbation,
    "nudging": Nudging,
    "fresh-b": FreshFeedback,
    "intrinsic": Intrinsic,
}


def wanted(probes: Sequence[str | Probe], edition: str = "three-check") -> list[Probe]:
    """Turn names and objects into probe objects, and add the one that the intrinsic edition judges by.

    >>> wanted(["nudging"])
    [Nudging(eta=0.01, samples=1024)]
    """
    if isinstance(probes, str | Probe):
        probes = [probes]
    if not isinstance(probes, Iterable):
        raise InputError(f"Expected probes among {', '.join(PROBES)}, but got {shown(probes)}.")
    out: list[Probe] = []
    for probe in probes:
        if isinstance(probe, str) and probe in PROBES:
            out.append(PROBES[probe]())
        elif isinstance(probe, Probe):
            out.append(probe)
        else:
            raise InputError(f"Expected probes among {', '.join(PROBES)}, but got {shown(probe)}.")
        same = [other for other in out[:-1] if type(other) is type(out[-1])]
        if same:
            raise InputError(
                f"Expected at most one probe of each kind, since a report has one place for it, but got {same[0]} and "
                f"{out[-1]}. Measure once with each."
            )
    if edition == "intrinsic" and not any(isinstance(probe, Intrinsic) for probe in out):
        out.append(Intrinsic())
    return out


class Probing:
    """Probes over traces as they come: nothing of a trace is kept but a few numbers per sample.

    Args:
        probes: what to run.
        tracer: the session the traces come from.
        credit: of the traces.
    """

    def __init__(self, probes: Sequence[Probe], tracer: Tracer, credit: Any = None) -> None:
        self._runs = [_Run(probe) for probe in probes if isinstance(probe, Perturbation | Nudging)]
        self._redraws = [Redraws(probe, credit) for probe in probes if isinstance(probe, FreshFeedback)]
        self._tracer = tracer
        self._replayer: _Replayer | None = None
        self._dtype = ""

    def update(self, trace: Trace) -> None:
        for redraws in self._redraws:
            redraws.update(trace)
        due = [run for run in self._runs if run.samples < run.probe.samples]
        if not due:
            self._replayer = None  # its copy of the weights is not needed any more
            return
        if self._replayer is None:
            self._replayer = _Replayer(self._tracer, trace)
            self._dtype = self._replayer.dtype
        for run in due:
            run.samples += len(trace.losses)
            if self._tracer.per_sample:
                with torch.no_grad(), no_autocast(trace.losses.device):
                    step = _perturb if isinstance(run.probe, Perturbation) else _nudge
                    step(run, self._replayer, trace)

    def compute(self, found: Found) -> None:
        found.values["probes"] = {}
        found.conditions |= {"probe_dtype": self._dtype} if self._runs else {}
        for run in self._runs:
            names = run.probe.quantities
            if not self._tracer.per_sample:
                why = "the loss returns a mean; probes need one loss per sample"
                found.reasons |= dict.fromkeys(names, why)
                continue
            run.compute(found)
            found.reasons |= dict.fromkeys((n for n in names if n not in run.values), "no credit was given")
            found.conditions[type(run.probe).__name__.lower()] = {**vars(run.probe), "samples": run.samples}
        for redraws in self._redraws:
            redraws.compute(found)


class _Run:
    """One probe on its way: how many samples it has had, and what it found of each, by name and site."""

    def __init__(self, probe: Perturbation | Nudging) -> None:
        self.probe, self.samples = probe, 0
        self.values: dict[str, list[list[tuple[Tensor, Tensor, Tensor]]]] = {}
        self.generator: torch.Generator | None = None

    def keep(self, name: str, site: int, sites: int, values: Tensor, none: Tensor, left: Tensor) -> None:
        """Keep of each sample its value, whether it has no signal, which counts as 0, and whether it can't count."""
        self.values.setdefault(name, [[] for _ in range(sites)])[site].append((values, none, left))

    def compute(self, found: Found) -> None:
        """Add the means to what was found, with reasons, and notes on samples that were left out."""
        perturbed = isinstance(self.probe, Perturbation)
        zero = "is zero, or the loss does not change, at some sites"
        zero = zero if perturbed else "is zero at some sites, so a step has no direction"
        steps = () if perturbed else self.probe.quantities  # along the credit: without one nothing moves
        left: dict[tuple[tuple[int, int], ...], list[str]] = {}  # how many, at which sites -> the numbers without them
        for name, per_site in self.values.items():
            means, empty, left_out = zip(*(_mean_of(parts, name in steps) for parts in per_site))
            found.values["probes"][name] = list(means)
            missing = [site for site, mean in enumerate(means) if mean is None]
            broken = [str(site) for site in missing if empty[site] < self.samples]
            signal = "credit" if name == "perturbation" else "signal"
            why = [f"the {signal} {zero}"] if len(missing) > len(broken) else []
            if broken:
                why.append(f"the signal, or the loss after a step, is not finite at site {', '.join(broken)}")
            if why:
                found.reasons[name] = "; ".join(why)
            some = tuple((site, n) for site, n in enumerate(left_out) if n and site not in missing)
            if some:
                left.setdefault(some, []).append(name)
        for some, names in left.items():
            values = {"of": self.samples, "probes": names, "left_out": {str(site): n for site, n in some}}
            found.notes.append(Note("probe-left-out", None, values))


def _perturb(run: _Run, replayer: _Replayer, trace: Trace) -> None:
    probe = run.probe
    assert isinstance(probe, Perturbation)
    run.generator = run.generator or torch.Generator(trace.losses.device).manual_seed(probe.seed)
    generator, sites = run.generator, len(trace.states)
    for site in range(sites):
        state, grad = replayer.wide(trace.states[site]), replayer.wide(trace.grads[site])
        signals = {"perturbation_bp": grad, "perturbation_random": _normal(grad, generator)}
        if trace.credits is not None:
            signals["perturbation"] = replayer.wide(trace.credits[site])
        # Unit signals: a correlation does not depend on their length, and 1e-40 squared would be lost.
        units = {name: _unit(signal) for name, signal in signals.items()}
        base = replayer.losses(trace, site, torch.zeros_like(state))
        length = probe.step * _norms(state)
        predicted: dict[str, list[Tensor]] = {name: [] for name in signals}
        actual = []
        for _ in range(probe.count):
            v = _normal(state, generator) if probe.directions == "isotropic" else _from_data(state, generator)
            v = v / _shaped(_norms(v).clamp(min=1e-300 if v.dtype == torch.float64 else 1e-30), v)
            delta = v * _shaped(length, v)
            actual.append(replayer.losses(trace, site, delta) - base)
            for name, unit in units.items():
                predicted[name].append((unit * v).flatten(1).sum(1) * length)
        for name in signals:
            found, flat = _pearson(torch.stack(predicted[name], 1), torch.stack(actual, 1))
            none = (_norms(signals[name]) == 0) & (name == "perturbation")  # the controls need their signal
            run.keep(name, site, sites, found, none, flat & ~none)


def _nudge(run: _Run, replayer: _Replayer, trace: Trace) -> None:
    probe, sites = run.probe, len(trace.states)
    assert isinstance(probe, Nudging)
    for site in range(sites):
        state = replayer.wide(trace.states[site])
        base = replayer.losses(trace, site, torch.zeros_like(state))
        signals = {"nudging_bp": replayer.wide(trace.grads[site])}
        if trace.credits is not None:
            signals["nudging"] = replayer.wide(trace.credits[site])
        for name, signal in signals.items():
            unit, norms = -_unit(signal), _norms(signal)
            steps = {"": 1.0, "_relative": _shaped(_norms(state), state), "_rms": state[0].numel() ** 0.5}
            for suffix, length in ((suffix, probe.eta * step) for suffix, step in steps.items()):
                change = replayer.losses(trace, site, unit * length) - base
                change = change.where(norms.isfinite(), torch.nan)  # also where the network hides a NaN
                none = (norms == 0) & change.isfinite()
                run.keep(name + suffix, site, sites, change, none, torch.zeros_like(none))


class _Replayer:
    """Losses with a changed stream, in float64 where the device and the network allow it."""

    def __init__(self, tracer: Tracer, trace: Trace) -> None:
        self.tracer = tracer
        self.weights: dict[str, Tensor] | None = None
        native = trace.states[0].dtype
        self.dtype = str(native).removeprefix("torch.")
        if is_sharded(tracer.model):
            if native != torch.float64:
                why = "that would gather a sharded network"
                tracer.notes.append(Note("probe-dtype", None, {"dtype": self.dtype, "why": why}))
        elif has_float64(trace.losses.device) and native != torch.float64:
            self.weights = double_weights(tracer.model)
            try:
                with torch.no_grad(), no_autocast(trace.losses.device):
                    self.losses(trace, 0, torch.zeros_like(self.wide(trace.states[0])))
                self.dtype = "float64"
            except RuntimeError as error:  # a network that fixes its dtype is measured in its own, and a note says so
                self.weights = None
                why = str(error).splitlines()[0]
                tracer.notes.append(Note("probe-dtype", None, {"dtype": self.dtype, "why": why}))

    def wide(self, tensor: Tensor) -> Tensor:
        """Return values as float64 where the network can take it."""
        return tensor if self.weights is None else tensor.double()

    def losses(self, trace: Trace, site: int, delta: Tensor) -> Float[Tensor, " batch"]:
        """Return the per-sample losses with `delta` added to the stream at `site`."""
        x = trace.inputs
        if self.weights is not None:
            x = mapped(x, lambda t: t.double() if t.is_floating_point() else t)
        return self.tracer.replay(x, trace.labels, {site: delta}, self.weights)


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)


def _from_data(state: Tensor, generator: torch.Generator) -> Tensor:
    """Return random directions with the covariance of the batch's states: random mixtures of centred samples."""
    rows = state.flatten(1)
    mix = torch.randn(len(rows), len(rows), dtype=rows.dtype, device=rows.device, generator=generator)
    return (mix @ (rows - rows.mean(0))).view_as(state)


def _norms(x: Tensor) -> Float[Tensor, " batch"]:
    return torch.linalg.vector_norm(x.flatten(1), dim=1)


def _unit(signal: Tensor) -> Tensor:
    """Return a signal of length 1 per sample; zero where the signal is, NaN where it, or its length, is not finite."""
    norms = _norms(signal)
    return signal / _shaped(norms.where(norms.isfinite(), torch.nan).where(norms != 0, 1.0), signal)


def _shaped(per_sample: Tensor, like: Tensor) -> Tensor:
    return per_sample.view(-1, *[1] * (like.ndim - 1))


def _pearson(a: Float[Tensor, "batch n"], b: Float[Tensor, "batch n"]) -> tuple[Tensor, Tensor]:
    """Return the correlation per sample, and where there is none since a or b does not vary."""
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    lengths = a.norm(dim=1) * b.norm(dim=1)
    return (a * b).sum(1) / lengths, lengths == 0


def _mean_of(parts: Sequence[tuple[Tensor, Tensor, Tensor]], step: bool) -> tuple[float | None, int, int]:
    """Return (the mean over samples, how many have no value of their own, how many are left out).

    A sample without a signal counts as 0. There is no mean where a value is not finite, nor, unless it is of a `step`
    along the credit, where no sample has a signal.
    """
    values, none, left = (torch.cat(each).cpu() for each in zip(*parts))
    kept = values.double().where(~none, 0.0)[~left]
    some_signal = step or bool((~none & ~left).any())
    mean = float(kept.mean()) if some_signal and len(kept) and bool(kept.isfinite().all()) else None
    return mean, int((none | left).sum()), int(left.sum())
