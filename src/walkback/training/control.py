"""The matched control of D3: the same run with its blocks left at their random initialisation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from walkback.errors import InputError
from walkback.training.bundle import Bundle
from walkback.training.loop import train
from walkback.training.spec import RunSpec


def control_spec(spec: RunSpec, stem: str = "rule") -> RunSpec:
    """The spec of the control: same network, data, epochs, optimiser and seed.

    Args:
        spec: the run to be matched.
        stem: "rule" trains the stem as the run does, so that only the blocks differ (D3's default);
            "bp" with the exact gradient through the frozen blocks, the stronger control.

    >>> control_spec(RunSpec(rule="dfa", penalty=1e-2)).scope
    'frozen'
    """
    if not isinstance(spec, RunSpec):
        raise InputError(
            f"Expected a RunSpec, the run to be matched, but got a {type(spec).__name__}. Make one: "
            "RunSpec(net=…, data=…, rule=…), where net may be your own module:function."
        )
    if stem not in ("rule", "bp"):
        raise InputError(f'Expected stem to be "rule" or "bp", but got {stem!r}.')
    # Frozen blocks have no local loss, so neither a penalty nor the credit's site means anything to the control.
    fields = {**spec.model_dump(), "scope": "frozen", "penalty": 0.0, "credit_site": "writer"}
    if stem == "bp":
        fields |= {"rule": "bp", "rule_options": {}}
    return RunSpec(**fields)


def frozen_baseline(spec: RunSpec, out: str | Path = "runs", *, stem: str = "rule", **options: Any) -> Bundle:
    """Train the control of `spec` (or find it trained) and return its bundle; `.report().headline_acc` is its accuracy.

    Args:
        spec: the run to be matched.
        out: the store of runs.
        stem: see `control_spec`.
        options: passed on to `walkback.train` (root, data, device, quiet).
    """
    return train(control_spec(spec, stem), out, **options)
