"""The published conventions as options: each changes what it says, by a closed form, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import walkback as wb
from walkback.rules.rule import Parts, of_length
from walkback.training.control import control_spec
from walkback.training.spec import RunSpec
from walkback.training.step import TrainingStep

X, Y = torch.randn(32, 8, generator=torch.Generator().manual_seed(0)), torch.arange(32) % 3


def network(width=16, depth=2):
    torch.manual_seed(1)
    return wb.nets.build("resmlp", (8,), 3, width=width, depth=depth)


def with_rule(name="dfa", length="raw", **options):
    net, rule = network(), wb.rules.make(name, **options)
    wb.rules.set_up(rule, net, X, 3, torch.Generator().manual_seed(2))
    rule.length = length
    return net, rule


def gradients(net, rule, **how):
    step = TrainingStep(Parts.of(net), rule, **{"exact": False, **how})
    step(X, Y)
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


# -- length of a credit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "size"), [("unit", 1.0), ("rms", 4.0)])
def test_every_samples_credit_gets_its_length(length, size):
    net, rule = with_rule(length=length)
    seen = []
    rule.register_forward_hook(lambda module, args, made: seen.extend(made))
    wb.measure(net, [(X, Y)], credit=rule)
    assert len(seen) == 3
    for credit in seen:
        torch.testing.assert_close(credit.norm(dim=1), torch.full((32,), size))


@pytest.mark.parametrize("name", ["fa", "dfa", "state-bridge", "credit-bridge", "ep"])
def test_length_changes_training_and_no_cosine(name):
    cosines, grads = {}, {}
    for length in ("raw", "unit", "rms"):
        net, rule = with_rule(name, length)
        cosines[length] = wb.measure(net, [(X, Y)], credit=rule).cosine
        grads[length] = gradients(net, rule)["blocks.0.w1.weight" if hasattr(net.blocks[0], "w1") else "embed.weight"]
    for length in ("unit", "rms"):
        assert cosines[length] == pytest.approx(cosines["raw"], abs=1e-6)
    torch.testing.assert_close(grads["rms"], 4 * grads["unit"], rtol=1e-4, atol=1e-7)
    assert not torch.allclose(grads["raw"] / grads["raw"].norm(), grads["unit"] / grads["unit"].norm(), rtol=1e-3)


def test_unit_length_of_a_rule_is_the_option_it_had_before():
    net, rule = with_rule(length="unit")
    other, same = with_rule(unit=True)
    ours, theirs = gradients(net, rule), gradients(other, same)
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name])


def test_no_credit_has_no_length():
    (zero,) = of_length([torch.zeros(2, 5)], "rms")
    assert torch.equal(zero, torch.zeros(2, 5))
    (small,) = of_length([torch.full((1, 4), 1e-30)], "unit")
    torch.testing.assert_close(small, torch.full((1, 4), 0.5))
    with pytest.raises(wb.InputError, match="Expected the length of a credit to be one of raw, unit, rms"):
        of_length([torch.ones(1, 1)], "long")


def test_a_bundle_gives_the_credit_its_network_was_trained_with(tmp_path):
    split = wb.data.Split(X.repeat(8, 1), Y.repeat(8))
    data = wb.data.Dataset("mine", split, split, classes=3)
    spec = RunSpec(data="mine:data", rule="dfa", epochs=1, credit_length="rms", credit_site="reader",
                   net_options={"width": 16, "depth": 2})  # fmt: skip
    run = wb.train(spec, tmp_path, data=data, quiet=True)
    assert run.rule(run.model()).length == "rms"
    assert run.report().conditions["credit_length"] == "rms"
    with pytest.raises(wb.InputError, match="Expected credit_length raw with bp"):
        wb.train(RunSpec(data="mine:data", credit_length="unit"), tmp_path, data=data, quiet=True)


# -- the penalty ---------------------------------------------------------------------------------------------------


def by_hand(net, rule, penalty, over, stem_too):
    """Gradients of Σ_l [⟨f_l, a_l⟩/B + λ·‖f_l‖²/B (or its mean over features)] by plain autograd."""
    with torch.no_grad():
        states = [net.embed(X)]
        for block in net.blocks:
            states.append(states[-1] + block(states[-1]))
    with wb.Tracer(net) as tracer:
        trace = tracer.trace(X, Y)
    with torch.no_grad():
        credits = rule(trace)
    written = [net.embed(X), *(block(h) for block, h in zip(net.blocks, states))]
    loss = torch.zeros(())
    for site, (f, a) in enumerate(zip(written, credits)):
        loss = loss + (f * a).sum() / 32
        if site or stem_too:
            loss = loss + penalty * (f.pow(2).mean() if over == "mean" else f.pow(2).sum() / 32)
    names = [n for n, _ in net.named_parameters() if n.startswith(("embed", "blocks"))]
    found = torch.autograd.grad(loss, [net.get_parameter(n) for n in names], allow_unused=True)
    return dict(zip(names, found))


@pytest.mark.parametrize("over", ["sum", "mean"])
@pytest.mark.parametrize("stem_too", [False, True])
def test_the_penalty_is_the_one_that_is_asked_for(over, stem_too):
    net, rule = with_rule()
    expected = by_hand(net, rule, 0.1, over, stem_too)
    net.zero_grad()
    found = gradients(net, rule, penalty=0.1, per_feature=over == "mean", stem_too=stem_too)
    for name, grad in expected.items():
        if grad is not None:
            torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("stem_too", [False, True])
def test_bps_penalty_can_reach_the_stem_too(stem_too):
    net = network()
    found = gradients(net, wb.rules.BP(), exact=True, penalty=0.1, per_feature=True, stem_too=stem_too)
    net.zero_grad()
    h = net.embed(X)
    loss = 0.1 * h.pow(2).mean() if stem_too else torch.zeros(())
    for block in net.blocks:
        f = block(h)
        loss, h = loss + 0.1 * f.pow(2).mean(), h + f
    (
        loss
        + nn.functional.cross_entropy(net.readout(h) if hasattr(net, "readout") else net.out_head(net.out_ln(h)), Y)
    ).backward()
    for name, p in net.named_parameters():
        torch.testing.assert_close(found[name], p.grad, rtol=1e-4, atol=1e-6)


def test_penalty_options_need_a_penalty(tmp_path):
    with pytest.raises(wb.InputError, match="together with a penalty, but it is 0"):
        wb.train(RunSpec(rule="dfa", data="teacher", penalty_stem=True), tmp_path, quiet=True)


# -- specs and controls -----------------------------------------------------------------------------------------------


def test_new_fields_rename_no_run():
    assert RunSpec(rule="dfa").digest == "128055132e5f77e9"
    assert RunSpec(rule="dfa", augment=True, credit_site="reader", credit_length="rms").digest == "b602eb712915f56e"


def test_a_control_keeps_the_length_and_loses_what_frozen_blocks_have_not():
    spec = RunSpec(
        rule="dfa", credit_length="rms", credit_site="reader", penalty=0.1, penalty_stem=True, penalty_over="mean"
    )
    assert control_spec(spec).model_dump(exclude_defaults=True) == {
        "rule": "dfa", "scope": "frozen", "credit_length": "rms",
    }  # fmt: skip
    assert control_spec(spec, "bp").model_dump(exclude_defaults=True) == {"scope": "frozen"}


# -- the bridges' other forms, and nudging by √d ----------------------------------------------------------------------


def test_a_plain_state_bridge_reads_the_state_as_it_is():
    _, ours = with_rule("state-bridge")
    _, plain = with_rule("state-bridge", form="plain")
    h, t = torch.randn(4, 16), torch.zeros(4, 1)
    torch.testing.assert_close(ours.predictor(10 * h, t), 10 * ours.predictor(h, t), rtol=1e-3, atol=1e-5)
    assert not torch.allclose(plain.predictor(10 * h, t), 10 * plain.predictor(h, t), rtol=1e-2)
    with pytest.raises(wb.InputError, match="Expected form to be one of scale-free, plain, but got 'other'"):
        wb.rules.make("state-bridge", form="other")


def test_a_plain_state_bridge_learns_by_the_mean_squared_error():
    net, rule = with_rule("state-bridge", form="plain")
    with wb.Tracer(net) as tracer:
        trace = tracer.trace(X, Y)
    wrong = [rule.predictor(h, torch.full((32, 1), site / 2)) - trace.states[-1] for site, h in enumerate(trace.states)]
    torch.testing.assert_close(rule.auxiliary_loss(trace), torch.stack(wrong).pow(2).mean())


def test_a_blind_credit_bridge_does_not_see_the_label():
    for label, same in ((True, False), (False, True)):
        net, rule = with_rule("credit-bridge", label=label)
        with wb.Tracer(net) as tracer:
            one, other = tracer.trace(X, Y), tracer.trace(X, (Y + 1) % 3)
        assert torch.allclose(rule(one)[1], rule(other)[1]) is same
        assert rule.describe()["sees_label"] is label


# -- which sites are averaged -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gamma_over", "sites"), [("0..L-1", slice(0, 2)), ("0..L", slice(0, 3))])
@pytest.mark.parametrize(("deep_over", "deep"), [("1..L", slice(1, 3)), ("1..L-1", slice(1, 2))])
def test_gamma_and_the_deep_mean_are_of_the_sites_that_are_asked_for(gamma_over, sites, deep_over, deep):
    net, rule = with_rule()
    probes = [wb.FreshFeedback(draws=2), wb.Nudging()]
    how = {"gamma_over": gamma_over, "deep_over": deep_over, "probes": probes}
    report = wb.diagnose(net, [(X, Y)], credit=rule, **how)
    cosine, nudge = report.per_layer["cosine"], report.per_layer["nudging"]
    mean = lambda values: sum(values) / len(values)  # noqa: E731
    assert report.values["gamma"] == pytest.approx(mean(cosine[sites]))
    assert report.values["deep_cosine"] == pytest.approx(mean(cosine[deep]))
    assert report.values["deep_nudging"] == pytest.approx(mean(nudge[deep]))
    fresh = report.conditions["fresh_feedback"]
    assert fresh["gamma"]["mean"] == pytest.approx(mean(report.controls["fresh_mean"][sites]))
    assert fresh["deep_cosine"]["mean"] == pytest.approx(mean(report.controls["fresh_mean"][deep]))
    assert (report.conditions["gamma_over"], report.conditions["deep_over"]) == (gamma_over, deep_over)
    assert f"over sites 0…{sites.stop - 1}" in str(report.chain[0])
    assert wb.judge(report).values["gamma"] == report.values["gamma"]


def test_arrays_take_the_same_conventions():
    net, rule = with_rule()
    with wb.Tracer(net) as tracer:
        trace = tracer.trace(X, Y)
    arrays = {"states": trace.states, "grads": trace.grads, "credits": rule(trace), "reduction": "sum"}
    how = {"gamma_over": "0..L", "deep_over": "1..L-1"}
    ours, theirs = wb.diagnose_arrays([arrays], **how), wb.diagnose(net, [(X, Y)], credit=rule, **how)
    for name in ("gamma", "deep_cosine"):
        assert ours.values[name] == pytest.approx(theirs.values[name], abs=1e-6)
    assert ours.conditions["gamma_over"] == "0..L"


def test_sites_that_are_none_are_refused():
    with pytest.raises(wb.InputError, match=r"Expected gamma_over to be one of 0..L-1, 0..L, but got 'all'"):
        wb.measure(wb.selftest.healthy(), wb.selftest.batches(1), gamma_over="all")
    with pytest.raises(wb.InputError, match=r"Expected deep_over to be one of 1..L, 1..L-1, but got 'all'"):
        wb.measure(wb.selftest.healthy(), wb.selftest.batches(1), deep_over="all")
    plain = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    with pytest.raises(wb.InputError, match="Expected gamma_over only of a residual stream"):
        wb.measure(plain, [(X, Y)], credit=lambda trace: trace.grads, gamma_over="0..L", sites="layers")


# -- the site whose credit a block gets -------------------------------------------------------------------------------


def test_a_reader_gets_the_credit_of_the_site_it_reads():
    net, rule = with_rule()
    written = gradients(net, rule)
    net.zero_grad()
    read = gradients(net, rule, reader=True)
    with wb.Tracer(net) as tracer:
        trace = tracer.trace(X, Y)
    credits = rule(trace)
    for site, block in enumerate(net.blocks, 1):
        names = [n for n, _ in net.named_parameters() if n.startswith(f"blocks.{site - 1}.")]
        for credit, found in ((credits[site], written), (credits[site - 1], read)):
            f = block(trace.states[site - 1].detach())
            by_hand = torch.autograd.grad((f * credit.detach()).sum() / 32, [net.get_parameter(n) for n in names])
            for name, grad in zip(names, by_hand):
                torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=1e-6)


def test_nudging_by_the_root_of_d_is_nudging_with_that_step():
    net, rule = with_rule()
    one = wb.diagnose(net, [(X, Y)], credit=rule, probes=[wb.Nudging(eta=0.01)])
    long = wb.diagnose(net, [(X, Y)], credit=rule, probes=[wb.Nudging(eta=0.01 * 16**0.5)])
    assert one.per_layer["nudging_rms"] == pytest.approx(long.per_layer["nudging"], rel=1e-9)
    assert one.values["deep_nudging_rms"] == pytest.approx(long.values["deep_nudging"], rel=1e-9)
