"""A seventh unseen set: plain and residual networks as a stranger writes them; sites were written before a reading."""

# ruff: noqa: D101, E731  # a network is a few lines, and its case names it

from __future__ import annotations

import importlib
from collections import OrderedDict

import torch
import torch.nn.functional as F
from case import Case, mark, next_token, outputs
from small import C, D, collector, generator, img, inputs, labels, ser, tokens
from torch import nn

SET = "seventh set"
ALL, case = collector(SET)


def as_dict():
    """Return pictures under a name of their own."""
    x, y = img()
    return {"pixels": x}, y


def two_views():
    """Return two inputs of one kind."""
    draw = lambda seed: torch.randn(6, 6, generator=generator(seed), dtype=torch.float64)
    return {"left": draw(61), "right": draw(62)}, labels()


def graph():
    """Return nodes with a dense adjacency each."""
    x, y = inputs(63, 7, 6)()
    raw = torch.rand(6, 7, 7, generator=generator(64), dtype=torch.float64)
    return {"nodes": x, "adjacency": raw / raw.sum(-1, keepdim=True)}, y


# -- plain ones ------------------------------------------------------------------------------------------------


@case("dict in, dict out: layers by name in a loop, dropout and functional ReLU", as_dict)
class ByName(nn.Module):
    widths = (192, 16, 12, 12)

    def __init__(self):
        super().__init__()
        pairs = zip(self.widths[:-1], self.widths[1:])
        self.net = nn.ModuleDict({f"fc{i}": nn.Linear(a, b) for i, (a, b) in enumerate(pairs, 1)})
        self.net["logits"] = nn.Linear(self.widths[-1], C)
        self.p = 0.2

    def forward(self, pixels):
        h = pixels.reshape(len(pixels), -1)
        for i in range(1, len(self.widths)):
            a = self.net[f"fc{i}"](h)
            mark(a)
            h = F.dropout(F.relu(a), self.p, self.training)
        return {"features": h, "logits": self.net["logits"](h)}


@case("LeNet-5 of named parts, tanh, average pooling, log-softmax at the end", img)
class Lenet5(nn.Module):
    def __init__(self):
        super().__init__()
        self.convnet = nn.Sequential(
            OrderedDict(
                c1=nn.Conv2d(3, 6, 3, padding=1),
                tanh1=nn.Tanh(),
                s2=nn.AvgPool2d(2),
                c3=nn.Conv2d(6, 8, 3),
                tanh3=nn.Tanh(),
                c5=nn.Conv2d(8, 12, 2),
                tanh5=nn.Tanh(),
            )
        )
        self.fc = nn.Sequential(
            OrderedDict(f6=nn.Linear(12, 10), tanh6=nn.Tanh(), f7=nn.Linear(10, C), sig7=nn.LogSoftmax(dim=-1))
        )

    def forward(self, x):
        for name, module in self.convnet.named_children():
            x = module(x)
            if name[0] == "c":
                mark(x)
        x = x.flatten(1)
        for name, module in self.fc.named_children():
            x = module(x)
            if name == "f6":
                mark(x)
        return x


class Local2d(nn.Module):
    """A convolution without shared weights."""

    def __init__(self, a, b, size, kernel):
        super().__init__()
        self.kernel, self.size = kernel, size - kernel + 1
        self.weight = nn.Parameter(torch.randn(self.size**2, b, a * kernel**2) / (a * kernel**2) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(b, self.size**2))

    def forward(self, x):
        patches = F.unfold(x, self.kernel)
        out = torch.einsum("bkl,lok->bol", patches, self.weight) + self.bias
        return out.view(len(x), -1, self.size, self.size)


@case("locally connected layers by unfold and einsum", img)
class LocallyConnected(nn.Module):
    def __init__(self):
        super().__init__()
        self.lc1, self.lc2, self.head = Local2d(3, 4, 8, 3), Local2d(4, 4, 6, 3), nn.Linear(64, C)

    def forward(self, x):
        a = self.lc1(x)
        mark(a)
        b = self.lc2(F.leaky_relu(a, 0.1))
        mark(b)
        return self.head(F.leaky_relu(b, 0.1).flatten(1))


