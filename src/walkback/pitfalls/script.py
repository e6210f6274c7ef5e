"""What detectors ask about a script: where a name comes from, what it holds, which loop it stands in."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from walkback.pitfalls.nodes import (
    keyword,
    last,
    method,
    owner,
    targets,
)

N = TypeVar("N", bound=ast.AST)
Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

GRADIENT = re.compile(r"(^|_)(g|gs|grads?|gradients?|credits?)\d*(_|$)", re.IGNORECASE)
_FEEDBACK = re.compile(
    r"Bs?_?\d*|B_(hidden|out|fb|rand|layer|mat)\w*|\w+_B\d*|(\w+_)?fb(_?(w|mat|weight)\w*)?\d*|.*feedback.*|"
    r"backward_(weight|mat)\w*|(random|fixed|backward)_B\d*|(W|w|weights?)_(back|bwd|backward|fb|fa|dfa)\d*",
    re.DOTALL,
)
LABELS = re.compile(r"(^|_)(ys?|labels?|targets?)\d*(_|$)")
MODEL = re.compile(r"(\w+_)?(model|net|network|mlp|resmlp|resnet|cnn|vit|classifier|student)\d*")
# What is sent to a layer, by the rule it is of: beside a gradient, the other side of a comparison.
SENT = re.compile(
    r"(^|_)(bp|backprop|bptt|d?fa|drtp|dtp|ep|eqprop|pc|dkp|kp|teaching|pseudo_?grads?)\d*(_|$)", re.IGNORECASE
)
NULL = re.compile(r"fresh|null|control|draw|random_baseline|redraw|shuffl", re.IGNORECASE)
_RANDOM = {"randn", "rand", "normal", "randn_like", "rand_like", "normal_", "uniform", "uniform_", "standard_normal"}

_STATE = re.compile(r"(^|_)(h|hs|hiddens?|states?|streams?|activations?)\d*(_|$)")
_INPUT = re.compile(r"(^|_)(inputs?|images?|imgs|data|dataset|loader|dataloader|batches)\d*(_|$)")
_MADE = {
    *("randn", "rand", "randint", "normal", "standard_normal", "uniform", "ones", "zeros", "full", "eye", "arange"),
    *("linspace", "tensor", "as_tensor", "from_numpy", "array", "load"),
}

COSINES = ("torch.nn.functional.cosine_similarity", "torch.cosine_similarity")
_COSINE_NAME = re.compile(
    r"(\w+_)?(cos(ines?)?(_?sims?(ilarity)?)?|align(ment)?s?|angles?)(_(between|of|deg|degrees|rad|fn|score|sim|rows?))?",
    re.IGNORECASE,
)
_OF_NUMBERS = ("torch", "numpy", "math", "cmath", "jax.numpy")  # their cos is that of an angle
# Methods and functions that leave a gradient a gradient.
KEEP = {
    *("flatten", "view", "reshape", "permute", "transpose", "squeeze", "unsqueeze", "contiguous", "detach", "clone"),
    *("double", "float", "half", "bfloat16", "to", "type", "type_as", "astype", "cpu", "cuda", "numpy", "mean", "sum"),
}
_GATHER = (
    *("torch.cat", "torch.stack", "torch.concat", "torch.flatten", "torch.ravel", "list", "tuple", "reversed"),
    *("numpy.asarray", "numpy.concatenate", "numpy.stack", "numpy.array", "numpy.ravel"),
    "torch.nn.utils.parameters_to_vector",
)
# Functions that hand gradients back, as bp_grads(net, x, y) or collect_gradients(net).
_GIVES_GRADIENTS = re.compile(
    r"(get|compute|calc(ulate)?|collect|take|flat(ten)?|bp|backprop|d?fa|ep|true|exact|reference|layer|read|grab|extract)_"
    r"(\w+_)?(grads?|gradients?|credits?)(_(of|for|at|wrt|vector|list|dict)\w*)?"
)


@dataclass(frozen=True, eq=False)
class Assigned:
    """A value that a name gets: at which line it is made, from which line on it is seen."""

    made: int
    seen: int
    value: ast.AST


class Script:
    """A syntax tree with parents, scopes, imports, and what was assigned where."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.nodes = list(ast.walk(tree))
        self.parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}
        self._scopes: dict[ast.AST, Scope] = {}
        self._inside: dict[Scope, list[ast.AST]] = {}
        for node in self.nodes:  # parents before their children
            up = self.parents.get(node, tree)
            scope = up if isinstance(up, _FUNCTIONS) else self._scopes.get(up, tree)
            self._scopes[node] = scope
            if node is not scope:
                self._inside.setdefault(scope, []).append(node)
        self.aliases = dict(_imports(self.nodes))
        self._assigned: dict[tuple[Scope, str], list[Assigned]] = {}
        self._put: dict[tuple[Scope, str], list[Assigned]] = {}
        for node in self.nodes:
            self._note(node)

    # -- the tree --------------------------------------------------------------------------------------------

    def of(self, *kinds: type[N]) -> Iterator[N]:
        return (node for node in self.nodes if isinstance(node, kinds))

    def calls(self, within: ast.AST | None = None) -> Iterator[ast.Call]:
        return self.of(ast.Call) if within is None else (n for n in ast.walk(within) if isinstance(n, ast.Call))

    def has_call(self, *methods: str) -> bool:
        """Return whether something of one of these names is called anywhere."""
        return any(method(call) in methods for call in self.calls())

    def scopes(self) -> Iterator[tuple[Scope, list[ast.AST]]]:
        """Yield the module and every function, each with the nodes inside."""
        for scope in (self.tree, *self.of(ast.FunctionDef, ast.AsyncFunctionDef)):
            yield scope, self.inside(scope)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the parents of a node, from the nearest to the module."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def scope(self, node: ast.AST) -> Scope:
        """Return the function a node stands in, or the module."""
        return self._scopes.get(node, self.tree)

    def inside(self, scope: Scope) -> list[ast.AST]:
        """Return the nodes of a scope, without those of functions defined in it."""
        return self._inside.get(scope, [])

    def name(self, node: ast.AST) -> str:
        """Return a dotted name with its imports resolved, F.normalize as torch.nn.functional.normalize; else ""."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            left = self.name(node.value)
            return f"{left}.{node.attr}" if left else ""
        return ""

    # -- what an expression holds ----------------------------------------------------------------------------

    def is_gradient(self, node: ast.AST) -> bool:
        """Return whether it is a gradient or credit, by its name or by where it comes from."""
        return Kinds(self, node, _gradient).holds(node)

    def is_normalised(self, node: ast.AST) -> bool:
        return Kinds(self, node, _normalised).holds(node)

    def is_data(self, node: ast.AST) -> bool:
        """Return whether it is drawn, written down or read from a data set, so no state or gradient of a network."""
        return Kinds(self, node, _data).holds(node)

    def without_gradients(self, node: ast.AST) -> bool:
        """Return whether it is inside `with torch.no_grad()` or a function that it decorates."""
        off = ("no_grad", "inference_mode")
        for up in self.above(node):
            marks = [item.context_expr for item in up.items] if isinstance(up, (ast.With, ast.AsyncWith)) else []
            marks += up.decorator_list if isinstance(up, _FUNCTIONS) else []
            if any(self.name(m.func if isinstance(m, ast.Call) else m).endswith(off) for m in marks):
                return True
        return False

    def norm_of(self, call: ast.Call) -> ast.expr | None:
        """Return what a norm is taken of; None for another call."""
        called = self.name(call.func)
        if called == "torch.norm" or called.endswith(("linalg.norm", "linalg.vector_norm")):
            return call.args[0] if call.args else None
        return owner(call) if method(call) == "norm" else None

    def differentiates(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and self.name(node.func).endswith("autograd.grad")

    def is_random(self, node: ast.AST) -> bool:
        """Return whether something in it is drawn."""
        return any(method(call) in _RANDOM for call in self.calls(node))

    def makes_cosine(self, node: ast.AST | None) -> bool:
        """Return whether it is torch.nn.CosineSimilarity(…)."""
        return isinstance(node, ast.Call) and self.name(node.func).endswith("nn.CosineSimilarity")

    def cosine_modules(self) -> dict[str, ast.expr]:
        """Return how each torch.nn.CosineSimilarity is written where it is called, and where it was made."""
        made = (node for node in self.of(ast.Assign) if self.makes_cosine(node.value))
        return {ast.dump(t).replace("Store()", "Load()"): node.value for node in made for t in node.targets}

    def is_cosine_call(self, node: ast.AST) -> bool:
        """Return whether it is a call of torch's cosine, or of a function that is named like one."""
        if not isinstance(node, ast.Call):
            return False
        called = self.name(node.func)
        package, _, name = called.rpartition(".")
        named = _COSINE_NAME.fullmatch(name or last(node.func)) is not None
        return called in COSINES or (named and package not in _OF_NUMBERS)

    def assignments(self, scope: Scope, name: str) -> list[Assigned]:
        return self._assigned.get((scope, name), [])

    def last_assigned(self, node: ast.AST) -> ast.AST | None:
        """Return what a name was assigned last before it is used here; None of what is no such name."""
        if not isinstance(node, ast.Name):
            return None
        made = [a for a in self.assignments(self.scope(node), node.id) if a.seen <= getattr(node, "lineno", 0)]
        return max(made, key=lambda a: a.seen).value if made else None

    def put_into(self, scope: Scope, name: str) -> list[Assigned]:
        """Return what is put into a list or dict of this name: by append, by `d[k] = …`, or by `l += […]`."""
        return self._put.get((scope, name), [])

    def _note(self, node: ast.AST) -> None:
        scope = self.scope(node)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for target in targets(node):
                self._bind(target, node.value, scope, node.lineno, (node.end_lineno or node.lineno) + 1)
                if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                    self._fill(target.value.id, node.value, scope, node.lineno)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            self._bind(node.target, node.iter, scope, node.lineno, node.lineno)
        elif isinstance(node, ast.Call) and method(node) in ("append", "insert") and node.args:
            if isinstance(of := owner(node), ast.Name):
                self._fill(of.id, node.args[-1], scope, node.lineno)
        elif isinstance(node, ast.AugAssign) and isinstance(node.value, ast.List) and isinstance(node.target, ast.Name):
            for part in node.value.elts:
                self._fill(node.target.id, part, scope, node.lineno)
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):  # h /= h.norm(…)
            if isinstance(node.target, ast.Name):
                divided = ast.BinOp(ast.Name(node.target.id, ast.Load()), node.op, node.value)
                self._bind(node.target, divided, scope, node.lineno, (node.end_lineno or node.lineno) + 1)
        elif isinstance(node, ast.comprehension):  # its element stands before it
            first = next(up for up in self.above(node) if isinstance(up, ast.expr)).lineno
            self._bind(node.target, node.iter, scope, first, first)

    def _fill(self, name: str, value: ast.AST, scope: Scope, line: int) -> None:
        self._put.setdefault((scope, name), []).append(Assigned(line, line + 1, value))

    def _bind(self, target: ast.AST, value: ast.AST, scope: Scope, made: int, seen: int) -> None:
        if isinstance(target, ast.Starred):
            target = target.value
        if isinstance(target, ast.Name):
            self._assigned.setdefault((scope, target.id), []).append(Assigned(made, seen, value))
        elif isinstance(target, (ast.Tuple, ast.List)):
            for element, part in zip(target.elts, self._parts(value, len(target.elts))):
                self._bind(element, part, scope, made, seen)

    def _parts(self, value: ast.AST, count: int) -> list[ast.AST]:
        """Return what each of `count` targets gets: of zip and enumerate their own part, of anything else all of it."""
        parts: list[ast.AST] = []
        if isinstance(value, (ast.Tuple, ast.List)):
            parts = list(value.elts)
        elif isinstance(value, ast.Call) and self.name(value.func) == "zip":
            parts = list(value.args)
        elif isinstance(value, ast.Call) and self.name(value.func) == "enumerate":
            parts = [ast.Constant(0), *value.args[:1]]
        return parts if len(parts) == count else [value] * count


