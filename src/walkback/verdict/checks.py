"""Numbers against thresholds: Measurements -> Findings. One function per check, no verdict yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import isfinite, sqrt
from numbers import Real
from pathlib import Path
from sys import float_info
from typing import Any

import numpy as np

from walkback.errors import FormatError, InputError
from walkback.measures.accumulate import (
    Measurements,
    block_growth,
    cosine_error,
    growth,
    smallest_subnormal,
    stream_shapes,
)

Accuracy = float | Sequence[float] | None
# Which test samples are right, (N,) of the network and (N,) of its control, in the same order; or their counts.
Correct = tuple[Sequence[bool] | np.ndarray, Sequence[bool] | np.ndarray] | Mapping[str, int]


@dataclass(frozen=True)
class DiagnosticThresholds:
    """Where the checks flag. The defaults are the published ones.

    Args:
        g_norm_floor: D2 and (b) flag under this ‖g_L‖ (per-sample norm ÷ 128).
        h_norm_explosion_ratio: D1 and (a) flag above this growth of one block.
        stability_drift_ceiling: (c) calls a failed reference drift-dominated above this.
        frozen_acc_margin_pp: D3 and (d) flag under this gain over frozen blocks, in percentage points.
        cosine_error_limit: D2 of the intrinsic edition flags where rounding puts a reported cosine further off.

    >>> DiagnosticThresholds(h_norm_explosion_ratio=20.0).g_norm_floor
    1e-07
    """

    g_norm_floor: float = 1e-7
    h_norm_explosion_ratio: float = 50.0
    stability_drift_ceiling: float = 0.30
    frozen_acc_margin_pp: float = 2.0
    cosine_error_limit: float = 0.05

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, Real) or not isfinite(value):
                raise InputError(f"Expected {name} to be a finite number, but got {value!r}.")
            object.__setattr__(self, name, float(value))  # NumPy's scalars too: they don't go into JSON
        for name in ("g_norm_floor", "h_norm_explosion_ratio", "cosine_error_limit"):
            if getattr(self, name) <= 0:
                raise InputError(f"Expected {name} to be positive, but got {getattr(self, name)!r}.")

    @classmethod
    def load(cls, path: str | Path) -> DiagnosticThresholds:
        """Read a JSON or TOML file with any of the fields."""
        return cls.of(read_table(path), str(path))

    def save(self, path: str | Path) -> None:
        """Write a JSON file that `load` and `--thresholds` read."""
        import json

        try:
            Path(path).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise FormatError(f"Expected to write thresholds to {path}, but: {error.strerror}.") from None

    @classmethod
    def of(cls, table: object, where: str = "thresholds") -> DiagnosticThresholds:
        """From a mapping with any of the fields."""
        known = [f.name for f in fields(cls)]
        if not isinstance(table, dict) or set(table) - set(known):
            raise InputError(
                f"Expected {where} to hold any of {', '.join(known)}, but got "
                f"{', '.join(map(str, table)) if isinstance(table, dict) else type(table).__name__}."
            )
        return cls(**table)


@dataclass(frozen=True)
class Finding:
    """One check's answer. `flagged` is None when it could not be decided; then `cause` says why as a code (CAUSES),
    and `reason` in words. A flag that rests on something else than its value has a cause too.
    """

    check: str
    title: str
    value: float | None
    limit: float
    flags_when: str
    flagged: bool | None
    reason: str = ""
    interval: tuple[float, float] | None = None
    cause: str = ""

    @property
    def straddles(self) -> bool:
        """Was it tested, with an interval that has the limit inside?"""
        return self.cause == "straddles"


CAUSES = {
    "not-given": "what it needs was not given",
    "not-measured": "what it needs could not be measured",
    "straddles": "its interval has the limit inside",
    "task": "BP itself does not beat frozen blocks on this task",
    "nonfinite": "a state or gradient is not finite",
    "altered": "the reference is not the derivative of the loss",
    "partial": "the value is a lower bound: some of it is missing",
}

# The share of Σ|cos_l| above which one site is said to carry Γ (Mode 2's sign, advisory).
CONCENTRATED = 0.5


NOT_THE_GRADIENT = "the reference is not the derivative of the loss: the network's own backward pass is altered"


def scale_stability(check: str, m: Measurements, t: DiagnosticThresholds) -> Finding:
    """D1 and (a): does one block multiply the stream?

    Where growth has no value because some norm is missing or zero, the ratios that are left can still flag, but not
    pass: the largest may be hidden.
    """
    limit = t.h_norm_explosion_ratio
    if "state" in m.nonfinite_kinds:
        why = _first_nonfinite(m, "state")
        return Finding(check, "scale stability", None, limit, f"> {limit:g}", True, why, cause="nonfinite")
    shapes = stream_shapes(m.conditions, len(m.h_norm))
    if m.growth is None:
        least = max(block_growth(m.h_norm, shapes).values(), default=0.0)
        if least > limit:
            why = f"at least: {growth(m.h_norm, shapes)[2]}"
            value = min(least, float_info.max)  # a ratio that overflows can't be written in JSON
            return Finding(check, "scale stability", value, limit, f"> {limit:g}", True, why, cause="partial")
    flagged = None if m.growth is None else m.growth > limit
    cause = _missing(flagged, m.h_norm)
    told = "no state norms were given" if cause == "not-given" else growth(m.h_norm, shapes)[2]
    why = "" if flagged is not None else m.reasons.get("growth", told)
    return Finding(check, "scale stability", m.growth, limit, f"> {limit:g}", flagged, why, cause=cause)


def reference_validity(check: str, m: Measurements, floor: float) -> Finding:
    """D2 and (b): is the gradient that credit is compared with above the floor of the cosine?"""
    deepest = m.g_norm[-1] if m.g_norm else None
    if m.nonfinite_kinds:
        why = _first_nonfinite(m, "gradient")
        return Finding(check, "reference validity", deepest, floor, f"< {floor:.3g}", True, why, cause="nonfinite")
    if m.altered:
        why = NOT_THE_GRADIENT
        return Finding(check, "reference validity", deepest, floor, f"< {floor:.3g}", True, why, cause="altered")
    flagged = None if deepest is None else deepest < floor
    why = "" if flagged is not None else m.reasons.get("g_norm", "no gradient norms were given")
    cause = _missing(flagged, m.g_norm)
    return Finding(check, "reference validity", deepest, floor, f"< {floor:.3g}", flagged, why, cause=cause)


def reference_precision(check: str, m: Measurements, t: DiagnosticThresholds) -> Finding:
    """D2 of the intrinsic edition: how far does rounding put a reported cosine off, at the worst site?"""
    limit, title = t.cosine_error_limit, "reference precision"
    error, _ = cosine_error(m.float64_disagreement, m.float64_shift)
    if m.nonfinite_kinds:
        why = _first_nonfinite(m, "gradient")
        return Finding(check, title, error, limit, f"> {limit:g}", True, why, cause="nonfinite")
    if m.altered:
        return Finding(check, title, error, limit, f"> {limit:g}", True, NOT_THE_GRADIENT, cause="altered")
    if error is None:
        why = m.reasons.get("float64_disagreement", "the reference was not computed again in float64")
        return Finding(check, title, None, limit, f"> {limit:g}", None, why, cause="not-measured")
    return Finding(check, title, error, limit, f"> {limit:g}", error > limit)


def _first_nonfinite(m: Measurements, kind: str) -> str:
    return next((note for note in m.nonfinite if note.values["kind"] == kind), m.nonfinite[0]).text


def _missing(flagged: bool | None, given: Sequence[float | None]) -> str:
    """Why a check of norms could not be tested: they were not given, or they can't be read."""
    return "" if flagged is not None else "not-measured" if any(n is not None for n in given) else "not-given"


