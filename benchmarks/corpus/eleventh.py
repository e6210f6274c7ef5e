"""A ninth unseen set, plain and residual networks: written after the mends of the eighth, and before a reading."""

# ruff: noqa: D101, E501, E731  # a network is a few lines, and its case names it

from __future__ import annotations

import importlib
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from case import Case, cut, mark, next_token, outputs
from small import C, D, collector, generator, img, inputs, ser, tokens, vec, words
from torch import nn

SET = "ninth set"
ALL, case = collector(SET)


def graph():
    """Return nodes with a dense adjacency each."""
    x, y = inputs(91, 7, 6)()
    raw = torch.rand(6, 7, 7, generator=generator(92), dtype=torch.float64)
    return {"x": x, "adj": raw / raw.sum(-1, keepdim=True)}, y


def frames():
    """Return four frames of a clip, a sample each."""
    return inputs(93, 4, 3, 8, 8)()


# -- plain ones ------------------------------------------------------------------------------------------------


@case("DFA: fc layers by setattr, random feedback kept in a dict of tensors, activities kept on the module", img)
class DfaNet(nn.Module):
    def __init__(self, sizes=(192, 24, 16, 16, C)):
        super().__init__()
        self.n, self.feedback, self.activities = len(sizes) - 1, {}, []
        for i, (a, b) in enumerate(pairwise(sizes)):
            setattr(self, f"fc_{i}", nn.Linear(a, b))
            self.feedback[i] = torch.randn(C, b) * 0.1

    def forward(self, x):
        x = x.view(x.size(0), -1)
        self.activities = []
        for i in range(self.n - 1):
            a = getattr(self, f"fc_{i}")(x)
            mark(a)
            x = torch.tanh(a)
            self.activities.append(x)
        return getattr(self, f"fc_{self.n - 1}")(x)


class CwcBlock(nn.Module):
    def __init__(self, a, b, pool):
        super().__init__()
        self.conv, self.bn, self.pool = nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), pool

    def forward(self, x):
        a = self.conv(x)
        mark(a)
        y = F.relu(self.bn(a))
        return F.max_pool2d(y, 2) if self.pool else y


@case("channel-wise forward-forward: classes compete in groups of channels, a predictor on the last block", img)
class CwcFf(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv_layers = nn.ModuleList([CwcBlock(3, 10, False), CwcBlock(10, 10, True), CwcBlock(10, 15, True)])
        self.classification_loss_head = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(60, C))

    @staticmethod
    def goodness(y):
        return y.view(len(y), C, -1, *y.shape[2:]).pow(2).mean((2, 3, 4))

    def forward(self, x):
        self.g = []
        for layer in self.conv_layers:
            x = cut(layer(x))
            self.g.append(self.goodness(x))
        return self.classification_loss_head(x)


class TargetLayer(nn.Module):
    """Weights as parameters, feedback as a frozen one; what it computed is kept."""

    def __init__(self, a, b, nonlinearity="tanh"):
        super().__init__()
        self._weights, self._bias = nn.Parameter(torch.randn(b, a) * 0.4), nn.Parameter(torch.zeros(b))
        self._feedbackweights = nn.Parameter(torch.randn(a, b) * 0.4, requires_grad=False)
        self.nonlinearity, self.activations = nonlinearity, None

    def forward(self, x):
        linear = x.mm(self._weights.t()) + self._bias.unsqueeze(0).expand(len(x), -1)
        self.activations = torch.tanh(linear) if self.nonlinearity == "tanh" else linear
        return self.activations


@case("target propagation: layers of raw weights in a ModuleList, run by layer.forward(y)")
class TargetNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([TargetLayer(6, 12), TargetLayer(12, 12), TargetLayer(12, 10)])
        self.layers.append(TargetLayer(10, C, "linear"))

    def forward(self, x):
        y = x
        for i, layer in enumerate(self.layers):
            y = layer.forward(y)
            if i < len(self.layers) - 1:
                mark(y)
        return y


