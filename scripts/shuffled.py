"""Runs the suite again and again, every time in another order: a test that needs another one to run before it fails.

    python scripts/shuffled.py --runs 20 [--first 1] [-- tests/lint]

What comes after `--` goes to pytest. It prints one line for each run, with the log of each that failed; exit 1
if one did.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

SUMMARY = re.compile(r"^=*\s*(?P<counts>\d+ \w+.*?) in [\d.]+s")


def run(seed: int, workers: int, more: list[str], log: Path) -> tuple[int, str]:
    """Run the suite in the order of a seed; return pytest's exit code and its counts."""
    order = [f"--randomly-seed={seed}", "-n", str(workers), "--dist", "loadfile"]
    command = [sys.executable, "-m", "pytest", "-m", "not slow", *order, *more]
    with log.open("w", encoding="utf-8") as out:
        code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT).returncode
    found = [match["counts"] for line in log.read_text(encoding="utf-8").splitlines() if (match := SUMMARY.match(line))]
    return code, found[-1] if found else "no summary"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--first", type=int, default=1, help="the first seed; the next run has the next one")
    parser.add_argument("--workers", type=int, default=3, help="processes")
    parser.add_argument("--logs", type=Path, default=Path("runs/shuffled"))
    parser.add_argument("more", nargs="*", help="what else pytest is given, after --")
    args = parser.parse_args()
    args.logs.mkdir(parents=True, exist_ok=True)
    failed = 0
    for seed in range(args.first, args.first + args.runs):
        begun, log = time.monotonic(), args.logs / f"seed-{seed}.txt"
        code, counts = run(seed, args.workers, args.more, log)
        failed += code != 0
        minutes, seconds = divmod(round(time.monotonic() - begun), 60)
        where = "" if code == 0 else f"  FAILED, see {log}"
        print(f"seed {seed:>3}  {counts}  {minutes}:{seconds:02d}  load {os.getloadavg()[0]:.0f}{where}", flush=True)
    print(f"{args.runs - failed} of {args.runs} runs passed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
