"""The zoo's answers are true, the scores count right, and the command writes thresholds that others read."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import beta

import walkback as wb
from made_runs import EXPLODED, write_run
from made_store import edit
from places import ROOT
from walkback import cli
from walkback.audit.records import read_records
from walkback.calibration import Case, Strength, score, specimen, trained, zoo
from walkback.calibration.rows import kept_rows, read, read_rows
from walkback.calibration.score import case_of, refit, run_cases, scores
from walkback.calibration.zoo import GAIN, OFF, Rescaled, _task, _trained
from walkback.training.control import control_spec
from walkback.training.spec import RunSpec
from walkback.verdict.checks import DiagnosticThresholds

HEALTHY = Strength(alignment=0.7)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# -- the networks are what they say ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["resmlp", "student", "vit-mini"])
def test_a_rescaled_network_is_the_same_function_with_other_states(kind):
    base, (x, y) = _trained(kind, 0), (part[:64] for part in _task()["probe"])
    scales = [1.0, 4.0, 4.0, 2.0**20]
    net = Rescaled(base, scales).double().eval()
    plain, hidden = base(x, return_hidden=True)
    logits, states = net(x, return_hidden=True)
    torch.testing.assert_close(logits, plain, rtol=1e-9, atol=1e-9)
    for h, s, scale in zip(hidden, states, scales):
        torch.testing.assert_close(s, scale * h, rtol=1e-9, atol=1e-9 * scale)
    g = torch.autograd.grad(F.cross_entropy(plain, y), hidden)
    gs = torch.autograd.grad(F.cross_entropy(logits, y), states)
    for a, b, scale in zip(g, gs, scales):
        torch.testing.assert_close(b * scale, a, rtol=1e-7, atol=1e-12)


def test_the_credit_has_the_cosine_it_was_given():
    one = specimen("resmlp", "float64", Strength(alignment=0.3))
    assert wb.measure(one.net, one.batches, credit=one.credit).cosine == pytest.approx([0.3] * 4, abs=1e-9)


def test_a_healthy_specimen_is_usable_and_used():
    one = specimen("resmlp", "float32", HEALTHY)
    assert one.off <= OFF
    assert one.gain > 10 > GAIN
    assert wb.diagnose(one.net, one.batches, one.headline_acc, one.frozen_acc).verdict == "passes"


def test_random_blocks_are_unused_and_loud_ones_do_harm():
    assert abs(specimen("resmlp", "float32", Strength(mix=1.0)).gain) < 5
    loud = specimen("student", "float32", Strength(mix=1.6))
    assert loud.gain < GAIN
    assert loud.gain < 0


def test_a_reference_far_under_the_clamp_is_unusable_and_said_so_by_torch_itself():
    one = specimen("student", "float32", Strength(alignment=0.8, growth=900.0, shrink=1e7))
    assert one.off > OFF
    assert one.off == pytest.approx(0.8, abs=0.01)  # what is reported is zero
    assert specimen("student", "float32", Strength(mix=0.5, alignment=0.8, growth=30.0)).off <= OFF


def test_a_cosine_of_float16_zeros_is_no_number_and_what_is_left_is_right():
    one = specimen("resmlp", "float16", Strength(mix=0.1, alignment=0.7))  # a refitted, confident head
    x, y = one.batches[0]
    logits, hidden = one.net(x, return_hidden=True)
    g = torch.autograd.grad(F.cross_entropy(logits, y), hidden)[-1]
    zero = (g == 0).all(1)
    assert zero.any()
    assert F.cosine_similarity(torch.ones_like(g), g)[zero].isnan().all()  # walkback: ignore[P02]
    assert one.off < 0.05


def test_a_biased_head_drifts():
    assert specimen("student", "float32", Strength(drift=8.0)).drifts
    assert not specimen("student", "float32", HEALTHY).drifts


def test_strengths_are_graded_and_seeded():
    names = [one.name for one in zoo(4, seed=3, nets=["student"], dtypes=["float32"])]
    assert names == [one.name for one in zoo(4, seed=3, nets=["student"], dtypes=["float32"])]
    assert len(set(names)) == 4


def test_unknown_families_are_refused():
    with pytest.raises(wb.InputError, match=r"Expected nets among resmlp, student, vit-mini, but got mlp"):
        next(zoo(1, nets=["mlp"]))
    with pytest.raises(wb.InputError, match=r"Expected dtypes among .*, but got int8"):
        next(zoo(1, dtypes=["int8"]))


# -- scores against independent arithmetic -------------------------------------------------------------------------


def made(values: list[tuple[bool, float]], limit: float) -> list[Case]:
    return [Case(str(i), {"depth": t}, {"depth": {"D3": v < limit}}, {"D3": v}) for i, (t, v) in enumerate(values)]


def test_counts_intervals_and_area():
    rng = np.random.default_rng(0)
    values = [(True, float(v)) for v in rng.normal(0, 2, 40)] + [(False, float(v)) for v in rng.normal(4, 2, 60)]
    (score,) = scores(made(values, 2.0))
    hits = sum(t and v < 2 for t, v in values)
    alarms = sum(not t and v < 2 for t, v in values)
    assert (score.hits, score.misses, score.alarms, score.passes) == (hits, 40 - hits, alarms, 60 - alarms)
    low, high = beta.ppf(0.025, hits, 41 - hits), beta.ppf(0.975, hits + 1, 40 - hits)
    assert score.sensitivity == pytest.approx((hits / 40, low, high))
    pairs = [(a < b) + 0.5 * (a == b) for t, a in values if t for u, b in values if not u]
    assert score.area is not None
    assert score.area[0] == pytest.approx(np.mean(pairs))
    assert score.area[1] < score.area[0] < score.area[2]
    assert score.free is None


def test_a_gap_gives_the_range_without_error_and_a_threshold_inside_it():
    (score,) = scores(made([(True, -3.0), (True, 1.0), (False, 5.0), (False, 9.0)], 2.0))
    assert (score.free, score.best) == ((1.0, 5.0), (3.0, 0))
    assert refit([score]).frozen_acc_margin_pp == 3.0
    assert refit([score]).g_norm_floor == 1e-7  # not fitted: as published


def test_the_best_threshold_has_the_fewest_errors_of_all():
    rng = np.random.default_rng(1)
    values = [(bool(rng.random() < 0.5), float(v)) for v in rng.normal(0, 3, 50)]
    (score,) = scores(made(values, 2.0))
    assert score.best is not None
    brute = min(sum((v < cut) != t for t, v in values) for cut in np.linspace(-12, 12, 4001))
    assert score.best[1] == brute
    assert sum((v < score.best[0]) != t for t, v in values) == brute


def test_undecided_cases_count_in_neither_rate():
    cases = [Case("a", {"depth": True}, {"depth": {"D3": None}}), Case("b", {"depth": True}, {"depth": {"D3": True}})]
    (score,) = scores(cases)
    assert (score.hits, score.misses, score.undecided) == (1, 0, 1)
    assert score.specificity is None
    assert score.area is None


def test_what_is_not_known_is_left_out():
    assert scores([Case("a", {"depth": None}, {"depth": {"D3": True}})]) == []


# -- broken by training -------------------------------------------------------------------------------------------


def test_specs_have_every_rule_length_and_norm_and_are_seeded():
    found = trained.specs(40, seed=1)
    assert found == trained.specs(40, seed=1)
    cells = {(s.rule, s.credit_length, s.net_options["terminal_norm"]) for s in found}
    assert len(cells) == 20
    assert len({s.name for s in found}) == 40


def test_a_trained_row_holds_its_outcome_and_is_judged_again(monkeypatch):
    monkeypatch.setattr(trained, "FIT", 200)
    monkeypatch.setattr(trained, "COMPARE", 400)
    spec = trained.specs(1)[0].model_copy(update={"epochs": 1})
    made = json.loads(json.dumps(trained.row_of(spec), allow_nan=False))
    known = read(made)
    counts = made["paired"]
    assert (counts["both"] + counts["only_ours"]) / counts["samples"] == pytest.approx(known.accuracy, rel=1e-5)
    assert known.off < 0.05
    case = case_of(known, DiagnosticThresholds())
    assert case.truth["depth"] is (known.gain < 2.0)
    assert set(case.changed) == {"three-check", "four-diagnostic", "intrinsic"}
    assert case.values["D1"] == pytest.approx(known.measured[0].growth)


def test_rows_are_kept_and_a_cut_line_is_made_again(tmp_path):
    file, made = tmp_path / "cases.jsonl", []

    def make(name):
        made.append(name)
        return {"name": name}

    wanted = [(name, lambda name=name: make(name)) for name in "abc"]
    assert [row["name"] for row in kept_rows(file, wanted[:2])] == ["a", "b"]
    file.write_text(file.read_text() + '{"name": "c')
    assert [row["name"] for row in read_rows(file)] == ["a", "b"]
    file.write_text(file.read_text().rpartition("\n")[0] + "\n")
    assert [row["name"] for row in kept_rows(file, wanted)] == ["a", "b", "c"]
    assert made == ["a", "b", "c"]


# -- what the documentation says -----------------------------------------------------------------------------------


RESULTS = ROOT / "results"


def test_the_kept_rows_give_the_published_scores(monkeypatch):
    """At least 500 networks, 150 of them trained, and every count of calibration.json follows from their rows."""
    monkeypatch.setattr(score, "_threshold", lambda *_: {})  # areas take a bootstrap each
    published = json.loads((RESULTS / "calibration.json").read_text(encoding="utf-8"))
    rows, specs = read_rows(RESULTS / "calibration-cases.jsonl"), {spec.name for spec in trained.specs(180)}
    limits = DiagnosticThresholds()
    cases = [case_of(read(one), limits) for one in rows]
    broken = [one["name"] in specs for one in rows]
    assert (len(rows) >= 500, sum(broken) >= 150) == (True, True)
    counts = ("question", "check", "hits", "misses", "passes", "alarms", "undecided")
    for name, which in (("generated", False), ("trained", True)):
        found = scores([case for case, is_trained in zip(cases, broken) if is_trained is which], limits)
        expected = [[one[key] for key in counts] for one in published[name]]
        assert [[getattr(one, key) for key in counts] for one in found] == expected
    for edition, (changed, of) in published["changed"].items():
        assert (sum(case.changed[edition] for case in cases), len(cases)) == (changed, of)


def test_the_first_sentence_of_the_page_is_the_worst_figure():
    published = json.loads((RESULTS / "calibration.json").read_text(encoding="utf-8"))
    rates = [
        rate
        for group in ("generated", "trained", "runs")
        for one in published[group]
        for rate, n in (
            (one["sensitivity"], one["hits"] + one["misses"]),
            (one["specificity"], one["passes"] + one["alarms"]),
        )
        if n >= 10
    ]
    value, low, high = min(rates, key=lambda rate: (rate[0], rate[2]))
    words = f"{value:.2f} [{low:.2f}, {high:.2f}]"
    page = (ROOT / "docs/calibration.md").read_text(encoding="utf-8")
    first = page.split("\n\n")[1].replace("\n", " ").split(". ")[0]
    assert words in first
    worst = (RESULTS / "calibration.md").read_text(encoding="utf-8").splitlines()[2]
    assert words in worst
    edition = worst.rpartition("The worst of an edition: ")[2].split(" has a ")
    assert edition[0] in page.split("\n\n")[1]


# -- the command ---------------------------------------------------------------------------------------------------


def test_the_command_prints_and_writes_thresholds_that_diagnose_reads(tmp_path, capsys):
    file = tmp_path / "limits.json"
    small = ["--count", "6", "--nets", "student", "--dtypes", "float32"]
    assert cli.run(["calibrate", *small, "--refit", str(file), "--out", str(tmp_path)]) == 0
    assert "| reference  | D1 " in (tmp_path / "calibration.md").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "calibration.json").read_text(encoding="utf-8"))["conditions"]["seed"] == 0
    said = capsys.readouterr().out
    assert "6 constructed networks" in said
    assert "Verdicts that another probe set of 1,024 samples changes" in said
    assert "three-check" in said
    assert set(json.loads(file.read_text())) == set(vars(wb.DiagnosticThresholds()))
    assert wb.DiagnosticThresholds.load(file).g_norm_floor > 0
    assert cli.run(["calibrate", *small, "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert table["schema"] == "walkback.calibration/1"
    assert len(table["cases"]) == 6


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--count", "0"], "Expected count to be at least 1"),
        (["--nets", "mlp"], "Expected nets among"),
        (["--train", "-1"], "Expected train to be at least 0"),
        (["--part", "1/2"], "Expected --out with --part"),
        (["--part", "3/2", "--out", "somewhere"], "Expected a part as k/n"),
        (["--count", "1", "--results", "nowhere"], "Expected a folder with runs"),
    ],
)
def test_a_wrong_call_says_what_was_expected(words, text, capsys):
    assert cli.run(["calibrate", *words]) == 2
    assert text in capsys.readouterr().err


def test_finished_runs_are_cases(tmp_path):
    """The reference by what the clamp did to the cosine, depth by what re-randomising was found to cost."""
    bp, dfa = (wb.RunSpec(rule=rule, epochs=2, seed=0) for rule in ("bp", "dfa"))
    clamped = write_run(tmp_path, bp, 0.5)
    exact = {"float64_disagreement": [0.0] * 5, "float64_shift": [0.0] * 5}
    edit(clamped, per_layer={"cosine_clamped": [1.0, 1.0, 0.9, 1.0, 1.0], **exact})
    write_run(tmp_path, control_spec(bp), 0.3)
    write_run(tmp_path, dfa, 0.35, **EXPLODED)
    write_run(tmp_path, control_spec(dfa), 0.36)
    outcomes = tmp_path / "outcomes.json"
    outcomes.write_text(json.dumps({"runs": {dfa.name: {"gain_pp": -1.0}}}))
    found = {case.name: case for case in run_cases(read_records(tmp_path), outcomes)}
    assert set(found) == {bp.name, dfa.name}  # controls are not claims
    assert found[bp.name].truth == {"reference": True, "depth": None, "claim": True}
    assert found[dfa.name].truth == {"reference": False, "depth": True, "claim": True}
    assert found[bp.name].said["claim"]["three-check"] is False
    assert found[bp.name].said["claim"]["intrinsic"] is False
    assert found[bp.name].said["claim"]["intrinsic, or clamped"] is True
    assert "intrinsic" not in found[dfa.name].said["claim"]  # not measured there
    assert found[dfa.name].said["depth"]["D3"] is True
    (depth,) = (s for s in scores(list(found.values())) if (s.question, s.check) == ("depth", "D3"))
    assert (depth.hits, depth.misses, depth.passes, depth.alarms) == (1, 0, 0, 0)


@pytest.mark.parametrize(("worth", "truth"), [(-1.0, True), (9.0, False), (2.5, None)])
def test_the_worth_that_a_record_has_is_its_label_and_decides_no_check(tmp_path, worth, truth):
    path = write_run(tmp_path, RunSpec(rule="dfa"), 0.5)
    sizes, parts = {"train": 100, "test": 100}, {"samples": 0.5, "draws": 0.0}
    kept = wb.Depth(worth, (worth - 1, worth + 1), 0.42 + worth / 100, (0.42, 0.42), {"trained": [0.4, 0.5]}, None,
                    None, None, sizes, parts, {"trained": [1e-4]})  # fmt: skip
    report = path / "report.json"
    report.write_text(json.dumps({**json.loads(report.read_text()), "depth": kept.to_dict()}))
    (case,) = run_cases(read_records(tmp_path), tmp_path / "none.json")
    assert case.truth["depth"] is truth
    assert case.said["depth"]["D3"] is None, "it has no control"
    assert case.said["claim"]["three-check"] is False, "of what was tested nothing walks it back"
    labelled = tmp_path / "outcomes.json"
    labelled.write_text(json.dumps({"runs": {case.name: {"gain_pp": 5.0}}}))
    assert run_cases(read_records(tmp_path), labelled)[0].truth["depth"] is False, "a label of the file goes first"


def test_other_thresholds_judge_finished_runs_too(tmp_path):
    write_run(tmp_path, RunSpec(rule="dfa"), 0.3)
    strict = DiagnosticThresholds(h_norm_explosion_ratio=1e-3, g_norm_floor=1e3)
    (usual,), (other,) = (run_cases(read_records(tmp_path), None, limits) for limits in (None, strict))
    flagged = [
        {check for said in case.said.values() for check, flag in said.items() if flag} for case in (usual, other)
    ]
    assert "D1" not in flagged[0]
    assert {"D1", "D2"} <= flagged[1]
