"""Networks built by hand, each to go wrong in one way: links, states of several tensors, tokens, calls, arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from case import Case, mark
from torch import Tensor, nn

D, CLASSES = 12, 5


class Branch(nn.Module):
    """f(h) of one width, or from one to another."""

    def __init__(self, wide: int = D, out: int | None = None, gain: float = 1.0) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(wide), nn.Linear(wide, out or wide)
        self.gain = gain

    def forward(self, h: Tensor) -> Tensor:
        """Return the branch."""
        return self.gain * torch.tanh(self.fc(self.norm(h)))


class State(Branch):
    """h + f(h)."""

    def forward(self, h: Tensor) -> Tensor:
        """Return the new state."""
        return h + super().forward(h)


class Down(Branch):
    """Another width, by a projection on the skip path."""

    def __init__(self, wide: int, out: int) -> None:
        super().__init__(wide, out)
        self.skip = nn.Linear(wide, out)

    def forward(self, h: Tensor) -> Tensor:
        """Return the new state."""
        return self.skip(h) + super().forward(h)


Forward = Callable[[Any, Tensor], Tensor]


class Net(nn.Module):
    """Modules by name, and the forward pass as a function of them."""

    def __init__(self, forward: Forward, **parts: nn.Module | list[nn.Module] | nn.Parameter) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, nn.ModuleList(part) if isinstance(part, list) else part)
        self.run = forward

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        return self.run(self, x)


def _parts(blocks: Any = None, wide: int = D, first: int = D) -> dict[str, Any]:
    return {
        "stem": nn.Linear(6, first),
        "blocks": blocks if blocks is not None else [State() for _ in range(4)],
        "head": nn.Linear(wide, CLASSES),
    }


def vectors() -> tuple[Tensor, Tensor]:
    """A batch of vectors."""
    g = torch.Generator().manual_seed(1)
    return torch.randn(6, 6, generator=g, dtype=torch.float64), torch.arange(6) % CLASSES


def series() -> tuple[Tensor, Tensor]:
    """A batch of series, (B, T, 6)."""
    g = torch.Generator().manual_seed(1)
    return torch.randn(6, 7, 6, generator=g, dtype=torch.float64), torch.arange(6) % CLASSES


def images() -> tuple[Tensor, Tensor]:
    """A batch of images."""
    g = torch.Generator().manual_seed(1)
    return torch.randn(6, 3, 8, 8, generator=g, dtype=torch.float64), torch.arange(6) % CLASSES


def chain(between: Callable[[Tensor, int], Tensor] = lambda h, i: h, branch: bool = False) -> Forward:
    """Return a forward pass through blocks in turn, with something between them."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.stem(x)
        mark(h)
        for i, block in enumerate(net.blocks):
            h = h + block(h) if branch else block(h)
            mark(h)
            h = between(h, i)
        return net.head(h)

    return forward


def widths(block: type[nn.Module] = Down) -> list[nn.Module]:
    """Blocks that change the width each."""
    return [block(a, b) for a, b in ((12, 16), (16, 20), (20, 12))]


# -- what is between blocks ----------------------------------------------------------------------------------


def _towers(net: Any, x: Tensor) -> Tensor:
    h = net.stem(x)
    a, b = h, h[:, :8]
    for block in net.blocks[:2]:
        a = block(a)
    for block in net.blocks[2:]:
        b = block(b)
    mark(h)
    return net.head(torch.cat([a, b], 1))


def _up_down(net: Any, x: Tensor) -> Tensor:
    h = net.stem(x)
    mark(h)
    for i in range(0, len(net.blocks), 2):
        h = h + net.blocks[i + 1](net.blocks[i](h))
        mark(h)
    return net.head(h)


def _dense(net: Any, x: Tensor) -> Tensor:
    h = net.stem(x)
    mark(h)
    for block in net.blocks:
        h = torch.cat([h, block(h)], 1)
        mark(h)
    return net.head(h)


def _unet(net: Any, x: Tensor) -> Tensor:
    h = net.stem(x)
    mark(h)
    kept = []
    for i, block in enumerate(net.blocks):
        if i >= 2:
            h = torch.cat([h, kept.pop()], 1)
        h = block(h)
        mark(h)
        if i < 2:
            kept.append(h)
    return net.head(h)


def _projected(net: Any, x: Tensor) -> Tensor:
    h = net.stem(x)
    mark(h)
    for i, block in enumerate(net.blocks):
        h = block(h)
        mark(h)
        h = net.turn(h) if i == 1 else h
    return net.head(h)


# -- states of several tensors -------------------------------------------------------------------------------


