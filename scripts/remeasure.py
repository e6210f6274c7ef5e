"""Write the reports of finished runs anew from their weights, with what this version measures.

    python scripts/remeasure.py RUNS --root DATA

What training recorded (trajectory, test predictions, fresh feedback) stays; the diagnosis after the last epoch is made
again. A run whose norms or cosines come out other than they were is left alone and named: then it is not the same run.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

import walkback as wb
from walkback.notes import Note
from walkback.progress import quietly
from walkback.report.report import Report
from walkback.training.loop import PROBES, probe_batches


def again(path: Path, data: wb.data.Dataset) -> Report:
    bundle, old = wb.load_bundle(path), Report.load(path / "report.json")
    net = bundle.model()
    rule = bundle.rule(net)
    new = wb.diagnose(
        net,
        probe_batches(data, torch.device("cpu")),
        headline_acc=old.headline_acc,
        frozen_baseline_acc=old.frozen_baseline_acc,
        credit=rule,
        method_name=old.method,
        notes=old.remark,
        probes=PROBES,
    )
    for name in ("h_norm", "g_norm", "cosine"):
        lists = ([float("nan") if v is None else v for v in r.per_layer[name]] for r in (old, new))
        before, after = (torch.tensor(values, dtype=torch.float64) for values in lists)
        if not torch.allclose(before, after, rtol=1e-4, atol=1e-6, equal_nan=True):
            print(f"{path.name}: left alone, {name} was {before.tolist()}, is {after.tolist()}")
            return old
    diverged = old.run.get("diverged")
    ended = () if diverged is None else (Note("diverged", None, {"where": diverged}),)
    where = {**new.conditions, "credit_site": old.conditions["credit_site"]}
    return replace(new, run={**old.run, "rule": rule.describe()}, conditions=where, notes=(*ended, *new.notes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--root", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data: dict[str, wb.data.Dataset] = {}
    for path in sorted(options.runs.iterdir()):
        if not (path / "report.json").is_file() or not (path / "weights.safetensors").is_file():
            continue
        report = Report.load(path / "report.json")
        if report.per_layer.get("float64_disagreement") and report.per_layer.get("null_high"):
            continue
        name = str(wb.load_bundle(path).spec["data"])
        if name not in data:
            data[name] = wb.data.load(name, wb.data.root_of(name, options.root))
        with quietly():
            again(path, data[name]).save(path / "report.json")
        print(path.name, flush=True)


if __name__ == "__main__":
    main()
