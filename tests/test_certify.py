"""The certificate says what reaches which parameters, and catches what claims to be something else."""

from __future__ import annotations

import pytest
import torch

import walkback as wb
from walkback import rules
from walkback.rules.rule import set_up
from walkback.trace import cross_entropy


def network(depth: int = 3):
    torch.manual_seed(0)
    return wb.nets.build("resmlp", (12,), 5, width=32, depth=depth)


def ready(rule, net):
    set_up(rule, net, torch.zeros(2, 12), 5, torch.Generator().manual_seed(3))
    return rule


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("bp", ["exact"] * 5),
        ("fa", ["random feedback"] * 3 + ["exact"] * 2),
        ("dfa", ["random feedback"] * 4 + ["exact"]),
        ("state-bridge", ["learned"] * 4 + ["exact"]),
        ("credit-bridge", ["learned"] * 4 + ["exact"]),
        ("ep", ["computed"] * 4 + ["exact"]),
    ],
)
def test_each_rule_gets_its_own_certificate(name: str, kinds: list[str]) -> None:
    net = network()
    certificate = wb.certify(ready(rules.make(name), net), net)
    assert [c.kind for c in certificate.groups] == kinds
    assert certificate.hidden_backprop == ()
    assert "no hidden backpropagation found" in str(certificate)


def test_too_few_relaxation_steps_leave_the_stem_without_credit() -> None:
    net = network()
    certificate = wb.certify(ready(rules.make("ep", steps=2), net), net)
    assert [c.kind for c in certificate.groups] == ["none", "none", "computed", "computed", "exact"]


class SilentFallback(rules.FA):
    """Claims to be FA and hands out the true gradient."""

    def credits(self, trace):
        with torch.enable_grad():
            states = [trace.states[0].detach().requires_grad_()]
            for block in self.parts.blocks:
                states.append(states[-1] + block(states[-1]))
            losses = cross_entropy(self.parts.readout(states[-1]), trace.labels)
            return torch.autograd.grad(losses.sum(), states)

    def setup(self, parts, states, classes, generator):
        super().setup(parts, states, classes, generator)
        self.parts = parts


class BiasedFeedback(SilentFallback):
    """FA with a tenth of the true gradient mixed in."""

    def credits(self, trace):
        true = super().credits(trace)
        honest = rules.FA.credits(self, trace)
        return [h + 0.1 * t for h, t in zip(honest, true)]


def test_a_silent_fallback_to_backpropagation_is_caught() -> None:
    net = network()
    certificate = wb.certify(ready(SilentFallback(), net), net)
    assert {c.kind for c in certificate.groups} == {"exact"}
    assert certificate.hidden_backprop == ("stem", "block 1", "block 2")


def test_a_share_of_the_true_gradient_is_caught() -> None:
    net = network()
    certificate = wb.certify(ready(BiasedFeedback(), net), net)
    assert certificate.hidden_backprop == ("stem", "block 1", "block 2")
    assert all(c.leak == pytest.approx(0.1, abs=0.05) for c in certificate.groups[:3])
    assert "hidden backpropagation in: stem, block 1, block 2" in str(certificate)


def test_certifying_changes_neither_rule_nor_network() -> None:
    net = network()
    rule = ready(rules.make("state-bridge"), net)
    before = [t.clone() for t in (*net.state_dict().values(), *rule.state_dict().values())]
    state = torch.get_rng_state()
    wb.certify(rule, net)
    assert all(torch.equal(a, b) for a, b in zip(before, (*net.state_dict().values(), *rule.state_dict().values())))
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None for p in (*net.parameters(), *rule.parameters()))


def test_a_rule_that_was_not_set_up_is_refused() -> None:
    with pytest.raises(wb.InputError, match="call set_up first"):
        wb.certify(rules.make("dfa"), network())
