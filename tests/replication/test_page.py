"""The page as text: what is in it, that it is escaped, that its numbers are those of the runs. See test_browser too."""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import json
import os
import re
import sys
from dataclasses import replace
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path

import pytest

import walkback as wb
from made_latex import compiled
from made_runs import EXPLODED, HEALTHY, right, write_run
from made_store import ATTACK, BP, DFA, FA, NOTE, OTHER, build, edit, many, replace_slash, seeded
from walkback import cli
from walkback.audit.records import Records, read_records
from walkback.audit.settings import Setting, alike, judged, judged_runs
from walkback.audit.wording import commands
from walkback.errors import FormatError, InputError
from walkback.replication.page import PLOTLY, _judged_report, page, page_data, render
from walkback.replication.page_words import _reasons, to_do
from walkback.report.formats.logged import judge
from walkback.report.html import asset, panel
from walkback.report.page_view import distance
from walkback.report.report import Report, tex
from walkback.report.view import finding_rows, layer_rows
from walkback.training.control import control_spec
from walkback.training.spec import RunSpec
from walkback.verdict.checks import paired_margin

ODD = r"my_50%&:$x$#:{odd}~:^\r<b>:|*[0]"
LIMIT = 800_000  # bytes without the data
LOADS = {"src", "href", "srcset", "data", "action", "poster", "background", "xlink:href"}