@case("equilibrium propagation: a list of states relaxes, feedback by the transposed weights")
class Hopfield(nn.Module):
    def __init__(self):
        super().__init__()
        self.synapses = nn.ModuleList([nn.Linear(6, 12), nn.Linear(12, 10), nn.Linear(10, C)])
        self.steps = 3

    def forward(self, x):
        states = [x, x.new_zeros(len(x), 12), x.new_zeros(len(x), 10), x.new_zeros(len(x), C)]
        for step in range(self.steps):
            for i, w in enumerate(self.synapses):
                drive = w(states[i])
                if i < 2 or step < self.steps - 1:  # other layers read the output but for the last one
                    mark(drive)
                if i < 2:
                    drive = torch.sigmoid(drive + 0.5 * states[i + 2] @ self.synapses[i + 1].weight)
                states[i + 1] = drive
        return states[-1]


class FfLayer(nn.Linear):
    """Forward-forward: the direction of the input alone is passed on; the activation is inside."""

    def __init__(self, a, b):
        super().__init__(a, b)
        self.relu, self.threshold = nn.ReLU(), 2.0

    def forward(self, x):
        direction = x / (x.norm(2, 1, keepdim=True) + 1e-4)
        return self.relu(torch.mm(direction, self.weight.T) + self.bias.unsqueeze(0))


@case("forward-forward layers that are subclasses of nn.Linear, a linear classifier of all activities", img)
class FfClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([FfLayer(192, 16), FfLayer(16, 12), FfLayer(12, 12)])
        self.linear_cf = nn.Linear(40, C)

    def forward(self, x):
        x, seen = x.flatten(1), []
        for layer in self.layers:
            x = layer(x)
            mark(x)
            seen.append(x)
        return self.linear_cf(torch.cat(seen, 1))


@case("autoencoder with a classifier on its code, the reconstruction is returned too", img)
class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(192, 16), nn.ELU(), nn.Linear(16, 8))
        self.decoder = nn.Sequential(nn.Linear(8, 16), nn.ELU(), nn.Linear(16, 192))
        self.classifier = nn.Linear(8, C)

    def forward(self, x):
        a = self.encoder[0](x.flatten(1))
        mark(a)
        z = self.encoder[2](self.encoder[1](a))
        mark(z)
        return self.classifier(z), self.decoder(z).view_as(x)


class Invertible(nn.Module):
    """A layer of target propagation: a forward mapping and a learned inverse."""

    def __init__(self, a, b):
        super().__init__()
        self.f, self.g, self.act = nn.Linear(a, b), nn.Linear(b, a), nn.Tanh()

    def forward(self, x):
        a = self.f(x)
        mark(a)
        return self.act(a)

    def inverse(self, y):
        return self.act(self.g(y))


@case("difference target propagation: layers with inverse mappings that no forward pass calls")
class TargetProp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Invertible(6, 12), Invertible(12, 12), Invertible(12, 12)])
        self.out = nn.Linear(12, C)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


