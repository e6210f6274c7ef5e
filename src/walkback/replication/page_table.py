"""The verdict table of a store's page: one row per rule and setting, as plain values, as CSV and for LaTeX."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from walkback.audit.records import Record, Records
from walkback.audit.settings import LABELS, Judged
from walkback.audit.wording import setting_words, worded
from walkback.replication.page_words import LIMITS, to_do
from walkback.replication.tables.build import among_many, depth_word, failed_words, flag_word, interval_text
from walkback.report.page_view import distance, mark
from walkback.report.table import NONE, Stat, Table, csv_text, number, spread, stat, table
from walkback.training.spec import RunSpec
from walkback.verdict.checks import Finding
from walkback.verdict.editions import PASSES, UNDECIDED, WALKED_BACK

CONTROL = "control"
ORDER = {WALKED_BACK: 0, UNDECIDED: 1, PASSES: 2, CONTROL: 3}


def rule_name(spec: RunSpec) -> str:
    """Return a rule's label with its options."""
    return one_line(" · ".join([LABELS.get(spec.rule, spec.rule), *worded(spec.rule_options)]))


def rank(rule: str) -> tuple[int, str]:
    """Return what sorts rules in the papers' order, then by name."""
    names = list(LABELS.values())
    first = rule.partition(" · ")[0]
    return names.index(first) if first in names else len(names), rule


def setting_name(spec: RunSpec) -> str:
    """Return everything but rule, scope and seed of a spec, in words."""
    return one_line(" · ".join(setting_words(spec)))


def one_line(text: str) -> str:
    """Return one line that UTF-8 can hold: folder names may be any bytes."""
    return " ".join(text.encode("utf-8", "backslashreplace").decode().split())


def identity(run: Record) -> str:
    """Return the id of a run on the page."""
    return f"run-{run.spec.digest}"


def links(runs: Iterable[Record]) -> list[dict[str, Any]]:
    """Return the id and seed of each run."""
    return [{"id": identity(run), "seed": run.spec.seed} for run in runs]


def setting_row(records: Records, spec: RunSpec, j: Judged) -> dict[str, Any]:
    """Return one row of the table: a rule in a setting, judged over its seeds."""
    three, four = j.verdicts["three-check"], j.verdicts["four-diagnostic"]
    word, n = j.word("three-check") or "", len(j.runs)
    failed = {edition: failed_words(j.failed(edition), n) for edition in j.verdicts}
    outcomes = [v["outcome"] for v in three if "outcome" in v.names]
    blind = "" if j.tested or outcomes or word != UNDECIDED else "depth not tested"
    controls = [c for run in j.runs if (c := records.control(run)) is not None]
    d1, d2, d3 = _check(j, "growth", "growth"), _check(j, "reference", "g_norm"), _depth(j.depth, j.paired[0], n)
    steps = (("D1", d1, ""), ("D2", d2, ""), ("D3", d3, _what_decides(j.depth)))
    return {
        "rule": rule_name(spec),
        "setting": setting_name(spec),
        "task": one_line(" · ".join(word for word in setting_words(spec) if word not in spec.conventions)),
        "conventions": spec.conventions,
        "runs": links(j.runs),
        "verdict": {**mark(word), "qualifier": blind, "order": ORDER[word]},
        "failed": failed["three-check"] or blind,
        "four": ": ".join(filter(None, (j.word("four-diagnostic"), failed["four-diagnostic"]))),
        "valid": _over([v.measurement_valid for v in three]),  # of three-check: the clamped cosine's
        "depth": _depth_answer(j),
        "outcome": _outcome(j, outcomes),
        "submodes": sorted({v.submode for v in four if v.submode}),
        "d1": d1,
        "d2": d2,
        "d3": d3,
        "todo": [f"{name}: {text}" for name, c, why in steps if (text := to_do(name, c["result"]["word"], why))],
        "d3_bp": _depth(j.depth_bp, j.paired[1], n),
        "acc": _stat(j.stat("acc"), "acc"),
        "gamma": _stat(j.stat("gamma"), "cos"),
        "frozen": _stat(stat(c.accuracy for c in controls), "acc"),
        "controls": links(controls),
    }


def _what_decides(finding: Finding | None) -> str:
    """Return how many more seeds or samples would decide a check, "" where that is not known."""
    more = (finding and finding.more) or {}
    words = " or ".join(f"{k:,} more {what if k > 1 else what[:-1]}" for what, k in more.items())
    return f"{words} would decide it" if words else (finding and finding.straddles and finding.reason) or ""


