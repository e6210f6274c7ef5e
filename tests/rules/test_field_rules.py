"""DRTP, sign-symmetry, the weight mirror and Kolen–Pollack, each against its definition written out in numpy."""

from __future__ import annotations

from itertools import pairwise
from math import erf, pi

import numpy as np
import pytest
import torch

import walkback as wb
from test_rules import batch, gradients, ready, small, step_of, trace_of
from walkback import rules
from walkback.nets import SmallCNN, ViTMini
from walkback.rules.layered import carried_by
from walkback.rules.rule import declares

pytestmark = pytest.mark.usefixtures("few_directions")

LAYERED = ("usf", "frsf", "brsf", "kolen-pollack", "weight-mirror")


def by_hand(net, trace, feedback):
    """(sites, B, d): a_l = a_{l+1} + LNᵀ(B1ᵀ(gelu'(z) ⊙ B2ᵀ a_{l+1})), in numpy, with B1, B2 of every block."""
    a = [trace.grads[-1].numpy()]
    for block, h, (b1, b2) in zip(
        reversed(list(net.blocks)), reversed([s.numpy() for s in trace.states[:-1]]), reversed(feedback)
    ):
        ln, w1 = block.norm, block.w1
        centred = h - h.mean(1, keepdims=True)
        spread = np.sqrt((centred**2).mean(1, keepdims=True) + ln.eps)
        unit = centred / spread
        scale = np.ones(h.shape[1]) if ln.weight is None else ln.weight.detach().numpy()
        shift = np.zeros(h.shape[1]) if ln.bias is None else ln.bias.detach().numpy()
        z = (unit * scale + shift) @ w1.weight.detach().numpy().T + w1.bias.detach().numpy()
        slope = 0.5 * (1 + np.vectorize(erf)(z / 2**0.5)) + z * np.exp(-(z**2) / 2) / (2 * pi) ** 0.5
        inner = ((a[0] @ b2) * slope) @ b1 * scale
        down = (inner - inner.mean(1, keepdims=True) - unit * (inner * unit).mean(1, keepdims=True)) / spread
        a.insert(0, a[0] + down)
    return a


def of_blocks(weights):
    """(B1, B2) of every block, as arrays."""
    flat = [w.detach().numpy() for w in weights]
    return list(zip(flat[::2], flat[1::2]))


def test_by_hand_is_backpropagation_with_the_weights_themselves():
    net, (x, y) = small(), batch()
    trace = trace_of(net, x, y)
    exact = by_hand(net, trace, of_blocks([w for b in net.blocks for w in (b.w1.weight, b.w2.weight)]))
    for ours, g in zip(exact, trace.grads):
        np.testing.assert_allclose(ours, g.numpy(), rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("name", LAYERED)
def test_credit_goes_through_feedback_weights_in_place_of_weights(name):
    net, (x, y) = small(depth=3), batch()
    rule, trace = ready(name, net, x), trace_of(net, x, y)
    if name == "brsf":
        kept = rule.feedback()
        rule.feedback = lambda: kept
    for ours, expected in zip(rule(trace), by_hand(net, trace, of_blocks(rule.feedback()))):
        np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-9, atol=1e-14)


def test_drtp_projects_the_label():
    net, (x, y) = small(), batch()
    rule, trace = ready("drtp", net, x), trace_of(net, x, y)
    onehot = np.eye(4)[y.numpy()]
    for site, a in enumerate(rule(trace)):
        np.testing.assert_allclose(a.numpy(), -onehot @ rule.get_buffer(f"B{site}").numpy(), rtol=1e-12)
    # Neither the prediction nor the loss shows in it.
    with torch.no_grad():
        net.out_head.weight.mul_(3.0)
    for before, after in zip(rule(trace), rule(trace_of(net, x, y))):
        assert torch.equal(before, after)


def test_drtp_is_dfa_at_a_prediction_of_zero():
    """e = softmax − onehot: what DRTP leaves out is the projected softmax."""
    net, (x, y) = small(), batch()
    trace, drtp, dfa = trace_of(net, x, y), ready("drtp", net, x), ready("dfa", net, x)
    p = trace.logits.softmax(1)
    for site, (a, b) in enumerate(zip(dfa(trace), drtp(trace))):
        torch.testing.assert_close(a, b + p @ dfa.get_buffer(f"B{site}"))


@pytest.mark.parametrize("name", ["usf", "frsf", "brsf"])
def test_feedback_has_the_signs_of_the_weights_as_they_are_now(name):
    net, (x, _) = small(), batch()
    rule = ready(name, net, x)
    with torch.no_grad():
        for layer in rule.layers:
            layer.weight.neg_()
    for b, layer in zip(rule.feedback(), rule.layers):
        assert torch.equal(b.sign(), layer.weight.sign())


def test_magnitudes_are_one_number_fixed_or_drawn_for_every_batch():
    net, (x, _) = small(), batch()
    usf, frsf, brsf = (ready(name, net, x, scale=2.0) for name in ("usf", "frsf", "brsf"))
    for b, layer in zip(usf.feedback(), usf.layers):
        np.testing.assert_allclose(b.abs().numpy(), 2.0 / layer.weight.shape[1] ** 0.5)
    assert all(torch.equal(a, b) for a, b in zip(frsf.feedback(), frsf.feedback()))
    drawn = [brsf.feedback()[0].abs() for _ in range(3)]
    assert not any(torch.equal(a, b) for a, b in pairwise(drawn))
    # |N(0, σ²)| has mean σ√(2/π), whoever drew it.
    everything = torch.cat([m.flatten() for _ in range(200) for m in brsf.sizes()[:1]])
    expected = 2.0 / brsf.layers[0].weight.shape[1] ** 0.5 * (2 / pi) ** 0.5
    assert float(everything.mean()) == pytest.approx(expected, rel=0.02)


