"""Margins and their intervals against derivations that share no code: scipy's paired t, numpy's variances."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats
from scipy.stats import false_discovery_control

from made_runs import EXPLODED, HEALTHY, right, write_run
from walkback.audit.discoveries import with_discovery_rate
from walkback.audit.plans import RULE_OPTIONS, plan
from walkback.audit.records import read_records
from walkback.audit.settings import Judged, Setting, judged, left_out, select, setting_of
from walkback.audit.wording import commands, lacking
from walkback.errors import InputError
from walkback.measures.worth import Depth
from walkback.replication.page import page_data, render
from walkback.replication.tables import TABLES, evidence, front_page
from walkback.replication.tables.build import depth_cell
from walkback.replication.tables.controls import _outcome
from walkback.report.table import Stat, stat
from walkback.training.control import control_spec
from walkback.training.spec import RunSpec
from walkback.verdict.checks import DiagnosticThresholds, Finding, depth_utility, paired_margin

T = DiagnosticThresholds()


def draw(seed: int, acc: float, n: int = 10_000) -> np.ndarray:
    return np.random.RandomState(seed).rand(n) < acc


# -- one seed: paired predictions ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_the_binomial_interval_is_that_of_the_paired_differences(seed):
    ours, theirs = draw(seed, 0.5), draw(seed + 10, 0.4)
    margin, interval, *_ = paired_margin(ours.mean(), theirs.mean(), (ours, theirs))
    difference = ours.astype(float) - theirs.astype(float)
    half = stats.norm.ppf(0.975) * np.append(difference, [1, -1]).std() / np.sqrt(len(difference) + 2)
    assert margin == pytest.approx(100 * difference.mean())
    assert interval == pytest.approx((margin - 100 * half, margin + 100 * half))


def test_the_binomial_interval_covers_as_often_as_it_says():
    rng, covered = np.random.RandomState(0), 0
    for _ in range(400):
        shared, a, b = rng.rand(3, 2000)
        ours, theirs = np.where(shared < 0.5, a < 0.5, shared < 0.8), np.where(shared < 0.5, b < 0.4, shared < 0.8)
        low, high = paired_margin(ours.mean(), theirs.mean(), (ours, theirs))[1]
        covered += low <= 100 * 0.5 * (0.5 - 0.4) <= high
    assert 0.92 <= covered / 400 <= 0.98


@pytest.mark.parametrize(("samples", "flagged"), [(16, None), (10_000, True)])
def test_predictions_that_agree_leave_the_doubt_of_so_many_samples(samples, flagged):
    """No spread among sixteen samples does not show that there is none."""
    same = draw(0, 0.4, samples)
    margin, (low, high), *_ = paired_margin(same.mean(), same.mean(), (same, same))
    assert (margin, low) == (0.0, -high)
    # At least what is left where none of so many is seen: the "rule of three" has 3/N of 95 % on one side.
    assert 100 * 2 / samples <= high <= 100 * 4 / samples
    assert depth_utility("D3", same.mean(), same.mean(), T, correct=(same, same)).flagged is flagged
    same_bound = paired_margin(1.0, 1.0, test_samples=samples).interval
    assert same_bound is not None
    assert same_bound[1] >= 100 * 2 / samples


@pytest.mark.parametrize(("samples", "gained", "lost"), [(100, 0.02, 0.0), (300, 0.03, 0.01), (30, 0.9, 0.0)])
def test_the_interval_covers_where_few_samples_tell_networks_apart(samples, gained, lost):
    rng, covered = np.random.RandomState(1), 0
    for a, b, _ in rng.multinomial(samples, [gained, lost, 1 - gained - lost], size=1000):
        counts = {"samples": samples, "both": 0, "only_ours": int(a), "only_frozen": int(b)}
        low, high = paired_margin(a / samples, b / samples, counts).interval or (0.0, 0.0)
        covered += low <= 100 * (gained - lost) <= high
    assert covered / 1000 >= 0.93


@pytest.mark.parametrize(
    ("ours", "theirs", "flagged"),
    [(0.30, 0.20, False), (0.22, 0.20, None), (0.20, 0.25, True)],
)
def test_d3_is_judged_on_the_interval(ours, theirs, flagged):
    pair = right(ours, 1000), right(theirs, 1000, shift=700)
    found = depth_utility("D3", ours, theirs, T, correct=pair)
    assert found.flagged is flagged
    assert found.interval is not None
    low, high = found.interval
    assert (low < 2 <= high) == (flagged is None)
    if flagged is None:
        assert found.straddles
        assert found.reason.startswith("the 95 % interval")


def test_without_predictions_one_seed_has_no_interval():
    assert depth_utility("D3", 0.5, 0.4, T).interval is None


def test_predictions_must_belong_to_the_accuracies():
    with pytest.raises(InputError, match="Expected the same test samples in the same order, but got 10 and 9"):
        paired_margin(0.5, 0.5, (right(0.5, 10), right(0.5, 9)))
    with pytest.raises(InputError, match=r"Expected predictions with headline_acc 0\.6, but 5 of 10 are right"):
        paired_margin(0.6, 0.5, (right(0.5, 10), right(0.5, 10)))


# -- where BP gains nothing either ---------------------------------------------------------------------------


def test_bp_is_compared_with_its_own_control_where_that_is_known():
    weak, strong = 0.30, 0.80
    tested = depth_utility("D3", 0.35, weak, T, bp=0.80)
    assert tested.flagged is False
    untested = depth_utility("D3", 0.35, weak, T, bp=0.80, bp_frozen=strong)
    assert untested.flagged is None
    assert untested.reason == "BP itself gains only 0.0 pp over frozen blocks: this task can't show depth"


# -- over seeds ----------------------------------------------------------------------------------------------


def store(path, accs: dict[str, list[float]], **last):
    """Runs of DFA and BP with their controls, one per seed."""
    for name, values in accs.items():
        rule, _, scope = name.partition("-")
        for seed, acc in zip((42, 123, 456), values):
            spec = RunSpec(rule=rule, seed=seed, epochs=2)
            spec = control_spec(spec) if scope else spec
            numbers = last if name == "dfa" else {}
            write_run(path, spec, acc, **{**HEALTHY, **numbers})
    return read_records(path)


DFA = Setting("dfa", epochs=2)
ACCS = {
    "dfa": [0.31, 0.30, 0.33],
    "dfa-frozen": [0.35, 0.33, 0.36],
    "bp": [0.61, 0.6, 0.62],
    "bp-frozen": [0.45, 0.44, 0.46],
}


def combined(ours: list[float], theirs: list[float]) -> tuple[float, float]:
    """By numpy: the half-widths of seeds and of the shared test samples, added as squares."""
    d = np.stack([right(a).astype(float) - right(b).astype(float) for a, b in zip(ours, theirs)])
    gain, of_seeds = d.mean(), d.mean(1).var(ddof=1) / len(d)
    d = np.c_[d, np.ones(len(d)), -np.ones(len(d))]  # one more sample gained and one lost
    (n, samples), means = d.shape, d.mean(1)
    own = sum((d[s, i] - means[s] - d[:, i].mean() + d.mean()) ** 2 for s in range(n) for i in range(samples)) / (
        (n - 1) * (samples - 1) * n * samples
    )
    shared = max(0.0, d.mean(0).var() / samples - own)
    half = np.hypot(stats.t.ppf(0.975, n - 1) * np.sqrt(of_seeds), stats.norm.ppf(0.975) * np.sqrt(shared))
    return 100 * (gain - half), 100 * (gain + half)


def test_several_seeds_add_the_error_of_the_test_set_to_their_spread(tmp_path):
    j = judged(store(tmp_path, ACCS), DFA)
    assert j.depth.interval == pytest.approx(combined(ACCS["dfa"], ACCS["dfa-frozen"]), rel=1e-6)
    assert set(j.depth.parts) == {"seeds", "samples"}
    assert j.depth.flagged is True
    assert j.depth_bp.interval == pytest.approx(combined(ACCS["dfa"], ACCS["bp-frozen"]), rel=1e-6)
    assert j.word("three-check") == "walked back"
    assert j.failed("three-check") == {"D3": 3}


def test_one_seed_is_judged_on_its_predictions(tmp_path):
    j = judged(store(tmp_path, {k: v[:1] for k, v in ACCS.items()}), DFA)
    difference = right(0.31).astype(float) - right(0.35).astype(float)
    half = 100 * 1.959963984540054 * np.append(difference, [1, -1]).std() / np.sqrt(1002)
    assert j.depth.interval == pytest.approx((-4 - half, -4 + half))


def test_an_interval_across_the_margin_is_undecided(tmp_path):
    j = judged(store(tmp_path, {**ACCS, "dfa": [0.37, 0.36, 0.37]}), DFA)
    assert j.depth.flagged is None
    assert j.word("three-check") == "undecided"
    assert j.tested


def test_only_seeds_with_a_control_are_paired(tmp_path):
    j = judged(store(tmp_path, {**ACCS, "dfa-frozen": ACCS["dfa-frozen"][:2]}), DFA)
    assert len(j.runs) == 3
    assert j.depth.interval == pytest.approx(combined(ACCS["dfa"][:2], ACCS["dfa-frozen"][:2]), rel=1e-6)


def test_without_a_control_depth_is_not_tested_and_says_so(tmp_path):
    j = judged(store(tmp_path, {"dfa": ACCS["dfa"]}), DFA)
    assert j.depth.flagged is None
    assert "frozen_baseline_acc not given" in j.depth.reason
    assert not j.tested
    assert j.word("three-check") == "undecided"


def test_a_task_bp_gains_nothing_on_tests_no_depth(tmp_path):
    j = judged(store(tmp_path, {**ACCS, "bp-frozen": [0.61, 0.6, 0.62]}), DFA)
    assert j.depth.flagged is None
    assert "BP itself gains only 0.0 pp" in j.depth.reason
    assert not j.tested


def test_one_exploding_seed_of_three_is_shown_and_decides_nothing(tmp_path):
    """The interval of the mean decides: so another seed can't by itself turn a pass into a fail."""
    records = store(tmp_path, {k: v for k, v in ACCS.items() if k != "dfa"})
    for seed, acc in zip((42, 123, 456), (0.50, 0.51, 0.52)):
        numbers = EXPLODED if seed == 42 else HEALTHY
        write_run(tmp_path, RunSpec(rule="dfa", seed=seed, epochs=2), acc, **numbers)
    records = read_records(tmp_path)
    j = judged(records, DFA)
    assert (j.word("three-check"), j.failed("three-check")) == ("undecided", {})
    growth = j.pooled["three-check"]["growth"]
    logs = np.log([run.measurements.growth for run in j.runs])
    low, high = stats.t.interval(0.95, 2, logs.mean(), stats.sem(logs))
    assert growth.value == pytest.approx(stats.gmean(np.exp(logs)))
    assert growth.interval == pytest.approx((np.exp(low), np.exp(high)))
    assert growth.straddles
    assert growth.more is not None
    assert growth.more["seeds"] >= 1
    assert j.flagged("growth") == [True, False, False]


