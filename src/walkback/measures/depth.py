"""What trained blocks are worth, from one checkpoint: put them back to random draws, refit the readout, compare.

Both networks get the same kind of readout, refitted on the same training samples, so that only the blocks differ.
Beside it: blocks left out, and a linear probe of every site's state, which shows accuracy growing with depth, or not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from walkback.errors import AnatomyError, InputError, cut, shown
from walkback.measures.blocks import Build, NoStream, marks, randomise, settle, skipped
from walkback.measures.intervals import half_width, two_more
from walkback.measures.readout import Rows, accuracy, fit, refit
from walkback.measures.vectors import pool_at, readers, site_vectors
from walkback.measures.worth import RANDOM, TRAINED, Depth
from walkback.network.anatomy import Anatomy, unwrap
from walkback.network.batch import pairs
from walkback.network.given import parts_of
from walkback.network.layers import Sites
from walkback.network.prints import fingerprints
from walkback.network.values import modules_of, places
from walkback.progress import track
from walkback.registry import whole_numbers
from walkback.tracing.session import Tracer
from walkback.tracing.trace import Trace
from walkback.tracing.untouched import untouched

__all__ = ["Depth", "depth"]

REMEMBERED = 2**26  # entries of what stems make that are kept

Batches = Iterable[Any]


def depth(
    model: nn.Module,
    train: Batches,
    test: Batches,
    *,
    draws: int = 3,
    anatomy: Anatomy | Mapping[str, Any] | None = None,
    build: Build | None = None,
    seed: int = 0,
    sites: Sites | None = None,
) -> Depth:
    """Return what the trained blocks of a classifier are worth without training a control.

    Args:
        model: its readout is norm + linear, as in most classifiers; left as found.
        train: (inputs, labels) to fit readouts on. A list or a loader that gives the same batches every time.
        test: (inputs, labels) to compare on, as `train`.
        draws: how many random draws of the blocks.
        anatomy: as in `diagnose`.
        sites: as in `diagnose`. Of a plain network all layers but the output layer are drawn anew.
        build: makes a new, untrained network; by default blocks are drawn by their modules' `reset_parameters`.
        seed: of the draws.

    >>> import walkback as wb
    >>> found = depth(wb.selftest.healthy(), wb.selftest.batches(8), wb.selftest.batches(8), draws=2)
    >>> len(found.by_depth["trained"]), len(found.rerandomised)
    (5, 2)
    """
    whole_numbers(2, draws=draws)  # their spread is part of the answer
    whole_numbers(0, seed=seed)
    if not isinstance(model, nn.Module):
        raise InputError(f"Expected model to be a torch.nn.Module, but got {shown(model)}.")
    if build is not None and not callable(build):
        raise InputError(f"Expected build to be a function that makes a new network, but got {shown(build)}.")
    # An iterator would be used up by the first pass.
    seen, unseen = (list(part) if isinstance(part, Iterator) else part for part in (train, test))
    bare = unwrap(model)
    anatomy = anatomy if sites is None else parts_of(bare, anatomy, sites)
    probes: dict[str, list[float]] = {}
    strengths: dict[str, list[float]] = {TRAINED: [], RANDOM: []}
    stems = (Stems(), Stems())
    with untouched(bare) as found:
        first = FitAndTest.of(bare, seen, unseen, anatomy, stems)
        if len(first.compared.labels) < 2:
            raise InputError(
                "Expected two or more test samples, since their spread is part of the answer, but got one."
            )
        anatomy = first.fitted.layers or anatomy  # as a batch showed them
        right, strength = first.refitted(seed)
        strengths[TRAINED].append(strength)
        every = range(len(first.fitted.states))
        probes[TRAINED] = [accuracy(first.right(site, strengths[TRAINED][0])) for site in every]
        probes[RANDOM] = [0.0 for _ in every]
        rivals, drawn_before = [], {marks(first.fitted.blocks)}
        for draw in track(range(draws), "drawing blocks", draws):
            with torch.random.fork_rng(devices=_cuda(bare)):
                torch.manual_seed(seed + 1 + draw)
                randomise(bare, first.fitted.blocks, build, anatomy, drawn_before)
                settle(bare, (*first.fitted.blocks, *first.fitted.readout), seen)
            drawn = FitAndTest.of(bare, seen, unseen, anatomy, stems).like(first)
            rival, strength = drawn.refitted(seed)
            rivals.append(rival)
            strengths[RANDOM].append(strength)
            for site in every:
                same = torch.equal(drawn.fitted.at(site), first.fitted.at(site))  # what the stem alone makes
                probe = probes[TRAINED][site] if same else accuracy(drawn.right(site, strength))
                probes[RANDOM][site] += probe / draws
            found.rewind()
        without, why = _without(bare, seen, unseen, anatomy, stems, first, strengths[TRAINED][0])
    pixels, no_pixels = _pixels(seen, unseen, seed)
    worth, interval, parts = _worth(right, rivals)
    return Depth(
        worth_pp=worth,
        interval=interval,
        trained=accuracy(right),
        rerandomised=tuple(map(accuracy, rivals)),
        by_depth=probes,
        without=without[:-1] if without else None,
        without_all=without[-1] if without else None,
        pixels=pixels,
        samples={"train": len(first.fitted.labels), "test": len(first.compared.labels)},
        parts=parts,
        strength=strengths,
        drawn_by="reset_parameters" if build is None else "build",
        reasons={name: text for name, text in (("without", why), ("without_all", why), ("pixels", no_pixels)) if text},
    )


# -- features ----------------------------------------------------------------------------------------------------------


class Stems:
    """What the stem makes of the batches of a split: the same, whatever becomes of the blocks, so it is made once.

    Only of a stem whose modules are all torch's own: others may keep something that the rest of the network reads.
    """

    def __init__(self) -> None:
        self._made: dict[int, tuple[Tensor, Tensor]] = {}  # batch -> a number for each input, what the stem made
        self._entries = 0

    @contextmanager
    def remembered(self, anatomy: Anatomy, batch: int, x: Any) -> Iterator[None]:
        """Let the stem return, inside, what it made of this batch before; the first time, keep it."""
        stem = anatomy.stems[0] if len(anatomy.stems) == 1 else None
        if not isinstance(stem, nn.Module) or not isinstance(x, Tensor) or not _is_plain(stem, anatomy):
            yield
            return
        prints = fingerprints(x)
        before = self._made.get(batch)
        if before is None or not torch.equal(before[0], prints):
            yield from self._keep(stem, batch, prints, x)
            return
        stem.forward = lambda _: before[1].clone()
        try:
            yield
        finally:
            del stem.forward

    def _keep(self, stem: nn.Module, batch: int, prints: Tensor, x: Tensor) -> Iterator[None]:
        made: list[Tensor] = []

        def hook(_module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
            if len(args) == 1 and isinstance(out, Tensor):
                made.append(out.detach().clone())

        handle = stem.register_forward_hook(hook, prepend=True)
        try:
            yield
        finally:
            handle.remove()
        # A first batch may be run several times, until its layout is known.
        if made and all(m.shape == made[0].shape for m in made) and made[0].numel() <= x.numel() // 4:
            self._entries += made[0].numel()
            if self._entries <= REMEMBERED:
                self._made[batch] = (prints, made[-1])


def _is_plain(stem: nn.Module, anatomy: Anatomy) -> bool:
    """Return whether a stem is of torch's own modules, none of which is a block's too, and nobody replaced a part."""
    own = [*modules_of(stem)]
    inside = {id(m) for b in anatomy.blocks if isinstance(b, nn.Module) for m in modules_of(b)}
    return not any(
        id(m) in inside or "forward" in vars(m) or not type(m).forward.__module__.startswith("torch.nn.") for m in own
    )


@dataclass(frozen=True)
class Features:
    """What a network makes of some samples: one vector per sample of every site, and what the last linear map reads."""

    states: tuple[Tensor, ...]
    read: Tensor
    labels: Tensor
    blocks: tuple[nn.Module, ...]
    readout: tuple[nn.Module, ...]
    branch: bool | None  # None of a plain network
    anatomy: Anatomy | None = None  # how it was read
    layers: Anatomy | None = None  # of a plain network
    fixed: str = ""  # why a block can't be left out

    def at(self, name: int | str) -> Tensor:
        return self.read if isinstance(name, str) else self.states[name]

    @staticmethod
    def of(model: nn.Module, batches: Batches, anatomy: Any, stem: Stems) -> Features:
        """Return the features of all samples in a batch's order."""
        states: list[Rows] = []
        read, labels, heard, tokens = Rows(), [], [], True
        with Tracer(model, anatomy) as tracer:
            for x, y in islice(pairs(batches, tracer.model), 1):
                tracer.settle(x, y)
            head = _head(tracer)
            hook = head.register_forward_pre_hook(lambda _m, args: heard.append(args[0].detach()))
            try:
                for x, y in pairs(batches, tracer.model):
                    heard.clear()
                    # Where no token has to be found, gradients say nothing here: one batch shows how to read the rest.
                    with stem.remembered(tracer.anatomy, len(labels), x):
                        trace = tracer.trace(x, y) if tokens else tracer.states(x, y)
                    at = readers(trace) if tokens else None
                    tokens = tokens and (bool(tracer.layer_sites) or any(h.ndim == 3 for h in (*trace.states, *heard)))
                    if trace.labels.ndim != 1 or trace.labels.is_floating_point():
                        raise InputError(
                            "Expected one class per sample as labels (B,), which a refitted readout predicts, but got "
                            f"labels of shape {tuple(trace.labels.shape)}. Language models and regressions have no "
                            "such readout: depth is tested there by a control, frozen_baseline_acc."
                        )
                    if tracer.layout.received:
                        raise AnatomyError(
                            "Expected blocks that return the residual branch or the new state, since they are drawn "
                            "anew and left out one by one, but this network makes its steps outside of the blocks. "
                            "Wrap each step in a module that returns the new state, and name those as blocks."
                        )
                    states = states or [Rows() for _ in trace.states]
                    for rows, state in zip(states, trace.states):
                        rows.add(site_vectors(state, pool_at(trace, state), at, trace.mask))
                    read.add(_read_by(head, heard, trace, at))
                    labels.append(trace.labels.cpu())
            finally:
                hook.remove()
            layers = tracer.anatomy if tracer.layer_sites else None
            branch = None if tracer.layer_sites else bool(tracer.branch)
            blocks = tracer.anatomy.depth_modules(tracer.model)
            readout = tuple(part for part in tracer.anatomy.readout if isinstance(part, nn.Module))
            fixed = "a layer of a plain network can't be left out" if tracer.layer_sites else ""
            if not fixed and (len(blocks) < len(tracer.blocks) or tracer.anatomy.by_forward):
                fixed = "a block that is called several times, or as block.forward(h), can't be left out of one call"
        if not labels:
            raise InputError("Expected batches to fit on and batches to compare on, but one of them is empty.")
        vectors = tuple(rows.whole() for rows in states)
        return Features(
            vectors, read.whole(), torch.cat(labels), blocks, readout, branch, tracer.anatomy, layers, fixed
        )


