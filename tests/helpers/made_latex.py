"""LaTeX as a reader gets it: through pdflatex."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from patience import PATIENCE


def compiled(folder: Path) -> str:
    """The log of pdflatex; in CI it must be there, elsewhere the test is skipped with a line that says so."""
    compiler = shutil.which("pdflatex")
    if compiler is None and not os.environ.get("WALKBACK_NEEDS_LATEX"):
        pytest.skip("no pdflatex: `make latex` installs it, or texlive-latex-base and texlive-latex-recommended")
    assert compiler, "CI needs pdflatex: `make latex`"
    command = [compiler, "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    run = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=PATIENCE)
    assert run.returncode == 0, run.stdout[-2000:].decode(errors="replace")
    return (folder / "all.log").read_text(errors="replace").replace("\n", " ")
