"""Credit from one pass, reference from another: other dropout masks, another gradient."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from walkback.pitfalls.by_hand import follow
from walkback.pitfalls.pitfall import Entry, Found, Shown
from walkback.pitfalls.script import Script
from walkback.pitfalls.trained import cosine

if TYPE_CHECKING:
    from torch import Tensor, nn

PITFALL = Entry(8, "two-passes", "credit and reference come from different passes", "lint, report")


def detect(script: Script) -> Found:
    """Find two batches drawn in a function that compares directions."""
    for _, nodes in script.scopes():
        drawn = [n for n in nodes if isinstance(n, ast.Call) and _draws(script, n)]
        if len(drawn) > 1 and any(script.is_cosine_call(n) or _by_hand(script, n) for n in nodes):
            yield (
                sorted(drawn, key=lambda call: call.lineno)[1],
                "a second batch is drawn: credit and reference of a cosine must come from the same pass",
                "draw one batch, and take credit and gradient from one forward pass of it",
            )


def _draws(script: Script, call: ast.Call) -> bool:
    """Return whether it is next(iter(…)), or next of a name that iter(…) was assigned to."""
    inner = follow(script, call.args[0]) if call.args and script.name(call.func) == "next" else None
    return isinstance(inner, ast.Call) and script.name(inner.func) == "iter"


def _by_hand(script: Script, node: ast.AST) -> bool:
    """Return whether gradients are divided by the product of two norms."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return False
    vectors = [v for call in script.calls(node.right) if (v := script.norm_of(call)) is not None]
    return len(vectors) == 2 and any(map(script.is_gradient, vectors))


def with_dropout(seed: int, p: float = 0.5, gain: float = 1.0) -> nn.Module:
    """Return a network, healthy unless a gain makes it grow, with dropout at the end of every block."""
    from torch import nn

    from walkback.selftest import network

    net = network(gain=gain, seed=seed)
    for block in net.blocks:
        block.append(nn.Dropout(p))  # type: ignore[operator]
    return net


def gradients(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return (B, d) the gradient at site 0: BP's credit, and the reference it is compared with."""
    import torch

    logits, hidden = net(x, return_hidden=True)  # walkback: ignore[P10]
    (g,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, y, reduction="sum"), hidden[:1])
    return g.double()


def show(seed: int = 0) -> Shown:
    """Compare BP with itself, from two passes with dropout and from one pass."""
    import torch

    from walkback.selftest import batches

    net = with_dropout(seed).train()
    x, y = batches(1, 512, seed=seed + 1)[0]
    torch.manual_seed(seed)
    first, second = gradients(net, x, y), gradients(net, x, y)
    return Shown(
        "cosine of BP with itself",
        cosine(first, second),
        cosine(first, first),
        "each pass draws its own dropout masks (or crops, or batch), so even BP does not agree with BP; a rule's "
        "shortfall then says as much about the masks as about the rule. Take both from one pass.",
    )
