"""Every table by name, under our own conventions or the papers'; and the two that sum all published figures up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from walkback.audit.plans import plan
from walkback.audit.records import Records
from walkback.errors import InputError, shown
from walkback.registry import closest
from walkback.replication.conventions import as_published
from walkback.replication.decoded import PLANS, decoded
from walkback.replication.decoded_networks import networks
from walkback.replication.tables import TABLES, describe, evidence
from walkback.report.table import Table

SUMMARIES: dict[str, tuple[str, Callable[[Records], Table]]] = {
    "decoded": ("Every published figure beside ours, under the papers' conventions and under our own.",
                lambda records: decoded(records, records)),
    "decoded-networks": ("Every network trained under the papers' conventions: cosines, rounding, worth.", networks),
}  # fmt: skip
NOTE = "runs under the papers' conventions (plans as-published…), read in the papers' way; docs/replication.md says why"


def names() -> dict[str, str]:
    """Return what every table shows, by name."""
    return {name: describe(name) for name in TABLES} | {name: about for name, (about, _) in SUMMARIES.items()}


def summary(name: str, records: Records, papers_way: bool = False) -> Table:
    """Return a table by name.

    Args:
        papers_way: read runs of the plans as-published in the place of our own.

    >>> from pathlib import Path
    >>> summary("cifar100", Records(Path("runs")), papers_way=True).missing[0]
    'walkback audit as-published --out runs   # 108 of its 108 runs'
    """
    if name in SUMMARIES:
        return SUMMARIES[name][1](records)
    if name not in TABLES:
        known = names()
        raise InputError(f"Expected one of {', '.join(known)} or all, but got {shown(name)}.{closest(name, known)}")
    if not papers_way:
        return evidence(name, records)
    table = evidence(name, as_published(records))
    return replace(table, notes=(NOTE, *table.notes), missing=_missing(records) if table.missing else ())


def others(records: Records) -> int:
    """Return how many runs only the papers' way shows: their conventions are not our own."""
    ours = {run.path: run.spec for run in records}
    return sum(ours[run.path] != run.spec for run in as_published(records))


def _missing(records: Records) -> tuple[str, ...]:
    """Return what trains the rest of the papers' plans."""
    lines = []
    for name in PLANS:
        specs = plan(name).specs
        if lacking := sum(records.find(spec) is None for spec in specs):
            lines.append(f"walkback audit {name} --out {records.store}   # {lacking} of its {len(specs)} runs")
    return tuple(lines)
