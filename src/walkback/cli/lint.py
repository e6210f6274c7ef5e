"""`walkback lint`."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Literal

from walkback.cli.options import Flag
from walkback.cli.output import answer, print_json, print_text, warn
from walkback.errors import InputError


def lint(
    path: Path,
    *more: Path,
    json: Flag = False,
    format: Literal["text", "json", "sarif", "github"] = "text",
    select: str = "",
) -> int:
    """Scan evaluation scripts for pitfalls, without running them. Exit 0: nothing found, 1: findings, 2: not readable.

    Args:
        path: A .py or .ipynb file, or a folder with such files. `# walkback: ignore[P02]` on a line silences P02
            there.
        more: Further files and folders.
        json: Print the findings as JSON; the same as --format json.
        format: text for people, json, sarif for code scanning, github for annotations in a workflow.
        select: The pitfalls to look for, as in P01,P02; all by default.
    """
    from walkback.lint import lint as linted
    from walkback.lint.forms import github, sarif

    if json and format != "text":
        raise InputError(f"Expected --json or --format {format}, but got both.")
    result = linted(path, *more, select=select.split(","))
    if format in ("sarif", "github"):
        if format == "sarif":
            print_json(json_format.loads(sarif(result)))
        elif rendered := github(result):
            print_text(rendered)
    else:
        answer(result, json or format == "json")
    for problem in result.problems:
        warn(f"error: {problem}")
    return 2 if result.problems else 1 if result.findings else 0
