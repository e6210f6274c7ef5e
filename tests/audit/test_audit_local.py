"""Audits: workers that die, raise or diverge, two audits on one store, and being stopped; with real processes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

import walkback as wb
from halting import DOORS, arrived, open_door
from patience import PATIENCE, alive, until
from places import FOLDERS, ROOT
from test_audit_store import FIELDS, small
from walkback.audit import Plan, audit, executors, store
from walkback.audit import run as running
from walkback.audit.executors import Event, Job, executor, local
from walkback.audit.executors.cluster import follow
from walkback.audit.worker import SPEAKS, tail, work
from walkback.cli import run as cli
from walkback.data import Dataset
from walkback.rules.dfa import DFA
from walkback.training.folder import is_locked, owned
from walkback.training.loop import train
from walkback.training.spec import RunSpec


class CountedDFA(DFA):
    """DFA that leaves a mark each time it is asked for credits, whichever process asks."""

    def credits(self, trace):
        with Path(os.environ["WALKBACK_TEST_MARKS"]).open("ab") as file:
            file.write(b".")
        return super().credits(trace)


class BrokenDFA(DFA):
    """DFA that can be built but not used."""

    def credits(self, trace):
        raise RuntimeError("the rule is broken")


class Quits(DFA):
    """Ends the process as if all were well."""

    def credits(self, trace):
        sys.exit(0)


class Shouts(DFA):
    """More words than a pipe holds."""

    def credits(self, trace):
        raise ValueError("x" * 300_000)


class Asks(DFA):
    """A question that nobody answers, as of a forgotten breakpoint."""

    def credits(self, trace):
        input("go on? ")
        return super().credits(trace)


class Forks(DFA):
    """Leaves a process behind that lives longer than it does, as a pool or a manager might."""

    def credits(self, trace):
        child = os.fork()
        if not child:
            time.sleep(PATIENCE)
            os._exit(0)
        Path(os.environ["WALKBACK_TEST_MARKS"]).write_text(str(child))
        raise RuntimeError("no credit today")


class ForksAndStays(Forks):
    """The same, and does not end."""

    def credits(self, trace):
        with contextlib.suppress(RuntimeError):
            super().credits(trace)
        time.sleep(PATIENCE)


def calls_a_program(root: object = None) -> Dataset:
    print("ours", flush=True)
    os.system("echo theirs")
    return small()


def no_data(root: object = None) -> Dataset:
    raise RuntimeError("no data today")


def spec(seed: int = 0, **fields: object) -> RunSpec:
    return RunSpec(**{**FIELDS, "seed": seed, **fields})


def halting(name: str = "door", **fields: object) -> RunSpec:
    """A run that waits in the middle of its second epoch: two credits for the first row, three for an epoch."""
    return spec(rule="halting:Halts", rule_options={"name": name, "at": 6}, **fields)


BROKEN = spec(rule="test_audit_local:BrokenDFA")
DIVERGING = spec(
    rule="bp", epochs=50, net_options={"width": 8, "depth": 2}, optimiser={"lr": 1e18, "schedule": "constant"}
)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Workers find this file's data and rules, and this package."""
    package = Path(wb.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*FOLDERS, str(package)]))
    monkeypatch.setenv("WALKBACK_TEST_MARKS", str(tmp_path / "marks"))
    monkeypatch.setenv(DOORS, str(tmp_path))


def in_this_process(jobs: Sequence[Job], workers: int | None = None, retries: int = 1) -> Iterator[Event | None]:
    """An executor without processes: everything about audits that is not about processes."""
    for job in jobs:
        yield Event(job.spec, "started")
        try:
            work(job)
        except Exception as error:
            yield Event(job.spec, "failed", f"{error}\n{tail(job)}")
        else:
            yield None
            yield Event(job.spec, "finished")


@pytest.fixture
def simple(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "executor", lambda name: in_this_process)


def plan(*specs: RunSpec) -> Plan:
    return Plan("test", "", specs)


def weights(out: Path, which: RunSpec) -> bytes:
    return (out / which.name / "weights.safetensors").read_bytes()


def pids(log: Path) -> list[int]:
    return [int(n) for n in re.findall(r"process (\d+) on", log.read_text())] if log.exists() else []


# -- one worker ----------------------------------------------------------------------------------------------


def test_a_worker_trains_the_same_bytes_and_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    job = Job(spec(), str(tmp_path / "a"))
    threads = torch.get_num_threads()
    work(job)
    train(spec(), tmp_path / "b", data=small(), quiet=True)
    assert weights(tmp_path / "a", spec()) == weights(tmp_path / "b", spec())
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == (threads, False)
    assert pids(job.log) == [os.getpid()]


