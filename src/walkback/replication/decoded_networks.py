"""Every finished network under the papers' conventions: both pairings, rounding, what its blocks are worth."""

from __future__ import annotations

from collections.abc import Sequence

from walkback.audit.records import Record, Records
from walkback.audit.settings import RULES
from walkback.audit.wording import setting_words
from walkback.replication.conventions import as_published
from walkback.report.table import NONE, Table, number, table

NOTES = (
    "read from the record of each run; cosines at sites 0…L−1",
    "one site off: cos(a_{l+1}, g_l), as the published cosines of FA seem to be; for FA its last is cos(g_L, g_{L−1})",
    "off float64: how far float32 puts a cosine off at the worst site, by the same network in float64",
    "blocks worth: accuracy over random draws of the same blocks under the same stem, readouts refitted, with its "
    "95 % interval; – where the weights of a run were not kept until it was measured",
)


def networks(records: Records) -> Table:
    """Return one row per finished network whose blocks were trained.

    >>> from pathlib import Path
    >>> networks(Records(Path("runs"))).rows
    ()
    """
    own = {run.path: run for run in records}
    shown = [own[run.path] for run in as_published(records) if run.spec.scope == "all"]
    columns = "network | rule | seed | acc | cosine by site | one site off | off float64 | blocks worth, pp"
    rows = [_row(run) for run in sorted(shown, key=_order)]
    return table("decoded-networks", "Finished networks under the papers' conventions", columns, rows, NOTES, ())


def _order(run: Record) -> tuple[str, int, int]:
    return " · ".join(setting_words(run.spec)), [*RULES].index(run.spec.rule), run.spec.seed


def _row(run: Record) -> list[str]:
    m, worth = run.measurements, run.depth
    off = run.report.values.get("cosine_error")
    paid = NONE if worth is None else f"{worth.worth_pp:+z.1f} [{worth.interval[0]:+z.1f}, {worth.interval[1]:+z.1f}]"
    return [
        " · ".join(setting_words(run.spec)),
        RULES[run.spec.rule],
        str(run.spec.seed),
        f"{run.accuracy:.3f}",
        signed(m.cosine[:-1]),
        signed(m.cosine_below[1:]),
        NONE if off is None else number(off, "norm"),
        paid,
    ]


def signed(values: Sequence[float | None]) -> str:
    """Return cosines in two digits each.

    >>> signed([0.1, None, -0.004])
    '+0.10, –, +0.00'
    """
    return ", ".join(NONE if v is None else f"{v:+z.2f}".replace("-", "−") for v in values)
