"""Finished runs, read from disk: a folder -> Records. Weights are not needed."""

from __future__ import annotations

import base64
import binascii
import copy
import errno
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from walkback.audit.shapes import check
from walkback.errors import FormatError, WalkbackError
from walkback.files import parse_json, read_file
from walkback.measures.measurements import Measurements
from walkback.measures.worth import Depth
from walkback.registry import defaults_in
from walkback.report.formats.logged import measurements
from walkback.report.formats.sums import RECORD, check_sums
from walkback.report.report import Report
from walkback.training.spec import SCHEMA, RunSpec, control_spec, run_fields, schema_of
from walkback.verdict.files import read_table

FILES = RECORD
_USED = ("headline_acc", "values", "per_layer", "controls", "run")  # of report.json
# What a run leaves while it is trained: a folder with any of these was meant to be a run.
_TRACES = (*FILES, "checkpoint.safetensors", "weights.safetensors")


@dataclass(frozen=True, eq=False)
class Record:
    """One finished run; `rows` are one per epoch, from 1, and the state at initialisation is `initial`."""

    path: Path
    spec: RunSpec
    report: Report
    rows: tuple[dict[str, Any], ...]
    machine: dict[str, Any]
    classes: int = 0

    @property
    def accuracy(self) -> float:
        """Of the last epoch, on the test split."""
        return float(self.report.headline_acc)  # type: ignore[arg-type]  # read_records has looked

    @cached_property
    def depth(self) -> Depth | None:
        """What its blocks are worth; None where that was not measured."""
        return None if self.report.depth is None else Depth.of(self.report.depth, str(self.path / "report.json"))

    @cached_property
    def measurements(self) -> Measurements:
        """The numbers of the report, ready to be judged again."""
        return measurements(self.report.shared_dict(), str(self.path / "report.json"))

    @cached_property
    def epochs(self) -> tuple[tuple[int, float, Measurements], ...]:
        """(epoch, test accuracy, measurements) from initialisation to the last epoch."""
        rows = [(row["epoch"], row) for row in (self.initial, *self.rows)]
        return tuple((n, row["test_acc"], measurements(row, f"epoch {n}")) for n, row in rows)

    @property
    def initial(self) -> dict[str, Any]:
        return self.report.run["initial"]

    @property
    def diverged(self) -> bool:
        """Whether training ended early because something was no longer finite."""
        return bool(self.report.run.get("diverged"))

    def on_the_data_of(self, other: Record) -> bool:
        """Return whether both were measured on the same samples, as far as their reports tell."""
        ours, theirs = (run.report.conditions.get("probe_hash") for run in (self, other))
        return ours is None or theirs is None or ours == theirs

    @cached_property
    def correct(self) -> np.ndarray | None:
        """(N,) which test samples are right, in the order of the split; None where that is not kept, or no N known."""
        found = self._fitting
        return found[0] if len(found) == 1 else None

    @cached_property
    def _fitting(self) -> list[np.ndarray]:
        # Eight samples share a byte: of the lengths up to 7 bits shorter only one gives the accuracy, but for 0.
        text = base64.b64decode(self.report.run.get("test_correct") or "")
        bits = np.unpackbits(np.frombuffer(text, np.uint8)).astype(bool)
        cut = [bits[:n] for n in range(max(1, len(bits) - 7), len(bits) + 1) if not bits[n:].any()]
        return [right for right in cut if abs(right.mean() - self.accuracy) < 1e-9]


def canonical(spec: RunSpec) -> RunSpec:
    """Return the same run without the options that only repeat a default of its network or rule."""
    net = _without_defaults(net_options(spec.net), spec.net_options)
    rule = _without_defaults(rule_options(spec.rule), spec.rule_options)
    return RunSpec(**{**spec.model_dump(), "net_options": net, "rule_options": rule})


def net_options(name: str) -> dict[str, Any]:
    """Return the options of a network of ours with their defaults; {} for another. torch is not loaded for it."""
    return _NETS().get(name, {})


def rule_options(name: str) -> dict[str, Any]:
    """Return the options of a rule of ours with their defaults; {} for another."""
    return _RULES().get(name, {})


_NETS = cache(partial(defaults_in, "walkback.nets", "NETS"))
_RULES = cache(partial(defaults_in, "walkback.rules", "RULES"))


def _without_defaults(defaults: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in options.items() if k not in defaults or defaults[k] != v}


@dataclass(frozen=True)
class Problem:
    """A folder that looks like a run and could not be used."""

    path: Path
    reason: str


