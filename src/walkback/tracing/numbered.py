"""The tensors of a forward pass by number: what is no module's output is found again in the next pass."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from walkback.tracing.calls import overheard
from walkback.tracing.derived import unseen_edge

# A number and its tensor -> what flows on instead, or None
At = Callable[[int, Tensor], Tensor | None]


_depth = ContextVar("what runs now is no part of the forward pass", default=0)


@contextmanager
def aside() -> Iterator[None]:
    """Let nothing that runs inside be numbered: it is no part of the forward pass."""
    token = _depth.set(_depth.get() + 1)
    try:
        yield
    finally:
        _depth.reset(token)


class Numbered(TorchFunctionMode):
    """Numbers the tensors of real numbers that a forward pass makes, or takes up, and shows some of them.

    What custom autograd Functions return is not seen when it is made, so every tensor gets its number when it is first
    seen, as a result or as an argument. What is made while gradients are off is in no graph, and has none.

    Args:
        at: is called with the number and the tensor; what it returns flows on in its place.
        numbers: of those that are shown; None: all that are made, or carry a gradient.
    """

    def __init__(self, at: At, numbers: Collection[int] | None = None) -> None:
        super().__init__()
        self.count = 0
        self._at, self._numbers = at, numbers
        self._running: int | None = None  # forward passes of the network that have begun, where only these count
        self._seen: dict[int, Tensor] = {}  # kept, so that an id stays theirs
        self._instead: dict[int, Tensor] = {}

    @contextmanager
    def within(self, model: nn.Module) -> Iterator[None]:
        """Number what runs inside in the forward pass of a network alone."""
        self._running = 0

        def before(*_: object) -> None:
            self._running = (self._running or 0) + 1

        def after(_: object, output: Any) -> None:
            if not self._silent:
                with aside():
                    self._taken(tree_leaves(output))  # the answer of a custom Function is taken up by nothing
            self._running = (self._running or 0) - 1

        with overheard([model], after, before), self:
            yield

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one call and number what it takes up and makes."""
        if self._silent:
            return func(*args, **(kwargs or {}))
        args = self._taken(args)
        kwargs = {name: self._taken((value,))[0] for name, value in kwargs.items()} if kwargs else {}
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and result.is_floating_point():
            return self._number(result, True)
        if isinstance(result, (tuple, list)):
            for t in result:
                if isinstance(t, Tensor):
                    self._seen[id(t)] = t  # parts of one result are never sites
        return result

    @property
    def _silent(self) -> bool:
        return bool(_depth.get()) or self._running == 0 or not torch.is_grad_enabled()

    def _taken(self, values: Any) -> Any:
        """Return arguments of a call, each with a number, and what flows on in place of those that are shown."""
        changed = [self._take(v) for v in values]
        same = all(new is old for new, old in zip(changed, values))
        return values if same else tuple(changed) if isinstance(values, tuple) else changed

    def _take(self, value: Any) -> Any:
        if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
            return self._taken(value)
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self._seen and value.is_floating_point():
            self._number(value, value.requires_grad)
        return self._instead.get(id(value), value)

    def _number(self, tensor: Tensor, shown: bool) -> Tensor:
        number, self.count = self.count, self.count + 1
        self._seen[id(tensor)] = tensor
        if not shown if self._numbers is None else number not in self._numbers:
            return tensor
        with aside():
            instead = self._at(number, tensor)
        if instead is None or instead is tensor:
            return tensor
        self._seen[id(instead)] = self._instead[id(tensor)] = instead
        return instead


class Places(Numbered):
    """Numbers the tensors of a forward pass, and keeps where each stands in the graph, and its shape."""

    def __init__(self) -> None:
        super().__init__(self._keep)
        self.made: dict[tuple[Any, int], int] = {}  # a node, and which of its results -> number
        self.shapes: dict[int, torch.Size] = {}

    def _keep(self, number: int, tensor: Tensor) -> None:
        self.shapes[number] = tensor.shape
        if tensor.requires_grad:
            edge = unseen_edge(tensor)
            self.made.setdefault((edge.node, edge.output_nr), number)
