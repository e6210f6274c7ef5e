"""Does what a rule learns or keeps matter? Each rule against itself with that taken away."""

from __future__ import annotations

from walkback.audit.plans import SEEDS
from walkback.audit.records import Record
from walkback.audit.settings import RULES
from walkback.replication.tables.build import AGREES, Draft, accuracies, count, evidence_table
from walkback.report.table import NONE, Cell, number, spread, stat
from walkback.training.spec import RunSpec

EPOCHS = 3
# Rule -> the option that takes away what it learns or keeps, and the option in words.
TAKEN = {
    "fa": ({"fresh": True}, "B drawn anew at every step"),
    "dfa": ({"fresh": True}, "B drawn anew at every step"),
    "state-bridge": ({"train": False}, "G untrained"),
    "credit-bridge": ({"train": False}, "V untrained"),
    "ep": ({"steps": 0}, "no relaxation"),
}
MARGIN_PP, MARGIN_COSINE = 2.0, 0.05


@evidence_table(
    210,
    f"What each rule learns or keeps, taken away: {EPOCHS} epochs, mean ± std over seeds",
    "rule | ablation | n | acc | acc, ablated | deep cos | deep cos, ablated | least gain, pp | least gain, cos | "
    "beats?",
    "ResMLP d=256 L=4 on CIFAR-10, no augmentation, otherwise the primary recipe with its schedule over "
    f"{EPOCHS} epochs; EP relaxes over its default of 10 steps here, not over the papers' 2",
    f"beats?: on every seed at least {MARGIN_PP:g} pp of accuracy, or on every seed at least {MARGIN_COSINE:g} of "
    "deep cosine; the two columns before it give the smallest gain over the seeds",
    "deep cosine: mean of cos(a_l, g_l) over the blocks' sites; a site without any credit counts as 0 here",
    AGREES,
)
def rule_ablations(t: Draft) -> None:
    """Each rule against its ablation after 3 epochs of CIFAR-10: accuracy and deep cosine."""
    for rule, (options, words) in TAKEN.items():
        specs = [(_spec(rule, {}, seed), _spec(rule, options, seed)) for seed in SEEDS]
        t.specs += [spec for pair in specs for spec in pair if t.records.find(spec) is None]
        pairs = [(a, b) for a, b in ((t.records.find(x), t.records.find(y)) for x, y in specs) if a and b]
        cells = [spread(accuracies(side), "acc") for side in zip(*pairs)]
        cells += [spread(stat(map(_deep, side)), "cos") for side in zip(*pairs)]
        accuracy = [100 * (a.accuracy - b.accuracy) for a, b in pairs]
        cosine = [_deep(a) - _deep(b) for a, b in pairs]
        beats = bool(pairs) and (min(accuracy) >= MARGIN_PP or min(cosine) >= MARGIN_COSINE)
        answer = NONE if not pairs else "yes" if beats else "no"
        gains = [_least(accuracy, "pp"), _least(cosine, "cos")]
        t.row(RULES[rule], words, count(len(pairs)), *(cells or [Cell(NONE)] * 4), *gains, answer)


def _spec(rule: str, options: dict[str, object], seed: int) -> RunSpec:
    return RunSpec(rule=rule, rule_options=options, epochs=EPOCHS, seed=seed)


def _deep(run: Record) -> float:
    """Return the mean over the blocks' sites that the rule does not know exactly; without credit nothing is aligned."""
    cosine = run.report.per_layer["cosine"] or []
    known = [c or 0.0 for c in cosine[1:]]
    from walkback.rules import RULES as LEARNERS  # torch is loaded for runs that have an ablation, not for a page

    exact = LEARNERS[run.spec.rule].exact_top
    return sum(known[: len(known) - exact]) / max(1, len(known) - exact)


def _least(gains: list[float], kind: str) -> Cell:
    return Cell(number(min(gains), kind), min(gains)) if gains else Cell(NONE)
