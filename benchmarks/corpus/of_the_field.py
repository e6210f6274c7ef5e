"""Networks in the manner of the field's public code; their sites were written down before a first reading."""

# ruff: noqa: D101  # a network is a few lines, and its case names it

from __future__ import annotations

import torch
import torch.nn.functional as F
from case import mark
from small import C, collector, img
from torch import nn

ALL, case = collector("the field's")


class Noted(torch.autograd.Function):
    """The identity of training hooks, here in the mode of backpropagation."""

    @staticmethod
    def forward(ctx, x, labels):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class DrtpBlock(nn.Module):
    def __init__(s, layer, pool):
        super().__init__()
        s.fc, s.pool = layer, pool

    def forward(s, x, labels):
        x = s.fc(x)
        mark(x)
        x = Noted.apply(torch.tanh(x), labels)
        return F.max_pool2d(x, 2) if s.pool else x


@case("DRTP builder: labels go to every layer", img)
class Drtp(nn.Module):
    def __init__(s):
        super().__init__()
        s.layers = nn.ModuleList(
            [
                DrtpBlock(nn.Conv2d(3, 4, 3, padding=1), True),
                DrtpBlock(nn.Linear(64, 10), False),
                DrtpBlock(nn.Linear(10, 8), False),
            ]
        )
        s.out = nn.Linear(8, C)

    def forward(s, x, labels):
        for i, layer in enumerate(s.layers):
            x = layer(x.reshape(len(x), -1) if i == 1 else x, labels)
        return s.out(x)


class Normed(nn.Linear):
    def forward(s, x):
        h = F.relu(F.linear(x / (x.norm(dim=1, keepdim=True) + 1e-4), s.weight, s.bias))
        mark(h)
        return h


@case("forward-forward: head on all layers but the first")
class Ff(nn.Module):
    def __init__(s):
        super().__init__()
        s.layers = nn.ModuleList([Normed(6, 12), Normed(12, 10), Normed(10, 8)])
        s.head = nn.Linear(18, C)

    def forward(s, x):
        kept = []
        for layer in s.layers:
            x = layer(x)
            kept.append(x)
        return s.head(torch.cat(kept[1:], 1))


@case("forward-forward: layers in a Python list")
class FfList(nn.Module):
    def __init__(s):
        super().__init__()
        s.layers = [Normed(6, 12).double(), Normed(12, C).double()]

    def forward(s, x):
        for layer in s.layers:
            x = layer(x)
        return x


class LocalBlock(nn.Module):
    def __init__(s, a, b, detach=False):
        super().__init__()
        s.encoder, s.bn, s.decoder_y, s.detach = nn.Linear(a, b), nn.BatchNorm1d(b), nn.Linear(b, C), detach

    def forward(s, x, y, y_onehot):
        h = s.encoder(x)
        mark(h)
        h = F.relu(s.bn(h))
        loss = F.cross_entropy(s.decoder_y(h), y_onehot.argmax(1)) if y is not None else h.sum() * 0
        return (h.detach() if s.detach else h), loss


def local(detach):
    class Local(nn.Module):
        def __init__(s):
            super().__init__()
            s.layers = nn.ModuleList(
                [LocalBlock(6, 12, detach), LocalBlock(12, 12, detach), LocalBlock(12, 10, detach)]
            )
            s.layer_out = nn.Linear(10, C)

        def forward(s, x, y=None, y_onehot=None):
            total = 0.0
            for layer in s.layers:
                x, loss = layer(x, y, y_onehot)
                total += loss
            return s.layer_out(x), total

    return Local


case("local losses, pairs returned, no detach")(local(False))


class LocalRes(nn.Module):
    def __init__(s, a, b, stride):
        super().__init__()
        s.c1, s.c2 = nn.Conv2d(a, b, 3, stride, 1), nn.Conv2d(b, b, 3, 1, 1)
        s.shortcut = nn.Sequential() if a == b and stride == 1 else nn.Sequential(nn.Conv2d(a, b, 1, stride))

    def forward(s, given):
        x, y, total = given
        out = F.relu(s.c2(F.relu(s.c1(x))) + s.shortcut(x))
        mark(out)
        return out, y, total + out.mean()


@case("local losses, ResNet of tuples in Sequential", img)
class LocalResNet(nn.Module):
    def __init__(s):
        super().__init__()
        s.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        s.layer1 = nn.Sequential(LocalRes(4, 4, 1), LocalRes(4, 4, 1))
        s.layer2 = nn.Sequential(LocalRes(4, 8, 2), LocalRes(8, 8, 1))
        s.linear = nn.Linear(8, C)

    def forward(s, x):
        x = s.conv1(x)
        mark(x)
        x, _, total = s.layer1((x, None, 0.0))
        x, _, total = s.layer2((x, None, total))
        return s.linear(x.mean((2, 3))), total


def hard(x):
    return (1 + F.hardtanh(2 * x - 1)) * 0.5


@case("equilibrium propagation: synapses, settled by steps")
class Ep(nn.Module):
    def __init__(s):
        super().__init__()
        s.synapses = nn.ModuleList([nn.Linear(6, 10), nn.Linear(10, 8), nn.Linear(8, C)])

    def forward(s, x):
        a = b = c = None
        for step in range(3):
            u = s.synapses[0](x)
            new_a = torch.tanh(u + (0 if b is None else b @ s.synapses[1].weight))
            v = s.synapses[1](a if a is not None else torch.zeros(len(x), 10, dtype=x.dtype))
            new_b = torch.tanh(v + (0 if c is None else c @ s.synapses[2].weight))
            c = s.synapses[2](b if b is not None else torch.zeros(len(x), 8, dtype=x.dtype))
            for h in ((u, c), (v,), ())[step]:  # the calls that the answer hangs on
                mark(h)
            a, b = new_a, new_b
        return c


