"""A trained network on disk: a folder with `spec.json` and `weights.safetensors`, and never a pickle.

`weights.safetensors` holds the network (`net.*`) and the rule's auxiliaries (`aux.*`: B, G, V), always
together: without them the credit can't be measured. `trajectory.jsonl` and `report.json` are optional.

Reading a bundle runs nothing. A spec may name a `module:function`, which is imported and called with all the rights of
this process when the network is built: only where the user trusts that module by name.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite, prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from walkback.errors import FormatError, InputError, cut, shown
from walkback.files import LARGEST_WEIGHTS, complete, encoded, make_folder, parse_json, read_file, write_together
from walkback.nets import build
from walkback.network.anatomy import unwrap
from walkback.registry import call_entry, check_trusted, is_entry, modules_named
from walkback.report.formats.sums import RECORD, SUMS, WEIGHTS, check_size, check_sums, read_sums, sums_text
from walkback.report.report import Report
from walkback.rules import make
from walkback.rules.rule import Rule, set_up
from walkback.training.spec import SCHEMA as SCHEMA
from walkback.training.spec import RunSpec
from walkback.training.spec import run_fields as run_fields
from walkback.training.spec import schema_of as schema_of
from walkback.verdict.files import read_table

MOST = 2**24  # of a size that a spec may ask for
LONGEST = {"hidden": 100, "samples": 10**6, "steps": 10**5}  # of rules' options that memory or time grows with
ROOM = 2**26  # numbers that a network may have where the weights beside its spec are fewer
OPTIONAL = ("trajectory.jsonl", "report.json")


@dataclass(frozen=True)
class Bundle:
    """A bundle that was read from `path`.

    `spec["net"]` names what builds the network: one of `walkback.nets`, or a `module:function`, which is imported and
    called with `spec["net_options"]`. `model()` and `rule()` refuse to, unless the module is among those in `trust`.

    >>> import walkback as wb
    >>> bundle = wb.load_bundle(wb.selftest.BUNDLES / "dfa")
    >>> net = bundle.model()
    >>> x, y = torch.randn(256, *bundle.spec["input_shape"]), torch.randint(bundle.spec["classes"], (256,))
    >>> report = wb.diagnose(net, [(x[:128], y[:128]), (x[128:], y[128:])], credit=bundle.rule(net))
    >>> len(report.per_layer["cosine"]), bundle.report().verdict
    (5, 'walked back')
    """

    path: Path
    spec: Mapping[str, Any]
    weights: Mapping[str, Tensor] = field(repr=False)
    auxiliaries: Mapping[str, Tensor] = field(repr=False)
    trust: frozenset[str] = frozenset()  # modules whose functions the spec may name

    def model(self) -> nn.Module:
        """Return the network, built anew and given its weights, in eval mode on the CPU.

        Where `spec["net"]` is a `module:function`, the module is looked for in the current folder first.
        """
        model = self.untrained()
        try:
            model.load_state_dict(dict(self.weights))
        except RuntimeError as error:
            raise FormatError(
                f"Expected the weights in {self.path} to fit {self.spec['net']}, but: {shown(error, 300)}."
            ) from None
        return model.eval()

    def untrained(self) -> nn.Module:
        """Return the network at a random initialisation, drawn from torch's global random state."""
        net, options = self.spec.get("net"), dict(self.spec.get("net_options") or {})
        if not isinstance(net, str):
            where = self.path / "spec.json"
            raise FormatError(f"Expected {where} to name its network under `net`, but got {shown(net)}.")
        self.check_trusted("net")
        try:
            if "input_shape" in self.spec:  # a run of ours: the network is built for its data
                given = net, tuple(self.spec["input_shape"]), int(self.spec["classes"])
                self._check_sizes(*given, options)
                model = build(*given, **options)
            else:
                model = call_entry(net, **options)
        except (RuntimeError, MemoryError, OverflowError) as error:  # what torch says where there is no room
            raise FormatError(f"Expected to build {net} of {self.path}, but: {shown(error, 300)}.") from None
        if not isinstance(model, nn.Module):
            raise FormatError(f"Expected {net} to return a torch.nn.Module, but got {type(model).__name__}.")
        return model

    def _check_sizes(self, net: str, shape: tuple[int, ...], classes: int, options: Mapping[str, Any]) -> None:
        """Refuse a network that the weights beside it can't be of: building it could take all memory there is."""
        largest = max([len(self.weights), *(size for tensor in self.weights.values() for size in tensor.shape)])
        for name, value in options.items():
            most = len(self.weights) if name == "depth" else largest
            if isinstance(value, int) and value > most:
                raise FormatError(
                    f"Expected {name} in {self.path / 'spec.json'} to fit the weights beside it, {most} at most, but "
                    f"got {shown(value)}."
                )
        if is_entry(net):  # of a module that the user trusts
            return
        with torch.device("meta"):  # which has shapes and no memory
            asked = sum(t.numel() for t in build(net, shape, classes, **options).state_dict().values())
        if asked > max(ROOM, 2 * (there := sum(t.numel() for t in self.weights.values()))):
            raise FormatError(
                f"Expected {self.path / 'spec.json'} to fit the weights beside it, {there} numbers, but its network "
                f"would have {asked}."
            )

    def check_trusted(self, field: str) -> None:
        """Refuse a field of the spec that names a `module:function` of a module that is not in `trust`."""
        check_trusted(self.spec.get(field), self.trust, self.path / "spec.json")

    def rule(self, model: nn.Module) -> Rule:
        """Return the rule the network was trained with, its auxiliaries as they were: a `credit` for `diagnose`.

        `model` is what `model()` returned, on any device; rules such as EP run its blocks.
        """
        missing = [key for key in ("rule", "input_shape", "classes") if key not in self.spec]
        if missing:
            raise FormatError(
                f"Expected {self.path / 'spec.json'} to say how credit was given, but it has no {', '.join(missing)}: "
                "the credit can't be measured."
            )
        self.check_trusted("rule")
        options = dict(self.spec.get("rule_options") or {})
        for name, most in LONGEST.items():
            if isinstance(value := options.get(name), (int, float)) and value > most:
                raise FormatError(
                    f"Expected {name} in {self.path / 'spec.json'} to be {most} at most, but got {shown(value)}."
                )
        rule = make(str(self.spec["rule"]), **options)
        rule.length = str(self.spec.get("credit_length", "raw"))
        like = next(model.parameters())
        x = torch.zeros(2, *self.spec["input_shape"], device=like.device, dtype=like.dtype)
        try:
            set_up(rule, model, x, int(self.spec["classes"]), torch.Generator())
            rule.load_state_dict(dict(self.auxiliaries))
        except RuntimeError as error:
            raise FormatError(
                f"Expected the rule's auxiliaries (feedback matrices, learned networks) in {self.path}, but: "
                f"{shown(error, 300)}. Without them the credit can't be measured."
            ) from None
        return rule.to(device=like.device, dtype=like.dtype)

    def trajectory(self) -> list[dict[str, Any]]:
        """Return one row per epoch, if the run kept them."""
        path = self.path / "trajectory.jsonl"
        if not path.exists():
            return []
        try:
            return [parse_json(line) for line in read_file(path).decode().split("\n") if line.strip()]
        except (OSError, ValueError, RecursionError) as error:
            raise FormatError(f"Expected {path} to hold one JSON object per line, but: {error}.") from None

    def report(self) -> Report | None:
        """Return the report saved with the run, if there is one."""
        path = self.path / "report.json"
        return Report.load(path) if path.exists() else None


