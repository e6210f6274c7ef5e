"""A fifth unseen set, half of it of libraries that were not tried before; sites were written before a first reading."""

# ruff: noqa: D101, D106, E731  # a network is a few lines, and its case names it

from __future__ import annotations

import importlib

import case as by_hand
import torch
import torch.nn.functional as F
from case import Case, mark, next_token, outputs
from small import Att, C, D, Mlp, Pre, collector, generator, img, labels, ser, stacker, vec, words
from torch import nn

SET = "fifth set"
ALL, case = collector(SET)
stack = stacker(case)


def one_hot_too():
    """Return images and, as a second input, their labels as one-hot vectors."""
    y = labels()
    x = torch.randn(6, 3, 8, 8, generator=generator(40), dtype=torch.float64)
    return {"x": x, "labels": F.one_hot(y, C).double()}, y


class Injected(torch.autograd.Function):
    """The identity forward; backward, an error that is projected at random."""

    @staticmethod
    def forward(ctx, h, e, b):
        ctx.save_for_backward(e, b)
        return h.view_as(h)

    @staticmethod
    def backward(ctx, g):
        e, b = ctx.saved_tensors
        return (e @ b.flatten(1)).view_as(g), None, None


class Trained(nn.Module):
    """A layer, its activation, and a hook module behind both, as DRTP code has it."""

    def __init__(s, layer, act, shape, pool=0):
        super().__init__()
        s.layer, s.act, s.pool = layer, act, pool
        s.fixed = nn.Parameter(torch.randn(C, *shape), requires_grad=False) if shape else None

    def forward(s, x, labels, seen=False):
        x = s.layer(x)
        if s.fixed is not None:
            mark(x)
        if s.act is not None:
            x = s.act(x)
        if s.fixed is not None and by_hand._marks is None:
            x = Injected.apply(x, labels, s.fixed)
        return F.max_pool2d(x, s.pool) if s.pool else x


@case("DRTP: blocks of layer, activation and an injected error, forward(x, labels)", one_hot_too)
class Drtp(nn.Module):
    def __init__(s):
        super().__init__()
        s.layers = nn.ModuleList([
            Trained(nn.Conv2d(3, 4, 3, padding=1), torch.tanh, (4, 8, 8), 2),
            Trained(nn.Conv2d(4, 6, 3, padding=1), torch.tanh, (6, 4, 4), 2),
            Trained(nn.Linear(24, 10), torch.tanh, (10,)),
            Trained(nn.Linear(10, C), None, None),
        ])  # fmt: skip

    def forward(s, x, labels):
        for i, layer in enumerate(s.layers):
            if i == 2:
                x = x.reshape(x.size(0), -1)
            x = layer(x, labels)
        return x


class Local(nn.Module):
    def __init__(s, a, b):
        super().__init__()
        s.encoder, s.decoder_y, s.bn = nn.Linear(a, b), nn.Linear(b, C), nn.BatchNorm1d(b)
        s.nonlin, s.dropout, s.loss_pred = nn.LeakyReLU(0.01, inplace=True), nn.Dropout(0.1), 0.0

    def forward(s, x, labels):
        h = s.encoder(x)
        mark(h)
        h = s.nonlin(s.bn(h))
        back = s.dropout(h)
        loss = F.mse_loss(s.decoder_y(h), labels).detach()
        s.loss_pred += loss.item() * 0
        return (back.detach() if s.training else back), loss


@case("local losses: blocks return (h, loss), the losses are summed and returned", one_hot_too)
class LocalNet(nn.Module):
    def __init__(s):
        super().__init__()
        s.layers = nn.ModuleList([Local(192, 12), Local(12, 12), Local(12, 10)])
        s.layer_out = nn.Linear(10, C)

    def forward(s, x, labels):
        x, total = x.view(x.size(0), -1), 0.0
        for layer in s.layers:
            x, loss = layer(x, labels)
            total = total + loss
        return s.layer_out(x), total


@case("forward-forward: lengths removed between layers, all but the first read by a linear classifier", img)
class Ff(nn.Module):
    def __init__(s):
        super().__init__()
        s.model = nn.ModuleList([nn.Linear(192, 12), nn.Linear(12, 12), nn.Linear(12, 12)])
        s.linear_classifier = nn.Sequential(nn.Linear(24, C, bias=False))

    def forward(s, x):
        z, kept = x.reshape(len(x), -1), []
        z = z / (z.square().mean(-1, keepdim=True).sqrt() + 1e-8)
        for i, layer in enumerate(s.model):
            z = layer(z)
            mark(z)
            z = F.relu(z)
            z = z / (z.square().mean(-1, keepdim=True).sqrt() + 1e-8)
            if i:
                kept.append(z)
        return s.linear_classifier(torch.cat(kept, -1))


class FaConvFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, fa, bias):
        ctx.save_for_backward(x, w, fa)
        return F.conv2d(x, w, bias, padding=1)

    @staticmethod
    def backward(ctx, g):
        x, w, fa = ctx.saved_tensors
        dx = torch.nn.grad.conv2d_input(x.shape, fa, g, padding=1)
        return dx, torch.nn.grad.conv2d_weight(x, w.shape, g, padding=1), None, g.sum((0, 2, 3))


class FaConv(nn.Module):
    def __init__(s, a, b):
        super().__init__()
        s.weight, s.bias = nn.Parameter(torch.randn(b, a, 3, 3) * 0.2), nn.Parameter(torch.zeros(b))
        s.register_buffer("weight_fa", torch.randn(b, a, 3, 3) * 0.2)

    def forward(s, x):
        if by_hand._marks is not None:
            return F.conv2d(x, s.weight, s.bias, padding=1)
        return FaConvFunction.apply(x, s.weight, s.weight_fa, s.bias)


