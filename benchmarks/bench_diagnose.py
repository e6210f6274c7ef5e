"""What measuring costs: ratios to bare hooks + autograd.grad on the same batches, and memory over many batches.

Prints a table of processor time; ratios compare the best of interleaved rounds in one process on one thread (a busy
neighbour can only slow a round down), with the median of the rounds' own ratios beside it. Under it the floor: what the
arithmetic alone takes, without a session around it.
"""

from __future__ import annotations

import copy
import platform
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import walkback as wb
from walkback.measures.accumulate import Meter
from walkback.measures.formulas import compare, site_norms
from walkback.measures.precision import IntrinsicMeter
from walkback.nets.residual import Residual
from walkback.network.prints import DataHash, prints_of
from walkback.selftest import ResidualNet
from walkback.tracing.kept import Spare, imprint, shows
from walkback.tracing.passes import block_pass
from walkback.tracing.trace import Credit

BATCHES = 64  # 8,192 samples: most of a test split
FLOORS = ("what can't be left out", "the same with a credit", "and the bare pass in float64")
AIMS = {"walkback.measure": 1.10, "walkback.measure with a credit": 1.30, "the same, and in float64": 3.20}


def bare(model: ResidualNet | Residual, batches: list[tuple[Tensor, Tensor]]) -> None:
    """The floor: the states and their gradients, nothing computed from them."""
    states: list[Tensor] = []
    hooks = [b.register_forward_pre_hook(lambda m, args: states.append(args[0])) for b in model.blocks]
    hooks.append(model.out_ln.register_forward_pre_hook(lambda m, args: states.append(args[0])))
    for x, y in batches:
        states.clear()
        torch.autograd.grad(F.cross_entropy(model(x), y, reduction="sum"), states)
    for hook in hooks:
        hook.remove()


def least(model: ResidualNet | Residual, batches: list[tuple[Tensor, Tensor]], credit: Credit | None = None) -> None:
    """The same with what no measurement can leave out, by hand, and nothing around it: no session, check or answer.

    A copy of the input, a number for each sample, norms in float64. With a credit the bytes of what it is shown, taken
    down and compared, and cosines with all neighbours in float64.
    """
    states: list[Tensor] = []
    hooks = [b.register_forward_pre_hook(lambda m, args: states.append(args[0])) for b in model.blocks]
    hooks.append(model.out_ln.register_forward_pre_hook(lambda m, args: states.append(args[0])))
    hashed, spare = DataHash(), Spare()
    for x, y in batches:
        states.clear()
        prints = prints_of(x, len(y))
        logits = model(x.clone())
        losses = F.cross_entropy(logits, y, reduction="none")
        grads = torch.autograd.grad(losses.sum(), states)
        with torch.no_grad():
            seen = tuple(h.detach() for h in states)
            if credit is not None:
                trace = wb.Trace(seen, grads, None, losses.detach(), logits.detach(), y, x)
                shown = (*seen, *grads, trace.logits, y, x)
                before = [imprint(t, spare) for t in shown]
                given = credit(trace)
                assert not any(map(shows, before, shown))
                for was in before:
                    if isinstance(was, bytearray):
                        spare.setdefault(len(was), []).append(was)
                compare(given, grads)
            torch.stack([site_norms(s, None) for s in (*seen, *grads)])
            hashed.add(x, len(prints))
    for hook in hooks:
        hook.remove()


def interleaved(tasks: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds + 1):
        for name, task in tasks.items():
            start = time.process_time()
            task()
            times[name].append(time.process_time() - start)
    return {name: values[1:] for name, values in times.items()}


def network(inputs: int, width: int, depth: int, expansion: int) -> ResidualNet:
    torch.manual_seed(0)
    net = ResidualNet(inputs, width, depth, 10)
    wide = expansion * width
    net.blocks = nn.ModuleList(
        nn.Sequential(nn.LayerNorm(width), nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))
        for _ in range(depth)
    )
    return net.eval()


def cost(inputs: int, width: int, depth: int, expansion: int, rounds: int) -> None:
    model = network(inputs, width, depth, expansion)
    batches = [(torch.randn(128, inputs), torch.randint(10, (128,))) for _ in range(BATCHES)]
    feedback = [torch.randn(10, width) for _ in range(depth + 1)]

    def dfa(trace: wb.Trace) -> list[Tensor]:
        error = trace.logits.softmax(1) - F.one_hot(trace.labels, 10)
        return [error @ b for b in feedback]

    wide, wider = copy.deepcopy(model).double(), [(x.double(), y) for x, y in batches]
    times = interleaved(
        {
            "bare hooks + autograd.grad": lambda: bare(model, batches),
            FLOORS[0]: lambda: least(model, batches),
            FLOORS[1]: lambda: least(model, batches, dfa),
            FLOORS[2]: lambda: (least(model, batches, dfa), bare(wide, wider)),
            "walkback.measure": lambda: wb.measure(model, batches),
            "walkback.measure with a credit": lambda: wb.measure(model, batches, credit=dfa),
            "the same, and in float64": lambda: wb.measure(model, batches, credit=dfa, probes=("intrinsic",)),
        },
        rounds,
    )
    floor = times["bare hooks + autograd.grad"]
    print(f"\n{depth} pre-LN blocks, d={width}, expansion {expansion}, {inputs} inputs, batch 128")
    for name, values in times.items():
        ratio = statistics.median(v / f for v, f in zip(values, floor))
        best = min(values) / min(floor)
        aim = f"   aim {AIMS[name]:.2f}x" if name in AIMS else ""
        each = 1e3 * min(values) / len(batches)
        print(f"  {name:32} {each:7.2f} ms per batch   {best:5.2f}x (median {ratio:.2f}x){aim}")
    whole = {name: min(values) / len(batches) for name, values in times.items()}
    parts(model, batches, dfa, [seconds for name, seconds in whole.items() if name not in FLOORS])
    floors(model, batches, dfa, min(floor) / len(batches))


