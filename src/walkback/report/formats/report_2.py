"""`walkback.report/2`: one model of it. Files are read by it, and the schema that ships is generated from it.

The words of the format are pinned here as literals, since files that have them must stay readable; its numbers are
those of the table of quantities, its checks those of the editions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import isinf
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator
from typing_extensions import TypeAliasType

from walkback.errors import FormatError, shown
from walkback.measures.over_sites import crossed
from walkback.measures.quantities import ENDS, NAME, PER_SITE, SCALARS, Quantity
from walkback.measures.worth import Depth
from walkback.notes import Note
from walkback.report.formats import report_1
from walkback.report.formats.consistent import contradiction
from walkback.report.formats.schema import tidy, whole
from walkback.report.formats.sense import impossible
from walkback.verdict.editions import EDITIONS
from walkback.verdict.findings import ABOUT, DEPTH

SCHEMA = "walkback.report/2"
_NAMES = tuple(EDITIONS)
_RULES = [rule for rules in EDITIONS.values() for rule in rules.values()]
_CHECKS = tuple(dict.fromkeys(rule.name for rule in _RULES))
_WALKING_BACK = tuple(dict.fromkeys(rule.name for rule in _RULES if rule.walks_back))
_SIZES = [len(rules) for rules in EDITIONS.values()]

T = TypeVar("T")


def _words(name: str) -> str:
    if not re.fullmatch(NAME, name):
        raise ValueError("a name should be words")
    return name


Name = Annotated[str, AfterValidator(_words)]
Many = Annotated[list[T], Strict(False)]  # a tuple will do
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]
Site = Annotated[int, Field(ge=0)]
Limit = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Accuracy = TypeAliasType(
    "Accuracy",
    Annotated[
        Fraction | Annotated[Many[Fraction], Field(min_length=1)] | None,
        Field(description="A fraction, or one per seed."),
    ],
)


class _Exact(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


def _number(q: Quantity) -> Any:
    """Return the type of a quantity: a number in its range, or null. A cosine may be off by its rounding."""
    rounding = 1e-6 if q.low == -1 else 0.0
    low, high = (None if isinf(end) else end for end in (q.low - rounding, q.high + rounding))
    number: Any = Annotated[float, Field(ge=low, le=high)]
    return number | None


def _of(name: str, types: dict[Quantity, Any]) -> type[BaseModel]:
    fields = {q.name: (t, ... if q.required else None) for q, t in types.items()}
    return report_1.model(name, _Exact, fields)


_Values = _of("Values", {q: _number(q) for q in SCALARS})
_PerLayer = _of("PerLayer", {q: Many[_number(q)] | None for q in PER_SITE})


class Nonfinite(_Open):
    """A state or gradient that is not finite: where, and in which batch or what was logged instead."""

    kind: Literal["state", "gradient"]
    site: Site | None
    batch: Site | None = None
    logged: str = ""


class _Altered(_Open):
    error: float | None = None
    limit: float | None = None
    sites: Many[Site] = []


class _Doubted(_Open):
    why: Text


class _Said(_Exact):
    code: Annotated[str, Field(pattern="^[a-z0-9]+(-[a-z0-9]+)*$")]
    site: Site | None
    values: dict[str, Any]
    text: Text


class _Step(_Exact):
    step: Annotated[int, Field(ge=1, le=4)]
    title: Text
    text: Text
    holds: bool | None


# Many fields, since the format has them; so do the depth and the document below.
class _Checked(_Exact):
    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"flagged": {"type": "null"}}},
            "then": {"properties": {"reason": {"minLength": 1}, "cause": {"minLength": 1}}},
        }
    )
    check: Literal[_CHECKS]  # type: ignore[valid-type]
    title: Text
    value: float | None
    limit: float
    flags_when: Text
    flagged: bool | None
    reason: str
    cause: Annotated[
        Literal["", "not-given", "not-measured", "straddles", "task", "nonfinite", "altered", "partial"],
        Field(description="Why it was not decided, or what a flag rests on instead of its value."),
    ]
    interval: Annotated[
        Annotated[Many[float], Field(min_length=2, max_length=2)] | None,
        Field(description="95 %, over seeds and samples: of a gain in percentage points, of a norm on a log scale."),
    ]
    beside: Annotated[
        bool, Field(description="Shown next to the check that decides the same question; decides nothing itself.")
    ] = False
    parts: Annotated[
        dict[str, float] | None,
        Field(description="Standard errors from seeds, samples and draws of blocks; of a norm those of its logarithm."),
    ] = None
    p: Annotated[
        Fraction | None, Field(description="How likely a value so far from the limit would be at the limit.")
    ] = None
    more: Annotated[
        dict[str, int] | None, Field(description="How many more seeds, samples or draws would decide at this spread.")
    ] = None

    @model_validator(mode="after")
    def _why(self) -> _Checked:
        if self.flagged is None and not (self.reason and self.cause):
            raise ValueError("what is not decided should have a reason and a cause")
        if self.interval is not None and self.interval[0] > self.interval[1]:
            raise ValueError("an interval should not end before it begins")
        return self


class _Run(_Open):
    train_loss_delta: float | None = None
    epochs: Site = 0
    fired: Annotated[
        dict[str, float | None], Field(description="First epoch at which each check flagged; null: never.")
    ] = {}


# Many fields, since they are those of `measures.worth.Depth`.
class _Depth(_Exact):
    worth_pp: float
    interval: Annotated[Many[float], Field(min_length=2, max_length=2)]
    trained: Fraction
    rerandomised: Annotated[Many[Fraction], Field(min_length=1)]
    by_depth: dict[str, Many[Fraction]]
    without: Many[Fraction] | None
    without_all: Fraction | None
    pixels: Fraction | None
    samples: dict[str, Count]
    parts: dict[str, Annotated[float, Field(ge=0)]]
    strength: dict[str, Many[Limit]]
    drawn_by: Literal["reset_parameters", "build"] = "reset_parameters"
    reasons: dict[str, Text] = {}


class _Thresholds(_Exact):
    g_norm_floor: Limit
    h_norm_explosion_ratio: Limit
    stability_drift_ceiling: float
    frozen_acc_margin_pp: float
    cosine_error_limit: Limit = 0.05


_CONDITIONS = {
    **dict.fromkeys(("mode", "device", "dtype", "gradient_dtype", "probe_dtype", "torch", "loss", "statistics"), str),
    **dict.fromkeys(("layer_index", "credit_site", "checkpoint"), str),
    **dict.fromkeys(("batches", "samples", "distinct_samples", "stability_group"), Count),
    **dict.fromkeys(("g_norm_batch_size", "g_norm_logged_batch_size"), Annotated[float, Field(ge=1)]),
    "batch_size": Count | Annotated[Many[Count], Field(min_length=1)],
    "probe_hash": Annotated[str, Field(pattern="^[0-9a-f]{16}$")],
    "state_shape": Many[Count],
    "pool": int | str | None,
    "bp_frozen_acc": Accuracy,
    "primary": Literal["D3", "D3-outcome"],
    "blocks_return": Literal["branch", "state", "unknown"],
    "anatomy": Many[str],
    "weights_in_sites": Annotated[float | None, Field(ge=0, le=1)],
    "weights_outside": Many[str],
    "autocast": bool,
}
_Conditions = report_1.model("Conditions", _Open, {name: (t, None) for name, t in _CONDITIONS.items()})


def _each_once(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        raise ValueError("a check should stand there once")
    return names


def _described(text: str, **more: Any) -> Any:
    return Field(description=text, **more)


# Many fields, since they are those of `Report`.
class Document(_Exact):
    """A whole report."""

    model_config = ConfigDict(
        json_schema_extra={
            "description": "Lists run over sites 0…L. What was not measured is null, and `reasons` says why. No number "
            "is ever NaN or infinite."
        }
    )

    schema_: Literal["walkback.report/2"] = Field(alias="schema")
    method: str
    edition: Literal[_NAMES]  # type: ignore[valid-type]
    verdict: Literal["passes", "walked back", "undecided"]
    failed: Annotated[Many[Literal[_WALKING_BACK]], AfterValidator(_each_once)] = _described(  # type: ignore[valid-type]
        "The checks that walk the claim back.", json_schema_extra={"uniqueItems": True}
    )
    measurement_valid: bool | None = _described("Is the reference valid by the edition's own check?")
    clamped_readable: bool | None = _described(
        "Is the cosine as scripts compute it, with an epsilon of 1e-8, readable in this dtype?"
    )
    unclamped_exact: bool | None = _described(
        "Is the cosine without a clamp the one that float64 gives? null where it was not asked; of the gradient alone "
        "where credit_exact is null."
    )
    credit_exact: bool | None = _described(
        "Does float64 give the credit the same cosines? null where it was not asked: exactness is then the gradient's.",
        default=None,
    )
    depth_used: bool | None
    submode: Literal["drift-dominated", "noise-dominated"] | None
    nonfinite: Many[Nonfinite] = _described("Where states or gradients are not finite, first batch first.")
    altered: _Altered | None = _described(
        "How the network's own backward pass was found not to be the derivative of its loss."
    )
    doubted: _Doubted | None = _described(
        "Why the backward pass could not be checked, where something could have altered it."
    )
    notes: Many[_Said] = _described(
        "Everything said beside the numbers. Read code, site and values; text is for people."
    )
    chain: Many[_Step] = _described("The walk-back chain in its four steps.", min_length=4, max_length=4)
    findings: Many[_Checked] = Field(min_length=min(_SIZES) - 1, max_length=max(_SIZES))  # one of depth is enough
    headline_acc: Accuracy
    frozen_baseline_acc: Accuracy
    bp_acc: Accuracy = None
    values: _Values  # type: ignore[valid-type]
    per_layer: _PerLayer  # type: ignore[valid-type]
    aggregates: dict[Name, float | None] = _described("Γ in the orders of averaging in use.")
    controls: dict[Name, Many[float | None] | None]
    depth: _Depth | None = _described(
        "What the trained blocks are worth, from one checkpoint; null where it was not measured.", default=None
    )
    run: _Run = _described("What is known of the training run.")
    thresholds: _Thresholds
    conditions: _Conditions = _described(  # type: ignore[valid-type]
        "Under what was measured; more entries may be added."
    )
    reasons: dict[str, Text]

    @model_validator(mode="after")
    def _sense(self) -> Document:
        """Check what types can't: lists of one length, intervals that don't end before they begin, a check of depth."""
        lists, values = dict(self.per_layer), dict(self.values)
        sizes = {len(numbers) for numbers in lists.values() if numbers}
        if len(sizes) > 1:
            raise ValueError("lists in per_layer should have one length, an entry per site")
        if why := crossed({**lists, **values}, ENDS):
            raise ValueError(f"an interval should not end before it begins: {why}")
        if why := impossible(lists, values, conditions := dict(self.conditions)):
            raise ValueError(f"its numbers can't be true together: {why}")
        sites = max(sizes, default=0) or len(conditions.get("state_shapes") or ())
        for name, row in self.controls.items():
            if row and sites and len(row) != sites:
                raise ValueError(
                    f"controls.{name} should have one value for each of {sites} sites, but it has {len(row)}"
                )
        if odd := [name for name, value in self.aggregates.items() if value is not None and abs(value) > 1 + 1e-6]:
            raise ValueError(f"orders of averaging Γ should be between -1 and 1, but {odd[0]} is not")
        if any(n.site is not None and sites and n.site >= sites for n in (*self.nonfinite, *self.notes)):
            raise ValueError(f"sites should be those of the numbers, below {sites}")
        if self.depth is not None:
            Depth.of(self.depth.model_dump(), "depth")
        questions = {ABOUT[f.check] for f in self.findings if not f.beside}
        if not questions & set(DEPTH) or not {"growth", "reference"} <= questions:
            raise ValueError("findings should have scale stability, a check of the reference and one of depth")
        return self


# -- the schema ----------------------------------------------------------------------------------------------------


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of the format: what `schemas/report-2.json` holds."""
    made = Document.model_json_schema()
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA, "title": "A Walkback report"}
    return {**head, **whole(Document), "$defs": {"accuracy": tidy(made["$defs"]["Accuracy"], {})}}


