"""Ways to make a verdict wrong, by accident or on purpose: each is caught with clear words, or out of reach.

Numbers are those of docs/adversarial.md.
"""

from __future__ import annotations

import copy
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import walkback as wb
from made_runs import write_run
from places import ROOT
from walkback.audit.records import read_records
from walkback.audit.settings import judged_runs
from walkback.measures import witness
from walkback.measures.witness import class_sorted
from walkback.notes import Note, coded
from walkback.training.control import control_spec
from walkback.verdict.notes import earlier_epoch

DOC = (ROOT / "docs/adversarial.md").read_text(encoding="utf-8")


def accuracy(net: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> float:
    return float(np.mean(np.concatenate([(net(x).argmax(1) == y).numpy() for x, y in batches])))


# What docs/adversarial.md quotes of a note.
QUOTED = {
    "shifted-pairing": "the credit fits the gradient of the next site better than that of its own",
    "constant-norm": "every ‖h‖ is the same",
    "hidden-differs": "return_hidden",
    "saturated": "the softmax is saturated",
    "loss-not-cross-entropy": "the loss is not cross-entropy",
    "loss-scaled": "the loss is 1e+05 times cross-entropy",
    "other-accuracy": "is not that of these batches",
    "one-class": "samples are of class 0",
    "sorted-classes": "samples are sorted by class",
    "repeated-samples": "of the samples occur more than once",
    "few-samples": "the protocol asks for at least 8",
    "random-forward": "draws random numbers in eval mode",
    "earlier-epoch": "is that of epoch 2, not of the last, 0.350",
    "other-thresholds": "judged with other thresholds than the published ones: g_norm_floor 1e-12 (published 1e-07)",
    "blocks-left-out": "names 2 of 4 blocks",
    "bp-itself": "the credit is the BP gradient bit for bit",
    "bp-direction": "the credit has the direction of the BP gradient",
    "bp-against": "the credit is against the direction of the BP gradient",
    "bp-nearly": "the credit is nearly the direction of the BP gradient",
    "no-spread": "seeds without spread: headline_acc is 0.450, ",
    "below-chance": "the frozen control is below chance",
    "altered-backward": "own backward pass is not the derivative",
    "unread-samples": "samples have no gradient at the last site",
}


def noted(report: wb.Report, code: str, quoted: bool = True) -> bool:
    """Noted in the report and printed, in the words that the page quotes; other values say it in other words."""
    words, notes = QUOTED[code], coded(report.notes, code)
    assert words in DOC, f"docs/adversarial.md does not quote {words!r}"
    assert all(text in report.details() for text in report.advisories)
    assert not quoted or all(words in note.text for note in notes)
    return bool(notes)


def honest(net: nn.Module | None = None, **given) -> wb.Report:
    net = net or wb.selftest.healthy()
    batches = wb.selftest.batches(8)
    return wb.diagnose(net, batches, **{"headline_acc": accuracy(net, batches), **given})


def test_an_honest_diagnosis_has_no_notes() -> None:
    assert honest().notes == ()
    assert honest(wb.selftest.exploded(), frozen_baseline_acc=0.05).notes == ()


# -- 1, 2: the stream ---------------------------------------------------------------------------------------------


def test_1_a_normalised_log_is_noted() -> None:
    """Logged: judge can't know the network, but a stream of constant norm tells itself."""
    raw = {"per_layer": {"h_norm": [3.0, 3e2, 3e4], "g_norm": [1e-3, 1e-6, 1e-9]}}
    calm = {"per_layer": {"h_norm": [1.0, 1.0, 1.0], "g_norm": [1e-3, 1e-6, 1e-9]}}
    assert wb.judge(raw).failed == ("D1", "D2")
    assert wb.judge(calm).failed == ()
    assert noted(wb.judge(calm), "constant-norm")
    assert not noted(wb.judge(raw), "constant-norm")


def test_1_states_are_read_from_the_blocks_and_not_from_what_the_network_says() -> None:
    class Modest(wb.selftest.ResidualNet):
        def forward(self, x: Tensor, return_hidden: bool = False):
            logits, hidden = super().forward(x, return_hidden=True)
            return (logits, [nn.functional.normalize(h) for h in hidden]) if return_hidden else logits

    net = Modest(16, 32, 4, 10)
    net.load_state_dict(wb.selftest.exploded().state_dict())
    report = honest(net)
    assert report.failed == ("D1", "D2")
    assert noted(report, "hidden-differs")


def test_2_a_giant_head_lifts_the_gradient_over_the_floor_and_is_noted() -> None:
    net = wb.selftest.exploded()
    assert honest(net).failed == ("D1", "D2")
    with torch.no_grad():
        net.out_head.weight.mul_(1e5)
    report = honest(net)
    assert report.failed == (), "the published D2 moves with the head"
    assert noted(report, "saturated")
    assert not noted(honest(), "saturated")
    assert noted(honest(net, loss=nn.functional.cross_entropy), "saturated"), "also when passed by hand"


def test_a_regression_has_no_softmax_to_saturate() -> None:
    net = wb.selftest.healthy()
    with torch.no_grad():
        net.out_head.weight.mul_(1e4)
    targets = [(x, torch.zeros(len(x), 10)) for x, _ in wb.selftest.batches(8)]
    report = wb.diagnose(net, targets, loss=lambda z, y: (z - y).pow(2).mean(1))
    assert noted(report, "loss-not-cross-entropy")
    assert not noted(report, "saturated")


# -- 3: leaked labels ---------------------------------------------------------------------------------------------


def leaking(batches: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """The label as a large one-hot in the inputs."""
    out = []
    for x, y in batches:
        leaked = x.clone()
        leaked[:, :10] = 20.0 * nn.functional.one_hot(y, 10)
        out.append((leaked, y))
    return out


def readout_fit(net: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> nn.Module:
    """A trained readout on blocks that are random, by least squares."""
    net = copy.deepcopy(net)
    with torch.no_grad():
        x, y = (torch.cat(part) for part in zip(*batches))
        h = net.out_ln(net(x, return_hidden=True)[1][-1])
        a = torch.cat([h, torch.ones(len(h), 1)], 1).double()
        w = torch.linalg.lstsq(a, nn.functional.one_hot(y, 10).double()).solution
        net.out_head.weight.copy_(w[:-1].T)
        net.out_head.bias.copy_(w[-1])
    return net


def test_3_labels_in_the_probe_alone_are_noted() -> None:
    batches = leaking(wb.selftest.batches(8))
    net = readout_fit(wb.selftest.healthy(), batches)
    assert accuracy(net, batches) > 0.9 > 0.3 > accuracy(net, wb.selftest.batches(8))
    report = wb.diagnose(net, batches, headline_acc=0.35)
    assert noted(report, "other-accuracy")


def test_3_labels_in_the_whole_task_reach_the_frozen_control_too() -> None:
    batches = leaking(wb.selftest.batches(8))
    frozen = accuracy(readout_fit(wb.selftest.healthy(), batches), batches)
    report = wb.judge({"headline_acc": 1.0, "frozen_baseline_acc": frozen})
    assert frozen > 0.98
    assert report.failed == ("D3",)


# -- 4 … 6: batches -----------------------------------------------------------------------------------------------


def sorted_batches() -> tuple[list[tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor]]]:
    """The first eight batches of a large set, as it comes and sorted by class."""
    x, y = wb.selftest.batches(1, 10240)[0]
    order = torch.argsort(y, stable=True)  # walkback: ignore[P14]
    return tuple(list(zip(a.split(128), b.split(128)))[:8] for a, b in ((x, y), (x[order], y[order])))  # type: ignore[return-value]


def test_4_batches_of_one_class_change_the_sub_mode_and_are_noted() -> None:
    shuffled, ordered = sorted_batches()
    right, wrong = (wb.diagnose(wb.selftest.noisy(), batches) for batches in (shuffled, ordered))
    assert (right.submode, wrong.submode) == ("noise-dominated", "drift-dominated")
    assert noted(wrong, "one-class")
    assert right.notes == ()


@pytest.mark.parametrize("size", [64, 128, 1024])
def test_4_sorted_batches_are_noted_whatever_their_size(size: int) -> None:
    x, y = (torch.cat(part) for part in zip(*wb.selftest.batches(8)))
    order = y.sort(stable=True)[1]
    report = wb.diagnose(wb.selftest.healthy(), list(zip(x[order].split(size), y[order].split(size))))
    assert noted(report, "sorted-classes")


@pytest.mark.parametrize(("classes", "samples"), [(2, 1024), (10, 1024), (10, 10240), (100, 1024), (1000, 2048)])
def test_4_shuffled_samples_are_never_called_sorted(classes: int, samples: int) -> None:
    draw = torch.Generator().manual_seed(classes)
    for _ in range(50):
        assert class_sorted(torch.randint(classes, (samples,), generator=draw)) is None
        rare = (torch.rand(samples, generator=draw) ** 4 * classes).long()  # most classes are rare
        assert class_sorted(rare) is None


@pytest.mark.parametrize("size", [1023, 1024, 1100])
def test_labels_that_are_counted_a_few_groups_at_a_time_say_the_same(size, monkeypatch):
    draw = torch.Generator().manual_seed(0)
    shuffled = torch.randint(7, (size,), generator=draw)
    for labels in (shuffled, shuffled.sort().values, torch.full((size,), 3)):
        whole = class_sorted(labels)
        monkeypatch.setattr(witness, "AT_ONCE", 3)
        assert class_sorted(labels) == whole
        monkeypatch.undo()


def test_4_the_test_of_independence_is_scipys() -> None:
    """The level at which samples are called sorted is a p value of 1e-9, as chi2 computes it."""
    from scipy.stats import chi2_contingency, norm

    from walkback.measures.witness import SORTED

    draw, answers = np.random.default_rng(0), []
    for mixing in np.linspace(0.0, 0.6, 40):
        y = draw.integers(10, size=1024)
        part = int(mixing * 1024)
        y[:part] = np.sort(y[:part])
        table = np.stack([np.bincount(g, minlength=10) for g in np.split(y, 8)])
        p = chi2_contingency(table, correction=False).pvalue
        if not 1e-12 < p < 1e-7:  # far from the level, where both forms of it must agree
            answers.append(p < norm.sf(SORTED))
            assert (class_sorted(torch.tensor(y)) is not None) == answers[-1]
    assert {True, False} == set(answers)


def test_5_duplicates_are_noted_and_have_no_stability() -> None:
    batches = wb.selftest.batches(4)
    report = wb.diagnose(wb.selftest.healthy(), [*batches, *batches])
    assert noted(report, "repeated-samples")
    assert report.values["stability"] is None
    once, twice = wb.diagnose(wb.selftest.healthy(), batches), report
    assert twice.per_layer["g_norm"] == pytest.approx(once.per_layer["g_norm"])


def test_6_a_probe_that_is_too_small_is_noted() -> None:
    few = wb.diagnose(wb.selftest.healthy(), wb.selftest.batches(3))
    assert noted(few, "few-samples")
    assert "measured on 384 samples in 3 batches" in few.notes[0].text
    assert "measured on 384 samples in 3 batches" in DOC
    assert noted(wb.diagnose(wb.selftest.healthy(), wb.selftest.batches(8, 16)), "few-samples")
    assert wb.diagnose(wb.selftest.healthy(), wb.selftest.batches(4, 256)).notes == ()


# -- 7, 8: the pass -----------------------------------------------------------------------------------------------


def with_dropout(always: bool) -> nn.Module:
    class Wet(nn.Module):
        def forward(self, f: Tensor) -> Tensor:
            return nn.functional.dropout(f, 0.5, training=always or self.training)

    net = wb.selftest.healthy()
    for block in net.blocks:
        block.append(Wet())  # type: ignore[operator]
    return net


def test_7_dropout_on_changes_nothing() -> None:
    net = with_dropout(always=False)
    dry, wet = (wb.diagnose(net.train(mode), wb.selftest.batches(8)) for mode in (False, True))
    assert net.training
    assert wet.per_layer == dry.per_layer
    assert wet.notes == ()
    assert wet.conditions["mode"] == "eval"


def test_7_dropout_that_eval_mode_leaves_on_is_noted() -> None:
    report = wb.diagnose(with_dropout(always=True), wb.selftest.batches(8))
    assert noted(report, "random-forward")


def test_8_a_scaled_loss_lifts_the_gradient_over_the_floor_and_is_noted() -> None:
    net = wb.selftest.exploded()
    report = honest(net, loss=lambda z, y: 1e5 * nn.functional.cross_entropy(z, y, reduction="none"))
    assert report.failed == (), "the published D2 moves with the loss"
    assert noted(report, "loss-scaled")


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_8_cross_entropy_itself_is_no_other_loss(reduction: str) -> None:
    assert honest(loss=nn.CrossEntropyLoss(reduction=reduction)).notes == ()
    (note,) = honest(loss=lambda z, y: 3 * nn.functional.cross_entropy(z, y, reduction=reduction)).notes
    assert (note.code, note.values) == ("loss-scaled", {"factor": pytest.approx(3.0)})


@pytest.mark.parametrize(
    "loss",
    [
        lambda z, y: nn.functional.cross_entropy(100 * z, y, reduction="none"),
        lambda z, y: (z - nn.functional.one_hot(y, 10)).pow(2).sum(1),
        lambda z, y: nn.functional.cross_entropy(z, y, label_smoothing=0.1),
    ],
)
def test_8_a_wrapped_loss_is_noted(loss) -> None:
    assert noted(honest(loss=loss), "loss-not-cross-entropy")


# -- 9 … 12: the claim --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("claimed", "odd"), [(0.0, False), (0.02, False), (0.3, True), (-0.08, True)])
def test_9_an_accuracy_of_another_split_is_noted(claimed: float, odd: bool) -> None:
    net, batches = wb.selftest.healthy(), wb.selftest.batches(8)
    report = wb.diagnose(net, batches, headline_acc=max(0.0, accuracy(net, batches) + claimed))
    assert noted(report, "other-accuracy") is odd
    assert report.conditions["probe_accuracy"] == accuracy(net, batches)


def test_9_samples_picked_for_being_right_are_noted() -> None:
    net = wb.selftest.healthy()
    x, y = wb.selftest.batches(1, 20480)[0]
    right = net(x).argmax(1) == y
    x, y = x[right][:1024], y[right][:1024]
    report = wb.diagnose(net, list(zip(x.split(128), y.split(128))), headline_acc=float(right.double().mean()))
    assert noted(report, "other-accuracy")


def test_9_the_note_is_made_anew_by_judge_and_not_doubled() -> None:
    report = honest(headline_acc=0.9)
    assert noted(report, "other-accuracy")
    again = wb.judge(report)
    assert again.notes == report.notes
    corrected = wb.judge(report, headline_acc=report.conditions["probe_accuracy"])
    assert corrected.notes == ()


def test_9_what_is_no_classification_has_no_accuracy() -> None:
    class Binary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = wb.selftest.ResidualNet(16, 32, 2, 1)
            self.embed, self.blocks = self.net.embed, self.net.blocks
            self.out_ln, self.out_head = self.net.out_ln, self.net.out_head

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    def bce(z: Tensor, y: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(z[:, 0], y.float(), reduction="none")

    batches = [(x, y % 2) for x, y in wb.selftest.batches(8)]
    report = wb.diagnose(Binary(), batches, headline_acc=0.97, loss=bce)
    assert report.conditions["probe_accuracy"] is None
    assert report.notes == (Note("loss-not-cross-entropy"),)
    soft = [(x, nn.functional.one_hot(y, 10).float()) for x, y in wb.selftest.batches(8)]
    several = wb.measure(wb.selftest.healthy(), soft, loss=lambda z, y: (z.sigmoid() - y).pow(2).sum(1))
    assert several.conditions["probe_accuracy"] is None
    hard = wb.measure(wb.selftest.healthy(), wb.selftest.batches(8))
    assert wb.measure(wb.selftest.healthy(), soft).conditions["probe_accuracy"] == hard.conditions["probe_accuracy"]


def test_9_several_seeds_need_one_that_fits() -> None:
    here = accuracy(wb.selftest.healthy(), wb.selftest.batches(8))
    assert honest(headline_acc=[here, 0.5, 0.6]).notes == ()
    assert noted(honest(headline_acc=[0.5, 0.6, 0.7]), "other-accuracy")


def test_10_the_best_epoch_is_noted() -> None:
    rows = [{"epoch": e, "test_acc": a, "h_norm": [1.0, 2.0, 3.0]} for e, a in ((1, 0.30), (2, 0.41), (3, 0.35))]
    assert noted(wb.judge(rows, headline_acc=0.41), "earlier-epoch")
    assert wb.judge(rows).notes == ()
    assert wb.judge(rows, headline_acc=0.35).notes == ()
    assert earlier_epoch(0.5, [1, 2], [0.3, 0.4]) is None


def test_11_other_thresholds_are_noted() -> None:
    loose = wb.DiagnosticThresholds(g_norm_floor=1e-12)
    report = honest(wb.selftest.exploded(), thresholds=loose)
    assert report.failed == ()
    assert noted(report, "other-thresholds")


def test_12_an_anatomy_without_the_exploding_blocks_is_noted() -> None:
    net = wb.selftest.exploded()
    report = honest(net, anatomy={"blocks": ["blocks.0", "blocks.1"], "stem": "embed"})
    assert report.failed == ()
    assert noted(report, "blocks-left-out")
    assert honest(net, anatomy={"blocks": [f"blocks.{i}" for i in range(4)], "stem": "embed"}).notes == ()


# -- 13, 14: the control ------------------------------------------------------------------------------------------


def test_13_a_control_with_fewer_epochs_is_no_control(tmp_path: Path) -> None:
    spec = wb.RunSpec(rule="dfa", epochs=3)
    short = wb.RunSpec(**{**control_spec(spec).model_dump(), "epochs": 1})
    write_run(tmp_path, spec, 0.5)
    write_run(tmp_path, short, 0.1)
    records = read_records(tmp_path)
    run = records.find(spec)
    assert run is not None
    assert records.control(run) is None
    depth = judged_runs(records, [run]).depth
    assert depth is not None
    assert (depth.flagged, depth.value) == (None, None)
    assert depth.reason == "not tested: frozen_baseline_acc not given"
    assert depth.reason in DOC


def test_14_a_frozen_control_whose_blocks_moved_is_not_used(tmp_path: Path) -> None:
    spec = wb.RunSpec(rule="dfa", epochs=1)
    write_run(tmp_path, spec, 0.5)
    folder = write_run(tmp_path, control_spec(spec), 0.3)
    assert read_records(tmp_path).problems == ()
    report = wb.Report.load(folder / "report.json")
    report.run["weight_growth"][0][0] = 0.5
    report.save(folder / "report.json")
    records = read_records(tmp_path)
    assert len(records) == 1
    (problem,) = records.problems
    assert "they moved by up to 0.5 of their norm: this run is no control" in problem.reason
    assert "this run is no control" in DOC


# -- 15 … 17: the credit ------------------------------------------------------------------------------------------


class Shortcut(wb.rules.DFA):
    """DFA with a share of the true gradient mixed in."""

    share = 0.3

    def setup(self, parts, states, classes, generator):
        super().setup(parts, states, classes, generator)
        self.parts = parts

    def credits(self, trace):
        with torch.enable_grad():
            states = [trace.states[0].detach().requires_grad_()]
            for block in self.parts.blocks:
                states.append(states[-1] + block(states[-1]))
            loss = nn.functional.cross_entropy(self.parts.readout(states[-1]), trace.labels, reduction="sum")
            true = torch.autograd.grad(loss, states)
        return [a + self.share * g for a, g in zip(super().credits(trace), true)]


def certificate(rule: wb.rules.Rule) -> wb.Certificate:
    torch.manual_seed(0)
    net = wb.nets.build("resmlp", (12,), 5, width=32, depth=3)
    wb.rules.set_up(rule, net, torch.zeros(2, 12), 5, torch.Generator().manual_seed(3))
    return wb.certify(rule, net)


def test_15_hidden_backpropagation_is_certified_as_such() -> None:
    found = certificate(Shortcut())
    assert found.hidden_backprop == ("stem", "block 1", "block 2", "block 3")
    assert "hidden backpropagation in: stem, block 1" in str(found)
    assert certificate(wb.rules.make("dfa")).hidden_backprop == ()


def test_15_what_is_out_of_reach_of_the_certificate_is_written_down() -> None:
    class Sly(Shortcut):
        share = 0.002

    class Plain(Shortcut):
        def setup(self, parts, states, classes, generator):
            self.parts = parts
            self.plain = [torch.randn(classes, h.shape[1], generator=generator) / 6 for h in states]

        def matrices(self):
            return self.plain

        def redraw(self, generator):
            return False

    assert certificate(Sly()).hidden_backprop == certificate(Plain()).hidden_backprop == ()
    assert "0.2 % in the test" in DOC
    assert "feedback kept in plain\n  attributes" in DOC


def test_16_a_rule_that_is_measured_as_another_is_certified_as_such() -> None:
    class TwoFaced(Shortcut):
        def credits(self, trace):
            return super().credits(trace) if self.training else wb.rules.DFA.credits(self, trace)

    found = certificate(TwoFaced())
    assert found.two_faced
    assert "trains with cosine" in str(found)


@pytest.mark.parametrize(
    ("factor", "code"),
    [
        (1.0, "bp-itself"),
        (3.0, "bp-direction"),
        (-1.0, "bp-against"),
    ],
)
def test_17_a_credit_that_is_backpropagation_is_noted(factor: float, code: str) -> None:
    report = honest(credit=lambda trace: [factor * g for g in trace.grads])
    assert noted(report, code)
    assert [note.code for note in report.notes] == [code]
    assert wb.judge(report).notes == report.notes


def test_18_a_credit_of_another_batch_is_refused() -> None:
    kept: list[list[Tensor]] = []

    def stale(trace: wb.Trace) -> list[Tensor]:
        kept.append([g.clone() for g in trace.grads])
        return kept[0]

    with pytest.raises(wb.CreditError, match="batch"):
        honest(credit=stale)


# -- 19: what is not a number -------------------------------------------------------------------------------------


class Fragile(wb.selftest.ResidualNet):
    """Not a number for one sample in twenty, and right about all the others."""

    def forward(self, x: Tensor, return_hidden: bool = False):
        bad = (x[:, 0] > 1.6449).double()[:, None]
        h = self.embed(x) / (1 - bad).to(x.dtype)
        hidden = [h]
        for block in self.blocks:
            hidden.append(hidden[-1] + block(hidden[-1]))
        logits = self.out_head(self.out_ln(hidden[-1]))
        return (logits, hidden) if return_hidden else logits


def test_19_samples_that_are_not_finite_are_a_finding_and_their_filtering_shows_in_the_accuracy() -> None:
    net = Fragile(16, 32, 2, 10).eval()
    x, _ = wb.selftest.batches(1, 1280)[0]
    with torch.no_grad():
        answers = net(x)
        y = answers.nan_to_num(0.0).argmax(1)
        bad = ~answers.isfinite().all(1)
        y[bad] = (net.out_head.bias.argmax() + 1) % 10  # wrong wherever it is not a number
    assert 0.02 < float(bad.double().mean()) < 0.1
    whole = wb.diagnose(net, list(zip(x.split(128), y.split(128))), headline_acc=0.95)
    assert whole.failed == ("D1", "D2")
    x, y = x[~bad], y[~bad]
    filtered = wb.diagnose(net, list(zip(x.split(128), y.split(128))), headline_acc=float((~bad).double().mean()))
    assert filtered.failed == ()
    assert noted(filtered, "other-accuracy")


# -- 20 … 24: seeds, controls, near copies -----------------------------------------------------------------------


STREAM = {"per_layer": {"h_norm": [3.0, 4.0, 5.0], "g_norm": [1e-3, 2e-3, 1e-3]}}


@pytest.mark.parametrize(
    ("headline", "frozen", "named"),
    [
        (
            [0.45, 0.45],
            [0.425, 0.425],
            "headline_acc is 0.450, frozen_baseline_acc is 0.425, the gain over frozen blocks",
        ),
        ([0.45, 0.45, 0.45], [0.42, 0.43, 0.41], "headline_acc is 0.450 for all 3"),
        ([0.45, 0.46], [0.3, 0.3], "frozen_baseline_acc is 0.300 for all 2"),
        ([0.45, 0.47], [0.425, 0.445], "the gain over frozen blocks is 0.025 for all 2"),
        ([0.45, 0.45], None, "headline_acc is 0.450 for all 2"),
        ([0.45, 0.46], [0.425, 0.43], None),
        ([0.5, 0.5, 0.6], [0.4, 0.3, 0.4], None),
        ([0.45], [0.425], None),
        (0.45, 0.425, None),
    ],
)
def test_20_one_run_told_as_several_seeds_is_noted(headline, frozen, named: str | None) -> None:
    report = wb.judge(STREAM, headline_acc=headline, frozen_baseline_acc=frozen)
    assert noted(report, "no-spread", quoted=named is not None and ", " in named) is (named is not None)
    assert all(str(named) in note.text for note in report.notes)
    assert wb.judge(report).notes == report.notes, "made anew and not doubled"


def test_20_the_interval_has_no_width() -> None:
    report = wb.judge(STREAM, headline_acc=[0.45, 0.45], frozen_baseline_acc=[0.425, 0.425])
    assert report.values["depth_margin_pp"] == pytest.approx(2.5)
    assert report.verdict == "passes", "a note changes no verdict"


@pytest.mark.parametrize(
    ("frozen", "classes", "odd"),
    [
        (0.0, None, True),
        (0.01, None, False),  # of 100 classes, for all we know
        (0.0, 10, True),
        (0.01, 10, True),
        ([0.3, 0.02], 10, True),
        (0.05, 10, False),
        (0.01, 100, False),
        (0.3, 2, False),
        (0.2, 2, True),
    ],
)
def test_21_a_control_below_chance_is_noted(frozen, classes: int | None, odd: bool) -> None:
    numbers = {**STREAM, **({} if classes is None else {"conditions": {"classes": classes}})}
    headline = [0.4, 0.41] if isinstance(frozen, list) else 0.4
    report = wb.judge(numbers, headline_acc=headline, frozen_baseline_acc=frozen)
    assert noted(report, "below-chance") is odd
    assert wb.judge(report).notes == report.notes


def test_21_a_control_that_is_never_right_is_noted_in_a_diagnosis() -> None:
    assert noted(honest(frozen_baseline_acc=0.0), "below-chance")


def noisy(share: float):
    """The gradient with noise of a share of its norm, which makes a cosine of 1/√(1 + share²)."""
    draw = torch.Generator().manual_seed(0)

    def credit(trace: wb.Trace) -> list[Tensor]:
        noise = [nn.functional.normalize(torch.randn(g.shape, generator=draw)) for g in trace.grads]
        return [g + share * g.norm(dim=1, keepdim=True) * n for g, n in zip(trace.grads, noise)]

    return credit


@pytest.mark.parametrize(("share", "odd"), [(0.01, True), (0.1, True), (0.2, False), (1.0, False)])
def test_22_a_credit_that_is_backpropagation_with_noise_is_asked_about(share: float, odd: bool) -> None:
    report = honest(credit=noisy(share))
    assert report.per_layer["cosine"] == pytest.approx([(1 + share**2) ** -0.5] * 5, abs=0.02 * share)
    assert noted(report, "bp-nearly") is odd
    assert [note.code for note in report.notes] == ["bp-nearly"] * odd
    assert wb.judge(report).notes == report.notes


def test_22_one_deep_site_of_its_own_is_enough() -> None:
    def mixed(trace: wb.Trace) -> list[Tensor]:
        credits = noisy(0.01)(trace)
        return [credits[0], credits[1].roll(1, 1), *credits[2:]]

    assert not noted(honest(credit=mixed), "bp-nearly")


def test_23_copies_with_a_jitter_are_out_of_reach() -> None:
    draw, batches = torch.Generator().manual_seed(0), wb.selftest.batches(4)
    copies = [(x + 1e-6 * torch.randn(x.shape, generator=draw), y) for x, y in batches]
    report = wb.diagnose(wb.selftest.healthy(), [*batches, *copies])
    assert (report.notes, report.conditions["distinct_samples"]) == ((), 1024)
    assert "**Samples repeated with a jitter**" in DOC


def test_24_samples_that_see_their_batch_are_out_of_reach_and_half_batches_show_them() -> None:
    class Centred(nn.Module):
        def forward(self, f: Tensor) -> Tensor:
            return f - f.mean(0, keepdim=True)

    def norms(net: nn.Module, size: int) -> list[float]:
        report = wb.diagnose(net, wb.selftest.batches(1024 // size, size))
        assert report.notes == ()
        return report.per_layer["h_norm"]

    net = wb.selftest.healthy()
    assert norms(net, 128) == pytest.approx(norms(net, 64), rel=1e-6)
    for block in net.blocks:
        block.append(Centred())  # type: ignore[operator]
    assert norms(net, 128)[-1] != pytest.approx(norms(net, 64)[-1], rel=1e-4)
    assert "**Samples that see their batch**" in DOC


def refused(error: type[Exception], words: str, *given, **more) -> None:
    assert words in DOC, f"docs/adversarial.md does not quote {words!r}"
    with pytest.raises(error, match=re.escape(words)):
        wb.diagnose(*given, **more)


def test_25_soft_labels_that_are_no_probabilities_are_refused() -> None:
    soft = [(x, nn.functional.one_hot(y, 10).float()) for x, y in wb.selftest.batches(8)]
    assert wb.diagnose(wb.selftest.exploded(), soft).failed == ("D1", "D2")
    words = "Expected soft labels to be probabilities"
    refused(wb.InputError, words, wb.selftest.exploded(), [(x, 1e6 * y) for x, y in soft])


def test_26_a_scale_outside_the_blocks_is_read_at_the_sums_and_refused_where_blocks_are_said_to_return_all() -> None:
    class Scaled(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.embed, self.norm, self.head = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 10)
            self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32)) for _ in range(3))
            self.scale = scale

        def forward(self, x: Tensor) -> Tensor:
            h = 5e3 * self.embed(x)
            for block in self.blocks:
                h = h + self.scale * block(h) if self.scale != 1 else h + block(h)
            return self.head(self.norm(h))

    torch.manual_seed(0)
    assert wb.diagnose(Scaled(1.0), wb.selftest.batches(8)).per_layer["g_norm"][-1] > 1e-7
    words = "Expected what block 1 (blocks.0) returns to be added to the stream as it is"
    said = {"blocks": "blocks", "branch": True}
    refused(wb.AnatomyError, words, Scaled(1e-3), wb.selftest.batches(8), anatomy=said)
    net, batches = Scaled(1e-3), wb.selftest.batches(8)
    report = wb.diagnose(net, batches)
    assert "stepped-sites" in {note.code for note in report.notes}
    h = [5e3 * net.embed(torch.cat([x for x, _ in batches]))]
    for block in net.blocks:
        h.append(h[-1] + 1e-3 * block(h[-1]))
    y = torch.cat([y for _, y in batches])
    grads = torch.autograd.grad(nn.functional.cross_entropy(net.head(net.norm(h[-1])), y, reduction="sum"), h)
    by_hand = [g.norm(dim=1).mean().item() / len(batches[0][1]) for g in grads]
    assert report.per_layer["g_norm"] == pytest.approx(by_hand, rel=1e-4)


@pytest.mark.parametrize("depth", [1, 3])
def test_26_a_scale_outside_the_last_block_alone_is_refused(depth: int) -> None:
    """The terminal norm is a function, so that no module receives the stream."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out_head = nn.Linear(16, 32), nn.Linear(32, 10)
            self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32)) for _ in range(depth))

        def forward(self, x: Tensor) -> Tensor:
            h = self.embed(x)
            for block in self.blocks:
                h = h + block(h) if block is not self.blocks[-1] else h + 1e-5 * block(h)
            return self.out_head(nn.functional.layer_norm(h, (32,)))

    torch.manual_seed(0)
    anatomy = {"blocks": "blocks", "branch": True}
    with pytest.raises(wb.AnatomyError, match=rf"what block {depth} .* returns to be added to the stream as it is"):
        wb.diagnose(Scaled(), wb.selftest.batches(8), anatomy=anatomy)


@pytest.mark.parametrize("how", ["mean", "half"])
def test_27_an_altered_backward_pass_is_noted_whatever_the_loss_returns_and_in_half_precision(how: str) -> None:
    def report(sign: float) -> wb.Report:
        net, batches = wb.selftest.healthy(), wb.selftest.batches(8)
        net.blocks[3].register_full_backward_hook(lambda module, given, made: (sign * given[0],))  # type: ignore[operator]
        if how == "half":
            net, batches = net.bfloat16(), [(x.bfloat16(), y) for x, y in batches]
        return wb.diagnose(net, batches, loss=nn.CrossEntropyLoss() if how == "mean" else None)

    assert noted(report(-1.0), "altered-backward")
    assert "D2" in report(-1.0).failed
    assert not noted(report(1.0), "altered-backward")


def test_28_a_credit_that_changes_the_network_or_its_batch_is_refused_and_undone() -> None:
    net = wb.selftest.healthy()
    kept, batches = copy.deepcopy(net.state_dict()), wb.selftest.batches(8)
    x = batches[0][0].clone()

    def steps(trace: wb.Trace) -> list[Tensor]:
        for p in net.parameters():
            p.data.sub_(0.1)  # past the version counter
        return [g.sign() for g in trace.grads]

    def writes(trace: wb.Trace) -> list[Tensor]:
        trace.inputs.mul_(0.5)
        return [g.sign() for g in trace.grads]

    for credit in (steps, writes):
        with pytest.raises(wb.CreditError):
            wb.diagnose(net, batches, credit=credit)
    assert "refused: `CreditError`, and what it changed is put back" in DOC
    assert all(torch.equal(value, kept[name]) for name, value in net.state_dict().items())
    assert torch.equal(batches[0][0], x)


def test_29_samples_without_a_gradient_do_not_hide_growth() -> None:
    """Every sample is read at its last real token, and the first is a sink of 1e4: read there, nothing grows."""

    class LastToken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.norm, self.head = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3)
            self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)) for _ in range(2))

        def states(self, x: Tensor) -> list[Tensor]:
            h = [self.embed(x)]
            for block in self.blocks:
                h.append(h[-1] + block(h[-1]))
            return h

        def forward(self, x: Tensor) -> Tensor:
            last = (x.abs().sum(-1) > 0).sum(1) - 1
            return self.head(self.norm(self.states(x)[-1][torch.arange(len(x)), last]))

    torch.manual_seed(0)
    net, x, lengths = LastToken(), torch.randn(1024, 6, 4), torch.randint(2, 7, (1024,))
    x[torch.arange(6) >= lengths[:, None]] = 0
    x[:, 0] *= 1e4
    with torch.no_grad():
        net.head.weight.mul_(10)
        net.blocks[1][1].weight.mul_(200)
    y = net(x).argmax(1)
    y[::8] = (y[::8] + 1) % 3
    batches = list(zip(x.split(128), y.split(128)))

    def hinge(z: Tensor, t: Tensor) -> Tensor:
        return nn.functional.multi_margin_loss(z, t, reduction="none")

    report = wb.diagnose(net, batches, loss=hinge, edition="four-diagnostic")
    assert noted(report, "unread-samples")
    assert report.failed == ("a",)
    with torch.no_grad():
        lost = (hinge(net(x), y) > 0).numpy()
        norms = [h[torch.arange(1024), lengths - 1].double().norm(dim=1).numpy() for h in net.states(x)]
    assert report.per_layer["h_norm"] == pytest.approx([n[lost].mean() for n in norms], rel=1e-5)
    sink = [h[:, 0].norm(dim=1).mean().item() for h in net.states(x)]
    assert max(b / a for a, b in pairwise(sink)) < 1.1, "what it would have been"


@pytest.mark.parametrize("step", [1, -1])
def test_30_a_credit_one_site_off_looks_aligned_and_its_neighbour_tells(step: int) -> None:
    """BP's own gradients, handed in for the sites beside theirs."""

    def credit(trace: wb.Trace) -> list[Tensor]:
        last = len(trace.grads) - 1
        return [trace.grads[min(max(site + step, 0), last)] for site in range(last + 1)]

    report = honest(credit=credit)
    per_layer = report.per_layer
    kept = slice(0, -1) if step == 1 else slice(1, None)
    neighbour = per_layer["cosine_above" if step == 1 else "cosine_below"]
    assert all(0.9 < own < 0.99 for own in per_layer["cosine"][kept]), "what a script would publish"
    assert neighbour[kept] == pytest.approx([1.0] * 4, abs=1e-12)
    assert [note.values["fits"] for note in report.notes if note.code == "shifted-pairing"] == [
        "next" if step == 1 else "previous"
    ]
    if step == 1:
        assert noted(report, "shifted-pairing")


# -- the page -----------------------------------------------------------------------------------------------------


def test_the_page_and_the_tests_number_the_same_tries() -> None:
    in_page = {int(n) for n in re.findall(r"^\| (\d+) \|", DOC, re.MULTILINE)}
    tested = {int(n) for n in re.findall(r"^def test_(\d+)_", Path(__file__).read_text(encoding="utf-8"), re.MULTILINE)}
    assert in_page == tested == set(range(1, 31))
    assert "Out of reach" in DOC


def test_a_loader_that_writes_its_labels_into_one_tensor_is_counted_right():
    """Logits and labels wait until several batches are looked at: the labels that wait are copies."""
    model, batches = wb.selftest.healthy(), wb.selftest.batches(4)
    one = torch.empty_like(batches[0][1])

    def reused():
        for x, y in batches:
            yield x, one.copy_(y)

    accuracy = wb.measure(model, batches).conditions["probe_accuracy"]
    assert wb.measure(model, reused()).conditions["probe_accuracy"] == accuracy
    right = sum(int((model.eval()(x).argmax(1) == y).sum()) for x, y in batches)
    assert accuracy == right / sum(len(y) for _, y in batches)