@case("text: bidirectional LSTM of two layers, the last hidden states of both directions, concatenated", words)
class BiLstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(20, 8), nn.Dropout(0.5)
        self.rnn = nn.LSTM(8, 6, num_layers=2, bidirectional=True, dropout=0.5, batch_first=True)
        self.fc = nn.Linear(12, C)

    def forward(self, text):
        e = self.embedding(text)
        mark(e)
        _, (hidden, _) = self.rnn(self.dropout(e))
        hidden = hidden.transpose(0, 1)
        mark(hidden)
        return self.fc(self.dropout(torch.cat((hidden[:, -2], hidden[:, -1]), dim=1)))


@case("two LSTM cells on top of each other, over time, the last step", inputs(94, 3, 6))
class StackedCells(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1, self.lstm2, self.linear = nn.LSTMCell(6, 10), nn.LSTMCell(10, 8), nn.Linear(8, C)

    def forward(self, x):
        h1, c1 = x.new_zeros(len(x), 10), x.new_zeros(len(x), 10)
        h2, c2 = x.new_zeros(len(x), 8), x.new_zeros(len(x), 8)
        for step in x.split(1, dim=1):
            h1, c1 = self.lstm1(step.squeeze(1), (h1, c1))
            mark(h1)
            h2, c2 = self.lstm2(h1, (h2, c2))
            mark(h2)
        return self.linear(h2)


class MgruCell(nn.Module):
    """A minimal gated unit, with one layer for the gate and one for the candidate."""

    def __init__(self, a, b):
        super().__init__()
        self.forget, self.candidate = nn.Linear(a + b, b), nn.Linear(a + b, b)

    def forward(self, x, h):
        f = self.forget(torch.cat([x, h], 1))
        mark(f)
        f = torch.sigmoid(f)
        n = self.candidate(torch.cat([x, f * h], 1))
        mark(n)
        return (1 - f) * h + f * torch.tanh(n)


@case("minimal gated unit by hand, over a projected sequence", inputs(95, 3, 6))
class Mgu(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj, self.cell, self.out = nn.Linear(6, 8), MgruCell(8, 10), nn.Linear(10, C)

    def forward(self, x):
        p = self.proj(x)
        mark(p)
        h = x.new_zeros(len(x), 10)
        for t in range(x.shape[1]):
            h = self.cell(torch.relu(p[:, t]), h)
        return self.out(h)


@case("video: convolutions on every frame, folded into the batch, then a GRU", frames)
class FramesGru(nn.Module):
    def __init__(self):
        super().__init__()
        self.cnn = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten())
        self.rnn, self.fc = nn.GRU(96, 10, batch_first=True), nn.Linear(10, C)

    def forward(self, x):
        b, t = x.shape[:2]
        a = self.cnn[0](x.flatten(0, 1))
        a = a.unflatten(0, (b, t))
        mark(a)
        z = self.cnn[3](self.cnn[2](self.cnn[1](a.flatten(0, 1))))
        r, _ = self.rnn(z.view(b, t, -1))
        mark(r)
        return self.fc(r[:, -1])


@case("x-vector: dilated convolutions over time, mean and deviation are pooled", inputs(96, 6, 12))
class XVector(nn.Module):
    def __init__(self):
        super().__init__()
        self.tdnn1, self.tdnn2 = nn.Conv1d(6, 10, 3), nn.Conv1d(10, 10, 3, dilation=2)
        self.bn1, self.bn2, self.lin6, self.lin7 = (
            nn.BatchNorm1d(10),
            nn.BatchNorm1d(10),
            nn.Linear(20, 10),
            nn.Linear(10, C),
        )

    def forward(self, x):
        a = self.tdnn1(x)
        mark(a)
        b = self.tdnn2(self.bn1(F.relu(a)))
        mark(b)
        b = self.bn2(F.relu(b))
        c = self.lin6(torch.cat((b.mean(2), b.std(2)), dim=1))
        mark(c)
        return self.lin7(F.relu(c))


def conv_block(a, b):
    """Return what few-shot code repeats."""
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2))


ALL.append(
    Case("prototypes: an embedding by convolutions, logits are minus the distances to learned prototypes", SET,
         lambda: ProtoNet(), img, ("encoder.0.0", "encoder.1.0", "encoder.2.0"))
)  # fmt: skip


class ProtoNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(conv_block(3, 8), conv_block(8, 8), conv_block(8, 10), nn.Flatten())
        self.prototypes = nn.Parameter(torch.randn(C, 10))

    def forward(self, x):
        z = self.encoder(x)
        return -((z[:, None] - self.prototypes[None]) ** 2).sum(-1)


