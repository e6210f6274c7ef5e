"""What plans will cost on this machine, from a calibration of about ten seconds: a few steps of every kind of run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from walkback.audit import store
from walkback.audit.plans import Plan
from walkback.data import SOURCES, Dataset, Split, load, root_of
from walkback.progress import track
from walkback.training.setup import PROBE_BATCHES, batches, build_net, build_rule, learning, threads
from walkback.training.spec import RunSpec
from walkback.training.step import TrainingStep

BUDGET = 10.0  # seconds for all kinds together
ENOUGH = 0.5  # seconds for any one
IMAGES = 512  # to time steps on, or a batch if that is larger
PASSES = 1.5  # a probe batch is measured with a forward, a backward and the rule's credit: about this many steps
FORWARD = 1 / 3  # of a step: what a test sample costs next to a training sample


@dataclass(frozen=True)
class Cost:
    """What is known of a plan before it is run; hours are those of one core."""

    plan: Plan
    finished: int
    cpu_hours: float
    cpu_hours_left: float

    def to_dict(self) -> dict[str, Any]:
        p = self.plan
        return {
            "plan": p.name,
            "about": p.about,
            "runs": len(p.specs),
            "models": p.models,
            "settings": p.settings,
            "finished": self.finished,
            "cpu_hours": round(self.cpu_hours, 6),
            "cpu_hours_left": round(self.cpu_hours_left, 6),
        }


@dataclass(frozen=True)
class Listing:
    """Plans as a list: runs, how many of them are finished in the store `out`, and what they cost."""

    out: Path
    rows: list[dict[str, Any]]

    @staticmethod
    def of(plans: Sequence[Plan], out: Path, root: Path | None) -> Listing:
        return Listing(out, [cost.to_dict() for cost in costs(plans, out, root)])

    def to_dict(self) -> dict[str, Any]:
        return {"out": str(self.out), "plans": self.rows}

    def __str__(self) -> str:
        head = ["plan", "runs", "models", "settings", "finished", "CPU-hours", "left", "about"]
        keys = [*head[:5], "cpu_hours", "cpu_hours_left", "about"]
        cells = [[f"{row[key]:.1f}" if "hours" in key else row[key] for key in keys] for row in self.rows]
        align = ("left", *["right"] * 6, "left")
        table = tabulate(cells, head, maxcolwidths=[None] * 7 + [56], disable_numparse=True, colalign=align)
        return (
            f"{table}\n\nruns: models and the frozen controls that D3 compares them with; finished: in {self.out}; "
            "CPU-hours: of one core of\n"
            "this machine when it does nothing else, for all runs and for those that are left"
        )


def costs(plans: Sequence[Plan], out: str | Path = "runs", root: str | Path | None = None) -> list[Cost]:
    """Count and estimate each plan; what is finished in the store `out` costs nothing more."""
    specs = list(dict.fromkeys(spec for plan in plans for spec in plan.specs))
    seconds = calibrate(specs, root)
    states = {spec: store.listed(out, spec) for spec in specs}
    gone = {spec: _epochs_gone(out, spec, kind) for spec, kind in states.items()}
    found = []
    for plan in plans:
        hours = {spec: seconds[kind(spec)] / 3600 for spec in plan.specs}  # of an epoch
        left = sum((spec.epochs - gone[spec]) * h for spec, h in hours.items())
        done = sum(states[spec] == "finished" for spec in hours)
        found.append(Cost(plan, done, sum(spec.epochs * h for spec, h in hours.items()), left))
    return found


def _epochs_gone(out: str | Path, spec: RunSpec, state: str) -> int:
    if state == "finished":  # it may have diverged before its last epoch
        return spec.epochs
    return min(int(store.progress(out, spec).get("epoch", 0)), spec.epochs) if state == "begun" else 0


def kind(spec: RunSpec) -> str:
    """Return the kind of a run; runs of one kind take the same time per epoch."""
    s = spec
    return str((s.net, s.net_options, s.data, s.rule, s.rule_options, s.scope, s.augment, s.optimiser.batch_size))


def calibrate(specs: Iterable[RunSpec], root: str | Path | None = None, budget: float = BUDGET) -> dict[str, float]:
    """Return the seconds per epoch of every kind of run, on one thread of this machine.

    Args:
        specs: the runs; one of each kind is tried, on random images where the data set is one of files.
        root: where data sets of your own are.
        budget: seconds to spend; slow kinds get one step each whatever it says.

    >>> list(calibrate([RunSpec(net="student", data="teacher-linear", epochs=1)], budget=0.1))[0][:10]
    "('student'"
    """
    kinds = {kind(spec): spec for spec in specs}
    found: dict[str, float] = {}
    largest: dict[str, int] = {}
    for spec in kinds.values():
        largest[spec.data] = max(largest.get(spec.data, IMAGES), spec.optimiser.batch_size)
    with threads(1):
        shares = {name: _sample(name, root, size) for name, size in largest.items()}
        until = time.perf_counter() + budget
        for key, spec in track(kinds.items(), "timing a few steps of each kind of run", len(kinds)):
            data, train_size, test_size = shares[spec.data]
            share = (until - time.perf_counter()) / (len(kinds) - len(found))
            step = _seconds_per_step(spec, data, min(share, ENOUGH))
            size = spec.optimiser.batch_size
            found[key] = step * (train_size / size + FORWARD * test_size / size + PASSES * PROBE_BATCHES * 128 / size)
    return found


def _sample(name: str, root: str | Path | None, count: int) -> tuple[Dataset, int, int]:
    """Return data to time steps on (`count` random images where the true ones are in files) and its splits' sizes."""
    source = SOURCES.get(name)
    if source is None:
        data = load(name, root_of(name, root))
        return data, len(data.train), len(data.test)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (count, *source.shape), generator=generator, dtype=torch.uint8)
    split = Split(x, torch.randint(source.classes, (count,), generator=generator))
    return Dataset(name, split, split, source.classes, source.mean, source.std), source.train_size, source.test_size


def _seconds_per_step(spec: RunSpec, data: Dataset, budget: float) -> float:
    """Return the best of the steps that fit into the budget: on a busy machine it is closest to what a step costs.

    The first step is not timed: it imports and allocates what the others find there, for seconds where they take
    milliseconds.
    """
    net = build_net(spec, data)
    rule = build_rule(spec, data, net)
    parts, optimiser = learning(spec, net, rule)
    step = TrainingStep.of(spec, parts, rule)

    def timed() -> Iterator[float]:
        while True:
            before = time.perf_counter()
            for x, y in batches(spec, data, 1, torch.device("cpu")):
                optimiser.zero_grad(set_to_none=True)
                step(x, y)
                optimiser.step()
                now = time.perf_counter()
                yield now - before
                before = now

    steps = timed()
    next(steps)
    until = time.perf_counter() + budget
    best = next(steps)
    while time.perf_counter() < until:
        best = min(best, next(steps))
    return best
