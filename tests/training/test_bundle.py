"""A trained network on disk: what is saved comes back bit for bit, and damage is said in words."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
import torch
from torch import nn

import walkback as wb
from walkback.selftest import ResidualNet

NET = "walkback.selftest:network"


def tied() -> nn.Module:
    net = ResidualNet(16, 16, 2, 16)
    net.embed.weight = net.out_head.weight
    return net


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a)


@pytest.fixture
def folder(tmp_path):
    model = wb.selftest.network(depth=2, seed=3)
    extra = {"B.0": torch.randn(10, 32, dtype=torch.float64), "V": torch.arange(3)}
    rows = [{"epoch": 0, "h_norm": [1.0, 2.0, 3.0]}, {"epoch": 1, "h_norm": [1.0, 2.0, 400.0]}]
    report = wb.diagnose(model, wb.selftest.batches(2), method_name="DFA")
    wb.save_bundle(tmp_path / "run", model, {"net": NET, "net_options": {"depth": 2}}, extra, rows, report)
    (tmp_path / "run" / "sums.json").unlink()  # as of an earlier version, so that tests may alter its files
    return tmp_path / "run"


def test_everything_comes_back(folder):
    bundle = wb.load_bundle(folder, trust=["walkback.selftest"])
    model = wb.selftest.network(depth=2, seed=3)
    assert same(dict(bundle.weights), model.state_dict())
    assert set(bundle.auxiliaries) == {"B.0", "V"}
    assert bundle.auxiliaries["B.0"].dtype == torch.float64
    assert torch.equal(bundle.auxiliaries["V"], torch.arange(3))
    again = bundle.model()
    assert same(again.state_dict(), model.state_dict())
    assert not again.training
    assert bundle.report() == wb.diagnose(model, wb.selftest.batches(2), method_name="DFA")
    assert [row["epoch"] for row in bundle.trajectory()] == [0, 1]
    assert sorted(p.name for p in folder.iterdir()) == [
        "report.json",
        "spec.json",
        "trajectory.jsonl",
        "weights.safetensors",
    ]


def test_what_was_not_saved_is_not_there(tmp_path):
    bundle = wb.save_bundle(tmp_path / "run", wb.selftest.healthy(), {"net": NET})
    assert (bundle.report(), bundle.trajectory(), dict(bundle.auxiliaries)) == (None, [], {})
    with pytest.raises(wb.FormatError, match="to say how credit was given, but it has no rule, input_shape, classes"):
        bundle.rule(bundle.model())


def test_tied_buffered_half_and_strided_weights_are_saved(tmp_path):
    model = tied()
    model.register_buffer("steps", torch.tensor(7))
    model.out_ln.half()
    model.blocks[0][1].weight = nn.Parameter(torch.randn(16, 16).T)
    bundle = wb.save_bundle(tmp_path / "run", model, {"net": NET})
    assert same(dict(bundle.weights), model.state_dict())


def test_a_compiled_network_is_saved_under_its_own_names(tmp_path):
    model = wb.selftest.healthy()
    bundle = wb.save_bundle(tmp_path / "run", torch.compile(model, backend="eager"), {"net": NET})
    assert same(bundle.model().state_dict(), model.state_dict())


def test_saving_leaves_the_model_alone(tmp_path):
    model = wb.selftest.healthy().train()
    model.embed.weight.grad = torch.ones_like(model.embed.weight)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    wb.save_bundle(tmp_path / "run", model, {"net": NET})
    assert model.training
    assert same(before, model.state_dict())
    assert torch.equal(model.embed.weight.grad, torch.ones_like(model.embed.weight))


def test_saving_again_replaces_the_run(folder):
    wb.save_bundle(folder, wb.selftest.network(depth=3), {"net": NET, "net_options": {"depth": 3}})
    assert len(wb.load_bundle(folder, "walkback").model().blocks) == 3


def test_a_run_that_exploded_can_be_saved_and_judged(tmp_path):
    rows = [
        {"epoch": e, "h_norm": [1.0, v], "g_norm": [1e-3, 1e-3]}
        for e, v in enumerate((2.0, float("inf"), float("nan")))
    ]
    wb.save_bundle(tmp_path / "run", wb.selftest.healthy(), {"net": NET}, trajectory=rows)
    text = (tmp_path / "run" / "trajectory.jsonl").read_text()
    assert [json.loads(line, parse_constant=pytest.fail)["h_norm"][1] for line in text.splitlines()] == [
        2.0,
        "Infinity",
        "NaN",
    ]
    report = wb.judge(tmp_path / "run" / "trajectory.jsonl")
    assert (report.failed, report.run["fired"]["D1"]) == (("D1", "D2"), 1)


@pytest.mark.parametrize(
    ("spec", "rows", "words"),
    [
        ({"net": NET, "seed": float("nan")}, [], "Expected spec to hold what JSON can hold, but: "),
        ({"net": len}, [], "Expected spec to hold what JSON can hold, but: .*not JSON serializable"),
        ({"net": NET}, [{"acc": torch.tensor(0.5)}], "Expected trajectory to hold what JSON can hold, but: "),
    ],
)
def test_what_json_can_not_hold_is_refused_before_anything_is_written(tmp_path, spec, rows, words):
    with pytest.raises(wb.InputError, match=words):
        wb.save_bundle(tmp_path / "run", wb.selftest.healthy(), spec, trajectory=rows)
    assert not (tmp_path / "run").exists()


def test_state_that_is_no_tensor_is_refused(tmp_path):
    class Odd(ResidualNet):
        def get_extra_state(self):
            return {"step": 3}

        def set_extra_state(self, state):
            pass

    with pytest.raises(wb.InputError, match=r"Expected tensors only, but net\._extra_state is a dict"):
        wb.save_bundle(tmp_path / "run", Odd(16, 8, 1, 10), {"net": NET})


def test_a_spec_can_not_claim_another_schema(tmp_path):
    bundle = wb.save_bundle(tmp_path / "run", wb.selftest.healthy(), {"net": NET, "schema": "mine/7"})
    assert bundle.spec["schema"] == "walkback.bundle/1"


def test_a_place_that_can_not_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(wb.FormatError, match=r"Expected to write the bundle to .*file/run, but: "):
        wb.save_bundle(tmp_path / "file" / "run", wb.selftest.healthy(), {"net": NET})


# -- damage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: (f / "spec.json").unlink(), r"Expected a bundle at .*run, .* but there is no spec\.json"),
        (lambda f: (f / "spec.json").write_text("{"), r"spec\.json to be readable as \.json, but: "),
        (lambda f: (f / "spec.json").write_text("[]"), r"spec\.json to be of schema walkback\.bundle/1, but got list"),
        (lambda f: (f / "spec.json").write_text('{"schema": "walkback.bundle/2"}'), r"but got walkback\.bundle/2"),
        (lambda f: (f / "spec.json").write_text('{"net": "x"}'), "but got None"),
        (lambda f: (f / "weights.safetensors").unlink(), r"kept without them\. .*: walkback judge .*report\.json"),
        (
            lambda f: (f / "weights.safetensors").write_bytes(b"junk"),
            r"weights\.safetensors to hold the weights, but: ",
        ),
        (
            lambda f: (f / "weights.safetensors").write_bytes((f / "weights.safetensors").read_bytes()[:-9]),
            r"weights\.safetensors to hold the weights, but: ",
        ),
    ],
    ids=["no spec", "cut spec", "list", "other version", "no version", "no weights", "junk", "cut weights"],
)
def test_a_damaged_bundle_is_refused(folder, damage, words):
    damage(folder)
    with pytest.raises(wb.FormatError, match=words):
        wb.load_bundle(folder)


def test_tensors_of_an_unknown_part_are_refused(folder):
    from safetensors.torch import save_file

    save_file({"optimiser.0": torch.zeros(1)}, folder / "weights.safetensors")
    with pytest.raises(wb.FormatError, match=r"Expected tensors named net\.\* or aux\.\* in .*, but got optimiser\.0"):
        wb.load_bundle(folder)


@pytest.mark.parametrize(
    ("spec", "error", "words"),
    [
        ({}, wb.FormatError, r"spec\.json to name its network under `net`, but got None"),
        ({"net": 3}, wb.FormatError, "under `net`, but got 3"),
        ({"net": "resmlp"}, wb.InputError, "Expected an entry like mymodule:function, but got 'resmlp'"),
        ({"net": "no_such_module:f"}, wb.InputError, "Expected to import no_such_module"),
        ({"net": "walkback.selftest:batches"}, wb.FormatError, r"to return a torch\.nn\.Module, but got list"),
        (
            {"net": NET, "net_options": {"depth": 3}},
            wb.FormatError,
            r"(?s)to fit walkback\.selftest:network, but: .*blocks\.2",
        ),
        ({"net": NET, "net_options": {"width": 3}}, wb.InputError, "unexpected keyword argument 'width'"),
    ],
)
def test_a_network_that_can_not_be_built_is_said(folder, spec, error, words):
    (folder / "spec.json").write_text(json.dumps({"schema": "walkback.bundle/1", **spec}))
    bundle = wb.load_bundle(folder, ["walkback", "no_such_module"])
    with pytest.raises(error, match=words):
        bundle.model()


def test_damaged_side_files_are_refused_when_read(folder):
    (folder / "report.json").write_text("{}")
    (folder / "trajectory.jsonl").write_text('{"epoch": 0}\n{"epo')
    bundle = wb.load_bundle(folder)
    with pytest.raises(wb.FormatError, match=r"report\.json to be a report of schema walkback\.report/2"):
        bundle.report()
    with pytest.raises(wb.FormatError, match=r"trajectory\.jsonl to hold one JSON object per line, but: "):
        bundle.trajectory()


def test_loading_runs_nothing(folder, monkeypatch):
    """Only `model()` imports what the spec names."""
    (folder / "spec.json").write_text(json.dumps({"schema": "walkback.bundle/1", "net": "loaded_too_early:f"}))
    (folder / "loaded_too_early.py").write_text("raise SystemError('ran')\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    bundle = wb.load_bundle(folder, ["loaded_too_early"])
    with pytest.raises(wb.InputError, match="SystemError: ran"):
        bundle.model()


@pytest.mark.parametrize("trust", [[], ["loaded_too"], ["other.loaded_too_early"], "loaded_too_early.more"])
def test_what_a_spec_names_is_not_imported_unless_it_is_trusted(folder, monkeypatch, trust):
    """A stranger's bundle needs no file of code: `os:system` with a command would do."""
    spec = {"schema": "walkback.bundle/1", "net": "loaded_too_early:f", "net_options": {"command": "true"}}
    (folder / "spec.json").write_text(json.dumps(spec))
    (folder / "loaded_too_early.py").write_text("raise SystemError('ran')\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(wb.InputError, match=r"it would import loaded_too_early and call f, with all your rights") as at:
        wb.load_bundle(folder, trust).model()
    assert "--trust loaded_too_early" in str(at.value)
    assert "loaded_too_early" not in sys.modules


def test_a_rule_that_a_spec_names_is_not_imported_either(folder):
    spec = {"net": "resmlp", "rule": "os:system", "rule_options": {"command": "true"}, "net_options": {"depth": 2}}
    (folder / "spec.json").write_text(
        json.dumps({"schema": "walkback.bundle/1", **spec, "input_shape": [16], "classes": 10})
    )
    with pytest.raises(wb.InputError, match="it would import os and call system"):
        wb.load_bundle(folder).rule(wb.selftest.network(depth=2))


@pytest.mark.parametrize("trust", ["", "os; rm", ["a:b"], [3]])
def test_trust_lists_modules(folder, trust):
    with pytest.raises(wb.InputError, match="Expected trust to list modules by name"):
        wb.load_bundle(folder, trust)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"input_shape": [2**40], "classes": 2}, "input_shape in .* to list sizes"),
        ({"input_shape": "3", "classes": 2}, "input_shape in .* to list sizes"),
        ({"input_shape": [3, True], "classes": 2}, "input_shape in .* to list sizes"),
        ({"input_shape": [3], "classes": 0}, "classes in .* to be a whole number above 0"),
        ({"input_shape": [3], "classes": 2, "seed": -1}, "Expected seed: input should be greater"),
        ({"input_shape": [3], "classes": 2, "net_options": []}, "Expected net_options"),
        ({"rule_options": "all"}, "rule_options in .* to be an object"),
    ],
)
def test_a_spec_without_sense_is_refused_at_the_door(folder, fields, words):
    (folder / "spec.json").write_text(json.dumps({"schema": "walkback.bundle/1", "net": "resmlp", **fields}))
    with pytest.raises(wb.FormatError, match=words):
        wb.load_bundle(folder)


