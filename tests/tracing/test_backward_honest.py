"""The reference check on networks that are right about every sample: only altered ones are accused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import walkback as wb
from honest import (
    ALTERATIONS,
    BUILDS,
    CLASSES,
    Stack,
    at,
    digits,
    hinge,
    initial,
    layer,
    mixed,
    scaled,
    trained,
)
from walkback.tracing.backward import BackwardCheck, check_backward
from walkback.tracing.backward_answer import CAUSES
from walkback.tracing.differences import direction

SHARPER = [1.0, 3.0, 30.0]  # as trained; nearly all losses round to 0; every gradient is 0 in float32 too


def checked(net: nn.Module, batch: tuple[Any, Tensor] | None = None, **options: Any) -> BackwardCheck:
    with wb.Tracer(net.eval(), **options) as tracer:
        return check_backward(tracer, tracer.trace(*(batch or digits())))


def losses(net: nn.Module) -> tuple[float, float]:
    """(accuracy, share of samples whose loss is 0)."""
    x, y = digits()
    with torch.no_grad():
        z = net(x)
        return float((z.argmax(1) == y).float().mean()), float(
            (F.cross_entropy(z, y, reduction="none") == 0).mean(dtype=torch.float)
        )


# -- honest ------------------------------------------------------------------------------------------------------------

# relu(x) − relu(−x) at 0: autograd's value is not the derivative, though nobody altered it.
ANSWERS = {"two halves": ("cannot-tell", "tie")}


@pytest.mark.parametrize("sharper", SHARPER)
@pytest.mark.parametrize("name", BUILDS)
def test_honest_networks_are_not_accused(name: str, sharper: float):
    net = trained(name, sharper)
    accuracy, zero = losses(net)
    assert accuracy == 1.0
    assert zero >= (0.0 if sharper == 1.0 else 0.9)
    for reference in (None, "derived", copy.deepcopy(net)):
        found = checked(net, reference=reference)
        assert (found.answer, found.cause) == ANSWERS.get(name, ("agrees", ""))
        assert found.agrees is None or found.error < 0.1 * found.limit
        assert found.agrees is None or found.labels == ("permuted" if sharper == 30.0 else "given")


@pytest.mark.parametrize("name", BUILDS)
def test_honest_networks_are_not_accused_in_other_types_and_losses(name: str, monkeypatch: pytest.MonkeyPatch):
    expected = ANSWERS.get(name, ("agrees", ""))
    x, y = digits()
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        found = checked(trained(name, 3.0).to(dtype), (x.to(dtype), y))
        assert (found.answer, found.cause, found.agrees is None or found.dtype) == (
            *expected,
            found.agrees is None or "float64",
        )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert checked(trained(name, 3.0)).answer == expected[0]
    for loss in (nn.CrossEntropyLoss(), hinge, lambda z, y: F.mse_loss(z, 10.0 * F.one_hot(y, CLASSES))):
        assert checked(trained(name, 3.0), loss=loss).answer == expected[0]
    monkeypatch.setattr("walkback.tracing.backward.COPY_LIMIT", 0)
    for sharper in SHARPER:
        found = checked(trained(name, sharper))
        assert (found.answer, found.cause, found.agrees is None or found.dtype) == (
            *expected,
            found.agrees is None or "float32",
        )


@pytest.mark.parametrize("name", ["mlp", "lenet"])
def test_recorded_credits_of_trained_plain_networks_are_measured(name: str):
    net = trained(name, 3.0)
    for reference in (None, copy.deepcopy(net)):
        report = wb.diagnose(net, [digits()] * 8, credit=wb.recorded(net), reference=reference)
        assert report.values["gamma"] == pytest.approx(1.0)
        assert report.conditions["backward_error"] < 1e-4


def test_the_slopes_to_both_sides_need_not_embrace_that_of_autograd():
    """Why a kink can't be judged where it is: of relu(a) − relu(b) at 0 autograd says 0, both sides about 1."""
    z, way = torch.zeros(2, requires_grad=True), torch.tensor([1.0, -0.9])
    f = lambda z: F.relu(z[0]) - F.relu(z[1])  # noqa: E731
    (g,) = torch.autograd.grad(f(z), z)
    with torch.no_grad():
        up, down = (float(f(1e-3 * way)) / 1e-3, -float(f(-1e-3 * way)) / 1e-3)
    assert (float(g @ way), up, down) == pytest.approx((0.0, 1.0, 0.9))