@case("spiking, unrolled by hand: membranes of a convolution and of a layer, surrogate by detach", img)
class Spiking(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc, self.out = nn.Conv2d(3, 4, 3, stride=2), nn.Linear(36, 12), nn.Linear(12, C)

    def spike(self, v):
        soft = torch.sigmoid(4 * (v - 0.3))
        return (v > 0.3).to(v) + soft - soft.detach()

    def forward(self, x):
        v, u, total = 0.0, 0.0, 0.0
        for _ in range(3):
            a = self.conv(x)
            mark(a)
            v = 0.8 * v + a
            s = self.spike(v)
            v = v - 0.3 * s.detach()
            b = self.fc(s.flatten(1))
            mark(b)
            u = 0.8 * u + b
            r = self.spike(u)
            u = u - 0.3 * r.detach()
            total = total + self.out(r)
        return total / 3


@case("Elman network of the tutorial: cat of input and state into one layer, step by step", ser)
class Elman(nn.Module):
    def __init__(self):
        super().__init__()
        self.i2h, self.h2o = nn.Linear(6 + 12, 12), nn.Linear(12, C)

    def forward(self, x):
        h = x.new_zeros(len(x), 12)
        for t in range(x.shape[1]):
            a = self.i2h(torch.cat((x[:, t], h), 1))
            mark(a)
            h = torch.tanh(a)
        return self.h2o(h)


@case("All-CNN: BatchNorm, strided convolutions, a 1x1 convolution to the classes, then the mean", img)
class AllCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.c2, self.b2 = nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8)
        self.c3, self.b3 = nn.Conv2d(8, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.classes = nn.Conv2d(12, C, 1)

    def forward(self, x):
        for i in (1, 2, 3):
            a = getattr(self, f"c{i}")(x)
            mark(a)
            x = F.relu(getattr(self, f"b{i}")(a))
        return self.classes(F.max_pool2d(x, 2)).mean(dim=(2, 3))


@case("Siamese: one embedder is called on both inputs, their distance is classified", two_views)
class Twins(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed1, self.embed2 = nn.Linear(6, 12), nn.Linear(12, 10)
        self.mix, self.out = nn.Linear(10, 8), nn.Linear(8, C)

    def embed(self, x):
        a = self.embed1(x)
        mark(a)
        b = self.embed2(torch.relu(a))
        mark(b)
        return b

    def forward(self, left, right):
        m = self.mix((self.embed(left) - self.embed(right)).abs())
        mark(m)
        return self.out(torch.relu(m))


@case("maxout of three pieces, weight normalisation as a parametrisation")
class Maxout(nn.Module):
    def __init__(self):
        super().__init__()
        wn = torch.nn.utils.parametrizations.weight_norm
        self.pieces = nn.ModuleList([wn(nn.Linear(6, 36)), wn(nn.Linear(12, 36)), wn(nn.Linear(12, 30))])
        self.out = nn.Linear(10, C)

    def forward(self, x):
        for layer in self.pieces:
            a = layer(x)
            mark(a)
            x = a.view(len(x), -1, 3).amax(-1)
        return self.out(x)


class Greedy(nn.Module):
    """A block of local learning: its own head serves a local loss, and only the activity goes on."""

    def __init__(self, a, b):
        super().__init__()
        self.encoder, self.bn, self.local_head = nn.Linear(a, b, bias=False), nn.BatchNorm1d(b), nn.Linear(b, C)
        self.local_logits = None

    def forward(self, x):
        a = self.encoder(x)
        mark(a)
        h = F.leaky_relu(self.bn(a), 0.01)
        if self.training:
            self.local_logits = self.local_head(h)
        return h


@case("blocks of local losses: each has a head that is called in training alone")
class GreedyNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Greedy(6, 12), Greedy(12, 12), Greedy(12, 12)])
        self.classifier = nn.Linear(12, C)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.classifier(x)


# -- residual ones ---------------------------------------------------------------------------------------------


class PostLn(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(D, 2, batch_first=True)
        self.ffn = nn.Sequential(nn.Linear(D, 24), nn.GELU(), nn.Linear(24, D))
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)

    def forward(self, x, need_weights=False):
        attended, weights = self.self_attn(x, x, x, need_weights=need_weights)
        x = self.norm1(x + attended)
        return self.norm2(x + self.ffn(x)), weights


@case("post-LN encoder of nn.MultiheadAttention: blocks return weights too, a class token is read", ser, 0)
class PostEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj, self.cls, self.fc = nn.Linear(6, D), nn.Parameter(torch.randn(1, 1, D)), nn.Linear(D, C)
        self.encoder_layers = nn.ModuleList([PostLn() for _ in range(3)])

    def forward(self, x):
        h = torch.cat([self.cls.expand(len(x), -1, -1), self.proj(x)], 1)
        mark(h)
        maps = []
        for layer in self.encoder_layers:
            h, w = layer(h, need_weights=True)
            maps.append(w)
            mark(h)
        return self.fc(h[:, 0])


class SeBlock(nn.Module):
    """Squeeze and excite, ReZero, and stochastic depth."""

    def __init__(self, a, b, stride, p):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.conv2, self.bn2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
        self.down = nn.Conv2d(a, b, 1, stride, bias=False) if (a, stride) != (b, 1) else None
        self.squeeze, self.excite = nn.Linear(b, 4), nn.Linear(4, b)
        self.alpha, self.p = nn.Parameter(torch.zeros(1)), p

    def forward(self, x):
        skip = x if self.down is None else self.down(x)
        if self.training and torch.rand(()) < self.p:
            return skip
        z = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        s = torch.sigmoid(self.excite(F.relu(self.squeeze(z.mean((2, 3))))))
        return skip + self.alpha * z * s[:, :, None, None]


