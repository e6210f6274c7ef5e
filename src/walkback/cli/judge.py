"""`walkback judge`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from walkback.cli.options import FLAT, Claiming, Reporting, limits
from walkback.cli.output import EXIT, answer, check_report_out, finish
from walkback.errors import InputError


def judge(
    numbers: Path,
    *,
    claiming: Annotated[Claiming, FLAT] = Claiming(),  # noqa: B008
    reporting: Annotated[Reporting, FLAT] = Reporting(),  # noqa: B008
) -> int:
    """Judge numbers logged by any framework.

    Args:
        numbers: A report or dict as .json, or one row per epoch or step as .jsonl or .csv (columns h_norm_0, g_norm_0,
            …), such as a Watch's history or a run's trajectory.jsonl: then it also tells when each check fired, and
            what was left. A table of a paper, one row per method (a column `method`), gives a verdict for each,
            what could not be judged, and what to ask the authors; a row `frozen` is the control of the others.
    """
    from walkback.report.formats.logged import judge as judged
    from walkback.report.paper import judge_paper, methods_of

    check_report_out(reporting.out)
    given: dict[str, Any] = {**claiming.accuracies(), "test_samples": claiming.test_samples}
    rules = claiming.edition, limits(claiming.thresholds)
    if not claiming.method and (methods := methods_of(numbers)):
        alone = (("--out", reporting.out), ("--junit", reporting.junit), ("--require", reporting.require))
        if wrong := [name for name, value in alone if value]:
            raise InputError(
                f"Expected {wrong[0]} with one method, but {numbers} has {', '.join(methods)}. Add --method NAME; "
                "without it, all of them are printed, with --json as JSON."
            )
        paper = judge_paper(numbers, *rules, **given)
        answer(paper, reporting.json)
        return EXIT[paper.verdict]
    return finish(judged(numbers, *rules, **given, method_name=claiming.method, notes=claiming.notes), reporting)
