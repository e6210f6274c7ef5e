"""An eleventh unseen set, plain networks in the manner of public code; sites were written before a reading."""

# ruff: noqa: D101, E501  # a network is a few lines, and its case names it

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from case import Case, by_hand_now, cut, mark
from small import C, collector, generator, img, inputs, labels, ser, vec, words
from torch import Tensor, nn

SET = "eleventh set"
ALL, case = collector(SET)


def marked(h: Tensor) -> Tensor:
    """Return a tensor that is a site."""
    mark(h)
    return h


# -- feedback alignment and its kin --------------------------------------------------------------------------


class FaFn(torch.autograd.Function):
    """A linear map whose backward pass goes through a fixed matrix."""

    @staticmethod
    def forward(ctx, x, w, b, fixed):
        ctx.save_for_backward(x, fixed)
        return x @ w.t() + b

    @staticmethod
    def backward(ctx, grad):
        x, fixed = ctx.saved_tensors
        return grad @ fixed, grad.t() @ x, grad.sum(0), None


def fa(x, w, b, fixed):
    return F.linear(x, w, b) if by_hand_now() else FaFn.apply(x, w, b, fixed)


class FaLayer(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(b, a) / a**0.5), nn.Parameter(torch.zeros(b))
        self.fixed = nn.Parameter(torch.randn(b, a) / a**0.5, requires_grad=False)

    def forward(self, x):
        return fa(x, self.w, self.b, self.fixed)


@case("FA: layers with a fixed matrix for the way back, pictures are flattened, tanh", img)
class FaMlp(nn.Module):
    def __init__(self, sizes=(192, 14, 12, 10, C)):
        super().__init__()
        self.layers = nn.ModuleList([FaLayer(a, b) for a, b in pairwise(sizes)])

    def forward(self, x):
        x = x.view(len(x), -1)
        for layer in self.layers[:-1]:
            x = torch.tanh(marked(layer(x)))
        return self.layers[-1](x)


@case("FA in one module: a Function is applied to parameters of a ParameterDict")
class FaDict(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = {"1": (6, 12), "2": (12, 10), "3": (10, C)}
        self.w = nn.ParameterDict({k: nn.Parameter(torch.randn(b, a) / a**0.5) for k, (a, b) in sizes.items()})
        self.bias = nn.ParameterDict({k: nn.Parameter(torch.randn(b) / 9) for k, (_, b) in sizes.items()})
        for k, (a, b) in sizes.items():
            self.register_buffer(f"feedback{k}", torch.randn(b, a) / a**0.5)

    def forward(self, x):
        a = marked(fa(x, self.w["1"], self.bias["1"], self.feedback1))
        b = marked(fa(a.relu(), self.w["2"], self.bias["2"], self.feedback2))
        return fa(b.relu(), self.w["3"], self.bias["3"], self.feedback3)


class FaConvFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, fixed):
        ctx.save_for_backward(x, w, fixed)
        return F.conv2d(x, w, padding=1)

    @staticmethod
    def backward(ctx, grad):
        x, w, fixed = ctx.saved_tensors
        return (torch.nn.grad.conv2d_input(x.shape, fixed, grad, padding=1),
                torch.nn.grad.conv2d_weight(x, w.shape, grad, padding=1), None)  # fmt: skip


class FaConv(nn.Conv2d):
    def __init__(self, a, b):
        super().__init__(a, b, 3, padding=1, bias=False)
        self.register_buffer("fixed", torch.randn(b, a, 3, 3) / 5)

    def forward(self, x):
        return F.conv2d(x, self.weight, padding=1) if by_hand_now() else FaConvFn.apply(x, self.weight, self.fixed)


@case("FA: convolutions derived from nn.Conv2d, batch norm, average pooling", img)
class FaCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1, self.conv2, self.bn2 = FaConv(3, 6), nn.BatchNorm2d(6), FaConv(6, 8), nn.BatchNorm2d(8)
        self.fc1, self.fc2 = FaLayer(32, 12), FaLayer(12, C)

    def forward(self, x):
        x = F.avg_pool2d(self.bn1(marked(self.conv1(x))).relu(), 2)
        x = F.avg_pool2d(self.bn2(marked(self.conv2(x))).relu(), 2)
        return self.fc2(marked(self.fc1(x.flatten(1))).relu())


