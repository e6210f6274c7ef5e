"""Which layers lie below which in the graph of a pass: is there a way past a layer, as a residual stream has one?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

# Nodes of products with a weight: a way that avoids them goes past the weights.
_MIXING = ("Addmm", "Mm", "Mv", "Addmv", "Bmm", "Baddbmm", "Linear", "Convolution", "Embedding", "Lstm", "Gru", "Rnn")
_MIXING += ("SlowConv", "ThnnConv", "CudnnRnn", "MkldnnRnn", "MiopenRnn", "MkldnnConvolution")
_SUMS = ("AddBackward", "SubBackward")
_ELEMENTWISE = ("Add", "Sub", "Mul", "Div")


class Below:
    """What a result was computed from, among some marked places of its graph.

    Args:
        top: the result, say the losses.
        marks: (node, number of its output) -> bits of the runs that it belongs to, as a number.
        near: the bits that end a way down, for `nearest`.

    >>> x = torch.ones(2, requires_grad=True)
    >>> a = 2 * x
    >>> b = a.exp()
    >>> found = Below((a + b).sum(), {(a.grad_fn, 0): 1, (b.grad_fn, 0): 2}, 3)
    >>> found.under(b.grad_fn), found.nearest()  # the sum reads both: there is a way past b
    (1, 3)
    """

    def __init__(self, top: Tensor, marks: Mapping[tuple[Any, int], int], near: int) -> None:
        self._top: Any = top.grad_fn
        self._below: dict[Any, int] = {}
        self._nearest: dict[Any, int] = {}
        self.reached: set[tuple[Any, int]] = set()
        self.joins = False  # whether two marked places meet in a sum, as a branch and a skip do, or two towers
        todo: list[tuple[Any, bool]] = [(self._top, False)]
        while todo:
            node, ready = todo.pop()
            if node is None or (node in self._below and not ready):
                continue
            below = [(child, nr) for child, nr in node.next_functions if child is not None]
            if not ready:
                self._below[node] = 0
                todo.append((node, True))
                todo += [(child, False) for child, _ in below if child not in self._below]
                continue
            under = closest = 0
            for edge in below:
                here = marks.get(edge, 0)
                if here:
                    self.reached.add(edge)
                under |= here | self._below[edge[0]]
                closest |= here & near or self._nearest.get(edge[0], 0)
            self._below[node], self._nearest[node] = under, closest
            parts = [marks.get(edge, 0) | self._below[edge[0]] for edge in below]
            self.joins |= type(node).__name__.startswith(_SUMS) and len(parts) == 2 and all(parts)
        first = (self._top, top.output_nr)  # a layer may return the result itself
        self.reached |= {first} & marks.keys()
        self._first = marks.get(first, 0) & near or self._nearest.get(self._top, 0)

    def under(self, node: Any) -> int:
        """Return the bits of all that lies below a node."""
        return self._below.get(node, 0)

    def nearest(self, node: Any = None) -> int:
        """Return the bits that the ways down from a node, or from the result, meet first."""
        return self._first if node is None else self._nearest.get(node, 0)


def goes_past_weights(made: Iterable[Any], given: set[Any]) -> bool:
    """Return whether a way leads from the nodes that a module made to one of what it was given that meets no weight."""
    seen: set[Any] = set()
    todo: list[Any] = list(made)
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        if node in given:
            return True
        seen.add(node)
        if not _mixes(node):
            todo += [child for child, _ in node.next_functions]
    return False


def _mixes(node: Any) -> bool:
    name = type(node).__name__
    if name.startswith(_MIXING):
        return True
    return not name.startswith(_ELEMENTWISE) and any(_is_weight(child) for child, _ in node.next_functions)


def _is_weight(node: Any) -> bool:
    """Return whether a node is a parameter of two dimensions or more, or a view of one."""
    for _ in range(4):
        if node is None:
            return False
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            return leaf.ndim > 1 and isinstance(leaf, torch.nn.Parameter)
        if len(node.next_functions) != 1:
            return False
        node = node.next_functions[0][0]
    return False
