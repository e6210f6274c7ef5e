"""One detector per pitfall: Script -> (node, why, fix) for every place that walks into it.

They would rather miss a case than accuse correct code: names decide only together with what is done with them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from walkback.lint.pairing import off_by_one
from walkback.lint.script import COSINES, FEEDBACK, LABELS, MODEL, Scope, Script

Found = Iterator[tuple[ast.expr | ast.stmt, str, str]]

_EVALUATES = re.compile(r"(^|_)(eval\w*|test|measure\w*|gamma|align\w*|diagnos\w*|audit|probe|validat\w*)(_|$)", re.I)
_NULL = re.compile(r"fresh|null|control|draw|random_baseline|redraw|shuffl", re.I)
_LAYERS = re.compile(r"(^|_)(layers?|blocks?|sites?|grads?|gradients?|credits?|hiddens?|states?|depth)\d*(_|$)|^n?L$")
_LAYER = re.compile(r"(^|_)(layer|block|site)\d*(_|$)")
_SAMPLES = re.compile(r"batch|loader|(^|_)(epochs?|steps?|seeds?|runs?|samples?|trials?)\d*(_|$)")
_RANDOM = {"randn", "rand", "normal", "randn_like", "rand_like", "normal_", "uniform", "uniform_", "standard_normal"}
_LOADS = ("torch.load", "safetensors.torch.load_file", "safetensors.torch.load_model")
_SAVES = ("torch.save", "safetensors.torch.save_file", "safetensors.torch.save_model")
_AUXILIARY = re.compile(r"(\w+_)?(bridge|feedback|feedback_net|auxiliary|auxiliaries|aux_net|value_net)(_net)?")
_CREDIT = re.compile(r"(^|_)(a|credits?|signals?)\d*(_|$)")
_SIZE = re.compile(r"(^|_)(batch_?size|n_samples|num_samples|bs|B|N)$")
_RECIPE = ("epochs", "n_epochs", "num_epochs", "lr", "batch_size", "net", "model", "data", "dataset", "width", "seed")


# -- small questions ----------------------------------------------------------------------------------------------


def _keyword(call: ast.Call, *names: str) -> ast.expr | None:
    return next((k.value for k in call.keywords if k.arg in names), None)


def _number(node: ast.AST | None) -> float | None:
    """A literal number, also with a minus; None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _number(node.operand)
        return None if value is None else -value
    constant = (
        isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool)
    )
    return float(node.value) if constant else None  # type: ignore[union-attr, arg-type]


def _method(call: ast.Call) -> str:
    """The last part of what is called."""
    return (
        call.func.attr
        if isinstance(call.func, ast.Attribute)
        else call.func.id
        if isinstance(call.func, ast.Name)
        else ""
    )


