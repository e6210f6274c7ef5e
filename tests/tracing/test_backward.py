"""Is the reference the derivative of the loss? Networks that trip the check, and many that must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import walkback as wb
from foreign import example, made
from walkback.notes import Note, coded
from walkback.tracing.backward import BackwardCheck, check_backward
from walkback.tracing.derived import Spy, Tape

BATCHES = example(2)
BP = ("bp-itself", "bp-direction", "bp-against", "bp-nearly")  # what says that a credit is the gradient


def checked(net: nn.Module, batch: tuple[Tensor, Tensor] = BATCHES[0], **options: Any) -> BackwardCheck:
    with wb.Tracer(net.eval(), **options) as tracer:
        return check_backward(tracer, tracer.trace(*batch))


class Residual(nn.Module):
    """A residual network of any branches; `between` is applied to what each branch returns."""

    def __init__(self, branch: Callable[[], nn.Module], between: Callable[[Tensor], Tensor] = lambda f: f) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Linear(8, 16), nn.ModuleList(branch() for _ in range(3))
        self.head, self.between = nn.Linear(16, 5), between

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + self.between(block(h))
        return self.head(h)


def mlp(act: type[nn.Module] = nn.Tanh, *more: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), act(), *more, nn.Linear(32, 16))


def hooked(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def between(f: Tensor) -> Tensor:
        if f.requires_grad:
            f.register_hook(change)
        return f

    return between


class Rounded(nn.Module):
    """Rounds to eighths, straight through."""

    def forward(self, x: Tensor) -> Tensor:
        return x + ((8 * x).round() / 8 - x).detach()


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Exact(torch.autograd.Function):
    """A backward of one's own that is right."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * ctx.saved_tensors[0].cos()


class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Exact.apply(x)


class Checkpointed(Residual):
    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + checkpoint(block, h, use_reentrant=False)
        return self.head(h)


