"""What is measured of a run: a row after every epoch, and more after the last one."""

from __future__ import annotations

import copy
import math
import platform
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from walkback.api import measure
from walkback.data import Dataset, Split
from walkback.measures.accumulate import MeanCosine
from walkback.measures.precision import FLOAT64
from walkback.measures.quantities import QUANTITIES, ROW_LISTS, ROW_SCALARS
from walkback.notes import Note
from walkback.rules.rule import Rule, refuse_inexact
from walkback.tracing.session import Tracer
from walkback.training.setup import Run
from walkback.version import __version__

# Those that a report must have come first, as they do in every row that was written so far.
_LISTS = sorted(ROW_LISTS, key=lambda name: not QUANTITIES[name].required)


@torch.no_grad()
def evaluate(net: nn.Module, data: Dataset, split: Split, device: torch.device) -> tuple[Tensor, float]:
    """Return (N,) which samples are right, and the mean loss, in eval mode."""
    mode = net.training
    net.eval()
    right, losses = [], []
    for start in range(0, len(split), 1000):
        x, y = data.prepare(split.x[start : start + 1000].to(device)), split.y[start : start + 1000].to(device)
        logits = net(x)
        right.append((logits.argmax(1) == y).cpu())
        losses.append(F.cross_entropy(logits.cpu().double(), y.cpu(), reduction="none"))
    net.train(mode)
    return torch.cat(right), float(torch.cat(losses).mean())


def measured_row(run: Run, epoch: int, train_loss: float | None) -> dict[str, Any]:
    """Return the row of an epoch: losses, accuracy and what `measure` says on the probe set, in six digits."""
    refuse_inexact(run.rule, run.net, *run.probe[0])  # what a rule gives may change while it trains
    right, test_loss = evaluate(run.net, run.data, run.data.test, run.device)
    m = measure(run.net, run.probe, credit=run.rule)
    diverged = bool(m.nonfinite) or (train_loss is not None and not math.isfinite(train_loss))
    row = {
        "epoch": epoch,
        "train_loss": _some(train_loss),
        "test_loss": _some(test_loss),
        "test_acc": float(right.double().mean()),
        "per_layer": {k: getattr(m, k) for k in _LISTS},
        "values": {k: getattr(m, k) for k in ROW_SCALARS},
        "aggregates": m.aggregates,
        "weights": weight_growth(run),
        "reasons": {k: m.reasons[k] for k in (*_LISTS, *ROW_SCALARS, "aggregates") if k in m.reasons},
    }
    if m.h_norm_all:  # growth is taken over these: whoever reads the row must know
        row["per_layer"]["h_norm_all"] = m.h_norm_all
    shapes = m.conditions["state_shapes"]
    if any(shape != shapes[0] for shape in shapes):  # growth is taken within stages: whoever reads the row must know
        row["conditions"] = {"state_shapes": shapes}
    if diverged:
        row["diverged"] = f"epoch {epoch}: {m.nonfinite[0].text if m.nonfinite else 'training loss not finite'}"
        row["nonfinite"] = [{**note.values, "site": note.site} for note in m.nonfinite]
    return _rounded(row)


def _rounded(value: Any) -> Any:
    """Return numbers with six significant digits: a trajectory is read by people and kept for years."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return [_rounded(v) for v in value] if isinstance(value, list) else value


@torch.no_grad()
def weight_growth(run: Run) -> dict[str, Any]:
    """Return ‖w − w₀‖/‖w₀‖ per block weight, and per block the product of its weights' norms, Frobenius, spectral."""
    names = {id(p): name for name, p in run.net.named_parameters()}
    out: dict[str, Any] = {"growth": [], "product_frobenius": [], "product_spectral": []}
    for block in run.parts.blocks:
        weights = [p for p in block.parameters() if p.ndim >= 2]
        first = [run.first_weights[names[id(p)]] for p in weights]
        moved = [float((p.cpu() - w0).double().norm() / w0.double().norm()) for p, w0 in zip(weights, first)]
        out["growth"].append([_some(m) for m in moved])
        out["product_frobenius"].append(_some(math.prod(float(p.cpu().double().norm()) for p in weights)))
        finite = all(bool(torch.isfinite(p).all()) for p in weights)
        norms = [float(torch.linalg.matrix_norm(p.flatten(1), ord=2)) for p in weights] if finite else [math.nan]
        out["product_spectral"].append(_some(math.prod(norms)))
    return out


def _some(x: float | None) -> float | None:
    return x if x is not None and math.isfinite(x) else None


def zero_credit_notes(rows: list[dict[str, Any]]) -> list[Note]:
    """Return one note for all sites that went without credit in equally many epochs, from the rows of a run."""
    trained = [row for row in rows if row["epoch"] > 0]
    count = Counter(site for row in trained for site in row.get("zero_credit_sites", ()))
    by_epochs = {n: sorted(s for s in count if count[s] == n) for n in sorted(set(count.values()), reverse=True)}
    told = ({"sites": sites, "epochs": n, "of": len(trained)} for n, sites in by_epochs.items())
    return [Note("zero-credit-epochs", None, values) for values in told]


def fresh_null(
    net: nn.Module, rule: Rule, probe: list[tuple[Tensor, Tensor]], generator: torch.Generator, draws: int
) -> dict[str, Any] | None:
    """Return deep cosine and Γ with the feedback drawn anew, mean and standard deviation; None without feedback."""
    stranger, found, traces = copy.deepcopy(rule), [], []
    for _ in range(draws):
        with torch.no_grad():
            if not stranger.redraw(generator):
                return None
        if not traces:  # the network stays, so one pass over the probe set serves every draw
            with Tracer(net) as tracer:
                traces = [tracer.trace(x, y) for x, y in probe]
        cosine = MeanCosine()
        for trace in traces:
            cosine.update(replace(trace, credits=tuple(a.detach() for a in stranger(trace))))
        found.append(cosine.result())
    out: dict[str, Any] = {"draws": draws}
    for name in ("gamma", "deep_cosine"):
        values = [one[name] for one in found]
        if None not in values:
            out[name] = {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1))}
    return out


def machine(device: torch.device) -> dict[str, Any]:
    """Return what a result was made on."""
    return {
        "walkback": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": _processor(),
        "threads": torch.get_num_threads(),
        "device": str(device),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def float64_check(net: nn.Module, probe: list[tuple[Tensor, Tensor]]) -> dict[str, Any] | None:
    """Return per site 1 − cos(g, g in float64), and per block the share of f_l that h + f_l loses to rounding.

    None where the network can't run in float64.
    """
    m = measure(net, probe, probes=("intrinsic",))
    if m.conditions["intrinsic"]["method"] != FLOAT64:
        return None
    return {"gradient_off": m.float64_disagreement, "absorbed": m.absorption[1:]}
