"""The reporting template, filled from a store: the paragraphs, the table and the list a paper should contain."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from walkback.audit.records import Record, Records, net_options
from walkback.audit.settings import RULES, Judged, alike, judged_runs
from walkback.audit.wording import how_long, penalty_words, worded
from walkback.errors import FormatError, InputError
from walkback.files import write_whole
from walkback.replication.tables.build import accuracies, count, depth_cell, depth_word, interval_text, verdict_cell
from walkback.report.table import NONE, Cell, Table, markdown, number, spread, stat, table
from walkback.training.spec import NO_LOCAL_LOSS, RunSpec, control_spec
from walkback.verdict.statistics import mean_worth

MISSING = "*missing*"


def template() -> str:
    """Return the empty template, as in docs/reporting-template.md."""
    return (resources.files("walkback.report") / "assets" / "reporting-template.md").read_text(encoding="utf-8")


def fill_template(records: Records, path: str | Path) -> Path:
    """Write the template filled with every setting of a store; what a run did not record is named as missing.

    Args:
        records: see `walkback.audit.records.read_records`.
        path: the Markdown file to be written.
    """
    if not len(records):
        raise InputError(
            f"Expected finished runs under {records.folder} to fill the template from, but there are none. "
            "`walkback train` makes them; without any, fill docs/reporting-template.md by hand."
        )
    try:
        return write_whole(path, filled(records))
    except OSError as error:
        raise FormatError(f"Expected to write {path}, but: {error}.") from None


def filled(records: Records) -> str:
    """Return the template as text, its part about a setting once for each."""
    head, section, end = re.split(r"<!-- (?:setting|end) -->\n", template())
    parts = []
    for runs in settings(records):
        fields = {name: _escaped(field(runs)) for name, field in FIELDS.items()}
        fields |= {"findings": _escaped(findings(records, runs)), "table": _body(results(records, runs))}
        parts.append(re.sub(r"⟨([^⟩]+)⟩", lambda found, f=fields: f[found[1]], section))
    return "\n".join([_head(head, records), *parts]) + end


def _escaped(text: str) -> str:
    """Escape text for Markdown, since names of rules and options are whatever a user chose."""
    return markdown(text).replace(markdown(MISSING), MISSING)


def _head(text: str, records: Records) -> str:
    title = text.partition("\n\n")[0]
    count = f"From {len(records)} finished runs."
    return f"{title}\n\n{count} A field a run did not record is marked {MISSING}.\n"


# -- which runs belong together -------------------------------------------------------------------------------------


def settings(records: Records) -> list[tuple[Record, ...]]:
    """Group runs by network, data set, recipe and length: a section of the template each, controls with them."""
    groups: dict[RunSpec, list[Record]] = {}
    for run in records:
        same = run.spec.model_dump(exclude={"rule", "rule_options", "scope", "seed", "credit_length", *NO_LOCAL_LOSS})
        groups.setdefault(RunSpec(**same, seed=0), []).append(run)
    longest_first = sorted(groups.items(), key=lambda group: (-group[0].epochs, _title(group[0])))
    return [tuple(runs) for _, runs in longest_first]


def _rows(records: Records, runs: Sequence[Record]) -> list[tuple[str, tuple[Record, ...]]]:
    """Name and runs of every row of the results: trained ones first, then controls."""
    order, here = list(RULES), {run.path for run in runs}
    found = [(spec, seeds) for spec, seeds in alike(records).items() if seeds[0].path in here]

    def place(spec: RunSpec) -> tuple[Any, ...]:
        rule = order.index(spec.rule) if spec.rule in order else len(order)
        return spec.scope != "all", rule, spec.penalty, _name(spec)

    return [(_name(spec), seeds) for spec, seeds in sorted(found, key=lambda row: place(row[0]))]


def _name(spec: RunSpec) -> str:
    rule = RULES.get(spec.rule, spec.rule)
    words = [rule if spec.scope == "all" else f"frozen blocks, {rule} stem"]
    return ", ".join([*words, *worded(spec.rule_options), *penalty_words(spec), *spec.conventions])


# -- results --------------------------------------------------------------------------------------------------------


def results(records: Records, runs: Sequence[Record]) -> Table:
    """Return what the paper's table should have, one row per rule and control."""
    rows = []
    for name, seeds in _rows(records, runs):
        j = judged_runs(records, seeds)
        controls = [c for run in seeds if (c := records.control(run)) is not None] if _trained(seeds) else []
        rows.append(
            [
                *(name, count(len(seeds)), spread(j.stat("acc"), "acc"), spread(accuracies(controls), "acc")),
                *(depth_cell(j), depth_cell(j, "bp"), _worth(seeds) if _trained(seeds) else Cell(NONE)),
                *(spread(j.stat("gamma"), "cos"), _by_site(seeds), spread(j.stat("h_norm"), "norm")),
                *(_with_interval(j, what, check) for what, check in (("g_norm", "reference"), ("growth", "growth"))),
                spread(j.stat("stability"), "cos"),
                *(verdict_cell(j, edition) for edition in ("three-check", "four-diagnostic")),
            ]
        )
    heads = (
        "rule | n | accuracy | frozen blocks | gain, pp [95 %] | gain over BP-stem control | worth of blocks, pp "
        "[95 %] | Γ | cosine by site 0…L | ‖h_L‖ | ‖g_L‖ [95 %] | ρ [95 %] | stability | three-check | four-diagnostic"
    )
    return table("results", "", heads, rows)


