"""What a decision rests on: which reporting strategy catches what, and how far the thresholds can move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from walkback.audit.records import Records
from walkback.audit.settings import OWN, RULES, Judged, Setting, judged, shorter
from walkback.replication.agree import answer
from walkback.replication.published import Figure, figures
from walkback.replication.tables.audits import WIDE_SHALLOW
from walkback.replication.tables.build import AGREES, OURS, THREE, Against, Draft, count, evidence_table, of_length
from walkback.replication.tables.interventions import SWEEP, penalised
from walkback.report.table import NONE, Cell, number
from walkback.verdict.checks import DiagnosticThresholds
from walkback.verdict.editions import PASSES, UNDECIDED, WALKED_BACK

STRATEGIES = ("S0", "S1", "S2", "S3")
ABOVE_CHANCE = 0.02
STRATEGY = (
    "S0, accuracy: walked back where it is not 2 pp above chance; S1, with Γ: also where Γ is not positive; S2, with "
    "D1 and D2: also where both flag on a seed; S3, with D3: the three-check verdict"
)
UNTESTED = "undecided (D3 not tested)"
NO_GAMMA = "Γ not measured"


def pair(j: Judged) -> tuple[bool, bool | None] | None:
    """Return whether a claim is walked back by S0, by S1 (None: there is no Γ to do so); None without runs."""
    acc, gamma = j.stat("acc"), j.stat("gamma")
    if acc is None:
        return None
    classes = j.runs[0].classes
    s0 = bool(classes) and acc.mean <= 1 / classes + ABOVE_CHANCE
    return s0, s0 or (None if gamma is None else gamma.mean <= 0)


def strategies(j: Judged) -> dict[str, str] | None:
    """Return what each of S0…S3 says: passes, walked back, undecided, Γ not measured. None without runs."""
    standard = pair(j)
    if standard is None:
        return None
    s0, s1 = standard
    s2 = True if any(check in ("D1", "D2") for check in j.failed("three-check")) else s1
    verdicts = {"S0": s0, "S1": s1, "S2": s2}
    out = {name: {True: WALKED_BACK, False: PASSES, None: NO_GAMMA}[flag] for name, flag in verdicts.items()}
    word = j.word("three-check")
    out["S3"] = WALKED_BACK if s2 or word == WALKED_BACK else UNDECIDED if word == UNDECIDED else PASSES
    return out


def caught(verdicts: dict[str, str] | None) -> str | None:
    """Return the first strategy that walks a claim back; passes or undecided where none does."""
    if verdicts is None:
        return None
    return next((name for name in STRATEGIES if verdicts[name] == WALKED_BACK), verdicts["S3"])


@evidence_table(
    30,
    "Decision utility: which reporting strategy first catches a failure (three-check)",
    "network | rule | figures | n | S0 acc | S1 + Γ | S2 + D1 and D2 | S3 + D3 | first caught by | published | agrees?",
    STRATEGY,
    "CIFAR-10, 100 epochs",
    AGREES,
)
def ablation(t: Draft) -> None:
    """Decision utility, three-check: the first reporting strategy that catches a failure."""
    wide = [Setting(rule, net_options=WIDE_SHALLOW) for rule in THREE]
    for network, settings, where in (
        ("ResMLP d=256 L=4", [*map(Setting, RULES)], "ablation"),
        ("ResMLP d=512 L=2", wide, "ablation-wide-shallow"),
    ):
        flags = t.variants(settings)
        for setting, flag in ((setting, flag) for setting in settings for flag in flags):
            j = t.judged(replace(setting, augment=flag))
            ours = strategies(j)
            cells = [ours[name] for name in STRATEGIES] if ours else [NONE] * 4
            if ours and ours["S3"] == UNDECIDED and not j.tested:
                cells[3] = UNTESTED
            first, printed = caught(ours), figures(where, setting.rule, what="flag.caught")
            beside = Against("caught", first or NONE, None if first == UNDECIDED else first, printed, len(j.runs))
            t.row(network, RULES[setting.rule], OURS[flag], count(len(j.runs)), *cells, beside)


CASES = (
    ("DFA RM-d256-L4", Setting("dfa"), "ablation"),
    ("FA RM-d512-L2", Setting("fa", net_options=WIDE_SHALLOW), "ablation-wide-shallow"),
    ("DFA ViT-Mini", Setting("dfa", net="vit-mini", epochs=30, any_epochs=True), "ablation-vit-mini"),
    ("FA ViT-Mini", Setting("fa", net="vit-mini", epochs=30, any_epochs=True), "ablation-vit-mini"),
    ("BP RM-d256-L4", Setting("bp"), "ablation"),
)


@evidence_table(
    50,
    "Extended decision-utility ablation: what each strategy does with five cases",
    f"strategy | figures | {' | '.join(name for name, _, _ in CASES)} | agrees?",
    STRATEGY,
    "missed: passes under this strategy, walked back under the full protocol; undecided: so does D3, so whether "
    "there is anything to catch is open",
    "published: 004, Table 5, ResMLP of 100 epochs and ViT-Mini of 30: runs of fewer are not compared",
    AGREES,
)
def extended_ablation(t: Draft) -> None:
    """004's Table 5 in kind: strategies down, cases across."""
    printed = [figures(where, setting.rule, what="flag.caught")[0] for _, setting, where in CASES]
    t.kinds |= {f.kind for f in printed}
    found = {
        flag: [t.judged(replace(setting, augment=flag)) for _, setting, _ in CASES]
        for flag in t.variants(s for _, s, _ in CASES)
    }
    for strategy, label in zip(STRATEGIES, ("S0: acc", "S1: + Γ", "S2: + D1 and D2", "S3: + D3")):
        theirs = [_published_mark(figure, strategy) for figure in printed]
        for flag, cases in found.items():
            ours = [_mark(strategies(j), strategy, j.tested) for j in cases]
            if strategy == STRATEGIES[-1]:
                t.compared += [_first_caught(j, setting, f) for (_, setting, _), j, f in zip(CASES, cases, printed)]
            same = {
                name: None if a in (None, NO_GAMMA, UNDECIDED, UNTESTED) or shorter(setting, j.runs) else a == b
                for (name, setting, _), j, a, b in zip(CASES, cases, ours, theirs)
            }
            t.row(label, OURS[flag], *(a or NONE for a in ours), answer(same))
        t.row(label, "published", *theirs, NONE)
    for flag, cases in found.items():
        t.row("n", OURS[flag], *(count(len(j.runs)) for j in cases), NONE)
        lengths = [count(j.runs[0].spec.epochs) if j.runs else Cell(NONE) for j in cases]
        t.row("epochs", OURS[flag], *lengths, NONE)


