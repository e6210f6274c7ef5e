"""A measuring session on one network: hooks on entering, one forward and one backward per batch, gone on leaving."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import fields, replace
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn

from walkback.errors import AnatomyError, InputError, cut, shown
from walkback.network.anatomy import Anatomy, unwrap
from walkback.network.batch import Inputs, check_batch, mapped, real_tokens, split
from walkback.network.loss import Loss, SampleLoss
from walkback.network.prints import prints_of
from walkback.network.stacks import BY_ORDER
from walkback.network.tokens import only, read_still
from walkback.network.values import (
    hidden_of,
    logits_of,
    no_inference,
    places,
    random_state,
    refuse_weights,
    return_hidden,
    widened,
)
from walkback.notes import Note
from walkback.tracing import rerun
from walkback.tracing.capture import Capture, attach
from walkback.tracing.copying import copyable
from walkback.tracing.credit import Asked
from walkback.tracing.derived import Spy, has_custom_backward
from walkback.tracing.layout import Layout, as_called, find_axis, find_branch, infer_layout, refuse_shapes
from walkback.tracing.reference import Derived, Own, Twin, gradients
from walkback.tracing.rerun import Deltas, Weights
from walkback.tracing.steady import Steady
from walkback.tracing.streams import refuse_unlike_streams
from walkback.tracing.trace import Credit, Trace
from walkback.tracing.untouched import untouched


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
        self.model = unwrap(model)
        self.losses = SampleLoss(self.model, loss)  # called with (logits, labels)
        weights = dict(places(self.model))
        refuse_weights(weights)
        self._device = next((t.device for t in weights.values()), None)
        self.anatomy = _resolved(anatomy, self.model)
        self.layout = Layout(self.anatomy.branch, self.anatomy.pool)
        # That parts stand in the order of their registration is no guess for long: a run shows whether it is right.
        self.guesses = [text for text in self.anatomy.guesses if text != BY_ORDER]
        self.notes: list[Note] = [Note("guessed", None, {"what": text}) for text in self.guesses]
        self.suspect = False  # something in the forward pass could make the backward pass another function's
        self.keep_branches = False  # in traces, where someone asks for them: they are as large as the states
        self.asked = Asked(self.model)
        self._hidden = return_hidden(self.model)
        self._reference = self._referring_to(reference)
        self._steady = Steady(self.model, self.asked)
        self.capture: Capture | None = None  # of the forward pass that is running
        self._count = 0
        self._stack = ExitStack()

    def _referring_to(self, reference: object) -> Own:
        if reference is None:
            return Own()
        if isinstance(reference, str) and reference == "derived":
            return Derived()
        if not isinstance(reference, nn.Module):
            raise InputError(
                'Expected reference to be "derived", or a plain twin of the network as a torch.nn.Module, but got '
                f"{shown(reference)}."
            )
        stems = len(self.anatomy.stems)
        names = self.anatomy.names[stems : stems + len(self.blocks)]
        anatomy = Anatomy(None, names, (), self.anatomy.pool, self.anatomy.branch)
        return Twin(Tracer(reference, anatomy, self.losses.custom))

    # -- what is known of the network ------------------------------------------------------------------

    @property
    def blocks(self) -> tuple[nn.Module, ...]:
        """The L blocks, in the order the stream passes them."""
        return cast(tuple[nn.Module, ...], self.anatomy.blocks)

    @property
    def branch(self) -> bool | None:
        """Whether blocks return the residual branch; None while it is not known."""
        return self.layout.branch

    @property
    def read_tokens(self) -> list[int] | None:
        """The tokens that the readout averages over, where they are a few of many."""
        return None if self.layout.tokens is None else list(self.layout.tokens)

    @property
    def reference(self) -> str:
        """Where gradients come from: "own", "derived" or "twin"."""
        return self._reference.name

    @property
    def source(self) -> Tracer:
        """The tracer whose backward pass gives g_l: that of the twin, or this one."""
        return self._reference.tracer if isinstance(self._reference, Twin) else self

    @property
    def per_sample(self) -> bool:
        """False once a custom loss has returned a mean."""
        return self.losses.per_sample

    @property
    def has_custom_loss(self) -> bool:
        """Whether the loss is the user's."""
        return self.losses.custom is not None

    @property
    def loss_name(self) -> str:
        """The loss in words, for the conditions."""
        return self.losses.name

    def own(self, weights: Weights = None) -> Iterator[Tensor]:
        """Return all that the network keeps, and the weights it runs with."""
        kept = () if self.asked.found is None else self.asked.found.reach.tensors
        return chain((weights or {}).values(), (t for _, t in places(self.model)), kept)

    # -- the session ---------------------------------------------------------------------------------

    def __enter__(self) -> Tracer:
        self._stack.__enter__()
        try:
            self.asked.begin(self._stack.enter_context(untouched(self.model)))
            self._stack.enter_context(copyable())
            if isinstance(self._reference, Twin):
                self._stack.enter_context(self._reference.tracer)
            attach(self, self._stack)
        except BaseException:
            self.asked.found = None
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.capture = None
        found = self.asked.found
        try:
            self.asked.finish(put_back_only=exc[0] is not None)
        finally:
            if found is not None and not self.asked.alone:
                found.leave_training()
            self.asked.found = None
            self._stack.__exit__(*exc)  # type: ignore[arg-type]

    def _refuse_outside(self, name: str) -> None:
        """The hooks and eval mode last as long as the `with` block."""
        if self.asked.found is None:
            raise InputError(
                f"Expected Tracer.{name} to be called inside `with Tracer(model) as tracer:`, but this tracer is not "
                "open: only there are its hooks on the network. Open it with `with`, and call it in that block."
            )

    # -- one batch -----------------------------------------------------------------------------------

    def parts(self, x: Inputs, y: Tensor, credit: Credit | None = None, chunk: int | None = None) -> Iterator[Trace]:
        """Yield the traces of a batch in parts of at most `chunk` samples (None: whole), all with its index."""
        index = self._count
        if chunk is not None:
            check_batch(x, y, index, self._device)
        for part in split(x, y, chunk):
            self._count = index
            yield self.trace(*part, credit)

    def trace(self, x: Inputs, y: Tensor, credit: Credit | None = None) -> Trace:
        """Run one forward and one backward: (B, ...) inputs and their labels to a Trace of L + 1 sites."""
        self._refuse_outside("trace")
        with self._steady.begin():
            try:
                check_batch(x, y, self._count, self._device)
                prints = prints_of(x, len(y))  # while the inputs are in the cache
                x, y = mapped(x, no_inference), no_inference(y)  # neither could be saved for backward
                with self._steady.look():
                    trace = self._pass(x, y, None)
                trace = self._reference.applied(trace, self.asked.alone)
            except Exception as error:
                raise self._explained(error)  # noqa: B904  # itself, or another one for it
            layout, deepest = self.layout, trace.grads[-1]
            if layout.pool_found and isinstance(layout.pool, int):
                layout = self.layout = replace(layout, pool=read_still(deepest, layout.pool, self._count))
            tokens = self.read_tokens
            mask = real_tokens(x, len(y)) if tokens is None else only(tokens, deepest, self._count)
            trace = replace(
                trace, prints=prints, pool=layout.pool, index=self._count, mask=mask, reference=self.reference
            )
            if credit is not None:
                trace = replace(trace, credits=self.asked.credits(credit, trace))
            self._count += 1
            return trace

    def again(self, x: Inputs, y: Tensor, weights: Weights) -> Trace:
        """Run a batch once more with other weights by name, say in float64. It is not counted, and has no credit.

        Args:
            x: (B, ...) inputs, of the dtype and on the device of `weights`.
            y: labels, on the device of `weights`.
            weights: every parameter and buffer of the model; None: its own.
        """
        self._refuse_outside("again")
        before = self.layout
        try:
            with self._steady.begin(weights):
                trace = self._pass(x, y, weights)
        finally:  # how other weights have to be read says nothing of the network's own
            self.layout = replace(self.layout, copies=before.copies, widens=before.widens)
        return self._reference.applied_again(trace, weights)

    @torch.no_grad()
    def logits_at(self, x: Inputs, deltas: Deltas, weights: Weights) -> Tensor:
        """Return what the network answers with `deltas[site]` (shaped like h_site) added to the stream at each site."""
        self._refuse_outside("logits_at")
        with rerun.moved(self, deltas, weights):
            return logits_of(self.run(mapped(x, lambda t: t.detach().clone()), weights))

    def replay(self, x: Inputs, y: Tensor, deltas: Deltas, weights: Weights) -> Tensor:
        """Return (B,) losses of the batch with `deltas[site]` (shaped like h_site) added to the stream at each site."""
        self._refuse_outside("replay")
        with torch.no_grad():
            return widened(self.losses(self.logits_at(x, deltas, weights), y))

    def branches_at(self, x: Inputs, states: Sequence[Tensor], weights: Weights) -> list[Tensor | None]:
        """Return f_1 … f_L with every block l given states[l - 1], see `rerun.branches_at`."""
        self._refuse_outside("branches_at")
        return rerun.branches_at(self, x, states, weights)

    def run(self, x: Inputs, weights: Weights) -> Any:
        """Run the network, captured or not, and leave what it keeps as it was."""
        with self._steady.begin(weights):
            return rerun.run(self.model, x, weights, **self._asking(first=False))

    def _asking(self, first: bool) -> dict[str, bool]:
        """Return the keyword by which a network returns its states: on the first batch, or where it has to be given."""
        ask = self._hidden == "required" or (self._hidden == "optional" and first)
        return {"return_hidden": True} if ask else {}

    def _explained(self, error: Exception) -> Exception:
        """Return an error of a pass, with what the user needs to understand it."""
        made = [name for name, kept in places(self.model) if kept.is_inference()]
        if made and "Inference tensors" in str(error):
            error = InputError(
                f"Expected buffers that a backward pass can use, but {made[0]} was made under "
                "torch.inference_mode(). Outside it, put a clone in its place: module.name = module.name.clone()."
            )
        error.add_note(f"(while measuring batch {self._count})")
        if isinstance(error, TypeError) and ".forward() missing" in str(error):
            error.add_note("(inputs that are several come as a dict of the network's keywords: ({name: tensor}, y))")
        if isinstance(error, AnatomyError):
            for text in self.guesses:
                error.add_note(f"(guessed: {text})")
        return error

    # -- one pass ------------------------------------------------------------------------------------

    def _pass(self, x: Inputs, y: Tensor, weights: Weights) -> Trace:
        """Run a batch forward and backward. The first one shows the layout, and is run again where that asks for it."""
        look = not self.layout.known
        while True:
            first = not self.layout.known
            capture, output, spy = self._forward(x, weights, look, first)
            if first:
                axis = find_axis(capture, lambda few: rerun.run(self.model, few, weights, **self._asking(False)), x, y)
                self.layout = capture.layout = replace(self.layout, axis=axis)
            logits = logits_of(output)
            with capture.tape or nullcontext():
                losses = self.losses(logits, y)
            if spy is not None:
                self.suspect = self.suspect or spy.saw or has_custom_backward(losses)
                self.asked.see(spy.read)
            losses, sites, streams, kept = gradients(capture, losses)
            if capture.handed_copy:
                sites = self._with_skip(capture, sites, output)
            grads = _complete(capture, sites)
            if first:
                self._learn(capture, grads, output, x, y, unsure=kept and not capture.handed_copy)
            if self.layout.widens == capture.layout.widens:
                break
        layout = self.layout
        # Where the backward pass may be another function's, it can't be compared with itself.
        if look and layout.branch and (capture.tape is not None or not self.suspect):
            unseen = refuse_unlike_streams(capture, streams, grads)
            self.notes[:0] = [] if unseen is None else [unseen]
        states = tuple(map(layout.batch_first, capture.states(layout.branch)))
        refuse_shapes(states, len(y))
        branches = None
        if self.keep_branches and layout.branch:
            branches = tuple(map(layout.batch_first, capture.made.values()))
        grads = tuple(map(layout.batch_first, grads))
        return Trace(states, grads, None, losses.detach(), logits.detach(), y, x, pool=layout.pool, branches=branches)

    def _forward(self, x: Inputs, weights: Weights, look: bool, first: bool) -> tuple[Capture, Any, Spy | None]:
        """One captured forward pass; a second one where the network writes its stream in place."""
        while True:
            capture = Capture(self.anatomy, self.layout, lambda: self.own(weights), self._reference.tape(), look)
            drawn = random_state(self._device) if first else None
            try:
                with capture.tape or nullcontext(), Spy() if first else nullcontext() as spy:
                    # A copy, always: a network may write its input in any batch, and no look afterwards would bring it
                    # back.
                    inputs = mapped(x, lambda t: t.detach().clone())
                    self.capture = capture
                    output = rerun.run(self.model, inputs, weights, **self._asking(first))
                if drawn is not None and not torch.equal(drawn, random_state(self._device)):
                    draws = Note("random-forward")
                    self.notes += [] if draws in self.notes else [draws]
                capture.refuse_other_calls()
            finally:
                self.capture = None
            if not capture.was_written():
                return capture, output, spy
            self.layout = replace(self.layout, copies=True)

    def _with_skip(self, capture: Capture, grads: tuple[Tensor | None, ...], output: Any) -> tuple[Tensor | None, ...]:
        """Block 1 was handed a copy, which a skip outside the block goes past: g_0 = J_f1ᵀ g_1 + g_1."""
        if self.layout.branch is None:
            branch = find_branch(capture, hidden_of(output))
            self.layout = capture.layout = replace(self.layout, branch=branch)
        if not self.layout.branch or grads[0] is None or grads[1] is None:
            return grads
        return (grads[0] + grads[1], *grads[1:])

    def _learn(
        self, capture: Capture, grads: tuple[Tensor, ...], output: Any, x: Inputs, y: Tensor, unsure: bool
    ) -> None:
        """Keep what the first batch shows."""
        self.layout, notes = infer_layout(capture, grads, output, len(y), unsure)
        self.notes += notes
        self.anatomy = as_called(self.anatomy, capture.misplaced, self.model)
        mask = real_tokens(x, len(y))
        if self.losses.next_token and mask is not None and mask.shape == y.shape and bool((y[~mask] != -100).any()):
            self.notes.append(Note("padding-labels"))  # they count, as they do in the model's own loss


