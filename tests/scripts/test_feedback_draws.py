"""The two rules behind results/feedback-draws.md are what their names say."""

from __future__ import annotations

import torch

import feedback_draws
import walkback as wb
from places import ROOT


def feedback(rule: wb.rules.Rule, seed: int) -> list[torch.Tensor]:
    net = wb.nets.build("resmlp", (8,), 4, width=16, depth=2)
    wb.rules.set_up(rule, net, torch.zeros(2, 8), 4, torch.Generator().manual_seed(seed))
    return [rule.get_buffer(f"B{site}") for site in range(3)]


def test_another_draw_follows_its_number_and_not_the_seed() -> None:
    first, second = (feedback(feedback_draws.OtherDraw(1), seed) for seed in (42, 123))
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    assert not torch.equal(first[0], feedback(feedback_draws.OtherDraw(2), 42)[0])
    assert not torch.equal(first[0], feedback(wb.rules.DFA(), 42)[0])
    rule = feedback_draws.OtherDraw(1)
    before = feedback(rule, 42)[0].clone()
    rule.redraw(torch.Generator().manual_seed(5))
    assert not torch.equal(before, rule.get_buffer("B0")), "the null of fresh feedback draws anew"


def test_one_for_all_has_one() -> None:
    first, *rest = feedback(feedback_draws.OneForAll(), 42)
    assert all(torch.equal(first, other) for other in rest)
    assert torch.equal(first, feedback(wb.rules.DFA(), 42)[0])


def test_the_runs_differ_in_nothing_but_what_their_names_say() -> None:
    specs = [feedback_draws.spec(**fields).model_dump() for fields in feedback_draws.RUNS.values()]
    for spec in specs:
        assert {k: spec[k] for k in spec if k not in ("seed", "rule", "rule_options")} == {
            k: specs[0][k] for k in specs[0] if k not in ("seed", "rule", "rule_options")
        }
    assert len({str(spec) for spec in specs}) == len(specs)


def test_the_page_on_replication_says_what_the_table_says() -> None:
    table = (ROOT / "results" / "feedback-draws.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")
    ]
    h = {row[0]: float(row[1]) for row in rows[2:]}
    page = " ".join((ROOT / "docs" / "default-recipe.md").read_text(encoding="utf-8").split())
    for name, words in {
        "seed 123": "‖h_L‖ of {} under the B that this seed draws",
        "seed 123, the second draw of B": "and with {} under another",
        "seed 42, a second draw of B": "seed 42 has {} under that other B",
        "seed 42, one B for all sites": "with one B for all sites it is {}",
    }.items():
        assert words.format(f"{h[name]:.1e}".replace("e+0", "e")) in page, name
    same = ("seed 42", "seed 42, B ten times larger", "seed 42, B ten times smaller")
    scaled = [row[1:] for row in rows[2:] if row[0] in same]
    assert len(scaled) == 3
    assert scaled[0] == scaled[1] == scaled[2]
