"""Scale: sharded networks, parts of batches, memory, deep stacks and wide tokens."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import walkback as wb
from nets import SmoothNet, batched
from patience import PATIENCE
from places import HELPERS

# -- two processes ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("ranks") / "found.json"
    script = HELPERS / "two_ranks.py"
    done = subprocess.run([sys.executable, str(script), str(out)], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text(encoding="utf-8"))


@pytest.mark.parametrize("net", ["Branches", "Encoder"])
@pytest.mark.parametrize("how", ["DDP", "FSDP2", "FSDP2 in chunks", "FSDP2, run again"])
def test_numbers_of_a_distributed_network_are_those_of_the_plain_one(two_ranks: list, net: str, how: str) -> None:
    for found in two_ranks:
        plain, wrapped = found[net]["plain"], found[net][how]
        assert len(plain["g_norm"]) == 7
        for key in ("h_norm", "g_norm", "cosine"):
            assert wrapped[key] == pytest.approx(plain[key], rel=1e-12)
        assert wrapped["anatomy"] == plain["anatomy"], "shown with the classes and paths the user wrote"
        assert wrapped["untouched"]
    assert two_ranks[0][net][how]["g_norm"] == two_ranks[1][net][how]["g_norm"]


@pytest.mark.parametrize("net", ["Branches", "Encoder"])
def test_sharded_networks_are_never_gathered_and_train_on(two_ranks: list, net: str) -> None:
    for found in two_ranks:
        assert found[net]["plain"]["gathered"] == 6
        assert found[net]["FSDP2"]["gathered"] <= 2
        assert found[net]["FSDP2, probed"]["untouched"]
        assert all(0 < norm < 1e6 for norm in found[net]["step"].values())
    # Each rank has its shard: together the gradients are those of the plain network.
    shards = sum(found[net]["step"]["FSDP2"] for found in two_ranks)
    assert shards == pytest.approx(two_ranks[0][net]["step"]["plain"])


@pytest.mark.parametrize("net", ["Branches", "Encoder"])
def test_probes_of_a_sharded_network(two_ranks: list, net: str) -> None:
    for found in two_ranks:
        assert found[net]["FSDP2, probed"]["nudging"] == pytest.approx(found[net]["plain, probed"]["nudging"], rel=1e-6)


@pytest.mark.parametrize("net", ["Branches", "Encoder"])
def test_a_credit_that_writes_weights_is_refused_wherever_they_are(two_ranks: list, net: str) -> None:
    for found in two_ranks:
        assert found[net]["refused"] == {"plain": True, "DDP": True, "FSDP2": True}


# -- a batch in parts -----------------------------------------------------------------------------------------


def mean_loss(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits, y)


@pytest.mark.parametrize("kind", ["flat", "tokens", "maps"])
@pytest.mark.parametrize("chunk", [50, 128, 1000])
@pytest.mark.parametrize("loss", [None, mean_loss], ids=["per sample", "mean"])
def test_chunks_change_no_number(kind: str, chunk: int, loss: Callable | None) -> None:
    net = SmoothNet(kind).double()
    x, y = net.example(300)
    batches = batched(x.double(), y, 140, 100, 60)
    generator = torch.Generator().manual_seed(0)
    weight = torch.rand(x.shape[1:][-1:], generator=generator, dtype=torch.float64)[:1]

    def credit(trace: wb.Trace) -> list[Tensor]:
        return [g + weight * h.abs() for g, h in zip(trace.grads, trace.states)]

    whole, parts = (asdict(wb.measure(net, batches, credit=credit, loss=loss, chunk=n)) for n in (None, chunk))
    assert parts["conditions"].pop("chunk") == chunk
    assert whole["conditions"].pop("chunk") is None
    assert whole["stability"] is not None
    assert whole["gamma"] is not None
    assert parts == approx(whole)


def approx(value: Any) -> Any:
    """Numbers up to rounding, everything else exactly, however deep."""
    if isinstance(value, float):
        return pytest.approx(value, rel=1e-9)
    if isinstance(value, dict):
        return {key: approx(v) for key, v in value.items()}
    return [approx(v) for v in value] if isinstance(value, list) else value


def test_samples_one_at_a_time() -> None:
    net, (batch,) = wb.selftest.network(), wb.selftest.batches(1, 9)
    whole, parts = (wb.measure(net, [batch], chunk=n) for n in (None, 1))
    assert parts.g_norm == pytest.approx(whole.g_norm, rel=1e-5)
    assert parts.conditions["batches"] == 1


@pytest.mark.parametrize("chunk", [0, -1, 2.5, True, "8"])
def test_a_chunk_that_is_no_number_of_samples_is_refused(chunk: object) -> None:
    with pytest.raises(wb.InputError, match="Expected chunk to be a whole number >= 1"):
        wb.measure(wb.selftest.network(), wb.selftest.batches(1), chunk=chunk)  # type: ignore[arg-type]


def test_dicts_are_split_with_what_belongs_to_each_sample() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(9, 8), nn.Linear(8, 5)
            self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

        def forward(self, ids: Tensor, attention_mask: Tensor, scale: Tensor, kind: str) -> Tensor:
            assert len(ids) == len(attention_mask)
            assert (scale.shape, kind) == ((3,), "as it is")
            h = self.embed(ids)
            for block in self.blocks:
                h = h + block(h) * scale[0]
            keep = attention_mask[..., None].to(h)
            return self.head((h * keep).sum(1) / keep.sum(1))

    torch.manual_seed(0)
    net = Net().double()
    mask = (torch.arange(6) < torch.randint(1, 7, (10, 1))).long()
    x = {"ids": torch.randint(9, (10, 6)), "attention_mask": mask, "scale": torch.ones(3).double(), "kind": "as it is"}
    batch = (x, torch.randint(5, (10,)))
    whole, parts = (wb.measure(net, [batch], chunk=n) for n in (None, 4))
    assert parts.g_norm == pytest.approx(whole.g_norm)
    assert parts.conditions["probe_hash"] == whole.conditions["probe_hash"]
    assert parts.conditions["batch_size"] == 10


# -- memory -----------------------------------------------------------------------------------------------


class Live(TorchDispatchMode):
    """The most bytes of tensors that were alive at a time, of those made while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self._alive = {key: item for key, item in self._alive.items() if not item[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))
        return out


