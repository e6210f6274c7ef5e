"""A network aligns to the B it was trained with. With another B there is nothing to find."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator

from walkback.pitfalls.pitfall import Entry, Found, Shown
from walkback.pitfalls.script import NULL, Scope, Script, is_feedback, last, literal, method, targets
from walkback.pitfalls.trained import Trained, train

PITFALL = Entry(4, "fresh-feedback", "feedback drawn anew at evaluation has no alignment", "lint")

_EVALUATES = re.compile(r"(^|_)(eval\w*|test|measure\w*|gamma|align\w*|diagnos\w*|audit|probe|validat\w*)(_|$)", re.I)
_LOADS = ("torch.load", "safetensors.torch.load_file", "safetensors.torch.load_model")


def detect(script: Script) -> Found:
    """Find feedback that is drawn where a trained network is evaluated."""
    if any(map(is_feedback, _keys(script))):
        return  # the trained feedback is read from somewhere
    for node in script.of(ast.Assign, ast.AnnAssign):
        scope, named = script.scope(node), [last(target) for target in targets(node)]
        if not any(map(is_feedback, named)) or node.value is None or not script.is_random(node.value):
            continue
        where = getattr(scope, "name", "")
        if _is_unit_test(script, scope):
            continue
        if NULL.search(" ".join((where, *named))) or where in ("__init__", "setup", "reset_parameters"):
            continue
        if _EVALUATES.search(where) or any(_loads(script, n) for n in script.inside(scope)):
            yield (
                node,
                "feedback drawn anew: the network was trained with another one, and aligned to that",
                "load the feedback that was saved with the weights; name it fresh_… where it is meant as a null",
            )


def _is_unit_test(script: Script, scope: Scope) -> bool:
    """Return whether it is a test of code, in which nothing was trained: it asserts, or a test runner is imported."""
    runner = {name.partition(".")[0] for name in script.aliases.values()} & {"pytest", "unittest"}
    asserts = any(isinstance(n, ast.Assert) or method(n).startswith("assert") for n in script.inside(scope))
    named = getattr(scope, "name", "").startswith("test")
    return named and (asserts or bool(runner)) and not any(_loads(script, n) for n in script.inside(scope))


def _keys(script: Script) -> Iterator[str]:
    """Return strings that are read from a mapping: ckpt["B"], ckpt.get("B")."""
    for node in script.nodes:
        key = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            key = node.slice
        elif isinstance(node, ast.Call) and method(node) in ("get", "pop") and node.args:
            key = node.args[0]
        if isinstance(word := literal(key), str):
            yield word
        elif isinstance(key, ast.JoinedStr) and key.values and isinstance(key.values[0], ast.Constant):
            yield str(key.values[0].value).rstrip("._")


def _loads(script: Script, node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and (script.name(node.func) in _LOADS or method(node) == "load_state_dict")


DRAWS = 8


def trained(seed: int) -> Trained:
    """Train DFA with a penalty that keeps its reference healthy."""
    return train("dfa", penalty=1e-2, seed=seed)


def show(seed: int = 0) -> Shown:
    """Return the deep cosine with the feedback of training and with feedback drawn anew."""
    import torch

    run = trained(seed)
    draw, stranger = torch.Generator().manual_seed(seed + 2), copy.deepcopy(run.rule)
    fresh = []
    for _ in range(DRAWS):
        stranger.redraw(draw)
        fresh.append(run.measure(stranger).deep_cosine or 0.0)
    drawn = torch.tensor(fresh, dtype=torch.float64)
    own = run.measure().deep_cosine or 0.0
    return Shown(
        "deep cosine of DFA",
        float(drawn.mean()),
        own,
        f"over {DRAWS} fresh draws of B: {float(drawn.mean()):+.4f} ± {float(drawn.std()):.4f}; with the B of training "
        f"{own:+.4f}. Save B with the weights. As a null, on purpose, fresh B is just right.",
    )
