"""The certificate says what reaches which parameters, and catches what claims to be something else."""

from __future__ import annotations

import pytest
import torch

import walkback as wb
from walkback import rules
from walkback.network.loss import cross_entropy
from walkback.rules.rule import Parts, set_up
from walkback.training.step import TrainingStep


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


def true_gradient(parts, trace):
    with torch.enable_grad():
        states = [trace.states[0].detach().requires_grad_()]
        for block in parts.blocks:
            states.append(states[-1] + block(states[-1]))
        losses = cross_entropy(parts.readout(states[-1]), trace.labels)
        return torch.autograd.grad(losses.sum(), states)


class SilentFallback(rules.FA):
    """Claims to be FA and hands out the true gradient."""

    def credits(self, trace):
        return true_gradient(self.parts, trace)

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


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        (SilentFallback, float("nan")),
        (SilentFallback, float("inf")),
        (rules.BP, float("nan")),
        (rules.DFA, float("nan")),
    ],
)
def test_a_network_that_is_not_finite_is_not_certified(rule, value: float) -> None:
    net = network()
    made = ready(rule(), net)
    with torch.no_grad():
        next(p for p in net.blocks[0].parameters() if p.ndim == 2)[0, 0] = value
    certificate = wb.certify(made, net)
    assert {c.kind for c in certificate.groups} == {"not finite"}
    assert {c.cosine for c in certificate.groups} == {None}
    assert certificate.uncertified == ("stem", "block 1", "block 2", "block 3", "readout")
    assert not certificate.passed
    assert "no hidden backpropagation found" not in str(certificate)
    assert "can't be certified, since a gradient is not finite: stem, block 1" in str(certificate)


class NanCredit(rules.DFA):
    """NaN below; in the last block the honest credit."""

    def credits(self, trace):
        return [c * float("nan") for c in super().credits(trace)[:-1]] + [super().credits(trace)[-1]]


def test_credit_that_is_not_finite_is_told_from_the_groups_that_are_certified() -> None:
    net = network()
    certificate = wb.certify(ready(NanCredit(), net), net)
    assert [c.kind for c in certificate.groups] == ["not finite"] * 3 + ["random feedback", "exact"]
    assert certificate.uncertified == BELOW
    assert not certificate.passed
    assert certificate.two_faced == ()


class NanWhenDrawn(SilentFallback):
    """The true gradient, and NaN with any feedback but its own: no draw is left to average over."""

    def setup(self, parts, states, classes, generator):
        super().setup(parts, states, classes, generator)
        self.mine = self.matrices()[0].clone()

    def credits(self, trace):
        mine = torch.equal(self.matrices()[0], self.mine)
        return [c if mine else c * float("nan") for c in super().credits(trace)]


def test_a_leak_that_can_not_be_measured_is_not_a_pass() -> None:
    net = network()
    certificate = wb.certify(ready(NanWhenDrawn(), net), net)
    assert set(BELOW) <= set(certificate.uncertified)
    assert not certificate.passed


class NanWhenMeasured(rules.DFA):
    def credits(self, trace):
        return [c if self.training else c * float("nan") for c in super().credits(trace)]


def test_credit_that_is_not_finite_only_when_measured_has_two_faces() -> None:
    net = network()
    certificate = wb.certify(ready(NanWhenMeasured(), net), net)
    assert [t.group for t in certificate.two_faced] == ["stem", "block 1", "block 2", "block 3"]
    assert {t.measures for t in certificate.two_faced} == {None}
    assert "measures with none" in str(certificate)
    assert not certificate.passed


@pytest.mark.parametrize(("make", "hidden"), [(SilentFallback, ("stem", "block 1", "block 2")), (rules.DFA, ())])
def test_tiny_gradients_have_a_direction(make, hidden: tuple[str, ...]) -> None:
    """Squares of 1e-200 are zero in float64."""
    net, rule = network().double(), make()
    set_up(rule, net, torch.zeros(2, 12).double(), 5, torch.Generator().manual_seed(3))
    rule.double()
    with torch.no_grad():
        net.out_head.weight.mul_(1e-200)
    certificate = wb.certify(rule, net)
    assert certificate.hidden_backprop == hidden
    assert all(-1.001 < c.cosine < 1.001 for c in certificate.groups)


@pytest.mark.parametrize("name", ["bp", "dfa"])
def test_what_is_clean_passes(name: str) -> None:
    net = network()
    assert wb.certify(ready(rules.make(name), net), net).passed


def test_what_is_found_does_not_pass() -> None:
    net = network()
    assert not wb.certify(ready(SilentFallback(), net), net).passed


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (lambda trace: trace.grads, r"Expected rule to be a walkback\.rules\.Rule .*, but got <function"),
        (rules.DFA, r"but got <class 'walkback\.rules\.dfa\.DFA'>\. Make one with walkback\.rules\.make"),
        ("dfa", "but got 'dfa'. Make one"),
    ],
)
def test_what_is_no_rule_is_refused(rule, words: str) -> None:
    with pytest.raises(wb.InputError, match=words):
        wb.certify(rule, network())