def test_seeds_that_all_explode_walk_the_setting_back(tmp_path):
    store(tmp_path, {k: v for k, v in ACCS.items() if k != "dfa"})
    for seed, acc in zip((42, 123, 456), (0.50, 0.51, 0.52)):
        write_run(tmp_path, RunSpec(rule="dfa", seed=seed, epochs=2), acc, **EXPLODED)
    j = judged(read_records(tmp_path), DFA)
    assert (j.word("three-check"), j.failed("three-check")) == ("walked back", {"D1": 3, "D2": 3})


def test_a_decision_that_does_not_stand_beside_the_others_is_reopened(tmp_path):
    records = store(tmp_path, ACCS)
    j = judged(records, DFA)
    assert (j.word("three-check"), j.p < 0.05) == ("walked back", True)
    again = j.without_depth("not beside so many")
    assert (again.word("three-check"), again.failed("three-check"), again.depth.flagged) == ("undecided", {}, None)


def test_a_decision_among_many_says_what_would_make_it_stand(tmp_path):
    """So many more seeds bring the p-value under the level; one seed less does not (SciPy's, of seeds alone)."""
    accs = {**ACCS, "dfa": [0.27, 0.30, 0.29], "dfa-frozen": [0.35, 0.35, 0.36]}
    j, level = judged(store(tmp_path, accs), DFA), 1e-4
    assert j.depth.flagged is True
    assert j.p > level
    again = j.without_depth("beside many", level).depth
    gains = 100 * (np.array(accs["dfa"]) - accs["dfa-frozen"])
    off, shared = abs(gains.mean() - 2), j.depth.parts["samples"]

    def half(seeds: int) -> float:
        spread = stats.t.ppf(1 - level / 2, seeds - 1) * gains.std(ddof=1) / np.sqrt(seeds)
        return float(np.hypot(spread, stats.norm.ppf(1 - level / 2) * shared))

    more = again.more["seeds"]
    assert half(3 + more) < off <= half(2 + more)
    assert again.reason.startswith(f"beside many (at this spread {more} more seeds")
    assert depth_cell(j.without_depth("beside many", level)).text.endswith(f"undecided (among so many) (+{more} seeds)")
    reopened = j.without_depth("beside many", level).pooled["three-check"]["depth"]
    assert (reopened.reason, reopened.more) == (again.reason, again.more)


