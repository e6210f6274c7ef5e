"""A verdict from logged numbers alone: any framework, any time, no model needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from walkback.errors import FormatError, InputError, shown
from walkback.measures.measurements import Measurements
from walkback.measures.worth import Depth
from walkback.notes import Note
from walkback.report.formats import report_1
from walkback.report.formats.logged_columns import of_method, read_columns
from walkback.report.formats.logged_course import culprit, fired, in_order, last_norms, replay
from walkback.report.formats.logged_files import (
    BLANK,
    Named,
    count,
    jsonl_rows,
    named_rows,
    position,
)
from walkback.report.formats.logged_row import ACCURACIES, WATCH_SCHEMA, measurements, plain
from walkback.report.make import make_report
from walkback.report.report import SCHEMA, Report
from walkback.verdict.checks import DiagnosticThresholds
from walkback.verdict.claim import CONTROL, Accuracy, Claim
from walkback.verdict.editions import decide
from walkback.verdict.notes import earlier_epoch

# Kept importable from here: what rows are read with.
__all__ = ["BLANK", "WATCH_SCHEMA", "culprit", "fired", "jsonl_rows", "judge", "measurements", "plain", "position",
           "replay"]  # fmt: skip

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
    depth: Depth | None = None,
    primary: str | None = None,
    test_samples: int | None = None,
) -> Report:
    """Return the report `diagnose` would give, from numbers that were logged elsewhere.

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
        method_name: overrides the logged one; of rows of several methods (a column `method`) those of this one.
        notes: overrides the logged ones.
        depth: overrides the logged one: what `walkback.depth` returned.
        primary: "D3" or "D3-outcome", see `Claim`; by default a report's own, else "D3".
        test_samples: overrides the logged one (`conditions.test_samples`): how many the accuracies are of, see `Claim`.

    Columns may have the names that Walkback logs (`walkback/h_norm/0`), or be first and last norms (`h_norm_first`,
    `h_norm_last`, `g_norm_last`). A note names the columns that were not used, and what they may have meant.

    Rows per epoch or step are judged by the last one, and `report.run` tells the course: when each check first
    flagged, in which layer, and how much of the run was still ahead (see `replay`). Rows in another order are sorted,
    and where the last one has no norms, those of the last that has some are judged; a note says so.

    >>> judge({"per_layer": {"h_norm": [9.0, 2e3], "g_norm": [3e-9, 4e-9]}}).failed
    ('D1', 'D2')
    """
    given = {"headline_acc": headline_acc, "frozen_baseline_acc": frozen_baseline_acc}
    given |= {"bp_acc": bp_acc, "bp_frozen_acc": bp_frozen_acc, "depth": depth, "primary": primary}
    given |= {"test_samples": test_samples}
    if isinstance(numbers, Measurements):
        chosen = {"depth": depth, "primary": primary or CONTROL, "test_samples": test_samples}
        claim = Claim(headline_acc, frozen_baseline_acc, bp_acc, bp_frozen_acc, **chosen)
        limits = thresholds or DiagnosticThresholds()
        return make_report(numbers, claim, limits, edition or "three-check", method_name, notes)
    numbers = numbers.to_dict() if isinstance(numbers, Report) else numbers
    with _shallow(numbers):
        rows, torn = named_rows(numbers)
        rows, unused = read_columns(of_method(rows, method_name))
        return _judge_rows(rows, (*torn, *unused), edition, thresholds, given, method_name, notes)


def _judge_rows(
    rows: Sequence[Named],
    torn: tuple[Note, ...],
    edition: str | None,
    thresholds: DiagnosticThresholds | None,
    given: Mapping[str, Any],
    method_name: str,
    notes: str,
) -> Report:
    rows, sorted_note = in_order(rows)
    last, where = rows[-1]
    ours = last if last.get("schema") in (SCHEMA, report_1.SCHEMA) else {}
    limits = thresholds or DiagnosticThresholds.of(ours.get("thresholds") or {}, f"thresholds in {where}")
    by = edition or str(ours.get("edition") or "three-check")
    decide(Measurements(), Claim(), limits, by)
    parsed = [(measurements(row, name), _claim(row, given, name)) for row, name in rows]
    claim = parsed[-1][1]
    m, dated = last_norms(rows, [m for m, _ in parsed])
    m = replace(m, notes=(*m.notes, *torn, *sorted_note, *dated))
    m = replace(m, notes=(*m.notes, *_accuracies_twice(last, given)))
    run = plain(last.get("run") or {})
    if len(rows) > 1 or last.get("schema") == WATCH_SCHEMA:
        run |= replay([row for row, _ in rows], [m for m, _ in parsed], limits, by)
    if len(rows) > 1:
        named = [index if row.get("epoch") is None else row["epoch"] for index, (row, _) in enumerate(rows)]
        from_earlier = earlier_epoch(claim.accuracy, named, [_logged_accuracy(row) for row, _ in rows])
        m = m if from_earlier is None else replace(m, notes=(*m.notes, from_earlier))
    method = method_name or str(last.get("method") or "")
    return make_report(m, claim, limits, by, method, notes or _remark(last), run)


def _remark(row: Mapping[str, Any]) -> str:
    """Return what the user wrote into a report or a row of numbers: a Note of its own since report/2."""
    notes = row.get("notes")
    if row.get("schema") == SCHEMA or (isinstance(notes, list) and all(isinstance(one, Mapping) for one in notes)):
        return " ".join(Note.of(note).text for note in notes or () if note.get("code") == "remark")
    return str(notes or "")


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


def _logged_accuracy(row: Mapping[str, Any]) -> float | None:
    value = next((row[s] for s in ACCURACIES["headline_acc"] if row.get(s) is not None), None)
    return count(value)


def _accuracies_twice(row: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[Note]:
    """Yield a note where an accuracy stands under two names with two values, and none was given to stand above them."""
    for name, spellings in ACCURACIES.items():
        known = [(s, a) for s in spellings if (a := count(row.get(s))) is not None]
        if given[name] is None and (others := [(s, a) for s, a in known if abs(a - known[0][1]) > 1e-9]):
            (used, value), (other, beside) = known[0], others[0]
            yield Note("accuracy-twice", None, {"used": used, "value": value, "other": other, "beside": beside})


def _claim(row: Mapping[str, Any], given: Mapping[str, Any], where: str) -> Claim:
    found = {}
    for name, spellings in ACCURACIES.items():
        logged = next((row[s] for s in spellings if row.get(s) is not None), None)
        found[name] = logged if given[name] is None else given[name]
    conditions = row.get("conditions") or {}
    bp_frozen = given["bp_frozen_acc"]
    if bp_frozen is None and given["bp_acc"] is None:  # the logged one is of the logged BP
        bp_frozen = conditions.get("bp_frozen_acc")
    own = given["headline_acc"] is None and given["frozen_baseline_acc"] is None  # the pair is that of the logged ones
    paired = conditions.get("paired") if own else None
    each = paired if isinstance(paired, list) else [{} if paired is None else paired]
    if not all(isinstance(one, Mapping) for one in each):
        raise InputError(f"Expected conditions.paired in {where} to be counts by name, but got {shown(paired)}.")
    primary = given["primary"] or conditions.get("primary") or CONTROL
    accuracies = found["headline_acc"], found["frozen_baseline_acc"], found["bp_acc"], bp_frozen
    judging = {name: conditions[name] for name in ("test_samples", "controls", "control") if conditions.get(name)}
    judging = judging if own else {}
    judging |= {} if given["test_samples"] is None else {"test_samples": given["test_samples"]}
    return Claim(*accuracies, paired, depth=_depth(row, given["depth"], where), primary=primary, **judging)


def _depth(row: Mapping[str, Any], given: Depth | None, where: str) -> Depth | None:
    """Return what blocks are worth, as given or as logged; a number under that name is a column of another kind."""
    logged = row.get("depth")
    return Depth.of(logged, f"depth in {where}") if given is None and isinstance(logged, Mapping) else given
