"""Each rule against its ablation: known records, gains by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from made_runs import write_run
from walkback.audit.records import read_records
from walkback.replication.tables import evidence
from walkback.replication.tables.rule_ablations import TAKEN
from walkback.training.spec import RunSpec

COSINE = (0.5, 0.4, 0.3, 0.2, 1.0)


def store(folder: Path, gain: float, cosine: float = 0.0, seeds=(42, 123)) -> None:
    """Runs whose accuracy falls by `gain` and whose cosines fall by `cosine` once ablated."""
    for rule, (options, _) in TAKEN.items():
        for seed in seeds:
            write_run(folder, RunSpec(rule=rule, epochs=3, seed=seed), 0.5, cosine=COSINE)
            less = tuple(c - cosine for c in COSINE)
            write_run(folder, RunSpec(rule=rule, rule_options=options, epochs=3, seed=seed), 0.5 - gain, cosine=less)


@pytest.mark.parametrize(
    ("gain", "cosine", "beats"), [(0.021, 0.0, "yes"), (0.019, 0.0, "no"), (0.0, 0.051, "yes"), (0.0, 0.049, "no")]
)
def test_a_rule_beats_its_ablation_by_the_stated_margin(tmp_path: Path, gain: float, cosine: float, beats: str) -> None:
    store(tmp_path, gain, cosine)
    table = evidence("rule-ablations", read_records(tmp_path))
    assert {row[-1] for row in table.rows} == {beats}
    by_rule = {row[0]: row for row in table.rows}
    assert by_rule["DFA"][5].startswith("+0.475")  # (0.4 + 0.3 + 0.2 + 1.0) / 4
    assert by_rule["FA"][5].startswith("+0.300")  # its last site is exact: (0.4 + 0.3 + 0.2) / 3
    assert by_rule["EP"][7] == f"{100 * gain:+.1f}"
    assert len(table.missing) == 2 * len(TAKEN)  # seed 456 of both


def test_one_seed_that_does_not_gain_is_enough_for_a_no(tmp_path: Path) -> None:
    store(tmp_path, 0.1, seeds=(42,))
    for rule, (options, _) in TAKEN.items():
        for given in ({}, options):
            write_run(tmp_path, RunSpec(rule=rule, rule_options=given, epochs=3, seed=123), 0.5, cosine=COSINE)
    assert {row[-1] for row in evidence("rule-ablations", read_records(tmp_path)).rows} == {"no"}


def test_without_runs_everything_is_missing(tmp_path: Path) -> None:
    table = evidence("rule-ablations", read_records(tmp_path))
    assert {row[-1] for row in table.rows} == {"–"}
    assert len(table.missing) == 10
