"""`walkback demo`: the silent failure. DFA looks fine by accuracy and Γ, and every check walks it back."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from walkback.audit import Plan, audit
from walkback.data import load
from walkback.errors import InputError
from walkback.report.advice import reason
from walkback.report.formats.logged import judge
from walkback.report.numbers import NONE, number
from walkback.report.report import Report
from walkback.training.bundle import load_bundle
from walkback.training.spec import RunSpec, control_spec
from walkback.training.worth import add_depth

RULES = ("bp", "dfa")
RECIPE: dict[str, Any] = {
    "net": "resmlp",
    "net_options": {"width": 128},
    "data": "teacher-products",
    "epochs": 4,
    "optimiser": {"lr": 5e-3, "schedule": "constant"},
}
# The published DFA: every sample's credit has one length, and a block gets the credit of the site it reads.
PUBLISHED: dict[str, dict[str, Any]] = {"dfa": {"credit_site": "reader", "credit_length": "unit"}}
DEPTH_SAMPLES = 2000  # of each split, on which the worth of blocks is measured: seconds
# From where on the two numbers that papers report look fine: accuracy as a multiple of chance, and Γ.
OVER_CHANCE, ALIGNED = 3.0, 0.10
WIDTH = 80


def specs(seed: int = 0, recipe: dict[str, Any] | None = None) -> list[RunSpec]:
    """Return the runs of the demo: every rule, then every rule with its blocks frozen."""
    runs = [RunSpec(rule=rule, seed=seed, **PUBLISHED.get(rule, {}), **(recipe or RECIPE)) for rule in RULES]
    return [*runs, *(control_spec(run) for run in runs)]


def demo(
    out: str | Path = "runs/demo", seed: int = 0, workers: int | None = None, recipe: dict[str, Any] | None = None
) -> list[Report]:
    """Train the demo's runs in `out`, judge each rule against its control, save and return the reports.

    What is trained there is not trained again; `recipe` are fields of RunSpec to use instead of RECIPE.
    """
    out = Path(out)
    todo = specs(seed, recipe)
    plan = Plan("demo", "two rules and their controls", tuple(todo))
    outcome = audit(plan, out, workers=workers, depth=DEPTH_SAMPLES, reuse=True)
    if outcome.failed:  # a rule that could not be trained is an error, not a missing row
        raise InputError("\n".join(f"{f.spec.name}: {f.detail}" for f in outcome.failed))
    _measure_depths([out / spec.name for spec in todo[: len(RULES)]])
    accuracy = {spec: _report(out, spec).headline_acc for spec in todo}
    reports = []
    for spec in todo[: len(RULES)]:
        report = judge(
            _report(out, spec),
            headline_acc=accuracy[spec],
            frozen_baseline_acc=accuracy[control_spec(spec)],
            bp_acc=accuracy[todo[0]],
            bp_frozen_acc=accuracy[control_spec(todo[0])],
            method_name=spec.rule.upper(),
            notes=f"{spec.net} on {spec.data}, {spec.epochs} epochs, seed {spec.seed}; control: blocks frozen",
        )
        controls = {"frozen": control_spec(spec), "BP-stem frozen": control_spec(spec, "bp")}
        ended = {name: _report(out, control).run.get("diverged") for name, control in controls.items()}
        extra: dict[str, Any] = {"frozen_bp_stem_acc": accuracy[controls["BP-stem frozen"]]}
        if any(ended.values()):
            extra["controls_diverged"] = {name: why for name, why in ended.items() if why}
        report = replace(report, run={**report.run, **extra})
        report.save(out / f"{spec.rule}.report.json")
        reports.append(report)
    return reports


def _measure_depths(folders: Sequence[Path]) -> None:
    """Add what its blocks are worth to the record of every run that lacks it: of runs that were trained earlier."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the networks are tiny: threads only wait for each other
    try:
        for bundle in map(load_bundle, folders):
            add_depth(bundle, load(str(bundle.spec["data"])), most=DEPTH_SAMPLES)
    finally:
        torch.set_num_threads(threads)


def _report(out: Path, spec: RunSpec) -> Report:
    report = load_bundle(out / spec.name).report()
    assert report is not None  # its presence is what makes a run finished
    return report


# -- what is shown -------------------------------------------------------------------------------------------------


def looks_fine(report: Report) -> bool:
    """Return whether what papers report looks fine: accuracy at least three times chance, and Γ at least +0.10."""
    gamma, classes = report.values["gamma"], report.conditions["classes"]
    return gamma is not None and gamma >= ALIGNED and report.headline_acc * classes >= OVER_CHANCE


