"""The names of the published README, in its four-diagnostic edition. Everything is done by `walkback`."""

from functools import partial as _partial
from functools import update_wrapper as _update_wrapper

from walkback import diagnose as _diagnose
from walkback.report import Report as DiagnosticReport

diagnose = _update_wrapper(_partial(_diagnose, edition="four-diagnostic"), _diagnose)

__all__ = ["DiagnosticReport", "diagnose"]
