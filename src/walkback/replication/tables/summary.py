"""The argument in two tables: the two modes told apart, and what each validation shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from walkback.audit.records import Record, Records
from walkback.audit.settings import RULES, VALUES, Setting, judged, last, select, shorter
from walkback.measures.measurements import Measurements
from walkback.replication.published import figures
from walkback.replication.tables.audits import networks
from walkback.replication.tables.build import AGREES, FLOOR, OURS, Against, Draft, against, count, evidence_table
from walkback.replication.tables.courses import early_runs, first_epochs
from walkback.replication.tables.decisions import STRATEGIES, pair, strategies
from walkback.replication.tables.interventions import (
    RESCUE,
    SETTINGS,
    Condition,
    both_metrics,
    conditions,
    fresh,
    paired,
    penalised,
)
from walkback.report.table import NONE, number, stat
from walkback.verdict.checks import reference_validity
from walkback.verdict.editions import WALKED_BACK

NULL = 0.05
WITHOUT = "mode 2 present without mode 1"


def null_bands(runs: Sequence[Record], seeds: Iterable[int]) -> dict[int, float]:
    """Return what a seed's deep cosine must exceed to be no chance: 2 std of its network with fresh feedback.

    Where that was not measured, the mean of the other seeds; where it was on none, 0.05.
    """
    known = {run.spec.seed: 2 * null["std"] for run in runs if (null := fresh(run).null)}
    rest = sum(known.values()) / len(known) if known else NULL
    return {seed: known.get(seed, rest) for seed in seeds}


@evidence_table(
    230,
    "Two modes: is the reference measurable, and is credit aligned? ResMLP d=256 L=4, CIFAR-10",
    "condition | figures | n | deep cos | published deep cos | n of ρ_pert | ρ_pert | published ρ_pert | ‖g_L‖ | "
    "published ‖g_L‖ | reading | published reading | agrees?",
    "reading: Mode 1 where ‖g_L‖ of a seed is under the floor of D2; Mode 2 where the deep cosine is within 2 "
    "standard deviations of the same network with fresh feedback (0.05 where that was not measured); where "
    "seeds differ, on how many each is found, which agrees with neither; "
    "aligned credit is more than that, not necessarily much; published of the penalty: both modes partly eased",
    "fresh feedback is specific where the trained feedback's deep cosine is outside that band and the fresh "
    "one inside, on every seed",
    AGREES,
)
def two_modes(t: Draft) -> None:
    """002's Table 2: the same two questions under four conditions."""

    def row(c: Condition, reading: str | None) -> None:
        g = stat(last(m.g_norm) for m in c.at.values())
        norms, readings = (figures("two-modes", "dfa", what=f"{what}.{c.key}") for what in ("g_norm", "flag"))
        beside = (against("‖g_L‖", g, "norm", norms), Against("reading", reading or NONE, reading, readings))
        t.row(c.name, OURS[flag], *both_metrics(c), *beside)

    for flag in t.variants(SETTINGS):
        for c, setting in zip(conditions(t, flag)[2:], (Setting("dfa", epochs=1), Setting("dfa"), penalised("dfa"))):
            runs = select(t.records, replace(setting, augment=flag))
            row(c, together(readings_by_seed(c.at, null_bands(runs, c.at))))
        rescued = [fresh(run) for run in select(t.records, penalised("dfa", augment=flag))]
        drawn = stat(f.null["mean"] if f.null else None for f in rescued)
        specific = [
            abs(f.trained) > 2 * f.null["std"] >= abs(f.null["mean"])
            for f in rescued
            if f.null and f.trained is not None
        ]
        reading = "training-specific adaptation" if all(specific) else "not specific"
        row(Condition("DFA, λ = 0.01, fresh feedback", "fresh", drawn, None, {}), reading if specific else None)


def readings_by_seed(at: dict[int, Measurements], bands: dict[int, float]) -> list[str]:
    """Return the reading of each seed whose deep cosine and reference are known."""
    readings = []
    for seed, m in at.items():
        if m.deep_cosine is None:
            continue
        chance, sunk = abs(m.deep_cosine) <= bands[seed], reference_validity("D2", m, FLOOR).flagged
        if sunk is None:
            continue
        if sunk:
            readings.append("mode 1 obscures mode 2" if chance else "mode 1, cosine above chance")
        else:
            readings.append(WITHOUT if chance else "valid reference, aligned credit")
    return readings


def together(readings: Sequence[str]) -> str | None:
    """Return one reading, or on how many seeds each; None where there is none."""
    counts = Counter(readings).most_common()
    if len(counts) < 2:
        return counts[0][0] if counts else None
    return "; ".join(f"{reading} ({count}/{len(readings)})" for reading, count in counts)


# -- the list of validations -----------------------------------------------------------------------------------


