"""A fourth set: plain networks, residual ones and libraries'; their sites were written down before a first reading."""

# ruff: noqa: D101, D106, E501  # a network is a few lines, and its case names it

from __future__ import annotations

import importlib
from functools import partial

import torch
import torch.nn.functional as F
from case import Case, mark, next_token, outputs
from small import Att, C, D, Mlp, Pre, Tok, collector, generator, img, labels, ser, stacker, vec, words
from torch import nn

ALL, case = collector("fourth set")
stack = stacker(case)


@case("PEPITA: layers by add_module, getattr in a loop, kwargs for masks", img)
class Pepita(nn.Module):
    def __init__(s):
        super().__init__()
        for i, (a, b) in enumerate([(192, 16), (16, 16), (16, C)]):
            s.add_module(f"fc{i}", nn.Linear(a, b, bias=False))

    def forward(s, x, do_masks=None):
        x = x.reshape(-1, 192)
        for i in range(2):
            x = getattr(s, f"fc{i}")(x)
            mark(x)
            x = F.relu(x)
            if do_masks is not None:
                x = x * do_masks[i]
        return F.softmax(s.fc2(x), dim=1).clamp_min(1e-9).log()


@case("equilibrium propagation CNN: synapses and pools in two lists", img)
class EpCnn(nn.Module):
    def __init__(s):
        super().__init__()
        s.pools = [lambda h: F.max_pool2d(h, 2), lambda h: F.max_pool2d(h, 2), None]
        s.synapses = nn.ModuleList([nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1), nn.Linear(32, C)])

    def forward(s, x):
        h = x
        for syn, pool in zip(s.synapses[:-1], s.pools):
            a = pool(syn(h))
            mark_before = a
            h = torch.clamp(a, 0, 1)
            del mark_before
        return s.synapses[-1](h.view(h.size(0), -1))


ALL[-1] = Case(ALL[-1].name, ALL[-1].library, EpCnn, img, ("synapses.0", "synapses.1"))


@case("local errors: every block detaches in training mode only")
class Greedy(nn.Module):
    def __init__(s):
        super().__init__()
        s.blocks = nn.ModuleList(
            [nn.Sequential(nn.Linear(a, b), nn.LayerNorm(b), nn.ReLU()) for a, b in ((6, 12), (12, 12), (12, 10))]
        )
        s.heads = nn.ModuleList([nn.Linear(n, C) for n in (12, 12, 10)])

    def forward(s, x):
        outs = []
        for block, head in zip(s.blocks, s.heads):
            z = block[0](x.detach() if s.training else x)
            mark(z)
            x = block[2](block[1](z))
            outs.append(head(x))
        return outs[-1]


@case("spiking layers in a list, leaky membranes in Python lists, two steps")
class Snn(nn.Module):
    def __init__(s):
        super().__init__()
        s.fcs = nn.ModuleList([nn.Linear(6, 12), nn.Linear(12, 10), nn.Linear(10, C)])

    def forward(s, x):
        mem = [0.0, 0.0, 0.0]
        for _ in range(2):
            h = x
            for i, fc in enumerate(s.fcs):
                current = fc(h)
                if i < 2:
                    mark(current)
                mem[i] = 0.8 * mem[i] + current
                h = torch.sigmoid(4 * mem[i])
        return mem[-1]


@case("variational autoencoder, mean of the code, classes from it")
class Vae(nn.Module):
    def __init__(s):
        super().__init__()
        s.enc, s.mu, s.logvar, s.dec, s.out = (
            nn.Linear(6, 12),
            nn.Linear(12, 4),
            nn.Linear(12, 4),
            nn.Linear(4, 12),
            nn.Linear(12, C),
        )

    def forward(s, x):
        h = s.enc(x)
        mark(h)
        mu, logvar = s.mu(F.relu(h)), s.logvar(F.relu(h))
        mark(mu)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar) if s.training else mu
        d = s.dec(z)
        mark(d)
        return {"logits": s.out(F.relu(d)), "mu": mu, "logvar": logvar}


