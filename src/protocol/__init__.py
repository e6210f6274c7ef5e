"""The names of the published README, in its four-diagnostic edition and its words. `walkback` does everything."""

from typing import Any as _Any

from walkback import diagnose as _diagnose
from walkback.report.report import DiagnosticReport


def diagnose(*args: _Any, **kwargs: _Any) -> DiagnosticReport:
    """Measure and judge as `walkback.diagnose` does, in the four-diagnostic edition; the same arguments.

    >>> from walkback import selftest
    >>> report = diagnose(model=selftest.exploded(), eval_batches=selftest.batches(8), headline_acc=0.31)
    >>> report.failed, report.verdict_line
    (('a', 'b'), 'VERDICT: needs walk-back: a, b')
    """
    return DiagnosticReport.of(_diagnose(*args, **{"edition": "four-diagnostic", **kwargs}))


__all__ = ["DiagnosticReport", "diagnose"]
