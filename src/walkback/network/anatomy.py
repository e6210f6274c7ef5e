"""Find the stem, blocks and readout of a network: nn.Module -> Anatomy.

The stream is read from the blocks while the network runs its own forward pass, so only `blocks` decides
what is measured. Stem and readout are named for the reader, and for rules that train them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from walkback.errors import AnatomyError, shown
from walkback.network.layers import BY_REGISTRATION, WHOLE, Call, Site, Sites, choose, outside, weight_named
from walkback.network.lookup import Part, find_part, one_or_many, sequence, unfold
from walkback.network.published import published
from walkback.network.refusals import cannot_read
from walkback.network.rows import aligned, folded
from walkback.network.share import Share, share_of
from walkback.network.stacks import BY_ORDER, around, beside, find_stacks, guess, is_tie, lone_blocks, type_name
from walkback.network.steps import Steps
from walkback.network.values import named_modules_of


@dataclass(frozen=True)
class Anatomy:
    """Where the residual stream of a network is read and written.

    Parts are modules or dotted paths; paths are looked up when the anatomy meets a model.

    Args:
        stem: the module that writes h_0, or several (None: not named; h_0 is what block 1 receives).
        blocks: the L blocks in the order they are called; block l writes h_l. A path may have wildcards:
            "layer?.*", "stages.*.layers.*". A block that is called several times writes a site in each call: it stands
            there once for each, or once, and a batch shows the calls.
        readout: terminal norm and head, in order.
        pool: where a (B, T, d) state is read: a token index, "mean", "readout" (the token each
            sample's own gradient shows), or None to find it from the gradient of the first batch.
        branch: True when a block returns the residual branch f, False when it returns the new state h + f,
            None to find out by running one batch.
        guesses: what `Anatomy.of` had to guess, in words; shown in the picture and in reports.
        by_forward: True where the network runs its blocks as `block.forward(h)`, past their hooks; a batch shows it.
        sums: where the steps are no modules: the numbers of the tensors that are sites, in the order in which a forward
            pass makes them; a batch shows it. The blocks are then the layers that write what is added.
        steps: what a batch showed where `sums` are the states between steps that are made outside of the blocks.
        share: what share of the weights the blocks hold, and which modules the others are in, once resolved.

    >>> import torch, walkback as wb
    >>> net = torch.nn.Module()
    >>> net.enter, net.tower = torch.nn.Linear(4, 8), torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in "ab")
    >>> net.leave = torch.nn.Linear(8, 3)
    >>> print(wb.Anatomy.of(net, stem="enter", blocks="tower", readout="leave"))
    stem     enter    Linear  writes h_0
    block 1  tower.0  Linear  writes h_1
    block 2  tower.1  Linear  writes h_2
    readout  leave    Linear  reads h_2
    blocks hold 68% of the weights; the rest: enter, leave
    """

    stem: Part | tuple[Part, ...] | None
    blocks: tuple[Part, ...] | str
    readout: tuple[Part, ...] = ()
    pool: int | str | None = None
    branch: bool | None = None
    names: tuple[str, ...] = ()
    guesses: tuple[str, ...] = ()
    by_forward: bool = False
    sums: tuple[int, ...] = ()
    steps: Steps | None = None
    share: Share | None = None

    @staticmethod
    def of(
        model: nn.Module,
        *,
        stem: Part | Iterable[Part] | None = None,
        blocks: Part | Iterable[Part] | None = None,
        readout: Part | Iterable[Part] = (),
        pool: int | str | None = None,
        branch: bool | None = None,
        sites: Any = None,
    ) -> Anatomy:
        """Find the parts of a network; parts the caller names are used as they are.

        The published interface is recognised first (`embed` or `patch_embed`, `blocks`, and `out_head` or `head`,
        with `out_ln` or `norm` where there is a terminal norm), then the stacks of common libraries by their
        spelling, then the longest run of siblings of one type. A network without any of them is read at its layers, see
        `Layers`; AnatomyError where that is not enough.

        Args:
            model: any network, also compiled, data-parallel, sharded or with adapters.
            stem: module or dotted path, or a sequence of them.
            blocks: a container (module, dotted path, or a path with wildcards), or a sequence of blocks.
            readout: module or dotted path, or a sequence of them.
            pool: see `Anatomy`.
            branch: see `Anatomy`.
            sites: "layers" for the outputs of all layers with a weight; a list of dotted names; or module -> bool.
        """
        if not isinstance(model, nn.Module):
            raise AnatomyError(f"Expected model to be a torch.nn.Module, but got {type(model).__name__}.")
        if sites is not None:
            if any(part is not None for part in (stem, blocks, pool, branch)) or readout != ():
                raise AnatomyError("Expected sites alone, or the parts of a residual network, but got both.")
            return layers_of(model, sites)
        before = one_or_many(stem)
        after = (readout,) if isinstance(readout, (nn.Module, str)) else sequence(readout, "readout")
        if blocks is not None:
            many = blocks if isinstance(blocks, (nn.Module, str)) else sequence(blocks, "blocks")
            return Anatomy(before, unfold(many), after, pool, branch).resolve(model)
        core = unwrap(model)
        if (found := published(core)) is not None:
            the_stem, the_readout = found
            return Anatomy(before or the_stem, "blocks", after or the_readout, pool, branch).resolve(model)
        stacks = find_stacks(core)
        if not stacks or is_tie(stacks):
            refusal = cannot_read(core, stacks)
            if stacks or any(type(core.get_submodule(path)) is not nn.Sequential for path in lone_blocks(core)):
                raise AnatomyError(refusal)
            try:
                return layers_of(core, refusal=refusal)
            except AnatomyError:
                raise AnatomyError(refusal) from None
        paths = stacks[0].paths
        outer = around(core, paths)
        named = before is not None and after
        guesses = tuple(
            text
            for text in (guess(stacks, beside(core, stacks[0])), "" if named or not any(outer) else BY_ORDER)
            if text
        )
        found_stem = outer[0] if len(outer[0]) > 1 else outer[0][0] if outer[0] else None
        return Anatomy(before or found_stem, paths, after or outer[1], pool, branch, guesses=guesses).resolve(model)

    def resolve(self, model: nn.Module) -> Anatomy:
        """Return the same anatomy with every dotted path looked up in `model`."""
        core = unwrap(model)
        known = {id(module): name for name, module in named_modules_of(core)}
        raw = unfold(find_part(core, self.blocks)) if isinstance(self.blocks, str) else self.blocks
        if len(raw) == 1 and isinstance(raw[0], (nn.ModuleList, nn.ModuleDict)):
            raw = unfold(raw[0])  # a list with the container in it; a lone nn.Sequential is one block
        blocks = tuple(find_part(core, b) for b in raw)
        stems = tuple(find_part(core, s) for s in self.stems)
        readout = tuple(find_part(core, r) for r in self.readout)
        if not blocks:
            raise AnatomyError(
                "Expected at least one block, but the blocks given are empty. "
                'Name the container that holds them: Anatomy.of(model, blocks="path.to.blocks").'
            )
        for part in (*blocks, *readout, *stems):
            if id(part) not in known:
                raise AnatomyError(
                    f"Expected every part of the anatomy to belong to the model, but {type(part).__name__} "
                    "is not one of its modules. Take it from the model itself, or name it by its dotted path (a plain "
                    "Python list does not make its modules part of a model: use nn.ModuleList)."
                )
        words = isinstance(self.pool, str) and self.pool in ("mean", "readout")
        if not (self.pool is None or words or isinstance(self.pool, int)):
            raise AnatomyError(f'Expected pool to be a token index, "mean" or None, but got {shown(self.pool)}.')
        called = [known[id(b)] or "(model)" for b in blocks]
        numbered = (f"{p}#{called[: i + 1].count(p)}" if called.count(p) > 1 else p for i, p in enumerate(called))
        return replace(
            self,
            stem=stems if len(stems) > 1 else stems[0] if stems else None,
            blocks=blocks,
            readout=readout,
            names=(*(known[id(p)] for p in stems), *numbered, *(known[id(p)] for p in readout)),
            share=share_of(core, blocks),
        )

    def in_order(self, calls: Sequence[int]) -> Anatomy:
        """Return the anatomy with its blocks, once resolved, in the order a batch called them, each as often."""
        stems, depth = len(self.stems), len(self.blocks)
        paths = [self.names[stems + i] for i in calls]
        blocks = [f"{p}#{paths[: i + 1].count(p)}" if paths.count(p) > 1 else p for i, p in enumerate(paths)]
        return replace(
            self,
            blocks=tuple(self.blocks[i] for i in calls),
            names=(*self.names[:stems], *blocks, *self.names[stems + depth :]),
        )

    @property
    def stems(self) -> tuple[Part, ...]:
        """The stem as a tuple, whether it is none, one or several modules."""
        return () if self.stem is None else self.stem if isinstance(self.stem, tuple) else (self.stem,)

    def depth_modules(self, model: nn.Module) -> tuple[nn.Module, ...]:
        """Return what a frozen control leaves at random, once resolved: the blocks, each once."""
        if self.steps is not None:
            return self.steps.modules
        if self.sums:
            return outside(unwrap(model), [p for p in (*self.stems, *self.readout) if isinstance(p, nn.Module)])
        return tuple({id(b): b for b in self.blocks if isinstance(b, nn.Module)}.values())

    def called(self, i: int) -> str:
        """Return what errors call the block at index i, once resolved: "block 3 (layers.2)"."""
        return f"block {i + 1} ({self.names[i + len(self.stems)]})"

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield (role, dotted path, type) of every part, in the order of the stream."""
        blocks = (self.blocks,) if isinstance(self.blocks, str) else self.blocks
        roles = [
            *("stem" for _ in self.stems),
            *(["blocks"] if isinstance(self.blocks, str) else [f"block {i}" for i in range(1, len(blocks) + 1)]),
            *("readout" for _ in self.readout),
        ]
        parts = (*self.stems, *blocks, *self.readout)
        for role, name, part in zip(roles, self.names or [""] * len(roles), parts):
            yield role, name, type_name(part) if isinstance(part, nn.Module) else str(part)

    def __str__(self) -> str:
        rows = folded([(*row, site) for row, site in zip(self.rows(), self._sites())])
        if self.names and not self.stems:
            rows.insert(0, ("stem", "(none named)", "", "h_0 is what block 1 receives"))
        lines = aligned(rows)
        lines += [] if self.share is None else [self.share.text()]
        return "\n".join([*lines, *(f"guessed: {text}" for text in self.guesses)])

    def _sites(self) -> list[str]:
        """Return what each part has to do with the stream; nothing is known of paths that wait for their model."""
        if isinstance(self.blocks, str):
            return [""] * (len(self.stems) + 1 + len(self.readout))
        depth = len(self.blocks)
        before = [""] * (len(self.stems) - 1) + ["writes h_0"] * bool(self.stems)
        after = [f"reads h_{depth}"] * bool(self.readout) + [""] * (len(self.readout) - 1)
        return [*before, *(f"writes h_{i}" for i in range(1, depth + 1)), *after]