@case("encoder and classifier as two networks of one module", words)
class Two(nn.Module):
    def __init__(s):
        super().__init__()
        s.encoder = nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.Linear(56, 12), nn.ReLU(), nn.Linear(12, 10))
        s.classifier = nn.Sequential(nn.ReLU(), nn.Linear(10, C))

    def forward(s, x):
        for i, m in enumerate(s.encoder):
            x = m(x)
            if i in (0, 2, 4):
                mark(x)
        return s.classifier(x)


@case("stacked LSTMs by hand, last step", ser, lambda h: h.flatten(1).norm(dim=1))
class Lstms(nn.Module):
    def __init__(s):
        super().__init__()
        s.a, s.b, s.fc, s.out = (
            nn.LSTM(6, 10, batch_first=True),
            nn.LSTM(10, 8, batch_first=True),
            nn.Linear(8, 7),
            nn.Linear(7, C),
        )

    def forward(s, x):
        h, _ = s.a(x)
        mark(h)
        h, _ = s.b(h)
        mark(h)
        h = s.fc(h[:, -1])
        mark(h)
        return s.out(torch.tanh(h))


@case("standardised weights: a Conv2d of one's own with F.conv2d inside, group norm", img)
class WsNet(nn.Module):
    class Ws(nn.Conv2d):
        def forward(s, x):
            w = s.weight - s.weight.mean((1, 2, 3), keepdim=True)
            return F.conv2d(x, w / (w.std((1, 2, 3), keepdim=True) + 1e-5), s.bias, s.stride, s.padding)

    def __init__(s):
        super().__init__()
        s.a, s.b, s.n, s.out = s.Ws(3, 6, 3), s.Ws(6, 6, 3), nn.GroupNorm(2, 6), nn.Linear(24, C)

    def forward(s, x):
        h = s.a(x)
        mark(h)
        h = s.b(F.relu(s.n(h)))
        mark(h)
        return s.out(F.avg_pool2d(F.relu(h), 2).flatten(1))


def of_y_hat(out, y):
    return F.cross_entropy(out["y_hat"] if isinstance(out, dict) else out, y, reduction="none")


@case("layers in a dict of ModuleLists, the answer under 'y_hat'", loss=of_y_hat)
class Dicts(nn.Module):
    def __init__(s):
        super().__init__()
        s.net = nn.ModuleDict(
            {"body": nn.ModuleList([nn.Linear(6, 12), nn.Linear(12, 12)]), "head": nn.ModuleList([nn.Linear(12, C)])}
        )

    def forward(s, x):
        acts = {}
        for i, layer in enumerate(s.net["body"]):
            z = layer(x)
            mark(z)
            x = acts[f"a{i}"] = F.softplus(z)
        return {"activations": acts, "y_hat": s.net["head"][0](x)}


@case(
    "time-distributed CNN: frames folded into the batch",
    lambda: (torch.randn(6, 4, 3, 8, 8, generator=generator(3), dtype=torch.float64), labels()),
)
class Frames(nn.Module):
    def __init__(s):
        super().__init__()
        s.c1, s.c2, s.fc, s.out = nn.Conv2d(3, 4, 3, 2), nn.Conv2d(4, 6, 3), nn.Linear(6, 10), nn.Linear(10, C)

    def forward(s, x):
        b, t = x.shape[:2]
        h = s.c1(x.flatten(0, 1)).unflatten(0, (b, t))
        mark(h)
        h = s.c2(F.relu(h).flatten(0, 1)).unflatten(0, (b, t))
        mark(h)
        h = s.fc(F.relu(h).mean((1, 3, 4)))
        mark(h)
        return s.out(F.relu(h))


