"""Which pitfalls does an evaluation script walk into? Read from its syntax tree: nothing is run, not even torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from walkback.errors import InputError
from walkback.lint.source import Problem, Source, read
from walkback.pitfalls import DETECTORS, find
from walkback.pitfalls.script import Script

SUFFIXES = (".py", ".ipynb")
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "venv", "build", "dist"}


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

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.cell is None else f"{self.path}:cell {self.cell}:{self.line}"
        return f"{place}: {self.code} {self.why}\n    fix: {self.fix} ({self.page})"


@dataclass(frozen=True)
class Linted:
    """What was found in how many files, and which of them could not be read."""

    files: int
    findings: tuple[Finding, ...]
    problems: tuple[Problem, ...] = ()

    def __str__(self) -> str:
        count, read, lost = len(self.findings), self.files - len(self.problems), len(self.problems)
        summary = f"{count} finding{'s' * (count != 1)}" if count else "nothing found"
        summary = f"{summary} in {_count(read)}" if read else "nothing was checked"
        summary += f"; {_count(lost)} could not be read" * bool(lost)
        if self.findings:
            summary += "; `# walkback: ignore[P01]` on a line that is right silences it there"
        return "\n".join([*map(str, self.findings), summary])

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def lint(path: str | Path, *more: str | Path) -> Linted:
    r"""Scan scripts, notebooks, or all of a folder; a file that stands under two of the paths once.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     script = Path(folder) / "evaluate.py"
    ...     _ = script.write_text("import torch\nprint(torch.ones(4, 3).norm(-1))\n")
    ...     [(f.code, f.line) for f in lint(script).findings]
    [('P01', 2)]
    """
    findings: list[Finding] = []
    problems: list[Problem] = []
    files = {file.resolve(): file for one in (path, *more) for file in _files(Path(one))}
    for file in files.values():
        source = read(file)
        if isinstance(source, Problem):
            problems.append(source)
        else:
            findings += sorted(_look(source), key=lambda f: (f.cell or 0, f.line, f.code))
    return Linted(len(files), tuple(findings), tuple(problems))


def _count(files: int) -> str:
    return f"{files} file{'s' * (files != 1)}"


def _look(source: Source) -> Iterator[Finding]:
    script, seen = Script(source.tree), set()
    for code, detector in DETECTORS.items():
        page = find(code).page
        for node, why, fix in detector(script):
            first, last = node.lineno, getattr(node, "end_lineno", None) or node.lineno
            if any(code in source.ignored.get(line, ()) for line in range(first, last + 1)) or (code, first) in seen:
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


__all__ = ["Finding", "Linted", "lint"]
