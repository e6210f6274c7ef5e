"""Networks with known answers, and a check of the measurement against closed forms.

Used by `walkback doctor`, by `python -m protocol.smoke_test`, and wherever a small residual network is handy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from walkback.api import measure
from walkback.data import load
from walkback.errors import FormatError
from walkback.nets.residual import Residual
from walkback.training.bundle import load_bundle
from walkback.training.rows import evaluate
from walkback.training.setup import probe_batches

WIDTH, CLASSES = 32, 10


class ResidualNet(Residual):
    """A residual MLP with the published interface: `embed`, `blocks` that return the branch, `out_ln`, `out_head`."""

    def __init__(self, inputs: int, width: int, depth: int, classes: int, terminal_norm: bool = True) -> None:
        super().__init__()
        self.embed = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
            for _ in range(depth)
        )
        self.out_ln = nn.LayerNorm(width) if terminal_norm else nn.Identity()
        self.out_head = nn.Linear(width, classes)


def network(depth: int = 4, gain: float = 1.0, terminal_norm: bool = True, seed: int = 0) -> ResidualNet:
    """Return a random ResidualNet whose blocks are written `gain` times larger each: gain 1 is healthy, 200 explodes.

    >>> import walkback as wb
    >>> round(wb.measure(network(gain=200.0), batches()).growth) > 50
    True
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = ResidualNet(16, WIDTH, depth, CLASSES, terminal_norm)
    if gain != 1.0:
        with torch.no_grad():
            for level, block in enumerate(net.blocks, 1):
                for parameter in list(block.children())[-1].parameters():
                    parameter.mul_(gain**level)
    return net.eval()


