"""The rules behind results/bridge-forms.md are what their names say."""

from __future__ import annotations

import pytest
import torch

import bridge_forms
import walkback as wb
from places import ROOT
from test_rules import trace_of
from walkback.rules.rule import Rule
from walkback.tracing.trace import Trace


def ready(rule: Rule) -> tuple[Rule, Trace]:
    torch.manual_seed(0)
    net, x, y = wb.nets.build("resmlp", (8,), 3, width=16, depth=2).eval(), torch.randn(32, 8), torch.randint(3, (32,))
    wb.rules.set_up(rule, net, x, 3, torch.Generator().manual_seed(0))
    return rule, trace_of(net, x, y)


@pytest.mark.parametrize("name", ["UnitStateBridge", "RawUnitStateBridge", "UnitCreditBridge", "BlindUnitCreditBridge"])
def test_unit_credit_keeps_the_direction_and_has_length_one(name: str) -> None:
    rule, trace = ready(getattr(bridge_forms, name)())
    plain, _ = ready(type(rule).__bases__[1]())
    for unit, as_ever in zip(rule.credits(trace), plain.credits(trace)):
        assert torch.allclose(unit.norm(dim=1), torch.ones(32))
        assert torch.allclose(unit * as_ever.norm(dim=1, keepdim=True), as_ever, rtol=1e-4, atol=1e-9)


def test_the_raw_predictor_sees_the_scale_of_the_state_and_ours_does_not() -> None:
    h, t = torch.randn(4, 16), torch.zeros(4, 1)
    ours, raw = ready(wb.rules.StateBridge())[0].predictor, ready(bridge_forms.RawStateBridge())[0].predictor
    assert torch.allclose(ours(10 * h, t), 10 * ours(h, t), rtol=1e-3, atol=1e-5)
    assert not torch.allclose(raw(10 * h, t), 10 * raw(h, t), rtol=0.05)


def test_the_raw_bridge_learns_by_the_plain_squared_error() -> None:
    rule, trace = ready(bridge_forms.RawStateBridge())
    times = torch.linspace(0, 1, 3)
    with torch.no_grad():
        wrong = [(rule.predictor(h, t.expand(32, 1)) - trace.states[-1]) ** 2 for h, t in zip(trace.states, times)]
        assert rule.auxiliary_loss(trace).item() == pytest.approx(torch.stack(wrong).mean().item(), rel=1e-5)
    assert all(p.requires_grad for p in rule.predictor.parameters())


def test_the_blind_value_does_not_see_the_label() -> None:
    for rule, alike in ((bridge_forms.BlindCreditBridge(), True), (wb.rules.CreditBridge(), False)):
        rule, trace = ready(rule)
        states = torch.cat(list(trace.states)).detach()
        before = rule._values(trace, states)
        trace.labels.copy_((trace.labels + 1) % 3)
        assert torch.equal(before, rule._values(trace, states)) is alike


def test_the_raw_value_sees_the_scale_of_the_state() -> None:
    for rule, alike in ((bridge_forms.RawCreditBridge(), False), (wb.rules.CreditBridge(), True)):
        rule, trace = ready(rule)
        states = torch.cat(list(trace.states)).detach()
        assert torch.allclose(rule._values(trace, states), rule._values(trace, 10 * states), atol=1e-4) is alike


def test_the_runs_differ_in_their_rule_alone() -> None:
    specs = [bridge_forms.spec(**fields).model_dump() for fields in bridge_forms.RUNS.values()]
    assert len({spec.pop("rule") for spec in specs}) == len(bridge_forms.RUNS)
    assert all(spec == specs[0] for spec in specs)


def test_the_page_on_replication_says_what_the_table_says() -> None:
    lines = (ROOT / "results" / "bridge-forms.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    found = {row[0]: dict(zip(cells[0], row)) for row in cells[2:]}
    page = " ".join((ROOT / "docs" / "default-recipe.md").read_text(encoding="utf-8").replace("−", "-").split())
    ours, raw, unit = (
        found[k] for k in ("State Bridge, ours", "G(h) = MLP(h), squared error", "credit of unit length")
    )
    credit, blind = found["Credit Bridge, ours"], found["V without the label"]
    norms = [run["‖h_L‖"].replace("e+0", "e") for run in (raw, ours, blind)]
    gammas = [run["Γ"] for run in (credit, blind)]
    for words in (
        f"(accuracy {raw['acc']} and {ours['acc']}, ‖h_L‖ {norms[0]} and {norms[1]})",
        f"falls from {credit['acc']} to {blind['acc']} and Γ from {gammas[0]} to {gammas[1]} (published",
        f"with a stream of {norms[2]} that",
        f"costs {100 * (float(ours['acc']) - float(unit['acc'])):.0f} pp, far",
    ):
        assert words in page, words
    assert float(unit["‖h_L‖"]) / float(ours["‖h_L‖"]) == pytest.approx(7, abs=0.6)