def _words(node: ast.AST) -> Iterator[str]:
    """Every name, attribute and string below a node."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Attribute):
            yield inner.attr
        elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value


def _is_feedback(word: str) -> bool:
    return FEEDBACK.fullmatch(word) is not None


def _called(script: Script, *methods: str) -> bool:
    return any(_method(call) in methods for call in script.calls())


def _differentiates(script: Script, call: ast.Call) -> bool:
    return script.name(call.func).endswith("autograd.grad") or _method(call) == "backward"


# -- P01: norm(-1) -------------------------------------------------------------------------------------------


def negative_norm(script: Script) -> Found:
    """A negative p in a norm that names no axis."""
    functions = {"torch.norm": 1, "torch.linalg.norm": 1, "torch.linalg.vector_norm": 1, "numpy.linalg.norm": 1}
    functions["torch.nn.functional.normalize"] = 1
    for call in script.calls():
        name = script.name(call.func)
        at = functions.get(name, 0 if _method(call) == "norm" and isinstance(call.func, ast.Attribute) else None)
        if at is None or _keyword(call, "dim", "axis") is not None or len(call.args) > at + 1:
            continue
        p = _number(call.args[at] if len(call.args) > at else _keyword(call, "p", "ord"))
        if p is not None and p < 0:
            spelled = "axis" if name.startswith("numpy") else "dim"
            yield (
                call,
                f"{p:g} is taken for p, so this is the L{p:g} norm and not a norm over the last axis",
                f"write {spelled}={p:g}",
            )


# -- P02: the ε of the cosine --------------------------------------------------------------------------------


def cosine_epsilon(script: Script) -> Found:
    """Torch's cosine on gradients with its default ε."""
    measures = {}
    for node in script.of(ast.Assign):
        assert isinstance(node, ast.Assign)
        if _is_cosine_module(script, node.value):
            measures |= {ast.dump(_loaded(target)): node.value for target in node.targets}
    for call in script.calls():
        made = call.func if isinstance(call.func, ast.Call) else measures.get(ast.dump(call.func))
        if script.name(call.func) in COSINES:
            vectors = [*call.args[:2], *(k.value for k in call.keywords if k.arg in ("x1", "x2"))]
            epsilon = _keyword(call, "eps") or (call.args[3] if len(call.args) > 3 else None)
        elif isinstance(made, ast.Call) and _is_cosine_module(script, made):
            vectors = list(call.args)
            epsilon = _keyword(made, "eps") or (made.args[1] if len(made.args) > 1 else None)
        else:
            continue
        value = _number(epsilon)
        if epsilon is not None and (value is None or value < 1e-12):
            continue
        if any(script.is_gradient(v) and not script.is_normalised(v) for v in vectors):
            yield (
                call,
                f"the ε of {1e-8 if value is None else value:g} in this cosine holds smaller gradients up, so it comes "
                "out too small (in float64 too)",
                "divide by the norms in float64: (a * g).sum(1) / (a.norm(dim=1) * g.norm(dim=1)), or pass eps=0.0",
            )