def batches(count: int = 8, size: int = 128, seed: int = 1) -> list[tuple[Tensor, Tensor]]:
    """Return `count` disjoint batches of (size, 16) normal inputs with balanced random labels.

    >>> len(batches()), batches()[0][0].shape
    (8, torch.Size([128, 16]))
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count * size, 16, generator=generator)
    y = torch.arange(count * size)[torch.randperm(count * size, generator=generator)] % CLASSES
    return list(zip(x.split(size), y.split(size)))


def healthy() -> ResidualNet:
    """Return a network the protocol trusts: little growth, a readable gradient.

    >>> import walkback as wb
    >>> wb.diagnose(healthy(), batches(), 0.61, 0.35).verdict
    'passes'
    """
    return network()


def exploded() -> ResidualNet:
    """Return a network of blocks that grow 200-fold each under a terminal norm, which divides the gradient by ‖h‖.

    >>> import walkback as wb
    >>> wb.diagnose(exploded(), batches()).failed
    ('D1', 'D2')
    """
    return network(gain=200.0)


def exploded_without_norm() -> ResidualNet:
    """Return the same explosion with no terminal norm: nothing divides the gradient, so it stays readable.

    >>> import walkback as wb
    >>> wb.diagnose(exploded_without_norm(), batches()).failed
    ()
    """
    return network(gain=200.0, terminal_norm=False)


def creeping() -> ResidualNet:
    """Return a network with thirty-fold growth in each of seven blocks: no block explodes, the stream does.

    >>> import walkback as wb
    >>> m = wb.measure(creeping(), batches())
    >>> m.growth < 50 < m.growth_total
    True
    """
    return network(depth=7, gain=30.0)


def drifting() -> ResidualNet:
    """Return a network exploded along one direction, with a head that is wrong in the same way for every sample."""
    net = network(gain=200.0)
    with torch.no_grad():
        for level, block in enumerate(net.blocks, 1):
            weight, bias = list(block.children())[-1].parameters()
            weight.mul_(1e-3)
            bias.normal_(std=200.0**level, generator=torch.Generator().manual_seed(level))
        net.out_head.bias.copy_(torch.linspace(-3, 3, CLASSES))
    return net


def noisy() -> ResidualNet:
    """Return a network exploded along one direction whose head predicts label frequencies: sampling noise is left."""
    net = drifting()
    with torch.no_grad():
        net.out_head.weight.mul_(1e-3)
        net.out_head.bias.zero_()
    return net


def absorbing() -> ResidualNet:
    """Return a network whose stream is far from zero by one amount in all features, which LayerNorm takes off again.

    ‖g_L‖ and growth look healthy, but in float32 h + f rounds nearly all of f away.
    """
    net = network()
    with torch.no_grad():
        net.embed.bias.add_(1e7)
    return net


def confident() -> tuple[ResidualNet, list[tuple[Tensor, Tensor]]]:
    """Return a network that is nearly always sure, and right: in float32 softmax rounds p to 1, and p − 1 to 0."""
    net = network()
    with torch.no_grad():
        net.out_head.weight.mul_(60.0)
        return net, [(x, net(x).argmax(1)) for x, _ in batches()]  # type: ignore[union-attr]


@dataclass(frozen=True)
class Case:
    """A network, what is claimed of it, and what each edition must say."""

    name: str
    model: nn.Module
    headline_acc: float
    frozen_acc: float
    three_check: tuple[str, ...]
    four_diagnostic: tuple[str, ...]
    submode: str | None = None
    eval_batches: Sequence[tuple[Tensor, Tensor]] | None = None  # those of `batches` where None
    credit: Callable[[Any], Sequence[Tensor]] | None = None


def cases() -> list[Case]:
    """Return every known answer: (name, network, claim, failed checks in both editions, sub-mode)."""
    drift, noise = "drift-dominated", "noise-dominated"
    return [
        Case("healthy", healthy(), 0.60, 0.35, (), ()),
        Case("healthy, depth unused", healthy(), 0.35, 0.35, ("D3",), ("d",)),
        Case("exploded under a terminal norm", exploded(), 0.60, 0.35, ("D1", "D2"), ("a", "b")),
        Case("exploded without a terminal norm", exploded_without_norm(), 0.60, 0.35, (), ("a",)),
        Case("drift-dominated", drifting(), 0.60, 0.35, ("D1", "D2"), ("a", "b"), drift),
        Case("noise-dominated", noisy(), 0.60, 0.35, ("D1", "D2"), ("a", "b"), noise),
        Case("at the floor without an exploding block", creeping(), 0.60, 0.35, (), ("b",)),
    ]


BUNDLES = Path(__file__).parent / "bundles"
# Trained on the embedded task by scripts/ship_bundles.py, and what both editions said of them then.
SHIPPED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "bp": ((), ()),
    "dfa": (("D1", "D2", "D3"), ("a", "b", "d")),
    "ep": ((), ()),
}


def shipped_cases() -> list[Case]:
    """Return the trained networks in the package, loaded as any bundle is; accuracy is taken anew on the test split."""
    found, device = [], torch.device("cpu")
    for rule, (three, four) in SHIPPED.items():
        bundle = load_bundle(BUNDLES / rule)
        data, model, report = load(str(bundle.spec["data"])), bundle.model(), bundle.report()
        if report is None or not isinstance(report.frozen_baseline_acc, float):
            raise FormatError(f"Expected {bundle.path} to hold a report judged against its control, but it does not.")
        right, _ = evaluate(model, data, data.test, device)
        accuracy = float(right.double().mean())
        probe, credit = probe_batches(data, device), bundle.rule(model)
        name = f"trained by {rule.upper()}"
        found.append(Case(name, model, accuracy, report.frozen_baseline_acc, three, four, None, probe, credit))
    return found


def closed_form_errors(seed: int = 0) -> dict[str, float]:
    """Return the relative error of every measured number on a linear residual network, against numpy float64.

    With h_l = (I + W_l) h_{l-1} and logits V h_L, states and gradients are matrix products:
    g_l = (I + W_{l+1})ᵀ … (I + W_L)ᵀ Vᵀ (softmax − onehot).
    """
    rng = np.random.default_rng(seed)
    depth, width, n = 3, 8, 512
    stem, head = rng.normal(size=(width, 5)), rng.normal(size=(4, width))
    layers = [rng.normal(size=(width, width)) / width for _ in range(depth)]
    x, y = rng.normal(size=(n, 5)), rng.integers(4, size=n)
    h = [x @ stem.T]
    for w in layers:
        h.append(h[-1] + h[-1] @ w.T)
    z = h[-1] @ head.T
    p = np.exp(z - z.max(1, keepdims=True))
    error = p / p.sum(1, keepdims=True) - np.eye(4)[y]
    g = [error @ head]
    for w in reversed(layers):
        g.insert(0, g[0] + g[0] @ w)
    feedback = [rng.normal(size=(4, width)) for _ in h]
    a = [error @ b for b in feedback]
    norm = lambda v: np.linalg.norm(v, axis=1)  # noqa: E731
    cosine = [float(np.mean(np.sum(u * v, 1) / (norm(u) * norm(v)))) for u, v in zip(a, g)]
    unit = [m / np.linalg.norm(m) for m in (g[-1][i : i + 128].mean(0) for i in range(0, n, 128))]
    pairs = [float(u @ v) for i, u in enumerate(unit) for v in unit[:i]]

    net = _linear(stem, layers, head)
    data = [(torch.tensor(x[i : i + 100]), torch.tensor(y[i : i + 100])) for i in range(0, n, 100)]

    def credit(trace) -> list[Tensor]:
        e = trace.logits.softmax(1) - nn.functional.one_hot(trace.labels, 4)
        return [e @ torch.tensor(b) for b in feedback]

    m = measure(net, data, credit=credit)
    expected: dict[str, tuple[object, object]] = {
        "h_norm": (m.h_norm, [float(norm(v).mean()) for v in h]),
        "g_norm": (m.g_norm, [float(norm(v).mean()) / 128 for v in g]),
        "cosine": (m.cosine, cosine),
        "stability": ([m.stability], [float(np.mean(pairs))]),
        "growth": ([m.growth], [max(norm(v).mean() / norm(u).mean() for u, v in pairwise(h))]),
    }
    return {
        name: float(np.max(np.abs(np.array(got, float) - np.array(want, float)) / np.abs(np.array(want, float))))
        for name, (got, want) in expected.items()
    }


def _linear(stem: np.ndarray, layers: list[np.ndarray], head: np.ndarray) -> nn.Module:
    net = ResidualNet(stem.shape[1], stem.shape[0], 0, head.shape[0], terminal_norm=False).double()
    net.blocks = nn.ModuleList(nn.Linear(*w.shape[::-1], bias=False, dtype=torch.float64) for w in layers)
    with torch.no_grad():
        net.embed.weight.copy_(torch.tensor(stem))
        net.embed.bias.zero_()
        net.out_head.weight.copy_(torch.tensor(head))
        net.out_head.bias.zero_()
        for block, w in zip(net.blocks, layers):
            next(block.parameters()).copy_(torch.tensor(w))
    return net
