"""The store: a folder with one folder per run, named after what its spec says. What is in it, and how far it is.

`walkback.training.folder` does the writing and the locking; here nothing is changed.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from walkback.audit.records import FILES, read_record, run_folders
from walkback.errors import FormatError, WalkbackError
from walkback.files import LARGEST_WEIGHTS, parse_json, read_file
from walkback.report.formats.sums import WEIGHTS, Checked, check_file, check_sums, checked, read_sums
from walkback.training.folder import AGAIN, CHECKPOINT, PROGRESS, finished, unwritable
from walkback.training.spec import RunSpec


@dataclass(frozen=True)
class State:
    """What a store holds of a run.

    It is "finished", as evidence reads it; "begun" when a checkpoint is there to go on from; "new"; or "damaged" when a
    file of a finished run is missing or not what it should be, or the folder belongs to something else.
    """

    kind: Literal["finished", "begun", "new", "damaged"]
    detail: str = ""  # what is wrong with a damaged one and what to do
    weights: bool = True  # False for a finished run of which only the record was kept, or whose weights can't be read


def state(store: str | Path, spec: RunSpec) -> State:
    """Look, and change nothing."""
    folder = Path(store) / spec.name
    try:
        done = finished(folder, spec)
    except (WalkbackError, OSError) as error:
        return State("damaged", f"{folder}: {error}" if str(folder) not in str(error) else str(error))
    if not done:
        return State("begun" if (folder / CHECKPOINT).exists() else "new")
    try:
        read_record(folder)
    except (WalkbackError, OSError) as error:
        return State("damaged", f"{folder}: {str(error).rstrip('.')}. Put the right file back. {AGAIN}")
    return State("finished", weights=_has_weights(folder / WEIGHTS))


def listed(store: str | Path, spec: RunSpec) -> str:
    """Return the kind of a run's state, for a list of thousands: files that fit the sums of the run are not read."""
    folder = Path(store) / spec.name
    try:
        sums = read_sums(folder)
        if sums is not None and sums["sha256"].keys() >= {*FILES} and all((folder / n).is_file() for n in FILES):
            check_sums(folder, FILES, spec.digest)
            return "finished"
    except (WalkbackError, OSError):
        pass  # what is wrong is said where it is read
    return state(store, spec).kind


def _has_weights(path: Path) -> bool:
    """Return whether the file is there, its index fits its length, and its sum is the one in the run's sums."""
    if not path.is_file():  # a pipe would be waited for
        return False
    try:
        check_file(path)
        with safe_open(path, framework="np"):
            return True
    except (FormatError, OSError, SafetensorError):
        return False


def progress(store: str | Path, spec: RunSpec) -> dict[str, Any]:
    """Return epoch, epochs, acc, h_L, g_L and seconds_per_epoch of a run in training, or of one that stopped.

    Of a finished run the same from its record, without the seconds; what is not known, or is no number, is left out.
    """
    folder = Path(store) / spec.name
    try:
        found = parse_json(read_file(folder / PROGRESS))
    except (OSError, ValueError, RecursionError):
        try:
            run = read_record(folder)
        except (WalkbackError, OSError):
            return {}
        sizes = {key: (run.report.per_layer.get(k) or [None])[-1] for key, k in (("h_L", "h_norm"), ("g_L", "g_norm"))}
        found = {"epoch": len(run.rows), "epochs": spec.epochs, "acc": run.accuracy, **sizes}
    known = found.items() if isinstance(found, dict) else ()
    return {key: value for key, value in known if isinstance(value, (int, float)) and not isinstance(value, bool)}


def checked_runs(store: str | Path, largest: int = LARGEST_WEIGHTS) -> list[Checked]:
    """Compare the files of every run under a folder with the sums it wrote, and read each record as evidence does."""
    found = []
    for path in run_folders(store):
        run = checked(path, largest)
        if run.state in ("whole", "unchecked"):
            try:
                read_record(path)
            except (WalkbackError, OSError) as error:
                run = Checked(path, "damaged", str(error))
        found.append(run)
    return found


def check_writable(store: str | Path) -> None:
    """Make the store if it is missing, and try it with a file that nobody sees."""
    store = Path(store)
    try:
        store.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=store) as file:
            file.write(b"0" * 4096)
    except OSError as error:
        raise unwritable(store, error) from None
