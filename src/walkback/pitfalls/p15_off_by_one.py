"""a_{l+1} paired with g_l: neighbouring gradients of a residual stream are nearly parallel, so it looks aligned.

A script is accused only of what can be proved to be shifted. A shifted index alone proves nothing: `zip(grads[1:],
params)` is right where `grads` has one more in front. It does where both lists are known to start at the same layer:
made from the same states, of equal length, or cut at opposite ends.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from walkback.pitfalls.entries import Key, LayerList, Loop, Reader, Vector
from walkback.pitfalls.nodes import keyword, literal, method, names, owner, targets, whole_number
from walkback.pitfalls.p05_averaging_order import trained
from walkback.pitfalls.pitfall import Entry, Found, Shown
from walkback.pitfalls.script import Script
from walkback.pitfalls.trained import Trained, cosine, train
from walkback.pitfalls.values import GRADIENT

if TYPE_CHECKING:
    from torch import Tensor

PITFALL = Entry(15, "off-by-one", "a credit paired with the gradient of the next layer looks aligned", "lint, report")

WHY = (
    "the credit of one layer is paired with the gradient of a neighbouring one: in a residual stream these are nearly "
    "parallel, so it looks aligned whatever the credit is"
)
FIX = "pair both of the same layer: credits[l] with grads[l], or zip(credits, grads, strict=True)"

_COSINE = re.compile(r"cosine|alignment|(^|_)(cos|cos_?sims?|align|angles?|gamma)(_|$)", re.IGNORECASE)
_CREDIT = re.compile(
    r"(^|_)(as?|credits?|signals?|feedback|fa|dfa|teaching|pseudo|local|sent|drtp|dtp|ep|pc)\d*(_|$)", re.IGNORECASE
)
_EXACT = re.compile(r"(^|_)(bp|backprop|bptt|exact|truth|reference|autograd)\d*(_|$)", re.IGNORECASE)
_DELTA = re.compile(r"(^|_)(ds?|deltas?|errors?|errs?)\d*(_|$)")
_MATRIX = re.compile(r"(^|_)(ws?|bs?|weights?|matrix|matrices|params?|parameters|kernels?)\d*(_|$)", re.IGNORECASE)
_STATE = re.compile(r"(^|_)(hs?|hiddens?|states?|streams?|activations?|acts?|sites?|outputs?)\d*(_|$)")
_MODULES = re.compile(r"(^|_)(layers?|blocks?|modules?)\d*(_|$)")
_LAYER = re.compile(r"(^|_)(l|layers?|blocks?|sites?|depth|hiddens?|states?)\d*(_|$)|^n?_?L$")
_TIME = re.compile(
    r"batch|loader|history|(^|_)(ts?|times?|steps?|epochs?|iters?|iterations?|rounds?|clients?|seeds?|tasks?|runs?|"
    r"trials?|samples?|tokens?|rows?|heads?)\d*(_|$)",
    re.IGNORECASE,
)
_DELIBERATE = re.compile(
    r"shift|neighbo|adjacent|next|prev|(^|_)lag|null|control|consecutive|successive", re.IGNORECASE
)
_CHANGES = ("append", "insert", "extend", "pop", "remove", "reverse", "sort", "clear")


@dataclass(frozen=True)
class VectorPair:
    """The two vectors of a cosine."""

    node: ast.expr
    sides: tuple[Vector, Vector]

    @property
    def roots(self) -> frozenset[tuple[Key, str]]:
        return frozenset((side.layers.root, side.layers.held) for side in self.sides)

    @property
    def by(self) -> int:
        """How far their indices are apart."""
        return abs(self.sides[0].offset - self.sides[1].offset)


def detect(script: Script) -> Found:
    """Find cosines of a credit with the gradient of a neighbouring layer, where that is certain."""
    reader, cosines = Reader(script), list(_cosines(script))
    pairs = []
    for node, *vectors in cosines:
        a, g = map(reader.entry, vectors)
        if a is not None and g is not None and a.loop is g.loop and a.backwards == g.backwards:
            pairs.append(VectorPair(node, (a, g)))
    # A function that measures the right pairing too measures the neighbour's on purpose.
    right = {(script.scope(pair.node), pair.roots) for pair in pairs if not pair.by}
    for pair in pairs:
        meant = pair.by and (script.scope(pair.node), pair.roots) in right
        if not meant and _is_credit_with_gradient(script, pair) and _is_shifted(reader, pair):
            yield pair.node, WHY, FIX
    for node, *vectors in cosines:
        if any(_is_too_early(reader, node, *two) for two in (vectors, vectors[::-1])):
            yield node, WHY, FIX


# -- what is compared ----------------------------------------------------------------------------------------------


def _cosines(script: Script) -> Iterator[tuple[ast.expr, ast.expr, ast.expr]]:
    """Yield calls of a cosine, by name or as torch's module, and quotients by two norms, each with its two vectors."""
    modules = script.cosine_modules()
    for node in script.nodes:
        vectors: list[ast.expr] = []
        if isinstance(node, ast.Call):
            named = _COSINE.search(script.name(node.func).rpartition(".")[2])
            if named or script.makes_cosine(node.func) or ast.dump(node.func) in modules:
                vectors = [*node.args[:2], *(k.value for k in node.keywords if k.arg in ("x1", "x2"))]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            vectors = [v for call in script.calls(node.right) if (v := script.norm_of(call)) is not None]
        if isinstance(node, ast.expr) and len(vectors) == 2:
            yield node, vectors[0], vectors[1]


