"""Signals, kills, full disks, power cuts and damaged files, as many as you like: `make torture`, or one of them alone.

Each experiment counts what it did and what went wrong: a run whose bytes differ from those of one that nothing
disturbed, a folder that neither goes on nor is finished, a traceback, a command that does not stop. The same --seed
gives the same moments as far as the machine allows.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import crash_states
import fuzz
import walkback as wb
from walkback.audit import store
from walkback.training.spec import RunSpec

SPEC = RunSpec(net_options={"width": 8, "depth": 1}, data="teacher", rule="dfa", epochs=2)
WORDS = ["--net-options", '{"width": 8, "depth": 1}', "--data", "teacher", "--rule", "dfa", "--epochs", "2"]
KEPT = ("spec.json", "trajectory.jsonl", "report.json", "weights.safetensors")
SOON = 2.0  # seconds within which Ctrl-C ends a command, on a machine that is not busy otherwise


def content(out: Path) -> dict[str, bytes]:
    return {name: (out / SPEC.name / name).read_bytes() for name in KEPT}


def train(out: Path) -> dict[str, bytes]:
    wb.train(SPEC, out, quiet=True)
    return content(out)


def command(*words: str) -> list[str]:
    """The command line as another process, to which Ctrl-C is a signal also where a shell has it ignored."""
    code = "import os, signal; signal.signal(signal.SIGINT, signal.default_int_handler); os.write(2, b'ready\\n')"
    return [sys.executable, "-c", f"{code}; from walkback.__main__ import main; main()", *words]


def started(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


# -- experiments: (how many, random numbers, a folder) -> what went wrong ---------------------------------------------


def signals(count: int, draw: random.Random, folder: Path) -> list[str]:
    """Trainings that get signals at random moments and are started again until they end: the same bytes."""
    whole, wrong, sent = train(folder / "whole"), [], 0
    began = time.monotonic()
    subprocess.run(command("train", *WORDS, "--out", str(folder / "timed")), capture_output=True, check=True)
    usual = time.monotonic() - began
    for n in range(count):
        out = folder / f"signals{n}"
        for attempt in range(20):
            process = started("train", *WORDS, "--out", str(out))
            try:
                process.communicate(timeout=usual * draw.random() * 1.1 if attempt < 5 else None)
            except subprocess.TimeoutExpired:
                number = draw.choice((signal.SIGINT, signal.SIGTERM, signal.SIGKILL))
                process.send_signal(number)
                sent += 1
                _, told = process.communicate()
                if "Traceback" in told:
                    wrong.append(f"{number.name}: {told[-300:]}")
            if process.returncode == 0:
                break
        if not (out / SPEC.name / "report.json").exists() or content(out) != whole:
            wrong.append(f"run {n} has other bytes, or none")
    print(f"  {sent} signals")
    return wrong


FAULT = """
import errno, os, sys
left, kind = int(sys.argv[1]), sys.argv[2]
def hooked(real):
    def call(*args, **kwargs):
        global left
        path = str(args[0]) if args and not isinstance(args[0], int) else ""
        if isinstance(args[0], int) or sys.argv[3] in path:
            left -= 1
            if left == 0:
                if kind == "kill":
                    os._exit(9)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args, **kwargs)
    return call
for name in ("open", "fsync", "replace", "unlink", "mkdir"):
    setattr(os, name, hooked(getattr(os, name)))
from torture import SPEC, train
from pathlib import Path
import walkback as wb
try:
    train(Path(sys.argv[3]))
except wb.FormatError as error:
    sys.exit(0 if "disk is full" in str(error) else 3)