def _is_cosine_module(script: Script, node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and script.name(node.func) == "torch.nn.CosineSimilarity"


def _loaded(target: ast.expr) -> ast.expr:
    """An assigned target as it looks where it is read."""
    if isinstance(target, ast.Name):
        return ast.Name(target.id, ast.Load())
    return ast.Attribute(target.value, target.attr, ast.Load()) if isinstance(target, ast.Attribute) else target


# -- P03: fp16 -----------------------------------------------------------------------------------------------


def half_precision(script: Script) -> Found:
    """Gradients stored in fp16, or taken through a network in fp16."""
    fix = "use bfloat16 or float32 where gradients are measured"
    takes = any(_differentiates(script, call) for call in script.calls()) and not _called(script, "GradScaler")
    for call in script.calls():
        name = script.name(call.func)
        if _to_half(script, call):
            assert isinstance(call.func, ast.Attribute)
            of = call.func.value
            if script.is_gradient(of):
                yield call, "fp16 ends at 6e-8: smaller gradients become zero", fix
            elif takes and MODEL.fullmatch(_last(of)) and not _only_infers(script, call):
                yield call, "gradients through a network in fp16 are zero below 6e-8", fix
        elif takes and name.endswith("autocast") and _autocasts_to_half(script, call, name):
            yield call, "under autocast to fp16 without a GradScaler, gradients below 6e-8 are zero", fix


def _only_infers(script: Script, call: ast.Call) -> bool:
    """Without gradients, and none are taken later in the same function: `.half()` changes the network for good."""
    after = [c for c in script.inside(script.scope(call)) if isinstance(c, ast.Call) and c.lineno > call.lineno]
    return script.without_gradients(call) and not any(_differentiates(script, c) for c in after)


def _to_half(script: Script, call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr == "half" and not call.args:
        return True
    values = [*call.args, *(k.value for k in call.keywords)]
    return call.func.attr in ("to", "type", "astype") and any(_is_half(script, value) for value in values)


def _is_half(script: Script, node: ast.AST) -> bool:
    return script.name(node) in ("torch.float16", "torch.half", "numpy.float16", "numpy.half")


def _autocasts_to_half(script: Script, call: ast.Call, name: str) -> bool:
    dtype = _keyword(call, "dtype") or (call.args[1] if len(call.args) > 1 else None)
    if dtype is not None:
        return _is_half(script, dtype)
    device = _keyword(call, "device_type") or (call.args[0] if call.args else None)
    return name.endswith("cuda.amp.autocast") or (isinstance(device, ast.Constant) and device.value == "cuda")


def _last(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


# -- P04: fresh feedback at evaluation -----------------------------------------------------------------------


def fresh_feedback(script: Script) -> Found:
    """Feedback drawn where a trained network is evaluated."""
    if any(_is_feedback(key) for key in _keys(script)):
        return  # the trained feedback is read from somewhere
    for node in script.of(ast.Assign, ast.AnnAssign):
        assert isinstance(node, (ast.Assign, ast.AnnAssign))
        scope = script.scope(node)
        named = [_last(t) for t in (node.targets if isinstance(node, ast.Assign) else [node.target])]
        if not any(map(_is_feedback, named)) or node.value is None or not _is_random(script, node.value):
            continue
        where = getattr(scope, "name", "")
        said = " ".join((where, *named))
        if _NULL.search(said) or where in ("__init__", "setup", "reset_parameters"):
            continue
        if _EVALUATES.search(where) or any(_loads(script, n) for n in script.inside(scope)):
            yield (
                node,
                "feedback drawn anew: the network was trained with another one, and aligned to that",
                "load the feedback that was saved with the weights; name it fresh_… where it is meant as a null",
            )


def _keys(script: Script) -> Iterator[str]:
    """Strings that are read from a mapping: ckpt["B"], ckpt.get("B")."""
    for node in script.nodes:
        key = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            key = node.slice
        elif isinstance(node, ast.Call) and _method(node) in ("get", "pop") and node.args:
            key = node.args[0]
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value
        elif isinstance(key, ast.JoinedStr) and key.values and isinstance(key.values[0], ast.Constant):
            yield str(key.values[0].value).rstrip("._")


def _is_random(script: Script, node: ast.AST) -> bool:
    return any(_method(call) in _RANDOM for call in script.calls(node))


def _loads(script: Script, node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and (script.name(node.func) in _LOADS or _method(node) == "load_state_dict")


# -- P06: averaged over layers only --------------------------------------------------------------------------


def one_layer(script: Script) -> Found:
    """Cosines of layers that are averaged and shown nowhere else."""
    why = "the cosines of all layers become one number, which one layer can carry alone"
    fix = "report the cosine of every layer beside the mean"
    lists = {(scope, name) for scope, name in _layer_lists(script)}
    for node in script.nodes:
        over = _averaged(script, node)
        if over is None:
            continue
        if _is_layer_list(script, over):
            yield node, why, fix  # type: ignore[misc]
        elif isinstance(over, ast.Name) and (script.scope(node), over.id) in lists:
            shown = [n for n in script.inside(script.scope(node)) if isinstance(n, ast.Name) and n.id == over.id]
            if all(_only_collects(script, n, node) for n in shown):
                yield node, why, fix  # type: ignore[misc]
    for node in script.of(ast.AugAssign):
        assert isinstance(node, ast.AugAssign)
        loop = _loop(script, node)
        if loop is None or not isinstance(node.target, ast.Name) or not isinstance(node.op, ast.Add):
            continue
        if not isinstance(node.value, ast.List) and _per_layer(script, loop, *_kept(script, node.value)):
            yield node, why, fix


def _loop(script: Script, node: ast.AST) -> ast.For | ast.AsyncFor | None:
    return next((up for up in script.above(node) if isinstance(up, (ast.For, ast.AsyncFor))), None)


def _is_layer_list(script: Script, node: ast.AST) -> bool:
    if not isinstance(node, (ast.ListComp, ast.GeneratorExp)) or len(node.generators) != 1:
        return False
    return _per_layer(script, node.generators[0], node.elt)


def _per_layer(script: Script, loop: ast.For | ast.AsyncFor | ast.comprehension, *values: ast.AST) -> bool:
    """One cosine per turn of a loop over layers.

    The loop names layers, or each turn has a gradient of its own whose cosine is averaged over samples.
    """
    words = list(_words(loop.iter))
    inner = [node for value in values for node in ast.walk(value)]
    cosines = [node for node in inner if script.is_cosine_call(node) or _is_cosine_by_hand(node)]
    if not cosines or any(_SAMPLES.search(word) for word in words):
        return False
    if any(_LAYERS.search(word) for word in words) or any(_LAYER.search(word) for word in _words(loop.target)):
        return True
    paired = isinstance(loop.iter, ast.Call) and script.name(loop.iter.func) in ("zip", "enumerate", "range")
    averaged = any(isinstance(node, ast.Call) and _method(node) == "mean" for node in inner)
    turn = set(_words(loop.target))
    vectors = [v for c in cosines for v in (c.args if isinstance(c, ast.Call) else ast.walk(c))]
    return paired and averaged and any(turn & set(_words(v)) and script.is_gradient(v) for v in vectors)


def _is_cosine_by_hand(node: ast.AST) -> bool:
    """(a * g).sum(1) / (a.norm(dim=1) * g.norm(dim=1))."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return False
    norms = [n for n in ast.walk(node.right) if isinstance(n, ast.Call) and _method(n) in ("norm", "vector_norm")]
    return len(norms) == 2 and isinstance(node.right, ast.BinOp) and isinstance(node.right.op, ast.Mult)


def _kept(script: Script, value: ast.AST) -> list[ast.AST]:
    """What is put into a list or sum, with what was assigned to a name in it that is used for nothing else."""
    names = [n for n in ast.walk(value) if isinstance(n, ast.Name)]
    scope, found = script.scope(value), [value]
    for name in names:
        made = [a for a in script.assignments(scope, name.id) if a.seen <= name.lineno]
        uses = [n for n in script.inside(scope) if isinstance(n, ast.Name) and n.id == name.id]
        if made and all(isinstance(n.ctx, ast.Store) or n in names for n in uses):
            found.append(max(made, key=lambda a: a.seen).value)
    return found


def _layer_lists(script: Script) -> Iterator[tuple[Scope, str]]:
    """Lists with one cosine per layer."""
    for node in script.nodes:
        into, put = None, None
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.ListComp) and _is_layer_list(script, node.value):
            yield from ((script.scope(node), t.id) for t in node.targets if isinstance(t, ast.Name))
        elif isinstance(node, ast.Call) and _method(node) == "append" and isinstance(node.func, ast.Attribute):
            into, put = node.func.value, node.args[0] if node.args else None
        elif isinstance(node, ast.AugAssign) and isinstance(node.value, ast.List) and len(node.value.elts) == 1:
            into, put = node.target, node.value.elts[0]
        loop = _loop(script, node) if put is not None else None
        if isinstance(into, ast.Name) and put is not None and loop and _per_layer(script, loop, *_kept(script, put)):
            yield script.scope(node), into.id


def _averaged(script: Script, node: ast.AST) -> ast.AST | None:
    """What a mean is taken over: sum(x) / n, mean(x), torch.stack(x).mean(); None where it is no mean."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.left, ast.Call):
        return node.left.args[0] if script.name(node.left.func) == "sum" and node.left.args else None
    if not isinstance(node, ast.Call) or _method(node) not in ("mean", "fmean", "average"):
        return None
    made = node.func.value if isinstance(node.func, ast.Attribute) else None
    if isinstance(made, ast.Call) and _method(made) in ("stack", "tensor", "as_tensor", "array", "cat") and made.args:
        return None if node.args or node.keywords else made.args[0]
    if len(node.args) != 1 or node.keywords:
        return None
    over = node.args[0]
    inner = isinstance(over, ast.Call) and _method(over) in ("stack", "tensor", "as_tensor", "array") and over.args
    return over.args[0] if isinstance(over, ast.Call) and inner else over


def _only_collects(script: Script, name: ast.Name, mean: ast.AST) -> bool:
    """Is this use of a list its making, its filling or the mean itself?"""
    up = list(script.above(name))
    if isinstance(name.ctx, ast.Store) or mean in up:
        return True
    parent = up[0]
    if isinstance(parent, ast.Attribute):
        return parent.attr in ("append", "extend")
    return isinstance(parent, ast.Call) and script.name(parent.func) == "len"


# -- P07: auxiliaries that are not saved ---------------------------------------------------------------------


def lost_auxiliaries(script: Script) -> Found:
    """A state dict saved without the feedback, or a gradient where the feedback is missing."""
    yield from _unsaved(script)
    yield from _fallbacks(script)


def _unsaved(script: Script) -> Found:
    names = set()
    for node in script.of(ast.Assign):
        assert isinstance(node, ast.Assign)
        plain = not (isinstance(node.value, ast.Call) and _method(node.value) in ("Parameter", "Buffer"))
        for target in map(_last, node.targets):
            drawn = _is_feedback(target) and plain and _is_random(script, node.value)
            built = _AUXILIARY.fullmatch(target) and isinstance(node.value, ast.Call)
            if (drawn or built) and not _NULL.search(target):
                names.add(target)
    saves = [call for call in script.calls() if script.name(call.func) in _SAVES and call.args]
    if not names or not saves or _called(script, "register_buffer", "save_bundle"):
        return
    words = {word for call in saves for word in _saved_words(script, call)}
    if words & names or any(map(_is_feedback, words)) or any(_AUXILIARY.fullmatch(w) for w in words):
        return
    for call in saves:
        if "state_dict" in set(_saved_words(script, call)):
            yield (
                call,
                f"{', '.join(sorted(names))} is not saved with the weights: without it the credit can't be measured",
                "save it in the same file, as a buffer or with walkback.save_bundle(…, auxiliaries=…)",
            )


def _saved_words(script: Script, call: ast.Call) -> Iterator[str]:
    """Names and strings in what is saved, one assignment deep."""
    yield from _words(call.args[0])
    if isinstance(call.args[0], ast.Name):
        for node in script.of(ast.Assign):
            assert isinstance(node, ast.Assign)
            if any(_root(target) == call.args[0].id for target in node.targets):
                yield from (word for target in node.targets for word in _words(target))
                yield from _words(node.value)
        for update in script.calls():
            if isinstance(update.func, ast.Attribute) and _root(update.func.value) == call.args[0].id:
                yield from (word for part in (*update.args, *update.keywords) for word in _words(part))


def _root(node: ast.AST) -> str:
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _fallbacks(script: Script) -> Found:
    why = "where the feedback is missing the gradient is taken for the credit: cos(BP, BP) = 1"
    fix = "raise an error: without the feedback the credit can't be measured"
    for node in script.nodes:
        if isinstance(node, ast.IfExp):
            missing, there = _missing(node.test)
            if (missing and script.is_gradient(node.body)) or (there and script.is_gradient(node.orelse)):
                yield node, why, fix
        elif isinstance(node, ast.If):
            missing, there = _missing(node.test)
            for statement in [*(node.body if missing else ()), *(node.orelse if there else ())]:
                if _takes_gradient(script, statement):
                    yield statement, why, fix
        elif isinstance(node, ast.ExceptHandler):
            tried = script.parents[node]
            read = any(_is_feedback(w) for n in getattr(tried, "body", ()) for w in _words(n))
            yield from ((s, why, fix) for s in node.body if read and _takes_gradient(script, s))
        elif isinstance(node, ast.Call) and _method(node) == "get" and len(node.args) == 2:
            key = node.args[0]
            named = isinstance(key, ast.Constant) and _is_feedback(str(key.value))
            if named and script.is_gradient(node.args[1]):
                yield node, why, fix


def _missing(test: ast.AST) -> tuple[bool, bool]:
    """(true where the feedback is missing, true where it is there)."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        missing, there = _missing(test.operand)
        return there, missing
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and any(map(_is_feedback, _words(test))):
        op = test.ops[0]
        none = isinstance(test.comparators[0], ast.Constant) and test.comparators[0].value is None
        missing = (none and isinstance(op, (ast.Is, ast.Eq))) or isinstance(op, ast.NotIn)
        there = (none and isinstance(op, (ast.IsNot, ast.NotEq))) or isinstance(op, ast.In)
        return missing, there
    if isinstance(test, ast.Call) and _asks_for_feedback(test):
        return False, True
    return False, isinstance(test, (ast.Name, ast.Attribute)) and _is_feedback(_last(test))


def _asks_for_feedback(call: ast.Call) -> bool:
    """`hasattr(x, "feedback")`."""
    return _method(call) == "hasattr" and any(map(_is_feedback, _words(call)))


def _takes_gradient(script: Script, statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Assign) or not script.is_gradient(statement.value):
        return False
    return any(_CREDIT.search(_last(target)) for target in statement.targets)


# -- P08: two passes -----------------------------------------------------------------------------------------


def two_passes(script: Script) -> Found:
    """Two batches drawn in a function that compares directions."""
    for scope in (script.tree, *script.of(ast.FunctionDef, ast.AsyncFunctionDef)):
        nodes = list(script.inside(scope))  # type: ignore[arg-type]
        drawn = [n for n in nodes if isinstance(n, ast.Call) and script.name(n.func) == "next" and _draws(script, n)]
        if len(drawn) > 1 and any(script.is_cosine_call(n) for n in nodes):
            second = sorted(drawn, key=lambda call: call.lineno)[1]
            yield (
                second,
                "a second batch is drawn: credit and reference of a cosine must come from the same pass",
                "draw one batch, and take credit and gradient from one forward pass of it",
            )


def _draws(script: Script, call: ast.Call) -> bool:
    inner = call.args[0] if call.args else None
    return isinstance(inner, ast.Call) and script.name(inner.func) == "iter"


# -- P09: unmatched control ----------------------------------------------------------------------------------


def unmatched_control(script: Script) -> Found:
    """A frozen run whose recipe is that of no other run in the script."""
    runs: dict[str, list[tuple[ast.Call, bool]]] = {}
    for call in script.calls():
        if name := script.name(call.func):
            runs.setdefault(name, []).append((call, _is_frozen(call)))
    for calls in runs.values():
        others = [_recipe(call) for call, frozen in calls if not frozen]
        for call, frozen in calls:
            differences = [_differ(_recipe(call), other) for other in others] if frozen else []
            if differences and all(differences):
                closest = min(differences, key=len)
                told = ", ".join(f"{key} {ours} instead of {theirs}" for key, (ours, theirs) in closest.items())
                yield (
                    call,
                    f"the frozen control is trained otherwise than what it is compared with: {told}",
                    "train it with the same recipe; walkback.frozen_baseline(spec) does",
                )


def _is_frozen(call: ast.Call) -> bool:
    values = [a.value for a in (*call.args, *(k.value for k in call.keywords)) if isinstance(a, ast.Constant)]
    flags = [k for k in call.keywords if k.arg in ("frozen", "freeze", "freeze_blocks", "frozen_blocks")]
    return "frozen" in values or any(isinstance(k.value, ast.Constant) and k.value.value is True for k in flags)


def _recipe(call: ast.Call) -> dict[str, object]:
    return {k.arg: k.value.value for k in call.keywords if k.arg in _RECIPE and isinstance(k.value, ast.Constant)}  # type: ignore[misc]


def _differ(ours: dict[str, object], theirs: dict[str, object]) -> dict[str, tuple[object, object]]:
    return {key: (ours[key], theirs[key]) for key in ours if key in theirs and ours[key] != theirs[key]}


# -- P10: training mode --------------------------------------------------------------------------------------


def training_mode(script: Script) -> Found:
    """A network that is measured in a script without `.eval()`."""
    if _called(script, "eval") or any(_turns_off(call) for call in script.calls()):
        return
    made = _called(script, "load_state_dict") or any(_builds_model(node) for node in script.nodes)
    imported = _imported_models(script)
    if not made and not imported:
        return
    updates = _called(script, "step", "zero_grad")
    for scope in (script.tree, *script.of(ast.FunctionDef, ast.AsyncFunctionDef)):
        nodes = list(script.inside(scope))  # type: ignore[arg-type]
        calls = [n for n in nodes if isinstance(n, ast.Call)]
        passes = [call for call in calls if MODEL.fullmatch(_last(call.func)) and call.args]
        if not made:  # a function may be given another network
            passes = [c for c in passes if scope is script.tree and getattr(c.func, "id", "") in imported]
        learns = ("step", "zero_grad") if scope is script.tree and not updates else ("step", "zero_grad", "backward")
        trains = any(_method(call) in learns for call in calls)
        trains = trains or getattr(scope, "name", "").endswith("_step")  # Lightning's: it sets the mode itself
        if passes and not trains and (_accuracy(script, nodes) or _compares(script, nodes)):
            first = min(passes, key=lambda call: call.lineno)
            yield (
                first,
                "the network is measured in the mode it happens to be in: dropout and batch norm change what is seen",
                "call model.eval() before, and say so beside the numbers",
            )


def _turns_off(call: ast.Call) -> bool:
    value = _keyword(call, "mode") or (call.args[0] if call.args else None)
    return _method(call) == "train" and isinstance(value, ast.Constant) and value.value is False


def _builds_model(node: ast.AST) -> bool:
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
        return False
    return any(MODEL.fullmatch(_last(target)) for target in node.targets)


def _imported_models(script: Script) -> set[str]:
    """Networks by their name, as in `from model import net`."""
    names = {a.asname or a.name for n in script.tree.body if isinstance(n, ast.ImportFrom) for a in n.names}
    return {name for name in names if MODEL.fullmatch(name)}


def _accuracy(script: Script, nodes: list[ast.AST]) -> bool:
    """argmax(…) == y, also of a name that was assigned it, or `argmax(…).eq(y)`."""
    compared = [n for n in nodes if isinstance(n, ast.Compare) and isinstance(n.ops[0], ast.Eq)]
    parts: list[ast.AST] = [*compared, *(n for n in nodes if isinstance(n, ast.Call) and _method(n) == "eq")]
    for name in [n for part in parts for n in ast.walk(part) if isinstance(n, ast.Name)]:
        parts += [a.value for a in script.assignments(script.scope(name), name.id) if a.seen <= name.lineno]
    return any(_method(call) == "argmax" for part in parts for call in script.calls(part))


def _compares(script: Script, nodes: list[ast.AST]) -> bool:
    """A cosine with a gradient, or a gradient that is taken (by `backward` too, where it is read afterwards)."""
    calls = [n for n in nodes if isinstance(n, ast.Call)]
    read = any(isinstance(n, ast.Attribute) and n.attr == "grad" and isinstance(n.ctx, ast.Load) for n in nodes)
    return any(
        (script.is_cosine_call(c) and any(map(script.is_gradient, c.args)))
        or script.name(c.func).endswith("autograd.grad")
        or (read and _method(c) == "backward")
        for c in calls
    )


# -- P11: renormalised before logging ------------------------------------------------------------------------


def renormalised(script: Script) -> Found:
    """The norm of something that was divided by its norm."""
    for call in script.calls():
        name = script.name(call.func)
        of = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "norm" else None
        if name in ("torch.norm", "torch.linalg.vector_norm", "torch.linalg.norm", "numpy.linalg.norm"):
            of = call.args[0] if call.args else None
        if of is not None and script.is_normalised(of) and not script.is_data(of):
            yield (
                call,
                "this was divided by its norm before, so its norm is 1 whatever the network does",
                "log the norm of the state or gradient as it is",
            )


# -- P13: batch size -----------------------------------------------------------------------------------------


def batch_size(script: Script) -> Found:
    """Per-sample norms of the gradient of a mean loss, with no batch size in sight."""
    for scope in (script.tree, *script.of(ast.FunctionDef, ast.AsyncFunctionDef)):
        nodes = list(script.inside(scope))  # type: ignore[arg-type]
        calls = [n for n in nodes if isinstance(n, ast.Call)]
        losses = [c for c in calls if _method(c) in ("cross_entropy", "nll_loss", "mse_loss", "CrossEntropyLoss")]
        if not any(script.name(c.func).endswith("autograd.grad") for c in calls) or not losses:
            continue
        if any(_reduces_otherwise(c) for c in losses) or any(_scales_by_size(n) for n in nodes):
            continue
        for call in calls:
            if _row_norm(script, call) and not isinstance(script.parents[call], ast.BinOp):
                yield (
                    call,
                    "the gradient of a mean loss shrinks with the batch, so this norm depends on the batch size",
                    'take the loss with reduction="sum" (a norm per sample), and say what it is divided by',
                )


def _reduces_otherwise(call: ast.Call) -> bool:
    value = _keyword(call, "reduction")
    return value is not None and not (isinstance(value, ast.Constant) and value.value == "mean")


def _scales_by_size(node: ast.AST) -> bool:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Mult, ast.Div)):
        return False
    if isinstance(node.left, ast.Call) and _method(node.left) == "sum":
        return False  # the mean of a list
    sizes = [n for side in (node.left, node.right) for n in ast.walk(side)]
    return any(
        (isinstance(n, ast.Call) and _method(n) in ("len", "size", "numel"))
        or (isinstance(n, ast.Attribute) and n.attr == "shape")
        or _SIZE.search(_last(n)) is not None
        for n in sizes
    )


def _row_norm(script: Script, call: ast.Call) -> bool:
    if _keyword(call, "dim", "axis") is None:
        return False
    if script.name(call.func) in ("torch.norm", "torch.linalg.vector_norm", "torch.linalg.norm"):
        return bool(call.args) and script.is_gradient(call.args[0])
    return isinstance(call.func, ast.Attribute) and call.func.attr == "norm" and script.is_gradient(call.func.value)


# -- P14: sorted batches -------------------------------------------------------------------------------------


def sorted_batches(script: Script) -> Found:
    """Samples put in the order of their labels, or a folder of class folders that is not shuffled."""
    fix = "shuffle: x[torch.randperm(len(x), generator=…)], or DataLoader(…, shuffle=True)"
    why = "batches in the order of their labels share a direction, which looks like a drifting reference"
    folders = set()
    if not any(name.startswith("torch") for name in script.aliases.values()):
        return
    for node in script.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            if _method(node.value) in ("ImageFolder", "DatasetFolder"):
                folders |= {t.id for t in node.targets if isinstance(t, ast.Name)}
            if _sorts_labels(script, node.value) and _used_as_index(script, node):
                yield node, why, fix
        elif (
            isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Call) and _sorts_labels(script, node.slice)
        ) or (isinstance(node, ast.Call) and script.name(node.func) == "sorted" and _sorts_samples(node)):
            yield node, why, fix
    for call in script.calls():
        data = call.args[0] if call.args else _keyword(call, "dataset")
        if _method(call) != "DataLoader" or data is None:
            continue
        made = isinstance(data, ast.Call) and _method(data) in ("ImageFolder", "DatasetFolder")
        ordered = _keyword(call, "sampler", "batch_sampler") is None and _is_false(_keyword(call, "shuffle"))
        if ordered and len(call.args) < 3 and (made or _last(data) in folders):
            yield call, f"ImageFolder lists its samples class by class: {why}", "pass shuffle=True"


def _is_false(node: ast.AST | None) -> bool:
    return node is None or (isinstance(node, ast.Constant) and node.value is False)


def _sorts_labels(script: Script, call: ast.Call) -> bool:
    if _method(call) not in ("argsort", "sort"):
        return False
    function = script.name(call.func) in ("torch.argsort", "torch.sort", "numpy.argsort")
    of = call.args[0] if function and call.args else call.func.value if isinstance(call.func, ast.Attribute) else None
    return of is not None and LABELS.search(_last(of)) is not None


def _used_as_index(script: Script, node: ast.Assign) -> bool:
    target = node.targets[0]
    order = target.elts[-1] if isinstance(target, ast.Tuple) and target.elts else target
    indices = (n.slice for n in script.inside(script.scope(node)) if isinstance(n, ast.Subscript))
    return isinstance(order, ast.Name) and any(isinstance(i, ast.Name) and i.id == order.id for i in indices)


def _sorts_samples(call: ast.Call) -> bool:
    key = _keyword(call, "key")
    if not isinstance(key, ast.Lambda) or not call.args or not re.search("data|sample|test_set", _last(call.args[0])):
        return False
    body = key.body
    by_place = isinstance(body, ast.Subscript) and _number(body.slice) in (1, -1)
    return by_place or LABELS.search(_last(body)) is not None


DETECTORS: dict[str, Callable[[Script], Found]] = {
    "P01": negative_norm,
    "P02": cosine_epsilon,
    "P03": half_precision,
    "P04": fresh_feedback,
    "P06": one_layer,
    "P07": lost_auxiliaries,
    "P08": two_passes,
    "P09": unmatched_control,
    "P10": training_mode,
    "P11": renormalised,
    "P13": batch_size,
    "P14": sorted_batches,
    "P15": off_by_one,
}
