"""The house keeps its measures: short files, small classes, figures that only draw, two files that hold the idea."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from places import ROOT

PACKAGE = ROOT / "src" / "walkback"
FILES = sorted(PACKAGE.rglob("*.py"))
FIGURES = PACKAGE / "replication" / "figures"
REASON = re.compile(r"\b(many (fields|attributes)|long), since\b", re.IGNORECASE)


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


# -- sizes ---------------------------------------------------------------------------------------------------------


def is_too_long(text: str) -> bool:
    """Whether a file has more than 400 lines and gives no reason in the first."""
    first, *rest = text.splitlines() or [""]
    return len(rest) >= 400 and not REASON.search(first)


def test_no_file_is_longer_than_400_lines_without_a_reason():
    assert [str(path) for path in FILES if is_too_long(path.read_text(encoding="utf-8"))] == []


def test_a_long_file_is_seen():
    assert is_too_long("x = 1\n" * 401)
    assert not is_too_long("x = 1\n" * 400)
    assert not is_too_long('"""A table, long, since it is one."""\n' + "x = 1\n" * 400)


def attributes(node: ast.ClassDef) -> set[str]:
    """The fields of a class, and what its methods set on `self`."""
    fields = {
        line.target.id
        for line in node.body
        if isinstance(line, ast.AnnAssign)
        and isinstance(line.target, ast.Name)
        and "ClassVar" not in ast.unparse(line.annotation)
    }
    return fields | {
        below.attr
        for below in ast.walk(node)
        if isinstance(below, ast.Attribute)
        and isinstance(below.ctx, ast.Store)
        and isinstance(below.value, ast.Name)
        and below.value.id == "self"
    }


def crowded(text: str) -> Iterator[str]:
    """Classes with more than a dozen attributes and no reason in their docstring or in the comment above them."""
    source = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and len(attributes(node)) > 12:
            top = min([node.lineno, *(one.lineno for one in node.decorator_list)]) - 1
            above = source[top - 1] if top and source[top - 1].startswith("#") else ""
            if not REASON.search(f"{above} {' '.join((ast.get_docstring(node) or '').split())}"):
                yield node.name


def test_no_class_has_more_than_a_dozen_attributes_without_a_reason():
    found = {str(path): names for path in FILES if (names := [*crowded(path.read_text(encoding="utf-8"))])}
    assert found == {}


def test_a_crowded_class_is_seen():
    fields = "".join(f"    f{i}: int\n" for i in range(13))
    assert [*crowded(f"class Big:\n{fields}")] == ["Big"]
    sets = "".join(f"        self.a{i} = 0\n" for i in range(13))
    assert [*crowded(f"class Big:\n    def __init__(self):\n{sets}")] == ["Big"]
    assert [*crowded(f"# Many fields, since a format has them.\nclass Big:\n{fields}")] == []


def test_the_protocol_is_one_page_and_two_files_hold_its_idea():
    assert lines(PACKAGE / "api.py") <= 150
    two = lines(PACKAGE / "measures" / "formulas.py"), lines(PACKAGE / "verdict" / "checks.py")
    assert sum(two) + lines(PACKAGE / "verdict" / "editions.py") < 550


# -- figures draw --------------------------------------------------------------------------------------------------

# What a figure may take from a module that computes: names of things, and what picks or writes them.
PLAIN = {
    "walkback.audit.settings": {"LABELS", "RULES", "Setting", "select"},
    "walkback.report.table": {"Table", "number"},
    "walkback.verdict.checks": {"DiagnosticThresholds"},
    "walkback.audit.records": {"Record", "Records"},
    "walkback.audit.plans": {"SEEDS"},
}
# Numbers come from the tables, and from what stands beside them for figures alone.
SOURCES = ("walkback.replication.", "walkback.audit.wording", "walkback.errors", "walkback.files")
SUMS = {"sum", "fsum", "mean", "fmean", "std", "stdev", "var", "median", "average", "prod", "quantile", "sqrt"}
COMPUTING = {"numpy", "scipy", "statistics", "torch"}


def computes(text: str) -> list[str]:
    """What a figure's file imports or calls to compute a number, instead of reading it from a table."""
    wrong = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            wrong += [a.name for a in node.names if a.name.split(".")[0] in COMPUTING | {"walkback"}]
        elif isinstance(node, ast.ImportFrom):
            module, names = node.module or "", {alias.name for alias in node.names}
            if module in PLAIN:
                wrong += sorted(f"{module}.{name}" for name in names - PLAIN[module])
            elif (
                (module.split(".")[0] == "walkback" and not f"{module}.".startswith(SOURCES))
                or module.split(".")[0] in COMPUTING
                or (module == "math" and names & SUMS)
            ):
                wrong.append(module)
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
            wrong += [f"{name}()"] if name in SUMS else []
    return wrong


@pytest.mark.parametrize("path", sorted(FIGURES.glob("*.py")), ids=lambda path: path.stem)
def test_figures_compute_nothing(path: Path):
    assert computes(path.read_text(encoding="utf-8")) == [], "give it a function in replication/drawn.py, or a column"


@pytest.mark.parametrize(
    "line",
    [
        "import numpy as np",
        "from statistics import geometric_mean",
        "from math import log10, sqrt",
        "from walkback.audit.settings import judged",
        "from walkback.report.table import stat",
        "from walkback.measures.formulas import growth",
        "from walkback.verdict.editions import decide",
        "import walkback.measures.over_sites",
        "top = sum(row['acc'] for row in rows) / len(rows)",
        "band = table.column.std()",
        "def late():\n    from torch import Tensor",
    ],
)
def test_a_figure_that_computes_is_seen(line: str):
    assert computes(line)
