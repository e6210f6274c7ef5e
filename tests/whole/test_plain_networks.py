"""Plain networks through the whole product: what is chosen, what is refused, every measurement, no trace."""

from __future__ import annotations

import json
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import walkback as wb
from fingerprint import Fingerprint
from plain_nets import Net, lin
from walkback import cli


def mlp(*widths, act=nn.ReLU):
    layers = [part for a, b in zip(widths, widths[1:]) for part in (nn.Linear(a, b), act())]  # noqa: RUF007
    return nn.Sequential(*layers[:-1])


def batches(count=8, size=128, width=6, classes=4, seed=0):
    draw = torch.Generator().manual_seed(seed)
    x = [torch.randn(size, width, generator=draw) for _ in range(count)]
    return [(one, one[:, :classes].argmax(1)) for one in x]


@pytest.fixture
def net():
    torch.manual_seed(0)
    return mlp(6, 24, 12, 4)


class DFA(nn.Module):
    """Direct feedback alignment by hand, at pre-activations, with matrices that can be drawn anew."""

    def __init__(self, *widths):
        super().__init__()
        for i, width in enumerate(widths):
            self.register_buffer(f"b{i}", torch.randn(4, width, generator=torch.Generator().manual_seed(i)))

    def redraw(self, generator):
        for b in self.buffers():
            b.copy_(torch.randn(b.shape, generator=generator))
        return True

    def forward(self, trace):
        error = trace.logits.softmax(1) - F.one_hot(trace.labels, 4)
        return [(error @ b) * (h > 0) for b, h in zip(self.buffers(), trace.states)]


# -- every measurement --------------------------------------------------------------------------------------


def test_all_of_the_protocol_is_measured(net):
    claim = wb.Claim(accuracy=[0.9, 0.91, 0.92], frozen=[0.5, 0.52, 0.51])
    probes = ["perturbation", "nudging", "fresh-b", "intrinsic"]
    report = wb.diagnose(net, batches(), credit=DFA(24, 12), probes=probes, edition="intrinsic", claim=claim)
    assert report.verdict == "passes"
    assert report.conditions["sites"] == ["0", "2"]
    lists = ("cosine", "cosine_low", "null_high", "perturbation", "nudging", "float64_disagreement", "epsilon_share")
    for name in lists:
        assert len(report.per_layer[name]) == 2
        assert None not in report.per_layer[name]
    assert len(report.controls["fresh_mean"]) == 2
    assert report.reasons["absorption"] == "the layers of a plain network add to no stream"
    assert max(report.per_layer["float64_disagreement"]) < 1e-9
    assert min(report.controls["perturbation_bp"]) > 0.99
    assert "all hidden layers" in report.details()


def test_a_report_is_read_back_and_judged_the_same(net, tmp_path):
    report = wb.diagnose(net, batches(), credit=DFA(24, 12), claim=wb.Claim(accuracy=0.9, frozen=0.5))
    report.save(tmp_path / "report.json")
    again = wb.judge(tmp_path / "report.json")
    again = again[0] if isinstance(again, (list, tuple)) else again
    for name in ("growth", "growth_total", "gamma", "gamma_concentration"):
        assert again.values[name] == report.values[name]
    assert again.verdict == report.verdict == "passes"
    raw = json.loads((tmp_path / "report.json").read_text())
    row = {"h_norm": raw["per_layer"]["h_norm"], "g_norm": raw["per_layer"]["g_norm"], "conditions": raw["conditions"]}
    assert wb.judge(row).values["growth"] == pytest.approx(report.values["growth"])
    report.save(tmp_path / "report.html")
    assert "VERDICT" in (tmp_path / "report.html").read_text().upper()


def test_nudging_by_hand(net):
    (x, y), credit = batches(1)[0], DFA(24, 12)
    found = wb.measure(net, [(x, y)], credit=credit, probes=[wb.Nudging(eta=0.01)])
    wide, x = net.double(), x.double()
    a = wide[0](x)
    logits = wide[4](wide[2](a.relu()).relu())
    error = logits.float().softmax(1) - F.one_hot(y, 4)
    step = ((error @ credit.b0) * (a > 0)).double()
    step = 0.01 * step / step.norm(dim=1, keepdim=True)
    moved = wide[4](wide[2]((a - step).relu()).relu())
    change = F.cross_entropy(moved, y) - F.cross_entropy(logits, y)
    assert found.probes["nudging"][0] == pytest.approx(change.item(), rel=1e-4)


