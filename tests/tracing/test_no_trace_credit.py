"""A credit that changes the network is refused and undone; one that copies it, or runs what changes itself, is not."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import walkback as wb
from fingerprint import Fingerprint
from nasty import NETWORKS, Base, CachesGraphs, PlainWeights, RecreatesParameters, ready


@pytest.fixture(autouse=True)
def python_random(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator of our own behind `random`: the type checker of the tests draws from the global one."""
    own = random.Random(7)
    for name in ("random", "seed", "getstate", "setstate"):
        monkeypatch.setattr(random, name, getattr(own, name))


def data(count: int = 4) -> list[tuple[Tensor, Tensor]]:
    return wb.selftest.batches(count, 16)


class Hidden(Base):
    """`parameters()` shows the head only."""

    def parameters(self, recurse: bool = True) -> Any:
        return self.out_head.parameters(recurse)


# -- changing weights ------------------------------------------------------------------------------------------------


def in_place(model: Any) -> None:
    with torch.no_grad():
        model.blocks[1][0].weight.mul_(1.5)


def by_data(model: Any) -> None:
    model.blocks[1][0].weight.data.mul_(1.5)


def sets_data(model: Any) -> None:
    model.blocks[1][0].weight.data = model.blocks[1][0].weight.data * 1.5


def by_numpy(model: Any) -> None:
    model.blocks[1][0].weight.detach().numpy()[...] *= 1.5


def registers(model: Any) -> None:
    model.blocks[1][0].weight = nn.Parameter(model.blocks[1][0].weight.detach() * 1.5)


def deletes(model: Any) -> None:
    del model.blocks[1][0].bias


def adds(model: Any) -> None:
    model.blocks[1][0].register_parameter("late", nn.Parameter(torch.ones(2)))


def swaps_module(model: Any) -> None:
    model.blocks[1] = nn.Sequential(nn.Linear(12, 12), nn.Tanh())


def optimises(model: Any) -> None:
    optimiser = torch.optim.Adam(model.blocks[1][0]._parameters.values())
    F.cross_entropy(model(data(1)[0][0]), data(1)[0][1]).backward()
    optimiser.step()


def plain_in_place(model: Any) -> None:
    model.scale.mul_(2)


def plain_rebound(model: Any) -> None:
    model.scale = model.scale * 2


def plain_with_gradient(model: Any) -> None:
    model.maps[1].data.mul_(2)


def plain_in_a_list(model: Any) -> None:
    model.maps[1] = (model.maps[1] * 2).detach().requires_grad_()


def unregistered(model: Any) -> None:
    model.hidden[0].weight.data.mul_(2)


CHANGES: list[tuple[type[Base], Callable[[Any], None]]] = [
    *[(Hidden, c) for c in (in_place, by_data, sets_data, by_numpy, registers, deletes, adds, swaps_module, optimises)],
    *[(PlainWeights, c) for c in (plain_in_place, plain_rebound, plain_with_gradient, plain_in_a_list, unregistered)],
]


@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(("kind", "change"), CHANGES, ids=[f"{c.__name__}" for _, c in CHANGES])
def test_what_a_credit_changes_is_refused_and_undone(kind: Any, change: Any, fails: bool, batch: int) -> None:
    model = ready(kind)
    before = Fingerprint(model)

    def credit(trace: wb.Trace) -> Any:
        if trace.index == batch:
            change(model)
            if fails:
                raise ZeroDivisionError("mine")
        return [g.sign() for g in trace.grads]

    error, words = (ZeroDivisionError, "mine") if fails else (wb.CreditError, "it changed its weights")
    with pytest.raises(error, match=words):
        wb.diagnose(model, data(), credit=credit)
    assert before.changed(Fingerprint(model)) == []


@pytest.mark.parametrize("change", [in_place, by_data, registers, swaps_module])
def test_in_a_session_of_ones_own_too(change: Any) -> None:
    model = ready(Hidden)
    before = Fingerprint(model)

    def credit(trace: wb.Trace) -> Any:
        change(model)
        return [g.sign() for g in trace.grads]

    with pytest.raises(wb.CreditError, match="it changed its weights"), wb.Tracer(model) as tracer:
        tracer.trace(*data(1)[0], credit=credit)
    assert before.changed(Fingerprint(model)) == []


