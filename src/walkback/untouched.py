"""Measure a network and leave it exactly as found, also when something raises midway."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import nn


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Eval mode, eager execution and gradients on inside; everything as it was outside.

    Restored on the way out: every module's training flag, every buffer (object and contents), every
    parameter's `.grad` and `requires_grad`, and the random state of Python, NumPy, the CPU and the devices
    the model lives on. Training flags are set one by one, not with `model.eval()`, since a model may have
    overridden it with side effects.

    >>> net = nn.Sequential(nn.BatchNorm1d(3)).train()
    >>> with untouched(net):
    ...     net.training, net[0].running_mean.add_(1.0)[0].item()
    (False, 1.0)
    >>> net.training, net[0].running_mean[0].item()
    (True, 0.0)
    """
    modules = list(model.modules())
    modes = [(m, m.training) for m in modules]
    names = [(m, dict(m._buffers), set(m._non_persistent_buffers_set)) for m in modules]
    buffers = [(b, b.detach().clone()) for _, own, _ in names for b in own.values() if b is not None]
    parameters = [(p, p.grad, p.requires_grad) for p in model.parameters()]
    devices = {p.device for p, _, _ in parameters} | {b.device for b, _ in buffers}
    with ExitStack() as stack:
        stack.enter_context(random_state(devices))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if any(_is_compiled(m) for m in modules):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_no_fast_path())
        try:
            for module, mode in modes:
                if mode:
                    module.training = False
            for p, grad, _ in parameters:
                if grad is not None:
                    p.grad = None  # a credit that calls backward() must not add to the user's gradients
            yield
        finally:
            for module, mode in modes:
                if module.training is not mode:
                    module.training = mode
                if _is_sharded(module):
                    module.reshard()  # type: ignore[operator]  # a pass that raised may have left it gathered
            for p, grad, requires_grad in parameters:
                if p.grad is not grad:
                    p.grad = grad
                if p.requires_grad is not requires_grad:
                    p.requires_grad_(requires_grad)
            with torch.no_grad():
                for buffer, copy in buffers:
                    # Compared by value: batch norm writes its statistics past the version counter.
                    if not torch.equal(buffer, copy):
                        buffer.copy_(copy)
            for module, own, volatile in names:
                module._buffers.clear()
                module._buffers.update(own)
                module._non_persistent_buffers_set.intersection_update(volatile)


def _is_compiled(module: nn.Module) -> bool:
    # Hooks added after compilation are ignored by compiled code, so compiled parts must run eagerly.
    return "_orig_mod" in module._modules or module._compiled_call_impl is not None


def _is_sharded(module: nn.Module) -> bool:
    return any(c.__name__ == "FSDPModule" for c in type(module).__mro__)


@contextmanager
def _no_fast_path() -> Iterator[None]:
    """nn.TransformerEncoder has fused inference code, without gradients, for weights that need none."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def random_state(devices: set[torch.device]) -> Iterator[None]:
    """The random state of Python, NumPy, the CPU and `devices` is on leaving what it was on entering."""
    python, numpy_state = random.getstate(), np.random.get_state()
    cuda = sorted({d.index or 0 for d in devices if d.type == "cuda"})
    mps = torch.mps.get_rng_state() if any(d.type == "mps" for d in devices) else None
    try:
        with torch.random.fork_rng(devices=cuda):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy_state)
        if mps is not None:
            torch.mps.set_rng_state(mps)
