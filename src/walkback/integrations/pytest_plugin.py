"""A pytest plugin: `def test_claim(walkback): walkback.diagnose(…).assert_passes()`. Loaded by pytest where installed.

The fixture measures; `assert_passes` is the report's own. What was measured is said at the end of the session, and goes
into `--junitxml` as properties of its test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from walkback.report.report import Report

_LINES = pytest.StashKey[list[str]]()


class Claims:
    """What the fixture `walkback` offers: `diagnose` and `judge` as the package has them, and the reports they gave."""

    def __init__(self, keep: Callable[[Report], None]) -> None:
        self._keep = keep
        self.reports: list[Report] = []

    def diagnose(self, *args: Any, **kwargs: Any) -> Report:
        """Return `walkback.diagnose(…)`."""
        from walkback.api import diagnose

        return self._kept(diagnose(*args, **kwargs))

    def judge(self, *args: Any, **kwargs: Any) -> Report:
        """Return `walkback.judge(…)`, which needs no torch."""
        from walkback.report.formats.logged import judge

        return self._kept(judge(*args, **kwargs))

    def _kept(self, report: Report) -> Report:
        self.reports.append(report)
        self._keep(report)
        return report


@pytest.fixture
def walkback(request: pytest.FixtureRequest) -> Claims:
    """Measure or judge inside of a test: `walkback.diagnose(model, batches, …).assert_passes()`."""

    def keep(report: Report) -> None:
        # Not by record_property: where --junitxml is given, asking for that fixture is a warning.
        request.node.user_properties.append(("walkback.verdict", report.verdict_line))
        request.node.user_properties.append(("walkback.edition", report.edition))
        name = report.method or request.node.name
        request.config.stash.setdefault(_LINES, []).append(f"{name}: {report.verdict_line.removeprefix('VERDICT: ')}")

    return Claims(keep)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say every verdict of the session."""
    if lines := config.stash.get(_LINES, []):
        terminalreporter.section("walkback")
        for line in lines:
            terminalreporter.line(line)
