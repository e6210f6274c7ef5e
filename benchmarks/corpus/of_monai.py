"""Networks of MONAI at tiny sizes."""

# a network is a line of its table

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from case import Case, outputs
from monai.networks import nets


def images(channels: int = 1) -> Any:
    """A batch of images of one channel."""
    g = torch.Generator().manual_seed(1)
    return torch.randn(4, channels, 32, 32, generator=g, dtype=torch.float64), torch.arange(4)


def pixels_loss(out: Any, y: torch.Tensor) -> torch.Tensor:
    """Return (B,) squares of what a network of images returns."""
    out = out[0] if isinstance(out, (tuple, list)) else out
    return (out.flatten(1) - 1.0).square().mean(1)


def cases() -> Iterator[Case]:
    """Yield the networks."""

    def of(name: str, build: Any, sites: Any, reads: Any = None, loss: Any = None) -> Case:
        return Case(name, "MONAI", build, images, sites, reads, loss)

    yield of(
        "ViT",
        partial(
            nets.ViT,
            1,
            32,
            8,
            hidden_size=16,
            mlp_dim=32,
            num_layers=3,
            num_heads=2,
            spatial_dims=2,
            classification=True,
            num_classes=5,
            post_activation="",
        ),
        outputs("blocks", 3),
        0,
    )
    yield of(
        "ResNet",
        partial(nets.ResNet, "basic", [1, 2, 1, 1], [4, 8, 8, 16], spatial_dims=2, n_input_channels=1, num_classes=5),
        ("in:layer1.0", "layer1.0", "layer2.0", "layer2.1", "layer3.0", "layer4.0"),
    )
    yield of(
        "SEResNet50",
        partial(nets.SEResNet50, spatial_dims=2, in_channels=1, num_classes=5),
        ("in:layer1.0", *(f"layer{i + 1}.{j}" for i, n in enumerate((3, 4, 6, 3)) for j in range(n))),
        None,
    )
    yield of(
        "DenseNet",
        partial(nets.DenseNet, 2, 1, 5, init_features=8, growth_rate=4, block_config=(2, 2)),
        (
            "in:features.denseblock1.denselayer1",
            "features.denseblock1.denselayer1",
            "features.denseblock1.denselayer2",
            "features.denseblock2.denselayer1",
            "features.denseblock2.denselayer2",
        ),
    )
    yield of("UNet", partial(nets.UNet, 2, 1, 1, (4, 8, 16), (2, 2), num_res_units=1), (), None, pixels_loss)
    yield of(
        "SegResNet", partial(nets.SegResNet, 2, 8, 1, 2, blocks_down=(1, 2), blocks_up=(1,)), (), None, pixels_loss
    )
    yield of(
        "ViTAutoEnc",
        partial(
            nets.ViTAutoEnc, 1, (32, 32), (4, 4), hidden_size=16, mlp_dim=32, num_layers=3, num_heads=2, spatial_dims=2
        ),
        outputs("blocks", 3),
        "mean",
        pixels_loss,
    )
    yield of(
        "UNETR",
        partial(nets.UNETR, 1, 2, (32, 32), feature_size=4, hidden_size=16, mlp_dim=32, num_heads=2, spatial_dims=2),
        outputs("vit.blocks", 12),
        "mean",
        pixels_loss,
    )