def peak(run: Callable[[], object]) -> int:
    gc.collect()
    with Live() as live:
        run()
    return live.peak


class Tower(nn.Module):
    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.embed, self.out_head = nn.Linear(width, width), nn.Linear(width, 5)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.Tanh()) for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h)
        return self.out_head(h.mean(1))


def bare(net: Tower, batches: list[tuple[Tensor, Tensor]]) -> None:
    """The least there is: forward, and backward to the first state."""
    for x, y in batches:
        h = first = net.embed(x)
        for block in net.blocks:
            h = h + block(h)
        torch.autograd.grad(F.cross_entropy(net.out_head(h.mean(1)), y, reduction="sum"), first)


DEEP, WIDE, SAMPLES, LONG = 6, 32, 16, 64


def test_memory_added_is_at_most_the_states_of_one_batch() -> None:
    net = Tower(DEEP, WIDE)
    batches = [(torch.randn(SAMPLES, LONG, WIDE), torch.randint(5, (SAMPLES,))) for _ in range(3)]
    one_state = SAMPLES * LONG * WIDE * 4
    floor, ours = peak(lambda: bare(net, batches)), peak(lambda: wb.measure(net, batches))
    assert floor > (DEEP + 1) * one_state, "the instrument sees what the graph keeps"
    assert ours - floor <= (DEEP + 1) * one_state
    chunked = peak(lambda: wb.measure(net, batches, chunk=SAMPLES // 4))
    assert chunked < 0.4 * ours, "a quarter of a batch at a time, and what does not depend on the batch"


def test_probes_keep_no_batch() -> None:
    net = Tower(3, WIDE).double()
    batches = [(torch.randn(8, LONG, WIDE).double(), torch.randint(5, (8,))) for _ in range(4)]
    floor = peak(lambda: bare(net, batches))
    probed = peak(lambda: wb.measure(net, batches, probes=["nudging"]))
    assert probed - floor <= 4 * 8 * LONG * WIDE * 8, "the states of one batch, of four that were probed"


def test_memory_does_not_grow_with_the_number_of_batches() -> None:
    net = Tower(3, WIDE)

    def batches(n: int) -> Any:
        generator = torch.Generator().manual_seed(0)
        for _ in range(n):
            yield torch.randn(8, 16, WIDE, generator=generator), torch.randint(5, (8,), generator=generator)

    few, many = (peak(lambda n=n: wb.measure(net, batches(n))) for n in (2, 12))
    assert many - few < 12 * 8 * 8 + 1024, "eight bytes per sample"


# -- deep and wide ------------------------------------------------------------------------------------------


class Scale(nn.Module):
    """A residual block with one weight per feature: wide and deep at little cost."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width) * 0.1)

    def forward(self, h: Tensor) -> Tensor:
        return h + torch.tanh(self.weight * h)


class Stack(nn.Module):
    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(4, width), nn.Linear(width, 5)
        self.layers = nn.ModuleList(Scale(width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for layer in self.layers:
            h = layer(h)
        return self.leave(h[:, -1])


@pytest.mark.parametrize(("depth", "width", "tokens"), [(128, 16, 5), (3, 16384, 4), (96, 64, 256), (1000, 8, 2)])
def test_deep_stacks_and_wide_tokens(depth: int, width: int, tokens: int) -> None:
    torch.manual_seed(0)
    net = Stack(depth, width)
    x, y = torch.randn(2, tokens, 4), torch.randint(5, (2,))
    m = wb.measure(net, [(x, y)])
    states = [net.enter(x)]
    for layer in net.layers:
        states.append(layer(states[-1]))
    grads = torch.autograd.grad(F.cross_entropy(net.leave(states[-1][:, -1]), y, reduction="sum"), states)
    assert m.conditions["state_shapes"] == [[tokens, width]] * (depth + 1)
    for got, tensors, scale in ((m.h_norm, states, 1), (m.g_norm, grads, 128)):
        want = [float(t.detach()[:, -1].double().norm(dim=1).mean()) / scale for t in tensors]
        assert got == pytest.approx(want, rel=1e-6)
    assert len(str(wb.Anatomy.of(net)).splitlines()) < 10


def test_the_cost_is_linear_in_depth() -> None:
    """Counted in operations, which a busy machine can't change: every block costs as many as the one before."""

    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls += 1
            return func(*args, **(kwargs or {}))

    counts = []
    for depth in (12, 24, 48, 96):
        net = Stack(depth, 8)
        with Count() as count:
            wb.measure(net, [(torch.randn(4, 3, 4), torch.randint(5, (4,))) for _ in range(2)])
        counts.append(count.calls)
    steps = [(b - a) / blocks for (a, b), blocks in zip(pairwise(counts), (12, 24, 48))]
    assert steps[0] > 0
    assert steps == pytest.approx([steps[0]] * 3, rel=0.02)
