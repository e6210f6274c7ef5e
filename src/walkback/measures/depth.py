"""What trained blocks are worth, from one checkpoint: put them back to random draws, refit the readout, compare.

Both networks get the same readout, refitted on the same training samples, so that only the blocks differ. Beside it:
blocks left out, and a linear probe of every site's state, so that accuracy can be seen growing with depth, or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from walkback.errors import AnatomyError, InputError
from walkback.measures.nulls import student
from walkback.measures.vectors import readers, site_vectors
from walkback.network.anatomy import Anatomy, unwrap
from walkback.network.values import modules_of, places
from walkback.registry import whole_numbers
from walkback.tracing.session import Tracer
from walkback.tracing.untouched import set_modes, untouched

STRENGTHS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)  # of the ridge on standardised features
HELD_OUT = 0.1
CHOOSE = 10_000  # samples that the ridge is chosen on: more say no more about it
LARGE = 2**24  # entries of features above which float32 does
Batches = Iterable[tuple[Any, Tensor]]
Build = Callable[[], nn.Module]


@dataclass(frozen=True)
class Depth:
    """What the trained blocks are worth. Accuracies are fractions of the test samples; all readouts are refitted.

    Args:
        worth_pp: accuracy of the trained blocks minus that of random ones, in percentage points.
        interval: 95 %, from the paired test samples and from the draws together.
        trained: accuracy with the trained blocks.
        rerandomised: accuracy with the blocks drawn anew, one per draw.
        by_depth: accuracy of a linear probe of every site, "trained" and "re-randomised" (mean over draws).
        without: accuracy with one block left out, by block; None where the stream does not allow it.
        without_all: accuracy with all blocks left out: the stem alone.
        pixels: accuracy of a linear model of the inputs, None where they are no numbers of one shape.
        samples: how many were used to fit, and to compare.
        parts: the standard error from the test samples and from the draws, in percentage points.
        reasons: why a field is None.

    >>> found = Depth(3.0, (1.0, 5.0), 0.5, (0.46, 0.48), {"trained": [0.4, 0.5]}, None, None, None,
    ...     {"train": 100, "test": 100}, {"samples": 0.8, "draws": 0.6}, 1e-4)
    >>> str(found).splitlines()[0]
    'trained blocks are worth +3.0 pp [+1.0, +5.0]'
    """

    worth_pp: float
    interval: tuple[float, float]
    trained: float
    rerandomised: tuple[float, ...]
    by_depth: dict[str, list[float]]
    without: list[float] | None
    without_all: float | None
    pixels: float | None
    samples: dict[str, int]
    parts: dict[str, float]
    strength: float
    reasons: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        low, high = self.interval
        lines = [
            f"trained blocks are worth {self.worth_pp:+.1f} pp [{low:+.1f}, {high:+.1f}]",
            f"accuracy {self.trained:.3f} with them, {_mean(self.rerandomised):.3f} with random ones "
            f"({len(self.rerandomised)} draws), all readouts refitted on {self.samples['train']} samples",
            "site            " + " ".join(f"{site:>6}" for site in range(len(self.by_depth["trained"]))),
        ]
        lines += [f"{name:15} " + " ".join(f"{a:6.3f}" for a in values) for name, values in self.by_depth.items()]
        if self.without is not None:
            lines.append("without block " + " " * 9 + " ".join(f"{a:6.3f}" for a in self.without))
        floors = [("stem alone", self.without_all), ("inputs alone", self.pixels)]
        return "\n".join([*lines, *(f"{name}: {a:.3f}" for name, a in floors if a is not None)])


def depth(
    model: nn.Module,
    train: Batches,
    test: Batches,
    *,
    draws: int = 3,
    anatomy: Anatomy | Mapping[str, Any] | None = None,
    build: Build | None = None,
    seed: int = 0,
) -> Depth:
    """Return what the trained blocks of a classifier are worth without training a control.

    Args:
        model: left as found.
        train: (inputs, labels) to fit readouts on; kept in memory.
        test: (inputs, labels) to compare on.
        draws: how many random draws of the blocks.
        anatomy: as in `diagnose`.
        build: makes a new, untrained network; by default blocks are drawn by their modules' `reset_parameters`.
        seed: of the draws.

    >>> import walkback as wb
    >>> found = depth(wb.selftest.healthy(), wb.selftest.batches(8), wb.selftest.batches(8), draws=2)
    >>> len(found.by_depth["trained"]), len(found.rerandomised)
    (5, 2)
    """
    whole_numbers(draws=draws)
    if draws < 2:
        raise InputError(f"Expected draws >= 2, since their spread is part of the answer, but got {draws}.")
    seen, unseen = list(train), list(test)
    if not seen or not unseen:
        raise InputError("Expected batches to fit on and batches to compare on, but one of them is empty.")
    bare = unwrap(model)
    with untouched(bare) as found:
        first = _features(bare, seen, anatomy), _features(bare, unseen, anatomy)
        strength = _strength(*first[0].head, seed)
        of = lambda name, a, b: _score(a.at(name), a.labels, b.at(name), b.labels, strength)  # noqa: E731
        sites = range(first[0].sites)
        right = of("head", *first)
        probes = {"trained": [_accuracy(of(site, *first)) for site in sites], "re-randomised": [0.0 for _ in sites]}
        rivals = []
        for draw in range(draws):
            with torch.random.fork_rng(devices=_cuda(bare)):
                torch.manual_seed(seed + 1 + draw)
                _randomise(bare, first[0].blocks, build, anatomy)
                _settle(bare, first[0].blocks, seen)
            drawn = _features(bare, seen, anatomy), _features(bare, unseen, anatomy)
            rivals.append(of("head", *drawn))
            for site in sites:
                probes["re-randomised"][site] += _accuracy(of(site, *drawn)) / draws
            found.rewind()
        without, why = _without(bare, seen, unseen, anatomy, first[0], strength)
    pixels, no_pixels = _pixels(seen, unseen, seed)
    reasons = {name: text for name, text in (("without", why), ("pixels", no_pixels)) if text}
    worth, interval, parts = _worth(right, rivals)
    return Depth(
        worth, interval, _accuracy(right), tuple(map(_accuracy, rivals)), probes,
        without[:-1] if without else None, without[-1] if without else None, pixels,
        {"train": len(first[0].labels), "test": len(first[1].labels)}, parts, strength, reasons,
    )  # fmt: skip


# -- features ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Features:
    """What a network makes of some samples: one vector per sample of every site, and what the last linear map reads."""

    states: tuple[Tensor, ...]
    read: Tensor
    labels: Tensor
    blocks: tuple[nn.Module, ...]
    branch: bool

    @property
    def sites(self) -> int:
        return len(self.states)

    @property
    def head(self) -> tuple[Tensor, Tensor]:
        return self.read, self.labels

    def at(self, name: int | str) -> Tensor:
        return self.read if name == "head" else self.states[name]  # type: ignore[index]


def _features(model: nn.Module, batches: Sequence[tuple[Any, Tensor]], anatomy: Any) -> _Features:
    states: list[list[Tensor]] = []
    read, labels, heard = [], [], []
    with Tracer(model, anatomy) as tracer:
        head = _head(tracer)
        hook = head.register_forward_pre_hook(lambda _m, args: heard.append(args[0].detach()))
        try:
            for x, y in batches:
                heard.clear()
                trace = tracer.trace(x, y)
                if trace.labels.ndim != 1 or trace.labels.is_floating_point():
                    raise InputError("Expected one class per sample as labels (B,), which a refitted readout predicts.")
                if len(heard) == 0 or heard[-1].flatten(1).shape[0] != len(trace.labels) or heard[-1].ndim != 2:
                    raise InputError(
                        "Expected the readout to end in one nn.Linear that reads a vector per sample (B, d), but it "
                        f"reads {[tuple(t.shape) for t in heard] or 'nothing'}."
                    )
                at = readers(trace)
                vectors = [site_vectors(h, trace.pool, at, trace.mask) for h in trace.states]
                states.append([v.double().cpu() for v in vectors])
                read.append(heard[-1].double().cpu())
                labels.append(trace.labels.cpu())
        finally:
            hook.remove()
        branch, blocks = bool(tracer.branch), tracer.blocks
    return _Features(
        tuple(torch.cat(parts) for parts in zip(*states)), torch.cat(read), torch.cat(labels), blocks, branch
    )


def _head(tracer: Tracer) -> nn.Linear:
    """The last linear map of the readout."""
    modules = [m for part in tracer.anatomy.readout if isinstance(part, nn.Module) for m in modules_of(part)]
    linear = [m for m in modules if isinstance(m, nn.Linear)]
    if not linear:
        kinds = ", ".join(type(m).__name__ for m in modules) or "nothing"
        raise AnatomyError(
            f"Expected a readout that ends in an nn.Linear, which can be refitted, but it has {kinds}. Name it: "
            "anatomy=Anatomy.of(model, readout=[...])."
        )
    return linear[-1]


# -- a readout, fitted -------------------------------------------------------------------------------------------------


def _fit(x: Tensor, y: Tensor, strength: float) -> Callable[[Tensor], Tensor]:
    """Logistic regression on standardised features (N, d), to its optimum; what predicts classes from others."""
    mean, std = x.mean(0), x.std(0).clamp(min=1e-12 * (1 + float(x.abs().max())))
    kind = torch.float32 if x.numel() > LARGE else torch.float64
    rows, classes = ((x - mean) / std).to(kind), int(y.max()) + 1
    weight = torch.zeros(classes, x.shape[1], dtype=kind, requires_grad=True)
    bias = torch.zeros(classes, dtype=kind, requires_grad=True)
    solver = torch.optim.LBFGS([weight, bias], max_iter=200, tolerance_grad=1e-6, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        solver.zero_grad()
        value = F.cross_entropy(F.linear(rows, weight, bias), y) + strength * weight.pow(2).sum()
        value.backward()
        return value

    with torch.enable_grad():
        solver.step(loss)  # type: ignore[arg-type]
    return lambda other: F.linear(((other - mean) / std).to(kind), weight.detach(), bias.detach()).argmax(1)


def _strength(x: Tensor, y: Tensor, seed: int) -> float:
    """The ridge that predicts held-out training samples best; of equal ones the strongest."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:CHOOSE]
    out, kept = order.split([held := max(1, int(HELD_OUT * len(order))), len(order) - held])
    found = {s: _accuracy(_fit(x[kept], y[kept], s)(x[out]) == y[out]) for s in STRENGTHS}
    return max(found, key=lambda s: (found[s], s))