def save_bundle(
    path: str | Path,
    model: nn.Module,
    spec: Mapping[str, Any],
    auxiliaries: Mapping[str, Tensor] | None = None,
    trajectory: Sequence[Mapping[str, Any]] = (),
    report: Report | None = None,
) -> Bundle:
    """Write a bundle folder and read it back.

    Args:
        path: the folder, made if missing.
        model: its state dict is stored, of a compiled or parallel one that of the network inside; tied weights
            are stored once per name.
        spec: at least `net`, the `module:function` that builds the network, and its `net_options`.
        auxiliaries: the rule's own tensors (B, G, V) by name.
        trajectory: one row per epoch; numbers that are not finite are stored as "NaN", "Infinity", "-Infinity".
        report: stored as report.json.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bundle = save_bundle(folder, nn.Linear(2, 3), {"net": "torch.nn:Linear"}, {"B0": torch.ones(3, 2)})
    ...     bundle.spec["net"], sorted(bundle.weights), sorted(bundle.auxiliaries)
    ('torch.nn:Linear', ['bias', 'weight'], ['B0'])
    """
    path, tensors, head = Path(path), stored(model, auxiliaries or {}), {"schema": SCHEMA}
    spec_text = _text({**head, **spec, **head}, "spec", indent=2)
    rows = "".join(_text(_spelled(row), "trajectory") + "\n" for row in trajectory)
    files = {"spec.json": encoded(spec_text + "\n"), "weights.safetensors": save(tensors)}
    if rows:
        files["trajectory.jsonl"] = encoded(rows)
    if report is not None:
        files["report.json"] = encoded(report.to_json() + "\n")
    sums = {SUMS: encoded(sums_text("", files))}  # first: files of two bundles are never taken for one
    try:
        make_folder(path)
        write_together(path, {**sums, **dict.fromkeys(OPTIONAL), **files})
    except OSError as error:
        raise FormatError(f"Expected to write the bundle to {path}, but: {error}.") from None
    return load_bundle(path, modules_named(spec.get("net"), spec.get("rule"), spec.get("data")), largest=sys.maxsize)


def stored(model: nn.Module, auxiliaries: Mapping[str, Tensor], **more: Tensor) -> dict[str, Tensor]:
    """Return tensors as a file keeps them: net.* and aux.*, on the CPU."""
    tensors = {f"net.{k}": v for k, v in unwrap(model).state_dict().items()}
    tensors |= {f"aux.{k}": v for k, v in auxiliaries.items()} | more
    odd = next((k for k, v in tensors.items() if not isinstance(v, Tensor)), None)
    if odd is not None:
        raise InputError(f"Expected tensors only, but {odd} is a {type(tensors[odd]).__name__}.")
    # Cloned: safetensors refuses tensors that share memory, and tied weights do.
    return {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}


