"""A stream that is divided by its norm before it is logged can't explode in the log."""

from __future__ import annotations

import ast
from itertools import pairwise
from typing import TYPE_CHECKING

from walkback.pitfalls.pitfall import Entry, Found, Shown
from walkback.pitfalls.script import Script
from walkback.pitfalls.values import DATA

if TYPE_CHECKING:
    from torch import Tensor

PITFALL = Entry(11, "renormalised", "the stream is renormalised before it is logged", "lint, report")


def detect(script: Script) -> Found:
    """Find the norm of something that was divided by its norm."""
    for node, of in script.flow.normed.items():
        if isinstance(node, ast.expr) and of.unit and DATA not in of.kinds and not _is_on_purpose(script, node):
            yield (
                node,
                "this was divided by its norm before, so its norm is 1 whatever the network does",
                "log the norm of the state or gradient as it is",
            )


def _is_on_purpose(script: Script, call: ast.expr) -> bool:
    """Return whether the norm is a check (an assert, a difference to 1), or is shown beside the one before."""
    up = list(script.above(call))
    if any(isinstance(node, ast.Assert) for node in up):
        return True
    if isinstance(up[0], ast.BinOp) and isinstance(up[0].op, ast.Sub):
        return True
    of = script.norm_of(call) if isinstance(call, ast.Call) else None
    others = [n for n in script.inside(script.scope(call)) if isinstance(n, ast.Call) and n.lineno < call.lineno]
    norms = [(n, script.norm_of(n)) for n in others]
    return any(
        before is not None
        and of is not None
        and ast.dump(before) == ast.dump(of)
        and not script.is_normalised(before)
        and not _divides(script, n)
        for n, before in norms
    )


def _divides(script: Script, norm: ast.Call) -> bool:
    """Return whether something is divided by a norm, there or by the name that it is assigned to."""
    up = script.parents[norm]
    kept = {t.id for t in up.targets if isinstance(t, ast.Name)} if isinstance(up, ast.Assign) else set()
    inside = script.inside(script.scope(norm))
    divisors = [n.right for n in inside if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div)]
    divisors += [n.value for n in inside if isinstance(n, ast.AugAssign) and isinstance(n.op, ast.Div)]
    return any(norm in ast.walk(right) or (isinstance(right, ast.Name) and right.id in kept) for right in divisors)


def stream(seed: int) -> list[Tensor]:
    """Return h_0…h_L, each (128, 32), of a network whose blocks grow the stream about 200-fold each."""
    import torch

    from walkback.selftest import batches, network

    with torch.no_grad():
        _, hidden = network(gain=200.0, seed=seed)(batches(1, seed=seed + 1)[0][0], return_hidden=True)
    return [h.double() for h in hidden]


def growth(states: list[Tensor]) -> float:
    """Return the largest factor between the mean norms of neighbouring sites."""
    norms = [float(h.norm(dim=1).mean()) for h in states]
    return max(b / a for a, b in pairwise(norms))


def show(seed: int = 0) -> Shown:
    """Return the growth of the stream as logged after normalising, and as it is."""
    import torch.nn.functional as F

    states = stream(seed)
    return Shown(
        "growth ρ",
        growth([F.normalize(h, dim=1) for h in states]),
        growth(states),
        "every normalised state has norm 1, so the ratio of neighbours is 1 whatever the network does. Log raw norms; "
        "normalise only what is drawn.",
    )
