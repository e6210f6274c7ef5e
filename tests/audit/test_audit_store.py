"""The store survives: half-written runs, deleted files, other versions, full disks, locks, signals."""

from __future__ import annotations

import ctypes
import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import walkback as wb
from patience import PATIENCE
from test_training import tiny
from walkback.audit import store
from walkback.audit.records import read_records
from walkback.audit.run import check
from walkback.audit.settings import judged_runs
from walkback.cli import run as cli
from walkback.data import Dataset
from walkback.errors import InputError
from walkback.training import folder as folders
from walkback.training.control import control_spec
from walkback.training.folder import finished, is_locked, owned, unwritable, write
from walkback.training.loop import train
from walkback.training.spec import RunSpec

FIELDS = {"net_options": {"width": 8, "depth": 1}, "data": "test_audit_store:small", "epochs": 2, "rule": "dfa"}
SPEC = RunSpec(**FIELDS)
OTHER = RunSpec(**FIELDS, seed=1)
KEPT = ("spec.json", "trajectory.jsonl", "report.json", "weights.safetensors")


def small(root: object = None) -> Dataset:
    return tiny(64)


def run(out: Path, spec: RunSpec = SPEC) -> wb.Bundle:
    return train(spec, out, data=small(), quiet=True)


def content(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in KEPT}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the run finished and nothing else."""
    out = tmp_path_factory.mktemp("whole")
    run(out)
    return out


@pytest.fixture
def runs(whole: Path, tmp_path: Path) -> Path:
    """A copy of it to damage."""
    return Path(shutil.copytree(whole, tmp_path / "runs"))


def stopped(out: Path, monkeypatch: pytest.MonkeyPatch, spec: RunSpec = SPEC) -> Path:
    """A run that was interrupted after its first epoch; its folder."""
    with monkeypatch.context() as patch:
        patch.setattr("walkback.training.loop._progress", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(out, spec)
    return out / spec.name


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


# -- what a run leaves ---------------------------------------------------------------------------------------


def test_a_finished_run_leaves_its_record_and_nothing_else(whole: Path) -> None:
    assert {path.name for path in (whole / SPEC.name).iterdir()} == {*KEPT, "machine.json", "sums.json"}
    assert store.state(whole, SPEC) == store.State("finished")
    assert store.state(whole, OTHER) == store.State("new")


def test_a_list_does_not_read_what_fits_its_sums_and_says_the_same_of_everything_else(whole, tmp_path, monkeypatch):
    folder = shutil.copytree(whole / SPEC.name, tmp_path / SPEC.name)
    with monkeypatch.context() as patched:
        patched.setattr(store, "read_record", None)
        patched.setattr(store, "finished", None)
        assert store.listed(tmp_path, SPEC) == "finished"
    assert store.listed(tmp_path, OTHER) == "new"
    sums = (folder / "sums.json").read_bytes()
    (folder / "sums.json").unlink()
    assert store.listed(tmp_path, SPEC) == "finished"  # of a version without sums: read
    (folder / "sums.json").write_bytes(sums)
    (folder / "report.json").write_bytes((folder / "report.json").read_bytes() + b" ")
    assert store.listed(tmp_path, SPEC) == "damaged" == store.state(tmp_path, SPEC).kind
    (folder / "report.json").unlink()
    assert store.listed(tmp_path, SPEC) == store.state(tmp_path, SPEC).kind != "finished"


def test_progress_is_told_after_every_epoch_and_gone_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path
) -> None:
    from walkback.training import loop

    told, tell = [], loop._progress

    def listen(*arguments) -> None:
        tell(*arguments)
        told.append(store.progress(tmp_path, SPEC))

    monkeypatch.setattr(loop, "_progress", listen)
    rows = run(tmp_path).trajectory()
    assert [(p["epoch"], p["epochs"], p["acc"]) for p in told] == [(r["epoch"], 2, r["test_acc"]) for r in rows]
    assert [p["h_L"] for p in told] == [r["per_layer"]["h_norm"][-1] for r in rows]
    assert [p["g_L"] for p in told] == [r["per_layer"]["g_norm"][-1] for r in rows]
    assert all(p["seconds_per_epoch"] > 0 for p in told)
    assert not (tmp_path / SPEC.name / "progress.json").exists()
    last = store.progress(tmp_path, SPEC)  # from the report
    assert (last["epoch"], last["acc"]) == (2, pytest.approx(rows[-1]["test_acc"], abs=1e-6))
    assert content(tmp_path / SPEC.name) == content(whole / SPEC.name)
    assert store.progress(tmp_path, OTHER) == {}


# -- half-written --------------------------------------------------------------------------------------------


def test_an_interrupted_run_goes_on_and_its_left_overs_are_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path
) -> None:
    place = stopped(tmp_path, monkeypatch)
    assert store.state(tmp_path, SPEC).kind == "begun"
    for name in ("weights.safetensors.tmp", "report.jsonx1y2.tmp"):
        (place / name).write_bytes(b"half")
    seen = []
    monkeypatch.setattr("walkback.training.loop._progress", lambda run, *_: seen.append(run.rows[-1]["epoch"]))
    train(SPEC, tmp_path, data=small())
    assert seen == [2]
    assert {path.name for path in place.iterdir()} == {*KEPT, "machine.json", "sums.json"}
    assert content(place) == content(whole / SPEC.name)


def test_a_run_that_died_before_its_report_is_finished_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(wb.Report, "to_json", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path)
    assert store.state(tmp_path, SPEC).kind == "begun"
    run(tmp_path)
    assert content(tmp_path / SPEC.name) == content(whole / SPEC.name)


def test_a_checkpoint_cut_short_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path
) -> None:
    place = stopped(tmp_path, monkeypatch)
    path = place / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(
        wb.FormatError, match=r"checkpoint.safetensors to hold the last finished epoch.*Move the folder"
    ):
        run(tmp_path)
    place.rename(tmp_path / "away")
    run(tmp_path)
    assert content(place) == content(whole / SPEC.name)


@pytest.mark.parametrize("rows", [[], [{}] * 5, 3])
def test_a_checkpoint_whose_rows_do_not_fit_its_epoch_is_refused(
    rows: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stopped(tmp_path, monkeypatch) / "checkpoint.safetensors"
    save_file(load_file(path), path, {"schema": "walkback.bundle/1", "epoch": "1", "rows": json.dumps(rows)})
    with pytest.raises(wb.FormatError, match=r"ValueError: expected 2 rows after 1 epochs"):
        run(tmp_path)


# -- deleted and damaged -------------------------------------------------------------------------------------


def test_a_spec_that_no_version_would_take_is_damage_and_stops_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / SPEC.name
    folder.mkdir()
    (folder / "spec.json").write_text(json.dumps({**SPEC.model_dump(), "epochs": 0}))
    (folder / "report.json").write_text("{}")
    found = store.state(tmp_path, SPEC)
    assert found.kind == "damaged"
    assert str(folder) in found.detail


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rule": "bp", "credit_site": "reader"}, "credit_site writer with bp"),
        ({"rule": "dfa", "scope": "frozen", "penalty": 0.1}, "neither penalty nor credit_site"),
        ({"rule": "dfa", "augment": True}, r"images \(C, H, W\)"),
    ],
)
def test_what_no_worker_could_train_is_said_before_any_starts(fields: dict, said: str) -> None:
    spec = RunSpec(data="teacher", net="student", **fields)
    with pytest.raises(InputError, match=said):
        check([RunSpec(data="teacher", net="student"), spec])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("trajectory.jsonl", r"because report.json is there, but trajectory.jsonl was removed. Put it back.*move"),
        ("spec.json", r"because report.json is there, but spec.json was removed"),
        ("report.json", r"because trajectory.jsonl and weights.safetensors there are of a run that reached.*back"),
    ],
)  # fmt: skip
def test_a_deleted_file_of_a_finished_run_is_named(runs: Path, name: str, words: str) -> None:
    (runs / SPEC.name / name).unlink()
    left = {path: path.read_bytes() for path in (runs / SPEC.name).iterdir()}
    assert store.state(runs, SPEC).kind == "damaged"
    with pytest.raises(wb.FormatError, match=words):
        run(runs)
    assert left == {path: path.read_bytes() for path in (runs / SPEC.name).iterdir()}, "something was lost"


def test_a_record_without_weights_that_lost_its_report_is_not_trained_over(runs: Path) -> None:
    for name in ("weights.safetensors", "report.json"):
        (runs / SPEC.name / name).unlink()
    before = (runs / SPEC.name / "trajectory.jsonl").read_bytes()
    with pytest.raises(wb.FormatError, match=r"because trajectory.jsonl there is of a run that reached its last"):
        run(runs)
    assert store.state(runs, SPEC).kind == "damaged"
    assert (runs / SPEC.name / "trajectory.jsonl").read_bytes() == before


def _garbled(name: str, **fields: object) -> Callable[[Path], None]:
    return lambda folder: edited(folder / name, **fields)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "machine.json").unlink(), "incomplete: there is no machine.json"),
        (lambda folder: (folder / "trajectory.jsonl").write_text("[]\n{}\n"), "row 1 of trajectory.jsonl"),
        (lambda folder: (folder / "report.json").write_text("[" * 100_000), "recursion"),
        (lambda folder: (folder / "trajectory.jsonl").write_text("[" * 100_000 + "\n{}\n"), "trajectory.jsonl"),
        (_garbled("report.json", headline_acc="x"), "headline_acc"),
        (_garbled("report.json", headline_acc=0.999), "the accuracy of report.json, 0.999"),
        (_garbled("report.json", run=None), ""),
        (_garbled("report.json", run={"epochs": 2}), "run.initial"),
        (_garbled("report.json", per_layer={"h_norm": 3}), "per_layer.h_norm"),
    ],
)  # fmt: skip
def test_what_evidence_can_not_read_is_not_finished(damage: Callable[[Path], None], words: str, runs: Path) -> None:
    (runs / SPEC.name / "sums.json").unlink()  # as of an earlier version: else its sums tell first
    damage(runs / SPEC.name)
    found = store.state(runs, SPEC)
    assert (found.kind, words in found.detail) == ("damaged", True), found
    assert "move the folder away" in found.detail
    assert store.progress(runs, SPEC) == {}
    assert len(read_records(runs)) == 0


@pytest.mark.parametrize("left", [0, 100, -1])
def test_weights_that_can_not_be_read_are_none(left: int, runs: Path) -> None:
    path = runs / SPEC.name / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:left])
    assert store.state(runs, SPEC) == store.State("finished", weights=False)


def test_progress_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    place = tmp_path / SPEC.name
    place.mkdir()
    (place / "progress.json").write_text('{"epoch": 1, "acc": "x", "h_L": null, "seconds_per_epoch": []}')
    assert store.progress(tmp_path, SPEC) == {"epoch": 1}
    (place / "progress.json").write_text("[1]")
    assert store.progress(tmp_path, SPEC) == {}


def test_missing_weights_leave_a_record_that_counts_but_no_bundle(runs: Path) -> None:
    (runs / SPEC.name / "weights.safetensors").unlink()
    assert store.state(runs, SPEC) == store.State("finished", weights=False)
    with pytest.raises(wb.FormatError, match=r"is finished, and its record .* is whole, but its network can't"):
        run(runs)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("trajectory.jsonl", '{"epoch": 1}\n', r"to have the 2 epochs that report.json speaks of, but it has 1"),
        ("report.json", "{", r"report.json.*move the folder away"),
        ("report.json", '{"schema": "walkback.report/3"}', r"walkback.report/2.* but got walkback.report/3"),
        ("spec.json", '{"schema": "walkback.bundle/2"}', r"bundle/2: the folder was written by another version"),
        ("spec.json", "half", r"spec.json.*move the folder away"),
    ],
)  # fmt: skip
def test_files_cut_short_or_of_another_version_are_told_apart(runs: Path, name: str, text: str, words: str) -> None:
    (runs / SPEC.name / name).write_text(text)
    with pytest.raises(wb.FormatError, match=words):
        run(runs)
    assert "move the folder away" in store.state(runs, SPEC).detail


def edited(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_a_folder_of_a_later_version_is_not_touched(runs: Path) -> None:
    edited(runs / SPEC.name / "spec.json", dropout=0.1)
    with pytest.raises(wb.FormatError, match=r"but got dropout too: the folder was written by a later version"):
        run(runs)


def test_a_folder_of_an_earlier_version_that_lacks_a_field_is_read(runs: Path) -> None:
    path = runs / SPEC.name / "spec.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "credit_site"}))
    (path.parent / "sums.json").unlink()  # which earlier versions did not write
    assert finished(runs / SPEC.name, SPEC)


def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stopped(tmp_path, monkeypatch) / "checkpoint.safetensors"
    with safe_open(path, framework="pt") as file:
        tensors, metadata = {k: file.get_tensor(k) for k in file.keys()}, file.metadata()  # noqa: SIM118
    save_file(tensors, path, {**metadata, "schema": "walkback.bundle/7"})
    with pytest.raises(wb.FormatError, match=r"of another version: .*expected schema walkback.bundle/1, but got .*/7"):
        run(tmp_path)


@pytest.mark.parametrize("done", [True, False], ids=["finished", "begun"])
def test_two_specs_with_one_name_do_not_share_a_folder(
    done: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = run(tmp_path).path if done else stopped(tmp_path, monkeypatch)
    edited(place / "spec.json", penalty=0.5)
    left = {path: path.read_bytes() for path in place.iterdir()}
    with pytest.raises(wb.FormatError, match=r"another spec has the same name: penalty is 0.5 there and 0.0 here"):
        run(tmp_path)
    assert left == {path: path.read_bytes() for path in place.iterdir()}


def test_the_command_line_says_it_without_a_traceback(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / SPEC.name / "trajectory.jsonl").unlink()
    arguments = ["--net-options", json.dumps(SPEC.net_options), "--data", SPEC.data, "--epochs", "2", "--rule", "dfa"]
    assert cli(["train", *arguments, "--out", str(runs)]) == 2
    assert capsys.readouterr().err.startswith("error: Expected ")


# -- disks ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_disk_that_fills_up_at_any_write_loses_nothing(
    runs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every file in turn can't be written; the run always goes on to the same bytes."""
    before, reference = content(runs / SPEC.name), content(run(tmp_path / "reference", OTHER).path)
    sync, done = os.fsync, []

    def full(handle: int) -> None:
        done.append(handle)
        if len(done) > allowed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    # Folders are synced too: spec, two checkpoints with their progress, machine, trajectory, weights, sums, report.
    for allowed in range(20):
        out = Path(shutil.copytree(runs, tmp_path / f"runs{allowed}"))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            done.clear()
            with pytest.raises(wb.FormatError, match="The disk is full: make room, then run the same command again"):
                run(out, OTHER)
        assert len(done) == allowed + 1
        assert not list((out / OTHER.name).glob("*.tmp"))
        assert content(run(out, OTHER).path) == reference
        assert content(out / SPEC.name) == before


