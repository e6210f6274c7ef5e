"""A third set of plain networks in the manner of the field; sites were written down before a first reading."""

# ruff: noqa: D101, E501  # a network is a few lines, and its case names it

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from case import Case, mark
from small import C, collector, generator, img, labels, ser, vec, words
from torch import nn

ALL, case = collector("plain, third set")
gray = lambda: (torch.rand(6, 1, 12, 12, generator=generator(31), dtype=torch.float64), labels())  # noqa: E731


@case("FA MLP: view, functional sigmoid, fc1 … fc4", img)
class FaMlp(nn.Module):
    def __init__(s):
        super().__init__()
        s.fc1, s.fc2, s.fc3, s.fc4 = nn.Linear(192, 20), nn.Linear(20, 20), nn.Linear(20, 16), nn.Linear(16, C)

    def forward(s, x):
        h = s.fc1(x.view(x.size(0), -1))
        mark(h)
        h = s.fc2(torch.sigmoid(h))
        mark(h)
        h = s.fc3(torch.sigmoid(h))
        mark(h)
        return s.fc4(torch.sigmoid(h))


@case("LeNet-5: functional average pooling, tanh, flatten, dropout", gray)
class LeNet(nn.Module):
    def __init__(s):
        super().__init__()
        s.conv1, s.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, 3)
        s.fc1, s.fc2, s.fc3 = nn.Linear(6, 12), nn.Linear(12, 10), nn.Linear(10, C)

    def forward(s, x):
        h = s.conv1(x)
        mark(h)
        h = s.conv2(F.avg_pool2d(torch.tanh(h), 2))
        mark(h)
        h = torch.flatten(F.avg_pool2d(torch.tanh(h), 3), 1)
        h = s.fc1(h)
        mark(h)
        h = s.fc2(F.dropout(torch.tanh(h), 0.5, training=s.training))
        mark(h)
        return F.log_softmax(s.fc3(torch.tanh(h)), dim=1)


class FaFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, feedback, bias):
        ctx.save_for_backward(x, weight, feedback)
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx, grad):
        x, _, feedback = ctx.saved_tensors
        return grad @ feedback, grad.t() @ x, None, grad.sum(0)


class FaLinear(nn.Linear):
    def __init__(s, a, b):
        super().__init__(a, b)
        s.weight_backward = nn.Parameter(s.weight.detach().clone(), requires_grad=False)
        s.register_full_backward_hook(lambda module, given, sent: given)

    def forward(s, x):
        return FaFunction.apply(x, s.weight, s.weight_backward, s.bias)


@case("layers with feedback weights equal to their own, full backward hooks")
class FaLayers(nn.Module):
    def __init__(s):
        super().__init__()
        s.model = nn.Sequential(FaLinear(6, 12), nn.ReLU(), FaLinear(12, 12), nn.ReLU(), FaLinear(12, C))

    def forward(s, x):
        for i, layer in enumerate(s.model):
            x = layer(x)
            if i in (0, 2):
                mark(x)
        return x


@case("one ModuleList of equal layers, the output layer last: layers[:-1], layers[-1]")
class Listed(nn.Module):
    def __init__(s):
        super().__init__()
        s.layers = nn.ModuleList([nn.Linear(a, b) for a, b in zip([6, 12, 12, 12], [12, 12, 12, C])])

    def forward(s, x):
        for layer in s.layers[:-1]:
            x = layer(x)
            mark(x)
            x = F.relu(x)
        return s.layers[-1](x)


@case("ModuleDict called by a list of names")
class ByName(nn.Module):
    def __init__(s):
        super().__init__()
        s.order = ["z", "b", "a"]
        s.net = nn.ModuleDict({"a": nn.Linear(8, C), "b": nn.Linear(10, 8), "z": nn.Linear(6, 10)})

    def forward(s, x):
        for name in s.order[:-1]:
            x = s.net[name](x)
            mark(x)
            x = torch.tanh(x)
        return s.net[s.order[-1]](x)


@case("predictive coding: Sequential per layer, layer.forward, dict returned")
class Pc(nn.Module):
    def __init__(s):
        super().__init__()
        s.layers = nn.ModuleList([nn.Sequential(nn.Tanh(), nn.Linear(a, b)) for a, b in ((6, 12), (12, 10), (10, C))])

    def forward(s, x):
        mus = [x]
        for layer in s.layers:
            mus.append(layer.forward(mus[-1]))
        mark(mus[1])
        mark(mus[2])
        return {"logits": mus[-1], "states": mus[1:-1]}