def test_saving_again_leaves_nothing_of_what_was_there(tmp_path):
    net, report = wb.selftest.healthy(), wb.diagnose(wb.selftest.healthy(), wb.selftest.batches())
    spec = {"net": "walkback.selftest:healthy"}
    first = wb.save_bundle(tmp_path / "b", net, spec, trajectory=[{"epoch": 1, "note": "a\u2028b"}], report=report)
    assert first.trajectory() == [{"epoch": 1, "note": "a\u2028b"}]
    again = wb.save_bundle(tmp_path / "b", net, spec)
    assert (again.trajectory(), again.report()) == ([], None)


@pytest.mark.parametrize("name", ["width", "depth"])
def test_a_network_that_its_weights_can_not_fill_is_not_built(name, tmp_path):
    shutil.copytree(wb.selftest.BUNDLES / "bp", tmp_path / "b")
    (tmp_path / "b" / "sums.json").unlink(missing_ok=True)
    spec = json.loads((tmp_path / "b" / "spec.json").read_text())
    spec["net_options"][name] = 2**23
    (tmp_path / "b" / "spec.json").write_text(json.dumps(spec))
    with pytest.raises(wb.FormatError, match=f"Expected {name} in .* to fit the weights beside it"):
        wb.load_bundle(tmp_path / "b").model()
