"""A twelfth unseen set, plain networks again: written after the mends of the eleventh, and before a reading."""

# ruff: noqa: D101, D106  # a network is a few lines, and its case names it

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from case import by_hand_now, cut, mark
from small import C, collector, img, inputs, ser, vec, words
from torch import Tensor, nn

SET = "twelfth set"
ALL, case = collector(SET)


def marked(h: Tensor) -> Tensor:
    """Return a tensor that is a site."""
    mark(h)
    return h


class Identity3(torch.autograd.Function):
    """Identity whose backward pass sends a fixed projection of what is kept, as DFA modules have it."""

    @staticmethod
    def forward(ctx, x, b):
        ctx.save_for_backward(b)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        (b,) = ctx.saved_tensors
        return grad @ b, None


@case("DFA: an identity Function behind every activation sends something else back")
class DfaIdentity(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, C)
        self.register_buffer("b", torch.randn(12, 12) / 3)

    def back(self, h):
        return h if by_hand_now() else Identity3.apply(h, self.b)

    def forward(self, x):
        h = self.back(marked(self.fc1(x)).tanh())
        h = self.back(marked(self.fc2(h)).tanh())
        return self.fc3(h)


@case("sign-symmetric network by hand: weights in a list of parameters, a straight-through sum in every product")
class StraightThrough(nn.Module):
    def __init__(self, sizes=(6, 12, 10, C)):
        super().__init__()
        self.w = nn.ParameterList([torch.randn(a, b) / a**0.5 for a, b in pairwise(sizes)])

    def forward(self, x):
        for i, w in enumerate(self.w):
            binary = w.sign() * w.abs().mean()
            used = w + (binary - w).detach() if not by_hand_now() else binary + (w - w)
            x = x @ used
            if i < 2:
                x = torch.tanh(marked(x))
        return x


@case("greedy autoencoders: encoders are detached from each other, a classifier on the last code")
class GreedyCodes(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.ModuleList([nn.Linear(6, 12), nn.Linear(12, 10), nn.Linear(10, 8)])
        self.dec = nn.ModuleList([nn.Linear(12, 6), nn.Linear(10, 12), nn.Linear(8, 10)])
        self.clf = nn.Linear(8, C)

    def forward(self, x):
        self.losses = []
        for enc, dec in zip(self.enc, self.dec):
            h = torch.sigmoid(marked(enc(x)))
            self.losses.append((dec(h) - x).square().mean())
            x = cut(h)
        return self.clf(x)


@case("features under no_grad by a frozen trunk, a trained head of two layers", img)
class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 6, 3, 2), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.ReLU())
        self.fc, self.out = nn.Linear(8, 10), nn.Linear(10, C)

    def forward(self, x):
        with torch.set_grad_enabled(by_hand_now()):
            a = self.trunk[0](x)
            mark(a)
            b = self.trunk[2](a.relu())
            mark(b)
            f = b.relu().flatten(1)
        return self.out(marked(self.fc(f)).relu())


@case("target propagation: forward weights and biases in ParameterDicts by number, tanh, the last linear")
class TpDict(nn.Module):
    def __init__(self, sizes=(6, 12, 11, 10, C)):
        super().__init__()
        pairs = list(pairwise(sizes))
        self.forward_w = nn.ParameterDict(
            {str(i): nn.Parameter(torch.randn(b, a) / a**0.5) for i, (a, b) in enumerate(pairs)}
        )
        self.backward_w = nn.ParameterDict({str(i): nn.Parameter(torch.randn(a, b)) for i, (a, b) in enumerate(pairs)})
        self.bias = nn.ParameterDict({str(i): nn.Parameter(torch.randn(b) / 9) for i, (_, b) in enumerate(pairs)})

    def forward(self, x):
        for i in range(4):
            x = x.matmul(self.forward_w[str(i)].t()) + self.bias[str(i)]
            if i < 3:
                x = torch.tanh(marked(x))
        return x


@case("predictive coding graph: a layer object owns weights and is called by a method of its own", inputs(141, 6))
class PcObjects(nn.Module):
    class Node(nn.Module):
        def __init__(self, a, b):
            super().__init__()
            self.weights, self.bias = nn.Parameter(torch.randn(a, b) / a**0.5), nn.Parameter(torch.randn(b) / 9)

        def predict(self, x):
            return x @ self.weights + self.bias

    def __init__(self):
        super().__init__()
        self.nodes = nn.ModuleList([self.Node(6, 12), self.Node(12, 10), self.Node(10, C)])

    def forward(self, x):
        x = F.leaky_relu(marked(self.nodes[0].predict(x)))
        x = F.leaky_relu(marked(self.nodes[1].predict(x)))
        return self.nodes[2].predict(x)


