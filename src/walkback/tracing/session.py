"""A measuring session on one network: hooks on entering, one forward and one backward per batch, gone on leaving."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from walkback.errors import AnatomyError, InputError, shown
from walkback.network.anatomy import Anatomy, Layers, layers_of, unwrap
from walkback.network.batch import Inputs, check_batch, mapped, real_tokens, split
from walkback.network.layers import Site, Sites
from walkback.network.loss import Loss, SampleLoss
from walkback.network.prints import prints_of
from walkback.network.tokens import only, read_still, with_gradient
from walkback.network.values import (
    logits_of,
    no_inference,
    places,
    refuse_weights,
    widened,
)
from walkback.notes import Note
from walkback.registry import whole_numbers
from walkback.tracing import rerun
from walkback.tracing.capture import Capture, attach
from walkback.tracing.copying import copyable
from walkback.tracing.credit import Asked
from walkback.tracing.derived import Tape
from walkback.tracing.explained import explained
from walkback.tracing.first import first_pass, guessed_pass, named_pass, read_past_cuts
from walkback.tracing.heard import LayerCapture
from walkback.tracing.layers import attach_layers, layer_pass
from walkback.tracing.layout import Layout
from walkback.tracing.memory import keep_freed
from walkback.tracing.passes import block_pass, forward, states_of
from walkback.tracing.reading import NetworkReading, begin
from walkback.tracing.recorded import Recorded
from walkback.tracing.reference import Derived, Own, Twin
from walkback.tracing.rerun import Deltas, Weights
from walkback.tracing.steady import Steady
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
        sites: Sites | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"Expected model to be a torch.nn.Module, but got {type(model).__name__}.")
        self.model = unwrap(model)
        self.losses = SampleLoss(self.model, loss)  # called with (logits, labels)
        weights = dict(places(self.model))
        refuse_weights(weights)
        self.device = next((t.device for t in weights.values()), None)
        self.reading = begin(self.model, anatomy, sites, reference)
        self.notes: list[Note] = self.reading.notes()
        self.asked = Asked(self.model)
        self._reference = self._referring_to(reference)
        self._steady = Steady(self.model, self.asked)
        self.capture: Capture | LayerCapture | None = None  # of the forward pass that is running
        self.hooks, self._stack = ExitStack(), ExitStack()
        self._count = 0

    def _referring_to(self, reference: object) -> Own:
        if reference is None or (isinstance(reference, str) and reference == "own"):
            return Own()
        if isinstance(reference, str) and reference == "derived":
            return Derived()
        if not isinstance(reference, nn.Module):
            raise InputError(
                'Expected reference to be "derived", or a plain twin of the network as a torch.nn.Module (or "own"), '
                f"but got {shown(reference)}."
            )
        if isinstance(self.anatomy, Layers):
            return Twin(Tracer(reference, layers_of(reference, self.anatomy.choice), self.losses.custom))
        anatomy = Anatomy(None, self.reading.block_names, (), self.anatomy.pool, self.anatomy.branch)
        return Twin(Tracer(reference, anatomy, self.losses.custom))

    # -- what is known of the network ------------------------------------------------------------------

    @property
    def anatomy(self) -> Anatomy:
        """The parts that are read."""
        return self.reading.anatomy

    @property
    def layout(self) -> Layout:
        """What batches have shown of the network."""
        return self.reading.layout

    @property
    def blocks(self) -> tuple[nn.Module, ...]:
        """The L blocks, in the order the stream passes them."""
        return self.reading.blocks

    @property
    def layer_sites(self) -> tuple[Site, ...]:
        """Where a plain network is read, once a batch has shown it; () of a residual one."""
        return self.reading.layer_sites

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
        keep_freed()
        try:
            self.asked.begin(self._stack.enter_context(untouched(self.model)))
            self._stack.enter_context(copyable())
            if isinstance(self._reference, Twin):
                self._stack.enter_context(self._reference.tracer)
            self._stack.enter_context(self.hooks)
            self.attach()
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

    def _guessed_blocks(self) -> tuple[str, ...]:
        """Return the names of the blocks, where they were guessed."""
        return self.reading.block_names if self.reading.guesses else ()

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
            whole_numbers(chunk=chunk)
            check_batch(x, y, index, self.device)
        for part in split(x, y, chunk):
            self._count = index
            yield self.trace(*part, credit)

    def trace(self, x: Inputs, y: Tensor, credit: Credit | None = None) -> Trace:
        """Run one forward and one backward: (B, ...) inputs and their labels to a Trace of L + 1 sites."""
        self._refuse_outside("trace")
        with self._steady.begin():
            try:
                check_batch(x, y, self._count, self.device)
                prints = prints_of(x, len(y))  # while the inputs are in the cache
                x, y = mapped(x, no_inference), no_inference(y)  # neither could be saved for backward
                with self._steady.look():
                    trace = self._pass(x, y, None)
                trace = self._reference.applied(trace, self.asked.alone)
            except Exception as error:
                raise explained(error, self.model, self._count, self._guessed_blocks())  # noqa: B904  # itself, or another one for it
            layout, deepest = self.layout, trace.grads[-1]
            if layout.pool_found and isinstance(layout.pool, int):
                layout = replace(layout, pool=read_still(deepest, layout.pool, self._count))
                self.learn(layout=layout)
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
                check_batch(x, y, self._count, self.device)
                x, y = mapped(x, no_inference), no_inference(y)
                with self._steady.look():
                    capture, output = forward(self, x, None)
                states = states_of(self, capture, len(y))
            except Exception as error:
                raise explained(error, self.model, self._count, self._guessed_blocks())  # noqa: B904  # as in `trace`
            index, self._count = self._count, self._count + 1
            logits = logits_of(output).detach()
            return Trace(states, (), None, torch.empty(0), logits, y, x, pool=self.layout.pool, index=index)

    def settle(self, x: Inputs, y: Tensor) -> None:
        """Run a batch, where only that shows which layers of a plain network are sites, and which read them."""
        if self.reading.may_be_plain or (isinstance(self.anatomy, Layers) and not self.layer_sites):
            self._refuse_outside("settle")
            check_batch(x, y, self._count, self.device)
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
            self.learn(layout=replace(self.layout, copies=before.copies, widens=before.widens))
        return self._reference.applied_again(trace, weights)

    def logits_at(self, x: Inputs, deltas: Deltas, weights: Weights) -> Tensor:
        """Return what the network answers with `deltas[site]` (shaped like h_site) added to the stream at each site."""
        self._refuse_outside("logits_at")

        def run(weights: Weights) -> Tensor:
            inputs = mapped(x, lambda t: t.detach().clone())
            with rerun.moved(self, deltas, weights):
                return logits_of(self.run(inputs, weights))

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
            return self.run_once(x, weights)

    def run_once(self, x: Inputs, weights: Weights) -> Any:
        """Run the network within a pass."""
        return rerun.run(self.model, x, weights, **self.reading.asking(first=False))

    # -- one pass ------------------------------------------------------------------------------------

    def _pass(self, x: Inputs, y: Tensor, weights: Weights) -> Trace:
        """Run a batch forward and backward; the first one may decide between candidates for the blocks."""
        if self.reading.may_try and weights is None:
            return guessed_pass(self, x, y)
        if not self.layout.known and weights is None and not isinstance(self.anatomy, Layers):
            return named_pass(self, x, y)
        return read_past_cuts(self, x, y) if weights is None else self.read(x, y, weights)

    def read(self, x: Inputs, y: Tensor, weights: Weights = None) -> Trace:
        """Run a batch as the reading says; the first one shows the layout."""
        if isinstance(self.anatomy, Layers):
            return layer_pass(self, x, y, weights)
        return (block_pass if self.layout.known else first_pass)(self, x, y, weights)

    def learn(self, **what: Any) -> None:
        """Keep what a batch has shown, by the names of `NetworkReading`."""
        self.reading = replace(self.reading, **what)

    def take(self, anatomy: Anatomy) -> None:
        """Go on with other parts than those that were found before."""
        self.reading = self.reading.of(anatomy)
        self.notes[:] = self.reading.notes()
        self.attach()

    def refer(self, reference: Own, reading: NetworkReading) -> Own:
        """Go on with another reference, from a reading as it was before a pass; return the reference before."""
        before, self._reference, self.reading = self._reference, reference, reading
        self.notes[:] = reading.notes()
        self.attach()
        return before

    def read_layers(self, sites: Sites = "layers", refusal: str = "") -> None:
        """Go on with the layers as sites: what looked like blocks has no residual stream; `refusal`: see `Layers`."""
        self.take(layers_of(self.model, sites, refusal))
        if self.source is not self:
            self.source.read_layers(sites, refusal)

    def attach(self) -> None:
        """Put hooks on the network, for as long as the session lasts; those of layers are on for one pass each."""
        self.hooks.close()
        if not isinstance(self.anatomy, Layers):
            attach(self, self.hooks)
        else:
            attach_layers(self, (self.model, *self.anatomy.modules), self.hooks)
