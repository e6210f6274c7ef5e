"""Does a matrix product in bfloat16 kill the process? Tried in another one, since nothing can be said afterwards.

Some virtual machines announce instructions (AMX) that they do not carry out. The library that multiplies (oneDNN)
believes them and dies of SIGILL, without a word.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import cache

from walkback.errors import InputError

SETTING = ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # bfloat16 without AMX; read when a process multiplies first
TRIAL = "import torch\na = torch.ones(64, 64, dtype=torch.bfloat16)\nassert float((a @ a)[0, 0]) == 64\n"


@cache
def bfloat16_products() -> str | None:
    """Return None where products in bfloat16 work, else what is wrong and what to set."""
    found = _fate({})
    if found is None:
        return None
    name, value = SETTING
    if _fate({name: value}) is None:
        return f"{found}; set {name}={value} before Python starts, then they work"
    return f"{found}, with {name}={value} too; use float32"


def require_products(dtype: str) -> None:
    """Raise an InputError if products in this dtype do not work on this machine."""
    wrong = bfloat16_products() if dtype == "bfloat16" else None
    if wrong is not None:
        raise InputError(f"Expected products in bfloat16 to work, but {wrong}. Or name other dtypes than bfloat16.")


def _fate(more: dict[str, str]) -> str | None:
    """Return what becomes of a process that multiplies, with `more` in its environment; None if all is well."""
    done = subprocess.run(
        [sys.executable, "-c", TRIAL], env={**os.environ, **more}, capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"a process that tried one was killed ({signal.Signals(-done.returncode).name})"
    return f"a process that tried one failed ({(done.stderr.strip().splitlines() or ['no message'])[-1][:200]})"
