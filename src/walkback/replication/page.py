"""The report page: Records -> one HTML file with everything inside, data and plotly.js too."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from markupsafe import Markup

from walkback.audit.plans import counted
from walkback.audit.records import Record, Records
from walkback.audit.settings import LABELS, Judged, alike, commands, judged_runs, last, setting_words, worded
from walkback.errors import InputError
from walkback.replication.tables.build import depth_word, failed_words, flag_word, interval_text
from walkback.report.depth_view import deciding_depth
from walkback.report.formats.logged import fired, plain
from walkback.report.html import asset, templates
from walkback.report.longtable import longtable
from walkback.report.panels import site_panels
from walkback.report.report import Report
from walkback.report.table import NONE, Stat, Table, csv_text, number, spread, stat, table
from walkback.report.view import distance, mark, pairs, view
from walkback.training.spec import RunSpec, control_spec
from walkback.verdict.chain import DEPTH_STEP
from walkback.verdict.checks import DiagnosticThresholds, Finding
from walkback.verdict.editions import PASSES, UNDECIDED, WALKED_BACK, Verdict

PLOTLY = "4.1.1"
SCHEMA = "walkback.page/1"
CONTROL = "control"
_ORDER = {WALKED_BACK: 0, UNDECIDED: 1, PASSES: 2, CONTROL: 3}
_LIMITS = DiagnosticThresholds()


def page(records: Records, title: str = "Walk-back report") -> str:
    """The page of all runs, as HTML.

    Args:
        records: what `walkback.audit.records.read_records` found; runs may lack their control or some seeds.
        title: head of the page.
    """
    return render(page_data(records), title)


def render(data: dict[str, Any], title: str = "Walk-back report") -> str:
    """What `page_data` gave, as HTML."""
    scripts = {"plotly": asset(f"plotly-cartesian-{PLOTLY}.min.js"), "script": asset("page.js")}
    inside = {"data": _json(data), "css": asset("base.css") + asset("page.css"), **scripts}
    return (
        templates()
        .get_template("page.html")
        .render(
            title=title,
            d=data,
            ends=_ends(data["settings"]),
            # Only these scripts may run, whatever else finds its way into the page.
            allowed=" ".join(f"'sha256-{_sha256(text)}'" for text in scripts.values()),
            version=version("walkback"),
            plotly_version=PLOTLY,
            **{name: Markup(text) for name, text in inside.items()},
        )
    )


def page_data(records: Records) -> dict[str, Any]:
    """What the page shows, as plain values: the JSON inside it.

    Keys: `settings` is the verdict table, one entry per rule and setting; `runs` one per run; `missing` the controls
    D3 lacks, with the commands that would train them; `problems` what could not be read.
    """
    if not records.runs:
        raise InputError(_nothing(records))
    groups = alike(records)
    claims = {spec: judged_runs(records, runs) for spec, runs in groups.items() if spec.scope == "all"}
    settings = [_setting(records, spec, j) for spec, j in claims.items()]
    place = {_where(spec): (spec.net, spec.data, spec.penalty, -spec.epochs, _where(spec)) for spec in groups}
    settings.sort(key=lambda s: (place[s["setting"]], *_rank(s["rule"])))
    runs = [_run(records, spec, run) for spec, runs in groups.items() for run in runs]
    runs.sort(key=lambda r: (place[r["setting"]], r["verdict"]["word"] == CONTROL, *_rank(r["filter_rule"]), r["seed"]))
    lacking = [c for spec, j in claims.items() for run in j.runs if records.find(c := control_spec(run.spec)) is None]
    return plain(
        {
            "schema": SCHEMA,
            "store": _text(records.folder.name or str(records.folder)),
            "summary": _summary(settings, runs),
            "settings": settings,
            "runs": runs,
            "missing": [_text(line).partition(": ")[::2] for line in commands(lacking, records.store)],
            "problems": [[_text(_below(p.path, records.folder)), _text(p.reason)] for p in records.problems],
            "thresholds": asdict(_LIMITS),
            "csv": _csv(settings),
            "latex": longtable(_verdict_table(settings), _SHARES),
        }
    )


def _nothing(records: Records) -> str:
    text = f"Expected finished runs under {records.folder}, but there are none"
    if records.problems:
        first = records.problems[0]
        text += f" that can be read ({len(records.problems)} can't; {first.path}: {first.reason.rstrip('.')})"
    there = shlex.quote(str(records.folder))
    return f"{text}. Train some there: walkback demo --out {there}, or walkback train --out {there}."


def _summary(settings: Sequence[dict[str, Any]], runs: Sequence[dict[str, Any]]) -> str:
    words = Counter(s["verdict"]["word"] for s in settings)
    blind = sum(bool(s["verdict"]["qualifier"]) for s in settings)
    some = f" ({f'{blind} of them ' if blind < words[UNDECIDED] else ''}with depth not tested)" if blind else ""
    texts = {WALKED_BACK: "walked back", UNDECIDED: f"undecided{some}", PASSES: "pass" if words[PASSES] > 1 else PASSES}
    said = [f"{words[word]} {text}" for word, text in texts.items() if words[word]]
    controls = sum(r["verdict"]["word"] == CONTROL for r in runs)
    head = f"{counted(len(settings), 'setting')}: {', '.join(said)}" if settings else "No claim to judge"
    return f"{head}. {counted(len(runs) - controls, 'run')} and {counted(controls, 'frozen control')}."


# -- words ---------------------------------------------------------------------------------------------------------


def _rule(spec: RunSpec) -> str:
    return _text(" · ".join([LABELS.get(spec.rule, spec.rule), *worded(spec.rule_options)]))


def _rank(rule: str) -> tuple[int, str]:
    """The papers' order, then by name."""
    names = list(LABELS.values())
    first = rule.partition(" · ")[0]
    return names.index(first) if first in names else len(names), rule


