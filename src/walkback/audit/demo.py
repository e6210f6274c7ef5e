"""`walkback demo`: train, control, diagnose. What the table shows is what the runs measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tabulate import tabulate

from walkback.audit import Plan, audit
from walkback.errors import InputError
from walkback.report.formats.logged import judge
from walkback.report.report import Report
from walkback.training.bundle import load_bundle
from walkback.training.control import control_spec
from walkback.training.spec import RunSpec

RULES = ("bp", "fa", "dfa")
RECIPE: dict[str, Any] = {
    "net": "resmlp",
    "net_options": {"width": 128},
    "data": "teacher",
    "epochs": 7,
    "optimiser": {"lr": 8e-3, "schedule": "constant"},
}


def specs(seed: int = 0, recipe: dict[str, Any] | None = None) -> list[RunSpec]:
    """The runs of the demo: three rules, and each with its blocks frozen."""
    runs = [RunSpec(rule=rule, seed=seed, **(recipe or RECIPE)) for rule in RULES]
    return [*runs, *(control_spec(run) for run in runs)]


def demo(
    out: str | Path = "runs/demo", seed: int = 0, workers: int | None = None, recipe: dict[str, Any] | None = None
) -> list[Report]:
    """Train the demo's runs in `out`, judge each rule against its control, save and return the reports.

    What is trained there is not trained again; `recipe` are fields of RunSpec to use instead of RECIPE.
    """
    out = Path(out)
    todo = specs(seed, recipe)
    outcome = audit(Plan("demo", "three rules and their controls", tuple(todo)), out, workers=workers)
    if outcome.failed:  # a rule that could not be trained is an error, not a missing row
        raise InputError("\n".join(f"{f.spec.name}: {f.detail}" for f in outcome.failed))
    accuracy = {spec: _report(out, spec).headline_acc for spec in todo}
    reports = []
    for spec in todo[: len(RULES)]:
        found = judge(
            _report(out, spec),
            headline_acc=accuracy[spec],
            frozen_baseline_acc=accuracy[control_spec(spec)],
            bp_acc=accuracy[todo[0]],
            method_name=spec.rule.upper(),
            notes=f"{spec.net} on {spec.data}, {spec.epochs} epochs, seed {spec.seed}; control: blocks frozen",
        )
        controls = {"frozen": control_spec(spec), "BP-stem frozen": control_spec(spec, "bp")}
        ended = {name: _report(out, control).run.get("diverged") for name, control in controls.items()}
        extra: dict[str, Any] = {"frozen_bp_stem_acc": accuracy[controls["BP-stem frozen"]]}
        if any(ended.values()):
            extra["controls_diverged"] = {name: why for name, why in ended.items() if why}
        found = replace(found, run={**found.run, **extra})
        found.save(out / f"{spec.rule}.report.json")
        reports.append(found)
    return reports


def _report(out: Path, spec: RunSpec) -> Report:
    report = load_bundle(out / spec.name).report()
    assert report is not None  # its presence is what makes a run finished
    return report


def table(reports: Iterable[Report]) -> str:
    """One row per rule: the claim, the numbers behind it, and what must be walked back."""
    rows, notes = [], []
    for r in reports:
        v = r.values
        ended = {"it": r.run.get("diverged"), **r.run.get("controls_diverged", {})}
        notes += [f"{r.method}: {who} diverged: {why}" for who, why in ended.items() if why]
        rows.append(
            [
                r.method,
                f"{r.headline_acc:.3f}",
                f"{r.frozen_baseline_acc:.3f}",
                f"{v['depth_margin_pp']:+.1f}",
                f"{r.run['frozen_bp_stem_acc']:.3f}",
                _against(r),
                *(f"{v[k]:.3g}" if v[k] is not None else "–" for k in ("growth", "g_norm_deepest")),
                f"{v['gamma']:+.3f}" if v["gamma"] is not None else "–",
                ", ".join(r.failed) or "–",
                f"{r.verdict}, diverged" if r.run.get("diverged") else r.verdict,
            ]
        )
    head = ["rule", "acc", "frozen", "D3 pp", "BP-stem frozen", "D3 then", "growth", "‖g_L‖", "Γ", "failed", "verdict"]
    told = tabulate(rows, head, disable_numparse=True, colalign=("left", *["right"] * 8, "left", "left"))
    legend = (
        "frozen: the stem by the same rule, blocks left at random; BP-stem frozen: the stronger control, D3 against it"
    )
    return "\n".join([told, legend, *notes])


def _against(report: Report) -> str:
    """D3 against the stronger control; – where BP does not beat it either, and D3 is not tested."""
    control, margin = report.run["frozen_bp_stem_acc"], report.thresholds["frozen_acc_margin_pp"]
    if report.depth_used is None or round(100 * (report.bp_acc - control), 10) < margin:
        return "–"
    gain = round(100 * (report.headline_acc - control), 10)
    return f"{gain:+.1f} {'flags' if gain < margin else 'ok'}"