def tensors_sum(tensors: Mapping[str, Tensor], rows: str) -> str:
    """Return the SHA-256 of tensors on the CPU, with their names, types and shapes, and of the rows kept with them."""
    hashed = hashlib.sha256(rows.encode())
    for name, tensor in sorted(tensors.items()):
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        hashed.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return hashed.hexdigest()


def _text(value: Any, name: str, indent: int | None = None) -> str:
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"Expected {name} to hold what JSON can hold, but: {error}.") from None


def _spelled(value: Any) -> Any:
    """Spell out NaN, which rows of a run that exploded hold and JSON has no number for; judge reads it."""
    if isinstance(value, Mapping):
        return {k: _spelled(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_spelled(v) for v in value]
    if isinstance(value, float) and not isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value


def load_bundle(path: str | Path, trust: Iterable[str] = (), largest: int = LARGEST_WEIGHTS) -> Bundle:
    """Read a bundle folder. Nothing that its spec names is imported, now or later, but for modules in `trust`.

    Args:
        path: the folder.
        trust: names of modules, or of packages around them, whose functions the spec may name as its network, rule or
            data. A bundle of networks and rules that Walkback has needs none.
        largest: bytes that its weights may have.

    >>> import walkback as wb
    >>> load_bundle(wb.selftest.BUNDLES / "bp").spec["rule"]
    'bp'
    """
    path, trust = Path(path), _names(trust)
    _completed(path)
    if not (path / "spec.json").is_file():
        raise FormatError(
            f"Expected a bundle at {path}, a folder with spec.json and weights.safetensors, but there is no spec.json."
        )
    spec: Any = read_table(path / "spec.json")
    if (got := schema_of(spec)) != SCHEMA:
        raise FormatError(f"Expected {path / 'spec.json'} to be of schema {SCHEMA}, but got {cut(got)}.")
    weights = path / "weights.safetensors"
    if not weights.exists() and (path / "report.json").exists():
        raise FormatError(
            f"Expected weights in {path}, but it is the record of a run that was kept without them. What was measured "
            f"is in its report: walkback judge {path / 'report.json'}"
        )
    check_sums(path, (*RECORD, WEIGHTS), largest=largest)
    if weights.exists() and not weights.is_file():  # a pipe would be waited for
        raise FormatError(f"Expected {weights} to hold the weights, but it is a folder, pipe or device.")
    check_size(weights, largest)
    try:
        tensors = load_file(weights)
    except (OSError, SafetensorError, MemoryError) as error:
        raise FormatError(f"Expected {weights} to hold the weights, but: {error}.") from None
    parts: dict[str, dict[str, Tensor]] = {"net": {}, "aux": {}}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition(".")
        if kind not in parts:
            raise FormatError(f"Expected tensors named net.* or aux.* in {path}, but got {name}.")
        parts[kind][rest] = tensor
    return Bundle(path, _checked(spec, path / "spec.json"), parts["net"], parts["aux"], trust)


def _completed(path: Path) -> None:
    """Do what a killed `save_bundle` left undone over an older bundle; the sums of a run are of its training."""
    sums = read_sums(path)
    if sums is not None and not sums["spec"]:
        with suppress(OSError):  # of a place that can't be written the sums tell
            complete(path, sums["sha256"], [name for name in OPTIONAL if name not in sums["sha256"]])


def _names(trust: Iterable[str]) -> frozenset[str]:
    names = [trust] if isinstance(trust, str) else list(trust)
    odd = next((n for n in names if not isinstance(n, str) or not re.fullmatch(r"\w+(\.\w+)*", n)), None)
    if odd is not None:
        raise InputError(f"Expected trust to list modules by name, such as mine.nets, but got {shown(odd)}.")
    return frozenset(names)


def _checked(spec: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the spec of a bundle; refuse one whose values no network could be built from."""
    shape, classes = spec.get("input_shape"), spec.get("classes")
    if "input_shape" in spec:
        listed = isinstance(shape, list) and 0 < len(shape) <= 5 and all(_is_size(n) for n in shape)
        if not listed or prod(shape or ()) > MOST:
            raise FormatError(f"Expected input_shape in {path} to list sizes, such as [3, 32, 32], got {shown(shape)}.")
        if not _is_size(classes):
            raise FormatError(f"Expected classes in {path} to be a whole number above 0, but got {shown(classes)}.")
        try:
            RunSpec(**run_fields({k: v for k, v in spec.items() if k in RunSpec.model_fields}))
        except InputError as error:
            raise FormatError(f"{path}: {error}") from None
    for name in ("net_options", "rule_options"):
        if not isinstance(spec.get(name) or {}, dict):
            raise FormatError(f"Expected {name} in {path} to be an object, but got {shown(spec[name])}.")
    return spec


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST
