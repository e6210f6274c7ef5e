"""Notebooks, run as a reader runs them: in a kernel of their own, from the first cell to the last."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat

from patience import PATIENCE

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


def executed(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """Return a notebook with the outputs of its cells; a cell that fails is an error with its traceback."""
    kernel = folder / "share" / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "Python", "language": "python"}))
    nbformat.write(notebook, folder / "report.ipynb")
    env = {**os.environ, "JUPYTER_PATH": str(folder / "share" / "jupyter"), "IPYTHONDIR": str(folder / "ipython")}
    env |= {"JUPYTER_RUNTIME_DIR": str(folder / "runtime"), "JUPYTER_PLATFORM_DIRS": "1"}
    command = [sys.executable, "-c", RUN, "report.ipynb", str(PATIENCE)]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return nbformat.read(folder / "report.ipynb", as_version=4)
