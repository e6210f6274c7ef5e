"""Sites at the layers of a plain network (MLP, LeNet, conv stack), which has no residual stream: nn.Module -> which.

Site 0 is what the first hidden layer writes, site l what the next ones do, and the readout is the output layer. By
default the layers are all that have a weight, each read at its output, before the activation. Which of them run, in
what order and how often, is seen in the first batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from walkback.errors import AnatomyError, shown
from walkback.network.stacks import UNCALLED, matching, type_name
from walkback.network.values import children_of, named_modules_of, named_parameters_of, parameters_of

Named = tuple[str, nn.Module]  # with its path
Sites = str | Sequence[str] | Callable[[nn.Module], Any]

WHOLE = "whole"  # the pool of a plain network: the state of a layer is one vector, whatever its axes mean
_WEIGHTS = ("weight", "weights", "w", "kernel")  # what a layer calls its weight
BY_REGISTRATION = "layers stand in the order in which they are registered; a batch shows the order of their calls"


@dataclass(frozen=True)
class Call:
    """One call of a module in a forward pass: its path, and which of how many calls it is."""

    path: str
    module: nn.Module
    turn: int = 1
    turns: int = 1

    @property
    def name(self) -> str:
        """The path, with #k where the module is called several times."""
        return f"{self.path}#{self.turn}" if self.turns > 1 else self.path


@dataclass(frozen=True)
class Site:
    """Where a site is read: which call of which module, which of the tensors it returns, and how the batch lies there.

    On its own `axis`, or folded with `rows` steps of each sample in turn: (B · rows, d), as of a layer that runs on
    every step of a sequence.
    """

    call: Call
    leaf: int
    axis: int
    rows: int = 0
    number: int | None = None  # of a product with a weight that no module makes: which tensor of the pass it is

    def batch_first(self, h: Tensor) -> Tensor:
        """Return a state with the batch first.

        >>> import torch
        >>> Site(Call("fc", nn.Linear(3, 3)), 0, 0, rows=4).batch_first(torch.zeros(8, 3)).shape
        torch.Size([2, 4, 3])
        """
        if self.rows and h.shape[0] % self.rows == 0:
            return h.unflatten(0, (-1, self.rows))
        return h.transpose(0, self.axis) if self.axis else h

    def as_made(self, h: Tensor) -> Tensor:
        """Return a state with the batch first in the form in which the layer returned it."""
        return h.flatten(0, 1) if self.rows else self.batch_first(h)


def choose(core: nn.Module, sites: Sites) -> tuple[list[Named], list[Named], Any]:
    """Return the layers that are sites and those that read them, by what is registered, and the choice itself.

    Args:
        core: any network, without its wrappers.
        sites: "layers", dotted names ("fc1", "features.*", "cell#2" for a second call), or module -> bool.
    """
    weighted = [(path, module) for path, module in weighted_modules(core) if not _holds_weighted(module, core)]
    weighted = [named for layer in weighted for named in _loose(core, *layer) or [layer]]
    if len(weighted) < 2:  # a network by hand, which may hold a module, or one whose hidden layers no gradient trains
        frozen = [(path, module) for path, module in named_modules_of(core) if frozen_weights(module)]
        weighted = _all_loose(core, weighted) + frozen + weighted
    choice: Any = sites
    if isinstance(sites, str) and sites == "layers":
        if len(weighted) < 2:
            raise AnatomyError(_too_few(core, weighted))
        chosen, readout = weighted[:-1], weighted[-1:]
    else:
        if isinstance(sites, str) or (isinstance(sites, Iterable) and not callable(sites)):
            choice = tuple([sites] if isinstance(sites, str) else sites)
            chosen = [found for name in choice for found in _named(core, name, [path for path, _ in weighted])]
            if not chosen:
                raise AnatomyError("Expected sites to name at least one module, but the list is empty.")
        elif callable(sites):
            chosen = [(path, m) for path, m in named_modules_of(core) if path and sites(m)]
            if not chosen:
                raise AnatomyError(
                    f"Expected sites to choose at least one module, but the function says no to all "
                    f"{sum(1 for _ in named_modules_of(core)) - 1} of {type_name(core)}."
                )
        else:
            raise AnatomyError(
                'Expected sites to be "layers", a list of dotted names, or a function of a module, but got '
                f"{shown(sites)}."
            )
        after = [path for path, _ in weighted]
        last = max((after.index(path) for path, _ in chosen if path in after), default=-1)
        readout = weighted[last + 1 :] if callable(sites) or last + 1 < len(weighted) else []
        if callable(sites) and not readout and len(chosen) > 1:  # a function says yes to the output layer too
            chosen, readout = chosen[:-1], chosen[-1:]
    return chosen, readout, choice


