"""A public record: a folder of entries, each an audited rule on a network and its data, and a page made of them.

An entry is one JSON file: what was trained, with which code, on which data, and the whole report. Nothing in it is
believed: the report is checked against its schema and judged again from its own numbers.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from markupsafe import Markup
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from walkback.errors import FormatError, InputError, WalkbackError, shown
from walkback.files import write_whole
from walkback.report.formats import report_2
from walkback.report.formats.logged import judge
from walkback.report.html import asset, templates
from walkback.report.page_view import mark
from walkback.report.report import Report
from walkback.verdict.files import read_table
from walkback.verdict.findings import PASSES, UNDECIDED, WALKED_BACK

SCHEMA = "walkback.entry/1"
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_WORDS = (WALKED_BACK, UNDECIDED, PASSES)

Line = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\n]*$")]
Link = Annotated[str, Field(pattern=r"^https://[^\s<>\"']+$", max_length=500)]


class _Exact(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Code(_Exact):
    """Where the training code is."""

    commit: Annotated[str, Field(pattern="^[0-9a-f]{40}$")]
    url: Link | None = None


class PaperLink(_Exact):
    """Where the number was claimed."""

    title: Line
    url: Link


class EntryFile(_Exact):
    """One file of the record: what was trained, by which code, on which data, and the report of it."""

    schema_: Literal["walkback.entry/1"] = Field(alias="schema")
    rule: Line
    network: Line
    data: Line
    data_fingerprint: Annotated[str, Field(pattern="^[0-9a-f]{16,64}$")]
    spec: Annotated[dict[str, Any], Field(min_length=1)]
    code: Code
    paper: PaperLink | None = None
    by: Line | None = None
    report: dict[str, Any]


@dataclass(frozen=True)
class RecordEntry:
    """One entry as it was read: its name is that of its file, and the anchor of its row."""

    name: str
    file: EntryFile
    report: Report

    @property
    def setting(self) -> tuple[str, str, str]:
        """What a row of the page is about: the rule, the network and the data."""
        return self.file.rule, self.file.network, self.file.data


@dataclass(frozen=True)
class PublicRecord:
    """What a folder of entries holds, in the order of their names, and what is wrong with the others."""

    entries: tuple[RecordEntry, ...]
    problems: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        counts = Counter(entry.report.verdict for entry in self.entries)
        words = ", ".join(f"{counts[word]} {word}" for word in _WORDS if counts[word]) or "no verdicts"
        wrong = f"; {len(self.problems)} can't be used" if self.problems else ""
        count = f"{len(self.entries)} entr{'y' if len(self.entries) == 1 else 'ies'}"
        return f"{count}: {words}{wrong}"

    def to_dict(self) -> dict[str, Any]:
        """Return the rows and the problems as plain values."""
        return {"rows": rows(self), "problems": [{"file": file, "reason": why} for file, why in self.problems]}


def read_entry(path: str | Path) -> RecordEntry:
    """Read one entry; raise a FormatError that says what is wrong with it."""
    path = Path(path)
    if path.suffix != ".json" or not _NAME.fullmatch(path.stem):
        raise FormatError(f"Expected a name like dfa-resmlp-cifar10-s42.json for an entry, but got {path.name}.")
    table = read_table(path)
    try:
        file = EntryFile.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        got = "" if first["type"] == "missing" else f", got {shown(first['input'])}"
        raise FormatError(f"Expected {path} to be of schema {SCHEMA}, but {place}: {first['msg']}{got}.") from None
    return RecordEntry(path.stem, file, _checked(file, path))


def _checked(file: EntryFile, path: Path) -> Report:
    """Return the report of an entry, once its schema, its data and its verdict hold."""
    try:
        report_2.Document.model_validate(file.report)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, ("report", *first["loc"])))
        raise FormatError(
            f"Expected the report in {path} to be of {report_2.SCHEMA}, but {place}: {first['msg']}."
        ) from None
    report = Report.from_dict(file.report, f"the report in {path}")
    measured = report.conditions.get("probe_hash")
    if measured is not None and measured != file.data_fingerprint:
        raise FormatError(
            f"Expected data_fingerprint in {path} to be that of the samples measured, {measured}, but got "
            f"{file.data_fingerprint}."
        )
    again = judge(report)
    if (again.verdict, again.failed) != (report.verdict, report.failed):
        raise FormatError(
            f"Expected the report in {path} to have the verdict that its numbers give, {_verdict(again)}, but it says "
            f"{_verdict(report)}."
        )
    return report


def _verdict(report: Report) -> str:
    return ": ".join(filter(None, (report.verdict, ", ".join(report.failed))))


def read_public_record(folder: str | Path) -> PublicRecord:
    """Read every entry of a folder. What can't be used is named with its reason, never dropped silently."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FormatError(f"Expected a folder of entries at {folder}, but there is none.")
    entries, problems = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            entries.append(read_entry(path))
        except WalkbackError as error:
            problems.append((path.name, str(error)))
    return PublicRecord(tuple(entries), tuple(problems))


