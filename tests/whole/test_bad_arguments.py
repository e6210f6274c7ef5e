"""Whatever is handed to a public name as an argument: an error of ours on a few lines, before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import walkback as wb
from walkback.errors import LONGEST


class Talkative:
    def __repr__(self) -> str:
        return "\n".join(f"line {i}" for i in range(2000))


class Unheard(nn.Module):
    """A network that must not be run."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("it ran")


WRONG = {
    "talkative": Talkative(),
    "array": np.full((3, 4), 2.5),
    "tensor": torch.full((3, 4), 2.5),
    "huge": 10**5000,
    "not a number": float("nan"),
    "many keys": {f"key {i}": Talkative() for i in range(500)},
}
BATCHES = [(torch.zeros(8, 4), torch.zeros(8, dtype=torch.long))]
ARRAYS = [{"states": [np.ones((4, 3))] * 2, "grads": [np.ones((4, 3))] * 2}]


def diagnose(**given: Any) -> object:
    return wb.diagnose(Unheard(), BATCHES, **given)


def arrays(**given: Any) -> object:
    return wb.diagnose_arrays(ARRAYS, **{"reduction": "sum", "headline_acc": 0.5, "frozen_baseline_acc": 0.5, **given})


def watch(**given: Any) -> object:
    return wb.Watch(Unheard(), BATCHES, **given)


def depth(**given: Any) -> object:
    return wb.depth(**{"model": Unheard(), "train": BATCHES, "test": BATCHES, **given})


def recorded(**given: Any) -> object:
    return wb.recorded(Unheard(), **given)


def anatomy(**given: Any) -> object:
    return wb.Anatomy.of(Unheard(), **given)


PLACES: list[tuple[Callable[..., object], str]] = [
    *((diagnose, name) for name in ("method", "notes", "thresholds", "gamma_over", "deep_over", "edition", "pairing")),
    *((diagnose, name) for name in ("chunk", "probes", "reference", "claim", "headline_acc", "bp_acc")),
    *((arrays, name) for name in ("method", "notes", "thresholds", "reduction", "gamma_over", "correct")),
    *((wb.Claim, name) for name in ("primary", "controls", "control", "test_samples", "depth", "frozen")),
    *((watch, name) for name in ("every", "thresholds", "log", "live", "to", "max_overhead", "edition")),
    *((depth, name) for name in ("model", "draws", "build", "seed")),
    *((wb.Perturbation, name) for name in ("directions", "count", "step", "samples", "seed")),
    *((wb.Nudging, name) for name in ("eta", "samples")),
    *((wb.FreshFeedback, name) for name in ("draws", "samples", "seed")),
    *((anatomy, name) for name in ("blocks", "readout", "stem")),
    *((recorded, name) for name in ("anatomy", "backward", "train")),
    *((wb.RunSpec, name) for name in ("net", "optimiser", "rule_options", "penalty")),
]


CASES = [(*place, wrong) for place in PLACES for wrong in WRONG if (place[1], wrong) != ("every", "huge")]


@pytest.mark.parametrize(("call", "name", "wrong"), CASES, ids=[f"{c.__name__}-{n}-{wrong}" for c, n, wrong in CASES])
def test_a_wrong_argument_is_refused_on_a_few_lines(call: Callable[..., object], name: str, wrong: str) -> None:
    with pytest.raises(wb.WalkbackError) as caught:
        call(**{name: WRONG[wrong]})
    assert len(str(caught.value)) < 2500
    assert str(caught.value).count("\n") < 30


@pytest.mark.parametrize("call", [arrays, anatomy])
@pytest.mark.parametrize("wrong", ["array", "tensor", "not a number", "talkative"])
def test_a_token_is_an_index_or_a_word(call: Callable[..., object], wrong: str) -> None:
    given = {"blocks": "blocks"} if call is anatomy else {}
    with pytest.raises(wb.WalkbackError, match="Expected pool to be"):
        call(pool=WRONG[wrong], **given)


def test_paired_predictions_may_be_one_array() -> None:
    right: Any = np.array([[1, 1, 1, 0] * 8, [1, 0, 0, 1] * 8])
    given: dict[str, Any] = {"headline_acc": 0.75, "frozen_baseline_acc": 0.5, "reduction": "sum"}
    reports = [wb.diagnose_arrays(ARRAYS, correct=correct, **given) for correct in (right, tuple(right.tolist()))]
    paired = {"samples": 32, "both": 8, "only_ours": 16, "only_frozen": 8}
    assert [report.conditions["paired"] for report in reports] == [paired, paired]


def test_a_message_is_never_longer_than_a_page() -> None:
    error = wb.InputError(f"Expected one thing, but got {'x' * 10**6}. Do this.")
    assert len(str(error)) < LONGEST
    assert str(error).startswith("Expected one thing")
    assert str(error).endswith("Do this.")
