"""RunSpec -> Bundle: train a network with a rule, measure it after every epoch, survive anything.

All randomness is drawn from (seed, purpose, epoch), so a run that is killed at any moment goes on from its last
finished epoch and ends with the same bytes.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import math
import platform
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from walkback import nets, rules
from walkback.api import diagnose, measure
from walkback.data import Dataset, Split, load
from walkback.data.dataset import checked
from walkback.errors import InputError, cut, shown
from walkback.measures.accumulate import Measurements
from walkback.network.values import widest
from walkback.notes import Note
from walkback.progress import Show, epochs, quietly, say
from walkback.rules.rule import Parts, Rule, declares, refuse_inexact, set_up
from walkback.tracing.untouched import drawn_from
from walkback.training.bundle import SCHEMA, Bundle, load_bundle
from walkback.training.folder import CHECKPOINT, PROGRESS, owned, reading_checkpoint, reopen, spec_text, tidy, write
from walkback.training.precision import float64_check
from walkback.training.spec import RunSpec
from walkback.training.step import Step
from walkback.version import __version__

PROBE_BATCHES, PROBE_SIZE = 8, 128
FRESH_DRAWS = 20
PROBES = ("perturbation", "nudging", "intrinsic")  # of the report after the last epoch
ROW_LISTS = ("h_norm", "g_norm", "cosine", "cosine_clamped", "below_eps", "cosine_above", "cosine_below")
ROW_VALUES = ("growth", "growth_total", "stability", "gamma", "gamma_concentration", "deep_cosine")


@dataclass
class _Run:
    """The moving parts of a run."""

    spec: RunSpec
    data: Dataset
    net: nn.Module
    rule: Rule
    parts: Parts
    optimiser: torch.optim.Optimizer
    first_weights: dict[str, Tensor]
    probe: list[tuple[Tensor, Tensor]]
    rows: list[dict[str, Any]]
    device: torch.device


def train(
    spec: RunSpec,
    out: str | Path = "runs",
    *,
    root: str | Path | None = None,
    data: Dataset | None = None,
    device: str | torch.device = "cpu",
    quiet: bool = False,
) -> Bundle:
    """Train `spec` into `out/<spec.name>` and return the bundle; a finished run is returned as it is.

    Args:
        spec: what to train.
        out: the store of runs.
        root: where the data set is.
        data: a loaded data set, instead of looking for it.
        device: where to train.
        quiet: no progress on standard error.

    >>> import tempfile, walkback as wb
    >>> x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    >>> split = wb.data.Split(x, (x[:, 0] > 0).long())
    >>> mine = wb.data.Dataset("mine", split, split, classes=2)
    >>> spec = wb.RunSpec(data="mine:data", rule="dfa", epochs=2, net_options={"width": 8, "depth": 2})
    >>> with tempfile.TemporaryDirectory() as store:
    ...     run = train(spec, store, data=mine, quiet=True)
    ...     [row["epoch"] for row in run.trajectory()], run.report().verdict
    ([1, 2], 'undecided')
    """
    folder = Path(out) / spec.name
    if (done := reopen(folder, spec)) is not None:
        return done
    with quietly(quiet):
        run = _start(spec, load(spec.data, root) if data is None else checked(data), usable(device))
        with owned(folder, quiet):  # another process may finish it while we wait
            return reopen(folder, spec) or _train(run, folder)


def _train(run: _Run, folder: Path) -> Bundle:
    spec = run.spec
    write(folder / "spec.json", spec_text(spec, run.data.input_shape, run.data.classes) + "\n")
    with reading_checkpoint(folder):
        done = _resume(run, folder)
    if not run.rows:
        with _drawn(run, 0):
            run.rows = [_row(run, 0, None)]
    clock = time.monotonic()
    with epochs(spec.name, done, spec.epochs, _numbers(run.rows)) as show:
        for epoch in range(done + 1, spec.epochs + 1):
            if epoch > 1 and run.rows[-1].get("diverged"):
                break
            with _drawn(run, epoch):
                loss, without_credit = _epoch(run, epoch, show)
                row = _row(run, epoch, loss)
            if without_credit:
                if all(earlier.get("zero_credit_sites") != without_credit for earlier in run.rows):
                    say(_no_credit(run, epoch, without_credit), alarm=True)
                row["zero_credit_sites"] = without_credit
            run.rows.append(row)
            _checkpoint(run, folder, epoch)
            _progress(run, folder, (time.monotonic() - clock) / (epoch - done))
            show(epoch, _numbers(run.rows))
    with _drawn(run, spec.epochs + 1):
        return _finish(run, folder)


def _drawn(run: _Run, epoch: int) -> AbstractContextManager[None]:
    """What a network or a rule draws from the global generators (dropout, noise) follows from seed and epoch too."""
    return drawn_from(seeded(run.spec.seed, "global", epoch).initial_seed(), run.device)


# -- set-up --------------------------------------------------------------------------------------------------


def seeded(seed: int, purpose: str, epoch: int = 0) -> torch.Generator:
    """A generator of its own for each purpose and epoch."""
    digest = hashlib.sha256(f"{seed}:{purpose}:{epoch}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def build_net(spec: RunSpec, data: Dataset) -> nn.Module:
    """The network of a spec at its initialisation."""
    with drawn_from(spec.seed):
        return nets.build(spec.net, data.input_shape, data.classes, **spec.net_options)


def build_rule(spec: RunSpec, data: Dataset, net: nn.Module) -> Rule:
    """The rule of a spec, set up for a network on the CPU."""
    generator = seeded(spec.seed, "rule")
    with drawn_from(generator.initial_seed()):  # for a rule that does not draw from the generator it is given
        rule = rules.make(spec.rule, **spec.rule_options)
        rule.length = spec.credit_length
        set_up(rule, net, data.prepare(data.train.x[:2]), data.classes, generator)
    return rule


def probe_batches(data: Dataset, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """The fixed probe set: 8 disjoint batches of 128 test samples, shuffled, the same for every run."""
    size = min(PROBE_SIZE, len(data.test) // 2)
    order = torch.randperm(len(data.test), generator=seeded(0, "probe"))[: PROBE_BATCHES * size]
    x, y = data.prepare(data.test.x[order]).to(device), data.test.y[order].to(device)
    return list(zip(x.split(size), y.split(size)))


def usable(device: str | torch.device) -> torch.device:
    """The device, or an InputError where this machine has none such."""
    try:
        one = torch.zeros(1, device=device)
        one.item()  # which a device without values, such as meta, refuses
        return one.device
    except (RuntimeError, AssertionError) as error:
        text = cut(str(error).splitlines()[0], 300)
        raise InputError(
            f"Expected a device of this machine (cpu, cuda, mps), but {shown(device)} is not: {text}"
        ) from None


def build(spec: RunSpec, data: Dataset) -> tuple[nn.Module, Rule]:
    """The network and the rule of a spec, or an InputError where it can't be trained."""
    if spec.augment and len(data.input_shape) != 3:
        raise InputError(
            f"Expected images (C, H, W) to flip and crop, but {spec.data} has inputs of shape {data.input_shape}. "
            "Leave augment out."
        )
    if spec.scope == "frozen" and (spec.penalty or spec.credit_site == "reader"):
        raise InputError("Expected neither penalty nor credit_site with frozen blocks: they have no local loss.")
    if not spec.penalty and (spec.penalty_stem or spec.penalty_over != "sum"):
        raise InputError("Expected penalty_over and penalty_stem together with a penalty, but it is 0.")
    net = build_net(spec, data)
    rule = build_rule(spec, data, net)
    if declares(rule, "exact") and spec.credit_site == "reader":
        raise InputError(f"Expected credit_site writer with {spec.rule}: each block gets its own gradient there.")
    if declares(rule, "exact") and spec.credit_length != "raw":
        raise InputError(
            f"Expected credit_length raw with {spec.rule}: it differentiates end to end, without local credits."
        )
    _all_learn(net, rule)
    return net, rule