def test_growth_is_per_unit_whatever_the_width():
    """Layers that keep the size of every unit: norms follow the widths, growth does not."""
    torch.manual_seed(0)
    wide = mlp(64, 16, 1024, 16, 4, act=nn.Identity)
    with torch.no_grad():
        for layer in wide[::2]:
            layer.weight.normal_().div_(layer.in_features**0.5), layer.bias.zero_()
    m = wb.measure(wide, batches(8, width=64))
    assert m.h_norm[1] / m.h_norm[0] > 6
    assert 0.8 < m.growth < 1.25


def test_an_exploding_plain_network_flags_and_a_sound_one_does_not(net):
    """D1 by one layer that multiplies, D2 by a softmax that is sure of itself: both trip on one network."""
    report = wb.diagnose(net, batches())
    assert report.verdict != "walked back"
    assert report.values["growth"] < 50
    with torch.no_grad():
        net[2].weight.mul_(1e9)
    big = wb.diagnose(net, [(x, net(x).argmax(1)) for x, _ in batches()])
    assert big.failed == ("D1", "D2")
    assert big.verdict == "walked back"


def test_a_recorded_credit_is_that_of_feedback_alignment_in_closed_form():
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, feedback):
            ctx.save_for_backward(x, feedback)
            return x @ weight.T

        @staticmethod
        def backward(ctx, grad):
            x, feedback = ctx.saved_tensors
            return grad @ feedback, grad.T @ x, None

    class Layer(nn.Module):
        def __init__(self, a, b):
            super().__init__()
            self.weight, self.feedback = nn.Parameter(torch.randn(b, a) / a**0.5), torch.randn(b, a)

        def forward(self, x):
            return Function.apply(x, self.weight, self.feedback)

    torch.manual_seed(0)
    fa = nn.Sequential(Layer(6, 10), nn.Tanh(), Layer(10, 9), nn.Tanh(), Layer(9, 4))
    x, y = batches(1)[0]
    with wb.Tracer(fa, reference="derived") as tracer:
        trace = tracer.trace(x, y)
        credits = wb.recorded(fa, anatomy=tracer.anatomy)(trace)
    a, b = trace.states
    error = trace.logits.softmax(1) - F.one_hot(y, 4)
    second = (error @ fa[4].feedback) * (1 - b.tanh() ** 2)
    first = (second @ fa[2].feedback) * (1 - a.tanh() ** 2)
    torch.testing.assert_close(credits[1], second)
    torch.testing.assert_close(credits[0], first)
    report = wb.diagnose(fa, batches(), credit=wb.recorded(fa))
    assert report.conditions["reference"] == "derived from the forward pass alone"
    assert abs(report.values["gamma"]) < 0.9
    assert wb.diagnose(fa, batches()).altered is not None


def test_recorded_hears_calls_of_forward_and_every_call_of_a_shared_layer():
    def forward(self, x):
        h = self.a.forward(x).tanh()
        for _ in range(2):
            h = self.b.forward(h).tanh()
        return self.out(h)

    torch.manual_seed(0)
    shared = Net(forward, a=lin(6, 9), b=lin(9, 9), out=lin(9, 4))
    report = wb.diagnose(shared, batches(), credit=wb.recorded(shared))
    assert report.conditions["sites"] == ["a", "b#1", "b#2"]
    assert min(report.per_layer["cosine"]) > 1 - 1e-6


def test_watching_a_plain_network(net, tmp_path):
    watch = wb.Watch(net, batches(), every=1, sites=["2"], log=tmp_path / "w.jsonl")
    watch.step()
    assert watch.history[0]["conditions"]["sites"] == ["2"]
    assert len(watch.history[0]["per_layer"]["h_norm"]) == 1


def test_frozen_hidden_layers_and_depth():
    def build():
        return nn.Sequential(
            nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 4)
        )

    def train(model):
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
        for x, y in batches(20):
            optimiser.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimiser.step()
        x, y = batches(1, seed=1)[0]
        return (model.eval()(x).argmax(1) == y).float().mean().item()

    baseline = wb.frozen_baseline(build, train)
    control = baseline.controls[0]
    assert control.frozen == ("0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias")
    assert control.trained_parameters == 12 * 4 + 4
    torch.manual_seed(0)
    trained = build()
    accuracy = train(trained)
    before = Fingerprint(trained).facts
    found = wb.depth(trained, batches(8), batches(4, seed=1), draws=2)
    assert Fingerprint(trained).facts == before
    assert len(found.by_depth["trained"]) == 2
    assert found.without is None
    assert found.reasons["without"] == "a layer of a plain network can't be left out"
    assert (accuracy - baseline.accuracy) * 100 > 2


