"""Plain networks of many kinds; their sites were written down before a first reading."""

# ruff: noqa: D101, D106  # a network is a few lines, and its case names it

from __future__ import annotations

import torch
import torch.nn.functional as F
from case import mark
from small import C, collector, img, ser, stacker, words
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

ALL, case = collector("plain")
stack = stacker(case)


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx, grad):
        (v,) = ctx.saved_tensors
        return grad / (1 + 10 * v.abs()) ** 2


@case("spiking network with surrogate gradients, three steps")
class Snn(nn.Module):
    def __init__(s):
        super().__init__()
        s.fc1, s.fc2 = nn.Linear(6, 12), nn.Linear(12, C)

    def forward(s, x):
        m1 = m2 = 0.0
        total = 0.0
        for _ in range(3):
            u = s.fc1(x)
            mark(u)
            m1 = 0.9 * m1 + u
            m2 = 0.9 * m2 + s.fc2(Spike.apply(m1 - 0.1))
            total = total + m2
        return total


@case("vanilla RNN of two linears, three steps", ser)
class Rnn(nn.Module):
    def __init__(s):
        super().__init__()
        s.i2h, s.h2h, s.out = nn.Linear(6, 10), nn.Linear(10, 10), nn.Linear(10, C)

    def forward(s, x):
        h = torch.zeros(len(x), 10, dtype=x.dtype)
        for t in range(3):
            a = s.i2h(x[:, t])
            mark(a)
            b = s.h2h(h)
            mark(b)  # of zeros at first, and a call all the same
            h = torch.tanh(a + b)
        return s.out(h)


@case("nn.RNN of two layers, last step", ser)
class TorchRnn(nn.Module):
    def __init__(s):
        super().__init__()
        s.rnn, s.fc1, s.out = nn.RNN(6, 10, 2, batch_first=True), nn.Linear(10, 8), nn.Linear(8, C)

    def forward(s, x):
        h, _ = s.rnn(x)
        mark(h)
        h = s.fc1(h[:, -1])
        mark(h)
        return s.out(h.relu())


@case("GRU, last hidden state of the tuple", ser, lambda h: h[0].norm(dim=1))
class Gru(nn.Module):
    def __init__(s):
        super().__init__()
        s.rnn, s.out = nn.GRU(6, 10), nn.Linear(10, C)

    def forward(s, x):
        _, h = s.rnn(x.transpose(0, 1))
        mark(h)
        return s.out(h[-1])


@case("highway layers")
class Highway(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Linear(6, 12)
        s.f = nn.ModuleList([nn.Linear(12, 12) for _ in range(3)])
        s.t = nn.ModuleList([nn.Linear(12, 12) for _ in range(3)])
        s.out = nn.Linear(12, C)

    def forward(s, x):
        h = s.inp(x)
        mark(h)
        for f, t in zip(s.f, s.t):
            p = torch.sigmoid(t(h))
            h = p * f(h).relu() + (1 - p) * h
            mark(h)
        return s.out(h)


@case("weight norm and spectral norm")
class Reparam(nn.Module):
    def __init__(s):
        super().__init__()
        s.a, s.b, s.out = weight_norm(nn.Linear(6, 12)), spectral_norm(nn.Linear(12, 10)), nn.Linear(10, C)

    def forward(s, x):
        h = s.a(x)
        mark(h)
        h = s.b(h.relu())
        mark(h)
        return s.out(h.relu())


@case("inception: three branches, concatenated", img)
class Inception(nn.Module):
    def __init__(s):
        super().__init__()
        s.stem = nn.Conv2d(3, 6, 3, padding=1)
        s.b1, s.b3, s.b5 = nn.Conv2d(6, 4, 1), nn.Conv2d(6, 4, 3, padding=1), nn.Conv2d(6, 4, 5, padding=2)
        s.mix, s.out = nn.Conv2d(12, 6, 1), nn.Linear(6, C)

    def forward(s, x):
        h = s.stem(x)
        mark(h)
        parts = []
        for b in (s.b1, s.b3, s.b5):
            p = b(h.relu())
            mark(p)
            parts.append(p.relu())
        h = s.mix(torch.cat(parts, 1))
        mark(h)
        return s.out(h.relu().mean((2, 3)))


@case("locally connected layer, a 5-D weight of its own", img)
class LocallyConnected(nn.Module):
    class Layer(nn.Module):
        def __init__(s):
            super().__init__()
            s.w = nn.Parameter(torch.randn(4, 3, 6, 6, 9) / 5)

        def forward(s, x):
            return torch.einsum("bchwk,ochwk->bohw", x.unfold(2, 3, 1).unfold(3, 3, 1).flatten(4), s.w)

    def __init__(s):
        super().__init__()
        s.lc, s.conv, s.out = s.Layer(), nn.Conv2d(4, 6, 3), nn.Linear(6, C)

    def forward(s, x):
        h = s.lc(x)
        mark(h)
        h = s.conv(h.relu())
        mark(h)
        return s.out(h.relu().amax((2, 3)))


@case("all-convolutional: the output layer is a convolution", img)
class AllConv(nn.Module):
    def __init__(s):
        super().__init__()
        s.c1, s.c2, s.c3 = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 8, 3, 2), nn.Conv2d(8, C, 1)

    def forward(s, x):
        h = s.c1(x)
        mark(h)
        h = s.c2(F.elu(h))
        mark(h)
        return s.c3(F.elu(h)).mean((2, 3))


