"""What the penalty changes, with its controls: sweep, capacity, fresh feedback, a second metric, rankings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

from walkback.audit.plans import SEEDS
from walkback.audit.records import Record
from walkback.audit.settings import RULES, VALUES, Setting
from walkback.measures.measurements import Measurements
from walkback.measures.over_sites import deep_sites, mean
from walkback.replication.agree import answer, published
from walkback.replication.published import Figure, figures
from walkback.replication.tables.build import (
    AGREES,
    OURS,
    Against,
    AuditRow,
    Draft,
    accuracies,
    against,
    among,
    audit,
    by_seed,
    count,
    depth_cell,
    evidence_table,
    valid_cell,
)
from walkback.replication.tables.courses import early_runs
from walkback.report.table import NONE, Cell, Stat, number, stat

SHORT, RESCUE = 30, 1e-2  # epochs and λ of the interventions
SWEEP = {"dfa": (0.0, 1e-4, 1e-3, 1e-2, 1e-1), "fa": (0.0, 1e-4, 1e-2), "bp": (0.0, 1e-2)}


def penalised(rule: str, penalty: float = RESCUE, augment: bool = False) -> Setting:
    """Return the setting of an intervention: a rule under a penalty, for 30 epochs."""
    return Setting(rule, penalty=penalty, epochs=SHORT, augment=augment)


@evidence_table(
    110,
    "Penalty sweep: λ‖f_l‖² on ResMLP d=256 L=4, CIFAR-10, 30 epochs",
    "rule | λ | figures | n | acc | D3 pp | D3 pp, BP stem | ‖h_L‖ | ‖g_L‖ | ρ | deep cos | ρ_pert | three-check | "
    "four-diagnostic | agrees?",
    "001 gives DFA without a penalty after 100 epochs",
)
def lambda_sweep(t: Draft) -> None:
    """The per-block penalty at growing strength on DFA, FA and BP."""
    cells = [(rule, λ) for rule, penalties in SWEEP.items() for λ in penalties]
    audit(t, [AuditRow((RULES[r], f"{λ:g}"), penalised(r, λ), figures("lambda-sweep", r, penalty=λ)) for r, λ in cells])


def paired(a: Sequence[Record], b: Sequence[Record]) -> Stat | None:
    """Return the second minus the first in percentage points, seed by seed."""
    other = {run.spec.seed: run.accuracy for run in b}
    return stat(100 * (other[run.spec.seed] - run.accuracy) for run in a if run.spec.seed in other)


@evidence_table(
    120,
    "Capacity control: BP and DFA with and without the penalty, ResMLP d=256 L=4, CIFAR-10, 30 epochs",
    "figures | rule | quantity | n | ours | published | agrees?",
    "differences are taken seed by seed",
    "001 takes the runs without a penalty from 100 epochs and those with one from 30",
    AGREES,
)
def capacity(t: Draft) -> None:
    """2 × 2: does the penalty cost capacity, or is the credit poor?"""
    t.kinds.add("pp")

    def row(rule: str, name: str, what: str, value: Stat | None, kind: str = "pp") -> None:
        beside = against("ours", value, kind, figures("capacity", rule, what=what))
        t.row(OURS[flag], RULES.get(rule, "BP − DFA"), name, _n(value), beside)

    for flag in t.variants(penalised(rule, λ) for rule in ("bp", "dfa") for λ in (0.0, RESCUE)):
        rescued = {}
        for rule in ("bp", "dfa"):
            without = t.runs(penalised(rule, 0.0, flag))
            j = t.judged(penalised(rule, augment=flag))
            rescued[rule] = j.runs
            row(rule, "accuracy without a penalty", "acc.without", accuracies(without), "acc")
            row(rule, "accuracy with λ = 0.01", "acc.with", accuracies(j.runs), "acc")
            row(rule, "effect of the penalty, pp", "margin.effect", paired(without, j.runs))
            printed = figures("capacity", rule, what="margin.frozen")
            frozen = Against("ours", depth_cell(j), j.depth and j.depth.value, printed)
            t.row(OURS[flag], RULES[rule], "with λ = 0.01, over frozen blocks, pp", count(j.paired[0]), frozen)
        gap = paired(rescued["dfa"], rescued["bp"])
        row("", "gap that is left with λ = 0.01, pp", "margin.gap", gap)


def _n(value: Stat | None) -> Cell:
    return count(value.n if value else 0)


@evidence_table(
    130,
    "Fresh feedback: the same network with its feedback drawn anew, 20 draws",
    "rule | λ | epochs | figures | seed | quantity | trained feedback | published trained | draws | fresh feedback | "
    "published fresh | σ apart | published σ | agrees?",
    "fresh feedback: mean ± std over the draws; σ apart: (trained − mean) / std",
    "ResMLP d=256 L=4, CIFAR-10",
    AGREES,
)
def fresh_feedback(t: Draft) -> None:
    """Is the alignment specific to the feedback the network was trained with?"""
    cells = [penalised("dfa"), Setting("dfa"), penalised("fa"), Setting("fa")]
    for base in cells:
        for flag in t.variants(s for s in cells if s.epochs == base.epochs):
            runs = by_seed(t.runs(replace(base, augment=flag)))
            published_all = figures("fresh-feedback", base.rule, penalty=base.penalty)
            for seed in sorted({*SEEDS, *runs}):
                printed = [f for f in published_all if f.seed in (None, seed)]
                for what, head in (("deep_cosine", "deep cos"), ("gamma", "Γ")):
                    label = (RULES[base.rule], f"{base.penalty:g}", str(base.epochs), OURS[flag], count(seed), head)
                    t.row(*label, *_fresh(runs.get(seed), what, printed))


class Fresh(NamedTuple):
    """A quantity of a run with its trained feedback, and with feedback drawn anew: {mean, std} or None."""

    trained: float | None
    null: dict[str, float] | None

    @property
    def apart(self) -> float | None:
        """How many standard deviations the trained feedback is from the fresh one."""
        if self.trained is None or not self.null or not self.null["std"] > 0:
            return None
        return (self.trained - self.null["mean"]) / self.null["std"]


def fresh(run: Record, what: str = "deep_cosine") -> Fresh:
    """Return a quantity of VALUES under trained and under fresh feedback."""
    return Fresh(VALUES[what](run), (run.report.run.get("fresh_feedback") or {}).get(what))


def _fresh(run: Record | None, what: str, printed: Sequence[Figure]) -> list[Cell | Against]:
    trained, null = found = fresh(run, what) if run else Fresh(None, None)
    draws = ((run.report.run.get("fresh_feedback") or {}) if run else {}).get("draws", 0)
    cell = Cell(f"{number(null['mean'], 'cos')} ± {null['std']:.3f}", null) if null else Cell(NONE)
    apart = Cell(NONE) if found.apart is None else Cell(f"{found.apart:+z.1f}", found.apart)
    return [
        against("trained", stat([trained]), "cos", among(printed, what)),
        count(draws),
        Against("fresh", cell, null["mean"] if null else None, among(printed, f"fresh.{what}")),
        Against("σ", apart, found.apart, among(printed, f"sigma.{what}")),
    ]


def deep_control(run: Record, name: str) -> float | None:
    """Return a control of the perturbation probe, averaged over the deep sites."""
    values = run.report.controls.get(name)
    return None if values is None else mean([values[site] for site in deep_sites(run.measurements.cosine)])


class Condition(NamedTuple):
    """A condition of the two-mode argument: deep cosines, ρ_pert, and measurements by seed."""

    name: str
    key: str
    cosine: Stat | None
    rho: Stat | None
    at: dict[int, Measurements]


SETTINGS = [Setting("bp"), Setting("dfa"), Setting("dfa", epochs=1), penalised("dfa")]


def conditions(t: Draft, augment: bool) -> list[Condition]:
    """Return the conditions of the two-mode argument; the runs they lack are missing from the table."""
    bp, dfa, first, rescued = (t.runs(replace(s, augment=augment)) for s in SETTINGS)
    early = {run.spec.seed: run.epochs[1][2] for run in early_runs(t.records, augment, 1)}
    positive, negative = (stat(deep_control(r, f"perturbation_{name}") for r in bp) for name in ("bp", "random"))

    def values(what: str, runs: Sequence[Record]) -> Stat | None:
        return stat(VALUES[what](run) for run in runs)

    def condition(name: str, key: str, runs: Sequence[Record]) -> Condition:
        return Condition(name, key, values("deep_cosine", runs), values("perturbation", runs), _measured(runs))

    epoch_1 = Condition(
        "DFA, epoch 1", "early", stat(m.deep_cosine for m in early.values()), values("perturbation", first), early
    )
    return [
        condition("BP gradient on a BP network", "positive", bp)._replace(rho=positive),
        condition("random vector on a BP network", "negative", bp)._replace(cosine=None, rho=negative),
        epoch_1,
        condition("DFA, 100 epochs", "converged", dfa),
        condition("DFA, λ = 0.01, 30 epochs", "penalised", rescued),
    ]


def _measured(runs: Sequence[Record]) -> dict[int, Measurements]:
    return {run.spec.seed: run.measurements for run in runs}


@evidence_table(
    140,
    "Cosine and perturbation correlation on the deep sites, with controls: ResMLP d=256 L=4, CIFAR-10",
    "condition | figures | n | deep cos | published deep cos | n of ρ_pert | ρ_pert | published ρ_pert | "
    "reference valid | agrees?",
    "with isotropic directions and a small step ρ_pert estimates the same angle as the cosine: the two agree "
    "by construction, and are no independent evidence",
    "reference valid: runs whose ‖g_L‖ is above the floor of D2",
    AGREES,
)
def triangulation(t: Draft) -> None:
    """A second metric beside the cosine, with its positive and its negative control."""
    for flag in t.variants(SETTINGS):
        for c in conditions(t, flag):
            t.row(c.name, OURS[flag], *both_metrics(c), valid_cell(list(c.at.values())))


def both_metrics(c: Condition) -> list[Cell | Against]:
    """Return deep cosine and ρ_pert of a condition, each after its n and beside what is published."""
    rule = "bp" if c.key in ("positive", "negative") else "dfa"
    cosine, rho = (figures("triangulation", rule, what=f"{w}.{c.key}") for w in ("deep_cosine", "perturbation"))
    if c.key == "fresh":
        cosine = figures("fresh-feedback", "dfa", penalty=RESCUE, what="fresh.deep_cosine")
    return [_n(c.cosine), against("deep cos", c.cosine, "cos", cosine), _n(c.rho), against("ρ_pert", c.rho, "cos", rho)]


# -- rankings --------------------------------------------------------------------------------------------------

MATCHED = ("state-bridge", "fa", "credit-bridge", "dfa")
# Quantity -> (head, kind, sign that makes larger better).
FUNCTIONAL = {
    "acc": ("acc", "acc", 1),
    "nudging": ("nudge", "norm", -1),
    "nudging_relative": ("nudge, relative", "norm", -1),
    "train_loss_delta": ("Δ train loss", "cos", -1),
}
RANKED = {"deep_cosine": ("deep cos", "cos", 1), **FUNCTIONAL}


def ranking(values: dict[str, float]) -> str:
    """Return names from the best down.

    >>> ranking({"fa": 0.4, "dfa": 0.1, "state-bridge": 0.3, "bp": 0.3})
    'FA > BP = State Bridge > DFA'
    """
    best = sorted(values, key=lambda r: (-values[r], r))
    return " > ".join(" = ".join(RULES[r] for r in tied) for _, tied in groupby(best, values.__getitem__))


def tau(a: dict[str, float], b: dict[str, float]) -> float | None:
    """Return Kendall's τ-b of two rankings, of what is in both; None for fewer than three.

    >>> tau({"bp": 3.0, "fa": 2.0, "dfa": 1.0}, {"bp": 1.0, "fa": 2.0, "dfa": 3.0})
    -1.0
    """
    from scipy.stats import kendalltau

    both = sorted(set(a) & set(b))
    if len(both) < 3:
        return None
    value = float(kendalltau([a[k] for k in both], [b[k] for k in both])[0])  # type: ignore[arg-type]
    return value if value == value else None


@evidence_table(
    150,
    "Matched penalty λ = 0.01: the cosine's ranking against what credit does; ResMLP d=256 L=4, 30 epochs",
    f"rule | figures | n | {' | '.join(head for head, _, _ in RANKED.values())} | agrees?",
    "nudge: change of the test loss after a step of 0.01 along the credit of one deep site, averaged; "
    "relative: 0.01 of the state's norm; Δ train loss: last epoch minus first",
    "τ: Kendall's τ-b between the ranking by deep cosine and the one by the column's quantity, all signed so "
    "that better is larger",
    AGREES,
    "Kendall's τ agrees within 0.34, taken over the rules that both have: one swapped pair of the six changes it by a "
    "third",
)
def matched_penalty(t: Draft) -> None:
    """Under one penalty: does the cosine rank rules as their function does?"""
    printed = {rule: figures("matched-penalty", rule) for rule in MATCHED}
    theirs = {
        what: {rule: sign * f.number for rule in MATCHED for f in among(printed[rule], what)[:1]}
        for what, (_, _, sign) in RANKED.items()
    }
    for flag in t.variants(map(penalised, MATCHED)):
        ours: dict[str, dict[str, float]] = {what: {} for what in RANKED}
        for rule in MATCHED:
            j = t.judged(penalised(rule, augment=flag), controls=False)
            pairs = [against(h, j.stat(what), k, among(printed[rule], what)) for what, (h, k, _) in RANKED.items()]
            for (what, (_, _, sign)), pair in zip(RANKED.items(), pairs):
                if isinstance(pair.value, float):
                    ours[what][rule] = sign * pair.value
            answered = answer(t.agreeing(pairs))
            t.row(RULES[rule], OURS[flag], count(len(j.runs)), *(pair.cell for pair in pairs), answered)
            t.row(RULES[rule], "published", NONE, *(published(pair.printed) for pair in pairs), NONE)
        _rank(t, OURS[flag], ours, theirs)


def _rank(t: Draft, figure: str, ours: dict[str, dict[str, float]], theirs: dict[str, dict[str, float]]) -> None:
    """Add the rankings and their τ with that of the cosine; all values are signed so that better is larger."""
    cosine, their_cosine = ours["deep_cosine"], theirs["deep_cosine"]
    whole = len(cosine) == len(MATCHED)
    same: dict[str, bool | None] = {"ranking": ranking(cosine) == ranking(their_cosine) if whole else None}
    taus: list[tuple[float | None, float | None]] = [(None, None)]
    near: dict[str, bool | None] = {}
    for what, (head, _, _) in FUNCTIONAL.items():
        taus.append((tau(cosine, ours[what]), tau(their_cosine, theirs[what])))
        like = {rule: v for rule, v in theirs[what].items() if rule in ours[what]}  # τ of the rules that both have
        a, b = taus[-1][0], tau(their_cosine, like)
        if a is not None and b is not None:
            near[head] = abs(a - b) <= 0.34
    n = str(len(cosine))
    t.row("ranking", figure, n, *(ranking(v) if len(v) > 1 else NONE for v in ours.values()), answer(same))
    t.row("ranking", "published", NONE, *(ranking(v) if v else NONE for v in theirs.values()), NONE)
    t.row("τ with the cosine", figure, n, *(_tau(a) for a, _ in taus), answer(near))
    t.row("τ with the cosine", "published", NONE, *(_tau(b) for _, b in taus), NONE)


def _tau(value: Any) -> Cell:
    return Cell(NONE) if value is None else Cell(f"{value:+z.2f}", value)
