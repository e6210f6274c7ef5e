"""What is odd about a probe set or a loss, so that numbers mislead: said beside them, they change no number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf, isfinite, sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

from walkback.errors import WalkbackError
from walkback.measures.formulas import PUBLISHED_BATCH
from walkback.measures.measurements import Found
from walkback.measures.sums import REPEATED
from walkback.network.anatomy import Anatomy, Layers
from walkback.network.loss import cross_entropy
from walkback.notes import Note
from walkback.tracing.session import Tracer
from walkback.tracing.trace import Trace

ENOUGH = 8 * PUBLISHED_BATCH  # samples: the protocol's 8 batches of 128
SORTED = 6.0  # standard deviations of χ² between groups of samples and their labels
AT_ONCE = 8  # groups that are counted at once: many batches take hardly longer than one
NUMBERS = 2**13  # logits that wait until they are looked at
SATURATED = 100.0  # mean span of the logits: e^-100 is zero even in float64's probabilities


class Witness:
    """Looks on while batches are measured, and tells afterwards what is odd about them.

    Args:
        tracer: of the measurement; None where there is no network.
        custom_loss: is the loss the user's own?
        given: the anatomy that the user passed, or None.

    >>> import walkback as wb
    >>> "probe_accuracy" in wb.measure(wb.selftest.healthy(), wb.selftest.batches(8)).conditions
    True
    """

    def __init__(self, tracer: Tracer | None, custom_loss: bool, given: object) -> None:
        self._tracer, self._custom_loss, self._given = tracer, custom_loss, given
        self._classes = ClassCounts()
        self._right = self._samples = 0
        self._span = 0.0
        self._kinds: int | None = None
        self._waiting: list[tuple[Tensor, Tensor]] = []  # logits and labels of batches that are not looked at yet
        self._losses: list[tuple[Tensor, Tensor] | None] = []

    @torch.no_grad()
    def update(self, trace: Trace) -> None:
        """Look at one batch."""
        if self._custom_loss:
            self._losses.append(_beside_cross_entropy(trace))
        logits, labels = trace.logits, trace.labels
        self._samples += len(labels)
        if self._waiting and not (_alike(self._waiting[-1][0], logits) and _alike(self._waiting[-1][1], labels)):
            self._look_at_waiting()
        self._waiting.append((logits.clone(), labels.clone()))  # either may be written later
        if sum(of_batch.numel() for of_batch, _ in self._waiting) >= NUMBERS:
            self._look_at_waiting()

    def _look_at_waiting(self) -> None:
        """Look at several batches at once: it takes hardly longer than one."""
        if not self._waiting:
            return
        logits, labels = (torch.cat(parts) for parts in zip(*self._waiting))
        self._waiting.clear()
        if logits.shape[-1]:  # arrays may come without logits
            low, high = logits.aminmax(dim=-1)
            self._span += float((high.float() - low.float()).mean()) * len(labels)  # float32: MPS has no float64
        classes = _classes(logits, labels, self._custom_loss)
        if classes is not None:
            self._kinds = logits.shape[1]
            small = next(t for t in (torch.uint8, torch.int16, torch.int32) if self._kinds - 1 <= torch.iinfo(t).max)
            self._classes.add(classes.to("cpu", small))  # from a device a byte of each, or two
            self._right += int((logits.argmax(1) == classes).sum())

    @torch.no_grad()
    def compute(self, found: Found) -> None:
        """Say what is odd, and how many samples the network gets right; None for tokens and other tasks."""
        self._look_at_waiting()
        classified = self._classes.samples == self._samples
        found.conditions["probe_accuracy"] = self._right / self._samples if classified else None
        found.conditions["classes"] = self._kinds if classified else None
        batches, distinct = found.conditions["batches"], found.conditions["distinct_samples"]
        share, span = 1 - distinct / self._samples, self._span / self._samples
        # The published floor of D2 is in units of cross-entropy.
        factor = _cross_entropies(self._losses) if self._custom_loss else 1.0
        if self._samples < ENOUGH:
            values = {"samples": self._samples, "batches": batches, "batch_size": PUBLISHED_BATCH}
            found.notes.append(Note("few-samples", None, values))
        if share > REPEATED:
            found.notes.append(Note("repeated-samples", None, {"share": share}))
        found.notes += [] if not classified else filter(None, [self._classes.note()])
        if factor is None:
            found.notes.append(Note("loss-not-cross-entropy"))
        elif abs(factor - 1) >= 1e-3:
            found.notes.append(Note("loss-scaled", None, {"factor": factor}))
        if factor is not None and SATURATED < span < inf:  # what is not finite is a finding of its own
            found.notes.append(Note("saturated", None, {"span": span}))
        found.notes += filter(None, [_left_out(self._tracer, self._given)])


def _alike(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors can stand one behind the other."""
    return (one.shape[1:], one.dtype, one.device) == (other.shape[1:], other.dtype, other.device)


