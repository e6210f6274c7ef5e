"""Every code block of the README and the docs runs as printed and prints what it shows; the site builds.

The blocks of one page run from top to bottom in one temporary folder (which has our `results`): Python in one
namespace, commands through the command line's own entry. A Python or TOML block that begins with `# name.py` or
`# name.toml` is a file of that name as well. A `text` block right after another one is what that one prints.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest

from places import ROOT
from walkback import cli

PAGES = ["README.md", "CHECKLIST.md", "CONTRIBUTING.md", "results/README.md"]
PAGES += sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").glob("**/*.md"))

# What is not run here, and why. Every `walkback` command among these must still be one the command line takes, and
# every `make` target on a page one of the Makefile.
NOT_RUN = {
    "*--data cifar*": "trains for hours, on images that don't ship",
    "walkback diagnose runs/*": "a run of hours",
    "walkback diagnose RUN --depth*": "a run of the reader's; tests/training/test_worth.py",
    "walkback diagnose RUN --root DATA *": "runs of hours; scripts/intrinsic_results.py calls it on each",
    "walkback demo*": "takes a minute; tests/audit/test_demo.py",
    "python scripts/demo_seeds.py *": "trains forty runs; tests/scripts/test_demo_seeds.py",
    "python scripts/validate_depth.py *": "trains for minutes; tests/scripts",
    "walkback calibrate --count 360*": "takes minutes; tests/calibration/test_calibration.py runs a small one",
    "walkback calibrate --nets resmlp*": "with it",
    "walkback calibrate --count 12*": "the block below it does the same in Python, and more",
    "walkback diagnose mine:network *": "the reader's network",
    "walkback audit*": "trains many runs, or times steps of all plans; tests/audit",
    "walkback lint my_evaluation/*": "a folder of the reader's; tests/lint/test_lint.py",
    "for *": "the demo and trainings in a loop",
    "walkback report results --tables * --figures *": "draws every figure in six forms; tests/replication",
    "pip install *": "installs",
    "mkdir *": "the user's home",
    "curl *": "downloads",
    "hf download *": "downloads",
    "git clone *": "downloads",
    "cd *": "with it",
    "make demo*": "installs, and trains for a minute",
    "make test*": "runs this test",
    "apt-get *": "installs",
    "scripts/slurm_single_node.sh *": "starts a Slurm daemon; tests/audit/test_executor_slurm.py",
    "export SLURM_CONF=*": "with it",
    "sinfo": "with it",
    "echo 'int mkl_serv_*": "compiles for one kind of processor",
    "LD_PRELOAD=*": "trains many runs",
}
SHOWN = {"text", "toml", "json", "csv", "latex", "html", "bibtex", "yaml"}  # languages that nothing runs
VERDICTS = {"diagnose", "judge"}  # commands whose exit code is a verdict


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    output: str | None  # what the page shows right after it


def blocks(name: str) -> list[Block]:
    text = (ROOT / name).read_text(encoding="utf-8")
    found = re.compile(r"^([ \t]*)```([^\n`]*)\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
    matches = list(found.finditer(text))
    made = []
    for match, after in zip(matches, [*matches[1:], None]):
        shown = after is not None and after[2] == "text" and not text[match.end() : after.start()].strip()
        code = re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE)
        made.append(Block(match[2].strip(), code, after[3] if shown and after else None))
    return made


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """(command, output shown) of a console block: `$ ` begins a command, `> ` continues it, the rest is output."""
    command, output = "", ""
    for line in [*block.text.splitlines(), "$ "]:
        if line.startswith("$ "):
            if command:
                yield command, output
            command, output = line[2:], ""
        elif line.startswith("> "):
            command += "\n" + line[2:]
        else:
            output += line + "\n"


NUMBER = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


def same(printed: str, shown: str) -> None:
    """The same words line by line, and the same numbers but for digits in which machines may differ."""

    def worded(text: str) -> list[str]:
        return [re.sub(r"\s+|-{2,}", "", NUMBER.sub("#", line)) for line in text.strip().splitlines()]

    assert worded(printed) == worded(shown), printed
    numbers = [[float(n.replace(",", "")) for n in NUMBER.findall(text)] for text in (printed, shown)]
    assert numbers[0] == pytest.approx(numbers[1], rel=0.05, abs=0.005), printed


def reason(command: str) -> str | None:
    return next((pattern for pattern in NOT_RUN if fnmatch(command, pattern)), None)


def words(command: str) -> list[str]:
    """As a shell would split it: without comments, patterns replaced by the files they match."""
    found = [(word, sorted(map(str, Path().glob(word))) if "*" in word else []) for word in shlex.split(command, True)]
    return [one for word, files in found for one in (files or [word])]


def parses(command: str) -> None:
    """Every `walkback …` in a shell command is one that the command line takes."""
    values = dict(re.findall(r"for (\w+) in (?:\$\(seq )?([\w-]+)", command))
    for call in re.findall(r"\bwalkback ([^;|\n]*)", command.partition(" #")[0]):
        for name, value in values.items():
            call = call.replace(f"${name}", value)
        cli.app.parse_args(words(call), exit_on_error=False, print_error=False)


def run_python(block: Block, page: str, scope: dict) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block.text, page, "exec"), scope)
    if block.output is not None:
        same(printed.getvalue(), block.output)


def run_console(block: Block, page: str) -> None:
    for command, shown in commands(block):
        if reason(command) is not None:
            parses(command)
            continue
        assert command.startswith("walkback "), f"{page}: neither run nor listed in NOT_RUN: {command}"
        line = words(command)[1:]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = cli.run(line)
        assert code in ((0, 1, 3) if line[0] in VERDICTS else (0,)), f"{page}: {command} exits with {code}"
        if shown := shown or (block.output or ""):
            same(printed.getvalue(), shown)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a page runs; modules that it writes are forgotten afterwards."""
    for name in ("results", "evidence", "registry"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)])
