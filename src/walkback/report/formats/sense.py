"""What numbers of one network can't be true together, of a logged row and of a report alike. No torch.

Each bound holds of means over samples, whatever the network: where one does not, two of the numbers are of different
networks or samples, or one of them is no such thing. Which of them is wrong can't be told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from math import isfinite
from typing import Any

from walkback.errors import shown
from walkback.measures.measurements import deep_of, gamma_cosines
from walkback.measures.over_sites import DEEP_OVER, GAMMA_OVER, cosine_error
from walkback.measures.quantities import ENDS
from walkback.registry import is_number

Lists = Mapping[str, Sequence[float | None] | None]
Values = Mapping[str, float | None]

SLACK = 1e-3  # of what is printed with three digits
_COUNTS = ("batches", "samples", "distinct_samples", "stability_group", "test_samples", "classes")


def impossible(lists: Lists, values: Values, conditions: Mapping[str, Any]) -> str:
    """Return the first thing that can't be true of these numbers together; "" where nothing is wrong.

    >>> impossible({"cosine": [0.9, 0.9], "zero_credit": [0.5, 0.0]}, {}, {})
    'cosine is 0.9 at site 0, where 50% of the samples have no credit, which count as 0'
    """
    parts = (_of_intervals, _of_cosines, _of_means, _of_growth, _of_precision)
    found = (why for part in parts for why in part(lists, values, conditions))
    return impossible_conditions(conditions, _sites(lists)) or next(found, "")


def impossible_conditions(conditions: Mapping[str, Any], sites: int) -> str:
    """Return the first condition that can't be, of numbers at so many sites (0: not known); "" where all can.

    >>> impossible_conditions({"samples": 1024, "distinct_samples": 2048}, 5)
    'conditions.distinct_samples is 2048, of 1024 samples'
    """
    return next(_of_conditions(conditions, sites), "")


def _sites(lists: Lists) -> int:
    return max((len(row) for row in lists.values() if row), default=0)


def odd_facts(row: Mapping[str, Any]) -> dict[str, str]:
    """Return what a row says of its epoch, step and seed that can't be, quoted; names in their place are left alone.

    >>> odd_facts({"epoch": 12, "total_epochs": 10, "seed": 2.5, "step": "last"})
    {'epoch': '12 of 10', 'seed': '2.5'}
    """
    odd = {}
    for name in ("epoch", "step", "total_epochs", "total_steps", "seed"):
        value = row.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            whole = isinstance(value, int) or (isfinite(value) and value.is_integer())
            if not 0 <= value < 2**63 or (name == "seed" and not whole):
                odd[name] = shown(value)
    for unit in ("epoch", "step"):
        done, total = row.get(unit), row.get(f"total_{unit}s")
        if is_number(done) and is_number(total) and done > total and unit not in odd:  # type: ignore[operator]
            odd[unit] = f"{shown(done)} of {shown(total)}"
    return dict(sorted(odd.items()))


# -- under what it was measured ------------------------------------------------------------------------------------


def _of_conditions(conditions: Mapping[str, Any], sites: int) -> Iterator[str]:
    for name in (name for name in _COUNTS if conditions.get(name) is not None):
        if not _whole(conditions[name]):
            yield f"conditions.{name} should be a whole number, 1 or more, but is {shown(conditions[name])}"
    sizes = conditions.get("batch_size")
    each = sizes if isinstance(sizes, list) else [] if sizes is None else [sizes]
    if not all(map(_whole, each)):
        yield f"conditions.batch_size should be whole numbers, 1 or more, but is {shown(sizes)}"
    for name in ("probe_accuracy", "weights_in_sites"):
        share = conditions.get(name)
        if share is not None and not (is_number(share) and 0 <= share <= 1):
            yield f"conditions.{name} should be between 0 and 1, but is {shown(share)}"
    size = conditions.get("g_norm_logged_batch_size")
    if size is not None and not (is_number(size) and size >= 1):
        yield f"conditions.g_norm_logged_batch_size should be 1 or more, but is {shown(size)}"
    for name, known in (("gamma_over", GAMMA_OVER), ("deep_over", DEEP_OVER)):
        if conditions.get(name) is not None and conditions[name] not in known:
            yield f"conditions.{name} should be {' or '.join(known)}, but is {shown(conditions[name])}"
    shapes = conditions.get("state_shapes")
    if shapes is not None and not (isinstance(shapes, list) and all(map(_shape, shapes))):
        yield f"conditions.state_shapes should list sizes by site, but is {shown(shapes)}"
    elif shapes is not None and sites and len(shapes) != sites:
        yield f"conditions.state_shapes has {len(shapes)} sites and the numbers {sites}"
    yield from _of_counts(conditions, sizes)


def _of_counts(conditions: Mapping[str, Any], sizes: Any) -> Iterator[str]:
    samples, batches = conditions.get("samples"), conditions.get("batches")
    for name in ("batches", "distinct_samples"):
        if samples is not None and (conditions.get(name) or 0) > samples:
            yield f"conditions.{name} is {conditions[name]}, of {samples} samples"
    if samples is not None and batches is not None and sizes:
        most = batches * max(sizes if isinstance(sizes, list) else [sizes])
        if samples > most:
            yield f"conditions.samples is {samples}, where {batches} batches of that size hold {most} at most"


def _whole(value: Any) -> bool:
    return is_number(value) and value >= 1 and value == int(value)


def _shape(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(map(_whole, value))


# -- numbers beside numbers ----------------------------------------------------------------------------------------


def _of_intervals(lists: Lists, values: Values, _: Mapping[str, Any]) -> Iterator[str]:
    """A number lies in its interval, at every site; null bands are about another number."""
    for low, high in ENDS:
        name = low[:-4]
        if low in lists:
            three = [(f" at site {i}", *numbers) for i, numbers in enumerate(_together(lists, name, low, high))]
        else:
            three = [("", _middle(name, lists, values), values.get(low), values.get(high))]
        for place, value, least, most in three if name != "null" else ():
            if value is None:
                continue
            off = SLACK * max(abs(value), *(abs(end) for end in (least, most) if end is not None), 0.0)
            for end, beyond in ((least, value < (least or 0.0) - off), (most, value > (most or 0.0) + off)):
                if end is not None and beyond:
                    yield f"{name} is {value:.6g}{place}, outside of its interval, which ends at {end:.6g}"


def _middle(name: str, lists: Lists, values: Values) -> float | None:
    """Return the number that an interval is of, where it is logged or follows."""
    if values.get(name) is not None or name == "growth":
        return values.get(name)
    if name == "g_norm_deepest":
        return ((lists.get("g_norm") or [None])[-1:] or [None])[0]
    return cosine_error(*([*(lists.get(of) or ())] for of in ("float64_disagreement", "float64_shift")))[0]


def _of_cosines(lists: Lists, _: Values, __: Mapping[str, Any]) -> Iterator[str]:
    for site, (cosine, zero, clamped) in enumerate(_together(lists, "cosine", "zero_credit", "cosine_clamped")):
        if cosine is not None and zero is not None and abs(cosine) > 1 - zero + SLACK:
            yield (
                f"cosine is {cosine:g} at site {site}, where {zero:.0%} of the samples have no credit, which count as 0"
            )
        # Of each sample ε leaves a share of its cosine: most where it takes those of one sign only.
        if cosine is not None and clamped is not None:
            low, high = -(1 - cosine) / 2, (1 + cosine) / 2
            if not low - SLACK <= clamped <= high + SLACK:
                yield f"cosine_clamped is {clamped:g} at site {site}, where a cosine of {cosine:g} leaves {high:g}"


def _of_means(lists: Lists, values: Values, conditions: Mapping[str, Any]) -> Iterator[str]:
    """Γ and the deep mean of cosines that are there in part: the others are between −1 and 1."""
    cosine = [*(lists.get("cosine") or ())]
    counted = gamma_cosines(cosine or [None] * _sites(lists), conditions)
    deep = [cosine[site] for site in deep_of(cosine, conditions)] if cosine else []
    for name, of in (("gamma", counted), ("deep_cosine", deep)):
        known, value = [c for c in of if c is not None], values.get(name)
        if value is None or not known:
            continue
        total, open_ = sum(known), len(of) - len(known)
        if not (total - open_) / len(of) - SLACK <= value <= (total + open_) / len(of) + SLACK:
            yield f"{name} is {value:g}, which no values at the sites without a cosine make of the others"
    share = values.get("gamma_concentration")
    least = 1 / len(counted) if counted else 0.0
    if share is not None and (share <= 0 or share < least - SLACK):
        yield f"gamma_concentration is {share:g}, but the largest of {len(counted) or 'some'} has {least:g} or more"


def _of_growth(lists: Lists, values: Values, conditions: Mapping[str, Any]) -> Iterator[str]:
    """Return what growth over all blocks can't be: more than the largest of one, as often as there are blocks."""
    sites = _sites(lists)
    largest, total = values.get("growth"), values.get("growth_total")
    if largest is not None and total is not None and (sites > 1 or largest < 1):
        blocks = sites - 1 if sites > 1 else 1
        most = _power(largest, blocks)
        if total > most * _power(1 + SLACK, blocks):
            yield f"growth_total is {total:.6g}, where growth is {largest:.6g} at most in each of {blocks} blocks"


