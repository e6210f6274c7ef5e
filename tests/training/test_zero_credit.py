"""A rule that gives a site no credit for a whole epoch is named: while it trains, in its rows and in its report."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import walkback as wb
from places import ROOT
from walkback import rules
from walkback.data import Dataset, Split
from walkback.notes import Note, coded
from walkback.rules.rule import Parts, set_up
from walkback.training import loop
from walkback.training.loop import zero_credit_notes
from walkback.training.spec import RunSpec
from walkback.training.step import LargestCredit, TrainingStep

pytestmark = pytest.mark.usefixtures("few_directions")

DEPTH = 3
FIELDS = {"net_options": {"width": 8, "depth": DEPTH}, "data": "test_zero_credit:task", "epochs": 2}
OPTIMISER = {"batch_size": 32, "weight_decay": 0.0}


def task(n: int = 64) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2 * n, 6, generator=generator)
    y = (x @ torch.randn(6, 4, generator=generator)).argmax(1)
    return Dataset("task", Split(x[:n], y[:n]), Split(x[n:], y[n:]), 4)


def train(out: Path, **fields) -> wb.Bundle:
    return wb.train(RunSpec(**{**FIELDS, "optimiser": OPTIMISER, **fields}), out, data=task())


def warnings(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("warning: ")]


def said(bundle: wb.Bundle) -> list[Note]:
    report = bundle.report()
    assert report is not None
    return coded(report.notes, "zero-credit-epochs")


class Masked(rules.Rule):
    """Credit for samples of class 0 alone, and at site 1 for none."""

    def credits(self, trace):
        first = (trace.labels == 0)[:, None].to(trace.logits.dtype)
        return [trace.grads[-1] * (0.0 if site == 1 else first) for site in range(len(trace.states))]


class OneSample(rules.Rule):
    """Credit for the very first sample it is shown in an epoch, and for no other."""

    def credits(self, trace):
        known = torch.isclose(trace.inputs, task().train.x[0]).all(1)
        return [known[:, None] * torch.full_like(h, 1e-30) for h in trace.states]


class NotANumber(rules.Rule):
    def credits(self, trace):
        return [torch.full_like(h, torch.nan) for h in trace.states]


class Waning(rules.Rule):
    """Loses the credit of one site after the other, from the top, with every epoch of two batches."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, trace):
        self.steps += not isinstance(trace, wb.Trace)  # a step
        return super().forward(trace)

    def credits(self, trace):
        lost = (int(self.steps) - 1) // 2
        return [trace.grads[-1] * (site + lost < len(trace.states)) for site in range(len(trace.states))]


# -- where it is said ----------------------------------------------------------------------------------------------


def test_two_steps_of_ep_are_named_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = train(tmp_path, rule="ep", rule_options={"steps": 2})
    (line,) = warnings(capsys.readouterr().err)  # once, not for every epoch
    assert line.startswith(
        "warning: ep gave zero credit to every sample of epoch 1 at sites 0, 1: what it should train"
    )
    assert "here it needs 4 steps or more" in line
    assert [row["zero_credit_sites"] for row in bundle.trajectory()] == [[0, 1], [0, 1]]
    assert said(bundle) == [Note("zero-credit-epochs", None, {"sites": [0, 1], "epochs": 2, "of": 2})]
    report = bundle.report()
    assert report is not None
    assert "note: the credit was zero for every sample in 2 of 2 epochs of training at sites 0, 1: " in report.details()
    assert report.run["rule"]["zero_credit_sites"] == [0, 1]
    assert report.run["rule"]["steps_needed"] == DEPTH + 1
    # What it says is so: without weight decay, what writes these sites is where it was.
    start = loop.build_net(RunSpec(**FIELDS), task()).state_dict()
    moved = {k.rpartition(".")[0] for k, v in bundle.model().state_dict().items() if not torch.equal(v, start[k])}
    assert {name.partition(".")[2].partition(".")[0] for name in moved if name.startswith("blocks")} == {"1", "2"}
    assert not any(name.startswith("embed") for name in moved)


@pytest.mark.parametrize(
    ("rule", "options"), [("ep", {"steps": DEPTH + 1}), ("dfa", {}), ("fa", {}), ("bp", {}), ("state-bridge", {})]
)
def test_credit_at_every_site_is_not_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rule: str, options: dict
) -> None:
    bundle = train(tmp_path, rule=rule, rule_options=options)
    assert warnings(capsys.readouterr().err) == []
    assert not any("zero_credit_sites" in row for row in bundle.trajectory())
    assert said(bundle) == []
    assert "steps_needed" not in bundle.report().run["rule"]


