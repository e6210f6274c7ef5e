"""What a run wrote is what is read: the SHA-256 of every file of a run, in its sums.json.

Runs of versions without sums have none; they are read as before, and `walkback fsck` says that they can't be checked.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from walkback.errors import FormatError, cut
from walkback.files import LARGEST, LARGEST_WEIGHTS, complete, sha256
from walkback.verdict.files import read_table

SUMS, WEIGHTS = "sums.json", "weights.safetensors"
# What a finished run leaves beside its weights, which may be left out.
RECORD = ("spec.json", "trajectory.jsonl", "report.json", "machine.json")
SCHEMA = "walkback.sums/1"
MORE_WEIGHTS = " More is read with --largest-weights GIB, or load_bundle(path, largest=bytes)."
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")  # of a file: no path, no pattern


def sums_text(digest: str, files: Mapping[str, str | bytes]) -> str:
    """Return sums.json: the digest of the spec, and the SHA-256 of each file by name."""
    found = {"schema": SCHEMA, "spec": digest, "sha256": {name: sha256(text) for name, text in sorted(files.items())}}
    return json.dumps(found, indent=2) + "\n"


def read_sums(folder: Path) -> dict[str, Any] | None:
    """Return what sums.json of a run says; None where there is none."""
    path = folder / SUMS
    if not os.path.lexists(path):
        return None
    table: Any = read_table(path)
    sums = table.get("sha256") if isinstance(table, dict) and table.get("schema") == SCHEMA else None
    texts = [table.get("spec"), *sums.values()] if isinstance(sums, dict) else [None]
    if not all(isinstance(text, str) for text in texts) or not all(map(_NAME.fullmatch, sums or ())):
        raise FormatError(f"Expected {path} to be of schema {SCHEMA}, with a sum for each file.")
    return table


def with_sum(folder: Path, name: str, content: str) -> dict[str, bytes]:
    """Return sums.json, by name, for a run one of whose files is written anew; nothing where the run has no sums."""
    table = read_sums(folder)
    if table is None:
        return {}
    table["sha256"][name] = sha256(content)
    return {SUMS: (json.dumps(table, indent=2) + "\n").encode()}


def check_sums(folder: Path, names: Iterable[str], digest: str | None = None, largest: int = LARGEST_WEIGHTS) -> None:
    """Refuse files of a run that are not those it wrote, or not there, and a run that is of another spec.

    Weights may have been left out; more than `largest` bytes of them are not read. A file whose new content a killed
    process had written whole, sums and all, and not yet given its name, gets it now.
    """
    table = read_sums(folder)
    if table is None:
        return
    if digest is not None and table["spec"] != digest:
        of = cut(table["spec"]) or "no spec"
        raise FormatError(f"Expected {folder} to be of the spec {digest}, but its sums are of {of}.")
    for name in names:
        path = folder / name
        if not os.path.lexists(path) and (name not in table["sha256"] or name == WEIGHTS):
            continue
        if name not in table["sha256"]:
            raise FormatError(f"Expected {folder / SUMS} to have the sum of {name}, which is there, but it has none.")
        most = largest if name == WEIGHTS else LARGEST
        if _is_as_written(path, table["sha256"][name], most):
            continue
        with suppress(OSError):  # of a place that can't be written
            complete(folder, {name: table["sha256"][name]}, ())
        if not _is_as_written(path, table["sha256"][name], most):
            why = "its SHA-256 is another: it was damaged or altered since" if path.is_file() else "there is none"
            raise FormatError(
                f"Expected {path} to be what the run wrote, but {why}. Put the right file back, or train the run again."
            )


def check_file(path: Path) -> None:
    """Refuse a file in the folder of a run, such as its report.json, that is not what the run wrote."""
    if os.path.lexists(path.parent / SUMS) and path.name in (*RECORD, WEIGHTS):
        check_sums(path.parent, [path.name])


def check_size(path: Path, most: int) -> None:
    """Refuse a file of more bytes than are read, told by its length: one of holes has any and takes no room on disk."""
    if path.is_file() and path.stat().st_size > most:
        more = MORE_WEIGHTS if path.suffix == ".safetensors" else ""
        raise FormatError(f"Expected {path} to be what a run wrote, but it is over {most >> 20} MiB.{more}")


def _is_as_written(path: Path, expected: str, most: int) -> bool:
    check_size(path, most)
    return path.is_file() and sha256(path) == expected


@dataclass(frozen=True)
class Checked:
    """What `fsck` found of one folder: "whole", "unchecked" (no sums), "unfinished" or "damaged", and why."""

    path: Path
    state: str
    why: str = ""


def checked(folder: Path, largest: int = LARGEST_WEIGHTS) -> Checked:
    """Compare every file of a run with its sums. Weights that were left out on purpose are no damage."""
    try:
        table = read_sums(folder)
        if not (folder / "report.json").is_file():
            return Checked(folder, "unfinished", "there is no report.json")
        if table is None:
            return Checked(folder, "unchecked", "written by a version that kept no sums")
        check_sums(folder, sorted({*RECORD, WEIGHTS, *table["sha256"]}), largest=largest)
    except (FormatError, OSError) as error:
        return Checked(folder, "damaged", str(error))
    return Checked(folder, "whole")
