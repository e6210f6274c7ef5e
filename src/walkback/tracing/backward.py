"""Is the reference the derivative of the loss? Asked of the network itself, by finite differences.

A network whose own backward pass is altered (custom autograd Functions, backward hooks, straight-through tricks) makes
`torch.autograd.grad` return something else than ∂loss/∂h_l, without a word. A step from h_l must change the logits z by
what the reference says: ⟨g_l, step⟩ = ⟨e, change of z⟩, with e = ∂loss/∂z taken where g_l was.

Logits are asked and not the loss, which rounds to 0 on a network that is right about its training data: a change of
such a loss can't be read, that of the logits can. The loss is asked apart from the network, see `check_loss`.

Where the network has a kink (ReLU at exactly 0, a max pool over equal values), autograd returns one of several values,
and no finite difference says which: f = relu(a) − relu(b) at a = b = 0 has the slopes 1 and 0.9 to both sides along
(1, −0.9), autograd's is 0. A reference that disagrees is therefore asked once more beside the batch, where nothing is
tied.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor, nn

from walkback.network.batch import Inputs, mapped
from walkback.network.values import buffers_of, has_float64, no_autocast, parameters_of, widened
from walkback.tracing.backward_answer import BackwardCheck, Labels, Untold
from walkback.tracing.backward_loss import change_of_losses, check_loss, loss_slope, other_labels
from walkback.tracing.differences import (
    APART,
    FAINT,
    FINE,
    LADDERS,
    ROWS,
    Change,
    Reading,
    Rung,
    narrowest_type,
    norms,
    nudges,
    read,
    type_word,
)
from walkback.tracing.rerun import Deltas, double_weights, is_sharded, moved
from walkback.tracing.session import Tracer
from walkback.tracing.trace import Trace

SAMPLES = 32  # traced once more where the pass itself is too narrow to be checked
ROUNDED = 5e-2  # how far float32 may be off where float64 agrees
ALONE = 1e-3  # and where float64 can't be asked
COPY_LIMIT = 2**28  # bytes a float64 copy of the weights may take; larger networks are checked in float32


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
    low = ", ".join(sorted(type_word(d) for d in native - set(LADDERS)))
    narrow = "under autocast" if torch.is_autocast_enabled(device.type) else f"in {low}" if low else ""
    size = 8 * sum(t.numel() for t in (*parameters_of(model), *buffers_of(model)))
    copies = has_float64(device) and size <= COPY_LIMIT and not is_sharded(model)
    dtypes = [torch.float64] if torch.float64 in native or copies else []
    if torch.float64 not in native and (not narrow or all(p.dtype == torch.float32 for p in parameters_of(model))):
        dtypes.append(torch.float32)
    cause, what = "no-copy", _no_copy(device, model, size)
    for dtype in dtypes:
        try:
            with no_autocast(device):
                return _Check(tracer, trace, dtype, bool(narrow)).answer()
        except Untold as untold:
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
        """Return the trace to be checked, with the logits that its gradients were taken at."""
        point = trace
        if self.narrow:
            loudest = norms(trace.grads[-1]).nan_to_num(0.0).argsort(descending=True, stable=True)[:SAMPLES]
            point = self._trace(*_rows(trace.inputs, trace.labels, loudest), {})
        elif self.tracer.reference == "twin":
            # It may round its logits otherwise, which of a loss near 0 changes the whole gradient.
            point = replace(trace, logits=self._trace(trace.inputs, trace.labels, {}).logits)
        loudest = _loudest(point)
        if loudest <= FAINT:
            other = other_labels(point.labels, point.logits, self.tracer.has_custom_loss)
            if other is not None:
                there = self._trace(point.inputs, other, {})
                if loudest == 0 or _loudest(there) > FAINT:
                    point, self.labels = there, "permuted"
        return point

    def _trace(self, x: Inputs, y: Tensor, deltas: Deltas, wide: bool = False) -> Trace:
        """Return the pass that gives the reference on a batch, its sites moved, and `wide` in the type of the check."""
        source, weights = self.tracer.source, None
        if wide or self.narrow:
            weights = self.weights if source is self.tracer or not self.wider else double_weights(source.model)
            x, y = mapped(x, self._cast), self._cast(y)
            deltas = {site: self._cast(delta) for site, delta in deltas.items()}
        with torch.enable_grad(), moved(source, deltas, weights):
            point = source.again(x, y, weights)
        other = {t.dtype for t in (*point.states, *point.grads)} - {self.dtype}
        if other and (wide or self.narrow):
            raise TypeError(f"it computes in {type_word(other.pop())} whatever its weights are")
        return point

    def _beside(self, shift: Deltas, wide: bool = False) -> Trace:
        return self._trace(self.point.inputs, self.point.labels, shift, wide)

    def _cast(self, t: Tensor) -> Tensor:
        return t.to(self.dtype) if t.is_floating_point() else t

    # -- the network -----------------------------------------------------------------------------------

    def _moved(self, rows: Int[Tensor, " rows"], ways: Deltas, shift: Deltas) -> tuple[Inputs, Deltas]:
        """Return some samples, and what is added to their sites, in the type of the check."""
        x, _ = _rows(self.point.inputs, self.point.labels, rows)
        deltas = {site: self._cast(delta[rows]) for site, delta in shift.items()}
        deltas |= {site: deltas[site] + way if site in deltas else way for site, way in ways.items()}
        return mapped(x, self._cast), deltas

    def _logits(self, rows: Int[Tensor, " rows"], ways: Deltas, shift: Deltas) -> Tensor:
        return self.tracer.logits_at(*self._moved(rows, ways, shift), self.weights)

    def _read(self, point: Trace, shift: Deltas, ladder: Sequence[Rung], by_loss: bool = False) -> Reading:
        """Return what the probes of a point say. On the batch itself (no shift) kinks are left at once."""

        def narrowest(rows: Tensor) -> torch.dtype:
            x, deltas = self._moved(rows, {}, shift)
            return narrowest_type(lambda: self.tracer.logits_at(x, deltas, self.weights), self.dtype)

        def run(rows: Tensor, ways: Deltas) -> Tensor:
            if not by_loss:
                return self._logits(rows, ways, shift)
            x, deltas = self._moved(rows, ways, shift)
            return self.tracer.replay(x, self._cast(point.labels[rows]), deltas, self.weights)

        change = change_of_losses(point) if by_loss else self._change(point, shift)
        return read(run, change, point, self.dtype, ladder, narrowest, through_kinks=bool(shift))

    def _change(self, point: Trace, shift: Deltas) -> Change:
        """Return ⟨e, change of the logits⟩ per row."""
        batch, slope = len(point.labels), loss_slope(self.tracer.source, point.logits, point.labels)
        sample_axis: list[int] = []

        def change(logits: Tensor, before: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            if not sample_axis:
                sample_axis.append(self._axis(point.logits, before, rows, shift))
            e = widened(_split(slope, sample_axis[0], batch)[rows])
            old, new = (widened(_split(z, sample_axis[0], len(rows))) for z in (before, logits))
            return (e * (new - old)).sum(1), (e * new).abs().sum(1)

        return change

    def _axis(self, whole: Tensor, few: Tensor, rows: Tensor, shift: Deltas) -> int:
        """Return where the samples are in the logits; raise an error where these are others than within the batch."""
        batch = len(self.point.labels)
        axes = _axes(whole, few, batch, len(rows))
        if len(axes) > 1 and batch == len(rows) > 1:
            with suppress(Exception):  # some networks take no other batch
                axes = _axes(whole, self._logits(rows[1:], {}, shift), batch, batch - 1)
        for axis in axes:
            if _close(_split(whole, axis, batch)[rows], _split(few, axis, len(rows)), 1e-2):
                return axis
        if not axes:
            raise Untold("no-axis")
        again = self._logits(rows, {}, shift)
        raise Untold("coupled" if torch.allclose(again, few, equal_nan=True) else "random")

    def _refuse_coupled(self, shift: Deltas, limit: float) -> None:
        """Refuse samples that do not get the very logits that more of them get together, before anyone is accused."""
        rows = torch.arange(min(len(self.point.labels), ROWS), device=self.point.labels.device)
        half = rows[: (len(rows) + 1) // 2]
        more, few = self._logits(rows, {}, shift), self._logits(half, {}, shift)
        axes = _axes(more, few, len(rows), len(half))
        if not any(_close(_split(more, a, len(rows))[half], _split(few, a, len(half)), limit / 10) for a in axes):
            raise Untold("coupled")

    # -- the answer ------------------------------------------------------------------------------------

    def answer(self) -> BackwardCheck:
        """Return the answer; raise Untold where it can't be told."""
        of_loss = check_loss(self.tracer, self.point, self.dtype)
        if of_loss is not None:
            return self._check_of(of_loss, "loss")
        here = self._read(self.point, {}, FINE[self.dtype])
        if here.answer == "agrees":
            return self._check_of(here)
        shift = nudges(self.point.states, APART[self.dtype])
        point = self._beside(shift)
        beside = self._certain(point, shift)
        if beside.answer == "agrees":
            if here.answer == "altered" and not here.bent:
                again = self._trace(self.point.inputs, self.point.labels, {})
                off = [float(widened(a - g).norm() / widened(g).norm()) for a, g in zip(again.grads, self.point.grads)]
                same = max(off) < here.error / 10
                raise Untold("tie" if same else "unsteady", what=here.error)
            return self._check_of(beside)
        beside = self._confirmed(beside, point, shift)
        return self._check_of(here if here.answer == beside.answer else beside)

    def _certain(self, point: Trace, shift: Deltas, by_loss: bool = False) -> Reading:
        reading = self._read(point, shift, LADDERS[self.dtype], by_loss)
        if reading.answer == "unread":
            raise Untold(reading.cause, **({"what": type_word(reading.narrowest)} if reading.narrowest else {}))
        return reading

    def _confirmed(self, beside: Reading, point: Trace, shift: Deltas) -> Reading:
        """Return an alteration, unless coupled samples, a loss with other inputs or rounding look like one."""
        self._refuse_coupled(shift, beside.limit)
        if self._reads_more(shift):
            if not self.tracer.per_sample:
                raise Untold("side-input")
            return self._certain(self._beside(shift), shift, by_loss=True)
        far = self._read(point, shift, LADDERS[self.dtype][-1:])
        off = {probe: error for probe, error in beside.errors.items() if error > far.limit}
        gone = [probe for probe, error in off.items() if far.errors.get(probe, error) < error / 2]
        if 2 * len(gone) > len(off):
            raise Untold("steps", what=beside.error)
        return self._unless_rounded(beside, shift) if self.wider and not self.narrow else beside

    def _unless_rounded(self, beside: Reading, shift: Deltas) -> Reading:
        """Return an alteration, unless the backward pass is right in float64 and only rounds in float32."""
        try:
            wide = self._certain(self._beside(shift, wide=True), shift)
        except Untold:
            raise
        except Exception:  # a loss that takes one type only
            right = beside.error <= ALONE
            return replace(beside, answer="agrees", limit=ALONE, sites=()) if right else beside
        if wide.answer == "altered":
            return beside
        if beside.error > ROUNDED:
            raise Untold("dtype", what=beside.error)
        return replace(beside, answer="agrees", limit=ROUNDED, sites=())

    def _reads_more(self, shift: Deltas) -> bool:
        """Return whether the same loss of the same logits changes with what the network did last: an auxiliary term."""
        if not self.tracer.has_custom_loss:
            return False
        self._logits(torch.arange(len(self.point.labels), device=self.point.labels.device), {}, shift)
        try:
            losses = self.tracer.losses(self.point.logits, self.point.labels)
        except Exception:
            return True
        return not torch.allclose(losses, self.point.losses, rtol=1e-4, atol=0, equal_nan=True)

    def _check_of(self, reading: Reading, what: str = "network") -> BackwardCheck:
        altered = reading.answer == "altered"
        return BackwardCheck(
            "altered" if altered else "agrees",
            what if altered else "",
            reading.error,
            reading.limit,
            reading.sites,
            reading.samples,
            self.labels,
            type_word(self.dtype),
        )


# -- small helpers -----------------------------------------------------------------------------------------


def _loudest(point: Trace) -> float:
    return max(float(norms(g).max()) for g in point.grads)


def _rows(x: Inputs, y: Tensor, rows: Tensor) -> tuple[Inputs, Tensor]:
    batch = len(y)
    return mapped(x, lambda t: t[rows] if t.ndim and t.shape[0] == batch else t), y[rows]


def _axes(whole: Tensor, few: Tensor, batch: int, rows: int) -> list[int]:
    """Return the axes that may be the samples', one or several numbers each, given outputs for more and for few."""
    return [
        axis
        for axis, size in enumerate(whole.shape)
        if size % batch == 0 and few.shape == (*whole.shape[:axis], size // batch * rows, *whole.shape[axis + 1 :])
    ]


def _split(t: Tensor, axis: int, rows: int) -> Tensor:
    return t.movedim(axis, 0).reshape(rows, -1)


def _close(a: Tensor, b: Tensor, share: float) -> bool:
    """Return whether rows of numbers are the same, up to a share of the largest in each."""
    a, b = widened(a), widened(b)
    same = (a == b) | (a.isnan() & b.isnan())
    return bool((same | ((a - b).abs() <= share * a.abs().amax(1, keepdim=True))).all())
