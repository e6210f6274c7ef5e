"""One run in one process: `python -m walkback.audit.worker` with the job on standard input; after `--more`, several.

What the run prints, and the traceback if it ends in one, is in the run's log.txt.
"""

from __future__ import annotations

import json
import os
import platform
import queue
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import IO

import torch

from walkback.audit.executors import Job, clipped, reason
from walkback.data import load, root_of
from walkback.errors import InputError
from walkback.files import append_to, read_file
from walkback.training.folder import BusyError, owned, unwritable
from walkback.training.loop import train
from walkback.training.setup import threads
from walkback.training.worth import add_depth

TAIL = 12  # lines of a log that a message shows
WIDE = 300  # characters that a message shows of a line
MORE = "--more"  # a worker started with it takes one job after another
DONE = "\x06"  # what it says when it can take the next
BUSY = 75  # exit code: another process is training the run
SPEAKS = "\x1e"  # stands before what a worker says of a failure: what was printed before `main` is none of it


def work(job: Job, wait: bool = True) -> None:
    """Train one job in this process, or find it trained; raises what training raises, after logging it.

    A run that diverges is finished, not failed: it is a finding. One that another process is training is waited for,
    or with `wait` False a BusyError.
    """
    with owned(job.folder, wait=wait), _logged(job), threads(job.threads), _deterministic():
        try:
            root = root_of(job.spec.data, job.root)
            bundle = train(job.spec, job.store, root=root, device=job.device, quiet=True)
            if job.depth is not None and job.spec.scope == "all":  # a control has no trained blocks
                add_depth(bundle, load(job.spec.data, root), job.device, job.depth)
        except BaseException:
            with suppress(OSError):  # the disk may be full
                traceback.print_exc()
            raise


def tail(job: Job) -> str:
    """Return where the log of a job is, and its last lines: what a `failed` event shows."""
    try:
        lines = read_file(job.log).decode(errors="replace").splitlines()[-TAIL:]
    except OSError as error:
        return f"(no log: {error})"
    return "\n".join([f"{job.log} ends with:", *(f"  {clipped(line, WIDE)}" for line in lines)])


@contextmanager
def _logged(job: Job) -> Iterator[None]:
    """Send Python's output to the end of the run's log inside the `with` block."""
    try:
        log = append_to(job.log)
    except OSError as error:
        raise unwritable(job.log, error) from None
    try:
        with redirect_stdout(log), redirect_stderr(log):
            with suppress(OSError):
                print(f"-- {time.strftime('%Y-%m-%d %H:%M:%S')}, process {os.getpid()} on {platform.node()}")
            yield
    finally:
        with suppress(OSError):  # on a full disk the last line can't be written, and that is not what went wrong
            log.close()


@contextmanager
def _deterministic() -> Iterator[None]:
    """Switch deterministic kernels on; they are as found afterwards."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it CUDA's products are not deterministic
    exact = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(exact)


def _log_descriptors(job: Job) -> None:
    """Send what is written past Python to the log of another run; the first one's log came with the process."""
    with suppress(OSError), append_to(job.log) as log:  # `_logged` says what is wrong with it
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)


def _leash(pipe: IO[bytes], jobs: queue.Queue[Job]) -> None:
    """Take further jobs, and end with the process that started us, which holds the other end of the pipe open."""
    with suppress(OSError, InputError):
        while line := pipe.readline():
            jobs.put(Job.from_json(line.decode()))
    os._exit(1)  # at once: every write is atomic, so this is as good a moment as any


def main() -> int:
    """Read lines of standard input, where modules are found and then jobs, and run these; end when that is closed."""
    voice = os.fdopen(os.dup(1), "w", encoding="utf-8")  # what failed, for the process that started us
    os.dup2(2, 1)  # anything else that is printed goes to the log
    if hasattr(os, "register_at_fork"):  # a child that outlives us must not be waited for
        os.register_at_fork(after_in_child=voice.close)
    try:
        pipe = os.fdopen(os.dup(0), "rb", buffering=0)
        sys.path[:] = json.loads(pipe.readline())
        jobs = queue.Queue[Job]()
        jobs.put(Job.from_json(pipe.readline().decode()))
        threading.Thread(target=_leash, args=(pipe, jobs), daemon=True).start()
        with Path(os.devnull).open() as nothing:  # whoever asks a question gets no answer, and ends
            os.dup2(nothing.fileno(), 0)
        work(jobs.get(), wait=False)
        while MORE in sys.argv[1:]:
            print(DONE, end="", file=voice, flush=True)
            job = jobs.get()
            _log_descriptors(job)
            work(job, wait=False)
    except BusyError:
        return BUSY
    except (Exception, SystemExit) as error:
        with suppress(OSError):
            print(SPEAKS + reason(error), file=voice, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
