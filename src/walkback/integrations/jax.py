"""JAX networks: from a function `forward(params, x, taps)` to the arrays that `walkback.diagnose_arrays` reads.

A tap is added to the state of each site. It is zero, so it changes nothing, and the gradient of the losses by it is the
gradient by the state, whatever library the network is written in.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from walkback.errors import InputError, shown
from walkback.integrations.library import library

Forward = Callable[[Any, Any, Any], Any]
STEP = 1e-5  # of finite differences in float64, relative to the norm of the state


@dataclass(frozen=True)
class Pass:
    """What one pass of one batch showed, as JAX arrays: `states` and `grads` have one entry per site 0…L.

    `grads` are those of the sum of per-sample losses.
    """

    inputs: Any
    labels: Any
    logits: Any
    losses: Any
    states: tuple[Any, ...]
    grads: tuple[Any, ...]


class Taps:
    """What `forward` adds at its sites: `h = h + taps[0]`, `h = h + taps[1]`, …; any key does, in the order of use.

    A pytree: it can be handed through `jax.jit`. Then `forward` returns (logits, [h_0, …, h_L]), since what is added
    inside of a compiled function is not seen outside.
    """

    def __init__(self, values: Mapping[Hashable, Any] | None = None) -> None:
        self.values = dict(values or {})
        self.states: dict[Hashable, Any] = {}

    def __getitem__(self, site: Hashable) -> _Tap:
        return _Tap(self, site)


class _Tap:
    __array_ufunc__ = None  # numpy arrays leave the sum to this class, as JAX's do

    def __init__(self, taps: Taps, site: Hashable) -> None:
        self._taps, self._site = taps, site

    def __radd__(self, state: Any) -> Any:
        if self._site in self._taps.states:
            raise InputError(
                f"Expected every tap to be added once, but taps[{shown(self._site)}] was added twice. Give every "
                "site its own key."
            )
        tap = self._taps.values.get(self._site)
        self._taps.states[self._site] = state = state if tap is None else state + tap
        return state

    __add__ = __radd__


def traced(forward: Forward, params: Any, x: Any, y: Any, loss: Callable[[Any, Any], Any] | None = None) -> Pass:
    """Run a batch and return its states and their gradients.

    As a rule's credits: where the backward pass of another function is the rule's (a `jax.custom_vjp`, a
    `stop_gradient`), `credit=lambda t: traced(fa_forward, params, t.inputs, t.labels).grads`.
    """
    jax = library("jax", "jax")
    _register(jax)
    zeros = {site: jax.numpy.zeros(shape.shape, shape.dtype) for site, shape in _sites(jax, forward, params, x).items()}
    run = _losses(forward, params, x, y, loss)
    grads, (losses, logits, states) = jax.grad(run, has_aux=True)(zeros)
    return Pass(x, y, logits, losses, tuple(states[site] for site in zeros), tuple(grads[site] for site in zeros))


def arrays(
    forward: Forward,
    params: Any,
    batches: Iterable[tuple[Any, Any]],
    credit: Callable[[Pass], Any] | None = None,
    *,
    loss: Callable[[Any, Any], Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield what `walkback.diagnose_arrays` reads, batch by batch: `diagnose_arrays(arrays(forward, params, batches))`.

    The gradients of the first batch are compared with finite differences in float64: a `stop_gradient` or a
    `custom_vjp` on the way makes them something else than the derivative of the loss, and the report says so.

    Args:
        forward: (params, x, taps) -> logits (B, C), with `h = h + taps[l]` at every site 0…L, first site first; or ->
            (logits, states).
        params: the pytree of weights, as `forward` takes them (an equinox module is one).
        batches: (inputs (B, …), labels (B,)) pairs.
        credit: Pass -> one array per site, shaped like its state: the rule's credit a_l.
        loss: (logits, labels) -> per-sample losses (B,); cross-entropy by default.
    """
    jax = library("jax", "jax")
    for index, (x, y) in enumerate(batches):
        one = traced(forward, params, x, y, loss)
        made: dict[str, Any] = {"states": one.states, "grads": one.grads, "losses": one.losses, "logits": one.logits}
        made["reduction"] = "sum"
        made |= {"labels": y, "inputs": np.asarray(x) if hasattr(x, "shape") else None}
        if credit is not None:
            made["credits"] = list(credit(one))
        if not index:
            made["backward_error"] = _backward_error(jax, forward, params, one, loss)
        yield made


@cache
def _register(jax: Any) -> None:
    """Make Taps a pytree, once."""
    jax.tree_util.register_pytree_node(
        Taps,
        lambda taps: (list(taps.values.values()), tuple(taps.values)),
        lambda keys, values: Taps(dict(zip(keys, values))),
    )