def _where(spec: RunSpec) -> str:
    """Everything but rule, scope and seed."""
    return _text(" · ".join(setting_words(spec)))


def _text(text: str) -> str:
    """One line that UTF-8 can hold: folder names may be any bytes."""
    return " ".join(text.encode("utf-8", "backslashreplace").decode().split())


def _below(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder) if path.is_relative_to(folder) and path != folder else path)


def _identity(run: Record) -> str:
    return f"run-{run.spec.digest}"


def _links(runs: Iterable[Record]) -> list[dict[str, Any]]:
    return [{"id": _identity(run), "seed": run.spec.seed} for run in runs]


# -- the verdict table ---------------------------------------------------------------------------------------------


def _setting(records: Records, spec: RunSpec, j: Judged) -> dict[str, Any]:
    three, four = j.verdicts["three-check"], j.verdicts["four-diagnostic"]
    word, n = j.word("three-check") or "", len(j.runs)
    failed = {edition: failed_words(j.failed(edition), n) for edition in j.verdicts}
    outcomes = [v["outcome"] for v in three if "outcome" in v.names]
    blind = "" if j.tested or outcomes or word != UNDECIDED else "depth not tested"
    controls = [c for run in j.runs if (c := records.control(run)) is not None]
    return {
        "rule": _rule(spec),
        "setting": _where(spec),
        "runs": _links(j.runs),
        "verdict": {**mark(word), "qualifier": blind, "order": _ORDER[word]},
        "failed": failed["three-check"] or blind,
        "four": ": ".join(filter(None, (j.word("four-diagnostic"), failed["four-diagnostic"]))),
        "valid": _over([v.measurement_valid for v in three]),  # of three-check: the clamped cosine's
        "depth": _depth_answer(j) if j.tested or not outcomes else _over([v.depth_used for v in three]),
        "outcome": ", ".join(f"{number(f.value, 'pp')} pp {depth_word(f)}" for f in outcomes if f.value is not None),
        "submodes": sorted({v.submode for v in four if v.submode}),
        "d1": _check(j, "growth", "growth"),
        "d2": _check(j, "reference", "g_norm"),
        "d3": _depth(j.depth, j.paired[0], n),
        "d3_bp": _depth(j.depth_bp, j.paired[1], n),
        "acc": _stat(j.stat("acc"), "acc"),
        "frozen": _stat(stat(c.accuracy for c in controls), "acc"),
        "controls": _links(controls),
    }


