"""How much of DFA's explosion is the draw of B? Nine runs of four epochs on CIFAR-10, by seed, draw and scale of B.

    python scripts/feedback_draws.py --root DIR

Writes results/feedback-draws.md, which docs/default-recipe.md includes. About ten minutes on one core; runs are kept in
runs/feedback-draws, so it resumes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

import walkback as wb
from walkback.rules import DFA

ROOT = Path(__file__).resolve().parent.parent
HERE = "feedback_draws"
RUNS: dict[str, dict[str, Any]] = {
    "seed 42": {},
    "seed 42, a second draw of B": {"rule": f"{HERE}:OtherDraw", "rule_options": {"number": 1}},
    "seed 42, a third draw of B": {"rule": f"{HERE}:OtherDraw", "rule_options": {"number": 2}},
    "seed 123": {"seed": 123},
    "seed 123, the second draw of B": {"seed": 123, "rule": f"{HERE}:OtherDraw", "rule_options": {"number": 1}},
    "seed 123, the third draw of B": {"seed": 123, "rule": f"{HERE}:OtherDraw", "rule_options": {"number": 2}},
    "seed 42, one B for all sites": {"rule": f"{HERE}:OneForAll"},
    "seed 42, B ten times larger": {"rule_options": {"scale": 10.0}},
    "seed 42, B ten times smaller": {"rule_options": {"scale": 0.1}},
}


class OtherDraw(DFA):
    """DFA whose B is drawn from a seed of its own: same network, same batches, another B."""

    def __init__(self, number: int = 1) -> None:
        super().__init__()
        self.number = number

    def redraw(self, generator: torch.Generator) -> bool:
        """From `number` when the run begins; the null of fresh feedback draws as always."""
        first = not hasattr(self, "drawn")
        self.drawn = True
        return super().redraw(torch.Generator().manual_seed(self.number) if first else generator)


class OneForAll(DFA):
    """DFA that carries the error to every site by the same B."""

    def redraw(self, generator: torch.Generator) -> bool:
        """Draw, and let every site have the first."""
        super().redraw(generator)
        for site in range(1, len(self.fan)):
            self.get_buffer(f"B{site}").copy_(self.get_buffer("B0"))
        return True


def spec(**fields: Any) -> wb.RunSpec:
    """The primary recipe without augmentation, at its initial rate (the first 4 of 100 epochs keep 99.6 % of it)."""
    wanted = {"rule": "dfa", "data": "cifar10", "epochs": 4, "seed": 42, "optimiser": {"schedule": "constant"}}
    return wb.RunSpec(**{**wanted, **fields})


def set_up(about: str) -> Path | None:
    """Where CIFAR-10 is, from the command line; rules and networks of this folder are found by name from here on."""
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("--root", type=Path, help="where CIFAR-10 is")
    root = parser.parse_args().root
    sys.path.insert(0, str(Path(__file__).parent))
    torch.set_num_threads(1)
    return root


def main() -> None:
    root = set_up(str(__doc__))
    rows = []
    for name, fields in RUNS.items():
        last = wb.train(spec(**fields), ROOT / "runs" / "feedback-draws", root=root).trajectory()[-1]
        h, g, cosine = (last["per_layer"][k] for k in ("h_norm", "g_norm", "cosine"))
        growth, gamma = last["values"]["growth"], sum(cosine[:-1]) / len(cosine[:-1])
        rows.append([name, f"{h[-1]:.1e}", f"{g[-1]:.1e}", f"{growth:.1f}", f"{gamma:+.3f}", f"{last['test_acc']:.3f}"])
    table = tabulate(rows, ["run", "‖h_L‖", "‖g_L‖", "ρ", "Γ", "acc"], tablefmt="github", disable_numparse=True)
    text = f"# DFA after four epochs, by the draw of B\n\n{table}\n\n- ResMLP d=256 L=4 on CIFAR-10, no augmentation, "
    text += "AdamW at a constant 1e-3, batches of 128; made by `python scripts/feedback_draws.py --root DIR`\n"
    (ROOT / "results" / "feedback-draws.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