def _score(x: Tensor, y: Tensor, other: Tensor, labels: Tensor, strength: float) -> Tensor:
    """(N,) which samples a readout fitted on (x, y) gets right."""
    return _fit(x, y, strength)(other) == labels


def _accuracy(right: Tensor) -> float:
    return float(right.double().mean())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _worth(right: Tensor, rivals: Sequence[Tensor]) -> tuple[float, tuple[float, float], dict[str, float]]:
    """Worth in percentage points, its interval, and the two parts of its standard error.

    Samples are paired: what counts is the spread of their differences. Draws are few, so their mean has Student's
    spread; the two variances add up, with Welch and Satterthwaite's degrees of freedom.
    """
    n, k = len(right), len(rivals)
    differences = right.double() - torch.stack([r.double() for r in rivals]).mean(0)
    accuracies = torch.tensor([_accuracy(r) for r in rivals], dtype=torch.float64)
    of_samples, of_draws = float(differences.var()) / n, float(accuracies.var()) / k
    total = of_samples + of_draws
    freedom = total**2 / (of_samples**2 / (n - 1) + of_draws**2 / (k - 1)) if total else n - 1
    worth, half = 100 * float(differences.mean()), 100 * student(max(1, round(freedom))) * math.sqrt(total)
    parts = {"samples": 100 * math.sqrt(of_samples), "draws": 100 * math.sqrt(of_draws)}
    return worth, (worth - half, worth + half), parts