@case("VGG: features and classifier, in-place ReLU, dropout", img)
class Vgg(nn.Module):
    def __init__(s):
        super().__init__()
        s.features = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        )  # fmt: skip
        s.classifier = nn.Sequential(
            nn.Linear(32, 16), nn.ReLU(True), nn.Dropout(), nn.Linear(16, 12), nn.ReLU(True), nn.Linear(12, C)
        )

    def forward(s, x):
        for m in s.features:
            x = m(x)
            if isinstance(m, nn.Conv2d):
                mark(x)
                x = x.clone()
        x = torch.flatten(x, 1)
        for i, m in enumerate(s.classifier):
            x = m(x)
            if i in (0, 3):
                mark(x)
                x = x.clone()
        return x


class Kan(nn.Module):
    def __init__(s, a, b):
        super().__init__()
        s.base, s.spline = nn.Parameter(torch.randn(b, a) / a), nn.Parameter(torch.randn(b, a, 4) / a)

    def forward(s, x):
        basis = torch.stack([torch.sin(k * x) for k in (1, 2, 3, 4)], -1)
        return F.silu(x) @ s.base.t() + torch.einsum("bik,oik->bo", basis, s.spline)


@case("KAN layers with two weights each")
class KanNet(nn.Module):
    def __init__(s):
        super().__init__()
        s.layers = nn.ModuleList([Kan(6, 8), Kan(8, 8), Kan(8, C)])

    def forward(s, x):
        for i, layer in enumerate(s.layers):
            x = layer(x)
            if i < 2:
                mark(x)
        return x


@case("deep sets: layers on (B, N, d), a sum, layers on (B, d)", ser)
class DeepSets(nn.Module):
    def __init__(s):
        super().__init__()
        s.phi = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 10))
        s.rho = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, C))

    def forward(s, x):
        h = s.phi[0](x)
        mark(h)
        h = s.phi[2](h.relu())
        mark(h)
        h = s.rho[0](h.sum(1))
        mark(h)
        return s.rho[2](h.relu())


@case("text: EmbeddingBag and two linears", words)
class Bag(nn.Module):
    def __init__(s):
        super().__init__()
        s.emb, s.fc, s.out = nn.EmbeddingBag(20, 8), nn.Linear(8, 10), nn.Linear(10, C)

    def forward(s, x):
        h = s.emb(x)
        mark(h)
        h = s.fc(h)
        mark(h)
        return s.out(h.tanh())


@case("text CNN: embedding, three convs in parallel, concatenated", words)
class TextCnn(nn.Module):
    def __init__(s):
        super().__init__()
        s.emb = nn.Embedding(20, 8)
        s.convs = nn.ModuleList([nn.Conv1d(8, 6, k) for k in (2, 3, 4)])
        s.out = nn.Linear(18, C)

    def forward(s, x):
        h = s.emb(x)
        mark(h)
        outs = []
        for c in s.convs:
            o = c(h.transpose(1, 2))
            mark(o)
            outs.append(o.relu().amax(2))
        return s.out(torch.cat(outs, 1))


@case("SIREN with omega in each layer")
class Siren(nn.Module):
    def __init__(s):
        super().__init__()
        s.net = nn.ModuleList([nn.Linear(6, 10), nn.Linear(10, 10), nn.Linear(10, 10), nn.Linear(10, C)])

    def forward(s, x):
        for i, layer in enumerate(s.net):
            x = layer(x)
            if i < 3:
                mark(x)
                x = torch.sin(3.0 * x)
        return x


def cases():
    """Yield them all."""
    yield from ALL