def test_kolen_pollack_feedback_gets_the_step_of_the_weights():
    net, (x, y) = small(), batch()
    rule = ready("kolen-pollack", net, x)
    gradients(net, step_of(net, rule), x, y)
    for b, layer in zip(rule.B, rule.layers):
        assert torch.equal(b.grad, layer.weight.grad)


def test_kolen_pollack_converges_as_its_closed_form_says():
    """With the same steps, B − W is multiplied by 1 − ηλ a step, whatever the gradients are."""
    net, (x, y) = small(), batch()
    rule, lr, decay = ready("kolen-pollack", net, x), 0.1, 0.5
    optimiser = torch.optim.SGD([*net.parameters(), *rule.parameters()], lr=lr, weight_decay=decay)
    start = [b.detach() - layer.weight.detach() for b, layer in zip(rule.B, rule.layers)]
    for _ in range(20):
        optimiser.zero_grad()
        step_of(net, rule)(x, y)
        optimiser.step()
    for b, layer, first in zip(rule.B, rule.layers, start):
        torch.testing.assert_close(b.detach() - layer.weight.detach(), first * (1 - lr * decay) ** 20)


def test_weight_mirror_finds_the_weights_and_nothing_of_their_bias():
    net, (x, _) = small(), batch()
    rule = ready("weight-mirror", net, x, samples=4096)
    optimiser = torch.optim.SGD(rule.parameters(), lr=0.2)
    for _ in range(60):
        optimiser.zero_grad()
        rule.auxiliary_loss(None).backward()
        optimiser.step()
    for b, layer in zip(rule.B, rule.layers):
        difference = (b - layer.weight).detach().norm() / layer.weight.detach().norm()
        assert float(difference) < 0.1


def test_weight_mirror_gradient_is_b_minus_w_on_average():
    net, (x, _) = small(), batch()
    rule = ready("weight-mirror", net, x, samples=200_000)
    rule.auxiliary_loss(None).backward()
    for b, layer in zip(rule.B, rule.layers):
        expected = (b - layer.weight).detach()
        assert float((b.grad - expected).norm() / expected.norm()) < 0.05


@pytest.mark.parametrize("name", [*LAYERED, "drtp"])
@pytest.mark.parametrize(
    ("net", "inputs"),
    [
        (lambda: ViTMini((3, 8, 8), 4, width=8, depth=2, heads=2).double(), (3, 8, 8)),
        (lambda: SmallCNN((3, 8, 8), 4, width=4, depth=2).double().eval(), (3, 8, 8)),
    ],
)
def test_tokens_and_images_get_credit(name, net, inputs):
    torch.manual_seed(0)
    model, (x, y) = net(), batch(inputs=inputs)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    credits = ready(name, model, x)(trace_of(model, x, y))
    for a, h in zip(credits, trace_of(model, x, y).states):
        assert a.shape == h.shape
        assert bool(torch.isfinite(a).all() & (a != 0).any())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert not any(m._forward_hooks for m in model.modules())


def test_carried_by_the_weights_themselves_is_backpropagation_for_convolutions_too():
    torch.manual_seed(0)
    net, (x, y) = SmallCNN((3, 8, 8), 4, width=4, depth=2).double().eval(), batch(inputs=(3, 8, 8))
    rule, trace = ready("usf", net, x), trace_of(net, x, y)
    rule.feedback = lambda: [layer.weight for layer in rule.layers]
    for a, g in zip(rule(trace), trace.grads):
        torch.testing.assert_close(a, g)


def test_hooks_are_gone_after_an_error():
    net, (x, _) = small(), batch()
    rule = ready("usf", net, x)
    with pytest.raises(ZeroDivisionError), carried_by(rule.layers, rule.feedback()):
        raise ZeroDivisionError
    assert not any(m._forward_hooks for m in net.modules())


def test_blocks_with_other_weights_are_refused():
    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.eye(8, dtype=torch.float64))

        def forward(self, h):
            return h @ self.w

    net, (x, _) = small(), batch()
    net.blocks[0] = Mixed()
    with pytest.raises(wb.InputError, match=r"Linear and Conv layers, but got \['w'\]"):
        ready("usf", net, x)


@pytest.mark.parametrize("name", [*LAYERED, "drtp"])
def test_field_rules_are_certified_and_train(name, tmp_path):
    net, (x, y) = small(), batch(64)
    rule = ready(name, net, x)
    certificate = wb.certify(rule, net, (x, y))
    assert certificate.passed, str(certificate)
    assert declares(rule, "reads_weights") == (name != "drtp")
    kinds = {
        "drtp": ["random feedback"] * 3 + ["exact"],
        "usf": ["computed", "computed", "exact", "exact"],
        "frsf": ["random feedback", "random feedback", "exact", "exact"],
    }
    if name in kinds:
        assert [c.kind for c in certificate.groups] == kinds[name]
    spec = wb.RunSpec(rule=name, data="teacher", net_options={"width": 8, "depth": 2}, epochs=1)
    bundle = wb.train(spec, tmp_path, quiet=True)
    assert all(bool(w.isfinite().all()) for w in bundle.weights.values())


def test_random_feedback_that_hides_the_gradient_is_still_named():
    """`reads_weights` excuses what averaging leaves, not the gradient itself."""

    class Disguised(rules.USF):
        def feedback(self):
            return [layer.weight for layer in self.layers]

    net, (x, y) = small(), batch()
    rule = Disguised()
    wb.rules.set_up(rule, net, x[:2], 4, torch.Generator())
    assert wb.certify(rule, net, (x, y)).hidden_backprop == ("stem", "block 1")