def plain_gradients(net: Stack, moved: Sequence[Tensor] = ()) -> list[Tensor]:
    """g_l of the sum of losses by float64 autograd through nothing but the layers, one after the other."""
    twin = copy.deepcopy(net).double()
    x, y = digits()
    states = [twin.embed(x.double()).detach().requires_grad_()]
    for block in twin.blocks:
        states.append(states[-1] + block(states[-1]) if net.skip else block(states[-1]))
    total = F.cross_entropy(twin.head(states[-1]), y, reduction="sum")
    return list(torch.autograd.grad(total, states))


@pytest.mark.parametrize("name", [name for name in BUILDS if name not in ("lenet", "pooled pixels", "two halves")])
def test_what_agrees_is_the_gradient_of_the_layers_in_float64(name: str):
    net = trained(name)
    with wb.Tracer(net) as tracer:
        trace = tracer.trace(*digits())
        assert check_backward(tracer, trace).answer == "agrees"
    for g, right in zip(trace.grads, plain_gradients(net), strict=True):
        assert float((g - right).norm() / right.norm()) < 1e-4


# -- altered -----------------------------------------------------------------------------------------------------------

OF_LINEAR_MAPS = ("sign symmetry", "random feedback")  # the blocks of a LeNet have none
ALTERED = [
    (alteration, name)
    for alteration in ALTERATIONS
    for name in ("mlp", "residual gelu", "lenet")
    if name != "lenet" or alteration not in OF_LINEAR_MAPS
]


@pytest.mark.parametrize("state", ["initial", 1.0, 30.0])
@pytest.mark.parametrize(("alteration", "name"), ALTERED)
def test_altered_networks_are_found(alteration: str, name: str, state: str | float):
    net = initial(name) if isinstance(state, str) else trained(name, state)
    plain = copy.deepcopy(net)
    right = plain_gradients(plain) if state in ("initial", 1.0) else None
    ALTERATIONS[alteration](net)
    assert torch.equal(net(digits()[0]), plain(digits()[0])), "nothing changes forward"
    found = checked(net)
    assert (found.answer, found.cause) == ("altered", "network")
    assert found.error > found.limit
    assert 0 in found.sites
    assert len(plain.blocks) not in found.sites, "nothing is altered above the last block"
    if right is not None:
        with wb.Tracer(net) as tracer:
            grads = tracer.trace(*digits()).grads
        off = [float((g - d).norm() / d.norm()) for g, d in zip(grads, right, strict=True)]
        assert all(off[site] > found.limit for site in found.sites)
        assert all(error < 1e-4 for site, error in enumerate(off) if site not in found.sites) or "clip" in alteration
    if state == 1.0:
        assert checked(net, reference="derived").answer == checked(net, reference=plain).answer == "agrees"


@pytest.mark.parametrize("alteration", ["sign flip in a hook", "random feedback", "half the length in a hook"])
def test_altered_networks_are_found_in_other_types_and_losses(alteration: str, monkeypatch: pytest.MonkeyPatch):
    x, y = digits()

    def altered() -> Stack:
        net = trained("residual relu", 3.0)
        ALTERATIONS[alteration](net)
        return net

    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert checked(altered().to(dtype), (x.to(dtype), y)).answer == "altered"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert checked(altered()).answer == "altered"
    for loss in (nn.CrossEntropyLoss(), hinge, lambda z, y: F.mse_loss(z, 10.0 * F.one_hot(y, CLASSES))):
        assert checked(altered(), loss=loss).answer == "altered"
    monkeypatch.setattr("walkback.tracing.backward.COPY_LIMIT", 0)
    assert checked(altered()).answer == "altered"


@pytest.mark.parametrize("share", [0.05, 0.01, 0.003])
def test_small_mixtures_are_found_in_any_dimension(share: float):
    """A random direction has 1/√d of what is left out, and is measured by that."""
    x = torch.rand(40, 2, generator=torch.Generator().manual_seed(0))
    y = torch.arange(40) % CLASSES
    for width in (4, 3000):
        torch.manual_seed(0)
        stem, head = nn.Sequential(nn.Linear(2, width), nn.Tanh()), nn.Linear(width, CLASSES)
        net = Stack(stem, [nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, width))], head)
        at(lambda g: torch.where(torch.arange(g.shape[1]) < share * g.shape[1] + 1, 0.0, g))(net)
        assert checked(net, (x, y)).answer == "altered"


# -- the three answers as data -----------------------------------------------------------------------------------------


