"""A verdict from logged numbers alone: any framework, any time, no model needed."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from math import isclose, isfinite
from numbers import Real
from pathlib import Path
from types import NoneType
from typing import Any

import torch

from walkback.errors import FormatError, InputError
from walkback.measures.accumulate import (
    PUBLISHED_BATCH,
    Measurements,
    Numbers,
    block_growth,
    concentration,
    deep_sites,
    growth,
    mean,
    stream_shapes,
)
from walkback.measures.quantities import NULLS, PRECISION, SHIFTED
from walkback.notes import RENEWED, Note
from walkback.report.formats import report_1
from walkback.report.make import make_report
from walkback.report.report import SCHEMA, Report
from walkback.verdict.advisories import earlier_epoch
from walkback.verdict.checks import Accuracy, DiagnosticThresholds, Finding, read_table
from walkback.verdict.editions import Claim, decide

# One row of what `walkback.Watch` writes.
WATCH_SCHEMA = "walkback.watch/1"

_BESIDE = ("cosine_clamped", "below_eps", "zero_credit", *SHIFTED, *NULLS, *PRECISION)
_LISTS = ("h_norm", "g_norm", "cosine", *_BESIDE)
_PROBES = ("perturbation", "nudging", "nudging_relative", "nudging_rms")
_SCALARS = (
    "growth",
    "growth_total",
    "g_norm_deepest",
    "stability",
    "gamma",
    "gamma_concentration",
    "deep_cosine",
    "stability_distinct",
)
_ACCURACIES = {
    "headline_acc": ("headline_acc", "test_acc", "acc", "accuracy"),
    "frozen_baseline_acc": ("frozen_baseline_acc", "frozen_acc"),
    "bp_acc": ("bp_acc",),
}

# Quantities with a range of their own; a logged number outside it is something else.
_RANGES = {
    **dict.fromkeys(("cosine", "cosine_clamped", "perturbation", "stability", "gamma", "deep_cosine"), (-1.0, 1.0)),
    **dict.fromkeys(("null_low", "null_high", "stability_distinct", *SHIFTED), (-1.0, 1.0)),
    **dict.fromkeys(("below_eps", "gamma_concentration", "epsilon_share", "zero_credit"), (0.0, 1.0)),
    **dict.fromkeys(("null_dimension", "float64_disagreement", "absorption"), (0.0, float("inf"))),
    **dict.fromkeys(("h_norm", "g_norm", "growth", "growth_total", "g_norm_deepest"), (0.0, float("inf"))),
}

Named = tuple[Mapping[str, Any], str]  # a row and where it stands
Numeric = Measurements | Report | Mapping[str, Any] | Sequence[Mapping[str, Any]] | str | Path


def judge(
    numbers: Numeric,
    edition: str | None = None,
    thresholds: DiagnosticThresholds | None = None,
    *,
    headline_acc: Accuracy = None,
    frozen_baseline_acc: Accuracy = None,
    bp_acc: Accuracy = None,
    bp_frozen_acc: Accuracy = None,
    method_name: str = "",
    notes: str = "",
) -> Report:
    """The report `diagnose` would give, from numbers that were logged elsewhere.

    Args:
        numbers: Measurements, a Report, a dict in the shape of report JSON (any of `per_layer.h_norm`,
            `per_layer.g_norm`, `per_layer.cosine`, `values.*`, `headline_acc`, `frozen_baseline_acc`), a list
            of such rows, one per epoch, or a path to .json, .jsonl or .csv (columns h_norm_0, g_norm_0, …).
            Gradient norms are those of a mean loss over 128 samples; for another batch size B say
            `conditions.g_norm_batch_size = B` (CSV: a column `g_norm_batch_size`).
        edition: "three-check", "four-diagnostic" or "intrinsic"; by default a report's own, else "three-check".
        thresholds: other limits; by default a report's own, else the published ones.
        headline_acc: overrides the logged one.
        frozen_baseline_acc: overrides the logged one.
        bp_acc: overrides the logged one.
        bp_frozen_acc: overrides the logged one (`conditions.bp_frozen_acc`): the accuracy of BP's own frozen control.
        method_name: overrides the logged one.
        notes: overrides the logged ones.

    Rows per epoch or step are judged by the last one, and `report.run` tells the course: when each check first
    flagged, in which layer, and how much of the run was still ahead (see `replay`). Rows in another order are sorted,
    and where the last one has no norms, those of the last that has some are judged; a note says so.

    >>> judge({"per_layer": {"h_norm": [9.0, 2e3], "g_norm": [3e-9, 4e-9]}}).failed
    ('D1', 'D2')
    """
    given = {"headline_acc": headline_acc, "frozen_baseline_acc": frozen_baseline_acc}
    given |= {"bp_acc": bp_acc, "bp_frozen_acc": bp_frozen_acc}
    if isinstance(numbers, Measurements):
        claim = Claim(headline_acc, frozen_baseline_acc, bp_acc, bp_frozen_acc)
        limits = thresholds or DiagnosticThresholds()
        return make_report(numbers, claim, limits, edition or "three-check", method_name, notes)
    with _shallow(numbers):
        return _judge_rows(*_rows(numbers), edition, thresholds, given, method_name, notes)


def _judge_rows(
    rows: Sequence[Named],
    torn: tuple[Note, ...],
    edition: str | None,
    thresholds: DiagnosticThresholds | None,
    given: Mapping[str, Accuracy],
    method_name: str,
    notes: str,
) -> Report:
    rows, sorted_note = _in_order(rows)
    last, where = rows[-1]
    ours = last if last.get("schema") in (SCHEMA, report_1.SCHEMA) else {}
    limits = thresholds or DiagnosticThresholds.of(ours.get("thresholds") or {}, f"thresholds in {where}")
    by = edition or str(ours.get("edition") or "three-check")
    decide(Measurements(), Claim(), limits, by)
    parsed = [(measurements(row, name), _claim(row, given, name)) for row, name in rows]
    claim = parsed[-1][1]
    m, dated = _last_norms(rows, [m for m, _ in parsed])
    m = replace(m, notes=(*m.notes, *torn, *sorted_note, *dated))
    run = plain(_part(last, "run", where))
    if len(rows) > 1 or last.get("schema") == WATCH_SCHEMA:
        run |= replay([row for row, _ in rows], [m for m, _ in parsed], limits, by)
    if len(rows) > 1:
        named = [index if row.get("epoch") is None else row["epoch"] for index, (row, _) in enumerate(rows)]
        told = earlier_epoch(claim.headline, named, [_logged_accuracy(row) for row, _ in rows])
        m = m if told is None else replace(m, notes=(*m.notes, told))
    method = method_name or str(last.get("method") or "")
    return make_report(m, claim, limits, by, method, notes or _remark(last), run)


def _remark(row: Mapping[str, Any]) -> str:
    """What the user wrote into a report or a row of numbers: a Note of its own since report/2."""
    said = row.get("notes")
    if row.get("schema") == SCHEMA or (isinstance(said, list) and all(isinstance(one, Mapping) for one in said)):
        return " ".join(Note.of(note).text for note in said or () if note.get("code") == "remark")
    return str(said or "")


def _in_order(rows: Sequence[Named]) -> tuple[Sequence[Named], tuple[Note, ...]]:
    """Rows in ascending order of their epochs or steps, where every row has one, and a note where they were not."""
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
        said = Note("rows-sorted", None, {"unit": unit, "first": first, "last": last})
        return [rows[i] for i in sorted(range(len(rows)), key=keys.__getitem__)], (said,)
    if keys[-1] == max(keys):  # a run that was resumed from an earlier point: its last row stands
        return rows, ()
    row, where = rows[twice]
    raise InputError(
        f"Expected rows in ascending order of {unit}, or rows that can be sorted by it, but the last one is of "
        f"{_label(*rows[-1])}, not the largest, and there is more than one of {_label(row, where)}. Leave out "
        f"what was measured again (the first is {where}), and write the newest last."
    )


def _last_norms(rows: Sequence[Named], numbers: Sequence[Measurements]) -> tuple[Measurements, tuple[Note, ...]]:
    """The numbers of the last row with norms, each kind from the last row that has it, and a note where it is older."""
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
    """What a note calls a row: by its epoch, else its step, else where it stands."""
    return next((f"{unit} {row[unit]}" for unit in ("epoch", "step") if row.get(unit) is not None), where)


def fired(
    epochs: Iterable[tuple[int | float, Measurements]], thresholds: DiagnosticThresholds, edition: str = "three-check"
) -> dict[str, int | float | None]:
    """Check -> the first epoch at which it flagged, None for never; checks that were never tested are left out.

    >>> calm, loud = (measurements({"per_layer": {"h_norm": h}}) for h in ([1.0, 2.0], [1.0, 90.0]))
    >>> fired([(1, calm), (2, loud)], DiagnosticThresholds())
    {'D1': 2}
    """
    found: dict[str, int | float | None] = {}
    for epoch, m in epochs:
        # Depth is left out: an early epoch's accuracy against the control's last one says nothing.
        for finding in decide(m, Claim(), thresholds, edition).findings[:-1]:
            if finding.flagged is not None:
                found.setdefault(finding.check, None)
            if finding.flagged and found[finding.check] is None:
                found[finding.check] = epoch
    return found


def replay(
    rows: Sequence[Mapping[str, Any]],
    numbers: Sequence[Measurements],
    thresholds: DiagnosticThresholds,
    edition: str = "three-check",
) -> dict[str, Any]:
    """The course of a logged run: when each check first flagged, where, and how much of the run was still ahead.

    Returns `epochs` (how many rows there are), `unit` ("epoch", or "step" where several rows share an epoch), `total`
    (the run's length in that unit: the `total_epochs` or `total_steps` of a row, else where the last row stands), and
    per check `fired` (None for never), `layer` and `left`; `lost` is where the edition first walked the claim back,
    and `lost_left` what was left then. A row at epoch 3 stands for 3 epochs done.

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
    """The layer a finding is about: the block that grows most, the first site that is not finite, or the deepest.

    >>> m = measurements({"h_norm": [1.0, 2.0, 180.0, 190.0]})
    >>> culprit(decide(m, Claim(), DiagnosticThresholds(), "three-check").findings[0], m)
    2
    """
    if finding.cause == "nonfinite":
        kind = "state" if finding.title == "scale stability" else "gradient"
        return next((n for n in m.nonfinite if n.values["kind"] == kind), m.nonfinite[0]).site
    if finding.title == "scale stability":
        ratios = block_growth(m.h_norm, stream_shapes(m.conditions, len(m.h_norm)))
        return max(ratios, key=lambda site: ratios[site]) if ratios else None
    sites = max(len(m.h_norm), len(m.g_norm))
    return sites - 1 if finding.title in ("reference validity", "direction stability") and sites > 1 else None


def _positions(rows: Sequence[Mapping[str, Any]]) -> tuple[str, list[Any], list[float] | None]:
    """What rows are counted in, the name of each, and how much of the run each stands for (None: can't be told)."""
    counts = {unit: known for unit, known in _counts(rows).items() if all(a < b for a, b in pairwise(known))}
    if counts:  # in the unit whose end is known, if there is one
        unit = next((unit for unit in counts if _planned(rows, unit) is not None), next(iter(counts)))
        return unit, counts[unit], counts[unit]
    named = [index if row.get("epoch") is None else row["epoch"] for index, row in enumerate(rows)]
    counted = all(row.get("epoch") is None for row in rows)
    return "epoch", named, [index + 1.0 for index in range(len(rows))] if counted else None


def _counts(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Unit -> where every row stands in it, for the units in which all of them say so."""
    known = {unit: [_count(row.get(unit)) for row in rows] for unit in ("epoch", "step")}
    return {unit: found for unit, found in known.items() if all(n is not None and n >= 0 for n in found)}


def _planned(rows: Sequence[Mapping[str, Any]], unit: str) -> int | None:
    """How long the run was meant to be, where its last row says so."""
    return _count(rows[-1].get(f"total_{unit}s"))


def _count(value: Any) -> Any:
    """A finite number as it is, whole ones as int; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, Real) or not isfinite(value):
        return None
    number = float(value)
    return int(number) if number.is_integer() else number


# -- reading ------------------------------------------------------------------------------------------------


@contextmanager
def _shallow(numbers: Any) -> Iterator[None]:
    """Say of what is nested too deep that it is."""
    try:
        yield
    except RecursionError:
        where = numbers if isinstance(numbers, (str, Path)) else "the numbers"
        raise FormatError(
            f"Expected {where} to hold numbers and lists of them, as report JSON does, but it is nested too deep to be "
            "read. Log per_layer.h_norm and per_layer.g_norm as plain lists."
        ) from None


def _rows(numbers: Any) -> tuple[list[Named], tuple[Note, ...]]:
    """(rows with their names, what is to be said of how they were read)."""
    if isinstance(numbers, Report):
        numbers = numbers.to_dict()
    if isinstance(numbers, (str, Path)):
        rows, notes = _read(Path(numbers))
        return standing(rows), notes
    if isinstance(numbers, Mapping):
        return [(numbers, "the numbers")], ()
    if isinstance(numbers, Sequence) and numbers and all(isinstance(row, Mapping) for row in numbers):
        return standing([(row, f"row {i}") for i, row in enumerate(numbers)]), ()
    raise InputError(
        "Expected measurements, a dict, a list of one dict per epoch, or a path to .json, .jsonl or .csv, but got "
        f"{type(numbers).__name__}{' with nothing in it' if numbers == [] else ''}."
    )


def standing(rows: Iterable[Named]) -> list[Named]:
    """Rows with their names, without what a Watch measured and then, resumed from an earlier point, measured again."""
    kept: list[Named] = []
    for row in rows:
        if row[0].get("schema") == WATCH_SCHEMA:
            at = position(*row)
            while kept and kept[-1][0].get("schema") == WATCH_SCHEMA and position(*kept[-1]) >= at:
                kept.pop()
        kept.append(row)
    return kept


def position(row: Mapping[str, Any], where: str = "") -> tuple[int, int]:
    """Where a row of a Watch stands: (epochs done, steps done)."""
    for unit in ("epoch", "step"):
        if row.get(unit) is not None and _count(row[unit]) is None:
            raise InputError(
                f"Expected {unit} in {where or 'a row of a Watch'} to be a number or null, but got {row[unit]!r:.60}. "
                f"Rows of a Watch say how many {unit}s were done: give names in a column of another name."
            )
    return row.get("epoch") or 0, row.get("step") or 0


def _read(path: Path) -> tuple[list[Named], tuple[Note, ...]]:
    if path.is_dir():
        if not (path / "report.json").exists():
            raise FormatError(
                f"Expected a file of numbers, or the folder of a run with its report.json, but {path} is a folder "
                "without one."
            )
        path = path / "report.json"
    kind, notes = path.suffix.lower(), ()
    if kind not in (".jsonl", ".csv"):
        table = read_table(path)
        rows = table if isinstance(table, list) else [table]
    else:
        try:
            data = path.read_bytes()
            text = data.decode("utf-8-sig") if kind == ".csv" else ""  # spreadsheets put a mark in front
        except FileNotFoundError:
            raise FormatError(f"Expected a file at {path}, but there is none.") from None
        except (OSError, UnicodeDecodeError) as error:
            raise FormatError(f"Expected {path} to be a text file, but: {error}.") from None
        if kind == ".csv":
            rows = _csv_rows(text, path)
        else:
            rows, torn = jsonl_rows(data, path)
            if torn and not rows:
                raise FormatError(f"Expected line 1 of {path} to be JSON, but it is incomplete, and there is no other.")
            if torn:
                notes = (Note("torn-line", None, {"file": path.name}),)
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        raise FormatError(f"Expected {path} to hold one object, or one per epoch, but it does not.")
    named = [f"{path} row {i + 1}" if len(rows) > 1 else str(path) for i in range(len(rows))]
    return [(row, name) for row, name in zip(rows, named) if isinstance(row, Mapping)], notes


BLANK = b"\r\n\t \0"  # NUL: what a full disk or a lost power supply leaves at the end of a file


def jsonl_rows(data: bytes, path: Path) -> tuple[list[Any], bytes]:
    r"""(what the lines of a .jsonl file hold, the beginning of one more at its end: an object that was cut off).

    >>> jsonl_rows(b'{"epoch": 1}\n{"epo', Path("log.jsonl"))
    ([{'epoch': 1}], b'{"epo')
    """
    rows, lines = [], data.rstrip(BLANK).split(b"\n")
    for n, line in enumerate(lines, 1):
        if line.strip():
            try:
                rows.append(json.loads(line.decode("utf-8-sig" if n == 1 else "utf-8")))
            except ValueError as error:
                if n == len(lines) and _cut_off(line, error):
                    return rows, line
                raise FormatError(f"Expected line {n} of {path} to be JSON, but: {error}.") from None
            except RecursionError:
                raise FormatError(f"Expected line {n} of {path} to be an object, but it is nested too deep.") from None
    return rows, b""


def _cut_off(line: bytes, error: ValueError) -> bool:
    """Whether a line is an object that ends too early, not one with a mistake in it."""
    if not line.lstrip().startswith(b"{"):
        return False
    if isinstance(error, UnicodeDecodeError):
        return error.reason == "unexpected end of data"
    assert isinstance(error, json.JSONDecodeError)
    rest = error.doc[error.pos :]  # nothing, or a word, number or escape that was begun
    return error.msg.startswith("Unterminated string") or re.fullmatch(r"[\\\w.+-]*", rest) is not None


def _csv_rows(text: str, path: Path) -> list[Mapping[str, Any]]:
    rows = []
    try:
        reader = csv.reader(text.splitlines(), skipinitialspace=True)
        table = [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error as error:
        raise FormatError(f"Expected {path} to be readable as .csv, but: {error}.") from None
    header = [column.strip() for column in table[0][1]] if table else []
    twice = next((column for i, column in enumerate(header) if column in header[:i]), None)
    if twice is not None:
        raise FormatError(f"Expected the columns of {path} to have names of their own, but {twice!r} stands twice.")
    for n, cells in table[1:]:
        row: dict[str, Any] = {"per_layer": {}, "values": {}, "conditions": {}}
        if len(cells) != len(header):
            raise FormatError(
                f"Expected line {n} of {path} to have as many cells as the header, {len(header)}, but it has "
                f"{len(cells)}."
            )
        for name, cell in zip(header, cells):
            site = re.fullmatch(r"(\w+?)[_.\[]?(\d+)\]?", name)
            listed = site is not None and site[1] in (*_LISTS, *_PROBES)
            value = _cell(cell, name, path, n, text_allowed=not listed and name not in _NUMBER_COLUMNS)
            if site is not None and listed:
                values = row["per_layer"].setdefault(site[1], [])
                values.extend([None] * (int(site[2]) + 1 - len(values)))
                values[int(site[2])] = value
            elif name in _SCALARS:
                row["values"][name] = value
            elif name in ("g_norm_batch_size", "dtype"):
                row["conditions"][name] = value
            else:
                row[name] = value if _count(value) is None or name not in _COUNTS else _count(value)
        rows.append(row)
    return rows


_COUNTS = ("epoch", "step", "total_epochs", "total_steps")
_NUMBER_COLUMNS = (*_SCALARS, "g_norm_batch_size", *_COUNTS, *(s for many in _ACCURACIES.values() for s in many))


def _cell(cell: str, column: str, path: Path, line: int, text_allowed: bool) -> float | str | None:
    cell = cell.strip()
    if cell.lower() in ("", "null", "none", "na"):
        return None
    try:
        return float(cell)
    except ValueError:
        if text_allowed:  # run names, dates: not ours to read
            return cell
        raise FormatError(f"Expected a number in column {column!r}, line {line} of {path}, but got {cell!r}.") from None


def _logged_accuracy(row: Mapping[str, Any]) -> float | None:
    value = next((row[s] for s in _ACCURACIES["headline_acc"] if row.get(s) is not None), None)
    return float(value) if isinstance(value, Real) else None


def _claim(row: Mapping[str, Any], given: Mapping[str, Accuracy], where: str) -> Claim:
    found = {}
    for name, spellings in _ACCURACIES.items():
        logged = next((row[s] for s in spellings if row.get(s) is not None), None)
        found[name] = logged if given[name] is None else given[name]
    conditions = _part(row, "conditions", where)
    bp_frozen = given["bp_frozen_acc"]
    if bp_frozen is None and given["bp_acc"] is None:  # the logged one is of the logged BP
        bp_frozen = conditions.get("bp_frozen_acc")
    own = given["headline_acc"] is None and given["frozen_baseline_acc"] is None  # the pair is that of the logged ones
    paired = conditions.get("paired") if own else None
    if paired is not None and not isinstance(paired, Mapping):
        raise InputError(f"Expected conditions.paired in {where} to be counts by name, but got {paired!r:.60}.")
    return Claim(found["headline_acc"], found["frozen_baseline_acc"], found["bp_acc"], bp_frozen, paired)


def measurements(row: Mapping[str, Any], where: str = "the numbers") -> Measurements:
    """The numbers of one logged row, or of a report as a dict, ready to be judged.

    >>> measurements({"per_layer": {"h_norm": [9.0, 2e3], "g_norm": [3e-9, 4e-9]}}).g_norm
    [3e-09, 4e-09]
    """
    per_layer, values = _part(row, "per_layer", where), _part(row, "values", where)
    conditions = {k: row[k] for k in ("g_norm_batch_size", "dtype") if row.get(k) is not None}
    conditions |= plain(_part(row, "conditions", where))
    bad: dict[str, list[tuple[int | None, str]]] = {}
    lists = {name: _numbers(per_layer.get(name, row.get(name)), name, where, bad) for name in (*_LISTS, *_PROBES)}
    logged = {name: _scalar(values.get(name, row.get(name)), name, where) for name in _SCALARS}
    reasons = {k: str(v) for k, v in _part(row, "reasons", where).items()}
    h, cosine = lists["h_norm"], lists["cosine"]
    g: Numbers = lists["g_norm"]
    shapes = stream_shapes(conditions, len(h))
    derived, derived_total, why = growth(h, shapes)
    of_lists = {"growth": derived, "growth_total": derived_total, "g_norm_deepest": g[-1] if g else None}
    if shapes is None and report_1.changes_shape(reasons):  # shapes that the row does not tell
        of_lists |= {"growth": None, "growth_total": None}
    elif derived is None and logged["growth"] is not None:  # a ratio that is left can't be above the largest
        least = max(block_growth(h, shapes).values(), default=0.0)
        of_lists["growth"] = least if least > logged["growth"] else None
    finite = {name for name in ("h_norm", "g_norm") if name not in bad}
    for name, of in (("growth", "h_norm"), ("growth_total", "h_norm"), ("g_norm_deepest", "g_norm")):
        number, said = logged[name], of_lists[name]
        if number is not None and said is not None:
            _same(name, number, of, said, where)
        elif number is not None and not isfinite(number) and of in finite:
            bad.setdefault(of, []).append((None, f"{name} = {number}"))
    scalars = {name: _finite(v) for name, v in logged.items()}
    if not g and scalars["g_norm_deepest"] is not None:  # only the last site's was logged
        g = [*[None] * (max(map(len, lists.values())) - 1), scalars["g_norm_deepest"]]
    elif g and g[-1] is None and "g_norm" in finite:
        g = [*g[:-1], scalars["g_norm_deepest"]]
    batch = _scalar(conditions.get("g_norm_batch_size"), "g_norm_batch_size", where)
    if batch is not None and not 1 <= batch < float("inf"):
        raise InputError(f"Expected g_norm_batch_size in {where} to be at least 1, but got {batch:g}.")
    if batch is not None and batch != PUBLISHED_BATCH:
        g = [None if x is None else x * batch / PUBLISHED_BATCH for x in g]
        conditions["g_norm_batch_size"] = PUBLISHED_BATCH
        conditions["g_norm_logged_batch_size"] = batch
    known = h or g or lists["float64_disagreement"] or any(v is not None for v in logged.values())
    if not (known or _has_accuracy(row)):
        raise InputError(
            f"Expected {where} to hold per_layer.h_norm, per_layer.g_norm, values or accuracies, but found none of "
            f"them among: {', '.join(map(str, row)) or 'nothing'}."
        )
    sizes = {name: len(v) for name, v in lists.items() if v}
    if len(set(sizes.values())) > 1:
        hint = " Where only the last site's was logged, call it g_norm_deepest." if sizes.get("g_norm") == 1 else ""
        raise InputError(
            f"Expected per-layer lists of one length in {where}, one entry per site, but got {sizes}.{hint}"
        )
    for name in lists:
        if name not in ("h_norm", "g_norm") and name in bad:
            reasons.setdefault(name, f"not finite {', '.join(f'at site {site}' for site, _ in bad[name])}, as logged")
    rho, total = scalars["growth"], scalars["growth_total"]
    if rho is None and h:
        rho = derived
        total = derived_total if total is None else total
        if rho is None:
            reasons["growth"] = why
    kinds = {"h_norm": "state", "g_norm": "gradient"}
    logged_bad = [
        _nonfinite({"kind": kind, "site": site, "logged": said})
        for name, kind in kinds.items()
        for site, said in bad.get(name, ())
    ]
    facts = _facts(row, reasons, where)
    m = Measurements(
        h_norm=h,
        g_norm=g,
        cosine=cosine,
        **{name: lists[name] for name in _BESIDE},
        stability_distinct=scalars["stability_distinct"],
        growth=rho,
        growth_total=total,
        stability=scalars["stability"],
        gamma=scalars["gamma"] if scalars["gamma"] is not None else mean(cosine[:-1]),
        gamma_concentration=concentration(cosine[:-1])
        if scalars["gamma_concentration"] is None
        else scalars["gamma_concentration"],
        deep_cosine=scalars["deep_cosine"],
        aggregates={k: _finite(_scalar(v, k, where)) for k, v in _part(row, "aggregates", where).items()},
        probes={
            **{k: _numbers(v, k, where, {}) for k, v in _part(row, "controls", where).items()},
            **{name: lists[name] for name in _PROBES if lists[name]},
        },
        nonfinite=(*logged_bad, *facts["nonfinite"]),
        altered=facts["altered"],
        doubted=facts["doubted"],
        dtype=_dtype(conditions),
        conditions=conditions,
        reasons=reasons,
        notes=facts["notes"],
    )
    if m.deep_cosine is None and cosine:
        m = replace(m, deep_cosine=mean([cosine[site] for site in deep_sites(cosine)]))
    return m


def _facts(row: Mapping[str, Any], reasons: Mapping[str, str], where: str) -> dict[str, Any]:
    """What a row says of its reference, and its notes: from fields, or of an older row from its sentences."""
    ours = row.get("schema") in (SCHEMA, report_1.SCHEMA, WATCH_SCHEMA)
    if row.get("schema") == SCHEMA or "nonfinite" in row:
        said: dict[str, Any] = {k: row.get(k) for k in ("nonfinite", "altered", "doubted", "notes")}
        said["notes"] = said["notes"] if ours else []
    else:
        said = report_1.notes(row.get("advisories") if ours else ())
        if not ours:  # rows of a run say it in their reasons
            said["nonfinite"] = report_1.nonfinite_reasons(reasons)
    for name in ("nonfinite", "notes"):
        if not isinstance(said[name], (list, tuple, NoneType)) or not all(
            isinstance(x, Mapping) for x in said[name] or ()
        ):
            raise InputError(f"Expected {name} in {where} to be a list of objects, but got {said[name]!r:.60}.")
    try:
        nonfinite = tuple(_nonfinite(one) for one in said["nonfinite"] or ())
        notes = tuple(Note.of(one) for one in said["notes"] or () if one["code"] not in RENEWED)
        codes = {"altered": "altered-backward", "doubted": "unchecked-backward"}
        altered, doubted = (None if said[k] is None else Note(code, None, dict(said[k])) for k, code in codes.items())
        _ = [note.text for note in (altered, doubted) if note is not None]  # now, and not where a report is printed
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"Expected {where} to hold its notes as a report writes them, but: {error!r:.60}.") from None
    return {"nonfinite": nonfinite, "altered": altered, "doubted": doubted, "notes": notes}


def _nonfinite(one: Mapping[str, Any]) -> Note:
    if one["kind"] not in ("state", "gradient") or not all(
        isinstance(one.get(k), int | None) for k in ("site", "batch")
    ):
        raise ValueError(f"{dict(one)}")
    values = {"kind": one["kind"], "batch": one.get("batch")}
    return Note("nonfinite", one.get("site"), values | {k: one[k] for k in ("logged",) if one.get(k)})


def _same(name: str, number: float, of: str, derived: float, where: str) -> None:
    """Refuse a number that is not what the list beside it gives: which of them is right can't be told."""
    if isclose(number, derived, rel_tol=1e-3):
        return
    shapes = "" if of == "g_norm" else " Where the stream changes shape, say so in conditions.state_shapes."
    raise InputError(
        f"Expected {name} in {where} to be that of {of} beside it, {derived:.6g}, but got {number:.6g}. Log both from "
        f"the same network and samples, or only one of them.{shapes}"
    )


def _part(row: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    part = row.get(name)
    if part is None:
        return {}
    if not isinstance(part, Mapping):
        raise InputError(f"Expected {name} in {where} to be an object, but got {type(part).__name__}.")
    return part


_ANY = (-float("inf"), float("inf"))


def _numbers(values: Any, name: str, where: str, bad: dict[str, list[tuple[int | None, str]]]) -> Numbers:
    """A list over sites; where it is not finite is added to `bad`, and that entry is None."""
    if values is None:
        return []
    values = values.tolist() if hasattr(values, "tolist") else values  # NumPy, torch, JAX
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InputError(f"Expected {name} in {where} to be a list over sites 0…L, but got {type(values).__name__}.")
    low, high = _RANGES.get(name, _ANY)
    if all(type(v) is float and low <= v <= high and isfinite(v) for v in values):
        return list(values)  # nearly always
    out: Numbers = []
    for site, value in enumerate(values):
        number = _scalar(value, f"{name}[{site}]", where)
        if number is not None and not isfinite(number):
            bad.setdefault(name, []).append((site, ""))
            number = None
        out.append(number)
    return out


def _scalar(value: Any, name: str, where: str) -> float | None:
    if value is None:
        return None
    number = value
    if type(value) is not float:
        value = value.tolist() if hasattr(value, "tolist") else value
        if isinstance(value, str) and value.lower() in ("nan", "inf", "-inf", "infinity", "-infinity"):
            return float(value)  # how strict JSON spells them
        try:
            number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else None
        except OverflowError:
            number = None
        if number is None:
            raise InputError(f"Expected {name} in {where} to be a number or null, but got {value!r:.60}.")
    low, high = _RANGES.get(name.partition("[")[0], _ANY)
    rounding = 1e-6 if high == 1.0 else 0.0
    if number < low - rounding or number > high + rounding:
        wanted = f"between {low:g} and {high:g}" if high == 1.0 else f"to be at least {low:g}"
        raise InputError(f"Expected {name} in {where} {wanted}, but got {number:g}.")
    return number


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def plain(value: Any) -> Any:
    """What JSON can hold: numbers that are not finite become None, what it does not know becomes text."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return value if isfinite(value) else None
    return value if value is None or isinstance(value, (str, int)) else str(value)


def _has_accuracy(row: Mapping[str, Any]) -> bool:
    return any(row.get(s) is not None for spellings in _ACCURACIES.values() for s in spellings)


def _dtype(conditions: Mapping[str, Any]) -> torch.dtype:
    name = str(conditions.get("gradient_dtype") or conditions.get("dtype") or "float32").removeprefix("torch.")
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise InputError(f"Expected the logged dtype to be a floating point type of torch, but got {name!r}.")
    return found
