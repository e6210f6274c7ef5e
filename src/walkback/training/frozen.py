"""The frozen control of a user's own network and training function.

D3 asks whether trained blocks beat the same blocks left random. Here the user's own code answers: it builds the
network, its blocks are frozen at a random initialisation, it trains the rest, and the blocks are compared bit for bit.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from walkback.errors import InputError, shown
from walkback.network import values
from walkback.network.anatomy import Anatomy, Layers, unwrap
from walkback.network.layers import BY_REGISTRATION, Sites, weighted_modules
from walkback.network.values import modules_of, named_buffers_of, named_parameters_of, parameters_of
from walkback.tracing.calls import overheard
from walkback.tracing.untouched import random_state
from walkback.verdict.claim import accuracies

Build = Callable[[], nn.Module]
Train = Callable[[nn.Module], Any]
Parts = Anatomy | Mapping[str, Any] | None  # as `diagnose` takes them
Reinit = Callable[[nn.Module], object] | None


@dataclass(frozen=True)
class FrozenControl:
    """One seed's control: its accuracy, and the conditions it was trained under.

    Args:
        accuracy: what `train` returned, a fraction.
        seed: set before `build`, for torch, NumPy and Python.
        blocks: "build" when the blocks are as `build` initialised them from the seed, else what initialised them anew:
            "reset_parameters" or "reinit".
        frozen: names of the parameters that were frozen, those of the blocks.
        frozen_hash: of their names, shapes and bits, the same before and after training.
        frozen_parameters: how many numbers they hold.
        trained_parameters: how many numbers were left to train.
        moved_buffers: buffers of the blocks that training changed (running statistics of batch norm): they are
            estimates of the data, not learned by credit, and are allowed to follow it.
        tied: names outside the blocks that are the same parameter as one inside (a tied head): frozen with it.
        torch: its version.
        details: what else `train` returned.
    """

    accuracy: float
    seed: int
    blocks: str
    frozen: tuple[str, ...]
    frozen_hash: str
    frozen_parameters: int
    trained_parameters: int
    moved_buffers: tuple[str, ...] = ()
    tied: tuple[str, ...] = ()
    torch: str = torch.__version__
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FrozenBaseline:
    """`accuracy` is what `diagnose(frozen_baseline_acc=…)` takes: a fraction, or one for each seed."""

    accuracy: float | list[float]
    controls: tuple[FrozenControl, ...]

    def __str__(self) -> str:
        return "\n".join(
            f"seed {c.seed}: accuracy {c.accuracy:.4f}, {c.frozen_parameters:,} numbers in blocks frozen (hash "
            f"{c.frozen_hash[:12]}), {c.trained_parameters:,} trained, blocks initialised by {c.blocks}"
            + (f"; tied to a block and frozen with it: {', '.join(c.tied)}" if c.tied else "")
            for c in self.controls
        )


def train_frozen(
    build: Build,
    train: Train,
    *,
    seed: int | Sequence[int] = 0,
    anatomy: Parts = None,
    reinit: Reinit = None,
    sites: Sites | None = None,
) -> FrozenBaseline:
    """See `frozen_baseline`."""
    for name, value in (("build", build), ("train", train)):
        if not callable(value):
            raise InputError(f"Expected {name} to be a function, but got a {type(value).__name__}.")
    if isinstance(build, nn.Module):
        raise InputError(
            f"Expected build to be a function that makes a new network, but got a network, {type(build).__name__}. "
            "Pass what builds it, its class or a lambda, or lambda: copy.deepcopy(network) with reinit=."
        )
    single = isinstance(seed, Integral)
    given = [seed] if single else list(seed) if isinstance(seed, Iterable) else []
    seeds = [int(s) for s in given if isinstance(s, Integral) and not isinstance(s, bool)]
    if not seeds or len(seeds) < len(given):
        raise InputError(f"Expected seed to be an integer, or one for each run, but got {shown(seed)}.")
    if len(set(seeds)) < len(seeds):
        raise InputError(f"Expected different seeds, but got {shown(seeds)}: the same run twice says nothing new.")
    if sites is not None:
        if anatomy is not None:
            raise InputError("Expected sites= or anatomy=, but got both: each says what is frozen.")
        anatomy = {"sites": sites}
    controls = tuple(_control(build, train, s, anatomy, reinit) for s in seeds)
    return FrozenBaseline(controls[0].accuracy if single else [c.accuracy for c in controls], controls)


def _control(build: Build, train: Train, seed: int, anatomy: Parts, reinit: Reinit) -> FrozenControl:
    devices = {torch.device("cuda", i) for i in range(torch.cuda.device_count())}
    with random_state(devices | ({torch.device("mps")} if torch.backends.mps.is_available() else set())):
        other = _built(build, seed + 1)
        # The control starts where the user's run starts: seed, build, train. Nothing in between draws a number.
        model = _built(build, seed)
        if {id(p) for p in parameters_of(model)} & {id(p) for p in parameters_of(other)}:
            raise InputError(
                "Expected build() to make a new network each time, but two of its networks share parameters. Build all "
                "of it anew (copy.deepcopy what you have): its blocks are going to be frozen, and the rest trained."
            )
        blocks = _blocks(model, anatomy)
        parameters, buffers = _of_blocks(model, anatomy)
        _refuse_learning(blocks, parameters)
        how = _randomise(model, parameters, _of_blocks(other, anatomy)[0], seed, anatomy, reinit)
        del other
        beside = {n: p for n, p in named_parameters_of(unwrap(model)).items() if n not in parameters}
        rest = _copies({n: p for n, p in beside.items() if p.requires_grad})
        if not parameters or not rest:
            raise InputError(
                f"Expected blocks with parameters to freeze and something beside them to train, but there are "
                f"{len(parameters)} and {len(rest)} such parameters. Name the parts: anatomy=Anatomy.of(model, …)."
            )
        for p in parameters.values():
            p.requires_grad_(False)
            p.grad = None  # an optimiser would move a parameter with a gradient left over
        frozen, statistics = _copies(parameters), _copies(buffers)
        with _watched(blocks, parameters, frozen), _read_last(unwrap(model), _parts(unwrap(model), anatomy)):
            returned = train(model)
        now = named_parameters_of(unwrap(model))
        _refuse_moved(frozen, now)
        _refuse_learning(blocks, parameters)
        accuracy, details = _accuracy(returned)
        if all(name in now and torch.equal(now[name], old) for name, old in rest.items()):
            raise InputError(
                "Expected train(model) to train the network it is given, but no parameter of it has moved: does it "
                "train another network, or does its optimiser hold the parameters of another one?"
            )
        found, tied = named_buffers_of(unwrap(model)), _tied(model, blocks)
    return FrozenControl(
        accuracy=accuracy,
        seed=seed,
        blocks=how,
        frozen=tuple(frozen),
        frozen_hash=digest(frozen),
        frozen_parameters=sum(p.numel() for p in frozen.values()),
        trained_parameters=sum(p.numel() for p in rest.values()),
        moved_buffers=tuple(n for n, old in statistics.items() if n not in found or not torch.equal(found[n], old)),
        tied=tied,
        details=details,
    )


def digest(parameters: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names, shapes and bits."""
    hashed = hashlib.sha256()
    for name, p in parameters.items():
        hashed.update(f"{name} {tuple(p.shape)} {p.dtype} ".encode())
        hashed.update(p.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


def _built(build: Build, seed: int) -> nn.Module:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # what the user's own code draws from
    torch.manual_seed(seed)
    model = build()
    if not isinstance(model, nn.Module):
        raise InputError(f"Expected build() to return a torch.nn.Module, but got a {type(model).__name__}.")
    return model


def _blocks(model: nn.Module, anatomy: Parts) -> tuple[nn.Module, ...]:
    core = unwrap(model)
    return _parts(core, anatomy).depth_modules(core)


def _parts(core: nn.Module, anatomy: Parts) -> Anatomy:
    return anatomy.resolve(core) if isinstance(anatomy, Anatomy) else Anatomy.of(core, **(anatomy or {}))


def _tied(model: nn.Module, blocks: Sequence[nn.Module]) -> tuple[str, ...]:
    """Return the names outside the blocks of parameters that are in them too."""
    within = {id(m) for block in blocks for m in modules_of(block)}
    inside = {id(p) for block in blocks for p in parameters_of(block)}
    return tuple(
        f"{path}.{name}" if path else name
        for path, module in values.named_modules_of(unwrap(model))
        if id(module) not in within
        for name, p in module._parameters.items()
        if id(p) in inside
    )


def _of_blocks(model: nn.Module, anatomy: Parts) -> tuple[dict[str, nn.Parameter], dict[str, Tensor]]:
    """Return parameters and buffers of the blocks, by their names in the network."""
    core = unwrap(model)
    inside = {id(t) for block in _blocks(model, anatomy) for _, t in values.places(block)}
    parameters = {n: p for n, p in named_parameters_of(core).items() if id(p) in inside}
    return parameters, {n: b for n, b in named_buffers_of(core).items() if id(b) in inside}


def _randomise(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    other: Mapping[str, nn.Parameter],
    seed: int,
    anatomy: Parts,
    reinit: Reinit,
) -> str:
    """See to it that the blocks are random; say what made them so.

    A parameter that is the same under two seeds, and not a constant, was not drawn: it was loaded, or `build` sets a
    seed of its own.
    """
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        if reinit is not None:
            for block in _blocks(model, anatomy):
                reinit(block)
            return "reinit"
        fixed = _copies({n: p for n, p in parameters.items() if _fixed(p, other.get(n))})
        for owner in dict.fromkeys(n.rpartition(".")[0] for n in fixed):
            module = unwrap(model).get_submodule(owner)
            reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
            if callable(reset):
                reset()
    stuck = [n for n, old in fixed.items() if torch.equal(parameters[n], old)]
    if stuck:
        raise InputError(
            f"Expected blocks that are drawn anew from the seed, but build() gives {stuck[0]} the same values under "
            f"two seeds ({len(stuck)} such parameters): pretrained, or build() sets a seed of its own, and its module "
            "has no reset_parameters(). Build without loading weights, or say how a block is initialised: "
            "reinit=lambda block: …."
        )
    return "reset_parameters" if fixed else "build"


def _fixed(p: Tensor, other: Tensor | None) -> bool:
    constant = p.numel() == 0 or bool((p == p.flatten()[0]).all())
    return not constant and other is not None and torch.equal(p, other)


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.detach().clone() for name, t in tensors.items()}


