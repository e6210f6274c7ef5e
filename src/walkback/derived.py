"""The derivative of what a network computes, whatever its own backward pass says.

Custom autograd Functions, backward hooks, `detach()` and `no_grad` change what autograd returns, not what the network
computes. Below autograd a forward pass is only a list of tensor operations. `Tape` writes that list down, and runs it
again with autograd on and none of the above in the way.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only


class Tape(TorchDispatchMode):
    """Records the operations run inside `with tape:`; `rerun` repeats them as a graph that can be differentiated.

    >>> class Flipped(torch.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         return 3 * x
    ...     @staticmethod
    ...     def backward(ctx, grad):
    ...         return -grad
    >>> x = torch.ones(2, requires_grad=True)
    >>> with Tape() as tape:
    ...     y = Flipped.apply(x).sum()
    >>> torch.autograd.grad(y, x), torch.autograd.grad(tape.rerun()[0](y), x)
    ((tensor([-1., -1.]),), (tensor([3., 3.]),))
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, Any]] = []  # operation, arguments, keywords, result; or a mark
        self._made: set[int] = set()
        self._first: dict[int, Tensor] = {}  # what came from outside and was written in place: its value before
        self._random = torch.get_rng_state()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation and note it. Tensors are kept, so that an id stays theirs."""
        kwargs = kwargs or {}
        for t in _written(func, args, kwargs):
            if id(t) not in self._made and id(t) not in self._first:
                self._first[id(t)] = t.detach().clone()
                self._calls.append((None, t, None, None))  # keeps it alive
        result = func(*args, **kwargs)
        self._calls.append((func, args, kwargs, result))
        self._made.update(id(t) for t in tree_leaves(result) if isinstance(t, Tensor))
        return result

    def mark(self, key: Hashable, tensor: Tensor) -> None:
        """Ask for the gradient edge that `tensor` has at this moment: it may be written in place later."""
        self._calls.append((None, tensor, key, None))

    def rerun(self) -> tuple[Any, dict[Hashable, tuple[Tensor, GradientEdge]]]:
        """(recorded tensor -> its differentiable twin, {mark: (twin, gradient edge)})."""
        again: dict[int, Tensor] = dict(self._first)
        marks: dict[Hashable, tuple[Tensor, GradientEdge]] = {}

        def twin(t: Tensor) -> Tensor:
            return again.get(id(t), t)

        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(self._random)
            for func, args, kwargs, result in self._calls:
                if func is None:
                    if kwargs is not None:
                        marks[kwargs] = (twin(args), _edge(twin(args)))
                elif func is torch.ops.aten.detach.default:
                    again[id(result)] = twin(args[0])  # the same numbers, so the same tensor
                else:
                    new = func(*tree_map_only(Tensor, twin, args), **tree_map_only(Tensor, twin, kwargs))
                    pairs = zip(tree_leaves(result), tree_leaves(new))
                    again.update({id(old): t for old, t in pairs if isinstance(old, Tensor)})
        return twin, marks


class Spy(TorchFunctionMode):
    """Sees whether a forward pass parts its backward pass from itself, by tensor hooks or by cutting the graph.

    `saw` is True when a tensor got a hook, when a number cut off its graph (`detach`, `.data`, `no_grad`, `item()`) was
    used again where gradients flow, or when numbers left torch as an array or a list: what becomes of them can't be
    seen. A cut that is only logged is none.

    >>> x = torch.ones(2, requires_grad=True)
    >>> with Spy() as spy:
    ...     y = x + (x.round() - x).detach()  # straight through
    >>> spy.saw
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self.saw = False
        self._cut: dict[int, Tensor] = {}  # kept, so that an id stays theirs
        self._numbers: set[float] = set()  # what item() and float() gave out

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one call and look at what came of its gradients."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        leaves = tree_leaves((args, kwargs))
        given = [t for t in leaves if isinstance(t, Tensor)]
        used = any(id(t) in self._cut for t in given)
        used = used or any(isinstance(v, float) and v in self._numbers for v in leaves)
        if func in _LEAVES and any(t.is_floating_point() and (t.requires_grad or id(t) in self._cut) for t in given):
            if isinstance(result, float):
                self._numbers.add(result)
            else:
                self.saw = True
        self.saw = self.saw or func is Tensor.register_hook
        for made in tree_leaves(result):
            if not isinstance(made, Tensor) or not made.is_floating_point():
                continue
            if made.requires_grad:
                self.saw = self.saw or used
            elif used or any(t.requires_grad for t in given):
                self._cut[id(made)] = made
        return result


# Out of torch: as an array, a list, memory, or a number.
_LEAVES = {
    *(Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.tolist),
    *(Tensor.data_ptr, Tensor.item, Tensor.__float__),
}


def has_custom_backward(losses: Tensor) -> bool:
    """Is there a node written in Python in the graph: a custom autograd Function, or a module's backward hook?

    >>> net = torch.nn.Linear(2, 2)
    >>> _ = net.register_full_backward_hook(lambda *_: None)
    >>> has_custom_backward(torch.ones(1, 2).mm(net.weight)), has_custom_backward(net(torch.ones(1, 2)))
    (False, True)
    """
    seen, todo = set(), [losses.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return True
        seen.add(node)
        todo += [below for below, _ in node.next_functions]
    return False


def carry_gradient(tensor: Tensor) -> None:
    """Make a tensor that needs no gradient carry one, in place: whoever holds this very object goes on using it.

    Adding −0.0 changes no bit of it, and unlike `requires_grad_` lets it be written in place later.
    """
    tensor.add_(torch.full((), -0.0, dtype=tensor.dtype, device=tensor.device, requires_grad=True))


def _edge(tensor: Tensor) -> GradientEdge:
    if not tensor.requires_grad:
        carry_gradient(tensor)
    return get_gradient_edge(tensor)


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors an operation writes in place."""
    schema = func._schema
    if not schema.is_mutable:
        return []
    given = {**{a.name: v for a, v in zip(schema.arguments, args)}, **kwargs}
    names = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return [t for name in names for t in tree_leaves(given.get(name)) if isinstance(t, Tensor)]