def test_samples_without_credit_are_not_sites_without_credit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = train(tmp_path, rule="test_zero_credit:Masked")
    assert [row["zero_credit_sites"] for row in bundle.trajectory()] == [[1], [1]]
    (line,) = warnings(capsys.readouterr().err)
    assert "Masked gave zero credit to every sample of epoch 1 at site 1: " in line
    assert "relaxation" not in line


@pytest.mark.parametrize("rule", ["OneSample", "NotANumber"])
def test_one_tiny_credit_in_one_batch_is_credit_and_so_is_nan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rule: str
) -> None:
    bundle = train(tmp_path, rule=f"test_zero_credit:{rule}")
    assert not any("zero_credit_sites" in row for row in bundle.trajectory())
    assert warnings(capsys.readouterr().err) == []


def test_quiet_training_says_nothing_and_writes_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = RunSpec(**FIELDS, rule="ep", rule_options={"steps": 1}, optimiser=OPTIMISER)
    bundle = wb.train(spec, tmp_path, data=task(), quiet=True)
    assert capsys.readouterr().err == ""
    assert [row["zero_credit_sites"] for row in bundle.trajectory()] == [[0, 1, 2], [0, 1, 2]]


# -- only what trains something ------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, DEPTH, DEPTH + 1])
def test_of_frozen_blocks_only_the_stem_counts(tmp_path: Path, steps: int) -> None:
    bundle = train(tmp_path, rule="ep", rule_options={"steps": steps}, scope="frozen")
    expected = [[0], [0]] if steps <= DEPTH else [None, None]
    assert [row.get("zero_credit_sites") for row in bundle.trajectory()] == expected


class OnlyTheTop(rules.Rule):
    def credits(self, trace):
        return [*(torch.zeros_like(h) for h in trace.states[:-1]), trace.grads[-1]]


class AllButTheTop(rules.Rule):
    def credits(self, trace):
        return [*(trace.grads[-1].clone() for _ in trace.states[:-1]), torch.zeros_like(trace.states[-1])]


@pytest.mark.parametrize(
    ("rule", "writer", "reader"), [("OnlyTheTop", [0, 1, 2], [0, 1, 2]), ("AllButTheTop", [3], None)]
)
def test_readers_do_not_use_the_last_site(tmp_path: Path, rule: str, writer, reader) -> None:
    for site, expected in (("writer", writer), ("reader", reader)):
        bundle = train(tmp_path, rule=f"test_zero_credit:{rule}", credit_site=site, epochs=1)
        assert bundle.trajectory()[0].get("zero_credit_sites") == expected


# -- counting ------------------------------------------------------------------------------------------------------


def test_every_new_set_of_sites_is_a_warning_and_each_site_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = train(tmp_path, rule="test_zero_credit:Waning", epochs=3)
    assert [row.get("zero_credit_sites") for row in bundle.trajectory()] == [None, [3], [2, 3]]
    lines = warnings(capsys.readouterr().err)
    assert [line.partition(" at ")[2].partition(":")[0] for line in lines] == ["site 3", "sites 2, 3"]
    assert [note.values for note in said(bundle)] == [
        {"sites": [3], "epochs": 2, "of": 3},
        {"sites": [2], "epochs": 1, "of": 3},
    ]


def test_a_run_that_was_stopped_counts_and_warns_as_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {"rule": "test_zero_credit:Waning", "epochs": 4}
    whole = train(tmp_path / "whole", **fields)
    expected = warnings(capsys.readouterr().err)
    assert len(expected) == 3
    with monkeypatch.context() as patch:
        patch.setattr(loop, "_progress", _stop)
        for _ in range(4):
            with pytest.raises(KeyboardInterrupt):
                train(tmp_path / "stopped", **fields)
    stopped = train(tmp_path / "stopped", **fields)
    assert warnings(capsys.readouterr().err) == expected
    for name in ("trajectory.jsonl", "report.json", "weights.safetensors"):
        assert (stopped.path / name).read_bytes() == (whole.path / name).read_bytes()


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


