"""What detectors ask about a script: where a name comes from, what it holds, which loop it stands in."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOOPS = (ast.For, ast.AsyncFor)
Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp)

GRADIENT = re.compile(r"(^|_)(g|gs|grads?|gradients?|credits?)\d*(_|$)", re.IGNORECASE)
FEEDBACK = re.compile(r"Bs?\d*|fb|.*feedback.*|backward_weights?", re.DOTALL)
LABELS = re.compile(r"(^|_)(ys?|labels?|targets?)\d*(_|$)")
MODEL = re.compile(r"(\w+_)?(model|net|network)\d*")

COSINES = ("torch.nn.functional.cosine_similarity", "torch.cosine_similarity")
_COSINE_NAME = re.compile(r"cos|cosine|cos_?sim|cosine_?similarity|alignment")
# Methods and functions that leave a gradient a gradient.
_KEEP = {
    *("flatten", "view", "reshape", "permute", "transpose", "squeeze", "unsqueeze", "contiguous", "detach", "clone"),
    *("double", "float", "half", "bfloat16", "to", "type", "type_as", "astype", "cpu", "cuda", "numpy", "mean", "sum"),
}
_GATHER = ("torch.cat", "torch.stack", "torch.concat", "torch.flatten", "list", "tuple", "reversed", "numpy.asarray")


class Script:
    """A syntax tree with parents, scopes, imports, and what was assigned where."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.nodes = list(ast.walk(tree))
        self.parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}
        self.aliases = dict(_imports(self.nodes))
        self._assigned: dict[tuple[Scope, str], list[tuple[int, Callable[[Kinds], bool]]]] = {}
        for node in self.nodes:
            self._note(node)

    # -- the tree --------------------------------------------------------------------------------------------

    def of(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        """All nodes of some kinds."""
        return (node for node in self.nodes if isinstance(node, kinds))

    def calls(self, within: ast.AST | None = None) -> Iterator[ast.Call]:
        """All calls, of the script or below a node."""
        nodes = self.nodes if within is None else ast.walk(within)
        return (node for node in nodes if isinstance(node, ast.Call))

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Parents, from the nearest to the module."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def scope(self, node: ast.AST) -> Scope:
        """The function a node stands in, or the module."""
        return next((up for up in self.above(node) if isinstance(up, _FUNCTIONS)), self.tree)

    def inside(self, scope: Scope) -> Iterator[ast.AST]:
        """Nodes of a scope, without those of functions defined in it."""
        return (node for node in ast.walk(scope) if node is not scope and self.scope(node) is scope)

    def name(self, node: ast.AST) -> str:
        """A dotted name with its imports resolved, F.normalize as torch.nn.functional.normalize; else ""."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            left = self.name(node.value)
            return f"{left}.{node.attr}" if left else ""
        return ""

    # -- what an expression holds ----------------------------------------------------------------------------

    def is_gradient(self, node: ast.AST) -> bool:
        """A gradient or credit, by its name or by where it comes from."""
        return Kinds(self, node, _gradient).holds(node)

    def is_normalised(self, node: ast.AST) -> bool:
        """Divided by its own norm."""
        return Kinds(self, node, _normalised).holds(node)

    def is_cosine_call(self, node: ast.AST) -> bool:
        """A call of torch's cosine, or of a function that is named like one."""
        if not isinstance(node, ast.Call):
            return False
        called = self.name(node.func)
        return called in COSINES or _COSINE_NAME.fullmatch(called.rpartition(".")[2]) is not None

    def assignments(self, scope: Scope, name: str) -> list[tuple[int, Callable[[Kinds], bool]]]:
        """(line, what it holds) of every assignment to a name in a scope."""
        return self._assigned.get((scope, name), [])

    def _note(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind(target, node.value, self.scope(node), node.lineno)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._bind(node.target, node.value, self.scope(node), node.lineno)
        elif isinstance(node, _LOOPS):
            self._bind(node.target, node.iter, self.scope(node), node.lineno)
        elif isinstance(node, ast.comprehension):
            self._bind(node.target, node.iter, self.scope(node), node.iter.lineno)

    def _bind(self, target: ast.AST, value: ast.AST, scope: Scope, line: int) -> None:
        if isinstance(target, ast.Starred):
            target = target.value
        if isinstance(target, ast.Name):
            self._assigned.setdefault((scope, target.id), []).append((line, lambda kinds: kinds.holds(value)))
        elif isinstance(target, (ast.Tuple, ast.List)):
            zipped = isinstance(value, ast.Call) and self.name(value.func) == "zip"
            parts = value.args if zipped else value.elts if isinstance(value, (ast.Tuple, ast.List)) else None
            if isinstance(value, ast.Call) and self.name(value.func) == "enumerate" and len(target.elts) == 2:
                self._bind(target.elts[1], value.args[0], scope, line) if value.args else None
                return
            for i, element in enumerate(target.elts):
                part = value if parts is None or len(parts) != len(target.elts) else parts[i]
                self._bind(element, part, scope, line)


class Kinds:
    """Whether an expression holds a kind of value, following names to their last assignment before the use."""

    def __init__(self, script: Script, node: ast.AST, kind: Callable[[Kinds, ast.AST], bool]) -> None:
        self.script, self._kind = script, kind
        self.scope, self.line = script.scope(node), getattr(node, "lineno", 0)
        self._open: set[str] = set()

    def holds(self, node: ast.AST) -> bool:
        """Does it?"""
        return self._kind(self, node)

    def assigned(self, name: str) -> bool | None:
        """Of the last assignment to a name; None where it has none, as a parameter."""
        if name in self._open:
            return None
        found = [a for a in self.script.assignments(self.scope, name) if a[0] <= self.line]
        if not found:
            return None
        self._open.add(name)
        line, (self.line, value) = self.line, max(found, key=lambda a: a[0])
        try:
            return value(self)
        finally:
            self._open.discard(name)
            self.line = line


def _gradient(kinds: Kinds, node: ast.AST) -> bool:
    holds = kinds.holds
    if isinstance(node, ast.Name):
        return GRADIENT.search(node.id) is not None or bool(kinds.assigned(node.id))
    if isinstance(node, ast.Attribute):
        return GRADIENT.search(node.attr) is not None
    if isinstance(node, (ast.Subscript, ast.Starred)):
        return holds(node.value)
    if isinstance(node, ast.UnaryOp):
        return holds(node.operand)
    if isinstance(node, ast.BinOp):
        return not _normalised(kinds, node) and (holds(node.left) or holds(node.right))
    if isinstance(node, (ast.List, ast.Tuple)):
        return any(holds(element) for element in node.elts)
    if isinstance(node, _COMPREHENSIONS):
        return holds(node.elt)
    if isinstance(node, ast.Call):
        called = kinds.script.name(node.func)
        if called.endswith("autograd.grad"):
            return True
        if called in _GATHER:
            return any(holds(argument) for argument in node.args)
        return isinstance(node.func, ast.Attribute) and node.func.attr in _KEEP and holds(node.func.value)
    return False


def _normalised(kinds: Kinds, node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return bool(kinds.assigned(node.id))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return any(_is_norm_of(kinds.script, call, node.left) for call in kinds.script.calls(node.right))
    if isinstance(node, _COMPREHENSIONS):
        return kinds.holds(node.elt)
    if isinstance(node, ast.Call):
        if kinds.script.name(node.func).endswith("functional.normalize"):
            return True
        return isinstance(node.func, ast.Attribute) and node.func.attr in _KEEP and kinds.holds(node.func.value)
    return False


def _is_norm_of(script: Script, call: ast.Call, what: ast.AST) -> bool:
    called = script.name(call.func)
    of = call.func.value if isinstance(call.func, ast.Attribute) else None
    if called.endswith(("linalg.vector_norm", "linalg.norm")) or called == "torch.norm":
        of = call.args[0] if call.args else None
    elif not (isinstance(call.func, ast.Attribute) and call.func.attr == "norm"):
        return False
    return of is not None and ast.dump(of) == ast.dump(what)


def _imports(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (
                    (alias.asname or alias.name.partition(".")[0]),
                    (alias.name if alias.asname else alias.name.partition(".")[0]),
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield (alias.asname or alias.name), f"{node.module}.{alias.name}"