@case("feedback alignment by convolutions of a class of one's own, weights as parameters", img)
class FaCnn(nn.Module):
    def __init__(s):
        super().__init__()
        s.conv1, s.conv2, s.conv3, s.fc = FaConv(3, 4), FaConv(4, 6), FaConv(6, 6), nn.Linear(24, C)

    def forward(s, x):
        for i, conv in enumerate((s.conv1, s.conv2, s.conv3)):
            x = conv(x)
            mark(x)
            x = F.relu(x)
            if i:
                x = F.avg_pool2d(x, 2)
        return s.fc(x.flatten(1))


@case("batch norm and ReLU in front of each layer, Sequentials in a Sequential")
class NormFirst(nn.Module):
    def __init__(s):
        super().__init__()
        part = lambda a, b: nn.Sequential(nn.BatchNorm1d(a), nn.ReLU(), nn.Linear(a, b))
        s.net = nn.Sequential(nn.Linear(6, 12), part(12, 12), part(12, 10), part(10, C))

    def forward(s, x):
        for i, m in enumerate(s.net):
            x = m(x)
            if i < 3:
                mark(x)
        return x


@case("MobileNet: depthwise and pointwise convolutions, no skips", img)
class Separable(nn.Module):
    def __init__(s):
        super().__init__()
        s.model = nn.Sequential(s.bn(3, 4, 1), s.dw(4, 6), s.dw(6, 8), nn.AdaptiveAvgPool2d(1))
        s.fc = nn.Linear(8, C)

    def bn(s, a, b, stride):
        return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True))

    def dw(s, a, b):
        return nn.Sequential(
            nn.Conv2d(a, a, 3, 1, 1, groups=a, bias=False), nn.BatchNorm2d(a), nn.ReLU(inplace=True),
            nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True),
        )  # fmt: skip

    def forward(s, x):
        for part in s.model:
            for m in part if isinstance(part, nn.Sequential) else [part]:
                x = m(x)
                if isinstance(m, nn.Conv2d):
                    mark(x)
                    x = x.clone()
        return s.fc(x.view(-1, 8))


@case("gated convolutions over text", words)
class GatedText(nn.Module):
    def __init__(s):
        super().__init__()
        s.emb, s.out = nn.Embedding(20, 8), nn.Linear(8, C)
        s.convs = nn.ModuleList([nn.Conv1d(8, 16, 3, padding=1) for _ in range(3)])

    def forward(s, x):
        x = s.emb(x)
        mark(x)
        x = x.transpose(1, 2)
        for conv in s.convs:
            x = conv(x)
            mark(x)
            x = F.glu(x, 1)
        return s.out(x.mean(2))


@case("orthogonal and weight-normed layers by parametrizations")
class Parametrized(nn.Module):
    def __init__(s):
        super().__init__()
        p = nn.utils.parametrizations
        s.a, s.b = p.orthogonal(nn.Linear(6, 12)), p.weight_norm(nn.Linear(12, 12))
        s.c, s.out = p.spectral_norm(nn.Linear(12, 10)), nn.Linear(10, C)

    def forward(s, x):
        for layer in (s.a, s.b, s.c):
            x = layer(x)
            mark(x)
            x = torch.tanh(x)
        return s.out(x)


class Binary(nn.Linear):
    def forward(s, x):
        return F.linear(x, s.weight + (s.weight.sign() - s.weight).detach(), s.bias)


@case("binary weights and activations by straight-through, detach inside")
class BinaryNet(nn.Module):
    def __init__(s):
        super().__init__()
        s.fc1, s.bn1, s.fc2, s.bn2 = Binary(6, 12), nn.BatchNorm1d(12), Binary(12, 12), nn.BatchNorm1d(12)
        s.fc3 = Binary(12, C)

    def forward(s, x):
        for fc, bn in ((s.fc1, s.bn1), (s.fc2, s.bn2)):
            x = fc(x)
            mark(x)
            x = F.hardtanh(bn(x))
            x = x + (x.sign() - x).detach()
        return s.fc3(x)


def exits(out, y):
    return sum(F.cross_entropy(o, y, reduction="none") for o in out)


@case("deep supervision: a head at every layer, all of them in the loss", vec, None, exits)
class Exits(nn.Module):
    def __init__(s):
        super().__init__()
        s.body = nn.ModuleList([nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 10)])
        s.heads = nn.ModuleList([nn.Linear(n, C) for n in (12, 12, 10)])

    def forward(s, x):
        out = []
        for layer, head in zip(s.body, s.heads):
            x = layer(x)
            mark(x)
            x = F.elu(x)
            out.append(head(x))
        return out


class PcLayer(nn.Module):
    def __init__(s):
        super().__init__()
        s._x, s.energy = None, None

    def forward(s, mu):
        if s.training:
            s._x = nn.Parameter(mu.detach().clone())
            s.energy = 0.5 * (mu - s._x).square().sum()
            return s._x
        return mu


@case("predictive coding: layers that hold the state stand between the linear ones", img)
class PcNet(nn.Module):
    def __init__(s):
        super().__init__()
        s.net = nn.Sequential(
            nn.Flatten(), nn.Linear(192, 12), PcLayer(), nn.ReLU(), nn.Linear(12, 12), PcLayer(), nn.ReLU(),
            nn.Linear(12, 10), PcLayer(), nn.ReLU(), nn.Linear(10, C),
        )  # fmt: skip

    def forward(s, x):
        for i, m in enumerate(s.net):
            x = m(x)
            if i in (1, 4, 7):
                mark(x)
        return x