@case("squeeze-excite, ReZero and stochastic depth in one block, three stages as attributes", img)
class SeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 1, 1)
        self.stage1 = nn.Sequential(SeBlock(8, 8, 1, 0.1), SeBlock(8, 8, 1, 0.1))
        self.stage2 = nn.Sequential(SeBlock(8, 12, 2, 0.2), SeBlock(12, 12, 1, 0.2))
        self.stage3 = nn.Sequential(SeBlock(12, 16, 2, 0.3), SeBlock(16, 16, 1, 0.3))
        self.bn, self.linear = nn.BatchNorm2d(16), nn.Linear(16, C)

    def forward(self, x):
        h = self.stem(x)
        mark(h)
        for stage in (self.stage1, self.stage2, self.stage3):
            for block in stage:
                h = block(h)
                mark(h)
        return self.linear(F.adaptive_avg_pool2d(F.relu(self.bn(h)), 1).flatten(1))


class Gated(nn.Module):
    """The gate of a GRU between the old state and the new."""

    def __init__(self):
        super().__init__()
        self.norm, self.f, self.gate = nn.LayerNorm(D), nn.Linear(D, D), nn.Linear(2 * D, D)

    def forward(self, h):
        new = torch.tanh(self.f(self.norm(h)))
        z = torch.sigmoid(self.gate(torch.cat([h, new], -1)) - 1.0)
        return torch.lerp(h, new, z)


@case("gates of a GRU in place of the sum: lerp(h, f(h), z)")
class GatedNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.trunk = nn.Linear(6, D), nn.Sequential(*[Gated() for _ in range(4)])
        self.head = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, C))

    def forward(self, x):
        h = self.embed(x)
        mark(h)
        for block in self.trunk:
            h = block(h)
            mark(h)
        return self.head(h)


class Coupling(nn.Module):
    def __init__(self):
        super().__init__()
        half = D // 2
        self.F = nn.Sequential(nn.LayerNorm(half), nn.Linear(half, 16), nn.ReLU(), nn.Linear(16, half))
        self.G = nn.Sequential(nn.LayerNorm(half), nn.Linear(half, 16), nn.ReLU(), nn.Linear(16, half))

    def forward(self, pair):
        x1, x2 = pair
        y1 = x1 + self.F(x2)
        return y1, x2 + self.G(y1)


@case("reversible: blocks take and return a pair, both halves are read")
class Reversible(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.blocks, self.out = (
            nn.Linear(6, D),
            nn.ModuleList([Coupling() for _ in range(3)]),
            nn.Linear(D, C),
        )

    def forward(self, x):
        pair = self.inp(x).chunk(2, dim=-1)
        mark(*pair)
        for block in self.blocks:
            pair = block(pair)
            mark(*pair)
        return self.out(torch.cat(pair, -1))


class Inner(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x))))


@case("U-net of vectors: long skips are added, so no one state carries all of it")
class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(6, 16), nn.Linear(16, C)
        self.enc, self.dec = nn.ModuleList([Inner(16), Inner(12)]), nn.ModuleList([Inner(12), Inner(16)])
        self.shrink, self.mid, self.grow = nn.Linear(16, 12), Inner(12), nn.Linear(12, 16)

    def forward(self, x):
        a = self.enc[0](self.inp(x))
        b = self.enc[1](self.shrink(a))
        h = self.dec[0](self.mid(b) + b)
        return self.out(self.dec[1](self.grow(h) + a))


