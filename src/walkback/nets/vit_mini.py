"""ViT-Mini: a small pre-LN vision transformer with a class token and a terminal LayerNorm."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from walkback.errors import InputError
from walkback.nets.residual import Residual, images
from walkback.registry import whole_numbers


class Patches(nn.Module):
    """The stem: patches, class token and positions, (B, C, H, W) to (B, 1 + patches, d)."""

    def __init__(self, channels: int, size: int, patch: int, width: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(channels, width, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, 1 + (size // patch) ** 2, width))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.project(x).flatten(2).transpose(1, 2)
        return torch.cat([self.cls.expand(len(x), -1, -1), tokens], 1) + self.position


class TransformerBlock(nn.Module):
    """Pre-LN attention and MLP as one residual branch: f(h) = attn(LN h) + mlp(LN(h + attn(LN h)))."""

    def __init__(self, width: int, heads: int, expansion: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.w1, self.act = nn.Linear(width, expansion * width), nn.GELU()
        self.w2 = nn.Linear(expansion * width, width)

    def forward(self, h: Tensor) -> Tensor:
        """Map (B, T, d) to (B, T, d)."""
        batch, tokens, width = h.shape
        q, k, v = self.qkv(self.norm1(h)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, width)
        attention = self.out(mixed)
        return attention + self.w2(self.act(self.w1(self.norm2(h + attention))))


class ViTMini(Residual):
    """(B, T, d) states read out at the class token.

    Args:
        input_shape: (channels, size, size).
        classes: outputs.
        width: d.
        depth: L.
        patch: side of a patch in pixels.
        heads: of attention.
        expansion: hidden width of the MLP over d.

    >>> ViTMini((3, 32, 32), 10, width=16, depth=1)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    stem_name = "patch_embed"

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        width: int = 128,
        depth: int = 4,
        patch: int = 4,
        heads: int = 4,
        expansion: int = 2,
    ) -> None:
        super().__init__()
        images("vit-mini", input_shape)
        whole_numbers(width=width, depth=depth, patch=patch, heads=heads, expansion=expansion)
        if width % heads:
            raise InputError(f"Expected heads to divide width, but got {heads} heads for a width of {width}.")
        if input_shape[1] != input_shape[2] or input_shape[1] % patch:
            raise InputError(f"Expected square images whose side {patch} divides, but got shape {input_shape}.")
        self.patch_embed = Patches(input_shape[0], input_shape[1], patch, width)
        self.blocks = nn.ModuleList(TransformerBlock(width, heads, expansion) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def readout(self, h: Tensor) -> Tensor:
        """Map (B, T, d) to logits (B, C), from the class token."""
        return self.head(self.norm(h[:, 0]))


ORDER = 2
NETS = {"vit-mini": ViTMini}
