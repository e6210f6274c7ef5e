"""Memory that one batch frees and the next one needs again: it stays with the process."""

from __future__ import annotations

import ctypes
import sys

LARGEST = 2**24  # bytes; glibc takes nothing above 2²⁵ for a sign


def keep_freed() -> None:
    """Let the process keep what a batch frees.

    glibc hands the end of its heap back to the system as soon as it is twice as large as the largest block that was
    mapped and freed so far. Where that is a batch's memory, every page of it is mapped and zeroed again in the next
    batch: 900 pages, a seventh of a small network's time in float64. Large networks raise that limit by themselves.
    Here a block that nobody writes to, and that no page is mapped for, is freed at once.
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    library.free(library.malloc(LARGEST))
