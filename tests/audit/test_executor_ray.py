"""Ray for real: a cluster of two nodes on the loopback interface, one of which is killed while it trains."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from halting import DOORS, arrived, open_door
from patience import PATIENCE, until
from places import ROOT
from test_training import tiny
from walkback.audit.executors import Event, Job, executor
from walkback.audit.executors.ray import OWN_CLUSTER, run
from walkback.audit.store import progress, state
from walkback.data import Dataset
from walkback.errors import InputError
from walkback.training.loop import train
from walkback.training.spec import RunSpec

SHORT = {"net_options": {"width": 16, "depth": 2}, "data": "test_training:tiny", "epochs": 5, "rule": "dfa"}
NODE = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 80 * 2**20}
# On a busy machine processes start and answer late: Ray must not take that for a node that died, nor for a full memory.
PATIENT = {
    "RAY_health_check_timeout_ms": "100000",
    "RAY_health_check_failure_threshold": "20",
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_raylet_start_wait_time_s": "600",
    "RAY_gcs_server_request_timeout_seconds": "600",
    "RAY_memory_monitor_refresh_ms": "0",
}


def broken() -> Dataset:
    raise ValueError("no such shelf")


def halting(seed: int) -> RunSpec:
    """A run that waits in the middle of its fourth epoch: four credits for the first row, eight for an epoch."""
    options = {"name": f"seed {seed}", "at": 30}
    return RunSpec(**{**SHORT, "rule": "halting:Halts", "rule_options": options, "seed": seed})


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for Ray, with a short name because its sockets are in there, and our modules for its workers."""
    folder = Path(tempfile.mkdtemp(prefix="wb", dir="/tmp"))
    (folder / "token").write_text(secrets.token_hex(32))  # else Ray puts one into the home directory
    own = {"RAY_TMPDIR": folder, "RAY_AUTH_TOKEN_PATH": folder / "token", DOORS: folder}
    for key, value in {**OWN_CLUSTER, **PATIENT, **own}.items():
        monkeypatch.setenv(key, str(value))
    see_only(folder, monkeypatch)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ["PYTHONPATH"]]))
    yield folder
    until(lambda: not runs_in(folder))  # else what is still ending writes into it
    shutil.rmtree(folder, ignore_errors=True)


def see_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters are found among the processes of all users, so Ray is shown none but those of this folder."""
    from ray._private import services

    everybody = services.psutil.process_iter

    def ours(attributes: list[str]) -> Iterator[Any]:
        return (p for p in everybody(attributes) if str(folder) in " ".join(p.info["cmdline"] or ()))

    monkeypatch.setattr(services.psutil, "process_iter", ours)


def runs_in(folder: Path) -> bool:
    """Whether there is a process that was told of this folder, as all of a cluster's are."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if str(folder).encode() in path.read_bytes():
                return True
    return False


def answers(address: str) -> bool:
    host, port = address.rsplit(":", 1)
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


@pytest.mark.slow
def test_a_node_is_killed_and_nothing_is_lost(short: Path, tmp_path: Path) -> None:
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    specs = [halting(1), halting(2), RunSpec(**SHORT, seed=3)]
    bad = RunSpec(**{**SHORT, "data": "test_executor_ray:broken"})
    jobs = [Job(spec, str(tmp_path / "store")) for spec in (*specs, bad)]
    events, epochs, victim = list[Event](), {spec: [0] for spec in specs}, None
    try:
        victim = cluster.add_node(**NODE)
        assert cluster.address.startswith("127.0.0.1:")
        for event in run(jobs, retries=1, address=cluster.address):
            events += [event] if event else []
            for spec in specs:
                epochs[spec].append(progress(tmp_path / "store", spec).get("epoch") or 0)
            if victim and arrived("seed 1") and arrived("seed 2"):  # each has a node of its own
                assert all(progress(tmp_path / "store", spec)["epoch"] == 3 for spec in specs[:2])
                cluster.remove_node(victim, allow_graceful=False)
                victim = None
                open_door("seed 1")
                open_door("seed 2")
        assert victim is None, "no node was killed"
        assert not ray.is_initialized()
        assert answers(cluster.address), "the cluster was not ours to stop"
    finally:
        cluster.shutdown()

    told = {spec: [event.kind for event in events if event.spec == spec] for spec in (*specs, bad)}
    hit = [spec for spec in specs[:2] if told[spec] == ["started", "retried", "started", "finished"]]
    assert len(hit) == 1, told
    assert all(told[spec] == ["started", "finished"] for spec in specs if spec not in hit)
    lost = next(event for event in events if event.spec == hit[0] and event.kind == "retried")
    assert "NodeDiedError" in lost.detail or "WorkerCrashedError" in lost.detail
    assert epochs[hit[0]] == sorted(epochs[hit[0]]), "it began anew instead of going on"
    assert jobs[specs.index(hit[0])].log.read_text().count("-- ") == 2

    assert told[bad] == ["started", "retried", "started", "failed"]
    failed = next(event for event in events if event.kind == "failed")
    assert "ValueError: no such shelf" in failed.detail.splitlines()[0]
    assert f"{jobs[3].log} ends with:" in failed.detail

    for spec in specs:
        calm = train(spec, tmp_path / "calm", data=tiny(), quiet=True).path
        for name in ("weights.safetensors", "trajectory.jsonl", "report.json"):
            assert (tmp_path / "store" / spec.name / name).read_bytes() == (calm / name).read_bytes(), name


