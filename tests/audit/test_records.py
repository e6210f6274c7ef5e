"""Finished runs are read as they were written; what can't be used is named, with the reason."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from made_runs import write_run
from places import ROOT
from walkback.audit.records import _READ, canonical, read_records
from walkback.audit.settings import Setting, select
from walkback.data import Dataset, Split
from walkback.errors import FormatError
from walkback.training.control import control_spec
from walkback.training.loop import train
from walkback.training.spec import RunSpec

SPEC = RunSpec(rule="dfa", epochs=3)


def only_problem(store: Path) -> str:
    records = read_records(store)
    assert len(records) == 0
    (problem,) = records.problems
    return problem.reason


def test_a_run_is_read_as_it_was_written(tmp_path):
    folder = write_run(tmp_path / "deep" / "down", SPEC, 0.25, classes=7)
    (record,) = read_records(tmp_path)
    assert (record.path, record.spec, record.accuracy, record.classes) == (folder, SPEC, 0.25, 7)
    assert [r["epoch"] for r in record.rows] == [1, 2, 3]
    assert [epoch for epoch, _, _ in record.epochs] == [0, 1, 2, 3]
    assert record.machine["device"] == "cpu"
    assert record.measurements.h_norm == record.report.per_layer["h_norm"]


def test_made_runs_have_the_format_of_trained_ones(tmp_path):
    split = Split(torch.randn(300, 6, generator=torch.Generator().manual_seed(0)), torch.arange(300) % 2)
    spec = RunSpec(rule="dfa", data="teacher", epochs=2, net_options={"width": 8, "depth": 4})
    train(spec, tmp_path / "real", data=Dataset("tiny", split, split, 2), quiet=True)
    write_run(tmp_path / "made", spec, fresh={"gamma": (0.0, 0.01), "deep_cosine": (0.0, 0.01)})
    (real,), (made,) = read_records(tmp_path / "real"), read_records(tmp_path / "made")

    def shape(value):
        return {k: shape(v) for k, v in value.items()} if isinstance(value, dict) else None

    for ours, theirs in (
        (made.rows[0], real.rows[0]),
        (made.initial, real.initial),
        (made.machine, real.machine),
        (made.report.run["fresh_feedback"], real.report.run["fresh_feedback"]),
        (made.report.values, real.report.values),
        (made.report.per_layer, real.report.per_layer),
        (made.report.controls, real.report.controls),
    ):
        assert shape(ours) == shape(theirs)
    assert set(made.report.run) == set(real.report.run)
    specs = [json.loads((r.path / "spec.json").read_text()) for r in (made, real)]
    assert specs[0].keys() == specs[1].keys()
    assert real.correct is not None
    assert len(real.correct) == 300
    assert real.correct.mean() == real.accuracy


@pytest.mark.parametrize("samples", [1000, 1001, 1007, 13])
def test_paired_predictions_are_unpacked_to_their_number(tmp_path, samples):
    correct = np.random.RandomState(samples).rand(samples) < 0.4
    write_run(tmp_path, SPEC, correct=correct)
    (record,) = read_records(tmp_path)
    assert record.correct is not None
    np.testing.assert_array_equal(record.correct, correct)


def test_controls_are_found_for_both_stems(tmp_path):
    spec = RunSpec(rule="dfa", penalty=1e-2, credit_site="reader", epochs=3)
    write_run(tmp_path, spec)
    rule, bp = (write_run(tmp_path, control_spec(spec, stem), 0.3) for stem in ("rule", "bp"))
    records = read_records(tmp_path)
    run = records.find(spec)
    assert run is not None
    assert records.control(run).path == rule
    assert records.control(run, "bp").path == bp
    assert records.find(RunSpec(rule="fa")) is None
    assert records.store == tmp_path


@pytest.mark.parametrize(("control", "taken"), [("0" * 16, False), ("1" * 16, True), (None, True)])
def test_a_control_on_other_data_of_the_same_name_is_none(tmp_path, control, taken):
    """Told by the hash of the probe samples, where both reports have one."""
    frozen, trained = write_run(tmp_path, control_spec(SPEC), 0.4), write_run(tmp_path, SPEC, 0.5)
    for folder, probe in ((frozen, control), (trained, "1" * 16)):
        report = json.loads((folder / "report.json").read_text())
        report["conditions"]["probe_hash"] = probe
        (folder / "report.json").write_text(json.dumps(report))
    records = read_records(tmp_path)
    assert len(records) == 2
    assert (records.control(records.find(SPEC)) is not None) == taken
    expected = f"not taken as the control of {trained}: under the name cifar10 they had different data"
    said = [(problem.path, expected in problem.reason) for problem in records.problems]
    assert said == ([] if taken else [(frozen, True)])


def test_runs_behind_a_link_are_read_and_a_link_that_leads_back_ends(tmp_path):
    write_run(tmp_path / "store", SPEC, 0.5)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "runs").symlink_to(tmp_path / "store")
    (tmp_path / "store" / "back").symlink_to(tmp_path / "results")
    records = read_records(tmp_path / "results")
    assert ([run.spec for run in records], records.problems) == ([SPEC], ())


def test_the_store_is_where_most_epochs_were_trained(tmp_path):
    """Not where most runs are: a few long runs outweigh many short ones."""
    write_run(tmp_path / "runs", RunSpec(rule="dfa", epochs=20))
    for seed in (0, 1, 2):
        write_run(tmp_path / "ablations", RunSpec(rule="dfa", epochs=3, seed=seed))
    assert read_records(tmp_path).store == tmp_path / "runs"
    for seed in (3, 4, 5, 6):
        write_run(tmp_path / "ablations", RunSpec(rule="dfa", epochs=3, seed=seed))
    assert read_records(tmp_path).store == tmp_path / "ablations", "21 epochs outweigh 20"


# -- what can't be used --------------------------------------------------------------------------------------


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(FormatError, match=r"Expected a folder with runs at .*nowhere, but there is none"):
        read_records(tmp_path / "nowhere")


def test_an_unfinished_run_says_that_it_goes_on(tmp_path):
    folder = write_run(tmp_path, SPEC)
    for name in ("report.json", "spec.json", "machine.json", "trajectory.jsonl"):
        (folder / name).unlink()
    assert only_problem(tmp_path).startswith("unfinished: there is no report.json, nor anything else")
    (folder / "checkpoint.safetensors").write_bytes(b"")
    assert "training goes on when it is started again" in only_problem(tmp_path)


@pytest.mark.parametrize("name", ["spec.json", "trajectory.jsonl", "machine.json"])
def test_a_deleted_file_is_named(tmp_path, name):
    (write_run(tmp_path, SPEC) / name).unlink()
    assert only_problem(tmp_path) == f"incomplete: there is no {name}"


@pytest.mark.parametrize("name", ["spec.json", "trajectory.jsonl", "machine.json", "report.json"])
def test_half_a_file_is_refused(tmp_path, name):
    path = write_run(tmp_path, SPEC) / name
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    assert name in only_problem(tmp_path)


def test_lost_epochs_are_counted(tmp_path):
    path = write_run(tmp_path, SPEC) / "trajectory.jsonl"
    path.write_text("\n".join(path.read_text().splitlines()[:2]))
    assert "Expected 3 epochs in trajectory.jsonl, but it has 2" in only_problem(tmp_path)
    path.write_text(path.read_text().splitlines()[1])
    assert "Expected row 1 of trajectory.jsonl to be epoch 1" in only_problem(tmp_path)


def change(path: Path, **fields) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_other_versions_are_named(tmp_path):
    folder = write_run(tmp_path, SPEC)
    change(folder / "spec.json", schema="walkback.bundle/9")
    assert "Expected spec.json to be of schema walkback.bundle/1, but got walkback.bundle/9" in only_problem(tmp_path)
    change(folder / "spec.json", schema="walkback.bundle/1", temperature=3)
    assert "but got 'temperature'" in only_problem(tmp_path)
    shutil.rmtree(folder)
    folder = write_run(tmp_path, SPEC)
    change(folder / "report.json", schema="walkback.report/9")
    assert "walkback.report/9" in only_problem(tmp_path)


def test_a_report_that_is_not_a_runs_is_refused(tmp_path):
    folder = write_run(tmp_path, SPEC)
    run = json.loads((folder / "report.json").read_text())["run"]
    change(folder / "report.json", run={})
    assert "Expected report.json to be that of a training run" in only_problem(tmp_path)
    change(folder / "report.json", run={**run, "test_correct": "***"})
    assert "base64" in only_problem(tmp_path)
    change(folder / "report.json", run={**run, "test_correct": "AAAA"})
    assert "test_correct in report.json to give the accuracy" in only_problem(tmp_path)


def test_the_same_spec_twice_is_used_once_and_named(tmp_path):
    write_run(tmp_path / "a", SPEC)
    second = write_run(tmp_path / "b", SPEC)
    records = read_records(tmp_path)
    assert len(records) == 1
    assert [p.path for p in records.problems] == [second]
    assert "the same spec as" in records.problems[0].reason


def test_one_bad_folder_does_not_hide_the_others(tmp_path):
    write_run(tmp_path, SPEC)
    (write_run(tmp_path, RunSpec(rule="fa", epochs=3)) / "report.json").unlink()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "readme.txt").write_text("not a run")
    (tmp_path / ".locks").mkdir()
    records = read_records(tmp_path)
    assert len(records) == 1
    assert len(records.problems) == 1


DAMAGED = [  # file, where in it, what is there instead, what must be said
    ("report.json", ["run"], None, "run"),
    ("report.json", ["run", "weight_growth"], 3, "run.weight_growth"),
    ("report.json", ["run", "initial"], {}, "run.initial.epoch"),
    ("report.json", ["run", "initial", "weights"], 3, "run.initial.weights"),
    ("report.json", ["run", "fresh_feedback"], 3, "run.fresh_feedback"),
    ("report.json", ["run", "fresh_feedback"], {"draws": 20, "gamma": {"mean": 0.1}}, "run.fresh_feedback.gamma.std"),
    ("report.json", ["values", "deep_perturbation"], "x", "values.deep_perturbation"),
    ("report.json", ["per_layer", "h_norm"], "x", "per_layer.h_norm"),
    ("report.json", ["headline_acc"], "0.3", "headline_acc"),
    ("report.json", ["headline_acc"], 55.41, "headline_acc is 55.41. Input should be less than or equal to 1"),
    ("report.json", ["controls", "perturbation_bp"], [0.9], "one value for each of 5 sites, but it has 1"),
    ("report.json", ["controls", "perturbation_bp"], "x", "controls.perturbation_bp"),
    ("spec.json", ["classes"], "x", "classes"),
    ("trajectory.jsonl", ["weights"], 3, "weights in row 1"),
    ("trajectory.jsonl", ["test_acc"], None, "test_acc in row 1"),
    ("trajectory.jsonl", ["per_layer", "h_norm"], [1.0, "x"], "per_layer.h_norm"),
]


@pytest.mark.parametrize(("name", "keys", "value", "said"), DAMAGED, ids=[f"{d[0]}:{d[3]}" for d in DAMAGED])
def test_a_damaged_field_is_named_and_the_other_runs_stay(tmp_path, name, keys, value, said):
    write_run(tmp_path, RunSpec(rule="fa", epochs=3))
    folder = write_run(tmp_path, SPEC)
    whole, *rest = (folder / name).read_text().splitlines(True) if name.endswith("l") else [(folder / name).read_text()]
    fields = json.loads(whole)
    inner = fields
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    (folder / name).write_text(json.dumps(fields) + "\n" + "".join(rest))
    records = read_records(tmp_path)
    assert [run.spec.rule for run in records] == ["fa"]
    (problem,) = records.problems
    assert problem.path == folder
    assert said in problem.reason
    assert problem.reason.startswith("Expected ")


def test_an_accuracy_that_two_files_tell_differently_is_named(tmp_path):
    folder = write_run(tmp_path, SPEC)
    rows = (folder / "trajectory.jsonl").read_text().splitlines()
    last = json.loads(rows[-1])
    for off, problems in ((4e-7, 0), (0.01, 1)):  # rows are rounded
        rows[-1] = json.dumps({**last, "test_acc": last["test_acc"] + off})
        (folder / "trajectory.jsonl").write_text("\n".join(rows) + "\n")
        assert len(read_records(tmp_path).problems) == problems
    assert "the accuracy of report.json, 0.5, but it has 0.51" in only_problem(tmp_path)


def test_a_file_is_no_folder_with_runs(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(FormatError, match="but it is a file"):
        read_records(tmp_path / "runs")


def test_a_diverged_run_is_finished_before_its_last_epoch(tmp_path):
    folder = write_run(tmp_path, SPEC)
    rows = [json.loads(line) for line in (folder / "trajectory.jsonl").read_text().splitlines()][:2]
    rows[1]["diverged"] = "epoch 2: state not finite at site 1, batch 0"
    rows[1]["reasons"] = {"h_norm": "state not finite at site 1, batch 0"}
    (folder / "trajectory.jsonl").write_text("\n".join(json.dumps(r) for r in rows))
    run = json.loads((folder / "report.json").read_text())["run"]
    change(folder / "report.json", run={**run, "epochs": 2, "diverged": rows[1]["diverged"]})
    (record,) = read_records(tmp_path)
    assert record.epochs[-1][2].nonfinite_kinds == {"state"}


def test_an_option_that_repeats_a_default_is_no_other_run(tmp_path):
    written = {"net_options": {"width": 256, "depth": 4}, "rule_options": {"scale": 1.0}}
    write_run(tmp_path, RunSpec(rule="dfa", seed=1, **written), 0.4)
    write_run(tmp_path, control_spec(RunSpec(rule="dfa", seed=1)), 0.3)
    records = read_records(tmp_path)
    run = records.find(RunSpec(rule="dfa", seed=1))
    assert run is not None
    control = records.control(run)
    assert control is not None
    assert control.accuracy == 0.3
    write_run(tmp_path, RunSpec(rule="dfa", seed=1), 0.4)
    assert len(select(read_records(tmp_path), Setting("dfa"))) == 1, "one run per seed"
    assert canonical(RunSpec(net_options={"width": 512})).net_options == {"width": 512}


@pytest.mark.parametrize("n", [8, 13])
def test_which_samples_are_right_is_not_told_where_none_is_and_their_number_is_not_known(tmp_path, n):
    write_run(tmp_path, RunSpec(seed=1), 0.0, correct=np.zeros(n, bool))
    write_run(tmp_path, RunSpec(seed=2), 2 / n, correct=np.arange(n) < 2)
    by_seed = {run.spec.seed: run for run in read_records(tmp_path)}
    assert by_seed[1].correct is None
    assert by_seed[2].correct.tolist() == [True] * 2 + [False] * (n - 2)


def calls(function: Callable[[], object]) -> Counter[str]:
    """How often functions were called while this one ran, those of C too: work that no other process slows down."""
    made: Counter[str] = Counter()

    def count(frame, event, argument):
        if event == "call":
            made[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            made[argument.__qualname__] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return made


def test_reading_costs_each_run_the_same_however_many_there_are(tmp_path):
    folder = write_run(tmp_path, RunSpec(seed=0, epochs=3))
    read_records(tmp_path)  # what is imported or compiled once

    def cost(runs: int) -> Counter[str]:
        for seed in range(1, runs):
            if not (copy := tmp_path / f"run{seed}").exists():
                shutil.copytree(folder, copy)
                change(copy / "spec.json", seed=seed)
        _READ.clear()
        found = calls(lambda: records.append(read_records(tmp_path)))
        assert len(records[-1]) == runs
        return found

    records = []
    few, many = cost(2), cost(8)
    assert many["open"] == 4 * few["open"] == 8 * 4, "each of its four files once"
    assert many.total() < 4.1 * few.total()


def test_files_that_did_not_change_are_read_once(tmp_path):
    folder = write_run(tmp_path, RunSpec(seed=0))
    read_records(tmp_path)
    assert calls(lambda: read_records(tmp_path))["open"] == 0
    text = (folder / "report.json").read_text()
    (folder / "report.json").write_text(text.replace('"verdict"', '"verdict" '))
    assert calls(lambda: read_records(tmp_path))["open"] == 4
    (folder / "machine.json").unlink()
    assert [problem.reason for problem in read_records(tmp_path).problems] == ["incomplete: there is no machine.json"]


def test_the_shipped_records_are_whole():
    records = read_records(ROOT / "results" / "runs")
    assert records.problems == ()
    assert all(record.correct is not None for record in records)
