"""A mean over layers looks like partial alignment while site 0 alone has any."""

from __future__ import annotations

from walkback.pitfalls.shown import Shown
from walkback.pitfalls.trained import Trained, train


def trained(seed: int) -> Trained:
    """DFA at a high learning rate: the stream explodes and the deep sites lose their alignment."""
    return train("dfa", epochs=6, lr=1.2e-2, seed=seed)


def show(seed: int = 0) -> Shown:
    """Γ over sites 0…L−1 against the mean of the deep sites."""
    m = trained(seed).measure()
    sites = ", ".join(f"{c or 0.0:+.3f}" for c in m.cosine)
    return Shown(
        "Γ of DFA",
        m.gamma or 0.0,
        m.deep_cosine or 0.0,
        f"by site: {sites}. Site 0, which the stem writes, carries {m.gamma_concentration or 0.0:.0%} of Σ|cos|; the "
        "blocks, which are the depth, have a mean near zero.",
    )
