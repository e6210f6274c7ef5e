"""More residual networks in ways that were not tried before; their sites were written down before a first reading."""

# ruff: noqa: D101  # a network is a few lines, and its case names it

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from case import mark
from small import Att, C, D, Mlp, Pre, Tok, collector, img, ser, stacker, tokens, video
from torch import nn

ALL, case = collector("hand-built, third")
stack = stacker(case)


class Res3d(nn.Module):
    def __init__(s, d=4):
        super().__init__()
        s.c1, s.c2 = nn.Conv3d(d, d, 3, padding=1), nn.Conv3d(d, d, 3, padding=1)

    def forward(s, h):
        return F.relu(h + s.c2(F.relu(s.c1(h))))


@case("3 residual convolutions in three dimensions", video)
class Video(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.out = nn.Conv3d(3, 4, 3, padding=1), nn.Linear(4, C)
        s.res = nn.Sequential(Res3d(), Res3d(), Res3d())

    def forward(s, x):
        h = s.inp(x)
        mark(h)
        for b in s.res:
            h = b(h)
            mark(h)
        return s.out(h.mean((2, 3, 4)))


class PadBlock(nn.Module):
    def __init__(s, a, b, stride):
        super().__init__()
        s.c1, s.c2, s.a, s.b, s.stride = nn.Conv2d(a, b, 3, stride, 1), nn.Conv2d(b, b, 3, 1, 1), a, b, stride

    def forward(s, h):
        short = F.pad(h[:, :, :: s.stride, :: s.stride], (0, 0, 0, 0, 0, s.b - s.a))
        return F.relu(short + s.c2(F.relu(s.c1(h))))


@case("6 CIFAR ResNet with padded shortcuts", img)
class Cifar(nn.Module):
    def __init__(s):
        super().__init__()
        s.conv = nn.Conv2d(3, 4, 3, padding=1)
        s.group1 = nn.Sequential(PadBlock(4, 4, 1), PadBlock(4, 4, 1))
        s.group2 = nn.Sequential(PadBlock(4, 8, 2), PadBlock(8, 8, 1))
        s.group3 = nn.Sequential(PadBlock(8, 12, 2), PadBlock(12, 12, 1))
        s.fc = nn.Linear(12, C)

    def forward(s, x):
        h = s.conv(x)
        mark(h)
        for group in (s.group1, s.group2, s.group3):
            for b in group:
                h = b(h)
                mark(h)
        return s.fc(h.mean((2, 3)))


@case("1 FractalNet: mean of a short and a long column")
class Fractal(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.out = nn.Linear(6, D), nn.Linear(D, C)
        s.short, s.long = nn.ModuleList([Mlp(), Mlp()]), nn.ModuleList([Mlp() for _ in range(4)])

    def forward(s, x):
        h = s.inp(x)
        mark(h)
        for i in range(2):
            h = 0.5 * (s.short[i](h) + s.long[2 * i + 1](s.long[2 * i](h)))
            mark(h)
        return s.out(h)


@case("8 block1 … block4 as attributes, called by reduce")
class Attributes(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Linear(6, D)
        s.block1, s.block2, s.block3, s.block4 = Pre(), Pre(), Pre(), Pre()
        s.norm, s.out = nn.LayerNorm(D), nn.Linear(D, C)

    def forward(s, x):
        h = s.inp(x)
        mark(h)

        def step(h, b):
            h = b(h)
            mark(h)
            return h

        return s.out(s.norm(functools.reduce(step, [s.block1, s.block2, s.block3, s.block4], h)))


@case("8 early exits: logits of three heads averaged")
class Exits(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Linear(6, D)
        s.blocks = nn.ModuleList([Pre() for _ in range(3)])
        s.heads = nn.ModuleList([nn.Linear(D, C) for _ in range(3)])

    def forward(s, x):
        h = s.inp(x)
        mark(h)
        out = 0
        for b, head in zip(s.blocks, s.heads):
            h = b(h)
            mark(h)
            out = out + head(h) / 3
        return out


class Cross(nn.Module):
    def __init__(s):
        super().__init__()
        s.a, s.n, s.q, s.kv, s.o, s.f = (
            Att(),
            nn.LayerNorm(D),
            nn.Linear(D, D),
            nn.Linear(D, 2 * D),
            nn.Linear(D, D),
            Mlp(),
        )

    def forward(s, h, memory):
        h = h + s.a(h)
        k, v = s.kv(memory).chunk(2, -1)
        h = h + s.o(F.scaled_dot_product_attention(s.q(s.n(h)), k, v))
        return h + s.f(h)


@case("1 encoder and decoder under names of their own", ser, "mean")
class EncDec(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.tgt, s.out = nn.Linear(6, D), nn.Linear(6, D), nn.Linear(D, C)
        s.reader, s.writer = nn.ModuleList([Tok() for _ in range(3)]), nn.ModuleList([Cross() for _ in range(3)])

    def forward(s, x):
        m = s.inp(x)
        for b in s.reader:
            m = b(m)
        h = s.tgt(x[:, :4])
        mark(h)
        for b in s.writer:
            h = b(h, m)
            mark(h)
        return s.out(h.mean(1))


@case("5 alternating two shared blocks: A B A B")
class Alternate(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.a, s.b, s.out = nn.Linear(6, D), Pre(), Pre(), nn.Linear(D, C)

    def forward(s, x):
        h = s.inp(x)
        mark(h)
        for _ in range(2):
            h = s.a(h)
            mark(h)
            h = s.b(h)
            mark(h)
        return s.out(h)


@case("2 latents as a learned start, cross-attending to the input", ser, "mean")
class Latents(nn.Module):
    def __init__(s):
        super().__init__()
        s.z, s.inp, s.out = nn.Parameter(torch.randn(1, 4, D)), nn.Linear(6, D), nn.Linear(D, C)
        s.blocks = nn.ModuleList([Cross() for _ in range(3)])

    def forward(s, x):
        m, h = s.inp(x), s.z.expand(len(x), -1, -1)
        mark(h)
        for b in s.blocks:
            h = b(h, m)
            mark(h)
        return s.out(h.mean(1))


class Split(nn.Module):
    def __init__(s):
        super().__init__()
        s.f = Mlp(D // 2)

    def forward(s, h):
        a, b = h.chunk(2, -1)
        return torch.cat([b, a + s.f(b)], -1)


stack("1 halves exchanged in every block (i-RevNet)", lambda s, h, b, i, h0: b(h), Split)


class Depth(nn.Module):
    def __init__(s):
        super().__init__()
        s.r, s.f = nn.Linear(D, 1), Mlp()

    def forward(s, h):
        w = s.r(h).squeeze(-1)
        pick = w.topk(3, dim=1).indices[..., None].expand(-1, -1, D)
        return h.scatter_add(1, pick, s.f(h.gather(1, pick)) * w.gather(1, pick[..., 0])[..., None])


stack("3 mixture of depths: three tokens of seven in each block", lambda s, h, b, i, h0: b(h), Depth, ser, "mean")


def shifted(out, labels):
    logits = out[0] if isinstance(out, tuple) else out
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none").mean(1)


def lm(own):
    class Gpt(nn.Module):
        def __init__(s):
            super().__init__()
            s.wte, s.out = nn.Embedding(20, D), nn.Linear(D, C)
            s.blocks = nn.ModuleList([Tok() for _ in range(3)])

        def forward(s, x, labels=None):
            h = s.wte(x)
            mark(h)
            for b in s.blocks:
                h = b(h)
                mark(h)
            logits = s.out(h)
            if labels is None:
                return logits
            return own(logits, labels), logits

    return Gpt


def flat(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def flat_shifted(logits, labels):
    return flat(logits[:, :-1], labels[:, 1:])


case("4 own loss, labels as they are", tokens, "mean")(lm(flat))
case("4 own loss shifts by one, no class name says so", tokens, [0, 1, 2, 3, 4, 5, 6], shifted)(lm(flat_shifted))


@case("4 nanoGPT: logits of the last position only where no targets are given", tokens, "mean")
class Nano(nn.Module):
    def __init__(s):
        super().__init__()
        s.wte, s.lm_head = nn.Embedding(20, D), nn.Linear(D, C)
        s.h = nn.ModuleList([Tok() for _ in range(3)])

    def forward(s, idx, targets=None):
        x = s.wte(idx)
        for b in s.h:
            x = b(x)
        if targets is None:
            return s.lm_head(x[:, [-1]]), None
        logits = s.lm_head(x)
        return logits, flat(logits, targets)


class Cached(nn.Module):
    def __init__(s):
        super().__init__()
        s.f, s.cache = Mlp(), []

    def forward(s, h):
        s.cache.append(h)
        s.last = h + s.f(h)
        return s.last


stack("9 every state is kept in a list of the block", lambda s, h, b, i, h0: b(h), Cached)
stack("9 stem is a chunk of a chunk", lambda s, h, b, i, h0: b(h), Pre,
      extra=lambda s: setattr(s, "wide", nn.Linear(6, 4 * D)),
      begin=lambda s, x: s.wide(x).chunk(2, 1)[1].chunk(2, 1)[0])  # fmt: skip
stack("9 stem is a view of an expanded parameter plus the input", lambda s, h, b, i, h0: b(h), Pre,
      extra=lambda s: setattr(s, "pos", nn.Parameter(torch.randn(1, D))),
      begin=lambda s, x: s.pos.expand(len(x), -1) + s.inp(x))  # fmt: skip


@case("1 two streams of one block list, added at the end")
class TwoStreams(nn.Module):
    def __init__(s):
        super().__init__()
        s.a, s.b, s.out = nn.Linear(3, D), nn.Linear(3, D), nn.Linear(D, C)
        s.blocks = nn.ModuleList([Pre() for _ in range(4)])

    def forward(s, x):
        a, b = s.a(x[:, :3]), s.b(x[:, 3:])
        for i, block in enumerate(s.blocks):
            if i % 2:
                b = block(b)
            else:
                a = block(a)
        return s.out(a + b)


@case("1 hyper-connections: a stream of two copies, mixed")
class Hyper(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.out = nn.Linear(6, D), nn.Linear(D, C)
        s.blocks = nn.ModuleList([Mlp() for _ in range(3)])
        s.m, s.w = nn.Parameter(torch.rand(3, 2, 2)), nn.Parameter(torch.rand(3, 2))

    def forward(s, x):
        h = s.inp(x)[:, None].expand(-1, 2, -1)
        for i, b in enumerate(s.blocks):
            f = b((s.w[i][:, None] * h).sum(1))
            h = s.m[i] @ h + f[:, None]
        return s.out(h.sum(1))


@case("6 a trained neck between two stacks of one width", ser, "mean")
class Neck(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.out = nn.Linear(6, D), nn.Linear(D, C)
        s.early, s.neck, s.late = nn.ModuleList([Tok(), Tok()]), nn.Linear(D, D), nn.ModuleList([Tok(), Tok()])

    def forward(s, x):
        h = s.inp(x)
        for b in s.early:
            h = b(h)
        h = s.neck(h)
        for b in s.late:
            h = b(h)
        return s.out(h.mean(1))


@case("8 blocks in a Python dict of modules, registered by add_module")
class Added(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.out = nn.Linear(6, D), nn.Linear(D, C)
        for i in range(4):
            s.add_module(f"unit_{i}", Pre())

    def forward(s, x):
        h = s.inp(x)
        mark(h)
        for i in range(4):
            h = getattr(s, f"unit_{i}")(h)
            mark(h)
        return s.out(h)


@case("8 linear layers with skips as attributes")
class LinearSkips(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.l1, s.l2, s.l3, s.out = (
            nn.Linear(6, D),
            nn.Linear(D, D),
            nn.Linear(D, D),
            nn.Linear(D, D),
            nn.Linear(D, C),
        )

    def forward(s, x):
        h = s.inp(x)
        mark(h)
        for f in (s.l1, s.l2, s.l3):
            h = h + torch.tanh(f(h))
            mark(h)
        return s.out(h)


def cases():
    """Yield them all."""
    yield from ALL
