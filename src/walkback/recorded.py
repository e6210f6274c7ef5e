"""Credits recorded from a user's own backward pass: existing feedback-alignment code, audited unchanged.

Layers with a backward of their own (custom autograd Functions), hooks that replace gradients, or a function that trains
layer by layer: whatever it is, it is run on the batch under test, and the signal that reaches what each module wrote is
the credit of that site.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from walkback.anatomy import Anatomy, Part, unwrap
from walkback.batch import Inputs, call, mapped
from walkback.derived import carry_gradient
from walkback.errors import CreditError, InputError
from walkback.loss import Loss, cross_entropy
from walkback.reach import Reach
from walkback.trace import Trace
from walkback.untouched import untouched, unwritten
from walkback.values import first_tensor, fragile, largest, logits_of, members, parameters_of, stream_of

Backward = Callable[[nn.Module, Any, Tensor], object]


def recorded(
    model: nn.Module,
    backward: Backward | None = None,
    *,
    anatomy: Anatomy | Mapping[str, Any] | None = None,
    writers: Sequence[Part] | None = None,
) -> Recorded:
    """The credit that a network's own training code sends to each site: `diagnose(…, credit=recorded(model))`.

    The reference can then not come from that backward: `diagnose` derives it from the forward pass alone, or takes
    `reference=twin`, and verifies it by finite differences.

    Args:
        model: the network that is measured, with its own layers and hooks.
        backward: (model, inputs, labels) -> anything; runs forward and backward as the training code does, and leaves
            the optimiser alone. None: `loss(model(inputs), labels).sum().backward()`. Weights that it changes are
            put back, also those that an optimiser in hooks of the backward pass changes (its own state is not); where
            credit depends on the scale of the loss, run your own scale here.
        anatomy: the parts, where `Anatomy.of` needs help; `diagnose` passes its own on.
        writers: the L + 1 modules at whose output the signal of site 0…L is read, where these are not the stem and the
            blocks themselves. Modules or paths. A feedback layer that ends a block and passes its input on unchanged
            needs none: the signal is read behind it.

    >>> import torch, walkback as wb
    >>> net, batches = wb.selftest.healthy(), wb.selftest.batches(8)
    >>> handle = net.blocks[3].register_full_backward_hook(lambda module, given, out: (-given[0],))
    >>> wb.diagnose(net, batches).advisories[0].partition(" (")[0]
    "the network's own backward pass is not the derivative of its loss"
    >>> cosines = wb.diagnose(net, batches, credit=wb.recorded(net)).per_layer["cosine"]
    >>> [c > 1 - 1e-6 for c in cosines]
    [False, False, False, False, True]
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"Expected model to be a torch.nn.Module, but got {type(model).__name__}.")
    if backward is not None and not callable(backward):
        raise InputError(
            f"Expected backward to be a function of (model, inputs, labels), but got {type(backward).__name__}."
        )
    if isinstance(anatomy, Mapping):
        anatomy = Anatomy.of(unwrap(model), **anatomy)
    return Recorded(model, backward, anatomy, None if writers is None else tuple(writers))


@dataclass(frozen=True)
class Recorded:
    """A credit function, made by `recorded`. Call it with the trace of a batch."""

    model: nn.Module
    backward: Backward | None = None
    anatomy: Anatomy | None = None
    writers: tuple[Part, ...] | None = None
    loss: Loss | None = None
    restores_weights: bool = field(default=True, init=False)

    def bound(self, anatomy: Anatomy, loss: Loss | None) -> Recorded:
        """The same with the anatomy and the loss of a measurement, where it has none of its own."""
        return replace(self, anatomy=self.anatomy or anatomy, loss=self.loss or loss)

    def __call__(self, trace: Trace) -> list[Tensor]:
        """One signal per site, shaped like `trace.states`."""
        if trace.reference == "own":
            raise CreditError(
                "Expected a reference that does not come from the network's own backward pass, since that is what is "
                'being recorded: a cosine of it with itself is 1. Use Tracer(model, reference="derived").'
            )
        model = unwrap(self.model)
        anatomy = Anatomy.of(model) if self.anatomy is None else self.anatomy.resolve(model)
        listener = _Listener(model, anatomy, self.writers)
        with ExitStack() as stack:
            # Weights too, also where no `backward` is given: an optimiser may run in hooks of the backward pass.
            found = stack.enter_context(untouched(model))
            stack.enter_context(unwritten(parameters_of(model) if found.reach.sharded else ()))
            listener.listen(stack)
            stack.enter_context(listener.makers)
            self._run(mapped(trace.inputs, lambda t: t.detach().clone()), trace.labels)
        return listener.signals(trace)

    def _run(self, x: Inputs, y: Tensor) -> None:
        if self.backward is not None:
            self.backward(self.model, x, y)
            return
        logits = logits_of(call(self.model, x))
        loss = (self.loss or cross_entropy)(logits, y)
        loss.sum().backward()


