"""Which does a run of DFA depend on more: the draw of B, or the initialisation?"""

from __future__ import annotations

from collections.abc import Callable
from math import log

from walkback.audit.plans import DRAWS, SEEDS, plan
from walkback.audit.records import Record
from walkback.audit.seeds import last
from walkback.replication.tables.build import Draft, count, evidence_table
from walkback.report.table import NONE, Cell
from walkback.verdict.statistics import variance_shares

_OF: dict[str, Callable[[Record], float | None]] = {
    "acc": lambda run: run.accuracy,
    "Γ": lambda run: run.measurements.gamma,
    "log ρ": lambda run: _log(run.measurements.growth),
    "log ‖h_L‖": lambda run: _log(last(run.measurements.h_norm)),
    "log ‖g_L‖": lambda run: _log(last(run.measurements.g_norm)),
}


@evidence_table(
    225,
    "DFA by its draw of B and its initialisation: shares of variance, ResMLP d=256 L=4 on CIFAR-10, 4 epochs",
    "quantity | n | lowest | highest | from the draw of B | from the initialisation | from both together",
    "every draw of B was trained from every initialisation; components of two crossed random effects, a negative one "
    "counts as none. What comes from both together can't be told from what a run repeated would vary by",
)
def feedback_draws(t: Draft) -> None:
    """The draw of B crossed with the initialisation: the share of variance from each."""
    specs = plan("feedback-draws").specs
    runs = {(spec.rule_options["draw_seed"], spec.seed): t.records.find(spec) for spec in specs}
    t.specs += [spec for spec, run in zip(specs, runs.values()) if run is None]
    for name, of in _OF.items():
        values = {cell: of(run) for cell, run in runs.items() if run is not None}
        known = [v for v in values.values() if v is not None]
        ends = [Cell(f"{end(known):.3g}", end(known)) if known else NONE for end in (min, max)]
        shares = None
        if len(known) == len(runs):
            shares = variance_shares([[values[draw, seed] or 0.0 for seed in SEEDS] for draw in DRAWS])
        told = [NONE if shares is None else Cell(f"{shares[k]:.0%}", shares[k]) for k in ("rows", "columns", "rest")]
        t.row(name, count(len(known)), *ends, *told)


def _log(value: float | None) -> float | None:
    return log(value) if value else None
