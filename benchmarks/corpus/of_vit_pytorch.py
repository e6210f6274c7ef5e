"""Networks of vit-pytorch: blocks in lists of lists, sums outside of the modules."""

# a network is a line of its table

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import torch
from case import Case, mark, outputs
from torch import Tensor, nn

VIT = {"image_size": 8, "patch_size": 4, "num_classes": 5, "dim": 16, "depth": 2, "heads": 2, "mlp_dim": 32}


def images() -> Any:
    """A batch of images."""
    g = torch.Generator().manual_seed(1)
    return torch.randn(6, 3, 8, 8, generator=g, dtype=torch.float64), torch.arange(6) % 5


def larger() -> Any:
    """A batch of larger images."""
    g = torch.Generator().manual_seed(1)
    return torch.randn(3, 3, 32, 32, generator=g, dtype=torch.float64), torch.arange(3)


def series() -> Any:
    """A batch of series, (B, 3, 16)."""
    g = torch.Generator().manual_seed(1)
    return torch.randn(6, 3, 16, generator=g, dtype=torch.float64), torch.arange(6) % 5


def video() -> Any:
    """A batch of videos."""
    g = torch.Generator().manual_seed(1)
    return torch.randn(4, 3, 2, 8, 8, generator=g, dtype=torch.float64), torch.arange(4)


def build(module: str, name: str, **config: Any) -> Any:
    """Return a function that builds one."""
    return lambda: getattr(importlib.import_module(f"vit_pytorch.{module}"), name)(**config)


def pairs(
    depth: int = 2, top: str = "transformer.layers", norm: str = "transformer.norm", parts: int = 2
) -> tuple[str, ...]:
    """Sites of x = f(x) + x in a list of lists: what every part is given, and the norm after them."""
    return (*(f"in:{top}.{i}.{j}" for i in range(depth) for j in range(parts)), f"in:{norm}")


def _marked_nvit(config: dict[str, Any]) -> nn.Module:
    """Return an nViT whose forward pass, as the library has it, marks its states: no module is handed the last."""
    module = importlib.import_module("vit_pytorch.normalized_vit")

    class Marked(module.nViT):
        def forward(self, images: Tensor) -> Tensor:
            h = self.to_patch_embedding(images)
            h = module.l2norm(h + self.abs_pos_emb.weight[torch.arange(h.shape[-2])])
            mark(h)
            for parts, scales in zip(self.layers, self.residual_lerp_scales):
                for part, alpha in zip(parts, scales):
                    h = module.l2norm(h.lerp(module.l2norm(part(h)), alpha * self.scale))
                    mark(h)
            return self.to_pred(h.mean(1)) * self.logit_scale * self.scale

    return Marked(**config)


def cases() -> Iterator[Case]:
    """Yield the networks."""
    where = "vit-pytorch"

    def of(module: str, name: str, sites: Any, reads: Any, batch: Any = images, **config: Any) -> Case:
        return Case(f"{module}.{name}", where, build(module, name, **config), batch, sites, reads)

    small = dict(VIT)
    yield of("vit", "ViT", pairs(), 0, **small)
    yield of("vit", "ViT", pairs(), "mean", **small, pool="mean")
    yield of("simple_vit", "SimpleViT", pairs(), "mean", **small)
    yield of("deepvit", "DeepViT", pairs(norm="mlp_head.0"), 0, **small)
    yield of("vit_for_small_dataset", "ViT", pairs(norm="mlp_head"), 0, **small)
    yield of("parallel_vit", "ViT", pairs(norm="mlp_head.0"), 0, **small, num_parallel_branches=2)
    yield of("simple_vit_with_qk_norm", "SimpleViT", pairs(), "mean", **small)
    yield of("simple_vit_with_register_tokens", "SimpleViT", pairs(), [0, 1, 2, 3], **small, num_register_tokens=2)
    yield of("simple_vit_with_patch_dropout", "SimpleViT", pairs(), "mean", **small)
    yield of("simple_vit_with_fft", "SimpleViT", pairs(), [4, 5, 6, 7], **small, freq_patch_size=4)
    yield of("simple_vit_with_value_residual", "SimpleViT", pairs(), "mean", **small)
    yield of("simple_uvit", "SimpleUViT", (), "mean", **small)
    yield of("vit_with_decorr", "ViT", pairs(), 0, **small)
    yield of("vit_with_patch_dropout", "ViT", pairs(norm="mlp_head.0"), 0, **small)
    yield of(
        "simple_vit_1d",
        "SimpleViT",
        pairs(),
        "mean",
        series,
        seq_len=16,
        patch_size=4,
        num_classes=5,
        dim=16,
        depth=2,
        heads=2,
        mlp_dim=32,
    )
    yield of(
        "vit_1d",
        "ViT",
        pairs(norm="mlp_head.0"),
        0,
        series,
        seq_len=16,
        patch_size=4,
        num_classes=5,
        dim=16,
        depth=2,
        heads=2,
        mlp_dim=32,
    )
    video3 = {
        "image_size": 8,
        "image_patch_size": 4,
        "frames": 2,
        "frame_patch_size": 1,
        "num_classes": 5,
        "dim": 16,
        "depth": 2,
        "heads": 2,
        "mlp_dim": 32,
    }
    yield of("vit_3d", "ViT", pairs(norm="mlp_head.0"), 0, video, **video3)
    yield of("simple_vit_3d", "SimpleViT", pairs(), "mean", video, **video3)
    given = (*(f"in:transformer.layers.{i}" for i in range(4)), "transformer.post_norms.2")
    yield of("vit_with_keel_post_ln", "ViT", given, 0, **small)
    yield of("learnable_memory_vit", "ViT", pairs(norm="mlp_head.0"), 0, **small)
    yield Case("normalized_vit.nViT", "vit-pytorch", lambda: _marked_nvit(small), images, (), "mean")
    yield of(
        "cct",
        "CCT",
        outputs("classifier.blocks", 3),
        "mean",
        larger,
        img_size=(32, 32),
        embedding_dim=16,
        n_conv_layers=1,
        kernel_size=7,
        stride=4,
        padding=3,
        pooling_kernel_size=3,
        pooling_stride=2,
        pooling_padding=1,
        num_layers=3,
        num_heads=2,
        mlp_ratio=2.0,
        num_classes=5,
    )
