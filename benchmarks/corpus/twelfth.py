"""A tenth unseen set of plain and residual networks: written after the mends of the ninth, and before a reading."""

# ruff: noqa: D101, E501  # a network is a few lines, and its case names it

from __future__ import annotations

import importlib
from collections import OrderedDict

import torch
import torch.nn.functional as F
from case import Case, mark, outputs
from small import C, D, collector, generator, img, inputs, ser, tokens, vec, words
from torch import nn

SET = "tenth set"
ALL, case = collector(SET)


def pictures16():
    """Return pictures for three strides."""
    return inputs(101, 3, 16, 16)()


ALL.append(
    Case("LeNet as one Sequential with sigmoids and average pooling, Flatten inside", SET,
         lambda: nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.Sigmoid(), nn.AvgPool2d(2), nn.Conv2d(6, 8, 3), nn.Sigmoid(),
                               nn.Flatten(), nn.Linear(32, 16), nn.Sigmoid(), nn.Linear(16, 12), nn.Sigmoid(), nn.Linear(12, C)),
         img, ("0", "3", "6", "8"))
)  # fmt: skip


class DrtpLayer(nn.Module):
    """A layer with a fixed projection of the labels beside it, which the forward pass does not use."""

    def __init__(self, a, b, act):
        super().__init__()
        self.fc, self.act = nn.Linear(a, b), act
        self.register_buffer("fixed_fb_weights", torch.randn(C, b))

    def forward(self, x):
        a = self.fc(x)
        mark(a)
        return a if self.act is None else self.act(a)


@case("DRTP: layers with fixed projections as buffers, an output block of another class", vec)
class Drtp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            [DrtpLayer(6, 16, torch.tanh), DrtpLayer(16, 12, torch.tanh), DrtpLayer(12, 12, F.relu)]
        )
        self.out = nn.Sequential(OrderedDict(fc=nn.Linear(12, C), act=nn.Sigmoid()))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


@case("local learning: conv trunk in a ModuleDict, auxiliary heads in another, only the trunk is asked for", img)
class TrunkAndHeads(nn.Module):
    def __init__(self):
        super().__init__()
        widths = {"conv1": (3, 6), "conv2": (6, 8), "conv3": (8, 10)}
        self.trunk = nn.ModuleDict({k: nn.Conv2d(a, b, 3, 2, 1) for k, (a, b) in widths.items()})
        self.heads = nn.ModuleDict({k: nn.Linear(b, C) for k, (_, b) in widths.items()})
        self.final = nn.Linear(10, C)

    def forward(self, x, return_aux=False):
        aux = {}
        for name, conv in self.trunk.items():
            a = conv(x)
            mark(a)
            x = F.gelu(a)
            if return_aux:
                aux[name] = self.heads[name](x.mean((2, 3)))
        logits = self.final(x.flatten(2).mean(2))
        return (logits, aux) if return_aux else logits


@case("predictive coding: means by layers, errors are computed and kept, the last mean is the answer", vec)
class Pcn(nn.Module):
    def __init__(self):
        super().__init__()
        self.dims = [6, 14, 12, C]
        self.w = nn.ModuleList([nn.Linear(a, b, bias=False) for a, b in zip(self.dims[:-1], self.dims[1:])])
        self.f = nn.LeakyReLU()

    def forward(self, x):
        mu, self.errors = x, []
        for i, w in enumerate(self.w):
            new = w(mu if i == 0 else self.f(mu))
            if i < 2:
                mark(new)
            self.errors.append((new - new.detach()).pow(2).sum())
            mu = new
        return mu


@case("perturbation learning: noise is added to every layer in training alone", vec)
class NodePerturb(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2, self.l3, self.sigma = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, C), 0.1

    def noisy(self, z):
        return z + self.sigma * torch.randn_like(z) if self.training else z

    def forward(self, x):
        z1 = self.l1(x)
        mark(z1)
        z2 = self.l2(torch.relu(self.noisy(z1)))
        mark(z2)
        return self.noisy(self.l3(torch.relu(self.noisy(z2))))


@case("character model: one-hot letters, a vanilla nn.RNN, all steps averaged", words)
class CharRnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.decoder = nn.RNN(20, 12, batch_first=True, nonlinearity="relu"), nn.Linear(12, C)

    def forward(self, x):
        out, _ = self.rnn(F.one_hot(x, 20).to(self.decoder.weight.dtype))
        mark(out)
        return self.decoder(out.mean(1))


