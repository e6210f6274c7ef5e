"""Measure a network and leave it exactly as found, also when something raises midway."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from walkback.errors import InputError
from walkback.network.values import modules_of, places
from walkback.tracing.kept import Kept, unwritten
from walkback.tracing.reach import Reach, is_resharded


@contextmanager
def untouched(model: nn.Module) -> Iterator[AsFound]:
    """Run eval mode, eager execution and gradients on inside; leave everything as it was outside.

    Put back on the way out is all that can be reached from the network (see `Reach`): every module's training flag,
    hooks and attributes, parameters and buffers, what lists and dicts hold, every tensor's numbers, its `.grad`,
    `requires_grad` and graph, and the random state of Python, NumPy, the CPU, the devices that the network lives on and
    its own generators. Training flags are set one by one, not with `model.eval()`, since a model may have overridden it
    with side effects.

    >>> net = nn.Sequential(nn.BatchNorm1d(3)).train()
    >>> net.kept = []
    >>> with untouched(net):
    ...     net.kept.append(net(torch.ones(2, 3)))
    ...     net.training, net[0].running_mean.add_(1.0)[0].item()
    (False, 1.0)
    >>> net.training, net[0].running_mean[0].item(), net.kept
    (True, 0.0, [])
    """
    modules = list(modules_of(model))
    found = AsFound(model)
    with ExitStack() as stack:
        stack.enter_context(random_state({t.device for t in found.reach.tensors}))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if any(_is_compiled(m) for m in modules):
            stack.enter_context(_eagerly())
        stack.enter_context(_no_fast_path())
        stack.callback(found.put_back)
        stack.enter_context(found.optimisers)
        modes = [(m, m.training) for m in modules]
        stack.callback(set_modes, modes)
        for module in modules:
            if is_resharded(type(module)):
                stack.callback(module.reshard)  # type: ignore[arg-type]  # a pass that raised may have left it gathered
        found.set_aside()
        set_modes((m, False) for m in modules)
        yield found


def set_modes(modes: Iterable[tuple[nn.Module, bool]]) -> None:
    """Give each module its training flag, without calling code of its own where there is a way around it."""
    for module, mode in modes:
        if module.training is not mode:
            if "training" in vars(module):
                vars(module)["training"] = mode
            else:  # of TorchScript, or a property
                module.training = mode


class AsFound:
    """A network as it was found: what hangs on it, and what every tensor of it holds and leads to."""

    def __init__(self, model: nn.Module) -> None:
        self.reach = Reach(model)
        # FSDP has the memory of its parameters in hand.
        ours = (t for t in self.reach.tensors if not (self.reach.sharded and isinstance(t, nn.Parameter)))
        self.values = Kept(ours)
        self._autograd = [_Autograd(t) for t in self.reach.tensors if not t.is_inference()]
        self.optimisers = Unstepped(self.reach.weights)

    def set_aside(self) -> None:
        """Take gradients and graphs of the user's out of the way of what runs until `put_back`."""
        for autograd in self._autograd:
            autograd.set_aside()
        if any(autograd.node is not None for autograd in self._autograd):
            self.reach.cut_graphs()

    def leave_training(self) -> None:
        """Keep out of `put_back` what a training loop changes: the user runs one meanwhile."""
        self.values.leave(self.reach.trained)
        self.reach.leave_optimisers()
        self.optimisers.leave()

    def rewind(self) -> None:
        """Give every tensor the numbers that it had, and optimisers what they held; new objects stay."""
        self.values.put_back()
        self.reach.put_back_optimisers()

    def put_back(self) -> None:
        """Make everything as it was."""
        with ExitStack() as each:  # from the last to the first, whatever one of them raises
            for autograd in self._autograd:
                each.callback(autograd.put_back)
            each.callback(self.values.put_back)
            for autograd in self._autograd:
                each.callback(autograd.cut)
            each.callback(self.reach.put_back)


