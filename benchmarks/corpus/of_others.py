"""Networks of smaller libraries: mixers, Performer, Linformer, Reformer, Perceiver, TCN, tabular ones, diffusers."""

# ruff: noqa: D101, E731

from __future__ import annotations

import torch
from case import Case
from torch import nn

C = 5


def g(s):
    return torch.Generator().manual_seed(s)


def img(n=16):
    return lambda: (
        torch.randn(4, 3, n, n, generator=g(1), dtype=torch.float64),
        torch.randint(C, (4,), generator=g(2)),
    )


def seq(t=8, d=16):
    return lambda: (torch.randn(4, t, d, generator=g(1), dtype=torch.float64), torch.randint(C, (4,), generator=g(2)))


def ids(t=8, v=20):
    return lambda: (torch.randint(v, (4, t), generator=g(1)), torch.randint(C, (4,), generator=g(2)))


def lm(t=8, v=20):
    return lambda: (torch.randint(v, (4, t), generator=g(1)), torch.randint(v, (4, t), generator=g(2)))


class Pool(nn.Module):
    def __init__(s, body, d=16, how="mean"):
        super().__init__()
        s.stem = nn.Linear(16, 16)
        s.body, s.head, s.how = (body, nn.Linear(d, C), how)

    def forward(s, x):
        h = s.body(s.stem(x))
        h = h[0] if isinstance(h, tuple) else h
        return s.head(h.mean(1) if s.how == "mean" else h[:, 0])


ALL = []


def add(name, build, batch, sites=(), reads="mean"):
    ALL.append(Case(name, "others", build, batch, sites, reads))


