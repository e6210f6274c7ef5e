"""`from protocol.report import DiagnosticThresholds`, as published."""

from walkback.report.report import DiagnosticReport
from walkback.verdict.checks import DiagnosticThresholds

__all__ = ["DiagnosticReport", "DiagnosticThresholds"]
