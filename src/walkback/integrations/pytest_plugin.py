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

_VERDICT = "walkback.verdict"


class Claims:
    """What the fixture `walkback` offers: `diagnose` and `judge` as the package has them, and the reports they gave."""

    def __init__(self, keep: Callable[[Report], None]) -> None:
        self._keep = keep
        self.reports: list[Report] = []

    def diagnose(self, *args: Any, **kwargs: Any) -> Report:
        """Return `walkback.diagnose(…)`."""
        from walkback.api import diagnose

        return self._collect(diagnose(*args, **kwargs))

    def judge(self, *args: Any, **kwargs: Any) -> Report:
        """Return `walkback.judge(…)`, which needs no torch."""
        from walkback.report.formats.logged import judge

        return self._collect(judge(*args, **kwargs))

    def _collect(self, report: Report) -> Report:
        self.reports.append(report)
        self._keep(report)
        return report


@pytest.fixture
def walkback(request: pytest.FixtureRequest) -> Claims:
    """Measure or judge inside of a test: `walkback.diagnose(model, batches, …).assert_passes()`."""

    def keep(report: Report) -> None:
        # Not by record_property: where --junitxml is given, asking for that fixture is a warning.
        said = {"method": report.method or request.node.name, "edition": report.edition}
        request.node.user_properties.extend((f"walkback.{name}", value) for name, value in said.items())
        request.node.user_properties.append((_VERDICT, report.verdict_line))

    return Claims(keep)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say every verdict of the session, those of other processes (pytest-xdist) too: tests' reports bring them."""
    reports = [one for some in terminalreporter.stats.values() for one in some]
    last = [one.user_properties for one in reports if getattr(one, "when", None) == "teardown"]  # it has all of a test
    lines = []
    for properties in last:
        methods = [value for name, value in properties if name == "walkback.method"]
        verdicts = [value.removeprefix("VERDICT: ") for name, value in properties if name == _VERDICT]
        lines += [f"{method}: {verdict}" for method, verdict in zip(methods, verdicts)]
    if lines:
        terminalreporter.section("walkback")
        for line in lines:
            terminalreporter.line(line)