def test_blocks_run_as_printed(page: str, folder: Path) -> None:
    scope: dict = {"__name__": "docs"}
    for block in blocks(page):
        if name := re.match(r"# (\w+\.(?:py|toml))\n", block.text):
            (folder / name[1]).write_text(block.text, encoding="utf-8")
        if block.language == "python":
            run_python(block, page, scope)
        elif block.language == "console":
            run_console(block, page)
        else:
            assert block.language in SHOWN, f"{page}: what is a block of {block.language!r}? Python, console or text?"


def test_nothing_is_listed_that_no_page_has() -> None:
    shown = [command for page in PAGES for block in blocks(page) for command, _ in commands(block)]
    assert {reason(command) for command in shown} - {None} == set(NOT_RUN)


def test_make_targets_on_pages_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        for target in re.findall(r"(?:`|^\$ )make ([a-z]+)\b", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page}: make {target}"


def test_tests_named_on_pages_are_there() -> None:
    for page in PAGES:
        for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / page).read_text(encoding="utf-8")):
            assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{page}: {file}::{name}"


def test_commands_stand_in_blocks_that_are_run() -> None:
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        assert not re.search(r"^ {4,}(\$ )?walkback ", text, re.MULTILINE), f"{page}: indented, so not run"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```python\nassert 1 == 2\n```\n", AssertionError),
        ("```python\nprint(1, 'a')\n```\n\n```text\n1 b\n```\n", AssertionError),
        ("```python\nprint('a', 1.2)\n```\n\n```text\na 1.3\n```\n", AssertionError),
        ("```console\n$ walkback judge none.csv\n```\n", AssertionError),
        ("```console\n$ walkback demo --sed 1\n```\n", Exception),
        ("```console\n$ rm -rf x\n```\n", AssertionError),
    ],
)
def test_a_wrong_block_fails(text: str, error: type[Exception], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "page.md").write_text(text)
    monkeypatch.setattr(sys.modules[__name__], "ROOT", folder)
    for block in blocks("page.md"):
        with pytest.raises(error):
            (run_python(block, "page.md", {}) if block.language == "python" else run_console(block, "page.md"))
        break