@pytest.mark.slow
def test_a_cluster_of_our_own_is_gone_afterwards(short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.chdir(tmp_path)  # a store given relative to here is found from the workers
    spec = RunSpec(**{**SHORT, "epochs": 2})
    events, address = list[Event](), ""
    for event in run([Job(spec, "store")], workers=1):
        address = address or ray.get_runtime_context().gcs_address
        assert ray.cluster_resources()["CPU"] == 1
        events += [event] if event else []
    assert [event.kind for event in events] == ["started", "finished"]
    assert state("store", spec).kind == "finished"
    assert address.startswith("127.0.0.1:")
    until(lambda: not runs_in(short))


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["Ray starts", "a run trains"])
def test_sigterm_under_ray_ends_as_documented(moment: str, short: Path, tmp_path: Path) -> None:
    """Exit code 130 and how to go on, no traceback, and neither a cluster nor a worker is left."""
    spec = halting(1)
    plan = tmp_path / "mine.toml"
    rule = 'rule = "halting:Halts"\nrule_options = {name = "seed 1", at = 30}\n'
    fixed = f'net_options = {{width = 16, depth = 2}}\ndata = "{spec.data}"\nepochs = {spec.epochs}\n'
    plan.write_text(f"controls = false\n[fixed]\n{fixed}{rule}[[grid]]\nseed = [1]\n")
    command = [sys.executable, "-m", "walkback", "audit", str(plan), "--out", str(tmp_path / "runs"), "--workers", "1"]
    pipe = subprocess.PIPE
    process = subprocess.Popen([*command, "--executor", "ray"], stdout=pipe, stderr=pipe, text=True)
    until(lambda: process.poll() is not None or (runs_in(short) if moment == "Ray starts" else arrived("seed 1")))
    process.send_signal(signal.SIGTERM)
    printed, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, error
    assert "Traceback" not in error + printed
    assert "0 of 1 runs are finished" in error
    assert "the same command goes on" in error
    until(lambda: not runs_in(short))
    assert state(tmp_path / "runs", spec).kind == ("new" if moment == "Ray starts" else "begun")


def test_no_cluster_at_that_address(short: Path, tmp_path: Path) -> None:
    with socket.socket() as ours:
        ours.bind(("127.0.0.1", 0))  # nobody else gets this port, and we do not listen there
        address = f"127.0.0.1:{ours.getsockname()[1]}"
        with pytest.raises(InputError, match=rf"Expected a Ray cluster at '{address}', but: .*`ray start --head`"):
            next(run([Job(RunSpec(), str(tmp_path))], address=address))


def test_no_cluster_on_this_machine(short: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Expected a Ray cluster at 'auto', but: .*`ray start --head`"):
        next(run([Job(RunSpec(), str(tmp_path))], address="auto"))


@pytest.mark.slow
def test_the_cluster_on_this_machine(short: Path, tmp_path: Path) -> None:
    """It is found without its address, and not stopped afterwards."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        spec, events = RunSpec(**{**SHORT, "epochs": 1}), list[str]()
        for event in run([Job(spec, str(tmp_path))], address="auto"):
            assert ray.get_runtime_context().gcs_address == cluster.address
            events += [event.kind] if event else []
        assert events == ["started", "finished"]
        assert answers(cluster.address), "the cluster was not ours to stop"
    finally:
        cluster.shutdown()


def test_an_address_that_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Expected the address of a Ray cluster as text, but got 5"):
        next(run([Job(RunSpec(), str(tmp_path))], address=5))  # type: ignore[arg-type]


@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "head"])
def test_an_address_of_another_kind(tmp_path: Path, address: str) -> None:
    with pytest.raises(InputError, match=rf"Expected 'auto' or 'host:port' .*, but got '{address}'"):
        next(run([Job(RunSpec(), str(tmp_path))], address=address))


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "walkback.audit.executors.ray")
    with pytest.raises(InputError, match=r"pip install 'walkback\[ray\]'"):
        executor("ray")


def test_ray_does_not_take_over_what_sigterm_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's handler ends the process with a code of its own; `audit` says how to go on and exits as documented."""
    import ray

    from walkback.audit.executors import ray as executor
    from walkback.audit.run import sigterm_interrupts

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda *_, **__: signal.signal(signal.SIGTERM, lambda *_: sys.exit(15)))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with sigterm_interrupts(), executor._connected(None, 1), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