def close_call(p: float, decided: bool) -> Judged:
    """A setting whose D3 has this p-value."""
    flagged, cause = (True, "") if decided else (None, "straddles")
    depth = Finding("D3", "depth utility", 1.0, 2.0, "< 2 pp", flagged, "", (0.1, 1.9), cause, p=p)
    return Judged(Setting("dfa"), (), depth, None, {})


def test_undecided_settings_count_in_the_false_discovery_rate():
    """Of twenty settings at the margin one is decided by chance. Alone among the decided it would always stand."""
    lucky = {"lucky": close_call(0.04, True)}
    others = {name: close_call(p, False) for name, p in zip("abcdefghijklmnopqrs", np.linspace(0.06, 1.0, 19))}
    found, note = with_discovery_rate({**lucky, **others, "sure": close_call(1e-6, True)})
    stands = false_discovery_control([0.04, *np.linspace(0.06, 1.0, 19), 1e-6]) <= 0.05
    assert [found[name].depth.flagged for name in ("lucky", "sure")] == [True if s else None for s in stands[[0, -1]]]
    assert (found["lucky"].depth.flagged, found["sure"].depth.flagged) == (None, True)
    assert "over the 21 settings whose D3 is tested" in note
    assert note.endswith("of the 2 that are decided alone 1 is undecided by it")
    assert found["a"] is others["a"]
    assert depth_cell(found["lucky"]).text == "+1.0 [+0.1, +1.9] undecided (among so many)"
    assert with_discovery_rate(lucky) == (lucky, "")