@case(
    "PointNet: shared layers by 1x1 convolutions, max over points",
    lambda: (torch.randn(6, 3, 9, generator=generator(4), dtype=torch.float64), labels()),
)
class PointNet(nn.Module):
    def __init__(s):
        super().__init__()
        s.c1, s.c2, s.bn, s.fc, s.out = (
            nn.Conv1d(3, 8, 1),
            nn.Conv1d(8, 12, 1),
            nn.BatchNorm1d(8),
            nn.Linear(12, 8),
            nn.Linear(8, C),
        )

    def forward(s, x):
        h = s.c1(x)
        mark(h)
        h = s.c2(F.relu(s.bn(h)))
        mark(h)
        h = s.fc(h.max(-1)[0])
        mark(h)
        return s.out(F.relu(h))


@case("squeeze and excite between two convolutions", img)
class Se(nn.Module):
    def __init__(s):
        super().__init__()
        s.c1, s.c2, s.down, s.up, s.out = (
            nn.Conv2d(3, 8, 3),
            nn.Conv2d(8, 8, 3),
            nn.Linear(8, 4),
            nn.Linear(4, 8),
            nn.Linear(8, C),
        )

    def forward(s, x):
        h = s.c1(x)
        mark(h)
        h = F.relu(h)
        a = s.down(h.mean((2, 3)))
        mark(a)
        b = s.up(F.relu(a))
        mark(b)
        h = s.c2(h * torch.sigmoid(b)[..., None, None])
        mark(h)
        return s.out(F.relu(h).mean((2, 3)))


class Coupled(nn.Module):
    def __init__(s):
        super().__init__()
        s.f = Mlp()

    def forward(s, t, h):
        return h + s.f(h) * (1 + t)


stack(
    "2 dict of state and step counter, float",
    lambda s, h, b, i, h0: b({"h": h, "t": torch.tensor(0.5, dtype=h.dtype)})["h"],
    lambda: _InDict(),
)


class _InDict(nn.Module):
    def __init__(s):
        super().__init__()
        s.f = Mlp()

    def forward(s, d):
        return {"h": d["h"] + d["t"] * s.f(d["h"]), "t": d["t"]}


stack("2 the time comes first: block(t, h)", lambda s, h, b, i, h0: b(s.temb[i], h), Coupled,
      extra=lambda s: setattr(s, "temb", nn.ParameterList([torch.randn(D) * 0.1 for _ in range(4)])))  # fmt: skip
stack("2 block returns (branch, extra), added outside", lambda s, h, b, i, h0: h + b(h)[0], lambda: _WithExtra())


class _WithExtra(nn.Module):
    def __init__(s):
        super().__init__()
        s.f, s.g = Mlp(), nn.Linear(D, 2)

    def forward(s, h):
        return s.f(h), s.g(h)


stack("7 pre-scaled by a module: h + LayerScale(f(norm(h)))", lambda s, h, b, i, h0: h + s.scales[i] * b(F.layer_norm(h, (D,))),
      extra=lambda s: setattr(s, "scales", nn.ParameterList([torch.full((D,), 0.2) for _ in range(4)])))  # fmt: skip
stack("7 branch dropped out by a mask of ones", lambda s, h, b, i, h0: h + b(h) * torch.ones(len(h), 1, dtype=h.dtype))
stack(
    "7 RMS norm after the sum, by hand",
    lambda s, h, b, i, h0: (lambda z: z / (z.square().mean(-1, keepdim=True) + 1e-6).sqrt())(h + b(h)),
)
stack(
    "5 each block is called with the state and again with its own output",
    lambda s, h, b, i, h0: (mark(m := b(h)), b(m))[1],
    Pre,
    n=3,
)
stack(
    "3 mean of the last three tokens",
    lambda s, h, b, i, h0: b(h),
    Tok,
    ser,
    [4, 5, 6],
    n=3,
    end=lambda s, h: h[:, -3:].mean(1),
)
stack(
    "3 norm, then the first token and the mean added",
    lambda s, h, b, i, h0: b(h),
    Tok,
    ser,
    "mean",
    n=3,
    end=lambda s, h: (lambda z: z[:, 0] + z.mean(1))(F.layer_norm(h, (D,))),
)