def _resolved(anatomy: Anatomy | Mapping[str, Any] | None, model: nn.Module) -> Anatomy:
    """Return the anatomy that a caller gave, in whatever form, with its parts found in the model."""
    if isinstance(anatomy, Mapping):
        known = [f.name for f in fields(Anatomy) if f.name not in ("names", "guesses")]
        if set(anatomy) - set(known):
            raise InputError(
                f"Expected anatomy to name {', '.join(known)}, but got {cut(', '.join(map(str, anatomy)))}."
            )
        anatomy = Anatomy.of(model, **anatomy)
    if anatomy is not None and not isinstance(anatomy, Anatomy):
        raise InputError(f"Expected anatomy to be an Anatomy or a dict of its parts, but got {shown(anatomy)}.")
    return Anatomy.of(model) if anatomy is None else anatomy.resolve(model)


def _complete(capture: Capture, grads: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    """Return the gradients, once every site has one."""
    cut_at = next((site for site, g in enumerate(grads) if g is None), None)
    if cut_at is not None:
        detached = (
            "the network detaches its stream on the way (as local learning code does) or does not use it. Measure "
            "the network through a forward pass without detach()."
        )
        raise AnatomyError(
            f"Expected the loss to depend on every site, but no gradient reaches site {cut_at}: "
            f"{capture.of_several(cut_at - 1) or detached}"
        )
    return cast(tuple[Tensor, ...], grads)
