"""A small store for the page: passes, failures, missing controls, and texts that would be code if not escaped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from made_runs import EXPLODED, HEALTHY, right, write_run
from walkback.audit.records import Record, Records, read_records
from walkback.notes import Note
from walkback.training.control import control_spec
from walkback.training.spec import RunSpec

ATTACK = "<script>window.hacked = 1</script>"
NOTE = f"lab note {ATTACK} <!-- & \u2028 ' \" </script> ]]>"
EPOCHS = 12
BP = RunSpec(rule="bp", epochs=EPOCHS, seed=0)
DFA = RunSpec(rule="dfa", epochs=EPOCHS, seed=0)
FA = RunSpec(rule="fa", epochs=EPOCHS, seed=0)
OTHER = RunSpec(rule=f"mine:{ATTACK}".replace("/", ""), epochs=EPOCHS, seed=0, optimiser={"lr": 8e-3})


def seeded(spec: RunSpec, seed: int) -> RunSpec:
    return RunSpec(**{**spec.model_dump(), "seed": seed})


def course(epoch: int) -> dict:
    """D1 flags from epoch 4 on, D2 from epoch 7."""
    h = (10.0, 20.0, 30.0, 40.0, 50.0) if epoch < 4 else (1e3, 1e5, 1e5, 1e5, 1e5)
    return {"h": h, "g": (1e-3 if epoch < 7 else 5e-9,) * 5, "acc": 0.30 + epoch / 1000}


def edit(folder: Path, **fields) -> None:
    """Other values in a run's report.json; `per_layer` is added to."""
    path = folder / "report.json"
    report = json.loads(path.read_text())
    report["per_layer"] |= fields.pop("per_layer", {})
    path.write_text(json.dumps(report | fields))


def build(store: Path) -> Path:
    """BP passes on two seeds, DFA fails on two and has a control for one, FA has none, one rule is not ours."""
    for seed in (0, 1):
        bp, dfa = seeded(BP, seed), seeded(DFA, seed)
        write_run(store, bp, 0.60 + seed / 100, **HEALTHY)
        write_run(store, control_spec(bp), 0.45, **HEALTHY)
        write_run(store, dfa, 0.306 + seed / 100, at=course, fresh={"gamma": (0.001, 0.005)}, **EXPLODED)
    write_run(store, control_spec(DFA), 0.35, correct=right(0.35, shift=3), **HEALTHY)
    edit(store / BP.name, per_layer={"null_low": [-0.1] * 5, "null_high": [0.1] * 5})
    edit(store / DFA.name, aggregates={"layers": 0.105, "samples": 0.2, "batches": -0.05, "flattened": 0.01})
    write_run(store, FA, 0.48, h=(10.0, 11.0, 12.0, 13.0, 14.0), g=(1e-5,) * 5, cosine=(0.01, 0.1, 0.1, 0.2, 1.0))
    other = write_run(store, replace_slash(OTHER), 0.5, **{**HEALTHY, "g": (3e-4,) * 5})
    edit(
        other,
        notes=[Note("remark", None, {"text": NOTE}).to_dict()],
        method=f"mine {ATTACK}",
        conditions={"loss": f"cross-entropy {ATTACK}"},
    )
    unfinished = store / f"half {ATTACK.replace('/', ' ')}"
    unfinished.mkdir()
    (unfinished / "spec.json").write_text("{}")
    return store


def replace_slash(spec: RunSpec) -> RunSpec:
    """A folder can't have a slash in its name."""
    return RunSpec(**{**spec.model_dump(), "rule": spec.rule.replace("/", "")})


def many(store: Path, count: int = 500) -> Records:
    """As many runs as asked for, of settings and seeds of their own; the numbers of a few are read once and shared."""
    rules = {"bp": HEALTHY, "dfa": EXPLODED, "fa": HEALTHY}
    for rule, last in rules.items():
        write_run(store, RunSpec(rule=rule, epochs=40, seed=0), 0.5, **last)
    originals = {run.spec.rule: run for run in read_records(store)}
    runs = []
    for i in range(count):
        rule = list(rules)[i % len(rules)]
        spec = RunSpec(rule=rule, epochs=40, seed=i // 30, penalty=(i % 30) / 1000)
        runs.append(_copy(originals[rule], spec, store))
    return Records(store, tuple(runs))


def _copy(run: Record, spec: RunSpec, store: Path) -> Record:
    made = replace(run, spec=spec, path=store / spec.name)
    vars(made).update(measurements=run.measurements, epochs=run.epochs)
    return made