@case("DFA: every layer is given a detached input, the error goes to each by a fixed matrix")
class DfaCut(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2, self.l3, self.l4 = nn.Linear(6, 14), nn.Linear(14, 12), nn.Linear(12, 10), nn.Linear(10, C)
        self.b = [torch.randn(C, n, generator=generator(5)) for n in (14, 12, 10)]

    def forward(self, x):
        self.a1 = marked(self.l1(x))
        self.a2 = marked(self.l2(cut(self.a1.tanh())))
        self.a3 = marked(self.l3(cut(self.a2.tanh())))
        return self.l4(cut(self.a3.tanh()))


class Hook(nn.Module):
    """Identity with room for a projected error, as builders of DRTP put it behind every layer."""

    def __init__(self, n):
        super().__init__()
        self.register_buffer("fixed_fb_weights", torch.randn(C, n))

    def forward(self, x, labels=None):
        return x if labels is None else x + 0 * (labels @ self.fixed_fb_weights)


@case("DRTP builder: a topology in words, layers by a table, hooks behind every activation", img)
class DrtpBuilder(nn.Module):
    def __init__(self, topology=f"CONV_6_3_1_1 CONV_8_3_1_1 FC_14 FC_{C}"):
        super().__init__()
        self.layers, size, planes, before = nn.ModuleList(), 8, 3, 0
        words = topology.split()
        for i, word in enumerate(words):
            kind, *n = word.split("_")
            if kind == "CONV":
                self.layers.append(
                    nn.Sequential(
                        nn.Conv2d(planes, int(n[0]), int(n[1]), int(n[2]), int(n[3])), nn.Tanh(), nn.MaxPool2d(2)
                    )
                )
                planes, size = int(n[0]), size // 2
            else:
                wide = planes * size * size if i and words[i - 1].startswith("CONV") else before
                self.layers.append(
                    nn.Sequential(nn.Linear(wide, int(n[0])), nn.Sigmoid() if i == len(words) - 1 else nn.Tanh())
                )
            before = int(n[0])
        self.hooks = nn.ModuleList([Hook(1) for _ in words])

    def forward(self, x):
        for i, (layer, hook) in enumerate(zip(self.layers, self.hooks)):
            if isinstance(layer[0], nn.Linear) and x.ndim > 2:
                x = x.flatten(1)
            x = layer[0](x)
            if i < len(self.layers) - 1:
                mark(x)
            x = hook(nn.Sequential(*layer[1:])(x))
        return x


# -- target propagation, predictive coding, equilibrium propagation ------------------------------------------


class DtpLayer(nn.Module):
    """A forward map and its approximate inverse."""

    def __init__(self, a, b, last=False):
        super().__init__()
        self.forward_map, self.inverse_map, self.last = nn.Linear(a, b), nn.Linear(b, a), last

    def forward(self, x):
        z = self.forward_map(x)
        if not self.last:
            mark(z)
        self.activations = z if self.last else F.elu(z)
        return self.activations

    def inverse(self, y):
        return F.elu(self.inverse_map(y))


@case("DTP: layers with an inverse map that only makes targets")
class Dtp(nn.Module):
    def __init__(self):
        super().__init__()
        self.stack = nn.ModuleList([DtpLayer(6, 14), DtpLayer(14, 12), DtpLayer(12, 10), DtpLayer(10, C, last=True)])

    def forward(self, x):
        for layer in self.stack:
            x = layer(x)
        return x

    def targets(self, t):
        for layer in reversed(self.stack[1:]):
            t = layer.inverse(t)
        return t


class PcLayer(nn.Module):
    """A value node: in training it holds a state and an energy, in eval it hands on what it is given."""

    def __init__(self):
        super().__init__()
        self.x, self.energy = None, None

    def forward(self, mu):
        if self.training:
            self.x = nn.Parameter(mu.detach().clone())
            self.energy = 0.5 * (self.x - mu).square().sum()
            return self.x
        return mu


@case("predictive coding: value nodes between layers in one Sequential")
class PcSequential(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(
            nn.Linear(6, 14), PcLayer(), nn.ReLU(), nn.Linear(14, 12), PcLayer(), nn.ReLU(), nn.Linear(12, C)
        )

    def forward(self, x):
        for i, part in enumerate(self.model):
            x = part(x)
            if i in (0, 3):
                mark(x)
        return x


@case("predictive coding by hand: a list of weights, predictions of the layer above are kept")
class PcHand(nn.Module):
    def __init__(self, sizes=(6, 12, 10, C)):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(a, b) / a**0.5) for a, b in pairwise(sizes)])
        self.biases = nn.ParameterList([nn.Parameter(torch.randn(b) / 9) for b in sizes[1:]])
        self.preds = []

    def forward(self, x):
        self.preds = [x]
        for i, (w, b) in enumerate(zip(self.weights, self.biases)):
            x = torch.matmul(torch.tanh(x) if i else x, w) + b
            if i < 2:
                mark(x)
            self.preds.append(x)
        return x


