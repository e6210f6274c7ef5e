"""The networks of the papers, by name. Each has a stem, blocks that return the residual branch, and a readout."""

from __future__ import annotations

from typing import Any

from torch import nn

from walkback.errors import InputError
from walkback.nets.resmlp import ResMLP
from walkback.nets.small_cnn import SmallCNN
from walkback.nets.student import StudentNet
from walkback.nets.vit_mini import ViTMini
from walkback.registry import call_entry, gathered, is_entry, known_name, known_options

NETS: dict[str, type[nn.Module]] = gathered(__name__, "NETS")

__all__ = ["NETS", "ResMLP", "SmallCNN", "StudentNet", "ViTMini", "build"]


def build(name: str, input_shape: tuple[int, ...], classes: int, /, **options: Any) -> nn.Module:
    """Return a network by name, or by `module:function`, for inputs of `input_shape` (without the batch).

    >>> build("resmlp", (3, 32, 32), 10, width=16, depth=2).out_head
    Linear(in_features=16, out_features=10, bias=True)
    """
    if taken := sorted({"input_shape", "classes"} & options.keys()):
        raise InputError(f"Expected net_options without {' and '.join(taken)}, which the data decides. Leave it out.")
    if is_entry(name):
        net = call_entry(name, input_shape=input_shape, classes=classes, **options)
        if not isinstance(net, nn.Module):
            raise InputError(f"Expected {name} to return a torch.nn.Module, but got {type(net).__name__}.")
        return net
    made = NETS[known_name("net", name, NETS)]
    known_options("net_options", name, made, options)
    return made(input_shape=input_shape, classes=classes, **options)
