"""The sites of a plain network, moved: what a layer returns, and something added to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from walkback.network.layers import Site
from walkback.tracing.calls import overheard


@contextmanager
def moved_layers(sites: Sequence[Site], deltas: Mapping[int, Tensor]) -> Iterator[None]:
    """Add `deltas[site]`, shaped like h_site, to what the layer of that site returns in one pass inside."""
    turns: dict[int, int] = {}

    def after(module: nn.Module, output: Any) -> Any:
        turn = turns[id(module)] = turns.get(id(module), 0) + 1
        added = {
            sites[i].leaf: sites[i].as_made(delta)
            for i, delta in deltas.items()
            if sites[i].call.module is module and sites[i].call.turn == turn
        }
        count = iter(range(len(tree_leaves(output))))
        return tree_map(lambda t: t + added[i] if (i := next(count)) in added else t, output) if added else None

    with overheard((sites[i].call.module for i in deltas), after):
        yield
