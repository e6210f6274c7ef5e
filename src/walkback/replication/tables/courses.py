"""The course of training: when the checks fire, what grows, and what credit is worth before anything collapses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from walkback.audit.records import Record, Records
from walkback.audit.settings import (
    RULES,
    Setting,
    commands,
    lacking,
    norm_product,
    norm_products,
    select,
    weight_growth,
    weight_growths,
)
from walkback.measures.accumulate import deep_sites
from walkback.replication.agree import agrees_any, answer, published
from walkback.replication.published import LARGE_BATCH, PUBLISHED_BATCH, Figure, figures
from walkback.replication.tables.audits import networks
from walkback.replication.tables.build import OURS, of_length, rules, variants
from walkback.report.table import NONE, Cell, Stat, Table, number, spread, stat, table
from walkback.verdict.checks import DiagnosticThresholds, direction_stability, reference_validity, scale_stability

EARLY = (1, 2, 3, 4, 5)
# The papers replayed ‖g‖ of a mean loss over about 1024 samples: their floor of 1e-7 is 8e-7 in ours.
_LARGE = DiagnosticThresholds(g_norm_floor=1e-7 * LARGE_BATCH / PUBLISHED_BATCH)
EPOCHS = (*range(10), *range(10, 101, 10))


def first_epochs(run: Record, thresholds: DiagnosticThresholds | None = None) -> dict[str, int | None]:
    """The first epoch at which (a), (b), one of them, and both flag; None for never.

    (a) and (b) are D1 and D2 as well: in float32 their limits are the same.
    """
    t = thresholds or DiagnosticThresholds()
    first: dict[str, int | None] = dict.fromkeys(("a", "b", "either", "both"))
    for epoch, _, m in run.epochs:
        a, b = scale_stability("a", m, t).flagged, reference_validity("b", m, t.g_norm_floor).flagged
        for name, flags in (("a", a), ("b", b), ("either", a or b), ("both", a and b)):
            if flags and first[name] is None:
                first[name] = epoch
    return first


class Moment(NamedTuple):
    """One epoch of a setting over its seeds; 0 is the initialisation."""

    epoch: int
    acc: Stat | None
    h_norm: Stat | None
    g_norm: Stat | None


def course(runs: Sequence[Record]) -> list[Moment]:
    """Accuracy, ‖h_L‖ and ‖g_L‖ along training; a run that ended early is in the epochs it has."""
    out = []
    for epoch in range(max((len(run.epochs) for run in runs), default=0)):
        at = [run.epochs[epoch] for run in runs if epoch < len(run.epochs)]
        out.append(
            Moment(
                at[0][0],
                stat(acc for _, acc, _ in at),
                stat(m.h_norm[-1] if m.h_norm else None for *_, m in at),
                stat(m.g_norm[-1] if m.g_norm else None for *_, m in at),
            )
        )
    return out


def _span(epochs: Sequence[int | None]) -> Cell:
    """3–4, never, or both with how many seeds never fired."""
    known = sorted(e for e in epochs if e is not None)
    if not epochs:
        return Cell(NONE)
    if not known:
        return Cell("never", list(epochs))
    span = str(known[0]) if known[0] == known[-1] else f"{known[0]}–{known[-1]}"
    never = len(epochs) - len(known)
    return Cell(span + (f", never on {never}" if never else ""), list(epochs))


def _typical(epochs: Sequence[int | None]) -> float | str | None:
    known = [e for e in epochs if e is not None]
    if not epochs:
        return None
    if not known:
        return "never"
    return sum(known) / len(known) if len(known) == len(epochs) else "mixed"


def temporal(records: Records) -> Table:
    """Replay: the first epoch each check fires, the accuracy then, and the compute that stopping would save."""
    rows, missing, kinds = [], [], set()
    for label, base, _, network in networks(records):
        where = "temporal" if network == "resmlp" else f"temporal-{network}"
        name = label + (" without terminal LN" if network == "no-norm" else "")
        name += f" on {base.data}" if base.net == "student" else ""
        wanted = {rule for rule in RULES if figures(where, rule) or network == "resmlp"} | {"bp", "fa", "dfa"}
        for flag in variants(records, [replace(base, rule=rule) for rule in RULES]):
            for rule in RULES:
                setting = replace(base, rule=rule, augment=flag)
                runs, said = select(records, setting), figures(where, rule)
                if runs or rule in wanted:
                    missing += lacking(records, setting)
                    kinds |= {f.kind for f in said}
                    controls = [records.control(run) for run in runs]
                    rows.append(
                        [name, RULES[rule], OURS[flag], *_replay(runs, controls, of_length(said, setting, runs))]
                    )
    return table(
        "temporal",
        "Temporal replay: first epoch each check fires, the accuracy then, the compute saved by stopping there",
        (
            "network | rule | figures | n | epochs | (a), D1 | published (a) | (b), D2 | (b) at 8e-7 | published "
            "(b) | D1 and D2 | (c) beside (a) or (b) | (d), D3 to the end | acc at first flag | published acc | "
            "final acc | saved, a or b | published saved | saved, D1 and D2 | agrees?"
        ),
        rows,
        [
            "epoch 0 is the initialisation; first to last over seeds",
            "(c) names the kind of a failure, so it counts where (a) or (b) flags as well; (d), D3: the first epoch "
            "from which the gain over the matched control in the same epoch stays under 2 pp to the end, by its value "
            "alone (early on every rule is close to its control); – without a control",
            "the published replay has ‖g‖ of a mean loss over about 1024 samples, where the floor of 1e-7 is 8e-7 in "
            "ours: its (b) is compared with that column, its accuracy and compute saved with ours at that floor",
            "saved: 1 − first epoch / epochs, stopping where (a) or (b) first flags (four-diagnostic) or where both do "
            "(three-check); a seed on which they never do saves nothing, and – is where no seed does",
            *rules(kinds),
        ],
        commands(missing, records.store),
    )


def useless_from(run: Record, control: Record | None, thresholds: DiagnosticThresholds | None = None) -> int | None:
    """The first epoch from which the gain over the control's same epoch stays under the margin; None for never."""
    if control is None:
        return None
    margin = (thresholds or DiagnosticThresholds()).frozen_acc_margin_pp
    theirs = {epoch: acc for epoch, acc, _ in control.epochs}
    first = None
    for epoch, acc, _ in reversed(run.epochs):
        if epoch not in theirs or round(100 * (acc - theirs[epoch]), 10) >= margin:
            break
        first = epoch
    return first


