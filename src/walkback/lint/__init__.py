"""Which pitfalls does an evaluation script walk into? Read from its syntax tree: nothing is run, not even torch."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import tokenize
import warnings
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from walkback.errors import InputError
from walkback.pitfalls import DETECTORS, find
from walkback.pitfalls.project import Project
from walkback.pitfalls.script import Script

__all__ = ["Finding", "Linted", "lint"]

SUFFIXES = (".py", ".ipynb")
LARGEST = 20 * 10**6  # bytes of a script or notebook
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "venv", "build", "dist"}
_IGNORE = re.compile(r"#\s*walkback:\s*ignore(?:\[([\w\s,]*)\])?")
_MAGIC = re.compile(r"^(\s*)[%!?].*$", re.DOTALL)


@dataclass(frozen=True)
class Unreadable:
    """A file that could not be read, and why."""

    path: str
    line: int | None
    reason: str

    def __str__(self) -> str:
        place = self.path if self.line is None else f"{self.path}:{self.line}"
        return f"{place}: {self.reason}"


@dataclass(frozen=True)
class Finding:
    """One place in a script: `line` counts from 1, in a notebook within its `cell`; `page` is of the documentation."""

    code: str
    path: str
    line: int
    cell: int | None
    why: str
    fix: str
    page: str

    @property
    def more(self) -> str:
        """The command that prints the page, which ships with the package."""
        return find(self.code).more

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.cell is None else f"{self.path}:cell {self.cell}:{self.line}"
        return f"{place}: {self.code} {self.why}\n    fix: {self.fix} ({self.more})"


@dataclass(frozen=True)
class Linted:
    """What was found in how many files, and which of them could not be read."""

    files: int
    findings: tuple[Finding, ...]
    problems: tuple[Unreadable, ...] = ()

    def __str__(self) -> str:
        count, read, lost = len(self.findings), self.files - len(self.problems), len(self.problems)
        summary = f"{count} finding{'s' * (count != 1)}" if count else "nothing found"
        summary = f"{summary} in {_count(read)}" if read else "nothing was checked"
        summary += f"; {_count(lost)} could not be read" * bool(lost)
        if self.findings:
            summary += "; `# walkback: ignore[P01]` on a line that is right silences it there"
        return "\n".join([*map(str, self.findings), summary])

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "findings": tuple({**asdict(f), "more": f.more} for f in self.findings)}


def lint(path: str | Path, *more: str | Path, select: Collection[str] = ()) -> Linted:
    r"""Scan scripts, notebooks, or all of a folder; a file that stands under two of the paths once.

    Args:
        path: a .py or .ipynb file, or a folder.
        more: further ones.
        select: the pitfalls to look for, such as ["P01", "P02"]; all that have a detector by default.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     script = Path(folder) / "evaluate.py"
    ...     _ = script.write_text("import torch\nprint(torch.ones(4, 3).norm(-1))\n")
    ...     [(f.code, f.line) for f in lint(script).findings]
    [('P01', 2)]
    """
    findings: list[Finding] = []
    problems: list[Unreadable] = []
    wanted = selected(select)
    files = {file.resolve(): file for one in (path, *more) for file in _files(Path(one))}
    project = Project()
    for file in files.values() if len(files) > 1 else ():
        source = _read(file)
        if isinstance(source, ParsedSource):
            project.add(str(file), source.tree)
    for file in files.values():
        source, found = _read(file), []
        try:
            found = [] if isinstance(source, Unreadable) else list(look(source, wanted, project))
        except RecursionError:  # in one file: those of the others are kept
            source = Unreadable(
                str(file), None, "too deep to be looked at: an expression or chain of names of this length"
            )
        if isinstance(source, Unreadable):
            problems.append(source)
        else:
            findings += sorted(found, key=lambda f: (f.cell or 0, f.line, f.code))
    return Linted(len(files), tuple(findings), tuple(problems))


def _count(files: int) -> str:
    return f"{files} file{'s' * (files != 1)}"


def selected(codes: Collection[str]) -> tuple[str, ...]:
    """Return the codes to look for; one that has no detector is an InputError.

    >>> selected(["p02"])
    ('P02',)
    """
    wanted = tuple(code.strip().upper() for code in codes if code.strip())
    strange = [code for code in wanted if code not in DETECTORS]
    if strange:
        raise InputError(f"Expected select to name pitfalls of {', '.join(DETECTORS)}, but got {', '.join(strange)}.")
    return wanted or tuple(DETECTORS)


def look(source: ParsedSource, codes: Collection[str], project: Project | None = None) -> Iterator[Finding]:
    """Yield what the detectors of these pitfalls find in a parsed script, but for what a comment silences."""
    script, seen = Script(source.tree, str(source.path), project), set()
    for code in codes:
        page = find(code).page
        for node, why, fix in DETECTORS[code](script):
            first = node.lineno
            if any(code in source.ignored.get(line, ()) for line in script.lines(node)) or (code, first) in seen:
                continue
            seen.add((code, first))
            cell, line = source.place(first)
            yield Finding(code, str(source.path), line, cell, why, fix, page)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise InputError(f"Expected a .py or .ipynb file, or a folder with such files, but got {str(path)!r}.")
        return [path]
    if not path.is_dir():
        raise InputError(f"Expected a file or folder to scan, but there is none at {str(path)!r}.")
    found = []
    for name, below, files in os.walk(path):
        below[:] = sorted(d for d in below if not d.startswith(".") and d not in _SKIPPED)
        found += [Path(name) / file for file in sorted(files) if file.endswith(SUFFIXES)]
    if not found:
        raise InputError(f"Expected {str(path)!r} to hold .py or .ipynb files, but it has none.")
    return found


@dataclass(frozen=True)
class ParsedSource:
    """A parsed script, or all code cells of a notebook one after the other."""

    path: Path
    tree: ast.Module
    ignored: dict[int, frozenset[str]] = field(default_factory=dict)  # line -> codes that a comment there silences
    cells: tuple[tuple[int, int], ...] = ()  # of a notebook, (first line, number from 1) of each code cell

    def place(self, line: int) -> tuple[int | None, int]:
        """Return (cell, line in it) of a line of the tree; the cell of a script is None."""
        inside = [(first, number) for first, number in self.cells if first <= line]
        return (inside[-1][1], line - inside[-1][0] + 1) if inside else (None, line)


def _read(path: Path) -> ParsedSource | Unreadable:
    """Parse a .py or .ipynb file."""
    cells: list[tuple[int, str]] = []
    try:
        if not path.is_file():
            return Unreadable(
                str(path), None, "can't be read: a pipe, a device or a link that leads nowhere, not a file"
            )
        if path.stat().st_size > LARGEST:
            return Unreadable(str(path), None, f"can't be read: over {LARGEST // 10**6} MB, which no script is")
        if path.suffix == ".ipynb":
            cells = _cells(path)
            text = "\n".join(code for _, code in cells)
        else:
            with tokenize.open(path) as file:
                text = file.read()
    except (
        OSError,
        ValueError,
        TypeError,
        SyntaxError,
        LookupError,
        RecursionError,
    ) as error:
        return Unreadable(str(path), None, f"can't be read: {error}")
    starts, line = [], 1
    for number, code in cells:
        starts.append((line, number))
        line += code.count("\n") + 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the script's own string literals
            tree = ast.parse(text)
        return ParsedSource(path, tree, ignored(text), tuple(starts))
    except SyntaxError as error:
        cell, at = ParsedSource(path, ast.Module([], []), {}, tuple(starts)).place(error.lineno or 1)
        where = "" if cell is None else f" in cell {cell}"
        return Unreadable(str(path), at, f"not Python{where}: {error.msg}")
    except (ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:  # null bytes; absurd nesting
        return Unreadable(str(path), None, f"not Python: {error}")


def _cells(path: Path) -> list[tuple[int, str]]:
    """Return (number from 1, code) of the code cells; magics become blank lines, other languages' cells are empty."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise ValueError("expected a notebook with cells (nbformat 4)")
    found = []
    for number, cell in enumerate(notebook["cells"], 1):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        lines = "".join(cell.get("source") or ()).split("\n")
        if lines[0].startswith("%%") and not lines[0].startswith(("%%time", "%%capture")):
            lines = [""] * len(lines)
        found.append((number, "\n".join(_MAGIC.sub(r"\1pass", line) for line in lines)))
    return found


def ignored(text: str) -> dict[int, frozenset[str]]:
    """Return line -> the codes that a comment there silences."""
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        match = _IGNORE.search(token.string) if token.type == tokenize.COMMENT else None
        if match is not None:
            named = DETECTORS if match[1] is None else (code.strip().upper() for code in match[1].split(","))
            found[token.start[0]] = frozenset(named)
    return found
