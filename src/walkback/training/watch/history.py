"""What a watch has measured: rows of walkback.watch/1, in memory, on disk, as a table and as scalars for loggers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from tabulate import tabulate

from walkback.errors import FormatError, InputError, shown
from walkback.files import read_file
from walkback.measures.measurements import Measurements
from walkback.measures.quantities import SCALAR_FIELDS, SITE_FIELDS
from walkback.progress import say
from walkback.report.formats.logged import (
    BLANK,
    WATCH_SCHEMA,
    culprit,
    jsonl_rows,
    measurements,
    plain,
)
from walkback.report.formats.logged_files import without_superseded
from walkback.verdict.checks import DiagnosticThresholds, Finding
from walkback.verdict.editions import Claim, decide
from walkback.verdict.findings import about

Row = dict[str, Any]
Judge = tuple[DiagnosticThresholds, str]  # limits, and the edition whose checks lose trust

_CONDITIONS = ("mode", "device", "dtype", "gradient_dtype", "autocast", "batches", "batch_size", "samples",
               "probe_hash", "state_shape", "state_shapes", "pool", "g_norm_batch_size", "loss", "probe_accuracy",
               "reference", "chunk", "sites")  # fmt: skip
# Names of a row that numbers of the user's own can't have.
RESERVED = ("schema", "epoch", "step", "total_epochs", "total_steps", "per_layer", "values", "aggregates", "flagged",
            "walked_back", "conditions", "reasons", "advisories", "notes", "nonfinite", "altered",
            "doubted", "depth", "seconds", "elapsed", "overhead", *SITE_FIELDS, *SCALAR_FIELDS)  # fmt: skip


@dataclass(frozen=True)
class Fired:
    """The first time a check flagged: which, after how many epochs and steps, and the layer it points at."""

    check: str
    epoch: int
    step: int
    layer: int | None
    value: float | None
    flags_when: str
    reason: str = ""

    def __str__(self) -> str:
        layer = "" if self.layer is None else f", layer {self.layer}"
        why = self.reason or ("" if self.value is None else f"{self.value:.3g} {self.flags_when}")
        return f"{self.check} fired at {_place(self.epoch, self.step)}{layer}: {why}"


@dataclass(frozen=True)
class Lost:
    """The first time the edition walked the claim back: by which checks, after how many epochs and steps."""

    checks: tuple[str, ...]
    epoch: int
    step: int

    def __str__(self) -> str:
        return f"trust lost at {_place(self.epoch, self.step)}: {', '.join(self.checks)}"


def _place(epoch: int, step: int) -> str:
    return ", ".join(f"{name} {n}" for name, n in (("epoch", epoch), ("step", step)) if n) or "the start"


class History(Sequence[Row]):
    """What a watch has measured, one dict per measurement; `str()` is a table.

    >>> print(History([{"epoch": 1, "step": 0, "per_layer": {"h_norm": [9.0, 9.5]}, "values": {"growth": 1.06}}]))
      epoch    ‖h_0‖    ‖h_L‖    growth
          1        9      9.5      1.06
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._rows = list(rows)

    def __getitem__(self, index: Any) -> Any:
        return History(self._rows[index]) if isinstance(index, slice) else self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __str__(self) -> str:
        if not self._rows:
            return "nothing measured yet"
        heads = [head for head in _heads(self._rows[-1]) if any(_cell(row, head) for row in self._rows)]
        cells = [[_cell(row, head) for head in heads] for row in self._rows]
        return tabulate(cells, heads, tablefmt="plain", disable_numparse=True, colalign=["right"] * len(heads))

    def __repr__(self) -> str:
        return f"History of {len(self._rows)} measurements\n{self}"


# -- rows ------------------------------------------------------------------------------------------------------


def _findings(m: Measurements, by: Judge) -> tuple[list[Finding], tuple[str, ...]]:
    """Return the findings that stand in a row, and the checks by which the claim falls."""
    verdict = decide(m, Claim(), *by)
    # Not depth: an early accuracy against a control's last one says nothing.
    return [f for f in verdict.findings if about(f) in ("growth", "reference")], verdict.failed


def judged(row: Row, by: Judge) -> tuple[tuple[Fired, ...], Lost | None]:
    """Return the checks that flag in a row, and the loss of trust if the edition walks the claim back by it."""
    m, at = measurements(row), (row["epoch"], row["step"])
    findings, failed = _findings(m, by)
    fired = (Fired(f.check, *at, culprit(f, m), f.value, f.flags_when, f.reason) for f in findings if f.flagged)
    return tuple(fired), Lost(failed, *at) if failed else None


