"""Options of networks, rules and runs that can't be: refused in words, before anything is trained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import walkback as wb
from walkback import cli, nets, rules
from walkback.audit.demo import all_numbers
from walkback.data import Dataset, Split
from walkback.rules.rule import set_up
from walkback.training.control import frozen_baseline
from walkback.training.loop import train
from walkback.training.spec import RunSpec

IMAGE, VECTOR = (3, 8, 8), (6,)


def pictures() -> Dataset:
    """Random images of two classes."""
    x = torch.randn(64, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    split = Split(x, torch.arange(64) % 2)
    return Dataset("pictures", split, split, 2)


def vectors(shift: float = 0.0) -> Dataset:
    """Random vectors of two classes."""
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0)) + shift
    split = Split(x, (x[:, 0] > 0).long())
    return Dataset("vectors", split, split, 2)


def others() -> Dataset:
    """Data of the same shape as `vectors`, which a run on those was not trained on."""
    return vectors(0.5)


def batches() -> list:
    """Evaluation batches, and no Dataset."""
    return list(zip(vectors().test.x.split(16), vectors().test.y.split(16)))


def command(capsys: pytest.CaptureFixture[str], *tokens: str) -> tuple[int, str, str]:
    code = cli.run(tokens)
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, out, " ".join(err.split())


@pytest.mark.parametrize(
    ("net", "shape", "options", "words"),
    [
        (
            "small-cnn",
            VECTOR,
            {},
            r"Expected images \(C, H, W\) for small-cnn, but the data has inputs of shape \(6,\)",
        ),
        ("vit-mini", VECTOR, {}, r"Expected images \(C, H, W\) for vit-mini"),
        ("resmlp", VECTOR, {"width": 0}, "Expected width to be a whole number >= 1, but got 0"),
        ("resmlp", VECTOR, {"width": -3}, "Expected width to be a whole number >= 1, but got -3"),
        ("resmlp", VECTOR, {"width": 1.5}, "Expected width to be a whole number >= 1, but got 1.5"),
        ("resmlp", VECTOR, {"width": "8"}, "Expected width to be a whole number >= 1, but got '8'"),
        ("resmlp", VECTOR, {"depth": 0}, "Expected depth to be a whole number >= 1, but got 0"),
        ("resmlp", VECTOR, {"depth": True}, "Expected depth to be a whole number >= 1, but got True"),
        ("resmlp", VECTOR, {"expansion": 0}, "Expected expansion to be a whole number >= 1, but got 0"),
        ("resmlp", VECTOR, {"terminal_norm": "no"}, "Expected terminal_norm to be true or false, but got 'no'"),
        ("resmlp", VECTOR, {"input_shape": [3]}, "Expected net_options without input_shape, which the data decides"),
        ("resmlp", VECTOR, {"name": "x"}, "Expected net_options that resmlp knows, but: .*'name'"),
        ("student", VECTOR, {"depth": 0}, "Expected depth to be a whole number >= 1, but got 0"),
        ("student", VECTOR, {"expansion": 0}, "Expected expansion to be a whole number >= 1"),
        ("small-cnn", IMAGE, {"stride": 0}, "Expected stride to be a whole number >= 1, but got 0"),
        ("vit-mini", IMAGE, {"patch": 0}, "Expected patch to be a whole number >= 1, but got 0"),
        ("vit-mini", IMAGE, {"heads": 3}, "Expected heads to divide width, but got 3 heads for a width of 128"),
        ("os:getcwd", VECTOR, {}, "Expected os:getcwd to run, but it raised TypeError"),
        ("builtins:dict", VECTOR, {}, "Expected builtins:dict to return a torch.nn.Module, but got dict"),
        ("builtins:dict", VECTOR, {"classes": 3}, "Expected net_options without classes"),
    ],
)
def test_networks_that_can_not_be_built(net: str, shape: tuple[int, ...], options: dict, words: str) -> None:
    with pytest.raises(wb.InputError, match=words):
        nets.build(net, shape, 4, **options)


@pytest.mark.parametrize(
    ("rule", "options", "words"),
    [
        ("fa", {"scale": "x"}, "Expected scale to be a finite number > 0, but got 'x'"),
        ("dfa", {"scale": 0}, "Expected scale to be a finite number > 0, but got 0"),
        ("dfa", {"scale": -1.0}, "Expected scale to be a finite number > 0, but got -1.0"),
        ("dfa", {"scale": float("inf")}, "Expected scale to be a finite number > 0, but got inf"),
        ("dfa", {"fresh": "no"}, "Expected fresh to be true or false, but got 'no'"),
        ("dfa", {"name": "x"}, "Expected rule_options that dfa knows, but: .*'name'"),
        ("ep", {"steps": 1.5}, "Expected steps to be a whole number >= 0, but got 1.5"),
        ("ep", {"step_size": 0}, "Expected step_size to be a finite number > 0"),
        ("state-bridge", {"train": "no"}, "Expected train to be true or false, but got 'no'"),
        ("state-bridge", {"hidden": -1}, "Expected hidden to be a finite number > 0, but got -1"),
        ("credit-bridge", {"anchor": -5}, "Expected anchor to be a finite number >= 0, but got -5"),
        ("credit-bridge", {"train": 1}, "Expected train to be true or false, but got 1"),
        ("os:getcwd", {}, "Expected os:getcwd to return a walkback.rules.Rule, but got str"),
    ],
)
def test_rules_that_can_not_be_made(rule: str, options: dict, words: str) -> None:
    with pytest.raises(wb.InputError, match=words):
        rules.make(rule, **options)


@pytest.mark.parametrize("name", ["fa", "dfa"])
def test_images_have_no_readout_token(name: str) -> None:
    net, x = nets.build("small-cnn", IMAGE, 4, width=4, depth=1), torch.zeros(2, *IMAGE)
    with pytest.raises(wb.InputError, match='Expected target "all" for image states'):
        set_up(rules.make(name, target="readout"), net, x, 4, torch.Generator())
    set_up(rules.make(name), net, x, 4, torch.Generator())


@pytest.mark.parametrize("name", ["fa", "dfa", "state-bridge", "credit-bridge", "ep"])
def test_every_rule_says_where_credit_goes(name: str) -> None:
    assert rules.make(name).describe()["target"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"seed": 10**23}, "Expected seed: input should be less than 9223372036854775808"),
        ({"seed": -1}, "Expected seed: input should be greater than or equal to 0, but got -1"),
        ({"penalty": float("inf")}, "Expected penalty: input should be a finite number, but got inf"),
        ({"optimiser": {"lr": float("inf")}}, "Expected optimiser.lr: input should be a finite number, but got inf"),
        ({"optimiser": {"lr": float("nan")}}, "Expected optimiser.lr: "),
        ({"rule_options": {"scale": float("inf")}}, "Expected rule_options: .*json"),
        ({"net_options": {"width": {3}}}, "Expected net_options: .*json"),
    ],
)
def test_specs_that_can_not_be_run(fields: dict, words: str) -> None:
    with pytest.raises(wb.InputError, match=words):
        RunSpec(**fields)


@pytest.mark.parametrize("spec", [{"net": "resmlp"}, lambda: None])
def test_the_control_wants_a_spec(spec) -> None:
    with pytest.raises(wb.InputError, match=f"Expected a RunSpec, .* but got a {type(spec).__name__}"):
        frozen_baseline(spec)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ("--seed 99999999999999999999999", "error: Expected seed: input should be less than"),
        ("--net small-cnn", "error: Expected images (C, H, W) for small-cnn"),
        ("--lr inf", "error: Expected optimiser.lr: input should be a finite number"),
        ("--root /nope", "error: Expected no root for teacher, which is embedded"),
        ("--rule os:getcwd", "error: Expected os:getcwd to return a walkback.rules.Rule, but got str."),
        ('--rule-options {"steps":1.5} --rule ep', "error: Expected steps to be a whole number >= 0, but got 1.5."),
        ("--data os:getcwd", "error: Expected os:getcwd to return a walkback.data.Dataset, but got a str."),
    ],
)
def test_the_command_line_says_so_and_trains_nothing(capsys, tmp_path: Path, tokens: str, words: str) -> None:
    start = [] if "--data" in tokens else ["--data", "teacher"]
    code, out, err = command(capsys, "train", *start, "--epochs", "1", "--out", str(tmp_path / "runs"), *tokens.split())
    assert (code, out) == (2, "")
    assert words in err
    assert "WALKBACK_TRACEBACK" not in err
    assert not (tmp_path / "runs").exists()


# -- a finished run, measured elsewhere ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> wb.Bundle:
    options = {"net_options": {"width": 8, "depth": 2}, "data": "test_options:vectors", "epochs": 1, "rule": "dfa"}
    return train(RunSpec(**options), tmp_path_factory.mktemp("runs"), quiet=True)


@pytest.mark.parametrize(("data", "own"), [(None, True), ("vectors", True), ("others", False), ("batches", False)])
def test_a_run_keeps_its_accuracy_only_on_its_own_data(run, capsys, data: str | None, own: bool) -> None:
    more = [] if data is None else ["--data", f"test_options:{data}"]
    _, out, err = command(capsys, "diagnose", str(run.path), *more, "--trust", "test_options", "--json")
    found = json.loads(out)
    trains = "no frozen control beside it; this trains it: walkback train --rule dfa --data test_options:vectors "
    assert bool(err) is own
    assert err.startswith(f"{trains}--epochs 1 --scope frozen --net-options " if own else "")
    assert found["headline_acc"] == (run.report().headline_acc if own else None)
    assert found["values"]["gamma"] is not None
    assert (found["per_layer"]["h_norm"] == run.report().per_layer["h_norm"]) == own


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ("--data test_options:pictures", "error: Expected inputs of shape (6,), for which the network of "),
        ("--data teacher", "teacher has (16,)."),
        ("--data os:getcwd", "error: Expected eval_batches to be an iterable of (inputs, labels) pairs"),
        ("--device nonsense", "error: Expected a device that torch has here, but got 'nonsense'"),
        ("--data teacher --root /nope", "error: Expected no root for teacher"),
    ],
)
def test_data_that_does_not_fit_a_run(run, capsys, tokens: str, words: str) -> None:
    code, _, err = command(capsys, "diagnose", str(run.path), *tokens.split(), "--trust", "test_options")
    assert (code, "WALKBACK_TRACEBACK" in err) == (2, False)
    assert words in err


@pytest.mark.parametrize("option", ["--root", "--device"])
def test_an_entry_brings_its_own(capsys, option: str) -> None:
    code, _, err = command(capsys, "diagnose", "walkback.selftest:healthy", option, "there")
    assert (code, f"error: Expected {option} only with a bundle" in err) == (2, True)


def test_a_rule_is_rebuilt_where_its_network_is(run) -> None:
    model = run.model().double()
    rule = run.rule(model)
    assert {buffer.dtype for buffer in rule.buffers()} == {torch.float64}
    data = [(x.double(), y) for x, y in batches()]
    assert wb.measure(model, data, credit=rule).gamma is not None


# -- the demo's table ----------------------------------------------------------------------------------------------


def row(**change) -> wb.Report:
    report = wb.diagnose(wb.selftest.healthy(), wb.selftest.batches(2), 0.5, 0.3, bp_acc=0.6, method_name="FA")
    return replace(report, run={"frozen_bp_stem_acc": 0.45, **change})


@pytest.mark.parametrize(("control", "told"), [(0.45, "+5.0 ok"), (0.55, "-5.0 flags"), (0.59, "–"), (0.65, "–")])
def test_d3_is_not_shown_where_bp_does_not_beat_the_control(control: float, told: str) -> None:
    line = all_numbers([row(frozen_bp_stem_acc=control)]).splitlines()[2]
    assert line.split(f"{control:.3f}")[1].strip().startswith(f"{told}  ")


def test_a_diverged_run_is_shown_as_such() -> None:
    assert "diverged" not in all_numbers([row()])
    told = all_numbers(
        [row(diverged="state not finite at site 2", controls_diverged={"frozen": "training loss not finite"})]
    )
    assert told.splitlines()[2].endswith("passes, diverged")
    assert told.splitlines()[-2:] == [
        "FA: it diverged: state not finite at site 2",
        "FA: frozen diverged: training loss not finite",
    ]


def test_an_audit_s_root_is_for_the_data_sets_that_have_files(tmp_path: Path) -> None:
    from walkback.audit.run import check

    check([RunSpec(data="teacher-linear", net="student")], tmp_path)
    with pytest.raises(wb.WalkbackError, match="cifar"):
        check([RunSpec(data="teacher-linear", net="student"), RunSpec(data="cifar10")], tmp_path)