def weighted_modules(model: nn.Module) -> list[Named]:
    """Return every module with a weight of its own, a parameter of at least two dimensions, by its path.

    Norms and activations have none. What is not trained counts only where nothing of the network is: feedback matrices
    are kept as frozen parameters. A weight that a local rule writes may be a buffer, see `kept_weights`.

    >>> [path for path, _ in weighted_modules(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.PReLU()))]
    ['0']
    """
    every = [(path, module) for path, module in named_modules_of(model) if "parametrizations" not in path.split(".")]
    whole = tuple(f"{path}." for path, module in every if is_message_passing(module))
    every = [(path, module) for path, module in every if not path.startswith(whole)]
    own = [(path, module, own_weights(module)) for path, module in every]
    trained = [
        (path, module) for path, module, ps in own if any(p.requires_grad for p in ps) or (ps and _torchs(module))
    ]
    known = trained or [(path, module) for path, module, ps in own if ps]
    ids = {id(module) for _, module in known}
    return [(path, module) for path, module in every if id(module) in ids or kept_weights(module)]


def outside(model: nn.Module, parts: Sequence[nn.Module]) -> tuple[nn.Module, ...]:
    """Return the modules with parameters of their own that neither lie in these parts nor hold one of them.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.ReLU(), nn.Linear(2, 2))
    >>> [type(module).__name__ for module in outside(net, [net[3]])]
    ['Linear', 'LayerNorm']
    """
    inside = {id(m) for part in parts for _, m in named_modules_of(part)}
    found = [m for _, m in named_modules_of(model) if any(p is not None for p in m._parameters.values())]
    holds = [m for m in found if not any(id(below) in inside for _, below in named_modules_of(m))]
    nested = {id(below) for m in holds for path, below in named_modules_of(m) if path}
    return tuple(m for m in holds if id(m) not in nested)


def _torchs(module: nn.Module) -> bool:
    """Return whether it is a layer of torch, or derived from one: frozen weights of these are weights all the same."""
    none = ("torch.nn.modules.module", "torch.nn.modules.container")
    return any(c.__module__.startswith("torch.nn.modules") and c.__module__ not in none for c in type(module).__mro__)


def is_message_passing(module: nn.Module) -> bool:
    """Return whether a module is a layer of a graph network: it passes what its linear parts return to neighbours."""
    return any(c.__name__ == "MessagePassing" for c in type(module).__mro__)


def read_as_one(model: nn.Module) -> list[str]:
    """Return the paths of layers of a graph network that run a network of their own: `GINConv(nn.Sequential(…))`."""
    layers = [(path, m) for path, m in named_modules_of(model) if is_message_passing(m)]
    inner = {path: [p for _, p in children_of(m) if not isinstance(p, UNCALLED)] for path, m in layers}
    return [path for path, parts in inner.items() if any(len(weighted_modules(part)) > 1 for part in parts)]


def own_weights(module: nn.Module) -> list[nn.Parameter]:
    """Return a module's own parameters of two dimensions or more; of a layer of a graph network those of its parts."""
    if is_message_passing(module):
        return [p for p in parameters_of(module) if p.ndim > 1]
    own = [p for p in module._parameters.values() if p is not None]
    own += list(parameters_of(module.parametrizations)) if is_parametrized(module) else []  # type: ignore[arg-type]
    return [p for p in own if p.ndim > 1]


def kept_weights(module: nn.Module) -> list[Tensor]:
    """Return the weights of a layer that keeps them as buffers, by the names that weights have; of others none.

    Such are layers of Hebbian code, which no gradient trains. They have no parameters and hold no other module.

    >>> import torch
    >>> layer = nn.Module()
    >>> layer.register_buffer("weight", torch.zeros(3, 2))
    >>> len(kept_weights(layer)), len(kept_weights(nn.BatchNorm1d(3)))
    (1, 0)
    """
    if any(p is not None for p in module._parameters.values()) or children_of(module):
        return []
    named = (b for name, b in module._buffers.items() if name.lower() in _WEIGHTS and b is not None)
    return [b for b in named if b.ndim > 1 and b.is_floating_point()]


