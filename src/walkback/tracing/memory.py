"""Memory that one batch frees and the next one needs again: it stays with the process."""

from __future__ import annotations

import torch

LARGEST = 2**24  # bytes; glibc takes nothing above 2²⁵ for a sign


def keep_freed() -> None:
    """Let the process keep what a batch frees.

    glibc hands the end of its heap back to the system as soon as it is twice as large as the largest block that was
    mapped and freed so far. Where that is a batch's memory, every page of it is mapped and zeroed again in the next
    batch: 900 pages, a seventh of a small network's time in float64. Large networks raise that limit by themselves.
    Here a block that nobody writes to, and that no page is mapped for, is freed at once. Other allocators don't care.
    """
    torch.empty(LARGEST, dtype=torch.uint8, device="cpu")
