"""More plain networks; their sites were written down before a first reading."""

# ruff: noqa: D101  # a network is a few lines, and its case names it

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from case import cut, mark
from small import C, collector, ser, stacker, words
from torch import nn

ALL, case = collector("plain")
stack = stacker(case)


@case("random features: the first layer is frozen")
class RandomFeatures(nn.Module):
    def __init__(s):
        super().__init__()
        s.rf, s.h1, s.out = nn.Linear(6, 20), nn.Linear(20, 10), nn.Linear(10, C)
        s.rf.requires_grad_(False)

    def forward(s, x):
        h = s.rf(x)
        h = h if h.requires_grad else h.requires_grad_()
        mark(h)
        h = s.h1(h.relu())
        mark(h)
        return s.out(h.relu())


@case("tied weights: the output layer is F.linear of the embedding", words)
class Tied(nn.Module):
    def __init__(s):
        super().__init__()
        s.emb, s.fc1, s.fc2 = nn.Embedding(20, 8), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(s, x):
        h = s.emb(x)
        mark(h)
        h = s.fc1(h)
        mark(h)
        h = s.fc2(h.relu())
        mark(h)
        return F.linear(h.mean(1), s.emb.weight[:C])


@case("nested Sequential with names")
class Named(nn.Module):
    def __init__(s):
        super().__init__()
        s.net = nn.Sequential(
            OrderedDict(
                enc=nn.Sequential(OrderedDict(fc=nn.Linear(6, 10), act=nn.GELU())),
                mid=nn.Sequential(OrderedDict(fc=nn.Linear(10, 10), act=nn.GELU())),
                out=nn.Sequential(OrderedDict(fc=nn.Linear(10, C), soft=nn.LogSoftmax(1))),
            )
        )

    def forward(s, x):
        h = s.net.enc.fc(x)
        mark(h)
        h = s.net.mid.fc(s.net.enc.act(h))
        mark(h)
        return s.net.out.soft(s.net.out.fc(s.net.mid.act(h)))


@case("maxout")
class Maxout(nn.Module):
    def __init__(s):
        super().__init__()
        s.a, s.b, s.out = nn.Linear(6, 20), nn.Linear(10, 20), nn.Linear(10, C)

    def forward(s, x):
        h = s.a(x)
        mark(h)
        h = s.b(h.view(-1, 10, 2).amax(2))
        mark(h)
        return s.out(h.view(-1, 10, 2).amax(2))


@case("mixture of experts between plain layers")
class Moe(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.gate = nn.Linear(6, 10), nn.Linear(10, 3)
        s.experts = nn.ModuleList([nn.Linear(10, 8) for _ in range(3)])
        s.out = nn.Linear(8, C)

    def forward(s, x):
        h = s.inp(x)
        mark(h)
        h = h.relu()
        w = s.gate(h)
        mark(w)
        outs = []
        for e in s.experts:
            o = e(h)
            mark(o)
            outs.append(o)
        return s.out((torch.stack(outs, 1) * w.softmax(1)[..., None]).sum(1).relu())


@case("bilinear layer of two inputs")
class Bilin(nn.Module):
    def __init__(s):
        super().__init__()
        s.a, s.b, s.bi, s.out = nn.Linear(3, 6), nn.Linear(3, 4), nn.Bilinear(6, 4, 10), nn.Linear(10, C)

    def forward(s, x):
        a = s.a(x[:, :3])
        mark(a)
        b = s.b(x[:, 3:])
        mark(b)
        h = s.bi(a.tanh(), b.tanh())
        mark(h)
        return s.out(h.relu())


@case("Siamese MLP, one encoder called twice")
class Siamese(nn.Module):
    def __init__(s):
        super().__init__()
        s.fc1, s.fc2, s.out = nn.Linear(3, 10), nn.Linear(10, 8), nn.Linear(8, C)

    def forward(s, x):
        both = []
        for part in (x[:, :3], x[:, 3:]):
            h = s.fc1(part)
            mark(h)
            h = s.fc2(h.relu())
            mark(h)
            both.append(h)
        return s.out((both[0] - both[1]).abs())


@case("multi-task heads, the first one counts")
class Heads(nn.Module):
    def __init__(s):
        super().__init__()
        s.a, s.b = nn.Linear(6, 10), nn.Linear(10, 10)
        s.heads = nn.ModuleList([nn.Linear(10, C), nn.Linear(10, 3)])

    def forward(s, x):
        h = s.a(x)
        mark(h)
        h = s.b(h.relu())
        mark(h)
        return [head(h.relu()) for head in s.heads]


@case("ensemble of three MLPs, logits averaged")
class Ensemble(nn.Module):
    def __init__(s):
        super().__init__()
        s.members = nn.ModuleList([nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, C)) for _ in range(3)])

    def forward(s, x):
        outs = []
        for m in s.members:
            h = m[0](x)
            mark(h)
            outs.append(m[2](m[1](h)))
        return torch.stack(outs).mean(0)


