"""Plans as a list: runs, how many of them are finished, and what they cost on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from walkback.audit.cost import costs
from walkback.audit.plans import Plan


@dataclass(frozen=True)
class Listing:
    """One row per plan, and the store whose finished runs they count."""

    out: Path
    rows: list[dict[str, Any]]

    @staticmethod
    def of(plans: Sequence[Plan], out: Path, root: Path | None) -> Listing:
        """Count and estimate plans."""
        return Listing(out, [cost.to_dict() for cost in costs(plans, out, root)])

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"out": str(self.out), "plans": self.rows}

    def __str__(self) -> str:
        head = ["plan", "runs", "models", "settings", "finished", "CPU-hours", "left", "about"]
        keys = ["plan", "runs", "models", "settings", "finished", "cpu_hours", "cpu_hours_left", "about"]
        cells = [[f"{row[key]:.1f}" if "hours" in key else row[key] for key in keys] for row in self.rows]
        align = ("left", *["right"] * 6, "left")
        table = tabulate(cells, head, maxcolwidths=[None] * 7 + [56], disable_numparse=True, colalign=align)
        return (
            f"{table}\n\nruns: models and the frozen controls that D3 compares them with; finished: in {self.out}; "
            "CPU-hours: of one core of\n"
            "this machine when it does nothing else, for all runs and for those that are left"
        )
