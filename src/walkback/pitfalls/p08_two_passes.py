"""Credit from one pass, reference from another: other dropout masks, another gradient."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from walkback.pitfalls.networks import drops_out, is_pass
from walkback.pitfalls.nodes import argument, last, literal, method, names, targets, words
from walkback.pitfalls.pitfall import Entry, Found, Shown
from walkback.pitfalls.script import Script
from walkback.pitfalls.trained import cosine

if TYPE_CHECKING:
    from torch import Tensor, nn

PITFALL = Entry(8, "two-passes", "credit and reference come from different passes", "lint, report")


# Batches are compared with each other: how much of a gradient is noise, or whether it drifts.
_MEANT = re.compile(r"noise|stabil|drift|consisten|between_batch|across|varia|snr|stale|repeat", re.IGNORECASE)
_SAMPLES = re.compile(r"sample|(sample|get|next|draw|fetch|load|random|make)_(\w+_)?(mini)?batch")
_BATCH = re.compile(r"(^|_)(x|y|xs|ys|batch|probe|inputs?|images?|imgs?|labels?|data|tokens?)\d*(_|$)")
_CHANGES = re.compile(
    r"(\w+_)?(transforms?|aug(ment)?(ation)?s?|jitter|corrupt|random_crop|random_flip|add_noise|cutout|mixup)"
)


def detect(script: Script) -> Found:
    """Find a second batch, a second augmentation or a second pass with dropout beside a comparison of directions."""
    fix = "draw one batch, and take credit and gradient from one forward pass of it"
    random = any(map(drops_out, script.calls()))
    for scope, nodes in script.scopes():
        compared = [n for n in nodes if isinstance(n, ast.expr) and script.is_cosine(n)]
        if not compared or any(map(_MEANT.search, _called(script, scope, compared))):
            continue
        calls = sorted((n for n in nodes if isinstance(n, ast.Call)), key=lambda call: (call.lineno, call.col_offset))
        drawn = [c for c in calls if _draws(script, c) and not _in_handler(script, c)]
        again = [c for c in drawn[1:] if not _excludes(script, drawn[0], c) and _alike(drawn[0], c)]
        if again:
            yield (
                again[0],
                "a second batch is drawn: credit and reference of a cosine must come from the same pass",
                fix,
            )
            continue
        for loop in nodes:
            if isinstance(loop, ast.For) and _two_loaders(script, loop):
                yield (
                    loop.iter,
                    "two batches are drawn: credit and reference of a cosine must come from the same one",
                    fix,
                )
        second = next((c for n in compared if (c := _of_two_batches(script, n)) is not None), None)
        if second is not None:
            yield second, "credit and reference of this cosine are of different batches", fix
        changed = [c for c in calls if _CHANGES.fullmatch(method(c))]
        if len(changed) > 1 and len({ast.dump(c) for c in changed[:2]}) == 1:
            yield changed[1], "a second augmentation is drawn: credit and reference see different samples", fix
        told = any(method(c) == "train" and literal(argument(c, 0, "mode")) is not False for c in calls)
        if (told or random) and not script.has_call("eval"):
            yield from (
                (c, "this pass draws other dropout masks than the one before", fix) for c in _again(script, calls)
            )


def _alike(one: ast.Call, other: ast.Call) -> bool:
    """Return whether a sampler is asked the same again; next(iter(…)) of any two loaders draws two batches."""
    return not _SAMPLES.fullmatch(method(other)) or ast.dump(one) == ast.dump(other)


def _excludes(script: Script, one: ast.AST, other: ast.AST) -> bool:
    """Return whether two places stand in different ways of an `if`, of which one alone is gone."""
    above = set(script.above(one))
    shared = next((up for up in script.above(other) if up in above), None)
    if not isinstance(shared, ast.If):
        return False
    ways = [{n for part in way for n in ast.walk(part)} for way in (shared.body, shared.orelse)]
    return any(one in a and other in b for a, b in (ways, ways[::-1]))


def _of_two_batches(script: Script, node: ast.AST) -> ast.Call | None:
    """Return the second of two calls that made the sides of a cosine, where the first was given another batch."""
    if not isinstance(node, ast.Call) or len(node.args) < 2:
        return None
    made = [_maker(script, side) for side in node.args[:2]]
    if made[0] is None or made[1] is None or made[0] is made[1]:
        return None
    batches = [{w for a in call.args for w in words(a) if _BATCH.search(w)} for call in made if call is not None]
    apart = all(batches) and not batches[0] & batches[1]
    return max((c for c in made if c is not None), key=lambda c: c.lineno) if apart else None


def _maker(script: Script, side: ast.expr) -> ast.Call | None:
    """Return the call that made a side: of credits[name] that which gave the credits."""
    made: ast.AST | None = side
    while isinstance(made, (ast.Subscript, ast.Attribute)):
        made = made.value
    made = None if made is None else script.last_assigned(made)
    return made if isinstance(made, ast.Call) else None


def _called(script: Script, scope: ast.AST, compared: list[ast.expr]) -> Iterator[str]:
    """Yield what a function and the names that cosines are assigned to are called."""
    yield getattr(scope, "name", "")
    for node in compared:
        for up in script.above(node):
            if isinstance(up, ast.Assign):
                yield from (name for target in targets(up) for name in names(target))


def _again(script: Script, calls: list[ast.Call]) -> Iterator[ast.Call]:
    """Yield the second pass of a network in a function that takes gradients of the first."""
    passes = [c for c in calls if is_pass(c)]
    for second in passes[1:]:
        same = [c for c in passes if c.lineno < second.lineno and ast.dump(c.func) == ast.dump(second.func)]
        between = [c for c in calls if same and same[0].lineno <= c.lineno <= second.lineno]
        taken = any(script.differentiates(c) or method(c) == "backward" for c in between)
        if taken and not any(method(c) in ("step", "argmax") for c in between):
            yield second
            return


def _two_loaders(script: Script, loop: ast.For) -> bool:
    """Return whether it runs over two loaders at once."""
    if not isinstance(loop.iter, ast.Call) or script.name(loop.iter.func) != "zip":
        return False
    loaders = [a for a in loop.iter.args if any("loader" in word or "batches" in word for word in words(a))]
    return len(loaders) > 1


def _in_handler(script: Script, node: ast.AST) -> bool:
    """Return whether it stands where the batches ran out and are begun anew."""
    return any(isinstance(up, ast.ExceptHandler) for up in script.above(node))


def _draws(script: Script, call: ast.Call) -> bool:
    """Return whether it is next(iter(…)), next of a name that iter(…) was assigned to, or sampler.sample(128)."""
    if _SAMPLES.fullmatch(method(call)) and isinstance(script.parents[call], (ast.Assign, ast.Starred, ast.Call)):
        return isinstance(call.func, ast.Attribute) or method(call) != "sample"
    inner = script.follow(call.args[0]) if call.args and script.name(call.func) == "next" else None
    if isinstance(inner, (ast.Name, ast.Attribute)):
        return re.search(r"iter|loader|batch|stream", last(inner)) is not None
    return isinstance(inner, ast.Call) and script.name(inner.func) == "iter"


def with_dropout(seed: int, p: float = 0.5, gain: float = 1.0) -> nn.Module:
    """Return a network, healthy unless a gain makes it grow, with dropout at the end of every block."""
    from torch import nn

    from walkback.selftest import network

    net = network(gain=gain, seed=seed)
    for block in net.blocks:
        block.append(nn.Dropout(p))  # type: ignore[operator]
    return net


def gradients(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return (B, d) the gradient at site 0: BP's credit, and the reference it is compared with."""
    import torch

    logits, hidden = net(x, return_hidden=True)  # walkback: ignore[P10]
    (g,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, y, reduction="sum"), hidden[:1])
    return g.double()


def show(seed: int = 0) -> Shown:
    """Compare BP with itself, from two passes with dropout and from one pass."""
    import torch

    from walkback.selftest import batches

    net = with_dropout(seed).train()  # walkback: ignore[P10]
    x, y = batches(1, 512, seed=seed + 1)[0]
    torch.manual_seed(seed)
    first, second = gradients(net, x, y), gradients(net, x, y)
    return Shown(
        "cosine of BP with itself",
        cosine(first, second),
        cosine(first, first),
        "each pass draws its own dropout masks (or crops, or batch), so even BP does not agree with BP; a rule's "
        "shortfall then says as much about the masks as about the rule. Take both from one pass.",
    )
