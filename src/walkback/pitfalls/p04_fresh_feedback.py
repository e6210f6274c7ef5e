"""A network aligns to the B it was trained with. With another B there is nothing to find."""

from __future__ import annotations

import copy

import torch

from walkback.pitfalls.shown import Shown
from walkback.pitfalls.trained import Trained, train

DRAWS = 8


def trained(seed: int) -> Trained:
    """DFA with a penalty that keeps its reference healthy."""
    return train("dfa", penalty=1e-2, seed=seed)


def show(seed: int = 0) -> Shown:
    """The deep cosine with the feedback of training and with feedback drawn anew."""
    run = trained(seed)
    draw, stranger = torch.Generator().manual_seed(seed + 2), copy.deepcopy(run.rule)
    fresh = []
    for _ in range(DRAWS):
        stranger.redraw(draw)
        fresh.append(run.measure(stranger).deep_cosine or 0.0)
    found = torch.tensor(fresh, dtype=torch.float64)
    own = run.measure().deep_cosine or 0.0
    return Shown(
        "deep cosine of DFA",
        float(found.mean()),
        own,
        f"over {DRAWS} fresh draws of B: {float(found.mean()):+.4f} ± {float(found.std()):.4f}; with the B of training "
        f"{own:+.4f}. Save B with the weights. As a null, on purpose, fresh B is just right.",
    )
