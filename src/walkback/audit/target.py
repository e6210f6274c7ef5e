"""What `walkback diagnose` and `walkback anatomy` are pointed at: a function of the user's, or the folder of a run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from walkback.api import diagnose
from walkback.audit.records import read_beside
from walkback.audit.settings import claimed
from walkback.audit.wording import command
from walkback.data import Dataset, load
from walkback.data.dataset import checked
from walkback.errors import InputError, shown
from walkback.files import LARGEST_WEIGHTS
from walkback.measures.worth import Depth
from walkback.network.batch import mapped, pairs
from walkback.network.layers import Sites
from walkback.progress import say
from walkback.registry import call_entry, is_entry
from walkback.report.report import Report
from walkback.tracing.picture import Picture, picture
from walkback.training.bundle import Bundle, load_bundle
from walkback.training.setup import probe_batches
from walkback.training.spec import RunSpec, control_spec
from walkback.training.worth import keep_depth, run_depth
from walkback.verdict.claim import KEYWORDS, Claim, accuracies


def pictured(target: str, sites: Sites | None = None) -> Picture:
    """Return the picture of the network that `module:function` returns, at the sites given or at its own."""
    value = call_entry(target)
    if isinstance(value, (tuple, list)) and len(value) == 2:
        value = {"model": value[0], "eval_batches": value[1]}
    given: dict[str, Any] = dict(value) if isinstance(value, dict) else {"model": value}
    given |= {} if sites is None else {"sites": sites}
    if "model" not in given:
        raise InputError(
            f"Expected {target} to return a model, (model, batches) or a dict with model, but got a dict with "
            f"{', '.join(map(str, given)) or 'nothing'}."
        )
    return picture(
        given["model"], given.get("anatomy"), given.get("eval_batches"), given.get("loss"), given.get("sites")
    )


def diagnosed(
    target: str,
    given: Mapping[str, Any],
    data: str | None,
    root: Path | None,
    device: str,
    trust: Sequence[str] = (),
    depth: bool = False,
    primary: str | None = None,
    probe: tuple[str, int] = ("test", 0),
    test_samples: int | None = None,
    largest: int = LARGEST_WEIGHTS,
) -> dict[str, Any]:
    """Return the arguments of `diagnose` for a target; those given that are not None stand above the target's own.

    Of what the spec of a bundle names, only modules in `trust` are imported. With `depth`, what the blocks of a run or
    bundle are worth is measured on the data set; `primary` and `test_samples` are those of Claim. `probe` is the split
    it is measured on, and the number of the probe set in it; `largest` the bytes that the weights of a bundle may have.
    """
    is_function = is_entry(target) and not Path(target).exists()
    if not is_function and not Path(target).exists():
        raise InputError(
            f"Expected a bundle folder or module:function, but {shown(target)} is neither.{_script(target)}"
        )
    if Path(target).suffix == ".py":
        raise InputError(
            f"Expected a bundle folder or module:function, but {shown(target)} is a file.{_script(target)}"
        )
    if is_function and depth:
        raise InputError(
            f"Expected --depth only with a run or bundle, which has train and test data, but {target} is an entry. "
            "Let it return a dict with depth=walkback.depth(model, train, test) in it."
        )
    if is_function and probe != ("test", 0):
        raise InputError(f"Expected --split and --probe-set only with a bundle, but {target} brings its own batches.")
    if is_function:
        kwargs = _of_function(target, data, root, device, trust)
    else:
        kwargs = _of_bundle(load_bundle(target, trust, largest), data, root, device, depth, probe)
    kwargs |= {key: value for key, value in given.items() if value is not None}
    if given["headline_acc"] is not None or given["frozen_baseline_acc"] is not None:
        kwargs.pop("correct", None)  # the predictions beside a run are not theirs
    if given["bp_acc"] is not None and given["bp_frozen_acc"] is None:
        kwargs.pop("bp_frozen_acc", None)  # nor is the control of the BP beside it that of another
    known = list(signature(diagnose).parameters)
    if unknown := [key for key in kwargs if key not in known]:
        raise InputError(f"Expected {target} to give arguments of diagnose ({', '.join(known)}), but got {unknown[0]}.")
    judging = {k: v for k, v in (("primary", primary), ("test_samples", test_samples)) if v is not None}
    if judging:
        claim = kwargs.get("claim") or Claim(**{field: kwargs.pop(name, None) for field, name in KEYWORDS.items()})
        kwargs["claim"] = replace(claim, **judging)
    return kwargs


def _script(target: str) -> str:
    """Return how to name a function of a Python file that stands where `module:function` should."""
    path = Path(target) if Path(target).suffix == ".py" else Path(f"{target}.py")
    if not path.is_file():
        return ""
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        body = []
    public = [node.name for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    function = public[0] if len(public) == 1 else "function"
    whose = f"; it has {', '.join(public)}" if len(public) > 1 else ""
    return f" Name a function of it that returns (model, batches): {path.stem}:{function}{whose}."


def keep_measured_depth(target: str, report: Report, trust: Sequence[str] = (), largest: int = LARGEST_WEIGHTS) -> None:
    """Keep what the blocks of a run are worth, which `report` has, in the record of the run."""
    bundle = load_bundle(target, trust, largest)
    before = bundle.report()
    ours, theirs = (None if r is None else r.conditions.get("probe_hash") for r in (before, report))
    if ours is not None and ours != theirs:
        raise InputError(
            f"Expected the data that {target} was trained on, but this has other samples under that name (probe sets "
            f"{theirs} and {ours}): nothing was written."
        )
    keep_depth(bundle, Depth.of(report.depth))
    say(f"kept in {bundle.path / 'report.json'}")


def _of_function(target: str, data: str | None, root: Path | None, device: str, trust: Sequence[str]) -> dict[str, Any]:
    given = {
        "--data": data is not None, "--root": root is not None, "--device": device != "cpu", "--trust": bool(trust)
    }  # fmt: skip
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


def _of_bundle(
    bundle: Bundle, data: str | None, root: Path | None, device: str, depth: bool, probe: tuple[str, int]
) -> dict[str, Any]:
    source = data or bundle.spec.get("data")
    if not isinstance(source, str):
        raise InputError("Expected --data module:function with the evaluation batches, but got none.")
    for named in ("net", "rule", *(() if data else ("data",))):
        bundle.check_trusted(named)
    model = bundle.model()
    try:
        model = model.to(device)
    except (RuntimeError, AssertionError) as error:  # what torch raises for an unknown and for an absent one
        raise InputError(f"Expected a device that torch has here, but got {shown(device)}: {error}.") from None
    value = _loaded(source, root)
    kwargs: dict[str, Any] = {"model": model, "eval_batches": _batches(bundle, source, value, device, probe)}
    if "input_shape" in bundle.spec:  # a run of ours: the credit of its rule, the accuracy on its own data
        report = bundle.report()
        kwargs["credit"] = bundle.rule(model)
        if report is not None:
            kwargs["method_name"] = report.method
            if report.depth is not None and source == bundle.spec["data"]:
                kwargs["depth"] = Depth.of(report.depth)
            kwargs["headline_acc"] = report.headline_acc if source == bundle.spec["data"] else None
        if kwargs.get("headline_acc") is not None:
            kwargs |= _claim_beside(bundle)
    if probe != ("test", 0):
        kwargs["notes"] = f"measured on probe set {probe[1]} of the {probe[0]} split"
    for key in ("headline_acc", "frozen_baseline_acc", "method_name", "notes"):
        if bundle.spec.get(key) is not None:
            kwargs[key] = bundle.spec[key]
    if depth and not isinstance(value, Dataset):
        raise InputError(f"Expected --depth with a data set that has a train and a test split, but {source} has none.")
    return kwargs | ({"depth": run_depth(bundle, checked(value), device)} if depth else {})


def _loaded(source: str, root: Path | None) -> Any:
    """Return the data set of this name, or what an entry returns."""
    given = {} if root is None else {"root": root}
    return call_entry(source, **given) if is_entry(source) else load(source, root)


def _batches(bundle: Bundle, source: str, value: Any, device: str, probe: tuple[str, int]) -> Iterator[tuple[Any, Any]]:
    """Return the probe set of a data set, or an entry's batches, on the device and of the shape the network wants."""
    if not isinstance(value, Dataset) and probe != ("test", 0):
        raise InputError(
            f"Expected --split and --probe-set only with a data set, but {source} gives batches of its own."
        )
    batches = probe_batches(checked(value), torch.device("cpu"), *probe) if isinstance(value, Dataset) else value
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
    if spec.scope == "frozen" or run is None:
        return {}
    if control is None:
        trains = command(control_spec(spec), [spec.seed], bundle.path.parent)
        say(f"no frozen control beside it; this trains it: {trains}")
        return {}
    if records.control(run) is None:
        say(f"no frozen control: {control.path.name} beside it had other data of the same name")
        return {}
    claim = claimed(records, run)
    say(f"frozen control: {control.path.name} beside it, accuracy {control.accuracy}")
    beside = {"frozen_baseline_acc": control.accuracy, "correct": claim.correct}
    if claim.bp is not None:
        pairs = zip(accuracies("bp_acc", claim.bp), accuracies("bp_frozen_acc", claim.bp_frozen))
        gains = ", ".join(f"{ours:g} against {frozen:g}" for ours, frozen in pairs)
        say(f"BP in the same setting beside it, against its own frozen control: {gains}")
        beside |= {"bp_acc": claim.bp, "bp_frozen_acc": claim.bp_frozen}
    return beside
