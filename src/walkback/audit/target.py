"""What `walkback diagnose` and `walkback anatomy` are pointed at: a function of the user's, or the folder of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from walkback.api import diagnose
from walkback.audit.records import read_beside
from walkback.audit.settings import claimed
from walkback.data import Dataset, load
from walkback.data.dataset import checked
from walkback.errors import InputError, shown
from walkback.network.batch import mapped, pairs
from walkback.registry import call_entry, is_entry
from walkback.tracing.picture import Picture, picture
from walkback.training.bundle import Bundle, load_bundle
from walkback.training.control import control_spec
from walkback.training.setup import probe_batches
from walkback.training.spec import RunSpec
from walkback.verdict.claim import accuracies


def pictured(target: str) -> Picture:
    """Return the picture of the network that `module:function` returns."""
    value = call_entry(target)
    if isinstance(value, (tuple, list)) and len(value) == 2:
        value = {"model": value[0], "eval_batches": value[1]}
    given: dict[str, Any] = dict(value) if isinstance(value, dict) else {"model": value}
    if "model" not in given:
        raise InputError(
            f"Expected {target} to return a model, (model, batches) or a dict with model, but got a dict with "
            f"{', '.join(map(str, given)) or 'nothing'}."
        )
    return picture(given["model"], given.get("anatomy"), given.get("eval_batches"), given.get("loss"))


def diagnosed(
    target: str, given: Mapping[str, Any], data: str | None, root: Path | None, device: str
) -> dict[str, Any]:
    """Return the arguments of `diagnose` for a target; those given that are not None stand above the target's own."""
    is_function = is_entry(target) and not Path(target).exists()
    if not is_function and not Path(target).exists():
        raise InputError(f"Expected a bundle folder or module:function, but {shown(target)} is neither.")
    found = _of_function(target, data, root, device) if is_function else _of_bundle(target, data, root, device)
    found |= {key: value for key, value in given.items() if value is not None}
    if given["headline_acc"] is not None or given["frozen_baseline_acc"] is not None:
        found.pop("correct", None)  # the predictions beside a run are not theirs
    if given["bp_acc"] is not None and given["bp_frozen_acc"] is None:
        found.pop("bp_frozen_acc", None)  # nor is the control of the BP beside it that of another
    known = list(signature(diagnose).parameters)
    if unknown := [key for key in found if key not in known]:
        raise InputError(f"Expected {target} to give arguments of diagnose ({', '.join(known)}), but got {unknown[0]}.")
    return found


def _of_function(target: str, data: str | None, root: Path | None, device: str) -> dict[str, Any]:
    given = {"--data": data is not None, "--root": root is not None, "--device": device != "cpu"}
    if odd := [name for name, there in given.items() if there]:
        raise InputError(f"Expected {odd[0]} only with a bundle, but {target} is an entry that brings its own.")
    value = call_entry(target)
    if isinstance(value, dict) and {"model", "eval_batches"} <= set(value):
        return dict(value)
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return {"model": value[0], "eval_batches": value[1]}
    raise InputError(
        f"Expected {target} to return (model, batches) or a dict with model and eval_batches, but got "
        f"{type(value).__name__}."
    )


def _of_bundle(target: str, data: str | None, root: Path | None, device: str) -> dict[str, Any]:
    bundle = load_bundle(target)
    source = data or bundle.spec.get("data")
    if not isinstance(source, str):
        raise InputError("Expected --data module:function with the evaluation batches, but got none.")
    model = bundle.model()
    try:
        model = model.to(device)
    except (RuntimeError, AssertionError) as error:  # what torch raises for an unknown and for an absent one
        raise InputError(f"Expected a device that torch has here, but got {shown(device)}: {error}.") from None
    found: dict[str, Any] = {"model": model, "eval_batches": _batches(bundle, source, root, device)}
    if "input_shape" in bundle.spec:  # a run of ours: the credit of its rule, the accuracy on its own data
        report = bundle.report()
        found["credit"] = bundle.rule(model)
        if report is not None:
            found["method_name"] = report.method
            found["headline_acc"] = report.headline_acc if source == bundle.spec["data"] else None
        if found.get("headline_acc") is not None:
            found |= _claim_beside(bundle)
    for key in ("headline_acc", "frozen_baseline_acc", "method_name", "notes"):
        if bundle.spec.get(key) is not None:
            found[key] = bundle.spec[key]
    return found


def _batches(bundle: Bundle, source: str, root: Path | None, device: str) -> Iterator[tuple[Any, Any]]:
    """Return the probe set of a data set, or an entry's batches, on the device and of the shape the network wants."""
    given = {} if root is None else {"root": root}
    value = call_entry(source, **given) if is_entry(source) else load(source, root)
    batches = probe_batches(checked(value), torch.device("cpu")) if isinstance(value, Dataset) else value
    shape = bundle.spec.get("input_shape")

    def fitting() -> Iterator[tuple[Any, Any]]:
        for batch in pairs(batches):
            movable = (torch.Tensor, Mapping)
            x, y = (mapped(part, lambda t: t.to(device)) if isinstance(part, movable) else part for part in batch)
            if shape is not None and isinstance(x, torch.Tensor) and x.shape[1:] != tuple(shape):
                raise InputError(
                    f"Expected inputs of shape {tuple(shape)}, for which the network of {bundle.path} was built, but "
                    f"{source} has {tuple(x.shape[1:])}."
                )
            yield x, y

    return fitting()


def _claim_beside(bundle: Bundle) -> dict[str, Any]:
    """Return what diagnose takes of a run's control and of BP in the same store, named on standard error; else {}."""
    spec = RunSpec(**{name: bundle.spec[name] for name in RunSpec.model_fields if name in bundle.spec})
    records = read_beside(bundle.path.parent, spec)
    run, control = records.find(spec), records.find(control_spec(spec))
    if spec.scope == "frozen" or run is None or control is None:
        return {}
    if records.control(run) is None:
        print(f"no frozen control: {control.path.name} beside it had other data of the same name", file=sys.stderr)
        return {}
    claim = claimed(records, run)
    print(f"frozen control: {control.path.name} beside it, accuracy {control.accuracy}", file=sys.stderr)
    found = {"frozen_baseline_acc": control.accuracy, "correct": claim.correct}
    if claim.bp is not None:
        pairs = zip(accuracies("bp_acc", claim.bp), accuracies("bp_frozen_acc", claim.bp_frozen))
        gains = ", ".join(f"{ours:g} against {frozen:g}" for ours, frozen in pairs)
        print(f"BP in the same setting beside it, against its own frozen control: {gains}", file=sys.stderr)
        found |= {"bp_acc": claim.bp, "bp_frozen_acc": claim.bp_frozen}
    return found
