"""`F.cosine_similarity` divides by norms that an ε holds up: at the floor the cosine shrinks with the gradient."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from walkback.pitfalls.arithmetic import LEAST
from walkback.pitfalls.nodes import literal, method, names, number
from walkback.pitfalls.pitfall import Entry, Found, Shown
from walkback.pitfalls.script import Script
from walkback.pitfalls.trained import cosine
from walkback.pitfalls.values import GRAD, SENT, Cosine, Guard

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PITFALL = Entry(2, "cosine-epsilon", "F.cosine_similarity holds tiny gradients up with an ε", "lint, report")

# What a function or its parameters are called where gradients are compared.
_ALIGNS = re.compile(r"align|grad|gamma|credit|feedback|angle|(^|_)(d?fa|bp)(_|$)", re.IGNORECASE)
_COMPARES = re.compile(r"grad|credit|feedback|(^|_)(d?fa|bp)(_|$)", re.IGNORECASE)
_WEIGHT = re.compile(r"(\w+_)?(weights?|[WB]\d*)(_flat)?")


def detect(script: Script) -> Found:
    """Find cosines of gradients with an ε: torch's, its default or another, and those written by hand."""
    fix = "divide by the norms in float64: (a * g).sum(1) / (a.norm(dim=1) * g.norm(dim=1)), or pass eps=0.0"
    by_scope: dict[ast.AST, list[Cosine]] = {}
    for one in script.flow.cosines:
        if _of_signals(script, one):
            by_scope.setdefault(script.scope(one.node), []).append(one)
            for floor in one.floors:
                if floor.epsilon >= LEAST:
                    called = "in this cosine" if not one.by_hand else "here"
                    why = f"the ε of {floor.epsilon:g} {called} holds smaller gradients up, so their cosine comes out "
                    yield floor.node, f"{why}too small (in float64 too)", fix
    for guard, scope in _zeroed(script):
        if any(guard.norms <= {side.key for side in one.sides} for one in by_scope.get(scope, ())):
            yield guard.floor.node, f"norms under {guard.floor.epsilon:g} are called a cosine of 0, not unknown", fix


def _of_signals(script: Script, one: Cosine) -> bool:
    """Return whether gradients are compared: by where they come from, their names, or those around them."""
    sides = [side for side in one.sides if one.by_hand or not side.unit]
    if any(script.flow.has(side, GRAD, SENT) for side in sides):
        return True
    scope = script.scope(one.node)
    if not sides or not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    if (script.stem, scope.name) in script.project.compared:  # by a file that is linted with this one
        return True
    if not one.by_hand and any(map(_WEIGHT.fullmatch, names(one.node))):  # no ε reaches the norm of a weight
        return False
    units = all(side.unit for side in one.sides)  # as of pictures and their captions
    words = _ALIGNS if one.by_hand and not units else _COMPARES
    return any(words.search(word) for word in (scope.name, *(a.arg for a in scope.args.args)))


def _zeroed(script: Script) -> Iterator[tuple[Guard, ast.AST]]:
    """Yield comparisons of norms with a small number that make a cosine 0 where the norms are smaller."""
    for node in script.of(ast.If, ast.IfExp, ast.Call, ast.Assign):
        match node:
            case ast.If(test=test, body=body, orelse=other):
                ways = (body, other or _after(script, node))
            case ast.IfExp(test=test, body=one, orelse=other):
                ways = ([one], [other])
            case ast.Call(args=[test, one, other]) if method(node) == "where":
                ways = ([one], [other])
            case ast.Assign(targets=[ast.Subscript(slice=test)], value=value):  # cosines[norms < eps] = 0
                ways = ([value], [])
            case _:
                continue
        for guard in _guards(script, test):
            if _is_zero(ways[0] if guard.small else ways[1]):
                yield guard, script.scope(node)


def _guards(script: Script, test: ast.AST) -> Iterator[Guard]:
    """Yield the comparisons of norms in a test, also by the name that they were given."""
    for node in ast.walk(test):
        compared = node if isinstance(node, ast.Compare) else script.flow.of(node).made
        if compared in script.flow.guards and isinstance(node, (ast.Compare, ast.Name)):
            yield script.flow.guards[compared]


def _after(script: Script, node: ast.If) -> list[ast.stmt]:
    """Return what happens where a test without an `else` fails: what follows it, or what was there before."""
    block = next(b for _, b in ast.iter_fields(script.parents[node]) if isinstance(b, list) and node in b)
    at = block.index(node)
    ends = isinstance(node.body[-1], (ast.Return, ast.Continue, ast.Raise))
    return block[at + 1 : at + 2] if ends else block[:at]


def _is_zero(way: list[ast.expr] | list[ast.stmt]) -> bool:
    """Return whether a zero is what comes out: `0.0`, `out[i] = 0`, `return torch.tensor(0.0)`, a table of zeros."""
    for part in way:
        value = getattr(part, "value", None) if isinstance(part, (ast.Assign, ast.Return, ast.Expr)) else part
        if isinstance(value, ast.Call) and method(value) in ("append", "tensor", "array", "float") and value.args:
            value = value.args[0]
        if isinstance(value, ast.Call) and method(value) in ("tensor", "array", "float") and value.args:
            value = value.args[0]
        named = method(value) in ("zeros", "zeros_like") or (isinstance(value, ast.expr) and number(value) == 0)
        if named and literal(value) is not False:
            return True
    return False


NORM = 1e-10  # of the gradient: what DFA leaves of it under a terminal norm


@dataclass(frozen=True)
class Epsilon:
    """How the installed `F.cosine_similarity` behaves: its ε, and whether it holds up each norm or their product."""

    value: float
    each_norm: bool


def measured_epsilon(dtype: torch.dtype | None = None) -> Epsilon:
    """Return the ε the function itself shows: the cosine of parallel vectors is 1, so at the floor it says ‖b‖/ε."""
    import torch
    import torch.nn.functional as F

    unit = torch.zeros(1, 4, dtype=dtype or torch.float32)
    unit[0, 0] = 1.0
    tiny = 1e-12 * unit
    held = [float(F.cosine_similarity(scale * unit, tiny)) for scale in (1.0, 100.0)]  # walkback: ignore[P02]
    # With ε on the product a hundredfold credit lifts the cosine a hundredfold; with ε on each norm it does nothing.
    return Epsilon(1e-12 / held[0], each_norm=held[1] < 2 * held[0])


def vectors(seed: int) -> tuple[Tensor, Tensor]:
    """Return (512, 64) credits of norm 1 and gradients of norm 1e-10, with a cosine of about 0.7."""
    import torch
    import torch.nn.functional as F

    draw = torch.Generator().manual_seed(seed)
    g, other = (torch.randn(512, 64, generator=draw) for _ in range(2))
    a = F.normalize(g + other, dim=1)
    return a, NORM * F.normalize(g, dim=1)


def show(seed: int = 0) -> Shown:
    """Return the mean cosine, by torch and in float64 without a floor."""
    import torch

    a, g = vectors(seed)
    wrong = float(torch.nn.functional.cosine_similarity(a, g).mean())  # walkback: ignore[P02]
    epsilon = measured_epsilon()
    how = "each norm" if epsilon.each_norm else "the product of the norms"
    return Shown(
        "cosine at ‖g‖ = 1e-10",
        wrong,
        cosine(a, g),
        f"torch {torch.__version__} holds {how} up at ε = {epsilon.value:.1e} (measured), so the cosine comes out "
        f"‖g‖/ε as large as it is. float64 does not help: its ε is {measured_epsilon(torch.float64).value:.1e} too.",
    )
