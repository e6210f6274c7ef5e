"""Low precision: networks may run in it, statistics may not, and what it loses is said."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import walkback as wb
from nets import Linear, SmoothNet, batched, cos, groups, mean_cosine, mean_norm, mean_pairwise, rows

# How far a network of this dtype may be from the same weights and inputs in float64: relative for norms, absolute
# for cosines and stability. About 50 roundings' worth; the network's own arithmetic is all that differs.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
SHAPES = [("flat", "cls"), ("tokens", "cls"), ("tokens", "mean"), ("maps", "")]


def credit(trace: wb.Trace) -> list[Tensor]:
    """Neither aligned nor random, the same function in every dtype."""
    return [3 * g / torch.linalg.vector_norm(g, dtype=torch.float64).to(g.dtype) + 0.1 * h.roll(1, -1)
            for h, g in zip(trace.states, trace.grads)]  # fmt: skip


def pair(dtype: torch.dtype, **options) -> tuple[SmoothNet, SmoothNet, Tensor, Tensor]:
    """(network of the dtype, the same rounded weights in float64, rounded inputs, labels)."""
    low = SmoothNet(**options).to(dtype)
    x, y = low.example(384)
    return low, copy.deepcopy(low).double(), x.to(dtype), y


def compare(m: wb.Measurements, exact: wb.Measurements, tolerance: float) -> None:
    numbers = [*m.h_norm, *m.g_norm, *m.cosine, *m.cosine_clamped, *m.below_eps, *m.aggregates.values()]
    numbers += [m.growth, m.growth_total, m.stability, m.gamma, m.deep_cosine, m.gamma_concentration]
    assert all(isinstance(v, float) and np.isfinite(v) for v in numbers)
    assert m.h_norm == pytest.approx(exact.h_norm, rel=tolerance)
    assert m.g_norm == pytest.approx(exact.g_norm, rel=tolerance)
    assert (m.growth, m.growth_total) == pytest.approx((exact.growth, exact.growth_total), rel=tolerance)
    assert m.cosine == pytest.approx(exact.cosine, abs=tolerance)
    assert m.aggregates == pytest.approx(exact.aggregates, abs=tolerance)
    assert m.stability == pytest.approx(exact.stability, abs=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("kind", "reads"), SHAPES)
@pytest.mark.parametrize("returns", ["branch", "state"])
def test_networks_of_every_dtype(dtype: torch.dtype, kind: str, reads: str, returns: str):
    low, wide, x, y = pair(dtype, kind=kind, reads=reads, returns=returns)
    m = wb.measure(low, batched(x, y, 128), credit=credit)
    compare(m, wb.measure(wide, batched(x.double(), y, 128), credit=credit), TOLERANCE[dtype])
    assert m.dtype == str(dtype).removeprefix("torch.")
    assert m.conditions["dtype"] == m.conditions["gradient_dtype"] == str(dtype).removeprefix("torch.")
    assert m.conditions["statistics"] == "float64 on cpu"


@pytest.mark.parametrize(("kind", "reads"), SHAPES)
def test_autocast(kind: str, reads: str):
    low, wide, x, y = pair(torch.float32, kind=kind, reads=reads)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        m = wb.measure(low, batched(x, y, 128), credit=credit)
    compare(m, wb.measure(wide, batched(x.double(), y, 128), credit=credit), TOLERANCE[torch.bfloat16])
    assert m.conditions["autocast"] is True
    plain = wb.measure(low, batched(x, y, 128), credit=credit)
    assert plain.conditions["autocast"] is False
    assert plain.h_norm != pytest.approx(m.h_norm, rel=1e-6), "autocast must have been in effect"


def test_autocast_does_not_reach_the_probes():
    low, wide, x, y = pair(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        m = wb.measure(low, batched(x, y, 384), credit=credit, probes=[wb.Nudging()])
    assert m.conditions["probe_dtype"] == "float64"
    exact = wb.measure(wide, batched(x.double(), y, 384), credit=credit, probes=[wb.Nudging()])
    assert m.probes["nudging"] == pytest.approx(exact.probes["nudging"], rel=0.05)
    assert all(0.99 < v <= 1 for v in wb.measure(low, [(x, y)], probes=["perturbation"]).probes["perturbation_bp"])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("kind", "reads"), SHAPES)
def test_statistics_are_float64_of_what_the_network_computed(dtype: torch.dtype, kind: str, reads: str):
    """Recomputed in numpy from the traced tensors: no rounding but the network's own."""
    low, _, x, y = pair(dtype, kind=kind, reads=reads)
    traces: list[wb.Trace] = []
    given: list[list[Tensor]] = []

    def kept(trace: wb.Trace) -> list[Tensor]:
        traces.append(trace)
        given.append(credit(trace))
        return given[-1]

    m = wb.measure(low, batched(x, y, 96), credit=kept)
    h, g, a = (
        [np.concatenate([t.double().numpy() for t in site]) for site in zip(*parts)]
        for parts in ([t.states for t in traces], [t.grads for t in traces], given)
    )
    at = {"cls": lambda v: v[:, 0], "mean": lambda v: v}.get(reads, rows) if kind == "tokens" else rows
    norm = lambda v: float(np.linalg.norm(at(v), axis=-1).mean())  # noqa: E731
    exact = {"rel": 1e-12, "abs": 1e-15}
    assert m.h_norm == pytest.approx([norm(v) for v in h], **exact)
    assert m.g_norm == pytest.approx([norm(v) / 128 for v in g], **exact)
    assert m.cosine == pytest.approx([mean_cosine(p, q) for p, q in zip(a, g)], **exact)
    deepest = at(g[-1]).mean(1) if (kind, reads) == ("tokens", "mean") else at(g[-1])
    assert m.stability == pytest.approx(mean_pairwise(groups(deepest)), rel=1e-10, abs=1e-13)
    by_group = [[cos(u, v) for u, v in zip(groups(p), groups(q))] for p, q in zip(a[:-1], g[:-1])]
    assert m.aggregates["batches"] == pytest.approx(float(np.mean(by_group)), rel=1e-10, abs=1e-13)
    flat = [np.concatenate([v.ravel() for v in part[:-1]]) for part in (a, g)]
    assert m.aggregates["flattened"] == pytest.approx(cos(*flat), rel=1e-10, abs=1e-13)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_token_gradients_are_averaged_in_float64(dtype: torch.dtype):
    """Labels at every token give every token a gradient of its own."""
    net = Linear.random(2, 6).net(dtype)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(384, 7, 5, generator=generator).to(dtype)
    y = torch.randint(4, (384, 7), generator=generator)
    seen: list[Tensor] = []
    m = wb.measure(net, batched(x, y, 128), credit=lambda t: seen.append(t.grads[-1]) or t.states)
    deepest = torch.cat(seen).double().numpy()
    assert m.stability == pytest.approx(mean_pairwise(groups(deepest.mean(1))), rel=1e-10, abs=1e-13)