@dataclass(frozen=True, eq=False)
class Records:
    """The finished runs under a folder, in the order of their paths, and what could not be read, with the reason."""

    folder: Path
    runs: tuple[Record, ...] = ()
    problems: tuple[Problem, ...] = ()
    asked: set[Path] = field(default_factory=set, repr=False)  # the runs that something was made of
    _controls: dict[tuple[Path, str], Record | None] = field(default_factory=dict, init=False, repr=False)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    @cached_property
    def _by_digest(self) -> dict[str, Record]:
        return {canonical(run.spec).digest: run for run in reversed(self.runs)}

    def find(self, spec: RunSpec) -> Record | None:
        """Return the run of this spec, whether or not its defaults are written out."""
        record = self._by_digest.get(canonical(spec).digest)
        if record is not None:
            self.asked.add(record.path)
        return record

    def control(self, record: Record, stem: str = "rule") -> Record | None:
        """Return the frozen control of a run: for `stem` "rule" the matched one of D3, for "bp" that with BP's stem.

        One that was trained on other data of the same name is none.
        """
        key = record.path, stem
        if key not in self._controls:
            found = self.find(control_spec(record.spec, stem))
            self._controls[key] = found if found is not None and record.on_the_data_of(found) else None
        return self._controls[key]

    @property
    def store(self) -> Path:
        """The folder with the most trained epochs: what a command that trains more should be given as --out."""
        epochs: Counter[Path] = Counter()
        for run in self.runs:
            epochs[run.path.parent] += len(run.rows)
        return min(epochs, key=lambda p: (-epochs[p], p)) if epochs else self.folder


def read_records(folder: str | Path) -> Records:
    """Return all finished runs under a folder, however deep. Nothing is dropped silently: see `Records.problems`."""
    folder = _folder(folder)
    runs: dict[str, Record] = {}
    problems = []
    unreadable: list[OSError] = []
    for path in _candidates(folder, unreadable):
        try:
            run = read_record(path)
        except (WalkbackError, OSError) as error:
            problems.append(Problem(path, str(error)))
            continue
        same = runs.setdefault(canonical(run.spec).digest, run)
        if same is not run:
            problems.append(Problem(path, f"the same spec as {same.path}, which is used"))
    for error in unreadable:
        if Path(error.filename) == folder:
            raise FormatError(f"Expected to read the runs in {folder}, but: {error.strerror}.")
        problems.append(Problem(Path(error.filename), f"not readable: {error.strerror}"))
    found = Records(folder, tuple(runs.values()), tuple(problems))
    return replace(found, problems=(*problems, *_other_data(found)))


def run_folders(folder: str | Path) -> list[Path]:
    """Return the folders under a folder that were meant to be runs, finished or not."""
    return list(_candidates(_folder(folder), []))


def _folder(folder: str | Path) -> Path:
    folder = Path(folder)
    if not folder.is_dir():
        found = "it is a file" if folder.exists() else "there is none"
        raise FormatError(f"Expected a folder with runs at {folder}, but {found}.")
    return folder


def read_beside(folder: Path, spec: RunSpec) -> Records:
    """Return the finished runs of a store that judge one of this spec: its rule's and BP's on its network and data."""
    runs = []
    for path in (path for path in sorted(folder.glob("*/spec.json")) if path.is_file()):
        try:
            fields = read_table(path)
            if not isinstance(fields, dict) or fields.get("rule") not in (spec.rule, "bp"):
                continue
            if all(fields.get(name) == getattr(spec, name) for name in ("net", "data", "epochs")):
                runs.append(read_record(path.parent))
        except (WalkbackError, OSError):
            continue  # what is not finished or damaged judges nothing
    return Records(folder, tuple(runs))


def _other_data(records: Records) -> Iterator[Problem]:
    """Yield as problems the controls that were trained on other data of the same name than the run they belong to."""
    for run in records:
        for stem in ("rule", "bp") if run.spec.scope == "all" else ():
            other = records._by_digest.get(canonical(control_spec(run.spec, stem)).digest)
            if other is not None and not run.on_the_data_of(other):
                ours, theirs = (r.report.conditions["probe_hash"] for r in (run, other))
                yield Problem(
                    other.path,
                    f"not taken as the control of {run.path}: under the name {run.spec.data} they had different data "
                    f"(probe sets {theirs} and {ours})",
                )


def _candidates(folder: Path, unreadable: list[OSError]) -> Iterator[Path]:
    """Return folders with the files of a run, and empty ones below `folder`, sorted."""
    seen = set()
    for name, below, files in os.walk(folder, onerror=unreadable.append, followlinks=True):
        real = Path(name).resolve()
        if real in seen:  # a link that leads back
            below.clear()
            continue
        seen.add(real)
        below[:] = sorted(d for d in below if not d.startswith("."))
        links = [d for d in below if (Path(name) / d).is_symlink() and (Path(name) / d).resolve() not in seen]
        for link in [d for d in links if not _leads_to_runs(Path(name) / d)]:
            below.remove(link)
            unreadable.append(OSError(errno.ELOOP, "a link that leads to no run, not followed", str(Path(name) / link)))
        if any(file in files for file in _TRACES) or (not below and not files and Path(name) != folder):
            yield Path(name)


def _leads_to_runs(link: Path) -> bool:
    """Return whether a link leads to a run or to a folder of runs: one to / would have the whole disk searched."""
    try:
        with os.scandir(link) as entries:
            for entry in islice(entries, 10_000):
                if entry.name in _TRACES or any(Path(entry.path, name).is_file() for name in _TRACES):
                    return True
    except OSError:
        return True  # walking into it says why
    return False


