"""What a decision rests on: which reporting strategy catches what, and how far the thresholds can move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from walkback.audit.records import Records
from walkback.audit.settings import OWN, RULES, Judged, Setting, commands, judged, lacking, shorter
from walkback.replication.agree import agrees_any, answer, published
from walkback.replication.published import Figure, figures
from walkback.replication.tables.audits import WIDE_SHALLOW
from walkback.replication.tables.build import OURS, rules, variants
from walkback.replication.tables.interventions import SHORT, SWEEP
from walkback.report.table import NONE, Cell, Table, number, table
from walkback.verdict.checks import DiagnosticThresholds
from walkback.verdict.editions import PASSES, UNDECIDED, WALKED_BACK

STRATEGIES = ("S0", "S1", "S2", "S3")
ABOVE_CHANCE = 0.02
STRATEGY = (
    "S0, accuracy: fails where it is not 2 pp above chance; S1, with Γ: fails too where Γ is not positive; S2, with "
    "D1 and D2: fails too where both flag on a seed; S3, with D3: the three-check verdict"
)
FOUR = (
    "S0 and S1 as in the other version; +(a), +(b), +(c), +(d): S1 and that diagnostic alone, where it flags on a "
    "seed; full: (a), (b) or (d), which is the four-diagnostic verdict"
)
UNTESTED = "undecided (D3 not tested)"
NO_GAMMA = "Γ not measured"
MISSED = (
    "missed: passes under this strategy and fails under the full protocol; undecided: so does D3, so whether "
    "there is anything to catch is open"
)


def pair(j: Judged) -> tuple[bool, bool | None] | None:
    """Does S0 fail, does S1 fail (None: there is no Γ to fail it)? None without runs."""
    acc, gamma = j.stat("acc"), j.stat("gamma")
    if acc is None:
        return None
    classes = j.runs[0].classes
    s0 = bool(classes) and acc.mean <= 1 / classes + ABOVE_CHANCE
    return s0, s0 or (None if gamma is None else gamma.mean <= 0)


def strategies(j: Judged) -> dict[str, str] | None:
    """What each of S0…S3 says: passes, fails, undecided, Γ not measured. None without runs."""
    standard = pair(j)
    if standard is None:
        return None
    s0, s1 = standard
    s2 = True if any(check in ("D1", "D2") for check in j.failed("three-check")) else s1
    said = {"S0": s0, "S1": s1, "S2": s2}
    out = {name: {True: "fails", False: "passes", None: NO_GAMMA}[flag] for name, flag in said.items()}
    word = j.word("three-check")
    out["S3"] = "fails" if s2 or word == WALKED_BACK else UNDECIDED if word == UNDECIDED else "passes"
    return out


def caught(said: dict[str, str] | None) -> str | None:
    """The first strategy that fails a claim; passes or undecided where none does."""
    if said is None:
        return None
    return next((name for name in STRATEGIES if said[name] == "fails"), said["S3"])


def ablation(records: Records) -> Table:
    """Decision utility, three-check: the first reporting strategy that catches a failure."""
    cases = [("ResMLP d=256 L=4", Setting(rule), "ablation") for rule in RULES]
    cases += [
        ("ResMLP d=512 L=2", Setting(rule, net_options=WIDE_SHALLOW), "ablation-wide-shallow")
        for rule in ("bp", "fa", "dfa")
    ]
    rows, missing, kinds = [], [], set()
    for network, setting, where in cases:
        alike = [s for name, s, _ in cases if name == network]
        for flag in variants(records, alike):
            at = replace(setting, augment=flag)
            missing += lacking(records, at)
            j, said = judged(records, at), figures(where, setting.rule, what="flag.caught")
            kinds |= {f.kind for f in said}
            ours = strategies(j)
            cells = [ours[name] for name in STRATEGIES] if ours else [NONE] * 4
            if ours and ours["S3"] == UNDECIDED and not j.tested:
                cells[3] = UNTESTED
            first = caught(ours)
            comparable = None if first == UNDECIDED else first
            found = agrees_any(comparable, said)
            n = Cell(str(len(j.runs)), len(j.runs))
            yes = {True: "yes", False: "no", None: NONE}[found]
            rows.append([network, RULES[setting.rule], OURS[flag], n, *cells, first or NONE, published(said), yes])
    return table(
        "ablation",
        "Decision utility: which reporting strategy first catches a failure (three-check)",
        (
            "network | rule | figures | n | S0 acc | S1 + Γ | S2 + D1 and D2 | S3 + D3 | first caught by | "
            "published | agrees?"
        ),
        rows,
        [STRATEGY, "CIFAR-10, 100 epochs", *rules(kinds)],
        commands(missing, records.store),
    )


CASES = (
    ("DFA RM-d256-L4", Setting("dfa"), "ablation"),
    ("FA RM-d512-L2", Setting("fa", net_options=WIDE_SHALLOW), "ablation-wide-shallow"),
    ("DFA ViT-Mini", Setting("dfa", net="vit-mini", epochs=30, any_epochs=True), "ablation-vit-mini"),
    ("FA ViT-Mini", Setting("fa", net="vit-mini", epochs=30, any_epochs=True), "ablation-vit-mini"),
    ("BP RM-d256-L4", Setting("bp"), "ablation"),
)


def extended_ablation(records: Records) -> Table:
    """004's Table 5 in kind: strategies down, cases across."""
    rows, missing = [], []
    said = [figures(where, setting.rule, what="flag.caught")[0] for _, setting, where in CASES]
    found = {}
    for flag in variants(records, [s for _, s, _ in CASES]):
        at = [replace(setting, augment=flag) for _, setting, _ in CASES]
        missing += [spec for setting in at for spec in lacking(records, setting)]
        found[flag] = [judged(records, setting) for setting in at]
    for strategy, label in zip(STRATEGIES, ("S0: acc", "S1: + Γ", "S2: + D1 and D2", "S3: + D3")):
        theirs = [_published_mark(figure, strategy) for figure in said]
        for flag, cases in found.items():
            ours = [_mark(strategies(j), strategy, j.tested) for j in cases]
            open_ = (None, NO_GAMMA, UNDECIDED, UNTESTED)
            same = {
                name: None if a in open_ or shorter(setting, j.runs) else a == b
                for (name, setting, _), j, a, b in zip(CASES, cases, ours, theirs)
            }
            rows.append([label, OURS[flag], *(a or NONE for a in ours), answer(same)])
        rows.append([label, "published", *theirs, NONE])
    for flag, cases in found.items():
        rows.append(["n", OURS[flag], *(Cell(str(len(j.runs)), len(j.runs)) for j in cases), NONE])
        lengths = [j.runs[0].spec.epochs if j.runs else None for j in cases]
        rows.append(["epochs", OURS[flag], *(Cell(NONE if e is None else str(e), e) for e in lengths), NONE])
    return table(
        "extended-ablation",
        "Extended decision-utility ablation: what each strategy does with five cases",
        ["strategy", "figures", *(name for name, _, _ in CASES), "agrees?"],
        rows,
        [
            STRATEGY,
            MISSED,
            "published: 004, Table 5, ResMLP of 100 epochs and ViT-Mini of 30: runs of fewer are not compared",
            *rules(f.kind for f in said),
        ],
        commands(missing, records.store),
    )