FILL = """
import sys, resource, torch
torch.set_num_threads(1)
from test_audit_store import OTHER, run
from pathlib import Path
import walkback as wb
if sys.argv[2] != "0":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
try:
    run(Path(sys.argv[1]), OTHER)
except wb.FormatError as error:
    print(error)
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A store on a tmpfs of 64 kB where we may mount one; else files may not grow beyond 8 kB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if shutil.which("mount") and subprocess.run(mount, capture_output=True, check=False).returncode == 0:
        yield place, 0
        subprocess.run(["umount", "--lazy", str(place)], check=True)  # also while a search index looks into it
    else:
        yield place, 8192


@pytest.mark.slow
def test_a_really_full_disk(small_disk: tuple[Path, int], whole: Path, tmp_path: Path) -> None:
    out, limit = small_disk
    if not limit:
        shutil.copytree(whole / SPEC.name, out / SPEC.name)
        pages = sum(-(-f.stat().st_size // 4096) for f in out.rglob("*") if f.is_file())
        (out / "ballast").write_bytes(b"0" * (64 * 1024 - 4096 * (pages + 4)))
    call = [sys.executable, "-c", FILL, str(out), str(limit)]
    done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    expected = "File too large" if limit else r"No space left on device"
    assert "Expected to write" in done.stdout
    assert expected in done.stdout
    assert "Finished runs are as they were" in done.stdout
    if not limit:
        assert content(out / SPEC.name) == content(whole / SPEC.name)
        (out / "ballast").unlink()
    elsewhere = Path(shutil.copytree(out, tmp_path / "roomy"))
    assert content(run(elsewhere, OTHER).path) == content(run(tmp_path / "fresh", OTHER).path)


@pytest.fixture
def read_only(runs: Path) -> Iterator[Path]:
    """A store that this process may read and not write, whoever we are."""
    paths = [runs, *runs.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    with obeying_permissions():
        yield runs
    for path in paths:
        path.chmod(0o755)


@contextmanager
def obeying_permissions() -> Iterator[None]:
    """Root writes everywhere, unless this thread goes without CAP_DAC_OVERRIDE. It can still read its own files."""
    if os.geteuid() != 0:
        yield
        return
    if sys.platform != "linux":
        pytest.skip("root writes everywhere: run this test as another user")
    libc, header, kept = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, kept) == 0
    fewer = (ctypes.c_uint32 * 6)(kept[0] & ~(1 << 1), *kept[1:])  # the first word is what is in effect
    assert libc.capset(header, fewer) == 0
    try:
        yield
    finally:
        assert libc.capset(header, kept) == 0


def test_a_read_only_store_gives_what_it_has_and_refuses_the_rest(read_only: Path) -> None:
    assert run(read_only).spec["rule"] == "dfa"
    assert store.state(read_only, SPEC).kind == "finished"
    with pytest.raises(wb.FormatError, match=r"Expected to write .*Permission denied.*The store is not yours to write"):
        run(read_only, OTHER)
    with pytest.raises(wb.FormatError, match=r"The store is not yours to write: give another one"):
        store.check_writable(read_only)
    assert not list(read_only.glob(f"{OTHER.name}*"))


def test_a_read_only_file_system_is_told_apart() -> None:
    error = unwritable(Path("runs"), OSError(errno.EROFS, os.strerror(errno.EROFS)))
    assert "The store is read-only: give another one, or make it writable. Finished runs are as they were" in str(error)


def test_a_store_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(wb.FormatError, match=r"Expected to write .*(Not a directory|File exists)"):
        run(tmp_path / "runs")
    with pytest.raises(wb.FormatError, match=r"Expected to write .*File exists"):
        store.check_writable(tmp_path / "runs")


def test_what_is_written_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    write(path, "old")
    monkeypatch.setattr(os, "fsync", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        write(path, "new and longer")
    assert path.read_text() == "old"


# -- locks and signals ---------------------------------------------------------------------------------------


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    place = tmp_path / "run"
    assert not is_locked(place)
    with owned(place):
        assert is_locked(place)
        assert (place / folders.LOCK).exists()
    assert not is_locked(place)


def test_a_run_that_another_process_finished_while_we_waited_is_returned(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner is played here: while we wait for it, the finished run appears."""

    @folders.contextmanager
    def late(place: Path, quiet: bool) -> Iterator[None]:
        shutil.copytree(whole / SPEC.name, place)
        yield

    monkeypatch.setattr("walkback.training.loop.owned", late)
    monkeypatch.setattr("walkback.training.loop._train", _interrupt)
    assert content(run(tmp_path).path) == content(whole / SPEC.name)


