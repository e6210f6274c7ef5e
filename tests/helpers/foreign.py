"""Layers of the kind other feedback-alignment libraries have, written for these tests, and networks built from them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class _FeedbackMap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(x, back)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, back = ctx.saved_tensors
        return grad @ back, grad.flatten(0, -2).T @ x.flatten(0, -2), None


feedback_map = _FeedbackMap.apply  # taken at import, as libraries do


class FALinear(nn.Linear):
    """BioTorch's idea: a linear layer whose backward uses a fixed random matrix B (out, in) instead of its weight."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.back = nn.Parameter(torch.randn(outputs, inputs) / outputs**0.5, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return feedback_map(x, self.weight, self.back) + self.bias


class _Keep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, wire: dict[str, Tensor]) -> Tensor:
        ctx.wire = wire
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        ctx.wire["error"] = grad
        return grad, None


class _Replace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, back: Tensor, wire: dict[str, Tensor]) -> Tensor:
        ctx.wire, ctx.back, ctx.shape = wire, back, x.shape
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        sent = ctx.wire["error"] @ ctx.back
        return (sent if len(ctx.shape) == 2 else (sent / ctx.shape[1])[:, None].expand(ctx.shape)), None, None


class DFALayer(nn.Module):
    """TinyDFA's idea: nothing forward; backward, what came from above is replaced by the projected output error."""

    def __init__(self, wire: dict[str, Tensor], classes: int, width: int) -> None:
        super().__init__()
        self.wire = wire
        self.register_buffer("back", torch.randn(classes, width) / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return _Replace.apply(x, self.back, self.wire)


class DFAOutput(nn.Module):
    """Catches the output error on its way back."""

    def __init__(self, wire: dict[str, Tensor]) -> None:
        super().__init__()
        self.wire = wire

    def forward(self, x: Tensor) -> Tensor:
        return _Keep.apply(x, self.wire)


class Net(nn.Module):
    """A residual tanh network with plain layers, FA layers, or DFA layers behind every block. Tokens: int inputs."""

    def __init__(self, kind: str, depth: int = 3, width: int = 16, classes: int = 5, tokens: bool = False) -> None:
        super().__init__()
        linear = FALinear if kind == "fa" else nn.Linear
        self.embed = nn.Embedding(11, width) if tokens else nn.Linear(8, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(linear(width, width), nn.Tanh(), linear(width, width)) for _ in range(depth)
        )
        self.out_ln, self.out_head = nn.LayerNorm(width), nn.Linear(width, classes)
        self.dfa = None
        if kind == "dfa":
            wire: dict[str, Tensor] = {}
            self.dfa = nn.ModuleList(DFALayer(wire, classes, width) for _ in range(depth + 1))
            self.output = DFAOutput(wire)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        if self.dfa is not None:
            h = self.dfa[0](h)
        for i, block in enumerate(self.blocks):
            f = block(h)
            h = h + (f if self.dfa is None else self.dfa[i + 1](f))
        h = h.mean(1) if h.ndim == 3 else h
        logits = self.out_head(self.out_ln(h))
        return logits if self.dfa is None else self.output(logits)


def made(kind: str, seed: int = 0, **options: Any) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Net(kind, **options).eval()


def plain_twin(net: Net, **options: Any) -> Net:
    """The same weights in plain layers."""
    twin = Net("plain", **options).eval()
    known = twin.state_dict()
    twin.load_state_dict({name: value for name, value in net.state_dict().items() if name in known})
    return twin


def example(count: int = 2, size: int = 128, tokens: bool = False, seed: int = 3) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    shape = (count * size, 6) if tokens else (count * size, 8)
    x = torch.randint(11, shape, generator=generator) if tokens else torch.randn(shape, generator=generator)
    y = torch.randint(5, (count * size,), generator=generator)
    return list(zip(x.split(size), y.split(size)))