@case("logits and a list of activations returned")
class Kept(nn.Module):
    def __init__(s):
        super().__init__()
        s.hidden = nn.ModuleList([nn.Linear(6, 10), nn.Linear(10, 10), nn.Linear(10, 9)])
        s.readout = nn.Linear(9, C, bias=False)

    def forward(s, x):
        zs = []
        for i in range(len(s.hidden)):
            z = s.hidden[i](x)
            mark(z)
            x = F.leaky_relu(z, 0.1)
            zs.append(z)
        return s.readout(x), zs


def two():
    g = generator(41)
    x = {k: torch.randn(6, n, generator=g, dtype=torch.float64) for k, n in (("image", 4), ("context", 3))}
    return x, labels()


@case("two inputs by keyword, concatenated", two)
class Two(nn.Module):
    def __init__(s):
        super().__init__()
        s.enc_i, s.enc_c, s.mix, s.out = nn.Linear(4, 8), nn.Linear(3, 6), nn.Linear(14, 10), nn.Linear(10, C)

    def forward(s, image, context):
        a = s.enc_i(image)
        mark(a)
        b = s.enc_c(context)
        mark(b)
        h = s.mix(F.relu(torch.cat((a, b), dim=1)))
        mark(h)
        return s.out(F.relu(h))


@case("network in network: 1x1 convolutions, the last averaged", img)
class Nin(nn.Module):
    def __init__(s):
        super().__init__()
        s.c1, s.c2, s.c3 = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 1), nn.Conv2d(6, C, 1)

    def forward(s, x):
        h = s.c1(x)
        mark(h)
        h = s.c2(h.relu())
        mark(h)
        return F.adaptive_avg_pool2d(s.c3(h.relu()), 1).squeeze(-1).squeeze(-1)


@case("grouped convolutions with a channel shuffle", img)
class Shuffle(nn.Module):
    def __init__(s):
        super().__init__()
        s.a, s.b, s.c = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 12, 3, groups=3), nn.Conv2d(12, 6, 1, groups=2)
        s.bn, s.out = nn.BatchNorm2d(12), nn.Linear(6, C)

    def forward(s, x):
        h = s.a(x)
        mark(h)
        h = s.b(F.relu(h))
        mark(h)
        h = F.relu(s.bn(h))
        n, c, *hw = h.shape
        h = s.c(h.view(n, 3, c // 3, *hw).transpose(1, 2).reshape(n, c, *hw))
        mark(h)
        return s.out(h.relu().amax((2, 3)))


def rebuilt(out, y):
    return (out - vec()[0]).square().sum(1)


@case("autoencoder, squared error", loss=rebuilt)
class Auto(nn.Module):
    def __init__(s):
        super().__init__()
        s.enc = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3))
        s.dec = nn.Sequential(nn.Linear(3, 10), nn.ReLU(), nn.Linear(10, 6))

    def forward(s, x):
        a = s.enc[0](x)
        mark(a)
        code = s.enc[2](s.enc[1](a))
        mark(code)
        b = s.dec[0](code)
        mark(b)
        return s.dec[2](s.dec[1](b))


class Matmul(nn.Module):
    def __init__(s, a, b):
        super().__init__()
        s.W, s.b = nn.Parameter(torch.randn(a, b) / a**0.5), nn.Parameter(torch.zeros(b))
        s.register_buffer("B", torch.randn(C, b))

    def forward(s, x):
        return x @ s.W + s.b


@case("DFA by hand: layers of x @ W + b, feedback in buffers")
class DfaByHand(nn.Module):
    def __init__(s):
        super().__init__()
        s.l1, s.l2, s.l3 = Matmul(6, 12), Matmul(12, 10), Matmul(10, C)

    def forward(s, x):
        s.a1 = s.l1(x)
        mark(s.a1)
        s.h1 = torch.tanh(s.a1)
        s.a2 = s.l2(s.h1)
        mark(s.a2)
        s.h2 = torch.tanh(s.a2)
        return s.l3(s.h2)


@case("target propagation: backward layers that the forward pass never calls")
class Dtp(nn.Module):
    def __init__(s):
        super().__init__()
        s.forward_layers = nn.ModuleList([nn.Linear(6, 10), nn.Linear(10, 8), nn.Linear(8, C)])
        s.backward_layers = nn.ModuleList([nn.Linear(8, 10), nn.Linear(C, 8)])

    def forward(s, x):
        for i, layer in enumerate(s.forward_layers):
            x = layer(x)
            if i < 2:
                mark(x)
                x = F.elu(x)
        return x