@case(
    "spiking by hand: membrane and spikes are returned, weights of the module, surrogate by a tanh", inputs(142, 3, 6)
)
class Snn(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.w_out, self.beta = nn.Linear(6, 12), nn.Parameter(torch.randn(12, C) / 3), 0.8
        self.fc2 = nn.Linear(12, 12)

    def forward(self, x):
        m1 = m2 = x.new_zeros(len(x), 12)
        out = 0.0
        for t in range(3):
            m1 = self.beta * m1 + marked(self.fc1(x[:, t]))
            s1 = torch.tanh(m1)
            m2 = self.beta * m2 + marked(self.fc2(s1))
            out = out + torch.tanh(m2) @ self.w_out
        return out


@case("GRU cell of torch in every step, attention over its states by a matrix of the module", ser)
class GruAttend(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.query, self.out = nn.GRUCell(6, 8), nn.Parameter(torch.randn(8, 8) / 3), nn.Linear(8, C)

    def forward(self, x):
        h, kept = x.new_zeros(len(x), 8), []
        for t in range(3):
            h = marked(self.cell(x[:, t], h))
            kept.append(h)
        hs = torch.stack(kept, 1)
        q = marked(h @ self.query)
        a = (hs * q.unsqueeze(1)).sum(-1).softmax(1)
        return self.out((a.unsqueeze(-1) * hs).sum(1))


@case("encoder and decoder LSTM cells, both states handed on, two steps each", inputs(143, 2, 6))
class TwoCells(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec, self.out = nn.LSTMCell(6, 8), nn.LSTMCell(8, 8), nn.Linear(8, C)

    def forward(self, x):
        state = (x.new_zeros(len(x), 8), x.new_zeros(len(x), 8))
        for t in range(2):
            state = self.enc(x[:, t], state)
            mark(state[0])
        for _ in range(2):
            state = self.dec(state[0], state)
            mark(state[0])
        return self.out(state[0])


@case("mixture of deep experts: two layers each, a gate on the input, the mixture is the answer")
class DeepMoe(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 3)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 8)) for _ in range(3)])
        self.top = nn.Linear(8, C)

    def forward(self, x):
        g, ys = marked(self.gate(x)).softmax(-1), []
        for e in self.experts:
            ys.append(marked(e[2](e[1](marked(e[0](x))))))
        return self.top((g.unsqueeze(1) @ torch.stack(ys, 1)).squeeze(1).relu())


@case("inception of vectors: two branches, concatenated, a layer, a third branch from the input joins at the head")
class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.mix, self.side, self.head = (
            nn.Linear(6, 8),
            nn.Linear(6, 7),
            nn.Linear(15, 10),
            nn.Linear(6, 4),
            nn.Linear(14, C),
        )

    def forward(self, x):
        h = torch.cat([marked(self.a(x)).relu(), marked(self.b(x)).tanh()], 1)
        m = marked(self.mix(h)).relu()
        return self.head(torch.cat([m, marked(self.side(x)).relu()], 1))


@case("feature-wise modulation: a condition scales and shifts a hidden layer", lambda: (
    {"x": inputs(144, 6)()[0], "condition": inputs(145, 3)()[0]}, inputs(144, 6)()[1]))  # fmt: skip