def _accuracy(returned: Any) -> tuple[float, Mapping[str, Any]]:
    details: Any = {}
    if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping):
        returned, details = returned
    plain: Any = returned
    plain = plain.tolist() if hasattr(plain, "tolist") else plain  # NumPy, torch, JAX
    plain = plain[0] if isinstance(plain, (list, tuple)) and len(plain) == 1 else plain
    if not hasattr(plain, "__float__"):
        raise InputError(
            "Expected train(model) to return the test accuracy as a fraction, or (accuracy, {…}), but got "
            f"{shown(returned)}."
        )
    return accuracies("the accuracy that train(model) returns", plain)[0], details


def _refuse_moved(frozen: Mapping[str, Tensor], now: Mapping[str, nn.Parameter], count: int = 0) -> None:
    count = count or len(frozen)
    gone = [n for n in frozen if n not in now]
    if gone:
        raise InputError(
            f"Expected train(model) to keep the blocks, but afterwards {gone[0]} is gone ({len(gone)} of {count} "
            "frozen parameters): it replaced or renamed modules. Train the network as it is given."
        )
    moved = [n for n, old in frozen.items() if digest({n: old}) != digest({n: now[n]})]
    if not moved:
        return
    awake = [n for n in moved if now[n].requires_grad]
    why = (
        f"requires_grad is on again for {len(awake)} of them: train() unfreezes the network (requires_grad_(True), or "
        "a schedule that does). Leave requires_grad as it is given"
        if awake
        else "requires_grad is still off, so something writes them past it: weight decay or an average by hand, "
        "an optimiser with gradients of its own, load_state_dict. Let it take only parameters with requires_grad"
    )
    raise InputError(
        f"Expected frozen blocks that stay as they are, but train(model) moved {len(moved)} of {count} block "
        f"parameters, the first {moved[0]}: {why}."
    )


