"""Products in bfloat16 that kill the process are noticed from outside, with what to set."""

from __future__ import annotations

import json
import os
import sys

import pytest

import walkback as wb
from walkback import calibration, cli, selftest
from walkback.calibration import products

# As a machine does that announces AMX and can't: the setting helps, or it does not.
DIES = "import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n"
HELPED = f"import os\nif os.environ.get('ONEDNN_MAX_CPU_ISA') != 'AVX512_CORE_BF16':\n    exec({DIES!r})\n"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


@pytest.fixture
def machine(monkeypatch):
    """Return what makes this machine one where the trial runs another script."""
    monkeypatch.setattr(selftest, "cases", lambda: [])  # the instrument has its own tests
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")

    def made(script: str) -> None:
        monkeypatch.setattr(products, "TRIAL", script)
        products.bfloat16_products.cache_clear()

    yield made
    products.bfloat16_products.cache_clear()


def test_the_trial_itself_runs():
    assert products._fate({}) is None


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("", None),
        (HELPED, "killed (SIGILL); set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before Python starts, then they work"),
        (DIES, "killed (SIGILL), with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 too; use float32"),
        ("raise RuntimeError('no such product')", "failed (RuntimeError: no such product), with ONEDNN"),
    ],
)
def test_doctor_says_what_to_set(machine, capsys, script, words):
    machine(script)
    assert cli.run(["doctor", "--json"]) == 0  # measurements in float32 are sound
    found = json.loads(capsys.readouterr().out)["bfloat16"]
    assert found is None if words is None else words in found
    cli.run(["doctor"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("bfloat16 products")]
    assert ("DO NOT WORK" in line) == (words is not None)


def test_calibrating_in_bfloat16_ends_with_a_word_and_not_with_the_process(machine, capsys):
    machine(HELPED)
    with pytest.raises(wb.InputError, match=r"Expected products in bfloat16 to work, but .* set ONEDNN_MAX_CPU_ISA"):
        calibration.calibrate(1, nets=["student"], dtypes=["bfloat16"])
    assert cli.run(["calibrate", "--count", "1", "--dtypes", "bfloat16"]) == 2
    assert "Or name other dtypes than bfloat16" in capsys.readouterr().err
    assert "ONEDNN_MAX_CPU_ISA" not in os.environ
    products.require_products("float32")
