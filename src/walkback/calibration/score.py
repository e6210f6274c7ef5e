"""Errors of every check on cases whose answer is known: counts, intervals, ROC areas, thresholds without an error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from walkback.audit.records import Record, Records
from walkback.audit.settings import both_correct, claimed
from walkback.calibration.rows import Known
from walkback.calibration.zoo import CLASSES, GAIN, OFF
from walkback.errors import FormatError
from walkback.measures.accumulate import Measurements
from walkback.verdict.checks import DiagnosticThresholds, Finding
from walkback.verdict.editions import EDITIONS, Claim, Verdict, decide
from walkback.verdict.files import read_table
from walkback.verdict.findings import about
from walkback.verdict.statistics import mean_worth

# What is known of a case, and in words.
QUESTIONS = {
    "reference": f"the cosine that scripts report (with its ε, in the network's dtype) is off by more than {OFF:g}",
    "rounding": f"a cosine without ε is off by more than {OFF:g}",
    "depth": f"re-randomised blocks cost less than {GAIN:g} pp",
    "claim": "either of the two",
    "drift": "one direction explains most of the reference",
}
# Thresholds by the check that uses them: (field, sign): +1 flags above it, −1 below.
FIELDS = {
    "D1": ("h_norm_explosion_ratio", 1),
    "D2": ("g_norm_floor", -1),
    "D3": ("frozen_acc_margin_pp", -1),
    "D2 intrinsic": ("cosine_error_limit", 1),
    "(c)": ("stability_drift_ceiling", 1),
}


@dataclass(frozen=True)
class Case:
    """What is true of one network, what every check says of it, and the numbers compared; None where not known."""

    name: str
    truth: dict[str, bool | None]  # by question
    said: dict[str, dict[str, bool | None]]  # by question and check
    values: dict[str, float | None] = field(default_factory=dict)  # by check
    changed: dict[str, bool] = field(default_factory=dict)  # by edition: does another probe set change the verdict?


# Many fields, since they are the columns of a row of the calibration's table.
@dataclass(frozen=True)
class Score:
    """A check against a question; rates and areas are (value, low, high), None without cases to take them from."""

    question: str
    check: str
    hits: int  # true positives
    misses: int  # false negatives
    passes: int  # true negatives
    alarms: int  # false positives
    undecided: int  # cases the check said nothing of
    sensitivity: tuple[float, float, float] | None  # with exact 95 % intervals
    specificity: tuple[float, float, float] | None
    area: tuple[float, float, float] | None = None  # under the ROC curve, with a bootstrap interval
    threshold: float | None = None  # in use
    free: tuple[float, float] | None = None  # every threshold between these makes no error; None where none is
    best: tuple[float, int] | None = None  # the threshold with the fewest errors, and how many those are


def case_of(known: Known, thresholds: DiagnosticThresholds) -> Case:
    """Ask every check what it says of a network whose answers are known."""
    verdicts, again = (
        {edition: decide(m, known.claim, thresholds, edition) for edition in EDITIONS} for m in known.measured
    )
    truth = {"reference": not known.off <= OFF, "rounding": not known.rounded <= OFF}
    truth |= {"depth": known.gain < GAIN, "drift": known.drifts}
    truth["claim"] = truth["reference"] or truth["depth"]
    case = _case(known.name, truth, known.measured[0], known.accuracy, known.reported, CLASSES, verdicts)
    return replace(case, changed={edition: verdicts[edition].verdict != again[edition].verdict for edition in EDITIONS})


def run_cases(
    records: Records, outcomes: Path | None = None, thresholds: DiagnosticThresholds | None = None
) -> list[Case]:
    """Return finished runs as cases. Their reference is judged by the clamped cosine, their depth by outcome.

    The outcome is that of the file `outcomes`, or else what `walkback.depth` kept in the record, where that is decided.
    """
    gains, limits = _gains(outcomes), thresholds or DiagnosticThresholds()
    found = []
    for run in records:
        if run.spec.scope != "all":
            continue
        m = run.measurements
        off = clamp_error(m)
        gain = gains.get(run.spec.name, _decided_worth(run))
        truth = {"reference": None if off is None else off > OFF, "depth": None if gain is None else gain < GAIN}
        truth["claim"] = _either(truth["reference"], truth["depth"])
        # Without its own worth: that is the answer here, and would decide where there is no control.
        claim = claimed(records, run)
        verdicts = {edition: decide(m, claim, limits, edition) for edition in ("three-check", "four-diagnostic")}
        if m.float64_disagreement:
            verdicts["intrinsic"] = decide(m, _claim(run, records.control(run)), limits, "intrinsic")
        found.append(_case(run.spec.name, truth, m, run.accuracy, m.gamma, run.classes, verdicts))
    return found


def _claim(run: Record, control: Record | None) -> Claim:
    if control is None:
        return Claim(run.accuracy)
    return Claim(run.accuracy, control.accuracy, correct=both_correct(run, control))


def _decided_worth(run: Record) -> float | None:
    """Return what a record says its blocks are worth, None where its interval has the margin inside."""
    found = run.depth
    return None if found is None or mean_worth([found]).straddles(GAIN) else found.worth_pp


def _gains(path: Path | None) -> dict[str, float]:
    if path is None or not path.is_file():
        return {}
    table = read_table(path)
    if not isinstance(table, dict) or not isinstance(table.get("runs"), dict):
        raise FormatError(f"Expected {path} to hold `runs`, by name, but it does not.")
    return {name: float(row["gain_pp"]) for name, row in table["runs"].items()}


def clamp_error(m: Measurements) -> float | None:
    """Return how far the ε of `F.cosine_similarity` puts a cosine off at the worst of sites 1…L."""
    pairs = list(zip(m.cosine, m.cosine_clamped))[1:]
    return max((abs(a - b) for a, b in pairs if a is not None and b is not None), default=None)


def _case(name: str, truth: Any, m: Measurements, acc: float, gamma: float | None, classes: int, verdicts: Any) -> Case:
    three, four = verdicts["three-check"], verdicts["four-diagnostic"]
    by_name: dict[str, Finding] = {f.check: f for f in (*three.findings, *four.findings)}
    s0 = acc <= 1 / classes + 0.02 if classes else None
    s1 = None if s0 is None else s0 or (gamma is not None and not gamma > 0)
    pair = {"S0 accuracy": s0, "S1 accuracy and Γ": s1}
    d1, d2, d3 = (by_name[check].flagged for check in ("D1", "D2", "D3"))
    both = None if None in (d1, d2) else d1 and d2
    values = {check: by_name[check].value for check in ("D1", "D2", "D3")} | {"(c)": by_name["c"].value}
    signs: dict[str, bool | None] = {"D1": d1, "D2": d2, "D1 and D2": both}
    clamp, walked = clamp_error(m), {**pair, **{edition: _walks_back(v) for edition, v in verdicts.items()}}
    clamped = None if clamp is None else clamp > OFF
    if "intrinsic" in verdicts:
        precise = next(f for f in verdicts["intrinsic"].findings if f.check == "D2")
        signs["D2 intrinsic"], values["D2 intrinsic"] = precise.flagged, precise.value
        walked["intrinsic, or clamped"] = _either(walked["intrinsic"], clamped)
    said = {
        "reference": {**pair, **signs, "clamped column": clamped},
        "rounding": signs,
        "depth": {**pair, "D3": d3},
        "claim": walked,
        "drift": {"(c)": by_name["c"].flagged},
    }
    return Case(name, truth, said, values)


def _either(a: bool | None, b: bool | None) -> bool | None:
    return True if a or b else None if None in (a, b) else False


def _walks_back(verdict: Verdict) -> bool | None:
    """Return whether a claim is walked back on what was given; None where that was tested and decides nothing."""
    checks = [f for f in verdict.findings if about(f) != "stability"]
    open_ = any(f.cause in ("straddles", "not-measured") for f in checks) or all(f.flagged is None for f in checks)
    return True if verdict.failed else None if open_ else False


def scores(cases: Sequence[Case], thresholds: DiagnosticThresholds | None = None) -> list[Score]:
    """Score every check against every question, over the cases whose answer is known."""
    limits = asdict(thresholds or DiagnosticThresholds())
    found = []
    for question in QUESTIONS:
        known = [c for c in cases if c.truth.get(question) is not None]
        for check in dict.fromkeys(check for c in known for check in c.said.get(question, {})):
            answers = [(c.truth[question], c.said[question].get(check)) for c in known]
            kinds = ((True, True), (True, False), (False, False), (False, True))
            hits, misses, passes, alarms = (answers.count(kind) for kind in kinds)
            numbers: dict[str, Any] = {}
            if check in FIELDS:
                name, sign = FIELDS[check]
                scored = [(c.truth[question], c.values.get(check)) for c in known]
                numbers = {"threshold": limits[name], **_threshold(scored, sign)}
            counts = (hits, misses, passes, alarms, len(answers) - hits - misses - passes - alarms)
            rates = (rate(hits, hits + misses), rate(passes, passes + alarms))
            found.append(Score(question, check, *counts, *rates, **numbers))
    return found


def rate(k: int, n: int) -> tuple[float, float, float] | None:
    """Return k/n with its exact (Clopper-Pearson) 95 % interval."""
    if not n:
        return None
    from scipy.stats import binomtest

    interval = binomtest(k, n).proportion_ci(method="exact")
    return k / n, float(interval.low), float(interval.high)


def _threshold(scored: Sequence[tuple[bool | None, float | None]], sign: int) -> dict[str, Any]:
    bad = np.array([sign * v for truth, v in scored if truth and v is not None and isfinite(v)])
    good = np.array([sign * v for truth, v in scored if truth is False and v is not None and isfinite(v)])
    if not len(bad) or not len(good):
        return {}
    area = _area(bad, good)
    draw = np.random.RandomState(0)
    again = [_area(draw.choice(bad, len(bad)), draw.choice(good, len(good))) for _ in range(500)]
    low, high = np.percentile(again, [2.5, 97.5])
    out: dict[str, Any] = {"area": (area, float(low), float(high))}
    if good.max() < bad.min():
        ends = sorted((float(sign * good.max()), float(sign * bad.min())))
        out["free"] = (ends[0], ends[1])
    # Between neighbours: flagged when sign·value > sign·threshold. Midway on the scale that spreads them.
    ordered = np.unique(np.concatenate([bad, good]))
    left, right = ordered[:-1], ordered[1:]
    middle = (left + right) / 2 if ordered[0] * ordered[-1] <= 0 else np.sign(left) * np.sqrt(left * right)
    cuts = np.concatenate([[ordered[0] - abs(ordered[0]) / 2], middle, [ordered[-1]]])
    errors = [int((bad <= cut).sum() + (good > cut).sum()) for cut in cuts]
    least = [cut for cut, e in zip(cuts, errors) if e == min(errors)]
    out["best"] = (float(sign * least[len(least) // 2]), min(errors))
    return out


def _area(bad: np.ndarray, good: np.ndarray) -> float:
    """Return the chance that a bad case scores above a good one (ties count half)."""
    both = np.concatenate([bad, good])
    order = np.unique(both, return_inverse=True)[1]
    counts = np.bincount(order)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[order]
    n, m = len(bad), len(good)
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * m))


def refit(found: Iterable[Score]) -> DiagnosticThresholds:
    """Return the thresholds with the fewest errors on these cases; those that could not be fitted stay as published."""
    wanted = {"D1": "reference", "D2": "reference", "D2 intrinsic": "rounding", "D3": "depth", "(c)": "drift"}
    fitted = {
        FIELDS[s.check][0]: s.best[0]
        for s in found
        if s.best is not None and wanted.get(s.check) == s.question and (s.check != "D1" or s.best[0] > 0)
    }
    return DiagnosticThresholds(**fitted)
