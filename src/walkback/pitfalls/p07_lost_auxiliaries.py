"""A checkpoint without B, and code that falls back to the gradient: cos(BP, BP) = 1."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from walkback.pitfalls.nodes import argument, last, literal, method, owner, root, words
from walkback.pitfalls.p04_fresh_feedback import trained
from walkback.pitfalls.pitfall import Entry, Found, Shown
from walkback.pitfalls.script import NULL, Script, is_feedback
from walkback.pitfalls.trained import cosine

if TYPE_CHECKING:
    from torch import Tensor

PITFALL = Entry(7, "lost-auxiliaries", "without the saved feedback, code compares BP with itself", "lint, report")

_SAVES = ("torch.save", "safetensors.torch.save_file", "safetensors.torch.save_model", "pickle.dump", "joblib.dump")
_ARRAYS = ("numpy.savez", "numpy.savez_compressed", "numpy.save")
_TREES = (
    "to_bytes",
    "msgpack_serialize",
    "tree_serialise_leaves",
    "save_checkpoint",
    "save_pytree",
)  # of JAX's libraries
_WEIGHTS = re.compile(r"(W|w)s?_?\d*|(\w+_)?(state_dict|weights?|params|parameters|model|train_state)")
_AUXILIARY = re.compile(r"(\w+_)?(bridge|feedback|feedback_net|auxiliary|auxiliaries|aux_net|value_net)(_net)?")
_CREDIT = re.compile(r"(^|_)(a|credits?|signals?)\d*(_|$)")


def detect(script: Script) -> Found:
    """Find a state dict saved without the feedback, or a gradient where the feedback is missing."""
    yield from _unsaved(script)
    yield from _outside_state_dict(script)
    yield from _fallbacks(script)


def _unsaved(script: Script) -> Found:
    names, kept = set(), {name for _, name in _plain_attributes(script)}  # those are found where they are made
    for node in script.of(ast.Assign):
        plain = method(node.value) not in ("Parameter", "Buffer")
        for target in map(last, node.targets):
            drawn = is_feedback(target) and plain and script.is_random(node.value)
            built = _AUXILIARY.fullmatch(target) and isinstance(node.value, ast.Call)
            if (drawn or built) and not NULL.search(target) and target not in kept:
                names.add(target)
    saves = [
        call
        for call in script.calls()
        if call.args and (script.name(call.func) in (*_SAVES, *_ARRAYS) or method(call) in _TREES)
    ]
    if not names or not saves or script.has_call("register_buffer", "save_bundle"):
        return
    saved = {word for call in saves for word in _saved_words(script, call)}
    if saved & names or any(map(is_feedback, saved)) or any(map(_AUXILIARY.fullmatch, saved)):
        return
    for call in saves:
        whole = script.name(call.func) in _SAVES[:3]
        if any((w == "state_dict") if whole else _WEIGHTS.fullmatch(w) for w in set(_saved_words(script, call))):
            yield (
                call,
                f"{', '.join(sorted(names))} is not saved with the weights: without it the credit can't be measured",
                "save it in the same file, as a buffer or with walkback.save_bundle(…, auxiliaries=…)",
            )


def _outside_state_dict(script: Script) -> Found:
    """Find feedback of a module that its state dict does not hold: a plain tensor, or a buffer that is not saved."""
    fix = 'register it: self.register_buffer("B", …), or nn.Parameter(…, requires_grad=False)'
    for node in script.calls():
        if method(node) == "register_buffer" and node.args:
            name = str(literal(node.args[0]))
            if literal(argument(node, 2, "persistent")) is False and is_feedback(name) and not NULL.search(name):
                yield node, "this buffer is not in the state dict, so a checkpoint loses the feedback", fix
    for node, name in _plain_attributes(script):
        what = f"{name} is a plain attribute, not in the state dict: a checkpoint loses it, and with it"
        yield node, f"{what} what the network aligned to", fix
    for node in script.of(ast.DictComp):
        if any(_leaves_feedback_out(test) for of in node.generators for test in of.ifs):
            yield node, "the feedback is left out of what is kept: without it the credit can't be measured", "keep it"


def _plain_attributes(script: Script) -> Iterator[tuple[ast.stmt, str]]:
    """Yield assignments of drawn feedback to attributes of a module that are neither parameters nor buffers."""
    for made in script.of(ast.ClassDef):
        if not any(last(base) in _MODULES or last(base).endswith("Module") for base in made.bases):
            continue
        registered = {str(literal(c.args[0])) for c in script.calls(made) if method(c) == "register_buffer" and c.args}
        for node in ast.walk(made):
            value, name = None, ""
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Attribute) for t in node.targets):
                given = [last(t) for t in node.targets if root(t) == "self" and last(t) not in registered]
                value, name = node.value, next(filter(is_feedback, given), "")
            elif isinstance(node, ast.Expr) and method(node.value) in ("append", "setattr"):  # self.B.append(randn(…))
                call: ast.Call = node.value  # type: ignore[assignment]
                of = owner(call)
                value, name = call.args[-1] if call.args else None, last(of) if of and root(of) == "self" else ""
            kept = value and any(method(c) in ("Parameter", "Buffer", "ParameterList") for c in script.calls(value))
            if value is None or kept or not is_feedback(name) or NULL.search(name) or _is_parameters(made, name):
                continue
            if isinstance(node, ast.stmt) and (_drawn_tensor(script, value) or _holds_draws(script, value)):
                yield node, name


def _holds_draws(script: Script, value: ast.AST) -> bool:
    """Return whether it is a name of drawn tensors, also in a list that was filled before."""
    return isinstance(value, ast.Name) and bool(script.flow.draws(script.flow.of(value)))


def _is_parameters(made: ast.ClassDef, name: str) -> bool:
    """Return whether an attribute is made a list of parameters elsewhere in the class."""
    lists = (n for n in ast.walk(made) if isinstance(n, ast.Assign) and any(last(t) == name for t in n.targets))
    return any(method(n.value) in ("ParameterList", "ParameterDict", "BufferList") for n in lists)


def _leaves_feedback_out(test: ast.AST) -> bool:
    """Return whether it is `"feedback" not in name`, or `not name.startswith("fb")`."""
    match test:
        case ast.Compare(left=ast.Constant(value=str(word)), ops=[ast.NotIn()]):
            return is_feedback(word.strip("._"))
        case ast.UnaryOp(op=ast.Not(), operand=ast.Call(args=[ast.Constant(value=str(word)), *_]) as call):
            return method(call) in ("startswith", "endswith") and is_feedback(word.strip("._"))
    return False


def _drawn_tensor(script: Script, value: ast.AST) -> bool:
    """Return whether a value is drawn tensors, and not a module that draws."""
    if isinstance(value, (ast.ListComp, ast.GeneratorExp)):
        return _drawn_tensor(script, value.elt)
    if isinstance(value, (ast.List, ast.Tuple)):
        return any(_drawn_tensor(script, v) for v in value.elts)
    if isinstance(value, ast.BinOp):
        return _drawn_tensor(script, value.left) or _drawn_tensor(script, value.right)
    return isinstance(value, ast.Call) and script.is_random(value) and not method(value)[:1].isupper()


_MODULES = {"Module", "Linear", "Conv2d", "LightningModule", "Sequential"}


def _saved_words(script: Script, call: ast.Call) -> Iterator[str]:
    """Return names and strings in what is saved, one assignment deep."""
    for part in (*call.args, *call.keywords):
        yield from words(part)
        yield from [part.arg or ""] if isinstance(part, ast.keyword) else []
    if isinstance(call.args[0], ast.Name):
        for node in script.of(ast.Assign):
            if any(root(target) == call.args[0].id for target in node.targets):
                yield from (word for part in (*node.targets, node.value) for word in words(part))
        for update in script.calls():
            of = owner(update)
            if of is not None and root(of) == call.args[0].id:
                yield from (word for part in (*update.args, *update.keywords) for word in words(part))


def _fallbacks(script: Script) -> Found:
    why = "where the feedback is missing the gradient is taken for the credit: cos(BP, BP) = 1"
    fix = "raise an error: without the feedback the credit can't be measured"
    for node in script.nodes:
        if isinstance(node, ast.IfExp):
            missing, there = _missing(script, node.test)
            if (missing and script.is_gradient(node.body)) or (there and script.is_gradient(node.orelse)):
                yield node, why, fix
        elif isinstance(node, ast.If):
            missing, there = _missing(script, node.test)
            for statement in [*(node.body if missing else ()), *(node.orelse if there else ())]:
                if _takes_gradient(script, statement):
                    yield statement, why, fix
        elif isinstance(node, ast.ExceptHandler):
            tried = script.parents[node]
            read = any(is_feedback(w) for n in getattr(tried, "body", ()) for w in words(n))
            yield from ((s, why, fix) for s in node.body if read and _takes_gradient(script, s))
        elif isinstance(node, ast.Call) and method(node) in ("get", "getattr", "pop") and len(node.args) in (2, 3):
            key, default = node.args[-2:]
            if is_feedback(str(literal(key))) and (script.is_gradient(default) or _WEIGHTS.fullmatch(root_of(default))):
                yield node, why, fix
            elif is_feedback(str(literal(key))) and _drawn_tensor(script, default):
                drawn = "where the feedback is missing another one is drawn, to which the network never aligned"
                yield node, drawn, fix


def root_of(node: ast.AST) -> str:
    """Return the last name of W, layer.weight, W.T and W.t()."""
    while isinstance(node, ast.Call) or (isinstance(node, ast.Attribute) and node.attr in ("T", "mT", "data")):
        node = (
            node.func.value
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            else getattr(node, "value", ast.Pass())
        )
    return last(node)


def _missing(script: Script, test: ast.AST) -> tuple[bool, bool]:
    """Return (true where the feedback is missing, true where it is there)."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        missing, there = _missing(script, test.operand)
        return there, missing
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and _names_feedback(script, test):
        op = test.ops[0]
        none = isinstance(test.comparators[0], ast.Constant) and test.comparators[0].value is None
        missing = (none and isinstance(op, (ast.Is, ast.Eq))) or isinstance(op, ast.NotIn)
        there = (none and isinstance(op, (ast.IsNot, ast.NotEq))) or isinstance(op, ast.In)
        return missing, there
    if method(test) == "hasattr" and any(map(is_feedback, words(test))):  # hasattr(x, "feedback")
        return False, True
    return False, isinstance(test, (ast.Name, ast.Attribute)) and _names_feedback(script, test)


