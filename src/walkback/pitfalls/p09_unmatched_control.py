"""A frozen control that was trained for fewer epochs makes unused depth look used."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from walkback.pitfalls.nodes import last, literal, method, owner, root
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


_CONTROL = r"(^|_)(frozen|freeze)(_|$)"
Recipe = dict[str, object]
FIX = "train it with the same recipe; walkback.frozen_baseline(spec) does"


def detect(script: Script) -> Found:
    """Find a frozen run whose recipe is that of no other run in the script."""
    runs: dict[str, list[tuple[ast.expr, bool, Recipe]]] = {}
    freezing = [c for c in script.calls() if method(c) == "requires_grad_" or _FREEZES.fullmatch(method(c))]
    for call in script.calls():
        of = _replaced(script, call)
        if name := script.name(call.func if of is None else of.func):
            frozen = _is_frozen(call) or _was_frozen(script, call, freezing)
            turns = _looped(script, call)
            runs.setdefault(name, []).extend(turns or [(call, frozen, _recipe(script, call))])
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


def _looped(script: Script, call: ast.Call) -> list[tuple[ast.expr, bool, Recipe]]:
    """Return the turns of `for frozen, epochs in [(False, 100), (True, 10)]: train(frozen=frozen, epochs=epochs)`."""
    loop = next((up for up in script.above(call) if isinstance(up, ast.For)), None)
    given = {k.value.id: k.arg for k in call.keywords if k.arg and isinstance(k.value, ast.Name)}
    if loop is None or not isinstance(loop.target, ast.Tuple) or not given:
        return []
    turns = script.follow(loop.iter)
    names_ = [given.get(last(part)) for part in loop.target.elts]
    found: list[tuple[ast.expr, bool, Recipe]] = []
    for turn in turns.elts if isinstance(turns, (ast.List, ast.Tuple)) else ():
        if isinstance(turn, ast.Tuple) and len(turn.elts) == len(names_):
            known = {name: literal(value) for name, value in zip(names_, turn.elts) if name}
            frozen = any(_says_frozen(name, value) for name, value in known.items())
            found.append((turn, frozen, {k: v for k, v in known.items() if k in _RECIPE}))
    return found


def _says_frozen(name: str, value: object) -> bool:
    """Return whether a setting says that the blocks are not trained."""
    return (value is True and _FROZEN.fullmatch(name) is not None) or (
        value is False and _TRAINED.fullmatch(name) is not None
    )


def _was_frozen(script: Script, call: ast.Call, freezing: list[ast.Call]) -> bool:
    """Return whether a network is handed in whose blocks were frozen before: control.blocks.requires_grad_(False)."""
    given = {a.id for a in call.args if isinstance(a, ast.Name)}
    for before in freezing if given else ():
        if script.scope(before) is script.scope(call) and before.lineno < call.lineno:
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
    for node in script.of(ast.List, ast.Tuple, ast.Constant, ast.BinOp):
        text = node.value if isinstance(node, ast.Constant) else None
        if not isinstance(node, ast.Constant) and _is_base(script, node):
            continue
        parts = text.split() if isinstance(text, str) else _written(script, node)
        parts = [word for part in parts for word in (part.split("=", 1) if part.startswith("--") else [part])]
        options = [part for part in parts if part.startswith("--")]
        if len(options) < 2 or (text is not None and not any(part.endswith(".py") for part in parts)):
            continue
        after = dict(pairwise(parts))
        recipe: Recipe = {part.lstrip("-").replace("-", "_"): after.get(part) for part in options}
        yield node, any(map(_FROZEN.fullmatch, options)), {k: v for k, v in recipe.items() if k in _RECIPE}


def _written(script: Script, node: ast.AST, depth: int = 4) -> list[str]:
    """Return the words of a list that is written down: ["--epochs", "5"], common + […], [*common, …]."""
    node = script.follow(node)
    match node:
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            inner = (
                _written(script, p.value, depth - 1) if isinstance(p, ast.Starred) else [str(literal(p))] for p in parts
            )
            return [word for words in inner for word in words] if depth else []
        case ast.BinOp(op=ast.Add(), left=left, right=right) if depth:
            return [*_written(script, left, depth - 1), *_written(script, right, depth - 1)]
    return []


def _settings(script: Script) -> Iterator[tuple[ast.expr, bool, Recipe]]:
    """Yield dicts of settings that are written down: {"epochs": 10, "freeze_blocks": True}, {**base, "epochs": 5}."""
    for node in script.of(ast.Dict, ast.BinOp, ast.Call):
        if _is_base(script, node) or (isinstance(node, ast.Call) and method(node) != "dict"):
            continue
        known = _known(script, node)
        if recipe := {k: v for k, v in known.items() if k in _RECIPE and v is not None}:
            frozen = any(_says_frozen(k, v) for k, v in known.items()) or _is_called_frozen(script, node)
            yield node, frozen, recipe


def _is_called_frozen(script: Script, node: ast.AST) -> bool:
    """Return whether settings are those of the frozen control by their name: {"frozen": {…}}, frozen_cfg = {…}."""
    up = script.parents.get(node)
    if isinstance(up, ast.Dict):
        return any(v is node and re.search(_CONTROL, str(literal(k))) for k, v in zip(up.keys, up.values))
    return isinstance(up, ast.Assign) and re.search(_CONTROL, last(up.targets[0])) is not None


def _is_base(script: Script, node: ast.AST) -> bool:
    """Return whether a list or dict is only put into others: its name is added to or unpacked in them."""
    up = script.parents.get(node)
    if isinstance(up, (ast.BinOp, ast.keyword)):
        return True
    name = last(up.targets[0]) if isinstance(up, ast.Assign) else ""
    return any(_is_put_in(script, use) for use in script.reads(name))


def _is_put_in(script: Script, use: ast.Name) -> bool:
    up = script.parents[use]
    if isinstance(up, ast.keyword):
        return up.arg is None
    if isinstance(up, ast.Call):
        return method(up) == "dict" and bool(up.keywords)
    return isinstance(up, (ast.BinOp, ast.Starred)) or (
        isinstance(up, ast.Dict) and use in up.values and None in up.keys
    )


def _known(script: Script, node: ast.AST, depth: int = 4) -> Recipe:
    """Return the settings that a dict, or what it is put together from, has written down."""
    node, known = script.follow(node), Recipe()
    if not depth:
        return known
    match node:
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values):
                known |= _known(script, value, depth - 1) if key is None else {str(literal(key)): literal(value)}
        case ast.Call() if method(node) == "dict":
            for part in node.args:
                known |= _known(script, part, depth - 1)
            known |= _recipe(script, node, every=True)
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            known = _known(script, left, depth - 1) | _known(script, right, depth - 1)
    return known


def _replaced(script: Script, call: ast.Call) -> ast.Call | None:
    """Return Recipe(…) of replace(Recipe(…), epochs=5), also by its name."""
    if method(call) not in ("replace", "evolve", "model_copy", "copy", "_replace"):
        return None
    of = script.follow(call.args[0] if call.args else owner(call) or call)
    return of if isinstance(of, ast.Call) and of is not call else None


def _recipe(script: Script, call: ast.Call, *, every: bool = False) -> Recipe:
    """Return the settings that a call passes, also by `**base`."""
    of = _replaced(script, call)
    known = Recipe() if of is None else _recipe(script, of, every=every)
    for k in call.keywords:
        if k.arg is None:
            known |= _known(script, k.value)
        elif isinstance(k.value, ast.Constant):
            known[k.arg] = literal(k.value)
    return known if every else {k: v for k, v in known.items() if k in _RECIPE}


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