def make_entry(
    report: Report,
    *,
    rule: str,
    network: str,
    data: str,
    spec: Mapping[str, Any],
    commit: str,
    url: str | None = None,
    fingerprint: str | None = None,
    paper: Mapping[str, str] | None = None,
    by: str | None = None,
) -> dict[str, Any]:
    """Return an entry as plain values, to be written as JSON; `read_entry` checks it.

    Args:
        report: of the run, or judged over its seeds.
        rule: of learning, as the page shows it.
        network: its name and size.
        data: the data set.
        spec: everything that decides the training, in any form.
        commit: of the training code, in full.
        url: where that code is.
        fingerprint: of the data; by default that of the measured samples, `report.conditions["probe_hash"]`.
        paper: {"title", "url"} of where the number was claimed.
        by: who submits it.
    """
    digest = fingerprint or report.conditions.get("probe_hash")
    if digest is None:
        raise InputError("Expected a fingerprint of the data, which this report has none of, but got none.")
    code = {"commit": commit, **({"url": url} if url else {})}
    more = {"paper": None if paper is None else dict(paper), "by": by}
    entry = {"schema": SCHEMA, "rule": rule, "network": network, "data": data, "data_fingerprint": digest}
    entry |= {"spec": dict(spec), "code": code, **{k: v for k, v in more.items() if v}, "report": report.to_dict()}
    return json.loads(json.dumps(entry))


def read_spec(path: Path) -> dict[str, Any]:
    """Read everything that decides a training from a JSON or TOML file, in any form but a list."""
    found = read_table(path)
    if not isinstance(found, dict):
        raise InputError(f"Expected {path} to hold a table of what was trained, but it holds a {type(found).__name__}.")
    return found


def add_entry(path: Path, entry: Mapping[str, Any]) -> None:
    """Write an entry into a new file; one that `read_entry` refuses is not kept."""
    if os.path.lexists(path):
        raise InputError(f"Expected a new name for the entry, but {path} is there already.")
    try:
        write_whole(path, json.dumps(entry, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise InputError(f"Expected to write {path}, but: {error}.") from None
    try:
        read_entry(path)
    except FormatError:
        path.unlink()
        raise


# -- the page ------------------------------------------------------------------------------------------------------


def rows(record: PublicRecord) -> list[dict[str, Any]]:
    """Return one row per rule, network and data: how many entries have each verdict, and every entry of it."""
    by_setting: dict[tuple[str, str, str], list[RecordEntry]] = {}
    for entry in record.entries:
        by_setting.setdefault(entry.setting, []).append(entry)
    return [
        {
            "rule": rule,
            "network": network,
            "data": data,
            "anchor": _anchor(rule, network, data),
            "verdicts": dict(_counts(entries)),
            "entries": [_shown(entry) for entry in entries],
        }
        for (rule, network, data), entries in sorted(
            by_setting.items(), key=lambda one: (one[0][2], one[0][1], one[0][0])
        )
    ]


def _counts(entries: list[RecordEntry]) -> Iterator[tuple[str, int]]:
    counts = Counter(entry.report.verdict for entry in entries)
    yield from ((word, counts[word]) for word in _WORDS if counts[word])


def _anchor(*words: str) -> str:
    """Return an id that no other row has (names that differ in signs alone, or have no Latin letter) and no entry."""
    digest = hashlib.sha256(json.dumps(words).encode()).hexdigest()[:6]
    return "-".join(re.findall(r"[a-z0-9]+", " ".join(words).lower())) + f"_{digest}"


def _shown(entry: RecordEntry) -> dict[str, Any]:
    file, report = entry.file, entry.report
    accuracy = report.headline_acc
    return {
        "name": entry.name,
        "verdict": report.verdict,
        "line": report.verdict_line.removeprefix("VERDICT: "),
        "edition": report.edition,
        "accuracy": accuracy if isinstance(accuracy, list) else [] if accuracy is None else [accuracy],
        "checks": [{"check": f["check"], "flagged": f["flagged"], "value": f["value"]} for f in report.findings],
        "commit": file.code.commit,
        "code": file.code.url,
        "data_fingerprint": file.data_fingerprint,
        "spec": file.spec,
        "paper": None if file.paper is None else file.paper.model_dump(),
        "by": file.by,
    }


def page(record: PublicRecord) -> str:
    """Return one HTML file without scripts or network: verdicts by rule, network and data, each row with an anchor."""
    made = templates().get_template("registry.html")
    return made.render(css=Markup(asset("base.css")), rows=rows(record), record=record, mark=mark, dumps=_compact)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