@dataclass(frozen=True)
class FitAndTest:
    """The features to fit readouts on and those to compare them on."""

    fitted: Features
    compared: Features

    @staticmethod
    def of(model: nn.Module, train: Batches, test: Batches, anatomy: Any, stems: tuple[Stems, Stems]) -> FitAndTest:
        return FitAndTest(Features.of(model, train, anatomy, stems[0]), Features.of(model, test, anatomy, stems[1]))

    def right(self, name: int | str, strength: float) -> Tensor:
        """Return (N,) which test samples a readout of a site, or of what the head reads, gets right."""
        return fit(self.fitted.at(name), self.fitted.labels, strength)(self.compared.at(name)) == self.compared.labels

    def refitted(self, seed: int) -> tuple[Tensor, float]:
        """Return (N,) which test samples a readout of what the head reads gets right, and its ridge, chosen."""
        readout, strength = refit(self.fitted.read, self.fitted.labels, seed)
        return readout(self.compared.read) == self.compared.labels, strength

    def like(self, other: FitAndTest) -> FitAndTest:
        """Return this pair, or raise where its samples come in another order: they could not be paired."""
        for name, a, b in (("train", self.fitted, other.fitted), ("test", self.compared, other.compared)):
            if not torch.equal(a.labels, b.labels):
                raise InputError(
                    f"Expected {name} to give the same batches every time, but its labels changed between passes. Pass "
                    "a list, or a loader that does not shuffle."
                )
        return self