class NoisyLinear(nn.Module):
    def __init__(self, a, b, std=0.4):
        super().__init__()
        self.weight_mu, self.weight_sigma = nn.Parameter(torch.randn(b, a) * 0.3), nn.Parameter(torch.full((b, a), std))
        self.bias_mu = nn.Parameter(torch.zeros(b))
        self.register_buffer("weight_epsilon", torch.zeros(b, a))

    def forward(self, x):
        w = self.weight_mu + self.weight_sigma * self.weight_epsilon if self.training else self.weight_mu
        return F.linear(x, w, self.bias_mu)


@case("Rainbow: noisy layers, a distribution per action, value and advantage streams", vec)
class Rainbow(nn.Module):
    atoms = 3

    def __init__(self):
        super().__init__()
        self.feature = nn.Linear(6, 16)
        self.h_v, self.h_a = NoisyLinear(16, 12), NoisyLinear(16, 12)
        self.z_v, self.z_a = NoisyLinear(12, self.atoms), NoisyLinear(12, C * self.atoms)
        self.register_buffer("support", torch.linspace(-1, 1, self.atoms))

    def forward(self, x):
        f = self.feature(x)
        mark(f)
        f = F.relu(f)
        v, a = self.h_v(f), self.h_a(f)
        mark(v)
        mark(a)
        v, a = self.z_v(F.relu(v)).view(-1, 1, self.atoms), self.z_a(F.relu(a)).view(-1, C, self.atoms)
        q = F.softmax(v + a - a.mean(1, keepdim=True), dim=2)
        return (q * self.support).sum(2)


@case("edge convolutions on points: features of all layers are concatenated, then a convolution and a maximum",
      inputs(97, 3, 8))  # fmt: skip
class Dgcnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Sequential(nn.Conv2d(6, 6, 1, bias=False), nn.BatchNorm2d(6), nn.LeakyReLU(0.2))
        self.conv2 = nn.Sequential(nn.Conv2d(12, 8, 1, bias=False), nn.BatchNorm2d(8), nn.LeakyReLU(0.2))
        self.conv3 = nn.Sequential(nn.Conv1d(14, 16, 1, bias=False), nn.BatchNorm1d(16), nn.LeakyReLU(0.2))
        self.linear1, self.linear2 = nn.Linear(16, 10), nn.Linear(10, C)

    @staticmethod
    def edges(x, k=3):
        idx = torch.cdist(x.mT, x.mT).topk(k, largest=False).indices
        near = torch.gather(
            x.mT.unsqueeze(1).expand(-1, x.shape[2], -1, -1), 2, idx[..., None].expand(-1, -1, -1, x.shape[1])
        )
        own = x.mT.unsqueeze(2).expand_as(near)
        return torch.cat((near - own, own), 3).permute(0, 3, 1, 2)

    def forward(self, x):
        a = self.conv1[0](self.edges(x))
        mark(a)
        x1 = self.conv1[2](self.conv1[1](a)).max(-1)[0]
        b = self.conv2[0](self.edges(x1))
        mark(b)
        x2 = self.conv2[2](self.conv2[1](b)).max(-1)[0]
        c = self.conv3[0](torch.cat((x1, x2), 1))
        mark(c)
        h = self.linear1(self.conv3[2](self.conv3[1](c)).max(-1)[0])
        mark(h)
        return self.linear2(F.leaky_relu(h, 0.2))


class ChebyKan(nn.Module):
    """Polynomials of the squashed input, mixed by one weight of three axes."""

    def __init__(self, a, b, degree=3):
        super().__init__()
        self.degree, self.cheby_coeffs = degree, nn.Parameter(torch.randn(a, b, degree + 1) * 0.3)

    def forward(self, x):
        theta = torch.tanh(x).clamp(-0.999, 0.999).acos().unsqueeze(-1)
        return torch.einsum("bid,iod->bo", (theta * torch.arange(self.degree + 1).to(x)).cos(), self.cheby_coeffs)