class Couple(nn.Module):
    """A reversible block: (a, b) -> (a + f(b), b + g(a))."""

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        self.f, self.g = Branch(gain=gain), Branch(gain=gain)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return both streams."""
        a = a + self.f(b)
        return a, b + self.g(a)


class Joint(nn.Module):
    """Two streams that read each other's mean: image tokens and text tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.f, self.g = Branch(), Branch(gain=30.0)

    def forward(self, image: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        """Return both streams."""
        return image + self.f(image + text.mean(1, keepdim=True)), text + self.g(text + image.mean(1, keepdim=True))


def _couple(net: Any, x: Tensor) -> Tensor:
    a = b = net.stem(x)
    a, b = a * 1.0, b * 0.5
    mark(a, b)
    for block in net.blocks:
        a, b = block(a, b)
        mark(a, b)
    return net.head(a + b)


def _halves(net: Any, x: Tensor) -> Tensor:
    a, b = net.stem(x).chunk(2, 1)
    mark(a, b)
    for block in net.blocks:
        a, b = block(a, b)
        mark(a, b)
    return net.head(a + b)


def _joint(net: Any, x: Tensor) -> Tensor:
    image, text = net.stem(x), net.stem2(x[:, :3])
    mark(image, text)
    for block in net.blocks:
        image, text = block(image, text)
        mark(image, text)
    return net.head(image.mean(1) + text.mean(1))


class WithAttention(State):
    """A block that returns its state and something else."""

    def forward(self, h: Tensor) -> Any:
        """Return the new state and weights."""
        return super().forward(h), torch.softmax(self.fc(h), -1)


def _first_of(net: Any, x: Tensor) -> Tensor:
    h = net.stem(x)
    mark(h)
    for block in net.blocks:
        h, _ = block(h)
        mark(h)
    return net.head(h)


def _chunked(net: Any, x: Tensor) -> Tensor:
    h, gate = net.stem(x).chunk(2, 1)
    mark(h)
    for block in net.blocks:
        h = block(h)
        mark(h)
    return net.head(h * torch.sigmoid(gate))


# -- tokens --------------------------------------------------------------------------------------------------


class Mixer(nn.Module):
    """A block that mixes tokens and channels: (B, T, d)."""

    def __init__(self, tokens: int = 7, wide: int = D) -> None:
        super().__init__()
        self.norm, self.over, self.fc = nn.LayerNorm(wide), nn.Linear(tokens, tokens), nn.Linear(wide, wide)

    def forward(self, h: Tensor) -> Tensor:
        """Return the new state."""
        h = h + self.over(self.norm(h).transpose(1, 2)).transpose(1, 2)
        return h + torch.tanh(self.fc(h))


class Conv(nn.Module):
    """A residual block of (B, C, T)."""

    def __init__(self, wide: int = D, norm: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv1d(wide, wide, 3, padding=1)
        self.norm = nn.BatchNorm1d(wide) if norm else nn.Identity()

    def forward(self, h: Tensor) -> Tensor:
        """Return the new state."""
        return h + torch.tanh(self.conv(self.norm(h)))


def reading(read: Callable[[Tensor], Tensor]) -> Forward:
    """Return a forward pass whose readout reads tokens by `read`."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.stem(x)
        mark(h)
        for block in net.blocks:
            h = block(h)
            mark(h)
        return net.head(read(h))

    return forward


def _time_last(read: Callable[[Tensor], Tensor]) -> Forward:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.stem(x.transpose(1, 2))
        mark(h)
        for block in net.blocks:
            h = block(h)
            mark(h)
        return net.head(read(h))

    return forward


def _merging(net: Any, x: Tensor) -> Tensor:
    h = net.stem(x[:, :6])
    mark(h)
    for i, block in enumerate(net.blocks):
        h = block(h)
        mark(h)
        if i == 1:
            h = net.turn(h.reshape(len(h), 3, 2 * D))
    return net.head(h[:, 1])


def over_time(h: Tensor) -> Tensor:
    """Mean norm over the tokens of (B, C, T)."""
    return h.norm(dim=1).mean(1)


def at_time(t: int) -> Callable[[Tensor], Tensor]:
    """Norm at one moment of (B, C, T)."""
    return lambda h: h[:, :, t].norm(dim=1)


def in_stages(last: int, token: int) -> Callable[[Tensor], Tensor]:
    """Norm at a token in the last stage, averaged over tokens before."""
    return lambda h: h[:, token].norm(dim=1) if h.shape[1] == last else h.norm(dim=2).mean(1)


# -- calls ---------------------------------------------------------------------------------------------------


def _looped(times: int) -> Forward:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.stem(x)
        mark(h)
        for _ in range(times):
            for block in net.blocks:
                h = block(h)
                mark(h)
        return net.head(h)

    return forward


def _forwarded(net: Any, x: Tensor) -> Tensor:
    h = net.stem(x)
    mark(h)
    for block in net.blocks:
        h = block.forward(h)
        mark(h)
    return net.head(h)


def _siamese(net: Any, x: Tensor) -> Tensor:
    a, b = net.stem(x), net.stem(-x)
    for block in net.blocks:
        a = block(a)
    for block in net.blocks:
        b = block(b)
    mark(a, b)
    return net.head(a * b)


# -- arithmetic outside of the blocks ------------------------------------------------------------------------


def step(new: Callable[[Any, Tensor, Tensor, int], Tensor], begin: Callable[[Tensor], Tensor] = lambda h: h) -> Forward:
    """Return a forward pass in which h and f(h) are put together outside of the block."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = begin(net.stem(x))
        mark(h)
        for i, block in enumerate(net.blocks):
            h = new(net, h, block(h), i)
            mark(h)
        return net.head(h)

    return forward


def _prenorm_outside(net: Any, x: Tensor) -> Tensor:
    h = net.stem(x)
    mark(h)
    for norm, block in zip(net.norms, net.blocks):
        h = h + block(norm(h))
        mark(h)
    return net.head(h)


def _gcnii(net: Any, x: Tensor) -> Tensor:
    h = first = net.stem(x)
    mark(h)
    for block in net.blocks:
        h = torch.relu(block(0.9 * h + 0.1 * first))
        mark(h)
    return net.head(h)


def _linears(net: Any, x: Tensor) -> Tensor:
    h = net.stem(x)
    mark(h)
    for block in net.blocks:
        h = h + torch.tanh(block(h))
        mark(h)
    return net.head(h)


def _lstms(net: Any, x: Tensor) -> Tensor:
    h = net.stem(x)
    mark(h)
    for block in net.blocks:
        h = h + block(h)[0]
        mark(h)
    return net.head(h[:, -1])


class Caching(State):
    """A block that keeps a graph in a cache."""

    def forward(self, h: Tensor) -> Tensor:
        """Return the new state."""
        if not hasattr(self, "cache"):
            self.cache = {}
        if 0 not in self.cache:
            self.cache[0] = self.fc.bias * 2
        return super().forward(h) + self.cache[0]


def _one_beside(net: Any, x: Tensor) -> Tensor:
    h = net.stem(x)
    mark(h)
    for block in net.tower:
        h = block(h)
        mark(h)
    return net.head(net.layers[0](h))


def _lists(net: Any, x: Tensor) -> Tensor:
    h = net.stem(x)
    mark(h)
    for fs, gs in net.blocks:
        h = h + fs[0](h)
        mark(h)
        h = h + gs[0](h)
        mark(h)
    return net.head(h)


def cases() -> Iterator[Case]:
    """Yield the networks of every pattern."""

    def made(name: str, forward: Forward, batch: Any = vectors, reads: Any = None, **parts: Any) -> Case:
        def build() -> nn.Module:
            own = {
                key: value() if callable(value) and not isinstance(value, nn.Module) else value
                for key, value in parts.items()
            }
            return Net(forward, **{**_parts(), **own})

        return Case(name, "hand-built", build, batch, (), reads)

    def lin(a: int, b: int) -> Callable[[], nn.Module]:
        return lambda: nn.Linear(a, b)

    grow = (1.0, 30.0, 1.0, 1.0)
    yield made("plain states", chain())
    yield made("plain branches", chain(branch=True), blocks=lambda: [Branch() for _ in range(4)])
    yield made("widths", chain(), blocks=widths)
    yield made("a scale between widths", chain(lambda h, i: 30 * h if i < 2 else h), blocks=widths)
    yield made("a norm between widths", chain(lambda h, i: F.layer_norm(h, h.shape[1:]) if i < 2 else h), blocks=widths)
    yield made("an activation between widths", chain(lambda h, i: torch.relu(h) if i < 2 else h), blocks=widths)
    yield made("dense blocks", _dense, blocks=lambda: [Branch(D + 4 * i, 4) for i in range(3)], head=lin(24, CLASSES))
    yield made("U-net", _unet, blocks=lambda: [Down(12, 16), Down(16, 20), Down(40, 16), Down(32, 12)])
    yield made(
        "parallel towers", _towers, blocks=lambda: [State(12), State(12), State(8), State(8)], head=lin(20, CLASSES)
    )
    yield made(
        "h + down(up(h)) in one list",
        _up_down,
        blocks=lambda: [Branch(12, 20) if i % 2 == 0 else Branch(20, 12) for i in range(6)],
    )
    yield made("h + down(up(h)) once", _up_down, blocks=lambda: [Branch(12, 20), Branch(20, 12)])
    yield made(
        "a projection between",
        _projected,
        blocks=lambda: [State(12), State(12), State(16), State(16)],
        turn=lin(12, 16),
        head=lin(16, CLASSES),
    )
    yield made("reversible (a, b)", _couple, blocks=lambda: [Couple(g) for g in grow])
    yield made("reversible halves", _halves, blocks=lambda: [Couple(g) for g in grow], stem=lin(6, 2 * D))
    yield made("joint image and text", _joint, series, blocks=lambda: [Joint() for _ in range(3)], stem2=lin(6, D))
    yield made("state and weights", _first_of, blocks=lambda: [WithAttention() for _ in range(3)])
    yield made("a chunk of the stem", _chunked, stem=lin(6, 2 * D))

    mixers = {"blocks": lambda: [Mixer() for _ in range(3)]}
    yield made("first token", reading(lambda h: h[:, 0]), series, 0, **mixers)
    yield made("last token", reading(lambda h: h[:, -1]), series, -1, **mixers)
    yield made("middle token", reading(lambda h: h[:, 3]), series, 3, **mixers)
    yield made("two of seven", reading(lambda h: h[:, :2].mean(1)), series, [0, 1], **mixers)
    yield made("five of seven", reading(lambda h: h[:, :5].mean(1)), series, [0, 1, 2, 3, 4], **mixers)
    yield made("all but the first", reading(lambda h: h[:, 1:].mean(1)), series, [1, 2, 3, 4, 5, 6], **mixers)
    yield made("all tokens", reading(lambda h: h.mean(1)), series, "mean", **mixers)
    yield made("tokens in a row", reading(lambda h: h.flatten(1)), series, "mean", head=lin(7 * D, CLASSES), **mixers)
    convs = {"stem": lambda: nn.Conv1d(6, D, 1), "blocks": lambda: [Conv() for _ in range(3)]}
    yield made("(B, C, T), mean", _time_last(lambda h: h.mean(2)), series, over_time, **convs)
    yield made("(B, C, T), last", _time_last(lambda h: h[:, :, -1]), series, at_time(-1), **convs)
    yield made(
        "(B, C, T), norm and mean",
        _time_last(lambda h: torch.tanh(h).mean(2)),
        series,
        over_time,
        stem=lambda: nn.Conv1d(6, D, 1),
        blocks=lambda: [Conv(norm=True) for _ in range(3)],
    )
    yield made(
        "tokens merge",
        _merging,
        series,
        in_stages(3, 1),
        turn=lin(2 * D, D),
        blocks=lambda: [Mixer(6), Mixer(6), Mixer(3), Mixer(3)],
    )

    yield made("looped four times", _looped(4), blocks=lambda: [State()])
    yield made("two layers looped", _looped(3), blocks=lambda: [State(), State()])
    yield made("layer.forward", _forwarded)
    yield made("Siamese", _siamese)

    branches = {"blocks": lambda: [Branch() for _ in range(4)]}
    yield made(
        "ReZero outside", step(lambda net, h, f, i: h + net.a[i] * f), a=lambda: nn.Parameter(torch.rand(4)), **branches
    )
    yield made("DeepNet", step(lambda net, h, f, i: F.layer_norm(2.0 * h + f, h.shape[1:])), **branches)
    yield made(
        "post-norm outside",
        step(lambda net, h, f, i: net.norms[i](h + f)),
        norms=lambda: [nn.LayerNorm(D) for _ in range(4)],
        **branches,
    )
    yield made("pre-norm outside", _prenorm_outside, norms=lambda: [nn.LayerNorm(D) for _ in range(4)], **branches)
    yield made("half branches outside", step(lambda net, h, f, i: h + 0.5 * f), **branches)
    yield made(
        "nViT",
        step(
            lambda net, h, f, i: F.normalize(h + 0.3 * (F.normalize(f, dim=-1) - h), dim=-1),
            lambda h: F.normalize(h, dim=-1),
        ),
        **branches,
    )
    yield made("GCNII", _gcnii, **branches)
    yield made("an activation after the sum", step(lambda net, h, f, i: torch.relu(h + f)), **branches)
    yield made("a scale between states", chain(lambda h, i: 0.7 * h if i < 3 else h))
    yield made(
        "highway",
        step(lambda net, h, f, i: h + torch.sigmoid(net.gates[i](h)) * (f - h)),
        gates=lambda: [nn.Linear(D, D) for _ in range(4)],
        **branches,
    )
    yield made("linears", _linears, blocks=lambda: [nn.Linear(D, D) for _ in range(4)])
    yield made("LSTMs", _lstms, series, -1, blocks=lambda: [nn.LSTM(D, D, batch_first=True) for _ in range(3)])
    yield made("a graph in a cache", chain(), blocks=lambda: [Caching() for _ in range(3)])
    yield made(
        "a stack of one beside a run",
        _one_beside,
        tower=lambda: [State() for _ in range(4)],
        layers=lambda: [Branch()],
        blocks=lambda: nn.Identity(),
    )
    yield made(
        "lists of lists",
        _lists,
        blocks=lambda: [nn.ModuleList([nn.ModuleList([Branch()]), nn.ModuleList([Branch()])]) for _ in range(3)],
    )
