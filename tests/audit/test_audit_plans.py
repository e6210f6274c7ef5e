"""Plans: the runs the papers' tables need, each once, each with its controls; and plans of one's own."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import walkback as wb
from walkback.audit import cost, names, plan
from walkback.audit.plans import RULE_OPTIONS, SEEDS, unique, with_controls
from walkback.audit.records import canonical
from walkback.audit.wording import command
from walkback.cli import run as cli
from walkback.training.setup import AdamW
from walkback.training.spec import RunSpec

SIX = {"bp", "fa", "dfa", "state-bridge", "credit-bridge", "ep"}
THREE = {"bp", "fa", "dfa"}


def trained(name: str) -> list[RunSpec]:
    return [spec for spec in plan(name).specs if spec.scope == "all"]


def cells(name: str, *fields: str) -> set[tuple]:
    return {tuple(getattr(spec, field) for field in fields) for spec in trained(name)}


# -- what the plans hold -------------------------------------------------------------------------------------


def test_the_plans_are_those_that_were_promised() -> None:
    promised = (
        "primary primary-plain wide-shallow wide cross-arch lambda-sweep matched-penalty capacity early-epochs "
        "cifar100 credit-site unit-credit as-published as-published-penalty as-published-networks "
        "feedback-draws full"
    )
    assert names() == tuple(promised.split())


@pytest.mark.parametrize(("name", "augment"), [("primary", True), ("primary-plain", False)])
def test_primary_is_six_rules_on_three_seeds_by_the_recipe(name: str, augment: bool) -> None:
    assert cells(name, "rule", "seed") == {(rule, seed) for rule in SIX for seed in (42, 123, 456)}
    assert len(plan(name).specs) == 36  # BP's matched control is the BP-stem control
    recipe = RunSpec().model_dump(exclude={"rule", "rule_options", "scope", "seed", "augment"})
    for spec in plan(name).specs:
        assert spec.model_dump(exclude={"rule", "rule_options", "scope", "seed", "augment"}) == recipe
        assert (spec.augment, spec.epochs, spec.rule_options) == (augment, 100, RULE_OPTIONS[spec.rule])


def test_widths_and_architectures() -> None:
    assert {str(spec.net_options) for spec in trained("wide-shallow")} == {"{'width': 512, 'depth': 2}"}
    assert {str(spec.net_options) for spec in trained("wide")} == {"{'width': 512}"}
    found: dict[tuple, set[str]] = {}
    for spec in trained("cross-arch"):
        key = (spec.net, spec.data, spec.epochs, spec.net_options.get("terminal_norm", True))
        found.setdefault(key, set()).add(spec.rule)
    assert found == {
        ("vit-mini", "cifar10", 30, True): THREE,
        ("resmlp", "cifar10", 100, False): THREE,
        ("student", "teacher-linear", 100, True): THREE,
        ("small-cnn", "cifar10", 30, True): SIX,
    }
    assert cells("cifar100", "data", "rule") == {("cifar100", rule) for rule in THREE}


def test_interventions() -> None:
    sweep = {"dfa": (0.0, 1e-4, 1e-3, 1e-2, 1e-1), "fa": (0.0, 1e-4, 1e-2), "bp": (0.0, 1e-2)}
    expected = {(rule, value) for rule, values in sweep.items() for value in values}
    assert cells("lambda-sweep", "rule", "penalty") == expected
    four = {"state-bridge", "fa", "credit-bridge", "dfa"}
    assert cells("matched-penalty", "rule", "penalty") == {(rule, 1e-2) for rule in four}
    assert cells("capacity", "rule", "penalty") == {("bp", 0.0), ("bp", 1e-2), ("dfa", 0.0), ("dfa", 1e-2)}
    sites = {(rule, site) for rule in ("fa", "dfa") for site in ("writer", "reader")}
    assert cells("credit-site", "rule", "credit_site") == sites
    assert cells("early-epochs", "rule", "epochs") == {("bp", 30), ("fa", 30), ("dfa", 30), ("dfa", 1)}
    for name in ("lambda-sweep", "matched-penalty", "capacity", "credit-site"):
        assert cells(name, "epochs") == {(30,)}
        assert cells(name, "seed") == {(seed,) for seed in SEEDS}
    unit = {("fa", 0.0, 100), ("dfa", 0.0, 100), ("dfa", 1e-2, 30)}
    assert cells("unit-credit", "rule", "penalty", "epochs") == unit
    assert cells("unit-credit", "credit_site") == {("reader",)}
    assert all(spec.rule_options == {"unit": True} for spec in trained("unit-credit"))


@pytest.mark.parametrize("name", names())
def test_every_run_has_both_controls_matched_in_all_but_its_blocks(name: str) -> None:
    specs = [
        spec for spec in plan(name).specs if "draw_seed" not in spec.rule_options
    ]  # draws are compared, not judged
    matched = ("net", "net_options", "data", "epochs", "optimiser", "seed", "augment")
    conditions = {spec.name: str([getattr(spec, field) for field in matched]) for spec in specs}
    frozen = Counter(
        (conditions[s.name], s.rule, str(s.rule_options), s.credit_length) for s in specs if s.scope == "frozen"
    )
    for spec in specs:
        assert frozen[conditions[spec.name], spec.rule, str(spec.rule_options), spec.credit_length] == 1
        assert frozen[conditions[spec.name], "bp", "{}", "raw"] == 1
    assert len({spec.name for spec in specs}) == len(specs)


def test_full_is_the_union_and_what_plans_share_is_there_once() -> None:
    full = plan("full")
    union = {spec.name for name in names()[:-1] for spec in plan(name).specs}
    assert {spec.name for spec in full.specs} == union
    assert len(full.specs) == len(union) < sum(len(plan(name).specs) for name in names()[:-1])
    assert str(full) == f"full: {len(union)} runs: {full.models} models in {full.settings} settings, and " + (
        f"{len(union) - full.models} frozen controls"
    )
    assert full.models > 125  # the scale of the papers' audit
    assert full.settings >= 15
    for name in ("capacity", "early-epochs", "credit-site"):
        assert any(spec in plan("lambda-sweep").specs for spec in trained(name)), name


def test_feedback_draws_cross_every_draw_with_every_initialisation_and_rename_nothing() -> None:
    specs = plan("feedback-draws").specs
    cells = {(spec.rule_options["draw_seed"], spec.seed) for spec in specs}
    assert len(specs) == len(cells) == 18
    assert {spec.scope for spec in specs} == {"all"}
    # A run that does not name a draw keeps its name, and so does one that writes the default out.
    assert canonical(RunSpec(rule="dfa", rule_options={"draw_seed": None})).name == RunSpec(rule="dfa").name


# -- plans of one's own --------------------------------------------------------------------------------------


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_grid_over_any_field_nested_ones_too(tmp_path: Path) -> None:
    text = """
    about = "mine"
    controls = false
    [fixed]
    data = "teacher"
    optimiser.batch_size = 64
    net_options = {depth = 2}
    [[grid]]
    rule = ["bp", "mine:rule"]
    net_options.width = [8, 16]
    optimiser.lr = [1e-3, 1e-2]
    [[grid]]
    net = "mine.nets:wide"
    net_options = {sizes = [[3, 5]]}
    rule = "ep"
    rule_options.steps = [1, 2]
    seed = [1]
    """
    found = plan(written(tmp_path, text))
    assert (found.name, found.about, len(found.specs)) == ("mine", "mine", 10)
    first = {(s.rule, s.net_options["width"], s.optimiser.lr) for s in found.specs[:8]}
    assert first == {(r, w, lr) for r in ("bp", "mine:rule") for w in (8, 16) for lr in (1e-3, 1e-2)}
    assert {(s.optimiser.batch_size, s.data, s.net_options["depth"]) for s in found.specs} == {(64, "teacher", 2)}
    last = found.specs[-1]
    assert (last.net, last.net_options["sizes"], last.rule_options, last.seed) == (
        "mine.nets:wide", [3, 5], {"steps": 2}, 1,
    )  # fmt: skip


def test_controls_come_along_unless_they_are_not_wanted(tmp_path: Path) -> None:
    text = '[[grid]]\nrule = ["dfa"]\nscope = ["all", "frozen"]\n'
    assert [(s.rule, s.scope) for s in plan(written(tmp_path, text)).specs] == [
        ("dfa", "all"),
        ("dfa", "frozen"),
        ("bp", "frozen"),
    ]
    assert len(plan(written(tmp_path, "controls = false\n" + text)).specs) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"Expected at least one \[\[grid\]\] with a field in it.*but got none"),
        ("[[grid]]\n", r"Expected at least one \[\[grid\]\].*but got an empty one"),
        ("[[grid]]\nrule = []\n", r"\[\[grid\]\] 1: Expected rule to list values, but the list is empty"),
        ("[grid]\nrule = 'bp'\n", r"Expected at least one \[\[grid\]\].*but got one table, written \[grid\]"),
        ("[[grid]]\nrule.name = 'bp'\n", r"\[\[grid\]\] 1: Expected rule"),
        ("[[grid]]\nrule = [['bp', 'fa']]\n", r"\[\[grid\]\] 1: Expected rule"),
        ("[[grid]]\nnet_options.width = 256\n[[grid]]\nrule = 'bp'\n", r"\[\[grid\]\] 2: .*only repeats its default"),
        ("grid = ['x']\n", r"Expected at least one \[\[grid\]\].*but got grid = 'x'"),
        ("[fixed]\nepochs = [1, 2]\n[[grid]]\nrule = 'bp'\n", r"\[fixed\], but got \[1, 2\]. A list is an axis"),
        ("[fixed.optimiser]\nlr = [1, 2]\n[[grid]]\nrule = 'bp'\n", r"optimiser.lr in \[fixed\], but got \[1, 2\]"),
        ("[[grid]]\nepochs = true\n", r"Expected epochs: input should be a valid integer, but got True"),
        ("[[grid]]\naugment = 'no'\n", r"Expected augment: input should be a valid boolean, but got 'no'"),
        ("[[grid]]\noptimiser.batch_size = '64'\n", r"Expected optimiser.batch_size: .* but got '64'"),
        ("[[gird]]\nrule = 'bp'\n", r"Expected a plan with about, .*grid, but got gird. Did you mean 'grid'"),
        ("controls = 'no'\n[[grid]]\nrule = 'bp'\n", r"Expected controls to be true or false, but got 'no'"),
        ("fixed = 3\n[[grid]]\nrule = 'bp'\n", r"Expected fixed to be a table"),
        ("[[grid]]\npenalti = [0.1]\n", r"Expected a run with net, .* but got penalti. Did you mean 'penalty'\?"),
        ("[[grid]]\noptimiser.learning = 1\n", r"Expected optimiser.name, .*but got optimiser.learning"),
        ("[[grid]]\noptimiser.batchsize = 1\n", r"Did you mean 'batch_size'\?"),
        ("[[grid]]\nrule = 'dfaa'\n", r"Expected rule to be one of bp, .*but got 'dfaa'. Did you mean 'dfa'\?"),
        ("[[grid]]\nnet = 'resmpl'\n", r"Expected net to be one of .* Did you mean 'resmlp'\?"),
        ("[[grid]]\ndata = 'cifar-10'\n", r"Expected data to be one of .* Did you mean 'cifar10'\?"),
        ("[[grid]]\nnet_options.widht = 8\n", r"Expected of resmlp net_options.width, .*Did you mean 'width'\?"),
        ("[[grid]]\nrule = 'ep'\nrule_options.stpes = 8\n", r"Expected of ep rule_options.beta.* mean 'steps'\?"),
        ("[[grid]]\nrule = 'bp'\nrule_options.x = 8\n", r"Expected of bp no options, but got rule_options.x"),
        ("[[grid]]\nepochs = [1, -1]\n", r"\[\[grid\]\] 1: Expected epochs: .*but got -1"),
        ("[[grid]]\nseed = [1, 1]\n", r"Expected every run once, but resmlp-cifar10-bp-all-s1-\w+ is already"),
        ("[[grid]]\nseed = 1\n[[grid]]\nrule = 'bp'\nseed = 1\n", r"\[\[grid\]\] 2: .*one name would be one run"),
        ("[[grid]]\nnet_options.when = 2020-01-01\nnet = 'a:b'\n", r"Expected net_options: .*not json serializable"),
        ("[fixed]\nnet_options = 3\n[[grid]]\nnet_options.width = 3\n", r"Expected net_options to be a table every"),
        ("[[grid]\n", r"Expected .*mine.toml to be TOML, but"),
    ],
)  # fmt: skip
def test_a_plan_with_a_mistake_teaches(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(wb.WalkbackError, match=words):
        plan(written(tmp_path, text))


def test_a_plan_that_begins_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("controls = false\n[[grid]]\nrule = 'bp'\n", encoding="utf-8-sig")
    assert len(plan(path).specs) == 1


def test_numbers_of_numpy_are_numbers() -> None:
    spec = RunSpec(seed=np.int64(3), penalty=np.float32(0.5), augment=np.bool_(True))
    assert spec == RunSpec(seed=3, penalty=0.5, augment=True)
    assert type(spec.seed) is int


def test_a_plan_by_name_as_a_path() -> None:
    assert plan(Path("capacity")) == plan("capacity")
    assert plan(Path("full")).name == "full"


def own_backprop() -> wb.rules.Rule:
    return wb.rules.make("bp")


def test_a_rule_of_ones_own_that_backpropagates_and_a_large_batch_are_timed() -> None:
    own = RunSpec(rule="test_audit_plans:own_backprop", data="teacher", net_options={"width": 8}, epochs=1)
    assert cost.calibrate([own], budget=0.01)[cost.kind(own)] > 0
    data, *_ = cost._sample("cifar10", None, 2048)
    assert len(data.train) == 2048


def test_the_first_step_which_imports_and_allocates_is_no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = [0.0], [0]

    def slow_at_first(x: object, y: object) -> None:
        calls[0] += 1
        clock[0] += 1000.0 if calls[0] == 1 else 0.25

    spec = RunSpec(data="teacher", net_options={"width": 8}, epochs=1)
    monkeypatch.setattr(cost.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(cost.TrainingStep, "of", lambda *_: slow_at_first)
    data, *_ = cost._sample("teacher", None, 512)
    assert cost._seconds_per_step(spec, data, budget=0.1) == 0.25
    assert calls[0] == 2  # the warm-up and one that counts, however small the budget


def test_epochs_that_are_done_of_a_run_that_was_stopped_cost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "calibrate", lambda specs, root: dict.fromkeys(map(cost.kind, specs), 36.0))
    monkeypatch.setattr(cost.store, "state", lambda *_: cost.store.State("begun"))
    monkeypatch.setattr(cost.store, "progress", lambda *_: {"epoch": 9})
    (found,) = cost.costs([plan(written(tmp_path, "controls = false\n[[grid]]\nepochs = 10\n"))], tmp_path)
    assert (found.cpu_hours, found.cpu_hours_left) == (pytest.approx(0.1), pytest.approx(0.01))


def test_options_of_an_executor_are_not_the_audits_own(capsys: pytest.CaptureFixture[str]) -> None:
    for name, words in (("workers", "give it as --workers"), ("quiet", "leave it out")):
        assert cli(["audit", "capacity", "--options", f'{{"{name}": 2}}']) == 2
        assert f"but {name} is one of the audit's own: {words}" in capsys.readouterr().err


def test_a_typo_in_a_plans_name_and_a_missing_file() -> None:
    with pytest.raises(wb.InputError, match=r"Expected a plan \(primary, .* or a .toml .*Did you mean 'capacity'"):
        plan("capasity")
    with pytest.raises(wb.FormatError, match=r"Expected to read the plan no-such.toml, but: .*No such file"):
        plan("no-such.toml")


def test_two_specs_with_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = RunSpec(epochs=1), RunSpec(epochs=2)
    assert unique([one, two, RunSpec(epochs=1)]) == (one, two)
    monkeypatch.setattr(RunSpec, "digest", "0" * 16)
    with pytest.raises(wb.InputError, match=r"two different specs are called resmlp-cifar10-bp-all-s42-0000"):
        unique([one, two])


def test_controls_of_controls_are_none() -> None:
    frozen = RunSpec(rule="dfa", scope="frozen")
    assert with_controls([frozen]) == (frozen,)


# -- what they cost ------------------------------------------------------------------------------------------


def test_cost_follows_epochs_and_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "calibrate", lambda specs, root: dict.fromkeys(map(cost.kind, specs), 36.0))
    text = "controls = false\n[[grid]]\nepochs = [10, 30]\n"
    found = plan(written(tmp_path, text))
    (first,) = cost.costs([found], tmp_path)
    assert (first.finished, first.cpu_hours, first.cpu_hours_left) == (0, pytest.approx(0.4), pytest.approx(0.4))
    monkeypatch.setattr(
        cost.store, "state", lambda _, spec: cost.store.State("finished" if spec.epochs == 30 else "new")
    )
    (then,) = cost.costs([found], tmp_path)
    assert (then.finished, then.cpu_hours, then.cpu_hours_left) == (1, pytest.approx(0.4), pytest.approx(0.1))


def test_a_calibration_tells_a_small_kind_from_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that goes on by a second for each weight that a step moves."""
    now, step = 0.0, AdamW.step

    def counted(optimiser: AdamW) -> None:
        nonlocal now
        step(optimiser)
        now += sum(p.numel() for group in optimiser.param_groups for p in group["params"])

    monkeypatch.setattr(AdamW, "step", counted)
    monkeypatch.setattr(cost, "time", SimpleNamespace(perf_counter=lambda: now))
    small, large = (RunSpec(net_options={"width": width}, rule="dfa") for width in (8, 512))
    found = cost.calibrate([small, large, RunSpec(net_options={"width": 8}, rule="dfa", seed=1)], budget=0.4)
    assert len(found) == 2
    sizes = [sum(p.numel() for p in wb.nets.build("resmlp", (3, 32, 32), 10, width=w).parameters()) for w in (8, 512)]
    assert found[cost.kind(large)] / found[cost.kind(small)] == pytest.approx(sizes[1] / sizes[0])
    assert found[cost.kind(small)] > sizes[0] * 50_000 / 128, "an epoch is all of the training images, and measuring"