def _head(tracer: Tracer) -> nn.Linear:
    """Return the one linear map of a readout that is norm + linear; refuse any other with what it has."""
    modules = [m for part in tracer.anatomy.readout if isinstance(part, nn.Module) for m in modules_of(part)]
    linear = [m for m in modules if isinstance(m, nn.Linear)]
    matrices = [m for m in modules if any(p is not None and p.ndim > 1 for p in m._parameters.values())]
    if len(linear) == 1 and len(matrices) == 1:
        return linear[0]
    kinds = cut(", ".join(type(m).__name__ for m in modules) or "nothing")
    raise AnatomyError(
        f"Expected a readout that is norm + nn.Linear, which can be refitted exactly, but it has {kinds}. Where it is "
        "another part of the network, name it: anatomy=Anatomy.of(model, readout=[...]). Else depth is tested by a "
        "control, frozen_baseline_acc."
    )


def _read_by(head: nn.Linear, heard: Sequence[Tensor], trace: Trace, at: Tensor | None) -> Tensor:
    """Return (B, d) what the head reads of each sample, once it is shown that logits are the head's map of it."""
    if heard:
        rows = site_vectors(heard[-1], trace.pool, at, trace.mask) if heard[-1].ndim == 3 else heard[-1]
        if rows.ndim == 2 and rows.shape[1] == head.in_features and len(rows) == len(trace.labels):
            made = F.linear(rows.to(head.weight.dtype), head.weight, head.bias).detach().double()
            logits = trace.logits.double()
            # What rounding leaves of a sum over the width, in this dtype; a softmax behind it is far off.
            near = 64 * torch.finfo(head.weight.dtype).eps * (1 + float(made.abs().max())) * math.sqrt(rows.shape[1])
            if made.shape == logits.shape and bool(((made - logits).abs() <= near).all()):
                return rows
    shapes = [tuple(t.shape) for t in heard]
    raise InputError(
        "Expected logits that are the last nn.Linear of a vector per sample, and nothing behind it, but that linear "
        f"map reads {shapes or 'nothing'} and logits are {tuple(trace.logits.shape)}: this readout can't be refitted. "
        "Depth is tested there by a control, frozen_baseline_acc."
    )