ALL.append(
    Case("Chebyshev KAN: layers of one weight, norms between", SET,
         lambda: nn.Sequential(nn.Flatten(), ChebyKan(192, 10), nn.LayerNorm(10), ChebyKan(10, 8), nn.LayerNorm(8), ChebyKan(8, C)),
         img, ("1", "3"))
)  # fmt: skip


class ProductKan(nn.Module):
    """A base and a wavelet part, two modules that are added; batch norm at the end."""

    def __init__(self, a, b):
        super().__init__()
        self.base, self.wavelet, self.bn = nn.Linear(a, b), nn.Linear(a, b, bias=False), nn.BatchNorm1d(b)

    def forward(self, x):
        return self.bn(self.base(F.silu(x)) + self.wavelet(x * torch.exp(-0.5 * x.square())))


@case("wavelet KAN: a base and a wavelet are added, then a batch norm in the layer")
class WavKan(nn.Module):
    def __init__(self):
        super().__init__()
        self.kan1, self.kan2, self.kan3 = ProductKan(6, 10), ProductKan(10, 8), ProductKan(8, C)

    def forward(self, x):
        x = self.kan1(x)
        mark(x)
        x = self.kan2(x)
        mark(x)
        return self.kan3(x)


# -- residual ones ---------------------------------------------------------------------------------------------


class PreNorm(nn.Module):
    def __init__(self, dim, fn):
        super().__init__()
        self.norm, self.fn = nn.LayerNorm(dim), fn

    def forward(self, x, **kwargs):
        return self.fn(self.norm(x), **kwargs)


class Residual(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x, **kwargs):
        return self.fn(x, **kwargs) + x


class SelfAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        return self.to_out(F.scaled_dot_product_attention(*self.to_qkv(x).chunk(3, -1)))


@case("Residual(PreNorm(fn)) in one Sequential, attention and MLP in turn", ser, "mean")
class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        mlp = lambda: nn.Sequential(nn.Linear(D, 24), nn.GELU(), nn.Linear(24, D))
        parts = [Residual(PreNorm(D, part())) for _ in range(2) for part in (partial(SelfAttention, D), mlp)]
        self.to_embedding, self.transformer = nn.Linear(6, D), nn.Sequential(*parts)
        self.pool, self.mlp_head = "mean", nn.Sequential(nn.LayerNorm(D), nn.Linear(D, C))

    def forward(self, x):
        x = self.to_embedding(x)
        mark(x)
        for part in self.transformer:
            x = part(x)
            mark(x)
        return self.mlp_head(x.mean(dim=1))


class SeriesBlock(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(a, b, 7, padding=3), nn.BatchNorm1d(b), nn.ReLU(),
            nn.Conv1d(b, b, 5, padding=2), nn.BatchNorm1d(b), nn.ReLU(),
            nn.Conv1d(b, b, 3, padding=1), nn.BatchNorm1d(b),
        )  # fmt: skip
        self.shortcut = nn.Sequential(nn.Conv1d(a, b, 1), nn.BatchNorm1d(b)) if a != b else nn.BatchNorm1d(b)

    def forward(self, x):
        return F.relu(self.layers(x) + self.shortcut(x))


@case("ResNet for time series: three blocks as attributes, norms in the shortcuts, pooled over time",
      inputs(98, 8, 10), lambda h: h.norm(dim=1).mean(1))  # fmt: skip
class SeriesResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv1d(8, D, 1)
        self.block_1, self.block_2, self.block_3 = SeriesBlock(D, D), SeriesBlock(D, D), SeriesBlock(D, D)
        self.final = nn.Linear(D, C)

    def forward(self, x):
        x = self.stem(x)
        mark(x)
        x = self.block_1(x)
        mark(x)
        x = self.block_2(x)
        mark(x)
        x = self.block_3(x)
        mark(x)
        return self.final(x.mean(dim=-1))


class Inverted(nn.Module):
    """Expand, depthwise, project; a shortcut only where the stride is one."""

    def __init__(self, a, b, expansion, stride):
        super().__init__()
        m, self.stride = expansion * a, stride
        self.conv1, self.bn1 = nn.Conv2d(a, m, 1, bias=False), nn.BatchNorm2d(m)
        self.conv2, self.bn2 = nn.Conv2d(m, m, 3, stride, 1, groups=m, bias=False), nn.BatchNorm2d(m)
        self.conv3, self.bn3 = nn.Conv2d(m, b, 1, bias=False), nn.BatchNorm2d(b)
        self.shortcut = nn.Sequential()
        if stride == 1 and a != b:
            self.shortcut = nn.Sequential(nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(out)))))
        return out + self.shortcut(x) if self.stride == 1 else out


