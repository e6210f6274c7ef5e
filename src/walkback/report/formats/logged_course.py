"""The course of a logged run: rows in their order, when each check first flagged, where, and what was still ahead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from walkback.errors import InputError
from walkback.measures.measurements import Measurements, comparable
from walkback.measures.over_sites import block_growth
from walkback.notes import Note
from walkback.report.formats.logged_files import Named, count
from walkback.verdict.checks import DiagnosticThresholds
from walkback.verdict.claim import Claim
from walkback.verdict.editions import EDITIONS, decide
from walkback.verdict.findings import Finding, about


def in_order(rows: Sequence[Named]) -> tuple[Sequence[Named], tuple[Note, ...]]:
    """Return rows in ascending order of their epochs or steps, where all have one, and a note where they were not."""
    counts = _counts([row for row, _ in rows])
    keys = list(zip(*counts.values()))
    ascends = any(all(a < b for a, b in pairwise(known)) for known in counts.values())
    if not keys or ascends or all(a <= b for a, b in pairwise(keys)):
        return rows, ()
    unit = " and ".join(counts)
    often = Counter(keys)
    twice = next((i for i, key in enumerate(keys) if often[key] > 1), None)
    if twice is None:
        first, last = _label(*rows[0]), _label(*rows[-1])
        note = Note("rows-sorted", None, {"unit": unit, "first": first, "last": last})
        return [rows[i] for i in sorted(range(len(rows)), key=keys.__getitem__)], (note,)
    if keys[-1] == max(keys):  # a run that was resumed from an earlier point: its last row stands
        return rows, ()
    row, where = rows[twice]
    raise InputError(
        f"Expected rows in ascending order of {unit}, or rows that can be sorted by it, but the last one is of "
        f"{_label(*rows[-1])}, not the largest, and there is more than one of {_label(row, where)}. Leave out "
        f"what was measured again (the first is {where}), and write the newest last."
    )


def last_norms(rows: Sequence[Named], numbers: Sequence[Measurements]) -> tuple[Measurements, tuple[Note, ...]]:
    """Return the numbers of the last row with norms, each kind from the last that has it, with a note."""
    at: dict[str, int] = {}
    for i, m in enumerate(numbers):
        has = {"state": m.growth is not None or any(n is not None for n in m.h_norm)}
        has["gradient"] = any(n is not None for n in m.g_norm)
        at |= {kind: i for kind, known in has.items() if known or kind in m.nonfinite_kinds}
    m = numbers[max(at.values(), default=-1)]
    if len(set(at.values())) > 1:
        h, g = numbers[at["state"]], numbers[at["gradient"]]
        m = replace(
            m,
            **{name: getattr(h, name) for name in ("h_norm", "growth", "growth_total")},
            g_norm=g.g_norm,
            nonfinite=tuple(
                n for of, kind in ((h, "state"), (g, "gradient")) for n in of.nonfinite if n.values["kind"] == kind
            ),
            reasons=m.reasons | {k: v for k, v in h.reasons.items() if k in ("h_norm", "growth", "growth_total")},
        )
    older = {i: " and ".join(kind for kind in at if at[kind] == i) for i in at.values() if i < len(rows) - 1}
    return m, tuple(Note("older-norms", None, {"kinds": kinds, "row": _label(*rows[i])}) for i, kinds in older.items())


def _label(row: Mapping[str, Any], where: str) -> str:
    """Return what a note calls a row: by its epoch, else its step, else where it stands."""
    return next((f"{unit} {row[unit]}" for unit in ("epoch", "step") if row.get(unit) is not None), where)


def fired(
    epochs: Iterable[tuple[int | float, Measurements]], thresholds: DiagnosticThresholds, edition: str = "three-check"
) -> dict[str, int | float | None]:
    """Return check -> the first epoch at which it flagged, None for never; checks that were never tested are left out.

    >>> from walkback.report.formats.logged_row import measurements
    >>> calm, loud = (measurements({"per_layer": {"h_norm": h}}) for h in ([1.0, 2.0], [1.0, 90.0]))
    >>> fired([(1, calm), (2, loud)], DiagnosticThresholds())
    {'D1': 2}
    """
    first: dict[str, int | float | None] = {}
    # Depth is left out: an early epoch's accuracy against the control's last one says nothing.
    asked = [rule for name, rule in EDITIONS[edition].items() if name not in ("depth", "outcome")]
    nothing = Claim()
    for epoch, m in epochs:
        for finding in (rule.of(rule.name, m, thresholds, nothing) for rule in asked):
            assert finding is not None  # only D3-outcome may have nothing to say
            if finding.flagged is not None:
                first.setdefault(finding.check, None)
            if finding.flagged and first[finding.check] is None:
                first[finding.check] = epoch
    return first


def replay(
    rows: Sequence[Mapping[str, Any]],
    numbers: Sequence[Measurements],
    thresholds: DiagnosticThresholds,
    edition: str = "three-check",
) -> dict[str, Any]:
    """Return the course of a logged run: when each check first flagged, where, and how much of the run was still ahead.

    Returns `epochs` (how many rows there are), `unit` ("epoch", or "step" where several rows share an epoch), `total`
    (the run's length in that unit: the `total_epochs` or `total_steps` of a row, else where the last row stands), and
    per check `fired` (None for never), `layer` and `left`; `lost` is where the edition first walked the claim back,
    and `lost_left` what was left then. A row at epoch 3 stands for 3 epochs done.

    >>> from walkback.report.formats.logged_row import measurements
    >>> rows = [{"epoch": e, "h_norm": h} for e, h in ((1, [1.0, 2.0]), (2, [1.0, 90.0]), (8, [1.0, 99.0]))]
    >>> found = replay(rows, [measurements(row) for row in rows], DiagnosticThresholds())
    >>> found["fired"], found["layer"], found["left"], found["total"]
    ({'D1': 2}, {'D1': 1}, {'D1': 6}, 8)
    """
    unit, at, done = _positions(rows)
    planned = _planned(rows, unit)
    total = None if done is None else done[-1] if planned is None else max(planned, done[-1])
    verdicts = [decide(m, Claim(), thresholds, edition) for m in numbers]
    first = fired(enumerate(numbers), thresholds, edition)
    found = {check: int(i) for check, i in first.items() if i is not None}
    lost = next((i for i, v in enumerate(verdicts) if v.failed), None)

    def left(i: int) -> float | None:
        return None if total is None or done is None else total - done[i]

    def layer(i: int, check: str) -> int | None:
        return culprit(next(f for f in verdicts[i].findings if f.check == check), numbers[i])

    return {
        "epochs": len(rows),
        "unit": unit,
        "total": total,
        "fired": {check: None if i is None else at[int(i)] for check, i in first.items()},
        "layer": {check: layer(i, check) for check, i in found.items()},
        "left": {check: left(i) for check, i in found.items()},
        "lost": None if lost is None else at[lost],
        "lost_left": None if lost is None else left(lost),
    }


def culprit(finding: Finding, m: Measurements) -> int | None:
    """Return the layer a finding is about: the block that grows most, the first site not finite, or the deepest.

    >>> from walkback.report.formats.logged_row import measurements
    >>> m = measurements({"h_norm": [1.0, 2.0, 180.0, 190.0]})
    >>> culprit(decide(m, Claim(), DiagnosticThresholds(), "three-check").findings[0], m)
    2
    """
    if finding.cause == "nonfinite":
        kind = "state" if about(finding) == "growth" else "gradient"
        return next((n for n in m.nonfinite if n.values["kind"] == kind), m.nonfinite[0]).site
    if about(finding) == "growth":
        ratios = block_growth(*comparable(m.h_norm_all or m.h_norm, m.conditions))
        return max(ratios, key=lambda site: ratios[site]) if ratios else None
    sites = max(len(m.h_norm), len(m.g_norm))
    # The intrinsic D2 is about the worst site, and its value is no norm.
    deepest = about(finding) == "stability" or (bool(m.g_norm) and finding.value == m.g_norm[-1])
    return sites - 1 if deepest and sites > 1 else None


def _positions(rows: Sequence[Mapping[str, Any]]) -> tuple[str, list[Any], list[float] | None]:
    """Return the unit of the rows, the name of each, and how much of the run each stands for (None: can't be told)."""
    counts = {unit: known for unit, known in _counts(rows).items() if all(a < b for a, b in pairwise(known))}
    if counts:  # in the unit whose end is known, if there is one
        unit = next((unit for unit in counts if _planned(rows, unit) is not None), next(iter(counts)))
        return unit, counts[unit], counts[unit]
    named = [index if row.get("epoch") is None else row["epoch"] for index, row in enumerate(rows)]
    counted = all(row.get("epoch") is None for row in rows)
    return "epoch", named, [index + 1.0 for index in range(len(rows))] if counted else None


def _counts(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return unit -> where every row stands in it, for the units in which all of them say so."""
    known = {unit: [count(row.get(unit)) for row in rows] for unit in ("epoch", "step")}
    return {unit: found for unit, found in known.items() if all(n is not None and n >= 0 for n in found)}


def _planned(rows: Sequence[Mapping[str, Any]], unit: str) -> int | None:
    """Return how long the run was meant to be, where its last row says so."""
    return count(rows[-1].get(f"total_{unit}s"))
