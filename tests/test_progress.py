"""Progress in a real (pseudo-)terminal and without one: what is shown, when, and that nothing is left behind."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from halting import DOORS, arrived, open_door
from patience import PATIENCE, until
from walkback import cli
from walkback.data import Dataset, Split
from walkback.progress import epochs, quietly, say, track
from walkback.training.loop import train
from walkback.training.spec import RunSpec

termios = pytest.importorskip("termios", reason="terminals of Unix")
import fcntl  # noqa: E402

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
RUN = {"net_options": {"width": 16, "depth": 2}, "epochs": 3, "data": "test_progress:task"}
NUMBERS = r"acc \d\.\d{3}  ‖h_L‖ \d\.\d\de[+-]\d\d  ‖g_L‖ \d\.\d\de[+-]\d\d"


def task(n: int = 256) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2 * n, 8, generator=generator)
    y = (x @ torch.randn(8, 4, generator=generator)).argmax(1)
    return Dataset("task", Split(x[:n], y[:n]), Split(x[n:], y[n:]), 4)


def chatty_task() -> Dataset:
    print("reading my data")
    return task()


class Terminal:
    """A pseudo-terminal; what was written to it is read by a thread, as a terminal would."""

    def __init__(self, columns: int = 90) -> None:
        self.master, self.slave = os.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._seen, self._grown = b"", threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self.master, 65536)
            except OSError:  # how a pseudo-terminal says that the other side is gone
                data = b""
            with self._grown:
                self._seen += data
                self._grown.notify_all()
            if not data:
                return

    def wait_for(self, pattern: str, seconds: float = PATIENCE) -> None:
        with self._grown:
            assert self._grown.wait_for(lambda: re.search(pattern, self._seen.decode(errors="replace")), seconds)

    def text(self) -> str:
        """All that was written, once nobody can write any more."""
        if self._reader.is_alive():
            os.close(self.slave)
            self._reader.join(PATIENCE)
            os.close(self.master)
        return self._seen.decode()

    def drawn(self) -> list[str]:
        """What stood on a line of the screen at some time, without colours and blanks at its end."""
        plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", self.text())
        return [line.rstrip() for line in re.split(r"[\r\n]+", plain) if line.strip()]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without colours only the finished part of a bar is drawn."""
    monkeypatch.setenv("COLUMNS", "90")  # rich asks the standard descriptors, which are not the test's
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")


@contextmanager
def sitting_at(terminal: Terminal) -> Iterator[None]:
    """Standard error is this terminal."""
    with open(terminal.slave, "w", encoding="utf-8", closefd=False) as stream, redirect_stderr(stream):
        try:
            yield
        finally:
            assert sys.stderr is stream, "rich's stand-in was left behind"