@case("graph network: h + relu(W A norm(h)), convolutions and norms in two lists", graph, "mean")
class Gcn(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.readout = nn.Linear(6, D), nn.Linear(D, C)
        self.convs = nn.ModuleList([nn.Linear(D, D) for _ in range(4)])
        self.norms = nn.ModuleList([nn.LayerNorm(D) for _ in range(4)])

    def forward(self, nodes, adjacency):
        h = self.encode(nodes)
        mark(h)
        for conv, norm in zip(self.convs, self.norms):
            h = h + F.dropout(F.relu(conv(adjacency @ norm(h))), 0.1, self.training)
            mark(h)
        return self.readout(h.mean(1))


class Parallel(nn.Module):
    """Attention and MLP side by side from one norm, as PaLM has them."""

    def __init__(self):
        super().__init__()
        self.ln = nn.LayerNorm(D)
        self.fused, self.proj = nn.Linear(D, 3 * D + 24, bias=False), nn.Linear(D + 24, D, bias=False)

    def forward(self, x):
        q, k, v, m = self.fused(self.ln(x)).split((D, D, D, 24), -1)
        heads = [t.unflatten(-1, (2, D // 2)).transpose(1, 2) for t in (q, k, v)]
        att = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        return x + self.proj(torch.cat([att, F.gelu(m)], -1))


@case("decoder with parallel attention and MLP, tied embeddings, targets that may be given", tokens, "mean")
class PalmLike(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(20, D),
                "wpe": nn.Embedding(16, D),
                "h": nn.ModuleList([Parallel() for _ in range(4)]),
                "ln_f": nn.LayerNorm(D),
            }
        )
        self.lm_head = nn.Linear(D, 20, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight

    def forward(self, idx, targets=None):
        t = self.transformer
        x = t["wte"](idx) + t["wpe"](torch.arange(idx.shape[1], device=idx.device))
        mark(x)
        for block in t["h"]:
            x = block(x)
            mark(x)
        logits = self.lm_head(t["ln_f"](x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Shared(nn.Module):
    """One step of a universal transformer, which is told its number."""

    def __init__(self):
        super().__init__()
        self.step, self.norm = nn.Embedding(8, D), nn.LayerNorm(D)
        self.qkv, self.o, self.scale = nn.Linear(D, 3 * D), nn.Linear(D, D), nn.Parameter(torch.full((D,), 0.3))

    def forward(self, h, i):
        q, k, v = self.qkv(self.norm(h) + self.step.weight[i]).chunk(3, -1)
        return h + self.scale * self.o(F.scaled_dot_product_attention(q, k, v))


@case("universal: one block with LayerScale, called five times with the number of its step", ser, "mean")
class Universal(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.block, self.head = nn.Linear(6, D), Shared(), nn.Linear(D, C)

    def forward(self, x):
        h = self.embed(x)
        mark(h)
        for i in range(5):
            h = self.block(h, i)
            mark(h)
        return self.head(h.mean(1))


# -- libraries -------------------------------------------------------------------------------------------------


class SoftExperts(nn.Module):
    """A mixer of tokens and the library's experts, in a loop of one's own."""

    def __init__(self):
        super().__init__()
        library = importlib.import_module("soft_moe_pytorch")
        self.embed, self.head = nn.Linear(6, D), nn.Linear(D, C)
        self.mixers = nn.ModuleList([nn.Linear(7, 7) for _ in range(3)])
        self.moes = nn.ModuleList([library.SoftMoE(dim=D, num_slots=2, num_experts=3) for _ in range(3)])

    def forward(self, x):
        h = self.embed(x)
        mark(h)
        for mixer, moe in zip(self.mixers, self.moes):
            h = h + mixer(h.transpose(1, 2)).transpose(1, 2)
            mark(h)
            h = h + moe(h)
            mark(h)
        return self.head(h.mean(1))


class LeakyNet(nn.Module):
    """The network of snnTorch's tutorial: layers, neurons, a loop over time."""

    def __init__(self):
        super().__init__()
        snn = importlib.import_module("snntorch")
        self.fc1, self.lif1 = nn.Linear(6, 12), snn.Leaky(beta=0.9, threshold=0.3)
        self.fc2, self.lif2 = nn.Linear(12, C), snn.Leaky(beta=0.9, threshold=0.3)

    def forward(self, x):
        mem1, mem2, record = self.lif1.init_leaky(), self.lif2.init_leaky(), []
        for _ in range(4):
            a = self.fc1(x)
            mark(a)
            spikes, mem1 = self.lif1(a, mem1)
            _, mem2 = self.lif2(self.fc2(spikes.to(a.dtype)), mem2)
            record.append(mem2)
        return torch.stack(record).sum(0)


def _pictures(size=32, n=4):
    return lambda: (
        torch.randn(n, 3, size, size, generator=generator(65), dtype=torch.float64),
        torch.arange(n) % C,
    )


def _clips():
    return torch.randn(3, 3, 4, 16, 16, generator=generator(66), dtype=torch.float64), torch.arange(3) % C


def _mlps():
    library = importlib.import_module("x_mlps_pytorch")
    yield Case(
        "x_mlps_pytorch.MLP",
        SET,
        lambda: library.MLP(6, 12, 12, 10, C),
        inputs(11, 6),
        ("layers.0.0", "layers.1.0", "layers.2.0"),
    )
    residual = lambda: importlib.import_module("x_mlps_pytorch.residual_normed_mlp").ResidualNormedMLP(
        D, depth=8, residual_every=2, dim_in=6, dim_out=C
    )
    yield Case("x_mlps_pytorch.ResidualNormedMLP", SET, residual, inputs(11, 6), ("in:layers.0", "residual_update"))


def _moe():
    importlib.import_module("soft_moe_pytorch")
    yield Case("soft_moe_pytorch.SoftMoE in a mixer", SET, SoftExperts, ser, (), "mean")


def _spikes():
    importlib.import_module("snntorch")
    yield Case("snntorch.Leaky, four steps", SET, LeakyNet, inputs(11, 6))


def _timm():
    nf = importlib.import_module("timm.models.nfnet")
    config = nf.NfCfg(depths=(1, 2, 1, 1), channels=(16, 16, 24, 32), stem_type="3x3", stem_chs=8, alpha=0.2)
    paths = ("stages.0.0", "stages.1.0", "stages.1.1", "stages.2.0", "stages.3.0")
    yield Case(
        "timm.NormFreeNet",
        SET,
        lambda: nf.NormFreeNet(config, num_classes=C),
        _pictures(),
        (f"in:{paths[0]}", *paths),
    )
    inception = importlib.import_module("timm.models.inception_next")
    paths = [f"stages.{i}.blocks.{j}" for i, n in enumerate((2, 2, 1)) for j in range(n)]
    yield Case(
        "timm.MetaNeXt with inception mixers",
        SET,
        lambda: inception.MetaNeXt(
            depths=(2, 2, 1), dims=(16, 24, 32), mlp_ratios=(2, 2, 2), num_classes=C, ls_init_value=0.5
        ),
        _pictures(),
        (f"in:{paths[0]}", *paths),
    )
    star = importlib.import_module("timm.models.starnet")
    paths = [f"stages.{i}.{j}" for i in range(3) for j in (1, 2)]
    yield Case(
        "timm.StarNet",
        SET,
        lambda: star.StarNet(base_dim=8, depths=[2, 2, 2], mlp_ratio=2, num_classes=C),
        _pictures(),
        (f"in:{paths[0]}", *paths),
    )


def _torchvision():
    video = importlib.import_module("torchvision.models.video.resnet")
    paths = [f"layer{i}.0" for i in (1, 2, 3, 4)]
    build = lambda: video.VideoResNet(
        video.BasicBlock, [video.Conv3DSimple] * 4, [1, 1, 1, 1], video.BasicStem, num_classes=C
    )
    yield Case("torchvision.VideoResNet", SET, build, _clips, (f"in:{paths[0]}", *paths))


def _transformers():
    of = importlib.import_module("of_transformers")
    small = {**of.SMALL, "vocab_size": of.WORDS, "max_position_embeddings": 32, "pad_token_id": 1}
    for name, more in (
        ("Lfm2ForCausalLM", {"num_key_value_heads": 2, "full_attn_idxs": [1], "block_auto_adjust_ff_dim": False}),
        ("DogeForCausalLM", {"num_key_value_heads": 2}),
    ):
        yield Case(
            name, SET, of.model_of(name, {**small, **more}), of.language, outputs("model.layers", 3), "mean", next_token
        )


def cases():
    """Yield the networks; those of libraries where they are installed."""
    yield from ALL
    for found in (_mlps, _moe, _spikes, _timm, _torchvision, _transformers):
        try:
            yield from found()
        except ImportError:
            continue
