"""RunSpec -> Bundle: train a network with a rule, measure it after every epoch, survive anything.

All randomness is drawn from (seed, purpose, epoch), so a run that is killed at any moment goes on from its last
finished epoch and ends with the same bytes.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from walkback.api import diagnose
from walkback.data import Dataset, load
from walkback.data.dataset import checked
from walkback.errors import shown
from walkback.files import LARGEST, parse_json
from walkback.network.values import widest
from walkback.notes import Note
from walkback.progress import Show, epochs, quietly, say, stopping_quietly
from walkback.report.formats.sums import SUMS, check_size, sums_text
from walkback.rules.rule import Parts, declares
from walkback.training import setup
from walkback.training.bundle import SCHEMA, Bundle, load_bundle, stored, tensors_sum
from walkback.training.folder import CHECKPOINT, PROGRESS, owned, reading_checkpoint, reopen, spec_text, tidy, write
from walkback.training.rows import evaluate, float64_check, fresh_null, machine, measured_row, zero_credit_notes
from walkback.training.setup import augment, build_net, build_rule, probe_batches, seeded
from walkback.training.spec import RunSpec
from walkback.training.step import TrainingStep

# Kept importable from here: what runs are rebuilt and measured again with.
__all__ = ["PROBES", "Parts", "augment", "build_net", "build_rule", "evaluate", "probe_batches", "train"]

FRESH_DRAWS = 20
PROBES = ("perturbation", "nudging", "intrinsic")  # of the report after the last epoch


@stopping_quietly()
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
        run = setup.start(spec, load(spec.data, root) if data is None else checked(data), setup.usable(device))
        with owned(folder, quiet):  # another process may finish it while we wait
            return reopen(folder, spec) or _train(run, folder)


def _train(run: setup.Run, folder: Path) -> Bundle:
    spec = run.spec
    write(folder / "spec.json", _spec_text(run))
    with reading_checkpoint(folder):
        done = _resume(run, folder)
    if not run.rows:
        with run.drawn(0):
            run.rows = [measured_row(run, 0, None)]
    clock = time.monotonic()
    with epochs(spec.name, done, spec.epochs, _numbers(run.rows)) as show:
        for epoch in range(done + 1, spec.epochs + 1):
            if epoch > 1 and run.rows[-1].get("diverged"):
                break
            with run.drawn(epoch):
                loss, without_credit = _epoch(run, epoch, show)
                row = measured_row(run, epoch, loss)
            if without_credit:
                if all(earlier.get("zero_credit_sites") != without_credit for earlier in run.rows):
                    say(_no_credit(run, epoch, without_credit), alarm=True)
                row["zero_credit_sites"] = without_credit
            run.rows.append(row)
            _checkpoint(run, folder, epoch)
            _progress(run, folder, (time.monotonic() - clock) / (epoch - done))
            show(epoch, _numbers(run.rows))
    with run.drawn(spec.epochs + 1):
        return _finish(run, folder)


def _spec_text(run: setup.Run) -> str:
    return spec_text(run.spec, run.data.input_shape, run.data.classes) + "\n"


def _epoch(run: setup.Run, epoch: int, show: Show) -> tuple[float, list[int]]:
    """Train one epoch; return its mean loss and the sites whose credit was used and zero for every sample."""
    setup.set_rate(run.optimiser, run.spec, epoch)
    step = TrainingStep.of(run.spec, run.parts, run.rule)
    run.net.train()
    total, count = torch.zeros((), device=run.device, dtype=widest(run.device)), 0
    steps = max(len(run.data.train) // run.spec.optimiser.batch_size, 1)
    for i, (x, y) in enumerate(setup.batches(run.spec, run.data, epoch, run.device)):
        show(epoch - 1 + i / steps, "")
        run.optimiser.zero_grad(set_to_none=True)
        total += step(x, y).to(total.dtype) * len(x)
        run.optimiser.step()
        count += len(x)
    return float(total) / count, step.largest.zero_sites()


def _no_credit(run: setup.Run, epoch: int, sites: list[int]) -> str:
    """Return the warning: which sites went without credit, and what may help."""
    where = f"site{'s' if len(sites) > 1 else ''} {', '.join(map(str, sites))}"
    what = f"{run.spec.rule} gave zero credit to every sample of epoch {epoch} at {where}"
    advice = (
        f" A relaxation reaches one more site with each step: here it needs {len(run.parts.blocks) + 1} steps or more. "
        "In a stream that has grown, rounding can take its credit too."
    ) * declares(run.rule, "relaxes")
    return f"warning: {what}: what it should train there learns nothing.{advice}"


def _numbers(rows: list[dict[str, Any]]) -> str:
    """Return what the last epoch measured, for people."""
    last = rows[-1]["per_layer"]
    norms = (("‖h_L‖", last["h_norm"][-1]), ("‖g_L‖", last["g_norm"][-1]))
    return "  ".join([f"acc {rows[-1]['test_acc']:.3f}", *(f"{k} {v:.2e}" for k, v in norms if v is not None)])


def _checkpoint(run: setup.Run, folder: Path, epoch: int) -> None:
    states = run.optimiser.state_dict()["state"].items()  # not in order after a resume
    moments = {f"opt.{i}.{k}": v for i, state in states for k, v in state.items()}
    tensors = stored(run.net, run.rule.state_dict(), **moments)
    metadata = {"schema": SCHEMA, "epoch": str(epoch), "rows": json.dumps(run.rows, allow_nan=False)}
    metadata |= {"spec": run.spec.digest, "sha256": tensors_sum(tensors, metadata["rows"])}
    write(folder / CHECKPOINT, save(tensors, metadata))


def _progress(run: setup.Run, folder: Path, pace: float) -> None:
    """Write how far the run is, for whoever watches: a line of numbers that is gone when the run is finished."""
    row = run.rows[-1]
    progress = {"epoch": row["epoch"], "epochs": run.spec.epochs, "acc": row["test_acc"], "seconds_per_epoch": pace}
    progress |= {key: row["per_layer"][name][-1] for key, name in (("h_L", "h_norm"), ("g_L", "g_norm"))}
    write(folder / PROGRESS, json.dumps(progress))


def _resume(run: setup.Run, folder: Path) -> int:
    """Load the last finished epoch into `run` and return it; 0 when there is none."""
    path = folder / CHECKPOINT
    if not path.exists():
        return 0
    if not path.is_file():
        raise ValueError("it is a folder, pipe or device")
    own = sum(t.nbytes for t in stored(run.net, run.rule.state_dict()).values())
    check_size(path, 4 * own + LARGEST)  # with the optimiser's moments, and the rows
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if metadata.get("schema", SCHEMA) != SCHEMA:
            raise ValueError(f"expected schema {SCHEMA}, but got {metadata['schema']}")
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    known, written = {"schema", "epoch", "rows", "spec", "sha256"}, set(metadata)
    if written - known or len(written & {"spec", "sha256"}) == 1:  # a flipped bit in the name of one
        raise ValueError(f"expected its metadata to be {', '.join(sorted(known))}, but got {shown(sorted(written))}")
    if metadata.get("spec", run.spec.digest) != run.spec.digest:
        raise ValueError(f"expected a checkpoint of the spec {run.spec.digest}, but it is of {metadata['spec']}")
    if metadata.get("sha256", same := tensors_sum(tensors, metadata.get("rows", ""))) != same:
        raise ValueError("its SHA-256 is not the one that was written with it")
    state: dict[int, dict[str, Tensor]] = {}
    for key in (key for key in tensors if key.startswith("opt.")):
        _, index, name = key.split(".", 2)
        state.setdefault(int(index), {})[name] = tensors[key]
    run.net.load_state_dict({k[4:]: v for k, v in tensors.items() if k.startswith("net.")})
    run.rule.load_state_dict({k[4:]: v for k, v in tensors.items() if k.startswith("aux.")})
    run.optimiser.load_state_dict({**run.optimiser.state_dict(), "state": state})
    run.rows, epoch = parse_json(metadata["rows"]), int(metadata["epoch"])
    if not isinstance(run.rows, list) or len(run.rows) != epoch + 1:
        raise ValueError(f"expected {epoch + 1} rows after {epoch} epochs")
    return epoch


def _finish(run: setup.Run, folder: Path) -> Bundle:
    spec, first, final = run.spec, run.rows[0], run.rows[-1]
    tensors = stored(run.net, run.rule.state_dict())  # before fresh B moves on
    right, _ = evaluate(run.net, run.data, run.data.test, run.device)
    report = diagnose(
        run.net,
        run.probe,
        headline_acc=float(right.double().mean()),
        credit=run.rule,
        method_name=spec.rule if spec.scope == "all" else f"{spec.rule}, frozen blocks",
        probes=PROBES,
    )
    losses, last = [loss for row in run.rows if (loss := row["train_loss"]) is not None], final["train_loss"]
    extra = {
        "epochs": final["epoch"],
        "initial": first,
        "diverged": final.get("diverged"),
        # A run that diverged has no last loss, so there is no difference over it.
        "train_loss_delta": None if last is None or len(losses) < 2 else last - losses[0],
        "weight_growth": final["weights"]["growth"],
        "rule": run.rule.describe(),
        "fresh_feedback": fresh_null(run.net, run.rule, run.probe, seeded(spec.seed, "null"), FRESH_DRAWS),
        "float64": float64_check(run.net, run.probe),
        "test_correct": base64.b64encode(np.packbits(right.numpy()).tobytes()).decode(),
    }
    files: dict[str, str | bytes] = {
        "machine.json": json.dumps(machine(run.device), indent=2) + "\n",
        "trajectory.jsonl": "".join(json.dumps(row, allow_nan=False) + "\n" for row in run.rows[1:]),
        "weights.safetensors": save(tensors),
    }
    for name, content in files.items():
        write(folder / name, content)
    ended = () if extra["diverged"] is None else (Note("diverged", None, {"where": extra["diverged"]}),)
    where = {**report.conditions, "credit_site": spec.credit_site, "credit_length": spec.credit_length}
    notes = (*ended, *zero_credit_notes(run.rows), *report.notes)
    report = replace(report, run=extra, conditions=where, notes=notes)
    files["spec.json"] = _spec_text(run)
    files["report.json"] = report.to_json() + "\n"
    write(folder / SUMS, sums_text(spec.digest, files))
    write(folder / "report.json", files["report.json"])  # last: its presence says that the run is finished
    tidy(folder)
    return load_bundle(folder, spec.modules, largest=sys.maxsize)
