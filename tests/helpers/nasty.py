"""Networks of the kind that training code in the field really has: each keeps, writes or hides something."""

from __future__ import annotations

import random
import warnings
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from threading import Lock
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, CLASSES = 12, 10
Pair = namedtuple("Pair", "h c")  # a class like those of LSTM code


class Base(nn.Module):
    """A residual network; subclasses do more on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, WIDTH)
        self.blocks = nn.ModuleList(self.block() for _ in range(3))
        self.out_ln, self.out_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def block(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h)
        return self.out_head(self.out_ln(h))


class KeepsOutput(Base):
    """As DRTP does: what it answered is kept in place, past autograd and not, in an attribute and in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.y = torch.zeros(16, CLASSES)
        self.rows = [torch.zeros(16, WIDTH), {"mean": torch.zeros(WIDTH)}]
        self.register_buffer("kept", torch.zeros(16, CLASSES))
        self.register_buffer("half_kept", torch.zeros(16, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h)
        self.rows[0].data.copy_(h.data)
        self.rows[1]["mean"].copy_(h.mean(0))
        out = self.out_head(self.out_ln(h))
        if out.requires_grad:
            self.y.data.copy_(out.data)
            self.kept = self.kept.detach()
            self.half_kept[:8].copy_(out[:8])
            self.kept.copy_(out)
        return out


class LocalBlock(nn.Module):
    """As in local-loss code: a block that learns from a loss of its own while it runs, in whatever mode."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.optimiser = torch.optim.Adam([*self.encoder.parameters(), *self.decoder.parameters()], lr=1e-2)
        self.loss, self.examples = 0.0, 0

    def forward(self, h: Tensor) -> Tensor:
        loss = F.mse_loss(self.decoder(torch.tanh(self.encoder(h.detach()))), torch.zeros(len(h), CLASSES).to(h))
        if loss.requires_grad:
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
        self.loss += float(loss.detach())
        self.examples += len(h)
        return torch.tanh(self.encoder(h))


class HidesWeights(Base):
    """As in local-loss code: `parameters()` shows the last layer only, and forward runs backward and an optimiser."""

    def block(self) -> nn.Module:
        return LocalBlock()

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return self.out_head.parameters(recurse)


class OverridesAll(Base):
    """Every method by which one could look for its parts says something else."""

    def block(self) -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def modules(self) -> Iterator[nn.Module]:
        return iter(())

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        return iter([("", self)])

    def children(self) -> Iterator[nn.Module]:
        return iter(())

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        return iter(())

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return iter([self.out_head.bias])

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return iter([("out_head.bias", self.out_head.bias)])

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        return iter(())

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        return iter(())

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {}

    def train(self, mode: bool = True) -> Any:
        raise AssertionError("train() was called")

    def eval(self) -> Any:
        raise AssertionError("eval() was called")

    def __getattr__(self, name: str) -> Any:
        if name == "other_name":
            return self.blocks
        return super().__getattr__(name)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            F.batch_norm(torch.ones(4, WIDTH).to(x) * 3, block[0].running_mean, block[0].running_var, training=True)
            block[1].weight.data.mul_(1.01)
        return super().forward(x)


class SignLinear(nn.Linear):
    """As BioTorch's uSF and brSF layers: a Parameter is made anew in every pass."""

    def __init__(self, redraw: bool) -> None:
        super().__init__(WIDTH, WIDTH)
        self.redraw = redraw
        self.weight_backward = nn.Parameter(torch.sign(self.weight.detach()), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            size = torch.rand(WIDTH, WIDTH).to(self.weight) if self.redraw else 0.1
            self.weight_backward = nn.Parameter(size * torch.sign(self.weight), requires_grad=False)
        return super().forward(x)


class RecreatesParameters(Base):
    def block(self) -> nn.Module:
        return nn.Sequential(SignLinear(redraw=False), nn.Tanh())


class RedrawsParameters(Base):
    def block(self) -> nn.Module:
        return nn.Sequential(SignLinear(redraw=True), nn.Tanh())


class RescalesParameters(Base):
    """As with BioTorch's `constrain_weights`: the weight itself is another Parameter after every pass."""

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            with torch.no_grad():
                block[0].weight = nn.Parameter(block[0].weight * 3.0 / block[0].weight.norm())
        return super().forward(x)


@dataclass
class Memory:
    last: Any = None
    count: int = 0


@dataclass(slots=True)
class Slotted:
    last: Any = None


class CachesGraphs(Base):
    """Keeps what it computed, with its graph, in every kind of container."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[str, Any] = {"states": [], "nested": {"deep": ()}}
        self.ordered, self.counted = OrderedDict(first=1), defaultdict(list)
        self.recent: deque[Any] = deque(maxlen=2)
        self.memory, self.slotted, self.space = Memory(), Slotted(), SimpleNamespace(h=None)
        self.names: set[str] = {"a"}
        self.keep = partial(self._keep, self.cache)
        self.last = None

    def _keep(self, cache: dict[str, Any], h: Tensor) -> None:
        cache["states"].append(h)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for i, block in enumerate(self.blocks):
            h = h + block(h)
            self.keep(h)
            self.cache[f"h{i}"] = self.cache["nested"]["deep"] = (h, h.mean(0))
            self.ordered[f"h{i}"] = h
            self.ordered.move_to_end("first")
            self.counted[i].append(h)
            self.recent.append(h)
        self.memory.last, self.memory.count = h, self.memory.count + 1
        self.slotted.last = self.space.h = self.last = h
        self.names.add(f"seen {len(x)}")
        self.extra = h.norm()
        return self.out_head(self.out_ln(h))


class PlainWeights(Base):
    """Weights that torch knows nothing of: tensors in a list, one that asks for no gradient, and modules in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = [torch.randn(WIDTH, WIDTH, requires_grad=True) for _ in range(2)]
        self.scale = torch.full((WIDTH,), 0.5)
        self.hidden = [nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)]

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x) * self.scale
        h = torch.tanh(h @ self.maps[0] @ self.maps[1])
        h = self.hidden[1](self.hidden[0](h))
        for block in self.blocks:
            h = h + block(h)
        return self.out_head(self.out_ln(h))


