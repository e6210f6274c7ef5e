"""`walkback demo`: train, control, diagnose. What the table shows is what the runs measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tabulate import tabulate

from walkback.audit import Plan, audit
from walkback.data import load
from walkback.errors import InputError
from walkback.progress import quietly
from walkback.report.formats.logged import judge
from walkback.report.report import Report
from walkback.training.bundle import Bundle, load_bundle
from walkback.training.spec import RunSpec, control_spec
from walkback.training.worth import keep_depth, run_depth

RULES = ("bp", "fa", "dfa")
DEPTH_SAMPLES = 4000  # of each split, on which the worth of blocks is measured: seconds
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
    for spec in todo[: len(RULES)]:
        _measure_depth(load_bundle(out / spec.name))
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


def _measure_depth(bundle: Bundle) -> None:
    """Add what the blocks of a run are worth to its record, once; a run that diverged has none."""
    report = bundle.report()
    if report is not None and report.depth is None and not report.run.get("diverged"):
        with quietly():
            keep_depth(bundle, run_depth(bundle, load(str(bundle.spec["data"])), most=DEPTH_SAMPLES))


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
                _worth(r),
                *(f"{v[k]:.3g}" if v[k] is not None else "–" for k in ("growth", "g_norm_deepest")),
                f"{v['gamma']:+.3f}" if v["gamma"] is not None else "–",
                ", ".join(r.failed) or "–",
                f"{r.verdict}, diverged" if r.run.get("diverged") else r.verdict,
            ]
        )
    head = ["rule", "acc", "frozen", "D3 pp", "BP-stem frozen", "D3 then", "blocks worth pp"]
    head += ["growth", "‖g_L‖", "Γ", "failed", "verdict"]
    told = tabulate(rows, head, disable_numparse=True, colalign=("left", *["right"] * 9, "left", "left"))
    legend = (
        "frozen: the stem by the same rule, blocks left at random; BP-stem frozen: the stronger control, D3 against it"
        "\n"
        "blocks worth: the trained blocks over random draws of them under the same stem, readouts refitted: D3-outcome"
    )
    return "\n".join([told, legend, *notes])


def _worth(report: Report) -> str:
    """D3-outcome with its interval; – where it was not measured."""
    if report.depth is None:
        return "–"
    (low, high), worth = report.depth["interval"], report.depth["worth_pp"]
    return f"{worth:+.1f} [{low:+.1f}, {high:+.1f}]"


def _against(report: Report) -> str:
    """D3 against the stronger control; – where BP does not beat it either, and D3 is not tested."""
    control, margin = report.run["frozen_bp_stem_acc"], report.thresholds["frozen_acc_margin_pp"]
    if report.depth_used is None or round(100 * (report.bp_acc - control), 10) < margin:
        return "–"
    gain = round(100 * (report.headline_acc - control), 10)
    return f"{gain:+.1f} {'flags' if gain < margin else 'ok'}"
