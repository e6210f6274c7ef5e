"""Networks whose forward pass puts hooks on its tensors, and so can't run without gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import walkback as wb
from walkback.tracing.backward import check_backward


class Fed(nn.Module):
    """A layer whose credit is the incoming one times B, by a hook that no condition guards."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear, self.feedback = nn.Linear(8, 8), torch.randn(8, 8).to(dtype)

    def forward(self, h: Tensor) -> Tensor:
        h = torch.tanh(self.linear(h))
        h.register_hook(lambda grad: grad @ self.feedback)
        return h


class Net(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.blocks = nn.ModuleList(Fed(dtype) for _ in range(3))
        self.to(dtype).eval()

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)

    def known(self, trace: wb.Trace) -> list[Tensor]:
        """The credits by hand: e W of the head, times B, through tanh and W of each block."""
        at_site = (F.softmax(trace.logits, 1) - F.one_hot(trace.labels, 3)) @ self.head.weight
        credits = []
        for block, h in zip(reversed(self.blocks), reversed(trace.states[1:])):
            credits.append(at_site @ block.feedback)
            at_site = (credits[-1] * (1 - h**2)) @ block.linear.weight
        return [at_site, *reversed(credits)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_they_are_checked_probed_and_recorded(dtype: torch.dtype):
    net, generator = Net(dtype), torch.Generator().manual_seed(2)
    x, y = torch.randn(32, 6, generator=generator).to(dtype), torch.arange(32) % 3
    with pytest.raises(RuntimeError, match="cannot register a hook"), torch.no_grad():
        net(x)
    with wb.Tracer(net) as tracer:
        assert check_backward(tracer, tracer.trace(x, y)).answer == "altered"
    with wb.Tracer(net, reference="derived") as tracer:
        trace = tracer.trace(x, y, wb.recorded(net))
        assert check_backward(tracer, trace).answer == "agrees"
    assert trace.credits is not None
    for ours, right in zip(trace.credits, torch.no_grad()(net.known)(trace), strict=True):
        assert float((ours - right).norm() / right.norm()) < (1e-13 if dtype == torch.float64 else 1e-5)
    report = wb.diagnose(net, [(x, y), (-x, y)], credit=wb.recorded(net), probes=["nudging", "intrinsic"])
    assert None not in (report.per_layer["nudging"] or [None])
    assert all(p.grad is None and p.requires_grad for p in net.parameters())


def test_a_network_in_float64_is_not_tried_in_float32():
    """What is said is why it did not run in its own type."""
    net = Net(torch.float64)
    block = net.blocks[1]
    kept, runs = block.forward, iter(range(100))

    def once(h: Tensor) -> Tensor:
        if next(runs):
            raise ValueError("only once")
        return kept(h)

    block.forward = once  # type: ignore[method-assign]
    with wb.Tracer(net) as tracer:
        found = check_backward(tracer, tracer.trace(torch.randn(32, 6).double(), torch.arange(32) % 3))
    assert (found.answer, found.values["what"]) == ("cannot-tell", "only once")
