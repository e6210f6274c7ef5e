"""Which calls of a network are sites, as the first batch shows it: Layers, batch -> Sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from walkback.errors import AnatomyError
from walkback.network.anatomy import Layers, layers_of
from walkback.network.batch import Inputs, mapped, split
from walkback.network.layers import Site, kept_weights, own_weights, read_as_one, weighted_modules
from walkback.network.values import named_modules_of
from walkback.notes import Note
from walkback.tracing.calls import overheard
from walkback.tracing.cuts import CutGraph
from walkback.tracing.derived import Tape
from walkback.tracing.graph import Below, between, goes_past_weights, uses_weights
from walkback.tracing.heard import LayerCapture, LayerRun, heard_pass

if TYPE_CHECKING:
    from walkback.tracing.rerun import Weights
    from walkback.tracing.session import Tracer


def learn(tracer: Tracer, x: Inputs, y: Tensor, weights: Weights) -> None:
    """Run a batch with all layers listened to, and keep which calls are sites; AnatomyError where they can't be."""
    layers = tracer.anatomy
    assert isinstance(layers, Layers)
    weighted = {id(module) for _, module in weighted_modules(tracer.model)}
    chosen = {id(module) for module in (*layers.modules, *layers.readout)}
    every = [m for _, m in named_modules_of(tracer.model) if id(m) in weighted | chosen]
    capture, _, losses = heard_pass(tracer, every, x, y, weights)
    seen = _Seen(capture.counted(), weighted, losses)
    passed = seen.skip()
    if layers.refusal and passed is not None and (seen.joins or seen.skip(hidden=True) is not None):
        raise AnatomyError(layers.refusal)
    axes = _Axes(tracer, every, x, y, weights, seen.runs)
    sites: list[Site] = []
    left: list[str] = []
    try:
        wanted = _wanted(layers, seen)
    except _OtherOrder as error:
        raise _ordered(tracer, error.names, x, y) from None
    cut_off = [run for run in wanted if seen.why_not(run) in (UNREACHED, UNGRADED)]
    if cut_off and (used := _used(tracer, every, cut_off, x, y, weights)):
        raise CutGraph([run.call.name for run in used])
    for run in wanted:
        why = seen.why_not(run)
        leaf = 0 if why else seen.read(run)[0]
        axis, rows = (None, 0) if why else axes.of(run, leaf)
        if why == OUTPUT and callable(layers.choice):
            continue
        if not why and axis is None:
            why = f"its output of shape {tuple(run.states[leaf].shape)} has no axis of the {len(y)} samples"
        if why and layers.choice != "layers":
            raise AnatomyError(f"Expected {run.call.name} to be a site, but {why}.")
        if why or axis is None:
            left.append(f"{run.call.name}: {why}")
        else:
            sites.append(Site(run.call, leaf, axis, rows))
    left += [f"{path}: the layers inside are read as one layer" for path in read_as_one(tracer.model)]
    left += _uncalled(tracer.model, {id(run.call.module) for run in seen.runs}, losses)
    if not sites:
        raise AnatomyError(
            f"Expected at least one hidden layer, but none is left{': ' * bool(left)}{'; '.join(left)}. The output "
            'layer is no site. Name modules whose outputs are sites: sites=["name", …].'
        )
    tracer.learn(anatomy=layers.as_called(tracer.model, sites, [run.call for run in seen.readers], left))
    tracer.notes += [Note("layers-left-out", None, {"layers": left})] if left else []
    tracer.notes += [Note("layers-passed", None, {"layer": passed})] if passed is not None else []
    if layers.refusal and passed is None and seen.recurs is not None:
        tracer.notes.append(Note("layers-recur", None, {"layer": seen.recurs}))
    unasked = layers.refusal or tracer.reading.guessed
    summed = seen.summed() if unasked and seen.recurs is None else None
    tracer.notes += [Note("layers-summed", None, {"layers": summed})] if summed is not None else []


UNREACHED = "the loss does not depend on it"
OUTPUT = "it is the output layer: what it returns is the answer, and no layer with a weight reads it"
UNGRADED = "it runs with gradients turned off (torch.no_grad inside the forward pass)"


