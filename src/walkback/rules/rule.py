"""What a learning rule is: a credit for every site, and whatever it keeps to compute them.

A rule is an `nn.Module`, so its auxiliaries (feedback matrices as buffers, learned networks as children) are
saved, moved and loaded with it. Called with a Trace or a TrainingPass it gives one tensor per site, shaped like the
states; that is also what `walkback.diagnose(credit=rule)` needs. Training and measuring show it the same: of the
gradients that of the last site (`trace.grads[-1]`), which the readout has anyway; only an exact rule (BP) sees more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from walkback.errors import AnatomyError, InputError, shown
from walkback.network.anatomy import Anatomy, Layers, unwrap
from walkback.network.loss import cross_entropy
from walkback.network.values import buffers_of, modules_of, parameters_of, widened
from walkback.tracing.trace import Trace, TrainingPass


@dataclass(frozen=True)
class Parts:
    """A network as training sees it: stem(x) -> h_0, h_l = h_{l-1} + block_l(h_{l-1}), readout(h_L) -> logits."""

    stem: nn.Module
    blocks: tuple[nn.Module, ...]
    readout: Callable[[Tensor], Tensor]
    readout_modules: tuple[nn.Module, ...]

    @staticmethod
    def of(net: nn.Module) -> Parts:
        """Take a network apart; `net.readout` is its readout where what precedes the head is more than a norm."""
        net = unwrap(net)
        anatomy = Anatomy.of(net)
        if isinstance(anatomy, Layers):
            raise AnatomyError(anatomy.refusal)
        stem, blocks, modules = anatomy.stem, anatomy.blocks, anatomy.readout
        if not isinstance(stem, nn.Module):
            raise AnatomyError("Expected a network with a stem, but it has none.")
        readout = getattr(net, "readout", None)
        if readout is None:
            readout = nn.Sequential(*modules)  # type: ignore[arg-type]
        return Parts(stem, tuple(blocks), readout, tuple(modules))  # type: ignore[arg-type]

    def readout_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that the readout's own exact gradient trains."""
        return [p for module in self.readout_modules for p in parameters_of(module) if p.requires_grad]


class Rule(nn.Module):
    """Base of all rules. Implement `credits`; `setup` and `auxiliary_loss` where the rule keeps something.

    What kind of rule it is, a class says itself, and its subclasses inherit it; read with `declares`.

    Args:
        exact: the credit is the BP gradient at every site. Training then differentiates the loss end to end and asks
            for no credits, so `credits` has to return the gradients and `auxiliary_loss` nothing: `set_up` and every
            epoch of training refuse anything else.
        exact_top: a_L is the exact gradient by construction, as in FA.
        reads_weights: the feedback is made of the forward weights, as in sign-symmetry and the weight mirror, so that
            averaging over its draws leaves something of the exact gradient, without a hidden path.
        relaxes: the credit is computed from the network by letting its states relax, as EP does. It may come as close
            to the exact gradient as it likes without having backpropagated.

    >>> import walkback as wb
    >>> class Copies(Rule):
    ...     def credits(self, trace):
    ...         return [trace.grads[-1] for _ in trace.states]
    >>> 0.5 < wb.diagnose(wb.selftest.healthy(), wb.selftest.batches(1), credit=Copies()).values["gamma"] < 1
    True
    """

    exact: bool = False
    exact_top: bool = False
    reads_weights: bool = False
    relaxes: bool = False
    length = "raw"  # of every sample's credit at every site: as it is, "unit" (1) or "rms" (√d)
    example: tuple[tuple[int, ...], int] | None = None  # (input shape, classes) of the network it was set up for

    def setup(self, parts: Parts, states: Sequence[Tensor], classes: int, generator: torch.Generator) -> None:
        """Make auxiliaries for this network.

        Args:
            parts: the network.
            states: h_0…h_L of a few samples, for their shapes.
            classes: C.
            generator: draw from this one only.
        """

    def credits(self, trace: TrainingPass) -> Sequence[Tensor]:
        """Return a_0…a_L, gradients of per-sample losses, each shaped like its state."""
        raise InputError(f"Expected the rule {type(self).__name__} to define credits(trace), but it does not.")

    def auxiliary_loss(self, trace: TrainingPass) -> Tensor | None:
        """Return a scalar whose gradient trains this rule's own parameters, or None."""
        return None

    def trains(self) -> list[nn.Parameter] | None:
        """Return the parameters that `auxiliary_loss` trains, where its graph leads to more; None: all it leads to."""
        return None

    def redraw(self, generator: torch.Generator) -> bool:
        """Draw the random feedback anew (for the fresh-B null); False for rules without any."""
        return False

    def describe(self) -> dict[str, object]:
        """Return what a reader must know of how credit is given: scales, where the error goes, labels seen."""
        return {}

    def forward(self, trace: Trace | TrainingPass) -> Sequence[Tensor]:
        """Return the credits, each sample's brought to `length`: what training uses and what is measured."""
        if isinstance(trace, Trace):
            trace = TrainingPass.of(trace, declares(self, "exact"))
        return of_length(self.credits(trace), self.length)


