"""One row of logged numbers, of any framework -> Measurements. Its model is made of the table of quantities."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf, isclose, isfinite
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from walkback.errors import InputError, cut, shown
from walkback.measures.dtypes import SMALLEST, dtype_name
from walkback.measures.measurements import Measurements, comparable, of_cosines, stream_shapes
from walkback.measures.over_sites import (
    PUBLISHED_BATCH,
    Numbers,
    block_growth,
    crossed,
    growth,
)
from walkback.measures.quantities import ENDS, LOGGED_SCALARS, NAME, PER_SITE, QUANTITIES, SCALAR_FIELDS, SITE_FIELDS
from walkback.notes import RENEWED, Note
from walkback.report.formats import report_1, report_2
from walkback.report.formats.sense import impossible, impossible_conditions, odd_facts

# One row of what `walkback.Watch` writes.
WATCH_SCHEMA = "walkback.watch/1"
# How logs spell the accuracies of a claim.
ACCURACIES = {
    "headline_acc": ("headline_acc", "test_acc", "acc", "accuracy"),
    "frozen_baseline_acc": ("frozen_baseline_acc", "frozen_acc"),
    "bp_acc": ("bp_acc",),
}
# Conditions that may stand at the top of a row, where a column of a table puts them.
CONDITIONS = ("g_norm_batch_size", "dtype")
# Samples that a mean loss can be over; a norm that is multiplied by more says nothing.
LARGE_BATCH, LARGEST_BATCH = 2**16, 2**24
_PARTS = {"per_layer": [q.name for q in PER_SITE], "values": LOGGED_SCALARS, "conditions": CONDITIONS}


# -- the model -----------------------------------------------------------------------------------------------------


def _bare(value: Any) -> Any:
    """Return a number without its library (NumPy, torch, JAX), and what strict JSON spells as text."""
    if type(value) is float:
        return value
    value = value.tolist() if hasattr(value, "tolist") else value
    named = isinstance(value, str) and value.lower() in ("nan", "inf", "-inf", "infinity", "-infinity")
    return float(value) if named else value


def _listed(values: Any) -> Any:
    if type(values) is not list:  # as JSON has it, and by far most are
        values = values.tolist() if hasattr(values, "tolist") else values
    if values is None or isinstance(values, str) or not isinstance(values, (list, tuple, Sequence)):
        return [] if values is None else values
    return [v if type(v) is float else _bare(v) for v in values]


def _within(name: str) -> Callable[[Any], Any]:
    """Return a check that refuses what a quantity can't be. Rounding may put a cosine or a share off its range."""
    q = QUANTITIES[name]
    rounding = 1e-6 if q.high == 1 else 0.0
    low, high = q.low - rounding, q.high + rounding
    wanted = f"between {q.low:g} and {q.high:g}" if q.high == 1 else f"to be at least {q.low:g}"

    def check(given: Any) -> Any:
        for site, value in enumerate(given if q.per_site else [given]):
            if value is not None and (value < low or value > high):  # NaN is neither
                at = f"[{site}]" if q.per_site else ""
                raise PydanticCustomError("range", wanted, {"at": at, "value": value})  # type: ignore[arg-type]
        return given

    return check


def _object(value: Any) -> Any:
    return {} if value is None else dict(value) if isinstance(value, Mapping) else value


