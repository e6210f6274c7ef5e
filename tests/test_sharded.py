"""A network whose parameters are sharded over processes (FSDP2) is measured as it is, by hooks: the same numbers."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.nn.functional import one_hot

import walkback as wb

KEYS = ("h_norm", "g_norm", "cosine", "cosine_clamped", "below_eps", "growth", "stability", "gamma")


def measured(net: torch.nn.Module) -> dict:
    feedback = [torch.randn(10, 32, generator=torch.Generator().manual_seed(site)) for site in range(5)]

    def dfa(trace: wb.Trace) -> list[torch.Tensor]:
        return [(trace.logits.softmax(1) - one_hot(trace.labels, 10)) @ b for b in feedback]

    found = wb.measure(net, wb.selftest.batches(2), credit=dfa)
    return {key: getattr(found, key) for key in KEYS}


def shard_and_measure(rank: int, world: int, port: int, folder: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    net = wb.selftest.network(gain=30.0)
    mesh = init_device_mesh("cpu", (world,))
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    hooks = [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in net.modules()]
    found = measured(net)
    assert hooks == [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in net.modules()], "a hook was left"
    pieces = [p for p in net.parameters() if isinstance(p, DTensor)]
    assert len(pieces) == len(list(net.parameters()))
    assert all(p.grad is None for p in pieces)
    local = sum(p.to_local().numel() for p in pieces)
    Path(folder, f"{rank}.json").write_text(json.dumps({**found, "local": local}))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.filterwarnings("default")  # torch.distributed's own deprecations
def test_a_sharded_network_gives_the_numbers_of_the_whole_one(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(shard_and_measure, args=(2, port, str(tmp_path)), nprocs=2)
    whole = wb.selftest.network(gain=30.0)
    expected = measured(whole)
    shards = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert sum(shard.pop("local") for shard in shards) == sum(p.numel() for p in whole.parameters())
    for shard in shards:
        assert shard.keys() == expected.keys()
        for key in KEYS:
            assert shard[key] == pytest.approx(expected[key], rel=1e-6, abs=1e-9), key
