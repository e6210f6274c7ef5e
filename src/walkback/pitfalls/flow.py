"""A walk through a script that says what each of its expressions holds; nothing is run, and every node is seen once.

Functions are walked once, for all their calls: what a parameter, an attribute or a global gets elsewhere stands in a
value as a `Source`, which `Flow.has` looks up when all of the file is known.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from walkback.pitfalls.names import Names, Scope, loaded
from walkback.pitfalls.nodes import targets
from walkback.pitfalls.values import (
    DRAWN,
    ERROR,
    GRAD,
    GRADS_OF,
    SENT,
    Guard,
    Kind,
    Source,
    Value,
    join,
    named,
)

if TYPE_CHECKING:
    from walkback.pitfalls.script import Script

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
DEEPEST = 20  # functions that are followed into one another
MOST_SOURCES = 24  # of one value
MOST_FOLLOWED = 300  # of what a value's sources get


class Flow(Names):
    """What every expression of a script holds (`of`), and the cosines and guards in it."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self._scopes: dict[Function, Scope] = {}  # where each function was defined
        self._open = 0  # how many functions are being walked through, one called by the other
        self._results: dict[Function, Value | None] = {}  # None while it is walked through
        self._classes = {made.name: made for made in script.of(ast.ClassDef)}
        self._body(script.tree.body, Scope())
        for function in list(script.of(*FUNCTIONS)):  # those that nothing calls
            if function in self._scopes:
                self.result(function)

    def has(self, value: Value, *kinds: Kind) -> bool:
        """Return whether a value is of one of these kinds, also by what its sources get anywhere in the file."""
        return any(kind in kinds for kind in self._all_kinds(value))

    def _all_kinds(self, value: Value) -> Iterator[Kind]:
        """Yield the kinds of a value, with those that its sources get."""
        seen: set[Kind] = set()
        todo = list(value.kinds)
        while todo and len(seen) < MOST_FOLLOWED:
            kind = todo.pop()
            if kind not in seen:
                seen.add(kind)
                yield kind
                todo += self.flows.get(kind, ()) if isinstance(kind, tuple) else ()

    def draws(self, value: Value) -> set[ast.AST]:
        """Return the calls of random generators that a value was drawn by."""
        return {k[1] for k in self._all_kinds(value) if isinstance(k, tuple) and k[0] == DRAWN}  # type: ignore[misc]

    @cached_property
    def feedback(self) -> set[ast.AST]:
        """The draws of what is multiplied with an error or gradient, as feedback matrices are, whatever their name."""
        found: set[ast.AST] = set()
        for one, other in self.products:
            for matrix, sent in ((one, other), (other, one)):
                if self.has(sent, ERROR, GRAD, SENT) and not self.has(matrix, ERROR, GRAD):
                    found |= self.draws(matrix)
        return found

    # -- statements ------------------------------------------------------------------------------------------------

    def _body(self, body: Iterable[ast.stmt], scope: Scope) -> bool:
        """Walk through statements in their order; return whether they end in a return, raise, break or continue."""
        ended = False
        for statement in body:
            ended = self._statement(statement, scope) or ended
        return ended

    def _statement(self, node: ast.stmt, scope: Scope) -> bool:
        match node:
            case ast.Assign() | ast.AnnAssign():
                if node.value is not None:
                    value = self.value(node.value, scope)
                    for target in targets(node):
                        self.bind(target, value, scope)
            case ast.AugAssign(target=target, op=op, value=value):
                before = self.value(loaded(target), scope)
                if isinstance(op, ast.Add) and isinstance(value, (ast.List, ast.Tuple)):
                    self.put(target, self.value(value, scope), scope)
                else:
                    after = self.operate(op, before, self.value(value, scope), value)
                    self.bind(target, join(after.key, (before, after)) if isinstance(op, ast.Add) else after, scope)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                scope.names[node.name] = self._defined(node, scope)
            case ast.ClassDef():
                inside = Scope(scope, node)
                scope.names[node.name] = Value(self.key("class", id(node)), made=node)
                self._body(node.body, inside)
                for name, value in inside.names.items():
                    self._set_field(node, name, value)
                for method in node.body:
                    if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)) and method.name == "__init__":
                        self.result(method)
            case ast.Return(value=given):
                if given is not None:
                    scope.returned.append(self.value(given, scope))
                return True
            case ast.If(test=test, body=body, orelse=other):
                return self._branches(scope, body, other, self.guards.get(self.value(test, scope).made))
            case ast.For() | ast.AsyncFor():
                self.bind(node.target, self.each(self.value(node.iter, scope)), scope)
                self._loop([*node.body, *node.orelse], scope)
            case ast.While(test=test, body=body, orelse=other):
                self.value(test, scope)
                self._loop([*body, *other], scope)
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                for item in items:
                    value = self.value(item.context_expr, scope)
                    if item.optional_vars is not None:
                        self.bind(item.optional_vars, value, scope)
                return self._body(body, scope)
            case ast.Try(body=body, handlers=handlers, orelse=other, finalbody=last):
                self._branches(scope, [*body, *other], [s for handler in handlers for s in handler.body])
                self._body(last, scope)
            case ast.Match(subject=subject, cases=cases):
                self.value(subject, scope)
                for case in cases:
                    self._branches(scope, case.body, [])
            case ast.Global(names=given) | ast.Nonlocal(names=given):
                scope.outside.update(given)
            case ast.Raise() | ast.Break() | ast.Continue():
                self._children(node, scope)
                return True
            case _:
                self._children(node, scope)
        return False

    def _branches(self, scope: Scope, one: list[ast.stmt], other: list[ast.stmt], guard: Guard | None = None) -> bool:
        """Walk through two ways; afterwards a name may hold what either gave it, unless one way has ended."""
        before = dict(scope.names)
        ended = self._body(one, scope)
        first, scope.names = scope.names, before
        over = self._body(other, scope)
        if not ended:
            if over:
                scope.names = first
            else:
                for name, value in first.items():
                    beside = scope.names.get(name)
                    same = beside is value
                    scope.names[name] = value if same or beside is None else self.either(guard, value, beside)
        return ended and over

    def _loop(self, body: list[ast.stmt], scope: Scope) -> None:
        """Walk through a loop, which may have no turn."""
        before = dict(scope.names)
        self._body(body, scope)
        for name, value in before.items():
            if scope.names.get(name) is not value:
                scope.names[name] = join(-1, (scope.names[name], value))

    def _children(self, node: ast.AST, scope: Scope) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child, scope)
            elif not isinstance(child, ast.stmt):
                self._children(child, scope)

    # -- expressions -----------------------------------------------------------------------------------------------

    def value(self, node: ast.expr, scope: Scope) -> Value:
        """Return what an expression holds, and remember it."""
        value = self._value(node, scope)
        if len(value.kinds) > MOST_SOURCES:
            value = replace(value, kinds=frozenset(k for k in value.kinds if isinstance(k, str)))
        self.values[node] = value
        return value

    def _value(self, node: ast.expr, scope: Scope) -> Value:
        match node:
            case ast.Constant(value=number):
                written = isinstance(number, (int, float)) and not isinstance(number, bool)
                return Value(self.key("constant", repr(number)), number=number if written else None)  # type: ignore[arg-type]
            case ast.Name(id=name):
                return self.read(name, scope)
            case ast.Attribute():
                return self._attribute(node, scope)
            case ast.Subscript(value=of, slice=index):
                whole, place = self.value(of, scope), self.value(index, scope)
                return self._entries.get((whole.key, place.key)) or self._item(whole, place, index)
            case ast.UnaryOp(op=op, operand=operand):
                value = self.value(operand, scope)
                minus = isinstance(op, ast.USub) and value.number is not None
                return replace(value, number=-value.number) if minus and value.number is not None else value
            case ast.BinOp(left=left, op=op, right=right):
                return self.operate(op, self.value(left, scope), self.value(right, scope), node)
            case ast.IfExp(test=test, body=one, orelse=other):
                guard = self.guards.get(self.value(test, scope).made)
                return self.either(guard, self.value(one, scope), self.value(other, scope))
            case ast.BoolOp(values=several):
                return join(-1, [self.value(v, scope) for v in several])
            case ast.Compare(left=left, ops=ops, comparators=[*_, right]):
                sides = [self.value(part, scope) for part in (left, *node.comparators)]
                self.compared(node, ops[0], sides[0], sides[-1])
                return Value(self.key("compare", id(node)), made=node)
            case ast.Call():
                from walkback.pitfalls.calls import called

                return called(self, node, scope)
            case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
                return self.gathered([self.value(element, scope) for element in elements])
            case ast.Dict(keys=keys, values=entries):
                places = [None if key is None else self.value(key, scope) for key in keys]
                held = [self.value(entry, scope) for entry in entries]
                whole = replace(self.gathered(held), key=self.key("dict", id(node)), parts=None)
                for key, place, value in zip(keys, places, held):
                    if place is not None and isinstance(key, ast.Constant):
                        self._entries[whole.key, place.key] = value
                return whole
            case ast.ListComp(elt=element) | ast.SetComp(elt=element) | ast.GeneratorExp(elt=element):
                return self.list_of(self.value(element, self._loops(node.generators, scope)))
            case ast.DictComp(key=key, value=element):
                inside = self._loops(node.generators, scope)
                self.value(key, inside)
                return self.list_of(self.value(element, inside))
            case ast.Lambda():
                return self._defined(node, scope)
            case ast.NamedExpr(target=target, value=of):
                value = self.value(of, scope)
                self.bind(target, value, scope)
                return value
            case ast.Starred(value=of) | ast.Await(value=of) | ast.YieldFrom(value=of):
                return self.value(of, scope)
            case ast.Slice():
                self._children(node, scope)
                return Value(self.key("slice", *(getattr(p, "value", id(p)) for p in (node.lower, node.upper))))
        self._children(node, scope)
        return Value(self.key("other", id(node)))

    def _loops(self, generators: list[ast.comprehension], scope: Scope) -> Scope:
        inside = Scope(scope, scope.owner)
        inside.returned = scope.returned
        for generator in generators:
            self.bind(generator.target, self.each(self.value(generator.iter, inside)), inside)
            for test in generator.ifs:
                self.value(test, inside)
        return inside

    # -- functions -------------------------------------------------------------------------------------------------

    def _defined(self, node: Function, scope: Scope) -> Value:
        self._scopes[node] = scope
        kinds: frozenset[Kind] = frozenset()
        for mark in getattr(node, "decorator_list", ()):
            kinds |= self.value(mark, scope).kinds & {GRADS_OF}
            name = self.script.name(mark).rpartition(".")[2]
            if name in ("grad", "filter_grad", "value_and_grad", "filter_value_and_grad"):
                kinds |= {GRADS_OF}
        return Value(self.key("function", id(node)), kinds, made=node)

    def method(self, owner: ast.AST | None, name: str) -> Function | None:
        """Return the method of a class of the file, or of one that it is derived from."""
        for _ in range(9):
            if not isinstance(owner, ast.ClassDef):
                return None
            for node in owner.body:
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
                    return node
            bases = [self._classes.get(b.id) for b in owner.bases if isinstance(b, ast.Name)]
            owner = next((b for b in bases if b is not None), None)
        return None

    def parameters(self, function: Function) -> list[ast.arg]:
        """Return the parameters by place, without `self`."""
        given = [*function.args.posonlyargs, *function.args.args]
        scope = self._scopes.get(function)
        bound = scope is not None and scope.owner is not None and getattr(function, "name", "") in scope.names
        return given[1:] if bound and given and given[0].arg in ("self", "cls") else given

    def result(self, function: Function) -> Value:
        """Return what a function hands back, walked through once; its parameters stand in it as sources."""
        if function in self._results:
            return self._results[function] or Value(self.key("recursion", id(function)))
        if self._open >= DEEPEST:  # it is walked through later, on its own
            return Value(self.key("deep", id(function)))
        self._results[function] = None
        self._open += 1
        outer = self._scopes.get(function, Scope())
        scope = Scope(outer, outer.owner)
        arguments = function.args
        names = [*arguments.posonlyargs, *arguments.args]
        defaults = dict(zip([a.arg for a in reversed(names)], reversed(arguments.defaults)))
        defaults |= {a.arg: d for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults) if d is not None}
        extra = [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
        for one in (*names, *arguments.kwonlyargs, *extra):
            default = self.value(defaults[one.arg], outer) if one.arg in defaults else None
            source: Source = ("parameter", function, one.arg)
            made = self._classes.get(one.annotation.id) if isinstance(one.annotation, ast.Name) else None
            if one.arg in ("self", "cls"):
                made = outer.owner
            key = self.key(*source)
            scope.names[one.arg] = Value(
                key, named(one.arg) | {source}, None if default is None else default.number, made=made
            )
        if isinstance(function, ast.Lambda):
            scope.returned.append(self.value(function.body, scope))
        else:
            self._body(function.body, scope)
        found = join(-1, scope.returned) if scope.returned else Value(self.key("nothing", id(function)))
        self._results[function] = found
        self._open -= 1
        return found

    def apply(self, function: Function, given: list[Value], named_: dict[str, Value]) -> Value:
        """Return what a call hands back: the function's result, with the arguments in the place of its parameters."""
        taken = dict(zip([a.arg for a in self.parameters(function)], given)) | named_
        for name, value in taken.items():
            self.flows.setdefault(("parameter", function, name), set()).update(value.kinds)
        result = self.result(function)
        return self.replaced(result, function, taken)
