"""The names of the published README, in its four-diagnostic edition. Everything is done by `walkback`."""

from functools import partial as _partial

from walkback import diagnose as _diagnose
from walkback.report import Report as DiagnosticReport

diagnose = _partial(_diagnose, edition="four-diagnostic")

__all__ = ["DiagnosticReport", "diagnose"]
