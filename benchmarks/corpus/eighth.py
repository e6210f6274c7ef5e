"""A sixth unseen set, after the mends of the fifth; sites were written before a first reading."""

# ruff: noqa: D101, E731  # a network is a few lines, and its case names it

from __future__ import annotations

import importlib

import case as by_hand
import torch
import torch.nn.functional as F
from case import Case, mark, next_token, outputs
from seventh import Group, Injected, Skip, pictures, text, units
from small import Att, C, D, Mlp, Pre, collector, img, inputs, stacker, vec
from torch import nn

SET = "sixth set"
ALL, case = collector(SET)
stack = stacker(case)


def with_one_hot():
    """Return vectors and, as a second input, their labels as one-hot vectors."""
    x, y = vec()
    return {"x": x, "target": F.one_hot(y, C).double()}, y


class DfaLayer(nn.Module):
    """The identity; backward, an error that is projected at random."""

    def __init__(s, width):
        super().__init__()
        s.feedback = nn.Parameter(torch.randn(C, width), requires_grad=False)

    def forward(s, h, target):
        return h if by_hand._marks is not None else Injected.apply(h, target, s.feedback)


@case("TinyDFA-like: identity modules with feedback between a layer and its activation", with_one_hot)
class Tiny(nn.Module):
    def __init__(s):
        super().__init__()
        s.fc1, s.fc2, s.fc3 = nn.Linear(6, 12), nn.Linear(12, 10), nn.Linear(10, C)
        s.dfa1, s.dfa2 = DfaLayer(12), DfaLayer(10)

    def forward(s, x, target):
        h = s.fc1(x)
        mark(h)
        h = s.fc2(torch.tanh(s.dfa1(h, target)))
        mark(h)
        return s.fc3(torch.tanh(s.dfa2(h, target)))


class Kp(nn.Module):
    """A layer with a backward weight that is trained too, as Kolen and Pollack have it."""

    def __init__(s, a, b):
        super().__init__()
        s.forward_weight, s.backward_weight = (
            nn.Parameter(torch.randn(b, a) * 0.3),
            nn.Parameter(torch.randn(b, a) * 0.3),
        )
        s.bias = nn.Parameter(torch.zeros(b))

    def forward(s, x):
        return torch.addmm(s.bias, x, s.forward_weight.t())


@case("Kolen-Pollack: two weights a layer, one of them for the way back alone", img)
class KpNet(nn.Module):
    def __init__(s):
        super().__init__()
        s.flat, s.hidden, s.out = nn.Flatten(), nn.ModuleList([Kp(192, 12), Kp(12, 12)]), Kp(12, C)

    def forward(s, x):
        x = s.flat(x)
        for layer in s.hidden:
            x = layer(x)
            mark(x)
            x = torch.sigmoid(x)
        return s.out(x)


@case("a readout at every hidden layer, their logits are summed")
class Summed(nn.Module):
    def __init__(s):
        super().__init__()
        s.hidden = nn.ModuleList([nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 10)])
        s.readouts = nn.ModuleList([nn.Linear(n, C) for n in (12, 12, 10)])

    def forward(s, x):
        logits = 0.0
        for layer, readout in zip(s.hidden, s.readouts):
            x = layer(x)
            mark(x)
            x = F.relu(x)
            logits = logits + readout(x)
        return logits


@case("auxiliary heads in a dict beside the logits")
class Aux(nn.Module):
    def __init__(s):
        super().__init__()
        s.fc1, s.fc2, s.aux, s.fc3 = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, C), nn.Linear(12, C)

    def forward(s, x):
        a = s.fc1(x)
        mark(a)
        b = s.fc2(F.relu(a))
        mark(b)
        return {"logits": s.fc3(F.relu(b)), "aux": [s.aux(F.relu(a))]}


@case("lateral inhibition by a fixed matrix after each layer")
class Lateral(nn.Module):
    def __init__(s):
        super().__init__()
        s.f1, s.f2, s.out = nn.Linear(6, 12, bias=False), nn.Linear(12, 12, bias=False), nn.Linear(12, C)
        s.register_buffer("m", 0.1 * (torch.ones(12, 12) - torch.eye(12)))

    def forward(s, x):
        for layer in (s.f1, s.f2):
            a = layer(x)
            mark(a)
            r = F.relu(a)
            x = F.relu(a - r @ s.m.to(r.dtype))
        return s.out(x)


