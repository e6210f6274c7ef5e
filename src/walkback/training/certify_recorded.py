"""Is my FA really FA, in my own training loop? The certificate of recorded code, from the credits it sends."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from walkback.errors import InputError
from walkback.network.batch import call
from walkback.network.values import logits_of, named_buffers_of, named_parameters_of
from walkback.rules.rule import Rule
from walkback.tracing.recorded import Recorded
from walkback.tracing.session import Tracer
from walkback.tracing.untouched import untouched
from walkback.training import certify as by_rule
from walkback.training.certify import Batch, Certificate, _judge, _refuse_batch

DRAWS = 16


def certify(rule: Rule | Recorded, net: nn.Module, batch: Batch | None = None, seed: int = 0) -> Certificate:
    """Find which credit reaches which parameters of `net` when `rule`, or code of your own, trains it.

    Neither is changed. Of recorded code the groups are the stem and the blocks, by the credit of the site that each
    writes, beside the exact gradient there. Feedback is what the network holds, does not train, and does not use in its
    forward pass; it is drawn anew to see whether the credit comes through it. The readout has no site.

    Args:
        rule: set up for `net` (see `walkback.rules.rule.set_up`), or `walkback.recorded(net)`.
        net: the network it trains.
        batch: inputs (B, …) and labels (B,); drawn from a normal distribution when None, which recorded code needs.
        seed: of the drawn batch, the fresh feedback and the scrambling.

    >>> import walkback as wb
    >>> net, batch = wb.selftest.healthy(), wb.selftest.batches(1)[0]
    >>> print(certify(wb.recorded(net), net, batch).hidden_backprop)
    ('stem', 'block 1', 'block 2', 'block 3')
    """
    if not isinstance(rule, Recorded):
        return by_rule.certify(rule, net, batch, seed)
    if batch is None:
        raise InputError("Expected a batch with recorded code, which is run on it, but got none. Pass batch=(x, y).")
    _refuse_batch(batch)
    generator = torch.Generator().manual_seed(seed)
    exact, ours = _credits(rule, net, batch)
    drawn: list[list[Tensor]] = []
    feedback = list(_feedback(net, batch, generator))
    for _ in range(DRAWS if feedback else 0):
        with untouched(net), torch.no_grad():
            kept = [t.clone() for t in feedback]
            try:
                for t in feedback:
                    t.copy_(_another(t, generator))
                drawn.append(_credits(rule, net, batch)[1])
            finally:
                for t, value in zip(feedback, kept):
                    t.copy_(value)
    names = ["stem", *(f"block {i}" for i in range(1, len(exact)))]
    groups = []
    for site, name in enumerate(names):
        draws: list[Tensor | None] = [d[site] for d in drawn]
        groups.append(_judge(name, ours[site], exact[site], draws[:2], [], draws))
    return Certificate("recorded code", tuple(groups), (names[-1],))


def _credits(rule: Recorded, net: nn.Module, batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
    """Return the exact gradients and the recorded credits of every site, flat."""
    known = rule.anatomy() if callable(rule.anatomy) else rule.anatomy
    with torch.enable_grad(), Tracer(net, known, rule.loss, "derived") as tracer:
        trace = tracer.trace(*batch, credit=rule.bound(tracer.anatomy, tracer.losses, []))
    return [g.double().flatten() for g in trace.grads], [a.double().flatten() for a in trace.credits or ()]


def _feedback(net: nn.Module, batch: Batch, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield the tensors that the network holds, does not train, and does not use in its forward pass."""
    still = {n: p for n, p in named_parameters_of(net).items() if not p.requires_grad}
    for name, tensor in {**still, **named_buffers_of(net)}.items():
        constant = not tensor.is_floating_point() or tensor.ndim < 2 or float(tensor.detach().double().std()) == 0
        if constant or name.rpartition(".")[2].startswith("running_"):
            continue
        with untouched(net), torch.no_grad():
            before, kept = logits_of(call(net, batch[0])), tensor.clone()
            try:
                tensor.copy_(_another(tensor, generator))
                same = torch.equal(before, logits_of(call(net, batch[0])))
            finally:
                tensor.copy_(kept)
        if same:
            yield tensor


def _another(tensor: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(tensor.shape, generator=generator).to(tensor) * tensor.detach().std(correction=0)