PAUSE = """
import os, sys, torch
torch.set_num_threads(1)
from pathlib import Path
from test_audit_store import SPEC, run
sync = os.fsync
left = int(sys.argv[2])
def pause(handle):
    global left
    left -= 1
    if left < 0:
        print("in the middle", flush=True)
        sys.stdin.read()  # until the signal, or the end of whoever started us
    sync(handle)
os.fsync = pause
run(Path(sys.argv[1]))
"""


def paused(out: Path, writes: int) -> subprocess.Popen[str]:
    """A process that stops in the middle of its n-th write."""
    call = [sys.executable, "-c", PAUSE, str(out), str(writes)]
    return subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_signals_in_the_middle_of_writing_lose_nothing_and_free_the_lock(tmp_path: Path, whole: Path) -> None:
    cases = [(signal.SIGTERM, 8, "checkpoint.safetensors.*.tmp"), (signal.SIGKILL, 16, "weights.safetensors.*.tmp")]
    processes = [paused(tmp_path / number.name, writes) for number, writes, _ in cases]
    for process, (number, _, half) in zip(processes, cases, strict=True):
        place = tmp_path / number.name / SPEC.name
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == "in the middle\n"
            assert list(place.glob(half))
            assert is_locked(place), "the lock is not there while it trains"
            process.send_signal(number)
            assert process.wait(PATIENCE) == -number
        assert list(place.glob(half)), "the signal came too late to test anything"
        assert not is_locked(place), "the lock outlived its owner"
        assert store.state(place.parent, SPEC).kind == "begun"
        assert content(run(place.parent).path) == content(whole / SPEC.name)
        assert {path.name for path in place.iterdir()} == {*KEPT, "machine.json", "sums.json"}


