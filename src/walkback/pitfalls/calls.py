"""What a call hands back: of arrays in torch, numpy and JAX, of Python's own functions, and of those of the script."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from walkback.pitfalls.arithmetic import LEAST, MOST
from walkback.pitfalls.nodes import argument, keyword, last, literal, method
from walkback.pitfalls.values import BY_LAYER, COSINE, DATA, DRAWN, GRAD, GRADS_OF, Floor, Value, is_state

if TYPE_CHECKING:
    from walkback.pitfalls.flow import Flow
    from walkback.pitfalls.names import Scope

_PACKAGES = ("torch.", "numpy.", "jax.", "cupy.", "scipy.", "math.")
COSINES = ("torch.nn.functional.cosine_similarity", "torch.cosine_similarity")
COSINE_NAME = re.compile(
    r"(\w+_)?(cos(ines?)?(_?sims?(ilarity)?)?|align(ment)?s?|angles?|overlaps?|(grad\w*|direction\w*)_similarity)(_(between|of|deg|degrees|rad|fn|score|sim|rows?))?",
    re.IGNORECASE,
)
# Methods and functions that leave a vector the vector it is; a norm, the norm.
KEEP = {
    *("flatten", "view", "reshape", "ravel", "permute", "transpose", "t", "squeeze", "unsqueeze", "contiguous"),
    *("detach", "clone", "double", "float", "half", "bfloat16", "to", "type", "type_as", "astype", "cpu", "cuda"),
    *("numpy", "item", "tolist", "copy", "requires_grad_", "block_until_ready", "expand", "expand_as", "swapaxes"),
    *("values", "values_list", "asarray", "atleast_1d", "atleast_2d", "device_get", "from_numpy", "as_tensor"),
    *("list", "tuple", "reversed", "sorted", "float32", "float64", "deepcopy", "nan_to_num", "iter", "tqdm", "abs"),
    *("tree_leaves", "leaves", "stop_gradient", "rearrange", "parameters_to_vector", "moveaxis", "array", "tensor"),
    *("concatenate", "cat", "concat", "stack", "hstack", "vstack", "tree_flatten", "ravel_pytree", "deque"),
}
REDUCE = {"mean", "sum", "nanmean", "nansum", "median", "average", "fmean", "std", "var", "amax", "trace", "prod"}
_ONE_VECTOR = {"array", "tensor", "stack", "cat", "concat", "concatenate", "hstack", "vstack", "list", "tuple"}
_PRODUCTS = {"dot", "matmul", "einsum", "inner", "vdot", "vecdot", "mm", "bmm", "mul", "multiply", "tensordot", "mv"}
_AT_LEAST = {"clamp", "clip", "clamp_min", "max", "maximum", "fmax", "clamp_"}
_RANDOM = {
    *("randn", "rand", "normal", "randn_like", "rand_like", "normal_", "uniform", "uniform_", "standard_normal"),
    *("random", "rademacher", "orthogonal_", "orthogonal", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_"),
    *("kaiming_normal_", "trunc_normal_", "choice"),
}
_MADE = {"randint", "ones", "zeros", "full", "eye", "arange", "linspace", "load", "ones_like", "zeros_like"}
_GRADS = {"grad", "filter_grad", "value_and_grad", "filter_value_and_grad", "jacrev", "jacfwd"}
_SAME_FUNCTION = {"jit", "filter_jit", "vmap", "filter_vmap", "pmap", "partial", "checkpoint", "compile", "wraps"}
_TREE_MAP = {"tree_map", "tree_multimap", "map"}
_FILLS = {"append", "insert", "extend", "update", "setdefault", "add", "appendleft"}
# Functions that hand gradients back, as bp_grads(net, x, y) or collect_gradients(net).
_GIVES_GRADIENTS = re.compile(
    r"(get|compute|calc(ulate)?|collect|take|flat(ten)?|bp|backprop|d?fa|ep|true|exact|reference|layer|read|grab|extract)_"
    r"(\w+_)?(grads?|gradients?|credits?)(_(of|for|at|wrt|vector|list|dict)\w*)?"
)


def called(flow: Flow, node: ast.Call, scope: Scope) -> Value:
    """Return what a call hands back."""
    function = flow.value(node.func, scope)
    given = [flow.value(a, scope) for a in node.args]
    by_name = {k.arg or "": flow.value(k.value, scope) for k in node.keywords}
    called_, name = flow.script.name(node.func), method(node)
    whole = called_.startswith(_PACKAGES) or not isinstance(node.func, ast.Attribute)
    of = given[0] if whole and given else None
    if isinstance(node.func, ast.Attribute) and not whole:
        of = flow.values[node.func.value]
    rest = given[1:] if whole else given
    key = flow.key("call", called_ or function.key, *(v.key for v in given), *(v.key for v in by_name.values()))

    made = _torch(flow, node, called_, function, given, by_name)
    if made is not None:
        return made
    if isinstance(node.func, ast.Attribute) and not whole and name in _FILLS and given:
        into = node.func.value
        flow.put(into, flow.each(given[-1]) if name in ("extend", "update") else given[-1], scope)
        return given[-1] if name == "setdefault" else Value(key)
    hooked = _hook(flow, name, given, scope)
    if hooked:
        return Value(key)
    if GRADS_OF in function.kinds:
        gradient = Value(flow.key("grads", key), frozenset({GRAD}))
        if isinstance(function.made, (ast.FunctionDef, ast.Lambda)):
            flow.apply(function.made, given, by_name)
        return replace(gradient, parts=(Value(flow.key("loss", key)), gradient)) if function.unit else gradient
    ours = _of_the_script(flow, node, function, given, by_name, scope)
    if ours is not None:
        return ours.also(COSINE) if COSINE_NAME.fullmatch(name) and not ours.norms else ours
    if of is not None and (whole or isinstance(node.func, ast.Attribute)):
        array = _array(flow, node, name, of, rest, by_name, whole)
        if array is not None:
            return array
    if flow.script.is_cosine_call(node):
        sides = [*given, *(v for k, v in by_name.items() if k in ("x1", "x2"))][:2]
        passed = next((by_name[k].number for k in ("eps", "epsilon") if k in by_name), None)
        if passed is not None and len(sides) == 2 and LEAST <= passed <= MOST:  # of a library: optax, torchmetrics
            return flow.cosine(node, (sides[0], sides[1]), (Floor(node, float(passed)),), by_hand=False)
        kinds = frozenset().union(*(side.kinds for side in sides))
        return Value(key, (kinds - {DATA}) | {COSINE})
    if name in _RANDOM:
        return Value(flow.key("drawn", id(node)), frozenset({DATA, (DRAWN, node)}))
    if _GIVES_GRADIENTS.fullmatch(name):
        return Value(key, frozenset({GRAD}))
    made_up = whole and name in _MADE and not any(is_state(str(literal(a)).rpartition(".")[0]) for a in node.args)
    return Value(key, frozenset({DATA}) if made_up else frozenset())


def _torch(
    flow: Flow, node: ast.Call, called_: str, function: Value, given: list[Value], by_name: dict[str, Value]
) -> Value | None:
    """Return what torch's own cosines, unit vectors and gradients hand back."""
    if called_.endswith("autograd.grad"):
        return Value(flow.key("grads", id(node)), frozenset({GRAD}))
    if called_ in COSINES:
        sides = [*given[:2], *(by_name[k] for k in ("x1", "x2") if k in by_name)]
        floors = _floors(flow, node, node, 3, 1e-8)
        return flow.cosine(node, (sides[0], sides[1]), floors, by_hand=False) if len(sides) == 2 else None
    if called_.endswith("nn.CosineSimilarity"):
        return Value(flow.key("cosine module", id(node)), made=node)
    if isinstance(function.made, ast.Call) and len(given) >= 2:
        return flow.cosine(
            node, (given[0], given[1]), _floors(flow, function.made, function.made, 1, 1e-8), by_hand=False
        )
    if called_ == "sklearn.preprocessing.normalize" and given:
        return flow.unit(given[0])
    if called_.endswith("functional.normalize") and given:
        return flow.unit(given[0], _floors(flow, node, node, 3, 1e-12))
    if called_.endswith(("layer_norm", "rms_norm")) and given and len(node.args) < 3 and not keyword(node, "weight"):
        return flow.unit(given[0])
    package, _, name = called_.rpartition(".")
    if name in _GRADS and package.partition(".")[0] in (
        "jax",
        "torch",
        "eqx",
        "equinox",
        "nnx",
        "flax",
        "haiku",
        "objax",
    ):
        return Value(
            flow.key("grad of", id(node)), frozenset({GRADS_OF}), unit=name.endswith("value_and_grad"),
            made=given[0].made if given else None,
        )  # fmt: skip
    if name in _SAME_FUNCTION and given:
        return given[0]
    return None