class NoGradBranch(Residual):
    """The branches of block 2 don't send anything back."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for i, block in enumerate(self.blocks):
            f = block(h)
            h = h + (f if i != 1 else f.detach() + 0 * f)
        return self.head(h)


def gated(grad: Tensor) -> Tensor:
    """A quarter of the samples send nothing back."""
    mask = torch.ones(len(grad), 1)
    mask[::4] = 0
    return grad * mask


def masked(grad: Tensor) -> Tensor:
    return grad * (torch.arange(grad.shape[1]) % 2)


ALTERED = {
    "fa": lambda: made("fa"),
    "dfa": lambda: made("dfa"),
    "half the length": lambda: Residual(mlp(), hooked(lambda g: 0.5 * g)),
    "half the features": lambda: Residual(mlp(), hooked(masked)),
    "some samples": lambda: Residual(mlp(), hooked(gated)),
    "straight through": lambda: Residual(lambda: nn.Sequential(nn.Linear(16, 16), Rounded())),
    "a cut branch": lambda: NoGradBranch(mlp()),
}


@pytest.mark.parametrize("name", ALTERED)
def test_an_altered_backward_trips_it(name: str):
    torch.manual_seed(0)
    net = ALTERED[name]()
    found = checked(net)
    assert found.agrees is False
    assert found.error > 10 * found.limit
    assert found.sites
    measured = wb.measure(net, BATCHES)
    assert measured.altered is not None
    assert measured.altered.code == "altered-backward"
    assert measured.altered.values == {
        "error": found.error,
        "limit": found.limit,
        "sites": list(found.sites),
        "cause": found.cause,
    }
    assert measured.doubted is None
    assert measured.conditions["backward_error"] > 0.01


@pytest.mark.parametrize(("edition", "check"), [("three-check", "D2"), ("four-diagnostic", "b"), ("intrinsic", "D2")])
def test_a_reference_that_is_not_the_gradient_walks_the_claim_back(edition: str, check: str):
    """Compared with itself the altered signal has Γ = 1: nobody may read that as a pass, nor as BP."""
    torch.manual_seed(0)
    net = made("fa")
    report = wb.diagnose(net, BATCHES, 0.9, 0.5, credit=lambda t: t.grads, edition=edition)
    assert report.values["gamma"] == pytest.approx(1.0)
    assert (report.verdict, report.failed, report.measurement_valid) == ("walked back", (check,), False)
    assert report.altered is not None
    assert report.findings[1]["cause"] == "altered"
    assert report.notes[0] == Note("altered-backward", None, report.altered)
    assert not coded(report.notes, *BP)
    assert "not the derivative of the loss" in report.chain[1]["text"]
    assert "reference=" in report.chain[3]["text"]
    assert wb.judge(report, edition) == report
    right = wb.diagnose(net, BATCHES, 0.9, 0.5, credit=lambda t: t.grads, edition=edition, reference="derived")
    assert right.measurement_valid is True
    assert right.verdict == "passes"


def test_it_names_the_sites():
    torch.manual_seed(0)
    assert checked(NoGradBranch(mlp())).sites == (0, 1, 2), "what block 2 writes gets nothing back; above it g is right"
    net = Residual(mlp())
    net.blocks[1].register_full_backward_hook(lambda module, given, sent: (-given[0],))
    assert checked(net).sites == (0, 1), "what block 2 sends down"


HONEST = {
    "plain": lambda: made("plain"),
    "relu": lambda: Residual(mlp(nn.ReLU)),
    "kinks everywhere": lambda: Residual(mlp(nn.Hardtanh, nn.LeakyReLU())),
    "dropout": lambda: Residual(mlp(nn.GELU, nn.Dropout(0.5))),
    "batch norm": lambda: Residual(lambda: nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU())),
    "a backward of one's own": lambda: Residual(lambda: nn.Sequential(nn.Linear(16, 16), Sine())),
    "checkpointing": lambda: Checkpointed(mlp()),
    "hooks that only look": lambda: Residual(mlp(), hooked(lambda g: None)),  # type: ignore[arg-type,return-value]
    "zero branches": lambda: Residual(lambda: nn.Sequential(nn.Linear(16, 16), nn.Threshold(1e9, 0.0))),
    "exploded": wb.selftest.exploded,
    "creeping": wb.selftest.creeping,
    "drifting": wb.selftest.drifting,
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_networks_do_not_trip_it(name: str):
    torch.manual_seed(0)
    net = HONEST[name]()
    batch = BATCHES[0] if not isinstance(net, wb.selftest.ResidualNet) else wb.selftest.batches(1)[0]
    found = checked(net, batch)
    assert found.agrees is True
    assert found.error < 0.2 * found.limit
    assert checked(net, batch, reference="derived").agrees is True
    measured = wb.measure(net, [batch])
    assert (measured.altered, measured.doubted) == (None, None)


def test_a_transformer_with_tokens_does_not_trip_it():
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(11, 16)
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True) for _ in range(2)
            )
            self.head = nn.Linear(16, 5)

        def forward(self, x: Tensor) -> Tensor:
            h = self.embed(x)
            for block in self.blocks:
                h = block(h)
            return self.head(h[:, 0])

    torch.manual_seed(0)
    net, batch = Encoder(), example(1, tokens=True)[0]
    assert checked(net, batch).agrees is True
    with wb.Tracer(net) as one, wb.Tracer(net, reference="derived") as other:
        own, derived = one.trace(*batch), other.trace(*batch)
    for g, d in zip(own.grads, derived.grads, strict=True):
        assert torch.allclose(g, d, rtol=1e-5, atol=1e-7)


def test_large_networks_are_checked_without_a_copy_in_float64(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("walkback.tracing.backward.COPY_LIMIT", 0)
    for name in ("plain", "relu", "dropout", "exploded"):
        torch.manual_seed(0)
        net = HONEST[name]()
        found = checked(net, wb.selftest.batches(1)[0] if name == "exploded" else BATCHES[0])
        assert (found.agrees, found.dtype) == (True, "float32")
    for name in ("fa", "dfa", "half the length", "a cut branch"):
        torch.manual_seed(0)
        assert checked(ALTERED[name]()).agrees is False


def test_a_network_that_fixes_its_dtype_is_checked_in_float32():
    class Fixed(Residual):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) @ torch.eye(5)

    torch.manual_seed(0)
    assert checked(Fixed(mlp())).dtype == "float32"


# -- a mean loss, half precision, autocast -----------------------------------------------------------------------------


def weighted(logits: Tensor, y: Tensor) -> Tensor:
    """Its weights are float32, and it divides by those that are there: another mean on another batch."""
    return F.cross_entropy(logits, y, weight=torch.tensor([0.1, 0.5, 1.0, 3.0, 0.2]))


def contrasted(logits: Tensor, y: Tensor) -> Tensor:
    """Every sample against all others: no loss per sample could be had from a part of the batch."""
    z = F.normalize(logits, dim=1)
    return (z @ z.T / 0.5).logsumexp(1).mean() + F.cross_entropy(logits, y)


def in_float32(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), y)


def squared(logits: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(logits.softmax(1), F.one_hot(y, 5).float())


MEANS = {
    "cross-entropy": nn.CrossEntropyLoss(),
    "squared": squared,
    "weighted": weighted,
    "contrasted": contrasted,
    "in float32": in_float32,
}


@pytest.mark.parametrize("name", ALTERED)
def test_an_altered_backward_trips_it_under_a_mean_loss(name: str):
    torch.manual_seed(0)
    net = ALTERED[name]()
    found, each = checked(net, loss=nn.CrossEntropyLoss()), checked(net)
    assert (found.agrees, found.dtype, found.sites) == (False, "float64", each.sites)
    assert found.error == pytest.approx(each.error, rel=1e-3), "the same samples, the same directions"


@pytest.mark.parametrize("loss", MEANS)
def test_every_mean_shows_it_and_accuses_nobody(loss: str):
    assert checked(made("fa"), loss=MEANS[loss]).agrees is False
    assert checked(made("dfa"), loss=MEANS[loss]).agrees is False
    torch.manual_seed(0)
    for name in ("plain", "relu", "batch norm", "a backward of one's own"):
        found = checked(HONEST[name](), loss=MEANS[loss])
        assert found.agrees is True
        assert found.error < 0.2 * found.limit


def test_a_loss_that_rounds():
    """Its own steps are swallowed; the network is asked for its logits."""
    for kind, answer in (("plain", "agrees"), ("fa", "altered")):
        for loss in (
            lambda z, y: F.cross_entropy(z.float(), y, reduction="none"),
            lambda z, y: F.cross_entropy(z.bfloat16(), y),
            lambda z, y: F.cross_entropy(z.bfloat16().float(), y),
        ):
            found = checked(made(kind), loss=loss)
            assert (found.answer, found.limit, found.dtype) == (answer, 1e-4, "float64")


class Float32Norm(nn.LayerNorm):
    """As language models have it: in float32 whatever comes in."""

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.float(), self.normalized_shape, self.weight.float(), self.bias.float()).to(x.dtype)


@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss()], ids=["each", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_that_round(dtype: torch.dtype, loss: Any):
    torch.manual_seed(0)
    branch = lambda: nn.Sequential(Float32Norm(16), nn.Linear(16, 16), Sine())  # noqa: E731
    net, batches = narrowed(Residual(branch), dtype)
    assert checked(net, batches[0], loss=loss).agrees is True
    net, batches = narrowed(Residual(branch, hooked(lambda g: -g)), dtype)
    assert checked(net, batches[0], loss=loss).agrees is False


class _Unseen(torch.autograd.Function):
    """Right, and rounds to float32 where torch does not see it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(x.detach().numpy().astype(np.float32)).astype(x.detach().numpy().dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * ctx.saved_tensors[0].cos()


class Unseen(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _Unseen.apply(x)


@pytest.mark.parametrize(
    ("branch", "guards"),
    [
        (lambda: nn.Sequential(Float32Norm(16), nn.Linear(16, 16), Sine()), ("DOUBT", "PLATEAU")),
        (lambda: nn.Sequential(nn.Linear(16, 16), Unseen()), ("DOUBT",)),
    ],
    ids=["seen", "unseen"],
)
def test_noise_accuses_nobody(branch: Callable[[], nn.Module], guards: tuple[str, ...], monkeypatch: Any):
    def accused() -> int:
        count = 0
        for seed in range(15):
            torch.manual_seed(seed)
            x, y = BATCHES[0]
            count += checked(Residual(branch), (x[:4], y[:4])).agrees is not True
        return count

    assert accused() == 0
    for guard in guards:
        monkeypatch.setattr(f"walkback.tracing.differences.{guard}", 0)
    assert accused() > 0, "four samples, rounded to float32 on the way: some look wrong"


@pytest.mark.parametrize("name", HONEST)
def test_honest_networks_do_not_trip_it_under_a_mean_loss(name: str):
    torch.manual_seed(0)
    net = HONEST[name]()
    batch = BATCHES[0] if not isinstance(net, wb.selftest.ResidualNet) else wb.selftest.batches(1)[0]
    found = checked(net, batch, loss=nn.CrossEntropyLoss())
    assert found.agrees is True
    assert found.error < 0.2 * found.limit


def test_a_mean_over_tokens_that_leaves_some_out():
    class PerToken(nn.Module):
        """Answers at every token."""

        def __init__(self, kind: str) -> None:
            super().__init__()
            body = made(kind, tokens=True)
            self.embed, self.blocks, self.head = body.embed, body.blocks, body.out_head

        def forward(self, x: Tensor) -> Tensor:
            h = self.embed(x)
            for block in self.blocks:
                h = h + block(h)
            return self.head(h)

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())

    (x, _) = example(1, tokens=True)[0]
    y = torch.randint(5, x.shape, generator=torch.Generator().manual_seed(0))
    y[:, : x.shape[1] // 2] = -100  # most samples answer for half of their tokens
    y[::3] = -100
    assert checked(PerToken("plain"), (x, y), loss=loss).agrees is True
    assert checked(PerToken("fa"), (x, y), loss=loss).agrees is False


def test_a_mean_over_few_samples():
    x, y = BATCHES[0]
    for samples in (2, 3, 16, 17):
        few = (x[:samples], y[:samples])
        assert checked(made("plain"), few, loss=nn.CrossEntropyLoss()).agrees is True
        assert checked(made("fa"), few, loss=nn.CrossEntropyLoss()).agrees is False


def test_a_mean_of_large_networks_is_checked_without_a_copy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("walkback.tracing.backward.COPY_LIMIT", 0)
    for loss in MEANS.values():
        assert [checked(made(kind), loss=loss).agrees for kind in ("plain", "fa", "dfa")] == [True, False, False]


def test_a_mean_loss_runs_the_network_three_times_more_on_few_samples():
    sizes: list[int] = []
    torch.manual_seed(0)
    net = Residual(lambda: nn.Sequential(nn.Linear(16, 16), Sine()))
    net.register_forward_pre_hook(lambda module, args: sizes.append(len(args[0])))
    wb.measure(net, BATCHES, loss=nn.CrossEntropyLoss())
    assert sizes == [128, 32, 32, 32, 128]
    assert not net._forward_hooks


class Flat(Residual):
    """Classes first: a mean loss may read it so."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).T


class Packed(Residual):
    """One row after the other for the two answers of every sample."""

    def forward(self, x: Tensor) -> Tensor:
        z = super().forward(x)
        return torch.stack([z, -z], 1).flatten(0, 1)


class Summed(Residual):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sum(0)


@pytest.mark.parametrize("change", [1.0, -1.0])
def test_samples_are_found_in_outputs_of_any_shape(change: float):
    answer = "agrees" if change > 0 else "altered"
    branch = mlp(), hooked(lambda g: change * g)
    for loss in (
        lambda z, y: F.cross_entropy(z.T, y),
        lambda z, y: F.cross_entropy(z.T, y, reduction="none"),
    ):
        for samples in (6, 32, 128):  # 32: as many as are run at once
            torch.manual_seed(0)
            x, y = BATCHES[0]
            assert checked(Flat(*branch), (x[:samples], y[:samples]), loss=loss).answer == answer
    loss = lambda z, y: F.cross_entropy(z, y.repeat_interleave(2))  # noqa: E731
    assert checked(Packed(*branch), loss=loss).answer == answer
    found = checked(Summed(*branch), loss=lambda z, y: (z**2).sum())
    assert (found.answer, found.cause) == ("cannot-tell", "no-axis")
    assert found.why == "what the network returns has no axis of samples"


def narrowed(net: nn.Module, dtype: torch.dtype) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    return net.to(dtype), [(x.to(dtype), y) for x, y in BATCHES]


@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss()], ids=["each", "mean"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_checked_in_float64(dtype: torch.dtype, loss: Any):
    for name in ("fa", "dfa", "half the length", "a cut branch"):
        torch.manual_seed(0)
        net, batches = narrowed(ALTERED[name](), dtype)
        found = checked(net, batches[0], loss=loss)
        assert (found.agrees, found.dtype) == (False, "float64")
    for name in ("plain", "relu", "batch norm", "a backward of one's own", "hooks that only look"):
        torch.manual_seed(0)
        net, batches = narrowed(HONEST[name](), dtype)
        assert checked(net, batches[0], loss=loss).error < 1e-6
        assert checked(net, batches[0], loss=loss, reference="derived").error < 1e-6


def test_half_precision_is_traced_once_more_on_few_samples():
    sizes: list[int] = []
    torch.manual_seed(0)
    net, batches = narrowed(Residual(lambda: nn.Sequential(nn.Linear(16, 16), Sine())), torch.bfloat16)
    net.register_forward_pre_hook(lambda module, args: sizes.append(len(args[0])))
    before = {k: v.clone() for k, v in net.state_dict().items()}
    wb.measure(net, batches)
    assert sizes == [128, 32, 32, 32, 32, 128]
    assert all(v.dtype == torch.bfloat16 and torch.equal(v, before[k]) for k, v in net.state_dict().items())


@pytest.mark.parametrize("limit", [2**28, 0])
def test_autocast_is_checked_without_it(limit: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("walkback.tracing.backward.COPY_LIMIT", limit)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        right, wrong = checked(turned(1.0)), checked(turned(-1.0))
    assert (right.agrees, wrong.agrees) == (True, False)
    assert right.dtype == wrong.dtype == ("float64" if limit else "float32")


def test_half_precision_samples_that_see_each_other_are_not_checked():
    net, batches = narrowed(Residual(mlp(Centred)), torch.bfloat16)
    assert checked(net, batches[0]).cause == "coupled"


class Assertive(nn.Module):
    """Takes one type only, as a kernel may."""

    def forward(self, x: Tensor) -> Tensor:
        assert x.dtype == torch.bfloat16, "bfloat16 only"
        return Exact.apply(x)


class Casting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Exact.apply(x.bfloat16())


@pytest.mark.parametrize(
    ("branch", "limit", "why"),
    [
        (mlp(Assertive), 2**28, "the network can't be run again from its sites: bfloat16 only"),
        (lambda: nn.Sequential(nn.Linear(16, 16), Casting()), 2**28, "it computes in bfloat16 whatever its weights"),
        (mlp(Sine), 2**12, "its weights can't be copied to float64: they would take 0 MB, and the limit is 0"),
    ],
)
def test_what_can_not_be_checked_is_said_first(
    branch: Callable[[], nn.Module], limit: int, why: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("walkback.tracing.backward.COPY_LIMIT", limit)
    net, batches = narrowed(Residual(branch), torch.bfloat16)
    for scale in (1.0, 2.0):  # the gradient, and its direction
        report = wb.diagnose(net, batches, credit=lambda t: [scale * g for g in t.grads])  # noqa: B023
        assert report.doubted is not None
        assert report.doubted["why"].startswith(
            "finite differences need float32 or float64, but this pass runs in bfloat16, and "
        )
        assert why in report.doubted["why"]
        assert report.notes[0] == Note("unchecked-backward", None, report.doubted)
        assert report.advisories[0].startswith("the forward pass has something that can alter its gradient, and this ")
        assert report.reasons["backward_error"] == report.doubted["why"]
        assert report.conditions["backward_error"] is None
        assert not coded(report.notes, *BP), "nobody knows whether this is BP"
        assert not coded(wb.judge(report, "intrinsic").notes, *BP)
    asked = wb.measure(net, batches, reference="derived")
    assert asked.doubted is None
    assert asked.notes[0].code == "unchecked-reference"
    assert asked.notes[0].values["reference"] == asked.conditions["reference"]
    assert why in asked.notes[0].values["why"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss()], ids=["each", "mean"])
def test_plain_networks_get_no_word_of_it(dtype: torch.dtype, loss: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("walkback.tracing.backward.COPY_LIMIT", 0)
    net, batches = narrowed(made("plain"), dtype)
    report = wb.diagnose(net, batches, credit=lambda t: [g + 0 for g in t.grads], loss=loss)
    assert report.reasons["backward_error"].startswith("not needed: ")
    assert coded(report.notes, "bp-itself")
    assert (report.altered, report.doubted) == (None, None)
    assert not coded(report.notes, "unchecked-backward", "unchecked-reference")


def turned(change: float) -> nn.Module:
    """A network with a hook that changes what block 2 sends back."""
    torch.manual_seed(0)
    net = Residual(mlp())
    net.blocks[1].register_full_backward_hook(lambda module, given, sent: (change * given[0],))
    return net


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss()], ids=["each", "mean"])
@pytest.mark.parametrize(
    ("altered", "healthy"),
    [
        (lambda: turned(-1.0), lambda: turned(1.0)),
        (lambda: made("fa"), HONEST["a backward of one's own"]),
        (ALTERED["a cut branch"], lambda: Residual(mlp(), lambda f: f.detach() * 0 + f)),
    ],
    ids=["hook", "function", "cut"],
)
def test_an_altered_backward_is_walked_back_whatever_the_loss_and_dtype(
    altered: Callable[[], nn.Module], healthy: Callable[[], nn.Module], loss: Any, dtype: torch.dtype
):
    def credit(trace: wb.Trace) -> list[Tensor]:
        return [g + 0 for g in trace.grads]

    torch.manual_seed(0)
    net, batches = narrowed(altered(), dtype)
    report = wb.diagnose(net, batches, credit=credit, loss=loss)
    assert (report.verdict, report.failed) == ("walked back", ("D2",))
    assert report.altered is not None
    assert report.advisories[0].startswith("the network's own backward pass is not the derivative of its loss")
    assert not coded(report.notes, *BP)
    net, batches = narrowed(healthy(), dtype)
    report = wb.diagnose(net, batches, credit=credit, loss=loss)
    assert "D2" not in report.failed
    assert report.conditions["backward_error"] < 1e-4
    assert coded(report.notes, "bp-itself")


# -- what can't be told ------------------------------------------------------------------------------------------------


def test_a_random_forward_pass_is_not_checked():
    class Always(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x, 0.5)

    found = checked(Residual(mlp(Always)))
    assert (found.answer, found.cause) == ("cannot-tell", "random")


def test_samples_that_see_each_other_are_not_checked():
    found = checked(Residual(mlp(Centred)))
    assert (found.answer, found.cause) == ("cannot-tell", "coupled")


def test_a_loss_without_a_slope_is_not_checked():
    net = made("fa")
    with torch.no_grad():
        net.out_head.weight.zero_()
    found = checked(net)
    assert (found.answer, found.cause, found.error) == ("cannot-tell", "flat", None)


# -- what makes a network worth checking -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "relu", "dropout", "batch norm", "exploded"])
def test_plain_networks_cost_nothing_more(name: str):
    torch.manual_seed(0)
    net, calls = HONEST[name](), []
    net.blocks[1].register_forward_hook(lambda module, args, made: calls.append(made.detach().abs().max()))  # a log
    batch = wb.selftest.batches(1)[0] if name == "exploded" else BATCHES[0]
    measured = wb.measure(net, [batch])
    assert len(calls) == 1
    assert measured.conditions["backward_error"] is None
    assert measured.reasons["backward_error"].startswith("not needed: ")


def test_a_network_worth_checking_is_run_three_times_more_on_few_samples():
    sizes: list[int] = []
    torch.manual_seed(0)
    net = Residual(lambda: nn.Sequential(nn.Linear(16, 16), Sine()))
    net.register_forward_pre_hook(lambda module, args: sizes.append(len(args[0])))
    wb.measure(net, BATCHES)
    assert sizes == [128, 32, 32, 32, 128]


@pytest.mark.parametrize(
    ("pass_", "parts"),
    [
        (lambda x: x.exp() + 1, False),
        (lambda x: x + x.detach().norm(), True),
        (lambda x: x * x.data, True),
        (lambda x: [x.detach().norm().item(), x + 1][1], False),
        (lambda x: x * (x.detach() * 2), True),
        (lambda x: x * (x > 0), False),
        (lambda x: x[x.argmax()], False),
        (lambda x: x + torch.from_numpy(x.detach().numpy() * 2), True),
        (lambda x: x + torch.from_numpy(np.tanh(np.asarray(x.data))), True),
        (lambda x: x + torch.tensor(x.tolist()), True),
        (lambda x: x * x.detach().norm().item(), True),
        (lambda x: x + torch.tensor(float(x.detach().norm())), True),
        (lambda x: [x.detach().norm().item(), x * 0.5][1], False),
        (lambda x: [(x > 0).tolist(), x + 1][1], False),
        (lambda x: [x.exp().grad_fn.register_hook(lambda *_: None), x + 1][1], True),
        (lambda x: (x * 2).data.mul_(3), True),
        (lambda x: (x * 2).detach()[:2].zero_(), True),
        (lambda x: (x * 2).detach().clone().mul_(3), False),  # a log of its own
        (lambda x: x.data.clamp_(-1, 1), False),  # a leaf, as weights are: written before it is used
    ],
)
def test_the_spy(pass_: Callable[[Tensor], Any], parts: bool):
    with Spy() as spy:
        pass_(torch.randn(3, requires_grad=True))
    assert spy.saw is parts


class ByNumpy(nn.Module):
    """A block that computes its branch outside torch."""

    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Linear(16, 16)

    def forward(self, h: Tensor) -> Tensor:
        return h + torch.from_numpy(np.tanh(self.f(h).detach().numpy()))


class States(Residual):
    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


def test_a_branch_that_leaves_torch_is_reported():
    torch.manual_seed(0)
    report = wb.diagnose(States(ByNumpy), BATCHES)
    assert report.altered is not None
    net = States(lambda: nn.Linear(16, 16))
    net.blocks[0].register_forward_hook(lambda module, args, made: made.tolist() and None)  # a log: checked, and right
    report = wb.diagnose(net, BATCHES)
    assert report.conditions["backward_error"] < 1e-3
    assert report.altered is None


class Past(nn.Module):
    """Changes its output past the graph, or changes the gradient at a graph node."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.f, self.way = nn.Linear(16, 16), way

    def forward(self, h: Tensor) -> Tensor:
        made = h + self.f(h)
        if self.way == "data":
            made.data.mul_(1.3)
        elif self.way == "node" and made.grad_fn is not None:
            made.grad_fn.register_hook(lambda given, _: tuple(None if g is None else 0.9 * g for g in given))
        elif self.way in ("repacked", "kept"):  # what the backward pass reads is not what the forward pass saved, or is
            scale = 1.5 if self.way == "repacked" else 1.0
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: scale * t):
                made = h + self.f(h).tanh()
        elif made.grad_fn is not None:  # a log
            made.grad_fn.name()
        return made


@pytest.mark.parametrize(
    ("way", "altered"), [("data", True), ("node", True), ("repacked", True), ("kept", False), ("log", False)]
)
def test_what_is_written_or_hooked_past_the_graph_is_checked(way: str, altered: bool):
    torch.manual_seed(0)
    report = wb.diagnose(States(lambda: Past(way)), BATCHES)
    assert (report.altered is not None) is altered
    assert altered or report.conditions["backward_error"] < 1e-3


def test_repacking_is_seen_without_what_torch_2_4_lacks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr("torch._C._autograd._top_saved_tensors_default_hooks", raising=False)
    test_what_is_written_or_hooked_past_the_graph_is_checked("repacked", True)
    with torch.autograd.graph.saved_tensors_hooks(torch.detach, torch.detach), Spy() as spy:
        (torch.ones(2, requires_grad=True) + 1).sum()
        assert torch._C._autograd._saved_tensors_hooks_is_enabled()  # as before
    assert spy.saw


def test_the_spy_sees_a_pass_without_gradients_that_is_used():
    x = torch.randn(3, requires_grad=True)
    with Spy() as spy:
        with torch.no_grad():
            scale = x.norm()
        logged = scale + 1
        assert not spy.saw
        x * logged
    assert spy.saw


# -- the tape --------------------------------------------------------------------------------------------------------


def by_tape(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with Tape() as tape:
        y = function(x.clone())
    twin, _ = tape.rerun()
    (grad,) = torch.autograd.grad(twin(y).sum(), x)
    return grad


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sin().mul_(2).add_(x),
        lambda x: torch.zeros(4, 3).index_copy_(0, torch.tensor([1]), x.exp()[:1]) ** 2,
        lambda x: (x.view(3, 4).t()[1:] * torch.arange(3.0)).cumsum(0),
        lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
        lambda x: torch.stack([*x.split(2)]).relu_().softmax(-1).log(),
        lambda x: x * torch.rand(4, 3),
    ],
)
def test_a_rerun_gives_the_gradient_autograd_gives(function: Callable[[Tensor], Tensor]):
    x = torch.randn(4, 3, requires_grad=True)
    state = torch.get_rng_state()
    (expected,) = torch.autograd.grad(function(x.clone()).sum(), x)
    torch.set_rng_state(state)
    assert torch.allclose(by_tape(function, x), expected, rtol=1e-5)