def _sites(jax: Any, forward: Forward, params: Any, x: Any) -> dict[Hashable, Any]:
    """Return key -> shape and dtype of the state at every site, in the order of the pass. Nothing is computed."""
    arrays, rest = _split(jax, params)
    order: list[Hashable] = []  # JAX sorts the keys of a dict that leaves its trace

    def shapes(leaves: Any, x: Any) -> Any:
        _, states = _answer(forward, _joined(jax, leaves, rest), x, Taps())
        order.extend(states)
        return states

    found = jax.eval_shape(shapes, arrays, x)
    if len(found) < 2:
        raise InputError(
            f"Expected forward to add a tap at 2 sites or more (h = h + taps[0], …), but {len(found)} was seen. Where "
            "it is compiled, or adds them by another function than +, let it return (logits, [h_0, …, h_L])."
        )
    return {site: found[site] for site in order}


def _answer(forward: Forward, params: Any, x: Any, taps: Taps) -> tuple[Any, dict[Hashable, Any]]:
    """Return logits and states by key, of what forward returns or of what it added taps to."""
    answer = forward(params, x, taps)
    if isinstance(answer, tuple) and len(answer) == 2:
        logits, states = answer
        return logits, dict(states) if isinstance(states, Mapping) else dict(enumerate(states))
    if not hasattr(answer, "shape"):
        raise InputError(f"Expected forward to return logits, or (logits, states), but got {type(answer).__name__}.")
    return answer, dict(taps.states)


def _losses(
    forward: Forward, params: Any, x: Any, y: Any, loss: Callable[[Any, Any], Any] | None
) -> Callable[[Mapping[Hashable, Any]], Any]:
    """Return the sum of per-sample losses as a function of the taps, with (losses, logits, states) beside it."""

    def run(values: Mapping[Hashable, Any]) -> Any:
        logits, states = _answer(forward, params, x, Taps(values))
        losses = (loss or _cross_entropy)(logits, y)
        if getattr(losses, "shape", None) != (logits.shape[0],):
            raise InputError(
                f"Expected loss to return one number per sample, ({logits.shape[0]},), but got "
                f"{shown(getattr(losses, 'shape', losses))}. Leave the mean out of it."
            )
        return losses.sum(), (losses, logits, states)

    return run


def _cross_entropy(logits: Any, labels: Any) -> Any:
    jax = library("jax", "jax")
    logs = jax.nn.log_softmax(logits, axis=-1)
    labels = jax.numpy.asarray(labels)
    if jax.numpy.issubdtype(labels.dtype, jax.numpy.floating):
        return -(labels * logs).sum(-1)
    return -jax.numpy.take_along_axis(logs, labels[:, None], axis=-1)[:, 0]


def _backward_error(jax: Any, forward: Forward, params: Any, one: Pass, loss: Any) -> list[float] | None:
    """Return per site ‖Δ − ⟨g, v⟩‖ relative to ‖Δ‖ over samples, Δ by central differences along a random v.

    In float64; None where the network can't be run in it.
    """
    draw = np.random.default_rng(0)
    with jax.enable_x64(True):
        leaves, rest = _split(jax, params)
        wide = _joined(jax, [_widened(jax, leaf) for leaf in leaves], rest)
        x, states = _widened(jax, one.inputs), [np.asarray(h, np.float64) for h in one.states]
        found = []
        try:
            keys = list(_sites(jax, forward, wide, x))
            run = _losses(forward, wide, x, one.labels, loss)
            for site, (h, g) in enumerate(zip(states, one.grads)):
                v = draw.normal(size=h.shape)
                size = STEP * max(float(np.linalg.norm(h)), np.finfo(np.float64).tiny) / float(np.linalg.norm(v))
                zeros = {key: jax.numpy.zeros(s.shape) for key, s in zip(keys, states)}
                up, down = (run({**zeros, keys[site]: jax.numpy.asarray(s * size * v)})[1][0] for s in (1, -1))
                change = np.asarray(up - down) / (2 * size)
                told = (np.asarray(g, np.float64) * v).reshape(len(h), -1).sum(1)
                top = max(float(np.linalg.norm(change)), float(np.linalg.norm(told)))
                found.append(float(np.linalg.norm(change - told)) / top if top else 0.0)
        except (TypeError, ValueError):  # dtypes that the network fixes itself
            return None
    return found if np.isfinite(found).all() else None


def _split(jax: Any, params: Any) -> tuple[list[Any], tuple[Any, list[Any]]]:
    """Return the arrays of a pytree, and what puts them back beside its other leaves (functions, names)."""
    leaves, tree = jax.tree_util.tree_flatten(params)
    arrays = [leaf for leaf in leaves if hasattr(leaf, "dtype")]
    return arrays, (tree, leaves)


def _joined(jax: Any, arrays: list[Any], rest: tuple[Any, list[Any]]) -> Any:
    tree, leaves = rest
    given = iter(arrays)
    return jax.tree_util.tree_unflatten(tree, [next(given) if hasattr(leaf, "dtype") else leaf for leaf in leaves])


def _widened(jax: Any, leaf: Any) -> Any:
    array = hasattr(leaf, "dtype") and jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating)
    return jax.numpy.asarray(np.asarray(leaf), jax.numpy.float64) if array else leaf
