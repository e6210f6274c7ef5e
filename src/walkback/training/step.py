"""One training step: end to end for an exact rule (BP), local and detached for every other rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from walkback.errors import InputError
from walkback.network.loss import cross_entropy
from walkback.rules.rule import Parts, Rule, declares
from walkback.tracing.trace import LastGradient, TrainingPass
from walkback.training.spec import RunSpec


@dataclass
class LargestCredit:
    """The largest absolute entry of each site's credit over all batches, until every site has had one that is not 0."""

    peaks: Tensor | None = None
    everywhere: bool = False  # every site has had credit: no later batch changes that

    def add(self, credits: Sequence[Tensor]) -> None:
        """Take note of the credits (B, …) of one batch, site by site."""
        if self.everywhere:
            return
        peaks = torch.stack([a.detach().abs().amax() for a in credits])
        self.peaks = peaks if self.peaks is None else torch.maximum(self.peaks, peaks)
        self.everywhere = bool(self.peaks.all())

    def zero_sites(self) -> list[int]:
        """Return the sites whose credit was zero for every sample; NaN is not zero. None were seen: none are listed."""
        return [] if self.peaks is None else [site for site, peak in enumerate(self.peaks.tolist()) if peak == 0]


@dataclass(frozen=True)
class TrainingStep:
    """How a batch becomes gradients. Afterwards every trained parameter has its `.grad`."""

    parts: Parts
    rule: Rule
    exact: bool  # as BP: differentiate end to end
    frozen: bool = False
    penalty: float = 0.0  # λ of λ‖f_l‖², mean over samples
    reader: bool = False  # a block gets the credit of the site it reads
    per_feature: bool = False  # the penalty is a mean over features, not a sum
    stem_too: bool = False  # the penalty is also on what the stem writes
    largest: LargestCredit = field(default_factory=LargestCredit)  # of the credits that trained something

    @staticmethod
    def of(spec: RunSpec, parts: Parts, rule: Rule) -> TrainingStep:
        """Return the step that a spec asks for."""
        return TrainingStep(
            parts,
            rule,
            exact=declares(rule, "exact"),
            frozen=spec.scope == "frozen",
            penalty=spec.penalty,
            reader=spec.credit_site == "reader",
            per_feature=spec.penalty_over == "mean",
            stem_too=spec.penalty_stem,
        )

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Run a batch (B, …) and its labels forward and backward; return the mean loss, a detached scalar."""
        return self._end_to_end(x, y) if self.exact else self._local(x, y)

    def _end_to_end(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.parts.stem(x)
        branches = [h]
        for block in self.parts.blocks:
            branches.append(block(h))
            h = h + branches[-1]
        loss = cross_entropy(self.parts.readout(h), y).mean()
        braked = branches[0 if self.stem_too else 1 :] if self.penalty else []
        (loss + sum(self._weight(f) * f.pow(2).sum() for f in braked)).backward()
        return loss.detach()

    def _local(self, x: Tensor, y: Tensor) -> Tensor:
        first = self.parts.stem(x)
        written, states = [first], [first.detach()]
        for block in self.parts.blocks:
            with torch.set_grad_enabled(not self.frozen):
                branch = block(states[-1])
            written.append(branch)
            states.append(states[-1] + branch.detach())
        top = states[-1].detach().requires_grad_()
        logits = self.parts.readout(top)
        losses = cross_entropy(logits, y)
        own = self.parts.readout_parameters()
        exact, *grads = torch.autograd.grad(losses.sum(), [top, *own])
        batch = len(x)
        for p, grad in zip(own, grads):
            p.grad = grad.div_(batch)  # the readout always learns from its own exact gradient
        seen = TrainingPass(tuple(states), LastGradient(exact, len(states)), losses.detach(), logits.detach(), y, x, {})
        with torch.no_grad():
            credits = list(self.rule(seen))
        given, needed = ([tuple(t.shape) for t in tensors] for tensors in (credits, states))
        if given != needed:
            raise InputError(
                f"Expected {type(self.rule).__name__} to give one credit per site, shaped {needed}, but got {given}."
            )
        self.largest.add(credits[:1] if self.frozen else credits[:-1] if self.reader else credits)
        if self.reader:
            credits = [credits[0], *credits[:-1]]
        if self.frozen:
            written, credits = written[:1], credits[:1]
        # The local loss ⟨output, a⟩ has the gradient a: it is handed to the engine as it is.
        signals = [a / batch for a in credits]
        if self.penalty:
            first = 0 if self.stem_too else 1
            signals[first:] = [s + 2 * self._weight(f) * f.detach() for s, f in zip(signals[first:], written[first:])]
        torch.autograd.backward(written, signals)
        auxiliary = self.rule.auxiliary_loss(seen)
        if auxiliary is not None:
            auxiliary.backward(inputs=self.rule.trains())
        return losses.detach().mean()

    def _weight(self, written: Tensor) -> float:
        """Return what the sum of squares of (B, …) is multiplied by: λ, over samples and, if asked, features."""
        return self.penalty / (written.numel() if self.per_feature else len(written))
