"""What FA carries down with top="head": the gradient of what the head reads, by autograd at a leaf put there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import walkback as wb
from walkback import rules
from walkback.nets import ResMLP
from walkback.network.loss import cross_entropy
from walkback.rules.rule import set_up


@pytest.fixture
def net() -> ResMLP:
    torch.manual_seed(0)
    return ResMLP((6,), 4, width=8, depth=2).double()


def ready(net: nn.Module, **options) -> rules.Rule:
    rule = rules.make("fa", **options)
    set_up(rule, net, torch.zeros(2, 6, dtype=torch.float64), 4, torch.Generator().manual_seed(2))
    return rule.double()


def test_the_credits_are_the_heads_gradient_and_its_products_with_b(net: ResMLP) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(16, 6, generator=generator, dtype=torch.float64)
    y = torch.randint(4, (16,), generator=generator)
    rule = ready(net, top="head")
    with wb.Tracer(net) as tracer:
        found = rule(tracer.trace(x, y))

    _, hidden = net(x, return_hidden=True)
    read = net.out_ln(hidden[-1]).detach().requires_grad_()
    (expected,) = torch.autograd.grad(cross_entropy(net.out_head(read), y).sum(), read)
    for site in (2, 1, 0):
        torch.testing.assert_close(found[site], expected, rtol=1e-12, atol=1e-14)
        expected = expected @ rule.get_buffer(f"B{site - 1}") if site else expected


def test_it_points_along_the_state_where_the_exact_gradient_does_not(net: ResMLP) -> None:
    """The terminal norm takes the part along h_L out of g_L; without it, a state can lower ⟨h_L, a_L⟩ by growing."""
    x, y = torch.randn(16, 6, dtype=torch.float64), torch.randint(4, (16,))
    along = {}
    for top in ("state", "head"):
        with wb.Tracer(net) as tracer:
            trace = tracer.trace(x, y)
            h = trace.states[-1] - trace.states[-1].mean(1, keepdim=True)
            along[top] = (h * ready(net, top=top)(trace)[-1]).sum(1).abs().max()
    assert along["state"] < 1e-4 < 1e-2 < along["head"]  # the ε of the norm is all that is left


def test_its_last_credit_is_not_said_to_be_exact(net: ResMLP) -> None:
    exact, head = ready(net), ready(net, top="head")
    assert rules.declares(exact, "exact_top")
    assert not rules.declares(head, "exact_top")
    assert head.describe()["top"] == "head"
    assert "top" not in exact.describe()
    batches = [(torch.randn(64, 6, dtype=torch.float64), torch.randint(4, (64,)))]
    assert wb.measure(net, batches, credit=exact).cosine[-1] == pytest.approx(1.0)
    assert 0.5 < wb.measure(net, batches, credit=head).cosine[-1] < 0.9999


def test_other_words_and_readouts_are_refused(net: ResMLP) -> None:
    with pytest.raises(wb.WalkbackError, match="Expected top to be one of state, head, but got 'logits'"):
        rules.make("fa", top="logits")
    net.out_head = nn.Sequential(nn.Linear(8, 4)).double()  # type: ignore[assignment]
    with pytest.raises(wb.WalkbackError, match='ends in a Linear layer with top="head", but it ends in a Sequential'):
        ready(net, top="head")
    ready(net)  # the exact gradient needs no such head