@case("peephole: an LSTM by four linear layers a gate, three steps", inputs(102, 3, 6))
class GateByGate(nn.Module):
    def __init__(self):
        super().__init__()
        self.wf, self.wi, self.wo, self.wc = (nn.Linear(6 + 8, 8) for _ in range(4))
        self.fc = nn.Linear(8, C)

    def forward(self, x):
        h = c = x.new_zeros(len(x), 8)
        for t in range(x.shape[1]):
            z = torch.cat((x[:, t], h), 1)
            gates = []
            for w in (self.wf, self.wi, self.wo, self.wc):
                a = w(z)
                mark(a)
                gates.append(a)
            f, i, o = (torch.sigmoid(g) for g in gates[:3])
            c = f * c + i * torch.tanh(gates[3])
            h = o * torch.tanh(c)
        return self.fc(h)


@case("spectral convolution network: weights as buffers of a filter bank, then two trained layers", pictures16)
class Scatter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("bank", torch.randn(6, 3, 5, 5) * 0.2)
        self.conv, self.fc, self.out = nn.Conv2d(6, 8, 3, 2), nn.Linear(8, 10), nn.Linear(10, C)

    def forward(self, x):
        x = F.conv2d(x, self.bank, stride=2).abs()
        a = self.conv(x)
        mark(a)
        b = self.fc(F.relu(a).mean((2, 3)))
        mark(b)
        return self.out(F.relu(b))


@case("discriminator: spectral norm, leaky ReLU, minibatch free, no bias", pictures16)
class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        sn = torch.nn.utils.parametrizations.spectral_norm
        self.main = nn.Sequential(
            sn(nn.Conv2d(3, 6, 4, 2, 1, bias=False)), nn.LeakyReLU(0.2, inplace=True),
            sn(nn.Conv2d(6, 8, 4, 2, 1, bias=False)), nn.BatchNorm2d(8), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(8, C, 4, 1, 0, bias=False), nn.Flatten(),
        )  # fmt: skip

    def forward(self, x):
        for i, layer in enumerate(self.main):
            x = layer(x)
            if i in (0, 2):
                mark(x)
                x = x.clone()
        return x


@case("quantile network: an embedding of fractions gates the features, averaged", vec)
class Quantile(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.cos, self.head = nn.Linear(6, 12), nn.Linear(4, 12), nn.Linear(12, 10)
        self.out = nn.Linear(10, C)

    def forward(self, x):
        taus = torch.linspace(0.1, 0.9, 3, dtype=x.dtype).expand(len(x), 3)
        a = self.body(x)
        mark(a)
        e = self.cos(torch.cos(taus[..., None] * torch.arange(1, 5) * 3.14))
        mark(e)
        h = self.head(F.relu(a)[:, None] * F.relu(e))
        mark(h)
        return self.out(F.relu(h)).mean(1)


# -- residual ones ---------------------------------------------------------------------------------------------


class Basic(nn.Module):
    expansion = 1

    def __init__(self, a, b, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.conv2, self.bn2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
        self.shortcut = nn.Sequential()
        if stride != 1 or a != b:
            self.shortcut = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out)


@case("ResNet for CIFAR: stages in a ModuleList, features returned beside the logits", img)
class ListResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.groups = nn.ModuleList([
            nn.Sequential(Basic(8, 8), Basic(8, 8)), nn.Sequential(Basic(8, 12, 2), Basic(12, 12)), nn.Sequential(Basic(12, 16, 2), Basic(16, 16)),
        ])  # fmt: skip
        self.linear = nn.Linear(16, C)

    def forward(self, x):
        x, features = F.relu(self.bn1(self.conv1(x))), []
        mark(x)
        for group in self.groups:
            for block in group:
                x = block(x)
                mark(x)
            features.append(x)
        return self.linear(F.adaptive_avg_pool2d(x, 1).flatten(1)), features


@case("MLP with skips by attributes: x = norm(x + fc2(gelu(fc1(x)))), twice", vec)
class PostNormAttributes(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(6, D), nn.Linear(D, C)
        self.fc1a, self.fc1b, self.ln1 = nn.Linear(D, 24), nn.Linear(24, D), nn.LayerNorm(D)
        self.fc2a, self.fc2b, self.ln2 = nn.Linear(D, 24), nn.Linear(24, D), nn.LayerNorm(D)

    def forward(self, x):
        x = self.inp(x)
        mark(x)
        x = self.ln1(x + self.fc1b(F.gelu(self.fc1a(x))))
        mark(x)
        x = self.ln2(x + self.fc2b(F.gelu(self.fc2a(x))))
        mark(x)
        return self.out(x)


class Ffn(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2 = nn.Linear(D, 24), nn.Linear(24, D)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)))


