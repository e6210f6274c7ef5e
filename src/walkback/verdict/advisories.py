"""What could make a verdict wrong, said beside it: notes on the probe, the loss, the claim. They change no number.

`Witness` looks on while batches are measured; `on_claim` looks at what is claimed of the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import inf, isfinite, sqrt
from typing import Any

import torch
from torch import Tensor

from walkback.errors import WalkbackError
from walkback.measures.accumulate import PUBLISHED_BATCH, Measurements, deep_sites
from walkback.network.anatomy import Anatomy
from walkback.network.loss import cross_entropy
from walkback.notes import Note, coded
from walkback.tracing.session import Trace, Tracer
from walkback.verdict.checks import Accuracy, DiagnosticThresholds, accuracies
from walkback.verdict.editions import Claim

ENOUGH = 8 * PUBLISHED_BATCH  # samples: the protocol's 8 batches of 128
REPEATED = 0.05  # share of samples that occur more than once
SORTED = 6.0  # standard deviations of χ² between groups of samples and their labels
APART = 5.0  # standard errors between the accuracy that is claimed and the one on the probe
NEARLY = 0.99  # cosine at every deep site from which a credit may as well be the gradient with noise
BETTER = 0.02  # by how much a mean cosine with a neighbouring site must at least exceed that with the own one
SATURATED = 100.0  # mean span of the logits: e^-100 is zero even in float64's probabilities


def class_sorted(labels: Tensor, group: int = PUBLISHED_BATCH) -> Note | None:
    """Whether consecutive groups of samples have other labels than the whole, as sorted ones have.

    A χ² test of independence of group and label; Wilson and Hilferty's cube root makes it normal.

    Args:
        labels: (N,) classes in the order they were measured.
        group: samples whose gradients are averaged together for direction stability.

    >>> class_sorted(torch.arange(1024) % 10) is None
    True
    >>> class_sorted(torch.arange(1024) // 128).code
    'sorted-classes'
    """
    if len(labels) and len(labels) >= group and len(labels.unique()) == 1:
        return Note("one-class", None, {"samples": len(labels), "label": int(labels[0])})
    _, classes = labels.unique(return_inverse=True)
    groups, kinds = len(labels) // group, int(classes.max()) + 1 if len(labels) else 0
    if groups < 2 or kinds < 2:
        return None
    cells = torch.arange(groups).repeat_interleave(group) * kinds + classes[: groups * group].cpu()
    seen = torch.bincount(cells, minlength=groups * kinds).view(groups, kinds).double()
    seen = seen[:, seen.sum(0) > 0]
    expected = seen.sum(0) / groups
    freedom = (groups - 1) * (seen.shape[1] - 1)
    if not freedom:
        return None
    ratio = float(((seen - expected) ** 2 / expected).sum()) / freedom
    spread = 2 / (9 * freedom)
    if (ratio ** (1 / 3) - (1 - spread)) / sqrt(spread) < SORTED:
        return None
    typical = int((seen > 0).sum(1).median())
    return Note("sorted-classes", None, {"group": group, "typical": typical, "classes": seen.shape[1]})


class Witness:
    """Looks on while batches are measured, and tells afterwards what is odd about them.

    >>> import walkback as wb
    >>> "probe_accuracy" in wb.measure(wb.selftest.healthy(), wb.selftest.batches(8)).conditions
    True
    """

    def __init__(self, custom_loss: bool) -> None:
        self._custom_loss = custom_loss
        self._labels: list[Tensor] = []
        self._right = self._samples = self._batches = 0
        self._span = 0.0
        self._kinds: int | None = None
        self._losses: list[tuple[Tensor, Tensor] | None] = []

    @torch.no_grad()
    def add(self, trace: Trace) -> None:
        """Look at one batch."""
        if self._custom_loss:
            self._losses.append(_beside_cross_entropy(trace))
        logits, labels = trace.logits, trace.labels
        self._batches = trace.index + 1
        self._samples += len(labels)
        span = (logits.amax(-1).float() - logits.amin(-1).float()).mean()  # float32: MPS has no float64
        self._span += float(span) * len(labels)
        classes = self._classes(logits, labels)
        if classes is not None:
            self._labels.append(classes.cpu())
            self._kinds = logits.shape[1]
            self._right += int((logits.argmax(1) == classes).sum())

    def _classes(self, logits: Tensor, labels: Tensor) -> Tensor | None:
        """(B,) one class per sample, where that is what the labels are: not for tokens, several labels, numbers."""
        if logits.ndim != 2 or logits.shape[1] < 2:
            return None
        if labels.is_floating_point():
            return labels.argmax(1) if labels.shape == logits.shape and not self._custom_loss else None
        fits = labels.shape == logits.shape[:1] and labels.dtype != torch.bool
        return labels if fits and int(labels.min()) >= 0 and int(labels.max()) < logits.shape[1] else None

    @property
    def classes(self) -> int | None:
        """How many there are; None for tokens and other tasks."""
        return self._kinds if self.accuracy is not None else None

    @property
    def accuracy(self) -> float | None:
        """Share of the samples whose class is the largest logit; None for tokens and other tasks."""
        return self._right / self._samples if sum(map(len, self._labels)) == self._samples else None

    def notes(self, tracer: Tracer, given: object, distinct: int) -> tuple[Note, ...]:
        """What to say, inside the session that measured.

        Args:
            tracer: of the measurement.
            given: the anatomy that the user passed, or None.
            distinct: samples that differ from each other.
        """
        factor = _cross_entropies(self._losses) if self._custom_loss else 1.0
        found = [
            _too_few(self._batches, self._samples),
            _repeated(self._samples, distinct),
            class_sorted(torch.cat(self._labels)) if self.accuracy is not None else None,
            _loss_units(factor),
            None if factor is None else _saturated(self._span / self._samples),
            _left_out(tracer, given),
        ]
        return tuple(note for note in found if note)


def _too_few(batches: int, samples: int) -> Note | None:
    if samples >= ENOUGH:
        return None
    return Note("few-samples", None, {"samples": samples, "batches": batches, "batch_size": PUBLISHED_BATCH})


def _repeated(samples: int, distinct: int) -> Note | None:
    share = 1 - distinct / samples
    return Note("repeated-samples", None, {"share": share}) if share > REPEATED else None


def _beside_cross_entropy(trace: Trace) -> tuple[Tensor, Tensor] | None:
    """(losses, cross-entropies) of a batch, one pair where the loss is a mean; None where there is no cross-entropy."""
    try:
        usual = cross_entropy(trace.logits, trace.labels).cpu().double()
    except (WalkbackError, RuntimeError):  # no classification: nothing to compare with
        return None
    ours = trace.losses.cpu().double()
    return (ours[:1], usual.mean()[None]) if bool((ours == ours[0]).all()) else (ours, usual)


def _cross_entropies(pairs: Sequence[tuple[Tensor, Tensor] | None]) -> float | None:
    """How many times cross-entropy a loss of the user's own is; None where it is something else."""
    known = [pair for pair in pairs if pair is not None]
    if not known or len(known) < len(pairs):
        return None
    ours, usual = (torch.cat(side) for side in zip(*known))
    factor = float(ours.sum() / usual.sum())
    fits = isfinite(factor) and float((ours - factor * usual).abs().max()) <= 1e-4 * float(ours.abs().max())
    return factor if fits else None


def _loss_units(factor: float | None) -> Note | None:
    """How a loss relates to cross-entropy, which the published floor belongs to."""
    if factor is None:
        return Note("loss-not-cross-entropy")
    return None if abs(factor - 1) < 1e-3 else Note("loss-scaled", None, {"factor": factor})


def _saturated(span: float) -> Note | None:
    # What is not finite is a finding of its own.
    return Note("saturated", None, {"span": span}) if SATURATED < span < inf else None


def _left_out(tracer: Tracer, given: object) -> Note | None:
    if given is None:
        return None
    try:
        whole = Anatomy.of(tracer.model).blocks
    except WalkbackError:
        return None
    named = {id(block) for block in tracer.blocks}
    if len(named) < len(whole) and named <= {id(block) for block in whole}:
        return Note("blocks-left-out", None, {"named": len(named), "of": len(whole)})
    return None


def on_claim(m: Measurements, claim: Claim, thresholds: DiagnosticThresholds) -> tuple[Note, ...]:
    """What is odd about a claim and the numbers it is judged on."""
    found = [
        _other_accuracy(m.conditions, claim),
        _no_spread(claim),
        _below_chance(m.conditions, claim),
        _constant(m.h_norm),
        _same_direction(m),
        _shifted(m),
        _other_limits(thresholds),
    ]
    return tuple(note for note in found if note)


def _other_accuracy(conditions: dict[str, Any], claim: Claim) -> Note | None:
    measured, samples = conditions.get("probe_accuracy"), conditions.get("samples")
    if claim.headline is None or not isinstance(measured, float) or not isinstance(samples, int) or samples < 1:
        return None
    said = min(accuracies("headline_acc", claim.headline), key=lambda a: abs(a - measured))
    middle = (said + measured) / 2
    error = sqrt(max(middle * (1 - middle), 1 / samples) / samples)
    if abs(said - measured) <= max(APART * error, 0.01):
        return None
    return Note("other-accuracy", None, {"claimed": said, "measured": measured, "samples": samples})


def _no_spread(claim: Claim) -> Note | None:
    """Several seeds with one number: of the network, of its control, or as the gain between them."""
    given = {"headline_acc": claim.headline, "frozen_baseline_acc": claim.frozen}
    seeds = {name: accuracies(name, value) for name, value in given.items() if value is not None}
    if len(seeds) == 2:
        seeds["the gain over frozen blocks"] = [a - b for a, b in zip(*seeds.values())]
    same = {name: row for name, row in seeds.items() if len(row) > 1 and max(row) - min(row) < 1e-9}
    if not same:
        return None
    told = {name: row[0] for name, row in same.items()}
    return Note("no-spread", None, {"same": told, "seeds": len(next(iter(same.values())))})


def _below_chance(conditions: dict[str, Any], claim: Claim) -> Note | None:
    """A control under half of chance; where the number of classes is not known, one that is never right."""
    if claim.frozen is None:
        return None
    classes, lowest = conditions.get("classes"), min(accuracies("frozen_baseline_acc", claim.frozen))
    chance = 1 / classes if isinstance(classes, int) and classes > 1 else None
    if (lowest > 0) if chance is None else (lowest >= chance / 2):
        return None
    return Note("below-chance", None, {"frozen": lowest, "chance": chance})


def earlier_epoch(claimed: Accuracy, epochs: Sequence[float], logged: Sequence[float | None]) -> Note | None:
    """Whether an accuracy is that of an earlier epoch than the last: the best one, usually.

    >>> print(earlier_epoch(0.41, [1, 2, 3], [0.30, 0.41, 0.35]))
    the headline accuracy 0.410 is that of epoch 2, not of the last, 0.350: take the last epoch's, never the best
    """
    last = logged[-1]
    if not isinstance(claimed, float) or last is None or abs(claimed - last) < 5e-4:
        return None
    for epoch, accuracy in zip(epochs, logged):
        if accuracy is not None and abs(accuracy - claimed) < 5e-4:
            return Note("earlier-epoch", None, {"claimed": claimed, "epoch": epoch, "last": last})
    return None


def _constant(norms: Sequence[float | None]) -> Note | None:
    known = [n for n in norms if n]
    if len(norms) < 3 or len(known) < len(norms) or max(known) - min(known) > 1e-3 * max(known):
        return None
    return Note("constant-norm", None, {"norm": known[0]})


def _same_direction(m: Measurements) -> Note | None:
    """Whether the credit is the BP gradient in all but name. Of an altered reference nothing follows."""
    known = [c for c in m.cosine if c is not None]
    if len(known) < 2 or len(known) < len(m.cosine) or coded(m.notes, "bp-itself") or m.altered or m.doubted:
        return None
    if min(known) > 1 - 1e-6:
        return Note("bp-direction")
    if max(known) < -1 + 1e-6:
        return Note("bp-against")
    deep = [m.cosine[site] or 0.0 for site in deep_sites(m.cosine)]
    return Note("bp-nearly", None, {"least": min(deep)}) if deep and min(deep) > NEARLY else None


def _shifted(m: Measurements) -> Note | None:
    """Whether the credits fit the gradients of the next or the previous site better than those of their own.

    The mean of cos(a_l, g_{l±1}) − cos(a_l, g_l) over the sites that have both must be more than chance makes it: a
    credit that has nothing to do with either has the null band of its cosine times ‖ĝ_{l±1} − ĝ_l‖ there, which is
    √(2 − 2 cos(g_l, g_{l±1})). A credit that is exactly the gradient of a neighbour, and not of its own site, is enough
    by itself.
    """
    band = m.null_high or [None] * len(m.cosine)
    found = []
    for fits, values, apart in (
        ("next", m.cosine_above, m.gradient_next),
        ("previous", m.cosine_below, [None, *m.gradient_next[:-1]] if m.gradient_next else []),
    ):
        rows = list(zip(m.cosine, values, band, apart or [None] * len(values)))
        both = [
            (c, s, (b or 0.0) * sqrt(max(0.0, 2 - 2 * (p or 0.0))))
            for c, s, b, p in rows
            if c is not None and s is not None
        ]
        if not both:
            continue
        n = len(both)
        own, shifted = (sum(side) / n for side in list(zip(*both))[:2])
        exact = any(s > 1 - 1e-6 and c < 1 - 1e-4 for c, s, _ in both)
        if exact or (shifted > 0 and shifted - own > max(BETTER, sqrt(sum(b * b for *_, b in both)) / n)):
            found.append((exact, shifted - own, {"fits": fits, "own": own, "shifted": shifted}))
    return Note("shifted-pairing", None, max(found, key=lambda one: one[:2])[2]) if found else None


def _other_limits(thresholds: DiagnosticThresholds) -> Note | None:
    published = asdict(DiagnosticThresholds())
    changed = {k: [v, published[k]] for k, v in asdict(thresholds).items() if v != published[k]}
    return Note("other-thresholds", None, {"changed": changed}) if changed else None
