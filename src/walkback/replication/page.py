"""The report page: Records -> one HTML file with everything inside, data and plotly.js too."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from markupsafe import Markup

from walkback.audit.discoveries import with_discovery_rate
from walkback.audit.plans import counted
from walkback.audit.records import Record, Records
from walkback.audit.settings import alike, judged_runs, last
from walkback.audit.wording import commands
from walkback.errors import InputError
from walkback.files import encoded
from walkback.replication.page_pair import pair_picture
from walkback.replication.page_table import (
    CONTROL,
    SHARES,
    csv_lines,
    identity,
    one_line,
    rank,
    rule_name,
    setting_name,
    setting_row,
    verdict_table,
)
from walkback.replication.page_words import DEFINITIONS, LIMITS, RULE, beside_setting, docs_address, findings, to_do
from walkback.report.depth_view import deciding_depth
from walkback.report.formats.logged import fired, plain
from walkback.report.html import asset, templates
from walkback.report.longtable import longtable
from walkback.report.page_view import mark, pairs, view
from walkback.report.panels import limits_of, site_panels
from walkback.report.report import Report
from walkback.training.spec import RunSpec, control_spec
from walkback.verdict.chain import DEPTH_STEP
from walkback.verdict.editions import PASSES, UNDECIDED, WALKED_BACK, Verdict

PLOTLY = "4.1.1"
SCHEMA = "walkback.page/2"


def page(records: Records, title: str = "Walk-back report") -> str:
    """Return the page of all runs, as HTML.

    Args:
        records: what `walkback.audit.records.read_records` found; runs may lack their control or some seeds.
        title: head of the page.
    """
    return render(page_data(records), title)


def render(data: dict[str, Any], title: str = "Walk-back report") -> str:
    """Return what `page_data` gave, as HTML. What only an opened run shows is packed: a third of its size."""
    plotly, script = asset(f"plotly-cartesian-{PLOTLY}.min.js"), asset("page.js")
    inside = {
        "data": _json({name: value for name, value in data.items() if name != "runs"}),
        "runs": packed(json.dumps(data["runs"], ensure_ascii=False, allow_nan=False, separators=(",", ":"))),
        "plotly": packed(plotly),
        "script": script,
        "css": asset("base.css") + asset("page.css"),
    }
    return (
        templates()
        .get_template("page.html")
        .render(
            title=title,
            d=data,
            ends=_ends(data["settings"]),
            rule_words=RULE,
            definitions=DEFINITIONS,
            docs=docs_address(),
            # Only these scripts may run, whatever else finds its way into the page.
            allowed=" ".join(f"'sha256-{_sha256(text)}'" for text in (plotly, script)),
            version=version("walkback"),
            plotly_version=PLOTLY,
            **{name: Markup(text) for name, text in inside.items()},
        )
    )


def packed(text: str) -> str:
    """Return a text as base64 of gzip, which a browser unpacks by itself. The same text gives the same bytes."""
    return base64.b64encode(gzip.compress(encoded(text), 6, mtime=0)).decode()


def page_data(records: Records) -> dict[str, Any]:
    """Return what the page shows, as plain values.

    Keys: `findings` are three sentences; `pair` the picture under them; `settings` the verdict table, one entry per
    rule and setting, `many` what holds so many at once; `runs` one per run; `missing` the controls D3 lacks, with the
    commands that would train them; `problems` what could not be read.
    """
    if not records.runs:
        raise InputError(_nothing(records))
    groups = alike(records)
    claims, many = with_discovery_rate(
        {spec: judged_runs(records, runs) for spec, runs in groups.items() if spec.scope == "all"}
    )
    rows = {spec: setting_row(records, spec, j) for spec, j in claims.items()}
    names = {spec: setting_name(spec) for spec in groups}
    place = {names[spec]: (spec.net, spec.data, spec.penalty, -spec.epochs, names[spec]) for spec in groups}
    settings = sorted(rows.values(), key=lambda s: (place[s["setting"]], *rank(s["rule"])))
    runs = [_run(records, spec, run, rows.get(spec)) for spec, runs in groups.items() for run in runs]
    runs.sort(key=lambda r: (place[r["setting"]], r["verdict"]["word"] == CONTROL, *rank(r["filter_rule"]), r["seed"]))
    lacking = [c for spec, j in claims.items() for run in j.runs if records.find(c := control_spec(run.spec)) is None]
    return plain(
        {
            "schema": SCHEMA,
            "store": one_line(records.folder.name or str(records.folder)),
            "summary": f"{_summary(settings)} {_counts(runs)}",
            "counts": _counts(runs),
            "findings": findings(settings),
            "pair": pair_picture(settings),
            "settings": settings,
            "many": many,
            "runs": runs,
            "missing": [one_line(line).partition(": ")[::2] for line in commands(lacking, records.store)],
            "problems": [[one_line(_below(p.path, records.folder)), one_line(p.reason)] for p in records.problems],
            "thresholds": asdict(LIMITS),
            "csv": csv_lines(settings),
            "latex": longtable(verdict_table(settings, many), SHARES),
        }
    )


def _nothing(records: Records) -> str:
    text = f"Expected finished runs under {records.folder}, but there are none"
    if records.problems:
        first = records.problems[0]
        text += f" that can be read ({len(records.problems)} can't; {first.path}: {first.reason.rstrip('.')})"
    there = shlex.quote(str(records.folder))
    return f"{text}. Train some there: walkback demo --out {there}, or walkback train --out {there}."


def _summary(settings: Sequence[Mapping[str, Any]]) -> str:
    words = Counter(s["verdict"]["word"] for s in settings)
    blind = sum(bool(s["verdict"]["qualifier"]) for s in settings)
    some = f" ({f'{blind} of them ' if blind < words[UNDECIDED] else ''}with depth not tested)" if blind else ""
    texts = {WALKED_BACK: "walked back", UNDECIDED: f"undecided{some}", PASSES: "pass" if words[PASSES] > 1 else PASSES}
    listed = [f"{words[word]} {text}" for word, text in texts.items() if words[word]]
    return f"{counted(len(settings), 'setting')}: {', '.join(listed)}." if settings else "No claim to judge."


def _counts(runs: Sequence[Mapping[str, Any]]) -> str:
    controls = sum(r["verdict"]["word"] == CONTROL for r in runs)
    return f"{counted(len(runs) - controls, 'run')} and {counted(controls, 'frozen control')}."


def _below(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder) if path.is_relative_to(folder) and path != folder else path)


# -- one run -------------------------------------------------------------------------------------------------------


def _run(records: Records, spec: RunSpec, run: Record, row: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a run on its own, judged against its own control by the binomial error of their paired predictions.

    `row` is that of its setting in the table, None for a control.
    """
    control = records.control(run) if run.spec.scope == "all" else None
    report = run.report
    answer: dict[str, Any] = {"word": CONTROL}
    if run.spec.scope == "all":
        j = judged_runs(records, [run])
        report = _judged_report(run, j.verdicts["three-check"][0])
        report = replace(report, frozen_baseline_acc=control and control.accuracy)
        answer = {"word": report.verdict, "four": j.word("four-diagnostic")}
    shown = view(report)
    depth, limits = deciding_depth(report), limits_of(report)
    untested = answer["word"] == UNDECIDED and depth["flagged"] is None and depth["cause"] != "straddles"
    shown["verdict"] = {**mark(answer["word"]), "qualifier": "depth not tested" if untested else ""}
    for check in shown["checks"]:
        word: str = check["result"]["word"]
        check["todo"] = to_do(check["check"], _RESULTS.get(word, word))
    over = row and beside_setting(answer["word"], row["verdict"]["word"], len(row["runs"]), row["failed"])
    return {
        "id": identity(run),
        "name": one_line(run.path.name),
        "rule": rule_name(run.spec) + (" stem, blocks frozen" if run.spec.scope == "frozen" else ""),
        "filter_rule": rule_name(run.spec),
        "setting": setting_name(spec),
        "seed": run.spec.seed,
        "method": report.method,
        **shown,
        "beside": over or "",
        "control": control and {"id": identity(control), "acc": control.accuracy},
        "acc": run.accuracy,
        "values": report.values,
        "per_layer": report.per_layer,
        "limits": limits,
        "panels": [panel._asdict() for panel in site_panels(report.per_layer, limits, report.depth)],
        "aggregates": report.aggregates,
        "fresh": report.run.get("fresh_feedback"),
        "replay": _replay(run),
        "recipe": pairs({**run.spec.model_dump(), "test accuracy": run.accuracy}),
        "machine": pairs(run.machine),
    }


