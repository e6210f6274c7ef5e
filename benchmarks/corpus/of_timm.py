"""Networks of timm at tiny sizes."""

# a network is a line of its table

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import timm
import torch
from case import Case, outputs
from timm import models

VIT = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2, "num_classes": 5}


def images(size: int = 16, n: int = 4) -> Any:
    """Return a function that makes a batch of images."""

    def batch() -> Any:
        g = torch.Generator().manual_seed(1)
        return torch.randn(n, 3, size, size, generator=g, dtype=torch.float64), torch.arange(n) % 5

    return batch


def staged(pattern: str, counts: tuple[int, ...]) -> tuple[str, ...]:
    """Return the sites of blocks in stages that return the new state."""
    paths = [pattern.format(i, j) for i, n in enumerate(counts) for j in range(n)]
    return (f"in:{paths[0]}", *paths)


def layered(counts: tuple[int, ...]) -> tuple[str, ...]:
    """Return the sites of layer1 … layer4."""
    paths = [f"layer{i + 1}.{j}" for i, n in enumerate(counts) for j in range(n)]
    return (f"in:{paths[0]}", *paths)


def cases() -> Iterator[Case]:
    """Yield the networks."""

    def of(name: str, build: Any, sites: Any, reads: Any = None, size: int = 16) -> Case:
        return Case(name, "timm", build, images(size), sites, reads)

    vit = models.vision_transformer.VisionTransformer
    yield of("ViT", partial(vit, **VIT), outputs("blocks", 3), 0)
    yield of("ViT, mean", partial(vit, **VIT, global_pool="avg"), outputs("blocks", 3), list(range(1, 17)))
    yield of("ViT, registers", partial(vit, **VIT, reg_tokens=3), outputs("blocks", 3), 0)
    yield of("ViT, map", partial(vit, **VIT, global_pool="map"), outputs("blocks", 3), list(range(1, 17)))
    yield of("ViT, LayerScale", partial(vit, **VIT, init_values=0.1), outputs("blocks", 3), 0)
    yield of(
        "ViT, post-norm", partial(vit, **VIT, block_fn=models.vision_transformer.ResPostBlock), outputs("blocks", 3), 0
    )
    yield of(
        "ViT, parallel",
        partial(vit, **VIT, block_fn=models.vision_transformer.ParallelThingsBlock),
        outputs("blocks", 3),
        0,
    )
    yield of("DeiT distilled", partial(models.deit.VisionTransformerDistilled, **VIT), outputs("blocks", 3), [0, 1])
    yield of("BEiT", partial(models.beit.Beit, **VIT), outputs("blocks", 3), list(range(1, 17)))
    yield of("EVA", partial(models.eva.Eva, **VIT), outputs("blocks", 3), list(range(1, 17)))
    yield of("CaiT", partial(models.cait.Cait, **VIT), outputs("blocks", 3), "mean")
    yield of(
        "XCiT", partial(models.xcit.Xcit, **{**VIT, "patch_size": 8, "img_size": 32}), outputs("blocks", 3), "mean", 32
    )
    yield of(
        "Mixer",
        partial(models.mlp_mixer.MlpMixer, img_size=16, patch_size=4, embed_dim=16, num_blocks=3, num_classes=5),
        outputs("blocks", 3),
        "mean",
    )
    yield of(
        "ConvMixer",
        partial(models.convmixer.ConvMixer, 16, 3, kernel_size=3, patch_size=4, num_classes=5),
        ("in:blocks.0", "in:blocks.1", "in:blocks.2", "blocks.2"),
    )
    basic, bottle = models.resnet.BasicBlock, models.resnet.Bottleneck
    for name, block, more in (
        ("ResNet basic", basic, {}),
        ("ResNet bottleneck", bottle, {}),
        ("ResNet-D", basic, {"stem_type": "deep", "stem_width": 8, "avg_down": True}),
        ("SE-ResNet", basic, {"block_args": {"attn_layer": "se"}}),
    ):
        yield of(
            name,
            partial(models.resnet.ResNet, block, (1, 2, 1, 1), num_classes=5, **more),
            layered((1, 2, 1, 1)),
            None,
            32,
        )
    yield of(
        "Res2Net",
        partial(
            models.resnet.ResNet,
            models.res2net.Bottle2neck,
            (1, 2, 1, 1),
            num_classes=5,
            base_width=14,
            block_args={"scale": 2},
        ),
        layered((1, 2, 1, 1)),
        None,
        32,
    )
    yield of(
        "ResNetV2",
        partial(models.resnetv2.ResNetV2, [1, 2, 1], channels=(128, 128, 128), num_classes=5),
        staged("stages.{}.blocks.{}", (1, 2, 1)),
        None,
        32,
    )
    yield of(
        "ConvNeXt",
        partial(models.convnext.ConvNeXt, depths=(1, 2, 1, 1), dims=(8, 8, 16, 16), num_classes=5, ls_init_value=1.0),
        staged("stages.{}.blocks.{}", (1, 2, 1, 1)),
        None,
        32,
    )
    yield of(
        "PoolFormer",
        partial(
            models.metaformer.MetaFormer,
            depths=(1, 2),
            dims=(8, 16),
            num_classes=5,
            token_mixers=models.metaformer.Pooling,
        ),
        staged("stages.{}.blocks.{}", (1, 2)),
        None,
        32,
    )
    yield of(
        "Swin",
        partial(
            models.swin_transformer.SwinTransformer,
            img_size=32,
            patch_size=4,
            embed_dim=8,
            depths=(2, 2),
            num_heads=(2, 2),
            window_size=4,
            num_classes=5,
        ),
        staged("layers.{}.blocks.{}", (2, 2)),
        None,
        32,
    )
    yield of(
        "Swin V2",
        partial(
            models.swin_transformer_v2.SwinTransformerV2,
            img_size=32,
            patch_size=4,
            embed_dim=8,
            depths=(2, 2),
            num_heads=(2, 2),
            window_size=4,
            num_classes=5,
        ),
        staged("layers.{}.blocks.{}", (2, 2)),
        None,
        32,
    )
    yield of(
        "EfficientNet",
        partial(timm.create_model, "efficientnet_b0", num_classes=5),
        staged("blocks.{}.{}", (1, 2, 2, 3, 3, 4, 1)),
        None,
        32,
    )
    yield of(
        "MobileNetV3",
        partial(timm.create_model, "mobilenetv3_small_050", num_classes=5),
        staged("blocks.{}.{}", (1, 2, 3, 2, 3, 1)),
        None,
        32,
    )
    yield of(
        "DenseNet", partial(models.densenet.DenseNet, growth_rate=4, block_config=(2, 2), num_classes=5), (), None, 32
    )
    yield of(
        "TNT",
        partial(
            models.tnt.TNT,
            img_size=16,
            patch_size=8,
            embed_dim=16,
            inner_dim=8,
            depth=3,
            num_heads_inner=2,
            num_heads_outer=2,
            num_classes=5,
        ),
        (),
        0,
    )
    yield of(
        "CrossViT",
        partial(
            models.crossvit.CrossVit,
            img_size=32,
            img_scale=(1.0, 1.0),
            patch_size=(8, 16),
            embed_dim=(16, 16),
            depth=((1, 1, 0), (1, 1, 0)),
            num_heads=(2, 2),
            mlp_ratio=(2.0, 2.0, 1.0),
            num_classes=5,
        ),
        (),
        0,
        32,
    )
    yield of(
        "PiT",
        partial(
            models.pit.PoolingVisionTransformer,
            img_size=32,
            patch_size=8,
            stride=4,
            stem_type="overlap",
            base_dims=[8, 8],
            depth=[1, 2],
            heads=[1, 2],
            mlp_ratio=2,
            num_classes=5,
        ),
        ("in:transformers.0.blocks.0", "transformers.0.blocks.0", "transformers.1.blocks.0", "transformers.1.blocks.1"),
        (lambda h: h[:, 0].norm(dim=1) if h.shape[1] == 17 else h.norm(dim=2).mean(1)),
        32,
    )
    yield of(
        "Hiera",
        partial(
            models.hiera.Hiera,
            img_size=32,
            embed_dim=8,
            num_heads=1,
            stages=(1, 2, 1),
            mask_unit_size=(2, 2),
            q_pool=1,
            num_classes=5,
        ),
        outputs("blocks", 4),
        "mean",
        32,
    )