class PredictiveCoding(Base):
    """Keeps its states as Parameters that are made when it runs and relaxed by an optimiser, and keeps the energy."""

    def __init__(self) -> None:
        super().__init__()
        self.x = None
        self.states = nn.ParameterList()
        self.energy = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        self.x = nn.Parameter(h.detach().clone())
        self.states.append(nn.Parameter(h.detach().clone()))
        if torch.is_grad_enabled():
            optimiser = torch.optim.SGD([self.x], lr=0.1)
            self.energy = (self.x - h).square().sum()
            self.energy.backward(retain_graph=True)
            optimiser.step()
        for block in self.blocks:
            h = h + block(h)
        return self.out_head(self.out_ln(h))


class CallsForward(Base):
    """As difference target propagation: inverses in a plain list, called by `.forward`, trained on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.inverses = [nn.Linear(WIDTH, WIDTH) for _ in range(3)]
        self.teachers = [torch.optim.SGD(inverse.parameters(), lr=0.1, momentum=0.9) for inverse in self.inverses]
        self.targets: list[Any] = [None, None, None]

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for i, (block, inverse) in enumerate(zip(self.blocks, self.inverses)):
            before, h = h, h + block(h)
            with torch.enable_grad():
                loss = F.mse_loss(inverse.to(h.dtype).forward(h.detach()), before.detach())
                loss.backward()
            self.teachers[i].step()
            self.targets[i] = inverse.forward(h)
        return self.out_head(self.out_ln(h))


class OwnGenerators(Base):
    """Draws from generators of its own, of every kind, and from those of the process."""

    def __init__(self) -> None:
        super().__init__()
        self.torch_generator = torch.Generator().manual_seed(1)
        self.numpy_generator, self.old_generator = np.random.default_rng(1), np.random.RandomState(1)
        self.python_generator = random.Random(1)
        self.drawn = np.zeros(4)

    def forward(self, x: Tensor) -> Tensor:
        torch.rand(2, generator=self.torch_generator)
        self.drawn[:] = self.numpy_generator.random(4) + self.old_generator.rand(4) + self.python_generator.random()
        torch.rand(1), np.random.rand(), random.random()
        return super().forward(x)


class Recurrent(Base):
    """Carries a state from call to call, with the graph of the call before: backward is run later."""

    def __init__(self) -> None:
        super().__init__()
        self.pair: Any = Pair(torch.zeros(16, WIDTH), torch.zeros(16, WIDTH))
        self.register_buffer("running", torch.zeros(WIDTH))
        self.history: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        state = 0.1 * h + 0.9 * self.pair.h[: len(h)].to(h)
        self.pair = Pair(state, self.pair.c)
        self.running = 0.9 * self.running + 0.1 * h.mean(0)
        self.history.append(state.sum())
        for block in self.blocks:
            h = h + block(h)
        return self.out_head(self.out_ln(h))


class WritesViews(Base):
    """Writes views of what it keeps, with a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = torch.zeros(2 * WIDTH)
        self.first, self.second = self.flat[:WIDTH], self.flat[WIDTH:]
        self.register_buffer("table", torch.zeros(4, WIDTH))
        self.row = self.table[1]

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        if h.dtype == self.flat.dtype:
            self.first.copy_(h.mean(0))
            self.flat[WIDTH:].add_(h.sum(0))
            self.row.copy_(h[0])
        for block in self.blocks:
            h = h + block(h)
        return self.out_head(self.out_ln(h))


