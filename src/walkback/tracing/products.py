"""Products with weights that no module makes, as F.linear(h, self.w1): where they are in a pass. Session -> Products.

Hand-written networks and meta-learning code keep parameters, and use them directly. In the graph each use is a product
of what was computed so far with what parameters alone make; the tensor that it leaves in the forward pass, its bias
added, is found again by its number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from walkback.errors import AnatomyError, InputError
from walkback.network.batch import Inputs, mapped
from walkback.network.layers import own_weights, weight_named
from walkback.network.values import logits_of, named_modules_of, named_parameters_of
from walkback.tracing.calls import overheard
from walkback.tracing.derived import Tape, carry_gradient
from walkback.tracing.graph import Weighted, between, is_sum, is_view
from walkback.tracing.heard import LayerCapture
from walkback.tracing.numbered import Numbered

if TYPE_CHECKING:
    from walkback.tracing.session import Tracer


@dataclass(frozen=True)
class Product:
    """A product with a weight that no module makes: the name of the weight, and the number of its tensor in a pass."""

    path: str
    number: int
    owner: nn.Module


@dataclass(frozen=True)
class Products:
    """All of them in a pass, in order, how many tensors it has in all, and the names of those that can't be seen."""

    found: tuple[Product, ...] = ()
    count: int = 0
    unseen: tuple[str, ...] = ()

    def numbers(self) -> dict[tuple[str, int], int]:
        """Return the number of each by its name and turn.

        >>> Products((Product("w", 3, nn.Module()), Product("w", 5, nn.Module()))).numbers()
        {('w', 1): 3, ('w', 2): 5}
        """
        turns: dict[str, int] = {}
        numbers: dict[tuple[str, int], int] = {}
        for product in self.found:
            turns[product.path] = turns.get(product.path, 0) + 1
            numbers[product.path, turns[product.path]] = product.number
        return numbers

    @contextmanager
    def shown(self, model: nn.Module, at: Callable[[Product, Tensor], Tensor | None]) -> Iterator[None]:
        """Show the tensors of one pass inside to `at`; AnatomyError where the pass has others than the first one."""
        known = {product.number: product for product in self.found}
        if not known:
            yield
            return
        mode = Numbered(lambda number, made: at(known[number], made), known)
        with mode.within(model):
            yield
        if mode.count != self.count:
            raise AnatomyError(
                "Expected every batch to run the same operations as the first one, since products with weights that "
                f"are in no module are found by their place among them, but there are {mode.count} and not "
                f"{self.count}. Put the weights into modules."
            )


def has_loose_weights(model: nn.Module, layers: Collection[int], called: Collection[int], used: set[int]) -> bool:
    """Return whether there may be products with a trained weight that no layer makes.

    Args:
        model: the network.
        layers: ids of the modules that are layers.
        called: ids of those that ran.
        used: ids of the parameters that the loss was computed from outside of layers.
    """
    inside = {id(p) for _, m in named_modules_of(model) if id(m) in called and id(m) in layers for p in own_weights(m)}
    weights = {id(p) for p in named_parameters_of(model).values() if p.ndim > 1 and p.requires_grad}
    return bool(weights - inside or weights & used)


def find_products(tracer: Tracer, x: Inputs, modules: Sequence[nn.Module], layers: Collection[int]) -> Products:
    """Run a batch forward and find the products outside of layers, past all cuts of the graph.

    Args:
        tracer: the session.
        x: inputs.
        modules: those that are listened to.
        layers: ids of those that are layers; what runs inside of them is theirs.
    """
    tape = Tape()
    names = {id(module): path for path, module in named_modules_of(tracer.model)}
    capture = LayerCapture(names, modules, lambda: tracer.own(None), tape)
    mode = Numbered(tape.mark)
    inputs = mapped(x, _with_gradient)
    with torch.enable_grad(), tape, overheard(modules, capture.after, capture.before), mode.within(tracer.model):
        output = tracer.run_once(inputs, None)
    try:
        twin, marks = capture.on_tape()
    except InputError:  # it can't be run again
        return Products()
    numbers: dict[tuple[Any, int], int] = {}
    for number, (_, edge) in marks.items():
        if isinstance(number, int):
            numbers.setdefault((edge.node, edge.output_nr), number)
    runs = [run for run in capture.counted() if id(run.call.module) in layers and not run.holds]
    top = twin(logits_of(output)).grad_fn
    made = {run: {edge.node for edge in run.edges.values()} for run in runs}
    every = {node for nodes in made.values() for node in nodes}
    inside = {n for run in runs for n in between(made[run], run.given | (every - made[run]))}
    tied = {id(p) for run in runs for p in own_weights(run.call.module)}
    return _products(tracer.model, _Graph(top), inside, numbers, tied, mode.count)


def _with_gradient(t: Tensor) -> Tensor:
    """Return a copy that carries a gradient, where it can: so it is told from what weights alone make."""
    t = t.detach().clone()
    if t.is_floating_point():
        with torch.enable_grad():
            carry_gradient(t)
    return t


class _Graph(Weighted):
    """The graph below a result, with what reads each node."""

    def __init__(self, top: Any) -> None:
        super().__init__(top)
        self.readers: dict[Any, list[Any]] = {}
        for node in self.nodes:
            for child in {c for c, _ in node.next_functions if c is not None}:
                self.readers.setdefault(child, []).append(node)

    def settled(self, node: Any, numbers: dict[tuple[Any, int], int]) -> int | None:
        """Return the number of the tensor that a product leaves, once its bias was added; None: it is not seen."""
        while (node, 0) not in numbers:
            above = self.readers.get(node, [])
            if len(above) != 1 or not (is_view(above[0]) or (is_sum(above[0]) and self._is_bias(above[0], node))):
                return None
            node = above[0]
        found, ahead = numbers[node, 0], node
        while len(above := self.readers.get(ahead, [])) == 1:
            if is_sum(above[0]) and (above[0], 0) in numbers and self._is_bias(above[0], ahead):
                return numbers[above[0], 0]
            if not is_view(above[0]):
                break
            ahead = above[0]
        return found

    def is_added(self, node: Any) -> bool:
        """Return whether a product is added to what is no bias, as feedback by the weight of a layer is."""
        while len(above := self.readers.get(node, [])) == 1:
            if is_sum(above[0]) and not self._is_bias(above[0], node):
                return True
            if not is_view(above[0]) and not is_sum(above[0]):
                return False
            node = above[0]
        return False

    def _is_bias(self, node: Any, product: Any) -> bool:
        others = [child for child, _ in node.next_functions if child is not None and child is not product]
        return bool(others) and all(self.leaves.get(child) for child in others)


def _products(
    model: nn.Module,
    graph: _Graph,
    inside: set[Any],
    numbers: dict[tuple[Any, int], int],
    tied: set[int],
    count: int,
) -> Products:
    """Return the products outside of some nodes; that of a layer's own weight unless it is feedback, which is added."""
    names = {id(p): name for name, p in named_parameters_of(model).items()}
    found: list[Product] = []
    unseen: list[str] = []
    for node in graph.nodes:
        weight = None if node in inside else graph.weight_of(node)
        if weight is None or id(weight) not in names or (id(weight) in tied and graph.is_added(node)):
            continue
        name = names[id(weight)]
        number, there = graph.settled(node, numbers), weight_named(model, name)
        if number is None or there is None:
            unseen.append(name)
        else:
            found.append(Product(name, number, there[0]))
    found.sort(key=lambda product: product.number)
    return Products(tuple(found), count, tuple(dict.fromkeys(unseen)))