class _Listener:
    """Hears what every writer made and the signal that came back to it.

    Keys are the sites 1…L; for site 0 the stems, ("stem", k), or a writer that the user named, 0, and "given", which is
    what block 1 received.
    """

    def __init__(self, model: nn.Module, anatomy: Anatomy, writers: Sequence[Part] | None) -> None:
        self.model = model
        self.blocks: tuple[nn.Module, ...] = anatomy.blocks  # type: ignore[assignment]  # resolved
        stems = {("stem", k): stem for k, stem in enumerate(anatomy.stems)}
        self.writers: dict[Any, Any] = {**stems, **dict(enumerate(self.blocks, 1))}
        if writers is not None:
            self.writers = dict(enumerate(model.get_submodule(w) if isinstance(w, str) else w for w in writers))
            if len(self.writers) != len(self.blocks) + 1:
                raise InputError(
                    f"Expected {len(self.blocks) + 1} writers, one for each site 0…{len(self.blocks)}, but got "
                    f"{len(self.writers)}. The first is the stem."
                )
        self.heard: dict[Any, list[list[Tensor]]] = {}  # key -> per run the signals that came
        self.made: dict[Any, Tensor] = {}  # stem -> what it made last
        self.given: dict[int, list[Tensor]] = {}  # block -> the stream it received, per run
        self.axis = 0  # of the batch: 1 in stacks of (T, B, d), whose trace has the batch first
        self.makers = _Makers()
        self.named = writers is not None  # read where the user says

    def listen(self, stack: ExitStack) -> None:
        """Put hooks on, for as long as `stack` lasts."""
        for key, writer in self.writers.items():
            stack.callback(writer.register_forward_hook(self._after(key)).remove)
        for i, block in enumerate(self.blocks):
            hook = block.register_forward_pre_hook(self._before(i), with_kwargs=True, prepend=True)
            stack.callback(hook.remove)

    def _after(self, key: Any) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            made = first_tensor(members(output))
            if made is not None and torch.is_grad_enabled():
                self._hear(key, made, self.named)
                if isinstance(key, tuple):
                    self.made[key] = made.detach().clone()

        return hook

    def _before(self, i: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            stream = stream_of(module, args, kwargs)
            if stream is not None and torch.is_grad_enabled():
                self.given.setdefault(i, []).append(stream.detach().clone())
                if i == 0:
                    self._hear("given", stream)

        return hook

    def _hear(self, key: Any, tensor: Tensor, here: bool = True) -> None:
        """Take down what comes to `tensor`, or unless `here` what a feedback layer at its end sends on in its place."""
        signals: list[Tensor] = []
        self.heard.setdefault(key, []).append(signals)
        if not tensor.requires_grad:
            if fragile(tensor, Reach(self.model).tensors):
                raise CreditError(
                    f"Expected a stream that can be listened to, but it starts as a parameter or buffer of shape "
                    f"{tuple(tensor.shape)} that needs no gradient, and writing there would change the network. Call "
                    "requires_grad_() on it while recording."
                )
            carry_gradient(tensor)  # frozen parameters below: the signal would stop above
        last = None if here else self.makers.feedback(tensor)
        self.makers.forget()
        if last is None:
            tensor.register_hook(lambda grad: signals.append(grad.detach().clone()))
            return
        node, behind = last

        def sent(grads: tuple[Tensor | None, ...], _: Any) -> None:
            found = grads[behind]
            if found is not None:
                signals.append(found.detach().clone())

        node.register_hook(sent)

    def signals(self, trace: Trace) -> list[Tensor]:
        """The signal of every site; an error where there is none, or not one."""
        self._refuse_other_pass(trace)
        # A layer between stem and block 1 that passes its input on: what reached the stem lies below it.
        first = 0 if 0 in self.writers else "given"
        for key, made in self.made.items():
            if any(self.heard[key]) and _alike(self._batch_first(made), trace.states[0]):
                first = key
        return [self._signal(site, site or first) for site in range(len(self.blocks) + 1)]

    def _batch_first(self, h: Tensor) -> Tensor:
        return h.transpose(0, 1) if self.axis else h

    def _signal(self, site: int, key: Any) -> Tensor:
        runs = [signals for signals in self.heard.get(key, ()) if signals]
        if not runs:
            ran = len(self.heard.get(key, ()))
            raise CreditError(
                f"Expected the backward pass to reach site {site}, but no signal came to what its module wrote (it ran "
                f"{ran} times with gradients on). Code that computes its updates without autograd has nothing to "
                "record: give its signals as credit=function of the trace instead."
            )
        if len(runs) > 1:
            raise CreditError(
                f"Expected one signal for site {site}, but its module ran {len(runs)} times and each run got one. "
                "Record a backward that runs the network once per batch."
            )
        return self._batch_first(torch.stack(runs[0]).sum(0))

    def _refuse_other_pass(self, trace: Trace) -> None:
        for i in range(len(self.blocks)):
            seen = self.given.get(i, ())
            if not seen or any(_alike(self._batch_first(g), trace.states[i]) for g in seen):
                continue
            if i == 0 and any(g.ndim == 3 and _alike(g.transpose(0, 1), trace.states[0]) for g in seen):
                self.axis = 1
                continue
            raise CreditError(
                f"Expected the recorded pass to compute the states that are measured, but block {i + 1} received other "
                "ones: another batch, training mode (dropout, batch norm) or a random forward pass. Run the network on "
                "the inputs given, in the mode it is in."
            )


class _Makers(TorchFunctionMode):
    """Knows which tensor each node of the graph made, since `forget`."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[Any, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one call and note what it made."""
        result = func(*args, **(kwargs or {}))
        if torch.is_grad_enabled():
            for t in (*tree_leaves((args, kwargs)), *tree_leaves(result)):
                if isinstance(t, Tensor) and t.grad_fn is not None:
                    self._made[t.grad_fn] = t
        return result

    def forget(self) -> None:
        """Let the tensors go."""
        self._made = {}

    def feedback(self, tensor: Tensor) -> tuple[Any, int] | None:
        """The autograd Function that passed `tensor` on without a change of its value, and which of its inputs it was.

        Such a Function can only be there for its backward pass: what it sends on is the signal of this value. The
        lowest, where there are several; None where there is none.
        """
        node, found = tensor.grad_fn, None
        while node is not None:
            custom = isinstance(node, torch.autograd.function.BackwardCFunction)
            inputs = [(i, below) for i, (below, _) in enumerate(node.next_functions) if below is not None]
            if not custom and len(inputs) != 1:
                break
            same = [(i, below) for i, below in inputs if self._is_value(below, tensor)]
            if not same:
                break
            if custom:
                found = (node, same[0][0])
            node = same[0][1]
        return found

    def _is_value(self, node: Any, tensor: Tensor) -> bool:
        made = self._made.get(node)
        if made is None or made.grad_fn is not node or made.shape != tensor.shape:  # or it was written in place since
            return False
        with torch.no_grad():
            return torch.equal(made, tensor)


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b.to(a.dtype), rtol=1e-4, atol=1e-5 * largest(b), equal_nan=True)
