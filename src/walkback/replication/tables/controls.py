"""What trained blocks are compared with: four controls side by side."""

from __future__ import annotations

from typing import Any

from walkback.audit.linear_probe import read_linear_probe
from walkback.audit.settings import Judged
from walkback.errors import FormatError
from walkback.replication.tables.build import DEPTH, OURS, Draft, count, depth_cell, evidence_table
from walkback.report.table import NONE, Cell, Stat, spread, stat
from walkback.verdict.files import read_table


@evidence_table(
    215,
    "Four controls: the gain of trained blocks over each, in pp, ResMLP d=256 L=4 on CIFAR-10, 100 epochs",
    "rule | figures | n | acc | rule stem (primary) | BP stem | re-randomised | linear probe",
    DEPTH,
    "re-randomised: the trained network with its blocks drawn anew and its readout refitted (from its record, or "
    "outcomes.json); linear probe: a linear model of the pixels, the same for all rules",
)
def controls(t: Draft) -> None:
    """Four controls side by side: frozen blocks under a stem by the rule or by BP, random blocks, the pixels alone."""
    labels, floors = _labels(t), _floors(t)
    for flag, name, setting in t.primary():
        j = t.judged(setting)
        floor = floors.get(setting.data)
        over = None if floor is None else stat(100 * (run.accuracy - floor) for run in j.runs)
        cells = [depth_cell(j), depth_cell(j, "bp"), _outcome(j, labels), _pp(over)]
        t.row(name, OURS[flag], count(len(j.runs)), spread(j.stat("acc"), "acc"), *cells)


def _outcome(j: Judged, labels: dict[str, float]) -> Cell:
    """Return the outcome over the seeds whose record or label has it, and how many do."""
    each = (labels.get(run.spec.name) if run.depth is None else run.depth.worth_pp for run in j.runs)
    return _pp(stat(each))


def _pp(value: Stat | None) -> Cell:
    return Cell(NONE) if value is None else spread(value, "pp")


def _labels(t: Draft) -> dict[str, float]:
    path = t.records.folder / "outcomes.json"
    if not path.is_file():
        return {}
    try:
        table: Any = read_table(path)
        return {name: float(row["gain_pp"]) for name, row in table["runs"].items()}
    except (FormatError, LookupError, TypeError, ValueError, AttributeError):
        t.notes.append(f"not read: {path}, which should hold `runs` with a gain_pp each")
        return {}


def _floors(t: Draft) -> dict[str, float]:
    try:
        return {name: record["accuracy"] for name, record in read_linear_probe(t.records.folder).items()}
    except FormatError as error:
        t.notes.append(f"not read: {error}")
        return {}