def test_every_cause_is_a_sentence_and_says_what_to_do():
    values = {"needs": "", "what": 0.5}
    for cause, (sentence, remedy) in CAUSES.items():
        found = BackwardCheck("cannot-tell", cause, values=values)
        assert found.agrees is None
        assert found.why == sentence.format(**values)
        assert "{" not in found.why + found.remedy
        assert remedy or cause == "not-needed"
    for answer, agrees in (("agrees", True), ("altered", False)):
        found = BackwardCheck(answer, error=0.1)
        assert (found.agrees, found.why, found.remedy) == (agrees, "", "")


def test_recorded_credits_are_refused_where_it_can_not_be_told():
    net = trained("two halves")
    with pytest.raises(
        wb.InputError, match=r"off by \d+.\d\d% on the batch.* exactly zero\. Measure other samples, or"
    ):
        wb.diagnose(net, [digits()] * 8, credit=wb.recorded(net))


class Casting(nn.Module):
    """Computes in half precision inside, as fast attention does."""

    def __init__(self, change: float = 1.0) -> None:
        super().__init__()
        self.linear, self.change = nn.Linear(16, 16), change

    def forward(self, x: Tensor) -> Tensor:
        z = self.linear(x).bfloat16().tanh().to(x.dtype)
        return z if self.change == 1.0 else z.detach() * (1 - self.change) + z * self.change


@pytest.mark.parametrize("change", [1.0, 0.5])
def test_a_network_that_rounds_inside_is_not_accused_of_its_steps(change: float):
    torch.manual_seed(0)
    net = Stack(nn.Sequential(nn.Flatten(), nn.Linear(64, 16)), [Casting(change)], nn.Linear(16, CLASSES))
    found = checked(net)
    assert (found.answer, found.cause) == ("cannot-tell", "casts")
    assert found.why == "the network rounds to bfloat16 inside, where a small step changes nothing"


class _Unseen(torch.autograd.Function):
    """Right, and rounds to half precision where torch does not see it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        seen = x.detach().numpy()
        return torch.from_numpy(np.tanh(seen.astype(np.float16)).astype(seen.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad / ctx.saved_tensors[0].cosh() ** 2


class Unseen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return _Unseen.apply(self.linear(x))


def test_a_network_that_rounds_unseen_is_not_accused_of_its_steps():
    x = torch.rand(64, 8, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    net = Stack(nn.Linear(8, 16), [Unseen()], nn.Linear(16, CLASSES), skip=True)
    found = checked(net, (x, digits()[1]))
    assert (found.answer, found.cause) == ("cannot-tell", "steps")


class Partly(nn.Module):
    """Normalises in float32 whatever its type is, as language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype)).tanh()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("change", [1.0, 0.9])
def test_gradients_that_underflow_inside_accuse_nobody(change: float, dtype: torch.dtype):
    """In float64 they are 1e-60, and lost on their way through float32: other labels have larger ones."""
    torch.manual_seed(0)
    net = Stack(nn.Linear(8, 16), [Partly(), Partly()], nn.Linear(16, CLASSES), skip=True)
    at(scaled(change), 1)(net)
    x = torch.randn(400, 8)
    best = net(x).topk(2).values
    x = x[(best[:, 0] - best[:, 1]).topk(40).indices]
    y = net(x).argmax(1)
    with torch.no_grad():
        net.head.weight.mul_(300.0)
        net.head.bias.mul_(300.0)
    found = checked(net.to(dtype), (x.to(dtype), y))
    assert (found.answer, found.labels) == ("agrees" if change == 1.0 else "altered", "permuted")


class Weakly(nn.Module):
    """Each sample sees a little of the mean of the others."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.linear, self.share = nn.Linear(16, 16), share

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x)) + self.share * x.mean(0) ** 2


@pytest.mark.parametrize("share", [1e-1, 1e-3])
def test_weakly_coupled_samples_are_not_accused(share: float):
    torch.manual_seed(0)
    net = Stack(nn.Sequential(nn.Flatten(), nn.Linear(64, 16)), [Weakly(share), Weakly(share)], nn.Linear(16, CLASSES))
    found = checked(net)
    assert (found.answer, found.cause) == ("cannot-tell", "coupled")


class Auxiliary(Stack):
    """Keeps a second loss of its states, as mixtures of experts do."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h)
        self.more = 0.5 * (h**2).mean(1)
        return self.head(h)


