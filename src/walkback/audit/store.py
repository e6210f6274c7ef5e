"""The store: a folder with one folder per run, named after what its spec says. What is in it, and how far it is.

`walkback.training.folder` does the writing and the locking; here nothing is changed.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from walkback.errors import FormatError, WalkbackError
from walkback.report import Report
from walkback.training.folder import CHECKPOINT, PROGRESS, finished, unwritable
from walkback.training.spec import RunSpec


@dataclass(frozen=True)
class State:
    """What a store holds of a run.

    Args:
        kind: "finished"; "begun" when a checkpoint is there to go on from; "new"; "damaged" when a file of a finished
            run is missing or the folder belongs to something else.
        detail: what is wrong with a damaged one and what to do.
        weights: False for a finished run of which only the record was kept.
    """

    kind: Literal["finished", "begun", "new", "damaged"]
    detail: str = ""
    weights: bool = True


def state(store: str | Path, spec: RunSpec) -> State:
    """Look, and change nothing.

    >>> state("no-such-store", RunSpec())
    State(kind='new', detail='', weights=True)
    """
    folder = Path(store) / spec.name
    try:
        done = finished(folder, spec)
    except (WalkbackError, OSError) as error:
        return State("damaged", f"{folder}: {error}" if str(folder) not in str(error) else str(error))
    if done:
        return State("finished", weights=(folder / "weights.safetensors").exists())
    return State("begun" if (folder / CHECKPOINT).exists() else "new")


def progress(store: str | Path, spec: RunSpec) -> dict[str, Any]:
    """Epoch, epochs, acc, h_L, g_L and seconds_per_epoch of a run that is being trained, or was until it stopped.

    Of a finished run the same from its report, without the seconds; {} where nothing is known.
    """
    folder = Path(store) / spec.name
    try:
        found = json.loads((folder / PROGRESS).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        pass
    try:
        report = Report.load(folder / "report.json")
    except FormatError:
        return {}
    last = {key: (report.per_layer.get(name) or [None])[-1] for key, name in (("h_L", "h_norm"), ("g_L", "g_norm"))}
    return {"epoch": report.run.get("epochs"), "epochs": spec.epochs, "acc": report.headline_acc, **last}


def check_writable(store: str | Path) -> None:
    """Make the store if it is missing, and try it with a file that nobody sees."""
    store = Path(store)
    try:
        store.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=store) as file:
            file.write(b"0" * 4096)
    except OSError as error:
        raise unwritable(store, error) from None