def parts(
    model: ResidualNet | Residual, batches: list[tuple[Tensor, Tensor]], credit: Credit, whole: list[float]
) -> None:
    """Print where the time of a batch goes: ever more of a measurement, and what each step adds to the one before."""
    exact = IntrinsicMeter(tracer := wb.Tracer(model), credit=credit)
    tracer.asked.alone = True

    def metered(trace: wb.Trace) -> None:
        meter = Meter()
        for _ in few:
            meter.update(trace)

    few = batches[:16]
    tasks: dict[str, Callable[[], object]] = {
        "pass": lambda: dropped(block_pass(tracer, x, y, None) for x, y in few),
        "trace": lambda: dropped(tracer.trace(x, y) for x, y in few),
        "asked": lambda: dropped(tracer.trace(x, y, credit) for x, y in few),
        "itself": lambda: dropped(credit(trace) for _ in few),
        "norms": lambda: metered(replace(trace, credits=None)),
        "cosines": lambda: metered(trace),
        "exact": lambda: dropped(exact.update(trace) for _ in few),
    }
    with tracer:
        trace = tracer.trace(*batches[0], credit)
        best = {name: min(values) / len(few) for name, values in interleaved(tasks, rounds=8).items()}
    bare, measured, credited, wide = whole
    norms, cosines = best["norms"], best["cosines"] - best["norms"]
    guards = best["asked"] - best["trace"] - best["itself"]
    rest = measured - best["trace"] - norms
    for name, seconds in {
        "hooks, a copy of the input, the places of gradients": best["pass"] - bare,
        "checks of the batch, its prints": best["trace"] - best["pass"],
        "norms, stability": norms,
        "the session, a loader, labels, what left the cache": rest,
        "the credit itself": best["itself"],
        "guards: has the credit written anything?": guards,
        "cosines, neighbours, nulls, intervals": cosines,
        "the rest of it: what left the cache": credited - measured - best["itself"] - guards - cosines,
        "float64: pass, disagreement, absorption": best["exact"],
        "float64: what left the cache": wide - credited - best["exact"],
    }.items():
        print(f"    {name:52} {1e3 * seconds:7.2f} ms, {seconds / bare:5.2f} of a bare pass")


@torch.no_grad()
def floors(model: ResidualNet | Residual, batches: list[tuple[Tensor, Tensor]], credit: Credit, pass_: float) -> None:
    """Print what the arithmetic of one batch takes that is already in the cache."""
    x, y = batches[0]
    with wb.Tracer(model) as tracer:
        trace = tracer.trace(x, y)
    wide, wider = copy.deepcopy(model).double(), [(x.double(), y) for x, y in batches]
    given = [a.detach() for a in credit(trace)]
    parts = {
        "norms of h and g in float64": lambda: [site_norms(s, None) for s in (*trace.states, *trace.grads)],
        "a number for each sample": lambda: (prints_of(x, len(x)), DataHash().add(x, len(x))),
        "the credit itself": lambda: credit(trace),
        "cosines with all neighbours in float64": lambda: compare(given, trace.grads),
    }
    for name, values in interleaved({n: partial(repeated, t) for n, t in parts.items()}, rounds=30).items():
        print(f"    {name:38} {1e3 * min(values) / 20:7.3f} ms, {min(values) / 20 / pass_:5.2f} of a bare pass")
    with torch.enable_grad():
        values = interleaved({"": lambda: bare(wide, wider)}, rounds=6)[""]
    each = min(values) / len(batches)
    print(f"    {'the bare pass in float64':38} {1e3 * each:7.3f} ms, {each / pass_:5.2f} of a bare pass")


def dropped(made: Iterable[object]) -> None:
    """Let go of each thing before the next is made."""
    deque(made, maxlen=0)


def repeated(task: Callable[[], object], times: int = 20) -> None:
    for _ in range(times):
        task()


def memory() -> None:
    """Python-side and tensor memory after 8 and after 800 batches, made one at a time."""
    model = network(64, 64, 4, 1)

    def stream(n: int):
        generator = torch.Generator().manual_seed(0)
        for _ in range(n):
            yield torch.randn(128, 64, generator=generator), torch.randint(10, (128,), generator=generator)

    print("\nmemory while measuring")
    for n in (8, 80, 800):
        tracemalloc.start()
        before = resident()
        wb.measure(model, stream(n))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        grown = resident() - before
        print(f"  {n:4} batches: peak of Python objects {peak / 2**20:.2f} MiB, resident memory {grown:+.2f} MiB")


def help_time() -> None:
    """Best of five of `walkback --help` as a process."""
    command = [sys.executable, "-m", "walkback", "--help"]
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True)
        times.append(time.perf_counter() - start)
    print(f"\nwalkback --help: {min(times):.2f} s (no torch is loaded for it)")


def resident() -> float:
    """Resident memory of this process in MiB (Linux), else 0."""
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * 4096 / 2**20
    except OSError:
        return 0.0


def main() -> None:
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {platform.processor() or platform.machine()}, one thread")
    cost(128, 128, 6, expansion=4, rounds=12)
    cost(3072, 256, 4, expansion=1, rounds=12)
    cost(128, 128, 6, expansion=1, rounds=12)
    memory()
    help_time()


if __name__ == "__main__":
    main()