@case("parameters used by F.linear, no layers")
class Functional(nn.Module):
    def __init__(s):
        super().__init__()
        s.w1, s.w2, s.w3 = (nn.Parameter(torch.randn(b, a) / 3) for a, b in ((6, 10), (10, 8), (8, C)))

    def forward(s, x):
        a = F.linear(x, s.w1)
        b = F.linear(a.relu(), s.w2)
        mark(a), mark(b)
        return F.linear(b.relu(), s.w3)


@case("ParameterList of a hand-written network")
class PList(nn.Module):
    def __init__(s):
        super().__init__()
        s.ws = nn.ParameterList([torch.randn(6, 10), torch.randn(10, 8), torch.randn(8, C)])

    def forward(s, x):
        for i, w in enumerate(s.ws):
            x = x @ w
            if i < 2:
                mark(x)
                x = x.relu()
        return x


@case("conv net on (B, T, C) with a transposed convolution", ser)
class Upsample(nn.Module):
    def __init__(s):
        super().__init__()
        s.down, s.up, s.out = nn.Conv1d(6, 8, 3, 2), nn.ConvTranspose1d(8, 6, 3, 2), nn.Linear(42, C)

    def forward(s, x):
        h = s.down(x.transpose(1, 2))
        mark(h)
        h = s.up(h.relu())
        mark(h)
        return s.out(h.relu().flatten(1))


@case("one hidden layer")
class OneHidden(nn.Module):
    def __init__(s):
        super().__init__()
        s.fc1, s.fc2 = nn.Linear(6, 10), nn.Linear(10, C)

    def forward(s, x):
        h = s.fc1(x)
        mark(h)
        return s.fc2(torch.sigmoid(h))


@case("detached after the second layer, as greedy training has it")
class Cut(nn.Module):
    def __init__(s):
        super().__init__()
        s.a, s.b, s.out = nn.Linear(6, 10), nn.Linear(10, 8), nn.Linear(8, C)

    def forward(s, x):
        a = s.a(x)
        b = s.b(cut(a.relu()))
        mark(a), mark(b)
        return s.out(b.relu())


@case("layers called in another order than registered")
class Order(nn.Module):
    def __init__(s):
        super().__init__()
        s.out, s.third, s.first, s.second = nn.Linear(8, C), nn.Linear(9, 8), nn.Linear(6, 10), nn.Linear(10, 9)

    def forward(s, x):
        for layer in (s.first, s.second, s.third):
            x = layer(x)
            mark(x)
            x = x.relu()
        return s.out(x)


@case("skip from the first to the last layer only (wide and deep)")
class WideDeep(nn.Module):
    def __init__(s):
        super().__init__()
        s.wide = nn.Linear(6, C)
        s.d1, s.d2, s.d3 = nn.Linear(6, 10), nn.Linear(10, 8), nn.Linear(8, C)

    def forward(s, x):
        h = s.d1(x)
        mark(h)
        h = s.d2(h.relu())
        mark(h)
        return s.d3(h.relu()) + s.wide(x)


def cases():
    """Yield them all."""
    yield from ALL