def _first_caught(j: Judged, setting: Setting, figure: Figure) -> Against:
    first = caught(strategies(j))
    value = None if first == UNDECIDED else first
    return Against("caught", first or NONE, value, of_length([figure], setting, j.runs), len(j.runs))


def _mark(verdicts: dict[str, str] | None, strategy: str, tested: bool) -> str | None:
    if verdicts is None:
        return None
    if verdicts[strategy] == WALKED_BACK:
        return "caught"
    if verdicts[strategy] == NO_GAMMA:
        return NO_GAMMA
    if verdicts["S3"] == UNDECIDED and not tested:  # it may yet fail: what passes now may turn out to miss it
        return UNTESTED
    return {WALKED_BACK: "missed", UNDECIDED: UNDECIDED}.get(verdicts["S3"], verdicts[strategy])


def _published_mark(figure: Figure, strategy: str) -> str:
    if figure.value == "passes":
        return "passes"
    return "caught" if STRATEGIES.index(strategy) >= STRATEGIES.index(str(figure.value)) else "missed"


@evidence_table(
    40,
    "Decision utility: which diagnostic catches what on its own (four-diagnostic), ResMLP d=256 L=4, CIFAR-10",
    "rule | figures | n | S0 | S1 | +(a) | +(b) | +(c) | +(d) | full | agrees?",
    "S0 and S1 as in the other version; +(a), +(b), +(c), +(d): S1 and that diagnostic alone, where it flags on a "
    "seed; full: (a), (b) or (d), which is the four-diagnostic verdict",
    "WB: walked back; trust: not; ? undecided: D3 straddles its margin or has no control, or Γ was not measured",
    "published: 001",
    AGREES,
)
def ablation_four(t: Draft) -> None:
    """Decision utility, four-diagnostic: each diagnostic alone on top of accuracy and Γ."""
    names = ("S0", "S1", "a", "b", "c", "d", "full")
    for flag in t.variants(map(Setting, RULES)):
        marks: list[dict[str, bool | None]] = []
        for rule, label in RULES.items():
            j = t.judged(Setting(rule, augment=flag))
            ours = four(j)
            printed = {name: figures("ablation-four", rule, what=f"flag.{name}") for name in names}
            said = {name: _said(name, flag) for name, flag in ours.items()} if ours else {}
            known = {name: said[name] for name in said if ours and ours[name] is not None}
            beside = [(name, known.get(name), printed[name]) for name in names]
            found = t.agreeing(Against(name, word or NONE, word, of, len(j.runs)) for name, word, of in beside)
            cells = [Cell(said[name], ours[name]) if ours else Cell("no runs") for name in names]
            t.row(label, OURS[flag], count(len(j.runs)), *cells, answer(found))
            if any(printed.values()):
                t.row(label, "published", NONE, *(str(printed[name][0].value) for name in names), NONE)
            marks += [ours] if ours else []
        t.row("walked back", OURS[flag], NONE, *(_total([m[name] for m in marks]) for name in names), NONE)
    theirs = [[f.value for f in figures("ablation-four", what=f"flag.{name}")] for name in names]
    t.row("walked back", "published", NONE, *(f"{values.count('WB')}/{len(values)}" for values in theirs), NONE)


