"""Every published figure beside ours: which runs stand for the papers' conventions, and how they are read."""

from __future__ import annotations

import inspect
import json
import re
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import walkback as wb
from made_runs import EXPLODED, HEALTHY, write_run
from made_store import edit
from places import ROOT
from walkback.audit.as_published import AS_PUBLISHED, CHOICES, NETWORKS, READING, SHIFTED
from walkback.audit.plans import ALL_RULES, RULE_OPTIONS, SEEDS, plan, unique
from walkback.audit.records import Records, read_records
from walkback.measures.quantities import QUANTITIES
from walkback.replication.agree import FORMER, agrees, agrees_any
from walkback.replication.conventions import as_published
from walkback.replication.decoded import ASIDE, CHOSEN, EXPLAINED, PLANS, UNMEASURED, decoded, fits
from walkback.replication.decoded_networks import networks
from walkback.replication.published import FIGURES, Figure, figures
from walkback.replication.summaries import others, summary
from walkback.replication.tables import audits
from walkback.training.control import control_spec
from walkback.training.spec import RunSpec

DFA = RunSpec(augment=True, **AS_PUBLISHED["dfa"])
FA = RunSpec(augment=True, **AS_PUBLISHED["fa"])


def row(table, setting: str, rule: str, quantity: str) -> dict[str, str]:
    rows = [dict(zip(table.columns, r)) for r in table.rows]
    (found,) = [r for r in rows if (r["setting"], r["rule"], r["quantity"]) == (setting, rule, quantity)]
    return found


# -- which runs, under which names ---------------------------------------------------------------------------------


def test_runs_of_the_preset_take_the_names_that_tables_ask_for_and_others_are_left_out(tmp_path: Path) -> None:
    ours = [RunSpec(rule="dfa", augment=True), RunSpec(rule="dfa", augment=True, credit_site="reader")]
    for spec in (DFA, control_spec(DFA), *ours, RunSpec(augment=True)):
        write_run(tmp_path, spec, 0.3, **HEALTHY)
    found = {run.spec: run.path.name for run in as_published(read_records(tmp_path))}
    control = RunSpec(rule="dfa", scope="frozen", augment=True)
    assert found == {
        ours[0]: DFA.name,
        control: control_spec(DFA).name,
        RunSpec(augment=True): RunSpec(augment=True).name,
    }


def test_every_run_of_the_plan_is_one_of_the_preset(tmp_path: Path) -> None:
    from walkback.replication.conventions import _own_spec

    specs = unique(spec for name in PLANS for spec in plan(name).specs)
    own = [_own_spec(spec) for spec in specs]
    assert None not in own
    assert len(set(own)) == len(specs), "two runs under one name would hide each other"


def test_the_plan_has_six_rules_on_three_settings() -> None:
    trained = [spec for spec in plan("as-published").specs if spec.scope == "all"]
    settings = {(spec.data, json.dumps(spec.net_options)) for spec in trained}
    assert settings == {("cifar10", "{}"), ("cifar10", '{"width": 512, "depth": 2}'), ("cifar100", "{}")}
    assert len(trained) == len(settings) * len(ALL_RULES) * len(SEEDS)
    assert set(AS_PUBLISHED) == set(ALL_RULES)


def test_eps_steps_give_every_site_credit() -> None:
    """With two steps, as in our own plan, sites 0…L−2 get none, and the stem and early blocks only decay."""
    x, y = torch.randn(32, 8, generator=torch.Generator().manual_seed(0)), torch.arange(32) % 3
    dead = {}
    for name, options in (("preset", AS_PUBLISHED["ep"]["rule_options"]), ("own", RULE_OPTIONS["ep"])):
        net, rule = wb.nets.build("resmlp", (8,), 3, width=16), wb.rules.make("ep", **options)
        wb.rules.set_up(rule, net, x, 3, torch.Generator().manual_seed(0))
        dead[name] = [site for site, share in enumerate(wb.measure(net, [(x, y)], credit=rule).zero_credit) if share]
    assert dead == {"preset": [], "own": [0, 1, 2]}


