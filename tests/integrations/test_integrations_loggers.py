"""Rows of a watch in TensorBoard, Weights & Biases (offline) and MLflow (sqlite), read back with their own readers."""

from __future__ import annotations

import json
import random
import struct
import sys
from importlib import import_module
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import walkback as wb
from patience import PATIENCE
from walkback.integrations import mlflow_logger, tensorboard_logger, wandb_logger
from walkback.training.watch import scalars

BATCHES = wb.selftest.batches(2)


def watched(log) -> list[dict]:
    """Two rows, at steps 10 and 20; logging them leaves every random state alone."""
    watch = wb.Watch(wb.selftest.exploded(), BATCHES, every=10, credit=lambda t: [-g for g in t.grads], to=[log])
    for step in range(1, 21):
        before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
        watch.step(acc=0.02 * step)
        assert (random.getstate(), np.random.get_state()[1].tolist()) == before[:2]
        assert torch.equal(torch.get_rng_state(), before[2])
        assert len(watch.history) == step // 10
    return list(watch.history)


def test_scalars_of_a_row_are_flat_finite_numbers():
    (row,) = watched(lambda row: None)[:1]
    found = scalars(row)
    assert found["walkback/growth"] == row["values"]["growth"]
    assert [found[f"walkback/h_norm/{site}"] for site in range(5)] == row["per_layer"]["h_norm"]
    assert found["walkback/cosine/2"] == pytest.approx(-1.0)
    assert (found["walkback/flagged/D1"], found["walkback/flagged/D2"]) == (1.0, 1.0)
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("given", ["folder", "writer"])
def test_tensorboard(tmp_path, given):
    import_module("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    rows = watched(tensorboard_logger(tmp_path if given == "folder" else SummaryWriter(tmp_path)))
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.value for event in events.Scalars("walkback/acc")] == pytest.approx([0.2, 0.4])
    assert set(events.Tags()["scalars"]) == set(scalars(rows[0]))
    for name, value in scalars(rows[1]).items():
        logged = events.Scalars(name)
        assert [event.step for event in logged] == [10, 20]
        assert logged[1].value == pytest.approx(value, rel=1e-6)


def chunks(data: bytes):
    """The records of a .wandb file: 7 bytes of header, then LevelDB's log format, blocks of 32 KiB."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


def test_wandb_offline(tmp_path, monkeypatch):
    wandb = import_module("wandb")
    from wandb.proto import wandb_internal_pb2

    for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    settings = wandb.Settings(silent=True, init_timeout=PATIENCE, x_service_wait=PATIENCE)
    run = wandb.init(mode="offline", dir=tmp_path, project="walkback", settings=settings)
    run.log({"loss": 1.0}, step=500)  # the loop's own steps are ahead of the watch's
    rows = watched(wandb_logger())
    run.finish()
    wandb.teardown()  # its service may still be writing
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    logged = []
    for data in chunks(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            logged.append(
                {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            )
    ours = [items for items in logged if "walkback/at" in items]
    assert [items["walkback/at"] for items in ours] == [10, 20]
    for items, row in zip(ours, rows):
        assert {name: items[name] for name in scalars(row)} == scalars(row)


def test_wandb_without_a_run():
    import_module("wandb")
    with pytest.raises(wb.InputError, match=r"Expected an active run .*, but there is none\. Call wandb\.init"):
        wandb_logger()


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")  # mlflow's use of SQLAlchemy
def test_mlflow_with_sqlite(tmp_path, monkeypatch):
    mlflow = import_module("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("walkback.integrations.loggers.time", SimpleNamespace(time=count(1.0).__next__))
    before, uri = mlflow.get_tracking_uri(), f"sqlite:///{tmp_path}/mlflow.db"
    try:
        mlflow.set_tracking_uri(uri)
        with pytest.raises(wb.InputError, match=r"Expected an active run of MLflow, .*Call mlflow\.start_run"):
            mlflow_logger()
        with mlflow.start_run() as run:
            rows = watched(mlflow_logger())
    finally:
        mlflow.set_tracking_uri(before)
    watched(mlflow_logger(run.info.run_id, uri))
    client = mlflow.MlflowClient(uri)
    assert (tmp_path / "mlflow.db").exists()
    for name in ("walkback/growth", "walkback/g_norm/4", "walkback/cosine/0", "walkback/flagged/D1"):
        history = client.get_metric_history(run.info.run_id, name)
        assert sorted(metric.step for metric in history) == [10, 10, 20, 20]
        assert {metric.value for metric in history} == {scalars(row)[name] for row in rows}


@pytest.mark.parametrize(
    ("make", "name"),
    [(lambda: tensorboard_logger("x"), "tensorboard"), (wandb_logger, "wandb"), (mlflow_logger, "mlflow")],
)
def test_a_library_that_is_not_there_is_named_with_its_extra(make, name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(wb.InputError, match=rf"Expected {name} to be installed, .*pip install 'walkback\[{name}\]'"):
        make()
