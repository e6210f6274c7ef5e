"""How often is the protocol right? Networks with known answers, and every check's errors on them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from walkback.audit.records import read_records
from walkback.calibration.score import QUESTIONS, Case, Score, case_of, refit, run_cases, scores
from walkback.calibration.zoo import DTYPES, NETS, Specimen, Strength, specimen, zoo
from walkback.errors import FormatError
from walkback.progress import track
from walkback.verdict.checks import DiagnosticThresholds

__all__ = ["DTYPES", "NETS", "Calibration", "Case", "Score", "Specimen", "Strength", "calibrate", "specimen", "zoo"]


@dataclass(frozen=True)
class Calibration:
    """Scores on generated networks and on finished runs; `str()` is a table of each."""

    generated: tuple[Score, ...]
    runs: tuple[Score, ...]
    cases: tuple[Case, ...]
    run_cases: tuple[Case, ...]
    thresholds: DiagnosticThresholds
    fitted: DiagnosticThresholds
    conditions: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {"schema": "walkback.calibration/1", **asdict(self)}

    def save(self, folder: str | Path) -> None:
        """Write `calibration.json` (scores and conditions, without the cases) and `calibration.md`."""
        where = Path(folder)
        scores = {k: v for k, v in self.to_dict().items() if k not in ("cases", "run_cases")}
        try:
            where.mkdir(parents=True, exist_ok=True)
            text = json.dumps(scores, indent=1, allow_nan=False) + "\n"
            (where / "calibration.json").write_text(text, encoding="utf-8")
            (where / "calibration.md").write_text(f"# Calibration\n\n{self.to_markdown()}\n", encoding="utf-8")
        except OSError as error:
            raise FormatError(f"Expected to write the calibration to {where}, but: {error.strerror}.") from None

    def to_markdown(self) -> str:
        """Both tables, and what is asked in them."""
        return self._text("github", "**{}**\n", "- {}: {}")

    def __str__(self) -> str:
        return self._text("simple", "{}", "{}: {}")

    def _text(self, style: str, heading: str, item: str) -> str:
        said = ", ".join(f"{k} {v}" for k, v in self.conditions.items())
        parts = [f"{heading.format(f'{len(self.cases)} generated networks ({said})')}\n{_table(self.generated, style)}"]
        if self.runs:
            parts.append(f"{heading.format(f'{len(self.run_cases)} finished runs')}\n{_table(self.runs, style)}")
        parts.append("\n".join(item.format(name, text) for name, text in QUESTIONS.items()))
        parts.append(
            "Rates and areas with 95 % intervals (exact; bootstrap); undecided cases count in neither rate.\n"
            "No error: thresholds between these ends make none on these networks; else the best one, with its errors."
        )
        fitted = [f"{k} = {v:.3g}" for k, v in asdict(self.fitted).items()]
        parts.append(f"Fewest errors on the generated networks: {', '.join(fitted)}")
        return "\n\n".join(parts)


def calibrate(
    count: int = 240,
    seed: int = 0,
    nets: Sequence[str] = tuple(NETS),
    dtypes: Sequence[str] = DTYPES,
    results: str | Path | None = None,
    thresholds: DiagnosticThresholds | None = None,
) -> Calibration:
    """Count every check's errors on `count` generated networks, and on the finished runs in `results`.

    Args:
        count: how many networks to generate.
        seed: of their strengths.
        nets: families among resmlp, student, vit-mini.
        dtypes: among float32, float64, bfloat16, float16; half of the networks are in the first.
        results: a folder with finished runs, as `walkback audit` leaves them; what re-randomising their blocks
            costs is read from `outcomes.json` in it, where there is one.
        thresholds: other limits than the published ones.

    >>> done = calibrate(2, nets=["student"], dtypes=["float64"])
    >>> sorted({score.question for score in done.generated})
    ['claim', 'depth', 'drift', 'reference', 'rounding']
    """
    limits = thresholds or DiagnosticThresholds()
    cases = tuple(case_of(one, limits) for one in track(zoo(count, seed, nets, dtypes), "calibrating", count))
    real: tuple[Case, ...] = ()
    if results is not None:
        folder = Path(results)
        real = tuple(run_cases(read_records(folder), folder / "outcomes.json", limits))
    found = scores(cases, limits)
    return Calibration(
        tuple(found),
        tuple(scores(real, limits)),
        cases,
        real,
        limits,
        refit(found),
        {"seed": seed, "nets": " ".join(nets), "dtypes": " ".join(dtypes)},
    )


def _table(found: Sequence[Score], style: str) -> str:
    rows = []
    for s in found:
        if s.free is not None:
            free = f"{s.free[0]:.3g} … {s.free[1]:.3g}"
        else:
            free = "" if s.best is None else f"none; {s.best[0]:.3g}: {s.best[1]}"
        counts = (s.hits, s.misses, s.passes, s.alarms, s.undecided or "")
        limit = "" if s.threshold is None else f"{s.threshold:g}"
        rows.append([s.question, s.check, *counts, *map(_rate, (s.sensitivity, s.specificity, s.area)), limit, free])
    heads = ["question", "check", "TP", "FN", "TN", "FP", "?", "sensitivity", "specificity", "ROC area"]
    return tabulate(rows, [*heads, "threshold", "no error"], style, disable_numparse=True)


def _rate(value: tuple[float, float, float] | None) -> str:
    return "" if value is None else f"{value[0]:.2f} [{value[1]:.2f}, {value[2]:.2f}]"
