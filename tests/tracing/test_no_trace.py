"""Nothing of the user's is damaged: networks that keep, write and hide things, measured in every way, are as before."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import walkback as wb
from fingerprint import Fingerprint
from nasty import NETWORKS, Base, ready


@pytest.fixture(autouse=True)
def python_random(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator of our own behind `random`: the type checker of the tests draws from the global one."""
    own = random.Random(7)
    for name in ("random", "seed", "getstate", "setstate"):
        monkeypatch.setattr(random, name, getattr(own, name))


def data() -> list[tuple[Tensor, Tensor]]:
    return wb.selftest.batches(3, 16)


def every_tensor(model: nn.Module) -> list[Tensor]:
    """All weights by hand, whatever `parameters()` says."""
    todo, found = [model], []
    while todo:
        module = todo.pop()
        found += [p for p in module._parameters.values() if p is not None]
        todo += [m for m in module._modules.values() if m is not None]
    return found


def running_credit(model: nn.Module) -> Callable[[wb.Trace], Any]:
    """Runs the network and its backward pass, as hand-written rules do."""

    def credit(trace: wb.Trace) -> Any:
        F.cross_entropy(model(trace.inputs.clone()), trace.labels).backward()
        return [g * 2 for g in trace.grads]

    return credit


def failing_credit(model: nn.Module) -> Callable[[wb.Trace], Any]:
    """Changes everything, then raises."""

    def credit(trace: wb.Trace) -> Any:
        for i, p in enumerate(every_tensor(model)):
            p.data.mul_(1.5) if i % 2 else setattr(p, "data", p.data + 1)
            p.grad = torch.ones_like(p)
        model.embed.weight = nn.Parameter(torch.zeros_like(model.embed.weight))  # type: ignore[union-attr, arg-type]
        model.blocks[0] = nn.Identity()  # type: ignore[index]
        model.hooked = model.embed.register_forward_hook(lambda *a: None)  # type: ignore[union-attr, operator, assignment]
        model.strange = torch.ones(2)
        torch.rand(3)
        raise ZeroDivisionError("mine")

    return credit


def diagnose(model: nn.Module, **options: Any) -> None:
    wb.diagnose(model, data(), **options)


def fails_in_batch_2(model: nn.Module) -> None:
    count = iter(range(100))

    def fail(module: nn.Module, args: Any) -> None:
        if next(count) >= 2:
            raise ZeroDivisionError("mine")

    handle = model.out_head.register_forward_pre_hook(fail)  # type: ignore[union-attr, operator]
    try:
        diagnose(model, credit=lambda t: [g.sign() for g in t.grads])
    finally:
        handle.remove()


def by_hand(model: nn.Module) -> None:
    """A session of the user's own."""
    with wb.Tracer(model) as tracer:
        for x, y in data():
            tracer.trace(x, y, credit=lambda t: [g.sign() for g in t.grads])


WAYS: dict[str, Callable[[nn.Module], None]] = {
    "diagnose": diagnose,
    "credit": lambda m: diagnose(m, credit=lambda t: [g.sign() for g in t.grads]),
    "credit that runs it": lambda m: diagnose(m, credit=running_credit(m)),
    "recorded": lambda m: diagnose(m, credit=wb.recorded(m)),
    "derived": lambda m: diagnose(m, reference="derived"),
    "probes": lambda m: diagnose(m, credit=lambda t: t.grads, probes=("nudging", "intrinsic")),
    "failing credit": lambda m: diagnose(m, credit=failing_credit(m)),
    "failing forward in batch 2": fails_in_batch_2,
    "tracer": by_hand,
}


# A forward pass that learns from the whole batch mixes its samples: differences confirm no reference sample by sample.
REFUSED = {("HidesWeights", "recorded"): "a mode that keeps its samples apart"}


def prepared(name: str) -> tuple[nn.Module, Tensor]:
    """A network after a pass of the user's own, whose backward is still to come."""
    model = ready(NETWORKS[name])
    x, y = data()[0]
    return model, F.cross_entropy(model(x), y)


def trained_on(model: nn.Module, loss: Tensor) -> dict[str, Any]:
    """The values of everything after the user's backward, a step, and one more step."""
    optimiser = torch.optim.SGD([p for p in every_tensor(model) if p.requires_grad], lr=0.1)
    loss.backward()
    optimiser.step()
    for x, y in data()[1:]:
        optimiser.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimiser.step()
    return Fingerprint(model).values


def copies(model: nn.Module) -> bool:
    try:
        copy.deepcopy(model)
    except (RuntimeError, TypeError):
        return False
    return True


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NETWORKS)
def test_everything_is_as_before_and_training_goes_on(name: str, way: str) -> None:
    model, loss = prepared(name)
    batches = data()
    could_copy = copies(model)
    before = Fingerprint(model, batches)
    error: BaseException | None = None
    try:
        WAYS[way](model)
    except (wb.WalkbackError, ZeroDivisionError) as raised:
        error = raised
    after = Fingerprint(model, batches)
    assert before.changed(after) == []
    assert copies(model) == could_copy
    if way.startswith("failing"):
        assert isinstance(error, ZeroDivisionError)
    elif (name, way) in REFUSED:
        assert REFUSED[name, way] in str(error)
    else:
        assert error is None
    state = torch.random.get_rng_state()
    measured = trained_on(model, loss)
    twin, its_loss = prepared(name)
    torch.random.set_rng_state(state)
    plain = trained_on(twin, its_loss)
    moved = {k: v for k, v in measured.items() if plain.get(k) != v}
    assert moved == {}


class SharesState(Base):
    """What all its objects share stands on the class: a counter, a table, a tensor that is written in place."""

    calls = 0
    table: ClassVar[dict[str, list[int]]] = {"calls": []}
    seen = torch.zeros(12)

    def forward(self, x: Tensor) -> Tensor:
        SharesState.calls += 1
        self.table["calls"].append(SharesState.calls)
        self.seen.add_(self.embed(x).detach().mean(0))
        return super().forward(x)


@pytest.mark.parametrize("way", WAYS)
def test_what_a_class_keeps_for_its_networks_is_as_before(way: str) -> None:
    model = ready(SharesState)
    model(data()[0][0])
    table, seen, values = SharesState.table, SharesState.seen, SharesState.seen.clone()
    calls, listed = SharesState.calls, list(table["calls"])
    with contextlib.suppress(ZeroDivisionError):
        WAYS[way](model)
    assert (SharesState.calls, table["calls"]) == (calls, listed)
    assert SharesState.table is table
    assert SharesState.seen is seen
    assert torch.equal(seen, values)