def _power(value: float, times: int) -> float:
    try:
        return value**times
    except OverflowError:
        return float("inf")


def _of_precision(lists: Lists, values: Values, conditions: Mapping[str, Any]) -> Iterator[str]:
    beyond: tuple[tuple[str, str, Callable[[float], bool]], ...] = (
        ("float64_disagreement", "a mean of 1 − cos is 2 at most", lambda v: v > 2 + SLACK),
        ("float64_shift", "two cosines are 2 apart at most", lambda v: abs(v) > 2 + SLACK),
    )
    for name, why, is_beyond in beyond:
        for site, value in enumerate(lists.get(name) or ()):
            if value is not None and is_beyond(value):
                yield f"{name} is {value:g} at site {site}, but {why}"
    samples, group, stability = conditions.get("samples"), conditions.get("stability_group"), values.get("stability")
    if stability is None or not (_whole(samples) and _whole(group)):
        return
    groups = int(samples) // int(group)  # type: ignore[call-overload]
    if groups > 1 and stability < -1 / (groups - 1) - SLACK:
        least = -1 / (groups - 1)
        yield f"stability is {stability:g}, but the mean over pairs of {groups} directions is {least:g} at least"


def _together(lists: Lists, first: str, *others: str) -> Iterator[tuple[float | None, ...]]:
    """Yield by site the values of several lists, None where one is not there."""
    row, *beside = (lists.get(name) or () for name in (first, *others))
    yield from islice(zip_longest(row, *beside), len(row))
