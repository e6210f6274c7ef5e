"""The runs behind results/left-open.md differ in what their names say, and the page says what the table says."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import left_open
import walkback as wb
from places import ROOT
from walkback.audit.plans import RULE_OPTIONS
from walkback.audit.records import Record, Records, read_records
from walkback.audit.settings import Judged, Setting, judged
from walkback.replication.tables import TABLES, evidence
from walkback.replication.tables.audits import NO_NORM, WIDE_SHALLOW
from walkback.replication.tables.courses import first_epochs
from walkback.report.table import number
from walkback.training.control import control_spec
from walkback.training.spec import RunSpec
from walkback.verdict.checks import DiagnosticThresholds


def test_the_networks_are_what_their_names_say() -> None:
    torch.manual_seed(0)
    assert all(type(block.act) is nn.ReLU for block in left_open.with_relu((3, 32, 32), 10).blocks)
    net = left_open.after_he((3, 32, 32), 10)
    assert net.embed[1].weight.std().item() == pytest.approx((2 / 3072) ** 0.5, rel=0.02)
    usual = wb.nets.build("resmlp", (3, 32, 32), 10).embed[1].weight  # uniform, variance 1/(3 fan-in)
    assert (net.embed[1].weight.std() / usual.std()).item() == pytest.approx(6**0.5, rel=0.02)
    assert not any(module.bias.any() for module in net.modules() if isinstance(module, nn.Linear))


def test_every_run_differs_from_the_first_in_what_is_said() -> None:
    base = left_open.spec().model_dump()
    found = {
        name: {key for key, value in left_open.spec(**fields).model_dump().items() if value != base[key]}
        for name, fields in left_open.RUNS.items()
    }
    assert found["ours, plain"] == set()
    assert found["flips and crops"] == {"augment"}
    assert found["expansion 4"] == {"net_options"}
    assert found["a block gets the credit of the site it reads"] == {"credit_site"}
    assert found["credit of unit length"] == {"rule_options"}
    assert found["credit of the site it reads, of unit length"] == {"credit_site", "rule_options"}
    assert found["the same, flips and crops"] == {"credit_site", "rule_options", "augment"}
    assert len({str(left_open.spec(**fields)) for fields in left_open.RUNS.values()}) == len(found)


def test_the_norm_of_a_mean_loss_shrinks_with_its_batch_alone() -> None:
    net = wb.nets.build("resmlp", (8,), 3, width=16, depth=2).eval()
    x, y = torch.randn(1024, 8), torch.randint(3, (1024,))
    small, large = (left_open.of_mean_loss(net, x, y, size) for size in (128, 1024))
    assert small / large == pytest.approx(8, rel=1e-5)
    report = wb.measure(net, list(zip(x.split(256), y.split(256))))
    assert small == pytest.approx(report.g_norm[-1], rel=1e-5), "ours is that of 128 samples, whatever is passed"


def test_the_last_row_is_what_is_published() -> None:
    lines = (ROOT / "results" / "left-open.md").read_text(encoding="utf-8").splitlines()
    (row,) = [line for line in lines if line.startswith("| published")]
    assert [cell.strip() for cell in row.strip("|").split("|")] == left_open.published()


def test_the_page_on_replication_says_what_the_table_says() -> None:
    lines = (ROOT / "results" / "left-open.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    found = {row[0]: dict(zip(cells[0], row)) for row in cells[2:]}
    ours, unit = found["ours, plain"], found["credit of unit length"]
    g = {name: float(row["‖g_L‖ 4"]) for name, row in found.items()}
    assert float(unit["‖h_L‖"]) > 100 * float(ours["‖h_L‖"])
    assert g["ours, plain"] > 200 * g["credit of unit length"]
    assert g["credit of unit length"] < 1e-7
    for name in ("flips and crops", "expansion 4", "ReLU", "initial weights after He"):
        assert 1 / 4 < g[name] / g["ours, plain"] < 4, name
    page = " ".join((ROOT / "docs" / "default-recipe.md").read_text(encoding="utf-8").split())
    reads = found["a block gets the credit of the site it reads"]
    assert f"{reads['site 0']} at site 0 and nothing ({reads['deeper sites'].replace('-', '−')}) deeper" in page


def _augmented(records: Records) -> Iterator[str]:
    """What the page says of the primary audit with augmentation."""

    def three(rule: str, **fields: Any) -> list[Record]:
        found = [records.find(RunSpec(rule=rule, seed=seed, **{"augment": True, **fields})) for seed in (42, 123, 456)]
        assert all(found)
        return found  # type: ignore[return-value]

    def all_of(values: Iterable[float], form: str) -> str:
        return ", ".join(number(v, "norm") if form == "norm" else f"{v:{form}}" for v in values).replace("-0", "−0")

    def mean(values: Iterable[float]) -> float:
        return statistics.fmean(values)

    bp, fa, dfa = (three(rule) for rule in ("bp", "fa", "dfa"))
    own, by_bp = three("dfa", scope="frozen"), three("bp", scope="frozen")
    yield "Seeds 42, 123, 456: ‖h_L‖ " + all_of((r.measurements.h_norm[-1] for r in dfa), "norm")
    yield "‖g_L‖ " + ", ".join(number(r.measurements.g_norm[-1], "norm") for r in dfa) + "; ρ"
    yield "ρ " + all_of((r.measurements.growth for r in dfa), ".0f") + "; accuracy"
    gains = [f"{100 * (a.accuracy - b.accuracy):+.1f}".replace("-", "−") for a, b in zip(dfa, own)]
    yield f"accuracy {all_of((r.accuracy for r in dfa), '.3f')}, that is {', '.join(gains)} pp against"
    yield f"all three lose, by {100 * mean(b.accuracy - a.accuracy for a, b in zip(dfa, by_bp)):.1f} pp on average"
    yield f"with augmentation {mean(r.measurements.gamma for r in dfa):.2f}; published 0.10"
    yield f"first epoch's is chance ({dfa[2].epochs[1][2].deep_cosine:+.3f})"
    plain = three("fa", augment=False), three("fa", augment=False, scope="frozen")
    yield f"without augmentation ({100 * mean(a.accuracy - b.accuracy for a, b in zip(*plain)):+.1f} pp)"
    ours = fa, three("fa", scope="frozen")
    yield f"undecided with it ({100 * mean(a.accuracy - b.accuracy for a, b in zip(*ours)):+.1f} pp"
    stems = [(three("bp", augment=f, scope="frozen"), three("dfa", augment=f, scope="frozen")) for f in (False, True)]
    apart = [100 * mean(a.accuracy - b.accuracy for a, b in zip(*pair)) for pair in stems]
    yield f"by {apart[0]:.1f} pp (frozen, DFA stem"
    yield f"by {apart[1]:.1f} pp with augmentation"
    norms = [number(mean(getattr(r.measurements, name)[-1] for r in bp), "norm") for name in ("h_norm", "g_norm")]
    yield f"accuracy {mean(r.accuracy for r in bp):.3f}, ‖h_L‖ {norms[0]}, ‖g_L‖ {norms[1]}; published 0.615"
    for rule, acc, gamma in (("state-bridge", 0.205, 0.005), ("credit-bridge", 0.289, 0.07)):
        bridge, frozen = three(rule, augment=False), three(rule, augment=False, scope="frozen")
        gain = 100 * mean(a.accuracy - b.accuracy for a, b in zip(bridge, frozen))
        yield (
            f"accuracy {mean(r.accuracy for r in bridge):.3f} (published {acc}), "
            f"Γ {mean(r.measurements.gamma for r in bridge):+.2f} ({gamma}), "
            f"‖h_L‖ {number(mean(r.measurements.h_norm[-1] for r in bridge), 'norm')} (1e8), {gain:+.0f} pp over"
        )
    steps = {"augment": False, "rule_options": RULE_OPTIONS["ep"]}
    ep, frozen = three("ep", **steps), three("ep", scope="frozen", **steps)
    gains = 100 * mean(a.accuracy - b.accuracy for a, b in zip(ep, frozen))
    yield f"Accuracy {mean(r.accuracy for r in ep):.3f} (published 0.316), {gains:+.1f} pp against".replace("-", "−")
    best = [max((acc, epoch) for epoch, acc, _ in r.epochs) for r in ep]
    yield f"had reached {all_of((acc for acc, _ in best), '.3f')} by epoch {all_of((e for _, e in best), '.0f')}"
    yield f"they end with {all_of((r.accuracy for r in ep), '.3f')}"
    *silent, last = (max(e for e, _, at in r.epochs if any(c is not None for c in at.cosine)) for r in ep)
    yield f"from epoch {silent[0] + 1} (seed 42) and {silent[1] + 1} (seed 123) on the credit is exactly zero"
    assert last == 100, "the credit of seed 456 survives"
    yield f"close to its own ({mean(r.accuracy for r in own):.3f}; 0.349)"


def _of(records: Records, rule: str, **fields: Any) -> Judged:
    """A setting over its three seeds."""
    found = judged(records, Setting(rule, **fields))
    assert len(found.runs) == 3
    return found


def _over(found: Judged, what: str) -> float:
    value = found.stat(what)
    assert value is not None
    return value.mean


def _penalties(records: Records) -> Iterator[str]:
    """What the page says of 30 epochs with the penalty."""

    def at(rule: str, penalty: float) -> Judged:
        return _of(records, rule, penalty=penalty, epochs=30, augment=True)

    dfa = {penalty: at("dfa", penalty) for penalty in (0.0, 1e-4, 1e-3, 1e-2, 1e-1)}
    lengths = {penalty: _over(j, "h_norm") for penalty, j in dfa.items()}
    largest = max(v for penalty, v in lengths.items() if penalty)
    yield f"‖h_L‖ from {number(lengths[0.0], 'norm')} to {number(largest, 'norm')} or less"
    cosines = [f"{_over(j, 'deep_cosine'):+.2f}" for j in dfa.values()]
    yield f"deep cosine is {cosines[0]} without it, {cosines[1]} at 1e-4 (published −0.02), {cosines[2]} at 1e-3, "
    yield f"{cosines[3]} at 0.01 (0.15) and {cosines[4]} at 0.1 (0.13)"
    gains = {penalty: j.depth for penalty, j in dfa.items()}
    worth = [f"{round(gains[p].value, 1) + 0.0:.1f}" for p in (1e-4, 1e-3, 1e-2, 1e-1)]  # type: ignore[union-attr]
    yield f"blocks are worth {worth[0]} pp at 1e-4, {worth[1]} at 1e-3 (2.3), {worth[2]} at 0.01 and {worth[3]} at 0.1"
    assert [gains[penalty].flagged for penalty in (1e-4, 1e-3, 1e-2, 1e-1)] == [False, False, True, True]  # type: ignore[union-attr]
    assert not any(dfa[0.0].flagged("reference")), "still above the floor of D2"
    fa = [f"{_over(at('fa', penalty), 'deep_cosine'):+.2f}" for penalty in (0.0, 1e-2)]
    yield f"FA's falls from {fa[0]} to {fa[1]} at 0.01 (published 0.33 to 0.42)"
    cost = 100 * (_over(at("bp", 0.0), "acc") - _over(at("bp", 1e-2), "acc"))
    yield f"BP loses {cost:.1f} pp to λ = 0.01 (published 5.3)"
    matched = {rule: at(rule, 1e-2) for rule in ("state-bridge", "fa", "credit-bridge", "dfa")}
    best = {what: max(matched, key=lambda r: sign * _over(matched[r], what)) for what, sign in
            (("deep_cosine", 1), ("acc", 1), ("nudging", -1))}  # fmt: skip
    assert best == {"deep_cosine": "credit-bridge", "acc": "state-bridge", "nudging": "state-bridge"}
    stems = [_over(_of(records, r, scope="frozen", epochs=30, augment=True), "acc") for r in ("dfa", "bp")]
    yield f"After 30 epochs with augmentation the two are equal ({stems[0]:.3f} and {stems[1]:.3f})"


def _others(records: Records) -> Iterator[str]:
    """What the page says of FA site by site, of when (b) fires, and of StudentNet."""
    for augment, words in ((True, "cosines of {} at sites 0 to 3"), (False, "(without augmentation {})")):
        runs = _of(records, "fa", augment=augment).runs
        sites = [statistics.fmean(run.measurements.cosine[site] for run in runs) for site in range(4)]  # type: ignore[misc]
        yield words.format(", ".join(f"{c:+.2f}" for c in sites))
    flags = [_of(records, "fa", augment=augment) for augment in (True, False)]
    assert not any(any(j.flagged("growth")) for j in flags), "D1 of FA"
    rho, norms = ([_over(j, what) for j in flags] for what in ("growth", "g_norm"))
    yield f"ρ is {rho[0]:.0f} and {rho[1]:.0f} (published: D1 flags)"
    yield f"‖g_L‖ {number(norms[0], 'norm')} and {number(norms[1], 'norm')} (9e-7)"
    large = DiagnosticThresholds(g_norm_floor=8e-7)
    early = {augment: [first_epochs(run)["a"] for run in _of(records, "dfa", augment=augment).runs]
             for augment in (True, False)}  # fmt: skip
    spans = [f"{min(early[augment])} to {max(early[augment])}" for augment in (True, False)]  # type: ignore[type-var]
    yield f"(a) fires at {spans[0]} and at {spans[1]} (8 to 11)"
    fires = {augment: [first_epochs(run, large)["b"] for run in _of(records, "dfa", augment=augment).runs]
             for augment in (True, False)}  # fmt: skip
    yield (
        f"at epochs {min(fires[True])} to {max(fires[True])} with augmentation and {min(fires[False])} to "  # type: ignore[type-var]
        f"{max(fires[False])} without (published 3 to 4)"  # type: ignore[type-var]
    )
    student = {rule: _of(records, rule, net="student", data="teacher-linear") for rule in ("bp", "fa", "dfa")}
    growth = {rule: [run.measurements.growth for run in j.runs] for rule, j in student.items()}
    yield f"DFA's ρ ends at {min(growth['dfa']):.1f} to {max(growth['dfa']):.1f} (published above 90"  # type: ignore[type-var]
    assert not any(at.growth > 50 for run in student["dfa"].runs for _, _, at in run.epochs)
    yield f"FA's at {min(growth['fa']):.1f} to {max(growth['fa']):.1f}"  # type: ignore[type-var]
    stems = ("bp", "dfa")
    frozen = [_over(_of(records, s, net="student", data="teacher-linear", scope="frozen"), "acc") for s in stems]
    best = max(_over(j, "acc") for j in student.values())
    yield f"BP reaches {_over(student['bp'], 'acc'):.3f} (0.796)"
    yield f"frozen blocks {frozen[0]:.3f} with a BP-trained stem and {frozen[1]:.3f} with a DFA-trained one (0.908, "
    assert best < min(frozen), "more than any rule that trains them"


def _without_norm(records: Records) -> Iterator[str]:
    """What the page says of the network without its terminal norm."""
    found = {rule: _of(records, rule, net_options=NO_NORM, augment=True) for rule in ("bp", "fa", "dfa")}
    for rule, words in (("dfa", "(published 1e7), ρ"), ("fa", "(1e7), ρ")):
        yield f"‖h_L‖ {number(_over(found[rule], 'h_norm'), 'norm')} {words} {_over(found[rule], 'growth'):.2f}"
    for rule, name in (("dfa", "DFA"), ("fa", "FA"), ("bp", "BP")):
        depth = found[rule].depth
        assert depth is not None
        word = "undecided" if rule == "fa" else "passes"
        assert {found[rule].word(edition) for edition in ("three-check", "four-diagnostic")} == {word}
        yield f"{name} {_over(found[rule], 'acc'):.3f}, {depth.value:+.1f} pp"
    *others, last = (run.accuracy for run in found["fa"].runs)
    yield f"its seed 456 ends {100 * (min(others) - last):.0f} pp or more under the others"
    behind = [found[rule].depth_bp for rule in ("dfa", "fa")]
    yield f"with a BP-trained stem are {-behind[0].value:.1f} and {-behind[1].value:.1f} pp better"  # type: ignore[union-attr]
    assert all(d is not None and d.flagged is None for d in behind), "three seeds do not decide it"
    normed = _of(records, "dfa", augment=True)
    yield f"With the norm DFA has {_over(normed, 'acc'):.3f} and {number(_over(normed, 'h_norm'), 'norm')}"


def _rows(name: str, **cells: str) -> list[dict[str, str]]:
    """The rows of a table in results with these cells."""
    lines = (ROOT / "results" / "tables" / f"{name}.md").read_text(encoding="utf-8").splitlines()
    head, _, *body = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("|")]
    found = [dict(zip(head, row, strict=True)) for row in body]
    return [row for row in found if all(row[key.replace("_", " ")] == value for key, value in cells.items())]


def _one(name: str, **cells: str) -> dict[str, str]:
    (row,) = _rows(name, **cells)
    return row


def _tables() -> Iterator[str]:
    """What the page says of thresholds, weights, sub-modes, rankings and controls, from the tables it links to."""
    augmented, plain = "ours, augmented", "ours, plain"
    gaps = {f: {c: _one("sensitivity", runs="primary", figures=f, check=c) for c in ("(a)", "(b)", "D2")}
            for f in (augmented, plain)}  # fmt: skip
    held = [f"{gaps[f]['D2']['verdicts hold from']} to {gaps[f]['D2']['to']}" for f in (plain, augmented)]
    yield f"hold from {held[0]} only, with augmentation from {held[1]}"
    a, b = (gaps[augmented][c]["gap"] for c in ("(a)", "(b)"))
    yield f"a factor of {a} in ρ and {b} in ‖g_L‖ with augmentation (published 63 and 24,338)"
    yield f"Without it a factor of {gaps[plain]['(a)']['gap']} in ρ is left"
    assert float(gaps[plain]["(b)"]["gap"]) < 1
    assert "EP" in gaps[plain]["(b)"]["healthiest failure"]
    last = [_one("mechanism", rule="DFA", figures=f, epoch="100") for f in (augmented, plain)]
    moved, products = ([row[what].split(" ± ")[0] for row in last] for what in ("weights", "product"))
    yield f"move by {float(moved[0]):.0f} times their initial norm (published 95 to 200), without augmentation by "
    yield f"augmentation by {float(moved[1]):.0f} times, and the product of a block's two norms reaches"
    yield f"{products[0]} and {products[1]} (5e4)"
    first, *others = last[0]["product by block"].split(", ")
    yield f"explodes: {first}, and {others[0]} in each of the others"
    assert len(set(others)) == 1
    failing = [row for row in _rows("sub-modes") if "flags" in (row["(a)"], row["(b)"])]
    assert {row["sub-mode"] for row in failing} == {"noise-dominated"}
    stable = [float(row["stability"]) for row in failing]
    yield f"with a stability of {min(stable):+.2f} to {max(stable):+.2f}"
    drift = _one("temporal", network="ResMLP d=256 L=4", rule="DFA", figures=augmented)["(c) beside (a) or (b)"]
    yield f"(c) flags first at epochs {drift.replace('–', ' to ')}, on all three seeds"
    effect = _one("capacity", rule="DFA", quantity="effect of the penalty, pp")["ours"]
    gain, left = (value.split(" ± ")[0].lstrip("+") for value in (effect, _one("capacity", rule="BP − DFA")["ours"]))
    yield f"DFA gains {gain} (5.9), and {left} pp between the two are left"
    tau = _one("matched-penalty", rule="τ with the cosine", figures=augmented)
    yield f"{tau['acc']} for accuracy (published -0.18), {tau['nudge']} for nudging (+0.33)"
    yield f"(+0.33) and {tau['Δ train loss']} for the training loss (0.00)"
    rows = {
        r: _one("matched-penalty", rule=r, figures=augmented) for r in ("State Bridge", "Credit Bridge", "FA", "DFA")
    }
    said = {r: _one("matched-penalty", rule=r, figures="published") for r in rows}
    cosine, acc = ({r: rows[r][what].split(" ± ")[0] for r in rows} for what in ("deep cos", "acc"))
    yield f"State Bridge's {cosine['State Bridge']} (0.322) and Credit Bridge's {cosine['Credit Bridge']} (0.679)"
    yield f"their accuracies {acc['State Bridge']} (0.453) and {acc['Credit Bridge']} (0.360)"
    yield f"far lower, {cosine['FA']} (0.423)"
    less = [float(said[r]["nudge"].split()[0]) / float(rows[r]["nudge"].split()[0]) for r in rows]
    yield f"{min(less):.1f} to {max(less):.0f} times less than published"
    fresh = [row["σ apart"] for row in _rows("fresh-feedback", rule="DFA", λ="0.01", quantity="deep cos")]
    yield f"{min(map(float, fresh))} to {max(map(float, fresh))} standard deviations from that of 20 fresh draws (9.3)"
    pert = {row["condition"]: row["ρ_pert"].split(" ± ")[0] for row in _rows("triangulation", figures=augmented)}
    yield f"{pert['DFA, 100 epochs']} after 100 epochs (published +0.002)"
    yield f"(published +0.002) and {pert['DFA, λ = 0.01, 30 epochs']} under the penalty (0.080)"
    yield f"{pert['BP gradient on a BP network']} for BP's gradient"
    yield f"and {pert['random vector on a BP network']} for random vectors"


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_in_results_are_those_of_the_records(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    made = evidence(name, _results()).to_markdown()
    assert (ROOT / "results" / "tables" / f"{name}.md").read_text(encoding="utf-8").strip() == made.strip()


@cache
def _results() -> Records:
    return read_records("results")


def _wide_shallow(records: Records) -> Iterator[str]:
    """What the page says of d=512 L=2."""
    found = {r: _of(records, r, net_options=WIDE_SHALLOW, augment=True) for r in ("bp", "fa", "dfa")}
    acc = {rule: f"{_over(j, 'acc'):.3f}" for rule, j in found.items()}
    gain = {rule: f"{j.depth.value:+.1f} pp" for rule, j in found.items()}  # type: ignore[union-attr]
    dfa = found["dfa"]
    h, g = (number(_over(dfa, what), "norm") for what in ("h_norm", "g_norm"))
    yield f"accuracy {acc['dfa']} (published 0.297), {gain['dfa']} against its control (-5.2), ‖h_L‖ {h}, ‖g_L‖ {g}"
    yield f"ρ {_over(dfa, 'growth'):.0f}, and all three checks walk back every seed"
    assert dfa.failed("three-check") == {"D1": 3, "D2": 3, "D3": 3}
    first = {check: [first_epochs(run)[check] for run in dfa.runs] for check in "ab"}
    assert len(set(first["a"])) == 1
    yield f"(a) fires at epoch {first['a'][0]}, (b) at {min(first['b'])} to {max(first['b'])}"  # type: ignore[type-var]
    sites = [statistics.fmean(run.measurements.cosine[site] for run in dfa.runs) for site in (0, 1)]  # type: ignore[misc]
    yield f"{_over(dfa, 'gamma'):+.2f} (0.19), with {sites[0]:+.2f} at site 0 and {sites[1]:+.2f} at site 1"
    yield f"BP has {acc['bp']} (0.607)"
    yield f"{acc['fa']} (0.345), Γ {_over(found['fa'], 'gamma'):+.2f} (0.48), {gain['fa']} over its control (-0.4)"
    by_bp = found["fa"].depth_bp
    assert by_bp is not None
    yield f"{by_bp.value:+.1f} pp over the one with a BP-trained stem, which would walk it back"
    assert by_bp.flagged
    assert found["fa"].word("three-check") == "undecided"
    yield "Over its seeds it is undecided"
    assert found["fa"].failed("four-diagnostic") == {}
    assert "a" in found["fa"].verdicts["four-diagnostic"][2].failed
    growth = found["fa"].runs[2].measurements.growth
    yield f"ρ of seed 456 ends at {growth:.0f}, which the four diagnostics alone would walk back"


def _vit_mini(records: Records) -> Iterator[str]:
    """What the page says of ViT-Mini, one seed, three epochs."""
    found = {r: judged(records, Setting(r, net="vit-mini", epochs=3, augment=True)) for r in ("bp", "fa", "dfa")}
    assert {len(j.runs) for j in found.values()} == {1}, "one seed, says the page"
    assert [first_epochs(j.runs[0])["a"] for j in found.values()] == [None, 1, 1]
    assert [j.failed("three-check") for j in found.values()] == [{}, {}, {"D3": 1}]
    assert found["fa"].word("three-check") == "undecided"
    acc = {rule: f"{_over(j, 'acc'):.3f}" for rule, j in found.items()}
    gains = {r: [f"{d.value:+.1f}" for d in (j.depth, j.depth_bp)] for r, j in found.items()}  # type: ignore[union-attr]
    h, g = (number(_over(found["dfa"], what), "norm") for what in ("h_norm", "g_norm"))
    frozen = _over(judged(records, Setting("bp", net="vit-mini", epochs=3, augment=True, scope="frozen")), "acc")
    yield (
        f"‖h_L‖ {h}, ‖g_L‖ {g}, accuracy {acc['dfa']} (0.256), {gains['dfa'][0]} pp against its control and "
        f"{gains['dfa'][1]} against the one with a BP-trained stem ({frozen:.3f})"
    )
    yield f"FA has {acc['fa']} (0.163), ‖g_L‖ {number(_over(found['fa'], 'g_norm'), 'norm')} and {gains['fa'][0]} pp"
    yield f"decides nothing, and {gains['fa'][1]} pp against the stronger one"
    assert max(c for rule in ("fa", "dfa") for c in found[rule].runs[0].measurements.cosine[:-1]) < 0.03  # type: ignore[type-var]
    yield f"BP has {acc['bp']}, {gains['bp'][0]} pp"


def _small_cnn(records: Records) -> Iterator[str]:
    """What the page says of SmallCNN, one seed."""
    found = {rule: judged(records, Setting(rule, net="small-cnn", epochs=10, augment=True)) for rule in RULE_OPTIONS}
    assert {len(j.runs) for j in found.values()} == {1}, "one seed, says the page"
    rows = [at for j in found.values() for _, _, at in j.runs[0].epochs]
    yield f"No rule's ρ passes {math.ceil(10 * max(at.growth for at in rows)) / 10} in any epoch"
    yield f"‖g_L‖ never falls below {number(min(at.g_norm[-1] for at in rows), 'norm')} (published: (b) fires on none)"
    for j in found.values():
        assert {j.word(edition) for edition in ("three-check", "four-diagnostic")} == {"passes"}
        assert j.depth_bp is not None
        assert not j.depth_bp.flagged
    gain = {rule: f"{found[rule].depth.value:+.1f}" for rule in found}  # type: ignore[union-attr]
    yield f"BP {gain['bp']} pp over its own, FA {gain['fa']}, EP {gain['ep']}, DFA {gain['dfa']}, Credit Bridge"
    yield f"Credit Bridge {gain['credit-bridge']}, State Bridge {gain['state-bridge']}."


def test_the_page_on_float64_says_what_the_records_of_studentnet_say() -> None:
    page = " ".join((ROOT / "docs" / "intrinsic.md").read_text(encoding="utf-8").split())
    records = _results()

    def off(rule: str, scope: str = "all") -> list[float]:
        runs = _of(records, rule, net="student", data="teacher-linear", scope=scope).runs
        assert min(run.measurements.g_norm[-1] for run in runs) > 5e-4, "the published D2 passes them"
        return [run.report.values["cosine_error"] for run in runs]

    trained = {rule: off(rule) for rule in ("bp", "fa", "dfa")}
    limit = DiagnosticThresholds().cosine_error_limit
    assert min(map(min, trained.values())) > limit
    assert [min(off(rule, "frozen")) > limit for rule in ("bp", "fa", "dfa")] == [True, False, False]
    spans = {rule: f"{min(found):.2f} to {max(found):.2f}" for rule, found in trained.items()}
    assert f"off by 0.09 (BP), {spans['fa']} (FA) and {spans['dfa']} (DFA)" in page
    assert spans["bp"] == "0.09 to 0.09"


def test_the_page_on_replication_says_what_the_records_say() -> None:
    """Its sentences on unit length and on the primary audit, from the runs: another record, another sentence."""
    page = " ".join((ROOT / "docs" / "default-recipe.md").read_text(encoding="utf-8").split())
    records = _results()
    unit = RunSpec(rule="dfa", rule_options={"unit": True}, credit_site="reader", augment=True)
    runs = {
        "unit": records.find(unit),
        "frozen": records.find(control_spec(unit)),
    }
    assert all(runs.values())
    m = {name: run.measurements for name, run in runs.items()}
    acc = {name: f"{run.accuracy:.3f}" for name, run in runs.items()}
    moved = [w for block in runs["unit"].report.run["weight_growth"] for w in block]
    first = next(epoch for epoch, _, at in runs["unit"].epochs if at.growth > 50)
    norms = {name: [number(x.h_norm[-1], "norm"), number(x.g_norm[-1], "norm")] for name, x in m.items()}
    for words in (
        f"accuracy {acc['unit']} (0.306), its frozen control {acc['frozen']} (0.349)",
        f"Γ {m['unit'].gamma:+.3f} (0.10, 0.106) with {m['unit'].cosine[0]:+.2f} (0.42) at site 0",
        f"‖h_L‖ {norms['unit'][0]} (4e8), weights",
        f"What does not: ‖g_L‖ {norms['unit'][1]} (4e-9)",
        f"moved by {min(moved):.0f} to {max(moved):.0f} times",
        f"ρ {m['unit'].growth:,.0f} (237), stability {m['unit'].stability:.2f}",
        f"D1 flags from epoch {first} (8 to 11)",
        *_augmented(records),
        *_penalties(records),
        *_others(records),
        *_without_norm(records),
        *_small_cnn(records),
        *_vit_mini(records),
        *_wide_shallow(records),
        *_tables(),
    ):
        assert words.replace("−", "-") in page.replace("−", "-"), words
    assert max(abs(c) for c in m["unit"].cosine[1:]) < 0.02, "nothing deeper"


def test_the_shares_of_draws_are_those_of_their_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    made = evidence("feedback-draws", read_records(ROOT / "evidence/draws"))
    assert (ROOT / "evidence/feedback-draws.md").read_text(encoding="utf-8").strip() == made.to_markdown().strip()
    assert {row["n"] for row in made.data} == {18}