class Kinds:
    """Whether an expression holds a kind of value, following names to their last assignment before the use."""

    def __init__(self, script: Script, node: ast.AST, kind: Callable[[Kinds, ast.AST], bool | None]) -> None:
        self.script, self._kind = script, kind
        self.scope, self.line = script.scope(node), getattr(node, "lineno", 0)
        self._open: list[Assigned] = []
        self._known: dict[Assigned, bool] = {}  # each is asked once: x1 = x0 + x0, x2 = x1 + x1, … doubles otherwise

    def holds(self, node: ast.AST) -> bool:
        """Return whether a node holds it; where the kind has no answer, what passes a value on is looked through."""
        answer = self._kind(self, node)
        if answer is not None:
            return answer
        match node:
            case ast.ListComp(elt=of) | ast.SetComp(elt=of) | ast.GeneratorExp(elt=of):
                return self.holds(of)
            case ast.Call(func=ast.Attribute(attr=called, value=of)) if called in KEEP:
                return self.holds(of)
        return False

    def assigned(self, name: str) -> bool | None:
        """Return whether it holds of the last assignment to a name before here; None without one, as a parameter."""
        before = [a for a in self.script.assignments(self.scope, name) if a.seen <= self.line and a not in self._open]
        if not before:
            return None
        last = max(before, key=lambda a: a.seen)
        if last in self._known:
            return self._known[last]
        self._open.append(last)
        try:
            values = self.script.put_into(self.scope, name) if _is_empty(last.value) else [last]
            self._known[last] = any(self._at(one) for one in values if one.seen <= self.line)
            return self._known[last]
        finally:
            self._open.pop()

    def _at(self, one: Assigned) -> bool:
        """Return whether an assigned value holds it, with names as they were at that line."""
        line, self.line = self.line, one.made
        try:
            return self.holds(one.value)
        finally:
            self.line = line


