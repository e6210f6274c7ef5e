"""RunSpec -> Run: the network, rule, optimiser and batches of a run, all of them drawn from (seed, purpose, epoch)."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from walkback import nets, rules
from walkback.data import Dataset
from walkback.errors import InputError, cut, shown
from walkback.rules.rule import Parts, Rule, declares, set_up
from walkback.tracing.untouched import drawn_from
from walkback.training.spec import RunSpec

PROBE_BATCHES, PROBE_SIZE = 8, 128


@dataclass
class Run:
    """The moving parts of a run."""

    spec: RunSpec
    data: Dataset
    net: nn.Module
    rule: Rule
    parts: Parts
    optimiser: torch.optim.Optimizer
    first_weights: dict[str, Tensor]
    probe: list[tuple[Tensor, Tensor]]
    device: torch.device
    rows: list[dict[str, Any]] = field(default_factory=list)

    def drawn(self, epoch: int) -> AbstractContextManager[None]:
        """Return a context in which dropout and noise, from the global generators, follow from seed and epoch too."""
        return drawn_from(seeded(self.spec.seed, "global", epoch).initial_seed(), self.device)


def seeded(seed: int, purpose: str, epoch: int = 0) -> torch.Generator:
    """Return a generator of its own for each purpose and epoch."""
    digest = hashlib.sha256(f"{seed}:{purpose}:{epoch}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def build_net(spec: RunSpec, data: Dataset) -> nn.Module:
    """Return the network of a spec at its initialisation."""
    with drawn_from(spec.seed):
        return nets.build(spec.net, data.input_shape, data.classes, **spec.net_options)


def build_rule(spec: RunSpec, data: Dataset, net: nn.Module) -> Rule:
    """Return the rule of a spec, set up for a network on the CPU."""
    generator = seeded(spec.seed, "rule")
    with drawn_from(generator.initial_seed()):  # for a rule that does not draw from the generator it is given
        rule = rules.make(spec.rule, **spec.rule_options)
        rule.length = spec.credit_length
        set_up(rule, net, data.prepare(data.train.x[:2]), data.classes, generator)
    return rule


def probe_batches(
    data: Dataset, device: torch.device, split: str = "test", number: int = 0
) -> list[tuple[Tensor, Tensor]]:
    """Return the fixed probe set: 8 disjoint batches of 128 test samples, shuffled, the same for every run.

    Another `number` gives others of the same split, as far as it has them; `split` "train" those of the training split.
    """
    of = data.train if split == "train" else data.test
    size = min(PROBE_SIZE, len(of) // 2)
    order = torch.randperm(len(of), generator=seeded(0, "probe"))
    first = PROBE_BATCHES * size * number
    order = order[first : first + PROBE_BATCHES * size]
    if number < 0 or (number and len(order) < 2 * size):
        each = PROBE_BATCHES * size
        last = max(1, len(of) // each) - 1
        raise InputError(f"Expected a probe set from 0 to {last}, {each} samples each, but got {number}.")
    x, y = data.prepare(of.x[order]).to(device), of.y[order].to(device)
    return list(zip(x.split(size), y.split(size)))


def usable(device: str | torch.device) -> torch.device:
    """Return the device, or raise an InputError where this machine has none such."""
    try:
        one = torch.zeros(1, device=device)
        one.item()  # which a device without values, such as meta, refuses
        return one.device
    except (RuntimeError, AssertionError) as error:
        text = cut(str(error).splitlines()[0], 300)
        raise InputError(
            f"Expected a device of this machine (cpu, cuda, mps), but {shown(device)} is not: {text}"
        ) from None


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use so many threads inside the `with` block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def build(spec: RunSpec, data: Dataset) -> tuple[nn.Module, Rule]:
    """Return the network and the rule of a spec, or raise an InputError where it can't be trained."""
    if spec.augment and len(data.input_shape) != 3:
        raise InputError(
            f"Expected images (C, H, W) to flip and crop, but {spec.data} has inputs of shape {data.input_shape}. "
            "Leave augment out."
        )
    if spec.scope == "frozen" and (spec.penalty or spec.credit_site == "reader"):
        raise InputError("Expected neither penalty nor credit_site with frozen blocks: they have no local loss.")
    if not spec.penalty and (spec.penalty_stem or spec.penalty_over != "sum"):
        raise InputError("Expected penalty_over and penalty_stem together with a penalty, but it is 0.")
    net = build_net(spec, data)
    rule = build_rule(spec, data, net)
    if declares(rule, "exact") and spec.credit_site == "reader":
        raise InputError(f"Expected credit_site writer with {spec.rule}: each block gets its own gradient there.")
    if declares(rule, "exact") and spec.credit_length != "raw":
        raise InputError(
            f"Expected credit_length raw with {spec.rule}: it differentiates end to end, without local credits."
        )
    _all_learn(net, rule)
    return net, rule