def _is_credit_with_gradient(script: Script, pair: VectorPair) -> bool:
    """Return whether a gradient meets what a rule sends, and no name says that it is time, or meant so."""
    loop = pair.sides[0].loop
    around = [] if loop is None else [*names(loop.target), *names(loop.iter)]
    lists = [side.layers.name for side in pair.sides]
    if any(_TIME.search(word) or _DELIBERATE.search(word) for word in (*lists, *around, *_called(script, pair.node))):
        return False
    if any(side.layers.held and _MODULES.search(side.layers.name) for side in pair.sides):
        return False  # layers[l].grad may be of what it reads, or of what it writes
    gradients = [
        bool(side.layers.held) or script.is_gradient(side.layers.node) or _EXACT.search(side.layers.name) is not None
        for side in pair.sides
    ]
    signal = [
        _CREDIT.search(name) or (_DELTA.search(name) and any(map(_LAYER.search, around)))
        if not _MATRIX.search(name)
        else None
        for name in lists
    ]
    return any(gradients) and all(is_gradient or sent for is_gradient, sent in zip(gradients, signal))


def _called(script: Script, node: ast.AST) -> Iterator[str]:
    """Return what the result is called: the function around it, and what it is assigned or appended to."""
    yield getattr(script.scope(node), "name", "")
    for up in script.above(node):
        if isinstance(up, ast.Call) and isinstance(up.func, ast.Attribute) and up.func.attr == "append":
            yield from names(up.func.value)
        elif isinstance(up, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            yield from (name for target in targets(up) for name in names(target))
        elif isinstance(up, ast.Dict):
            yield from (str(key.value) for key in up.keys if isinstance(key, ast.Constant))
        if isinstance(up, ast.stmt):
            return


# -- is it certain? ------------------------------------------------------------------------------------------------


def _is_shifted(reader: Reader, pair: VectorPair) -> bool:
    """Return whether it is certain that a credit meets the gradient of another layer."""
    a, g = pair.sides
    if a.keys is not None and a.keys == g.keys:
        return pair.by > 0 and not a.layers.is_same_list(g.layers)
    if a.layers.is_same_list(g.layers) or any(_is_joined(reader, side.layers) for side in pair.sides):
        return False
    ours, theirs = _origin(reader, a.layers), _origin(reader, g.layers)
    if ours.root == theirs.root and not a.backwards:
        return a.offset + ours.start != g.offset + theirs.start
    if ours.root == theirs.root and ours.end is not None and theirs.end is not None:
        return a.offset + ours.end != g.offset + theirs.end
    low, high = sorted(pair.sides, key=lambda side: side.offset)
    opposite = low.left_out is not None and low.left_out - (high.left_out or 0) == pair.by
    return pair.by > 0 and (
        opposite or _of_one_trace(reader, pair) or _alike(reader, pair) or _leaves_a_state_out(reader, pair)
    )


def _origin(reader: Reader, layers: LayerList, depth: int = 0) -> LayerList:
    """Return what a list was made from, entry by entry, and what is left out of that; itself where uncertain."""
    whole = replace(layers, held="", start=0, end=0)
    made = whole if layers.held else _made_from(reader, layers)
    if made is None or depth > 4:
        return whole
    before = _origin(reader, made, depth + 1)
    end = None if made.end is None or before.end is None else made.end + before.end
    return replace(before, start=made.start + before.start, end=end)


def _made_from(reader: Reader, layers: LayerList) -> LayerList | None:
    """Return the list for each of whose entries this one has one."""
    value, changes = layers.made, [call for call in reader.script.calls() if _changes(call, layers.root[0])]
    if isinstance(value, ast.List) and not value.elts and len(changes) == 1:
        loop = reader.script.parents.get(reader.script.parents[changes[0]])
        leaves = (ast.Continue, ast.Break, ast.Return)
        if (
            method(changes[0]) != "append"
            or not isinstance(loop, ast.For)
            or any(isinstance(n, leaves) for n in ast.walk(loop))
        ):
            return None
        return _one_each(reader, loop, changes[0].args[0]) if changes[0].args else None
    if changes or value is None:
        return None
    if isinstance(value, ast.Call) and reader.script.name(value.func) in ("list", "tuple") and value.args:
        value = value.args[0]
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult) and isinstance(value.left, ast.List):
        counted = reader.length(value.right)
        return counted[0] if counted is not None and counted[1] == 0 and len(value.left.elts) == 1 else None
    if isinstance(value, (ast.ListComp, ast.GeneratorExp)) and len(value.generators) == 1:
        return None if value.generators[0].ifs else _one_each(reader, value.generators[0], value.elt)
    return _differentiated(reader, value)


