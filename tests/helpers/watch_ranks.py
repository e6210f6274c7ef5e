"""One of two gloo processes that train a network under DDP, watched and not; run by test_watch.py."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import walkback as wb
from test_watch import BATCHES, DATA, fresh, norms_by_hand, same, state
from walkback.training.watch import gauge as module


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    out: dict = {"measured": 0}
    plain_measure = module.measure

    def counted(*args, **kwargs):
        out["measured"] += 1
        return plain_measure(*args, **kwargs)

    def train(watched: bool):
        net = fresh()
        torch.manual_seed(rank)  # the ranks drop out and see different samples, as they do
        ddp = nn.parallel.DistributedDataParallel(net)
        optimiser = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
        watch = wb.Watch(ddp, BATCHES, every=2, log=folder / "history.jsonl") if watched else None
        for x, y in DATA[rank::2] * 2:
            optimiser.zero_grad()
            nn.functional.cross_entropy(ddp(x), y).backward()
            optimiser.step()
            if watch is not None:
                watch.step()
        return net, state(net, optimiser), watch

    module.measure = counted
    net, watched_end, watch = train(True)
    module.measure = plain_measure
    assert watch is not None
    out["rows"], out["history"] = len(watch.history), list(watch.history)
    out["h_norm"], out["g_norm"] = (watch.history[-1]["per_layer"][k] for k in ("h_norm", "g_norm"))
    out["by_hand"] = norms_by_hand(net)
    out["same"] = same(watched_end, train(False)[1])

    class Own:
        """Each rank has a clock of its own, and they disagree."""

        now = 0.0

        def __call__(self) -> float:
            self.now += 0.5 + 5 * rank
            return self.now

    auto = wb.Watch(wb.selftest.exploded(), wb.selftest.batches(2), "auto", max_overhead=0.5, clock=Own())
    for _ in range(40):
        auto.step()
    out["auto"] = [row["step"] for row in auto.history]
    out["fired"] = [(f.check, f.step, f.layer) for f in auto.fired]
    out["stop"] = auto.should_stop

    # Numbers that the ranks do not agree on, or that only one of them knows: those of rank 0 stand.
    late = wb.Watch(net, BATCHES[:1], every=1)
    late.step(acc=0.1 + rank / 10)
    late.finish(acc=0.1 + rank / 10)
    late.finish(**({"val_acc": 0.5} if rank == 0 else {}))
    late.finish(**({} if rank == 0 else {"val_acc": 0.7}))
    out["late"] = [late.history[-1]["acc"], late.history[-1]["val_acc"], len(late.history)]

    def failing(trace):
        if trace.index:
            raise RuntimeError("on rank 0")
        return trace.grads

    try:
        wb.Watch(net, BATCHES, credit=failing).epoch()
    except Exception as error:
        out["error"] = str(error)

    # Weights that are spread over the ranks: all of them must take part in the forward pass.
    whole = copy.deepcopy(net)
    fully_shard(net, mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))

    def gathering(model, batches, **how):
        dist.barrier()  # as gathering weights does, this waits for every rank
        return plain_measure(whole, batches, **how)

    module.measure = gathering
    out["sharded"] = wb.Watch(net, BATCHES).measure()["per_layer"]["g_norm"]
    out["whole"] = plain_measure(whole, BATCHES).g_norm

    (folder / f"rank{rank}.json").write_text(json.dumps(out))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