class Clock:
    """Stands for the module time: seconds pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("walkback.progress.time", made)
    return made


# -- in a terminal -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("clock")
def test_training_shows_a_bar_with_all_it_should_say(tmp_path: Path) -> None:
    spec, terminal = RunSpec(**RUN), Terminal()
    with sitting_at(terminal):
        train(spec, tmp_path, data=task())
    first, *bars = terminal.drawn()
    assert first == spec.name
    assert re.fullmatch(rf" *0/3 epochs  {NUMBERS}  -:--:-- left", bars[0])
    assert re.fullmatch(rf"━+ 3/3 epochs  {NUMBERS}  0:00:00 left", bars[-1])
    assert terminal.text().rindex(SHOW) > terminal.text().rindex(HIDE)


def test_a_line_is_said_above_the_bar_and_not_where_it_is_quiet() -> None:
    terminal = Terminal()
    with sitting_at(terminal), epochs("a run", 0, 2, "acc 0.5") as show:
        say("warning: above the bar", alarm=True)
        with quietly():
            say("never seen")
        with quietly(False):
            say("and once more")
        show(1, "acc 0.6")
    lines = terminal.drawn()
    assert lines.count("warning: above the bar") == lines.count("and once more") == 1
    assert "never seen" not in terminal.text()
    assert re.fullmatch(r"[━╸ ]* 1/2 epochs  acc 0\.6  \S+ left", lines[-1])
    silent = Terminal()
    with sitting_at(silent), quietly(), epochs("a run", 0, 2, "acc 0.5"):
        say("never seen")
    assert silent.text() == ""


def test_zero_credit_is_a_warning_above_the_bar(tmp_path: Path, clock: Clock) -> None:
    terminal = Terminal()
    with sitting_at(terminal):
        train(RunSpec(**RUN, rule="ep", rule_options={"steps": 2}), tmp_path, data=task())
    assert sum(line.startswith("warning: ep gave zero credit") for line in terminal.drawn()) == 1
    assert re.fullmatch(rf"━+ 3/3 epochs  {NUMBERS}  0:00:00 left", terminal.drawn()[-1])


def test_the_bar_moves_within_an_epoch_and_the_time_left_is_of_this_process(clock: Clock) -> None:
    terminal = Terminal()
    with sitting_at(terminal), epochs("a run", 3, 8, "acc 0.5") as show:
        for share in (0.2, 0.5):
            clock.now += 10
            show(3 + share, "")
        clock.now += 10
        show(4, "acc 0.6")
    rows = [re.fullmatch(r"([━╸ ]*) (\d)/8 epochs  acc (0\.\d)  (\S+) left", line) for line in terminal.drawn()[1:]]
    assert all(rows)
    seen = list(dict.fromkeys(row.groups() for row in rows if row))
    # 10 s for 0.2 epochs, 20 s for 0.5 and 30 s for 1; the three epochs before cost this process nothing.
    assert [(done, acc, left) for _, done, acc, left in seen] == [
        ("3", "0.5", "-:--:--"),
        ("3", "0.5", "0:04:00"),
        ("3", "0.5", "0:03:00"),
        ("4", "0.6", "0:02:00"),
    ]
    lengths = [len(bar.rstrip()) for bar, *_ in seen]
    assert lengths == sorted(set(lengths)), "it moved every time"
    assert lengths[0] == pytest.approx(3 / 8 * len(seen[0][0]), abs=1), "it starts at the resumed epoch"


def test_drawing_costs_nothing_to_speak_of(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal that takes 20 ms to draw, too; steps take 1 ms and epochs 50 of them."""
    import rich.progress

    spent, draw = 0.0, rich.progress.Progress.refresh

    def slow(self: rich.progress.Progress) -> None:
        nonlocal spent
        draw(self)
        clock.now, spent = clock.now + 0.02, spent + 0.02

    monkeypatch.setattr(rich.progress.Progress, "refresh", slow)
    terminal = Terminal()
    with sitting_at(terminal), epochs("a run", 0, 1000, "acc 0.1") as show:
        start = clock.now
        for epoch in range(1000):
            for i in range(50):
                show(epoch + i / 50, "")
                clock.now += 0.001
            show(epoch + 1, "acc 0.2")
        assert 0 < spent < 0.005 * (clock.now - start)
    assert "1000/1000 epochs  acc 0.2  0:00:00 left" in terminal.drawn()[-1]


