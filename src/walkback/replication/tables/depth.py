"""What trained blocks are worth, of the runs that had it measured: accuracy by depth, and D3 beside D3-outcome."""

from __future__ import annotations

from collections.abc import Sequence

from walkback.audit.records import Record
from walkback.audit.settings import RULES, alike, judged_runs
from walkback.audit.wording import setting_words
from walkback.measures.worth import RANDOM, TRAINED, Depth
from walkback.replication.tables.build import OURS, Draft, count, depth_cell, evidence_table
from walkback.report.table import NONE, Cell, spread, stat


@evidence_table(
    245,
    "Accuracy by depth: linear probes of trained and of re-randomised blocks, and what the blocks are worth",
    "network | rule | figures | n | site | trained | re-randomised | stem alone | inputs alone | D3-outcome pp | D3 pp",
    "one row per site; all readouts are refitted on the training split; n: runs that had it measured",
    "D3-outcome is what trained blocks gain over random draws of themselves under the same stem, D3 what they gain "
    "over another training with frozen blocks",
    "nothing is published to compare with",
)
def accuracy_by_depth(t: Draft) -> None:
    """Accuracy of a linear probe of every site, with trained and with random blocks, and the worth of the blocks."""
    for spec, runs in alike(t.records).items():
        known = [(run, found) for run in runs if spec.scope == "all" and (found := run.depth) is not None]
        if known:
            _rows(t, [run for run, _ in known], [found for _, found in known])
    if not t.rows:
        t.row(NONE, NONE, OURS[True], count(0), *[NONE] * 7)
        t.missing.append(f"accuracy by depth: walkback diagnose {t.records.store}/RUN --depth --save")


def _rows(t: Draft, runs: Sequence[Record], found: Sequence[Depth]) -> None:
    spec = runs[0].spec
    floors = [[f.without_all for f in found], [f.pixels for f in found]]
    alone = [spread(stat(v for v in values if v is not None), "acc") for values in floors]
    worth = spread(stat(f.worth_pp for f in found), "pp")
    frozen = depth_cell(judged_runs(t.records, runs))
    for site in range(len(found[0].by_depth[TRAINED])):
        probes = [spread(stat(f.by_depth[name][site] for f in found), "acc") for name in (TRAINED, RANDOM)]
        where = " · ".join(setting_words(spec))
        head = (where, RULES.get(spec.rule, spec.rule), OURS[spec.augment], count(len(runs)), Cell(str(site), site))
        t.row(*head, *probes, *alone, worth, frozen)
