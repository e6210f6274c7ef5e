"""More kinds of plain networks, in the form of `plain_nets`: (network, inputs, the forward pass once more by hand)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from plain_nets import B, C, D, Net, case, image, lin, rows


@case("pair fc")
def bilinear_of_two_halves():
    def forward(self, x):
        return self.out(self.fc(self.pair(x[:, :4], x[:, 4:]).tanh()).tanh())

    def hand(n, x):
        a = torch.einsum("bi,kij,bj->bk", x[:, :4], n.pair.weight, x[:, 4:]) + n.pair.bias
        b = n.fc(a.tanh())
        return [a, b], n.out(b.tanh())

    return Net(forward, pair=nn.Bilinear(4, 4, 9), fc=lin(9, 7), out=lin(7, C)), rows(), hand


@case("conv1 conv2")
def group_norm_and_prelu():
    def forward(self, x):
        h = self.act(self.norm(self.conv1(x)))
        return self.out(self.conv2(h).relu().mean((2, 3)))

    def hand(n, x):
        a = n.conv1(x)
        z = F.group_norm(a, 2, n.norm.weight, n.norm.bias)
        b = n.conv2(torch.where(z > 0, z, n.act.weight * z))
        return [a, b], n.out(b.relu().mean((2, 3)))

    parts = {"conv1": nn.Conv2d(1, 4, 3), "norm": nn.GroupNorm(2, 4), "act": nn.PReLU(), "conv2": nn.Conv2d(4, 6, 3)}
    return Net(forward, **parts, out=lin(6, C)), image(), hand


@case("a b")
def convolutions_in_three_dimensions():
    def forward(self, x):
        return self.out(self.b(F.avg_pool3d(self.a(x).relu(), 2)).relu().flatten(1))

    def hand(n, x):
        a = F.conv3d(x, n.a.weight, n.a.bias)
        b = F.conv3d(F.avg_pool3d(a.relu(), 2), n.b.weight, n.b.bias)
        return [a, b], n.out(b.relu().flatten(1))

    return Net(forward, a=nn.Conv3d(1, 3, 3), b=nn.Conv3d(3, 4, 2), out=lin(4, C)), torch.randn(B, 1, 6, 6, 6), hand


@case("a b")
def gated_linear_units():
    def forward(self, x):
        return self.out(F.glu(self.b(F.glu(self.a(x)))))

    def hand(n, x):
        a = n.a(x)
        b = n.b(a[:, :8] * a[:, 8:].sigmoid())
        return [a, b], n.out(b[:, :6] * b[:, 6:].sigmoid())

    return Net(forward, a=lin(D, 16), b=lin(8, 12), out=lin(6, C)), rows(), hand


@case("a b")
def maxout_of_pairs():
    def forward(self, x):
        h = self.a(x).view(-1, 8, 2).amax(2)
        return self.out(self.b(h).view(-1, 6, 2).amax(2))

    def hand(n, x):
        a = n.a(x)
        b = n.b(torch.maximum(a[:, ::2], a[:, 1::2]))
        return [a, b], n.out(torch.maximum(b[:, ::2], b[:, 1::2]))

    return Net(forward, a=lin(D, 16), b=lin(8, 12), out=lin(6, C)), rows(), hand


@case("one two")
def dilated_causal_convolutions_read_at_the_last_step():
    def forward(self, x):
        h = self.one(F.pad(x, (1, 0))).relu()
        return self.out(self.two(F.pad(h, (2, 0))).relu()[:, :, -1])

    def hand(n, x):
        shifted = lambda h, k: F.pad(h, (k, 0))[:, :, : h.shape[2]]  # noqa: E731
        at = lambda c, h, k: (  # noqa: E731
            torch.einsum("oi,bit->bot", c.weight[:, :, 0], shifted(h, k))
            + torch.einsum("oi,bit->bot", c.weight[:, :, 1], h)
            + c.bias[:, None]
        )
        a = at(n.one, x, 1)
        b = at(n.two, a.relu(), 2)
        return [a, b], n.out(b.relu()[:, :, -1])

    parts = {"one": nn.Conv1d(3, 6, 2), "two": nn.Conv1d(6, 5, 2, dilation=2)}
    return Net(forward, **parts, out=lin(5, C)), torch.randn(B, 3, 7), hand


@case("a b")
def pixels_shuffled_between_convolutions():
    def forward(self, x):
        return self.out(self.b(self.shuffle(self.a(x)).relu()).relu().amax((2, 3)))

    def hand(n, x):
        a = n.a(x)
        wide = a.view(len(x), 2, 2, 2, *a.shape[2:]).permute(0, 1, 4, 2, 5, 3).reshape(len(x), 2, 12, 12)
        b = n.b(wide.relu())
        return [a, b], n.out(b.relu().amax((2, 3)))

    parts = {"a": nn.Conv2d(1, 8, 3, padding=1), "shuffle": nn.PixelShuffle(2), "b": nn.Conv2d(2, 6, 3)}
    return Net(forward, **parts, out=lin(6, C)), image(1, 6), hand


@case("layers.0 layers.2")
def lazy_layers():
    def forward(self, x):
        return self.layers(x)

    def hand(n, x):
        a = x @ n.layers[0].weight.T + n.layers[0].bias
        b = a.tanh() @ n.layers[2].weight.T + n.layers[2].bias
        return [a, b], n.layers[4](b.tanh())

    net = Net(forward, layers=nn.Sequential(nn.LazyLinear(9), nn.Tanh(), nn.LazyLinear(7), nn.Tanh(), nn.LazyLinear(C)))
    net(rows())
    return net, rows(), hand


@case("a b")
def orthogonal_weights():
    def forward(self, x):
        return self.out(self.b(self.a(x).tanh()).tanh())

    def hand(n, x):
        a = x @ n.a.weight.T + n.a.bias
        b = a.tanh() @ n.b.weight.T + n.b.bias
        return [a, b], n.out(b.tanh())

    made = nn.utils.parametrizations.orthogonal
    return Net(forward, a=made(lin(D, 8)), b=made(lin(8, 8)), out=lin(8, C)), rows(), hand


@case("one two")
def channels_shuffled_between_groups():
    def forward(self, x):
        h = F.channel_shuffle(self.one(x).relu(), 2)
        return self.out(self.two(h).relu().mean((2, 3)))

    def hand(n, x):
        a = torch.cat([F.conv2d(part, w) for part, w in zip(x.chunk(2, 1), n.one.weight.chunk(2))], 1)
        h = a.relu()[:, [0, 3, 1, 4, 2, 5]]
        b = torch.cat([F.conv2d(part, w) for part, w in zip(h.chunk(2, 1), n.two.weight.chunk(2))], 1)
        return [a, b], n.out(b.relu().mean((2, 3)))

    one, two = nn.Conv2d(2, 6, 3, groups=2, bias=False), nn.Conv2d(6, 4, 3, groups=2, bias=False)
    return Net(forward, one=one, two=two, out=lin(4, C)), image(2, 8), hand


@case("layers.0 layers.1 layers.2")
def features_of_all_layers_read_by_one_classifier():
    def forward(self, x):
        kept = []
        for layer in self.layers:
            x = layer(x).relu()
            x = x / (x.norm(dim=1, keepdim=True) + 1e-6)
            kept.append(x)
        return self.classifier(torch.cat(kept[1:], 1))

    def hand(n, x):
        states, kept = [], []
        for layer in n.layers:
            states.append(x @ layer.weight.T + layer.bias)
            h = states[-1].relu()
            x = h / (h.square().sum(1, keepdim=True).sqrt() + 1e-6)
            kept.append(x)
        return states, n.classifier(torch.cat(kept[1:], 1))

    layers = nn.ModuleList([lin(D, 9), lin(9, 9), lin(9, 9)])
    return Net(forward, layers=layers, classifier=lin(18, C)), rows(), hand


@case("a b")
def layers_on_parts_of_each_sample():
    def forward(self, x):
        h = self.a(x.view(-1, 4, 2)).tanh()
        return self.out(self.b(h).tanh().flatten(1))

    def hand(n, x):
        a = torch.stack([n.a(part) for part in x.split(2, 1)], 1)
        b = torch.stack([n.b(part.tanh()) for part in a.unbind(1)], 1)
        return [a, b], n.out(b.tanh().flatten(1))

    return Net(forward, a=lin(2, 6), b=lin(6, 3), out=lin(12, C)), rows(), hand


@case("patches fc")
def patches_by_unfold():
    def forward(self, x):
        return self.out(self.fc(self.patches(F.unfold(x, 4, stride=4).transpose(1, 2)).tanh().mean(1)).tanh())

    def hand(n, x):
        cut = torch.stack([x[:, 0, i : i + 4, j : j + 4].flatten(1) for i in (0, 4, 8) for j in (0, 4, 8)], 1)
        a = cut @ n.patches.weight.T + n.patches.bias
        b = n.fc(a.tanh().mean(1))
        return [a, b], n.out(b.tanh())

    return Net(forward, patches=lin(16, 6), fc=lin(6, 7), out=lin(7, C)), image(), hand


@case("a b")
def random_fourier_features():
    def forward(self, x):
        turned = x @ self.turns
        h = self.a(torch.cat([turned.sin(), turned.cos()], 1)).tanh()
        return self.out(self.b(h).tanh())

    def hand(n, x):
        turned = torch.exp(1j * (x @ n.turns))
        a = n.a(torch.cat([turned.imag, turned.real], 1))
        b = n.b(a.tanh())
        return [a, b], n.out(b.tanh())

    net = Net(forward, a=lin(12, 9), b=lin(9, 7), out=lin(7, C))
    net.register_buffer("turns", torch.randn(D, 6))
    return net, rows(), hand


@case("a b")
def padded_in_a_circle_with_response_normalisation():
    def forward(self, x):
        return self.out(self.b(F.local_response_norm(self.a(x).relu(), 3)).relu().mean((2, 3)))

    def hand(n, x):
        a = F.conv2d(torch.cat([x[..., -1:], x, x[..., :1]], 3), n.a.weight, n.a.bias)
        h = a.relu()
        squares = F.pad(h.square(), (0, 0, 0, 0, 1, 1))
        mean = (squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:]) / 3
        b = n.b(h / (1 + 1e-4 * mean) ** 0.75)
        return [a, b], n.out(b.relu().mean((2, 3)))

    conv = nn.Conv2d(1, 4, (1, 3), padding=(0, 1), padding_mode="circular")
    return Net(forward, a=conv, b=nn.Conv2d(4, 6, 3), out=lin(6, C)), image(), hand
