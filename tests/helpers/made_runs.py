"""Run records written by hand, in the format a training run leaves: what is in them is known."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from walkback.measures.over_sites import concentration
from walkback.report.formats.logged import judge
from walkback.training.bundle import SCHEMA
from walkback.training.spec import RunSpec

SAMPLES = 1000
HEALTHY = {"h": (9.0, 9.9, 10.9, 12.0, 13.2), "g": (4e-4,) * 5, "cosine": (1.0,) * 5}
EXPLODED = {"h": (1e4, 2e6, 2e6, 2e6, 4e8), "g": (4e-7, 4e-9, 4e-9, 4e-9, 4e-9), "cosine": (0.42, 0.0, 0.0, 0.0, 0.0)}


def right(acc: float, samples: int = SAMPLES, shift: int = 0) -> np.ndarray:
    """(N,) with a share `acc` of right samples, starting at `shift`."""
    out = np.zeros(samples, dtype=bool)
    out[: round(acc * samples)] = True
    return np.roll(out, shift)


def row(
    epoch: int,
    acc: float = 0.1,
    h: Sequence[float] = HEALTHY["h"],
    g: Sequence[float] = HEALTHY["g"],
    cosine: Sequence[float] = HEALTHY["cosine"],
    stability: float = 0.1,
    weights: float | Sequence[float] = 1.0,
    product: float | Sequence[float] = 100.0,
    loss: float | None = None,
    **more: Any,
) -> dict[str, Any]:
    """One epoch of a trajectory."""
    deep = cosine[1:-1] if cosine[-1] == 1.0 else cosine[1:]
    blocks = len(h) - 1
    grown, products = ([v] * blocks if isinstance(v, float) else list(v) for v in (weights, product))
    return {
        "epoch": epoch,
        "train_loss": loss,
        "test_loss": 2.0,
        "test_acc": acc,
        "per_layer": {
            "h_norm": list(h),
            "g_norm": list(g),
            "cosine": list(cosine),
            "cosine_clamped": list(cosine),
            "below_eps": [0.0] * len(h),
            "cosine_above": [*(0.9 * c for c in cosine[:-1]), None],
            "cosine_below": [None, *(0.9 * c for c in cosine[1:])],
        },
        "values": {
            "growth": max(b / a for a, b in pairwise(h)),
            "growth_total": h[-1] / h[0],
            "stability": stability,
            "gamma": sum(cosine[:-1]) / (len(cosine) - 1),
            "gamma_concentration": concentration(cosine[:-1]),
            "deep_cosine": sum(deep) / len(deep),
        },
        "aggregates": {"layers": 0.0, "samples": 0.0, "batches": 0.0, "flattened": 0.0},
        "weights": {
            "growth": [[w, w] for w in grown],
            "product_frobenius": products,
            "product_spectral": [p / 2 for p in products],
        },
        "reasons": {},
        **more,
    }


def write_run(
    store: Path,
    spec: RunSpec,
    acc: float = 0.5,
    *,
    correct: np.ndarray | None = None,
    at: Callable[[int], Mapping[str, Any]] | None = None,
    fresh: Mapping[str, tuple[float, float]] | None = None,
    perturbation: Sequence[float] | None = None,
    nudging: Sequence[float] | None = None,
    controls: Mapping[str, Sequence[float]] | None = None,
    loss_delta: float = -0.1,
    classes: int = 10,
    **last: Any,
) -> Path:
    """A finished run.

    Args:
        acc: of the last epoch.
        correct: which test samples are right; by default the first ones.
        at: epoch -> keywords of `row` for the trajectory; by default every epoch is as the last.
        fresh: quantity -> (mean, std) with fresh feedback.
        last: keywords of `row` for the last epoch, which are the report's too.
    """
    correct = right(acc) if correct is None else correct
    acc = float(correct.mean())
    rows = [row(e, **{**last, "acc": acc, **(at(e) if at else {})}) for e in range(spec.epochs + 1)]
    rows[-1] = row(spec.epochs, acc, **last)
    sites = len(rows[-1]["per_layer"]["h_norm"])
    per_layer = dict(rows[-1]["per_layer"])
    per_layer["perturbation"] = list(perturbation or rows[-1]["per_layer"]["cosine"])
    per_layer["nudging"] = list(nudging or [-1e-4] * sites)
    per_layer["nudging_relative"] = [10 * v for v in per_layer["nudging"]]
    per_layer["nudging_rms"] = [16 * v for v in per_layer["nudging"]]
    report = judge({"per_layer": per_layer, "values": rows[-1]["values"], "headline_acc": acc, "method": spec.rule})
    run = {
        "epochs": spec.epochs,
        "initial": rows[0],
        "diverged": None,
        "train_loss_delta": loss_delta,
        "weight_growth": [[w * (spec.scope == "all") for w in ws] for ws in rows[-1]["weights"]["growth"]],
        "rule": {},
        "fresh_feedback": None
        if fresh is None
        else {"draws": 20, **{k: {"mean": m, "std": s} for k, (m, s) in fresh.items()}},
        "float64": {"gradient_off": [0.0] * sites, "absorbed": [0.0] * (sites - 1)},
        "test_correct": base64.b64encode(np.packbits(correct).tobytes()).decode(),
    }
    found = {
        "perturbation_bp": [0.999] * sites,
        "perturbation_random": [0.001] * sites,
        "nudging_bp": [-1e-3] * sites,
        "nudging_bp_relative": [-1e-2] * sites,
        "nudging_bp_rms": [-1.6e-2] * sites,
        **{k: list(v) for k, v in (controls or {}).items()},
    }
    folder = store / spec.name
    folder.mkdir(parents=True)
    fields = {"schema": SCHEMA, **spec.model_dump(), "input_shape": [3, 32, 32], "classes": classes}
    (folder / "spec.json").write_text(json.dumps(fields, indent=2) + "\n")
    machine = {"walkback": "0", "torch": "2", "python": "3", "machine": "none", "threads": 1, "device": "cpu"}
    (folder / "machine.json").write_text(json.dumps(machine) + "\n")
    (folder / "trajectory.jsonl").write_text("\n".join(json.dumps(r) for r in rows[1:]) + "\n")
    replace(report, run=run, controls=found).save(folder / "report.json")
    return folder
