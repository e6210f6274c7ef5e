"""What the networks have in common: a stem, blocks that return the residual branch, and a readout."""

from __future__ import annotations

from torch import Tensor, nn

from walkback.errors import InputError


class Residual(nn.Module):
    """h_0 = stem(x), h_l = h_{l-1} + block_l(h_{l-1}), logits = readout(h_L).

    Subclasses have a stem (`embed` unless `stem_name` says otherwise), `blocks`, and `out_ln` with `out_head` or a
    readout of their own.
    """

    stem_name = "embed"
    blocks: nn.ModuleList
    out_ln: nn.Module
    out_head: nn.Linear

    def readout(self, h: Tensor) -> Tensor:
        """Map h_L to logits (B, C)."""
        return self.out_head(self.out_ln(h))

    def forward(self, x: Tensor, return_hidden: bool = False) -> Tensor | tuple[Tensor, list[Tensor]]:
        """Map (B, …) to logits (B, C), with h_0…h_L when asked."""
        hidden = [getattr(self, self.stem_name)(x)]
        for block in self.blocks:
            hidden.append(hidden[-1] + block(hidden[-1]))
        logits = self.readout(hidden[-1])
        return (logits, hidden) if return_hidden else logits


def images(net: str, shape: tuple[int, ...]) -> None:
    """Refuse inputs that are not images (C, H, W)."""
    if len(shape) != 3:
        raise InputError(
            f"Expected images (C, H, W) for {net}, but the data has inputs of shape {tuple(shape)}. "
            "Use resmlp or student for vectors, or data of images."
        )