def test_what_is_no_network_is_refused() -> None:
    net = network()
    with pytest.raises(wb.InputError, match=r"Expected net to be a torch\.nn\.Module, but got str"):
        wb.certify(ready(rules.make("dfa"), net), "resmlp")


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (
            (torch.zeros(4, 12),),
            r"inputs \(B, …\) and labels \(B,\), but got tuple of \[\(4, 12\)\]\. Pass batch=\(x, y\)",
        ),
        (torch.zeros(2, 12), "but got Tensor"),
        ((torch.zeros(4, 12), [0, 1, 2, 3]), r"but got tuple of \[\(4, 12\), 'list'\]"),
        ((torch.zeros(4, 12), torch.zeros(3).long()), r"but got tuple of \[\(4, 12\), \(3,\)\]"),
        ((torch.zeros(0, 12), torch.zeros(0).long()), r"but got tuple of \[\(0, 12\), \(0,\)\]"),
    ],
)
def test_what_is_no_batch_is_refused(batch, words: str) -> None:
    net = network()
    with pytest.raises(wb.InputError, match=words):
        wb.certify(ready(rules.make("dfa"), net), net, batch)


@pytest.mark.parametrize("name", ["dfa", "bp"])
def test_a_network_without_anything_that_trains_is_refused(name: str) -> None:
    net = network().requires_grad_(False)
    with pytest.raises(wb.InputError, match=r"in: stem, block 1, block 2, block 3\. .* net\.requires_grad_\(True\)"):
        wb.certify(ready(rules.make(name), net), net)


def test_a_frozen_block_has_no_credit_in_backpropagation_and_is_refused_elsewhere() -> None:
    net = network()
    net.blocks[1].requires_grad_(False)
    assert [c.kind for c in wb.certify(ready(rules.make("bp"), net), net).groups][2] == "none"
    with pytest.raises(wb.InputError, match="none requires a gradient in: block 2"):
        wb.certify(ready(rules.make("dfa"), net), net)


BELOW = ("stem", "block 1", "block 2")


@pytest.mark.parametrize("name", ["fa", "dfa"])
def test_feedback_drawn_anew_at_every_call_is_not_accused(name: str) -> None:
    net = network()
    certificate = wb.certify(ready(rules.make(name, fresh=True), net), net)
    assert [c.kind for c in certificate.groups[:3]] == ["random feedback"] * 3
    assert certificate.hidden_backprop == ()
    assert certificate.two_faced == ()


def test_the_scale_of_a_hidden_gradient_does_not_matter() -> None:
    class Doubled(SilentFallback):
        def credits(self, trace):
            return [2 * g for g in super().credits(trace)]

    net = network()
    assert wb.certify(ready(Doubled(), net), net).hidden_backprop == BELOW


class OwnFeedback(rules.Rule):
    """FA as a reader of the documentation would write it: buffers and credits."""

    share = 0.0

    def setup(self, parts, states, classes, generator):
        self.parts = parts
        for i, h in enumerate(states):
            self.register_buffer(f"back{i}", torch.randn(classes, h.shape[1], generator=generator) / 6)

    def credits(self, trace):
        error = trace.logits.softmax(1) - torch.nn.functional.one_hot(trace.labels, 5)
        true = true_gradient(self.parts, trace)
        return [error @ self.get_buffer(f"back{i}") + self.share * g for i, g in enumerate(true)]


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_random_feedback_in_buffers_needs_no_redraw_of_its_own(share: float) -> None:
    net = network()
    rule = ready(OwnFeedback(), net)
    rule.share, before = share, rule.back0.clone()
    certificate = wb.certify(rule, net)
    assert [c.kind for c in certificate.groups] == ["random feedback"] * 4 + ["exact"]
    assert certificate.hidden_backprop == ((*BELOW, "block 3") if share else ())
    assert torch.equal(rule.back0, before)


def by_norm(own, true):
    return own + 0.1 * own.norm() / true.norm() * true


@pytest.mark.parametrize("mix", [lambda own, true: true + 0.01 * own, by_norm], ids=["mostly", "a tenth"])
def test_a_share_of_the_true_gradient_in_learned_credit_is_caught(mix) -> None:
    class Leaking(rules.StateBridge):
        def credits(self, trace):
            own = super().credits(trace)
            return [mix(o, g) for o, g in zip(own, true_gradient(self.parts, trace))]

    net = network()
    certificate = wb.certify(ready(Leaking(), net), net)
    assert certificate.hidden_backprop == (*BELOW, "block 3")
    assert "learned + exact" in str(certificate)


