"""A zoo of networks whose answers are known by what happens, not by any threshold of the protocol.

Every specimen starts from a small network trained on a task that needs its blocks. Four strengths are then drawn:

- `mix`: how far its blocks are led back to a random initialisation (depth less and less used), or past it, into
  random blocks so loud that they drown the stem (depth that does harm);
- `growth` and `shrink`: the stream is written s_l times larger at site l and every reader divides by s_l, so that the
  function, and with it accuracy and depth, stay as they are while ‖h_l‖ grows and ‖g_l‖ sinks by s_l;
- `alignment`: the credit has this cosine with the float64 gradient at every site;
- `drift`: a bias of the head that makes every sample wrong in the same way.

What is known then, each by measuring an outcome on samples the protocol does not see:

- `off`: how far the cosine people would report (`F.cosine_similarity` of gradients of a mean loss, in the network's
  dtype) is from the truth; the reference is unusable above 0.05;
- `rounded`: how far a cosine without any ε, of the same gradients, is from the truth: what rounding alone has done;
- `gain`: what re-randomising the blocks and refitting the readout costs; depth is unused below 2 pp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from math import isfinite

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from walkback.errors import InputError
from walkback.nets import build
from walkback.nets.residual import Residual
from walkback.tracing.trace import Trace

OFF, GAIN = 0.05, 2.0  # outcomes: a cosine that is off by this much; percentage points that blocks bring
CLASSES, SHAPE = 4, (1, 4, 4)
TRAIN, TEST, PROBE, FRESH = 4000, 2000, 1024, 10_000
NETS = {
    "resmlp": {"width": 32, "depth": 3},
    "student": {"width": 32, "depth": 3},
    "vit-mini": {"width": 16, "depth": 3, "patch": 2, "heads": 2},
}
DTYPES = ("float32", "float64", "bfloat16", "float16")
DRAWS = 6  # re-randomisations behind one `gain`


@dataclass(frozen=True)
class Strength:
    """What is done to a trained network, see the module."""

    mix: float = 0.0
    growth: float = 1.0
    shrink: float = 1.0
    alignment: float = 1.0
    drift: float = 0.0


@dataclass(frozen=True)
class Specimen:
    """A network with a claim, and what is true of it: many fields, since every check has a truth of its own.

    Args:
        batches: eight probe batches of 128.
        headline_acc: on 2,000 test samples.
        frozen_acc: of one network with random blocks and a refitted readout, on the same samples.
        off: |reported − true| cosine, the worst site 1…L, over the samples for which a number is reported (float16's
            zeros give NaN, which people see); infinite where there is none.
        rounded: the same of a cosine that is not clamped; a sample that has lost its gradient counts as 0.
        gain: accuracy minus that of re-randomised blocks, in pp, on 10,000 other samples.
        drifts: one direction explains more than half of the reference.
    """

    name: str
    kind: str
    dtype: str
    strength: Strength
    net: nn.Module
    batches: Sequence[tuple[Tensor, Tensor]]
    credit: Callable[[Trace], Sequence[Tensor]]
    headline_acc: float
    frozen_acc: float
    reported: float
    off: float
    rounded: float
    gain: float
    drifts: bool


Drawn = tuple[str, str, Strength, int]  # family, dtype, strength, seed


def zoo(
    count: int = 240, seed: int = 0, nets: Sequence[str] = tuple(NETS), dtypes: Sequence[str] = DTYPES
) -> Iterator[Specimen]:
    """Return `count` specimens, drawn from a seed; half of them in the first dtype.

    >>> first = next(zoo(1, nets=["resmlp"], dtypes=["float64"]))
    >>> first.kind, len(first.batches), first.net.out_head.weight.dtype
    ('resmlp', 8, torch.float64)
    """
    return (specimen(*one) for one in drawn(count, seed, nets, dtypes))


def drawn(count: int, seed: int, nets: Sequence[str], dtypes: Sequence[str]) -> list[Drawn]:
    """Return what `specimen` makes `count` specimens of."""
    for name, known, asked in (("nets", NETS, nets), ("dtypes", DTYPES, dtypes)):
        if not asked or set(asked) - set(known):
            raise InputError(f"Expected {name} among {', '.join(known)}, but got {', '.join(asked) or 'none'}.")
    draw, found = np.random.RandomState(seed), []
    for number in range(count):
        kind = nets[number % len(nets)]
        dtype = dtypes[0] if len(dtypes) == 1 or draw.rand() < 0.5 else dtypes[draw.randint(1, len(dtypes))]
        found.append((kind, dtype, _strength(draw, dtype), draw.randint(2**31)))
    return found


def name_of(kind: str, dtype: str, strength: Strength, seed: int = 0) -> str:
    """Return a specimen in words: family, dtype and strengths."""
    return f"{kind} {dtype} " + " ".join(f"{k} {v:.3g}" for k, v in vars(strength).items())


def _strength(draw: np.random.RandomState, dtype: str) -> Strength:
    """Draw a strength: in one of three healthy, in one with one thing broken, in one with anything broken."""
    anything = Strength(
        mix=round(draw.uniform(0.4, 1.6), 1),
        growth=float(10 ** draw.uniform(0, 3)),
        shrink=float(10 ** draw.uniform(0, 8)),
        alignment=float(draw.uniform(0, 1)),
        drift=float(draw.choice([0.0, draw.uniform(0, 8)])),
    )
    if dtype == "float16":  # its range ends at 65,504
        anything = replace(anything, growth=anything.growth**0.5, shrink=anything.shrink**0.2)
    sort = draw.randint(3)
    if sort == 2:
        return anything
    healthy = {"mix": round(0.3 * draw.rand(), 1), "alignment": 0.3 + 0.7 * draw.rand()}
    if sort == 1:
        one = draw.choice(["mix", "growth", "shrink", "alignment", "drift"])
        healthy[one] = getattr(anything, one)
    return Strength(**healthy)


def specimen(kind: str, dtype: str, strength: Strength, seed: int = 0) -> Specimen:
    """Build one and find out what is true of it."""
    base = _mixed(kind, strength.mix, seed % 3)
    if strength.drift:
        base = deepcopy(base)
        head = _head(base)
        with torch.no_grad():
            head.bias.add_(strength.drift * torch.linspace(-1, 1, CLASSES, dtype=head.bias.dtype))
    scales = _scales(strength, len(base.blocks))
    net = Rescaled(base, scales).to(getattr(torch, dtype)).eval()
    exact = deepcopy(net).double()  # the same, rounded weights: what the gradient of this very network is
    task = _task()
    x, y = task["probe"]
    batches = [(a.to(_dtype(net)), b) for a, b in zip(x.split(128), y.split(128))]
    truths = [_gradients(exact, a.double(), b) for a, b in batches]
    credits = [_credits(truth, strength.alignment, seed + i) for i, truth in enumerate(truths)]
    reported, plain = _reported(net, batches, credits)
    off, rounded = (
        max(abs(value - strength.alignment) if isfinite(value) else np.inf for value in values[1:])
        for values in (reported, plain)
    )
    frozen = _refitted(kind, seed % 3, 1000 + seed % 2)
    return Specimen(
        name=name_of(kind, dtype, strength),
        kind=kind,
        dtype=dtype,
        strength=strength,
        net=net,
        batches=batches,
        credit=lambda trace: [a.to(h.dtype).view_as(h) for a, h in zip(credits[trace.index], trace.states)],
        headline_acc=accuracy(net, *task["test"]),
        frozen_acc=accuracy(frozen, *task["test"]),
        reported=float(np.mean(reported[:-1])),
        off=float(off),
        rounded=float(rounded),
        gain=100 * (accuracy(deepcopy(base).float(), *task["fresh"]) - _rivals(kind, seed % 3)),
        drifts=_drifts(exact),
    )


class Rescaled(Residual):
    """The same function as `base`, the stream of site l written scales[l] times larger: g_l is so much smaller."""

    def __init__(self, base: Residual, scales: Sequence[float]) -> None:
        super().__init__()
        self.base, self.scales = deepcopy(base), tuple(scales)
        self.embed = _Stem(getattr(self.base, self.base.stem_name), scales[0])
        self.blocks = nn.ModuleList(_Block(block, a, b) for block, a, b in zip(self.base.blocks, scales, scales[1:]))
        self.out_head = _head(self.base)

    def readout(self, h: Tensor) -> Tensor:
        """Map h_L, as it is written, to logits (B, C)."""
        return self.base.readout(h / self.scales[-1])


class _Stem(nn.Module):
    def __init__(self, stem: nn.Module, scale: float) -> None:
        super().__init__()
        self.stem, self.scale = stem, scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.stem(x)


class _Block(nn.Module):
    """Returns the branch that leads from a·h to b·(h + f(h))."""

    def __init__(self, block: nn.Module, a: float, b: float) -> None:
        super().__init__()
        self.block, self.a, self.b = block, a, b

    def forward(self, h: Tensor) -> Tensor:
        inner = h / self.a
        return self.b * (inner + self.block(inner)) - h


def _scales(strength: Strength, depth: int) -> list[float]:
    """Return a scale per site, powers of two, so that rescaling rounds nothing; the block in the middle grows."""
    low = 2.0 ** round(np.log2(strength.shrink))
    high = low * 2.0 ** round(np.log2(strength.growth))
    return [low] * (depth // 2 + 1) + [high] * (depth - depth // 2)


def _head(net: nn.Module) -> nn.Linear:
    return net.out_head if hasattr(net, "out_head") else net.head  # type: ignore[return-value]


def _dtype(net: nn.Module) -> torch.dtype:
    return next(net.parameters()).dtype


@cache
def _task() -> dict[str, tuple[Tensor, Tensor]]:
    """Return splits of sixteen normal inputs; the class is the largest of four scores, part linear, part quadratic."""
    draw = np.random.RandomState(0)
    w, a = draw.standard_normal((CLASSES, 16)), draw.standard_normal((CLASSES, 16, 16)) / 16
    sizes = {"train": TRAIN, "test": TEST, "probe": PROBE, "fresh": FRESH, "other probe": PROBE}
    x = draw.standard_normal((sum(sizes.values()), 16))
    scores = 0.5 * x @ w.T / 4 + np.einsum("ni,cij,nj->nc", x, a, x) - np.trace(a, axis1=1, axis2=2)
    parts = np.cumsum(list(sizes.values()))[:-1]
    inputs, labels = torch.from_numpy(x).view(-1, *SHAPE), torch.from_numpy(scores.argmax(1))
    return dict(zip(sizes, zip(inputs.tensor_split(parts.tolist()), labels.tensor_split(parts.tolist()))))


@cache
def _trained(kind: str, seed: int) -> Residual:
    """Return a network trained by backpropagation, which takes a second or two."""
    x, y = _task()["train"]
    x = x.float()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = build(kind, SHAPE, CLASSES, **NETS[kind])
        optimiser = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.05)
        epochs = 12
        for epoch in range(epochs):
            for group in optimiser.param_groups:
                group["lr"] = 3e-3 * (1 - epoch / epochs)
            for index in torch.randperm(len(x)).split(128):
                optimiser.zero_grad()
                F.cross_entropy(net(x[index]), y[index]).backward()
                optimiser.step()
    return net.double().eval()  # type: ignore[return-value]


@cache
def _refitted(kind: str, seed: int, draw: int) -> Residual:
    """Return the trained network with its blocks drawn anew and its readout fitted to them."""
    net = deepcopy(_trained(kind, seed))
    net.blocks.load_state_dict(_fresh(kind, draw).blocks.state_dict())
    return _refit(net)


@cache
def _rivals(kind: str, seed: int) -> float:
    """Return the mean accuracy of re-randomised networks on fresh samples."""
    nets = (_refitted(kind, seed, draw) for draw in range(DRAWS))
    return float(np.mean([accuracy(deepcopy(net).float(), *_task()["fresh"]) for net in nets]))


@cache
def _mixed(kind: str, mix: float, seed: int) -> Residual:
    """Return blocks at (1 − mix)·trained + mix·random; past 1, random ones that grow louder, tenfold by 1.6."""
    if not mix:
        return _trained(kind, seed)
    net, other = deepcopy(_trained(kind, seed)), _fresh(kind, 500 + seed).blocks.state_dict()
    share, loud = min(mix, 1.0), 10 ** (max(mix - 1.0, 0.0) / 0.6)
    mine = net.blocks.state_dict()
    net.blocks.load_state_dict({k: ((1 - share) * v + share * other[k]) for k, v in mine.items()})
    with torch.no_grad():
        for block in net.blocks:
            for parameter in list(block.children())[-1].parameters():
                parameter.mul_(loud)
    return _refit(net)


def _fresh(kind: str, draw: int) -> Residual:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(10_000 + draw)
        return build(kind, SHAPE, CLASSES, **NETS[kind]).double()  # type: ignore[return-value]


def _refit(net: Residual) -> Residual:
    """Fit the head by logistic regression on what it reads, in float64."""
    x, y = _task()["train"]
    head = _head(net)
    seen: list[Tensor] = []
    hook = head.register_forward_hook(lambda _m, args, _out: seen.append(args[0]))
    with torch.no_grad():
        net(x)
    hook.remove()
    optimiser = torch.optim.LBFGS(head.parameters(), max_iter=50, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = F.cross_entropy(head(seen[0]), y) + 1e-4 * head.weight.pow(2).sum()
        value.backward()
        return value

    optimiser.step(loss)  # type: ignore[arg-type]
    optimiser.zero_grad()
    return net.eval()


@torch.no_grad()
def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the accuracy on (N, …) samples."""
    return float((net(x.to(_dtype(net))).argmax(1) == y).double().mean())