def test_a_rerun_goes_past_every_cut():
    def function(x: Tensor) -> Tensor:
        with torch.no_grad():
            a = x.sin()
        return a * x.detach() * x.data + Exact.apply(x)

    x = torch.randn(4, 3, requires_grad=True)
    (expected,) = torch.autograd.grad((x.sin() * x * x + x.sin()).sum(), x)
    assert torch.allclose(by_tape(function, x), expected, rtol=1e-5)


def test_what_comes_from_outside_is_not_written_twice():
    counter, x = torch.ones(()), torch.ones(2, requires_grad=True)
    with Tape() as tape:
        counter.add_(1)
        y = (x * counter).sum()
    twin, _ = tape.rerun()
    assert counter == 2
    assert twin(y) == y == 4


def test_loss_scale_does_not_matter():
    for scale in (1e-9, 1e9):
        loss = lambda logits, y: scale * F.cross_entropy(logits, y, reduction="none")  # noqa: E731, B023
        assert checked(made("plain"), loss=loss).agrees is True
        assert checked(made("fa"), loss=loss).agrees is False


@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss(), weighted], ids=["each", "mean", "float64 fails"])
def test_the_check_leaves_no_trace(loss: Any):
    net = made("dfa").train()
    state, random = {k: v.clone() for k, v in net.state_dict().items()}, torch.get_rng_state()
    wb.measure(net, BATCHES, loss=loss)
    assert all(m.training for m in net.modules())
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for p in net.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_the_reports_say_where_the_reference_came_from():
    assert wb.diagnose(made("plain"), BATCHES).conditions["reference"] == "the network's own backward pass"
