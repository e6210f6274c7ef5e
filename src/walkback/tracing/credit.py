"""Asking for the credit under test, and refusing what can't be one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor, nn

from walkback.errors import CreditError
from walkback.network.batch import tensors
from walkback.network.prints import fingerprints
from walkback.network.values import modules_of
from walkback.tracing.kept import Given, Kept, Spare, differ, imprint, shows, unwritten
from walkback.tracing.reach import REGISTERED
from walkback.tracing.restore import is_same, put_dict
from walkback.tracing.trace import Credit, Trace
from walkback.tracing.untouched import AsFound, Unstepped

LOOKS = 2  # calls after which weights are compared by value whatever their version counter says
CHANGED = (
    "Expected credit(trace) to leave the network as it is, but it changed its weights. They were put back. Leave "
    "updates out of it, or make them on a copy of the network."
)


class Asked:
    """The credit of one batch after the other, on one network.

    Held against a credit are weights, whether `parameters()` shows them or not, and plain tensors that the forward pass
    reads. What the network writes or makes anew by itself when it runs is not, where the credit ran the network. Many
    attributes, since what a credit may not write to and what the network writes by itself are kept apart.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = tuple(modules_of(model))
        books = [m._parameters for m in self._modules if isinstance(m._parameters, dict)]  # TorchScript has others
        self._first = [(book, dict(book)) for book in books]
        self._calls = 0
        self._kept: Kept | None = None  # the weights as they were at the first call
        self._kept_of: Sequence[Tensor] = ()  # and the list of them
        self._spare: Spare = {}  # memory of the copies of the last call
        self._places: _Places | None = None  # what stood where at the last call
        self._weights: list[Tensor] = []  # all that the network computes with, but its buffers, which running it moves
        self._restless: set[int] = set()  # those that the network writes by itself
        self.found: AsFound | None = None
        self._plain: list[Tensor] = []  # neither parameters nor buffers, and yet the network computes with them
        self._where: list[tuple[Any, Any, Tensor]] = []  # and where they stand: container, key, tensor
        self.alone = False  # nothing but the credit runs between batches
        self.ran = False  # the network ran while the credit was asked
        self._ever_ran = False
        self._previous: tuple[Tensor, Tensor] | None = None  # fingerprints of a batch's credit, and its labels

    def begin(self, found: AsFound) -> None:
        """Learn how the network was before the session."""
        self.found = found

    def moved(self, written: Sequence[Tensor]) -> None:
        """Learn which tensors a pass of the network has written by itself."""
        self._restless |= {id(t) for t in written}

    def see(self, read: set[int]) -> None:
        """Learn which tensors the first forward pass took up, by their ids."""
        if self.found is not None:
            registered = {id(t) for m in self._modules for d in (m._parameters, m._buffers) for _, t in d.items()}
            others = [t for t in self.found.reach.tensors if id(t) not in registered]
            self._plain = [t for t in others if (_trains(t) and t.is_leaf) or id(t) in read]
            self._where, self._places = self.found.reach.places(self._plain), None

    def credits(self, credit: Credit, trace: Trace) -> tuple[Tensor, ...]:
        """Return a_0 … a_L, detached, each shaped like its state."""
        if not callable(credit) or isinstance(credit, type):
            got = (
                f"the class {credit.__name__}: give an instance" if isinstance(credit, type) else type(credit).__name__
            )
            raise CreditError(
                f"Expected credit to be a callable that takes a Trace and returns one tensor per site, but got {got}."
            )
        made = self._ask(credit, trace)
        if isinstance(made, Tensor) or not isinstance(made, Sequence):
            raise CreditError(
                f"Expected credit(trace) to return a sequence of {len(trace.states)} tensors, one per site "
                f"0…{len(trace.states) - 1}, but got {type(made).__name__}."
            )
        if len(made) != len(trace.states):
            raise CreditError(
                f"Expected {len(trace.states)} credits, one per site 0…{len(trace.states) - 1}, but got "
                f"{len(made)}. Site 0 is what the stem writes, site l what block l writes."
            )
        for site, (a, h) in enumerate(zip(made, trace.states)):
            if not isinstance(a, Tensor) or a.shape != h.shape:
                got = tuple(a.shape) if isinstance(a, Tensor) else type(a).__name__
                hint = (
                    " It has another batch size: was it taken on another batch?"
                    if isinstance(a, Tensor) and a.ndim and a.shape[1:] == h.shape[1:]
                    else ""
                )
                raise CreditError(
                    f"Expected the credit of site {site} to have the shape of its state, {tuple(h.shape)}, but got "
                    f"{got}.{hint}"
                )
            if not a.is_floating_point():
                raise CreditError(
                    f"Expected the credit of site {site} to be of a floating point type, but got {a.dtype}."
                )
            if a.device != h.device:
                raise CreditError(
                    f"Expected the credit of site {site} on {h.device} with its state, but it is on {a.device}. "
                    "Compute it from the tensors of the trace."
                )
        credits = tuple(a.detach() for a in made)
        self._refuse_stale(trace, credits)
        return credits

    def _ask(self, credit: Credit, trace: Trace) -> Sequence[Tensor]:
        """Call the credit, and see that it changed nothing it was shown; what it changed is put back.

        The user's data are compared by value with copies that last as long as the call, and so are weights. Where
        nothing but the credit runs between batches (`alone`), one copy of them lasts as long as the session. It is
        looked at after the first calls, later where a version counter has moved, and by `finish`, which finds what was
        written past it.
        """
        trusted = getattr(credit, "restores_weights", False)
        places = self._now()
        weights = [] if trusted else self._weights
        if trusted and self._restless and self.alone and self.found is not None:
            self.found.rewind()  # it runs the network once more, from where the measured pass began
        kept = self._keep(weights)
        moving = [t for t in weights if id(t) in self._restless] if self._restless else []
        made_here = (trace.logits, trace.losses, trace.prints, trace.mask, *(trace.branches or ()))
        ours = [t for t in (*trace.states, *trace.grads, *made_here) if t is not None]
        # By value what is the user's, and what has no version counter.
        shown = Given(
            (trace.labels, *tensors(trace.inputs).values(), *(t for t in ours if t.is_inference())), self._spare
        )
        counted = [(t, t._version) for t in ours if not t.is_inference()]
        # `.data` and numpy write past the counter. A recorded credit (`trusted`) does not show the trace to anyone.
        before = [] if trusted else [(t, imprint(t, self._spare)) for t, _ in counted]
        versions = [t._version for t in weights]
        self.ran = False
        with ExitStack() as stack:
            written = stack.enter_context(unwritten((*places.buffers, *moving, *shown.others)))
            stack.enter_context(Unstepped(weights))
            try:
                made = credit(trace)
            except Exception as error:
                error.add_note(f"(raised by credit(trace), on batch {trace.index})")
                raise
            finally:
                self._ever_ran = self._ever_ran or self.ran
                look = self._calls <= LOOKS or versions != [t._version for t in weights]
                rewritten = kept.put_back() if look or not self._lasts else []
                replaced, strange = places.put_back()
                overwritten = shown.put_back()
        changed = {id(t) for t in written}
        if (
            overwritten
            or any(t._version != version for t, version in counted)
            or any(id(t) in changed for t in shown.others)
            or any(shows(was, t) for t, was in before)
        ):
            raise CreditError(
                "Expected credit(trace) to leave the trace as it is, but it wrote into its tensors in place. Work on a "
                "copy: t.clone()."
            )
        for _, was in before:
            if isinstance(was, bytearray):
                self._spare.setdefault(len(was), []).append(was)
        if not trusted:
            self._refuse([*rewritten, *replaced, *(t for t in moving if id(t) in changed)], strange, self.ran)
        for module in self._modules:
            if module.training:  # the next batch is measured in eval mode too
                module.training = False
        return made

    def _now(self) -> _Places:
        """Return what stands where in the network now: what did at the last call, unless something has changed."""
        sharded = self.found is not None and self.found.reach.sharded
        if self._places is None or sharded or not self._places.stand():
            self._places = _Places(self._modules, self._where, sharded)
            self._weights = list((self._places.parameters | {id(t): t for t in self._plain}).values())
        return self._places

    def _refuse(self, changed: Sequence[Tensor], strange: bool, ran: bool) -> None:
        """Complain of a change, unless it may be the network's own doing: it ran, and is known for it.

        Where it ran, parts that are new may be its own, and so may be changes of plain tensors without gradients: they
        may be statistics or states, which a pass in training mode moves.
        """
        if not changed and not strange:
            return
        again = {id(d[n]) for d, was in self._first for n in was if d.get(n) is not was[n] and n in d}
        own = self._restless | again  # written, and made anew, by the passes that were measured
        if (strange and not ran) or any(not ran or (_trains(t) and id(t) not in own) for t in changed):
            raise CreditError(CHANGED)

    @property
    def _lasts(self) -> bool:
        """Whether nothing but the credit may write to weights between two calls: one copy of them lasts."""
        return self.alone and not self._restless

    def _keep(self, weights: Sequence[Tensor]) -> Kept:
        """Return the copy of the weights that this call is held against."""
        self._calls += 1
        steady = [t for t in weights if id(t) not in self._restless] if self._restless else weights
        if self._kept is None or not self._lasts or not (self._kept_of is weights or self._kept.is_of(steady)):
            found = self.found.values.some(steady) if self._lasts and self.found is not None else None
            self._kept = found or Kept(steady)
        self._kept_of = weights
        return self._kept

    def finish(self, put_back_only: bool = False) -> None:
        """Put back weights that were written past the version counter at the end of a session, and complain."""
        kept, self._kept = self._kept, None
        self._spare.clear()
        if kept is not None and self._lasts:
            changed = kept.put_back()
            if not put_back_only:
                self._refuse(changed, False, self._ever_ran)

    def _refuse_stale(self, trace: Trace, credits: tuple[Tensor, ...]) -> None:
        """Refuse two batches with the same per-sample credit: it was recorded once, on another batch."""
        if trace.index > 1:
            return  # what was recorded once shows in the first two batches
        ours = torch.stack([fingerprints(a) for a in credits])
        # A rule may see labels only (target projection): two batches with the same labels may get the same credit.
        before, self._previous = self._previous, (ours, trace.labels)
        if before is None or before[0].shape != ours.shape or torch.equal(before[1], trace.labels):
            return
        same, varies = (before[0] == ours).all(1), (ours != ours[:, :1]).any(1)
        if bool((same & varies).any()):
            raise CreditError(
                "Expected a credit computed from the trace it is given, but the same credit came back for two "
                "different batches: it was taken on another batch. Compute it inside credit(trace)."
            )