class TpLayer(nn.Module):
    def __init__(s, a, b, act=torch.tanh):
        super().__init__()
        s._weights = nn.Parameter(torch.randn(b, a) / a**0.5)
        s._bias = nn.Parameter(torch.zeros(b))
        s._feedbackweights = nn.Parameter(torch.randn(a, b), requires_grad=False)
        s.act, s._activations, s._linear = act, None, None

    def forward(s, x):
        s._linear = x.mm(s._weights.t()) + s._bias.unsqueeze(0).expand(len(x), -1)
        s._activations = s.act(s._linear)
        mark(s._activations)
        return s._activations


class TpNet(nn.Module):
    def __init__(s):
        super().__init__()
        s._layers = nn.ModuleList([TpLayer(6, 12), TpLayer(12, 10), TpLayer(10, 8)])
        s._input = None

    def forward(s, x):
        s._input = x
        for layer in s._layers:
            x = layer.forward(x)
        if x.requires_grad is False:
            x.requires_grad = True
        return x


@case("target propagation: states kept, layer.forward, feedback as frozen parameters")
class Tp(nn.Module):
    def __init__(s):
        super().__init__()
        s._network, s._linearlayer = TpNet(), nn.Linear(8, C)

    def forward(s, x):
        return s._linearlayer(s._network.forward(x))


class TpOut(TpLayer):
    def forward(s, x):
        s._activations = x.mm(s._weights.t()) + s._bias
        return s._activations


@case("target propagation: output layer of the same kind")
class Tp2(nn.Module):
    def __init__(s):
        super().__init__()
        s.layers = nn.ModuleList([TpLayer(6, 12), TpLayer(12, 10), TpOut(10, C)])
        s.feedback = nn.ModuleList([nn.Linear(12, 6), nn.Linear(10, 12), nn.Linear(C, 10)])

    def forward(s, x):
        for layer in s.layers:
            x = layer(x)
        return x


class Down(nn.Module):
    def forward(s, x):
        return F.pixel_unshuffle(x, 2)


class DsConv(nn.Module):
    def __init__(s, a, b, down):
        super().__init__()
        s.bn1 = nn.BatchNorm2d(b)
        s.conv1 = nn.Conv2d(a * (4 if down else 1), b, 3, padding=1, bias=False)
        s.conv_op = nn.Sequential(Down(), s.conv1) if down else s.conv1

    def forward(s, x):
        x = s.conv_op(x)
        mark(x)
        return F.relu(s.bn1(x))


@case("greedy layerwise CNN: a conv registered twice", img)
class Greedy(nn.Module):
    def __init__(s):
        super().__init__()
        s.blocks = nn.ModuleList([DsConv(3, 4, False), DsConv(4, 4, True), DsConv(4, 6, False)])
        s.aux = nn.Linear(6, C)

    def forward(s, x):
        for i in range(len(s.blocks)):
            x = s.blocks[i](x)
        return s.aux(x.mean((2, 3)))


@case("hidden layers that share a bottleneck width with the input")
class SameWidth(nn.Module):
    def __init__(s):
        super().__init__()
        s.l1, s.l2, s.l3, s.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, C)

    def forward(s, x):
        for layer in (s.l1, s.l2, s.l3):
            x = layer(x)
            mark(x)
            x = torch.relu(x)
        return s.out(x)


@case("cross network: x0 * w(x) + b + x")
class Cross(nn.Module):
    def __init__(s):
        super().__init__()
        s.emb = nn.Linear(6, 12)
        s.w = nn.ModuleList([nn.Linear(12, 1, bias=False) for _ in range(3)])
        s.b = nn.ParameterList([nn.Parameter(torch.randn(12)) for _ in range(3)])
        s.out = nn.Linear(12, C)

    def forward(s, x):
        x = x0 = s.emb(x)
        mark(x)
        for w, b in zip(s.w, s.b):
            x = x0 * w(x) + b + x
            mark(x)
        return s.out(x)


@case("NeRF: the input concatenated again in the middle")
class Nerf(nn.Module):
    def __init__(s):
        super().__init__()
        s.l1 = nn.Linear(6, 16)
        s.xyz = nn.ModuleList([nn.Linear(16, 16), nn.Linear(22, 16), nn.Linear(16, 16)])
        s.out = nn.Linear(16, C)

    def forward(s, x):
        h = s.l1(x)
        mark(h)
        h = F.relu(h)
        for i, layer in enumerate(s.xyz):
            h = layer(torch.cat((h, x), -1) if i == 1 else h)
            mark(h)
            h = F.relu(h)
        return s.out(h)


@case("autoencoder with a head on the code; the decoder has no part in the loss")
class Auto(nn.Module):
    def __init__(s):
        super().__init__()
        s.encoder = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 8))
        s.decoder = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 6))
        s.head = nn.Linear(8, C)

    def forward(s, x):
        h = s.encoder[0](x)
        mark(h)
        code = s.encoder[2](s.encoder[1](h))
        mark(code)
        return s.head(code), s.decoder(code)


def cases():
    """Yield them all."""
    yield from ALL
