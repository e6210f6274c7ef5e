"""Slurm: submitit's executor on this machine, and a real slurmctld and slurmd where they can be started."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from halting import DOORS, arrived, open_door
from patience import alive, until
from places import ROOT
from test_training import tiny
from walkback.audit.executors import Event, Job, executor, slurm
from walkback.audit.executors import cluster as loop
from walkback.audit.store import progress
from walkback.data import Dataset
from walkback.errors import InputError
from walkback.training.loop import train
from walkback.training.spec import RunSpec

SHORT = {"net_options": {"width": 16, "depth": 2}, "data": "test_training:tiny", "epochs": 5, "rule": "dfa"}
SCRIPT = ROOT / "scripts" / "slurm_single_node.sh"


def broken() -> Dataset:
    raise ValueError("no such shelf")


def door(seed: int) -> str:
    return f"seed {seed}"


def halting(seed: int) -> RunSpec:
    """A run that waits in the middle of its fourth epoch: four credits for the first row, eight for an epoch."""
    options = {"name": door(seed), "at": 30}
    return RunSpec(**{**SHORT, "rule": "halting:Halts", "rule_options": options, "seed": seed})


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Our modules for the jobs, and no long pauses between two looks."""
    monkeypatch.setenv(DOORS, str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ["PYTHONPATH"]]))
    monkeypatch.setattr(slurm, "POLL", 0.3)
    monkeypatch.setattr(loop, "TICK", 0.1)


