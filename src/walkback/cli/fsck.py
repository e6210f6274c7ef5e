"""`walkback fsck`."""

from __future__ import annotations

from pathlib import Path

from walkback.cli.options import Flag, LargestWeights, weights_bytes
from walkback.cli.output import print_json, print_text


def fsck(store: Path, *, largest_weights: LargestWeights = None, json: Flag = False) -> int:
    """Say which runs of a store are whole: every file as the run wrote it. Exit 1 if one is damaged.

    Args:
        store: Where the runs are, however deep.
        json: Print {"runs": [{path, state, why}, …]}.
    """
    from walkback.audit.store import checked_runs

    runs = checked_runs(store, weights_bytes(largest_weights))
    if json:
        print_json({"runs": [{"path": str(run.path), "state": run.state, "why": run.why} for run in runs]})
    else:
        states = [run.state for run in runs]
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)) or "no runs"
        lines = [f"{run.state}: {run.path}: {run.why}" for run in runs if run.state != "whole"]
        print_text("\n".join([f"{store}: {counts}", *lines]))
    return int(any(run.state == "damaged" for run in runs))
