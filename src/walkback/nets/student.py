"""StudentNet: a residual MLP without any normalisation, for the teacher tasks."""

from __future__ import annotations

from torch import Tensor, nn

from walkback.nets.resmlp import ResMLP


class StudentBlock(nn.Module):
    """w1: d -> k·d, GELU, w2: k·d -> d, and no norm. Returns the branch."""

    def __init__(self, width: int, expansion: int) -> None:
        super().__init__()
        self.w1, self.act = nn.Linear(width, expansion * width), nn.GELU()
        self.w2 = nn.Linear(expansion * width, width)

    def forward(self, h: Tensor) -> Tensor:
        """(B, d) to (B, d)."""
        return self.w2(self.act(self.w1(h)))


class StudentNet(ResMLP):
    """ResMLP with norm-free blocks and no terminal norm, (B, d) states. Arguments as for ResMLP."""

    def __init__(
        self, input_shape: tuple[int, ...], classes: int, width: int = 128, depth: int = 4, expansion: int = 1
    ) -> None:
        super().__init__(input_shape, classes, width, 0, expansion, terminal_norm=False)
        self.blocks = nn.ModuleList(StudentBlock(width, expansion) for _ in range(depth))
