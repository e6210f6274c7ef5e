"""A credit that is rounding is seen in its numbers, whoever computes it; credits of the field are not suspected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import walkback as wb
from walkback.measures.stepped import zeros_beside_steps
from walkback.notes import coded
from walkback.training.loop import probe_batches


def far(size: float) -> Callable[[wb.Trace], list[Tensor]]:
    """The gradient, as a difference of states that are `size` times as long as it."""
    return lambda trace: [(h + g) - h for g, h in zip(trace.grads, _like(trace, size))]


def _like(trace: wb.Trace, size: float) -> list[Tensor]:
    return [h / h.norm() * g.norm() * size for g, h in zip(trace.grads, trace.states)]


def sites(report: wb.Report) -> list[int | None]:
    return [note.site for note in coded(report.notes, "stepped-credit")]


def test_a_difference_of_large_states_is_named_without_being_asked() -> None:
    batches = wb.selftest.batches(2)
    lost, coarse, fine = (wb.diagnose(wb.selftest.healthy(), batches, credit=far(size)) for size in (1e8, 3e7, 1e3))
    assert sites(coarse) == sites(lost) == [0, 1, 2, 3, 4]
    assert sites(fine) == []
    assert "may be rounding" in coded(coarse.notes, "stepped-credit")[0].text


def test_what_float64_said_is_not_said_again() -> None:
    report = wb.diagnose(wb.selftest.healthy(), wb.selftest.batches(2), credit=far(3e7), probes=["intrinsic"])
    assert report.credit_exact is False
    assert sites(report) == []


def test_the_ep_network_that_ships() -> None:
    bundle = wb.load_bundle(Path(wb.__file__).parent / "bundles" / "ep")
    model = bundle.model()
    batches = probe_batches(wb.data.load(bundle.spec["data"]), torch.device("cpu"))[:1]
    named = sites(wb.diagnose(model, batches, credit=bundle.rule(model)))
    assert named[0] == 0  # −0.5 in float64 where it reports +0.3
    assert not {3, 4} & set(named)  # 0.96 in both


def test_arrays_are_looked_at_too() -> None:
    h, g = np.random.default_rng(0).standard_normal((2, 32, 16)).astype(np.float32)
    credit = (h + 2e-8 * g) - h
    batch = {"states": [h, h], "grads": [g, g], "credits": [credit, g]}
    assert sites(wb.diagnose_arrays([batch], reduction="sum")) == [0]


def sparse(share: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(64, 32) * (torch.rand(64, 32) > share)).to(dtype)


def classes(feedback: Tensor) -> Tensor:
    return feedback[torch.arange(64) % len(feedback)]


HONEST = {
    "dense": lambda: torch.randn(64, 32),
    "behind a ReLU": lambda: torch.randn(64, 32) * (torch.randn(64, 32) > 0.5),
    "mostly zero": lambda: sparse(0.95),
    "in bfloat16": lambda: sparse(0.8, torch.bfloat16),
    "in float16": lambda: sparse(0.8, torch.float16),
    "signs": lambda: sparse(0.0).sign(),
    "signs of a few": lambda: sparse(0.8).sign() * 0.01,
    "targets through feedback": lambda: classes(torch.randn(10, 32) * (torch.rand(10, 32) > 0.6)),
    "targets through sparse signs": lambda: classes(sparse(0.8)[:10].sign()),
    "errors through sparse signs": lambda: torch.randn(64, 10).softmax(1) @ sparse(0.95)[:10].sign(),
    "no credit for most": lambda: torch.randn(64, 32) * (torch.arange(64) < 5)[:, None],
    "no credit": lambda: torch.zeros(64, 32),
    "one number": lambda: torch.ones(1, 1),
    "not finite": lambda: torch.where(torch.rand(64, 32) > 0.7, torch.nan, 0.0),
}


@pytest.mark.parametrize("name", HONEST)
def test_credits_of_the_field_are_not_suspected(name: str) -> None:
    credit = HONEST[name]()
    for state in (torch.randn_like(credit), torch.relu(torch.randn_like(credit)), credit):
        assert zeros_beside_steps(credit, state) is None
