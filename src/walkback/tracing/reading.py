"""How a session reads its network: what the user said, what batches have shown since. Model -> NetworkReading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import nn

from walkback.network.anatomy import Anatomy, Layers
from walkback.network.given import parts_of
from walkback.network.layers import BY_REGISTRATION, Site, Sites
from walkback.network.published import published
from walkback.network.stacks import BY_ORDER
from walkback.network.values import return_hidden
from walkback.notes import Note
from walkback.tracing.layout import Layout
from walkback.tracing.rerun import is_sharded


@dataclass(frozen=True)
class NetworkReading:
    """Where a network is read, and what is still to be found out about that."""

    anatomy: Anatomy
    layout: Layout
    guessed: bool  # nobody said what the blocks are: the first batch decides between the candidates
    may_be_plain: bool  # the first batch may show that there is no residual stream
    may_derive: bool  # nobody said what the reference is: where the graph is cut, it is the forward pass alone
    may_try: bool  # other candidates are tried where the first batch can't be read at these blocks
    hidden: str | None  # how forward takes `return_hidden`, see `return_hidden`
    suspect: bool = False  # something in the forward pass could make the backward pass another function's
    reader: str = ""  # the part that is handed the last site
    branches: bool = False  # traces keep the branches too: they are as large as the states

    @property
    def blocks(self) -> tuple[nn.Module, ...]:
        """The L blocks, in the order the stream passes them."""
        return cast(tuple[nn.Module, ...], self.anatomy.blocks)

    @property
    def block_names(self) -> tuple[str, ...]:
        """The names of the blocks."""
        start = len(self.anatomy.stems)
        return self.anatomy.names[start : start + len(self.blocks)]

    @property
    def layer_sites(self) -> tuple[Site, ...]:
        """Where a plain network is read, once a batch has shown it; () of a residual one."""
        return self.anatomy.sites if isinstance(self.anatomy, Layers) else ()

    @property
    def guesses(self) -> list[str]:
        """What was guessed. An order of registration is no guess for long: a run shows whether it is right."""
        return [text for text in self.anatomy.guesses if text not in (BY_ORDER, BY_REGISTRATION)]

    def notes(self) -> list[Note]:
        """Return a note for everything that was guessed."""
        return [Note("guessed", None, {"what": text}) for text in self.guesses]

    def of(self, anatomy: Anatomy) -> NetworkReading:
        """Return a reading of other parts than those that were found before, of which nothing is known yet."""
        layout = Layout(anatomy.branch, anatomy.pool, received=bool(anatomy.sums))
        return replace(self, anatomy=anatomy, layout=layout, may_be_plain=False)

    def asking(self, first: bool) -> dict[str, bool]:
        """Return the keyword by which a network returns its states: on the first batch, or where it has to be given."""
        ask = self.hidden == "required" or (self.hidden == "optional" and first)
        return {"return_hidden": True} if ask else {}


def begin(
    model: nn.Module,
    anatomy: Anatomy | Mapping[str, Any] | None,
    sites: Sites | None,
    reference: nn.Module | str | None,
) -> NetworkReading:
    """Return how a network is read before a batch was seen; a twin as `reference` has to be read alike."""
    parts = parts_of(model, anatomy, sites)
    unsaid = anatomy is None and published(model) is None
    may_be_plain = unsaid and not is_sharded(model)
    return NetworkReading(
        anatomy=parts,
        layout=Layout(parts.branch, parts.pool),
        guessed=unsaid and sites is None,
        may_be_plain=may_be_plain,
        may_try=may_be_plain and sites is None and not isinstance(reference, nn.Module),
        may_derive=reference is None,
        hidden=return_hidden(model),
    )
