"""The first batches of a test set sorted by class are all of one class: a reference that seems to drift."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from walkback.pitfalls.nodes import keyword, last, literal, method, names, number, owner
from walkback.pitfalls.pitfall import Entry, Found, Shown
from walkback.pitfalls.script import LABELS, Script

if TYPE_CHECKING:
    from torch import Tensor

PITFALL = Entry(14, "sorted-batches", "batches sorted by class fake a drifting reference", "lint, report")

_MEASURES = re.compile(r"alignment|gradient_norm|gradient_cos|cosine", re.IGNORECASE)
_SAMPLES = re.compile(r"(^|_)(x|xs|inputs?|images?|imgs?|data|samples?|features?|tokens?|ids|test_?set)\d*(_|$)", re.I)
_FOLDERS = ("ImageFolder", "DatasetFolder")


def detect(script: Script) -> Found:
    """Find samples put in the order of their labels, or a folder of class folders that is not shuffled."""
    fix = "shuffle: x[torch.randperm(len(x), generator=…)], or DataLoader(…, shuffle=True)"
    why = "batches in the order of their labels share a direction, which looks like a drifting reference"
    folders, folders_matter = set(), _reads_gradients(script)  # an accuracy is the same in any order
    if not any(name.startswith("torch") for name in script.aliases.values()):
        return
    for node in script.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            inner = node.value.args[0] if method(node.value) == "Subset" and node.value.args else node.value
            first = inner is not node.value and any(method(a) == "range" for a in node.value.args[1:])
            if method(inner) in _FOLDERS or (first and last(inner) in folders):
                folders |= {last(t) for t in node.targets}
            indices = node.value.args[:1] and method(node.value.args[0]) == "range" and _sorts_samples(node.value)
            if (_sorts_labels(script, node.value) or indices) and _used_as_index(script, node):
                yield node, why, fix
        elif (
            (isinstance(node, ast.Subscript) and _sorts_labels(script, node.slice))
            or (
                isinstance(node, ast.Call)
                and (
                    (script.name(node.func) == "sorted" and _sorts_samples(node) and method(node.args[0]) != "range")
                    or _sorts_by_column(node)
                )
            )
            or (
                isinstance(node, ast.Call)
                and method(node) == "Subset"
                and any(_sorts_labels(script, a) for a in node.args[1:])
            )
            or (
                isinstance(node, ast.Call) and folders_matter and _gathers_classes(node) and not _shuffles(script, node)
            )
        ):
            yield node, why, fix
    yield from ((node, why, fix) for node in _listed_by_class(script) if folders_matter)
    for call in script.calls() if folders_matter else ():
        data = call.args[0] if call.args else keyword(call, "dataset")
        if method(call) != "DataLoader" or data is None:
            continue
        shuffle = keyword(call, "shuffle")
        sampler = keyword(call, "sampler", "batch_sampler")
        ordered = (sampler is None or method(sampler) == "SequentialSampler") and (
            shuffle is None or literal(shuffle) is False
        )
        if ordered and len(call.args) < 3 and (method(data) in _FOLDERS or last(data) in folders):
            yield call, f"ImageFolder lists its samples class by class: {why}", "pass shuffle=True"


def _sorts_by_column(call: ast.Call) -> bool:
    """Return whether it is frame.sort_values("label") of pandas, or dataset.sort("label") of Hugging Face."""
    if method(call) not in ("sort_values", "sort"):
        return False
    given = [*call.args, *(k.value for k in call.keywords)]
    return any(LABELS.search(str(literal(value))) for value in given if isinstance(literal(value), str))


def _gathers_classes(call: ast.Call) -> bool:
    """Return whether it is torch.cat([x[y == c] for c in range(10)])."""
    if method(call) not in ("cat", "concat", "concatenate", "vstack", "hstack") or not call.args:
        return False
    of = call.args[0]
    if not isinstance(of, (ast.ListComp, ast.GeneratorExp)):
        return False
    chosen = [n.slice for n in ast.walk(of.elt) if isinstance(n, ast.Subscript)]
    compared = [n for n in chosen if isinstance(n, ast.Compare) and isinstance(n.ops[0], ast.Eq)]
    turn = set(names(of.generators[0].target))
    return any(turn & set(names(n)) and any(map(LABELS.search, names(n))) for n in compared)


def _listed_by_class(script: Script) -> Iterator[ast.stmt]:
    """Yield where indices are put into a list class by class: idx += torch.where(y == c)[0].tolist(), then x[idx]."""
    for node in script.of(ast.AugAssign, ast.Expr):
        into, put = _put(node)
        chosen = [n for n in ast.walk(put) if isinstance(n, ast.Compare)] if put is not None else []
        equal = [n for n in chosen if isinstance(n.ops[0], ast.Eq) and any(map(LABELS.search, names(n)))]
        turns = {w for up in script.above(node) if equal and isinstance(up, ast.For) for w in names(up.target)}
        by_class = any(turns & set(names(n)) for n in equal)
        if by_class and _indexes(script, node, into) and not _shuffles(script, node):
            yield node


def _put(node: ast.AST) -> tuple[str, ast.expr | None]:
    """Return the name of a list that a statement adds to, and what it adds."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return last(node.target), node.value
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and method(call) in ("append", "extend") and call.args:
        return last(owner(call)), call.args[0]
    return "", None


