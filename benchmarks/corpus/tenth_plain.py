"""An eighth unseen set, plain networks in the manner of public code; sites were written before a reading."""

# ruff: noqa: D101, D106, E731  # a network is a few lines, and its case names it

from __future__ import annotations

import itertools
from collections import OrderedDict

import torch
import torch.nn.functional as F
from case import Case, by_hand_now, cut, mark
from small import C, collector, generator, img, inputs, labels, ser, vec, words
from torch import nn

SET = "eighth set"
ALL, case = collector(SET)


def ratings():
    """Return users and items by number."""
    draw = lambda seed: torch.randint(20, (6,), generator=generator(seed))
    return {"user": draw(71), "item": draw(72)}, labels()


def clicks():
    """Return dense features, and one index per table."""
    x, y = inputs(73, 6)()
    return {"dense": x, "sparse": torch.randint(10, (6, 3), generator=generator(74))}, y


def sentences():
    """Return words and how many of them count."""
    x, y = words()
    return {"text": x, "lengths": torch.tensor([7, 6, 5, 4, 3, 2])}, y


def bags():
    """Return bags of instances."""
    return inputs(75, 5, 6)()


def patches():
    """Return pictures large enough for three poolings."""
    return inputs(76, 3, 16, 16)()


# -- local learning rules --------------------------------------------------------------------------------------


class FFLayer(nn.Linear):
    """A layer that trains itself: its optimiser is an attribute."""

    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.relu = nn.ReLU()
        self.opt = torch.optim.Adam(self.parameters(), lr=0.03)
        self.threshold, self.num_epochs = 2.0, 1000

    def forward(self, x):
        x_direction = x / (x.norm(2, 1, keepdim=True) + 1e-4)
        return self.relu(super().forward(x_direction))


@case("forward-forward: predict by the goodness of every label, layers with an optimiser inside")
class FFNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([FFLayer(6 + C, 12), FFLayer(12, 12), FFLayer(12, 12)])

    def forward(self, x):
        goodness_per_label = []
        for label in range(C):
            h = torch.cat([F.one_hot(torch.full((len(x),), label), C).to(x.dtype), x], 1)
            goodness = []
            for layer in self.layers:
                h = layer(h)
                mark(h)
                goodness += [h.pow(2).mean(1)]
            goodness_per_label += [sum(goodness).unsqueeze(1)]
        return torch.cat(goodness_per_label, 1)


