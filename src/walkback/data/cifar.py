"""CIFAR from the Hugging Face parquet layout."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch

from walkback.data import Dataset, Split
from walkback.errors import FormatError

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def load_cifar10(root: str | Path | None) -> Dataset:
    """CIFAR-10 from `plain_text/{train,test}-*.parquet` under `root` or `root/cifar10`."""
    base = Path(root or ".")
    for folder in (base / "plain_text", base / "cifar10" / "plain_text"):
        if folder.is_dir():
            splits = {part: _parquet(folder, part) for part in ("train", "test")}
            return Dataset("cifar10", splits["train"], splits["test"], 10, MEAN, STD)
    raise FormatError(f"Expected CIFAR-10 as plain_text/*.parquet under {base} or {base / 'cifar10'}, but found none.")


def _parquet(folder: Path, part: str) -> Split:
    import pyarrow.parquet as pq
    from PIL import Image

    images, labels = [], []
    for path in sorted(folder.glob(f"{part}-*.parquet")):
        table = pq.read_table(path, columns=["img", "label"])
        labels.append(table["label"].to_numpy())
        for cell in table["img"]:
            images.append(np.asarray(Image.open(io.BytesIO(cell["bytes"].as_py())).convert("RGB")))
    x = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
    return Split(x, torch.from_numpy(np.concatenate(labels)).long())
