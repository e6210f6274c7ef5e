"""Training mode that computes what eval mode computes: dropout is off, and norms use their running statistics.

Feedback layers may act in training mode only, while a measurement is about the states of eval mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from walkback.network.values import modules_of
from walkback.tracing.untouched import set_modes


@contextmanager
def quiet_training(model: nn.Module) -> Iterator[None]:
    """Set every module to training mode except dropout and norms with statistics; every mode is put back on leaving.

    Flags are set one by one, since `model.train()` may be overridden. Code inside that calls it all the same turns
    dropout and batch norm on again: functional calls are kept quiet too, and the modules make those.

    >>> net = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(2), nn.Linear(2, 2)).eval()
    >>> with quiet_training(net):
    ...     [m.training for m in net], torch.equal(F.dropout(torch.ones(9)), torch.ones(9))
    ([False, False, True], True)
    >>> [m.training for m in net]
    [False, False, False]
    """
    modes = [(m, m.training) for m in modules_of(model)]
    try:
        set_modes((module, not _is_noisy(module)) for module, _ in modes)
        with _Quiet():
            yield
    finally:
        set_modes(modes)


def _is_noisy(module: nn.Module) -> bool:
    """Return whether a module computes another thing in training mode: dropout, norm statistics, a random slope."""
    if isinstance(module, (_DropoutNd, _NormBase, nn.RReLU)):
        return True
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0
    # DropPath, StochasticDepth, DropBlock and their like have no common class.
    name = str(getattr(module, "original_name", type(module).__name__)).lower()
    if isinstance(module, torch.jit.ScriptModule) and ("norm" in name or "rrelu" in name):  # their classes are lost
        return "layernorm" not in name and "groupnorm" not in name
    leaf = not module._modules and not module._parameters
    return leaf and ("drop" in name or "stochasticdepth" in name)


_DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)
_ATEN_DROPOUTS = (torch.dropout, torch.dropout_, torch.native_dropout, torch.alpha_dropout, torch.feature_dropout)
# function -> position, name and value of the argument that makes it do what it does in eval mode
_QUIET: dict[Any, tuple[int, str, Any]] = {
    **dict.fromkeys(_DROPOUTS, (2, "training", False)),
    **dict.fromkeys((*_ATEN_DROPOUTS, torch.feature_alpha_dropout), (2, "train", False)),
    F.rrelu: (3, "training", False),
    F.multi_head_attention_forward: (13, "training", False),
    F.scaled_dot_product_attention: (4, "dropout_p", 0.0),
    F.batch_norm: (5, "training", False),
    F.instance_norm: (5, "use_input_stats", False),
}
_WITH_STATISTICS = {F.batch_norm, F.instance_norm}  # without running statistics they use the batch's in eval mode too


class _Quiet(TorchFunctionMode):
    """Turns functional dropout off, and functional norms to their running statistics."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one call, with the argument that makes it quiet where it has one."""
        kwargs = kwargs or {}
        if func in _QUIET and not (func in _WITH_STATISTICS and _argument(args, kwargs, 1, "running_mean") is None):
            position, name, value = _QUIET[func]
            if len(args) > position:
                args = (*args[:position], value, *args[position + 1 :])
            else:
                kwargs = {**kwargs, name: value}
        return func(*args, **kwargs)


def _argument(args: Any, kwargs: Any, position: int, name: str) -> Any:
    return args[position] if len(args) > position else kwargs.get(name)
