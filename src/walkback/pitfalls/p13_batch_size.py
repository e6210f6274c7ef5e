"""The gradient of a mean loss is divided by the batch: eight times the batch, an eighth of the norm."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from walkback.pitfalls.nodes import keyword, last, literal, method, names, number, words
from walkback.pitfalls.pitfall import Entry, Found, Shown
from walkback.pitfalls.script import Script
from walkback.pitfalls.values import GRAD, GRADS_OF

if TYPE_CHECKING:
    from torch import Tensor

PITFALL = Entry(13, "batch-size", "the gradient norm of a mean loss depends on the batch size", "lint")

_LOSSES = ("cross_entropy", "nll_loss", "mse_loss", "CrossEntropyLoss", "NLLLoss", "MSELoss", "binary_cross_entropy")
_CRITERION = re.compile(r"(\w+_)?(criterion|loss_fn|loss_func|loss_function|crit|objective)")
_JAX_LOSS = re.compile(r"log_softmax|logsumexp|cross_entropy|squared_error|l2_loss|square")
_NO_BATCH = re.compile(
    r"loader|loss|norm|layer|block|grad|state|hidden|hs$|sites|acts|names|total|rows|classes", re.IGNORECASE
)
_SIZE = re.compile(r"(^|_)(batch_?size|n_samples|num_samples|bs|B|N)$")


def detect(script: Script) -> Found:
    """Find per-sample norms of the gradient of a mean loss, with no batch size in sight."""
    for _, nodes in script.scopes():
        calls = [n for n in nodes if isinstance(n, ast.Call)]
        losses = [c for c in calls if method(c) in _LOSSES or _CRITERION.fullmatch(method(c))]
        if any(_CRITERION.fullmatch(method(c)) for c in losses):  # how it was made, which must be in this script
            losses += [c for c in script.calls() if method(c) in _LOSSES and c not in losses]
        known = any(method(c) in _LOSSES for c in losses) or any(_of_a_mean(script, c) for c in calls)
        taken = any(script.differentiates(c) or method(c) == "backward" or _of_a_mean(script, c) for c in calls)
        if not taken or not known:
            continue
        reductions = [keyword(loss, "reduction") for loss in losses]
        if any(r is not None and literal(r) != "mean" for r in reductions) or any(map(_scales_by_size, nodes)):
            continue
        for node in nodes:
            if isinstance(node, ast.expr) and _row_norm(script, node):
                yield (
                    node,
                    "the gradient of a mean loss shrinks with the batch, so this norm depends on the batch size",
                    'take the loss with reduction="sum" (a norm per sample), and say what it is divided by',
                )


def _of_a_mean(script: Script, call: ast.Call) -> bool:
    """Return whether it is jax.grad(loss) of a function that hands back the mean of a loss over samples."""
    loss = script.flow.of(call).made if GRADS_OF in script.flow.of(call).kinds else None
    if not isinstance(loss, (ast.FunctionDef, ast.Lambda)):
        return False
    body = [loss.body] if isinstance(loss, ast.Lambda) else loss.body
    calls = [c for part in body for c in script.calls(part)]
    results = [r.value for part in body for r in ast.walk(part) if isinstance(r, ast.Return) and r.value is not None]
    whole = [c for r in ([loss.body] if isinstance(loss, ast.Lambda) else results) for c in script.calls(r)]
    return any(_JAX_LOSS.search(method(c)) for c in calls) and any(
        method(c) == "mean" and len(c.args) < 2 and keyword(c, "axis") is None for c in whole
    )


def _scales_by_size(node: ast.AST) -> bool:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Mult, ast.Div)):
        return False
    if method(node.left) == "sum":
        return False  # the mean of a list
    return any(
        (method(n) in ("len", "size", "numel") and not any(map(_NO_BATCH.search, words(n))) and not _is_width(n))
        or (isinstance(n, ast.Subscript) and last(n.value) == "shape" and number(n.slice) == 0)
        or _SIZE.search(last(n)) is not None
        for side in (node.left, node.right)
        for n in ast.walk(side)
    )


def _is_width(node: ast.AST) -> bool:
    """Return whether it is h.size(1) or h.size(-1)."""
    return isinstance(node, ast.Call) and method(node) == "size" and bool(node.args) and number(node.args[0]) != 0


def _row_norm(script: Script, node: ast.expr) -> bool:
    """Return whether it is a norm of each row of a gradient, by itself and not in a sum or quotient."""
    of = script.flow.normed.get(node)
    if of is None or of.unit or isinstance(script.parents[node], ast.BinOp) or not script.flow.has(of, GRAD):
        return False
    inner = [node, *(made for n in ast.walk(node) if (made := script.last_assigned(n)) is not None)]
    return any(map(_over_axis, (c for part in inner for c in script.calls(part)))) and not _is_parameter(script, node)


def _over_axis(call: ast.Call) -> bool:
    """Return whether a norm or sum names an axis: g.norm(dim=1), torch.norm(g, 2, 1), (g**2).sum(1)."""
    if keyword(call, "dim", "axis") is not None:
        return True
    whole = isinstance(call.func, ast.Attribute) and last(call.func.value) in ("torch", "np", "jnp", "linalg", "numpy")
    return method(call) in ("norm", "sum") and len(call.args) - whole == (1 if method(call) == "sum" else 2)


def _is_parameter(script: Script, of: ast.expr) -> bool:
    """Return whether it is the gradient of a weight, whose rows are no samples."""
    return any(re.search(r"weight|param|bias|^[pwW]$", word) is not None for word in names(of))


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
