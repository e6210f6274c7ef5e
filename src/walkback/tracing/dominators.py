"""Which nodes of a graph all ways lead through: what a state of one stream has to be."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any


class Ways:
    """The ways down from a result of a forward pass.

    Args:
        top: the node of the result.

    >>> import torch
    >>> h, w = torch.ones(2, 2, requires_grad=True) * 1, torch.nn.Parameter(torch.ones(2, 2))
    >>> f = h @ w
    >>> ways = Ways((h + f).sum().grad_fn)
    >>> [node.name() for node in ways.above(f.grad_fn)], ways.common([h.grad_fn, f.grad_fn]).name()
    (['MmBackward0', 'AddBackward0', 'SumBackward0'], 'AddBackward0')
    """

    def __init__(self, top: Any) -> None:
        self.top = top
        self._over: dict[Any, Any] = {top: None}  # node -> the nearest node that all ways down to it lead through
        self._depth: dict[Any, int] = {top: 0}
        self._used: dict[Any, set[int]] = {top: {0}}  # node -> which of its results are read
        parents: dict[Any, list[Any]] = {}
        for node in downwards(top):
            if node is not top:
                nearest = parents[node][0]
                for parent in parents[node][1:]:
                    nearest = self._meet(nearest, parent)
                self._over[node], self._depth[node] = nearest, self._depth[nearest] + 1
            for child, nr in node.next_functions:
                if child is not None:
                    parents.setdefault(child, []).append(node)
                    self._used.setdefault(child, set()).add(nr)

    def __len__(self) -> int:
        """Return how many nodes there are."""
        return len(self._over)

    def __contains__(self, node: Any) -> bool:
        return node in self._over

    def read(self, node: Any) -> set[int]:
        """Return which results of a node are read."""
        return self._used[node]

    def common(self, nodes: Iterable[Any]) -> Any:
        """Return the lowest node that all ways to all of these lead through."""
        first, *others = nodes
        for node in others:
            first = self._meet(first, node)
        return first

    def above(self, node: Any) -> list[Any]:
        """Return what all ways to a node lead through, from itself to the result."""
        found = [node]
        while (node := self._over[node]) is not None:
            found.append(node)
        return found

    def _meet(self, a: Any, b: Any) -> Any:
        while a is not b:
            if self._depth[a] < self._depth[b]:
                a, b = b, a
            a = self._over[a]
        return a


def downwards(top: Any) -> list[Any]:
    """Return the nodes of a graph, each before what it was computed from."""
    finished: list[Any] = []
    begun: set[Any] = set()
    todo: list[tuple[Any, bool]] = [(top, False)]
    while todo:
        node, ready = todo.pop()
        if ready:
            finished.append(node)
        elif node not in begun:
            begun.add(node)
            todo.append((node, True))
            todo += [(child, False) for child, _ in node.next_functions if child is not None and child not in begun]
    return finished[::-1]


def reached(top: Any, stops: Collection[Any]) -> set[Any]:
    """Return the nodes on ways down from `top` that lead through none of `stops`, without these."""
    seen: set[Any] = set()
    todo = [top] if top not in stops else []
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += [child for child, _ in node.next_functions if child is not None and child not in stops]
    return seen
