"""`walkback demo`."""

from __future__ import annotations

from pathlib import Path

from walkback.cli.options import Flag, Whole
from walkback.cli.output import print_json, print_text, write


def demo(
    *,
    out: Path = Path("runs/demo"),
    seed: Whole = 0,
    workers: Whole | None = None,
    verbose: Flag = False,
    json: Flag = False,
) -> int:
    """Train BP and DFA and their frozen controls on an embedded task, and see why DFA is walked back: under a minute.

    Args:
        out: Where bundles, reports and the page go; what is trained there is not trained again.
        seed: Of all runs.
        workers: Processes, one thread each; as many as there are cores by default.
        verbose: Print every report in full, and all numbers of every rule, before the summary.
        json: Print {"runs": [report, …]}.
    """
    from walkback.audit.demo import all_numbers, screen
    from walkback.audit.demo import demo as ran
    from walkback.audit.records import read_records
    from walkback.replication.page import page_data, render

    reports = ran(out, seed, workers)
    page = out / "report.html"
    write(page, render(page_data(read_records(out))))
    if json:
        print_json({"runs": [report.to_dict() for report in reports]})
        return 0
    shown = [*(report.details() for report in reports), all_numbers(reports)] if verbose else []
    again = f"walkback demo{f' --seed {seed}' * (seed != 0)}{f' --out {out}' * (out != Path('runs/demo'))} --verbose"
    next_ = [f"next: walkback report {out} --open", *([] if verbose else [f"everything: {again}"])]
    line = "      ".join(next_)
    shown += [screen(reports), "\n".join([f"page: {page}", *([line] if len(line) <= 80 else next_)])]
    print_text("\n\n".join(shown))
    return 0
