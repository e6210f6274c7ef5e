"""What a rule says of itself (exact, exact_top, relaxes) is what training and the certificate go by, subclasses too."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from torch import nn

import walkback as wb
from walkback import rules
from walkback.data import Dataset, Split
from walkback.rules.rule import Parts, refuse_inexact, set_up
from walkback.training.spec import RunSpec
from walkback.training.step import TrainingStep

SOURCES = Path(wb.__file__).parent
LAYERED = ("usf", "frsf", "brsf", "kolen-pollack", "weight-mirror")


def network(depth: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return wb.nets.build("resmlp", (8,), 4, width=16, depth=depth)


def ready(rule: rules.Rule, net: nn.Module) -> rules.Rule:
    set_up(rule, net, torch.randn(2, 8, generator=torch.Generator().manual_seed(1)), 4, torch.Generator())
    return rule


def tiny() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, 8, generator=generator)
    y = (x @ torch.randn(8, 4, generator=generator)).argmax(1)
    return Dataset("tiny", Split(x[:128], y[:128]), Split(x[128:], y[128:]), 4)


def train(out: Path, rule: str, **fields) -> wb.Bundle:
    spec = {"net_options": {"width": 16, "depth": 2}, "data": "test_rule_traits:tiny", "epochs": 2, **fields}
    return wb.train(RunSpec(rule=rule, **spec), out, data=tiny(), quiet=True)


# -- exact ---------------------------------------------------------------------------------------------------------


class NamedBP(rules.BP):
    """BP under another name."""


class CopiedBP(rules.BP):
    """BP that makes its credits itself."""

    def credits(self, trace):
        return [g.clone() for g in trace.grads]


class Doubled(rules.BP):
    """Inherits exact = True and gives something else, of the same direction."""

    def credits(self, trace):
        return [2 * g for g in trace.grads]


class FewCredits(rules.BP):
    def credits(self, trace):
        return trace.grads[-1:]


class Annealed(rules.BP):
    """The gradient for its first calls, its sign afterwards."""

    calls = 0

    def credits(self, trace):
        self.calls += 1
        return trace.grads if self.calls <= 12 else [g.sign() for g in trace.grads]


class Learning(rules.BP):
    def auxiliary_loss(self, trace):
        return torch.zeros((), requires_grad=True)


class Local(rules.BP):
    """A subclass of BP with credits of its own, which says so."""

    exact = False

    def credits(self, trace):
        return [trace.grads[-1].clone() for _ in trace.states]


@pytest.mark.parametrize("rule", ["NamedBP", "CopiedBP"])
def test_a_subclass_of_bp_trains_as_bp_to_the_same_bytes(tmp_path: Path, rule: str) -> None:
    own, bp = (train(tmp_path, name) for name in (f"test_rule_traits:{rule}", "bp"))
    for name in ("weights.safetensors", "trajectory.jsonl"):
        assert (own.path / name).read_bytes() == (bp.path / name).read_bytes()


@pytest.mark.parametrize("make", [rules.BP, NamedBP, CopiedBP])
def test_a_subclass_of_bp_is_certified_as_bp(make) -> None:
    net = network()
    certificate = wb.certify(ready(make(), net), net)
    assert [c.kind for c in certificate.groups] == ["exact"] * 5
    assert certificate.entitled == tuple(c.group for c in certificate.groups)
    assert certificate.passed


@pytest.mark.parametrize("fields", [{"credit_site": "reader"}, {"credit_length": "unit"}])
def test_a_subclass_of_bp_is_refused_where_bp_is(tmp_path: Path, fields: dict) -> None:
    for rule in ("bp", "test_rule_traits:NamedBP"):
        with pytest.raises(wb.InputError, match=f"Expected {next(iter(fields))} .* with {rule}: "):
            train(tmp_path, rule, **fields)


def test_a_subclass_of_bp_may_leave_a_block_without_anything_that_trains() -> None:
    net = network()
    net.blocks[1].requires_grad_(False)
    assert [c.kind for c in wb.certify(ready(NamedBP(), net), net).groups][2] == "none"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            Doubled,
            r"Doubled, which says exact = True, to return the gradients .* got another credit at site 0\. .* exact",
        ),
        (FewCredits, r"got 1 credits, shaped \[\(2, 16\)\]"),
        (Learning, r"Expected no auxiliary_loss from Learning, which says exact = True"),
    ],
)
def test_credits_that_training_would_not_use_are_refused(tmp_path: Path, make, words: str) -> None:
    net = network()
    with pytest.raises(wb.InputError, match=words):
        ready(make(), net)
    with pytest.raises(wb.InputError, match=words):
        train(tmp_path, f"test_rule_traits:{make.__name__}")


def test_credits_that_change_while_training_are_refused(tmp_path: Path) -> None:
    with pytest.raises(wb.InputError, match=r"Annealed, which says exact = True"):
        train(tmp_path, "test_rule_traits:Annealed", epochs=5)


def test_credits_that_changed_since_set_up_have_two_faces() -> None:
    net = network()
    rule = ready(Annealed(), net)
    assert wb.certify(rule, net).passed
    rule.calls = 100
    certificate = wb.certify(rule, net)
    assert [t.group for t in certificate.two_faced] == ["stem", "block 1", "block 2", "block 3"]
    assert all(t.trains == pytest.approx(1) and t.measures < 0.99 for t in certificate.two_faced)
    assert not certificate.passed


def test_an_exact_rule_of_another_length_has_two_faces() -> None:
    net = network()
    rule = ready(rules.BP(), net)
    rule.length = "unit"
    assert len(wb.certify(rule, net).two_faced) == 4


def test_looking_at_an_exact_rule_leaves_the_network_as_it_was() -> None:
    net = wb.nets.build("small-cnn", (3, 8, 8), 4, width=4, depth=2).train()
    net.blocks[0].eval()
    before, modes = {k: v.clone() for k, v in net.state_dict().items()}, [m.training for m in net.modules()]
    for rule in (rules.BP(), Doubled()):
        try:
            refuse_inexact(rule, net, torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 3]))
        except wb.InputError:
            assert isinstance(rule, Doubled)
        assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
        assert [m.training for m in net.modules()] == modes
        assert all(p.grad is None for p in net.parameters())


def test_a_subclass_of_bp_that_says_it_is_not_exact_trains_with_its_own_credits(tmp_path: Path) -> None:
    net, x, y = network(), torch.randn(16, 8), torch.randint(4, (16,))
    rule = ready(Local(), net)
    assert not TrainingStep.of(RunSpec(), Parts.of(net), rule).exact
    TrainingStep.of(RunSpec(), Parts.of(net), rule)(x, y)
    states = [net.embed(x)]
    for block in net.blocks:
        states.append(states[-1] + block(states[-1]))
    (top,) = torch.autograd.grad(torch.nn.functional.cross_entropy(net.readout(states[-1]), y), states[-1])
    torch.testing.assert_close(net.embed[1].weight.grad, top.T @ x)
    assert train(tmp_path, "test_rule_traits:Local").report() is not None


# -- exact_top -----------------------------------------------------------------------------------------------------


class NamedFA(rules.FA):
    """FA under another name."""


def test_fa_says_that_its_last_credit_is_exact_and_its_subclasses_inherit_it() -> None:
    assert [name for name, rule in rules.RULES.items() if rule.exact_top] == ["fa", *LAYERED]
    net = network()
    certificate = wb.certify(ready(NamedFA(), net), net)
    assert certificate.entitled == ("block 3", "readout")
    assert certificate.passed


# -- relaxes -------------------------------------------------------------------------------------------------------


class NamedEP(rules.EP):
    """EP under another name."""


@pytest.mark.parametrize("make", [rules.EP, NamedEP])
def test_a_subclass_of_ep_is_certified_as_ep(make) -> None:
    """Two steps of relaxation give the last two sites the exact direction."""
    net = network()
    certificate = wb.certify(ready(make(steps=2), net), net)
    assert [c.kind for c in certificate.groups] == ["none", "none", "computed", "computed", "exact"]
    assert certificate.hidden_backprop == ()


def test_the_gradient_behind_relaxes_is_still_named() -> None:
    class Disguised(NamedEP):
        def credits(self, trace):
            with torch.enable_grad():
                states = [trace.states[0].detach().requires_grad_()]
                for block in self.parts.blocks:
                    states.append(states[-1] + block(states[-1]))
                losses = torch.nn.functional.cross_entropy(
                    self.parts.readout(states[-1]), trace.labels, reduction="sum"
                )
                return torch.autograd.grad(losses, states)

    net = network()
    certificate = wb.certify(ready(Disguised(), net), net)
    assert certificate.exact_in_effect == ("stem", "block 1", "block 2")  # the last block is entitled
    assert "can be relaxation or disguised backpropagation" in str(certificate)


# -- the names -----------------------------------------------------------------------------------------------------


def test_what_each_rule_says() -> None:
    said = {
        name: [trait for trait in ("exact", "exact_top", "reads_weights", "relaxes") if rules.declares(rule(), trait)]
        for name, rule in rules.RULES.items()
    }
    told = {name: traits for name, traits in said.items() if traits}
    layered = {name: ["exact_top", "reads_weights"] for name in LAYERED}
    assert told == {"bp": ["exact"], "fa": ["exact_top"], "ep": ["relaxes"], **layered}


class Helpers(rules.Rule):
    """Written before these names meant something: a method and a number."""

    relaxes = 3

    def exact(self, trace):
        return trace.grads[-1]

    def credits(self, trace):
        return [self.exact(trace) for _ in trace.states]


def test_only_true_counts_so_older_rules_with_such_names_train_as_they_did(tmp_path: Path) -> None:
    assert not any(rules.declares(Helpers(), trait) for trait in ("exact", "exact_top", "relaxes"))
    own, same = (train(tmp_path, f"test_rule_traits:{name}") for name in ("Helpers", "Local"))
    assert (own.path / "weights.safetensors").read_bytes() == (same.path / "weights.safetensors").read_bytes()


def test_nothing_outside_the_rules_asks_which_class_a_rule_is() -> None:
    concrete = {rule.__name__ for rule in rules.RULES.values()}
    for path in SOURCES.rglob("*.py"):
        if path.parent.name == "rules":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = {
                *([node.id] if isinstance(node, ast.Name) else ()),
                *([node.attr] if isinstance(node, ast.Attribute) else ()),
                *((alias.name for alias in node.names) if isinstance(node, ast.ImportFrom) else ()),
            }
            assert not names & concrete, f"{path.relative_to(SOURCES)}:{node.lineno} names {names & concrete}"
