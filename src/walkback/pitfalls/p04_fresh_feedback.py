"""A network aligns to the B it was trained with. With another B there is nothing to find."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator

from walkback.pitfalls.nodes import last, literal, method, names, owner, targets, words
from walkback.pitfalls.pitfall import Entry, Found, Shown
from walkback.pitfalls.script import NULL, Scope, Script, is_feedback
from walkback.pitfalls.trained import Trained, train

PITFALL = Entry(4, "fresh-feedback", "feedback drawn anew at evaluation has no alignment", "lint")

_EVALUATES = re.compile(
    r"(^|_)(eval\w*|test|measure\w*|gamma|align\w*|diagnos\w*|audit|probe|validat\w*|angles?|cosines?|compare|analy[sz]e)(_|$)",
    re.I,
)
_LOADS = ("torch.load", "safetensors.torch.load_file", "safetensors.torch.load_model")
_LOADING = re.compile(
    r"load_state_dict|load_from_checkpoint|from_(file|checkpoint)|(load|restore)_(\w+_)?(model|net|network|weights|checkpoint|ckpt)|"
    r"tree_deserialise_leaves|from_bytes|msgpack_restore|restore_checkpoint"
)
_WEIGHTS = re.compile(r"weight|ckpt|checkpoint|model|params|trained", re.IGNORECASE)
_DRAWS = re.compile(
    r"(draw|sample|random|init|reset|redraw|new|make|generate|create|gen)\w*_(\w+_)?(feedback\w*|fb\w*|Bs?)"
)
_TRAINS = re.compile(r"(train|fit|learn)(_\w+)?")


def detect(script: Script) -> Found:
    """Find feedback that is drawn where a trained network is evaluated."""
    if any(map(is_feedback, _keys(script))):
        return  # the trained feedback is read from somewhere
    known: dict[Scope, tuple[bool, bool]] = {}
    for node in script.of(ast.Assign, ast.AnnAssign, ast.Expr):
        scope, named = script.scope(node), _drawn(script, node)
        where = getattr(scope, "name", "")
        if not named:
            continue
        if scope not in known:  # asked once, however many statements there are
            known[scope] = _is_unit_test(script, scope) or _trains(script, scope), _loads_in(script, scope)
        left_alone, loads = known[scope]
        if left_alone:
            continue
        if NULL.search(" ".join((where, *named))):
            continue
        if where in ("__init__", "setup", "reset_parameters") and not loads:
            continue
        if _EVALUATES.search(where) or loads:
            yield (
                node,
                "feedback drawn anew: the network was trained with another one, and aligned to that",
                "load the feedback that was saved with the weights; name it fresh_… where it is meant as a null",
            )


def _drawn(script: Script, node: ast.Assign | ast.AnnAssign | ast.Expr) -> list[str]:
    """Return the names of feedback that a statement draws: B = randn(…), B = draw_feedback(…), net.B.normal_()."""
    if isinstance(node, ast.Expr):
        call = node.value
        if not isinstance(call, ast.Call) or not method(call).endswith("_"):
            return [method(call)] if isinstance(call, ast.Call) and _DRAWS.fullmatch(method(call)) else []
        drawn = owner(call) if script.is_random(ast.Expr(call)) else None
        if script.name(call.func).startswith(("torch.nn.init.", "nn.init.", "init.")) and call.args:
            drawn = call.args[0]
        return [word for word in names(drawn) if is_feedback(word)] if drawn is not None else []
    named = [_written_to(t) for t in targets(node)]
    if node.value is not None and any(call in script.flow.feedback for call in script.calls(node.value)):
        return named
    called = method(node.value)
    drawn = node.value is not None and (script.is_random(node.value) or _DRAWS.fullmatch(called) is not None)
    if not drawn or not any(map(is_feedback, (*named, called.lower()))):
        return []
    return named if _DRAWS.fullmatch(called) else [*named, called]  # the verb says no null


def _written_to(target: ast.expr) -> str:
    """Return B of B[:] and layer.B.data."""
    while isinstance(target, ast.Subscript) or (isinstance(target, ast.Attribute) and target.attr == "data"):
        target = target.value
    return last(target)


def _trains(script: Script, scope: Scope) -> bool:
    """Return whether a network is trained in the same function: its feedback may well be a new one."""
    calls = [n for n in script.inside(scope) if isinstance(n, ast.Call)]
    steps = {method(c) for c in calls}
    return "step" in steps or any(_TRAINS.fullmatch(method(c)) and (c.args or c.keywords) for c in calls)


def _is_unit_test(script: Script, scope: Scope) -> bool:
    """Return whether it is a test of code, in which nothing was trained: it asserts, or a test runner is imported."""
    runner = {name.partition(".")[0] for name in script.aliases.values()} & {"pytest", "unittest"}
    asserts = any(isinstance(n, ast.Assert) or method(n).startswith("assert") for n in script.inside(scope))
    named = getattr(scope, "name", "").startswith("test")
    return named and (asserts or bool(runner)) and not _loads_in(script, scope)


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


def _loads_in(script: Script, scope: Scope) -> bool:
    return any(_loads(script, node) for node in script.inside(scope))


def _loads(script: Script, node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    arrays = script.name(node.func) in (
        "numpy.load",
        "pickle.load",
        "joblib.load",
        "jax.numpy.load",
        "cloudpickle.load",
    )
    around = [up for up in script.above(node) if isinstance(up, (ast.Assign, ast.withitem))]
    opened = [item for up in script.above(node) if isinstance(up, ast.With) for item in up.items]
    named = [w for part in (node, *around, *opened) for w in words(part)] if arrays else []
    of_weights = any(_WEIGHTS.search(w) or w in ("W", "Ws", "theta") for w in named)
    return script.name(node.func) in _LOADS or _LOADING.fullmatch(method(node)) is not None or of_weights


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
        f"over {DRAWS} fresh draws of B: {float(drawn.mean()):+z.4f} ± {float(drawn.std()):.4f}; with the B of "
        f"training {own:+z.4f}. Save B with the weights. As a null, on purpose, fresh B is just right.",
    )
