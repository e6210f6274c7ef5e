"""Fingerprints of samples: others for samples that differ in a few signs, the highest bits of their numbers."""

from __future__ import annotations

import pytest
import torch

import walkback as wb
from walkback.network.prints import fingerprints
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
