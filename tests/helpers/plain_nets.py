"""Plain networks of many kinds, each with its forward pass once more by hand: the tensors at its sites, and logits.

`CASES` maps a name to a function that returns (network, inputs, by_hand). by_hand(network, inputs) uses neither hooks
nor the network's forward, so that gradients at its tensors are an independent derivation.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

B, D, C = 12, 8, 5  # samples, inputs, classes
CASES: dict[str, Any] = {}
SITES: dict[str, Any] = {}  # where sites are chosen, and not found
NAMES: dict[str, list[str]] = {}  # what the sites are called


def case(names, sites=None):
    def put(make):
        CASES[make.__name__], NAMES[make.__name__] = make, names.split()
        if sites is not None:
            SITES[make.__name__] = sites
        return make

    return put


def rows(width=D):
    return torch.randn(B, width)


def image(channels=1, size=12):
    return torch.randn(B, channels, size, size)


class Net(nn.Module):
    """A network whose forward is given: the tests are about what is between the layers."""

    def __init__(self, forward, **modules):
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)
        self._run = forward

    def forward(self, *args, **kwargs):
        return self._run(self, *args, **kwargs)


def lin(a, b):
    return nn.Linear(a, b)


@case("0")
def one_hidden_layer():
    net = nn.Sequential(lin(D, 16), nn.ReLU(), lin(16, C))

    def hand(n, x):
        z = x @ n[0].weight.T + n[0].bias
        return [z], z.clamp(min=0) @ n[2].weight.T + n[2].bias

    return net, rows(), hand


@case("0 2 4")
def mlp_of_changing_width():
    net = nn.Sequential(lin(D, 20), nn.ReLU(), lin(20, 7), nn.Tanh(), lin(7, 33), nn.Sigmoid(), lin(33, C))

    def hand(n, x):
        a = n[0](x)
        b = n[2](a.relu())
        c = n[4](b.tanh())
        return [a, b, c], n[6](c.sigmoid())

    return net, rows(), hand


@case("0 2 4")
def inplace_relu():
    relus = [nn.ReLU(inplace=True) for _ in range(3)]
    net = nn.Sequential(lin(D, 20), relus[0], lin(20, 20), relus[1], lin(20, 9), relus[2], lin(9, C))

    def hand(n, x):
        a = n[0](x)
        b = n[2](a.relu())
        c = n[4](b.relu())
        return [a, b, c], n[6](c.relu())

    return net, rows(), hand


@case("a b")
def functional_everything():
    def forward(self, x):
        h = F.relu(self.a(x.flatten(1)))
        h = F.dropout(h, 0.5, self.training)
        h = F.leaky_relu(self.b(h) * 0.5 + 1.0)
        return self.c(h.view(len(x), -1))

    def hand(n, x):
        a = n.a(x.flatten(1))
        b = n.b(a.relu())
        h = b * 0.5 + 1.0
        return [a, b], n.c(torch.where(h > 0, h, 0.01 * h))

    return Net(forward, a=lin(16, 10), b=lin(10, 12), c=lin(12, C)), torch.randn(B, 4, 4), hand


@case("conv1 conv2 fc1 fc2")
def lenet():
    def forward(self, x):
        h = F.max_pool2d(F.relu(self.conv1(x)), 2)
        h = F.max_pool2d(F.relu(self.conv2(h)), 2)
        h = h.view(h.size(0), -1)
        h = F.relu(self.fc1(h))
        return self.fc3(F.relu(self.fc2(h)))

    def hand(n, x):
        a = F.conv2d(x, n.conv1.weight, n.conv1.bias)
        b = F.conv2d(F.max_pool2d(a.relu(), 2), n.conv2.weight, n.conv2.bias)
        c = n.fc1(F.max_pool2d(b.relu(), 2).flatten(1))
        d = n.fc2(c.relu())
        return [a, b, c, d], n.fc3(d.relu())

    parts = {"conv1": nn.Conv2d(1, 6, 3), "conv2": nn.Conv2d(6, 8, 2), "fc1": lin(32, 12), "fc2": lin(12, 10)}
    return Net(forward, **parts, fc3=lin(10, C)), image(), hand


@case("features.0 features.3 features.7 classifier.1")
def vgg_with_batch_norm():
    features = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True),
        nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(6, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(2),
    )  # fmt: skip
    head = nn.Sequential(nn.Flatten(), lin(16, 10), nn.ReLU(), nn.Dropout(), lin(10, C))
    for module in features:
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(), module.running_var.uniform_(0.5, 2)

    def norm(m, x):
        return F.batch_norm(x, m.running_mean, m.running_var, m.weight, m.bias, eps=m.eps)

    def hand(n, x):
        f, k = n.features, n.classifier
        a = f[0](x)
        b = f[3](norm(f[1], a).relu())
        c = f[7](F.max_pool2d(norm(f[4], b).relu(), 2))
        d = k[1](F.adaptive_avg_pool2d(norm(f[8], c).relu(), 2).flatten(1))
        return [a, b, c, d], k[4](d.relu())

    forward = lambda self, x: self.classifier(self.features(x))  # noqa: E731
    return Net(forward, features=features, classifier=head), image(3, 8), hand


@case("layers.0 layers.2 layers.1")
def module_list_indexed_freely():
    def forward(self, x):
        h = self.layers[0](x).relu()
        h = self.layers[2](h).relu()
        h = self.layers[1](h).relu()
        return self.layers[3](h)

    def hand(n, x):
        a = n.layers[0](x)
        b = n.layers[2](a.relu())
        c = n.layers[1](b.relu())
        return [a, b, c], n.layers[3](c.relu())

    return Net(forward, layers=nn.ModuleList([lin(D, 9), lin(9, 9), lin(9, 9), lin(9, C)])), rows(), hand


@case("first mid")
def output_layer_registered_first():
    def forward(self, x):
        return self.out(self.mid(self.first(x).relu()).relu())

    def hand(n, x):
        a = n.first(x)
        b = n.mid(a.relu())
        return [a, b], n.out(b.relu())

    return Net(forward, out=lin(9, C), mid=lin(7, 9), first=lin(D, 7)), rows(), hand


@case("a b")
def forward_called_past_hooks():
    def forward(self, x):
        return self.c.forward(self.b.forward(self.a.forward(x).tanh()).tanh())

    def hand(n, x):
        a = n.a(x)
        b = n.b(a.tanh())
        return [a, b], n.c(b.tanh())

    return Net(forward, a=lin(D, 9), b=lin(9, 11), c=lin(11, C)), rows(), hand


@case("a shared#1 shared#2 shared#3")
def shared_layer_called_three_times():
    def forward(self, x):
        h = self.a(x).tanh()
        for _ in range(3):
            h = self.shared(h).tanh()
        return self.out(h)

    def hand(n, x):
        made = [n.a(x)]
        for _ in range(3):
            made.append(n.shared(made[-1].tanh()))
        return made, n.out(made[-1].tanh())

    return Net(forward, a=lin(D, 9), shared=lin(9, 9), out=lin(9, C)), rows(), hand


@case("left right joint")
def several_inputs():
    def forward(self, image, words):
        return self.out(self.joint(torch.cat([self.left(image).relu(), self.right(words).relu()], 1)).relu())

    def hand(n, x):
        a, b = n.left(x["image"]), n.right(x["words"])
        c = n.joint(torch.cat([a.relu(), b.relu()], 1))
        return [a, b, c], n.out(c.relu())

    net = Net(forward, left=lin(D, 6), right=lin(4, 7), joint=lin(13, 10), out=lin(10, C))
    net.forward = lambda image, words: forward(net, image, words)  # its signature says what it takes
    return net, {"image": rows(), "words": rows(4)}, hand


@case("0 3 7")
def convolutions_over_time():
    net = nn.Sequential(
        nn.Conv1d(3, 6, 3), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(6, 4, 2), nn.ReLU(), nn.AdaptiveMaxPool1d(2),
        nn.Flatten(), lin(8, 9), nn.ReLU(), lin(9, C),
    )  # fmt: skip

    def hand(n, x):
        a = n[0](x)
        b = n[3](F.max_pool1d(a.relu(), 2))
        c = n[7](F.adaptive_max_pool1d(b.relu(), 2).flatten(1))
        return [a, b, c], n[9](c.relu())

    return net, torch.randn(B, 3, 14), hand


@case("cell#1 cell#2 cell#3 cell#4")
def recurrent_cell():
    def forward(self, x):
        h = x.new_zeros(len(x), 6)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return self.out(h)

    def hand(n, x):
        made, h = [], torch.zeros(len(x), 6, dtype=x.dtype)
        c = n.cell
        for t in range(x.shape[1]):
            h = torch.tanh(x[:, t] @ c.weight_ih.T + c.bias_ih + h @ c.weight_hh.T + c.bias_hh)
            made.append(h)
        return made, n.out(h)

    return Net(forward, cell=nn.RNNCell(D, 6), out=lin(6, C)), torch.randn(B, 4, D), hand


@case("rnn mid")
def recurrent_layer_time_first():
    def forward(self, x):
        made, _ = self.rnn(x.transpose(0, 1))
        return self.out(self.mid(made[-1]).relu())

    def hand(n, x):
        a, h = [], torch.zeros(len(x), 6, dtype=x.dtype)
        r = n.rnn
        for t in range(x.shape[1]):
            h = torch.tanh(x[:, t] @ r.weight_ih_l0.T + r.bias_ih_l0 + h @ r.weight_hh_l0.T + r.bias_hh_l0)
            a.append(h)
        whole = torch.stack(a, 1)
        b = n.mid(whole[:, -1])
        return [whole, b], n.out(b.relu())

    return Net(forward, rnn=nn.RNN(D, 6), mid=lin(6, 7), out=lin(7, C)), torch.randn(B, 4, D), hand


@case("bag a")
def embedding_bag():
    def forward(self, x):
        return self.out(self.a(self.bag(x)).relu())

    def hand(n, x):
        z = n.bag.weight[x].mean(1)
        a = n.a(z)
        return [z, a], n.out(a.relu())

    return Net(forward, bag=nn.EmbeddingBag(30, 9), a=lin(9, 7), out=lin(7, C)), torch.randint(30, (B, 6)), hand


@case("words a")
def embedding_flattened():
    def forward(self, x):
        return self.out(self.a(self.words(x).flatten(1)).relu())

    def hand(n, x):
        z = n.words.weight[x]
        a = n.a(z.flatten(1))
        return [z, a], n.out(a.relu())

    return Net(forward, words=nn.Embedding(30, 4), a=lin(24, 7), out=lin(7, C)), torch.randint(30, (B, 6)), hand


@case("enc1 code dec1")
def autoencoder_that_classifies():
    def forward(self, x):
        return self.dec2(self.dec1(self.code(self.enc1(x).relu())).relu())

    def hand(n, x):
        a = n.enc1(x)
        b = n.code(a.relu())
        c = n.dec1(b)
        return [a, b, c], n.dec2(c.relu())

    return Net(forward, enc1=lin(D, 12), code=lin(12, 2), dec1=lin(2, 12), dec2=lin(12, C)), rows(), hand


@case("conv up")
def transposed_convolution():
    def forward(self, x):
        return self.out(self.up(self.conv(x).relu()).relu().mean((2, 3)))

    def hand(n, x):
        a = n.conv(x)
        b = F.conv_transpose2d(a.relu(), n.up.weight, n.up.bias, stride=2)
        return [a, b], n.out(b.relu().mean((2, 3)))

    parts = {"conv": nn.Conv2d(1, 4, 3, stride=2), "up": nn.ConvTranspose2d(4, 6, 2, 2)}
    return Net(forward, **parts, out=lin(6, C)), image(), hand


@case("a b")
def weight_norm():
    net = Net(lambda self, x: self.c(self.b(self.a(x).relu()).relu()), a=lin(D, 9), b=lin(9, 9), c=lin(9, C))
    nn.utils.parametrizations.weight_norm(net.b)

    def hand(n, x):
        a = n.a(x)
        g, v = n.b.parametrizations.weight.original0, n.b.parametrizations.weight.original1
        b = a.relu() @ (g * v / v.norm(dim=1, keepdim=True)).T + n.b.bias
        return [a, b], n.c(b.relu())

    return net, rows(), hand


class Own(nn.Module):
    """A layer of someone's own: no class of torch's, its weight under another name."""

    def __init__(self, a, b):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(a, b) / a**0.5)
        self.feedback = nn.Parameter(torch.randn(b, a), requires_grad=False)

    def forward(self, x):
        return x @ self.kernel


class Feedback(nn.Module):
    """Passes its input on; its frozen matrix is for a backward pass of its own."""

    def __init__(self, a):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(a, C), requires_grad=False)

    def forward(self, x):
        return x


@case("layers.0 layers.1 layers.2")
def layers_of_ones_own_in_a_list():
    def forward(self, x):
        for layer in self.layers:
            x = self.feedback[layer.kernel.shape[1] == C](layer(x).tanh())
        return x

    def hand(n, x):
        made = []
        for layer in n.layers:
            made.append(x @ layer.kernel)
            x = made[-1].tanh()
        return made[:-1], x

    layers = nn.ModuleList([Own(D, 9), Own(9, 9), Own(9, 9), Own(9, C)])
    return Net(forward, layers=layers, feedback=nn.ModuleList([Feedback(9), Feedback(C)])), rows(), hand


@case("blocks.0.fc blocks.1.fc")
def blocks_without_a_skip():
    class Block(nn.Module):
        def __init__(self, a, b):
            super().__init__()
            self.fc, self.norm = lin(a, b), nn.LayerNorm(b)

        def forward(self, x):
            return self.norm(self.fc(x)).relu()

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

    def hand(n, x):
        made = []
        for block in n.blocks:
            made.append(block.fc(x))
            x = F.layer_norm(made[-1], made[-1].shape[1:], block.norm.weight, block.norm.bias).relu()
        return made[:-1], x

    return Net(forward, blocks=nn.ModuleList([Block(D, 9), Block(9, 9), Block(9, C)])), rows(), hand


@case("a b")
def unused_layer_and_auxiliary_head():
    def forward(self, x):
        h = self.b(self.a(x).relu()).relu()
        return self.out(h), self.aux(h)

    def hand(n, x):
        a = n.a(x)
        b = n.b(a.relu())
        return [a, b], n.out(b.relu())

    parts = {"a": lin(D, 9), "b": lin(9, 9), "aux": lin(9, 3), "never": lin(2, 2)}
    return Net(forward, **parts, out=lin(9, C)), rows(), hand


@case("a b")
def two_output_layers():
    def forward(self, x):
        h = self.b(self.a(x).relu()).relu()
        return self.one(h) + self.two(h)

    def hand(n, x):
        a = n.a(x)
        b = n.b(a.relu())
        return [a, b], n.one(b.relu()) + n.two(b.relu())

    return Net(forward, a=lin(D, 9), b=lin(9, 9), one=lin(9, C), two=lin(9, C)), rows(), hand


@case("a b c")
def frozen_first_layers():
    parts = {"a": lin(D, 9), "b": lin(9, 9), "c": lin(9, 9)}
    net = Net(lambda s, x: s.out(s.c(s.b(s.a(x).relu()).relu()).relu()), **parts, out=lin(9, C))
    net.a.requires_grad_(False), net.b.requires_grad_(False)

    def hand(n, x):
        a = n.a(x).requires_grad_()
        b = n.b(a.relu())
        c = n.c(b.relu())
        return [a, b, c], n.out(c.relu())

    return net, rows(), hand


@case("mix.0 mix.2")
def mixer_without_skips():
    """States of (B, T, d), of which T and d are mixed in turn."""

    def forward(self, x):
        h = self.mix[0](x).relu()
        h = self.mix[2](h.transpose(1, 2)).relu().transpose(1, 2)
        return self.out(h.mean(1))

    def hand(n, x):
        a = n.mix[0](x)
        b = n.mix[2](a.relu().transpose(1, 2))
        return [a, b], n.out(b.relu().transpose(1, 2).mean(1))

    return Net(forward, mix=nn.Sequential(lin(D, 6), nn.ReLU(), lin(4, 7)), out=lin(6, C)), torch.randn(B, 4, D), hand


@case("depth point fc")
def as_many_channels_as_samples():
    def forward(self, x):
        return self.out(self.fc(self.point(self.depth(x).relu()).relu().amax((2, 3))).relu())

    def hand(n, x):
        a = F.conv2d(x, n.depth.weight, n.depth.bias, groups=B)
        b = n.point(a.relu())
        c = n.fc(b.relu().amax((2, 3)))
        return [a, b, c], n.out(c.relu())

    parts = {"depth": nn.Conv2d(B, B, 3, groups=B), "point": nn.Conv2d(B, B, 1), "fc": lin(B, 7)}
    return Net(forward, **parts, out=lin(7, C)), image(B, 5), hand


@case("act1 act2", sites=["act1", "act2"])
def named_activations():
    def forward(self, x):
        return self.c(self.act2(self.b(self.act1(self.a(x)))))

    def hand(n, x):
        a = n.a(x).relu()
        b = n.b(a).tanh()
        return [a, b], n.c(b)

    return Net(forward, a=lin(D, 9), act1=nn.ReLU(), b=lin(9, 9), act2=nn.Tanh(), c=lin(9, C)), rows(), hand


@case("conv fc", sites=lambda module: isinstance(module, (nn.Conv2d, nn.Linear)))
def chosen_by_a_function():
    def forward(self, x):
        return self.out(self.fc(self.conv(x).relu().mean((2, 3))).relu())

    def hand(n, x):
        a = n.conv(x)
        b = n.fc(a.relu().mean((2, 3)))
        return [a, b], n.out(b.relu())

    return Net(forward, conv=nn.Conv2d(1, 4, 3), fc=lin(4, 7), out=lin(7, C)), image(), hand


@case("a b", sites="layers")
def residual_network_at_its_layers():
    def forward(self, x):
        h = self.a(x)
        h = h + self.b(h.relu())
        return self.out(h)

    def hand(n, x):
        a = n.a(x)
        b = n.b(a.relu())
        return [a, b], n.out(a + b)

    return Net(forward, a=lin(D, 9), b=lin(9, 9), out=lin(9, C)), rows(), hand
