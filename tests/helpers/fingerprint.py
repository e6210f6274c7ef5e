"""Everything that can be reached from a network, and the state of the process, as one comparable value.

Written without the code under test: a plain recursion over attributes, containers and tensors.
"""

from __future__ import annotations

import random
import types
from collections import deque
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class Fingerprint:
    """What a network is made of, by path. Objects are kept, so that an id stays theirs."""

    def __init__(self, model: nn.Module, *more: Any) -> None:
        self.facts: dict[str, Any] = {}
        self.values: dict[str, Any] = {}  # the same without identities, to compare two networks built alike
        self._kept: list[Any] = []
        self._paths: dict[int, str] = {}
        for i, root in enumerate((model, *more)):
            self._look(f"<{i}>", root)
        self._process()

    def changed(self, other: Fingerprint) -> list[str]:
        return sorted(k for k in self.facts.keys() | other.facts.keys() if self.facts.get(k) != other.facts.get(k))

    def _note(self, path: str, identity: Any, value: Any) -> None:
        self.facts[path], self.values[path] = (identity, value), value

    def _look(self, path: str, value: Any) -> None:
        self._kept.append(value)
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes, torch.dtype, torch.device)):
            self._note(path, type(value), repr(value))
            return
        if id(value) in self._paths:
            self._note(path, id(value), f"as {self._paths[id(value)]}")
            return
        self._paths[id(value)] = path
        if isinstance(value, Tensor):
            self._tensor(path, value)
        elif isinstance(value, np.ndarray):
            self._note(path, id(value), (value.shape, value.tobytes()))
        elif isinstance(value, torch.Generator):
            self._note(path, id(value), bits(value.get_state()))
        elif isinstance(value, np.random.Generator):
            self._note(path, id(value), repr(value.bit_generator.state))
        elif isinstance(value, random.Random):
            self._note(path, id(value), value.getstate())
        elif isinstance(value, dict):
            names = [k if isinstance(k, str) else "…" for k in value]  # numbers of hooks differ from network to network
            self._note(path, (id(value), [k for k in value if simple(k)]), (type(value).__name__, names))
            for i, (key, held) in enumerate(dict.items(value)):
                self._look(f"{path}[{key!r}]" if isinstance(key, str) else f"{path}[#{i}]", held)
                if not simple(key):
                    self._look(f"{path} key {i}", key)
            self._attributes(path, value)
        elif isinstance(value, (list, tuple, deque)):
            self._note(path, id(value), (type(value).__name__, len(value)))
            for i, held in enumerate(value):
                self._look(f"{path}[{i}]", held)
            self._attributes(path, value)
        elif isinstance(value, (set, frozenset)):
            self._note(path, sorted(map(id, value)), len(value))
        elif isinstance(value, partial):
            self._look(f"{path}.args", value.args)
            self._look(f"{path}.keywords", value.keywords)
        elif isinstance(value, types.MethodType):
            self._look(f"{path}.self", value.__self__)
        elif isinstance(value, (type, types.FunctionType, types.ModuleType, types.BuiltinFunctionType)):
            self._note(path, id(value), "")
        else:
            self._note(path, (id(value), type(value)), type(value).__name__)
            self._attributes(path, value)

    def _attributes(self, path: str, value: Any) -> None:
        slots = [n for c in type(value).__mro__ for n in getattr(c, "__slots__", ()) if hasattr(value, n)]
        own = {**getattr(value, "__dict__", {}), **{name: getattr(value, name) for name in slots}}
        if own:
            self._note(f"{path} has", None, list(own))
        for name, held in own.items():
            self._look(f"{path}.{name}", held)
        if isinstance(value, torch.jit.ScriptModule):
            for name, held in (*value.named_parameters(), *value.named_buffers()):
                self._tensor(f"{path}.{name}", held)

    def _tensor(self, path: str, t: Tensor) -> None:
        node, grad = t.grad_fn, t.grad if t.is_leaf else None
        self._kept += [node, grad]
        where = (id(t), t.data_ptr(), t.stride(), id(node), id(grad), t._is_view())
        what = (type(t).__name__, t.dtype, t.shape, t.requires_grad, t.is_leaf, bits(t))
        self._note(path, where, (*what, None if grad is None else bits(grad)))
        for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            hooks = getattr(t, name)
            self._note(f"{path}.{name}", None if hooks is None else [id(h) for h in hooks.values()], bool(hooks))
        self._attributes(path, t)

    def _process(self) -> None:
        kind, keys, *rest = np.random.get_state()
        facts = {
            "torch": bits(torch.random.get_rng_state()),
            "python": random.getstate(),
            "numpy": (kind, keys.tobytes(), rest),
            "modes": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")),
            "default dtype": torch.get_default_dtype(),
            "fast path": torch.backends.mha.get_fastpath_enabled(),
            "nn.Module": sorted(vars(nn.Module)),
            "dispatch": torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack(),
        }
        for name, value in facts.items():
            self._note(f"process: {name}", None, value)


def simple(key: Any) -> bool:
    return isinstance(key, (str, int, float, bool, type(None)))


def bits(t: Tensor) -> bytes:
    t = t.detach().cpu().contiguous()
    return t.flatten().view(torch.uint8).numpy().tobytes() if t.numel() else b""
