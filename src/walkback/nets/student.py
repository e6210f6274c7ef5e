"""StudentNet: a residual MLP without any normalisation, for the teacher tasks."""

from __future__ import annotations

from math import prod

from torch import Tensor, nn

from walkback.nets.residual import Residual
from walkback.nets.resmlp import Flatten
from walkback.registry import whole_numbers


class StudentBlock(nn.Module):
    """w1: d -> k·d, GELU, w2: k·d -> d, and no norm. Returns the branch."""

    def __init__(self, width: int, expansion: int) -> None:
        super().__init__()
        self.w1, self.act = nn.Linear(width, expansion * width), nn.GELU()
        self.w2 = nn.Linear(expansion * width, width)

    def forward(self, h: Tensor) -> Tensor:
        """Map (B, d) to (B, d)."""
        return self.w2(self.act(self.w1(h)))


class StudentNet(Residual):
    """ResMLP with norm-free blocks and no terminal norm, (B, d) states. Arguments as for ResMLP.

    >>> import torch
    >>> StudentNet((16,), 32, width=8, depth=2)(torch.zeros(5, 16)).shape
    torch.Size([5, 32])
    """

    def __init__(
        self, input_shape: tuple[int, ...], classes: int, width: int = 128, depth: int = 4, expansion: int = 1
    ) -> None:
        super().__init__()
        whole_numbers(width=width, depth=depth, expansion=expansion)
        self.embed, self.blocks = Flatten(prod(input_shape), width), nn.ModuleList()
        self.out_ln, self.out_head = nn.Identity(), nn.Linear(width, classes)
        self.blocks.extend(StudentBlock(width, expansion) for _ in range(depth))  # drawn after the readout


ORDER = 3
NETS = {"student": StudentNet}
