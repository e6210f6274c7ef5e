"""What is published in words: each figure by hand on made records, and both ways it can come out."""

from __future__ import annotations

from pathlib import Path

import pytest

from made_runs import EXPLODED, HEALTHY, write_run
from made_store import edit
from walkback.audit.plans import RULE_OPTIONS
from walkback.audit.records import Records, read_records
from walkback.audit.settings import RULES
from walkback.replication.in_words import beside_no_table
from walkback.replication.published import FIGURES
from walkback.report.table import Cell
from walkback.training.spec import RunSpec

DFA = RunSpec(rule="dfa", augment=True)


def said(records: Records) -> dict[tuple[str, str, str, float], tuple[str, object]]:
    """Return (where, rule, quantity, λ) -> the cell, and what is compared."""
    return {
        (f.where, f.rule, f.what, f.penalty): (pair.cell.text if isinstance(pair.cell, Cell) else pair.cell, pair.value)
        for pair in beside_no_table(records)
        for f in pair.printed
    }


def test_without_runs_nothing_is_said(tmp_path: Path) -> None:
    assert {value for _, value in said(Records(tmp_path)).values()} == {None}
    assert {text for text, _ in said(Records(tmp_path)).values()} == {"–"}


def test_orders_of_magnitude_are_ratios_of_the_first_and_the_last(tmp_path: Path) -> None:
    write_run(tmp_path, DFA, 0.3, at=lambda epoch: HEALTHY if epoch == 0 else {}, **EXPLODED)
    write_run(tmp_path, RunSpec(augment=True), 0.6, **HEALTHY)
    records = read_records(tmp_path)
    (dfa,) = [run for run in records if run.spec == DFA]
    (bp,) = [run for run in records if run.spec != DFA]
    found, (_, _, first), m = said(records), dfa.epochs[0], dfa.measurements
    for key, by_hand in {
        ("mechanism", "dfa", "change.h_norm", 0.0): m.h_norm[-1] / first.h_norm[-1],
        ("mechanism", "dfa", "change.g_norm", 0.0): m.g_norm[-1] / first.g_norm[-1],
        ("primary", "dfa", "change.g_norm_against_bp", 0.0): m.g_norm[-1] / bp.measurements.g_norm[-1],
        ("per-layer", "dfa", "change.g_norm_after_site_0", 0.0): m.g_norm[1] / m.g_norm[0],
        ("clamp", "dfa", "ratio.distortion", 0.0): 1e-8 / m.g_norm[-1],
    }.items():
        assert found[key][1] == pytest.approx(by_hand)


@pytest.mark.parametrize(
    ("orders", "words"),
    [((0.1, 0.2, -0.05, 0.3), "flips"), ((0.1, 0.2, 0.05, 0.3), "does not flip")],
)
def test_the_sign_flips_where_two_orders_differ_in_it(tmp_path: Path, orders, words) -> None:
    write_run(tmp_path, DFA, 0.3, **HEALTHY)
    names = ("layers", "samples", "batches", "flattened")
    edit(tmp_path / DFA.name, aggregates=dict(zip(names, orders)))
    found = said(read_records(tmp_path))
    assert found["aggregation", "dfa", "flag.sign", 0.0] == (words, words)
    assert found["aggregation", "dfa", "count.orders", 0.0] == ("4", None), "shown, not compared"
    assert found["aggregation", "dfa", "gamma.orders", 0.0] == (f"{min(orders):+.3f}…{max(orders):+.3f}", None)


@pytest.mark.parametrize(
    ("cosine", "words"),
    [
        ((0.9, 0.0, 0.0, 0.0, 0.5), "dominated by one end"),
        ((0.0, 0.0, 0.0, 0.9, 0.5), "dominated by one end"),
        ((0.0, 0.9, 0.0, 0.0, 0.5), "spread over sites"),
        ((0.3, 0.3, 0.3, 0.3, 0.5), "spread over sites"),
    ],
)
def test_an_aggregate_is_dominated_by_one_end_or_not(tmp_path: Path, cosine, words) -> None:
    write_run(tmp_path, DFA, 0.3, **{**HEALTHY, "cosine": cosine})
    assert said(read_records(tmp_path))["per-layer", "dfa", "flag.aggregate", 0.0][1] == words


