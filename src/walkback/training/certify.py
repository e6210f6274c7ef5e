"""Is my FA really FA? Which credit reaches which parameters, found by measurement and not from names.

One training step is taken apart, in training mode: the gradient it leaves in every parameter group is compared with
the exact one, and computed again after the rule's feedback was drawn anew and after its learned networks were
scrambled. What changes with the feedback is random feedback, what changes with the networks is learned. Averaged
over many such draws, nothing of the exact gradient may be left: what is left is a hidden path of backpropagation.
Last, the credits of a training step are compared with those the same rule shows while it is measured.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor, nn

from walkback.errors import InputError, shown
from walkback.network.values import buffers_of, modules_of, parameters_of, widened
from walkback.rules.rule import Parts, Rule, declares
from walkback.tracing.session import Tracer
from walkback.tracing.trace import Trace, TrainingPass
from walkback.tracing.untouched import untouched
from walkback.training.step import TrainingStep

EXACT, RANDOM, LEARNED, COMPUTED, NONE = "exact", "random feedback", "learned", "computed", "none"
NOT_FINITE = "not finite"
DRAWS = 64
SAME = 1e-6  # 1 − cosine below which a direction is the exact one: rounding, whatever the scale
NEAR = 0.999  # a cosine that is exact in effect, whoever made it
FLOOR = 0.05  # scrambled networks have no symmetry that makes their mean exactly zero, as drawn feedback has
Batch = tuple[Tensor, Tensor]
Draws = list[Tensor | None]  # the gradients of one group in steps with other feedback or networks
APART = 0.01  # relative difference between the credit of a step and the measured one


@dataclass(frozen=True)
class Credit:
    """What reaches one parameter group.

    Args:
        group: "stem", "block 1" … "block L", "readout".
        kind: exact, random feedback, learned, computed (from the network alone, as EP does), none, or not finite:
            the gradient, the exact one, or those of all fresh draws, so that nothing can be certified.
        cosine: of the group's gradient with the exact one, None where one of them is missing, zero or not finite.
        leak: the share of the exact gradient that survives averaging over fresh feedback and scrambled networks,
            None where neither matters.
        leaks: True when that share is more than chance leaves.
    """

    group: str
    kind: str
    cosine: float | None
    leak: float | None = None
    leaks: bool = False


@dataclass(frozen=True)
class TwoFaced:
    """A site whose credit while training is not the one that is measured; cosines with the exact gradient.

    A cosine is None where the credit is zero or not finite.
    """

    group: str
    trains: float | None
    measures: float | None

    def __str__(self) -> str:
        trains, measures = ("none" if c is None else f"{c:+z.4f}" for c in (self.trains, self.measures))
        return f"{self.group}: trains with cosine {trains} to exact, measures with {measures}"


@dataclass(frozen=True)
class Certificate:
    """One Credit per parameter group; `str()` is a table.

    Args:
        rule: its class.
        groups: stem, blocks, readout.
        entitled: the groups that may have exact credit: the readout; the last block of a rule that says
            `exact_top = True`, as FA does, and of one without feedback and networks of its own; all of a rule that
            says `exact = True`, as BP does.
        two_faced: where the rule trains with one credit and is measured with another.

    >>> Certificate("DFA", (Credit("stem", "random feedback", 0.1), Credit("readout", "exact", 1.0))).passed
    True
    """

    rule: str
    groups: tuple[Credit, ...]
    entitled: tuple[str, ...] = ("readout",)
    two_faced: tuple[TwoFaced, ...] = ()

    @property
    def hidden_backprop(self) -> tuple[str, ...]:
        """Groups with the direction of the exact gradient that are not entitled to it, and all that leak."""
        return tuple(c.group for c in self.groups if c.leaks or (c.kind == EXACT and c.group not in self.entitled))

    @property
    def uncertified(self) -> tuple[str, ...]:
        """Groups of which nothing can be said, since a gradient is not finite."""
        return tuple(c.group for c in self.groups if c.kind == NOT_FINITE)

    @property
    def passed(self) -> bool:
        """Every group was certified, none backpropagates in secret, and the rule trains with what it measures."""
        return not (self.uncertified or self.hidden_backprop or self.two_faced)

    @property
    def exact_in_effect(self) -> tuple[str, ...]:
        """Groups with a cosine above 0.999 that are neither entitled to it nor shown to backpropagate.

        A relaxation may come this close honestly, and so may backpropagation with a little noise.
        """
        known = (*self.entitled, *self.hidden_backprop)
        return tuple(c.group for c in self.groups if c.group not in known and (c.cosine or 0) > NEAR)

    def __str__(self) -> str:
        near, hidden = self.exact_in_effect, self.hidden_backprop
        ends = {c.group: " + exact" if c.leaks else " ≈ exact" if c.group in near else "" for c in self.groups}
        rows = [(c.group, c.kind + ends[c.group], c.cosine, c.leak) for c in self.groups]
        head, forms = ("parameters", "credit", "cosine to exact", "exact share left"), ("", "", "+z.4f", "+z.3f")
        table = [[format(x, form) if x is not None else "–" for x, form in zip(row, forms)] for row in rows]
        lines = [self.rule, tabulate(table, head, disable_numparse=True)]
        if hidden:
            lines.append(f"hidden backpropagation in: {', '.join(hidden)}")
        elif not self.uncertified:
            lines.append("no hidden backpropagation found")
        if self.uncertified:
            lines.append(
                f"can't be certified, since a gradient is not finite: {', '.join(self.uncertified)}; look for NaN and "
                "overflow in weights, inputs and credits"
            )
        if near:
            lines.append(f"exact in effect, which can be relaxation or disguised backpropagation: {', '.join(near)}")
        return "\n".join([*lines, *map(str, self.two_faced)])


def certify(rule: Rule, net: nn.Module, batch: Batch | None = None, seed: int = 0) -> Certificate:
    """Return which credit reaches which parameters of `net` when `rule` trains it. Neither is changed.

    Both are run in training mode, as training does.

    Args:
        rule: set up for `net` (see `walkback.rules.rule.set_up`).
        net: the network it trains.
        batch: inputs (B, …) and labels (B,); drawn from a normal distribution when None.
        seed: of the drawn batch, the fresh feedback and the scrambling.

    >>> import torch, walkback as wb
    >>> net, dfa = wb.nets.build("resmlp", (8,), 4, width=16, depth=2), wb.rules.make("dfa")
    >>> wb.rules.set_up(dfa, net, torch.zeros(2, 8), 4, torch.Generator().manual_seed(0))
    >>> [c.kind for c in certify(dfa, net).groups]
    ['random feedback', 'random feedback', 'random feedback', 'exact']
    """
    if not isinstance(rule, Rule):
        raise InputError(
            f"Expected rule to be a walkback.rules.Rule that was set up for the network, but got {shown(rule)}. Make "
            "one with walkback.rules.make, or from a function with a class of your own: class Own(Rule), whose "
            "credits(self, trace) calls it."
        )
    if not isinstance(net, nn.Module):
        raise InputError(f"Expected net to be a torch.nn.Module, but got {type(net).__name__}.")
    parts = Parts.of(net)
    _refuse_frozen(parts, rule)
    generator = torch.Generator().manual_seed(seed)
    if batch is None:
        if rule.example is None:
            raise InputError("Expected a rule that was set up for the network, but it was not: call set_up first.")
        shape, classes = rule.example
        parameter = next(parameters_of(net))
        x = torch.randn(64, *shape, generator=generator, dtype=parameter.dtype).to(parameter.device)
        batch = x, torch.randint(classes, (64,), generator=generator).to(parameter.device)
    _refuse_batch(batch)
    own = {id(t) for t in (*parameters_of(net), *buffers_of(net))}  # a rule may hold the network: no auxiliaries
    networks = [name for name, p in rule.named_parameters() if id(p) not in own]
    with untouched(net), untouched(rule):
        _mode(net, True)
        _mode(rule, True)
        feedback = _redraw(_twin(rule, net), own, generator)

        def gradients(redraw: bool, scramble: bool) -> dict[str, Tensor | None]:
            twin = _twin(rule, net)
            if redraw:
                _redraw(twin, own, generator)
            if scramble:
                _scramble(twin, networks, generator)
            return _gradients(parts, twin, batch, seed, declares(rule, "exact"))

        exact = _gradients(parts, rule, batch, seed, exact=True)
        ours = gradients(False, False)
        redrawn = [gradients(True, False) for _ in range(2 * feedback)]
        scrambled = [gradients(False, True) for _ in range(2 * bool(networks))]
        both = [gradients(feedback, bool(networks)) for _ in range(DRAWS * (feedback or bool(networks)))]
        two_faced = _two_faced(rule, net, parts, batch, seed)
    groups = tuple(
        _judge(group, ours[group], exact[group], *([d[group] for d in draws] for draws in (redrawn, scrambled, both)))
        for group in exact
    )
    if declares(rule, "relaxes"):  # after few steps residuals may point exactly along the gradient
        groups = tuple(replace(c, kind=COMPUTED) if c.kind == EXACT and c.group != "readout" else c for c in groups)
    if declares(rule, "reads_weights"):  # what draws of the feedback leave of the exact gradient are the weights in it
        groups = tuple(replace(c, leaks=False) for c in groups)
    names = tuple(exact)
    top = declares(rule, "exact_top") or not (feedback or networks)
    entitled = names if declares(rule, "exact") else names[-2:] if top else names[-1:]
    return Certificate(type(rule).__name__, groups, entitled, two_faced)


def _refuse_frozen(parts: Parts, rule: Rule) -> None:
    """Refuse a step in which nothing trains: anywhere for exact rules, in the stem and every block for local ones."""
    *groups, _ = _groups(parts).items()
    still = [name for name, own in groups if not any(p.requires_grad for p in own)]
    nothing = len(still) == len(groups) and not parts.readout_parameters()
    if nothing or (still and not declares(rule, "exact")):
        raise InputError(
            "Expected a network whose stem and blocks have parameters that train, but none requires a gradient in: "
            f"{', '.join(still)}. Certify it as it is trained: call net.requires_grad_(True) first."
        )


def _refuse_batch(batch: object) -> None:
    pair = batch if isinstance(batch, (tuple, list)) else ()
    tensors = [t for t in pair if isinstance(t, Tensor) and t.ndim]
    if len(pair) != 2 or len(tensors) != 2 or not 0 < len(tensors[0]) == len(tensors[1]):
        kinds = shown([tuple(t.shape) if isinstance(t, Tensor) else type(t).__name__ for t in pair])
        raise InputError(
            "Expected batch to be a pair of tensors, inputs (B, …) and labels (B,), but got "
            f"{type(batch).__name__}{f' of {kinds}' if pair else ''}. Pass batch=(x, y), or none for one that is drawn."
        )


def _judge(
    group: str, ours: Tensor | None, exact: Tensor | None, redrawn: Draws, scrambled: Draws, both: Draws
) -> Credit:
    if ours is None or exact is None:
        return Credit(group, NONE, None)
    if not bool(ours.isfinite().all() & exact.isfinite().all()):
        return Credit(group, NOT_FINITE, None)
    if not bool(ours.any()):
        return Credit(group, NONE, None)
    cosine = _cosine(ours, exact)
    random, learned = _changes(ours, redrawn), _changes(ours, scrambled)
    if not random and not learned:
        return Credit(group, EXACT if cosine is not None and cosine > 1 - SAME else COMPUTED, cosine)
    # Share of the exact gradient in each draw; neither zero-mean feedback nor scrambled networks leave any on average.
    draws = [d for d in both if d is not None and bool(d.isfinite().all())]
    kind = RANDOM if random else LEARNED
    if len(draws) < 2:
        return Credit(group, NOT_FINITE, cosine)
    if cosine is None:
        return Credit(group, kind, None)  # the exact gradient is zero: there is nothing of it to be left
    unit = exact / (size := exact.abs().max())  # squares must not underflow
    shares = torch.stack([d @ unit / (unit @ unit) for d in draws])
    leak, error = float(shares.mean()), float(shares.std() / len(shares) ** 0.5)
    mean = sum(_cosine(d, exact) or 0.0 for d in draws) / len(draws)
    return Credit(group, kind, cosine, leak / float(size), abs(leak) > 5 * error and (not learned or abs(mean) > FLOOR))


def _cosine(a: Tensor, b: Tensor) -> float | None:
    """Return the cosine of two gradients; None where one of them is zero or not finite."""
    a, b = (v / v.abs().max() for v in (widened(a).flatten(), widened(b).flatten()))  # as in _judge
    cosine = float(nn.functional.cosine_similarity(a, b, 0, 0.0))
    return cosine if isfinite(cosine) else None


def _changes(ours: Tensor, draws: Draws) -> bool:
    return any(d is None or not torch.allclose(d, ours, rtol=1e-4) for d in draws)


def _gradients(parts: Parts, rule: Rule, batch: Batch, seed: int, exact: bool) -> dict[str, Tensor | None]:
    groups = _groups(parts)
    for p in (p for own in groups.values() for p in own):
        p.grad = None
    torch.manual_seed(seed)  # the same dropout every time
    TrainingStep(parts, rule, exact)(*batch)
    grads = {name: [widened(p.grad.flatten()) for p in own if p.grad is not None] for name, own in groups.items()}
    return {name: torch.cat(own) if own else None for name, own in grads.items()}


def _groups(parts: Parts) -> dict[str, list[nn.Parameter]]:
    """Return the parameters of the stem, of each block and of the readout."""
    modules = {"stem": [parts.stem], **{f"block {i}": [b] for i, b in enumerate(parts.blocks, 1)}}
    modules["readout"] = list(parts.readout_modules)
    return {name: [p for m in group for p in parameters_of(m)] for name, group in modules.items()}


def _two_faced(rule: Rule, net: nn.Module, parts: Parts, batch: Batch, seed: int) -> tuple[TwoFaced, ...]:
    """Return the sites whose credit in a step and in a measurement differ on the same states."""
    _mode(net, False)
    measured = _twin(rule, net)
    measured.training = False  # its networks stay as they are: their dropout is no deceit
    with Tracer(net) as tracer:
        torch.manual_seed(seed)
        # Credits of a stochastic rule are drawn from the same seed as in a step.
        trace = tracer.trace(*batch, credit=lambda t: _seeded(measured, t, seed))
    out: dict[int, TwoFaced] = {}
    for mode in (False, True):
        _mode(net, mode)
        if declares(rule, "exact"):  # its steps know no credits: they train with the gradient itself
            states, credits = trace.states, list(trace.grads)
        else:
            states, credits = _step_credits(_twin(rule, net), parts, batch, seed)
        if any(_apart(a, b) > 1e-3 for a, b in zip(states, trace.states)):
            continue  # batch norm or dropout: other states have other credits
        for site, (a, b, g) in enumerate(zip(credits, trace.credits or (), trace.grads)):
            if not _apart(a, b) <= APART and (bool(a.isfinite().all()) or bool(b.isfinite().all())):
                name = f"block {site}" if site else "stem"
                out.setdefault(site, TwoFaced(name, _cosine(a, g), _cosine(b, g)))
    return tuple(out[site] for site in sorted(out))


def _seeded(rule: Callable[[Any], Sequence[Tensor]], trace: Trace | TrainingPass, seed: int) -> Sequence[Tensor]:
    torch.manual_seed(seed)
    return rule(trace)


def _step_credits(twin: Rule, parts: Parts, batch: Batch, seed: int) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    """Return states and credits of one training step."""
    seen: list[tuple[TrainingPass, list[Tensor]]] = []
    own = twin.credits

    def credits(trace: TrainingPass) -> Sequence[Tensor]:
        seen.append((trace, list(_seeded(own, trace, seed))))
        return seen[-1][1]

    twin.credits = credits
    TrainingStep(parts, twin, exact=False)(*batch)
    return seen[-1][0].states, seen[-1][1]


def _apart(a: Tensor, b: Tensor) -> float:
    size = max(float(a.norm()), float(b.norm()))
    return float((a - b).norm()) / size if size else 0.0


def _mode(module: nn.Module, training: bool) -> None:
    for m in modules_of(module):
        m.training = training


@torch.no_grad()
def _redraw(rule: Rule, own: set[int], generator: torch.Generator) -> bool:
    """Draw the feedback anew: as the rule does it, or else every buffer at its size. False without feedback."""
    if rule.redraw(generator):
        return True
    # A constant is no feedback, and neither are the statistics of a normalisation.
    named = [(n.rpartition(".")[2], b) for n, b in rule.named_buffers() if b.is_floating_point() and id(b) not in own]
    buffers = [b for n, b in named if not n.startswith("running_") and float(b.std(correction=0)) > 0]
    for b in buffers:
        b.copy_(torch.randn(b.shape, generator=generator).to(b) * b.std(correction=0))
    return bool(buffers)


@torch.no_grad()
def _scramble(rule: Rule, networks: list[str], generator: torch.Generator) -> None:
    # Small: credit to first order in the weights averages to zero. What a large random prediction adds to second
    # order (it is taught to be less sure, along h) does not, and correlates with the exact gradient of a fitted net.
    for p in map(rule.get_parameter, networks):
        p.copy_(torch.randn(p.shape, generator=generator).to(p) * (p.std(correction=0) + 0.01) / 10)


def _twin(rule: Rule, net: nn.Module) -> Rule:
    """Return a copy with its own auxiliaries that still works on the same network."""
    shared = (*modules_of(net), *parameters_of(net), *buffers_of(net))
    return copy.deepcopy(rule, {id(t): t for t in shared})
