"""The derivative of what a network computes, whatever its own backward pass says.

Custom autograd Functions, backward hooks, `detach()` and `no_grad` change what autograd returns, not what the network
computes. Below autograd a forward pass is only a list of tensor operations. `Tape` writes that list down, and runs it
again with autograd on and none of the above in the way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from walkback.errors import InputError


class _Place(NamedTuple):
    """Where the numbers of a tensor lie."""

    memory: int
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


# What is noted beside operations: a tensor from outside; another name for memory that was made here (`.data`); a tensor
# whose memory can't be looked at; a mark.
_OUTSIDE, _ALIAS, _KEEP, _MARK = "outside", "alias", "keep", "mark"


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
        self._calls: list[tuple[Any, Any, Any, Any]] = []  # operation, arguments, keywords, result; or one of the above
        self._known: dict[int, Any] = {}  # tensor -> where its numbers began, and its shape, when it was last seen
        self._made: dict[int, list[Tensor]] = {}  # memory that was made here -> the tensors in it, its owner first
        self._outside: dict[int, set[_Place]] = {}  # memory that was not -> what lies in it
        self._alive: dict[int, Any] = {}  # memory by its number, kept so that this stays its own
        self._before: dict[int, Any] = {}  # memory from outside that was written -> a copy from before
        self._strange: set[int] = set()  # tensors from outside whose memory can't be looked at
        self._first: dict[int, Tensor] = {}  # those that were written, from before
        self._random = torch.get_rng_state()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation and note it. Tensors are kept, so that an id stays theirs."""
        kwargs = kwargs or {}
        for t in _tensors(args, kwargs):
            if id(t) not in self._known or self._known[id(t)] != _spot(t):
                self._see(t)
        for t in _written(func, args, kwargs):
            self._own(t)
        result = func(*args, **kwargs)
        self._calls.append((func, args, kwargs, result))
        for t in _tensors((result,)):
            self._known[id(t)] = spot = _spot(t)
            if spot is not None:
                storage = t.untyped_storage()
                memory = storage._cdata
                if memory not in self._outside:
                    if memory not in self._made:
                        self._made[memory] = []
                        self._alive[memory] = storage
                    self._made[memory].append(t)
        return result

    def _see(self, t: Tensor) -> None:
        """Note a tensor that no operation has made, or that lies elsewhere since: a parameter, or a `.data`."""
        spot = _spot(t)
        if spot is None:
            if id(t) not in self._known:
                self._strange.add(id(t))
            self._known[id(t)] = spot
            self._calls.append((_KEEP, t, None, None))
            return
        self._known[id(t)] = spot
        place = _place(t)
        if place.memory not in self._made:
            self._outside.setdefault(place.memory, set()).add(place)
            self._alive[place.memory] = t.untyped_storage()
            self._calls.append((_OUTSIDE, t, place, None))
            return
        there = [made for made in self._made[place.memory] if made.dtype == t.dtype]
        exact = next((made for made in reversed(there) if _place(made) == place), None)
        if exact is not None:
            self._calls.append((_ALIAS, t, None, exact))
        else:
            self._calls.append((_ALIAS, t, place, there[0]) if there else (_KEEP, t, None, None))

    def _own(self, t: Tensor) -> None:
        """Keep a copy of memory from outside before it is written: only that is written when all is run again."""
        if self._known[id(t)] is not None:
            storage = t.untyped_storage()
            if storage._cdata in self._outside and storage._cdata not in self._before:
                self._before[storage._cdata] = storage.clone()
        elif id(t) in self._strange and id(t) not in self._first:
            self._first[id(t)] = t.detach().clone()

    def mark(self, key: Hashable, tensor: Tensor) -> None:
        """Ask for the gradient edge that `tensor` has at this moment: it may be written in place later."""
        if id(tensor) not in self._known or self._known[id(tensor)] != _spot(tensor):
            self._see(tensor)
        if not tensor.requires_grad:
            self._own(tensor)  # it will be made to carry a gradient
        self._calls.append((_MARK, tensor, key, None))

    def reference(self) -> tuple[Any, dict[Hashable, tuple[Tensor, GradientEdge]]]:
        """Return what `rerun` does, or raise an InputError that says how to give a reference otherwise."""
        try:
            return self.rerun()
        except (RuntimeError, NotImplementedError) as error:
            raise InputError(
                "Expected a forward pass that can be run again, operation by operation, to derive the reference from "
                f"it, but {str(error).splitlines()[0]} Pass a plain twin of the network with the same weights: "
                "reference=twin."
            ) from error

    def rerun(self) -> tuple[Any, dict[Hashable, tuple[Tensor, GradientEdge]]]:
        """Return (recorded tensor -> its differentiable twin, {mark: (twin, gradient edge)}).

        Only tensors that are made here are written: for memory from outside that the pass wrote, a copy stands in.
        """
        again: dict[int, Tensor] = dict(self._first)
        copies: dict[Any, Tensor] = {}
        marks: dict[Hashable, tuple[Tensor, GradientEdge]] = {}

        def twin(t: Tensor) -> Tensor:
            return again.get(id(t), t)

        def copied(place: _Place) -> Tensor:
            if place not in copies:
                copies[place] = self._copied(place, copies)
            return copies[place]

        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(self._random)
            for func, args, kwargs, result in self._calls:
                if func is _MARK:
                    marks[kwargs] = (twin(args), _edge(twin(args)))
                elif func is _OUTSIDE:
                    again.pop(id(args), None)
                    if kwargs.memory in self._before:
                        again[id(args)] = copied(kwargs)
                    elif _place(args) != kwargs:  # it was given other memory since
                        again[id(args)] = _in_memory(kwargs, self._alive[kwargs.memory])
                elif func is _ALIAS:
                    there = twin(result)
                    again[id(args)] = (
                        there if kwargs is None else there.as_strided(kwargs.shape, kwargs.stride, kwargs.offset)
                    )
                elif func is torch.ops.aten.detach.default:
                    again[id(result)] = twin(args[0])  # the same numbers, so the same tensor
                elif func is not _KEEP:
                    given = {name: _with(value, twin) for name, value in kwargs.items()}
                    new = func(*[_with(value, twin) for value in args], **given)
                    again.update((id(old), t) for old, t in zip(_tensors((result,)), _tensors((new,))))
        return twin, marks

    def _copied(self, place: _Place, copies: dict[Any, Tensor]) -> Tensor:
        """Return a tensor at the same place in a copy of its memory, shared with all that lay in the original."""
        if len(self._outside[place.memory]) == 1:
            return _in_memory(place, self._before[place.memory].clone())
        whole = (place.memory, place.dtype)
        if whole not in copies:
            memory = self._before[place.memory].clone()
            length = memory.nbytes() // place.dtype.itemsize
            copies[whole] = _in_memory(place._replace(offset=0, shape=torch.Size([length]), stride=(1,)), memory)
        return copies[whole].as_strided(place.shape, place.stride, place.offset)


