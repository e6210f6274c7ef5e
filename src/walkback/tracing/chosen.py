"""Which calls of a network are sites, as the first batch shows it: Layers, batch -> Sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from walkback.errors import AnatomyError
from walkback.network.anatomy import Layers, layers_of
from walkback.network.batch import Inputs, mapped, split
from walkback.network.layers import Site, frozen_weights, own_weights, read_as_one, weight_named, weighted_modules
from walkback.network.values import named_modules_of
from walkback.notes import Note
from walkback.tracing.calls import overheard
from walkback.tracing.cuts import CutGraph
from walkback.tracing.derived import Tape
from walkback.tracing.graph import between, given_to
from walkback.tracing.heard import LayerCapture, LayerRun, heard_pass
from walkback.tracing.products import Products, find_products, has_loose_weights
from walkback.tracing.seen import OUTPUT, UNGRADED, UNREACHED, Seen

if TYPE_CHECKING:
    from walkback.tracing.rerun import Weights
    from walkback.tracing.session import Tracer


def learn(tracer: Tracer, x: Inputs, y: Tensor, weights: Weights) -> None:
    """Run a batch with all layers listened to, and keep which calls are sites; AnatomyError where they can't be."""
    layers = tracer.anatomy
    assert isinstance(layers, Layers)
    chosen = {id(module) for module in (*layers.modules, *layers.readout)}
    weighted = {id(module) for _, module in weighted_modules(tracer.model)}
    if layers.choice == "layers" and len(weighted) < 2:  # hidden layers that no gradient trains, as of Hebbian code
        weighted |= {id(module) for _, module in named_modules_of(tracer.model) if frozen_weights(module)}
    every = [m for _, m in named_modules_of(tracer.model) if id(m) in weighted | chosen]
    seen, losses, products = _look(tracer, layers, every, weighted, x, y, weights)
    passed = seen.skip()
    added = None if passed is None else seen.added_past()
    if layers.refusal and added is not None:
        raise AnatomyError(layers.refusal)
    axes = _Axes(tracer, every, x, y, weights, seen.runs, products)
    sites: list[Site] = []
    numbers = products.numbers()
    left: list[str] = []
    try:
        wanted = _wanted(layers, seen)
    except _OtherOrder as error:
        raise _ordered(tracer, error.names, x, y) from None
    cut_off = [run for run in wanted if seen.why_not(run) in (UNREACHED, UNGRADED)]
    if cut_off and (used := _used(tracer, every, cut_off, x, y, weights, products)):
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
            sites.append(Site(run.call, leaf, axis, rows, numbers.get((run.call.path, run.call.turn))))
    left += [f"{path}: the layers inside are read as one layer" for path in read_as_one(tracer.model)]
    left += _uncalled(tracer.model, {id(run.call.module) for run in seen.runs}, losses, products)
    left += [f"{name}: what it makes is inside of one operation, and can't be seen" for name in products.unseen]
    if not sites:
        raise AnatomyError(
            f"Expected at least one hidden layer, but none is left{': ' * bool(left)}{'; '.join(left)}. The output "
            'layer is no site. Name modules whose outputs are sites: sites=["name", …].'
        )
    tracer.learn(anatomy=layers.as_called(tracer.model, sites, [run.call for run in seen.readers], left, products))
    tracer.notes += [Note("layers-left-out", None, {"layers": left})] if left else []
    if passed is not None:
        told = Note("layers-passed", None, {"layer": passed})
        tracer.notes.append(told if added or not layers.refusal else Note("layers-read-past", None, {"layer": passed}))
    several = [run.call.path for run in wanted if seen.hands_on_several(run)]
    tracer.notes += [Note("layers-first", None, {"layers": ", ".join(dict.fromkeys(several))})] if several else []
    if layers.refusal and passed is None and seen.recurs is not None:
        tracer.notes.append(Note("layers-recur", None, {"layer": seen.recurs}))
    unasked = layers.refusal or tracer.reading.guessed
    summed = seen.summed() if unasked and seen.recurs is None else None
    tracer.notes += [Note("layers-summed", None, {"layers": summed})] if summed is not None else []


def _look(
    tracer: Tracer,
    layers: Layers,
    every: Sequence[nn.Module],
    weighted: set[int],
    x: Inputs,
    y: Tensor,
    weights: Weights,
) -> tuple[Seen, Tensor, Products]:
    """Run a batch with all layers listened to; once more where weights are used without a module that makes a layer."""
    model, products = tracer.model, Products()
    ids = weighted - {id(model)}  # what the network returns is its answer
    capture, _, losses = heard_pass(tracer, every, x, y, weights)
    seen = Seen(capture.counted(), ids, losses)
    if callable(layers.choice) or not (layers.choice == "layers" or any(weight_named(model, n) for n in layers.names)):
        return seen, losses, products
    ids -= set() if seen.hidden else {id(run.call.module) for run in seen.readers}  # one module that is all of it
    if has_loose_weights(model, ids, {id(run.call.module) for run in seen.runs}, seen.used_outside()):
        products = find_products(tracer, x, every, ids)
    if products.found:
        capture, _, losses = heard_pass(tracer, every, x, y, weights, products=products)
        runs = capture.counted()
        for run in runs:
            if run.product and run.edges and (named := weight_named(model, run.call.path)) is not None:
                run.given = given_to(run.edges[0].node, named[1])
        seen = Seen(runs, ids, losses)
    return seen, losses, products


