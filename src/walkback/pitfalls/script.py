"""What detectors ask about a script: where a name comes from, what it holds, which loop it stands in."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, TypeVar

from walkback.pitfalls.calls import COSINE_NAME, COSINES
from walkback.pitfalls.nodes import last, method, owner, targets
from walkback.pitfalls.project import Project
from walkback.pitfalls.values import COSINE, DATA, GRAD, SENT

if TYPE_CHECKING:
    from walkback.pitfalls.flow import Flow

N = TypeVar("N", bound=ast.AST)
Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

_FEEDBACK = re.compile(
    r"Bs?_?\d*|B_(hidden|out|fb|rand|layer|mat)\w*|\w+_B\d*|(\w+_)?fb(_?(w|mat|weight)\w*)?\d*|.*feedback.*|"
    r"backward_(weight|mat)\w*|(random|fixed|backward)_B\d*|(W|w|weights?)_(back|bwd|backward|fb|fa|dfa)\d*",
    re.DOTALL,
)
LABELS = re.compile(r"(^|_)(ys?|labels?|targets?)\d*(_|$)")
MODEL = re.compile(r"(\w+_)?(model|net|network|mlp|resmlp|resnet|cnn|vit|classifier|student)\d*")
NULL = re.compile(r"fresh|null|control|draw|random_baseline|redraw|shuffl", re.IGNORECASE)
_RANDOM = {"randn", "rand", "normal", "randn_like", "rand_like", "normal_", "uniform", "uniform_", "standard_normal"}

_OF_NUMBERS = ("torch", "numpy", "math", "cmath", "jax.numpy")  # their cos is that of an angle


@dataclass(frozen=True, eq=False)
class Assigned:
    """A value that a name gets: at which line it is made, from which line on it is seen."""

    made: int
    seen: int
    value: ast.AST


class Script:
    """A syntax tree with parents, scopes, imports, and what was assigned where."""

    def __init__(self, tree: ast.Module, path: str = "", project: Project | None = None) -> None:
        self.tree, self.stem = tree, PurePath(path).stem
        self.project = Project() if project is None else project
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
        self._reads: dict[str, list[ast.Name]] = {}
        self._fields: dict[str, list[ast.Attribute]] = {}
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

    def lines(self, node: ast.AST) -> range:
        """Return the lines of the statement that a node stands in; of one with a body, the node's own."""
        whole = next((up for up in (node, *self.above(node)) if isinstance(up, ast.stmt)), node)
        of = node if hasattr(whole, "body") else whole
        return range(getattr(of, "lineno", 1), (getattr(of, "end_lineno", None) or 0) + 1)

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

    @cached_property
    def flow(self) -> Flow:
        """What each expression holds, followed through names, attributes and functions."""
        from walkback.pitfalls.flow import Flow

        return Flow(self)

    def is_gradient(self, node: ast.AST) -> bool:
        """Return whether it is a gradient or credit, by its name or by where it comes from."""
        value = self.flow.of(node)
        return not value.norms and not value.unit and COSINE not in value.kinds and self.flow.has(value, GRAD)

    def is_signal(self, node: ast.AST) -> bool:
        """Return whether it is a gradient, or what a rule sends to a layer."""
        value = self.flow.of(node)
        return not value.norms and COSINE not in value.kinds and self.flow.has(value, GRAD, SENT)

    def is_cosine(self, node: ast.AST) -> bool:
        """Return whether it is a cosine, or made of some."""
        return COSINE in self.flow.of(node).kinds

    def is_normalised(self, node: ast.AST) -> bool:
        return self.flow.of(node).unit

    def is_data(self, node: ast.AST) -> bool:
        """Return whether it is drawn, written down or read from a data set, so no state or gradient of a network."""
        return DATA in self.flow.of(node).kinds

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
        named = COSINE_NAME.fullmatch(name or last(node.func)) is not None
        return called in COSINES or (named and package not in _OF_NUMBERS)

    def assignments(self, scope: Scope, name: str) -> list[Assigned]:
        return self._assigned.get((scope, name), [])

    def last_assigned(self, node: ast.AST) -> ast.AST | None:
        """Return what a name was assigned last before it is used here; None of what is no such name."""
        if not isinstance(node, ast.Name):
            return None
        made = [a for a in self.assignments(self.scope(node), node.id) if a.seen <= getattr(node, "lineno", 0)]
        return max(made, key=lambda a: a.seen).value if made else None

    def follow(self, node: ast.AST) -> ast.AST:
        """Return what a name was assigned last before its use, else the node itself."""
        return self.last_assigned(node) or node

    def reads(self, name: str) -> list[ast.Name]:
        """Return where a name is read, anywhere in the file."""
        return self._reads.get(name, [])

    def fields(self, name: str) -> list[ast.Attribute]:
        """Return where an attribute is read, anywhere in the file and of whatever object."""
        return self._fields.get(name, [])

    def put_into(self, scope: Scope, name: str) -> list[Assigned]:
        """Return what is put into a list or dict of this name: by append, by `d[k] = …`, or by `l += […]`."""
        return self._put.get((scope, name), [])

    def _note(self, node: ast.AST) -> None:
        scope = self.scope(node)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            self._reads.setdefault(node.id, []).append(node)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            self._fields.setdefault(node.attr, []).append(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
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