def _said(name: str, walked_back: bool | None) -> str:
    return {True: "WB", False: "trust" if name == "full" else NONE, None: "?"}[walked_back]


def four(j: Judged) -> dict[str, bool | None] | None:
    """Return whether S0, S1, S1 with each of the four diagnostics, and all of them walk back. None without runs."""
    standard = pair(j)
    if standard is None:
        return None
    verdicts = j.verdicts["four-diagnostic"]
    s0, s1 = standard
    alone: dict[str, bool | None] = {}
    for name in ("a", "b", "c", "d"):
        flags = [v[name].flagged for v in verdicts]
        alone[name] = True if s1 or any(flags) else None if s1 is None or None in flags else False
    word = j.word("four-diagnostic")
    full = True if s1 or word == WALKED_BACK else None if word == UNDECIDED else False
    return {"S0": s0, "S1": s1, **alone, "full": full}


def _total(flags: Sequence[bool | None]) -> Cell:
    back, undecided = sum(flag is True for flag in flags), sum(flag is None for flag in flags)
    more = f", {undecided} undecided" if undecided else ""
    return Cell(f"{back}/{len(flags) - undecided}{more}", {"walked back": back, "undecided": undecided})


# -- thresholds ------------------------------------------------------------------------------------------------


class Threshold(NamedTuple):
    """A limit and the quantity it bounds: `larger` says that larger values are worse."""

    check: str
    edition: str
    field: str
    key: str
    larger: bool
    kind: str


THRESHOLDS = (
    Threshold("(a)", "four-diagnostic", "h_norm_explosion_ratio", "growth", True, "norm"),
    Threshold("(b)", "four-diagnostic", "g_norm_floor", "g_norm", False, "norm"),
    Threshold("(c)", "four-diagnostic", "stability_drift_ceiling", "stability", True, "cos"),
    Threshold("(d)", "four-diagnostic", "frozen_acc_margin_pp", "margin", False, "pp"),
    Threshold("D1", "three-check", "h_norm_explosion_ratio", "growth", True, "norm"),
    Threshold("D2", "three-check", "g_norm_floor", "g_norm", False, "norm"),
    Threshold("D3", "three-check", "frozen_acc_margin_pp", "margin", False, "pp"),
)
FACTORS = (0.1, 0.5, 0.67, 1.5, 2.0, 10.0)


