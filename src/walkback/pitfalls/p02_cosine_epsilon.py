"""`F.cosine_similarity` divides by norms that an ε holds up: at the floor the cosine shrinks with the gradient."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from walkback.pitfalls.by_hand import COMPARES, LEAST, default_epsilon, held_up, of_gradients
from walkback.pitfalls.nodes import names
from walkback.pitfalls.pitfall import Entry, Found, Shown
from walkback.pitfalls.script import COSINES, SENT, Script
from walkback.pitfalls.trained import cosine

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PITFALL = Entry(2, "cosine-epsilon", "F.cosine_similarity holds tiny gradients up with an ε", "lint, report")


def detect(script: Script) -> Found:
    """Find torch's cosine on gradients with an ε, its default or another, and the same written by hand."""
    fix = "divide by the norms in float64: (a * g).sum(1) / (a.norm(dim=1) * g.norm(dim=1)), or pass eps=0.0"
    for node, epsilon in held_up(script):
        yield (
            node,
            f"the ε of {epsilon:g} holds the norms of smaller gradients up (or calls their cosine 0), so it comes out "
            "too small",
            fix,
        )
    modules = script.cosine_modules()
    for call in script.calls():
        made = call.func if isinstance(call.func, ast.Call) else modules.get(ast.dump(call.func))
        if script.name(call.func) in COSINES:
            vectors = [*call.args[:2], *(k.value for k in call.keywords if k.arg in ("x1", "x2"))]
            value, place = default_epsilon(script, call, 3), call
        elif isinstance(made, ast.Call) and script.name(made.func) == "torch.nn.CosineSimilarity":
            vectors = list(call.args)
            value, place = default_epsilon(script, made, 1), made
        else:
            continue
        if value is None or value < LEAST:
            continue
        raw = [v for v in vectors if not script.is_normalised(v)]
        direct = any(script.is_gradient(v) or SENT.search(w) for v in raw for w in names(v))
        if direct or (
            not any(_is_weight(script, v) for v in raw) and any(of_gradients(script, call, v, COMPARES) for v in raw)
        ):
            yield (
                place,
                f"the ε of {value:g} in this cosine holds smaller gradients up, so it comes "
                "out too small (in float64 too)",
                fix,
            )


def _is_weight(script: Script, vector: ast.expr) -> bool:
    """Return whether it is made of a weight or a feedback matrix, whose norms no ε reaches."""
    parts = [vector, *(made for n in ast.walk(vector) if (made := script.last_assigned(n)) is not None)]
    return any(
        re.fullmatch(r"(\w+_)?(weights?|[WB]\d*)(_flat)?", word) is not None for part in parts for word in names(part)
    )


NORM = 1e-10  # of the gradient: what DFA leaves of it under a terminal norm


@dataclass(frozen=True)
class Epsilon:
    """How the installed `F.cosine_similarity` behaves: its ε, and whether it holds up each norm or their product."""

    value: float
    each_norm: bool


def measured_epsilon(dtype: torch.dtype | None = None) -> Epsilon:
    """Return the ε the function itself shows: the cosine of parallel vectors is 1, so at the floor it says ‖b‖/ε."""
    import torch
    import torch.nn.functional as F

    unit = torch.zeros(1, 4, dtype=dtype or torch.float32)
    unit[0, 0] = 1.0
    tiny = 1e-12 * unit
    held = [float(F.cosine_similarity(scale * unit, tiny)) for scale in (1.0, 100.0)]  # walkback: ignore[P02]
    # With ε on the product a hundredfold credit lifts the cosine a hundredfold; with ε on each norm it does nothing.
    return Epsilon(1e-12 / held[0], each_norm=held[1] < 2 * held[0])


def vectors(seed: int) -> tuple[Tensor, Tensor]:
    """Return (512, 64) credits of norm 1 and gradients of norm 1e-10, with a cosine of about 0.7."""
    import torch
    import torch.nn.functional as F

    draw = torch.Generator().manual_seed(seed)
    g, other = (torch.randn(512, 64, generator=draw) for _ in range(2))
    a = F.normalize(g + other, dim=1)
    return a, NORM * F.normalize(g, dim=1)


def show(seed: int = 0) -> Shown:
    """Return the mean cosine, by torch and in float64 without a floor."""
    import torch

    a, g = vectors(seed)
    wrong = float(torch.nn.functional.cosine_similarity(a, g).mean())  # walkback: ignore[P02]
    epsilon = measured_epsilon()
    how = "each norm" if epsilon.each_norm else "the product of the norms"
    return Shown(
        "cosine at ‖g‖ = 1e-10",
        wrong,
        cosine(a, g),
        f"torch {torch.__version__} holds {how} up at ε = {epsilon.value:.1e} (measured), so the cosine comes out "
        f"‖g‖/ε as large as it is. float64 does not help: its ε is {measured_epsilon(torch.float64).value:.1e} too.",
    )