def _drift(run: Record) -> int | None:
    """The first epoch at which (c) flags beside (a) or (b)."""
    t = DiagnosticThresholds()
    for epoch, _, m in run.epochs:
        failed = scale_stability("a", m, t).flagged or reference_validity("b", m, t.g_norm_floor).flagged
        if failed and direction_stability("c", m, t).flagged:
            return epoch
    return None


def _replay(runs: Sequence[Record], controls: Sequence[Record | None], said: Sequence[Figure]) -> list[Cell | str]:
    first = [first_epochs(run) for run in runs]
    at = {name: [f[name] for f in first] for name in ("a", "b", "either", "both")}
    large = [first_epochs(run, _LARGE) for run in runs]
    at |= {"large": [f["b"] for f in large], "either, large": [f["either"] for f in large]}
    saved = {
        name: stat(1 - e / run.spec.epochs if e is not None else 0.0 for e, run in zip(at[name], runs))
        for name in ("either", "both", "either, large")
        if any(e is not None for e in at[name])
    }
    then, alike = (stat(_accuracy_at(run, e) for run, e in zip(runs, at[name])) for name in ("either", "either, large"))
    theirs = saved.get("either, large")
    by = {what: [f for f in said if f.what == what] for what in ("fired.a", "fired.b", "acc", "saved")}
    found = {
        "(a)": agrees_any(_typical(at["a"]), by["fired.a"]),
        "(b)": agrees_any(_typical(at["large"]), by["fired.b"]),
        "acc": agrees_any(alike.mean if alike else None, by["acc"]),
        "saved": agrees_any(theirs.mean if theirs else None, by["saved"]),
    }
    epochs = sorted({run.spec.epochs for run in runs})
    return [
        Cell(str(len(runs)), len(runs)),
        ", ".join(map(str, epochs)) or NONE,
        _span(at["a"]),
        published(by["fired.a"]),
        _span(at["b"]),
        _span(at["large"]),
        published(by["fired.b"]),
        _span(at["both"]),
        _span([_drift(run) for run in runs]),
        _span([useless_from(run, control) for run, control in zip(runs, controls) if control is not None]),
        spread(then, "acc"),
        published(by["acc"]),
        spread(stat(run.accuracy for run in runs), "acc"),
        spread(saved.get("either"), "acc"),
        published(by["saved"]),
        spread(saved.get("both"), "acc"),
        answer(found),
    ]


