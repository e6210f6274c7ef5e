"""What is published in the words of a sentence and stands in no table of its own, beside ours.

What a document chose itself (how many networks, draws, orders) is shown beside ours and not compared; so is a range
over runs, which widens with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import log

from walkback.audit.records import Record, Records
from walkback.audit.settings import RULES, Judged, Setting, judged, last, select
from walkback.measures.measurements import Measurements
from walkback.replication.published import FIGURES, Figure
from walkback.replication.tables.audits import NETWORKS
from walkback.replication.tables.build import Against, accuracies, against, by_seed, depth_word, flag_word, variants
from walkback.replication.tables.courses import LARGE, accuracy_at, early_runs, first_epochs, span, typical
from walkback.replication.tables.decisions import four, pair
from walkback.replication.tables.interventions import MATCHED, RESCUE, deep_control, fresh, ranking
from walkback.replication.tables.summary import WITHOUT, null_bands, readings_by_seed, together
from walkback.report.table import NONE, Cell, Stat, number, stat
from walkback.verdict.chain import is_concentrated, loudest
from walkback.verdict.checks import DiagnosticThresholds, reference_validity
from walkback.verdict.editions import PASSES, WALKED_BACK

FIVE = ("bp", "ep", "dfa", "state-bridge", "credit-bridge")  # the rules of 000 to 002
WALKED = FIVE[2:]  # those that are walked back there
CLAMP = 1e-8  # ε of torch's cosine_similarity
WEAK = "mode 1 alleviated, mode 2 not"


def beside_no_table(records: Records) -> Iterator[Against]:
    """Yield every such figure beside ours."""
    for part in (_norms, _cosines, _along_training, _modes, _under_a_penalty, _rankings, _decisions, _elsewhere):
        yield from part(records)


def _named(where: str, what: str, rule: str | None = None, penalty: float | None = None) -> tuple[Figure, ...]:
    found = (f for f in FIGURES if f.where == where and f.what == what and rule in (None, f.rule))
    return tuple(f for f in found if penalty in (None, f.penalty))


def _shown(text: str, printed: Sequence[Figure], n: int = 0) -> Against:
    """Return a cell of ours that is not compared."""
    return Against("", Cell(text, text), None, printed, n)


def _said(word: str | None, printed: Sequence[Figure], n: int = 0) -> Against:
    return Against("", Cell(word or NONE, word), word, printed, n)


def _range(values: Iterable[float | None], kind: str) -> str:
    known = [v for v in values if v is not None]
    return "…".join(number(end(known), kind) for end in (min, max)) if known else NONE


def _of(records: Records, rule: str, **fields: object) -> Setting:
    """Return a setting with flips and crops; without where only such runs are there."""
    setting = Setting(rule, **fields)  # type: ignore[arg-type]
    return replace(setting, augment=variants(records, [setting])[0])


def _runs(records: Records, rule: str, **fields: object) -> tuple[Record, ...]:
    return select(records, _of(records, rule, **fields))


def _rescued(records: Records, penalty: float = RESCUE, rule: str = "dfa") -> Judged:
    return judged(records, _of(records, rule, penalty=penalty, epochs=30))


def _mean(runs: Iterable[Record], value: Callable[[Record], float | None]) -> float | None:
    known = stat(map(value, runs))
    return None if known is None else known.mean


def _g(run: Record) -> float | None:
    return last(run.measurements.g_norm)


def _over(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


# -- norms and cosines -----------------------------------------------------------------------------------------


def _norms(records: Records) -> Iterator[Against]:
    dfa, fa, bp = (_runs(records, rule) for rule in ("dfa", "fa", "bp"))
    yield against("", stat(r.measurements.growth_total for r in dfa), "norm", _named("primary", "growth_total"))
    for what, norms in (("h_norm", lambda m: m.h_norm), ("g_norm", lambda m: m.g_norm)):
        grown = stat(_over(last(norms(r.measurements)), last(norms(r.epochs[0][2]))) for r in dfa)
        yield against("", grown, "norm", _named("mechanism", f"change.{what}"))
    for runs, other, where, what in (
        (dfa, bp, "primary", "change.g_norm_against_bp"),
        (fa, dfa, "mechanism", "change.g_norm_against_dfa"),
    ):
        ratio, n = _over(_mean(runs, _g), _mean(other, _g)), min(len(runs), len(other))
        yield against("", stat([ratio]), "norm", _named(where, what))._replace(n=n)
    after = stat(_over(r.measurements.g_norm[1], r.measurements.g_norm[0]) for r in dfa)
    yield against("", after, "norm", _named("per-layer", "change.g_norm_after_site_0"))
    yield against("", stat(_over(CLAMP, _g(r)) for r in dfa), "norm", _named("clamp", "ratio.distortion"))
    early = early_runs(records, True, 1)
    site2 = stat(run.epochs[1][2].g_norm[2] for run in early)
    yield against("", site2, "norm", _named("early-epochs", "g_norm.site2"))


def _cosines(records: Records) -> Iterator[Against]:
    dfa = _runs(records, "dfa")[:1]
    orders = [value for run in dfa for value in run.report.aggregates.values() if value is not None]
    sizes = [abs(value) for value in orders if value]
    yield _shown(_range(orders, "cos"), _named("aggregation", "gamma.orders"), len(dfa))
    ratio = stat([max(sizes) / min(sizes)] if sizes else [])
    yield against("", ratio, "norm", _named("aggregation", "ratio.orders"))
    yield _shown(str(len(orders)) if orders else NONE, _named("aggregation", "count.orders"), len(dfa))
    flips = ("flips" if min(orders) < 0 < max(orders) else "does not flip") if orders else None
    yield _said(flips, _named("aggregation", "flag.sign"), len(dfa))
    for rule in ("fa", "dfa"):
        runs = _runs(records, rule)
        ends = [is_concentrated(m) and loudest(m) in (0, len(m.cosine) - 2) for m in (r.measurements for r in runs)]
        word = {0: "spread over sites", len(ends): "dominated by one end"}.get(sum(ends), "differs between seeds")
        yield _said(word if ends else None, _named("per-layer", "flag.aggregate", rule), len(runs))
    vit = next(setting for _, setting, _, where in NETWORKS if where == "vit-mini")
    runs = select(records, replace(vit, rule="dfa", augment=True))
    yield against("", stat(map(_furthest, runs)), "cos", _named("vit-mini", "cosine.all"))
    early = early_runs(records, True, 2)
    count = sum(c is not None for run in early for _, _, m in run.epochs[1:3] for c in m.cosine[1:])
    yield _shown(str(count) if early else NONE, _named("early-epochs", "count.cosines"), len(early))


def _furthest(run: Record) -> float | None:
    """Return the cosine of a run that is furthest from zero."""
    return max((c for c in run.measurements.cosine if c is not None), key=abs, default=None)


# -- along training --------------------------------------------------------------------------------------------


def _along_training(records: Records) -> Iterator[Against]:
    dfa = _runs(records, "dfa")
    printed = _named("temporal", "acc", "dfa")
    then = stat(accuracy_at(run, f.epoch) for f in printed[:1] for run in dfa)
    yield against("", then, "acc", printed)
    first, large = ([first_epochs(run, limits) for run in dfa] for limits in (None, LARGE))
    either = [epochs["either"] for epochs in large]
    if any(e is not None for e in either):
        saved = stat(1 - e / run.spec.epochs if e is not None else 0.0 for e, run in zip(either, dfa))
        yield against("", saved, "acc", _named("temporal", "saved"))
    after = stat(None if e is None else 100 * (r.accuracy - (accuracy_at(r, e) or 0)) for e, r in zip(either, dfa))
    yield against("", after, "pp", _named("temporal", "margin.after_flag"))
    pairs = [(a["a"], b["b"]) for a, b in zip(first, large)]
    both = [None if None in ab else max(e for e in ab if e is not None) for ab in pairs]
    yield Against("", span(both), typical(both), _named("temporal", "fired.both"), len(dfa))
    bp = [run for _, base, _, where in NETWORKS[:1] + NETWORKS[4:6] for run in _runs(records, "bp", **_network(base))]
    never = sum(first_epochs(run)["either"] is None for run in bp)
    yield _shown(f"{never} of {len(bp)}" if bp else NONE, _named("temporal", "count.never"))
    early = stat(_early_share(run) for run in dfa)
    yield against("", early, "acc", _named("mechanism", "share.first_10"))


def _network(base: Setting) -> dict[str, object]:
    names = ("net", "net_options", "data", "epochs", "any_epochs")
    return {name: getattr(base, name) for name in names}


def _early_share(run: Record) -> float | None:
    """Return how much of the growth of ‖h_L‖, in orders of magnitude, falls into the first ten epochs."""
    norms = [last(m.h_norm) for _, _, m in run.epochs]
    start, ten, end = (norms[i] if len(norms) > 10 else None for i in (0, 10, -1))
    if not start or not ten or not end or start == end:
        return None
    return log(ten / start) / log(end / start)


# -- modes -----------------------------------------------------------------------------------------------------


def _modes(records: Records) -> Iterator[Against]:
    early = early_runs(records, _of(records, "dfa").augment, 1)
    rescued = _rescued(records).runs
    for name, at in (
        ("early", [run.epochs[1][2] for run in early]),
        ("converged", [run.measurements for run in _runs(records, "dfa")]),
        ("penalised", [run.measurements for run in rescued]),
        ("fresh", [run.measurements for run in rescued if fresh(run).null]),
    ):
        yield _said(_regime(at), _named("two-modes", f"flag.regime_{name}"), len(at))
    weak = _rescued(records, 1e-4).runs
    at = {seed: run.measurements for seed, run in by_seed(weak).items()}
    reading = together(readings_by_seed(at, null_bands(weak, at)))
    yield _said(WEAK if reading == WITHOUT else reading, _named("two-modes", "flag.weak"), len(weak))
    yield from _sub_modes(records)


def _regime(at: Sequence[Measurements]) -> str | None:
    """Return whether the reference is measurable by D2: meaningful, degenerate, or on how many it is degenerate."""
    floor = DiagnosticThresholds().g_norm_floor
    sunk = [flag for m in at if (flag := reference_validity("D2", m, floor).flagged) is not None]
    if not sunk:
        return None
    words = {0: "meaningful", len(sunk): "degenerate"}
    return words.get(sum(sunk), f"degenerate ({sum(sunk)}/{len(sunk)})")


def _sub_modes(records: Records) -> Iterator[Against]:
    found: dict[str, list[float]] = {"drift-dominated": [], "noise-dominated": []}
    by_rule = []
    for rule in RULES:
        j = judged(records, _of(records, rule))
        kinds = {v.submode for v in j.verdicts["four-diagnostic"] if v.submode}
        by_rule += [len(kinds)] if len(j.runs) > 1 and kinds else []
        for run, verdict in zip(j.runs, j.verdicts["four-diagnostic"]):
            if verdict.submode in found and run.measurements.stability is not None:
                found[verdict.submode].append(run.measurements.stability)
    drift, noise = found.values()
    yield _shown(_range(drift, "cos"), _named("sub-modes", "stability.drift"), len(drift))
    yield against("", stat(noise), "cos", _named("sub-modes", "stability.noise"))
    word = "changes between seeds" if any(n > 1 for n in by_rule) else "is the same on all seeds"
    yield _said(word if by_rule else None, _named("sub-modes", "flag.by_seed"))


# -- under a penalty -------------------------------------------------------------------------------------------


def _under_a_penalty(records: Records) -> Iterator[Against]:
    plain, weak, rescued, strong = (_rescued(records, λ) for λ in (0.0, 1e-4, RESCUE, 1e-1))
    regime = _regime([run.measurements for run in plain.runs])
    yield _said(regime, _named("lambda-sweep", "flag.measurement"), len(plain.runs))
    for j in (weak, rescued):
        for check in ("growth", "reference"):
            printed = _named("lambda-sweep", f"flag.{check}", "dfa", j.setting.penalty)
            yield _said(flag_word(j.flagged(check)), printed, len(j.runs))
    for j in (_rescued(records, 1e-3), rescued):
        for what, least in (("flag.depth", 2.0), ("flag.depth_at_1_pp", 1.0)):
            of = judged(records, j.setting, DiagnosticThresholds(frozen_acc_margin_pp=least))
            yield _said(_depth(of), _named("lambda-sweep", what, "dfa", j.setting.penalty), len(j.runs))
    for what, norms in (("h_norm", lambda m: m.h_norm), ("g_norm", lambda m: m.g_norm)):
        before = {seed: last(norms(run.measurements)) for seed, run in by_seed(plain.runs).items()}
        change = stat(_over(last(norms(r.measurements)), before.get(r.spec.seed)) for r in rescued.runs)
        yield against("", change, "norm", _named("lambda-sweep", f"change.{what}"))
    c = [j.stat("deep_cosine") for j in (weak, rescued, strong)]
    low, top, high = (s.mean if s else None for s in c)
    if low is not None and top is not None and high is not None:
        shape = "inverted U" if top > max(low, high) else "no inverted U"
        yield _said(shape, _named("lambda-sweep", "flag.shape"), len(rescued.runs))
    swept = [_rescued(records, λ, "fa") for λ in (0.0, 1e-4, RESCUE)]
    for what, kind in (("acc", "acc"), ("deep_cosine", "cos")):
        means = [s.mean for j in swept if (s := j.stat(what))]
        yield _shown(_range(means, kind), _named("lambda-sweep", f"{what}.over_strengths"))
    draws = {str(null["draws"]) for run in rescued.runs if (null := run.report.run.get("fresh_feedback"))}
    yield _shown(", ".join(sorted(draws)) or NONE, _named("fresh-feedback", "count.draws"))
    control = _mean(_runs(records, "bp"), lambda run: deep_control(run, "perturbation_random"))
    ceiling = _mean(_runs(records, "bp"), lambda run: deep_control(run, "perturbation_bp"))
    rho = rescued.stat("perturbation")
    for what, other in (("ratio.to_negative", control), ("ratio.to_positive", ceiling)):
        ratio = stat([_over(rho and rho.mean, other)])
        yield against("", ratio, "norm", _named("triangulation", what))._replace(n=len(rescued.runs))


def _depth(j: Judged) -> str | None:
    """Return ok or flags, by D3 over its own control; None where that is undecided or not tested."""
    return depth_word(j.depth) if j.depth is not None and j.depth.flagged is not None else None


def _rankings(records: Records) -> Iterator[Against]:
    found = {rule: _rescued(records, rule=rule) for rule in MATCHED}

    def values(what: str) -> dict[str, float]:
        return {rule: s.mean for rule, j in found.items() if (s := j.stat(what))}

    by_cosine = values("deep_cosine")
    order = ranking(by_cosine) if len(by_cosine) == len(MATCHED) else None
    yield _said(order, _named("matched-penalty", "flag.order_cosine"))
    for what, name, sign in (("acc", "acc", 1), ("nudging", "nudge", -1), ("train_loss_delta", "loss", -1)):
        each = {rule: sign * v for rule, v in values(what).items()}
        best = RULES[max(each, key=lambda rule: each[rule])] if len(each) == len(MATCHED) else None
        yield _said(best, _named("matched-penalty", f"flag.first_{name}"))
        rest = [v for rule, v in each.items() if rule != "state-bridge"]
        lead = each.get("state-bridge")
        if what == "acc":
            over = None if lead is None or not rest else 100 * (lead - max(rest))
            yield against("", stat([over]), "pp", _named("matched-penalty", "margin.lead"))._replace(n=0)
        else:
            times = _range((_over(lead, v) for v in rest), "norm") if lead is not None else NONE
            yield _shown(times, _named("matched-penalty", f"ratio.{name}"))


# -- decisions and other networks ------------------------------------------------------------------------------


def _decisions(records: Records) -> Iterator[Against]:
    audits = {rule: judged(records, _of(records, rule)) for rule in FIVE}
    for rule, j in audits.items():
        back = (pair(j) or (None, None))[1]
        word = {True: WALKED_BACK, False: PASSES, None: None}[back]
        yield _said(word, _named("primary", "verdict.status_quo", rule), len(j.runs))
    marks = [four(j) for j in audits.values()]
    for name in ("S0", "S1", "full"):
        flags = [None if mark is None else mark[name] for mark in marks]
        back, open_ = sum(flag is True for flag in flags), sum(flag is None for flag in flags)
        text = f"{back} of {len(flags) - open_}" + (f", {open_} undecided" if open_ else "")
        value = float(back) if not open_ else None
        shown = text if open_ < len(flags) else NONE
        yield Against("", Cell(shown, back), value, _named("ablation-four", f"count.{name}"))
    trained = [rule for rule, j in audits.items() if j.runs]
    yield _shown(str(len(trained)) if trained else NONE, _named("ablation-four", "count.rules"))
    for what, rules, word in (
        ("count.runs_that_pass", ("bp", "ep"), PASSES),
        ("count.runs_walked_back", WALKED, WALKED_BACK),
    ):
        verdicts = [v.verdict for rule in rules for v in audits[rule].verdicts["four-diagnostic"]]
        text = f"{verdicts.count(word)} of {len(verdicts)}" if verdicts else NONE
        yield _shown(text, _named("ablation-four", what))
    accs = {rule: s.mean for rule, j in audits.items() if (s := j.stat("acc"))}
    three = [accs[rule] for rule in WALKED if rule in accs]
    ratio = _over(sum(three) / len(three), accs.get("bp")) if len(three) == len(WALKED) else None
    yield against("", stat([ratio]), "norm", _named("primary", "ratio.of_bp"))._replace(n=0)


def _elsewhere(records: Records) -> Iterator[Against]:
    for rule in ("bp", "fa", "dfa"):
        j = judged(records, _of(records, rule, data="cifar100"))
        for check in ("growth", "reference"):
            yield _said(flag_word(j.flagged(check)), _named("cifar100", f"flag.{check}", rule), len(j.runs))
        yield _said(_depth(j), _named("cifar100", "flag.depth", rule), len(j.runs))
    student = next(_network(base) for _, base, _, where in NETWORKS if where == "student")
    bp = accuracies(_runs(records, "bp", **student))
    frozen = [accuracies(_runs(records, rule, scope="frozen", **student)) for rule in ("bp", "dfa")]
    controls: list[Stat] = [s for s in frozen if s is not None]
    if bp is not None and controls:
        gain = 100 * (bp.mean - max(s.mean for s in controls))
        word = "uninformative" if gain < DiagnosticThresholds().frozen_acc_margin_pp else "informative"
        yield _said(word, _named("student", "flag.depth"), bp.n)