class Meddles(Base):
    """Changes what it is made of: hooks, flags, modes, registered parts, its class."""

    def __init__(self) -> None:
        super().__init__()
        self.gone: Any = torch.ones(2)
        self.calls = 0
        self.register_buffer("late", None)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.__dict__.pop("gone", None)
        self.embed.register_forward_hook(lambda *args: None)
        self.embed.register_state_dict_pre_hook(lambda *args: None)
        if self.embed.weight.requires_grad:
            self.embed.weight.register_hook(lambda grad: None)
            self.embed.weight.register_post_accumulate_grad_hook(lambda p: None)
        self.out_head.bias.requires_grad_(not self.out_head.bias.requires_grad)
        self.blocks[0].train()
        self.register_buffer("late", torch.ones(2))
        self.register_buffer("later", torch.ones(2), persistent=False)
        self.grown = nn.Linear(2, 2)
        self.__class__ = Grown
        return super().forward(x)


class Grown(Meddles):
    pass


class WritesWeights(Base):
    """Normalises weights in place and past autograd, moves the memory of one, and has an old weight norm."""

    def forward(self, x: Tensor) -> Tensor:
        self.blocks[0][0].weight.data.mul_(0.9)
        with torch.no_grad():
            self.blocks[1][0].weight.clamp_(-0.1, 0.1)
        self.blocks[2][0].bias.data = self.blocks[2][0].bias.data.clone()
        self.embed.weight.data = self.embed.weight.data * 1.1
        return super().forward(x)


class Accumulates(Base):
    """Has gradients everywhere, gradients and more on the Parameters themselves, and runs backward when it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.free = torch.ones(WIDTH, requires_grad=True)
        self.free.grad = torch.full((WIDTH,), 2.0)
        for p in self.parameters():
            p.grad = torch.ones_like(p)
            p.main_grad = torch.zeros_like(p)  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x) * self.free
        if torch.is_grad_enabled():
            h.sum().backward(retain_graph=True)
            for p in (self.embed.weight, self.embed.bias):
                if p.grad is not None and hasattr(p, "main_grad"):
                    p.main_grad.add_(p.grad)  # type: ignore[attr-defined]
        for block in self.blocks:
            h = h + block(h)
        return self.out_head(self.out_ln(h))


class HoldsOthers(Base):
    """Leads to things that are not its own: a loader, a parent, a hook object that keeps what it saw, TorchScript."""

    class Saver:
        def __init__(self) -> None:
            self.kept: list[Any] = []

        def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
            self.kept.append(output)

        def save(self, module: nn.Module, args: Any) -> None:
            self.kept.append(args)

    def __init__(self) -> None:
        super().__init__()
        self.parent = [SimpleNamespace(child=self, log=[])]
        self.embed.register_forward_hook(self.Saver())
        self.out_ln.register_forward_pre_hook(self.Saver().save)
        self.data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(4, 2)), batch_size=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self.scripted = torch.jit.script(nn.BatchNorm1d(WIDTH))
        self.lock = Lock()

    def forward(self, x: Tensor) -> Tensor:
        self.parent[0].log.append(self.scripted(torch.ones(2, WIDTH)))
        return super().forward(x)


def ready(make: Callable[[], nn.Module]) -> nn.Module:
    """Build a network in mixed modes, some of it frozen, some with gradients, after a step of training."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = make()
    for module in (model, *model._modules.values()):
        vars(module)["training"] = True
    model.blocks[1].training = False  # type: ignore[index, union-attr]
    model.out_ln.weight.requires_grad_(False)  # type: ignore[union-attr]
    model.out_head.weight.grad = torch.ones_like(model.out_head.weight)  # type: ignore[union-attr, arg-type]
    return model


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    cls.__name__: cls
    for cls in (
        KeepsOutput, HidesWeights, OverridesAll, RecreatesParameters, RedrawsParameters, RescalesParameters,
        CachesGraphs, PlainWeights, PredictiveCoding, CallsForward, OwnGenerators, Recurrent, WritesViews, Meddles,
        WritesWeights, Accumulates, HoldsOthers,
    )
}  # fmt: skip