def declares(rule: Rule, trait: str) -> bool:
    """Return whether a rule says `trait` ("exact", "exact_top", "reads_weights", "relaxes") of itself.

    Only True counts: a rule may have had a method or a number of that name before the name meant something here.

    >>> from walkback.rules import BP, DFA
    >>> declares(BP(), "exact"), declares(DFA(), "exact")
    (True, False)
    """
    return getattr(rule, trait, False) is True


def inherits(rule: Rule, cls: type[Rule], *methods: str) -> bool:
    """Return whether a rule has these methods from `cls`, and no subclass its own."""
    return all(getattr(type(rule), name) is getattr(cls, name) for name in methods)


LENGTHS = ("raw", "unit", "rms")


def of_length(credits: Sequence[Tensor], length: str) -> Sequence[Tensor]:
    """Return credits (B, …), every sample's at length 1 ("unit") or √d ("rms"), or as it is ("raw"). Zero stays zero.

    d counts all entries of a sample's state, tokens and positions too, so that their root mean square is 1.

    >>> of_length([torch.tensor([[3.0, 4.0]])], "unit")[0]
    tensor([[0.6000, 0.8000]])
    """
    if length == "raw":
        return credits
    if length not in LENGTHS:
        raise InputError(f"Expected the length of a credit to be one of {', '.join(LENGTHS)}, but got {shown(length)}.")
    return [_unit_rows(a.flatten(1)).mul(a[0].numel() ** 0.5 if length == "rms" else 1.0).view_as(a) for a in credits]


def _unit_rows(rows: Tensor) -> Tensor:
    """Return (B, n) rows of length 1; a row of zeros stays. Divide by the largest entry first: small squares vanish."""
    least = torch.finfo(rows.dtype).tiny
    rows = rows / rows.abs().amax(1, keepdim=True).clamp(min=least)
    return rows / rows.norm(dim=1, keepdim=True).clamp(min=least)


def error_signal(trace: Trace | TrainingPass) -> Tensor:
    """Return E = softmax(logits) − onehot, (B, C): the gradient of each sample's cross-entropy."""
    target = trace.labels
    if not target.is_floating_point():
        target = nn.functional.one_hot(target, trace.logits.shape[1])
    return trace.logits.softmax(1) - target.to(trace.logits.dtype)


# Where a credit made of one vector per sample goes in states with tokens or positions.
TARGETS = ("all", "readout")


def check_target(target: str) -> str:
    """Return one of TARGETS, or raise an InputError."""
    if target not in TARGETS:
        raise InputError(f"Expected target to be one of {', '.join(TARGETS)}, but got {shown(target)}.")
    return target


def feature_dim(state: Tensor) -> int:
    """Return the width of one position: d of (B, d) and (B, T, d), channels of (B, C, H, W)."""
    return state.shape[1] if state.ndim == 4 else state.shape[-1]


def place(vector: Tensor, state: Tensor, target: str) -> Tensor:
    """Bring a (B, d) credit into the shape of `state`: every token or position alike, or only the first token.

    Over positions of an image, and over all tokens, it is divided by their number, as pooling does.
    """
    if state.ndim == 2:
        return vector
    if state.ndim == 3:
        if target == "all":
            return (vector / state.shape[1])[:, None, :].expand_as(state)
        placed = torch.zeros_like(state)
        placed[:, 0] = vector
        return placed
    return (vector / (state.shape[2] * state.shape[3]))[:, :, None, None].expand_as(state)