@evidence_table(
    70,
    "Threshold sensitivity: how far a threshold moves before a verdict changes",
    "runs | figures | check | n | threshold | worst healthy | published healthy | healthiest failure | "
    "published failure | gap | published gap | verdicts hold from | to | "
    f"{' | '.join(f'changed at ×{f:g}' for f in FACTORS)} | under ±50 % | published ±50 % | agrees?",
    "primary: six rules, ResMLP d=256 L=4, CIFAR-10, 100 epochs; penalised: the runs of the penalty sweep",
    "healthy and failure: runs (for the margin: rules over their seeds) that the edition trusts and walks "
    "back, by whatever check; undecided ones are neither; for (c), which decides no verdict, those it does "
    "not flag and flags",
    "gap: the ratio of the healthiest failure to the worst healthy one, for the margin the difference in pp, "
    "for stability the difference; under 1 (under 0) they overlap: this check alone can't tell them apart",
    "verdicts hold from … to: moving this threshold alone, every verdict of the edition stays as it is (for "
    "(c): every sub-mode; for the margin: D3 stays tested, which it is not where BP itself gains less); "
    "changed: how many verdicts do not",
    "the published gap of growth (11 to 694) does not square with the published means of 96 and 237",
    AGREES,
)
def sensitivity(t: Draft) -> None:
    """How far each threshold can be moved before a verdict changes, and how far apart failures and the rest are."""
    swept = [penalised(rule, λ) for rule, strengths in SWEEP.items() for λ in strengths if λ]
    for name, settings, thresholds in (
        ("primary", [*map(Setting, RULES)], THRESHOLDS),
        ("penalised", swept, [limit for limit in THRESHOLDS if limit.key == "margin"]),
    ):
        for flag in t.variants(settings):
            at = [replace(setting, augment=flag) for setting in settings]
            for setting in at:
                t.lack(setting)
            for threshold in thresholds:
                cells, in_words = _sweep(t.records, at, threshold)
                t.row(name, OURS[flag], *cells)
                t.compared += in_words


def _sweep(
    records: Records, settings: Sequence[Setting], t: Threshold
) -> tuple[list[Cell | str | Against], list[Against]]:
    default = DiagnosticThresholds()
    limit = getattr(default, t.field)
    points = threshold_points(records, settings, t)
    n = len(points)

    def outcome(value: float) -> tuple:
        limits = replace(default, **{t.field: value})
        found = [judged(records, s, limits) for s in settings]
        if t.key == "stability":
            return tuple(v.submode for j in found for v in j.verdicts[t.edition])
        if t.key == "margin":
            return tuple((j.word(t.edition), j.tested) for j in found if j.runs)
        return tuple(v.verdict for j in found for v in j.verdicts[t.edition])

    now = outcome(limit)
    ends = hold(outcome, limit, _breaks(records, settings, t, points), t.kind == "norm")
    changed = [sum(a != b for a, b in zip(outcome(limit * f), now)) for f in FACTORS]
    failing = {p: p.flagged if t.key == "stability" else p.failed for p in points}
    healthy, failed = ([p for p in points if failing[p] is fails] for fails in (False, True))
    worst = (max if t.larger else min)(healthy, key=_value, default=None)
    best = (min if t.larger else max)(failed, key=_value, default=None)
    gap = None
    if worst and best:
        more, less = (best.value, worst.value) if t.larger else (worst.value, best.value)
        gap = more - less if t.kind != "norm" else more / less if less > 0 else None
    low, high = ends
    steady = {
        f"flag.{t.key}": not changed[1] and not changed[3],
        f"flag.{t.key}_twofold": not changed[1] and not changed[4],
        f"flag.{t.key}_tenfold": not low or high is None or high >= 10 * low,
    }
    words = {what: ("holds" if holds else "changes") if points else None for what, holds in steady.items()}
    # Published for the four diagnostics, for (d) of the penalised runs.
    compared = t.edition == "four-diagnostic" and (t.key == "margin") == bool(settings[0].penalty)
    parts = (f"{t.key}.healthy", f"{t.key}.failing", f"gap.{t.key}", *words)
    printed = [figures("sensitivity", "", what=what) if compared else () for what in parts]
    unlimited = "no end" if points else NONE
    moved = [Against("±50 %", word or NONE, word, of) for word, of in zip(words.values(), printed[3:])]
    cells: list[Cell | str | Against] = [
        *(t.check, count(n), Cell(number(limit, t.kind), limit)),
        Against("healthy", _named(worst, t.kind), worst and worst.value, printed[0]),
        Against("failure", _named(best, t.kind), best and best.value, printed[1]),
        Against("gap", Cell(NONE) if gap is None else Cell(number(gap, t.kind), gap), gap, printed[2]),
        *(Cell(unlimited) if end is None or not points else Cell(number(end, t.kind), end) for end in ends),
        *(count(c) if n else Cell(NONE) for c in changed),
        moved[0],
    ]
    return cells, [pair for pair in moved[1:] if pair.printed]


