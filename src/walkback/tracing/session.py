"""A measuring session on one network: hooks on entering, one forward and one backward per batch, gone on leaving."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn

from walkback.errors import AnatomyError, InputError, shown
from walkback.network.anatomy import Anatomy, Layers, is_published, layers_of, unwrap
from walkback.network.batch import LABELS, Inputs, check_batch, mapped, real_tokens, split, takes_labels
from walkback.network.given import parts_of
from walkback.network.layers import BY_REGISTRATION, Site, Sites
from walkback.network.loss import Loss, SampleLoss
from walkback.network.prints import prints_of
from walkback.network.stacks import BY_ORDER
from walkback.network.tokens import only, read_still, with_gradient
from walkback.network.values import (
    hidden_of,
    logits_of,
    modules_of,
    named_modules_of,
    no_inference,
    places,
    random_state,
    refuse_weights,
    return_hidden,
    widened,
)
from walkback.notes import Note
from walkback.tracing import rerun
from walkback.tracing.calls import overheard
from walkback.tracing.capture import Capture, attach, attach_receivers, seeing_modules
from walkback.tracing.chosen import has_no_stream
from walkback.tracing.copying import copyable
from walkback.tracing.credit import Asked
from walkback.tracing.derived import Spy, Tape, has_custom_backward
from walkback.tracing.explained import complete, explained
from walkback.tracing.heard import LayerCapture
from walkback.tracing.layers import attach_layers, layer_pass, watched_layers
from walkback.tracing.layout import Layout, as_called, find_axis, find_branch, infer_layout, refuse_shapes
from walkback.tracing.links import (
    NO_STREAM,
    is_plain_chain,
    read_past,
    refuse_broken_links,
    refuse_second_ways,
    refuse_several_streams,
    refuse_ways_past,
)
from walkback.tracing.reference import Derived, Own, Twin, gradients
from walkback.tracing.rerun import Deltas, Weights
from walkback.tracing.steady import Steady
from walkback.tracing.streams import refuse_unlike_streams
from walkback.tracing.tail import Tail
from walkback.tracing.trace import Credit, Trace
from walkback.tracing.trials import read_otherwise
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
        sites: Sites | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"Expected model to be a torch.nn.Module, but got {type(model).__name__}.")
        self.model = unwrap(model)
        self.losses = SampleLoss(self.model, loss)  # called with (logits, labels)
        weights = dict(places(self.model))
        refuse_weights(weights)
        self._device = next((t.device for t in weights.values()), None)
        self.anatomy = parts_of(self.model, anatomy, sites)
        self.layout = Layout(self.anatomy.branch, self.anatomy.pool)
        self._may_be_plain = anatomy is None and not is_published(self.model) and not rerun.is_sharded(self.model)
        # Where nobody said what the blocks are, the first batch decides between the candidates.
        self._found = anatomy is None and sites is None and not is_published(self.model)
        self._may_try = self._may_be_plain and sites is None and not isinstance(reference, nn.Module)
        # That parts stand in the order of their registration is no guess for long: a run shows whether it is right.
        self.guesses = [text for text in self.anatomy.guesses if text not in (BY_ORDER, BY_REGISTRATION)]
        self.notes: list[Note] = [Note("guessed", None, {"what": text}) for text in self.guesses]
        self.suspect = False  # something in the forward pass could make the backward pass another function's
        self.keep_branches = False  # in traces, where someone asks for them: they are as large as the states
        self.asked = Asked(self.model)
        self._hidden = return_hidden(self.model)
        self._reference = self._referring_to(reference)
        self._steady = Steady(self.model, self.asked)
        self.reader = ""  # the part that is handed the last site
        self.capture: Capture | LayerCapture | None = None  # of the forward pass that is running
        self._count = 0
        self._stack, self._hooks = ExitStack(), ExitStack()

    def _guessed(self) -> tuple[str, ...]:
        """Return the names of the blocks, where they were guessed."""
        start = len(self.anatomy.stems)
        return self.anatomy.names[start : start + len(self.blocks)] if self.guesses else ()

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
        if isinstance(self.anatomy, Layers):
            return Twin(Tracer(reference, layers_of(reference, self.anatomy.choice), self.losses.custom))
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
    def layer_sites(self) -> tuple[Site, ...]:
        """Where a plain network is read, once a batch has shown it; () of a residual one."""
        return self.anatomy.sites if isinstance(self.anatomy, Layers) else ()

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

    def tape(self) -> Tape | None:
        """Return what a pass is recorded with, where the reference is derived from the forward pass."""
        return self._reference.tape()

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
            self._stack.enter_context(self._hooks)
            self._attach()
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
        """Refuse a call outside the `with` block: the hooks and eval mode last as long as it does."""
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
                raise explained(error, self.model, self._count, self._guessed())  # noqa: B904  # itself, or another one for it
            layout, deepest = self.layout, trace.grads[-1]
            if layout.pool_found and isinstance(layout.pool, int):
                layout = self.layout = replace(layout, pool=read_still(deepest, layout.pool, self._count))
            tokens = self.read_tokens
            mask = real_tokens(x, len(y)) if layout.masked else None
            if tokens is not None:
                mask = only(tokens, deepest, self._count)
            elif layout.exact and (read := with_gradient(deepest)) is not None:
                mask = read
            trace = replace(
                trace, prints=prints, pool=layout.pool, index=self._count, mask=mask, reference=self.reference
            )
            if credit is not None:
                from walkback.tracing.recorded import Recorded  # it imports this module

                if isinstance(credit, Recorded) and credit.anatomy is None:
                    credit = credit.bound(lambda: self.anatomy, self.losses)
                if layout.received and isinstance(credit, Recorded):
                    raise AnatomyError(
                        "Expected blocks that return the residual branch or the new state, since recorded credits are "
                        "read at their outputs, but this network makes its steps outside of the blocks. Wrap each step "
                        "in a module that returns the new state, and name those as blocks."
                    )
                trace = replace(trace, credits=self.asked.credits(credit, trace))
            self._count += 1
            return trace

    def states(self, x: Inputs, y: Tensor) -> Trace:
        """Run a batch forward only, read as batches before it: a Trace without gradients and losses, both empty."""
        self._refuse_outside("states")
        if not self.layout.known or isinstance(self.anatomy, Layers):
            return replace(self.trace(x, y), grads=(), losses=torch.empty(0))
        with self._steady.begin():
            try:
                check_batch(x, y, self._count, self._device)
                x, y = mapped(x, no_inference), no_inference(y)
                with self._steady.look():
                    capture, output, _ = self._forward(x, None, look=False, first=False)
                states = tuple(map(self.layout.batch_first, capture.states(self.layout.branch)))
                refuse_shapes(states, len(y))
            except Exception as error:
                raise explained(error, self.model, self._count, self._guessed())  # noqa: B904  # as in `trace`
            index, self._count = self._count, self._count + 1
            logits = logits_of(output).detach()
            return Trace(states, (), None, torch.empty(0), logits, y, x, pool=self.layout.pool, index=index)

    def settle(self, x: Inputs, y: Tensor) -> None:
        """Run a batch, where only that shows which layers of a plain network are sites, and which read them."""
        if self._may_be_plain or (isinstance(self.anatomy, Layers) and not self.layer_sites):
            self._refuse_outside("settle")
            check_batch(x, y, self._count, self._device)
            with self._steady.begin():
                self._pass(mapped(x, no_inference), no_inference(y), None)

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

    def logits_at(self, x: Inputs, deltas: Deltas, weights: Weights) -> Tensor:
        """Return what the network answers with `deltas[site]` (shaped like h_site) added to the stream at each site."""
        self._refuse_outside("logits_at")

        def run(weights: Weights) -> Tensor:
            with rerun.moved(self, deltas, weights):
                return logits_of(self.run(mapped(x, lambda t: t.detach().clone()), weights))

        return rerun.without_gradients(self.model, run, weights)

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

    def run_once(self, x: Inputs, weights: Weights) -> Any:
        """Run the network within a pass."""
        return rerun.run(self.model, x, weights, **self._asking(first=False))

    def _asking(self, first: bool) -> dict[str, bool]:
        """Return the keyword by which a network returns its states: on the first batch, or where it has to be given."""
        ask = self._hidden == "required" or (self._hidden == "optional" and first)
        return {"return_hidden": True} if ask else {}

    # -- one pass ------------------------------------------------------------------------------------

    def _pass(self, x: Inputs, y: Tensor, weights: Weights) -> Trace:
        """Run a batch forward and backward; try other candidates where the first can't be read as was guessed."""
        if not self._may_try or weights is not None:
            return self.read(x, y, weights)
        try:
            trace = self.read(x, y)
        except AnatomyError as error:
            self._may_try = False
            self.take(read_otherwise(self, error, x, y))
            return self.read(x, y)
        self._may_try = False
        return trace

    def read(self, x: Inputs, y: Tensor, weights: Weights = None) -> Trace:
        """Run a batch as the anatomy says. The first one shows the layout, and is run again where that asks for it."""
        if isinstance(self.anatomy, Layers):
            return layer_pass(self, x, y, weights)
        look, plain = not self.layout.known, self._may_be_plain
        while True:
            first, seen = not self.layout.known, self.layout
            try:
                capture, output, spy = self._forward(x, weights, look, first)
            except _NoStream:
                self.read_layers()
                return layer_pass(self, x, y, weights)
            if first:
                axis = find_axis(capture, lambda few: rerun.run(self.model, few, weights, **self._asking(False)), x, y)
                self.layout = capture.layout = replace(self.layout, axis=axis)
            logits = logits_of(output)
            if first:
                self._see_own_loss(x, y, weights, logits)
            with capture.tape or nullcontext():
                losses = self.losses(logits, y)
            if spy is not None:
                self.suspect = self.suspect or spy.saw or has_custom_backward(losses)
                self.asked.see(spy.read)
            losses, sites, streams, kept = gradients(capture, losses)
            if capture.handed_copy:
                sites = self._with_skip(capture, sites, output)
            grads = complete(capture, sites)
            if first:
                self._learn(capture, grads, output, x, y, unsure=kept and not capture.handed_copy)
            if (self.layout.widens, self.layout.received) == (capture.layout.widens, seen.received):
                break
        layout = self.layout
        # Where the backward pass may be another function's, it can't be compared with itself.
        if look and layout.branch and (capture.tape is not None or not self.suspect):
            unseen = refuse_unlike_streams(capture, streams, grads)
            self.notes[:0] = [] if unseen is None else [unseen]
        if look and layout.known:
            self._refuse_other_streams(capture, losses)
            if self._found and is_plain_chain(capture):
                if not plain:
                    raise AnatomyError(NO_STREAM)
                self.read_layers()
                return layer_pass(self, x, y, weights)
        states = tuple(map(layout.batch_first, capture.states(layout.branch)))
        refuse_shapes(states, len(y))
        branches = None
        if self.keep_branches and layout.branch:
            branches = tuple(map(layout.batch_first, capture.made.values()))
        grads = tuple(map(layout.batch_first, grads))
        return Trace(states, grads, None, losses.detach(), logits.detach(), y, x, pool=layout.pool, branches=branches)

    def _forward(self, x: Inputs, weights: Weights, look: bool, first: bool) -> tuple[Capture, Any, Spy | None]:
        """Run one captured forward pass; a second one where the network writes its stream in place."""
        while True:
            capture = Capture(self.anatomy, self.layout, lambda: self.own(weights), self._reference.tape(), look)
            drawn = random_state(self._device) if first else None
            layers = watched_layers(self.model) if first and self._may_be_plain else None
            try:
                with (
                    nullcontext() if layers is None else overheard(layers.modules, layers.look, layers.before),
                    capture.tape or nullcontext(),
                    Spy() if first else nullcontext() as spy,
                    ExitStack() as looking,
                ):
                    # A copy, always: a network may write its input in any batch, and no look afterwards would bring it
                    # back.
                    inputs = mapped(x, lambda t: t.detach().clone())
                    self.capture = capture
                    if self.layout.tail is not None or (first and not self.layout.received):
                        looking.enter_context(Tail(capture))
                    if first and not self.layout.received:
                        looking.enter_context(seeing_modules(capture, self._modules()))
                    output = rerun.run(self.model, inputs, weights, **self._asking(first))
                if drawn is not None and not torch.equal(drawn, random_state(self._device)):
                    draws = Note("random-forward")
                    self.notes += [] if draws in self.notes else [draws]
                if layers is not None and has_no_stream(layers.counted(), self.model, logits_of(output)):
                    raise _NoStream
                again = first and self._follow(capture)
                if not again:
                    capture.refuse_other_calls()
            finally:
                self.capture = None
            if not again and not capture.was_written():
                return capture, output, spy
            self.layout = replace(self.layout, copies=self.layout.copies or not again)

    def _follow(self, capture: Capture) -> bool:
        """Take the blocks as the network runs them: each as often as it is called, also as `block.forward(h)`.

        Return whether another pass has to be read.
        """
        calls, depth = capture.calls, capture.depth
        once = len({id(block) for block in self.blocks}) == depth and {*calls} == {*range(depth)}
        if once and (len(calls) > depth or (self._found and calls != [*range(depth)])):
            self.anatomy = self.anatomy.in_order(calls)
        elif not self.anatomy.by_forward and {*calls} < {*range(depth)}:
            self.anatomy = replace(self.anatomy, by_forward=True)
        elif self._found and calls and {*calls} < {*range(depth)}:
            never = [self.anatomy.called(i) for i in range(depth) if i not in calls]
            self.notes.append(Note("uncalled-blocks", None, {"blocks": never}))
            self.anatomy = self.anatomy.in_order(calls)
        else:
            return False
        self._hooks.close()
        self._attach()
        return True

    def take(self, anatomy: Anatomy) -> None:
        """Go on with other parts than those that were found before."""
        self._may_be_plain = False
        self._hooks.close()
        self.anatomy = anatomy
        self.guesses = [text for text in anatomy.guesses if text not in (BY_ORDER, BY_REGISTRATION)]
        self.notes[:] = [Note("guessed", None, {"what": text}) for text in self.guesses]
        self.layout = Layout(anatomy.branch, anatomy.pool)
        self._attach()

    def read_layers(self) -> None:
        """Go on with the layers as sites: what looked like blocks has no residual stream."""
        self.take(layers_of(self.model))
        if self.source is not self:
            self.source.read_layers()

    def _attach(self) -> None:
        """Put hooks on the network, for as long as the session lasts; those of layers are on for one pass each."""
        if not isinstance(self.anatomy, Layers):
            attach(self, self._hooks)
        else:
            attach_layers(self, (self.model, *self.anatomy.modules), self._hooks)

    def _see_own_loss(self, x: Inputs, y: Tensor, weights: Weights, logits: Tensor) -> None:
        """Run a model once with `labels=`, where it takes them: its own loss says whether it learns the next token."""
        if not self.losses.wants_own(y) or isinstance(x, Tensor) or not takes_labels(self.model):
            return
        kept = self.layout
        try:
            with torch.no_grad():
                inputs = mapped({**x, LABELS: y}, lambda t: t.detach().clone())
                own = getattr(rerun.run(self.model, inputs, weights, **self._asking(False)), "loss", None)
        except Exception:  # what it makes of labels is its own: then its name decides
            own = None
        self.layout = kept
        self.losses.compare(own, logits, y)

    def _refuse_other_streams(self, capture: Capture, losses: Tensor) -> None:
        """Raise AnatomyError unless the blocks carry one stream, and say what the readout reads beside its end."""
        capture.layout = self.layout
        if self.layout.received:
            refuse_ways_past(capture, losses)
            return
        if capture.tape is None:  # on the tape only the stream itself is marked
            refuse_several_streams(capture, losses)
            if not self.layout.branch:
                refuse_second_ways(capture, losses)
        refuse_broken_links(capture)
        past = None if self.layout.branch else read_past(capture, losses)
        self.notes += [] if past is None else [past]

    def _modules(self) -> dict[str, nn.Module]:
        """Return the modules outside of the anatomy's parts and blocks by their paths: norms may stand there."""
        inside = {id(m) for block in self.blocks for m in modules_of(block)}
        parts = {id(part) for part in (*self.anatomy.stems, *self.anatomy.readout)}
        others = named_modules_of(self.model)
        scripted = torch.jit.ScriptModule  # which takes no hooks
        return {p: m for p, m in others if p and id(m) not in inside | parts and not isinstance(m, scripted)}

    def _with_skip(self, capture: Capture, grads: tuple[Tensor | None, ...], output: Any) -> tuple[Tensor | None, ...]:
        """Return `grads` with g_0 = J_f1ᵀ g_1 + g_1 where a skip outside block 1 goes past the copy it was handed."""
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
        before = self.layout
        self.layout, notes = infer_layout(capture, grads, output, len(y), unsure)
        if self.layout.receivers != before.receivers:
            attach_receivers(self, self._hooks)
        self.notes += notes
        self.anatomy = as_called(self.anatomy, capture.misplaced, self.model)
        self.reader = capture.reader
        mask = real_tokens(x, len(y))
        if self.losses.next_token and mask is not None and mask.shape == y.shape and bool((y[~mask] != -100).any()):
            self.notes.append(Note("padding-labels"))  # they count, as they do in the model's own loss


class _NoStream(Exception):
    """What looked like the blocks of a residual stream are plain layers."""
