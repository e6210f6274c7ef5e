"""Specs in words, and as the commands that train them; which runs a setting lacks."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from walkback.audit.plans import SEEDS
from walkback.audit.records import Records
from walkback.audit.settings import LABELS, Setting, seedless, select
from walkback.training.spec import RunSpec, control_spec


def lacking(records: Records, setting: Setting, controls: bool = True) -> list[RunSpec]:
    """Return the specs a setting needs for its three seeds and that are not there, its controls with them."""
    runs = {run.spec.seed: run.spec for run in select(records, setting)}
    like = next(iter(runs.values()), setting.spec(SEEDS[0]))  # their epochs, and the options of a rule of one's own
    specs = [runs.get(seed) or RunSpec(**{**like.model_dump(), "seed": seed}) for seed in SEEDS]
    out = [spec for spec in specs if spec.seed not in runs]
    if controls and setting.scope == "all":
        needed = [control_spec(spec, stem) for stem in ("rule", "bp") for spec in specs]
        out += [spec for spec in needed if records.find(spec) is None]
    return out


def commands(specs: Iterable[RunSpec], store: Path) -> list[str]:
    """Return lines "what: command", one for all seeds of a spec."""
    seeds: dict[RunSpec, list[int]] = {}
    for spec in specs:
        same = seeds.setdefault(seedless(spec), [])
        if spec.seed not in same:
            same.append(spec.seed)
    return [f"{describe(spec)}, seed {' '.join(map(str, s))}: {command(spec, s, store)}" for spec, s in seeds.items()]


def describe(spec: RunSpec) -> str:
    """Return a spec in a few words."""
    rule = [LABELS.get(spec.rule, spec.rule), *worded(spec.rule_options)]
    return ", ".join(setting_words(spec, *rule, *(["frozen blocks"] if spec.scope == "frozen" else [])))


def setting_words(spec: RunSpec, *rule: str) -> list[str]:
    """Return everything but rule, scope and seed of a spec in words, `rule` after the data."""
    words = [spec.net, *worded(spec.net_options), spec.data, *rule, *penalty_words(spec), *spec.conventions]
    return [*words, *other_optimiser(spec), *how_long(spec)]


def worded(options: Mapping[str, Any]) -> list[str]:
    """Return options as "name value" each; of one that is switched on, the name."""
    return [name if value is True else f"{name} {value}" for name, value in options.items()]


def penalty_words(spec: RunSpec) -> list[str]:
    """Return the penalty in words, nothing where there is none."""
    return [f"λ {spec.penalty:g}"] if spec.penalty else []


def how_long(spec: RunSpec) -> list[str]:
    """Return epochs and augmentation in words, as in ['1 epoch', 'plain']."""
    return [f"{spec.epochs} epoch{'s' * (spec.epochs != 1)}", "augmented" if spec.augment else "plain"]


def other_optimiser(spec: RunSpec) -> list[str]:
    """Return what differs from the papers' optimiser, in words, as in ['lr 0.008', 'schedule constant']."""
    changed = spec.optimiser.model_dump(exclude_defaults=True)
    return worded({k.replace("_", " "): v for k, v in changed.items()})


def command(spec: RunSpec, seeds: Sequence[int], store: Path) -> str:
    """Return what trains a spec with these seeds, for a shell.

    >>> command(RunSpec(rule="dfa", penalty=0.01), [42], Path("runs"))
    'walkback train --rule dfa --data cifar10 --epochs 100 --penalty 0.01 --seed 42 --out runs'
    """
    options: dict[str, Any] = {"net": spec.net} if spec.net != "resmlp" else {}
    options |= {"rule": spec.rule, "data": spec.data, "epochs": spec.epochs}
    options |= {"scope": "frozen"} if spec.scope == "frozen" else {}
    options |= {"penalty": repr(spec.penalty)} if spec.penalty else {}
    conventions = ("penalty_over", "credit_site", "credit_length", "penalty_stem", "augment")
    given = {name: getattr(spec, name) for name in conventions}
    options |= {name: value for name, value in given.items() if value != RunSpec.model_fields[name].default}
    options |= spec.optimiser.model_dump(exclude_defaults=True)
    more = {name: getattr(spec, name) for name in ("net_options", "rule_options")}
    options |= {name: json.dumps(value) for name, value in more.items() if value}
    words = ["walkback", "train"]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    line, out = shlex.join(words), shlex.quote(str(store))
    if len(seeds) == 1:
        return f"{line} --seed {seeds[0]} --out {out}"
    return f"for s in {' '.join(map(str, seeds))}; do {line} --seed $s --out {out}; done"
