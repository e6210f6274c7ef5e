"""The picture of a network: its anatomy, and with a batch what one run of it shows. Model -> Picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from walkback.errors import InputError
from walkback.network.anatomy import Anatomy, Layers
from walkback.network.batch import pairs
from walkback.network.layers import WHOLE, Sites
from walkback.network.loss import Loss
from walkback.network.stacks import type_name
from walkback.notes import coded
from walkback.tracing.session import Tracer


@dataclass(frozen=True)
class Picture:
    """What would be measured on a network."""

    model: str  # the class of the network
    anatomy: Anatomy  # its parts; as they were called, if a batch was run
    # what the batch showed: state_shapes, blocks_return, pool, loss, a derived reference; None without one
    run: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the picture as JSON holds it: every block, however many there are."""
        rows = [dict(zip(("role", "path", "type"), row)) for row in self.anatomy.rows()]
        sites = len(self.anatomy.blocks) + 1
        share = self.anatomy.share
        held = {} if share is None else {"weights_in_sites": share.inside, "weights_outside": list(share.outside)}
        guessed = list(self.anatomy.guesses)
        return {"model": self.model, "sites": sites, "parts": rows, **held, "guessed": guessed, "run": self.run}

    def __str__(self) -> str:
        depth = len(self.anatomy.blocks)
        lines = [f"{self.model}: {depth + 1} sites, h_0 … h_{depth}", "", str(self.anatomy)]
        if self.run is not None:
            shapes = dict.fromkeys(_shape(shape) for shape in self.run["state_shapes"])
            pool = self.run["pool"]
            returned = self.run["blocks_return"]
            lines += [
                "",
                *([] if returned is None else [f"blocks return  {_RETURNS[returned]}"]),
                f"states         {', then '.join(shapes)}",
                f"norms          {_NORMS.get(pool, f'at token {pool}')}",
                f"loss           {self.run['loss']}",
                *([f"reference      {self.run['reference']}"] if "reference" in self.run else []),
            ]
        return "\n".join(lines)


_WORDS = {True: "branch", False: "state", None: "unknown"}
_NORMS = {
    WHOLE: "of the whole state; growth compares them per unit, ‖h‖/√d",
    None: "of the whole state",
    "mean": "averaged over tokens",
    "readout": "at the token each sample reads",
}
_RETURNS = {
    "state": "the new state h + f",
    "branch": "the residual branch f",
    "unknown": "can't be seen in this batch",
}


def picture(
    model: nn.Module,
    anatomy: Anatomy | Mapping[str, Any] | None = None,
    eval_batches: Iterable[Any] | None = None,
    loss: Loss | None = None,
    sites: Sites | None = None,
) -> Picture:
    """Look at a network as `walkback.diagnose` would, and run the first of the batches if there are any.

    >>> import walkback as wb
    >>> print(picture(wb.selftest.network(depth=2), eval_batches=wb.selftest.batches(1)))
    ResidualNet: 3 sites, h_0 … h_2
    <BLANKLINE>
    stem     embed     Linear      writes h_0
    block 1  blocks.0  Sequential  writes h_1
    block 2  blocks.1  Sequential  writes h_2
    readout  out_ln    LayerNorm   reads h_2
    readout  out_head  Linear
    blocks hold 82% of the weights; the rest: embed, out_ln, out_head
    <BLANKLINE>
    blocks return  the residual branch f
    states         (32)
    norms          of the whole state
    loss           cross-entropy
    """
    tracer = Tracer(model, anatomy, loss, sites=sites)
    if eval_batches is None:
        if anatomy is None and sites is None:
            Anatomy.of(tracer.model)  # where only a batch could tell whether there is a residual stream, an error
        return Picture(type_name(tracer.model), tracer.anatomy)
    first = next(iter(pairs(eval_batches, tracer.model)), None)
    if first is None:
        raise InputError("Expected at least one batch, but eval_batches is empty. Leave it out, or pass some.")
    with tracer:
        trace = tracer.trace(*first)
    seen = {
        "state_shapes": [list(h.shape[1:]) for h in trace.states],
        "blocks_return": None if isinstance(tracer.anatomy, Layers) else _WORDS[tracer.branch],
        "pool": trace.pool,
        "loss": tracer.loss_name,
    }
    for note in coded(tracer.notes, "derived-reference"):
        seen["reference"] = note.text
    return Picture(type_name(tracer.model), tracer.anatomy, seen)


def _shape(sizes: list[int]) -> str:
    return f"({', '.join(map(str, sizes))})"
