"""The labelled corpus and its table in the docs; findings as SARIF, as annotations, selected, and through flake8."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import corpus
import walkback as wb
from needs import needed
from places import ROOT
from walkback import cli
from walkback.lint.flake8 import Plugin
from walkback.lint.forms import github, sarif

DIRTY = "import torch\nh = torch.randn(4, 3)\nprint(h.norm(-1))  # 100 %\n"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "evaluate, all.py"
    path.write_text(DIRTY, encoding="utf-8")
    return path


# -- the corpus ----------------------------------------------------------------------------------------------------


def test_lint_is_right_on_the_corpus(tmp_path: Path):
    found = corpus.score(tmp_path)
    assert found.precision >= 0.8, found.false
    assert found.recall >= 0.6, found.missed
    text = (ROOT / "docs/lint.md").read_text(encoding="utf-8")
    assert found.table() in text, "docs/lint.md: run tests/lint/corpus.py and put its table there"
    assert f"precision {found.precision:.0%}, recall {found.recall:.0%}" in text


@pytest.mark.parametrize("file", corpus.UNSEEN, ids=lambda file: file.stem)
def test_on_fresh_snippets_lint_does_what_the_docs_say(tmp_path: Path, file: Path):
    found, every = corpus.score(tmp_path, file), corpus.snippets(file)
    clean = {snippet.name for snippet in every if not snippet.expected}
    (row,) = [
        line for line in (ROOT / "docs/lint.md").read_text(encoding="utf-8").split("\n") if f"`{file.name}`" in line
    ]
    told = [cell.strip() for cell in row.strip("|").split("|")]
    assert told[1:4] == [str(len(every)), str(len(clean)), str(sum(len(s.expected) for s in every))]
    assert told[-1] == f"{found.precision:.0%}, {found.recall:.0%}"
    assert not clean & {name for _, name, _ in found.false}


def test_the_corpus_is_large_and_half_of_it_is_clean():
    every = corpus.snippets()
    clean = [s for s in every if not s.expected]
    assert len(every) >= 60
    assert 0.4 <= len(clean) / len(every) <= 0.6
    assert len({s.name for s in every}) == len(every)


# -- forms ---------------------------------------------------------------------------------------------------------


def test_sarif_names_rule_file_and_line(script: Path):
    log = json.loads(sarif(wb.lint(script)))
    (run,) = log["runs"]
    (result,) = run["results"]
    place = result["locations"][0]["physicalLocation"]
    assert log["version"] == "2.1.0"
    assert (result["ruleId"], place["region"]["startLine"]) == ("P01", 3)
    assert place["artifactLocation"]["uri"] == "evaluate, all.py"
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == "P01"
    assert run["invocations"][0]["executionSuccessful"]


def test_sarif_tells_what_could_not_be_read(tmp_path: Path):
    (tmp_path / "broken.py").write_text("def (", encoding="utf-8")
    (run,) = json.loads(sarif(wb.lint(tmp_path)))["runs"]
    assert not run["invocations"][0]["executionSuccessful"]
    assert "not Python" in run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]


def test_github_annotations_are_one_escaped_line_each(script: Path, capsys: pytest.CaptureFixture[str]):
    said = github(wb.lint(script))
    assert said.startswith("::warning file=evaluate%2C all.py,line=3,title=P01::")
    assert "\n" not in said
    assert cli.run(["lint", str(script), "--format", "github"]) == 1
    assert capsys.readouterr().out == said + "\n"


def test_select_takes_the_named_pitfalls_alone(script: Path, capsys: pytest.CaptureFixture[str]):
    assert [f.code for f in wb.lint(script, select=["p01"]).findings] == ["P01"]
    assert wb.lint(script, select=["P02", "P03"]).findings == ()
    assert cli.run(["lint", str(script), "--select", "P02,P03"]) == 0
    with pytest.raises(wb.InputError, match="Expected select to name pitfalls of P01"):
        wb.lint(script, select=["P99"])
    assert cli.run(["lint", str(script), "--select", "P05"]) == 2  # no detector
    assert cli.run(["lint", str(script), "--json", "--format", "sarif"]) == 2
    assert "but got both" in capsys.readouterr().err


def test_every_form_points_to_the_page_that_ships(script: Path):
    import ast

    linted = wb.lint(script)
    plugin = Plugin(ast.parse(DIRTY), "a.py", DIRTY.splitlines(True))
    for text in (str(linted), json.dumps(linted.to_dict()), sarif(linted), github(linted), next(plugin.run())[2]):
        assert "walkback pitfalls show P01" in text


# -- flake8 --------------------------------------------------------------------------------------------------------


def test_the_plugin_silences_as_lint_does():
    import ast

    quiet = DIRTY.replace("# 100 %", "# walkback: ignore[P01]")
    for text, count in ((DIRTY, 1), (quiet, 0)):
        assert len(list(Plugin(ast.parse(text), "a.py", text.splitlines(True)).run())) == count


def test_flake8_finds_the_plugin(script: Path):
    """In the metadata of the installed package, and by flake8 itself where that is installed."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '[project.entry-points."flake8.extension"]\nWB = "walkback.lint.flake8:Plugin"' in text
    needed("flake8")
    options = "[flake8]\n[flake8:local-plugins]\nextension =\n    WB = walkback.lint.flake8:Plugin\n"
    config = script.with_name("flake8.ini")
    config.write_text(options, encoding="utf-8")
    command = [sys.executable, "-m", "flake8", "--config", str(config), "--select", "WB", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert "WB01" in done.stdout


def test_the_plugin_needs_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import ast; from walkback.lint.flake8 import Plugin\n"
        f"print(len(list(Plugin(ast.parse({DIRTY!r}), 'a.py', {DIRTY.splitlines(True)!r}).run())))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("1", "")
