"""Is the reference the derivative of the loss? Asked of the network itself, by finite differences.

A network whose own backward pass is altered (custom autograd Functions, backward hooks, straight-through tricks) makes
`torch.autograd.grad` return something else than ∂loss/∂h_l, without a word. A step from h_l must change the logits z by
what the reference says: ⟨g_l, step⟩ = ⟨e, change of z⟩, with e = ∂loss/∂z taken where g_l was.

Logits are asked and not the loss, which rounds to 0 on a network that is right about its training data: a change of
such a loss can't be read, that of the logits can. The loss is asked apart from the network, see `_check_loss`.

Where the network has a kink (ReLU at exactly 0, a max pool over equal values), autograd returns one of several values,
and no finite difference says which: f = relu(a) − relu(b) at a = b = 0 has the slopes 1 and 0.9 to both sides along
(1, −0.9), autograd's is 0. A reference that disagrees is therefore asked once more beside the batch, where nothing is
tied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor, nn

from walkback.measures.probes import double_weights, is_sharded
from walkback.network.batch import Inputs, mapped
from walkback.network.values import buffers_of, has_float64, no_autocast, parameters_of, widened
from walkback.tracing.derived import Spy, Tape, has_custom_backward
from walkback.tracing.differences import (
    NUMBERS,
    ROWS,
    SEED,
    Change,
    Reading,
    Rung,
    direction,
    judged,
    narrowest_type,
    norms,
    probed,
    read,
)
from walkback.tracing.session import Trace, Tracer

Answer = Literal["agrees", "altered", "cannot-tell"]
Labels = Literal["given", "permuted"]
Deltas = Mapping[int, Tensor]
Weights = dict[str, Tensor] | None

LOSS_PROBES = 8  # directions in which a user's loss is asked
SAMPLES = 32  # traced once more where the pass itself is too narrow to be checked
# (limit, step), the next where rounding drowns the one before. The step is a share of ‖h_l‖. In float64 the rounding of
# the reference (float32) is what is left; in float32, that of the logits. The coarse ones are for layers that round.
FINE: dict[torch.dtype, tuple[Rung, ...]] = {
    torch.float64: ((1e-4, 1e-7), (1e-3, 1e-4)),
    torch.float32: ((1e-2, 1e-3),),
}
LADDERS: dict[torch.dtype, tuple[Rung, ...]] = {
    torch.float64: (*FINE[torch.float64], (1e-2, 1e-3), (5e-2, 1e-2)),
    torch.float32: (*FINE[torch.float32], (5e-2, 1e-3), (5e-2, 1e-2)),
}
ROUNDED = 5e-2  # how far float32 may be off where float64 agrees
ALONE = 1e-3  # and where float64 can't be asked
APART = {torch.float64: 1e-2, torch.float32: 1e-1}  # how far beside the batch nothing is tied, a share of ‖h_l‖
COPY_LIMIT = 2**28  # bytes a float64 copy of the weights may take; larger networks are checked in float32

# Every cause of "cannot-tell": what was found, and what to do.
_WIDER = "Measure a float32 copy outside autocast"
CAUSES: dict[str, tuple[str, str]] = {
    "not-needed": (
        "not needed: the forward pass has no custom autograd Function, no hook, no cut in its graph, and no numbers "
        "that leave torch",
        "",
    ),
    "no-copy": ("{needs}its weights can't be copied to float64: {what}", _WIDER),
    "not-run": (
        "{needs}the network can't be run again from its sites: {what}",
        "Measure a copy in float32, outside autocast, that takes any number of samples",
    ),
    "random": ("the forward pass is random: the same samples get other logits when they are run again", "Seed it"),
    "coupled": (
        "some samples alone get other logits than within their batch: the forward pass couples its samples",
        "Measure the network in a mode that keeps its samples apart",
    ),
    "no-axis": ("what the network returns has no axis of samples", "Return logits with the samples first"),
    "nonfinite": ("the network or its gradient is not finite", "Measure where numbers are finite"),
    "flat": ("no state changes the loss: every gradient is zero", "Measure other samples"),
    "rounding": (
        "finite differences are too noisy here: rounding hides every change of the logits",
        "Measure a float64 copy",
    ),
    "kinks": (
        "finite differences are too noisy here: the slopes to both sides differ, and beside the batch too",
        "Measure other samples",
    ),
    "casts": (
        "the network rounds to {what} inside, where a small step changes nothing",
        "Measure a copy that computes in one type",
    ),
    "steps": (
        "finite differences disagree with each other: small steps say that the reference is off by {what:.2%}, large "
        "ones that it is right, as they do where a layer rounds unseen",
        "Measure a copy that computes in torch",
    ),
    "tie": (
        "the reference is off by {what:.2%} on the batch and right beside it: autograd chose a value where states are "
        "exactly equal, or exactly zero",
        "Measure other samples",
    ),
    "unsteady": (
        "the reference is off by {what:.2%}, and right when it is taken again: the backward pass changes from call to "
        "call",
        "Make it repeatable",
    ),
    "dtype": (
        "the backward pass is right in float64 and off by {what:.2%} in the network's own type",
        "Measure a float64 copy",
    ),
    "loss": (
        "the loss has something that can alter its gradient, and no change of it can be read",
        "Write the loss in plain torch operations",
    ),
    "side-input": (
        "the loss reads more than the logits, and returns a mean",
        "Return one loss per sample, or leave out what it reads beside the logits",
    ),
}


@dataclass(frozen=True)
class BackwardCheck:
    """What finite differences say of the reference.

    Args:
        answer: "agrees", "altered" or "cannot-tell".
        cause: of "altered", what is: "network" or "loss"; of "cannot-tell", a key of CAUSES; else "".
        error: |change − what the reference predicts| in units of the change to be expected, the largest but one of all
            probes. None: could not be told.
        limit: above this the reference is not the derivative.
        sites: the sites that disagree, where the check failed.
        samples: how many samples were read.
        labels: "given", or "permuted" where every gradient of the given ones is zero.
        dtype: what the finite differences were computed in.
        values: what the sentence of `cause` names.
    """

    answer: Answer
    cause: str = ""
    error: float | None = None
    limit: float = 0.0
    sites: tuple[int, ...] = ()
    samples: int = 0
    labels: Labels = "given"
    dtype: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def agrees(self) -> bool | None:
        """True, False, or None when it could not be told."""
        return {"agrees": True, "altered": False, "cannot-tell": None}[self.answer]

    @property
    def why(self) -> str:
        """The cause of "cannot-tell" as a sentence, without its full stop."""
        return CAUSES[self.cause][0].format(**self.values) if self.answer == "cannot-tell" else ""

    @property
    def remedy(self) -> str:
        """What to do where it can't be told, as a sentence without its full stop."""
        return CAUSES[self.cause][1] if self.answer == "cannot-tell" else ""


