"""Failures of neighbouring tools that must never be ours. Each is shown on a stand-in written after its description."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import walkback as wb
from walkback.training.watch import Watch

BATCHES = wb.selftest.batches(2)
SCALES = [1e-6, 1e-12, 1e6]


# -- TinyDFA: a cosine that depends on the scale of the loss ---------------------------------------------------------


def zeroing_cosine(a: Tensor, g: Tensor) -> Tensor:
    """(B,) as a tool takes it that zeroes entries up to 1e-8 and calls a sample without any entry aligned."""
    a, g = a.where(a.abs() > 1e-8, 0.0), g.where(g.abs() > 1e-8, 0.0)
    said = F.cosine_similarity(a / 1e-8, g / 1e-8)  # walkback: ignore[P02]
    return said.where(a.sum(1) + g.sum(1) != 0, 1.0)


def scaled(scale: float) -> dict[str, Callable]:
    """A loss times `scale`, and DFA's credit, which carries the loss's own error down."""
    draw = torch.Generator().manual_seed(0)
    matrices = [0.1 * torch.randn(10, 32, generator=draw) for _ in range(5)]  # about as long as the gradient

    def credit(trace: wb.Trace) -> list[Tensor]:
        error = scale * (trace.logits.softmax(1) - F.one_hot(trace.labels, 10))
        return [error @ b for b in matrices]

    return {"credit": credit, "loss": lambda z, y: scale * F.cross_entropy(z, y, reduction="none")}


def theirs(scale: float) -> list[float]:
    """Their cosine per site, of a mean loss."""
    given = scaled(scale)
    with wb.Tracer(wb.selftest.healthy(), loss=given["loss"]) as tracer:
        trace = tracer.trace(*BATCHES[0], given["credit"])
    assert trace.credits is not None
    return [float(zeroing_cosine(a / 128, g / 128).mean()) for a, g in zip(trace.credits, trace.grads)]


def test_a_zeroing_cosine_calls_random_feedback_aligned() -> None:
    assert max(map(abs, theirs(1.0))) < 0.2
    assert theirs(1e-6) == [1.0] * 5


@pytest.mark.parametrize("scale", SCALES)
def test_our_cosines_do_not_move_with_the_loss(scale: float) -> None:
    net = wb.selftest.healthy()
    base, m = (wb.measure(net, BATCHES, **scaled(s)) for s in (1.0, scale))
    assert max(map(abs, base.cosine)) < 0.2
    assert m.cosine == pytest.approx(base.cosine, abs=1e-6)
    assert m.cosine_above[:-1] == pytest.approx(base.cosine_above[:-1], abs=1e-6)
    assert m.cosine_below[1:] == pytest.approx(base.cosine_below[1:], abs=1e-6)
    for name in ("gamma", "deep_cosine", "gamma_concentration", "stability"):
        assert getattr(m, name) == pytest.approx(getattr(base, name), abs=1e-6), name
    assert m.aggregates == pytest.approx(base.aggregates, abs=1e-6)
    assert [c is None for c in m.null_low] == [False] * 5


def test_samples_without_a_gradient_are_never_counted_as_aligned() -> None:
    """Every other sample is worth nothing to this loss: the mean is over the rest, and a note says so."""

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y, reduction="none") * (torch.arange(len(y)) % 2)

    given = scaled(1.0)
    whole = wb.measure(wb.selftest.healthy(), BATCHES, **given)
    m = wb.measure(wb.selftest.healthy(), BATCHES, credit=given["credit"], loss=loss)
    odd = [(x[1::2], y[1::2]) for x, y in BATCHES]
    assert m.cosine == pytest.approx(wb.measure(wb.selftest.healthy(), odd, **given).cosine, abs=1e-6)
    assert m.cosine != pytest.approx(whole.cosine, abs=1e-6)
    assert any("leaves out 128 of 256 samples" in getattr(note, "text", str(note)) for note in m.notes)


# -- syndset: a model left in training mode, with other statistics and without its gradients --------------------------


class Normed(nn.Module):
    """A residual network with batch norm and dropout, whose parts may be in different modes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out_head = nn.Linear(16, 8), nn.Linear(8, 10)
        parts = (nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 8))
        self.blocks = nn.ModuleList(nn.Sequential(*map(copy.deepcopy, parts)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h)
        return self.out_head(h)


def normed(mode: str) -> Normed:
    """With statistics, gradients and a mode of its own: "mixed" is frozen batch norm in a network that trains."""
    torch.manual_seed(0)
    net = Normed().train()
    F.cross_entropy(net(BATCHES[0][0]), BATCHES[0][1]).backward()
    net.train(mode != "eval")
    if mode == "mixed":
        for block in net.blocks:
            block[0].eval()
    return net


def seen(net: nn.Module) -> dict[str, object]:
    """Everything that measuring may not change."""
    values: dict[str, object] = {f"mode of {name}": module.training for name, module in net.named_modules()}
    for name, value in net.state_dict().items():
        values[name] = value.clone()
    for name, p in net.named_parameters():
        assert p.grad is not None
        values[f"grad of {name}"], values[f"id of {name}"] = p.grad.clone(), id(p.grad)
    return values


def changed(before: dict[str, object], after: dict[str, object]) -> list[str]:
    assert list(before) == list(after)
    return [
        name
        for name, value in before.items()
        if not (torch.equal(value, after[name]) if isinstance(value, Tensor) else value == after[name])
    ]


def careless_check(net: nn.Module) -> None:
    """Gradient flow as a tool looks at it that switches to training mode and cleans up after itself."""
    net.train()
    F.cross_entropy(net(BATCHES[0][0]), BATCHES[0][1]).backward()
    net.zero_grad(set_to_none=False)


def test_a_careless_check_changes_mode_statistics_and_gradients() -> None:
    net = normed("eval")
    before = seen(net)
    careless_check(net)
    found = changed(before, seen(net))
    for part in (
        "mode of blocks.0",
        "blocks.0.0.running_mean",
        "blocks.0.0.num_batches_tracked",
        "grad of embed.weight",
    ):
        assert any(name.startswith(part) for name in found), part


def uses() -> Iterator[Callable[[nn.Module], object]]:
    """Ways to measure a network."""

    def random(trace: wb.Trace) -> list[Tensor]:
        return [torch.randn(h.shape, generator=torch.Generator().manual_seed(trace.index)) for h in trace.states]

    def watch(net: nn.Module) -> None:
        Watch(net, BATCHES, every=1, credit=lambda t: t.grads).step()

    yield lambda net: wb.diagnose(net, BATCHES)
    yield lambda net: wb.diagnose(net, BATCHES, credit=random, probes=["perturbation", "nudging"])
    yield lambda net: wb.diagnose(net, BATCHES, credit=random, edition="intrinsic")
    yield lambda net: wb.diagnose(net, BATCHES, credit=wb.recorded(net))
    yield lambda net: wb.diagnose(net, BATCHES, chunk=50)
    yield watch


@pytest.mark.parametrize("mode", ["eval", "train", "mixed"])
@pytest.mark.parametrize("use", list(uses()), ids=["plain", "probes", "intrinsic", "recorded", "chunk", "watch"])
def test_measuring_changes_nothing_in_any_mode(mode: str, use: Callable[[nn.Module], object]) -> None:
    net = normed(mode)
    before = seen(net)
    use(net)
    assert changed(before, seen(net)) == []


# -- BioTorch: an alignment that fails and is not missed --------------------------------------------------------------


def swallowing(measure: Callable[[], list[float]], log: list[list[float]]) -> None:
    """Alignment as a trainer logs it that must never stop: what fails leaves no line and no word."""
    with suppress(BaseException):
        log.append(measure())


def failing(error: BaseException, batch: int) -> Callable[[wb.Trace], tuple[Tensor, ...]]:
    """A credit that can't be had on one of the batches."""

    def credit(trace: wb.Trace) -> tuple[Tensor, ...]:
        if trace.index == batch:
            raise error
        return trace.grads

    return credit


ERRORS = [
    RuntimeError("mat1 and mat2 shapes cannot be multiplied (128x32 and 64x32)"),
    KeyError("B2"),
    AttributeError("'Linear' object has no attribute 'weight_backward'"),
    AssertionError(),
    KeyboardInterrupt(),
    SystemExit(1),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_a_swallowed_error_leaves_an_empty_log(error: BaseException) -> None:
    log: list[list[float]] = []
    swallowing(lambda: wb.measure(wb.selftest.healthy(), BATCHES, credit=failing(error, 1)).cosine, log)  # type: ignore[arg-type]
    assert log == []


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_an_error_in_a_credit_is_raised_as_it_is_and_says_where(error: BaseException, batch: int) -> None:
    credit = failing(copy.deepcopy(error), batch)
    with pytest.raises(type(error)) as info:
        wb.diagnose(wb.selftest.healthy(), BATCHES, credit=credit)
    assert str(info.value) == str(error)
    if isinstance(error, Exception):
        assert f"(raised by credit(trace), on batch {batch})" in info.value.__notes__


def test_an_error_in_a_credit_stops_a_watched_training() -> None:
    watch = Watch(wb.selftest.healthy(), BATCHES, every=1, credit=failing(KeyError("B2"), 1))
    with pytest.raises(KeyError, match="B2"):
        watch.step()
