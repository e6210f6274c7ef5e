"""A frozen control that was trained for fewer epochs makes unused depth look used."""

from __future__ import annotations

from walkback.pitfalls.shown import Shown
from walkback.pitfalls.trained import train


def accuracies(seed: int) -> tuple[float, float, float]:
    """DFA, its matched control, and a control with a sixth of the epochs."""
    runs = (
        train("dfa", epochs=6, seed=seed),
        train("dfa", "frozen", epochs=6, seed=seed),
        train("dfa", "frozen", epochs=1, seed=seed),  # walkback: ignore[P09]
    )
    return runs[0].accuracy, runs[1].accuracy, runs[2].accuracy


def show(seed: int = 0) -> Shown:
    """The depth margin against both controls."""
    ours, matched, short = accuracies(seed)
    return Shown(
        "depth margin, pp",
        100 * (ours - short),
        100 * (ours - matched),
        f"accuracy {ours:.3f}; frozen blocks after as many epochs {matched:.3f}, after a sixth of them {short:.3f}. "
        "Only the blocks may differ between a network and its control.",
    )
