"""The matched control of D3: the same run with its blocks left at their random initialisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from torch import nn

from walkback.network.anatomy import Anatomy
from walkback.network.layers import Sites
from walkback.training.bundle import Bundle
from walkback.training.frozen import Build, FrozenBaseline, Train, train_frozen
from walkback.training.loop import train
from walkback.training.spec import RunSpec
from walkback.training.spec import control_spec as control_spec


@overload
def frozen_baseline(spec: RunSpec, out: str | Path = "runs", *, stem: str = "rule", **options: Any) -> Bundle: ...
@overload
def frozen_baseline(
    build: Build,
    train: Train,
    *,
    seed: int | Sequence[int] = 0,
    anatomy: Anatomy | Mapping[str, Any] | None = None,
    reinit: Callable[[nn.Module], object] | None = None,
    sites: Sites | None = None,
) -> FrozenBaseline: ...


def frozen_baseline(  # pyright: ignore[reportInconsistentOverload]  # build and train come by name or by place
    spec: RunSpec | Build | None = None, out: str | Path | Train = "runs", **options: Any
) -> Bundle | FrozenBaseline:
    """Train the control of D3: the same network with its blocks frozen at their random initialisation.

    With a RunSpec, its control is trained (or found trained): `frozen_baseline(spec, out="runs", stem="rule")` returns
    a bundle, and `.report().headline_acc` is the accuracy.

    With your own code, `frozen_baseline(build, train)` builds your network, freezes its blocks, calls your training
    function, and verifies that the blocks did not move by a bit. Its `.accuracy` goes into
    `diagnose(frozen_baseline_acc=…)`. Your own run must start the same way: set the seed, build, train.

    Args:
        spec: the run to be matched; or build() -> nn.Module, a new network at every call.
        out: the store of runs; or train(model) -> test accuracy as a fraction, or (accuracy, details as a dict).
        options: with a RunSpec, `stem` (see `control_spec`) and what `walkback.train` takes (root, data, device,
            quiet). With a function, `seed` (0; several give one accuracy each), `anatomy` where `Anatomy.of` needs
            help, `reinit`, a function that initialises one block, and `sites` as in `diagnose`: of a plain network
            every layer but the output layer is frozen.

    The blocks are as build() draws them from the seed. Where they are not drawn (pretrained weights, a build with a
    seed of its own) the modules' `reset_parameters()` does it, or `reinit`; where neither can, it is an error. Buffers
    in blocks, as batch norm's running statistics, may follow the data; those that did are listed.

    >>> import torch, walkback as wb
    >>> def train(model):
    ...     optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ...     for x, y in wb.selftest.batches(4):
    ...         optimiser.zero_grad()
    ...         torch.nn.functional.cross_entropy(model(x), y).backward()
    ...         optimiser.step()
    ...     x, y = wb.selftest.batches(1, seed=2)[0]
    ...     return (model(x).argmax(1) == y).float().mean().item()
    >>> build = lambda: wb.selftest.ResidualNet(16, 32, depth=2, classes=10)
    >>> baseline = wb.frozen_baseline(build, train, seed=[1, 2, 3])
    >>> len(baseline.accuracy), baseline.controls[0].frozen_parameters, baseline.controls[0].trained_parameters
    (3, 4352, 938)
    """
    first, second = options.pop("build", spec), options.pop("train", out)
    if callable(second):
        return train_frozen(first, second, **options)
    return train(control_spec(first, options.pop("stem", "rule")), second, **options)
