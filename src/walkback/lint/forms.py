"""Findings as other tools read them: SARIF for code scanning, and annotations of a GitHub workflow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from walkback.lint import Linted
from walkback.pitfalls import DETECTORS, find
from walkback.version import __version__

SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(linted: Linted) -> str:
    """Return the findings as SARIF 2.1.0, which code scanning of GitHub and GitLab and most editors read.

    Lines of a notebook count within its cell, so only its file and the cell, in the message, are given.
    """
    codes = list(DETECTORS)
    results: list[dict[str, Any]] = []
    for f in linted.findings:
        place: dict[str, Any] = {"artifactLocation": {"uri": _uri(f.path)}}
        cell = "" if f.cell is None else f"cell {f.cell}, line {f.line}: "
        if f.cell is None:
            place["region"] = {"startLine": f.line}
        results.append(
            {
                "ruleId": f.code,
                "ruleIndex": codes.index(f.code),
                "level": "warning",
                "message": {"text": f"{cell}{f.why}. Fix: {f.fix}"},
                "locations": [{"physicalLocation": place}],
            }
        )
    rules = [
        {"id": p.code, "name": p.name, "shortDescription": {"text": p.title}, "help": {"text": p.more}}
        for p in map(find, codes)
    ]
    notes = [{"level": "error", "message": {"text": str(problem)}} for problem in linted.problems]
    run = {
        "tool": {"driver": {"name": "walkback", "version": __version__, "rules": rules}},
        "results": results,
        "invocations": [{"executionSuccessful": not notes, "toolExecutionNotifications": notes}],
    }
    return json.dumps({"$schema": SARIF, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False)


def github(linted: Linted) -> str:
    """Return one workflow command per finding, which GitHub shows beside the line."""
    lines = []
    for f in linted.findings:
        cell = "" if f.cell is None else f"cell {f.cell}, line {f.line}: "
        line = "" if f.cell is not None else f",line={f.line}"
        text = _text(f"{cell}{f.why}. {f.fix} ({f.more})")
        lines.append(f"::warning file={_field(_uri(f.path))}{line},title={f.code}::{text}")
    for p in linted.problems:
        lines.append(f"::error file={_field(_uri(p.path))}{f',line={p.line}' if p.line else ''}::{_text(p.reason)}")
    return "\n".join(lines)


def _uri(path: str) -> str:
    """Return a path relative to where lint runs, with slashes, as both forms want it."""
    whole = Path(path).resolve()
    here = Path.cwd()
    return (whole.relative_to(here) if whole.is_relative_to(here) else whole).as_posix()


def _text(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _field(text: str) -> str:
    return _text(text).replace(":", "%3A").replace(",", "%2C")
