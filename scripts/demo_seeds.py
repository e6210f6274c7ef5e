"""Run the demo with many seeds and print docs/data.md's table: what papers report, what they leave out, the verdicts.

    python scripts/demo_seeds.py 101 102 103 104 105 106 107 108 109 110 --out runs/demo-seeds

All runs of a seed are trained in this process, one after the other, on one thread; the files are those that
`walkback demo --seed 101 --out runs/demo-seeds/101` makes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

import walkback as wb
from walkback.audit.demo import demo, looks_fine, specs
from walkback.report.markdown import grid
from walkback.report.numbers import number

HEAD = ["seed", "BP", "its control", "BP verdict", "DFA", "Γ", "its control", "worth of blocks, pp", "growth", "‖g_L‖"]
HEAD += ["looks fine", "DFA verdict"]


def row(seed: int, out: Path) -> tuple[list[str], bool, bool, bool]:
    """Return the cells of a seed, and whether BP passes, DFA is walked back by all three checks, and looks fine."""
    for spec in specs(seed):
        wb.train(spec, out, quiet=True)
    bp, dfa = demo(out, seed, workers=1)
    low, high = dfa.depth["interval"]
    verdicts = [": ".join(filter(None, (r.verdict, " ".join(r.failed)))) for r in (bp, dfa)]
    fine = looks_fine(dfa)
    cells = [
        *(str(seed), f"{bp.headline_acc:.3f}", f"{bp.frozen_baseline_acc:.3f}", verdicts[0]),
        *(f"{dfa.headline_acc:.3f}", f"{dfa.values['gamma']:+.3f}", f"{dfa.frozen_baseline_acc:.3f}"),
        f"{dfa.depth['worth_pp']:+.1f} [{low:+.1f}, {high:+.1f}]",
        *(number(dfa.values[name], "norm") for name in ("growth", "g_norm_deepest")),
        *("yes" if fine else "no", verdicts[1]),
    ]
    return cells, bp.verdict == "passes", dfa.failed == ("D1", "D2", "D3"), fine


def table(seeds: Sequence[int], out: Path) -> str:
    """Return the table of all seeds and a line that counts."""
    rows = []
    for seed in seeds:
        rows.append(row(seed, out / str(seed)))
        print(*rows[-1][0], flush=True)
    counts = [sum(r[i] for r in rows) for i in (1, 2, 3)]
    line = "Of {0} seeds: BP passes {1}, DFA is walked back by D1, D2 and D3 {2}, accuracy and Γ of DFA look fine {3}."
    return f"{grid(HEAD, [r[0] for r in rows])}\n\n{line.format(len(rows), *counts)}"


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("seeds", type=int, nargs="+")
    arguments.add_argument("--out", type=Path, default=Path("runs/demo-seeds"))
    given = arguments.parse_args()
    torch.set_num_threads(1)
    print(table(given.seeds, given.out))
