"""Is my FA really FA? Which credit reaches which parameters, found by measurement and not from names.

One training step is taken apart: the gradient it leaves in every parameter group is compared with the exact one,
and computed again after the rule's feedback was drawn anew and after its learned networks were scrambled. What
changes with the feedback is random feedback, what changes with the networks is learned. Averaged over many draws
of zero-mean feedback, nothing of the exact gradient may be left: what is left is a hidden path of backpropagation.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from tabulate import tabulate
from torch import Tensor, nn

from walkback.errors import InputError
from walkback.rules.bp import BP
from walkback.rules.rule import Parts, Rule
from walkback.training.step import Step
from walkback.untouched import untouched

EXACT, RANDOM, LEARNED, COMPUTED, NONE = "exact", "random feedback", "learned", "computed", "none"
DRAWS = 64


@dataclass(frozen=True)
class Credit:
    """What reaches one parameter group.

    Args:
        group: "stem", "block 1" … "block L", "readout".
        kind: exact, random feedback, learned, computed (from the network alone, as EP does), or none.
        cosine: of the group's gradient with the exact one, None where there is no gradient.
        leak: the share of the exact gradient that survives averaging over fresh feedback, None without feedback.
        leaks: True when that share is more than chance leaves.
    """

    group: str
    kind: str
    cosine: float | None
    leak: float | None = None
    leaks: bool = False


@dataclass(frozen=True)
class Certificate:
    """One Credit per parameter group; `str()` is a table."""

    rule: str
    groups: tuple[Credit, ...]

    @property
    def hidden_backprop(self) -> tuple[str, ...]:
        """Groups below the last block that get exact or leaking credit from something that is not called BP."""
        below = [c for c in self.groups if c.group not in ("readout", self.groups[-2].group)]
        return tuple(c.group for c in below if self.rule != "BP" and (c.kind == EXACT or c.leaks))

    def __str__(self) -> str:
        rows = [
            (
                c.group,
                c.kind + (" + exact" if c.leaks else ""),
                "–" if c.cosine is None else f"{c.cosine:+.4f}",
                "–" if c.leak is None else f"{c.leak:+.3f}",
            )
            for c in self.groups
        ]
        table = tabulate(rows, ("parameters", "credit", "cosine to exact", "exact share left"), disable_numparse=True)
        hidden = self.hidden_backprop
        last = f"hidden backpropagation in: {', '.join(hidden)}" if hidden else "no hidden backpropagation found"
        return f"{self.rule}\n{table}\n{last}"


def certify(rule: Rule, net: nn.Module, batch: tuple[Tensor, Tensor] | None = None, seed: int = 0) -> Certificate:
    """Which credit reaches which parameters of `net` when `rule` trains it. Neither is changed.

    Args:
        rule: set up for `net` (see `walkback.rules.rule.set_up`).
        net: the network.
        batch: inputs (B, …) and labels (B,); drawn from a normal distribution when None.
        seed: of the drawn batch, the fresh feedback and the scrambling.

    >>> import torch, walkback as wb
    >>> net, dfa = wb.nets.build("resmlp", (8,), 4, width=16, depth=2), wb.rules.make("dfa")
    >>> wb.rules.set_up(dfa, net, torch.zeros(2, 8), 4, torch.Generator().manual_seed(0))
    >>> [c.kind for c in certify(dfa, net).groups]
    ['random feedback', 'random feedback', 'random feedback', 'exact']
    """
    generator = torch.Generator().manual_seed(seed)
    if batch is None:
        if rule.example is None:
            raise InputError("Expected a rule that was set up for the network, but it was not: call set_up first.")
        shape, classes = rule.example
        parameter = next(net.parameters())
        x = torch.randn(64, *shape, generator=generator, dtype=parameter.dtype).to(parameter.device)
        batch = x, torch.randint(classes, (64,), generator=generator).to(parameter.device)
    with untouched(net), untouched(rule):
        exact = _gradients(net, BP(), batch, exact=True)
        ours = _gradients(net, rule, batch, exact=isinstance(rule, BP))
        redrawn = [_gradients(net, r, batch) for r in _redrawn(rule, generator, DRAWS)]
        scrambled = _gradients(net, _scrambled(rule, generator), batch) if any(True for _ in rule.parameters()) else {}
    return Certificate(
        type(rule).__name__,
        tuple(
            _judge(group, ours[group], exact[group], [r[group] for r in redrawn], scrambled.get(group))
            for group in exact
        ),
    )


def _judge(
    group: str, ours: Tensor | None, exact: Tensor | None, redrawn: list[Tensor | None], scrambled: Tensor | None
) -> Credit:
    if ours is None or exact is None or not bool((ours != 0).any()):
        return Credit(group, NONE, None)
    cosine = float(ours @ exact / (ours.norm() * exact.norm()))
    draws = [r for r in redrawn if r is not None]
    random = bool(draws) and any(not torch.allclose(r, ours, rtol=1e-4) for r in draws)
    if (
        not random
        and abs(cosine - 1) < 1e-6
        and torch.allclose(ours, exact, rtol=1e-3, atol=1e-6 * float(exact.abs().max()))
    ):
        return Credit(group, EXACT, cosine)
    if random:
        # Share of the exact gradient in each draw; zero-mean feedback leaves none on average.
        shares = torch.stack([r @ exact / (exact @ exact) for r in draws])
        leak, error = float(shares.mean()), float(shares.std() / len(shares) ** 0.5)
        return Credit(group, RANDOM, cosine, leak, abs(leak) > 5 * error)
    learned = scrambled is not None and not torch.allclose(scrambled, ours, rtol=1e-4)
    return Credit(group, LEARNED if learned else COMPUTED, cosine)


def _gradients(
    net: nn.Module, rule: Rule, batch: tuple[Tensor, Tensor], exact: bool = False
) -> dict[str, Tensor | None]:
    parts = Parts.of(net)
    for p in net.parameters():
        p.grad = None
    Step(parts, rule, exact, frozen=False, penalty=0.0, reader=False)(*batch)
    groups = {"stem": [parts.stem], **{f"block {i}": [b] for i, b in enumerate(parts.blocks, 1)}}
    groups["readout"] = list(parts.readout_modules)
    out: dict[str, Tensor | None] = {}
    for name, modules in groups.items():
        grads = [p.grad for m in modules for p in m.parameters() if p.grad is not None]
        out[name] = torch.cat([g.flatten().double() for g in grads]) if grads else None
    return out


def _redrawn(rule: Rule, generator: torch.Generator, draws: int) -> list[Rule]:
    out = []
    for _ in range(draws):
        other = _twin(rule)
        with torch.no_grad():
            if not other.redraw(generator):
                return []
        out.append(other)
    return out


def _scrambled(rule: Rule, generator: torch.Generator) -> Rule:
    other = _twin(rule)
    with torch.no_grad():
        for p in other.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * (p.std(correction=0) + 0.01))
    return other


def _twin(rule: Rule) -> Rule:
    """A copy with its own auxiliaries that still works on the same network."""
    parts = getattr(rule, "parts", None)
    memo = {} if parts is None else {id(parts): parts}
    return copy.deepcopy(rule, memo)
