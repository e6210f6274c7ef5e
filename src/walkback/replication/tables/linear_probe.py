"""The floor under every network: what the pixels alone reach."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from walkback.audit.linear_probe import read_linear_probe, train_linear_probe
from walkback.audit.settings import RULES, Setting
from walkback.errors import FormatError
from walkback.replication.published import figures
from walkback.replication.tables.build import AGREES, OURS, THREE, Against, Draft, accuracies, count, evidence_table
from walkback.report.table import NONE, Cell, Stat, spread

__all__ = ["linear_probe", "train_linear_probe"]


@evidence_table(
    220,
    "The pixels alone: multinomial logistic regression as a floor for ResMLP d=256 L=4, 100 epochs",
    "data | model | figures | n | acc | over the pixels, pp | published | agrees?",
    AGREES,
)
def linear_probe(t: Draft) -> None:
    """The floor: what a linear model of the pixels reaches, and how far networks are above it."""
    try:
        probes, unread = read_linear_probe(t.records.folder), []
    except FormatError as error:
        probes, unread = {}, [f"not read: {error}"]
    t.notes[:0] = [*unread, *(f"recipe on {name}: {_recipe(record)}" for name, record in probes.items())]
    for data in ("cifar10", "cifar100"):
        floor = probes[data]["accuracy"] if data in probes else None
        own = Cell(NONE) if floor is None else Cell(f"{floor:.3f}", floor)
        beside = Against("acc", NONE, floor, figures("linear-probe", data, what="acc"))
        t.row(data, "linear model of the pixels", NONE, count(int(floor is not None)), own, beside)
        if floor is None:
            command = f"walkback evidence linear-probe --data {data} --root DIR --from {t.records.folder}"
            t.missing.append(f"linear probe on {data}: {command}")
        trained = RULES if data == "cifar10" else THREE
        settings = [Setting(rule, data=data, scope=scope) for scope in ("frozen", "all") for rule in trained]
        for flag in t.variants(settings):
            for setting in settings:
                runs, rule = t.runs(replace(setting, augment=flag)), RULES[setting.rule]
                acc = accuracies(runs)
                over = Cell(NONE) if floor is None or acc is None else _pp(acc, floor)
                model = rule if setting.scope == "all" else f"frozen blocks, {rule} stem"
                t.row(data, model, OURS[flag], count(len(runs)), spread(acc, "acc"), over, NONE, NONE)


def _pp(acc: Stat, floor: float) -> Cell:
    return spread(Stat(tuple(100 * (v - floor) for v in acc.values)), "pp")


def _recipe(record: dict[str, Any]) -> str:
    r = record["recipe"]
    return (
        f"{r['model']}; {r['name']} lr {r['lr']:g}, weight decay {r['weight_decay']:g}, {r['schedule']} schedule, "
        f"batch {r['batch_size']}, {r['epochs']} epochs, seed {r['seed']}; training accuracy "
        f"{record['train_accuracy']:.3f}"
    )
