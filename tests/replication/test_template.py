"""The reporting kit: every field a paper needs, filled from the runs, missing ones by name; and the checklist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from made_runs import EXPLODED, HEALTHY, write_run
from places import ROOT
from walkback import cli
from walkback.audit.records import Records, read_records
from walkback.errors import FormatError, InputError
from walkback.measures.worth import Depth
from walkback.replication.tables import TABLES
from walkback.replication.template import FIELDS, MISSING, fill_template, filled, settings, template
from walkback.training.control import control_spec
from walkback.training.spec import RunSpec


@pytest.fixture(scope="module")
def real() -> str:
    """From a run of ours, with all of its conditions."""
    runs = ROOT / "results" / "runs"
    return filled(read_records(runs))


@pytest.fixture
def store(tmp_path) -> Path:
    """BP and DFA with two seeds and their controls, written by hand: without conditions."""
    for seed, more in ((42, 0.0), (123, 0.01)):
        for rule, acc, numbers in (("bp", 0.60, HEALTHY), ("dfa", 0.30, EXPLODED)):
            spec = RunSpec(rule=rule, seed=seed, optimiser={"lr": 0.005, "batch_size": 64, "schedule": "constant"})
            write_run(tmp_path / "runs", spec, acc + more, **numbers)
            write_run(tmp_path / "runs", control_spec(spec), 0.35 + more, **HEALTHY)
    return tmp_path / "runs"


def fields(text: str) -> dict[str, str]:
    return dict(re.findall(r"^\| ([a-zA-Zλ‖_²λ ]+) \| (.*) \|$", text, re.MULTILINE))


# -- the template --------------------------------------------------------------------------------------------------


def test_the_docs_show_the_template_that_is_filled():
    assert (ROOT / "docs" / "reporting-template.md").read_text(encoding="utf-8") == template()


def test_every_bracket_has_a_field_and_every_field_a_bracket():
    brackets = set(re.findall(r"⟨([^⟩]+)⟩", template())) - {"brackets"}
    assert brackets == {*FIELDS, "findings", "table"}


@pytest.mark.parametrize(
    "field",
    [
        *("architecture", "optimiser", "schedule", "batch size", "augmentation", "epochs", "checkpoint rule", "mode"),
        *("minibatch identity", "layer index convention", "thresholds", "credit site", "versions and machine", "seeds"),
        "credit length",
    ],
)
def test_the_list_has_every_field_and_our_runs_recorded_it(real, field):
    assert field in fields(template())
    assert MISSING not in fields(real)[field]


def test_our_own_runs(real):
    assert "⟨" not in real
    found = fields(real.split("\n## ")[1])  # the longest runs come first
    assert found["architecture"] == "resmlp (width 256, depth 4, expansion 1, terminal_norm, block_affine)"
    assert found["optimiser"] == "adamw, learning rate 0.001, weight decay 0.01"
    assert found["minibatches"] == "1024 test samples in 8 disjoint batches of 128"
    assert re.fullmatch(r"hash [0-9a-f]{16} of the samples", found["minibatch identity"])
    assert found["checkpoint rule"] == "the last epoch (100) on the test split, never the best"
    assert found["mode"] == "eval"
    assert "torch 2." in found["versions and machine"]


def test_methods_findings_and_table(store, tmp_path):
    path = fill_template(read_records(store), tmp_path / "out" / "methods.md")
    text = path.read_text(encoding="utf-8")
    assert (
        "with adamw, learning rate 0.005, weight decay 0.01, constant schedule, set once per epoch, batches\nof 64"
        in text
    )
    assert "and seeds 42, 123." in text
    assert "DFA reaches 0.305 ± 0.007 with Γ = +0.105 ± 0.000 (n = 2); clamped cosine readable: no;" in text
    assert re.search(
        r"depth: -5\.0 pp \[-\d\.\d, -\d\.\d\] over frozen blocks, flags; trained blocks are worth \*missing\*, [^;]*; "
        r"three-check: walked back: D1 D2 D3",
        text,
    )
    (dfa,) = [line for line in text.splitlines() if line.startswith("| DFA | 2 |")]
    assert re.search(r"\| 0\.305 ± 0\.007 \| 0\.355 ± 0\.007 \| -5\.0 \[-\d\.\d, -\d\.\d\] flags \|", dfa)
    assert "+0.420, +0.000, +0.000, +0.000, +0.000" in dfa, "the cosine of every site"
    assert "| frozen blocks, DFA stem | 2 |" in text
    assert "minimum bar" in text


def test_worth_of_blocks_and_intervals(store):
    found = Depth(0.0, (0.0, 0.0), 0.5, (0.44, 0.43), {"trained": [0.4, 0.5]}, None, None, None,
                  {"train": 100, "test": 100}, {"samples": 0.5, "draws": 0.4}, {"trained": [1e-4]})  # fmt: skip
    for worth, path in zip((6.0, 7.0), sorted(store.glob("*dfa-all*"))):
        report = json.loads((path / "report.json").read_text())
        report["depth"] = {
            **found.to_dict(),
            "trained": 0.435 + worth / 100,
            "worth_pp": worth,
            "interval": [worth - 1, worth + 1],
        }
        (path / "report.json").write_text(json.dumps(report))
    text = filled(read_records(store))
    (dfa,) = [line for line in text.splitlines() if line.startswith("| DFA | 2 |")]
    half = ((12.706 * 0.7071 / 2**0.5) ** 2 + (1.96 * 0.5) ** 2 + (12.706 * 0.4) ** 2) ** 0.5  # seeds, samples, draws
    interval = f"+6.5 [{6.5 - half:+.1f}, {6.5 + half:+.1f}]"
    assert f"| {interval} |" in dfa
    assert f"trained blocks are worth {interval} pp over random draws of them" in text
    assert f"trained blocks are worth {MISSING}, walkback diagnose RUN --depth --save measures it" in text


def test_missing_fields_say_what_is_missing(store):
    found = fields(filled(read_records(store)))
    assert found["mode"] == f"{MISSING}: conditions.mode of report.json"
    assert found["minibatch identity"] == f"{MISSING}: conditions.probe_hash of report.json"
    assert found["layer index convention"] == f"{MISSING}: conditions.layer_index of report.json"


def test_a_field_only_some_runs_recorded_and_one_they_differ_in(store):
    for i, path in enumerate(sorted(store.iterdir())[:2]):
        report = json.loads((path / "report.json").read_text())
        report["conditions"]["mode"] = ("eval", "train")[i]
        (path / "report.json").write_text(json.dumps(report))
    found = fields(filled(read_records(store)))
    said = f"eval (1 run); train (1 run); {MISSING} in 6 of 8 runs: conditions.mode of report.json"
    assert found["mode"] == said


def test_conventions_of_credit_are_told_by_rule(tmp_path):
    write_run(tmp_path, RunSpec(), 0.6, **HEALTHY)
    reader = {"credit_site": "reader"}
    for spec in (RunSpec(rule="fa", **reader), RunSpec(rule="dfa", credit_length="unit", **reader)):
        write_run(tmp_path, spec, 0.3, **EXPLODED)
        write_run(tmp_path, control_spec(spec), 0.35, **HEALTHY)
    found = fields(filled(read_records(tmp_path)))
    writes, reads = "the module that writes the site (writer)", "the module that reads the site (reader)"
    told = {of: text for text, _, of in (part.rpartition(" for ") for part in found["credit site"].split("; "))}
    assert {", ".join(sorted(of.split(", "))): text for of, text in told.items()} == {"BP": writes, "DFA, FA": reads}
    assert set(found["credit length"].split("; ")) == {
        "of length 1 in every sample for DFA", "as the rule computes it for BP, FA"
    }  # fmt: skip


def test_no_control_is_named(tmp_path):
    write_run(tmp_path, RunSpec(rule="dfa"), 0.3, **EXPLODED)
    text = filled(read_records(tmp_path))
    assert f"depth: {MISSING}, no matched control was trained" in text
    assert fields(text)["control of depth"] == f"{MISSING}: no run with frozen blocks in this setting"


@pytest.mark.parametrize(
    ("trained", "stems", "said"),
    [
        (("dfa",), ("dfa",), "stem trained by the same rule (DFA)"),
        (("bp",), ("bp",), "stem trained by the same rule (BP)"),
        ((), ("fa",), "stem trained by FA (for no run in this setting)"),
        (
            ("dfa",),
            ("bp",),
            "stem trained by BP, usually the stronger control (for DFA); "
            f"{MISSING}: a stem trained by the same rule for DFA",
        ),
        (
            ("bp", "fa", "dfa"),
            ("bp", "dfa"),
            "stem trained by the same rule (BP, DFA); stem trained by BP, usually the stronger control (for FA, DFA); "
            f"{MISSING}: a stem trained by the same rule for FA",
        ),
    ],
)
def test_matched_controls_and_those_with_a_bp_stem_are_told_apart(tmp_path, trained, stems, said):
    for rule in trained:
        write_run(tmp_path, RunSpec(rule=rule), 0.4, **HEALTHY)
    for rule in stems:
        write_run(tmp_path, control_spec(RunSpec(rule=rule)), 0.3, **HEALTHY)
    found = fields(filled(read_records(tmp_path)))["control of depth"]
    assert found == f"the same network with blocks frozen at initialisation, {said}"


def test_the_accuracy_of_a_diverged_run_is_that_of_the_epoch_it_diverged_in(tmp_path):
    """The run ends with that epoch, and its report is of the network as it is then."""
    folder = write_run(tmp_path, RunSpec(rule="dfa", epochs=5), 0.1, **EXPLODED)
    rows = (folder / "trajectory.jsonl").read_text().splitlines()[:2]
    (folder / "trajectory.jsonl").write_text("\n".join(rows) + "\n")
    report = json.loads((folder / "report.json").read_text())
    report["run"] |= {"epochs": 2, "diverged": "epoch 2: training loss not finite"}
    (folder / "report.json").write_text(json.dumps(report))
    text = filled(read_records(tmp_path))
    assert fields(text)["checkpoint rule"] == "the epoch in which it diverged, its last (2 of 5)"


def test_settings_are_sections_of_their_own(tmp_path):
    for spec in (RunSpec(epochs=30), RunSpec(epochs=30, rule="fa", penalty=1e-2), RunSpec(net_options={"depth": 2})):
        write_run(tmp_path, spec, 0.5, **HEALTHY)
    records = read_records(tmp_path)
    assert [len(runs) for runs in settings(records)] == [1, 2]
    text = filled(records)
    heads = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert heads == ["resmlp, depth 2, on cifar10, 100 epochs, plain", "resmlp, on cifar10, 30 epochs, plain"]
    assert "| FA, λ 0.01 | 1 |" in text


def test_names_are_escaped(tmp_path):
    write_run(tmp_path, RunSpec(rule="mine:a|b<script>"), 0.5, **HEALTHY)
    text = filled(read_records(tmp_path))
    assert r"mine:a\|b\<script>" in text
    assert "a|b" not in text
    assert "b<script>" not in text


def test_nothing_to_fill_from(tmp_path):
    with pytest.raises(
        InputError, match=r"Expected finished runs under .* to fill the template from, but there are none"
    ):
        fill_template(Records(tmp_path), tmp_path / "x.md")


def test_a_path_that_cannot_be_written(store, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FormatError, match=r"Expected to write .*file"):
        fill_template(read_records(store), tmp_path / "file" / "x.md")


def test_the_template_is_in_the_package():
    from importlib import resources

    assert (resources.files("walkback.report") / "assets" / "reporting-template.md").is_file()


def test_the_command_writes_figures_tables_and_the_template(tmp_path, capsys):
    """On a run that no figure asks for: the diagram is drawn, the others are named."""
    write_run(tmp_path / "runs", RunSpec(data="teacher", epochs=2), 0.5, **HEALTHY)
    out = {name: tmp_path / name for name in ("figures", "tables", "template")}
    words = [word for name, path in out.items() for word in (f"--{name}", str(path))]
    assert cli.run(["report", str(tmp_path / "runs"), *words]) == 0
    said = capsys.readouterr()
    assert {p.suffix for p in out["figures"].iterdir()} == {".pdf", ".svg", ".png"}
    assert "not drawn: per-layer: Expected finished runs" in said.err
    assert (out["tables"] / "primary.tex").is_file()
    assert "on teacher, 2 epochs" in out["template"].read_text(encoding="utf-8")


# -- the checklist -------------------------------------------------------------------------------------------------

CHECKLIST = (ROOT / "CHECKLIST.md").read_text(encoding="utf-8")


def test_the_checklist_goes_over_every_pitfall_with_something_to_look_at():
    items = re.split(r"\n- \[ \] ", CHECKLIST)[1:]
    numbers = [int(m[1]) for item in items if (m := re.match(r"\*\*(\d+)\. ", item))]
    assert numbers == [*range(1, 16)]
    pitfalls = [item for item in items if re.match(r"\*\*\d", item)]
    assert all("`" in item for item in pitfalls)


def test_the_checklist_names_only_fields_and_commands_there_are():
    path = next((ROOT / "results" / "runs").glob("*-dfa-all-*/report.json"))
    report = json.loads(path.read_text())
    named = re.findall(r"`((?:per_layer|values|conditions|run|thresholds|aggregates)(?:\.\w+)*)`", CHECKLIST)
    assert len(set(named)) > 15
    for name in named:
        value = report
        for part in name.split("."):
            assert part in value, name
            value = value[part]
    verbs = set(re.findall(r"`walkback (\w+)", CHECKLIST))
    assert verbs <= set(cli.app)
    assert set(re.findall(r"walkback evidence ([\w-]+)", CHECKLIST)) <= set(TABLES)
    for link in re.findall(r"\]\(([^)]+)\)", CHECKLIST):
        assert (ROOT / link).exists()
