"""What the penalty changes, with its controls: sweep, capacity, fresh feedback, a second metric, rankings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from walkback.audit.records import Record, Records
from walkback.audit.settings import RULES, SEEDS, VALUES, Setting, commands, judged, lacking, select
from walkback.measures.accumulate import Measurements, deep_sites, mean
from walkback.replication.agree import agrees_any, answer, published
from walkback.replication.published import Figure, figures
from walkback.replication.tables.build import OURS, Entry, audit, compare, depth_cell, rules, variants
from walkback.replication.tables.courses import early_runs
from walkback.report.table import NONE, Cell, Stat, Table, number, spread, stat, table
from walkback.verdict.checks import DiagnosticThresholds, reference_validity

SHORT, RESCUE = 30, 1e-2  # epochs and λ of the interventions
SWEEP = {"dfa": (0.0, 1e-4, 1e-3, 1e-2, 1e-1), "fa": (0.0, 1e-4, 1e-2), "bp": (0.0, 1e-2)}


def lambda_sweep(records: Records) -> Table:
    """The per-block penalty at growing strength on DFA, FA and BP."""
    return audit(
        "lambda-sweep",
        "Penalty sweep: λ‖f_l‖² on ResMLP d=256 L=4, CIFAR-10, 30 epochs",
        records,
        ["rule", "λ"],
        [
            Entry(
                (RULES[rule], f"{penalty:g}"),
                Setting(rule, penalty=penalty, epochs=SHORT),
                figures("lambda-sweep", rule, penalty=penalty),
            )
            for rule, penalties in SWEEP.items()
            for penalty in penalties
        ],
        ["acc", "depth", "depth_bp", "h_norm", "g_norm", "growth", "deep_cosine", "perturbation", "three", "four"],
        ["001 gives DFA without a penalty after 100 epochs"],
    )


def paired(a: Sequence[Record], b: Sequence[Record]) -> Stat | None:
    """The second minus the first in percentage points, seed by seed."""
    other = {run.spec.seed: run.accuracy for run in b}
    return stat(100 * (other[run.spec.seed] - run.accuracy) for run in a if run.spec.seed in other)


def capacity(records: Records) -> Table:
    """2 × 2: does the penalty cost capacity, or is the credit poor?"""
    rows, missing, kinds = [], [], set()
    cells = [Setting(rule, penalty=p, epochs=SHORT) for rule in ("bp", "dfa") for p in (0.0, RESCUE)]
    for flag in variants(records, cells):
        penalised = {}
        for rule in ("bp", "dfa"):
            without, rescued = (Setting(rule, penalty=p, epochs=SHORT, augment=flag) for p in (0.0, RESCUE))
            missing += [*lacking(records, without, controls=False), *lacking(records, rescued)]
            runs, penalised[rule] = select(records, without), select(records, rescued)
            j = judged(records, rescued)
            effect = paired(runs, penalised[rule])
            for what, name, value, kind in (
                ("acc.without", "accuracy without a penalty", stat(r.accuracy for r in runs), "acc"),
                ("acc.with", "accuracy with λ = 0.01", stat(r.accuracy for r in penalised[rule]), "acc"),
                ("margin.effect", "effect of the penalty, pp", effect, "pp"),
            ):
                said = figures("capacity", rule, what=what)
                kinds |= {f.kind for f in said}
                label = [OURS[flag], RULES[rule], name, _n(value)]
                rows.append(compare(label, spread(value, kind), value.mean if value else None, said))
            said = figures("capacity", rule, what="margin.frozen")
            label = [
                OURS[flag],
                RULES[rule],
                "with λ = 0.01, over frozen blocks, pp",
                Cell(str(j.paired[0]), j.paired[0]),
            ]
            rows.append(compare(label, depth_cell(j), j.depth.value if j.depth else None, said))
        gap = paired(penalised["dfa"], penalised["bp"])
        said = figures("capacity", "", what="margin.gap")
        label = [OURS[flag], "BP − DFA", "gap that is left with λ = 0.01, pp", _n(gap)]
        rows.append(compare(label, spread(gap, "pp"), gap.mean if gap else None, said))
    return table(
        "capacity",
        "Capacity control: BP and DFA with and without the penalty, ResMLP d=256 L=4, CIFAR-10, 30 epochs",
        ["figures", "rule", "quantity", "n", "ours", "published", "agrees?"],
        rows,
        [
            "differences are taken seed by seed",
            "001 takes the runs without a penalty from 100 epochs and those with one from 30",
            *rules(kinds | {"pp"}),
        ],
        commands(missing, records.store),
    )


def _n(value: Stat | None) -> Cell:
    return Cell(str(value.n if value else 0), value.n if value else 0)


def fresh_feedback(records: Records) -> Table:
    """Is the alignment specific to the feedback the network was trained with?"""
    rows, missing, kinds = [], [], set()
    cells = [Setting("dfa", penalty=RESCUE, epochs=SHORT), Setting("dfa"), Setting("fa", penalty=RESCUE, epochs=SHORT)]
    cells.append(Setting("fa"))
    for base in cells:
        for flag in variants(records, [s for s in cells if s.epochs == base.epochs]):
            setting = Setting(base.rule, penalty=base.penalty, epochs=base.epochs, augment=flag)
            missing += lacking(records, setting, controls=False)
            runs = {run.spec.seed: run for run in select(records, setting)}
            for seed in sorted({*SEEDS, *runs}):
                for what in ("deep_cosine", "gamma"):
                    label = [RULES[base.rule], f"{base.penalty:g}", str(base.epochs), OURS[flag], Cell(str(seed), seed)]
                    said = [
                        f for f in figures("fresh-feedback", base.rule, penalty=base.penalty) if f.seed in (None, seed)
                    ]
                    kinds |= {f.kind for f in said}
                    rows.append([*label, *_fresh(runs.get(seed), what, said)])
    return table(
        "fresh-feedback",
        "Fresh feedback: the same network with its feedback drawn anew, 20 draws",
        (
            "rule | λ | epochs | figures | seed | quantity | trained feedback | published trained | draws | fresh "
            "feedback | published fresh | σ apart | published σ | agrees?"
        ),
        rows,
        [
            "fresh feedback: mean ± std over the draws; σ apart: (trained − mean) / std",
            "ResMLP d=256 L=4, CIFAR-10",
            *rules(kinds),
        ],
        commands(missing, records.store),
    )


def _fresh(run: Record | None, what: str, said: Sequence[Figure]) -> list[Cell | str]:
    null = (run.report.run.get("fresh_feedback") or {}) if run else {}
    trained, found = VALUES[what](run) if run else None, null.get(what)
    apart = None
    if found and trained is not None and found["std"] > 0:
        apart = (trained - found["mean"]) / found["std"]
    names = {"trained": what, "fresh": f"fresh.{what}", "sigma": f"sigma.{what}"}
    by = {part: [f for f in said if f.what == name] for part, name in names.items()}
    answers = {
        "trained": agrees_any(trained, by["trained"]),
        "fresh": agrees_any(found["mean"] if found else None, by["fresh"]),
        "σ": agrees_any(apart, by["sigma"]),
    }
    fresh = Cell(NONE)
    if found:
        fresh = Cell(f"{number(found['mean'], 'cos')} ± {found['std']:.3f}", found)
    return [
        {"deep_cosine": "deep cos", "gamma": "Γ"}[what],
        spread(stat([trained]), "cos"),
        published(by["trained"]),
        Cell(str(null.get("draws", 0)), null.get("draws", 0)),
        fresh,
        published(by["fresh"]),
        Cell(NONE) if apart is None else Cell(f"{apart:+.1f}", apart),
        published(by["sigma"]),
        answer(answers),
    ]


def deep_control(run: Record, name: str) -> float | None:
    """A control of the perturbation probe, averaged over the deep sites."""
    values = run.report.controls.get(name)
    return None if values is None else mean([values[site] for site in deep_sites(run.measurements.cosine)])


Value = Callable[[Record], float | None]


def conditions(records: Records, augment: bool) -> list[tuple[str, str, list, list, dict[int, Measurements]]]:
    """(name, key, deep cosines, ρ_pert, measurements by seed) of the conditions of the two-mode argument."""
    bp, dfa = select(records, Setting("bp", augment=augment)), select(records, Setting("dfa", augment=augment))
    rescued = select(records, Setting("dfa", penalty=RESCUE, epochs=SHORT, augment=augment))
    early = {run.spec.seed: run.epochs[1][2] for run in early_runs(records, augment, 1)}
    first = select(records, Setting("dfa", epochs=1, augment=augment))
    cosine: Value = VALUES["deep_cosine"]
    rho: Value = VALUES["perturbation"]
    return [
        (
            "BP gradient on a BP network",
            "positive",
            [cosine(r) for r in bp],
            [deep_control(r, "perturbation_bp") for r in bp],
            _last(bp),
        ),
        (
            "random vector on a BP network",
            "negative",
            [],
            [deep_control(r, "perturbation_random") for r in bp],
            _last(bp),
        ),
        ("DFA, epoch 1", "early", [m.deep_cosine for m in early.values()], [rho(r) for r in first], early),
        (
            "DFA, 100 epochs",
            "converged",
            [cosine(r) for r in dfa],
            [rho(r) for r in dfa],
            _last(dfa),
        ),
        (
            "DFA, λ = 0.01, 30 epochs",
            "penalised",
            [cosine(r) for r in rescued],
            [rho(r) for r in rescued],
            _last(rescued),
        ),
    ]


def _last(runs: Sequence[Record]) -> dict[int, Measurements]:
    return {run.spec.seed: run.measurements for run in runs}


def needed(records: Records, augment: bool) -> list:
    """The specs that `conditions` lacks."""
    out = []
    for setting in (Setting("bp"), Setting("dfa"), Setting("dfa", epochs=1)):
        out += lacking(records, Setting(setting.rule, epochs=setting.epochs, augment=augment), controls=False)
    return out + lacking(records, Setting("dfa", penalty=RESCUE, epochs=SHORT, augment=augment), controls=False)


SETTINGS = [Setting("dfa"), Setting("bp"), Setting("dfa", penalty=RESCUE, epochs=SHORT), Setting("dfa", epochs=1)]


def triangulation(records: Records) -> Table:
    """A second metric beside the cosine, with its positive and its negative control."""
    rows, missing, kinds = [], [], set()
    for flag in variants(records, SETTINGS):
        missing += needed(records, flag)
        for name, key, cosines, rhos, at in conditions(records, flag):
            rule = "bp" if key in ("positive", "negative") else "dfa"
            said = {w: figures("triangulation", rule, what=f"{w}.{key}") for w in ("deep_cosine", "perturbation")}
            kinds |= {f.kind for group in said.values() for f in group}
            cosine, rho = stat(cosines), stat(rhos)
            found = {
                "deep cos": agrees_any(cosine.mean if cosine else None, said["deep_cosine"]),
                "ρ_pert": agrees_any(rho.mean if rho else None, said["perturbation"]),
            }
            rows.append(
                [
                    name,
                    OURS[flag],
                    _n(cosine),
                    spread(cosine, "cos"),
                    published(said["deep_cosine"]),
                    _n(rho),
                    spread(rho, "cos"),
                    published(said["perturbation"]),
                    _valid(list(at.values())),
                    answer(found),
                ]
            )
    return table(
        "triangulation",
        "Cosine and perturbation correlation on the deep sites, with controls: ResMLP d=256 L=4, CIFAR-10",
        (
            "condition | figures | n | deep cos | published deep cos | n of ρ_pert | ρ_pert | published ρ_pert | "
            "reference valid | agrees?"
        ),
        rows,
        [
            "with isotropic directions and a small step ρ_pert estimates the same angle as the cosine: the two agree "
            "by construction, and are no independent evidence",
            "reference valid: runs whose ‖g_L‖ is above the floor of D2",
            *rules(kinds),
        ],
        commands(missing, records.store),
    )


def _valid(at: Sequence) -> Cell:
    floor = DiagnosticThresholds().g_norm_floor
    valid = sum(reference_validity("D2", m, floor).flagged is False for m in at)
    return Cell(f"{valid}/{len(at)}" if at else NONE, valid if at else None)


# -- rankings --------------------------------------------------------------------------------------------------

MATCHED = ("state-bridge", "fa", "credit-bridge", "dfa")
# Quantity -> (head, kind, sign that makes larger better).
FUNCTIONAL = {
    "acc": ("acc", "acc", 1),
    "nudging": ("nudge", "norm", -1),
    "nudging_relative": ("nudge, relative", "norm", -1),
    "train_loss_delta": ("Δ train loss", "cos", -1),
}
TAU = (
    "Kendall's τ agrees within 0.34, taken over the rules that both have: one swapped pair of the six changes it by a "
    "third"
)


def ranking(values: dict[str, float]) -> str:
    """Names from the best down.

    >>> ranking({"fa": 0.4, "dfa": 0.1, "state-bridge": 0.3, "bp": 0.3})
    'FA > BP = State Bridge > DFA'
    """
    best = sorted(values, key=lambda r: (-values[r], r))
    return " > ".join(" = ".join(RULES[r] for r in tied) for _, tied in groupby(best, values.__getitem__))


def tau(a: dict[str, float], b: dict[str, float]) -> float | None:
    """Kendall's τ-b of two rankings, of what is in both; None for fewer than three.

    >>> tau({"bp": 3.0, "fa": 2.0, "dfa": 1.0}, {"bp": 1.0, "fa": 2.0, "dfa": 3.0})
    -1.0
    """
    from scipy.stats import kendalltau

    both = sorted(set(a) & set(b))
    if len(both) < 3:
        return None
    value = float(kendalltau([a[k] for k in both], [b[k] for k in both])[0])  # type: ignore[arg-type]
    return value if value == value else None


def matched_penalty(records: Records) -> Table:
    """Under one penalty: does the cosine rank rules as their function does?"""
    rows, missing, kinds = [], [], set()
    cells = {rule: Setting(rule, penalty=RESCUE, epochs=SHORT) for rule in MATCHED}
    theirs = {
        what: {rule: _one(figures("matched-penalty", rule, what=what)) for rule in MATCHED}
        for what in ("deep_cosine", "acc", "nudging", "train_loss_delta")
    }
    heads = ("deep_cosine", *FUNCTIONAL)
    for flag in variants(records, cells.values()):
        means: dict[str, dict[str, float]] = {what: {} for what in heads}
        for rule in MATCHED:
            setting = Setting(rule, penalty=RESCUE, epochs=SHORT, augment=flag)
            missing += lacking(records, setting, controls=False)
            j = judged(records, setting)
            found, line, said_line = {}, [], []
            for what in heads:
                head, kind, _ = FUNCTIONAL.get(what, ("deep cos", "cos", 1))
                ours, said = j.stat(what), figures("matched-penalty", rule, what=what)
                kinds |= {f.kind for f in said}
                if ours is not None:
                    means[what][rule] = ours.mean
                found[head] = agrees_any(ours.mean if ours else None, said)
                line.append(spread(ours, kind))
                said_line.append(published(said))
            rows.append([RULES[rule], OURS[flag], Cell(str(len(j.runs)), len(j.runs)), *line, answer(found)])
            rows.append([RULES[rule], "published", NONE, *said_line, NONE])
        rows += _ranks(OURS[flag], means, theirs)
    names = ["deep cos", *(FUNCTIONAL[what][0] for what in FUNCTIONAL)]
    return table(
        "matched-penalty",
        "Matched penalty λ = 0.01: the cosine's ranking against what credit does; ResMLP d=256 L=4, 30 epochs",
        ["rule", "figures", "n", *names, "agrees?"],
        rows,
        [
            "nudge: change of the test loss after a step of 0.01 along the credit of one deep site, averaged; "
            "relative: 0.01 of the state's norm; Δ train loss: last epoch minus first",
            "τ: Kendall's τ-b between the ranking by deep cosine and the one by the column's quantity, all signed so "
            "that better is larger",
            *rules(kinds),
            TAU,
        ],
        commands(missing, records.store),
    )


def _one(said: Sequence[Figure]) -> float:
    return said[0].number


def _ranks(figure: str, means: dict[str, dict[str, float]], theirs: dict[str, dict[str, float]]) -> list[list]:
    def ranked(values: dict[str, dict[str, float]], what: str) -> dict[str, float]:
        sign = FUNCTIONAL[what][2] if what in FUNCTIONAL else 1
        return {rule: sign * v for rule, v in values.get(what, {}).items()}

    order, taus, found = [], [], {}
    for what in ("deep_cosine", *FUNCTIONAL):
        ours, said = ranked(means, what), ranked(theirs, what)
        like = {rule: v for rule, v in said.items() if rule in ours}  # τ of the rules that both have
        order.append(ranking(ours) if len(ours) > 1 else NONE)
        if what == "deep_cosine":
            found["ranking by cosine"] = ranking(ours) == ranking(said) if len(ours) == len(MATCHED) else None
            taus.append((None, None))
        else:
            taus.append((tau(ranked(means, "deep_cosine"), ours), tau(ranked(theirs, "deep_cosine"), said)))
            a, b = taus[-1][0], tau(ranked(theirs, "deep_cosine"), like)
            if a is not None and b is not None:
                found[FUNCTIONAL[what][0]] = abs(a - b) <= 0.34
    n = str(len(means["deep_cosine"]))
    said_order = [ranking(ranked(theirs, what)) if what in theirs else NONE for what in ("deep_cosine", *FUNCTIONAL)]
    return [
        ["ranking", figure, n, *order, answer({"ranking": found.pop("ranking by cosine")})],
        ["ranking", "published", NONE, *said_order, NONE],
        ["τ with the cosine", figure, n, *(_tau(a) for a, _ in taus), answer(found)],
        ["τ with the cosine", "published", NONE, *(_tau(b) for _, b in taus), NONE],
    ]


def _tau(value: float | None) -> Cell:
    return Cell(NONE) if value is None else Cell(f"{value:+.2f}", value)
