"""The action, the workflows and the forms: their script steps are run here, as a runner would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib

import pytest
import yaml

from patience import PATIENCE
from places import ROOT

SHIMS = {"python": f'#!/bin/sh\nexec {sys.executable} "$@"\n', "walkback": '#!/bin/sh\nexec python -m walkback "$@"\n'}
MINE = """
import walkback as wb
def network():
    return wb.selftest.healthy(), wb.selftest.batches(8)
"""


@pytest.fixture
def runner(tmp_path):
    """Make a folder with `walkback` and `python` on the path, and return what runs a script there."""
    (tmp_path / "bin").mkdir()
    for name, shim in SHIMS.items():
        (tmp_path / "bin" / name).write_text(shim)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "fine.py").write_text("print(1)\n")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "report.json").write_text('{"h_norm": [1.0, 2.0], "g_norm": [1e-3, 1e-3]}')
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])

    def run(script: str, **env: str) -> subprocess.CompletedProcess:
        whole = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": path, **env}
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]  # as GitHub runs `shell: bash`
        return subprocess.run(
            command, cwd=tmp_path, env=whole, capture_output=True, text=True, check=False, timeout=PATIENCE
        )

    return run


ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}


def step(name: str, **inputs: str) -> tuple[str, dict[str, str]]:
    """A step's script and environment with the inputs put in; every input is one the action declares."""
    given = {**{k: v["default"] for k, v in ACTION["inputs"].items()}, **inputs}
    assert set(inputs) <= set(ACTION["inputs"])

    def filled(text: str) -> str:
        return re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda m: given[m[1]], text)

    assert "${{" not in STEPS[name]["run"]  # inputs reach scripts through the environment, never as code
    return STEPS[name]["run"], {k: filled(v) for k, v in STEPS[name]["env"].items()}


@pytest.mark.parametrize(
    ("name", "inputs", "code"),
    [
        ("lint", {"lint": "evaluation/ mine.py"}, 0),
        ("judge", {"report": "results/report.json"}, 3),
        ("judge", {"report": "results/report.json", "require": "D1 D2"}, 0),
        ("judge", {"report": "results/report.json", "require": "D1 D2 D3"}, 3),
        ("judge", {"report": "results/none.json; touch bad"}, 2),
        ("diagnose", {"diagnose": "mine:network", "require": "D1 D2"}, 0),
    ],
)
def test_steps_of_the_action(runner, tmp_path, name, inputs, code):
    script, env = step(name, **inputs)
    done = runner(script, **env)
    assert done.returncode == code, done.stderr
    assert (tmp_path / "walkback.xml").exists() == (name != "lint" and code != 2)
    assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize(
    ("inputs", "light"), [({}, True), ({"diagnose": "mine:network"}, False), ({"install": "whole"}, False)]
)
def test_the_action_installs_torch_where_it_measures(runner, tmp_path, inputs, light):
    (tmp_path / "bin" / "python").write_text('#!/bin/sh\necho "$@"\n')
    script, env = step("install", **inputs)
    done = runner(script, **{**env, "HERE": "/here"})
    first, *rest = done.stdout.splitlines()
    assert (rest == ["-m pip install --quiet --no-deps /here"]) is light
    assert first == "-m pip install --quiet " + ("-r /here/requirements-light.txt" if light else "/here")


def test_inputs_of_the_action_say_what_the_schema_of_actions_asks_for():
    assert all(one["description"] and one["required"] is False for one in ACTION["inputs"].values())


def shown_workflows() -> list[dict]:
    text = (ROOT / "docs" / "gates.md").read_text(encoding="utf-8")
    return [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]


def test_workflows_on_the_page_run(runner):
    ran = 0
    for shown in shown_workflows():
        for job in shown.get("jobs", {}).values():
            for one in job["steps"]:
                if "walkback" in one.get("uses", ""):
                    for name in ("lint", "judge"):
                        script, env = step(name, **one["with"])
                        assert runner(script, **env).returncode == (0 if name == "lint" else 3)
                elif "run" in one and not one["run"].startswith("pip "):
                    done = runner(one["run"])
                    assert done.returncode == 0, done.stderr
                    ran += 1
    assert ran == 1


def test_the_hook_on_the_page_is_the_one_there_is():
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    (shown,) = [w for w in shown_workflows() if "repos" in w]
    assert shown["repos"][0]["hooks"][0]["id"] == hook["id"]
    assert (ROOT / hook["entry"]).is_file()
    assert re.search(hook["files"], "a/b.ipynb")


def test_our_workflows_call_targets_that_there_are():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        flow = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert flow["permissions"] == {"contents": "read"}
        for job in flow["jobs"].values():
            for one in job["steps"]:
                for target in re.findall(r"\bmake ([\w-]+)", one.get("run", "")):
                    assert re.search(rf"^(\S+ )*{target}( \S+)*:", makefile, re.MULTILINE), target
                for script in re.findall(r"\bscripts/\S+", one.get("run", "")):
                    assert (ROOT / script).is_file()


def test_a_submission_is_checked_by_the_code_of_the_base(runner, tmp_path):
    """The submission's own script, which would let everything pass, is not the one that runs."""
    flow = yaml.safe_load((ROOT / ".github" / "workflows" / "registry.yml").read_text(encoding="utf-8"))
    steps = flow["jobs"]["check"]["steps"]
    theirs, (check,) = tmp_path / "submission", [one for one in steps if one.get("name") == "check the submission"]
    assert [one["with"].get("path") for one in steps if "checkout" in one.get("uses", "")] == [None, theirs.name]
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    (theirs / "scripts").mkdir(parents=True)
    git = "git -c user.name=a -c user.email=a@example.org"
    runner(f"cd submission; git init -q; {git} commit -q --allow-empty -m base")
    runner(f"cd submission; echo 'exit()' > scripts/check_submission.py; git add -A; {git} commit -qm bad")
    done = runner(f"cd {check['working-directory']}; {check['run']}", BASE="HEAD~1")
    assert (done.returncode, "touch files of registry/ only" in done.stdout) == (1, True), done.stderr


def test_forms_have_what_github_asks_for():
    forms = [yaml.safe_load(p.read_text()) for p in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")]
    for form in (f for f in forms if "body" in f):
        assert {"name", "description", "body"} <= set(form)
        assert len({one["id"] for one in form["body"]}) == len(form["body"])
    assert yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())["version"] == 2


def test_the_citation_names_the_version_and_the_papers():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert cited["version"] == project["version"]
    assert len(cited["references"]) == 2
    assert all(one["title"] and one["authors"] for one in cited["references"])
    assert project["entry-points"]["pytest11"] == {"walkback": "walkback.integrations.pytest_plugin"}
