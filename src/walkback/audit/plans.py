"""What to train: plans by name, as plain data, and plans of your own in TOML. Both have the same form.

A plan is one or more grids over the fields of RunSpec; every run of it gets the frozen controls that D3 compares it
with. Runs are named by what they are, so plans that share a run train it once.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from walkback.audit.as_published import AS_PUBLISHED, NETWORKS
from walkback.audit.records import canonical, net_options, rule_options
from walkback.errors import FormatError, InputError, shown
from walkback.files import read_file
from walkback.registry import closest, is_entry, names_in
from walkback.training.spec import Optimiser, RunSpec, control_spec

SEEDS = (42, 123, 456)
DRAWS = (1, 2, 3, 4, 5, 6)  # seeds of B
MORE_SEEDS = (*SEEDS, 789, 1024, 2048)

# Options of each rule in the papers' setting. EP is their control of low accuracy: its relaxation is cut short, so the
# nudge reaches the last two blocks only.
RULE_OPTIONS: dict[str, dict[str, Any]] = {
    "bp": {}, "fa": {}, "dfa": {}, "state-bridge": {}, "credit-bridge": {}, "ep": {"steps": 2},
}  # fmt: skip
ALL_RULES = tuple(RULE_OPTIONS)
THREE_RULES = ("bp", "fa", "dfa")

# Flip and crop everywhere but in primary-plain: BP and the frozen control reach their published accuracy with it only.
IMAGES = {"augment": True, "seed": SEEDS}
SHORT = {**IMAGES, "epochs": 30}  # of interventions; cells without a penalty are shared between plans
SINGLE = {**IMAGES, "epochs": 1, "seed": MORE_SEEDS}  # the first epoch of any of them: the schedule starts the same

PLANS: dict[str, dict[str, Any]] = {
    "primary": {
        "about": "six rules and their frozen controls, ResMLP d=256 L=4 on CIFAR-10, flip and crop, 100 epochs",
        "grid": [{**IMAGES, "rule": ALL_RULES}],
    },
    "primary-plain": {
        "about": "the same without augmentation",
        "grid": [{**IMAGES, "rule": ALL_RULES, "augment": False}],
    },
    "wide-shallow": {
        "about": "BP, FA, DFA on ResMLP d=512 L=2",
        "grid": [{**IMAGES, "rule": THREE_RULES, "net_options": {"width": 512, "depth": 2}}],
    },
    "wide": {
        "about": "BP, FA, DFA on ResMLP d=512 L=4",
        "grid": [{**IMAGES, "rule": THREE_RULES, "net_options": {"width": 512}}],
    },
    "cross-arch": {
        "about": "BP, FA, DFA on ViT-Mini (30 epochs), ResMLP without terminal LN, StudentNet on its linear teacher; "
        "six rules on SmallCNN (30 epochs)",
        "grid": [
            {**SHORT, "rule": THREE_RULES, "net": "vit-mini"},
            {**IMAGES, "rule": THREE_RULES, "net_options": {"terminal_norm": False}},
            {"seed": SEEDS, "rule": THREE_RULES, "net": "student", "data": "teacher-linear"},
            {**SHORT, "rule": ALL_RULES, "net": "small-cnn"},
        ],
    },
    "lambda-sweep": {
        "about": "the penalty λ‖f‖² on DFA, FA and BP, 30 epochs",
        "grid": [
            {**SHORT, "rule": "dfa", "penalty": [0.0, 1e-4, 1e-3, 1e-2, 1e-1]},
            {**SHORT, "rule": "fa", "penalty": [0.0, 1e-4, 1e-2]},
            {**SHORT, "rule": "bp", "penalty": [0.0, 1e-2]},
        ],
    },
    "matched-penalty": {
        "about": "State Bridge, FA, Credit Bridge and DFA under the same λ = 1e-2, 30 epochs",
        "grid": [{**SHORT, "rule": ("state-bridge", "fa", "credit-bridge", "dfa"), "penalty": 1e-2}],
    },
    "capacity": {
        "about": "BP and DFA with and without λ = 1e-2: does the penalty cost BP what it gives DFA? 30 epochs",
        "grid": [{**SHORT, "rule": ("bp", "dfa"), "penalty": [0.0, 1e-2]}],
    },
    "early-epochs": {
        "about": "BP, FA, DFA over 30 epochs for their first rows; DFA stopped after one epoch, with all its probes, "
        "on six seeds",
        "grid": [{**SHORT, "rule": THREE_RULES}, {**SINGLE, "rule": "dfa"}],
    },
    "cifar100": {
        "about": "BP, FA, DFA on CIFAR-100",
        "grid": [{**IMAGES, "rule": THREE_RULES, "data": "cifar100"}],
    },
    "credit-site": {
        "about": "FA and DFA with the credit of the site a block writes, or of the site it reads, 30 epochs",
        "grid": [{**SHORT, "rule": ("fa", "dfa"), "credit_site": ["writer", "reader"]}],
    },
    "unit-credit": {
        "about": "FA and DFA with credit of unit length, of the site a block reads: what fits DFA's published figures; "
        "DFA so with λ = 1e-2, 30 epochs",
        "grid": [
            {**IMAGES, "rule": ("fa", "dfa"), "rule_options": {"unit": True}, "credit_site": "reader"},
            {**SHORT, "rule": "dfa", "rule_options": {"unit": True}, "credit_site": "reader", "penalty": 1e-2},
        ],
    },
    "as-published": {
        "about": "the papers' conventions as far as they are decoded: six rules on ResMLP d=256 L=4, on d=512 L=2 and "
        "on CIFAR-100; what is published first",
        "grid": [
            {**IMAGES, **AS_PUBLISHED[rule], **where}
            for rules in (THREE_RULES, [rule for rule in ALL_RULES if rule not in THREE_RULES])
            for where in ({}, {"net_options": {"width": 512, "depth": 2}}, {"data": "cifar100"})
            for rule in rules
        ],
    },
    "as-published-penalty": {
        "about": "the penalty λ‖f‖² under the papers' conventions, 30 epochs",
        "grid": [
            *({**SHORT, **AS_PUBLISHED["dfa"], "penalty": λ} for λ in (0.0, 1e-4, 1e-3, 1e-2, 1e-1)),
            *({**SHORT, **AS_PUBLISHED["fa"], "penalty": λ} for λ in (0.0, 1e-4, 1e-2)),
            *({**SHORT, **AS_PUBLISHED["bp"], "penalty": λ} for λ in (0.0, 1e-2)),
            *({**SHORT, **AS_PUBLISHED[rule], "penalty": 1e-2} for rule in ("state-bridge", "credit-bridge")),
        ],
    },
    "as-published-networks": {
        "about": "BP, FA, DFA under the papers' conventions on ViT-Mini and SmallCNN in pre-activation form (30 epochs "
        "each), on ResMLP without terminal LN, and on StudentNet with its linear teacher",
        "grid": [
            {**fields, **AS_PUBLISHED[rule]}
            for fields in (
                {**SHORT, "net": "vit-mini"},
                {**IMAGES, "net_options": {"terminal_norm": False}},
                {**SHORT, "net": "small-cnn", "net_options": NETWORKS["small-cnn"]},
                {"seed": SEEDS, "net": "student", "data": "teacher-linear"},
            )
            for rule in THREE_RULES
        ],
    },
    "feedback-draws": {
        "about": "DFA with six draws of B crossed with three initialisations, 4 epochs at a constant rate: which of "
        "the two do growth, ‖g_L‖, Γ and accuracy vary with?",
        "controls": False,
        "grid": [
            {
                "rule": "dfa",
                "rule_options": {"draw_seed": DRAWS},
                "seed": SEEDS,
                "epochs": 4,
                "optimiser": {"schedule": "constant"},
            }
        ],
    },
}  # fmt: skip
FULL = "full"
MOST_RUNS = 100_000  # of one grid: lists that combine to more would be counted out for hours


@dataclass(frozen=True)
class Plan:
    """Runs to train, each once: the runs and their frozen controls."""

    name: str
    about: str
    specs: tuple[RunSpec, ...]

    @property
    def models(self) -> int:
        """Runs that train their blocks; the others are controls."""
        return sum(spec.scope == "all" for spec in self.specs)

    @property
    def settings(self) -> int:
        """Distinct combinations of everything but rule, scope and seed."""
        apart = {"rule", "rule_options", "scope", "seed"}
        rest = [spec.model_dump(exclude=apart) for spec in self.specs if spec.scope == "all"]
        return len({json.dumps(fields, sort_keys=True) for fields in rest})

    def __str__(self) -> str:
        controls = len(self.specs) - self.models
        return (
            f"{self.name}: {counted(len(self.specs), 'run')}: {counted(self.models, 'model')} in "
            f"{counted(self.settings, 'setting')}, and {counted(controls, 'frozen control')}"
        )


def counted(number: int, noun: str) -> str:
    """Return a number of things: 1 run, 2 runs."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def names() -> tuple[str, ...]:
    """Return the names of the plans there are."""
    return (*PLANS, FULL)


