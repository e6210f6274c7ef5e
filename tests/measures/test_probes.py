"""Probes by hand: the network is run on from a changed state in the test, and loss changes are compared."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import walkback as wb
from nets import Linear, SmoothNet, batched, rows
from walkback.notes import coded

SHAPES = [("flat", "cls"), ("tokens", "cls"), ("tokens", "last"), ("tokens", "mean"), ("maps", "")]


def tilted(trace: wb.Trace) -> list[Tensor]:
    """A credit of its own at every site, neither aligned nor random, and not of unit length."""
    return [3.0 * g / g.norm() + 0.1 * torch.roll(h, 1, -1) for h, g in zip(trace.states, trace.grads)]


# -- nudging ------------------------------------------------------------------------------------------------


def nudged(net: SmoothNet, x: Tensor, y: Tensor, a: Tensor, site: int, eta: float, relative: bool) -> float:
    """The mean change of the loss after a step along −a/‖a‖ at one site, with nothing of the package in it."""
    h = net.stream(x)[site]
    norm = np.linalg.norm(rows(a.numpy()), axis=1)
    length = eta * (np.linalg.norm(rows(h.numpy()), axis=1) if relative else np.ones(len(h)))
    step = torch.from_numpy((length / norm).reshape(-1, *[1] * (h.ndim - 1))) * a
    return float(np.mean(net.loss_from(h - step, site, x, y) - net.loss_from(h, site, x, y)))


@pytest.mark.parametrize("returns", ["branch", "state", "inplace"])
@pytest.mark.parametrize(("kind", "reads"), SHAPES)
def test_nudging_by_hand(kind: str, reads: str, returns: str):
    net = SmoothNet(kind, reads, returns)
    x, y = net.example(64)
    given: list[list[Tensor]] = []

    def credit(trace: wb.Trace) -> list[Tensor]:
        given.append(tilted(trace))
        return given[-1]

    m = wb.measure(net, batched(x, y, 32), credit=credit, probes=[wb.Nudging(eta=0.02, samples=64)])
    a = [torch.cat(parts) for parts in zip(*given)]
    for name, relative in (("nudging", False), ("nudging_relative", True)):
        want = [nudged(net, x, y, a[site], site, 0.02, relative) for site in range(4)]
        assert m.probes[name] == pytest.approx(want, rel=1e-8, abs=1e-14)
        assert all(change < 0 for change in want)
    assert m.probes["nudging"] != pytest.approx(m.probes["nudging_relative"], rel=0.1)


def test_a_small_step_lowers_the_loss_by_its_slope():
    """To first order −η⟨g, a⟩/‖a‖, from autograd rather than from two losses."""
    net = SmoothNet()
    x, y = net.example(64)
    given: list[wb.Trace] = []

    def credit(trace: wb.Trace) -> list[Tensor]:
        given.append(trace)
        return tilted(trace)

    m = wb.measure(net, [(x, y)], credit=credit, probes=[wb.Nudging(eta=1e-6)])
    for site, (a, g) in enumerate(zip(tilted(given[0]), given[0].grads)):
        slope = float(((a * g).sum(1) / a.norm(dim=1)).mean())
        assert m.probes["nudging"][site] == pytest.approx(-1e-6 * slope, rel=1e-4)
        assert m.probes["nudging_bp"][site] == pytest.approx(-1e-6 * float(g.norm(dim=1).mean()), rel=1e-4)


def test_nudging_takes_at_least_the_samples_it_is_asked_for():
    net = SmoothNet()
    x, y = net.example(96)
    few = wb.measure(net, batched(x, y, 32), credit=tilted, probes=[wb.Nudging(samples=33)])
    same = wb.measure(net, batched(x[:64], y[:64], 32), credit=tilted, probes=[wb.Nudging(samples=64)])
    assert few.conditions["nudging"]["samples"] == 64
    assert few.probes["nudging"] == pytest.approx(same.probes["nudging"], rel=1e-12)


def test_a_float32_network_is_probed_in_float64():
    """A step of 1e-7 changes the loss by less than float32 can show."""
    net = SmoothNet().float()
    x, y = net.example(64)
    x = x.float()
    m = wb.measure(net, [(x, y)], credit=lambda t: t.states, probes=[wb.Nudging(eta=1e-7)])
    wide = SmoothNet().float().double()
    a = wide.stream(x.double())
    want = [nudged(wide, x.double(), y, a[site], site, 1e-7, False) for site in range(4)]
    assert m.conditions["probe_dtype"] == "float64"
    assert m.probes["nudging"] == pytest.approx(want, rel=1e-4)
    assert next(net.parameters()).dtype == torch.float32


# -- perturbation correlation ---------------------------------------------------------------------------------


class Recorder(nn.Module):
    """Stands in a block's place and hands on what it receives: the changed stream, seen from inside.

    Not to a list of its own: what a network keeps of being measured is gone afterwards.
    """

    def __init__(self, inner: nn.Module, tell: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.inner, self.returns, self.tell = inner, inner.returns, tell

    def forward(self, h: Tensor) -> Tensor:
        self.tell(h.detach().clone())
        return self.inner(h)


def pearson_by_hand(a: np.ndarray, steps: list[np.ndarray], changes: list[np.ndarray]) -> float:
    """Per sample, the correlation over directions of ⟨a, step⟩ with the change of the loss; then the mean."""
    values = []
    for i in range(len(a)):
        predicted = np.array([np.dot(a[i].ravel(), step[i].ravel()) for step in steps])
        actual = np.array([change[i] for change in changes])
        values.append(np.corrcoef(predicted, actual)[0, 1])
    return float(np.mean(values))


@pytest.mark.parametrize("directions", ["isotropic", "data"])
@pytest.mark.parametrize("step", [1e-3, 0.5])
@pytest.mark.parametrize("kind", ["flat", "tokens"])
def test_perturbation_by_hand(directions: str, step: float, kind: str):
    """The steps are read off the stream inside the network, so the test shares neither code nor random numbers."""
    net = SmoothNet(kind)
    x, y = net.example(12)
    given: list[wb.Trace] = []

    def credit(trace: wb.Trace) -> list[Tensor]:
        given.append(trace)
        return tilted(trace)

    per_block: list[list[Tensor]] = [[] for _ in net.blocks]
    net.blocks = nn.ModuleList(Recorder(block, own.append) for block, own in zip(net.blocks, per_block))
    read: list[Tensor] = []
    net.norm.register_forward_pre_hook(lambda _, args: read.append(args[0].detach().clone()))
    probe = wb.Perturbation(directions=directions, count=9, step=step, samples=12)
    m = wb.measure(net, [(x, y)], credit=credit, probes=[probe])
    recorders = list(net.blocks)
    assert [len(own) for own in per_block] == [1 + 4 * 10] * 3, "one pass, then one base and nine steps per site"
    net.blocks = nn.ModuleList(r.inner for r in recorders)
    stream = net.stream(x)
    by_site = per_block + ([read] if kind == "flat" else [])  # tokens: the readout sees only one
    for site, calls in enumerate(by_site):
        seen = calls[1 + 10 * site :][:10]
        assert torch.equal(seen[0], stream[site])
        steps = [(h - seen[0]).numpy() for h in seen[1:]]
        size = np.linalg.norm(rows(seen[0].numpy()), axis=1)
        for delta in steps:
            assert np.linalg.norm(rows(delta), axis=1) == pytest.approx(step * size, rel=1e-9)
        base = net.loss_from(stream[site], site, x, y)
        changes = [net.loss_from(h, site, x, y) - base for h in seen[1:]]
        for name, signal in (("perturbation", tilted(given[0])[site]), ("perturbation_bp", given[0].grads[site])):
            want = pearson_by_hand(signal.numpy(), steps, changes)
            assert m.probes[name][site] == pytest.approx(want, abs=1e-6)


@pytest.fixture(scope="module")
def wide() -> tuple[SmoothNet, list[tuple[Tensor, Tensor]]]:
    net = SmoothNet(width=24)
    return net, batched(*net.example(384), 128)


def test_the_controls(wide):
    """The BP gradient predicts the change of a smooth loss; a random vector predicts nothing."""
    net, data = wide
    m = wb.measure(net, data, credit=tilted, probes=[wb.Perturbation(samples=384)])
    assert all(0.99 < value <= 1 for value in m.probes["perturbation_bp"])
    assert all(abs(value) < 0.05 for value in m.probes["perturbation_random"])


def test_isotropic_directions_estimate_the_cosine(wide):
    """So it is no independent check, and the documentation may say so."""
    net, data = wide
    m = wb.measure(net, data, credit=tilted, probes=[wb.Perturbation(samples=384)])
    assert m.probes["perturbation"] == pytest.approx(m.cosine, abs=0.03)
    assert all(0.2 < c < 0.98 for c in m.cosine)


def test_a_random_credit_has_no_correlation(wide):
    net, data = wide
    generator = torch.Generator().manual_seed(9)

    def credit(trace: wb.Trace) -> list[Tensor]:
        return [torch.randn(h.shape, generator=generator, dtype=h.dtype) for h in trace.states]

    m = wb.measure(net, data, credit=credit, probes=[wb.Perturbation(samples=384)])
    assert all(abs(value) < 0.05 for value in m.probes["perturbation"])


def test_data_directions_and_finite_steps_ask_other_questions(wide):
    net, data = wide
    plain, along_data, far = (
        wb.measure(net, data[:1], credit=tilted, probes=[probe]).probes
        for probe in (wb.Perturbation(), wb.Perturbation(directions="data"), wb.Perturbation(step=3.0))
    )
    for other in (along_data, far):
        assert all(abs(a - b) > 1e-3 for a, b in zip(plain["perturbation"], other["perturbation"]))
    assert all(value > 0.99 for value in along_data["perturbation_bp"]), "a small step stays linear"
    assert all(value < 0.97 for value in far["perturbation_bp"]), "a step of 3‖h‖ does not"


@pytest.mark.parametrize(("directions", "inside"), [("data", True), ("isotropic", False)])
def test_data_directions_stay_in_the_span_of_the_states(directions: str, inside: bool):
    spec = Linear.random(depth=1, width=12)  # five inputs: states fill five of twelve dimensions
    x, y = spec.data(40)
    net = spec.net()
    made: list[Tensor] = []
    net.blocks[0].register_forward_hook(lambda _, args, out: made.append(out.detach().clone()))
    wb.measure(net, batched(x, y, 40), probes=[wb.Perturbation(directions=directions, count=5)])
    inverse = np.linalg.inv(spec.layers[0])  # the block is linear: what it made shows what it got
    steps = np.stack([(h - made[1]).numpy() @ inverse.T for h in made[2:7]])
    outside = np.eye(12) - spec.stem @ np.linalg.pinv(spec.stem)
    left = np.linalg.norm(steps @ outside, axis=-1) / np.linalg.norm(steps, axis=-1)
    assert (left < 1e-8).all() == inside


def test_probes_are_repeatable_and_follow_their_seed(wide):
    net, data = wide
    runs = []
    for seed in (0, 0, 1):
        torch.rand(1)  # the global generator moves on; the probe's must not notice
        m = wb.measure(net, data[:1], probes=[wb.Perturbation(count=4, seed=seed)])
        runs.append(m.probes["perturbation_random"])
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


# -- what can't be probed says why --------------------------------------------------------------------------


@pytest.mark.parametrize("last", [32, 1])
def test_a_mean_loss_can_not_be_probed(last: int):
    """Also when the last batch holds one sample, whose mean is its own loss."""
    net = SmoothNet()
    x, y = net.example(64 + last)
    m = wb.measure(
        net, batched(x, y, 32, 32, last), credit=tilted, loss=F.cross_entropy, probes=["perturbation", "nudging"]
    )
    for name in ("perturbation", "nudging", "nudging_relative"):
        assert name not in m.probes
        assert m.reasons[name] == "the loss returns a mean; probes need one loss per sample"


def test_without_credit_only_the_controls_are_probed():
    net = SmoothNet()
    m = wb.measure(net, [net.example(16)], probes=[wb.Perturbation(count=3), wb.Nudging()])
    nudged = ["nudging_bp", "nudging_bp_relative", "nudging_bp_rms"]
    assert sorted(m.probes) == [*nudged, "perturbation_bp", "perturbation_random"]
    assert m.reasons["perturbation"] == m.reasons["nudging"] == "no credit was given"


def test_a_zero_credit_gives_no_step():
    net = SmoothNet()
    m = wb.measure(
        net, [net.example(16)], credit=lambda t: [0 * t.states[0], *t.states[1:]], probes=["perturbation", "nudging"]
    )
    assert m.probes["perturbation"][0] is None
    assert None not in m.probes["perturbation"][1:]
    assert "zero" in m.reasons["perturbation"]
    for name in ("nudging", "nudging_relative", "nudging_rms"):
        assert m.probes[name][0] == 0.0
        assert 0.0 not in m.probes[name][1:]
        assert name not in m.reasons
    (note,) = coded(m.notes, "no-cosine")
    assert (note.site, note.values["samples"], note.values["of"], m.zero_credit[0]) == (0, 16, 16, 1.0)
    assert note.text == "no cosine at site 0: the credit is zero for 16 of 16 samples, which are counted as no change"


def test_a_site_without_credit_counts_in_the_mean_over_deep_sites():
    net = SmoothNet()

    def of_some(sites: set[int]):
        return lambda t: [h * (site in sites) for site, h in enumerate(t.states)]

    def nudged_by(sites: set[int]) -> wb.Report:
        return wb.diagnose(net, [net.example(16)], credit=of_some(sites), probes=["nudging"])

    most, every = nudged_by({0, 1, 3}), nudged_by({0, 1, 2, 3})
    assert most.per_layer["nudging"][2] == 0.0
    rest = [every.per_layer["nudging"][site] for site in (1, 3)]
    assert most.values["deep_nudging"] == pytest.approx(sum(rest) / 3, rel=1e-12)
    none = nudged_by(set())
    assert none.per_layer["nudging"] == [0.0] * 4
    assert json.loads(none.to_json())["per_layer"]["nudging"] == [0.0] * 4
    assert "credit is zero at every site" in none.details()


def test_a_reference_of_zero_is_no_control():
    """No change of a step along the gradient says nothing where there is no gradient: it stays without a number."""
    net = SmoothNet()
    loss = lambda z, y: 0 * F.cross_entropy(z, y, reduction="none")  # noqa: E731
    m = wb.measure(net, [net.example(16)], credit=tilted, loss=loss, probes=["nudging"])
    assert m.probes["nudging_bp"] == [None] * 4
    assert "zero" in m.reasons["nudging_bp"]


def spoilt(value: float):
    """`tilted`, with one value in one sample of site 1."""

    def credit(trace: wb.Trace) -> list[Tensor]:
        credits = tilted(trace)
        credits[1][2, 3] = value
        return credits

    return credit


class Hides(SmoothNet):
    """Turns NaN in the stream into a number, so that the loss does not show it."""

    def step(self, block: nn.Module, h: Tensor) -> Tensor:
        return super().step(block, torch.nan_to_num(h))


@pytest.mark.parametrize("kind", [SmoothNet, Hides])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_a_credit_that_is_not_finite_in_one_sample_is_not_probed_there(value: float, kind: type[SmoothNet]):
    """1e300 is finite, but its length is not."""
    net = kind()
    m = wb.measure(net, [net.example(16)], credit=spoilt(value), probes=["perturbation", "nudging"])
    for name in ("perturbation", "nudging", "nudging_relative"):
        assert [v is None for v in m.probes[name]] == [False, True, False, False]
        assert m.reasons[name] == "the signal, or the loss after a step, is not finite at site 1"
    for name in ("perturbation_bp", "perturbation_random", "nudging_bp"):
        assert None not in m.probes[name]
        assert name not in m.reasons


def test_a_loss_that_is_not_finite_after_a_step_is_not_probed():
    net = SmoothNet()
    x, y = net.example(16)
    base = net.loss_from(net.stream(x)[0], 0, x, y)

    def fragile(logits: Tensor, labels: Tensor) -> Tensor:
        losses = F.cross_entropy(logits, labels, reduction="none")
        moved = (losses - torch.as_tensor(base)).abs() > 1e-9
        return losses.where(~moved | (torch.arange(16) != 5), torch.inf)

    m = wb.measure(net, [(x, y)], credit=tilted, loss=fragile, probes=["perturbation", "nudging"])
    for name in ("perturbation", "perturbation_bp", "nudging", "nudging_relative", "nudging_bp"):
        assert m.probes[name] == [None] * 4
        assert m.reasons[name] == "the signal, or the loss after a step, is not finite at site 0, 1, 2, 3"


def test_samples_without_credit_count_as_no_change():
    """Four of 32 samples have no credit at site 1: there no step is made, and nothing is predicted."""
    net = SmoothNet()
    x, y = net.example(32)
    given: list[list[Tensor]] = []

    def credit(trace: wb.Trace) -> list[Tensor]:
        given.append(tilted(trace))
        given[-1][1][[0, 4]] = 0.0
        return given[-1]

    probes = [wb.Nudging(eta=0.02), wb.Perturbation(count=9)]
    m = wb.measure(net, batched(x, y, 16), credit=credit, probes=probes)
    rest = [i for i in range(32) if i not in (0, 4, 16, 20)]
    a = torch.cat([credits[1] for credits in given])[rest]
    share = len(rest) / 32
    assert m.probes["nudging"][1] == pytest.approx(share * nudged(net, x[rest], y[rest], a, 1, 0.02, False), rel=1e-8)
    plain = wb.measure(net, batched(x, y, 16), credit=tilted, probes=probes)
    assert m.probes["nudging"][0] == plain.probes["nudging"][0]
    # The same directions are drawn for every sample, so what the four would have added is all that is missing.
    few = [0, 4]
    alone = wb.measure(net, batched(x, y, 16), credit=only(few), probes=probes)
    for name in ("nudging", "nudging_relative", "perturbation"):
        assert m.probes[name][1] + alone.probes[name][1] == pytest.approx(plain.probes[name][1], rel=1e-8), name
    assert m.probes["perturbation_bp"] == plain.probes["perturbation_bp"], "the controls have their own signal"
    assert m.zero_credit[1] == 4 / 32
    assert not coded(m.notes, "probe-left-out")
    assert not set(m.reasons) & {"nudging", "nudging_relative", "perturbation"}


def only(kept: list[int]):
    """`tilted`, with a credit at site 1 for a few samples of each batch alone."""

    def credit(trace: wb.Trace) -> list[Tensor]:
        credits = tilted(trace)
        others = [i for i in range(len(credits[1])) if i not in kept]
        credits[1][others] = 0.0
        return credits

    return credit


def test_samples_whose_loss_does_not_change_are_left_out_of_the_correlation_and_counted():
    net = SmoothNet()
    x, y = net.example(32)
    flat = y == 0
    assert 0 < flat.sum() < 32

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, reduction="none") * (labels != 0)

    m = wb.measure(net, [(x, y)], credit=tilted, loss=loss, probes=[wb.Perturbation(count=9), wb.Nudging()])
    (note,) = coded(m.notes, "probe-left-out")
    assert note.values["of"] == 32
    assert note.values["left_out"] == {str(site): int(flat.sum()) for site in range(4)}
    assert set(note.values["probes"]) == {"perturbation", "perturbation_bp", "perturbation_random"}
    assert (
        f"of 32 samples, those where the loss does not change were left out: {int(flat.sum())} at site 0" in note.text
    )
    assert None not in m.probes["perturbation"]


@pytest.mark.parametrize(
    "probes",
    [
        [wb.Perturbation(), wb.Perturbation(directions="data", step=1.0)],
        ["nudging", wb.Nudging(eta=0.1)],
        ["fresh-b", "perturbation", "fresh-b"],
        ["intrinsic", "intrinsic"],
    ],
)
def test_two_probes_of_one_kind_are_refused(probes: list):
    """The second would take the place of the first in the report."""
    net = SmoothNet()
    with pytest.raises(wb.InputError, match=r"at most one probe of each kind.* but got .* Measure once with each"):
        wb.measure(net, [net.example(16)], credit=tilted, probes=probes)


def test_no_probe_runs_unasked():
    net = SmoothNet()
    calls = []
    net.register_forward_pre_hook(lambda *_: calls.append(1))
    m = wb.measure(net, batched(*net.example(32), 16), credit=tilted)
    assert m.probes == {}
    assert len(calls) == 2


class Wrapped(nn.Module):
    """A block that returns more than its state, as attention blocks do."""

    def __init__(self, inner: nn.Module, kind: type) -> None:
        super().__init__()
        self.inner, self.kind = inner, kind

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        return self.kind((self.inner(h), h.detach()))


class Unpacks(SmoothNet):
    def step(self, block: nn.Module, h: Tensor) -> Tensor:
        return block(h)[0] if isinstance(block, Wrapped) else super().step(block, h)


@pytest.mark.parametrize("kind", [tuple, list])
def test_blocks_that_return_a_tuple_or_a_list(kind: type):
    plain, net = SmoothNet(returns="state"), Unpacks(returns="state")
    x, y = plain.example(16)
    net.blocks = nn.ModuleList(Wrapped(block, kind) for block in net.blocks)
    a, b = (wb.measure(n, [(x, y)], credit=tilted, probes=["nudging"]) for n in (plain, net))
    assert a.probes["nudging"] == pytest.approx(b.probes["nudging"], rel=1e-12)


@pytest.mark.parametrize("returns", ["branch", "state", "inplace"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_probing_leaves_input_and_network_as_they_were(returns: str, dtype: torch.dtype):
    net = SmoothNet(returns=returns, identity=True).to(dtype)
    x, y = net.example(16)
    x = x.to(dtype)
    before, weights = x.clone(), {k: v.clone() for k, v in net.state_dict().items()}
    wb.measure(net, [(x, y)], credit=tilted, probes=[wb.Perturbation(count=3), wb.Nudging()])
    assert torch.equal(x, before)
    assert all(torch.equal(v, weights[k]) for k, v in net.state_dict().items())
    assert not any(b._forward_hooks or b._forward_pre_hooks for b in net.blocks)


@pytest.mark.parametrize("probe", [wb.Perturbation, wb.Nudging, wb.FreshFeedback])
def test_no_samples_are_refused(probe):
    with pytest.raises(wb.InputError, match="Expected samples to be a whole number >= 1, but got 0"):
        probe(samples=0)
