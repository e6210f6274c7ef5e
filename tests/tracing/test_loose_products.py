"""Weights that a forward pass uses without a module: their products are sites, checked against plain autograd."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import walkback as wb
from fingerprint import Fingerprint
from plain_nets import Net, lin

DRAW = torch.Generator().manual_seed(3)
X = torch.randn(16, 6, generator=DRAW, dtype=torch.float64)
Y = torch.randint(4, (16,), generator=DRAW)
BATCHES = [(X, Y)]


def weight(*shape):
    return nn.Parameter(torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1])) / 2)


class Hand(nn.Module):
    """Two hidden layers in four forms; it keeps the tensors that should be sites."""

    def __init__(self, how):
        super().__init__()
        self.w1, self.b1, self.w2 = weight(6, 9), nn.Parameter(torch.ones(9)), weight(9, 8)
        self.b2, self.w3, self.how, self.kept = nn.Parameter(torch.ones(8)), weight(8, 4), how, []

    def forward(self, x):
        a, b = self.how(self, x)
        self.kept = [a, b]
        return torch.tanh(b) @ self.w3


def by_matmul(s, x):
    a = x @ s.w1 + s.b1
    return a, torch.relu(a) @ s.w2 + s.b2


def by_linear(s, x):
    a = F.linear(x, s.w1.t(), s.b1)
    return a, F.linear(a.relu(), s.w2.T)


def by_addmm(s, x):
    a = torch.addmm(s.b1, x, s.w1)
    b = torch.mm(a.relu(), s.w2)
    b += s.b2
    return a, b


def by_einsum(s, x):
    a = torch.einsum("bi,io->bo", x, s.w1) + s.b1
    return a, torch.einsum("bi,io->bo", a.relu(), s.w2)


def by_masks(s, x):
    a = x @ (s.w1 * (s.w1 > 0)) + s.b1
    return a, a.relu() @ s.w2.tanh() - s.b2


@pytest.mark.parametrize("how", [by_matmul, by_linear, by_addmm, by_einsum, by_masks])
def test_products_are_those_of_autograd(how):
    net = Hand(how).double()
    measured = wb.measure(net, BATCHES)
    losses = F.cross_entropy(net.eval()(X), Y, reduction="none")
    a, b = net.kept
    grads = torch.autograd.grad(losses.sum(), (a, b))
    assert measured.conditions["sites"] == ["w1", "w2"]
    assert measured.h_norm == pytest.approx([h.norm(dim=1).mean().item() for h in (a, b)], rel=1e-9)
    assert measured.g_norm == pytest.approx([g.norm(dim=1).mean().item() / 128 for g in grads], rel=1e-9)
    assert not [note for note in measured.notes if note.code.startswith("layers-")]


def test_sites_can_be_moved_and_nothing_is_left():
    net = Hand(by_matmul).double()
    before = Fingerprint(net)
    with wb.Tracer(net) as tracer:
        trace = tracer.trace(X, Y)
        moved = tracer.logits_at(X, {1: torch.ones_like(trace.states[1])}, None)
        wide = tracer.again(X, Y, {name: t.detach() for name, t in net.named_parameters()})
    a = X @ net.w1 + net.b1
    b = a.relu() @ net.w2 + net.b2
    torch.testing.assert_close(moved, torch.tanh(b + 1) @ net.w3)
    torch.testing.assert_close(wide.grads[0], trace.grads[0])
    assert before.changed(Fingerprint(net)) == []


def test_every_probe_runs():
    probes = ["perturbation", "nudging", "intrinsic"]
    report = wb.diagnose(Hand(by_addmm).double(), BATCHES * 2, credit=lambda t: t.grads, probes=probes)
    assert min(report.per_layer["cosine"]) > 0.999
    assert report.per_layer["perturbation"] == pytest.approx([1, 1], abs=0.02)


class Scaled(torch.autograd.Function):
    """x w, whose backward pass is three times too long."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return 3 * grad @ w.t(), x.t() @ grad


def by_function(s, x):
    a = Scaled.apply(x, s.w1)
    return a, Scaled.apply(a.relu(), s.w2)


def test_a_function_of_ones_own_is_seen_and_found_altered():
    net = Hand(by_function).double()
    measured = wb.measure(net, BATCHES)
    assert measured.conditions["sites"] == ["w1", "w2"]
    assert measured.altered is not None
    plain = Hand(lambda s, x: ((a := x @ s.w1), a.relu() @ s.w2)).double()
    plain.load_state_dict(net.state_dict())
    derived = wb.measure(net, BATCHES, reference="derived")
    assert derived.g_norm == pytest.approx(wb.measure(plain, BATCHES).g_norm, rel=1e-9)


