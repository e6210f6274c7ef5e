"""Train the bundles that `python -m protocol.smoke_test` loads: BP, DFA and EP on the teacher task.

    python scripts/ship_bundles.py runs/shipped

Each folder under src/walkback/bundles holds a run as `train` leaves it, with its report judged against its control.
EP's relaxation is unstable at the learning rate of the others, so it has its own.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch

import walkback as wb
from walkback.report.formats.sums import SUMS, sums_text

RECIPE = {"net": "resmlp", "net_options": {"width": 128}, "data": "teacher", "epochs": 7, "seed": 0}
FAST = {"lr": 8e-3, "schedule": "constant"}
EP = {"rule_options": {"beta": 0.1, "steps": 6, "step_size": 0.05}, "optimiser": {"lr": 1e-3}}
SPECS = [
    *(wb.RunSpec(rule=rule, optimiser=FAST, **RECIPE) for rule in ("bp", "dfa")),
    wb.RunSpec(rule="ep", **RECIPE, **EP),
]
SHIPPED = Path(__file__).parents[1] / "src" / "walkback" / "bundles"


def judged(spec: wb.RunSpec, out: Path) -> wb.Report:
    run, control = wb.train(spec, out).report(), wb.frozen_baseline(spec, out).report()
    assert run is not None
    assert control is not None
    notes = "teacher, 7 epochs, seed 0; control: blocks frozen"
    return wb.judge(run, headline_acc=run.headline_acc, frozen_baseline_acc=control.headline_acc,
                    method_name=spec.rule.upper(), notes=notes)  # fmt: skip


def main(out: Path) -> None:
    for spec in SPECS:
        report = judged(spec, out)
        folder = SHIPPED / spec.rule
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name in ("spec.json", "machine.json", "trajectory.jsonl", "weights.safetensors"):
            shutil.copyfile(out / spec.name / name, folder / name)
        report.save(folder / "report.json")
        files = {file.name: file.read_bytes() for file in folder.iterdir()}
        (folder / SUMS).write_text(sums_text(spec.digest, files), encoding="utf-8")
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{spec.rule}: {report.verdict} ({', '.join(report.failed) or 'nothing failed'}), {size / 1e6:.2f} MB")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/shipped"))
