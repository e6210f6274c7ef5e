"""More networks built by hand, two or more for each way to go wrong; three were closed after a first run of them."""

# ruff: noqa: D101  # a network is a few lines, and its case names it

from __future__ import annotations

import torch
import torch.nn.functional as F
from case import Case, mark
from torch import nn

D, C = (12, 5)


def vec():
    g = torch.Generator().manual_seed(7)
    return (torch.randn(6, 6, generator=g, dtype=torch.float64), torch.randint(C, (6,), generator=g))


def ser():
    g = torch.Generator().manual_seed(8)
    return (torch.randn(6, 7, 6, generator=g, dtype=torch.float64), torch.randint(C, (6,), generator=g))


def img():
    g = torch.Generator().manual_seed(9)
    return (torch.randn(6, 3, 8, 8, generator=g, dtype=torch.float64), torch.randint(C, (6,), generator=g))


class Mlp(nn.Module):
    def __init__(s, d=D, o=None, g=1.0):
        super().__init__()
        s.a, s.b = (nn.Linear(d, 2 * d), nn.Linear(2 * d, o or d))
        s.g = g

    def forward(s, h):
        return s.g * s.b(F.gelu(s.a(h)))


class Pre(nn.Module):
    def __init__(s, d=D, g=1.0):
        super().__init__()
        s.n, s.f = (nn.LayerNorm(d), Mlp(d, g=g))

    def forward(s, h):
        return h + s.f(s.n(h))


class Att(nn.Module):
    def __init__(s, d=D):
        super().__init__()
        s.q, s.o = (nn.Linear(d, 3 * d), nn.Linear(d, d))

    def forward(s, h):
        q, k, v = s.q(h).chunk(3, -1)
        return s.o(F.scaled_dot_product_attention(q, k, v))


ALL = []


def case(name, batch=vec, reads=None):

    def deco(cls):
        ALL.append(Case(name, "hand-built, more", cls, batch, (), reads))
        return cls

    return deco