@case("children() of a Sequential, one flatten module between", img)
class Children(nn.Module):
    def __init__(s):
        super().__init__()
        conv = lambda a, b: nn.Sequential(nn.Conv2d(a, b, 3), nn.BatchNorm2d(b), nn.ReLU())  # noqa: E731
        s.net = nn.Sequential(
            conv(3, 4), conv(4, 6), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(24, 10), nn.ReLU(), nn.Linear(10, C)
        )

    def forward(s, x):
        for m in s.net.children():
            for part in m if isinstance(m, nn.Sequential) else [m]:
                x = part(x)
                if isinstance(part, (nn.Conv2d, nn.Linear)) and part is not s.net[-1]:
                    mark(x)
        return x


@case("auxiliary classifiers, kept and not returned")
class Aux(nn.Module):
    def __init__(s):
        super().__init__()
        s.layers = nn.ModuleList([nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 12)])
        s.heads = nn.ModuleList([nn.Linear(12, C) for _ in range(3)])

    def forward(s, x):
        s.local = []
        for layer, head in zip(s.layers, s.heads):
            x = layer(x)
            mark(x)
            x = F.relu(x)
            s.local.append(head(x))
        return s.local[-1]


@case("a linear way from the input to the logits beside two hidden layers")
class Wide(nn.Module):
    def __init__(s):
        super().__init__()
        s.h1, s.h2, s.out, s.direct = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, C), nn.Linear(6, C)

    def forward(s, x):
        a = s.h1(x)
        mark(a)
        b = s.h2(F.relu(a))
        mark(b)
        return s.out(F.relu(b)) + s.direct(x)


def squared(out, y):
    return (out - F.one_hot(y, C)).square().sum(1)


@case("sigmoid outputs, squared error to one-hot labels", img, loss=squared)
class Drtp(nn.Module):
    def __init__(s):
        super().__init__()
        s.conv, s.fc, s.out = nn.Conv2d(3, 4, 3, stride=2), nn.Linear(36, 10), nn.Linear(10, C)

    def forward(s, x):
        h = s.conv(x)
        mark(h)
        h = s.fc(torch.tanh(h).flatten(start_dim=1))
        mark(h)
        return torch.sigmoid(s.out(torch.tanh(h)))


@case("F.conv2d with the weight of a layer that is never called", img)
class Functional(nn.Module):
    def __init__(s):
        super().__init__()
        s.c1, s.c2, s.out = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(4, C)

    def forward(s, x):
        h = F.conv2d(x, s.c1.weight, s.c1.bias)
        mark(h)
        h = s.c2(h.relu())
        mark(h)
        return s.out(h.relu().mean((2, 3)))


case("a traced graph module")(lambda: torch.fx.symbolic_trace(_Traced()))


class _Traced(nn.Module):
    def __init__(s):
        super().__init__()
        s.a, s.b, s.out = nn.Linear(6, 12), nn.Linear(12, 10), nn.Linear(10, C)

    def forward(s, x):
        return s.out(F.relu(s.b(F.relu(s.a(x)))))


ALL[-1] = Case(ALL[-1].name, ALL[-1].library, ALL[-1].build, vec, ("a", "b"))
ALL.append(Case("lazy layers, DataParallel", "plain, third set", lambda: _lazy(), vec, ("module.0", "module.2")))


def _lazy():
    net = nn.Sequential(nn.LazyLinear(12), nn.ReLU(), nn.LazyLinear(10), nn.ReLU(), nn.LazyLinear(C))
    net(torch.randn(2, 6))
    return nn.DataParallel(net)


@case("one hidden layer is called three times")
class Thrice(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.hid, s.out = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, C)

    def forward(s, x):
        h = s.inp(x)
        mark(h)
        for _ in range(3):
            h = s.hid(F.relu(h))
            mark(h)
        return s.out(F.relu(h))


@case("a GRU cell over time", ser)
class Cell(nn.Module):
    def __init__(s):
        super().__init__()
        s.cell, s.out = nn.GRUCell(6, 9), nn.Linear(9, C)

    def forward(s, x):
        h = None
        for t in range(4):
            h = s.cell(x[:, t], h)
            mark(h)
        return s.out(h)


@case("k winners take all by topk and scatter")
class Kwta(nn.Module):
    def __init__(s):
        super().__init__()
        s.a, s.b, s.out = nn.Linear(6, 16, bias=False), nn.Linear(16, 16, bias=False), nn.Linear(16, C, bias=False)

    def forward(s, x):
        for layer in (s.a, s.b):
            z = layer(x)
            mark(z)
            v, i = z.topk(4, dim=1)
            x = torch.zeros_like(z).scatter(1, i, v)
        return s.out(x)


class Answer(NamedTuple):
    logits: torch.Tensor
    value: torch.Tensor