def _uncalled(model: nn.Module, called: set[int], losses: Tensor) -> list[str]:
    """Return layers that the forward pass never calls, though the loss depends on a weight of theirs alone."""
    nodes = between([losses.grad_fn], ())
    used = {id(leaf) for node in nodes if (leaf := getattr(node, "variable", None)) is not None}
    every = [(path, m, {id(p) for p in own_weights(m)}) for path, m in weighted_modules(model)]
    known = {weight for _, m, weights in every if id(m) in called for weight in weights}
    return [
        f"{path}: its weight is used, but it is never called (as in F.linear(h, layer.weight))"
        for path, m, weights in every
        if id(m) not in called and weights & used and not weights & known
    ]


class _Seen:
    """The calls of one pass, and how they lie above each other in its graph."""

    def __init__(self, runs: list[LayerRun], weighted: set[int], top: Tensor) -> None:
        self.runs = runs
        self.layers = [run for run in runs if id(run.call.module) in weighted and not run.holds and _weighs(run)]
        self._bit = {run: 1 << i for i, run in enumerate(runs)}
        marks: dict[tuple[Any, int], int] = {}
        for run in runs:
            for edge in run.edges.values():
                marks[edge.node, edge.output_nr] = marks.get((edge.node, edge.output_nr), 0) | self._bit[run]
        made = {run: {edge.node for edge in run.edges.values()} for run in runs}
        every = {node for nodes in made.values() for node in nodes}
        inside = {n for run in self.layers for n in between(made[run], run.given | (every - made[run]))}
        self._below = Below(top, marks, sum(self._bit[run] for run in self.layers), inside)
        self.recurs: str | None = None  # a layer that the state of a recurrent cell goes past, once `skip` has looked
        self.readers = self._find_readers()
        if uses_weights(top.grad_fn, {node for run in self.readers if not run.holds for node in made[run]}):
            self.readers = []  # the output layer is no module: F.linear with a weight of another one

    @property
    def joins(self) -> bool:
        """Whether two ways from one layer meet in a sum: a projection may be the skip of a residual block."""
        return self._below.joins

    def _under(self, run: LayerRun) -> int:
        """Return the bits of all calls below one, without its own."""
        under = 0
        for edge in run.edges.values():
            under |= self._below.under(edge.node)
        return under & ~self._bit[run]

    def read(self, run: LayerRun) -> list[int]:
        """Return which of the tensors that a call returned the loss depends on."""
        return [i for i, edge in run.edges.items() if (edge.node, edge.output_nr) in self._below.reached]

    def why_not(self, run: LayerRun) -> str:
        """Return why a call can't be a site; "" where it can."""
        if not run.states:
            return "it returns no tensor of real numbers"
        if not run.edges:
            return UNGRADED
        if len(self.read(run)) > 1:
            return f"it returns {len(self.read(run))} tensors that the loss depends on"
        if not self.read(run):
            return UNREACHED
        return OUTPUT if run in self.readers else ""

    def _find_readers(self) -> list[LayerRun]:
        """Return the output layers, which the loss depends on and no other layer, and what was chosen behind them."""
        there = [run for run in self.layers if self.read(run)]
        read = 0
        for run in there:
            read |= self._under(run)
        last = [run for run in there if not self._bit[run] & read]
        above = sum(self._bit[run] for run in last)
        made = {(edge.node, edge.output_nr) for run in last for edge in run.edges.values()}
        others = [run for run in self.runs if run not in self.layers]
        same = [run for run in others if any((e.node, e.output_nr) in made for e in run.edges.values())]
        return last + [run for run in others if run in same or self._under(run) & above]

    def skip(self, hidden: bool = False) -> str | None:
        """Return a layer that a way leads past, as a residual stream does; None where there is none.

        Args:
            hidden: only ways to another hidden layer; output layers may read several (a classifier of all features).
        """
        above = [run for run in self.layers if self.read(run) and not (hidden and run in self.readers)]
        ends = [] if hidden and self.readers else [None]
        for run in self.layers:
            own = type(run.call.module).__module__.startswith("torch.nn.modules")
            if not own and goes_past_weights((edge.node for edge in run.edges.values()), run.given):
                return run.call.name
        tops = [(None, node) for node in ends] + [(run, edge.node) for run in above for edge in run.edges.values()]
        for top, node in tops:
            nearest = self._below.nearest(node) & ~(self._bit[top] if top else 0)  # a cell returns two states
            for run in self.layers:
                passing = self._under(run) & nearest if self._bit[run] & nearest else 0
                if any(self._bit[s] & passing and not _is_recurrence(s, run, top) for s in self.layers):
                    return run.call.name
                self.recurs = self.recurs or (run.call.path if passing else None)
        return None

    def summed(self) -> list[str] | None:
        """Return layers whose outputs are added before the next layer reads them; None where there are none.

        Feedback by a weight, as s @ layer.weight, is no skip.
        """
        for run in self.layers if self.joins else ():
            for edge in run.edges.values():
                nearest = self._below.unmixed(edge.node)
                met = [other.call.name for other in self.layers if self._bit[other] & nearest]
                if len(met) > 1 and self.read(run):
                    return met
        return None