def _in_memory(place: _Place, memory: Any) -> Tensor:
    empty = torch.empty(0, dtype=place.dtype, device=memory.device)
    return empty.set_(memory, place.offset, place.shape, place.stride)


def _spot(t: Tensor) -> tuple[int, torch.Size] | None:
    """Return where the numbers of a tensor begin, and its shape; None where its memory can't be looked at."""
    if t.layout != torch.strided or is_traceable_wrapper_subclass(t):
        return None
    return t.data_ptr(), t.shape


def _place(t: Tensor) -> _Place:
    return _Place(t.untyped_storage()._cdata, int(t.storage_offset()), t.shape, t.stride(), t.dtype)


def _tensors(args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> list[Tensor]:
    """Return the tensors among what an operation takes or returns: alone, or in lists."""
    tensors: list[Tensor] = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += [v for v in value if isinstance(v, Tensor)]
    return tensors


def _with(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) for v in value):
        return type(value)(change(v) if isinstance(v, Tensor) else v for v in value)
    return value


class Spy(TorchFunctionMode):
    """Sees whether a forward pass parts its backward pass from itself, by tensor hooks or by cutting the graph.

    `saw` is True when a tensor or its graph node may have got a hook, when a number cut off its graph (`detach`,
    `.data`, `no_grad`, `item()`) was used again where gradients flow, when an activation was written past its graph
    (`h.data.mul_(2)`), when what the backward pass needs is packed by a hook, or when numbers left torch as an array or
    a list: what becomes of them can't be seen. A cut that is only logged is none.

    >>> x = torch.ones(2, requires_grad=True)
    >>> with Spy() as spy:
    ...     y = x + (x.round() - x).detach()  # straight through
    >>> spy.saw
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self.saw = False
        self.read: set[int] = set()  # ids of all tensors that were taken up
        self._cut: dict[int, Tensor] = {}  # kept, so that an id stays theirs
        self._shared: set[int] = set()  # memory of activations that a cut tensor shares
        self._numbers: set[float] = set()  # what item() and float() gave out

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one call and look at what came of its gradients."""
        kwargs = kwargs or {}
        leaves = _leaves((*args, *kwargs.values()))
        given = [t for t in leaves if isinstance(t, Tensor)]
        cut = [(t, t._version) for t in given if id(t) in self._cut and _memory(t) in self._shared]
        result = func(*args, **kwargs)
        self.saw = self.saw or any(t._version != version for t, version in cut)
        self.read.update(map(id, given))
        used = any(id(t) in self._cut for t in given)
        used = used or any(isinstance(v, float) and v in self._numbers for v in leaves)
        if func in _LEAVES and any(t.is_floating_point() and (t.requires_grad or id(t) in self._cut) for t in given):
            if isinstance(result, float):
                self._numbers.add(result)
            else:
                self.saw = True
        self.saw = self.saw or func in _HOOKS or _repacks()
        for made in _leaves((result,)):
            if not isinstance(made, Tensor) or not made.is_floating_point():
                continue
            if made.requires_grad:
                self.saw = self.saw or used
            elif used or any(t.requires_grad for t in given):
                self._cut[id(made)] = made
                if any(t.grad_fn is not None and _memory(t) == _memory(made) for t in given):
                    self._shared.add(_memory(made))
        return result


