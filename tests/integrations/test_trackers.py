"""A report in W&B (offline), MLflow (sqlite), TensorBoard, pandas and a model card, read back from there."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest

import walkback as wb
from walkback.integrations import report_to_mlflow, report_to_tensorboard, report_to_wandb
from walkback.report.frame import site_table
from walkback.report.model_card import eval_results

REPORT = wb.diagnose(
    wb.selftest.exploded(), wb.selftest.batches(2), 0.31, 0.35, credit=lambda t: [-g for g in t.grads], method="DFA"
)


def test_wandb_has_the_table_and_the_page(tmp_path, monkeypatch):
    wandb = import_module("wandb")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    with pytest.raises(wb.InputError, match="Expected an active run of Weights & Biases"):
        report_to_wandb(REPORT)
    with wandb.init(mode="offline", project="p", dir=str(tmp_path)) as run:
        artifact = report_to_wandb(REPORT, run)
        assert dict(run.summary)["walkback/verdict"] == "walked back: D1, D2, D3"
        assert dict(run.summary)["walkback/growth"] == REPORT.values["growth"]
    assert sorted(artifact.manifest.entries) == ["report.html", "report.json"]
    tables = [json.loads(p.read_text()) for p in tmp_path.rglob("*.table.json")]
    columns, rows = site_table(REPORT)
    assert tables[0]["columns"] == columns
    assert tables[0]["data"] == rows


@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_report_page_metrics_and_verdict(tmp_path):
    mlflow = import_module("mlflow")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = mlflow.MlflowClient(uri)
    experiment = client.create_experiment("e", artifact_location=(tmp_path / "artifacts").as_uri())
    run_id = client.create_run(experiment).info.run_id
    report_to_mlflow(REPORT, run_id, uri)
    data = client.get_run(run_id).data
    assert data.tags["walkback/verdict"] == "walked back: D1, D2, D3"
    assert data.metrics["walkback/growth"] == REPORT.values["growth"]
    (stored,) = (tmp_path / "artifacts").rglob("report.json")
    assert wb.Report.load(stored) == REPORT
    assert (stored.parent / "report.html").read_text(encoding="utf-8") == REPORT.to_html()


def test_tensorboard_has_a_figure_per_quantity(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    report_to_tensorboard(REPORT, tmp_path, step=7)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["images"]) == {"walkback/h_norm", "walkback/g_norm", "walkback/cosine"}
    image = events.Images("walkback/h_norm")[0]
    assert (image.step, image.encoded_image_string[:4]) == (7, b"\x89PNG")
    assert any("report" in tag for tag in events.Tags()["tensors"])


def test_pandas_has_one_row_per_site():
    frame = REPORT.to_pandas()
    assert list(frame.index) == [0, 1, 2, 3, 4]
    assert frame["h_norm"].tolist() == REPORT.per_layer["h_norm"]
    assert frame["cosine"].dtype == float
    assert frame["reads_as"].tolist() == [REPORT.reads_as(site) for site in range(5)]
    assert frame.attrs == {"method": "DFA", "edition": "three-check", "verdict": "walked back"}
    missing = wb.judge({"h_norm": [1.0, 2.0], "g_norm_deepest": 1e-3}).to_pandas()
    assert missing["g_norm"].isna().tolist() == [True, False]


def test_pandas_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(wb.InputError, match=r"pip install 'walkback\[pandas\]'"):
        REPORT.to_pandas()


def test_reports_are_hashable():
    again = wb.Report.from_dict(json.loads(REPORT.to_json()))
    assert {REPORT: 1}[again] == 1
    other = wb.judge(REPORT, headline_acc=0.9)
    assert len({REPORT, again, other}) == 2


def test_the_model_card_is_markdown_that_the_hub_takes():
    from huggingface_hub import ModelCard

    card = ModelCard(f"---\nlicense: mit\n---\n# A model\n\n{REPORT.to_model_card()}")
    assert card.data.license == "mit"
    assert "**VERDICT: walked back: D1, D2, D3**" in card.text
    assert "| D3 | depth utility | -4.0 pp |" in card.text
    odd = wb.judge({"h_norm": [1.0, 2.0], "g_norm": [1e-3, 1e-3]}, method_name="a|b").to_model_card()
    assert "not tested" in odd


def test_the_eval_results_are_those_the_hub_writes():
    import yaml
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    source = "https://example.org/report"
    theirs = EvalResultEntry(
        dataset_id="uoft-cs/cifar10",
        task_id="default",
        value=0.31,
        date="2026-01-15",
        source_url=source,
        source_name="Walkback report",
        notes="Walkback, three-check edition: walked back: D1, D2, D3",
    )
    ours = eval_results(REPORT, "uoft-cs/cifar10", source=source, date="2026-01-15")
    assert yaml.safe_load(ours) == eval_result_entries_to_yaml([theirs])
    seeds = wb.judge(REPORT, headline_acc=[0.3, 0.4], frozen_baseline_acc=[0.3, 0.3])
    assert yaml.safe_load(eval_results(seeds, "a/b"))[0]["value"] == pytest.approx(0.35)
    with pytest.raises(wb.InputError, match="headline accuracy"):
        eval_results(wb.judge({"h_norm": [1.0, 2.0]}), "a/b")
    with pytest.raises(wb.InputError, match="such as uoft-cs/cifar10, but got 'cifar10'"):
        eval_results(REPORT, "cifar10")


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "tb").mkdir()
    report_to_tensorboard(REPORT, tmp_path / "tb")
    assert [path.name for path in Path(tmp_path).iterdir()] == ["tb"]
