"""A folder is its own registry: a new rule, network, data set, pitfall or verb is one new file and no other edit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import walkback as wb
from patience import PATIENCE
from walkback import cli, pitfalls
from walkback.registry import gathered, modules_of, names_in

SOURCE = Path(wb.__file__).parent
TABLES = [("rules", "RULES"), ("nets", "NETS"), ("data", "EMBEDDED"), ("data", "SOURCES")]


@pytest.mark.parametrize(("folder", "table"), TABLES)
def test_names_read_from_the_files_are_those_of_the_table(folder: str, table: str) -> None:
    assert names_in(f"walkback.{folder}", table) == list(getattr(getattr(wb, folder), table))


def test_lists_keep_their_order() -> None:
    papers, field = ["bp", "fa", "dfa", "state-bridge", "credit-bridge", "ep"], ["drtp", "usf", "frsf", "brsf"]
    assert list(wb.rules.RULES) == [*papers, *field, "kolen-pollack", "weight-mirror"]
    assert list(wb.nets.NETS) == ["resmlp", "vit-mini", "student", "small-cnn"]
    assert [*wb.data.EMBEDDED, *wb.data.SOURCES] == [
        "teacher",
        "teacher-products",
        "teacher-linear",
        "cifar10",
        "cifar100",
        "fashion-mnist",
    ]


def test_every_file_of_the_command_line_is_a_verb_or_shared_by_verbs() -> None:
    files = {path.stem for path in (SOURCE / "cli").glob("*.py")} - {"__init__"}
    verbs = {name for name in cli.app if not name.startswith("-")}
    assert files - verbs == {"options", "output"}
    assert verbs <= files


@pytest.fixture
def more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose files stand beside the rules, until the test ends."""
    monkeypatch.setattr(wb.rules, "__path__", [*wb.rules.__path__, str(tmp_path)])
    monkeypatch.setattr(wb.rules.__spec__, "submodule_search_locations", wb.rules.__path__)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_a_new_file_is_found_at_the_end(more: Path) -> None:
    (more / "signs.py").write_text('RULES = {"signs": object, "signs-too": object}\n', encoding="utf-8")
    assert list(gathered("walkback.rules", "RULES")) == [*wb.rules.RULES, "signs", "signs-too"]
    assert names_in("walkback.rules", "RULES") == [*wb.rules.RULES, "signs", "signs-too"]


def test_a_new_file_says_where_it_stands(more: Path) -> None:
    (more / "signs.py").write_text('ORDER = 0\nRULES = {"signs": object}\n', encoding="utf-8")
    assert list(gathered("walkback.rules", "RULES")) == ["signs", *wb.rules.RULES]
    assert names_in("walkback.rules", "RULES") == ["signs", *wb.rules.RULES]


def test_a_name_in_two_files_is_refused(more: Path) -> None:
    (more / "signs.py").write_text('RULES = {"dfa": object}\n', encoding="utf-8")
    with pytest.raises(wb.InputError, match=r"one file of walkback\.rules for each name, but dfa stands in two"):
        gathered("walkback.rules", "RULES")


def test_every_pitfall_is_one_file_that_loads_no_torch() -> None:
    assert [m.PITFALL for m in modules_of("walkback.pitfalls", r"p\d\d_")] == list(pitfalls.CATALOGUE)
    code = "import sys, walkback.pitfalls, walkback.lint; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["judge", "--help"], ["lint", "--help"]])
def test_help_loads_no_torch(words: list[str]) -> None:
    code = f"import sys; from walkback import cli; cli.run({words!r}); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout.splitlines()[-1] == "False"