def test_tables_and_the_page_hold_the_false_discovery_rate(tmp_path, monkeypatch):
    records = store(tmp_path, {k: [*v] for k, v in ACCS.items()})
    table = evidence("controls", records)
    assert table.columns[4:] == ("rule stem (primary)", "BP stem", "re-randomised", "linear probe")
    shorter = RunSpec(rule="fa", seed=42, epochs=2)
    for spec, acc in ((shorter, 0.37), (control_spec(shorter), 0.35)):
        write_run(tmp_path, spec, acc, **HEALTHY)
    data = page_data(read_records(tmp_path))
    assert "over the 3 settings whose D3 is tested here is held at 5 %" in data["many"]
    assert data["many"] in " ".join(render(data).split())
    assert "false discovery rate" in str(data["latex"])
    monkeypatch.setattr("walkback.audit.discoveries.surviving", lambda ps: [False] * len(ps))
    by_rule = {s["rule"]: s for s in page_data(read_records(tmp_path))["settings"]}
    assert by_rule["DFA"]["verdict"]["word"] == "undecided"
    assert "false discovery rate" in by_rule["DFA"]["d3"]["reason"]


def test_without_controls_seeds_are_judged_on_the_mean_of_their_outcomes(tmp_path):
    store(tmp_path, {"dfa": [0.5, 0.51, 0.52]})
    for worth, path in zip((8.0, 9.0, 8.5), sorted(tmp_path.glob("*/report.json"))):
        parts, sizes = {"samples": 0.5, "draws": 0.2}, {"train": 100, "test": 100}
        kept = Depth(worth, (worth - 1, worth + 1), 0.42 + worth / 100, (0.42, 0.42), {"trained": [0.4, 0.5]}, None,
                     None, None, sizes, parts, {"trained": [1e-4]})  # fmt: skip
        path.write_text(json.dumps({**json.loads(path.read_text()), "depth": kept.to_dict()}))
    records = read_records(tmp_path)
    j = judged(records, DFA)
    assert (j.word("three-check"), j.pooled["three-check"].depth_used) == ("passes", True)
    assert _outcome(j, {}).text == _outcome(j, {run.spec.name: -9.0 for run in j.runs}).text == "+8.5 ± 0.5"
    outcome = j.pooled["three-check"]["outcome"]
    assert (outcome.value, set(outcome.parts)) == (pytest.approx(8.5), {"seeds", "samples", "draws"})
    (row,) = page_data(records)["settings"]
    assert (row["verdict"]["word"], row["depth"]["word"]) == ("passes", "yes")
    assert row["outcome"].startswith("+8.5 pp [")
    # Beside other settings it counts as D3 does.
    assert 0 < j.p < 0.05
    found, note = with_discovery_rate({"mine": j, **{str(i): close_call(0.9, False) for i in range(400)}})
    again = found["mine"].pooled["three-check"]
    assert (again.verdict, again.depth_used, again["outcome"].flagged) == ("undecided", None, None)
    assert set(again["outcome"].more) <= {"seeds", "samples", "draws"}
    assert "would decide it" in again["outcome"].reason
    assert "over the 401 settings whose D3 or D3-outcome is tested here" in note
    # Of some seeds alone: the mean has none, and says nothing.
    path = sorted(tmp_path.glob("*/report.json"))[0]
    path.write_text(json.dumps({**json.loads(path.read_text()), "depth": None}))
    assert judged(read_records(tmp_path), DFA).word("three-check") == "undecided"