@dataclass(frozen=True)
class Layers(Anatomy):
    """Where a plain network is read: its hidden layers, in the order of their calls.

    `stem` writes site 0 and `blocks` write the others, as in every Anatomy; all of them are hidden layers, and a layer
    that is called several times stands there once for each call.

    Args:
        choice: "layers", the names that were given, or the function that chose them.
        left_out: layers that are no site, and why.
        refusal: why no residual stream was found, where nobody asked for layers: an error if there is one after all.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    >>> print(Anatomy.of(net))
    site 0   0  Linear  writes h_0
    site 1   2  Linear  writes h_1
    readout  4  Linear  reads h_1
    sites are the outputs of all layers with a weight, before the activation
    the input is no site, the output layer is the readout
    their layers hold 82% of the weights; the rest: 4
    guessed: layers stand in the order in which they are registered; a batch shows the order of their calls
    """

    choice: Any = "layers"
    left_out: tuple[str, ...] = ()
    refusal: str = ""
    sites: tuple[Site, ...] = ()  # once a batch has shown them
    products: Any = None  # products with weights that no module makes, and
    reads: tuple[str, ...] = ()  # the names of those that are the output layer

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """The modules that write site 0…L, one for each site."""
        return (*self.stems, *self.blocks)  # type: ignore[return-value]  # resolved

    @property
    def site_names(self) -> tuple[str, ...]:
        """The name of each site: the path of its layer, with #k where that is called several times."""
        return self.names[: len(self.modules)]

    @property
    def read(self) -> tuple[Site, ...]:
        """Where each site is read: as a batch showed it, or else in the one call of every layer."""
        return self.sites or tuple(Site(Call(*named), 0, 0) for named in zip(self.site_names, self.modules))

    def resolve(self, model: nn.Module) -> Layers:
        """Return the same layers of `model`: themselves where they are its own, else those of the same names."""
        core = unwrap(model)
        own = {id(module) for _, module in named_modules_of(core)}
        if all(id(part) in own for part in (*self.modules, *self.readout)):
            return self
        known = dict(named_modules_of(core))
        if self.loose(core):
            return layers_of(core, self.choice, self.refusal)
        if any(name.partition("#")[0] not in known for name in self.names):
            return layers_of(core, list(self.site_names), self.refusal)  # which says what is missing
        first, *rest = (known[name.partition("#")[0]] for name in self.names)
        count = len(self.blocks)
        return replace(self, stem=first, blocks=tuple(rest[:count]), readout=tuple(rest[count:]), sites=())

    def depth_modules(self, model: nn.Module) -> tuple[nn.Module, ...]:
        """Return what a frozen control leaves at random: every module with parameters but the output layer.

        Also layers that are no site, and the norms between them: all that the output layer reads.
        """
        if loose := self.loose(model):
            raise AnatomyError(
                "Expected layers that are modules, to freeze them or draw them anew, but the forward pass uses "
                f"weights directly: {', '.join(loose)}. Put each into a module: so they can only be measured."
            )
        return outside(unwrap(model), [part for part in self.readout if isinstance(part, nn.Module)])

    def loose(self, model: nn.Module) -> list[str]:
        """Return the names of sites that are products with a weight of that name, which no module makes."""
        known = dict(named_modules_of(unwrap(model)))
        return [name for name in dict.fromkeys(n.partition("#")[0] for n in self.site_names) if name not in known]

    def called(self, i: int) -> str:
        """Return what errors call the layer that writes site i + 1."""
        return f"site {i + 1} ({self.names[i + 1]})"

    def as_called(
        self,
        model: nn.Module,
        sites: Sequence[Site],
        readout: Sequence[Call],
        left_out: Sequence[str],
        products: Any,
    ) -> Layers:
        """Return the layers as a batch showed them."""
        first, *rest = (site.call.module for site in sites)
        loose = {path for path, _ in products.numbers()}
        reads = tuple(dict.fromkeys(call.path for call in readout if call.path in loose))
        readout = [call for call in readout if call.path not in loose]
        found = (weight_named(model, site.call.path) for site in sites if site.number is not None)
        weights = [named[1] for named in found if named is not None]
        return replace(
            self,
            stem=first,
            blocks=tuple(rest),
            readout=tuple(dict.fromkeys(call.module for call in readout)),
            names=(*(site.call.name for site in sites), *dict.fromkeys(call.path for call in readout)),
            guesses=tuple(text for text in self.guesses if text != BY_REGISTRATION),
            left_out=tuple(left_out),
            refusal="",
            sites=tuple(sites),
            products=products,
            reads=reads,
            share=share_of(model, (site.call.module for site in sites if site.number is None), weights),
        )

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield (role, dotted path, type) of every part, in the order of their calls."""
        roles = [*(f"site {i}" for i in range(len(self.modules))), *("readout" for _ in self.readout)]
        numbers = [site.number for site in self.read] + [None] * len(self.readout)
        for role, name, part, number in zip(roles, self.names, (*self.modules, *self.readout), numbers):
            yield role, name, type_name(part) if number is None else "Parameter"  # type: ignore[arg-type]  # resolved
        yield from (("readout", name, "Parameter") for name in self.reads)

    def __str__(self) -> str:
        last = len(self.modules) - 1
        what = [*(f"writes h_{i}" for i in range(last + 1)), *(f"reads h_{last}" for _ in (*self.readout, *self.reads))]
        rows = [(*row, text) for row, text in zip(self.rows(), what)]
        lines = aligned(rows)
        lines += [f"sites are {self.why}", "the input is no site, the output layer is the readout"]
        lines += [] if self.share is None else [self.share.text("their layers")]
        lines += [f"left out: {text}" for text in self.left_out]
        return "\n".join([*lines, *(f"guessed: {text}" for text in self.guesses)])

    @property
    def why(self) -> str:
        """What the sites are, in words."""
        if self.choice == "layers":
            return "the outputs of all layers with a weight, before the activation"
        return "the outputs of the modules " + ("that were named" if isinstance(self.choice, tuple) else "chosen")


def layers_of(model: nn.Module, sites: Sites = "layers", refusal: str = "") -> Layers:
    """Return the layers that are sites, by what is registered.

    Args:
        model: any network.
        sites: "layers", dotted names ("fc1", "features.*", "cell#2" for a second call), or module -> bool.
        refusal: see `Layers`.
    """
    inner = unwrap(model)
    chosen, readout, choice = choose(inner, sites)
    known = dict(named_modules_of(inner))
    named = {name: m for name, m in chosen if name.partition("#")[0] in known}
    found = (weight_named(inner, name.partition("#")[0]) for name, _ in chosen if name not in named)
    share = share_of(inner, named.values(), [of[1] for of in found if of is not None])
    names = (*(path for path, _ in chosen), *(path for path, _ in readout))
    parts: dict[str, Any] = {"names": names, "guesses": (BY_REGISTRATION,), "choice": choice, "refusal": refusal}
    first, *rest = (m for _, m in chosen)
    return Layers(first, tuple(rest), tuple(m for _, m in readout), WHOLE, False, share=share, **parts)


def unwrap(model: nn.Module) -> nn.Module:
    """Return the network inside compile and data-parallel wrappers (same weights, no copy)."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DataParallel", "DistributedDataParallel"):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner
