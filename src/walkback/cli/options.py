"""Options that several verbs have. A verb whose help of one reads otherwise says so in its own docstring."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from walkback.errors import InputError

if TYPE_CHECKING:
    from walkback.verdict.checks import DiagnosticThresholds

Flag = Annotated[bool, Parameter(negative=())]
Words = Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())]
Accuracies = Annotated[tuple[float, ...], Parameter(consume_multiple=True, negative=())]

# Of `diagnose` and `judge`.
Edition = Literal["three-check", "four-diagnostic", "intrinsic"]
_BP_FROZEN = "BP's accuracy with frozen random blocks, where --frozen-acc is of a stem that another rule trained."
BPFrozen = Annotated[Accuracies, Parameter(help=_BP_FROZEN)]
Thresholds = Annotated[Path | None, Parameter(help="JSON or TOML file with other limits.")]
Method = Annotated[str, Parameter(help="Name shown in the report.")]
Notes = Annotated[str, Parameter(help="Line shown in the report.")]
ReportOut = Annotated[Path | None, Parameter(help="Also write the report there: .json, .html, .md, .tex or .txt.")]
ReportJson = Annotated[Flag, Parameter(help="Print the report as JSON.")]


def limits(path: Path | None) -> DiagnosticThresholds | None:
    """Read a file of thresholds; None without one."""
    from walkback.verdict.checks import DiagnosticThresholds

    return None if path is None else DiagnosticThresholds.load(path)


def one_or_many(values: tuple[float, ...]) -> float | list[float] | None:
    """Return an accuracy as the library takes it: one number, several for several seeds, or None."""
    return None if not values else values[0] if len(values) == 1 else list(values)


def json_object(name: str, text: str) -> dict[str, Any]:
    """Parse an option that is a JSON object."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"Expected {name} to be a JSON object, but: {error}.") from None
    if not isinstance(value, dict):
        raise InputError(f"Expected {name} to be a JSON object, but got {text}.")
    return value
