"""The matched control of D3: the same run with its blocks left at their random initialisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from torch import nn

from walkback.errors import InputError, shown
from walkback.network.anatomy import Anatomy
from walkback.training.bundle import Bundle
from walkback.training.frozen import Build, FrozenBaseline, Train, train_frozen
from walkback.training.loop import train
from walkback.training.spec import RunSpec

NO_LOCAL_LOSS = {"penalty", "penalty_over", "penalty_stem", "credit_site"}


def control_spec(spec: RunSpec, stem: str = "rule") -> RunSpec:
    """The spec of the control: same network, data, epochs, optimiser and seed.

    Args:
        spec: the run to be matched.
        stem: "rule" trains the stem as the run does, so that only the blocks differ (D3's default);
            "bp" with the exact gradient through the frozen blocks, usually the stronger control.

    >>> control_spec(RunSpec(rule="dfa", penalty=1e-2)).scope
    'frozen'
    """
    if not isinstance(spec, RunSpec):
        raise InputError(
            f"Expected a RunSpec, the run to be matched, but got a {type(spec).__name__}. Make one: "
            "RunSpec(net=…, data=…, rule=…), where net may be your own module:function. For a network and training "
            "code of your own: frozen_baseline(build, train)."
        )
    if stem not in ("rule", "bp"):
        raise InputError(f'Expected stem to be "rule" or "bp", but got {shown(stem)}.')
    # Frozen blocks have no local loss, so neither a penalty nor the credit's site means anything to the control.
    fields = {**spec.model_dump(exclude=NO_LOCAL_LOSS), "scope": "frozen"}
    if stem == "bp":
        fields |= {"rule": "bp", "rule_options": {}, "credit_length": "raw"}
    return RunSpec(**fields)


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
            help, and `reinit`, a function that initialises one block.

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