class Parsed(HTMLParser):
    """Tags, scripts and visible text of a page, as a browser would see them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag if tag in ("script", "style") else ""
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        elif not self._inside:
            self.text += data

    def script(self, name: str) -> str:
        return next(text for attrs, text in self.scripts if attrs.get("id") == name)

    @cached_property
    def data(self) -> dict:
        runs = json.loads(unpacked(self.script("runs-data")))
        return {**json.loads(self.script("data")), "runs": runs}


def unpacked(text: str) -> str:
    return gzip.decompress(base64.b64decode(text)).decode()


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    return build(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def records(store) -> Records:
    return read_records(store)


@pytest.fixture(scope="module")
def html(records) -> str:
    return page(records)


@pytest.fixture(scope="module")
def parsed(html) -> Parsed:
    return Parsed(html)


def entry(parsed: Parsed, spec: RunSpec) -> dict:
    return next(run for run in parsed.data["runs"] if run["id"] == f"run-{spec.digest}")


def row(parsed: Parsed, rule: str) -> dict:
    return next(s for s in parsed.data["settings"] if s["rule"] == rule)


# -- one file ------------------------------------------------------------------------------------------------------


def test_the_page_is_small_and_loads_nothing(html, parsed):
    data = parsed.script("data") + parsed.script("runs-data")
    assert len(html.encode()) - len(data.encode()) < LIMIT
    for tag, attrs in parsed.tags:
        for name in LOADS & set(attrs):
            assert (attrs[name] or "").startswith(("#", "data:")), f"<{tag} {name}={attrs[name]!r}>"
        assert not any(name.startswith("on") for name in attrs), f"<{tag}> has a handler"
    styles = re.findall(r"<style>(.*?)</style>", html, re.S)
    assert styles
    assert not any("url(" in style or "@import" in style for style in styles)


def test_it_is_html_from_the_first_letter(html):
    assert html.startswith("<!doctype html>\n<html lang=")
    assert html.endswith("</html>")


def test_only_its_own_scripts_may_run(parsed):
    policy = next(a["content"] or "" for _, a in parsed.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policy.partition("style-src")[0]
    ours = [text for attrs, text in parsed.scripts if "type" not in attrs]
    runs = [*ours, unpacked(parsed.script("plotly"))]
    assert len(runs) == 2
    for text in runs:
        assert f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in policy


def test_plotly_is_inside_with_its_licence(parsed):
    assert f"plotly.js (cartesian - minified) v{PLOTLY}" in unpacked(parsed.script("plotly"))
    assert "MIT" in asset("plotly-LICENSE.txt")
    assert "\r" not in asset(f"plotly-cartesian-{PLOTLY}.min.js")  # a browser would turn it into \n and refuse the hash


def test_the_same_store_gives_the_same_bytes(store, html):
    assert page(read_records(store)) == html


# -- escaping ------------------------------------------------------------------------------------------------------


def test_text_of_runs_is_shown_not_run(html, parsed):
    """Names, notes, folders and conditions: nowhere does `<script>` from a run become an element."""
    assert len(parsed.scripts) == 4
    assert "<script>window" not in html
    assert OTHER.rule.replace("/", "") in parsed.text
    assert f"half {ATTACK.replace('/', ' ')}" in parsed.text
    other = entry(parsed, replace_slash(OTHER))
    assert other["notes"] == NOTE
    assert other["name"] == replace_slash(OTHER).name
    assert ["loss", f"cross-entropy {ATTACK}"] in other["conditions"]


def test_the_data_can_not_end_its_script(html):
    data = html.partition('id="data">')[2].partition("</script>")[0]
    assert not set("<>&\u2028\u2029") & set(data)
    assert json.loads(data)["schema"] == "walkback.page/2"


def test_a_folder_name_that_is_no_text_is_shown(tmp_path):
    folder = write_run(tmp_path, BP, 0.6, **HEALTHY)
    strange = os.fsdecode(os.fsencode(str(folder)) + b"\xff\xfe")
    folder.rename(strange)
    text = page(read_records(tmp_path))
    assert text.encode()
    assert "\\udcff" in Parsed(text).data["runs"][0]["name"]
    store = tmp_path.rename(os.fsdecode(os.fsencode(str(tmp_path)) + b"\xff"))  # in the commands for what is missing
    assert page(read_records(store)).encode()


def test_half_of_a_surrogate_pair_in_a_record_is_shown_as_its_escape(tmp_path):
    folder = write_run(tmp_path, BP, 0.6, **HEALTHY)
    edit(folder, method="half \ud800 of a pair")
    text = page(read_records(tmp_path))
    assert text.encode()
    assert "half \ud800 of a pair" in json.dumps(Parsed(text).data, ensure_ascii=False)


# -- the verdict table ---------------------------------------------------------------------------------------------


def test_the_table_comes_first_with_a_row_per_rule_and_setting(html, parsed):
    assert html.index('id="table"') < html.index('id="list"')
    rows = [attrs for tag, attrs in parsed.tags if tag == "tr" and "data-rule" in attrs]
    assert [r["data-rule"] for r in rows] == ["BP", "FA", "DFA", OTHER.rule.replace("/", "")]
    assert [r["data-verdict"] for r in rows] == ["passes", "undecided", "walked back", "undecided"]
    heads = [attrs["data-key"] for tag, attrs in parsed.tags if tag == "th" and "data-key" in attrs]
    assert heads == ["rule", "setting", "n", "acc", "gamma", "frozen", "d3", "d1", "d2", "verdict"]


def test_a_row_says_what_the_audit_says(records, parsed):
    """Verdict, flags, values and interval are those of `judged`, which the evidence tables show too."""
    j = judged(records, Setting("dfa", epochs=DFA.epochs))
    shown = row(parsed, "DFA")
    assert shown["verdict"]["word"] == j.word("three-check") == "walked back"
    assert shown["failed"] == "D1 D2 D3"
    assert (shown["valid"]["word"], shown["depth"]["word"]) == ("no", "no")
    growth, reference, acc = (j.stat(what) for what in ("growth", "g_norm", "acc"))
    assert None not in (growth, reference, acc, j.depth)
    assert (shown["d1"]["mean"], shown["d2"]["mean"], shown["acc"]["mean"]) == (growth.mean, reference.mean, acc.mean)
    assert shown["gamma"]["mean"] == j.stat("gamma").mean
    assert shown["d3"]["value"] == j.depth.value
    assert shown["d3"]["interval"] == list(j.depth.interval or ())
    assert shown["d3"]["reason"] == "1 of 2 seeds have their control"
    assert shown["frozen"]["text"] == "0.350"


def test_the_interval_is_that_of_seeds_and_test_samples(records, parsed):
    pairs = [(right(ours), right(0.45)) for ours in (0.60, 0.61)]
    expected = paired_margin([0.60, 0.61], [0.45, 0.45], pairs)
    shown = row(parsed, "BP")["d3"]
    assert (shown["value"], shown["interval"]) == (expected[0], pytest.approx(expected[1]))
    low, high = expected[1]
    assert shown["text"] == f"+15.5 pp [{low:+.1f}, {high:+.1f}]"
    assert shown["distance"] == "13.5 pp above 2 pp"


def test_distances_are_from_the_threshold(parsed):
    assert row(parsed, "DFA")["d1"]["distance"] == "4× above 50"
    assert row(parsed, "DFA")["d2"]["distance"] == "25× below 1e−7"
    assert row(parsed, "BP")["d2"]["distance"] == "4000× above 1e−7"


@pytest.mark.parametrize(
    ("values", "said"),
    [([25.0], "2× below 50"), ([100.0, 150.0], "2–3× above 50"), ([10.0, 5.0], "5–10× below 50"),
     ([25.0, 100.0], "2× below to 2× above 50"), ([0.0], "∞× below 50"), ([None], ""), ([None, 25.0], "2× below 50")],
)  # fmt: skip
def test_a_distance_over_seeds_is_a_span(values, said):
    assert distance(values, {"limit": 50.0, "flags_when": "> 50", "check": "D1"}) == said


def test_what_is_missing_is_said(parsed):
    fa = row(parsed, "FA")
    assert fa["failed"] == "depth not tested"
    assert (fa["d3"]["value"], fa["d3"]["interval"], fa["frozen"]["mean"]) == (None, None, None)
    assert fa["d3"]["reason"] == "no frozen control in the store"
    assert fa["depth"]["word"] == "not tested"
    assert "2 undecided (with depth not tested), 1 passes." in parsed.data["summary"]
    assert fa["verdict"] | {"order": 0} == {
        "word": "undecided", "mark": "≈", "kind": "open", "qualifier": "depth not tested", "order": 0
    }  # fmt: skip
    assert (row(parsed, "BP")["verdict"]["kind"], row(parsed, "BP")["verdict"]["qualifier"]) == ("good", "")
    # Twice in the table, and in the heads of their two runs.
    assert len(re.findall(r"undecided \(depth not tested\)", parsed.text)) == 4
    named = dict(parsed.data["missing"])
    assert len(named) == 3
    assert "its frozen control is not in the store" in entry(parsed, FA)["chain"][2]["text"]
    assert parsed.data["problems"] == [[f"half {ATTACK.replace('/', ' ')}", "unfinished: there is no report.json"]]


def test_a_missing_control_is_known_by_its_cause_whatever_its_sentence_says(records):
    run = next(run for run in records.runs if run.spec == FA)
    verdict = judged_runs(records, [run]).verdicts["three-check"][0]
    said = tuple(replace(f, reason="nobody gave a control") if f.cause == "not-given" else f for f in verdict.findings)
    steps = tuple(replace(step, text="nobody gave a control") for step in verdict.chain)
    report = _judged_report(run, replace(verdict, findings=said, chain=steps))
    assert report.findings[-1]["reason"] == "not tested: its frozen control is not in the store"
    assert [step["text"] for step in report.chain].count("nobody gave a control") == len(steps) - 1
    assert report.chain[2]["text"] == "not tested: its frozen control is not in the store"


def test_the_command_for_a_missing_control_trains_it(store, records):
    line = commands([control_spec(replace_slash(OTHER))], store)[0]
    assert "--lr 0.008" in line
    assert "--scope frozen" in line


def test_runs_of_another_optimiser_have_their_row(records, parsed):
    """No evidence table asks for them; the page shows all."""
    setting = row(parsed, OTHER.rule.replace("/", ""))["setting"]
    assert setting == "resmlp · cifar10 · lr 0.008 · 12 epochs · plain"


def test_groups_differ_in_their_seed_only(records):
    groups = alike(records)
    assert sorted(len(runs) for runs in groups.values()) == [1, 1, 1, 2, 2, 2]
    assert all(len({run.spec.digest for run in runs}) == len(runs) for runs in groups.values())
    runs = next(runs for spec, runs in groups.items() if spec.rule == "bp" and spec.scope == "all")
    assert judged_runs(records, runs).depth == judged(records, Setting("bp", epochs=BP.epochs)).depth


def test_the_csv_has_the_numbers(parsed):
    rows = list(csv.DictReader(parsed.data["csv"]))
    dfa = next(r for r in rows if r["rule"] == "DFA")
    shown = row(parsed, "DFA")
    assert float(dfa["growth_mean"]) == shown["d1"]["mean"]
    assert float(dfa["depth_margin_pp_low"]) == shown["d3"]["interval"][0]
    assert dfa["seeds"] == "0 1"
    assert next(r for r in rows if r["rule"] == "FA")["depth_margin_pp"] == ""


def test_a_spreadsheet_runs_no_formula_of_a_rule(tmp_path):
    write_run(tmp_path, RunSpec(rule="=1+1:x", epochs=1), 0.5, **HEALTHY)
    assert page_data(read_records(tmp_path))["csv"][1].startswith("'=1+1:x,")


def chosen(data: dict, rows: list[int]) -> str:
    """The file a reader downloads who sees these rows in this order: as page.js does it."""
    before, all_rows, after = data["latex"]
    return "\n".join([*before, *(all_rows[i] for i in rows), *after]) + "\n"


@pytest.fixture(scope="module")
def long(tmp_path_factory) -> dict:
    """More settings than a page holds, among them one with a long name and one LaTeX would choke on."""
    store = tmp_path_factory.mktemp("long")
    records = many(store, 29)
    for rule in ("my_package.rules:sign_symmetric_feedback", ODD):
        write_run(store, RunSpec(rule=rule, epochs=40), 0.5, **EXPLODED)
    named = [run for run in read_records(store) if run.spec.rule.startswith("my")]
    return page_data(replace(records, runs=(*records.runs, *named)))


@pytest.mark.parametrize("order", ["all", "turned", "one", "none"])
def test_the_latex_of_any_rows_is_one_table_of_them(long, order):
    count = len(long["settings"])
    assert count == 31
    rows = {"all": [*range(count)], "turned": [*range(count)][::-3], "one": [count - 1], "none": []}[order]
    text = chosen(long, rows)
    opened: list[str] = []
    for what, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if what == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert opened == []
    assert text.count(r"\begin{longtable}") == text.count(r"\caption") == text.count(r"\label") == 1
    body = text.partition("\\endfoot\n")[2].partition("\\end{longtable}")[0].splitlines()
    cells = [line.strip().removeprefix("{}").removesuffix(r" \\").split(" & ") for line in body if line.strip()]
    shown = [long["settings"][i] for i in rows]
    assert [c[0].replace(r"\allowbreak{}", "") for c in cells] == [tex(s["rule"]) for s in shown]
    assert [c[1].replace(r"$\lambda$", "λ").replace(r"$\cdot$", "·") for c in cells] == [s["setting"] for s in shown]
    assert {len(c) for c in cells} <= {10}
    assert "D1 flags at growth $>$ 50" in text


def test_the_latex_compiles_and_breaks_into_pages(long, tmp_path):
    text = chosen(long, [*range(len(long["settings"]))])
    packages = re.findall(r"% Needs (\\usepackage\{.*?\})", text)[0]
    (tmp_path / "verdicts.tex").write_text(text)
    (tmp_path / "all.tex").write_text(
        rf"\documentclass{{article}}{packages}\begin{{document}}\input{{verdicts}}\end{{document}}"
    )
    log = compiled(tmp_path)
    assert "Overfull" not in log, "something sticks out"
    assert int(re.findall(r"Output written on all.pdf \((\d+) pages", log)[0]) > 2


# -- the first screen ----------------------------------------------------------------------------------------------


def test_three_sentences_come_first_then_the_pair_the_rule_and_the_table(html, parsed):
    assert parsed.data["findings"] == [
        "Of 4 settings, 1 would have to be walked back (DFA), 2 are undecided, 1 passes.",
        "The pair that papers report does not show it: DFA (resmlp · cifar10 · 12 epochs · plain) has accuracy 0.311 "
        "and Γ +0.105, but its trained blocks lose 4.4 pp against frozen random ones (0.350).",
        "In the one walked back, trained blocks gain less than 2 pp over frozen ones, and the stream explodes and the "
        "BP gradient vanishes; 2 of the undecided need a frozen control.",
    ]
    places = [html.index(what) for what in ('class="findings"', 'class="pair"', 'class="decides"', 'id="table"')]
    assert places == sorted(places)
    assert "A claim is walked back if (D1 and D2) or D3" in " ".join(parsed.text.split())


def test_the_third_sentence_counts_only_where_there_are_several():
    def setting(failed: str = "") -> dict:
        return {"verdict": {"word": "walked back" if failed else "passes", "qualifier": ""}, "failed": failed}

    all_three, depth = setting("D1 D2 D3"), setting("D3")
    why = "trained blocks gain less than 2 pp over frozen ones"
    assert _reasons([setting()]) == "No check decides against a claim."
    assert _reasons([depth, setting()]) == f"In the one walked back, {why}."
    both = "in 1, the stream explodes and the BP gradient vanishes"
    assert _reasons([depth, all_three]) == f"Of the 2 walked back: in all 2, {why}; {both}."


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([(BP, 0.6, 0.45)], "The smallest gain over frozen blocks is +15.0 pp"),
        ([(BP, 0.6, None)], "No setting has a frozen control"),
        ([(DFA, 0.3, None)], "No walked-back setting has both Γ and a frozen control"),
    ],
)
def test_the_second_sentence_fits_what_there_is(tmp_path, runs, said):
    for spec, acc, frozen in runs:
        write_run(tmp_path, spec, acc, **(EXPLODED if spec is DFA else HEALTHY))
        if frozen is not None:
            write_run(tmp_path, control_spec(spec), frozen, **HEALTHY)
    assert page_data(read_records(tmp_path))["findings"][1].startswith(said)


def test_the_picture_has_the_numbers_of_the_table_at_their_places(parsed):
    pair = parsed.data["pair"]
    assert [r["rule"] for r in pair["rows"]] == ["BP", "DFA"], "those with a control"
    bp, dfa = pair["rows"]
    for r in (bp, dfa):
        shown = row(parsed, r["rule"])
        assert (r["acc"]["text"], r["gamma"]["text"], r["gain"]["text"]) == (
            shown["acc"]["text"],
            shown["gamma"]["text"],
            shown["d3"]["text"],
        )
        assert 0 <= r["gain"]["low"] <= r["gain"]["x"] <= r["gain"]["high"] <= 100
    # Places are affine in the values: by two of them every other is known.
    values = {r["rule"]: row(parsed, r["rule"])["d3"]["value"] for r in (bp, dfa)}
    scale = (bp["gain"]["x"] - dfa["gain"]["x"]) / (values["BP"] - values["DFA"])
    assert pair["zero"]["gain"] == pytest.approx(dfa["gain"]["x"] - scale * values["DFA"], abs=0.1)
    assert pair["zero"]["margin"] == pytest.approx(pair["zero"]["gain"] + 2 * scale, abs=0.1)
    assert dfa["frozen"]["x"] > dfa["acc"]["x"]
    assert bp["frozen"]["x"] < bp["acc"]["x"]


def test_the_picture_is_of_a_task_on_which_a_rule_falls_with_conventions_beside_the_rule(tmp_path):
    """Three rules pass elsewhere; BP has no conventions of credit, and stands beside the rule that has."""

    def run(spec, acc, frozen, numbers):
        write_run(tmp_path, spec, acc, **numbers)
        write_run(tmp_path, control_spec(spec), frozen, **HEALTHY)

    for rule in ("bp", "fa", "drtp"):
        run(RunSpec(rule=rule, epochs=3), 0.6, 0.4, HEALTHY)
    run(RunSpec(rule="bp", epochs=5), 0.6, 0.4, HEALTHY)
    run(RunSpec(rule="dfa", epochs=5, credit_site="reader", credit_length="rms"), 0.3, 0.4, EXPLODED)
    data = page_data(read_records(tmp_path))
    assert [r["rule"] for r in data["pair"]["rows"]] == ["BP", "DFA · reader · rms credit"]
    assert (data["pair"]["setting"], data["pair"]["others"]) == ("resmlp · cifar10 · 5 epochs · plain", 1)
    assert "(a rule here is walked back; 1 more task in the table)" in render(data)


def test_every_check_that_does_not_pass_says_what_to_do(parsed):
    todo = {s["rule"]: s["todo"] for s in parsed.data["settings"]}
    assert [line[:3] for line in todo["DFA"]] == ["D1:", "D2:", "D3:"]
    assert todo["BP"] == []
    assert todo["FA"] == ["D3: Train the frozen control; the commands stand under “Missing controls”."]
    checks = {c["check"]: c["todo"] for c in entry(parsed, DFA)["checks"]}
    assert checks["D3"].startswith("Report the frozen control")
    assert all(c["todo"] == "" for c in entry(parsed, BP)["checks"])


def test_every_combination_of_a_check_and_a_result_that_is_not_ok_has_something_to_do():
    for check in ("D1", "D2", "D3"):
        assert to_do(check, "ok") == ""
        for result in ("flags", "flags (1/3)", "undecided", "not tested"):
            assert to_do(check, result)
    assert to_do("D3", "undecided", "4 more seeds would decide it").endswith("Here 4 more seeds would decide it.")


def test_a_seed_that_differs_from_its_setting_says_why(tmp_path):
    """Three seeds that each beat their control clearly, by gains that differ much: their mean decides nothing."""
    for seed, acc in enumerate((0.48, 0.60, 0.95)):
        write_run(tmp_path, seeded(DFA, seed), acc, **HEALTHY)
        write_run(tmp_path, control_spec(seeded(DFA, seed)), 0.40, **HEALTHY)
    data = page_data(read_records(tmp_path))
    assert data["settings"][0]["verdict"]["word"] == "undecided"
    assert data["settings"][0]["todo"][0].startswith("D3: Train more seeds with their controls. Here ")
    alone = [run for run in data["runs"] if run["verdict"]["word"] == "passes"]
    assert len(alone) == 3
    for run in alone:
        assert run["beside"].startswith("This seed alone: passes. All 3 seeds of its setting together: undecided.")
    assert all(run["beside"] == "" for run in data["runs"] if run["verdict"]["word"] == "control")


def test_a_check_whose_mean_is_open_is_undecided_though_no_seed_flags(tmp_path):
    """Growth of 2, 4 and 40: every seed is under 50, the interval of their mean is not."""
    for seed, top in enumerate((18.0, 36.0, 360.0)):
        write_run(tmp_path, seeded(DFA, seed), 0.6, **{**HEALTHY, "h": (9.0, 9.0, 9.0, 9.0, top)})
        write_run(tmp_path, control_spec(seeded(DFA, seed)), 0.40, **HEALTHY)
    shown = page_data(read_records(tmp_path))["settings"][0]
    assert (shown["verdict"]["word"], shown["d1"]["result"]["word"]) == ("undecided", "undecided")
    assert "straddles the limit of 50" in shown["d1"]["reason"]
    assert shown["todo"][0].startswith("D1: Train more seeds")


# -- one run -------------------------------------------------------------------------------------------------------


def test_values_of_a_run_are_those_of_its_files(store, parsed):
    for spec in (BP, DFA, FA, control_spec(BP), seeded(DFA, 1)):
        saved = json.loads((store / spec.name / "report.json").read_text())
        shown = entry(parsed, spec)
        assert shown["per_layer"] == saved["per_layer"]
        assert shown["values"] == saved["values"]
        assert shown["aggregates"] == saved["aggregates"]
        assert shown["acc"] == saved["headline_acc"]
        rows = [saved["run"]["initial"]]
        rows += [json.loads(line) for line in (store / spec.name / "trajectory.jsonl").read_text().splitlines()]
        replay = shown["replay"]
        assert replay["epoch"] == list(range(spec.epochs + 1))
        assert replay["acc"] == [r["test_acc"] for r in rows]
        assert replay["h_norm"] == [r["per_layer"]["h_norm"][-1] for r in rows]
        assert replay["g_norm"] == [r["per_layer"]["g_norm"][-1] for r in rows]
        assert replay["growth"] == [r["values"]["growth"] for r in rows]


def test_the_replay_says_when_each_check_fired(parsed):
    assert entry(parsed, DFA)["replay"]["fired"] == {"D1": 4, "D2": 7}
    assert entry(parsed, BP)["replay"]["fired"] == {"D1": None, "D2": None}


def test_a_run_is_told_in_four_steps_with_its_own_control(parsed):
    dfa = entry(parsed, DFA)
    assert [s["step"] for s in dfa["chain"]] == [1, 2, 3, 4]
    assert "accuracy 0.306" in dfa["chain"][0]["text"]
    assert "‖g_L‖ = 4e-09 is under the floor of 1e-07" in dfa["chain"][1]["text"]
    assert "-4.4 pp over frozen blocks" in dfa["chain"][2]["text"]
    assert "Mode 1" in dfa["chain"][3]["text"]
    assert dfa["control"] == {"id": f"run-{control_spec(DFA).digest}", "acc": 0.35}
    assert [c["check"] for c in dfa["checks"]] == ["D1", "D2", "D3"]


def test_a_control_is_not_judged(parsed):
    assert entry(parsed, control_spec(BP))["verdict"]["word"] == "control"
    assert "control" not in {s["verdict"]["word"] for s in parsed.data["settings"]}


def test_the_null_band_is_drawn_or_said_to_be_missing(parsed):
    assert entry(parsed, BP)["null"] == ""
    assert entry(parsed, DFA)["null"].startswith("Null band not measured")


# -- stores that are not as they should be -------------------------------------------------------------------------


def test_controls_alone_make_a_page_without_claims(tmp_path):
    write_run(tmp_path, control_spec(BP), 0.45, **HEALTHY)
    seen = Parsed(page(read_records(tmp_path)))
    assert "there is no claim to judge" in seen.text
    assert (seen.data["settings"], seen.data["csv"]) == ([], [])


def test_numbers_that_are_none_make_that_run_a_problem(tmp_path):
    write_run(tmp_path, BP, 0.6, **HEALTHY)
    edit(write_run(tmp_path, DFA, 0.3, **EXPLODED), per_layer={"h_norm": "lost"})
    data = page_data(read_records(tmp_path))
    assert len(data["runs"]) == 1
    assert "per_layer.h_norm is 'lost'" in data["problems"][0][1]


def test_nothing_measured_is_said(tmp_path):
    folder = write_run(tmp_path, BP, 0.6, **HEALTHY)
    nothing = dict.fromkeys(json.loads((folder / "report.json").read_text())["values"])
    edit(folder, per_layer={"cosine": None, "cosine_clamped": None}, aggregates={}, values=nothing)
    run = page_data(read_records(tmp_path))["runs"][0]
    assert run["per_layer"]["cosine"] is None
    assert run["aggregates"] == {}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{store}", "--out", "{tmp}/missing/report.html"], "missing is not. Make it: mkdir -p"),
        (["{store}", "--out", "{tmp}/report.pdf"], "Expected --out to end in .html"),
        (["{store}", "--out", "{tmp}/folder.html"], "Expected --out to be a file, but"),
        (["{tmp}/folder.html", "--out", "{tmp}/r.html"], "there are none. Train some there: walkback demo --out"),
        (["{tmp}/nowhere", "--out", "{tmp}/r.html"], "Expected a folder with runs at"),
        (["{half}", "--out", "{tmp}/r.html"], "there are none that can be read (1 can't;"),
    ],
)
def test_a_wrong_call_is_explained(store, tmp_path, capsys, words, said):
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "half" / "run").mkdir(parents=True)
    (tmp_path / "half" / "run" / "spec.json").write_text("{}")
    names = {"store": store, "tmp": tmp_path, "half": tmp_path / "half"}
    assert cli.run(["report", *(word.format(**names) for word in words)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert said in err
    assert not (tmp_path / "r.html").exists()


def test_folders_that_can_not_be_read_are_named(store, monkeypatch):
    closed: set[Path] = set()
    scandir = os.scandir

    def locked(path):
        if Path(path) in closed:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", locked)
    closed.add(store / BP.name)
    assert [(p.path.name, p.reason) for p in read_records(store).problems if p.path.name == BP.name] == [
        (BP.name, "not readable: Permission denied")
    ]
    closed.add(store)
    with pytest.raises(FormatError, match=r"Expected to read the runs in .*: Permission denied"):
        read_records(store)


def test_an_empty_store_is_an_error(tmp_path):
    with pytest.raises(InputError, match="Expected finished runs under"):
        page(read_records(tmp_path))


def test_the_command_writes_the_page(store, html, tmp_path, capsys, monkeypatch):
    out = tmp_path / "report.html"
    assert cli.run(["report", str(store), "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("4 settings: 1 walked back, 2 undecided (with depth not tested), 1 passes. 6 runs and")
    assert "not used: half" in said.err
    assert out.read_text(encoding="utf-8") == html + "\n"
    monkeypatch.chdir(tmp_path)
    out.unlink()
    assert cli.run(["report", str(store), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["written"] == {"page": "report.html"}
    assert [s["verdict"]["word"] for s in printed["settings"]].count("walked back") == 1
    assert out.exists()


def test_five_hundred_runs_have_five_hundred_entries(tmp_path):
    data = page_data(many(tmp_path, 60))
    assert len(data["runs"]) == len({run["id"] for run in data["runs"]}) == 60
    assert len(Parsed(render(data)).data["runs"]) == 60


# -- one report ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report() -> Report:
    net, batches = wb.selftest.exploded(), wb.selftest.batches(3)
    return wb.diagnose(net, batches, 0.31, 0.35, credit=list_of_grads, method_name=f"DFA {ATTACK}", notes=NOTE)


def list_of_grads(trace: wb.Trace) -> list:
    return list(trace.grads)


def test_a_report_is_one_file_without_scripts(report):
    text = report.to_html()
    seen = Parsed(text)
    assert text.startswith("<!doctype html>")
    assert not seen.scripts
    assert "http" not in re.sub(r'http-equiv="[\w-]+"', "", text)
    assert len(text) < 60_000
    assert f"DFA {ATTACK}" in seen.text
    assert " ".join(NOTE.split()) in " ".join(seen.text.split())
    assert "walked back: D1, D2, D3" in seen.text


def test_a_report_in_html_has_the_rows_of_the_text(report):
    cells = " ".join(Parsed(report.to_html()).text.split())
    for rows in (layer_rows(report)[1], finding_rows(report)[1]):
        for line in rows:
            for cell in line:
                assert cell.lower() in cells.lower()
    for step in report.chain:
        assert step["text"] in cells
    for name in ("‖h‖", "‖g‖", "cosine"):
        assert f'aria-label="{name}: ' in report.to_html()


def test_notebooks_get_every_form(report):
    bundle = report._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/markdown", "text/html"}
    assert bundle["text/plain"] == str(report)
    assert bundle["text/html"] == report._repr_html_()
    assert "<html" not in report._repr_html_()
    assert not Parsed(report._repr_html_()).scripts


def test_a_report_of_little_still_shows():
    text = judge({"headline_acc": 0.5, "frozen_baseline_acc": 0.3}).to_html()
    assert "<svg" not in text
    assert "undecided: D1 not tested: no state norms were given" in Parsed(text).text
    bare = judge({"per_layer": {"h_norm": [1.0, None, 0.0]}})
    assert Parsed(bare.to_html()).text.count("not tested") >= 2


def test_diagnosis_goes_to_a_html_file(tmp_path, capsys):
    numbers = tmp_path / "numbers.json"
    numbers.write_text(json.dumps({"per_layer": {"h_norm": [1.0, 2.0], "g_norm": [1e-3, 1e-3]}}))
    assert cli.run(["judge", str(numbers), "--out", str(tmp_path / "r.html")]) == 3, "depth was not tested"
    assert "<svg" in (tmp_path / "r.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("values", [[1.0], [0.0, -1.0], [5.0, 5.0], [1e-300, 1e300], [0.3, None, -0.2]])
@pytest.mark.parametrize("log", [True, False])
def test_a_panel_stays_in_its_frame(values, log):
    drawn = str(panel("x", values, log, [2.0] * len(values), ([-0.1] * len(values), [0.1] * len(values))))
    for x, y in re.findall(r'<circle cx="([\d.-]+)" cy="([\d.-]+)"', drawn):
        assert 0 <= float(x) <= 300
        assert 0 <= float(y) <= 180
    assert drawn.count("<circle") == sum(v is not None and (not log or v > 0) for v in values)


def test_the_longest_trainings_come_first(tmp_path):
    for epochs, penalty in ((1, 0.0), (100, 0.0), (30, 0.01), (30, 0.0)):
        write_run(tmp_path, RunSpec(rule="dfa", epochs=epochs, penalty=penalty))
    shown = [s["setting"].partition(" · cifar10 · ")[2] for s in page_data(read_records(tmp_path))["settings"]]
    assert shown == ["100 epochs · plain", "30 epochs · plain", "1 epoch · plain", "λ 0.01 · 30 epochs · plain"]


def test_figures_without_matplotlib_are_refused_before_any_work(store, tmp_path, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "walkback.replication.figures", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("walkback.replication.forms.save_tables", lambda *_: pytest.fail("worked first"))
    words = ["--tables", str(tmp_path / "t"), "--figures", str(tmp_path / "f")]
    assert cli.run(["report", str(store), *words]) == 2
    assert "Expected matplotlib, which draws the figures, but it is not installed" in capsys.readouterr().err


@pytest.mark.parametrize("opens", [True, False])
def test_the_page_is_opened_where_there_is_a_browser(store, tmp_path, capsys, monkeypatch, opens):
    shown = []
    monkeypatch.setattr("webbrowser.open", lambda url: shown.append(url) or opens)
    page = tmp_path / "page.html"
    assert cli.run(["report", str(store), "--out", str(page), "--open"]) == 0
    assert shown == [page.resolve().as_uri()]
    assert ("No browser could be opened" in capsys.readouterr().err) is not opens
