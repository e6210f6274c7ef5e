"""Cosines written out by hand, and the ε that holds their norms up: added, clamped, or a branch for small norms."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from walkback.pitfalls.nodes import argument, keyword, last, literal, method, number, owner
from walkback.pitfalls.script import KEEP, SENT, Script

LEAST = 1e-12  # a smaller ε is far under any gradient that is measured
MOST = 1e-2
DEEPEST = 6  # products and names in a denominator that are followed; each may double what there is to look at
_ALIGNS = re.compile(r"align|grad|gamma|credit|feedback|angle|(^|_)(d?fa|bp)(_|$)", re.IGNORECASE)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPARES = re.compile(r"grad|credit|feedback|(^|_)(d?fa|bp)(_|$)", re.IGNORECASE)
_PRODUCTS = ("dot", "matmul", "einsum", "inner", "vdot", "mm", "bmm", "mul", "multiply")


def held_up(script: Script) -> Iterator[tuple[ast.expr, float]]:
    """Yield cosines of gradients whose norms an ε holds up, each with its ε."""
    for node in script.nodes:
        match node:
            case ast.BinOp(op=ast.Div(), left=left, right=right):
                below = follow(script, right)
                epsilon = _floor(script, below)
                cosine = _norms(script, _inner(script, below)) >= 2
                if epsilon is not None and cosine and of_gradients(script, node, left):
                    yield (node if below is right or not isinstance(below, ast.expr) else below), epsilon
            case ast.IfExp(test=test, body=body, orelse=other) if 0 in (literal(body), literal(other)):
                epsilon = _threshold(script, test)
                if epsilon is not None and _divides(script, node) and of_gradients(script, node, node):
                    yield node, epsilon
            case (
                ast.BinOp(op=ast.Mult() | ast.MatMult(), left=one, right=other)
                | ast.Call(args=[one, other])
                | ast.Call(args=[ast.Constant(), one, other])
                | ast.Call(func=ast.Attribute(value=one), args=[other])
            ) if not isinstance(node, ast.Call) or method(node) in _PRODUCTS:
                made = [unit for unit in (_unit(script, side) for side in (one, other)) if unit is not None]
                if len(made) == 2 and any(of_gradients(script, node, unit, COMPARES) for unit, _ in made):
                    yield from ((unit, epsilon) for unit, epsilon in made if epsilon is not None)
            case ast.Call(args=[test, one, other]) if method(node) == "where" and 0 in (literal(one), literal(other)):
                epsilon = _threshold(script, test)
                if epsilon is not None and _divides(script, node) and of_gradients(script, node, node):
                    yield node, epsilon
            case ast.If(test=test, body=[ast.Return(value=ast.Constant(value=value))]) if value == 0:
                scope = script.scope(node)
                epsilon = _threshold(script, test)
                if epsilon is not None and _divides(script, scope) and of_gradients(script, node, scope):
                    yield node.test, epsilon


def value_of(script: Script, node: ast.AST | None) -> float | int | None:
    """Return a number that is written down, or that a name got as a constant or as the default of a parameter."""
    known = number(node)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return _kept(script, node) if node.value.id == "self" else _option(script, node.attr)
    if isinstance(node, ast.Attribute) and node.attr == "eps" and method(node.value) == "finfo":
        return 2.2e-16 if "64" in ast.unparse(node.value) or "double" in ast.unparse(node.value) else 1.2e-7
    if known is not None or not isinstance(node, ast.Name):
        return known
    scope = script.scope(node)
    for place in (scope, script.tree):
        made = script.assignments(place, node.id)
        if made:
            return number(max(made, key=lambda a: a.seen).value)
        if isinstance(place, _FUNCTIONS):
            names = [*place.args.posonlyargs, *place.args.args]
            given = dict(zip([a.arg for a in reversed(names)], reversed(place.args.defaults)))
            given |= {a.arg: d for a, d in zip(place.args.kwonlyargs, place.args.kw_defaults) if d is not None}
            if node.id in given or node.id in {a.arg for a in names}:
                return number(given.get(node.id))
    return None


def _kept(script: Script, node: ast.Attribute) -> float | int | None:
    """Return the number that an attribute of an object is set to, once, in a method of its class."""
    owner = next((up for up in script.above(node) if isinstance(up, ast.ClassDef)), None)
    inside = [] if owner is None else [n for n in ast.walk(owner) if isinstance(n, ast.Assign)]
    made = [
        n
        for n in inside
        if any(isinstance(t, ast.Attribute) and ast.unparse(t) == ast.unparse(node) for t in n.targets)
        or (script.parents[n] is owner and any(last(t) == node.attr for t in n.targets))
    ]
    return value_of(script, made[0].value) if len(made) == 1 and not isinstance(made[0].value, ast.Attribute) else None


def _option(script: Script, name: str) -> float | int | None:
    """Return the default of an option on the command line, as parser.add_argument("--eps", default=1e-8)."""
    for call in script.calls():
        if method(call) == "add_argument" and any(
            str(literal(a)).lstrip("-").replace("-", "_") == name for a in call.args
        ):
            return number(keyword(call, "default"))
    return None


def follow(script: Script, node: ast.AST) -> ast.AST:
    """Return what a name was assigned last before its use, else the node itself."""
    return script.last_assigned(node) or node


def is_norm(script: Script, node: ast.AST, depth: int = 3) -> bool:
    """Return whether it is a norm, a name of one, or a root of a sum of squares."""
    node = follow(script, node)
    if (inner := _under_root(node)) is not None:
        return _squares(script, inner) > 0
    if not isinstance(node, ast.Call):
        return False
    if script.norm_of(node) is not None:
        return True
    of = owner(node) if method(node) == "item" else node.args[0] if method(node) == "float" and node.args else None
    return of is not None and depth > 0 and is_norm(script, of, depth - 1)


def _under_root(node: ast.AST) -> ast.expr | None:
    """Return x of torch.sqrt(x), x.sqrt() and x ** 0.5."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and number(node.right) == 0.5:
        return node.left
    if method(node) != "sqrt" or not isinstance(node, ast.Call):
        return None
    return node.args[0] if node.args else owner(node)


