"""SmallCNN: residual convolutions with BatchNorm and no terminal norm."""

from __future__ import annotations

from torch import Tensor, nn

from walkback.nets.residual import Residual, images
from walkback.registry import true_or_false, whole_numbers


class ConvBlock(nn.Module):
    """conv, BN, ReLU, conv, BN; or BN, ReLU, conv twice, where no norm bounds the branch. Returns the branch."""

    def __init__(self, channels: int, preactivation: bool) -> None:
        super().__init__()
        self.preactivation = preactivation
        self.w1, self.norm1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.act = nn.ReLU()
        self.w2, self.norm2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, h: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C, H, W)."""
        if self.preactivation:
            return self.w2(self.act(self.norm2(self.w1(self.act(self.norm1(h))))))
        return self.norm2(self.w2(self.act(self.norm1(self.w1(h)))))


class SmallCNN(Residual):
    """(B, C, H, W) states, averaged over positions by the readout.

    Args:
        input_shape: (channels, height, width).
        classes: outputs.
        width: channels of the stream.
        depth: L.
        stride: of the stem's convolution.
        preactivation: norm and ReLU before each convolution. A branch that ends in a norm, as by default, can't grow.

    >>> import torch
    >>> SmallCNN((3, 32, 32), 10, width=4, depth=1)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        width: int = 32,
        depth: int = 4,
        stride: int = 4,
        preactivation: bool = False,
    ) -> None:
        super().__init__()
        images("small-cnn", input_shape)
        whole_numbers(width=width, depth=depth, stride=stride)
        true_or_false(preactivation=preactivation)
        self.embed = nn.Sequential(
            nn.Conv2d(input_shape[0], width, stride + 1, stride, padding=stride // 2, bias=False), nn.BatchNorm2d(width)
        )
        self.blocks = nn.ModuleList(ConvBlock(width, preactivation) for _ in range(depth))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.out_head = nn.Linear(width, classes)

    def readout(self, h: Tensor) -> Tensor:
        """Map (B, C, H, W) to logits (B, C)."""
        return self.out_head(self.pool(h).flatten(1))


ORDER = 4
NETS = {"small-cnn": SmallCNN}