def _mark(said: dict[str, str] | None, strategy: str, tested: bool) -> str | None:
    if said is None:
        return None
    if said[strategy] == "fails":
        return "caught"
    if said[strategy] == NO_GAMMA:
        return NO_GAMMA
    if said["S3"] == UNDECIDED and not tested:  # it may yet fail: what passes now may turn out to miss it
        return UNTESTED
    return {"fails": "missed", UNDECIDED: UNDECIDED}.get(said["S3"], said[strategy])


def _published_mark(figure: Figure, strategy: str) -> str:
    if figure.value == "passes":
        return "passes"
    return "caught" if STRATEGIES.index(strategy) >= STRATEGIES.index(str(figure.value)) else "missed"


def ablation_four(records: Records) -> Table:
    """Decision utility, four-diagnostic: each diagnostic alone on top of accuracy and Γ."""
    rows, missing, kinds = [], [], set()
    names = ("S0", "S1", "a", "b", "c", "d", "full")
    for flag in variants(records, [Setting(rule) for rule in RULES]):
        marks: list[dict[str, bool | None]] = []
        for rule, label in RULES.items():
            setting = Setting(rule, augment=flag)
            missing += lacking(records, setting)
            j = judged(records, setting)
            said = {name: figures("ablation-four", rule, what=f"flag.{name}") for name in names}
            ours = _four(j)
            n = Cell(str(len(j.runs)), len(j.runs))
            found = {}
            for name in names:
                kinds |= {f.kind for f in said[name]}
                mark = None if ours is None or ours[name] is None else "WB" if ours[name] else NONE
                found[name] = None if mark is None else agrees_any(mark, said[name])
            cells = [_mark_four(None if ours is None else ours[name], ours is None) for name in names]
            rows.append([label, OURS[flag], n, *cells, answer(found)])
            if any(said.values()):
                rows.append([label, "published", NONE, *(str(said[name][0].value) for name in names), NONE])
            if ours is not None:
                marks.append(ours)
        rows.append(["walked back", OURS[flag], NONE, *(_total([m[name] for m in marks]) for name in names), NONE])
    theirs = {name: figures("ablation-four", what=f"flag.{name}") for name in names}
    total = [f"{sum(f.value == 'WB' for f in theirs[name])}/{len(theirs[name])}" for name in names]
    rows.append(["walked back", "published", NONE, *total, NONE])
    return table(
        "ablation-four",
        "Decision utility: which diagnostic catches what on its own (four-diagnostic), ResMLP d=256 L=4, CIFAR-10",
        ["rule", "figures", "n", "S0", "S1", "+(a)", "+(b)", "+(c)", "+(d)", "full", "agrees?"],
        rows,
        [
            FOUR,
            "WB: walked back; ? undecided: D3 straddles its margin or has no control, or Γ was not measured",
            "published: 001",
            *rules(kinds),
        ],
        commands(missing, records.store),
    )