@case(
    "multiple instances: an encoder on (B, N, d), attention over the instances",
    inputs(51, 7, 6),
    lambda h: h.flatten(1).norm(dim=1),
)
class Mil(nn.Module):
    def __init__(s):
        super().__init__()
        s.encoder, s.att_v, s.att_w, s.head = nn.Linear(6, 12), nn.Linear(12, 8), nn.Linear(8, 1), nn.Linear(12, C)

    def forward(s, x):
        h = s.encoder(x)
        mark(h)
        h = F.relu(h)
        v = s.att_v(h)
        mark(v)
        w = s.att_w(torch.tanh(v))
        mark(w)
        return s.head((w.softmax(1) * h).sum(1))


@case("NeRF: the input is concatenated again in the middle")
class Nerf(nn.Module):
    def __init__(s):
        super().__init__()
        s.pts_linears = nn.ModuleList([nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(18, 12), nn.Linear(12, 12)])
        s.output_linear = nn.Linear(12, C)

    def forward(s, x):
        h = x
        for i, layer in enumerate(s.pts_linears):
            h = layer(h)
            mark(h)
            h = F.relu(h)
            if i == 1:
                h = torch.cat([x, h], -1)
        return s.output_linear(h)


@case("a subclass of nn.Sequential whose forward loops over itself", img)
class Looped(nn.Sequential):
    def __init__(s):
        super().__init__(
            nn.Conv2d(3, 4, 3),
            nn.Softplus(),
            nn.Conv2d(4, 6, 3, stride=2),
            nn.Softplus(),
            nn.Flatten(),
            nn.Linear(24, 10),
            nn.Softplus(),
            nn.Linear(10, C),
        )

    def forward(s, x):
        for i, m in enumerate(s):
            x = m(x)
            if i in (0, 2, 5):
                mark(x)
        return x


# -- residual ones ---------------------------------------------------------------------------------------------


@case("6 wide ResNet: three groups that are called, each holds a Sequential", img)
class Wrn(nn.Module):
    def __init__(s):
        super().__init__()
        s.conv1 = nn.Conv2d(3, 4, 3, 1, 1)
        s.block1, s.block2, s.block3 = Group(2, 4, 8, 1), Group(2, 8, 12, 2), Group(2, 12, 16, 2)
        s.bn1, s.fc = nn.BatchNorm2d(16), nn.Linear(16, C)

    def forward(s, x):
        h = s.block3(s.block2(s.block1(s.conv1(x))))
        return s.fc(F.relu(s.bn1(h)).mean((2, 3)))


ALL[-1] = Case(
    ALL[-1].name, SET, Wrn, img, ("in:block1.layer.0", *(f"block{i}.layer.{j}" for i in (1, 2, 3) for j in (0, 1)))
)


class Both(nn.Module):
    def __init__(s):
        super().__init__()
        s.ln, s.att, s.up, s.down = nn.LayerNorm(D), Att(), nn.Linear(D, 24), nn.Linear(24, D)

    def forward(s, h, layer_past=None, use_cache=False):
        z = s.ln(h)
        out = h + s.att(z) + s.down(F.gelu(s.up(z)))
        return (out, (z, z)) if use_cache else (out, None)


ser = inputs(13, 7, 6)
stack(
    "2 GPT-J: attention and MLP side by side, a cache returned and kept in a list",
    lambda s, h, b, i, h0: b(h, use_cache=True)[0],
    Both,
    ser,
    "mean",
    n=3,
)