Number = Annotated[float | None, BeforeValidator(_bare)]
Sites = Annotated[list[float | None], BeforeValidator(_listed)]
Part = Annotated[dict[Any, Any], BeforeValidator(_object)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


def _model(name: str, kind: Any, default: Any) -> type[BaseModel]:
    fields = {key: (Annotated[kind, AfterValidator(_within(key))], default) for key in _PARTS[name]}
    return report_1.model(name, _Strict, fields)


_PerLayer, _Values = _model("per_layer", Sites, ()), _model("values", Number, None)


class _Facts(_Strict):
    nonfinite: list[report_2.Nonfinite] | None = None
    notes: list[dict[str, Any]] | None = None


class Row(_Strict):
    """One row: numbers per site and per network, under what they were measured, and what else a report has."""

    per_layer: _PerLayer = _PerLayer()  # type: ignore[valid-type]
    values: _Values = _Values()  # type: ignore[valid-type]
    conditions: Part = {}
    g_norm_batch_size: Number = None
    reasons: Part = {}
    aggregates: Annotated[dict[Any, Number], BeforeValidator(_object)] = {}
    controls: Annotated[dict[Any, Sites], BeforeValidator(_object)] = {}
    run: Part = {}


def parse_row(row: Mapping[str, Any], where: str) -> Row:
    """Return a row with its numbers in their parts, wherever in it they were logged."""
    parts = {name: row.get(name) for name in Row.model_fields}
    for name, inside in _PARTS.items():
        top = {key: row[key] for key in inside if row.get(key) is not None}
        given = parts[name]
        if isinstance(given, Mapping):
            _refuse_twice(top, given, name, where)
        parts[name] = {**top, **given} if isinstance(given, Mapping) else top if given is None else given
    if isinstance(parts["conditions"], Mapping):
        parts["g_norm_batch_size"] = parts["conditions"].get("g_norm_batch_size")
    try:
        given = Row.model_validate(parts)
        _refuse_nonsense(given, where)
        return given
    except ValidationError as error:
        wrong: Any = error.errors()[0]
    part, *rest = wrong["loc"]
    name = "".join(f"[{key}]" if isinstance(key, int) else str(key) for key in rest) or part
    kind, given = wrong["type"], wrong["input"]
    if kind == "range":
        what = f"{name}{wrong['ctx']['at']} in {where} {wrong['msg']}, but got {wrong['ctx']['value']:g}"
    elif kind == "float_type":
        what = f"{name} in {where} to be a number or null, but got {shown(given)}"
    else:
        wanted = "a list over sites 0…L" if kind == "list_type" else "an object"
        what = f"{name} in {where} to be {wanted}, but got {type(given).__name__}"
        if kind == "list_type" and name in ("h_norm", "g_norm"):
            raise InputError(f"Expected {what}. Where only the last site is known, call it {name}_last.")
    raise InputError(f"Expected {what}.")


def _refuse_twice(top: Mapping[str, Any], given: Mapping[str, Any], part: str, where: str) -> None:
    """Refuse a number that stands in two places of a row with two values."""
    for name, value in top.items():
        other = given.get(name)
        if other is not None and plain(value) != plain(other):
            raise InputError(
                f"Expected {name} in {where} once, but got {shown(value)} and, in {part}, {shown(other)}. Log one of "
                "them."
            )


# -- the numbers ---------------------------------------------------------------------------------------------------


def measurements(row: Mapping[str, Any], where: str = "the numbers") -> Measurements:
    """Return the numbers of one logged row, or of a report as a dict, ready to be judged.

    >>> measurements({"per_layer": {"h_norm": [9.0, 2e3], "g_norm": [3e-9, 4e-9]}}).g_norm
    [3e-09, 4e-09]
    """
    given = parse_row(row, where)
    logged: dict[str, float | None] = dict(vars(given.values))
    sites: dict[str, list[float | None]] = vars(given.per_layer)  # most are empty: a log has a few of them
    scalars = {name: v if v is None or isfinite(v) else None for name, v in logged.items()}
    # Name -> where it is not finite: (site, what was logged instead of a list).
    bad: dict[str, list[tuple[int | None, str]]] = {
        name: [(site, "") for site, v in enumerate(values) if v is not None and not isfinite(v)] if values else []
        for name, values in sites.items()
    }
    lists: dict[str, Numbers] = {n: [*map(_finite, v)] if bad[n] else v or [] for n, v in sites.items()}
    finite = {name for name in ("h_norm", "g_norm") if not bad[name]}
    conditions = plain(given.conditions)
    reasons = {str(k): str(v) for k, v in given.reasons.items()}
    h, g, cosine = lists["h_norm"], lists["g_norm"], lists["cosine"]
    _refuse_impossible(impossible_conditions(conditions, max(map(len, lists.values()))), where)
    shapes = stream_shapes(conditions, len(h))
    sizes = comparable(lists["h_norm_all"] or h, conditions)  # what growth is taken of
    derived, derived_total, why = growth(*sizes)
    of_lists = {"growth": derived, "growth_total": derived_total, "g_norm_deepest": g[-1] if g else None}
    of_lists |= (anew := of_cosines(cosine, conditions))
    if shapes is None and report_1.changes_shape(reasons):  # shapes that the row does not tell
        of_lists |= {"growth": None, "growth_total": None}
    elif derived is None and logged["growth"] is not None:  # a ratio that is left can't be above the largest
        least = max(block_growth(*sizes).values(), default=0.0)
        of_lists["growth"] = least if least > logged["growth"] else None
    for name, of in _DERIVED.items():
        number, beside = logged[name], of_lists[name]
        if number is not None and beside is not None:
            _same(name, number, of, beside, where)
        elif number is not None and not isfinite(number) and of in finite and of != "cosine":
            bad[of].append((None, f"{name} = {number}"))
    if not g and scalars["g_norm_deepest"] is not None:  # only the last site's was logged
        g = [*[None] * (max(map(len, lists.values())) - 1), scalars["g_norm_deepest"]]
    elif g and g[-1] is None and "g_norm" in finite:
        g = [*g[:-1], scalars["g_norm_deepest"]]
    _refuse_unusable(row, lists | _probes(given), logged, bool(g), where)
    for name in lists:
        if name not in ("h_norm", "g_norm") and bad[name]:
            reasons.setdefault(name, f"not finite {', '.join(f'at site {site}' for site, _ in bad[name])}, as logged")
    if scalars["growth"] is None and h:
        total = scalars["growth_total"]
        scalars |= {"growth": derived, "growth_total": derived_total if total is None else total}
        if derived is None:
            reasons["growth"] = why
    scalars |= {name: value for name, value in anew.items() if scalars[name] is None}
    _refuse_impossible(impossible(lists, scalars, conditions), where)
    facts = _facts(row, reasons, where)
    facts["notes"] += tuple(_doubts(row, given, conditions))
    at = [(kind, *one) for name, kind in (("h_norm", "state"), ("g_norm", "gradient")) for one in bad[name]]
    facts["nonfinite"] = (*(_nonfinite(*one) for one in at), *facts["nonfinite"])
    batch = given.g_norm_batch_size or PUBLISHED_BATCH
    for name in ("g_norm_deepest_low", "g_norm_deepest_high"):  # as ‖g_L‖ itself
        end = scalars[name]
        scalars[name] = None if end is None else end * batch / PUBLISHED_BATCH
    return Measurements(
        **{name: lists[name] for name in SITE_FIELDS if name != "g_norm"},
        g_norm=_of_published_batch(g, given.g_norm_batch_size, conditions, where),
        **{name: scalars[name] for name in SCALAR_FIELDS},
        aggregates={str(k): _finite(v) for k, v in given.aggregates.items()},
        probes={
            **{str(k): [_finite(v) for v in values] for k, values in given.controls.items()},
            **{name: values for name, values in lists.items() if name not in SITE_FIELDS and values},
        },
        **facts,
        dtype=_dtype(conditions),
        conditions=conditions,
        reasons=reasons,
    )


# Scalars that the numbers per site beside them decide.
_DERIVED = {"growth": "h_norm", "growth_total": "h_norm", "g_norm_deepest": "g_norm"}
_DERIVED |= dict.fromkeys(("gamma", "gamma_concentration", "deep_cosine"), "cosine")


def _doubts(row: Mapping[str, Any], given: Row, conditions: Mapping[str, Any]) -> Iterator[Note]:
    """Yield what makes numbers doubtful that can be judged: training mode, an absurd batch, sites without a number."""
    mode, batch = conditions.get("mode"), conditions.get("g_norm_logged_batch_size") or given.g_norm_batch_size
    if mode is not None and mode != "eval":
        yield Note("training-mode", None, {"mode": cut(str(mode), 40)})
    if isinstance(batch, (int, float)) and batch > LARGE_BATCH:
        yield Note("large-batch", None, {"batch": batch, "factor": batch / PUBLISHED_BATCH})
    bands = enumerate(zip(given.per_layer.null_low or (), given.per_layer.null_high or ()))
    if apart := [site for site, (low, high) in bands if None not in (low, high) and not low <= 0 <= high]:
        yield Note("null-without-zero", None, {"sites": apart})
    if odd := odd_facts(row):
        yield Note("odd-facts", None, {"told": ", ".join(f"{k} {v}" for k, v in odd.items()), "facts": odd})
    if row.get("schema") is None:  # a report says in its reasons why
        lists = {name: getattr(given.per_layer, name) for name in ("h_norm", "g_norm", "cosine")}
        bare = {name: [i for i, v in enumerate(numbers) if v is None] for name, numbers in lists.items()}
        some = {n: sites for n, sites in bare.items() if 0 < len(sites) < len(lists[n]) and n not in given.reasons}
        if some:
            places = (
                f"{name} at {', '.join(map(str, sites[:8]))}{', …' * (len(sites) > 8)}" for name, sites in some.items()
            )
            yield Note("missing-sites", None, {"told": "; ".join(places), "sites": some})


def _of_published_batch(g: Numbers, batch: float | None, conditions: dict[str, Any], where: str) -> Numbers:
    """Return gradient norms as those of a mean loss over the published batch; the logged one goes to `conditions`."""
    if batch is None or batch == PUBLISHED_BATCH:
        return g
    if not 1 <= batch <= LARGEST_BATCH:
        raise InputError(f"Expected g_norm_batch_size in {where} to be 1 to {LARGEST_BATCH}, but got {batch:g}.")
    conditions |= {"g_norm_batch_size": PUBLISHED_BATCH, "g_norm_logged_batch_size": batch}
    return [None if x is None else x * batch / PUBLISHED_BATCH for x in g]


def _refuse_unusable(
    row: Mapping[str, Any], lists: Mapping[str, Numbers], logged: Mapping[str, Any], has_g: bool, where: str
) -> None:
    """Raise where a row has nothing to judge, or lists over sites of several networks."""
    known = lists["h_norm"] or has_g or lists["float64_disagreement"] or any(v is not None for v in logged.values())
    if not known and all(row.get(name) is None for names in ACCURACIES.values() for name in names):
        raise InputError(
            f"Expected {where} to hold per_layer.h_norm, per_layer.g_norm, values or accuracies, but found none of "
            f"them among: {cut(', '.join(map(str, row)), 400) or 'nothing'}."
        )
    sizes = {name: len(values) for name, values in lists.items() if values}
    if len(set(sizes.values())) > 1:
        hint = " Where only the last site's was logged, call it g_norm_deepest." if sizes.get("g_norm") == 1 else ""
        raise InputError(
            f"Expected per-layer lists of one length in {where}, one entry per site, but got {sizes}.{hint}"
        )


def _probes(given: Row) -> dict[str, Numbers]:
    return {str(name): values for name, values in given.controls.items()}


def _refuse_impossible(why: str, where: str) -> None:
    if why:
        raise InputError(f"Expected numbers in {where} that can be true together, but {why}.")


def _same(name: str, number: float, of: str, derived: float, where: str) -> None:
    """Refuse a number that is not what the list beside it gives: which of them is right can't be told."""
    if isclose(number, derived, rel_tol=1e-3, abs_tol=1e-3 if of == "cosine" else 0.0):
        return
    shapes = "" if of != "h_norm" else " Where the stream changes shape, say so in conditions.state_shapes."
    raise InputError(
        f"Expected {name} in {where} to be that of {of} beside it, {derived:.6g}, but got {number:.6g}. Log both from "
        f"the same network and samples, or only one of them.{shapes}"
    )


def _dtype(conditions: Mapping[str, Any]) -> str:
    name = dtype_name(conditions.get("gradient_dtype") or conditions.get("dtype") or "float32")
    if name not in SMALLEST:
        raise InputError(f"Expected the logged dtype to be a floating point type of torch, but got {name!r}.")
    return name


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


DEEPEST = 100  # levels of lists and tables in what is logged; Python's own limit depends on its version


def plain(value: Any, level: int = 0) -> Any:
    """Return what JSON can hold: numbers that are not finite become None, what it does not know becomes text."""
    if level > DEEPEST:
        raise RecursionError(f"more than {DEEPEST} levels")
    if type(value) is float:
        return value if isfinite(value) else None
    if type(value) in (str, int, bool, type(None)):
        return value
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, Mapping):
        return {str(k): plain(v, level + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v, level + 1) for v in value]
    if isinstance(value, float):
        return value if isfinite(value) else None
    return value if value is None or isinstance(value, (str, int)) else str(value)