def _gradient(kinds: Kinds, node: ast.AST) -> bool | None:
    match node:
        case ast.Name(id=name):
            return GRADIENT.search(name) is not None or bool(kinds.assigned(name))
        case ast.Attribute(attr=name):
            return GRADIENT.search(name) is not None
        case ast.Subscript(value=of) | ast.Starred(value=of) | ast.UnaryOp(operand=of):
            return kinds.holds(of)
        case ast.BinOp(left=left, right=right):
            return not _normalised(kinds, node) and (kinds.holds(left) or kinds.holds(right))
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return any(map(kinds.holds, parts))
        case ast.Call(func=called, args=parts) if kinds.script.name(called) in _GATHER:
            return any(map(kinds.holds, parts))
        case ast.Call() if kinds.script.differentiates(node) or _GIVES_GRADIENTS.fullmatch(method(node)):
            return True
    return None


def _normalised(kinds: Kinds, node: ast.AST) -> bool | None:
    match node:
        case ast.Name(id=name):
            return bool(kinds.assigned(name))
        case ast.BinOp(op=ast.Div(), left=left, right=right):
            below = kinds.script.last_assigned(right) or right
            norms = [kinds.script.norm_of(call) for call in kinds.script.calls(below)]
            return any(of is not None and ast.dump(of) == ast.dump(left) for of in norms)
        case ast.Call(func=called) if kinds.script.name(called).endswith("functional.normalize"):
            return True
        case ast.Call(func=called, args=parts) if kinds.script.name(called).endswith(("layer_norm", "rms_norm")):
            return len(parts) < 3 and keyword(node, "weight") is None
        case ast.Call(func=ast.Name(id=called)):  # of the script: def unit(v): return v / v.norm()
            made = [f for f in kinds.script.of(ast.FunctionDef) if f.name == called]
            ends = [r.value for f in made for r in ast.walk(f) if isinstance(r, ast.Return) and r.value is not None]
            return len(ends) == 1 and isinstance(ends[0], (ast.BinOp, ast.Call)) and _is_unit(kinds.script, ends[0])
    return None


