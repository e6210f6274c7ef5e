"""On this machine: a process per run, a few at a time, each with one thread unless the job says otherwise.

With `reuse` a worker that has finished a run takes the next one: runs of seconds need not load torch each.

Two audits on one store share its runs: a run that another process is training is left to it, and taken up only if it
is still unfinished when that process lets go.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from walkback.audit.executors import Event, Job
from walkback.audit.store import state
from walkback.audit.worker import BUSY, DONE, MORE, SPEAKS, tail
from walkback.files import append_to
from walkback.training.folder import is_locked

TICK = 0.5  # seconds between two looks that find nothing new
LOOK = 0.05  # seconds between two looks
PATIENCE = 5.0  # seconds a worker has to end when it is told to


def cores() -> int:
    """Return how many cores this process may use."""
    with suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run(
    jobs: Sequence[Job], workers: int | None = None, retries: int = 1, reuse: bool = False
) -> Generator[Event | None, None, None]:
    """See `walkback.audit.executors.Executor`; `workers` defaults to the number of cores."""
    waiting, running, idle = list(jobs), dict[Job, subprocess.Popen[str]](), list[subprocess.Popen[str]]()
    deaths: Counter[Job] = Counter()
    room, reuse = workers or cores(), reuse and os.name == "posix"  # elsewhere a pipe can't be asked without waiting
    heard_at = time.monotonic()
    try:
        while waiting or running:
            events = list(_let_go(running, idle)) if reuse else []
            events += _ended(running, waiting, deaths, retries)
            events += _begun(running, waiting, idle if reuse else None, room)
            if events or time.monotonic() - heard_at > TICK:
                yield from events or [None]
                heard_at = time.monotonic()
            elif running or waiting:
                time.sleep(LOOK)
    finally:
        _stop([*running.values(), *idle])


def _begun(
    running: dict[Job, subprocess.Popen[str]], waiting: list[Job], idle: list[subprocess.Popen[str]] | None, room: int
) -> Iterator[Event]:
    """Start workers while there is room, or give a job to one that is idle; None: each ends with its job."""
    for job in list(waiting):
        if len(running) >= room:
            return
        if is_locked(job.folder):
            continue
        waiting.remove(job)
        if state(job.store, job.spec).kind == "finished":
            yield Event(job.spec, "finished", "trained by another process")
            continue
        try:
            running[job] = _send_job(idle.pop(), job) if idle else _start(job, more=idle is not None)
        except OSError as error:
            yield Event(job.spec, "failed", f"Expected to start a worker that logs to {job.log}, but: {error}.")
            continue
        yield Event(job.spec, "started")


def _let_go(running: dict[Job, subprocess.Popen[str]], idle: list[subprocess.Popen[str]]) -> Iterator[Event]:
    """Take note of runs that their worker is done with: it can take another."""
    for job, process in list(running.items()):
        if _is_done(process):
            idle.append(running.pop(job))
            yield Event(job.spec, "finished")


def _is_done(process: subprocess.Popen[str]) -> bool:
    """Return whether a worker has said that it is done; what it says of a failure is left to `_last_words`."""
    assert process.stdout is not None
    while select.select([process.stdout], [], [], 0)[0]:
        letter = os.read(process.stdout.fileno(), 1).decode(errors="replace")
        if letter in ("", DONE, SPEAKS):
            return letter == DONE
    return False


def _ended(
    running: dict[Job, subprocess.Popen[str]], waiting: list[Job], deaths: Counter[Job], retries: int
) -> Iterator[Event]:
    """Take leave of the workers that are done, and put back what is to be tried again."""
    for job, process in list(running.items()):
        if process.poll() is None:
            continue
        del running[job]
        last_words = _last_words(process)
        if state(job.store, job.spec).kind == "finished":
            lacks = job.depth is not None and process.returncode
            yield Event(
                job.spec, "finished", f"what its blocks are worth was not measured: {last_words}" if lacks else ""
            )
            continue
        if process.returncode == BUSY:
            waiting.append(job)
            yield Event(job.spec, "retried", "Another process is training it: left to that one.")
            continue
        deaths[job] += 1
        again = deaths[job] <= retries
        if again:
            waiting.insert(0, job)
        yield Event(job.spec, "retried" if again else "failed", f"{last_words}\n{tail(job)}")


def _start(job: Job, more: bool) -> subprocess.Popen[str]:
    job.folder.mkdir(parents=True, exist_ok=True)
    with append_to(job.log) as log:
        process = subprocess.Popen(
            # -P: a file beside the plan that is called like a module of Python's own is not that module.
            [sys.executable, "-P", "-m", "walkback.audit.worker", *([MORE] if more else [])],
            stdin=subprocess.PIPE,  # held open: the worker ends when we do, however we end
            stdout=subprocess.PIPE,  # why it failed, if it could say so
            stderr=log,
            text=True,
            start_new_session=True,  # Ctrl-C reaches us alone, and we stop the workers
            env={**os.environ, "OMP_NUM_THREADS": str(job.threads), "PYTHONPATH": importable()},
        )
    # With our path: what we could import to look at a plan, it can import to train it.
    return _send_job(process, job, f"{json.dumps(sys.path)}\n")


def _send_job(process: subprocess.Popen[str], job: Job, before: str = "") -> subprocess.Popen[str]:
    """Return the worker that was given a job, after what else it is told."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has died; its log says why
        process.stdin.write(f"{before}{job.to_json()}\n")
        process.stdin.flush()
    return process


def importable() -> str:
    """Return PYTHONPATH as it is, and where this package was found if that is not where packages are installed."""
    found, given = str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")
    return given if found.endswith("-packages") else os.pathsep.join(filter(None, (given, found)))


def _last_words(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    last_words = process.stdout.read().rpartition(SPEAKS)[2].strip()
    process.stdout.close()
    with suppress(BrokenPipeError):
        process.stdin.close()
    if process.returncode < 0:
        names = {s.value: s.name for s in signal.Signals}  # real-time signals have none
        return f"killed by {names.get(-process.returncode, f'signal {-process.returncode}')}"
    return last_words or f"ended with exit code {process.returncode}, and the run is not finished"


def _stop(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        _signal(process, signal.SIGTERM)
    until = time.monotonic() + PATIENCE
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            _signal(process, signal.SIGKILL)
            process.wait()
        _last_words(process)


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send a signal to a worker not waited for yet and, where it can lead a session, to all that it has started."""
    with suppress(ProcessLookupError):
        (os.killpg if hasattr(os, "killpg") else os.kill)(process.pid, number)
