"""Data walks through the package in one direction: a module imports from its own folder and from those before it."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from places import ROOT

SOURCE = ROOT / "src"

# From the first to the last; what stands in one line may not import each other.
ORDER = (
    ("errors", "version", "files", "sentence_parts"),
    ("sentences",),
    ("notes", "registry", "progress"),
    ("network",),
    ("tracing",),
    ("measures",),
    ("verdict",),
    ("report",),
    ("api", "arrays"),
    ("rules", "nets", "data"),
    ("training",),
    ("selftest", "audit"),
    ("calibration", "replication", "pitfalls"),
    ("lint", "integrations", "adapters"),
    ("cli",),
)
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted((SOURCE / "walkback").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imported(name: str) -> Iterator[str]:
    """The modules of the package that a module imports, at its top or later, but for what only type checkers see."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    hidden = {
        below
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for below in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in hidden:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "walkback")
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "walkback":
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else node.module


def place(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def test_every_module_has_its_place():
    assert {place(name) for name in MODULES} - {"", "__main__"} == set(RANK)


def misplaced(name: str) -> list[str]:
    """What a module imports from a folder that is not before its own."""
    ours = place(name)
    return [
        other
        for other in imported(name)
        if place(other) != ours and not (place(other) in RANK and RANK[place(other)] < RANK[ours])
    ]


def refuse_circles() -> None:
    """Raise a CycleError where modules import each other, at their top or inside of a function."""
    graph = {name: {other for other in imported(name) if other != name} for name in MODULES if name != "walkback"}
    graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("name", [name for name in MODULES if place(name) in RANK])
def test_imports_point_one_way(name: str):
    assert misplaced(name) == [], f"{name} imports from a later folder, or from the front door"


def test_no_module_imports_itself_in_a_circle():
    refuse_circles()


def test_what_is_imported_inside_of_a_function_counts(tmp_path, monkeypatch):
    texts = {
        "walkback.measures.a": "def late():\n    import walkback.measures.b\n    from walkback.api import diagnose\n",
        "walkback.measures.b": "if TYPE_CHECKING:\n    from walkback.measures.a import g\n",
    }
    for name, text in texts.items():
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        monkeypatch.setitem(MODULES, name, path)
    assert misplaced("walkback.measures.a") == ["walkback.api"]
    refuse_circles()  # what only type checkers see is no import
    (tmp_path / "walkback.measures.b.py").write_text("def late():\n    import walkback.measures.a\n")
    with pytest.raises(graphlib.CycleError):
        refuse_circles()