@pytest.mark.parametrize(("g", "word"), [(1e-9, "degenerate"), (1e-4, "meaningful")])
def test_the_regime_is_that_of_the_reference(tmp_path: Path, g: float, word: str) -> None:
    for epochs, penalty in ((100, 0.0), (30, 0.0), (30, 0.01)):
        spec = RunSpec(rule="dfa", augment=True, epochs=epochs, penalty=penalty)
        write_run(tmp_path, spec, 0.3, **{**HEALTHY, "g": (g,) * 5})
    found = said(read_records(tmp_path))
    for key in ("converged", "penalised"):
        assert found["two-modes", "dfa", f"flag.regime_{key}", 0.0][1] == word
    assert found["lambda-sweep", "dfa", "flag.measurement", 0.0][1] == word
    flag = {"degenerate": "flags", "meaningful": "ok"}[word]
    assert found["lambda-sweep", "dfa", "flag.reference", 0.01][1] == flag


def test_the_deep_cosine_over_three_strengths_has_a_shape(tmp_path: Path) -> None:
    for name, cosines in (("up", (0.0, 0.2, 0.1)), ("on", (0.0, 0.1, 0.2))):
        for penalty, deep in zip((1e-4, 1e-2, 1e-1), cosines):
            spec = RunSpec(rule="dfa", augment=True, epochs=30, penalty=penalty)
            write_run(tmp_path / name, spec, 0.3, **{**HEALTHY, "cosine": (0.4, *(deep,) * 4)})
    shapes = [said(read_records(tmp_path / name))["lambda-sweep", "dfa", "flag.shape", 0.0][1] for name in ("up", "on")]
    assert shapes == ["inverted U", "no inverted U"]


def test_rankings_are_in_the_words_of_the_documents(tmp_path: Path) -> None:
    deep = {"credit-bridge": 0.7, "fa": 0.4, "state-bridge": 0.3, "dfa": 0.1}
    acc = {"credit-bridge": 0.36, "fa": 0.37, "state-bridge": 0.45, "dfa": 0.36}
    for rule, cosine in deep.items():
        spec = RunSpec(rule=rule, augment=True, epochs=30, penalty=0.01, rule_options=RULE_OPTIONS[rule])
        write_run(tmp_path, spec, acc[rule], **{**HEALTHY, "cosine": (0.4, *(cosine,) * 4)})
    found = said(read_records(tmp_path))
    (published,) = [f.value for f in FIGURES if f.what == "flag.order_cosine"]
    assert found["matched-penalty", "", "flag.order_cosine", 0.0][1] == published
    assert found["matched-penalty", "", "flag.first_acc", 0.0][1] == RULES["state-bridge"]
    assert found["matched-penalty", "state-bridge", "margin.lead", 0.0][0] == "+8.0"


def test_counts_of_rules_are_compared_when_every_one_is_decided(tmp_path: Path) -> None:
    write_run(tmp_path, DFA, 0.3, **EXPLODED)
    found = said(read_records(tmp_path))
    assert found["ablation-four", "", "count.full", 0.0] == ("1 of 1, 4 undecided", None)
    assert found["ablation-four", "", "count.S0", 0.0] == ("0 of 1, 4 undecided", None)
    assert found["ablation-four", "", "count.runs_walked_back", 0.0] == ("1 of 1", None)
    assert found["primary", "dfa", "verdict.status_quo", 0.0][1] == "passes"


def test_a_task_that_frozen_blocks_solve_says_nothing_of_depth(tmp_path: Path) -> None:
    for frozen, word in ((0.91, "uninformative"), (0.70, "informative")):
        student = {"net": "student", "data": "teacher-linear"}
        write_run(tmp_path / word, RunSpec(**student), 0.80, **HEALTHY)
        write_run(tmp_path / word, RunSpec(rule="dfa", scope="frozen", **student), frozen, **HEALTHY)
        assert said(read_records(tmp_path / word))["student", "", "flag.depth", 0.0][1] == word


