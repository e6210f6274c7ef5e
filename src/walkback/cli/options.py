"""Options that several verbs have. A verb whose help of one reads otherwise says so in its own docstring."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter, Token

from walkback.errors import InputError, shown

if TYPE_CHECKING:
    from walkback.verdict.checks import DiagnosticThresholds


def _whole(_: object, tokens: Sequence[Token]) -> int:
    """Read a whole number; the command line's own reader would round 2.5 without a word."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"expected a whole number, but got {shown(tokens[0].value)}") from None


Whole = Annotated[int, Parameter(converter=_whole)]
Flag = Annotated[bool, Parameter(negative=())]
Words = Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())]
Accuracies = Annotated[tuple[float, ...], Parameter(consume_multiple=True, negative=())]

# Of `diagnose` and `anatomy`.
_SITES = "Read the outputs of layers: `layers` for every hidden layer with a weight, or the dotted names of modules."
Sites = Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=(), help=_SITES)]

# Of `diagnose` and `judge`.
Edition = Literal["three-check", "four-diagnostic", "intrinsic"]
_BP_FROZEN = "BP's accuracy with frozen random blocks, where --frozen-acc is of a stem that another rule trained."
BPFrozen = Annotated[Accuracies, Parameter(help=_BP_FROZEN)]
_TEST_SAMPLES = "How many test samples accuracies are of: without predictions, D3's interval has the error of so many."
TestSamples = Annotated[Whole | None, Parameter(help=_TEST_SAMPLES)]
_PRIMARY = "Which check of depth decides where both are there, named before measuring: D3 (the default) or D3-outcome."
Primary = Annotated[Literal["D3", "D3-outcome"] | None, Parameter(help=_PRIMARY)]
Thresholds = Annotated[Path | None, Parameter(help="JSON or TOML file with other limits.")]
Method = Annotated[str, Parameter(help="Name shown in the report.")]
Notes = Annotated[str, Parameter(help="Line shown in the report.")]
ReportOut = Annotated[Path | None, Parameter(help="Also write the report there: .json, .html, .md, .tex or .txt.")]
Require = Annotated[
    Words, Parameter(help="Checks that must be tested and not flag, such as D1 D2 D3; not decided exits with 3.")
]
Junit = Annotated[Path | None, Parameter(help="Also write JUnit XML there, one test case per check.")]
Verbose = Annotated[Flag, Parameter(help="Print everything that was measured: every column, probes, float64, checks.")]
ReportJson = Annotated[Flag, Parameter(help="Print the report as JSON.")]


def limits(path: Path | None) -> DiagnosticThresholds | None:
    """Read a file of thresholds; None without one."""
    from walkback.verdict.checks import DiagnosticThresholds

    return None if path is None else DiagnosticThresholds.load(path)


def claimed(*accuracies: tuple[float, ...]) -> dict[str, float | list[float] | None]:
    """Return --headline-acc, --frozen-acc, --bp-acc and --bp-frozen-acc as the library takes them, by its names.

    Each is one number, several for several seeds, or None.
    """
    names = ("headline_acc", "frozen_baseline_acc", "bp_acc", "bp_frozen_acc")
    return {n: (v[0] if len(v) == 1 else list(v)) if v else None for n, v in zip(names, accuracies, strict=True)}


def sites_of(given: tuple[str, ...]) -> str | list[str] | None:
    """Return sites as the library takes them: "layers", names, or None."""
    return None if not given else "layers" if given == ("layers",) else list(given)


def json_object(name: str, text: str) -> dict[str, Any]:
    """Parse an option that is a JSON object."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"Expected {name} to be a JSON object, but: {error}.") from None
    if not isinstance(value, dict):
        raise InputError(f"Expected {name} to be a JSON object, but got {text}.")
    return value
