"""Residual networks in ways that were not tried before; their sites were written down before a first reading."""

# ruff: noqa: D101  # a network is a few lines, and its case names it

from __future__ import annotations

import torch
from case import mark
from small import Att, C, D, Mlp, Pre, Tok, collector, img, ser, square, stacker
from torch import nn
from torch.utils.checkpoint import checkpoint

ALL, case = collector("hand-built, third")
stack = stacker(case)

stack("7 ReZero, one scalar a layer in a ParameterList", lambda s, h, b, i, h0: h + s.al[i] * b(h),
      extra=lambda s: setattr(s, "al", nn.ParameterList([torch.tensor(0.2 + k) for k in range(4)])))  # fmt: skip
stack("7 LayerScale outside", lambda s, h, b, i, h0: h + s.ga[i] * b(h),
      extra=lambda s: setattr(s, "ga", nn.Parameter(torch.rand(4, D))))  # fmt: skip
stack("7 Euler steps of an ODE, dt outside", lambda s, h, b, i, h0: h + 0.1 * b(h))
stack("7 torch.add with alpha", lambda s, h, b, i, h0: torch.add(h, b(h), alpha=0.5))
stack("7 h minus f(h)", lambda s, h, b, i, h0: h - b(h))
stack("7 lerp towards f(h)", lambda s, h, b, i, h0: torch.lerp(h, b(h), 0.3))
stack("7 in-place sum", lambda s, h, b, i, h0: h.clone().add_(b(h)))
stack("7 decay of the stream, one number a layer", lambda s, h, b, i, h0: (0.9 - 0.1 * i) * h + b(h))
stack("7 gate from the branch: h + sigmoid(f) * f", lambda s, h, b, i, h0: (lambda f: h + torch.sigmoid(f) * f)(b(h)))
stack("7 multiplicative: h * (1 + f)", lambda s, h, b, i, h0: h * (1 + b(h)))
stack("7 sandwich norm outside: h + LN(f)", lambda s, h, b, i, h0: h + s.ln[i](b(h)),
      extra=lambda s: setattr(s, "ln", nn.ModuleList([nn.LayerNorm(D) for _ in range(4)])))  # fmt: skip
stack("7 DeepNorm: LN(a h + f)", lambda s, h, b, i, h0: s.ln[i](2.0 * h + b(h)),
      extra=lambda s: setattr(s, "ln", nn.ModuleList([nn.LayerNorm(D) for _ in range(4)])))  # fmt: skip
stack("7 stream cast to float32 and back between blocks", lambda s, h, b, i, h0: (h.float() + b(h).float()).double())
stack("7 mean subtracted after the sum", lambda s, h, b, i, h0: (lambda z: z - z.mean(-1, keepdim=True))(h + b(h)))
stack("7 clamp after the sum", lambda s, h, b, i, h0: (h + b(h)).clamp(-0.8, 0.8))
stack("7 noise added (fixed), then the branch", lambda s, h, b, i, h0: h + 0.3 + b(h))
stack("7 input fed again at each layer: h + f(h) + h0", lambda s, h, b, i, h0: h + b(h) + h0)
stack("1 skip over two: the third block sees h0", lambda s, h, b, i, h0: b(h + h0) if i == 2 else b(h), block=Pre)
stack("1 scaled before the third block only", lambda s, h, b, i, h0: b(3.0 * h) if i == 2 else b(h), block=Pre)
stack("1 last block is not called", lambda s, h, b, i, h0: None if i == 3 else b(h), block=Pre)
stack("5 the same block twice in a row", lambda s, h, b, i, h0: (mark(m := b(h)), b(m))[1], block=Pre, n=3)
stack("9 checkpointed blocks", lambda s, h, b, i, h0: checkpoint(b, h, use_reentrant=False), block=Pre)
stack("3 tokens, as many steps as samples", lambda s, h, b, i, h0: b(h), Tok, square, "mean")
stack(
    "3 batch second, as many steps as samples",
    lambda s, h, b, i, h0: b(h.transpose(0, 1)).transpose(0, 1),
    Tok,
    square,
    "mean",
)
stack("3 the middle token", lambda s, h, b, i, h0: b(h), Tok, ser, 3, end=lambda s, h: h[:, 3])
stack("3 max over tokens", lambda s, h, b, i, h0: b(h), Tok, ser, "mean", end=lambda s, h: h.logsumexp(1))
stack("3 two register tokens, dropped at the end", lambda s, h, b, i, h0: b(h), Tok, ser, [0, 1, 2, 3, 4],
      end=lambda s, h: h[:, :-2].mean(1))  # fmt: skip