_BARE = {Tensor, torch.nn.Parameter, int, float, bool, str, type(None), torch.dtype, torch.device}


def _leaves(values: Sequence[Any]) -> Sequence[Any]:
    """Return what these values hold, as deep as it goes; most hold nothing."""
    return values if _BARE.issuperset(map(type, values)) else tree_leaves(list(values))


def _memory(tensor: Tensor) -> int:
    """Return where the numbers of a tensor lie; 0 where that can't be told."""
    plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
    return 0 if not plain or tensor.is_inference() else tensor.untyped_storage().data_ptr()


def _repacks() -> bool:
    """Return whether a hook hands the backward pass what the forward pass saved, as it is or as something else."""
    try:  # such hooks can't be asked for in every torch, but they can't be switched off either while there are some
        with torch.autograd.graph.disable_saved_tensors_hooks("walkback asks whether there are any"):
            return False
    except RuntimeError:
        return True


def unseen_edge(tensor: Tensor) -> GradientEdge:
    """Return the place of a tensor in the graph, past every `Spy`."""
    with torch._C.DisableTorchFunction():
        return get_gradient_edge(tensor)


# What hands out a place for a hook.
_HOOKS = {Tensor.register_hook, Tensor.grad_fn.__get__}  # type: ignore[attr-defined]

# Out of torch: as an array, a list, memory, or a number.
_LEAVES = {
    *(Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.tolist),
    *(Tensor.data_ptr, Tensor.item, Tensor.__float__),
}


def has_custom_backward(losses: Tensor) -> bool:
    """Return whether the graph has a node written in Python: a custom autograd Function, or a backward hook.

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
    """Return the tensors an operation writes in place."""
    schema = func._schema
    moves = any(a.name == "running_mean" for a in schema.arguments)  # which no schema of batch norm admits
    if not schema.is_mutable and not moves:
        return []
    given = {**{a.name: v for a, v in zip(schema.arguments, args)}, **kwargs}
    names = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    names += ["running_mean", "running_var"] if moves and given.get("training", True) else []
    return _tensors([given.get(name) for name in names])