class Film(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.film, self.l2, self.out = nn.Linear(6, 10), nn.Linear(3, 20), nn.Linear(10, 8), nn.Linear(8, C)

    def forward(self, x, condition):
        h = marked(self.l1(x))
        gamma, beta = marked(self.film(condition)).chunk(2, 1)
        return self.out(marked(self.l2((gamma * h + beta).relu())).relu())


class Rbf(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.centres, self.log_sigma = nn.Parameter(torch.randn(b, a)), nn.Parameter(torch.zeros(b))

    def forward(self, x):
        return torch.exp(-torch.cdist(x, self.centres) * self.log_sigma.exp())


@case("radial basis functions, then two linear layers")
class RbfNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.rbf, self.fc, self.out = Rbf(6, 12), nn.Linear(12, 10), nn.Linear(10, C)

    def forward(self, x):
        return self.out(marked(self.fc(marked(self.rbf(x)))).relu())


@case("hashed words: an embedding bag, a layer by hand, a tied answer over classes", words)
class BagTied(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag, self.w, self.classes = (
            nn.EmbeddingBag(20, 10),
            nn.Parameter(torch.randn(10, 8) / 3),
            nn.Embedding(C, 8),
        )

    def forward(self, x):
        z = marked(marked(self.bag(x)) @ self.w)
        return torch.tanh(z) @ self.classes.weight.t()


@case("depthwise separable convolutions over (B, C, T), squeezed by a mean, no bias", inputs(146, 6, 9))
class Separable(nn.Module):
    def __init__(self):
        super().__init__()
        self.dw1, self.pw1 = nn.Conv1d(6, 6, 3, groups=6, bias=False), nn.Conv1d(6, 10, 1, bias=False)
        self.dw2, self.pw2, self.fc = (
            nn.Conv1d(10, 10, 3, groups=10, bias=False),
            nn.Conv1d(10, 8, 1, bias=False),
            nn.Linear(8, C),
        )

    def forward(self, x):
        x = F.relu6(marked(self.pw1(marked(self.dw1(x)))))
        x = F.relu6(marked(self.pw2(marked(self.dw2(x)))))
        return self.fc(x.mean(-1))


class Whitened(nn.Module):
    """Wraps any network, and scales what it is given by kept statistics."""

    def __init__(self, net):
        super().__init__()
        self.net = net
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("std", torch.ones(6))

    def forward(self, x, **options):
        return self.net((x - self.mean) / self.std, **options)


class LowNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 12, bias=False), nn.Linear(12, 10, bias=False), nn.Linear(10, C)
        self.shift = nn.Parameter(torch.randn(12) / 9)

    def forward(self, x, scale=1.0):
        return self.c(marked(self.b((marked(self.a(x)) + self.shift).relu())).relu()) * scale


@case("a wrapper that passes options on, around a network with a bias of its own")
class Wrapped(Whitened):
    def __init__(self):
        super().__init__(LowNet())


@case("coupling layers: one half is scaled by a network of the other, twice, then a classifier")
class Coupling(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.s1, self.s2, self.out = nn.Linear(6, 12), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(12, C)

    def forward(self, x):
        a, b = marked(self.inp(x)).chunk(2, 1)
        b = b * torch.sigmoid(marked(self.s1(a)))
        a = a * torch.sigmoid(marked(self.s2(b)))
        return self.out(torch.cat([a, b], 1))


@case("graph attention by hand on a dense graph: one weight, two attention vectors, all of the module")
class GatHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.a_src, self.a_dst = (
            nn.Parameter(torch.randn(6, 10) / 3),
            nn.Parameter(torch.randn(10, 1) / 3),
            nn.Parameter(torch.randn(10, 1) / 3),
        )
        self.fc = nn.Linear(10, C)

    def forward(self, x):
        z = x @ self.w1
        mark(z)
        s = z @ self.a_src
        mark(s)
        d = z @ self.a_dst
        mark(d)
        return self.fc(F.elu(F.leaky_relu(s + d.t(), 0.2).softmax(1) @ z))


@case("hypercolumn: features of three convolutions, pooled and concatenated for a hidden layer", img)
class Hypercolumn(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2, self.c3 = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 8, 3), nn.Conv2d(8, 9, 3)
        self.fc, self.out = nn.Linear(23, 10), nn.Linear(10, C)

    def forward(self, x):
        a = marked(self.c1(x)).relu()
        b = marked(self.c2(a)).relu()
        c = marked(self.c3(b)).relu()
        return self.out(marked(self.fc(torch.cat([f.amax((2, 3)) for f in (a, b, c)], 1))).relu())


@case(
    "deep linear network by hand on columns: samples stand in the second axis; outputs in a dict",
    vec,
    lambda h: h.norm(dim=0),
)
class DeepLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.W = nn.ParameterList(
            [torch.randn(8, 6) / 3, *(torch.randn(8, 8) / 3 for _ in range(3)), torch.randn(C, 8) / 3]
        )

    def forward(self, x):
        h = x.t()
        for i, w in enumerate(self.W):
            h = w @ h
            if i < 4:
                mark(h)
        return {"logits": h.t()}


def cases():
    """Return the cases of this set."""
    return ALL
