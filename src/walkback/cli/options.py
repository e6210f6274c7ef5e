"""Options that several verbs have, each declared once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter, Token

from walkback.errors import InputError, shown
from walkback.files import LARGEST_WEIGHTS, parse_json

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

# Of several verbs.
Limits = Annotated[Path | None, Parameter(help="JSON or TOML file with other limits than the published ones.")]
Root = Annotated[Path | None, Parameter(help="Where the data sets are.")]
LargestWeights = Annotated[Whole | None, Parameter(help="Read weights of up to so many GiB; 4 by default.")]
Device = Annotated[str, Parameter(help="Where to compute: cpu, cuda, mps.")]


@dataclass(frozen=True)
class Claiming:
    """What is claimed, and by which rules it is judged.

    Args:
        headline_acc: The accuracy you would publish, 0…1; several for several seeds. By default that of the run or
            file.
        frozen_acc: The same with frozen random blocks. By default that of the run's control, or of the file.
        bp_acc: BP's accuracy on the task; where it does not beat frozen blocks either, D3 is not tested. By default
            that of the BP runs beside a run, or of the file.
        bp_frozen_acc: BP's accuracy with frozen random blocks, where --frozen-acc is of a stem that another rule
            trained.
        test_samples: How many test samples accuracies are of: without predictions, D3's interval has the error of so
            many.
        edition: Which form of the protocol judges: three-check unless the function or the file says otherwise;
            intrinsic measures every batch once more in float64.
        method: Name shown in the report.
        notes: Line shown in the report.
    """

    headline_acc: Accuracies = ()
    frozen_acc: Accuracies = ()
    bp_acc: Accuracies = ()
    bp_frozen_acc: Accuracies = ()
    test_samples: Whole | None = None
    edition: Literal["three-check", "four-diagnostic", "intrinsic"] | None = None
    thresholds: Limits = None
    method: str = ""
    notes: str = ""

    def accuracies(self) -> dict[str, float | list[float] | None]:
        """Return the accuracies by the library's names: each is one number, several for several seeds, or None."""
        names = {"headline_acc": self.headline_acc, "frozen_baseline_acc": self.frozen_acc}
        names |= {"bp_acc": self.bp_acc, "bp_frozen_acc": self.bp_frozen_acc}
        return {name: (v[0] if len(v) == 1 else list(v)) if v else None for name, v in names.items()}


@dataclass(frozen=True)
class Reporting:
    """Where a report goes, and which checks the exit code is of.

    Args:
        out: Also write the report there: .json, .html, .md, .tex or .txt.
        require: Checks that must be tested and not flag, such as D1 D2 D3; not decided exits with 3.
        junit: Also write JUnit XML there, one test case per check.
        verbose: Print everything that was measured: every column, probes, float64, checks.
        json: Print the report as JSON.
    """

    out: Path | None = None
    require: Words = ()
    junit: Path | None = None
    verbose: Flag = False
    json: Flag = False


FLAT = Parameter(name="*")  # its fields are options of the verb


def weights_bytes(gib: int | None) -> int:
    """Return the bytes that weights may have, of GiB as the user gave them."""
    if gib is not None and gib < 1:
        raise InputError(f"Expected --largest-weights to be GiB, 1 or more, but got {gib}.")
    return LARGEST_WEIGHTS if gib is None else gib << 30


def limits(path: Path | None) -> DiagnosticThresholds | None:
    """Read a file of thresholds; None without one."""
    from walkback.verdict.checks import DiagnosticThresholds

    return None if path is None else DiagnosticThresholds.load(path)


def sites_of(given: tuple[str, ...]) -> str | list[str] | None:
    """Return sites as the library takes them: "layers", names, or None."""
    return None if not given else "layers" if given == ("layers",) else list(given)


def json_object(name: str, text: str) -> dict[str, Any]:
    """Parse an option that is a JSON object."""
    try:
        value = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"Expected {name} to be a JSON object, but: {error}.") from None
    if not isinstance(value, dict):
        raise InputError(f"Expected {name} to be a JSON object, but got {text}.")
    return value