def _accuracy_at(run: Record, epoch: int | None) -> float | None:
    return next((acc for e, acc, _ in run.epochs if e == epoch), None)


def mechanism(records: Records) -> Table:
    """Stream, gradient, weight movement and norm products along training."""
    rows, missing, kinds = [], [], set()
    for rule, name in RULES.items():
        for flag in variants(records, [Setting(r) for r in RULES]):
            setting = Setting(rule, augment=flag)
            runs = select(records, setting)
            missing += lacking(records, setting, controls=False)
            for epoch in EPOCHS:
                at = [([r.initial, *r.rows][epoch], r.epochs[epoch][2]) for r in runs if epoch <= len(r.rows)]
                said = figures("mechanism", rule, epoch=epoch)
                if not at and not said:
                    continue
                ours = {
                    "h_norm": stat(m.h_norm[-1] if m.h_norm else None for _, m in at),
                    "g_norm": stat(m.g_norm[-1] if m.g_norm else None for _, m in at),
                    "weight_growth": stat(weight_growth(row) for row, _ in at),
                    "norm_product": stat(norm_product(row) for row, _ in at),
                }
                by = {what: [f for f in said if f.what == what] for what in ours}
                kinds |= {f.kind for f in said}
                found = {w: agrees_any(s.mean if s else None, by[what]) for (what, s), w in zip(ours.items(), _HEADS)}
                cells = [c for what, s in ours.items() for c in (spread(s, "norm"), published(by[what]))]
                spectral = spread(stat(norm_product(row, "spectral") for row, _ in at), "norm")
                blocks = [_by_block([of(row) for row, _ in at]) for of in (weight_growths, norm_products)]
                label = [name, OURS[flag], Cell(str(epoch), epoch), Cell(str(len(at)), len(at))]
                rows.append([*label, *cells, spectral, *blocks, answer(found)])
    heads = [head for what in _HEADS for head in (what, f"published {what}")]
    return table(
        "mechanism",
        "Mechanism: ResMLP d=256 L=4 on CIFAR-10, the stream, its gradient and the blocks' weights along training",
        [
            *("rule", "figures", "epoch", "n"),
            *heads,
            *("product, spectral", "weights by block", "product by block", "agrees?"),
        ],
        rows,
        [
            "weights: ‖w − w₀‖/‖w₀‖ averaged over the weights of all blocks; product: of a block's two weight norms "
            "(Frobenius, beside it spectral), its geometric mean over blocks; by block: from the first to the last, "
            "the mean over seeds",
            "every epoch is in the figures temporal-plain and temporal-augmented and in the runs' trajectory.jsonl",
            *rules(kinds),
        ],
        commands(missing, records.store),
    )


def _by_block(seeds: Sequence[list[float]]) -> Cell:
    """The mean over seeds of each block's number, as 1.1e6, 1.5e5."""
    means = [sum(values) / len(values) for values in zip(*seeds)]
    return Cell(", ".join(number(m, "norm") for m in means) or NONE, means or None)


_HEADS = ("‖h_L‖", "‖g_L‖", "weights", "product")


