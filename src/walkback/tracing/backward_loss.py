"""The user's loss, asked apart from the network: is ∂loss/∂logits its derivative?"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from walkback.network.values import widened
from walkback.tracing.backward_answer import Untold
from walkback.tracing.derived import Spy, Tape, has_custom_backward
from walkback.tracing.differences import (
    APART,
    LADDERS,
    NUMBERS,
    SEED,
    Change,
    Reading,
    direction,
    judged,
    narrowest_type,
    nudges,
    probed,
)
from walkback.tracing.session import Tracer
from walkback.tracing.trace import Trace

LOSS_PROBES = 8  # directions in which a user's loss is asked


def loss_slope(tracer: Tracer, logits: Tensor, labels: Tensor) -> Tensor:
    """Return ∂loss/∂logits of a batch, taken as the reference is."""
    z = logits.detach().clone().requires_grad_()
    tape = Tape() if tracer.reference == "derived" else None
    with torch.enable_grad():
        with tape or nullcontext():
            losses = tracer.losses(z, labels)
        total = (losses if tape is None else tape.rerun()[0](losses)).sum()
        return torch.autograd.grad(total, z)[0]


def change_of_losses(point: Trace) -> Change:
    """Return what a change of the losses themselves is to the loss, for `read`."""
    largest = widened(point.logits.abs().amax())  # inside a log-softmax numbers as large as the logits cancel
    return lambda losses, before, rows: (losses - before, losses.abs() + largest)


def check_loss(tracer: Tracer, point: Trace, dtype: torch.dtype) -> Reading | None:
    """Return what finite differences say of ∂loss/∂logits where the loss is the user's: None, or that it is altered."""
    if not tracer.has_custom_loss:
        return None
    sites = tuple(range(len(point.states)))
    for labels in (point.labels, other_labels(point.labels, point.logits, True)):
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
        raise Untold("loss")
    return None  # made of torch's own operations


def _read_loss(tracer: Tracer, logits: Tensor, labels: Tensor, dtype: torch.dtype) -> Reading:
    """Return what finite differences of the loss say of ∂loss/∂logits, beside the logits of a batch."""
    (noise,) = nudges([logits.reshape(1, -1)], APART[dtype]).values()
    z = logits + noise.view_as(logits)
    labels = labels.to(dtype) if labels.is_floating_point() else labels

    def total(z: Tensor) -> Tensor:
        return widened(tracer.losses(z, labels)).sum()

    slope, before = loss_slope(tracer, z, labels), total(z)
    size = torch.finfo(narrowest_type(lambda: total(z), dtype)).eps * (before.abs() + len(labels) * z.abs().amax())
    sites, rows = torch.zeros(LOSS_PROBES, dtype=torch.long), torch.arange(LOSS_PROBES)  # walkback: ignore[P14]
    reading = Reading("unread", "rounding")
    for limit, step in LADDERS[dtype]:
        generator = torch.Generator(logits.device).manual_seed(SEED)
        numbers: dict[str, list[Tensor]] = {name: [] for name in NUMBERS}
        for i in range(LOSS_PROBES):
            way, unit = direction(slope.reshape(1, -1), z.reshape(1, -1), i % 2 == 1, generator)
            up, down = (total(z + share * way.view_as(z)) - before for share in (step, -step))
            numbers["slope"].append((up - down) / (2 * step))
            numbers["predicted"].append((widened(slope.flatten()) * widened(way.flatten())).sum())
            numbers["bend"].append((up + down) / step)
            numbers["rounding"].append(size / step)
            numbers["unit"].append(unit[0])
            numbers["least"].append(torch.zeros_like(up))
        reading = judged(probed(**{name: torch.stack(values) for name, values in numbers.items()}), sites, rows, limit)
        if reading.answer != "unread":
            break
    return reading


def other_labels(labels: Tensor, logits: Tensor, custom: bool) -> Tensor | None:
    """Return labels that a loss must take, and that a network is wrong about: those of other samples of the batch.

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
