"""Small networks for the tests, and slow second derivations of what is measured on them.

Nothing here imports walkback: a bug there can't hide in the number it is compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Array = np.ndarray


# -- linear residual networks: everything is a matrix product --------------------------------------------


@dataclass(frozen=True)
class Linear:
    """h_0 = S x, h_l = (I + W_l) h_{l-1}, logits = V h_L, with cross-entropy times `scale`. All numpy float64."""

    stem: Array
    layers: tuple[Array, ...]
    head: Array
    scale: float = 1.0

    @staticmethod
    def random(depth: int = 3, width: int = 8, seed: int = 0, gain: float = 1.0, scale: float = 1.0) -> Linear:
        """Weights that float32 holds exactly, and logits of about one, however much the blocks grow the stream."""
        rng = np.random.default_rng(seed)
        layers = tuple(_float32(gain * rng.normal(size=(width, width)) / width) for _ in range(depth))
        spec = Linear(_float32(rng.normal(size=(width, 5))), layers, rng.normal(size=(4, width)), scale)
        logits = spec.states(spec.data(256)[0])[-1] @ spec.head.T
        return replace(spec, head=_float32(spec.head / logits.std()))

    def data(self, n: int, seed: int = 1) -> tuple[Array, Array]:
        rng = np.random.default_rng(seed)
        return _float32(rng.normal(size=(n, self.stem.shape[1]))), rng.integers(self.head.shape[0], size=n)

    def states(self, x: Array) -> list[Array]:
        eye = np.eye(len(self.stem))
        out = [x @ self.stem.T]
        for w in self.layers:
            out.append(out[-1] @ (eye + w).T)
        return out

    def error(self, x: Array, y: Array) -> Array:
        """∂loss/∂logits of every sample: softmax − onehot, times the scale."""
        return self.scale * softmax_error(self.states(x)[-1] @ self.head.T, y)

    def grads(self, x: Array, y: Array) -> list[Array]:
        eye = np.eye(len(self.stem))
        out = [self.error(x, y) @ self.head]
        for w in reversed(self.layers):
            out.insert(0, out[0] @ (eye + w))
        return out

    def net(self, dtype: torch.dtype = torch.float64) -> LinearNet:
        return LinearNet(self).to(dtype)

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return self.scale * nn.functional.cross_entropy(logits, y, reduction="none")


class LinearNet(nn.Module):
    """The torch twin of `Linear`, with the published interface; blocks return the branch W_l h."""

    def __init__(self, spec: Linear) -> None:
        super().__init__()
        self.embed, self.out_head = _fixed(spec.stem), _fixed(spec.head)
        self.blocks = nn.ModuleList(_fixed(w) for w in spec.layers)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h)
        return self.out_head(h)


def _float32(v: Array) -> Array:
    return v.astype(np.float32).astype(np.float64)


def _fixed(weight: Array) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight))
    return layer


def softmax_error(logits: Array, y: Array) -> Array:
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) - np.eye(logits.shape[-1])[y]


def cross_entropy(logits: Array, y: Array) -> Array:
    shifted = logits - logits.max(-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return -np.take_along_axis(log_p, y[..., None], -1)[..., 0]


# -- smooth networks of every shape, in every way a block can be written -----------------------------------


class Body(nn.Module):
    """A smooth residual branch for (B, d), (B, T, d) or (B, C, H, W) that mixes whatever axes there are.

    It starts with a product that autograd need not keep, so a caller may write the stream in place afterwards.
    """

    def __init__(self, kind: str, width: int, tokens: int) -> None:
        super().__init__()
        make = {"maps": lambda: nn.Conv2d(width, width, 3, padding=1)}.get(kind, lambda: nn.Linear(width, width))
        self.first, self.second = make(), make()
        self.mix = nn.Parameter(torch.randn(tokens, tokens) / tokens) if kind == "tokens" else None

    def forward(self, h: Tensor) -> Tensor:
        h = h * 1.5
        if self.mix is not None:
            h = torch.einsum("st,btd->bsd", self.mix, h)
        return self.second(torch.tanh(self.first(h)))


class Block(nn.Module):
    """Returns the branch, the new state, a view of it, or the new state written over its input ("inplace")."""

    def __init__(self, body: Body, returns: str) -> None:
        super().__init__()
        self.body, self.returns = body, returns

    def forward(self, h: Tensor) -> Tensor:
        f = self.body(h)
        if self.returns == "branch":
            return f
        if self.returns == "inplace":
            return h.add_(f)
        return (h + f).view(h.shape) if self.returns == "view" else h + f


class SmoothNet(nn.Module):
    """A residual network of any shape; `from_site` runs the rest of it from a given h_l.

    Args:
        kind: "flat" (B, d), "tokens" (B, T, d) or "maps" (B, C, H, W).
        reads: for tokens: "cls", "last", "mean", or "own" (a token that depends on the sample's input).
        returns: what blocks return: "branch", "state" or "inplace".
        add: how the model adds a branch: "out" (h = h + f), "in" (h += f) or "onto" (f += h).
        identity: the stem hands the input on as it is.
        checkpointed: blocks run under activation checkpointing.

    """

    TOKENS = 3

    def __init__(
        self,
        kind: str = "flat",
        reads: str = "cls",
        returns: str = "branch",
        add: str = "out",
        identity: bool = False,
        checkpointed: bool = False,
        depth: int = 3,
        width: int = 6,
        classes: int = 4,
        seed: int = 0,
        norm: bool = True,
    ) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            lift = nn.Conv2d(width, width, 1) if kind == "maps" else nn.Linear(width, width)
            self.embed = nn.Identity() if identity else lift
            self.blocks = nn.ModuleList(Block(Body(kind, width, self.TOKENS), returns) for _ in range(depth))
            self.norm = nn.LayerNorm(width) if norm else nn.Identity()
            self.head = nn.Linear(width, classes)
            with torch.no_grad():
                for parameter in self.parameters():
                    parameter.mul_(1.5)
        self.kind, self.reads, self.add, self.checkpointed = kind, reads, add, checkpointed
        self.double().eval()

    def example(self, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        width, classes = self.head.in_features, self.head.out_features
        shape = {"flat": (width,), "tokens": (self.TOKENS, width), "maps": (width, 4, 4)}[self.kind]
        x = torch.randn(n, *shape, generator=generator, dtype=torch.float64)
        return x, torch.randint(classes, (n,), generator=generator)

    def readout(self, h: Tensor, x: Tensor) -> Tensor:
        if self.kind == "maps":
            h = h.mean((2, 3))
        elif self.kind == "tokens" and self.reads == "own":
            h = h[torch.arange(len(h)), self.own(x)]
        elif self.kind == "tokens":
            h = {"cls": lambda: h[:, 0], "last": lambda: h[:, -1], "mean": lambda: h.mean(1)}[self.reads]()
        return self.head(self.norm(h))

    def own(self, x: Tensor) -> Tensor:
        """(B,) the token that each sample's readout looks at when `reads` is "own"."""
        return x[..., 0].argmax(1)

    def step(self, block: nn.Module, h: Tensor) -> Tensor:
        made = checkpoint(block, h, use_reentrant=False) if self.checkpointed else block(h)
        if block.returns != "branch":
            return made
        if self.add == "in":
            h += made
            return h
        if self.add == "onto":
            made += h
            return made
        return h + made

    def from_site(self, h: Tensor, site: int, x: Tensor) -> Tensor:
        for block in self.blocks[site:]:
            h = self.step(block, h)
        return self.readout(h, x)

    def forward(self, x: Tensor) -> Tensor:
        return self.from_site(self.embed(x), 0, x)

    @torch.no_grad()
    def stream(self, x: Tensor) -> list[Tensor]:
        """h_0 … h_L by the definition, each a tensor of its own."""
        out = [self.embed(x).clone()]
        for block in self.blocks:
            out.append(out[-1] + block.body(out[-1]))
        return out

    @torch.no_grad()
    def loss_from(self, h: Tensor, site: int, x: Tensor, y: Tensor) -> Array:
        """(B,) cross-entropy in numpy, of the network run on from h at `site`."""
        return cross_entropy(self.from_site(h.clone(), site, x).double().numpy(), y.numpy())


def difference_gradient(net: SmoothNet, x: Tensor, y: Tensor, site: int, step: float = 1e-5) -> Array:
    """∂(per-sample loss)/∂h_site by central differences, one coordinate at a time."""
    h = net.stream(x)[site]
    out = np.zeros(h.flatten(1).shape)
    for j in range(out.shape[1]):
        delta = torch.zeros_like(h)
        delta.flatten(1)[:, j] = step
        out[:, j] = (net.loss_from(h + delta, site, x, y) - net.loss_from(h - delta, site, x, y)) / (2 * step)
    return out.reshape(h.shape)


def autograd_gradients(net: SmoothNet, x: Tensor, y: Tensor) -> list[Array]:
    """g_0 … g_L of the summed loss, each by its own backward from a fresh leaf."""
    out = []
    for site, h in enumerate(net.stream(x)):
        leaf = h.clone().requires_grad_()
        loss = nn.functional.cross_entropy(net.from_site(leaf * 1.0, site, x), y, reduction="sum")
        out.append(torch.autograd.grad(loss, leaf)[0].numpy())
    return out


# -- the definitions, written out sample by sample ---------------------------------------------------------


def rows(v: Array) -> Array:
    return np.asarray(v, dtype=np.float64).reshape(len(v), -1)


def cos(u: Array, v: Array) -> float:
    return float(np.dot(u, v) / (np.linalg.norm(u) * np.linalg.norm(v)))


def mean_norm(v: Array) -> float:
    return float(np.mean([np.linalg.norm(row) for row in rows(v)]))


def mean_cosine(a: Array, g: Array) -> float:
    return float(np.mean([cos(u, v) for u, v in zip(rows(a), rows(g))]))


def groups(v: Array, size: int = 128) -> list[Array]:
    """Means over consecutive groups of 128 samples; what is left over at the end is dropped."""
    flat = rows(v)
    return [flat[i : i + size].mean(0) for i in range(0, len(flat) - size + 1, size)]


def mean_pairwise(vectors: Sequence[Array]) -> float:
    return float(np.mean([cos(u, v) for i, u in enumerate(vectors) for v in vectors[:i]]))


# -- data ------------------------------------------------------------------------------------------------


def batched(x: Tensor | Array, y: Tensor | Array, *sizes: int) -> list[tuple[Tensor, Tensor]]:
    """Consecutive batches; the last size repeats until everything is used."""
    x, y = torch.as_tensor(x), torch.as_tensor(y)
    out, start, turn = [], 0, 0
    while start < len(x):
        size = sizes[min(turn, len(sizes) - 1)]
        out.append((x[start : start + size], y[start : start + size]))
        start, turn = start + size, turn + 1
    return out
