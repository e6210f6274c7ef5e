"""A Ray cluster: one task per run, on whichever node has room.

No objects travel: a task takes its job as a line of JSON, trains into the store (a folder that all nodes share), and
gives back one line that is empty, or says why it failed.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

from walkback.audit.executors import Event, Job, reason
from walkback.audit.executors.cluster import Stage, absolute, follow
from walkback.audit.executors.local import cores
from walkback.audit.worker import work
from walkback.errors import InputError, shown

if find_spec("ray") is None:
    raise InputError("Expected Ray to be installed for the executor `ray`, but it is not: pip install 'walkback[ray]'.")

OWN_CLUSTER = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Keeps Ray's ports on the loopback interface. It is read when ray is first imported, hence the late import below.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


def run(
    jobs: Sequence[Job], workers: int | None = None, retries: int = 1, address: str | None = None
) -> Generator[Event | None, None, None]:
    """See `walkback.audit.executors.Executor`.

    Args:
        jobs: their store must be reachable under one path from every node.
        workers: tasks at a time; by default all are handed to Ray, which runs as many as the nodes have room for.
        retries: how often a run whose task raised, or whose worker or node died, is tried again.
        address: of a running cluster, "host:port", or "auto" for the one on this machine; by default $RAY_ADDRESS.
            Without either a cluster is started on this machine, and stopped in the end.
    """
    if not jobs:
        return  # no cluster for nothing
    jobs = absolute(jobs)
    threads = max(job.threads for job in jobs)
    with _connected(address or os.environ.get("RAY_ADDRESS"), threads * (workers or max(1, cores() // threads))) as ray:
        # Ray's own retries would go unseen: ours are counted and told.
        task = ray.remote(max_retries=0)(_train)

        def submit(batch: Sequence[Job]) -> list[tuple[Any, Job, int]]:
            needs = [{"num_cpus": job.threads, "num_gpus": int(job.device.startswith("cuda"))} for job in batch]
            return [(task.options(**n).remote(job.to_json()), job, _size(job)) for n, job in zip(needs, batch)]

        def look(handle: tuple[Any, Job, int]) -> tuple[Stage, str]:
            reference, job, size = handle
            if not ray.wait([reference], timeout=0)[0]:
                return ("running" if _size(job) > size else "waiting"), ""  # a worker begins by writing to its log
            try:
                return "over", ray.get(reference)
            except ray.exceptions.RayError as error:
                return "over", f"{type(error).__name__}: {str(error).splitlines()[0]}"

        def stop(handles: Sequence[tuple[Any, Job, int]]) -> None:
            for reference, _, _ in handles:
                ray.cancel(reference, force=True)

        yield from follow(jobs, workers or len(jobs), retries, submit, look, stop)


def _train(text: str) -> str:
    """Train a job on a node; return why it failed, "" if it did not."""
    try:
        work(Job.from_json(text))
    except (Exception, SystemExit) as error:
        return reason(error)
    return ""


def _size(job: Job) -> int:
    return job.log.stat().st_size if job.log.exists() else 0


@contextmanager
def _connected(address: str | None, cpus: int) -> Iterator[Any]:
    """Yield Ray, connected; afterwards a cluster that was there is left as it was, and our own is gone."""
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    with patch.dict(os.environ, {} if address else OWN_CLUSTER):
        import ray

        if ray.is_initialized():
            raise InputError("Expected a process that is not connected to Ray yet: call ray.shutdown() first.")
        try:
            with _own_sigterm():
                if address:
                    _connect(address, lambda: ray.init(address, **quiet))
                else:
                    ray.init("local", num_cpus=cpus, include_dashboard=False, **quiet)
            yield ray
        finally:
            ray.shutdown()  # of a cluster that we did not start this ends our connection, no more


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep what SIGTERM does, from the first moment: Ray would have it end the process with a code of its own."""
    given = signal.signal

    def set_others(number: int, handler: Any) -> Any:
        return signal.getsignal(number) if number == signal.SIGTERM else given(number, handler)

    with patch.object(signal, "signal", set_others):
        yield


def _connect(address: str, init: Callable[[], Any]) -> None:
    if not isinstance(address, str):
        raise InputError(f"Expected the address of a Ray cluster as text, but got {shown(address)}.")
    host, _, port = address.rpartition(":")
    if address != "auto" and (not host or "/" in host or not port.isdigit()):
        raise InputError(f"Expected 'auto' or 'host:port' as the address of a Ray cluster, but got {shown(address)}.")
    try:
        if address != "auto":
            socket.create_connection((host, int(port)), timeout=10).close()  # Ray itself tries for minutes
        init()
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"Expected a Ray cluster at {shown(address)}, but: {str(error).rstrip('.')}. Start one with "
            "`ray start --head`, or leave the address out to have one started on this machine."
        ) from None
