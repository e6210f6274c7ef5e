"""Numbers that figures draw and that no table has, from finished runs: the figures themselves compute nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from walkback.audit.discoveries import with_discovery_rate
from walkback.audit.records import Record, Records
from walkback.audit.settings import LABELS, RULES, Setting, alike, judged, judged_runs
from walkback.audit.wording import how_long, other_optimiser, penalty_words, worded
from walkback.replication.agree import agrees_any
from walkback.replication.published import figures
from walkback.replication.tables.build import accuracies, depth_cell, verdict_cell
from walkback.replication.tables.courses import Moment, first_epochs
from walkback.report.table import Stat, spread, stat
from walkback.training.spec import RunSpec

Row = dict[str, Any]
Rule = tuple[str, tuple[str, ...]]  # its name, and what tells settings of one rule apart


def own_tasks(records: Records, most: int = 3) -> list[tuple[str, list[tuple[Rule, Row]]]]:
    """Return the tasks of a store on which several rules have a control, each with a row per rule.

    A task is all but the rule, its options and its conventions. Those without a penalty come first, then those trained
    longest, those with the most rules, and those with the most runs.
    """
    tasks: dict[str, list[tuple[Rule, Row]]] = {}
    ranks: dict[str, tuple[bool, int]] = {}
    claims = {spec: judged_runs(records, runs) for spec, runs in alike(records).items() if spec.scope == "all"}
    for spec, j in with_discovery_rate(claims)[0].items():  # as the page of a store has them
        runs = j.runs
        if j.depth is None or j.depth.value is None:  # a rule without a control
            continue
        same = [spec.net, *worded(spec.net_options), spec.data, *penalty_words(spec), *other_optimiser(spec)]
        name = LABELS.get(spec.rule, spec.rule), (*worded(spec.rule_options), *spec.conventions)
        kept = [[c for run in runs if (c := records.control(run, stem)) is not None] for stem in ("rule", "bp")]
        row = {"rule": name[0], "n": len(runs), "controls": [c and c.mean for c in map(accuracies, kept)]}
        row |= {"acc": spread(j.stat("acc"), "acc").raw, "Γ": spread(j.stat("gamma"), "cos").raw}
        row |= {"D3 pp": depth_cell(j).raw, "D3 pp, BP stem": depth_cell(j, "bp").raw}
        row |= {"three-check": verdict_cell(j, "three-check").raw}
        task = ", ".join([*same, *how_long(spec)])
        ranks[task] = (spec.penalty > 0, -spec.epochs)
        tasks.setdefault(task, []).append((name, row))
    several = [(task, rows) for task, rows in tasks.items() if len(rows) > 1]
    several.sort(key=lambda kv: (*ranks[kv[0]], -len(kv[1]), -sum(row["n"] for _, row in kv[1])))
    return several[:most]


class Compared(NamedTuple):
    """A published figure beside ours: the mean over seeds, its standard deviation, and whether they agree."""

    published: float
    ours: float
    std: float
    agree: bool


def beside_published(where: str, row: Row, column: str, what: str) -> Compared | None:
    """Return a cell of a table beside the first firm figure that is published without other conditions, if any."""
    codes = {label: code for code, label in RULES.items()}
    cell, code = row.get(column), codes.get(row["rule"])
    given = figures(where, code, what=what) if code and cell else ()
    firm = [f for f in given if isinstance(f.value, float) and not (f.unlike or f.bound or f.rough or f.penalty)]
    if not firm or not cell:
        return None
    return Compared(firm[0].number, cell["mean"], cell["std"] or 0.0, agrees_any(cell["mean"], given) is True)


def with_neighbours(records: Records) -> list[tuple[RunSpec, tuple[Record, ...]]]:
    """Return the settings whose cosines with neighbouring sites were measured: tasks with many rules first."""
    settings = [
        (spec, measured)
        for spec, runs in alike(records).items()
        if spec.scope == "all"
        and (measured := tuple(run for run in runs if any(run.report.per_layer.get("cosine_above") or ())))
    ]
    rules = Counter(_task(spec) for spec, _ in settings)
    order = list(RULES)

    def place(spec: RunSpec) -> tuple[int, str, int]:
        at = order.index(spec.rule) if spec.rule in order else len(order)
        return -rules[_task(spec)], _task(spec), at

    return sorted(settings, key=lambda one: place(one[0]))


def _task(spec: RunSpec) -> str:
    """Return what a rule is trained on: its network, data, penalty and length."""
    return " ".join([spec.net, *worded(spec.net_options), spec.data, *penalty_words(spec), *how_long(spec)])


def by_site(runs: Sequence[Record], name: str) -> list[tuple[int, Stat]]:
    """Return (site, a quantity per site over the seeds) where it was measured."""
    lists = [values for run in runs if (values := run.report.per_layer.get(name))]
    return [(site, cell) for site, column in enumerate(zip(*lists)) if (cell := stat(column)) is not None]


def first_flag(runs: Sequence[Record], check: str, what: str) -> tuple[int, float | None] | None:
    """Return the epoch at which a check first flags on any seed, and that seed's own last value of a quantity."""
    fired = [(e, run) for run in runs if (e := first_epochs(run)[check]) is not None]
    if not fired:
        return None
    epoch, run = min(fired, key=lambda f: f[0])
    values = getattr(run.epochs[epoch][2], what)
    return epoch, values[-1] if values else None


def least(moments: Sequence[Moment], what: str) -> float | None:
    """Return the lowest mean along training."""
    return min((value.mean for moment in moments if (value := getattr(moment, what))), default=None)


def frozen_accuracy(records: Records, rule: str, epochs: int, augment: bool) -> float | None:
    """Return the accuracy of a rule's frozen control over its seeds."""
    value = judged(records, Setting(rule, scope="frozen", epochs=epochs, augment=augment)).stat("acc")
    return None if value is None else value.mean
