"""One forward pass, read by hooks: what every block was given and made, and where its gradient will be.

The gradient of site l is taken at the *output* of block l: with h_l = h_{l-1} + f_l, ∂loss/∂f_l = ∂loss/∂h_l, so it is
right whether a block returns the branch or the new state, and whether the next block is handed the stream or a copy of
it. Gradient edges are taken when the tensor is made, so blocks may write the stream in place afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from walkback.errors import AnatomyError
from walkback.network.anatomy import Anatomy
from walkback.network.stacks import BY_ORDER
from walkback.network.values import (
    argument,
    first_tensor,
    fragile,
    handed_tensors,
    is_held,
    members,
    several,
    stream_of,
    swapped,
)
from walkback.tracing.calls import listen
from walkback.tracing.derived import Tape, carry_gradient, unseen_edge
from walkback.tracing.layout import Layout
from walkback.tracing.links import edges_of

if TYPE_CHECKING:
    from walkback.tracing.session import Tracer


@dataclass
class Capture:
    """What hooks took down in one forward pass: many fields, since all that a pass leaves is in this one place."""

    anatomy: Anatomy  # the parts that are read, resolved
    layout: Layout  # what is known of the network so far
    own: Callable[[], Iterable[Tensor]]  # returns all that the network keeps, which must not be written
    tape: Tape | None  # records the operations of this pass, where the reference is derived from them
    look: bool  # whether the layout is to be found from this pass
    calls: list[int] = field(default_factory=list)  # blocks by index, in the order they ran
    running: list[int] = field(default_factory=list)  # blocks by index that have begun
    given: dict[int, Tensor] = field(default_factory=dict)  # block -> the stream it received
    made: dict[int, Tensor] = field(default_factory=dict)  # block -> what it returned
    read: Tensor | None = None  # what the readout received
    reader: str = ""  # the part that received it
    tail: list[GradientEdge] = field(default_factory=list)  # of what was made after the last block, shaped like it
    edges: dict[int, GradientEdge] = field(default_factory=dict)  # site -> where its gradient is taken
    streams: dict[int, GradientEdge] = field(default_factory=dict)  # site from 1 on -> edge of the stream itself
    beside_given: dict[int, list[GradientEdge]] = field(default_factory=dict)  # block -> all tensors it received
    beside_made: dict[int, list[GradientEdge]] = field(default_factory=dict)  # block -> all tensors it returned
    passed: dict[Any, tuple[str, Any]] = field(
        default_factory=dict
    )  # what a module made -> its name, what it was given
    cross_attends: bool = False  # blocks are handed the states of an encoder
    first_made: Tensor | None = None  # what block 1 returned, in the graph
    numbered: int = 0  # tensors that the pass made, where sites are among them
    handed_copy: bool = False  # block 1 was handed a copy of the stream
    bare: bool = False  # no module with weights ran before block 1: it is handed the input
    returned: dict[int, str] = field(default_factory=dict)  # block -> the shapes, where it returned several tensors
    misplaced: dict[str, str] = field(default_factory=dict)  # part -> where it ran, if not where it is registered
    _versions: list[tuple[Tensor, int]] = field(default_factory=list)

    @property
    def depth(self) -> int:
        """The number of blocks."""
        return len(self.anatomy.blocks)

    def was_written(self) -> bool:
        """Return whether the network wrote in place what was taken down; a second answer would be no."""
        versions, self._versions = self._versions, []
        return any(t._version != version for t, version in versions)

    def states(self, branch: bool | None) -> tuple[Tensor, ...]:
        """Return h_0 … h_L, where blocks return the branch or the new state."""
        last = self.depth - 1
        if self.layout.received:
            assert self.read is not None  # else nothing would have been read there on the first batch
            return (*(self.given[i] for i in range(last + 1)), self.read)
        if not branch:
            return (self.given[0], *(self.made[i] for i in range(last + 1)))
        ends = {i for i in range(last) if self.given[i + 1].shape != self.made[i].shape}  # of a stage
        middle = (
            self.given[i] + self.made[i] if i in ends or i == last else self.given[i + 1] for i in range(last + 1)
        )
        return (self.given[0], *middle)

    def of_several(self, i: int) -> str:
        """Return what is wrong where a block returns several tensors; "" where it does not."""
        if i not in self.returned:
            return ""
        return (
            f"{self.anatomy.called(i)} returns several tensors, {self.returned[i]}, and the first was taken "
            "for the state. Return the state (or the branch) first, or name as blocks the modules inside that return "
            "it alone: Anatomy.of(model, blocks=[…])."
        )

    # -- hooks ---------------------------------------------------------------------------------------

    def before_block(
        self, turns: Sequence[int], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Take down what a block receives, `turns[k]` in its kth call; block 1 may be handed a copy with a gradient."""
        i = turns[0] if len(turns) == 1 else turns[min(sum(map(self.calls.count, turns)), len(turns) - 1)]
        self.running.append(i)
        stream = stream_of(module, args, kwargs)
        if stream is None:
            got = [f"{a.dtype} tensor" if isinstance(a, Tensor) else type(a).__name__ for a in args]
            raise AnatomyError(
                f"Expected {self.anatomy.called(i)} to receive the stream as a tensor of real numbers, but "
                f"it got {', '.join(got) or 'nothing'}. Name other modules as blocks."
            )
        if not torch.is_grad_enabled():
            raise AnatomyError(
                f"Expected {self.anatomy.called(i)} to run with gradients on, but the network turned "
                "them off (torch.no_grad or inference_mode inside its forward, or activation checkpointing "
                "with use_reentrant=True). Remove the decorator, or checkpoint with use_reentrant=False."
            )
        self.calls.append(i)
        if self.layout.receivers:
            return None
        self.bare = self.bare or (i == 0 and not stream.requires_grad)
        handed = self.seeded(stream) if i == 0 and not stream.requires_grad else stream
        self.given[i] = self._keep(stream)
        self._look_at_stream(i, stream)
        if self.look:
            self.beside_given[i] = edges_of(handed_tensors(args, kwargs))
            self.cross_attends = self.cross_attends or isinstance(
                argument(module, args, kwargs, "encoder_hidden_states"), Tensor
            )
        if i > 0:
            if self.layout.received:
                self._mark(i, stream)
            return None
        handed = self._safe(handed)
        self._mark(0, handed)
        if handed is stream:
            return None
        self.handed_copy = True
        return with_stream(args, kwargs, stream, handed)

    def after_block(self, module: nn.Module, output: Any) -> Any:
        """Take down what a block returned, and mark where its gradient is taken."""
        i = self.running.pop()
        made = first_tensor(members(output))
        if made is None:
            raise AnatomyError(
                f"Expected {self.anatomy.called(i)} to return a tensor or a tuple that starts with "
                f"one, but it returned {type(output).__name__}. Name other modules as blocks."
            )
        if (shapes := several(output)) is not None:
            self.returned[i] = shapes
        if self.look:
            self.beside_made[i] = edges_of(members(output))
        # Of a detached output a copy: its memory is that of a tensor which the backward pass may need as it is.
        cut = not made.requires_grad and self.tape is not None
        handed = self._safe(made if made.requires_grad else self.seeded(made.clone() if cut else made))
        if (
            self.layout.widens and not self.layout.received
        ):  # an exact cast, so the sum with the stream stays the same bit for bit
            handed = handed.to(torch.promote_types(handed.dtype, self.given[i].dtype))
        if not self.layout.received:
            self._mark(i + 1, handed)
        if i == 0 and self.look:
            self.first_made = handed.clone()  # the network may add the stream onto it
        self.made[i] = self._keep(handed)
        return None if handed is made else swapped(output, made, handed)

    def at_sum(self, site: int, state: Tensor) -> None:
        """Take down a sum of the stream, a copy: the network may add to it in place."""
        if site < self.depth:
            self.given[site] = state.detach().clone()
        else:
            self.read = state.detach().clone()
        self._mark(site, state)

    def before_receiver(self, i: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take down what the norm before block i receives, where that is the stream."""
        stream = stream_of(module, args, kwargs)
        if stream is None or not stream.requires_grad or i in self.given:
            raise AnatomyError(
                f"Expected the norm before {self.anatomy.called(i)} to be handed the stream once, with a gradient, as "
                "on the first batch, but it is not. Name blocks that include it: Anatomy.of(model, blocks=[…])."
            )
        self.given[i] = self._keep(stream)
        self._mark(i, stream)

    def after_stem(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Let what a stem returns carry a gradient.

        Here rather than at block 1, which may run under checkpointing: that has kept its input as it came.
        """
        needs = isinstance(output, Tensor) and output.is_floating_point() and not output.requires_grad
        if needs and not fragile(output, self.own()):
            carry_gradient(output)

    def before_readout(self, name: str, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Take down what the readout receives."""
        if self.layout.tail is None and self.read is None and args and isinstance(args[0], Tensor):
            self.reader = name
            self.read = self._keep(args[0]) if self.layout.received else args[0].detach()
            self._look_at_stream(self.depth, args[0])
            if self.layout.received:
                self._mark(self.depth, args[0])

    @property
    def is_behind(self) -> bool:
        """Whether the last block has ended."""
        return len(self.calls) == self.depth and not self.running and self.depth - 1 in self.made

    def after_operation(self, made: Tensor) -> None:
        """Take down what an operation after the last block made; the one that the layout names is the last site."""
        if made.shape != self.made[self.depth - 1].shape:
            return
        edge = unseen_edge(made)
        if any(edge.node is other.node for other in self.tail):
            return
        if len(self.tail) == self.layout.tail:
            self.read = self._keep(made)
            self._mark(self.depth, made)
        self.tail.append(edge)

    def before_part(self, name: str, expected: int, module: nn.Module, args: tuple[Any, ...]) -> None:
        """See whether a stem or readout runs where it is registered: after `expected` blocks."""
        done = len(self.calls)
        if done == self.depth:  # the readout, though it is registered before the blocks
            self.before_readout(name, module, args)
        if self.look and done != expected:
            self.misplaced[name] = "before" if done == 0 else "after" if done == self.depth else "between"

    def _keep(self, tensor: Tensor) -> Tensor:
        if self.layout.copies:
            return tensor.detach().clone()
        self._versions.append((tensor, tensor._version))
        return tensor.detach()

    def _look_at_stream(self, site: int, stream: Tensor) -> None:
        """Take down where the stream itself is, to compare its gradient with what blocks show of it."""
        if site and self.look and stream.requires_grad:
            self.streams[site] = unseen_edge(stream)
            if self.tape is not None:
                self.tape.mark(("stream", site), stream)

    def _mark(self, site: int, tensor: Tensor) -> None:
        self.edges[site] = unseen_edge(tensor)
        if self.tape is not None:
            self.tape.mark(site, tensor)

    def _safe(self, tensor: Tensor) -> Tensor:
        """Return the tensor itself, or a copy in the graph of a view that the network may write in place.

        Writing a view rewrites its history: what its gradient edge then receives leaves the skip path out.
        """
        return tensor.clone() if self.layout.copies and tensor._is_view() else tensor

    def seeded(self, stream: Tensor) -> Tensor:
        """Return a tensor that needs no gradient, carrying one: itself, or a copy of what must not be written."""
        if fragile(stream, self.own()):
            stream = stream.detach().clone()
        carry_gradient(stream)
        return stream

    def refuse_other_calls(self) -> None:
        """Raise AnatomyError unless every block ran once, in the order of the anatomy."""
        expected = list(range(self.depth))
        if self.anatomy.sums:
            steps = self.anatomy.steps
            if steps is not None and self.numbered not in (0, steps.made):
                raise AnatomyError(
                    f"Expected every batch to run the operations of the first one, {steps.made} tensors in all, since "
                    f"the stream is no block's input or output, but this one makes {self.numbered}. Give batches of "
                    "one length, or write each step as a module that returns the new state."
                )
            if len(self.edges) <= self.depth:
                raise AnatomyError(
                    f"Expected every batch to add to the stream as the first one did, {self.depth} times, but a sum is "
                    "missing or carries no gradient. Write each step as a module, and name those as blocks."
                )
            return
        if self.calls == expected:
            return
        for i in expected:
            n = self.calls.count(i)
            if n == 0:
                raise AnatomyError(
                    f"Expected every block to be called, but {self.anatomy.called(i)} was never called in this forward "
                    "pass. Leave it out of the blocks."
                )
            if n > 1:
                raise AnatomyError(
                    f"Expected every batch to call the blocks as the first one did, {self.depth} calls in all, but "
                    f"{self.anatomy.called(i)} was called {n - 1} times more. A network that decides for itself how "
                    "often it runs a block (adaptive depth) has other sites in every batch: fix the number of steps."
                )
        order = ", ".join(str(i + 1) for i in self.calls)
        raise AnatomyError(
            f"Expected the blocks to be called in their order 1…{len(expected)}, but they ran as {order}. "
            "Name them in the order the stream passes them."
        )


def called_at(anatomy: Anatomy) -> list[tuple[nn.Module, list[int]]]:
    """Return every module that is a block, and which blocks its calls are, by index."""
    found: dict[int, tuple[nn.Module, list[int]]] = {}
    for i, block in enumerate(anatomy.blocks):
        assert isinstance(block, nn.Module)  # resolved
        found.setdefault(id(block), (block, []))[1].append(i)
    return list(found.values())


@contextmanager
def seeing_modules(capture: Capture, modules: Mapping[str, nn.Module]) -> Iterator[None]:
    """Take down, inside, the input and output of each of these modules that takes and returns one tensor."""

    def hook(name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        given = first_tensor(args)
        if isinstance(output, Tensor) and output.requires_grad and given is not None and given.requires_grad:
            made, taken = unseen_edge(output), unseen_edge(given)
            capture.passed.setdefault((made.node, made.output_nr), (name, (taken.node, taken.output_nr)))

    with ExitStack() as hooks:
        for name, module in modules.items():
            hooks.callback(module.register_forward_hook(partial(hook, name)).remove)
        yield


def with_stream(args: tuple[Any, ...], kwargs: dict[str, Any], stream: Tensor, other: Tensor) -> Any:
    """Return what a block was given, with `other` in the place of `stream`."""
    named = {name: other if value is stream else value for name, value in kwargs.items()}

    def changed(value: Any) -> Any:
        held = is_held(value) and any(part is stream for part in members(value))
        return swapped(value, stream, other) if held else other if value is stream else value

    return tuple(map(changed, args)), named


def attach_receivers(session: Tracer, stack: ExitStack) -> None:
    """Put hooks on the norms before the blocks, where those are handed the stream."""

    def hook_of(i: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if isinstance(session.capture, Capture):
                session.capture.before_receiver(i, module, args, kwargs)

        return hook

    for i, name in enumerate(session.layout.receivers):
        module = session.model.get_submodule(name)
        stack.callback(module.register_forward_pre_hook(hook_of(i), with_kwargs=True, prepend=True).remove)


def attach(session: Tracer, stack: ExitStack) -> None:
    """Put hooks on the parts for as long as `stack` lasts. They read for the capture that the session has just then.

    Where it has none they do nothing: activation checkpointing runs blocks again during the backward pass, and a credit
    may run the network, which is noted.
    """
    anatomy = session.anatomy
    if anatomy.sums:
        return

    def put_on(register: Callable[..., Any], method: Callable[..., Any], *first: Any, **how: Any) -> None:
        def hook(*args: Any) -> Any:
            return method(session.capture, *first, *args) if isinstance(session.capture, Capture) else None

        stack.callback(register(hook, **how).remove)

    def before(turns: Sequence[int], *run: Any) -> Any:
        if isinstance(session.capture, Capture):
            return session.capture.before_block(turns, *run)
        session.asked.ran = True
        return None

    def after(module: nn.Module, output: Any) -> Any:
        return session.capture.after_block(module, output) if isinstance(session.capture, Capture) else None

    for block, turns in called_at(anatomy):
        listen(stack, block, partial(before, turns), after, anatomy.by_forward)
    stems, depth = len(anatomy.stems), len(anatomy.blocks)
    names = (*anatomy.names[:stems], *anatomy.names[stems + depth :])
    for i, (part, name) in enumerate(zip((*anatomy.stems, *anatomy.readout), names)):
        assert isinstance(part, nn.Module)
        if i < stems:
            put_on(part.register_forward_hook, Capture.after_stem)
        elif i == stems:
            put_on(part.register_forward_pre_hook, Capture.before_readout, name)
        if BY_ORDER in anatomy.guesses:
            put_on(part.register_forward_pre_hook, Capture.before_part, name, 0 if i < stems else depth)
