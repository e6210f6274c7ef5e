"""Small files that ask for much, pipes where files should be, and numbers that can't be true."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import walkback as wb
from made_runs import EXPLODED, HEALTHY, write_run
from patience import PATIENCE
from walkback.audit import store
from walkback.audit.records import read_records
from walkback.files import append_to
from walkback.lint import lint
from walkback.training.folder import CHECKPOINT, PROGRESS, finished, is_locked, reading_checkpoint
from walkback.training.spec import RunSpec

# -- logs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log.csv", "h_norm_0,h_norm_30000000\n1,2\n"),
        ("log.jsonl", '{"h_norm_0": 1, "h_norm_30000000": 2}\n'),
        ("log.jsonl", '{"walkback/h_norm/0": 1, "walkback/cosine/30000000": 0.5}\n'),
        ("log.csv", "g_norm_999\n" + "1\n" * 10),
    ],
)
def test_a_column_of_a_site_far_away_is_refused(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(wb.InputError, match="Expected a column for every site, or for one in 128 of them, but"):
        wb.judge(tmp_path / name)


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_hundred_thousand_columns_take_no_time_and_no_page(form: str, tmp_path: Path) -> None:
    """Compared with each other, they took longer than anybody waits."""
    columns = {"h_norm_0": 1, "h_norm_1": 2} | {f"c{i}": i for i in range(100_000)}
    lines = [",".join(columns), ",".join(map(str, columns.values()))]
    path = tmp_path / f"log.{form}"
    path.write_text(json.dumps(columns) if form == "json" else "\n".join(lines))
    report = wb.judge(path)
    (note,) = [note for note in report.notes if note.code == "unused-columns"]
    assert (len(note.values["columns"]), note.values["more"]) == (100, 99_900)
    assert note.text.endswith("c99, and 99900 more")
    assert wb.Report.from_dict(report.to_dict()) == report


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log.csv", "h_norm_0,h_norm_1,h_norm.1\n1,2,99\n"),
        ("log.json", '{"h_norm_0": 1, "h_norm_1": 2, "h_norm_01": 99}'),
        ("log.json", '{"h_norm_0": 1, "h_norm_1": 2, "growth": 2.0, "walkback/growth": 99.0}'),
    ],
)
def test_two_columns_of_one_site_are_refused(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(wb.InputError, match=r"Expected one column for what .* is, but another one, spelled otherwise"):
        wb.judge(tmp_path / name)


def test_a_million_sites_are_judged(tmp_path: Path) -> None:
    assert wb.judge({"h_norm": [1.0] * 10**6}).values["growth"] == 1.0


def test_a_site_that_no_number_can_count_is_another_column(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(f"h_norm_0,h_norm_1,h_norm_{'9' * 5000}\n1,2,3\n")
    assert wb.judge(tmp_path / "log.csv").per_layer["h_norm"] == [1.0, 2.0]


def test_every_hundredth_site_of_a_deep_network_may_be_logged(tmp_path: Path) -> None:
    sites = range(0, 1001, 100)
    (tmp_path / "log.csv").write_text(",".join(f"h_norm_{i}" for i in sites) + "\n" + ",".join("1" for _ in sites))
    assert len(wb.judge(tmp_path / "log.csv").per_layer["h_norm"] or ()) == 1001


NUMBERS: dict[str, Any] = {"h_norm": [1.0, 1.1, 1.2], "g_norm": [1e-3] * 3, "headline_acc": 0.6, "frozen_acc": 0.3}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"cosine": [0.0] * 3, "gamma": 0.99},
            r"Expected gamma in .* to be that of cosine .* got 0\.99",
        ),
        ({"cosine": [0.0] * 3, "deep_cosine": 0.99}, "Expected deep_cosine in .* to be that of cosine"),
        ({"cosine": [0.5, 0.5, 0.1], "gamma_concentration": 0.9}, "Expected gamma_concentration in .* to be that of"),
        ({"conditions": {"g_norm_batch_size": 1e12}}, "Expected g_norm_batch_size in .* to be 1 to 16777216"),
        ({"conditions": {"samples": -5}}, r"conditions\.samples should be a whole number, 1 or more, but is -5"),
        (
            {"conditions": {"batches": "many"}},
            r"batches should be a whole number, 1 or more, but is 'many'",
        ),
        ({"conditions": {"samples": 8, "batches": 9}}, r"conditions\.batches is 9, of 8 samples"),
        ({"conditions": {"samples": 8, "distinct_samples": 9}}, r"conditions\.distinct_samples is 9, of 8 samples"),
        (
            {"conditions": {"samples": 1025, "batches": 8, "batch_size": 128}},
            "8 batches of that size hold 1024",
        ),
        ({"conditions": {"classes": -3}}, r"conditions\.classes should be a whole number"),
        ({"conditions": {"batch_size": [128, 0]}}, r"conditions\.batch_size should be whole numbers"),
        ({"conditions": {"probe_accuracy": 7}}, r"conditions\.probe_accuracy should be between 0 and 1"),
        ({"conditions": {"state_shapes": ["a", "b", "c"], "pool": "whole"}}, r"state_shapes should list sizes by site"),
        ({"conditions": {"state_shapes": [[None], [2], [3]], "pool": "whole"}}, r"should list sizes by site"),
        ({"conditions": {"state_shapes": [[2], [2]]}}, "state_shapes has 2 sites and the numbers 3"),
        ({"conditions": {"gamma_over": "all"}}, r"gamma_over should be 0\.\.L-1 or 0\.\.L, but is 'all'"),
        ({"conditions": {"deep_over": [1]}}, r"deep_over should be"),
        ({"conditions": {"samples": 1024, "stability_group": 128}, "stability": -1.0}, "stability is -1, but the mean"),
        ({"conditions": {"g_norm_logged_batch_size": -4}}, "g_norm_logged_batch_size should be 1 or more"),
        (
            {"cosine": [0.9] * 3, "cosine_low": [0.0] * 3, "cosine_high": [0.1] * 3},
            "cosine is 0.9 at site 0, outside",
        ),
        ({"growth": 1.1, "growth_low": 5.0, "growth_high": 9.0}, r"growth is 1\.1, outside of its interval"),
        ({"growth_low": 5.0, "growth_high": 9.0}, r"growth is 1\.1, outside of its interval, which ends at 5"),
        ({"growth_high": 0.5}, r"growth is 1\.1, outside of its interval, which ends at 0\.5"),
        ({"g_norm_deepest_low": 5.0, "g_norm_deepest_high": 9.0}, r"g_norm_deepest is 0\.001, outside of its interval"),
        (
            {"float64_disagreement": [0.0] * 3, "cosine_error_low": 0.9, "cosine_error_high": 0.9},
            "cosine_error is 0, outside of its interval",
        ),
        ({"cosine": [0.9] * 3, "zero_credit": [1.0] * 3}, "where 100% of the samples have no credit"),
        ({"cosine": [0.5] * 3, "cosine_clamped": [-0.5] * 3}, "cosine_clamped is -0.5 at site 0"),
        ({"cosine": [0.0, None, 0.0], "gamma": 0.99}, "gamma is 0.99, which no values at the sites without a cosine"),
        ({"cosine": [0.0, None, 0.0], "deep_cosine": 0.99}, "deep_cosine is 0.99, which no values"),
        ({"gamma_concentration": 0.0}, "gamma_concentration is 0, but the largest of 2 has 0.5 or more"),
        (
            {"float64_disagreement": [5.0] * 3},
            "float64_disagreement is 5 at site 0, but a mean",
        ),
        ({"float64_shift": [7.0] * 3}, "float64_shift is 7 at site 0"),
        ({"controls": {"fresh": [1.0]}}, "Expected per-layer lists of one length"),
        ({"aggregates": {"samples": 7.0}}, "Expected samples of Γ's aggregates in .* between -1 and 1"),
        ({"g_norm_batch_size": 128, "conditions": {"g_norm_batch_size": 64}}, "g_norm_batch_size in .* once, but got"),
        ({"per_layer": {"h_norm": [1.0, 90.0, 1.0]}}, r"Expected h_norm in .* once, but got"),
        ({"cosine_low": [0.5] * 3, "cosine_high": [-0.5] * 3}, "cosine_low is 0.5 and cosine_high -0.5 at site 0"),
        ({"null_low": [0, 0, 0.3], "null_high": [0.1] * 3}, "null_low is 0.3 and null_high 0.1 at site 2"),
        ({"values": {"growth_low": 5.0, "growth_high": 1.0}}, "growth_low is 5 and growth_high 1"),
    ],
)
def test_numbers_that_can_not_be_true_are_refused(more: dict[str, Any], words: str) -> None:
    assert wb.judge(NUMBERS).verdict == "passes"
    with pytest.raises(wb.InputError, match=words):
        wb.judge({**NUMBERS, **more})


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        ({"conditions": {"mode": "train"}}, "training-mode", "measured in mode train"),
        ({"conditions": {"g_norm_batch_size": 1e6}}, "large-batch", "multiplied by 7.81e"),
        ({"epoch": -3, "seed": 2.5}, "odd-facts", "what can't be: epoch -3, seed 2.5"),
        ({"epoch": 12, "total_epochs": 10}, "odd-facts", "what can't be: epoch 12 of 10"),
        ({"step": 10**400}, "odd-facts", "what can't be: step 1000"),
        ({"acc": 0.1}, "accuracy-twice", "the accuracy is that of headline_acc, 0.6; acc says 0.1"),
        ({"conditions": {"test_samples": 3}}, "no-such-share", "is 0.6, which no count of 3 samples gives"),
        (
            {"null_low": [0.5] * 3, "null_high": [0.6] * 3},
            "null-without-zero",
            "without 0 at sites [0, 1, 2]",
        ),
        ({"h_norm": [None, 1.0, 1.1], "growth": 1.1}, "missing-sites", "sites without a number: h_norm at 0;"),
        ({"cosine": [0.5, None, 0.5], "gamma": 0.5}, "missing-sites", "cosine at 1;"),
    ],
)
def test_numbers_that_are_doubtful_are_judged_with_a_word_on_it(more: dict[str, Any], code: str, words: str) -> None:
    report = wb.judge({**NUMBERS, **more})
    again = wb.judge(report)
    for one in (report, again):
        (note,) = [note for note in one.notes if note.code == code]
        assert words in note.text
    assert not [n for n in wb.judge({**NUMBERS, "conditions": {"mode": "eval"}}).notes if n.code == code]


# -- scripts ---------------------------------------------------------------------------------------------------------

FOUND = "import torch\nprint(torch.ones(4, 3).norm(-1))\n"


def doubling(start: str, sign: str, end: str) -> str:
    return "\n".join([start, *(f"x{i} = x{i - 1} {sign} x{i - 1}" for i in range(1, 60)), end])


@pytest.mark.parametrize(
    "text",
    [
        doubling("import torch\nx0 = torch.ones(3)", "+", "print(torch.cosine_similarity(x59, x58))"),
        doubling("x0 = a.norm()", "*", "print(a @ b / x59)"),
        doubling("x0 = 1", "/", "if x59 < 1e-8: print(x59.norm(-1))"),
        "for x in x * x: y = 1 / (x * x)\n",
    ],
)
def test_lint_asks_each_name_once(text: str, tmp_path: Path) -> None:
    """Followed anew at each use, sixty names that double take longer than there is time."""
    (tmp_path / "x.py").write_text(text)
    assert not lint(tmp_path / "x.py").problems


def test_a_chain_of_thousands_of_names_is_looked_at(tmp_path: Path) -> None:
    chain = ["import torch", *(f"z{i} = z{i - 1} + 1" for i in range(1, 5000)), "torch.cosine_similarity(z4999, a)"]
    (tmp_path / "m.py").write_text("\n".join(chain))
    assert not lint(tmp_path / "m.py").problems


@pytest.mark.parametrize(
    "text",
    [
        f"x = {'-' * 5000}1\n",
        "x = " + "+".join(["a"] * 5000),
        "x = a" + ".b" * 5000,
        "\0",
        "print('",
    ],
)
def test_one_file_that_can_not_be_looked_at_does_not_lose_the_others(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(FOUND)
    (tmp_path / "m.py").write_text(text)
    (tmp_path / "z.py").write_text(FOUND)
    found = lint(tmp_path)
    assert [finding.path for finding in found.findings] == [str(tmp_path / "a.py"), str(tmp_path / "z.py")]
    assert [problem.path for problem in found.problems] == [str(tmp_path / "m.py")]


def test_lint_waits_for_no_pipe_and_reads_no_device(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(FOUND)
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "zero.py").symlink_to("/dev/zero")
    (tmp_path / "nowhere.ipynb").symlink_to(tmp_path / "nothing")
    found = lint(tmp_path)
    assert len(found.findings) == 1
    assert sorted(Path(problem.path).name for problem in found.problems) == ["nowhere.ipynb", "pipe.py", "zero.py"]
    assert all("not a file" in problem.reason for problem in found.problems)


# -- stores ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["spec.json", "trajectory.jsonl", "report.json", "machine.json", "sums.json"])
def test_a_pipe_in_a_store_is_not_waited_for_and_the_other_runs_are_read(name: str, tmp_path: Path) -> None:
    bad, good = RunSpec(rule="dfa", epochs=1), RunSpec(rule="bp", epochs=1)
    folder = write_run(tmp_path, bad, 0.3, **EXPLODED)
    write_run(tmp_path, good, 0.5, **HEALTHY)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    os.mkfifo(folder / PROGRESS)
    found = read_records(tmp_path)
    assert good in {run.spec for run in found}
    assert name == "sums.json" or [problem.path for problem in found.problems] == [folder]
    store.state(tmp_path, bad), store.progress(tmp_path, bad)
    store.checked_runs(tmp_path)
    with suppress(wb.FormatError):
        finished(folder, bad)


def test_a_checkpoint_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    from walkback.training.loop import _resume

    os.mkfifo(tmp_path / CHECKPOINT)
    with pytest.raises(wb.FormatError, match="it is a folder, pipe or device"), reading_checkpoint(tmp_path):
        _resume(None, tmp_path)  # type: ignore[arg-type]


def test_a_log_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log.txt")
    with pytest.raises(OSError, match=r"No such device or address|not a file"):
        append_to(tmp_path / "log.txt")
    reader = os.open(tmp_path / "log.txt", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OSError, match="a pipe or device, not a file"):
        append_to(tmp_path / "log.txt")
    os.close(reader)


def test_a_run_is_not_trained_through_a_link(tmp_path: Path) -> None:
    """What is planted in a store would be written, locked and tidied where it points to."""
    spec = RunSpec(rule="dfa", data="teacher", epochs=1, net_options={"width": 8, "depth": 1})
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (elsewhere / "checkpoint.safetensors").write_bytes(b"mine")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / spec.name).symlink_to(elsewhere)
    with pytest.raises(wb.FormatError, match="to be a folder of its own, but it is a link to"):
        wb.train(spec, tmp_path / "store", quiet=True)
    assert store.state(tmp_path / "store", spec).kind == "damaged"
    done = wb.audit.audit(wb.audit.Plan("p", "", (spec,)), tmp_path / "store", quiet=True)
    assert "it is a link to" in done.failed[0].detail
    assert [path.name for path in elsewhere.iterdir()] == ["checkpoint.safetensors"]


def test_a_finished_run_behind_a_link_is_read_and_nothing_there_is_removed(tmp_path: Path) -> None:
    spec = RunSpec(rule="dfa", data="teacher", epochs=1, net_options={"width": 8, "depth": 1})
    made = wb.train(spec, tmp_path / "a", quiet=True).path
    (made / PROGRESS).write_text("{}")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / spec.name).symlink_to(made)
    assert wb.train(spec, tmp_path / "b", quiet=True).report() is not None
    assert (made / PROGRESS).exists()


def test_a_file_with_another_name_is_not_emptied_by_a_lock_nor_lengthened_by_a_log(tmp_path: Path) -> None:
    spec = RunSpec(rule="dfa", data="teacher", epochs=1, net_options={"width": 8, "depth": 1})
    (mine := tmp_path / "mine.txt").write_text("mine")
    (folder := tmp_path / "store" / spec.name).mkdir(parents=True)
    (folder / ".lock").hardlink_to(mine)
    assert not is_locked(folder)
    with pytest.raises(wb.FormatError, match="a link, which no run makes: remove it"):
        wb.train(spec, tmp_path / "store", quiet=True)
    (folder / "log.txt").hardlink_to(mine)
    with pytest.raises(OSError, match="hard link"):
        append_to(folder / "log.txt")
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("name", [CHECKPOINT, PROGRESS, "sums.json", "weights.safetensors", "machine.json"])
def test_a_folder_where_a_file_will_be_written_is_refused_before_training(name: str, tmp_path: Path) -> None:
    spec = RunSpec(rule="dfa", data="teacher", epochs=10**6)  # as long as nobody could wait for
    (tmp_path / spec.name / name).mkdir(parents=True)
    with pytest.raises(wb.FormatError, match="to be a file or not there, but it is a folder"):
        wb.train(spec, tmp_path, quiet=True)


def test_weights_of_holes_are_refused_by_their_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of holes takes no room on disk, and as much memory as its header says."""
    from walkback.cli import run as cli

    folder = tmp_path / "bp"
    shutil.copytree(Path(wb.selftest.BUNDLES) / "bp", folder)
    size, header = 2**40, {"net.w": {"dtype": "F32", "shape": [2**38], "data_offsets": [0, 2**40]}}
    head = json.dumps(header).encode()
    for kept in ("sums", "no sums"):
        with (folder / "weights.safetensors").open("wb") as file:
            file.write(len(head).to_bytes(8, "little") + head)
            file.truncate(8 + len(head) + size)
        if kept == "no sums":
            (folder / "sums.json").unlink()
        with pytest.raises(wb.FormatError, match=r"over 4096 MiB\. More is read with --largest-weights GIB"):
            wb.load_bundle(folder)
        assert cli(["diagnose", str(folder)]) == 2
        assert "over 4096 MiB" in capsys.readouterr().err
        assert cli(["fsck", str(tmp_path), "--largest-weights", "8"]) == int(kept == "sums")
        assert ("over 8192 MiB" in capsys.readouterr().out) is (kept == "sums")
    with pytest.raises(wb.FormatError, match="over 1 MiB"):
        wb.load_bundle(folder, largest=2**20)
    assert cli(["fsck", str(tmp_path), "--largest-weights", "0"]) == 2


