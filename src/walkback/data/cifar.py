"""CIFAR-10 and CIFAR-100, from the official binary files, the "python version", or the Hugging Face parquet files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from walkback.data.pickled import read_arrays
from walkback.data.source import FileLayout, Source, SplitFiles, damaged
from walkback.errors import FormatError, InputError

AT_ONCE = 64 * 2**20  # bytes of pictures that are unpacked at a time


def read_binary(paths: list[Path], part: SplitFiles, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Read records of `label_bytes` labels, the last one the class, and the image as C, H, W."""
    record = label_bytes + int(np.prod(part.shape))
    rows, each = [], part.size // len(paths)
    for path in paths:
        if path.stat().st_size != each * record:
            raise damaged(path, f"{each} records of {record} bytes = {each * record} bytes", f"{path.stat().st_size}")
        rows.append(np.fromfile(path, np.uint8).reshape(each, record))
    table = np.concatenate(rows)
    return table[:, label_bytes:].reshape(-1, *part.shape), table[:, label_bytes - 1]


def read_python(paths: list[Path], part: SplitFiles, label_key: str) -> tuple[np.ndarray, np.ndarray]:
    """Read pickled dicts with `data` (N, C·H·W) uint8 and a list of labels, without running the pickle."""
    images, labels, each = [], [], part.size // len(paths)
    for path in paths:
        batch = read_arrays(path)
        if not isinstance(batch, dict):
            raise damaged(path, "a dict", f"a {type(batch).__name__}")
        batch = {k.decode("latin1") if isinstance(k, bytes) else k: v for k, v in batch.items()}
        data, y = batch.get("data"), batch.get(label_key)
        shape = (each, int(np.prod(part.shape)))
        if not isinstance(data, np.ndarray) or data.shape != shape or data.dtype != np.uint8:
            found = f"{data.shape} {data.dtype}" if isinstance(data, np.ndarray) else f"a {type(data).__name__}"
            raise damaged(path, f"data {shape} uint8", found)
        if not isinstance(y, list) or len(y) != each or any(type(v) is not int for v in y):
            raise damaged(path, f"{label_key}, a list of {each} integers", "something else")
        images.append(data.reshape(-1, *part.shape))
        labels += y
    return np.concatenate(images), np.array(labels)


def read_parquet(paths: list[Path], part: SplitFiles, label_column: str) -> tuple[np.ndarray, np.ndarray]:
    """Read the columns `img` {bytes: a PNG or JPEG} and `label_column`."""
    try:
        import pyarrow.parquet as pq
        from PIL import Image
    except ImportError as error:
        raise InputError(
            f"Expected pyarrow and pillow to read {paths[0]}, but {error.name} is not installed. "
            "pip install 'walkback[data]', or get the official binary files, which need neither."
        ) from None
    channels, height, width = part.shape
    images, labels = [], []
    for path in paths:
        for pictures, names in _batches(path, part, label_column, pq):
            labels.append(names)
            for picture in pictures:
                row = len(images)
                try:
                    image = Image.open(io.BytesIO(picture), formats=("PNG", "JPEG"))
                    if image.size != (width, height):  # before decoding: a small file can hold a huge picture
                        raise damaged(f"{path}, row {row}", f"{width}×{height} pixels", "×".join(map(str, image.size)))
                    images.append(np.asarray(image.convert("RGB" if channels == 3 else "L")))
                except FormatError:
                    raise
                except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error
                    raise damaged(f"{path}, row {row}", "a PNG or JPEG", f"{type(error).__name__}: {error}") from None
    if not images:
        raise damaged(paths[0], f"{part.size} rows", "none")
    return np.stack(images).reshape(-1, height, width, channels).transpose(0, 3, 1, 2), np.concatenate(labels)


