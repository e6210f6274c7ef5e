"""Two gloo processes measure a network plain, under DDP and sharded; rank 0 writes what both found, as JSON.

python two_ranks.py OUT.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import walkback as wb

DEPTH = 6


class Branch(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, h: Tensor) -> Tensor:
        return torch.tanh(self.inner(h))


class Branches(nn.Module):
    """The published interface: blocks return the branch, the skip is outside them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out_ln, self.out_head = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 5)
        self.blocks = nn.ModuleList(Branch() for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h)
        return self.out_head(self.out_ln(h))


class Encoder(nn.Module):
    """torch's own layers, which return the new state, read at the first token."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.enter = nn.Linear(4, 8)
        self.encoder = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)
        self.leave = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.encoder(self.enter(x))[:, 0])


def data(net: nn.Module) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    shape = (16, 3, 4) if isinstance(net, Encoder) else (16, 4)
    draw = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2)]
    return [(x, torch.randint(5, (16,), generator=generator)) for x in draw]


def build(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind().double()


def sharded(net: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (2,))
    for block in wb.Anatomy.of(net).blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def look(net: nn.Module, batches: list[tuple[Tensor, Tensor]], again: bool = False, **options: Any) -> dict[str, Any]:
    """The numbers, the most blocks that were gathered at a time, and whether everything is as it was."""
    blocks = wb.Anatomy.of(net).blocks
    most = 0

    def count(*_: Any) -> None:
        nonlocal most
        whole = [b for b in blocks if not any(isinstance(p, DTensor) for p in b.parameters())]
        most = max(most, len(whole))

    hooks = [b.register_forward_hook(count) for b in blocks]
    before = [(type(p), p.to_local().clone() if isinstance(p, DTensor) else p.clone()) for p in net.parameters()]

    def credit(trace: wb.Trace) -> tuple[Tensor, ...]:
        if again:
            net(trace.inputs)  # leaves what is not in a block gathered
        return trace.grads

    m = wb.measure(net, batches, credit=credit, **options)
    after = [(type(p), p.to_local() if isinstance(p, DTensor) else p) for p in net.parameters()]
    same = all(a is b and torch.equal(s, t) for (a, s), (b, t) in zip(before, after))
    for hook in hooks:
        hook.remove()
    clean = not any(p.grad is not None for p in net.parameters())
    return {
        "h_norm": m.h_norm, "g_norm": m.g_norm, "cosine": m.cosine, "nudging": m.probes.get("nudging"),
        "anatomy": m.conditions["anatomy"], "gathered": most, "untouched": same and clean,
        "notes": [note.code for note in m.notes],
    }  # fmt: skip


def refused(net: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> bool:
    """A credit that writes the weights past the version counter is found out, and they are put back."""
    held = [p.to_local() if isinstance(p, DTensor) else p.detach() for p in net.parameters()]
    before = [p.clone() for p in held]

    def credit(trace: wb.Trace) -> tuple[Tensor, ...]:
        for p in held:
            p.data.mul_(2)
        return trace.grads

    try:
        wb.measure(net, batches, credit=credit)
    except wb.CreditError:
        return all(torch.equal(p, kept) for p, kept in zip(held, before))
    return False


def train_a_step(net: nn.Module, batch: tuple[Tensor, Tensor]) -> float:
    """Training goes on after a measurement: the gradients are there and are finite."""
    nn.functional.cross_entropy(net(batch[0]), batch[1]).backward()
    norms = [p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad for p in net.parameters()]
    return float(sum(g.norm() ** 2 for g in norms))


def work(rank: int, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out}.store", rank=rank, world_size=2)
    found: dict[str, Any] = {}
    for kind in (Branches, Encoder):
        batches = data(build(kind))
        wrapped = {
            "plain": build(kind),
            "DDP": DistributedDataParallel(build(kind)),
            "FSDP2": sharded(build(kind)),
        }
        found[kind.__name__] = {name: look(net, batches) for name, net in wrapped.items()}
        found[kind.__name__]["FSDP2 in chunks"] = look(wrapped["FSDP2"], batches, chunk=5)
        found[kind.__name__]["FSDP2, run again"] = look(wrapped["FSDP2"], batches, again=True)
        found[kind.__name__]["plain, probed"] = look(wrapped["plain"], batches, probes=["nudging"])
        found[kind.__name__]["FSDP2, probed"] = look(wrapped["FSDP2"], batches, probes=["nudging"])
        found[kind.__name__]["refused"] = {name: refused(net, batches) for name, net in wrapped.items()}
        found[kind.__name__]["step"] = {name: train_a_step(net, batches[0]) for name, net in wrapped.items()}
    both: list[Any] = [None, None]
    dist.all_gather_object(both, found)
    if rank == 0:
        Path(out).write_text(json.dumps(both), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.start_processes(work, (sys.argv[1],), nprocs=2, start_method="fork")  # torch is imported once
