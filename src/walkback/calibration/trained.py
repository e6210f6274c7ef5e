"""Networks broken by training: short runs of DFA, FA and EP whose answers are known by outcome.

Nothing is done to these networks but training them. Credit is raw, of unit length or of rms length, with and without a
terminal norm, at small widths and several rates; one in ten is trained by BP. What is known of each:

- `off`, `rounded`: how far the cosine that scripts report, and one without ε, are from that of the same credit with the
  float64 gradient, at the worst site 1…L;
- `gain`: what the trained blocks are worth by `walkback.depth`: blocks drawn anew, both readouts refitted, on fresh
  samples. D3 does not see any of it: it compares with a control whose blocks stayed frozen, on other samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from walkback.api import measure
from walkback.calibration.rows import row
from walkback.calibration.zoo import CLASSES, _drifts, _gradients, _mean, _plain_cosine, _reported, _task
from walkback.data.dataset import Dataset, Split
from walkback.measures.depth import depth
from walkback.rules.rule import Rule
from walkback.tracing.session import Tracer
from walkback.training import setup
from walkback.training.control import control_spec
from walkback.training.rows import evaluate
from walkback.training.spec import RunSpec
from walkback.training.step import TrainingStep
from walkback.verdict.statistics import paired_counts

RULES: dict[str, dict[str, Any]] = {"dfa": {}, "fa": {}, "ep": {"steps": 6}, "bp": {}}
LENGTHS = ("raw", "unit", "rms")
FIT, COMPARE = 800, 3000  # samples that readouts are refitted on, and that blocks are compared on


def specs(count: int, seed: int = 0) -> list[RunSpec]:
    """Return `count` runs: every rule with every length of credit, with and without a terminal norm, in turn.

    Width, depth, rate, length of training and the seed of each are drawn.
    """
    draw = np.random.RandomState(seed)
    cells = [(rule, length, norm) for rule in RULES for length in LENGTHS for norm in (True, False)]
    cells = [cell for cell in cells if cell[0] != "bp" or cell[1] == "raw"]  # BP has no local credit
    found = []
    for number in range(count):
        rule, length, norm = cells[number % len(cells)]
        width, blocks, rate = draw.choice([16, 32]), draw.choice([2, 3]), draw.choice([1e-3, 1e-2, 3e-2, 1e-1])
        net = {"width": int(width), "depth": int(blocks), "terminal_norm": norm}
        found.append(
            RunSpec(
                data="walkback.calibration.trained:task",
                rule=rule,
                rule_options=RULES[rule],
                credit_length=length,
                net_options=net,
                epochs=int(draw.choice([1, 2, 5])),
                seed=int(draw.randint(2**31)),
                optimiser={"lr": float(rate)},
            )
        )
    return found


def task() -> Dataset:
    """Return the task of the constructed networks as a data set."""
    parts = _task()
    return Dataset("zoo", *(Split(parts[k][0].float(), parts[k][1]) for k in ("train", "test")), classes=CLASSES)


def row_of(spec: RunSpec) -> dict[str, Any]:
    """Train a network and its control, measure the network, and find out what is true of it."""
    data = task()
    net, rule, right = _train(spec, data)
    _, _, frozen = _train(control_spec(spec), data)
    parts, exact = _task(), deepcopy(net).double()
    probes = [_batches(*parts[name]) for name in ("probe", "other probe")]
    with Tracer(net) as tracer:
        credits = [[a.double().flatten(1) for a in tracer.trace(x, y, rule).credits or ()] for x, y in probes[0]]
    truth = _true_cosines(exact, probes[0], credits)
    reported, plain = _reported(net, probes[0], credits)
    seen, unseen = _batches(*parts["train"], FIT, FIT), _batches(*parts["fresh"], COMPARE, 2000)
    worth = depth(net, seen, unseen, draws=3)
    return row(
        spec.name,
        [measure(net, batches, credit=rule, probes=("intrinsic",)) for batches in probes],
        accuracy=float(right.double().mean()),
        frozen=float(frozen.double().mean()),
        paired=paired_counts((right.numpy(), frozen.numpy())),
        reported=float(np.mean(reported[:-1])),
        off=_worst(reported, truth),
        rounded=_worst(plain, truth),
        gain=worth.worth_pp,
        drifts=_drifts(exact),
        spec=spec.model_dump(exclude_defaults=True),
    )


def _train(spec: RunSpec, data: Dataset) -> tuple[nn.Module, Rule, Tensor]:
    """Return the network in eval mode, its rule, and which test samples it gets right."""
    run = setup.start(spec, data, torch.device("cpu"))
    step = TrainingStep.of(spec, run.parts, run.rule)
    run.net.train()
    for epoch in range(1, spec.epochs + 1):
        setup.set_rate(run.optimiser, spec, epoch)
        with run.drawn(epoch):
            for x, y in setup.batches(spec, data, epoch, run.device):
                run.optimiser.zero_grad(set_to_none=True)
                step(x, y)
                run.optimiser.step()
    return run.net.eval(), run.rule, evaluate(run.net, data, data.test, run.device)[0]


def _batches(x: Tensor, y: Tensor, count: int = 1024, size: int = 128) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x[:count].float().split(size), y[:count].split(size)))


def _true_cosines(
    exact: nn.Module, batches: Sequence[tuple[Tensor, Tensor]], credits: Sequence[Sequence[Tensor]]
) -> list[float]:
    """Return per site the mean cosine of the credits with the float64 gradient of the same weights."""
    found = [
        [_plain_cosine(a, g) for a, g in zip(credit, _gradients(exact, x.double(), y))]
        for (x, y), credit in zip(batches, credits)
    ]
    return [_mean(values) for values in zip(*found)]


def _worst(values: Sequence[float], truth: Sequence[float]) -> float:
    pairs = list(zip(values, truth))[1:]
    return max(abs(a - b) if isfinite(a) and isfinite(b) else float("inf") for a, b in pairs)
