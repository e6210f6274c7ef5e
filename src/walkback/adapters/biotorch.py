"""BioTorch: its DFA layers take the output error from the loss in training mode only."""

from __future__ import annotations

from typing import Any

from torch import nn

from walkback.tracing.recorded import Recorded, recorded


def biotorch(model: nn.Module, **options: Any) -> Recorded:
    """Return the credits of a network of BioTorch's layers: `diagnose(model, batches, credit=biotorch(model))`.

    In training mode, without dropout and with batch norm on its running statistics: in eval mode a DFA layer still has
    the output error of the last training batch. Options as in `walkback.recorded`.
    """
    return recorded(model, **{"train": True, **options})