def _over(answers: Sequence[bool | None]) -> dict[str, str]:
    """Return one answer over all seeds: no where any says no."""
    no, known = answers.count(False), len(answers) - answers.count(None)
    if not known:
        return mark("not tested")
    return mark("yes" if not no else "no" if no == known else f"no ({no}/{known})")


def _depth_answer(j: Judged) -> dict[str, str]:
    """Return whether depth is used over all seeds: by D3, or where it was not tested by D3-outcome."""
    used, over = j.depth, j.pooled["three-check"]
    if not j.tested and "outcome" in over.names:
        used = over["outcome"]
    if used is None or used.flagged is None:
        return mark("undecided" if used is not None and used.straddles else "not tested")
    return mark("no" if used.flagged else "yes")


def _outcome(j: Judged, each: Sequence[Finding]) -> str:
    """Return D3-outcome of the seeds that have it; of several, first that of their mean, which decides."""
    said = [f"{number(f.value, 'pp')} pp {depth_word(f)}" for f in each if f.value is not None]
    over = j.pooled["three-check"]
    mean = over["outcome"] if "outcome" in over.names else None
    if len(said) < 2 or mean is None or mean.value is None:
        return ", ".join(said)
    first = f"{number(mean.value, 'pp')} pp{interval_text(mean)} {depth_word(mean)} over {len(said)} seeds"
    return f"{first}: {', '.join(said)}"


def _check(j: Judged, name: str, what: str) -> dict[str, Any]:
    """Return D1 or D2 over the seeds: the value, whether it flags, and how far from the limit."""
    findings = [v[name] for v in j.verdicts["three-check"]]
    first = asdict(findings[0])
    values = [f.value for f in findings]
    over = j.pooled["three-check"][name]  # what decides: seeds may agree and their mean still be open
    reasons = list(dict.fromkeys(f.reason for f in (over, *findings) if f.reason))
    word = "undecided" if over.straddles else flag_word([f.flagged for f in findings]) or "not tested"
    return {
        "result": mark(word),
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
        nothing = {"text": NONE, "value": None, "interval": None, "distance": "", "limit": LIMITS.frozen_acc_margin_pp}
        return {"result": mark("not tested"), **nothing, "reason": reason, "paired": paired}
    some = "" if paired == runs else f"{paired} of {runs} seeds have their control"
    why = finding.reason if among_many(finding) or depth_word(finding) == "not tested" else ""
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


def verdict_table(settings: Iterable[dict[str, Any]], many: str = "") -> Table:
    """Return the same table for LaTeX, with a note on what holds so many settings at once."""
    rows = [
        [
            *(s["rule"], s["setting"], str(len(s["runs"]))),
            *(s["acc"]["text"], s["gamma"]["text"], s["frozen"]["text"]),
            *(f"{s[k]['text']} {s[k]['result']['word']}" for k in ("d3", "d1", "d2")),
            s["verdict"]["word"] + (f": {s['failed']}" if s["failed"] else ""),
        ]
        for s in settings
    ]
    t = LIMITS
    return table(
        "verdicts",
        "Verdicts of the three-check protocol, mean ± std over seeds",
        "rule | setting | n | acc | Γ | frozen | D3 gain | D1 ρ | D2 ‖g_L‖ | verdict",
        rows,
        [
            f"D1 flags at growth > {t.h_norm_explosion_ratio:g}, D2 at ‖g_L‖ < {t.g_norm_floor:g} (per-sample norm ÷ "
            f"128), D3 at a gain < {t.frozen_acc_margin_pp:g} pp over the matched frozen control (95 % interval in "
            "brackets). A claim is walked back if (D1 and D2) or D3; (k/n) counts the seeds",
            *filter(None, [many]),
        ],
    )


# Of the width of a page in landscape, by column of the verdict table.
SHARES = (0.1, 0.14, 0.03, 0.115, 0.115, 0.115, 0.11, 0.085, 0.1, 0.09)


def csv_lines(settings: Iterable[dict[str, Any]]) -> list[str]:
    """Return the table as numbers: its head and one line per row."""
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
    for name, c in (("acc", s["acc"]), ("gamma", s["gamma"]), ("frozen_acc", s["frozen"])):
        row |= {f"{name}_{part}": c[part] for part in ("mean", "std", "n")}
    return row