@case("actor and critic as a named tuple")
class Actor(nn.Module):
    def __init__(s):
        super().__init__()
        s.body = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh())
        s.pi, s.v = nn.Linear(12, C), nn.Linear(12, 1)

    def forward(s, x):
        a = s.body[0](x)
        mark(a)
        b = s.body[2](s.body[1](a))
        mark(b)
        h = s.body[3](b)
        return Answer(s.pi(h), s.v(h))


@dataclass
class Output:
    logits: torch.Tensor
    hidden: torch.Tensor


@case("a data class returned", words)
class Classed(nn.Module):
    def __init__(s):
        super().__init__()
        s.emb, s.fc, s.head = nn.Embedding(20, 8), nn.Linear(8, 12), nn.Linear(12, C)

    def forward(s, x):
        h = s.emb(x)
        mark(h)
        h = s.fc(h.mean(1))
        mark(h)
        return Output(s.head(F.gelu(h)), h)


@case("every step through one linear: (B * T, d)", ser)
class Steps(nn.Module):
    def __init__(s):
        super().__init__()
        s.a, s.b, s.out = nn.Linear(6, 10), nn.Linear(10, 8), nn.Linear(8, C)

    def forward(s, x):
        n, t = x.shape[:2]
        h = s.a(x.reshape(n * t, -1)).view(n, t, -1)
        mark(h)
        h = s.b(h.relu().view(n * t, -1)).view(n, t, -1)
        mark(h)
        return s.out(h.relu().mean(1))


@case("convolution by unfold and a linear layer", img)
class Unfolded(nn.Module):
    def __init__(s):
        super().__init__()
        s.a, s.b, s.out = nn.Linear(27, 6), nn.Linear(54, 8), nn.Linear(8, C)

    def forward(s, x):
        h = s.a(F.unfold(x, 3).transpose(1, 2))
        mark(h)
        h = h.relu().transpose(1, 2).reshape(len(x), 6, 6, 6)
        h = s.b(F.unfold(h, 3, stride=3).transpose(1, 2))
        mark(h)
        return s.out(h.relu().mean(1))


@case("a deep linear network")
class DeepLinear(nn.Module):
    def __init__(s):
        super().__init__()
        s.w = nn.ModuleList([nn.Linear(6, 6, bias=False) for _ in range(4)])
        s.out = nn.Linear(6, C, bias=False)

    def forward(s, x):
        for w in s.w:
            x = w(x)
            mark(x)
        return s.out(x)


class Recording(nn.Sequential):
    def forward(s, x):
        s.acts = []
        for module in s:
            x = module(x)
            s.acts.append(x)
        return x


ALL.append(Case("a Sequential that keeps its activations", "plain, third set",
                lambda: Recording(nn.Linear(6, 12), nn.ReLU(inplace=True), nn.Linear(12, 10), nn.Hardtanh(), nn.Linear(10, C)),
                vec, ("0", "2")))  # fmt: skip


@case(
    "three-dimensional convolutions, labels optional",
    lambda: (torch.randn(6, 1, 4, 6, 6, generator=generator(9), dtype=torch.float64), labels()),
)
class Conv3(nn.Module):
    def __init__(s):
        super().__init__()
        s.c1, s.c2, s.out = nn.Conv3d(1, 3, 3, padding=1), nn.Conv3d(3, 4, 3), nn.Linear(4, C)

    def forward(s, x, labels=None):
        h = s.c1(x)
        mark(h)
        h = s.c2(h.relu())
        mark(h)
        logits = s.out(h.relu().flatten(2).mean(2))
        return logits if labels is None else (F.cross_entropy(logits, labels), logits)


@case("labels embedded in the input, as forward-forward has it; goodness of layers is summed")
class FfGoodness(nn.Module):
    def __init__(s):
        super().__init__()
        s.l1, s.l2 = nn.Linear(6, 10), nn.Linear(10, 10)

    def forward(s, x):
        scores = []
        for label in range(C):
            h = torch.cat([F.one_hot(torch.full((len(x),), label), C).to(x), x[:, C:]], 1)
            good = 0.0
            for layer in (s.l1, s.l2):
                z = layer(F.normalize(h))
                mark(z)
                h = F.relu(z)
                good = good + h.square().mean(1)
            scores.append(good)
        return torch.stack(scores, 1)


@case("gated: one layer's output times the sigmoid of another's")
class Gated(nn.Module):
    def __init__(s):
        super().__init__()
        s.v, s.g, s.h, s.out = nn.Linear(6, 10), nn.Linear(6, 10), nn.Linear(10, 10), nn.Linear(10, C)

    def forward(s, x):
        v = s.v(x)
        mark(v)
        g = s.g(x)
        mark(g)
        h = s.h(v * torch.sigmoid(g))
        mark(h)
        return s.out(torch.sin(h))


def cases():
    """Yield the networks."""
    yield from ALL
