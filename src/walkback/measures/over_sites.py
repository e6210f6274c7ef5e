"""What is measured of numbers per site: growth, Γ, concentration. No torch: logged numbers are judged without it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import isfinite
from typing import Any

# The published gradient norms are those of a mean loss over 128 samples: per-sample norms ÷ 128.
PUBLISHED_BATCH = 128

Numbers = list[float | None]

# The sites that Γ and the deep mean are taken over, by name; the first is the default.
GAMMA_OVER = ("0..L-1", "0..L")
DEEP_OVER = ("1..L", "1..L-1")


def growth(norms: Numbers, shapes: list[tuple[Any, ...]] | None = None) -> tuple[float | None, float | None, str]:
    """Return (max over l of ‖h_{l+1}‖/‖h_l‖, ‖h_L‖/‖h_0‖, why one is None). Sites of one shape are compared.

    >>> growth([1.0, 3.0, 6.0])
    (3.0, 6.0, '')
    """
    if len(norms) < 2:
        return None, None, f"growth needs at least 2 sites, got {len(norms)}"
    if None in norms:
        return None, None, f"a state norm is missing: {_sites(norms, None)}"
    known = [float(n) for n in norms if n is not None]
    same = [True] * (len(known) - 1) if shapes is None else [a == b for a, b in pairwise(shapes)]
    if 0.0 in known[:-1]:
        return None, None, f"a state norm is zero: {_sites(known[:-1], 0.0)}, so growth from there has no value"
    steps, whole = [b / a for a, b in pairwise(known)], known[-1] / known[0]
    if not all(isfinite(ratio) for ratio in (*steps, whole)):
        return None, None, "the ratio of two state norms overflows float64"
    ratios, total = [r for r, ok in zip(steps, same) if ok], whole if all(same) else None
    if not ratios:
        return None, total, "no two neighbouring sites have the same shape"
    return max(ratios), total, "" if all(same) else "the stream changes shape; growth is taken within stages"


def _sites(norms: Sequence[float | None], value: float | None) -> str:
    return ", ".join(f"‖h_{site}‖" for site, norm in enumerate(norms) if norm == value)


def block_growth(norms: Numbers, shapes: list[tuple[Any, ...]] | None = None) -> dict[int, float]:
    """Return site l -> ‖h_l‖/‖h_{l-1}‖, where there is such a ratio: its largest is the least that growth can be.

    >>> block_growth([0.0, 1.0, 3.0, None, 4.0])
    {2: 3.0}
    """
    return {
        site: after / before
        for site, (before, after) in enumerate(pairwise(norms), 1)
        if before and after is not None and (shapes is None or shapes[site - 1] == shapes[site])
    }


def averaged(cosines: Numbers, layers: bool, over: str = GAMMA_OVER[0]) -> Numbers:
    """Return the cosines that Γ averages: cos_0 … cos_{L−1} of a stream, those of all hidden layers of a plain network.

    The site where rules like FA are exact by construction is left out, unless `over` is "0..L". Of a plain network
    that is the output layer, which is no site.

    >>> averaged([0.1, 0.2, 1.0], layers=False), averaged([0.1, 0.2], layers=True)
    ([0.1, 0.2], [0.1, 0.2])
    """
    return cosines if layers or over == "0..L" else cosines[:-1]


def mean(values: Numbers) -> float | None:
    """Return the mean, or None when anything is missing: Γ is that of `averaged` cosines."""
    return None if not values or None in values else sum(v for v in values if v is not None) / len(values)


def concentration(cosines: Numbers) -> float | None:
    """Return the share of Σ|cos_l| that its largest site carries; 1/n when all n sites agree.

    >>> concentration([0.75, -0.25, 0.0])
    0.75
    """
    known = [abs(c) for c in cosines if c is not None]
    if not known or len(known) < len(cosines) or sum(known) == 0.0:
        return None
    return max(known) / sum(known)


def deep_sites(cosines: Numbers, over: str = DEEP_OVER[0]) -> range:
    """Return sites 1…L, without L where its credit is the exact gradient by construction (as in FA) or `over` says so.

    >>> deep_sites([0.1, 0.2, 0.9]), deep_sites([0.1, 0.2, 1.0]), deep_sites([0.1, 0.2, 0.9], "1..L-1")
    (range(1, 3), range(1, 2), range(1, 2))
    """
    last = cosines[-1] if cosines else None
    short = over == "1..L-1" or (last is not None and last > 1 - 1e-6)
    return range(1, len(cosines) - 1 if short else len(cosines))


def cosine_error(disagreement: Numbers, shift: Numbers) -> tuple[float | None, int | None]:
    """Return how far rounding puts a cosine off at the worst site, and which: the larger of disagreement and |shift|.

    >>> cosine_error([1e-12, 0.3], [0.0, -0.1])
    (0.3, 1)
    """
    both = enumerate(zip(disagreement, shift or [None] * len(disagreement)))
    known = [(abs(v), site) for site, pair in both for v in pair if v is not None]
    return max(known, key=lambda one: one[0]) if known else (None, None)


def crossed(numbers: Mapping[str, Any], ends: Iterable[tuple[str, str]]) -> str:
    """Return which interval ends before it begins, at which site; "" where none does.

    >>> crossed({"null_low": [0.0, 0.2], "null_high": [0.1, 0.1]}, [("null_low", "null_high")])
    'null_low is 0.2 and null_high 0.1 at site 1'
    """
    for low, high in ends:
        a, b = numbers.get(low), numbers.get(high)
        sites = isinstance(a, (list, tuple)) and isinstance(b, (list, tuple))
        pairs: list[tuple[Any, Any]] = list(zip(a, b)) if sites else [(a, b)]  # type: ignore[arg-type]
        for site, (x, y) in enumerate(pairs):
            if x is not None and y is not None and x > y:
                return f"{low} is {x:g} and {high} {y:g}" + (f" at site {site}" if sites else "")
    return ""


def student(freedom: float) -> float:
    """Return the 97.5 % quantile of Student's t distribution.

    >>> round(student(7), 3)
    2.365
    """
    from scipy.special import stdtrit  # not scipy.stats, which takes a second to load

    return float(stdtrit(freedom, 0.975))


def reads_as(
    cosine: float | None, low: float | None, high: float | None, interval: tuple[float | None, float | None]
) -> str | None:
    """Return "signal" where the cosine and its interval lie outside the null band, else "noise"; None without a band.

    >>> reads_as(0.05, -0.12, 0.12, (None, None)), reads_as(0.05, -0.01, 0.01, (0.04, 0.06))
    ('noise', 'signal')
    """
    if cosine is None or low is None or high is None:
        return None
    ends = [cosine, *(x for x in interval if x is not None)]
    return "signal" if min(ends) > high or max(ends) < low else "noise"