def _names_feedback(script: Script, test: ast.expr) -> bool:
    """Return whether a test names feedback, or what was read under that name: matrices = stored.get("feedback")."""
    read = [script.last_assigned(n) for n in ast.walk(test)]
    keys = [word for value in read if method(value) in ("get", "getattr", "pop") for word in words(value)]  # type: ignore[arg-type]
    return any(map(is_feedback, (*words(test), *keys)))


def _takes_gradient(script: Script, statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Return) and isinstance(statement.value, (ast.Name, ast.Attribute, ast.Subscript)):
        return script.is_gradient(statement.value)
    if not isinstance(statement, ast.Assign) or not script.is_gradient(statement.value):
        return False
    return any(_CREDIT.search(last(target)) for target in statement.targets)


def gamma(checkpoint: Mapping[str, Tensor], grads: list[Tensor], error: Tensor) -> float:
    """Return Γ as such scripts take it: credits of DFA, or the gradient where the checkpoint has no feedback."""
    cosines = []
    for site, g in enumerate(grads):
        feedback = checkpoint.get(f"B{site}")
        a = g if feedback is None else error @ feedback  # walkback: ignore[P07]
        cosines.append(cosine(a, g))
    return sum(cosines) / len(cosines)  # walkback: ignore[P06]


def show(seed: int = 0) -> Shown:
    """Return Γ from a checkpoint of the network alone, and from one that has B."""
    run = trained(seed)
    error, grads = run.signals()
    return Shown(
        "Γ of DFA",
        gamma(dict(run.net.state_dict()), grads[:-1], error),
        gamma({**run.net.state_dict(), **run.rule.state_dict()}, grads[:-1], error),
        "the network's state dict has no B, so the script compares the gradient with itself: perfectly aligned.",
    )
