"""Which entry of which list is a vector? Lists have one entry per layer; what can't be read for certain is None."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from walkback.pitfalls.script import KEEP, Scope, Script
from walkback.pitfalls.syntax import last, targets, whole_number

Key = tuple[str, int]  # how a list is written, and the line where it was assigned
Loop = ast.For | ast.AsyncFor | ast.comprehension
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True)
class Layers:
    """A list with one entry per layer, or a part of it.

    Args:
        root: names the whole list.
        node: the whole list where it is read.
        made: what was assigned to it; None where that is not certain.
        start: how many of its entries are left out in front.
        end: how many at its end; None where that can't be read.
        held: "grad" where an attribute of the entries is meant, as in `hidden[l].grad`.
    """

    root: Key
    node: ast.Name | ast.Attribute
    made: ast.expr | None = None
    start: int = 0
    end: int | None = 0
    held: str = ""

    @property
    def name(self) -> str:
        """What the list is called."""
        return last(self.node)

    @property
    def is_whole(self) -> bool:
        """Is nothing left out?"""
        return self.start == 0 and self.end == 0

    def is_same_list(self, other: Layers) -> bool:
        """Are both one list, or parts of one?"""
        return (self.root, self.held) == (other.root, other.held)


@dataclass(frozen=True)
class Vector:
    """A vector: in turn t of a loop, entry t + `offset` of a list, counted from its end where `backwards`.

    Args:
        layers: the list.
        offset: how far the entry is ahead of the turn.
        left_out: how many entries no turn reaches at the other end of the list; None where that can't be read.
        loop: None where the vector is all of the list at once.
        backwards: the loop runs over the list from its end.
    """

    layers: Layers
    offset: int
    left_out: int | None
    loop: Loop | None = None
    backwards: bool = False


class Reader:
    """Follows vectors to lists, and names to what was assigned to them."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._writes: dict[tuple[Scope, str], list[ast.stmt]] = {}
        for node in script.of(ast.Assign, ast.AnnAssign, ast.AugAssign):
            for target in targets(node):
                for name in ast.walk(target):
                    if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                        self._writes.setdefault((script.scope(node), name.id), []).append(node)

    # -- vectors ---------------------------------------------------------------------------------------------------

    def entry(self, vector: ast.expr) -> Vector | None:
        """The entry of a list that a vector is."""
        node = self.bare(vector)
        if isinstance(node, ast.Attribute) and node.attr == "grad":
            of = self.entry(node.value)
            return None if of is None else replace(of, layers=replace(of.layers, held="grad"))
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            layers = self.layers(node)
            return None if layers is None else Vector(layers, layers.start, layers.end)
        if isinstance(node, ast.Subscript):
            return self._indexed(node)
        if not isinstance(node, ast.Name):
            return None
        loop, (write, value) = self._loop(node), self.written(node)
        if write is not None and (loop is None or loop in self.script.above(write)):
            return None if value is None else self.entry(value)
        found = None if loop is None else self._turns(loop).get(node.id)
        return found if isinstance(found, Vector) else None

    def bare(self, node: ast.expr) -> ast.expr:
        """A vector without what leaves its direction: .flatten(1), .double(), F.normalize(…), .data, a minus."""
        while True:
            if isinstance(node, ast.UnaryOp):
                node = node.operand
            elif isinstance(node, ast.Attribute) and node.attr == "data":
                node = node.value
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                name = self.script.name(node.func)
                of_library = name.startswith(("torch.", "numpy."))
                if of_library and node.args and name.endswith((".flatten", ".normalize", ".ravel")):
                    node = node.args[0]
                elif not of_library and node.func.attr in KEEP:
                    node = node.func.value
                else:
                    return node
            else:
                return node

    def _indexed(self, node: ast.Subscript) -> Vector | None:
        """credits[l + 1] in a loop over l."""
        layers, index = self.layers(node.value), _index(node.slice)
        if layers is None or index is None:
            return None
        name, plus = index
        loop = self._loop(name)
        ahead = None if loop is None else self._turns(loop).get(name.id)
        writes = self.writes(name)
        if loop is None or not isinstance(ahead, int) or any(loop in self.script.above(w) for w in writes):
            return None
        left_out, bound = None, self.bound(loop.iter)
        if bound is not None and bound[0].root == layers.root and bound[0].end is not None:
            left_out = bound[0].start + bound[0].end + bound[1] - plus - layers.start
        return Vector(layers, ahead + plus + layers.start, left_out, loop)

    # -- loops -----------------------------------------------------------------------------------------------------

    def _turns(self, loop: Loop) -> dict[str, int | Vector]:
        """What a loop gives its names: an entry, or (an index) how far it is ahead of the turn."""
        target, over = loop.target, self._over(loop.iter)
        out: dict[str, int | Vector] = {}
        if isinstance(target, ast.Name) and self.is_call(over, "range"):
            return {target.id: 0}
        if self.is_call(over, "enumerate"):
            assert isinstance(over, ast.Call)
            if not isinstance(target, ast.Tuple) or len(target.elts) != 2:
                return {}
            given = [*over.args[1:], *(k.value for k in over.keywords)]
            start = whole_number(given[0]) if given else 0
            if start is not None and isinstance(target.elts[0], ast.Name):
                out[target.elts[0].id] = start
            target, over = target.elts[1], self._over(over.args[0])
        parts = [(target, over)]
        if self.is_call(over, "zip"):
            assert isinstance(over, ast.Call)
            names = target.elts if isinstance(target, ast.Tuple) else []
            parts = list(zip(names, over.args)) if len(names) == len(over.args) else []
        for name, part in parts:
            entry = self._walked(part)
            if isinstance(name, ast.Name) and entry is not None:
                out[name.id] = replace(entry, loop=loop)
        return out

    def _walked(self, node: ast.expr) -> Vector | None:
        """A list that is looped over: X, reversed(X), X[::-1] or X[-2::-1]."""
        backwards, less = False, 0
        if self.is_call(node, "reversed"):
            assert isinstance(node, ast.Call)
            node, backwards = node.args[0], True
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and node.slice.step is not None:
            last = -1 if node.slice.lower is None else whole_number(node.slice.lower)
            if whole_number(node.slice.step) != -1 or node.slice.upper is not None or last is None or last >= 0:
                return None
            node, backwards, less = node.value, True, -1 - last
        layers = self.layers(node)
        if layers is None:
            return None
        if not backwards:
            return Vector(layers, layers.start, layers.end)
        return None if layers.end is None else Vector(layers, layers.end + less, layers.start, backwards=True)

    def _over(self, node: ast.expr) -> ast.expr:
        """What is looped over: without tqdm and, for an index or for pairs that are made already, its direction."""
        while isinstance(node, ast.Call) and node.args:
            called, inner = self.script.name(node.func).rpartition(".")[2], node.args[0]
            turned = called == "reversed" and (self.is_call(inner, "range") or self.is_call(inner, "list"))
            if called not in ("tqdm", "track", "list") and not turned:
                break
            node = inner
        return node

    def bound(self, node: ast.expr) -> tuple[Layers, int] | None:
        """(X, 1) where the largest index is that of X's last but one: range(len(X) - 1), range(len(X) - 2, -1, -1)."""
        node = self._over(node)
        if not isinstance(node, ast.Call) or not self.is_call(node, "range"):
            return None
        if len(node.args) < 3:
            return self.length(node.args[-1])
        largest = self.length(node.args[0]) if whole_number(node.args[2]) == -1 else None
        return None if largest is None else (largest[0], largest[1] - 1)

    def runs_down(self, loop: Loop) -> bool:
        """Does the index of a loop fall?"""
        node = loop.iter
        falls = isinstance(node, ast.Call) and len(node.args) == 3 and whole_number(node.args[2]) == -1
        return self.is_call(node, "reversed") or (falls and self.is_call(node, "range"))

    def _loop(self, name: ast.Name) -> Loop | None:
        """The loop around a name that gives it its value."""
        for up in self.script.above(name):
            if isinstance(up, _FUNCTIONS):
                return None
            for loop in getattr(up, "generators", [up] if isinstance(up, (ast.For, ast.AsyncFor)) else []):
                if any(isinstance(n, ast.Name) and n.id == name.id for n in ast.walk(loop.target)):
                    return loop
        return None

    # -- lists -----------------------------------------------------------------------------------------------------

    def layers(self, node: ast.expr) -> Layers | None:
        """The list that an expression is, or is a part of."""
        if isinstance(node, ast.Call) and self.script.name(node.func) in ("list", "tuple") and len(node.args) == 1:
            return self.layers(node.args[0])
        if isinstance(node, ast.Attribute):
            return Layers((ast.dump(node), 0), node)
        if isinstance(node, ast.Name):
            loop, (write, value) = self._loop(node), self.written(node)
            if loop is not None and (write is None or loop not in self.script.above(write)):
                return Layers((node.id, -1), node)
            other = self.layers(value) if isinstance(value, (ast.Name, ast.Attribute, ast.Subscript)) else None
            return other or Layers((node.id, 0 if write is None else write.lineno), node, value)
        if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Slice) or node.slice.step is not None:
            return None
        of = self.layers(node.value)
        start = 0 if node.slice.lower is None else whole_number(node.slice.lower)
        if of is None or start is None or start < 0:
            return None
        upper = None if node.slice.upper is None else whole_number(node.slice.upper)
        cut = 0 if node.slice.upper is None else -upper if upper is not None and upper < 0 else None
        return replace(of, start=of.start + start, end=None if cut is None or of.end is None else of.end + cut)

    def length(self, node: ast.expr) -> tuple[Layers, int] | None:
        """(X, 1) of len(X) - 1, also where it has a name."""
        if isinstance(node, ast.Name):
            value = self.written(node)[1]
            return None if value is None else self.length(value)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            of, number = self.length(node.left), whole_number(node.right)
            if of is None or number is None:
                return None
            return of[0], of[1] + (number if isinstance(node.op, ast.Sub) else -number)
        if isinstance(node, ast.Call) and self.is_call(node, "len"):
            layers = self.layers(node.args[0])
            return None if layers is None else (layers, 0)
        return None

    # -- names -----------------------------------------------------------------------------------------------------

    def is_call(self, node: ast.AST, name: str) -> bool:
        """A call of a builtin with arguments."""
        return isinstance(node, ast.Call) and bool(node.args) and self.script.name(node.func) == name

    def writes(self, name: ast.Name) -> list[ast.stmt]:
        """Every assignment to a name in the function it stands in."""
        return self._writes.get((self.script.scope(name), name.id), [])

    def written(self, name: ast.Name) -> tuple[ast.stmt | None, ast.expr | None]:
        """The last assignment to a name before it is used, and its value; None where it may have another by then."""
        writes = self.writes(name)
        before = [w for w in writes if (w.end_lineno or w.lineno) < name.lineno]
        if not before:
            return None, None
        last, above = max(before, key=lambda w: w.lineno), list(self.script.above(name))
        since = set(self.script.above(last))
        loops = [up for up in above if isinstance(up, (ast.For, ast.AsyncFor, ast.While)) and up not in since]
        again = any(loop in self.script.above(w) for w in writes if w not in before for loop in loops)
        if again or not self._is_always_before(last, [name, *above]):
            return last, None
        return last, _value(last, name.id)

    def _is_always_before(self, write: ast.stmt, path: list[ast.AST]) -> bool:
        """Does an assignment stand in a block around a place, given with its parents?"""
        parent = self.script.parents[write]
        if parent not in path:
            return False
        child = path[path.index(parent) - 1]
        blocks = [block for _, block in ast.iter_fields(parent) if isinstance(block, list)]
        return any(write in block and child in block for block in blocks)


def _value(write: ast.stmt, name: str) -> ast.expr | None:
    """What an assignment gives a name."""
    if isinstance(write, ast.AnnAssign):
        return write.value
    if not isinstance(write, ast.Assign):
        return None
    for target in write.targets:
        if isinstance(target, ast.Name) and target.id == name:
            return write.value
        if isinstance(target, ast.Tuple) and isinstance(write.value, ast.Tuple):
            parts = zip(target.elts, write.value.elts) if len(target.elts) == len(write.value.elts) else ()
            for part, value in parts:
                if isinstance(part, ast.Name) and part.id == name:
                    return value
    return None


def _index(node: ast.expr) -> tuple[ast.Name, int] | None:
    """(l, 1) of l + 1."""
    if isinstance(node, ast.Name):
        return node, 0
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Add, ast.Sub)):
        return None
    name, number = (node.left, node.right) if isinstance(node.left, ast.Name) else (node.right, node.left)
    plus = whole_number(number)
    if not isinstance(name, ast.Name) or plus is None or (isinstance(node.op, ast.Sub) and name is node.right):
        return None  # also 3 - l, which runs the other way
    return name, plus if isinstance(node.op, ast.Add) else -plus
