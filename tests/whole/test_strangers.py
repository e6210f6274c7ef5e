"""Text from a stranger's file stays text: every field of a report and a run, in every form they are written in."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import walkback as wb
from made_runs import HEALTHY, write_run
from made_store import edit
from walkback.audit.records import read_records
from walkback.cli import run as cli
from walkback.errors import visible
from walkback.notes import Note
from walkback.replication.forms import to_csv
from walkback.replication.page import page_data, render
from walkback.replication.tables import evidence
from walkback.replication.template import filled
from walkback.report.gate import junit
from walkback.report.model_card import eval_results, section
from walkback.training.spec import RunSpec, control_spec

CODES = "\x1b[31m\x07\x9b31m\u202e"
TAG = "<img src=x onerror=alert(1)><script>window.hacked = 1</script>"
LINK = "[click](javascript:alert(1)) <a href='https://example.org'>x</a>"
TEX = r"\input{/etc/passwd}\write18{id}$evil$%"
FORMULA = "=HYPERLINK(1)"
ATTACKS = {"codes": CODES, "tag": TAG, "link": LINK, "tex": TEX, "formula": FORMULA}


def report(**fields: Any) -> wb.Report:
    row = {"per_layer": {"h_norm": [1.0, 2.0], "g_norm": [1.0, 1.0], "cosine": [0.5, 0.5]}, "headline_acc": 0.5}
    return wb.judge({**row, **fields})


# Field -> a report whose field is the text.
FIELDS: dict[str, Callable[[str], wb.Report]] = {
    "method": lambda text: report(method=text),
    "notes": lambda text: report(notes=text),
    "condition": lambda text: report(
        conditions=dict.fromkeys(("loss", "device", "mode", "checkpoint"), text) | {"samples": 8, "batches": 1}
    ),
    "name of a condition": lambda text: report(conditions={text: text}),
    "reason": lambda text: report(reasons={"stability": text, text: text}),
    "column": lambda text: report(**{text: 1.0}),
    "note of a later version": lambda text: wb.Report.from_dict(
        {**report().to_dict(), "notes": [{"code": "of-a-later-version", "site": None, "values": {}, "text": text}]}
    ),
    "step of the chain": lambda text: wb.Report.from_dict(
        {**report().to_dict(), "chain": [{"step": n, "title": text, "text": text, "holds": None} for n in (1, 2, 3, 4)]}
    ),
}


class Tags(HTMLParser):
    """The tags of a page, and its attributes that could run something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.odd: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.odd += [f"{k}={v}" for k, v in attrs if k.startswith("on") or str(v).startswith("javascript:")]


def no_codes(text: str) -> bool:
    return not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)


def plain_markdown(text: str) -> bool:
    """No tag, and no link, but for those that an even number of backslashes leaves."""
    return not re.search(r"(?<!\\)(\\\\)*(<(img|script|a)\b|\[click\])", text) and no_codes(text)


def plain_latex(text: str) -> bool:
    return r"\input{/" not in text and r"\write18" not in text and "$evil$" not in text and no_codes(text)


def plain_html(text: str) -> bool:
    found = Tags(text)
    return not found.tags & {"img", "script", "a"} and not found.odd


def plain_xml(text: str) -> bool:
    return {e.tag for e in ET.fromstring(text).iter()} <= {
        *("testsuites", "testsuite", "testcase", "failure", "skipped", "properties", "property", "system-out", "error"),
    }