def mk():
    import mlp_mixer_pytorch as mm

    add(
        "MLPMixer",
        lambda: mm.MLPMixer(image_size=16, channels=3, patch_size=4, dim=16, depth=3, num_classes=C),
        img(),
        ("in:2.0", *(f"{i}.{j}" for i in (2, 3, 4) for j in (0, 1))),
    )
    import g_mlp_pytorch as gm

    add(
        "gMLPVision",
        lambda: gm.gMLPVision(image_size=16, patch_size=4, num_classes=C, dim=16, depth=3),
        img(),
        ("in:layers.0", "layers.0", "layers.1", "layers.2"),
    )
    add(
        "gMLP",
        lambda: gm.gMLP(num_tokens=20, dim=16, depth=3, seq_len=8),
        lm(),
        ("in:layers.0", "layers.0", "layers.1", "layers.2"),
    )
    import conformer as cf

    add(
        "Conformer",
        lambda: Pool(cf.Conformer(16, depth=3, dim_head=8, heads=2, conv_kernel_size=3)),
        seq(),
        ("in:body.layers.0", *(f"body.layers.{i}" for i in range(3))),
    )
    import performer_pytorch as pf

    add(
        "Performer",
        lambda: Pool(pf.Performer(dim=16, depth=2, heads=2, dim_head=8, causal=False)),
        seq(),
        (*(f"in:body.net.layers.{i}.{j}" for i in (0, 1) for j in (0, 1)), "body"),
    )
    add(
        "PerformerLM",
        lambda: pf.PerformerLM(num_tokens=20, max_seq_len=8, dim=16, depth=2, heads=2, dim_head=8),
        lm(),
        (*(f"in:performer.net.layers.{i}.{j}" for i in (0, 1) for j in (0, 1)), "in:norm"),
    )
    add(
        "PerformerLM reversible",
        lambda: pf.PerformerLM(num_tokens=20, max_seq_len=8, dim=16, depth=2, heads=2, dim_head=8, reversible=True),
        lm(),
        (),
    )
    add(
        "PerformerLM rezero",
        lambda: pf.PerformerLM(num_tokens=20, max_seq_len=8, dim=16, depth=2, heads=2, dim_head=8, use_rezero=True),
        lm(),
        (*(f"in:performer.net.layers.{i}.{j}" for i in (0, 1) for j in (0, 1)), "in:norm"),
    )
    import linformer as lf

    add(
        "LinformerLM",
        lambda: lf.LinformerLM(num_tokens=20, dim=16, seq_len=8, depth=2, k=4, heads=2),
        lm(),
        (*(f"in:linformer.net.layers.{i}.{j}" for i in (0, 1) for j in (0, 1)), "in:to_logits"),
    )
    add(
        "LinformerLM reversible",
        lambda: lf.LinformerLM(num_tokens=20, dim=16, seq_len=8, depth=2, k=4, heads=2, reversible=True),
        lm(),
        (),
    )
    import reformer_pytorch as rf

    add(
        "ReformerLM",
        lambda: rf.ReformerLM(num_tokens=20, dim=16, depth=2, heads=2, max_seq_len=8, bucket_size=4),
        lm(),
        (),
    )
    import perceiver_pytorch as pp

    for tie in (False, True):
        add(
            f"Perceiver tie={tie}",
            lambda tie=tie: pp.Perceiver(
                input_channels=3,
                input_axis=2,
                num_freq_bands=2,
                depth=3,
                max_freq=4.0,
                num_latents=6,
                latent_dim=16,
                cross_heads=1,
                latent_heads=2,
                cross_dim_head=8,
                latent_dim_head=8,
                num_classes=C,
                weight_tie_layers=tie,
                self_per_cross_attn=1,
            ),
            lambda: (
                torch.randn(4, 8, 8, 3, generator=g(1), dtype=torch.float64),
                torch.randint(C, (4,), generator=g(2)),
            ),
            ("in:layers.0", "layers.0", *(("layers.1",) if tie else ("layers.1", "layers.2"))),
        )
    import pytorch_tcn as pt

    class T(nn.Module):
        def __init__(s, **k):
            super().__init__()
            s.t = pt.TCN(6, [8, 8, 8], kernel_size=3, **k)
            s.o = nn.Linear(8, C)

        def forward(s, x):
            return s.o(s.t(x)[:, :, -1])

    bt = lambda: (torch.randn(4, 6, 9, generator=g(1), dtype=torch.float64), torch.randint(C, (4,), generator=g(2)))
    add(
        "TCN",
        T,
        lambda: (bt()[0].requires_grad_(), bt()[1]),
        ("in:t.network.0", *(f"t.network.{i}" for i in range(3))),
        lambda h: h[:, :, -1].norm(dim=1),
    )
    add(
        "TCN skip",
        lambda: T(use_skip_connections=True),
        lambda: (bt()[0].requires_grad_(), bt()[1]),
        ("in:t.network.0", *(f"t.network.{i}" for i in range(3))),
        lambda h: h[:, :, -1].norm(dim=1),
    )
    import rtdl_revisiting_models as rr

    bx = lambda: (torch.randn(4, 6, generator=g(1), dtype=torch.float64), torch.randint(C, (4,), generator=g(2)))
    add(
        "rtdl ResNet",
        lambda: rr.ResNet(
            d_in=6, d_out=C, n_blocks=3, d_block=12, d_hidden=16, d_hidden_multiplier=None, dropout1=0.0, dropout2=0.0
        ),
        bx,
        ("in:blocks.0", "in:blocks.1", "in:blocks.2", "in:output"),
    )

    class RF(nn.Module):
        def __init__(s):
            super().__init__()
            s.m = rr.FTTransformer(
                n_cont_features=6,
                cat_cardinalities=[],
                d_out=C,
                **{**rr.FTTransformer.get_default_kwargs(), "n_blocks": 3, "d_block": 16, "attention_n_heads": 2},
            )

        def forward(s, x):
            return s.m(x, None)

    norms = [f"{i}.{part}_normalization" for i in (0, 1, 2) for part in ("attention", "ffn")]
    given = ("0.attention", *norms[1:], "2.output")  # the first block has no norm before its attention
    add("rtdl FTTransformer", RF, bx, tuple(f"in:m.backbone.blocks.{part}" for part in given), 0)
    from diffusers.models import DiTTransformer2DModel, SD3Transformer2DModel, UNet2DModel

    class DI(nn.Module):
        def __init__(s):
            super().__init__()
            s.m = DiTTransformer2DModel(
                num_attention_heads=2,
                attention_head_dim=8,
                in_channels=3,
                num_layers=3,
                sample_size=8,
                patch_size=2,
                num_embeds_ada_norm=10,
                norm_num_groups=1,
            )
            s.o = nn.Linear(3, C)

        def forward(s, x):
            t = torch.zeros(len(x), dtype=torch.long)
            return s.o(s.m(x, t, t).sample[:, :3].mean((2, 3)))

    add("diffusers DiT", DI, img(8), ("in:m.transformer_blocks.0", *(f"m.transformer_blocks.{i}" for i in range(3))))

    class S3(nn.Module):
        def __init__(s):
            super().__init__()
            s.m = SD3Transformer2DModel(
                sample_size=8,
                patch_size=2,
                in_channels=3,
                num_layers=3,
                attention_head_dim=8,
                num_attention_heads=2,
                joint_attention_dim=16,
                caption_projection_dim=16,
                pooled_projection_dim=8,
                out_channels=3,
                pos_embed_max_size=8,
            )
            s.o = nn.Linear(3, C)

        def forward(s, x):
            e = x.flatten(1)[:, :80].reshape(len(x), 5, 16)
            t = torch.zeros(len(x), dtype=x.dtype)
            return s.o(s.m(x, e, e.flatten(1)[:, :8], t).sample.mean((2, 3)))

    add("diffusers SD3 joint", S3, img(8), ())

    class UN(nn.Module):
        def __init__(s):
            super().__init__()
            s.m = UNet2DModel(
                sample_size=8,
                in_channels=3,
                out_channels=3,
                layers_per_block=1,
                block_out_channels=(8, 8),
                norm_num_groups=4,
                down_block_types=("DownBlock2D", "DownBlock2D"),
                up_block_types=("UpBlock2D", "UpBlock2D"),
            )
            s.o = nn.Linear(3, C)

        def forward(s, x):
            return s.o(s.m(x, torch.zeros(len(x))).sample.mean((2, 3)))

    add("diffusers UNet2D", UN, img(8), ())


def cases():
    """Yield them all."""
    ALL.clear()
    mk()
    yield from ALL
