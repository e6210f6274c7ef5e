"""What one batch frees is there for the next: glibc keeps it in its heap. Mapped blocks are counted, not time."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# The limit above which a block is mapped apart, half of that above which the heap's end is handed back, can't be read;
# but glibc counts the blocks that are.
MAPPED = """
import ctypes, sys, torch
import walkback as wb
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", *"abcde")]
info = ctypes.CDLL(None).mallinfo2
info.restype = Info
if sys.argv[1] == "measured":
    with wb.Tracer(wb.selftest.healthy()):
        pass
before = info().hblks
block = torch.empty(12 * 2**20, dtype=torch.uint8)
print(info().hblks - before)
"""
GLIBC = platform.libc_ver()[0] == "glibc" and tuple(map(int, platform.libc_ver()[1].split(".")[:2])) >= (2, 33)


@pytest.mark.skipif(not GLIBC, reason="other allocators keep memory by other rules, and older ones count it otherwise")
@pytest.mark.parametrize(("how", "mapped"), [("measured", 0), ("plain", 1)])
def test_after_a_session_memory_of_a_batch_comes_from_the_heap_and_stays_there(how: str, mapped: int) -> None:
    call = [sys.executable, "-c", MAPPED, how]
    assert int(subprocess.run(call, stdout=subprocess.PIPE, text=True, check=True).stdout) == mapped