def _indexes(script: Script, node: ast.AST, name: str) -> bool:
    """Return whether samples are taken in the order of a list, or it is of samples itself."""
    if _SAMPLES.search(name):
        return True
    for use in script.inside(script.scope(node)):
        if isinstance(use, ast.Subscript) and name in names(use.slice) and _SAMPLES.search(last(use.value)):
            return True
        if method(use) in ("Subset", "index_select", "select", "take") and name in names(use):
            return True
    return False


def _shuffles(script: Script, node: ast.AST) -> bool:
    """Return whether an order is drawn in the same function."""
    calls = (n for n in script.inside(script.scope(node)) if isinstance(n, ast.Call))
    return any(
        method(c) in ("randperm", "permutation", "shuffle") or literal(keyword(c, "shuffle")) is True for c in calls
    )


def _reads_gradients(script: Script) -> bool:
    """Return whether gradients or alignments are measured: by autograd, a cosine, a norm of a gradient, or Walkback."""
    if any(name.partition(".")[0] == "walkback" for name in script.aliases.values()):
        return True
    read = any(isinstance(n, ast.Attribute) and n.attr == "grad" and isinstance(n.ctx, ast.Load) for n in script.nodes)
    return any(
        script.differentiates(call)
        or (script.is_cosine_call(call) and any(map(script.is_gradient, call.args)))
        or (read and script.norm_of(call) is not None)
        or _MEASURES.search(last(call.func)) is not None
        for call in script.calls()
    )


def _sorts_labels(script: Script, call: ast.AST) -> bool:
    if not isinstance(call, ast.Call) or method(call) not in ("argsort", "sort"):
        return False
    whole = script.name(call.func).startswith(("torch.", "numpy.", "jax."))
    of = call.args[0] if whole and call.args else owner(call)
    while isinstance(of, ast.Call):  # torch.tensor(ds.targets)
        of = of.args[0] if of.args else owner(of)
    return of is not None and LABELS.search(last(of)) is not None


def _used_as_index(script: Script, node: ast.Assign) -> bool:
    target = node.targets[0]
    order = target.elts[-1] if isinstance(target, ast.Tuple) and target.elts else target
    uses = [n for n in script.inside(script.scope(node)) if isinstance(n, ast.Subscript)]
    put = [last(n.value) for n in uses if getattr(order, "id", "") in names(n.slice)]
    subsets = (n for n in script.inside(script.scope(node)) if method(n) in ("Subset", "select", "index_select"))
    if any(getattr(order, "id", "") in names(part) for n in subsets for part in n.args):  # type: ignore[attr-defined]
        return True
    return any(_SAMPLES.search(name) for name in put)  # predictions may be drawn in the order of their labels


def _sorts_samples(call: ast.Call) -> bool:
    key = keyword(call, "key")
    if not isinstance(key, ast.Lambda) or not call.args:
        return False
    if isinstance(key.body, ast.Subscript) and LABELS.search(last(key.body.value)) and method(call.args[0]) == "range":
        return True  # their indices
    if not re.search("data|sample|test_?set", last(call.args[0])):
        return False
    by_place = isinstance(key.body, ast.Subscript) and number(key.body.slice) in (1, -1)
    return by_place or LABELS.search(last(key.body)) is not None


COUNT = 8  # batches of 128 that are measured, as the protocol asks


def samples(seed: int) -> tuple[Tensor, Tensor]:
    """Return (10240, 16) inputs in random order, and labels of ten classes of equal size."""
    from walkback.selftest import batches

    return batches(1, 10 * COUNT * 128, seed=seed + 1)[0]


def stability(x: Tensor, y: Tensor) -> float:
    """Return the mean pairwise cosine of the batch-mean g_L over the first eight batches of 128."""
    from walkback.api import measure
    from walkback.selftest import noisy

    taken = list(zip(x.split(128), y.split(128)))[:COUNT]
    return measure(noisy(), taken).stability or 0.0


def show(seed: int = 0) -> Shown:
    """Return the direction stability of one network, from sorted and from shuffled samples."""
    x, y = samples(seed)
    order = y.argsort(stable=True)  # walkback: ignore[P14]
    seen = len(y[order][: COUNT * 128].unique())
    return Shown(
        "direction stability of g_L",
        stability(x[order], y[order]),
        stability(x, y),
        f"sorted, the first {COUNT} batches hold {seen} of {len(y.unique())} classes, whose mean gradients agree: over "
        "0.30 that is called drift-dominated. Shuffled, only sampling noise is left of this network's mean gradient.",
    )
