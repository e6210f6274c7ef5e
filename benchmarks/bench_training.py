"""What training costs: a step of each rule against BP's, the share of this machine's GEMM speed, the probe's share.

ResMLP d=256, L=4, expansion 1, and a BP step of ViT-Mini; batch 128, random images of CIFAR's shape, one thread.
Processor time, the best of interleaved rounds.
"""

from __future__ import annotations

import platform
import time

import torch

import walkback as wb
from bench_diagnose import interleaved
from walkback.data import Dataset, Split
from walkback.rules.rule import Parts
from walkback.training.loop import build_net, build_rule, probe_batches
from walkback.training.spec import RunSpec
from walkback.training.step import TrainingStep

STEPS_PER_EPOCH = 390


def images(n: int) -> Split:
    return Split(torch.randint(256, (n, 3, 32, 32), dtype=torch.uint8), torch.randint(10, (n,)))


def stepper(rule: str, data: Dataset, steps: int, network: str = "resmlp"):
    spec = RunSpec(net=network, rule=rule, rule_options={"steps": 4} if rule == "ep" else {})
    net = build_net(spec, data)
    made = build_rule(spec, data, net)
    trained = [p for p in (*net.parameters(), *made.parameters()) if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, fused=True)
    step = TrainingStep(Parts.of(net), made, rule == "bp", frozen=False, penalty=0.0, reader=False)
    x, y = data.prepare(data.train.x[:128]), data.train.y[:128]

    def run() -> None:
        for _ in range(steps):
            optimiser.zero_grad(set_to_none=True)
            step(x, y)
            optimiser.step()

    return run


def gemm_peak() -> float:
    """FLOP/s of a large float32 product on one thread, best of ten."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    best = min(_timed(lambda: a @ b) for _ in range(10))
    return 2 * 1024**3 / best


def vit_flops(width: int = 128, depth: int = 4, tokens: int = 65, expansion: int = 2) -> float:
    """Return the FLOPs of a step of ViT-Mini's products, three times those of its forward pass."""
    weights = 4 * width**2 + 2 * expansion * width**2
    block = 2 * 128 * tokens * (weights + 2 * tokens * width)
    return 3 * (depth * block + 2 * 128 * ((tokens - 1) * 48 + 10) * width)


def _timed(task) -> float:
    start = time.process_time()
    task()
    return time.process_time() - start


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = Dataset("images", images(256), images(2048), 10, (0.5,) * 3, (0.25,) * 3)
    print(f"torch {torch.__version__}, {platform.processor() or platform.machine()}, one thread")
    peak = gemm_peak()
    steps = 10
    times = interleaved({rule: stepper(rule, data, steps) for rule in wb.rules.RULES}, rounds=12)
    # Two ways to count a BP step: 6 FLOPs per weight and sample, as is usual, or only the products that are made (the
    # stem needs no gradient of its input).
    stem, blocks, head = 3072 * 256, 8 * 256 * 256, 256 * 10
    usual, made = 2 * 128 * 3 * (stem + blocks + head), 2 * 128 * (2 * stem + 3 * (blocks + head))
    bp = min(times["bp"]) / steps
    print(f"\nGEMM {peak / 1e9:.1f} GFLOP/s; a BP step, optimiser included, runs at {usual / bp / peak:.0%} of it")
    print(f"counting 6 FLOPs per weight and sample, at {made / bp / peak:.0%} counting only the products it makes")
    for rule, values in times.items():
        best = min(values) / steps
        print(f"  {rule:14} {1e3 * best:7.2f} ms per step   {best / bp:5.2f}x BP")
    vit = min(interleaved({"vit-mini": stepper("bp", data, 1, "vit-mini")}, rounds=5)["vit-mini"])
    print(f"\na BP step of ViT-Mini: {1e3 * vit:.0f} ms, {vit_flops() / vit / peak:.0%} of the GEMM speed")
    spec = RunSpec(rule="dfa")
    net = build_net(spec, data)
    dfa, probe = build_rule(spec, data, net), probe_batches(data, torch.device("cpu"))
    cost = min(_timed(lambda: wb.measure(net, probe, credit=dfa)) for _ in range(5))
    epoch = STEPS_PER_EPOCH * min(times["dfa"]) / steps
    print(f"\nthe probe after every epoch: {cost:.3f} s, {cost / epoch:.1%} of a DFA epoch of {epoch:.1f} s")


if __name__ == "__main__":
    main()