def test_weights_are_as_before_at_the_next_batch_where_a_credit_puts_something_in_their_place() -> None:
    """A network that makes a parameter anew itself is not refused; the credit's own value does not stay."""
    model, seen = ready(RecreatesParameters), []

    def credit(trace: wb.Trace) -> Any:
        seen.append(model.blocks[0][0].weight_backward)
        model(trace.inputs)
        return [g.sign() for g in trace.grads]

    plain = wb.measure(ready(RecreatesParameters), data())
    assert wb.measure(model, data(), credit=credit).h_norm == plain.h_norm
    assert len({id(p) for p in seen}) == 4, "each the one of the pass that was measured"


def test_a_credit_may_keep_things_on_the_network_until_the_end() -> None:
    """What its own code needs from batch to batch: it is gone afterwards, and was there meanwhile."""
    model, counts = ready(Base), []

    def credit(trace: wb.Trace) -> Any:
        model.count = getattr(model, "count", 0) + 1
        model.blocks[0].error = trace.grads[1]
        counts.append(model.count)
        return [g.sign() for g in trace.grads]

    wb.diagnose(model, data(), credit=credit)
    assert counts == [1, 2, 3, 4]
    assert not hasattr(model, "count")
    assert not hasattr(model.blocks[0], "error")


def test_a_cache_that_only_the_credit_writes_is_no_weight() -> None:
    """Training code keeps errors on its layers: a tensor that the forward pass does not read is none of its weights."""
    model = ready(Base)
    model.blocks[0].error = torch.zeros(16, 12)
    model.blocks[0].sent = torch.zeros(16, 12)

    def credit(trace: wb.Trace) -> Any:
        model.blocks[0].error = trace.grads[1].clone()
        model.blocks[0].sent.copy_(trace.grads[1])
        return [g.sign() for g in trace.grads]

    before = Fingerprint(model)
    assert wb.diagnose(model, data(), credit=credit).per_layer["cosine"][1] is not None
    assert before.changed(Fingerprint(model)) == []


def test_a_statistic_in_a_plain_tensor_may_move_where_the_credit_runs_the_network_in_training_mode() -> None:
    class Centred(Base):
        def __init__(self) -> None:
            super().__init__()
            self.mean = torch.zeros(12)

        def forward(self, x: Tensor) -> Tensor:
            h = self.embed(x) - self.mean
            if self.training:
                self.mean.mul_(0.9).add_(0.1 * h.detach().mean(0))
            for block in self.blocks:
                h = h + block(h)
            return self.out_head(self.out_ln(h))

    model = ready(Centred)

    def credit(trace: wb.Trace) -> Any:
        model.train()
        model(trace.inputs)
        return [g.sign() for g in trace.grads]

    before = Fingerprint(model)
    measured = wb.measure(model, data(), credit=credit)
    assert before.changed(Fingerprint(model)) == []
    assert measured.h_norm == wb.measure(ready(Centred), data()).h_norm, "every batch on the statistic of the user"


def test_an_optimiser_of_the_users_holds_what_it_held_after_a_credit_made_it_step() -> None:
    def run(measuring: bool, fails: bool = False) -> dict[str, Any]:
        model = ready(Hidden)
        own = [p for m in every_module(model) for p in m._parameters.values() if p is not None and p.requires_grad]
        optimiser = torch.optim.Adam(own, lr=1e-2)

        def step(x: Tensor, y: Tensor) -> None:
            optimiser.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimiser.step()

        def credit(trace: wb.Trace) -> Any:
            step(trace.inputs, trace.labels)
            optimiser.param_groups[0]["lr"] = 7.0
            if fails:
                raise wb.CreditError("mine")
            return [g.sign() for g in trace.grads]

        step(*data()[0])
        if measuring:
            with pytest.raises(wb.CreditError, match="mine" if fails else "it changed its weights"):
                wb.diagnose(model, data(), credit=credit)
        step(*data()[1])
        return Fingerprint(model, optimiser).values

    plain = run(False)
    for fails in (False, True):
        measured = run(True, fails)
        assert {k: v for k, v in plain.items() if measured.get(k) != v} == {}


def test_what_a_credit_learns_for_itself_stays() -> None:
    """An optimiser that trains another network is the credit's own."""
    model, judge = ready(Base), nn.Linear(12, 12)
    optimiser = torch.optim.SGD(judge.parameters(), lr=0.1, momentum=0.9)
    first = judge.weight.detach().clone()

    def credit(trace: wb.Trace) -> Any:
        optimiser.zero_grad()
        (judge(trace.states[1]) - trace.grads[1]).square().mean().backward()
        optimiser.step()
        return [g.sign() for g in trace.grads]

    wb.diagnose(model, data(), credit=credit)
    assert not torch.equal(judge.weight, first)
    assert len(optimiser.state) == 2