def _over(answers: Sequence[bool | None]) -> dict[str, str]:
    """One answer over all seeds: no where any says no."""
    no, known = answers.count(False), len(answers) - answers.count(None)
    if not known:
        return mark("not tested")
    return mark("yes" if not no else "no" if no == known else f"no ({no}/{known})")


def _depth_answer(j: Judged) -> dict[str, str]:
    if j.depth is None or j.depth.flagged is None:
        return mark("undecided" if j.tested else "not tested")
    return mark("no" if j.depth.flagged else "yes")


def _check(j: Judged, name: str, what: str) -> dict[str, Any]:
    """D1 or D2 over the seeds: the value, whether it flags, and how far from the limit."""
    findings = [v[name] for v in j.verdicts["three-check"]]
    first = asdict(findings[0])
    values = [f.value for f in findings]
    reasons = list(dict.fromkeys(f.reason for f in findings if f.reason))
    return {
        "result": mark(flag_word([f.flagged for f in findings]) or "not tested"),
        **_stat(j.stat(what), "norm"),
        "values": values,
        "limit": first["limit"],
        "flags_when": first["flags_when"],
        "distance": distance(values, first),
        "reason": "; ".join(reasons),
    }


def _depth(finding: Finding | None, paired: int, runs: int) -> dict[str, Any]:
    if finding is None or finding.value is None:
        reason = "no frozen control in the store" if finding is not None and not paired else ""
        nothing = {"text": NONE, "value": None, "interval": None, "distance": "", "limit": _LIMITS.frozen_acc_margin_pp}
        return {"result": mark("not tested"), **nothing, "reason": reason, "paired": paired}
    some = "" if paired == runs else f"{paired} of {runs} seeds have their control"
    why = finding.reason if depth_word(finding) == "not tested" else ""
    return {
        "result": mark(depth_word(finding)),
        "text": f"{number(finding.value, 'pp')} pp{interval_text(finding)}",
        "value": finding.value,
        "interval": finding.interval,
        "limit": finding.limit,
        "distance": "" if why else distance([finding.value], asdict(finding)),
        "reason": "; ".join(filter(None, (why, some))),
        "paired": paired,
    }


def _stat(value: Stat | None, kind: str) -> dict[str, Any]:
    return {"text": spread(value, kind).text, "mean": value and value.mean, "std": value and value.std,
            "n": value.n if value else 0}  # fmt: skip


def _verdict_table(settings: Iterable[dict[str, Any]]) -> Table:
    """The same table for LaTeX."""
    rows = [
        [
            *(s["rule"], s["setting"], str(len(s["runs"]))),
            s["verdict"]["word"] + (f": {s['failed']}" if s["failed"] else ""),
            *(f"{s[k]['text']} {s[k]['result']['word']}" for k in ("d1", "d2", "d3")),
            *(s["valid"]["word"], s["depth"]["word"], s["acc"]["text"], s["frozen"]["text"]),
        ]
        for s in settings
    ]
    t = _LIMITS
    return table(
        "verdicts",
        "Verdicts of the three-check protocol, mean ± std over seeds",
        "rule | setting | n | verdict | D1 ρ | D2 ‖g_L‖ | D3 gain | valid | depth used | acc | frozen",
        rows,
        [
            f"D1 flags at growth > {t.h_norm_explosion_ratio:g}, D2 at ‖g_L‖ < {t.g_norm_floor:g} (per-sample norm ÷ "
            f"128), D3 at a gain < {t.frozen_acc_margin_pp:g} pp over the matched frozen control (95 % interval in "
            "brackets). A claim is walked back if (D1 and D2) or D3; (k/n) counts the seeds"
        ],
    )


# Of the width of a page in landscape, by column of the verdict table.
_SHARES = (0.095, 0.128, 0.03, 0.105, 0.085, 0.1, 0.1, 0.057, 0.08, 0.11, 0.11)


def _csv(settings: Iterable[dict[str, Any]]) -> list[str]:
    """The table as numbers: its head and one line per row."""
    rows = [_csv_row(s) for s in settings]
    return csv_text([*(list(row) for row in rows[:1]), *(list(row.values()) for row in rows)], "\0").split("\0")[:-1]


