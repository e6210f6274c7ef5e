"""Files of logged numbers -> rows: .json, .jsonl, .csv, or the folder of a run."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from numbers import Real
from pathlib import Path
from stat import S_ISDIR
from typing import Any

from walkback.errors import FormatError, InputError, shown
from walkback.files import LARGEST, parse_json, read_file
from walkback.measures.quantities import LOGGED_SCALARS
from walkback.notes import Note
from walkback.report.formats.logged_columns import over_sites, refuse_twice, site_of, spelled, stands_for
from walkback.report.formats.logged_row import ACCURACIES, WATCH_SCHEMA
from walkback.report.formats.sums import RECORD, check_file, check_sums
from walkback.verdict.files import read_table

Named = tuple[Mapping[str, Any], str]  # a row and where it stands


def named_rows(numbers: Any) -> tuple[list[Named], tuple[Note, ...]]:
    """Return (rows with their names, what is to be said of how they were read)."""
    if isinstance(numbers, (str, Path)):
        rows, notes = _read(Path(numbers))
        return without_superseded(rows), notes
    if isinstance(numbers, Mapping):
        return [(numbers, "the numbers")], ()
    if isinstance(numbers, Sequence) and numbers and all(isinstance(row, Mapping) for row in numbers):
        return without_superseded([(row, f"row {i}") for i, row in enumerate(numbers)]), ()
    raise InputError(
        "Expected measurements, a dict, a list of one dict per epoch, or a path to .json, .jsonl or .csv, but got "
        f"{type(numbers).__name__}{' with nothing in it' if numbers == [] else ''}."
    )


def without_superseded(rows: Iterable[Named]) -> list[Named]:
    """Return the rows without what a Watch measured and then, resumed from an earlier point, measured again."""
    kept: list[Named] = []
    for row in rows:
        if row[0].get("schema") == WATCH_SCHEMA:
            at = position(*row)
            while kept and kept[-1][0].get("schema") == WATCH_SCHEMA and position(*kept[-1]) >= at:
                kept.pop()
        kept.append(row)
    return kept


def position(row: Mapping[str, Any], where: str = "") -> tuple[int, int]:
    """Return where a row of a Watch stands: (epochs done, steps done)."""
    for unit in ("epoch", "step"):
        if row.get(unit) is not None and count(row[unit]) is None:
            raise InputError(
                f"Expected {unit} in {where or 'a row of a Watch'} to be a number or null, but got {shown(row[unit])}. "
                f"Rows of a Watch say how many {unit}s were done: give names in a column of another name."
            )
    return row.get("epoch") or 0, row.get("step") or 0


def _read(path: Path) -> tuple[list[Named], tuple[Note, ...]]:
    try:
        folder = S_ISDIR(path.stat().st_mode)  # not is_dir(), which from Python 3.14 on has no errors
    except (FileNotFoundError, NotADirectoryError, ValueError):
        folder = False
    except OSError as error:  # a name that is too long: a text in place of a path
        raise FormatError(f"Expected a file at {shown(str(path))}, but: {error.strerror}.") from None
    if folder:
        if not (path / "report.json").exists():
            raise FormatError(
                f"Expected a file of numbers, or the folder of a run with its report.json, but {path} is a folder "
                "without one."
            )
        check_sums(path, RECORD)
        path = path / "report.json"
    check_file(path)
    kind, notes = path.suffix.lower(), ()
    if kind not in (".jsonl", ".csv"):
        table = _table(path)
        rows = table if isinstance(table, list) else [table]
    else:
        try:
            data = read_file(path, 4 * LARGEST)
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


def _table(path: Path) -> object:
    try:
        return read_table(path)
    except FormatError:
        if not path.is_file() or path.suffix.lower() in ("", ".json", ".toml"):
            raise
        raise FormatError(f"Expected numbers as .json, .jsonl or .csv, but got {path}. Type a table as .csv.") from None


BLANK = b"\r\n\t \0"  # NUL: what a full disk or a lost power supply leaves at the end of a file


def jsonl_rows(data: bytes, path: Path) -> tuple[list[Any], bytes]:
    r"""Return (what the lines of a .jsonl file hold, the beginning of one more at its end: an object that was cut off).

    >>> jsonl_rows(b'{"epoch": 1}\n{"epo', Path("log.jsonl"))
    ([{'epoch': 1}], b'{"epo')
    """
    rows, lines = [], data.rstrip(BLANK).split(b"\n")
    for n, line in enumerate(lines, 1):
        if line.strip():
            try:
                rows.append(parse_json(line.decode("utf-8-sig" if n == 1 else "utf-8")))
            except ValueError as error:
                if n == len(lines) and _cut_off(line, error):
                    return rows, line
                raise FormatError(f"Expected line {n} of {path} to be JSON, but: {error}.") from None
            except RecursionError:
                raise FormatError(f"Expected line {n} of {path} to be an object, but it is nested too deep.") from None
    return rows, b""


def _cut_off(line: bytes, error: ValueError) -> bool:
    """Return whether a line is an object that ends too early, not one with a mistake in it."""
    if not line.lstrip().startswith(b"{"):
        return False
    if isinstance(error, UnicodeDecodeError):
        return error.reason == "unexpected end of data"
    if not isinstance(error, json.JSONDecodeError):  # whole, with a key that stands twice
        return False
    rest = error.doc[error.pos :]  # nothing, or a word, number or escape that was begun
    return error.msg.startswith("Unterminated string") or re.fullmatch(r"[\\\w.+-]*", rest) is not None


def _csv_rows(text: str, path: Path) -> list[Mapping[str, Any]]:
    rows = []
    try:
        reader = csv.reader(text.splitlines(), skipinitialspace=True)
        table = [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error as error:
        raise FormatError(f"Expected {path} to be readable as .csv, but: {error}.") from None
    header = [spelled(column.strip()) for column in table[0][1]] if table else []
    if "method" in header:  # a table of a paper, whose controls may be columns
        header = [stands_for(column) or column for column in header]
    if len(header) == 1 and re.search("[;\t]", header[0]):
        raise FormatError(f"Expected commas between the columns of {path}, but its first line is {shown(header[0])}.")
    often = Counter(header)
    twice = next((column for column in header if often[column] > 1), None)
    if twice is not None:
        raise FormatError(
            f"Expected the columns of {path} to have names of their own, but {shown(twice)} stands twice."
        )
    sites = [site_of(column) for column in header]
    for n, cells in table[1:]:
        if len(cells) != len(header):
            raise FormatError(
                f"Expected line {n} of {path} to have as many cells as the header, {len(header)}, but it has "
                f"{len(cells)}."
            )
        row: dict[str, Any] = {}
        lists: dict[str, dict[int, Any]] = {}
        for name, site, cell in zip(header, sites, cells):
            value = _cell(cell, name, path, n, text_allowed=site is None and name not in _NUMBERS)
            if site is not None:
                at = lists.setdefault(site[0], {})
                refuse_twice(name, at.get(site[1]), value)
                at[site[1]] = value
            else:
                row[name] = count(value) if name in _COUNTS and count(value) is not None else value
        rows.append({"per_layer": over_sites(lists), **row})
    return rows


_COUNTS = ("epoch", "step", "total_epochs", "total_steps")
_NUMBERS = {*LOGGED_SCALARS, "g_norm_batch_size", *_COUNTS, *(name for names in ACCURACIES.values() for name in names)}


def _cell(cell: str, column: str, path: Path, line: int, text_allowed: bool) -> float | str | None:
    cell = cell.strip()
    if cell.lower() in ("", "null", "none", "na", "n/a", "-", "–", "—"):
        return None
    try:
        return float(cell)
    except ValueError:
        if text_allowed:  # run names, dates: not ours to read
            return cell
        raise FormatError(
            f"Expected a number in column {shown(column)}, line {line} of {path}, but got {shown(cell)}."
        ) from None


def count(value: Any) -> Any:
    """Return a finite number as it is, whole ones as int; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return None
    if not isfinite(number):
        return None
    return int(number) if number.is_integer() else number
