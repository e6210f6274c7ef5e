"""A store with runs for every figure and table, its numbers made up in the shape of the published ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from made_runs import write_run
from walkback.training.control import control_spec
from walkback.training.spec import RunSpec

# Rule -> accuracy, accuracy of its control, ‖h_L‖, largest growth of a block, ‖g_L‖, cosines, stability.
LAST: dict[str, tuple[float, float, float, float, float, tuple[float, ...], float]] = {
    "bp": (0.610, 0.450, 2e2, 1.3, 4e-4, (1.0,) * 5, 0.10),
    "fa": (0.372, 0.365, 1e5, 62.0, 9e-7, (0.01, 0.05, 0.20, 0.60, 1.0), 0.08),
    "dfa": (0.306, 0.350, 4e8, 237.0, 4.2e-9, (0.42, 0.01, -0.01, 0.00, 0.02), 0.16),
    "state-bridge": (0.205, 0.340, 3e8, 1.2e4, 1.1e-9, (0.02, 0.01, 0.00, -0.01, 0.00), 0.53),
    "credit-bridge": (0.289, 0.345, 2e8, 96.0, 1.5e-9, (0.25, 0.02, 0.01, 0.00, 0.00), 0.37),
    "ep": (0.316, 0.349, 5e3, 11.6, 1.3e-4, (0.010, 0.008, 0.008, 0.006, 0.005), 0.02),
}
OPTIONS = {"ep": {"steps": 2}}
FRESH = {"gamma": (0.001, 0.005), "deep_cosine": (-0.005, 0.018)}
# DFA, FA and BP under the penalty: accuracy, ‖h_L‖, ‖g_L‖, deep cosine.
SWEEP = {
    ("dfa", 0.0): (0.300, 4e7, 2e-8, 0.0),
    ("dfa", 1e-4): (0.359, 2.4e4, 5e-6, -0.02),
    ("dfa", 1e-3): (0.372, 3e4, 6e-6, 0.08),
    ("dfa", 1e-2): (0.363, 4e4, 7e-6, 0.155),
    ("dfa", 1e-1): (0.349, 1.2e4, 1.3e-5, 0.131),
    ("fa", 0.0): (0.372, 9e4, 2e-6, 0.325),
    ("fa", 1e-4): (0.377, 9e3, 1e-5, 0.298),
    ("fa", 1e-2): (0.369, 1e4, 2e-5, 0.423),
    ("bp", 0.0): (0.585, 2e2, 4e-4, 1.0),
    ("bp", 1e-2): (0.532, 1e2, 5e-4, 1.0),
    ("state-bridge", 1e-2): (0.453, 2e3, 4e-5, 0.322),
    ("credit-bridge", 1e-2): (0.360, 3e3, 4e-5, 0.679),
}
NUDGES = {"dfa": (-4.98e-5, -0.095), "fa": (-2.09e-4, -0.128), "bp": (-2e-3, -0.5),
          "state-bridge": (-1.93e-3, -0.447), "credit-bridge": (-4.26e-4, -0.121)}  # fmt: skip


def profile(last: float, growth: float, sites: int) -> tuple[float, ...]:
    """‖h‖ over the sites: the first block multiplies by `growth`, the others by what is left of a mild rise."""
    first = last / growth / 1.05 ** (sites - 2)
    return (first, *(first * growth * 1.05**i for i in range(sites - 1)))


def course(acc: float, h: Sequence[float], g: Sequence[float], cosine: Sequence[float], pace: float) -> Callable:
    """Epoch -> the row between a common start and the given end."""

    def at(epoch: int) -> dict[str, Any]:
        share = 1 - math.exp(-epoch / pace)
        return {
            "acc": 0.1 + (acc - 0.1) * (1 - math.exp(-epoch / 2)) if epoch else 0.1,
            "h": [9.0 * 1.05**i * (end / (9.0 * 1.05**i)) ** share for i, end in enumerate(h)],
            "g": [7e-3 * (end / 7e-3) ** share for end in g],
            "cosine": [c * min(1, epoch) for c in cosine] if cosine[0] != 1.0 else cosine,
            "weights": 95.0 * share,
        }

    return at


def put(store: Path, spec: RunSpec, acc: float, frozen: float, bp_frozen: float | None = None, **last: Any) -> None:
    """A run and the controls it lacks."""
    write_run(store, spec, acc, **last)
    for stem, value in (("rule", frozen), ("bp", bp_frozen)):
        control = control_spec(spec, stem)
        if value is not None and not (store / control.name).exists():
            write_run(store, control, value)


def trained(store: Path, spec: RunSpec, more: float = 0.0, sites: int = 5, shift: float = 0.0, **last: Any) -> None:
    """A run with the numbers of LAST, `more` moves it away from other seeds, `shift` its accuracies."""
    acc, frozen, h_last, growth, g_last, cosine, stability = LAST[spec.rule]
    h_last, g_last, growth = (v * (1 + 20 * more) for v in (h_last, g_last, growth))
    h, g = profile(h_last, growth, sites), tuple(g_last * (3 if s == 0 else 1) for s in range(sites))
    cosine = (*cosine[: sites - 1], cosine[-1])
    if spec.rule != "bp":
        cosine = tuple(c if c == 1.0 else c * (1 + 10 * more) for c in cosine)
    numbers = {"h": h, "g": g, "cosine": cosine, "stability": stability, **last}
    at = course(acc + more + shift, numbers["h"], numbers["g"], numbers["cosine"], 3.0)
    fresh = None if spec.rule in ("bp", "ep") else FRESH
    put(store, spec, acc + more + shift, frozen + 0.9 * more + shift, 0.45 + 0.9 * more + shift, at=at, fresh=fresh,
        weights=95.0, **numbers)  # fmt: skip


def full_store(store: Path, seeds: Sequence[int] = (42, 123, 456), augmented: Sequence[bool] = (False,)) -> Path:
    """Runs for every figure: `seeds` of the primary setting and the penalty, one seed of every other network."""
    for augment in augmented:
        extra = 0.03 if augment else 0.0
        for i, seed in enumerate(seeds):
            more = 0.004 * i
            base = {"seed": seed, "augment": augment}
            for rule in LAST:
                spec = RunSpec(rule=rule, rule_options=OPTIONS.get(rule, {}), **base)
                trained(store, spec, more, shift=extra)
            for (rule, penalty), (acc, h_last, g_last, cosine) in SWEEP.items():
                nudge, delta = NUDGES[rule]
                h, g = profile(h_last, 40.0, 5), (g_last,) * 5
                cosines = (1.0,) * 5 if rule == "bp" else (0.4, *(cosine + more,) * 3, 1.0 if rule == "fa" else cosine)
                put(store, RunSpec(rule=rule, penalty=penalty, epochs=30, **base), acc + more + extra,
                    0.349 + more + extra, 0.43 + more + extra, at=course(acc + extra, h, g, cosines, 2.0),
                    fresh=FRESH, nudging=(0.0, *(nudge,) * 4), loss_delta=delta, h=h, g=g, cosine=cosines)  # fmt: skip
            write_run(store, RunSpec(rule="dfa", epochs=1, **base), 0.3, h=(1e3,) * 5, g=(1e-5,) * 5,
                      cosine=(0.40, -0.02, 0.01, -0.03, 0.02), perturbation=(0.4, 0.0, 0.0, 0.0, 0.004))  # fmt: skip
        base = {"seed": seeds[0], "augment": augment}
        for rule in ("bp", "fa", "dfa"):
            trained(store, RunSpec(rule=rule, net_options={"width": 512, "depth": 2}, **base), sites=3, shift=extra)
            trained(store, RunSpec(rule=rule, net_options={"width": 512}, **base), shift=extra)
            trained(store, RunSpec(rule=rule, net_options={"terminal_norm": False}, **base), g=(2e-4,) * 5, shift=extra)
            trained(store, RunSpec(rule=rule, net="vit-mini", epochs=30, **base), shift=extra)
            if not augment or len(augmented) == 1:
                trained(
                    store, RunSpec(rule=rule, net="student", data="teacher", epochs=20, seed=seeds[0]), g=(2e-3,) * 5
                )
        for rule in LAST:
            spec = RunSpec(rule=rule, net="small-cnn", epochs=30, rule_options=OPTIONS.get(rule, {}), **base)
            trained(store, spec, g=(3e-4,) * 5, shift=extra)
    return store