def test_a_product_that_is_cut_off_is_derived_and_said():
    def cut(s, x):
        a = x @ s.w1 + s.b1
        return a, a.relu().detach() @ s.w2

    net, plain = Hand(cut).double(), Hand(lambda s, x: ((a := x @ s.w1 + s.b1), a.relu() @ s.w2)).double()
    measured = wb.measure(net, BATCHES)
    assert [note.values["cut"] for note in measured.notes if note.code == "derived-reference"] == ["w1"]
    assert measured.g_norm == pytest.approx(wb.measure(plain, BATCHES).g_norm, rel=1e-9)


def test_parameters_in_lists_and_dicts_are_named_by_their_paths():
    class Lists(nn.Module):
        def __init__(self):
            super().__init__()
            self.ws = nn.ParameterList([weight(6, 9), weight(9, 8)])
            self.more = nn.ParameterDict({"out": weight(8, 4)})

        def forward(self, x):
            for w in self.ws:
                x = torch.relu(x @ w)
            return x @ self.more["out"]

    net = Lists().double()
    assert [row[:2] for row in wb.Anatomy.of(net).rows()] == [
        ("site 0", "ws.0"),
        ("site 1", "ws.1"),
        ("readout", "more.out"),
    ]
    with wb.Tracer(net) as tracer:
        tracer.trace(X, Y)
    assert tracer.anatomy.site_names == ("ws.0", "ws.1")
    shown = str(tracer.anatomy)
    assert "readout  more.out  Parameter  reads h_1" in shown
    assert "their layers hold 80% of the weights; the rest: more" in shown


def test_sites_are_chosen_by_the_names_of_weights():
    net = Hand(by_matmul).double()
    measured = wb.measure(net, BATCHES, sites=["w2"])
    assert measured.conditions["sites"] == ["w2"]
    assert measured.g_norm == pytest.approx(wb.measure(net, BATCHES).g_norm[1:], rel=1e-9)
    with pytest.raises(wb.AnatomyError, match="has no 'w9'"):
        wb.measure(net, BATCHES, sites=["w9"])


def test_modules_and_weights_stand_in_one_order():
    net = Net(lambda s, x: s.out((s.a(x).relu() @ s.w).relu()), a=lin(6, 9), out=lin(8, 4))
    net.w = weight(9, 8)
    assert wb.measure(net.double(), BATCHES).conditions["sites"] == ["a", "w"]


def test_what_no_product_makes_is_no_site():
    """A position, a token and a scale are parameters of two dimensions, too."""

    def forward(s, x):
        h = s.a(x)[:, None, :] + s.position
        h = torch.cat([s.token.expand(len(x), -1, -1), h], 1) * s.scale
        return s.out(s.b(h).relu().mean(1))

    net = Net(forward, a=lin(6, 9), b=lin(9, 8), out=lin(8, 4))
    net.position, net.token, net.scale = weight(1, 1, 9), weight(1, 1, 9), weight(1, 9)
    assert wb.measure(net.double(), BATCHES).conditions["sites"] == ["a", "b"]


def test_feedback_by_the_weight_of_a_layer_is_no_site():
    net = Net(
        lambda s, x: s.out((s.a(x) + s.b(s.a(x).relu()) @ s.b.weight).relu()), a=lin(6, 9), b=lin(9, 5), out=lin(9, 4)
    )
    assert "b.weight" not in wb.measure(net.double(), BATCHES, sites="layers").conditions["sites"]


def test_a_residual_network_by_hand_is_not_read_at_its_products_unsaid():
    class Stream(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp, self.w1, self.w2, self.out = weight(6, 9), weight(9, 9), weight(9, 9), weight(9, 4)

        def forward(self, x):
            h = x @ self.inp
            h = h + torch.tanh(h @ self.w1)
            h = h + torch.tanh(h @ self.w2)
            return h @ self.out

    try:
        measured = wb.measure(Stream().double(), BATCHES)
    except wb.AnatomyError:
        return
    assert {note.code for note in measured.notes} & {"layers-passed", "guessed"}


def test_a_batch_of_other_operations_is_refused():
    def forward(s, x):
        h = x @ s.w
        for _ in range(1 + int(len(x) > 8)):
            h = h.tanh()
        return h @ s.v

    net = Net(forward)
    net.w, net.v = weight(6, 9), weight(9, 4)
    with pytest.raises(wb.AnatomyError, match="the same operations as the first one"):
        wb.measure(net.double(), [(X, Y), (X[:4], Y[:4])])


def test_what_needs_modules_says_so():
    net = Hand(by_matmul).double()
    with pytest.raises(wb.WalkbackError, match="uses weights directly: w1, w2"):
        wb.frozen_baseline(lambda: copy.deepcopy(net), lambda model: model, sites="layers")
    with pytest.raises(wb.InputError, match="w1, w2 are weights that the forward pass uses directly"):
        wb.measure(net, BATCHES, credit=wb.recorded(net))