def _worth(runs: Sequence[Record]) -> Cell:
    """Return what the trained blocks are worth, with its interval: over samples and draws of one run, or over seeds."""
    depths = [run.depth for run in runs if run.depth is not None]
    if not depths:
        return Cell(NONE)
    of = mean_worth(depths)
    assert of.interval is not None
    middle, (low, high) = of.value, of.interval
    some = "" if len(depths) == len(runs) else f" ({len(depths)} of {len(runs)} seeds)"
    return Cell(f"{middle:+z.1f} [{low:+z.1f}, {high:+z.1f}]{some}", {"value": middle, "interval": [low, high]})


def _with_interval(j: Judged, what: str, check: str) -> Cell:
    """Return a norm over the seeds with the interval of its check, where it has one."""
    cell, verdict = spread(j.stat(what), "norm"), j.pooled.get("three-check")
    interval = None if verdict is None else verdict[check].interval
    ends = "" if interval is None else f" [{', '.join(number(end, 'norm') for end in interval)}]"
    return Cell(cell.text + ends, cell.raw)


def _trained(runs: Sequence[Record]) -> bool:
    return runs[0].spec.scope == "all"


def _by_site(runs: Sequence[Record]) -> Cell:
    """Return the mean over seeds at every site: Γ alone hides which site carries it."""
    lists = [run.measurements.cosine for run in runs]
    if not all(lists) or len({len(values) for values in lists}) != 1:
        return Cell(NONE)
    means = [stat(at) for at in zip(*lists)]
    return Cell(", ".join(NONE if m is None else number(m.mean, "cos") for m in means), means)


def _body(results: Table) -> str:
    """Return the rows of a Table as Markdown, without its title."""
    return "\n".join(line for line in results.to_markdown().splitlines() if line.startswith("|"))


def findings(records: Records, runs: Sequence[Record]) -> str:
    """Return one sentence per rule: the claim, then what the checks leave of it."""
    sentences = []
    for name, found in _rows(records, runs):
        if _trained(found):
            sentences.append(_finding(name, judged_runs(records, found)))
    return " ".join(sentences) or f"{MISSING}: there are only runs with frozen blocks in this setting."


def _finding(name: str, j: Judged) -> str:
    valid = _yes([v.measurement_valid for v in j.verdicts["three-check"]])
    return (
        f"{name} reaches {_value_text(j.stat('acc'), 'acc')} with Γ = {_value_text(j.stat('gamma'), 'cos')} "
        f"(n = {len(j.runs)}); "
        f"clamped cosine readable: {valid}; depth: {_depth(j)}; trained blocks are worth "
        f"{_worth_words(j)}; three-check: {verdict_cell(j, 'three-check').text}."
    )


def _worth_words(j: Judged) -> str:
    cell = _worth(j.runs)
    if cell.raw is None:
        return f"{MISSING}, walkback diagnose RUN --depth --save measures it"
    return f"{cell.text} pp over random draws of them"


def _depth(j: Judged) -> str:
    if j.depth is None or j.depth.value is None:
        return f"{MISSING}, no matched control was trained"
    some = "" if j.paired[0] == len(j.runs) else f" on {j.paired[0]} of {len(j.runs)} seeds"
    return f"{j.depth.value:+z.1f} pp{interval_text(j.depth)} over frozen blocks{some}, {depth_word(j.depth)}"


def _value_text(value: Any, kind: str) -> str:
    return MISSING if value is None else spread(value, kind).text