class _Autograd:
    """What a tensor is to autograd: whether it asks for gradients, has some, and where it comes from."""

    __slots__ = ("grad", "hooks", "node", "requires_grad", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.requires_grad, self.node = tensor, tensor.requires_grad, tensor.grad_fn
        self.grad = tensor.grad if self.node is None else None
        self.hooks = [(name, hooks, dict(hooks or {})) for name, hooks in self._hooks()] if self.requires_grad else []

    def _hooks(self) -> list[tuple[str, dict[int, Any] | None]]:
        return [(name, getattr(self.tensor, name)) for name in ("_backward_hooks", "_post_accumulate_grad_hooks")]

    def set_aside(self) -> None:
        """Let nothing be added to the user's gradients by a backward pass that runs meanwhile."""
        if self.grad is not None:
            self.tensor.grad = None

    def cut(self) -> None:
        """Take off the graph of whatever was written into a tensor that had none."""
        t = self.tensor
        if self.node is not None or t.grad_fn is None:
            return
        if not t._is_view():
            t.detach_()
            return
        base = t._base
        assert base is not None
        if base.grad_fn is not None:
            base.detach_()
        # A view keeps its graph until it is another one of the same memory, under the same name.
        torch.utils.swap_tensors(t, base.as_strided(t.size(), t.stride(), t.storage_offset()))

    def put_back(self) -> None:
        """Put back the flag, the gradient and the hooks, each only where it is another one."""
        t = self.tensor
        if self.node is not None:
            return
        if t.requires_grad is not self.requires_grad:
            t.requires_grad_(self.requires_grad)
        if t.grad is not self.grad:
            t.grad = self.grad
        for name, hooks, held in self.hooks:
            now = getattr(t, name)
            if now is not hooks or (now is not None and now != held):
                if now is not None:
                    now.clear()
                if hooks is not None:
                    hooks.clear()
                    hooks.update(held)
                if now is not hooks:
                    setattr(t, name, hooks)


@contextmanager
def untrained(model: nn.Module) -> Iterator[list[Tensor]]:
    """Put back on leaving what weights held, and optimisers that the network has; leave the rest alone.

    Yields a list that has on leaving the tensors that had been written.
    """
    reach = Reach(model)
    try:
        with unwritten(reach.trained) as written, Unstepped(reach.weights):
            yield written
    finally:
        reach.put_back_optimisers()


class Unstepped(AbstractContextManager[None]):
    """On leaving, optimisers that made a step for one of these weights hold what they held: moments, counts, rates.

    Wherever they are kept. One that trains other networks is left alone: a credit may have learned.

    >>> weight = torch.ones(2, requires_grad=True)
    >>> optimiser = torch.optim.Adam([weight])
    >>> with Unstepped([weight]):
    ...     weight.sum().backward()
    ...     _ = optimiser.step()
    >>> dict(optimiser.state)
    {}
    """

    def __init__(self, weights: Iterable[Tensor]) -> None:
        self._weights = {id(t) for t in weights}
        self._held: dict[int, tuple[Reach, Kept]] = {}

    def __enter__(self) -> None:
        self._hook = register_optimizer_step_pre_hook(self._before)

    def _before(self, optimiser: torch.optim.Optimizer, *_: Any) -> None:
        own = [p for group in optimiser.param_groups for p in group["params"]]
        if id(optimiser) not in self._held and any(id(p) in self._weights for p in own):
            reach, trained = Reach(optimiser), {id(p) for p in own}
            self._held[id(optimiser)] = reach, Kept(t for t in reach.tensors if id(t) not in trained)

    def leave(self) -> None:
        """Put nothing back: the user trains meanwhile."""
        self._held.clear()

    def __exit__(self, *_: object) -> None:
        self._hook.remove()
        for reach, values in self._held.values():
            reach.put_back()
            values.put_back()


def _eagerly() -> AbstractContextManager[Any]:
    stance = getattr(torch.compiler, "set_stance", None)
    if stance is None:
        raise InputError(
            f"Expected torch 2.6 or newer to measure parts that were compiled one by one, but got {torch.__version__}. "
            "Measure the network as it was before torch.compile."
        )
    return stance("force_eager")


def _is_compiled(module: nn.Module) -> bool:
    # Hooks added after compilation are ignored by compiled code, so compiled parts must run eagerly.
    return "_orig_mod" in module._modules or module._compiled_call_impl is not None


@contextmanager
def _no_fast_path() -> Iterator[None]:
    """Switch off nn.TransformerEncoder's fused inference code, which has no gradients, for weights that need none."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def drawn_from(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed the generators of Python, NumPy and torch inside the `with` block; they are as found afterwards.

    >>> with drawn_from(0):
    ...     a = torch.rand(1)
    >>> with drawn_from(0):
    ...     bool(a == torch.rand(1))
    True
    """
    with random_state(set() if device is None else {device}):
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        yield


def undrawn(model: nn.Module) -> AbstractContextManager[None]:
    """Put back on leaving the random state of Python, NumPy, the CPU and the devices of a network."""
    return random_state({t.device for _, t in places(model)})


@contextmanager
def random_state(devices: set[torch.device]) -> Iterator[None]:
    """Put back on leaving the random state of Python, NumPy, the CPU and `devices`."""
    python, numpy_state = random.getstate(), np.random.get_state()
    mps = torch.mps.get_rng_state() if any(d.type == "mps" for d in devices) else None
    others = {d.type for d in devices if hasattr(getattr(torch, d.type, None), "set_rng_state")} - {"cpu", "mps"}
    try:
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            for kind in others:
                there = sorted({d.index or 0 for d in devices if d.type == kind})
                stack.enter_context(torch.random.fork_rng(devices=there, device_type=kind))
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy_state)
        if mps is not None:
            torch.mps.set_rng_state(mps)
