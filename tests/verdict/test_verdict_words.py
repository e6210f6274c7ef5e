"""Verdicts rest on data: sentences can be reworded, three words cover every case, and the line says what decides."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import walkback as wb
from places import ROOT
from walkback.cli import run
from walkback.notes import Note
from walkback.report import page_view, view
from walkback.report.gate import gate
from walkback.report.panels import limits_of
from walkback.report.report import DiagnosticReport
from walkback.sentences import SENTENCES
from walkback.training.watch.history import row_of
from walkback.verdict import checks, outcome
from walkback.verdict.findings import Finding

BATCHES = wb.selftest.batches(8)


def altered() -> nn.Module:
    net = wb.selftest.healthy()
    net.blocks[3].register_full_backward_hook(lambda module, given, out: (-given[0],))
    return net


def poisoned() -> nn.Module:
    net = wb.selftest.healthy()
    with torch.no_grad():
        next(net.blocks[2].parameters()).fill_(float("inf"))
    return net


def reworded(value):
    """Every sentence of a report as another one."""
    if isinstance(value, dict):
        prose = ("text", "reason", "why", "title")
        return {k: "other words" if k in prose and v else reworded(v) for k, v in value.items()}
    return [reworded(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize("edition", ["three-check", "four-diagnostic", "intrinsic"])
@pytest.mark.parametrize("make", [altered, poisoned, wb.selftest.exploded, wb.selftest.healthy])
def test_a_report_is_judged_the_same_whatever_its_sentences_say(make, edition):
    report = wb.diagnose(make(), BATCHES, 0.60, 0.35, probes=["intrinsic"])
    saved = json.loads(report.to_json())
    other = reworded(saved)
    other["reasons"] = dict.fromkeys(other["reasons"], "other words")
    other["notes"] = [{**note, "text": "other words"} for note in other["notes"]]
    before, after = wb.judge(saved, edition), wb.judge(other, edition)
    assert (before.verdict, before.failed) == (after.verdict, after.failed)
    assert (before.altered, before.nonfinite, before.doubted) == (after.altered, after.nonfinite, after.doubted)
    assert [f["flagged"] for f in before.findings] == [f["flagged"] for f in after.findings]
    assert wb.Report.from_dict(other).verdict_line.partition(":")[2].split()[0] == report.verdict.split()[0].rstrip(
        ":,"
    )


def without_titles(value):
    """Numbers, words and marks of a report or page, without what a check is called."""
    if isinstance(value, dict):
        return {k: without_titles(v) for k, v in value.items() if k != "title"}
    return [without_titles(v) for v in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("edition", ["three-check", "four-diagnostic", "intrinsic"])
def test_titles_of_checks_are_for_people(monkeypatch, edition):
    options: dict = {"edition": edition, "credit": lambda trace: trace.grads, "probes": ["intrinsic"]}
    sizes, errors = {"train": 9, "test": 9}, {"samples": 1.0, "draws": 1.0}
    worth = wb.Depth(5.0, (4.0, 6.0), 0.6, (0.55,), {"trained": (0.5,) * 5}, None, None, None, sizes, errors, {})
    judged = [
        (make, wb.Claim(accuracy=0.60, frozen=frozen, depth=depth))
        for make in (wb.selftest.exploded, wb.selftest.healthy, poisoned)
        for frozen, depth in ((0.35, None), (None, None), (0.61, worth))
    ]

    def everything():
        found = []
        for make, claim in judged:
            report = wb.diagnose(make(), BATCHES[:2], claim=claim, **options)
            row = row_of(wb.measure(make(), BATCHES[:2]), (wb.DiagnosticThresholds(), edition), {}, {})
            shown = page_view.view(report), view.finding_rows(report)[1], limits_of(report), report.verdict_line
            found.append([report.to_dict(), *shown, row["flagged"], gate(report).word, len(report.to_html())])
        return found

    def renamed(check, title, *rest, **more):
        return Finding(check, "w" * len(title), *rest, **more)  # as long, for the length of the page

    before = everything()
    monkeypatch.setattr(checks, "Finding", renamed)
    monkeypatch.setattr(outcome, "Finding", renamed)
    after = everything()
    for old, new in zip(before, after):
        for rows in (old[2], new[2]):
            _ = [row.pop(1) for row in rows]
        assert without_titles(old) == without_titles(new)


def test_deleting_every_note_changes_no_verdict():
    for make in (altered, poisoned):
        saved = json.loads(wb.diagnose(make(), BATCHES, 0.60, 0.35).to_json())
        assert wb.judge({**saved, "notes": []}).failed == tuple(saved["failed"])
        assert wb.judge({**saved, "notes": []}).verdict == "walked back"


@pytest.mark.parametrize("now", ["the model's own backward pass is not the derivative of its loss", "non-finite"])
def test_todays_sentences_may_be_improved(monkeypatch, now):
    for code in ("altered-backward", "nonfinite", "unchecked-backward"):
        monkeypatch.setitem(SENTENCES, code, now)
    for make in (altered, poisoned):
        report = wb.diagnose(make(), BATCHES, 0.60, 0.35)
        assert report.verdict == wb.judge(json.loads(report.to_json())).verdict == "walked back"


def test_an_untrained_network_on_random_labels_is_undecided():
    torch.manual_seed(0)
    net = wb.selftest.ResidualNet(16, 32, depth=4, classes=10)
    batches = [(torch.randn(128, 16), torch.randint(10, (128,))) for _ in range(8)]
    report = wb.diagnose(net, batches)
    assert report.verdict == "undecided"
    assert report.verdict_line == "VERDICT: undecided: depth not tested (give frozen_acc, or --depth)"


@pytest.mark.parametrize(
    ("accuracies", "word", "code"),
    [
        ({}, "undecided", 3),
        ({"headline_acc": 0.6, "frozen_baseline_acc": 0.35}, "passes", 0),
        ({"headline_acc": 0.3, "frozen_baseline_acc": 0.35}, "walked back", 1),
        ({"headline_acc": 0.6, "frozen_baseline_acc": 0.35, "bp_acc": 0.36}, "undecided", 3),
        ({"headline_acc": [0.37, 0.38, 0.36], "frozen_baseline_acc": [0.35] * 3}, "undecided", 3),
    ],
)
def test_three_words_and_their_exit_codes(tmp_path, capsys, accuracies, word, code):
    report = wb.diagnose(wb.selftest.healthy(), BATCHES, **accuracies)
    assert report.verdict == word
    assert run(["judge", str(report.save(tmp_path / "r.json"))]) == code
    assert f"VERDICT: {word}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("norms", "edition", "line"),
    [
        (
            {"h_norm": [1.0, 1330.0], "g_norm": [1e-3, 1e-3]},
            "three-check",
            "VERDICT: passes, with D1 flagged (1.33e+03x; it decides only together with D2)",
        ),
        (
            {"h_norm": [1.0, 2.0], "g_norm": [1e-3, 1e-9]},
            "three-check",
            "VERDICT: passes, with D2 flagged (1.00e-09; it decides only together with D1)",
        ),
        (
            {"h_norm": [1.0, 1330.0], "g_norm": [1e-3, 1e-3], "float64_disagreement": [0.0, 0.0]},
            "intrinsic",
            "VERDICT: passes, with D1 flagged (1.33e+03x; it decides nothing alone)",
        ),
        ({"h_norm": [1.0, 1330.0], "g_norm": [1e-3, 1e-3]}, "four-diagnostic", "VERDICT: walked back: a"),
        ({"h_norm": [1.0, 2.0]}, "three-check", "VERDICT: undecided: D2 not tested: no gradient norms were given"),
    ],
)
def test_what_flags_without_deciding_stands_in_the_line(norms, edition, line):
    report = wb.judge({"per_layer": norms, "headline_acc": 0.6, "frozen_baseline_acc": 0.3}, edition)
    assert report.verdict_line == line


def test_the_two_facts_of_a_measurement_can_differ_and_both_are_printed():
    report = wb.diagnose(wb.selftest.exploded(), BATCHES, 0.6, 0.3, probes=["intrinsic"])
    assert (report.clamped_readable, report.unclamped_exact) == (False, True)
    assert "clamped cosine readable: no · unclamped cosine exact: yes (of the gradient alone, off " in report.details()
    assert "measurement valid" not in report.details()
    assert re.search(r"; the intrinsic D2 passes \(gradient off float64 by \de-1\d\)$", report.verdict_line)
    again = wb.judge(report, "intrinsic")
    assert again.verdict == "passes"
    assert re.search(r"; the published D2 flags \(‖g_L‖ 1\.\de-11\)$", again.verdict_line)
    lost = wb.diagnose(wb.selftest.absorbing(), BATCHES, 0.6, 0.3, probes=["intrinsic"])
    assert (lost.verdict, lost.clamped_readable, lost.unclamped_exact) == ("passes", True, False)
    assert "the intrinsic D2 flags" in lost.verdict_line
    wrong = wb.diagnose(altered(), BATCHES, probes=["intrinsic"]).details()  # float64 gives the same wrong gradient
    assert "unclamped cosine exact: no (the reference is altered)" in wrong
    assert "off float64 by" not in wrong
    plain = wb.diagnose(wb.selftest.healthy(), BATCHES, 0.6, 0.3, probes=["intrinsic"])
    assert plain.verdict_line == "VERDICT: passes"


def test_protocol_keeps_the_published_words_and_logic():
    import protocol

    skipped = protocol.diagnose(wb.selftest.healthy(), BATCHES, headline_acc=0.6)
    assert isinstance(skipped, DiagnosticReport)
    assert (skipped.verdict, skipped.verdict_line) == ("trustworthy", "VERDICT: trustworthy")
    assert skipped.to_dict()["verdict"] == "undecided", "what is saved has the three words"
    grown = protocol.diagnose(wb.selftest.exploded_without_norm(), BATCHES, 0.6, 0.3)
    assert (grown.verdict, grown.verdict_line) == ("walked back", "VERDICT: needs walk-back: a")


# -- a credit that is off by one ------------------------------------------------------------------------------------


def rule(name, net):
    made = wb.rules.make(name)
    wb.rules.set_up(made, net, BATCHES[0][0], 10, torch.Generator().manual_seed(3))
    return made


def at_random(trace):
    generator = torch.Generator().manual_seed(trace.index)
    return [torch.randn(h.shape, generator=generator) for h in trace.states]


def against(trace):
    """Against its own gradient, and as good as at a right angle to the next one."""
    pairs = [(g.double(), up.double()) for g, up in zip(trace.grads, (*trace.grads[1:], trace.grads[-1]))]
    along = [(g * up).sum(1, keepdim=True) / (up * up).sum(1, keepdim=True) * up for g, up in pairs]
    return [(1.001 * a - g).float() for a, (g, _) in zip(along, pairs)]


HONEST = {
    "against": lambda net: against,
    "BP": lambda net: wb.rules.BP(),
    "DFA": lambda net: rule("dfa", net),
    "FA": lambda net: rule("fa", net),
    "random": lambda net: at_random,
    "noisy BP": lambda net: lambda t: [g + 2 * g.std() * torch.randn(g.shape) for g in t.grads],
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_credit_is_not_said_to_be_shifted(name):
    torch.manual_seed(0)
    net = wb.selftest.healthy()
    report = wb.diagnose(net, BATCHES, credit=HONEST[name](net))
    assert "shifted-pairing" not in [note.code for note in report.notes]


@pytest.mark.parametrize(
    ("credit", "fits"),
    [
        (lambda t: (*t.grads[1:], t.grads[-1]), "next"),
        (lambda t: (t.grads[0], *t.grads[:-1]), "previous"),
        (lambda t: [g + g.std() * torch.randn(g.shape) for g in (*t.grads[1:], t.grads[-1])], "next"),
    ],
)
def test_a_credit_that_is_off_by_one_is_noted(credit, fits):
    torch.manual_seed(0)
    report = wb.diagnose(wb.selftest.healthy(), BATCHES, credit=credit)
    (note,) = [note for note in report.notes if note.code == "shifted-pairing"]
    assert note.values["fits"] == fits
    assert note.values["shifted"] > note.values["own"]
    assert "with next" in report.details(), "then both columns are shown"
    assert wb.judge(report).notes == report.notes


def test_fa_measured_one_site_off_looks_aligned_at_the_deep_end():
    net = wb.selftest.healthy()
    right = wb.diagnose(net, BATCHES, credit=rule("fa", net))
    published = wb.diagnose(net, BATCHES, credit=rule("fa", net), pairing="shifted")
    assert published.per_layer["cosine"][:-1] == pytest.approx(right.per_layer["cosine_below"][1:], abs=1e-12)
    assert published.values["gamma"] > 0.2 > 0.1 > abs(right.values["gamma"])
    assert "shifted-pairing" in [note.code for note in published.notes]
    assert (right.conditions["pairing"], published.conditions["pairing"]) == ("site", "shifted")


def test_a_pairing_that_is_none_is_refused():
    with pytest.raises(wb.InputError, match="Expected pairing to be one of site, shifted, but got 'other'"):
        wb.diagnose(wb.selftest.healthy(), BATCHES, pairing="other")
    with pytest.raises(wb.InputError, match="Expected a credit with pairing"):
        wb.diagnose(wb.selftest.healthy(), BATCHES, pairing="shifted")


# -- samples without credit --------------------------------------------------------------------------------------


def test_samples_without_credit_count_in_every_average():
    def half(trace):
        return [torch.where(torch.arange(len(g))[:, None] % 4 == 0, 0.0, g) for g in trace.grads]

    net = wb.selftest.healthy()
    all_ = wb.diagnose(net, BATCHES, credit=wb.rules.BP(), probes=["nudging", "perturbation"])
    some = wb.diagnose(net, BATCHES, credit=half, probes=["nudging", "perturbation"])
    assert some.per_layer["zero_credit"] == [0.25] * 5
    assert some.per_layer["cosine"] == pytest.approx([0.75] * 5)
    assert some.values["gamma"] == pytest.approx(0.75)
    assert some.aggregates["samples"] == pytest.approx(0.75)
    assert some.per_layer["perturbation"] == pytest.approx([0.75] * 5, abs=1e-3)
    assert [note.code for note in some.notes].count("zero-credit-site") == 5
    # A quarter of the steps along BP's gradient are not taken: what is left is the mean over the others, times 3/4.
    kept = torch.cat([torch.arange(len(y)) % 4 != 0 for _, y in BATCHES])
    changes = torch.tensor([per_sample_nudge(net, site) for site in range(5)])
    assert some.per_layer["nudging"] == pytest.approx((changes * kept).mean(1).tolist(), rel=1e-6)
    assert all_.per_layer["nudging"] == pytest.approx(changes.mean(1).tolist(), rel=1e-6)


def per_sample_nudge(net, site, eta=0.01):
    """Change of every sample's loss after a step of η along −g at a site, in plain float64 autograd."""
    wide = wb.selftest.healthy().double()
    out = []
    for x, y in BATCHES:
        h = wide.embed(x.double())
        for block in wide.blocks[:site]:
            h = h + block(h)

        def rest(h, y=y):
            for block in wide.blocks[site:]:
                h = h + block(h)
            return nn.functional.cross_entropy(wide.out_head(wide.out_ln(h)), y, reduction="none")

        h = h.detach().requires_grad_()
        (g,) = torch.autograd.grad(rest(h).sum(), [h])
        with torch.no_grad():
            out += (rest(h - eta * g / g.norm(dim=1, keepdim=True)) - rest(h)).tolist()
    return out