def _changes(call: ast.Call, name: str) -> bool:
    of = owner(call)
    return method(call) in _CHANGES and isinstance(of, ast.Name) and of.id == name


def _is_joined(reader: Reader, layers: LayerList) -> bool:
    """Put together from parts, as torch.autograd.grad(loss, [x, *hidden]): what is in front may be no layer."""
    made = layers.made
    if isinstance(made, ast.Call) and reader.script.differentiates(made):
        made = next(iter(_inputs(made)), None)
        if isinstance(made, (ast.List, ast.Tuple)):
            return True
    if isinstance(made, ast.BinOp):
        return isinstance(made.op, ast.Add)
    return isinstance(made, (ast.List, ast.Tuple)) and any(isinstance(part, ast.Starred) for part in made.elts)


def _inputs(call: ast.Call) -> list[ast.expr]:
    """Return what torch.autograd.grad(loss, hidden) differentiates by."""
    return [*call.args[1:2], *(k.value for k in call.keywords if k.arg == "inputs")]


def _differentiated(reader: Reader, node: ast.expr) -> LayerList | None:
    """Return hidden, of torch.autograd.grad(loss, hidden)."""
    if not isinstance(node, ast.Call) or not reader.script.differentiates(node):
        return None
    given = _inputs(node)
    return reader.layers(given[0]) if given else None


def _one_each(reader: Reader, loop: Loop, element: ast.expr) -> LayerList | None:
    """Return the list that a loop makes one entry for each of.

    Not of gradients: [g @ B for g in grads[1:]] are the credits of the layers below.
    """
    vector, target = reader.bare(element), loop.target
    if isinstance(vector, ast.Name) and isinstance(target, ast.Name) and vector.id == target.id:
        return _differentiated(reader, loop.iter)
    bound = reader.bound(loop.iter)
    over = reader.layers(loop.iter) if bound is None else bound[0] if bound[1] == 0 else None
    if over is None:
        return None
    if bound is None and isinstance(vector, ast.Attribute) and vector.attr == "grad":
        return over if isinstance(vector.value, ast.Name) and not _MODULES.search(over.name) else None
    called = reader.script.name(element.func) if isinstance(element, ast.Call) else ""
    empty = isinstance(element, ast.Constant) or called.endswith(("zeros_like", "empty_like"))
    states = _STATE.search(over.name) and not GRADIENT.search(over.name)
    return over if over.is_whole and (empty or states) else None


def _leaves_a_state_out(reader: Reader, pair: VectorPair) -> bool:
    """Return whether a loop over all states but the last indexes two lists that were handed in, one a layer ahead."""
    loop = pair.sides[0].loop
    bound = None if loop is None else reader.bound(loop.iter)
    scope = reader.script.scope(pair.node)
    given = {a.arg for a in scope.args.args} if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)) else set()
    whole = all(side.layers.is_whole and side.layers.name in given for side in pair.sides)
    return bound is not None and bound[1] == 1 and whole and _STATE.search(bound[0].name) is not None


def _of_one_trace(reader: Reader, pair: VectorPair) -> bool:
    """Return whether these are trace.credits and trace.grads, where the script uses Walkback: both start at site 0."""
    a, g = (side.layers.node for side in pair.sides)
    ours = any(name.partition(".")[0] in ("walkback", "protocol") for name in reader.script.aliases.values())
    if not ours or not isinstance(a, ast.Attribute) or not isinstance(g, ast.Attribute):
        return False
    return {a.attr, g.attr} == {"credits", "grads"} and ast.dump(a.value) == ast.dump(g.value)