@case("6 three stages, widths by a linear between stages", ser, "mean")
class Stages(nn.Module):
    def __init__(s):
        super().__init__()
        s.stem, s.head = nn.Linear(6, 8), nn.Linear(16, C)
        s.stages = nn.ModuleList([nn.ModuleList([Tok(n), Tok(n)]) for n in (8, D, 16)])
        s.necks = nn.ModuleList([nn.Linear(8, D), nn.Linear(D, 16)])

    def forward(s, x):
        h = s.stem(x)
        mark(h)
        for i, stage in enumerate(s.stages):
            if i:
                h = s.necks[i - 1](h)
            for b in stage:
                h = b(h)
                mark(h)
        return s.head(h.mean(1))


class Wave(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.c, s.r, s.k = nn.Conv1d(D, 2 * D, 2, dilation=d), nn.Conv1d(D, D, 1), nn.Conv1d(D, D, 1)
        s.pad = d

    def forward(s, h):
        a, b = s.c(F.pad(h, (s.pad, 0))).chunk(2, 1)
        z = torch.tanh(a) * torch.sigmoid(b)
        return h + s.r(z), s.k(z)


@case("1 WaveNet: states and skips, the readout reads the sum of skips", ser, lambda h: h.norm(dim=1).mean(1))
class WaveNet(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.blocks, s.out = nn.Conv1d(6, D, 1), nn.ModuleList([Wave(d) for d in (1, 2, 4)]), nn.Linear(D, C)

    def forward(s, x):
        h, total = s.inp(x.transpose(1, 2)), 0.0
        for b in s.blocks:
            h, skip = b(h)
            total = total + skip
        return s.out(F.relu(total)[:, :, -1])


@case(
    "8 TCN: Sequential of residual blocks with downsample",
    lambda: (torch.randn(6, 6, 10, generator=generator(8), dtype=torch.float64), labels()),
    lambda h: h[:, :, -1].norm(dim=1),
)
class Tcn(nn.Module):
    class Block(nn.Module):
        def __init__(s, a, b, d):
            super().__init__()
            s.c1, s.c2, s.d = nn.Conv1d(a, b, 2, dilation=d), nn.Conv1d(b, b, 2, dilation=d), d
            s.downsample = nn.Conv1d(a, b, 1) if a != b else None

        def forward(s, x):
            z = F.relu(s.c1(F.pad(x, (s.d, 0))))
            z = F.relu(s.c2(F.pad(z, (s.d, 0))))
            return F.relu(z + (x if s.downsample is None else s.downsample(x)))

    def __init__(s):
        super().__init__()
        s.network, s.linear = nn.Sequential(s.Block(6, 8, 1), s.Block(8, 8, 2), s.Block(8, 8, 4)), nn.Linear(8, C)

    def forward(s, x):
        x = x if x.requires_grad else x.requires_grad_()
        mark(x)
        for b in s.network:
            x = b(x)
            mark(x)
        return s.linear(x[:, :, -1])


@case("8 list with norm first: [norm, block, norm, block], called in pairs", ser, "mean")
class NormFirst(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.out, s.body = nn.Linear(6, D), nn.Linear(D, C), nn.ModuleList()
        for _ in range(3):
            s.body.extend([nn.LayerNorm(D), Att()])

    def forward(s, x):
        h = s.inp(x)
        mark(h)
        for norm, block in zip(s.body[::2], s.body[1::2]):
            h = h + block(norm(h))
            mark(h)
        return s.out(h.mean(1))


@case("5 an encoder for the two halves of the input, then blocks on both together", vec)
class Halves(nn.Module):
    def __init__(s):
        super().__init__()
        s.emb, s.blocks, s.out = nn.Linear(3, 6), nn.ModuleList([Pre() for _ in range(3)]), nn.Linear(D, C)

    def forward(s, x):
        h = torch.cat([s.emb(x[:, :3]), s.emb(x[:, 3:])], 1)
        mark(h)
        for b in s.blocks:
            h = b(h)
            mark(h)
        return s.out(h)


def _libraries():
    """Yield networks of libraries that are installed."""
    from of_geometric import graph
    from of_timm import images, staged
    from of_transformers import IMAGE, KV, SMALL, TEXT, WORDS, ids, language, large, model_of, pixels
    from of_vit_pytorch import VIT, build, pairs
    from of_vit_pytorch import images as small_images
    from timm import models
    from torch_geometric import nn as gnn
    from torchvision import models as vision

    gqa = {**SMALL, "vocab_size": WORDS, "max_position_embeddings": 32, "pad_token_id": 1, **KV}
    for name, config, path in (
        ("Olmo3ForCausalLM", gqa, "model.layers"),
        (
            "Qwen3MoeForCausalLM",
            {**gqa, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
            "model.layers",
        ),
        ("GraniteMoeForCausalLM", {**gqa, "num_local_experts": 3, "num_experts_per_tok": 2}, "model.layers"),
        ("Ernie4_5ForCausalLM", gqa, "model.layers"),
        (
            "JetMoeForCausalLM",
            {**gqa, "num_local_experts": 3, "num_experts_per_tok": 2, "kv_channels": 8},
            "model.layers",
        ),
        ("BitNetForCausalLM", gqa, "model.layers"),
    ):
        from fifth_libraries import eager

        yield Case(name, "fourth set", eager(model_of(name, config)), language, outputs(path, 3), "mean", next_token)
    for name, config, path in (
        (
            "RoCBertForSequenceClassification",
            {**TEXT, "enable_pronunciation": False, "enable_shape": False},
            "roc_bert.encoder.layer",
        ),
        ("LongformerForSequenceClassification", {**TEXT, "attention_window": [4, 4, 4]}, "longformer.encoder.layer"),
        (
            "XmodForSequenceClassification",
            {**TEXT, "languages": ["en_XX"], "default_language": "en_XX"},
            "roberta.encoder.layer",
        ),
        ("BigBirdForSequenceClassification", {**TEXT, "attention_type": "original_full"}, "bert.encoder.layer"),
    ):
        yield Case(name, "fourth set", model_of(name, config), ids, outputs(path, 3), 0)
    yield Case(
        "Dinov2ForImageClassification, SwiGLU",
        "fourth set",
        model_of("Dinov2ForImageClassification", {**IMAGE, "use_swiglu_ffn": True}),
        pixels,
        outputs("dinov2.encoder.layer", 3),
        "mean",
    )
    yield Case("FocalNetForImageClassification", "fourth set", model_of("FocalNetForImageClassification", {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 2], "hidden_sizes": [8, 16], "focal_levels": [2, 2], "focal_windows": [3, 3], "num_labels": 5}), large,
               ("in:focalnet.encoder.stages.0.layers.0", "focalnet.encoder.stages.0.layers.0", "focalnet.encoder.stages.1.layers.0", "focalnet.encoder.stages.1.layers.1"), "mean")  # fmt: skip
    yield Case(
        "timm MambaOut",
        "fourth set",
        partial(models.mambaout.MambaOut, depths=(1, 2), dims=(8, 16), num_classes=5),
        images(32),
        staged("stages.{}.blocks.{}", (1, 2)),
        None,
    )
    yield Case(
        "timm RepViT",
        "fourth set",
        partial(models.repvit.RepVit, embed_dim=(8, 16), depth=(1, 2), num_classes=5),
        images(32),
        ("in:stages.0.blocks.0", "stages.0.blocks.0", "stages.1.blocks.0", "stages.1.blocks.1"),
        None,
    )
    yield Case("timm Sequencer", "fourth set", partial(models.sequencer.Sequencer2d, layers=(1, 2), patch_sizes=(4, 2), embed_dims=(8, 16), hidden_sizes=(4, 8), mlp_ratios=(2.0, 2.0), num_classes=5), images(16),
               ("in:stages.0.blocks.0", "stages.0.blocks.0", "stages.1.blocks.0", "stages.1.blocks.1"), None)  # fmt: skip
    yield Case(
        "timm EdgeNeXt",
        "fourth set",
        partial(
            models.edgenext.EdgeNeXt,
            dims=(8, 8, 16, 16),
            depths=(1, 2, 1, 1),
            global_block_counts=(0, 1, 0, 0),
            kernel_sizes=(3, 3, 3, 3),
            heads=(2, 2, 2, 2),
            d2_scales=(2, 2, 2, 2),
            num_classes=5,
        ),
        images(32),
        staged("stages.{}.blocks.{}", (1, 2, 1, 1)),
        None,
    )
    yield Case("torchvision Swin3D", "fourth set", lambda: vision.video.SwinTransformer3d([2, 4, 4], 8, [1, 2], [2, 2], [2, 2, 2], num_classes=5),
               lambda: (torch.randn(2, 3, 4, 16, 16, generator=generator(1), dtype=torch.float64), torch.arange(2)), ("in:features.0.0", "features.0.0", "features.2.0", "features.2.1"), None)  # fmt: skip
    yield Case(
        "torchvision ResNet wide",
        "fourth set",
        lambda: vision.resnet.ResNet(vision.resnet.Bottleneck, [1, 1, 1, 2], num_classes=5, width_per_group=128),
        images(32, 3),
        ("in:layer1.0", "layer1.0", "layer2.0", "layer3.0", "layer4.0", "layer4.1"),
        None,
    )
    yield Case(
        "vit_5.ViT", "fourth set", build("vit_5", "ViT", **VIT), small_images, (*pairs()[:4], "in:transformer.norm"), 0
    )
    yield Case(
        "vit_detpool.ViTDetPool",
        "fourth set",
        build("vit_detpool", "ViTDetPool", **VIT),
        small_images,
        pairs(),
        [1, 2, 3, 4],
    )
    for name in ("GraphConv", "TransformerConv", "ResGatedGraphConv", "ARMAConv"):
        yield Case(f"PyG plain {name}", "fourth set", lambda name=name: _Plain(getattr(gnn, name)), graph, ("a", "b"))
    yield Case("PyG GPS", "fourth set", lambda: _Gps(gnn), graph, ("in:convs.0", "convs.0", "convs.1"))
    yield Case(
        "PyG GAT with four heads",
        "fourth set",
        lambda: gnn.models.GAT(6, 12, 3, 5, heads=4),
        graph,
        ("convs.0", "convs.1"),
    )
    nets = importlib.import_module("monai.networks.nets")
    yield Case("monai Critic-like classifier", "fourth set", partial(nets.Classifier, (1, 16, 16), 5, (4, 8), (2, 2), num_res_units=0), lambda: (torch.randn(4, 1, 16, 16, generator=generator(1), dtype=torch.float64), torch.arange(4)),
               ("net.layer_0.conv", "net.layer_1.conv"))  # fmt: skip


class _Plain(nn.Module):
    def __init__(s, conv):
        super().__init__()
        s.a, s.b, s.c = conv(6, 12), conv(12, 12), conv(12, C)

    def forward(s, x, edge_index):
        h = torch.relu(s.a(x, edge_index))
        return s.c(torch.relu(s.b(h, edge_index)), edge_index)


class _Gps(nn.Module):
    def __init__(s, gnn):
        super().__init__()
        s.inp, s.out = nn.Linear(6, D), nn.Linear(D, C)
        s.convs = nn.ModuleList(
            [
                gnn.GPSConv(
                    D,
                    gnn.GINConv(nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, D))),
                    heads=2,
                    norm="layer_norm",
                )
                for _ in range(2)
            ]
        )

    def forward(s, x, edge_index):
        h = s.inp(x)
        for conv in s.convs:
            h = conv(h, edge_index)
        return s.out(h)


def cases():
    """Yield the networks; those of libraries where they are installed."""
    yield from ALL
    try:
        importlib.import_module("torch_geometric")
    except ImportError:
        return
    yield from _libraries()
