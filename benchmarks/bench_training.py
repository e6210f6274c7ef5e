"""What training costs: a step of each rule against BP's, the share of this machine's GEMM speed, the probe's share.

ResMLP d=256, L=4, expansion 1, and a BP step of ViT-Mini; batch 128, random images of CIFAR's shape, one thread.
Processor time, the best of interleaved rounds. Beside every number stands its aim, and what can't be left out of
State Bridge and of the probe, by hand.
"""

from __future__ import annotations

import platform
import time

import torch
import torch.nn.functional as F

import walkback as wb
from bench_diagnose import bare, interleaved, least
from walkback.data import Dataset, Split
from walkback.nets.residual import Residual
from walkback.rules.rule import Parts
from walkback.training.loop import build_net, build_rule, probe_batches
from walkback.training.spec import RunSpec
from walkback.training.step import TrainingStep

STEPS_PER_EPOCH = 390
# Of a BP step; of the speed of a large product; of an epoch.
AIMS = {"dfa": 1.0, "fa": 1.08, "ep": 2.3, "state-bridge": 1.7, "credit-bridge": 1.7}
OF_PEAK, VIT_OF_PEAK, PROBE = 0.85, 0.60, 0.01
BY_HAND = "a step of DFA, and by hand what State Bridge adds to it"


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


def bridged(steps: int, sites: int = 5, batch: int = 128, d: int = 256, classes: int = 10):
    """Return what State Bridge adds to a step of DFA, by hand: no autograd, no optimiser, every product made once."""
    h, target, exact = torch.randn(sites * batch, d), torch.randn(batch, d), torch.randn(sites * batch, classes)
    enter, leave, head = torch.randn(d, d) / 16, torch.randn(d, d) / 16, torch.randn(classes, d) / 16
    bias, zeros, ops = torch.randn(d), torch.zeros(classes), torch.ops.aten
    both = [True, False, False]

    def once() -> None:
        states = torch.cat(h.split(batch))
        rms = states.pow(2).mean(-1, keepdim=True).sqrt()
        normed, mean, scale = torch.native_layer_norm(states, [d], None, None, 1e-5)
        before = torch.addmm(bias, normed, enter.t()).add_(bias)
        after = F.gelu(before)
        made = torch.addmm(bias, after, leave.t())
        predicted = rms * made
        read, mean_out, scale_out = torch.native_layer_norm(predicted, [d], bias, bias, 1e-5)
        error = torch.addmm(zeros, read, head.t()).softmax(1) - exact
        # the credit: from the loss down to the states
        g = error @ head
        g = ops.native_layer_norm_backward(g, predicted, [d], mean_out, scale_out, bias, bias, both)[0]
        of_rms = (g * made).sum(-1, keepdim=True)
        g = ops.gelu_backward((g * rms) @ leave, before) @ enter
        g = ops.native_layer_norm_backward(g, states, [d], mean, scale, None, None, both)[0]
        g.addcmul_(states, of_rms / rms, value=1 / d)
        # what is learned: from the prediction's error down to the weights
        off = predicted.view(sites, batch, d) - target
        _ = off.pow(2).sum()
        g = off.view(-1, d) * rms
        _ = g.t() @ after, g.sum(0)
        g = ops.gelu_backward(g @ leave, before)
        _ = g.t() @ normed, g.sum(0)

    @torch.no_grad()
    def run() -> None:
        for _ in range(steps):
            once()

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
    tasks = {rule: stepper(rule, data, steps) for rule in wb.rules.RULES}
    times = interleaved({**tasks, BY_HAND: bridged(steps)}, rounds=12)
    by_hand = min(times.pop(BY_HAND)) / steps
    # Two ways to count a BP step: 6 FLOPs per weight and sample, as is usual, or only the products that are made (the
    # stem needs no gradient of its input).
    stem, blocks, head = 3072 * 256, 8 * 256 * 256, 256 * 10
    usual, made = 2 * 128 * 3 * (stem + blocks + head), 2 * 128 * (2 * stem + 3 * (blocks + head))
    bp = min(times["bp"]) / steps
    print(f"\nGEMM {peak / 1e9:.1f} GFLOP/s; a BP step, optimiser included, runs at {usual / bp / peak:.0%} of it")
    print(f"(aim {OF_PEAK:.0%}) counting 6 FLOPs per weight and sample,")
    print(f"at {made / bp / peak:.0%} counting only the products it makes")
    for rule, values in times.items():
        best = min(values) / steps
        aim = f"   aim {AIMS[rule]:.2f}x" if rule in AIMS else ""
        print(f"  {rule:14} {1e3 * best:7.2f} ms per step   {best / bp:5.2f}x BP{aim}")
    print(f"  {BY_HAND}: {(min(times['dfa']) / steps + by_hand) / bp:.2f}x BP")
    vit = min(interleaved({"vit-mini": stepper("bp", data, 1, "vit-mini")}, rounds=5)["vit-mini"])
    reached = vit_flops() / vit / peak
    print(f"\na BP step of ViT-Mini: {1e3 * vit:.0f} ms, {reached:.0%} of the GEMM speed (aim {VIT_OF_PEAK:.0%})")
    spec = RunSpec(rule="dfa")
    net = build_net(spec, data)
    assert isinstance(net, Residual)
    dfa, probe = build_rule(spec, data, net), probe_batches(data, torch.device("cpu"))
    parts = {
        "the probe after every epoch": lambda: wb.measure(net, probe, credit=dfa),
        "its batches by hand, with the credit": lambda: least(net, probe, dfa),
        "their bare passes": lambda: bare(net, probe),
    }
    epoch = STEPS_PER_EPOCH * min(times["dfa"]) / steps
    print(f"\na DFA epoch of {epoch:.1f} s; aim of the probe {PROBE:.0%}")
    for name, values in interleaved(parts, rounds=5).items():
        print(f"  {name:38} {min(values):.3f} s, {min(values) / epoch:.2%} of it")


if __name__ == "__main__":
    main()
