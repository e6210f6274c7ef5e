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
    words = _words(x)
    own, upper = _mixed(2 * words.shape[1], x.device).view(2, -1)
    # The highest bit of a word, a sign, is lost in a sum where two words have it: the upper halves count once more.
    return _products(words, own) + _products(words >> 32, upper)


def prints_of(x: Inputs, batch: int) -> Int[Tensor, " batch"]:
    """Return `fingerprints` of everything in the inputs that belongs to one sample."""
    first, *others = per_sample(x, batch).values()
    return sum((fingerprints(t) * (2 * i + 1) for i, t in enumerate(others, 1)), start=fingerprints(first))


class DataHash:
    """The number that names the data in a record, in whatever order its samples came.

    Records hold it, so its weights stay as they are; to tell samples apart take `fingerprints`, which sees every sign.

    >>> whole, halves, x = DataHash(), DataHash(), torch.randn(4, 3)
    >>> whole.add(x, 4), halves.add(x[2:], 2), halves.add(x[:2], 2)
    (None, None, None)
    >>> whole.number() == halves.number()
    True
    """

    def __init__(self) -> None:
        # Over samples first: modulo 2⁶⁴ the order changes nothing, and sums are faster than products. Here they are by
        # which of the inputs it is and how many words it has.
        self._sums: dict[tuple[int, int], Int[Tensor, " width"]] = {}

    def add(self, x: Inputs, batch: int) -> None:
        """Take a batch, or a part of one."""
        for i, t in enumerate(per_sample(x, batch).values()):
            total = _words(t).sum(0)
            before = self._sums.get((i, len(total)))
            self._sums[i, len(total)] = total if before is None else before + total

    def number(self) -> int:
        """Return what it is by now, from 0 to 2⁶⁴ − 1."""
        numbers = (int((of * _odd(n, of.device)).sum()) * (2 * i + 1) for (i, n), of in self._sums.items())
        return sum(numbers) % 2**64


def _words(x: Tensor) -> Int[Tensor, "batch width"]:
    """Return the bytes of each sample as 64-bit words."""
    rows = x.detach().reshape(x.shape[0], -1).contiguous()
    if rows.dtype == torch.bool:
        rows = rows.to(torch.uint8)
    width = rows.shape[1] * rows.element_size()
    if width % 8:
        rows = F.pad(rows.view(torch.uint8), (0, 8 - width % 8))
    elif rows.storage_offset() * rows.element_size() % 8:
        rows = rows.clone()
    return rows.view(torch.int64)


def _products(words: Int[Tensor, "batch width"], weights: Int[Tensor, " width"]) -> Int[Tensor, " batch"]:
    # Integer products need no scratch memory on the CPU; other devices have none.
    return words @ weights if words.device.type == "cpu" else (words * weights).sum(1)


@cache
def _mixed(width: int, device: torch.device) -> Int[Tensor, " width"]:
    # The numbers of SplitMix64, as signed integers; odd weights keep every bit of a word in play.
    mixed = torch.arange(1, width + 1, dtype=torch.int64, device=device) * -7046029254386353131
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685), (31, 1)):
        mixed = (mixed ^ ((mixed >> shift) & (2 ** (64 - shift) - 1))) * factor  # the shift of an unsigned number
    return mixed | 1


@cache
def _odd(width: int, device: torch.device) -> Int[Tensor, " width"]:
    steps = torch.arange(1, width + 1, dtype=torch.int64, device=device)
    return ((steps * -7046029254386353131) ^ (steps << 31)) * -4658895280553007687 | 1
