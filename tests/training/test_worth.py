"""What the blocks of a finished run are worth: measured from its weights, kept in its record, and read by everyone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

import walkback as wb
from crash_states import Tree, restore, taken, tried
from places import ROOT
from walkback import cli, files
from walkback.audit.records import read_records
from walkback.audit.settings import judged_runs
from walkback.audit.store import checked_runs
from walkback.replication.page import page_data
from walkback.replication.tables import evidence
from walkback.training.folder import owned
from walkback.training.setup import probe_batches, seeded
from walkback.training.worth import keep_depth, run_depth

OPTIONS = {"width": 8, "depth": 2}


def samples(root: Path | None = None) -> wb.data.Dataset:
    """Four classes by the signs of two products: no linear map knows them."""
    x = torch.randn(700, 8, generator=torch.Generator().manual_seed(0))
    y = 2 * (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] * x[:, 3] > 0).long()
    split = wb.data.Split
    return wb.data.Dataset("mine", split(x[:400], y[:400]), split(x[400:], y[400:]), classes=4)


def other(root: Path | None = None) -> wb.data.Dataset:
    mine = samples()
    flipped = wb.data.Split(-mine.test.x.flip(0), mine.test.y.flip(0))
    return wb.data.Dataset("mine", mine.train, flipped, classes=4)


def batches(root: Path | None = None) -> list[tuple[Tensor, Tensor]]:
    mine = samples()
    return [(mine.test.x[:128], mine.test.y[:128])]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = wb.RunSpec(data="test_worth:samples", epochs=1, net_options=OPTIONS)
    return wb.train(spec, tmp_path_factory.mktemp("store"), data=samples(), quiet=True).path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "store" / trained.name))


def test_depth_of_a_run_is_that_of_its_network_on_its_splits(run: Path) -> None:
    bundle, data = wb.load_bundle(run), samples()
    found = run_depth(bundle, data, draws=2)
    parts = [[(s.x, s.y)] for s in (data.train, data.test)]
    assert found == wb.depth(bundle.model(), *parts, draws=2, build=bundle.untrained)
    assert run_depth(bundle, data, draws=2, most=100).samples == {"train": 100, "test": 100}


def test_it_is_kept_without_retraining_and_nothing_else_changes(run: Path) -> None:
    bundle = wb.load_bundle(run)
    before, weights = json.loads((run / "report.json").read_text()), (run / "weights.safetensors").read_bytes()
    found = run_depth(bundle, samples(), draws=2)
    kept = keep_depth(bundle, found)
    after = json.loads((run / "report.json").read_text())
    assert after == json.loads(kept.to_json())
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed <= {"verdict", "failed", "depth_used", "chain", "findings", "depth"}
    assert (run / "weights.safetensors").read_bytes() == weights
    (record,) = read_records(run.parent)
    assert record.depth == found


def test_a_power_cut_while_it_is_kept_leaves_the_run_whole(run: Path, tmp_path: Path) -> None:
    """In every state of the disk the record is the one before or the one after, and no run is damaged."""
    found = run_depth(wb.load_bundle(run), samples(), draws=2)
    seen = set()

    def holds(tree: Tree, ended: bool) -> str:
        shutil.rmtree(tmp_path / "disk", ignore_errors=True)
        (tmp_path / "disk").mkdir()
        (again,) = checked_runs(restore(tree, tmp_path / "disk"))
        (record,) = read_records(tmp_path / "disk")
        seen.add(record.depth is None)
        return "" if again.state == "whole" and record.depth in (None, found)[ended:] else f"{again}"

    assert tried(run.parent, lambda: keep_depth(wb.load_bundle(run), found), holds, taken(run.parent)) > 10
    assert seen == {True, False}


def test_who_takes_the_folder_leaves_what_a_killed_save_has_written(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = wb.load_bundle(run)
    found = run_depth(bundle, samples(), draws=2)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files, "_take_names", killed)
        with pytest.raises(KeyboardInterrupt):
            keep_depth(bundle, found)
    with owned(run):
        pass
    report = wb.load_bundle(run).report()
    assert report is not None
    assert report.depth is not None


def test_tables_and_the_page_read_it(run: Path) -> None:
    empty = evidence("accuracy-by-depth", read_records(run.parent))
    assert empty.missing[0].endswith("--depth --save")
    found = run_depth(wb.load_bundle(run), samples(), draws=2)
    keep_depth(wb.load_bundle(run), found)
    records = read_records(run.parent)
    verdict = judged_runs(records, list(records)).verdicts["three-check"][0]
    assert verdict["outcome"].value == found.worth_pp
    table = evidence("accuracy-by-depth", records)
    assert [row["trained"]["mean"] for row in table.data] == pytest.approx(found.by_depth["trained"])
    assert [row["D3-outcome pp"]["mean"] for row in table.data] == pytest.approx([found.worth_pp] * 3)
    data = page_data(records)
    panel = data["runs"][0]["panels"][-1]
    assert (panel["name"], panel["values"]) == ("accuracy", found.by_depth["trained"])
    assert list(panel["others"]) == ["re-randomised", "stem alone", "inputs alone"]
    assert data["runs"][0]["checks"][-1]["check"] == "D3-outcome"
    assert data["settings"][0]["outcome"]


def test_the_command_line_measures_keeps_and_says_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.run(["diagnose", str(run), "--trust", "test_worth", "--depth", "--save", "--json"])
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert "refitted on 400 training samples" in err
    assert "kept in" in err
    assert report["findings"][-1]["check"] == "D3-outcome"
    assert code == {"passes": 0, "walked back": 1, "undecided": 3}[report["verdict"]]
    assert cli.run(["diagnose", str(run), "--trust", "test_worth", "--json", "--primary", "D3-outcome"]) == code
    again = json.loads(capsys.readouterr().out)
    assert again["depth"] == report["depth"], "what the record has is used again"
    assert again["conditions"]["primary"] == "D3-outcome"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--save"], "--save together with --depth"),
        (["--depth", "--data", "test_worth:batches"], "has a train and a test split"),
        (["--depth", "--save", "--data", "test_worth:other"], "nothing was written"),
    ],
)
def test_a_wrong_call_is_a_clear_error(run: Path, words: list[str], says: str, capsys) -> None:
    before = (run / "report.json").read_bytes()
    assert cli.run(["diagnose", str(run), "--trust", "test_worth", *words]) == 2
    assert says in capsys.readouterr().err
    assert (run / "report.json").read_bytes() == before


def test_another_probe_set_and_the_training_split_are_one_option_away(run: Path, capsys, monkeypatch) -> None:
    """Measured on those samples, as an independent count of rows shows, and said in the report."""
    monkeypatch.setattr("walkback.training.setup.PROBE_SIZE", 32)
    data = samples()
    for split, of in (("test", data.test), ("train", data.train)):
        order = torch.randperm(len(of), generator=seeded(0, "probe"))
        x = torch.cat([x for x, _ in probe_batches(data, torch.device("cpu"), split, 0)])
        assert torch.equal(x, of.x[order[:256]])
    assert len(torch.cat([x for x, _ in probe_batches(data, torch.device("cpu"), "train", 1)])) == 400 - 256
    code = cli.run(["diagnose", str(run), "--trust", "test_worth", "--split", "train", "--probe-set", "1", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert (code, report["conditions"]["samples"]) == (3, 144)
    assert "measured on probe set 1 of the train split" in [note["text"] for note in report["notes"]]
    assert cli.run(["diagnose", str(run), "--trust", "test_worth", "--probe-set", "9"]) == 2
    assert "Expected a probe set from 0 to 0" in capsys.readouterr().err
    brought = ["--data", "test_worth:batches", "--split", "train"]
    assert cli.run(["diagnose", str(run), "--trust", "test_worth", *brought]) == 2
    assert "--split and --probe-set only with a data set" in capsys.readouterr().err


def test_an_entry_brings_its_own_depth(capsys) -> None:
    assert cli.run(["diagnose", "test_worth:entry", "--depth"]) == 2
    assert "only with a run or bundle" in capsys.readouterr().err


def test_a_watch_keeps_it_at_its_end(run: Path, tmp_path: Path) -> None:
    net, data = wb.load_bundle(run).model(), samples()
    found = wb.depth(net, [(data.train.x, data.train.y)], [(data.test.x, data.test.y)], draws=2)
    watch = wb.Watch(net, batches(), every=1, log=tmp_path / "watch.jsonl")
    watch.step()
    row = watch.finish(depth=found)
    assert row["depth"] == found.to_dict()
    for report in (watch.report(headline_acc=0.5), wb.judge(tmp_path / "watch.jsonl", headline_acc=0.5)):
        assert report.depth == found.to_dict()
        assert report.findings[-1]["check"] == "D3-outcome"
    with pytest.raises(wb.InputError, match=r"what walkback\.depth returned"):
        watch.finish(depth=3.0)


def test_what_the_docs_say_of_the_run_on_cifar10_is_in_its_record() -> None:
    runs, name = ROOT / "evidence" / "runs", "resmlp-cifar10-dfa-all-s456-e9c3954037054422"
    report = json.loads((runs / name / "report.json").read_text(encoding="utf-8"))
    control = json.loads((runs / "resmlp-cifar10-dfa-frozen-s456-95a1752fa1286b4c" / "report.json").read_text())
    depth, (low, high) = report["depth"], report["depth"]["interval"]
    trained = depth["by_depth"]["trained"]
    text = " ".join((ROOT / "docs" / "depth.md").read_text(encoding="utf-8").split())
    assert f"{name}/report.json)). Its blocks are worth {depth['worth_pp']:.1f} pp [{low:.1f}, {high:.1f}]" in text
    assert f"says {100 * (report['headline_acc'] - control['headline_acc']):.1f} pp: the two agree" in text
    assert f"stem's state reaches {trained[0]:.3f}, of the state after the first trained block {trained[1]:.3f}" in text
    assert f"of the pixels {depth['pixels']:.3f}." in text
    bp, frozen = (
        json.loads((runs / name / "report.json").read_text(encoding="utf-8"))
        for name in ("resmlp-cifar10-bp-all-s456-c1bc4ca3adc7d580", "resmlp-cifar10-bp-frozen-s456-ea4fbf2309a3f5f0")
    )
    worth, (low, high) = bp["depth"]["worth_pp"], bp["depth"]["interval"]
    margin = 100 * (bp["headline_acc"] - frozen["headline_acc"])
    assert f"blocks are worth {worth:+.1f} pp [{low:+.1f}, {high:+.1f}], and D3 says {margin:+.1f} pp." in text