def _yes(answers: Sequence[bool | None]) -> str:
    words = [{True: "yes", False: "no", None: "not tested"}[answer] for answer in answers]
    return words[0] if len(set(words)) == 1 else ", ".join(f"{words.count(w)} × {w}" for w in dict.fromkeys(words))


# -- fields ---------------------------------------------------------------------------------------------------------


def _shared_value(runs: Sequence[Record], value: Callable[[Record], str | None], what: str) -> str:
    """Return what all runs have in common; where they differ, every value with its number; what is missing, by name."""
    values = [value(run) for run in runs]
    known = [text for text in values if text is not None]
    absent = len(values) - len(known)
    if not known:
        return f"{MISSING}: {what}"
    counts = [(text, known.count(text)) for text in dict.fromkeys(known)]
    said = counts[0][0] if len(counts) == 1 else "; ".join(f"{text} ({n} run{'s' * (n > 1)})" for text, n in counts)
    return said + (f"; {MISSING} in {absent} of {len(values)} runs: {what}" if absent else "")


def _condition(name: str, say: Callable[[Any], str] = str) -> Callable[[Sequence[Record]], str]:
    """Return a field of the conditions a report logs."""

    def field(runs: Sequence[Record]) -> str:
        def value(run: Record) -> str | None:
            at = run.report.conditions.get(name)
            return None if at is None else say(at)

        return _shared_value(runs, value, f"conditions.{name} of report.json")

    return field


def _architecture(run: Record) -> str:
    options = {**net_options(run.spec.net), **run.spec.net_options}
    return f"{run.spec.net} ({', '.join(worded(options))})" if options else run.spec.net


def _rules(runs: Sequence[Record]) -> str:
    """Return every rule with what decides it: its options, and the scale of its feedback where it has one."""
    said = {}
    for run in runs:
        options = {**run.spec.rule_options, **(run.report.run.get("rule") or {})}
        name = RULES.get(run.spec.rule, run.spec.rule)
        said[f"{name} ({', '.join(worded(options))})" if options else name] = None
    return "; ".join(said)


def _minibatches(run: Record) -> str | None:
    c = run.report.conditions
    if not {"batches", "batch_size", "samples"} <= set(c):
        return None
    return f"{c['samples']} test samples in {c['batches']} disjoint batches of {c['batch_size']}"


def _precision(run: Record) -> str | None:
    c = run.report.conditions
    if not {"dtype", "device"} <= set(c):
        return None
    statistics = f", statistics in {c['statistics']}" if "statistics" in c else ""
    return f"{c['dtype']} on {c['device']}{statistics}"


def _checkpoint(run: Record) -> str:
    if run.report.run.get("diverged"):
        return f"the epoch in which it diverged, its last ({run.report.run['epochs']} of {run.spec.epochs})"
    return f"the last epoch ({run.spec.epochs}) on the test split, never the best"


def _by_rule(say: Callable[[RunSpec], str]) -> Callable[[Sequence[Record]], str]:
    """Return a field of the rules' conventions: what it is, and of which rules where they differ."""

    def field(runs: Sequence[Record]) -> str:
        said: dict[str, dict[str, None]] = {}
        for spec in [run.spec for run in runs if run.spec.scope == "all"] or [run.spec for run in runs]:
            said.setdefault(say(spec), {})[RULES.get(spec.rule, spec.rule)] = None
        if len(said) == 1:
            return next(iter(said))
        return "; ".join(f"{text} for {', '.join(of)}" for text, of in said.items())

    return field


def _site(spec: RunSpec) -> str:
    which = {"writer": "writes", "reader": "reads"}[spec.credit_site]
    return f"the module that {which} the site ({spec.credit_site})"


_LENGTHS = {
    "raw": "as the rule computes it",
    "unit": "of length 1 in every sample",
    "rms": "of length √d in every sample",
}


def _thresholds(run: Record) -> str:
    said = (
        ("h_norm_explosion_ratio", "D1, (a): growth above {}"),
        ("g_norm_floor", "D2, (b): ‖g_L‖ below {}"),
        ("stability_drift_ceiling", "(c): stability above {}"),
        ("frozen_acc_margin_pp", "D3, (d): gain under {} pp"),
    )
    t = run.report.thresholds
    return "; ".join(text.format(number(t[name], "norm") if name in t else MISSING) for name, text in said)


