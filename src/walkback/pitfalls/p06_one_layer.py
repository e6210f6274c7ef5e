"""A mean over layers looks like partial alignment while site 0 alone has any."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from walkback.pitfalls.pitfall import Entry, Found, Shown
from walkback.pitfalls.script import Scope, Script, method, owner, words
from walkback.pitfalls.trained import Trained, train

PITFALL = Entry(6, "one-layer", "an average over layers hides that one of them carries it", "lint, report")

_LAYERS = re.compile(r"(^|_)(layers?|blocks?|sites?|grads?|gradients?|credits?|hiddens?|states?|depth)\d*(_|$)|^n?L$")
_LAYER = re.compile(r"(^|_)(layer|block|site)\d*(_|$)")
_SAMPLES = re.compile(r"batch|loader|(^|_)(epochs?|steps?|seeds?|runs?|samples?|trials?)\d*(_|$)")


def detect(script: Script) -> Found:
    """Find cosines of layers that are averaged and shown nowhere else."""
    why = "the cosines of all layers become one number, which one layer can carry alone"
    fix = "report the cosine of every layer beside the mean"
    lists = set(_layer_lists(script))
    for node in script.of(ast.expr):
        over = _averaged(script, node)
        if over is None:
            continue
        if _is_layer_list(script, over):
            yield node, why, fix
        elif isinstance(over, ast.Name) and (script.scope(node), over.id) in lists:
            uses = [n for n in script.inside(script.scope(node)) if isinstance(n, ast.Name) and n.id == over.id]
            if all(_only_collects(script, n, node) for n in uses):
                yield node, why, fix
    for node in script.of(ast.AugAssign):
        loop = _loop(script, node)
        if loop is None or not isinstance(node.target, ast.Name) or not isinstance(node.op, ast.Add):
            continue
        if not isinstance(node.value, ast.List) and _per_layer(script, loop, *_collected(script, node.value)):
            yield node, why, fix


def _loop(script: Script, node: ast.AST) -> ast.For | ast.AsyncFor | None:
    return next((up for up in script.above(node) if isinstance(up, (ast.For, ast.AsyncFor))), None)


def _is_layer_list(script: Script, node: ast.AST) -> bool:
    if not isinstance(node, (ast.ListComp, ast.GeneratorExp)) or len(node.generators) != 1:
        return False
    return _per_layer(script, node.generators[0], node.elt)


def _per_layer(script: Script, loop: ast.For | ast.AsyncFor | ast.comprehension, *values: ast.AST) -> bool:
    """Return whether there is one cosine per turn of a loop over layers.

    The loop names layers, or each turn has a gradient of its own whose cosine is averaged over samples.
    """
    over = list(words(loop.iter))
    inner = [node for value in values for node in ast.walk(value)]
    cosines = [node for node in inner if script.is_cosine_call(node) or _is_cosine_by_hand(node)]
    holders = {
        n.value.id for n in ast.walk(loop.iter) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)
    }
    if not cosines or any(_SAMPLES.search(word) for word in over if word not in holders):  # run.credits are no runs
        return False
    if any(map(_LAYERS.search, over)) or any(map(_LAYER.search, words(loop.target))):
        return True
    paired = isinstance(loop.iter, ast.Call) and script.name(loop.iter.func) in ("zip", "enumerate", "range")
    averaged = any(method(node) == "mean" for node in inner)
    turn = set(words(loop.target))
    vectors = [v for c in cosines for v in (c.args if isinstance(c, ast.Call) else ast.walk(c))]
    return paired and averaged and any(turn & set(words(v)) and script.is_gradient(v) for v in vectors)


def _is_cosine_by_hand(node: ast.AST) -> bool:
    """Return whether it is (a * g).sum(1) / (a.norm(dim=1) * g.norm(dim=1))."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return False
    norms = [n for n in ast.walk(node.right) if method(n) in ("norm", "vector_norm")]
    return len(norms) == 2 and isinstance(node.right, ast.BinOp) and isinstance(node.right.op, ast.Mult)


def _collected(script: Script, value: ast.AST) -> list[ast.AST]:
    """Return what is put into a list or sum, with what was assigned to a name in it that is used for nothing else."""
    names = [n for n in ast.walk(value) if isinstance(n, ast.Name)]
    scope, found = script.scope(value), [value]
    for name in names:
        made = [a for a in script.assignments(scope, name.id) if a.seen <= name.lineno]
        uses = [n for n in script.inside(scope) if isinstance(n, ast.Name) and n.id == name.id]
        if made and all(isinstance(n.ctx, ast.Store) or n in names for n in uses):
            found.append(max(made, key=lambda a: a.seen).value)
    return found


def _layer_lists(script: Script) -> Iterator[tuple[Scope, str]]:
    """Yield lists with one cosine per layer."""
    for node in script.nodes:
        into, put = None, None
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.ListComp) and _is_layer_list(script, node.value):
            yield from ((script.scope(node), t.id) for t in node.targets if isinstance(t, ast.Name))
        elif isinstance(node, ast.Call) and method(node) == "append":
            into, put = owner(node), node.args[0] if node.args else None
        elif isinstance(node, ast.AugAssign) and isinstance(node.value, ast.List) and len(node.value.elts) == 1:
            into, put = node.target, node.value.elts[0]
        loop = _loop(script, node) if put is not None else None
        if (
            isinstance(into, ast.Name)
            and put is not None
            and loop
            and _per_layer(script, loop, *_collected(script, put))
        ):
            yield script.scope(node), into.id


def _averaged(script: Script, node: ast.AST) -> ast.AST | None:
    """Return what a mean is taken over: sum(x) / n, mean(x), torch.stack(x).mean(); None where it is no mean."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.left, ast.Call):
        return node.left.args[0] if script.name(node.left.func) == "sum" and node.left.args else None
    if not isinstance(node, ast.Call) or method(node) not in ("mean", "fmean", "average"):
        return None
    made = owner(node)
    if isinstance(made, ast.Call) and method(made) in ("stack", "tensor", "as_tensor", "array", "cat") and made.args:
        return None if node.args or node.keywords else made.args[0]
    if len(node.args) != 1 or node.keywords:
        return None
    over = node.args[0]
    inner = isinstance(over, ast.Call) and method(over) in ("stack", "tensor", "as_tensor", "array") and over.args
    return over.args[0] if isinstance(over, ast.Call) and inner else over


def _only_collects(script: Script, name: ast.Name, mean: ast.AST) -> bool:
    """Return whether this use of a list is its making, its filling or the mean itself."""
    up = list(script.above(name))
    if isinstance(name.ctx, ast.Store) or mean in up:
        return True
    parent = up[0]
    if isinstance(parent, ast.Attribute):
        return parent.attr in ("append", "extend")
    return isinstance(parent, ast.Call) and script.name(parent.func) == "len"


def trained(seed: int) -> Trained:
    """Train DFA at a high learning rate: the stream explodes and the deep sites lose their alignment."""
    return train("dfa", epochs=6, lr=1.2e-2, seed=seed)


def show(seed: int = 0) -> Shown:
    """Return Γ over sites 0…L−1 against the mean of the deep sites."""
    m = trained(seed).measure()
    sites = ", ".join(f"{c or 0.0:+.3f}" for c in m.cosine)
    return Shown(
        "Γ of DFA",
        m.gamma or 0.0,
        m.deep_cosine or 0.0,
        f"by site: {sites}. Site 0, which the stem writes, carries {m.gamma_concentration or 0.0:.0%} of Σ|cos|; the "
        "blocks, which are the depth, have a mean near zero.",
    )
