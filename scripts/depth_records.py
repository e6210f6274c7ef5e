"""D3-outcome against D3, on finished runs whose records have both: two questions, which should rarely disagree.

    python scripts/depth_records.py

Writes results/depth-records.md, which docs/depth.md includes, from the records in evidence.
"""

from __future__ import annotations

from pathlib import Path

from tabulate import tabulate

from walkback.audit.records import read_records
from walkback.audit.settings import judged_runs
from walkback.audit.wording import describe
from walkback.verdict.findings import Finding

ROOT = Path(__file__).resolve().parents[1]
WORDS = {True: "flags", False: "passes", None: "undecided"}


def table(folder: Path) -> str:
    """Return a row for each run of a folder whose record has the worth of its blocks, and how often the two agree."""
    records, lines, both = read_records(folder), [], []
    for run in records:
        if run.spec.scope == "all" and run.depth is not None:
            verdict = judged_runs(records, [run]).verdicts["three-check"][0]
            d3, outcome = verdict["depth"], verdict["outcome"]
            decided = None not in (d3.flagged, outcome.flagged)
            both += [d3.flagged == outcome.flagged] if decided else []
            alike = ("yes" if both[-1] else "no") if decided else ""
            lines.append([f"{describe(run.spec)}, seed {run.spec.seed}", cell(d3), cell(outcome), alike])
    heads = ["finished run", "D3, pp", "D3-outcome, pp", "alike"]
    said = (
        f"Where both decide, they agree in {sum(both)} of {len(both)} runs. D3 is against the control of the same seed."
    )
    return f"{tabulate(sorted(lines), heads, 'github', disable_numparse=True)}\n\n{said}"


def cell(found: Finding) -> str:
    """Return a finding's value, its interval and what it says; "not tested" where it has none."""
    if found.value is None:
        return "not tested"
    ends = "" if found.interval is None else " [{:+.1f}, {:+.1f}]".format(*found.interval)
    return f"{found.value:+.1f}{ends} {WORDS[found.flagged]}"


if __name__ == "__main__":
    text = f"# D3-outcome beside D3, on finished runs\n\n{table(ROOT / 'evidence')}\n"
    (ROOT / "results" / "depth-records.md").write_text(text, encoding="utf-8")