def _trains(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) or tensor.requires_grad


def _at(container: Any, key: Any) -> Any:
    try:
        return container[key]
    except LookupError:
        return None


def _held(books: Sequence[tuple[dict[str, Any], Any]]) -> list[list[Any]]:
    """Return which names and objects stand in these dicts now, as lists that are compared at once: books are many."""
    now = [book for book, _ in books]
    return [list(map(len, now)), list(chain(*now)), list(map(id, chain.from_iterable(map(dict.values, now))))]


class _Places:
    """Which tensors and modules stand where in a network, to see what was put in their place and to undo it."""

    def __init__(self, modules: Sequence[nn.Module], where: Sequence[tuple[Any, Any, Tensor]], sharded: bool) -> None:
        # A sharded network changes its parameters for gathered ones and back by itself.
        self._modules, self._names = modules, ("_buffers", "_modules") if sharded else REGISTERED
        self._all = self._registered()
        self._books = [(book, dict(book)) for book in self._all if isinstance(book, dict)]
        self._held = _held(self._books)
        self._volatile = [(m._non_persistent_buffers_set, set(m._non_persistent_buffers_set)) for m in modules]
        self._where = where
        self._plain = [(at, key, t) for at, key, t in where if _at(at, key) is t]  # the network may have changed them
        self.parameters = {id(p): p for m in modules for _, p in m._parameters.items() if p is not None}
        self.buffers = [b for m in modules for _, b in m._buffers.items() if b is not None]

    def _registered(self) -> list[Any]:
        return list(chain.from_iterable(map(attrgetter(*self._names), self._modules)))

    def stand(self) -> bool:
        """Return whether all stands where it stood when this was made."""
        return (
            all(map(is_, self._registered(), self._all))
            and _held(self._books) == self._held
            and all(book == was for book, was in self._volatile)
            and len(self._plain) == len(self._where)
            and all(_at(at, key) is t for at, key, t in self._plain)
        )

    def put_back(self) -> tuple[list[Tensor], bool]:
        """Put them back; return the weights that others of another value stood for, and whether parts were new."""
        replaced: list[Tensor] = []
        strange = False
        for book, was in self._books if _held(self._books) != self._held else ():
            if is_same(book, was):
                continue
            for name in book.keys() | was.keys():
                old, new = was.get(name), book.get(name)
                if new is old:
                    continue
                if isinstance(old, nn.Parameter):
                    replaced += [old] if new is None or differ(old, new) else []
                else:
                    strange = strange or isinstance(new if old is None else old, (nn.Module, nn.Parameter))
            put_dict(book, was)
        for book, was in self._volatile:
            if book:
                book.intersection_update(was)
        for at, key, old in self._plain:
            new = _at(at, key)
            if new is not old:
                replaced += [old] if not isinstance(new, Tensor) or differ(old, new) else []
                at[key] = old
        return replaced, strange
