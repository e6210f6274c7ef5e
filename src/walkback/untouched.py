"""Measure a network and leave it exactly as found, also when something raises midway."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from walkback.values import inner


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Eval mode, eager execution and gradients on inside; everything as it was outside.

    Restored on the way out: every module's training flag, every buffer (object and contents), every
    parameter's `.grad` and `requires_grad`, every other attribute of a module (the object, not what was written
    into it), and the random state of Python, NumPy, the CPU and the devices
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
    parameters = [(p, p.grad, p.requires_grad) for p in model.parameters()]
    devices = {t.device for t in (*model.parameters(), *model.buffers())}
    with ExitStack() as stack:
        stack.enter_context(random_state(devices))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if any(_is_compiled(m) for m in modules):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_no_fast_path())
        stack.enter_context(same_attributes(modules))
        stack.enter_context(same_buffers(modules))
        stack.enter_context(unwritten(model.buffers()))
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


_TORCHS = frozenset(vars(nn.Module()))  # torch's own attributes: hooks, parameters, buffers, modules, mode


@contextmanager
def same_attributes(modules: Iterable[nn.Module]) -> Iterator[None]:
    """On leaving, the plain attributes of every module are the objects that they were, and there are no others.

    A module may keep what it computed in eval mode, and drop it in a `train()` that is never called here: it would
    go on with what belongs to old weights. All attributes are put back, not tensors alone, since a tensor kept for
    64 tokens must not be found under "made for 128 tokens".

    >>> net = nn.Linear(2, 2)
    >>> with same_attributes([net]):
    ...     net.folded = net.weight.detach() * 2
    >>> hasattr(net, "folded")
    False
    """
    modules = tuple(modules)
    # FSDP 1 keeps views of its weights, and that it has begun, in attributes; a lazy module becomes another one.
    own = [] if any(type(m).__name__ == "FullyShardedDataParallel" for m in modules) else modules
    before = [(m, _attributes(m)) for m in own if not isinstance(m, LazyModuleMixin)]
    try:
        yield
    finally:
        for module, kept in before:
            for name in _attributes(module).keys() - kept.keys():
                del vars(module)[name]
            # A parameter or module of the same name, made since, would be hidden by the attribute.
            registered = {*module._parameters, *module._modules}
            vars(module).update((name, value) for name, value in kept.items() if name not in registered)


def _attributes(module: nn.Module) -> dict[str, object]:
    return {name: value for name, value in vars(module).items() if name not in _TORCHS}


@contextmanager
def same_buffers(modules: Iterable[nn.Module]) -> Iterator[None]:
    """On leaving, every module has the buffers that it had on entering, under the same names; see `unwritten`."""
    names = [(m, dict(m._buffers), set(m._non_persistent_buffers_set)) for m in modules]
    try:
        yield
    finally:
        for module, own, volatile in names:
            module._buffers.clear()
            module._buffers.update(own)
            module._non_persistent_buffers_set.intersection_update(volatile)


@contextmanager
def same_parameters(modules: Iterable[nn.Module]) -> Iterator[list[nn.Module]]:
    """The same for parameters; yields a list that has on leaving the modules where one had been replaced."""
    modules = tuple(modules)
    # A sharded network changes its parameters for gathered ones and back by itself.
    names = [] if any(map(_is_sharded, modules)) else [(m, dict(m._parameters)) for m in modules]
    replaced: list[nn.Module] = []
    try:
        yield replaced
    finally:
        for module, own in names:
            now = module._parameters
            if list(now) != list(own) or any(now[name] is not p for name, p in own.items()):
                replaced.append(module)
                now.clear()
                now.update(own)


class Kept:
    """Copies of tensors, to see what was written since and to put it back, bit for bit.

    They are compared by value, since batch norm, `.data` and numpy write past the version counter, and only what
    differs is written: a backward pass begun before can still be finished. Tensors without values (meta, freed by
    sharding) are left out.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._kept = [
            (t, part, part.detach(), part.detach().clone())
            for t in {id(t): t for t in tensors}.values()
            for part in inner(t)
            if _has_values(part)
        ]

    def _written(self) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        here = [item for item in self._kept if _has_values(item[2])]
        return [item for item, differs in zip(here, _differ([(now, copy) for _, now, _, copy in here])) if differs]

    def changed(self) -> list[Tensor]:
        """The tensors that hold something else by now."""
        return [t for t, *_ in self._written()]

    def put_back(self) -> list[Tensor]:
        """Put back what differs, and return the tensors that did."""
        written = self._written()
        with ExitStack() as each:  # one that can't be put back does not keep the others from it
            for _, now, memory, copy in written:
                each.callback(_put_back, now, memory, copy)
        return [t for t, *_ in written]


