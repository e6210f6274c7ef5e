"""A penalty that cures the stream costs capacity too. Without BP under the same penalty, credit gets the blame."""

from __future__ import annotations

from walkback.pitfalls.pitfall import Entry, Shown
from walkback.pitfalls.trained import train

PITFALL = Entry(12, "missing-null", "an intervention is judged without its null", "none")

PENALTY = 1.0


def accuracies(seed: int) -> tuple[float, float, float]:
    """Return the accuracies of DFA with the penalty, BP without it, BP with it."""
    dfa, bp = train("dfa", penalty=PENALTY, seed=seed), train("bp", seed=seed)
    return dfa.accuracy, bp.accuracy, train("bp", penalty=PENALTY, seed=seed).accuracy


def show(seed: int = 0) -> Shown:
    """Return the gap between DFA with a penalty and BP, without it and with it."""
    dfa, bp, null = accuracies(seed)
    return Shown(
        "gap of DFA + λ to BP, pp",
        100 * (bp - dfa),
        100 * (null - dfa),
        f"DFA with λ = {PENALTY:g} reaches {dfa:.3f}, BP {bp:.3f}: a gap that looks like poor credit. BP with the same "
        f"λ reaches {null:.3f}: the penalty took it. Fresh feedback is the null of a cosine, BP + λ of an accuracy.",
    )
