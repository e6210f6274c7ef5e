"""How often is the protocol right? Networks with known answers, and every check's errors on them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from walkback.audit.records import read_records
from walkback.calibration import constructed, rows, trained
from walkback.calibration.rows import FILE as FILE
from walkback.calibration.score import QUESTIONS, Case, Score, case_of, rate, refit, run_cases, scores
from walkback.calibration.zoo import DTYPES, NETS, Specimen, Strength, drawn, specimen, zoo
from walkback.errors import FormatError, InputError
from walkback.files import write_whole
from walkback.progress import track
from walkback.training.setup import threads
from walkback.verdict.checks import DiagnosticThresholds
from walkback.verdict.editions import EDITIONS

__all__ = ["DTYPES", "NETS", "Calibration", "Case", "Score", "Specimen", "Strength", "calibrate", "specimen", "zoo"]


@dataclass(frozen=True)
class Calibration:
    """Scores on constructed networks, on trained ones and on finished runs; `str()` is a table of each."""

    generated: tuple[Score, ...]
    trained: tuple[Score, ...]
    runs: tuple[Score, ...]
    cases: tuple[Case, ...]
    trained_cases: tuple[Case, ...]
    run_cases: tuple[Case, ...]
    changed: dict[str, tuple[int, int]]  # edition -> how many verdicts another probe set changes, and of how many
    thresholds: DiagnosticThresholds
    fitted: DiagnosticThresholds
    conditions: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {"schema": "walkback.calibration/1", **asdict(self)}

    def save(self, folder: str | Path) -> None:
        """Write `calibration.json` (scores and conditions, without the cases) and `calibration.md`."""
        where = Path(folder)
        scores = {k: v for k, v in self.to_dict().items() if k not in ("cases", "trained_cases", "run_cases")}
        try:
            write_whole(where / "calibration.json", json.dumps(scores, indent=1, allow_nan=False) + "\n")
            write_whole(where / "calibration.md", f"# Calibration\n\n{self.to_markdown()}\n")
        except OSError as error:
            raise FormatError(f"Expected to write the calibration to {where}, but: {error.strerror}.") from None

    def groups(self) -> dict[str, tuple[tuple[Score, ...], int]]:
        """Return the scores of every group that has networks, and how many it has."""
        found = {
            "constructed networks": (self.generated, len(self.cases)),
            "networks broken by training": (self.trained, len(self.trained_cases)),
            "finished runs": (self.runs, len(self.run_cases)),
        }
        return {name: (of, n) for name, (of, n) in found.items() if n}

    def worst(self) -> str:
        """Return the lowest sensitivity or specificity of all, and that of an edition, on at least ten networks."""
        found = [
            (value, f"{s.check} has a {which} of {_rate(value)} on {n} {group}", s)
            for group, (of, _) in self.groups().items()
            for s in of
            for which, value, n in (
                ("sensitivity", s.sensitivity, s.hits + s.misses),
                ("specificity", s.specificity, s.passes + s.alarms),
            )
            if value is not None and n >= 10
        ]
        of_editions = [one for one in found if one[2].question == "claim" and one[2].check in EDITIONS]
        if not of_editions:
            return "Too few networks for a rate of any edition."
        # Of equal ones the one that is known best to be so low.
        lowest, edition = (min(some, key=lambda one: (one[0][0], one[0][2])) for some in (found, of_editions))
        asked = f"asked for {lowest[2].question}"
        return f"The worst figure: {lowest[1]}, {asked}. The worst of an edition: {edition[1]}, asked for a claim."

    def to_markdown(self) -> str:
        """Return the worst figure, a table of each group, and what is asked in them."""
        return self._text("github", "**{}**\n", "- {}: {}")

    def __str__(self) -> str:
        return self._text("simple", "{}", "{}: {}")

    def _text(self, style: str, heading: str, item: str) -> str:
        said = ", ".join(f"{k} {v}" for k, v in self.conditions.items())
        parts = [self.worst()]
        for number, (name, (of, n)) in enumerate(self.groups().items()):
            more = f" ({said})" if not number else ""
            parts.append(f"{heading.format(f'{n} {name}{more}')}\n{_table(of, style)}")
        parts.append("\n".join(item.format(name, text) for name, text in QUESTIONS.items()))
        parts.append(
            "Rates and areas with 95 % intervals (exact; bootstrap); undecided cases count in neither rate.\n"
            "No error: thresholds between these ends make none on these networks; else the best one, with its errors."
        )
        if self.changed:
            words = [f"{e} {k} of {n} ({_rate(rate(k, n))})" for e, (k, n) in self.changed.items()]
            parts.append(f"Verdicts that another probe set of {rows.PROBE:,} samples changes: {', '.join(words)}")
        fitted = [f"{k} = {v:.3g}" for k, v in asdict(self.fitted).items()]
        parts.append(f"Fewest errors on the constructed networks: {', '.join(fitted)}")
        return "\n\n".join(parts)


def calibrate(
    count: int = 240,
    seed: int = 0,
    nets: Sequence[str] = tuple(NETS),
    dtypes: Sequence[str] = DTYPES,
    results: str | Path | None = None,
    thresholds: DiagnosticThresholds | None = None,
    train: int = 0,
    kept: str | Path | None = None,
) -> Calibration:
    """Count every check's errors on constructed networks, on trained ones, and on the finished runs in `results`.

    Args:
        count: how many networks to construct.
        seed: of their strengths, and of the trainings.
        nets: families among resmlp, student, vit-mini.
        dtypes: among float32, float64, bfloat16, float16; half of the networks are in the first.
        results: a folder with finished runs, as `walkback audit` leaves them; what re-randomising their blocks
            costs is read from `outcomes.json` in it, where there is one.
        thresholds: other limits than the published ones.
        train: how many networks to break by training.
        kept: a file of rows: networks that it has are not made again, others are added to it.

    >>> done = calibrate(2, nets=["student"], dtypes=["float64"])
    >>> sorted({score.question for score in done.generated})
    ['claim', 'depth', 'drift', 'reference', 'rounding']
    """
    _check(count, train)
    limits = thresholds or DiagnosticThresholds()
    path = None if kept is None else Path(kept)
    made = _wanted(count, seed, nets, dtypes, 0), _wanted(0, seed, nets, dtypes, train)
    built, broken = (
        tuple(case_of(rows.read(one), limits) for one in track(rows.kept_rows(path, names), "calibrating", len(names)))
        for names in made
    )
    real: tuple[Case, ...] = ()
    if results is not None:
        folder = Path(results)
        real = tuple(run_cases(read_records(folder), folder / "outcomes.json", limits))
    found = scores(built, limits)
    both = (*built, *broken)
    changed = {edition: (sum(case.changed[edition] for case in both), len(both)) for edition in EDITIONS}
    return Calibration(
        tuple(found),
        tuple(scores(broken, limits)),
        tuple(scores(real, limits)),
        built,
        broken,
        real,
        changed,
        limits,
        refit(found),
        {"seed": seed, "nets": " ".join(nets), "dtypes": " ".join(dtypes)},
    )


def make_part(
    part: str, kept: str | Path, count: int, seed: int, nets: Sequence[str], dtypes: Sequence[str], train: int
) -> int:
    """Make every n-th network from the k-th on, as `part` "k/n" says, add their rows to `kept`, and count them."""
    try:
        k, n = (int(number) for number in part.split("/"))
    except ValueError:
        k = n = 0
    if not 1 <= k <= n:
        raise InputError(f"Expected a part as k/n with 1 <= k <= n, such as 1/2, but got {part}.")
    _check(count, train)
    wanted = _wanted(count, seed, nets, dtypes, train)[k - 1 :: n]
    return sum(1 for _ in track(rows.kept_rows(Path(kept), wanted), "calibrating", len(wanted)))


def _check(count: int, train: int) -> None:
    if count < 0 or count + train < 1:
        raise InputError(f"Expected count to be at least 1, or 0 with train, but got {count}.")
    if train < 0:
        raise InputError(f"Expected train to be at least 0, but got {train}.")


def _wanted(count: int, seed: int, nets: Sequence[str], dtypes: Sequence[str], train: int) -> list[Any]:
    """Return (name, how to make its row) of constructed networks, then of trained ones."""

    def alone(make: Any, one: Any) -> rows.Row:
        with threads(1):  # they are tiny, and the same bytes everywhere
            return make(one)

    built = [
        (constructed.key_of(one), lambda one=one: alone(constructed.row_of, one))
        for one in drawn(count, seed, nets, dtypes)
    ]
    broken = [(spec.name, lambda spec=spec: alone(trained.row_of, spec)) for spec in trained.specs(train, seed)]
    return [*built, *broken]


def _table(found: Sequence[Score], style: str) -> str:
    found_rows = []
    for s in found:
        if s.free is not None:
            free = f"{s.free[0]:.3g} … {s.free[1]:.3g}"
        else:
            free = "" if s.best is None else f"none; {s.best[0]:.3g}: {s.best[1]}"
        counts = (s.hits, s.misses, s.passes, s.alarms, s.undecided or "")
        n = sum((s.hits, s.misses, s.passes, s.alarms, s.undecided))
        limit = "" if s.threshold is None else f"{s.threshold:g}"
        found_rows.append(
            [s.question, s.check, n, *counts, *map(_rate, (s.sensitivity, s.specificity, s.area)), limit, free]
        )
    heads = ["question", "check", "n", "TP", "FN", "TN", "FP", "?", "sensitivity", "specificity", "ROC area"]
    return tabulate(found_rows, [*heads, "threshold", "no error"], style, disable_numparse=True)


def _rate(value: tuple[float, float, float] | None) -> str:
    return "" if value is None else f"{value[0]:.2f} [{value[1]:.2f}, {value[2]:.2f}]"
