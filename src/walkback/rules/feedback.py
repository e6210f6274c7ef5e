"""What FA, DFA and DRTP share: random matrices that carry credit, drawn once, or anew at every call as an ablation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from walkback.errors import InputError
from walkback.registry import positive, true_or_false, whole_numbers
from walkback.rules.rule import Parts, Rule, check_target, feature_dim, of_length


class RandomFeedback(Rule):
    """A rule with feedback matrices B0, B1, … as buffers.

    Args:
        scale: B's entries have standard deviation scale/√d; 1 keeps the length of what is carried, on average.
        target: for token states, "all" tokens get the credit of the sample, "readout" only the first.
        fresh: draw B anew at every call: the ablation to which no network can align.
        unit: give every sample's credit the length 1 at every site, so that samples the network has learned pull as
            hard as those it has not.
        draw_seed: a seed of B alone, so that its draw can be crossed with the initialisation; None draws B from the
            seed of the run.
    """

    def __init__(
        self,
        scale: float = 1.0,
        target: str = "all",
        fresh: bool = False,
        unit: bool = False,
        draw_seed: int | None = None,
    ) -> None:
        super().__init__()
        positive(scale=scale)
        true_or_false(fresh=fresh, unit=unit)
        if draw_seed is not None:
            whole_numbers(0, draw_seed=draw_seed)
        self.draw_seed = draw_seed
        self.scale, self.target, self.fresh, self.unit = scale, check_target(target), fresh, unit
        self.fan: list[int] = []

    def setup(self, parts: Parts, states: Sequence[torch.Tensor], classes: int, generator: torch.Generator) -> None:
        """Draw B_0…B_L, from the classes straight to every site."""
        self.draw([(classes, width, width) for width in self.widths(states)], generator)

    def widths(self, states: Sequence[torch.Tensor]) -> list[int]:
        """Return the width of every site; refuse a `target` that its states don't have."""
        if self.target == "readout" and any(h.ndim == 4 for h in states):
            raise InputError(
                'Expected target "all" for image states (B, C, H, W), but got "readout": they have no first token. '
                "Leave target out."
            )
        return [feature_dim(h) for h in states]

    def draw(self, shapes: Iterable[tuple[int, int, int]], generator: torch.Generator) -> None:
        """Make one matrix for each (rows, columns, d of its standard deviation)."""
        if self.draw_seed is not None:
            generator = torch.Generator().manual_seed(self.draw_seed)
        for site, (rows, columns, fan) in enumerate(shapes):
            self.fan.append(fan)
            self.register_buffer(f"B{site}", torch.empty(rows, columns))
        self.redraw(generator)
        if self.fresh:  # saved with the weights, so that a resumed run draws on
            self.register_buffer("next_draw", torch.randint(2**31, (), generator=generator))

    def matrices(self) -> list[torch.Tensor]:
        """Return B0, B1, … as they are now; with `fresh`, drawn for this call."""
        if self.fresh:
            seed = self.get_buffer("next_draw")
            self._fill(torch.Generator().manual_seed(int(seed)))
            seed += 1
        return [self.get_buffer(f"B{site}") for site in range(len(self.fan))]

    def sized(self, credits: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return credits (B, …) as they are; with `unit`, each sample's divided by its length. No credit stays none."""
        return of_length(credits, "unit" if self.unit else "raw")

    def redraw(self, generator: torch.Generator) -> bool:
        """Draw all feedback anew; with `fresh`, also what later calls draw."""
        self._fill(generator)
        if "next_draw" in self._buffers:
            self.get_buffer("next_draw").copy_(torch.randint(2**31, (), generator=generator))
        return True

    def _fill(self, generator: torch.Generator) -> None:
        for site, fan in enumerate(self.fan):
            buffer = self.get_buffer(f"B{site}")
            buffer.copy_(torch.randn(tuple(buffer.shape), generator=generator) * self.scale / fan**0.5)

    def describe(self) -> dict[str, object]:
        """Return scale and target of the feedback, whether it is drawn anew, and whether credits have one length."""
        settings = {"feedback_std": f"{self.scale:g}/sqrt(d)", "target": self.target, "fresh": self.fresh}
        more = {"unit": True if self.unit else None, "draw_seed": self.draw_seed}
        return {**settings, **{name: value for name, value in more.items() if value is not None}}
