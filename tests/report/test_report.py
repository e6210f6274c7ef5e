"""What a person reads and what a program reads: text, Markdown, LaTeX, JSON, files."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import fields, replace
from functools import cache
from importlib.resources import files
from itertools import pairwise

import jsonschema
import pytest
import torch
from pydantic import ValidationError
from torch import nn

import walkback as wb
from needs import needed
from patience import PATIENCE
from places import ROOT
from walkback.report.formats import report_2
from walkback.report.report import SCHEMA, Report
from walkback.verdict.checks import DiagnosticThresholds

BATCHES = wb.selftest.batches(3)


class Poisoned(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, h):
        return self.inner(h) * float("nan")


class Stages(nn.Module):
    """States that change shape on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(16, 8), nn.Linear(12, 10)
        self.blocks = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 12), nn.Linear(12, 12)])

    def forward(self, x):
        return self.head(self.blocks[2](self.blocks[1](self.blocks[0](self.embed(x)))))


def poisoned() -> nn.Module:
    net = wb.selftest.healthy()
    net.blocks[1] = Poisoned(net.blocks[1])
    return net


def noise(trace: wb.Trace) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(trace.index)
    return [torch.randn(h.shape, generator=generator) for h in trace.states]


@cache
def reports() -> dict[str, Report]:
    """Reports of as many kinds as there are."""
    made = {}
    for case in wb.selftest.cases():
        for edition in ("three-check", "four-diagnostic"):
            made[f"{case.name}, {edition}"] = wb.diagnose(
                case.model, BATCHES, case.headline_acc, case.frozen_acc, edition=edition, method_name=case.name
            )
    healthy = wb.selftest.healthy()
    probes = ("nudging", wb.Perturbation(count=3))
    logs = [{"epoch": e, "h_norm": [1.0, 10.0**e], "g_norm": [1e-3, 10.0 ** (-3 * e)]} for e in range(4)]
    return made | {
        "no claim": wb.diagnose(healthy, BATCHES),
        "one batch": wb.diagnose(healthy, BATCHES[:1], 0.6, 0.3),
        "credit": wb.diagnose(healthy, BATCHES, 0.6, 0.3, credit=noise),
        "BP itself": wb.diagnose(healthy, BATCHES, 0.6, 0.3, credit=lambda t: t.grads),
        "one site carries": wb.diagnose(
            healthy, BATCHES, credit=lambda t: [t.grads[0], *(torch.flip(g, [1]) * 0 + 1 for g in t.grads[1:])]
        ),
        "zero credit": wb.diagnose(healthy, BATCHES, credit=lambda t: [g * 0 for g in t.grads]),
        "probes": wb.diagnose(healthy, BATCHES, 0.6, 0.3, credit=noise, probes=probes, notes="mine"),
        "probes without credit": wb.diagnose(healthy, BATCHES, probes=probes),
        "seeds": wb.diagnose(healthy, BATCHES, [0.60, 0.61, 0.62], [0.30, 0.31, 0.33]),
        "straddles": wb.diagnose(healthy, BATCHES, [0.36, 0.40, 0.37], [0.35, 0.35, 0.35]),
        "intrinsic": wb.diagnose(healthy, BATCHES, 0.6, 0.3, credit=noise, edition="intrinsic"),
        "intrinsic, flagged": wb.diagnose(wb.selftest.absorbing(), BATCHES, 0.6, 0.3, edition="intrinsic"),
        "intrinsic, not measured": wb.judge(
            {"h_norm": [1, 2], "headline_acc": 0.6, "frozen_baseline_acc": 0.3}, "intrinsic"
        ),
        "no depth in the task": wb.diagnose(healthy, BATCHES, 0.35, 0.35, bp_acc=0.36),
        "other thresholds": wb.diagnose(healthy, BATCHES, 0.6, 0.3, thresholds=DiagnosticThresholds(1e-6, 20, 0.5, 1)),
        "half precision": wb.diagnose(wb.selftest.healthy().half(), [(x.half(), y) for x, y in BATCHES]),
        "NaN": wb.diagnose(poisoned(), BATCHES, 0.6, 0.3, credit=noise, probes=probes),
        "stages": wb.diagnose(Stages(), BATCHES, 0.6, 0.3),
        "uneven batches": wb.diagnose(healthy, [(x[:k], y[:k]) for (x, y), k in zip(BATCHES, (128, 7, 99))]),
        "odd name": wb.diagnose(healthy, BATCHES, method_name="DFA_λ=10^{-2} & 50% #1 ~ $x$ \\ ≥", notes="a|b\n*c*"),
        "logged": wb.judge({"h_norm": [1, 2, 300], "g_norm": [1e-3, 1e-5, 1e-9], "headline_acc": 0.3}),
        "logged NaN": wb.judge({"h_norm": [1, float("nan")], "g_norm": [1e-3, float("inf")]}),
        "accuracies only": wb.judge({"headline_acc": 0.6, "frozen_baseline_acc": 0.3}),
        "nothing tested": wb.judge({"headline_acc": 0.6}),
        "half tested": wb.judge({"h_norm": [1, 200]}),
        "deepest only": wb.judge({"h_norm": [1, 2], "g_norm_deepest": 1e-3}),
        "epochs": wb.judge(logs, "four-diagnostic"),
    }


