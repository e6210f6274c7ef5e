"""What measuring costs per layer, by depth: it should not depend on it. And the same batches in parts.

Prints a table of CPU times, each the best of interleaved rounds in one process on one thread (a busy neighbour takes no
CPU time of ours, but it does take the cache: the best round is the quietest). The last line fits cost = fixed + per
layer · depth and gives the largest deviation from it.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import walkback as wb

DEPTHS = (12, 24, 48, 96, 192)
WIDTH, TOKENS, BATCH, BATCHES, ROUNDS = 64, 16, 32, 2, 5


class Block(nn.Module):
    """Pre-LN, one hidden layer; returns the new state."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        return h + F.gelu(self.inner(self.norm(h)))


class Tower(nn.Module):
    """A stack that `Anatomy.of` has to find."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(depth))
        self.leave = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for layer in self.layers:
            h = layer(h)
        return self.leave(h.mean(1))


def bare(model: Tower, batches: list[tuple[Tensor, Tensor]]) -> None:
    """The floor: the states and their gradients, nothing computed from them."""
    for x, y in batches:
        states = [model.enter(x)]
        for layer in model.layers:
            states.append(layer(states[-1]))
        torch.autograd.grad(F.cross_entropy(model.leave(states[-1].mean(1)), y, reduction="sum"), states)


def best(tasks: dict[str, Callable[[], object]]) -> dict[str, float]:
    """CPU seconds of each task: the best of interleaved rounds after one to warm up."""
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(ROUNDS + 1):
        for name, task in tasks.items():
            start = time.process_time()
            task()
            times[name].append(time.process_time() - start)
    return {name: min(values[1:]) for name, values in times.items()}


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {platform.processor() or platform.machine()}, one thread")
    print(f"pre-LN blocks, d={WIDTH}, {TOKENS} tokens, {BATCHES} batches of {BATCH}; CPU ms per layer and batch\n")
    batches = [(torch.randn(BATCH, TOKENS, WIDTH), torch.randint(10, (BATCH,))) for _ in range(BATCHES)]
    print("depth   anatomy      bare   measure   in 4 parts   measure/bare")
    totals = []
    for depth in DEPTHS:
        model = Tower(depth)
        found = best({
            "anatomy": lambda m=model: wb.Anatomy.of(m),
            "bare": lambda m=model: bare(m, batches),
            "measure": lambda m=model: wb.measure(m, batches),
            "parts": lambda m=model: wb.measure(m, batches, chunk=BATCH // 4),
        })  # fmt: skip
        totals.append(found["measure"])
        cell = {name: 1e3 * seconds / depth / BATCHES for name, seconds in found.items()}
        print(
            f"{depth:5} {cell['anatomy']:9.4f} {cell['bare']:9.4f} {cell['measure']:9.4f} {cell['parts']:12.4f} "
            f"{cell['measure'] / cell['bare']:13.2f}x"
        )
    depths, times = np.array(DEPTHS, float), np.array(totals)
    slope, fixed = np.polyfit(depths, times, 1, w=1 / times)
    off = np.abs(times / (fixed + slope * depths) - 1).max()
    print(
        f"\nmeasure = {1e3 * fixed:.1f} ms + {1e3 * slope:.3f} ms · depth for {BATCHES} batches; "
        f"the largest deviation from that line is {off:.0%}"
    )


if __name__ == "__main__":
    main()
