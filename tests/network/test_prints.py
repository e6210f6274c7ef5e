"""Fingerprints of samples: others for samples that differ in a few signs, the highest bits of their numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import walkback as wb
from walkback.network.prints import DataHash, fingerprints
from walkback.notes import coded


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_samples_that_differ_in_signs_are_told_apart(dtype: torch.dtype):
    x = torch.randn(200, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    for places in ([*range(8)], [1, 3], [3, 7], [0, 4], [0, 1]):
        other = x.clone()
        other[:, places] *= -1
        assert not bool((fingerprints(x) == fingerprints(other)).any())
    assert torch.equal(fingerprints(x)[7:], fingerprints(x[7:].clone()))


def test_a_batch_and_its_negative_are_different_samples():
    x, y = wb.selftest.batches(1)[0]
    m = wb.measure(wb.selftest.healthy().double(), [(x.double(), y), (-x.double(), y)])
    assert not coded(m.notes, "repeated-samples")


def test_a_credit_that_turns_the_states_around_is_seen():
    def turns(trace: wb.Trace) -> list[torch.Tensor]:
        trace.states[1].data.neg_()
        return list(trace.grads)

    x, y = wb.selftest.batches(1)[0]
    with pytest.raises(wb.CreditError, match="leave the trace as it is"):
        wb.measure(wb.selftest.healthy().double(), [(x.double(), y)], credit=turns)


def test_the_hash_of_the_data_is_the_one_that_records_hold():
    """By NumPy, in unsigned integers: what names the data may not change with the way samples are told apart."""
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    padded = np.zeros((6, 6), np.float32)
    padded[:, :5] = x.numpy()
    steps = np.arange(1, 4, dtype=np.uint64)
    weights = (steps * np.uint64(-7046029254386353131 % 2**64)) ^ (steps << np.uint64(31))
    weights = weights * np.uint64(-4658895280553007687 % 2**64) | np.uint64(1)
    expected = (padded.view(np.uint64) * weights).sum(dtype=np.uint64)
    whole, parts = DataHash(), DataHash()
    whole.add(x, 6)
    parts.add(x[:2], 2)
    parts.add(x[2:], 4)
    assert whole.number() == parts.number() == int(expected)


def test_the_hash_of_inputs_of_several_lengths_is_the_sum_of_theirs():
    long, short = torch.randn(3, 6), torch.randn(2, 4)
    hashes = [DataHash() for _ in range(3)]
    for i, x in ((0, long), (1, short), (2, long), (2, short)):
        hashes[i].add({"x": x, "ids": torch.arange(len(x))[:, None]}, len(x))
    one, other, both = (of.number() for of in hashes)
    assert both == (one + other) % 2**64
    assert both != one