STOP = """
import os, signal, sys, torch
torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what a shell has started in the background
from walkback import cli
from walkback.training import loop
told, number, epoch = loop._progress, getattr(signal, sys.argv[2]), int(sys.argv[3])
def stop(run, folder, pace):
    told(run, folder, pace)
    if run.rows[-1]["epoch"] == epoch:
        os.kill(os.getpid(), number)
loop._progress = stop
if epoch == 0:
    loop._epoch = lambda *_: os.kill(os.getpid(), number)
options = ["--net-options", '{"width": 8, "depth": 1}', "--rule", "dfa", "--data", "test_audit_store:small"]
sys.exit(cli.run(["train", *options, "--epochs", "2", "--out", sys.argv[1]]))
"""


@pytest.mark.parametrize(
    ("number", "epoch", "said"),
    [
        ("SIGTERM", 1, f"1 of 2 epochs of {SPEC.name} are saved in "),
        ("SIGINT", 1, f"1 of 2 epochs of {SPEC.name} are saved in "),
        ("SIGTERM", 0, "No epoch was finished: the same command starts anew."),
    ],
)
def test_a_training_that_is_stopped_says_how_far_it_is(
    number: str, epoch: int, said: str, tmp_path: Path, whole: Path
) -> None:
    call = [sys.executable, "-c", STOP, str(tmp_path), number, str(epoch)]
    ended = subprocess.run(call, capture_output=True, text=True, timeout=PATIENCE)
    assert (ended.returncode, said in ended.stderr, "Traceback" in ended.stderr) == (130, True, False), ended.stderr
    assert content(run(tmp_path).path) == content(whole / SPEC.name)


