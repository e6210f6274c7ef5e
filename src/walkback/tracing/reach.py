"""All that hangs on a network, written down as it is, and put back.

A network keeps more than parameters and buffers: states in plain attributes, outputs in dicts, weights that its own
`parameters()` leaves out, modules in a Python list, an optimiser, a generator. `Reach` finds them in the books of torch
and Python, through no method that a class may override, and remembers which object stands where.
"""

from __future__ import annotations

import random
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from copyreg import _slotnames  # type: ignore[attr-defined]  # what copy and pickle ask for __slots__
from datetime import date, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from functools import partial
from numbers import Number
from operator import is_
from pathlib import PurePath
from re import Pattern
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.utils.data import DataLoader, Dataset, Sampler

from walkback.tracing.restore import (
    Attributes,
    Slots,
    put_array,
    put_attributes,
    put_class,
    put_dict,
    put_items,
    put_nothing,
    put_set,
    put_shared,
    put_slots,
)

# What has nothing inside that a forward pass could change. A function's closure is its author's, not the network's.
_ATOMS = (
    *(type(None), str, bytes, Number, range, slice, type, Enum, PurePath, Pattern, Decimal, date, timedelta, tzinfo),
    *(types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.CodeType, types.MethodWrapperType),
    *(types.WrapperDescriptorType, types.MethodDescriptorType, types.EllipsisType, types.NotImplementedType),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, torch.finfo, torch.iinfo),
    *(torch.jit.ScriptFunction, np.generic, np.dtype, weakref.ref, BaseException),
)
# Generators of random numbers, and how their state is read and set.
_GENERATORS: tuple[tuple[type, Callable[[Any], Any], Callable[[Any, Any], Any]], ...] = (
    (torch.Generator, lambda g: g.get_state(), lambda g, state: g.set_state(state)),
    (np.random.Generator, lambda g: g.bit_generator.state, lambda g, s: setattr(g.bit_generator, "state", s)),
    (np.random.RandomState, lambda g: g.get_state(), lambda g, state: g.set_state(state)),
    (random.Random, lambda g: g.getstate(), lambda g, state: g.setstate(state)),
)
_OPAQUE = (DataLoader, Dataset, Sampler)  # reading batches moves them on, and should
_MACHINERY = (  # others work with it, or it must let things go by itself
    *("threading", "_thread", "multiprocessing", "concurrent", "asyncio", "queue", "logging", "weakref", "_weakref"),
    *("torch.distributed", "torch._dynamo", "torch._inductor", "torch.utils.data"),
)
_MOST = 2000  # objects that one object of a class of the user's may lead to, else it is machinery
OURS = f"{__name__.partition('.')[0]}."
_LIBRARIES = ("torch", "builtins", "typing", "abc", OURS[:-1])  # whose classes keep nothing of the user's
_SHARED = frozenset(("tensor", "dict", "list", "set", "tuple", "array", "generator"))
INSIDE = frozenset(name for name, value in vars(nn.Module()).items() if isinstance(value, (dict, set)))
REGISTERED = ("_parameters", "_buffers", "_modules")  # a module's own books


def _kind(cls: type) -> str:
    """Say how objects of a class are looked at."""
    if issubclass(cls, Tensor):
        return "tensor"
    if issubclass(cls, _ATOMS):
        return "atom"
    for kind, classes in (
        ("module", nn.Module),
        ("optimiser", torch.optim.Optimizer),
        ("dict", dict),
        ("list", (list, deque)),
        ("set", set),
        ("tuple", (tuple, frozenset)),
        ("array", np.ndarray),
        ("generator", tuple(known for known, _, _ in _GENERATORS)),
        ("partial", (partial, types.MethodType)),
        ("opaque", _OPAQUE),
        ("object", types.SimpleNamespace),
    ):
        if issubclass(cls, classes):
            return kind
    if cls.__module__.startswith(OURS):
        return "atom"  # the session itself, where one of its hooks is met
    plain = cls.__flags__ & 1 << 9 and (cls.__dictoffset__ or _slotnames(cls))  # a class written in Python
    return "object" if plain and not cls.__module__.startswith(_MACHINERY) else "opaque"