NAMES = list(reports())


@pytest.fixture(params=NAMES)
def report(request) -> Report:
    return reports()[request.param]


# -- JSON ----------------------------------------------------------------------------------------------------------


def schema() -> dict:
    return json.loads(files("walkback").joinpath("schemas/report-2.json").read_text(encoding="utf-8"))


def test_every_report_is_valid_under_the_schema(report):
    def forbidden(token: str) -> float:
        raise AssertionError(f"{token} in JSON")

    data = json.loads(report.to_json(), parse_constant=forbidden)
    jsonschema.Draft202012Validator(schema()).validate(data)
    assert data["schema"] == SCHEMA
    assert list(data)[:4] == ["schema", "method", "edition", "verdict"]


def test_the_schema_that_ships_is_the_one_of_the_model():
    command = "python -m walkback.report.formats.report_2 > src/walkback/schemas/report-2.json"
    assert report_2.json_schema() == schema(), f"the model changed: {command}"


def test_the_model_takes_every_report_and_refuses_what_the_schema_refuses(report):
    good = json.loads(report.to_json())
    report_2.Document.model_validate(good)
    report_2.Document.model_validate(report.to_dict())
    check = jsonschema.Draft202012Validator(schema())
    wrong = {
        "verdict": "trustworthy",
        "failed": ["D1", "D1"],
        "headline_acc": [],
        "values": {**good["values"], "gamma": 1.1},
        "per_layer": {**good["per_layer"], "below_eps": [1.5]},
        "thresholds": {**good["thresholds"], "g_norm_floor": 0},
        "findings": [{**good["findings"][0], "flagged": None, "reason": "", "cause": ""}, *good["findings"][1:]],
        "conditions": {"probe_hash": "0"},
        "run": {"fired": 3},
    }
    for name, value in wrong.items():
        assert not check.is_valid({**good, name: value})
        with pytest.raises(ValidationError):
            report_2.Document.model_validate({**good, name: value})


def test_every_null_has_a_reason(report):
    data = report.to_dict()
    for part in ("values", "per_layer"):
        for name, value in data[part].items():
            if value is None:
                assert data["reasons"].get(name), f"{part}.{name} is null without a reason"


def test_the_schema_is_strict():
    jsonschema.Draft202012Validator.check_schema(schema())
    check = jsonschema.Draft202012Validator(schema())
    good = reports()["probes"].to_dict()
    assert check.is_valid(good)
    for path in ((), ("values",), ("per_layer",), ("thresholds",), ("chain", 0), ("findings", 0), ("notes", 0)):
        bad = json.loads(json.dumps(good))
        inner = bad
        for key in path:
            inner = inner[key]
        inner["surprise"] = 1
        assert not check.is_valid(bad), f"an extra key in {path}"
    for name in schema()["required"]:
        assert not check.is_valid({k: v for k, v in good.items() if k != name}), f"without {name}"
    for note in ({"code": "A Sentence."}, {"site": -1}, {"values": []}, {"text": ""}):
        assert not check.is_valid({**good, "notes": [{**good["notes"][0], **note}]}), f"a note with {note}"
    for cause in ("", "something else"):
        findings = [{**good["findings"][0], "flagged": None, "reason": "why", "cause": cause}, *good["findings"][1:]]
        assert not check.is_valid({**good, "findings": findings}), f"undecided because of {cause!r}"
    for name, wrong in {
        "verdict": "trustworthy",
        "failed": ["c"],
        "measurement_valid": "yes",
        "headline_acc": 60.0,
        "values": {**good["values"], "growth": "2"},
        "per_layer": {**good["per_layer"], "h_norm": ["1"]},
        "edition": "five",
        "schema": "walkback.report/1",
        "reasons": {"growth": None},
        "chain": good["chain"][:3],
        "notes": "n",
        "nonfinite": [{"kind": "loss", "site": 1}],
        "altered": "yes",
        "doubted": {},
        "method": None,
    }.items():
        assert not check.is_valid({**good, name: wrong}), f"{name} = {wrong}"