@contextmanager
def unwritten(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """On leaving, every tensor holds bit for bit what it held on entering, also where code wrote to its `.data`.

    Yields a list that has on leaving those that had been written; see `Kept`.

    >>> kept, other = torch.tensor([1.0, float("nan")]), torch.zeros(2)
    >>> with unwritten([kept, other]) as written:
    ...     _ = other.data.add_(1)
    >>> [t is other for t in written], other
    ([True], tensor([0., 0.]))
    """
    kept, written = Kept(tensors), []
    try:
        yield written
    finally:
        written += kept.put_back()


def _has_values(t: Tensor) -> bool:
    return not t.is_meta and (t.layout != torch.strided or t.numel() == 0 or t.untyped_storage().size() > 0)


AT_ONCE = ("cpu",)  # types of devices whose answers need no waiting: there `torch.equal` is the fastest


def _differ(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[bool]:
    """Whether the two of each pair differ, with one wait per device."""
    answers = [_differs(now, copy) for now, copy in pairs]
    waiting: dict[torch.device, list[int]] = {}
    for i, answer in enumerate(answers):
        if isinstance(answer, Tensor):
            waiting.setdefault(answer.device, []).append(i)
    for there in waiting.values():
        for i, answer in zip(there, torch.stack([torch.as_tensor(answers[i]) for i in there]).tolist()):
            answers[i] = answer
    return [bool(answer) for answer in answers]


def _differs(now: Tensor, copy: Tensor) -> bool | Tensor:
    """Whether any bit differs, as a tensor where it has to be waited for."""
    if (now.shape, now.dtype, now.device, now.layout) != (copy.shape, copy.dtype, copy.device, copy.layout):
        return True
    try:
        pairs = list(zip(_bits(now), _bits(copy)))
    except (RuntimeError, KeyError):
        return True  # of a kind that can't be looked at: put back in any case
    if any(a.shape != b.shape for a, b in pairs):
        return True
    if now.device.type in AT_ONCE:
        return not all(torch.equal(a, b) for a, b in pairs)
    return torch.stack([(a != b).any() for a, b in pairs]).any()


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(t: Tensor) -> list[Tensor]:
    """What a tensor is made of, as integers: a NaN is equal to itself, and numbers of every type can be compared."""
    t = t.detach()
    if t.layout == torch.sparse_coo:
        return [t._indices(), *_bits(t._values())]
    if t.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [t.crow_indices(), t.col_indices(), *_bits(t.values())]
    if t.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [t.ccol_indices(), t.row_indices(), *_bits(t.values())]
    if t.is_quantized:
        return [t.int_repr()]
    if t.is_complex():
        t = torch.view_as_real(t.resolve_conj())
    return [t.resolve_neg().view(_WORDS[t.element_size()])]


def _put_back(now: Tensor, memory: Tensor, copy: Tensor) -> None:
    with torch.inference_mode() if now.is_inference() else torch.no_grad():
        if now.layout == torch.strided and (now.data_ptr(), now.stride()) != (memory.data_ptr(), memory.stride()):
            now.data = memory  # after `p.data = other`: the memory it had, which others may share
        now.copy_(copy)


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
def drawn_from(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """What is drawn from the generators of Python, NumPy and torch follows from the seed; they are as found afterwards.

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
