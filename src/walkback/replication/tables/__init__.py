"""The papers' evidence from finished runs, one function per table: Records -> Table.

Ours stands beside what is published, with a column "agrees?" whose rule is in the notes. A table works on what is
there: what is missing is shown as – and listed with the command that would train it. The folder is the list of tables:
every function under `build.evidence_table` in one of its files is one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from walkback.audit.records import Records
from walkback.audit.settings import left_out
from walkback.errors import InputError, shown
from walkback.registry import closest
from walkback.replication.found import in_folder
from walkback.replication.tables.build import Evidence
from walkback.report.table import Table

TABLES: dict[str, Evidence] = in_folder(__name__, Evidence)


def evidence(name: str, records: Records) -> Table:
    """Return the table of a name of TABLES.

    >>> from pathlib import Path
    >>> evidence("cifar100", Records(Path("runs"))).columns[:3]
    ('rule', 'figures', 'n')
    """
    if name not in TABLES:
        raise InputError(f"Expected one of {', '.join(TABLES)} or all, but got {shown(name)}.{closest(name, TABLES)}")
    made = TABLES[name](records)
    ended = [f"{run.path.name} in epoch {len(run.rows)} of {run.spec.epochs}" for run in records if run.diverged]
    if not ended:
        return made
    note = f"diverged, and counted with what they were then, wherever they belong: {'; '.join(ended)}"
    return replace(made, notes=(*made.notes, note))


def describe(name: str) -> str:
    """Return one line about a table."""
    return TABLES[name].about


def front_page(tables: list[Table], records: Records) -> str:
    """Return the front page of a folder of tables, as Markdown."""
    lines = [
        "# Evidence",
        "",
        f"From {len(records)} finished runs. See docs/evidence.md for how to read the tables.",
        "",
    ]
    lines += [f"- [{table.name}]({table.name}.md): {describe(table.name)}" for table in tables]
    problems = [f"- {_below(p.path, records)}: {p.reason}" for p in records.problems]
    for head, items in (("Not read", problems), ("In no table", [f"- {name}" for name in left_out(records)])):
        lines += ["", f"{head}:", "", *items] if items else []
    return "\n".join(lines)


def _below(path: Path, records: Records) -> str:
    return str(path.relative_to(records.folder)) if path.is_relative_to(records.folder) else str(path)


__all__ = ["TABLES", "Table", "describe", "evidence", "front_page"]