class Ear(io.StringIO):
    """Standard error that calls a function when it hears something."""

    def __init__(self, word: str, heard: Callable[[], None]) -> None:
        super().__init__()
        self.word, self.heard = word, heard

    def write(self, text: str) -> int:
        if self.word in text:
            self.heard()
        return super().write(text)


def test_waiting_is_said(tmp_path: Path) -> None:
    """The owner leaves when it is said that somebody waits, and only then does the other come in."""
    place, inside, leave, order = tmp_path / "run", threading.Event(), threading.Event(), []

    def owner() -> None:
        with owned(place):
            inside.set()
            order.append("asked to leave" if leave.wait(PATIENCE) else "nobody asked")

    thread = threading.Thread(target=owner)
    thread.start()
    assert inside.wait(PATIENCE)
    ear = Ear("run is being trained by another process: waiting for it", leave.set)
    with redirect_stderr(ear), owned(place, quiet=False):
        order.append("came in")
    thread.join()
    assert order == ["asked to leave", "came in"]


def test_diagnose_finds_the_control_beside_a_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli(["diagnose", str(runs / SPEC.name), "--trust", "test_audit_store", "--json"])
    alone = json.loads(capsys.readouterr().out)
    assert alone["frozen_baseline_acc"] is None
    control = train(control_spec(SPEC), runs, data=small(), quiet=True)
    cli(["diagnose", str(runs / SPEC.name), "--trust", "test_audit_store", "--json"])
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["frozen_baseline_acc"] == control.report().headline_acc
    assert control.path.name in err
    pair = read_records(runs)
    expected = judged_runs(pair, [pair.find(SPEC)]).depth  # as the tables judge it
    assert found["findings"][2]["interval"] == pytest.approx(list(expected.interval))
    assert (found["findings"][2]["flagged"], found["findings"][2]["reason"]) == (expected.flagged, expected.reason)
    again = wb.judge(found)
    assert (again.verdict, again.findings[2]["interval"]) == (found["verdict"], found["findings"][2]["interval"])
    other = wb.judge(found, frozen_baseline_acc=0.1)
    assert (other.findings[2]["interval"], "paired" in other.conditions) == (None, False)
    for wrong in (3, {"samples": 5}, {**found["conditions"]["paired"], "both": -1}):
        with pytest.raises(wb.InputError, match=r"Expected .*paired.* counts"):
            wb.judge({**found, "conditions": {"paired": wrong}})
    cli(["diagnose", str(runs / SPEC.name), "--trust", "test_audit_store", "--json", "--frozen-acc", "0.25"])
    found = json.loads(capsys.readouterr().out)
    assert (found["frozen_baseline_acc"], found["findings"][2]["interval"]) == (0.25, None)
    cli(["diagnose", str(control.path), "--trust", "test_audit_store", "--json"])
    assert json.loads(capsys.readouterr().out)["frozen_baseline_acc"] is None