def test_a_worker_logs_what_is_printed_and_the_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(BROKEN, str(tmp_path))
    with pytest.raises(RuntimeError, match="the rule is broken"):
        work(job)
    text = job.log.read_text()
    assert "Traceback" in text
    assert "RuntimeError: the rule is broken" in text
    assert tail(job).startswith(f"{job.log} ends with:\n")
    assert capsys.readouterr() == ("", "")


def test_jobs_that_are_not_jobs_teach() -> None:
    assert Job.from_json(Job(BROKEN, "s", "r", 2, "cuda").to_json()) == Job(BROKEN, "s", "r", 2, "cuda")
    with pytest.raises(wb.InputError, match="Expected a job as JSON"):
        Job.from_json("{}")
    with pytest.raises(wb.InputError, match=r"Expected executor to be one of local, ray, slurm, but got 'rya'.*'ray'"):
        executor("rya")


# -- an audit, whatever trains it ----------------------------------------------------------------------------


@pytest.mark.usefixtures("simple")
def test_what_fails_is_told_and_the_rest_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    specs = (spec(1), BROKEN, DIVERGING)
    train(spec(1), tmp_path, data=small(), quiet=True)
    found = audit(plan(*specs), tmp_path)
    assert set(found.finished) == {spec(1), DIVERGING}  # what diverges is a finding
    assert found.before == 1
    (failure,) = found.failed
    assert failure.spec == BROKEN
    assert failure.log == tmp_path / BROKEN.name / "log.txt"
    assert failure.log.exists()
    assert "the rule is broken" in failure.detail
    text = str(found)
    assert "2 of 3 runs finished" in text
    assert f"failed: {BROKEN.name}\n  the rule is broken\n  {failure.log.absolute()} ends with:" in text
    assert found.to_dict()["failed"][0]["name"] == BROKEN.name
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["started", "failed", "started", "finished"]
    assert "acc " in lines[-1]
    assert lines[-1].endswith("(2 finished, 0 running, 0 waiting, 1 failed)")


@pytest.mark.usefixtures("simple")
def test_a_damaged_run_is_reported_untouched_and_a_record_without_weights_counts(tmp_path: Path) -> None:
    for seed in (1, 2):
        train(spec(seed), tmp_path, data=small(), quiet=True)
    (tmp_path / spec(1).name / "trajectory.jsonl").unlink()
    (tmp_path / spec(2).name / "weights.safetensors").unlink()
    before = weights(tmp_path, spec(1))
    found = audit(plan(spec(1), spec(2), spec(3)), tmp_path, quiet=True)
    assert set(found.finished) == {spec(2), spec(3)}
    assert "trajectory.jsonl was removed" in found.failed[0].detail
    assert weights(tmp_path, spec(1)) == before
    assert found.without_weights == 1
    assert "1 of them have no weights that can be read, only their record" in str(found)


@pytest.mark.usefixtures("simple")
def test_the_order_is_what_was_begun_then_seed_by_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    specs = [spec(seed, rule=rule) for rule in ("bp", "dfa") for seed in (1, 2)]
    (tmp_path / specs[3].name).mkdir()
    (tmp_path / specs[3].name / "checkpoint.safetensors").touch()
    states = {s: store.state(tmp_path, s) for s in specs}
    order = running.ordered(specs, states)
    assert [(s.seed, s.rule) for s in order] == [(2, "dfa"), (1, "bp"), (1, "dfa"), (2, "bp")]