def _csv_row(s: dict[str, Any]) -> dict[str, Any]:
    row = {"rule": s["rule"], "setting": s["setting"], "seeds": " ".join(str(r["seed"]) for r in s["runs"])}
    row |= {"verdict": s["verdict"]["word"], "failed": s["failed"], "verdict_four_diagnostic": s["four"]}
    for name, c in (("growth", s["d1"]), ("g_norm_deepest", s["d2"])):
        row |= {f"{name}_{part}": c[part] for part in ("mean", "std", "limit")}
        row |= {f"{name}_result": c["result"]["word"]}
    for name, c in (("depth_margin_pp", s["d3"]), ("depth_margin_bp_stem_pp", s["d3_bp"])):
        low, high = c["interval"] or (None, None)
        row |= {name: c["value"], f"{name}_low": low, f"{name}_high": high, f"{name}_limit": c["limit"]}
        row |= {f"{name}_result": c["result"]["word"], f"{name}_seeds": c["paired"]}
    row |= {"clamped_readable": s["valid"]["word"], "depth_used": s["depth"]["word"]}
    for name, c in (("acc", s["acc"]), ("frozen_acc", s["frozen"])):
        row |= {f"{name}_{part}": c[part] for part in ("mean", "std", "n")}
    return row


# -- one run -------------------------------------------------------------------------------------------------------


def _run(records: Records, spec: RunSpec, run: Record) -> dict[str, Any]:
    """A run on its own: judged against its own control, by the binomial error of their paired predictions."""
    control = records.control(run) if run.spec.scope == "all" else None
    report = run.report
    answer: dict[str, Any] = {"word": CONTROL}
    if run.spec.scope == "all":
        j = judged_runs(records, [run])
        report = _judged_report(run, j.verdicts["three-check"][0])
        report = replace(report, frozen_baseline_acc=control and control.accuracy)
        answer = {"word": report.verdict, "four": j.word("four-diagnostic")}
    shown = view(report)
    depth, limits = deciding_depth(report), {f["title"]: f["limit"] for f in report.findings}
    untested = answer["word"] == UNDECIDED and depth["flagged"] is None and depth["cause"] != "straddles"
    shown["verdict"] = {**mark(answer["word"]), "qualifier": "depth not tested" if untested else ""}
    return {
        "id": _identity(run),
        "name": _text(run.path.name),
        "rule": _rule(run.spec) + (" stem, blocks frozen" if run.spec.scope == "frozen" else ""),
        "filter_rule": _rule(run.spec),
        "setting": _where(spec),
        "seed": run.spec.seed,
        "method": report.method,
        **shown,
        "control": control and {"id": _identity(control), "acc": control.accuracy},
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
    return replace(run.report, **said, findings=tuple(findings), chain=tuple(chain), thresholds=asdict(_LIMITS))


def _replay(run: Record) -> dict[str, Any]:
    """The course of training from initialisation on, as logged, and the epoch each check fired."""
    steps = run.epochs
    return {
        "epoch": [epoch for epoch, _, _ in steps],
        "acc": [acc for _, acc, _ in steps],
        "h_norm": [last(m.h_norm) for _, _, m in steps],
        "g_norm": [last(m.g_norm) for _, _, m in steps],
        "growth": [m.growth for _, _, m in steps],
        "gamma": [m.gamma for _, _, m in steps],
        "fired": fired([(epoch, m) for epoch, _, m in steps], _LIMITS),
        "diverged": run.report.run.get("diverged"),
    }


# -- putting it into HTML ------------------------------------------------------------------------------------------


def _json(data: Any) -> str:
    """JSON that can stand inside a script element: nothing in it ends the element or opens a comment."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _ends(settings: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Lowest and highest of all gains over frozen blocks with their intervals, of zero and the margin."""
    gains = [(s["d3"]["value"], *(s["d3"]["interval"] or ())) for s in settings if s["d3"]["value"] is not None]
    ends = [0.0, _LIMITS.frozen_acc_margin_pp, *(x for gain in gains for x in gain)]
    return min(ends), max(ends)


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