def _all_learn(net: nn.Module, rule: Rule) -> None:
    parts = Parts.of(net)
    reached = {id(p) for module in (parts.stem, *parts.blocks, *parts.readout_modules) for p in module.parameters()}
    lost = [name for name, p in net.named_parameters() if p.requires_grad and id(p) not in reached]
    if lost and not declares(rule, "exact"):
        raise InputError(
            f"Expected every weight in the stem, a block or the readout, where a local rule trains it, but {lost[0]} "
            "is in none of them and would stay as it is. Put it into one, or set requires_grad to False."
        )


def start(spec: RunSpec, data: Dataset, device: torch.device) -> Run:
    """Build everything that training moves, on the device."""
    net, rule = build(spec, data)
    first = {name: p.detach().clone() for name, p in net.named_parameters()}
    net, rule = net.to(device), rule.to(device)
    parts, optimiser = learning(spec, net, rule)
    return Run(spec, data, net, rule, parts, optimiser, first, probe_batches(data, device), device)


class AdamW(torch.optim.AdamW):
    """AdamW that never imports torch's compiler: half of what starting a process that trains takes.

    torch imports it for decorators that only matter inside of compiled code; these are the same methods without them.
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


def learning(spec: RunSpec, net: nn.Module, rule: Rule) -> tuple[Parts, torch.optim.Optimizer]:
    """Return the parts of a network, blocks frozen where the spec says so, and the optimiser of all that trains."""
    parts, o = Parts.of(net), spec.optimiser
    if spec.scope == "frozen":
        for block in parts.blocks:
            block.requires_grad_(False)
    trained = [p for p in (*net.parameters(), *rule.parameters()) if p.requires_grad]
    return parts, AdamW(trained, lr=o.lr, weight_decay=o.weight_decay, fused=True)


def set_rate(optimiser: torch.optim.Optimizer, spec: RunSpec, epoch: int) -> None:
    """Give the optimiser the learning rate that the spec's schedule has in an epoch, from 1."""
    share = (epoch - 1) / spec.epochs
    fall = 0.5 * (1 + math.cos(math.pi * share)) if spec.optimiser.schedule == "cosine" else 1.0
    for group in optimiser.param_groups:
        group["lr"] = spec.optimiser.lr * fall


def batches(spec: RunSpec, data: Dataset, epoch: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the training batches of an epoch, shuffled and augmented, normalised on the device."""
    generator, size = seeded(spec.seed, "order", epoch), spec.optimiser.batch_size
    order = torch.randperm(len(data.train), generator=generator)
    for start in range(0, len(order) - len(order) % size or len(order), size):
        index = order[start : start + size]
        x, y = data.train.x[index].to(device), data.train.y[index].to(device)
        yield data.prepare(augment(x, generator) if spec.augment else x), y


def augment(x: Tensor, generator: torch.Generator, pad: int = 4) -> Tensor:
    """Flip horizontally and crop after zero padding at random, per sample; return (B, C, H, W) of the same dtype."""
    batch, channels, height, width = x.shape
    flip = (torch.rand(batch, generator=generator) < 0.5).to(x.device)
    shift = torch.randint(2 * pad + 1, (batch, 2), generator=generator).to(x.device)
    rows = shift[:, :1] + torch.arange(height, device=x.device)  # of the padded images, (B, H)
    columns = shift[:, 1:] + torch.arange(width, device=x.device)  # (B, W)
    across = width + 2 * pad
    columns = torch.where(flip[:, None], across - 1 - columns, columns)
    pixels = (rows[:, :, None] * across + columns[:, None]).flatten(1)[:, None].expand(-1, channels, -1)
    return F.pad(x, (pad,) * 4).flatten(2).gather(2, pixels).view_as(x)
