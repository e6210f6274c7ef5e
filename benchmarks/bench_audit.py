"""How much faster two workers are than one: the same small plan on the embedded task, each time in a fresh store.

Goal: at least 0.9 of linear, 1.8x. Beside it what the machine itself gives two processes that only multiply matrices:
cores that share their arithmetic units, or have other work, can't double anything.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

from walkback.audit import Plan, audit
from walkback.training.spec import RunSpec

GOAL = 0.9
ROUNDS = 2

MULTIPLY = """
import time, torch
torch.set_num_threads(1)
a, count = torch.randn(512, 512), 0
print("ready", flush=True)
input()
end = time.perf_counter() + 3
while time.perf_counter() < end:
    a @ a
    count += 1
print(count)
"""


def plan() -> Plan:
    runs = (
        RunSpec(rule=rule, data="teacher", epochs=2, seed=seed, net_options={"width": 64})
        for rule in ("bp", "dfa")
        for seed in (0, 1)
    )
    return Plan("bench", "four small runs", tuple(runs))


def seconds(workers: int) -> float:
    with tempfile.TemporaryDirectory() as out:
        start = time.perf_counter()
        outcome = audit(plan(), out, workers=workers, quiet=True)
        taken = time.perf_counter() - start
    if outcome.failed:
        sys.exit(str(outcome))
    return taken


def products(processes: int) -> int:
    """How many matrix products so many processes do together in three seconds."""
    running = [
        subprocess.Popen([sys.executable, "-c", MULTIPLY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    for process in running:
        assert process.stdout is not None
        process.stdout.readline()
    for process in running:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return sum(int(process.communicate()[0]) for process in running)


def main() -> None:
    times, counts = {1: [], 2: []}, {1: [], 2: []}
    for _ in range(ROUNDS):
        for workers in times:
            times[workers].append(seconds(workers))
            counts[workers].append(products(workers))
    speedup = min(times[1]) / min(times[2])
    machine = max(counts[2]) / max(counts[1])
    for workers, taken in times.items():
        print(f"{workers} worker{'s' if workers > 1 else ''}: {min(taken):6.1f} s for {len(plan().specs)} runs")
    print(f"speed-up {speedup:.2f}x, {speedup / 2:.2f} of linear (goal {GOAL})")
    print(f"the machine gave two processes {machine:.2f}x of one: the audit had {speedup / machine:.0%} of that")


if __name__ == "__main__":
    main()
