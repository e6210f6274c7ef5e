"""The course of training: when the checks fire, what grows, and what credit is worth before anything collapses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import geometric_mean
from typing import Any, NamedTuple

from walkback.audit.records import Record, Records
from walkback.audit.settings import RULES, Setting, last, select
from walkback.audit.wording import lacking
from walkback.measures.over_sites import deep_sites, mean
from walkback.replication.published import LARGE_BATCH, PUBLISHED_BATCH, Figure, figures
from walkback.replication.tables.audits import networks
from walkback.replication.tables.build import (
    AGREES,
    OURS,
    THREE,
    Against,
    Draft,
    accuracies,
    against,
    among,
    count,
    evidence_table,
    of_length,
    valid_cell,
)
from walkback.report.table import NONE, Cell, Stat, number, spread, stat
from walkback.verdict.checks import DiagnosticThresholds, direction_stability, reference_validity, scale_stability

EARLY = (1, 2, 3, 4, 5)
# The papers replayed ‖g‖ of a mean loss over about 1024 samples: their floor of 1e-7 is 8e-7 in ours.
LARGE = DiagnosticThresholds(g_norm_floor=1e-7 * LARGE_BATCH / PUBLISHED_BATCH)
EPOCHS = (*range(10), *range(10, 101, 10))


def first_epochs(run: Record, thresholds: DiagnosticThresholds | None = None) -> dict[str, int | None]:
    """Return the first epoch at which (a), (b), one of them, and both flag; None for never.

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
    """Return accuracy, ‖h_L‖ and ‖g_L‖ along training; a run that ended early is in the epochs it has."""
    out = []
    for epoch in range(max((len(run.epochs) for run in runs), default=0)):
        at = [run.epochs[epoch] for run in runs if epoch < len(run.epochs)]
        acc, h, g = (stat(values) for values in zip(*((acc, last(m.h_norm), last(m.g_norm)) for _, acc, m in at)))
        out.append(Moment(at[0][0], acc, h, g))
    return out


def span(epochs: Sequence[int | None]) -> Cell:
    """Return 3–4, never, or both with how many seeds never fired."""
    known = sorted(e for e in epochs if e is not None)
    if not epochs:
        return Cell(NONE)
    if not known:
        return Cell("never", list(epochs))
    span = str(known[0]) if known[0] == known[-1] else f"{known[0]}–{known[-1]}"
    never = len(epochs) - len(known)
    return Cell(span + (f", never on {never}" if never else ""), list(epochs))


def typical(epochs: Sequence[int | None]) -> float | str | None:
    """Return the mean epoch, never, or mixed where some seeds never fire."""
    known = [e for e in epochs if e is not None]
    if not epochs:
        return None
    if not known:
        return "never"
    return sum(known) / len(known) if len(known) == len(epochs) else "mixed"


@evidence_table(
    60,
    "Temporal replay: first epoch each check fires, the accuracy then, the compute saved by stopping there",
    "network | rule | figures | n | epochs | (a), D1 | published (a) | (b), D2 | (b) at 8e-7 | published (b) | "
    "D1 and D2 | (c) beside (a) or (b) | (d), D3 to the end | acc at first flag | published acc | final acc | "
    "saved, a or b | published saved | saved, D1 and D2 | agrees?",
    "epoch 0 is the initialisation; first to last over seeds",
    "(c) names the kind of a failure, so it counts where (a) or (b) flags as well; (d), D3: the first epoch "
    "from which the gain over the matched control in the same epoch stays under 2 pp to the end, by its value "
    "alone (early on every rule is close to its control); – without a control",
    "the published replay has ‖g‖ of a mean loss over about 1024 samples, where the floor of 1e-7 is 8e-7 in "
    "ours: its (b) is compared with that column, its accuracy and compute saved with ours at that floor",
    "saved: 1 − first epoch / epochs, stopping where (a) or (b) first flags (four-diagnostic) or where both do "
    "(three-check); a seed on which they never do saves nothing, and – is where no seed does",
    AGREES,
)
def temporal(t: Draft) -> None:
    """Replay: the first epoch each check fires, the accuracy then, and the compute that stopping would save."""
    for label, base, _, network in networks(t.records):
        where = "temporal" if network == "resmlp" else f"temporal-{network}"
        name = label + (" without terminal LN" if network == "no-norm" else "")
        name += f" on {base.data}" if base.net == "student" else ""
        for flag in t.variants(replace(base, rule=rule) for rule in RULES):
            for rule in RULES:
                setting, printed = replace(base, rule=rule, augment=flag), figures(where, rule)
                runs = select(t.records, setting)
                if runs or printed or network == "resmlp" or rule in THREE:
                    t.lack(setting)
                    replay = _replay(t.records, runs, of_length(printed, setting, runs))
                    t.row(name, RULES[rule], OURS[flag], *replay)


