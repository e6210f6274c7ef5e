"""The calls of one pass, and how they lie above each other in its graph: which are layers, which read the last one."""

from __future__ import annotations

from collections.abc import Collection
from itertools import permutations, product
from typing import Any

from torch import Tensor, nn

from walkback.network.layers import frozen_weights, kept_weights
from walkback.tracing.graph import Below, between, goes_past_weights, uses_weights
from walkback.tracing.heard import LayerRun

UNREACHED = "the loss does not depend on it"
OUTPUT = "it is the output layer: what it returns is the answer, and no layer with a weight reads it"
UNGRADED = "it runs with gradients turned off (torch.no_grad inside the forward pass)"


class Seen:
    """The calls of one pass, and how they lie above each other in its graph."""

    def __init__(self, runs: list[LayerRun], weighted: Collection[int], top: Tensor) -> None:
        self.runs = runs
        self.layers = [run for run in runs if run.product or _is_layer(run, weighted)]
        self._bit = {run: 1 << i for i, run in enumerate(runs)}
        marks: dict[tuple[Any, int], int] = {}
        for run in runs:
            for edge in run.edges.values():
                marks[edge.node, edge.output_nr] = marks.get((edge.node, edge.output_nr), 0) | self._bit[run]
        made = {run: {edge.node for edge in run.edges.values()} for run in runs}
        every = {node for nodes in made.values() for node in nodes}
        inside = {n for run in self.layers for n in between(made[run], run.given | (every - made[run]))}
        self._top, self._inside = top.grad_fn, inside
        self._below = Below(top, marks, sum(self._bit[run] for run in self.layers), inside)
        self.recurs: str | None = None  # a layer that the state of a recurrent cell goes past, once `skip` has looked
        self.readers = self._find_readers()
        if uses_weights(top.grad_fn, {node for run in self.readers if not run.holds for node in made[run]}):
            self.readers = []  # the output layer is no module: F.linear with a weight of another one

    @property
    def hidden(self) -> list[LayerRun]:
        """The layers that others read."""
        return [run for run in self.layers if run not in self.readers]

    def used_outside(self) -> set[int]:
        """Return the ids of parameters that the result was computed from outside of every layer."""
        outside = between([self._top], ()) - self._inside
        below = (child for node in outside for child, _ in node.next_functions if child is not None)
        return {id(leaf) for child in below if (leaf := getattr(child, "variable", None)) is not None}

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
        if len(self.read(run)) > 1 and not _is_recurrent(run):
            return f"it returns {len(self.read(run))} tensors that the loss depends on"
        if not self.read(run):
            return UNREACHED
        return OUTPUT if run in self.readers else ""

    def hands_on_several(self, run: LayerRun) -> bool:
        """Return whether a call is of a recurrent layer whose states are all read, as (h, c): the first is its site."""
        return len(self.read(run)) > 1 and _is_recurrent(run)

    def _find_readers(self) -> list[LayerRun]:
        """Return the output layers, which the loss depends on and no other layer, and what was chosen behind them."""
        there = [run for run in self.layers if self.read(run)]
        read = 0
        for run in there:
            read |= self._under(run)
        last = [run for run in there if not self._bit[run] & read]
        above = sum(self._bit[run] for run in last)
        made = {(edge.node, edge.output_nr) for run in last for edge in run.edges.values()}
        others = [run for run in self.runs if run not in self.layers and run.call.path]
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
            if self._skips_inside(run):
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

    def _skips_inside(self, run: LayerRun) -> bool:
        own = not run.product and not type(run.call.module).__module__.startswith("torch.nn.modules")
        return own and goes_past_weights((edge.node for edge in run.edges.values()), run.given)

    def skips_inside(self) -> bool:
        """Return whether a layer of one's own that runs once adds to what it is given, as a block of one layer does."""
        return any(run.call.turns == 1 and self._skips_inside(run) for run in self.layers)

    def added_past(self) -> str | None:
        """Return a layer that is gone past by what is added to its output, or to what is made of it, if there is one.

        So it is in a residual stream, and not where a later layer is given several in a row, nor from step to step of a
        cell.
        """
        tops = [edge.node for run in self.layers for edge in run.edges.values()]
        for ways in self._below.met(tops):
            sides = [[run for run in self.layers if self._bit[run] & way] for way in ways]
            for one, other in permutations(sides, 2):
                for start, passed in product(one, other):
                    if self._bit[start] & self._under(passed) and not _is_recurrence(start, passed, None):
                        return passed.call.name
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


def _is_recurrent(run: LayerRun) -> bool:
    """Return whether a call is one of a layer of torch that hands on a state, or of a cell that runs in every step."""
    return run.call.turns > 1 or isinstance(run.call.module, (nn.RNNBase, nn.RNNCellBase))


def _is_layer(run: LayerRun, weighted: Collection[int]) -> bool:
    return id(run.call.module) in weighted and not run.holds and _weighs(run)


def _weighs(run: LayerRun) -> bool:
    """Return whether a call is a product with a weight: of weights that are not trained the graph has to show it.

    A feedback matrix may be kept so, too, beside a forward pass that hands on what it is given.
    """
    if frozen_weights(run.call.module) and run.unchanged:
        return False
    if not (kept_weights(run.call.module) or frozen_weights(run.call.module)) or not run.given:
        return True
    return not goes_past_weights((edge.node for edge in run.edges.values()), run.given)


def _is_recurrence(start: LayerRun, passed: LayerRun, top: LayerRun | None) -> bool:
    """Return whether a way past a layer leads from step to step of a cell by hand, and is no skip.

    From a step before to one after, of layers that are called in each; or back to the layer it starts from. A residual
    loop has a way from its stem, too, which is called once.
    """
    steps = min(start.call.turns, passed.call.turns) > 1 and start.call.turn < passed.call.turn
    return steps or (top is not None and top.call.path == start.call.path)
