"""A frozen control that was trained for fewer epochs makes unused depth look used."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from walkback.pitfalls.nodes import literal, method, owner, root
from walkback.pitfalls.pitfall import Entry, Found, Shown
from walkback.pitfalls.script import Script
from walkback.pitfalls.trained import train

PITFALL = Entry(9, "unmatched-control", "depth is compared with a control that trained for less", "lint, report")

_RECIPE = (
    *(
        "epochs",
        "n_epochs",
        "num_epochs",
        "max_epochs",
        "num_train_epochs",
        "steps",
        "n_steps",
        "max_steps",
        "iterations",
    ),
    *(
        "lr",
        "learning_rate",
        "weight_decay",
        "batch_size",
        "net",
        "model",
        "data",
        "dataset",
        "width",
        "hidden",
        "seed",
    ),
)
_FROZEN = re.compile(r"(-*)(freeze|frozen)([_-](blocks|body|hidden|trunk|layers))?|(blocks|body|hidden|trunk)_frozen")
_FREEZES = re.compile(r"freeze(_(blocks|body|hidden|trunk|layers))?")
_TRAINED = re.compile(r"(train|update|learn)_(blocks|body|hidden|trunk|layers)")


Recipe = dict[str, object]
FIX = "train it with the same recipe; walkback.frozen_baseline(spec) does"


def detect(script: Script) -> Found:
    """Find a frozen run whose recipe is that of no other run in the script."""
    runs: dict[str, list[tuple[ast.expr, bool, Recipe]]] = {}
    for call in script.calls():
        if name := script.name(call.func):
            frozen = _is_frozen(call) or _was_frozen(script, call)
            runs.setdefault(name, []).append((call, frozen, _recipe(call)))
            if shorter := _depends_on_frozen(call):
                yield call, f"the frozen control is trained otherwise than what it is compared with: {shorter}", FIX
    runs["a command line"] = list(_commands(script))
    runs["a dict"] = list(_settings(script))
    for calls in runs.values():
        others = [recipe for _, frozen, recipe in calls if not frozen]
        for call, frozen, recipe in calls:
            differences = [_differ(recipe, other) for other in others] if frozen else []
            if differences and all(differences):
                listed = ", ".join(f"{k} {ours} instead of {theirs}" for k, ours, theirs in min(differences, key=len))
                yield (
                    call,
                    f"the frozen control is trained otherwise than what it is compared with: {listed}",
                    FIX,
                )


def _is_frozen(call: ast.Call) -> bool:
    values = [literal(a) for a in (*call.args, *(k.value for k in call.keywords))]
    flags = [(k.arg or "", literal(k.value)) for k in call.keywords]
    return "frozen" in values or any(_says_frozen(name, value) for name, value in flags)


def _says_frozen(name: str, value: object) -> bool:
    """Return whether a setting says that the blocks are not trained."""
    return (value is True and _FROZEN.fullmatch(name) is not None) or (
        value is False and _TRAINED.fullmatch(name) is not None
    )


def _was_frozen(script: Script, call: ast.Call) -> bool:
    """Return whether a network is handed in whose blocks were frozen before: control.blocks.requires_grad_(False)."""
    given = {a.id for a in call.args if isinstance(a, ast.Name)}
    for before in script.inside(script.scope(call)) if given else ():
        if isinstance(before, ast.Call) and before.lineno < call.lineno:
            off = method(before) == "requires_grad_" and literal(before.args[0] if before.args else None) is False
            of = [owner(before)] if off else before.args if _FREEZES.fullmatch(method(before)) else []
            if any(part is not None and root(part) in given for part in of):
                return not off or isinstance(of[0], ast.Attribute)
    return False


def _depends_on_frozen(call: ast.Call) -> str:
    """Return what train(frozen=frozen, epochs=10 if frozen else 100) trains the control otherwise with."""
    flags = {ast.dump(k.value) for k in call.keywords if k.arg and _FROZEN.fullmatch(k.arg)}
    for k in call.keywords:
        match k.value:
            case ast.IfExp(test=test, body=ast.Constant(value=ours), orelse=ast.Constant(value=theirs)):
                if k.arg in _RECIPE and ast.dump(test) in flags and ours != theirs:
                    return f"{k.arg} {ours} instead of {theirs}"
    return ""


def _commands(script: Script) -> Iterator[tuple[ast.expr, bool, Recipe]]:
    """Yield command lines that are written down as lists or strings, with what they set."""
    for node in script.of(ast.List, ast.Tuple, ast.Constant):
        text = node.value if isinstance(node, ast.Constant) else None
        parts = text.split() if isinstance(text, str) else [str(literal(e)) for e in getattr(node, "elts", ())]
        options = [part for part in parts if part.startswith("--")]
        if len(options) < 2 or (text is not None and not any(part.endswith(".py") for part in parts)):
            continue
        after = dict(pairwise(parts))
        recipe: Recipe = {part.lstrip("-").replace("-", "_"): after.get(part) for part in options}
        yield node, any(map(_FROZEN.fullmatch, options)), {k: v for k, v in recipe.items() if k in _RECIPE}


def _settings(script: Script) -> Iterator[tuple[ast.expr, bool, Recipe]]:
    """Yield dicts of settings that are written down: {"epochs": 10, "freeze_blocks": True}."""
    for node in script.of(ast.Dict):
        known: Recipe = {str(literal(k)): literal(v) for k, v in zip(node.keys, node.values) if literal(k) is not None}
        if recipe := {k: v for k, v in known.items() if k in _RECIPE and v is not None}:
            yield node, any(_says_frozen(str(k), v) for k, v in known.items()), recipe


def _recipe(call: ast.Call) -> Recipe:
    return {
        str(k.arg): literal(k.value) for k in call.keywords if k.arg in _RECIPE and isinstance(k.value, ast.Constant)
    }


def _differ(ours: Recipe, theirs: Recipe) -> list[tuple[object, object, object]]:
    return [(key, ours[key], theirs[key]) for key in ours if key in theirs and ours[key] != theirs[key]]


def accuracies(seed: int) -> tuple[float, float, float]:
    """Return the accuracies of DFA, its matched control, and a control with a sixth of the epochs."""
    run = train("dfa", epochs=6, seed=seed)
    matched = train("dfa", "frozen", epochs=6, seed=seed)
    short = train("dfa", "frozen", epochs=1, seed=seed)  # walkback: ignore[P09]
    return run.accuracy, matched.accuracy, short.accuracy


def show(seed: int = 0) -> Shown:
    """Return the depth margin against both controls."""
    ours, matched, short = accuracies(seed)
    return Shown(
        "depth margin, pp",
        100 * (ours - short),
        100 * (ours - matched),
        f"accuracy {ours:.3f}; frozen blocks after as many epochs {matched:.3f}, after a sixth of them {short:.3f}. "
        "Only the blocks may differ between a network and its control.",
    )
