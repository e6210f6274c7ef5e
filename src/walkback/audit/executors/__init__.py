"""Where runs are trained. An executor is a generator: jobs in, events out, and it trains nothing twice.

Each lives in a module of its own (`local`, `ray`, `slurm`) as `run`. Workers hand nothing back: what they train is in
the store, and a run is finished when its report.json is there.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol

from walkback.errors import InputError, WalkbackError, shown
from walkback.registry import closest
from walkback.training.spec import RunSpec

NAMES = ("local", "ray", "slurm")
LONG = 4000  # characters of an error that a message shows: a pipe holds 64 thousand


@dataclass(frozen=True)
class Job:
    """One run to be trained by one worker, which must see `store` and `root` under these paths wherever it is.

    With `depth`, the worker then measures what the trained blocks are worth, on at most so many samples of each split.
    """

    spec: RunSpec
    store: str
    root: str | None = None
    threads: int = 1
    device: str = "cpu"
    depth: int | None = None

    @property
    def folder(self) -> Path:
        return Path(self.store) / self.spec.name

    @property
    def log(self) -> Path:
        """What the worker said."""
        return self.folder / "log.txt"

    def to_json(self) -> str:
        """Return the job as one line, for `python -m walkback.audit.worker`."""
        return json.dumps({**self.__dict__, "spec": self.spec.model_dump()})

    @classmethod
    def from_json(cls, text: str) -> Job:
        try:
            fields = json.loads(text)
            return cls(**{**fields, "spec": RunSpec(**fields["spec"])})
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"Expected a job as JSON, but: {error}.") from None


@dataclass(frozen=True)
class Event:
    """Something happened to a run.

    `detail` of a failed or retried run says why: the error, the path of the log and its last lines.
    """

    spec: RunSpec
    kind: Literal["started", "finished", "failed", "retried"]
    detail: str = ""


class Executor(Protocol):
    """What `executor` returns."""

    def __call__(
        self, jobs: Sequence[Job], workers: int | None = None, retries: int = 1, **options: Any
    ) -> Generator[Event | None, None, None]:
        """Train all jobs and tell what happens, in the order it happens.

        Every job ends in one `finished` or one `failed`; before each attempt comes a `started`, between two attempts
        a `retried`. Closing the generator stops the workers; what they trained so far stays and is gone on with.

        Args:
            jobs: in the order they should be taken; none of them is finished yet.
            workers: how many at a time; None for as many as there is room for.
            retries: how often a job whose worker died or raised is tried again.
            options: of the one executor.

        Yields:
            An event, or None when nothing happened for about half a second.
        """
        ...


def executor(name: str) -> Executor:
    """Return an executor by name; its libraries are imported now."""
    if name not in NAMES:
        known = ", ".join(NAMES)
        raise InputError(f"Expected executor to be one of {known}, but got {shown(name)}.{closest(name, NAMES)}")
    return import_module(f"walkback.audit.executors.{name}").run


def clipped(text: str, room: int) -> str:
    """Return the beginning of a text that is too long, as in "abc…"."""
    return text if len(text) <= room else text[:room] + "…"


def reason(error: BaseException) -> str:
    """Return an exception in a few words: ours as they are, others with their type."""
    return clipped(str(error) if isinstance(error, WalkbackError) else f"{type(error).__name__}: {error}", LONG)
