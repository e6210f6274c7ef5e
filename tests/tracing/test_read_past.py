"""Layers that are read past: concatenated, gated, from step to step. A sum past a layer is a stream, none of these."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import walkback as wb
from plain_nets import Net, lin

DRAW = torch.Generator().manual_seed(3)
X = torch.randn(16, 9, generator=DRAW, dtype=torch.float64)
STEPS = torch.randn(16, 3, 9, generator=DRAW, dtype=torch.float64)
Y = torch.randint(4, (16,), generator=DRAW)


def compared(net, x, names):
    """Measure a network that keeps its sites in `kept`, and compare with autograd."""
    measured = wb.measure(net, [(x, Y)])
    logits = net.eval()(x)
    kept = net.kept
    grads = torch.autograd.grad(F.cross_entropy(logits, Y, reduction="none").sum(), kept)
    assert measured.conditions["sites"] == names
    assert measured.h_norm == pytest.approx([h.norm(dim=1).mean().item() for h in kept], rel=1e-9)
    assert measured.g_norm == pytest.approx([g.norm(dim=1).mean().item() / 128 for g in grads], rel=1e-9)
    return {note.code for note in measured.notes if note.code.startswith("layers")}


def test_a_dense_network_is_read_at_every_layer():
    def forward(s, x):
        a = s.a(x)
        b = s.b(torch.cat([x, a.relu()], 1))
        s.kept = [a, b]
        return s.out(torch.cat([x, a.relu(), b.relu()], 1))

    net = Net(forward, a=lin(9, 7), b=lin(16, 8), out=lin(24, 4)).double()
    assert compared(net, X, ["a", "b"]) == {"layers-read-past"}


def test_a_minimal_gated_unit_is_read_at_its_layers():
    def forward(s, x):
        h, s.kept = x.new_zeros(len(x), 8), []
        for t in range(3):
            f = s.forget(torch.cat([x[:, t], h], 1))
            n = s.new(torch.cat([x[:, t], f.sigmoid() * h], 1))
            s.kept += [f, n]
            h = (1 - f.sigmoid()) * h + f.sigmoid() * n.tanh()
        return s.out(h)

    net = Net(forward, forget=lin(17, 8), new=lin(17, 8), out=lin(8, 4)).double()
    compared(net, STEPS, [f"{name}#{t}" for t in (1, 2, 3) for name in ("forget", "new")])


def test_the_first_of_two_states_is_the_site_of_a_cell():
    def forward(s, x):
        state, s.kept = (x.new_zeros(len(x), 8), x.new_zeros(len(x), 8)), []
        for t in range(3):
            state = s.cell(x[:, t], state)
            s.kept.append(state[0])
        return s.out(state[0])

    net = Net(forward, cell=nn.LSTMCell(9, 8), out=lin(8, 4)).double()
    assert "layers-first" in compared(net, STEPS, ["cell#1", "cell#2", "cell#3"])


def test_attention_over_states_is_no_stream():
    def forward(s, x):
        h, s.kept = x.new_zeros(len(x), 8), []
        for t in range(3):
            h = s.cell(x[:, t], h)
            s.kept.append(h)
        hs, q = torch.stack(s.kept, 1), s.query(h)
        s.kept.append(q)
        return s.out(((hs * q[:, None]).sum(-1, keepdim=True).softmax(1) * hs).sum(1))

    net = Net(forward, cell=nn.GRUCell(9, 8), query=lin(8, 8), out=lin(8, 4)).double()
    compared(net, STEPS, ["cell#1", "cell#2", "cell#3", "query"])


SUMS = {
    "sum": lambda h, f: h + f,
    "mean": lambda h, f: (h + f) / 2,
    "lerp": lambda h, f: torch.lerp(h, f, 0.3),
    "stack": lambda h, f: torch.stack([h, f]).sum(0),
    "factor": lambda h, f: h * (1 + f),
    "difference": lambda h, f: h - f,
    "highway": lambda h, f: h.mean(1, keepdim=True).sigmoid() * h + f,
    "largest": torch.maximum,
}


@pytest.mark.parametrize("how", SUMS)
def test_what_is_added_past_a_layer_is_a_stream_and_never_read_as_layers_unsaid(how):
    def forward(s, x):
        h = s.inp(x)
        for f in (s.f1, s.f2):
            h = SUMS[how](h, f(h).tanh())
        return s.out(h)

    net = Net(forward, inp=lin(9, 9), f1=lin(9, 9), f2=nn.Linear(9, 9, bias=False), out=lin(9, 4)).double()
    try:
        measured = wb.measure(net, [(X, Y)])
    except wb.AnatomyError:
        return
    assert {note.code for note in measured.notes} & {"guessed", "received-sites"}
    assert measured.conditions.get("sites") is None


@pytest.mark.parametrize("how", ["sum", "mean", "lerp", "stack"])
def test_a_stream_that_is_cut_is_not_read_as_layers(how):
    class Block(nn.Module):
        def __init__(self, a, b):
            super().__init__()
            self.a, self.b = lin(a, b), lin(b, a)

        def forward(self, h):
            h = h.detach()
            return SUMS[how](h, self.b(self.a(h).relu()))

    def forward(s, x):
        h = s.inp(x)
        for block in s.blocks:
            h = block(h)
        return s.out(h)

    net = Net(forward, inp=lin(9, 9), blocks=nn.ModuleList([Block(9, 7), Block(9, 7)]), out=lin(9, 4)).double()
    try:
        measured = wb.measure(net, [(X, Y)])
    except wb.AnatomyError:
        return
    assert measured.conditions.get("sites") is None
    assert len(measured.h_norm) == 3