class _Kinds(dict[type, str]):
    """Kinds by class, found when asked for. One per walk: classes of the user's are not kept alive."""

    def __missing__(self, cls: type) -> str:
        kind = self[cls] = _kind(cls)
        return kind


_COMMON = (
    *(type(None), bool, int, float, str, bytes, tuple, list, dict, set, OrderedDict, Tensor, nn.Parameter),
    *(torch.dtype, torch.device, torch.Size, types.FunctionType, types.BuiltinFunctionType, types.MethodType),
)
_KNOWN = {cls: _kind(cls) for cls in _COMMON}


class Reach:
    """What can be reached from a network, as it is now; `put_back` makes it so again, object by object.

    Values of tensors are not kept here (see `walkback.tracing.untouched.Kept`), but which tensor stands where is.

    Args:
        model: where to begin.

    >>> net = nn.Linear(2, 2)
    >>> net.cache = {"kept": [torch.zeros(1)]}
    >>> before = Reach(net)
    >>> len(before.tensors)
    3
    >>> net.cache["kept"].append(net(torch.ones(2)))
    >>> net.weight = nn.Parameter(torch.zeros(2, 2))
    >>> before.put_back()
    >>> len(net.cache["kept"]), any(net.weight is t for t in before.tensors)
    (1, True)
    """

    def __init__(self, model: nn.Module | torch.optim.Optimizer) -> None:
        self._tensors: dict[int, Tensor] = {}
        self.modules: list[nn.Module] = []
        self._kinds = _Kinds(_KNOWN)
        self._seen: dict[int, object] = {}  # kept, so that an id stays theirs
        self._data: dict[int, bool] = {}  # objects of other classes: are they only data?
        self._holders: list[tuple[Callable[..., None], Any, Any]] = []  # how to put back, what, and what it held
        self._optimisers: list[object] = []
        self._walk([model])
        self._before_optimisers = len(self._holders), len(self._tensors)
        self._walk([value for optimiser in self._optimisers for value in self._of_object(optimiser)])
        # FSDP changes parameters for gathered ones and back by itself, the first one attributes too.
        classes = {type(m) for m in self.modules}
        self.sharded = any(map(is_sharded, classes))
        if self.sharded:
            own = {id(m._parameters) for m in self.modules}
            first = any(map(_is_first_fsdp, classes))
            buffers = {id(d) for m in self.modules for d in (m._buffers, m._non_persistent_buffers_set)}
            self._holders = [h for h in self._holders if id(h[1]) not in own and (not first or id(h[1]) in buffers)]

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors, each once."""
        return list(self._tensors.values())

    @property
    def weights(self) -> list[Tensor]:
        """The tensors that can be trained: parameters, and plain tensors that ask for gradients."""
        return [t for t in self.tensors if isinstance(t, nn.Parameter) or (t.requires_grad and t.is_leaf)]

    @property
    def trained(self) -> list[Tensor]:
        """The tensors that a step of training changes: weights, and those of optimisers that the network holds."""
        return [*self.weights, *self.tensors[self._before_optimisers[1] :]]

    def leave_optimisers(self) -> None:
        """Keep what optimisers hold out of `put_back`."""
        del self._holders[self._before_optimisers[0] :]

    def put_back_optimisers(self) -> None:
        """Put back what optimisers hold, and nothing else."""
        self._restore(self._holders[self._before_optimisers[0] :])

    def places(self, wanted: Iterable[Tensor]) -> list[tuple[Any, Any, Tensor]]:
        """Return (container, key, tensor) wherever one of these tensors stands, in a container that can be written."""
        ids = {id(t) for t in wanted}
        found = []
        for at, held in self._containers():
            found += [(at, key, value) for key, value in held if id(value) in ids]
        return found

    def _containers(self) -> Iterator[tuple[Any, Iterable[tuple[Any, Any]]]]:
        """Yield what can be written by key, with the keys and values that it held."""
        for _, holder, held in self._holders:
            at = vars(holder) if isinstance(held, Attributes) else holder
            if isinstance(at, dict) and isinstance(held, dict):
                yield at, held.items()
            elif isinstance(at, (list, deque)) and isinstance(held, tuple):
                yield at, enumerate(held)

    def put_back(self) -> None:
        """Put every object back where it stood; what is where it was is not written."""
        self._restore(self._holders)

    def _restore(self, holders: list[tuple[Callable[..., None], Any, Any]]) -> None:
        failed: list[Exception] = []
        for restore, holder, held in holders:
            try:
                restore(holder, held)
            except Exception as error:  # one that can't be put back does not keep the others from it
                failed.append(error)
        if failed:
            raise failed[0]

    def cut_graphs(self) -> None:
        """Put a stand-in of equal value wherever a tensor with a graph stands, until `put_back`.

        The graph is the user's: a backward pass that runs through it would free it, and writing its tensor in place
        would change what it leads to.
        """
        stand_ins: dict[int, Tensor] = {}

        def stand_in(value: Any) -> Any:
            if isinstance(value, tuple):
                inside = [stand_in(v) for v in value]
                return value if all(map(is_, value, inside)) else getattr(value, "_make", type(value))(inside)
            if not isinstance(value, Tensor) or value.grad_fn is None:
                return value
            if id(value) not in stand_ins:
                with torch.enable_grad():
                    zero = torch.full((), -0.0, dtype=value.dtype, device=value.device, requires_grad=True)
                    stand_ins[id(value)] = value.detach() + zero  # not a leaf: the network may write it in place
            return stand_ins[id(value)]

        for at, held in self._containers():
            for key, value in held:
                if (other := stand_in(value)) is not value:
                    at[key] = other

    # -- the walk ------------------------------------------------------------------------------------

    def _walk(self, todo: list[Any]) -> None:
        seen, kinds, visits = self._seen, self._kinds, _VISITS
        while todo:
            value = todo.pop()
            kind = kinds[type(value)]
            if kind == "atom" or id(value) in seen:
                continue
            seen[id(value)] = value
            if kind != "opaque":
                inside = visits[kind](self, value)
                todo += [v for v in inside if kinds[type(v)] != "atom"]

    def _hold(self, restore: Callable[..., None], holder: Any, held: Any) -> None:
        self._holders.append((restore, holder, held))

    def _of_tensor(self, t: Tensor) -> Iterable[Any]:
        if nn.parameter.is_lazy(t):
            return ()
        self._tensors[id(t)] = t
        base = (t._base,) if t._is_view() else ()
        return (*base, *self._of_attributes(t)) if vars(t) else base

    def _of_module(self, module: nn.Module) -> Iterable[Any]:
        self.modules.append(module)
        own = vars(module)
        if isinstance(module, torch.jit.ScriptModule):
            return [value for name in REGISTERED for _, value in getattr(module, name).items()]
        if isinstance(module, LazyModuleMixin):
            return ()  # becomes another one when it runs
        self._hold(put_attributes, module, Attributes(own))
        self._hold(put_class, module, type(module))
        # Most of torch's own dicts are empty: those are looked at in one go.
        self._hold(put_nothing, [value for name, value in own.items() if name in INSIDE and not value], ())
        shared = [value for cls in type(module).__mro__ for value in self._of_class(cls)]
        return [*(value for name, value in own.items() if name not in INSIDE or value), *shared]

    def _of_class(self, cls: type) -> Iterable[Any]:
        """Look at what a class keeps for all its modules: a counter, a table, a tensor."""
        if id(cls) in self._seen or cls.__module__.partition(".")[0] in _LIBRARIES:
            return ()
        self._seen[id(cls)] = cls
        data = (type(None), str, Number)
        own = {
            name: value
            for name, value in vars(cls).items()
            if not name.startswith("__") and (isinstance(value, data) or self._kinds[type(value)] in _SHARED)
        }
        if own:
            self._hold(put_shared, cls, own)
        return own.values()

    def _of_attributes(self, thing: Any) -> Iterable[Any]:
        own = vars(thing)
        self._hold(put_attributes, thing, Attributes(own))
        return own.values()

    def _of_optimiser(self, optimiser: torch.optim.Optimizer) -> Iterable[Any]:
        self._optimisers.append(optimiser)
        return ()

    def _of_object(self, thing: Any) -> Iterable[Any]:
        if not isinstance(thing, torch.optim.Optimizer) and not self._is_data(thing):
            return ()
        inside = list(self._of_attributes(thing)) if hasattr(thing, "__dict__") else []
        slots = {name: getattr(thing, name) for name in _slotnames(type(thing)) if hasattr(thing, name)}
        if slots:
            self._hold(put_slots, thing, Slots(slots))
        return [*inside, *slots.values()]

    def _is_data(self, thing: Any) -> bool:
        """Return whether an object leads to data only: others meanwhile use a lock, a file, a thread, an iterator."""
        known = self._data.get(id(thing))
        if known is not None:
            return known
        seen: dict[int, Any] = {}
        todo, data = [thing], True
        while todo and data:
            value = todo.pop()
            kind = self._kinds[type(value)]
            if id(value) in seen or kind in ("atom", "tensor", "module", "optimiser", "array", "generator"):
                continue
            seen[id(value)] = value
            data = kind != "opaque" and len(seen) <= _MOST
            if kind == "object":
                slots = (getattr(value, name, None) for name in _slotnames(type(value)))
                todo += [*getattr(value, "__dict__", {}).values(), *slots]
            elif kind in ("list", "tuple", "set", "dict"):
                todo += [*value, *(dict.values(value) if kind == "dict" else ())]
            elif kind == "partial":
                todo += _of_partial(self, value)
        self._data.update(dict.fromkeys(seen, True) if data else {id(thing): False})
        return data

    def _of_dict(self, known: dict[Any, Any]) -> Iterable[Any]:
        self._hold(put_dict, known, dict(known))
        more = self._of_attributes(known) if getattr(known, "__dict__", None) else ()
        return (*known, *dict.values(known), *more)

    def _of_list(self, known: list[Any] | deque[Any]) -> Iterable[Any]:
        self._hold(put_items, known, tuple(known))
        return (*known, *(self._of_attributes(known) if getattr(known, "__dict__", None) else ()))

    def _of_set(self, known: set[Any]) -> Iterable[Any]:
        self._hold(put_set, known, frozenset(known))
        return tuple(known)

    def _of_array(self, array: np.ndarray) -> Iterable[Any]:
        if array.dtype != object and array.flags.writeable:
            self._hold(put_array, array, array.copy())
        return ()

    def _of_generator(self, generator: Any) -> Iterable[Any]:
        read, write = next((read, write) for known, read, write in _GENERATORS if isinstance(generator, known))
        self._hold(write, generator, read(generator))
        return ()


def _of_partial(_: Reach, made: Any) -> Iterable[Any]:
    return (made.__self__,) if isinstance(made, types.MethodType) else (made.func, *made.args, *made.keywords.values())


_VISITS: dict[str, Callable[[Reach, Any], Iterable[Any]]] = {
    "tensor": Reach._of_tensor,
    "module": Reach._of_module,
    "optimiser": Reach._of_optimiser,
    "dict": Reach._of_dict,
    "list": Reach._of_list,
    "set": Reach._of_set,
    "tuple": lambda _, value: value,
    "array": Reach._of_array,
    "generator": Reach._of_generator,
    "partial": _of_partial,
    "object": Reach._of_object,
}


# -- sharding ----------------------------------------------------------------------------------------------


def is_sharded(cls: type) -> bool:
    """Return whether modules of a class have their parameters spread over processes by FSDP, the first or second."""
    return _is_first_fsdp(cls) or is_resharded(cls)


def is_resharded(cls: type) -> bool:
    """Return whether modules of a class are of the second FSDP, which gathers parameters until `reshard()`."""
    return any(c.__name__ == "FSDPModule" for c in cls.__mro__)


def _is_first_fsdp(cls: type) -> bool:
    return cls.__name__ == "FullyShardedDataParallel"