OUTPUTS: dict[str, tuple[Callable[[wb.Report], str], Callable[[str], bool]]] = {
    "text": (str, no_codes),
    "Markdown": (lambda r: r.to_markdown(), plain_markdown),
    "model card": (section, plain_markdown),
    "LaTeX": (lambda r: r.to_latex(), plain_latex),
    "HTML": (lambda r: r.to_html(), plain_html),
    "notebook": (lambda r: r._repr_html_(), plain_html),
    "JUnit": (lambda r: junit(r, ["D1"]), plain_xml),
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("field", FIELDS)
def test_a_field_of_a_report_stays_text(field: str, output: str, attack: str) -> None:
    write, harmless = OUTPUTS[output]
    found = write(FIELDS[field](ATTACKS[attack]))
    assert harmless(found), found


@pytest.mark.parametrize("text", [TAG, LINK, CODES, TEX, "a/b"])
@pytest.mark.parametrize("part", ["aggregates", "controls"])
def test_names_of_further_numbers_are_words(part: str, text: str) -> None:
    """They become labels of figures, in which Plotly takes tags for links."""
    numbers: Any = 0.5 if part == "aggregates" else [0.5, 0.5]
    with pytest.raises(wb.InputError, match="names in aggregates and controls"):
        report(**{part: {text: numbers}})
    with pytest.raises(wb.FormatError, match="a name should be words"):
        wb.Report.from_dict({**report().to_dict(), part: {text: numbers}})


# -- runs ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of rules whose names are attacks, as far as a spec may have them."""
    folder = tmp_path_factory.mktemp("store")
    for text in (TAG, LINK, TEX, FORMULA):
        rule = f"{text.replace('/', '').replace(chr(92), '')}:x"
        made = write_run(folder, RunSpec(rule=rule, epochs=1), 0.5, **HEALTHY)
        edit(made, method=text, notes=[Note("remark", None, {"text": text + CODES}).to_dict()])
        (made / "machine.json").write_text(json.dumps({"machine": text, "torch": text, "device": text}))
    (folder / "half =1+1 <img src=x onerror=alert(1)>").mkdir()
    return folder


def tables(store: Path) -> Iterator[Any]:
    records = read_records(store)
    assert len(records) == 4
    for name in ("primary", "controls", "coverage"):
        try:
            yield evidence(name, records)
        except wb.InputError:
            continue


def test_tables_of_runs_run_nothing(store: Path) -> None:
    for table in tables(store):
        assert no_codes(str(table))
        assert plain_markdown(table.to_markdown())
        assert plain_latex(table.to_latex())
        for text in (table.to_csv(), to_csv(table)):
            cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
            assert not [cell for cell in cells if cell.startswith(("=", "@", "\t"))], table.name


def test_the_page_and_the_template_run_nothing(store: Path) -> None:
    data = page_data(read_records(store))
    page = Tags(render(data))
    assert "img" not in page.tags
    assert not page.odd
    rows = csv.reader(io.StringIO("\n".join(data["csv"])))
    assert not [cell for row in rows for cell in row if cell.startswith(("=", "@"))]
    assert plain_markdown(filled(read_records(store)))


@pytest.mark.parametrize("name", ["reporting-pair", "cosine-pairing"])
def test_a_name_that_is_no_mathematics_is_drawn_as_it_is_written(name: str, tmp_path: Path) -> None:
    """To matplotlib text between two dollars is a formula, and a wrong one an error that took all figures down."""
    pytest.importorskip("matplotlib")
    from walkback.replication.figures import save_figures

    for spec in (RunSpec(rule=r"$\frac{$:x", epochs=1), RunSpec(rule="bp", epochs=1)):
        write_run(tmp_path / "store", spec, 0.5, **HEALTHY)
        write_run(tmp_path / "store", control_spec(spec), 0.4, **HEALTHY)
    (drawn,) = save_figures(read_records(tmp_path / "store"), tmp_path, [name], ["single"], ["svg"]).files
    ET.parse(drawn)


@pytest.mark.parametrize("more", ["\x85c", "\u2028", "\x7f", "\ud800", "\x1b", "\ufeff", '"\n- x: 1'])
def test_text_in_an_entry_of_eval_results_stays_text(more: str) -> None:
    text = f"a/b{more}"
    yaml = pytest.importorskip("yaml")
    (entry,) = yaml.safe_load(eval_results(report(), text, task=text, source=text))
    assert entry["dataset"] == {"id": (known := text.replace("\ud800", "?")), "task_id": known}
    assert entry["source"]["url"] == known


@pytest.mark.parametrize("name", ["../../outside:x", "a/b:c", "a\nb:c", "\x1b[31m:x", "x\0:y"])
@pytest.mark.parametrize("field", ["net", "rule", "data"])
def test_a_name_can_not_become_a_path(field: str, name: str) -> None:
    with pytest.raises(wb.InputError, match="a name without slashes and control characters"):
        RunSpec(**{field: name})


def test_the_command_line_prints_no_control_code(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / f"log{CODES}.json"
    log.write_text(json.dumps({"h_norm": [1.0, 2.0], "g_norm": [1.0, 1.0], "method": CODES, "notes": CODES, CODES: 1}))
    for words in (["judge", str(log)], ["judge", str(log), "--json"], ["judge", f"{log}.none"], ["fsck", str(store)]):
        cli(words)
        told = capsys.readouterr()
        assert no_codes(told.out)
        assert no_codes(told.err)
    cli(["judge", str(log), "--json"])
    assert json.loads(capsys.readouterr().out)["method"] == CODES, "JSON keeps the text"


def test_control_codes_are_written_out() -> None:
    assert visible("a\tb\nc") == "a\tb\nc"
    assert visible("\x1b]0;title\x07\x9b1m\u202e") == r"\x1b]0;title\x07\x9b1m\u202e"