def _squares(script: Script, node: ast.AST) -> int:
    """Return how many sums of squares are multiplied in what stands under a root."""
    node = follow(script, node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and ast.dump(node.left) != ast.dump(node.right):
        return _squares(script, node.left) + _squares(script, node.right)
    inner = ast.walk(node)
    return int(
        any(
            (isinstance(n, ast.BinOp) and isinstance(n.op, ast.Pow) and number(n.right) == 2)
            or (isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult) and ast.dump(n.left) == ast.dump(n.right))
            or method(n) in ("square", "pow")
            or (method(n) in ("dot", "inner") and len({ast.dump(a) for a in n.args}) == 1 and len(n.args) == 2)  # type: ignore[attr-defined]
            for n in inner
        )
    )


def _norms(script: Script, node: ast.AST, depth: int = DEEPEST) -> int:
    """Return how many norms are multiplied."""
    node = follow(script, node)
    if depth and isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Add)):
        left, right = (_norms(script, side, depth - 1) for side in (node.left, node.right))
        return left + right if isinstance(node.op, ast.Mult) else max(left, right)  # (‖a‖ + ε)(‖b‖ + ε)
    if depth and _is_floor(node):
        return _norms(script, _inner(script, node), depth - 1)
    under = _under_root(node)
    return int(is_norm(script, node)) if under is None else _squares(script, _inner(script, under))


def _floor(script: Script, node: ast.AST, depth: int = DEEPEST) -> float | None:
    """Return the ε in a denominator: added to it, to a norm in it, or what it is clamped to."""
    epsilon = None
    if (under := _under_root(node)) is not None:
        return _floor(script, follow(script, under), depth - 1) if depth else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        epsilon = value_of(script, node.right)
        epsilon = value_of(script, node.left) if epsilon is None else epsilon
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and depth:
        sides = (_floor(script, follow(script, side), depth - 1) for side in (node.left, node.right))
        return next((side for side in sides if side is not None), None)
    elif isinstance(node, ast.Call) and _is_floor(node):
        name = method(node)
        if name in ("clamp", "clip", "clamp_min"):
            whole = script.name(node.func).startswith(("torch.", "numpy.", "jax."))
            epsilon = value_of(script, argument(node, int(whole), "min", "a_min"))
        elif len(node.args) == 2:
            sides = [
                s.args[0] if isinstance(s, ast.Call) and method(s) == "tensor" and s.args else s for s in node.args
            ]
            epsilon = next((v for v in (value_of(script, s) for s in sides) if v is not None), None)
    return epsilon if epsilon is not None and LEAST <= epsilon <= MOST else None


