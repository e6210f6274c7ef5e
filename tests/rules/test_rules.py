"""Each rule against an independent derivation, on networks small enough to write out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import walkback as wb
from places import ROOT
from walkback import rules
from walkback.nets import ResMLP, SmallCNN, StudentNet, ViTMini
from walkback.network.loss import cross_entropy
from walkback.rules.rule import Parts, Rule, set_up
from walkback.tracing.trace import Trace
from walkback.training.step import TrainingStep

RULES = ("fa", "dfa", "state-bridge", "credit-bridge", "ep")


def small(seed: int = 0, depth: int = 2, **options) -> ResMLP:
    torch.manual_seed(seed)
    return ResMLP((6,), 4, width=8, depth=depth, **options).double()


def batch(n: int = 16, seed: int = 1, inputs: tuple[int, ...] = (6,), classes: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, *inputs, generator=generator, dtype=torch.float64)
    return x, torch.randint(classes, (n,), generator=generator)


def ready(name: str, net: nn.Module, x: Tensor, classes: int = 4, seed: int = 2, **options) -> Rule:
    rule = rules.make(name, **options)
    set_up(rule, net, x[:2], classes, torch.Generator().manual_seed(seed))
    return rule.double()


def gradients(net: nn.Module, step: TrainingStep, x: Tensor, y: Tensor) -> dict[str, Tensor | None]:
    net.zero_grad(set_to_none=True)
    step(x, y)
    return {name: p.grad for name, p in net.named_parameters()}


def step_of(net: nn.Module, rule: Rule, **options) -> TrainingStep:
    defaults = {"exact": False, "frozen": False, "penalty": 0.0, "reader": False}
    return TrainingStep(Parts.of(net), rule, **{**defaults, **options})


class TrueGradient(Rule):
    """a_l = g_l, found by differentiating the rest of the network at every site."""

    def setup(self, parts, states, classes, generator):
        self.parts = parts

    def credits(self, trace: Trace):
        with torch.enable_grad():
            states = [trace.states[0].detach().requires_grad_()]
            for block in self.parts.blocks:
                states.append(states[-1] + block(states[-1]))
            return torch.autograd.grad(cross_entropy(self.parts.readout(states[-1]), trace.labels).sum(), states)


@pytest.mark.parametrize("penalty", [0.0, 0.1])
@pytest.mark.parametrize(
    ("net", "inputs"),
    [
        (lambda: small(depth=3), (6,)),
        (lambda: StudentNet((6,), 4, width=8, depth=2).double(), (6,)),
        (lambda: ViTMini((3, 8, 8), 4, width=8, depth=2, heads=2).double(), (3, 8, 8)),
        (lambda: SmallCNN((3, 8, 8), 4, width=4, depth=2).double(), (3, 8, 8)),
    ],
)
def test_local_losses_with_the_true_gradient_are_backpropagation(net, inputs, penalty) -> None:
    torch.manual_seed(0)
    model = net()
    x, y = batch(inputs=inputs)
    exact = TrueGradient()
    set_up(exact, model, x[:2], 4, torch.Generator())
    # BP's own penalty flows through earlier blocks; a local one does not, so they are compared without it.
    whole = gradients(model, step_of(model, rules.BP(), exact=True), x, y)
    local = gradients(model, step_of(model, exact), x, y)
    for name, expected in whole.items():
        assert expected is not None
        assert local[name] is not None
        torch.testing.assert_close(local[name], expected, rtol=1e-6, atol=1e-12)
    if penalty:
        with_penalty = gradients(model, step_of(model, exact, penalty=penalty), x, y)
        assert any(not torch.equal(with_penalty[n], local[n]) for n in local if "blocks" in n)
        assert all(torch.equal(with_penalty[n], local[n]) for n in local if "blocks" not in n)


def numpy_pass(net: ResMLP, x: Tensor, y: Tensor) -> dict[str, list[np.ndarray] | np.ndarray]:
    """ResMLP by hand: states, branch inputs and the top gradient, all numpy float64."""
    from scipy.special import erf

    w = {k: v.detach().numpy() for k, v in net.state_dict().items()}

    def norm(h, prefix):
        mean, var = h.mean(1, keepdims=True), h.var(1, keepdims=True)
        hat = (h - mean) / np.sqrt(var + 1e-5)
        return hat * w[f"{prefix}.weight"] + w[f"{prefix}.bias"], hat, np.sqrt(var + 1e-5)

    h = [x.numpy() @ w["embed.1.weight"].T + w["embed.1.bias"]]
    inner = []
    for i in range(len(net.blocks)):
        z, _, _ = norm(h[-1], f"blocks.{i}.norm")
        u = z @ w[f"blocks.{i}.w1.weight"].T + w[f"blocks.{i}.w1.bias"]
        v = 0.5 * u * (1 + erf(u / np.sqrt(2)))
        slope = 0.5 * (1 + erf(u / np.sqrt(2))) + u * np.exp(-(u**2) / 2) / np.sqrt(2 * np.pi)
        inner.append((z, v, slope))
        h.append(h[-1] + v @ w[f"blocks.{i}.w2.weight"].T + w[f"blocks.{i}.w2.bias"])
    z, hat, sd = norm(h[-1], "out_ln")
    logits = z @ w["out_head.weight"].T + w["out_head.bias"]
    p = np.exp(logits - logits.max(1, keepdims=True))
    error = p / p.sum(1, keepdims=True) - np.eye(4)[y.numpy()]
    back = error @ w["out_head.weight"] * w["out_ln.weight"]
    top = (back - back.mean(1, keepdims=True) - hat * (back * hat).mean(1, keepdims=True)) / sd
    return {"h": h, "inner": inner, "error": error, "top": top, "w": w}


def numpy_updates(found, x: Tensor, credits: list[np.ndarray], penalty: float = 0.0) -> dict[str, np.ndarray]:
    """Gradient of mean ⟨output, a⟩ + λ‖f‖² for the linear maps of stem and blocks."""
    n, w = len(x), found["w"]
    out = {"embed.1.weight": credits[0].T @ x.numpy() / n, "embed.1.bias": credits[0].mean(0)}
    for i, (z, v, slope) in enumerate(found["inner"]):
        f = v @ w[f"blocks.{i}.w2.weight"].T + w[f"blocks.{i}.w2.bias"]
        a = credits[i + 1] + 2 * penalty * f
        out[f"blocks.{i}.w2.weight"], out[f"blocks.{i}.w2.bias"] = a.T @ v / n, a.mean(0)
        b = (a @ w[f"blocks.{i}.w2.weight"]) * slope
        out[f"blocks.{i}.w1.weight"], out[f"blocks.{i}.w1.bias"] = b.T @ z / n, b.mean(0)
    return out


@pytest.mark.parametrize("reader", [False, True])
@pytest.mark.parametrize("penalty", [0.0, 0.05])
@pytest.mark.parametrize("name", ["fa", "dfa"])
def test_fa_and_dfa_updates_against_numpy(name: str, penalty: float, reader: bool) -> None:
    net, (x, y) = small(), batch()
    rule = ready(name, net, x)
    got = gradients(net, step_of(net, rule, penalty=penalty, reader=reader), x, y)
    found = numpy_pass(net, x, y)
    B = [b.numpy() for b in rule.buffers()]
    if name == "dfa":
        a = [found["error"] @ b for b in B]
    else:
        a = [found["top"]]
        for b in reversed(B):
            a.insert(0, a[0] @ b)
    if reader:
        a = [a[0], *a[:-1]]
    for key, expected in numpy_updates(found, x, a, penalty).items():
        np.testing.assert_allclose(got[key].numpy(), expected, rtol=1e-9, atol=1e-13)


def test_readout_always_learns_from_its_own_exact_gradient() -> None:
    net, (x, y) = small(), batch()
    bp = gradients(net, step_of(net, rules.BP(), exact=True), x, y)
    for name in RULES:
        got = gradients(net, step_of(net, ready(name, net, x)), x, y)
        for key in ("out_ln.weight", "out_head.weight", "out_head.bias"):
            torch.testing.assert_close(got[key], bp[key])


def test_frozen_scope_gives_blocks_no_gradient_and_the_stem_the_rules_credit() -> None:
    net, (x, y) = small(), batch()
    rule = ready("dfa", net, x)
    free = gradients(net, step_of(net, rule), x, y)
    for block in net.blocks:
        block.requires_grad_(False)
    frozen = gradients(net, step_of(net, rule, frozen=True), x, y)
    assert all(v is None for k, v in frozen.items() if "blocks" in k)
    torch.testing.assert_close(frozen["embed.1.weight"], free["embed.1.weight"])


def measured(net: nn.Module, rule: Rule, x: Tensor, y: Tensor) -> list[float]:
    cosines = wb.measure(net, [(x, y)], credit=rule).cosine
    assert None not in cosines
    return cosines  # type: ignore[return-value]


@pytest.mark.parametrize("steps", [1, 3, 4, 6])
def test_ep_is_the_descent_of_its_whole_energy_though_it_runs_only_what_has_moved(steps):
    torch.manual_seed(0)
    net, x, y = ResMLP((6,), 4, width=8, depth=3), torch.randn(16, 6), torch.randint(4, (16,))
    rule, trace = ready("ep", net, x, beta=0.5, steps=steps, step_size=0.2), trace_of(net, x, y)

    def residuals(states):
        return [h - p for h, p in zip(states, [trace.states[0], *(h + f(h) for h, f in zip(states, net.blocks))])]

    states = list(trace.states)
    for _ in range(steps):
        states = [h.detach().requires_grad_() for h in states]
        energy = sum(0.5 * r.pow(2).sum() for r in residuals(states))
        nudge = 0.5 * cross_entropy(net.readout(states[-1]), y).sum()
        states = [h - 0.2 * s for h, s in zip(states, torch.autograd.grad(energy + nudge, states))]
    ran = []
    for i, block in enumerate(net.blocks):
        block.register_forward_hook(lambda *_, i=i: ran.append(i))
    credits = rule.credits(trace)
    assert all(torch.equal(a, -r / 0.5) for a, r in zip(credits, residuals(states)))
    relaxed = sum(min(step, 3) for step in range(steps))
    assert len(ran) - 3 == 3 + relaxed + min(steps, 3)  # all at first, to see the rest; and our own three


@pytest.mark.parametrize("steps", [2, 5])
def test_ep_off_rest_runs_every_block_in_every_step(steps):
    torch.manual_seed(0)
    net, x, y = ResMLP((6,), 4, width=8, depth=3), torch.randn(16, 6), torch.randint(4, (16,))
    trace, ran = trace_of(net, x, y), []
    rule = ready("ep", net, x, steps=steps)
    net.blocks[0].register_forward_hook(lambda *_: ran.append(0))
    rule.credits(replace(trace, states=tuple(h + 0.1 for h in trace.states)))
    assert len(ran) == steps + 2


def test_ep_credit_tends_to_the_gradient_with_beta_to_zero() -> None:
    net, (x, y) = small(depth=3), batch()
    off = []
    for beta in (0.1, 0.01, 0.001):
        cosines = measured(net, ready("ep", net, x, beta=beta, steps=1500, step_size=0.1), x, y)
        off.append(1 - min(cosines))
    assert off[2] < 1e-3
    assert off[0] > 5 * off[1] > 25 * off[2]


def test_ep_without_relaxation_gives_no_credit_and_few_steps_none_to_the_stem() -> None:
    net, (x, y) = small(depth=3), batch()
    for steps, reached in ((0, 0), (2, 2), (4, 4)):
        report = wb.measure(net, [(x, y)], credit=ready("ep", net, x, steps=steps))
        assert [c is not None for c in report.cosine] == [False] * (4 - reached) + [True] * reached
    assert "the credit is zero" in wb.measure(net, [(x, y)], credit=ready("ep", net, x, steps=0)).reasons["cosine"]


def trace_of(net: nn.Module, x: Tensor, y: Tensor) -> Trace:
    with wb.Tracer(net) as tracer:
        return tracer.trace(x, y)


def fit(rule: Rule, trace: Trace, steps: int = 300) -> None:
    optimiser = torch.optim.Adam(rule.parameters(), lr=1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        rule.auxiliary_loss(trace).backward()
        optimiser.step()


@pytest.mark.parametrize("name", ["fa", "dfa"])
def test_a_seed_of_its_own_draws_b_whatever_the_seed_of_the_run(name: str) -> None:
    net, (x, _) = small(), batch()
    first, second, other, plain = (
        ready(name, net, x, seed=seed, **options).state_dict()["B0"]
        for seed, options in ((2, {"draw_seed": 1}), (3, {"draw_seed": 1}), (2, {"draw_seed": 4}), (2, {}))
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert not torch.equal(first, plain)
    with pytest.raises(wb.InputError, match="Expected draw_seed to be a whole number >= 0"):
        rules.make(name, draw_seed=-1)


@pytest.mark.parametrize("name", ["fa", "dfa"])
def test_fresh_feedback_changes_at_every_call_and_fixed_feedback_never(name: str) -> None:
    net, (x, y) = small(), batch()
    trace = trace_of(net, x, y)
    fixed, fresh = ready(name, net, x), ready(name, net, x, fresh=True)
    first, second = fixed(trace)[0], fixed(trace)[0]
    assert torch.equal(first, second)
    drawn = [fresh(trace)[0] for _ in range(200)]
    assert not torch.equal(drawn[0], drawn[1])
    # No direction survives averaging: the mean of n draws shrinks as 1/√n.
    assert float(torch.stack(drawn).mean(0).norm()) < 0.2 * float(torch.stack([d.norm() for d in drawn]).mean())


@pytest.mark.parametrize("name", ["fa", "dfa"])
@pytest.mark.parametrize("build", [ResMLP, ViTMini, SmallCNN])
def test_credit_of_unit_length_keeps_its_direction(name: str, build) -> None:
    shape = (3, 8, 8)
    torch.manual_seed(0)
    net = build(shape, 4).double().eval()
    x, y = batch(8, inputs=shape)
    trace = trace_of(net, x, y)
    for plain, unit in zip(ready(name, net, x)(trace), ready(name, net, x, unit=True)(trace)):
        a, b = (credit.flatten(1).numpy() for credit in (plain, unit))
        np.testing.assert_allclose(b, a / np.sqrt((a * a).sum(1, keepdims=True)), rtol=1e-12)
    assert ready(name, net, x, unit=True).describe()["unit"] is True


def test_no_credit_has_no_length_to_give() -> None:
    credit, none = torch.ones(2, 3), torch.zeros(2, 3)
    assert torch.equal(rules.DFA(unit=True).sized([none])[0], none)
    assert torch.equal(rules.DFA().sized([credit])[0], credit)


def test_state_bridge_predicts_the_last_state_better_than_the_identity() -> None:
    net, (x, y) = small(depth=3), batch(64)
    with torch.no_grad():  # blocks that do something, so that the identity is a poor guess
        for block in net.blocks:
            block.w2.weight.mul_(4)
    trace, rule = trace_of(net, x, y), ready("state-bridge", net, x, hidden=4)
    target = trace.states[-1]
    identity = np.mean([float((h - target).pow(2).sum() / target.pow(2).sum()) for h in trace.states[:-1]])
    before = float(rule.auxiliary_loss(trace).detach())
    fit(rule, trace)
    after = float(rule.auxiliary_loss(trace).detach())
    assert after < 0.5 * identity
    assert after < 0.5 * before
    untrained = ready("state-bridge", net, x, train=False)
    assert untrained.auxiliary_loss(trace) is None


def test_credit_bridge_learns_the_loss_and_its_slope_at_the_last_site() -> None:
    net, (x, y) = small(depth=2), batch(64)
    trace, rule = trace_of(net, x, y), ready("credit-bridge", net, x, hidden=4)
    fit(rule, trace, 800)
    values = rule._values(trace, torch.cat(trace.states)).view(3, -1).detach()
    for row in values:
        assert np.corrcoef(row.numpy(), trace.losses.numpy())[0, 1] > 0.9
    trained, untrained = measured(net, rule, x, y), measured(net, ready("credit-bridge", net, x, seed=9), x, y)
    assert trained[-1] > 0.9
    assert min(trained) > max(untrained) + 0.2


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(
    ("net", "inputs"),
    [
        (lambda: ViTMini((3, 8, 8), 4, width=8, depth=2, heads=2).double(), (3, 8, 8)),
        (lambda: SmallCNN((3, 8, 8), 4, width=4, depth=2).double().eval(), (3, 8, 8)),
    ],
)
def test_every_rule_gives_credit_to_tokens_and_images(name: str, net, inputs) -> None:
    torch.manual_seed(0)
    model, (x, y) = net(), batch(inputs=inputs)
    credits = ready(name, model, x, **({"steps": 4} if name == "ep" else {}))(trace_of(model, x, y))
    for a, h in zip(credits, trace_of(model, x, y).states):
        assert a.shape == h.shape
        assert bool(torch.isfinite(a).all())
        assert bool((a != 0).any())


def test_error_goes_where_the_target_says() -> None:
    model = ViTMini((3, 8, 8), 4, width=8, depth=1, heads=2).double()
    x, y = batch(inputs=(3, 8, 8))
    trace = trace_of(model, x, y)
    alike = ready("dfa", model, x, target="all")(trace)[0]
    assert torch.equal(alike[:, 0], alike[:, -1])
    only = ready("dfa", model, x, target="readout")(trace)[0]
    assert bool((only[:, 1:] == 0).all())
    torch.testing.assert_close(only[:, 0], alike.sum(1))


def test_redraw_changes_feedback_and_only_rules_with_feedback_have_any() -> None:
    net, (x, _) = small(), batch()
    for name in RULES:
        rule = ready(name, net, x)
        before = {k: v.clone() for k, v in rule.state_dict().items()}
        has = rule.redraw(torch.Generator().manual_seed(7))
        assert has == (name in ("fa", "dfa"))
        assert has == any(not torch.equal(before[k], v) for k, v in rule.state_dict().items())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rules.make("fda"), "Expected rule to be one of bp, fa, dfa"),
        (lambda: rules.make("dfa", size=3), "Expected rule_options that dfa knows"),
        (lambda: rules.make("dfa", target="cls"), "Expected target to be one of all, readout"),
        (lambda: rules.make("ep", beta=0.0), "Expected beta to be a finite number > 0"),
    ],
)
def test_wrong_rules_teach(call, words: str) -> None:
    with pytest.raises(wb.InputError, match=words):
        call()


def test_the_documented_sign_symmetry_is_backpropagation_where_weights_are_signs() -> None:
    """The worked example of docs/custom-rules.md: exact once every weight is ± one size, and it trains."""
    import re

    text = (ROOT / "docs" / "custom-rules.md").read_text(encoding="utf-8")
    source = next(c for c in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "class SignSymmetry" in c)
    scope: dict = {"torch": torch, "Rule": wb.rules.Rule}
    exec(source, scope)
    net, (x, y) = small(depth=3), batch()
    rule = scope["SignSymmetry"]()
    set_up(rule, net, x[:2], 4, torch.Generator())
    assert min(measured(net, rule, x, y)[:-1]) < 1 - 1e-4
    with torch.no_grad():
        for block in net.blocks:
            for linear in (block.w1, block.w2):
                linear.weight.copy_(linear.weight.sign() * 0.3)
    assert min(measured(net, rule, x, y)) > 1 - 1e-12
    bp = gradients(net, step_of(net, rules.BP(), exact=True), x, y)
    local = gradients(net, step_of(net, rule), x, y)
    for name, expected in bp.items():
        torch.testing.assert_close(local[name], expected, rtol=1e-9, atol=1e-13)


def test_credit_of_unit_length_is_that_also_where_squares_vanish() -> None:
    rows = torch.tensor([[3e-30, 4e-30], [3e-44, 0.0], [0.0, 0.0], [3e30, 4e30]])
    (found,) = rules.DFA(unit=True).sized([rows])
    assert torch.allclose(found, torch.tensor([[0.6, 0.8], [1.0, 0.0], [0.0, 0.0], [0.6, 0.8]]))


def test_a_state_bridge_moves_no_statistics_of_the_readout() -> None:
    class Normed(ResMLP):
        def __init__(self) -> None:
            super().__init__((6,), 4, width=8, depth=2)
            self.out_ln = nn.BatchNorm1d(8)

    torch.manual_seed(0)
    net, (x, y) = Normed().double(), batch()
    step_of(net, ready("state-bridge", net, x))(x, y)
    assert int(net.out_ln.num_batches_tracked) == 1


def test_a_state_of_zeros_has_a_finite_credit_from_the_state_bridge() -> None:
    net, (x, y) = small(), batch()
    trace, rule = trace_of(net, x, y), ready("state-bridge", net, x)
    states = tuple(torch.zeros_like(h) for h in trace.states)
    assert all(bool(torch.isfinite(a).all()) for a in rule.credits(replace(trace, states=states)))


@pytest.mark.parametrize(("preactivation", "grows"), [(False, 1.0), (True, 100.0)])
def test_a_branch_grows_with_its_weights_only_where_no_norm_ends_it(preactivation: bool, grows: float) -> None:
    """Weights 10 times longer: a branch that ends in a BatchNorm stays, one that ends in a convolution does not."""
    net = SmallCNN((3, 8, 8), 4, width=4, depth=1, preactivation=preactivation).double()
    block, h = net.blocks[0], torch.randn(64, 4, 2, 2, dtype=torch.float64)
    before = block(h).detach().norm()
    with torch.no_grad():
        block.w1.weight.mul_(10)
        block.norm2.weight.mul_(10 if preactivation else 1)  # what w1 can't do past a norm, the norm's own scale can
        block.w2.weight.mul_(10)
    assert float(block(h).detach().norm() / before) == pytest.approx(grows, rel=1e-3)


def test_blocks_without_scale_and_shift_begin_as_those_with_them_and_have_no_third_factor() -> None:
    """Same seed, same network; but a norm's own scale, a factor of the branch's length, is not there to be trained."""
    nets = []
    for affine in (False, True):
        torch.manual_seed(0)
        nets.append(small(block_affine=affine))
    plain, usual = nets
    x = torch.randn(4, 6, dtype=torch.float64)
    assert torch.equal(plain(x), usual(x))
    assert [len(list(block.norm.parameters())) for net in nets for block in net.blocks] == [0, 0, 2, 2]
