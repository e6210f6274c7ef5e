"""Training: deterministic, resumable at any moment, and honest about what went wrong."""

from __future__ import annotations

import itertools
import json
import math
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import walkback as wb
from patience import PATIENCE
from walkback.data import Dataset, Split
from walkback.notes import Note
from walkback.training import loop
from walkback.training.bundle import load_bundle
from walkback.training.loop import augment, build_net, seeded, train
from walkback.training.setup import _all_learn
from walkback.training.spec import Optimiser, RunSpec

pytestmark = pytest.mark.usefixtures("few_directions")

SMALL = {"net_options": {"width": 16, "depth": 2}, "data": "test_training:tiny", "epochs": 3}
FAST = {"lr": 1e-2, "batch_size": 32}


def tiny(n: int = 512) -> Dataset:
    """A small linear task on 8 inputs."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2 * n, 8, generator=generator)
    y = (x @ torch.randn(8, 4, generator=generator)).argmax(1)
    return Dataset("tiny", Split(x[:n], y[:n]), Split(x[n:], y[n:]), 4)


def run(out: Path, **fields) -> wb.Bundle:
    return train(RunSpec(**{**SMALL, **fields}), out, data=tiny(), quiet=True)


def weights(bundle: wb.Bundle) -> bytes:
    return (bundle.path / "weights.safetensors").read_bytes()


@pytest.mark.parametrize("rule", ["bp", "fa", "dfa", "state-bridge", "credit-bridge", "ep"])
def test_every_rule_trains_and_its_bundle_measures_the_same(rule: str, tmp_path: Path) -> None:
    bundle = run(tmp_path, rule=rule)
    rows = bundle.trajectory()
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]
    report = bundle.report()
    assert report is not None
    model = bundle.model()
    from walkback.training.loop import probe_batches

    again = wb.measure(model, probe_batches(tiny(), torch.device("cpu")), credit=bundle.rule(model))
    assert again.cosine == report.per_layer["cosine"]
    assert again.h_norm == report.per_layer["h_norm"]
    assert report.headline_acc == pytest.approx(rows[-1]["test_acc"], abs=1e-6)


def test_same_spec_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    first, second = run(tmp_path / "a", rule="dfa"), run(tmp_path / "b", rule="dfa")
    assert weights(first) == weights(second)
    for name in ("trajectory.jsonl", "report.json", "spec.json"):
        assert (first.path / name).read_bytes() == (second.path / name).read_bytes()
    assert weights(run(tmp_path / "c", rule="dfa", seed=1)) != weights(first)


def dropping(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A network that draws from the global generators of torch, NumPy and Python while it trains."""

    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            scale = 1 + 0.1 * (np.random.rand() + random.random()) if self.training else 1.0
            return x * scale

    net = wb.nets.build("resmlp", input_shape, classes, width=8, depth=1)
    net.embed = nn.Sequential(net.embed, nn.Dropout(0.2), Noisy())
    return net


def random_task(root: object = None) -> Dataset:
    split = Split(torch.randn(64, 8), torch.randint(4, (64,)))
    return Dataset("random", split, split, 4)


def test_what_is_drawn_from_global_generators_follows_from_the_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {**SMALL, "net": "test_training:dropping", "net_options": {}, "rule": "dfa"}

    def trained(out: str, seed: int = 42) -> bytes:
        return weights(train(RunSpec(**{**fields, "seed": seed}), tmp_path / out, data=tiny(), quiet=True))

    torch.manual_seed(1)
    first = trained("a")
    torch.manual_seed(2)
    assert trained("b") == first
    assert trained("c", seed=1) != first
    with monkeypatch.context() as patch:
        patch.setattr(loop, "_progress", _stop)
        with pytest.raises(KeyboardInterrupt):
            trained("d")
    assert trained("d") == first, "a run that was stopped ends elsewhere"


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_data_function_without_a_seed_gives_a_run_and_its_control_the_same_data() -> None:
    torch.manual_seed(1)
    first = wb.data.load("test_training:random_task")
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert torch.equal(wb.data.load("test_training:random_task").test.x, first.test.x)
    assert torch.equal(torch.get_rng_state(), before)


