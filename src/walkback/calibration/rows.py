"""Networks with known answers as rows of a file: what was measured of each, its claim, and what is true of it.

Making a network takes seconds, judging it nothing. So rows are kept (`calibration-cases.jsonl`): a run that was stopped
goes on where it was, and other limits judge the same rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any

import torch

from walkback.errors import FormatError
from walkback.files import append_to, make_folder
from walkback.measures.measurements import Measurements
from walkback.measures.quantities import SCALAR_FIELDS
from walkback.notes import Note
from walkback.verdict.claim import Claim

FILE = "calibration-cases.jsonl"
PROBE = 1024
# Of a measurement, what judging it asks for.
LISTS = ("h_norm", "g_norm", "cosine", "cosine_clamped", "float64_disagreement", "float64_shift")

Row = dict[str, Any]


@dataclass(frozen=True)
class Known:
    """One network: what was measured on two probe sets, its claim, and what is true of it (see `zoo` and `trained`)."""

    name: str
    measured: tuple[Measurements, Measurements]
    claim: Claim
    accuracy: float
    reported: float
    off: float
    rounded: float
    gain: float
    drifts: bool


def row(name: str, measured: Sequence[Measurements], **facts: Any) -> Row:
    """Return plain values for JSON, numbers in six digits, null for what is not finite."""
    return {"name": name, **_plain(facts), "measured": [_numbers_of(m) for m in measured]}


def read(row: Row) -> Known:
    """Return what a row holds, ready to be judged."""
    numbers = {k: inf if row[k] is None else row[k] for k in ("off", "rounded")}
    first, second = (_measurements(m) for m in row["measured"])
    claim = Claim(row["accuracy"], row["frozen"], correct=row.get("paired"))
    reported = nan if row["reported"] is None else row["reported"]
    facts = {k: row[k] for k in ("accuracy", "gain", "drifts")}
    return Known(row["name"], (first, second), claim, reported=reported, **numbers, **facts)


def kept_rows(path: Path | None, wanted: Iterable[tuple[str, Callable[[], Row]]]) -> Iterator[Row]:
    """Yield the row of every name; those that the file has are read, others are made and added to it."""
    known = {} if path is None else {one["name"]: one for one in read_rows(path)}
    for name, make in wanted:
        if name not in known:
            known[name] = make()
            if path is not None:
                make_folder(path.parent)
                with append_to(path) as file:
                    file.write(json.dumps(known[name], allow_nan=False) + "\n")
        yield known[name]


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file, none where there is no file; a last line that was cut short is left out."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise FormatError(f"Expected line {number} of {path} to be a JSON object, but it is not.") from None
    return rows


def _numbers_of(m: Measurements) -> dict[str, Any]:
    return {
        **{name: _plain(getattr(m, name)) for name in (*LISTS, *SCALAR_FIELDS)},
        "nonfinite": [{**note.values, "site": note.site} for note in m.nonfinite],
        "dtype": str(m.dtype).removeprefix("torch."),
    }


def _measurements(kept: dict[str, Any]) -> Measurements:
    fields = dict(kept)
    notes = tuple(Note("nonfinite", n["site"], {k: n[k] for k in ("kind", "batch")}) for n in fields.pop("nonfinite"))
    dtype = getattr(torch, fields.pop("dtype"))
    return Measurements(**fields, nonfinite=notes, dtype=dtype, conditions={"samples": PROBE})


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}") if isfinite(value) else None
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value
