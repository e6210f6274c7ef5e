"""Networks for the reference check: honest ones that are right about every training sample, and altered ones.

Nothing here imports walkback, and no network is altered forward: `plain` gradients of a copy in float64 are the second
derivation of every reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES, SIDE, COUNT = 5, 8, 64


@cache
def digits() -> tuple[Tensor, Tensor]:
    """(64, 1, 8, 8) integers 0…16 with an empty border, as scanned digits have, in 5 classes that are easy to tell."""
    generator = torch.Generator().manual_seed(0)
    shapes = torch.rand(CLASSES, 6, 6, generator=generator).round() * 12
    y = torch.arange(COUNT) % CLASSES
    x = (shapes[y] + 2 * torch.randn(COUNT, 6, 6, generator=generator)).round().clamp(0, 16)
    return F.pad(x, (1, 1, 1, 1))[:, None], y


class Stack(nn.Module):
    """Stem, blocks that return the new state (or with `skip` the branch), head."""

    def __init__(self, stem: nn.Module, blocks: Sequence[nn.Module], head: nn.Module, skip: bool = False) -> None:
        super().__init__()
        self.embed, self.blocks, self.head, self.skip = stem, nn.ModuleList(blocks), head, skip

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h) if self.skip else block(h)
        return self.head(h)


def layer(inputs: int, outputs: int, act: type[nn.Module] = nn.ReLU) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, outputs), act())


def mlp(act: type[nn.Module] = nn.ReLU, width: int = 24) -> Stack:
    stem = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, width), act())
    return Stack(stem, [layer(width, width, act) for _ in range(2)], nn.Linear(width, CLASSES))


def lenet() -> Stack:
    """Pools at the beginning of each block: they meet the zeros that a ReLU left."""
    stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU())
    blocks = [
        nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, padding=1), nn.ReLU()),
        nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(6, 8, 3, padding=1), nn.ReLU()),
    ]
    return Stack(stem, blocks, nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, CLASSES)))


def pooled_pixels() -> Stack:
    """A max pool and a ReLU over pixels as they are: whole numbers, many of them equal, most of them zero."""
    blocks = [
        nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(1, 6, 3, padding=1), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Linear(96, 24), nn.ReLU()),
    ]
    return Stack(nn.Identity(), blocks, nn.Linear(24, CLASSES))


def branch(act: type[nn.Module], *before: nn.Module, width: int = 16) -> nn.Module:
    return nn.Sequential(*before, act(), nn.Linear(width, width), act(), nn.Linear(width, width))


def residual(act: type[nn.Module] = nn.ReLU, norm: type[nn.Module] = nn.Identity, depth: int = 3) -> Stack:
    """Pre-activation blocks on a stem that ends in the activation: with ReLU half of h_0 sits at the kink."""
    stem = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 16), act())
    norms = [[] if norm is nn.Identity else [norm(16)] for _ in range(depth)]
    return Stack(stem, [branch(act, *n) for n in norms], nn.Linear(16, CLASSES), skip=True)


class Dead(nn.Module):
    """Half of the units never fire."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.register_buffer("bias", torch.where(torch.arange(width) % 2 == 0, -1e3, 0.0))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.linear(x) + self.bias)


def dead() -> Stack:
    net = mlp(width=32)
    return Stack(net.embed, [Dead(32), Dead(32)], nn.Linear(32, CLASSES))


def linear() -> Stack:
    stem = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 16))
    return Stack(stem, [nn.Linear(16, 16) for _ in range(3)], nn.Linear(16, CLASSES), skip=True)