def test_the_schema_names_every_field_and_types_it():
    described = schema()["properties"]
    assert set(described) == {f.name for f in fields(Report)}
    assert set(described["values"]["properties"]) == set(reports()["probes"].values)
    assert set(described["per_layer"]["properties"]) == set(reports()["probes"].per_layer)
    typed = [
        *described.values(),
        *described["values"]["properties"].values(),
        *described["per_layer"]["properties"].values(),
    ]
    assert all({"type", "enum", "const", "$ref", "oneOf"} & set(one) for one in typed)


def test_lists_run_over_all_sites(report):
    sizes = {len(v) for v in report.per_layer.values() if v is not None}
    assert len(sizes) <= 1


# -- files ---------------------------------------------------------------------------------------------------------


def test_a_saved_report_comes_back_equal(report, tmp_path):
    path = report.save(tmp_path / "deep" / "report.json")
    again = Report.load(path)
    assert again == report
    assert str(again) == str(report)
    assert again.to_latex() == report.to_latex()
    assert list(path.parent.iterdir()) == [path]


def test_a_report_that_is_not_a_number_is_not_written(tmp_path):
    broken = replace(reports()["no claim"], values={"growth": float("nan")})
    with pytest.raises(ValueError, match="JSON compliant"):
        broken.save(tmp_path / "r.json")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_can_not_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(wb.FormatError, match=r"Expected to write the report to .*file/r\.json, but: "):
        reports()["no claim"].save(tmp_path / "file" / "r.json")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t[: len(t) // 2], r"Expected .*r\.json to be readable as \.json, but: "),
        (lambda t: "", r"Expected .*r\.json to be readable as \.json, but: "),
        (lambda t: "[]", r"to be a report of schema walkback\.report/2, but got list\. .*walkback\.judge"),
        (lambda t: '{"h_norm": [1, 2]}', r"to be a report of schema walkback\.report/2, but got dict"),
        (lambda t: t.replace("report/2", "report/3"), r"schema walkback\.report/2, but got walkback\.report/3"),
        (
            lambda t: t.replace("report/2", "report/1"),
            r"report of walkback\.report/1, with advisories as a list, but got",
        ),
        (lambda t: t.replace('"verdict"', '"verdikt"'), "with verdict as a string, but got nothing"),
        (lambda t: json.dumps({**json.loads(t), "failed": "D1"}), "with failed as a list, but got str"),
        (lambda t: json.dumps({**json.loads(t), "notes": "mine"}), "with notes as a list, but got str"),
        (lambda t: json.dumps({**json.loads(t), "notes": ["mine"]}), r"the fields of walkback\.report/2, but: "),
        (lambda t: json.dumps({**json.loads(t), "notes": [{"text": "mine"}]}), "but: 'code'"),
        (lambda t: json.dumps({**json.loads(t), "values": 3}), "with values as an object, but got int"),
        (lambda t: json.dumps({**json.loads(t), "later": 3}), "unexpected keyword argument 'later'"),
    ],
    ids=[
        "cut",
        "empty",
        "list",
        "other dict",
        "other version",
        "older version",
        "no verdict",
        "wrong list",
        "notes as one text",
        "notes as texts",
        "a note without a code",
        "wrong object",
        "more",
    ],
)
def test_damaged_files_and_other_versions_are_refused(tmp_path, change, words):
    path = tmp_path / "r.json"
    path.write_text(change(reports()["credit"].to_json()), encoding="utf-8")
    with pytest.raises(wb.FormatError, match=words):
        Report.load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(wb.FormatError, match=r"Expected a file at .*none\.json, but there is none"):
        Report.load(tmp_path / "none.json")