@pytest.mark.parametrize("columns", [20, 40, 64, 200])
@pytest.mark.usefixtures("clock")
def test_any_width_gets_one_line(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal = Terminal(columns)
    with sitting_at(terminal), epochs("run", 99, 100, "acc 0.345  ‖h_L‖ 2.14e+07  ‖g_L‖ 1.06e-07") as show:
        show(100, "acc 0.346  ‖h_L‖ 2.15e+07  ‖g_L‖ 1.06e-07")
    name, *bars = terminal.drawn()
    assert name == "run"
    assert all(len(line) <= columns and "/100 epochs" in line for line in bars), bars
    assert terminal.text().count("\n") == 2
    assert bars[-1].endswith("0:00:00 left" if columns == 200 else "…")


@pytest.mark.usefixtures("clock")
def test_a_terminal_without_unicode_gets_plain_letters() -> None:
    terminal = Terminal()
    with sitting_at(terminal):
        sys.stderr.reconfigure(encoding="latin1", errors="backslashreplace")  # type: ignore[union-attr]
        with epochs("run", 1, 2, "‖h_L‖ 9") as show:
            show(2, "‖h_L‖ 8")
    assert re.fullmatch(r"-+ 2/2 epochs  \|h_L\| 8  0:00:00 left", terminal.drawn()[-1])


@pytest.mark.parametrize("quiet", [False, True])
def test_quiet_training_shows_nothing_in_a_terminal(
    quiet: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its own bar nor those of the measurements and probes, however long they take."""
    monkeypatch.setattr("walkback.progress.time", SimpleNamespace(monotonic=count(step=10).__next__))
    terminal = Terminal()
    with sitting_at(terminal):
        train(RunSpec(**RUN), tmp_path, data=task(), quiet=quiet)
    told = terminal.text()
    assert told == "" if quiet else all(word in told for word in ("3/3 epochs", "measuring"))


def test_one_bar_at_a_time() -> None:
    """Measurements have bars of their own: not over the bar of training, and none when all is quiet."""
    terminal = Terminal()
    with sitting_at(terminal):
        with quietly():
            list(track([1, 2], "hidden", patience=-1))
            with epochs("hidden", 0, 2, "") as show, quietly(False):
                show(1, "hidden")
        with epochs("a run", 0, 2, ""):
            list(track([1, 2], "hidden", patience=-1))
        list(track([1, 2], "measuring", 2, patience=-1))
    told = " ".join(terminal.drawn())
    assert "hidden" not in told
    assert "a run" in told
    assert "measuring" in told


@pytest.mark.usefixtures("clock")
def test_an_error_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    class Broken(Dataset):
        def prepare(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) == 17:  # a training batch
                raise RuntimeError("boom")
            return super().prepare(x)

    terminal = Terminal()
    with sitting_at(terminal):
        with pytest.raises(RuntimeError, match="boom"):
            train(RunSpec(**RUN, optimiser={"batch_size": 17}), tmp_path, data=Broken(**vars(task())))
        print("after", file=sys.stderr)
    assert "0/3 epochs" in terminal.drawn()[-2]
    assert terminal.drawn()[-1] == "after"
    assert terminal.text().rindex(SHOW) > terminal.text().rindex(HIDE)


@pytest.mark.usefixtures("clock")
def test_a_killed_run_leaves_a_cursor() -> None:
    terminal = Terminal()
    with sitting_at(terminal), epochs("a run", 0, 2, ""):
        terminal.wait_for(re.escape(HIDE) + ".*" + re.escape(SHOW))
    terminal.text()


@pytest.mark.usefixtures("clock")
def test_a_terminal_that_can_t_move_its_cursor_gets_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()
    with sitting_at(terminal):
        train(RunSpec(**RUN), tmp_path, data=task())
    assert [line.split()[2] for line in terminal.drawn()] == ["1/3", "2/3", "3/3"]


@pytest.mark.usefixtures("clock")
def test_what_is_printed_into_a_pipe_stays_there(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    with sitting_at(terminal), epochs("a run", 0, 2, ""):
        print("mine")
    assert capsys.readouterr().out == "mine\n"
    assert "mine" not in terminal.text()


# -- without one ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("clock")
def test_without_a_terminal_there_is_one_line_per_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = RunSpec(**RUN)
    train(spec, tmp_path, data=task())
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert (out, len(lines)) == ("", 3)
    for epoch, line in enumerate(lines, 1):
        assert re.fullmatch(rf"{spec.name}  epoch {epoch}/3  {NUMBERS}  \d+\.\d s/epoch, 0 min left", line)
    assert "\x1b" not in err


def test_lines_of_a_resumed_run_tell_the_pace_of_this_process(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with epochs("a run", 40, 100, "acc 0.4") as show:
        clock.now += 20
        show(40.5, "")
        clock.now += 10
        show(41, "acc 0.5")
    assert capsys.readouterr().err == "a run  epoch 41/100  acc 0.5  30.0 s/epoch, 30 min left\n"


def test_quiet_training_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(RunSpec(**RUN), tmp_path, data=task(), quiet=True)
    assert capsys.readouterr() == ("", "")


def test_the_users_own_prints_do_not_end_up_in_the_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    monkeypatch.setattr(sys, "path", list(sys.path))
    tokens = ["train", "--net", "student", "--data", "test_progress:chatty_task", "--epochs", "1", "--json", "--out"]
    assert cli.run([*tokens, str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["schema"] == "walkback.report/2"
    assert err.startswith("reading my data\n")


# -- Ctrl-C --------------------------------------------------------------------------------------------------

# Stands for a shell: it leads the session of the terminal, in which Ctrl-C is a key that goes to all of the session.
SHELL = """
import fcntl, signal, subprocess, sys, termios
fcntl.ioctl(2, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, lambda *_: None)
print(subprocess.call([sys.executable, "-m", "walkback", *sys.argv[1:]]), flush=True)
sys.stdin.read()
"""


@pytest.mark.usefixtures("clock")
def test_ctrl_c_says_stopped_and_the_run_goes_on_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors import safe_open

    # It waits at the second step of its second epoch: two credits for the first row, four for an epoch.
    rule = ["--rule", "halting:Halts", "--rule-options", '{"name": "door", "at": 8}']
    line = ["train", "--net", "student", "--data", "test_progress:task", "--epochs", "3", *rule, "--out", "runs"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(DOORS, str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    desk = Terminal()
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", SHELL, *line],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=desk.slave, start_new_session=True, env=env,
    ) as process:  # fmt: skip
        until(lambda: arrived("door"))
        os.write(desk.master, b"\x03")
        assert process.stdout is not None
        assert process.stdout.readline() == b"130\n"
        desk.wait_for("stopped\r\n")
    assert desk.drawn()[-1].removeprefix("^C") == "stopped"  # a terminal may echo the key
    assert desk.text().rindex(SHOW) > desk.text().rindex(HIDE)

    (checkpoint,) = tmp_path.glob("runs/*/checkpoint.safetensors")
    with safe_open(checkpoint, framework="pt") as file:
        assert file.metadata()["epoch"] == "1"
    open_door("door")
    terminal = Terminal()
    with sitting_at(terminal):
        assert cli.run(line) == 0
    _, *bars = terminal.drawn()
    assert " 1/3 epochs" in bars[0]
    assert "-:--:-- left" in bars[0]
    assert " 3/3 epochs" in bars[-1]
    assert "VERDICT" in capsys.readouterr().out
