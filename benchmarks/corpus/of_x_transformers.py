"""Networks of x-transformers: norms, scales and sums outside of the blocks."""

# a network is a line of its table

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from case import Case
from torch import Tensor
from x_transformers import Decoder, Encoder, TransformerWrapper, ViTransformerWrapper

OPTIONS: dict[str, dict[str, Any]] = {
    "pre-norm": {},
    "RMSNorm": {"use_rmsnorm": True},
    "post-norm": {"pre_norm": False},
    "sandwich": {"sandwich_norm": True},
    "rotary": {"rotary_pos_emb": True},
    "alibi": {"alibi_pos_bias": True, "alibi_num_heads": 2},
    "GLU": {"ff_glu": True},
    "gate residual": {"gate_residual": True},
    "scale residual": {"scale_residual": True},
    "macaron": {"macaron": True},
}


def ids() -> Any:
    """A batch of tokens."""
    g = torch.Generator().manual_seed(1)
    x = torch.randint(0, 20, (4, 7), generator=g)
    return x, x


def images() -> Any:
    """A batch of images."""
    g = torch.Generator().manual_seed(1)
    return torch.randn(4, 3, 16, 16, generator=g, dtype=torch.float64), torch.arange(4)


def shifted(out: Tensor, y: Tensor) -> Tensor:
    """Return (B,) losses of the next token, for `loss=` too."""
    return F.cross_entropy(out[:, :-1].transpose(1, 2), y[:, 1:], reduction="none").mean(1)


def sites(options: dict[str, Any], final: bool) -> tuple[str, ...]:
    """Sites are the sums of the stream: what every residual returns, and the stream before the first."""
    sublayers = 6 if options.get("macaron") else 4
    first = "in:attn_layers.layers.0.0.0" if options.get("pre_norm", True) else "in:attn_layers.layers.0.1"
    after = [
        f"attn_layers.layers.{i}.2" if options.get("pre_norm", True) else f"attn_layers.layers.{i}.0.2"
        for i in range(sublayers)
    ]
    return (first, *after)


def cases() -> Iterator[Case]:
    """Yield the networks."""
    for name, options in OPTIONS.items():
        for kind in (Decoder, Encoder):

            def build(kind: Any = kind, options: Any = options) -> Any:
                return TransformerWrapper(
                    num_tokens=20,
                    max_seq_len=16,
                    attn_layers=kind(dim=16, depth=2, heads=2, attn_dim_head=8, **options),
                )

            yield Case(f"{kind.__name__}, {name}", "x-transformers", build, ids, sites(options, True), "mean", shifted)
    yield Case(
        "ViT",
        "x-transformers",
        lambda: ViTransformerWrapper(
            image_size=16, patch_size=8, num_classes=5, attn_layers=Encoder(dim=16, depth=2, heads=2, attn_dim_head=8)
        ),
        images,
        sites({}, True),
        "mean",
    )