# -- reading -------------------------------------------------------------------------------------------------------


def read_report(data: object, where: str = "the report") -> dict[str, Any]:
    """Return the fields of a Report that a document of this format, or of the one before it, holds."""
    schema = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(data, dict) or schema not in (SCHEMA, report_1.SCHEMA):
        raise FormatError(
            f"Expected {where} to be a report of schema {SCHEMA}, but got {schema or type(data).__name__}. "
            "Numbers that are not a report go through walkback.judge."
        )
    try:
        json.dumps(data, allow_nan=False, default=str)
    except (ValueError, RecursionError):  # also where any value may stand
        raise FormatError(f"Expected {where} to hold finite numbers, not nested too deep, but it does not.") from None
    older = schema == report_1.SCHEMA
    if older:
        _check(report_1.Document, data, where)
    given: dict[str, Any] = report_1.as_report_2(data) if older else dict(data)
    _check(Document, given, where)
    if older:
        given |= report_1.readings(given)
    if why := contradiction(given):
        raise FormatError(f"Expected {where} to have the verdict of its own findings, but {why}.")
    for name in ("failed", "chain", "findings", "nonfinite"):
        given[name] = tuple(given[name])
    given["notes"] = tuple(Note.of(note) for note in given["notes"])
    return given


def _check(model: type[BaseModel], data: Mapping[str, Any], where: str) -> None:
    """Refuse what is not of the model: nothing that is read later has to look again."""
    conditions = data.get("conditions")
    if isinstance(conditions, dict):  # null: not known
        data = {**data, "conditions": {name: value for name, value in conditions.items() if value is not None}}
    try:
        model.model_validate(data)
    except ValidationError as error:
        schema = SCHEMA if model is Document else report_1.SCHEMA
        raise FormatError(_complaint(error.errors()[0], where, model, schema)) from None


