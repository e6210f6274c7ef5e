"""The sites of a plain network, moved: what a layer returns, and something added to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from walkback.network.layers import Site
from walkback.tracing.calls import overheard
from walkback.tracing.numbered import aside
from walkback.tracing.products import Product, Products


@contextmanager
def moved_layers(
    model: nn.Module, sites: Sequence[Site], deltas: Mapping[int, Tensor], products: Products
) -> Iterator[None]:
    """Add `deltas[site]`, shaped like h_site, to what the layer of that site returns in one pass inside."""
    turns: dict[int, int] = {}
    numbers = {sites[i].number: i for i in deltas if sites[i].number is not None}

    def at(product: Product, made: Tensor) -> Tensor | None:
        site = numbers.get(product.number)
        return None if site is None else made + sites[site].as_made(deltas[site])

    def after(module: nn.Module, output: Any) -> Any:
        turn = turns[id(module)] = turns.get(id(module), 0) + 1
        added = {
            sites[i].leaf: sites[i].as_made(delta)
            for i, delta in deltas.items()
            if sites[i].number is None and sites[i].call.module is module and sites[i].call.turn == turn
        }
        count = iter(range(len(tree_leaves(output))))
        with aside():
            return tree_map(lambda t: t + added[i] if (i := next(count)) in added else t, output) if added else None

    modules = [sites[i].call.module for i in deltas if sites[i].number is None]
    # Products are found by their number among what is made with gradients on, also where none is asked for.
    grads = torch.enable_grad() if products.found else nullcontext()
    with grads, overheard(modules, after), products.shown(model, at):
        yield
