"""Which calls are forward passes of a network, and which make it other in training."""

from __future__ import annotations

import ast
import re

from walkback.pitfalls.nodes import argument, last, literal, method, number
from walkback.pitfalls.script import MODEL

_VERB = re.compile(r"(load|save|build|make|create|get|init|setup|set_up|train|test|eval|fit|define|prepare|restore)_")
_INPUTS = {"x", "inputs", "input_ids", "pixel_values", "images", "data", "return_hidden", "output_hidden_states"}


def is_pass(call: ast.Call) -> bool:
    """Return whether a network is called, not a function that loads, builds or trains one."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "forward":
        return last(call.func.value) != "" and not isinstance(call.func.value, ast.Call)
    name = last(call.func)
    given = any(number(a) is None for a in call.args[:1]) or any(
        k.arg is None or k.arg in _INPUTS for k in call.keywords
    )
    called = MODEL.fullmatch(name) is not None or (isinstance(call.func, ast.Name) and name == "self")
    return called and not _VERB.match(name) and given


def drops_out(call: ast.Call) -> bool:
    """Return whether it makes or applies dropout that is not zero."""
    name = method(call).lower()
    share = argument(call, 1 if name == "dropout" and "." in ast.unparse(call.func) else 0, "p")
    if "dropout" in name:
        off = literal(argument(call, 2, "training")) is False
        return not off and literal(share) != 0
    given = next((k.value for k in call.keywords if k.arg and "dropout" in k.arg), None)
    return given is not None and literal(given) != 0