@torch.no_grad()
def check_backward(tracer: Tracer, trace: Trace) -> BackwardCheck:
    """Compare `trace.grads` with central differences of the network, on samples of an open tracer's trace.

    A probe is one sample, one site and one direction, partly along the reference (which shows a wrong length), partly
    random (which shows what the reference leaves out). Three forward passes of some 32 samples where all is well.
    Where not, the batch is traced once more with every site moved a little, and judged there.

    In half precision and under autocast the rounding of g_l would drown an answer: there 32 samples are traced once
    more in a wider type, and that is checked.

    >>> import walkback as wb
    >>> with wb.Tracer(wb.selftest.healthy()) as tracer:
    ...     check_backward(tracer, tracer.trace(*wb.selftest.batches(1)[0])).answer
    'agrees'
    """
    device, model = trace.losses.device, tracer.model
    native = {t.dtype for t in (*trace.states, *trace.grads)}
    low = ", ".join(sorted(_name(d) for d in native - set(LADDERS)))
    narrow = "under autocast" if torch.is_autocast_enabled(device.type) else f"in {low}" if low else ""
    size = 8 * sum(t.numel() for t in (*parameters_of(model), *buffers_of(model)))
    copies = has_float64(device) and size <= COPY_LIMIT and not is_sharded(model)
    dtypes = [torch.float64] if torch.float64 in native or copies else []
    if not narrow or all(p.dtype == torch.float32 for p in parameters_of(model)):
        dtypes.append(torch.float32)
    cause, what = "no-copy", _no_copy(device, model, size)
    for dtype in dtypes:
        try:
            with no_autocast(device):
                return _Check(tracer, trace, dtype, bool(narrow)).answer()
        except _UntoldError as untold:
            return BackwardCheck("cannot-tell", untold.cause, values=untold.values)
        # Whatever a network raises in another dtype, or on few samples: it is said.
        except Exception as error:
            cause, what = "not-run", (str(error).strip() or repr(error)).splitlines()[0]
    needs = f"finite differences need float32 or float64, but this pass runs {narrow}, and " if narrow else ""
    return BackwardCheck("cannot-tell", cause, values={"needs": needs, "what": what})


