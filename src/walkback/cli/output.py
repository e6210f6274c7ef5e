"""What goes to standard output and into files, and what is kept from it."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from walkback.errors import InputError, shown, visible
from walkback.files import write_whole

if TYPE_CHECKING:
    from walkback.cli.options import Reporting
    from walkback.report.report import Report

EXIT = {"passes": 0, "walked back": 1, "undecided": 3}


def answer(thing: Any, as_json: bool) -> None:
    """Print something that has `to_dict`, as JSON, or as text for a person."""
    print_json(thing.to_dict()) if as_json else print_text(str(thing))


def print_json(value: Any) -> None:
    """Print JSON, in ASCII where the terminal is not UTF-8."""
    utf8 = _encoding().lower().replace("-", "") == "utf8"
    text = json.dumps(value, indent=2, ensure_ascii=not utf8, allow_nan=False)
    print_text(re.sub(r"[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]", lambda c: f"\\u{ord(c[0]):04x}", text))


def print_text(text: str) -> None:
    """Print, also where the terminal has no ‖ or Γ, and where the reader (`| head`) has left."""
    encoding = _encoding()
    try:
        print(visible(text).encode(encoding, "replace").decode(encoding), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to flush on exit


def _encoding() -> str:
    return getattr(sys.stdout, "encoding", None) or "utf-8"  # a StringIO has none, and takes every letter


def warn(text: str) -> None:
    """Print a line on standard error."""
    print(visible(text), file=sys.stderr)


def write(path: Path, text: str) -> None:
    """Write a text file, and the folders above it."""
    try:
        write_whole(path, text + "\n")
    except OSError as error:
        raise InputError(f"Expected to write {path}, but: {error}.") from None


def check_report_out(out: Path | None) -> None:
    """Refuse a file that `finish` would not write, before anything is measured."""
    if out is not None and out.suffix not in (".json", ".html", ".md", ".tex", ".txt"):
        raise InputError(f"Expected --out to end in .json, .html, .md, .tex or .txt, but got {shown(str(out))}.")


def finish(report: Report, reporting: Reporting) -> int:
    """Write and print a report; return the exit code of its verdict, or of the checks that are required."""
    from walkback.report.gate import gate
    from walkback.report.gate import junit as junit_xml

    out, required = reporting.out, reporting.require
    found = gate(report, required)
    if reporting.junit is not None:
        write(reporting.junit, junit_xml(report, required))
    if out is not None and out.suffix == ".json":
        report.save(out)
    elif out is not None:
        forms = {".html": report.to_html, ".md": report.to_markdown, ".tex": report.to_latex, ".txt": report.details}
        write(out, forms[out.suffix]())
    if reporting.json:
        print_json(report.to_dict())
    else:
        print_text(report.details() if reporting.verbose else str(report))
    if required:
        warn(found.line)
    return EXIT[found.word]


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send what the user's own code prints, and what programs print that it calls, to standard error, not into JSON."""
    try:
        ours = os.dup(1)
    except OSError:  # closed
        with redirect_stdout(sys.stderr):
            yield
        return
    try:
        sys.stdout.flush()
        with suppress(OSError):  # no standard error
            os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(ours, 1)
        os.close(ours)