def _loose(model: nn.Module, path: str, module: nn.Module) -> list[Named]:
    """Return the trained weights of a module that is never called as a layer, by their names: the network, a list."""
    if module is not model and not isinstance(module, (*UNCALLED, nn.ParameterList, nn.ParameterDict)):
        return []
    own = [(name, p) for name, p in module._parameters.items() if p is not None and p.ndim > 1 and p.requires_grad]
    return [(f"{path}.{name}" if path else name, module) for name, _ in own]


def _all_loose(model: nn.Module, weighted: list[Named]) -> list[Named]:
    """Return all other trained weights by their names."""
    known = {name for name, _ in weighted}
    named = ((name, weight_named(model, name)) for name in named_parameters_of(model))
    others = [(name, found) for name, found in named if found is not None and found[1].requires_grad]
    return [(name, owner) for name, (owner, _) in others if not {name, name.rpartition(".")[0]} & known]


def weight_named(model: nn.Module, name: str) -> tuple[nn.Module, nn.Parameter] | None:
    """Return the parameter of two dimensions or more of this name, and the module that it is in; None: there is none.

    >>> net = nn.Linear(2, 3)
    >>> weight_named(net, "weight")[0] is net, weight_named(net, "bias"), weight_named(net, "fc.weight")
    (True, None, None)
    """
    path, _, own = name.rpartition(".")
    owner = dict(named_modules_of(model)).get(path)
    found = None if owner is None else owner._parameters.get(own)
    return None if owner is None or found is None or found.ndim < 2 else (owner, found)


def frozen_weights(module: nn.Module) -> list[nn.Parameter]:
    """Return the weights of a layer of one's own that are all frozen: of Hebbian code, or of feedback beside a layer.

    >>> import torch
    >>> layer = nn.Module()
    >>> layer.weight = nn.Parameter(torch.zeros(3, 2), requires_grad=False)
    >>> len(frozen_weights(layer)), len(frozen_weights(nn.Linear(2, 2)))
    (1, 0)
    """
    own = own_weights(module)
    return (
        [] if children_of(module) or any(p.requires_grad for p in module._parameters.values() if p is not None) else own
    )


def _holds_weighted(module: nn.Module, model: nn.Module) -> bool:
    """Return whether there is another module with a weight inside, other than one that it never calls as such."""
    if isinstance(module, nn.MultiheadAttention) or is_message_passing(module):
        return False
    inside = {id(m) for path, m in named_modules_of(module) if path}
    return any(id(m) in inside for _, m in weighted_modules(model))


def _named(model: nn.Module, name: object, weighted: Sequence[str]) -> list[Named]:
    """Return (path, module) of a name; AnatomyError where there is none, with what may have been meant."""
    if isinstance(name, nn.Module):
        found = [(path, m) for path, m in named_modules_of(model) if m is name]
        if found:
            return found
    if not isinstance(name, str):
        raise AnatomyError(f"Expected every site to be the dotted name of a module, but got {shown(name)}.")
    path, _, turn = name.partition("#")
    known = {path: module for path, module in named_modules_of(model) if path}
    if any(c in path for c in "*?[") and (many := matching(model, path)):
        return [(f"{p}#{turn}" if turn else p, m) for p, m in many if not isinstance(m, UNCALLED)]
    if path not in known and (found := weight_named(model, path)) is not None:
        return [(name, found[0])]
    if path not in known or (turn and not turn.isdigit()):
        near = get_close_matches(path, known, n=3, cutoff=0.5)
        meant = f" Did you mean {', '.join(near)}?" if near else ""
        raise AnatomyError(
            f"Expected every site to be the dotted name of a module, but {type_name(model)} has no {shown(name)}."
            f"{meant} Layers with a weight: {', '.join(weighted[:20]) or 'none'}{', …' * (len(weighted) > 20)}."
        )
    if isinstance(known[path], UNCALLED):
        raise AnatomyError(
            f"Expected every site to be a module that is called, but {path} is a {type_name(known[path])}, which only "
            f'holds others. Name those: sites=["{path}.*"].'
        )
    return [(name, known[path])]


def _too_few(model: nn.Module, weighted: Sequence[tuple[str, nn.Module]]) -> str:
    there = ", ".join(f"{path or '(model)'} ({type_name(module)})" for path, module in weighted) or "none"
    return (
        f"Expected a network with at least one hidden layer and an output layer, but {type_name(model)} has "
        f"{len(weighted)} module{'s' * (len(weighted) != 1)} with a weight: {there}. Name the modules whose outputs "
        'are sites: sites=["name", …].'
    )