def _all_learn(net: nn.Module, rule: Rule) -> None:
    parts = Parts.of(net)
    reached = {id(p) for module in (parts.stem, *parts.blocks, *parts.readout_modules) for p in module.parameters()}
    lost = [name for name, p in net.named_parameters() if p.requires_grad and id(p) not in reached]
    if lost and not declares(rule, "exact"):
        raise InputError(
            f"Expected every weight in the stem, a block or the readout, where a local rule trains it, but {lost[0]} "
            "is in none of them and would stay as it is. Put it into one, or set requires_grad to False."
        )


def _start(spec: RunSpec, data: Dataset, device: torch.device) -> _Run:
    net, rule = build(spec, data)
    first = {name: p.detach().clone() for name, p in net.named_parameters()}
    net, rule = net.to(device), rule.to(device)
    parts = Parts.of(net)
    if spec.scope == "frozen":
        for block in parts.blocks:
            block.requires_grad_(False)
    o = spec.optimiser
    trained = [p for p in (*net.parameters(), *rule.parameters()) if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=o.lr, weight_decay=o.weight_decay, fused=True)
    return _Run(spec, data, net, rule, parts, optimiser, first, probe_batches(data, device), [], device)


# -- one epoch -----------------------------------------------------------------------------------------------


def batches(spec: RunSpec, data: Dataset, epoch: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """The training batches of an epoch, shuffled and augmented, normalised on the device."""
    generator = seeded(spec.seed, "order", epoch)
    order = torch.randperm(len(data.train), generator=generator)
    size = spec.optimiser.batch_size
    for start in range(0, len(order) - len(order) % size or len(order), size):
        index = order[start : start + size]
        x, y = data.train.x[index].to(device), data.train.y[index].to(device)
        yield data.prepare(augment(x, generator) if spec.augment else x), y


def augment(x: Tensor, generator: torch.Generator, pad: int = 4) -> Tensor:
    """Random horizontal flip and crop after zero padding, per sample, (B, C, H, W) of any dtype."""
    batch, _, height, width = x.shape
    flip = (torch.rand(batch, generator=generator) < 0.5).to(x.device)
    shift = torch.randint(2 * pad + 1, (batch, 2), generator=generator).to(x.device)
    padded = F.pad(torch.where(flip.view(-1, 1, 1, 1), x.flip(3), x), (pad,) * 4)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # (B, C, 2 pad + 1, 2 pad + 1, H, W), a view
    return windows[torch.arange(batch, device=x.device), :, shift[:, 0], shift[:, 1]]


def _epoch(run: _Run, epoch: int, show: Show) -> tuple[float, list[int]]:
    """Train one epoch; return its mean loss and the sites whose credit was used and zero for every sample."""
    o = run.spec.optimiser
    share = (epoch - 1) / run.spec.epochs
    lr = o.lr * (0.5 * (1 + math.cos(math.pi * share)) if o.schedule == "cosine" else 1.0)
    for group in run.optimiser.param_groups:
        group["lr"] = lr
    spec = run.spec
    step = Step.of(spec, run.parts, run.rule)
    run.net.train()
    total, count = torch.zeros((), device=run.device, dtype=widest(run.device)), 0
    steps = max(len(run.data.train) // o.batch_size, 1)
    for i, (x, y) in enumerate(batches(spec, run.data, epoch, run.device)):
        show(epoch - 1 + i / steps, "")
        run.optimiser.zero_grad(set_to_none=True)
        total += step(x, y).to(total.dtype) * len(x)
        run.optimiser.step()
        count += len(x)
    return float(total) / count, step.largest.zero_sites()


def _no_credit(run: _Run, epoch: int, sites: list[int]) -> str:
    """The warning: which sites went without credit, and what may help."""
    where = f"site{'s' if len(sites) > 1 else ''} {', '.join(map(str, sites))}"
    what = f"{run.spec.rule} gave zero credit to every sample of epoch {epoch} at {where}"
    advice = (
        f" A relaxation reaches one more site with each step: here it needs {len(run.parts.blocks) + 1} steps or more. "
        "In a stream that has grown, rounding can take its credit too."
    )
    advice = advice if declares(run.rule, "relaxes") else ""
    return f"warning: {what}: what it should train there learns nothing.{advice}"


def zero_credit_notes(rows: list[dict[str, Any]]) -> list[Note]:
    """Return one note for all sites that went without credit in equally many epochs, from the rows of a run.

    >>> rows = [{"epoch": 0}, {"epoch": 1, "zero_credit_sites": [0]}, {"epoch": 2, "zero_credit_sites": [0, 1]}]
    >>> [dict(note.values) for note in zero_credit_notes(rows)]
    [{'sites': [0], 'epochs': 2, 'of': 2}, {'sites': [1], 'epochs': 1, 'of': 2}]
    """
    trained = [row for row in rows if row["epoch"] > 0]
    count = Counter(site for row in trained for site in row.get("zero_credit_sites", ()))
    return [
        Note(
            "zero-credit-epochs",
            None,
            {"sites": sorted(s for s in count if count[s] == epochs), "epochs": epochs, "of": len(trained)},
        )
        for epochs in sorted(set(count.values()), reverse=True)
    ]


@torch.no_grad()
def evaluate(net: nn.Module, data: Dataset, split: Split, device: torch.device) -> tuple[Tensor, float]:
    """(N,) which samples are right, and the mean loss, in eval mode."""
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


def _row(run: _Run, epoch: int, train_loss: float | None) -> dict[str, Any]:
    refuse_inexact(run.rule, run.net, *run.probe[0])  # what a rule gives may change while it trains
    right, test_loss = evaluate(run.net, run.data, run.data.test, run.device)
    m = measure(run.net, run.probe, credit=run.rule)
    diverged = bool(m.nonfinite) or (train_loss is not None and not math.isfinite(train_loss))
    row = {
        "epoch": epoch,
        "train_loss": _some(train_loss),
        "test_loss": _some(test_loss),
        "test_acc": float(right.double().mean()),
        "per_layer": {k: getattr(m, k) for k in ROW_LISTS},
        "values": {k: getattr(m, k) for k in ROW_VALUES},
        "aggregates": m.aggregates,
        "weights": weight_growth(run),
        "reasons": {k: m.reasons[k] for k in (*ROW_LISTS, *ROW_VALUES, "aggregates") if k in m.reasons},
    }
    shapes = m.conditions["state_shapes"]
    if any(shape != shapes[0] for shape in shapes):  # growth is taken within stages: whoever reads the row must know
        row["conditions"] = {"state_shapes": shapes}
    if diverged:
        row["diverged"] = f"epoch {epoch}: {m.nonfinite[0].text if m.nonfinite else 'training loss not finite'}"
        row["nonfinite"] = [{**note.values, "site": note.site} for note in m.nonfinite]
    return _rounded(row)


def _rounded(value: Any) -> Any:
    """Six significant digits: a trajectory is read by people and kept for years."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return [_rounded(v) for v in value] if isinstance(value, list) else value


@torch.no_grad()
def weight_growth(run: _Run) -> dict[str, Any]:
    """Per block weight ‖w − w₀‖/‖w₀‖, and per block the product of its weights' norms, Frobenius and spectral."""
    names = {id(p): name for name, p in run.net.named_parameters()}
    growth: list[list[float | None]] = []
    frobenius: list[float | None] = []
    spectral: list[float | None] = []
    for block in run.parts.blocks:
        weights = [p for p in block.parameters() if p.ndim >= 2]
        moved = []
        for p in weights:
            w0 = run.first_weights[names[id(p)]]
            moved.append(_some(float((p.cpu() - w0).double().norm() / w0.double().norm())))
        growth.append(moved)
        frobenius.append(_some(math.prod(float(p.cpu().double().norm()) for p in weights)))
        finite = all(bool(torch.isfinite(p).all()) for p in weights)
        norms = [float(torch.linalg.matrix_norm(p.flatten(1), ord=2)) for p in weights] if finite else [math.nan]
        spectral.append(_some(math.prod(norms)))
    return {"growth": growth, "product_frobenius": frobenius, "product_spectral": spectral}


def _some(x: float | None) -> float | None:
    return x if x is not None and math.isfinite(x) else None


# -- what is on disk -----------------------------------------------------------------------------------------


def _tensors(run: _Run) -> dict[str, Tensor]:
    named = {f"net.{k}": v for k, v in run.net.state_dict().items()}
    return named | {f"aux.{k}": v for k, v in run.rule.state_dict().items()}


def _checkpoint(run: _Run, folder: Path, epoch: int) -> None:
    from safetensors.torch import save

    tensors = _tensors(run)
    for i, state in run.optimiser.state_dict()["state"].items():  # not in order after a resume
        tensors |= {f"opt.{i}.{k}": v for k, v in state.items()}
    tensors = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}
    metadata = {"schema": SCHEMA, "epoch": str(epoch), "rows": json.dumps(run.rows, allow_nan=False)}
    write(folder / CHECKPOINT, save(tensors, metadata))


def _progress(run: _Run, folder: Path, pace: float) -> None:
    """How far the run is, for whoever watches: a line of numbers that is gone when the run is finished."""
    row = run.rows[-1]
    told = {"epoch": row["epoch"], "epochs": run.spec.epochs, "acc": row["test_acc"], "seconds_per_epoch": pace}
    told |= {key: row["per_layer"][name][-1] for key, name in (("h_L", "h_norm"), ("g_L", "g_norm"))}
    write(folder / PROGRESS, json.dumps(told))


def _resume(run: _Run, folder: Path) -> int:
    """Load the last finished epoch into `run` and return it; 0 when there is none."""
    from safetensors import safe_open

    path = folder / CHECKPOINT
    if not path.exists():
        return 0
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if metadata.get("schema", SCHEMA) != SCHEMA:
            raise ValueError(f"expected schema {SCHEMA}, but got {metadata['schema']}")
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    run.net.load_state_dict({k[4:]: v for k, v in tensors.items() if k.startswith("net.")})
    run.rule.load_state_dict({k[4:]: v for k, v in tensors.items() if k.startswith("aux.")})
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("opt."):
            _, index, name = key.split(".", 2)
            state.setdefault(int(index), {})[name] = value
    groups = run.optimiser.state_dict()["param_groups"]
    run.optimiser.load_state_dict({"state": state, "param_groups": groups})
    run.rows, epoch = json.loads(metadata["rows"]), int(metadata["epoch"])
    if not isinstance(run.rows, list) or len(run.rows) != epoch + 1:
        raise ValueError(f"expected {epoch + 1} rows after {epoch} epochs")
    return epoch


def _finish(run: _Run, folder: Path) -> Bundle:
    from safetensors.torch import save

    spec = run.spec
    tensors = {k: v.detach().cpu().contiguous().clone() for k, v in _tensors(run).items()}  # before fresh B moves on
    right, _ = evaluate(run.net, run.data, run.data.test, run.device)
    report = diagnose(
        run.net,
        run.probe,
        headline_acc=float(right.double().mean()),
        credit=run.rule,
        method_name=spec.rule if spec.scope == "all" else f"{spec.rule}, frozen blocks",
        probes=PROBES,
    )
    losses = [row["train_loss"] for row in run.rows if row["train_loss"] is not None]
    last = run.rows[-1]["train_loss"]
    extra = {
        "epochs": run.rows[-1]["epoch"],
        "initial": run.rows[0],
        "diverged": run.rows[-1].get("diverged"),
        # A run that diverged has no last loss, so there is no difference over it.
        "train_loss_delta": None if last is None or len(losses) < 2 else last - losses[0],
        "weight_growth": run.rows[-1]["weights"]["growth"],
        "rule": run.rule.describe(),
        "fresh_feedback": fresh_null(run.net, run.rule, run.probe, seeded(spec.seed, "null")),
        "float64": float64_check(run.net, run.probe),
        "test_correct": base64.b64encode(np.packbits(right.numpy()).tobytes()).decode(),
    }
    write(folder / "machine.json", json.dumps(machine(run.device), indent=2) + "\n")
    rows = [json.dumps(row, allow_nan=False) + "\n" for row in run.rows[1:]]
    write(folder / "trajectory.jsonl", "".join(rows))
    write(folder / "weights.safetensors", save(tensors))
    ended = () if extra["diverged"] is None else (Note("diverged", None, {"where": extra["diverged"]}),)
    where = {**report.conditions, "credit_site": spec.credit_site, "credit_length": spec.credit_length}
    silent = zero_credit_notes(run.rows)
    report = replace(report, run=extra, conditions=where, notes=(*ended, *silent, *report.notes))
    write(folder / "report.json", report.to_json() + "\n")  # last: its presence says that the run is finished
    tidy(folder)
    return load_bundle(folder)


def fresh_null(
    net: nn.Module, rule: Rule, probe: list[tuple[Tensor, Tensor]], generator: torch.Generator
) -> dict[str, Any] | None:
    """Deep cosine and Γ with the feedback drawn anew, mean and standard deviation over 20 draws."""
    stranger = copy.deepcopy(rule)
    found: list[Measurements] = []
    for _ in range(FRESH_DRAWS):
        with torch.no_grad():
            if not stranger.redraw(generator):
                return None
        found.append(measure(net, probe, credit=stranger))
    out: dict[str, Any] = {"draws": FRESH_DRAWS}
    for name in ("gamma", "deep_cosine"):
        values = [getattr(m, name) for m in found]
        if None not in values:
            out[name] = {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1))}
    return out


def machine(device: torch.device) -> dict[str, Any]:
    """What a result was made on."""
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


def _numbers(rows: list[dict[str, Any]]) -> str:
    """What the last epoch measured, for people."""
    last = rows[-1]["per_layer"]
    norms = (("‖h_L‖", last["h_norm"][-1]), ("‖g_L‖", last["g_norm"][-1]))
    return "  ".join([f"acc {rows[-1]['test_acc']:.3f}", *(f"{k} {v:.2e}" for k, v in norms if v is not None)])


__all__ = [
    "augment",
    "batches",
    "build_net",
    "build_rule",
    "evaluate",
    "fresh_null",
    "machine",
    "probe_batches",
    "train",
]