def _four(j: Judged) -> dict[str, bool | None] | None:
    standard = pair(j)
    if standard is None:
        return None
    verdicts = j.verdicts["four-diagnostic"]
    s0, s1 = standard
    alone: dict[str, bool | None] = {}
    for index, name in enumerate(("a", "b", "c", "d")):
        flags = [v.findings[index].flagged for v in verdicts]
        alone[name] = True if s1 or any(flags) else None if s1 is None or None in flags else False
    word = j.word("four-diagnostic")
    full = True if s1 or word == WALKED_BACK else None if word == UNDECIDED else False
    return {"S0": s0, "S1": s1, **alone, "full": full}


def _total(flags: Sequence[bool | None]) -> Cell:
    back, undecided = sum(flag is True for flag in flags), sum(flag is None for flag in flags)
    more = f", {undecided} undecided" if undecided else ""
    return Cell(f"{back}/{len(flags) - undecided}{more}", {"walked back": back, "undecided": undecided})


def _mark_four(flag: bool | None, absent: bool) -> Cell:
    if absent:
        return Cell("no runs")
    return Cell({True: "WB", False: NONE, None: "?"}[flag], flag)


# -- thresholds ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Threshold:
    """A limit and what it is laid on: `larger` says that larger values are worse."""

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


def sensitivity(records: Records) -> Table:
    """How far each threshold can be moved before a verdict changes, and how far apart failures and the rest are."""
    rows, missing, kinds = [], [], set()
    groups: list[tuple[str, list[Setting], Sequence[Threshold]]] = [
        ("primary", [Setting(rule) for rule in RULES], THRESHOLDS),
        (
            "penalised",
            [Setting(rule, penalty=p, epochs=SHORT) for rule, ps in SWEEP.items() for p in ps if p],
            [t for t in THRESHOLDS if t.key == "margin"],
        ),
    ]
    for name, settings, thresholds in groups:
        for flag in variants(records, settings):
            at = [replace(s, augment=flag) for s in settings]
            for setting in at:
                missing += lacking(records, setting)
            for threshold in thresholds:
                rows.append([name, OURS[flag], *_sweep(records, at, threshold, kinds)])
    return table(
        "sensitivity",
        "Threshold sensitivity: how far a threshold moves before a verdict changes",
        (
            "runs | figures | check | n | threshold | worst healthy | published healthy | healthiest failure | "
            "published failure | gap | published gap | verdicts hold from | to | "
            f"{' | '.join(f'changed at ×{f:g}' for f in FACTORS)} | under ±50 % | published ±50 % | agrees?"
        ),
        rows,
        [
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
            *rules(kinds),
        ],
        commands(missing, records.store),
    )