@case("VGG by a list of sizes and 'M', ReLU in place, batch norm, one linear", img)
class VggList(nn.Module):
    def __init__(s):
        super().__init__()
        layers, a = [], 3
        for size in (4, "M", 6, 6, "M"):
            if size == "M":
                layers += [nn.MaxPool2d(2, 2)]
            else:
                layers += [nn.Conv2d(a, size, 3, padding=1), nn.BatchNorm2d(size), nn.ReLU(inplace=True)]
                a = size
        s.features, s.classifier = nn.Sequential(*layers, nn.AvgPool2d(1, 1)), nn.Linear(24, C)

    def forward(s, x):
        for m in s.features:
            x = m(x)
            if isinstance(m, nn.Conv2d):
                mark(x)
                x = x.clone()
        return s.classifier(x.view(x.size(0), -1))


@case("Elman network by nn.RNNCell, then two linears", ser)
class Elman(nn.Module):
    def __init__(s):
        super().__init__()
        s.cell, s.fc, s.out = nn.RNNCell(6, 12), nn.Linear(12, 10), nn.Linear(10, C)

    def forward(s, x):
        h = torch.zeros(len(x), 12, dtype=x.dtype)
        for t in range(3):
            h = s.cell(x[:, t], h)
            mark(h)
        h = s.fc(h)
        mark(h)
        return s.out(torch.tanh(h))


def one_number(out, y):
    mean, log_var = out
    return 0.5 * (log_var + (y.double() - mean).square() / log_var.exp()).squeeze(1)


@case("regression with a variance: two heads, Gaussian likelihood", vec, None, one_number)
class Gauss(nn.Module):
    def __init__(s):
        super().__init__()
        s.l1, s.l2, s.mean, s.var = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 1), nn.Linear(12, 1)

    def forward(s, x):
        h = s.l1(x)
        mark(h)
        h = s.l2(F.silu(h))
        mark(h)
        h = F.silu(h)
        return s.mean(h), s.var(h)


@case("convolutions over a spectrogram, then a GRU, then a linear: CRNN", img, lambda h: h.flatten(1).norm(dim=1))
class Crnn(nn.Module):
    def __init__(s):
        super().__init__()
        s.cnn = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d((2, 1)), nn.Conv2d(4, 6, 3, padding=1), nn.ReLU()
        )
        s.rnn, s.fc = nn.GRU(24, 8, batch_first=True), nn.Linear(8, C)

    def forward(s, x):
        for i, m in enumerate(s.cnn):
            x = m(x)
            if i in (0, 3):
                mark(x)
        h, _ = s.rnn(x.permute(0, 3, 1, 2).flatten(2))
        mark(h)
        return s.fc(h.mean(1))


# -- residual ones ---------------------------------------------------------------------------------------------


class Shown(nn.Module):
    def __init__(s):
        super().__init__()
        s.att, s.mlp, s.n = nn.MultiheadAttention(D, 2, batch_first=True), Mlp(), nn.LayerNorm(D)

    def forward(s, h, mask=None, output_attentions=False):
        z = s.n(h)
        a, w = s.att(z, z, z, attn_mask=mask)
        h = h + a
        h = h + s.mlp(h)
        return (h, w) if output_attentions else (h,)


stack(
    "2 block returns (h, weights), asked for by a flag",
    lambda s, h, b, i, h0: b(h, None, output_attentions=True)[0],
    Shown,
    ser,
    "mean",
    n=3,
)


@case("8 ConvMixer: a skip inside each part, a convolution between skips", img)
class ConvMixer(nn.Module):
    def __init__(s):
        super().__init__()
        s.net = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 8, 2, 2), nn.GELU(), nn.BatchNorm2d(8)),
            *[nn.Sequential(
                Skip(nn.Sequential(nn.Conv2d(8, 8, 3, groups=8, padding=1), nn.GELU(), nn.BatchNorm2d(8))),
                nn.Conv2d(8, 8, 1), nn.GELU(), nn.BatchNorm2d(8),
            ) for _ in range(3)],
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, C),
        )  # fmt: skip

    def forward(s, x):
        for i, m in enumerate(s.net):
            x = m(x)
            if i < 4:
                mark(x)
        return x


class Skip(nn.Module):
    def __init__(s, fn):
        super().__init__()
        s.fn = fn

    def forward(s, x):
        return s.fn(x) + x


class Wide(nn.Module):
    def __init__(s, a, b, stride):
        super().__init__()
        s.bn1, s.conv1, s.bn2 = nn.BatchNorm2d(a), nn.Conv2d(a, b, 3, stride, 1), nn.BatchNorm2d(b)
        s.conv2, s.equal = nn.Conv2d(b, b, 3, 1, 1), a == b
        s.shortcut = None if s.equal else nn.Conv2d(a, b, 1, stride)

    def forward(s, x):
        o = F.relu(s.bn1(x))
        if not s.equal:
            x = o
        o = s.conv2(F.dropout(F.relu(s.bn2(s.conv1(o))), 0.3, s.training))
        return torch.add(x if s.equal else s.shortcut(x), o)


class Group(nn.Module):
    def __init__(s, n, a, b, stride):
        super().__init__()
        s.layer = nn.Sequential(*[Wide(a if i == 0 else b, b, stride if i == 0 else 1) for i in range(n)])

    def forward(s, x):
        return s.layer(x)