def _floors(flow: Flow, call: ast.Call, place: ast.expr, at: int, default: float) -> tuple[Floor, ...]:
    """Return the ε of torch's own function: its default, or the number that is passed."""
    node = argument(call, at, "eps")
    epsilon = default if node is None else flow.of(node).number
    return (Floor(place, float(epsilon), node is None),) if epsilon is not None and epsilon > 0 else ()


def _hook(flow: Flow, name: str, given: list[Value], scope: Scope) -> bool:
    """Note the gradients that a backward hook is handed; return whether it is one."""
    if not re.fullmatch(r"register_(full_)?(backward_)?(pre_)?hook", name) or not given:
        return False
    function = given[-1].made
    if not isinstance(function, (ast.FunctionDef, ast.Lambda)):
        return True
    gradient = Value(flow.key("hooked", id(function)), frozenset({GRAD}))
    parameters = [a.arg for a in flow.parameters(function)]
    if name == "register_hook":
        flow.apply(function, [gradient], {})
    else:
        flow.apply(function, [], dict.fromkeys(parameters[1:3], gradient))
    return True


def _of_the_script(
    flow: Flow, node: ast.Call, function: Value, given: list[Value], by_name: dict[str, Value], scope: Scope
) -> Value | None:
    """Return what a function, method or class of the script hands back, or one that maps it over trees or lists."""
    name, made = method(node), function.made
    of = node if name in _TREE_MAP else node.func  # tree_map(cosine, a, b), vmap(cosine)(a, b)
    inner = of.args[0] if isinstance(of, ast.Call) and method(of) in _TREE_MAP | _SAME_FUNCTION and of.args else None
    if COSINE_NAME.fullmatch(last(inner)) and made is None:
        sides = given if of is not node else given[1:]
        kinds = frozenset().union(*(side.kinds for side in sides)) - {DATA} | {COSINE}
        kinds |= {BY_LAYER} if "tree" in ast.unparse(node.func) else frozenset()
        return Value(flow.key("mapped", id(node)), kinds)
    mapped = name in _TREE_MAP and given and isinstance(given[0].made, (ast.FunctionDef, ast.Lambda))
    if mapped:
        function_, lists = given[0].made, given[1:]
        assert isinstance(function_, (ast.FunctionDef, ast.Lambda))
        mapped_ = flow.list_of(flow.apply(function_, [flow.each(v) for v in lists], {}))
        return mapped_.also(BY_LAYER) if COSINE in mapped_.kinds and "tree" in ast.unparse(node.func) else mapped_
    if isinstance(node.func, ast.Attribute):
        found = flow.method(flow.values[node.func.value].made, name)
        if found is not None:
            return flow.apply(found, given, by_name)
    if isinstance(made, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        return flow.apply(made, given, by_name)
    if isinstance(made, ast.ClassDef):
        start = flow.method(made, "__init__")
        if start is not None:
            flow.apply(start, given, by_name)
        return Value(flow.key("object", id(node)), made=made)
    return None


def _array(
    flow: Flow, node: ast.Call, name: str, of: Value, rest: list[Value], by_name: dict[str, Value], whole: bool
) -> Value | None:
    """Return what a function or method of arrays hands back."""
    first = rest[0] if rest else None
    if name in ("norm", "vector_norm", "matrix_norm", "global_norm"):
        flow.normed[node] = of
        return flow.norm(of)
    if name in ("square", "sqrt", "rsqrt", "reciprocal"):
        if name == "square":
            return flow.power(of, 2, node)
        return flow.power(of, -1, node) if name == "reciprocal" else flow.root(of, node, inverse=name == "rsqrt")
    if name in ("pow", "power", "float_power") and first is not None:
        return flow.power(of, first.number, node)
    if name in ("div", "divide", "true_divide", "div_") and first is not None:
        return flow.quotient(of, first, node)
    if name in ("add", "add_") and first is not None:
        return flow.operate(ast.Add(), of, first, node)
    if name in _PRODUCTS:
        vectors = [v for v in (of, *rest) if v.made is None][-2:] if name == "einsum" else [of, *rest[:1]]
        if len(vectors) == 2:
            return flow.product(vectors[0], vectors[1], node, matrix=name not in ("mul", "multiply"))
    if name in _AT_LEAST:
        return _at_least(flow, node, of, rest, by_name)
    if name in ("zip", "izip"):
        return flow.paired([of, *rest])
    if name == "enumerate":
        return flow.gathered([Value(flow.key("index", id(node))), flow.each(of)])
    if name == "items":
        return flow.gathered([Value(flow.key("name", id(node))), flow.each(of)])
    if name == "where" and len(rest) == 2:
        return flow.either(flow.guards.get(of.made), rest[0], rest[1])
    if name == "masked_fill" and len(rest) == 2 and rest[1].number is not None:
        return flow.either(flow.guards.get(rest[0].made), of, rest[1])
    if name in ("get", "pop", "next", "getattr"):
        return flow.each(of, 0)
    if name in ("ones", "ones_like") and whole:
        return Value(flow.key("ones", id(node)), frozenset({DATA}), number=1)
    if name in REDUCE:
        if of.norms or COSINE in of.kinds:
            return of
        return replace(of, key=flow.key("reduced", of.key), unit=False, parts=None, over=of.over)
    if name in KEEP:
        if name in ("tree_flatten", "ravel_pytree"):
            return flow.gathered([of, Value(flow.key("function", id(node)))])
        return replace(of, parts=None) if of.parts and name in _ONE_VECTOR else of
    if name in ("rad2deg", "acos", "arccos", "degrees", "arccosine") and COSINE in of.kinds:
        return of
    return None


def _at_least(flow: Flow, node: ast.Call, of: Value, rest: list[Value], by_name: dict[str, Value]) -> Value:
    """Return norms that are clamped from below; other values pass."""
    if method(node) in ("max", "maximum", "fmax"):
        numbers = [v for v in (of, *rest) if v.number is not None]
        norms = next((v for v in (of, *rest) if v.norms), None)
        if norms is not None and numbers:
            return flow.held(norms, numbers[0].number, node)
        return of
    low = next((by_name[k] for k in ("min", "a_min") if k in by_name), rest[0] if rest else None)
    return flow.held(of, low.number, node) if of.norms and low is not None else of