def _uncalled(model: nn.Module, called: set[int], losses: Tensor, products: Products) -> list[str]:
    """Return layers that the forward pass never calls, though the loss depends on a weight of theirs alone."""
    nodes = between([losses.grad_fn], ())
    used = {id(leaf) for node in nodes if (leaf := getattr(node, "variable", None)) is not None}
    every = [(path, m, {id(p) for p in own_weights(m)}) for path, m in weighted_modules(model)]
    known = {weight for _, m, weights in every if id(m) in called for weight in weights}
    named = (weight_named(model, name) for name in (*(p.path for p in products.found), *products.unseen))
    known |= {id(found[1]) for found in named if found is not None}
    return [
        f"{path}: its weight is used, but it is never called (as in F.linear(h, layer.weight))"
        for path, m, weights in every
        if id(m) not in called and weights & used and not weights & known
    ]


def _wanted(layers: Layers, seen: Seen) -> list[LayerRun]:
    """Return the calls that were chosen, in the order they ran; AnatomyError where names are in another one."""
    if layers.choice == "layers":
        return [run for run in seen.layers if run not in seen.readers]
    if callable(layers.choice):
        ids = {id(module) for module in layers.modules} | {id(m) for m in layers.readout if layers.choice(m)}
        return [run for run in seen.runs if id(run.call.module) in ids]
    wanted: list[LayerRun] = []
    for name, module in zip(layers.site_names, layers.modules):
        turn = name.partition("#")[2]
        path = name.partition("#")[0]
        own = [run for run in seen.runs if run.product and run.call.path == path]
        own = own or [run for run in seen.runs if not run.product and run.call.module is module]
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
    tracer: Tracer,
    modules: Sequence[nn.Module],
    runs: list[LayerRun],
    x: Inputs,
    y: Tensor,
    weights: Weights,
    products: Products,
) -> list[LayerRun]:
    """Return those of these calls that the loss is computed from after all, past detach() and no_grad."""
    if tracer.tape() is not None:
        return []  # that is what the graph shows
    capture, _, losses = heard_pass(tracer, modules, x, y, weights, Tape(), products)
    seen = Seen(capture.counted(), set(), losses)
    reached = {(run.call.path, run.call.turn) for run in seen.runs if seen.read(run)}
    return [run for run in runs if (run.call.path, run.call.turn) in reached]


class _Axes:
    """Where the batch is in what layers return; where two axes are as long, a smaller batch shows it."""

    def __init__(
        self,
        tracer: Tracer,
        modules: Sequence[nn.Module],
        x: Inputs,
        y: Tensor,
        weights: Weights,
        runs: list[LayerRun],
        products: Products,
    ) -> None:
        self._batch = len(y)
        self._fewer: dict[tuple[str, int], dict[int, Tensor]] = {}
        shapes = [h.shape for run in runs for h in run.states.values()]
        if self._batch > 1 and any(self._axes(s) != [0] and (self._axes(s) or self._rows(s)) for s in shapes):
            names = {id(module): path for path, module in named_modules_of(tracer.model)}
            capture = LayerCapture(names, modules)
            few = mapped(next(split(x, y, self._batch - 1))[0], torch.clone)
            grads = torch.enable_grad() if products.found else torch.no_grad()
            with grads, overheard(modules, capture.after, capture.before), capture.products(tracer.model, products):
                tracer.run_once(few, weights)
            self._fewer = {(run.call.path, run.call.turn): dict(run.states) for run in capture.runs}

    def _axes(self, shape: torch.Size) -> list[int]:
        return [axis for axis, size in enumerate(shape[:2]) if size == self._batch]

    def _rows(self, shape: torch.Size) -> int:
        """Return how many rows there would be of each sample, were they folded into the first axis; 0: they can't."""
        return shape[0] // self._batch if len(shape) > 1 and shape[0] and shape[0] % self._batch == 0 else 0

    def of(self, run: LayerRun, leaf: int) -> tuple[int | None, int]:
        """Return the axis of the samples, 0 or 1 (None where there is none), and how many rows of each it holds."""
        h = run.states[leaf]
        axes = self._axes(h.shape) if h.ndim > 1 else []
        few = self._fewer.get((run.call.path, run.call.turn), {}).get(leaf)
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
    seen = Seen(runs, {id(m) for _, m in weighted_modules(model)}, output)
    leading = [run for run in seen.layers if seen.read(run)]
    whole = len(leading) == len(seen.layers) or (leading[:1] == seen.layers[:1] and all(r.given for r in leading[1:]))
    return _is_plain(seen, leading) if whole else None


def has_no_stream_past_cuts(tracer: Tracer, x: Inputs, y: Tensor, weights: Weights) -> bool:
    """Return the same of what the forward pass computes, whatever it cuts off: there is none where nothing is added.

    Blocks are looked at less closely past cuts, so a stream has to show: greedy layers that a classifier reads, all of
    them in a row, have none.
    """
    modules = [m for _, m in weighted_modules(tracer.model)]
    capture, _, losses = heard_pass(tracer, modules, x, y, weights, Tape())
    seen = Seen(capture.counted(), {id(m) for m in modules}, losses)
    leading = [run for run in seen.layers if seen.read(run)]
    return len(leading) > 1 and seen.added_past() is None and not seen.skips_inside()


def _is_plain(seen: Seen, leading: list[LayerRun]) -> bool:
    return len(leading) > 1 and seen.skip() is None and not seen.joins