@case("6 wide ResNet: groups of blocks as attributes, the activation shared with the shortcut", img)
class Wrn(nn.Module):
    def __init__(s):
        super().__init__()
        s.conv1 = nn.Conv2d(3, 4, 3, 1, 1)
        s.block1, s.block2, s.block3 = Group(2, 4, 8, 1), Group(2, 8, 12, 2), Group(2, 12, 16, 2)
        s.bn1, s.fc = nn.BatchNorm2d(16), nn.Linear(16, C)

    def forward(s, x):
        h = s.conv1(x)
        mark(h)
        for group in (s.block1, s.block2, s.block3):
            for b in group.layer:
                h = b(h)
                mark(h)
        return s.fc(F.avg_pool2d(F.relu(s.bn1(h)), 2).view(-1, 16))


class Rwkv(nn.Module):
    def __init__(s, first):
        super().__init__()
        s.ln0 = nn.LayerNorm(D) if first else None
        s.ln1, s.ln2, s.mix = nn.LayerNorm(D), nn.LayerNorm(D), nn.Parameter(torch.rand(D))
        s.r, s.k, s.v, s.up, s.down = (
            nn.Linear(D, D),
            nn.Linear(D, D),
            nn.Linear(D, D),
            nn.Linear(D, 2 * D),
            nn.Linear(2 * D, D),
        )

    def forward(s, x):
        if s.ln0 is not None:
            x = s.ln0(x)
        z = s.ln1(x)
        z = z * s.mix + F.pad(z, (0, 0, 1, -1)) * (1 - s.mix)
        x = x + torch.sigmoid(s.r(z)) * (s.k(z).exp() * s.v(z)).cumsum(1) / s.k(z).exp().cumsum(1)
        return x + s.down(F.relu(s.up(s.ln2(x))).square())


@case("6 RWKV: the first block has a norm of its own in front", words, "mean")
class RwkvNet(nn.Module):
    def __init__(s):
        super().__init__()
        s.emb, s.ln_out, s.head = nn.Embedding(20, D), nn.LayerNorm(D), nn.Linear(D, C)
        s.blocks = nn.ModuleList([Rwkv(i == 0) for i in range(3)])

    def forward(s, x):
        h = s.emb(x)
        mark(h)
        for b in s.blocks:
            h = b(h)
            mark(h)
        return s.head(s.ln_out(h).mean(1))


@case("8 RetNet: retentions, feed-forwards and their norms in four lists", ser, "mean")
class Ret(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.out = nn.Linear(6, D), nn.Linear(D, C)
        s.retentions = nn.ModuleList([Att() for _ in range(3)])
        s.ffns = nn.ModuleList([nn.Sequential(nn.Linear(D, 24), nn.GELU(), nn.Linear(24, D)) for _ in range(3)])
        s.norms_1, s.norms_2 = (nn.ModuleList([nn.LayerNorm(D) for _ in range(3)]) for _ in range(2))

    def forward(s, x):
        x = s.inp(x)
        mark(x)
        for i in range(3):
            y = s.retentions[i](s.norms_1[i](x)) + x
            mark(y)
            x = s.ffns[i](s.norms_2[i](y)) + y
            mark(x)
        return s.out(x.mean(1))


class Conditioned(nn.Module):
    def __init__(s):
        super().__init__()
        s.n, s.ada, s.f = (
            nn.LayerNorm(D, elementwise_affine=False),
            nn.Linear(D, 3 * D),
            nn.Sequential(nn.Linear(D, 24), nn.SiLU(), nn.Linear(24, D)),
        )

    def forward(s, h, t):
        shift, scale, gate = s.ada(F.silu(t)).chunk(3, -1)
        return h + gate * s.f(s.n(h) * (1 + scale) + shift)


@case(
    "2 DiT: blocks are scaled, shifted and gated by an embedding of the time",
    lambda: ({"x": vec()[0], "t": torch.arange(6)}, labels()),
)
class Dit(nn.Module):
    def __init__(s):
        super().__init__()
        s.x_embedder, s.t_embedder = nn.Linear(6, D), nn.Sequential(nn.Embedding(6, D), nn.SiLU(), nn.Linear(D, D))
        s.blocks, s.final = nn.ModuleList([Conditioned() for _ in range(3)]), nn.Linear(D, C)

    def forward(s, x, t):
        h, c = s.x_embedder(x), s.t_embedder(t)
        mark(h)
        for b in s.blocks:
            h = b(h, c)
            mark(h)
        return s.final(h)


@case("3 nn.TransformerEncoder, tokens first, class token prepended", ser, lambda h: h[0].norm(dim=1))
class Encoded(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.cls, s.out = nn.Linear(6, D), nn.Parameter(torch.randn(1, 1, D)), nn.Linear(D, C)
        s.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 2, 24), 3, enable_nested_tensor=False)

    def forward(s, x):
        h = s.inp(x.transpose(0, 1))
        return s.out(s.encoder(torch.cat([s.cls.expand(-1, h.shape[1], -1), h]))[0])


ALL[-1] = Case(ALL[-1].name, SET, Encoded, ser, outputs("encoder.layers", 3), ALL[-1].reads)


@case("2 nn.TransformerDecoder: queries attend to the input's memory in every layer", ser)
class Decoded(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.queries, s.out = nn.Linear(6, D), nn.Parameter(torch.randn(4, D)), nn.Linear(D, C)
        s.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(D, 2, 24, batch_first=True, norm_first=True), 3)

    def forward(s, x):
        q = s.queries.unsqueeze(0).repeat(len(x), 1, 1)
        return s.out(s.decoder(q, s.inp(x)).mean(1))