def grown(epoch: int) -> dict[str, tuple[float, ...]]:
    """‖h_L‖ grows from 10 by one order of magnitude in ten epochs, then by two until the end."""
    exponent = min(epoch, 10) / 10 + 2 * max(epoch - 10, 0) / 90
    return {"h": (1.0, 1.0, 1.0, 1.0, 10 * 10**exponent)}


def test_the_share_of_growth_counts_orders_of_magnitude(tmp_path: Path) -> None:
    write_run(tmp_path, DFA, 0.3, at=grown, **{**HEALTHY, **grown(100)})
    assert said(read_records(tmp_path))["mechanism", "dfa", "share.first_10", 0.0][1] == pytest.approx(1 / 3)


def test_the_course_is_read_at_the_epochs_that_are_published(tmp_path: Path) -> None:
    """(a) fires at epoch 2, (b) at its floor of 8e-7 at epoch 5; accuracy is that of epoch 4, and what comes after."""

    def at(epoch: int) -> dict[str, object]:
        h = EXPLODED["h"] if epoch >= 2 else HEALTHY["h"]
        return {"h": h, "g": (7e-7 if epoch >= 5 else 1e-6,) * 5, "acc": 0.1 + 0.01 * min(epoch, 20)}

    write_run(tmp_path, DFA, 0.3, at=at, **{**EXPLODED, "g": (7e-7,) * 5})
    found = said(read_records(tmp_path))
    assert found["temporal", "dfa", "fired.both", 0.0] == ("5", 5.0)
    assert found["temporal", "dfa", "acc", 0.0][1] == pytest.approx(0.14)
    assert found["temporal", "dfa", "saved", 0.0][1] == pytest.approx(0.98)
    assert found["temporal", "dfa", "margin.after_flag", 0.0][1] == pytest.approx(100 * (0.3 - 0.12))


def test_a_rule_may_change_its_sub_mode_between_seeds(tmp_path: Path) -> None:
    for name, stabilities in (("same", (0.6, 0.7)), ("other", (0.6, 0.01))):
        for seed, stability in zip((42, 123), stabilities):
            spec = RunSpec(rule="dfa", augment=True, seed=seed)
            write_run(tmp_path / name, spec, 0.3, stability=stability, **EXPLODED)
    same, other = (said(read_records(tmp_path / name)) for name in ("same", "other"))
    assert same["sub-modes", "", "flag.by_seed", 0.0][1] == "is the same on all seeds"
    assert other["sub-modes", "", "flag.by_seed", 0.0][1] == "changes between seeds"
    assert same["sub-modes", "", "stability.drift", 0.0] == ("+0.600…+0.700", None)
    assert other["sub-modes", "", "stability.noise", 0.0][1] == pytest.approx(0.01)


def test_a_weak_penalty_may_ease_the_one_mode_alone(tmp_path: Path) -> None:
    for deep, words in ((0.01, "mode 1 alleviated, mode 2 not"), (0.3, "valid reference, aligned credit")):
        spec = RunSpec(rule="dfa", augment=True, epochs=30, penalty=1e-4)
        write_run(tmp_path / words[:6], spec, 0.3, fresh={"deep_cosine": (0.0, 0.01)},
                  **{**HEALTHY, "cosine": (0.4, *(deep,) * 4)})  # fmt: skip
        assert said(read_records(tmp_path / words[:6]))["two-modes", "dfa", "flag.weak", 1e-4][1] == words


def test_cifar100_flags_by_check(tmp_path: Path) -> None:
    write_run(tmp_path, RunSpec(rule="dfa", augment=True, data="cifar100"), 0.09, **EXPLODED)
    found = said(read_records(tmp_path))
    assert [found["cifar100", "dfa", f"flag.{c}", 0.0][1] for c in ("growth", "reference", "depth")] == [
        "flags", "flags", None]  # fmt: skip
