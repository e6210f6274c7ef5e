"""What share of a network's weights the blocks hold, and which modules hold the rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from walkback.network.values import children_of, named_modules_of, parameters_of
from walkback.sentence_parts import share_held


@dataclass(frozen=True)
class Share:
    """How much of the weights is in the blocks (None where there are none), and where the others are."""

    inside: float | None
    outside: tuple[str, ...] = ()

    def text(self, what: str = "blocks") -> str:
        """Return both in words.

        >>> Share(0.5, ("embed", "head")).text()
        'blocks hold 50% of the weights; the rest: embed, head'
        """
        return share_held(what, self.inside, self.outside)


def share_of(model: nn.Module, parts: Iterable[nn.Module], weights: Iterable[nn.Parameter] = ()) -> Share:
    """Return what share of the weights of `model` is in these modules, and the paths of those that hold the others.

    `weights` are counted among them: parameters that the network uses directly.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> share_of(net, [net[0]])
    Share(inside=0.5, outside=('1',))
    """
    parts = list(parts)
    sizes = {id(p): p.numel() for p in parameters_of(model)}
    alone = {id(p) for p in weights}
    inside = {id(p) for part in parts for p in parameters_of(part)} | alone
    blocks = {id(part) for part in parts}
    holders = {
        id(m)
        for _, m in named_modules_of(model)
        if any(id(below) in blocks for _, below in named_modules_of(m)) or any(id(p) in alone for p in parameters_of(m))
    }
    outside: list[str] = []

    def look(path: str, module: nn.Module) -> None:
        if id(module) in blocks or all(id(p) in inside for p in parameters_of(module)):
            return
        if id(module) not in holders:
            outside.append(path or "(model)")
            return
        own = [name for name, p in module._parameters.items() if p is not None and id(p) not in inside]
        outside.extend(f"{path}.{name}" if path else name for name in own)
        for name, child in children_of(module):
            look(f"{path}.{name}" if path else name, child)

    look("", model)
    total = sum(sizes.values())
    return Share(sum(n for p, n in sizes.items() if p in inside) / total if total else None, tuple(outside))
