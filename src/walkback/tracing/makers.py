"""Which tensor of a module first held the value that it returned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

Key = Any  # a site 1…L; for site 0 ("stem", k), or 0 where the user named its writer, or "given": what block 1 received


class Makers(TorchFunctionMode):
    """Knows which tensor each node of the graph made inside a module, and which parameters are used outside theirs."""

    def __init__(self, owned: Mapping[Key, Iterable[Tensor]]) -> None:
        super().__init__()
        self.shared: set[int] = set()  # ids of parameters that are used outside their module
        self._owners: dict[int, set[Key]] = {}
        for key, parameters in owned.items():
            for p in parameters:
                self._owners.setdefault(id(p), set()).add(key)
        self.shared |= {p for p, keys in self._owners.items() if len(keys) > 1}
        self._running: list[Key] = []
        self._made: dict[Any, Tensor] = {}
        self._outside: set[Any] = set()  # nodes of what the module was given

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one call and note what it made, and of which parameters."""
        result = func(*args, **(kwargs or {}))
        if torch.is_grad_enabled():
            given = tree_leaves((args, kwargs))
            if self.note(result):
                self._look_at_owners(given)
            self.note(given)
        return result

    def note(self, values: Any) -> bool:
        """Remember the tensors that a node of the graph made; whether there are any."""
        found = False
        for t in tree_leaves(values):
            if isinstance(t, Tensor) and t.grad_fn is not None:
                self._made[t.grad_fn] = t
                found = True
        return found

    def _look_at_owners(self, given: Iterable[Any]) -> None:
        """Keep which parameters enter the graph while their module does not run: others give them a gradient too."""
        for t in given:
            owners = self._owners.get(id(t))
            if owners and not owners & {*self._running} and not _in_backward():
                self.shared.add(id(t))

    def enter(self, key: Key, given: Iterable[Any]) -> None:
        """Begin a writer, with what it was given."""
        self._running.append(key)
        self._made = {}
        self._outside = {t.grad_fn for t in given if isinstance(t, Tensor) and t.grad_fn is not None}

    def leave(self, key: Key) -> None:
        """End a writer and let its tensors go."""
        self.end(key)
        self._made, self._outside = {}, set()

    def begin(self, key: Key) -> None:
        """Begin a module with the weights of a writer that has none."""
        self._running.append(key)

    def end(self, key: Key) -> None:
        """End such a module."""
        if key in self._running:
            self._running.remove(key)

    def source(self, tensor: Tensor) -> tuple[Tensor, bool]:
        """Return the first tensor in the module that held the value of `tensor`, and whether the graph is cut between.

        Ways down: a custom autograd Function that passed the value on (it can only be there for its backward pass), a
        plain operation with one input that did (a view, a copy), and from a tensor without a graph to one of the same
        value that has one (`detach()`).
        """
        here, cut = tensor, False
        while True:
            below = self._below(here)
            if below is None and here.grad_fn is None and not isinstance(here, nn.Parameter):
                below = self._last_of_value(here)
                cut = cut or below is not None
            if below is None:
                return here, cut
            here = below

    def _below(self, tensor: Tensor) -> Tensor | None:
        node = tensor.grad_fn
        if node is None:
            return None
        inputs = [below for below, _ in node.next_functions if below is not None]
        if not isinstance(node, torch.autograd.function.BackwardCFunction) and len(inputs) != 1:
            return None
        found = (self._tensor_of(below) for below in inputs if below not in self._outside)
        return next((t for t in found if t is not None and same(t, tensor)), None)

    def _tensor_of(self, node: Any) -> Tensor | None:
        made = self._made.get(node)
        if made is not None:
            return made if made.grad_fn is node else None  # or it was written in place since
        leaf = getattr(node, "variable", None)
        return leaf if isinstance(leaf, Tensor) and not isinstance(leaf, nn.Parameter) else None

    def _last_of_value(self, tensor: Tensor) -> Tensor | None:
        found = (t for node, t in reversed(self._made.items()) if t.grad_fn is node and node not in self._outside)
        return next((t for t in found if same(t, tensor)), None)


def same(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are of one kind and hold the same numbers."""
    with torch.no_grad():
        return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)


def _in_backward() -> bool:
    """Return whether this runs inside a backward pass, where activation checkpointing runs parts of modules again."""
    return torch._C._current_graph_task_id() != -1
