"""Measuring leaves no trace, whether it ends well, in an error, or is interrupted."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import walkback as wb
import walkback.tracing.kept
from walkback.tracing.kept import Given, Spare, imprint, shows, unwritten
from walkback.tracing.untouched import untouched

HOOKS = [name for name in vars(nn.Linear(1, 1)) if name.endswith("_hooks") or "_hooks_" in name]


@pytest.fixture(autouse=True)
def python_random(monkeypatch):
    """A generator of our own behind `random`: the type checker of the tests draws from the global one."""
    own = random.Random(7)
    for name in ("random", "getstate", "setstate"):
        monkeypatch.setattr(random, name, getattr(own, name))


class Restless(nn.Module):
    """A network whose forward pass changes everything it can: buffers, random state, its own attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 12)
        self.normed, self.drop = nn.BatchNorm1d(12), nn.Dropout(0.5)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm1d(12), nn.Linear(12, 12), nn.Dropout(0.3), nn.Tanh()) for _ in range(3)
        )
        self.out_ln, self.out_head = nn.LayerNorm(12), nn.Linear(12, 10)
        self.register_buffer("in_place", torch.zeros(3))
        self.register_buffer("replaced", torch.zeros(2))
        self.register_buffer("transient", torch.zeros(2), persistent=False)
        self.register_buffer("counter", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.in_place.add_(1.0)
        self.replaced = self.replaced + 1.0
        self.transient.mul_(0.0).add_(5.0)
        self.counter += 1
        random.random(), np.random.rand(), torch.rand(1)
        h = self.drop(self.normed(self.embed(x)))
        for block in self.blocks:
            h = h + block(h)
        return self.out_head(self.out_ln(h))


def restless() -> Restless:
    """In mixed modes, with gradients on some parameters, some frozen, and with hooks of the user's own."""
    torch.manual_seed(0)
    model = Restless().train()
    model.blocks[1].eval()
    model.blocks[2][2].train()
    model.normed.eval()
    model.embed.weight.requires_grad_(False)
    for i, p in enumerate(model.parameters()):
        if i % 3 == 0 and p.requires_grad:
            p.grad = torch.randn_like(p)
    model.register_forward_hook(lambda *a: None)
    model.blocks[0].register_forward_pre_hook(lambda *a: None)
    model.out_head.register_full_backward_hook(lambda *a: None)
    return model


@dataclass
class Snapshot:
    """Everything of a model, its data and the process that measuring could change."""

    facts: dict[str, Any]

    @classmethod
    def of(cls, model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> Snapshot:
        facts: dict[str, Any] = {"modules": [id(m) for m in model.modules()]}
        for name, m in model.named_modules():
            facts[f"{name} training"] = m.training
            facts[f"{name} attributes"] = sorted(vars(m))
            facts[f"{name} forward"] = m.__dict__.get("forward")
            for kind in HOOKS:
                facts[f"{name} {kind}"] = [(key, id(hook)) for key, hook in getattr(m, kind).items()]
        for name, p in model.named_parameters():
            facts[f"{name} parameter"] = (id(p), p.requires_grad, p._version, bits(p))
            facts[f"{name} grad"] = None if p.grad is None else (id(p.grad), p.grad._version, bits(p.grad))
            facts[f"{name} hooks"] = p._backward_hooks
        for name, b in model.named_buffers():
            facts[f"{name} buffer"] = (id(b), bits(b))
        facts["state"] = sorted(model.state_dict())
        for i, batch in enumerate(batches):
            facts[f"batch {i}"] = [(id(t), t._version, t.requires_grad, t.grad, bits(t)) for t in batch]
        facts["torch"] = bits(torch.random.get_rng_state())
        facts["python"] = random.getstate()
        kind, keys, *rest = np.random.get_state()
        facts["numpy"] = (kind, keys.tobytes(), rest)
        facts["modes"] = (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        facts["compiler"] = torch.compiler.is_compiling()
        return cls(facts)

    def changed(self, later: Snapshot) -> list[str]:
        return [k for k in self.facts.keys() | later.facts.keys() if self.facts.get(k) != later.facts.get(k)]


def bits(t: Tensor) -> bytes:
    return t.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if t.ndim else repr(t.item()).encode()


def data() -> list[tuple[Tensor, Tensor]]:
    return wb.selftest.batches(3, 16)


# -- the ways a measurement can go ---------------------------------------------------------------------------------


class Broken(nn.Module):
    def __init__(self, inner: nn.Module, error: BaseException, after: int = 0) -> None:
        super().__init__()
        self.inner, self.error, self.after, self.seen = inner, error, after, []

    def forward(self, h: Tensor) -> Tensor:
        self.seen.append(1)
        if len(self.seen) > self.after:
            raise self.error
        return self.inner(h)


def breaks(error: BaseException, after: int = 0) -> Callable[[Restless], None]:
    def arrange(model: Restless) -> None:
        model.blocks[1] = Broken(model.blocks[1], error, after)

    return arrange


def raising(error: BaseException) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        raise error

    return call


def backward_credit(model: nn.Module) -> Callable[[wb.Trace], Any]:
    def credit(trace: wb.Trace) -> Any:
        F.cross_entropy(model(trace.inputs), trace.labels).backward()
        torch.rand(1), np.random.rand(), random.random()
        return [g * 2 for g in trace.grads]

    return credit


def meddling_credit(model: nn.Module) -> Callable[[wb.Trace], Any]:
    def credit(trace: wb.Trace) -> Any:
        model.zero_grad()
        model.requires_grad_(True)
        if trace.index == 2:
            model.train()
        return trace.grads

    return credit


def late_bad_labels() -> list[tuple[Tensor, Tensor]]:
    batches = data()
    return [*batches[:2], (batches[2][0], batches[2][1] + 5)]


def raising_loader():
    yield data()[0]
    raise OSError("disk gone")


CASES: dict[str, dict[str, Any]] = {
    "normal": {},
    "credit and probes": {"credit": lambda m: lambda t: t.grads, "probes": ("nudging", wb.Perturbation(count=3))},
    "in float64 too": {"credit": lambda m: lambda t: t.grads, "probes": ("intrinsic", "fresh-b")},
    "in float64 too, where it fails": {
        "arrange": breaks(RuntimeError("boom"), 1),
        "probes": ("intrinsic",),
        "batches": lambda: data()[:1],
    },
    "interrupt in float64": {
        "arrange": breaks(KeyboardInterrupt(), 1),
        "probes": ("intrinsic",),
        "error": KeyboardInterrupt,
    },
    "credit that calls backward": {"credit": backward_credit},
    "credit that sets modes and grads": {"credit": meddling_credit},
    "mean loss": {"loss": nn.CrossEntropyLoss()},
    "block fails": {"arrange": breaks(RuntimeError("boom")), "error": RuntimeError},
    "block fails in the third batch": {"arrange": breaks(RuntimeError("boom"), 2), "error": RuntimeError},
    "interrupt in a block": {"arrange": breaks(KeyboardInterrupt()), "error": KeyboardInterrupt},
    "interrupt in the second batch": {"arrange": breaks(KeyboardInterrupt(), 1), "error": KeyboardInterrupt},
    "exit in a block": {"arrange": breaks(SystemExit(3)), "error": SystemExit},
    "bad labels": {"batches": late_bad_labels, "error": wb.InputError},
    "loader fails": {"stream": raising_loader, "error": OSError},
    "no batches": {"batches": list, "error": wb.InputError},
    "credit raises": {"credit": lambda m: raising(ValueError("rule")), "error": ValueError},
    "credit of a wrong shape": {"credit": lambda m: lambda t: t.grads[1:], "error": wb.CreditError},
    "interrupt in the credit": {"credit": lambda m: raising(KeyboardInterrupt()), "error": KeyboardInterrupt},
    "loss raises": {"loss": raising(ZeroDivisionError("loss")), "error": ZeroDivisionError},
    "interrupt in the loss": {"loss": raising(KeyboardInterrupt()), "error": KeyboardInterrupt},
    "loss of a wrong shape": {"loss": lambda z, y: z, "error": wb.InputError},
    "blocks out of order": {"anatomy": {"blocks": ["blocks.1", "blocks.0"]}, "error": wb.AnatomyError},
    "wrong anatomy": {"anatomy": {"blocks": "nowhere"}, "error": wb.AnatomyError},
}


@pytest.mark.parametrize("mode", [nullcontext, torch.no_grad], ids=["grad", "no grad"])
@pytest.mark.parametrize("name", CASES)
def test_everything_is_as_it_was(name, mode):
    case = CASES[name]
    model = restless()
    case.get("arrange", lambda m: None)(model)
    batches = case.get("batches", data)()
    credit = case["credit"](model) if "credit" in case else None
    more = {k: case[k] for k in ("loss", "probes", "anatomy") if k in case}
    with mode():
        before = Snapshot.of(model, batches)
        with pytest.raises(case["error"]) if "error" in case else nullcontext():
            wb.diagnose(model, case["stream"]() if "stream" in case else batches, credit=credit, **more)
        after = Snapshot.of(model, batches)
    assert before.changed(after) == []


def test_the_snapshot_sees_every_kind_of_change():
    """The guard itself: each change alone is noticed."""

    def buffer(m, b):
        m.in_place.add_(1)

    def rebound(m, b):
        m.replaced = m.replaced.clone()

    def mode(m, b):
        m.blocks[1].train()

    def grad(m, b):
        next(p for p in m.parameters() if p.grad is not None).grad.add_(1)

    def new_grad(m, b):
        p = next(p for p in m.parameters() if p.grad is not None)
        p.grad = p.grad.clone()

    def frozen(m, b):
        m.embed.weight.requires_grad_(True)

    def weight(m, b):
        with torch.no_grad():
            m.embed.weight.add_(0.0)

    def hook(m, b):
        m.out_ln.register_forward_hook(lambda *a: None)

    def attribute(m, b):
        m.cache = 1

    def new_buffer(m, b):
        m.register_buffer("late", torch.zeros(1))

    def inputs(m, b):
        b[0][0].mul_(1.0)

    changes: list[Callable[[Any, Any], Any]] = [
        buffer, rebound, mode, grad, new_grad, frozen, weight, hook, attribute, new_buffer, inputs,
        lambda m, b: torch.rand(1), lambda m, b: np.random.rand(), lambda m, b: random.random(),
    ]  # fmt: skip
    for change in changes:
        model, batches = restless(), data()
        before = Snapshot.of(model, batches)
        assert before.changed(Snapshot.of(model, batches)) == []
        change(model, batches)
        assert before.changed(Snapshot.of(model, batches)) != [], change


def test_a_model_in_training_mode_is_measured_in_eval_mode_and_stays_in_training():
    model = restless()
    for m in model.modules():
        m.training = True
    same = restless().eval()
    first, second = wb.measure(model, data()), wb.measure(same, data())
    assert first.h_norm == second.h_norm
    assert first.g_norm == second.g_norm
    assert all(m.training for m in model.modules())
    assert not any(m.training for m in same.modules())


def test_measuring_twice_gives_the_same_numbers():
    model, batches = restless(), data()
    assert wb.measure(model, batches) == wb.measure(model, batches)


def test_gradients_of_the_user_are_neither_wiped_nor_added_to():
    model = restless()
    F.cross_entropy(model(data()[0][0]), data()[0][1]).backward()
    kept = {name: (p.grad, p.grad.clone()) for name, p in model.named_parameters() if p.grad is not None}
    wb.diagnose(model, data(), credit=backward_credit(model))
    for name, p in model.named_parameters():
        assert (p.grad is None) is (name not in kept)
        if name in kept:
            assert p.grad is kept[name][0]
            assert torch.equal(p.grad, kept[name][1])


def test_gradients_that_were_none_stay_none():
    model = wb.selftest.healthy()
    wb.diagnose(model, data(), credit=backward_credit(model))
    assert all(p.grad is None for p in model.parameters())


def test_training_goes_on_as_if_nothing_had_been_measured():
    def train(measuring: bool) -> dict[str, Tensor]:
        model = restless()
        torch.manual_seed(1)
        optimiser = torch.optim.Adam(p for p in model.parameters() if p.requires_grad)
        for x, y in data():
            optimiser.zero_grad()
            F.cross_entropy(model(x), y).backward()
            if measuring:
                wb.diagnose(model, data(), credit=lambda t: t.grads, probes=("nudging",))
            optimiser.step()
        return model.state_dict()

    plain, measured = train(False), train(True)
    assert all(torch.equal(plain[k], measured[k]) for k in plain)


def test_a_backward_pass_already_begun_can_be_finished():
    model = wb.selftest.healthy()
    x, y = data()[0]
    loss = F.cross_entropy(model(x), y)
    wb.diagnose(model, data())
    loss.backward()
    assert model.embed.weight.grad is not None


def test_inputs_that_want_gradients_get_none():
    batches = [(x.requires_grad_(), y) for x, y in data()]
    batches[0][0].grad = torch.ones_like(batches[0][0])
    kept = batches[0][0].grad
    wb.diagnose(wb.selftest.healthy(), batches, credit=lambda t: t.grads)
    assert batches[0][0].grad is kept
    assert torch.equal(kept, torch.ones_like(kept))
    assert batches[1][0].grad is None
    assert batches[0][0].requires_grad


@pytest.mark.parametrize("where", ["first", "last"])
def test_a_network_that_overwrites_its_input_does_not_overwrite_the_data(where):
    class Greedy(wb.selftest.ResidualNet):
        def forward(self, x):
            if where == "first":
                x.mul_(2.0)
            logits = super().forward(x)
            if where == "last":
                x.zero_()
            return logits

    torch.manual_seed(0)
    batches = data()
    copies = [x.clone() for x, _ in batches]
    wb.diagnose(Greedy(16, 8, 2, 10), batches)
    assert all(torch.equal(x, copy) and x._version == 0 for (x, _), copy in zip(batches, copies))


def test_an_identity_stem_does_not_lead_blocks_into_the_data():
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Identity(), nn.Linear(16, 10)
            self.blocks = nn.ModuleList(nn.Tanh() for _ in range(2))

        def forward(self, x):
            h = self.embed(x)
            for block in self.blocks:
                h += block(h)
            return self.head(h)

    batches = data()
    copies = [x.clone() for x, _ in batches]
    wb.diagnose(Bare(), batches)
    assert all(
        torch.equal(x, copy) and x._version == 0 and not x.requires_grad for (x, _), copy in zip(batches, copies)
    )


def test_modes_are_set_without_the_models_own_train_and_eval():
    class Proud(wb.selftest.ResidualNet):
        def train(self, mode: bool = True):
            raise AssertionError("train() was called")

    model = Proud(16, 8, 2, 10)
    model.training = True
    wb.diagnose(model, data())
    assert model.training


def test_the_users_hooks_keep_working_while_measuring():
    model, seen = wb.selftest.healthy(), []
    model.blocks[1].register_forward_hook(lambda *a: seen.append("forward"))
    wb.diagnose(model, data())
    assert seen.count("forward") == 3
    model(data()[0][0])
    assert seen.count("forward") == 4


def test_spectral_norm_does_not_move():
    model = wb.selftest.healthy()
    nn.utils.parametrizations.spectral_norm(model.blocks[0][1])
    model.train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    wb.diagnose(model, data())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_the_compilers_stance_is_put_back():
    torch.compiler.reset()
    model = torch.compile(wb.selftest.healthy(), backend="eager")
    wb.diagnose(model, data())
    with pytest.raises(wb.InputError):
        wb.diagnose(model, [(data()[0][0], data()[0][1] + 20)])
    ran = []

    def backend(graph, inputs):
        ran.append(1)
        return graph.forward

    with torch.no_grad():
        torch.compile(wb.selftest.healthy(), backend=backend)(data()[0][0])
    assert ran == [1]
    torch.compiler.reset()


def test_the_context_itself_restores_on_every_way_out():
    for error in (None, ValueError, KeyboardInterrupt, GeneratorExit):
        model = restless()
        before = Snapshot.of(model, [])
        with pytest.raises(error) if error else nullcontext(), untouched(model):
            assert not any(m.training for m in model.modules())
            assert all(p.grad is None for p in model.parameters())
            assert torch.is_grad_enabled()
            model(data()[0][0]).sum().backward()
            if error:
                raise error
        assert before.changed(Snapshot.of(model, [])) == []


def test_a_tracer_that_is_left_by_an_error_takes_its_hooks_along():
    model = wb.selftest.healthy()
    before = Snapshot.of(model, [])
    with pytest.raises(RuntimeError, match="mine"), wb.Tracer(model) as tracer:  # noqa: PT012
        tracer.trace(*data()[0])
        assert before.changed(Snapshot.of(model, [])) != []
        raise RuntimeError("mine")
    assert before.changed(Snapshot.of(model, [])) == []


def test_memory_of_a_pass_is_let_go():
    import gc
    import weakref

    model, kept = wb.selftest.healthy(), []
    wb.diagnose(model, data(), credit=lambda t: kept.append(weakref.ref(t.states[1])) or t.grads)
    gc.collect()
    assert len(kept) == 3
    assert [ref() for ref in kept] == [None, None, None]


# -- stubborn networks and careless credits ------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["forward", "credit"])
def test_running_statistics_that_move_while_measuring_are_put_back(how):
    """Batch norm in training mode writes its statistics without telling autograd's version counter."""

    class Stubborn(Restless):
        def forward(self, x):
            if how == "forward":
                F.batch_norm(self.embed(x), self.normed.running_mean, self.normed.running_var, training=True)
            return super().forward(x)

    torch.manual_seed(0)
    model = Stubborn().eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}

    def credit(trace):
        model.train()
        model(trace.inputs)
        return trace.grads

    wb.diagnose(model, data(), credit=credit if how == "credit" else None)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_a_credit_that_turns_training_on_does_not_change_what_later_batches_show():
    """Dropout and batch statistics in the second batch, under a report that says eval mode."""
    model = restless()

    def credit(trace):
        model.train()
        return trace.grads

    plain = wb.measure(restless(), data())
    assert wb.measure(model, data(), credit=credit).h_norm == plain.h_norm


def test_a_buffer_that_was_none_is_none_again():
    class Lazy(wb.selftest.ResidualNet):
        def forward(self, x):
            self.mask = torch.ones(2)
            return super().forward(x)

    model = Lazy(16, 8, 2, 10)
    model.register_buffer("mask", None)
    wb.diagnose(model, data())
    assert model.mask is None


def test_a_buffer_that_forward_registers_is_gone_again():
    class Growing(wb.selftest.ResidualNet):
        def forward(self, x):
            self.register_buffer("cache", torch.ones(2))
            return super().forward(x)

    model = Growing(16, 8, 2, 10)
    wb.diagnose(model, data())
    assert "cache" not in model.state_dict()


class Folding(nn.Module):
    """Keeps what it makes of its weight in eval mode, and for how many samples, until it is set to train."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.weight, self.fails = nn.Parameter(torch.randn(12, 12) / 4), fails
        self.folded, self.samples, self.replaced, self.deleted = None, 7, torch.ones(2), torch.ones(2)

    def train(self, mode: bool = True) -> Folding:
        self.folded = None
        return super().train(mode)

    def forward(self, h: Tensor) -> Tensor:
        if self.training:
            return torch.tanh(h @ (self.weight - self.weight.mean(0)))
        if self.folded is None:
            self.folded = (self.weight - self.weight.mean(0)).detach()
            self.replaced, self.added, self.samples = self.folded * 2, self.folded * 3, len(h)
            del self.deleted
        if self.fails:
            raise RuntimeError("boom")
        return torch.tanh(h @ self.folded)


def folding(fails: bool = False) -> Restless:
    model = restless()
    model.blocks = nn.ModuleList(Folding(fails and i == 1) for i in range(3))
    return model.train()


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("probes", [(), ("intrinsic", "nudging")])
def test_what_a_module_keeps_from_eval_mode_is_not_kept(fails, probes):
    model = folding(fails)
    before = [dict(vars(m)) for m in model.modules()]
    with pytest.raises(RuntimeError, match="boom") if fails else nullcontext():
        wb.diagnose(model, data(), probes=probes)
    for m, was in zip(model.modules(), before):
        assert vars(m).keys() == was.keys()
        assert all(vars(m)[name] is value for name, value in was.items())


def test_a_watch_sees_the_weights_of_now_where_modules_fold_them_in_eval_mode():
    model = folding()
    watch = wb.Watch(model, data(), every=1)
    with torch.no_grad():
        for block in model.blocks:
            block.weight.mul_(3)
    row = watch.step()
    assert row is not None
    with torch.no_grad():  # in training mode nothing is folded, and this network draws only where it drops
        model.drop.p = 0.0
        norms = np.zeros(4)
        for x, _ in data():
            h = model.normed.eval()(model.embed(x))
            for site in range(4):
                norms[site] += float(h.double().norm(dim=1).mean()) / len(data())
                h = h + model.blocks[site](h) if site < 3 else h
    assert row["per_layer"]["h_norm"] == pytest.approx(norms, rel=1e-6)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
def test_the_weight_of_an_old_weight_norm_is_the_one_it_was():
    """It is a plain attribute, made anew by every pass: in float64 by a probe."""
    model = wb.selftest.healthy()
    layer = model.blocks[0][1]
    nn.utils.weight_norm(layer)
    model(data()[0][0])
    before = layer.weight
    wb.diagnose(model, data(), probes=("intrinsic", "nudging"))
    assert layer.weight is before
    assert before.dtype == torch.float32


def test_parameters_made_on_the_way_are_gone_and_the_attribute_they_replaced_is_back():
    model = nn.Linear(2, 2)
    model.scale = None
    with untouched(model):
        model.scale = nn.Parameter(torch.ones(2))
    assert model.scale is None
    assert list(model._parameters) == ["weight", "bias"]
    model.scale = nn.Parameter(torch.ones(2))
    assert isinstance(model.scale, nn.Parameter)


def test_a_lazy_module_that_ran_on_the_way_stays_whole():
    model = nn.Sequential(nn.LazyLinear(3))
    with untouched(model):
        model(torch.ones(1, 5))
    assert (type(model[0]), model[0].in_features, model[0].weight.shape) == (nn.Linear, 5, (3, 5))
    assert model(torch.ones(1, 5)).shape == (1, 3)


def test_attributes_of_the_first_fsdp_are_its_own():
    class FullyShardedDataParallel(nn.Module):
        begun = None

        def forward(self, x: Tensor) -> Tensor:
            self.begun, self.view = True, x
            return x

    model = FullyShardedDataParallel()
    with untouched(model):
        model(torch.ones(1))
    assert model.begun
    assert torch.equal(model.view, torch.ones(1))


def test_a_credit_that_trains_the_model_is_refused():
    model = wb.selftest.healthy()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)

    def credit(trace):
        F.cross_entropy(model(trace.inputs), trace.labels).backward()
        optimiser.step()
        return trace.grads

    with pytest.raises(wb.CreditError, match="it changed its weights"):
        wb.diagnose(model, data(), credit=credit)


def steps(model: nn.Module) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)


def writes_data(model: nn.Module) -> None:
    for p in model.parameters():
        p.data.sub_(0.1)


def sets_data(model: nn.Module) -> None:
    for p in model.parameters():
        p.data = p.data - 0.1


def one_bit(model: nn.Module) -> None:
    weight = next(model.parameters()).data
    weight[-1, -1].view(torch.int32).bitwise_xor_(1)


def converts(model: nn.Module) -> None:
    model.double()


def replaces(model: nn.Module) -> None:
    model.embed.weight = nn.Parameter(model.embed.weight * 2)


CHANGES = [steps, writes_data, sets_data, one_bit, converts, replaces]


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_weights_that_a_credit_changed_are_put_back_and_named(change, fails, batch):
    model = restless()
    before = {name: (id(p), p.data_ptr(), p.detach().clone()) for name, p in model.named_parameters()}

    def credit(trace):
        if trace.index == batch:
            change(model)
            if fails:
                raise ValueError("mine")
        return [g + 0 for g in trace.grads]

    with pytest.raises(ValueError if fails else wb.CreditError, match="mine" if fails else "it changed its weights"):
        wb.diagnose(model, data(), credit=credit)
    after = dict(model.named_parameters())
    assert list(after) == list(before)
    for name, (number, address, value) in before.items():
        assert (id(after[name]), after[name].data_ptr()) == (number, address)
        assert torch.equal(after[name], value)


def test_a_credit_that_puts_weights_back_itself_is_measured():
    model, plain = restless(), wb.measure(restless(), data())

    def credit(trace):
        kept = {k: v.clone() for k, v in model.state_dict().items()}
        writes_data(model)
        made = [h * 1.0 for h in trace.states]
        model.load_state_dict(kept)
        return made

    assert wb.measure(model, data(), credit=credit).h_norm == plain.h_norm


def test_weights_that_are_nan_are_not_taken_for_changed():
    model = wb.selftest.healthy()
    model.blocks[1][1].weight.data[0, 0] = float("nan")
    report = wb.diagnose(model, data(), credit=lambda t: [torch.ones_like(h) for h in t.states])
    assert report.per_layer["h_norm"][-1] is None


def test_statistics_that_a_credit_moves_do_not_change_what_later_batches_show():
    """A training-mode pass in the credit, and buffers set anew: the next batch is measured on those of the user."""
    model = restless()
    plain = wb.measure(restless(), data())

    def credit(trace):
        model.train()
        model(trace.inputs * 10 + 3)
        model.blocks[0][0].running_var = torch.full((12,), 9.0)
        return [g + 0 for g in trace.grads]

    assert wb.measure(model, data(), credit=credit).h_norm == plain.h_norm
    assert wb.measure(model, data()).h_norm == plain.h_norm


# -- tensors of every kind -------------------------------------------------------------------------------------------

KINDS: dict[str, Callable[[], Tensor]] = {
    "COO": lambda: torch.eye(4).to_sparse(),
    "CSR": lambda: torch.eye(4).to_sparse_csr(),
    "CSC": lambda: torch.eye(4).to_sparse_csc(),
    "BSR": lambda: torch.eye(4).to_sparse_bsr(2),
    "float32": lambda: torch.tensor([1.0, float("nan"), -0.0]),
    "scalar": lambda: torch.tensor(3.0),
    "bfloat16": lambda: torch.ones(3, dtype=torch.bfloat16),
    "float8": lambda: torch.ones(3).to(torch.float8_e4m3fn),
    "complex64": lambda: torch.ones(3, dtype=torch.complex64),
    "complex128": lambda: torch.ones(3, dtype=torch.complex128).conj(),
    "bool": lambda: torch.tensor([True, False]),
    "strided": lambda: torch.arange(12.0).reshape(3, 4).t()[::2],
}


def inside(t: Tensor) -> Tensor:
    return t._values() if t.layout == torch.sparse_coo else t if t.layout == torch.strided else t.values()


def dense(t: Tensor) -> bytes:
    with torch.inference_mode():
        return bits((t.to_dense() if t.layout != torch.strided else t).resolve_conj().reshape(-1))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.filterwarnings("ignore:Sparse CSC tensor support is in beta")
@pytest.mark.filterwarnings("ignore:Sparse BSR tensor support is in beta")
@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at_once", [("cpu",), ()], ids=["at once", "as on devices"])
def test_buffers_of_every_kind_are_put_back_and_left_alone_where_nothing_changed(at_once, kind, inference, monkeypatch):
    monkeypatch.setattr("walkback.tracing.kept.AT_ONCE", at_once)
    torch.manual_seed(0)
    model = Restless().eval()
    with torch.inference_mode(inference):
        model.blocks[0].register_buffer("odd", KINDS[kind]())
    odd, before, mean = model.blocks[0].odd, dense(model.blocks[0].odd), model.blocks[2][0].running_mean.clone()
    version = None if inference else odd._version
    wb.diagnose(model, data())
    assert inference or odd._version == version, "a backward pass begun before can be finished"

    def credit(trace):
        with torch.inference_mode(inference):
            inside(odd).detach().zero_()
        model.train()
        model(trace.inputs)
        return [g + 0 for g in trace.grads]

    wb.diagnose(model, data(), credit=credit)
    assert model.blocks[0].odd is odd
    assert dense(odd) == before
    assert torch.equal(model.blocks[2][0].running_mean, mean), "what stands behind it too"


def test_tensors_on_a_device_are_compared_with_one_wait_however_many_there_are(monkeypatch):
    monkeypatch.setattr("walkback.tracing.kept.AT_ONCE", ())

    class Waits(TorchDispatchMode):
        asked = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.asked += func in (torch.ops.aten.equal.default, torch.ops.aten._local_scalar_dense.default)
            return func(*args, **(kwargs or {}))

    many = [torch.zeros(3) for _ in range(50)]
    with Waits() as waits:
        with unwritten(many) as written:
            many[7].add_(1)
        assert waits.asked == 0  # all answers come in one list
        bool(many[0].sum() == 0)
        assert waits.asked == 1
    assert [t is many[7] for t in written] == [True]


def test_a_sparse_buffer_with_other_places_is_put_back():
    odd = torch.eye(3).to_sparse()
    with unwritten([odd]) as written:
        odd.copy_(torch.ones(3, 3).to_sparse())
        assert odd._nnz() == 9
    assert [t is odd for t in written] == [True]
    assert torch.equal(odd.to_dense(), torch.eye(3))


def test_a_buffer_without_values_is_left_out():
    model = Restless().eval()
    model.embed.register_buffer("odd", torch.zeros(3, device="meta"))
    odd = model.embed.odd
    wb.diagnose(model, data(), credit=lambda t: t.grads)
    assert model.embed.odd is odd


def test_a_buffer_that_can_not_be_put_back_does_not_keep_the_others_from_it(monkeypatch):
    one, bad, other = torch.zeros(2), torch.zeros(3), torch.zeros(2)
    write = walkback.tracing.kept._put_back

    def fails(now, copy):
        if now is bad:
            raise RuntimeError("can't be written")
        write(now, copy)

    monkeypatch.setattr("walkback.tracing.kept._put_back", fails)
    with pytest.raises(RuntimeError, match="can't be written"), unwritten([one, bad, other]):  # noqa: PT012
        one.add_(1)
        bad.add_(1)
        other.add_(1)
    assert (one.sum(), bad.sum(), other.sum()) == (0, 3, 0)


def test_rows_that_share_their_memory_are_put_back():
    """torch refuses to write them as a whole."""
    rows = torch.zeros(3).expand(2, 3)
    with unwritten([rows]) as written:
        rows[0].add_(1)
        assert rows.sum() == 6
    assert [t is rows for t in written] == [True]
    assert rows.sum() == 0


# -- modules under two names, and tied weights -----------------------------------------------------------------------


class Aliased(nn.Module):
    """Its blocks stand in it twice, and its head is tied to the stem: what weights by name can trip over."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 16, bias=False)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.alias = self.blocks  # the same modules under a second name
        self.out_head = nn.Linear(16, 16, bias=False)
        self.out_head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h)
        return self.out_head(h)


@pytest.mark.parametrize("probe", ["intrinsic", "perturbation", "nudging"])
def test_other_weights_by_name_leave_shared_modules_and_tied_weights_alone(probe: str) -> None:
    torch.manual_seed(0)
    net = Aliased()
    before = {name: (id(p), p.clone()) for name, p in net.named_parameters(remove_duplicate=False)}
    report = wb.diagnose(net, wb.selftest.batches(2), credit=wb.rules.BP(), probes=[probe])
    after = dict(net.named_parameters(remove_duplicate=False))
    assert {name: id(p) for name, p in after.items()} == {name: number for name, (number, _) in before.items()}
    assert all(torch.equal(after[name], value) for name, (_, value) in before.items())
    if probe == "intrinsic":
        assert report.conditions["intrinsic"]["method"] == "float64"
        assert max(report.per_layer["float64_disagreement"]) < 1e-6


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_network_that_writes_to_its_own_weights_is_no_fault_of_the_credit(idempotent: bool) -> None:
    """Heads that normalise their weight in the forward pass do: past the version counter, in every pass anew."""
    model = wb.selftest.healthy()

    def writes(module: nn.Module, args: tuple) -> None:
        weight = model.blocks[0][1].weight.data  # type: ignore[index]
        weight.clamp_(-0.1, 0.1) if idempotent else weight.mul_(1.001)

    model.register_forward_pre_hook(writes)
    report = wb.diagnose(model, wb.selftest.batches(4), credit=lambda trace: [g.sign() for g in trace.grads])
    assert report.per_layer["cosine"][1] is not None
    with pytest.raises(wb.CreditError, match="it changed its weights"):
        wb.diagnose(model, wb.selftest.batches(4), credit=late(model, 3))


def late(model: nn.Module, when: int):
    """A credit that writes to the weights past the version counter, from the call `when` on."""
    calls = iter(range(100))

    def credit(trace: wb.Trace) -> list[torch.Tensor]:
        if next(calls) >= when:
            for p in model.parameters():
                p.data.mul_(1.5)
        return [g.sign() for g in trace.grads]

    return credit


def test_a_credit_that_writes_late_is_found_at_the_end_and_undone() -> None:
    model = wb.selftest.healthy()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(wb.CreditError, match="it changed its weights"):
        wb.diagnose(model, wb.selftest.batches(8), credit=late(model, 5))
    assert all(torch.equal(p, was) for p, was in zip(model.parameters(), before))


def test_updates_of_the_user_between_two_traces_stay() -> None:
    """A session of one's own may train in between, past the version counter too: only the credit's doing is undone."""
    model, batches = wb.selftest.healthy(), wb.selftest.batches(6)
    weight = model.blocks[0][1].weight  # type: ignore[index]
    with wb.Tracer(model) as tracer:
        for i, (x, y) in enumerate(batches):
            tracer.trace(x, y, credit=lambda trace: [g.sign() for g in trace.grads])
            if i == 4:
                weight.data.fill_(0.5)
    assert bool((weight == 0.5).all())


def test_memory_of_copies_is_used_again():
    """Of the same shape and type; a copy in it is as good as a new one."""
    spare: list[Tensor] = []
    for value in (1.0, 2.0):
        one, other = torch.full((3, 4), value), torch.full((2,), int(value))
        before = [copy.data_ptr() for copy in spare]
        with unwritten([one, one.T, other], spare) as written:
            one.data[1, 2] = float("nan")
        assert [t is one for t in written] == [True, False]
        assert written[1] is not other
        assert torch.equal(one, torch.full((3, 4), value))
        assert not before or before == [copy.data_ptr() for copy in spare]
    assert len(before) == 3


SHOWN = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", SHOWN)
@pytest.mark.parametrize("how", ["past the counter", "in place", "moved"])
def test_what_a_credit_was_shown_is_put_back_bit_for_bit(dtype: torch.dtype, how: str):
    t = torch.tensor([[1, 0, 1], [0, 1, 1]]).to(dtype)
    if dtype.is_floating_point:
        t[0, 0], t[1, 0] = float("nan"), -0.0
    was, place, version = t.clone(), t.data_ptr(), t._version
    given = Given([t, torch.zeros(2)], Spare())
    if how == "past the counter":
        t.data[1, 2] = 0
    elif how == "in place":
        t[1, 2] = 0
    else:
        t.data = torch.zeros(5, dtype=torch.int32)
    assert given.put_back()
    assert (t.dtype, t.shape, t.data_ptr(), t._version) == (dtype, was.shape, place, version)
    assert torch.equal(t.view(torch.uint8), was.view(torch.uint8))


def test_what_was_not_written_is_no_finding_and_its_memory_serves_again():
    spare, t = Spare(), torch.randn(4, 3)
    for _ in range(2):
        given = Given([t], spare)
        assert not spare.get(t.nbytes)
        assert not given.put_back()
    assert [len(memory) for memory in spare[t.nbytes]] == [t.nbytes]


def test_what_does_not_lie_in_a_row_is_left_to_others():
    t = torch.randn(4, 3)
    given = Given([t.T, t[:1].expand(4, 3), torch.zeros(0, 2), t], Spare())
    assert [o.shape for o in given.others] == [(3, 4), (4, 3), (0, 2)]


def test_memory_that_was_freed_is_a_finding_and_no_crash():
    t, state = torch.randn(64), torch.randn(64)
    given, before = Given([t], Spare()), imprint(state)  # which leave them as resizable as they were
    t.untyped_storage().resize_(0)
    state.untyped_storage().resize_(0)
    assert given.put_back()
    assert shows(before, state)


@pytest.mark.parametrize("make", [lambda t: t, lambda t: t.T, lambda t: t.bfloat16(), lambda t: t[:0], lambda t: -t])
def test_an_imprint_shows_a_write_to_any_number(make: Callable[[Tensor], Tensor]):
    t = make(torch.randn(5, 4))
    before = imprint(t)
    assert not shows(before, t)
    for i in range(t.numel()):
        t.data.view(-1)[i : i + 1].neg_() if t.is_contiguous() else t.data[i // 5, i % 5].neg_()
        assert shows(before, t)
        t.data.view(-1)[i : i + 1].neg_() if t.is_contiguous() else t.data[i // 5, i % 5].neg_()
    assert not shows(before, t)


@pytest.mark.parametrize("call", [0, 1, 4])
def test_a_weight_that_a_credit_swaps_at_a_later_call_is_put_back(call: int):
    """What stands where is read once, and compared at every call."""
    model, batches = wb.selftest.healthy(), wb.selftest.batches(6)
    linear = model.blocks[0][1]  # type: ignore[index]
    own = linear.weight

    def swaps(trace: wb.Trace) -> list[Tensor]:
        if trace.index == call:
            linear.weight = nn.Parameter(torch.zeros_like(own))
        return [g.sign() for g in trace.grads]

    with pytest.raises(wb.CreditError, match="changed its weights"):
        wb.measure(model, batches, credit=swaps)
    assert linear.weight is own


def test_a_weight_that_the_user_swaps_between_batches_is_theirs():
    model, batches = wb.selftest.healthy(), wb.selftest.batches(4)
    linear, mine = model.blocks[0][1], None  # type: ignore[index]
    with wb.Tracer(model) as tracer:
        for i, (x, y) in enumerate(batches):
            if i == 2:
                linear.weight = mine = nn.Parameter(linear.weight.detach() * 2)
            tracer.trace(x, y, credit=lambda trace: [g.sign() for g in trace.grads])
            assert mine is None or linear.weight is mine