def no_gain_from(run: Record, control: Record | None) -> int | None:
    """Return the first epoch from which the gain over the control's same epoch stays under the margin, or None."""
    if control is None:
        return None
    margin = DiagnosticThresholds().frozen_acc_margin_pp
    theirs = {epoch: acc for epoch, acc, _ in control.epochs}
    first = None
    for epoch, acc, _ in reversed(run.epochs):
        if epoch not in theirs or round(100 * (acc - theirs[epoch]), 10) >= margin:
            break
        first = epoch
    return first


def _drift(run: Record) -> int | None:
    """Return the first epoch at which (c) flags beside (a) or (b)."""
    t = DiagnosticThresholds()
    for epoch, _, m in run.epochs:
        failed = scale_stability("a", m, t).flagged or reference_validity("b", m, t.g_norm_floor).flagged
        if failed and direction_stability("c", m, t).flagged:
            return epoch
    return None


def _replay(records: Records, runs: Sequence[Record], printed: Sequence[Figure]) -> list[Cell | str | Against]:
    first, large = ([first_epochs(run, limits) for run in runs] for limits in (None, LARGE))
    at = {name: [f[name] for f in first] for name in ("a", "b", "either", "both")}
    at |= {"large": [f["b"] for f in large], "either, large": [f["either"] for f in large]}
    saved = {
        name: stat(1 - e / run.spec.epochs if e is not None else 0.0 for e, run in zip(at[name], runs))
        for name in ("either", "both", "either, large")
        if any(e is not None for e in at[name])
    }
    then, alike = (stat(accuracy_at(run, e) for run, e in zip(runs, at[name])) for name in ("either", "either, large"))
    theirs = saved.get("either, large")
    pairs = [(run, control) for run in runs if (control := records.control(run)) is not None]
    return [
        count(len(runs)),
        ", ".join(map(str, sorted({run.spec.epochs for run in runs}))) or NONE,
        Against("(a)", span(at["a"]), typical(at["a"]), among(printed, "fired.a")),
        span(at["b"]),
        Against("(b)", span(at["large"]), typical(at["large"]), among(printed, "fired.b")),
        span(at["both"]),
        span([_drift(run) for run in runs]),
        span([no_gain_from(run, control) for run, control in pairs]),
        Against("acc", spread(then, "acc"), alike and alike.mean, among(printed, "acc")),
        spread(accuracies(runs), "acc"),
        Against("saved", spread(saved.get("either"), "acc"), theirs and theirs.mean, among(printed, "saved")),
        spread(saved.get("both"), "acc"),
    ]


def accuracy_at(run: Record, epoch: int | None) -> float | None:
    """Return the accuracy after an epoch; None where a run does not have it."""
    return next((acc for e, acc, _ in run.epochs if e == epoch), None)


def weight_growths(row: dict[str, Any]) -> list[float]:
    """Return ‖w − w₀‖/‖w₀‖ of every block, averaged over its weights; [] where one is not known."""
    blocks = [mean(block) for block in (row.get("weights") or {}).get("growth", [])]
    return [] if None in blocks else blocks  # type: ignore[return-value]


def norm_products(row: dict[str, Any], norm: str = "frobenius") -> list[float]:
    """Return the product of the weight norms of every block; [] where one is not known."""
    blocks = (row.get("weights") or {}).get(f"product_{norm}", [])
    return [] if None in blocks else blocks


def weight_growth(row: dict[str, Any]) -> float | None:
    """Return ‖w − w₀‖/‖w₀‖, averaged over a block's weights and over blocks."""
    return mean([*weight_growths(row)])


def norm_product(row: dict[str, Any], norm: str = "frobenius") -> float | None:
    """Return the product of a block's weight norms, its geometric mean over blocks; None where one is not known."""
    blocks = norm_products(row, norm)
    return geometric_mean(blocks) if blocks and min(blocks) > 0 else None


def product_growth(start: dict[str, Any], row: dict[str, Any]) -> float | None:
    """Return by what the product of a block's weight norms has grown since `start`, its geometric mean over blocks."""
    before, now = norm_product(start), norm_product(row)
    return None if before is None or now is None else now / before