def dtype_floor(m: Measurements, t: DiagnosticThresholds) -> float:
    """D2's floor, 10·ε: as published where ε is the cosine's 1e-8, higher where the dtype ends before it."""
    return max(t.g_norm_floor, 10 * smallest_subnormal(m.dtype))


def direction_stability(check: str, m: Measurements, t: DiagnosticThresholds) -> Finding:
    """(c): is the reference one global direction? Names the sub-mode of a failure; never fails on its own."""
    limit = t.stability_drift_ceiling
    flagged = None if m.stability is None else m.stability > limit
    why = "" if flagged is not None else m.reasons.get("stability", "no stability was given")
    cause = "" if flagged is not None else "not-measured"
    return Finding(check, "direction stability", m.stability, limit, f"> {limit:g}", flagged, why, cause=cause)


def depth_utility(
    check: str,
    headline: Accuracy,
    frozen: Accuracy,
    t: DiagnosticThresholds,
    bp: Accuracy = None,
    bp_frozen: Accuracy = None,
    correct: Correct | None = None,
) -> Finding:
    """D3 and (d): do the trained blocks beat frozen random ones by the margin?

    Several seeds are judged on the paired 95 % t interval, one seed on the binomial error of its paired predictions
    where they are given; an interval that straddles the margin decides nothing. `bp_frozen` is the frozen control
    of `bp`; without it BP is compared with `frozen`.
    """
    limit = t.frozen_acc_margin_pp
    title, when = "depth utility", f"< {limit:g} pp"
    if headline is None or frozen is None:
        missing = [n for n, v in (("headline_acc", headline), ("frozen_baseline_acc", frozen)) if v is None]
        why = f"not tested: {' and '.join(missing)} not given"
        return Finding(check, title, None, limit, when, None, why, cause="not-given")
    margin, interval = paired_margin(headline, frozen, correct)
    if bp is not None:
        theirs = accuracies("frozen_baseline_acc", frozen if bp_frozen is None else bp_frozen)
        gain = round(100 * (_mean(accuracies("bp_acc", bp)) - _mean(theirs)), 10)
        if gain < limit:
            why = f"BP itself gains only {gain:.1f} pp over frozen blocks: this task can't show depth"
            return Finding(check, title, margin, limit, when, None, why, interval, "task")
    if interval is None:
        return Finding(check, title, margin, limit, when, margin < limit)
    low, high = interval
    if low < limit <= high:
        why = f"the 95 % interval {low:+.1f}…{high:+.1f} pp straddles the margin of {limit:g} pp"
        return Finding(check, title, margin, limit, when, None, why, interval, "straddles")
    return Finding(check, title, margin, limit, when, margin < limit, "", interval)


