"""Batches and a decorator for networks that are written by hand and mark their own sites."""

# ruff: noqa: D101

from __future__ import annotations

import torch
import torch.nn.functional as F
from case import Case, mark
from torch import nn

C, D = 5, 12  # classes, width


def generator(seed):
    return torch.Generator().manual_seed(seed)


def labels():
    return torch.randint(C, (6,), generator=generator(2))


def inputs(seed, *shape):
    return lambda: (torch.randn(6, *shape, generator=generator(seed), dtype=torch.float64), labels())


vec, img, ser = inputs(11, 6), inputs(12, 3, 8, 8), inputs(13, 7, 6)
square, video = inputs(24, 6, 6), inputs(25, 3, 4, 4, 4)  # square: as many steps as samples


def words():
    return torch.randint(20, (6, 7), generator=generator(14)), labels()


def tokens():
    return words()[0], torch.randint(C, (6, 7), generator=generator(27))


def collector(library):
    """Return a list of cases, and the decorator that adds one."""
    every = []

    def case(name, batch=vec, reads=None, loss=None):
        def added(build):
            every.append(Case(name, library, build, batch, (), reads, loss))
            return build

        return added

    return every, case


class Mlp(nn.Module):
    def __init__(s, d=D, o=None):
        super().__init__()
        s.n, s.a, s.b = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, o or d)

    def forward(s, h):
        return s.b(F.gelu(s.a(s.n(h))))


class Pre(nn.Module):
    def __init__(s, d=D):
        super().__init__()
        s.f = Mlp(d)

    def forward(s, h):
        return h + s.f(h)


class Att(nn.Module):
    def __init__(s, d=D):
        super().__init__()
        s.n, s.q, s.o = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(s, h):
        q, k, v = s.q(s.n(h)).chunk(3, -1)
        return s.o(F.scaled_dot_product_attention(q, k, v))


class Tok(nn.Module):
    def __init__(s, d=D):
        super().__init__()
        s.a, s.f = Att(d), Mlp(d)

    def forward(s, h):
        h = h + s.a(h)
        return h + s.f(h)


def stacker(case):
    """Return what adds a network whose step is `step(s, h, block, i, h0)`, marked after each; None leaves one out."""

    def stack(name, step, block=Mlp, batch=vec, reads=None, n=4, begin=None, end=None, extra=None, tag="blocks"):
        class Net(nn.Module):
            def __init__(s):
                super().__init__()
                s.inp = nn.Linear(6, D)
                setattr(s, tag, nn.ModuleList([block() for _ in range(n)]))
                s.out = nn.Linear(D, C)
                if extra:
                    extra(s)

            def forward(s, x):
                h = h0 = s.inp(x) if begin is None else begin(s, x)
                mark(h)
                for i, b in enumerate(getattr(s, tag)):
                    new = step(s, h, b, i, h0)
                    if new is not None:
                        h = new
                        mark(h)
                return s.out((h if h.ndim == 2 else h.mean(1)) if end is None else end(s, h))

        case(name, batch, reads)(Net)

    return stack
