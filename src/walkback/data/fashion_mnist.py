"""Fashion-MNIST from its IDX files, compressed or not."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from functools import partial
from pathlib import Path

import numpy as np

from walkback.data.source import FileLayout, Source, SplitFiles, damaged

# md5 of the uncompressed files. The published md5 sums are of the .gz files, which distributions compress anew;
# these four were taken from files whose original .gz was rebuilt and had the published sum.
CONTENTS = {
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}


def read_idx(paths: list[Path], part: SplitFiles, md5: dict[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """Read an images file and a labels file; `md5` are those of their contents, by name without .gz."""
    images, labels = paths
    x = _array(images, (part.size, *part.shape[1:]), md5)
    return x.reshape(-1, *part.shape), _array(labels, (part.size,), md5)


def _array(path: Path, shape: tuple[int, ...], md5: dict[str, str]) -> np.ndarray:
    """Read two zero bytes, 8 for uint8, the number of dimensions, the dimensions as big-endian int32, the data."""
    header = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">i4").tobytes()
    length = len(header) + int(np.prod(shape))
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(length + 1)  # one more shows a file that goes on, without inflating all of it
    except (EOFError, OSError, zlib.error) as error:
        raise damaged(path, "a complete file", f"{type(error).__name__}: {error}") from None
    if data[: len(header)] != header:
        raise damaged(path, f"an IDX file of {shape} uint8", f"the header {data[: len(header)].hex()}")
    if len(data) != length:
        raise damaged(path, f"{length} bytes", f"{'more' if len(data) > length else len(data)}")
    expected = md5.get(path.name.removesuffix(".gz"))
    found = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if expected is not None and found != expected:
        raise damaged(path, f"contents with the md5 {expected}", f"contents with {found}")
    return np.frombuffer(data, np.uint8, offset=len(header)).reshape(shape)


def layouts(md5: dict[str, str]) -> tuple[FileLayout, ...]:
    """Return the layouts, uncompressed first, then .gz; torchvision keeps them in FashionMNIST/raw."""
    folders = ("raw", "FashionMNIST/raw")
    return tuple(
        FileLayout(
            folders,
            (f"train-images-idx3-ubyte{end}", f"train-labels-idx1-ubyte{end}"),
            (f"t10k-images-idx3-ubyte{end}", f"t10k-labels-idx1-ubyte{end}"),
            partial(read_idx, md5=md5),
        )
        for end in ("", ".gz")
    )


FASHION_MNIST = Source(
    name="fashion-mnist",
    title="Fashion-MNIST",
    classes=10,
    shape=(1, 28, 28),
    train_size=60_000,
    test_size=10_000,
    mean=(0.2860,),
    std=(0.3530,),
    layouts=layouts(CONTENTS),
    how_to_get=(
        "apt-get install dataset-fashion-mnist    (Debian, Ubuntu)",
        "git clone --depth 1 https://github.com/zalandoresearch/fashion-mnist    (its folder data/fashion)",
    ),
    system=("/usr/share/datasets/fashion-mnist",),
)


SOURCES = {"fashion-mnist": FASHION_MNIST}