def row_of(m: Measurements, by: Judge, begin: Mapping[str, Any], end: Mapping[str, float]) -> Row:
    """Return the row of a measurement, between what it begins with (where, the user's numbers) and its seconds."""
    findings, failed = _findings(m, by)
    notes = [note for note in (*m.nonfinite, m.altered, m.doubted, *m.notes) if note is not None]
    row = {
        "schema": WATCH_SCHEMA,
        **begin,
        "flagged": {f.check: f.flagged for f in findings},
        "walked_back": bool(failed),
        "per_layer": {name: getattr(m, name) or None for name in SITE_FIELDS},
        "values": {name: getattr(m, name) for name in SCALAR_FIELDS},
        "aggregates": m.aggregates,
        "reasons": {k: v for k, v in m.reasons.items() if not getattr(m, k, None)},
        "advisories": [note.text for note in notes],
        "notes": [note.to_dict() for note in m.notes],
        "nonfinite": [{**note.values, "site": note.site} for note in m.nonfinite],
        "altered": None if m.altered is None else dict(m.altered.values),
        "doubted": None if m.doubted is None else dict(m.doubted.values),
        "conditions": {name: m.conditions[name] for name in _CONDITIONS if name in m.conditions},
        **end,
    }
    return plain(row)


def same_network(row: Row, shapes: Sequence[Sequence[int]], path: Path | str | None) -> None:
    """Refuse to go on with the history of a network with other sites, or states of another shape."""

    def per_sample(shapes: Sequence[Sequence[int]]) -> list[list[int]]:
        return [list(shape[-1:] if len(shape) == 2 else shape) for shape in shapes]  # batches differ in their tokens

    def in_words(shapes: Sequence[Sequence[int]]) -> str:
        kinds = " or ".join(dict.fromkeys("×".join(map(str, shape)) or "scalar" for shape in shapes))
        return f"of shape {kinds} at {len(shapes)} sites"

    before = row["conditions"]["state_shapes"]
    if per_sample(before) != per_sample(shapes):
        raise InputError(
            f"Expected {path} to be the history of this network, with states {in_words(shapes)}, but it is that of one "
            f"with states {in_words(before)}. Give log another name, or delete the file if it is not needed."
        )


# -- on disk ----------------------------------------------------------------------------------------------------

_HEAD = json.dumps({"schema": WATCH_SCHEMA})[:-1].encode()  # how every row begins


def append(path: Path, row: Row) -> None:
    """Put a row at the end of a .jsonl file, on disk before this returns; if the disk is full, nothing of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            end, line = file.tell(), (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode()
            try:
                while line:
                    line = line[file.write(line) :]
                os.fsync(file.fileno())
            except OSError:
                os.truncate(path, end)
                raise
    except OSError as error:
        raise FormatError(f"Expected to append to {path}, but: {error}.") from None


def reopen(path: Path) -> tuple[list[Row], int | None]:
    """Return the rows of a history, and how many of its bytes are whole if a killed run left it without an end."""
    try:
        data = read_file(path, sys.maxsize)  # of the user's own run, however long
    except FileNotFoundError:
        return [], None
    except OSError as error:
        raise FormatError(f"Expected {path} to be a history to go on with, but: {error}.") from None
    try:
        rows, torn = jsonl_rows(data, path)
    except FormatError as error:
        raise FormatError(f"Expected {path} to be a history to go on with, but: {error}") from None
    ours = bool(rows) or _HEAD.startswith(torn[: len(_HEAD)])
    if not ours or not all(isinstance(row, dict) and row.get("schema") == WATCH_SCHEMA for row in rows):
        raise FormatError(
            f"Expected {path} to be a history to go on with, rows of {WATCH_SCHEMA}, but it holds something else. "
            "Give log another name."
        )
    for number, row in enumerate(rows, 1):
        _check(row, f"row {number} of {path}")
    whole = data.rstrip(BLANK)
    keep = len(whole[: len(whole) - len(torn)].rstrip(BLANK)) if torn or not data.endswith(b"\n") else None
    return [dict(row) for row, _ in without_superseded([(row, "") for row in rows])], keep


class _Conditions(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    state_shapes: list[list[int]]


class _KeptRow(BaseModel):
    """What is read of the rows that a run goes on with; names of the user's own have numbers."""

    model_config = ConfigDict(extra="allow", strict=True)
    epoch: int | None
    step: int | None
    per_layer: dict[str, list[float | None] | None]
    values: dict[str, float | None]
    flagged: dict[str, bool | None]
    conditions: _Conditions


