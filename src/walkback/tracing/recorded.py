"""Credits recorded from a user's own backward pass: existing feedback-alignment code, audited unchanged.

Layers with a backward of their own (custom autograd Functions), hooks that replace gradients, or a function that trains
layer by layer: whatever it is, it is run on the batch under test, and the signal that reaches what each module wrote is
the credit of that site.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from walkback.errors import CreditError, InputError, WalkbackError, cut, shown
from walkback.network.anatomy import Anatomy, Part, unwrap
from walkback.network.batch import Inputs, call, mapped
from walkback.network.given import parts_of
from walkback.network.loss import Loss, cross_entropy
from walkback.network.values import logits_of, parameters_of, random_state
from walkback.notes import Note
from walkback.tracing.derived import Tape
from walkback.tracing.kept import unwritten
from walkback.tracing.proof import CreditProof, altered_inside, by_weights, farthest, in_one_line, refuse_unlike
from walkback.tracing.quiet import quiet_training
from walkback.tracing.signals import Listener, OtherPass, alike
from walkback.tracing.trace import Trace
from walkback.tracing.untouched import drawn_from, untouched

Known = Anatomy | Callable[[], Anatomy]  # a function: what a measurement has seen by then
Backward = Callable[[nn.Module, Any, Tensor], object]


def recorded(
    model: nn.Module,
    backward: Backward | None = None,
    *,
    anatomy: Anatomy | Mapping[str, Any] | None = None,
    writers: Sequence[Part] | None = None,
    train: bool | None = None,
) -> Recorded:
    """Return the credit that a network's own training code sends to each site: `diagnose(…, credit=recorded(model))`.

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
        train: True: run in training mode, but without dropout, and with batch norm on its running statistics. False: in
            eval mode. None: in eval mode, with an error where training mode sends another credit.

    The first batch is run a few times more to prove the credits (docs/custom-rules.md): each must give the gradients
    that the run leaves in the weights of its module, and come in another order with the samples. One that does not is
    an error; where it can't be told, the report says so.

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
    if anatomy is not None and not isinstance(anatomy, Anatomy):
        anatomy = parts_of(unwrap(model), anatomy)
    if train is not None and not isinstance(train, bool):
        raise InputError(f"Expected train to be True, False or None, but got {shown(train)}.")
    if writers is not None and (isinstance(writers, str | Mapping) or not isinstance(writers, Iterable)):
        raise InputError(
            "Expected writers to be a list of modules or dotted paths, one for every site, but got "
            + shown(writers)
            + "."
        )
    return Recorded(model, backward, anatomy, None if writers is None else tuple(writers), train=train)