@pytest.mark.parametrize("margin", [-100.0, 100.0])
def test_diagnose_asks_the_bp_runs_beside_a_run_whether_the_task_shows_depth(
    runs: Path, tmp_path: Path, margin: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the tables do: BP of every seed against its own control, which is not the control of the run."""
    others = [RunSpec(**{**FIELDS, "rule": "bp"}, seed=seed) for seed in (0, 1)]
    for spec in (control_spec(SPEC), *(s for bp in others for s in (bp, control_spec(bp)))):
        run(runs, spec)
    shutil.rmtree(runs / control_spec(others[1]).name)
    run(runs, RunSpec(**{**FIELDS, "rule": "bp", "epochs": 1}))  # of another length: it tells nothing
    (limits := tmp_path / "limits.json").write_text(json.dumps({"frozen_acc_margin_pp": margin}))
    cli(["diagnose", str(runs / SPEC.name), "--trust", "test_audit_store", "--json", "--thresholds", str(limits)])
    out, err = capsys.readouterr()
    found = json.loads(out)
    bp, frozen = (wb.load_bundle(runs / s.name).report().headline_acc for s in (others[0], control_spec(others[0])))
    assert (found["bp_acc"], found["conditions"]["bp_frozen_acc"]) == ([bp], [frozen])
    assert f"its own frozen control: {bp:g} against {frozen:g}\n" in err
    records = read_records(runs)
    expected = judged_runs(records, [records.find(SPEC)], wb.DiagnosticThresholds.load(limits)).depth
    depth = found["findings"][2]
    assert (depth["flagged"], depth["reason"]) == (expected.flagged, expected.reason)
    assert ("BP itself gains only" in depth["reason"]) == (margin > 0)
    again = wb.judge(found).findings[2]
    assert (again["flagged"], again["reason"]) == (expected.flagged, expected.reason)
    other = wb.judge(found, bp_acc=0.9)
    assert (other.bp_acc, "bp_frozen_acc" in other.conditions) == (0.9, False)
    cli(["diagnose", str(runs / SPEC.name), "--trust", "test_audit_store", "--json", "--bp-acc", "0.9"])
    assert "bp_frozen_acc" not in json.loads(capsys.readouterr().out)["conditions"]


def test_the_control_of_a_bp_that_is_not_given_is_refused() -> None:
    with pytest.raises(InputError, match="Expected bp_acc beside bp_frozen_acc"):
        wb.judge({"per_layer": {"h_norm": [1.0, 2.0], "g_norm": [1.0, 1.0]}}, bp_frozen_acc=0.3)


def test_a_record_without_weights_says_where_its_numbers_are(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / SPEC.name / "weights.safetensors").unlink()
    assert cli(["diagnose", str(runs / SPEC.name), "--trust", "test_audit_store"]) == 2
    assert "walkback judge" in capsys.readouterr().err
    assert cli(["judge", str(runs / SPEC.name), "--json"]) in (0, 1, 3)
    assert json.loads(capsys.readouterr().out)["per_layer"]["h_norm"]
    assert cli(["judge", str(tmp_path)]) == 2
    assert "folder without one" in capsys.readouterr().err