@pytest.fixture
def slurmd(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a Slurm of our own."""
    if (shutil.which("slurmd") is None or os.getuid() != 0) and not os.environ.get("WALKBACK_NEEDS_SLURM"):
        pytest.skip("needs root and Debian's Slurm, which `make slurm` installs")
    folder, started = start_slurm()
    for _ in range(2):  # another program may have taken a port after it was found free
        if started.returncode:
            shutil.rmtree(folder)
            folder, started = start_slurm()
    assert started.returncode == 0, started.stderr
    try:
        monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        yield folder
    finally:
        subprocess.run([SCRIPT, "stop", folder], check=True)
        shutil.rmtree(folder)


def start_slurm() -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = Path(tempfile.mkdtemp(prefix="wb", dir="/tmp"))
    return folder, subprocess.run([SCRIPT, "start", folder], capture_output=True, text=True)


@pytest.fixture(params=["local", "slurm"])
def cluster(request: pytest.FixtureRequest) -> str:
    if request.param == "slurm":
        request.getfixturevalue("slurmd")
    return request.param


def starts(job: Job) -> list[int]:
    """The processes that began to train it."""
    return [int(pid) for pid in re.findall(r"^-- .* process (\d+) on", job.log.read_text(), re.M)]


def follow(jobs: list[Job], interfere: dict[RunSpec, signal.Signals], **options) -> tuple[list[Event], dict]:
    """Run them all; a process whose run has come to its door gets the signal meant for it, and the door is opened."""
    events, epochs, interfere = list[Event](), {job.spec: [0] for job in jobs}, dict(interfere)
    for event in slurm.run(jobs, **options):
        events += [event] if event else []
        for job in jobs:
            epochs[job.spec].append(progress(job.store, job.spec).get("epoch") or epochs[job.spec][-1])
            if job.spec in interfere and arrived(door(job.spec.seed)):
                assert progress(job.store, job.spec)["epoch"] == 3
                os.kill(starts(job)[-1], interfere.pop(job.spec))
                until(lambda job=job: not alive(starts(job)[-1]))
                open_door(door(job.spec.seed))
    assert not interfere
    return events, epochs


def told(events: list[Event], spec: RunSpec) -> list[str]:
    return [event.kind for event in events if event.spec == spec]


def assert_as_undisturbed(job: Job, calm: Path) -> None:
    bundle = train(job.spec, calm, data=tiny(), quiet=True)
    for name in ("weights.safetensors", "trajectory.jsonl", "report.json"):
        assert (job.folder / name).read_bytes() == (bundle.path / name).read_bytes(), name


@pytest.mark.slow
def test_killed_preempted_and_broken_runs(cluster: str, tmp_path: Path) -> None:
    killed, preempted = halting(1), halting(2)
    bad = RunSpec(**{**SHORT, "data": "test_executor_slurm:broken"})
    jobs = [Job(spec, str(tmp_path / "store")) for spec in (killed, preempted, bad)]
    signals = {killed: signal.SIGKILL, preempted: signal.SIGUSR2}  # USR2: what Slurm sends near a time limit
    events, epochs = follow(jobs, signals, cluster=cluster, workers=2, retries=1, time=60)
    assert told(events, killed) == ["started", "retried", "started", "finished"]
    assert told(events, preempted)[0] == "started"
    assert told(events, preempted)[-1] == "finished"
    assert told(events, bad) == ["started", "retried", "started", "failed"]
    detail = next(event.detail for event in events if event.kind == "failed")
    assert "ValueError: no such shelf" in detail.splitlines()[0]
    assert f"{jobs[2].log} ends with:" in detail
    for job in jobs[:2]:
        assert len(starts(job)) == 2
        assert epochs[job.spec] == sorted(epochs[job.spec]), "it began anew instead of going on"
        assert_as_undisturbed(job, tmp_path / "calm")


def test_a_time_limit_shorter_than_an_epoch_is_a_failure(tmp_path: Path) -> None:
    job = Job(RunSpec(**SHORT), str(tmp_path))
    training = slurm.Training(job.to_json())
    assert training.checkpoint() is None
    job.folder.mkdir()
    (job.folder / "checkpoint.safetensors").touch()
    assert training.checkpoint().function.text == training.text


@pytest.mark.slow
def test_the_node_is_lost_and_comes_back(slurmd: Path, tmp_path: Path) -> None:
    job = Job(halting(1), str(tmp_path / "store"))
    events, lost = list[Event](), False
    for event in slurm.run([job], retries=0):
        events += [event] if event else []
        if not lost and arrived(door(1)):
            lost = True
            pull_the_plug(slurmd)
            open_door(door(1))
        if event and event.kind == "retried":
            subprocess.run(["slurmd", "-f", slurmd / "slurm.conf"], check=True)
    assert told(events, job.spec) == ["started", "retried", "started", "finished"]
    assert len(starts(job)) == 2
    assert_as_undisturbed(job, tmp_path / "calm")


def pull_the_plug(folder: Path) -> None:
    """Kill our slurmd, then the jobs' processes and their step daemons: what is left of a node without power."""
    listed = subprocess.run(["scontrol", "listpids"], capture_output=True, text=True, check=True).stdout
    jobs = [int(line.split()[0]) for line in listed.splitlines()[1:]]
    parents = [int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in jobs]
    steps = [pid for pid in parents if "slurmstepd" in Path(f"/proc/{pid}/comm").read_text()]
    assert steps
    for pid in [int((folder / "slurmd.pid").read_text()), *steps, *jobs]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not any(alive(pid) for pid in jobs))
    # Slurm would notice when the node has not answered for some time; on a busy machine one that lives may not either.
    (node,) = subprocess.run(["sinfo", "--noheader", "--format=%n"], capture_output=True, text=True).stdout.split()
    subprocess.run(["scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost"], check=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"time": "abc"}, "Expected time to be the minutes that one job may take, but got 'abc'"),
        ({"time": -5}, "Expected time to be the minutes that one job may take, but got -5"),
        ({"cluster": "pbs"}, "Expected cluster to be 'slurm' or 'local', but got 'pbs'"),
        ({"cluster": "local", "mem": "4G"}, "Expected options on this machine to be time, .*setup, but got mem"),
        ({"cluster": "local", "partition": "gpu"}, "Expected options on this machine .* but got partition"),
        ({"partion": "gpu"}, r"Expected slurm to take 1 jobs, but: Unavailable parameter\(s\): \['partion'\]"),
    ],
)
def test_options_that_do_not_exist(options: dict, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(InputError, match=words):
        next(slurm.run([Job(RunSpec(), str(tmp_path))], **options))


def test_a_machine_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(InputError, match=r"Expected slurm to take 1 jobs, but: Could not detect \"srun\""):
        next(slurm.run([Job(RunSpec(), str(tmp_path))]))


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "walkback.audit.executors.slurm")
    with pytest.raises(InputError, match=r"pip install 'walkback\[slurm\]'"):
        executor("slurm")


@pytest.mark.parametrize("option", ["partition", "account", "setup_of_mine"])
def test_an_option_can_not_add_lines_to_the_script_of_a_job(option: str) -> None:
    with pytest.raises(InputError, match=f"Expected the option {option} to be on one line"):
        next(slurm.run([], **{option: "short\n#SBATCH --uid=0"}))
