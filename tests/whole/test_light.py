"""The core without torch: what lint, judge, report, registry and the hook import, and what the others say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib

import pytest
import torch

from patience import PATIENCE
from places import ROOT
from walkback.audit.records import net_options, rule_options
from walkback.errors import TORCH_MISSING
from walkback.measures.dtypes import SMALLEST, dtype_name
from walkback.measures.rounding import smallest_subnormal
from walkback.nets import NETS
from walkback.registry import options_of
from walkback.rules import RULES

# As if torch, and what only makes sense with it, were not installed.
WITHOUT = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "safetensors", "jaxtyping"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Without())
"""
COMMAND = "from walkback.cli import run\nsys.exit(run(sys.argv[1:]))\n"
MEASURING = """
import walkback as wb
def imported():
    import protocol
for measure in (lambda: wb.diagnose, lambda: wb.diagnose_arrays, imported):
    try:
        measure()
    except wb.InputError as error:
        print(error)
"""
NUMBERS = '{"per_layer": {"h_norm": [9.0, 2000.0], "g_norm": [3e-9, 4e-9]}}'


def without_torch(folder, *words: str, code: str = COMMAND) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", WITHOUT + code, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE)


@pytest.mark.parametrize(
    ("words", "code", "printed"),
    [
        (["lint", "evaluate.py"], 1, "P01"),
        (["judge", "numbers.json", "--require", "D1", "--junit", "j.xml"], 1, "VERDICT: walked back: D1, D2"),
        (["judge", "numbers.json", "--out", "page.html"], 1, "VERDICT"),
        (["report", str(ROOT / "evidence" / "search"), "--out", "page.html"], 0, "settings"),
        (["report", str(ROOT / "evidence" / "search"), "--template", "filled.md"], 0, "settings"),
        (["registry", "page", str(ROOT / "registry")], 0, "entries"),
        (["pitfalls", "show", "P02"], 0, "F.cosine_similarity"),
        (["pitfalls"], 0, "P15"),
        (["--help"], 0, "diagnose"),
    ],
)
def test_what_works_without_torch(tmp_path, words, code, printed):
    (tmp_path / "evaluate.py").write_text("import torch\nprint(torch.ones(4, 3).norm(-1))\n")
    (tmp_path / "numbers.json").write_text(NUMBERS)
    done = without_torch(tmp_path, *words)
    assert done.returncode == code, done.stderr
    assert printed in done.stdout


@pytest.mark.parametrize("words", [["diagnose", "mine:net"], ["demo"], ["train"]])
def test_what_measures_says_that_torch_is_missing(tmp_path, words):
    done = without_torch(tmp_path, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Expected torch to be installed" in done.stderr
    assert "Traceback" not in done.stderr


def test_in_python_what_measures_says_so_too_and_what_else_is_missing(tmp_path):
    done = without_torch(tmp_path, code=MEASURING)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [TORCH_MISSING] * 3
    assert TORCH_MISSING.endswith("pip install torch safetensors jaxtyping.")


def test_the_hook_needs_the_standard_library_alone(tmp_path):
    (tmp_path / "evaluate.py").write_text("import torch\nprint(torch.ones(4, 3).norm(-1))\n")
    (tmp_path / "fine.py").write_text("print(1)\n")
    hook = [sys.executable, "-I", "-S", str(ROOT / "scripts" / "pre_commit_lint.py")]  # -S: no site-packages
    run = {"cwd": tmp_path, "capture_output": True, "text": True, "check": False, "timeout": PATIENCE}
    found = subprocess.run([*hook, "fine.py", "evaluate.py"], **run)
    assert (found.returncode, found.stderr) == (1, "")
    assert "evaluate.py:2: P01" in found.stdout
    assert subprocess.run([*hook, "fine.py"], **run).returncode == 0
    assert subprocess.run([*hook, "gone.py"], **run).stderr.startswith("error: Expected a file")
    assert os.access(ROOT / "scripts" / "pre_commit_lint.py", os.X_OK)


def test_the_light_requirements_are_those_of_the_core_without_torch():
    core = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    lines = (ROOT / "requirements-light.txt").read_text(encoding="utf-8").splitlines()
    light = [line for line in lines if not line.startswith("#")]
    assert light == [one for one in core if re.match(r"[\w-]+", one)[0] not in ("torch", "safetensors", "jaxtyping")]


# -- what is known of torch's things without it ----------------------------------------------------------------------


@pytest.mark.parametrize("name", list(SMALLEST))
def test_the_smallest_number_of_a_dtype_has_the_bits_of_one(name):
    dtype = getattr(torch, name)
    assert dtype_name(dtype) == name
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    assert torch.ones(1, dtype=whole).view(dtype).double().item() == SMALLEST[name]


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16"])
def test_measuring_and_judging_have_the_same_floor(name):
    assert smallest_subnormal(getattr(torch, name)) == SMALLEST[name]


def test_other_names_of_dtypes():
    assert [dtype_name(d) for d in (torch.half, torch.double, torch.float, "half")] == [
        *("float16", "float64", "float32", "float16")
    ]


def test_options_read_from_files_are_those_of_the_classes():
    for table, options in ((NETS, net_options), (RULES, rule_options)):
        for name, made in table.items():
            assert list(options(name)) == options_of(made), name
    assert net_options("resmlp")["width"] == 256
    assert rule_options("mine:rule") == {}