# -- text ----------------------------------------------------------------------------------------------------------


def count(report: Report) -> int:
    """How many tables: the checks, the layers if there are any, the reference's precision if it was measured."""
    return 1 + any(report.per_layer.values()) + (report.per_layer["absorption"] is not None)


def tables(text: str) -> list[list[str]]:
    """Header, rule and rows of every table in a printed report."""
    lines, found = text.splitlines(), []
    for i, line in enumerate(lines):
        if re.fullmatch(r"-+(  -+)+ *", line):
            end = next((j for j in range(i + 1, len(lines)) if not lines[j]), len(lines))
            found.append(lines[i - 1 : end])
    return found


def test_tables_are_aligned(report):
    found = tables(report.details())
    assert len(found) == count(report)
    for table in found:
        columns = [m.span() for m in re.finditer(r"-+", table[1])]
        width = columns[-1][1]
        gaps = [i for (_, end), (start, _) in pairwise(columns) for i in range(end, start)]
        for row in table:
            assert len(row.rstrip()) <= width, row
            assert all(row.ljust(width)[i] == " " for i in gaps), row


def test_numbers_stand_right_and_words_left():
    layers, checks = tables(reports()["credit"].details())
    spans = [m.span() for m in re.finditer(r"-+", layers[1])]
    for row in layers[2:-1]:
        cells = [row.ljust(spans[-1][1])[a:b] for a, b in spans]
        assert cells[0] == cells[0].strip().ljust(len(cells[0]))
        assert all(cell == cell.strip().rjust(len(cell)) for cell in cells[1:])
    spans = [m.span() for m in re.finditer(r"-+", checks[1])]
    for row in checks[2:]:
        cells = [row.ljust(spans[-1][1])[a:b] for a, b in spans]
        assert all(cells[i] == cells[i].strip().ljust(len(cells[i])) for i in (0, 1, 3, 4))
        assert cells[2] == cells[2].strip().rjust(len(cells[2]))


def test_every_number_of_the_layer_table_is_the_measured_one():
    r = reports()["credit"]
    layers, _ = tables(r.details())
    assert " ".join(layers[0].split()) == "site ‖h‖ growth ‖g‖ cosine clamped under ε 95 % null reads"
    for site, row in enumerate(layers[2:-1]):
        cells = row.split()
        if site == 0:
            cells.insert(2, "")
        assert cells[0] == str(site)
        assert float(cells[1]) == pytest.approx(r.per_layer["h_norm"][site], rel=5e-3)
        assert float(cells[3]) == pytest.approx(r.per_layer["g_norm"][site], rel=5e-3)
        assert float(cells[4]) == pytest.approx(r.per_layer["cosine"][site], abs=6e-4)
        assert float(cells[5]) == pytest.approx(r.per_layer["cosine_clamped"][site], abs=6e-4)
        assert cells[6] == f"{r.per_layer['below_eps'][site]:.0%}"
        low, high = map(float, cells[7].split("…"))
        assert low == pytest.approx(r.per_layer["cosine_low"][site], abs=6e-4)
        assert high == pytest.approx(r.per_layer["cosine_high"][site], abs=6e-4)
        assert float(cells[8].removeprefix("±")) == pytest.approx(r.per_layer["null_high"][site], abs=6e-4)
        assert cells[9] == "noise", "the credit is noise"
        if site:
            ratio = r.per_layer["h_norm"][site] / r.per_layer["h_norm"][site - 1]
            assert float(cells[2].removesuffix("x")) == pytest.approx(ratio, rel=5e-3)