ALL[-1] = Case(ALL[-1].name, SET, Decoded, ser, outputs("decoder.layers", 3), "mean")


@case("8 tabular ResNet: a ModuleDict of parts a layer, called by name in the network")
class TabResnet(nn.Module):
    def __init__(s):
        super().__init__()
        s.first_layer, s.last_normalization, s.head = nn.Linear(6, D), nn.BatchNorm1d(D), nn.Linear(D, C)
        s.layers = nn.ModuleList(
            [
                nn.ModuleDict({"norm": nn.BatchNorm1d(D), "linear0": nn.Linear(D, 24), "linear1": nn.Linear(24, D)})
                for _ in range(3)
            ]
        )

    def forward(s, x):
        x = s.first_layer(x)
        mark(x)
        for layer in s.layers:
            z = layer["linear0"](layer["norm"](x))
            z = layer["linear1"](F.dropout(F.relu(z), 0.2, s.training))
            x = x + z
            mark(x)
        return s.head(F.relu(s.last_normalization(x)))


class Ssm(nn.Module):
    def __init__(s):
        super().__init__()
        s.kernel, s.mix = nn.Parameter(torch.randn(D, 7) * 0.3), nn.Conv1d(D, 2 * D, 1)

    def forward(s, u):
        k = torch.fft.rfft(s.kernel, n=14)
        y = torch.fft.irfft(torch.fft.rfft(u, n=14) * k, n=14)[..., :7]
        return F.glu(s.mix(F.gelu(y)), dim=1), None


@case("7 S4: (B, d, T), the norm after the sum on the transposed state", ser, lambda h: h.norm(dim=1).mean(1))
class S4(nn.Module):
    def __init__(s):
        super().__init__()
        s.encoder, s.decoder = nn.Linear(6, D), nn.Linear(D, C)
        s.s4_layers, s.norms = (
            nn.ModuleList([Ssm() for _ in range(3)]),
            nn.ModuleList([nn.LayerNorm(D) for _ in range(3)]),
        )
        s.dropouts = nn.ModuleList([nn.Dropout1d(0.1) for _ in range(3)])

    def forward(s, x):
        x = s.encoder(x).transpose(-1, -2)
        mark(x)
        for layer, norm, dropout in zip(s.s4_layers, s.norms, s.dropouts):
            z, _ = layer(x)
            x = norm((dropout(z) + x).transpose(-1, -2)).transpose(-1, -2)
            mark(x)
        return s.decoder(x.transpose(-1, -2).mean(dim=1))


class Rotary(nn.Module):
    def __init__(s):
        super().__init__()
        s.n, s.wq, s.wk, s.wv, s.wo, s.mlp = nn.RMSNorm(D), *(nn.Linear(D, D, bias=False) for _ in range(4)), Mlp()

    def forward(s, x, start_pos, freqs_cis, mask):
        z = s.n(x)
        turn = lambda q: torch.view_as_real(torch.view_as_complex(q.unflatten(-1, (-1, 2))) * freqs_cis).flatten(-2)
        scores = turn(s.wq(z)) @ turn(s.wk(z)).transpose(1, 2) / D**0.5 + mask
        h = x + s.wo(scores.softmax(-1) @ s.wv(z))
        return h + s.mlp(h)


@case(
    "2 LLaMA: position, complex rotations and a mask handed to every block",
    words,
    "mean",
    lambda out, y: F.cross_entropy(out.mean(1), y, reduction="none"),
)
class Llama(nn.Module):
    def __init__(s):
        super().__init__()
        s.tok_embeddings, s.norm, s.output = nn.Embedding(20, D), nn.RMSNorm(D), nn.Linear(D, C, bias=False)
        s.layers = nn.ModuleList([Rotary() for _ in range(3)])
        s.freqs_cis = torch.polar(
            torch.ones(7, 6, dtype=torch.float64),
            torch.outer(torch.arange(7.0).double(), torch.rand(6, dtype=torch.float64)),
        )

    def forward(s, tokens, start_pos=0):
        h = s.tok_embeddings(tokens)
        mark(h)
        mask = torch.full((7, 7), float("-inf"), dtype=h.dtype).triu(1)
        for layer in s.layers:
            h = layer(h, start_pos, s.freqs_cis[start_pos : start_pos + 7], mask)
            mark(h)
        return s.output(s.norm(h))


