"""The public record: entries that hold and entries that don't, the page, and the script that checks submissions."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

import check_submission
import walkback as wb
from places import ROOT
from seed_registry import JPEG_COPY
from walkback import cli
from walkback.replication import public_record
from walkback.replication.public_record import make_entry, read_entry, read_public_record

COMMIT = "a" * 40
HASH = "0123456789abcdef"


def report(**more):
    numbers = {"per_layer": {"h_norm": [1.0, 2.0], "g_norm": [1e-3, 1e-3]}, "headline_acc": 0.6}
    return wb.judge({**numbers, "frozen_baseline_acc": 0.3, "conditions": {"probe_hash": HASH}, **more})


def entry(made=None, **more) -> dict:
    words = {"rule": "DFA", "network": "resmlp", "data": "cifar10", "spec": {"seed": 42}, "commit": COMMIT}
    return make_entry(made or report(), **{**words, **more})


def put(folder, table, name="dfa-resmlp.json"):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(table), encoding="utf-8")
    return folder / name


def test_an_entry_that_holds_is_read(tmp_path):
    found = read_entry(put(tmp_path, entry(url="https://example.org/code", by="A. Author")))
    assert found.setting == ("DFA", "resmlp", "cifar10")
    assert (found.report.verdict, found.file.data_fingerprint) == ("passes", HASH)


def test_our_own_record_holds():
    found = read_public_record(ROOT / "registry")
    assert found.problems == ()
    assert len(found.entries) > 50
    assert {e.report.verdict for e in found.entries} == {"passes", "walked back", "undecided"}


def test_our_own_record_says_which_images_and_conventions_a_row_is_of():
    entries = read_public_record(ROOT / "registry").entries
    assert {"JPEG copy" in e.file.data for e in entries if e.file.data_fingerprint == JPEG_COPY} == {True}
    assert {"JPEG copy" in e.file.data for e in entries if e.file.data_fingerprint != JPEG_COPY} == {False}
    published = ("DFA (reader, rms credit)", "resmlp, 100 epochs", "cifar10")
    assert [e.report.verdict for e in entries if e.setting == published] == ["walked back"] * 3


def spoiled(how: str) -> dict:
    table = entry()
    if how == "verdict":
        table["report"]["verdict"] = "walked back"
    elif how == "numbers":
        table["report"]["nonfinite"] = [{"kind": "state", "site": 1, "batch": 0}]
    elif how == "data":
        table["data_fingerprint"] = "f" * 16
    elif how == "commit":
        table["code"]["commit"] = "main"
    elif how == "schema":
        table["report"]["per_layer"]["cosine"] = [3.0, 0.1]
    elif how == "link":
        table["paper"] = {"title": "A paper", "url": "javascript:alert(1)"}
    elif how == "extra":
        table["award"] = "best"
    elif how == "spec":
        table["spec"] = {}
    return table


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("verdict", "its verdict is 'walked back', and its findings give 'passes'"),
        ("numbers", "the verdict that its numbers give, walked back: D1, D2, but it says passes"),
        ("data", f"that of the samples measured, {HASH}, but got ffffffffffffffff"),
        ("commit", r"code\.commit: String should match"),
        ("schema", r"report\.per_layer\.cosine\.0"),
        ("link", r"paper\.url: String should match"),
        ("extra", "award: Extra inputs are not permitted"),
        ("spec", "spec: "),
    ],
)
def test_an_entry_that_does_not_hold_is_named(tmp_path, how, words):
    path = put(tmp_path, spoiled(how))
    with pytest.raises(wb.FormatError, match=words):
        read_entry(path)
    found = read_public_record(tmp_path)
    assert (found.entries, found.problems[0][0]) == ((), path.name)


def test_the_page_links_rows_and_escapes_what_was_submitted(tmp_path):
    put(tmp_path, entry(rule="<b>mine</b>", paper={"title": "On <i>", "url": "https://example.org/p"}))
    put(tmp_path, entry(report(headline_acc=0.3)), "second.json")
    page = public_record.page(read_public_record(tmp_path))
    assert 'id="b-mine-b-resmlp-cifar10_' in page
    assert 'id="second"' in page
    assert "<b>mine" not in page
    assert "<i>" not in page
    assert '<a href="https://example.org/p">' in page
    assert "<script" not in page
    assert "1 walked back" in page


def test_every_row_and_every_entry_has_an_id_of_its_own(tmp_path):
    put(tmp_path, entry(), "dfa-resmlp-cifar10.json")
    put(tmp_path, entry(rule="DFA+"), "plus.json")
    put(tmp_path, entry(rule="DFA resmlp", network="cifar10", data="+"), "moved.json")
    ids = re.findall(r' id="([^"]+)"', public_record.page(read_public_record(tmp_path)))
    assert len(set(ids)) == len(ids) == 6


def test_the_command_checks_adds_and_makes_the_page(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report().save("report.json")
    (tmp_path / "spec.json").write_text('{"seed": 1}')
    words = ["--rule", "DFA", "--network", "resmlp", "--data", "cifar10", "--spec", "spec.json"]
    add = ["registry", "add", "record", "--report", "report.json", "--name", "mine", *words]
    assert cli.run(add) == 2
    assert "Expected --commit to add an entry" in capsys.readouterr().err
    assert cli.run([*add, "--commit", "main"]) == 2
    assert not (tmp_path / "record" / "mine.json").exists()
    assert cli.run([*add, "--commit", COMMIT]) == 0
    assert cli.run([*add, "--commit", COMMIT]) == 2  # it is there
    capsys.readouterr()
    assert cli.run(["registry", "page", "record", "--out", "r.html"]) == 0
    assert capsys.readouterr().out == "1 entry: 1 passes\npage: r.html\n"
    put(tmp_path / "record", spoiled("verdict"), "bad.json")
    assert cli.run(["registry", "check", "record", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["problems"][0]["file"] == "bad.json"
    assert cli.run(["registry", "check", "nowhere"]) == 2


def git(folder, *words):
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *words]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def test_a_submission_adds_entries_that_hold_and_nothing_else(tmp_path, monkeypatch):
    git(tmp_path, "init", "-q", "-b", "main")
    put(tmp_path / "registry", entry(), "old.json")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "one")
    monkeypatch.chdir(tmp_path)

    def checked() -> list[str]:
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-qm", "more")
        return check_submission.problems(check_submission.changed("main~1"), "registry")

    put(tmp_path / "registry", entry(), "new.json")
    assert checked() == []
    put(tmp_path / "registry", spoiled("verdict"), "bad.json")
    assert "to have the verdict of its own findings" in checked()[0]
    put(tmp_path / "registry", entry(by="me"), "old.json")
    assert "new entries only, but this one was changed" in checked()[0]
    (tmp_path / "registry" / "link.json").symlink_to("/dev/zero")
    assert "to be a file, but it is a link" in checked()[0]
    (tmp_path / "Makefile").write_text("all:\n")
    assert "touch files of registry/ only" in checked()[0]
    assert check_submission.problems([], "registry") == ["Expected at least one new entry, but nothing differs."]
