"""Feedback layers in the manners met in public code, and residual networks built from them, with credits known in full.

Every layer l has a matrix B_l of its own, and what it sends on is e B_l, with e = softmax − one-hot: a signal that is
read at another place, or at another site, is another one.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, CLASSES, DEPTH = 16, 5, 3


class Feedback(nn.Module):
    """The common part: a matrix, and the output error that the top of the network catches."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("back", torch.randn(CLASSES, WIDTH) / WIDTH**0.5)
        self.error: Tensor | None = None

    def sent(self) -> Tensor:
        assert self.error is not None
        return self.error @ self.back


class Cut(Feedback):
    """Cuts the graph; the top runs a backward pass of its own from what came in."""

    point: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            self.point = x
        x = x.detach()
        x.requires_grad = True
        return x


class Hooked(Feedback):
    """A tensor hook that replaces the gradient, registered after whoever looked at the tensor before."""

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            x.register_hook(lambda grad: self.sent())
        return x


class _Replaced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Feedback) -> Tensor:
        ctx.layer = layer
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return ctx.layer.sent(), None


class Replaced(Feedback):
    """An autograd Function that returns its input and replaces what comes back."""

    def forward(self, x: Tensor) -> Tensor:
        return _Replaced.apply(x, self)


class _Top(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, layers: list[Feedback]) -> Tensor:
        ctx.layers = layers
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        for layer in ctx.layers:
            layer.error = grad
            if isinstance(layer, Cut) and layer.point is not None:
                layer.point.backward(layer.sent())
        return grad, None


class State(nn.Module):
    """h + f(h), with a feedback layer behind it: a block that returns the new state."""

    def __init__(self, f: nn.Module, feedback: nn.Module) -> None:
        super().__init__()
        self.f, self.feedback = f, feedback

    def forward(self, h: Tensor) -> Tensor:
        return self.feedback(h + self.f(h))


def branch(inner: nn.Module | None = None, *last: nn.Module) -> nn.Sequential:
    """A residual branch that ends in a linear layer (and `last`), with a layer of width WIDTH `inner` inside."""
    middle = [] if inner is None else [inner]
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), *middle, nn.Linear(WIDTH, WIDTH), *last)


class Residual(nn.Module):
    """A residual network with feedback layers of one manner in one place.

    Args:
        manner: Cut, Hooked or Replaced.
        place: "between" the block and the sum, at the "end" of the branch, behind the sum in the block ("state"),
            "inner": one inside the branch too, "under" the last operation of the branch, "stem-relu": between the stem
            and a ReLU.
    """

    def __init__(self, manner: type[Feedback], place: str) -> None:
        super().__init__()
        self.place = place
        self.embed, self.head = nn.Linear(8, WIDTH), nn.Linear(WIDTH, CLASSES)
        layers = [manner() for _ in range(DEPTH + 1)]
        inner = [manner() for _ in range(DEPTH)] if place == "inner" else []
        if place == "between":
            blocks = [branch() for _ in range(DEPTH)]
        elif place in ("state", "stem-relu"):
            blocks = [State(branch(), layer) for layer in layers[1:]]
        elif place == "under":
            blocks = [branch(None, layer, nn.ReLU()) for layer in layers[1:]]
        else:
            blocks = [branch(inner[i] if inner else None, layer) for i, layer in enumerate(layers[1:])]
        self.blocks = nn.ModuleList(blocks)
        self.layers = [*layers, *inner]  # not registered twice
        self.matrices = [layer.back for layer in layers]

    def forward(self, x: Tensor) -> Tensor:
        h = self.layers[0](self.embed(x))
        if self.place == "stem-relu":
            h = h.relu()
        for i, block in enumerate(self.blocks):
            f = block(h)
            if self.place == "between":
                f = self.layers[i + 1](f)
            h = f if self.place in ("state", "stem-relu") else h + f
        return _Top.apply(self.head(h), self.layers)

    def known(self, trace: Any) -> list[Tensor]:
        """e B_l for every site."""
        error = trace.logits.softmax(1) - F.one_hot(trace.labels, CLASSES)
        return [error @ back for back in self.matrices]


def residual(manner: type[Feedback], place: str, seed: int = 0) -> Residual:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Residual(manner, place).eval()
