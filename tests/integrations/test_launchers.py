"""The callbacks under launchers: two spawned processes, and LightningCLI with a configuration file."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module

import pytest

import walkback as wb
from needs import needed
from patience import PATIENCE
from places import HELPERS

CONFIG = """
trainer:
  max_epochs: 2
  accelerator: cpu
  logger: false
  enable_checkpointing: false
  enable_progress_bar: false
  enable_model_summary: false
  callbacks:
    - class_path: walkback.integrations.LightningCallback
      init_args: { eval_batches: "spawned_lightning:batches", every: epoch, network: net }
"""


def spawned(name: str, folder) -> list[dict]:
    """Run a helper that spawns two processes, and return the rows of its log."""
    needed(name.partition("_")[2].replace("hf", "transformers"))
    command = [sys.executable, str(HELPERS / f"{name}.py"), str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
def test_lightning_in_two_spawned_processes_writes_one_history(tmp_path):
    rows = spawned("spawned_lightning", tmp_path)
    assert [(row["epoch"], row["step"]) for row in rows] == [(1, 2), (2, 4)]  # 32 samples, 2 ranks, batches of 8
    assert json.loads((tmp_path / "parent.json").read_text()) == {}  # no callback comes back: the log has the rows
    assert wb.judge(tmp_path / "history.jsonl").verdict == "undecided"


@pytest.mark.slow
def test_the_trainer_in_two_spawned_processes_writes_one_history(tmp_path):
    rows = spawned("spawned_hf", tmp_path)
    assert [(row["epoch"], row["step"]) for row in rows] == [(1, 2), (2, 4)]
    for rank in (0, 1):
        assert json.loads((tmp_path / f"rank{rank}.json").read_text()) == {"world": 2, "steps": [2, 4]}


@pytest.mark.filterwarnings("ignore")
def test_lightning_cli_makes_the_callback_of_a_file(tmp_path):
    needed("jsonargparse")
    cli = import_module("lightning.pytorch.cli")
    module = import_module("spawned_lightning").Module
    (tmp_path / "config.yaml").write_text(CONFIG)
    made = cli.LightningCLI(module, args=["fit", "--config", str(tmp_path / "config.yaml")], save_config_callback=None)
    (callback,) = [c for c in made.trainer.callbacks if type(c).__name__ == "LightningWatch"]
    assert [row["step"] for row in callback.watch.history] == [4, 8]