def _gradients(net: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """Return the gradients (B, n) of per-sample losses at every site."""
    logits, hidden = net(x, return_hidden=True)
    return [g.flatten(1) for g in torch.autograd.grad(F.cross_entropy(logits, y, reduction="sum"), hidden)]


def _credits(truth: Sequence[Tensor], alignment: float, seed: int) -> list[Tensor]:
    """Return vectors of length one with this cosine to each row of each site's gradient."""
    generator = torch.Generator().manual_seed(seed)
    out = []
    for g in truth:
        unit = F.normalize(g, dim=1, eps=1e-300)
        other = torch.randn(g.shape, generator=generator, dtype=g.dtype)
        other = F.normalize(other - (other * unit).sum(1, keepdim=True) * unit, dim=1)
        out.append(alignment * unit + (1 - alignment**2) ** 0.5 * other)
    return out


def _reported(
    net: nn.Module, batches: Sequence[tuple[Tensor, Tensor]], credits: Sequence[list[Tensor]]
) -> tuple[list[float], list[float]]:
    """Return per site the cosine by `loss.mean().backward()` and `F.cosine_similarity`, and a plain one."""
    printed, plain = [], []
    for (x, y), credit in zip(batches, credits):
        logits, hidden = net(x, return_hidden=True)
        means = torch.autograd.grad(F.cross_entropy(logits, y), hidden, retain_graph=True)
        pairs = [(a.to(g.dtype) / len(x), g.flatten(1)) for a, g in zip(credit, means)]
        printed.append([float(F.cosine_similarity(a, g).float().nanmean()) for a, g in pairs])  # walkback: ignore[P02]
        sums = torch.autograd.grad(F.cross_entropy(logits, y, reduction="sum"), hidden)
        plain.append([_plain_cosine(a, g.flatten(1).double()) for a, g in zip(credit, sums)])
    return [*map(_mean, zip(*printed))], [*map(_mean, zip(*plain))]


def _plain_cosine(a: Tensor, g: Tensor) -> float:
    """Return the mean cosine over samples; 0 for one without a gradient."""
    length = g.norm(dim=1)
    return float(torch.where(length > 0, (a * g).sum(1) / (a.norm(dim=1) * length), 0.0).mean())


def _mean(values: Sequence[float]) -> float:
    """Return the mean over the batches that gave a number; NaN where none did."""
    known = [v for v in values if isfinite(v)]
    return float(np.mean(known)) if known else float("nan")


def _drifts(net: nn.Module) -> bool:
    """Return whether the mean direction of one half of fresh samples explains most of the other half's gradients."""
    x, y = (part[:2000] for part in _task()["fresh"])
    g = F.normalize(_gradients(net, x.double(), y)[-1], dim=1, eps=1e-300)
    direction = F.normalize(g[:1000].mean(0), dim=0, eps=1e-300)
    return bool((g[1000:] @ direction).pow(2).mean() > 0.5)
