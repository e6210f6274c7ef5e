"""How much faster two workers are than one: the same small plan on the embedded task, each time in a fresh store.

Aim: at least 0.95 of what two bare processes get, which train the same specs one after the other, with no audit around
them. Beside it what the machine gives two processes that only multiply matrices: cores that share their arithmetic
units, or have other work, can't double anything. Times on the clock, so other work shows in all of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time

from walkback.audit import Plan, audit
from walkback.training.spec import RunSpec

AIM = 0.95
ROUNDS = int(os.environ.get("WALKBACK_BENCH_ROUNDS", "2"))

TRAIN = """
import json, sys, torch
torch.set_num_threads(1)
from walkback.training.loop import train
from walkback.training.spec import RunSpec
for spec in json.loads(sys.argv[2]):
    train(RunSpec(**spec), sys.argv[1], quiet=True)
"""

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


def bare_seconds(processes: int) -> float:
    """Return how long so many processes take for the same specs, each for its share of them.

    In sessions of their own, as workers are: Linux shares a busy machine out by session.
    """
    specs = [spec.model_dump(mode="json") for spec in plan().specs]
    with tempfile.TemporaryDirectory() as out:
        start = time.perf_counter()
        running = [
            subprocess.Popen(
                [sys.executable, "-c", TRAIN, out, json.dumps(specs[i::processes])], start_new_session=True
            )
            for i in range(processes)
        ]
        codes = [process.wait() for process in running]
        taken = time.perf_counter() - start
    if any(codes):
        sys.exit("a bare process failed")
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
    times, bare, counts = ({1: [], 2: []} for _ in range(3))
    for _ in range(ROUNDS):
        for workers in times:
            times[workers].append(seconds(workers))
            bare[workers].append(bare_seconds(workers))
            counts[workers].append(products(workers))
    speedup = min(times[1]) / min(times[2])
    trained, machine = min(bare[1]) / min(bare[2]), max(counts[2]) / max(counts[1])
    for n, taken in times.items():
        print(f"{n} at once: {min(taken):6.1f} s for {len(plan().specs)} runs by audit, {min(bare[n]):6.1f} s bare")
    print(
        f"two workers are {speedup:.2f}x as fast as one, {speedup / 2:.2f} of linear; two bare processes {trained:.2f}x"
    )
    print(f"the audit had {speedup / trained:.2f} of what these get (aim {AIM})")
    print(f"two processes that multiply matrices get {machine:.2f}x; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