def _weighs(run: LayerRun) -> bool:
    """Return whether a call is a product with a weight: of a module that keeps it as a buffer the graph has to show it.

    A feedback matrix may be kept so, too, beside a forward pass that hands on what it is given.
    """
    if not kept_weights(run.call.module) or not run.given:
        return True
    return not goes_past_weights((edge.node for edge in run.edges.values()), run.given)


def _is_recurrence(start: LayerRun, passed: LayerRun, top: LayerRun | None) -> bool:
    """Return whether a way past a layer leads from step to step of a cell by hand, and is no skip.

    From a step before to one after, of layers that are called in each; or back to the layer it starts from. A residual
    loop has a way from its stem, too, which is called once.
    """
    steps = min(start.call.turns, passed.call.turns) > 1 and start.call.turn < passed.call.turn
    return steps or (top is not None and top.call.module is start.call.module)


def _wanted(layers: Layers, seen: _Seen) -> list[LayerRun]:
    """Return the calls that were chosen, in the order they ran; AnatomyError where names are in another one."""
    if layers.choice == "layers":
        return [run for run in seen.layers if run not in seen.readers]
    if callable(layers.choice):
        ids = {id(module) for module in layers.modules} | {id(m) for m in layers.readout if layers.choice(m)}
        return [run for run in seen.runs if id(run.call.module) in ids]
    wanted: list[LayerRun] = []
    for name, module in zip(layers.site_names, layers.modules):
        turn = name.partition("#")[2]
        own = [run for run in seen.runs if run.call.module is module]
        mine = [run for run in own if not turn or run.call.turn == int(turn)]
        if not mine:
            raise AnatomyError(
                f"Expected every site to be called in the forward pass, but {name} "
                + (f"is called {len(own)} times." if own else "is never called. Leave it out of the sites.")
            )
        wanted += [run for run in mine if run not in wanted]
    ran = [run for run in seen.runs if run in wanted]
    if ran != wanted:
        raise _OtherOrder([run.call.name for run in ran])
    return wanted


class _OtherOrder(Exception):
    """Sites were named in another order than the network calls them in."""

    def __init__(self, names: list[str]) -> None:
        self.names = names


def _ordered(tracer: Tracer, names: list[str], x: Inputs, y: Tensor) -> AnatomyError:
    """Return the error that names sites in the order of their calls, once that line has been tried."""
    message = "Expected sites in the order in which the network calls them, since credits are given in that order, but "
    message += f"they run as {', '.join(names)}."
    first = tracer.anatomy
    try:
        tracer.take(layers_of(tracer.model, names))
        tracer.read(x, y)
        message += f" Name them so: sites={names}."
    except AnatomyError as error:
        message += f" In that order too they can't be read: {error}"
    finally:
        tracer.take(first)
    return AnatomyError(message)


