"""Shapes in the signatures of what is measured hold while networks of several kinds are measured."""

import subprocess
import sys

from places import HELPERS


def test_shapes_in_signatures_hold():
    script = HELPERS / "run_shaped.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "checked\n"), done.stderr[-3000:]
