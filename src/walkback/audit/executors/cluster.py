"""What the executors that hand jobs to a cluster share: who waits, who is tried again, and which events that makes."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, Literal, TypeVar

from walkback.audit.executors import Event, Job
from walkback.audit.store import state
from walkback.audit.worker import tail

TICK = 0.5  # seconds between two looks
Handle = TypeVar("Handle")  # what the cluster gave us for a job we handed in
Stage = Literal["waiting", "running", "over"]


@dataclass
class _Attempt(Generic[Handle]):
    job: Job
    left: int  # how often it may be tried again
    handle: Handle
    running: bool = False


def absolute(jobs: Sequence[Job]) -> list[Job]:
    """Return the same jobs with paths that depend on no working folder; links stay, since a node may have its own."""
    full = [[path and str(Path(path).absolute()) for path in (job.store, job.root)] for job in jobs]
    return [replace(job, store=store, root=root) for job, (store, root) in zip(jobs, full)]


def follow(
    jobs: Sequence[Job],
    room: int,
    retries: int,
    submit: Callable[[Sequence[Job]], Sequence[Handle]],
    look: Callable[[Handle], tuple[Stage, str]],
    stop: Callable[[Sequence[Handle]], None],
) -> Generator[Event | None, None, None]:
    """Train all jobs; the events of `walkback.audit.executors.Executor`.

    Args:
        jobs: as an executor takes them, with their `retries`.
        room: how many may be with the cluster at a time.
        retries: of each job.
        submit: jobs to a handle each.
        look: a handle to how far it is, and for one that is over why it failed, "" when it did not.
        stop: called in the end with the handles that are not over.
    """
    waiting, active = [(job, retries) for job in jobs], list[_Attempt[Handle]]()
    try:
        while waiting or active:
            taken = [waiting.pop(0) for _ in range(min(len(waiting), room - len(active)))]
            if taken:
                handles = submit([job for job, _ in taken])
                active += [_Attempt(job, left, handle) for (job, left), handle in zip(taken, handles)]
            events = list[Event]()
            for attempt in list(active):
                stage, why = look(attempt.handle)
                events += _news(attempt, stage, why)
                if stage == "over":
                    active.remove(attempt)
                    if events[-1].kind == "retried":
                        waiting.insert(0, (attempt.job, attempt.left - 1))
            yield from events or [None]
            if not events:
                time.sleep(TICK)
    finally:
        stop([attempt.handle for attempt in active])


def _news(attempt: _Attempt[Handle], stage: Stage, why: str) -> Iterator[Event]:
    spec, was_running = attempt.job.spec, attempt.running
    attempt.running = stage == "running"
    if stage == "waiting":
        if was_running:
            yield Event(spec, "retried", "The cluster took it off its node and queued it again.")
        return
    if not was_running:
        yield Event(spec, "started")
    if stage == "running":
        return
    # A worker may die after its last write, or end early without an error: what is in the store counts.
    if state(attempt.job.store, spec).kind == "finished":
        yield Event(spec, "finished")
    else:
        why = why or "The worker ended without an error, and the run is not finished."
        yield Event(spec, "retried" if attempt.left else "failed", f"{why}\n{tail(attempt.job)}")
