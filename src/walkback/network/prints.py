"""A number for every sample, by which it is recognised when it comes again."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from walkback.network.batch import Inputs, per_sample


def fingerprints(x: Tensor) -> Int[Tensor, " batch"]:
    """Return one exact 64-bit number per sample: equal samples agree, whatever batch they are in.

    A sum of integer products modulo 2⁶⁴, so neither batch size nor reduction order changes it.

    >>> a = torch.randn(4, 3)
    >>> torch.equal(fingerprints(a)[2:], fingerprints(a[2:]))
    True
    """
    rows = x.detach().reshape(x.shape[0], -1).contiguous()
    if rows.dtype == torch.bool:
        rows = rows.to(torch.uint8)
    width = rows.shape[1] * rows.element_size()
    if width % 8:
        rows = F.pad(rows.view(torch.uint8), (0, 8 - width % 8))
    elif rows.storage_offset() * rows.element_size() % 8:
        rows = rows.clone()
    words = rows.view(torch.int64)
    weights = _print_weights(words.shape[1], x.device)
    # Integer products need no scratch memory on the CPU; other devices have none.
    return words @ weights if x.device.type == "cpu" else (words * weights).sum(1)


@cache
def _print_weights(width: int, device: torch.device) -> Int[Tensor, " width"]:
    # Multipliers of SplitMix64, as signed integers; odd weights keep every bit of a word in play.
    steps = torch.arange(1, width + 1, dtype=torch.int64, device=device)
    return ((steps * -7046029254386353131) ^ (steps << 31)) * -4658895280553007687 | 1


def prints_of(x: Inputs, batch: int) -> Int[Tensor, " batch"]:
    """Return `fingerprints` of everything in the inputs that belongs to one sample."""
    return torch.stack([fingerprints(t) * (2 * i + 1) for i, t in enumerate(per_sample(x, batch).values())]).sum(0)
