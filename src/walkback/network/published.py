"""The published interface, by which a network says itself what its stem, blocks and readout are."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

# Its two spellings: stem, terminal norm, head.
STEMS = ("embed", "patch_embed")
READOUTS = (("out_ln", "out_head"), ("norm", "head"))


def published(model: nn.Module) -> tuple[str, tuple[str, ...]] | None:
    """Return (stem, readout) of a network that has the published interface, else None."""
    stem = next((name for name in STEMS if isinstance(getattr(model, name, None), nn.Module)), None)
    readout = next((pair for pair in READOUTS if isinstance(getattr(model, pair[1], None), nn.Module)), ())
    present = tuple(name for name in readout if isinstance(getattr(model, name, None), nn.Module))
    container = getattr(model, "blocks", None)
    has_blocks = isinstance(container, nn.ModuleDict) or (
        isinstance(container, Iterable) and all(isinstance(b, nn.Module) for b in list(container))
    )
    return (stem, present) if has_blocks and stem is not None and present else None