class Point(NamedTuple):
    """What a threshold is laid on: a run, or for the margin a rule over its seeds."""

    name: str
    value: float
    flagged: bool | None
    failed: bool | None  # by the verdict of the edition; None where that is undecided


def _value(point: Point) -> float:
    return point.value


def threshold_points(records: Records, settings: Sequence[Setting], t: Threshold) -> list[Point]:
    """Return what a threshold is laid on in these settings: every run, for the margin every rule over its seeds."""
    points, words = [], {WALKED_BACK: True, PASSES: False}
    for setting in settings:
        j = judged(records, setting)
        name = RULES[setting.rule] + (f" λ {setting.penalty:g}" if setting.penalty else "")
        if t.key == "margin":
            if j.tested and j.depth is not None and j.depth.value is not None:
                points.append(Point(name, j.depth.value, j.depth.flagged, words.get(j.word(t.edition) or "")))
            continue
        check = {"growth": "a", "g_norm": "b", "stability": "c"}[t.key]
        for run, four, verdict in zip(j.runs, j.verdicts["four-diagnostic"], j.verdicts[t.edition]):
            finding = four[check]
            if finding.value is not None:
                failed = words.get(verdict.verdict)
                points.append(Point(f"{name} seed {run.spec.seed}", finding.value, finding.flagged, failed))
    return points


def _breaks(records: Records, settings: Sequence[Setting], t: Threshold, points: Sequence[Point]) -> list[float]:
    """Return all thresholds at which something can change: measured values, for the margin its intervals' ends."""
    if t.key != "margin":
        return [p.value for p in points]
    asked = {s: None for at in settings for s in (at, replace(at, rule="bp", **OWN))}
    found = [judged(records, s).depth for s in asked]
    known = [d for d in found if d is not None and d.value is not None]
    return [end for d in known for end in (d.value, *(d.interval or ())) if end is not None]


def hold(
    outcome: Callable[[float], tuple], limit: float, breaks: Sequence[float], positive: bool
) -> tuple[float | None, float | None]:
    """Return the thresholds around `limit` between which the outcome stays; None: no end on that side.

    Between two neighbouring `breaks` nothing can change, so one threshold between them is enough to ask.

    >>> hold(lambda limit: (3.0 > limit, 20.0 > limit), 10.0, [3.0, 20.0], True)
    (3.0, 20.0)
    """
    now = outcome(limit)

    def end(side: Sequence[float], beyond: float) -> float | None:
        for here, after in zip(side, [*side[1:], beyond]):
            if outcome((here + after) / 2) != now:
                return here
        return None

    above, below = sorted({b for b in breaks if b > limit}), sorted({b for b in breaks if b < limit}, reverse=True)
    if positive:
        below = [b for b in below if b > 0]
    lowest = 0.0 if positive else min(below, default=limit) - 1.0
    return end(below, lowest), end(above, max(above, default=limit) + 1.0)


def _named(point: Point | None, kind: str) -> Cell:
    return Cell(NONE) if point is None else Cell(f"{number(point.value, kind)} ({point.name})", point._asdict())