def plan(name: str | Path) -> Plan:
    """Return a plan by name, or from a TOML file.

    >>> print(plan("capacity"))
    capacity: 18 runs: 12 models in 2 settings, and 6 frozen controls
    """
    if str(name) in PLANS:
        return _plan(str(name), PLANS[str(name)], RULE_OPTIONS)
    if str(name) == FULL:
        specs = unique(spec for each in PLANS for spec in plan(each).specs)
        return Plan(FULL, "all of the above, what they share trained once", specs)
    path = Path(name)
    if path.suffix != ".toml":
        hint = closest(str(name), names())
        raise InputError(f"Expected a plan ({', '.join(names())}) or a .toml file, but got {shown(str(name))}.{hint}")
    try:
        return _plan(path.stem, tomllib.loads(read_file(path).decode("utf-8-sig")), {}, where=f"{path}: ")
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"Expected to read the plan {path}, but: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise FormatError(f"Expected {path} to be TOML, but: {error}.") from None


def with_controls(specs: Iterable[RunSpec]) -> tuple[RunSpec, ...]:
    """Return each run, the control with the stem trained by the same rule, and the one with the stem trained by BP."""
    specs = list(specs)
    runs = [spec for spec in specs if spec.scope == "all"]
    return unique([*specs, *(control_spec(spec) for spec in runs), *(control_spec(spec, "bp") for spec in runs)])