def _is_floor(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and method(node) in ("clamp", "clip", "clamp_min", "max", "maximum", "fmax")


def _inner(script: Script, node: ast.AST) -> ast.AST:
    """Return what is held up, without the ε."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return node.left if value_of(script, node.right) is not None else node.right
    if isinstance(node, ast.Call) and _is_floor(node):
        of = owner(node)
        whole = of is None or script.name(node.func).startswith(("torch.", "numpy.", "jax."))
        return node.args[0] if whole and node.args else of or node
    return node


def _unit(script: Script, node: ast.AST, depth: int = DEEPEST) -> tuple[ast.expr, float | None] | None:
    """Return where a vector is divided by its norm, g / (‖g‖ + ε) or F.normalize(g), and its ε; None if it is not."""
    node = follow(script, node)
    match node:
        case ast.Name() if depth and script.last_assigned(node) is not None:  # of a loop over such a list
            return _unit(script, node, depth - 1)
        case ast.ListComp(elt=of) | ast.Attribute(attr="T", value=of) if depth:
            return _unit(script, of, depth - 1)
        case ast.Call(func=ast.Attribute(attr=called, value=of)) if depth and called in (*KEEP, "t"):
            return None if script.name(node.func).startswith(("torch.", "numpy.")) else _unit(script, of, depth - 1)
        case ast.Call() if script.name(node.func).endswith("functional.normalize"):
            epsilon = (
                value_of(script, argument(node, 3, "eps")) if keyword(node, "eps") or len(node.args) > 3 else LEAST
            )
            return node, epsilon if epsilon is not None and epsilon >= LEAST else None
        case ast.BinOp(op=ast.Div(), left=left, right=right):
            below = follow(script, right)
            held = follow(script, _inner(script, below))
            of = script.norm_of(held) if isinstance(held, ast.Call) else None
            above = left.operand if isinstance(left, ast.UnaryOp) else left
            if of is not None and ast.dump(of) == ast.dump(above):
                return node, _floor(script, below)
    return None


def _threshold(script: Script, test: ast.AST) -> float | None:
    """Return the small number that norms are compared with."""
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
            sides = (node.left, node.comparators[0])
            values = [value_of(script, side) for side in sides]
            norms = any(is_norm(script, side) or _norms(script, side) for side in sides)
            small = next((v for v in values if v is not None and LEAST <= v <= MOST), None)
            if norms and small is not None:
                return small
    return None


def _divides(script: Script, within: ast.AST) -> bool:
    """Return whether something in it is divided by a product of two norms."""
    divisions = (n for n in ast.walk(within) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div))
    return any(_norms(script, n.right) >= 2 for n in divisions)


def of_gradients(script: Script, node: ast.AST, within: ast.AST, words: re.Pattern[str] = _ALIGNS) -> bool:
    """Return whether gradients are compared: by their names, by the function's, or by what it is called with."""
    inner = [n for n in ast.walk(within) if isinstance(n, (ast.Name, ast.Attribute))]
    scope = script.scope(node)
    if any(script.is_gradient(n) or SENT.search(last(n)) for n in inner):
        return True
    if not isinstance(scope, _FUNCTIONS):
        return False
    given = [a.arg for a in scope.args.args]
    if words.search(scope.name) or any(words.search(name) for name in given):
        return True
    calls = (c for c in script.calls() if last(c.func) == scope.name)
    return any(script.is_gradient(a) for c in calls for a in (*c.args, *(k.value for k in c.keywords)))


def default_epsilon(script: Script, call: ast.Call, at: int) -> float | None:
    """Return the ε of torch's cosine: its default, or the number that is passed; None where it can't be told."""
    given = argument(call, at, "eps")
    return 1e-8 if given is None and keyword(call, "eps") is None else value_of(script, given)