def test_depth_draws_layers_that_look_like_blocks_from_a_new_network():
    """A list of someone's own layers, and an output layer that is registered first."""

    class Layer(nn.Module):
        def __init__(self, a, b):
            super().__init__()
            self.w = nn.Parameter(torch.randn(b, a))

        def forward(self, x):
            return F.linear(x, self.w)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return self.out(x)

    def build():
        return Net(forward, out=lin(9, 4), layers=nn.ModuleList([Layer(6, 9), Layer(9, 9), Layer(9, 9)]))

    torch.manual_seed(0)
    found = wb.depth(build(), batches(4), batches(4, seed=1), draws=4, build=build)
    assert len(found.by_depth["trained"]) == 3
    assert len(set(found.rerandomised)) > 1


def test_a_frozen_baseline_sees_that_another_layer_reads():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.out, self.first = nn.Linear(5, 4), nn.Linear(6, 5)

        def forward(self, x):
            return self.out(self.first(x).relu())

    def train(model):
        model(batches(1)[0][0])
        return 0.5

    with pytest.raises(wb.WalkbackError, match="first, which is not frozen, but the network calls out"):
        wb.frozen_baseline(Backwards, train)


# -- no trace -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_on_the_network_also_when_it_fails(fails):
    def forward(self, x):
        h = self.a.forward(x)
        if fails and not h.shape[0] % 2:
            raise ArithmeticError("midway")
        return self.out(self.b(h).relu())

    model = Net(forward, a=lin(6, 9), b=lin(9, 9), out=lin(9, 4))
    own = model.b.forward = model.b.forward  # a forward of its own on the instance
    before, state = Fingerprint(model).facts, {id(m): list(vars(m)) for m in model.modules()}
    if fails:
        with pytest.raises(ArithmeticError, match="midway"):
            wb.diagnose(model, batches(2), credit=lambda t: t.grads, probes=["nudging"])
    else:
        wb.diagnose(model, batches(2), credit=lambda t: t.grads, probes=["nudging"])
    assert Fingerprint(model).facts == before
    assert {id(m): list(vars(m)) for m in model.modules()} == state
    assert "forward" not in vars(model.a)
    assert vars(model.b)["forward"] is own


# -- what is refused, and said ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sites", "words"),
    [
        (["fc9"], r"has no 'fc9'.*Layers with a weight: 0, 2, 4\."),
        (["0", "3", "5"], "has no '5'"),
        ([], "the list is empty"),
        (lambda module: False, "says no to all 5 of Sequential"),
        (7, "or a function of a module, but got 7"),
        ([7], "dotted name of a module, but got 7"),
        (["2", "0"], r"they run as 0, 2\. Name them so: sites=\['0', '2'\]"),
        (["4", "0"], r"they run as 0, 4\. In that order too they can't be read: Expected 4 to be a site"),
        (["0", "4"], "Expected 4 to be a site, but it is the output layer"),
        (["0#2"], "0#2 is called 1 times"),
    ],
)
def test_wrong_sites_are_told(net, sites, words):
    with pytest.raises(wb.AnatomyError, match=words):
        wb.diagnose(net, batches(1), sites=sites)


def test_a_name_that_is_nearly_right_is_suggested():
    model = Net(lambda s, x: s.out(s.hidden(x).relu()), hidden=lin(6, 9), out=lin(9, 4))
    with pytest.raises(wb.AnatomyError, match=r"has no 'hiden'\. Did you mean hidden\?"):
        wb.diagnose(model, batches(1), sites=["hiden"])


def test_sites_off_the_way_to_the_loss_are_refused():
    model = Net(
        lambda s, x: (s.out(s.a(x).relu()), s.aux(x)), a=lin(6, 9), aux=lin(6, 3), never=lin(2, 2), out=lin(9, 4)
    )
    with pytest.raises(wb.AnatomyError, match="Expected aux to be a site, but the loss does not depend on it"):
        wb.diagnose(model, batches(1), sites=["a", "aux"])
    with pytest.raises(wb.AnatomyError, match="never is never called"):
        wb.diagnose(model, batches(1), sites=["a", "never"])
    notes = [note for note in wb.diagnose(model, batches(1)).notes if note.code == "layers-left-out"]
    assert notes[0].values["layers"] == ["aux: the loss does not depend on it"]