@dataclass(frozen=True)
class Recorded:
    """A credit function, made by `recorded`. Call it with the trace of a batch.

    `notes` says what of the proofs could not be made; a measurement takes it into its own.
    """

    model: nn.Module
    backward: Backward | None = None
    anatomy: Known | None = None
    writers: tuple[Part, ...] | None = None
    loss: Loss | None = None
    train: bool | None = None
    notes: list[Any] = field(default_factory=list, compare=False, repr=False)
    _proven: set[str] = field(default_factory=set, compare=False, repr=False)
    restores_weights: bool = field(default=True, init=False)

    def bound(
        self, anatomy: Anatomy | Callable[[], Anatomy], loss: Loss | None, notes: list[Any] | None = None
    ) -> Recorded:
        """Return the same with the anatomy, the loss and the notes of a measurement, where it has none of its own."""
        return replace(
            self,
            anatomy=self.anatomy or anatomy,
            loss=self.loss or loss,
            notes=self.notes if notes is None else notes,
            _proven=set(),
        )

    def __call__(self, trace: Trace) -> list[Tensor]:
        """Return one signal per site, shaped like `trace.states`. Those of the first batch are proven."""
        if trace.reference == "own":
            raise CreditError(
                "Expected a reference that does not come from the network's own backward pass, since that is what is "
                'being recorded: a cosine of it with itself is 1. Use Tracer(model, reference="derived").'
            )
        heard = self._hear(trace.inputs, trace.labels)
        credits = heard.signals(trace.states)
        if trace.index == 0:
            self._prove_by_weights(trace, heard)
            self._prove_by_samples(trace, credits)
            self._prove_by_mode(trace, credits)
            self._look_at_writers(trace, heard)
        return credits

    # -- running the user's code -----------------------------------------------------------------------

    def _hear(self, x: Inputs, y: Tensor, train: bool | None = None, **how: Any) -> Listener:
        """Run the user's backward pass once and listen; the network is afterwards as it was."""
        model = unwrap(self.model)
        known = self.anatomy if isinstance(self.anatomy, Anatomy) or self.anatomy is None else self.anatomy()
        anatomy = Anatomy.of(model) if known is None else known.resolve(model)
        heard = Listener(model, anatomy, self.writers, **how)
        train = bool(self.train) if train is None else train
        with ExitStack() as stack:
            # Weights too, also where no `backward` is given: an optimiser may run in hooks of the backward pass.
            found = stack.enter_context(untouched(model))
            stack.enter_context(unwritten(parameters_of(model) if found.reach.sharded else ()))
            if train:
                stack.enter_context(quiet_training(self.model))
            heard.listen(stack)
            before = _random_states(y.device)
            inputs = mapped(x, lambda t: t.detach().clone())
            try:
                if heard.tape is None:
                    self._run(inputs, y.clone())
                else:
                    with heard.tape:
                        call(self.model, inputs)
            except Exception as error:
                if not isinstance(error, WalkbackError):
                    mode = "training mode" if train else "eval mode (train=True: in training mode)"
                    asked = (
                        ""
                        if self.backward is not None
                        else "; a step that takes more than the inputs goes into `backward`"
                    )
                    error.add_note(f"(while recording the network's backward pass, in {mode}{asked})")
                raise
            heard.finish(drew=before != _random_states(y.device))
            if heard.tape is not None:
                heard.derive(how["send"])
        return heard

    def _run(self, x: Inputs, y: Tensor) -> None:
        if self.backward is not None:
            self.backward(self.model, x, y)
            return
        logits = logits_of(call(self.model, x))
        loss = (self.loss or cross_entropy)(logits, y)
        loss.sum().backward()

    # -- proofs: on the first batch, where the user's code is run again ----------------------------------

    def _prove_by_weights(self, trace: Trace, heard: Listener) -> None:
        """Prove that each credit gives the gradients in the weights of its module, and nothing else does."""
        keys = heard.keys(trace.states)
        left = {key: heard.gradients(key) for key in keys}
        try:
            sent = self._hear(trace.inputs, trace.labels, send=heard.arrived())
            silent = self._hear(trace.inputs, trace.labels, silence=keys)
        except Exception as error:
            self._unproven("weights", "failed", in_one_line(error), range(len(keys)))
            return
        derived = self._derived(trace, heard)
        unknown: dict[CreditProof, list[int]] = {}
        altered: dict[int, tuple[str, float, int, int]] = {}  # site -> module, difference, parameters altered, of
        tied: dict[int, list[str]] = {}  # site -> weights that are used elsewhere too, which are not compared inside
        for site, key in enumerate(keys):
            grads, module = left[key], heard.writers.called(key)
            if isinstance(grads, str):
                proof = CreditProof(why=grads)
            elif key in sent.failed:
                proof = CreditProof(why="failed", detail=sent.failed[key])
            else:
                proof = by_weights(grads, sent.sent.get(key, {}), silent.left[key], heard.shared[key])
            try:
                refuse_unlike(proof, site, module, trace.states[site].dtype, heard.writers.named)
            except CreditError:
                # What was drawn when the credit was sent is not what was drawn in the run.
                if not (heard.drew and proof.compared) and not self._is_random(trace):
                    raise
                proof = CreditProof(why="random")
            if proof.why == "stopped" and not any(bool(signal.any()) for signal in heard.arrived()[key]):
                continue  # no credit, and no gradient: so it should be
            if proof.why:
                unknown.setdefault(proof, []).append(site)
            if proof.fed:
                values = {"module": module, "fed": len(proof.fed), "of": len(proof.fed + proof.compared)}
                self._note(Note("inner-feedback", site, {**values, "parameters": list(proof.fed)}))
            if proof.added:
                self._note(Note("added-gradient", site, {"module": module, "share": proof.added}))
            if derived is not None:
                follows = derived.sent.get(key, {})  # also weights that the run left without a gradient
                own = [name for name in follows if name not in derived.shared[key] and name not in proof.fed]
                own = own if proof.compared else []
                gap, names = altered_inside(sent.sent.get(key, {}), follows, own)
                altered |= {site: (module, gap, len(names), len(own))} if names else {}
                trained = () if isinstance(grads, str) else (name for name, grad in grads.items() if grad is not None)
                elsewhere = [f"{module}.{name}" for name in trained if name in derived.shared[key]]
                tied |= {site: elsewhere} if elsewhere and not proof.why else {}
        for proof, sites in unknown.items():
            self._unproven("weights", proof.why, proof.detail, sites)
        if tied:
            names = [name for some in tied.values() for name in some]
            count = f"{len(names)} of them: {', '.join(names)}"
            self._unproven("inside", "tied", cut(count, 80), list(tied))
        if altered:
            modules, gaps, some, of = map(list, zip(*altered.values()))
            values = {"sites": list(altered), "modules": modules, "difference": max(gaps)}
            values |= {"altered": sum(some), "of": sum(of)}
            self._note(Note("altered-inside", next(iter(altered)) if len(altered) == 1 else None, values))

    def _derived(self, trace: Trace, heard: Listener) -> Listener | None:
        """Return a pass with the weight gradients that follow from the credits by the forward pass alone, or None."""
        torch.clear_autocast_cache()  # weights that were cast earlier would be no weights
        try:
            return self._hear(trace.inputs, trace.labels, train=False, send=heard.arrived(), tape=Tape())
        except Exception as error:  # of a forward pass that can't be run again, operation by operation
            self._unproven("inside", "failed", in_one_line(error))
            return None

    def _prove_by_samples(self, trace: Trace, credits: Sequence[Tensor]) -> None:
        """Prove that with the batch in another order, the credits come in that order."""
        batch = len(trace.labels)
        order = torch.randperm(batch, generator=torch.Generator().manual_seed(0)).to(trace.labels.device)
        x = mapped(trace.inputs, lambda t: t[order.to(t.device)] if t.ndim and t.shape[0] == batch else t)
        if batch == 1:
            if "samples" not in self._proven:  # by another part of the batch
                self._unproven("samples", "one-sample")
            return
        try:
            again = self._hear(x, trace.labels[order])
            others = again.signals([h[order.to(h.device)] for h in trace.states])
        except OtherPass:
            self._unproven("samples", "placed")
            return
        except Exception as error:
            self._unproven("samples", "failed", in_one_line(error))
            return
        gap, site = farthest([a[order.to(a.device)] for a in credits], others)
        if not gap:
            self._proven.add("samples")
            same = [site for site, a in enumerate(credits) if bool(a.any()) and torch.equal(a, a[:1].expand_as(a))]
            if same:  # in every order
                self._unproven("samples", "same", sites=same)
            return
        if not gap > 0 or self._is_random(trace):
            self._unproven("samples", "random" if gap > 0 else "nonfinite")
            return
        raise CreditError(
            f"Expected credits that belong to the samples of the batch, but with the same batch in another order that "
            f"of site {site} is another one (by {gap:.1%}): what was kept of an earlier batch is in it, or the place "
            "of a sample in the batch. Layers that take down the output error in training mode only still have that of "
            "the last training batch: record with train=True, and pass what they ask for in `backward`. A function "
            "must use the inputs and labels that it is given; if your rule pairs samples by their place, give the "
            "credits as a function of the trace."
        )

    def _is_random(self, trace: Trace) -> bool:
        """Return whether the credits are drawn: they are others under another seed, or in every run."""

        def again() -> list[Tensor]:
            return self._hear(trace.inputs, trace.labels).signals(trace.states)

        try:
            again()  # what is kept from one run to the next has settled after it
            first, second = again(), again()
            with drawn_from(1, trace.labels.device):
                third = again()
        except Exception:
            return False
        return bool(farthest(first, second)[0]) or bool(farthest(second, third)[0])

    def _prove_by_mode(self, trace: Trace, credits: Sequence[Tensor]) -> None:
        """Prove, unless the mode was chosen, that the credits of eval mode are those of training mode."""
        if self.train is not None:
            return
        try:
            heard = self._hear(trace.inputs, trace.labels, train=True)
        except Exception as error:
            self._unproven("mode", "failed", in_one_line(error))
            return
        try:
            others = heard.signals(trace.states)
        except OtherPass:
            self._unproven("mode", "other-states")
            return
        except CreditError as error:  # it ran, and the sites get nothing that could be read
            raise CreditError(
                "Expected the credits that train the network, but what was recorded is of eval mode, and training mode "
                f"sends no such credit: a layer acts on self.training. {error} train=False records eval mode, whatever "
                "training mode does."
            ) from error
        gap, site = farthest(credits, others)
        if gap > 0 and self._is_random(trace):
            self._unproven("mode", "random")
        elif gap > 0:
            raise CreditError(
                f"Expected the credits that train the network, but in training mode that of site {site} is another one "
                f"than in eval mode (by {gap:.1%}): a layer acts on self.training. Record with train=True: training "
                "mode without dropout, and batch norm with its running statistics. train=False records eval mode."
            )

    def _look_at_writers(self, trace: Trace, heard: Listener) -> None:
        """Note where a module that was named writes neither the state of its site nor what is added to it."""
        for site in heard.made if heard.writers.named else ():
            made, state = heard.batch_first(heard.made[site]), trace.states[site]
            before = trace.states[site - 1] if site else None
            added = before is not None and before.shape == made.shape and alike(before + made, state)
            if not added and not alike(made, state):
                self._note(Note("other-writer", site, {"module": heard.writers.name(site)}))

    def _unproven(self, proof: str, why: str, detail: str = "", sites: Sequence[int] = ()) -> None:
        values = {"proof": proof, "why": why, "detail": detail, "sites": list(sites)}
        self._note(Note("unproven-credit", sites[0] if len(sites) == 1 else None, values))

    def _note(self, note: Note) -> None:
        if note not in self.notes:
            self.notes.append(note)


def _random_states(device: torch.device) -> tuple[Any, ...]:
    """Return the state of every generator that code may draw from, to see whether it did."""
    numpys: tuple[Any, ...] = np.random.get_state()  # type: ignore[assignment]
    return random.getstate(), numpys[1].tobytes(), numpys[2], random_state(device).numpy().tobytes()
