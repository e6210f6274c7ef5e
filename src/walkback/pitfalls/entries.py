"""Which entry of which list is a vector? Lists have one entry per layer; what can't be read for certain is None."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from walkback.pitfalls.calls import KEEP
from walkback.pitfalls.nodes import last, targets, whole_number
from walkback.pitfalls.script import Scope, Script

Key = tuple[str, int]  # how a list is written, and the line where it was assigned
Loop = ast.For | ast.AsyncFor | ast.comprehension
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True)
class LayerList:
    """A list with one entry per layer, or a part of it."""

    root: Key  # names the whole list
    node: ast.Name | ast.Attribute  # the whole list where it is read
    made: ast.expr | None = None  # what was assigned to it; None where that is not certain
    start: int = 0  # how many of its entries are left out in front
    end: int | None = 0  # how many at its end; None where that can't be read
    held: str = ""  # "grad" where an attribute of the entries is meant, as in `hidden[l].grad`

    @property
    def name(self) -> str:
        return last(self.node)

    @property
    def is_whole(self) -> bool:
        return self.start == 0 and self.end == 0

    def is_same_list(self, other: LayerList) -> bool:
        return (self.root, self.held) == (other.root, other.held)


@dataclass(frozen=True)
class Vector:
    """A vector: in turn t of a loop, entry t + `offset` of a list, counted from its end where `backwards`."""

    layers: LayerList
    offset: int
    left_out: int | None  # how many entries no turn reaches at the other end; None where that can't be read
    loop: Loop | None = None  # None where the vector is all of the list at once
    backwards: bool = False
    keys: Key | None = None  # the list of names that its entries are found by


class Reader:
    """Follows vectors to lists, and names to what was assigned to them."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._writes: dict[tuple[Scope, str], list[ast.stmt]] = {}
        for node in script.of(ast.Assign, ast.AnnAssign, ast.AugAssign):
            for name in (inner for target in targets(node) for inner in ast.walk(target)):
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                    self._writes.setdefault((script.scope(node), name.id), []).append(node)

    # -- vectors ---------------------------------------------------------------------------------------------------

    def entry(self, vector: ast.expr) -> Vector | None:
        """Return the entry of a list that a vector is."""
        match self.bare(vector):
            case ast.Attribute(attr="grad", value=of):
                entry = self.entry(of)
                return entry and replace(entry, layers=replace(entry.layers, held="grad"))
            case ast.Subscript(slice=ast.Slice()) as part:
                layers = self.layers(part)
                return layers and Vector(layers, layers.start, layers.end)
            case ast.Subscript() as part:
                return self._indexed(part)
            case ast.Name() as name:
                loop, (write, value) = self._loop(name), self.written(name)
                if write is not None and (loop is None or loop in self.script.above(write)):
                    return value and self.entry(value)
                found = loop and self._turns(loop).get(name.id)
                return found if isinstance(found, Vector) else None
        return None

    def bare(self, node: ast.expr) -> ast.expr:
        """Return a vector without what leaves its direction: .flatten(1), .double(), F.normalize(…), .data, a minus."""
        inner: ast.expr | None = node
        while inner is not None:
            node, inner = inner, None
            match node:
                case ast.UnaryOp(operand=of) | ast.Attribute(attr="data", value=of):
                    inner = of
                case ast.Call(func=ast.Attribute(attr=called, value=of)):
                    name = self.script.name(node.func)
                    if not name.startswith(("torch.", "numpy.")):
                        inner = of if called in KEEP else None
                    elif node.args and name.endswith((".flatten", ".normalize", ".ravel")):
                        inner = node.args[0]
        return node

    def _indexed(self, node: ast.Subscript) -> Vector | None:
        """Return the list and shift of credits[l + 1] in a loop over l; None where it is no such thing."""
        layers, index = self.layers(node.value), _index(node.slice)
        loop = index and self._loop(index[0])
        if layers is None or index is None or loop is None:
            return None
        name, plus = index
        ahead, bound, left_out = self._turns(loop).get(name.id), self.bound(loop.iter), None
        if isinstance(ahead, Vector) and not plus and not ahead.backwards:  # sent[name], in a loop over names
            return Vector(layers, ahead.offset, None, loop, keys=ahead.layers.root)
        if not isinstance(ahead, int) or any(loop in self.script.above(w) for w in self.writes(name)):
            return None
        if bound is not None and bound[0].root == layers.root and bound[0].end is not None:
            left_out = bound[0].start + bound[0].end + bound[1] - plus - layers.start
        return Vector(layers, ahead + plus + layers.start, left_out, loop)

    # -- loops -----------------------------------------------------------------------------------------------------

    def _turns(self, loop: Loop) -> dict[str, int | Vector]:
        """Return what a loop gives its names: an entry, or (an index) how far it is ahead of the turn."""
        target, over = loop.target, self._over(loop.iter)
        turns: dict[str, int | Vector] = {}
        if isinstance(target, ast.Name) and self.arguments_of(over, "range"):
            return {target.id: 0}
        if given := self.arguments_of(over, "enumerate"):
            if not isinstance(target, ast.Tuple) or len(target.elts) != 2:
                return {}
            start = whole_number(given[1]) if len(given) > 1 else 0
            index, target, over = *target.elts, self._over(given[0])
            if start is not None and isinstance(index, ast.Name):
                turns[index.id] = start
        parts = [(target, over)]
        if isinstance(over, ast.Call) and self.arguments_of(over, "zip"):
            names = target.elts if isinstance(target, ast.Tuple) else []
            parts = list(zip(names, over.args)) if len(names) == len(over.args) else []
        for name, part in parts:
            entry = self._walked(part)
            if isinstance(name, ast.Name) and entry is not None:
                turns[name.id] = replace(entry, loop=loop)
        return turns

    def _walked(self, node: ast.expr) -> Vector | None:
        """Return a list that is looped over: X, reversed(X), X[::-1] or X[-2::-1]."""
        backwards, less = False, 0
        if given := self.arguments_of(node, "reversed"):
            node, backwards = given[0], True
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) and node.slice.step is not None:
            last = -1 if node.slice.lower is None else whole_number(node.slice.lower)
            if whole_number(node.slice.step) != -1 or node.slice.upper is not None or last is None or last >= 0:
                return None
            node, backwards, less = node.value, True, -1 - last
        layers = self.layers(node)
        if layers is None or not backwards:
            return layers and Vector(layers, layers.start, layers.end)
        return None if layers.end is None else Vector(layers, layers.end + less, layers.start, backwards=True)

    def _over(self, node: ast.expr) -> ast.expr:
        """Return what is looped over, without tqdm and, for an index or for pairs made already, its direction."""
        while isinstance(node, ast.Call) and node.args:
            called, inner = self.script.name(node.func).rpartition(".")[2], node.args[0]
            turned = called == "reversed" and (self.arguments_of(inner, "range") or self.arguments_of(inner, "list"))
            if called not in ("tqdm", "track", "list") and not turned:
                break
            node = inner
        return node

    def bound(self, node: ast.expr) -> tuple[LayerList, int] | None:
        """Return (X, 1) where the largest index is X's last but one: range(len(X) - 1), range(len(X) - 2, -1, -1)."""
        given = self.arguments_of(self._over(node), "range")
        if len(given) < 3:
            return self.length(given[-1]) if given else None
        largest = self.length(given[0]) if whole_number(given[2]) == -1 else None
        return largest and (largest[0], largest[1] - 1)

    def runs_down(self, loop: Loop) -> bool:
        """Return whether the index of a loop falls."""
        given = self.arguments_of(loop.iter, "range")
        return bool(self.arguments_of(loop.iter, "reversed")) or (len(given) == 3 and whole_number(given[2]) == -1)

    def _loop(self, name: ast.Name) -> Loop | None:
        """Return the loop around a name that gives it its value."""
        for up in self.script.above(name):
            if isinstance(up, _FUNCTIONS):
                return None
            for loop in getattr(up, "generators", [up] if isinstance(up, (ast.For, ast.AsyncFor)) else []):
                if any(isinstance(n, ast.Name) and n.id == name.id for n in ast.walk(loop.target)):
                    return loop
        return None

    # -- lists -----------------------------------------------------------------------------------------------------

    def layers(self, node: ast.expr) -> LayerList | None:
        """Return the list that an expression is, or is a part of."""
        match node:
            case ast.Call(func=called, args=[of]) if self.script.name(called) in ("list", "tuple"):
                return self.layers(of)
            case ast.Attribute():
                return LayerList((ast.dump(node), 0), node)
            case ast.Name():
                loop, (write, value) = self._loop(node), self.written(node)
                if loop is not None and (write is None or loop not in self.script.above(write)):
                    return LayerList((node.id, -1), node)
                other = self.layers(value) if isinstance(value, (ast.Name, ast.Attribute, ast.Subscript)) else None
                return other or LayerList((node.id, 0 if write is None else write.lineno), node, value)
            case ast.Subscript(value=of, slice=ast.Slice(lower=lower, upper=upper, step=None)):
                whole, start = self.layers(of), 0 if lower is None else whole_number(lower)
                if whole is None or start is None or start < 0:
                    return None
                stop = 0 if upper is None else whole_number(upper)
                cut = None if stop is None or (upper is not None and stop >= 0) else -stop
                end = None if cut is None or whole.end is None else whole.end + cut
                return replace(whole, start=whole.start + start, end=end)
        return None

    def length(self, node: ast.expr) -> tuple[LayerList, int] | None:
        """Return (X, 1) of len(X) - 1, also where it has a name."""
        match node:
            case ast.Name():
                value = self.written(node)[1]
                return value and self.length(value)
            case ast.BinOp(op=ast.Add() | ast.Sub() as op, left=left, right=right):
                of, number = self.length(left), whole_number(right)
                if of is None or number is None:
                    return None
                return of[0], of[1] + (number if isinstance(op, ast.Sub) else -number)
        given = self.arguments_of(node, "len")
        layers = self.layers(given[0]) if given else None
        return layers and (layers, 0)

    # -- names -----------------------------------------------------------------------------------------------------

    def arguments_of(self, node: ast.AST, name: str) -> list[ast.expr]:
        """Return the arguments of a call of a builtin, first those without a keyword; [] for anything else."""
        if not isinstance(node, ast.Call) or not node.args or self.script.name(node.func) != name:
            return []
        return [*node.args, *(k.value for k in node.keywords)]

    def writes(self, name: ast.Name) -> list[ast.stmt]:
        """Return every assignment to a name in the function it stands in."""
        return self._writes.get((self.script.scope(name), name.id), [])

    def written(self, name: ast.Name) -> tuple[ast.stmt | None, ast.expr | None]:
        """Return the last assignment to a name before it is used, and its value; None where it may have another."""
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
        """Return whether an assignment stands in a block around a place, given with its parents."""
        parent = self.script.parents[write]
        while isinstance(parent, (ast.With, ast.AsyncWith)) and parent not in path:  # with torch.no_grad(): …
            write, parent = parent, self.script.parents[parent]
        if parent not in path:
            return False
        child = path[path.index(parent) - 1]
        blocks = [block for _, block in ast.iter_fields(parent) if isinstance(block, list)]
        return any(write in block and child in block for block in blocks)


def _value(write: ast.stmt, name: str) -> ast.expr | None:
    """Return what an assignment gives a name."""
    if not isinstance(write, (ast.Assign, ast.AnnAssign)):
        return None
    for target in targets(write):
        match target, write.value:
            case ast.Name(id=here), _ if here == name:
                return write.value
            case ast.Tuple(elts=names), ast.Tuple(elts=values) if len(names) == len(values):
                for part, value in zip(names, values):
                    if isinstance(part, ast.Name) and part.id == name:
                        return value
    return None


def _index(node: ast.expr) -> tuple[ast.Name, int] | None:
    """Return (l, 1) of l + 1; None of 3 - l, which runs the other way."""
    match node:
        case ast.Name():
            return node, 0
        case ast.BinOp(left=ast.Name() as name, op=ast.Add() | ast.Sub() as op, right=number):
            plus = whole_number(number)
            return None if plus is None else (name, plus if isinstance(op, ast.Add) else -plus)
        case ast.BinOp(left=number, op=ast.Add(), right=ast.Name() as name):
            plus = whole_number(number)
            return None if plus is None else (name, plus)
    return None
