"""The papers' evidence from finished runs: one function per table, records in, Table out.

Ours stands beside what is published, with a column "agrees?" whose rule is in the notes. A table works on what is
there: what is missing is shown as – and listed with the command that would train it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from walkback.audit.records import Records
from walkback.audit.settings import left_out
from walkback.errors import InputError, shown
from walkback.registry import closest
from walkback.replication.tables.audits import (
    cifar100,
    credit_site,
    cross_arch,
    linear_probe,
    per_layer,
    primary,
    sub_modes,
    unit_credit,
    wide_shallow,
)
from walkback.replication.tables.courses import early_epochs, mechanism, temporal
from walkback.replication.tables.decisions import ablation, ablation_four, extended_ablation, sensitivity
from walkback.replication.tables.interventions import (
    capacity,
    fresh_feedback,
    lambda_sweep,
    matched_penalty,
    triangulation,
)
from walkback.replication.tables.rule_ablations import rule_ablations
from walkback.replication.tables.summary import two_modes, validations
from walkback.report.table import Table

TABLES: dict[str, Callable[[Records], Table]] = {
    "primary": primary,
    "per-layer": per_layer,
    "ablation": ablation,
    "ablation-four": ablation_four,
    "extended-ablation": extended_ablation,
    "temporal": temporal,
    "sensitivity": sensitivity,
    "sub-modes": sub_modes,
    "mechanism": mechanism,
    "early-epochs": early_epochs,
    "lambda-sweep": lambda_sweep,
    "capacity": capacity,
    "fresh-feedback": fresh_feedback,
    "triangulation": triangulation,
    "matched-penalty": matched_penalty,
    "wide-shallow": wide_shallow,
    "cross-arch": cross_arch,
    "cifar100": cifar100,
    "credit-site": credit_site,
    "unit-credit": unit_credit,
    "rule-ablations": rule_ablations,
    "linear-probe": linear_probe,
    "two-modes": two_modes,
    "validations": validations,
}


def evidence(name: str, records: Records) -> Table:
    """The table of a name of TABLES.

    >>> from pathlib import Path
    >>> evidence("cifar100", Records(Path("runs"))).columns[:3]
    ('rule', 'figures', 'n')
    """
    if name not in TABLES:
        raise InputError(f"Expected one of {', '.join(TABLES)} or all, but got {shown(name)}.{closest(name, TABLES)}")
    made = TABLES[name](records)
    ended = [f"{run.path.name} in epoch {len(run.rows)} of {run.spec.epochs}" for run in records if run.diverged]
    said = (
        [f"diverged, and counted with what they were then, wherever they belong: {'; '.join(ended)}"] if ended else []
    )
    return replace(made, notes=(*made.notes, *said))


def describe(name: str) -> str:
    """One line about a table."""
    return (TABLES[name].__doc__ or "").strip().splitlines()[0]


def front_page(tables: list[Table], records: Records) -> str:
    """The front page of a folder of tables, as Markdown."""
    lines = [
        "# Evidence",
        "",
        f"From {len(records)} finished runs. See docs/evidence.md for how to read the tables.",
        "",
    ]
    lines += [f"- [{table.name}]({table.name}.md): {describe(table.name)}" for table in tables]
    if records.problems:
        lines += ["", "Not read:", ""]
        lines += [f"- {_below(p.path, records)}: {p.reason}" for p in records.problems]
    rest = left_out(records)
    if rest:
        lines += ["", "In no table:", ""]
        lines += [f"- {name}" for name in rest]
    return "\n".join(lines)


def _below(path: Path, records: Records) -> str:
    return str(path.relative_to(records.folder)) if path.is_relative_to(records.folder) else str(path)


__all__ = ["TABLES", "Table", "describe", "evidence", "front_page"]