def test_a_checkpoint_of_holes_is_refused_by_its_length(tmp_path: Path) -> None:
    spec = RunSpec(rule="dfa", data="teacher", epochs=1, net_options={"width": 8, "depth": 1})
    (tmp_path / spec.name).mkdir()
    with (tmp_path / spec.name / CHECKPOINT).open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(wb.FormatError, match="over 256 MiB"):
        wb.train(spec, tmp_path, quiet=True)


def test_sums_that_name_other_folders_are_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path, RunSpec(rule="bp", epochs=1), 0.5, **HEALTHY)
    sums = {"schema": "walkback.sums/1", "spec": "", "sha256": {"../../outside": "0"}}
    (folder / "sums.json").write_text(json.dumps(sums))
    (problem,) = read_records(tmp_path).problems
    assert "with a sum for each file" in problem.reason


# -- starting up -----------------------------------------------------------------------------------------------------

EARLY = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what a shell has started in the background
class Stops:
    def find_spec(self, name, *_):
        if name == MODULE:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Stops())
from walkback.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["walkback.cli", "cyclopts", "walkback.registry", "walkback.report.formats.logged"])
def test_ctrl_c_while_the_command_starts_is_one_line(module: str, tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text(json.dumps({"h_norm": [1.0, 2.0]}))
    script = EARLY.replace("MODULE", repr(module))
    call = [sys.executable, "-c", script, "judge", str(tmp_path / "log.json")]
    ended = subprocess.run(call, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "stopped\n")


@pytest.mark.parametrize("module", ["cyclopts", "walkback.report.formats.logged"])
def test_sigterm_is_one_line_in_every_verb(module: str, tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text(json.dumps({"h_norm": [1.0, 2.0]}))
    script = EARLY.replace("MODULE", repr(module)).replace(
        "raise_signal(signal.SIGINT)", "raise_signal(signal.SIGTERM)"
    )
    call = [sys.executable, "-c", script, "judge", str(tmp_path / "log.json"), "--out", str(tmp_path / "page.html")]
    ended = subprocess.run(call, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "stopped\n")
    assert [path.name for path in tmp_path.iterdir()] == ["log.json"]


WRITING = """
import signal, sys, walkback.files
def stopped(number):
    signal.raise_signal(signal.SIGTERM)
walkback.files.os.fsync = stopped
from walkback.__main__ import main
main()
"""


def test_sigterm_while_a_file_is_written_leaves_nothing_half_written(tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text(json.dumps({"h_norm": [1.0, 2.0]}))
    (tmp_path / "page.html").write_text("old")
    call = [sys.executable, "-c", WRITING, "judge", str(tmp_path / "log.json"), "--out", str(tmp_path / "page.html")]
    ended = subprocess.run(call, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "stopped\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.json", "page.html"]
    assert (tmp_path / "page.html").read_text() == "old"


OWN = """
import signal, sys
import walkback as wb
from walkback.audit import executors
from walkback.training import loop
signal.signal(signal.SIGINT, signal.default_int_handler)
def stops(*_, **__):
    signal.raise_signal(signal.SIGINT)
    yield
executors.executor = lambda name: stops
loop._epoch = lambda *_: signal.raise_signal(signal.SIGINT)
spec = wb.RunSpec(data="teacher", rule="dfa", epochs=1, net_options={"width": 8, "depth": 1})
DOES
"""


@pytest.mark.parametrize(
    "does",
    [
        "wb.audit.audit(wb.audit.Plan('p', '', (spec,)), sys.argv[1], quiet=True)",
        "wb.train(spec, sys.argv[1], quiet=True)",
    ],
)
def test_ctrl_c_in_a_script_of_ones_own_is_one_line_and_an_error_is_an_error(does: str, tmp_path: Path) -> None:
    def run(text: str) -> subprocess.CompletedProcess[str]:
        call = [sys.executable, "-c", OWN.replace("DOES", text), str(tmp_path)]
        return subprocess.run(call, capture_output=True, text=True, timeout=PATIENCE, check=False)

    ended = run(does)
    assert (ended.returncode, ended.stderr) == (-2, "stopped\n"), "as Python ends of a Ctrl-C"
    caught = run(f"try:\n    {does}\nexcept KeyboardInterrupt:\n    raise SystemExit('mine')")
    assert (caught.returncode, caught.stderr) == (1, "mine\n")
    other = run(f"try:\n    {does}\nexcept KeyboardInterrupt:\n    1 / 0")
    assert (other.returncode, "ZeroDivisionError" in other.stderr) == (1, True)