def paired_margin(
    headline: Accuracy, frozen: Accuracy, correct: Correct | None = None
) -> tuple[float, tuple[float, float] | None]:
    """(mean gain in pp, its 95 % interval). Several seeds: paired t. One seed: binomial, if predictions are given.

    Args:
        headline: accuracies of the network.
        frozen: accuracies of its control, for the same seeds.
        correct: for one seed, (N,) which test samples the network gets right and (N,) which its control does.

    >>> paired_margin(0.615, 0.349)
    (26.6, None)
    >>> paired_margin(0.75, 0.5, ([1, 1, 1, 0] * 100, [1, 1, 0, 0] * 100))
    (25.0, (20.7..., 29.2...))
    >>> paired_margin([0.61, 0.62, 0.63], [0.35, 0.34, 0.36])[1]
    (24.5..., 29.4...)
    """
    ours, theirs = accuracies("headline_acc", headline), accuracies("frozen_baseline_acc", frozen)
    if len(ours) != len(theirs):
        raise InputError(
            f"Expected the same seeds for headline_acc and frozen_baseline_acc, but got {len(ours)} and "
            f"{len(theirs)} accuracies. Pair them seed by seed."
        )
    gains = [round(100 * (a - b), 10) for a, b in zip(ours, theirs)]
    margin = round(sum(gains) / len(gains), 10)
    if len(gains) == 1:
        return margin, None if correct is None else _binomial(margin, ours[0], theirs[0], correct)
    from scipy.stats import t as student  # slow to import, and only needed here

    spread = sqrt(sum((g - margin) ** 2 for g in gains) / (len(gains) - 1))
    half = float(student.ppf(0.975, len(gains) - 1)) * spread / sqrt(len(gains))
    return margin, (margin - half, margin + half)