def _worth(right: Tensor, rivals: Sequence[Tensor]) -> tuple[float, tuple[float, float], dict[str, float]]:
    """Return the worth in percentage points, its interval, and the two parts of its standard error.

    Samples are paired: what counts is the spread of their differences. What samples do to single draws makes draws
    differ too; it is known from the samples, and taken off the spread of draws (two crossed random effects), which has
    Student's quantile since draws are few. See `half_width` for how the two are added, `two_more` for few samples.
    """
    n, k = len(right), len(rivals)
    known = (right.double() - torch.stack([r.double() for r in rivals])).numpy()
    gains = two_more(known)
    rest = gains - gains.mean(0) - gains.mean(1, keepdims=True) + gains.mean()
    own = float((rest**2).sum()) / ((n + 1) * (k - 1)) / ((n + 2) * k)
    variances = {
        "samples": float(gains.mean(0).var(ddof=1)) / (n + 2),
        "draws": max(0.0, float(known.mean(1).var(ddof=1)) / k - own),
    }
    worth, half = 100 * float(known.mean()), 100 * half_width(variances, {"samples": n, "draws": k})
    return worth, (worth - half, worth + half), {name: 100 * math.sqrt(v) for name, v in variances.items()}


# -- blocks left out, and the inputs alone -----------------------------------------------------------------------------


def _without(
    model: nn.Module,
    seen: Batches,
    unseen: Batches,
    anatomy: Any,
    stems: tuple[Stems, Stems],
    first: FitAndTest,
    strength: float,
) -> tuple[list[float] | None, str]:
    """Return the accuracies with each block left out, then with all of them; or why there are none."""
    # Without its blocks a network would be read as a plain one.
    blocks, branch, anatomy = first.fitted.blocks, bool(first.fitted.branch), first.fitted.anatomy or anatomy
    if first.fitted.fixed:
        return None, first.fitted.fixed
    shapes = {tuple(h.shape[1:]) for h in first.fitted.states}
    if len(shapes) > 1:
        return None, "the stream changes its shape: a block can't be left out"
    out = []
    for absent in [*([block] for block in blocks), blocks]:
        try:
            with skipped(absent, branch):
                settle(model, first.fitted.readout, seen)
                out.append(
                    accuracy(FitAndTest.of(model, seen, unseen, anatomy, stems).like(first).right("head", strength))
                )
        except NoStream:
            return None, "a block is not called with the stream as its first argument: it can't be left out"
    return out, ""


def _pixels(seen: Batches, unseen: Batches, seed: int) -> tuple[float | None, str]:
    """Return the accuracy of a linear model of the inputs, or why there is none."""
    parts = []
    for batches in (seen, unseen):
        rows, labels, shapes = Rows(), [], set()
        for x, y in pairs(batches):
            if not isinstance(x, Tensor) or not x.is_floating_point():
                return None, "inputs are no floating-point tensors"
            shapes.add(tuple(x.shape[1:]))
            if len(shapes) > 1:
                return None, "inputs have different shapes"
            rows.add(x)
            labels.append(y.cpu())
        parts += [rows.whole(), torch.cat(labels)]
    x, y, other, labels = parts
    return (None, "inputs have different shapes") if x.shape[1] != other.shape[1] else (
        accuracy(refit(x, y, seed)[0](other) == labels), ""
    )  # fmt: skip


def _cuda(model: nn.Module) -> list[int]:
    return sorted({t.device.index or 0 for _, t in places(model) if t.device.type == "cuda"})
