"""The names of the published README, in its four-diagnostic edition. Everything is done by `walkback`."""

from typing import Any as _Any

from walkback import diagnose as _diagnose
from walkback.report import Report as DiagnosticReport


def diagnose(*args: _Any, **kwargs: _Any) -> DiagnosticReport:
    """`walkback.diagnose` in the four-diagnostic edition; the same arguments.

    >>> from walkback import selftest
    >>> diagnose(model=selftest.exploded(), eval_batches=selftest.batches(8), headline_acc=0.31).failed
    ('a', 'b')
    """
    return _diagnose(*args, **{"edition": "four-diagnostic", **kwargs})


__all__ = ["DiagnosticReport", "diagnose"]
