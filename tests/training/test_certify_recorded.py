"""Certificates of recorded code: FA in a backward of its own, backpropagation in disguise, no trace."""

from __future__ import annotations

import pytest
import torch

import walkback as wb
from test_adapters import BATCHES, BioTorchLike, ByHand, Plain
from walkback.adapters.biotorch import biotorch


def test_dfa_of_hooks_is_random_feedback():
    model = BioTorchLike().eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    certificate = wb.certify(biotorch(model), model, BATCHES[0])
    assert [c.kind for c in certificate.groups] == ["random feedback"] * 4
    assert certificate.passed, str(certificate)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert not model.training


def test_backpropagation_beside_unused_feedback_is_named():
    model = ByHand()  # it holds matrices, and its backward pass does not use them
    certificate = wb.certify(wb.recorded(model), model, BATCHES[0])
    assert certificate.hidden_backprop == ("stem", "block 1", "block 2")
    assert not certificate.passed


def test_recorded_code_needs_a_batch():
    model = Plain()
    with pytest.raises(wb.InputError, match="Expected a batch with recorded code"):
        wb.certify(wb.recorded(model), model)