_JSON = {"string": "a string", "object": "an object", "array": "a list"}


def _complaint(wrong: Any, where: str, model: type[BaseModel], schema: str) -> str:
    """Return what is wrong with a document: a part that is missing or of another kind, or a field inside one."""
    kinds_of_union = re.compile(r"(constrained|nullable|list|function)[-\[].*")
    *inside, name = [part for part in wrong["loc"] if not kinds_of_union.match(str(part))] or ["the whole"]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in (*inside, name))[1:]
    kinds = whole(model)["properties"].get((*inside, name)[0], {})
    kind = _JSON.get("string" if "enum" in kinds else str(kinds.get("type")))
    missing = wrong["type"] == "missing"
    if wrong["type"] == "extra_forbidden":
        what = f"got an unexpected keyword argument {name!r}" + (f" in {place}" if inside else "")
    elif not inside and kind and (missing or wrong["type"].endswith("_type")):
        got = "nothing" if missing else type(wrong["input"]).__name__
        return f"Expected {where} to be a whole report of {schema}, with {name} as {kind}, but got {got}."
    elif missing:
        what = f"{name!r} is missing" + (f": {place}" if inside else "")
    else:
        what = f"{place} is {shown(wrong['input'])}. {wrong['msg'].removeprefix('Value error, ')}"
    return f"Expected {where} to have the fields of {schema}, but: {what}."


if __name__ == "__main__":  # python -m walkback.report.formats.report_2 > src/walkback/schemas/report-2.json
    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