_RESULTS = {"flagged": "flags"}  # of one run -> as the table of settings says it


def _judged_report(run: Record, verdict: Verdict) -> Report:
    """Return the report of a run with the verdict its store gives it."""
    fields = ("edition", "verdict", "failed", "measurement_valid", "depth_used", "submode")
    said = {name: getattr(verdict, name) for name in fields}
    findings = [asdict(f) for f in verdict.findings]
    chain = [asdict(step) for step in verdict.chain]
    depth = verdict["depth"]
    if depth.cause == "not-given":  # a missing argument of `diagnose` is a missing run here
        absent = "not tested: its frozen control is not in the store"
        findings[verdict.findings.index(depth)]["reason"] = absent
        chain[DEPTH_STEP - 1]["text"] = absent
    return replace(run.report, **said, findings=tuple(findings), chain=tuple(chain), thresholds=asdict(LIMITS))


def _replay(run: Record) -> dict[str, Any]:
    """Return the course of training from initialisation on, as logged, and the epoch each check fired."""
    steps = run.epochs
    return {
        "epoch": [epoch for epoch, _, _ in steps],
        "acc": [acc for _, acc, _ in steps],
        "h_norm": [last(m.h_norm) for _, _, m in steps],
        "g_norm": [last(m.g_norm) for _, _, m in steps],
        "growth": [m.growth for _, _, m in steps],
        "gamma": [m.gamma for _, _, m in steps],
        "fired": fired([(epoch, m) for epoch, _, m in steps], LIMITS),
        "diverged": run.report.run.get("diverged"),
    }


# -- putting it into HTML ------------------------------------------------------------------------------------------


def _json(data: Any) -> str:
    """Return JSON that can stand inside a script element: nothing in it ends the element or opens a comment."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _ends(settings: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Return the lowest and highest of all gains over frozen blocks with their intervals, of zero and the margin."""
    gains = [(s["d3"]["value"], *(s["d3"]["interval"] or ())) for s in settings if s["d3"]["value"] is not None]
    ends = [0.0, LIMITS.frozen_acc_margin_pp, *(x for gain in gains for x in gain)]
    return min(ends), max(ends)


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
