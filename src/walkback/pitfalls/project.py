"""What the files that are linted together say of one another, from their names alone: no file is walked for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePath

from walkback.pitfalls.nodes import last, words
from walkback.pitfalls.values import GRAD, SENT, named

MODES = re.compile("drop|batch_?norm|instance_?norm|spectral", re.IGNORECASE)  # what makes a network other in training


@dataclass
class Project:
    """By file (its stem): what it defines, what it imports, and whether it names parts that differ in training."""

    defined: dict[str, set[str]] = field(default_factory=dict)  # name -> stems of the files that define it
    imported: dict[str, set[str]] = field(default_factory=dict)
    modes: set[str] = field(default_factory=set)
    compared: set[tuple[str, str]] = field(default_factory=set)  # (stem, function) that is handed gradients elsewhere

    def add(self, path: str, tree: ast.Module) -> None:
        """Take in one file."""
        stem = PurePath(path).stem
        imported, origins = self.imported.setdefault(stem, set()), {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                module = (node.module or "").rpartition(".")[2]
                imported |= {module, *(alias.name for alias in node.names)}
                origins |= {alias.asname or alias.name: (module, alias.name) for alias in node.names}
            elif isinstance(node, ast.Import):
                imported |= {alias.name.rpartition(".")[2] for alias in node.names}
            elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                self.defined.setdefault(node.name, set()).add(stem)
        for node in ast.walk(tree):
            origin = origins.get(last(node.func)) if isinstance(node, ast.Call) else None
            if origin is not None and isinstance(node, ast.Call) and _of_gradients(node.args):
                self.compared.add(origin)
        if any(map(MODES.search, words(tree))):
            self.modes.add(stem)

    def has_one_mode(self, name: str) -> bool:
        """Return whether a class or function is defined in these files, with no part that differs in training."""
        todo, seen = list(self.defined.get(name, ())), set()
        known = bool(todo)
        while todo:
            stem = todo.pop()
            if stem in self.modes:
                return False
            if stem not in seen:
                seen.add(stem)
                todo += [other for other in self.imported.get(stem, ()) if other in self.imported]
        return known


def _of_gradients(arguments: Iterable[ast.expr]) -> bool:
    return any({GRAD, SENT} & named(word) for a in arguments for word in words(a))