VERDICTS = {
    "healthy, three-check": "passes",
    "healthy, four-diagnostic": "passes",
    "exploded under a terminal norm, three-check": "walked back: D1, D2",
    "exploded under a terminal norm, four-diagnostic": "walked back: a, b",
    "exploded without a terminal norm, three-check": "passes, with D1 flagged (237x; it decides only together with D2)",
    "exploded without a terminal norm, four-diagnostic": "walked back: a",
    "healthy, depth unused, three-check": "walked back: D3",
    "healthy, depth unused, four-diagnostic": "walked back: d",
    "NaN": "walked back: D1, D2",
    "no claim": "undecided: depth not tested (give frozen_acc, or --depth)",
    "straddles": "undecided: depth: the 95 % interval -2.5…+7.8 pp straddles the margin of 2 pp "
    "(at this spread 37 more seeds would decide it)",
    "no depth in the task": "undecided: depth not tested: BP itself gains only 1.0 pp over frozen blocks: this task "
    "can't show depth",
    "nothing tested": "undecided: D1 not tested: no state norms were given; D2 not tested: no gradient norms were "
    "given; depth not tested (give frozen_acc, or --depth)",
    "half tested": "undecided: D2 not tested: no gradient norms were given; depth not tested (give frozen_acc, "
    "or --depth); D1 flagged (200x; it decides only together with D2)",
    "intrinsic, not measured": "undecided: D2 not tested: the reference was not computed again in float64",
}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_last_line_is_the_verdict_and_what_decides_it(name):
    r, line = reports()[name], f"VERDICT: {VERDICTS[name]}"
    assert r.details().splitlines()[-1] == line == r.verdict_line
    assert r.to_markdown().splitlines()[-1] == f"**{line}**"
    assert VERDICTS[name].startswith(r.verdict)


def test_the_verdict_is_one_of_three_words_and_undecided_where_a_check_is(report):
    open_ = any(f["flagged"] is None for f in report.findings if f["title"] != "direction stability")
    assert report.verdict == ("walked back" if report.failed else "undecided" if open_ else "passes")
    for f in report.findings:
        if f["flagged"] and f["check"] not in report.failed and f["title"] != "direction stability":
            assert f"{f['check']} flagged (" in report.verdict_line


def test_the_questions_are_answered_apart(report):
    said = {True: "yes", False: "no", None: "not tested"}
    line = report.details().splitlines()[-2]
    depth = "undecided" if report.findings[-1]["cause"] == "straddles" else said[report.depth_used]
    off = report.values["cosine_error"]
    why = "" if off is None else "the reference is altered" if report.altered else f"off float64 by {off:.1g}"
    alone = "of the gradient alone, " * (report.unclamped_exact is True and report.credit_exact is None)
    why = alone + why if why else why
    exact = said[report.unclamped_exact] + (why and f" ({why})")
    start = f"clamped cosine readable: {said[report.clamped_readable]} · unclamped cosine exact: {exact}"
    assert line == f"{start} · depth used: {depth}" + (f" · sub-mode: {report.submode}" if report.submode else "")


def test_the_clamped_cosine_and_the_unclamped_one_are_two_facts():
    """A reference under ε that float64 confirms, and one above it that rounding decides."""
    small = wb.diagnose(wb.selftest.exploded(), BATCHES, probes=("intrinsic",))
    assert (small.clamped_readable, small.unclamped_exact) == (False, True)
    wrong = reports()["intrinsic, flagged"]
    assert (wrong.clamped_readable, wrong.unclamped_exact) == (True, False)
    assert "clamped cosine readable: no · unclamped cosine exact: yes" in small.details()
    assert "clamped cosine readable: yes · unclamped cosine exact: no" in wrong.details()


def test_everything_noted_is_printed(report):
    text = " ".join(report.details().split())
    for note in report.advisories:
        assert f"note: {' '.join(note.split())}" in text
    for finding in report.findings:
        if finding["flagged"] is None:
            assert f"{finding['check']}: {finding['reason']}" in text
    for step in report.chain:
        assert f"{step['step']}. " in text
    assert report.method in str(report)
    assert report.remark in report.details()
    assert report.advisories == tuple(note.text for note in report.notes if note.code != "remark")


def test_no_line_is_too_wide_to_read(report):
    prose = [line for line in report.details().splitlines() if re.match(r" {2,5}\S", line)]
    assert prose
    assert all(len(line) <= 100 for line in prose)


def test_a_report_without_a_name_or_with_none():
    assert wb.diagnose(wb.selftest.healthy(), BATCHES).details().startswith("Network: three-check protocol\n")
    unnamed = wb.diagnose(wb.selftest.healthy(), BATCHES, method_name=None, notes=None)  # type: ignore[arg-type]
    assert (unnamed.method, unnamed.remark) == ("", "")


