"""Dropout left on: the states that are measured are not those of the network that is used."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from walkback.pitfalls.networks import drops_out, is_pass
from walkback.pitfalls.nodes import argument, keyword, last, literal, method, words
from walkback.pitfalls.p08_two_passes import with_dropout
from walkback.pitfalls.pitfall import Entry, Found, Shown
from walkback.pitfalls.project import MODES
from walkback.pitfalls.script import MODEL, Script

if TYPE_CHECKING:
    from torch import nn

PITFALL = Entry(10, "training-mode", "measured in training mode", "lint, report")


_TRAINING = {("train", True), ("training", True), ("is_training", True), ("deterministic", False), ("inference", False)}
_UPDATES = ("apply_updates", "apply_gradients", "update", "step", "minimize")


def detect(script: Script) -> Found:
    """Find a network that is measured in a script without `.eval()`, or in a step of its training with dropout on.

    The place is the forward pass that is measured; where none is seen, what is computed from it.
    """
    yield from _applied_in_training(script)
    packages = {name.partition(".")[0] for name in script.aliases.values()}
    if packages & {"tensorflow", "keras", "jax", "flax"} and "torch" not in packages:
        return  # there is no mode to be in
    yield from _in_training(script)
    yield from _told_to_train(script)
    if _switches_off(script.calls()) or _has_one_mode(script):
        return
    made = script.has_call("load_state_dict") or any(map(_builds_model, script.of(ast.Assign)))
    imported = _imported_models(script)
    made = made or any(method(call) == "train" and not call.args and not call.keywords for call in script.calls())
    if not made and not imported:
        return
    updates = script.has_call("step", "zero_grad")
    for scope, nodes in script.scopes():
        calls = [n for n in nodes if isinstance(n, ast.Call)]
        passes = [call for call in calls if is_pass(call)]
        if not made:  # a function may be given another network
            passes = [c for c in passes if scope is script.tree and getattr(c.func, "id", "") in imported]
        learns = ("step", "zero_grad") if scope is script.tree and not updates else ("step", "zero_grad", "backward")
        trains = any(method(call) in (*learns, "train") for call in calls)  # `_told_to_train` looks at the last
        trains = trains or getattr(scope, "name", "").endswith("_step")  # Lightning's: it sets the mode itself
        if trains:  # what it measures between its steps is under no_grad
            quiet = [
                n for n in nodes if isinstance(n, ast.With) and _is_quiet(script, n) and not _tracks(script, n, calls)
            ]
            nodes = [inner for block in quiet for inner in ast.walk(block)]
            passes = [call for call in passes if call in nodes]
            trains = not (passes and _accuracy(script, nodes))
        if passes and not trains and (_accuracy(script, nodes) or _compares(script, nodes)):
            yield (
                min(passes, key=lambda call: call.lineno),
                "the network is measured in the mode it happens to be in: dropout and batch norm change what is seen",
                "call model.eval() before, and say so beside the numbers",
            )


def _applied_in_training(script: Script) -> Found:
    """Find a pass that is told to be one of training, as in flax, where gradients are compared and nothing learns."""
    if not any(one for one in script.calls() if script.is_cosine(one)):
        return
    for call in script.calls():
        told = any((k.arg, literal(k.value)) in _TRAINING for k in call.keywords)
        if told and (method(call) in ("apply", "__call__") or is_pass(call)):
            outer = [up for up in script.above(call) if isinstance(up, (ast.FunctionDef, ast.AsyncFunctionDef))]
            around = outer[-1] if outer else script.tree
            if not any(method(c) in _UPDATES for c in script.calls(around)):
                yield (
                    call,
                    "the gradients that are compared are those of a network in training mode, with its dropout on",
                    "tell it not to train: train=False, deterministic=True",
                )


def _switches_off(calls: Iterator[ast.Call]) -> bool:
    """Return whether there is net.eval() or net.train(False)."""
    return any(
        method(call) == "eval" or (method(call) == "train" and literal(argument(call, 0, "mode")) is False)
        for call in calls
    )


def _tracks(script: Script, block: ast.With, calls: list[ast.Call]) -> bool:
    """Return whether it stands beside the steps, in the same turn of a loop: the accuracy of training, to look at."""
    steps = [call for call in calls if method(call) == "step"]
    return any(_loop(script, step) is _loop(script, block) for step in steps)


def _loop(script: Script, node: ast.AST) -> ast.AST | None:
    return next((up for up in script.above(node) if isinstance(up, (ast.For, ast.While))), None)


def _has_one_mode(script: Script) -> bool:
    """Return whether the networks are defined here, or in a file linted with this one, of parts without a mode."""
    classes = {made.name for made in script.of(ast.ClassDef)}
    built = [n.value for n in script.of(ast.Assign) if _builds_model(n)]
    here = any(method(call) in classes for call in built)
    known = [method(call) in classes or script.project.has_one_mode(method(call)) for call in built]
    return bool(built) and all(known) and not (here and any(map(MODES.search, words(script.tree))))


def _is_quiet(script: Script, block: ast.With) -> bool:
    """Return whether it is `with torch.no_grad():`."""
    made = [item.context_expr for item in block.items]
    return any(script.name(m.func).endswith(("no_grad", "inference_mode")) for m in made if isinstance(m, ast.Call))


def _place(calls: list[ast.Call], otherwise: ast.Call) -> ast.Call:
    """Return the first forward pass among calls in their order."""
    return next((call for call in calls if is_pass(call)), otherwise)


def _in_training(script: Script) -> Found:
    """Find a cosine of gradients where the network trains, with no `.eval()` before it.

    With dropout on, or in a function that calls `.train()` itself: dropout may be in another file.
    """
    drops = any(map(drops_out, script.calls()))
    for _, nodes in script.scopes():
        calls = sorted((n for n in nodes if isinstance(n, ast.Call)), key=lambda call: call.lineno)
        told = any(method(call) == "train" and literal(argument(call, 0, "mode")) is not False for call in calls)
        differentiates = any(method(call) == "backward" or script.differentiates(call) for call in calls)
        if not (drops or told) or not differentiates or not any(method(call) == "step" for call in calls):
            continue
        for call in calls:
            vectors = [*call.args, *(k.value for k in call.keywords)]
            if (script.is_cosine_call(call) or "cos" in method(call)) and any(map(script.is_gradient, vectors)):
                if not any(method(c) == "eval" and c.lineno <= call.lineno for c in calls):
                    yield (
                        _place(calls, call),
                        "this alignment is that of a network in training mode, with dropout other in every pass",
                        "measure between steps, after model.eval(), on samples held back for it",
                    )
                break


def _told_to_train(script: Script) -> Found:
    """Find gradients compared after `.train()`, or in a trainer's hook after a batch, where nothing is stepped."""
    for scope, nodes in script.scopes():
        calls = sorted((n for n in nodes if isinstance(n, ast.Call)), key=lambda call: call.lineno)
        told = [call for call in calls if method(call) == "train" and not call.args and not call.keywords]
        if getattr(scope, "name", "").startswith("on_train_batch"):
            told = [call for call in calls if is_pass(call)]
        stays = not any(method(call) in ("eval", "step", "zero_grad", "backward") for call in calls)
        compared = any(script.is_cosine_call(c) and any(map(script.is_gradient, c.args)) for c in calls)
        if told and stays and (compared or any(map(script.differentiates, calls))):
            yield (
                _place(calls, told[0]),
                "the gradients that are compared are those of a network in training mode, with its dropout on",
                "call model.eval() before, and model.train() again afterwards",
            )