class Validation(NamedTuple):
    """What our runs show of a validation; `holds` is None where they can't say."""

    text: str
    holds: bool | None
    n: int


def _five_method(records: Records, flag: bool) -> Validation:
    audits = [judged(records, Setting(rule, augment=flag)) for rule in RULES]
    audits = [j for j in audits if j.runs]
    pairs = [p[1] for p in map(pair, audits) if p is not None]
    known = [flag for flag in pairs if flag is not None]
    text = f"accuracy and Γ walk back {sum(known)} of {len(known)} rules"
    text += f" ({len(pairs) - len(known)} without a Γ)" if len(known) < len(pairs) else ""
    back = {
        edition: [RULES[j.setting.rule] for j in audits if j.word(edition) == WALKED_BACK]
        for edition in ("three-check", "four-diagnostic")
    }
    text += "".join(f", {e} {len(names)}" + f" ({', '.join(names)})" * bool(names) for e, names in back.items())
    holds = (not any(known) and bool(back["four-diagnostic"])) if known else None
    return Validation(text, holds, sum(len(j.runs) for j in audits))


def _decision(records: Records, flag: bool) -> Validation:
    judgements = [judged(records, Setting(rule, augment=flag)) for rule in RULES]
    failing = [s for s in map(strategies, judgements) if s and s["S3"] == WALKED_BACK]
    by = {name: sum(s[name] == WALKED_BACK for s in failing) for name in STRATEGIES}
    text = f"of {len(failing)} failures S0 catches {by['S0']}, S1 {by['S1']}, S2 {by['S2']}, S3 {by['S3']}"
    return Validation(text, by["S2"] < by["S3"] if failing else None, sum(len(j.runs) for j in judgements))


def _temporal(records: Records, flag: bool) -> Validation:
    dfa = [(first_epochs(r)["either"], r.spec.epochs) for r in select(records, Setting("dfa", augment=flag))]
    bp = [first_epochs(r)["either"] for r in select(records, Setting("bp", augment=flag))]
    fired = [e for e, _ in dfa if e is not None]
    text = f"(a) or (b) fires on {len(fired)} of {len(dfa)} DFA runs"
    text += f", last at epoch {max(fired)}" if fired else ""
    text += f", and on {sum(e is not None for e in bp)} of {len(bp)} BP runs"
    early = all(e is not None and e <= epochs / 2 for e, epochs in dfa)
    return Validation(text, (early and not any(e is not None for e in bp)) if dfa and bp else None, len(dfa) + len(bp))


def _early(records: Records, flag: bool) -> Validation:
    at = {run.spec.seed: run.epochs[1][2] for run in early_runs(records, flag, 1)}
    cosine = stat(m.deep_cosine for m in at.values())
    if cosine is None:
        return Validation(NONE, None, 0)
    bands = null_bands(select(records, Setting("dfa", epochs=1, augment=flag)), at)
    readings = readings_by_seed(at, bands)
    valid = sum(reference_validity("D2", m, FLOOR).flagged is False for m in at.values())
    chance = sum(m.deep_cosine is not None and abs(m.deep_cosine) <= bands[seed] for seed, m in at.items())
    text = (
        f"deep cosine {cosine.mean:+z.3f} at epoch 1, within chance (±{sum(bands.values()) / len(bands):.3f}) on "
        f"{chance}/{cosine.n} seeds, reference valid on {valid}/{len(at)}"
    )
    return Validation(text, set(readings) == {WITHOUT}, len(at))


def _penalty(records: Records, flag: bool) -> Validation:
    plain, rescued = (judged(records, penalised("dfa", λ, flag)) for λ in (0.0, RESCUE))
    n, cosine = len(plain.runs) + len(rescued.runs), rescued.stat("deep_cosine")
    norms = [{run.spec.seed: VALUES["g_norm"](run) for run in j.runs} for j in (plain, rescued)]
    pairs = [(g, norms[1].get(seed)) for seed, g in norms[0].items()]
    pairs = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not pairs or cosine is None:
        return Validation(NONE, None, n)
    before, after = (sum(side) / len(pairs) for side in zip(*pairs))
    lift = f"{number(after / before, 'norm')}-fold" if before else f"from zero to {number(after, 'norm')}"
    text = f"λ = 0.01 lifts DFA's ‖g_L‖ {lift}, deep cosine to {cosine.mean:+z.3f}"
    if all(flag is False for flag in plain.flagged("reference")):
        return Validation(f"{text}; but the reference is valid without it: no Mode 1 to ease", None, n)
    valid = all(flag is False for flag in rescued.flagged("reference"))
    return Validation(text, valid and after > 10 * before and cosine.mean < 0.5, n)


