"""Γ over layers, samples, batches, or of everything flattened: four numbers of one network."""

from __future__ import annotations

from walkback.pitfalls.pitfall import Entry, Shown
from walkback.pitfalls.trained import Trained, train

PITFALL = Entry(5, "averaging-order", "Γ depends on what is averaged first", "report")


def trained(seed: int) -> Trained:
    """Train FA without a penalty: the gradient is far smaller at deep sites, so a flattened cosine hardly sees them."""
    return train("fa", epochs=10, seed=seed)


def show(seed: int = 0) -> Shown:
    """Return Γ of everything flattened against Γ per sample and site, averaged afterwards."""
    gammas = {name: value or 0.0 for name, value in trained(seed).measure().aggregates.items()}
    orders = ", ".join(f"{name} {value:+z.3f}" for name, value in gammas.items())
    return Shown(
        "Γ of FA",
        gammas["flattened"],
        gammas["layers"],
        f"by what is averaged first: {orders}. Flattened, the sites and samples with the largest gradients decide "
        "alone. None is wrong in itself; a Γ without its order can't be compared with another.",
    )
