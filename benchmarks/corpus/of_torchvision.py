"""Networks of torchvision at tiny sizes."""

# ruff: noqa: E501  # a network is a line of its table

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from case import Case
from torchvision import models

LAYERS = ("in:layer1.0", "layer1.0", "layer2.0", "layer2.1", "layer3.0", "layer4.0")


def images() -> Any:
    """A batch of images."""
    g = torch.Generator().manual_seed(1)
    return torch.randn(4, 3, 32, 32, generator=g, dtype=torch.float64), torch.arange(4)


def cases() -> Iterator[Case]:
    """Yield the networks."""

    def of(name: str, build: Any, sites: Any, reads: Any = None) -> Case:
        return Case(name, "torchvision", build, images, sites, reads)

    yield of(
        "ResNet basic", partial(models.resnet.ResNet, models.resnet.BasicBlock, [1, 2, 1, 1], num_classes=5), LAYERS
    )
    yield of(
        "ResNet bottleneck",
        partial(models.resnet.ResNet, models.resnet.Bottleneck, [1, 2, 1, 1], num_classes=5),
        LAYERS,
    )
    yield of(
        "ResNeXt",
        partial(
            models.resnet.ResNet, models.resnet.Bottleneck, [1, 2, 1, 1], num_classes=5, groups=4, width_per_group=4
        ),
        LAYERS,
    )
    deep = tuple(f"encoder.layers.encoder_layer_{i}" for i in range(3))
    yield of("ViT", partial(models.VisionTransformer, 32, 16, 3, 2, 16, 32, num_classes=5), (f"in:{deep[0]}", *deep), 0)
    swin = ("in:features.1.0", "features.1.0", "features.1.1", "features.3.0", "features.3.1")
    yield of("Swin", partial(models.SwinTransformer, [4, 4], 8, [2, 2], [2, 2], [4, 4], num_classes=5), swin)
    setting = models.convnext.CNBlockConfig
    yield of("ConvNeXt", partial(models.ConvNeXt, [setting(8, 16, 2), setting(16, None, 2)], num_classes=5, layer_scale=1.0),
             ("in:features.1.0", "features.1.0", "features.1.1", "features.3.0", "features.3.1"))  # fmt: skip
    yield of("DenseNet", partial(models.DenseNet, 4, (2, 2), 8, num_classes=5), ())
    yield of(
        "MobileNetV2",
        partial(models.mobilenet_v2, num_classes=5, width_mult=0.25),
        ("in:features.1", *(f"features.{i}" for i in range(1, 18))),
    )
    yield of("RegNet", partial(models.RegNet, models.regnet.BlockParams([2, 2], [8, 16], [4, 4], [1.0, 1.0], [2, 2]), num_classes=5),
             ("in:trunk_output.block1.block1-0", "trunk_output.block1.block1-0", "trunk_output.block1.block1-1", "trunk_output.block2.block2-0", "trunk_output.block2.block2-1"))  # fmt: skip
    yield of(
        "ShuffleNetV2",
        partial(models.ShuffleNetV2, [2, 2, 2], [8, 16, 32, 64, 64], num_classes=5),
        ("in:stage2.0", *(f"stage{i}.{j}" for i in (2, 3, 4) for j in (0, 1))),
    )
    yield of(
        "EfficientNet",
        partial(models.efficientnet_b0, num_classes=5),
        ("in:features.1.0", *(f"features.{i + 1}.{j}" for i, n in enumerate((1, 2, 2, 3, 3, 4, 1)) for j in range(n))),
    )
    yield of(
        "MaxViT",
        partial(models.MaxVit, (32, 32), 8, 4, [8, 16], [1, 1], 4, 0.0, num_classes=5),
        ("in:blocks.0.layers.0", "blocks.0.layers.0", "blocks.1.layers.0"),
    )
