"""`walkback calibrate`."""

from __future__ import annotations

from pathlib import Path

from walkback.cli.options import Flag, Words, limits
from walkback.cli.output import answer, print_text
from walkback.errors import InputError


def calibrate(
    *,
    count: int = 240,
    seed: int = 0,
    nets: Words = (),
    dtypes: Words = (),
    results: Path | None = None,
    thresholds: Path | None = None,
    refit: Path | None = None,
    out: Path | None = None,
    json: Flag = False,
) -> int:
    """Count every check's errors on generated networks whose answers are known.

    Args:
        count: How many networks to generate; 240 take about two minutes.
        seed: Of what is done to them.
        nets: Families: resmlp, student, vit-mini; all unless given.
        dtypes: float32, float64, bfloat16, float16; all unless given, half of the networks in the first.
        results: A folder with finished runs, which are scored as well.
        thresholds: JSON or TOML file with other limits than the published ones.
        refit: Write the thresholds with the fewest errors here: a JSON file that `--thresholds` takes.
        out: Write calibration.json and calibration.md into this folder.
        json: Print the scores as JSON.
    """
    from walkback import calibration

    if count < 1:
        raise InputError(f"Expected count to be at least 1, but got {count}.")
    chosen = {"nets": nets or tuple(calibration.NETS), "dtypes": dtypes or calibration.DTYPES}
    done = calibration.calibrate(count, seed, **chosen, results=results, thresholds=limits(thresholds))
    if refit is not None:
        done.fitted.save(refit)
    if out is not None:
        done.save(out)
    answer(done, json)
    if refit is not None and not json:
        print_text(f"\nwrote {refit}")
    return 0