def _builds_model(node: ast.Assign) -> bool:
    if method(node.value) == "from_pretrained":  # it hands the network back in eval mode
        return False
    return isinstance(node.value, ast.Call) and any(MODEL.fullmatch(last(target)) for target in node.targets)


def _imported_models(script: Script) -> set[str]:
    """Return imported networks by their name, as in `from model import net`."""
    names = {a.asname or a.name for n in script.tree.body if isinstance(n, ast.ImportFrom) for a in n.names}
    return {name for name in names if MODEL.fullmatch(name)}


def _accuracy(script: Script, nodes: list[ast.AST]) -> bool:
    """Return whether there is argmax(…) == y, also of a name that was assigned it, `argmax(…).eq(y)`, or a score."""
    if any(method(n) in ("accuracy_score", "multiclass_accuracy", "accuracy") for n in nodes):
        return True
    compared = [n for n in nodes if isinstance(n, ast.Compare) and isinstance(n.ops[0], ast.Eq)]
    parts: list[ast.AST] = [*compared, *(n for n in nodes if method(n) == "eq")]
    for name in [n for part in parts for n in ast.walk(part) if isinstance(n, ast.Name)]:
        parts += [a.value for a in script.assignments(script.scope(name), name.id) if a.seen <= name.lineno]
    calls = [call for part in parts for call in script.calls(part)]
    return any(
        method(call) in ("argmax", "topk")
        or (
            method(call) == "max"
            and (keyword(call, "dim", "axis") is not None or len(call.args) == 2 - bool(_own(call)))
        )
        for call in calls
    )


def _own(call: ast.Call) -> bool:
    """Return whether it is a method of a tensor, out.max(1), and not torch.max(out, 1)."""
    return isinstance(call.func, ast.Attribute) and last(call.func.value) != "torch"


def _compares(script: Script, nodes: list[ast.AST]) -> bool:
    """Return whether there is a cosine with a gradient, or a gradient taken (by `backward` too, if read afterwards)."""
    read = any(isinstance(n, ast.Attribute) and n.attr == "grad" and isinstance(n.ctx, ast.Load) for n in nodes)
    return any(
        (script.is_cosine_call(c) and any(map(script.is_gradient, c.args)))
        or script.differentiates(c)
        or (read and method(c) == "backward")
        for c in nodes
        if isinstance(c, ast.Call)
    )


P = 0.9  # of dropout: what it keeps is scaled by 1/(1 − p)


def exploding_with_dropout(seed: int) -> nn.Module:
    """Return a network whose stream its branches make up, with dropout at the end of each."""
    return with_dropout(seed, P, gain=10.0)


def stream_norm(net: nn.Module, seed: int) -> float:
    """Return ‖h_L‖, averaged over samples."""
    import torch

    from walkback.selftest import batches

    with torch.no_grad():
        _, hidden = net(batches(1, 1024, seed=seed + 1)[0][0], return_hidden=True)
    return float(hidden[-1].double().norm(dim=1).mean())


def show(seed: int = 0) -> Shown:
    """Return ‖h_L‖ in both modes."""
    import torch

    net = exploding_with_dropout(seed)
    torch.manual_seed(seed)
    return Shown(
        "‖h_L‖",
        stream_norm(net.train(), seed),
        stream_norm(net.eval(), seed),
        f"dropout keeps {1 - P:.0%} of a branch and scales it by {1 / (1 - P):.0f}: the same on average, but "
        f"√{1 / (1 - P):.0f} times as long. Batch norm differs too: call model.eval() and say so.",
    )
