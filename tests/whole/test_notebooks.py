"""The notebooks of examples/ run from the first cell to the last, and hold no output of somebody's machine."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from notebooks import executed
from places import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def printed(cell: nbformat.NotebookNode) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


def test_there_is_one_for_torch_and_one_for_jax() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["audit_jax", "audit_your_network"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    assert all(not cell.outputs and cell.execution_count is None for cell in cells if cell.cell_type == "code")


def test_audit_your_network(tmp_path: Path) -> None:
    cells = executed(nbformat.read(ROOT / "examples" / "audit_your_network.ipynb", as_version=4), tmp_path).cells
    text = "\n".join(printed(cell) for cell in cells if cell.cell_type == "code")
    accuracy = float(re.findall(r"accuracy (0\.\d+), chance 0\.200", text)[0])
    assert accuracy > 0.3, "it learns something"
    assert re.search(r"^(passes|walked back|undecided) \(", text, re.MULTILINE)
    assert "the trained blocks are worth" in text
    (card,) = [
        o for cell in cells if cell.cell_type == "code" for o in cell.outputs if "text/html" in o.get("data", {})
    ]
    assert "Walk-back chain" in card.data["text/html"]


def test_audit_jax(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    cells = executed(nbformat.read(ROOT / "examples" / "audit_jax.ipynb", as_version=4), tmp_path).cells
    text = "\n".join(printed(cell) for cell in cells if cell.cell_type == "code")
    assert "passes ()" in text
    cosines = [float(c) for c in re.findall(r"-?\d\.\d+", text.partition("cosine by site:")[2])]
    assert len(cosines) == 4
    assert max(map(abs, cosines)) < 0.5, "an untrained network has not aligned with anything"