def screen(reports: Sequence[Report]) -> str:
    """Return the demo's last screen, 80 columns wide: a row per rule, and why one that looks fine is walked back."""
    head = ["rule", "accuracy", "Γ", "frozen", "worth of blocks", "growth"]
    rows = [head, *([r.method, *_reported(r), *_left_out(r)] for r in reports)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["   ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    start = len(lines[0]) + 3
    over = f"{'':{widths[0] + 3}}{'what papers report':{widths[1] + widths[2] + 6}}what they leave out"
    shown = [over, f"{lines[0]}   verdict"]
    for line, r in zip(lines[1:], reports):
        words = textwrap.wrap(_verdict(r), WIDTH - start)
        shown += [f"{line}   {words[0]}", *(" " * start + more for more in words[1:])]
    explanations = [textwrap.fill(line, WIDTH, break_on_hyphens=False) for line in map(_explained, reports) if line]
    legend = (
        "frozen: the same training with the blocks left at random. worth of blocks: the trained blocks over random "
        "draws of them under the same stem. growth: of the stream in one block."
    )
    return "\n".join([*shown, "", *explanations, textwrap.fill(legend, WIDTH)])


def _reported(r: Report) -> list[str]:
    return [f"{r.headline_acc:.3f}", NONE if r.values["gamma"] is None else f"{r.values['gamma']:+z.3f}"]


def _left_out(r: Report) -> list[str]:
    worth = NONE if r.depth is None else f"{r.depth['worth_pp']:+z.1f} pp"
    growth = r.values["growth"]
    return [f"{r.frozen_baseline_acc:.3f}", worth, NONE if growth is None else f"{number(growth, 'norm')}x"]


def _verdict(r: Report) -> str:
    """Return the verdict with what D3 says, where that is a reason for it."""
    if r.run.get("diverged"):
        return f"{r.verdict}, diverged"
    gain = r.values["depth_margin_pp"]
    if not r.failed or gain is None or "D3" not in r.failed:
        return ": ".join(filter(None, (r.verdict, ", ".join(r.failed))))
    if gain < 0:
        return f"{r.verdict}: frozen blocks are {-gain:z.1f} pp better"
    return f"{r.verdict}: trained blocks gain only {gain:z.1f} pp"


def _explained(r: Report) -> str:
    """Return why a rule whose two reported numbers look fine is walked back; "" of any other."""
    if not r.failed or not looks_fine(r):
        return ""
    times = r.headline_acc * r.conditions["classes"]
    return (
        f"By what papers report, {r.method} looks fine: {times:.1f} times chance, and Γ = {r.values['gamma']:+z.2f}. "
        f"It is walked back by {', '.join(r.failed)}: {reason(r).removeprefix(f'{r.method}: ')}"
    )


def all_numbers(reports: Iterable[Report]) -> str:
    """Return one row per rule with every number of it, the stronger control and what diverged."""
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
                f"{v['depth_margin_pp']:+z.1f}",
                f"{r.run['frozen_bp_stem_acc']:.3f}",
                _against(r),
                _worth(r),
                *(f"{v[k]:.3g}" if v[k] is not None else NONE for k in ("growth", "g_norm_deepest")),
                f"{v['gamma']:+z.3f}" if v["gamma"] is not None else NONE,
                ", ".join(r.failed) or NONE,
                f"{r.verdict}, diverged" if r.run.get("diverged") else r.verdict,
            ]
        )
    head = ["rule", "acc", "frozen", "D3 pp", "BP-stem frozen", "D3 then", "blocks worth pp"]
    head += ["growth", "‖g_L‖", "Γ", "failed", "verdict"]
    grid = tabulate(rows, head, disable_numparse=True, colalign=("left", *["right"] * 9, "left", "left"))
    legend = (
        "frozen: the stem by the same rule, blocks left at random; BP-stem frozen: the stronger control, D3 against it"
        "\n"
        "blocks worth: the trained blocks over random draws of them under the same stem, readouts refitted: D3-outcome"
    )
    return "\n".join([grid, legend, *notes])


def _worth(report: Report) -> str:
    """Return D3-outcome with its interval; – where it was not measured."""
    if report.depth is None:
        return NONE
    (low, high), worth = report.depth["interval"], report.depth["worth_pp"]
    return f"{worth:+z.1f} [{low:+z.1f}, {high:+z.1f}]"


def _against(report: Report) -> str:
    """Return D3 against the stronger control; – where BP does not beat it either, and D3 is not tested."""
    control, margin = report.run["frozen_bp_stem_acc"], report.thresholds["frozen_acc_margin_pp"]
    if report.depth_used is None or round(100 * (report.bp_acc - control), 10) < margin:
        return NONE
    gain = round(100 * (report.headline_acc - control), 10)
    return f"{gain:+z.1f} {'flags' if gain < margin else 'ok'}"