@contextmanager
def _watched(
    blocks: Sequence[nn.Module], parameters: Mapping[str, nn.Parameter], frozen: Mapping[str, Tensor]
) -> Iterator[None]:
    """Look at the blocks after every optimiser step: weights that are trained and put back did not stay frozen."""
    versions = {n: p._version for n, p in parameters.items()}
    moved: list[InputError] = []

    def after(*_: Any) -> None:
        written = [n for n, p in parameters.items() if p._version != versions[n]]
        versions.update({n: parameters[n]._version for n in written})
        try:
            _refuse_moved({n: frozen[n] for n in written}, parameters, len(frozen))
            _refuse_learning(blocks, parameters)
        except InputError as error:
            moved.append(error)
            raise

    handle = register_optimizer_step_post_hook(after)
    try:
        yield
    finally:
        handle.remove()
    if moved:
        raise moved[0]  # train() went on after it


@contextmanager
def _read_last(model: nn.Module, parts: Anatomy) -> Iterator[None]:
    """See that the output layer, by registration the last layer of a plain network, is the last that it calls."""
    if not isinstance(parts, Layers) or BY_REGISTRATION not in parts.guesses:
        yield
        return
    ran: list[str] = []
    names = {id(module): path for path, module in weighted_modules(model)}
    readout = {names.get(id(module)) for module in parts.readout}

    def after(module: nn.Module, _: Any) -> None:
        if module is not model:
            ran.append(names[id(module)])
        elif ran and ran[-1] not in readout:
            raise InputError(
                f"Expected the output layer to be the one that is registered last, {', '.join(map(str, readout))}, "
                f"which is not frozen, but the network calls {ran[-1]} last. Name the hidden layers: sites=[…]."
            )

    with overheard([model, *(m for _, m in weighted_modules(model) if m is not model)], after):
        yield


def _refuse_learning(blocks: Sequence[nn.Module], parameters: Mapping[str, nn.Parameter]) -> None:
    """Refuse parameters that were not there to be frozen, and buffers that learn."""
    known = {id(p) for p in parameters.values()}
    named = [(i, named_parameters_of(block), named_buffers_of(block)) for i, block in enumerate(blocks, 1)]
    added = [f"{n} of block {i}" for i, own, _ in named for n, p in own.items() if id(p) not in known]
    learning = [f"{n} of block {i}" for i, _, buffers in named for n, b in buffers.items() if b.requires_grad]
    if added:
        raise InputError(
            f"Expected train(model) to leave the blocks as they are, but it put {len(added)} new parameters into them, "
            f"the first {added[0]} (an adapter?): blocks that learn are no frozen control. Build the network with "
            "them, so that they are frozen too, or train it as it is given."
        )
    if learning:
        raise InputError(
            f"Expected buffers in the blocks that are not trained, but {learning[0]} requires a gradient "
            f"({len(learning)} such buffers). What is trained should be an nn.Parameter: then it is frozen."
        )