def _check(row: Row, where: str) -> None:
    try:
        kept = _KeptRow.model_validate(row)
        measurements(row, where)
    except ValidationError as error:
        wrong = error.errors()[0]
        place = ".".join(map(str, wrong["loc"]))
        raise FormatError(f"Expected {where} to be one that a Watch wrote, but {place}: {wrong['msg']}.") from None
    except (InputError, RecursionError) as error:
        raise FormatError(f"Expected {where} to be one that a Watch wrote, but: {error}") from None
    own = {name: value for name, value in (kept.model_extra or {}).items() if name not in RESERVED}
    odd = next((name for name, value in own.items() if not (value is None or isinstance(value, (int, float)))), None)
    if odd is not None:
        raise FormatError(f"Expected {shown(odd)} in {where} to be a number, but got {shown(own[odd])}.")


def repair(path: Path, keep: int) -> None:
    """Keep the first bytes of a history, whole rows; what a killed run left after them is cut off."""
    try:
        os.truncate(path, keep)
        if keep:
            with path.open("ab") as file:
                file.write(b"\n")
    except OSError as error:
        raise FormatError(f"Expected to repair the end of {path}, but: {error}.") from None
    say(f"note: {path.name} ended in half a line, as a run that was killed leaves it: it goes on after the last row")


# -- tables and scalars -----------------------------------------------------------------------------------------

_COLUMNS: dict[str, tuple[str, str, int | None]] = {
    "‖h_0‖": ("per_layer", "h_norm", 0),
    "‖h_L‖": ("per_layer", "h_norm", -1),
    "growth": ("values", "growth", None),
    "‖g_L‖": ("per_layer", "g_norm", -1),
    "Γ": ("values", "gamma", None),
    "deep cos": ("values", "deep_cosine", None),
}
_OF_CREDIT = ("Γ", "deep cos")


def _heads(row: Row) -> list[str]:
    columns = [head for head in _COLUMNS if head not in _OF_CREDIT or row["per_layer"].get("cosine")]
    own = [name for name in row if name not in RESERVED]
    return [*(name for name in ("epoch", "step") if row[name]), *own, *columns, "flagged"]


def _cell(row: Row, head: str) -> str:
    if head == "flagged":
        return " ".join(check for check, flagged in row.get("flagged", {}).items() if flagged)
    part, name, index = _COLUMNS.get(head, (None, head, None))
    value = (row if part is None else row[part]).get(name)
    value = value[index] if value and index is not None else value
    if value is None or isinstance(value, int):
        return "" if value is None else str(value)
    return f"{value:+z.3f}" if head in _OF_CREDIT else f"{value:.4g}"


class Printer:
    """Prints each row on standard error, the heads of the columns above every twentieth, and each note once."""

    def __init__(self) -> None:
        self._rows, self._notes = 0, set()

    def __call__(self, row: Row) -> None:
        heads = _heads(row)
        widths = [max(len(head), 9) for head in heads]
        if self._rows % 20 == 0:
            say("  ".join(head.rjust(width) for head, width in zip(heads, widths)))
        line = "  ".join(_cell(row, head).rjust(width) for head, width in zip(heads, widths))
        say(line, alarm=any(row["flagged"].values()))
        self._rows += 1
        for text in row["advisories"]:
            if text not in self._notes:
                say(f"note: {text}")
                self._notes.add(text)


def scalars(row: Row) -> dict[str, float]:
    """Return a row as flat names and numbers, for loggers: walkback/acc, walkback/growth, walkback/g_norm/4, …"""
    numbers = {name: value for name, value in row.items() if name not in RESERVED} | row["values"]
    for name, values in row["per_layer"].items():
        numbers |= {f"{name}/{site}": value for site, value in enumerate(values or ())}
    numbers |= {f"flagged/{check}": flagged for check, flagged in row["flagged"].items()}
    return {f"walkback/{name}": float(value) for name, value in numbers.items() if value is not None}


def where(row: Row) -> int:
    """Return the place of a row on a logger's axis: steps done, or epochs where steps are not counted."""
    return row["step"] or row["epoch"]