_READ: dict[Path, tuple[tuple[tuple[int, ...], ...], Record]] = {}  # folder -> (its files as they were, what they say)


def read_record(path: Path) -> Record:
    """Return one finished run, or raise a FormatError that says what is wrong. Unchanged files are read once."""
    real = path.resolve()
    stamps = tuple(_stamp(real / name) for name in FILES)
    if real not in _READ or _READ[real][0] != stamps:
        _READ[real] = stamps, _read_record(path)
    run = copy.copy(_READ[real][1])  # with all that was computed of it
    object.__setattr__(run, "path", path)
    return run


def _stamp(file: Path) -> tuple[int, ...]:
    try:
        status = file.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _read_record(path: Path) -> Record:
    missing = [name for name in FILES if not (path / name).is_file()]
    if "report.json" in missing:
        raise FormatError(f"unfinished: there is no report.json{_how_far(path)}")
    if missing:
        raise FormatError(f"incomplete: there is no {' and no '.join(missing)}")
    fields: Any = read_table(path / "spec.json")
    if (got := schema_of(fields)) != SCHEMA:
        raise FormatError(f"Expected spec.json to be of schema {SCHEMA}, but got {got}.")
    check("spec", fields, "spec.json")
    spec = RunSpec(**run_fields(fields))
    check_sums(path, FILES, spec.digest)
    report = Report.load(path / "report.json")
    check("report", {name: getattr(report, name) for name in _USED}, "report.json")
    rows = _rows(path / "trajectory.jsonl")
    _check(spec, report, rows)
    machine = read_table(path / "machine.json")
    if not isinstance(machine, dict):
        raise FormatError(f"Expected machine.json to be an object, but got {type(machine).__name__}.")
    run = Record(path, spec, report, rows, machine, int(fields.get("classes") or 0))
    if report.run.get("test_correct") is not None and not run._fitting:
        raise FormatError("Expected run.test_correct in report.json to give the accuracy, but it does not.")
    _ = run.measurements, run.epochs, run.depth  # what they complain of is said here, with the folder
    return run


def _how_far(path: Path) -> str:
    if (path / "checkpoint.safetensors").is_file():
        return ", but a checkpoint: training goes on when it is started again"
    return "" if any(path.iterdir()) else ", nor anything else: it was stopped before its first epoch ended"


def _rows(path: Path) -> tuple[dict[str, Any], ...]:
    try:
        lines = [line for line in read_file(path).decode().splitlines() if line.strip()]
        rows = _together(lines)
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"Expected trajectory.jsonl to hold one JSON object per line, but: {error}.") from None
    for n, row in enumerate(rows, 1):
        check("row", row, f"row {n} of trajectory.jsonl")
        if row["epoch"] != n:
            raise FormatError(f"Expected row {n} of trajectory.jsonl to be epoch {n}, but it is epoch {row['epoch']}.")
    return tuple(rows)


def _together(lines: list[str]) -> list[Any]:
    """Return what lines of JSON hold. Read at once, all rows share the strings of their keys: a third of the memory."""
    try:
        rows = parse_json(f"[{','.join(lines)}]")
    except ValueError:
        rows = []
    return rows if len(rows) == len(lines) else [parse_json(line) for line in lines]  # which says what is wrong


def _check(spec: RunSpec, report: Report, rows: tuple[dict[str, Any], ...]) -> None:
    if len(rows) != report.run.get("epochs") or (len(rows) != spec.epochs and not report.run.get("diverged")):
        raise FormatError(
            f"Expected {spec.epochs} epochs in trajectory.jsonl, but it has {len(rows)} and report.json says "
            f"{report.run.get('epochs')}."
        )
    if rows and abs(rows[-1]["test_acc"] - report.headline_acc) > 1e-5:  # rows are rounded
        raise FormatError(
            f"Expected the last row of trajectory.jsonl to have the accuracy of report.json, {report.headline_acc:g}, "
            f"but it has {rows[-1]['test_acc']:g}."
        )
    sites = len(report.per_layer.get("h_norm") or ())
    short = next((k for k, v in report.controls.items() if v is not None and len(v) != sites), None)
    if short is not None:
        raise FormatError(
            f"Expected controls.{short} in report.json to have one value for each of {sites} sites, but it has "
            f"{len(report.controls[short])}."
        )
    moved = [w for block in report.run.get("weight_growth") or () for w in block or () if w]
    if spec.scope == "frozen" and moved:
        raise FormatError(
            f"Expected frozen blocks to stay as they were initialised, but they moved by up to {max(moved):.2g} of "
            "their norm: this run is no control."
        )
    try:
        base64.b64decode(report.run.get("test_correct") or "", validate=True)
    except (binascii.Error, TypeError) as error:
        raise FormatError(f"Expected run.test_correct in report.json to be base64, but: {error}.") from None