class TwoHalves(nn.Module):
    """x as relu(x) − relu(−x): at 0 the slope is 1 to both sides, and autograd says 0."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x) - F.relu(-x)


def two_halves() -> Stack:
    blocks = [
        nn.Sequential(nn.Flatten(), TwoHalves(), nn.Linear(SIDE**2, 24), nn.ReLU()),
        nn.Sequential(nn.Linear(24, 24), nn.ReLU()),
    ]
    return Stack(nn.Identity(), blocks, nn.Linear(24, CLASSES))


def transformer() -> Stack:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(SIDE, 16)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x[:, 0])

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, CLASSES)

        def forward(self, h: Tensor) -> Tensor:
            return self.linear(h.mean(1))

    blocks = [nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for _ in range(2)]
    return Stack(Rows(), blocks, Mean())


def hinge(logits: Tensor, y: Tensor) -> Tensor:
    """Exactly zero, with its gradient, for a sample that is right by 1."""
    return F.multi_margin_loss(logits, y, reduction="none")


BUILDS: dict[str, Callable[[], Stack]] = {
    "mlp": mlp,
    "mlp gelu": lambda: mlp(nn.GELU),
    "lenet": lenet,
    "pooled pixels": pooled_pixels,
    "residual relu": residual,
    "residual gelu": lambda: residual(nn.GELU, nn.LayerNorm),
    "residual batch norm": lambda: residual(nn.ReLU, nn.BatchNorm1d),
    "dead units": dead,
    "linear": linear,
    "two halves": two_halves,
    "transformer": transformer,
}


@cache
def _trained_state(name: str) -> dict[str, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net, (x, y) = BUILDS[name]().train(), digits()
        optimiser = torch.optim.Adam(net.parameters(), lr=5e-3)
        for _ in range(400):
            loss = F.cross_entropy(net(x), y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if float(loss.detach()) < 1e-3:
                break
        return net.state_dict()


def initial(name: str) -> Stack:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return BUILDS[name]().eval()


def trained(name: str, sharper: float = 1.0) -> Stack:
    """Right about every sample of `digits`; its logits times `sharper`, until losses round to 0."""
    net = initial(name)
    net.load_state_dict(_trained_state(name))
    with torch.no_grad():
        last = [m for m in net.head.modules() if isinstance(m, nn.Linear)][-1]
        last.weight.mul_(sharper)
        last.bias.mul_(sharper)
    return net


# -- altered backward passes of the very same forward pass ------------------------------------------------------------


class _Altered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return ctx.change(grad), None


def feedback(size: int, like: Tensor, seed: int) -> Tensor:
    b = torch.randn(size, size, generator=torch.Generator().manual_seed(seed)) / size**0.5
    return b.to(like)


def mixed(share: float, seed: int = 0) -> Callable[[Tensor], Tensor]:
    """(1 − share) g + share · B g."""

    def change(grad: Tensor) -> Tensor:
        flat = grad.flatten(1)
        return ((1 - share) * flat + share * flat @ feedback(flat.shape[1], flat, seed)).view_as(grad)

    return change


def scaled(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda grad: factor * grad


def clipped(grad: Tensor) -> Tensor:
    """Every sample to at most half of the largest."""
    lengths = grad.flatten(1).norm(dim=1)
    most = lengths.max() / 2
    return grad * (most / lengths.clamp(min=1e-45)).clamp(max=1.0).view(-1, *[1] * (grad.ndim - 1))


def sparse(grad: Tensor) -> Tensor:
    """What is under the root mean square of a sample's gradient is left out."""
    flat = grad.flatten(1)
    size = flat.norm(dim=1) / (flat != 0).sum(1).clamp(min=1) ** 0.5
    return grad * (grad.abs() >= size.view(-1, *[1] * (grad.ndim - 1)))


def signed(net: Stack) -> None:
    """Sign symmetry: every block's linear map goes back by the signs of its weights."""

    class Back(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            ctx.save_for_backward(weight)
            return F.linear(x, weight)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
            (weight,) = ctx.saved_tensors
            return grad @ (weight.sign() * weight.abs().mean()), None

    _each_linear(net, Back.apply)


def random_feedback(net: Stack) -> None:
    """FA: every block's linear map goes back by a fixed random matrix."""

    class Back(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            ctx.shape = weight.shape
            return F.linear(x, weight)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
            b = torch.randn(ctx.shape, generator=torch.Generator().manual_seed(1)).to(grad)
            return grad @ b / ctx.shape[0] ** 0.5, None

    _each_linear(net, Back.apply)


def _each_linear(net: Stack, apply: Any) -> None:
    def swap(module: nn.Linear) -> None:
        module.forward = lambda x: apply(x, module.weight) + module.bias  # type: ignore[method-assign]

    for module in net.blocks.modules():
        if isinstance(module, nn.Linear):
            swap(module)


def at(change: Callable[[Tensor], Tensor], *blocks: int) -> Callable[[Stack], None]:
    """What comes back from some blocks to their inputs, changed; of all of them where none is named."""

    def alter(net: Stack) -> None:
        for i, block in enumerate(net.blocks):
            if not blocks or i in blocks:
                kept = block.forward
                block.forward = lambda x, kept=kept: kept(_Altered.apply(x, change))  # type: ignore[method-assign]

    return alter


def hooked(change: Callable[[Tensor], Tensor], *blocks: int) -> Callable[[Stack], None]:
    def alter(net: Stack) -> None:
        for i in blocks or range(len(net.blocks)):
            net.blocks[i].register_full_backward_hook(lambda module, given, out: (change(given[0]),))

    return alter


def cut(net: Stack) -> None:
    """Block 2 adds its branch without sending anything back through it."""
    kept = net.blocks[1].forward
    net.blocks[1].forward = lambda x: kept(x.detach()) + 0 * x.sum() * 0  # type: ignore[method-assign]


ALTERATIONS: dict[str, Callable[[Stack], None]] = {
    "sign flip in a hook": hooked(lambda g: -g, 1),
    "sign symmetry": signed,
    "random feedback": random_feedback,
    "a mixture of 5 % everywhere": at(mixed(0.05)),
    "a mixture of 5 % at one block": at(mixed(0.05), 1),
    "half the length in a hook": hooked(scaled(0.5), 1),
    "1.05 times at one block": at(scaled(1.05), 0),
    "clipped in hooks": hooked(clipped),
    "only the larger parts": at(sparse),
    "a stopped branch": cut,
}
