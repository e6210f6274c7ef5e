"""A step of training lets the bridges learn of the pass that gave the credit: fewer passes, and every bit the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import walkback as wb
from walkback.nets.resmlp import ResMLP
from walkback.nets.small_cnn import SmallCNN
from walkback.nets.vit_mini import ViTMini
from walkback.rules.credit_bridge import CreditBridge
from walkback.rules.rule import Parts, Rule, set_up
from walkback.rules.state_bridge import StateBridge
from walkback.tracing.trace import TrainingPass
from walkback.training.step import TrainingStep

SHAPE = (3, 8, 8)


class ApartState(StateBridge):
    """State Bridge that learns of a prediction of its own, and lets autograd go wherever the graph leads."""

    def _is_own(self) -> bool:
        return False


class ApartCredit(CreditBridge):
    """The same of the Credit Bridge."""

    def _is_own(self) -> bool:
        return False


class Dropping(StateBridge):
    """State Bridge with dropout in what it predicts: a second prediction is another one."""

    def predict(self, states: Tensor) -> Tensor:
        return F.dropout(super().predict(states), 0.5)


def trained(rule: Rule, build: type[nn.Module], steps: int = 4) -> list[Tensor]:
    """Return all gradients of some steps, then what was trained, as whole numbers: a NaN or −0 is only itself."""
    torch.manual_seed(0)
    net, x, y = build(SHAPE, 4), torch.randn(steps, 16, *SHAPE), torch.randint(4, (steps, 16))
    set_up(rule, net, x[0], 4, torch.Generator().manual_seed(1))
    own = [p for p in (*net.parameters(), *rule.parameters()) if p.requires_grad]
    optimiser, step, found = torch.optim.AdamW(own), TrainingStep(Parts.of(net), rule, exact=False), []
    for inputs, labels in zip(x, y):
        optimiser.zero_grad()
        step(inputs, labels)
        found += [p.grad.clone() for p in own if p.grad is not None]
        optimiser.step()
    return [t.detach().contiguous().view(torch.int32) for t in (*found, *own)]


@pytest.mark.parametrize("build", [ResMLP, ViTMini, SmallCNN])
@pytest.mark.parametrize(
    ("shared", "apart", "options"),
    [
        (StateBridge, ApartState, {}),
        (StateBridge, ApartState, {"form": "plain", "hidden": 2}),
        (StateBridge, ApartState, {"train": False}),
        (CreditBridge, ApartCredit, {}),
        (CreditBridge, ApartCredit, {"label": False, "anchor": 0.3}),
    ],
)
def test_no_bit_of_a_training_depends_on_what_is_shared(build, shared, apart, options) -> None:
    one, other = trained(shared(**options), build), trained(apart(**options), build)
    assert len(one) == len(other)
    assert all(map(torch.equal, one, other))


@pytest.mark.parametrize(
    ("made", "part", "passes"),
    [
        (StateBridge, "predictor", 1),
        (ApartState, "predictor", 2),
        (Dropping, "predictor", 2),
        (CreditBridge, "value", 1),
        (ApartCredit, "value", 2),
    ],
)
def test_a_step_runs_what_is_learned_once_and_another_rules_own_part_twice(made, part: str, passes: int) -> None:
    rule, ran = made(), []
    net, x, y = ResMLP(SHAPE, 4), torch.randn(16, *SHAPE), torch.randint(4, (16,))
    set_up(rule, net, x, 4, torch.Generator())
    getattr(rule, part).register_forward_hook(lambda *_: ran.append(1))
    TrainingStep(Parts.of(net), rule, exact=False)(x, y)
    assert len(ran) == passes


@pytest.mark.parametrize("made", [StateBridge, CreditBridge])
def test_nothing_is_kept_where_only_the_credit_is_asked_for(made) -> None:
    rule, net, x, y = made(), ResMLP(SHAPE, 4), torch.randn(16, *SHAPE), torch.randint(4, (16,))
    set_up(rule, net, x, 4, torch.Generator())
    before = set(vars(rule))
    with wb.Tracer(net) as tracer:
        trace = tracer.trace(x, y, rule)
    assert trace.credits is not None
    assert not any(a.requires_grad for a in trace.credits)
    assert set(vars(rule)) == before
    assert rule.auxiliary_loss(trace).requires_grad  # by itself, from a Trace as well


def test_a_rule_that_shows_its_bridge_other_states_learns_of_the_true_ones() -> None:
    class Halved(StateBridge):
        def credits(self, trace: TrainingPass) -> Sequence[Tensor]:
            return super().credits(replace(trace, states=tuple(h / 2 for h in trace.states)))

    class HalvedApart(Halved):
        def _is_own(self) -> bool:
            return False

    assert all(map(torch.equal, trained(Halved(), ResMLP), trained(HalvedApart(), ResMLP)))
