"""What is taken down of the calls of some modules in one forward pass, and where their gradients are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.utils._pytree import tree_leaves, tree_map

from walkback.errors import InputError
from walkback.network.batch import Inputs, mapped
from walkback.network.layers import Call, frozen_weights
from walkback.network.values import fragile, logits_of, named_modules_of, random_state
from walkback.notes import Note
from walkback.tracing.calls import overheard
from walkback.tracing.cuts import refuse_cut_answer
from walkback.tracing.derived import Spy, Tape, carry_gradient, has_custom_backward, unseen_edge
from walkback.tracing.numbered import aside

if TYPE_CHECKING:
    from walkback.tracing.products import Product, Products
    from walkback.tracing.rerun import Weights
    from walkback.tracing.session import Tracer


@dataclass(eq=False)
class LayerRun:
    """One call of a module in a pass: where the gradients of its tensors are taken, and what they were."""

    call: Call
    given: set[Any]  # nodes of the graph that it was given
    edges: dict[int, GradientEdge] = field(default_factory=dict)  # which of its tensors -> where it is in the graph
    states: dict[int, Tensor] = field(default_factory=dict)
    holds: bool = False  # another module with a weight ran inside
    unchanged: bool = False  # it returned the numbers that it was given
    product: bool = False  # a product with a weight that no module makes: the path is that of the weight


class LayerCapture:
    """What is taken down of the calls of some modules in one forward pass."""

    def __init__(
        self,
        names: Mapping[int, str],
        modules: Sequence[nn.Module],
        own: Callable[[], Iterable[Tensor]] = tuple,
        tape: Tape | None = None,
    ) -> None:
        self.runs: list[LayerRun] = []
        self.modules, self.tape = modules, tape
        self._names, self._own = names, own
        self._running: list[LayerRun] = []
        self._turns: dict[str, int] = {}
        self._taken: dict[
            LayerRun, list[Tensor]
        ] = {}  # what calls were given: of those that run, or where a tape keeps it

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin a call."""
        for outer in self._running:
            outer.holds = True
        path = self._names[id(module)]
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        with torch._C.DisableTorchFunction():  # a spy would take a look at a node for a hook on it
            given = {t.grad_fn for t in tensors if t.grad_fn is not None}
        run = LayerRun(Call(path, module, self._turn(path)), given)
        self._running.append(run)
        self._taken[run] = tensors

    def after(self, module: nn.Module, output: Any) -> Any:
        """End a call: take down the tensors that it returned, and let each carry a gradient."""
        with aside():
            run = self._running.pop()
            given = self._taken[run] if self.tape is not None else self._taken.pop(run)
            if frozen_weights(module):
                made = [t for t in tree_leaves(output) if isinstance(t, Tensor)]
                run.unchanged = any(t.shape == other.shape and torch.equal(t, other) for t in made for other in given)
            return self._end(run, output)

    def at_product(self, product: Product, made: Tensor) -> Tensor:
        """Take down a product with a weight that no module makes; return what flows on."""
        run = LayerRun(Call(product.path, product.owner, self._turn(product.path)), set(), product=True)
        instead = self._end(run, made)
        return made if instead is None else instead

    def _turn(self, path: str) -> int:
        turn = self._turns[path] = self._turns.get(path, 0) + 1
        return turn

    def _end(self, run: LayerRun, output: Any) -> Any:
        number = len(self.runs)
        self.runs.append(run)
        instead: dict[int, Tensor] = {}
        for leaf, made in enumerate(tree_leaves(output)):
            if not isinstance(made, Tensor) or not made.is_floating_point() or id(made) in instead:
                continue
            handed = self._handed(made)
            if handed.requires_grad:
                run.edges[leaf] = unseen_edge(handed)
            if self.tape is not None:
                self.tape.mark((number, leaf), handed)
            run.states[leaf] = handed.detach().clone()  # the network may write it in place, as nn.ReLU(inplace=True)
            if handed is not made:
                instead[id(made)] = handed
        return tree_map(lambda t: instead.get(id(t), t), output) if instead else None

    def _handed(self, made: Tensor) -> Tensor:
        """Return what flows on: the tensor itself, or a copy where its gradient could not be taken there."""
        if made.requires_grad:
            return made.clone() if made._is_view() else made  # writing a view in place rewrites its history
        if self.tape is not None or fragile(made, self._own()):
            made = made.detach().clone()
        if torch.is_grad_enabled():
            carry_gradient(made)
        return made

    def look(self, module: nn.Module, output: Any) -> None:
        """End a call that is only looked at: nothing that flows on is changed."""
        run = self._running.pop()
        self._taken.pop(run)
        self.runs.append(run)
        made = [t for t in tree_leaves(output) if isinstance(t, Tensor) and t.requires_grad]
        run.edges = {leaf: unseen_edge(t) for leaf, t in enumerate(made)}

    def counted(self) -> list[LayerRun]:
        """Return the runs, each with how many of its module there were."""
        for run in self.runs:
            run.call = replace(run.call, turns=self._turns[run.call.path])
        return self.runs

    def products(self, model: nn.Module, products: Products | None) -> AbstractContextManager[None]:
        """Take down products of the pass inside."""
        return nullcontext() if products is None else products.shown(model, self.at_product)

    def on_tape(self) -> tuple[Callable[[Tensor], Tensor], Mapping[Any, tuple[Tensor, GradientEdge]]]:
        """Take all edges on a graph that follows the forward pass alone.

        Return what gives a tensor's twin there, and all marks of the tape.
        """
        assert self.tape is not None
        twin, marks = self.tape.reference()
        for number, run in enumerate(self.runs):
            run.edges = {leaf: marks[number, leaf][1] for leaf in run.states}
            run.given = {node for t in self._taken.get(run, ()) if (node := twin(t).grad_fn) is not None}
        return twin, marks


def heard_pass(
    tracer: Tracer,
    modules: Sequence[nn.Module],
    x: Inputs,
    y: Tensor,
    weights: Weights,
    tape: Tape | None = None,
    products: Products | None = None,
) -> tuple[LayerCapture, Tensor, Tensor]:
    """Return what was taken down of some modules, the logits, and the losses on the graph of the reference.

    With `products` also what was taken down of these.
    """
    names = {id(module): path for path, module in named_modules_of(tracer.model)}
    capture = LayerCapture(names, modules, lambda: tracer.own(weights), tape or tracer.tape())
    first = not tracer.layer_sites
    drawn = random_state(y.device) if first else None
    with capture.tape or nullcontext(), Spy() if first else nullcontext() as spy:
        inputs = mapped(x, lambda t: t.detach().clone())
        tracer.capture = capture
        try:
            with overheard(modules, capture.after, capture.before), capture.products(tracer.model, products):
                output = tracer.run_once(inputs, weights)
        finally:
            tracer.capture = None
    if drawn is not None and not torch.equal(drawn, random_state(y.device)):
        draws = Note("random-forward")
        tracer.notes += [] if draws in tracer.notes else [draws]
    logits = logits_of(output)
    if capture.tape is None:
        refuse_cut_answer(tracer, logits)
    with capture.tape or nullcontext():
        losses = tracer.losses(logits, y)
    if spy is not None:
        tracer.learn(suspect=tracer.reading.suspect or spy.saw or has_custom_backward(losses))
        tracer.asked.see(spy.read)
    if capture.tape is not None:
        losses = capture.on_tape()[0](losses)
    if not losses.requires_grad:
        raise InputError(
            "Expected a loss that depends on the network, but it carries no gradient. Return it as a tensor computed "
            "from the logits, without detach() or item()."
        )
    return capture, logits, losses