@evidence_table(
    90,
    "Mechanism: ResMLP d=256 L=4 on CIFAR-10, the stream, its gradient and the blocks' weights along training",
    "rule | figures | epoch | n | ‖h_L‖ | published ‖h_L‖ | ‖g_L‖ | published ‖g_L‖ | weights | published weights | "
    "product | published product | product growth | published product growth | product, spectral | weights by block | "
    "product by block | agrees?",
    "weights: ‖w − w₀‖/‖w₀‖ averaged over the weights of all blocks; product: of a block's two weight norms "
    "(Frobenius, beside it spectral), its geometric mean over blocks, and how often that of initialisation it is; by "
    "block: from the first to the last, the mean over seeds",
    "every epoch is in the figures temporal-plain and temporal-augmented and in the runs' trajectory.jsonl",
    AGREES,
)
def mechanism(t: Draft) -> None:
    """Stream, gradient, weight movement and norm products along training."""
    flags = t.variants(map(Setting, RULES))
    for setting, flag in ((Setting(rule, augment=flag), flag) for rule in RULES for flag in flags):
        runs = t.runs(setting)
        for epoch in EPOCHS:
            at = [([r.initial, *r.rows][epoch], r.epochs[epoch][2]) for r in runs if epoch <= len(r.rows)]
            published, rows = figures("mechanism", setting.rule, epoch=epoch), [row for row, _ in at]
            starts = [r.initial for r in runs if epoch <= len(r.rows)]
            if at or published:
                t.row(
                    *(RULES[setting.rule], OURS[flag], count(epoch), count(len(at))),
                    against("‖h_L‖", stat(last(m.h_norm) for _, m in at), "norm", among(published, "h_norm")),
                    against("‖g_L‖", stat(last(m.g_norm) for _, m in at), "norm", among(published, "g_norm")),
                    against("weights", stat(map(weight_growth, rows)), "norm", among(published, "weight_growth")),
                    against("product", stat(map(norm_product, rows)), "norm", among(published, "norm_product")),
                    against(
                        "product growth",
                        stat(map(product_growth, starts, rows)),
                        "norm",
                        among(published, "product_growth"),
                    ),
                    spread(stat(norm_product(row, "spectral") for row in rows), "norm"),
                    *(_by_block([of(row) for row in rows]) for of in (weight_growths, norm_products)),
                )


def _by_block(seeds: Sequence[list[float]]) -> Cell:
    """Return the mean over seeds of each block's number, as 1.1e6, 1.5e5."""
    means = [sum(values) / len(values) for values in zip(*seeds)]
    return Cell(", ".join(number(m, "norm") for m in means) or NONE, means or None)


def early_runs(records: Records, augment: bool, epoch: int) -> tuple[Record, ...]:
    """Return runs of DFA without a penalty, one per seed that shows this epoch: of 30 epochs, else of 100.

    The first epoch is the same whatever the length of a run (later ones differ in their rate), so there a run of one
    epoch will do as well.
    """
    by_seed: dict[int, Record] = {}
    for epochs in (1, 100, 30) if epoch == 1 else (100, 30):
        by_seed |= {run.spec.seed: run for run in select(records, Setting("dfa", epochs=epochs, augment=augment))}
    return tuple(run for _, run in sorted(by_seed.items()) if len(run.rows) >= epoch)


@evidence_table(
    100,
    "Early epochs of DFA without a penalty: is credit poor while the reference is still healthy?",
    "figures | epoch | n | deep cos | published deep cos | range over sites and seeds | published range | "
    "n of ρ_pert | ρ_pert | published ρ_pert | ‖g_L‖ | published ‖g_L‖ | cos of site 0 | published cos of site 0 | "
    "reference valid | agrees?",
    "cosines and ‖g_L‖ along the trajectory of each seed's 30-epoch run (else its 100-epoch one; epoch 1 also "
    "of a run of one epoch, which is the same as the first of a longer one)",
    "ρ_pert is measured after a run's last epoch: runs of one epoch have it for epoch 1",
    "the range over sites and seeds is shown and not judged: it widens with the number of seeds",
    AGREES,
)
def early_epochs(t: Draft) -> None:
    """Is credit poor before the reference collapses? DFA in its first epochs."""
    for flag in t.variants(Setting("dfa", epochs=e) for e in (30, 100, 1)):
        covered = {run.spec.seed for run in early_runs(t.records, flag, max(EARLY))}
        longer = lacking(t.records, Setting("dfa", epochs=30, augment=flag), controls=False)
        t.specs += [spec for spec in longer if spec.seed not in covered]
        one_epoch = t.runs(Setting("dfa", epochs=1, augment=flag))
        for epoch in EARLY:
            at = [run.epochs[epoch][2] for run in early_runs(t.records, flag, epoch)]
            short = one_epoch if epoch == 1 else ()
            known = [c for m in at for site in deep_sites(m.cosine) if (c := m.cosine[site]) is not None]
            ends = [min(known), max(known)] if known else None
            span = Cell("…".join(number(end, "cos") for end in ends) if ends else NONE, ends)
            published = figures("early-epochs", "dfa", epoch=epoch)
            rho = stat(run.report.values.get("deep_perturbation") for run in short)
            first = stat(m.cosine[0] if m.cosine else None for m in at)
            t.row(
                *(OURS[flag], count(epoch), count(len(at))),
                against("deep cos", stat(m.deep_cosine for m in at), "cos", among(published, "deep_cosine")),
                Against("", span, None, among(published, "cosine.range")),
                count(len(short)),
                against("ρ_pert", rho, "cos", among(published, "perturbation")),
                against("‖g_L‖", stat(last(m.g_norm) for m in at), "norm", among(published, "g_norm")),
                against("cos of site 0", first, "cos", among(published, "cosine.first")),
                valid_cell(at),
            )