def test_draws_of_b_and_initialisations_share_the_variance(tmp_path):
    """Accuracies that are sums of a part of the draw and a part of the initialisation."""
    draws, inits = np.array([0.0, 1, 2, 3, 4, 5]) / 100, np.array([0.0, 4, 8]) / 100
    cells = {(d, s): 0.3 + a + b for d, a in zip((1, 2, 3, 4, 5, 6), draws) for s, b in zip((42, 123, 456), inits)}
    for spec in plan("feedback-draws").specs:
        write_run(tmp_path, spec, cells[spec.rule_options["draw_seed"], spec.seed])
    table = evidence("feedback-draws", read_records(tmp_path))
    acc = next(row for row in table.data if row["quantity"] == "acc")
    total = draws.var(ddof=1) + inits.var(ddof=1)
    assert acc["from the draw of B"] == pytest.approx(draws.var(ddof=1) / total, abs=0.01)
    assert acc["from the initialisation"] == pytest.approx(inits.var(ddof=1) / total, abs=0.01)
    assert table.missing == ()


@pytest.mark.parametrize("values", [(0.1, 0.2, 0.4), (3.0,), (1e8, 2e8)])
def test_mean_and_deviation_are_numpys(values):
    s = Stat(values)
    assert s.mean == pytest.approx(np.mean(values))
    assert s.std == (None if len(values) == 1 else pytest.approx(np.std(values, ddof=1)))
    assert stat(values) == s
    assert stat([None, *values, float("nan")]) == Stat(values, asked=len(values) + 2), "and of how many it is"
    assert stat([None]) is None


# -- which runs belong together ------------------------------------------------------------------------------


def test_settings_are_told_by_fields_not_by_how_defaults_are_written():
    written = RunSpec(rule="dfa", net_options={"width": 256, "depth": 4, "expansion": 1})
    assert setting_of(written) == setting_of(RunSpec(rule="dfa")) == Setting("dfa")
    assert setting_of(RunSpec(net_options={"width": 512, "depth": 2})).net_options == (("depth", 2), ("width", 512))


@pytest.mark.parametrize(
    "spec",
    [
        RunSpec(rule="dfa", rule_options={"fresh": True}),
        RunSpec(rule="state-bridge", rule_options={"train": False}),
        RunSpec(rule="ep", rule_options={"steps": 0}),
        RunSpec(optimiser={"lr": 0.1}),
    ],
)
def test_ablations_and_other_optimisers_are_in_no_setting_but_named(spec, tmp_path):
    assert setting_of(spec) is None
    folder = write_run(tmp_path, RunSpec(**{**spec.model_dump(), "epochs": 2}))
    records = read_records(tmp_path)
    assert f"- {folder.name}" in front_page([evidence(name, records) for name in TABLES], records)


