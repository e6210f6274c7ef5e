"""`walkback judge`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from walkback.cli import options
from walkback.cli.output import EXIT, answer, check_report_out, finish
from walkback.errors import InputError


def judge(
    numbers: Path,
    *,
    headline_acc: options.Accuracies = (),
    frozen_acc: options.Accuracies = (),
    bp_acc: options.Accuracies = (),
    bp_frozen_acc: options.BPFrozen = (),
    test_samples: options.TestSamples = None,
    edition: options.Edition | None = None,
    thresholds: options.Thresholds = None,
    method: options.Method = "",
    notes: options.Notes = "",
    out: options.ReportOut = None,
    require: options.Require = (),
    junit: options.Junit = None,
    verbose: options.Verbose = False,
    json: options.ReportJson = False,
) -> int:
    """Judge numbers logged by any framework.

    Args:
        numbers: A report or dict as .json, or one row per epoch or step as .jsonl or .csv (columns h_norm_0, g_norm_0,
            …), such as a Watch's history or a run's trajectory.jsonl: then it also tells when each check fired, and
            what was left. A table of a paper, one row per method (a column `method`), gives a verdict for each,
            what could not be judged, and what to ask the authors; a row `frozen` is the control of the others.
        headline_acc: Accuracy, 0…1, where the file has none; several for several seeds.
        frozen_acc: Accuracy with frozen random blocks, where the file has none; several for several seeds.
        bp_acc: BP's accuracy on the task; where it does not beat frozen blocks either, D3 is not tested.
        edition: Which form of the protocol judges: three-check unless the file is a report of another.
    """
    from walkback.report.formats.logged import judge as judged
    from walkback.report.paper import judge_paper, methods_of

    check_report_out(out)
    given: dict[str, Any] = {
        **options.claimed(headline_acc, frozen_acc, bp_acc, bp_frozen_acc),
        "test_samples": test_samples,
    }
    if not method and (methods := methods_of(numbers)):
        if wrong := [name for name, value in (("--out", out), ("--junit", junit), ("--require", require)) if value]:
            raise InputError(
                f"Expected {wrong[0]} with one method, but {numbers} has {', '.join(methods)}. Add --method NAME; "
                "without it, all of them are printed, with --json as JSON."
            )
        paper = judge_paper(numbers, edition, options.limits(thresholds), **given)
        answer(paper, json)
        return EXIT[paper.verdict]
    report = judged(numbers, edition, options.limits(thresholds), **given, method_name=method, notes=notes)
    return finish(report, out, json, require, junit, verbose)