def test_long_sums_keep_their_last_digits():
    """The mean norm of 4096 bfloat16 states; a bfloat16 sum would stop growing at 256 times its parts."""
    net = SmoothNet().bfloat16()
    x, y = net.example(4096)
    x = x.bfloat16()
    seen: list[Tensor] = []
    m = wb.measure(net, batched(x, y, 128), credit=lambda t: seen.append(t.states[0]) or t.states)
    assert m.h_norm[0] == pytest.approx(mean_norm(torch.cat(seen).double().numpy()), rel=1e-13)


# -- what a dtype loses -------------------------------------------------------------------------------------


def scaled(scale: float):
    return lambda logits, y: scale * F.cross_entropy(logits.float(), y, reduction="none")


@pytest.mark.parametrize("scale", [1e-6, 1e-10])
def test_an_underflowed_float16_reference_has_no_cosine(scale: float):
    """At 1e-6 entries are subnormal, a few bits each; at 1e-10 they are zero. Neither has a direction."""
    low, _, x, y = pair(torch.float16)
    m = wb.measure(low, batched(x, y, 128), credit=lambda t: t.states, loss=scaled(scale))
    assert m.cosine == [None] * 4
    assert "site 3: the reference is zero or underflowed (norm below 6.1e-05 in torch.float16)" in m.reasons["cosine"]
    assert m.gamma is None
    assert m.reasons["gamma"] == m.reasons["cosine"]
    assert set(m.aggregates.values()) == {None}, "no order of averaging brings a lost direction back"
    assert m.reasons["aggregates"].endswith(m.reasons["cosine"])
    assert all(share > 0.99 for share in m.below_eps)
    if scale == 1e-10:
        assert m.g_norm == [0.0] * 4
        assert m.stability is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_dtypes_do_not_underflow_there(dtype: torch.dtype):
    low, wide, x, y = pair(dtype)
    m = wb.measure(low, batched(x, y, 128), credit=lambda t: t.states, loss=scaled(1e-10))
    exact = wb.measure(wide, batched(x.double(), y, 128), credit=lambda t: t.states)
    assert m.cosine == pytest.approx(exact.cosine, abs=TOLERANCE[dtype])
    assert m.g_norm == pytest.approx([1e-10 * g for g in exact.g_norm], rel=TOLERANCE[dtype])