@case("MobileNetV2 for CIFAR: one Sequential of blocks made by a table, without a shortcut where it strides", img)
class MobileV2(nn.Module):
    cfg = ((1, 8, 1, 1), (2, 12, 2, 2), (2, 16, 2, 1))  # expansion, width, how many, stride

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        layers, a = [], 8
        for expansion, b, count, stride in self.cfg:
            for s in [stride] + [1] * (count - 1):
                layers.append(Inverted(a, b, expansion, s))
                a = b
        self.layers = nn.Sequential(*layers)
        self.conv2, self.bn2, self.linear = nn.Conv2d(a, 20, 1, bias=False), nn.BatchNorm2d(20), nn.Linear(20, C)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        mark(h)
        for block in self.layers:
            h = block(h)
            mark(h)
        return self.linear(F.relu(self.bn2(self.conv2(h))).mean((2, 3)))


@case("residual MLP of two lists: x + dropout(relu(bn(fc(x)))), zip(fcs, bns)", vec)
class TwoLists(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc0, self.out = nn.Linear(6, D), nn.Linear(D, C)
        self.fcs = nn.ModuleList([nn.Linear(D, D) for _ in range(4)])
        self.bns = nn.ModuleList([nn.BatchNorm1d(D) for _ in range(4)])

    def forward(self, x):
        x = F.relu(self.fc0(x))
        mark(x)
        for fc, bn in zip(self.fcs, self.bns):
            x = x + F.dropout(F.relu(bn(fc(x))), 0.5, self.training)
            mark(x)
        return self.out(x)


@case("GraphSAGE with residuals: relu(self(h) + neighbours(A h)) + h, two lists of linear layers", graph, "mean")
class SageRes(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.cls = nn.Linear(6, D), nn.Linear(D, C)
        self.lin_self = nn.ModuleList([nn.Linear(D, D) for _ in range(3)])
        self.lin_neigh = nn.ModuleList([nn.Linear(D, D, bias=False) for _ in range(3)])

    def forward(self, x, adj):
        h = self.inp(x)
        mark(h)
        for own, neigh in zip(self.lin_self, self.lin_neigh):
            h = F.relu(own(h) + neigh(adj @ h)) + h
            mark(h)
        return self.cls(h.mean(1))


class ConvNextBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dwconv, self.norm = nn.Conv2d(dim, dim, 7, padding=3, groups=dim), nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1, self.act, self.pwconv2 = nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)
        self.gamma = nn.Parameter(1e-1 * torch.ones(dim))

    def forward(self, x):
        z = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        z = self.gamma * self.pwconv2(self.act(self.pwconv1(z)))
        return x + z.permute(0, 3, 1, 2)


@case("ConvNeXt as its authors write it: downsample_layers and stages in two lists, called by index", img)
class ConvNext(nn.Module):
    def __init__(self, depths=(1, 2), dims=(8, 12)):
        super().__init__()
        self.downsample_layers = nn.ModuleList(
            [nn.Sequential(nn.Conv2d(3, dims[0], 2, stride=2), nn.BatchNorm2d(dims[0]))]
        )
        self.downsample_layers.append(nn.Sequential(nn.BatchNorm2d(dims[0]), nn.Conv2d(dims[0], dims[1], 2, stride=2)))
        self.stages = nn.ModuleList()
        for depth, dim in zip(depths, dims):
            self.stages.append(nn.Sequential(*[ConvNextBlock(dim) for _ in range(depth)]))
        self.norm, self.head = nn.LayerNorm(dims[-1]), nn.Linear(dims[-1], C)

    def forward(self, x):
        for i in range(2):
            x = self.downsample_layers[i](x)
            if i == 0:
                mark(x)
            for block in self.stages[i]:
                x = block(x)
                mark(x)
        return self.head(self.norm(x.mean([-2, -1])))


class LongConv(nn.Module):
    """A gated long convolution by FFT."""

    def __init__(self, d, length=7):
        super().__init__()
        self.in_proj, self.out_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.kernel, self.short = (
            nn.Parameter(torch.randn(d, length) * 0.2),
            nn.Conv1d(3 * d, 3 * d, 3, padding=2, groups=3 * d),
        )

    def forward(self, u):
        length = u.shape[1]
        x1, x2, v = self.short(self.in_proj(u).transpose(1, 2))[..., :length].chunk(3, 1)
        z = x1 * v
        spectrum = torch.fft.rfft(z, 2 * length) * torch.fft.rfft(self.kernel, 2 * length)
        return self.out_proj((torch.fft.irfft(spectrum, 2 * length)[..., :length] * x2).transpose(1, 2))


@case(
    "gated long convolutions: mixers, norms and MLPs in lists of their own, the loop writes both sums", tokens, "mean"
)
class Hyena(nn.Module):
    def __init__(self, n_layer=2):
        super().__init__()
        self.embeddings, self.n_layer = nn.Embedding(20, D), n_layer
        self.mixers = nn.ModuleList([LongConv(D) for _ in range(n_layer)])
        self.mlps = nn.ModuleList(
            [nn.Sequential(nn.Linear(D, 24), nn.GELU(), nn.Linear(24, D)) for _ in range(n_layer)]
        )
        self.norms1 = nn.ModuleList([nn.LayerNorm(D) for _ in range(n_layer)])
        self.norms2 = nn.ModuleList([nn.LayerNorm(D) for _ in range(n_layer)])
        self.ln_f, self.lm_head = nn.LayerNorm(D), nn.Linear(D, C, bias=False)

    def forward(self, input_ids):
        x = self.embeddings(input_ids)
        mark(x)
        for i in range(self.n_layer):
            x = x + self.mixers[i](self.norms1[i](x))
            mark(x)
            x = x + self.mlps[i](self.norms2[i](x))
            mark(x)
        return self.lm_head(self.ln_f(x))


@case("ResNet by attributes: relu(x + conv(relu(conv(x)))), written out three times", img)
class WrittenOut(nn.Module):
    def __init__(self):
        super().__init__()
        conv = lambda a, b: nn.Conv2d(a, b, 3, padding=1)
        self.conv0, self.fc = conv(3, 8), nn.Linear(8, C)
        self.conv1a, self.conv1b, self.conv2a, self.conv2b = conv(8, 8), conv(8, 8), conv(8, 8), conv(8, 8)
        self.conv3a, self.conv3b = conv(8, 8), conv(8, 8)

    def forward(self, x):
        x = F.relu(self.conv0(x))
        mark(x)
        identity = x
        out = self.conv1b(F.relu(self.conv1a(x)))
        x = F.relu(out + identity)
        mark(x)
        identity = x
        out = self.conv2b(F.relu(self.conv2a(x)))
        x = F.relu(out + identity)
        mark(x)
        identity = x
        out = self.conv3b(F.relu(self.conv3a(x)))
        x = F.relu(out + identity)
        mark(x)
        return self.fc(x.mean((2, 3)))


class KwargLayer(nn.Module):
    """A decoder layer of keywords, grouped keys and values."""

    def __init__(self):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(D), nn.RMSNorm(D)
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(D, D), nn.Linear(D, D // 2), nn.Linear(D, D // 2)
        self.o_proj, self.gate, self.up, self.down = (
            nn.Linear(D, D),
            nn.Linear(D, 16),
            nn.Linear(D, 16),
            nn.Linear(16, D),
        )

    def forward(self, *, attention_mask=None, hidden_states=None, output_attentions=False):
        residual = hidden_states
        z = self.input_layernorm(hidden_states)
        q = self.q_proj(z).unflatten(-1, (2, -1)).transpose(1, 2)
        k, v = (p(z).unflatten(-1, (1, -1)).transpose(1, 2).expand(-1, 2, -1, -1) for p in (self.k_proj, self.v_proj))
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask)
        hidden_states = residual + self.o_proj(a.transpose(1, 2).flatten(2))
        residual = hidden_states
        z = self.post_attention_layernorm(hidden_states)
        return (residual + self.down(F.silu(self.gate(z)) * self.up(z)),)


@case("decoder called by keywords, the mask before the state, a tuple of one returned", tokens, "mean")
class KwargDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens, self.layers = nn.Embedding(20, D), nn.ModuleList([KwargLayer() for _ in range(3)])
        self.norm, self.lm_head = nn.RMSNorm(D), nn.Linear(D, C, bias=False)

    def forward(self, input_ids):
        h = self.embed_tokens(input_ids)
        mark(h)
        n = input_ids.shape[1]
        mask = torch.zeros(n, n, dtype=h.dtype).masked_fill(torch.ones(n, n).triu(1).bool(), float("-inf"))
        for layer in self.layers:
            h = layer(attention_mask=mask, hidden_states=h)[0]
            mark(h)
        return self.lm_head(self.norm(h))


# -- of libraries ----------------------------------------------------------------------------------------------


def _pictures(size=32, n=4):
    return lambda: (torch.randn(n, 3, size, size, generator=generator(99), dtype=torch.float64), torch.arange(n) % C)


def _transformers():
    of = importlib.import_module("of_transformers")
    eager = importlib.import_module("fifth_libraries").eager
    small = {**of.SMALL, "vocab_size": of.WORDS, "max_position_embeddings": 32, "pad_token_id": 1}
    grouped = {"num_key_value_heads": 2, "head_dim": 8}
    for name, more in (("MinistralForCausalLM", {}), ("VaultGemmaForCausalLM", {}), ("ErnieForMaskedLM", None)):
        if more is None:
            blocks, config, loss = "ernie.encoder.layer", {**small}, None
        else:
            blocks, config, loss = "model.layers", {**small, **grouped}, next_token
        build = eager(of.model_of(name, config))
        yield Case(name, SET, build, of.language, outputs(blocks, 3), "mean", loss)


def _timm():
    of = lambda name: importlib.import_module(f"timm.models.{name}")
    staged = lambda depths: [f"stages.{i}.blocks.{j}" for i, n in enumerate(depths) for j in range(n)]
    paths = staged((1, 2, 1, 1))
    sites = (f"in:{paths[0]}", *paths)
    build = lambda: of("fasternet").FasterNet(num_classes=C, embed_dim=8, depths=(1, 2, 1, 1))
    yield Case("timm.FasterNet", SET, build, _pictures(), sites)
    build = lambda: of("mambaout").MambaOut(num_classes=C, depths=(1, 2, 1, 1), dims=(8, 16, 24, 32))
    yield Case("timm.MambaOut", SET, build, _pictures(), sites)
    paths = staged((1, 1, 2, 1))
    build = lambda: of("edgenext").EdgeNeXt(
        num_classes=C, dims=(8, 16, 24, 32), depths=(1, 1, 2, 1), heads=(2, 2, 2, 2), d2_scales=(2, 2, 3, 4)
    )
    yield Case("timm.EdgeNeXt", SET, build, _pictures(64), (f"in:{paths[0]}", *paths))


def _others():
    pause = importlib.import_module("halonet_pytorch")

    class Halo(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.head = nn.Conv2d(3, D, 1), nn.Linear(D, C)
            self.layers = nn.ModuleList(
                [pause.HaloAttention(dim=D, block_size=4, halo_size=1, dim_head=4, heads=2) for _ in range(3)]
            )

        def forward(self, x):
            h = self.stem(x)
            mark(h)
            for layer in self.layers:
                h = h + layer(h)
                mark(h)
            return self.head(h.mean((2, 3)))

    yield Case("halonet_pytorch.HaloAttention with skips", SET, Halo, img)
    bottle = importlib.import_module("bottleneck_transformer_pytorch")
    build = lambda: nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        bottle.BottleStack(dim=16, fmap_size=8, dim_out=32, num_layers=3, proj_factor=4, heads=2, dim_head=4, downsample=False),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, C),
    )  # fmt: skip
    paths = [f"1.net.{i}" for i in range(3)]
    yield Case("bottleneck_transformer_pytorch.BottleStack", SET, build, img, (f"in:{paths[0]}", *paths))


def cases():
    """Yield the networks; those of libraries where they are installed."""
    yield from ALL
    for found in (_transformers, _timm, _others):
        try:
            yield from found()
        except ImportError:
            continue