def _classes(logits: Tensor, labels: Tensor, custom_loss: bool) -> Tensor | None:
    """Return (B,) one class per sample; None where labels are something else: of tokens, several, numbers."""
    if logits.ndim != 2 or logits.shape[1] < 2:
        return None
    if labels.is_floating_point():
        return labels.argmax(1) if labels.shape == logits.shape and not custom_loss else None
    fits = labels.shape == logits.shape[:1] and labels.dtype != torch.bool
    if not fits:
        return None
    least, most = labels.aminmax()
    return labels if int(least) >= 0 and int(most) < logits.shape[1] else None


class ClassCounts:
    """Counts classes in groups of consecutive samples as they come: it keeps numbers of classes, not of samples."""

    def __init__(self, group: int = PUBLISHED_BATCH) -> None:
        self.samples = self.groups = 0
        self._group = group
        self._left = torch.empty(0, dtype=torch.int64)  # samples that are not counted yet
        self._sums = torch.zeros(2, 0, dtype=torch.int64)  # by class over groups: how often it is there, and squared
        self._kinds: Counter[int] = Counter()  # how many groups have how many classes

    def add(self, labels: Tensor) -> None:
        """Take (B,) classes."""
        self.samples += len(labels)
        self._left = torch.cat([self._left, labels.long().cpu()])
        if len(self._left) >= AT_ONCE * self._group:
            self._count()

    def _count(self) -> None:
        groups = len(self._left) // self._group
        labels, self._left = self._left[: groups * self._group], self._left[groups * self._group :]
        if not groups:
            return
        classes = 1 + int(labels.max())
        cells, counts = (torch.arange(groups).repeat_interleave(self._group) * classes + labels).unique(
            return_counts=True
        )
        more = max(0, classes - self._sums.shape[1])
        self._sums = F.pad(self._sums, (0, more)).index_add(1, cells % classes, torch.stack([counts, counts**2]))
        self._kinds.update((cells // classes).bincount(minlength=groups).tolist())
        self.groups += groups

    def note(self) -> Note | None:
        """Say whether groups have other labels than the whole: a χ² test of independence, see `class_sorted`."""
        self._count()
        often, squares = self._sums[:, self._sums[0] > 0].double()
        kinds = torch.cat([self._sums[0].nonzero().flatten(), self._left]).unique()
        if self.samples >= self._group and len(kinds) == 1:
            return Note("one-class", None, {"samples": self.samples, "label": int(kinds[0])})
        freedom = (self.groups - 1) * (len(often) - 1)
        if self.groups < 2 or not freedom:
            return None
        # Σ (seen − expected)²/expected over groups and classes, where expected is how often a class is there per group.
        ratio = float((squares * self.groups / often - often).sum()) / freedom
        spread = 2 / (9 * freedom)
        if (ratio ** (1 / 3) - (1 - spread)) / sqrt(spread) < SORTED:
            return None
        typical = sorted(self._kinds.elements())[(self.groups - 1) // 2]
        return Note("sorted-classes", None, {"group": self._group, "typical": typical, "classes": len(often)})


def class_sorted(labels: Tensor, group: int = PUBLISHED_BATCH) -> Note | None:
    """Say whether consecutive groups of samples have other labels than the whole, as sorted ones have.

    A χ² test of independence of group and label; Wilson and Hilferty's cube root makes it normal.

    Args:
        labels: (N,) classes in the order they were measured.
        group: samples whose gradients are averaged together for direction stability.

    >>> class_sorted(torch.arange(1024) % 10) is None
    True
    >>> class_sorted(torch.arange(1024) // 128).code
    'sorted-classes'
    """
    counts = ClassCounts(group)
    for part in labels.split(AT_ONCE * group):
        counts.add(part)
    return counts.note()


def _beside_cross_entropy(trace: Trace) -> tuple[Tensor, Tensor] | None:
    """Return (losses, cross-entropies) of a batch, one pair where the loss is a mean; None without a cross-entropy."""
    try:
        usual = cross_entropy(trace.logits, trace.labels).cpu().double()
    except (WalkbackError, RuntimeError):  # no classification: nothing to compare with
        return None
    ours = trace.losses.cpu().double()
    return (ours[:1], usual.mean()[None]) if bool((ours == ours[0]).all()) else (ours, usual)


def _cross_entropies(pairs: Sequence[tuple[Tensor, Tensor] | None]) -> float | None:
    """Return how many times cross-entropy a loss of the user's own is; None where it is something else."""
    known = [pair for pair in pairs if pair is not None]
    if not known or len(known) < len(pairs):
        return None
    ours, usual = (torch.cat(side) for side in zip(*known))
    factor = float(ours.sum() / usual.sum())
    fits = isfinite(factor) and float((ours - factor * usual).abs().max()) <= 1e-4 * float(ours.abs().max())
    return factor if fits else None


def _left_out(tracer: Tracer | None, given: object) -> Note | None:
    if given is None or tracer is None or isinstance(tracer.anatomy, Layers):
        return None
    try:
        whole = Anatomy.of(tracer.model).blocks
    except WalkbackError:
        return None
    named = {id(block) for block in tracer.blocks}
    if len(named) < len(whole) and named <= {id(block) for block in whole}:
        return Note("blocks-left-out", None, {"named": len(named), "of": len(whole)})
    return None