def _is_unit(script: Script, node: ast.AST) -> bool:
    """Return whether something is divided by its norm right here."""
    match node:
        case ast.BinOp(op=ast.Div(), left=left, right=right):
            return any(
                (of := script.norm_of(c)) is not None and ast.dump(of) == ast.dump(left) for c in script.calls(right)
            )
        case ast.Call(func=called):
            return script.name(called).endswith("functional.normalize")
    return False


def _data(kinds: Kinds, node: ast.AST) -> bool | None:
    match node:
        case ast.Name(id=name):
            if _STATE.search(name) or GRADIENT.search(name):
                return False
            assigned = kinds.assigned(name)
            return _INPUT.search(name) is not None if assigned is None else assigned
        case ast.Subscript(value=of) | ast.Starred(value=of):
            return kinds.holds(of)
        case ast.BinOp(left=left, right=right):
            if _normalised(kinds, node):
                return kinds.holds(left)
            return all(isinstance(side, ast.Constant) or kinds.holds(side) for side in (left, right))
        case ast.Call(func=called, args=parts):
            name = kinds.script.name(called)
            if name.endswith("functional.normalize"):
                return bool(parts) and kinds.holds(parts[0])
            if name.startswith(("torch.", "numpy.")):
                return name.rpartition(".")[2] in _MADE
    return None


def _is_empty(node: ast.AST) -> bool:
    """Return whether it is an empty list or dict, to be filled."""
    called = last(node.func) if isinstance(node, ast.Call) else ""
    made = called == "defaultdict" or (called in ("list", "dict", "OrderedDict") and not node.args)  # type: ignore[attr-defined]
    return made or (isinstance(node, ast.List) and not node.elts) or (isinstance(node, ast.Dict) and not node.keys)


def is_feedback(word: str) -> bool:
    """Return whether something is called as feedback matrices are."""
    return _FEEDBACK.fullmatch(word) is not None


def _imports(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield alias.asname or first, alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield (alias.asname or alias.name), f"{node.module}.{alias.name}"
