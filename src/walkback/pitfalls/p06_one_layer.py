"""A mean over layers looks like partial alignment while site 0 alone has any."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from walkback.pitfalls.nodes import literal, method, owner, words
from walkback.pitfalls.pitfall import Entry, Found, Shown
from walkback.pitfalls.script import Script
from walkback.pitfalls.trained import Trained, train
from walkback.pitfalls.values import BY_LAYER, SENDS

PITFALL = Entry(6, "one-layer", "an average over layers hides that one of them carries it", "lint, report")

_LAYERS = re.compile(
    r"(^|_)(layers?|blocks?|sites?|grads?|gradients?|credits?|hiddens?|states?|depth|modules?|param(eter)?s?|weights?|"
    r"deltas?|updates?|signals?|Bs|feedbacks?|children|stages?|layout)\d*(_|$)|^n?_?L$"
)
_LAYER = re.compile(r"(^|_)(l|layer|block|site)\d*(_|$)")
# What holds one cosine of every layer, by its name: layer_cosines, alignment_per_layer; per_layer beside a cosine.
_BY_LAYER = re.compile(
    r"((layer|block|site)(s|wise)?_(cos|align|angle|gamma|sim)|(cos|align|angle|gamma|sim)[a-z]*_(per|by|of|each)_"
    r"(layer|block|site))"
)
_PER_LAYER = re.compile(r"(^|_)(per|by|each)_?(layer|block|site)s?$|^(layer|block|site)wise$")
_COSINES = re.compile(r"cos(ine|_|s|$)|align|angle|gamma", re.IGNORECASE)
_SAMPLES = re.compile(r"batch|loader|(^|_)(epochs?|steps?|seeds?|runs?|samples?|trials?)\d*(_|$)")


def detect(script: Script) -> Found:
    """Find cosines of layers that are averaged and shown nowhere else."""
    why = "the cosines of all layers become one number, which one layer can carry alone"
    fix = "report the cosine of every layer beside the mean"
    lists = set(_layer_lists(script))
    for node in script.of(ast.expr):
        means = [over for over in _averaged(script, node) if over is not None]
        held = [over for over in means if isinstance(over, (ast.Name, ast.Attribute)) and _place(script, over)]
        layers = any(
            _place(script, n) in lists
            or BY_LAYER in script.flow.of(n).kinds
            or (isinstance(n, ast.Name) and (_says_layers(script, n) or _of_stacked_layers(script, n)))
            for n in held
        )
        layers = layers or any(_is_layer_list(script, over) for over in means)
        if layers and all(_only_collects(script, n, node) for n in _uses(script, node, held)):
            yield node, why, fix
    for node in script.of(ast.AugAssign, ast.Assign):
        loop, added = _loop(script, node), _added(node)
        if loop is None or added is None or isinstance(added, ast.List):
            continue
        if _per_layer(script, loop, *_collected(script, added)):
            yield node, why, fix


def _added(node: ast.AugAssign | ast.Assign) -> ast.expr | None:
    """Return x of total += x and total = total + x, where the total is one number."""
    match node:
        case ast.AugAssign(target=ast.Name() | ast.Attribute(), op=ast.Add(), value=value):
            return value
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.BinOp(op=ast.Add(), left=one, right=other)):
            if isinstance(one, ast.Name) and one.id == name:
                return other
            return one if isinstance(other, ast.Name) and other.id == name else None
    return None


def _place(script: Script, node: ast.expr) -> tuple[object, str] | None:
    """Return what names a list: in its function, or as an attribute of an object."""
    if isinstance(node, ast.Name):
        return script.scope(node), node.id
    return (None, node.attr) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else None


def _uses(script: Script, mean: ast.AST, held: list[ast.Name | ast.Attribute]) -> list[ast.expr]:
    """Return every place where these lists are read: names in the function, attributes in the file."""
    scope = script.scope(mean)
    names = {n.id for n in held if isinstance(n, ast.Name)}
    fields = {n.attr for n in held if isinstance(n, ast.Attribute)}
    inside = [n for name in names for n in script.reads(name) if script.scope(n) is scope]
    return [*inside, *(n for name in fields for n in script.fields(name))]


def _loop(script: Script, node: ast.AST) -> ast.For | ast.AsyncFor | None:
    return next((up for up in script.above(node) if isinstance(up, (ast.For, ast.AsyncFor))), None)


def _is_layer_list(script: Script, node: ast.AST) -> bool:
    if not isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.DictComp)) or len(node.generators) != 1:
        return False
    return _per_layer(script, node.generators[0], node.value if isinstance(node, ast.DictComp) else node.elt)


def _of_stacked_layers(script: Script, name: ast.Name) -> bool:
    """Return whether it is a cosine, written out, of tensors that layers were stacked into."""
    made = script.last_assigned(name)
    if made is None or not _computes(script, made):
        return False
    parts = [script.last_assigned(n) for n in ast.walk(made)]
    stacks = [call for part in parts if part is not None for call in script.calls(part) if method(call) == "stack"]
    return any(_LAYERS.search(word) for call in stacks for a in call.args for word in words(a))


def _says_layers(script: Script, name: ast.Name) -> bool:
    """Return whether a name says that it holds a cosine of every layer, where none is taken out of it."""
    if _BY_LAYER.search(name.id) or not _PER_LAYER.search(name.id):
        return _BY_LAYER.search(name.id) is not None
    scope = script.scope(name)
    around = {getattr(scope, "name", ""), *(w for n in script.inside(scope) for w in words(n))}
    return any(map(_COSINES.search, around))


def _per_layer(script: Script, loop: ast.For | ast.AsyncFor | ast.comprehension, *values: ast.AST) -> bool:
    """Return whether there is one cosine per turn of a loop over layers.

    The loop names layers, or each turn has a gradient of its own whose cosine is averaged over samples.
    """
    if any(_is_row(script, value) for value in values):
        return True
    over = list(words(loop.iter))
    inner = [node for value in values for node in ast.walk(value)]
    cosines = [node for node in inner if _computes(script, node)]
    holders = {
        n.value.id for n in ast.walk(loop.iter) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)
    }
    if not cosines or any(_SAMPLES.search(word) for word in over if word not in holders):  # run.credits are no runs
        return False
    if any(_LAYERS.search(word) or SENDS.search(word) for word in over) or any(map(_LAYER.search, words(loop.target))):
        return True
    paired = isinstance(loop.iter, ast.Call) and script.name(loop.iter.func) in ("zip", "enumerate", "range")
    averaged = any(method(node) == "mean" for node in inner)
    turn = set(words(loop.target))
    vectors = [v for c in cosines for v in (c.args if isinstance(c, ast.Call) else ast.walk(c))]
    return paired and averaged and any(turn & set(words(v)) and script.is_gradient(v) for v in vectors)


def _is_row(script: Script, node: ast.AST) -> bool:
    """Return whether it is a row of a table that names its layer beside a cosine: {"layer": name, "cos": …}."""
    row = node if isinstance(node, ast.Dict) else None
    said = [str(literal(key)) for key in row.keys if key is not None] if row is not None else []
    return row is not None and any(map(_LAYER.search, said)) and any(script.is_cosine(v) for v in row.values)


def _computes(script: Script, node: ast.AST) -> bool:
    """Return whether a cosine is computed here, and not only read."""
    if not isinstance(node, (ast.Call, ast.BinOp)) or not script.is_cosine(node):
        return False
    return not any(script.is_cosine(n) for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute)))


def _collected(script: Script, value: ast.AST) -> list[ast.AST]:
    """Return what is put into a list or sum, with what was assigned to a name in it that is used for nothing else."""
    names = [n for n in ast.walk(value) if isinstance(n, ast.Name)]
    scope, found = script.scope(value), [value]
    for name in names:
        made = [a for a in script.assignments(scope, name.id) if a.seen <= name.lineno]
        uses = [n for n in script.reads(name.id) if script.scope(n) is scope]
        if made and all(n in names for n in uses):
            found.append(max(made, key=lambda a: a.seen).value)
    return found


def _layer_lists(script: Script) -> Iterator[tuple[object, str]]:
    """Yield lists with one cosine per layer."""
    for node in script.nodes:
        into, put = None, None
        if isinstance(node, ast.Assign) and _is_layer_list(script, node.value):
            yield from (place for t in node.targets if (place := _place(script, t)))
        elif isinstance(node, ast.Call) and method(node) == "append":
            into, put = owner(node), node.args[0] if node.args else None
        elif isinstance(node, ast.AugAssign) and isinstance(node.value, ast.List) and len(node.value.elts) == 1:
            into, put = node.target, node.value.elts[0]
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):  # cosines[name] = …
            into, put = node.targets[0].value, node.value
        loop = _loop(script, node) if put is not None else None
        place = None if into is None else _place(script, into)
        if place and put is not None and loop and _per_layer(script, loop, *_collected(script, put)):
            yield place


def _averaged(script: Script, node: ast.AST) -> list[ast.AST]:
    """Return what a mean is taken over, and the names it goes through: sum(x) / n, mean(x), torch.stack(x).mean()."""
    over: ast.AST | None = None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.left, ast.Call):
        over = node.left.args[0] if script.name(node.left.func) == "sum" and node.left.args else None
    elif isinstance(node, ast.Call) and method(node) in ("mean", "fmean", "average", "nanmean"):
        whole = script.name(node.func).startswith(("torch.", "numpy.", "statistics.", "jax.", "mean", "fmean"))
        given = [*node.args, *node.keywords]
        over = (
            owner(node)
            if not whole and not given
            else node.args[0]
            if whole and len(given) == 1 and node.args
            else None
        )
    found: list[ast.AST] = []
    while over is not None and len(found) < 9:
        found.append(over)
        if isinstance(over, ast.Subscript):  # of a data frame: frame["cos"]
            over = over.value if isinstance(over.slice, ast.Constant) and isinstance(over.slice.value, str) else None
        else:
            over = _gathered(over) if isinstance(over, ast.Call) else _assigned(script, over)
    return found


def _gathered(call: ast.Call) -> ast.expr | None:
    """Return x of torch.stack(x), np.array(x), list(x) and x.values()."""
    if method(call) in ("stack", "tensor", "as_tensor", "array", "asarray", "cat", "list", "Tensor", "FloatTensor"):
        return call.args[0] if call.args else None
    if method(call) == "groupby":  # by epoch: a mean over layers; by layer: none
        return None if any(map(_LAYER.search, words(call))) else owner(call)
    if method(call) in ("tree_leaves", "leaves", "Series", "DataFrame"):
        given = call.args[0] if call.args else None
        if isinstance(given, ast.Dict):  # the columns of a data frame: that with one cosine per layer
            return next((v for v in given.values if isinstance(v, ast.ListComp)), None)
        return given
    return owner(call) if method(call) in ("values", "cpu", "detach", "float", "numpy") else None


def _assigned(script: Script, node: ast.AST) -> ast.AST | None:
    """Return the torch.stack(…) or the like that a name was assigned."""
    made = script.follow(node)
    return made if made is not node and isinstance(made, ast.Call) and _gathered(made) is not None else None


def _only_collects(script: Script, name: ast.expr, mean: ast.AST) -> bool:
    """Return whether this use of a list is its making, its filling or the mean itself."""
    up = list(script.above(name))
    if isinstance(getattr(name, "ctx", None), ast.Store) or mean in up:
        return True
    parent = up[0]
    if isinstance(parent, ast.Subscript):
        return isinstance(parent.ctx, ast.Store)
    if isinstance(parent, ast.Attribute):
        return parent.attr in ("append", "extend")
    if isinstance(parent, ast.Call) and _gathered(parent) is name:  # assigned to a name, whose uses are asked too
        return isinstance(up[1], ast.Assign)
    if isinstance(parent, (ast.IfExp, ast.If)) and parent.test is name:  # np.mean(x) if x else 0.0
        return True
    return isinstance(parent, ast.Call) and script.name(parent.func) == "len"


def trained(seed: int) -> Trained:
    """Train DFA at a high learning rate: the stream explodes and the deep sites lose their alignment."""
    return train("dfa", epochs=6, lr=1.2e-2, seed=seed)


def show(seed: int = 0) -> Shown:
    """Return Γ over sites 0…L−1 against the mean of the deep sites."""
    m = trained(seed).measure()
    sites = ", ".join(f"{c or 0.0:+z.3f}" for c in m.cosine)
    return Shown(
        "Γ of DFA",
        m.gamma or 0.0,
        m.deep_cosine or 0.0,
        f"by site: {sites}. Site 0, which the stem writes, carries {m.gamma_concentration or 0.0:.0%} of Σ|cos|; the "
        "blocks, which are the depth, have a mean near zero.",
    )