@contextmanager
def buffers_kept(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Put buffers back: states that are no states of the network must not move running statistics."""
    kept = [(buffer, buffer.clone()) for module in modules for buffer in buffers_of(module)]
    try:
        yield
    finally:
        for buffer, value in kept:
            buffer.data.copy_(value)  # past autograd, which keeps statistics for its backward pass


def gather(credit: Tensor) -> Tensor:
    """Return the inverse of `place`: one (B, d) vector, summed over tokens or positions."""
    if credit.ndim == 2:
        return credit
    return credit.sum(1) if credit.ndim == 3 else credit.sum((2, 3))


def _alike(a: Tensor, b: Tensor) -> bool:
    """Return whether both are equal up to rounding; NaN may meet NaN."""
    a, b = widened(a), widened(b)
    return torch.allclose(a, b, rtol=1e-3, atol=1e-4 * float(b.abs().nan_to_num().max()), equal_nan=True)


@contextmanager
def _evaluating(net: nn.Module) -> Iterator[None]:
    """Set eval mode inside, so that samples move no running statistics; every module has its own mode back outside."""
    modes = [(m, m.training) for m in modules_of(net)]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@torch.no_grad()
def set_up(rule: Rule, net: nn.Module, x: Tensor, classes: int, generator: torch.Generator) -> None:
    """Give a rule its auxiliaries for `net`, whose state shapes a few prepared inputs x (B, …) show.

    >>> import walkback as wb
    >>> dfa = wb.rules.DFA()
    >>> set_up(dfa, wb.nets.build("resmlp", (8,), 3, width=16), torch.zeros(2, 8), 3, torch.Generator().manual_seed(0))
    >>> len(dfa.matrices()), dfa.matrices()[0].shape
    (5, torch.Size([3, 16]))
    """
    parts = Parts.of(net)
    with _evaluating(net):
        states = [parts.stem(x)]
        for block in parts.blocks:
            states.append(states[-1] + block(states[-1]))
        composed, whole = parts.readout(states[-1]), net(x)
    if not isinstance(whole, Tensor) or composed.shape != whole.shape or not _alike(composed, whole):
        raise AnatomyError(
            "Expected net(x) to be readout(h_L) with h_0 = stem(x) and h_l = h_{l-1} + block_l(h_{l-1}), which is what "
            "training runs, but the network gives something else: blocks that return h + f, or something added between "
            "its parts (a positional embedding, a scale)? Move it into the stem or the blocks, and let blocks return f."
        )
    rule.setup(parts, states, classes, generator)
    rule.example = (tuple(x.shape[1:]), classes)  # what `certify` draws its batch from
    labels = torch.arange(composed[..., 0].numel(), device=x.device) % composed.shape[-1]
    refuse_inexact(rule, net, x, labels.view(composed.shape[:-1]))


def refuse_inexact(rule: Rule, net: nn.Module, x: Tensor, y: Tensor) -> None:
    """Raise an InputError where a rule says it is exact, and its credits for (B, …) inputs and labels are not g_l.

    Training an exact rule differentiates end to end and never asks for its credits: a rule that gives others would be
    trained with one credit and measured with another. Other rules are not looked at.
    """
    if not declares(rule, "exact"):
        return
    name = type(rule).__name__
    with _evaluating(net), torch.enable_grad():
        trace = _whole_pass(Parts.of(net), x, y)
        if rule.auxiliary_loss(trace) is not None:
            raise InputError(
                f"Expected no auxiliary_loss from {name}, which says exact = True: training then differentiates the "
                "loss end to end, and what the rule keeps would not learn. Set exact = False in the class."
            )
    with torch.no_grad():
        credits = list(rule.credits(trace))
    given, needed = ([tuple(t.shape) for t in tensors] for tensors in (credits, trace.states))
    other = None if given != needed else next((i for i, g in enumerate(trace.grads) if not _alike(credits[i], g)), None)
    if given != needed or other is not None:
        where = f"{len(given)} credits, shaped {given}" if other is None else f"another credit at site {other}"
        raise InputError(
            f"Expected {name}, which says exact = True, to return the gradients trace.grads as its credits, but got "
            f"{where}. Training would differentiate the loss end to end whatever it returns. Set exact = False in the "
            "class to train with its own credits (trace.grads then holds the last site's alone), or return trace.grads."
        )


def _whole_pass(parts: Parts, x: Tensor, y: Tensor) -> TrainingPass:
    """Return a pass with the gradient of every site."""
    states = [parts.stem(x).detach().requires_grad_()]
    for block in parts.blocks:
        states.append(states[-1] + block(states[-1]))
    logits = parts.readout(states[-1])
    losses = cross_entropy(logits, y)
    grads = torch.autograd.grad(losses.sum(), states)
    return TrainingPass(tuple(h.detach() for h in states), grads, losses.detach(), logits.detach(), y, x)
