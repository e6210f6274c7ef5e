"""A report in a real notebook: what the kernel hands to the page is the card, its Markdown and its text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from patience import PATIENCE

CELLS = [
    "import walkback as wb",
    "wb.diagnose(wb.selftest.exploded(), wb.selftest.batches(2), 0.31, 0.35, method_name='<script>alert(1)</script>')",
]
# In a process of its own: Jupyter's client has warnings and an event loop of its own. It talks to the kernel through
# sockets in this folder: a TCP port that is free when it is looked for may be another program's when it is used.
RUN = """
import sys, nbformat
from nbclient import NotebookClient
from traitlets.config import Config
notebook, patience = nbformat.read(sys.argv[1], as_version=4), float(sys.argv[2])
client = NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": "."}},
                        timeout=patience, startup_timeout=patience, iopub_timeout=patience)
client.config = Config({"KernelManager": {"transport": "ipc", "ip": "kernel"}})
client.execute()
nbformat.write(notebook, sys.argv[1])
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory) -> dict:
    folder: Path = tmp_path_factory.mktemp("notebook")
    kernel = folder / "share" / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "Python", "language": "python"}))
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "report.ipynb")
    env = {**os.environ, "JUPYTER_PATH": str(folder / "share" / "jupyter"), "IPYTHONDIR": str(folder / "ipython")}
    env |= {"JUPYTER_RUNTIME_DIR": str(folder / "runtime"), "JUPYTER_PLATFORM_DIRS": "1"}
    command = [sys.executable, "-c", RUN, "report.ipynb", str(PATIENCE)]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    (shown,) = nbformat.read(folder / "report.ipynb", as_version=4).cells[-1].outputs
    assert shown.output_type == "execute_result"
    return shown.data


def test_a_notebook_gets_all_three_forms(output: dict) -> None:
    assert set(output) == {"text/html", "text/markdown", "text/plain"}
    assert output["text/plain"].splitlines()[0] == "VERDICT: walked back: D1, D2, D3"
    assert "walked back: D1, D2, D3" in output["text/markdown"]


def test_the_card_is_drawn_and_runs_nothing(output: dict) -> None:
    card = output["text/html"]
    assert "walked back: D1, D2, D3" in card
    assert card.count("<svg") >= 2, "‖h‖ and ‖g‖ by site"
    assert "<script" not in card
    assert "&lt;script&gt;alert(1)" in card
    assert "http" not in card.replace("http://www.w3.org/2000/svg", "")
