"""Networks that cut their own graph: the reference is derived by itself, and a note says so."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import walkback as wb
from plain_nets import Net, lin
from walkback import cli


def batches(count=2, size=64, width=6, classes=4):
    draw = torch.Generator().manual_seed(1)
    return [(torch.randn(size, width, generator=draw), torch.randint(classes, (size,), generator=draw))] * count


def nets(cut):
    """A network whose layers hand on what `cut` makes of their outputs."""
    torch.manual_seed(0)

    def forward(s, x):
        return s.out(s.b(cut(s.a(x).relu())).relu())

    return Net(forward, a=lin(6, 9), b=lin(9, 9), out=lin(9, 4))


def unchanged(h):
    return h


def said(measured):
    return [note.values["cut"] for note in measured.notes if note.code == "derived-reference"]


class Block(nn.Module):
    def __init__(self, cut):
        super().__init__()
        self.norm, self.linear, self.cut = nn.LayerNorm(9), nn.Linear(9, 9), cut

    def forward(self, h):
        h = self.cut(h)
        return h + self.linear(self.norm(h)).tanh()


class Greedy(nn.Module):
    def __init__(self, cut):
        super().__init__()
        self.embed, self.head = nn.Linear(6, 9), nn.Linear(9, 4)
        self.blocks = nn.ModuleList(Block(cut) for _ in range(3))

    def forward(self, x):
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


def same(ours, whole):
    assert ours.h_norm == pytest.approx(wb.measure(whole, batches()).h_norm, rel=1e-6)
    assert ours.g_norm == pytest.approx(wb.measure(whole, batches()).g_norm, rel=1e-6)


def test_a_plain_network_that_detaches_is_derived_and_says_where():
    model, whole = nets(torch.detach).double(), nets(unchanged).double()
    xs = [(x.double(), y) for x, y in batches()]
    measured = wb.measure(model, xs)
    assert said(measured) == ["a"]
    assert measured.conditions["reference"] == wb.measure(model, xs, reference="derived").conditions["reference"]
    x, y = xs[0]
    a = whole.a(x)
    b = whole.b(a.relu())
    losses = nn.functional.cross_entropy(whole.out(b.relu()), y, reduction="none")
    by_hand = [g.norm(dim=1).mean().item() / 128 for g in torch.autograd.grad(losses.sum(), (a, b))]
    assert measured.g_norm == pytest.approx(by_hand, rel=1e-9)


def test_a_residual_network_that_detaches_is_derived_and_says_where():
    torch.manual_seed(0)
    model = Greedy(torch.detach)
    whole = Greedy(unchanged)
    whole.load_state_dict(model.state_dict())
    measured = wb.measure(model, batches())
    assert said(measured) == ["site 0, site 1, site 2"]
    same(measured, whole)
    assert measured.conditions["blocks_return"] == "state"


def test_a_forward_pass_without_gradients_is_derived():
    model, whole = nets(unchanged), nets(unchanged)

    class Silent(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        @torch.no_grad()
        def forward(self, x):
            return self.net(x)

    measured = wb.measure(Silent(model), batches())
    assert said(measured) == ["any layer"]
    same(measured, whole)
    assert "no gradient reaches any layer" in measured.notes[0].text


def test_layers_without_gradients_on_the_way_are_named():
    def quiet(h):
        with torch.no_grad():
            return h * 1.0

    measured = wb.measure(nets(quiet), batches())
    assert said(measured) == ["a"]
    same(measured, nets(unchanged))


def test_a_layer_that_runs_without_gradients_beside_the_answer_is_left_out():
    def forward(s, x):
        h = s.a(x).relu()
        with torch.no_grad():
            s.teacher(h)
        return s.out(s.b(h).relu())

    model = Net(forward, a=lin(6, 9), b=lin(9, 9), teacher=lin(9, 9), out=lin(9, 4))
    measured = wb.measure(model, batches())
    assert said(measured) == []
    assert measured.conditions["sites"] == ["a", "b"]
    assert [n.values["layers"] for n in measured.notes if n.code == "layers-left-out"]


def test_what_the_user_says_of_the_reference_stands():
    model = nets(torch.detach)
    with pytest.raises(wb.AnatomyError, match=r'no gradient reaches a: the network detaches it.*reference="derived"'):
        wb.measure(model, batches(), reference="own")
    with pytest.raises(wb.AnatomyError, match="no gradient reaches site 0, site 1, site 2"):
        wb.measure(Greedy(torch.detach), batches(), reference="own")
    assert said(wb.measure(model, batches(), reference="derived")) == []


def test_a_whole_network_keeps_its_own_reference():
    measured = wb.measure(nets(unchanged), batches())
    assert said(measured) == []
    assert (
        measured.conditions["reference"]
        == wb.measure(nets(unchanged), batches(), reference="own").conditions["reference"]
    )


def test_a_block_that_the_answer_does_not_need_is_not_called_cut():
    class Beside(Greedy):
        def forward(self, x):
            h = self.embed(x)
            kept = self.blocks[0](h)
            for block in self.blocks[1:]:
                h = block(h)
            return self.head(kept)

    with pytest.raises(wb.AnatomyError) as refused:
        wb.measure(Beside(unchanged), batches(), anatomy={"blocks": "blocks"})
    assert 'reference="derived"' not in str(refused.value)
    assert "does not use it" in str(refused.value)


def test_a_loss_that_is_detached_is_the_users_fault():
    with pytest.raises(wb.InputError, match="Expected a loss that depends on the network"):
        wb.measure(nets(unchanged), batches(), loss=lambda z, y: z.detach().square().sum(1))


def test_a_cut_beside_a_way_that_stays_is_altered_not_derived():
    def forward(s, x):
        a = s.a(x).relu()
        return s.out(s.b(a.detach()).relu()) + s.skip(a)

    model = Net(forward, a=lin(6, 9), b=lin(9, 9), skip=lin(9, 4), out=lin(9, 4))
    measured = wb.measure(model, batches())
    assert measured.altered is not None
    assert said(measured) == []


def test_every_door_derives_it(tmp_path, monkeypatch, capsys):
    model = nets(torch.detach)
    report = wb.diagnose(model, batches())
    assert [n.code for n in report.notes].count("derived-reference") == 1
    with wb.Tracer(model) as tracer:
        trace = tracer.trace(*batches()[0])
        assert (tracer.reference, trace.reference) == ("derived", "derived")
        tracer.trace(*batches()[0])
    assert [n.code for n in tracer.notes] == ["derived-reference"]
    row = wb.Watch(model, batches()).measure()
    assert row["conditions"]["reference"] == report.conditions["reference"]
    (tmp_path / "mynets.py").write_text(
        "import torch\nfrom torch import nn\n\n\n"
        "class Cut(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.a, self.b, self.out = nn.Linear(6, 9), nn.Linear(9, 9), nn.Linear(9, 4)\n\n"
        "    def forward(self, x):\n"
        "        return self.out(self.b(self.a(x).relu().detach()).relu())\n\n\n"
        "def build():\n"
        "    return Cut(), [(torch.randn(64, 6), torch.randint(4, (64,)))]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cli.run(["diagnose", "mynets:build", "--json"]) in (0, 1, 3)
    stored = json.loads(capsys.readouterr().out)
    assert "derived-reference" in [note["code"] for note in stored["notes"]]
    assert cli.run(["anatomy", "mynets:build"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "the network cuts its own graph, no gradient reaches a:" in shown
