"""One run in one process: `python -m walkback.audit.worker JOB` with the job as JSON, or on standard input.

What the run prints, and the traceback if it ends in one, is in the run's log.txt.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress

import torch

from walkback.audit.executors import Job
from walkback.errors import WalkbackError
from walkback.training.folder import unwritable
from walkback.training.loop import train

TAIL = 12  # lines of a log that a message shows


def work(job: Job) -> None:
    """Train one job in this process, or find it trained; raises what training raises, after logging it.

    A run that diverges is finished, not failed: it is a finding.
    """
    with _logged(job), _settings(job):
        try:
            train(job.spec, job.store, root=job.root, device=job.device, quiet=True)
        except BaseException:
            with suppress(OSError):  # the disk may be full
                traceback.print_exc()
            raise


def tail(job: Job) -> str:
    """Where the log of a job is, and its last lines: what a `failed` event shows."""
    try:
        lines = job.log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:]
    except OSError as error:
        return f"(no log: {error})"
    return "\n".join([f"{job.log} ends with:", *(f"  {line}" for line in lines)])


def reason(error: BaseException) -> str:
    """An exception as one line: ours as they are, others with their type."""
    return str(error) if isinstance(error, WalkbackError) else f"{type(error).__name__}: {error}"


@contextmanager
def _logged(job: Job) -> Iterator[None]:
    """Python's output goes to the end of the run's log."""
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
        log = job.log.open("a", encoding="utf-8", buffering=1)
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
def _settings(job: Job) -> Iterator[None]:
    """Threads and deterministic kernels as the job asks; as found afterwards."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it CUDA's products are not deterministic
    threads, exact = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(job.threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(exact)


def _leash() -> None:
    """End with the process that started us: standard input is a pipe that it holds open."""
    with suppress(OSError):
        while os.read(0, 4096):
            pass
    os._exit(1)  # at once: every write is atomic, so this is as good a moment as any


def main(arguments: list[str]) -> int:
    """`JOB` as JSON; or `-`: one line on standard input, and the worker ends when that is closed."""
    voice = os.fdopen(os.dup(1), "w", encoding="utf-8")  # what failed, for the process that started us
    os.dup2(2, 1)  # anything else that is printed goes to the log
    try:
        if arguments == ["-"]:
            job = Job.from_json(_line())
            threading.Thread(target=_leash, daemon=True).start()
        else:
            job = Job.from_json(" ".join(arguments))
        work(job)
    except Exception as error:
        with suppress(OSError):
            print(reason(error), file=voice, flush=True)
        return 1
    return 0


def _line() -> str:
    text = b""
    while not text.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            break
        text += byte
    return text.decode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