@case("8 projections as shortcuts: h = relu(layer(h)) + skip(h), two lists", vec)
class Projected(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.out = nn.Linear(6, 8), nn.Linear(16, C)
        s.layers = nn.ModuleList([nn.Linear(a, b) for a, b in ((8, 12), (12, 12), (12, 16))])
        s.skips = nn.ModuleList([nn.Linear(a, b, bias=False) for a, b in ((8, 12), (12, 12), (12, 16))])

    def forward(s, x):
        h = s.inp(x)
        mark(h)
        for layer, skip in zip(s.layers, s.skips):
            h = F.relu(layer(h)) + skip(h)
            mark(h)
        return s.out(h)


class Field(nn.Module):
    def __init__(s):
        super().__init__()
        s.f = nn.Sequential(nn.Linear(D + 1, 24), nn.Tanh(), nn.Linear(24, D))

    def forward(s, t, y):
        return s.f(torch.cat([y, torch.full_like(y[:, :1], t)], 1))


@case("5 ODE network by Euler: func(t, y) is called four times, t a number", vec)
class Ode(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.func, s.out = nn.Linear(6, D), Field(), nn.Linear(D, C)

    def forward(s, x):
        y = s.inp(x)
        mark(y)
        for k in range(4):
            y = y + 0.25 * s.func(k / 4, y)
            mark(y)
        return s.out(y)


class Expert(nn.Module):
    def __init__(s):
        super().__init__()
        s.n, s.gate, s.experts = nn.LayerNorm(D), nn.Linear(D, 3), nn.ModuleList([Mlp() for _ in range(3)])

    def forward(s, h):
        p = s.gate(s.n(h)).softmax(-1)
        return h + sum(p[..., i : i + 1] * e(h) for i, e in enumerate(s.experts)), p.square().mean()


@case("2 experts: the balancing losses are summed and returned beside the logits", ser, "mean")
class Moe(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.blocks, s.out = nn.Linear(6, D), nn.ModuleList([Expert() for _ in range(3)]), nn.Linear(D, C)

    def forward(s, x):
        h, aux = s.inp(x), 0.0
        mark(h)
        for b in s.blocks:
            h, one = b(h)
            mark(h)
            aux = aux + one
        return s.out(h.mean(1)), aux


@case("8 blocks in a ModuleDict by name, called in a loop over its items")
class Named(nn.Module):
    def __init__(s):
        super().__init__()
        s.trunk = nn.ModuleDict(
            {"embed": nn.Linear(6, D), **{f"layer_{i}": Pre() for i in range(4)}, "head": nn.Linear(D, C)}
        )

    def forward(s, x):
        for name, m in s.trunk.items():
            x = m(x)
            if name != "head":
                mark(x)
        return x


class Smooth(nn.Module):
    def __init__(s):
        super().__init__()
        s.dw, s.n, s.a, s.b = (
            nn.Conv1d(D, D, 3, padding=1, groups=D),
            nn.LayerNorm(D),
            nn.Linear(D, 24),
            nn.Linear(24, D),
        )
        s.gamma = nn.Parameter(torch.full((D,), 0.5))

    def forward(s, x):
        z = s.dw(x).transpose(1, 2)
        return x + (s.gamma * s.b(F.gelu(s.a(s.n(z))))).transpose(1, 2)


@case("6 ConvNeXt over time: (B, d, T), strides between stages", inputs(52, 6, 16), lambda h: h.norm(dim=1).mean(1))
class Next(nn.Module):
    def __init__(s):
        super().__init__()
        s.downsample_layers = nn.ModuleList(
            [nn.Conv1d(6, D, 2, 2), nn.Sequential(nn.BatchNorm1d(D), nn.Conv1d(D, D, 2, 2))]
        )
        s.stages = nn.ModuleList([nn.Sequential(Smooth(), Smooth()), nn.Sequential(Smooth(), Smooth())])
        s.norm, s.head = nn.LayerNorm(D), nn.Linear(D, C)

    def forward(s, x):
        for i in range(2):
            x = s.downsample_layers[i](x)
            if not i:
                mark(x)
            for b in s.stages[i]:
                x = b(x)
                mark(x)
        return s.head(s.norm(x.mean(-1)))


@case("8 residual wrappers of lambdas in one Sequential, stem and head in it too", ser, "mean")
class Wrapped(nn.Module):
    def __init__(s):
        super().__init__()
        s.net = nn.Sequential(nn.Linear(6, D), *[Skip(m()) for _ in range(2) for m in (Att, Mlp)], nn.LayerNorm(D))
        s.head = nn.Linear(D, C)

    def forward(s, x):
        for i, m in enumerate(s.net):
            x = m(x)
            if i < 5:
                mark(x)
        return s.head(x.mean(1))


# -- libraries -------------------------------------------------------------------------------------------------


def _transformers():
    from fifth_libraries import eager
    from of_transformers import KV, SMALL, WORDS, language, model_of

    gqa = {**SMALL, "vocab_size": WORDS, "max_position_embeddings": 32, "pad_token_id": 1, **KV}
    for name, more in (
        ("OlmoeForCausalLM", {"num_experts": 3, "num_experts_per_tok": 2}),
        ("Exaone4ForCausalLM", {}),
        ("SeedOssForCausalLM", {"head_dim": 8}),
        ("ApertusForCausalLM", {}),
    ):
        yield Case(
            name, SET, eager(model_of(name, {**gqa, **more})), language, outputs("model.layers", 3), "mean", next_token
        )


def _small():
    cv = lambda module, name, sites, **config: Case(
        f"pytorchcv {name}",
        SET,
        lambda: getattr(importlib.import_module(f"pytorchcv.models.{module}"), name)(
            num_classes=C, in_size=(16, 16), **config
        ),
        pictures(16),
        sites,
    )
    yield cv(
        "sepreresnet_cifar",
        "CIFARSEPreResNet",
        units(2, 2),
        channels=[[16, 16], [32, 32]],
        init_block_channels=16,
        bottleneck=False,
    )
    yield cv(
        "resnext_cifar",
        "CIFARResNeXt",
        units(1, 2),
        channels=[[32], [64, 64]],
        init_block_channels=8,
        cardinality=2,
        bottleneck_width=16,
    )

    def of(module, make, batch, sites, reads="mean"):
        return Case(module, SET, lambda: make(importlib.import_module(module.split()[0])), batch, sites, reads)

    yield of("nflows.nn.nets", lambda m: m.ResidualNet(6, C, 12, num_blocks=3), vec, outputs("blocks", 3), None)
    yield of(
        "nflows.nn.nets MLP",
        lambda m: m.MLP([6], [C], [12, 12, 10]),
        vec,
        ("_input_layer", "_hidden_layers.0", "_hidden_layers.1"),
        None,
    )
    places = ("in:layers.0.1", "in:layers.0.3", "in:layers.1.1", "in:layers.1.3", "in:norm")
    yield of("minGRU_pytorch.minLM", lambda m: m.minLM(num_tokens=20, dim=16, depth=2), text(), places)
    yield of(
        "timm.models.convmixer",
        lambda m: m.ConvMixer(dim=8, depth=3, kernel_size=3, patch_size=4, num_classes=C),
        pictures(16),
        ("in:blocks.0", "blocks.0", "blocks.1", "blocks.2"),
        None,
    )
    yield of(
        "timm.models.levit",
        lambda m: m.Levit(img_size=32, embed_dim=(16, 16), key_dim=8, depth=(2, 2), num_heads=(2, 2), num_classes=C),
        pictures(32),
        ("in:stages.0.blocks.0", *(f"stages.{i}.blocks.{j}" for i in (0, 1) for j in (0, 1))),
        "mean",
    )
    yield of(
        "torch_geometric.nn", lambda m: m.GIN(6, 12, 3, C, jk="cat"), _graph, ("convs.0", "convs.1", "convs.2"), None
    )
    vision = lambda m: m.mnasnet.MNASNet(0.35, num_classes=C)
    paths = [f"layers.{i}.{j}" for i, n in zip(range(8, 14), (3, 3, 3, 2, 4, 1)) for j in range(n)]
    yield of("torchvision.models", vision, pictures(32), (f"in:{paths[0]}", *paths), None)


def _graph():
    return importlib.import_module("of_geometric").graph()


def cases():
    """Yield the networks; those of libraries where they are installed."""
    yield from ALL
    for library, found in (("timm", _transformers), ("pytorchcv", _small)):
        try:
            importlib.import_module(library)
        except ImportError:
            continue
        yield from found()