def test_the_list_names_every_plan_with_its_numbers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cost, "calibrate", lambda specs, root: dict.fromkeys(map(cost.kind, specs), 36.0))
    assert cli(["audit", "--list", "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in names():
        row = next(line.split() for line in lines if line.startswith(f"{name} "))
        hours = sum(spec.epochs for spec in plan(name).specs) / 100
        assert row[1:7] == [str(len(plan(name).specs)), str(plan(name).models), str(plan(name).settings), "0",
                            f"{hours:.1f}", f"{hours:.1f}"]  # fmt: skip
    assert cli(["audit", "--list", "capacity", "--json", "--out", str(tmp_path)]) == 0
    assert re.search(r'"plan": "capacity",.*"runs": 18,.*"finished": 0', capsys.readouterr().out, re.DOTALL)


def test_the_command_of_a_spec_trains_that_spec(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """As the tables print it under "Missing", read by the command line again; `full` holds every other plan."""
    got: list[RunSpec] = []

    def caught(spec: RunSpec, *_: object, **__: object) -> None:
        got.append(spec)
        raise wb.InputError("caught")

    monkeypatch.setattr("walkback.training.loop.train", caught)
    own = RunSpec(
        optimiser={"lr": 3e-4, "batch_size": 64}, net_options={"width": 512}, credit_site="reader", penalty=1e-4
    )
    specs = [*{str(s.model_dump(exclude={"seed"})): s for s in plan("full").specs}.values(), own]
    for spec in specs:
        line = shlex.split(command(spec, [spec.seed], Path("some store")))
        assert line[0] == "walkback"
        assert cli(line[1:]) == 2
    assert got == specs
    assert "caught" in capsys.readouterr().err