def test_the_front_page_names_the_runs_that_no_table_shows(tmp_path):
    shown = [RunSpec(rule="dfa"), control_spec(RunSpec(rule="dfa")), RunSpec(rule="fa", epochs=3)]
    shown += [RunSpec(rule="fa", epochs=3, rule_options={"fresh": True})]
    hidden = [RunSpec(rule="dfa", epochs=30, penalty=0.05), RunSpec(net_options={"width": 64})]
    hidden += [RunSpec(rule="dfa", rule_options={"scale": 10.0}), RunSpec(rule="ep", rule_options={"steps": 30})]
    for spec in (*shown, *hidden):
        write_run(tmp_path, spec)
    records = read_records(tmp_path)
    tables = [evidence(name, records) for name in TABLES]
    assert set(left_out(records)) == {spec.name for spec in hidden}
    assert all(f"- {spec.name}" in front_page(tables, records) for spec in hidden)


def test_options_of_a_rule_are_not_mixed_and_only_the_papers_are_shown(tmp_path):
    for seed in (1, 2, 3):
        write_run(tmp_path, RunSpec(rule="ep", epochs=2, seed=seed, rule_options={"steps": 30}), 0.2)
        write_run(tmp_path, RunSpec(rule="my:own", epochs=2, seed=seed, rule_options={"a": seed < 3}), 0.2)
    other = Setting("ep", epochs=2)
    assert select(read_records(tmp_path), other) == ()
    assert len(select(read_records(tmp_path), Setting("my:own", epochs=2))) == 2
    write_run(tmp_path, RunSpec(rule="ep", epochs=2, seed=1, rule_options=RULE_OPTIONS["ep"]), 0.3)
    assert [r.accuracy for r in select(read_records(tmp_path), other)] == [0.3]


def test_what_is_missing_has_the_epochs_of_what_is_there(tmp_path):
    vit = Setting("dfa", net="vit-mini", epochs=30, any_epochs=True)
    assert {spec.epochs for spec in lacking(read_records(tmp_path), vit)} == {30}
    write_run(tmp_path, RunSpec(rule="dfa", net="vit-mini", epochs=50))
    assert {spec.epochs for spec in lacking(read_records(tmp_path), vit)} == {50}


def test_the_longest_runs_are_taken_where_asked(tmp_path):
    for epochs in (2, 5, 3):
        write_run(tmp_path, RunSpec(rule="dfa", epochs=epochs))
    records = read_records(tmp_path)
    (run,) = select(records, Setting("dfa", epochs=30, any_epochs=True))
    assert run.spec.epochs == 5
    assert select(records, Setting("dfa", epochs=30)) == ()


def test_commands_train_exactly_what_is_missing(tmp_path, monkeypatch):
    """Each command is run with training taken out: the specs it asks for are the missing ones."""
    import shlex

    from walkback import cli

    asked = []

    class Stop(InputError):
        pass

    def train(spec, *args, **kwargs):
        asked.append(spec)
        raise Stop("enough")

    monkeypatch.setattr("walkback.training.loop.train", train)
    write_run(tmp_path, RunSpec(rule="ep", epochs=2, rule_options=RULE_OPTIONS["ep"]))
    records = read_records(tmp_path)
    settings = [
        Setting("ep", epochs=2),
        Setting("dfa", net="vit-mini", penalty=1e-2, augment=True, credit_site="reader", epochs=30),
        Setting("fa", net_options=(("depth", 2), ("width", 512))),
    ]
    wanted = [spec for setting in settings for spec in lacking(records, setting)]
    for line in commands(wanted, tmp_path):
        command = line.partition(": ")[2]
        if command.startswith("for s in"):
            head, _, body = command.partition("; do ")
            bodies = [body.removesuffix("; done").replace("$s", seed) for seed in head.split()[3:]]
        else:
            bodies = [command]
        for body in bodies:
            words = shlex.split(body)
            assert words[0] == "walkback"
            cli.run(words[1:])
    assert set(asked) == set(wanted)
    assert len(wanted) == len(asked) == 8 + 9 + 9