@case("transformer without layer class: attention, norms and FFNs in four lists, post-norm", ser, "mean")
class FourLists(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.proj, self.cls = nn.Linear(6, D), nn.Linear(D, C)
        self.attns = nn.ModuleList([nn.MultiheadAttention(D, 2, batch_first=True) for _ in range(depth)])
        self.ffns, self.n1 = (
            nn.ModuleList([Ffn() for _ in range(depth)]),
            nn.ModuleList([nn.LayerNorm(D) for _ in range(depth)]),
        )
        self.n2 = nn.ModuleList([nn.LayerNorm(D) for _ in range(depth)])

    def forward(self, x):
        x = self.proj(x)
        mark(x)
        for attn, ffn, n1, n2 in zip(self.attns, self.ffns, self.n1, self.n2):
            x = n1(x + attn(x, x, x)[0])
            mark(x)
            x = n2(x + ffn(x))
            mark(x)
        return self.cls(x.mean(1))


class TimeBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.f, self.t = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, D), nn.SiLU(), nn.Linear(D, D)), nn.Linear(1, D)

    def forward(self, t, x):
        return x + self.f(x + self.t(t[:, None]))


@case(
    "score network: blocks are called as block(t, x), the time a number each",
    lambda: ({"x": vec()[0], "t": torch.rand(6, generator=generator(103)).double()}, vec()[1]),
)
class Score(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.blocks, self.out = (
            nn.Linear(6, D),
            nn.ModuleList([TimeBlock() for _ in range(3)]),
            nn.Linear(D, C),
        )

    def forward(self, x, t):
        x = self.inp(x)
        mark(x)
        for block in self.blocks:
            x = block(t, x)
            mark(x)
        return self.out(x)


class Griffin(nn.Module):
    """A gated linear recurrence in a block, and an MLP."""

    def __init__(self):
        super().__init__()
        self.n1, self.n2, self.lin, self.gate = nn.LayerNorm(D), nn.LayerNorm(D), nn.Linear(D, D), nn.Linear(D, D)
        self.out, self.ffn = nn.Linear(D, D), Ffn()
        self.a = nn.Parameter(torch.zeros(D))

    def forward(self, x):
        z = self.n1(x)
        u, h, hs = self.lin(z), 0.0, []
        decay = torch.sigmoid(self.a)
        for t in range(z.shape[1]):
            h = decay * h + (1 - decay) * u[:, t]
            hs.append(h)
        x = x + self.out(torch.stack(hs, 1) * F.gelu(self.gate(z)))
        return x + self.ffn(self.n2(x))


@case("linear recurrences: blocks in a Sequential, the language head is tied to the embedding", tokens, "mean")
class GriffinLm(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.layers, self.norm = (
            nn.Embedding(C, D),
            nn.Sequential(*[Griffin() for _ in range(3)]),
            nn.LayerNorm(D),
        )

    def forward(self, ids):
        x = self.emb(ids % C)
        mark(x)
        for layer in self.layers:
            x = layer(x)
            mark(x)
        return F.linear(self.norm(x), self.emb.weight)


@case("mixer by attributes of two lists: tokens on the transposed state, then channels", ser, "mean")
class TwoMixers(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(6, D), nn.Linear(D, C)
        self.tok = nn.ModuleList([nn.Sequential(nn.Linear(7, 10), nn.GELU(), nn.Linear(10, 7)) for _ in range(2)])
        self.ch = nn.ModuleList([nn.Sequential(nn.Linear(D, 20), nn.GELU(), nn.Linear(20, D)) for _ in range(2)])
        self.na, self.nb = nn.LayerNorm(D), nn.LayerNorm(D)

    def forward(self, x):
        x = self.stem(x)
        mark(x)
        for tok, ch in zip(self.tok, self.ch):
            x = x + tok(self.na(x).transpose(1, 2)).transpose(1, 2)
            mark(x)
            x = x + ch(self.nb(x))
            mark(x)
        return self.head(x.mean(1))


@case("two towers of residual blocks, pictures and their mirror, added: no one stream", img)
class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.ModuleList([Basic(3, 8), Basic(8, 8)]), nn.ModuleList([Basic(3, 8), Basic(8, 8)])
        self.fc = nn.Linear(8, C)

    def forward(self, x):
        a, b = x, x.flip(-1)
        for left, right in zip(self.left, self.right):
            a, b = left(a), right(b)
        return self.fc((a + b).mean((2, 3)))


def _transformers():
    of = importlib.import_module("of_transformers")
    small = {**of.SMALL, "vocab_size": of.WORDS, "max_position_embeddings": 32, "pad_token_id": 1, "num_labels": 5}
    for name, path in (
        ("MegatronBertForTokenClassification", "bert.encoder.layer"),
        ("YosoForSequenceClassification", "yoso.encoder.layer"),
    ):
        token = name.startswith("Megatron")
        reads = "mean" if token else 0
        batch = of.language if token else of.ids
        yield Case(
            name,
            SET,
            of.model_of(name, {**small, **({"num_labels": of.WORDS} if token else {})}),
            batch,
            outputs(path, 3),
            reads,
        )


def cases():
    """Yield the networks; those of libraries where they are installed."""
    yield from ALL
    try:
        yield from _transformers()
    except ImportError:
        return
