"""Runs trained under the papers' conventions, read in the papers' way: what a table shows of them is "as published".

The tables look for runs under our own conventions. `as_published` presents those of the plan as-published in their
place, and nothing else; cosines of FA are paired one site off and nudging steps by η√d, as the published figures seem
to be (see `walkback.audit.as_published` for what was trained, docs/replication.md for why).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from walkback.audit.as_published import AS_PUBLISHED, NETWORKS, READING, SHIFTED
from walkback.audit.plans import RULE_OPTIONS
from walkback.audit.records import Record, Records, canonical
from walkback.measures.over_sites import concentration, mean
from walkback.training.spec import NO_LOCAL_LOSS, RunSpec


def as_published(records: Records) -> Records:
    """Return the runs of the papers' conventions under the specs that tables ask for; other runs are left out.

    >>> from pathlib import Path
    >>> len(as_published(Records(Path("runs"))))
    0
    """
    renamed = [(run, _own_spec(run.spec)) for run in records]
    runs = tuple(_read(run, spec) for run, spec in renamed if spec is not None)
    return Records(records.folder, runs, records.problems, records.asked)


def _own_spec(spec: RunSpec) -> RunSpec | None:
    """Return the spec under our own conventions of a run under the papers', None for any other run."""
    fields = AS_PUBLISHED.get(spec.rule)
    if fields is None:
        return None
    fields = canonical(RunSpec(**fields)).model_dump()
    if spec.scope == "frozen":  # no block asks where its credit comes from
        fields = {name: value for name, value in fields.items() if name not in NO_LOCAL_LOSS}
    ours = {"credit_site": "writer", "credit_length": "raw", "rule_options": {}}
    known, form = canonical(spec), NETWORKS.get(spec.net, {})
    if any(getattr(known, name) != fields.get(name, value) for name, value in ours.items()):
        return None
    if any(known.net_options.get(name) != value for name, value in form.items()):
        return None
    own_net = {name: value for name, value in spec.net_options.items() if name not in form}
    return RunSpec(**{**spec.model_dump(), **ours, "rule_options": RULE_OPTIONS[spec.rule], "net_options": own_net})


def _read(run: Record, spec: RunSpec) -> Record:
    rows = tuple(_paired(row, spec.rule) for row in run.rows)
    read = _paired({"per_layer": run.report.per_layer, "values": run.report.values}, spec.rule)
    run_facts = {**run.report.run, "initial": _paired(run.initial, spec.rule)}
    return replace(run, spec=spec, rows=rows, report=replace(run.report, **read, run=run_facts))


# What is known of the cosines of a site with itself only.
OF_SITES = ("cosine_low", "cosine_high", "cosine_clamped", "zero_credit")


def _paired(row: Mapping[str, Any], rule: str) -> dict[str, Any]:
    """Return a row whose cosines and nudging are those that the papers seem to have published."""
    per_layer, values = dict(row.get("per_layer") or {}), dict(row.get("values") or {})
    step = READING["nudging"].removeprefix("nudging")
    for held, of in ((per_layer, "nudging"), (values, "deep_nudging")):
        if of + step in held:
            held[of] = held[of + step]
    below = per_layer.get("cosine_below")
    if rule in SHIFTED and below:
        shifted = below[1:]
        for name in OF_SITES:
            per_layer.pop(name, None)
        per_layer["cosine"] = [*shifted, None]
        values |= {"gamma": mean(shifted), "gamma_concentration": concentration(shifted)}
        values["deep_cosine"] = mean(shifted[1:])
    return {**row, "per_layer": per_layer, "values": values}
