"""The gradient of a mean loss is divided by the batch: eight times the batch, an eighth of the norm."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from walkback.pitfalls.pitfall import Entry, Found, Shown
from walkback.pitfalls.script import Script, keyword, last, literal, method

if TYPE_CHECKING:
    from torch import Tensor

PITFALL = Entry(13, "batch-size", "the gradient norm of a mean loss depends on the batch size", "lint")

_SIZE = re.compile(r"(^|_)(batch_?size|n_samples|num_samples|bs|B|N)$")


def detect(script: Script) -> Found:
    """Find per-sample norms of the gradient of a mean loss, with no batch size in sight."""
    for _, nodes in script.scopes():
        calls = [n for n in nodes if isinstance(n, ast.Call)]
        losses = [c for c in calls if method(c) in ("cross_entropy", "nll_loss", "mse_loss", "CrossEntropyLoss")]
        if not any(map(script.differentiates, calls)) or not losses:
            continue
        reductions = [keyword(loss, "reduction") for loss in losses]
        if any(r is not None and literal(r) != "mean" for r in reductions) or any(map(_scales_by_size, nodes)):
            continue
        for call in calls:
            if _row_norm(script, call) and not isinstance(script.parents[call], ast.BinOp):
                yield (
                    call,
                    "the gradient of a mean loss shrinks with the batch, so this norm depends on the batch size",
                    'take the loss with reduction="sum" (a norm per sample), and say what it is divided by',
                )


def _scales_by_size(node: ast.AST) -> bool:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Mult, ast.Div)):
        return False
    if method(node.left) == "sum":
        return False  # the mean of a list
    return any(
        method(n) in ("len", "size", "numel")
        or (isinstance(n, ast.Attribute) and n.attr == "shape")
        or _SIZE.search(last(n)) is not None
        for side in (node.left, node.right)
        for n in ast.walk(side)
    )


def _row_norm(script: Script, call: ast.Call) -> bool:
    if keyword(call, "dim", "axis") is None or script.name(call.func).startswith("numpy."):
        return False
    of = script.norm_of(call)
    return of is not None and script.is_gradient(of)


BATCH, PUBLISHED = 1024, 128


def norm(x: Tensor, y: Tensor, size: int) -> float:
    """Return the mean over samples of ‖g_L‖, as a script takes it that averages the loss over batches of `size`."""
    import torch

    from walkback.selftest import healthy

    net, found = healthy(), []
    for part, labels in zip(x.split(size), y.split(size)):
        logits, hidden = net(part, return_hidden=True)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        (g,) = torch.autograd.grad(loss, hidden[-1:])
        found.append(g.double().norm(dim=1))  # walkback: ignore[P13]
    return float(torch.cat(found).mean())


def show(seed: int = 0) -> Shown:
    """Return ‖g_L‖ of the same network on the same samples, in batches of 1024 and of 128."""
    from walkback.selftest import batches

    x, y = batches(1, BATCH, seed=seed + 1)[0]
    return Shown(
        "‖g_L‖",
        norm(x, y, BATCH),
        norm(x, y, PUBLISHED),
        f"in batches of {BATCH}, against the {PUBLISHED} that the published floor of 1e-7 belongs to. Nothing but the "
        "batch differs. Take the norm per sample, and say what it was divided by.",
    )
