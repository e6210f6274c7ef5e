"""One forward and one backward of one batch: every h_l, g_l and a_l on the same pass.

Sites are read while the network runs its own forward pass. The gradient of site l is taken at the *output*
of block l: with h_l = h_{l-1} + f_l, ∂loss/∂f_l = ∂loss/∂h_l, so it is right whether a block returns the
branch or the new state, and whether the next block is handed the stream or a copy of it. Gradient edges are
taken when the tensor is made, so blocks may write the stream in place afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, allow_mutation_on_saved_tensors, get_gradient_edge

from walkback.errors import AnatomyError, InputError, cut, shown
from walkback.network.anatomy import Anatomy, unwrap
from walkback.network.batch import Inputs, call, check_batch, mapped, real_tokens, split
from walkback.network.loss import Loss, cross_entropy, is_causal, next_token_loss
from walkback.network.prints import prints_of
from walkback.network.stacks import BY_ORDER
from walkback.network.tokens import few_tokens, only, read_at, read_still
from walkback.network.values import (
    first_tensor,
    fragile,
    hidden_of,
    largest,
    logits_of,
    members,
    no_autocast,
    no_inference,
    places,
    random_state,
    refuse_weights,
    return_hidden,
    several,
    stream_of,
    swapped,
    widened,
    widest,
)
from walkback.notes import Note
from walkback.tracing.credit import LOOKS, Asked
from walkback.tracing.derived import Spy, Tape, carry_gradient, has_custom_backward
from walkback.tracing.reach import copyable
from walkback.tracing.untouched import AsFound, untouched, untrained, unwritten

_FEW = 16  # samples that show what blocks return


@dataclass(frozen=True)
class Trace:
    """What one pass of one batch showed. Site l is index l of every tuple; tensors are detached.

    Args:
        states: h_0 … h_L, each (B, ...).
        grads: g_0 … g_L, the gradients of the *sum* of per-sample losses, shaped like `states`.
        credits: a_0 … a_L of the rule under test, or None.
        losses: (B,) per-sample losses.
        logits: what the network answered, (B, C) or (B, T, C).
        labels: (B,) classes or (B, C) probabilities, as given.
        inputs: (B, ...) as given, or the model's keywords as a dict.
        pool: where (B, T, d) states are read: token index, "mean", or "readout" (the token each sample reads).
        index: the batch's number.
        prints: (B,) a number that identifies each input, see `fingerprints`.
        mask: (B, T) which tokens are no padding, where the inputs have an `attention_mask`.
        reference: where `grads` come from: the network's "own" backward pass, "derived" from its forward pass
            alone, or a "twin".
        branches: f_1 … f_L where blocks return them and `Tracer.keep_branches` is set, else None.

    >>> import walkback as wb
    >>> with wb.Tracer(wb.selftest.healthy()) as tracer:
    ...     trace = tracer.trace(*wb.selftest.batches(1)[0])
    >>> len(trace.states), trace.grads[-1].shape == trace.states[-1].shape
    (5, True)
    """

    states: tuple[Tensor, ...]
    grads: tuple[Tensor, ...]
    credits: tuple[Tensor, ...] | None
    losses: Float[Tensor, " batch"]
    logits: Tensor
    labels: Tensor
    inputs: Inputs
    prints: Int[Tensor, " batch"] | None = None
    pool: int | str | None = None
    index: int = 0
    mask: Bool[Tensor, "batch tokens"] | None = None
    reference: str = "own"
    branches: tuple[Tensor, ...] | None = None


Credit = Callable[[Trace], Sequence[Tensor]]


class Tracer:
    """A measuring session on one model: hooks on entering, gone without a trace on leaving.

    >>> import torch, walkback as wb
    >>> model, batches = wb.selftest.healthy(), wb.selftest.batches(2)
    >>> with Tracer(model) as tracer:
    ...     trace = tracer.trace(*batches[0])
    >>> len(trace.states), trace.states[0].shape == trace.grads[0].shape
    (5, True)
    """

    def __init__(
        self,
        model: nn.Module,
        anatomy: Anatomy | Mapping[str, Any] | None = None,
        loss: Loss | None = None,
        reference: nn.Module | str | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"Expected model to be a torch.nn.Module, but got {type(model).__name__}.")
        if loss is not None and not callable(loss):
            raise InputError(f"Expected loss to be a function of (logits, labels), but got {type(loss).__name__}.")
        self.model = unwrap(model)
        weights = dict(places(self.model))
        refuse_weights(weights)
        if isinstance(anatomy, Mapping):
            known = [f.name for f in fields(Anatomy) if f.name not in ("names", "guesses")]
            if set(anatomy) - set(known):
                raise InputError(
                    f"Expected anatomy to name {', '.join(known)}, but got {cut(', '.join(map(str, anatomy)))}."
                )
            anatomy = Anatomy.of(self.model, **anatomy)
        if anatomy is not None and not isinstance(anatomy, Anatomy):
            raise InputError(f"Expected anatomy to be an Anatomy or a dict of its parts, but got {shown(anatomy)}.")
        self.anatomy = Anatomy.of(self.model) if anatomy is None else anatomy.resolve(self.model)
        self.blocks: tuple[nn.Module, ...] = self.anatomy.blocks  # type: ignore[assignment]  # resolved
        self.branch = self.anatomy.branch
        self.pool = self.anatomy.pool
        self.read_tokens: list[int] | None = None  # where the readout averages over a few of them
        self._found_pool = False
        self.guesses = [text for text in self.anatomy.guesses if text != BY_ORDER]  # a run shows whether that is right
        self.notes: list[Note] = [Note("guessed", None, {"what": text}) for text in self.guesses]
        self._used_next_token = False
        self.next_token = loss is None and is_causal(self.model)
        self.per_sample = True  # False once a custom loss has returned a mean
        self._no_sum = False  # True once that was seen to be no sum
        self._loss = loss
        self._count = 0
        self._checked = False
        self._verified = False  # the gradients of the stream were compared with what blocks show of it
        self._axis = 0  # of the batch in the stream: 1 in stacks of (T, B, d)
        self._misplaced: dict[str, str] = {}  # parts by registration that the run shows elsewhere
        self._copy = False  # states are copied when captured, for networks that write them in place
        self._widen = False  # branches of a lower precision than the stream are handed on in the stream's
        self._recording = False
        self._weights: Mapping[str, Tensor] | None = None  # other weights to run with, for `again`
        self.keep_branches = False  # in traces, where someone asks for them: they are as large as the states
        self._branches: tuple[Tensor, ...] | None = None
        self._first_made: Tensor | None = None
        self._hidden = return_hidden(self.model)
        self.asked = Asked(self.model)
        self._device = next((t.device for t in weights.values()), None)
        self._tape: Tape | None = None
        self.suspect = False  # something in the forward pass could make the backward pass another function's
        self._derive = isinstance(reference, str) and reference == "derived"
        self._twin = None if reference is None or self._derive else self._tracer_of(reference)
        self.reference = "derived" if self._derive else "own" if self._twin is None else "twin"
        self._found: AsFound | None = None  # the network as it was before the session
        self._looked = 0  # passes that were looked at for what they write
        self._moves = False  # the network writes to tensors that it keeps
        self._stack = ExitStack()
        self._open = False

    def _tracer_of(self, twin: object) -> Tracer:
        if not isinstance(twin, nn.Module):
            raise InputError(
                'Expected reference to be "derived", or a plain twin of the network as a torch.nn.Module, but got '
                f"{shown(twin)}."
            )
        names = tuple(self._name(i) for i in range(len(self.blocks)))
        return Tracer(twin, Anatomy(None, names, (), self.pool, self.branch), self._loss)

    # -- the session ---------------------------------------------------------------------------------

    def __enter__(self) -> Tracer:
        self._stack.__enter__()
        try:
            self._found = self._stack.enter_context(untouched(self.model))
            self._stack.enter_context(copyable())
            self.asked.begin(self._found)
            if self._twin is not None:
                self._stack.enter_context(self._twin)
            for i, block in enumerate(self.blocks):
                # First of all hooks: `fully_shard` has one that hands the block a copy of the stream.
                before = block.register_forward_pre_hook(self._before(i), with_kwargs=True, prepend=True)
                after = block.register_forward_hook(self._after(i))
                self._stack.callback(before.remove)
                self._stack.callback(after.remove)
            parts = [m for m in (*self.anatomy.stems, *self.anatomy.readout) if isinstance(m, nn.Module)]
            for i, part in enumerate(parts):
                after_blocks = i >= len(self.anatomy.stems)
                name = self.anatomy.names[i + len(self.blocks) if after_blocks else i]
                if not after_blocks:
                    self._stack.callback(part.register_forward_hook(self._after_stem).remove)
                elif i == len(self.anatomy.stems):
                    self._stack.callback(part.register_forward_pre_hook(self._before_readout).remove)
                if BY_ORDER in self.anatomy.guesses:
                    self._stack.callback(part.register_forward_pre_hook(self._placed(name, after_blocks)).remove)
        except BaseException:
            self._stack.close()
            raise
        self._open = True
        return self

    def __exit__(self, *exc: object) -> None:
        self._recording = self._open = False
        try:
            self.asked.finish(put_back_only=exc[0] is not None)
        finally:
            if self._found is not None and not self.asked.alone:
                self._found.leave_training()
            self._found = None
            self._stack.__exit__(*exc)  # type: ignore[arg-type]

    # -- hooks ---------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._calls: list[int] = []
        self._given: dict[int, Tensor] = {}  # block -> the stream it received
        self._made: dict[int, Tensor] = {}  # block -> what it returned
        self._edges: dict[int, GradientEdge] = {}  # site -> gradient edge
        self._versions: list[tuple[Tensor, int]] = []
        self._read: Tensor | None = None
        self._streams: dict[int, GradientEdge] = {}  # site from 1 on -> edge of the stream itself, on the first batch
        self._handed_copy = False
        self._returned: dict[int, str] = {}  # block -> what it returned, where that is several tensors
        self._recording = True

    def _keep(self, tensor: Tensor) -> Tensor:
        if self._copy:
            return tensor.detach().clone()
        self._versions.append((tensor, tensor._version))
        return tensor.detach()

    def _before(self, i: int) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if not self._recording:
                self.asked.ran = True
                return None  # activation checkpointing runs blocks again during the backward pass
            stream = stream_of(module, args, kwargs)
            if stream is None:
                got = [f"{a.dtype} tensor" if isinstance(a, Tensor) else type(a).__name__ for a in args]
                raise AnatomyError(
                    f"Expected block {i + 1} ({self._name(i)}) to receive the stream as a tensor of real numbers, but "
                    f"it got {', '.join(got) or 'nothing'}. Name other modules as blocks."
                )
            if not torch.is_grad_enabled():
                raise AnatomyError(
                    f"Expected block {i + 1} ({self._name(i)}) to run with gradients on, but the network turned "
                    "them off (torch.no_grad or inference_mode inside its forward, or activation checkpointing "
                    "with use_reentrant=True). Remove the decorator, or checkpoint with use_reentrant=False."
                )
            self._calls.append(i)
            handed = self._seed(stream) if i == 0 and not stream.requires_grad else stream
            self._given[i] = self._keep(stream)
            self._look_at_stream(i, stream)
            if i > 0:
                return None
            handed = self._safe(handed)
            self._mark(0, handed)
            if handed is stream:
                return None
            self._handed_copy = True
            args = tuple(handed if v is stream else v for v in args)
            return args, {name: handed if v is stream else v for name, v in kwargs.items()}

        return hook

    def _after(self, i: int) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            if not self._recording:
                return None
            made = first_tensor(members(output))
            if made is None:
                raise AnatomyError(
                    f"Expected block {i + 1} ({self._name(i)}) to return a tensor or a tuple that starts with "
                    f"one, but it returned {type(output).__name__}. Name other modules as blocks."
                )
            if (shapes := several(output)) is not None:
                self._returned[i] = shapes
            # Of a detached output a copy: its memory is that of a tensor which the backward pass may need as it is.
            cut = not made.requires_grad and self._tape is not None
            handed = self._safe(made if made.requires_grad else self._seed(made.clone() if cut else made))
            if self._widen:  # an exact cast, so the sum with the stream stays the same bit for bit
                handed = handed.to(torch.promote_types(handed.dtype, self._given[i].dtype))
            self._mark(i + 1, handed)
            if i == 0 and not self._checked:
                self._first_made = handed.clone()  # the network may add the stream onto it
            self._made[i] = self._keep(handed)
            return None if handed is made else swapped(output, made, handed)

        return hook

    def _look_at_stream(self, site: int, stream: Tensor) -> None:
        """On the first batch: where the stream itself is, to compare its gradient with what blocks show of it."""
        if site == 0 or self._verified or not stream.requires_grad:
            return
        self._streams[site] = get_gradient_edge(stream)
        if self._tape is not None:
            self._tape.mark(("stream", site), stream)

    def _mark(self, site: int, tensor: Tensor) -> None:
        self._edges[site] = get_gradient_edge(tensor)
        if self._tape is not None:
            self._tape.mark(site, tensor)

    def _safe(self, tensor: Tensor) -> Tensor:
        """The tensor itself, or a copy in the graph of a view that the network may write in place.

        Writing a view rewrites its history: what its gradient edge then receives leaves the skip path out.
        """
        return tensor.clone() if self._copy and tensor._is_view() else tensor

    def _after_stem(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        # Here rather than at block 1, which may run under checkpointing: that has kept its input as it came.
        needs = isinstance(output, Tensor) and output.is_floating_point() and not output.requires_grad
        if self._recording and needs and not fragile(output, self._own):
            self._seed(output)

    def _before_readout(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self._recording and self._read is None and args and isinstance(args[0], Tensor):
            self._read = args[0].detach()
            self._look_at_stream(len(self.blocks), args[0])

    def _placed(self, name: str, after_blocks: bool) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            done = len(self._calls) if self._recording else None
            if done is not None and not self._checked and done != (len(self.blocks) if after_blocks else 0):
                self._misplaced[name] = "before" if done == 0 else "after" if done == len(self.blocks) else "between"

        return hook

    def _seed(self, stream: Tensor) -> Tensor:
        """A tensor that needs no gradient, carrying one: itself, or a copy of what must not be written."""
        if fragile(stream, self._own):
            stream = stream.detach().clone()
        carry_gradient(stream)
        return stream

    @property
    def _own(self) -> Iterator[Tensor]:
        """All that the network keeps, in the weights it runs with."""
        kept = () if self._found is None else self._found.reach.tensors
        return chain((self._weights or {}).values(), (t for _, t in places(self.model)), kept)

    def _name(self, i: int) -> str:
        return self.anatomy.names[i + len(self.anatomy.stems)]

    # -- one batch -----------------------------------------------------------------------------------

    def parts(self, x: Inputs, y: Tensor, credit: Credit | None = None, chunk: int | None = None) -> Iterator[Trace]:
        """One batch in parts of at most `chunk` samples (None: whole), one Trace at a time, all with its index."""
        index = self._count
        if chunk is not None:
            check_batch(x, y, index, self._device)
        for part in split(x, y, chunk):
            self._count = index
            yield self.trace(*part, credit)

    def trace(self, x: Inputs, y: Tensor, credit: Credit | None = None) -> Trace:
        """One forward, one backward: (B, ...) inputs and their labels to a Trace of L + 1 sites."""
        self._refuse_outside("trace")
        with self._as_found():
            return self._traced(x, y, credit)

    def _traced(self, x: Inputs, y: Tensor, credit: Credit | None) -> Trace:
        index = self._count
        try:
            check_batch(x, y, index, self._device)
            prints = prints_of(x, len(y))  # while the inputs are in the cache
            x, y = mapped(x, no_inference), no_inference(y)  # neither could be saved for backward
            with self._looked_at():
                states, grads, logits, losses = self._pass(x, y, index)
            if self._twin is not None:
                grads = self._twin_grads(self._twin, x, y, states, logits)
        except Exception as error:
            made = [name for name, kept in places(self.model) if kept.is_inference()]
            if made and "Inference tensors" in str(error):
                error = InputError(
                    f"Expected buffers that a backward pass can use, but {made[0]} was made under "
                    "torch.inference_mode(). Outside it, put a clone in its place: module.name = module.name.clone()."
                )
            error.add_note(f"(while measuring batch {index})")
            if isinstance(error, TypeError) and ".forward() missing" in str(error):
                error.add_note(
                    "(inputs that are several come as a dict of the network's keywords: ({name: tensor}, y))"
                )
            if isinstance(error, AnatomyError):
                for text in self.guesses:
                    error.add_note(f"(guessed: {text})")
            raise error
        if self._found_pool and isinstance(self.pool, int):
            self.pool = read_still(grads[-1], self.pool, index)
        mask = real_tokens(x, len(y)) if self.read_tokens is None else only(self.read_tokens, grads[-1], index)
        trace = Trace(
            states,
            grads,
            None,
            losses,
            logits,
            y,
            x,
            prints,
            self.pool,
            index,
            mask,
            self.reference,
            self._branches,
        )
        if credit is not None:
            trace = replace(trace, credits=self.asked.credits(credit, trace))
        self._count += 1
        return trace

    @contextmanager
    def _as_found(self, weights: Mapping[str, Tensor] | None = None) -> Iterator[None]:
        """Let every pass of a network that writes to what it keeps begin where the user left it, also the tenth.

        Otherwise no two passes of it could be compared. Where the user may train meanwhile, see `_looked_at`.
        """
        with unwritten((weights or {}).values() if self._looked < LOOKS or self._moves else ()):
            try:
                yield
            finally:
                if self._moves and self.asked.alone and self._found is not None:
                    self._found.rewind()

    @contextmanager
    def _looked_at(self) -> Iterator[None]:
        """See what a pass writes by itself, in the first two and where they wrote something.

        In a session in which the user may train, what it writes to weights is put back at once.
        """
        if self._found is None or (self._looked == LOOKS and not self._moves):
            yield
            return
        with nullcontext([]) if self.asked.alone else untrained(self.model) as written:
            yield
        changed = self._found.values.changed() if self.asked.alone else written
        self._moves, self._looked = self._moves or bool(changed), min(self._looked + 1, LOOKS)
        self.asked.moved(changed)

    def _refuse_outside(self, name: str) -> None:
        """The hooks and eval mode last as long as the `with` block."""
        if not self._open:
            raise InputError(
                f"Expected Tracer.{name} to be called inside `with Tracer(model) as tracer:`, but this tracer is not "
                "open: only there are its hooks on the network. Open it with `with`, and call it in that block."
            )

    def _pass(self, x: Inputs, y: Tensor, index: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Tensor, Tensor]:
        while True:
            self._tape = Tape() if self._derive else None
            try:
                with self._tape or nullcontext(), Spy() if not self._checked else nullcontext() as spy:
                    output = self._forward(x)
                self._check_calls()
                written = any(t._version != version for t, version in self._versions)
                if not written:
                    break
                self._copy = True  # the network writes its stream in place: copy at capture, and run again
            finally:
                self._recording = False
                self._versions = []
        if not self._checked:
            self._axis = self._find_axis(x, y)
        logits = logits_of(output)
        with self._tape or nullcontext():
            losses = self.losses(logits, y)
        if spy is not None:
            self.suspect = self.suspect or spy.saw or has_custom_backward(losses)
            self.asked.see(spy.read)
        tape, self._tape = self._tape, None
        losses, edges, streams, found, again = self._differentiated(tape, losses)
        grads = tuple(g if g is None else g.detach() for g in found[: len(edges)])
        if self._handed_copy:
            grads = self._add_skip(grads, output)
            again = False
        cut = next((site for site, g in enumerate(grads) if g is None), None)
        if cut is not None:
            detached = (
                "the network detaches its stream on the way (as local learning code does) or does not use it. Measure "
                "the network through a forward pass without detach()."
            )
            raise AnatomyError(
                f"Expected the loss to depend on every site, but no gradient reaches site {cut}: "
                f"{self._of_several(cut - 1) or detached}"
            )
        if not self._checked:
            self._first_look(x, y, output, grads, edges, again)  # type: ignore[arg-type]
            narrow = any(self._made[i].dtype != self._given[i].dtype for i in self._made)
            if self.branch and narrow and not self._widen:
                # Under autocast a branch may be float16 while the stream is not: a gradient taken at the branch would
                # be rounded to float16, the stream's own is not.
                self._widen = True
                return self._pass(x, y, index)
        if not self._verified:
            if self._derive or not self.suspect:  # else the backward pass itself may be another function's
                self._check_streams(dict(zip(streams, found[len(edges) :])), grads)  # type: ignore[arg-type]
            self._verified = self._checked
        states = tuple(map(self._batch_first, self._states()))
        grads = tuple(map(self._batch_first, grads))  # type: ignore[arg-type]
        self._check_shapes(states, len(y))
        keep = self.keep_branches and self.branch
        self._branches = tuple(map(self._batch_first, self._made.values())) if keep else None
        self._given, self._made, self._edges, self._read, self._streams = {}, {}, {}, None, {}
        return states, grads, logits.detach(), losses.detach()

    def _differentiated(
        self, tape: Tape | None, losses: Tensor, rewritten: bool = False
    ) -> tuple[Tensor, list[GradientEdge], dict[int, GradientEdge], Sequence[Tensor | None], bool]:
        """The losses, edges of sites and streams, gradients there, and whether the graph is kept.

        `rewritten`: the forward pass writes what its derivative needs, as code does that steps weights on the way.
        """
        given = losses
        with allow_mutation_on_saved_tensors() if rewritten else nullcontext():
            if tape is not None:
                losses = self._derived(tape, losses)
            if not losses.requires_grad:
                raise InputError(
                    "Expected a loss that depends on the network, but it carries no gradient. "
                    "Return it as a tensor computed from the logits, without detach() or item()."
                )
            edges = [self._edges[site] for site in range(len(self.blocks) + 1)]
            streams = self._themselves()
            again = not self._checked and 1 not in streams and not rewritten
            streams = streams if self._verified else self._with_last(streams, losses)
            with no_autocast(losses.device):
                try:
                    found = torch.autograd.grad(
                        losses.sum(), [*edges, *streams.values()], allow_unused=True, retain_graph=again
                    )
                    return losses, edges, streams, found, again
                except RuntimeError as error:
                    if "inplace operation" not in str(error):
                        raise
                    if tape is None or rewritten:
                        raise AnatomyError(
                            "Expected a network that can be differentiated, but it overwrites in place what its "
                            f"own backward pass needs: {str(error).splitlines()[0]} "
                            "Write h = h + f instead of h += f there."
                        ) from None
        return self._differentiated(tape, given, rewritten=True)

    def _forward(self, x: Inputs) -> Any:
        # A copy, always: a network may write its input in any batch, and no look afterwards would bring it back.
        x = mapped(x, lambda t: t.detach().clone())
        self._start()
        ask = self._hidden == "required" or (self._hidden == "optional" and not self._checked)
        drawn = None if self._checked else random_state(self._device)
        output = self._run(x, self._weights, {"return_hidden": True} if ask else {})
        draws = Note("random-forward")
        if drawn is not None and draws not in self.notes and not torch.equal(drawn, random_state(self._device)):
            self.notes.append(draws)
        return output

    def _derived(self, tape: Tape, losses: Tensor) -> Tensor:
        """The losses again, and the gradient edges of all sites, on a graph that follows the forward pass alone."""
        try:
            twin, marks = tape.rerun()
        except (RuntimeError, NotImplementedError) as error:
            raise InputError(
                "Expected a forward pass that can be run again, operation by operation, to derive the reference from "
                f"it, but {str(error).splitlines()[0]} Pass a plain twin of the network with the same weights: "
                "reference=twin."
            ) from error
        self._edges = {site: marks[site][1] for site in range(len(self.blocks) + 1)}
        self._streams = {key[1]: mark[1] for key, mark in marks.items() if isinstance(key, tuple)}
        self._first_made = marks[1][0]
        return twin(losses)

    def _twin_grads(
        self, twin: Tracer, x: Inputs, y: Tensor, states: tuple[Tensor, ...], logits: Tensor
    ) -> tuple[Tensor, ...]:
        """The gradients of a plain network that computes the same."""
        twin.asked.alone = self.asked.alone
        other = twin.trace(x, y)
        names = [*(f"site {site}" for site in range(len(states))), "the logits"]
        for where, ours, theirs in zip(names, (*states, logits), (*other.states, other.logits)):
            same = ours.shape == theirs.shape
            if not same or not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4 * largest(ours), equal_nan=True):
                how = f"they differ at {where}" if same else f"{where} has shape {tuple(theirs.shape)}"
                raise InputError(
                    f"Expected the reference to compute the states the network computes, but {how}. Give it the same "
                    "weights: reference.load_state_dict(model.state_dict())."
                )
        return other.grads

    def _batch_first(self, h: Tensor) -> Tensor:
        return h.transpose(0, 1) if self._axis else h

    def _run(self, x: Inputs, weights: Mapping[str, Tensor] | None, kwargs: dict[str, Any]) -> Any:
        """The network's own forward pass, with other weights by name where they are given."""
        if weights is None:
            return call(self.model, x, **kwargs)
        args, named = ((x,), kwargs) if isinstance(x, Tensor) else ((), {**x, **kwargs})
        # `weights` name every place once (see `places`). Left to tie them itself, torch would not put back a module
        # that stands in the network under two names.
        return torch.func.functional_call(self.model, dict(weights), args, named, tie_weights=False)

    def losses(self, logits: Tensor, y: Tensor) -> Float[Tensor, " batch"]:
        """Per-sample losses whose sum is differentiated; a custom loss that returns a mean is spread evenly."""
        if self._loss is None:
            self._used_next_token = self.next_token and y.ndim == 2 and logits.ndim == 3
            return next_token_loss(logits, y) if self._used_next_token else cross_entropy(logits, y)
        loss = self._loss(logits, y)
        batch = y.shape[0]
        if not isinstance(loss, Tensor) or loss.shape not in ((), (batch,)):
            shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise InputError(
                f"Expected loss(logits, labels) to return one loss per sample, shape ({batch},), or their mean, "
                f"shape (), but got {shape}. Average over tokens or pixels, not over samples."
            )
        if loss.ndim == 0:
            self._refuse_sum(loss, logits, y)
            self.per_sample = self.per_sample and batch == 1
            return loss.expand(batch)
        return loss

    def _refuse_sum(self, loss: Tensor, logits: Tensor, y: Tensor) -> None:
        """On the first batch of more than one: a sum over samples would make every gradient B times too large."""
        assert self._loss is not None
        half = len(y) // 2
        if self._no_sum or not half or logits.shape[0] != len(y):
            return
        self._no_sum = True
        with torch.no_grad():
            parts = [float(self._loss(logits[s].detach(), y[s])) for s in (slice(half), slice(half, None))]
        whole, mean = float(loss.detach()), (parts[0] * half + parts[1] * (len(y) - half)) / len(y)
        if abs(whole - sum(parts)) < 1e-3 * abs(whole) < abs(whole - mean):
            raise InputError(
                "Expected loss(logits, labels) to return one loss per sample or their mean, but it returns a sum: "
                'it doubles with the batch. Use reduction="none" or reduction="mean".'
            )

    @property
    def source(self) -> Tracer:
        """The tracer whose backward pass gives g_l: that of the twin, or this one."""
        return self if self._twin is None else self._twin

    @property
    def has_custom_loss(self) -> bool:
        """Whether the loss is the user's."""
        return self._loss is not None

    @property
    def loss_name(self) -> str:
        """The loss in words, for the conditions."""
        if self._loss is not None:
            return getattr(self._loss, "__name__", type(self._loss).__name__)
        return "cross-entropy of the next token" if self._used_next_token else "cross-entropy"

    def _states(self) -> tuple[Tensor, ...]:
        last = len(self.blocks) - 1
        if self.branch:
            ends = {i for i in range(last) if self._given[i + 1].shape != self._made[i].shape}  # of a stage
            middle = (
                self._given[i] + self._made[i] if i in ends or i == last else self._given[i + 1]
                for i in range(last + 1)
            )
            return (self._given[0], *middle)
        return (self._given[0], *(self._made[i] for i in range(last + 1)))

    # -- checks --------------------------------------------------------------------------------------

    def _check_calls(self) -> None:
        expected = list(range(len(self.blocks)))
        if self._calls == expected:
            return
        for i in expected:
            n = self._calls.count(i)
            if n == 0:
                raise AnatomyError(
                    f"Expected every block to be called once, but block {i + 1} ({self._name(i)}) was never "
                    "called in the forward pass. Leave it out of the blocks, or call it as a module "
                    "(`block(h)`, not `block.forward(h)`)."
                )
            if n > 1:
                raise AnatomyError(
                    f"Expected every block to be called once, but block {i + 1} ({self._name(i)}) was called "
                    f"{n} times in one forward pass. Its calls write different sites: give each its own module."
                )
        order = ", ".join(str(i + 1) for i in self._calls)
        raise AnatomyError(
            f"Expected the blocks to be called in their order 1…{len(expected)}, but they ran as {order}. "
            "Name them in the order the stream passes them."
        )

    def _check_received(self) -> None:
        """The stream changes from block to block; what all of them are handed alike is a condition."""
        first, *rest = self._given.values()
        same = bool(rest) and all(h.data_ptr() == first.data_ptr() and h.shape == first.shape for h in rest)
        if same and first.numel() and any(made.data_ptr() != first.data_ptr() for made in self._made.values()):
            raise AnatomyError(
                "Expected blocks to receive the stream as their first tensor, but all of them receive the same one "
                f"first, of shape {tuple(first.shape)}: a condition, a mask or an embedding? Take the stream first in "
                "their forward, or wrap them in modules that do."
            )

    def _check_shapes(self, states: tuple[Tensor, ...], batch: int, axis: int = 0) -> None:
        for site, h in enumerate(states):
            if h.ndim < 2 or h.shape[axis] != batch:
                raise AnatomyError(
                    f"Expected states of {batch} samples, (B, d), (B, T, d), (T, B, d) or (B, C, H, W) with B = "
                    f"{batch}, but site {site} has shape {tuple(h.shape)}. Name other modules as blocks, or put the "
                    "batch first."
                )

    def _of_several(self, i: int) -> str:
        """What is wrong where a block returns several tensors; "" where it does not."""
        if i not in self._returned:
            return ""
        return (
            f"block {i + 1} ({self._name(i)}) returns several tensors, {self._returned[i]}, and the first was taken "
            "for the state. Return the state (or the branch) first, or name as blocks the modules inside that return "
            "it alone: Anatomy.of(model, blocks=[…])."
        )

    def _find_axis(self, x: Inputs, y: Tensor) -> int:
        """Is the stream (B, …), or (T, B, d)? Where its second axis is as long as B, a smaller batch shows it."""
        batch, shape = len(y), self._given[0].shape
        if len(shape) != 3 or shape[1] != batch:
            return 0
        if batch == 1:
            return int(shape[0] != 1)
        seen: list[torch.Size] = []

        def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            stream = stream_of(module, args, kwargs)
            seen.append(shape if stream is None else stream.shape)

        handle = self.blocks[0].register_forward_pre_hook(look, with_kwargs=True)
        fewer, _ = next(split(x, y, batch - 1))
        try:
            with torch.no_grad():
                call(self.model, mapped(fewer, torch.clone), **self._required())
        finally:
            handle.remove()
        return int(seen[0][0] == shape[0] and seen[0][1] == batch - 1)

    def _required(self) -> dict[str, bool]:
        return {"return_hidden": True} if self._hidden == "required" else {}

    def _first_look(
        self, x: Inputs, y: Tensor, output: Any, grads: tuple[Tensor, ...], edges: list[GradientEdge], unsure: bool
    ) -> None:
        """What is found out once, on the first batch: what blocks return, where the readout reads."""
        declared = hidden_of(output)
        try:
            self._check_shapes((*self._given.values(), *self._made.values()), len(y), self._axis)
        except AnatomyError as error:
            for i in self._returned:
                error.add_note(f"({self._of_several(i)})")
            raise
        self._check_received()
        seen = self._find_branch(declared, self.branch is None)
        if self.branch is None:
            self.branch = seen
        elif seen is not None and seen is not self.branch:
            said, shown = ("branch", "new state") if self.branch else ("new state", "branch")
            raise AnatomyError(
                f"Expected blocks that return the {said}, as the anatomy says (branch={self.branch}), but this network "
                f"adds up as if they return the {shown}. Leave branch out, and it is found by running a batch."
            )
        if self.branch and unsure:
            self._check_copy(grads, edges)
        states = self._states()
        if declared is not None:
            self._compare_declared(declared, states)
        if states[-1].ndim == 3 and self.pool is None:
            deepest = self._batch_first(grads[-1])
            self.pool, self._found_pool = read_at(deepest), True
            if not bool((deepest != 0).any()):
                self.notes.append(Note("token-not-found"))
            if self.pool == "mean" and logits_of(output).ndim == 2:
                self.read_tokens = few_tokens(deepest)
        if states[-1].ndim == 3 and isinstance(self.pool, int):
            tokens = self._batch_first(states[-1]).shape[1]
            if not -tokens <= self.pool < tokens:
                raise AnatomyError(f"Expected pool to be one of {tokens} tokens, but got {self.pool}.")
        self.anatomy = self._as_called()
        self._look_at_labels(x, y)
        self._checked = self.branch is not None
        self._first_made = None

    def _as_called(self) -> Anatomy:
        """Stem and readout as the network called them, where their places were guessed from the registration."""
        old = self.anatomy
        if BY_ORDER not in old.guesses:
            return old
        blocks = slice(len(old.stems), len(old.stems) + len(self.blocks))
        placed = [(name, self._misplaced.get(name, "before")) for name in old.names[: blocks.start]]
        placed += [(name, self._misplaced.get(name, "after")) for name in old.names[blocks.stop :]]
        stem, readout = (tuple(name for name, where in placed if where == w) for w in ("before", "after"))
        return Anatomy(
            stem, self.blocks, readout, old.pool, old.branch, guesses=tuple(g for g in old.guesses if g != BY_ORDER)
        ).resolve(self.model)

    def _look_at_labels(self, x: Inputs, y: Tensor) -> None:
        """Labels of padding count, as they do in the model's own loss; that should be said."""
        mask = real_tokens(x, len(y))
        if self.next_token and mask is not None and mask.shape == y.shape and bool((y[~mask] != -100).any()):
            self.notes.append(Note("padding-labels"))

    def _find_branch(self, declared: Sequence[Tensor] | None, needed: bool = True) -> bool | None:
        votes: list[bool] = []
        few = slice(_FEW)
        last = len(self.blocks) - 1
        misfit = None
        for i in range(last + 1):
            if i < last:
                new = self._given[i + 1]
            elif declared is not None and declared[-1].shape == self._made[i].shape:
                new = declared[-1]
            elif self._read is not None and self._read.shape == self._made[i].shape:
                new = self._read
            elif self._read is not None and self._made[i].ndim == 3:
                new = self._read  # the readout may slice its token before the norm
            else:
                continue
            given, made = self._batch_first(self._given[i]), self._batch_first(self._made[i])
            if new.shape == self._made[i].shape:
                new = self._batch_first(new)
            vote = _which(given[few], made[few], new[few])
            if vote == "neither":
                misfit = misfit or i + 1
            elif vote is not None:
                votes.append(vote == "branch")
        if misfit is not None and misfit <= last:
            changed = (
                "something between them changes the stream (a norm, a scale, a reshape). Name blocks that include it."
            )
            raise AnatomyError(
                f"Expected block {misfit} ({self._name(misfit - 1)}) to return the residual branch f or the new state "
                f"h + f, but what the next block receives is neither: {self._of_several(misfit - 1) or changed}"
            )
        if len(set(votes)) > 1:
            raise AnatomyError(
                "Expected all blocks to return the same thing, but some return the residual branch and some the "
                "new state. Wrap them so that they agree."
            )
        if votes:
            return votes[0]
        if not all(bool(torch.isfinite(t).all()) for t in (*self._given.values(), *self._made.values())):
            return None  # nothing can be told from NaN; the next batch may tell
        if not needed:
            return None
        if last > 0:
            return False  # branch and state give the same numbers everywhere: either reading is right
        raise AnatomyError(
            "Expected to see whether the only block returns the residual branch or the new state, but nothing "
            "after it shows it. Say which: Anatomy.of(model, ..., branch=True) or branch=False."
        )

    def _themselves(self) -> dict[int, GradientEdge]:
        """Site -> edge of what is received there, where its graph says that it is a sum with the stream before."""
        below = {0: self._edges[0], **self._streams}
        return {
            site: edge
            for site, edge in self._streams.items()
            if site - 1 in below and any(node is below[site - 1].node for node, _ in edge.node.next_functions)
        }

    def _with_last(self, streams: dict[int, GradientEdge], losses: Tensor) -> dict[int, GradientEdge]:
        """With the last site too where no module receives its stream: it is where block L's output meets the stream."""
        last = len(self.blocks)
        if last not in streams:
            met = _meeting(losses, self._edges[last], self._edges[last - 1])
            streams = streams if met is None else {**streams, last: met}
        return streams

    def _check_streams(self, found: dict[int, Tensor | None], grads: tuple[Tensor, ...]) -> None:
        """∂loss/∂f_l is ∂loss/∂h_l only where h_l is h_{l-1} + f_l, and f_l is used for nothing else."""
        last = len(self.blocks)
        right = found.get(last)
        if self.branch and (right is None or right.numel() != grads[last].numel()):
            unseen = Note("unseen-sum", last, {"before": last - 1, "block": self._name(last - 1)})
            self.notes.insert(0, unseen)
        for site, right in found.items():
            ours = grads[site]
            if not self.branch or right is None or right.numel() != ours.numel():
                continue
            right, ours = widened(right), widened(ours)
            if right.shape != ours.shape:  # written in place through a view: the same numbers, in whatever order
                right, ours = right.flatten().sort().values, ours.flatten().sort().values
            if bool((right - ours).norm() > 0.02 * right.norm()):
                raise AnatomyError(
                    f"Expected what block {site} ({self._name(site - 1)}) returns to be added to the stream as it is, "
                    "and to be used nowhere else, but the gradient at its output is another than that of the stream "
                    f"(‖g‖ {float(ours.norm()):.2g}, of the stream {float(right.norm()):.2g}): a scale outside the "
                    "block, or something else that reads it. Name blocks that include the scale, or wrap them so that "
                    "they return the new state."
                )

    def _add_skip(self, grads: tuple[Tensor | None, ...], output: Any) -> tuple[Tensor | None, ...]:
        """Block 1 was handed a copy, which a skip outside the block goes past: g_0 = J_f1ᵀ g_1 + g_1."""
        if self.branch is None:
            self.branch = self._find_branch(hidden_of(output))
        if not self.branch or grads[0] is None or grads[1] is None:
            return grads
        return (grads[0] + grads[1], *grads[1:])

    def _check_copy(self, grads: tuple[Tensor, ...], edges: list[GradientEdge]) -> None:
        """With the skip outside the block, g_0 = g_1 + J_f1ᵀ g_1 only if block 1 is handed the stream itself."""
        if grads[0].shape != grads[1].shape or self._first_made is None:
            return
        (through,) = torch.autograd.grad(
            self._first_made, [edges[0]], grad_outputs=grads[1], allow_unused=True, retain_graph=True
        )
        through = torch.zeros_like(grads[0]) if through is None else through
        got, upper, through = widened(grads[0]), widened(grads[1]), widened(through)
        skip, copy = (got - through - upper).norm(), (got - through).norm()
        if copy < 0.01 * skip:
            raise AnatomyError(
                f"Expected block 1 ({self._name(0)}) to receive the stream itself, but it receives a copy, so the "
                "gradient of site 0 can't be read there. Call block(h) with the same h that is added to."
            )

    def _compare_declared(self, declared: Sequence[Tensor], states: tuple[Tensor, ...]) -> None:
        """`return_hidden` is what scripts log; say so when it is not what the network computes with."""
        if len(declared) != len(states):
            self.notes.append(Note("hidden-count", None, {"states": len(declared), "sites": len(states)}))
            return
        for site, (said, is_) in enumerate(zip(declared, states)):
            same = said.shape == is_.shape and bool(
                torch.equal(said[:_FEW], is_[:_FEW])
                or torch.allclose(said[:_FEW], is_[:_FEW].to(said.dtype), rtol=1e-2, atol=0, equal_nan=True)
            )
            if not same:
                self.notes.append(Note("hidden-differs", site))
                return

    # -- running on from a changed site (for probes) ---------------------------------------------------

    def replay(self, x: Inputs, y: Tensor, deltas: Mapping[int, Tensor], weights: dict[str, Tensor] | None) -> Tensor:
        """(B,) losses of the same batch with `deltas[site]` (shaped like h_site) added to the stream at each site."""
        self._refuse_outside("replay")
        with torch.no_grad():
            return widened(self.losses(self.logits_at(x, deltas, weights), y))

    @torch.no_grad()
    def logits_at(self, x: Inputs, deltas: Mapping[int, Tensor], weights: dict[str, Tensor] | None) -> Tensor:
        """Return what the network answers with `deltas[site]` (shaped like h_site) added to the stream at each site."""
        self._refuse_outside("logits_at")
        with self.moved(deltas, weights), self._as_found(weights):
            return logits_of(self._run(mapped(x, lambda t: t.detach().clone()), weights, self._required()))

    @contextmanager
    def moved(self, deltas: Mapping[int, Tensor], weights: Mapping[str, Tensor] | None) -> Iterator[None]:
        """Add `deltas[site]` (shaped like h_site) to the stream of one pass inside, with or without gradients."""
        own = (*(weights or {}).values(), *self._own)
        past: list[Tensor] = []  # what a skip outside block 1 has to carry, where the stream can't be written
        done: list[int] = []  # activation checkpointing runs block 1 again, on the stream as it was changed

        def at_stem(delta: Tensor) -> Callable[..., Any]:
            def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                stream = stream_of(module, args, kwargs)
                assert stream is not None
                if not fragile(stream, own):
                    if not done:
                        done.append(0)
                        # In place: the skip connection must carry it too, and what checkpointing has kept of it.
                        stream.data.add_(delta)
                    return None
                if self.branch and self._recording:
                    raise InputError(
                        "Expected a stream that can be moved while gradients are taken, but it starts as a parameter "
                        "or buffer of the network and goes past block 1."
                    )
                if self.branch:
                    past.append(delta)
                changed = stream + delta
                args = tuple(changed if v is stream else v for v in args)
                return args, {name: changed if v is stream else v for name, v in kwargs.items()}

            return hook

        def past_first(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            made = first_tensor(members(output))
            assert made is not None
            return swapped(output, made, made + past.pop()) if past else None

        def at_block(delta: Tensor) -> Callable[..., Any]:
            def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
                made = first_tensor(members(output))
                assert made is not None
                return swapped(output, made, made + delta)

            return hook

        with ExitStack() as hooks:
            for site, change in deltas.items():
                delta = self._batch_first(change)  # which is also the way back
                if site == 0:
                    handle = self.blocks[0].register_forward_pre_hook(at_stem(delta), with_kwargs=True, prepend=True)
                    hooks.callback(self.blocks[0].register_forward_hook(past_first).remove)
                else:
                    handle = self.blocks[site - 1].register_forward_hook(at_block(delta))
                hooks.callback(handle.remove)
            yield

    # -- the same batch in another precision (for the intrinsic form of D2) -----------------------------

    def again(self, x: Inputs, y: Tensor, weights: Mapping[str, Tensor] | None) -> Trace:
        """A batch once more with other weights by name, say in float64. It is not counted, and has no credit.

        Args:
            x: (B, ...) inputs, of the dtype and on the device of `weights`.
            y: labels, on the device of `weights`.
            weights: every parameter and buffer of the model; None: its own.
        """
        self._refuse_outside("again")
        kept, self._weights = (self._weights, self._copy, self._widen), weights
        try:
            with self._as_found(weights):
                states, grads, logits, losses = self._pass(x, y, self._count)
        finally:
            self._weights, self._copy, self._widen = kept
        if self._twin is not None:
            grads = self._twin.again(x, y, weights).grads
        return Trace(states, grads, None, losses, logits, y, x, pool=self.pool, branches=self._branches)

    @torch.no_grad()
    def branches_at(self, x: Inputs, states: Sequence[Tensor], weights: Mapping[str, Tensor]) -> list[Tensor | None]:
        """f_1 … f_L with every block l given states[l - 1] in place of what it would receive, run with `weights`.

        None for a block that changes the shape of the stream: it writes a new one rather than add to it.
        """
        self._refuse_outside("branches_at")
        made: list[Tensor] = []

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            stream, given = stream_of(module, args, kwargs), self._batch_first(states[len(made)]).clone()
            args = tuple(given if v is stream else v for v in args)
            return args, {name: given if v is stream else v for name, v in kwargs.items()}

        def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            found = first_tensor(members(output))
            assert found is not None
            made.append(self._batch_first(found).clone())

        with ExitStack() as stack:
            for block in self.blocks:
                stack.callback(block.register_forward_pre_hook(before, with_kwargs=True).remove)
                stack.callback(block.register_forward_hook(after).remove)
            with self._as_found(weights):
                self._run(mapped(x, torch.clone), weights, self._required())
        if self.branch:
            return list(made)
        return [new - h if new.shape == h.shape else None for h, new in zip(states, made)]


# -- small helpers ---------------------------------------------------------------------------------------


def _meeting(losses: Tensor, upper: GradientEdge, lower: GradientEdge) -> GradientEdge | None:
    """Where what was made at `upper` first meets what came from `lower` on a way past it; None if nowhere."""
    below: list[Any] = [lower.node]
    while len(below[-1].next_functions) == 1 and below[-1].next_functions[0][0] is not None:
        below.append(below[-1].next_functions[0][0])  # of a copy or a view, what it was taken from is `lower` too
    parents: dict[Any, list[Any]] = {}
    todo: list[Any] = [losses.grad_fn]
    while todo:
        node = todo.pop()
        for child, _ in () if node is None or node is upper.node or node in below else node.next_functions:
            if child not in parents:
                todo.append(child)
            parents.setdefault(child, []).append(node)

    def above(*nodes: Any) -> set[Any]:
        found, todo = set(), [*nodes]
        while todo:
            new = set(parents.get(todo.pop(), ())) - found
            found |= new
            todo += new
        return found

    both = above(upper.node) & above(*below)
    first = [node for node in both if not any(child in both for child, _ in node.next_functions)]
    return GradientEdge(first[0], 0) if len(first) == 1 else None


def _which(given: Tensor, made: Tensor, new: Tensor) -> str | None:
    """Does `new` continue `made` as the branch or as the state? None: it can't be told from these numbers."""
    if given.shape != made.shape:
        return "state" if new.shape == made.shape else None
    if new.shape != made.shape:
        if new.ndim != 2 or made.ndim != 3:
            return None
        errors = [_which(given[:, t], made[:, t], new) for t in (0, -1)]
        return next((e for e in errors if e in ("branch", "state")), None)
    if not bool(torch.isfinite(new.sum(dtype=widest(new.device)))):
        return None
    state, branch = torch.equal(made, new), torch.equal(given + made, new)
    if state or branch:  # the network's own sum, to the last bit
        return None if state and branch else "state" if state else "branch"
    wide = widest(new.device)
    scale = new.to(wide).norm()
    as_state = (made.to(wide) - new.to(wide)).norm()
    as_branch = ((given + made).to(wide) - new.to(wide)).norm()
    if torch.minimum(as_state, as_branch) > 1e-3 * scale:
        return "neither"
    if as_state == as_branch:
        return None
    return "branch" if as_branch < as_state else "state"