@lru_cache(maxsize=256)
def _is_name(text: str) -> bool:
    return re.fullmatch(NAME, text) is not None


def _refuse_nonsense(given: Row, where: str) -> None:
    """Raise where numbers can't be true: an interval that ends before it begins, a Γ above 1."""
    lists, values = vars(given.per_layer), vars(given.values)
    ends = {name: lists[name] if name in lists else values[name] for pair in ENDS for name in pair}
    if any(ends.values()) and (why := crossed(ends, ENDS)):
        raise InputError(f"Expected intervals in {where} that do not end before they begin, but {why}.")
    for name in (*given.aggregates, *given.controls):
        if not _is_name(str(name)):
            raise InputError(f"Expected names in aggregates and controls of {where} as words, but got {shown(name)}.")
    for name, value in given.aggregates.items():
        if value is not None and 1 + 1e-6 < abs(value) < inf:
            raise InputError(f"Expected {name} of Γ's aggregates in {where} between -1 and 1, but got {value:g}.")


# -- what is said beside them --------------------------------------------------------------------------------------


def _facts(row: Mapping[str, Any], reasons: Mapping[str, str], where: str) -> dict[str, Any]:
    """Return what a row says of its reference, and its notes: from fields, or of an older row from its sentences."""
    ours = row.get("schema") in (report_2.SCHEMA, report_1.SCHEMA, WATCH_SCHEMA)
    if row.get("schema") == report_2.SCHEMA or "nonfinite" in row:
        fields: dict[str, Any] = {k: row.get(k) for k in ("nonfinite", "altered", "doubted")}
        fields["notes"] = row.get("notes") if ours else None
    else:
        fields = report_1.notes(row.get("advisories") if ours else ())
        if not ours:  # rows of a run say it in their reasons
            fields["nonfinite"] = report_1.nonfinite_reasons(reasons)
    if not any(fields.values()):
        return {"nonfinite": (), "notes": (), "altered": None, "doubted": None}
    try:
        facts = _Facts.model_validate(fields)
        notes = tuple(Note.of(one) for one in facts.notes or () if one["code"] not in RENEWED)
        codes = {"altered": "altered-backward", "doubted": "unchecked-backward"}
        one = {k: None if fields[k] is None else Note(code, None, dict(fields[k])) for k, code in codes.items()}
        _ = [note.text for note in one.values() if note is not None]  # now, and not where a report is printed
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"Expected {where} to hold its notes as a report writes them, but: {shown(error)}.") from None
    nonfinite = tuple(_nonfinite(n.kind, n.site, n.logged, n.batch) for n in facts.nonfinite or ())
    return {"nonfinite": nonfinite, "notes": notes, **one}


def _nonfinite(kind: str, site: int | None, logged: str = "", batch: int | None = None) -> Note:
    return Note("nonfinite", site, {"kind": kind, "batch": batch, **({"logged": logged} if logged else {})})
