"""A report in words: every line and cell that is shown of it, before any markup. Nothing is computed here.

Text, Markdown and LaTeX take the parts they need; `page_view` has them as plain values, ready to be put on a page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from walkback.measures.measurements import by_layer, comparable
from walkback.measures.over_sites import block_growth
from walkback.measures.quantities import PER_SITE, Quantity
from walkback.notes import Note, coded
from walkback.report import depth_view as dv
from walkback.report.numbers import NONE, figure
from walkback.sentence_parts import share_held
from walkback.verdict.findings import DEPTH, about

if TYPE_CHECKING:
    from walkback.report.report import Report

Grid = tuple[list[str], list[list[str]]]  # heads, rows

YES = {True: "yes", False: "no", None: "not tested"}
_CONTROLS = {
    "perturbation_bp": "control, ρ_pert of the BP gradient by site",
    "perturbation_random": "control, ρ_pert of a random vector by site",
    "nudging_bp_rms": "control, nudge by η√d along the BP gradient by site",
    "nudging_bp": "control, nudge along the BP gradient by site",
    "nudging_bp_relative": "control, relative nudge along the BP gradient by site",
    "fresh_mean": "control, mean cosine under fresh feedback by site",
    "fresh_low": "control, lower end of the cosine under fresh feedback by site",
    "fresh_high": "control, upper end of the cosine under fresh feedback by site",
}


# -- lines ---------------------------------------------------------------------------------------------------------


def title(report: Report) -> str:
    """Return the first line: the method and the edition."""
    return f"{report.method or 'Network'}: {report.edition} protocol"


def remark(report: Report) -> str:
    """Return what the user wrote under `notes`."""
    return " ".join(note.text for note in coded(report.notes, "remark"))


def as_question(step: str) -> str:
    """Return the title of a step of the chain as it stands before its text: a question, or with a colon."""
    return step if step.endswith("?") else f"{step}:"


def conditions_line(report: Report) -> str:
    """Return under what was measured, in one line."""
    c, run = report.conditions, report.run
    if not {"samples", "batches", "mode", "dtype", "device"} <= set(c):
        what = f"the last numbers in {run['epochs']} rows" if "epochs" in run else "logged numbers"
        return f"judged from {what}; ‖g‖ taken as that of a mean loss over 128 samples"
    dtype = f"{c['dtype']}{' under autocast' if c.get('autocast') else ''}"
    if c.get("gradient_dtype", c["dtype"]) != c["dtype"]:
        dtype += f" with gradients in {c['gradient_dtype']}"
    line = f"{c['samples']} samples in {c['batches']} batches, {c['mode']} mode, {dtype} on {c['device']}"
    return line + "; ‖g‖ is the per-sample norm ÷ 128"


def weights_line(report: Report) -> str:
    """Return what share of the weights was measured, and which modules hold the rest; "" where it is not known."""
    c = report.conditions
    if c.get("weights_in_sites") is None:
        return ""
    what = "the layers measured" if by_layer(c) else "blocks"
    return share_held(what, c["weights_in_sites"], c.get("weights_outside") or ())


def verdict_line(report: Report) -> str:
    """Return the last line: the verdict, what decides it or would, what flags beside it, and where editions differ."""
    decides = {"walked back": ", ".join(report.failed), "undecided": "; ".join(_open_checks(report))}
    line = ": ".join(filter(None, ("VERDICT", report.verdict, decides.get(report.verdict))))
    line += dv.depth_words(report)
    flagged = _flagged_beside(report)
    if flagged:
        line += f"{', with' if report.verdict == 'passes' else ';'} {', '.join(flagged)}"
    return "; ".join((line, *(_other_edition(note) for note in coded(report.notes, "editions-differ"))))


def _open_checks(report: Report) -> list[str]:
    """Return each check that the verdict waits for, with what would decide it."""
    lines = []
    for f in (f for f in dv.deciding(report) if f["flagged"] is None):
        if about(f) in DEPTH:
            lines.append(dv.open_depth(f))
        else:
            lines.append(f"{f['check']}{':' if f['cause'] == 'straddles' else ' not tested:'} {f['reason']}")
    return lines


def _flagged_beside(report: Report) -> list[str]:
    """Return the checks that flag without deciding: growth alone, or in three-check a reference under its floor."""
    needs = {"D1": "D2", "D2": "D1"} if report.edition == "three-check" else {}
    lines = []
    for f in dv.deciding(report):
        if f["flagged"] and f["check"] not in report.failed:
            factor = "x" if about(f) == "growth" else ""
            value = "" if f["value"] is None else f"{figure(f['value'])}{factor}; "
            other = f"only together with {needs[f['check']]}" if f["check"] in needs else "nothing alone"
            lines.append(f"{f['check']} flagged ({value}it decides {other})")
    return lines


def _other_edition(note: Note) -> str:
    """Return what D2 of the other edition says, in as few words as a verdict line bears."""
    v = note.values
    if v["edition"] == "intrinsic":
        return f"the published D2 {'flags' if v['exact'] else 'passes'} (‖g_L‖ {v['g_norm']:.2g})"
    return f"the intrinsic D2 {'passes' if v['exact'] else 'flags'} (gradient off float64 by {v['error']:.1g})"


def answers(report: Report) -> list[tuple[str, str]]:
    """Return the questions every report answers, with yes, no, not tested, undecided; and the sub-mode, if any."""
    straddles = report.depth_used is None and report.findings and dv.deciding_depth(report)["cause"] == "straddles"
    lines = [
        ("clamped cosine readable", YES[report.clamped_readable]),
        ("unclamped cosine exact", _exact(report)),
        ("depth used", "undecided" if straddles else YES[report.depth_used]),
    ]
    return [*lines, ("sub-mode", report.submode)] if report.submode else lines


def _exact(report: Report) -> str:
    """Return whether the unclamped cosine is exact, and of what that was tested: gradient and credit, or one alone."""
    off, word = report.values.get("cosine_error"), YES[report.unclamped_exact]
    if off is None:
        return word
    if report.altered:
        return f"{word} (the reference is altered)"
    rounded = [str(note.site) for note in coded(report.notes, "rounded-credit")]
    if report.credit_exact is False and rounded:
        return f"{word} (the credit is rounding at site{'s' * (len(rounded) > 1)} {', '.join(rounded)})"
    word = "undecided" if report.unclamped_exact is None else word
    alone = "of the gradient alone, " if report.unclamped_exact and report.credit_exact is None else ""
    return f"{word} ({alone}off float64 by {off:.1g})"


# -- tables --------------------------------------------------------------------------------------------------------


def stands_left(head: Sequence[str]) -> list[bool]:
    """Return which columns stand left: words do, numbers stand right."""
    return [i == 0 or h in ("", "result", "flags when") for i, h in enumerate(head)]


def tables(report: Report) -> list[Grid]:
    """Return all tables of a report: the state by site, accuracy by depth, and the checks."""
    return [*layer_tables(report), *dv.depth_table(report), finding_rows(report)]


def layer_tables(report: Report) -> list[Grid]:
    """Return the state by site and, where it was measured, the precision of the reference."""
    tables = [layer_rows(report, [q for q in PER_SITE if q.precision == precise]) for precise in (False, True)]
    return [table for table in tables if len(table[0]) > 1]


def layer_rows(report: Report, quantities: Sequence[Quantity] = PER_SITE) -> Grid:
    """Return the quantities by site, those that have a column and were measured; the last row has the limits."""
    lists = {q: report.per_layer.get(q.name) or [] for q in quantities if _has_column(report, q)}
    heads = ["site"]
    for q in lists:
        heads += [q.title, *{"h_norm": ["growth"], "null_high": ["reads"]}.get(q.name, ())]
    rows = []
    ratios = block_growth(*comparable(report.per_layer.get("h_norm") or [], report.conditions))
    for site in range(count_sites(report)):
        row = [str(site)]
        for q, values in lists.items():
            value = values[site] if site < len(values) else None
            row.append(_cell(report, q, site, value))
            if q.name == "null_high":
                row.append(report.reads_as(site) or NONE)
            if q.name == "h_norm":
                row.append(f"{ratios[site]:.3g}x" if site in ratios else "")
        rows.append(row)
    columns = {"growth": "growth", "reference": "off float64" if report.edition == "intrinsic" else "‖g‖"}
    limits = {columns[about(f)]: f["flags_when"] for f in report.findings if about(f) in columns}
    return heads, [*rows, ["flags"] + [limits.get(h, "") for h in heads[1:]]]


def _has_column(report: Report, q: Quantity) -> bool:
    values = report.per_layer.get(q.name) or []
    if q.name == "zero_credit":  # a column of its own where there are any
        return any(values)
    if q.name in ("cosine_above", "cosine_below") and not coded(report.notes, "shifted-pairing"):
        return False
    return bool(q.title) and any(v is not None for v in values)


def count_sites(report: Report) -> int:
    """Return how many sites the tables have rows of."""
    return max((len(report.per_layer.get(q.name) or []) for q in PER_SITE if q.title), default=0)


def _cell(report: Report, q: Quantity, site: int, value: float | None) -> str:
    if q.form == "interval" and value is not None:
        return f"{value:+z.3f}…{(report.per_layer.get('cosine_high') or [])[site]:+z.3f}"
    if q.form == "band" and value is not None:
        return f"±{value:.3f}"
    return figure(value, q.form)


def finding_rows(report: Report) -> Grid:
    """Return one row per check: its value, its limit and its result."""
    results = {"flagged": "FLAGGED"}
    rows = [
        [f["check"], f["title"], finding_value(f), f["flags_when"], results.get(result_of(f), result_of(f))]
        for f in report.findings
    ]
    return ["check", "", "value", "flags when", "result"], rows


def finding_value(finding: Mapping[str, Any]) -> str:
    """Return the value of a check, in percentage points where it is about depth."""
    value, points = finding["value"], about(finding) in DEPTH
    return f"{value:+z.1f} pp" if points and value is not None else figure(value)


def result_of(finding: Mapping[str, Any]) -> str:
    """Return the result of a check in a word."""
    if finding["cause"] == "straddles":
        return "undecided"
    drifts = about(finding) == "stability"
    words = {True: "drift", False: "no drift"} if drifts else {True: "flagged", False: "ok"}
    return words.get(finding["flagged"], "not tested")


# -- paragraphs under the tables -----------------------------------------------------------------------------------


def paragraphs(report: Report) -> list[list[str]]:
    """Return what stands under the tables, in lines: the stream, Γ, the run, and what is to be noted."""
    untested = [f"{f['check']}: {f['reason']}" for f in report.findings if f["flagged"] is None]
    return list(filter(None, (*about_lines(report), [*untested, *(f"note: {text}" for text in report.advisories)])))


def about_lines(report: Report) -> tuple[list[str], ...]:
    """Return the lines about the stream, Γ, depth and the run."""
    depth = [*dv.depth_lines(report), *dv.seeds_lines(report)]
    return _about_stream(report), _about_gamma(report), depth, run_lines(report)


def _about_stream(report: Report) -> list[str]:
    """Return raw values that no table shows: total growth, and stability where the edition has no check for it."""
    parts, v = [], report.values
    if v.get("growth_total") is not None:
        parts.append(f"growth over the whole depth {figure(v['growth_total'])}x")
    checked = any(about(f) == "stability" for f in report.findings)
    if not checked and v.get("stability") is not None:
        limit = report.thresholds["stability_drift_ceiling"]
        parts.append(f"direction stability of g_L {v['stability']:+z.3f} (drift above {limit:g})")
    elif not checked and report.conditions.get("samples"):
        parts.append(f"direction stability of g_L not measured: {report.reasons.get('stability', 'not given')}")
    return ["; ".join(parts)] if parts else []


def _about_gamma(report: Report) -> list[str]:
    lines, v = [], report.values
    if v.get("gamma") is not None:
        last = "L" if report.conditions.get("gamma_over") == "0..L" else "L−1"
        where = "all hidden layers" if by_layer(report.conditions) else f"sites 0…{last}"
        parts = [f"Γ = {v['gamma']:+z.3f} ({where})"]
        if v.get("gamma_concentration") is not None:
            parts.append(f"one site carries {v['gamma_concentration']:.0%} of Σ|cos|")
        if v.get("deep_cosine") is not None:
            parts.append(f"deep mean {v['deep_cosine']:+z.3f}")
        lines.append("; ".join(parts))
        others = [f"{k} {figure(x, 'signed')}" for k, x in report.aggregates.items() if k != "layers"]
        if others:
            lines.append(f"Γ averaged in other orders: {', '.join(others)}")
    fresh = report.conditions.get("fresh_feedback") or {}
    for name, letter in (("gamma", "Γ"), ("deep_cosine", "deep mean")):
        ours = v.get(name)
        if fresh.get(name) and ours is not None:
            mean, std = fresh[name]["mean"], fresh[name]["std"]
            apart = f", {abs(ours - mean) / std:.1f}σ from ours" if std else ""
            lines.append(f"{letter} with fresh feedback {mean:+z.3f} ± {std:.3f} ({fresh['draws']} draws){apart}")
    if "not measured because" in fresh:
        lines.append(f"fresh feedback not measured: {fresh['not measured because']}")
    measured = {name: numbers for name, numbers in report.controls.items() if numbers}
    by_site = {name: ", ".join(figure(x, "signed") for x in numbers) for name, numbers in measured.items()}
    return [*lines, *(f"{_CONTROLS.get(name, name)}: {numbers}" for name, numbers in by_site.items())]


def run_lines(report: Report) -> list[str]:
    """Return when each check first flagged in a run, and how much of it was left; [] where that is not known."""
    run = report.run
    fired, unit, total = run.get("fired"), run.get("unit", "epoch"), run.get("total")
    if not isinstance(fired, dict) or not fired:
        return []
    layer, left = run.get("layer") or {}, run.get("left") or {}

    def when(check: str, at: Any) -> str:
        if at is None:
            return f"{check} never"
        where = f" in layer {layer[check]}" if layer.get(check) is not None else ""
        ahead = "" if left.get(check) is None or not total else f" ({left[check] / total:.0%} left)"
        return f"{check} at {unit} {at}{where}{ahead}"

    length = f"; {total:g} {unit}s in all" if total else f" ({run['epochs']} epochs)" if run.get("epochs") else ""
    lines = [f"first flagged: {', '.join(when(check, at) for check, at in fired.items())}{length}"]
    if run.get("lost") is not None and total:
        spare = run.get("lost_left") or 0
        share = f"{spare / total:.0%} of the compute"
        lines.append(f"trust lost at {unit} {run['lost']}: {spare:g} of {total:g} {unit}s were left, {share}")
    return lines