def _machine(run: Record) -> str:
    c, m = run.report.conditions, run.machine
    names = ("torch", "python", "machine", "threads", "device")
    at = {name: m.get(name, c.get(name)) for name in names}
    said = {"machine": "{}", "threads": "threads: {}", "device": "on {}"}
    return ", ".join(said.get(k, k + " {}").format(MISSING if v is None else v) for k, v in at.items())


def _all(name: Callable[[Record], str]) -> Callable[[Sequence[Record]], str]:
    return lambda runs: _shared_value(runs, name, "")


FIELDS: dict[str, Callable[[Sequence[Record]], str]] = {
    "setting": lambda runs: _title(runs[0].spec),
    "architecture": _all(_architecture),
    "anatomy": _condition("anatomy", lambda at: ", ".join(map(str, at))),
    "data": _all(lambda run: f"{run.spec.data} ({run.classes or MISSING} classes)"),
    "augmentation": _all(lambda run: "horizontal flips, crops after padding by 4" if run.spec.augment else "none"),
    "rules": _rules,
    "penalty": lambda runs: ", ".join(f"{p:g}" for p in sorted({run.spec.penalty for run in runs})),
    "optimiser": _all(
        lambda run: (
            f"{run.spec.optimiser.name}, learning rate {run.spec.optimiser.lr:g}, "
            f"weight decay {run.spec.optimiser.weight_decay:g}"
        )
    ),
    "schedule": _all(lambda run: f"{run.spec.optimiser.schedule} schedule, set once per epoch"),
    "batch size": _all(lambda run: str(run.spec.optimiser.batch_size)),
    "epochs": _all(lambda run: f"{run.spec.epochs} epochs"),
    "seeds": lambda runs: ", ".join(map(str, sorted({run.spec.seed for run in runs}))),
    "checkpoint rule": _all(_checkpoint),
    "mode": _condition("mode"),
    "precision": lambda runs: _shared_value(runs, _precision, "conditions.dtype and conditions.device of report.json"),
    "minibatches": lambda runs: _shared_value(runs, _minibatches, "conditions.batches and the like of report.json"),
    "minibatch identity": _condition("probe_hash", lambda at: f"hash {at} of the samples"),
    "layer index": _condition("layer_index"),
    "gradient norm": _condition("g_norm_batch_size", lambda at: f"‖g‖ is the per-sample norm ÷ {at}"),
    "credit site": _by_rule(_site),
    "credit length": _by_rule(lambda spec: _LENGTHS.get(spec.credit_length, spec.credit_length)),
    "control": lambda runs: _control(runs),
    "thresholds": _all(_thresholds),
    "machine": _all(_machine),
}


def _control(runs: Sequence[Record]) -> str:
    """Return which stems there are for which rules: by the same rule, as D3 compares, and by BP, usually stronger."""
    frozen = dict.fromkeys(run.spec for run in runs if run.spec.scope == "frozen")
    if not frozen:
        return f"{MISSING}: no run with frozen blocks in this setting"
    trained = [run.spec for run in runs if run.spec.scope == "all"]
    matched = [spec for spec in trained if control_spec(spec) in frozen]
    stronger = [spec for spec in trained if spec.rule != "bp" and control_spec(spec, "bp") in frozen]
    used = {*map(control_spec, matched), *(control_spec(spec, "bp") for spec in stronger)}
    stems = (
        ("stem trained by the same rule ({})", matched),
        ("stem trained by BP, usually the stronger control (for {})", stronger),
        ("stem trained by {} (for no run in this setting)", [spec for spec in frozen if spec not in used]),
    )
    said = "; ".join(text.format(_named(specs)) for text, specs in stems if specs)
    known = set(map(_called, matched))
    without = [spec for spec in trained if _called(spec) not in known]
    lacks = f"; {MISSING}: a stem trained by the same rule for {_named(without)}" if without else ""
    return f"the same network with blocks frozen at initialisation, {said}{lacks}"


def _named(specs: Sequence[RunSpec]) -> str:
    order = list(RULES)
    ranked = sorted(specs, key=lambda spec: order.index(spec.rule) if spec.rule in order else len(order))
    return ", ".join(dict.fromkeys(map(_called, ranked)))


def _called(spec: RunSpec) -> str:
    """Return a rule with its options."""
    return " ".join([RULES.get(spec.rule, spec.rule), *worded(spec.rule_options)])


def _title(spec: RunSpec) -> str:
    said = [spec.net, *(f"{k} {json.dumps(v)}" for k, v in spec.net_options.items()), f"on {spec.data}"]
    said += how_long(spec)
    return ", ".join(said)