# -- blocks drawn anew, and left out -----------------------------------------------------------------------------------


def _randomise(model: nn.Module, blocks: Sequence[nn.Module], build: Build | None, anatomy: Any) -> None:
    """Give every block a new draw of its initialisation."""
    if build is not None:
        other = build()
        with Tracer(other, anatomy) as tracer:
            fresh = tracer.blocks
        if len(fresh) != len(blocks):
            raise InputError(f"Expected build() to make {len(blocks)} blocks, but it makes {len(fresh)}.")
        for block, new in zip(blocks, fresh):
            block.load_state_dict(new.state_dict())
        return
    for block in blocks:
        for module in modules_of(block):
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                with torch.no_grad():
                    reset()
            elif any(True for _ in module.parameters(recurse=False)):
                raise InputError(
                    f"Expected every part of a block to have reset_parameters(), but {type(module).__name__} has "
                    "parameters of its own and none. Give build=, a function that makes a new network."
                )


@torch.no_grad()
def _settle(model: nn.Module, blocks: Sequence[nn.Module], batches: Sequence[tuple[Any, Tensor]]) -> None:
    """Let batch norms of random blocks take the statistics of the training samples."""
    norms = [m for b in blocks for m in modules_of(b) if getattr(m, "running_mean", None) is not None]
    if not norms:
        return
    before = [(m, m.momentum) for m in norms]  # type: ignore[attr-defined]
    for module in norms:
        module.reset_running_stats()  # type: ignore[operator]
        module.momentum = None  # type: ignore[assignment]  # the plain average over all batches
    set_modes((m, True) for m in norms)
    try:
        device = next((t.device for _, t in places(model)), torch.device("cpu"))
        for x, _ in batches:
            model(x.to(device))
    finally:
        set_modes((m, False) for m in norms)
        for module, momentum in before:
            module.momentum = momentum  # type: ignore[assignment]


