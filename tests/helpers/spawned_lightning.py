"""Lightning trains in two spawned processes, with the callback made here: `python spawned_lightning.py FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor, nn

import walkback as wb
from walkback.integrations import LightningWatch


def batches() -> list[tuple[Tensor, Tensor]]:
    """What is measured; every process makes its own."""
    return wb.selftest.batches(2)


class Module(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = wb.selftest.healthy()

    def training_step(self, batch: Any, index: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def train_dataloader(self) -> Any:
        samples = [(x, y) for xs, ys in wb.selftest.batches(2, size=16, seed=5) for x, y in zip(xs, ys)]
        return torch.utils.data.DataLoader(samples, batch_size=8)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def main(folder: Path) -> None:
    callback = LightningWatch("spawned_lightning:batches", network="net", log=folder / "history.jsonl")
    trainer = L.Trainer(
        callbacks=[callback], accelerator="cpu", devices=2, strategy="ddp_spawn", logger=False, max_epochs=2,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module())
    (folder / "parent.json").write_text(json.dumps(callback.state_dict()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
