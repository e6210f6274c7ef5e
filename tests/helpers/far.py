"""A device that is not the CPU, made of tensors that only say so: what is wrong with them is wrong on a real one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from walkback.network.values import NO_FLOAT64


class Far(Tensor):
    """A tensor of the far device; its values lie in a tensor of the CPU that nobody else may touch."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor, device: torch.device) -> Far:
        layout = {"strides": near.stride(), "storage_offset": near.storage_offset(), "dtype": near.dtype}
        far = Tensor._make_wrapper_subclass(cls, near.shape, **layout, device=device)
        far.near = near
        return far

    def __repr__(self) -> str:
        return f"Far({self.near})"

    def tolist(self) -> Any:
        return self.cpu().tolist()  # PyTorch's own refuses subclasses

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.near.untyped_storage()

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{op} outside of the mode")


class FarMode(TorchDispatchMode):
    """Runs what concerns far tensors, refuses what a real device would, and counts what leaves it (elements)."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device, self.left = torch.device(device), Counter[str]()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        far = [t for t in inputs if isinstance(t, Far)]
        asked = kwargs.get("device")
        device = torch.device(asked) if asked is not None else (self.device if far else torch.device("cpu"))
        copies = op in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
        stray = [t for t in inputs if not isinstance(t, Far) and t.ndim] if far and not copies else []
        index = op in (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default)  # indices may lie on the CPU
        if stray and not index:
            raise RuntimeError(f"{op}: tensors on {self.device} and on the CPU, {[tuple(t.shape) for t in stray]}")
        if op == torch.ops.aten._to_copy.default and far and device.type == "cpu":
            self.left[str(far[0].dtype)] += far[0].numel()
        if op == torch.ops.aten.copy_.default and far and not isinstance(args[0], Far):
            self.left[str(far[0].dtype)] += args[0].numel()
        if asked is not None:
            kwargs["device"] = torch.device("cpu")
        near_args, near_kwargs = tree_map_only(Far, lambda t: t.near, (args, kwargs))
        out = op(*near_args, **near_kwargs)
        if device != self.device or (op == torch.ops.aten.copy_.default and not isinstance(args[0], Far)):
            return out

        known = {id(t.near): t for t in far}  # what an operation changed in place is what it was given

        def wrapped(t: Tensor) -> Tensor:
            if id(t) in known:
                return known[id(t)]
            if self.device.type in NO_FLOAT64 and t.dtype == torch.float64:
                raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support it.")
            return Far(t, self.device)

        return tree_map_only(Tensor, wrapped, out)


def register() -> None:
    """Make "far" a device of this process, for good: call it in a process of its own."""
    _setup_privateuseone_for_python_backend("far")
    torch.Generator = Near  # type: ignore[misc]


class Near(torch.Generator):
    """Draws for any device; a generator of the far one would need a library of its own."""

    def __new__(cls, device: object = "cpu") -> Near:
        return super().__new__(cls)


def moved(module: nn.Module, device: str) -> nn.Module:
    """The network or rule there."""
    for part in module.modules():
        for key, p in part._parameters.items():
            if p is not None:
                part._parameters[key] = nn.Parameter(p.detach().to(device), requires_grad=p.requires_grad)
        for key, b in part._buffers.items():
            if b is not None:
                part._buffers[key] = b.to(device)
    return module
