"""Which layers lie below which in the graph of a pass: is there a way past a layer, as a residual stream has one?"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import reduce
from operator import or_
from typing import Any

import torch
from torch import Tensor

# Nodes of products with a weight: a way that avoids them goes past the weights.
_MIXING = ("Addmm", "Mm", "Mv", "Addmv", "Bmm", "Baddbmm", "Linear", "Convolution", "Embedding", "Lstm", "Gru", "Rnn")
_MIXING += ("SlowConv", "ThnnConv", "CudnnRnn", "MkldnnRnn", "MiopenRnn", "MkldnnConvolution")
_DISTANCES = ("SubBackward", "Cdist")  # to prototypes, which are a weight too
_APART = (*_MIXING, "Cat", "Stack")  # what these are given stays apart
_SUMS = ("AddBackward", "SubBackward")
VIEWS = ("View", "UnsafeView", "Unsqueeze", "Expand", "Reshape", "Transpose", "Permute", "Select", "Slice")
_ELEMENTWISE = ("Add", "Sub", "Mul", "Div")


class Below:
    """What a result was computed from, among some marked places of its graph.

    Args:
        top: the result, say the losses.
        marks: (node, number of its output) -> bits of the runs that it belongs to, as a number.
        near: the bits that end a way down, for `nearest`.
        inside: nodes within one layer, where a sum joins nothing but parts of that layer.

    >>> x = torch.ones(2, requires_grad=True)
    >>> a = 2 * x
    >>> b = a.exp()
    >>> found = Below((a + b).sum(), {(a.grad_fn, 0): 1, (b.grad_fn, 0): 2}, 3)
    >>> found.under(b.grad_fn), found.nearest()  # the sum reads both: there is a way past b
    (1, 3)
    """

    def __init__(
        self, top: Tensor, marks: Mapping[tuple[Any, int], int], near: int, inside: Collection[Any] = ()
    ) -> None:
        self._top: Any = top.grad_fn
        self._below: dict[Any, int] = {}
        self._nearest: dict[Any, int] = {}
        self._ungated: dict[Any, int] = {}  # the same where a product is its gate: what that reads is no way past it
        self._unmixed: dict[Any, int] = {}  # the same on ways that meet no weight between layers
        self._carried: dict[Any, int] = {}  # the same where of a product with a gate only the other side counts
        self._met: list[tuple[Any, list[int]]] = []  # nodes where several such ways meet, but in a concatenation
        self.reached: set[tuple[Any, int]] = set()
        # whether two marked places meet in a sum that a place at `near` reads, as a branch and a skip do; towers that
        # meet in the answer alone are none
        self.joins = False
        joined: dict[Any, bool] = {}
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
            under = closest = unmixed = 0
            joined[node] = any(joined[edge[0]] for edge in below)
            self.joins |= any(joined[edge[0]] for edge in below if marks.get(edge, 0) & near)
            behind = [(marks.get(edge, 0) & near or self._ungated.get(edge[0], 0)) for edge in below]
            for edge in below:
                here = marks.get(edge, 0)
                if here:
                    self.reached.add(edge)
                under |= here | self._below[edge[0]]
                closest |= here & near or self._nearest.get(edge[0], 0)
                between_layers = goes_through_weight(edge[0]) and edge[0] not in inside
                unmixed |= here & near or (0 if between_layers else self._unmixed.get(edge[0], 0))
            self._below[node], self._nearest[node], self._unmixed[node] = under, closest, unmixed
            if len(behind) == 2 and type(node).__name__.startswith("MulBackward"):
                gated = [self._below[edge[0]] if _is_gate(edge[0]) else 0 for edge in below]
                behind = [behind[0] & ~gated[1], behind[1] & ~gated[0]]
            self._ungated[node] = reduce(or_, behind, 0)
            carried = [marks.get(edge, 0) & near or self._carried.get(edge[0], 0) for edge in below]
            if type(node).__name__.startswith("MulBackward"):  # one side of it may carry no gradient: a state of zeros
                gates = [_is_gate(edge[0]) for edge in below]
                both = all(gates) and len(gates) > 1
                carried = [bits for bits, gate in zip(carried, gates) if not gate or both]
            self._carried[node] = reduce(or_, carried, 0)
            apart = type(node).__name__.startswith(_APART) or node in inside
            if type(node).__name__.startswith("MulBackward"):  # h * (1 + f) is a sum, h * f none
                apart |= not any(is_sum(edge[0]) and not marks.get(edge, 0) for edge in below)
            if sum(map(bool, carried)) > 1 and not apart:
                self._met.append((node, carried))
            if type(node).__name__.startswith(("SumBackward", "MeanBackward")):  # of a stack of states
                stacked = [n for n, _ in below if type(n).__name__.startswith("StackBackward") and n not in inside]
                edges = [edge for n in stacked for edge in n.next_functions if edge[0] is not None]
                self._met += (
                    [(node, [marks.get(e, 0) & near or self._carried.get(e[0], 0) for e in edges])] if edges else []
                )
            parts = [marks.get(edge, 0) | self._below[edge[0]] for edge in below]
            joined[node] |= is_sum(node) and len(parts) == 2 and all(parts) and node not in inside
        first = (self._top, top.output_nr)  # a layer may return the result itself
        self.reached |= {first} & marks.keys()
        self._first = marks.get(first, 0) & near
        self.joins |= bool(self._first and joined.get(self._top))

    def under(self, node: Any) -> int:
        """Return the bits of all that lies below a node."""
        return self._below.get(node, 0)

    def nearest(self, node: Any = None) -> int:
        """Return the bits that the ways down from a node, or from the result, meet first.

        Where nothing joins in a sum, a gate is no way past the layers that made it: h * sigmoid(up(down(h))).
        """
        ways = self._nearest if self.joins else self._ungated
        return (node is None and self._first) or ways.get(self._top if node is None else node, 0)

    def met(self, nodes: Iterable[Any]) -> Iterator[list[int]]:
        """Yield the bits of ways that meet below some nodes, as a branch and a skip do in a sum, each for itself.

        Ways that meet in a concatenation or a product of matrices stay apart: what reads them reads several.
        """
        below = between(nodes, ())
        yield from (ways for node, ways in self._met if node in below)

    def unmixed(self, node: Any) -> int:
        """Return the bits that the ways down from a node meet first, on ways that meet no weight outside of a layer."""
        return self._unmixed.get(node, 0)


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
        if not goes_through_weight(node):
            todo += [child for child, _ in node.next_functions]
    return False


def is_residual(made: Any, given: Any) -> bool:
    """Return whether a block adds to what it was given: by a way past its weights, or by a sum of two ways from there.

    >>> h, w = torch.ones(2, 2, requires_grad=True) * 1, torch.nn.Parameter(torch.ones(2, 2))
    >>> [is_residual(made.grad_fn, h.grad_fn) for made in ((h @ w).relu(), h + h @ w, h @ w + (h @ w).relu() @ w)]
    [False, True, True]
    """
    if goes_past_weights([made], {given}):
        return True
    reads: dict[Any, bool] = {given: True}
    todo: list[tuple[Any, bool]] = [(made, False)]
    while todo:
        node, ready = todo.pop()
        below = [child for child, _ in node.next_functions if child is not None]
        if not ready:
            if node not in reads:
                reads[node] = False
                todo += [(node, True), *((child, False) for child in below)]
            continue
        reading = [reads[child] for child in below]
        if is_sum(node) and sum(reading) > 1:
            return True
        reads[node] = any(reading)
    return False


def between(made: Iterable[Any], given: Collection[Any]) -> set[Any]:
    """Return the nodes from what a module made down to what it was given, without the latter."""
    seen: set[Any] = set()
    todo = [node for node in made if node not in given]
    while todo:
        node = todo.pop()
        seen.add(node)
        todo += [child for child, _ in node.next_functions if child is not None and child not in seen | {*given}]
    return seen


def nodes_between(top: Any, bottom: Any) -> set[Any]:
    """Return the nodes on ways from one node down to another, the latter left out; to any (None): all below, and it.

    >>> h, w = torch.ones(2, 2, requires_grad=True) * 1, torch.nn.Parameter(torch.ones(2, 2))
    >>> [len(nodes_between((h @ w).relu().grad_fn, node)) for node in (h.grad_fn, w, None)]
    [2, 0, 5]
    """
    if bottom is None:
        return between([top], ())
    leads: dict[Any, bool] = {bottom: True}
    todo: list[tuple[Any, bool]] = [(top, False)]
    while todo:
        node, ready = todo.pop()
        below = [child for child, _ in node.next_functions if child is not None]
        if ready:
            leads[node] = any(leads[child] for child in below)
        elif node not in leads:
            leads[node] = False
            todo += [(node, True), *((child, False) for child in below)]
    return {node for node, leading in leads.items() if leading} - {bottom}


def uses_weights(top: Any, stops: Collection[Any]) -> bool:
    """Return whether a product with a weight lies between a result and some nodes below it.

    So it is where the output layer is no module: F.linear(h, self.embedding.weight).

    >>> h, w = torch.ones(2, 2, requires_grad=True) * 1, torch.nn.Parameter(torch.ones(2, 2))
    >>> [uses_weights(made.grad_fn, {h.grad_fn}) for made in ((h @ w).relu(), h + w)]
    [True, False]
    """
    nodes = between([top], stops)
    return any(
        (goes_through_weight(node) or type(node).__name__.startswith(_DISTANCES))
        and any(_is_made_of_weight(c, stops) for c, _ in node.next_functions)
        for node in nodes
    )


def _is_made_of_weight(node: Any, stops: Collection[Any]) -> bool:
    """Return whether a node was computed from a parameter of two dimensions or more, and from none of `stops`."""
    if node is None or node in stops:
        return False
    below = between([node], stops)
    leaves = [leaf for leaf in (getattr(n, "variable", None) for n in below) if isinstance(leaf, torch.nn.Parameter)]
    alone = not any(child in stops for n in below for child, _ in n.next_functions)
    return alone and any(leaf.ndim > 1 for leaf in leaves)


def _is_gate(node: Any) -> bool:
    """Return whether a node is a share between 0 and 1, a view of one, or what is left of one, as 1 - sigmoid(f).

    h * (1 + f) is a sum, h * sigmoid(f) is none.
    """
    while type(node).__name__.startswith((*VIEWS, "Rsub")) and len(node.next_functions) <= 2:
        node = node.next_functions[0][0]
    return type(node).__name__.startswith(("Sigmoid", "Softmax", "Hardsigmoid"))


def is_sum(node: Any) -> bool:
    """Return whether a node is a sum or a difference."""
    return type(node).__name__.startswith(_SUMS)


def is_view(node: Any) -> bool:
    """Return whether a node hands on the numbers of one tensor, in another form."""
    name = type(node).__name__
    return name.startswith((*VIEWS, "Squeeze", "Alias", "TBackward", "MovedimBackward", "Clone", "Unflatten"))


class Weighted:
    """A graph, and what of it parameters alone make: a weight as it is, transposed, masked, or a product of two.

    Inputs have to carry a gradient: else what is made of them can't be told from what is made of weights.

    >>> x, w = torch.ones(1, 2, requires_grad=True) * 1, torch.nn.Parameter(torch.ones(2, 2))
    >>> graph = Weighted((x @ w.t()).grad_fn)
    >>> [graph.weight_of(node) is w for node in graph.nodes if graph.weight_of(node) is not None]
    [True]
    """

    def __init__(self, top: Any) -> None:
        self.nodes: list[Any] = []  # what is below first
        # node -> the parameters it was made of, where it was made of them alone
        self.leaves: dict[Any, tuple[torch.Tensor, ...]] = {}
        done: set[Any] = set()
        todo: list[tuple[Any, bool]] = [] if top is None else [(top, False)]
        while todo:
            node, ready = todo.pop()
            below = [child for child, _ in node.next_functions if child is not None]
            if ready:
                self.nodes.append(node)
                self.leaves[node] = self._made_of(node, below)
            elif node not in done:
                done.add(node)
                todo += [(node, True), *((child, False) for child in below if child not in done)]

    def _made_of(self, node: Any, below: list[Any]) -> tuple[torch.Tensor, ...]:
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            return (leaf,) if isinstance(leaf, torch.nn.Parameter) else ()
        if not below or not all(self.leaves[child] for child in below):
            return ()
        if type(node).__name__.startswith(_MIXING) and not (_is_matrices(node) and len(below) > 1):
            return ()  # of an input without a gradient
        return tuple({id(p): p for child in below for p in self.leaves[child]}.values())

    def weight_of(self, node: Any) -> torch.nn.Parameter | None:
        """Return the weight of a product with what is no weight; None of all other nodes."""
        name = type(node).__name__
        if not name.startswith((*_MIXING, "Cdist")) or self.leaves[node]:
            return None
        made = [self.leaves[child] for child, _ in node.next_functions if child is not None]
        of = next((p for leaves in made for p in leaves if p.ndim > 1), None)
        return of if isinstance(of, torch.nn.Parameter) else None


def _is_matrices(node: Any) -> bool:
    return type(node).__name__.startswith(("Mm", "Bmm", "Mv"))


def given_to(made: Any, weight: Any) -> set[Any]:
    """Return the nodes that a product with this weight was given beside it, from what it left: views, a bias."""
    todo, seen = [made], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        below = [child for child, _ in node.next_functions if child is not None]
        if type(node).__name__.startswith((*_MIXING, "Cdist")):
            sides = [child for child in below if not _leads_to(child, weight)]
            if len(sides) < len(below):
                return {child for child in sides if getattr(child, "variable", None) is None}
        todo += below
    return set()


def _leads_to(node: Any, weight: Any) -> bool:
    """Return whether a node is a weight, or made of it before any product with what is none."""
    todo, seen = [node], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if getattr(node, "variable", None) is weight:
            return True
        if not type(node).__name__.startswith(_MIXING):
            todo += [child for child, _ in node.next_functions]
    return False


def goes_through_weight(node: Any) -> bool:
    """Return whether a node is a product with a weight."""
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