@pytest.mark.parametrize("name", ["state-bridge", "credit-bridge"])
def test_a_trained_bridge_is_not_accused(name: str) -> None:
    net = wb.nets.build("resmlp", (12,), 5, width=32, depth=3, terminal_norm=False)
    rule = ready(rules.make(name), net)
    torch.manual_seed(1)
    x, teacher = torch.randn(256, 12), torch.randn(12, 5)
    batch = x, (x @ teacher).argmax(1)
    optimizer = torch.optim.Adam([*net.parameters(), *rule.parameters()], 3e-3)
    step = TrainingStep(Parts.of(net), rule, False, frozen=False, penalty=0.0, reader=False)
    for _ in range(100):
        optimizer.zero_grad()
        step(*batch)
        optimizer.step()
    certificate = wb.certify(rule, net, batch)
    assert certificate.hidden_backprop == (), str(certificate)
    assert certificate.two_faced == ()


def test_computed_credit_that_is_almost_exact_is_named() -> None:
    class AlmostExact(rules.Rule):
        def setup(self, parts, states, classes, generator):
            self.parts = parts

        def credits(self, trace):
            return [g + 0.01 * g.roll(1, 1) for g in true_gradient(self.parts, trace)]

    net = network()
    certificate = wb.certify(ready(AlmostExact(), net), net)
    assert set(BELOW) <= set(certificate.exact_in_effect)
    assert "computed ≈ exact" in str(certificate)


@pytest.mark.parametrize("share", [None, 0.5])
def test_the_last_block_of_a_rule_that_does_not_declare_it_is_judged(share: float | None) -> None:
    class ExactTop(rules.DFA):
        def credits(self, trace):
            *below, last = super().credits(trace)
            return [*below, trace.grads[-1] if share is None else last + share * trace.grads[-1]]

    net = network()
    assert wb.certify(ready(ExactTop(), net), net).hidden_backprop == ("block 3",)
    declared = type("Declared", (ExactTop,), {"exact_top": True})
    assert wb.certify(ready(declared(), net), net).hidden_backprop == (() if share is None else ("block 3",))


def test_a_rule_that_trains_with_one_credit_and_measures_with_another_is_named() -> None:
    class ByMode(SilentFallback):
        def credits(self, trace):
            return super().credits(trace) if self.training else rules.FA.credits(self, trace)

    class ByNetwork(SilentFallback):
        def credits(self, trace):
            return super().credits(trace) if self.parts.stem.training else rules.FA.credits(self, trace)

    for cheat in (ByMode, ByNetwork):
        net = network().eval()
        certificate = wb.certify(ready(cheat(), net).eval(), net)
        assert certificate.hidden_backprop == BELOW
        assert tuple(t.group for t in certificate.two_faced) == BELOW
        assert "stem: trains with cosine +1.0000 to exact, measures with" in str(certificate)


def sign_symmetry():
    def through_signs(linear, x):
        back = x @ (linear.weight.sign() * linear.weight.abs().mean()).T
        return linear(x).detach() + back - back.detach()

    class SignSymmetry(rules.Rule):
        def setup(self, parts, states, classes, generator):
            self.parts = parts

        def credits(self, trace):
            credits = [trace.grads[-1]]
            for block, h in zip(reversed(self.parts.blocks), reversed(trace.states[:-1])):
                with torch.enable_grad():
                    h = h.detach().requires_grad_()
                    f = through_signs(block.w2, block.act(through_signs(block.w1, block.norm(h))))
                    (carried,) = torch.autograd.grad(f, h, credits[0])
                credits.insert(0, credits[0] + carried)
            return credits

    return SignSymmetry()


def test_sign_symmetry_is_computed_and_not_accused() -> None:
    net = network()
    certificate = wb.certify(ready(sign_symmetry(), net), net)
    assert [c.kind for c in certificate.groups] == ["computed"] * 3 + ["exact"] * 2
    assert certificate.hidden_backprop == ()
    assert certificate.two_faced == ()


@pytest.mark.parametrize("name", ["bp", "fa", "ep", "state-bridge"])
def test_batch_norm_is_measured_as_in_training_and_left_as_it_was(name: str) -> None:
    torch.manual_seed(0)
    net = wb.nets.build("small-cnn", (3, 8, 8), 5, width=8, depth=2).eval()
    rule = rules.make(name)
    set_up(rule, net, torch.zeros(2, 3, 8, 8), 5, torch.Generator().manual_seed(3))
    modes = []
    net.embed[0].register_forward_pre_hook(lambda module, args: modes.append(module.training))
    before = {k: v.clone() for k, v in net.state_dict().items()}
    certificate = wb.certify(rule, net)
    assert modes[0]
    assert not net.training
    assert certificate.hidden_backprop == ()
    assert certificate.two_faced == ()
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