def _controls(records: Records, flag: bool) -> Validation:
    rescued = select(records, penalised("dfa", augment=flag))
    apart = [sigmas for run in rescued if (sigmas := fresh(run).apart) is not None]
    bp = [select(records, penalised("bp", λ, flag)) for λ in (0.0, RESCUE)]
    cost = paired(*bp)
    text = f"trained feedback {min(apart):+z.1f}σ or more from fresh" if apart else "no run with fresh feedback"
    if cost is not None:
        text += f"; the penalty changes BP by {cost.mean:+z.1f} pp"
    return Validation(text, min(apart) >= 3 if apart else None, len(rescued) + len(bp[0]) + len(bp[1]))


def _on_networks(records: Records, flag: bool) -> dict[Setting, str]:
    """Return DFA on every network -> whether it has a terminal norm; vectors are not augmented."""
    return {
        replace(base, rule="dfa", augment=flag and not base.data.startswith("teacher")): norm
        for _, base, norm, _ in networks(records)
    }


def _networks(records: Records, flag: bool) -> Validation:
    growth, reference, norms, total, n = 0, 0, True, 0, 0
    for setting, norm in _on_networks(records, flag).items():
        j = judged(records, setting)
        if not shorter(setting, j.runs) and any(flag is not None for flag in j.flagged("reference")):
            total, n = total + 1, n + len(j.runs)
            growth += any(j.flagged("growth"))
            reference += any(j.flagged("reference"))
            norms &= norm == "yes" or not any(j.flagged("reference"))
    text = f"under DFA growth flags on {growth} of {total} networks, the reference on {reference}"
    text += ", only with a terminal norm" if norms and reference else ""
    tie = growth == reference
    return Validation(text, (growth > reference and norms) if total > 1 and not (tie and norms) else None, n)


# Name in published.csv, name, question, what is published, the criterion, ours.
VALIDATIONS: tuple[tuple[str, str, str, str, str, Callable[[Records, bool], Validation]], ...] = (
    (
        "rules",
        "Rules audited",
        "Do accuracy and Γ credit too much?",
        "the pair walks back none, the protocol three of five",
        "the pair walks back none and the four diagnostics at least one",
        _five_method,
    ),
    (
        "decision",
        "Decision utility",
        "Which checks are needed?",
        "only the full stack tells failures from controls",
        "S3 catches a failure that S2 misses",
        _decision,
    ),
    (
        "temporal",
        "Temporal replay",
        "Do the checks fire early?",
        "well before training ends",
        "on every DFA run within the first half, on no BP run",
        _temporal,
    ),
    (
        "early",
        "Early epochs of DFA",
        "Is there Mode 2 without Mode 1?",
        "credit is poor while the reference is measurable",
        "the reading of two-modes at epoch 1, on every seed",
        _early,
    ),
    (
        "penalty",
        "Penalty",
        "Can Mode 1 be eased without a full rescue?",
        "the reference recovers more than credit does",
        "‖g_L‖ more than tenfold and valid, deep cosine under 0.5",
        _penalty,
    ),
    (
        "controls",
        "Fresh feedback, BP with penalty",
        "Is the rescue specific to training?",
        "partly general, partly specific to the rule",
        "trained feedback at least 3σ from fresh on every seed",
        _controls,
    ),
    (
        "networks",
        "Networks",
        "Which checks carry over?",
        "growth more widely than the collapse of the reference",
        "growth flags on more networks than the reference, which flags only under a terminal norm; a tie says nothing",
        _networks,
    ),
)


@evidence_table(
    240,
    "The seven validations, and what our runs show",
    "validation | question | figures | n | ours | holds when | holds? | published [002] | agrees?",
    "n: runs that went in; agrees?: every validation holds in the published text: ours agrees where it holds",
    "Networks: those with runs of the papers' length, since a shorter one may flag later",
    "the numbers behind each row are in the tables primary, ablation, temporal, early-epochs, lambda-sweep, "
    "fresh-feedback, capacity and cross-arch",
)
def validations(t: Draft) -> None:
    """002's Table 4: the seven validations, each with what our runs show and whether it holds."""
    for flag in t.variants([*map(Setting, RULES), *SETTINGS]):
        for rule in RULES:
            t.lack(Setting(rule, augment=flag))
        interventions = [penalised(rule, λ, flag) for rule in ("bp", "dfa") for λ in (0.0, RESCUE)]
        for setting in (*interventions, Setting("dfa", epochs=1, augment=flag), *_on_networks(t.records, flag)):
            t.lack(setting, controls=False)
        for key, name, question, said, criterion, show in VALIDATIONS:
            shown = show(t.records, flag)
            word = {True: "yes", False: "no", None: NONE}[shown.holds]
            t.row(name, question, OURS[flag], count(shown.n), shown.text, criterion, word, said, word)
            holds = {True: "holds", False: "does not hold", None: None}[shown.holds]
            printed = figures("validations", "", what=f"flag.{key}")
            t.compared.append(Against("", holds or NONE, holds, printed, shown.n))