def _batches(path: Path, part: SplitFiles, label_column: str, pq: Any) -> Iterator[tuple[list[bytes], np.ndarray]]:
    """Yield pictures and labels of a parquet file, so few at a time that they fit into memory.

    What repeats is stored once in such a file, so that a small one can hold gigabytes: sizes are looked at first.
    """
    raw = int(np.prod(part.shape))
    try:
        file = pq.ParquetFile(path)
        rows = file.metadata.num_rows
        sizes = [file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups)]
        if rows > part.size or sum(sizes) > 2 * raw * part.size + 2**20:  # a PNG is hardly larger than its pixels
            found = f"{rows} rows, {sum(sizes)} bytes in all"
            raise damaged(path, f"at most {part.size} pictures of {raw} bytes", found)
        for group, size in enumerate(sizes):
            at_once = max(1, min(256, AT_ONCE // max(size, 1)))  # no picture is larger than all of its group
            for batch in file.iter_batches(at_once, row_groups=[group], columns=["img", label_column]):
                pictures = batch["img"].field("bytes").to_pylist()
                longest = max((len(picture) for picture in pictures if picture is not None), default=0)
                if longest > 16 * raw + 2**12:
                    raise damaged(path, f"pictures of about {raw} bytes", f"one of {longest}")
                yield pictures, batch[label_column].to_numpy(zero_copy_only=False)
    except FormatError:
        raise
    # pyarrow's errors are among these; what is no struct has no fields.
    except (OSError, LookupError, TypeError, ValueError, AttributeError, NotImplementedError) as error:
        raise damaged(path, f"the columns img and {label_column}", f"{type(error).__name__}: {error}") from None


def _cifar(
    classes: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    binary: FileLayout,
    python: FileLayout,
    folder: str,
    column: str,
) -> Source:
    """Return the source of CIFAR-10 or CIFAR-100; `folder` on the hub and `column` of the labels are of parquet."""
    reader, hub = partial(read_parquet, label_column=column), f"uoft-cs/cifar{classes}"
    parquet = FileLayout((folder,), ("train-*.parquet",), ("test-*.parquet",), reader, needs=("pyarrow", "PIL"))
    archive = f"https://www.cs.toronto.edu/~kriz/cifar-{classes}-binary.tar.gz"
    return Source(
        name=f"cifar{classes}",
        title=f"CIFAR-{classes}",
        classes=classes,
        shape=(3, 32, 32),
        train_size=50_000,
        test_size=10_000,
        mean=mean,
        std=std,
        layouts=(binary, python, parquet),
        how_to_get=(
            "mkdir -p ~/.cache/walkback",
            f"curl -L {archive} | tar xz -C ~/.cache/walkback",
            f"or: hf download {hub} --repo-type dataset    (reading it needs walkback[data])",
        ),
        hub=(hub, f"cifar{classes}"),
    )


_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
_MD5_100 = {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"}
_binary, _python = partial(read_binary, label_bytes=1), partial(read_python, label_key="labels")
_binary_100, _python_100 = partial(read_binary, label_bytes=2), partial(read_python, label_key="fine_labels")

CIFAR10 = _cifar(
    10,
    (0.4914, 0.4822, 0.4465),
    (0.2470, 0.2435, 0.2616),
    FileLayout(("cifar-10-batches-bin",), tuple(f"{name}.bin" for name in _BATCHES), ("test_batch.bin",), _binary),
    FileLayout(("cifar-10-batches-py",), _BATCHES, ("test_batch",), _python, _MD5),
    "plain_text",
    "label",
)
CIFAR100 = _cifar(
    100,
    (0.5071, 0.4865, 0.4409),
    (0.2673, 0.2564, 0.2762),
    FileLayout(("cifar-100-binary",), ("train.bin",), ("test.bin",), _binary_100),
    FileLayout(("cifar-100-python",), ("train",), ("test",), _python_100, _MD5_100),
    "cifar100",
    "fine_label",
)
SOURCES = {"cifar10": CIFAR10, "cifar100": CIFAR100}