def test_epochs_at_which_checks_fired_are_printed():
    text = reports()["epochs"].details()
    assert (
        "first flagged: a at epoch 2 in layer 1 (33% left), b at epoch 3 in layer 1 (0% left); 3 epochs in all" in text
    )
    assert "trust lost at epoch 2: 1 of 3 epochs were left, 33% of the compute" in text


def test_a_notebook_shows_markdown():
    r = reports()["credit"]
    assert r._repr_markdown_() == r.to_markdown()


# -- Markdown ------------------------------------------------------------------------------------------------------


def test_markdown_tables_have_as_many_cells_in_every_row(report):
    blocks = re.split(r"\n\s*\n", report.to_markdown())
    found = [block.splitlines() for block in blocks if block.startswith("| ")]
    assert len(found) == count(report)
    for rows in found:
        assert re.fullmatch(r"\|(-+\|)+", rows[1].replace(":", "-"))
        assert len({row.count("|") for row in rows}) == 1


def test_markdown_has_its_parts_in_order(report):
    text = report.to_markdown()
    assert text.startswith("### ")
    marks = [
        "### ",
        "| check",
        "1. **The claim:**",
        "4. **Which failure is it?**",
        "Clamped cosine readable: ",
        "**VERDICT",
    ]
    places = [text.index(mark) for mark in marks]
    assert places == sorted(places)


# -- LaTeX ---------------------------------------------------------------------------------------------------------


def test_latex_is_well_formed(report):
    text = report.to_latex()
    stack = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert stack == []
    bare = re.sub(r"\\[\\{}$&%#_]", "", text)
    depth = 0
    for c in bare:
        depth += {"{": 1, "}": -1}.get(c, 0)
        assert depth >= 0
    assert depth == 0
    assert bare.count("$") % 2 == 0
    assert not set(re.sub(r"\$[^$]*\$", "", bare)) & set("#^~_%"), "a special character is not escaped"
    for columns, body in re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", text, re.DOTALL):
        rows = [line for line in body.splitlines() if line.rstrip().endswith(r"\\")]
        assert rows
        assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {len(columns)}
    assert text.count(r"\toprule") == text.count(r"\midrule") == text.count(r"\bottomrule") == text.count(r"\caption")
    strange = {c for c in text if ord(c) > 255}
    assert not strange, f"LaTeX does not know {strange}"


def test_latex_states_the_thresholds_and_the_verdict():
    text = reports()["exploded under a terminal norm, three-check"].to_latex()
    assert r"D1 flags at $>$ 50, D2 flags at $<$ 1e-07, D3 flags at $<$ 2 pp" in text
    assert "VERDICT: walked back: D1, D2." in text


def test_heads_of_columns_are_escaped_once():
    latex = reports()["credit"].to_latex()
    assert r"& 95 \% &" in latex
    assert r"\textbackslash" not in latex
    assert r"| \< 1e-07 |" in reports()["credit"].to_markdown()


def test_latex_compiles_where_there_is_a_compiler(tmp_path):
    body = "\n".join(r.to_latex() for r in reports().values())
    document = (
        "\\documentclass{article}\n\\usepackage{booktabs}\n\\extrafloats{200}\n\\begin{document}\n%s\n\\end{document}\n"
    )
    (tmp_path / "all.tex").write_text(document % body, encoding="utf-8")
    compiler = shutil.which("pdflatex")
    if compiler is None:
        assert body.count(r"\begin{table}") == body.count(r"\end{table}") >= len(reports())
        return
    run = subprocess.run(
        [compiler, "-interaction=nonstopmode", "-halt-on-error", "all.tex"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-2000:]


# -- packaging -----------------------------------------------------------------------------------------------------


def test_the_schema_is_in_the_wheel(tmp_path):
    needed("hatchling")
    from zipfile import ZipFile

    from hatchling.builders.wheel import WheelBuilder

    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with ZipFile(wheel) as archive:
        packed = json.loads(archive.read("walkback/schemas/report-2.json"))
        assert packed == schema()
        assert {"protocol/__init__.py", "protocol/smoke_test.py", "walkback/py.typed"} <= set(archive.namelist())