def _without(
    model: nn.Module, seen: Any, unseen: Any, anatomy: Any, first: _Features, strength: float
) -> tuple[list[float] | None, str]:
    """Accuracies with each block left out, then with all of them; or why not."""
    shapes = {tuple(h.shape[1:]) for h in first.states}
    if len(shapes) > 1:
        return None, "the stream changes its shape: a block can't be left out"
    out = []
    for absent in [*([block] for block in first.blocks), first.blocks]:
        with _skipped(absent, first.branch):
            a, b = _features(model, seen, anatomy), _features(model, unseen, anatomy)
        out.append(_accuracy(_score(a.read, a.labels, b.read, b.labels, strength)))
    return out, ""


@contextmanager
def _skipped(blocks: Sequence[nn.Module], branch: bool) -> Iterator[None]:
    """Inside, these blocks add nothing to the stream."""

    def hook(_module: nn.Module, args: tuple[Any, ...], out: Any) -> Any:
        made = torch.zeros_like(out[0] if isinstance(out, tuple) else out) if branch else args[0]
        return (made, *out[1:]) if isinstance(out, tuple) else made

    with ExitStack() as stack:
        for block in blocks:
            stack.callback(block.register_forward_hook(hook).remove)
        yield


def _pixels(seen: Any, unseen: Any, seed: int) -> tuple[float | None, str]:
    """The accuracy of a linear model of the inputs, or why there is none."""
    xs = [x for x, _ in (*seen, *unseen)]
    if not all(isinstance(x, Tensor) and x.is_floating_point() for x in xs):
        return None, "inputs are no floating-point tensors"
    if len({tuple(x.shape[1:]) for x in xs}) > 1:
        return None, "inputs have different shapes"
    a, b = (torch.cat([x.flatten(1).cpu() for x, _ in part]) for part in (seen, unseen))
    labels = [torch.cat([y.cpu() for _, y in part]) for part in (seen, unseen)]
    return _accuracy(_score(a, labels[0], b, labels[1], _strength(a, labels[0], seed))), ""


def _cuda(model: nn.Module) -> list[int]:
    return sorted({t.device.index or 0 for _, t in places(model) if t.device.type == "cuda"})