def test_a_site_without_any_credit_has_no_cosine():
    def top_only(trace):
        return [torch.zeros_like(h) for h in trace.states[:-1]] + [trace.grads[-1]]

    m = wb.measure(wb.selftest.healthy(), BATCHES, credit=top_only)
    assert m.cosine == [None] * 4 + [pytest.approx(1.0)]
    assert m.gamma is None
    assert "site 0: the credit is zero for every sample" in m.reasons["cosine"]
    assert Note("no-cosine", 0, m.notes[0].values) == m.notes[0]


PROSE = {"title", "text", "reason", "flags_when", "advisories", "verdict_line"}
LOOKS = {"startswith", "endswith", "find", "index", "count", "partition", "match", "search", "fullmatch", "findall"}
# A sentence of report/1, which is pinned; one of Python's own errors; the mark of an empty cell.
MAY_READ = {"report_1.py", "logged_files.py", "decoded.py"}


def is_prose(node: ast.expr) -> bool:
    """`x.reason`, `x["reason"]`, `x.get("reason")`, `reason`, and what these are inside of `str` or `.lower()`."""
    match node:
        case ast.Name(id=name):
            return name in ("reason", "reasons", "sentence", "advisory")
        case ast.Call(func=ast.Attribute(value=of, attr=name)):
            return is_prose(of) or (name == "get" and asks(node.args[:1]))
        case ast.Call(func=ast.Name(id="str")):
            return any(map(is_prose, node.args))
        case ast.Subscript():
            return asks([node.slice])
    return isinstance(node, ast.Attribute) and node.attr in PROSE


def asks(names: list[ast.expr]) -> bool:
    return any(isinstance(name, ast.Constant) and name.value in PROSE for name in names)


def readings_of_prose(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        compared = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOKS:
            compared = [node.func.value, *node.args]
        if any(map(is_prose, compared)):
            yield ast.unparse(node)


@pytest.mark.parametrize(
    "code",
    [
        'f["title"] == UTILITY',
        "note.text.startswith(x)",
        're.match("a", str(f.get("reason")))',
        "x in f.reason",
        "'decide' in reason",
    ],
)
def test_a_reading_of_a_sentence_is_found(code):
    assert list(readings_of_prose(ast.parse(code))) != []


def test_no_code_reads_a_sentence():
    for path in (ROOT / "src").rglob("*.py"):
        if path.name not in MAY_READ:
            assert list(readings_of_prose(ast.parse(path.read_text(encoding="utf-8")))) == [], path.name


def test_every_code_is_in_the_docs():
    page = (ROOT / "docs" / "notes.md").read_text(encoding="utf-8")
    assert [code for code in SENTENCES if f"`{code}`" not in page] == []
