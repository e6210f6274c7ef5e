"""A script or notebook as a syntax tree, with what its comments silence."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from walkback.pitfalls import DETECTORS

_IGNORE = re.compile(r"#\s*walkback:\s*ignore(?:\[([\w\s,]*)\])?")
_MAGIC = re.compile(r"^(\s*)[%!?].*$", re.DOTALL)


@dataclass(frozen=True)
class Problem:
    """A file that could not be read, and why."""

    path: str
    line: int | None
    reason: str

    def __str__(self) -> str:
        place = self.path if self.line is None else f"{self.path}:{self.line}"
        return f"{place}: {self.reason}"


@dataclass(frozen=True)
class Source:
    """A parsed file.

    Args:
        path: the file.
        tree: of the script, or of all code cells one after the other.
        ignored: line -> codes that a comment there silences.
        cells: of a notebook, (first line, number from 1) of each code cell; empty for a script.
    """

    path: Path
    tree: ast.Module
    ignored: dict[int, frozenset[str]] = field(default_factory=dict)
    cells: tuple[tuple[int, int], ...] = ()

    def place(self, line: int) -> tuple[int | None, int]:
        """(cell, line in it) of a line of the tree; the cell of a script is None."""
        inside = [(first, number) for first, number in self.cells if first <= line]
        return (inside[-1][1], line - inside[-1][0] + 1) if inside else (None, line)


def read(path: Path) -> Source | Problem:
    """Parse a .py or .ipynb file."""
    cells: list[tuple[int, str]] = []
    try:
        if path.suffix == ".ipynb":
            cells = _cells(path)
            text = "\n".join(code for _, code in cells)
        else:
            with tokenize.open(path) as file:
                text = file.read()
    except (OSError, ValueError, SyntaxError, LookupError) as error:  # a wrong encoding is any of the last three
        return Problem(str(path), None, f"can't be read: {error}")
    starts, line = [], 1
    for number, code in cells:
        starts.append((line, number))
        line += code.count("\n") + 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the script's own string literals
            tree = ast.parse(text)
        return Source(path, tree, _ignored(text), tuple(starts))
    except SyntaxError as error:
        cell, at = Source(path, ast.Module([], []), {}, tuple(starts)).place(error.lineno or 1)
        where = "" if cell is None else f" in cell {cell}"
        return Problem(str(path), at, f"not Python{where}: {error.msg}")
    except (ValueError, RecursionError, tokenize.TokenError) as error:  # null bytes; absurd nesting
        return Problem(str(path), None, f"not Python: {error}")


def _cells(path: Path) -> list[tuple[int, str]]:
    """(number from 1, code) of the code cells; magics become blank lines, cells of another language are empty."""
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


def _ignored(text: str) -> dict[int, frozenset[str]]:
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        match = _IGNORE.search(token.string) if token.type == tokenize.COMMENT else None
        if match is not None:
            named = DETECTORS if match[1] is None else (code.strip().upper() for code in match[1].split(","))
            found[token.start[0]] = frozenset(named)
    return found
