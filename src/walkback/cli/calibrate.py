"""`walkback calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from walkback.cli.options import Flag, Limits, Whole, Words, limits
from walkback.cli.output import answer, print_text
from walkback.errors import InputError


def calibrate(
    *,
    count: Whole = 240,
    seed: Whole = 0,
    nets: Words = (),
    dtypes: Words = (),
    train: Whole = 0,
    part: str = "",
    results: Path | None = None,
    thresholds: Limits = None,
    refit: Path | None = None,
    out: Path | None = None,
    json: Flag = False,
) -> int:
    """Count every check's errors on networks whose answers are known: constructed, trained, and finished runs.

    Args:
        count: How many networks to construct; 240 take about four minutes.
        seed: Of what is done to them.
        train: How many networks to break by training; 180 take about five minutes.
        part: With --out: only make part k of n of the networks, as in 1/2, so that several processes share the work.
            What is made is kept in calibration-cases.jsonl, and the call without --part goes on from there.
        nets: Families: resmlp, student, vit-mini; all unless given.
        dtypes: float32, float64, bfloat16, float16; all unless given, half of the networks in the first.
        results: A folder with finished runs, which are scored as well.
        refit: Write the thresholds with the fewest errors here: a JSON file that `--thresholds` takes.
        out: Write calibration.json and calibration.md into this folder, and keep the networks' rows there.
        json: Print the scores as JSON.
    """
    from walkback import calibration

    if part and out is None:
        raise InputError("Expected --out with --part: the folder where the networks' rows are kept.")
    chosen: dict[str, Any] = {"nets": nets or tuple(calibration.NETS), "dtypes": dtypes or calibration.DTYPES}
    kept = None if out is None else out / calibration.FILE
    if part and kept is not None:
        made = calibration.make_part(part, kept, count=count, seed=seed, train=train, **chosen)
        print_text(f"{made} networks of part {part} in {kept}")
        return 0
    judging = {"results": results, "thresholds": limits(thresholds)}
    done = calibration.calibrate(count, seed, **chosen, **judging, train=train, kept=kept)
    if refit is not None:
        done.fitted.save(refit)
    if out is not None:
        done.save(out)
    answer(done, json)
    if refit is not None and not json:
        print_text(f"\nwrote {refit}")
    return 0