@pytest.mark.usefixtures("simple")
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"data": "cifar10"}, r"Expected the files of CIFAR-10, but found no complete set"),
        ({"net": "test_audit_local:no_net"}, r"Expected test_audit_local to have 'no_net'"),
        ({"net_options": {"widht": 1}}, r"Expected net_options that resmlp knows"),
        ({"net_options": {"width": 10**14}}, r"RuntimeError: .*memory"),
        ({"augment": True}, r"Expected images \(C, H, W\) to flip and crop, but .* has inputs of shape \(8,\)"),
    ],
)
def test_what_can_not_be_trained_is_said_before_anything_starts(bad: dict, words: str, tmp_path: Path) -> None:
    wrong = spec(2, **bad)
    with pytest.raises(wb.WalkbackError, match=words) as error:
        audit(plan(spec(1), wrong), tmp_path / "out", root=tmp_path)
    assert "data" in bad or str(error.value).startswith(f"{wrong.name}: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("simple")
def test_a_store_that_can_not_be_written_is_said_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(wb.FormatError, match=r"Expected to write .*out, but"):
        audit(plan(spec(1)), tmp_path / "out")


def test_wrong_numbers_teach(tmp_path: Path) -> None:
    with pytest.raises(wb.InputError, match="Expected at least one worker, but got 0"):
        audit(plan(spec()), tmp_path, workers=0)
    for threads in (0, 100_000):
        with pytest.raises(wb.InputError, match=f"Expected 1 to 1024 threads for each worker, but got {threads}"):
            audit(plan(spec()), tmp_path, threads=threads)
    with pytest.raises(wb.InputError, match="Expected retries to be 0 or more, but got -1"):
        audit(plan(spec()), tmp_path, retries=-1)


@pytest.mark.usefixtures("simple")
def test_the_command_line_exits_by_what_happened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.toml"
    head = (
        'controls = false\n[fixed]\nepochs = 1\ndata = "test_audit_store:small"\nnet_options = {width = 8}\n[[grid]]\n'
    )
    path.write_text(head + 'rule = ["dfa"]\n')
    assert cli(["audit", str(path), "--out", str(tmp_path / "runs"), "--depth", "64", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    kept = json.loads((tmp_path / "runs" / found["finished"][0] / "report.json").read_text())
    assert kept["depth"]["samples"]["train"] <= 64
    assert (found["plan"], found["runs"], len(found["finished"]), found["failed"]) == ("mine", 1, 1, [])
    path.write_text(head + 'rule = ["dfa", "test_audit_local:BrokenDFA"]\n')
    assert cli(["audit", str(path), "--out", str(tmp_path / "runs")]) == 1
    assert "1 of 2 runs finished" in capsys.readouterr().out
    for wrong, words in (
        (["audit"], "Expected a plan (primary, "),
        (["audit", "primry"], "Did you mean 'primary'?"),
        (["audit", str(path), "--address", "auto"], "Expected --address only with --executor ray"),
        (["audit", str(path), "--options", '{"depth": 2}'], "is one of the audit's own: give it as --depth."),
        (["audit", str(path), "--options", '{"quiet": true}'], "is one of the audit's own: leave it out."),
        (["audit", str(path), "--options", "[]"], "Expected --options to be a JSON object"),
        (["audit", str(path), "--options", '{"partition": "x"}'], "Expected options that the executor local knows"),
    ):
        assert cli(wrong) == 2
        assert words in capsys.readouterr().err


def test_the_table_shows_what_matters_first_and_how_long_it_takes(tmp_path: Path) -> None:
    from rich.console import Console

    specs = [spec(seed, epochs=10) for seed in range(6)]
    place = tmp_path / specs[3].name
    place.mkdir()
    told = {"epoch": 4, "epochs": 10, "acc": 0.25, "h_L": 1e8, "g_L": None, "seconds_per_epoch": 60.0}
    (place / "progress.json").write_text(json.dumps(told))
    board = running._Board(tmp_path, {s: running._Line(s, "waiting") for s in specs})
    board.take(Event(specs[3], "started"))
    board.take(Event(specs[5], "failed", "why"))
    assert board.seconds_left() == 60 * (6 + 4 * 10)
    board.take(Event(specs[0], "started"))
    assert board.seconds_left() == 60 * (6 + 4 * 10) / 2
    board.take(Event(specs[0], "retried"))  # two at a time, also when one of them has just ended
    assert board.seconds_left() == 60 * (6 + 4 * 10) / 2
    board.at_a_time = 1
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    console.print(running._table(board, 3))
    text = console.file.getvalue()
    rows = [line.split() for line in text.splitlines() if "dfa" in line]
    assert [row[1] for row in rows] == ["s3", "s5", "s0"]
    assert rows[0][-4:] == ["4/10", "0.250", "1.0e+08", "running"]
    assert "0 finished, 1 running, 4 waiting, 1 failed; about 46 min left (and 3 more runs" in " ".join(text.split())


def test_without_a_live_table_lines_tell_the_time_left_and_who_is_waited_for(tmp_path: Path) -> None:
    from rich.console import Console

    which = spec(epochs=10)
    board = running._Board(tmp_path, {which: running._Line(which, "waiting")})
    for dumb in ({"force_terminal": False}, {"force_terminal": True, "_environ": {"TERM": "dumb"}}):
        console = Console(file=io.StringIO(), width=200, soft_wrap=True, **dumb)
        with running._shown(board, console) as show:
            for _ in range(2):
                show(None)
            board.take(Event(which, "started"))
            place = tmp_path / which.name
            place.mkdir(exist_ok=True)
            (place / "progress.json").write_text('{"epoch": 4, "seconds_per_epoch": 60.0}')
            show(None)
            board.take(Event(which, "retried", "why"))
            show(Event(which, "retried", "why"))
        lines = console.file.getvalue().splitlines()
        assert lines[0] == "1 run to wait for: another process trains there"
        assert len(lines) == 2, "said once"
        assert "about 6 min left" in lines[1]


@pytest.mark.usefixtures("simple")
@pytest.mark.slow
def test_the_plan_in_the_docs_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    for language, name in (("toml", "mine.toml"), ("python", "mytask.py")):
        (text,) = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    found = audit(tmp_path / "mine.toml", tmp_path / "runs", quiet=True)
    assert (len(found.finished), found.failed) == (3 + 5, ())  # two controls each, those of BP shared
    full = wb.audit.plan("full")
    controls = len(full.specs) - full.models
    assert f"{full.models} models in {full.settings} settings, and {controls} frozen controls" in page
    assert all(f"`{name}`" in page for name in wb.audit.names())


# -- processes -----------------------------------------------------------------------------------------------


def test_a_killed_worker_is_retried_a_broken_one_fails_and_the_others_finish(tmp_path: Path) -> None:
    killed, broken = halting(), spec(data="test_audit_local:no_data")
    jobs = [Job(which, str(tmp_path)) for which in (killed, broken)]
    victim, events = 0, list[Event]()
    for event in local.run(jobs, workers=2, retries=1):
        if event is not None:
            events.append(event)
        if not victim and (jobs[0].folder / "progress.json").exists():
            (victim,) = pids(jobs[0].log)
            os.kill(victim, signal.SIGKILL)
            open_door("door")
    told = {which: [e.kind for e in events if e.spec == which] for which in (killed, broken)}
    assert told[killed] == ["started", "retried", "started", "finished"]
    assert told[broken] == ["started", "retried", "started", "failed"]
    assert "killed by SIGKILL" in next(e for e in events if e.spec == killed and e.kind == "retried").detail
    detail = next(e for e in events if e.kind == "failed").detail
    assert detail.startswith("Expected test_audit_local:no_data to run, but it raised RuntimeError: no data today.\n")
    assert f"{jobs[1].log} ends with:\n" in detail
    assert "Traceback" in jobs[1].log.read_text()
    train(killed, tmp_path / "whole", data=small(), quiet=True)
    assert weights(tmp_path, killed) == weights(tmp_path / "whole", killed)
    assert store.state(tmp_path, broken).kind == "new"


@pytest.mark.slow
def test_runs_that_quit_shout_or_ask_fail_with_a_reason_and_stop_nothing(tmp_path: Path) -> None:
    jobs = [Job(spec(rule=f"test_audit_local:{name}"), str(tmp_path)) for name in ("Quits", "Shouts", "Asks")]
    failed = {event.spec: event.detail for event in local.run(jobs, workers=2, retries=0) if event and event.detail}
    quits, shouts, asks = (failed[job.spec] for job in jobs)
    assert quits.startswith("SystemExit: 0")
    assert shouts.startswith("ValueError: xxx")
    assert len(shouts) < 10_000
    assert asks.startswith("EOFError")
    assert {store.state(tmp_path, job.spec).kind for job in jobs} == {"new"}


def test_what_a_worker_forked_is_not_waited_for(tmp_path: Path) -> None:
    marks, job = tmp_path / "marks", Job(spec(rule="test_audit_local:Forks"), str(tmp_path))
    *_, last = (event for event in local.run([job], retries=0) if event)
    try:
        assert last.detail.startswith("RuntimeError: no credit today\n")
        assert alive(int(marks.read_text()))
    finally:
        os.kill(int(marks.read_text()), signal.SIGKILL)


def test_what_a_worker_forked_is_stopped_with_it(tmp_path: Path) -> None:
    marks, job = tmp_path / "marks", Job(spec(rule="test_audit_local:ForksAndStays"), str(tmp_path))
    events = local.run([job])
    until(lambda: next(events) is None and marks.exists() and marks.read_text())
    events.close()
    until(lambda: not alive(int(marks.read_text())))


def test_files_that_are_called_like_modules_of_pythons_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("random", "json"):
        (tmp_path / f"{name}.py").write_text("print('mine')\nraise RuntimeError('not the one you want')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as looking for a network or a rule there leaves it
    assert [event.kind for event in local.run([Job(spec(), "runs")], retries=0) if event] == ["started", "finished"]


def test_a_worker_that_is_reused_trains_the_same_bytes_and_one_that_failed_is_not(tmp_path: Path) -> None:
    specs = (spec(1), spec(2, rule="test_audit_local:BrokenDFA"), spec(3), spec(4))
    jobs = [Job(one, str(tmp_path / "runs"), depth=8) for one in specs]
    events = [event for event in local.run(jobs, workers=1, retries=0, reuse=True) if event]
    assert [event.kind for event in events if event.kind != "started"] == ["finished", "failed", "finished", "finished"]
    assert "the rule is broken" in events[3].detail
    first, broken, third, fourth = (pids(job.log) for job in jobs)
    assert first == broken
    assert third == fourth != first
    for number in (0, 3):
        train(specs[number], tmp_path / "alone", quiet=True)
        assert weights(tmp_path / "runs", specs[number]) == weights(tmp_path / "alone", specs[number])
        report = wb.load_bundle(tmp_path / "runs" / specs[number].name).report()
        assert report is not None
        assert report.depth is not None
        assert report.depth["samples"]["train"] == 8
    assert "the rule is broken" not in jobs[3].log.read_text(encoding="utf-8")


def test_what_is_printed_before_a_worker_is_up_is_not_why_it_failed() -> None:
    call = [sys.executable, "-c", f"print('noise'); print({SPEAKS!r} + 'why'); exit(1)"]
    process = subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process.wait()
    assert local._last_words(process) == "why"


def test_json_is_whole_where_a_program_of_the_users_prints(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(MINE.format(epochs=1).replace("test_audit_store:small", "test_audit_local:calls_a_program"))
    assert cli(["audit", str(path), "--list", "--json", "--out", str(tmp_path / "runs")]) == 0
    said = capfd.readouterr()
    assert json.loads(said.out)["plans"][0]["runs"] == 2
    assert "ours" in said.err
    assert "theirs" in said.err


def test_runs_of_one_table_are_called_by_what_differs() -> None:
    long = "a_module_with_a_very_long_name_indeed"
    found = running.labels([
        spec(1, rule=f"{long}:Slow"), spec(1, rule=f"{long}:Slow", scope="frozen"),
        spec(2, rule="dfa", net_options={"width": 9, "depth": 1}, optimiser={"lr": 0.1}),
    ])  # fmt: skip
    assert list(found.values()) == ["Slow s1 width=8", "Slow frozen s1 width=8", "dfa s2 width=9 lr=0.1"]
    assert list(running.labels([spec(1)]).values()) == ["dfa s1 resmlp width=8 depth=1 small 2 epochs"]


def test_a_worker_that_ends_without_an_error_has_not_finished_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    monkeypatch.setattr(local, "_start", lambda job, more: silent)
    *_, last = (event for event in local.run([Job(spec(), str(tmp_path))], retries=0) if event)
    assert last.kind == "failed"
    assert last.detail.startswith("ended with exit code 0, and the run is not finished\n")
    steps = follow([Job(spec(), str(tmp_path))], 1, 0, lambda jobs: jobs, lambda _: ("over", ""), lambda _: None)
    assert [event.kind for event in steps if event] == ["started", "failed"]


def test_a_signal_without_a_name_has_its_number() -> None:
    call = [sys.executable, "-c", "import os; os.kill(os.getpid(), 40)"]
    process = subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process.wait()
    assert local._last_words(process) == "killed by signal 40"


def test_a_worker_whose_run_is_taken_makes_room_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, free = (Job(spec(seed), str(tmp_path)) for seed in (1, 2))
    monkeypatch.setattr(local, "is_locked", lambda folder: False)  # it was free when we looked
    events = []
    with owned(taken.folder):
        for event in local.run([taken, free], workers=1):
            events += [event] if event else []
            if event and event.kind == "retried":
                monkeypatch.setattr(local, "is_locked", is_locked)
            if event == Event(free.spec, "finished"):
                break
    told = [(event.spec, event.kind) for event in events]
    assert told == [(taken.spec, "started"), (taken.spec, "retried"), (free.spec, "started"), (free.spec, "finished")]
    assert events[1].detail.startswith("Another process is training it")
    assert not taken.log.read_text(), "nothing was done there"


def test_workers_import_what_the_audit_can_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "theirs").mkdir()
    module = (
        "import test_audit_store\n\n\ndef data(root=None):\n    print('noise')\n    return test_audit_store.small()\n"
    )
    (tmp_path / "theirs" / "theirs_of_a_test.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path / "theirs")
    plan = tmp_path / "plan.toml"
    plan.write_text(
        MINE.format(epochs=1).replace("test_audit_store:small", "theirs_of_a_test:data").replace("1, 2", "1")
    )
    assert cli(["audit", str(plan), "--out", str(tmp_path / "runs"), "--json"]) == 0
    said = capsys.readouterr()
    assert len(json.loads(said.out)["finished"]) == 1
    assert "noise" in said.err


def test_a_run_that_another_process_holds_is_left_to_it(tmp_path: Path) -> None:
    job = Job(spec(), str(tmp_path))
    train(spec(), tmp_path / "elsewhere", data=small(), quiet=True)
    events = local.run([job], workers=1)
    with owned(job.folder):
        assert next(events) is None  # nothing is started
        for path in (tmp_path / "elsewhere" / job.spec.name).iterdir():
            path.rename(job.folder / path.name)
    found = [event for event in events if event is not None]
    assert found == [Event(job.spec, "finished", "trained by another process")]
    assert not job.log.exists()


AUDIT = """
import sys
from walkback.cli import run
sys.exit(run(["audit", sys.argv[1], "--out", sys.argv[2], "--workers", "1"]))
"""


def audits(tmp_path: Path, out: Path, text: str, count: int = 1) -> list[subprocess.Popen[str]]:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    call = [sys.executable, "-c", AUDIT, str(path), str(out)]
    return [
        subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        for _ in range(count)
    ]


MINE = """
controls = false
[fixed]
data = "test_audit_store:small"
net_options = {{width = 8, depth = 1}}
epochs = {epochs}
rule = "test_audit_local:CountedDFA"
[[grid]]
seed = [1, 2]
"""


@pytest.mark.slow
def test_two_audits_on_one_store_train_every_run_once(tmp_path: Path) -> None:
    specs = [spec(seed, rule="test_audit_local:CountedDFA", epochs=3) for seed in (1, 2)]
    for which in specs:
        train(which, tmp_path / "reference", data=small(), quiet=True)
    marks = tmp_path / "marks"
    once = marks.stat().st_size
    marks.unlink()
    processes = audits(tmp_path, tmp_path / "runs", MINE.format(epochs=3), count=2)
    for process in processes:
        out, error = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, error
        assert "2 of 2 runs finished" in out
    assert marks.stat().st_size == once, "a run was trained twice"
    for which in specs:
        assert weights(tmp_path / "runs", which) == weights(tmp_path / "reference", which)


def test_a_stopped_audit_stops_its_workers_and_says_how_to_go_on(tmp_path: Path) -> None:
    out, which = tmp_path / "runs", halting(seed=1)
    rule = 'rule = "halting:Halts"\nrule_options = {name = "door", at = 6}'
    (process,) = audits(tmp_path, out, MINE.format(epochs=2).replace('rule = "test_audit_local:CountedDFA"', rule))
    until(lambda: (out / which.name / "progress.json").exists())
    (worker,) = pids(out / which.name / "log.txt")
    assert alive(worker)
    process.send_signal(signal.SIGTERM)
    printed, error = process.communicate(timeout=PATIENCE)
    assert not alive(worker)
    assert store.state(out, which).kind == "begun"
    assert process.returncode == 130
    assert "0 of 2 runs are finished" in error
    assert "the same command goes on with the rest, each from its last finished epoch" in error
    assert "Traceback" not in error + printed


def test_a_worker_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """However that ends, the pipe it holds is closed."""
    job = Job(halting(), str(tmp_path))
    process = local._start(job, more=False)
    until(lambda: arrived("door"))
    assert process.poll() is None
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(PATIENCE) == 1
    assert process.stdout is not None
    process.stdout.close()


def test_a_device_this_machine_has_not_is_said_before_anything_is_trained(tmp_path: Path) -> None:
    for device in ("mps" if torch.cuda.is_available() else "cuda", "meta"):
        with pytest.raises(wb.InputError, match=f"Expected a device of this machine .* but '{device}' is not"):
            audit(Plan("mine", "", (spec(),)), tmp_path / "runs", device=device, quiet=True)
    assert not (tmp_path / "runs").exists()