@case("1 widths, gelu between the stages")
class Net1(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Linear(6, 8)
        s.s1 = nn.ModuleList([Pre(8), Pre(8)])
        s.p = nn.Linear(8, 16)
        s.s2 = nn.ModuleList([Pre(16), Pre(16)])
        s.out = nn.Linear(16, C)

    def forward(s, x):
        h = s.inp(x)
        mark(h)
        for b in s.s1:
            h = b(h)
            mark(h)
        h = F.gelu(s.p(h))
        for b in s.s2:
            h = b(h)
            mark(h)
        return s.out(h)


@case("1 long skip over the middle (encoder + decoder add)")
class Net2(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Linear(6, D)
        s.down = nn.ModuleList([Pre(), Pre()])
        s.mid = Pre()
        s.up = nn.ModuleList([Pre(), Pre()])
        s.out = nn.Linear(D, C)

    def forward(s, x):
        h = s.inp(x)
        k = []
        for b in s.down:
            h = b(h)
            k.append(h)
        h = s.mid(h)
        for b in s.up:
            h = b(h + k.pop())
        mark(h, *k)
        return s.out(h)


@case("1 two towers, concatenated, in lists of their own")
class Net3(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Linear(6, D)
        s.ta = nn.ModuleList([Pre(), Pre(), Pre()])
        s.tb = nn.ModuleList([Pre(), Pre()])
        s.out = nn.Linear(2 * D, C)

    def forward(s, x):
        a = b = s.inp(x)
        for m in s.ta:
            a = m(a)
        for m in s.tb:
            b = m(b)
        mark(a, b)
        return s.out(torch.cat([a, b], 1))


class Rev(nn.Module):
    def __init__(s):
        super().__init__()
        s.f, s.g = (Mlp(), Mlp(g=20.0))

    def forward(s, xs):
        a, b = xs
        a = a + s.f(b)
        return [a, b + s.g(a)]


@case("2 reversible, a list through Sequential")
class Net4(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Linear(6, 2 * D)
        s.body = nn.Sequential(Rev(), Rev(), Rev())
        s.out = nn.Linear(2 * D, C)

    def forward(s, x):
        h = list(s.inp(x).chunk(2, 1))
        mark(*h)
        for b in s.body:
            h = b(h)
            mark(*h)
        return s.out(torch.cat(h, 1))


class Rev1(nn.Module):
    def __init__(s):
        super().__init__()
        s.f, s.g = (Mlp(D // 2), Mlp(D // 2, g=20.0))

    def forward(s, h):
        a, b = h.chunk(2, -1)
        a = a + s.f(b)
        b = b + s.g(a)
        return torch.cat([a, b], -1)


@case("2 reversible, one tensor outside")
class Net5(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Linear(6, D)
        s.body = nn.ModuleList([Rev1() for _ in range(3)])
        s.out = nn.Linear(D, C)

    def forward(s, x):
        h = s.inp(x)
        mark(h)
        for b in s.body:
            h = b(h)
            mark(h)
        return s.out(h)


class Dual(nn.Module):
    def __init__(s):
        super().__init__()
        s.f, s.g = (Mlp(), Mlp(g=30.0))

    def forward(s, *, hidden, context):
        c = context + s.g(context + hidden.mean(1, keepdim=True))
        return {"hidden": hidden + s.f(hidden + c.mean(1, keepdim=True)), "context": c}


@case("2 image and text as a dict", ser)
class Net6(nn.Module):
    def __init__(s):
        super().__init__()
        s.i, s.t = (nn.Linear(6, D), nn.Linear(6, D))
        s.blocks = nn.ModuleList([Dual() for _ in range(3)])
        s.out = nn.Linear(D, C)

    def forward(s, x):
        st = {"hidden": s.i(x), "context": s.t(x[:, :2])}
        mark(*st.values())
        for b in s.blocks:
            st = b(**st)
            mark(*st.values())
        return s.out(st["hidden"].mean(1) + st["context"].mean(1))


class Aux(nn.Module):
    def __init__(s):
        super().__init__()
        s.f = Mlp()
        s.k = nn.Linear(D, D)

    def forward(s, h, mem=None):
        m = torch.tanh(s.k(h))
        h = h + s.f(h) + (0 if mem is None else 0.1 * mem)
        return (h, m)


@case("2 a memory handed from layer to layer")
class Net7(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Linear(6, D)
        s.blocks = nn.ModuleList([Aux() for _ in range(4)])
        s.out = nn.Linear(D, C)

    def forward(s, x):
        h, m = (s.inp(x), None)
        for b in s.blocks:
            h, m = b(h, m)
        return s.out(h)


class Tok(nn.Module):
    def __init__(s):
        super().__init__()
        s.n1, s.a, s.n2, s.f = (nn.LayerNorm(D), Att(), nn.LayerNorm(D), Mlp())

    def forward(s, h):
        h = h + s.a(s.n1(h))
        return h + s.f(s.n2(h))


def toks(read):

    class Net8(nn.Module):
        def __init__(s):
            super().__init__()
            s.inp = nn.Linear(6, D)
            s.enc = nn.ModuleList([Tok() for _ in range(3)])
            s.out = nn.Linear(D, C)
            s.w = nn.Linear(D, 1)

        def forward(s, x):
            h = s.inp(x)
            mark(h)
            for b in s.enc:
                h = b(h)
                mark(h)
            return s.out(read(s, h))

    return Net8


case("3 six of seven tokens", ser, [0, 1, 2, 3, 4, 5])(toks(lambda s, h: h[:, :-1].mean(1)))
case("3 every second token", ser, [0, 2, 4, 6])(toks(lambda s, h: h[:, ::2].mean(1)))
case("3 attention pooling", ser, "mean")(toks(lambda s, h: (h * s.w(h).softmax(1)).sum(1)))
case("3 first plus last", ser, [0, 6])(toks(lambda s, h: h[:, 0] + h[:, -1]))


@case("3 cls token is dropped and mean of rest, cls later", ser, "mean")
class Net9(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Linear(6, D)
        s.cls = nn.Parameter(torch.randn(1, 1, D))
        s.enc = nn.ModuleList([Tok() for _ in range(3)])
        s.out = nn.Linear(2 * D, C)

    def forward(s, x):
        h = torch.cat([s.cls.expand(len(x), -1, -1), s.inp(x)], 1)
        mark(h)
        for b in s.enc:
            h = b(h)
            mark(h)
        return s.out(torch.cat([h[:, 0], h[:, 1:].mean(1)], -1))


class TCN(nn.Module):
    def __init__(s, dil, d=D):
        super().__init__()
        s.c1 = nn.Conv1d(d, d, 3, padding=dil, dilation=dil)
        s.c2 = nn.Conv1d(d, d, 1)

    def forward(s, h):
        return h + s.c2(F.relu(s.c1(h)))


@case("3 TCN (B,C,T), last step", ser, lambda h: h[:, :, -1].norm(dim=1))
class Net10(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Conv1d(6, D, 1)
        s.net = nn.Sequential(*(TCN(2**i) for i in range(3)))
        s.out = nn.Linear(D, C)

    def forward(s, x):
        h = s.inp(x.transpose(1, 2))
        mark(h)
        for b in s.net:
            h = b(h)
            mark(h)
        return s.out(h[:, :, -1])


@case("3 TCN (B,C,T), d = T, max over time", ser, lambda h: h.norm(dim=1).mean(1))
class Net11(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Conv1d(6, 7, 1)
        s.net = nn.Sequential(*(TCN(2**i, 7) for i in range(3)))
        s.out = nn.Linear(7, C)

    def forward(s, x):
        h = s.inp(x.transpose(1, 2))
        mark(h)
        for b in s.net:
            h = b(h)
            mark(h)
        return s.out(h.logsumexp(2))


@case("5 universal transformer, step embedding", ser, "mean")
class Net12(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Linear(6, D)
        s.block = Tok()
        s.out = nn.Linear(D, C)

    def forward(s, x):
        h = s.inp(x)
        mark(h)
        for _ in range(5):
            h = s.block(h)
            mark(h)
        return s.out(h.mean(1))


@case("5 prelude, recurrent core x3, coda")
class Net13(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Linear(6, D)
        s.prelude = nn.ModuleList([Pre()])
        s.core = nn.ModuleList([Pre(), Pre()])
        s.coda = nn.ModuleList([Pre()])
        s.out = nn.Linear(D, C)

    def forward(s, x):
        h = s.inp(x)
        mark(h)
        for b in s.prelude:
            h = b(h)
            mark(h)
        for _ in range(3):
            for b in s.core:
                h = b(h)
                mark(h)
        for b in s.coda:
            h = b(h)
            mark(h)
        return s.out(h)


@case("5 recurrent core with input injection")
class Net14(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Linear(6, D)
        s.core = Pre()
        s.out = nn.Linear(D, C)

    def forward(s, x):
        e = s.inp(x)
        h = e
        mark(h)
        for _ in range(4):
            h = s.core(h + e)
            mark(h)
        return s.out(h)


@case("5 Siamese, difference of two embeddings")
class Net15(nn.Module):
    def __init__(s):
        super().__init__()
        s.enc = nn.Sequential(nn.Linear(3, D), Pre(), Pre(), Pre())
        s.out = nn.Linear(D, C)

    def forward(s, x):
        a, b = (s.enc(x[:, :3]), s.enc(x[:, 3:]))
        mark(a, b)
        return s.out((a - b).abs())


@case("5 triplet by three passes, only the last trains")
class Net16(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Linear(6, D)
        s.blocks = nn.ModuleList([Pre(), Pre(), Pre()])
        s.out = nn.Linear(D, C)

    def enc(s, x, m=False):
        h = s.inp(x)
        if m:
            mark(h)
        for b in s.blocks:
            h = b(h)
            if m:
                mark(h)
        return h

    def forward(s, x):
        with torch.no_grad():
            k = s.enc(-x)
        return s.out(s.enc(x, True)) + 0 * k.sum()


@case("5 weight-shared in pairs (ALBERT groups)")
class Net17(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Linear(6, D)
        s.groups = nn.ModuleList([Pre(), Pre()])
        s.out = nn.Linear(D, C)

    def forward(s, x):
        h = s.inp(x)
        mark(h)
        for i in range(6):
            h = s.groups[i // 3](h)
            mark(h)
        return s.out(h)


@case("5 forward by name, branch added outside")
class Net18(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Linear(6, D)
        s.blocks = nn.ModuleList([Mlp() for _ in range(3)])
        s.out = nn.Linear(D, C)

    def forward(s, x):
        h = s.inp(x)
        mark(h)
        for b in s.blocks:
            h = h + b.forward(h)
            mark(h)
        return s.out(h)


class Incep(nn.Module):
    def __init__(s, a, b, st=1):
        super().__init__()
        s.c1, s.c2 = (nn.Conv2d(a, b, 3, st, 1), nn.Conv2d(b, b, 3, 1, 1))
        s.k = nn.Conv2d(a, b, 1, st) if a != b or st > 1 else nn.Identity()

    def forward(s, h):
        return F.relu(s.k(h) + s.c2(F.relu(s.c1(h))))


@case("6 stages under different attribute names", img)
class Net19(nn.Module):
    def __init__(s):
        super().__init__()
        s.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        s.res2 = nn.Sequential(Incep(4, 4), Incep(4, 4))
        s.res3 = nn.Sequential(Incep(4, 8, 2), Incep(8, 8))
        s.res4 = nn.Sequential(Incep(8, 12, 2))
        s.fc = nn.Linear(12, C)

    def forward(s, x):
        h = s.conv1(x)
        mark(h)
        for st in (s.res2, s.res3, s.res4):
            for b in st:
                h = b(h)
                mark(h)
        return s.fc(h.mean((2, 3)))


@case("6 encoder stack then pooler stack", ser, 0)
class Net20(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Linear(6, D)
        s.layers = nn.ModuleList([Tok() for _ in range(4)])
        s.head = nn.ModuleList([nn.Linear(D, D), nn.Linear(D, C)])

    def forward(s, x):
        h = s.inp(x)
        mark(h)
        for b in s.layers:
            h = b(h)
            mark(h)
        return s.head[1](torch.tanh(s.head[0](h[:, 0])))


def outside(name, new, begin=lambda h: h, batch=vec, reads=None, extra=lambda s: None, mk=Mlp):

    class Net21(nn.Module):
        def __init__(s):
            super().__init__()
            s.inp = nn.Linear(6, D)
            s.f = nn.ModuleList([mk() for _ in range(4)])
            s.out = nn.Linear(D, C)
            extra(s)

        def forward(s, x):
            h = h0 = begin(s.inp(x))
            mark(h)
            for i, b in enumerate(s.f):
                h = new(s, h, b, i, h0)
                mark(h)
            return s.out(h if h.ndim == 2 else h.mean(1))

    case(name, batch, reads)(Net21)


outside(
    "7 SkipInit, one scalar for all",
    lambda s, h, b, i, h0: h + s.al * b(h),
    extra=lambda s: setattr(s, "al", nn.Parameter(torch.tensor(0.3))),
)
outside("7 stochastic-depth scaling (1/keep)", lambda s, h, b, i, h0: h + b(h) / 0.8)
outside("7 APPNP teleport", lambda s, h, b, i, h0: 0.9 * b(h) + 0.1 * h0)
outside("7 momentum of two states", lambda s, h, b, i, h0: torch.relu(h + b(h)))
outside("7 rmsnorm after the sum", lambda s, h, b, i, h0: F.rms_norm(h + b(h), (D,)))
outside("7 dropout-scaled mean (h+f)/sqrt 2", lambda s, h, b, i, h0: (h + b(h)) / 2**0.5)
outside(
    "7 convex gate per layer",
    lambda s, h, b, i, h0: torch.sigmoid(s.g[i]) * h + (1 - torch.sigmoid(s.g[i])) * b(h),
    extra=lambda s: setattr(s, "g", nn.Parameter(torch.randn(4))),
)
outside(
    "7 nGPT style lerp on the sphere",
    lambda s, h, b, i, h0: F.normalize(h + s.g[i] * (F.normalize(b(h), dim=-1) - h), dim=-1),
    begin=lambda h: F.normalize(h, dim=-1),
    extra=lambda s: setattr(s, "g", nn.Parameter(torch.rand(4))),
)
outside("7 per-layer different scale only in the last", lambda s, h, b, i, h0: h + b(h) * (5.0 if i == 3 else 1.0))
outside("7 branch used twice", lambda s, h, b, i, h0: (lambda f: h + f + 0.1 * f.square())(b(h)))
outside(
    "7 dense sum of all former branches",
    lambda s, h, b, i, h0: (s.acc.append(b(h)), h0 + sum(s.acc[-(i + 1) :]))[1],
    extra=lambda s: object.__setattr__(s, "acc", []),
)


@case("8 a list of convs with skips", img)
class Net22(nn.Module):
    def __init__(s):
        super().__init__()
        s.c0 = nn.Conv2d(3, 6, 3, padding=1)
        s.convs = nn.ModuleList([nn.Conv2d(6, 6, 3, padding=1) for _ in range(4)])
        s.fc = nn.Linear(6, C)

    def forward(s, x):
        h = s.c0(x)
        mark(h)
        for c in s.convs:
            h = h + F.relu(c(h))
            mark(h)
        return s.fc(h.mean((2, 3)))


@case("8 GRUs with skips", ser, -1)
class Net23(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Linear(6, D)
        s.rnn = nn.ModuleList([nn.GRU(D, D, batch_first=True) for _ in range(3)])
        s.out = nn.Linear(D, C)

    def forward(s, x):
        h = s.inp(x)
        mark(h)
        for r in s.rnn:
            h = h + r(h)[0]
            mark(h)
        return s.out(h[:, -1])


@case("8 norms, mixers and mlps in three lists", ser, "mean")
class Net24(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Linear(6, D)
        s.n = nn.ModuleList([nn.LayerNorm(D) for _ in range(6)])
        s.att = nn.ModuleList([Att() for _ in range(3)])
        s.mlp = nn.ModuleList([Mlp() for _ in range(3)])
        s.out = nn.Linear(D, C)

    def forward(s, x):
        h = s.inp(x)
        mark(h)
        for i in range(3):
            h = h + s.att[i](s.n[2 * i](h))
            mark(h)
            h = h + s.mlp[i](s.n[2 * i + 1](h))
            mark(h)
        return s.out(h.mean(1))


@case("8 indexed backwards")
class Net25(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Linear(6, D)
        s.stack = nn.ModuleList([Pre() for _ in range(4)])
        s.out = nn.Linear(D, C)

    def forward(s, x):
        h = s.inp(x)
        mark(h)
        for i in reversed(range(4)):
            h = s.stack[i](h)
            mark(h)
        return s.out(h)


@case("8 ModuleDict, some unused")
class Net26(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Linear(6, D)
        s.stack = nn.ModuleDict({k: Pre() for k in "abcd"})
        s.out = nn.Linear(D, C)

    def forward(s, x):
        h = s.inp(x)
        mark(h)
        for k in "abc":
            h = s.stack[k](h)
            mark(h)
        return s.out(h)


class Mask(nn.Module):
    def __init__(s):
        super().__init__()
        s.n, s.a = (nn.LayerNorm(D), nn.Linear(7, 7))
        s._bias = {}

    def forward(s, h):
        k = h.shape[1]
        if k not in s._bias:
            s._bias[k] = torch.tril(s.a.weight).softmax(-1)
        return h + s._bias[k] @ s.n(h)


@case("9 attention bias kept in a dict", ser, -1)
class Net27(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Linear(6, D)
        s.blocks = nn.ModuleList([Mask() for _ in range(3)])
        s.out = nn.Linear(D, C)

    def forward(s, x):
        h = s.inp(x)
        mark(h)
        for b in s.blocks:
            h = b(h)
            mark(h)
        s.last_hidden = h
        return s.out(h[:, -1])


@case("9 split stem, gate used at the end", ser, "mean")
class Net28(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Linear(6, 2 * D)
        s.blocks = nn.ModuleList([Tok() for _ in range(3)])
        s.out = nn.Linear(D, C)

    def forward(s, x):
        h, g = s.inp(x).split(D, -1)
        mark(h)
        for b in s.blocks:
            h = b(h)
            mark(h)
        return s.out((h * torch.sigmoid(g)).mean(1))


@case("9 unbind of a stacked stem")
class Net29(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Linear(6, 2 * D)
        s.blocks = nn.ModuleList([Pre() for _ in range(3)])
        s.out = nn.Linear(D, C)

    def forward(s, x):
        h, g = s.inp(x).view(len(x), 2, D).unbind(1)
        mark(h)
        for b in s.blocks:
            h = b(h)
            mark(h)
        return s.out(h) + 0.1 * g.mean()


def cases():
    """Yield them all."""
    yield from ALL
