"""ResMLP: a pre-LN residual MLP on flattened inputs."""

from __future__ import annotations

from math import prod

from torch import Tensor, nn

from walkback.nets.residual import Residual
from walkback.registry import true_or_false, whole_numbers


class Flatten(nn.Sequential):
    """A linear map of everything but the batch."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(inputs, width))


class Block(nn.Module):
    """LN, w1: d -> k·d, GELU, w2: k·d -> d. Returns the branch."""

    def __init__(self, width: int, expansion: int, affine: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=affine)
        self.w1, self.act = nn.Linear(width, expansion * width), nn.GELU()
        self.w2 = nn.Linear(expansion * width, width)

    def forward(self, h: Tensor) -> Tensor:
        """Map (B, d) to (B, d)."""
        return self.w2(self.act(self.w1(self.norm(h))))


class ResMLP(Residual):
    """h_l = h_{l-1} + f_l(h_{l-1}) on (B, d) states, with an optional terminal LayerNorm.

    Args:
        input_shape: of one sample; it is flattened.
        classes: outputs.
        width: d.
        depth: L, the number of blocks.
        expansion: k, the width of a block's hidden layer over d (the papers don't say; 1 fits their figures best).
        terminal_norm: False replaces the terminal LayerNorm by the identity.
        block_affine: False leaves the blocks' LayerNorms without scale and shift: under a local rule a block's output
            then grows with the product of two weights that grow, not of three.

    >>> import torch
    >>> logits, hidden = ResMLP((3, 32, 32), 10, width=8, depth=2)(torch.zeros(5, 3, 32, 32), return_hidden=True)
    >>> logits.shape, len(hidden), hidden[0].shape
    (torch.Size([5, 10]), 3, torch.Size([5, 8]))
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        width: int = 256,
        depth: int = 4,
        expansion: int = 1,
        terminal_norm: bool = True,
        block_affine: bool = True,
    ) -> None:
        super().__init__()
        whole_numbers(width=width, depth=depth, expansion=expansion)
        true_or_false(terminal_norm=terminal_norm, block_affine=block_affine)
        self.embed = Flatten(prod(input_shape), width)
        self.blocks = nn.ModuleList(Block(width, expansion, block_affine) for _ in range(depth))
        self.out_ln = nn.LayerNorm(width) if terminal_norm else nn.Identity()
        self.out_head = nn.Linear(width, classes)


ORDER = 1
NETS = {"resmlp": ResMLP}