def _alike(reader: Reader, pair: VectorPair) -> bool:
    """Return whether something in the same function says that the same index is the same layer in both lists.

    Equal lengths: len(credits) == len(grads), or zip(credits, grads, strict=True). Or credits[L] = grads[L].
    """
    roots = {side.layers.root for side in pair.sides}
    for node in reader.script.inside(reader.script.scope(pair.node)):
        whole: list[LayerList | None] = []
        match node:
            case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[right]):
                whole = [of[0] for of in map(reader.length, (left, right)) if of is not None and of[1] == 0]
            case ast.Call() if reader.arguments_of(node, "zip") and literal(keyword(node, "strict")) is True:
                whole = [reader.layers(part) for part in node.args]
            case ast.Assign(targets=[ast.Subscript(value=into, slice=at), *_], value=value):
                of, number = reader.bare(value), whole_number(at)
                counted = isinstance(at, ast.Name) or (number is not None and number >= 0)
                if counted and isinstance(of, ast.Subscript) and ast.dump(at) == ast.dump(of.slice):
                    lists = [reader.layers(part) for part in (into, of.value)]
                    if roots == {layers.root for layers in lists if layers is not None}:
                        return True
        if roots <= {layers.root for layers in whole if layers is not None and layers.is_whole}:
            return True
    return False


# -- a credit that is carried down ---------------------------------------------------------------------------------


def _is_too_early(reader: Reader, cosine: ast.expr, credit: ast.expr, gradient: ast.expr) -> bool:
    """Return whether a credit that starts as the last gradient meets the next one before it is carried down to it."""
    carried, g = reader.bare(credit), reader.entry(gradient)
    if not isinstance(carried, ast.Name) or g is None or not isinstance(g.loop, (ast.For, ast.AsyncFor)):
        return False
    below_last = g.offset if g.backwards else g.left_out if reader.runs_down(g.loop) else None
    inside = [w for w in reader.writes(carried) if g.loop in reader.script.above(w)]
    before = [w for w in reader.writes(carried) if w.lineno < g.loop.lineno]
    if below_last != 1 or not inside or not before or any(w.lineno <= cosine.lineno for w in inside):
        return False
    start = max(before, key=lambda w: w.lineno)
    value = reader.bare(start.value) if isinstance(start, ast.Assign) else None
    if not isinstance(value, ast.Subscript) or whole_number(value.slice) != -1:
        return False
    last_of = reader.layers(value.value)
    if last_of is None or last_of.end != 0 or not last_of.is_same_list(g.layers):
        return False
    return all(isinstance(w, ast.AugAssign) or carried.id in names(w.value) for w in inside)  # type: ignore[attr-defined]


# -- the reproducer ------------------------------------------------------------------------------------------------


def signals(run: Trained) -> tuple[list[Tensor], list[Tensor]]:
    """Return a_0…a_L of FA and g_0…g_L, each (1024, 64) in float64: a_L is g_L, carried down by the matrices B."""
    grads = [g.double() for g in run.signals()[1]]
    credits = [grads[-1]]
    for matrix in reversed(run.rule.matrices()):  # type: ignore[operator]
        credits.insert(0, credits[0] @ matrix.double())
    return credits, grads


def pairings(run: Trained) -> tuple[list[float], list[float]]:
    """Return the cosines at sites 0…L−1 with the credit of the site above, and with each site's own."""
    credits, grads = signals(run)
    return list(map(cosine, credits[1:], grads)), list(map(cosine, credits, grads[:-1]))


def show(seed: int = 0) -> Shown:
    """Return Γ of FA over sites 0…L−1, paired one site off and paired right."""
    wrong, right = pairings(trained(seed))
    untrained, _ = pairings(train("fa", epochs=0, seed=seed))
    above, own = (", ".join(f"{c:+z.3f}" for c in found) for found in (wrong, right))
    return Shown(
        "Γ of FA",
        sum(wrong) / len(wrong),
        sum(right) / len(right),
        f"by site, paired with the credit of the site above: {above}; with its own: {own}. FA's last credit is g_L, "
        "so the first list ends in the cosine of g_L with g_{L-1}. It says that the last block changes the gradient "
        f"little, and nothing about feedback: in the untrained network it is {untrained[-1]:+z.3f}.",
    )
