"""Copies of a network that is being measured: they have none of our hooks."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from walkback.tracing.reach import INSIDE, OURS, Reach

_sessions = 0


@contextmanager
def copyable() -> Iterator[None]:
    """Let `copy.deepcopy` of a network that is being measured give a network that is not, inside the `with` block.

    The copy has none of our hooks, which would record its passes as those of the original. A tensor that the network
    keeps with the graph of the pass just measured is copied without it, where torch would refuse to copy it at all.

    >>> import torch
    >>> net = nn.Linear(2, 2)
    >>> net.kept = net(torch.ones(2))
    >>> with copyable():
    ...     copy.deepcopy(net).kept.requires_grad
    False
    """
    global _sessions  # torch has one class for all modules
    _sessions += 1
    nn.Module.__deepcopy__ = _copied  # type: ignore[attr-defined]
    try:
        yield
    finally:
        _sessions -= 1
        if not _sessions:
            _as_torch_copies()


def _as_torch_copies() -> None:
    if "__deepcopy__" in vars(nn.Module):
        del nn.Module.__deepcopy__  # type: ignore[attr-defined]


def _copied(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    reach = Reach(module)
    memo.update((id(t), t.detach().clone()) for t in reach.tensors if t.grad_fn is not None)
    hooks = [hook for m in reach.modules for hooks in _hooks(m) for hook in hooks.values()]
    memo.update((id(hook), _nothing) for hook in hooks if getattr(hook, "__module__", "").startswith(OURS))
    _as_torch_copies()
    try:
        copied = copy.deepcopy(module, memo)
    finally:
        if _sessions:
            nn.Module.__deepcopy__ = _copied  # type: ignore[attr-defined]
    for m in Reach(copied).modules:
        ours = {key for hooks in _hooks(m) for key, hook in hooks.items() if hook is _nothing}
        for hooks in _hooks(m) if ours else ():
            for key in ours & hooks.keys():
                del hooks[key]
    return copied


def _hooks(module: nn.Module) -> list[dict[int, Any]]:
    return [value for name, value in vars(module).items() if name in INSIDE and "_hooks" in name]


def _nothing(*args: object) -> None:
    """Stand for a hook of ours in a copy until it is taken out."""
