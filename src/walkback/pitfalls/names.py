"""What names, attributes and entries of dicts hold, and what assignments make of it."""

from __future__ import annotations

import ast
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from walkback.pitfalls.arithmetic import Arithmetic
from walkback.pitfalls.values import DATA, GRAD, Source, Value, is_state, join, named

if TYPE_CHECKING:
    from walkback.pitfalls.script import Script


@dataclass(eq=False)
class Scope:
    """The names of a module, class, function or comprehension."""

    above: Scope | None = None
    owner: ast.ClassDef | None = None  # the class whose method it is in
    names: dict[str, Value] = field(default_factory=dict)
    outside: set[str] = field(default_factory=set)  # declared global or nonlocal
    returned: list[Value] = field(default_factory=list)

    def home(self, name: str) -> Scope | None:
        """Return the scope that a name is read from."""
        scope: Scope | None = self
        while scope is not None and name not in scope.names:
            scope = scope.above
        return scope


class Names(Arithmetic):
    """Names by scope, attributes by class, entries by the key that is written down."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self._entries: dict[tuple[int, int], Value] = {}
        self._fields: dict[tuple[ast.AST | None, str], Value] = {}

    @abstractmethod
    def value(self, node: ast.expr, scope: Scope) -> Value:
        """Return what an expression holds."""

    def of(self, node: ast.AST) -> Value:
        """Return what an expression holds; nothing is known of one that no walk comes by."""
        return self.values.get(node) or Value(-1, named(node.id) if isinstance(node, ast.Name) else frozenset())

    def read(self, name: str, scope: Scope) -> Value:
        """Return what a name holds; of one that nothing gave a value, what it says."""
        home = scope.home(name)
        if home is not None:
            return home.names[name]
        return Value(self.key("name", name), named(name))

    def bind(self, target: ast.expr, value: Value, scope: Scope) -> None:
        """Give a value to what is assigned to."""
        match target:
            case ast.Name(id=name):
                home = scope
                while name in home.outside and home.above is not None:
                    home = home.above
                home.names[name] = self._called(value, name)
                self.values[target] = home.names[name]
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for place, part in enumerate(parts):
                    got = value.parts[place] if value.parts and len(value.parts) == len(parts) else None
                    inner = part.value if isinstance(part, ast.Starred) else part
                    self.bind(inner, got or self.each(value, place), scope)
            case ast.Attribute(value=of, attr=name):
                made = self.value(of, scope).made
                owner = made if isinstance(made, ast.ClassDef) else None
                self._set_field(owner, name, value)
            case ast.Subscript(value=of, slice=index):
                place, guard = self.value(index, scope), self.guards.get(self.of(index).made)
                if guard is not None and isinstance(of, ast.Name) and value.number is not None:  # n[n < ε] = 1
                    self.bind(
                        of, self.held(self.value(loaded(of), scope), guard.floor.epsilon, guard.floor.node), scope
                    )
                    return
                self.put(of, value, scope)
                if isinstance(index, ast.Constant) and isinstance(index.value, str):
                    self._entries[self.value(loaded(of), scope).key, place.key] = value
            case ast.Starred(value=of):
                self.bind(of, value, scope)

    def _called(self, value: Value, name: str) -> Value:
        """Return a value under a name that says something too, unless it is known to be something else."""
        if value.number is not None or value.made is not None or value.empty:
            return value
        kinds = value.kinds | (named(name) - {DATA})
        if is_state(name) or GRAD in kinds:
            kinds -= {DATA}
        return replace(value, kinds=frozenset(kinds))

    def put(self, into: ast.expr, value: Value, scope: Scope) -> None:
        """Put a value into a list, dict or table: l.append(v), d[k] = v, d.setdefault(k, []).append(v)."""
        while isinstance(into, (ast.Subscript, ast.Call)):
            inner = into.value if isinstance(into, ast.Subscript) else into.func
            into = inner.value if isinstance(inner, ast.Attribute) and isinstance(into, ast.Call) else inner
        value = replace(value, number=None)
        if isinstance(into, ast.Name):
            home = scope.home(into.id) or scope
            before = home.names.get(into.id) or self.read(into.id, scope)
            home.names[into.id] = join(before.key, (before, value))
        elif isinstance(into, ast.Attribute):
            self.bind(into, value, scope)

    def _set_field(self, owner: ast.AST | None, name: str, value: Value) -> None:
        source: Source = ("field", owner, name)
        before = self._fields.get((owner, name))
        kinds = frozenset(k for k in value.kinds if k != source)
        self._fields[owner, name] = value if before is None else join(value.key, (before, value))
        self.flows.setdefault(source, set()).update(kinds)
        if owner is not None:
            self.flows.setdefault(("field", None, name), set()).update(kinds)

    def _item(self, of: Value, index: Value, node: ast.expr) -> Value:
        """Return an entry of a list, or a part of a vector."""
        if isinstance(node, ast.Slice):
            return replace(of, key=self.key("part", of.key, index.key), parts=None)
        place = index.number
        if of.parts and isinstance(place, int) and -len(of.parts) <= place < len(of.parts):
            return of.parts[place]
        if isinstance(place, int) and place == 0 and len(of.parts or ()) == 0 and of.key in self.elements:
            return self.each(of)
        return replace(of, key=self.key("item", of.key, index.key), parts=of.parts and None)

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Value:
        of, name = self.value(node.value, scope), node.attr
        if name in ("T", "mT", "H", "data", "real", "at"):
            return of
        if name == "grad":
            return Value(self.key("grad", of.key), frozenset({GRAD}))
        if name == "eps" and isinstance(node.value, ast.Call):  # torch.finfo(a.dtype).eps
            double = "64" in ast.unparse(node.value) or "double" in ast.unparse(node.value)
            return Value(self.key("eps", double), number=2.2e-16 if double else 1.2e-7)
        owner = of.made if isinstance(of.made, ast.ClassDef) else None
        kept = self._fields.get((owner, name))
        key = self.key("attribute", of.key, name)
        if kept is None:
            return Value(key, named(name) | {("field", owner, name)}, self._option(name))
        return replace(kept, key=key, kinds=kept.kinds | named(name) | {("field", owner, name)}, empty=False)

    def _option(self, name: str) -> float | int | None:
        """Return the number that an attribute has in the one class of the file, or the one parser, that names it."""
        if name not in self._options:
            found = [v.number for (owner, field), v in self._fields.items() if field == name and owner is not None]
            self._options[name] = found[0] if len(found) == 1 else self.arguments.get(name)
        return self._options[name]


def loaded(target: ast.expr) -> ast.expr:
    """Return what is assigned to as it is read."""
    match target:
        case ast.Name(id=name):
            return ast.copy_location(ast.Name(name, ast.Load()), target)
        case ast.Attribute(value=of, attr=name):
            return ast.copy_location(ast.Attribute(of, name, ast.Load()), target)
        case ast.Subscript(value=of, slice=index):
            return ast.copy_location(ast.Subscript(of, index, ast.Load()), target)
    return target
