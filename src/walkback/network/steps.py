"""What is known of states that no block takes or returns: the steps between them, as a batch showed them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Steps:
    """How the states of a network are told apart where its steps are made outside of its blocks.

    Args:
        modules: the blocks, those of all steps.
        injected: whether the stem's output goes into later steps too, past the states between.
        gaps: sites after which weights that are in no block come before the next block, which is given the same shape.
        made: how many tensors a forward pass makes; one that makes more or fewer is another pass.
    """

    modules: tuple[nn.Module, ...]
    injected: bool
    gaps: tuple[int, ...]
    made: int
