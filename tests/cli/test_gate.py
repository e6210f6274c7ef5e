"""Gates: exit codes of required checks, JUnit XML, the difference that a failing test shows, the pytest plugin."""

from __future__ import annotations

import os
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest

import walkback as wb
from needs import needed
from patience import PATIENCE
from places import ROOT
from walkback import cli
from walkback.report.gate import difference, gate, junit

HEALTHY = {"per_layer": {"h_norm": [1.0, 2.0, 3.0], "g_norm": [1e-3, 1e-3, 1e-3]}}
GROWN = {"per_layer": {"h_norm": [1.0, 2.0, 300.0], "g_norm": [1e-3, 1e-3, 1e-3]}}
LOST = {"per_layer": {"h_norm": [9.0, 2e3], "g_norm": [3e-9, 4e-9]}}
USED = {"headline_acc": 0.6, "frozen_baseline_acc": 0.3}
UNUSED = {"headline_acc": 0.3, "frozen_baseline_acc": 0.3}
STRADDLES = {"headline_acc": [0.36, 0.40, 0.37], "frozen_baseline_acc": [0.35, 0.35, 0.35]}


@pytest.mark.parametrize(
    ("numbers", "require", "code"),
    [
        ({**HEALTHY, **USED}, [], 0),
        ({**HEALTHY, **USED}, ["D1", "D2", "D3"], 0),
        (HEALTHY, [], 3),
        (HEALTHY, ["D1", "D2"], 0),  # what is not required may be untested
        (HEALTHY, ["D1", "D2", "D3"], 3),
        ({**HEALTHY, **STRADDLES}, ["D3"], 3),  # tested, and not decided
        ({**GROWN, **USED}, [], 0),  # D1 flags without deciding
        ({**GROWN, **USED}, ["D2", "D3"], 0),
        ({**GROWN, **USED}, ["D1"], 1),
        (LOST, ["D3"], 1),  # walked back whatever is required
        ({**HEALTHY, **UNUSED}, ["D1"], 1),
        ({**HEALTHY, **UNUSED}, ["D3"], 1),
    ],
)
def test_exit_codes_of_required_checks(tmp_path, capsys, numbers, require, code):
    wb.judge(numbers).save(tmp_path / "report.json")
    asked = ["--require", *require] if require else []
    xml = tmp_path / "ci" / "junit.xml"
    assert cli.run(["judge", str(tmp_path / "report.json"), *asked, "--junit", str(xml)]) == code
    assert ("GATE: " in capsys.readouterr().err) == bool(require)
    suite = ET.parse(xml).getroot()
    assert (int(suite.get("failures", "")) > 0) == (code != 0)
    failing = [case.get("name") for case in suite.findall("testcase") if case.find("failure") is not None]
    assert ("gate" in failing) == (code != 0)
    assert int(suite.get("failures", "")) == len(failing)
    assert int(suite.get("tests", "")) == len(suite.findall("testcase")) == 4
    assert (difference(wb.judge(numbers), require) == "") == (code == 0)


def test_a_check_that_the_edition_has_not_is_refused(tmp_path, capsys):
    wb.judge(HEALTHY).save(tmp_path / "r.json")
    assert cli.run(["judge", str(tmp_path / "r.json"), "--require", "D4"]) == 2
    assert "of the three-check edition, D1, D2, D3, but got 'D4'" in capsys.readouterr().err
    assert gate(wb.judge(HEALTHY, "four-diagnostic"), ["a", "b"]).word == "passes"


def test_junit_tells_flagged_undecided_and_skipped_apart():
    def kinds(numbers: dict, *require: str) -> dict:
        cases = ET.fromstring(junit(wb.judge(numbers), require).partition("\n")[2]).findall("testcase")
        return {c.get("name", "")[:2]: next((x.tag for x in c if x.tag != "system-out"), "ok") for c in cases}

    assert kinds(LOST) == {"D1": "failure", "D2": "failure", "D3": "skipped", "ga": "failure"}
    assert kinds(LOST, "D3") == {"D1": "failure", "D2": "failure", "D3": "failure", "ga": "failure"}
    assert kinds(HEALTHY, "D1", "D2") == {"D1": "ok", "D2": "ok", "D3": "skipped", "ga": "ok"}
    assert kinds(HEALTHY, "D3") == {"D1": "ok", "D2": "ok", "D3": "failure", "ga": "failure"}
    assert kinds({**GROWN, **USED}) == {"D1": "ok", "D2": "ok", "D3": "ok", "ga": "ok"}


def test_junit_of_an_odd_name_is_still_xml():
    report = wb.judge(HEALTHY, method_name='a<b>&"\x00\x1b[31m\ud800')
    suite = ET.fromstring(junit(report).partition("\n")[2].encode())
    assert suite.get("name", "").startswith('walkback a<b>&"')


def test_assert_passes_returns_the_report_or_shows_what_was_expected():
    good = wb.judge({**HEALTHY, **USED})
    assert good.assert_passes() is good
    assert wb.judge(HEALTHY).assert_passes("D1", "D2").verdict == "undecided"
    with pytest.raises(AssertionError) as caught:
        wb.judge(LOST, method_name="DFA").assert_passes()
    text = str(caught.value)
    assert "Expected DFA to pass the three-check protocol, but it is walked back." in text
    assert "not > 50" in text
    assert "222" in text
    assert "VERDICT: walked back: D1, D2" in text
    marks = [line[0] for line in text.splitlines() if " D1 " in line or " D2 " in line or " D3 " in line]
    assert marks == ["-", "-", "?"]


TESTS = """
def test_holds(walkback):
    walkback.judge({"h_norm": [1.0, 2.0], "g_norm": [1e-3, 1e-3]}, method_name="BP").assert_passes("D1", "D2")

def test_falls(walkback):
    report = walkback.judge({"h_norm": [9.0, 2e3], "g_norm": [3e-9, 4e-9]}, method_name="DFA")
    assert walkback.reports == [report]
    report.assert_passes()
"""


@pytest.mark.parametrize("workers", [[], ["-p", "xdist", "-n", "1"]], ids=["here", "xdist"])
def test_the_plugin_fails_with_the_difference_and_nothing_else(tmp_path, workers):
    if workers:
        needed("xdist")
    (tmp_path / "test_claim.py").write_text(TESTS)
    plugins = ["-p", "walkback.integrations.pytest_plugin", "-p", "no:cacheprovider", *workers]
    command = [sys.executable, "-m", "pytest", "-q", "-Werror", *plugins, "--junitxml=j.xml", "."]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 1, done.stderr
    assert "1 failed, 1 passed" in done.stdout
    assert "E       AssertionError: Expected DFA to pass the three-check protocol" in done.stdout
    assert "gate.py" not in done.stdout  # of the failing test, and of no code of ours
    assert "BP: undecided: depth not tested" in done.stdout
    assert "DFA: walked back: D1, D2" in done.stdout
    properties = {p.get("name"): p.get("value") for p in ET.parse(tmp_path / "j.xml").iter("property")}
    assert properties["walkback.verdict"] == "VERDICT: walked back: D1, D2"
    assert properties["walkback.method"] == "DFA"


def test_the_plugin_loads_neither_torch_nor_numpy():
    code = "import sys, walkback.integrations.pytest_plugin; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout.split() == ["False", "False"]
