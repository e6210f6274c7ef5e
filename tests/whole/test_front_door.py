"""The front door: what `import walkback` offers, when it loads, and that the docs speak of nothing else."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import walkback
import walkback as wb
from patience import PATIENCE
from places import ROOT


def fresh(code: str) -> str:
    """What a new interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.strip()


# -- names ---------------------------------------------------------------------------------------------------------


def test_every_name_resolves_and_is_explained():
    assert walkback.__all__ == sorted(set(walkback.__all__))
    for name in walkback.__all__:
        value = getattr(walkback, name)
        assert (inspect.getdoc(value) or "").strip(), f"walkback.{name} has no docstring"
        assert name in dir(walkback)


def test_every_name_and_every_rule_and_network_has_an_example():
    """Examples are run as doctests; a name without one can't be tried."""
    offered = {f"walkback.{name}": getattr(walkback, name) for name in walkback.__all__}
    offered |= {f"rule {name}": rule for name, rule in wb.rules.RULES.items()}
    offered |= {f"net {name}": net for name, net in wb.nets.NETS.items()}
    told = {name: value for name, value in offered.items() if not isinstance(value, ModuleType)}
    told = {name: v for name, v in told.items() if not (inspect.isclass(v) and issubclass(v, Exception))}
    assert [name for name, value in told.items() if ">>>" not in (inspect.getdoc(value) or "")] == []


def test_the_promised_names_are_there():
    promised = (
        "diagnose judge measure Anatomy DiagnosticThresholds Report Measurements Trace Bundle load_bundle save_bundle "
        "WalkbackError InputError AnatomyError CreditError FormatError Perturbation Nudging selftest"
    )
    assert set(promised.split()) <= set(walkback.__all__)


def test_names_type_checkers_see_are_the_names_there_are():
    tree = ast.parse(Path(walkback.__file__).read_text(encoding="utf-8"))
    seen = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in node.body
        if isinstance(inner, ast.ImportFrom)
        for alias in inner.names
    }
    assert seen == set(walkback.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'walkback' has no attribute 'diagnos'"):
        walkback.diagnos  # noqa: B018


def test_the_version_is_the_packages():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{walkback.__version__}"' in text


def test_every_error_is_one_family():
    for name in ("InputError", "AnatomyError", "CreditError", "FormatError"):
        assert issubclass(getattr(wb, name), wb.WalkbackError)
        assert issubclass(getattr(wb, name), ValueError)


DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md")), *sorted((ROOT / "examples").glob("**/*.py"))]


@pytest.mark.parametrize("page", DOCS, ids=lambda p: str(p.relative_to(ROOT)))
def test_pages_name_nothing_that_is_not_there(page):
    text = page.read_text(encoding="utf-8")
    for path in set(re.findall(r"\bwb\.([\w.]*\w)", text)):
        value = wb
        for step in path.split("."):
            if isinstance(value, (ModuleType, type)):
                assert hasattr(value, step), f"{page.name} speaks of wb.{path}"
                value = getattr(value, step)
    for name in set(re.findall(r"from walkback import ([\w, ]+)", text)):
        for one in name.split(","):
            assert hasattr(wb, one.strip()), f"{page.name} imports {one}"


def test_arguments_of_diagnose_are_the_promised_ones_in_order():
    names = list(inspect.signature(wb.diagnose).parameters)
    assert names[:12] == [
        "model",
        "eval_batches",
        "headline_acc",
        "frozen_baseline_acc",
        "credit",
        "method_name",
        "notes",
        "thresholds",
        "edition",
        "anatomy",
        "loss",
        "probes",
    ]
    lines = (inspect.getdoc(wb.diagnose) or "").splitlines()
    described = {name.strip() for line in lines for name in line.partition(":")[0].split(",")}
    assert set(names) <= described


# -- when it loads -------------------------------------------------------------------------------------------------


def test_importing_walkback_loads_no_torch():
    code = "import sys, walkback; dir(walkback); print('torch' in sys.modules, 'numpy' in sys.modules)"
    assert fresh(code) == "False False"


def test_functions_stay_functions_whatever_was_imported_before():
    code = """
import types
import walkback.api
import walkback.report.formats.logged
import walkback.measures.accumulate
from walkback.report.formats.logged import judge
from walkback.api import diagnose, measure
import walkback as wb
from walkback import diagnose as again
assert all(isinstance(f, types.FunctionType) for f in (wb.diagnose, wb.judge, wb.measure)), wb.diagnose
assert wb.diagnose is diagnose is again and wb.judge is judge and wb.measure is measure
assert isinstance(wb.selftest, types.ModuleType)
import walkback.selftest
assert callable(wb.selftest.healthy) and callable(walkback.diagnose)
names = {}
exec("from walkback import *", names)
assert set(wb.__all__) <= set(names) and names["judge"] is judge
print("ok")
"""
    assert fresh(code) == "ok"


def test_functions_stay_functions_in_this_process_too():

    assert inspect.isfunction(wb.diagnose)
    assert inspect.isfunction(wb.judge)
    assert inspect.isfunction(wb.measure)
    assert wb.measure.__module__ == "walkback.api"