def test_a_small_cnn_whose_branch_ends_in_a_norm_is_not_of_the_preset(tmp_path: Path) -> None:
    dfa = {"net": "small-cnn", "augment": True, "epochs": 30, **AS_PUBLISHED["dfa"]}
    for options in ({}, NETWORKS["small-cnn"]):
        write_run(tmp_path, RunSpec(**dfa, net_options=options), 0.3, **HEALTHY)
    (run,) = as_published(read_records(tmp_path))
    assert run.spec == RunSpec(net="small-cnn", augment=True, epochs=30, rule="dfa")
    assert "preactivation" in json.loads((run.path / "spec.json").read_text())["net_options"]


def test_every_choice_of_the_preset_is_an_option_and_says_why() -> None:
    fields = {name for rule in AS_PUBLISHED.values() for name in rule} - {"rule"}
    said = {choice.option.split(".")[0] for choice in CHOICES}
    assert fields | set(READING) - {"nudging"} <= said
    options = [*RunSpec.model_fields, *inspect.signature(wb.diagnose).parameters, *QUANTITIES, "control_spec"]
    assert all(choice.option.split(".")[0] in options for choice in CHOICES)
    assert all(choice.reason and choice.source for choice in CHOICES)
    assert READING["pairing"] == "site"
    assert SHIFTED == ("fa",)
    page = (ROOT / "docs/audit.md").read_text(encoding="utf-8").splitlines()
    for c in CHOICES:
        assert f"| {c.convention} (`{c.option}`) | {c.choice} | {c.source}: {c.reason} |" in page


# -- how they are read ---------------------------------------------------------------------------------------------


def test_cosines_of_fa_are_paired_one_site_off_and_all_that_is_made_of_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    below = [None, *rng.uniform(-1, 1, 4).tolist()]
    for spec in (FA, DFA):
        write_run(tmp_path, spec, 0.3, **HEALTHY)
        edit(tmp_path / spec.name, per_layer={"cosine_below": below})
    before = {run.spec.rule: run for run in read_records(tmp_path)}
    after = {run.spec.rule: run for run in as_published(read_records(tmp_path))}
    m = after["fa"].measurements
    assert m.cosine == [*below[1:], None]
    assert m.gamma == pytest.approx(np.mean(below[1:]))
    assert m.deep_cosine == pytest.approx(np.mean(below[2:]))  # sites 1…L−1 of the shifted list
    assert after["dfa"].measurements.cosine == before["dfa"].measurements.cosine
    assert after["dfa"].measurements.gamma == before["dfa"].measurements.gamma
    assert before["fa"].report.per_layer["cosine"] != m.cosine, "the record itself is as it was"


def test_nudging_is_that_of_the_longer_step(tmp_path: Path) -> None:
    write_run(tmp_path, DFA, 0.3, **HEALTHY)
    path = tmp_path / DFA.name
    values = read_records(tmp_path).runs[0].report.values
    edit(path, values={**values, "deep_nudging": -1e-6, "deep_nudging_rms": -1.6e-5})
    (run,) = as_published(read_records(tmp_path))
    assert run.report.values["deep_nudging"] == -1.6e-5


# -- the table -----------------------------------------------------------------------------------------------------


def test_every_published_figure_has_a_row_and_without_runs_none_is_compared(tmp_path: Path) -> None:
    nothing = Records(tmp_path)
    table = decoded(nothing, nothing)
    keys = {(f.where, f.rule, f.what, f.penalty, f.epoch, f.site) for f in FIGURES}
    assert len(table.rows) == len(keys)
    assert {(r[4], r[5], r[6], r[7]) for r in table.rows} == {("–",) * 4}
    assert {r[8].split(":")[0] for r in table.rows} == {"no run of ours yet", "not compared"}
    assert any("walkback train --rule dfa" in line for line in table.missing)


def test_a_record_shows_and_deleting_it_shows_too(tmp_path: Path) -> None:
    write_run(tmp_path / "a", DFA, 0.31, **EXPLODED)
    write_run(tmp_path / "b", RunSpec(rule="dfa", augment=True), 0.40, **HEALTHY)
    table = decoded(read_records(tmp_path / "a"), read_records(tmp_path / "b"))
    acc = row(table, "primary", "DFA", "accuracy")
    assert (acc["as-published, ours"], acc["our default"]) == ("0.310 (n=1)", "0.400 (n=1)")
    assert (acc["agrees?"], acc["default agrees?"]) == ("yes", "no")
    assert acc["what explains the rest"].startswith("tested on one seed: credit of one length")
    shutil.rmtree(tmp_path / "a" / DFA.name)
    gone = decoded(read_records(tmp_path / "a"), read_records(tmp_path / "b"))
    assert row(gone, "primary", "DFA", "accuracy")["as-published, ours"] == "–"
    assert row(gone, "primary", "DFA", "accuracy")["our default"] == "0.400 (n=1)"