@pytest.mark.parametrize("change", [1.0, -1.0])
def test_a_loss_that_reads_more_than_the_logits(change: float):
    torch.manual_seed(0)
    net = Auxiliary(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 16)),
        [layer(16, 16, nn.Tanh) for _ in range(2)],
        nn.Linear(16, CLASSES),
    )
    at(scaled(change), 1)(net)
    found = checked(net, loss=lambda z, y: F.cross_entropy(z, y, reduction="none") + net.more)
    assert found.answer == ("agrees" if change > 0 else "altered")
    found = checked(net, loss=lambda z, y: F.cross_entropy(z, y) + net.more.mean())
    assert (found.answer, found.cause) == ("cannot-tell", "side-input")
    found = checked(net, loss=lambda z, y: F.cross_entropy(z, y) + sum((p**2).sum() for p in net.parameters()))
    assert found.answer == ("agrees" if change > 0 else "altered"), "a penalty on weights is the same for all states"


class _OnlyIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, when: Callable[[Tensor], bool]) -> Tensor:
        ctx.when = when
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return -grad if ctx.when(grad) else grad, None


class Sometimes(nn.Module):
    def __init__(self, when: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.linear, self.when = nn.Linear(16, 16), when

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(_OnlyIn.apply(x, self.when)))


def test_a_backward_pass_that_depends_on_the_type_or_the_call():
    torch.manual_seed(0)
    stem, head, calls = nn.Sequential(nn.Flatten(), nn.Linear(64, 16)), nn.Linear(16, CLASSES), []
    found = checked(Stack(stem, [Sometimes(lambda g: g.dtype == torch.float32)], head))
    assert (found.answer, found.cause) == ("cannot-tell", "dtype")
    assert found.values["what"] > 1
    found = checked(Stack(stem, [Sometimes(lambda g: not calls and not calls.append(1))], head))  # type: ignore[func-returns-value]
    assert (found.answer, found.cause) == ("cannot-tell", "unsteady")


def test_a_twin_must_answer_with_the_logits_of_the_network():
    net = trained("mlp")
    twin = copy.deepcopy(net)
    with torch.no_grad():
        twin.head.bias[0] += 1.0
    with pytest.raises(wb.InputError, match="compute the states the network computes, but they differ at the logits"):
        checked(net, reference=twin)


# -- the loss ----------------------------------------------------------------------------------------------------------


class _Flipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, change: float) -> Tensor:
        ctx.change = change
        return z.view_as(z)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return ctx.change * grad, None


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("change", [1.0, 0.97, -1.0])
@pytest.mark.parametrize("sharper", SHARPER)
def test_a_loss_with_a_backward_of_its_own(sharper: float, change: float, reduction: str):
    """Asked apart from the network, with other labels where it is 0."""
    net = trained("mlp", sharper)
    loss = lambda z, y: F.cross_entropy(_Flipped.apply(z, change), y, reduction=reduction)  # noqa: E731
    found = checked(net, loss=loss)
    assert (found.answer, found.cause) == (("agrees", "") if change == 1.0 else ("altered", "loss"))
    assert found.sites == (() if change == 1.0 else (0, 1, 2))
    assert checked(net, loss=loss, reference="derived").answer == "agrees"
    cut = lambda z, y: F.cross_entropy(z * z.detach().norm(dim=1, keepdim=True), y, reduction=reduction)  # noqa: E731
    assert (checked(net, loss=cut).cause) == "loss"


def test_a_loss_that_can_not_be_read_is_trusted_if_it_is_plain():
    """Constant, but for rounding: nobody could read its slope."""
    net = trained("mlp")
    plain = lambda z, y: 1e12 + F.cross_entropy(z, y, reduction="none").double()  # noqa: E731
    assert checked(net, loss=plain).answer == "agrees"
    odd = lambda z, y: 1e16 + F.cross_entropy(_Flipped.apply(z, 1.0), y, reduction="none").double()  # noqa: E731
    found = checked(net, loss=odd)
    assert (found.answer, found.cause) == ("cannot-tell", "loss")


# -- other labels ------------------------------------------------------------------------------------------------------


def test_other_labels_are_those_of_other_samples():
    net, (x, y) = trained("mlp", 30.0), digits()
    seen: list[Tensor] = []

    def loss(z: Tensor, y: Tensor) -> Tensor:
        seen.append(y)
        return F.cross_entropy(z, y, reduction="none")

    assert checked(net, loss=loss).labels == "permuted"
    others = [labels for labels in seen if len(labels) == len(y) and not torch.equal(labels, y)]
    assert others
    for labels in others:
        assert torch.equal(labels.sort().values, y.sort().values)
        assert not bool((labels == y).any())
    one = y == 0
    assert checked(net, (x[one], y[one])).labels == "permuted", "of one class: our own cross-entropy takes any"
    found = checked(net, (x[one], y[one]), loss=loss)
    assert (found.answer, found.cause) == ("cannot-tell", "flat")
    soft = F.one_hot(y, CLASSES).float()
    assert (checked(net, (x, soft)).answer, checked(net, (x, soft)).labels) == ("agrees", "permuted")