@case("equilibrium propagation by hand: free phase of two steps, feedback by transposed parameters")
class EpHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2 = nn.Parameter(torch.randn(6, 12) / 3), nn.Parameter(torch.randn(12, C) / 3)

    def forward(self, x):
        h, y = x.new_zeros(len(x), 12), x.new_zeros(len(x), C)
        for step in range(2):
            a, back, out = torch.mm(x, self.w1), torch.mm(y, self.w2.t()), torch.mm(h, self.w2)
            for made in (out,) if step == 0 else (a, back):  # what else is made is read by nothing
                mark(made)
            h, y = torch.sigmoid(a + back), torch.sigmoid(out)
        return torch.mm(h, self.w2)


# -- forward-forward and local losses ------------------------------------------------------------------------


class FfLayer(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.linear, self.threshold = nn.Linear(a, b), 2.0

    def forward(self, x):
        x = x / (x.norm(dim=1, keepdim=True) + 1e-4)
        return F.relu(marked(self.linear(x)))


@case("forward-forward: normalised layers, detached; a classifier reads all but the first, concatenated")
class FfClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([FfLayer(6, 14), FfLayer(14, 12), FfLayer(12, 10)])
        self.classifier = nn.Linear(22, C, bias=False)

    def forward(self, x):
        kept = []
        for i, layer in enumerate(self.layers):
            x = layer(cut(x))
            if i:
                kept.append(cut(x))
        return self.classifier(torch.cat(kept, 1))


class LocalConv(nn.Module):
    """A convolution with its own local losses; what it returns is detached."""

    def __init__(self, a, b):
        super().__init__()
        self.encoder, self.bn, self.sim = nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.Conv2d(b, b, 3)
        self.decoder_y = nn.Linear(b, C)

    def forward(self, x, y=None):
        h = F.leaky_relu(self.bn(marked(self.encoder(x))), 0.1)
        if y is not None:
            self.loss = F.cross_entropy(self.decoder_y(h.mean((2, 3))), y) + self.sim(h).square().mean()
        return cut(h)


@case("local errors: convolutions with a prediction and a similarity loss each, detached, linear blocks behind", img)
class LocalVgg(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.ModuleList([LocalConv(3, 6), nn.MaxPool2d(2), LocalConv(6, 8), nn.MaxPool2d(2)])
        self.fc, self.layer_out = nn.Linear(32, 12), nn.Linear(12, C)

    def forward(self, x):
        for layer in self.features:
            x = layer(x)
        return self.layer_out(marked(self.fc(x.flatten(1))).relu())


@case("decoupled greedy: stages in a list, inputs detached in a loop, auxiliary heads apart", img)
class Dgl(nn.Module):
    def __init__(self):
        super().__init__()
        stage = lambda a, b: nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU())  # noqa: E731
        self.stages = nn.ModuleList([stage(3, 6), stage(6, 8), stage(8, 10)])
        self.aux = nn.ModuleList([nn.Linear(n, C) for n in (6, 8)])
        self.head = nn.Linear(10, C)

    def forward(self, x):
        for i, stage in enumerate(self.stages):
            x = stage[1:](marked(stage[0](cut(x) if i else x)))
        return self.head(x.mean((2, 3)))


@case("signal propagation: the context of labels is an embedding of its own, not used without targets")
class SigProp(nn.Module):
    def __init__(self):
        super().__init__()
        self.context, self.f1, self.f2, self.top = (
            nn.Linear(C, 6),
            nn.Linear(6, 12),
            nn.Linear(12, 10),
            nn.Linear(10, C),
        )

    def forward(self, x, target=None):
        if target is not None:
            x = torch.cat([x, self.context(target)])
        return self.top(marked(self.f2(marked(self.f1(x)).relu())).relu())


class HebbConv(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(b, a, 3, 3) / 4, requires_grad=False)

    def forward(self, x):
        return F.conv2d(F.pad(x, (1, 1, 1, 1), "reflect"), self.weight)


@case("soft Hebbian: frozen convolutions with triangle activation, a trained classifier", img)
class SoftHebb(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(3, affine=False), HebbConv(3, 6)
        self.bn2, self.conv2 = nn.BatchNorm2d(6, affine=False), HebbConv(6, 8)
        self.classifier = nn.Linear(8 * 4, C)

    def forward(self, x):
        x = F.max_pool2d(marked(self.conv1(self.bn1(x))).relu() ** 0.7, 2)
        x = F.avg_pool2d(marked(self.conv2(self.bn2(x))).relu(), 2)
        return self.classifier(x.flatten(1))


class Perturbed(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(b, a) / a**0.5), nn.Parameter(torch.zeros(b))
        self.register_buffer("noise", torch.zeros(b, a))

    def forward(self, x):
        return F.linear(x, self.weight + self.noise, self.bias)


@case("weight perturbation: layers whose weight is a sum with a noise buffer")
class WeightPerturb(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = Perturbed(6, 12), Perturbed(12, 10), Perturbed(10, C)

    def forward(self, x):
        return self.c(marked(self.b(marked(self.a(x)).sigmoid())).sigmoid())


@case("node perturbation: parameters by setattr, F.linear in a loop with getattr")
class NodeLoop(nn.Module):
    def __init__(self, sizes=(6, 12, 12, 10, C)):
        super().__init__()
        self.n = len(sizes) - 1
        for i, (a, b) in enumerate(pairwise(sizes)):
            setattr(self, f"weight_{i}", nn.Parameter(torch.randn(b, a) / a**0.5))
            setattr(self, f"bias_{i}", nn.Parameter(torch.randn(b) / 9))

    def forward(self, x):
        for i in range(self.n):
            x = F.linear(x, getattr(self, f"weight_{i}"), getattr(self, f"bias_{i}"))
            if i < self.n - 1:
                x = F.relu(marked(x))
        return x


# -- weights without modules ---------------------------------------------------------------------------------


@case("hand-written: a dictionary of matrices and biases, torch.addmm")
class AddmmNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.ParameterDict({"W1": torch.randn(6, 12) / 3, "b1": torch.randn(12) / 9, "W2": torch.randn(12, 10) / 3,
                                   "b2": torch.randn(10) / 9, "W3": torch.randn(10, C) / 3, "b3": torch.zeros(C)})  # fmt: skip

    def forward(self, x):
        h = torch.addmm(self.p["b1"], x, self.p["W1"])
        mark(h)
        h = torch.addmm(self.p["b2"], h.sigmoid(), self.p["W2"])
        mark(h)
        return torch.addmm(self.p["b3"], h.sigmoid(), self.p["W3"])


@case("grouped linear maps by einsum, then a head", inputs(121, 4, 6))
class Einsum(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.b1 = nn.Parameter(torch.randn(4, 6, 8) / 3), nn.Parameter(torch.randn(4, 8) / 9)
        self.w2, self.head = nn.Parameter(torch.randn(4, 8, 7) / 3), nn.Linear(28, C)

    def forward(self, x):
        h = torch.einsum("bgi,gio->bgo", x, self.w1) + self.b1
        mark(h)
        h = torch.einsum("bgi,gio->bgo", F.gelu(h), self.w2)
        mark(h)
        return self.head(F.gelu(h).flatten(1))


@case("low rank by hand: two thin matrices a layer, the bias behind the second")
class LowRank(nn.Module):
    def __init__(self):
        super().__init__()
        self.u1, self.v1, self.b1 = (
            nn.Parameter(torch.randn(6, 3)),
            nn.Parameter(torch.randn(3, 12)),
            nn.Parameter(torch.randn(12)),
        )
        self.u2, self.v2 = nn.Parameter(torch.randn(12, 4) / 3), nn.Parameter(torch.randn(4, C))

    def forward(self, x):
        h = x @ self.u1
        mark(h)
        h = h @ self.v1 + self.b1
        mark(h)
        h = torch.relu(h) @ self.u2
        mark(h)
        return h @ self.v2


@case("meta-learning: a learner of linear layers with fast weights, self.vars by index, batch norm between")
class MamlMlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.vars, self.vars_bn = nn.ParameterList(), nn.ParameterList()
        for a, b in ((6, 12), (12, 10), (10, C)):
            self.vars.append(nn.Parameter(torch.randn(b, a) / a**0.5))
            self.vars.append(nn.Parameter(torch.zeros(b)))
        for n in (12, 10):
            self.vars.append(nn.Parameter(torch.ones(n)))
            self.vars.append(nn.Parameter(torch.zeros(n)))
            self.vars_bn.extend(
                [nn.Parameter(torch.zeros(n), requires_grad=False), nn.Parameter(torch.ones(n), requires_grad=False)]
            )

    def forward(self, x, vars=None):
        v = self.vars if vars is None else vars
        for i in range(2):
            x = F.linear(x, v[2 * i], v[2 * i + 1])
            mark(x)
            x = F.batch_norm(
                x, self.vars_bn[2 * i], self.vars_bn[2 * i + 1], v[6 + 2 * i], v[7 + 2 * i], training=False
            )
            x = F.relu(x)
        return F.linear(x, v[4], v[5])


@case("LeNet by hand: conv2d and linear with parameters of the module itself", img)
class LenetByHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.k1, self.c1 = nn.Parameter(torch.randn(6, 3, 3, 3) / 4), nn.Parameter(torch.randn(6) / 9)
        self.k2, self.c2 = nn.Parameter(torch.randn(8, 6, 3, 3) / 6), nn.Parameter(torch.randn(8) / 9)
        self.w3, self.w4 = nn.Parameter(torch.randn(12, 32) / 5), nn.Parameter(torch.randn(C, 12) / 3)

    def forward(self, x):
        a = F.conv2d(x, self.k1, self.c1, padding=1)
        mark(a)
        x = F.max_pool2d(a.relu(), 2)
        b = F.conv2d(x, self.k2, padding=1) + self.c2.view(1, -1, 1, 1)
        mark(b)
        x = F.max_pool2d(b.relu(), 2).reshape(len(x), -1)
        c = x @ self.w3.t()
        mark(c)
        return c.relu() @ self.w4.t()


@case("half by hand: an embedding matrix by index, a module, a matrix by @", words)
class HalfHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.fc, self.w = nn.Embedding(20, 8), nn.Linear(8, 12), nn.Parameter(torch.randn(12, 10) / 3)
        self.out = nn.Linear(10, C)

    def forward(self, x):
        e = self.table(x)
        mark(e)
        h = self.fc(e.mean(1))
        mark(h)
        h = h.tanh() @ self.w
        mark(h)
        return self.out(h.tanh())


class MlpHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.ParameterList([torch.randn(6, 12) / 3, torch.randn(12, 10) / 3, torch.randn(10, C) / 3])

    def forward(self, x):
        for i, w in enumerate(self.w):
            x = x @ w
            if i < 2:
                x = marked(x).relu()
        return x


@case("wrapper around a network by hand: the inputs are scaled, the inner network holds the list of weights")
class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.scale = MlpHand(), 0.5

    def forward(self, x):
        return self.net(x * self.scale)


# -- recurrent -----------------------------------------------------------------------------------------------


@case(
    "e-prop: a leaky recurrent net by hand, input and recurrent matrices of the module, three steps", inputs(122, 3, 6)
)
class Eprop(nn.Module):
    def __init__(self):
        super().__init__()
        self.w_in, self.w_rec = nn.Parameter(torch.randn(10, 6) / 3), nn.Parameter(torch.randn(10, 10) / 3)
        self.w_out = nn.Parameter(torch.randn(C, 10) / 3)

    def forward(self, x):
        v = z = x.new_zeros(len(x), 10)
        for t in range(x.shape[1]):
            a = x[:, t] @ self.w_in.t()
            mark(a)
            r = z @ self.w_rec.t()
            mark(r)
            v = 0.7 * v + a + r
            z = torch.tanh(v)
        return z @ self.w_out.t()


class HandLstm(nn.Module):
    """An LSTM cell of two matrices; it returns both states."""

    def __init__(self, a, n):
        super().__init__()
        self.wx, self.wh, self.b = (
            nn.Parameter(torch.randn(a, 4 * n) / 3),
            nn.Parameter(torch.randn(n, 4 * n) / 3),
            nn.Parameter(torch.zeros(4 * n)),
        )

    def forward(self, x, state):
        h, c = state
        i, f, g, o = (x @ self.wx + h @ self.wh + self.b).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


@case("LSTM cell by hand that returns (h, c), three steps, a linear head", inputs(123, 3, 6))
class HandLstmNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = HandLstm(6, 10), nn.Linear(10, C)

    def forward(self, x):
        state = (x.new_zeros(len(x), 10), x.new_zeros(len(x), 10))
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], state)
            mark(h)
            state = (h, c)
        return self.head(h)


@case("LSTM layer whose outputs and last cell state are both read", ser)
class LstmBoth(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.fc, self.out = nn.LSTM(6, 8, batch_first=True), nn.Linear(16, 10), nn.Linear(10, C)

    def forward(self, x):
        y, (_, c) = self.lstm(x)
        mark(y)
        return self.out(marked(self.fc(torch.cat([y.mean(1), c[0]], 1))).relu())


@case("integrate and fire by hand, with a smooth spike: layers run in every step, the last is averaged", inputs(124, 6))
class SmoothLif(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(6, 12), nn.Linear(12, 10), nn.Linear(10, C)

    def forward(self, x):
        u1, u2, out = 0.0, 0.0, 0.0
        for _ in range(3):
            u1 = 0.5 * u1 + marked(self.fc1(x))
            s1 = torch.sigmoid(4 * (u1 - 1))
            u1 = u1 - s1
            u2 = 0.5 * u2 + marked(self.fc2(s1))
            s2 = torch.sigmoid(4 * (u2 - 1))
            u2 = u2 - s2
            out = out + self.fc3(s2)
        return out / 3


# -- forms of networks ---------------------------------------------------------------------------------------


@case("capsules: a convolution, primary capsules by a convolution, routed digit capsules whose lengths answer", img)
class Capsules(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.primary = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 8, 3, 2)
        self.digits = DigitCaps(8, 4, 5)

    @staticmethod
    def squash(s):
        n = s.square().sum(-1, keepdim=True)
        return n / (1 + n) * s / (n + 1e-8).sqrt()

    def forward(self, x):
        h = marked(self.conv1(x)).relu()
        h = marked(self.primary(h)).reshape(len(x), 8, 4)
        return self.digits(self.squash(h)).norm(dim=-1)


class DigitCaps(nn.Module):
    def __init__(self, n, a, b):
        super().__init__()
        self.W = nn.Parameter(torch.randn(1, n, C, b, a) / 2)

    def forward(self, u):
        hat = (self.W @ u[:, :, None, :, None]).squeeze(-1)
        b = torch.zeros(len(u), hat.shape[1], C, 1, dtype=u.dtype)
        for _ in range(2):
            s = (F.softmax(b, 2) * hat).sum(1)
            v = Capsules.squash(s)
            b = b + (hat * v[:, None]).sum(-1, keepdim=True)
        return v


@case("maxout: layers of three pieces, the largest goes on")
class Maxout(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2, self.out = nn.Linear(6, 30), nn.Linear(10, 24), nn.Linear(8, C)

    def forward(self, x):
        x = marked(self.l1(x)).view(len(x), 10, 3).max(-1).values
        x = marked(self.l2(x)).view(len(x), 8, 3).max(-1).values
        return self.out(x)


@case("experts: a softmax gate weighs the outputs of four linear experts, then a classifier")
class Moe(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(6, 4), nn.ModuleList([nn.Linear(6, 12) for _ in range(4)])
        self.classifier = nn.Linear(12, C)

    def forward(self, x):
        g = marked(self.gate(x)).softmax(1)
        y = torch.stack([marked(e(x)) for e in self.experts], 1)
        return self.classifier(torch.einsum("be,bed->bd", g, y).relu())


@case("tied autoencoder: the decoder uses the encoder's weights transposed; squares of its answer", vec,
      loss=lambda out, y: (out - 1).square().mean(1))  # fmt: skip
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc1, self.enc2 = nn.Linear(6, 12), nn.Linear(12, 4)
        self.b1, self.b2 = nn.Parameter(torch.randn(12) / 9), nn.Parameter(torch.randn(6) / 9)

    def forward(self, x):
        h = marked(self.enc1(x)).tanh()
        z = marked(self.enc2(h))
        h = marked(F.linear(z, self.enc2.weight.t(), self.b1)).tanh()
        return F.linear(h, self.enc1.weight.t(), self.b2)


@case("variational classifier: mean and log-variance heads, the mean in eval, three results")
class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.fc_mu, self.fc_logvar = nn.Linear(6, 14), nn.Linear(14, 8), nn.Linear(14, 8)
        self.dec, self.classifier = nn.Linear(8, 12), nn.Linear(12, C)

    def forward(self, x):
        h = marked(self.enc(x)).relu()
        mu, logvar = marked(self.fc_mu(h)), self.fc_logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.classifier(marked(self.dec(z)).relu()), mu, logvar


@case("deep sets: a network on every element, mean, a network on the set", inputs(125, 5, 6))
class DeepSets(nn.Module):
    def __init__(self):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(6, 12), nn.ELU(), nn.Linear(12, 10), nn.ELU())
        self.rho = nn.Sequential(nn.Linear(10, 8), nn.ELU(), nn.Linear(8, C))

    def forward(self, x):
        h = self.phi[3](marked(self.phi[2](self.phi[1](marked(self.phi[0](x))))))
        return self.rho[2](self.rho[1](marked(self.rho[0](h.mean(1)))))


def table():
    """Return numbers and categories by column."""
    x, y = inputs(126, 6)()
    return {"x_num": x, "x_cat": torch.randint(7, (6, 3), generator=generator(127))}, y


@case("tabular: an embedding a column, batch norm of the numbers, an MLP with dropout", table)
class Tabular(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeds = nn.ModuleList([nn.Embedding(7, n) for n in (3, 4, 2)])
        self.bn, self.lin1, self.lin2, self.out = (
            nn.BatchNorm1d(6),
            nn.Linear(15, 14),
            nn.Linear(14, 10),
            nn.Linear(10, C),
        )
        self.drop = nn.Dropout(0.3)

    def forward(self, x_num, x_cat):
        e = [marked(t(x_cat[:, i])) for i, t in enumerate(self.embeds)]
        x = torch.cat([*e, self.bn(x_num)], 1)
        x = self.drop(marked(self.lin1(x)).relu())
        return self.out(self.drop(marked(self.lin2(x)).relu()))


@case("Fourier features: a fixed random projection, sines and cosines, an MLP")
class Fourier(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("B", torch.randn(6, 8))
        self.net = nn.Sequential(nn.Linear(16, 12), nn.GELU(), nn.Linear(12, 10), nn.GELU(), nn.Linear(10, C))

    def forward(self, x):
        p = 2 * torch.pi * x @ self.B
        h = torch.cat([p.sin(), p.cos()], -1)
        for i, part in enumerate(self.net):
            h = part(h)
            if i in (0, 2):
                mark(h)
        return h


class Sine(nn.Module):
    def __init__(self, a, b, omega=30.0):
        super().__init__()
        self.omega_0, self.linear = omega, nn.Linear(a, b)
        nn.init.uniform_(self.linear.weight, -1 / a, 1 / a)

    def forward(self, x):
        return torch.sin(self.omega_0 * marked(self.linear(x)))


@case("SIREN: sine layers in one Sequential, the outermost linear")
class Siren(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(Sine(6, 14), Sine(14, 14), Sine(14, 10), nn.Linear(10, C))

    def forward(self, coords):
        return self.net(coords)


@case("channels last: pictures as (B, H, W, C), permuted in and out around each convolution", inputs(128, 8, 8, 3))
class ChannelsLast(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2, self.norm, self.fc = (
            nn.Conv2d(3, 6, 3, 2, 1),
            nn.Conv2d(6, 8, 3, 2, 1),
            nn.LayerNorm(6),
            nn.Linear(8, C),
        )

    def forward(self, x):
        x = marked(self.c1(x.permute(0, 3, 1, 2))).permute(0, 2, 3, 1)
        x = F.gelu(self.norm(x))
        x = F.gelu(marked(self.c2(x.permute(0, 3, 1, 2))).permute(0, 2, 3, 1))
        return self.fc(x.mean((1, 2)))


@case("1d convolutions over (B, T, C), transposed, gated by halves, last step", ser)
class GatedConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2, self.head = nn.Conv1d(6, 16, 3, padding=2), nn.Conv1d(8, 20, 3, padding=2), nn.Linear(10, C)

    def forward(self, x):
        x = x.transpose(1, 2)
        x = F.glu(marked(self.c1(x))[..., :-2], dim=1)
        x = F.glu(marked(self.c2(x))[..., :-2], dim=1)
        return self.head(x[..., -1])


def image_and_meta():
    """Return a picture and numbers beside it, by keyword."""
    x, y = img()
    return {"image": x, "meta": inputs(129, 4)()[0]}, y


@case("two inputs by keyword: a picture and numbers, concatenated behind their own layers", image_and_meta)
class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.meta_fc = nn.Conv2d(3, 6, 3, 2), nn.Linear(4, 5)
        self.fuse, self.out = nn.Linear(11, 10), nn.Linear(10, C)

    def forward(self, *, image, meta):
        a = marked(self.conv(image)).relu().amax((2, 3))
        b = marked(self.meta_fc(meta)).relu()
        return self.out(marked(self.fuse(torch.cat([a, b], 1))).relu())


def pairs_of():
    """Return two views of each sample."""
    return {"left": inputs(130, 6)()[0], "right": inputs(131, 6)()[0]}, labels()


@case("Siamese: one trunk on two inputs, their distance by coordinate is classified", pairs_of)
class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.head = nn.Linear(6, 12), nn.Linear(12, 8), nn.Linear(8, C)

    def embed(self, x):
        return marked(self.fc2(marked(self.fc1(x)).relu()))

    def forward(self, left, right):
        return self.head((self.embed(left) - self.embed(right)).abs())


@case("modules in a dict, in the order of a list of names that the forward pass holds")
class ByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.order = ["input", "middle", "deep", "output"]
        self.parts = nn.ModuleDict(
            {
                "output": nn.Linear(9, C),
                "deep": nn.Linear(10, 9),
                "middle": nn.Linear(12, 10),
                "input": nn.Linear(6, 12),
            }
        )

    def forward(self, x):
        for name in self.order:
            x = self.parts[name](x)
            if name != "output":
                x = marked(x).tanh()
        return x


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 12), nn.Linear(12, 10), nn.Linear(10, C)

    def forward(self, x):
        return self.c(marked(self.b(marked(self.a(x)).relu())).relu())


@case("functional_call: fast weights, a scaled copy of the inner network's own")
class FastWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.rate = Inner(), nn.Parameter(torch.tensor(0.9))

    def forward(self, x):
        fast = {name: self.rate * p for name, p in self.inner.named_parameters()}
        return torch.func.functional_call(self.inner, fast, (x,))


ALL.append(Case("DataParallel around an MLP", SET, lambda: nn.DataParallel(Inner()), vec))


@dataclass
class Output:
    logits: Tensor
    hidden: tuple[Tensor, ...]


@case("a dataclass is returned, with the logits and all hidden activations")
class Returning(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.ModuleList([nn.Linear(6, 12), nn.Linear(12, 10), nn.Linear(10, 8)])
        self.classifier = nn.Linear(8, C)

    def forward(self, x):
        hidden = []
        for layer in self.body:
            x = F.silu(marked(layer(x)))
            hidden.append(x)
        return Output(self.classifier(x), tuple(hidden))


@case("a dict is returned: logits, features, and a projection for a contrastive loss", img)
class Contrastive(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 6, 3, 2), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.projector = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
        self.linear = nn.Linear(8, C)

    def forward(self, x):
        a = self.encoder[0](x)
        mark(a)
        b = self.encoder[2](self.encoder[1](a))
        mark(b)
        f = self.encoder[5](self.encoder[4](self.encoder[3](b)))
        return {"logits": self.linear(f), "features": f, "z": F.normalize(self.projector(f), dim=1)}


@case("dense MLP: every layer is given all before it and the input, concatenated")
class DenseMlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2, self.l3, self.out = nn.Linear(6, 8), nn.Linear(14, 8), nn.Linear(22, 8), nn.Linear(30, C)

    def forward(self, x):
        x = torch.cat([x, marked(self.l1(x)).relu()], 1)
        x = torch.cat([x, marked(self.l2(x)).relu()], 1)
        x = torch.cat([x, marked(self.l3(x)).relu()], 1)
        return self.out(x)


@case("graph network by hand, jumping knowledge: A h W of three layers, concatenated for a hidden layer")
class Jumping(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("A", torch.rand(6, 6, generator=generator(8)).softmax(1))
        self.w = nn.ModuleList([nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 8)])
        self.lin, self.out = nn.Linear(24, 10), nn.Linear(10, C)

    def forward(self, x):
        hs = []
        for w in self.w:
            x = F.relu(self.A @ marked(w(x)))
            hs.append(x)
        return self.out(marked(self.lin(torch.cat(hs, 1))).relu())


@case("hypernetwork: a small network makes a matrix for every sample, then a classifier")
class Hyper(nn.Module):
    def __init__(self):
        super().__init__()
        self.h1, self.h2, self.out = nn.Linear(6, 10), nn.Linear(10, 48), nn.Linear(8, C)

    def forward(self, x):
        w = marked(self.h2(marked(self.h1(x)).relu())).view(len(x), 8, 6)
        return self.out(torch.bmm(w, x.unsqueeze(2)).squeeze(2).relu())


@case("random features: a frozen layer, a trained hidden layer, a trained readout")
class RandomFeatures(nn.Module):
    def __init__(self):
        super().__init__()
        self.fixed, self.hidden, self.out = nn.Linear(6, 16), nn.Linear(16, 10), nn.Linear(10, C)
        self.fixed.requires_grad_(False)

    def forward(self, x):
        return self.out(marked(self.hidden(marked(self.fixed(x)).relu())).relu())


@case("text: attention by a learned query over embedded words, a hidden layer", words)
class AttentionPool(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.score, self.fc, self.out = (
            nn.Embedding(20, 8),
            nn.Linear(8, 1),
            nn.Linear(8, 10),
            nn.Linear(10, C),
        )

    def forward(self, x):
        e = marked(self.embed(x))
        a = marked(self.score(e)).softmax(1)
        return self.out(marked(self.fc((a * e).sum(1))).relu())


def cases():
    """Return the cases of this set."""
    return ALL