def _no_copy(device: torch.device, model: nn.Module, size: int) -> str:
    if not has_float64(device):
        return f"{device.type} has no float64"
    if is_sharded(model):
        return "that would gather a sharded network"
    return f"they would take {size / 2**20:.0f} MB, and the limit is {COPY_LIMIT / 2**20:.0f}"


class _UntoldError(Exception):
    """Why it can't be told, whatever the dtype."""

    def __init__(self, cause: str, **values: Any) -> None:
        super().__init__(cause)
        self.cause, self.values = cause, values


class _Check:
    """One check in one dtype: where the backward pass is asked, and how the readings become one answer."""

    def __init__(self, tracer: Tracer, trace: Trace, dtype: torch.dtype, narrow: bool) -> None:
        self.tracer, self.dtype, self.narrow = tracer, dtype, narrow
        self.wider = dtype == torch.float64 and any(h.dtype != dtype for h in trace.states)
        self.weights = double_weights(tracer.model) if self.wider else None  # of the finite differences
        self.labels: Labels = "given"
        self.point = self._first(trace)

    # -- where it is asked ---------------------------------------------------------------------------

    def _first(self, trace: Trace) -> Trace:
        """The trace to be checked, with the logits that its gradients were taken at."""
        point = trace
        if self.narrow:
            loudest = norms(trace.grads[-1]).nan_to_num(0.0).argsort(descending=True, stable=True)[:SAMPLES]
            point = self._trace(*_rows(trace.inputs, trace.labels, loudest), {})
        elif self.tracer.reference == "twin":
            # It may round its logits otherwise, which of a loss near 0 changes the whole gradient.
            point = replace(trace, logits=self._trace(trace.inputs, trace.labels, {}).logits)
        if not any(bool(g.any()) for g in point.grads):
            other = _other_labels(point.labels, point.logits, self.tracer.has_custom_loss)
            if other is not None:
                point, self.labels = self._trace(point.inputs, other, {}), "permuted"
        return point

    def _trace(self, x: Inputs, y: Tensor, moved: Deltas, wide: bool = False) -> Trace:
        """The pass that gives the reference on a batch, its sites moved, and `wide` in the type of the check."""
        source, weights = self.tracer.source, None
        if wide or self.narrow:
            weights = self.weights if source is self.tracer or not self.wider else double_weights(source.model)
            x, y = mapped(x, self._cast), self._cast(y)
            moved = {site: self._cast(delta) for site, delta in moved.items()}
        with torch.enable_grad(), source.moved(moved, weights):
            point = source.again(x, y, weights)
        other = {t.dtype for t in (*point.states, *point.grads)} - {self.dtype}
        if other and (wide or self.narrow):
            raise TypeError(f"it computes in {_name(other.pop())} whatever its weights are")
        return point

    def _beside(self, shift: Deltas, wide: bool = False) -> Trace:
        return self._trace(self.point.inputs, self.point.labels, shift, wide)

    def _cast(self, t: Tensor) -> Tensor:
        return t.to(self.dtype) if t.is_floating_point() else t

    # -- the network -----------------------------------------------------------------------------------

    def _moved(self, rows: Int[Tensor, " rows"], ways: Deltas, shift: Deltas) -> tuple[Inputs, Deltas]:
        """Some samples, and what is added to their sites, in the type of the check."""
        x, _ = _rows(self.point.inputs, self.point.labels, rows)
        deltas = {site: self._cast(delta[rows]) for site, delta in shift.items()}
        deltas |= {site: deltas[site] + way if site in deltas else way for site, way in ways.items()}
        return mapped(x, self._cast), deltas

    def _logits(self, rows: Int[Tensor, " rows"], ways: Deltas, shift: Deltas) -> Tensor:
        return self.tracer.logits_at(*self._moved(rows, ways, shift), self.weights)

    def _read(self, point: Trace, shift: Deltas, ladder: Sequence[Rung], by_loss: bool = False) -> Reading:
        """What the probes of a point say. On the batch itself (no shift) kinks are left at once."""

        def narrowest(rows: Tensor) -> torch.dtype:
            x, deltas = self._moved(rows, {}, shift)
            return narrowest_type(lambda: self.tracer.logits_at(x, deltas, self.weights), self.dtype)

        def run(rows: Tensor, ways: Deltas) -> Tensor:
            if not by_loss:
                return self._logits(rows, ways, shift)
            x, deltas = self._moved(rows, ways, shift)
            return self.tracer.replay(x, self._cast(point.labels[rows]), deltas, self.weights)

        change = _change_of_losses(point) if by_loss else self._change(point, shift)
        return read(run, change, point, self.dtype, ladder, narrowest, through_kinks=bool(shift))

    def _change(self, point: Trace, shift: Deltas) -> Change:
        """⟨e, change of the logits⟩ per row."""
        batch, slope = len(point.labels), _slope(self.tracer.source, point.logits, point.labels)
        found: list[int] = []  # the axis of samples

        def change(logits: Tensor, before: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            if not found:
                found.append(self._axis(point.logits, before, rows, shift))
            e = widened(_split(slope, found[0], batch)[rows])
            old, new = (widened(_split(z, found[0], len(rows))) for z in (before, logits))
            return (e * (new - old)).sum(1), (e * new).abs().sum(1)

        return change

    def _axis(self, whole: Tensor, few: Tensor, rows: Tensor, shift: Deltas) -> int:
        """Where the samples are in the logits; an error where these are others than within the batch."""
        batch = len(self.point.labels)
        axes = _axes(whole, few, batch, len(rows))
        if len(axes) > 1 and batch == len(rows) > 1:
            with suppress(Exception):  # some networks take no other batch
                axes = _axes(whole, self._logits(rows[1:], {}, shift), batch, batch - 1)
        for axis in axes:
            if _close(_split(whole, axis, batch)[rows], _split(few, axis, len(rows)), 1e-2):
                return axis
        if not axes:
            raise _UntoldError("no-axis")
        again = self._logits(rows, {}, shift)
        raise _UntoldError("coupled" if torch.allclose(again, few, equal_nan=True) else "random")

    def _refuse_coupled(self, shift: Deltas, limit: float) -> None:
        """Before anyone is accused: samples must get the very logits that more of them get together."""
        rows = torch.arange(min(len(self.point.labels), ROWS), device=self.point.labels.device)
        half = rows[: (len(rows) + 1) // 2]
        more, few = self._logits(rows, {}, shift), self._logits(half, {}, shift)
        axes = _axes(more, few, len(rows), len(half))
        if not any(_close(_split(more, a, len(rows))[half], _split(few, a, len(half)), limit / 10) for a in axes):
            raise _UntoldError("coupled")

    # -- the answer ------------------------------------------------------------------------------------

    def answer(self) -> BackwardCheck:
        """Return the answer; raise _UntoldError where it can't be told."""
        told = _check_loss(self.tracer, self.point, self.dtype)
        if told is not None:
            return self._said(told, "loss")
        here = self._read(self.point, {}, FINE[self.dtype])
        if here.answer == "agrees":
            return self._said(here)
        shift = _shift(self.point.states, APART[self.dtype])
        point = self._beside(shift)
        beside = self._told(point, shift)
        if beside.answer == "agrees":
            if here.answer == "altered" and not here.bent:
                again = self._trace(self.point.inputs, self.point.labels, {})
                off = [float(widened(a - g).norm() / widened(g).norm()) for a, g in zip(again.grads, self.point.grads)]
                same = max(off) < here.error / 10
                raise _UntoldError("tie" if same else "unsteady", what=here.error)
            return self._said(beside)
        beside = self._confirmed(beside, point, shift)
        return self._said(here if here.answer == beside.answer else beside)

    def _told(self, point: Trace, shift: Deltas, by_loss: bool = False) -> Reading:
        reading = self._read(point, shift, LADDERS[self.dtype], by_loss)
        if reading.answer == "unread":
            raise _UntoldError(reading.cause, **({"what": _name(reading.narrowest)} if reading.narrowest else {}))
        return reading

    def _confirmed(self, beside: Reading, point: Trace, shift: Deltas) -> Reading:
        """An alteration, unless coupled samples, a loss with other inputs or rounding look like one."""
        self._refuse_coupled(shift, beside.limit)
        if self._reads_more(shift):
            if not self.tracer.per_sample:
                raise _UntoldError("side-input")
            return self._told(self._beside(shift), shift, by_loss=True)
        far = self._read(point, shift, LADDERS[self.dtype][-1:])
        off = {probe: error for probe, error in beside.errors.items() if error > far.limit}
        gone = [probe for probe, error in off.items() if far.errors.get(probe, error) < error / 2]
        if 2 * len(gone) > len(off):
            raise _UntoldError("steps", what=beside.error)
        return self._unless_rounded(beside, shift) if self.wider and not self.narrow else beside

    def _unless_rounded(self, beside: Reading, shift: Deltas) -> Reading:
        """An alteration, unless the backward pass is right in float64 and only rounds in float32."""
        try:
            wide = self._told(self._beside(shift, wide=True), shift)
        except _UntoldError:
            raise
        except Exception:  # a loss that takes one type only
            right = beside.error <= ALONE
            return replace(beside, answer="agrees", limit=ALONE, sites=()) if right else beside
        if wide.answer == "altered":
            return beside
        if beside.error > ROUNDED:
            raise _UntoldError("dtype", what=beside.error)
        return replace(beside, answer="agrees", limit=ROUNDED, sites=())

    def _reads_more(self, shift: Deltas) -> bool:
        """Does the same loss of the same logits change with what the network did last, say an auxiliary term?"""
        if not self.tracer.has_custom_loss:
            return False
        self._logits(torch.arange(len(self.point.labels), device=self.point.labels.device), {}, shift)
        try:
            losses = self.tracer.losses(self.point.logits, self.point.labels)
        except Exception:
            return True
        return not torch.allclose(losses, self.point.losses, rtol=1e-4, atol=0, equal_nan=True)

    def _said(self, reading: Reading, what: str = "network") -> BackwardCheck:
        altered = reading.answer == "altered"
        return BackwardCheck(
            "altered" if altered else "agrees",
            what if altered else "",
            reading.error,
            reading.limit,
            reading.sites,
            reading.samples,
            self.labels,
            _name(self.dtype),
        )


# -- the loss --------------------------------------------------------------------------------------------


def _slope(tracer: Tracer, logits: Tensor, labels: Tensor) -> Tensor:
    """∂loss/∂logits of a batch, taken as the reference is."""
    z = logits.detach().clone().requires_grad_()
    tape = Tape() if tracer.reference == "derived" else None
    with torch.enable_grad():
        with tape or nullcontext():
            losses = tracer.losses(z, labels)
        total = (losses if tape is None else tape.rerun()[0](losses)).sum()
        return torch.autograd.grad(total, z)[0]


def _change_of_losses(point: Trace) -> Change:
    largest = widened(point.logits.abs().amax())  # inside a log-softmax numbers as large as the logits cancel
    return lambda losses, before, rows: (losses - before, losses.abs() + largest)


def _check_loss(tracer: Tracer, point: Trace, dtype: torch.dtype) -> Reading | None:
    """What finite differences say of ∂loss/∂logits where the loss is the user's: None, or that it is altered."""
    if not tracer.has_custom_loss:
        return None
    sites = tuple(range(len(point.states)))
    for labels in (point.labels, _other_labels(point.labels, point.logits, True)):
        for kind in dict.fromkeys((dtype, point.logits.dtype)):
            if labels is None or kind not in LADDERS:
                continue
            try:
                reading = _read_loss(tracer.source, point.logits.to(kind), labels, kind)
            except Exception:  # a loss that takes one type only
                continue
            if reading.answer == "altered":
                return replace(reading, sites=sites, samples=len(labels))
            if reading.answer == "agrees":
                return None
    with Spy() as spy, torch.enable_grad():
        losses = tracer.losses(point.logits.detach().clone().requires_grad_(), point.labels)
    if spy.saw or has_custom_backward(losses):
        raise _UntoldError("loss")
    return None  # made of torch's own operations


def _read_loss(tracer: Tracer, logits: Tensor, labels: Tensor, dtype: torch.dtype) -> Reading:
    """What finite differences of the loss say of ∂loss/∂logits, beside the logits of a batch."""
    (noise,) = _shift([logits.reshape(1, -1)], APART[dtype]).values()
    z = logits + noise.view_as(logits)
    labels = labels.to(dtype) if labels.is_floating_point() else labels

    def total(z: Tensor) -> Tensor:
        return widened(tracer.losses(z, labels)).sum()

    slope, before = _slope(tracer, z, labels), total(z)
    size = torch.finfo(narrowest_type(lambda: total(z), dtype)).eps * (before.abs() + len(labels) * z.abs().amax())
    sites, rows = torch.zeros(LOSS_PROBES, dtype=torch.long), torch.arange(LOSS_PROBES)  # walkback: ignore[P14]
    reading = Reading("unread", "rounding")
    for limit, step in LADDERS[dtype]:
        generator = torch.Generator(logits.device).manual_seed(SEED)
        found: dict[str, list[Tensor]] = {name: [] for name in NUMBERS}
        for i in range(LOSS_PROBES):
            way, unit = direction(slope.reshape(1, -1), z.reshape(1, -1), i % 2 == 1, generator)
            up, down = (total(z + share * way.view_as(z)) - before for share in (step, -step))
            found["slope"].append((up - down) / (2 * step))
            found["predicted"].append((widened(slope.flatten()) * widened(way.flatten())).sum())
            found["bend"].append((up + down) / step)
            found["rounding"].append(size / step)
            found["unit"].append(unit[0])
            found["least"].append(torch.zeros_like(up))
        reading = judged(probed(**{name: torch.stack(values) for name, values in found.items()}), sites, rows, limit)
        if reading.answer != "unread":
            break
    return reading


def _other_labels(labels: Tensor, logits: Tensor, custom: bool) -> Tensor | None:
    """Labels that a loss must take, and that a network is wrong about: those of other samples of the batch.

    None where there are none. Is a backward pass the derivative of its forward pass, it is so for any labels.
    """
    if labels.ndim != 1 or labels.is_floating_point():
        other = labels.roll(1, 0)
    else:
        values, counts = labels.unique(return_counts=True)
        order = labels.argsort(stable=True)  # walkback: ignore[P14]
        other = torch.empty_like(labels)
        other[order] = labels[order.roll(int(counts.max()))]
        if len(values) == 1 and not custom and logits.ndim == 2:
            other = (labels + 1) % logits.shape[1]
    return None if torch.equal(other, labels) else other


# -- small helpers -----------------------------------------------------------------------------------------


def _rows(x: Inputs, y: Tensor, rows: Tensor) -> tuple[Inputs, Tensor]:
    batch = len(y)
    return mapped(x, lambda t: t[rows] if t.ndim and t.shape[0] == batch else t), y[rows]


def _shift(states: Sequence[Tensor], share: float) -> dict[int, Tensor]:
    """A small random move of every state, by which values that are exactly equal become different ones."""
    generator = torch.Generator(states[0].device).manual_seed(SEED + 1)
    moves: dict[int, Tensor] = {}
    for site, h in enumerate(states):
        lengths = norms(h)
        lengths = torch.where(lengths > 0, lengths, lengths.mean() if bool(lengths.any()) else 1.0)
        noise = torch.randn(h.shape, dtype=h.dtype, device=h.device, generator=generator)
        size = share / h[0].numel() ** 0.5
        moves[site] = (noise.flatten(1) * (size * lengths)[:, None]).view_as(h)
    return moves


def _axes(whole: Tensor, few: Tensor, batch: int, rows: int) -> list[int]:
    """The axes that may be that of the samples, one or several numbers each, in what comes out for more and for few."""
    return [
        axis
        for axis, size in enumerate(whole.shape)
        if size % batch == 0 and few.shape == (*whole.shape[:axis], size // batch * rows, *whole.shape[axis + 1 :])
    ]


def _split(t: Tensor, axis: int, rows: int) -> Tensor:
    return t.movedim(axis, 0).reshape(rows, -1)


def _close(a: Tensor, b: Tensor, share: float) -> bool:
    """Are rows of numbers the same, up to a share of the largest in each?"""
    a, b = widened(a), widened(b)
    same = (a == b) | (a.isnan() & b.isnan())
    return bool((same | ((a - b).abs() <= share * a.abs().amax(1, keepdim=True))).all())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