def unique(specs: Iterable[RunSpec]) -> tuple[RunSpec, ...]:
    """Return each run once, in the order of their first appearance; two runs under one name are an error."""
    found: dict[str, RunSpec] = {}
    for spec in specs:
        if found.setdefault(spec.name, spec) != spec:
            raise InputError(
                f"Expected one run per name, but two different specs are called {spec.name}: {spec} and "
                f"{found[spec.name]}. They can't share a store: put them in two plans with a store each."
            )
    return tuple(found.values())


# -- from data to runs ---------------------------------------------------------------------------------------


def _plan(name: str, data: Mapping[str, Any], rule_options: Mapping[str, dict[str, Any]], where: str = "") -> Plan:
    _refuse_unknown(data, ("about", "controls", "fixed", "grid"), f"{where}Expected a plan with", "")
    grids, fixed, controls = data.get("grid"), data.get("fixed", {}), data.get("controls", True)
    if not isinstance(controls, bool):
        raise InputError(f"{where}Expected controls to be true or false, but got {shown(controls)}.")
    if not isinstance(fixed, Mapping):
        raise InputError(f"{where}Expected fixed to be a table of fields, but got {shown(fixed)}.")
    if not isinstance(grids, list) or not grids or not all(isinstance(grid, Mapping) and grid for grid in grids):
        raise InputError(
            f'{where}Expected at least one [[grid]] with a field in it, such as rule = ["bp", "dfa"], but got '
            f"{_instead(grids)}."
        )
    specs, known = list[RunSpec](), _names()
    origin: dict[RunSpec, int] = {}
    for number, grid in enumerate(grids, 1):
        place = f"{where}[[grid]] {number}: " if where else ""
        for fields in _cells(fixed, grid, place):
            rule = fields.get("rule")
            if "rule_options" not in fields and isinstance(rule, str) and rule in rule_options:
                fields["rule_options"] = rule_options[rule]
            spec = _spec(fields, known, place)
            same = canonical(spec)
            if same in origin:
                raise InputError(
                    f"{place}Expected every run once, but {spec.name} is already in [[grid]] {origin[same]}. Two specs "
                    "with one name would be one run, and so would two that differ in an option that only repeats its "
                    "default: remove a repeated value, or one of the two."
                )
            origin[same] = number
            specs.append(spec)
    return Plan(name, str(data.get("about", "")), with_controls(specs) if controls else unique(specs))


