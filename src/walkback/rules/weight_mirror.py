"""Feedback weights that learn to follow the forward weights: the weight mirror, and Kolen and Pollack's rule."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from walkback.registry import positive, whole_numbers
from walkback.rules.layered import LayeredFeedback, fan_in
from walkback.rules.rule import Parts
from walkback.tracing.trace import TrainingPass


class KolenPollack(LayeredFeedback):
    """B of every layer gets the gradient of its W, so that weight decay, which shrinks both, makes B → W.

    B is trained by the optimiser of the network: the same step, the same decay. Without weight decay B − W stays.

    Args:
        scale: B's entries start with standard deviation scale/√n, with n the fan-in of the layer.

    >>> import torch, walkback as wb
    >>> net, x = wb.nets.build("resmlp", (8,), 3, width=16), torch.randn(256, 8)
    >>> rule = KolenPollack()
    >>> wb.rules.set_up(rule, net, x, 3, torch.Generator())
    >>> len(list(rule.parameters())) == len(rule.layers)
    True
    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        positive(scale=scale)
        self.scale = scale

    def setup(self, parts: Parts, states: Sequence[Tensor], classes: int, generator: torch.Generator) -> None:
        """Draw B of every layer."""
        super().setup(parts, states, classes, generator)
        self.B = nn.ParameterList(nn.Parameter(torch.empty(layer.weight.shape)) for layer in self.layers)
        self.redraw(generator)

    def feedback(self) -> Sequence[Tensor]:
        """Return B as it is now."""
        return list(self.B)

    @torch.no_grad()
    def redraw(self, generator: torch.Generator) -> bool:
        """Draw B anew, as at the start: what it has learned is lost."""
        for b in self.B:
            b.copy_(torch.randn(b.shape, generator=generator) * self.scale / fan_in(b) ** 0.5)
        return True

    def auxiliary_loss(self, trace: TrainingPass) -> Tensor | None:
        """Return Σ ⟨B, ∂W⟩, whose gradient by B is that which this step left in W; None where no block trains."""
        pairs = [(b, layer.weight.grad) for b, layer in zip(self.B, self.layers) if layer.weight.grad is not None]
        return torch.stack([(b * grad.detach().to(b)).sum() for b, grad in pairs]).sum() if pairs else None

    def describe(self) -> dict[str, object]:
        """Say what B starts from and what moves it."""
        start = f"starts at std {self.scale:g}/sqrt(n)"
        return {"feedback": f"{start}, gets the gradient of W", **super().describe()}


class WeightMirror(KolenPollack):
    """B of every layer sees noise n and what W makes of it: ΔB ∝ (W n) nᵀ − B, whose mean is zero where B = W.

    The noise is sent through every layer by itself, without its bias, so nothing else of the network shows in B.

    Args:
        scale: as in KolenPollack.
        samples: of noise per step and layer.

    >>> import torch, walkback as wb
    >>> net, x = wb.nets.build("resmlp", (8,), 3, width=16), torch.randn(256, 8)
    >>> rule = WeightMirror()
    >>> wb.rules.set_up(rule, net, x, 3, torch.Generator())
    >>> rule.auxiliary_loss(None).requires_grad
    True
    """

    def __init__(self, scale: float = 1.0, samples: int = 128) -> None:
        super().__init__(scale)
        whole_numbers(samples=samples)
        self.samples = samples

    def setup(self, parts: Parts, states: Sequence[Tensor], classes: int, generator: torch.Generator) -> None:
        """Draw B, and the seed of the noise; it is saved, so that a resumed run draws on."""
        super().setup(parts, states, classes, generator)
        self.register_buffer("next_draw", torch.randint(2**31, (), generator=generator))

    def auxiliary_loss(self, trace: TrainingPass | None) -> Tensor:
        """Return Σ ½‖B‖² − ⟨B, (W n) nᵀ⟩ averaged over noise n ~ N(0, 1): its gradient is B − W on average."""
        seed, terms = self.get_buffer("next_draw"), []
        draw = torch.Generator().manual_seed(int(seed))
        seed += 1
        for b, layer in zip(self.B, self.layers):
            noise = torch.randn(self.samples, fan_in(b), generator=draw).to(b)
            seen = (noise @ layer.weight.detach().to(b).flatten(1).T).T @ noise / self.samples
            terms.append(0.5 * b.square().sum() - (b.flatten(1) * seen).sum())
        return torch.stack(terms).sum()

    def describe(self) -> dict[str, object]:
        """Say what B starts from and what moves it."""
        start = f"starts at std {self.scale:g}/sqrt(n)"
        return {**super().describe(), "feedback": f"{start}, mirrors W from {self.samples} samples of noise a step"}


ORDER = 9
RULES = {"kolen-pollack": KolenPollack, "weight-mirror": WeightMirror}
