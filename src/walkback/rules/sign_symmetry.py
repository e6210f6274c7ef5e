"""Sign-symmetry: feedback weights with the signs of the forward weights, and magnitudes of their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from walkback.registry import positive
from walkback.rules.layered import LayeredFeedback, fan_in
from walkback.rules.rule import Parts


class USF(LayeredFeedback):
    """Uniform sign-concordant feedback: B = scale/√n · sign(W), with n the fan-in of the layer.

    Args:
        scale: of the magnitudes, in units of 1/√n.

    >>> import torch, walkback as wb
    >>> net, x, y = wb.nets.build("resmlp", (8,), 3, width=16), torch.randn(256, 8), torch.randint(3, (256,))
    >>> rule = USF()
    >>> wb.rules.set_up(rule, net, x, 3, torch.Generator())
    >>> all(cosine > 0 for cosine in wb.measure(net, [(x, y)], credit=rule).cosine)
    True
    """

    magnitudes = "uniform"

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        positive(scale=scale)
        self.scale = scale

    def feedback(self) -> Sequence[Tensor]:
        """Return the signs of the weights as they are now."""
        return [m * layer.weight.detach().sign() for m, layer in zip(self.sizes(), self.layers)]

    def sizes(self) -> Sequence[Tensor | float]:
        """Return the magnitudes of every layer."""
        return [self.scale / fan_in(layer.weight) ** 0.5 for layer in self.layers]

    def describe(self) -> dict[str, object]:
        """Say how large the feedback is, and whether its magnitudes are drawn."""
        return {"feedback": f"sign(W), {self.magnitudes} magnitudes of {self.scale:g}/sqrt(n)", **super().describe()}


class FRSF(USF):
    """Fixed random-magnitude sign-concordant feedback: B = |M| ⊙ sign(W) with M ~ N(0, scale²/n) drawn once.

    >>> import torch, walkback as wb
    >>> net, x, y = wb.nets.build("resmlp", (8,), 3, width=16), torch.randn(256, 8), torch.randint(3, (256,))
    >>> rule = FRSF()
    >>> wb.rules.set_up(rule, net, x, 3, torch.Generator())
    >>> torch.equal(rule.feedback()[0].sign(), rule.layers[0].weight.sign())
    True
    """

    magnitudes = "fixed random"

    def setup(self, parts: Parts, states: Sequence[Tensor], classes: int, generator: torch.Generator) -> None:
        """Draw the magnitudes of every layer."""
        super().setup(parts, states, classes, generator)
        for i, layer in enumerate(self.layers):
            self.register_buffer(f"M{i}", torch.empty(layer.weight.shape))
        self.redraw(generator)

    def sizes(self) -> Sequence[Tensor | float]:
        """Return the magnitudes of every layer, as drawn."""
        return [self.get_buffer(f"M{i}") for i in range(len(self.layers))]

    def redraw(self, generator: torch.Generator) -> bool:
        """Draw all magnitudes anew; the signs stay those of the weights."""
        for i, layer in enumerate(self.layers):
            drawn = torch.randn(layer.weight.shape, generator=generator).abs()
            self.get_buffer(f"M{i}").copy_(drawn * self.scale / fan_in(layer.weight) ** 0.5)
        return True


class BRSF(FRSF):
    """Batchwise random-magnitude sign-concordant feedback: as FRSF, with M drawn anew for every batch.

    >>> import torch, walkback as wb
    >>> net, x = wb.nets.build("resmlp", (8,), 3, width=16), torch.randn(256, 8)
    >>> rule = BRSF()
    >>> wb.rules.set_up(rule, net, x, 3, torch.Generator())
    >>> first, second = rule.feedback()[0], rule.feedback()[0]
    >>> torch.equal(first, second), torch.equal(first.sign(), second.sign())
    (False, True)
    """

    magnitudes = "batchwise random"

    def setup(self, parts: Parts, states: Sequence[Tensor], classes: int, generator: torch.Generator) -> None:
        """Draw the first magnitudes, and the seed of the next; it is saved, so that a resumed run draws on."""
        super().setup(parts, states, classes, generator)
        self.register_buffer("next_draw", torch.randint(2**31, (), generator=generator))

    def sizes(self) -> Sequence[Tensor | float]:
        """Return magnitudes drawn for this batch."""
        seed = self.get_buffer("next_draw")
        super().redraw(torch.Generator().manual_seed(int(seed)))
        seed += 1
        return [m.clone() for m in super().sizes() if isinstance(m, Tensor)]

    def redraw(self, generator: torch.Generator) -> bool:
        """Draw all magnitudes anew, and what later batches draw."""
        if "next_draw" in self._buffers:
            self.get_buffer("next_draw").copy_(torch.randint(2**31, (), generator=generator))
        return super().redraw(generator)


ORDER = 8
RULES = {"usf": USF, "frsf": FRSF, "brsf": BRSF}
