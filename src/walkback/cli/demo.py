"""`walkback demo`."""

from __future__ import annotations

from pathlib import Path

from walkback.cli.options import Flag, Whole
from walkback.cli.output import print_json, print_text


def demo(*, out: Path = Path("runs/demo"), seed: Whole = 0, workers: Whole | None = None, json: Flag = False) -> int:
    """Train BP, FA and DFA and their frozen controls on the embedded task, and diagnose each: about a minute.

    Args:
        out: Where bundles and reports go; what is trained there is not trained again.
        seed: Of all runs.
        workers: Processes, one thread each; as many as there are cores by default.
        json: Print {"runs": [report, …]}.
    """
    from walkback.audit.demo import demo as ran
    from walkback.audit.demo import table

    reports = ran(out, seed, workers)
    if json:
        print_json({"runs": [report.to_dict() for report in reports]})
    else:
        texts = "\n\n".join(str(report) for report in reports)
        print_text(f"{texts}\n\n{table(reports)}\n\nbundles and reports: {out}")
    return 0
