"""The Trainer trains in two spawned processes, with the callback made here: `python spawned_hf.py FOLDER`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

import walkback as wb
from walkback.integrations import TransformersWatch


def batches() -> list[tuple[Tensor, Tensor]]:
    """What is measured; every process makes its own."""
    return wb.selftest.batches(2)


def samples() -> list[tuple[Tensor, Tensor]]:
    return [(x, y) for xs, ys in wb.selftest.batches(2, size=16, seed=5) for x, y in zip(xs, ys)]


class ForTrainer(nn.Module):
    """What the Trainer wants of a model."""

    def __init__(self) -> None:
        super().__init__()
        self.net = wb.selftest.healthy()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def one_rank(rank: int, callback: TransformersWatch, folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "ACCELERATE_USE_CPU": "true"}  # asked for, though they meet in a file
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    import transformers

    args = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=8, report_to=[], save_strategy="no", num_train_epochs=2,
        logging_strategy="no", disable_tqdm=True, use_cpu=True, ddp_backend="gloo",
    )  # fmt: skip
    data = [{"x": x, "labels": y} for x, y in samples()]
    trainer = transformers.Trainer(ForTrainer(), args, train_dataset=data, callbacks=[callback])
    trainer.train()
    seen = {"world": trainer.args.world_size, "steps": [row["step"] for row in callback.watch.history]}
    (folder / f"rank{rank}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    place = Path(sys.argv[1])
    made = TransformersWatch("spawned_hf:batches", network="net", log=place / "history.jsonl")
    mp.spawn(one_rank, (made, place), nprocs=2)