class Window(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.att, s.mlp = Att(d), Mlp(d)

    def forward(s, x, H, W):
        b, n, c = x.shape
        windows = x.view(b, H // 2, 2, W // 2, 2, c).transpose(2, 3).reshape(-1, 4, c)
        back = s.att(windows).view(b, H // 2, W // 2, 2, 2, c).transpose(2, 3).reshape(b, n, c)
        x = x + back
        return x + s.mlp(x)


class Layer(nn.Module):
    def __init__(s, d, down):
        super().__init__()
        s.blocks = nn.ModuleList([Window(d), Window(d)])
        s.downsample = nn.Linear(4 * d, 2 * d) if down else None

    def forward(s, x, H, W):
        for b in s.blocks:
            x = b(x, H, W)
            mark(x)
        if s.downsample is None:
            return x, H, W
        x = x.view(len(x), H // 2, 2, W // 2, 2, -1).transpose(2, 3).flatten(3).flatten(1, 2)
        return s.downsample(x), H // 2, W // 2


@case("6 Swin by hand: blocks take height and width, stages return them", img, "mean")
class Swin(nn.Module):
    def __init__(s):
        super().__init__()
        s.patch_embed, s.norm, s.head = nn.Conv2d(3, 8, 2, 2), nn.LayerNorm(16), nn.Linear(16, C)
        s.layers = nn.ModuleList([Layer(8, True), Layer(16, False)])

    def forward(s, x):
        x = s.patch_embed(x)
        H, W = x.shape[2:]
        x = x.flatten(2).transpose(1, 2)
        mark(x)
        for layer in s.layers:
            x, H, W = layer(x, H, W)
        return s.head(s.norm(x).mean(1))


@case("8 residual MLP that is trained by blocks: detached in training, a head at each block")
class GreedyResidual(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.blocks = nn.Linear(6, D), nn.ModuleList([Pre() for _ in range(4)])
        s.heads = nn.ModuleList([nn.Linear(D, C) for _ in range(4)])

    def forward(s, x):
        h = s.inp(x)
        mark(h)
        outs = []
        for b, head in zip(s.blocks, s.heads):
            h = b(h.detach() if s.training else h)
            mark(h)
            outs.append(head(h))
        return outs if s.training else outs[-1]


@case(
    "8 time series: every block two dilated convolutions and a 1x1 skip, Sequential of Sequentials",
    lambda: (torch.randn(6, 3, 10, generator=generator(41), dtype=torch.float64), labels()),
    lambda h: h.norm(dim=1).mean(1),
)
class Series(nn.Module):
    class Part(nn.Module):
        def __init__(s, a, b, d):
            super().__init__()
            s.net = nn.Sequential(
                nn.Conv1d(a, b, 3, padding=d, dilation=d),
                nn.BatchNorm1d(b),
                nn.ReLU(),
                nn.Conv1d(b, b, 3, padding=d, dilation=d),
                nn.BatchNorm1d(b),
            )
            s.skip = nn.Conv1d(a, b, 1) if a != b else nn.Identity()

        def forward(s, x):
            return F.relu(s.net(x) + s.skip(x))

    def __init__(s):
        super().__init__()
        s.stem = nn.Conv1d(3, 4, 1)
        s.stages = nn.Sequential(
            nn.Sequential(s.Part(4, 8, 1), s.Part(8, 8, 2)), nn.Sequential(s.Part(8, 12, 1), s.Part(12, 12, 2))
        )
        s.head = nn.Linear(12, C)

    def forward(s, x):
        h = s.stem(x)
        mark(h)
        for stage in s.stages:
            for part in stage:
                h = part(h)
                mark(h)
        return s.head(h.mean(-1))


# -- libraries -------------------------------------------------------------------------------------------------


def pictures(size=16, n=4, name=None):
    """Return a function that makes a batch of images."""

    def batch():
        x = torch.randn(n, 3, size, size, generator=generator(1), dtype=torch.float64)
        return ({name: x} if name else x), torch.arange(n) % C

    return batch


def series(t=8, d=16):
    """Return a function that makes a batch of sequences of vectors."""
    return lambda: (torch.randn(4, t, d, generator=generator(1), dtype=torch.float64), torch.arange(4) % C)


def text(t=8, per_token=True):
    """Return a function that makes a batch of tokens, and a label for each of them or for all."""

    def batch():
        x = torch.randint(4, 20, (4, t), generator=generator(1))
        return x, torch.randint(4, 20, (4, t), generator=generator(2)) if per_token else torch.arange(4) % C

    return batch


class Pooled(nn.Module):
    """A body of a library between a stem and a readout."""

    def __init__(s, body, d=16, out=None, axis=1):
        super().__init__()
        s.stem, s.body, s.head, s.axis = nn.Linear(16, d), body, nn.Linear(out or d, C), axis

    def forward(s, x):
        h = s.body(s.stem(x))
        h = h[0] if isinstance(h, tuple) else h
        return s.head(h.mean(s.axis))


def units(*counts):
    """Return the sites of pytorchcv's stages of units."""
    paths = [f"features.stage{i + 1}.unit{j + 1}" for i, n in enumerate(counts) for j in range(n)]
    return (f"in:{paths[0]}", *paths)


def _pytorchcv():
    def of(module, name, sites, size=16, **config):
        make = lambda: getattr(importlib.import_module(f"pytorchcv.models.{module}"), name)(
            num_classes=C, in_size=(size, size), **config
        )
        return Case(f"pytorchcv {name}", SET, make, pictures(size), sites)

    stages, deep = [[8, 8], [12, 12]], {"init_block_channels": 8, "bottleneck": False}
    yield of("resnet_cifar", "CIFARResNet", units(2, 2), channels=stages, **deep)
    yield of("preresnet_cifar", "CIFARPreResNet", units(2, 2), channels=stages, **deep)
    yield of("wrn_cifar", "CIFARWRN", units(2, 2), channels=stages, init_block_channels=8)
    yield of("pyramidnet_cifar", "CIFARPyramidNet", units(2, 2), channels=[[8, 10], [12, 14]], **deep)
    yield of("seresnet_cifar", "CIFARSEResNet", units(2, 2), channels=[[16, 16], [32, 32]], **deep)
    yield of(
        "resdropresnet_cifar",
        "CIFARResDropResNet",
        units(2, 2),
        channels=stages,
        life_probs=[0.9, 0.8, 0.7, 0.6],
        **deep,
    )
    yield of("shakeshakeresnet_cifar", "CIFARShakeShakeResNet", units(2, 2), channels=stages, **deep)


def _more():
    from of_transformers import KV, SMALL, TEXT, WORDS, both, ids, language, model_of

    gqa = {**SMALL, "vocab_size": WORDS, "max_position_embeddings": 32, "pad_token_id": 1, **KV}
    from fifth_libraries import eager

    for name, config, path in (
        (
            "JambaForCausalLM",
            {
                **gqa,
                "num_experts": 2,
                "num_experts_per_tok": 1,
                "attn_layer_period": 2,
                "attn_layer_offset": 1,
                "expert_layer_period": 2,
                "expert_layer_offset": 1,
                "mamba_d_state": 4,
                "mamba_dt_rank": 2,
                "use_mamba_kernels": False,
            },
            "model.layers",
        ),
        ("RecurrentGemmaForCausalLM", {**gqa, "lru_width": 16, "attention_window_size": 8}, "model.layers"),
        (
            "CTRLLMHeadModel",
            {"vocab_size": WORDS, "n_positions": 32, "n_embd": 16, "dff": 32, "n_layer": 3, "n_head": 2},
            "transformer.h",
        ),
        (
            "OpenAIGPTLMHeadModel",
            {"vocab_size": WORDS, "n_positions": 32, "n_embd": 16, "n_layer": 3, "n_head": 2},
            "transformer.h",
        ),
        (
            "DeepseekV3ForCausalLM",
            {
                **SMALL,
                "vocab_size": WORDS,
                "max_position_embeddings": 32,
                "num_key_value_heads": 2,
                "q_lora_rank": 8,
                "kv_lora_rank": 8,
                "qk_rope_head_dim": 4,
                "qk_nope_head_dim": 4,
                "v_head_dim": 8,
                "n_routed_experts": 4,
                "num_experts_per_tok": 2,
                "n_group": 1,
                "topk_group": 1,
                "first_k_dense_replace": 1,
                "moe_intermediate_size": 16,
            },
            "model.layers",
        ),
        ("XLMRobertaXLForMaskedLM", TEXT, "roberta.encoder.layer"),
    ):
        loss = None if "Masked" in name else next_token
        yield Case(name, SET, eager(model_of(name, config)), language, outputs(path, 3), "mean", loss)
    yield Case(
        "Data2VecTextForSequenceClassification",
        SET,
        model_of("Data2VecTextForSequenceClassification", TEXT),
        ids,
        outputs("data2vec_text.encoder.layer", 3),
        0,
    )
    xlnet = {"vocab_size": WORDS, "d_model": 16, "n_layer": 3, "n_head": 2, "d_inner": 32, "num_labels": 5}
    yield Case(
        "XLNetForSequenceClassification",
        SET,
        model_of("XLNetForSequenceClassification", xlnet),
        ids,
        outputs("transformer.layer", 3),
        lambda h: h[-1].norm(dim=1),
    )
    marian = {
        "vocab_size": WORDS,
        "d_model": 16,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "max_position_embeddings": 32,
        "pad_token_id": 1,
        "decoder_start_token_id": 1,
    }
    yield Case(
        "MarianMTModel", SET, model_of("MarianMTModel", marian), both, outputs("model.decoder.layers", 3), "mean"
    )


def _small():
    def of(module, make, batch, sites, reads="mean", loss=None):
        return Case(
            f"{module}", SET, lambda: make(importlib.import_module(module.split()[0])), batch, sites, reads, loss
        )

    def parts(container, n, k=2, end=None):
        """Return the inputs of branches that the network adds: container.i.j, then what is behind the last."""
        return (*(f"in:{container}.{i}.{j}" for i in range(n) for j in range(k)), end)

    class Ended(nn.Module):
        """A body whose end is a module, so that it can be named."""

        def __init__(s, body):
            super().__init__()
            s.stem, s.body, s.end, s.head = nn.Linear(16, 16), body, nn.Identity(), nn.Linear(16, C)

        def forward(s, x):
            return s.head(s.end(s.body(s.stem(x))).mean(1))

    yield of(
        "nystrom_attention",
        lambda m: Ended(
            m.Nystromformer(dim=16, depth=3, dim_head=8, heads=2, num_landmarks=4, attn_values_residual_conv_kernel=3)
        ),
        series(),
        parts("body.layers", 3, 2, "in:end"),
    )
    yield of(
        "gateloop_transformer",
        lambda m: m.Transformer(16, num_tokens=20, depth=3, heads=2, dim_head=8, use_gate_looped_attn=False),
        text(),
        ("in:layers.0.0", *(f"layers.{i}.{j}" for i in range(3) for j in (0, 1))),
    )
    config = lambda: importlib.import_module("mambapy.mamba").MambaConfig(
        d_model=16, n_layers=3, d_state=4, pscan=False
    )
    yield of("mambapy.mamba", lambda m: Pooled(m.Mamba(config())), series(), outputs("body.layers", 3))
    yield of(
        "siren_pytorch",
        lambda m: m.SirenNet(6, 12, C, 3, w0_initial=2.0),
        vec,
        ("layers.0", "layers.1", "layers.2"),
        None,
    )
    yield of(
        "linear_attention_transformer",
        lambda m: m.LinearAttentionTransformerLM(
            num_tokens=20, dim=16, depth=3, max_seq_len=8, heads=2, dim_head=8, local_attn_window_size=4
        ),
        text(),
        parts("transformer.layers.layers", 3, 2, "in:norm"),
    )
    yield of(
        "res_mlp_pytorch",
        lambda m: m.ResMLP(image_size=16, patch_size=4, dim=16, depth=3, num_classes=C),
        pictures(),
        ("in:2.0", *(f"{i}.{j}" for i in (2, 3, 4) for j in (0, 1))),
    )
    yield of(
        "timesformer_pytorch",
        lambda m: m.TimeSformer(
            dim=16,
            num_frames=2,
            num_classes=C,
            image_size=8,
            patch_size=4,
            depth=2,
            heads=2,
            dim_head=8,
            rotary_emb=False,
        ),
        lambda: (torch.randn(4, 2, 3, 8, 8, generator=generator(1), dtype=torch.float64), torch.arange(4) % C),
        (*(f"in:layers.{i}.{j}" for i in (0, 1) for j in (0, 1, 2)), "in:to_out"),
        0,
    )
    yield of("esm", lambda m: m.ESM2(3, 16, 2), text(), outputs("layers", 3), lambda h: h.norm(dim=2).mean(0))
    yield of(
        "efficientnet_pytorch", _efficient, pictures(64), ("in:_blocks.0", *(f"_blocks.{i}" for i in range(16))), None
    )
    yield of(
        "clip.model ResNet",
        lambda m: Headed(m.ModifiedResNet((1, 1, 1, 1), 8, 2, 32, 4), 8),
        pictures(32),
        ("in:body.layer1.0", *(f"body.layer{i}.0" for i in (1, 2, 3, 4))),
        None,
    )
    yield of(
        "open_clip.transformer",
        lambda m: Headed(m.VisionTransformer(16, 4, 16, 3, 2, 2.0, ls_init_value=0.1, output_dim=12), 12),
        pictures(),
        outputs("body.transformer.resblocks", 3),
        0,
    )
    yield of(
        "segformer_pytorch",
        lambda m: Segmented(
            m.Segformer(
                dims=(8, 8, 16, 16), heads=(1, 1, 2, 2), ff_expansion=2, num_layers=1, decoder_dim=16, num_classes=C
            )
        ),
        pictures(64),
        (),
        None,
    )
    yield of(
        "graph_transformer_pytorch",
        lambda m: Nodes(m.GraphTransformer(dim=16, depth=3, dim_head=8, heads=2, with_feedforwards=True)),
        series(),
        ("in:body.layers.0.0.0", *(f"body.layers.{i}.{j}.1" for i in range(3) for j in (0, 1))),
    )
    yield of("egnn_pytorch", lambda m: Points(m.EGNN_Network(depth=3, dim=16, m_dim=8)), series(), ())
    yield of(
        "axial_attention",
        lambda m: Image(m.AxialImageTransformer(dim=16, depth=1, heads=2, reversible=False)),
        pictures(),
        (*(f"in:body.layers.blocks.{i}.{j}" for i in (0, 1) for j in (0, 1)), "in:end"),
        None,
    )
    yield of("spikingjelly.activation_based", _jelly, vec, (), None)
    yield of(
        "segmentation_models_pytorch",
        lambda m: m.Unet("resnet18", encoder_weights=None, classes=C, decoder_channels=(16, 16, 8, 8, 8)),
        pictures(32),
        ("in:encoder.layer1.0", *(f"encoder.layer{i}.{j}" for i in (1, 2, 3, 4) for j in (0, 1))),
        None,
        lambda out, y: F.cross_entropy(out, y[:, None, None].expand(-1, 32, 32), reduction="none").mean((1, 2)),
    )


def _efficient(m):
    return m.EfficientNet.from_name("efficientnet-b0", num_classes=C)


class Headed(nn.Module):
    """An encoder of a library, and a readout."""

    def __init__(s, body, d):
        super().__init__()
        s.body, s.head = body, nn.Linear(d, C)

    def forward(s, x):
        return s.head(s.body(x))


class Segmented(nn.Module):
    def __init__(s, body):
        super().__init__()
        s.body = body

    def forward(s, x):
        return s.body(x).mean((2, 3))


class Nodes(nn.Module):
    def __init__(s, body):
        super().__init__()
        s.stem, s.body, s.head = nn.Linear(16, 16), body, nn.Linear(16, C)

    def forward(s, x):
        edges = torch.ones(len(x), x.shape[1], x.shape[1], 16, dtype=x.dtype)
        return s.head(s.body(s.stem(x), edges)[0].mean(1))


class Points(nn.Module):
    def __init__(s, body):
        super().__init__()
        s.stem, s.body, s.head = nn.Linear(16, 16), body, nn.Linear(16, C)

    def forward(s, x):
        return s.head(s.body(s.stem(x), x[..., :3])[0].mean(1))


class Image(nn.Module):
    def __init__(s, body):
        super().__init__()
        s.stem, s.body, s.end, s.head = nn.Conv2d(3, 16, 4, 4), body, nn.Identity(), nn.Linear(16, C)

    def forward(s, x):
        return s.head(s.end(s.body(s.stem(x))).mean((2, 3)))


def _jelly(module):
    layer, neuron = (importlib.import_module(f"spikingjelly.activation_based.{name}") for name in ("layer", "neuron"))

    class Net(nn.Module):
        def __init__(s):
            super().__init__()
            s.layer = nn.Sequential(
                layer.Linear(6, 12),
                neuron.IFNode(v_reset=None),
                layer.Linear(12, 10),
                neuron.IFNode(v_reset=None),
                layer.Linear(10, C),
            )

        def forward(s, x):
            for m in s.layer:
                if hasattr(m, "reset"):
                    m.reset()
            for i, m in enumerate(s.layer):
                x = m(x)
                if i in (0, 2):
                    mark(x)
            return x

    return Net()


def cases():
    """Yield the networks; those of libraries where they are installed."""
    yield from ALL
    for library, found in (("timm", _more), ("pytorchcv", _pytorchcv), ("mambapy", _small)):
        try:
            importlib.import_module(library)
        except ImportError:
            continue
        yield from found()