def _binomial(margin: float, ours: float, theirs: float, correct: Correct) -> tuple[float, float]:
    """The normal 95 % interval of a difference of paired proportions.

    Only samples that one of the two alone gets right count: with n10 and n01 of them, the difference is
    (n10 − n01)/N and its variance (n10 + n01 − (n10 − n01)²/N)/N².
    """
    count = paired_counts(correct)
    n, better, worse = count["samples"], count["only_ours"], count["only_frozen"]
    for name, said, alone in (("headline_acc", ours, better), ("frozen_baseline_acc", theirs, worse)):
        right = count["both"] + alone
        if abs(right / n - said) > 1e-6:
            raise InputError(f"Expected predictions with {name} {said:g}, but {right} of {n} are right.")
    spread = sqrt(better + worse - (better - worse) ** 2 / n) / n
    half = 100 * 1.959963984540054 * spread
    return margin - half, margin + half


def paired_counts(correct: Correct) -> dict[str, int]:
    """How many test samples there are, and how many the network, its control and both get right.

    >>> counts = paired_counts(([1, 1, 1, 0], [1, 0, 0, 1]))
    >>> counts
    {'samples': 4, 'both': 1, 'only_ours': 2, 'only_frozen': 1}
    >>> paired_counts(counts) == counts
    True
    """
    if isinstance(correct, Mapping):
        names = ("samples", "both", "only_ours", "only_frozen")
        n, *parts = (correct.get(name) for name in names)
        whole = all(isinstance(count, int) and count >= 0 for count in (n, *parts))
        if set(correct) != set(names) or not whole or not sum(parts) <= n or not n:  # type: ignore[arg-type, operator]
            raise InputError(f"Expected paired predictions as counts of {', '.join(names)}, but got {dict(correct)!r}.")
        return dict(correct)
    a, b = (np.asarray(row, dtype=bool).ravel() for row in correct)
    if not len(a) or len(a) != len(b):
        raise InputError(f"Expected the same test samples in the same order, but got {len(a)} and {len(b)} of them.")
    found = {"both": a & b, "only_ours": a & ~b, "only_frozen": b & ~a}
    return {"samples": len(a), **{name: int(row.sum()) for name, row in found.items()}}


def accuracies(name: str, value: Any) -> list[float]:
    """A fraction, or one per seed, as a list; anything outside 0…1 is an InputError.

    >>> import numpy as np
    >>> accuracies("headline_acc", np.array([0.5, 0.25]))
    [0.5, 0.25]
    """
    value = value.tolist() if hasattr(value, "tolist") else value  # NumPy, torch, JAX
    several = isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))
    values: list[Any] = list(value) if several else [value]
    if not values:
        raise InputError(f"Expected {name} to hold at least one accuracy, but it is empty.")
    out = []
    for v in values:
        try:
            number = None if isinstance(v, (str, bytes, bool)) else float(v)
        except (TypeError, ValueError):
            number = None
        if number is None:
            raise InputError(f"Expected {name} as a fraction between 0 and 1, but got {v!r}.")
        if not 0.0 <= number <= 1.0:
            hint = f" It looks like per cent: pass {number / 100:g}." if 1.0 < number <= 100.0 else ""
            raise InputError(f"Expected {name} as a fraction between 0 and 1, but got {v!r}.{hint}")
        out.append(number)
    return out


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def read_table(path: str | Path) -> object:
    """A JSON or TOML file as plain values, with errors that name the file."""
    import json
    import tomllib

    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
        return tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except FileNotFoundError:
        raise FormatError(f"Expected a file at {path}, but there is none.") from None
    except RecursionError as error:
        raise FormatError(
            f"Expected {path} to be readable as {path.suffix or 'JSON'}, but it is nested too deep: {error}."
        ) from None
    except (OSError, ValueError) as error:  # of decoding, of JSON, of TOML
        raise FormatError(f"Expected {path} to be readable as {path.suffix or 'JSON'}, but: {error}.") from None