def early_runs(records: Records, augment: bool, epoch: int) -> tuple[Record, ...]:
    """DFA without a penalty, one run per seed that shows this epoch: of 30 epochs, else of 100.

    The first epoch is the same whatever the length of a run (later ones differ in their rate), so there a run of one
    epoch will do as well.
    """
    by_seed: dict[int, Record] = {}
    for epochs in (1, 100, 30) if epoch == 1 else (100, 30):
        by_seed |= {run.spec.seed: run for run in select(records, Setting("dfa", epochs=epochs, augment=augment))}
    return tuple(run for _, run in sorted(by_seed.items()) if len(run.rows) >= epoch)


def early_epochs(records: Records) -> Table:
    """Is credit poor before the reference collapses? DFA in its first epochs."""
    rows, missing, kinds = [], [], set()
    shown = [Setting("dfa", epochs=e) for e in (30, 100, 1)]
    for flag in variants(records, shown):
        covered = {run.spec.seed for run in early_runs(records, flag, max(EARLY))}
        longer = lacking(records, Setting("dfa", epochs=30, augment=flag), controls=False)
        missing += [spec for spec in longer if spec.seed not in covered]
        missing += lacking(records, Setting("dfa", epochs=1, augment=flag), controls=False)
        for epoch in EARLY:
            at = [run.epochs[epoch][2] for run in early_runs(records, flag, epoch)]
            short = select(records, Setting("dfa", epochs=1, augment=flag)) if epoch == 1 else ()
            cosines = [m.cosine[site] for m in at for site in deep_sites(m.cosine)]
            known = [c for c in cosines if c is not None]
            said = figures("early-epochs", "dfa", epoch=epoch)
            kinds |= {f.kind for f in said}
            ours: dict[str, Stat | None] = {
                "deep_cosine": stat(m.deep_cosine for m in at),
                "perturbation": stat(run.report.values.get("deep_perturbation") for run in short),
                "g_norm": stat(m.g_norm[-1] if m.g_norm else None for m in at),
                "cosine.first": stat(m.cosine[0] if m.cosine else None for m in at),
            }
            by = {what: [f for f in said if f.what == what] for what in (*ours, "cosine.range")}
            found = {
                head: agrees_any(ours[what].mean if ours[what] else None, by[what])  # type: ignore[union-attr]
                for what, head in zip(ours, ("deep cos", "ρ_pert", "‖g_L‖", "cos of site 0"))
            }
            floor = DiagnosticThresholds().g_norm_floor
            valid = sum(reference_validity("D2", m, floor).flagged is False for m in at)
            span = f"{number(min(known), 'cos')}…{number(max(known), 'cos')}" if known else NONE
            cells: list[Cell | str] = []
            for what, value in ours.items():
                cells += [spread(value, "norm" if what == "g_norm" else "cos"), published(by[what])]
            rows.append(
                [
                    OURS[flag],
                    Cell(str(epoch), epoch),
                    Cell(str(len(at)), len(at)),
                    *cells[:2],
                    Cell(span, [min(known), max(known)] if known else None),
                    published(by["cosine.range"]),
                    Cell(str(len(short)), len(short)),
                    *cells[2:],
                    Cell(f"{valid}/{len(at)}" if at else NONE, valid),
                    answer(found),
                ]
            )
    return table(
        "early-epochs",
        "Early epochs of DFA without a penalty: is credit poor while the reference is still healthy?",
        (
            "figures | epoch | n | deep cos | published deep cos | range over sites and seeds | published range | "
            "n of ρ_pert | ρ_pert | published ρ_pert | ‖g_L‖ | published ‖g_L‖ | cos of site 0 | published cos of "
            "site 0 | reference valid | agrees?"
        ),
        rows,
        [
            "cosines and ‖g_L‖ along the trajectory of each seed's 30-epoch run (else its 100-epoch one; epoch 1 also "
            "of a run of one epoch, which is the same as the first of a longer one)",
            "ρ_pert is measured after a run's last epoch: runs of one epoch have it for epoch 1",
            "the range over sites and seeds is shown and not judged: it widens with the number of seeds",
            *rules(kinds),
        ],
        commands(missing, records.store),
    )
