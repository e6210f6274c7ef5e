"""Plain networks, read at their layers: against autograd on a forward pass written by hand, in float64."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import plain_kinds  # noqa: F401  # more cases
import walkback as wb
from plain_nets import CASES, NAMES, SITES, B, C


def made(name):
    torch.manual_seed(sorted(CASES, key=lambda n: (CASES[n].__module__ != "plain_nets", n)).index(name))
    net, x, by_hand = CASES[name]()
    net = net.double().eval()
    wide = {k: v.double() for k, v in x.items()} if isinstance(x, dict) else x.double() if x.is_floating_point() else x
    return net, wide, torch.randint(C, (B,)), by_hand


def reference(net, x, y, by_hand):
    """States, gradients of the sum of cross-entropies and logits, by autograd on the hand-written forward pass."""
    states, logits = by_hand(net, x)
    losses = -(logits.softmax(1)[range(B), y]).log()
    return states, torch.autograd.grad(losses.sum(), states), logits


def cosines(a, g):
    a, g = a.flatten(1), g.flatten(1)
    return ((a * g).sum(1) / (a.norm(dim=1) * g.norm(dim=1))).mean()


@pytest.mark.parametrize("name", CASES)
def test_states_gradients_and_cosines_are_those_of_autograd(name):
    net, x, y, by_hand = made(name)
    states, grads, logits = reference(net, x, y, by_hand)
    credits = [g + 0.5 * torch.randn_like(g) * g.abs().mean() for g in grads]
    with wb.Tracer(net, sites=SITES.get(name)) as tracer:
        trace = tracer.trace(x, y, lambda _: credits)
    assert [h.shape for h in trace.states] == [h.shape for h in states]
    for ours, theirs in ((trace.states, states), (trace.grads, grads), ([trace.logits], [logits])):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b.detach(), rtol=1e-9, atol=1e-12)
    m = wb.measure(net, [(x, y)], credit=lambda _: credits, sites=SITES.get(name))
    assert m.conditions["sites"] == NAMES[name]
    norms = [h.flatten(1).norm(dim=1).mean().item() for h in states]
    assert m.h_norm == pytest.approx(norms, rel=1e-9)
    assert m.g_norm == pytest.approx([g.flatten(1).norm(dim=1).mean().item() / 128 for g in grads], rel=1e-9)
    assert m.cosine == pytest.approx([cosines(a, g).item() for a, g in zip(credits, grads)], rel=1e-9)
    assert m.gamma == pytest.approx(sum(m.cosine) / len(m.cosine), rel=1e-9)
    rms = [n / h[0].numel() ** 0.5 for n, h in zip(norms, states)]
    ratios = [b / a for a, b in pairwise(rms)]
    assert m.growth == (pytest.approx(max(ratios), rel=1e-9) if ratios else None)
    assert m.growth_total == (pytest.approx(rms[-1] / rms[0], rel=1e-9) if ratios else None)


@pytest.mark.parametrize("name", CASES)
def test_the_derived_reference_and_a_twin_give_the_same(name):
    net, x, y, by_hand = made(name)
    _, grads, _ = reference(net, x, y, by_hand)
    for how in ("derived", made(name)[0]):
        with wb.Tracer(net, reference=how, sites=SITES.get(name)) as tracer:
            trace = tracer.trace(x, y)
        for ours, theirs in zip(trace.grads, grads, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