# -- copies ----------------------------------------------------------------------------------------------------------


def copying(model: nn.Module, made: list[Any]) -> Callable[[wb.Trace], Any]:
    """A credit that works on a copy of the network: it trains it, and takes its gradients."""

    def credit(trace: wb.Trace) -> Any:
        twin: Any = copy.deepcopy(model)
        made.append(twin)
        own = {id(p): p for m in every_module(twin) for p in m._parameters.values() if p is not None}
        optimiser = torch.optim.SGD([p for p in own.values() if p.requires_grad], lr=0.1)
        for _ in range(2):
            F.cross_entropy(twin(trace.inputs), trace.labels).backward()
            optimiser.step()
        return [g.sign() for g in trace.grads]

    return credit


@pytest.mark.parametrize("reference", [None, "derived"])
@pytest.mark.parametrize("name", [n for n in NETWORKS if n not in ("HidesWeights", "HoldsOthers", "OwnGenerators")])
def test_a_network_can_be_copied_while_it_is_measured(name: str, reference: str | None) -> None:
    model, made = ready(NETWORKS[name]), []
    plain = wb.measure(ready(NETWORKS[name]), data(), credit=lambda t: [g.sign() for g in t.grads], reference=reference)
    before = Fingerprint(model)
    measured = wb.measure(model, data(), credit=copying(model, made), reference=reference)
    assert before.changed(Fingerprint(model)) == []
    assert (measured.h_norm, measured.g_norm, measured.cosine) == (plain.h_norm, plain.g_norm, plain.cosine)
    for twin in made:
        hooks = [h for m in every_module(twin) for n in vars(m) if "_hooks" in n for h in hooks_of(m, n)]
        assert not [h for h in hooks if getattr(h, "__module__", "").startswith("walkback")]


def every_module(model: nn.Module) -> list[nn.Module]:
    return [model, *[m for child in model._modules.values() if child is not None for m in every_module(child)]]


def hooks_of(module: nn.Module, name: str) -> list[Any]:
    held = getattr(module, name)
    return list(held.values()) if isinstance(held, dict) else []


def test_a_copy_is_a_network_like_any_other() -> None:
    """It computes the same, keeps what it kept without its graph, has the user's hooks, and can be pickled."""
    model, made = ready(CachesGraphs), []
    seen: list[str] = []
    model.blocks[0].register_forward_hook(lambda *a: seen.append("ran"))

    def credit(trace: wb.Trace) -> Any:
        twin = copy.deepcopy(model)
        assert twin.memory.last is twin.last, "what was one tensor is one in the copy"
        assert torch.equal(twin.last, trace.states[-1])
        assert not twin.cache["h0"][0].requires_grad
        assert model.last.requires_grad, "the network itself keeps its graph"
        made.append(torch.equal(twin(trace.inputs), trace.logits))
        made.append(pickle.loads(pickle.dumps(copy.deepcopy(model.blocks[1]))))
        return [g.sign() for g in trace.grads]

    wb.diagnose(model, data(1), credit=credit)
    assert made[0]
    assert seen == ["ran", "ran"]
    assert torch.equal(made[1][0].weight, model.blocks[1][0].weight)


def test_torch_copies_as_ever_after_a_session_and_inside_two() -> None:
    one, two = ready(Base), ready(Base)
    kept = nn.Linear(2, 2)
    kept.graph = kept(torch.ones(2))
    with wb.Tracer(one):
        with wb.Tracer(two):
            assert not copy.deepcopy(kept).graph.requires_grad
        assert not copy.deepcopy(kept).graph.requires_grad
    with pytest.raises(RuntimeError, match="deepcopy protocol"):
        copy.deepcopy(kept)
    assert "__deepcopy__" not in vars(nn.Module)


def test_a_network_that_copies_itself_in_its_forward_pass_is_measured() -> None:
    class Averaging(Base):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            with torch.no_grad():
                self.slow = [copy.deepcopy(self.blocks)]
                self.slow[0][0](torch.ones(2, 12))
            return out

    model = ready(Averaging)
    before = Fingerprint(model)
    plain = wb.measure(ready(Base), data())
    assert wb.measure(model, data()).g_norm == plain.g_norm
    assert before.changed(Fingerprint(model)) == []
