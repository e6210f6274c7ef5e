"""The parts of a network as a caller gives them: nothing, an Anatomy, its keywords, or sites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torch import nn

from walkback.errors import AnatomyError, InputError, cut, shown
from walkback.network.anatomy import Anatomy, layers_of
from walkback.network.layers import Sites

_FOUND = ("names", "guesses", "by_forward", "sums", "steps", "share")  # of an anatomy, what is not said but found


def parts_of(model: nn.Module, anatomy: Anatomy | Mapping[str, Any] | None, sites: Sites | None = None) -> Anatomy:
    """Return the anatomy that a caller gave, in whatever form, with its parts found in the model.

    Args:
        model: the network.
        anatomy: an Anatomy, or its keywords; None: what `Anatomy.of` finds.
        sites: "layers", names, or module -> bool, in place of an anatomy.
    """
    if sites is not None:
        if anatomy is not None:
            raise InputError("Expected sites= or anatomy=, but got both: each says where the network is read.")
        return layers_of(model, sites)
    if isinstance(anatomy, Mapping):
        known = [
            *(f.name for f in fields(Anatomy) if f.name not in _FOUND),
            "sites",
        ]
        if set(anatomy) - set(known):
            raise InputError(
                f"Expected anatomy to name {', '.join(known)}, but got {cut(', '.join(map(str, anatomy)))}."
            )
        anatomy = Anatomy.of(model, **anatomy)
    if anatomy is not None and not isinstance(anatomy, Anatomy):
        raise InputError(f"Expected anatomy to be an Anatomy or a dict of its parts, but got {shown(anatomy)}.")
    if anatomy is not None:
        return anatomy.resolve(model)
    try:
        return Anatomy.of(model)
    except AnatomyError as error:  # a batch shows whether there is a residual stream
        try:
            return layers_of(model, refusal=str(error))
        except AnatomyError:
            raise error from None