stack("3 pooled by flatten", lambda s, h, b, i, h0: b(h), Tok, ser, "mean",
      extra=lambda s: setattr(s, "flat", nn.Linear(7 * D, D)), end=lambda s, h: s.flat(h.flatten(1)))  # fmt: skip
stack("8 blocks as attributes of a ModuleDict by number", lambda s, h, b, i, h0: h + b(h), tag="residual_units")


class Time(nn.Module):
    def __init__(s):
        super().__init__()
        s.f, s.t = Mlp(), nn.Linear(D, D)

    def forward(s, t, h):
        return h + s.f(h + s.t(t))


stack("2 the condition comes first: block(t, h)", lambda s, h, b, i, h0: b(s.time.expand(len(h), -1), h), Time,
      extra=lambda s: setattr(s, "time", nn.Parameter(torch.randn(1, D))))  # fmt: skip
stack("2 block(h0, h): the stem again, first", lambda s, h, b, i, h0: b(h0, h), Time)


class AuxFirst(nn.Module):
    def __init__(s):
        super().__init__()
        s.f, s.k = Mlp(), nn.Linear(D, D)

    def forward(s, h):
        return torch.tanh(s.k(h)), h + s.f(h)


stack("2 the state is the second that is returned", lambda s, h, b, i, h0: b(h)[1], AuxFirst)


class AuxDict(nn.Module):
    def __init__(s):
        super().__init__()
        s.f, s.k = Mlp(), nn.Linear(D, D)

    def forward(s, state):
        h = state["x"]
        return {"gate": torch.tanh(s.k(h)), "x": h + s.f(h)}


stack("2 dict in, dict out", lambda s, h, b, i, h0: b({"x": h})["x"], AuxDict)


class Kw(nn.Module):
    def __init__(s):
        super().__init__()
        s.f = Mlp()

    def forward(s, *, mask=None, x):
        return x + s.f(x)


stack("2 keyword only, a mask before it", lambda s, h, b, i, h0: b(mask=torch.ones_like(h), x=h), Kw)