def test_training_does_not_depend_on_or_move_the_global_random_state(tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = run(tmp_path / "a", rule="state-bridge")
    torch.manual_seed(2)
    state = torch.get_rng_state()
    second = run(tmp_path / "b", rule="state-bridge")
    assert torch.equal(state, torch.get_rng_state())
    assert weights(first) == weights(second)


@pytest.mark.parametrize("rule", ["bp", "fa", "dfa"])
def test_frozen_blocks_do_not_move_and_the_rest_does(rule: str, tmp_path: Path) -> None:
    spec = RunSpec(**SMALL, rule=rule, scope="frozen")
    bundle = train(spec, tmp_path, data=tiny(), quiet=True)
    start = build_net(spec, tiny()).state_dict()
    for name, value in bundle.model().state_dict().items():
        assert torch.equal(value, start[name]) == name.startswith("blocks."), name


def test_scopes_and_rules_share_their_start(tmp_path: Path) -> None:
    """The control differs from the run in nothing but its blocks: same initialisation, same order, same feedback."""
    a, b = RunSpec(**SMALL, rule="dfa"), RunSpec(**SMALL, rule="dfa", scope="frozen")
    for x, y in zip(build_net(a, tiny()).parameters(), build_net(b, tiny()).parameters()):
        assert torch.equal(x, y)
    one, two = train(a, tmp_path, data=tiny(), quiet=True), train(b, tmp_path, data=tiny(), quiet=True)
    assert all(torch.equal(one.auxiliaries[k], two.auxiliaries[k]) for k in one.auxiliaries)


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    bundle = run(tmp_path, rule="fa")
    before = (bundle.path / "weights.safetensors").stat().st_mtime_ns
    run(tmp_path, rule="fa")
    assert (bundle.path / "weights.safetensors").stat().st_mtime_ns == before


def test_stopped_after_every_epoch_a_run_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was resumed leaves a checkpoint of its own, which must be as good as the first."""
    calm = run(tmp_path / "calm", rule="dfa")
    checkpoint = loop._checkpoint

    def stop(*arguments) -> None:
        checkpoint(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "_checkpoint", stop)
    for _ in range(SMALL["epochs"]):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "stopped", rule="dfa")
    assert weights(run(tmp_path / "stopped", rule="dfa")) == weights(calm)


KILLED = """
import json, os, signal, sys, torch
torch.set_num_threads(1)
from test_training import tiny
from walkback.training import loop
from walkback.training.spec import RunSpec
calls, last, epoch, finish = 0, int(sys.argv[3]), loop._epoch, loop._finish
def count(frame, event, argument):
    global calls
    calls += 1
    if calls == last:
        os.kill(os.getpid(), signal.SIGKILL)
def counted(*arguments):
    sys.setprofile(count)
    return epoch(*arguments)
def told(*arguments):
    sys.setprofile(None)
    print(calls)
    return finish(*arguments)
loop._epoch, loop._finish = counted, told
loop.train(RunSpec(**json.loads(sys.argv[2])), sys.argv[1], data=tiny(), quiet=True)
"""


@pytest.mark.slow
def test_killed_at_random_moments_a_run_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """kill −9, three times, whenever; then let it finish. Moments are counted in calls of functions, not in seconds."""
    spec = {**SMALL, "rule": "dfa", "epochs": 8, "optimiser": {"batch_size": 16}}

    def process(out: str, last: int) -> subprocess.CompletedProcess[str]:
        call = [sys.executable, "-c", KILLED, str(tmp_path / out), json.dumps(spec)]
        return subprocess.run([*call, str(last)], stdout=subprocess.PIPE, text=True, check=False, timeout=PATIENCE)

    calls = int(process("whole", 0).stdout)
    draw = random.Random(0)
    for _ in range(3):  # each more than one of eight epochs, together less than all
        assert process("killed", int(draw.uniform(0.15, 0.3) * calls)).returncode == -signal.SIGKILL
    folder = tmp_path / "killed" / RunSpec(**spec).name
    assert (folder / "checkpoint.safetensors").exists()
    assert not (folder / "report.json").exists()
    process("killed", 0)
    resumed, whole = load_bundle(folder), load_bundle(tmp_path / "whole" / RunSpec(**spec).name)
    assert weights(resumed) == weights(whole)
    for name in ("trajectory.jsonl", "report.json"):
        assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes()
    assert not (resumed.path / "checkpoint.safetensors").exists()


@pytest.mark.parametrize(
    ("rule", "options"),
    [("dfa", {"fresh": True}), ("fa", {"fresh": True}), ("state-bridge", {}), ("credit-bridge", {}), ("ep", {})],
)
def test_interrupted_runs_of_every_rule_go_on_as_if_nothing_happened(
    rule: str, options: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = RunSpec(**{**SMALL, "rule": rule, "rule_options": options, "epochs": 3})
    whole = train(spec, tmp_path / "whole", data=tiny(), quiet=True)
    keep = loop._checkpoint

    def stop_after_two(run, folder: Path, epoch: int) -> None:
        keep(run, folder, epoch)
        if epoch == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(loop, "_checkpoint", stop_after_two)
    with pytest.raises(KeyboardInterrupt):
        train(spec, tmp_path / "cut", data=tiny(), quiet=True)
    monkeypatch.undo()
    resumed = train(spec, tmp_path / "cut", data=tiny(), quiet=True)
    assert weights(resumed) == weights(whole)
    assert (resumed.path / "report.json").read_bytes() == (whole.path / "report.json").read_bytes()


def test_a_diverged_run_ends_as_a_finding(tmp_path: Path) -> None:
    bundle = run(tmp_path, rule="bp", epochs=50, optimiser={"lr": 1e18, "schedule": "constant"})
    rows, report = bundle.trajectory(), bundle.report()
    assert report is not None
    assert len(rows) < 50
    assert "not finite" in rows[-1]["diverged"]
    assert report.run["diverged"] == rows[-1]["diverged"]
    assert report.verdict == "walked back"


class Failing(wb.rules.DFA):
    """Its credit is NaN from the third epoch on."""

    def setup(self, *args) -> None:
        super().setup(*args)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, trace):
        training = not isinstance(trace, wb.Trace)
        self.steps += training
        spoilt = training and self.steps > 2 * 512 // 128
        return [a * math.nan if spoilt else a for a in super().forward(trace)]


def test_the_change_of_the_loss_is_that_of_the_whole_run_or_none(tmp_path: Path) -> None:
    bundle = run(tmp_path, rule="test_training:Failing", epochs=5, optimiser={"batch_size": 128})
    rows, report = bundle.trajectory(), bundle.report()
    assert report is not None
    assert [row["train_loss"] is None for row in rows] == [False, False, True]
    assert report.run["train_loss_delta"] is None
    assert report.notes[0] == Note("diverged", None, {"where": report.run["diverged"]})
    assert report.run["diverged"].startswith("epoch 3: ")


def test_fresh_feedback_is_noise_and_the_trained_one_is_not(tmp_path: Path) -> None:
    report = run(tmp_path, rule="dfa", epochs=40, net_options={"width": 64, "depth": 2}, optimiser=FAST).report()
    assert report is not None
    null = report.run["fresh_feedback"]
    assert null["draws"] == 20
    assert abs(null["gamma"]["mean"]) < 3 * null["gamma"]["std"] / 20**0.5 + 0.02
    assert report.values["gamma"] > null["gamma"]["mean"] + 5 * null["gamma"]["std"]


def test_a_penalty_keeps_the_branches_small(tmp_path: Path) -> None:
    norms = []
    for penalty in (0.0, 1.0):
        report = run(tmp_path, rule="dfa", epochs=20, penalty=penalty, optimiser=FAST).report()
        assert report is not None
        norms.append(report.per_layer["h_norm"][-1])
    assert norms[1] < 0.5 * norms[0]


def test_auxiliaries_are_saved_and_missing_ones_are_an_error(tmp_path: Path) -> None:
    bundle = run(tmp_path, rule="fa")
    broken = wb.Bundle(bundle.path, bundle.spec, bundle.weights, {})
    with pytest.raises(wb.FormatError, match=r"Without them the credit can't be measured"):
        broken.rule(broken.model())
    assert load_bundle(bundle.path).auxiliaries.keys() == {"B0", "B1"}


def test_augmentation_moves_flips_and_is_deterministic() -> None:
    x = torch.arange(2 * 3 * 8 * 8, dtype=torch.uint8).view(2, 3, 8, 8).repeat(50, 1, 1, 1)
    once, again = augment(x, seeded(0, "a")), augment(x, seeded(0, "a"))
    assert torch.equal(once, again)
    assert once.dtype == torch.uint8
    assert once.shape == x.shape
    padded = torch.nn.functional.pad(x, (4, 4, 4, 4))
    windows = {
        padded[i, :, r : r + 8, c : c + 8].numpy().tobytes() for i in range(2) for r in range(9) for c in range(9)
    }
    mirrored = torch.nn.functional.pad(x.flip(3), (4, 4, 4, 4))
    windows |= {
        mirrored[i, :, r : r + 8, c : c + 8].numpy().tobytes() for i in range(2) for r in range(9) for c in range(9)
    }
    seen = {sample.numpy().tobytes() for sample in once}
    assert seen <= windows
    assert len(seen) > 40


def test_augmentation_is_a_flip_a_padding_and_a_crop_of_each_sample() -> None:
    x = torch.randint(256, (20, 2, 6, 9), dtype=torch.uint8, generator=seeded(0, "x"))
    draws = seeded(0, "a")
    flips, shifts = torch.rand(20, generator=draws) < 0.5, torch.randint(9, (20, 2), generator=draws)
    for sample, flip, (top, left), got in zip(x, flips, shifts.tolist(), augment(x, seeded(0, "a"))):
        padded = torch.nn.functional.pad(sample.flip(2) if flip else sample, (4, 4, 4, 4))
        assert torch.equal(got, padded[:, top : top + 6, left : left + 9])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"penalty": -1.0}, r"Expected penalty: .*greater than or equal to 0, but got -1"),
        ({"epochs": 0}, r"Expected epochs: .*greater than or equal to 1, but got 0"),
        ({"scope": "some"}, r"Expected scope: .*'all' or 'frozen'"),
        ({"learning_rate": 1.0}, r"Expected a spec with the fields net, data.*but got 'learning_rate'"),
        ({"optimiser": {"lr": 0.0}}, r"Expected optimiser.lr: .*greater than 0"),
    ],
)
def test_bad_specs_teach(fields: dict, words: str) -> None:
    with pytest.raises(wb.InputError, match=words):
        RunSpec(**fields)


def test_unknown_names_teach(tmp_path: Path) -> None:
    with pytest.raises(wb.InputError, match="Expected net to be one of resmlp, vit-mini"):
        run(tmp_path, net="resnet")
    with pytest.raises(wb.InputError, match="Expected net_options that resmlp knows"):
        run(tmp_path, net_options={"hidden": 3})


def test_only_images_are_augmented(tmp_path: Path) -> None:
    with pytest.raises(wb.InputError, match=r"Expected images \(C, H, W\) to flip and crop, but .* of shape \(8,\)"):
        run(tmp_path, augment=True)


def test_a_new_field_with_a_default_renames_nothing() -> None:
    assert RunSpec().digest == RunSpec(net="resmlp", optimiser=Optimiser()).digest
    assert RunSpec(seed=1).digest != RunSpec().digest
    assert RunSpec(rule="dfa").name.startswith("resmlp-cifar10-dfa-all-s42-")


def test_the_control_differs_only_in_its_blocks(tmp_path: Path) -> None:
    spec = RunSpec(**SMALL, rule="dfa", penalty=0.1, credit_site="reader")
    matched = wb.frozen_baseline(spec, tmp_path, data=tiny(), quiet=True)
    assert matched.spec["rule"] == "dfa"
    assert matched.spec["scope"] == "frozen"
    stronger = wb.frozen_baseline(spec, tmp_path, stem="bp", data=tiny(), quiet=True)
    assert stronger.spec["rule"] == "bp"
    for bundle in (matched, stronger):
        for key in ("net", "net_options", "data", "epochs", "optimiser", "seed", "augment"):
            assert bundle.spec[key] == spec.model_dump()[key]
        report = bundle.report()
        assert report is not None
        assert 0 <= report.headline_acc <= 1
    with pytest.raises(wb.InputError, match='Expected stem to be "rule" or "bp"'):
        wb.frozen_baseline(spec, tmp_path, stem="fa")


# -- every field of a spec does what it says ---------------------------------------------------------------------


def test_the_rate_of_every_epoch_is_the_schedule_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    keep = loop._checkpoint

    def note(run, folder: Path, epoch: int) -> None:
        seen.append(run.optimiser.param_groups[0]["lr"])
        keep(run, folder, epoch)

    monkeypatch.setattr(loop, "_checkpoint", note)
    run(tmp_path / "a", epochs=4, optimiser={"lr": 0.1})
    assert seen == pytest.approx([0.1, 0.1 * (1 + math.sqrt(0.5)) / 2, 0.05, 0.1 * (1 - math.sqrt(0.5)) / 2])
    seen.clear()
    run(tmp_path / "b", epochs=4, optimiser={"lr": 0.1, "schedule": "constant"})
    assert seen == [0.1] * 4


@pytest.mark.parametrize(
    "change",
    [{"credit_site": "reader"}, {"optimiser": {"weight_decay": 0.5}}, {"optimiser": {"batch_size": 32}}, {"seed": 1},
     {"penalty": 0.1}, {"rule_options": {"scale": 2.0, "fresh": True}}],
    ids=lambda c: next(iter(c)),
)  # fmt: skip
def test_fields_of_a_spec_reach_the_weights(tmp_path: Path, change: dict) -> None:
    plain = run(tmp_path, rule="dfa").model().state_dict()
    changed = run(tmp_path, rule="dfa", **change).model().state_dict()
    assert any(not torch.equal(plain[k], changed[k]) for k in plain)


def test_weight_decay_is_the_spec_s(tmp_path: Path) -> None:
    """AdamW on a parameter that never gets a gradient does nothing; on one with credit, decay pulls it to zero."""
    small, large = (
        sum(
            float(p.detach().norm())
            for p in run(tmp_path, rule="bp", optimiser={"weight_decay": wd}).model().parameters()
        )
        for wd in (0.0, 5.0)
    )
    assert large < 0.99 * small


def images_only() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    split = Split(
        torch.randint(256, (64, 1, 8, 8), generator=generator, dtype=torch.uint8),
        torch.randint(4, (64,), generator=generator),
    )
    return Dataset("images", split, split, 4, (0.5,), (0.25,))


def test_augmentation_is_applied_when_the_spec_says_so(tmp_path: Path) -> None:
    fields = {**SMALL, "data": "test_training:images_only", "epochs": 1}
    one, two = (
        train(RunSpec(**fields, augment=a), tmp_path, data=images_only(), quiet=True).model().state_dict()
        for a in (False, True)
    )
    assert any(not torch.equal(one[k], two[k]) for k in one)


def test_bp_s_penalty_is_the_gradient_of_the_penalised_loss() -> None:
    torch.manual_seed(0)
    net = wb.nets.build("resmlp", (6,), 4, width=8, depth=2).double()
    x, y = torch.randn(16, 6, dtype=torch.float64), torch.randint(4, (16,))
    bp = wb.rules.make("bp")
    loop.TrainingStep(loop.Parts.of(net), bp, exact=True, frozen=False, penalty=0.3, reader=False)(x, y)
    found = {name: p.grad.clone() for name, p in net.named_parameters()}
    net.zero_grad()
    logits, hidden = net(x, return_hidden=True)
    branches = [b - a for a, b in itertools.pairwise(hidden)]
    loss = torch.nn.functional.cross_entropy(logits, y) + 0.3 * sum(f.pow(2).sum(1).mean() for f in branches)
    loss.backward()
    for name, p in net.named_parameters():
        assert torch.allclose(found[name], p.grad, atol=1e-12), name


# -- what would train something else than it says ----------------------------------------------------------------


class Full(wb.nets.NETS["resmlp"]):
    """Blocks that return h + f, which the published interface does not allow."""

    def forward(self, x, return_hidden=False):
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.readout(h)


class Position(wb.nets.NETS["resmlp"]):
    """Something added between stem and blocks."""

    def forward(self, x, return_hidden=False):
        h = self.embed(x) + torch.arange(16.0)
        for block in self.blocks:
            h = h + block(h)
        return self.readout(h)


@pytest.mark.parametrize("net", ["Full", "Position"])
def test_a_network_that_is_not_its_parts_is_refused(tmp_path: Path, net: str) -> None:
    with pytest.raises(wb.AnatomyError, match="gives something else"):
        run(tmp_path, net=f"test_training:{net}", rule="dfa")


class OnlyTheTop(wb.rules.Rule):
    """Gives too few credits in a step, and enough of them when it is measured."""

    def forward(self, trace):
        return trace.grads if isinstance(trace, wb.Trace) else [trace.grads[-1]]


class AllGradients(wb.rules.Rule):
    """Hands on the gradients of all sites, of which a training step knows the last alone."""

    def credits(self, trace):
        return list(trace.grads)


class Nothing(wb.rules.Rule):
    """Defines no credits."""


@pytest.mark.parametrize("scope", ["all", "frozen"])
def test_a_rule_with_too_few_credits_is_an_error_in_both_scopes(tmp_path: Path, scope: str) -> None:
    with pytest.raises(wb.InputError, match="one credit per site"):
        run(tmp_path, rule="test_training:OnlyTheTop", scope=scope)


def test_a_rule_sees_no_more_when_measured_than_when_trained(tmp_path: Path) -> None:
    words = r"the gradient of the last site alone, trace.grads\[-1\], but it asked for 0"
    with pytest.raises(wb.InputError, match=words):
        run(tmp_path, rule="test_training:AllGradients")
    with pytest.raises(wb.WalkbackError, match=words):
        wb.measure(wb.selftest.healthy(), wb.selftest.batches(1), credit=AllGradients())


def test_a_rule_without_credits_says_so(tmp_path: Path) -> None:
    with pytest.raises(wb.InputError, match=r"Nothing to define credits"):
        run(tmp_path, rule="test_training:Nothing")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rule": "bp", "credit_site": "reader"}, "credit_site writer with bp"),
        ({"rule": "dfa", "scope": "frozen", "penalty": 1.0}, "frozen blocks"),
        ({"rule": "bp", "scope": "frozen", "penalty": 1.0}, "frozen blocks"),
    ],
)
def test_fields_that_would_do_nothing_are_refused(tmp_path: Path, fields: dict, words: str) -> None:
    with pytest.raises(wb.InputError, match=words):
        run(tmp_path, **fields)


@pytest.mark.parametrize("device", ["cuda:99", "nonsense"])
def test_a_device_that_is_not_there_is_an_error(tmp_path: Path, device: str) -> None:
    with pytest.raises(wb.InputError, match="Expected a device of this machine"):
        train(RunSpec(**SMALL), tmp_path, data=tiny(), device=device, quiet=True)


def test_the_report_says_which_credit_site_and_remeasures_fresh_feedback_alike(tmp_path: Path) -> None:
    assert run(tmp_path, rule="dfa", credit_site="reader").report().conditions["credit_site"] == "reader"
    bundle = run(tmp_path, rule="dfa", rule_options={"fresh": True})
    model = bundle.model()
    again = wb.measure(model, loop.probe_batches(tiny(), torch.device("cpu")), credit=bundle.rule(model))
    assert again.cosine == pytest.approx(bundle.report().per_layer["cosine"], abs=1e-9)


def test_relaxation_leaves_running_statistics_alone() -> None:
    torch.manual_seed(0)
    net = wb.nets.build("small-cnn", (3, 8, 8), 4, width=4, depth=2)
    x, y = torch.randn(8, 3, 8, 8), torch.randint(4, (8,))
    ep = wb.rules.make("ep", steps=3)
    wb.rules.set_up(ep, net, x, 4, torch.Generator())
    net.train()
    loop.TrainingStep(loop.Parts.of(net), ep, exact=False, frozen=False, penalty=0.0, reader=False)(x, y)
    counts = {int(b) for name, b in net.named_buffers() if name.endswith("num_batches_tracked")}
    assert counts == {1}


def test_weight_movement_against_numpy(tmp_path: Path) -> None:
    """From the weights on disk; the frozen control still has the initialisation in its blocks."""
    from safetensors.numpy import load_file

    trained, frozen = (run(tmp_path, rule="dfa", scope=scope) for scope in ("all", "frozen"))
    last, first = (load_file(b.path / "weights.safetensors") for b in (trained, frozen))
    row = trained.trajectory()[-1]
    for block, (growth, frobenius, spectral) in enumerate(
        zip(*(row["weights"][key] for key in ("growth", "product_frobenius", "product_spectral")))
    ):
        names = [n for n in last if n.startswith(f"net.blocks.{block}.") and last[n].ndim == 2]
        moved = sorted(((last[n] - first[n]) ** 2).sum() ** 0.5 / (first[n] ** 2).sum() ** 0.5 for n in names)
        assert sorted(growth) == pytest.approx(moved, rel=1e-5)
        singular = [np.linalg.svd(last[n], compute_uv=False) for n in names]
        assert frobenius == pytest.approx(np.prod([(s**2).sum() ** 0.5 for s in singular]), rel=1e-5)
        assert spectral == pytest.approx(np.prod([s.max() for s in singular]), rel=1e-5)
    report = trained.report()
    assert report is not None
    losses = [r["train_loss"] for r in trained.trajectory()]
    assert report.run["train_loss_delta"] == pytest.approx(losses[-1] - losses[0])


def readout_of_three(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    class Projected(wb.nets.ResMLP):
        def __init__(self) -> None:
            super().__init__(input_shape, classes, width=8, depth=1)
            self.proj = nn.Linear(8, 8)

        def readout(self, h: Tensor) -> Tensor:
            return super().readout(self.proj(h))

    return Projected()


def test_weights_that_a_local_rule_would_leave_alone_are_refused(tmp_path: Path) -> None:
    spec = RunSpec(net="test_training:readout_of_three", data="test_training:tiny", epochs=1, rule="dfa")
    with pytest.raises(wb.InputError, match=r"but proj\.weight is in none of them and would stay as it is"):
        train(spec, tmp_path, data=tiny(64), quiet=True)
    train(spec.model_copy(update={"rule": "bp"}), tmp_path, data=tiny(64), quiet=True)


@pytest.mark.parametrize("net", ["resmlp", "vit-mini", "small-cnn"])
def test_in_our_own_networks_every_weight_learns(net: str) -> None:
    made = wb.nets.build(net, (3, 32, 32), 10)
    _all_learn(made, wb.rules.DFA())


def test_the_optimiser_is_torchs_and_does_not_import_its_compiler() -> None:
    script = """
import sys, torch
from walkback.training.setup import AdamW
def stepped(kind):
    generator = torch.Generator().manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(5, 3, generator=generator)), torch.nn.Parameter(torch.ones(4))]
    optimiser = kind(weights, lr=1e-2, weight_decay=0.1, fused=True)
    for _ in range(3):
        for w in weights:
            w.grad = torch.randn(w.shape, generator=generator)
        optimiser.step()
        optimiser.load_state_dict(optimiser.state_dict())
        optimiser.zero_grad()
        assert all(w.grad is None and w.requires_grad for w in weights)
    return weights
ours = stepped(AdamW)
assert "torch._dynamo" not in sys.modules
assert all(torch.equal(a, b) for a, b in zip(ours, stepped(torch.optim.AdamW)))
assert "torch._dynamo" in sys.modules, "there is something to save"
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE)