# -- where the batch is moved ------------------------------------------------------------------------------------------


class Checkpointed(Stack):
    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + checkpoint(block, h, use_reentrant=False)
        return self.head(h)


class InPlace(Stack):
    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h += block(h)
        return self.head(h)


class TokensFirst(Stack):
    """The stream is (T, B, d), as in older transformers."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x[:, 0]).transpose(0, 1)
        for block in self.blocks:
            h = h + block(h)
        return self.head(h.mean(0))


def relu_branch() -> nn.Module:
    return nn.Sequential(nn.ReLU(), nn.Linear(16, 16))


@pytest.mark.parametrize("kind", [Checkpointed, InPlace, TokensFirst])
@pytest.mark.parametrize("change", [1.0, 0.9])
def test_networks_at_kinks_are_judged_beside_their_batch(kind: type[Stack], change: float):
    torch.manual_seed(0)
    first = [] if kind is TokensFirst else [nn.Flatten()]
    stem = nn.Sequential(*first, nn.Linear(8 if kind is TokensFirst else 64, 16), nn.ReLU())
    net = kind(stem, [relu_branch() for _ in range(3)], nn.Linear(16, CLASSES), skip=True)
    at(scaled(change), 1)(net)
    for reference in (None, "derived"):
        found = checked(net, reference=reference)
        assert found.answer == ("agrees" if change == 1.0 or reference else "altered")
    before, random = {k: v.clone() for k, v in net.state_dict().items()}, torch.get_rng_state()
    checked(net)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


class Learned(nn.Module):
    """The stream starts as a parameter, half of it at the kink."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Parameter(F.relu(torch.randn(16)))
        self.blocks = nn.ModuleList(Mixed() for _ in range(2))
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.start.expand(len(x), -1)
        for block in self.blocks:
            block.x = x.flatten(1)
            h = h + block(h)
        return self.head(h)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(64, 16)

    def forward(self, h: Tensor) -> Tensor:
        return self.a(h.relu()) * self.b(self.x).tanh()


def test_a_stream_that_can_not_be_moved_is_said_not_to_be_checked():
    torch.manual_seed(0)
    found = checked(Learned())
    assert (found.answer, found.cause) == ("cannot-tell", "not-run")
    assert "starts as a parameter" in found.why


def test_a_failing_second_trace_leaves_no_hook():
    net = trained("residual relu")
    calls: list[int] = []

    def fails(module: nn.Module, args: Any, made: Tensor) -> None:
        calls.append(len(made))
        if torch.is_grad_enabled() and len(calls) > 1:
            raise RuntimeError("no more")

    handle = net.blocks[2].register_forward_hook(fails)
    found = checked(net)
    assert found.why == "the network can't be run again from its sites: no more"
    handle.remove()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_few_samples_and_many_sites():
    x, y = digits()
    for samples in (1, 2, 3):
        assert checked(trained("lenet"), (x[:samples], y[:samples])).answer == "agrees"
        net = trained("lenet")
        at(mixed(0.05))(net)
        assert checked(net, (x[:samples], y[:samples])).answer == "altered"
    torch.manual_seed(0)
    stem = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU())
    deep = Stack(stem, [relu_branch() for _ in range(40)], nn.Linear(16, CLASSES), skip=True)
    with torch.no_grad():
        for block in deep.blocks:
            block[1].weight.mul_(0.3)
    assert checked(deep).answer == "agrees"
    at(scaled(1.05), 7)(deep)
    found = checked(deep)
    assert (found.answer, found.sites) == ("altered", tuple(range(8)))


def test_a_direction_has_the_length_of_its_state_and_its_unit_is_the_slope_to_be_expected():
    generator = torch.Generator().manual_seed(0)
    for size in (3, 400):
        g, h = (torch.from_numpy(np.random.default_rng(seed).standard_normal((2000, size))) for seed in (1, 2))
        for noisy in (False, True):
            way, unit = direction(g, h, noisy, generator)
            assert torch.allclose(way.norm(dim=1), h.norm(dim=1))
            slope = (g * way).sum(1) / unit
            assert float((slope**2).mean()) == pytest.approx(1.0, rel=0.3)
    way, _ = direction(torch.ones(2, 4), torch.tensor([[0.0] * 4, [2.0] * 4]), False, generator)
    assert way.norm(dim=1).tolist() == pytest.approx([2.0, 4.0]), "a state of zero is moved as far as usual"