def test_a_network_with_a_residual_stream_is_not_read_as_a_plain_one():
    report = wb.diagnose(wb.selftest.healthy(), batches(1, width=16, classes=10))
    assert "sites" not in report.conditions
    skip = Net(lambda s, x: s.out((h := s.a(x)) + s.b(h).relu()), a=lin(6, 9), b=lin(9, 9), out=lin(9, 4))
    with pytest.raises(wb.AnatomyError, match="has no stack of blocks") as info:
        wb.diagnose(skip, batches(1))
    assert 'sites="layers"' in str(info.value)
    report = wb.diagnose(skip, batches(1), sites="layers")
    assert [note.values["layer"] for note in report.notes if note.code == "layers-passed"] == ["b"]


@pytest.mark.parametrize("skips", [True, False])
def test_layers_whose_outputs_are_added_are_said(skips):
    def forward(self, x):
        h = self.inp(x)
        for layer, skip in zip(self.layers, self.skips, strict=True):
            h = layer(h).relu() + skip(h) if skips else layer(h).relu()
        return self.out(h)

    lists = {name: nn.ModuleList([lin(9, 7), lin(7, 8)]) for name in ("layers", "skips")}
    notes = wb.diagnose(Net(forward, inp=lin(6, 9), out=lin(8, 4), **lists), batches(1)).notes
    said = [note.values["layers"] for note in notes if note.code == "layers-summed"]
    assert said == ([["layers.0", "skips.0"]] if skips else [])


@pytest.mark.parametrize("back", [True, False])
def test_feedback_by_a_weight_is_no_skip(back):
    def forward(self, x):
        s = torch.zeros(len(x), 7)
        for _ in range(2):
            h = self.layers[0](x)
            h = (h + s @ self.layers[1].weight).sigmoid() if back else (h + self.up(s)).sigmoid()
            s = self.layers[1](h).sigmoid()
        return self.out(s)

    net = Net(forward, layers=nn.ModuleList([lin(6, 9), lin(9, 7)]), up=lin(7, 9), out=lin(7, 4))
    notes = wb.diagnose(net, batches(1)).notes
    said = [note.values["layers"] for note in notes if note.code == "layers-summed"]
    assert bool(said) is not back


def test_sites_and_anatomy_exclude_each_other(net):
    with pytest.raises(wb.WalkbackError, match="Expected sites= or anatomy=, but got both"):
        wb.diagnose(net, batches(1), sites="layers", anatomy={"blocks": ["0"]})


def test_calls_that_change_from_batch_to_batch_are_refused():
    def forward(self, x):
        h = self.a(x)
        for _ in range(1 if len(x) % 2 else 2):
            h = self.b(h.relu())
        return self.out(h)

    model = Net(forward, a=lin(6, 9), b=lin(9, 9), out=lin(9, 4))
    first, second = batches(2)
    with pytest.raises(wb.AnatomyError, match="b was called 1 times instead of 2"):
        wb.diagnose(model, [first, (second[0][:-1], second[1][:-1])])


# -- the picture and the command line ----------------------------------------------------------------------------


def test_the_picture_says_what_was_chosen_and_why(net):
    text = str(wb.Anatomy.of(net, sites=["2"]))
    assert re.search(r"^site 0 +2 +Linear +writes h_0$", text, re.MULTILINE)
    assert "the outputs of the modules that were named" in text


def test_the_command_line_takes_sites(net, tmp_path, monkeypatch, capsys):
    entry = "import torch\nfrom test_plain_networks import batches, mlp\n"
    (tmp_path / "plain_entry.py").write_text(f"{entry}\ndef build():\n    return mlp(6, 24, 12, 4), batches()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert cli.run(["diagnose", "plain_entry:build", "--sites", "layers", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["conditions"]["sites"] == ["0", "2"]
    assert cli.run(["diagnose", "plain_entry:build", "--sites", "0", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["conditions"]["sites"] == ["0"]
    assert cli.run(["anatomy", "plain_entry:build", "--sites", "2"]) == 0
    assert "site 0   2" in capsys.readouterr().out
    assert cli.run(["diagnose", "plain_entry:build", "--sites", "3", "9"]) == 2
    assert "has no '9'" in capsys.readouterr().err