"""


def faults(count: int, draw: random.Random, folder: Path) -> list[str]:
    """A kill, or a full disk, at the n-th file call of a training: what comes after goes on to the same bytes."""
    whole, wrong = train(folder / "whole"), []
    with crash_states.recorded(folder) as found:
        train(folder / "counted")
    calls = len(found.calls) + 10
    for at in sorted(draw.sample(range(1, calls), min(count, calls - 1))):
        for kind in ("kill", "full"):
            out = folder / f"{kind}{at}"
            call = [sys.executable, "-c", FAULT, str(at), kind, str(out)]
            done = subprocess.run(call, capture_output=True, text=True, check=False, env=_environment())
            if "Traceback" in done.stderr:
                wrong.append(f"{kind} at call {at}: {done.stderr[-300:]}")
            if train(out) != whole:
                wrong.append(f"{kind} at call {at}: other bytes")
    return wrong


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}


def power(count: int, draw: random.Random, folder: Path) -> list[str]:
    """States of the disk that a power cut may leave, drawn from all of them, each trained on from."""
    (folder / "root").mkdir()
    with crash_states.recorded(folder / "root") as found:
        whole = train(folder / "root")
    trees = {tuple(sorted(tree.items())) for _, tree in crash_states.states(found.calls)}
    print(f"  {len(trees)} states in all, after {len(found.calls)} calls")
    wrong = []
    for tree in draw.sample(sorted(trees), min(count, len(trees))):
        shutil.rmtree(folder / "disk", ignore_errors=True)
        (folder / "disk").mkdir()
        try:
            if train(crash_states.restore(dict(tree), folder / "disk")) != whole:
                wrong.append(f"other bytes from {[name for name, _ in tree]}")
        except wb.WalkbackError as error:
            wrong.append(f"{error}: from {[name for name, _ in tree]}")
    return wrong


def audits(count: int, draw: random.Random, folder: Path) -> list[str]:
    """Two audits on one store that are killed again and again: every run is finished, once."""
    plan = folder / "plan.toml"
    grid = 'rule = ["bp", "dfa"]\nseed = [1, 2]\nepochs = 2\ndata = "teacher"\nnet_options = {width = 8, depth = 1}\n'
    plan.write_text(f'about = "small"\n[[grid]]\n{grid}')
    out = folder / "store"
    for _ in range(count):
        both = [started("audit", str(plan), "--out", str(out), "--workers", "1") for _ in range(2)]
        time.sleep(draw.random() * 20)
        for process in both:
            process.send_signal(draw.choice((signal.SIGINT, signal.SIGTERM, signal.SIGKILL)))
        told = [process.communicate()[1] for process in both]
        if any("Traceback" in text for text in told):
            return [text[-500:] for text in told]
    last = subprocess.run(command("audit", str(plan), "--out", str(out), "--json"), capture_output=True, text=True)
    done = json.loads(last.stdout or "{}")
    runs = store.checked_runs(out)
    wrong = [f"{run.path.name}: {run.state}: {run.why}" for run in runs if run.state != "whole"]
    if len(done.get("finished", ())) != done.get("runs") or done.get("runs") != len(runs):
        wrong.append(f"{len(runs)} folders: {last.stdout[-300:]} {last.stderr[-300:]}")
    return wrong


def interrupts(count: int, draw: random.Random, folder: Path) -> list[str]:
    """Ctrl-C at random moments of every verb: one line, no traceback, nothing half-written, within two seconds."""
    runs, bundle = folder / "runs", Path(wb.selftest.BUNDLES) / "bp"
    train(runs)
    (folder / "log.json").write_text(json.dumps({"h_norm": [1.0, 2.0], "g_norm": [1.0, 1.0]}))
    out = folder / "out"
    verbs: dict[str, Sequence[str]] = {
        "anatomy": ["walkback.selftest:network"],
        "audit": ["primary", "--list", "--out", str(runs)],
        "calibrate": ["--count", "20", "--out", str(out / "c")],
        "demo": ["--out", str(out / "demo")],
        "diagnose": [str(bundle), "--out", str(out / "d.html")],
        "doctor": [],
        "evidence": ["all", "--from", str(runs), "--out", str(out / "tables")],
        "fsck": [str(runs)],
        "judge": [str(folder / "log.json"), "--out", str(out / "j.html")],
        "lint": [str(Path(wb.__file__).parent / "pitfalls")],
        "pitfalls": ["run", "all"],
        "registry": ["page", str(fuzz.ROOT / "registry"), "--out", str(out / "r.html")],
        "report": [str(runs), "--out", str(folder / "page.html")],
        "train": [*WORDS, "--out", str(out / "train")],
    }
    wrong, slowest = [], (0.0, "")
    for verb, words in verbs.items():
        for _ in range(count):
            process = started(verb, *words)
            assert process.stderr is not None
            process.stderr.readline()  # ready
            time.sleep(draw.random() * 8)
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            told = process.communicate()[1]
            slowest = max(slowest, (time.monotonic() - began, verb))
            if "Traceback" in told or process.returncode not in (0, 1, 3, 130, -2):  # -2: in Python's own last moments
                wrong.append(f"{verb}: {process.returncode}: {told[-400:]}")
            if process.returncode == 130 and not told.endswith("stopped\n"):
                wrong.append(f"{verb}: {told[-400:]}")
            wrong += [f"{verb} left {path}" for path in out.rglob("*.tmp") if "train" not in str(path)]
    late = " (goal: 2.0 s on a machine that is not busy)" if slowest[0] > SOON else ""
    print(f"  slowest: {slowest[1]}, {slowest[0]:.1f} s{late}")
    return wrong


def damaged(count: int, draw: random.Random, folder: Path) -> list[str]:
    """Damaged files for every reader and renderer: see fuzz.py, which names each input."""
    del draw
    numbers = {name: range(round(count * share / 100)) for name, (_, share) in fuzz.TARGETS.items()}
    told = ((f"{name}:{n}", fuzz.one(name, n, folder)) for name, some in numbers.items() for n in some)
    return [f"{name} {said}" for name, said in told if said.startswith("failed")]


EXPERIMENTS: dict[str, tuple[Callable[[int, random.Random, Path], list[str]], int]] = {  # with a small count
    "damaged": (damaged, 500),
    "power": (power, 20),
    "faults": (faults, 5),
    "signals": (signals, 3),
    "audits": (audits, 2),
    "interrupts": (interrupts, 1),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, (run, usual) in EXPERIMENTS.items():
        parser.add_argument(f"--{name}", type=int, default=usual, help=f"{run.__doc__} (usually {usual})")
    parser.add_argument("--only", choices=EXPERIMENTS, nargs="+", default=list(EXPERIMENTS))
    parser.add_argument("--seed", type=int, default=0)
    given = vars(parser.parse_args())
    failures = 0
    for name in given["only"]:
        began, count = time.monotonic(), given[name]
        print(f"{name}: {count}", flush=True)
        with tempfile.TemporaryDirectory(prefix=f"walkback-{name}-", ignore_cleanup_errors=True) as folder:
            wrong = EXPERIMENTS[name][0](count, random.Random(f"{name}:{given['seed']}"), Path(folder).resolve())
        failures += len(wrong)
        print(f"  {len(wrong)} failures in {time.monotonic() - began:.0f} s", *wrong, sep="\n  ", flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
