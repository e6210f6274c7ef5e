"""Slurm, through submitit: one job per run, several as an array.

What a job is doing comes from `squeue`, which every Slurm has (`sacct` needs a database), and how it ended from the
store. A job that nears its time limit queues itself again for as long as it gets on.
"""

from __future__ import annotations

import os
import subprocess
import time as clock
from collections.abc import Generator, Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

from walkback.audit.executors import Event, Job
from walkback.audit.executors.cluster import Stage, absolute, follow
from walkback.audit.executors.local import cores
from walkback.audit.worker import work
from walkback.errors import InputError, shown
from walkback.training.folder import CHECKPOINT

if find_spec("submitit") is None:
    raise InputError("Expected submitit to be installed for the executor `slurm`: pip install 'walkback[slurm]'.")

POLL = 5.0  # seconds between two calls of squeue
MANY = 10_000  # time limits a run may reach, as long as it finishes an epoch before each
PENDING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED"}
RUNNING = {"RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"}
LOCAL = ("gpus_per_node", "visible_gpus", "signal_delay_s", "setup")  # what submitit reads without Slurm


class Training:
    """What a job calls; submitit asks it whether to go on when the time limit is near or the job is preempted."""

    def __init__(self, text: str) -> None:
        self.text, self.before = text, 0

    def __call__(self) -> None:
        job = Job.from_json(self.text)
        self.before = _stamp(job)
        work(job)

    def checkpoint(self) -> Any:
        """Return the job to queue again; None, which fails this one, if no epoch was finished since it began."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(Training(self.text)) if _stamp(Job.from_json(self.text)) > self.before else None


def run(
    jobs: Sequence[Job],
    workers: int | None = None,
    retries: int = 1,
    partition: str | None = None,
    time: float = 60,
    cluster: str = "slurm",
    **more: Any,
) -> Generator[Event | None, None, None]:
    """See `walkback.audit.executors.Executor`.

    Args:
        jobs: their store must be reachable under one path from every node.
        workers: jobs in the queue at a time; by default all of them, as one array.
        retries: how often a run whose job failed is handed in again; a time limit or a lost node is no failure.
        partition: of Slurm, by default its own default.
        time: limit of one job in minutes; longer runs are queued again and go on from their last epoch.
        cluster: "slurm", or "local" for processes on this machine.
        more: anything else submitit takes: account, qos, mem, constraint, setup, signal_delay_s …
    """
    if cluster not in ("slurm", "local"):
        raise InputError(f"Expected cluster to be 'slurm' or 'local', but got {shown(cluster)}.")
    given = [name for name in ({"partition": partition} if partition else {}) | more if name not in LOCAL]
    if cluster == "local" and given:  # submitit would not read it, nor say so
        raise InputError(f"Expected options on this machine to be time, {', '.join(LOCAL)}, but got {given[0]}.")
    if not isinstance(time, (int, float)) or isinstance(time, bool) or not 0 < time < float("inf"):
        raise InputError(f"Expected time to be the minutes that one job may take, but got {shown(time)}.")

    for name, value in {"partition": partition, **more}.items():
        lines = value if isinstance(value, (list, tuple)) else [value]
        if name != "setup" and any(set("\n\r\0") & set(str(line)) for line in lines):  # it would end its line
            raise InputError(
                f"Expected the option {name} to be on one line of the job's script, but got {shown(value)}."
            )

    def submit(batch: Sequence[Job]) -> list[Any]:
        handles = []
        for (threads, cuda), group in groupby(batch, lambda job: (job.threads, job.device.startswith("cuda"))):
            needs: dict[str, Any] = {"timeout_min": time} if cluster == "local" else {
                "job_name": "walkback", "partition": partition, "time": time, "cpus_per_task": threads,
                "additional_parameters": {"requeue": True},  # when a node is lost
            }  # fmt: skip
            handles += _hand_in(cluster, list(group), needs | ({"gpus_per_node": 1} if cuda else {}) | more)
        return handles

    queue = _Queue()
    room = workers or (cores() if cluster == "local" else len(jobs))
    yield from follow(absolute(jobs), room, retries, submit, queue.look, queue.stop)


def _stamp(job: Job) -> int:
    checkpoint = job.folder / CHECKPOINT
    return checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0


def _hand_in(cluster: str, jobs: list[Job], needs: dict[str, Any]) -> list[Any]:
    import submitit
    from submitit.core.utils import FailedJobError

    kind = submitit.SlurmExecutor if cluster == "slurm" else submitit.LocalExecutor
    try:
        executor = kind(Path(jobs[0].store) / ".slurm", max_num_timeout=MANY)  # scripts and output of the jobs
        executor.update_parameters(**needs)
        return executor.submit_array([Training(job.to_json()) for job in jobs])
    except (RuntimeError, ValueError, OSError, FailedJobError) as error:
        raise InputError(
            f"Expected {cluster} to take {len(jobs)} jobs, but: {error}\nCheck the options, and that this machine can "
            "submit (`sinfo`, `sbatch --version`)."
        ) from None


class _Queue:
    """What Slurm says of our jobs, asked every few seconds for all of them at once."""

    def __init__(self) -> None:
        self.states, self.handed_in = dict[str, str](), dict[str, float]()
        self.asked = self.answered = float("-inf")

    def look(self, handle: Any) -> tuple[Stage, str]:
        state = handle.state if hasattr(handle, "_process") else self._state(handle.job_id)  # _process: on this machine
        if state in PENDING | RUNNING:
            return ("waiting" if state in PENDING else "running"), ""
        lines = (handle.stderr() or "").strip().splitlines()
        last_line = [line for line in lines if not line.startswith("srun: ")][-1:]  # srun's own are about exit codes
        why = f"Job {handle.job_id} ended as {state}: {' '.join(last_line)} (all it said: {handle.paths.stderr})"
        return "over", "" if state == "COMPLETED" else why

    def _state(self, name: str) -> str:
        handed_in = self.handed_in.setdefault(name, clock.monotonic())
        if clock.monotonic() - self.asked > POLL:
            self.asked = clock.monotonic()
            command = ["squeue", "--noheader", "--array", "--states=all", f"--user={os.getuid()}", "--format=%i %T"]
            answer = subprocess.run(command, capture_output=True, text=True)
            if answer.returncode == 0:  # else the controller is away, and nothing is known to have changed
                self.states, self.answered = dict(line.split() for line in answer.stdout.splitlines()), self.asked
        return self.states.get(name, "gone from the queue" if self.answered > handed_in else "PENDING")

    def stop(self, handles: Sequence[Any]) -> None:
        for handle in handles:
            handle.cancel(check=False)
        for handle in handles:
            if hasattr(handle, "_process"):
                handle._process.wait()