def _instead(grids: Any) -> str:
    if isinstance(grids, Mapping):
        return "one table, written [grid]"
    strange = [grid for grid in grids if not isinstance(grid, Mapping)] if isinstance(grids, list) else [grids]
    return f"grid = {shown(strange[0])}" if any(strange) else "an empty one" if grids else "none"


def _cells(fixed: Mapping[str, Any], grid: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
    """Return every combination of a grid: a list is an axis, also one level down; the rest is the same for all."""
    axes: dict[tuple[str, ...], Sequence[Any]] = {}
    for key, value in grid.items():
        inner = {(key, name): v for name, v in value.items()} if isinstance(value, Mapping) else {(key,): value}
        for path, values in inner.items():
            axes[path] = values if isinstance(values, (list, tuple)) else [values]
            if not axes[path]:
                raise InputError(f"{where}Expected {'.'.join(path)} to list values, but the list is empty: no run.")
    for key, value in fixed.items():
        inner = value.items() if isinstance(value, Mapping) and not key.endswith("_options") else ((None, value),)
        for name, v in inner:
            if isinstance(v, list):
                at = f"{key}.{name}" if name else key
                raise InputError(
                    f"{where}Expected one value of {at} in [fixed], but got {shown(v)}. A list is an axis: put it into "
                    "[[grid]]."
                )
    if (count := prod(map(len, axes.values()))) > MOST_RUNS:
        raise InputError(
            f"{where}Expected a grid of at most {MOST_RUNS} runs, but its lists combine to {count}. Make several "
            "plans, with shorter lists."
        )
    for values in product(*axes.values()):
        fields = {key: dict(value) if isinstance(value, Mapping) else value for key, value in fixed.items()}
        for path, value in zip(axes, values):
            if len(path) == 1:
                fields[path[0]] = value
            else:
                nested = fields.setdefault(path[0], {})
                if not isinstance(nested, dict):
                    raise InputError(f"{where}Expected {path[0]} to be a table everywhere, but got {shown(nested)}.")
                nested[path[1]] = value
        yield fields


def _names() -> dict[str, list[str]]:
    """Return the names that each of these fields of a spec may take; they are read from files, so once for a plan."""
    data = [*names_in("walkback.data", "EMBEDDED"), *names_in("walkback.data", "SOURCES")]
    return {"net": names_in("walkback.nets", "NETS"), "rule": names_in("walkback.rules", "RULES"), "data": data}


def _spec(fields: dict[str, Any], names: Mapping[str, list[str]], where: str) -> RunSpec:
    _refuse_unknown(fields, RunSpec.model_fields, f"{where}Expected a run with", "")
    if isinstance(fields.get("optimiser"), Mapping):
        _refuse_unknown(fields["optimiser"], Optimiser.model_fields, f"{where}Expected", "optimiser.")
    try:
        spec = RunSpec(**fields)
        _ = spec.name
    except InputError as error:
        raise InputError(f"{where}{error}") from None
    for field, table in names.items():
        name = getattr(spec, field)
        if name not in table and not is_entry(name):
            raise InputError(
                f"{where}Expected {field} to be one of {', '.join(table)} or module:function, but got {shown(name)}."
                f"{closest(name, table)}"
            )
    for field, options in (("net", net_options), ("rule", rule_options)):
        name = getattr(spec, field)
        if name in names[field]:
            given = getattr(spec, f"{field}_options")
            _refuse_unknown(given, options(name), f"{where}Expected of {name}", f"{field}_options.")
    return spec


def _refuse_unknown(given: Mapping[str, Any], known: Iterable[str], expected: str, prefix: str) -> None:
    """Refuse a key that is not known, and say which one was probably meant."""
    known = list(known)
    for key in given:
        if key not in known:
            names = ", ".join(prefix + name for name in known) or "no options"
            raise InputError(f"{expected} {names}, but got {prefix}{key}.{closest(key, known)}")
