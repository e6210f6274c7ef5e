"""Data sets: every layout written here in its true format and read back, every damage refused, no pickle run."""

from __future__ import annotations

import builtins
import gzip
import hashlib
import io
import os
import pickle
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.special import ndtri

from needs import needed
from walkback import FormatError, InputError, WalkbackError
from walkback.data import SOURCES, Dataset, Split, load
from walkback.data.cifar import CIFAR10, CIFAR100
from walkback.data.fashion_mnist import FASHION_MNIST, layouts
from walkback.data.pickled import read_arrays
from walkback.data.source import Source, read
from walkback.data.teacher import CLASSES, INPUTS, teacher, teacher_linear, teacher_products

pa = needed("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

Arrays = tuple[np.ndarray, np.ndarray]


def small(source: Source, train: int, test: int) -> Source:
    """The data set with fewer samples, and without the checksums of the published files."""
    return replace(
        source, train_size=train, test_size=test, layouts=tuple(replace(layout, md5={}) for layout in source.layouts)
    )


C10, C100 = small(CIFAR10, 50, 10), small(CIFAR100, 200, 100)
FASHION = replace(FASHION_MNIST, train_size=30, test_size=10, layouts=layouts({}))


def draw(source: Source) -> dict[str, Arrays]:
    """Random images (N, C, H, W) and every class equally often, in no order."""
    rng, out = np.random.default_rng(7), {}
    for part, size in (("train", source.train_size), ("test", source.test_size)):
        y = rng.permutation(np.arange(size) % source.classes)
        out[part] = rng.integers(0, 256, (size, *source.shape), dtype=np.uint8), y
    return out


# -- writers of the formats ----------------------------------------------------------------------------------


def batches(source: Source, arrays: dict[str, Arrays]) -> dict[str, Arrays]:
    """By the official file names: five training batches for CIFAR-10, one for CIFAR-100."""
    if source.classes == 100:
        return arrays
    x, y = arrays["train"]
    named = {f"data_batch_{i + 1}": (a, b) for i, (a, b) in enumerate(zip(np.split(x, 5), np.split(y, 5)))}
    return named | {"test_batch": arrays["test"]}


def write_binary(source: Source, folder: Path, arrays: dict[str, Arrays]) -> Path:
    folder /= "cifar-10-batches-bin" if source.classes == 10 else "cifar-100-binary"
    folder.mkdir(parents=True)
    for name, (x, y) in batches(source, arrays).items():
        labels = y[:, None] if source.classes == 10 else np.stack([y // 5, y], 1)  # coarse, fine
        rows = np.concatenate([labels.astype(np.uint8), x.reshape(len(x), -1)], 1)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    return folder


def python2(entries: dict[str, Any]) -> bytes:
    """A protocol-2 pickle as Python 2 wrote it: byte strings for keys, array contents and dtype codes."""

    def string(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value  # BINSTRING

    out = b"\x80\x02}("
    for key, value in entries.items():
        out += string(key.encode())
        if isinstance(value, np.ndarray):
            shape = b"".join(b"J" + struct.pack("<i", n) for n in value.shape)
            out += b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + string(b"b") + b"\x87R"
            out += b"(K\x01(" + shape + b"tcnumpy\ndtype\n" + string(b"u1") + b"K\x00K\x01\x87R"
            out += b"(K\x03" + string(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
            out += b"\x89" + string(value.tobytes()) + b"tb"
        elif isinstance(value, list):
            out += b"](" + b"".join(b"J" + struct.pack("<i", n) for n in value) + b"e"
        else:
            out += string(value.encode())
    return out + b"u."


def write_python(
    source: Source, folder: Path, arrays: dict[str, Arrays], dump: Callable[[Any], bytes] = python2
) -> Path:
    folder /= "cifar-10-batches-py" if source.classes == 10 else "cifar-100-python"
    folder.mkdir(parents=True)
    for name, (x, y) in batches(source, arrays).items():
        labels = {"labels": y.tolist()} if source.classes == 10 else {"fine_labels": y.tolist(), "coarse_labels": [0]}
        (folder / name).write_bytes(dump({"batch_label": name, **labels, "data": x.reshape(len(x), -1)}))
    return folder


def write_parquet(source: Source, folder: Path, arrays: dict[str, Arrays], shards: int = 1) -> Path:
    folder /= "plain_text" if source.classes == 10 else "cifar100"
    folder.mkdir(parents=True)
    column = "label" if source.classes == 10 else "fine_label"
    for part, (x, y) in arrays.items():
        for shard, rows in enumerate(np.array_split(np.arange(len(y)), shards)):
            cells = [{"bytes": png(x[i]), "path": f"{i}.png"} for i in rows]
            table = pa.table({"img": cells, column: pa.array(y[rows], pa.int64())})
            pq.write_table(table, folder / f"{part}-{shard:05d}-of-{shards:05d}.parquet")
    return folder


def png(image: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image.transpose(1, 2, 0)).save(file, "PNG")
    return file.getvalue()


def write_idx(folder: Path, arrays: dict[str, Arrays], compress: bool) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, (x, y) in zip(("train", "t10k"), arrays.values()):
        for name, array in (("images-idx3", x[:, 0]), ("labels-idx1", y)):
            data = struct.pack(f">BBBB{array.ndim}i", 0, 0, 8, array.ndim, *array.shape)
            data += array.astype(np.uint8).tobytes()
            path = folder / f"{prefix}-{name}-ubyte{'.gz' if compress else ''}"
            path.write_bytes(gzip.compress(data) if compress else data)
    return folder


def assert_same(data: Dataset, arrays: dict[str, Arrays]) -> None:
    for split, (x, y) in zip((data.train, data.test), arrays.values()):
        assert split.x.dtype == torch.uint8
        assert split.x.is_contiguous()
        assert split.y.dtype == torch.int64
        np.testing.assert_array_equal(split.x.numpy(), x)
        np.testing.assert_array_equal(split.y.numpy(), y)


# -- every layout, read back ---------------------------------------------------------------------------------

CIFAR_LAYOUTS = [write_binary, write_python, write_parquet]


@pytest.mark.parametrize("source", [C10, C100], ids=lambda s: s.name)
@pytest.mark.parametrize("write", CIFAR_LAYOUTS)
def test_cifar_is_read_from_every_layout(source: Source, write: Callable[..., Path], tmp_path: Path) -> None:
    arrays = draw(source)
    write(source, tmp_path, arrays)
    data = read(source, tmp_path)
    assert_same(data, arrays)
    assert (data.name, data.classes, data.input_shape) == (source.name, source.classes, (3, 32, 32))


@pytest.mark.parametrize("write", CIFAR_LAYOUTS)
def test_root_is_the_folder_or_any_parent_up_to_the_one_of_the_data_set(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    arrays = draw(C10)
    folder = write(C10, tmp_path / "cifar10", arrays)
    for root in (folder, folder.parent, tmp_path, str(tmp_path)):
        assert_same(read(C10, root), arrays)


def test_parquet_shards_are_joined_in_order(tmp_path: Path) -> None:
    arrays = draw(C10)
    write_parquet(C10, tmp_path, arrays, shards=3)
    assert_same(read(C10, tmp_path), arrays)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_python_batches_pickled_anew_are_read(protocol: int, tmp_path: Path) -> None:
    arrays = draw(C10)
    write_python(C10, tmp_path, arrays, lambda entries: pickle.dumps(entries, protocol))
    if protocol < 5:  # protocol 5 pickles arrays as buffers, which the official files never are
        assert_same(read(C10, tmp_path), arrays)
    else:
        with pytest.raises(FormatError, match="_frombuffer"):
            read(C10, tmp_path)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("place", ["", "fashion-mnist", "FashionMNIST/raw"])
def test_fashion_mnist_is_read_compressed_or_not(compress: bool, place: str, tmp_path: Path) -> None:
    arrays = draw(FASHION)
    write_idx(tmp_path / place, arrays, compress)
    data = read(FASHION, tmp_path)
    assert_same(data, arrays)
    assert data.input_shape == (1, 28, 28)


def test_order_of_the_files_is_kept(tmp_path: Path) -> None:
    arrays = {part: (x, np.sort(y)) for part, (x, y) in draw(C100).items()}
    write_binary(C100, tmp_path, arrays)
    assert_same(read(C100, tmp_path), arrays)


def test_prepared_images_are_normalised_by_channel(tmp_path: Path) -> None:
    arrays = draw(C10)
    write_binary(C10, tmp_path, arrays)
    data = read(C10, tmp_path)
    expected = (arrays["test"][0] / 255 - np.reshape(data.mean, (3, 1, 1))) / np.reshape(data.std, (3, 1, 1))
    np.testing.assert_allclose(data.prepare(data.test.x).numpy(), expected, atol=1e-6)


# -- where they are looked for -------------------------------------------------------------------------------


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a current folder without any data."""
    for name in ("WALKBACK_DATA", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


HUB = ".cache/huggingface/hub/datasets--uoft-cs--cifar10/snapshots/0123abcd"


@pytest.mark.parametrize("place", [".cache/walkback", ".cache/walkback/cifar10", "data", "data/cifar10", HUB])
def test_usual_folders_are_searched(place: str, nowhere: Path) -> None:
    arrays = draw(C10)
    write_parquet(C10, nowhere / place, arrays)
    assert_same(read(C10), arrays)


def test_walkback_data_comes_before_the_usual_folders(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = draw(C10)
    write_binary(C10, nowhere / "mine", arrays)
    write_binary(C10, nowhere / "data", {k: (255 - x, y) for k, (x, y) in arrays.items()})
    monkeypatch.setenv("WALKBACK_DATA", str(nowhere / "mine"))
    assert_same(read(C10), arrays)


def test_a_root_that_was_given_is_the_only_place(nowhere: Path) -> None:
    write_binary(C10, nowhere / "data", draw(C10))
    (nowhere / "empty").mkdir()
    with pytest.raises(FormatError, match="found no complete set"):
        read(C10, nowhere / "empty")


@pytest.mark.parametrize("name", SOURCES)
def test_missing_data_says_what_was_looked_for_and_how_to_get_it(name: str, nowhere: Path) -> None:
    source = replace(SOURCES[name], system=())
    with pytest.raises(FormatError) as caught:
        read(source)
    message = str(caught.value)
    for layout in source.layouts:
        for file in (*layout.train, *layout.test, *layout.folders):
            assert file in message
    for place in (nowhere / ".cache/walkback", f"data/{name}", "WALKBACK_DATA", *source.how_to_get):
        assert str(place) in message


def test_an_incomplete_folder_is_named_with_what_it_lacks(tmp_path: Path) -> None:
    folder = write_binary(C10, tmp_path, draw(C10))
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(FormatError, match=r"cifar-10-batches-bin is incomplete: it lacks data_batch_3\.bin\."):
        read(C10, tmp_path)


def test_an_incomplete_layout_does_not_hide_a_complete_one(tmp_path: Path) -> None:
    arrays = draw(C10)
    (write_binary(C10, tmp_path, arrays) / "test_batch.bin").unlink()
    write_parquet(C10, tmp_path, arrays)
    assert_same(read(C10, tmp_path), arrays)


# -- damage --------------------------------------------------------------------------------------------------


def cut(path: Path, by: int = 100) -> None:
    path.write_bytes(path.read_bytes()[:-by])


@pytest.mark.parametrize("source", [C10, C100], ids=lambda s: s.name)
@pytest.mark.parametrize("write", CIFAR_LAYOUTS)
@pytest.mark.parametrize("which", ["train", "test"])
def test_truncated_cifar_is_refused(source: Source, write: Callable[..., Path], which: str, tmp_path: Path) -> None:
    folder = write(source, tmp_path, draw(source))
    path = sorted(p for p in folder.iterdir() if p.name.startswith("test") == (which == "test"))[-1]
    cut(path)
    with pytest.raises(FormatError, match=f"{path.name}.*fresh copy"):
        read(source, tmp_path)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_truncated_idx_is_refused(compress: bool, name: str, tmp_path: Path) -> None:
    write_idx(tmp_path, draw(FASHION), compress)
    cut(tmp_path / f"{name}{'.gz' if compress else ''}", 5)
    with pytest.raises(FormatError, match=f"{name}.*fresh copy"):
        read(FASHION, tmp_path)


def test_idx_that_goes_on_or_has_another_shape_is_refused(tmp_path: Path) -> None:
    write_idx(tmp_path, draw(FASHION), compress=False)
    path = tmp_path / "t10k-images-idx3-ubyte"
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0")
    with pytest.raises(FormatError, match="but found more"):
        read(FASHION, tmp_path)
    path.write_bytes(whole[:8] + struct.pack(">ii", 14, 56) + whole[16:])
    with pytest.raises(FormatError, match=r"expected an IDX file of \(10, 28, 28\) uint8"):
        read(FASHION, tmp_path)


@pytest.mark.parametrize("write", CIFAR_LAYOUTS)
def test_cifar_labels_out_of_range_are_refused(write: Callable[..., Path], tmp_path: Path) -> None:
    arrays = draw(C10)
    arrays["test"][1][3] = 10
    write(C10, tmp_path, arrays)
    with pytest.raises(FormatError, match="expected labels from 0 to 9, but found 0 to 10"):
        read(C10, tmp_path)


def test_fashion_mnist_labels_out_of_range_are_refused(tmp_path: Path) -> None:
    arrays = draw(FASHION)
    arrays["train"][1][0] = 255
    write_idx(tmp_path, arrays, compress=True)
    with pytest.raises(FormatError, match="expected labels from 0 to 9, but found 0 to 255"):
        read(FASHION, tmp_path)


def test_classes_of_different_size_are_refused(tmp_path: Path) -> None:
    arrays = draw(C10)
    arrays["train"][1][:5] = 4
    write_binary(C10, tmp_path, arrays)
    with pytest.raises(FormatError, match="expected 5 samples of each class, but found between"):
        read(C10, tmp_path)


def test_fewer_rows_than_published_are_refused(tmp_path: Path) -> None:
    write_parquet(C10, tmp_path, draw(C10))
    with pytest.raises(FormatError, match=r"expected images \(100, 3, 32, 32\) uint8, but found \(50, 3, 32, 32\)"):
        read(replace(C10, train_size=100), tmp_path)


def test_published_checksums_are_compared(tmp_path: Path) -> None:
    write_python(CIFAR100, tmp_path, draw(C100))
    with pytest.raises(FormatError, match="train: expected the published file with the md5 16019d7e3df5f24257cdd"):
        read(CIFAR100, tmp_path)
    path = tmp_path / "cifar-100-python" / "train"
    right = {"train": hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()}
    read(replace(C100, layouts=tuple(replace(layout, md5=right) for layout in C100.layouts)), tmp_path)


def test_contents_of_fashion_mnist_are_compared(tmp_path: Path) -> None:
    write_idx(tmp_path, draw(FASHION), compress=True)
    with pytest.raises(FormatError, match="expected contents with the md5 f4a8712d7a061bf5bd6d2ca38dc4d50a"):
        read(replace(FASHION, layouts=FASHION_MNIST.layouts), tmp_path)


@pytest.mark.skipif(
    not Path(FASHION_MNIST.system[0]).is_dir() and not os.environ.get("WALKBACK_NEEDS_FASHION"),
    reason="needs Debian's dataset-fashion-mnist, which `make fashion` installs",
)
def test_fashion_mnist_of_the_distribution(nowhere: Path) -> None:
    data = load("fashion-mnist")
    assert data.train.x.shape == (60_000, 1, 28, 28)
    assert data.train.y[:5].tolist() == [9, 0, 0, 3, 0]


@pytest.mark.parametrize(
    ("cell", "match"),
    [
        (png(np.zeros((3, 8, 8), np.uint8)), r"row 0: expected 32×32 pixels, but found 8×8"),
        (b"GIF89a", "row 0: expected a PNG or JPEG"),
        (None, "row 0: expected a PNG or JPEG"),
    ],
)
def test_wrong_pictures_are_refused(cell: bytes | None, match: str, tmp_path: Path) -> None:
    folder = write_parquet(C10, tmp_path, draw(C10))
    table = pa.table({"img": [{"bytes": cell, "path": ""}], "label": [0]})
    pq.write_table(table, folder / "train-00000-of-00001.parquet")
    with pytest.raises(FormatError, match=match):
        read(C10, tmp_path)


def test_other_columns_are_refused(tmp_path: Path) -> None:
    folder = write_parquet(C10, tmp_path, draw(C10))
    pq.write_table(pa.table({"image": [1], "label": [0]}), folder / "train-00000-of-00001.parquet")
    with pytest.raises(FormatError, match="expected the columns img and label"):
        read(C10, tmp_path)
    pq.write_table(pa.table({"img": [1], "label": [0]}), folder / "train-00000-of-00001.parquet")
    with pytest.raises(FormatError, match="expected the columns img and label"):
        read(C10, tmp_path)


@pytest.mark.parametrize("absent", ["pyarrow", "PIL"])
def test_without_the_extra_its_name_is_given(absent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(C10, tmp_path, draw(C10))
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == absent:
            raise ModuleNotFoundError(f"No module named {absent!r}", name=absent)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(WalkbackError, match=rf"{absent} is not installed.*walkback\[data\]"):
        read(C10, tmp_path)


# -- pickles are read, not run -------------------------------------------------------------------------------


class Evil:
    """Runs a call when it is unpickled."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("function", [os.system, eval, exec, os.mkdir, getattr, np.load, torch.load])
def test_malicious_pickle_is_refused_and_not_run(function: Callable[..., Any], protocol: int, tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    argument = {os.system: f"mkdir {trace}", os.mkdir: str(trace)}.get(
        function, f"__import__('os').mkdir({str(trace)!r})"
    )
    evil = pickle.dumps({"data": Evil(function, argument)}, protocol)
    if function in (os.system, os.mkdir, eval):  # the attack is real
        pickle.loads(evil)
        assert trace.is_dir()
        trace.rmdir()
    arrays = draw(C10)
    folder = write_python(C10, tmp_path, arrays)
    (folder / "data_batch_2").write_bytes(evil)
    with pytest.raises(FormatError, match=r"could run code\. It was refused"):
        read(C10, tmp_path)
    assert not trace.exists()


STAND_IN_ATTACKS = {
    "array of objects": pickle.dumps(np.array([{}, []], dtype=object), 2),
    "structured dtype": pickle.dumps(np.zeros(2, [("a", "u1"), ("b", "f8")]), 2),
    "matrix, a subclass": b"\x80\x02cnumpy\nmatrix\n.",
    "codec": b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.",
    "call of ndarray": b"\x80\x02cnumpy\nndarray\nK\x05\x85R.",
    "change of a name": b"\x80\x02cnumpy\ndtype\n}X\x05\x00\x00\x00_makeK\x01sb.",
    "change of a name's slot": b"\x80\x02cnumpy\ndtype\nN}X\x05\x00\x00\x00_makeK\x01s\x86b.",
    "a function as the value": b"\x80\x02cnumpy\ndtype\n.",
    "persistent object": b"\x80\x02K\x01Q.",
}


@pytest.mark.parametrize("attack", STAND_IN_ATTACKS.values(), ids=STAND_IN_ATTACKS.keys())
def test_what_data_does_not_need_is_refused(attack: bytes, tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(attack)
    with pytest.raises(FormatError, match="It was refused"):
        read_arrays(path)
    path.write_bytes(python2({"data": np.arange(6, dtype=np.uint8).reshape(2, 3)}))  # and nothing has stuck
    np.testing.assert_array_equal(read_arrays(path)[b"data"], [[0, 1, 2], [3, 4, 5]])


@pytest.mark.parametrize("damage", [b"", b"hello", b"\x80\x02}", b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nR."])
def test_damaged_pickles_are_format_errors(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(damage)
    with pytest.raises(FormatError, match="it is damaged"):
        read_arrays(path)


def test_an_array_longer_than_its_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    whole = python2({"data": np.zeros((2, 3), np.uint8)})
    path.write_bytes(whole.replace(b"J\x03\0\0\0", b"J\xff\xff\xff\x0f"))
    with pytest.raises(FormatError, match="it is damaged"):
        read_arrays(path)


@pytest.mark.parametrize("dtype", ["<i8", ">f4", "|u1", "<u2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_numeric_arrays_are_read_as_numpy_reads_them(dtype: str, order: Any, tmp_path: Path) -> None:
    array = np.asarray(np.arange(24).reshape(2, 3, 4), dtype=dtype, order=order)
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps([array, ("a", 1.5)], 4))
    found, rest = read_arrays(path)
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype
    assert rest == ("a", 1.5)


@pytest.mark.parametrize(
    ("entries", "match"),
    [
        ({"labels": [0] * 10}, "expected data"),
        ({"data": np.zeros((10, 3072), np.float64), "labels": [0] * 10}, "expected data"),
        ({"data": np.zeros((10, 3072), np.uint8)}, "expected labels, a list of 10 integers"),
        ({"data": np.zeros((10, 3072), np.uint8), "labels": [0.5] * 10}, "expected labels, a list of 10 integers"),
        ([1, 2], "expected a dict"),
    ],
)
def test_batches_that_hold_something_else_are_refused(entries: Any, match: str, tmp_path: Path) -> None:
    folder = write_python(C10, tmp_path, draw(C10))
    (folder / "data_batch_1").write_bytes(pickle.dumps(entries, 2))
    with pytest.raises(FormatError, match=match):
        read(C10, tmp_path)


# -- the embedded tasks --------------------------------------------------------------------------------------


def digest(data: Dataset) -> str:
    parts = (data.train.y, data.test.y, (data.train.x[:1000] * 1e4).round().long())
    return hashlib.sha256(b"".join(p.numpy().tobytes() for p in parts)).hexdigest()[:16]


def test_embedded_tasks_are_the_same_everywhere_and_always() -> None:
    assert digest(teacher()) == digest(load("teacher")) == "98596ceffa49908d"
    assert digest(teacher_products()) == digest(load("teacher-products")) == "c96b491dd386eed7"
    assert digest(teacher_linear()) == digest(load("teacher-linear")) == "02bc519879be53a0"


def agreement(x: np.ndarray, y: np.ndarray) -> float:
    """How often the least-squares fit of the classes' normal scores, cut into equal classes, gives the class back."""
    target = ndtri((y + 0.5) / CLASSES)
    score = x @ np.linalg.solve(x.T @ x, x.T @ target)
    cuts = np.quantile(score, np.arange(1, CLASSES) / CLASSES)
    return float((np.searchsorted(cuts, score) == y).mean())


def test_teacher_needs_products_of_its_inputs() -> None:
    data = teacher()
    x, y = data.test.x.double().numpy(), data.test.y.numpy()
    i, j = np.triu_indices(INPUTS)
    linear = np.concatenate([np.ones((len(x), 1)), x], 1)
    quadratic = np.concatenate([linear, x[:, i] * x[:, j]], 1)
    assert 0.15 < agreement(linear, y) < 0.25
    assert agreement(quadratic, y) > 0.75


def test_teacher_products_needs_products_of_its_inputs() -> None:
    """Least squares of the classes is right on 0.6 of the samples from the inputs alone, on 0.8 with products."""
    data = teacher_products()
    x, y = (np.concatenate([getattr(s, name).numpy() for s in (data.train, data.test)]) for name in "xy")
    i, j = np.triu_indices(x.shape[1])
    products = np.concatenate([np.ones((len(x), 1)), x, x[:, i] * x[:, j]], 1)
    right = []
    for z in (products[:, : 1 + x.shape[1]], products):
        train, test = z[: len(data.train)], z[len(data.train) :]
        w = np.linalg.lstsq(train, np.eye(10)[y[: len(train)]], rcond=None)[0]
        right.append(((test @ w).argmax(1) == y[len(train) :]).mean())
    assert 0.55 < right[0] < 0.65
    assert right[1] > right[0] + 0.15


def test_teacher_linear_is_solved_by_a_linear_map() -> None:
    data = teacher_linear()
    target = np.eye(10)[data.train.y.numpy()]
    x = data.train.x.double().numpy()
    w = np.linalg.solve(x.T @ x, x.T @ target)
    right = (data.test.x.double().numpy() @ w).argmax(1) == data.test.y.numpy()
    assert right.mean() > 0.8


def test_loading_leaves_all_random_states_alone(tmp_path: Path) -> None:
    write_idx(tmp_path, draw(FASHION), compress=True)
    write_parquet(C10, tmp_path, draw(C10))
    before = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state()
    load("teacher")
    load("teacher-linear")
    read(FASHION, tmp_path)
    read(C10, tmp_path)
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tobytes() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


def test_embedded_tasks_don_t_share_memory_between_loads() -> None:
    first = load("teacher-linear")
    first.train.x.zero_()
    assert load("teacher-linear").train.x.abs().sum() > 0


# -- by name, and one's own ----------------------------------------------------------------------------------

MINE = """
import torch
from walkback.data import Dataset, Split

def good(root="nowhere"):
    split = Split(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]))
    return Dataset(str(root), split, split, 2)

def wrong_type():
    return torch.zeros(3)

def broken(**change):
    split = Split(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]))
    return Dataset(**({"name": "x", "train": split, "test": split, "classes": 2} | change))

def labels_out_of_range():
    return broken(classes=1)

def float_labels():
    return broken(test=Split(torch.zeros(2, 3), torch.zeros(2)))

def lengths_differ():
    return broken(train=Split(torch.zeros(3, 3), torch.tensor([0, 1])))

def shapes_differ():
    return broken(test=Split(torch.zeros(2, 5), torch.tensor([0, 1])))

def not_finite():
    return broken(train=Split(torch.full((2, 3), float("nan")), torch.tensor([0, 1])))

def half_normalised():
    return broken(mean=(0.5, 0.5, 0.5))

def pixels(dtype=torch.uint8, **change):
    split = Split(torch.zeros(2, 1, 4, 4, dtype=dtype), torch.tensor([0, 1]))
    return broken(**({"train": split, "test": split} | change))

def float_normalised():
    return pixels(torch.float32, mean=(0.5,), std=(0.5,))

def bytes_as_they_are():
    return pixels()

def std_of_zero():
    return pixels(mean=(0.5,), std=(0.0,))

def arrays():
    return broken(train=Split([[0.0]], [0]))

def no_split():
    return broken(test=3)
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"mine_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return name


def test_own_data_by_entry(mine: str, tmp_path: Path) -> None:
    assert load(f"{mine}:good").name == "nowhere"
    assert load(f"{mine}:good", tmp_path).name == str(tmp_path)


@pytest.mark.parametrize(
    ("function", "match"),
    [
        ("wrong_type", r"to return a walkback\.data\.Dataset, but got a Tensor"),
        ("labels_out_of_range", "Expected train labels from 0 to 0, but got 0 to 1"),
        ("float_labels", r"Expected test labels \(N,\) int64, but got \(2,\) torch.float32"),
        ("lengths_differ", "Expected as many train inputs as labels, but got 3 and 2"),
        ("shapes_differ", r"Expected test inputs of the training inputs' shape \(3,\), but got \(5,\)"),
        ("not_finite", "Expected finite train inputs"),
        ("half_normalised", "Expected a mean and a std for each of the 3 channels"),
        ("float_normalised", "for no others, but got train inputs of torch.float32 with them"),
        ("bytes_as_they_are", "Expected mean and std for uint8 inputs.* train inputs of torch.uint8 without them"),
        ("std_of_zero", r"Expected finite means and stds > 0, but got \(0.5,\) and \(0.0,\)"),
        ("arrays", "Expected train to be a Split of two tensors, but got list and list"),
        ("no_split", "Expected test to be a Split of two tensors, but got a int"),
    ],
)
def test_own_data_that_can_t_be_trained_on_is_refused(mine: str, function: str, match: str) -> None:
    with pytest.raises(InputError, match=match):
        load(f"{mine}:{function}")


def test_an_embedded_data_set_takes_no_root() -> None:
    with pytest.raises(InputError, match="Expected no root for teacher, which is embedded, but got '/nope'"):
        load("teacher", "/nope")


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(
        InputError,
        match="teacher, teacher-products, teacher-linear, cifar10, cifar100, fashion-mnist or module:function",
    ):
        load("imagenet")


def test_split_and_dataset_are_plain_values() -> None:
    split = Split(torch.zeros(2, 3), torch.tensor([0, 1]))
    data = Dataset("x", split, split, 2)
    assert len(split) == 2
    assert data.prepare(split.x).dtype == torch.float32
    with pytest.raises(AttributeError):
        data.classes = 3  # type: ignore[misc]


def test_a_small_parquet_file_that_holds_gigabytes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """One picture of zeros, ten thousand times: a file of kilobytes, and ten gigabytes of pictures."""
    from walkback.data.cifar import read_parquet
    from walkback.data.source import SplitFiles

    kind = pa.struct([("bytes", pa.binary())])
    table = pa.table({"img": pa.array([{"bytes": bytes(10**6)}] * 50, type=kind), "label": [0] * 50})
    with pq.ParquetWriter(tmp_path / "x.parquet", table.schema, compression="zstd") as out:
        for _ in range(4):
            out.write_table(table)
    assert (tmp_path / "x.parquet").stat().st_size < 10**4
    with pytest.raises(FormatError, match="one of 1000000"):
        read_parquet([tmp_path / "x.parquet"], SplitFiles(10_000, 10, (3, 32, 32)), "label")
    with pytest.raises(FormatError, match="at most 100 pictures of 3072 bytes, but found 200 rows"):
        read_parquet([tmp_path / "x.parquet"], SplitFiles(100, 10, (3, 32, 32)), "label")


def test_a_pickle_can_not_ask_for_places_without_end(tmp_path: Path) -> None:
    far = b"\x80\x02]r" + (10**8).to_bytes(4, "little") + b"."
    (tmp_path / "far").write_bytes(far)
    with pytest.raises(FormatError, match="object number 100000000 in 9 bytes"):
        read_arrays(tmp_path / "far")
    doubled: list = []
    for _ in range(60):
        doubled = [doubled, doubled]
    (tmp_path / "doubled").write_bytes(pickle.dumps(doubled))
    found, depth = read_arrays(tmp_path / "doubled"), 0
    while found:
        found, depth = found[1], depth + 1
    assert depth == 60