def test_float32_underflows_in_the_end():
    low, _, x, y = pair(torch.float32)
    m = wb.measure(low, batched(x, y, 128), credit=lambda t: t.states, loss=scaled(1e-41))
    assert m.cosine == [None] * 4
    assert "norm below 1.2e-38 in torch.float32" in m.reasons["cosine"]


def test_a_float32_reference_of_1e_minus_30_is_still_exact():
    """Floating point keeps relative precision: a small reference is not a noisy one."""
    low, wide, x, y = pair(torch.float32)
    m = wb.measure(low, batched(x, y, 128), credit=lambda t: t.states, loss=scaled(1e-28))
    assert m.g_norm[-1] < 1e-30
    exact = wb.measure(wide, batched(x.double(), y, 128), credit=lambda t: t.states)
    assert m.cosine == pytest.approx(exact.cosine, abs=1e-5)
    assert m.cosine_clamped == pytest.approx([0.0] * 4, abs=1e-15)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_overflow_is_a_finding_with_its_site(dtype: torch.dtype):
    low, _, x, y = pair(dtype)
    with torch.no_grad():
        low.blocks[1].body.second.weight.fill_(torch.finfo(dtype).max)
    m = wb.measure(low, batched(x, y, 128), credit=lambda t: t.states)
    states = [(note.site, note.values["batch"]) for note in m.nonfinite if note.values["kind"] == "state"]
    assert states[0] == (2, 0), "and neither at site 0 nor at 1"
    assert m.h_norm[:2] == pytest.approx(wb.measure(pair(dtype)[0], batched(x, y, 128)).h_norm[:2], rel=1e-6)
    assert m.h_norm[2] is None
    assert m.growth is None
    assert "state not finite at site 2" in m.reasons["h_norm"]
    assert "not finite" in m.reasons["cosine"]


def test_float16_branches_beside_a_float32_stream_keep_its_gradient() -> None:
    """Under autocast blocks may return float16 while the stream is float32: the gradient is the stream's own."""
    import torch.nn.functional as F

    import walkback as wb

    class Mixed(wb.selftest.ResidualNet):
        def forward(self, x):
            h = self.embed(x).float()
            for block in self.blocks:
                h = h + block(h)
            with torch.autocast("cpu", enabled=False):
                return self.out_head(self.out_ln(h))

    torch.manual_seed(0)
    model = Mixed(16, 32, 3, 10)
    x, y = wb.selftest.batches(1)[0]
    with torch.autocast("cpu", dtype=torch.float16):  # walkback: ignore[P03]
        m = wb.measure(model, [(x, y)], loss=lambda z, t: 1e-4 * F.cross_entropy(z, t, reduction="none"))
        states = [model.embed(x).float().detach().requires_grad_()]
        for block in model.blocks:
            states.append(states[-1] + block(states[-1]))
    loss = 1e-4 * F.cross_entropy(model.out_head(model.out_ln(states[-1])), y, reduction="sum")
    expected = torch.autograd.grad(loss, states)
    assert m.conditions["gradient_dtype"] == "float32"
    for got, g in zip(m.g_norm[1:], expected[1:]):
        assert abs(got - float(g.double().norm(dim=1).mean()) / 128) < 2e-3 * got
    assert all(value is not None for value in m.g_norm)


def test_a_readout_that_moves_between_batches_is_followed() -> None:
    import pytest

    import walkback as wb

    class Last(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = torch.nn.Linear(3, 8), torch.nn.Linear(8, 4)
            self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))

        def forward(self, x):
            h = self.embed(x)
            for block in self.blocks:
                h = h + block(h)
            last = (x.abs().sum(-1) > 0).sum(1) - 1
            return self.head(h[torch.arange(len(x)), last])

    torch.manual_seed(0)
    lengths = [[4] * 8, [2, 3, 4, 5, 2, 3, 4, 5]]
    batches = []
    for row in lengths:
        x = torch.randn(8, 5, 3)
        for i, n in enumerate(row):
            x[i, n:] = 0
        batches.append((x, torch.randint(4, (8,))))
    model = Last()
    found = wb.measure(model, batches)
    named = {"stem": "embed", "blocks": "blocks", "readout": "head", "pool": "readout"}
    there, back = (wb.measure(model, order, anatomy=named) for order in (batches, batches[::-1]))
    assert there.g_norm == pytest.approx(back.g_norm)
    assert (found.h_norm, found.g_norm) == (there.h_norm, there.g_norm)
    assert found.conditions["pool"] == "readout"