def _sweep(records: Records, settings: Sequence[Setting], t: Threshold, kinds: set[str]) -> list:
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
    low, high = hold(outcome, limit, _breaks(records, settings, t, points), t.kind == "norm")
    changed = [sum(a != b for a, b in zip(outcome(limit * f), now)) for f in FACTORS]
    failing = {p: p.flagged if t.key == "stability" else p.failed for p in points}
    healthy, failed = ([p for p in points if failing[p] is fails] for fails in (False, True))
    worst = (max if t.larger else min)(healthy, key=_value, default=None)
    best = (min if t.larger else max)(failed, key=_value, default=None)
    gap = None
    if worst and best:
        more, less = (best.value, worst.value) if t.larger else (worst.value, best.value)
        gap = more - less if t.kind != "norm" else more / less if less > 0 else None
    holds = None if not points else "holds" if not changed[1] and not changed[3] else "changes"
    said = {
        "healthy": figures("sensitivity", "", what=f"{t.key}.healthy"),
        "failing": figures("sensitivity", "", what=f"{t.key}.failing"),
        "gap": figures("sensitivity", "", what=f"gap.{t.key}"),
        "holds": figures("sensitivity", "", what=f"flag.{t.key}"),
    }
    # Published for the four diagnostics, for (d) of the penalised runs.
    if t.edition == "three-check" or (t.key == "margin") != bool(settings[0].penalty):
        said = dict.fromkeys(said, ())
    kinds |= {f.kind for group in said.values() for f in group}
    found = {
        "healthy": agrees_any(worst.value if worst else None, said["healthy"]),
        "failure": agrees_any(best.value if best else None, said["failing"]),
        "gap": agrees_any(gap, said["gap"]),
        "±50 %": agrees_any(holds, said["holds"]),
    }
    return [
        t.check,
        Cell(str(n), n),
        Cell(number(limit, t.kind), limit),
        _named(worst, t.kind),
        published(said["healthy"]),
        _named(best, t.kind),
        published(said["failing"]),
        Cell(NONE) if gap is None else Cell(number(gap, t.kind), gap),
        published(said["gap"]),
        _end(low, t.kind, bool(points)),
        _end(high, t.kind, bool(points)),
        *(Cell(str(c) if n else NONE, c if n else None) for c in changed),
        holds or NONE,
        published(said["holds"]),
        answer(found),
    ]


class Point(NamedTuple):
    """What a threshold is laid on: a run, or for the margin a rule over its seeds."""

    name: str
    value: float
    flagged: bool | None
    failed: bool | None  # by the verdict of the edition; None where that is undecided


def _value(point: Point) -> float:
    return point.value


def threshold_points(records: Records, settings: Sequence[Setting], t: Threshold) -> list[Point]:
    """What a threshold is laid on in these settings: every run, for the margin every rule over its seeds."""
    points, words = [], {WALKED_BACK: True, PASSES: False}
    for setting in settings:
        j = judged(records, setting)
        name = RULES[setting.rule] + (f" λ {setting.penalty:g}" if setting.penalty else "")
        if t.key == "margin":
            if j.tested and j.depth is not None and j.depth.value is not None:
                points.append(Point(name, j.depth.value, j.depth.flagged, words.get(j.word(t.edition) or "")))
            continue
        index = {"growth": 0, "g_norm": 1, "stability": 2}[t.key]
        for run, four, verdict in zip(j.runs, j.verdicts["four-diagnostic"], j.verdicts[t.edition]):
            finding = four.findings[index]
            if finding.value is not None:
                failed = words.get(verdict.verdict)
                points.append(Point(f"{name} seed {run.spec.seed}", finding.value, finding.flagged, failed))
    return points


def _breaks(records: Records, settings: Sequence[Setting], t: Threshold, points: Sequence[Point]) -> list[float]:
    """All thresholds at which something can change: measured values, for the margin the ends of its intervals."""
    if t.key != "margin":
        return [p.value for p in points]
    asked = {s: None for at in settings for s in (at, replace(at, rule="bp", **OWN))}
    found = [judged(records, s).depth for s in asked]
    known = [d for d in found if d is not None and d.value is not None]
    return [end for d in known for end in (d.value, *(d.interval or ())) if end is not None]


def hold(
    outcome: Callable[[float], tuple], limit: float, breaks: Sequence[float], positive: bool
) -> tuple[float | None, float | None]:
    """The thresholds around `limit` between which the outcome stays; None: no end on that side.

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


def _end(value: float | None, kind: str, known: bool) -> Cell:
    if not known:
        return Cell(NONE)
    return Cell("no end", None) if value is None else Cell(number(value, kind), value)
