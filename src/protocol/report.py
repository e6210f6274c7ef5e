"""`from protocol.report import DiagnosticThresholds`, as published."""

from walkback.checks import DiagnosticThresholds
from walkback.report import DiagnosticReport

__all__ = ["DiagnosticReport", "DiagnosticThresholds"]