def _used(
    tracer: Tracer, modules: Sequence[nn.Module], runs: list[LayerRun], x: Inputs, y: Tensor, weights: Weights
) -> list[LayerRun]:
    """Return those of these calls that the loss is computed from after all, past detach() and no_grad."""
    if tracer.tape() is not None:
        return []  # that is what the graph shows
    capture, _, losses = heard_pass(tracer, modules, x, y, weights, Tape())
    seen = _Seen(capture.counted(), set(), losses)
    reached = {(run.call.path, run.call.turn) for run in seen.runs if seen.read(run)}
    return [run for run in runs if (run.call.path, run.call.turn) in reached]


class _Axes:
    """Where the batch is in what layers return; where two axes are as long, a smaller batch shows it."""

    def __init__(
        self, tracer: Tracer, modules: Sequence[nn.Module], x: Inputs, y: Tensor, weights: Weights, runs: list[LayerRun]
    ) -> None:
        self._batch = len(y)
        self._fewer: dict[tuple[int, int], dict[int, Tensor]] = {}
        shapes = [h.shape for run in runs for h in run.states.values()]
        if self._batch > 1 and any(self._axes(s) != [0] and (self._axes(s) or self._rows(s)) for s in shapes):
            capture = LayerCapture({id(m): "" for m in modules}, modules)
            few, _ = next(split(x, y, self._batch - 1))
            with torch.no_grad(), overheard(modules, capture.after, capture.before):
                tracer.run_once(mapped(few, torch.clone), weights)
            self._fewer = {(id(run.call.module), run.call.turn): dict(run.states) for run in capture.runs}

    def _axes(self, shape: torch.Size) -> list[int]:
        return [axis for axis, size in enumerate(shape[:2]) if size == self._batch]

    def _rows(self, shape: torch.Size) -> int:
        """Return how many rows there would be of each sample, were they folded into the first axis; 0: they can't."""
        return shape[0] // self._batch if len(shape) > 1 and shape[0] and shape[0] % self._batch == 0 else 0

    def of(self, run: LayerRun, leaf: int) -> tuple[int | None, int]:
        """Return the axis of the samples, 0 or 1 (None where there is none), and how many rows of each it holds."""
        h = run.states[leaf]
        axes = self._axes(h.shape) if h.ndim > 1 else []
        few = self._fewer.get((id(run.call.module), run.call.turn), {}).get(leaf)
        if few is not None and few.ndim == h.ndim:
            axes = [axis for axis in axes if few.shape[axis] == self._batch - 1]
            rows = self._rows(h.shape)
            first = h[: (self._batch - 1) * rows]  # of all samples but the last, where theirs stand in a row
            if rows and not axes and first.shape == few.shape and torch.allclose(first, few, 1e-3, 1e-5):
                return 0, rows
        return (axes[0] if axes else None), 0


def has_no_stream(runs: list[LayerRun], model: nn.Module, output: Tensor) -> bool | None:
    """Return whether the layers of a pass come one after the other, with no way past one.

    Layers that don't lead to the output are heads beside it, unless the graph may be cut below one that does, as by
    `detach()`: then it does not tell (None).
    """
    if output.grad_fn is None:
        return None
    seen = _Seen(runs, {id(m) for _, m in weighted_modules(model)}, output)
    leading = [run for run in seen.layers if seen.read(run)]
    whole = len(leading) == len(seen.layers) or (leading[:1] == seen.layers[:1] and all(r.given for r in leading[1:]))
    return _is_plain(seen, leading) if whole else None


def has_no_stream_past_cuts(tracer: Tracer, x: Inputs, y: Tensor, weights: Weights) -> bool:
    """Return the same of what the forward pass computes, whatever it cuts off."""
    modules = [m for _, m in weighted_modules(tracer.model)]
    capture, _, losses = heard_pass(tracer, modules, x, y, weights, Tape())
    seen = _Seen(capture.counted(), {id(m) for m in modules}, losses)
    return _is_plain(seen, [run for run in seen.layers if seen.read(run)])


def _is_plain(seen: _Seen, leading: list[LayerRun]) -> bool:
    return len(leading) > 1 and seen.skip() is None and not seen.joins