@case("2 momentum ResNet: velocity and state")
class Momentum(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.out = nn.Linear(6, D), nn.Linear(D, C)
        s.blocks = nn.ModuleList([Mlp() for _ in range(4)])

    def forward(s, x):
        h, v = s.inp(x), 0.0
        for b in s.blocks:
            v = 0.9 * v + b(h)
            h = h + v
        return s.out(h)


@case("2 leapfrog: two halves in turn, blocks in one list")
class Leap(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.out = nn.Linear(6, 2 * D), nn.Linear(2 * D, C)
        s.blocks = nn.ModuleList([Mlp() for _ in range(4)])

    def forward(s, x):
        a, b = s.inp(x).chunk(2, 1)
        for i, f in enumerate(s.blocks):
            if i % 2:
                a = a + f(b)
            else:
                b = b + f(a)
        return s.out(torch.cat([a, b], 1))


@case("5 RK2 steps: each block is called twice, on h and on a midpoint")
class Rk2(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.out = nn.Linear(6, D), nn.Linear(D, C)
        s.blocks = nn.ModuleList([Mlp() for _ in range(3)])

    def forward(s, x):
        h = s.inp(x)
        mark(h)
        for b in s.blocks:
            h = h + 0.5 * b(h + 0.25 * b(h))
            mark(h)
        return s.out(h)


@case("7 DenseFormer: weighted mean of all states so far")
class DenseFormer(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.out = nn.Linear(6, D), nn.Linear(D, C)
        s.blocks = nn.ModuleList([Pre() for _ in range(3)])
        s.w = nn.Parameter(torch.rand(3, 4))

    def forward(s, x):
        hs = [s.inp(x)]
        for i, b in enumerate(s.blocks):
            hs.append(b(hs[-1]))
            hs[-1] = sum(s.w[i, j] * h for j, h in enumerate(hs))
        return s.out(hs[-1])


@case("1 U-ViT: long skips by concatenation and a linear", ser, "mean")
class Uvit(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.out = nn.Linear(6, D), nn.Linear(D, C)
        s.ins, s.mid, s.outs = nn.ModuleList([Tok(), Tok()]), Tok(), nn.ModuleList([Tok(), Tok()])
        s.skip = nn.ModuleList([nn.Linear(2 * D, D), nn.Linear(2 * D, D)])

    def forward(s, x):
        h, kept = s.inp(x), []
        for b in s.ins:
            h = b(h)
            kept.append(h)
        h = s.mid(h)
        for b, k in zip(s.outs, s.skip):
            h = b(k(torch.cat([h, kept.pop()], -1)))
        return s.out(h.mean(1))


class ValueRes(nn.Module):
    def __init__(s):
        super().__init__()
        s.v, s.o, s.f = nn.Linear(D, D), nn.Linear(D, D), Mlp()

    def forward(s, h, v0=None):
        v = s.v(h)
        v = v if v0 is None else 0.5 * (v + v0)
        return h + s.f(h) + s.o(v), v


@case("2 value residual: the first layer's values go to all others", ser, "mean")
class ValueNet(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.out = nn.Linear(6, D), nn.Linear(D, C)
        s.blocks = nn.ModuleList([ValueRes() for _ in range(3)])

    def forward(s, x):
        h, v0 = s.inp(x), None
        for b in s.blocks:
            h, v = b(h, v0)
            v0 = v if v0 is None else v0
        return s.out(h.mean(1))


@case("7 parallel attention and MLP from two lists", ser, "mean")
class Parallel(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.out = nn.Linear(6, D), nn.Linear(D, C)
        s.att, s.mlp = nn.ModuleList([Att() for _ in range(3)]), nn.ModuleList([Mlp() for _ in range(3)])

    def forward(s, x):
        h = s.inp(x)
        mark(h)
        for a, m in zip(s.att, s.mlp):
            h = h + a(h) + m(h)
            mark(h)
        return s.out(h.mean(1))


@case("3 tokens merged in pairs between blocks", ser, "mean")
class Merge(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.out = nn.Linear(6, D), nn.Linear(D, C)
        s.blocks = nn.ModuleList([Tok() for _ in range(3)])

    def forward(s, x):
        h = s.inp(x[:, :6])
        mark(h)
        h = s.blocks[0](h)
        mark(h)
        h = s.blocks[1](h.view(len(h), 3, 2, D).mean(2))
        mark(h)
        h = s.blocks[2](h)
        mark(h)
        return s.out(h.mean(1))


@case("3 deep prompts: new tokens before each block, dropped after it", ser, "mean")
class Prompts(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.out = nn.Linear(6, D), nn.Linear(D, C)
        s.blocks = nn.ModuleList([Tok() for _ in range(3)])
        s.p = nn.Parameter(torch.randn(3, 2, D))

    def forward(s, x):
        h = s.inp(x)
        for i, b in enumerate(s.blocks):
            h = b(torch.cat([s.p[i].expand(len(x), -1, -1), h], 1))[:, 2:]
        return s.out(h.mean(1))


@case("3 channels last (B, H, W, C)", img)
class ChannelsLast(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.out = nn.Linear(3, D), nn.Linear(D, C)
        s.blocks = nn.ModuleList([Pre() for _ in range(3)])

    def forward(s, x):
        h = s.inp(x.permute(0, 2, 3, 1))
        mark(h)
        for b in s.blocks:
            h = b(h)
            mark(h)
        return s.out(h.mean((1, 2)))


def cases():
    """Yield them all."""
    yield from ALL