def test_the_linear_model_of_the_pixels_is_shown_where_it_is_judged(tmp_path: Path) -> None:
    shutil.copy(ROOT / "evidence/linear_probe.json", tmp_path)
    probe = row(decoded(Records(tmp_path), Records(tmp_path / "none")), "linear-probe", "cifar100", "accuracy")
    known = json.loads((tmp_path / "linear_probe.json").read_text())["probes"]["cifar100"]["accuracy"]
    assert (probe["as-published, ours"], probe["agrees?"]) == (f"{known:.3f}", "no")


def test_what_the_preset_does_not_explain_is_open(tmp_path: Path) -> None:
    write_run(tmp_path, DFA, 0.50, **EXPLODED)
    table = decoded(read_records(tmp_path), Records(tmp_path / "none"))
    assert row(table, "primary", "DFA", "accuracy")["what explains the rest"] == "open"


@pytest.mark.parametrize("renamed", [False, True])
def test_the_frozen_control_is_that_of_the_dfa_stem(
    tmp_path: Path, renamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if renamed:  # what a table calls a rule decides nothing
        monkeypatch.setattr(audits, "RULES", {rule: rule[::-1] for rule in audits.RULES})
    for spec, acc in ((FA, 0.41), (DFA, 0.349)):
        write_run(tmp_path, spec, 0.3, **HEALTHY)
        write_run(tmp_path, control_spec(spec), acc, **HEALTHY)
    table = decoded(read_records(tmp_path), Records(tmp_path / "none"))
    assert row(table, "primary", "frozen", "accuracy")["as-published, ours"] == "0.349 (n=1)"


def test_published_gains_are_over_one_control_for_all_rules_and_widths(tmp_path: Path) -> None:
    """BP's is over the control with a DFA-trained stem on CIFAR-10, that of DFA over BP's on CIFAR-100."""
    wide = {"net_options": {"width": 512, "depth": 2}}
    accuracies = {
        RunSpec(augment=True): 0.61,
        control_spec(RunSpec(augment=True)): 0.42,  # BP's own control: not the one
        control_spec(DFA): 0.35,
        RunSpec(augment=True, **wide): 0.60,
        RunSpec(augment=True, data="cifar100", **AS_PUBLISHED["dfa"]): 0.09,
        RunSpec(augment=True, data="cifar100", scope="frozen", **AS_PUBLISHED["dfa"]): 0.12,
        RunSpec(augment=True, data="cifar100", scope="frozen"): 0.18,
    }
    for spec, acc in accuracies.items():
        write_run(tmp_path, spec, acc, **HEALTHY)
    table = decoded(read_records(tmp_path), read_records(tmp_path))
    for where, rule, gain in (("primary", "BP", 26.0), ("wide-shallow", "BP", 25.0), ("cifar100", "DFA", -9.0)):
        cell = row(table, where, rule, "over frozen, pp")
        assert cell["as-published, ours"] == f"{gain:+.1f} (n=1)"
        assert cell["agrees?"] == "yes"
    assert row(table, "primary", "BP", "over frozen, pp")["our default"].startswith("+19.0")
    assert row(table, "cifar100", "frozen", "accuracy")["as-published, ours"] == "0.180 (n=1)"
    assert row(table, "primary", "DFA", "over frozen, pp")["as-published, ours"] == "–", "no run of it"


@pytest.fixture(scope="module")
def made():
    """The records that are shipped, and the table of all published figures beside them."""
    evidence, results = read_records(ROOT / "evidence/runs"), read_records(ROOT / "results")
    return evidence, results, decoded(evidence, results)


def test_the_tables_in_results_are_those_of_the_records(made) -> None:
    evidence, _, table = made
    for one in (table, networks(evidence)):
        text = (ROOT / f"results/tables/{one.name}.md").read_text(encoding="utf-8")
        assert [line for line in text.splitlines() if line.startswith("| ")] == [
            line for line in one.to_markdown().splitlines() if line.startswith("| ")
        ]
    counts = (ROOT / "results/tables/decoded.md").read_text(encoding="utf-8")
    assert all(note in counts for note in table.notes[:4])


def test_the_page_on_replication_is_that_of_the_records(made) -> None:
    """Its figures are put in by the script that writes it: another record, another page."""
    script = runpy.run_path(str(ROOT / "scripts/replication_page.py"))
    text = (ROOT / "docs/replication.md").read_text(encoding="utf-8")
    assert text == script["page"](*made)
    assert len(text.split()) <= 1500
    assert [part[:2] for part in text.split("\n\n")[1:5]] == ["**", "**", "**", "Ou"], "three sentences come first"


def test_rounding_is_told_apart_by_the_terminal_norm(tmp_path: Path) -> None:
    """What is lost without a norm says nothing of networks that end in one, on whatever data."""
    script = runpy.run_path(str(ROOT / "scripts/replication_page.py"))
    bare = RunSpec(augment=True, rule="dfa", net_options={"terminal_norm": False})
    for spec, error in ((DFA, 3e-7), (FA, 1e-7), (bare, 0.2), (RunSpec(net="small-cnn", augment=True), 1e-3)):
        write_run(tmp_path, spec, 0.3, **HEALTHY)
        values = json.loads((tmp_path / spec.name / "report.json").read_text())["values"]
        edit(tmp_path / spec.name, values={**values, "cosine_error": error})
    text = script["rounding"](list(read_records(tmp_path)), "1e-9")
    assert text.startswith("With a terminal norm no cosine of 2 networks is off by more than 3e-7 in float32")
    assert text.endswith("Without one it is there, where D2 passes: DFA on resmlp 0.20 at ‖g_L‖ 4e-4.")
    shutil.rmtree(tmp_path / bare.name)
    assert "Without one" not in script["rounding"](list(read_records(tmp_path)), "1e-9")


def test_the_power_of_the_weights_is_that_of_the_records(tmp_path: Path) -> None:
    def at(epoch: int) -> dict[str, object]:
        return {"product": [(1.0 + epoch) ** 2, 1.0, 1.0, 1.0], "h": (1.0, 1.0, 1.0, 1.0, 5 * (1.0 + epoch) ** 2.5)}

    write_run(tmp_path, DFA, 0.3, at=at, **{**HEALTHY, **at(100)})
    (run,) = read_records(tmp_path)
    power = runpy.run_path(str(ROOT / "scripts/replication_page.py"))["_power"]
    assert power(run) == pytest.approx(2.5)


def test_a_network_shows_both_pairings_its_rounding_and_what_its_blocks_are_worth(tmp_path: Path) -> None:
    write_run(tmp_path, FA, 0.3, **HEALTHY)
    edit(tmp_path / FA.name, per_layer={"cosine_below": [None, 0.1, 0.2, 0.3, 0.9]})
    (row,) = [dict(zip(table.columns, r)) for table in [networks(read_records(tmp_path))] for r in table.rows]
    assert (row["rule"], row["seed"], row["one site off"]) == ("FA", "42", "+0.10, +0.20, +0.30, +0.90")
    assert row["blocks worth, pp"] == "–"


@pytest.mark.parametrize("patterns", [CHOSEN, EXPLAINED, UNMEASURED], ids=["chosen", "explained", "unmeasured"])
def test_each_explanation_fits_a_published_figure_first(patterns) -> None:
    first = {next((i for i, (pattern, *_) in enumerate(patterns) if fits(pattern, f)), None) for f in FIGURES}
    assert first >= set(range(len(patterns))), "one that is never told"
    assert {known for _, known, _ in EXPLAINED} == {ASIDE, "bounded search", "open"}


def test_what_is_tested_is_what_the_preset_has(made) -> None:
    """A choice of the preset explains nothing where the preset does not have the figure either."""
    *_, table = made
    for r in (dict(zip(table.columns, r)) for r in table.rows):
        why = r["what explains the rest"]
        assert not re.match(r"tested(:| on one seed)", why) or (r["agrees?"], r["default agrees?"]) == ("yes", "no")
        assert ("no" in (r["agrees?"], r["default agrees?"])) == why.startswith(("tested", "bounded", "open")), r
        assert (r["agrees?"] == r["default agrees?"] == "–") == why.startswith(("not compared", "no run")), r


def test_a_figure_that_is_not_compared_says_why(tmp_path: Path) -> None:
    write_run(tmp_path, RunSpec(net="vit-mini", rule="dfa", augment=True, epochs=3), 0.2, **EXPLODED)
    table = decoded(Records(tmp_path / "none"), read_records(tmp_path))
    assert row(table, "vit-mini", "DFA", "accuracy")["what explains the rest"] == "not compared: not of 3 epochs"
    assert row(table, "wide", "DFA", "flag growth")["what explains the rest"].startswith("not compared: no run of it")
    assert row(table, "primary", "FA", "ρ")["what explains the rest"] == "no run of ours yet"


def test_depth_flags_by_the_gain_over_the_one_control(tmp_path: Path) -> None:
    """Published: a margin of 1.4 pp flags under 2 and passes under 1. Ours has 1.2 over DFA's control of 100 epochs."""
    rescued = RunSpec(augment=True, epochs=30, penalty=0.01, **AS_PUBLISHED["dfa"])
    for spec, acc in ((rescued, 0.362), (control_spec(DFA), 0.35)):
        write_run(tmp_path, spec, acc, **HEALTHY)
    table = decoded(read_records(tmp_path), Records(tmp_path / "none"))
    setting = "lambda-sweep, λ 0.01"
    found = [row(table, setting, "DFA", what) for what in ("flag depth", "flag depth at 1 pp", "over frozen, pp")]
    assert [f["as-published, ours"] for f in found] == ["flags (n=1)", "ok (n=1)", "+1.2 (n=1)"]
    assert [f["agrees?"] for f in found] == ["yes", "yes", "yes"]


# -- the papers' way in every table --------------------------------------------------------------------------------


def test_a_table_shows_the_papers_way_when_it_is_asked_for(tmp_path: Path) -> None:
    """The command of the page on replication must show the runs that the command before it trained."""
    write_run(tmp_path, DFA, 0.31, **EXPLODED)
    write_run(tmp_path, RunSpec(rule="dfa", augment=True), 0.40, **HEALTHY)
    records = read_records(tmp_path)

    def shown(table) -> str:
        rows = [dict(zip(table.columns, r)) for r in table.rows]
        return next(r["acc"] for r in rows if (r["rule"], r["figures"]) == ("DFA", "ours, augmented"))

    assert shown(summary("primary", records)) == "0.400"
    theirs = summary("primary", records, papers_way=True)
    assert shown(theirs) == "0.310"
    assert "papers' conventions" in theirs.notes[0]
    assert theirs.missing[0] == f"walkback audit as-published --out {tmp_path}   # 107 of its 108 runs"
    assert others(records) == 1


def test_both_readings_of_one_store_stand_side_by_side(tmp_path: Path) -> None:
    write_run(tmp_path, DFA, 0.31, **EXPLODED)
    write_run(tmp_path, RunSpec(rule="dfa", augment=True), 0.40, **HEALTHY)
    acc = row(summary("decoded", read_records(tmp_path)), "primary", "DFA", "accuracy")
    assert (acc["as-published, ours"], acc["our default"]) == ("0.310 (n=1)", "0.400 (n=1)")


def test_an_unknown_table_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(wb.WalkbackError, match="Did you mean 'decoded'"):
        summary("decode", Records(tmp_path))


# -- agreement -----------------------------------------------------------------------------------------------------


def test_the_rule_for_cosines_is_stricter_than_the_former_one() -> None:
    (gamma,) = figures("primary", "fa", what="gamma")
    assert [agrees(0.23 + d, gamma) for d in (0.019, 0.021, 0.049)] == [True, False, False]
    assert [agrees(0.23 + d, gamma, FORMER) for d in (0.049, 0.051)] == [True, False]
    rng = np.random.default_rng(0)
    for figure in FIGURES:
        if not isinstance(figure.value, str):
            for value in (*rng.normal(size=5), *(10.0 ** rng.uniform(-10, 9, 5))):
                assert not agrees(float(value), figure) or agrees(float(value), figure, FORMER), figure


def test_words_agree_word_for_word() -> None:
    (mark,) = figures("two-modes", "dfa", what="flag.penalised")
    assert mark.value == "partial alleviation of both"
    assert agrees("valid reference, aligned credit", mark) is False
    assert agrees_any("flags (2/3)", [Figure("x", "dfa", "flag.growth", "flags", "004")]) is False
