"""The modules that write the sites of a network, and those whose weights show the credit of a site."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from walkback.errors import InputError
from walkback.network.anatomy import Anatomy, Layers, Part
from walkback.network.lookup import find_part
from walkback.network.values import named_parameters_of, parameters_of
from walkback.tracing.makers import Key

LIMIT = 2**22  # numbers per module that gradients are compared on


class Writers:
    """The module that writes each site: the stems and the blocks, or what the user named for site 0…L."""

    def __init__(self, model: nn.Module, anatomy: Anatomy, writers: Sequence[Part] | None) -> None:
        self.model = model
        # Of a plain network: each layer writes its site, and none hands a stream on.
        self.layers = anatomy.read if isinstance(anatomy, Layers) else None
        self.blocks: tuple[nn.Module, ...] = () if self.layers else anatomy.blocks  # type: ignore[assignment]  # resolved
        if self.layers and any(site.number is not None for site in self.layers):
            names = [site.call.name for site in self.layers if site.number is not None]
            raise InputError(
                f"Expected sites that modules write, to record a credit at every one, but {', '.join(names)} are "
                "weights that the forward pass uses directly. Put each into a module, or give the credits as a "
                "function of the trace."
            )
        stems = {("stem", k): stem for k, stem in enumerate(anatomy.stems) if isinstance(stem, nn.Module)}
        stems = {} if self.layers else stems
        self.by_key: dict[Key, nn.Module] = {**stems, **dict(enumerate(self.blocks, 1))}
        if self.layers:
            self.by_key = {i: site.call.module for i, site in enumerate(self.layers)}
        self.named = writers is not None
        if len({*map(id, self.blocks)}) < len(self.blocks) or (anatomy.by_forward and not self.layers):
            how = "as block.forward(h), past all hooks" if anatomy.by_forward else "several times"
            names = anatomy.names[len(anatomy.stems) :][: len(self.blocks)]
            raise InputError(
                f"Expected blocks that are called once each, as modules, to record a credit at every one, but this "
                f"network calls them {how}. Their calls are told apart where modules are named as sites: "
                f"sites={list(names)}."
            )
        sites = len(self.layers or (*self.blocks, None))
        if writers is not None:
            self.by_key = dict(enumerate(find_part(model, w) for w in writers))
            if len(self.by_key) != sites:
                first = "" if self.layers else " The first is the stem."
                raise InputError(
                    f"Expected {sites} writers, one for each site 0…{sites - 1}, but got {len(self.by_key)}.{first}"
                )
        alone = any(map(named_parameters_of, stems.values()))
        self.first = [] if self.layers else list(stems.values()) if alone else self._outside_blocks()  # of site 0
        self.ran: list[nn.Module] = []  # of that
        self.stems: list[nn.Module] = []  # what ran before block 1: a part may be taken for a stem and stand elsewhere

    def begin_blocks(self) -> None:
        """Learn that block 1 runs now."""
        self.stems = [part for part in self.first if any(part is ran for ran in self.ran)]

    def owned(self) -> dict[Key, list[Tensor]]:
        """Return the parameters that are at home in each writer."""
        owners = {key: [w] if isinstance(key, tuple) else self.trained(key) for key, w in self.by_key.items()}
        return {key: [p for module in modules for p in parameters_of(module)] for key, modules in owners.items()}

    def weights(self, key: Key) -> dict[str, nn.Parameter]:
        """Return the trained parameters of a writer by name, as they are now; of large modules the smaller ones."""
        modules = self.shown_by(key)
        own = {
            f"{k}.{name}" if len(modules) > 1 or key == "given" else name: p
            for k, module in enumerate(modules)
            for name, p in named_parameters_of(module).items()
            if p.requires_grad
        }
        chosen: dict[str, nn.Parameter] = {}
        total = 0
        for name in sorted(own, key=lambda name: own[name].numel()):
            total += own[name].numel()
            if chosen and total > LIMIT:
                break
            chosen[name] = own[name]
        return chosen

    def name(self, key: Key) -> str:
        """Return what a writer is called in the network."""
        return self._called(self.by_key[key])

    def called(self, key: Key) -> str:
        """Return what the modules are called whose weights show the credit: the writer, or what it belongs to."""
        return ", ".join(map(self._called, self.shown_by(key))) or "the stem"

    def _called(self, part: nn.Module) -> str:
        return next((name for name, module in self.model.named_modules() if module is part), type(part).__name__)

    def trained(self, key: Key) -> list[nn.Module]:
        """Return the modules whose weights can show a credit: the writer, or where it has none all that write its site.

        What an activation or a feedback layer at the end of a block hands on trains the block.
        """
        if key != "given" and named_parameters_of(self.by_key[key]):
            return [self.by_key[key]]
        return [self.blocks[key - 1]] if isinstance(key, int) and key and self.blocks else self.first

    def shown_by(self, key: Key) -> list[nn.Module]:
        """Return the same after a run: of what writes site 0 only that which ran before block 1."""
        trained = self.trained(key)
        return self.stems if trained is self.first else trained

    def is_trained(self, key: Key) -> bool:
        """Return whether a parameter that shows the credit is trained."""
        return any(p.requires_grad for module in self.shown_by(key) for p in parameters_of(module))

    def _outside_blocks(self) -> list[nn.Module]:
        """Return the outermost modules with parameters of their own that are not in a block."""
        found: list[nn.Module] = []
        inside = {id(m) for block in self.blocks for m in block.modules()}
        for module in self.model.modules():
            if id(module) not in inside and any(p is not None for p in module._parameters.values()):
                found.append(module)
                inside |= {id(m) for m in module.modules()}
        return found
