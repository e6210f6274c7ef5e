"""What sums, products, quotients and roots make of vectors: norms, unit vectors, cosines, and the ε among them."""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from walkback.pitfalls.nodes import keyword, literal, method, number
from walkback.pitfalls.values import COSINE, DATA, Cosine, Floor, Guard, Kind, Source, Value, join, undrawn

if TYPE_CHECKING:
    from walkback.pitfalls.script import Script

LEAST = 1e-12  # a smaller ε is far under any gradient that is measured
MOST = 1e-2
LARGEST = 10**9  # of a whole number that is multiplied exactly
MOST_NORMS = 4  # of one product; more are no cosine


class Arithmetic:
    """Operations on values, and what they come across: cosines and guards."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.values: dict[ast.AST, Value] = {}
        self.flows: dict[Source, set[Kind]] = {}  # what each source gets
        self.cosines: list[Cosine] = []
        self.normed: dict[ast.AST, Value] = {}  # what each norm is taken of
        self.products: list[tuple[Value, Value]] = []  # of matrices
        self.guards: dict[ast.AST | None, Guard] = {}  # by the comparison
        self.elements: dict[int, int] = {}  # the key of a list -> that of an entry of it
        self._keys: dict[tuple[object, ...], int] = {}
        self._lists: dict[int, int] = {}  # the other way round
        self._vectors: dict[int, Value] = {}  # what a norm was taken of
        self._options: dict[str, float | int | None] = {}

    def key(self, *of: object) -> int:
        """Return a number that is the same for what is made in the same way of the same."""
        return self._keys.setdefault(of, len(self._keys))

    # -- lists -----------------------------------------------------------------------------------------------------

    def each(self, value: Value, place: int | None = None) -> Value:
        """Return an entry of a list, or what a place of a tuple may hold."""
        if place is not None:
            return replace(value, key=self.key("item", value.key, place), parts=None)
        key = self.elements.get(value.key)
        if key is None:
            key = self.key("each", value.key)
            self._lists[key] = value.key
        return replace(value, key=key)

    def list_of(self, value: Value) -> Value:
        """Return the list of such values."""
        key = self._lists.get(value.key)
        if key is None:
            key = self.key("list", value.key)
            self.elements[key] = value.key
        return replace(value, key=key)

    def gathered(self, values: list[Value]) -> Value:
        """Return a tuple or list that is written down, or stacked."""
        if not values:
            return Value(self.key("empty", len(self._keys)), empty=True)
        whole = join(self.key("tuple", *(v.key for v in values)), values)
        parts = tuple(_shallow(v) for v in values) if len(values) <= 8 else None
        if len(values) == 1:
            self.elements[whole.key] = values[0].key
        return replace(whole, parts=parts, number=None, empty=False)

    def paired(self, values: list[Value]) -> Value:
        """Return what zip makes of lists: unpacking an entry gives an entry of each."""
        return self.gathered([self.each(v) for v in values])

    # -- operators -------------------------------------------------------------------------------------------------

    def operate(self, op: ast.operator, one: Value, other: Value, node: ast.expr) -> Value:
        """Return what a binary operator makes of two values."""
        folded = _folded(op, one.number, other.number)
        if folded is not None:
            return Value(self.key("constant", repr(folded)), number=folded)
        match op:
            case ast.Mult() | ast.MatMult():
                return self.product(one, other, node, matrix=isinstance(op, ast.MatMult))
            case ast.Div():
                return self.quotient(one, other, node)
            case ast.Pow():
                return self.power(one, other.number, node)
            case ast.Add():
                for norms, small in ((one, other.number), (other, one.number)):
                    if norms.norms and small is not None:
                        return self.held(norms, small, node)
                if one.norms and other.norms:
                    return Value(self.key("sum", one.key, other.key), one.kinds | other.kinds)
        return self.mixed(type(op).__name__, one, other)

    def mixed(self, how: str, one: Value, other: Value) -> Value:
        """Return a vector made of two: a gradient if either is, data if both are."""
        if how in ("Add", "Sub") and one.number is None:  # w - lr * g is a weight
            kinds = one.kinds - {DATA, COSINE}
        else:
            kinds = (one.kinds | other.kinds) - {DATA, COSINE}
        if all(DATA in v.kinds or v.number is not None for v in (one, other)):
            kinds |= {DATA}
        if COSINE in one.kinds | other.kinds and how in ("Add", "Sub", "Mult", "Div"):
            kinds |= {COSINE}
        if how not in ("Mult", "Div", "Pow"):
            kinds = undrawn(kinds)
        unit = how == "Mult" and any(v.unit and o.number in (1, -1) for v, o in ((one, other), (other, one)))
        return Value(self.key(how, one.key, other.key), frozenset(kinds), unit=unit)

    def product(self, one: Value, other: Value, node: ast.expr, *, matrix: bool = False) -> Value:
        """Return a product: of norms, of a vector with itself, of unit vectors (a cosine), or of anything else."""
        for left, right in ((one, other), (other, one)):
            if right.inverse:
                return self.quotient(left, replace(right, inverse=False), node)
        key = self.key("product", *sorted((one.key, other.key)))
        if one.norms and other.norms and one.squared == other.squared:
            norms = (*one.norms, *other.norms)
            floors = (*one.floors, *other.floors)
            return Value(
                key, one.kinds | other.kinds, norms=norms if len(norms) <= MOST_NORMS else (), squared=one.squared,
                floors=floors[:MOST_NORMS],
            )  # fmt: skip
        for norms, scale in ((one, other), (other, one)):
            if norms.norms and scale.number is not None:
                return replace(norms, key=key)
        if one.unit and other.unit and (matrix or one.key != other.key):  # also all pairs at once, M @ M.T
            same = one.floors == other.floors
            return self.cosine(node, (one, other), one.floors if same else (*one.floors, *other.floors))
        if one.key == other.key and not one.norms and one.number is None:
            return self.norm(one, squared=True)
        if matrix:
            self.products.append((one, other))
        made = self.mixed("MatMult" if matrix else "Mult", one, other)
        for unit, vector in ((one, other), (other, one)):
            if unit.unit and not vector.norms and vector.number is None:
                self._vectors.setdefault(unit.key, unit)
                return replace(made, over=(unit.key,), floors=unit.floors)
        return made

    def quotient(self, one: Value, other: Value, node: ast.expr) -> Value:
        """Return a quotient: a unit vector, a cosine, half of one, or anything else."""
        if one.number == 1 and other.norms:
            return replace(other, key=self.key("inverse", other.key), inverse=True)
        if not other.norms or one.norms or (other.squared and len(other.norms) < 2):
            made = self.mixed("Div", one, other)
            return replace(made, over=one.over, floors=one.floors) if one.over and not other.norms else made
        if other.norms == (one.key,):
            return self.unit(one, other.floors)
        over = (*one.over, *other.norms)
        floors = (*one.floors, *other.floors)
        if len(over) == 2 or (len(over) == 4 and other.squared):
            sides = (self.vector(over[0]), self.vector(over[1]))
            return self.cosine(node, sides, floors)
        return replace(self.mixed("Div", one, other), over=over if len(over) == 1 else (), floors=floors)

    def power(self, one: Value, exponent: float | int | None, node: ast.expr) -> Value:
        """Return a square, a root, one over a root, or another power."""
        if exponent == 2:
            if one.norms:
                return replace(one, squared=True, key=self.key("power", one.key, 2))
            return self.norm(one, squared=True)
        if exponent in (0.5, -0.5):
            return self.root(one, node, inverse=exponent < 0)
        if exponent == -1 and one.norms:
            return replace(one, key=self.key("inverse", one.key), inverse=True)
        return one.plain(self.key("power", one.key, exponent, id(node) if exponent is None else 0))

    def root(self, value: Value, node: ast.expr, *, inverse: bool = False) -> Value:
        """Return a square root: of a sum of squares it is a norm."""
        key = self.key("root", value.key, inverse)
        if value.norms and value.squared:
            if len(value.norms) == 1 and not inverse:
                self.normed[node] = self.vector(value.norms[0])
            return replace(value, key=key, squared=False, inverse=inverse)
        return value.plain(key)

    def norm(self, of: Value, *, squared: bool = False) -> Value:
        """Return the norm of a vector, or its square."""
        self._vectors.setdefault(of.key, of)
        return Value(
            self.key("norm", of.key, squared), undrawn(of.kinds) - {DATA, COSINE}, norms=(of.key,), squared=squared
        )

    def unit(self, of: Value, floors: tuple[Floor, ...] = ()) -> Value:
        """Return a vector divided by its own norm."""
        return replace(of, key=self.key("unit", of.key), unit=True, floors=floors)

    def held(self, value: Value, epsilon: float | int | None, node: ast.expr, *, by_default: bool = False) -> Value:
        """Return norms that an ε holds up; a number too large or too small for one changes nothing."""
        if epsilon is None or not LEAST <= epsilon <= MOST:
            return value
        floors = (*value.floors, Floor(node, float(epsilon), by_default))
        return replace(value, key=self.key("held", value.key), floors=floors[:MOST_NORMS])

    def either(self, guard: Guard | None, one: Value, other: Value) -> Value:
        """Return what may be one or the other; norms that a number stands for where they are small are held up."""
        for norms, number_ in ((one, other.number), (other, one.number)):
            if guard is not None and number_ is not None and norms.norms and guard.norms <= set(norms.norms):
                return self.held(norms, guard.floor.epsilon, guard.floor.node)
        return join(-1, (one, other))

    def cosine(
        self, node: ast.expr, sides: tuple[Value, Value], floors: tuple[Floor, ...], *, by_hand: bool = True
    ) -> Value:
        """Return a cosine, and remember it."""
        self.cosines.append(Cosine(node, sides, floors, by_hand))
        key = self.key("cosine", *sorted(side.key for side in sides))
        kinds = frozenset().union(*(side.kinds for side in sides)) - {DATA}
        return Value(key, undrawn(kinds) | {COSINE})

    def vector(self, key: int) -> Value:
        """Return what a norm was taken of."""
        return self._vectors.get(key) or Value(key)

    def compared(self, node: ast.Compare, op: ast.cmpop, left: Value, right: Value) -> None:
        """Remember a comparison of norms with a small number."""
        for norms, small, less in ((left, right.number, (ast.Lt, ast.LtE)), (right, left.number, (ast.Gt, ast.GtE))):
            ordered = isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE))
            if ordered and norms.norms and small is not None and LEAST <= small <= MOST:
                floor = Floor(node, float(small))
                self.guards[node] = Guard(floor, frozenset(norms.norms), isinstance(op, less))

    # -- functions -------------------------------------------------------------------------------------------------

    def replaced(self, value: Value, function: ast.AST, taken: dict[str, Value], depth: int = 3) -> Value:
        """Return a function's result with arguments in the place of parameters."""
        keys = {self.key("parameter", function, name): given.key for name, given in taken.items()}
        for name, given in taken.items():
            parameter = self.key("parameter", function, name)
            if parameter in self._vectors:
                self._vectors.setdefault(given.key, given)
        kinds: set[Kind] = set()
        for kind in value.kinds:
            mine = isinstance(kind, tuple) and kind[0] == "parameter" and kind[1] is function and kind[2] in taken
            kinds |= taken[str(kind[2])].kinds if mine else {kind}  # type: ignore[index]
        whole = next((g for name, g in taken.items() if self.key("parameter", function, name) == value.key), None)
        if whole is not None and not value.norms and not value.unit:
            return whole
        key = keys.get(value.key) or self.key("result", value.key, *sorted(keys.values()))
        return replace(
            value,
            key=key,
            kinds=frozenset(kinds),
            norms=tuple(keys.get(k, k) for k in value.norms),
            over=tuple(keys.get(k, k) for k in value.over),
            parts=(value.parts and depth and tuple(self.replaced(p, function, taken, depth - 1) for p in value.parts))
            or None,
        )

    @cached_property
    def arguments(self) -> dict[str, float | int | None]:
        """The defaults of options on the command line, as parser.add_argument("--eps", default=1e-8)."""
        made = [call for call in self.script.calls() if method(call) == "add_argument"]
        return {
            str(literal(a)).lstrip("-").replace("-", "_"): number(keyword(call, "default"))
            for call in made
            for a in call.args
        }


def _shallow(value: Value) -> Value:
    """Return a part of a tuple without what is deeper than the parts of its own parts."""
    if not value.parts:
        return value
    parts = tuple(replace(p, parts=None) if p.parts else p for p in value.parts)
    return replace(value, parts=parts)


def _folded(op: ast.operator, one: float | int | None, other: float | int | None) -> float | int | None:
    """Return the number that two numbers make, of moderate size."""
    if one is None or other is None:
        return None
    try:
        match op:
            case ast.Add():
                return one + other
            case ast.Sub():
                return one - other
            case ast.Mult():
                return one * other if max(abs(one), abs(other)) < LARGEST else float(one) * float(other)
            case ast.Div():
                return one / other
            case ast.Pow():
                return float(one) ** float(other)  # type: ignore[no-any-return]
    except (ArithmeticError, ValueError):
        pass
    return None
