"""Small questions about nodes of a syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def number(node: ast.AST | None) -> float | int | None:
    """Return a literal number, also with a minus; None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = number(node.operand)
        return None if value is None else -value
    value = literal(node)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def whole_number(node: ast.AST | None) -> int | None:
    """Return a literal whole number; None for anything else."""
    value = number(node)
    return value if isinstance(value, int) else None


def literal(node: ast.AST | None) -> object:
    """Return what is written down: a number, text, True, …; None for anything else."""
    return node.value if isinstance(node, ast.Constant) else None


def keyword(call: ast.Call, *names: str) -> ast.expr | None:
    """Return the value of the first keyword of a call with one of these names."""
    return next((k.value for k in call.keywords if k.arg in names), None)


def argument(call: ast.Call, at: int, *names: str) -> ast.expr | None:
    """Return an argument given by keyword, or by position."""
    value = keyword(call, *names)
    return value if value is not None or len(call.args) <= at else call.args[at]


def last(node: ast.AST | None) -> str:
    """Return the last part of a dotted name."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def method(node: ast.AST | None) -> str:
    """Return the last part of the name of what is called; "" for what is no call."""
    return last(node.func) if isinstance(node, ast.Call) else ""


def owner(call: ast.Call) -> ast.expr | None:
    """Return x of `x.method(…)`."""
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def root(node: ast.AST) -> str:
    """Return the name that an index or attribute starts from."""
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        node = node.value
    return last(node)


def names(node: ast.AST) -> Iterator[str]:
    """Yield every name and attribute at and below a node."""
    return (last(inner) for inner in ast.walk(node) if isinstance(inner, (ast.Name, ast.Attribute)))


def words(node: ast.AST) -> Iterator[str]:
    """Yield every name, attribute and string at and below a node."""
    for inner in ast.walk(node):
        if isinstance(inner, (ast.Name, ast.Attribute)):
            yield last(inner)
        elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value


def targets(node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> list[ast.expr]:
    """Return what is assigned to."""
    return node.targets if isinstance(node, ast.Assign) else [node.target]
