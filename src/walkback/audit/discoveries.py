"""Many settings in one table: depth is decided for some of them by chance, so false discoveries are held at 5 %."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from walkback.audit.settings import Judged
from walkback.verdict.statistics import RATE, surviving

REASON = "undecided with the false discovery rate of this table held at 5 %"
Key = TypeVar("Key")


def with_discovery_rate(settings: Mapping[Key, Judged]) -> tuple[dict[Key, Judged], str]:
    """Return the settings with depth undecided where it does not stand beside the others, and a note that says so.

    Benjamini and Hochberg's rule over all settings whose D3 has a p-value, the undecided ones too; of a setting without
    D3, whose D3-outcome has one. Counting the decided
    ones alone, whose p-values are all under 5 %, would let every one of them stand. The note is "" of fewer than two.
    """
    ps = {key: p for key, j in settings.items() if (p := j.p) is not None}
    if len(ps) < 2:
        return dict(settings), ""
    stand = dict(zip(ps, surviving(list(ps.values()))))
    decided = [key for key in ps if settings[key].decided]
    by = " or D3-outcome" if any(settings[key].decides == "outcome" for key in ps) else ""
    fallen = [key for key in decided if not stand[key]]
    said = f"{len(fallen) or 'none'} {'is' if len(fallen) < 2 else 'are'} undecided by it"
    note = (
        f"the false discovery rate over the {len(ps)} settings whose D3{by} is tested here is held at 5 % "
        f"(Benjamini-Hochberg): of the {len(decided)} that are decided alone {said}"
    )
    level = RATE * (sum(stand.values()) + 1) / len(ps)  # under which one more p-value stands beside those that do
    return {key: j.without_depth(REASON, level) if key in fallen else j for key, j in settings.items()}, note