def test_notes_are_counted_from_the_rows() -> None:
    def rows(*sites: list[int]) -> list[dict]:
        told = ({"zero_credit_sites": s} if s else {} for s in sites)
        return [{"epoch": 0}, *({"epoch": i, **more} for i, more in enumerate(told, 1))]

    assert zero_credit_notes(rows([], [])) == []
    assert zero_credit_notes(rows([0, 1], [0, 1])) == [
        Note("zero-credit-epochs", None, {"sites": [0, 1], "epochs": 2, "of": 2})
    ]
    found = zero_credit_notes(rows([0, 2], [0], [], [0, 2, 3]))
    assert [note.values for note in found] == [
        {"sites": [0], "epochs": 3, "of": 4},
        {"sites": [2], "epochs": 2, "of": 4},
        {"sites": [3], "epochs": 1, "of": 4},
    ]
    assert json.loads(json.dumps([dict(note.values) for note in found]))[0]["sites"] == [0]
    assert found[0].text.startswith("the credit was zero for every sample in 3 of 4 epochs of training at site 0: ")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_the_largest_credit_against_a_count_of_what_is_not_zero(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    largest, counted = LargestCredit(), torch.zeros(6, dtype=torch.long)
    assert largest.zero_sites() == []
    for _ in range(4):
        keep = torch.rand(6, 5, 2, 3, generator=generator) < 0.007
        credits = list((torch.randn(6, 5, 2, 3, generator=generator) * keep).to(dtype))
        largest.add(credits)
        counted += torch.stack([a.count_nonzero() for a in credits])
    expected = [site for site in range(6) if not counted[site]]
    assert 0 < len(expected) < 6, "a draw that shows nothing"
    assert largest.zero_sites() == expected


def test_the_largest_credit_is_not_looked_for_once_every_site_has_had_some() -> None:
    largest = LargestCredit()
    largest.add([torch.ones(2, 3), torch.zeros(2, 3)])
    largest.add([torch.zeros(2, 3), torch.ones(2, 3)])
    peaks = largest.peaks
    largest.add([torch.full((2, 3), 9.0)] * 2)
    assert largest.peaks is peaks
    assert largest.zero_sites() == []


# -- how many steps EP needs ---------------------------------------------------------------------------------------


def credits_of_a_step(net, rule, x: Tensor, y: Tensor) -> LargestCredit:
    step = TrainingStep.of(RunSpec(), Parts.of(net), rule)
    step(x, y)
    return step.largest


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ep_reaches_one_site_per_step_and_all_of_them_with_one_more_than_blocks(depth: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net = wb.nets.build("resmlp", (6,), 4, width=8, depth=depth).to(dtype)
    x, y = torch.randn(16, 6, dtype=dtype), torch.randint(4, (16,))
    for steps in range(depth + 3):
        ep = rules.EP(steps=steps)
        set_up(ep, net, x[:2], 4, torch.Generator())
        missed = list(range(max(0, depth + 1 - steps)))
        assert credits_of_a_step(net, ep, x, y).zero_sites() == missed
        assert ep.describe().get("zero_credit_sites", []) == missed
        assert ep.describe().get("steps_needed") == (depth + 1 if missed else None)
        norms = [c is not None for c in wb.measure(net, [(x, y)], credit=ep).cosine]
        assert norms == [site not in missed for site in range(depth + 1)]


def test_the_number_of_steps_is_where_people_read_about_ep() -> None:
    page = " ".join((ROOT / "docs" / "rules.md").read_text(encoding="utf-8").split())
    assert "at least L + 1 `steps` in a network of L blocks" in page
    assert "at least L + 1 for credit at every site" in page
    assert "at least **L + 1 steps**" in (rules.EP.__doc__ or "")
    assert rules.EP(steps=2).describe()["steps"] == 2  # before set_up nobody knows L
    assert "steps_needed" not in rules.EP(steps=2).describe()


def test_a_record_with_zero_credit_is_read_as_any_other(tmp_path: Path) -> None:
    from walkback.audit.records import read_records

    spec = RunSpec(**{**FIELDS, "rule": "ep", "rule_options": {"steps": 2}, "optimiser": OPTIMISER})
    bundle = wb.train(spec, tmp_path, data=task(), quiet=True)
    record = read_records(tmp_path).find(spec)
    assert record is not None
    assert [row["zero_credit_sites"] for row in record.rows] == [[0, 1], [0, 1]]
    judged = wb.judge(bundle.path / "trajectory.jsonl")
    assert judged.values["growth"] == pytest.approx(bundle.trajectory()[-1]["values"]["growth"])
    assert all(a["epoch"] < b["epoch"] for a, b in itertools.pairwise(bundle.trajectory()))