@case("forward-forward: goodness of all layers but the first, averaged, one pass with a neutral label")
class FFNeutral(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.ModuleList([nn.Linear(6 + C, 20), nn.Linear(20, 20), nn.Linear(20, 20)])
        self.classifier = nn.Linear(40, C, bias=False)
        self.act = nn.ReLU()

    @staticmethod
    def _layer_norm(z, eps=1e-8):
        return z / (torch.sqrt(torch.mean(z**2, dim=-1, keepdim=True)) + eps)

    def forward(self, x):
        z = torch.cat([torch.full((len(x), C), 1.0 / C, dtype=x.dtype), x], 1)
        z, kept = self._layer_norm(z), []
        for i, layer in enumerate(self.fc):
            z = layer(z)
            mark(z)
            z = self._layer_norm(self.act(z))
            if i >= 1:
                kept.append(z)
        return self.classifier(torch.cat(kept, -1))


class LocalLossBlockLinear(nn.Module):
    """A layer with two local losses: one predicts, one compares similarities."""

    def __init__(self, num_in, num_out, num_classes):
        super().__init__()
        self.num_classes = num_classes
        self.encoder = nn.Linear(num_in, num_out, bias=True)
        self.bn = nn.BatchNorm1d(num_out)
        self.nonlin, self.dropout = nn.ReLU(inplace=True), nn.Dropout(p=0.2)
        self.decoder_y = nn.Linear(num_out, num_classes)
        self.linear_loss = nn.Linear(num_out, num_out, bias=False)

    def forward(self, x, y=None, y_onehot=None):
        h = self.encoder(x)
        mark(h)
        h = self.nonlin(self.bn(h))
        h_return = self.dropout(h)
        if self.training and y is not None:
            rh = self.linear_loss(h)
            loss = F.cross_entropy(self.decoder_y(h), y) + F.mse_loss(rh @ rh.t(), y_onehot @ y_onehot.t())
            loss.backward()
            h_return = h_return.detach()
        else:
            loss = 0.0
        return h_return, loss


class LocalLossBlockConv(nn.Module):
    def __init__(self, ch_in, ch_out, num_classes):
        super().__init__()
        self.encoder = nn.Conv2d(ch_in, ch_out, 3, padding=1)
        self.bn, self.nonlin = nn.BatchNorm2d(ch_out), nn.ReLU(inplace=True)
        self.conv_loss, self.decoder_y = nn.Conv2d(ch_out, ch_out, 3, padding=1), nn.Linear(ch_out, num_classes)

    def forward(self, x, y=None, y_onehot=None):
        h = self.encoder(x)
        mark(h)
        h = self.nonlin(self.bn(h))
        if self.training and y is not None:
            loss = F.cross_entropy(self.decoder_y(h.mean((2, 3))), y)
            loss.backward()
            return h.detach(), loss
        return h, 0.0


@case("local losses: VGG of blocks that return (h, loss), pooling between, isinstance in the loop", img)
class LocalVgg(nn.Module):
    def __init__(self):
        super().__init__()
        layers, c = [], 3
        for v in (8, "M", 12, "M"):
            if v == "M":
                layers.append(nn.MaxPool2d(2, 2))
            else:
                layers, c = [*layers, LocalLossBlockConv(c, v, C)], v
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(LocalLossBlockLinear(48, 12, C), nn.Linear(12, C))

    def forward(self, x, y=None, y_onehot=None):
        loss_total = 0.0
        for layer in self.features:
            if isinstance(layer, LocalLossBlockConv):
                x, loss = layer(x, y, y_onehot)
                loss_total += loss
            else:
                x = layer(x)
        x = x.view(x.size(0), -1)
        x, loss = self.classifier[0](x, y, y_onehot)
        return self.classifier[1](x), loss_total + loss


class GreedyStage(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.model = nn.Sequential(nn.Conv2d(cin, cout, 3, 2, 1), nn.BatchNorm2d(cout), nn.LeakyReLU(0.2))

    def forward(self, x):
        h = self.model[0](x)
        mark(h)
        return self.model[2](self.model[1](h))


@case("greedy stages: every stage is given a detached input, also in eval mode", img)
class GreedyDetached(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleList([GreedyStage(3, 8), GreedyStage(8, 8), GreedyStage(8, 12)])
        self.fc = nn.Linear(12, C)

    def forward(self, x):
        for module in self.encoder:
            x = cut(module(x))
        return self.fc(x.flatten(1))


class SigLayer(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.layer, self.proj = nn.Linear(a, b), nn.Linear(C, b)

    def forward(self, h, t):
        a, p = self.layer(h), self.proj(t)
        mark(a)
        mark(p)
        return torch.relu(a), torch.relu(p)


def with_context():
    """Return inputs, and a context per sample."""
    x, y = vec()
    return {"x": x, "context": F.one_hot(y.flip(0), C).double()}, y


@case("signal propagation: a layer carries input and context, the answer is their product", with_context)
class SigProp(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = SigLayer(6, 12), nn.Linear(12, 10)
        self.out = nn.Linear(10, C)

    def forward(self, x, context):
        h, t = self.first(x, context)
        z = self.second(h * t)
        mark(z)
        return self.out(F.elu(z))


class HebbConv2d(nn.Module):
    """A convolution that a Hebbian rule trains: its weight is a buffer."""

    def __init__(self, cin, cout, k, t_invert=12.0):
        super().__init__()
        self.register_buffer("weight", torch.randn(cout, cin, k, k) * 0.3)
        self.t_invert, self.pad = t_invert, k // 2

    def forward(self, x):
        x = F.pad(x, (self.pad,) * 4, mode="reflect")
        return F.conv2d(x, self.weight)


class Triangle(nn.Module):
    def __init__(self, power=1.0):
        super().__init__()
        self.power = power

    def forward(self, x):
        return F.relu(x - x.mean(dim=1, keepdim=True)) ** self.power


@case("Hebbian convolutions whose weights are buffers, triangle activation, a linear classifier", img)
class SoftHebb(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(3, affine=False)
        self.conv1, self.act1, self.pool1 = HebbConv2d(3, 8, 3), Triangle(0.7), nn.MaxPool2d(2)
        self.bn2 = nn.BatchNorm2d(8, affine=False)
        self.conv2, self.act2, self.pool2 = HebbConv2d(8, 12, 3), Triangle(1.4), nn.AvgPool2d(2)
        self.classifier = nn.Linear(48, C)

    def forward(self, x):
        a = self.conv1(self.bn1(x))
        mark(a)
        out = self.pool1(self.act1(a))
        b = self.conv2(self.bn2(out))
        mark(b)
        out = self.pool2(self.act2(b))
        return self.classifier(out.view(len(out), -1))


class PCBlock(nn.Module):
    """Predictive coding: a prediction upwards, and states that relax towards it."""

    def __init__(self, size_in, size_out, act=torch.tanh):
        super().__init__()
        self.fc, self.act, self.x = nn.Linear(size_in, size_out), act, None

    def forward(self, x):
        mu = self.fc(x)
        mark(mu)
        self.x = mu.detach().clone() if self.training else None
        return self.act(mu)


@case("predictive coding: nn.Sequential of Sequentials of one layer and its activation")
class PcSequential(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(
            nn.Sequential(PCBlock(6, 16), nn.Identity()),
            nn.Sequential(PCBlock(16, 12), nn.Dropout(0.1)),
            nn.Sequential(nn.Linear(12, C)),
        )

    def forward(self, x):
        depth = len(self.model)
        self.v = [None] * depth
        for ell in range(depth):
            x = self.v[ell] = self.model[ell](x)
        return x


@case("equilibrium propagation: states follow the gradient of an energy, taken inside of the forward pass")
class EnergyNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.synapses = nn.ModuleList([nn.Linear(6, 12), nn.Linear(12, C)])
        self.T = 3

    def phi(self, x, neurons, step):
        layers = [x, *neurons]
        total = 0.0
        for i, synapse in enumerate(self.synapses):
            drive = synapse(layers[i])
            if (step, i) in ((0, 1), (1, 0)):  # the answer reads no other but the last, which is the output layer
                mark(drive)
            total = total + (drive * layers[i + 1]).sum(1).squeeze()
        return total

    def forward(self, x):
        neurons = [torch.full((len(x), n), 0.1, dtype=x.dtype, requires_grad=True) for n in (12, C)]
        for step in range(self.T):
            grads = torch.autograd.grad(self.phi(x, neurons, step).sum(), neurons, create_graph=True)
            neurons = [torch.tanh(g) for g in grads]
        return neurons[-1]


class FAFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, weight_fa, bias):
        ctx.save_for_backward(x, weight_fa)
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx, grad):
        x, weight_fa = ctx.saved_tensors
        return grad @ weight_fa, grad.t() @ x, None, grad.sum(0)


class FALinear(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(b, a) * 0.3), nn.Parameter(torch.zeros(b))
        self.weight_fa = nn.Parameter(self.weight.detach().sign() * 0.3, requires_grad=False)

    def forward(self, x):
        if by_hand_now():
            return F.linear(x, self.weight, self.bias)
        return FAFunction.apply(x, self.weight, self.weight_fa, self.bias)


@case("DTP: forward and feedback stacks, states are kept in a list, feedback runs only to make targets")
class Ddtp(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [6, 12, 12, 10, C]
        self.forward_layers = nn.ModuleList([nn.Linear(a, b) for a, b in itertools.pairwise(sizes)])
        self.feedback_layers = nn.ModuleList([nn.Linear(C, b) for b in sizes[1:-1]])
        self.activation = nn.ELU()
        self.states = []

    def targets(self, output):
        return [layer(output) for layer in self.feedback_layers]

    def forward(self, x):
        self.states = [x]
        for i, layer in enumerate(self.forward_layers):
            x = layer(self.states[-1])
            last = i == len(self.forward_layers) - 1
            if not last:
                mark(x)
            self.states.append(x if last else self.activation(x))
        return self.states[-1]


# -- recurrent -------------------------------------------------------------------------------------------------


@case("LSTM over a packed sequence, the last hidden state is read", sentences)
class PackedLstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 10, num_layers=1, batch_first=True)
        self.fc = nn.Linear(10, C)

    def forward(self, text, lengths):
        embedded = self.embedding(text)
        mark(embedded)
        packed = nn.utils.rnn.pack_padded_sequence(embedded, lengths, batch_first=True)
        _, (hidden, _) = self.lstm(packed)
        hidden = hidden.transpose(0, 1)
        mark(hidden)
        return self.fc(hidden[:, -1])


@case("bidirectional GRU with additive attention over its steps", words)
class AttnGru(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.gru = nn.GRU(8, 6, bidirectional=True, batch_first=True)
        self.attn, self.v, self.out = nn.Linear(12, 6), nn.Linear(6, 1, bias=False), nn.Linear(12, C)

    def forward(self, x):
        e = self.embed(x)
        mark(e)
        states, _ = self.gru(e)
        mark(states)
        a = self.attn(states)
        mark(a)
        score = self.v(torch.tanh(a))
        mark(score)
        context = (F.softmax(score, dim=1) * states).sum(1)
        return self.out(context)


class GRUCellByHand(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.x2h, self.h2h, self.b = nn.Linear(a, 3 * b), nn.Linear(b, 3 * b), b

    def forward(self, x, h):
        gx, gh = self.x2h(x), self.h2h(h)
        mark(gx)
        mark(gh)
        i_r, i_i, i_n = gx.chunk(3, 1)
        h_r, h_i, h_n = gh.chunk(3, 1)
        r, z = torch.sigmoid(i_r + h_r), torch.sigmoid(i_i + h_i)
        n = torch.tanh(i_n + r * h_n)
        return n + z * (h - n)


@case("GRU cell by hand: two linear layers a step, the gates by chunk", inputs(77, 3, 6))
class GruByHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.fc = GRUCellByHand(6, 10), nn.Linear(10, C)

    def forward(self, x):
        h = torch.zeros(len(x), 10, dtype=x.dtype)
        for t in range(x.size(1)):
            h = self.cell(x[:, t, :], h)
        return self.fc(h)


@case("convolutional LSTM: one convolution gives all gates, three frames", inputs(78, 3, 2, 6, 6))
class ConvLstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(2 + 4, 16, 3, padding=1), nn.Linear(4, C)

    def forward(self, x):
        h = c = x.new_zeros(len(x), 4, 6, 6)
        for t in range(x.shape[1]):
            gates = self.conv(torch.cat([x[:, t], h], dim=1))
            mark(gates)
            i, f, o, g = torch.split(gates, 4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return self.head(h.mean((2, 3)))


# -- the common ones -------------------------------------------------------------------------------------------


@case("the example of the tutorial: two convolutions, dropout, two linear layers, log-softmax", patches)
class MnistExample(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 3, 1), nn.Conv2d(6, 8, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(288, 16), nn.Linear(16, C)

    def forward(self, x):
        x = self.conv1(x)
        mark(x)
        x = F.relu(x)
        x = self.conv2(x)
        mark(x)
        x = self.dropout1(F.max_pool2d(F.relu(x), 2))
        x = self.fc1(torch.flatten(x, 1))
        mark(x)
        x = self.dropout2(F.relu(x))
        return F.log_softmax(self.fc2(x), dim=1)


class Dueling(nn.Module):
    def __init__(self):
        super().__init__()
        self.feature = nn.Sequential(nn.Linear(6, 16), nn.ReLU())
        self.value_stream = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 1))
        self.advantage_stream = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, C))

    def forward(self, x):
        f = self.feature(x)
        values, advantages = self.value_stream(f), self.advantage_stream(f)
        return values + (advantages - advantages.mean(1, keepdim=True))


ALL.append(
    Case("dueling Q-network: a value and an advantage are added", SET, Dueling, vec,
         ("feature.0", "value_stream.0", "advantage_stream.0"))
)  # fmt: skip


@case("neural matrix factorisation: two pairs of embeddings, a product and an MLP", ratings)
class NeuMf(nn.Module):
    def __init__(self):
        super().__init__()
        self.user_mf, self.item_mf = nn.Embedding(20, 8), nn.Embedding(20, 8)
        self.user_mlp, self.item_mlp = nn.Embedding(20, 6), nn.Embedding(20, 6)
        self.fc_layers = nn.ModuleList([nn.Linear(12, 10), nn.Linear(10, 8)])
        self.affine_output = nn.Linear(16, C)

    def forward(self, user, item):
        found = []
        for table, index in (
            (self.user_mlp, user),
            (self.item_mlp, item),
            (self.user_mf, user),
            (self.item_mf, item),
        ):
            e = table(index)
            mark(e)
            found.append(e)
        mlp, mf = torch.cat(found[:2], -1), torch.mul(*found[2:])
        for layer in self.fc_layers:
            mlp = layer(mlp)
            mark(mlp)
            mlp = F.relu(mlp)
        return self.affine_output(torch.cat([mlp, mf], -1))


@case("recommender: tables, a bottom MLP, pairwise dot products, a top MLP", clicks)
class Dlrm(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb_l = nn.ModuleList([nn.EmbeddingBag(10, 4, mode="sum") for _ in range(3)])
        self.bot_l = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU())
        self.top_l = nn.Sequential(nn.Linear(4 + 6, 8), nn.ReLU(), nn.Linear(8, C), nn.Sigmoid())

    def apply_emb(self, sparse):
        found = []
        for k, table in enumerate(self.emb_l):
            v = table(sparse[:, k].unsqueeze(1))
            mark(v)
            found.append(v)
        return found

    def forward(self, dense, sparse):
        a = self.bot_l[0](dense)
        mark(a)
        b = self.bot_l[2](self.bot_l[1](a))
        mark(b)
        x = self.bot_l[3](b)
        ly = self.apply_emb(sparse)
        T = torch.stack([x, *ly], dim=1)
        Z = torch.bmm(T, T.transpose(1, 2))
        li, lj = torch.tril_indices(4, 4, offset=-1)
        z = self.top_l[0](torch.cat([x, Z[:, li, lj]], dim=1))
        mark(z)
        return self.top_l[3](self.top_l[2](self.top_l[1](z)))


@case("multiple instances: gated attention over a bag, then a classifier", bags)
class GatedMil(nn.Module):
    def __init__(self):
        super().__init__()
        self.extractor = nn.Sequential(nn.Linear(6, 12), nn.ReLU())
        self.attention_V = nn.Sequential(nn.Linear(12, 8), nn.Tanh())
        self.attention_U = nn.Sequential(nn.Linear(12, 8), nn.Sigmoid())
        self.attention_w, self.classifier = nn.Linear(8, 1), nn.Sequential(nn.Linear(12, C))

    def forward(self, x):
        H = self.extractor[0](x)
        mark(H)
        H = self.extractor[1](H)
        V = self.attention_V[0](H)
        mark(V)
        U = self.attention_U[0](H)
        mark(U)
        A = self.attention_w(self.attention_V[1](V) * self.attention_U[1](U))
        mark(A)
        A = F.softmax(A.transpose(2, 1), dim=2)
        return self.classifier(torch.bmm(A, H).squeeze(1))


class FastKanLayer(nn.Module):
    """Radial basis functions and a linear layer, plus a base: both are added."""

    def __init__(self, a, b, grids=4):
        super().__init__()
        self.layernorm = nn.LayerNorm(a)
        self.register_buffer("grid", torch.linspace(-2.0, 2.0, grids))
        self.spline_linear, self.base_linear = nn.Linear(a * grids, b, bias=False), nn.Linear(a, b)

    def forward(self, x):
        basis = torch.exp(-(((self.layernorm(x)[..., None] - self.grid) / 1.3) ** 2))
        return self.spline_linear(basis.flatten(-2)) + self.base_linear(F.silu(x))


@case("KAN by radial basis functions: two linear parts of a layer are added")
class FastKan(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([FastKanLayer(6, 10), FastKanLayer(10, 8), FastKanLayer(8, C)])

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = layer(x)
            mark(x)
        return self.layers[-1](x)


@case("GoogLeNet: four branches of convolutions, concatenated, twice", img)
class TinyInception(nn.Module):
    class Inception(nn.Module):
        def __init__(self, cin, n1, n3r, n3, pool):
            super().__init__()
            self.b1 = nn.Sequential(nn.Conv2d(cin, n1, 1), nn.BatchNorm2d(n1), nn.ReLU(True))
            self.b2 = nn.Sequential(
                nn.Conv2d(cin, n3r, 1), nn.ReLU(True), nn.Conv2d(n3r, n3, 3, padding=1), nn.ReLU(True)
            )
            self.b4 = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(cin, pool, 1), nn.ReLU(True))

        @staticmethod
        def run(branch, x):
            for layer in branch:
                x = layer(x)
                if isinstance(layer, nn.Conv2d):
                    mark(x)
                    x = x.clone()
            return x

        def forward(self, x):
            return torch.cat([self.run(b, x) for b in (self.b1, self.b2, self.b4)], 1)

    def __init__(self):
        super().__init__()
        self.pre = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(True))
        self.a3, self.b3 = self.Inception(8, 4, 4, 6, 2), self.Inception(12, 4, 4, 6, 2)
        self.maxpool, self.linear = nn.MaxPool2d(2), nn.Linear(12 * 16, C)

    def forward(self, x):
        a = self.pre[0](x)
        mark(a)
        out = self.pre[2](self.pre[1](a))
        out = self.b3(self.maxpool(self.a3(out)))
        return self.linear(out.view(out.size(0), -1))


@case("parameters in a list, as meta-learning code has them: F.conv2d and F.linear by hand", img)
class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        shapes = [(8, 3, 3, 3), (8,), (12, 8, 3, 3), (12,), (C, 12), (C,)]
        self.vars = nn.ParameterList([nn.Parameter(torch.randn(s) * 0.2) for s in shapes])

    def forward(self, x, vars=None):
        w = self.vars if vars is None else vars
        x = F.conv2d(x, w[0], w[1], stride=2, padding=1)
        mark(x)
        x = F.conv2d(F.relu(x), w[2], w[3], stride=2, padding=1)
        mark(x)
        return F.linear(F.relu(x).mean((2, 3)), w[4], w[5])


@case("physics-informed: inputs are scaled, then a list of layers and tanh, the last one apart")
class Pinn(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [6, 12, 12, 12, C]
        self.lb, self.ub = -3.0, 3.0
        self.linears = nn.ModuleList([nn.Linear(layers[i], layers[i + 1]) for i in range(len(layers) - 1)])
        self.activation = nn.Tanh()
        for i in range(len(layers) - 1):
            nn.init.xavier_normal_(self.linears[i].weight.data)
            nn.init.zeros_(self.linears[i].bias.data)

    def forward(self, x):
        a = 2.0 * (x - self.lb) / (self.ub - self.lb) - 1.0
        for i in range(len(self.linears) - 1):
            z = self.linears[i](a)
            mark(z)
            a = self.activation(z)
        return self.linears[-1](a)


@case("PointNet: an input transform by its own small network, max over points", inputs(79, 3, 10))
class PointNet(nn.Module):
    class TNet(nn.Module):
        def __init__(self, k):
            super().__init__()
            self.k = k
            self.conv1, self.conv2 = nn.Conv1d(k, 8, 1), nn.Conv1d(8, 16, 1)
            self.fc1, self.fc2 = nn.Linear(16, 8), nn.Linear(8, k * k)
            self.bn1 = nn.BatchNorm1d(8)

        def forward(self, x):
            a = self.conv1(x)
            mark(a)
            b = self.conv2(F.relu(self.bn1(a)))
            mark(b)
            c = self.fc1(torch.max(F.relu(b), 2)[0])
            mark(c)
            d = self.fc2(F.relu(c))
            mark(d)
            return (d + torch.eye(self.k, dtype=d.dtype).flatten()[None]).view(-1, self.k, self.k)

    def __init__(self):
        super().__init__()
        self.stn, self.conv1, self.conv2 = self.TNet(3), nn.Conv1d(3, 8, 1), nn.Conv1d(8, 12, 1)
        self.fc1, self.fc2 = nn.Linear(12, 10), nn.Linear(10, C)

    def forward(self, x):
        trans = self.stn(x)
        x = torch.bmm(x.transpose(2, 1), trans).transpose(2, 1)
        a = self.conv1(x)
        mark(a)
        b = self.conv2(F.relu(a))
        mark(b)
        c = self.fc1(torch.max(F.relu(b), 2)[0])
        mark(c)
        return self.fc2(F.relu(c)), trans


ALL.append(
    Case("AlexNet for CIFAR: named features, local response norm, sign-symmetric output layer", SET,
         lambda: nn.Sequential(OrderedDict(
             features=nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.ReLU(), nn.LocalResponseNorm(3), nn.MaxPool2d(2),
                                    nn.Conv2d(8, 12, 3, 1, 1), nn.ReLU(), nn.LocalResponseNorm(3), nn.MaxPool2d(2)),
             flat=nn.Flatten(), classifier=nn.Sequential(nn.Dropout(), FALinear(48, 16), nn.ReLU(), FALinear(16, C)))),
         img, ("features.0", "features.4", "classifier.1"))
)  # fmt: skip


@case("seq2seq: a GRU encodes, a cell decodes two steps from its own answer, the last is the answer", ser)
class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.GRU(6, 10, batch_first=True), nn.GRUCell(C, 10)
        self.project = nn.Linear(10, C)

    def forward(self, x):
        _, hidden = self.encoder(x)
        hidden = hidden.transpose(0, 1)
        mark(hidden)
        h, y = hidden[:, 0], x.new_zeros(len(x), C)
        for step in range(2):
            h = self.decoder(y, h)
            mark(h)
            y = self.project(h)
            if step == 0:
                mark(y)
        return y


def cases():
    """Yield the networks."""
    yield from ALL
